//! What the `ClusterSync` of a cluster shows, and its write.

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::documents::{Change, Document, Expected, Item, Outcome, Row, WorkClaim, WriteError, WriterHandle};
use crate::syncset::plan::rows::ClusterRow;
use crate::syncset::plan::status::{Reachability, Unreachable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Written,
    /// The document was changed by somebody else meanwhile.
    Outdated,
    /// The claim has ended.
    Lost,
}

/// Writes a status under a claim.
pub(super) async fn write(
    writer: &WriterHandle,
    claim: WorkClaim,
    before: &Document,
    status: Map<String, Value>,
) -> Result<Shown, WriteError> {
    let document = Document { status, ..before.clone() };
    let change = Change::put(&document.key(), Expected::Version(before.version), Row::of(&document));
    let item = Item { claim: Some(claim), ..Item::of(Uuid::new_v4(), vec![change]) };
    Ok(match writer.write(item).await? {
        Outcome::Written { .. } => Shown::Written,
        Outcome::Conflict { .. } => Shown::Outdated,
        // It has no quota.
        Outcome::Fenced | Outcome::Exceeded { .. } => Shown::Lost,
    })
}

/// Whether the cluster answers, as it was found out before. Why it does not is stored in its status alone.
pub(super) fn reachability(cluster_row: Option<&ClusterRow>, status: &Map<String, Value>) -> Reachability {
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
