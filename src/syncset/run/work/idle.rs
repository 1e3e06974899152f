//! What is kept of a cluster between two passes: its client, so that the next pass needs no new connection, and how far a pass got that
//! had to end early.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::Read;
use super::executor::Client;
use crate::syncset::plan::pass::Progress;

/// How long a client is kept.
const KEPT_FOR: Duration = Duration::from_mins(1);
/// Most clients that are kept.
const MOST: usize = 256;

/// What is kept of a cluster between two passes.
pub(super) struct KeptClient {
    pub(super) client: Client,
    pub(super) unfinished: Unfinished,
}

/// The progress of a pass that has to go on.
#[derive(Default)]
pub(super) struct Unfinished {
    progress: Progress,
    of: Demand,
}

/// The demand for a full pass, and the last one, when a pass began: by these a pass finds out whether it goes on with an earlier one. What
/// another pass has seen does not count.
type Demand = (i64, Option<Timestamp>);

impl Read {
    pub(super) fn demand(&self) -> Demand {
        (self.snapshot.resyncs, self.snapshot.cluster_row.as_ref().and_then(|cluster_row| cluster_row.last_full))
    }
}

impl Unfinished {
    /// The progress of the pass that goes on. Whatever comes of it, nobody goes on from there again.
    pub(super) fn take(&mut self, of: Demand) -> Progress {
        let progress = std::mem::take(&mut self.progress);
        if self.of == of { progress } else { Progress::default() }
    }

    pub(super) fn keep(&mut self, progress: Progress, of: Demand) {
        (self.progress, self.of) = (progress, of);
    }
}

/// Clients of type `T` with their clusters' ids, in the order in which they were put back. Pure: time is passed in.
pub(super) struct IdleClients<T>(VecDeque<(Instant, Uuid, T)>);

impl<T> Default for IdleClients<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> IdleClients<T> {
    /// Keeps a client that is no longer used. Returns those that are to be dropped for it: an older one of the same cluster, and the
    /// longest idle one if there are too many.
    pub(super) fn put(&mut self, cluster: Uuid, client: T, now: Instant) -> Vec<T> {
        let mut dropped: Vec<T> = self.take(cluster).into_iter().collect();
        self.0.push_back((now, cluster, client));
        if self.0.len() > MOST {
            dropped.extend(self.pop_first());
        }
        dropped
    }

    /// The client of a cluster, if one is kept: it is in use from now on.
    pub(super) fn take(&mut self, cluster: Uuid) -> Option<T> {
        let at = self.0.iter().position(|(_, of, _)| *of == cluster)?;
        self.0.remove(at).map(|(_, _, client)| client)
    }

    /// The clients that were idle for long enough, which are to be dropped.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<T> {
        let mut dropped = Vec::new();
        while self.next_expiry().is_some_and(|expiry| expiry <= now) {
            dropped.extend(self.pop_first());
        }
        dropped
    }

    /// When the next one has been idle for long enough.
    fn next_expiry(&self) -> Option<Instant> {
        self.0.front().map(|(since, ..)| *since + KEPT_FOR)
    }

    fn pop_first(&mut self) -> Option<T> {
        self.0.pop_front().map(|(_, _, client)| client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    #[test]
    fn a_client_is_kept_for_a_minute_from_when_it_was_put_back_last() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut idle = IdleClients::default();
        assert_eq!(idle.next_expiry(), None);
        assert!(idle.put(id(1), "one", at(0)).is_empty() && idle.put(id(2), "two", at(10)).is_empty());
        assert_eq!(idle.take(id(1)), Some("one"));
        assert_eq!(idle.take(id(1)), None, "it is in use");
        assert!(idle.put(id(1), "one", at(30)).is_empty());
        assert_eq!(idle.next_expiry(), Some(at(70)));
        assert!(idle.expire(at(69)).is_empty());
        assert_eq!(idle.expire(at(70)), ["two"]);
        assert_eq!(idle.expire(at(200)), ["one"]);
        assert_eq!(idle.0.len(), 0);
    }

    #[test]
    fn at_most_256_are_kept_and_the_longest_idle_goes_first() {
        let now = Instant::now();
        let mut idle = IdleClients::default();
        for number in 0..MOST as u128 {
            assert!(idle.put(id(number), number, now).is_empty());
        }
        assert_eq!(idle.take(id(0)), Some(0));
        assert!(idle.put(id(0), 0, now).is_empty());
        assert_eq!(idle.put(id(9999), 9999, now), [1]);
        assert_eq!(idle.0.len(), MOST);
    }

    #[test]
    fn a_cluster_has_one_client_at_most() {
        let now = Instant::now();
        let mut idle = IdleClients::default();
        idle.put(id(1), "old", now);
        assert_eq!(idle.put(id(1), "new", now), ["old"]);
        assert_eq!((idle.take(id(1)), idle.0.len()), (Some("new"), 0));
    }

    #[test]
    fn only_the_next_pass_of_the_same_demand_goes_on_from_where_one_ended() {
        let (mut unfinished, of) = (Unfinished::default(), (3, Some(Timestamp::UNIX_EPOCH)));
        let progress = Progress::begun();
        for (next, goes_on) in [(of, true), ((4, of.1), false), ((3, None), false)] {
            unfinished.keep(progress.clone(), of);
            assert_eq!(unfinished.take(next) == progress, goes_on, "{next:?}");
            assert_eq!(unfinished.take(of), Progress::default(), "it is taken once");
        }
    }
}
