//! Counting requests where they arrive: in the API server's audit log.
//!
//! The log has one line per answered request, and one more for a write that begins; for a watch, written when it *begins*, so that a
//! watch counts while it lasts. Health probes and the API server's own requests are not in it.
//!
//! ```no_run
//! # async fn example(hub: integration::ControlPlane) -> Result<(), Box<dyn std::error::Error>> {
//! use integration::{Filter, users};
//!
//! let audit = hub.audit()?;
//! let before = audit.mark().await?;
//! // … what is to be measured …
//! let patches = audit.count(&Filter::since(before).user(users::TOWLINE).verb("patch").resource("databases")).await?;
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io::SeekFrom;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kube::Client;
use serde::Deserialize;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::Mutex;

use crate::{Error, eventually};

/// The policy for `--audit-policy-file`: a line for each request, with no body; for writes one more as they begin: their effect can be seen
/// before they are answered.
pub const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  users: [\"system:apiserver\"]
- level: None
  nonResourceURLs: [\"/readyz*\", \"/livez*\", \"/healthz*\"]
- level: Metadata
  verbs: [watch]
  omitStages: [RequestReceived, ResponseComplete]
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
  omitStages: [ResponseStarted]
- level: Metadata
  omitStages: [RequestReceived, ResponseStarted]
";

/// Path of the request that marks the end of what is counted. Nothing is there; the refusal is logged all the same.
const SENTINEL: &str = "/towline-audit-sentinel/";

/// The line of a request is written before its answer has ended, but by a server that may be busy.
const LONGEST_SETTLING: Duration = Duration::from_secs(30);

/// One answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Who asked, or whom they impersonated.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for paths that are no
    /// resource, the HTTP method in lower case.
    pub verb: String,
    /// The group; empty for the core group and for paths that are no resource.
    pub group: String,
    /// The resource in the plural; empty for paths that are no resource.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The object's name, or empty.
    pub name: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// Path and query.
    pub uri: String,
    /// When the server received it, by its clock: RFC 3339 with microseconds, which sort as texts.
    pub received: String,
}

/// A moment in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(usize);

#[derive(Clone, Debug)]
pub struct Filter {
    since: Mark,
    user: Option<String>,
    verb: Option<String>,
    resource: Option<String>,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    watches: bool,
}

impl Filter {
    /// All requests that were answered after the mark, but for watches.
    pub fn since(mark: Mark) -> Self {
        Self {
            since: mark,
            user: None,
            verb: None,
            resource: None,
            subresource: None,
            namespace: None,
            name: None,
            watches: false,
        }
    }

    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    /// Only with this verb. The verb `watch` includes watches.
    #[must_use]
    pub fn verb(mut self, verb: &str) -> Self {
        self.watches |= verb == "watch";
        self.verb = Some(verb.to_owned());
        self
    }

    /// Only on this resource (`databases`) and its subresources.
    #[must_use]
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// Only on this subresource (`status`); the empty one is the object itself.
    #[must_use]
    pub fn subresource(mut self, subresource: &str) -> Self {
        self.subresource = Some(subresource.to_owned());
        self
    }

    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Only on the object of this name.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Watches, too; each counts once, when it begins.
    #[must_use]
    pub fn with_watches(mut self) -> Self {
        self.watches = true;
        self
    }

    fn takes(&self, record: &Record) -> bool {
        let fits = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        (self.watches || record.verb != "watch")
            && fits(&self.user, &record.user)
            && fits(&self.verb, &record.verb)
            && fits(&self.resource, &record.resource)
            && fits(&self.subresource, &record.subresource)
            && fits(&self.namespace, &record.namespace)
            && fits(&self.name, &record.name)
    }
}

/// The audit log of one API server, over its restarts.
pub struct Audit {
    cluster: String,
    path: PathBuf,
    client: Client,
    log: Mutex<Log>,
    sentinels: AtomicU64,
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Audit")
            .field("cluster", &self.cluster)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// What has been read so far.
#[derive(Debug, Default)]
struct Log {
    offset: u64,
    /// The beginning of a line whose end is not written yet.
    rest: Vec<u8>,
    records: Vec<Record>,
    last_sentinel: u64,
    /// The ids of writes that have begun and are not answered.
    under_way: BTreeSet<String>,
}

impl Audit {
    /// The client sends the requests that mark the log.
    pub(crate) fn new(cluster: &str, path: PathBuf, client: Client) -> Self {
        Self { cluster: cluster.to_owned(), path, client, log: Mutex::default(), sentinels: AtomicU64::new(0) }
    }

    /// The present moment: behind everything that is answered by now.
    pub async fn mark(&self) -> Result<Mark, Error> {
        self.settle().await?;
        Ok(Mark(self.log.lock().await.records.len()))
    }

    /// How many requests there were. Everything that is answered by now is counted.
    pub async fn count(&self, filter: &Filter) -> Result<usize, Error> {
        Ok(self.records(filter).await?.len())
    }

    /// The requests themselves, in the order of their answers.
    pub async fn records(&self, filter: &Filter) -> Result<Vec<Record>, Error> {
        Ok(self.records_and_mark(filter).await?.0)
    }

    /// The requests themselves, and the moment up to which they are: from there on, each later one is found, and only once.
    pub async fn records_and_mark(&self, filter: &Filter) -> Result<(Vec<Record>, Mark), Error> {
        self.settle().await?;
        let log = self.log.lock().await;
        let records = log.records.iter().skip(filter.since.0).filter(|record| filter.takes(record)).cloned().collect();
        Ok((records, Mark(log.records.len())))
    }

    /// How many requests there were by user, verb and resource (`towline patch databases/status`).
    pub async fn summary(&self, filter: &Filter) -> Result<BTreeMap<String, usize>, Error> {
        let mut counts = BTreeMap::new();
        for record in self.records(filter).await? {
            let what = match (record.resource.as_str(), record.subresource.as_str()) {
                ("", _) => record.uri,
                (resource, "") => resource.to_owned(),
                (resource, subresource) => format!("{resource}/{subresource}"),
            };
            *counts.entry(format!("{} {} {what}", record.user, record.verb)).or_insert(0) += 1;
        }
        Ok(counts)
    }

    /// Waits until the log has everything that is answered by now, and every write whose effect can be seen: a request made now is in it, and
    /// the writes that began before have ended.
    async fn settle(&self) -> Result<(), Error> {
        let number = self.sentinels.fetch_add(1, Ordering::Relaxed) + 1;
        // Repeated, because after a restart of the server the first request may still go into a dead connection.
        eventually(format!("an answer from {}", self.cluster), LONGEST_SETTLING, async || {
            let request = http::Request::get(format!("{SENTINEL}{number}")).body(kube::client::Body::empty());
            let request = request.map_err(|error| error.to_string())?;
            self.client.send(request).await.map_err(|error| error.to_string())
        })
        .await?;
        self.until(format!("sentinel {number}"), |log| {
            if log.last_sentinel >= number { Ok(()) } else { Err(format!("sentinel {}", log.last_sentinel)) }
        })
        .await?;
        let begun = self.log.lock().await.under_way.clone();
        self.until("the end of writes".to_owned(), |log| {
            let open = begun.intersection(&log.under_way).count();
            if open == 0 { Ok(()) } else { Err(format!("{open} under way")) }
        })
        .await
    }

    /// Reads the log until it is as wanted.
    async fn until(&self, what: String, wanted: impl Fn(&Log) -> Result<(), String>) -> Result<(), Error> {
        eventually(format!("{what} in the audit log of {}", self.cluster), LONGEST_SETTLING, async || {
            let mut log = self.log.lock().await;
            if let Err(unreadable) = log.read(&self.path).await {
                return Ok(Err(unreadable));
            }
            wanted(&log).map(Ok)
        })
        .await?
    }

    /// The server was killed: it answers no write that it had begun, and ends no line.
    pub(crate) async fn server_was_killed(&self) -> Result<(), Error> {
        let mut log = self.log.lock().await;
        log.read(&self.path).await?;
        log.under_way.clear();
        log.rest.clear();
        Ok(())
    }
}

impl Log {
    async fn read(&mut self, path: &PathBuf) -> Result<(), Error> {
        let mut file = File::open(path).await.map_err(Error::file("open", path))?;
        file.seek(SeekFrom::Start(self.offset)).await.map_err(Error::file("read", path))?;
        // Whoever waits may stop waiting: a part that was read then is read again.
        let mut new = Vec::new();
        self.offset += file.read_to_end(&mut new).await.map_err(Error::file("read", path))? as u64;
        self.rest.append(&mut new);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let unfinished = self.rest.split_off(end + 1);
        let lines = std::mem::replace(&mut self.rest, unfinished);
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            self.take(line)?;
        }
        Ok(())
    }

    fn take(&mut self, line: &[u8]) -> Result<(), Error> {
        let line: Line = serde_json::from_slice(line).map_err(|error| Error::Unreadable {
            what: "a line of the audit log".to_owned(),
            detail: format!("{error}: {}", String::from_utf8_lossy(line)),
        })?;
        if let Some(number) = line.request_uri.strip_prefix(SENTINEL) {
            // In order but for sentinels of two tasks that overtake each other.
            self.last_sentinel = self.last_sentinel.max(number.parse().unwrap_or(0));
            return Ok(());
        }
        if line.stage == "RequestReceived" {
            self.under_way.insert(line.audit_id);
            return Ok(());
        }
        self.under_way.remove(&line.audit_id);
        let object = line.object_ref.unwrap_or_default();
        self.records.push(Record {
            user: line.impersonated_user.unwrap_or(line.user).username,
            verb: line.verb,
            group: object.api_group,
            resource: object.resource,
            subresource: object.subresource,
            namespace: object.namespace,
            name: object.name,
            status: line.response_status.map_or(0, |status| status.code),
            uri: line.request_uri,
            received: line.request_received_timestamp,
        });
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: String,
    #[serde(rename = "auditID")]
    audit_id: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: LineUser,
    impersonated_user: Option<LineUser>,
    object_ref: Option<LineObject>,
    response_status: Option<LineStatus>,
    #[serde(default)]
    request_received_timestamp: String,
}

#[derive(Deserialize)]
struct LineUser {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LineObject {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct LineStatus {
    #[serde(default)]
    code: u16,
}

#[cfg(test)]
mod tests {
    use super::{Filter, Log, Mark};

    const LINE: &str = r#"{"stage":"ResponseComplete","auditID":"a-1","requestURI":"/apis/demo.towline.dev/v1/namespaces/n/databases/d/status","verb":"patch","user":{"username":"towline"},"objectRef":{"resource":"databases","namespace":"n","name":"d","apiGroup":"demo.towline.dev","apiVersion":"v1","subresource":"status"},"responseStatus":{"code":200}}"#;

    fn log(lines: &[&str]) -> Log {
        let mut log = Log::default();
        for line in lines {
            log.take(line.as_bytes()).unwrap();
        }
        log
    }

    #[test]
    fn sentinels_are_no_requests() {
        let sentinel = r#"{"stage":"ResponseComplete","auditID":"a-2","requestURI":"/towline-audit-sentinel/7","verb":"get","user":{"username":"admin"}}"#;
        let log = log(&[LINE, sentinel]);
        assert_eq!((log.records.len(), log.last_sentinel), (1, 7));
    }

    #[test]
    fn a_write_counts_once_and_is_under_way_until_it_is_answered() {
        let begun = LINE.replace("ResponseComplete", "RequestReceived");
        let mut log = log(&[&begun]);
        assert_eq!((log.records.len(), log.under_way.len()), (0, 1));
        log.take(LINE.as_bytes()).unwrap();
        assert_eq!((log.records.len(), log.under_way.len()), (1, 0));
    }

    #[test]
    fn every_condition_of_a_filter_counts() {
        let log = log(&[LINE]);
        let record = &log.records[0];
        let all = Filter::since(Mark(0));
        assert!(all.takes(record));
        assert!(all.clone().user("towline").verb("patch").resource("databases").subresource("status").takes(record));
        for other in [
            all.clone().user("admin"),
            all.clone().verb("get"),
            all.clone().resource("secrets"),
            all.clone().subresource(""),
            all.name("e"),
        ] {
            assert!(!other.takes(record), "{other:?}");
        }
    }

    #[test]
    fn who_is_impersonated_counts_as_the_user() {
        let line = LINE.replace(r#""objectRef""#, r#""impersonatedUser":{"username":"somebody"},"objectRef""#);
        assert_eq!(log(&[&line]).records[0].user, "somebody");
    }

    #[test]
    fn a_watch_is_counted_only_where_watches_are_meant() {
        let log = log(&[&LINE.replace("patch", "watch")]);
        let record = &log.records[0];
        let all = Filter::since(Mark(0));
        assert!(!all.takes(record));
        assert!(all.clone().with_watches().takes(record));
        assert!(all.verb("watch").takes(record));
    }
}
