//! `towline apply`, `get` and `delete`: clients of the API.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use hyper::body::Bytes;
use secrecy::SecretString;
use serde_json::Value;

use crate::cluster::full_text;
use crate::config::names::{is_label, is_subdomain};
use crate::documents::Kind;
use crate::http::{Ask, BearerToken, Client, ClientSettings};
use crate::job::check::say;
use crate::job::command::{Exit, JobCommand, Load, Order, complain};

/// Longest wait for an answer: an apply of 1,000 documents takes some seconds.
const DEADLINE: Duration = Duration::from_mins(2);
/// A page of a list has at most 8 MiB, or one document.
const LARGEST_ANSWER: usize = 64 << 20;

/// How the hub is reached.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct Reach {
    /// The hub's API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7070")]
    hub: Uri,
    /// File with the token; not needed where the hub has no tokens
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file of certificate authorities that are trusted besides the system's
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
}

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
    reach: Reach,
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
    reach: Reach,
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
    reach: Reach,
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

/// Why a command of a client fails.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the token file {} has no token", path.display())]
    Token { path: PathBuf },
    #[error("{0}")]
    Name(String),
    #[error(transparent)]
    Http(#[from] crate::http::Error),
    #[error("the hub answered {status}, and not in JSON: is this its address?")]
    Answer { status: StatusCode, source: serde_json::Error },
    #[error("the hub's answer is too large")]
    TooLarge,
    #[error("{0}")]
    Problem(String),
}

fn task(work: impl Future<Output = Result<Exit, Error>> + Send + 'static) -> Order {
    Order::Task(
        async move {
            work.await.unwrap_or_else(|error| {
                complain(&full_text(&error));
                Exit::Failed
            })
        }
        .boxed(),
    )
}

/// A kind by its plural, its name, or that in lower case.
fn kind(text: &str) -> Result<Kind, String> {
    let lower = text.to_lowercase();
    let found = Kind::ALL.into_iter().find(|kind| kind.plural() == lower || kind.name().to_lowercase() == lower);
    found.ok_or_else(|| format!("a kind is one of {}", Kind::ALL.map(Kind::plural).join(", ")))
}

/// The path of a document.
fn path_of(kind: Kind, namespace: Option<&str>, name: &str) -> Result<String, Error> {
    let (namespace, name) = match (name.split_once('/'), namespace) {
        (Some((namespace, name)), None) => (Some(namespace), name),
        (Some(_), Some(_)) => return Err(Error::Name("the namespace is given twice".to_owned())),
        (None, namespace) => (namespace, name),
    };
    if !is_subdomain(name) || namespace.is_some_and(|namespace| !is_label(namespace)) {
        return Err(Error::Name("a name is a DNS subdomain, and a namespace a DNS label".to_owned()));
    }
    match (kind.is_namespaced(), namespace) {
        (true, Some(namespace)) => Ok(format!("/v1/{}/{namespace}/{name}", kind.plural())),
        (false, None) => Ok(format!("/v1/{}/{name}", kind.plural())),
        (true, None) => Err(Error::Name(format!("{} have a namespace: NAMESPACE/NAME or --namespace", kind.plural()))),
        (false, Some(_)) => Err(Error::Name(format!("{} have no namespace", kind.plural()))),
    }
}

async fn ask(reach: &Reach, method: Method, path: &str, body: Option<(&'static str, Bytes)>) -> Result<Value, Error> {
    let token = match &reach.token_file {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.clone(), source });
            let text = SecretString::from(text?);
            Some(BearerToken::new(&text).map_err(|_| Error::Token { path: path.clone() })?)
        }
    };
    let settings = ClientSettings {
        server: reach.hub.clone(),
        authorities: reach.certificate_authority.clone(),
        largest_answer: LARGEST_ANSWER,
    };
    let mut headers = HeaderMap::new();
    headers.extend(body.as_ref().map(|(media, _)| (CONTENT_TYPE, HeaderValue::from_static(media))));
    let body = body.map(|(_, body)| body).unwrap_or_default();
    let answer =
        Client::new(settings).await?.ask(Ask { method, path, headers, token, body, deadline: DEADLINE }).await?;
    let text = answer.body.ok_or(Error::TooLarge)?;
    read(answer.status, &text)
}

/// The document or problem of an answer.
fn read(status: StatusCode, text: &[u8]) -> Result<Value, Error> {
    let document: Value = serde_json::from_slice(text).map_err(|source| Error::Answer { status, source })?;
    if status.is_success() { Ok(document) } else { Err(Error::Problem(told(&document, status))) }
}

