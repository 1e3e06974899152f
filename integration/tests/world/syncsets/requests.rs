//! The requests that a test's clusters get, by the audit log of the edge.

use integration::audit::Record;
use integration::{Audit, ControlPlane, Filter, Mark};

use crate::syncsets::world::Stage;

/// The requests since a moment.
pub(crate) struct Requests {
    audit: &'static Audit,
    since: Mark,
    user: &'static str,
}

impl Requests {
    /// From now on, of this test.
    pub(crate) async fn from_now(stage: &Stage, plane: &'static ControlPlane) -> Self {
        let audit = plane.audit().unwrap();
        Self { audit, since: audit.mark().await.unwrap(), user: stage.namespace }
    }

    /// What was sent, in order, without discovery: `get configmaps/site 404`. From then on, what follows counts.
    pub(crate) async fn seen(&mut self) -> Vec<String> {
        let records = self.next().await;
        let records = records.iter().filter(|record| !record.resource.is_empty());
        let shown = records.map(|record| {
            let name = if record.name.is_empty() { String::new() } else { format!("/{}", record.name) };
            format!("{} {}{name} {}", record.verb, record.resource, record.status)
        });
        shown.collect()
    }

    /// What was written in the namespace of the test, in order, without dry runs: `patch site`.
    pub(crate) async fn written(&mut self) -> Vec<String> {
        let records = self.next().await;
        let is_write = |record: &&Record| {
            let is_read = ["get", "list", "watch"].contains(&record.verb.as_str());
            !is_read && record.namespace == self.user && !record.uri.contains("dryRun=")
        };
        records.iter().filter(is_write).map(|record| format!("{} {}", record.verb, record.name)).collect()
    }

    /// Like [`Self::seen`], without what a conflict takes: where a controller of the edge writes between our look and our patch, the patch
    /// is refused, and sent again after another look.
    pub(crate) async fn seen_without_conflicts(&mut self) -> Vec<String> {
        without_conflicts(self.seen().await)
    }

    /// All of them with discovery, as verbs and paths.
    pub(crate) async fn paths(&mut self) -> Vec<String> {
        self.next().await.iter().map(|record| format!("{} {}", record.verb, record.uri)).collect()
    }

    async fn next(&mut self) -> Vec<Record> {
        let filter = Filter::since(self.since).user(self.user);
        let (records, until) = self.audit.records_and_mark(&filter).await.unwrap();
        self.since = until;
        records
    }
}

fn without_conflicts(seen: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut seen = seen.into_iter().peekable();
    while let Some(request) = seen.next() {
        let target = request.strip_prefix("patch ").and_then(|rest| rest.strip_suffix(" 409"));
        let look = target.map(|target| format!("get {target} 200"));
        // Without the look that follows it is no conflict that was handled.
        if look.is_some_and(|look| seen.next_if_eq(&look).is_some()) {
            continue;
        }
        kept.push(request);
    }
    kept
}

#[test]
fn a_conflict_takes_a_refused_patch_and_a_look() {
    let seen = |requests: &[&str]| without_conflicts(requests.iter().map(|&request| request.to_owned()).collect());
    let resolved = [
        "create deployments/agent 201",
        "patch deployments/agent 409",
        "get deployments/agent 200",
        "patch deployments/agent 200",
    ];
    assert_eq!(seen(&resolved), ["create deployments/agent 201", "patch deployments/agent 200"]);
    let refused = ["patch deployments/agent 409", "get deployments/other 200", "get deployments/agent 200"];
    assert_eq!(seen(&refused), refused);
}
