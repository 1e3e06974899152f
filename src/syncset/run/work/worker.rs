//! The actor that works on clusters.
//!
//! State: clients of clusters that were worked on in the last minute. It claims clusters from the work queue, as many as there are slots
//! to connect, and reconciles each in a task of its own ([`Worker::reconcile`]). It sends to the writer, whose bounds hold back a reconcile that has
//! something to show; nobody sends to it. A reconcile that fails is repeated with back-off, by whichever process claims the cluster then;
//! one that panics is reported, and its cluster returns when the claim ends. Restart: reconciles under way are aborted, and their claims
//! end by themselves. Drain: nothing is claimed any more, passes store what they have done after the request under way, and their
//! clusters are handed back.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::idle::{IdleClients, KeptClient};
use super::observer::{Reconciling, WorkObserver};
use super::prepare::Preparer;
use super::{ClaimEnd, ReconcileError, Reconciled};
use crate::actor::{BoxError, ChildSpec, Scope};
use crate::cluster::{DynamicClusters, full_text};
use crate::documents::{BlockingSlot, ClaimSlot, Holder, RowEnd, Shared, Work, WorkConsumer, WorkQueue, WriterHandle};
use crate::syncset::config::SyncsetsConfig;
use crate::syncset::run::payloads::Payloads;
use crate::syncset::run::slots::Slots;
use crate::syncset::run::store::PassStore;
use crate::telemetry::ReconcileResult;

/// The label under which requests to clusters are counted.
const COUNTED_AS: &str = "syncsets";
/// Requests in flight to one cluster: those of its pass, and of operators who look at it.
const MOST_REQUESTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);
/// A pass that has waited for the budget for so long gives its cluster back for a while: it has a slot to connect, which others may need
/// whose syncsets are smaller, and another replica may have budget.
const BUDGET_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of payloads of syncsets that all passes share, keyed by id and version.
const PAYLOAD_CACHE: u64 = 128 << 20;
/// Between two looks for clients that have been idle for long.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);
/// When a cluster is reconciled again whose documents were changed meanwhile, or of which health is to be read after a pass.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// Works on clusters. Its clones are the same.
#[derive(Clone)]
pub struct Worker(Arc<Inner>);

pub struct Inner {
    pub(super) config: SyncsetsConfig,
    pub(in crate::syncset) store: PassStore,
    pub(super) queue: WorkQueue,
    pub(super) writer: WriterHandle,
    pub(super) holder: Holder,
    pub(in crate::syncset) preparer: Preparer,
    pub(super) slots: Slots,
    pub(in crate::syncset) clusters: Arc<DynamicClusters>,
    /// Locked only for one look-up.
    pub(super) idle: Mutex<IdleClients<KeptClient>>,
    /// Where own rules for the health of a kind are asked.
    pub(super) rules: BlockingSlot,
    /// Milliseconds by which the database's clock is ahead of this machine's.
    pub(super) clock: AtomicI64,
    shared: Shared,
    pub(super) observer: Arc<dyn WorkObserver>,
}

impl std::ops::Deref for Worker {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Worker {
    pub fn new(config: SyncsetsConfig, shared: &Shared, observer: Arc<dyn WorkObserver>) -> Self {
        let store = PassStore::new(shared.database.clone());
        let payloads = Payloads::of_bytes(PAYLOAD_CACHE);
        let preparer = Preparer::new(store.clone(), payloads, shared.keyring.clone(), config.allowed);
        let preparer = preparer.waiting_at_most(BUDGET_WITHIN);
        let clusters =
            Arc::new(DynamicClusters::of_many(config.request_timeout, MOST_REQUESTS, COUNTED_AS, config.denied()));
        Self(Arc::new(Inner {
            store,
            queue: WorkQueue::new(&shared.database, &shared.claims).over(shared.broker.clone()),
            writer: shared.writer.clone(),
            holder: shared.claims.holder().clone(),
            preparer,
            slots: Slots::new(config.max_in_flight),
            clusters,
            idle: Mutex::default(),
            rules: BlockingSlot::default(),
            clock: AtomicI64::new(0),
            shared: shared.clone(),
            observer,
            config,
        }))
    }

    pub fn child(self) -> ChildSpec {
        ChildSpec::new("worker", move |scope| self.clone().run(scope))
    }

