//! What the status of one object says of its health.
//!
//! Built-in kinds are judged as kstatus (`sigs.k8s.io/cli-utils`) does, with four differences: a load balancer without an address and a Job that
//! runs are not current, and a Pod that has ended with an error, or whose init container crashes, has failed. Kinds of others are judged by the conditions that most of them have.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::LONGEST_MESSAGE;
use super::rule::Parsed;

/// An object whose status is empty: it may be one whose controller has not seen it, or one that never has a status.
pub(super) const NO_STATUS: &str = "NoStatus";
/// Most characters of a condition's reason.
const LONGEST_REASON: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Current,
    Progressing,
    /// It has no status at all: after a while that counts as current.
    NoStatus,
    /// It has a status that no rule understands, or could not be read.
    Unknown,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    pub verdict: Verdict,
    /// In a word.
    pub reason: String,
    /// At most 256 characters.
    pub message: String,
}

impl Judged {
    pub fn current() -> Self {
        Self { verdict: Verdict::Current, reason: String::new(), message: String::new() }
    }

    pub fn of(verdict: Verdict, reason: &str, message: &str) -> Self {
        let is_word = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.' | ':');
        let reason: String = reason.chars().filter(is_word).take(LONGEST_REASON).collect();
        Self { verdict, reason, message: shortened(message, LONGEST_MESSAGE) }
    }

    fn progressing(reason: &str, message: impl AsRef<str>) -> Self {
        Self::of(Verdict::Progressing, reason, message.as_ref())
    }

    fn failed(reason: &str, message: impl AsRef<str>) -> Self {
        Self::of(Verdict::Failed, reason, message.as_ref())
    }
}

/// The beginning of a text, in one line.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let line = |letter: char| if letter.is_control() { ' ' } else { letter };
    if text.chars().nth(most).is_none() {
        return text.chars().map(line).collect();
    }
    text.chars().take(most.saturating_sub(1)).map(line).chain(['…']).collect()
}

/// Whether the objects of a kind have to be read: most built-in kinds have no status that could say anything, and Secrets are never read.
pub(super) fn is_judged(group: &str, kind: &str) -> bool {
    !is_built_in(group)
        || matches!(
            (group, kind),
            ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
                | ("batch", "Job")
                | ("", "Pod" | "Service" | "PersistentVolumeClaim")
                | ("apiextensions.k8s.io", "CustomResourceDefinition")
                | ("apiregistration.k8s.io", "APIService")
                | ("policy", "PodDisruptionBudget")
        )
}

pub(super) fn is_built_in(group: &str) -> bool {
    match group {
        "" | "apps" | "batch" | "autoscaling" | "policy" => true,
        other => BUILT_IN_GROUPS.contains(&other),
    }
}

const BUILT_IN_GROUPS: [&str; 16] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// Whether an object is a Job that deletes itself once it has finished, and has. Its own conditions say that, whatever a rule says of it.
pub(super) fn has_finished(group: &str, kind: &str, object: &Value) -> bool {
    let deletes_itself = object.pointer("/spec/ttlSecondsAfterFinished").is_some_and(|seconds| !seconds.is_null());
    let is_true = |of: &str| is(condition(object, of), "True");
    (group, kind) == ("batch", "Job") && deletes_itself && (is_true("Complete") || is_true("Failed"))
}

