//! The conditions of a cluster.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use super::shown as time;
use crate::syncset::plan::health::{Entry, HealthState};
use crate::syncset::plan::name::{SyncSetKind, SyncSetName};
use crate::syncset::plan::rows::ClusterRow;

const CONDITIONS: &str = "conditions";
const ANOTHER_CLUSTER: &str = "AnotherCluster";
const UNREACHABLE: &str = "Unreachable";
const FAILED: &str = "Failed";
/// The condition while deletions are held, and the reason of what can't be called done because of that.
pub(super) const HELD: &str = "Held";
/// A reason of the condition `Unreachable`.
pub(super) const DUPLICATE: &str = "Duplicate";

/// What conditions are made of, beside the outcomes of syncsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    pub reachability: Reachability,
    /// Why it is paused, if it is.
    pub paused: Option<String>,
    /// The syncsets whose deletions are suspended, in their order.
    pub suspended: Vec<SyncSetName>,
    /// Whether the kubeconfig leads to another cluster than before.
    pub has_moved: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reachability {
    /// It was never asked.
    #[default]
    Unknown,
    Reachable,
    /// It does not, or not as it should.
    Unreachable {
        reason: Unreachable,
        message: String,
    },
}

/// Why a cluster can't be worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// No connection, no answer, or a failure of TLS.
    ErrorConnectingToCluster,
    /// It does not accept the credentials.
    Unauthorized,
    KubeconfigInvalid,
    /// Its account may not read which cluster it is.
    Forbidden,
    /// Another document of the namespace owns it.
    Duplicate,
}

impl Reachability {
    /// Whether the cluster answers, as it was found out before. Why it does not is stored in its status alone.
    pub fn before(cluster_row: Option<&ClusterRow>, status: &Map<String, Value>) -> Self {
        match cluster_row.and_then(|cluster_row| cluster_row.reachable) {
            None => Self::Unknown,
            Some(true) => Self::Reachable,
            Some(false) => {
                let conditions = status.get(CONDITIONS).and_then(Value::as_array).into_iter().flatten();
                let shown = conditions
                    .filter(|condition| condition["type"] == UNREACHABLE && condition["status"] == "True")
                    .find_map(|condition| {
                        let reason = Unreachable::of_name(condition["reason"].as_str()?)?;
                        Some(Self::Unreachable { reason, message: condition["message"].as_str()?.to_owned() })
                    });
                shown.unwrap_or_else(|| Self::Unreachable {
                    reason: Unreachable::ErrorConnectingToCluster,
                    message: "the cluster does not answer".to_owned(),
                })
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    kind: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Unreachable {
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::ErrorConnectingToCluster, Self::Unauthorized, Self::KubeconfigInvalid, Self::Forbidden, Self::Duplicate]
            .into_iter()
            .find(|reason| reason.as_str() == name)
    }

    /// As conditions and metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ErrorConnectingToCluster => "ErrorConnectingToCluster",
            Self::Unauthorized => "Unauthorized",
            Self::KubeconfigInvalid => "KubeconfigInvalid",
            Self::Forbidden => "Forbidden",
            Self::Duplicate => DUPLICATE,
        }
    }

    pub fn next_step(self) -> &'static str {
        match self {
            Self::ErrorConnectingToCluster => "see whether its API server can be reached from here",
            Self::Unauthorized => "give its document a kubeconfig with valid credentials",
            Self::KubeconfigInvalid => "give its document a kubeconfig that is allowed, or extend `syncsets.allow`",
            Self::Forbidden => "grant the account of its kubeconfig `get` of the namespace kube-system",
            Self::Duplicate => "delete this document or the one that owns the cluster, or correct the kubeconfig",
        }
    }
}

/// What the syncsets of a cluster have come to.
pub(super) struct Outcomes<'o> {
    pub(super) failing: &'o [&'o SyncSetName],
    /// Whether each of them has an outcome.
    pub(super) is_applied: bool,
    /// Of those whose health is read.
    pub(super) health: &'o BTreeMap<SyncSetName, Entry>,
}

/// The conditions in the order of their types. One whose status is that of the previous one keeps its time.
pub(super) fn shown(
    conditions: &Conditions,
    outcomes: &Outcomes<'_>,
    previous: &Map<String, Value>,
    now: Timestamp,
) -> Value {
    let held = held(&conditions.suspended);
    let mut all = vec![failed(outcomes, held.as_deref()), unreachable(&conditions.reachability)];
    all.extend(healthy(outcomes.health));
    all.extend(conditions.paused.as_ref().map(|message| Condition::when("Paused", "Paused", message.clone())));
    all.extend(held.map(|message| Condition::when(HELD, "MassDeletion", message)));
    if conditions.has_moved {
        let message = "the kubeconfig leads to another cluster than before, since its namespace kube-system has another UID: nothing is \
             deleted there because of what was applied to the cluster before";
        all.push(Condition::when(ANOTHER_CLUSTER, "IdentityChanged", message.to_owned()));
    }
    all.sort_by_key(|condition| condition.kind);
    all.into_iter().map(|condition| condition.since(previous, now)).collect()
}

