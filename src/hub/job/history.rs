//! `towline history`: who changed what.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::client::kind;
use crate::config::text::{escaped, one_line, shortened};
use crate::documents::Kind;
use crate::job::JobList;
use crate::job::check::say;
use crate::job::client::{Error, HubAccess, HubClient, encode, filters as of_list, path_of, task};
use crate::job::command::{Exit, JobCommand, complain};
use crate::job::output::{Output, plain};

/// Most characters of a value in the text for people.
const LONGEST_VALUE: usize = 120;

/// The part of `--help` about what is shown.
const RIGHTS: &str = "\
Without a document: of a namespace that is named, else of all documents, and for administrators of all namespaces also
refused requests, migrations, key rotation and the like.";

/// `towline history`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct HistoryCommand {
    /// Kind of a document: clusters, syncsets, selectorsyncsets, secrets or clustersyncs
    #[arg(value_parser = kind, requires = "name")]
    kind: Option<Kind>,
    /// Its name, with or without its namespace: NAMESPACE/NAME. It may be gone
    name: Option<String>,
    /// Its namespace; without a document: that of all documents which are shown
    #[arg(short, long)]
    namespace: Option<String>,
    /// For how long back, such as 7d, or since when: 2026-11-28T17:11:04Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<Timestamp>,
    /// Most records, the newest ones; all by default
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Output format: json has one record a line, name only the documents
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    #[command(flatten)]
    access: HubAccess,
}

pub fn command() -> JobCommand {
    let history = |command: HistoryCommand, _: &JobList| Ok(task(history(command)));
    JobCommand::new("history", "Show who changed documents of a hub, when and how", history).after_help(RIGHTS)
}

/// A time, or how long ago it was.
fn since(text: &str) -> Result<Timestamp, String> {
    let ago = |length: Duration| Timestamp::now().checked_sub(length).ok();
    let time = text.parse().ok().or_else(|| humantime::parse_duration(text).ok().and_then(ago));
    time.ok_or_else(|| "it is no time such as 2026-11-28T17:11:04Z, and no length of time such as 7d".to_owned())
}

async fn history(command: HistoryCommand) -> Result<Exit, Error> {
    let HistoryCommand { kind, name, namespace, since, limit, output, access } = command;
    let since = since.map(|since| format!("&since={}", encode(&since.to_string()))).unwrap_or_default();
    let filters = filters(kind, name.as_deref(), namespace.as_deref())? + &since;
    let client = HubClient::new(&access).await?;
    let mut is_empty = true;
    let show = |record: &Value| {
        is_empty = false;
        show(record, output);
    };
    client.each("history", &filters, limit.unwrap_or(u64::MAX), show).await?;
    if is_empty {
        complain("there are no records of this");
    }
    Ok(Exit::Done)
}

/// The part of the query that says what the records are about.
fn filters(kind: Option<Kind>, name: Option<&str>, namespace: Option<&str>) -> Result<String, Error> {
    let (Some(kind), Some(name)) = (kind, name) else {
        return of_list(namespace, None);
    };
    // It checks them, too.
    let path = path_of(kind, namespace, name)?;
    let mut parts = path.rsplit('/');
    let name = parts.next().unwrap_or_default();
    let namespace = parts.next().filter(|_| kind.is_namespaced()).unwrap_or_default();
    Ok(format!("&kind={}&namespace={}&name={}", kind.plural(), encode(namespace), encode(name)))
}

fn show(record: &Value, output: Output) {
    match output {
        Output::Json => say(&escaped(&record.to_string())),
        Output::Yaml => {
            say("---");
            output.print(record, &[], &[]);
        }
        Output::Name => say(&document(record)),
        Output::Table | Output::Wide => lines(record, output == Output::Wide).iter().for_each(|line| say(line)),
    }
}

/// `SyncSet/team-a/base`; what concerns no document is `-`.
fn document(record: &Value) -> String {
    let parts = ["kind", "namespace", "name"].into_iter().filter_map(|field| record.get(field)?.as_str());
    let parts: Vec<String> = parts.filter(|part| !part.is_empty()).map(one_line).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join("/") }
}