/// Judges an object by the rule for its kind, if there is one, or if its kind [`is_judged`].
pub fn judge(group: &str, kind: &str, object: &Value, rule: Option<&Parsed>) -> Judged {
    let is_being_deleted = object.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null());
    if is_being_deleted && !has_finished(group, kind, object) {
        return Judged::progressing("Terminating", "the object is being deleted");
    }
    let generation = number(object, "/metadata/generation");
    if let (Some(generation), Some(observed)) = (generation, number(object, "/status/observedGeneration"))
        && observed < generation
    {
        let message = format!("its controller has seen generation {observed} of {generation}");
        return Judged::progressing("NotObserved", message);
    }
    if let Some(rule) = rule {
        return rule.judge(object);
    }
    match (group, kind) {
        ("apps", "Deployment") => deployment(object),
        ("apps", "StatefulSet") => stateful_set(object),
        ("apps", "DaemonSet") => daemon_set(object),
        ("apps", "ReplicaSet") => replica_set(object),
        ("batch", "Job") => job(object),
        ("", "Pod") => pod(object),
        ("", "Service") => service(object),
        ("", "PersistentVolumeClaim") => claim(object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(object),
        ("policy", "PodDisruptionBudget") => Judged::current(),
        _ => by_conditions(object, generation),
    }
}

fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer)?.as_i64()
}

fn count(object: &Value, pointer: &str) -> i64 {
    number(object, pointer).unwrap_or_default()
}

fn text<'o>(object: &'o Value, pointer: &str) -> &'o str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn condition<'o>(object: &'o Value, kind: &str) -> Option<&'o Value> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| text(condition, "/type") == kind)
}

fn is(condition: Option<&Value>, status: &str) -> bool {
    condition.is_some_and(|condition| text(condition, "/status") == status)
}

/// A condition's own words, or these.
fn by(verdict: Verdict, condition: &Value, reason: &str) -> Judged {
    let (of_condition, message) = (text(condition, "/reason"), text(condition, "/message"));
    let reason = if of_condition.is_empty() { reason } else { of_condition };
    let kind = text(condition, "/type");
    let status = || format!("its condition {kind} is {}", text(condition, "/status"));
    Judged::of(verdict, reason, if message.is_empty() { status() } else { message.to_owned() }.as_str())
}

/// The first of these comparisons that does not hold: a count that is too low.
fn too_few(of: i64, counts: &[(&str, &str, i64)]) -> Option<Judged> {
    let (reason, what, found) = counts.iter().find(|(_, _, found)| *found < of)?;
    Some(Judged::progressing(reason, format!("{found} of {of} replicas are {what}")))
}

fn extra(wanted: i64, found: i64) -> Option<Judged> {
    let message = || format!("{} replicas are to be removed", found - wanted);
    (found > wanted).then(|| Judged::progressing("ExtraReplicas", message()))
}

fn deployment(object: &Value) -> Judged {
    let (wanted, found) = (number(object, "/spec/replicas").unwrap_or(1), count(object, "/status/replicas"));
    let (progress, available) = (condition(object, "Progressing"), condition(object, "Available"));
    if let Some(progress) = progress.filter(|progress| text(progress, "/reason") == "ProgressDeadlineExceeded") {
        return by(Verdict::Failed, progress, "ProgressDeadlineExceeded");
    }
    let updated = count(object, "/status/updatedReplicas");
    let too_few_made = too_few(wanted, &[("TooFewReplicas", "there", found), ("TooFewUpdated", "updated", updated)]);
    let no_deadline = number(object, "/spec/progressDeadlineSeconds").is_none_or(|limit| limit == i64::from(i32::MAX));
    too_few_made
        .or_else(|| extra(wanted, found))
        .or_else(|| too_few(updated, &[("TooFewAvailable", "available", count(object, "/status/availableReplicas"))]))
        .or_else(|| too_few(wanted, &[("TooFewReady", "ready", count(object, "/status/readyReplicas"))]))
        .or_else(|| {
            let is_done = progress.is_some_and(|progress| {
                is(Some(progress), "True") && text(progress, "/reason") == "NewReplicaSetAvailable"
            });
            (!is_done && !no_deadline)
                .then(|| Judged::progressing("NotAvailable", "its newest ReplicaSet is not available"))
        })
        .or_else(|| (!is(available, "True")).then(|| Judged::progressing("NotAvailable", "it is not available")))
        .unwrap_or_else(Judged::current)
}