/// Why no pass can begin, and what is stored in no other place.
pub(super) fn without_passes(
    reason: &'static str,
    message: String,
    previous: &Map<String, Value>,
    now: Timestamp,
) -> Value {
    let failed = Condition { kind: FAILED, status: "True", reason, message }.since(previous, now);
    let before = previous.get(CONDITIONS).and_then(Value::as_array).into_iter().flatten();
    let kept = before.filter(|condition| condition["type"] == ANOTHER_CLUSTER || condition["type"] == UNREACHABLE);
    let mut all: Vec<Value> = kept.cloned().chain([failed]).collect();
    all.sort_by_key(|condition| condition["type"].as_str().map(str::to_owned));
    Value::Array(all)
}

/// Whether a status says that the kubeconfig leads to another cluster, as it does for so long after that was found out. It is stored
/// nowhere else.
pub fn has_moved(status: &Map<String, Value>, now: Timestamp, shown_for: SignedDuration) -> bool {
    let mut conditions = status.get(CONDITIONS).and_then(Value::as_array).into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == ANOTHER_CLUSTER && condition["status"] == "True");
    let since = found.and_then(|found| found["lastTransitionTime"].as_str()?.parse::<Timestamp>().ok());
    since.is_some_and(|since| now.duration_since(since) < shown_for)
}

fn held(suspended: &[SyncSetName]) -> Option<String> {
    let suspended: Vec<&SyncSetName> = suspended.iter().collect();
    (!suspended.is_empty())
        .then(|| format!("deletions of {} are held until they are checked and approved", listed(&suspended)))
}

impl Condition {
    /// One that exists only while it is true.
    fn when(kind: &'static str, reason: &'static str, message: String) -> Self {
        Self { kind, status: "True", reason, message }
    }

    fn since(self, previous: &Map<String, Value>, now: Timestamp) -> Value {
        let before = previous.get(CONDITIONS).and_then(Value::as_array).into_iter().flatten();
        let is_same = |before: &&Value| before["type"] == self.kind && before["status"] == self.status;
        let before = before.into_iter().find(is_same);
        let since = before.and_then(|before| before.get("lastTransitionTime")).filter(|since| since.is_string());
        json!({
            "type": self.kind, "status": self.status, "reason": self.reason, "message": self.message,
            "lastTransitionTime": since.cloned().unwrap_or_else(|| time(now)),
        })
    }
}

fn failed(outcomes: &Outcomes<'_>, held: Option<&str>) -> Condition {
    let Outcomes { failing, is_applied, .. } = *outcomes;
    if failing.is_empty() && !is_applied {
        let message = "not all SyncSets and SelectorSyncSets have been applied to the cluster yet".to_owned();
        return Condition { kind: FAILED, status: "Unknown", reason: "Pending", message };
    }
    // What has to be deleted is a part of what syncsets want.
    if let Some(held) = held.filter(|_| failing.is_empty()) {
        return Condition { kind: FAILED, status: "Unknown", reason: HELD, message: held.to_owned() };
    }
    if failing.is_empty() {
        let message = "All SyncSets and SelectorSyncSets have been applied to the cluster".to_owned();
        return Condition { kind: FAILED, status: "False", reason: "Success", message };
    }
    let verb = if failing.len() == 1 { "is" } else { "are" };
    Condition::when(FAILED, "Failure", format!("{} {verb} failing", listed(failing)))
}

/// None if no syncset has health that is read.
fn healthy(health: &BTreeMap<SyncSetName, Entry>) -> Option<Condition> {
    let worst = health.values().map(|entry| entry.state).max()?;
    let names: Vec<&SyncSetName> =
        health.iter().filter(|(_, entry)| entry.state == worst).map(|(name, _)| name).collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    let (status, message) = match worst {
        HealthState::Current => ("True", "what was applied works, as far as its health is read".to_owned()),
        HealthState::Unknown => ("Unknown", format!("{} {verb} {}", listed(&names), worst.as_str())),
        HealthState::Progressing | HealthState::Failed => {
            ("False", format!("{} {verb} {}", listed(&names), worst.as_str()))
        }
    };
    Some(Condition { kind: "Healthy", status, reason: worst.as_str(), message })
}

fn unreachable(reachability: &Reachability) -> Condition {
    let (status, reason, message) = match reachability {
        Reachability::Unknown => ("Unknown", "NotContacted", "the cluster has not been contacted yet".to_owned()),
        Reachability::Reachable => ("False", "ClusterReachable", "cluster is reachable".to_owned()),
        Reachability::Unreachable { reason, message } => ("True", reason.as_str(), message.clone()),
    };
    Condition { kind: UNREACHABLE, status, reason, message }
}

/// `SyncSets a, b and SelectorSyncSet c`. The namespace is the cluster's.
fn listed(names: &[&SyncSetName]) -> String {
    let of_kind = |kind: SyncSetKind| {
        let of_kind: Vec<&str> = names.iter().filter(|name| name.kind == kind).map(|name| name.name.as_str()).collect();
        let plural = if of_kind.len() == 1 { "" } else { "s" };
        (!of_kind.is_empty()).then(|| format!("{}{plural} {}", kind.as_str(), of_kind.join(", ")))
    };
    let parts: Vec<String> =
        [SyncSetKind::SyncSet, SyncSetKind::SelectorSyncSet].into_iter().filter_map(of_kind).collect();
    parts.join(" and ")
}