/// A line with who, when and what, and one for each change below it.
fn lines(record: &Value, is_wide: bool) -> Vec<String> {
    let text = |field: &str| record.get(field).and_then(Value::as_str).map(one_line);
    if record.get("verb").is_some_and(|verb| verb == "forget") {
        let [at, namespace] = ["at", "namespace"].map(|field| text(field).unwrap_or_default());
        let count = plain(record.get("count"));
        return vec![format!(
            "{at} the namespace {namespace} had too many records: {count} up to this time were dropped"
        )];
    }
    let by_admin = text("via").is_some_and(|via| via == "admin");
    let who = text("actor").unwrap_or_else(|| if by_admin { "admin server" } else { "no token" }.to_owned());
    let from = text("address").map(|address| format!("from {address}"));
    let status = record.get("status").map(ToString::to_string);
    let result = text("result").map(|result| format!(": {result}")).unwrap_or_default();
    let version = text("resourceVersion").map(|version| format!(" (version {version})")).unwrap_or_default();
    let about = record.get("kind").map(|_| format!("{}{version}{result}", document(record)));
    let count = record.get("count").map(|count| format!("{count} times"));
    let details: Vec<String> = [text("request"), text("note"), count].into_iter().flatten().collect();
    let details = (!details.is_empty()).then(|| format!("({})", details.join(", ")));
    let parts = [text("at"), Some(who), from, text("verb"), status, about, details];
    let first = parts.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let mut lines = vec![first];
    for change in record.get("changes").and_then(Value::as_array).into_iter().flatten() {
        let value = |field: &str| {
            let shown = change
                .get(field)
                .map(|value| shortened(&value.to_string(), if is_wide { usize::MAX } else { LONGEST_VALUE }));
            shown.or_else(|| Some(format!("({} bytes)", change.get(format!("{field}Bytes"))?)))
        };
        let path = plain(change.get("path"));
        lines.push(match (value("before"), value("after")) {
            (Some(before), Some(after)) => format!("    {path}: {before} → {after}"),
            (Some(before), None) => format!("  - {path}: {before}"),
            (None, Some(after)) => format!("  + {path}: {after}"),
            (None, None) => format!("    {path}"),
        });
    }
    let hidden = record.get("hidden").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    lines.extend(hidden.map(|field| format!("    {}: changed, not shown", one_line(field))));
    if let Some(count) = record.get("leftOut") {
        lines.push(format!("    {count} more changes are not stored: a record has at most 8 KiB"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_is_a_line_and_one_for_each_change() {
        let record = json!({"at": "2026-11-28T17:11:04.123456Z", "actor": "ada", "address": "10.0.0.7", "via": "api", "verb": "patch",
            "kind": "SyncSet", "namespace": "team-a", "name": "base", "resourceVersion": "41", "result": "changed",
            "changes": [{"path": "/labels/env", "after": "prod"}, {"path": "/spec/a", "before": 1, "after": {"b": null}},
                {"path": "/annotations/x\u{1b}", "before": "y".repeat(200)}, {"path": "/spec/b", "before": 2, "afterBytes": 9218}],
            "hidden": ["kubeconfig"], "leftOut": 3});
        let expected = [
            "2026-11-28T17:11:04.123456Z ada from 10.0.0.7 patch SyncSet/team-a/base (version 41): changed".to_owned(),
            "  + /labels/env: \"prod\"".to_owned(),
            "    /spec/a: 1 → {\"b\":null}".to_owned(),
            format!("  - /annotations/x : \"{}…", "y".repeat(118)),
            "    /spec/b: 2 → (9218 bytes)".to_owned(),
            "    kubeconfig: changed, not shown".to_owned(),
            "    3 more changes are not stored: a record has at most 8 KiB".to_owned(),
        ];
        assert_eq!(lines(&record, false), expected);
        assert!(lines(&record, true)[3].ends_with("yyy\""));
        let refused = json!({"at": "t", "address": "10.0.0.8", "via": "api", "verb": "refused", "status": 401, "count": 12,
            "request": "GET /v1/secrets"});
        assert_eq!(lines(&refused, false), ["t no token from 10.0.0.8 refused 401 (GET /v1/secrets, 12 times)"]);
        let approved = json!({"at": "t", "address": "127.0.0.1", "via": "admin", "verb": "approve", "kind": "SelectorSyncSet",
            "name": "base", "note": "deletions on 3 clusters"});
        assert_eq!(
            lines(&approved, false),
            ["t admin server from 127.0.0.1 approve SelectorSyncSet/base (deletions on 3 clusters)"]
        );
        let forgotten = json!({"at": "t", "via": "database", "verb": "forget", "namespace": "team-a", "count": 17});
        assert_eq!(
            lines(&forgotten, false),
            ["t the namespace team-a had too many records: 17 up to this time were dropped"]
        );
    }

    #[test]
    fn a_document_is_named_as_in_other_commands() {
        let of = |kind, name, namespace| filters(kind, name, namespace).ok();
        let expected = Some("&kind=syncsets&namespace=team%2Da&name=base".to_owned());
        assert_eq!(of(Some(Kind::SyncSet), Some("team-a/base"), None), expected);
        assert_eq!(of(Some(Kind::SyncSet), Some("base"), Some("team-a")), expected);
        assert_eq!(
            of(Some(Kind::SelectorSyncSet), Some("base"), None),
            Some("&kind=selectorsyncsets&namespace=&name=base".to_owned())
        );
        assert_eq!(of(None, None, Some("team-a")), Some("&namespace=team%2Da".to_owned()));
        assert_eq!(of(None, None, None), Some(String::new()));
        assert_eq!(of(Some(Kind::SyncSet), Some("base"), None), None);
        assert!(since("7d").is_ok() && since("2026-11-28T17:11:04Z").is_ok() && since("yesterday").is_err());
    }
}
