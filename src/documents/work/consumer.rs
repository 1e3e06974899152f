//! Waits for work and claims it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::granted::Work;
use super::namespaces::{ClaimSlot, ClaimSlots};
use super::order::ClaimOrder;
use super::queue::{Claimed, WorkQueue};
use crate::actor::{Backoff, Scope};
use crate::cluster::full_text;
use crate::db::{self, Listener, Session, Subscriber};

/// What every request for work notifies.
const CHANNEL: &str = "towline_work";
/// Between two looks: a row may have become ready by the time, and a notification or a hint may have been lost.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks of which the first has filled all slots, unless new work is notified: slots become free one by one, and a claim costs
/// the database as much for one row as for twenty.
const AGAIN: Duration = Duration::from_millis(50);
/// The limit of LISTEN.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Between attempts of which each fails.
const RETRY: Backoff = Backoff::new(EVERY, Duration::from_secs(10));

/// Claims work while there are free slots.
pub struct WorkConsumer {
    queue: WorkQueue,
    slots: ClaimSlots,
    order: ClaimOrder,
    /// Whether the next slot takes the oldest row of any kind, before a hint may take it.
    is_oldest_next: bool,
    /// Claims that have failed since the last that has not.
    failures: u32,
}

/// Why rows are claimed.
#[derive(Clone, Copy)]
enum Wake {
    /// It is time to look, or something may be ready: for all free slots.
    Look,
    /// Workers publish hints of urgent rows, and the next slot takes the oldest row of any kind: for one slot.
    Oldest,
    /// Somebody waits for this cluster.
    Hint(Uuid),
}

/// What the database wakes the consumer with.
#[derive(Default)]
struct Wakes(Notify);

impl Subscriber for Wakes {
    async fn listening(&self, _session: &Session) -> Result<(), db::Error> {
        self.0.notify_one();
        Ok(())
    }

    fn notified(&self, _channel: &str, _payload: &str) {
        self.0.notify_one();
    }
}

impl WorkConsumer {
    /// One that takes a slot for each row.
    pub fn new(queue: WorkQueue, slots: ClaimSlots) -> Self {
        Self { queue, slots, order: ClaimOrder::default(), is_oldest_next: false, failures: 0 }
    }

    /// Passes work on, each with a slot, until the actor drains. `deliver` must not block.
    ///
    /// It looks for work once a second, and when the database notifies it; never without a free slot. Where a look has found all that it
    /// may claim, the next one follows soon. With a broker it does not listen to the database, but claims the rows of the clusters that it
    /// has hints of. The actor hands back claims that are granted while it drains.
    pub async fn run(mut self, scope: &Scope, mut deliver: impl FnMut(Work, ClaimSlot)) {
        let (wakes, (keys, hints)) = (Wakes::default(), mpsc::channel(1));
        if let Some(broker) = self.queue.broker().cloned() {
            tokio::select! {
                never = broker.exchange_hints(keys) => match never {},
                () = self.claims(scope, &wakes, hints, &mut deliver) => {}
            }
        } else {
            let database = self.queue.database().clone().answering_within(ANSWER_WITHIN);
            let listener = Listener::new(database, "work", &[CHANNEL]);
            tokio::select! {
                never = listener.run(&wakes) => match never {},
                () = self.claims(scope, &wakes, hints, &mut deliver) => {}
            }
        }
    }