/// A problem in words; JSON of something else than a hub is told by its status.
fn told(problem: &Value, status: StatusCode) -> String {
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut told = text(problem, "title");
    if told.is_empty() {
        told = format!("the hub answered {status}");
    }
    for fault in problem.get("errors").and_then(Value::as_array).into_iter().flatten() {
        // Writing to a string can't fail.
        let _ = write!(told, "\n  {}: found {}", text(fault, "pointer"), text(fault, "found"));
        for (field, before, behind) in [("allowed", "; allowed: ", ""), ("suggestion", "; did you mean `", "`?")] {
            let value = text(fault, field);
            if !value.is_empty() {
                let _ = write!(told, "{before}{value}{behind}");
            }
        }
    }
    told
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
    let answer = ask(&command.reach, Method::POST, path, Some((media, Bytes::from(text)))).await?;
    let mut exit = Exit::Done;
    for (number, item) in (1..).zip(answer.get("items").and_then(Value::as_array).into_iter().flatten()) {
        let text = |field: &str| item.get(field).and_then(Value::as_str).unwrap_or_default();
        let parts: Vec<&str> =
            [text("kind"), text("namespace"), text("name")].into_iter().filter(|part| !part.is_empty()).collect();
        let what = if parts.is_empty() { format!("document {number}") } else { parts.join("/") };
        match item.get("problem") {
            None => say(&format!("{what} {}", text("result"))),
            Some(problem) => {
                exit = Exit::Failed;
                complain(&format!("{what}: {}", told(problem, StatusCode::OK)));
            }
        }
    }
    Ok(exit)
}

async fn get(command: GetCommand) -> Result<Exit, Error> {
    let GetCommand { kind, name, namespace, selector, reach } = command;
    if let Some(name) = name {
        let path = path_of(kind, namespace.as_deref(), &name)?;
        let document = ask(&reach, Method::GET, &path, None).await?;
        say(&format!("{document:#}"));
        return Ok(Exit::Done);
    }
    let encode =
        |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let mut filters = String::new();
    for (parameter, value) in [("namespace", &namespace), ("labelSelector", &selector)] {
        filters.extend(value.iter().map(|value| format!("&{parameter}={}", encode(value))));
    }
    let mut next = String::new();
    loop {
        let path = format!("/v1/{}?limit=500{filters}{next}", kind.plural());
        let page = ask(&reach, Method::GET, &path, None).await?;
        for item in page.get("items").and_then(Value::as_array).into_iter().flatten() {
            say(&item.to_string());
        }
        match page.get("continue").and_then(Value::as_str) {
            Some(token) => next = format!("&continue={}", encode(token)),
            None => return Ok(Exit::Done),
        }
    }
}

async fn delete(command: DeleteCommand) -> Result<Exit, Error> {
    let path = path_of(command.kind, command.namespace.as_deref(), &command.name)?;
    let document = ask(&command.reach, Method::DELETE, &path, None).await?;
    let is_waiting = document.get("finalizers").and_then(Value::as_array).is_some_and(|left| !left.is_empty());
    let result = if is_waiting { "waits for its finalizers" } else { "deleted" };
    say(&format!("{}/{} {result}", command.kind.name(), command.name));
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_named_with_its_namespace_in_either_way() {
        let path = |kind, namespace, name| path_of(kind, namespace, name).ok();
        let expected = Some("/v1/clusters/foo/c1".to_owned());
        assert_eq!(path(Kind::Cluster, None, "foo/c1"), expected);
        assert_eq!(path(Kind::Cluster, Some("foo"), "c1"), expected);
        assert_eq!(path(Kind::SelectorSyncSet, None, "all"), Some("/v1/selectorsyncsets/all".to_owned()));
        for (kind, namespace, name) in [
            (Kind::Cluster, None, "c1"),
            (Kind::Cluster, Some("foo"), "foo/c1"),
            (Kind::Cluster, Some("foo"), "C?"),
            (Kind::Cluster, None, "a/b/c"),
            (Kind::SelectorSyncSet, Some("foo"), "all"),
        ] {
            assert_eq!(path(kind, namespace, name), None, "{namespace:?} {name}");
        }
        for text in ["clusters", "Cluster", "cluster", "CLUSTERS"] {
            assert_eq!(kind(text), Ok(Kind::Cluster));
        }
        assert!(kind("pods").is_err());
    }

    #[test]
    fn an_answer_that_no_hub_has_given_is_told_by_its_status() {
        let told = |status, text: &[u8]| full_text(&read(status, text).expect_err("no success"));
        let page = told(StatusCode::BAD_GATEWAY, b"<html>");
        assert!(page.starts_with("the hub answered 502 Bad Gateway, and not in JSON"), "{page}");
        assert!(told(StatusCode::OK, b"<html>").starts_with("the hub answered 200 OK, and not in JSON"));
        assert_eq!(told(StatusCode::NOT_FOUND, b"{\"error\": \"no\"}"), "the hub answered 404 Not Found");
        assert_eq!(told(StatusCode::NOT_FOUND, b"{\"title\": \"there is no a/b\"}"), "there is no a/b");
        assert_eq!(read(StatusCode::OK, b"{}").ok(), Some(json!({})));
    }

    #[test]
    fn a_problem_is_told_with_each_fault() {
        let problem = json!({"title": "the document is not valid", "errors": [
            {"pointer": "/spec/mode", "found": "\"Synk\"", "allowed": "Upsert or Sync", "suggestion": "Sync"}]});
        assert_eq!(
            told(&problem, StatusCode::UNPROCESSABLE_ENTITY),
            "the document is not valid\n  /spec/mode: found \"Synk\"; allowed: Upsert or Sync; did you mean `Sync`?"
        );
    }
}
