//! What the `ClusterSync` of a cluster shows, and its write.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::first;
use super::observer::First;
use super::plan::{Read, after};
use super::worker::{ReconcileError, SOON, Worker};
use crate::documents;
use crate::documents::{Change, Document, Expected, Item, Row, Work, WorkClaim, WriteError, WriterHandle};
use crate::syncset::plan::health::Health;
use crate::syncset::plan::pass::{End, Outcome, Undeleted};
use crate::syncset::plan::rows::ClusterRow;
use crate::syncset::plan::status;
use crate::syncset::plan::status::{Conditions, Observed, Reachability, Unreachable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Written,
    /// The document was changed by somebody else meanwhile.
    Outdated,
    /// The claim has ended.
    Lost,
}

/// Writes a status under a claim.
async fn write(
    writer: &WriterHandle,
    claim: WorkClaim,
    before: &Document,
    status: Map<String, Value>,
) -> Result<Shown, WriteError> {
    let document = Document { status, ..before.clone() };
    let change = Change::put(&document.key(), Expected::Version(before.version), Row::of(&document));
    let item = Item { claim: Some(claim), ..Item::of(Uuid::new_v4(), vec![change]) };
    Ok(match writer.write(item).await? {
        documents::Outcome::Written { .. } => Shown::Written,
        documents::Outcome::Conflict { .. } => Shown::Outdated,
        // It has no quota.
        documents::Outcome::Fenced | documents::Outcome::Exceeded { .. } => Shown::Lost,
    })
}

/// Whether the cluster answers, as it was found out before. Why it does not is stored in its status alone.
fn reachability(cluster_row: Option<&ClusterRow>, status: &Map<String, Value>) -> Reachability {
    match cluster_row.and_then(|cluster_row| cluster_row.reachable) {
        None => Reachability::Unknown,
        Some(true) => Reachability::Reachable,
        Some(false) => {
            let conditions = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
            let shown = conditions
                .filter(|condition| condition["type"] == "Unreachable" && condition["status"] == "True")
                .find_map(|condition| {
                    let reason = Unreachable::of_name(condition["reason"].as_str()?)?;
                    Some(Reachability::Unreachable { reason, message: condition["message"].as_str()?.to_owned() })
                });
            shown.unwrap_or_else(|| Reachability::Unreachable {
                reason: Unreachable::ErrorConnectingToCluster,
                message: "the cluster does not answer".to_owned(),
            })
        }
    }
}

impl Worker {
    pub(super) fn reachability_before(read: &Read) -> Reachability {
        let status = read.snapshot.cluster_sync.as_ref().map(|document| document.status.clone()).unwrap_or_default();
        reachability(read.snapshot.cluster_row.as_ref(), &status)
    }

    /// Writes the `ClusterSync` if it differs: after a pass, or without one. Returns when the cluster is ready again: soon, if somebody else
    /// has changed the document.
    pub(super) async fn show(
        &self,
        work: &Work,
        read: &Read,
        (outcome, read_health, is_another): (Option<&Outcome>, &BTreeMap<Uuid, Health>, bool),
        conditions: Conditions,
        ready_at: Timestamp,
    ) -> Result<Timestamp, ReconcileError> {
        let Some(before) = &read.snapshot.cluster_sync else { return Ok(ready_at) };
        let (live, results) = (&read.live(), outcome.map_or(&read.snapshot.results, |outcome| &outcome.results));
        let ending = outcome.filter(|outcome| outcome.end == End::Finished).map(|outcome| &outcome.ending);
        let is_unreachable = matches!(conditions.reachability, Reachability::Unreachable { .. });
        let health = &read.health_entries(results, read_health, (is_unreachable, is_another));
        let observed = Observed { results, live, ending, health, conditions, controlled_by: self.holder.as_str() };
        let status = status::status(&observed, &before.status, read.now());
        if !status::differs(&status, &before.status) {
            return Ok(ready_at);
        }
        let first_success = first::of_cluster(&read.snapshot, &before.status, &status);
        match write(&self.writer, work.writing(), before, status).await? {
            Shown::Written => {
                if let Some(took) = first_success {
                    self.observer.first_success(First::Cluster, took);
                }
                Ok(ready_at)
            }
            Shown::Outdated => Ok(ready_at.min(after(read.now(), SOON))),
            Shown::Lost => Err(ReconcileError::Lost),
        }
    }

    /// What is still shown of objects that were not deleted, unless a pass has found others.
    pub(super) fn released(&self, read: &Read, outcome: Option<&Outcome>) -> Option<String> {
        if let Some(Undeleted { count, first: (object, release) }) = outcome.and_then(|outcome| outcome.left.as_ref()) {
            let (of, what) = (release.reason(), if *count == 1 { "object" } else { "objects" });
            return Some(format!(
                "{count} {what} that no syncset wants stayed on the cluster, the first is {object}: {of}"
            ));
        }
        let document = read.snapshot.cluster_sync.as_ref()?;
        status::released(&document.status, read.now(), self.shown_for())
    }

    /// How long is shown what is stored in no other place: until the next full pass after it.
    fn shown_for(&self) -> SignedDuration {
        SignedDuration::try_from(self.config.reapply_interval).unwrap_or(SignedDuration::MAX)
    }

    /// Whether it is still shown that the document leads to another cluster than before: until the next full pass after that.
    pub(super) fn has_moved(&self, read: &Read) -> bool {
        let Some(document) = &read.snapshot.cluster_sync else { return false };
        status::has_moved(&document.status, read.now(), self.shown_for())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn why_a_cluster_does_not_answer_is_read_from_its_status() {
        let status = json!({"conditions": [{"type": "Failed", "status": "False"},
            {"type": "Unreachable", "status": "True", "reason": "Unauthorized", "message": "no"}]});
        let Value::Object(status) = status else { unreachable!() };
        let of = |reachable, status| reachability(Some(&ClusterRow { reachable, ..ClusterRow::default() }), status);
        let refused = Reachability::Unreachable { reason: Unreachable::Unauthorized, message: "no".to_owned() };
        assert_eq!(of(Some(false), &status), refused);
        assert_eq!(of(Some(true), &status), Reachability::Reachable);
        assert_eq!((of(None, &status), reachability(None, &status)), (Reachability::Unknown, Reachability::Unknown));
        assert!(matches!(of(Some(false), &Map::new()), Reachability::Unreachable { .. }));
    }
}