    async fn claims(
        &mut self,
        scope: &Scope,
        wakes: &Wakes,
        mut hints: mpsc::Receiver<Uuid>,
        deliver: &mut impl FnMut(Work, ClaimSlot),
    ) {
        let (mut look_at, mut not_before) = (Instant::now(), Instant::now());
        loop {
            let next = async {
                sleep_until(not_before).await;
                self.next(look_at, wakes, &mut hints).await
            };
            let (wake, slots) = tokio::select! {
                biased;
                () = scope.draining() => return,
                next = next => next,
            };
            let _work = scope.work();
            let began = Instant::now();
            let limits = self.slots.limits();
            // Dropping these requests would leave what they are granted to nobody.
            let claimed = match wake {
                Wake::Hint(cluster) => {
                    let work = self.queue.claim_one(cluster, &limits.without()).await;
                    work.map(|work| Claimed { granted: work.iter().len(), work: Vec::from_iter(work), has_more: false })
                }
                Wake::Look | Wake::Oldest => self.queue.claim(self.order.mix(count(slots.len())), &limits).await,
            };
            if matches!(wake, Wake::Look) {
                look_at = Instant::now() + EVERY;
            }
            let Claimed { work: granted, granted: rows, has_more } = match claimed {
                Ok(claimed) => claimed,
                Err(error) => {
                    look_at = Instant::now() + RETRY.next_delay(self.fails(&error));
                    continue;
                }
            };
            self.failures = 0;
            self.order.taken(count(rows));
            self.is_oldest_next = self.queue.broker().is_some() && !granted.is_empty() && !self.order.prefers_urgent();
            if matches!(wake, Wake::Look) && (has_more || rows >= slots.len()) {
                // There may be more.
                look_at = Instant::now() + AGAIN;
            }
            if scope.is_draining() {
                return self.hand_back(granted).await;
            }
            for (work, slot) in granted.into_iter().zip(slots) {
                let slot = self.slots.given(slot, work.namespace());
                deliver(work, slot);
            }
            if !self.slots.limits().without().is_empty() {
                // Slots stay free while all ready clusters are of namespaces that have as many as they may: each wake-up would cost a statement, and
                // one that takes longer the more namespaces there are.
                not_before = Instant::now() + AGAIN.max(began.elapsed() * 4);
            }
        }
    }

    /// Waits until there is a reason to claim and a slot is free. A look takes all free slots, but half of all at most.
    async fn next(
        &self,
        look_at: Instant,
        wakes: &Wakes,
        hints: &mut mpsc::Receiver<Uuid>,
    ) -> (Wake, Vec<OwnedSemaphorePermit>) {
        let has_failed = self.failures > 0;
        let may_claim_all = self.slots.limits().without().is_empty();
        let woken = async {
            tokio::select! {
                () = wakes.0.notified() => {}
                () = self.queue.returned() => {}
                () = self.slots.has_less() => {}
            }
        };
        let wake = tokio::select! {
            biased;
            () = sleep_until(look_at) => Wake::Look,
            // After a failure, neither means that the next attempt succeeds.
            () = std::future::ready(()), if self.is_oldest_next && !has_failed => Wake::Oldest,
            // A hint does not say whose cluster it is. Those of clusters that may not be claimed here are left for other replicas.
            Some(cluster) = hints.recv(), if !has_failed && may_claim_all => Wake::Hint(cluster),
            () = woken, if !has_failed => Wake::Look,
        };
        // The semaphore is never closed.
        let Ok(first) = Arc::clone(self.slots.semaphore()).acquire_owned().await else {
            return std::future::pending().await;
        };
        let most = if matches!(wake, Wake::Look) { self.slots.most_at_once().saturating_sub(1) } else { 0 };
        let further = std::iter::from_fn(|| Arc::clone(self.slots.semaphore()).try_acquire_owned().ok()).take(most);
        (wake, std::iter::once(first).chain(further).collect())
    }

    /// Logs a failed claim, and returns how many were before it.
    fn fails(&mut self, error: &db::Error) -> u32 {
        let failures = self.failures;
        self.failures = failures.saturating_add(1);
        if failures == 0 {
            tracing::warn!(error = full_text(error), "failed to claim work, retrying");
        } else {
            tracing::debug!(error = full_text(error), failures, "failed to claim work, retrying");
        }
        failures
    }

    async fn hand_back(&self, granted: Vec<Work>) {
        for work in granted {
            if let Err(error) = self.queue.hand_back(work).await {
                tracing::warn!(error = full_text(&error), "failed to hand back work: others wait until its claim ends");
            }
        }
    }
}

fn count(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX)
}
