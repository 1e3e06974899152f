//! What one reading of an object says of its health: by its kind, or by a rule of the syncset for its kind, which is written as CEL expressions.
//!
//! Built-in kinds are assessed as kstatus (`sigs.k8s.io/cli-utils`) does, with four differences: a load balancer without an address and a Job that
//! runs are not current, and a Pod that has ended with an error, or whose init container crashes, has failed. Kinds of others are assessed by the conditions that most of them have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::text::shortened;
use crate::expression::{Expression, Facts};

/// An object whose status is empty: it may be one whose controller has not seen it, or one that never has a status.
pub(super) const NO_STATUS: &str = "NoStatus";
/// Most characters of a message.
pub(super) const LONGEST_MESSAGE: usize = 256;
/// Most characters of a condition's reason.
const LONGEST_REASON: usize = 64;
/// Most steps of the rules about one object: less than 50 ms of a processor.
const MOST_STEPS: usize = 400_000;
/// Most steps of all rules of a cluster in one reading: about a second.
const MOST_OF_ALL: usize = 8_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectStatus {
    Current,
    Progressing,
    /// It has no status at all: after a while that counts as current.
    NoStatus,
    /// It has a status that no rule understands, or could not be read.
    Unknown,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    pub status: ObjectStatus,
    /// In a word.
    pub reason: String,
    /// At most 256 characters.
    pub message: String,
}

impl Assessment {
    pub fn current() -> Self {
        Self { status: ObjectStatus::Current, reason: String::new(), message: String::new() }
    }

    pub fn of(status: ObjectStatus, reason: &str, message: &str) -> Self {
        let is_word = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.' | ':');
        let reason: String = reason.chars().filter(is_word).take(LONGEST_REASON).collect();
        Self { status, reason, message: shortened(message, LONGEST_MESSAGE) }
    }

    pub(super) fn progressing(reason: &str, message: impl AsRef<str>) -> Self {
        Self::of(ObjectStatus::Progressing, reason, message.as_ref())
    }

    pub(super) fn failed(reason: &str, message: impl AsRef<str>) -> Self {
        Self::of(ObjectStatus::Failed, reason, message.as_ref())
    }
}

/// Assesses an object by the rule for its kind, if there is one, or if its kind [`is_assessed`].
pub fn assess(group: &str, kind: &str, object: &Value, rule: Option<&Parsed>) -> Assessment {
    let is_being_deleted = object.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null());
    if is_being_deleted && !has_finished(group, kind, object) {
        return Assessment::progressing("Terminating", "the object is being deleted");
    }
    let generation = number(object, "/metadata/generation");
    if let (Some(generation), Some(observed)) = (generation, number(object, "/status/observedGeneration"))
        && observed < generation
    {
        let message = format!("its controller has seen generation {observed} of {generation}");
        return Assessment::progressing("NotObserved", message);
    }
    if let Some(rule) = rule {
        return rule.assess(object);
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
        ("policy", "PodDisruptionBudget") => Assessment::current(),
        _ => by_conditions(object, generation),
    }
}

/// Whether the objects of a kind have to be read: most built-in kinds have no status that could say anything, and Secrets are never read.
pub(super) fn is_assessed(group: &str, kind: &str) -> bool {
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

/// As the document has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub group: String,
    pub kind: String,
    /// When an object of the kind is current.
    pub current: String,
    /// When it has failed.
    pub failed: Option<String>,
}

/// A rule whose expressions were parsed, which a reading does once.
#[derive(Debug)]
pub struct Parsed {
    current: Result<Expression, String>,
    failed: Option<Result<Expression, String>>,
    /// How many objects of the cluster have a rule. Each has its share of the steps, so that none waits for others.
    objects: usize,
}

/// The rules of a syncset, by group and kind.
#[derive(Debug, Default)]
pub struct Rules(BTreeMap<(String, String), Parsed>);

