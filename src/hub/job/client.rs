//! `towline apply`, `get` and `delete`: clients of the API.

use std::path::{Path, PathBuf};

use http::{Method, StatusCode};
use hyper::body::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::listing;
use crate::config::text::escaped;
use crate::documents::{Kind, Manifest, manifests_of_json, manifests_of_yaml};
use crate::job::JobList;
use crate::job::check::say;
use crate::job::client::{Error, HubAccess, HubClient, encode, filters, path_of, task, told};
use crate::job::command::{Exit, JobCommand, complain, remark};
use crate::job::output::{Format, Output, Results, padded, widths};
use crate::job::terminal::{Polling, telling};

/// `towline apply`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct ApplyCommand {
    /// File with documents as YAML or JSON; `-` for standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Check everything and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    access: HubAccess,
}

/// `towline get`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct GetCommand {
    /// Kind of the documents: clusters, syncsets, selectorsyncsets, secrets or clustersyncs
    #[arg(value_parser = kind)]
    kind: Kind,
    /// Name of one document, with or without its namespace: NAMESPACE/NAME
    name: Option<String>,
    /// Namespace; of a list: all by default
    #[arg(short, long)]
    namespace: Option<String>,
    /// Label selector of a list
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// After what is there, show each change, until the command is interrupted
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    access: HubAccess,
}

/// `towline delete`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct DeleteCommand {
    /// Kind of the document: clusters, syncsets, selectorsyncsets or secrets
    #[arg(value_parser = kind)]
    kind: Kind,
    /// Its name, with or without its namespace: NAMESPACE/NAME
    name: String,
    /// Its namespace
    #[arg(short, long)]
    namespace: Option<String>,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    access: HubAccess,
}

pub fn commands() -> Vec<JobCommand> {
    let apply = |command: ApplyCommand, _: &JobList| Ok(task(apply(command)));
    let get = |command: GetCommand, _: &JobList| Ok(task(get(command)));
    let delete = |command: DeleteCommand, _: &JobList| Ok(task(delete(command)));
    vec![
        JobCommand::new("apply", "Create or change documents of a hub as a file has them", apply),
        JobCommand::new("get", "Show documents of a hub", get),
        JobCommand::new("delete", "Delete a document of a hub", delete),
    ]
}

/// A kind by its plural, its name, or that in lower case.
pub fn kind(text: &str) -> Result<Kind, String> {
    let lower = text.to_lowercase();
    let found = Kind::ALL.into_iter().find(|kind| kind.plural() == lower || kind.name().to_lowercase() == lower);
    found.ok_or_else(|| format!("a kind is one of {}", Kind::ALL.map(Kind::plural).join(", ")))
}

async fn apply(command: ApplyCommand) -> Result<Exit, Error> {
    let path = command.file.clone();
    // Standard input may take long, and be interrupted.
    let reading = tokio::task::spawn_blocking(move || {
        if path.as_os_str() == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(&path) }
    });
    let read = reading.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic)));
    let text = read.map_err(|source| Error::Read { path: command.file.clone(), source })?;
    // JSON is YAML, too, but not with tabs, and not several documents one after the other.
    let is_json = text.trim_start().starts_with(['{', '[']);
    let media = if is_json { "application/json" } else { "application/yaml" };
    let in_waves = in_waves(is_json, text.as_bytes());
    let path = if command.dry_run { "/v1/apply?dryRun=true" } else { "/v1/apply" };
    let client = HubClient::new(&command.access).await?;
    let asking = client.ask_warned(Method::POST, path, Some((media, Bytes::from(text))));
    let answer = telling(&format!("applying {}", shown(&command.file)), asking).await;
    let answer = if command.dry_run { answer } else { answer.map_err(Error::of_order) };
    let (answer, warnings) = answer.map_err(|error| of_file(&command.file, error))?;
    for warning in &warnings {
        complain(&format!("warning: {warning}"));
    }
    let mut exit = Exit::Done;
    let of_dry_run = if command.dry_run { " (dry run)" } else { "" };
    let items: Vec<&Value> = answer.get("items").and_then(Value::as_array).into_iter().flatten().collect();
    if items.is_empty() {
        complain(&format!("{}: there is no document", shown(&command.file)));
        exit = Exit::Failed;
    }
    let mut results = Results::new(command.format.output);
    for (number, item) in (1..).zip(items) {
        let text = |field: &str| item.get(field).and_then(Value::as_str).unwrap_or_default();
        let parts: Vec<&str> =
            [text("kind"), text("namespace"), text("name")].into_iter().filter(|part| !part.is_empty()).collect();
        let what = if parts.is_empty() { format!("document {number}") } else { parts.join("/") };
        match item.get("problem") {
            None => {
                results.add(item.clone(), &what, &format!("{what} {}{of_dry_run}", text("result")));
                let is_changed = !command.dry_run && matches!(text("result"), "created" | "configured");
                if is_changed && in_waves.get(number - 1) == Some(&true) {
                    let name = parts.get(1..).unwrap_or_default().join("/");
                    remark(&format!("{what} goes through its clusters in waves: towline rollout status {name}"));
                }
            }
            Some(problem) => {
                exit = Exit::Failed;
                results.add_failed(item.clone(), &format!("{what}: {}", told(problem, StatusCode::OK)));
            }
        }
    }
    results.end(json!({"dryRun": command.dry_run}), &[]);
    Ok(exit)
}

