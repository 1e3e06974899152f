//! What is known of all clusters together, for the report and the metrics.
//!
//! An actor counts. State: the newest counts, as latest values. It reads the database every 15 s, with a few statements of which none is
//! larger with the number of objects, and in the replica that is the dispatcher some more, for Hive's gauges. It sends to nobody; an
//! approval and a question for the status make it count at once. A failed read leaves what was counted before, with the failure.
//! Restart: it counts again. Drain: it ends at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::actor::{BoxError, ChildSpec, Scope};
use crate::cluster::full_text;
use crate::db::Database;
use crate::documents::{Leadership, Role, Shared, WorkQueue};
use crate::syncset::metrics::SyncsetMetrics;
use crate::syncset::run::applied::Applied;
use crate::syncset::run::counts::Counted;
use crate::syncset::run::dispatch::DispatchError;

/// Between two counts.
const EVERY: Duration = Duration::from_secs(15);
/// How many times as long as a count of Hive's gauges takes pass before the next one: they take a twentieth of a connection at most,
/// however many syncsets there are.
const APPLIED_RESTS: u32 = 20;

/// What is known of all clusters. Clones are the same.
#[derive(Clone)]
pub struct Counter {
    shared: Arc<Shared>,
    queue: WorkQueue,
    leadership: Leadership,
    latest: watch::Sender<Latest>,
    again: Arc<Notify>,
    metrics: Arc<SyncsetMetrics>,
}

#[derive(Clone, Debug, Default)]
pub struct Latest {
    /// None before the first count.
    pub counted: Option<Counted>,
    pub counted_at: Option<Instant>,
    /// When the last count began, whether it succeeded or not: it has all that was written before.
    pub began_at: Option<Instant>,
    /// Why the last count failed, with its causes.
    pub failure: Option<String>,
    /// None in a replica that is not the dispatcher.
    pub applied: Option<Applied>,
}

impl Counter {
    pub fn new(shared: &Arc<Shared>, metrics: Arc<SyncsetMetrics>) -> Self {
        Self {
            queue: WorkQueue::new(&shared.database, &shared.claims),
            leadership: shared.claims.role(Role::Dispatcher),
            shared: Arc::clone(shared),
            latest: watch::Sender::default(),
            again: Arc::default(),
            metrics,
        }
    }

    pub fn latest(&self) -> Latest {
        self.latest.borrow().clone()
    }

    pub fn database(&self) -> &Database {
        &self.shared.database
    }

    /// Counts at once, since something has been changed.
    pub fn count_again(&self) {
        self.again.notify_one();
    }

    /// Counts, and returns when that is done. Its callers limit how long they wait.
    pub async fn count_now(&self) {
        let (asked_at, mut latest) = (Instant::now(), self.latest.subscribe());
        self.count_again();
        // The sender is this counter's own.
        let _ = latest.wait_for(|latest| latest.began_at.is_some_and(|began_at| began_at >= asked_at)).await;
    }

    pub fn child(self) -> ChildSpec {
        ChildSpec::new("overview", move |scope| self.clone().run(scope))
    }

    async fn run(self, scope: Scope) -> Result<(), BoxError> {
        tokio::select! {
            biased;
            () = scope.draining() => return Ok(()),
            () = self.shared.has_schema() => {}
        }
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut applied_rests_until = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = scope.draining() => return Ok(()),
                _ = every.tick() => {}
                () = self.again.notified() => {}
            }
            self.count().await;
            if self.leadership.grant().is_none() {
                self.latest.send_if_modified(|latest| latest.applied.take().is_some());
            } else if applied_rests_until <= Instant::now() {
                let begun = Instant::now();
                self.count_applied().await;
                applied_rests_until = begun + APPLIED_RESTS * begun.elapsed();
            }
        }
    }

    async fn count(&self) {
        let began_at = Instant::now();
        let counted = Counted::read(&self.shared.database, &self.queue).await;
        self.latest.send_modify(|latest| {
            latest.began_at = Some(began_at);
            match counted {
                Ok(counted) => {
                    self.metrics.counted(&counted);
                    (latest.counted, latest.counted_at, latest.failure) = (Some(counted), Some(Instant::now()), None);
                }
                Err(DispatchError::Database(error)) => latest.failure = Some(full_text(&error)),
                Err(error) => latest.failure = Some(full_text(&error)),
            }
        });
    }

    async fn count_applied(&self) {
        match Applied::read(&self.shared.database).await {
            Ok(applied) => self.latest.send_modify(|latest| latest.applied = Some(applied)),
            Err(error) => {
                tracing::debug!(error = full_text(&error), "failed to count where syncsets are applied, retrying");
            }
        }
    }
}