impl Rules {
    /// For a reading in which so many objects of the cluster have a rule, of this syncset or another one.
    pub fn parse(rules: &[Rule], objects: usize) -> Self {
        Self(rules.iter().map(|rule| ((rule.group.clone(), rule.kind.clone()), rule.parse(objects))).collect())
    }

    pub fn of(&self, group: &str, kind: &str) -> Option<&Parsed> {
        self.0.get(&(group.to_owned(), kind.to_owned()))
    }
}

impl Rule {
    fn parse(&self, objects: usize) -> Parsed {
        let (current, failed) = (Expression::parse(&self.current), self.failed.as_deref().map(Expression::parse));
        Parsed { current, failed, objects }
    }
}

impl Parsed {
    /// No value of the object is in the message: of a custom resource it may be secret.
    pub(super) fn assess(&self, object: &Value) -> Assessment {
        let Ok(facts) = Facts::of(object) else {
            let message = "it has more than 64 KiB or a list of more than 1,000 elements, so its rule is not asked";
            return Assessment::of(ObjectStatus::Unknown, "TooLarge", message);
        };
        let expressions = [Some(&self.current), self.failed.as_ref()].into_iter().flatten().flatten();
        let (steps, share) = (
            expressions.map(|part| facts.steps(part)).sum::<usize>(),
            MOST_STEPS.min(MOST_OF_ALL / self.objects.max(1)),
        );
        if steps > share {
            let message = format!(
                "its rule may take {steps} steps, and each of the {} objects on its cluster with a rule {share}: shorten the rule, or its lists",
                self.objects
            );
            return Assessment::of(ObjectStatus::Unknown, "TooLarge", &message);
        }
        let holds = |name: &str, expression: &Result<Expression, String>| {
            let expression = expression.as_ref().map_err(Clone::clone);
            expression.and_then(|expression| facts.hold(expression)).map_err(|error| {
                Assessment::of(
                    ObjectStatus::Unknown,
                    "RuleError",
                    &format!("its rule for {name} can't be evaluated: {error}"),
                )
            })
        };
        match self.failed.as_ref().map_or(Ok(false), |failed| holds("failed", failed)) {
            Err(assessed) => return assessed,
            Ok(true) => return Assessment::of(ObjectStatus::Failed, "FailedByRule", "its rule for failed is true"),
            Ok(false) => {}
        }
        match holds("current", &self.current) {
            Err(assessed) => assessed,
            Ok(true) => Assessment::current(),
            Ok(false) => Assessment::of(ObjectStatus::Progressing, "NotCurrent", "its rule for current is not true"),
        }
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
fn by(status: ObjectStatus, condition: &Value, reason: &str) -> Assessment {
    let (of_condition, message) = (text(condition, "/reason"), text(condition, "/message"));
    let reason = if of_condition.is_empty() { reason } else { of_condition };
    let kind = text(condition, "/type");
    let told = || format!("its condition {kind} is {}", text(condition, "/status"));
    Assessment::of(status, reason, if message.is_empty() { told() } else { message.to_owned() }.as_str())
}

/// The first of these comparisons that does not hold: a count that is too low.
fn too_few(of: i64, counts: &[(&str, &str, i64)]) -> Option<Assessment> {
    let (reason, what, found) = counts.iter().find(|(_, _, found)| *found < of)?;
    Some(Assessment::progressing(reason, format!("{found} of {of} replicas are {what}")))
}

fn extra(wanted: i64, found: i64) -> Option<Assessment> {
    let message = || format!("{} replicas are to be removed", found - wanted);
    (found > wanted).then(|| Assessment::progressing("ExtraReplicas", message()))
}

fn deployment(object: &Value) -> Assessment {
    let (wanted, found) = (number(object, "/spec/replicas").unwrap_or(1), count(object, "/status/replicas"));
    let (progress, available) = (condition(object, "Progressing"), condition(object, "Available"));
    if let Some(progress) = progress.filter(|progress| text(progress, "/reason") == "ProgressDeadlineExceeded") {
        return by(ObjectStatus::Failed, progress, "ProgressDeadlineExceeded");
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
                .then(|| Assessment::progressing("NotAvailable", "its newest ReplicaSet is not available"))
        })
        .or_else(|| (!is(available, "True")).then(|| Assessment::progressing("NotAvailable", "it is not available")))
        .unwrap_or_else(Assessment::current)
}

fn stateful_set(object: &Value) -> Assessment {
    if text(object, "/spec/updateStrategy/type") == "OnDelete" {
        return Assessment::current();
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
        return too_few(of, &[("TooFewUpdated", "updated", updated)]).unwrap_or_else(Assessment::current);
    }
    if let Some(few) =
        too_few(wanted, &[("TooFewCurrent", "of its revision", count(object, "/status/currentReplicas"))])
    {
        return few;
    }
    if text(object, "/status/currentRevision") == text(object, "/status/updateRevision") {
        Assessment::current()
    } else {
        Assessment::progressing("Updating", "its pods are being updated")
    }
}

fn daemon_set(object: &Value) -> Assessment {
    if number(object, "/status/observedGeneration").is_none() {
        return Assessment::progressing("NotObserved", "its controller has not seen it");
    }
    let Some(wanted) = number(object, "/status/desiredNumberScheduled") else {
        return Assessment::progressing("NotScheduled", "on how many nodes it runs is not known");
    };
    let of = |field: &str| count(object, &format!("/status/{field}"));
    let counts = [
        ("TooFewScheduled", "scheduled", of("currentNumberScheduled")),
        ("TooFewUpdated", "updated", of("updatedNumberScheduled")),
        ("TooFewAvailable", "available", of("numberAvailable")),
        ("TooFewReady", "ready", of("numberReady")),
    ];
    too_few(wanted, &counts).unwrap_or_else(Assessment::current)
}

fn replica_set(object: &Value) -> Assessment {
    if let Some(failure) = condition(object, "ReplicaFailure").filter(|failure| is(Some(failure), "True")) {
        return by(ObjectStatus::Progressing, failure, "ReplicaFailure");
    }
    let (wanted, found) = (number(object, "/spec/replicas").unwrap_or(1), count(object, "/status/replicas"));
    let counts = [
        ("TooFewLabelled", "labelled", count(object, "/status/fullyLabeledReplicas")),
        ("TooFewAvailable", "available", count(object, "/status/availableReplicas")),
        ("TooFewReady", "ready", count(object, "/status/readyReplicas")),
    ];
    too_few(wanted, &counts).or_else(|| extra(wanted, found)).unwrap_or_else(Assessment::current)
}

fn job(object: &Value) -> Assessment {
    if let Some(failed) = condition(object, "Failed").filter(|failed| is(Some(failed), "True")) {
        return by(ObjectStatus::Failed, failed, "JobFailed");
    }
    if is(condition(object, "Complete"), "True") {
        return Assessment::current();
    }
    if object.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
        return Assessment::progressing("Suspended", "it is suspended");
    }
    let succeeded = count(object, "/status/succeeded");
    let message = format!("{} pods run, {succeeded} have succeeded", count(object, "/status/active"));
    Assessment::progressing("JobRunning", message)
}