fn stateful_set(object: &Value) -> Judged {
    if text(object, "/spec/updateStrategy/type") == "OnDelete" {
        return Judged::current();
    }
    let (wanted, found) = (number(object, "/spec/replicas").unwrap_or(1), count(object, "/status/replicas"));
    let (ready, updated) = (count(object, "/status/readyReplicas"), count(object, "/status/updatedReplicas"));
    let first = too_few(wanted, &[("TooFewReplicas", "there", found), ("TooFewReady", "ready", ready)])
        .or_else(|| extra(wanted, found));
    if let Some(first) = first {
        return first;
    }
    if let Some(partition) = number(object, "/spec/updateStrategy/rollingUpdate/partition") {
        let of = (wanted - partition).max(0);
        return too_few(of, &[("TooFewUpdated", "updated", updated)]).unwrap_or_else(Judged::current);
    }
    if let Some(few) =
        too_few(wanted, &[("TooFewCurrent", "of its revision", count(object, "/status/currentReplicas"))])
    {
        return few;
    }
    if text(object, "/status/currentRevision") == text(object, "/status/updateRevision") {
        Judged::current()
    } else {
        Judged::progressing("Updating", "its pods are being updated")
    }
}

fn daemon_set(object: &Value) -> Judged {
    if number(object, "/status/observedGeneration").is_none() {
        return Judged::progressing("NotObserved", "its controller has not seen it");
    }
    let Some(wanted) = number(object, "/status/desiredNumberScheduled") else {
        return Judged::progressing("NotScheduled", "on how many nodes it runs is not known");
    };
    let of = |field: &str| count(object, &format!("/status/{field}"));
    let counts = [
        ("TooFewScheduled", "scheduled", of("currentNumberScheduled")),
        ("TooFewUpdated", "updated", of("updatedNumberScheduled")),
        ("TooFewAvailable", "available", of("numberAvailable")),
        ("TooFewReady", "ready", of("numberReady")),
    ];
    too_few(wanted, &counts).unwrap_or_else(Judged::current)
}

fn replica_set(object: &Value) -> Judged {
    if let Some(failure) = condition(object, "ReplicaFailure").filter(|failure| is(Some(failure), "True")) {
        return by(Verdict::Progressing, failure, "ReplicaFailure");
    }
    let (wanted, found) = (number(object, "/spec/replicas").unwrap_or(1), count(object, "/status/replicas"));
    let counts = [
        ("TooFewLabelled", "labelled", count(object, "/status/fullyLabeledReplicas")),
        ("TooFewAvailable", "available", count(object, "/status/availableReplicas")),
        ("TooFewReady", "ready", count(object, "/status/readyReplicas")),
    ];
    too_few(wanted, &counts).or_else(|| extra(wanted, found)).unwrap_or_else(Judged::current)
}

fn job(object: &Value) -> Judged {
    if let Some(failed) = condition(object, "Failed").filter(|failed| is(Some(failed), "True")) {
        return by(Verdict::Failed, failed, "JobFailed");
    }
    if is(condition(object, "Complete"), "True") {
        return Judged::current();
    }
    if object.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
        return Judged::progressing("Suspended", "it is suspended");
    }
    let succeeded = count(object, "/status/succeeded");
    let message = format!("{} pods run, {succeeded} have succeeded", count(object, "/status/active"));
    Judged::progressing("JobRunning", message)
}

