//! Whether what was applied works: the health of the objects that a syncset with `spec.health` sends.
//!
//! Passes only apply. Health is read beside them, once a syncset has been applied: [`due`] says when, [`assess`] what one object's status means,
//! and [`Health::read`] what follows from a reading of all objects, and when the next one is due. [`Entry`] is what the `ClusterSync` says of it.
//!
//! A syncset that is current is read once more after 15 seconds, and then only after full passes. One that is not is read after 1, 2, 4 … 60 seconds, until everything is
//! current or has failed, or until `within` has passed. Failed counts only if two readings, 15 seconds apart, say so. A rollout that waits
//! for one that has settled sets when it is read next, since its own clock may have stood still.

mod assessment;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use assessment::{Assessment, ObjectStatus, Rule, Rules, assess};
use assessment::{LONGEST_MESSAGE, NO_STATUS};

use super::name::{Digest, ObjectRef};
use super::reason::Reason;
use super::retry::after;
use super::rows::ResultRow;
use crate::actor::Backoff;
use crate::config::text::shortened;

/// Between the first two readings, and the longest wait between two.
const WAITS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// After this time a second reading confirms that an object has failed, and an object without any status counts as current.
const CONFIRMED_AFTER: Duration = Duration::from_secs(15);
/// The reason of what is not current within its time.
const LATE: &str = "Late";
/// The reason of what is current as far as is known: it has no status.
const ASSUMED: &str = "Assumed";
/// Most objects that are stored of a syncset on a cluster.
const MOST_OBJECTS: usize = 100;

/// `spec.health` of a syncset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long the objects may take to become current.
    pub within: Duration,
    pub rules: Vec<Rule>,
}

impl Settings {
    /// Whether the objects of a kind have to be read: those of its own rules, and what [`assess`] knows. Secrets are never read.
    pub fn reads(&self, group: &str, kind: &str) -> bool {
        (group, kind) != ("", "Secret") && (self.rule(group, kind).is_some() || assessment::is_assessed(group, kind))
    }

    pub fn rule(&self, group: &str, kind: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| (rule.group.as_str(), rule.kind.as_str()) == (group, kind))
    }
}

/// From the best to the worst. A syncset has the worst state of its objects, and a cluster that of its syncsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HealthState {
    Current,
    Progressing,
    Unknown,
    Failed,
}

impl HealthState {
    pub const ALL: [Self; 4] = [Self::Current, Self::Progressing, Self::Unknown, Self::Failed];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Current => "Current",
            Self::Progressing => "Progressing",
            Self::Unknown => "Unknown",
            Self::Failed => "Failed",
        }
    }
}

/// What is known of the health of a syncset on a cluster, as it is stored (`towline_result.health`).
///
/// All objects were current in a reading after the present apply exactly if the row's `result` is `Success`, `inputs` are those of the row
/// (`health_inputs = inputs`), and `state` is `Current`: what was read with other inputs is never taken over. `read` is the time of
/// that reading, and a later one has a later time. `next` is null once that was confirmed by a second reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// What it had been applied with, in hexadecimal digits. Of anything else it says nothing.
    inputs: String,
    /// The UID of the cluster: of another one it says nothing.
    #[serde(default)]
    cluster: String,
    pub state: HealthState,
    /// Why it is not current, in a word.
    pub reason: String,
    pub message: String,
    /// Since when state and reason are these.
    pub since: Timestamp,
    /// When it was first read with these inputs.
    applied: Timestamp,
    /// Since when it is not current; `within` counts from here.
    began: Timestamp,
    pub read: Timestamp,
    /// Readings since it began.
    readings: u32,
    /// When it is read again; none once it has settled.
    next: Option<Timestamp>,
    /// The objects that are not current, the worst first. A reconcile reads the rest without them.
    #[serde(default)]
    pub objects: Vec<ObjectHealth>,
    /// How many more are not current.
    #[serde(default)]
    pub more: usize,
    /// UIDs of Jobs with a time to live that were seen to have finished, and how they were assessed then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    finished: Vec<(String, ObjectStatus)>,
}

/// An object that is not current.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectHealth {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    pub state: HealthState,
    pub reason: String,
    pub message: String,
    /// Since when state and reason are these.
    pub since: Timestamp,
    /// When its status first said that it has failed, if it has said so ever since.
    #[serde(default, rename = "failedSince", skip_serializing_if = "Option::is_none")]
    failed: Option<Timestamp>,
}

/// What a reading has found out about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub object: ObjectRef,
    pub assessed: Assessment,
    pub job: Option<Job>,
}

/// What matters of a Job with a time to live, by its UID: once it has finished it deletes itself, and is not created again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    Finished(String),
    /// It was sent, and is not there.
    Gone(String),
}

impl Job {
    /// Of an object that is there.
    pub fn of(group: &str, kind: &str, object: &Value) -> Option<Self> {
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str)?;
        assessment::has_finished(group, kind, object).then(|| Self::Finished(uid.to_owned()))
    }
}

