//! What the `ClusterSync` of a cluster shows.
//!
//! ```json
//! {"conditions": [{"type": "Failed", "status": "True", "reason": "Failure", "message": "SyncSet base is failing", "lastTransitionTime": "…"}],
//!  "controlledBy": "towline-1", "firstSuccessTime": "…",
//!  "syncSets": [{"name": "base", "observedGeneration": 4, "result": "Failure", "reason": "Forbidden", "failureMessage": "…", "lastTransitionTime": "…",
//!    "health": {"state": "Progressing", "reason": "TooFewReady", "message": "Deployment shop/web: 1 of 3 replicas are ready", "since": "…"}}],
//!  "selectorSyncSets": [{"name": "monitoring", "observedGeneration": 1, "result": "Success", "lastTransitionTime": "…", "firstSuccessTime": "…"}]}
//! ```
//!
//! A syncset that was never tried has an entry if its health is read, without a result, and so has one whose deletions are held (`reason`: `Held`).

mod compare;
mod condition;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::health::Entry;
use super::name::{SyncSetKind, SyncSetName};
use super::rows::ResultRow;
pub use compare::differs;
pub use condition::{Conditions, Reachability, Unreachable, has_moved};
use condition::{HELD, Outcomes};

/// When all syncsets of a cluster had succeeded; of a syncset, when it first did.
pub const FIRST_SUCCESS: &str = "firstSuccessTime";

#[derive(Clone, Debug)]
pub struct Observed<'o> {
    /// The outcomes of the cluster's syncsets, also of those that are gone and not cleaned up yet.
    pub results: &'o [ResultRow],
    /// The syncsets that are to be applied to the cluster.
    pub live: &'o BTreeSet<Uuid>,
    /// Syncsets that are gone and whose objects are all being deleted: that is no failure. None if that was not found out to the end.
    pub ending: Option<&'o BTreeSet<Uuid>>,
    /// The health of those of the living syncsets whose health is read.
    pub health: &'o BTreeMap<SyncSetName, Entry>,
    pub conditions: Conditions,
    /// The process that worked on the cluster.
    pub controlled_by: &'o str,
}

/// The status, following the previous one.
pub fn status(observed: &Observed<'_>, previous: &Map<String, Value>, now: Timestamp) -> Map<String, Value> {
    // By name, as they are shown. Of a syncset that was created again under its name, the living one is shown.
    let ended = observed.results.iter().filter(|result| result.has_outcome());
    let (living, gone): (Vec<_>, Vec<_>) = ended.partition(|result| observed.live.contains(&result.syncset));
    let is_ending = |result: &&ResultRow| {
        let is_ending = observed.ending.is_some_and(|ending| ending.contains(&result.syncset));
        is_ending && result.failure.is_none()
    };
    let gone = gone.into_iter().filter(|result| !is_ending(result));
    let results: BTreeMap<&SyncSetName, &ResultRow> = gone.chain(living).map(|result| (&result.name, result)).collect();
    // One that was never tried has no result, and its health all the same: that its cluster does not answer, for example.
    let mut entries = BTreeMap::new();
    for (name, health) in observed.health {
        entries.insert(name, json!({"name": name.name, "health": health.to_json()}));
    }
    entries.extend(results.iter().map(|(name, result)| {
        let is_live = observed.live.contains(&result.syncset);
        let is_held = is_live && observed.conditions.suspended.contains(name);
        let health = observed.health.get(*name).filter(|_| is_live);
        (*name, entry(name, result, (is_live, is_held), health))
    }));
    let of_kind = |kind| {
        let of_kind = entries.iter().filter(|(name, _)| name.kind == kind);
        of_kind.map(|(_, entry)| entry.clone()).collect::<Vec<_>>()
    };
    let failing: Vec<&SyncSetName> = results
        .iter()
        .filter(|(_, result)| result.failure.is_some() || !observed.live.contains(&result.syncset))
        .map(|(name, _)| *name)
        .collect();
    let first = first_success(observed, previous, now);
    let has_outcome = |syncset: &Uuid| results.values().any(|result| result.syncset == *syncset);
    let is_reached = first.is_some() || !is_silent(&observed.conditions);
    let is_applied = is_reached && observed.live.iter().all(has_outcome);
    let mut status = Map::new();
    let outcomes = Outcomes { failing: &failing, is_applied, health: observed.health };
    status.insert("conditions".to_owned(), condition::shown(&observed.conditions, &outcomes, previous, now));
    status.insert("controlledBy".to_owned(), json!(observed.controlled_by));
    status.insert("syncSets".to_owned(), Value::Array(of_kind(SyncSetKind::SyncSet)));
    status.insert("selectorSyncSets".to_owned(), Value::Array(of_kind(SyncSetKind::SelectorSyncSet)));
    if let Some(first) = first {
        status.insert(FIRST_SUCCESS.to_owned(), first);
    }
    status
}

