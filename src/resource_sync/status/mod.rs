//! The report of a section, and the orders that operators can give it.

pub mod queue_metrics;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::actor::{Dispatcher, Snapshot};
use crate::cluster::{Identification, ObjectKey};
use crate::config::{ClusterName, SectionName};
use crate::guard::{self, GuardedChange};
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::elsewhere::Elsewhere;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::waits::Waits;
use crate::resource_sync::run::index::table::{Failure, Lags, Pair};
use crate::resource_sync::run::index::unkept::UnkeptFields;
use crate::resource_sync::run::section::Mode;
use crate::resource_sync::run::section::Section;
use crate::resource_sync::run::section::protection::NAMED;
use crate::state::StateReport;
use crate::telemetry::{
    self, ClusterStatus, Condition, Facts, Held, HeldObject, ObjectState, Overview, Purpose, Readiness, Refused,
};
use queue_metrics::QueueMetrics;

/// How many objects are listed by name.
const MOST_LISTED: usize = 50;

pub type SyncDispatcher = Dispatcher<Section, QueueMetrics>;

/// A section as the admin server sees it.
pub struct SyncReport {
    section: Arc<Section>,
    dispatcher: SyncDispatcher,
    queue: Arc<QueueMetrics>,
}

/// The section's part of `/status`.
#[derive(Debug, Serialize)]
struct Report {
    mode: &'static str,
    remote: ClusterName,
    local: ClusterName,
    resource: String,
    /// Pairs by state.
    objects: BTreeMap<&'static str, usize>,
    queue: Snapshot,
    /// Age in seconds of the oldest change that is not written to the other side.
    oldest_unsynced_seconds: Oldest,
    /// Deletions that the guard holds until `towline approve`.
    #[serde(skip_serializing_if = "Option::is_none")]
    mass_delete_held: Option<usize>,
    /// The number of objects that the guard holds, by kind of change.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    held: BTreeMap<&'static str, usize>,
    /// The first objects that the guard holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held_first: Vec<ObjectKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    /// The stored state, and where it is.
    stored_state: StateReport,
    /// Settings that have changed since the last run, so that objects may have marks that no section owns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changed_settings: Vec<String>,
    /// How many steps a dry run would have carried out, by step.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    planned: BTreeMap<&'static str, u64>,
    /// For how long it has been unknown whether objects are in step, because a cluster does not answer or a watch is broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    objects_unknown_for_seconds: Option<u64>,
    /// The objects that fail or have waited for too long, the most urgent and oldest first.
    not_in_step: Vec<NotInStep>,
    /// How many more there are.
    #[serde(skip_serializing_if = "is_zero")]
    not_in_step_more: usize,
    /// Fields that an API server does not keep as they were written.
    #[serde(skip_serializing_if = "Option::is_none")]
    unkept: Option<UnkeptReport>,
    /// Names that were removed from `secret_names` since the last run. No section owns their copies on the remote any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_secrets: Vec<String>,
    /// Objects that are never synced, whatever the configuration says.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOutReport>,
    /// The last failures that persist, newest first.
    failures: Vec<AgedFailure>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[derive(Debug, Serialize)]
struct LeftOutReport {
    objects: usize,
    /// The first objects, by key.
    first: Vec<LeftOutObject>,
}

#[derive(Debug, Serialize)]
struct LeftOutObject {
    key: ObjectKey,
    reason: &'static str,
}

/// An object that fails or waits.
#[derive(Debug, Default, Serialize)]
struct NotInStep {
    key: String,
    state: &'static str,
    for_seconds: u64,
    cause: String,
    next_step: String,
    /// What triggers the next attempt, where that is not a delay.
    #[serde(skip_serializing_if = "str::is_empty")]
    retry: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_in_seconds: Option<u64>,
}

#[derive(Debug, Serialize)]
struct UnkeptReport {
    objects: usize,
    fields: usize,
    /// The first objects, by key.
    first: Vec<UnkeptObject>,
}

#[derive(Debug, Serialize)]
struct UnkeptObject {
    key: ObjectKey,
    /// The cluster whose API server does not keep them.
    cluster: ClusterName,
    /// The first of them.
    fields: Vec<String>,
    /// How many more there are.
    more: usize,
}

#[derive(Debug, Serialize)]
struct Oldest {
    spec: Option<f64>,
    status: Option<f64>,
}

#[derive(Debug, Serialize)]
struct AgedFailure {
    seconds_ago: u64,
    #[serde(flatten)]
    failure: Failure,
}

impl SyncReport {
    pub fn new(section: Arc<Section>, dispatcher: SyncDispatcher, queue: Arc<QueueMetrics>) -> Self {
        Self { section, dispatcher, queue }
    }