/// With what and on which cluster a syncset is applied.
#[derive(Clone, Copy, Debug)]
pub struct AppliedOn<'p> {
    pub inputs: Digest,
    /// The UID of the cluster.
    pub cluster: &'p str,
}

/// When the health of a syncset that is applied with these inputs is read next. None while it is still to be applied, and once it has
/// settled: then the next full pass has it read again.
pub fn due(
    inputs: Digest,
    result: Option<&ResultRow>,
    health: Option<&Health>,
    last_full: Option<Timestamp>,
) -> Option<Timestamp> {
    result.filter(|result| is_applied(result, inputs))?;
    match health.filter(|health| health.is_of(inputs)) {
        None => Some(Timestamp::MIN),
        Some(health) => last_full.filter(|last_full| *last_full > health.read).or(health.next),
    }
}

/// Whether a syncset has been applied with these inputs.
pub fn is_applied(result: &ResultRow, inputs: Digest) -> bool {
    // What it wants is there also if something stays that it does not want.
    let is_there = result.failure.as_ref().is_none_or(|failure| failure.reason == Reason::NotDeleted);
    is_there && result.inputs == inputs
}

impl Health {
    /// Whether it was read when the syncset had been applied with these inputs.
    pub fn is_of(&self, inputs: Digest) -> bool {
        self.inputs == hex(inputs)
    }

    /// Whether its objects were not current within their time, but for those that have failed.
    fn is_late(&self) -> bool {
        self.reason == LATE || (self.next.is_none() && self.objects.iter().any(ObjectHealth::is_open))
    }

    /// Whether it was read on this cluster.
    pub fn is_on(&self, cluster: Option<&str>) -> bool {
        Some(self.cluster.as_str()) == cluster
    }

    /// What follows from a reading of all objects of a syncset.
    pub fn read(
        applied_on: AppliedOn<'_>,
        previous: Option<&Self>,
        mut readings: Vec<Reading>,
        within: Duration,
        now: Timestamp,
    ) -> Self {
        let AppliedOn { inputs, cluster } = applied_on;
        let previous = previous.filter(|previous| previous.is_on(Some(cluster)));
        // What else of the syncset has changed does not matter to a Job that is the same.
        let finished = finished_jobs(&mut readings, previous);
        let previous = previous.filter(|previous| previous.is_of(inputs));
        let applied = previous.map_or(now, |previous| previous.applied);
        let before = |object: &ObjectRef| previous?.objects.iter().find(|before| before.is(object));
        let has_no_status = |reading: &&Reading| reading.assessed.status == ObjectStatus::NoStatus;
        let assumed = readings.iter().find(has_no_status).map(|reading| {
            shortened(&format!("{} has no status, which counts as current", reading.object), LONGEST_MESSAGE)
        });
        let mut objects: Vec<ObjectHealth> = readings
            .into_iter()
            .filter_map(|reading| ObjectHealth::of(before(&reading.object), reading, applied, now))
            .collect();
        // One that may have failed comes before the others, so that it is stored until that is confirmed.
        objects.sort_by_cached_key(|object| {
            let place = [&object.group, &object.kind, &object.namespace, &object.name].map(String::clone);
            (Reverse(object.state), object.failed.is_none(), place)
        });
        let more = objects.len().saturating_sub(MOST_OBJECTS);
        // Of objects that are not stored nobody will know when they began to fail, so they are not waited for.
        let stored = || objects.iter().take(MOST_OBJECTS);
        let confirms = stored().filter_map(|object| object.confirmed_at(applied)).filter(|at| *at > now).min();
        let is_settled = stored().all(|object| object.state == HealthState::Failed);
        let worst = objects.first();
        let state = worst.map_or(HealthState::Current, |worst| worst.state);
        // Once it was settled, it has its time again; what is late stays late. The time in which nobody could read does not count.
        let unsettled = previous.filter(|previous| {
            previous.state != HealthState::Current
                && state != HealthState::Current
                && previous.objects.iter().any(ObjectHealth::is_open)
        });
        let (began, count) = unsettled.map_or((now, 0), |unsettled| {
            let unread = now.duration_since(unsettled.next.unwrap_or(now)).max(SignedDuration::ZERO);
            let began = unsettled.began.checked_add(unread).unwrap_or(Timestamp::MAX);
            (began, unsettled.readings.saturating_add(1))
        });
        let is_late = now >= after(began, within);
        let wait = WAITS.longest(count);
        let regular = (!is_settled && !is_late).then(|| after(now, wait));
        // What is current at once may only not have begun to crash.
        let again = (state == HealthState::Current).then(|| after(applied, CONFIRMED_AFTER)).filter(|at| *at > now);
        let next = regular.into_iter().chain(confirms).chain(again).min().map(|next| next.max(after(now, WAITS.first)));
        let reason = match worst {
            Some(_) if is_late && state != HealthState::Failed => LATE.to_owned(),
            Some(worst) => worst.reason.clone(),
            None if assumed.is_some() => ASSUMED.to_owned(),
            None => String::new(),
        };
        let others = objects.len().saturating_sub(1);
        let message = worst.map(|worst| worst.told(others)).or(assumed).unwrap_or_default();
        let same = previous.filter(|previous| (previous.state, &previous.reason) == (state, &reason));
        let since = same.map_or(now, |same| same.since);
        objects.truncate(MOST_OBJECTS);
        let (inputs, cluster, read, readings) = (hex(inputs), cluster.to_owned(), now, count);
        Self {
            inputs,
            cluster,
            state,
            reason,
            message,
            since,
            applied,
            began,
            read,
            readings,
            next,
            objects,
            more,
            finished,
        }
    }