fn pod(object: &Value) -> Assessment {
    match text(object, "/status/phase") {
        "Succeeded" => Assessment::current(),
        "Failed" => {
            let (reason, message) = (text(object, "/status/reason"), text(object, "/status/message"));
            Assessment::failed(
                if reason.is_empty() { "PodFailed" } else { reason },
                if message.is_empty() { "a container has ended with an error" } else { message },
            )
        }
        "Running" if is(condition(object, "Ready"), "True") => Assessment::current(),
        "Running" => crashing(object).unwrap_or_else(|| match condition(object, "Ready") {
            Some(ready) => by(ObjectStatus::Progressing, ready, "NotReady"),
            None => Assessment::progressing("NotReady", "it is not ready"),
        }),
        _ => match condition(object, "PodScheduled").filter(|scheduled| is(Some(scheduled), "False")) {
            Some(scheduled) if text(scheduled, "/reason") == "Unschedulable" => {
                by(ObjectStatus::Failed, scheduled, "Unschedulable")
            }
            _ => crashing(object).unwrap_or_else(|| Assessment::progressing("Pending", "it has not started")),
        },
    }
}

/// A container that crashes again and again.
fn crashing(pod: &Value) -> Option<Assessment> {
    let of = |list: &str| pod.pointer(list).and_then(Value::as_array).into_iter().flatten();
    let mut containers = of("/status/initContainerStatuses").chain(of("/status/containerStatuses"));
    let crashing = containers.find(|container| text(container, "/state/waiting/reason") == "CrashLoopBackOff")?;
    Some(Assessment::failed(
        "CrashLoopBackOff",
        format!("container {} crashes again and again", text(crashing, "/name")),
    ))
}