    /// The clusters that the section needs now.
    fn clusters(&self) -> Vec<ClusterStatus> {
        let section = &self.section;
        let mut clusters = vec![section.remote_cluster().status()];
        if section.mode() != Mode::DetachingLocalGone {
            clusters.push(section.local_cluster().status());
        }
        clusters
    }

    /// The facts that decide the section's condition.
    fn facts(&self) -> Facts {
        let now = Instant::now();
        let section = &self.section;
        let clusters = self.clusters();
        let not_ready = section.not_ready_because();
        let broken = section.broken_watch();
        let unanswered = clusters.iter().filter(|cluster| !cluster.state.is_fine()).map(|cluster| cluster.since);
        let unknown_for = unanswered.chain(broken.as_ref().map(|(since, _)| *since)).max();
        let (refused, held) = match section.identification() {
            Identification::Refused(objection) => (Some(objection.to_string()), None),
            Identification::Held(objection) => {
                (None, Some(format!("{objection}; waits for `towline approve {}`", section.name())))
            }
            Identification::Clear | Identification::Unread | Identification::Undecided => {
                (None, section.what_is_held())
            }
        };
        let (objects, failing, waiting) = section.index(|index| {
            let table = &index.table;
            let listed = table.not_in_step(now, MOST_LISTED);
            let sentence = listed.iter().find_map(|(key, pair, ..)| pair.waits.as_ref()?.sentence(&key.local));
            (table.states(now), table.failures(now).into_iter().next().map(|(_, failure)| failure), sentence)
        });
        let is_failing = objects.get(&ObjectState::Failing).is_some_and(|count| *count > 0);
        Facts {
            clusters,
            refused,
            held,
            failing: section.other_daemon().or_else(|| {
                failing.filter(|_| is_failing).map(|failure| format!("{}: {}", failure.key, failure.reason))
            }),
            waiting,
            broken_watch: broken.map(|(_, reason)| reason),
            // Before the first list nothing was known.
            unknown_for: unknown_for.filter(|_| not_ready.is_none()),
            not_ready,
            objects,
            purpose: match section.mode() {
                Mode::Syncing if section.config().dry_run => Purpose::DryRun,
                Mode::Syncing => Purpose::Work,
                Mode::Detaching | Mode::DetachingLocalGone if section.left_to_detach() == 0 => Purpose::Detached,
                Mode::Detaching | Mode::DetachingLocalGone => Purpose::Detaching,
            },
            ..Facts::default()
        }
    }

    /// The objects that fail or have waited for too long, as far as they are listed, and how many more there are.
    fn not_in_step(&self, now: Instant) -> (Vec<NotInStep>, usize) {
        let unanswered = self.unanswered();
        self.section.index(|index| {
            let all = index.table.not_in_step(now, usize::MAX);
            let more = all.len().saturating_sub(MOST_LISTED);
            let listed = all.into_iter().take(MOST_LISTED);
            (
                listed.map(|(key, pair, state, age)| self.entry(key, pair, state, age, unanswered.as_ref())).collect(),
                more,
            )
        })
    }

    /// A cluster that does not answer.
    fn unanswered(&self) -> Option<ClusterName> {
        self.clusters().into_iter().find(|cluster| !cluster.state.is_fine()).map(|cluster| cluster.name)
    }