/// For each document of a file, whether it has a rollout.
fn in_waves(is_json: bool, text: &[u8]) -> Vec<bool> {
    let manifests = if is_json { manifests_of_json(text) } else { manifests_of_yaml(text) };
    let has_rollout = |manifest: &Result<Manifest, _>| {
        let spec = manifest.as_ref().ok().and_then(|manifest| manifest.body.fields().get("spec"));
        spec.and_then(|spec| spec.get("rollout")).is_some_and(Value::is_object)
    };
    manifests.unwrap_or_default().iter().map(has_rollout).collect()
}

/// What is wrong with a file as a whole, with its name.
fn of_file(file: &Path, error: Error) -> Error {
    match error {
        Error::Problem { status, told } if is_of_content(status) => {
            Error::Problem { status, told: format!("{}: {told}", shown(file)) }
        }
        other => other,
    }
}

/// Whether the content of a request is why it was not done.
fn is_of_content(status: StatusCode) -> bool {
    let of_content = [
        StatusCode::BAD_REQUEST,
        StatusCode::PAYLOAD_TOO_LARGE,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        StatusCode::UNPROCESSABLE_ENTITY,
    ];
    of_content.contains(&status)
}

fn shown(file: &Path) -> String {
    if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() }
}

async fn get(command: GetCommand) -> Result<Exit, Error> {
    let GetCommand { kind, name, namespace, selector, watch, format: Format { output }, access } = command;
    let client = HubClient::new(&access).await?;
    let path = name.as_deref().map(|name| path_of(kind, namespace.as_deref(), name)).transpose()?;
    let filters = filters(namespace.as_deref(), selector.as_deref())?;
    if watch {
        let filters = path.as_deref().map_or(Ok(filters), of_one)?;
        return follow(&client, kind, &filters, output).await;
    }
    let document = if let Some(path) = &path {
        client.get(path).await?
    } else {
        let mut items = Vec::new();
        let reading = client.each(kind.plural(), &filters, u64::MAX, |item| items.push(item.clone()));
        telling(&format!("reading {}", kind.plural()), reading).await?;
        json!({"kind": "List", "items": items})
    };
    let items = match path {
        Some(_) => vec![&document],
        None => document.get("items").and_then(Value::as_array).into_iter().flatten().collect(),
    };
    if items.is_empty() && matches!(output, Output::Table | Output::Wide) {
        complain(&format!("there are no {} here", kind.plural()));
        return Ok(Exit::Done);
    }
    let names: Vec<String> = items.iter().map(|item| listing::name(kind, item)).collect();
    output.print(&document, &names, &[listing::table(kind, items, output == Output::Wide)]);
    Ok(Exit::Done)
}

/// The filters that a document alone has, by its path.
fn of_one(path: &str) -> Result<String, Error> {
    let mut parts = path.rsplit('/');
    let (name, namespace) = (parts.next().unwrap_or_default(), parts.next());
    let selector = format!("&fieldSelector={}", encode(&format!("metadata.name={name}")));
    // The path of what has no namespace has the kind in its place.
    let namespace = namespace.filter(|_| path.matches('/').count() == 4);
    Ok(filters(namespace, None)? + &selector)
}

