//! What the `ClusterSync` says of the health of a syncset.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Health, HealthState, ObjectHealth, Settings, is_applied, kinds};
use crate::syncset::plan::name::{Digest, ObjectRef};
use crate::syncset::plan::rows::ResultRow;

/// State, rule and age of an object that a syncset sends. `age` says how long ago a time was.
pub fn explained(
    object: &ObjectRef,
    settings: &Settings,
    known: Option<&Health>,
    age: impl Fn(Timestamp) -> String,
) -> String {
    let (group, kind) = (object.group.as_str(), object.kind.as_str());
    if !settings.reads(group, kind) {
        return "objects of this kind are not read".to_owned();
    }
    let rule = match settings.rule(group, kind) {
        Some(_) => "the syncset's rule for its kind",
        None if kinds::is_built_in(group) => "what its kind's controller says",
        None => "its conditions",
    };
    let Some(known) = known else { return format!("not read yet as it is wanted now; to be assessed by {rule}") };
    let read = age(known.read);
    match known.objects.iter().find(|stored| stored.is(object)) {
        Some(ObjectHealth { state, reason, message, since, .. }) => {
            let late = if known.is_late() && *state != HealthState::Failed { ", too late" } else { "" };
            format!(
                "{} for {}{late} ({reason}): {message}; read {read} ago, assessed by {rule}",
                state.as_str(),
                age(*since)
            )
        }
        None if known.more > 0 => "not known: more objects are not current than are noted".to_owned(),
        None => format!("{}, read {read} ago, assessed by {rule}", HealthState::Current.as_str()),
    }
}

/// The field `health` of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub state: HealthState,
    /// Empty if it is current, unless that is only assumed.
    pub reason: String,
    pub message: String,
    /// Since when state and reason are these; none if they do not come from a reading.
    pub since: Option<Timestamp>,
}

impl Entry {
    /// Of a syncset that is to be applied with these inputs. What does not answer is never current, and neither is what has not been applied as
    /// it is now: how that fares is not known.
    pub fn of(inputs: Digest, result: Option<&ResultRow>, health: Option<&Health>, is_unreachable: bool) -> Self {
        let health = health.filter(|health| health.is_of(inputs));
        let unread =
            |state, reason: &str, message: String| Self { state, reason: reason.to_owned(), message, since: None };
        if is_unreachable {
            let message = health.map_or_else(
                || "the cluster does not answer, and its objects have not been read yet".to_owned(),
                |health| format!("the cluster does not answer; it was {} at {:.0}", health.state.as_str(), health.read),
            );
            return unread(HealthState::Unknown, "Unreachable", message);
        }
        if !result.is_some_and(|result| is_applied(result, inputs)) {
            let message = "it has not been applied as it is now".to_owned();
            return unread(HealthState::Progressing, "NotApplied", message);
        }
        match health {
            None => unread(HealthState::Progressing, "Waiting", "its objects have not been read yet".to_owned()),
            Some(Health { state, reason, message, since, .. }) => {
                Self { state: *state, reason: reason.clone(), message: message.clone(), since: Some(*since) }
            }
        }
    }

    pub fn to_json(&self) -> Value {
        let mut entry = Map::from_iter([("state".to_owned(), json!(self.state.as_str()))]);
        for (field, text) in [("reason", &self.reason), ("message", &self.message)] {
            if !text.is_empty() {
                entry.insert(field.to_owned(), json!(text));
            }
        }
        if let Some(since) = self.since {
            entry.insert("since".to_owned(), json!(format!("{since:.0}")));
        }
        Value::Object(entry)
    }
}
