//! Commands that are clients of the hub's API: how they reach it, and how they tell what went wrong.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt;
use http::header::{CONTENT_TYPE, IF_MATCH, WARNING};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use hyper::body::Bytes;
use serde_json::Value;

use super::command::{Exit, Order, compare_releases, complain};
use crate::cluster::full_text;
use crate::config::names::{is_label, is_subdomain};
use crate::documents::{Kind, PROBLEM_TYPES};
use crate::http::{Answer, Ask, BearerToken, Client, ClientSettings};
use crate::status::{ReadToken, read_token};

/// Longest wait for an answer: an apply of 1,000 documents takes some seconds.
const DEADLINE: Duration = Duration::from_mins(2);
/// A page of a list has at most 8 MiB, or one document.
const LARGEST_ANSWER: usize = 64 << 20;
/// Items of a page that is asked for.
const PAGE: u64 = 500;

/// How the hub is reached.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct HubAccess {
    /// The hub's API
    #[arg(long, value_name = "URL", env = "TOWLINE_HUB", default_value = "http://127.0.0.1:7070")]
    hub: Uri,
    /// File with the token; not needed where the hub has no tokens
    #[arg(long, value_name = "FILE", env = "TOWLINE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// PEM file of certificate authorities that are trusted besides the system's
    #[arg(long, value_name = "FILE", env = "TOWLINE_CERTIFICATE_AUTHORITY")]
    certificate_authority: Option<PathBuf>,
}

tokio::task_local! {
    static FORWARDED: SocketAddr;
}

/// Does the work of a command whose connections to the hub go to this address instead, from where they are forwarded.
pub async fn forwarded<T>(address: SocketAddr, work: impl Future<Output = T>) -> T {
    FORWARDED.scope(address, work).await
}

/// Why a command of a client fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Token(#[from] ReadToken),
    /// A document is named as none can be.
    #[error("{0}")]
    Name(String),
    /// A file does not have what it should.
    #[error("{0}")]
    Content(String),
    #[error(transparent)]
    Http(#[from] crate::http::Error),
    /// An answer that a hub would not give: something before it has answered.
    #[error("{status} was answered, and not by a hub: is this its address?")]
    NotHub {
        status: StatusCode,
        /// Why the body is not JSON, if it is not.
        source: Option<serde_json::Error>,
    },
    #[error("the hub's answer is too large")]
    TooLarge,
    /// The caller decides whether to send it again.
    #[error("whether the order was carried out is not known")]
    Unanswered(#[source] Box<Error>),
    /// The hub did not do it.
    #[error("{told}")]
    Problem { status: StatusCode, told: String },
}

/// A client of a hub's API.
pub struct HubClient {
    client: Client,
    token: Option<BearerToken>,
}

/// A task that says why it failed.
pub fn task(work: impl Future<Output = Result<Exit, Error>> + Send + 'static) -> Order {
    let work = async move {
        work.await.unwrap_or_else(|error| {
            complain_of(&error);
            error.exit()
        })
    };
    Order::Task(work.boxed())
}

impl Error {
    /// What was typed, and files that were named, are wrong before anything is asked.
    fn exit(&self) -> Exit {
        use crate::http::Error as Http;
        match self {
            Self::Read { .. }
            | Self::Token(_)
            | Self::Name(_)
            | Self::Http(Http::Address | Http::Proxy | Http::Trust(_)) => Exit::Usage,
            Self::Content(_)
            | Self::Http(_)
            | Self::NotHub { .. }
            | Self::TooLarge
            | Self::Unanswered(_)
            | Self::Problem { .. } => Exit::Failed,
        }
    }

    /// The error of an order: its answer may be what was lost.
    pub fn of_order(self) -> Self {
        use crate::http::Error as Http;
        let is_lost = match &self {
            Self::Http(Http::Exchange { .. } | Http::NoAnswer { .. }) => true,
            // A proxy says so of a hub that has ended meanwhile.
            Self::NotHub { status, .. } => status.is_server_error(),
            _ => false,
        };
        if is_lost { Self::Unanswered(self.into()) } else { self }
    }

    /// Whether the hub, or what is before it, may answer again soon.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Http(error) => error.is_outage(),
            Self::Unanswered(error) => error.is_outage(),
            // A proxy answers so while no replica of the hub runs.
            Self::NotHub { status: StatusCode::NOT_FOUND, .. } => true,
            Self::NotHub { status, .. } | Self::Problem { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Read { .. } | Self::Token(_) | Self::Name(_) | Self::Content(_) | Self::TooLarge => false,
        }
    }
}

pub fn complain_of(error: &Error) {
    let is_found = FORWARDED.try_with(|_| ()).is_ok();
    complain(&match error {
        // Its source says the same in the words of a library.
        Error::Http(crate::http::Error::UnknownAuthority { .. }) => {
            format!("{error}; --certificate-authority FILE adds one")
        }
        Error::Http(crate::http::Error::Connect { .. }) if !is_found => {
            format!("{}; --hub URL names another hub", full_text(error))
        }
        _ => full_text(error),
    });
}