/// Prints what is there and each change once, and continues where a watch has ended: its replica may have been restarted.
async fn follow(client: &HubClient, kind: Kind, filters: &str, output: Output) -> Result<Exit, Error> {
    let mut changes = Changes::new(kind, output);
    let mut polling = Polling::new();
    loop {
        let version = changes.version.iter().map(|version| format!("&resourceVersion={}", encode(version)));
        let path = format!("/v1/{}?watch=true{filters}{}", kind.plural(), version.collect::<String>());
        changes.begin();
        let ended = client.watch(&path, |event| changes.note(event)).await;
        if let Some(told) = changes.problem.take() {
            return Err(Error::Problem { status: StatusCode::GONE, told });
        }
        if changes.has_events {
            polling.succeeded();
        }
        match ended {
            Ok(()) if changes.has_events && changes.version.is_some() => continue,
            Ok(()) => {}
            Err(error) if error.is_outage() => polling.failed(error)?,
            Err(error) => return Err(error),
        }
        polling.pause().await;
    }
}

/// What is printed of a watch.
struct Changes {
    kind: Kind,
    output: Output,
    /// The events of what was there before, until that is complete: a watch that ends earlier begins anew, and the cells decide how
    /// wide the columns are.
    first: Option<Vec<Value>>,
    widths: Vec<usize>,
    /// From where the next watch continues; none before the first bookmark, since what was there is not in the order of versions.
    version: Option<String>,
    /// Whether anything has come of the watch.
    has_events: bool,
    /// Why the server has ended it.
    problem: Option<String>,
}

impl Changes {
    fn new(kind: Kind, output: Output) -> Self {
        let (first, widths) = (Some(Vec::new()), Vec::new());
        Self { kind, output, first, widths, version: None, has_events: false, problem: None }
    }

    fn begin(&mut self) {
        self.has_events = false;
        if let Some(first) = &mut self.first {
            first.clear();
        }
    }

    fn note(&mut self, event: &Value) {
        self.has_events = true;
        let (kind, object) = parts(event);
        if kind == "ERROR" {
            self.problem = Some(told(object, StatusCode::GONE));
            return;
        }
        let is_bookmark = kind == "BOOKMARK";
        if let Some(version) = object.get("resourceVersion").and_then(Value::as_str)
            && (is_bookmark || self.version.is_some())
        {
            self.version = Some(version.to_owned());
        }
        if is_bookmark {
            self.show_first();
            return;
        }
        match &mut self.first {
            Some(first) => first.push(event.clone()),
            None => self.show(event),
        }
    }

    fn show(&self, event: &Value) {
        let (kind, object) = parts(event);
        match self.output {
            Output::Json => say(&escaped(&event.to_string())),
            Output::Yaml => {
                say("---");
                self.output.print(event, &[], &[]);
            }
            Output::Name => say(&format!("{} {}", listing::name(self.kind, object), kind.to_lowercase())),
            Output::Table | Output::Wide => say(&padded(&self.row(event), &self.widths)),
        }
    }

    fn row(&self, event: &Value) -> Vec<String> {
        let (kind, object) = parts(event);
        let row = listing::row(self.kind, object, self.output == Output::Wide, Timestamp::now());
        [kind.to_lowercase()].into_iter().chain(row).collect()
    }

    /// Shows what there was when the watch began.
    fn show_first(&mut self) {
        let Some(events) = self.first.take() else { return };
        if matches!(self.output, Output::Table | Output::Wide) {
            let headings = listing::headings(self.kind, self.output == Output::Wide);
            let headings: Vec<String> = ["EVENT"].into_iter().chain(headings).map(str::to_owned).collect();
            let rows = events.iter().map(|event| self.row(event));
            self.widths = widths(&[headings.clone()].into_iter().chain(rows).collect::<Vec<_>>());
            // The word of later changes may be the longest.
            if let Some(first) = self.widths.first_mut() {
                *first = "modified".len().max(*first);
            }
            say(&padded(&headings, &self.widths));
        }
        for event in &events {
            self.show(event);
        }
    }
}

