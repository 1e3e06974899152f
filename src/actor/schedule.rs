//! Which key runs when: the dispatcher's rules, pure, with time passed in.
//!
//! Every known key is in exactly one phase. *Ready* keys wait for a permit in the order in which they became ready; *running*
//! keys hold one, and a request meanwhile marks them dirty; *retrying* keys wait for their delay; *idle* keys wait for a
//! request, and are forgotten after a while without one.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::Instant;

use super::moment::after;
use super::{Backoff, Key, Requested};

pub(super) struct Schedule<K> {
    permits: usize,
    idle: Duration,
    backoff: Backoff,
    random: StdRng,
    entries: HashMap<K, Entry>,
    /// Ready keys, and since when.
    ready: VecDeque<(Instant, K)>,
    running: usize,
    retrying: usize,
    /// Ends of delays and of idle times: at most one for each key, removed when it no longer applies.
    alarms: BTreeMap<Alarm, K>,
    last_alarm: u64,
}

/// When an alarm is due; the number distinguishes those of one moment.
type Alarm = (Instant, u64);

struct Entry {
    phase: Phase,
    /// Retries in a row, for the back-off.
    attempts: u32,
}

#[derive(Clone, Copy)]
enum Phase {
    Ready,
    Running { dirty_since: Option<Instant> },
    Retrying(Alarm),
    Idle(Alarm),
}

/// When the key of a run is requeued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requeue {
    /// Nothing until the next request.
    OnRequest,
    /// Another run after the back-off.
    WithBackoff,
    /// Another run after this delay.
    After(Duration),
}

/// What follows for the key of a finished run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It was requested during the run and is ready again.
    Again,
    /// It runs again after this delay.
    Retry(Duration),
    /// It waits for a request.
    Rest,
}

/// A key to run now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Start<K> {
    pub(super) key: K,
    pub(super) waited: Duration,
}

impl<K: Key> Schedule<K> {
    pub(super) fn new(permits: usize, idle: Duration, backoff: Backoff, seed: u64) -> Self {
        Self {
            permits: permits.max(1),
            idle,
            backoff,
            random: StdRng::seed_from_u64(seed),
            entries: HashMap::new(),
            ready: VecDeque::new(),
            running: 0,
            retrying: 0,
            alarms: BTreeMap::new(),
            last_alarm: 0,
        }
    }

    /// Something about the key has changed: it runs as soon as it can, and its back-off starts over.
    pub(super) fn request(&mut self, key: &K, now: Instant) -> Requested {
        let Some(entry) = self.entries.get_mut(key) else {
            self.entries.insert(key.clone(), Entry { phase: Phase::Ready, attempts: 0 });
            self.ready.push_back((now, key.clone()));
            return Requested::Queued;
        };
        entry.attempts = 0;
        match &mut entry.phase {
            Phase::Ready | Phase::Running { dirty_since: Some(_) } => return Requested::Merged,
            Phase::Running { dirty_since } => *dirty_since = Some(now),
            Phase::Retrying(alarm) => {
                self.alarms.remove(alarm);
                self.retrying -= 1;
                entry.phase = Phase::Ready;
                self.ready.push_back((now, key.clone()));
            }
            Phase::Idle(alarm) => {
                self.alarms.remove(alarm);
                entry.phase = Phase::Ready;
                self.ready.push_back((now, key.clone()));
            }
        }
        Requested::Queued
    }

    /// The next key to run, if one is ready and a permit is left.
    pub(super) fn start(&mut self, now: Instant) -> Option<Start<K>> {
        if self.running >= self.permits {
            return None;
        }
        let (since, key) = self.ready.pop_front()?;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.phase = Phase::Running { dirty_since: None };
        }
        self.running += 1;
        Some(Start { key, waited: now.saturating_duration_since(since) })
    }

    /// A run has ended. A key that isn't running is ignored.
    pub(super) fn finish(&mut self, key: &K, requeue: Requeue, now: Instant) -> Next {
        let Some(entry) = self.entries.get_mut(key) else {
            return Next::Rest;
        };
        let Phase::Running { dirty_since } = entry.phase else {
            return Next::Rest;
        };
        self.running -= 1;
        if let Some(since) = dirty_since {
            entry.phase = Phase::Ready;
            self.ready.push_back((since, key.clone()));
            return Next::Again;
        }
        let (delay, next) = match requeue {
            Requeue::OnRequest => {
                entry.attempts = 0;
                (self.idle, Next::Rest)
            }
            Requeue::WithBackoff => {
                let delay = self.backoff.delay(entry.attempts, &mut self.random);
                entry.attempts = entry.attempts.saturating_add(1);
                (delay, Next::Retry(delay))
            }
            Requeue::After(delay) => (delay, Next::Retry(delay)),
        };
        self.last_alarm += 1;
        let alarm = (after(now, delay), self.last_alarm);
        self.alarms.insert(alarm, key.clone());
        if next == Next::Rest {
            entry.phase = Phase::Idle(alarm);
        } else {
            entry.phase = Phase::Retrying(alarm);
            self.retrying += 1;
        }
        next
    }

    /// Makes keys ready whose delay is over. Forgets and returns those that have been idle for long enough.
    pub(super) fn advance(&mut self, now: Instant) -> Vec<K> {
        let mut forgotten = Vec::new();
        while let Some(first) = self.alarms.first_entry() {
            let due = first.key().0;
            if due > now {
                break;
            }
            let key = first.remove();
            match self.entries.get_mut(&key) {
                Some(entry) if matches!(entry.phase, Phase::Retrying(_)) => {
                    entry.phase = Phase::Ready;
                    self.retrying -= 1;
                    self.ready.push_back((due, key));
                }
                _ => {
                    self.entries.remove(&key);
                    forgotten.push(key);
                }
            }
        }
        forgotten
    }

    /// When [`advance`](Self::advance) has something to do next.
    pub(super) fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first_key_value().map(|((due, _), _)| *due)
    }

    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn running(&self) -> usize {
        self.running
    }

    pub(super) fn retrying(&self) -> usize {
        self.retrying
    }

    /// When the key at the head of the queue became ready.
    pub(super) fn oldest_ready(&self) -> Option<Instant> {
        self.ready.front().map(|(since, _)| *since)
    }

    /// Removes and returns every key that still needs a run: running, ready and retrying ones.
    pub(super) fn take_unfinished(&mut self) -> Vec<K> {
        let entries = std::mem::take(&mut self.entries);
        let unfinished = entries.into_iter().filter(|(_, entry)| !matches!(entry.phase, Phase::Idle(_)));
        let unfinished = unfinished.map(|(key, _)| key).collect();
        self.ready.clear();
        self.alarms.clear();
        (self.running, self.retrying) = (0, 0);
        unfinished
    }
}

#[cfg(test)]
mod tests;
