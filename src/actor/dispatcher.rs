//! The keyed dispatcher: one run at a time for one key, many keys at once.
//!
//! State it owns: a [`Schedule`] and the runs under way. Holders of its [`KeyMailbox`](super::KeyMailbox) send to it. It sends
//! nothing: each run is a future. The dispatcher polls the runs itself, because a task for each would cost more than most runs
//! do. Full mailbox: the dispatcher takes no keys while `waiting` keys are ready, the mailbox fills, senders wait. Restart: the
//! keys in the mailbox are there for the next instance; those that were taken are lost, so whoever starts one requests again
//! all that may need a run. Drain: no more keys are taken, and runs under way finish.
//!
//! The latest [`Snapshot`] is behind a lock that is held for one assignment: a dispatcher publishes it in every turn, and
//! hardly anything reads it.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::backoff::Backoff;
use super::instance::Scope;
use super::mailbox::{Key, KeyInbox};
use super::report::{BoxError, panic_message};
use super::schedule::{Outcome, Schedule, Start};

/// Does the work for any key. The dispatcher keeps nothing for a key between its runs.
pub trait Reconcile<K>: Send + Sync + 'static {
    /// One run. It has to keep deadlines itself: a run that lasts longer than the child's
    /// [`stall_after`](super::ChildSpec::stall_after) counts as stalled.
    fn reconcile(&self, key: &K) -> impl Future<Output = Outcome> + Send;
}

/// Observes the queue, for metrics. The dispatcher's own task makes all calls, so they must be quick.
pub trait Observe<K>: Send + Sync + 'static {
    /// A request got a place in the queue, or marked a running key.
    fn added(&self, key: &K);
    /// A run began; `waited` is the time since its key became ready.
    fn started(&self, key: &K, waited: Duration);
    fn finished(&self, key: &K, took: Duration, outcome: &Outcome);
    /// A key will run again after this delay.
    fn retried(&self, key: &K, delay: Duration);
    /// A run panicked: it has to be logged.
    fn panicked(&self, key: &K, message: &str);
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// How many keys run at once, at least 1.
    pub slots: usize,
    /// No key is taken from the mailbox while so many are ready, at least 1. Keys whose retry is due come on top.
    pub waiting: usize,
    /// The delays of [`Outcome::Retry`] and of panics.
    pub backoff: Backoff,
}

/// A dispatcher's queue at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Keys that are ready and wait for a slot. Those in the mailbox are not counted.
    pub waiting: usize,
    pub running: usize,
    /// Keys that wait for their delay.
    pub retrying: usize,
    /// How long the key at the head of the queue has been ready.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Duration>,
}

/// A dispatcher, over all its instances. Clones are the same dispatcher: the child's factory captures one, and others are
/// asked for a [`snapshot`](Self::snapshot).
pub struct Dispatcher<R, O> {
    reconciler: Arc<R>,
    observer: Arc<O>,
    limits: Limits,
    board: Arc<Mutex<Board>>,
}

#[derive(Default)]
struct Board {
    counts: Snapshot,
    oldest_since: Option<Instant>,
}

impl<R, O> Dispatcher<R, O> {
    /// A dispatcher that is not running yet.
    pub fn new(reconciler: Arc<R>, observer: Arc<O>, limits: Limits) -> Self {
        Self { reconciler, observer, limits, board: Arc::default() }
    }

    pub fn snapshot(&self) -> Snapshot {
        let board = self.board.lock();
        Snapshot { oldest: board.oldest_since.map(|since| since.elapsed()), ..board.counts }
    }

    /// The body of an instance: reconciles the keys that arrive until it is drained, or until its inbox ends.
    pub async fn run<K>(self, scope: Scope, inbox: KeyInbox<K>) -> Result<(), BoxError>
    where
        K: Key,
        R: Reconcile<K>,
        O: Observe<K>,
    {
        Instance::new(self, scope, inbox).run().await;
        Ok(())
    }
}

impl<R, O> Clone for Dispatcher<R, O> {
    fn clone(&self) -> Self {
        Self {
            reconciler: Arc::clone(&self.reconciler),
            observer: Arc::clone(&self.observer),
            limits: self.limits,
            board: Arc::clone(&self.board),
        }
    }
}

/// A run's key, and how it ended and how long it took, or the payload of its panic.
type RunEnd<K> = (K, Result<(Outcome, Duration), Box<dyn Any + Send>>);

struct Instance<K: Key, R, O> {
    dispatcher: Dispatcher<R, O>,
    scope: Scope,
    schedule: Schedule<K>,
    inbox: KeyInbox<K>,
    runs: FuturesUnordered<BoxFuture<'static, RunEnd<K>>>,
}

impl<K: Key, R: Reconcile<K>, O: Observe<K>> Instance<K, R, O> {
    fn new(dispatcher: Dispatcher<R, O>, scope: Scope, inbox: KeyInbox<K>) -> Self {
        let Limits { slots, backoff, .. } = dispatcher.limits;
        Self {
            dispatcher,
            scope,
            schedule: Schedule::new(slots, backoff, rand::random()),
            inbox,
            runs: FuturesUnordered::new(),
        }
    }

    /// Each turn handles everything that has happened before it waits again, so that wake-ups are as rare as runs.
    async fn run(mut self) {
        let scope = self.scope.clone();
        let draining = scope.draining();
        tokio::pin!(draining);
        // Reset only when an earlier alarm is due: waking once too often is cheaper than moving the timer each turn.
        let alarm = sleep_until(Instant::now());
        tokio::pin!(alarm);
        let mut alarm_set = false;
        loop {
            let now = Instant::now();
            self.schedule.advance(now);
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
            if is_draining && self.runs.is_empty() {
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
                    // A newer instance has taken over, or nobody can request anything any more.
                    None => return,
                },
                () = &mut alarm, if alarm_set => alarm_set = false,
            }
        }
    }

    fn may_take(&self) -> bool {
        !self.scope.is_draining() && self.schedule.ready() < self.dispatcher.limits.waiting.max(1)
    }

    fn take(&mut self, key: &K, now: Instant) {
        if self.schedule.request(key, now) {
            self.dispatcher.observer.added(key);
        }
    }

    fn start_runs(&mut self, now: Instant) {
        while let Some(Start { key, waited }) = self.schedule.start(now) {
            self.dispatcher.observer.started(&key, waited);
            let reconciler = Arc::clone(&self.dispatcher.reconciler);
            let work = self.scope.work();
            self.runs.push(Box::pin(async move {
                let run = async {
                    let _work = work;
                    let started = Instant::now();
                    let outcome = reconciler.reconcile(&key).await;
                    (outcome, started.elapsed())
                };
                let ran = AssertUnwindSafe(run).catch_unwind().await;
                (key, ran)
            }));
        }
    }

    fn run_ended(&mut self, (key, ran): RunEnd<K>, now: Instant) {
        let observer = &self.dispatcher.observer;
        let outcome = match ran {
            Ok((outcome, took)) => {
                observer.finished(&key, took, &outcome);
                outcome
            }
            Err(payload) => {
                let message = panic_message(payload.as_ref());
                observer.panicked(&key, &message);
                Outcome::Retry
            }
        };
        if let Some(delay) = self.schedule.finish(&key, outcome, now) {
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

/// However the instance ends, nothing waits or runs any more.
impl<K: Key, R, O> Drop for Instance<K, R, O> {
    fn drop(&mut self) {
        *self.dispatcher.board.lock() = Board::default();
    }
}

#[cfg(test)]
mod tests;
