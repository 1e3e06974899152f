//! What the status of a syncset with `spec.health` has beside what is stored in it: on how many clusters its objects are in which state.
//!
//! The states are stored for each cluster and not in the document, which would be written with every one of them: they are counted with it.

use serde_json::{Map, Value};

const FIELD: &str = "health";

/// The status of `t`, a row of a syncset, with the counts of the clusters on which it was tried. A syncset that failed, or that was not read
/// since it was applied, is progressing there; where the cluster does not answer it is unknown, whatever was read before.
pub(super) fn status() -> String {
    let state = "case when p.reachable = false then 'unknown' \
         when (r.result = 'Success' or r.reason = 'NotDeleted') and r.health_inputs = r.inputs then lower(r.health_state) else 'progressing' end";
    let counts = ["current", "progressing", "unknown", "failed"]
        .map(|name| format!("'{name}', count(*) filter (where state = '{name}')"))
        .join(", ");
    format!(
        "case when {HAS_HEALTH} then coalesce(t.status, '{{}}') || (select jsonb_build_object('{FIELD}', jsonb_build_object({counts})) \
           from (select {state} as state from towline_result r \
             join clusters c on c.kind = 'clusters' and c.id = r.cluster and c.deleted_at is null \
             left join towline_cluster p on p.cluster = r.cluster where r.syncset = t.id) h) else t.status end"
    )
}

/// Whether `t` has `spec.health`.
pub const HAS_HEALTH: &str = "coalesce(jsonb_typeof(t.data #> '{spec,health}') = 'object', false)";

/// Removes them from a status that a client sends: it has read them, and they are not stored.
pub(super) fn strip(status: &mut Map<String, Value>) {
    status.remove(FIELD);
}