    /// What is known of an object that is not in step.
    fn entry(
        &self,
        key: &PairKey,
        pair: &Pair,
        state: ObjectState,
        age: Duration,
        unanswered: Option<&ClusterName>,
    ) -> NotInStep {
        let now = Instant::now();
        let waits = match (&pair.waits, state) {
            (Some(waits), state) if state != ObjectState::Pending => (**waits).clone(),
            _ => match pair.contention(now).filter(|_| unanswered.is_none()) {
                Some(contention) => Waits::contended(contention.cause()),
                None => Waits::pending(unanswered.map(ClusterName::as_str)),
            },
        };
        NotInStep {
            key: key.to_string(),
            state: state.as_str(),
            for_seconds: age.as_secs(),
            cause: waits.cause,
            next_step: waits.next_step,
            retry: waits.retry,
            retry_in_seconds: self.queue.retried_in(key, now).map(|left| left.as_secs().max(1)),
        }
    }

    /// The state of an object, by its key on either side, whether it is listed or not. Two objects of the two sides may have one key.
    fn of_object(&self, name: &str) -> Vec<NotInStep> {
        let (now, unanswered) = (Instant::now(), self.unanswered());
        self.section.index(|index| {
            let is_meant = |key: &PairKey| key.local.to_string() == name || key.remote.to_string() == name;
            let pairs = index.table.pairs().filter(|(key, _)| is_meant(key));
            let of = |(key, pair): (&PairKey, &Pair)| {
                let (state, since) = pair.shown(now);
                let age = now.saturating_duration_since(since);
                if state == ObjectState::InStep {
                    NotInStep {
                        key: key.to_string(),
                        state: state.as_str(),
                        for_seconds: age.as_secs(),
                        ..NotInStep::default()
                    }
                } else {
                    self.entry(key, pair, state, age, unanswered.as_ref())
                }
            };
            pairs.map(of).collect()
        })
    }

    fn build(&self) -> Report {
        let now = Instant::now();
        let section = &self.section;
        let (objects, oldest, failures, planned, totals, unkept) = section.index(|index| {
            let table = &index.table;
            let (totals, unkept) = (table.unkept_totals(), table.unkept());
            (table.states(now), table.oldest_pending(now), table.failures(now), table.planned_steps(), totals, unkept)
        });
        let (not_in_step, not_in_step_more) = self.not_in_step(now);
        let (left_out, left_out_objects) = section.index(|index| index.table.left_out(MOST_LISTED));
        let facts = self.facts();
        let bounds = section.bounds();
        let (held, held_first) = section.index(|index| {
            let held = index.guard.changes.held(bounds, now);
            let first = if held.is_empty() { Vec::new() } else { index.guard.changes.first(NAMED) };
            (held, first)
        });
        let Lags { spec, status } = oldest;
        let (changed_settings, left_secrets) =
            section.index(|index| (index.left.settings.clone(), index.left.secrets.clone()));
        Report {
            mode: match section.mode() {
                Mode::Syncing if section.config().dry_run => "dry_run",
                Mode::Syncing => "syncing",
                Mode::Detaching | Mode::DetachingLocalGone if section.left_to_detach() == 0 => "detached",
                Mode::Detaching | Mode::DetachingLocalGone => "detaching",
            },
            remote: section.config().remote.clone(),
            local: section.config().local.clone(),
            resource: section.config().resource.to_string(),
            objects: objects.into_iter().map(|(state, count)| (state.as_str(), count)).collect(),
            queue: self.dispatcher.snapshot(),
            oldest_unsynced_seconds: Oldest {
                spec: spec.map(|age| age.as_secs_f64()),
                status: status.map(|age| age.as_secs_f64()),
            },
            mass_delete_held: held.get(&GuardedChange::Delete).copied(),
            held: held.iter().map(|(change, count)| (change.as_str(), *count)).collect(),
            held_first: held_first.into_iter().map(|(key, _)| key.local).collect(),
            waits_for: section.not_ready_because().map(|not_ready| not_ready.reason),
            stored_state: section.state().report(),
            changed_settings,
            planned,
            objects_unknown_for_seconds: facts.unknown_for.map(|since| since.as_secs()),
            not_in_step,
            not_in_step_more,
            unkept: (totals.objects > 0).then(|| UnkeptReport {
                objects: totals.objects,
                fields: totals.spec + totals.status,
                first: unkept.into_iter().map(|unkept| self.unkept_object(unkept)).collect(),
            }),
            left_secrets,
            left_out: (left_out_objects > 0).then(|| LeftOutReport {
                objects: left_out_objects,
                first: left_out.into_iter().map(|(key, reason)| LeftOutObject { key, reason }).collect(),
            }),
            failures: failures
                .into_iter()
                .map(|(age, failure)| AgedFailure { seconds_ago: age.as_secs(), failure })
                .collect(),
        }
    }

