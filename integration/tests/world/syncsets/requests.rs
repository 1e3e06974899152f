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