    pub async fn run(self, scope: Scope) -> Result<(), BoxError> {
        scope.set_state("waiting");
        tokio::select! {
            biased;
            () = scope.draining() => return Ok(()),
            () = self.shared.has_schema() => {}
        }
        scope.set_state("running");
        let stopping = CancellationToken::new();
        // There are at most as many that have not begun as there are slots, of which each has one.
        let slots = self.slots.connecting();
        let (deliver, mut claimed) = mpsc::channel(slots.free().max(1));
        let consumer = WorkConsumer::new(self.queue.clone(), slots);
        let mut under_way =
            UnderWay { worker: self.clone(), stopping: stopping.clone(), tasks: JoinSet::new(), of: HashMap::new() };
        let mut expire = interval(EXPIRE_EVERY);
        expire.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let claims = consumer
            .run(&scope, |work, slot| {
                if deliver.try_send((work, slot)).is_err() {
                    tracing::error!("more clusters were claimed than there are slots: this is a bug");
                }
            })
            .fuse();
        tokio::pin!(claims);
        let mut is_claiming = true;
        loop {
            tokio::select! {
                () = &mut claims, if is_claiming => {
                    is_claiming = false;
                    stopping.cancel();
                    while let Ok((work, slot)) = claimed.try_recv() {
                        under_way.begin(work, slot);
                    }
                }
                Some((work, slot)) = claimed.recv() => under_way.begin(work, slot),
                Some(ended) = under_way.tasks.join_next_with_id() => under_way.ended(ended),
                _ = expire.tick() => self.expire(),
            }
            if !is_claiming && under_way.tasks.is_empty() {
                return Ok(());
            }
        }
    }

    fn expire(&self) {
        let dropped = self.idle.lock().expire(Instant::now());
        drop(dropped);
    }
}

/// Reconciles under way.
struct UnderWay {
    worker: Worker,
    stopping: CancellationToken,
    tasks: JoinSet<()>,
    /// The name of each one's cluster.
    of: HashMap<Id, String>,
}

impl UnderWay {
    fn begin(&mut self, work: Work, slot: ClaimSlot) {
        let (worker, stopping, cluster) = (self.worker.clone(), self.stopping.clone(), work.name.clone());
        let task = self.tasks.spawn(async move { worker.work(work, slot, stopping).await });
        self.of.insert(task.id(), cluster);
    }

    fn ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let (id, panic) = match ended {
            Ok((id, ())) => (id, None),
            Err(error) => (error.id(), Some(error)),
        };
        let cluster = self.of.remove(&id);
        if let Some(panic) = panic {
            let cluster = cluster.unwrap_or_default();
            tracing::error!(cluster, error = %panic, "a reconcile of a cluster panicked, it is reconciled again when its claim ends: this is a bug");
        }
    }
}

impl Worker {
    /// Reconciles a cluster and ends the claim on it.
    async fn work(&self, work: Work, slot: ClaimSlot, stopping: CancellationToken) {
        let reconciling = Reconciling::begin(&*self.observer, work.waited);
        let reconciled = if stopping.is_cancelled() {
            Err(ReconcileError::ShutsDown)
        } else {
            Box::pin(self.reconcile(&work, slot, &stopping)).await
        };
        let (end, result) = match reconciled {
            Ok(Reconciled { end, result }) => (end, result),
            Err(error) => {
                let end = self.end_after(&work, &error);
                let is_interrupted = matches!(end, ClaimEnd::Lost | ClaimEnd::HandedBack);
                (end, if is_interrupted { ReconcileResult::Requeue } else { ReconcileResult::Error })
            }
        };
        reconciling.end(result);
        let cluster = work.name.clone();
        let ended = match end {
            ClaimEnd::Waits(row) => self.queue.done(work, &row).await,
            ClaimEnd::Ended(finished) => Ok(finished),
            ClaimEnd::Gone => self.queue.forget(work).await,
            ClaimEnd::HandedBack => self.queue.hand_back(work).await,
            ClaimEnd::Lost => Ok(RowEnd::Lost),
        };
        match ended {
            Ok(RowEnd::Lost) => tracing::debug!(cluster, "the claim expired before the reconcile ended"),
            Ok(RowEnd::Settled | RowEnd::Ready) => {}
            Err(error) => {
                tracing::warn!(
                    cluster,
                    error = full_text(&error),
                    "failed to end the claim on a cluster, it is reconciled again when the claim ends"
                );
            }
        }
    }
}
