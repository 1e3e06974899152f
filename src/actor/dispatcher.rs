//! The keyed dispatcher: one run at a time for one key, many keys at once.
//!
//! State it owns: a [`Schedule`] and the reconcilers of the keys that are not running. Who sends to it: whoever holds
//! its [`KeyMailbox`](super::KeyMailbox). What it sends: nothing; each run is a future that owns its reconciler and gives it back. Runs
//! are polled by the dispatcher itself: a task for each would cost more than most runs do. Full
//! mailbox: the dispatcher stops taking keys while `waiting` keys are ready, the mailbox fills, senders wait. Restart:
//! keys that were taken and not dealt with go back to the inbox, so a new instance finds them; reconcilers are made
//! anew. Drain: no more keys are taken, runs under way finish, ready keys stay undone.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use super::exit::panic_message;
use super::schedule::{Next, Schedule, Start, Verdict};
use super::{Backoff, BoxError, Key, KeyInbox, Requested, Scope};

/// How a run ended, and so what happens to its key. Whatever it says, a request that came during the run makes the key
/// run again at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All is as it should be; nothing until the next request.
    Done,
    /// It failed; again after the back-off.
    Retry,
    /// Again after this delay: somebody named it, or it is when something falls due. A request doesn't wait for it.
    RetryAfter(Duration),
    /// Something is missing whose arrival will be a request; nothing until then.
    Wait,
}

/// Does the work for one key. It lives on between runs, so it may remember; it may be dropped and made anew between any
/// two, so it must not rely on it.
pub trait Reconciler: Send + 'static {
    /// One run. Its deadline is its own business; a run that lasts longer than the child's
    /// [`stall_after`](super::ChildSpec::stall_after) counts as frozen.
    fn reconcile(&mut self) -> impl Future<Output = Outcome> + Send;
}

/// Makes reconcilers, when a key runs that has none.
pub trait ReconcilerFactory<K>: Send + Sync + 'static {
    /// What it makes.
    type Reconciler: Reconciler;

    /// Makes the reconciler for one key. A panic in here counts as one of the run.
    fn create(&self, key: &K) -> Self::Reconciler;
}

/// What happens in the queue, for metrics. All calls come from the dispatcher's own task, so they must be quick.
pub trait Observe<K>: Send + Sync + 'static {
    /// A request got a place in the queue, or was noted on a running key.
    fn added(&self, _key: &K) {}
    /// A run began, so long after its key became ready.
    fn started(&self, _key: &K, _waited: Duration) {}
    /// A run ended.
    fn finished(&self, _key: &K, _took: Duration, _outcome: &Outcome) {}
    /// A key was put aside, to run again after this delay.
    fn retried(&self, _key: &K, _delay: Duration) {}
    /// A run panicked, and its reconciler is gone.
    fn panicked(&self, _key: &K, _message: &str) {}
    /// An idle key's reconciler was dropped.
    fn passivated(&self, _key: &K) {}
}

/// Observes nothing.
impl<K> Observe<K> for () {}

/// A dispatcher's limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Runs at once, at least 1.
    pub permits: usize,
    /// Ready keys above which none is taken from the mailbox, at least 1. Keys whose retry falls due come on top.
    pub waiting: usize,
    /// How long a reconciler is kept after its last run.
    pub idle: Duration,
    /// The delays of [`Outcome::Retry`] and of panics.
    pub backoff: Backoff,
}

/// A dispatcher's queue at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Keys that are ready and wait for a permit. Those in the mailbox come on top.
    pub waiting: usize,
    /// Keys that run.
    pub running: usize,
    /// Keys that wait for their delay.
    pub retrying: usize,
    /// How long the longest waiting of the ready keys has waited.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none", default)]
    pub oldest: Option<Duration>,
}

/// A dispatcher over all its instances. Clones are the same dispatcher: one is captured by the child's factory, and
/// others ask for a [`snapshot`](Self::snapshot).
pub struct Dispatcher<F, O> {
    factory: Arc<F>,
    observer: Arc<O>,
    limits: Limits,
    board: Arc<Mutex<Board>>,
}

#[derive(Default)]
struct Board {
    counts: Snapshot,
    oldest_since: Option<Instant>,
}

impl<F, O> Dispatcher<F, O> {
    /// A dispatcher that does not run yet.
    pub fn new(factory: Arc<F>, observer: Arc<O>, limits: Limits) -> Self {
        Self { factory, observer, limits, board: Arc::default() }
    }

    /// The queue as it is now.
    pub fn snapshot(&self) -> Snapshot {
        let board = self.board.lock();
        Snapshot { oldest: board.oldest_since.map(|since| since.elapsed()), ..board.counts }
    }

    /// The body of an instance: reconciles the keys that come in until it is drained, or until every sender is gone and
    /// nothing is left to do.
    pub async fn run<K>(self, scope: Scope, inbox: KeyInbox<K>) -> Result<(), BoxError>
    where
        K: Key,
        F: ReconcilerFactory<K>,
        O: Observe<K>,
    {
        Instance::new(self, scope, inbox).run().await;
        Ok(())
    }
}

impl<F, O> Clone for Dispatcher<F, O> {
    fn clone(&self) -> Self {
        Self {
            factory: Arc::clone(&self.factory),
            observer: Arc::clone(&self.observer),
            limits: self.limits,
            board: Arc::clone(&self.board),
        }
    }
}

/// Runs a [`Dispatcher`] of which no snapshot is wanted.
pub async fn dispatch<K, F, O>(
    scope: Scope,
    inbox: KeyInbox<K>,
    factory: Arc<F>,
    observer: Arc<O>,
    limits: Limits,
) -> Result<(), BoxError>
where
    K: Key,
    F: ReconcilerFactory<K>,
    O: Observe<K>,
{
    Dispatcher::new(factory, observer, limits).run(scope, inbox).await
}

