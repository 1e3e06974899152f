//! `towline apply`, `get` and `delete`: clients of the API.

use std::path::{Path, PathBuf};

use http::{Method, StatusCode};
use hyper::body::Bytes;
use serde_json::Value;

use crate::documents::Kind;
use crate::job::check::say;
use crate::job::client::{Error, HubAccess, HubClient, filters, path_of, task, told};
use crate::job::command::{Exit, JobCommand, Load, complain};

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
    access: HubAccess,
}

/// The commands.
pub(super) fn commands() -> Vec<JobCommand> {
    let apply = |command: ApplyCommand, _: &Load| Ok(task(apply(command)));
    let get = |command: GetCommand, _: &Load| Ok(task(get(command)));
    let delete = |command: DeleteCommand, _: &Load| Ok(task(delete(command)));
    vec![
        JobCommand::new("apply", "Create or change documents of a hub as a file has them", apply),
        JobCommand::new("get", "Show documents of a hub as JSON", get),
        JobCommand::new("delete", "Delete a document of a hub", delete),
    ]
}

/// A kind by its plural, its name, or that in lower case.
fn kind(text: &str) -> Result<Kind, String> {
    let lower = text.to_lowercase();
    let found = Kind::ALL.into_iter().find(|kind| kind.plural() == lower || kind.name().to_lowercase() == lower);
    found.ok_or_else(|| format!("a kind is one of {}", Kind::ALL.map(Kind::plural).join(", ")))
}

async fn apply(command: ApplyCommand) -> Result<Exit, Error> {
    let read = if command.file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(&command.file)
    };
    let text = read.map_err(|source| Error::Read { path: command.file.clone(), source })?;
    // JSON is YAML, too, but not with tabs, and not several documents one after the other.
    let is_json = text.trim_start().starts_with(['{', '[']);
    let media = if is_json { "application/json" } else { "application/yaml" };
    let path = if command.dry_run { "/v1/apply?dryRun=true" } else { "/v1/apply" };
    let client = HubClient::new(&command.access).await?;
    let answer = client.ask(Method::POST, path, Some((media, Bytes::from(text)))).await;
    let answer = answer.map_err(|error| of_file(&command.file, error))?;
    let mut exit = Exit::Done;
    let of_dry_run = if command.dry_run { " (dry run)" } else { "" };
    let items: Vec<&Value> = answer.get("items").and_then(Value::as_array).into_iter().flatten().collect();
    if items.is_empty() {
        complain(&format!("{}: there is no document", shown(&command.file)));
        return Ok(Exit::Failed);
    }
    for (number, item) in (1..).zip(items) {
        let text = |field: &str| item.get(field).and_then(Value::as_str).unwrap_or_default();
        let parts: Vec<&str> =
            [text("kind"), text("namespace"), text("name")].into_iter().filter(|part| !part.is_empty()).collect();
        let what = if parts.is_empty() { format!("document {number}") } else { parts.join("/") };
        match item.get("problem") {
            None => say(&format!("{what} {}{of_dry_run}", text("result"))),
            Some(problem) => {
                exit = Exit::Failed;
                complain(&format!("{what}: {}", told(problem, StatusCode::OK)));
            }
        }
    }
    Ok(exit)
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
    let GetCommand { kind, name, namespace, selector, access } = command;
    let client = HubClient::new(&access).await?;
    if let Some(name) = name {
        let document = client.get(&path_of(kind, namespace.as_deref(), &name)?).await?;
        say(&format!("{document:#}"));
        return Ok(Exit::Done);
    }
    let filters = filters(namespace.as_deref(), selector.as_deref());
    client.each(kind, &filters, |item| say(&item.to_string())).await?;
    Ok(Exit::Done)
}

async fn delete(command: DeleteCommand) -> Result<Exit, Error> {
    let path = path_of(command.kind, command.namespace.as_deref(), &command.name)?;
    let document = HubClient::new(&command.access).await?.ask(Method::DELETE, &path, None).await?;
    let is_waiting = document.get("finalizers").and_then(Value::as_array).is_some_and(|left| !left.is_empty());
    let result = if is_waiting { "waits for its finalizers" } else { "deleted" };
    say(&format!("{}/{} {result}", command.kind.name(), command.name));
    if let Some(name) = deletes_on_clusters(command.kind, &document) {
        say(&format!(
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
    fn a_kind_has_several_names() {
        for text in ["clusters", "Cluster", "cluster", "CLUSTERS"] {
            assert_eq!(kind(text), Ok(Kind::Cluster));
        }
        assert!(kind("pods").is_err());
    }
}