/// The status of a cluster over which no pass can begin, following the previous one: of its syncsets it says nothing, since what is stored of
/// them was not read.
pub fn without_passes(
    reason: &'static str,
    message: String,
    previous: &Map<String, Value>,
    now: Timestamp,
) -> Map<String, Value> {
    let mut status = previous.clone();
    status.insert("conditions".to_owned(), condition::without_passes(reason, message, previous, now));
    status.extend(["syncSets", "selectorSyncSets"].map(|list| (list.to_owned(), json!([]))));
    status
}

/// Whether nobody has heard of the cluster, and not because there was nothing to ask.
fn is_silent(conditions: &Conditions) -> bool {
    match conditions.reachability {
        Reachability::Unreachable { .. } => true,
        Reachability::Unknown => conditions.paused.is_some(),
        Reachability::Reachable => false,
    }
}

/// When all syncsets had succeeded for the first time. It is never reset; none before that, and none of a cluster that was never
/// reached.
fn first_success(observed: &Observed<'_>, previous: &Map<String, Value>, now: Timestamp) -> Option<Value> {
    if let Some(known) = previous.get(FIRST_SUCCESS).filter(|known| known.is_string()) {
        return Some(known.clone());
    }
    let is_known = |syncset: &Uuid| observed.results.iter().any(|result| result.syncset == *syncset);
    if !observed.live.iter().all(is_known) || (is_silent(&observed.conditions) && observed.results.is_empty()) {
        return None;
    }
    let times: Option<Vec<Timestamp>> = observed.results.iter().map(|result| result.first_success).collect();
    Some(shown(times?.into_iter().max().unwrap_or(now)))
}

/// One whose deletions are held has neither succeeded nor failed, if nothing else fails.
fn entry(name: &SyncSetName, result: &ResultRow, (is_live, is_held): (bool, bool), health: Option<&Entry>) -> Value {
    let mut entry = Map::new();
    entry.insert("name".to_owned(), json!(name.name));
    let generation = if is_live { result.generation } else { 0 };
    entry.insert("observedGeneration".to_owned(), json!(generation));
    let is_success = is_live && result.failure.is_none();
    if is_success && is_held {
        entry.insert("reason".to_owned(), json!(HELD));
    } else {
        entry.insert("result".to_owned(), json!(if is_success { "Success" } else { "Failure" }));
    }
    if let Some(failure) = &result.failure {
        entry.insert("reason".to_owned(), json!(failure.reason.as_str()));
        entry.insert("failureMessage".to_owned(), json!(failure.message));
    }
    entry.insert("lastTransitionTime".to_owned(), shown(result.since));
    if let Some(first) = result.first_success {
        entry.insert(FIRST_SUCCESS.to_owned(), shown(first));
    }
    if let Some(health) = health {
        entry.insert("health".to_owned(), health.to_json());
    }
    Value::Object(entry)
}

/// A time as statuses have it: whole seconds, as Kubernetes writes them.
fn shown(time: Timestamp) -> Value {
    json!(format!("{time:.0}"))
}

#[cfg(test)]
mod tests;