    /// The same, read again after this time at the earliest.
    #[must_use]
    pub fn resting(mut self, now: Timestamp, rest: Duration) -> Self {
        self.next = self.next.map(|next| next.max(after(now, rest)));
        self
    }
}

/// The Jobs that have finished. One that had, and is gone, is as it was then.
fn finished_jobs(readings: &mut [Reading], previous: Option<&Health>) -> Vec<(String, ObjectStatus)> {
    let mut finished = Vec::new();
    for Reading { object, assessed, job } in readings {
        let uid = match job {
            Some(Job::Finished(uid)) => uid,
            Some(Job::Gone(uid)) => {
                let known = previous.and_then(|previous| previous.finished.iter().find(|(of, _)| *of == *uid));
                let Some((_, status)) = known else { continue };
                let stored = previous.and_then(|previous| previous.objects.iter().find(|stored| stored.is(object)));
                *assessed = match stored {
                    _ if *status == ObjectStatus::Current => Assessment::current(),
                    Some(stored) => Assessment::of(*status, &stored.reason, &stored.message),
                    None => Assessment::of(*status, "Finished", "it was not current when it had finished, and is gone"),
                };
                uid
            }
            None => continue,
        };
        finished.push((uid.clone(), assessed.status));
    }
    finished
}

impl ObjectHealth {
    /// None of an object that is current.
    fn of(before: Option<&Self>, reading: Reading, applied: Timestamp, now: Timestamp) -> Option<Self> {
        let Reading { object, assessed: Assessment { status, reason, message }, .. } = reading;
        let failed = (status == ObjectStatus::Failed).then(|| before.and_then(|before| before.failed).unwrap_or(now));
        let is_confirmed = failed.is_some_and(|failed| now >= after(failed, CONFIRMED_AFTER));
        let state = match status {
            ObjectStatus::Current => return None,
            ObjectStatus::NoStatus if now >= after(applied, CONFIRMED_AFTER) => return None,
            ObjectStatus::Failed if is_confirmed => HealthState::Failed,
            ObjectStatus::NoStatus | ObjectStatus::Progressing | ObjectStatus::Failed => HealthState::Progressing,
            ObjectStatus::Unknown => HealthState::Unknown,
        };
        let same = before.filter(|before| (before.state, &before.reason) == (state, &reason));
        let since = same.map_or(now, |same| same.since);
        let ObjectRef { group, kind, namespace, name } = object;
        Some(Self { group, kind, namespace, name, state, reason, message, since, failed })
    }

    fn is(&self, object: &ObjectRef) -> bool {
        self.place() == (&object.group, &object.kind, &object.namespace, &object.name)
    }

    fn place(&self) -> (&String, &String, &String, &String) {
        (&self.group, &self.kind, &self.namespace, &self.name)
    }

    /// Whether it is waited for.
    fn is_open(&self) -> bool {
        self.state != HealthState::Failed
    }

    /// From when another reading decides about it, if that is before the next regular one.
    fn confirmed_at(&self, applied: Timestamp) -> Option<Timestamp> {
        match self.failed {
            Some(failed) if self.state != HealthState::Failed => Some(after(failed, CONFIRMED_AFTER)),
            None if self.reason == NO_STATUS => Some(after(applied, CONFIRMED_AFTER)),
            _ => None,
        }
    }

    /// `Deployment default/web: 1 of 3 replicas are available; 2 more objects are not current`.
    fn told(&self, others: usize) -> String {
        let place = if self.namespace.is_empty() { String::new() } else { format!("{}/", self.namespace) };
        let more = match others {
            0 => String::new(),
            1 => "; 1 more object is not current".to_owned(),
            others => format!("; {others} more objects are not current"),
        };
        let room = LONGEST_MESSAGE.saturating_sub(more.chars().count());
        shortened(&format!("{} {place}{}: {}", self.kind, self.name, self.message), room) + &more
    }
}

/// What the `ClusterSync` says of the health of a syncset: the field `health` of its entry.
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
        None if assessment::is_built_in(group) => "what its kind's controller says",
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

fn hex(digest: Digest) -> String {
    use std::fmt::Write;
    digest.0.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