pub fn path_of(kind: Kind, namespace: Option<&str>, name: &str) -> Result<String, Error> {
    let (namespace, name) = match (name.split_once('/'), namespace) {
        (Some((namespace, name)), None) => (Some(namespace), name),
        (Some(_), Some(_)) => return Err(Error::Name("the namespace is given twice".to_owned())),
        (None, namespace) => (namespace, name),
    };
    if !is_subdomain(name) {
        return Err(Error::Name(format!("{name:?} is no name: a name is a DNS subdomain, such as west-1")));
    }
    namespace.map(check_namespace).transpose()?;
    match (kind.is_namespaced(), namespace) {
        (true, Some(namespace)) => Ok(format!("/v1/{}/{namespace}/{name}", kind.plural())),
        (false, None) => Ok(format!("/v1/{}/{name}", kind.plural())),
        (true, None) => Err(Error::Name(format!("{} have a namespace: NAMESPACE/NAME", kind.plural()))),
        (false, Some(_)) => Err(Error::Name(format!("{} have no namespace", kind.plural()))),
    }
}

fn check_namespace(namespace: &str) -> Result<(), Error> {
    if is_label(namespace) {
        return Ok(());
    }
    Err(Error::Name(format!("{namespace:?} is no namespace: a namespace is a DNS label, such as team-a")))
}

/// A text as part of a query.
pub fn encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

impl HubClient {
    /// A client, which connects with its first request.
    pub async fn new(access: &HubAccess) -> Result<Self, Error> {
        let token = match &access.token_file {
            None => None,
            Some(path) => {
                let token = read_token(path).await?;
                Some(BearerToken::new(&token).map_err(|_| ReadToken::NoToken { path: path.clone() })?)
            }
        };
        let settings = ClientSettings {
            server: access.hub.clone(),
            authorities: access.certificate_authority.clone(),
            largest_answer: LARGEST_ANSWER,
            forwarded: FORWARDED.try_with(|address| *address).ok(),
        };
        Ok(Self { client: Client::new(settings).await?, token })
    }

    /// Reads what is at a path.
    pub async fn get(&self, path: &str) -> Result<Value, Error> {
        self.ask(Method::GET, path, None).await
    }