/// The type of an event, and its object.
fn parts(event: &Value) -> (&str, &Value) {
    const NOTHING: &Value = &Value::Null;
    (event.get("type").and_then(Value::as_str).unwrap_or_default(), event.get("object").unwrap_or(NOTHING))
}

async fn delete(command: DeleteCommand) -> Result<Exit, Error> {
    let path = path_of(command.kind, command.namespace.as_deref(), &command.name)?;
    let document = HubClient::new(&command.access).await?.order(Method::DELETE, &path, None).await?;
    let is_waiting = document.get("finalizers").and_then(Value::as_array).is_some_and(|left| !left.is_empty());
    let result = if is_waiting { "waits for its finalizers" } else { "deleted" };
    let name = format!("{}/{}", command.kind.name(), command.name);
    command.format.output.print(&document, std::slice::from_ref(&name), &[format!("{name} {result}")]);
    if let Some(name) = deletes_on_clusters(command.kind, &document) {
        remark(&format!(
            "its objects are deleted on its clusters; on all of two or more, and with a Namespace, CRD or PVC on any, that waits for: towline approve syncsets {name}"
        ));
    }
    Ok(Exit::Done)
}

/// The name by which the deletions of a syncset are approved, if it deletes what it no longer wants on clusters.
fn deletes_on_clusters(kind: Kind, document: &Value) -> Option<String> {
    let is_syncset = matches!(kind, Kind::SyncSet | Kind::SelectorSyncSet);
    let is_sync = document.pointer("/spec/resourceApplyMode").is_some_and(|mode| mode == "Sync");
    let text = |field: &str| document.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let name = text("name").filter(|_| is_syncset && is_sync)?;
    Some(text("namespace").map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_deletes_on_clusters_is_named_as_it_is_approved() {
        let syncset = serde_json::json!({"namespace": "team-a", "name": "base", "spec": {"resourceApplyMode": "Sync"}});
        assert_eq!(deletes_on_clusters(Kind::SyncSet, &syncset).as_deref(), Some("team-a/base"));
        assert_eq!(deletes_on_clusters(Kind::Secret, &syncset), None);
        let selector = serde_json::json!({"name": "fleet", "spec": {"resourceApplyMode": "Sync"}});
        assert_eq!(deletes_on_clusters(Kind::SelectorSyncSet, &selector).as_deref(), Some("fleet"));
        let upsert = serde_json::json!({"name": "fleet", "spec": {}});
        assert_eq!(deletes_on_clusters(Kind::SelectorSyncSet, &upsert), None);
    }

    #[test]
    fn a_document_is_watched_by_its_name() {
        let of_one = |path| of_one(path).ok();
        let (of_a_cluster, of_a_selector) = (of_one("/v1/clusters/foo/a.b"), of_one("/v1/selectorsyncsets/all"));
        assert_eq!(of_a_cluster.as_deref(), Some("&namespace=foo&fieldSelector=metadata%2Ename%3Da%2Eb"));
        assert_eq!(of_a_selector.as_deref(), Some("&fieldSelector=metadata%2Ename%3Dall"));
    }

    #[test]
    fn a_watch_continues_after_the_newest_version_and_not_before_its_first_bookmark() {
        let mut changes = Changes::new(Kind::Cluster, Output::Table);
        let event =
            |kind: &str, version: &str| json!({"type": kind, "object": {"name": "a", "resourceVersion": version}});
        // What ends before that begins anew, and nothing of it was shown.
        for _ in 0..2 {
            changes.begin();
            changes.note(&event("ADDED", "9"));
            assert_eq!((changes.version.clone(), changes.first.as_ref().map(Vec::len)), (None, Some(1)));
        }
        changes.note(&event("BOOKMARK", "12"));
        changes.note(&event("MODIFIED", "13"));
        assert_eq!((changes.version.as_deref(), changes.first), (Some("13"), None));
    }

    #[test]
    fn a_kind_has_several_names() {
        for text in ["clusters", "Cluster", "cluster", "CLUSTERS"] {
            assert_eq!(kind(text), Ok(Kind::Cluster));
        }
        assert!(kind("pods").is_err());
    }
}