fn pod(object: &Value) -> Judged {
    match text(object, "/status/phase") {
        "Succeeded" => Judged::current(),
        "Failed" => {
            let (reason, message) = (text(object, "/status/reason"), text(object, "/status/message"));
            Judged::failed(
                if reason.is_empty() { "PodFailed" } else { reason },
                if message.is_empty() { "a container has ended with an error" } else { message },
            )
        }
        "Running" if is(condition(object, "Ready"), "True") => Judged::current(),
        "Running" => crashing(object).unwrap_or_else(|| match condition(object, "Ready") {
            Some(ready) => by(Verdict::Progressing, ready, "NotReady"),
            None => Judged::progressing("NotReady", "it is not ready"),
        }),
        _ => match condition(object, "PodScheduled").filter(|scheduled| is(Some(scheduled), "False")) {
            Some(scheduled) if text(scheduled, "/reason") == "Unschedulable" => {
                by(Verdict::Failed, scheduled, "Unschedulable")
            }
            _ => crashing(object).unwrap_or_else(|| Judged::progressing("Pending", "it has not started")),
        },
    }
}

/// A container that crashes again and again.
fn crashing(pod: &Value) -> Option<Judged> {
    let of = |list: &str| pod.pointer(list).and_then(Value::as_array).into_iter().flatten();
    let mut containers = of("/status/initContainerStatuses").chain(of("/status/containerStatuses"));
    let crashing = containers.find(|container| text(container, "/state/waiting/reason") == "CrashLoopBackOff")?;
    Some(Judged::failed("CrashLoopBackOff", format!("container {} crashes again and again", text(crashing, "/name"))))
}

fn service(object: &Value) -> Judged {
    if text(object, "/spec/type") != "LoadBalancer" {
        return Judged::current();
    }
    let addresses = object.pointer("/status/loadBalancer/ingress").and_then(Value::as_array).into_iter().flatten();
    let mut addresses =
        addresses.filter(|address| !text(address, "/ip").is_empty() || !text(address, "/hostname").is_empty());
    if addresses.next().is_some() {
        Judged::current()
    } else {
        Judged::progressing("NoAddress", "its load balancer has no address")
    }
}

fn claim(object: &Value) -> Judged {
    match text(object, "/status/phase") {
        "Bound" => Judged::current(),
        phase => Judged::progressing(
            "NotBound",
            format!("its phase is {}", if phase.is_empty() { "not known" } else { phase }),
        ),
    }
}

fn definition(object: &Value) -> Judged {
    if let Some(names) = condition(object, "NamesAccepted").filter(|names| is(Some(names), "False")) {
        return by(Verdict::Failed, names, "NamesNotAccepted");
    }
    match condition(object, "Established") {
        Some(established) if is(Some(established), "True") => Judged::current(),
        Some(established) if is(Some(established), "False") && text(established, "/reason") != "Installing" => {
            by(Verdict::Failed, established, "NotEstablished")
        }
        _ => Judged::progressing("Installing", "it is not served yet"),
    }
}

/// By the conditions that controllers of many kinds set.
fn by_conditions(object: &Value, generation: Option<i64>) -> Judged {
    let is_empty = |status: &Value| status.is_null() || status.as_object().is_some_and(serde_json::Map::is_empty);
    if object.get("status").is_none_or(is_empty) {
        return Judged::of(Verdict::NoStatus, NO_STATUS, "it has no status");
    }
    let is_true = |kind: &str| condition(object, kind).filter(|condition| is(Some(condition), "True"));
    if let Some(stalled) = is_true("Stalled") {
        return by(Verdict::Failed, stalled, "Stalled");
    }
    if let Some(reconciling) = is_true("Reconciling") {
        return by(Verdict::Progressing, reconciling, "Reconciling");
    }
    let Some(decides) = condition(object, "Ready").or_else(|| condition(object, "Available")) else {
        return Judged::of(Verdict::Unknown, "NoRule", "it has none of the conditions Ready and Available");
    };
    if let (Some(generation), Some(observed)) = (generation, number(decides, "/observedGeneration"))
        && observed < generation
    {
        let message = format!("its condition {} is of generation {observed} of {generation}", text(decides, "/type"));
        return Judged::progressing("NotObserved", message);
    }
    if is(Some(decides), "True") { Judged::current() } else { by(Verdict::Progressing, decides, "NotReady") }
}
