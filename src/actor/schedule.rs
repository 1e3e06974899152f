//! Which key runs when: the dispatcher's rules, pure, with time passed in.
//!
//! Every known key is in exactly one phase. *Ready* keys wait for a slot in the order in which they became ready; *running*
//! keys hold one, and a request meanwhile marks them dirty; *retrying* keys wait for their delay. A key that waits for nothing
//! but a request is not known.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::Instant;

use super::backoff::{Backoff, after};
use super::mailbox::Key;

pub(super) struct Schedule<K> {
    slots: usize,
    backoff: Backoff,
    random: StdRng,
    entries: HashMap<K, Entry>,
    /// Ready keys, and since when.
    ready: VecDeque<(Instant, K)>,
    running: usize,
    /// Ends of delays: one for each retrying key.
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
}

/// How a run ended, and so what happens to its key. In any case a request during the run makes the key run again at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The key is reconciled; nothing until the next request.
    Done,
    /// It failed; retry after the back-off.
    Retry,
    /// Run again after this delay, which a server named or after which something is due. A request doesn't wait for it.
    RetryAfter(Duration),
    /// Something is missing, and its arrival will be a request; nothing until then.
    Wait,
}

/// A key to run now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Start<K> {
    pub(super) key: K,
    pub(super) waited: Duration,
}

impl<K: Key> Schedule<K> {
    pub(super) fn new(slots: usize, backoff: Backoff, seed: u64) -> Self {
        Self {
            slots: slots.max(1),
            backoff,
            random: StdRng::seed_from_u64(seed),
            entries: HashMap::new(),
            ready: VecDeque::new(),
            running: 0,
            alarms: BTreeMap::new(),
            last_alarm: 0,
        }
    }

    /// Something about the key has changed: it runs as soon as it can, and its back-off starts over.
    /// Returns whether that is news: not so if it waits for a run already.
    pub(super) fn request(&mut self, key: &K, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(key) else {
            self.entries.insert(key.clone(), Entry { phase: Phase::Ready, attempts: 0 });
            self.ready.push_back((now, key.clone()));
            return true;
        };
        entry.attempts = 0;
        match &mut entry.phase {
            Phase::Ready | Phase::Running { dirty_since: Some(_) } => return false,
            Phase::Running { dirty_since } => *dirty_since = Some(now),
            Phase::Retrying(alarm) => {
                self.alarms.remove(alarm);
                entry.phase = Phase::Ready;
                self.ready.push_back((now, key.clone()));
            }
        }
        true
    }

    /// The next key to run, if one is ready and a slot is left.
    pub(super) fn start(&mut self, now: Instant) -> Option<Start<K>> {
        if self.running >= self.slots {
            return None;
        }
        let (since, key) = self.ready.pop_front()?;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.phase = Phase::Running { dirty_since: None };
        }
        self.running += 1;
        Some(Start { key, waited: now.saturating_duration_since(since) })
    }

    /// A run has ended. Returns the delay after which the key runs again, if it has one.
    pub(super) fn finish(&mut self, key: &K, outcome: Outcome, now: Instant) -> Option<Duration> {
        let entry = self.entries.get_mut(key)?;
        let Phase::Running { dirty_since } = entry.phase else { return None };
        self.running -= 1;
        if let Some(since) = dirty_since {
            entry.phase = Phase::Ready;
            self.ready.push_back((since, key.clone()));
            return None;
        }
        let delay = match outcome {
            Outcome::Done | Outcome::Wait => None,
            Outcome::Retry => {
                entry.attempts = entry.attempts.saturating_add(1);
                Some(self.backoff.delay(entry.attempts - 1, &mut self.random))
            }
            Outcome::RetryAfter(delay) => Some(delay),
        };
        if let Some(delay) = delay {
            self.last_alarm += 1;
            let alarm = (after(now, delay), self.last_alarm);
            self.alarms.insert(alarm, key.clone());
            entry.phase = Phase::Retrying(alarm);
        } else {
            self.entries.remove(key);
        }
        delay
    }

    /// Makes keys ready whose delay is over.
    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(first) = self.alarms.first_entry() {
            let due = first.key().0;
            if due > now {
                break;
            }
            let key = first.remove();
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.phase = Phase::Ready;
                self.ready.push_back((due, key));
            }
        }
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
        self.alarms.len()
    }

    /// When the key at the head of the queue became ready.
    pub(super) fn oldest_ready(&self) -> Option<Instant> {
        self.ready.front().map(|(since, _)| *since)
    }
}

#[cfg(test)]
mod tests;