    fn unkept_object(&self, unkept: UnkeptFields) -> UnkeptObject {
        let UnkeptFields { key, direction, fields } = unkept;
        let more = fields.count.saturating_sub(fields.named.len());
        UnkeptObject { key, cluster: self.section.written_to(direction).clone(), fields: fields.named, more }
    }
}

impl telemetry::Section for SyncReport {
    fn name(&self) -> &SectionName {
        self.section.name()
    }

    fn job(&self) -> &'static str {
        "sync"
    }

    fn readiness(&self) -> Readiness {
        match (self.facts().readiness(), self.section.identification()) {
            (Readiness::Ready, Identification::Held(objection)) => Readiness::Held(objection.to_string()),
            (readiness, _) => readiness,
        }
    }

    fn condition(&self) -> Condition {
        Condition::of(&self.facts())
    }

    fn overview(&self) -> Overview {
        let config = self.section.config();
        let now = Instant::now();
        let (states, oldest, failing) = self.section.index(|index| {
            let table = &index.table;
            (table.states(now), table.oldest_pending(now), table.longest_failing(now))
        });
        Overview {
            flow: format!("{}→{}", config.remote, config.local),
            subject: config.resource.plural.clone(),
            total: states.values().sum(),
            in_step: states.get(&ObjectState::InStep).copied().unwrap_or_default(),
            oldest_seconds: oldest.spec.max(oldest.status).max(failing).map(|age| age.as_secs_f64()),
        }
    }

    fn report(&self) -> Value {
        // A struct of plain values always serializes.
        serde_json::to_value(self.build()).unwrap_or(Value::Null)
    }

    fn refresh(&self) {
        let now = Instant::now();
        let (states, oldest) = self.section.index(|index| {
            let table = &index.table;
            (table.states(now), table.oldest_pending(now))
        });
        guard::record_held(self.section.name(), &self.section.held_objects());
        self.queue.set_depth(self.dispatcher.snapshot().waiting + self.section.requests_waiting());
        self.section.metrics.set_objects(|state| states.get(&state).copied().unwrap_or_default());
        for (direction, age) in [(Direction::Spec, oldest.spec), (Direction::Status, oldest.status)] {
            self.section.metrics.set_oldest_pending(direction, age.unwrap_or_default());
        }
    }

    fn approve(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { self.section.approve().await })
    }

    fn held(&self) -> BoxFuture<'_, Result<Held, Refused>> {
        let section = &self.section;
        let because = section.identification().held().map(|objection| objection.to_string());
        let is_any_held = !section.held_objects().is_empty();
        let pending_changes =
            if is_any_held { section.index(|index| index.guard.changes.first(usize::MAX)) } else { Vec::new() };
        let held = |(key, change): (PairKey, GuardedChange)| HeldObject {
            key: key.to_string(),
            kind: change.as_str(),
            reason: Waits::held(Some(change), section.config()).cause,
        };
        let mut objects: Vec<HeldObject> = pending_changes.into_iter().map(held).collect();
        if objects.is_empty() && because.is_none() {
            let elsewhere = |(key, elsewhere): (ObjectKey, Elsewhere)| HeldObject {
                key: key.to_string(),
                kind: "other_cluster",
                reason: elsewhere.to_string(),
            };
            objects.extend(section.elsewhere().into_iter().map(elsewhere));
        }
        Box::pin(async { Ok(Held { because, objects }) })
    }

    fn detach(&self, local_gone: bool) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { self.section.detach(local_gone).await })
    }

    fn attach(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { self.section.attach().await })
    }

    fn explain<'s>(&'s self, name: &'s str) -> BoxFuture<'s, Result<Value, Refused>> {
        let found = self.of_object(name);
        Box::pin(async move {
            if found.is_empty() {
                return Err(Refused::Conflict { reason: format!("section {} knows no object {name}", self.name()) });
            }
            Ok(json!({ "objects": found }))
        })
    }
}