/// What a run gives back.
struct Ran<R> {
    reconciler: R,
    outcome: Outcome,
    took: Duration,
}

/// A run's key, and what it gives back or the payload of its panic.
type Ended<K, R> = (K, Result<Ran<R>, Box<dyn Any + Send>>);

struct Instance<K: Key, F: ReconcilerFactory<K>, O> {
    dispatcher: Dispatcher<F, O>,
    scope: Scope,
    schedule: Schedule<K>,
    inbox: KeyInbox<K>,
    /// Reconcilers of keys that are not running.
    resting: HashMap<K, F::Reconciler>,
    runs: FuturesUnordered<BoxFuture<'static, Ended<K, F::Reconciler>>>,
    /// Whether keys are still taken from the inbox.
    open: bool,
}

impl<K: Key, F: ReconcilerFactory<K>, O: Observe<K>> Instance<K, F, O> {
    fn new(dispatcher: Dispatcher<F, O>, scope: Scope, inbox: KeyInbox<K>) -> Self {
        let Limits { permits, idle, backoff, .. } = dispatcher.limits;
        Self {
            dispatcher,
            scope,
            schedule: Schedule::new(permits, idle, backoff, rand::random()),
            inbox,
            resting: HashMap::new(),
            runs: FuturesUnordered::new(),
            open: true,
        }
    }

    /// Each turn deals with all that has happened before it waits again: a wake-up is never for less than a run.
    async fn run(mut self) {
        let scope = self.scope.clone();
        let draining = scope.draining();
        tokio::pin!(draining);
        // Set anew only when an earlier alarm is due: waking once too often is cheaper than moving the timer each turn.
        let alarm = sleep_until(Instant::now());
        tokio::pin!(alarm);
        let mut alarm_set = false;
        loop {
            let now = Instant::now();
            for key in self.schedule.advance(now) {
                self.resting.remove(&key);
                self.dispatcher.observer.passivated(&key);
            }
            let is_draining = scope.is_draining();
            while self.may_take()
                && let Some(key) = self.inbox.try_next()
            {
                self.take(&key, now);
            }
            if !is_draining {
                self.start_runs(now);
            }
            self.show();
            if self.runs.is_empty() && (is_draining || (!self.open && self.schedule.retrying() == 0)) {
                return;
            }
            match self.schedule.next_alarm() {
                Some(due) if !alarm_set || due < alarm.deadline() => {
                    alarm.as_mut().reset(due);
                    alarm_set = true;
                }
                _ => {}
            }
            let may_take = self.may_take();
            tokio::select! {
                () = &mut draining, if !is_draining => {}
                Some(ended) = self.runs.next() => self.run_ended(ended, Instant::now()),
                key = self.inbox.next(), if may_take => match key {
                    Some(key) => self.take(&key, Instant::now()),
                    None => self.open = false,
                },
                () = &mut alarm, if alarm_set => alarm_set = false,
            }
        }
    }

    fn may_take(&self) -> bool {
        self.open && !self.scope.is_draining() && self.schedule.ready() < self.dispatcher.limits.waiting.max(1)
    }

    fn take(&mut self, key: &K, now: Instant) {
        if self.schedule.request(key, now) == Requested::Queued {
            self.dispatcher.observer.added(key);
        }
    }

    fn start_runs(&mut self, now: Instant) {
        while let Some(Start { key, waited }) = self.schedule.start(now) {
            self.dispatcher.observer.started(&key, waited);
            let resting = self.resting.remove(&key);
            let factory = Arc::clone(&self.dispatcher.factory);
            let work = self.scope.work();
            self.runs.push(Box::pin(async move {
                let run = async {
                    let _work = work;
                    let started = Instant::now();
                    let mut reconciler = resting.unwrap_or_else(|| factory.create(&key));
                    let outcome = reconciler.reconcile().await;
                    Ran { reconciler, outcome, took: started.elapsed() }
                };
                // What a panic leaves behind is dropped with the run.
                let ran = AssertUnwindSafe(run).catch_unwind().await;
                (key, ran)
            }));
        }
    }

    fn run_ended(&mut self, (key, ran): Ended<K, F::Reconciler>, now: Instant) {
        let observer = &self.dispatcher.observer;
        let verdict = match ran {
            Ok(ran) => {
                observer.finished(&key, ran.took, &ran.outcome);
                self.resting.insert(key.clone(), ran.reconciler);
                match ran.outcome {
                    Outcome::Done | Outcome::Wait => Verdict::Rest,
                    Outcome::Retry => Verdict::Retry,
                    Outcome::RetryAfter(delay) => Verdict::RetryAfter(delay),
                }
            }
            Err(payload) => {
                let message = panic_message(payload.as_ref());
                tracing::error!(message, "a reconciler panicked");
                observer.panicked(&key, &message);
                Verdict::Retry
            }
        };
        if let Next::Retry(delay) = self.schedule.finish(&key, verdict, now) {
            observer.retried(&key, delay);
        }
    }

    fn show(&self) {
        let counts = Snapshot {
            waiting: self.schedule.ready(),
            running: self.schedule.running(),
            retrying: self.schedule.retrying(),
            oldest: None,
        };
        *self.dispatcher.board.lock() = Board { counts, oldest_since: self.schedule.oldest_ready() };
    }
}

/// However the instance ends, what it has taken and not dealt with goes back to the inbox, and the board is cleared.
impl<K: Key, F: ReconcilerFactory<K>, O> Drop for Instance<K, F, O> {
    fn drop(&mut self) {
        self.inbox.put_back(self.schedule.take_unfinished());
        *self.dispatcher.board.lock() = Board::default();
    }
}

#[cfg(test)]
mod tests;