fn service(object: &Value) -> Assessment {
    if text(object, "/spec/type") != "LoadBalancer" {
        return Assessment::current();
    }
    let addresses = object.pointer("/status/loadBalancer/ingress").and_then(Value::as_array).into_iter().flatten();
    let mut addresses =
        addresses.filter(|address| !text(address, "/ip").is_empty() || !text(address, "/hostname").is_empty());
    if addresses.next().is_some() {
        Assessment::current()
    } else {
        Assessment::progressing("NoAddress", "its load balancer has no address")
    }
}

fn claim(object: &Value) -> Assessment {
    match text(object, "/status/phase") {
        "Bound" => Assessment::current(),
        phase => Assessment::progressing(
            "NotBound",
            format!("its phase is {}", if phase.is_empty() { "not known" } else { phase }),
        ),
    }
}

fn definition(object: &Value) -> Assessment {
    if let Some(names) = condition(object, "NamesAccepted").filter(|names| is(Some(names), "False")) {
        return by(ObjectStatus::Failed, names, "NamesNotAccepted");
    }
    match condition(object, "Established") {
        Some(established) if is(Some(established), "True") => Assessment::current(),
        Some(established) if is(Some(established), "False") && text(established, "/reason") != "Installing" => {
            by(ObjectStatus::Failed, established, "NotEstablished")
        }
        _ => Assessment::progressing("Installing", "it is not served yet"),
    }
}

/// By the conditions that controllers of many kinds set.
fn by_conditions(object: &Value, generation: Option<i64>) -> Assessment {
    let is_empty = |status: &Value| status.is_null() || status.as_object().is_some_and(serde_json::Map::is_empty);
    if object.get("status").is_none_or(is_empty) {
        return Assessment::of(ObjectStatus::NoStatus, NO_STATUS, "it has no status");
    }
    let is_true = |kind: &str| condition(object, kind).filter(|condition| is(Some(condition), "True"));
    if let Some(stalled) = is_true("Stalled") {
        return by(ObjectStatus::Failed, stalled, "Stalled");
    }
    if let Some(reconciling) = is_true("Reconciling") {
        return by(ObjectStatus::Progressing, reconciling, "Reconciling");
    }
    let Some(decides) = condition(object, "Ready").or_else(|| condition(object, "Available")) else {
        return Assessment::of(ObjectStatus::Unknown, "NoRule", "it has none of the conditions Ready and Available");
    };
    if let (Some(generation), Some(observed)) = (generation, number(decides, "/observedGeneration"))
        && observed < generation
    {
        let message = format!("its condition {} is of generation {observed} of {generation}", text(decides, "/type"));
        return Assessment::progressing("NotObserved", message);
    }
    if is(Some(decides), "True") { Assessment::current() } else { by(ObjectStatus::Progressing, decides, "NotReady") }
}