    /// Sends what changes something.
    pub async fn order(&self, method: Method, path: &str, body: Option<(&'static str, Bytes)>) -> Result<Value, Error> {
        self.ask(method, path, body).await.map_err(Error::of_order)
    }

    /// Sends a request that changes nothing, with a body of a media type, or without one.
    pub async fn ask(&self, method: Method, path: &str, body: Option<(&'static str, Bytes)>) -> Result<Value, Error> {
        Ok(self.ask_warned(method, path, body).await?.0)
    }

    /// Does the same, and returns what is at the head of the answer as warnings, as well.
    pub async fn ask_warned(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
    ) -> Result<(Value, Vec<String>), Error> {
        let media = body.as_ref().map(|(media, _)| (CONTENT_TYPE, HeaderValue::from_static(media)));
        let body = body.map(|(_, body)| body).unwrap_or_default();
        let (document, headers) = self.send(method, path, media.into_iter().collect(), body).await?;
        Ok((document, headers.get_all(WARNING).into_iter().filter_map(warning).collect()))
    }

    /// Changes fields of a document, if it still has this version.
    pub async fn merge(&self, path: &str, version: &str, changes: &Value) -> Result<Value, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/merge-patch+json"));
        // What a hub calls a version is digits.
        headers.extend(HeaderValue::try_from(format!("\"{version}\"")).ok().map(|version| (IF_MATCH, version)));
        let sent = self.send(Method::PATCH, path, headers, Bytes::from(changes.to_string())).await;
        Ok(sent.map_err(Error::of_order)?.0)
    }

    /// Reads a list of that name page by page, and calls `each` with every item, up to so many. The filters are a query, and begin with `&`.
    pub async fn each(
        &self,
        list: &str,
        filters: &str,
        most: u64,
        mut each: impl FnMut(&Value) + Send,
    ) -> Result<(), Error> {
        let (mut left, mut next) = (most, String::new());
        while left > 0 {
            let page = self.get(&format!("/v1/{list}?limit={}{filters}{next}", left.min(PAGE))).await?;
            for item in page.get("items").and_then(Value::as_array).into_iter().flatten() {
                left = left.saturating_sub(1);
                each(item);
            }
            match page.get("continue").and_then(Value::as_str) {
                Some(token) => next = format!("&continue={}", encode(token)),
                None => break,
            }
        }
        Ok(())
    }

    /// Watches: calls `each` with every event until the server ends the watch.
    pub async fn watch(&self, path: &str, mut each: impl FnMut(&Value) + Send) -> Result<(), Error> {
        let (method, headers, token, body) = (Method::GET, HeaderMap::new(), self.token.clone(), Bytes::new());
        let answer = self.client.open(Ask { method, path, headers, token, body, deadline: DEADLINE }).await?;
        compare_releases(answer.headers());
        let status = answer.status();
        let mut body = answer.into_body();
        let mut text = Vec::new();
        while let Some(piece) = self.client.next(&mut body).await? {
            text.extend_from_slice(&piece);
            if text.len() > LARGEST_ANSWER {
                return Err(Error::TooLarge);
            }
            // What is no event is one problem, which is read as a whole.
            while let Some(end) = text.iter().position(|byte| *byte == b'\n').filter(|_| status.is_success()) {
                let line: Vec<u8> = text.drain(..=end).collect();
                each(&serde_json::from_slice(&line).map_err(|fault| Error::NotHub { status, source: Some(fault) })?);
            }
        }
        if status.is_success() { Ok(()) } else { read(status, &text).map(drop) }
    }

    /// Returns what is answered, and the headers of the answer.
    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(Value, HeaderMap), Error> {
        let token = self.token.clone();
        let ask = Ask { method, path, headers, token, body, deadline: DEADLINE };
        let Answer { status, headers, body } = self.client.ask(ask).await?;
        compare_releases(&headers);
        Ok((read(status, &body.ok_or(Error::TooLarge)?)?, headers))
    }
}

/// The text of `299 - "text"`.
fn warning(value: &HeaderValue) -> Option<String> {
    let quoted = value.to_str().ok()?.strip_prefix("299 - \"")?.strip_suffix('"')?;
    Some(quoted.replace("\\\"", "\"").replace("\\\\", "\\"))
}

/// The filters of a list as a query that begins with `&`, or is empty.
pub fn filters(namespace: Option<&str>, selector: Option<&str>) -> Result<String, Error> {
    namespace.map(check_namespace).transpose()?;
    let given = [("namespace", namespace), ("labelSelector", selector)];
    let given = given.into_iter().filter_map(|(parameter, value)| Some((parameter, value?)));
    Ok(given.fold(String::new(), |query, (parameter, value)| query + "&" + parameter + "=" + &encode(value)))
}

/// The document or problem of an answer.
fn read(status: StatusCode, text: &[u8]) -> Result<Value, Error> {
    let not_hub = |source| Error::NotHub { status, source };
    let document: Value = serde_json::from_slice(text).map_err(|fault| not_hub(Some(fault)))?;
    if status.is_success() {
        return Ok(document);
    }
    if !document.get("type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with(PROBLEM_TYPES)) {
        return Err(not_hub(None));
    }
    Err(Error::Problem { status, told: told(&document, status) })
}

/// A problem in words. JSON that is no problem of a hub is described by its status.
pub fn told(problem: &Value, status: StatusCode) -> String {
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
        assert_eq!(filters(Some("foo"), Some("a=b")).ok(), Some("&namespace=foo&labelSelector=a%3Db".to_owned()));
        assert!(filters(Some("Foo"), None).is_err());
    }

    #[test]
    fn an_answer_that_no_hub_has_given_is_told_by_its_status() {
        let told = |status, text: &[u8]| full_text(&read(status, text).expect_err("no success"));
        let page = told(StatusCode::OK, b"<html>");
        assert!(page.starts_with("200 OK was answered, and not by a hub: is this its address?: expected"), "{page}");
        let others = "404 Not Found was answered, and not by a hub: is this its address?";
        for other in [&b"{\"error\": \"no\"}"[..], b"{\"title\": \"there is no a/b\"}", b"[]"] {
            assert_eq!(told(StatusCode::NOT_FOUND, other), others);
        }
        let problem = b"{\"type\": \"urn:towline:problem:not-found\", \"title\": \"there is no a/b\"}";
        assert_eq!(told(StatusCode::NOT_FOUND, problem), "there is no a/b");
        assert_eq!(read(StatusCode::OK, b"{}").ok(), Some(json!({})));
    }

    #[test]
    fn an_order_whose_answer_is_a_server_error_of_something_else_may_have_been_carried_out() {
        let hubs = &b"{\"type\": \"urn:towline:problem:unavailable\", \"title\": \"the database is away\"}"[..];
        let (page, json) = (&b"<html>"[..], &b"{\"message\": \"no\"}"[..]);
        for (status, text, is_lost, is_outage) in [
            (StatusCode::BAD_GATEWAY, page, true, true),
            (StatusCode::GATEWAY_TIMEOUT, json, true, true),
            (StatusCode::SERVICE_UNAVAILABLE, hubs, false, true),
            (StatusCode::NOT_FOUND, page, false, true),
            (StatusCode::NOT_FOUND, json, false, true),
            (StatusCode::NOT_FOUND, hubs, false, false),
            (StatusCode::UNAUTHORIZED, page, false, false),
            (StatusCode::OK, page, false, false),
        ] {
            let error = read(status, text).expect_err("no answer of a hub").of_order();
            assert_eq!(matches!(error, Error::Unanswered(_)), is_lost, "{error}");
            assert_eq!(error.is_outage(), is_outage, "{error}");
        }
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
