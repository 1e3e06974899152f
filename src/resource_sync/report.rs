//! What a section shows to operators, and what they can ask of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::observe::QueueMetrics;
use super::reconcile::PairReconcilers;
use super::section::{Mode, Section};
use super::state::StateReport;
use super::table::{Failure, Lags};
use crate::actor::{Dispatcher, Snapshot};
use crate::config::{ClusterName, SectionName};
use crate::telemetry::{self, Direction, Readiness, Refused, SyncMetrics};

/// The section's dispatcher.
pub type SyncDispatcher = Dispatcher<PairReconcilers, QueueMetrics>;

/// A section as the admin server sees it.
pub struct SyncReport {
    section: Arc<Section>,
    dispatcher: SyncDispatcher,
    queue: Arc<QueueMetrics>,
    metrics: Arc<SyncMetrics>,
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
    /// Age in seconds of the oldest change that the other side does not show yet.
    oldest_unsynced_seconds: Oldest,
    /// Deletions that the guard holds until `towline approve`.
    #[serde(skip_serializing_if = "Option::is_none")]
    mass_delete_held: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    /// What outlives the process, and where it is.
    state: StateReport,
    /// What a dry run would have done, by step.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    planned: BTreeMap<&'static str, u64>,
    /// The last failures, newest first.
    failures: Vec<AgedFailure>,
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
    /// The report of a section.
    pub fn new(
        section: Arc<Section>,
        dispatcher: SyncDispatcher,
        queue: Arc<QueueMetrics>,
        metrics: Arc<SyncMetrics>,
    ) -> Self {
        Self { section, dispatcher, queue, metrics }
    }

    fn build(&self) -> Report {
        let now = Instant::now();
        let section = &self.section;
        let (objects, oldest, failures, planned) = {
            let table = section.table.lock();
            (table.states(), table.oldest_pending(now), table.failures(now), table.planned_steps())
        };
        let Lags { spec, status } = oldest;
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
            objects,
            queue: self.dispatcher.snapshot(),
            oldest_unsynced_seconds: Oldest {
                spec: spec.map(|age| age.as_secs_f64()),
                status: status.map(|age| age.as_secs_f64()),
            },
            mass_delete_held: section.guard.lock().held(section.objects(), now),
            waits_for: section.not_listed_because().map(|(reason, _)| reason),
            state: section.state().report(),
            planned,
            failures: failures
                .into_iter()
                .map(|(age, failure)| AgedFailure { seconds_ago: age.as_secs(), failure })
                .collect(),
        }
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
        match self.section.not_listed_because() {
            None => Readiness::Ready,
            Some((reason, true)) => Readiness::Unreachable(reason),
            Some((reason, false)) => Readiness::NotReady(reason),
        }
    }

    fn report(&self) -> Value {
        // A struct of plain values always serializes.
        serde_json::to_value(self.build()).unwrap_or(Value::Null)
    }

    fn refresh(&self) {
        let now = Instant::now();
        let (states, oldest) = {
            let table = self.section.table.lock();
            (table.states(), table.oldest_pending(now))
        };
        self.queue.set_depth(self.dispatcher.snapshot().waiting + self.section.requests_waiting());
        self.metrics.set_objects(|state| states.get(state.as_str()).copied().unwrap_or_default());
        for (direction, age) in [(Direction::Spec, oldest.spec), (Direction::Status, oldest.status)] {
            self.metrics.set_oldest_pending(direction, age.unwrap_or_default());
        }
    }

    fn approve(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move {
            if self.section.guard.lock().held(self.section.objects(), Instant::now()).is_none() {
                return Err(Refused::Conflict { reason: "no deletion is held".into() });
            }
            let freed = self.section.guard.lock().approve();
            tracing::info!(section = %self.section.name(), objects = freed.len(), "mass deletion approved");
            let count = freed.len();
            for key in freed {
                self.section.request(key).await;
            }
            Ok(json!({"approved": count}))
        })
    }

    fn detach(&self, local_gone: bool) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move {
            let section = &self.section;
            let before = section.mode();
            section.set_mode(if local_gone { Mode::DetachingLocalGone } else { Mode::Detaching });
            if let Some((reason, _)) = section.not_listed_because() {
                section.set_mode(before);
                return Err(Refused::Unavailable { reason });
            }
            section.look_for_unselected();
            let left = section.left_to_detach();
            tracing::info!(section = %section.name(), local_gone, objects = left, "section is being detached");
            section.request_all().await;
            Ok(json!({"detaching": left}))
        })
    }
}
