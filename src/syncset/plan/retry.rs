//! When a cluster is looked at again.

use std::time::Duration;

use jiff::Timestamp;

use super::rows::ClusterRow;
use crate::actor::Backoff;

/// First wait after a failure, and the longest.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(15));
/// First wait for an object that was deleted to be gone, and the longest.
const ENDING: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// First wait for a cluster that does not answer, and the longest, unless so many are silent that they have to take turns.
const PROBE: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(10));
/// Between two looks at a kubeconfig that is refused: a replica that was started since may allow what it needs. It costs no connection.
const REFUSED: Duration = Duration::from_mins(1);
/// By how much a wait for a cluster that does not answer differs at most, so that not all are asked at once.
const PROBE_SPREAD: f64 = 0.1;
/// By how much longer than the interval the time to the next full pass is at most.
const FULL_SPREAD: f64 = 0.1;
/// First wait for an API server that asks to wait, and the longest, also if it asks for more.
const TOLD: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// First wait for the dispatcher to check a deletion, and the longest.
const UNCHECKED: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// A cluster of which nothing is known to be due is looked at again after that time at the latest.
const FAR: Duration = Duration::from_hours(24);

/// How a claimed cluster was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftAs {
    /// The pass came to its end.
    Complete {
        was_full: bool,
        /// What is left to be done, most urgent first.
        left: Option<Left>,
    },
    /// The pass has returned its slot before its end.
    Interrupted,
    /// Nothing was asked, since this replica refuses the kubeconfig.
    Refused,
    /// The cluster did not answer, or not to these credentials.
    Silent {
        /// For how long it asked to be left alone.
        told: Duration,
        /// After how long its turn comes among those that do not answer.
        turn: Duration,
    },
    /// Nothing was to be done before this time; none if only a change matters.
    Nothing { until: Option<Timestamp> },
}

impl LeftAs {
    /// Whether somebody has to go on where it was left, so that what was urgent stays so.
    pub fn goes_on(&self) -> bool {
        match self {
            Self::Interrupted => true,
            Self::Complete { left, .. } => matches!(left, Some(Left::Unchecked | Left::Throttled(_))),
            Self::Refused | Self::Silent { .. } | Self::Nothing { .. } => false,
        }
    }
}

/// What a pass has left to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The API server asked to wait so long. If it does so again and again, the waits become longer.
    Throttled(Duration),
    /// Deletions that the dispatcher has not checked yet.
    Unchecked,
    /// Something failed that may succeed later.
    Failing,
    /// Something was deleted that is still there.
    Ending,
    /// The same as before, until this time: the pass was no attempt at it.
    Later(Timestamp),
}

/// When a cluster is looked at again, and what is stored of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    /// From when it may be claimed again, if nobody asks for it before.
    pub ready_at: Timestamp,
    /// The attempts that the work queue keeps (`done`); 0 after success. A request resets them.
    pub attempts: i32,
    pub cluster_row: ClusterRow,
}

/// `cluster_row` is what is known of the cluster now: its identity and kubeconfig as found out in the pass. `attempts` are those with which
/// it was claimed, this one included. `random`, from 0 up to 1, spreads clusters that would be looked at together.
pub fn next(
    left: &LeftAs,
    cluster_row: ClusterRow,
    attempts: i32,
    interval: Duration,
    now: Timestamp,
    random: f64,
) -> Next {
    match left {
        LeftAs::Complete { was_full, left } => {
            let throttled = cluster_row.throttled();
            let next_full = match cluster_row.next_full {
                Some(next_full) if !was_full => next_full,
                // A full pass is due now, and this was none.
                None if !was_full => now,
                _ => after(now, interval.mul_f64(1.0 + FULL_SPREAD * random)),
            };
            let cluster_row = ClusterRow {
                reachable: Some(true),
                last_contact: Some(now),
                last_full: if *was_full { Some(now) } else { cluster_row.last_full },
                next_full: Some(next_full),
                attempts: 0,
                retry_at: None,
                left_at: None,
                ..cluster_row
            };
            let (wait, attempts) = match left {
                Some(Left::Later(at)) => {
                    let cluster_row = ClusterRow { left_at: Some(*at), ..cluster_row };
                    return Next { ready_at: (*at).min(next_full), attempts, cluster_row };
                }
                None => return Next { ready_at: next_full, attempts: 0, cluster_row },
                // Also if a full pass is due, which may be what sent too many requests. The time is stored, so that no change shortens the wait.
                Some(Left::Throttled(told)) => {
                    let tries = throttled.saturating_add(1);
                    let wait = told_to_wait(*told, tries);
                    let ready_at = after(now, wait);
                    let (retry_at, left_at) = (Some(ready_at), Some(ready_at));
                    let cluster_row = ClusterRow { attempts: tries, retry_at, left_at, ..cluster_row };
                    return Next { ready_at, attempts, cluster_row };
                }
                Some(Left::Unchecked) => (doubled(UNCHECKED, attempts), attempts),
                Some(Left::Failing) => (doubled(RETRY, attempts), attempts),
                Some(Left::Ending) => (doubled(ENDING, attempts), attempts),
            };
            let left_at = after(now, wait);
            Next {
                ready_at: left_at.min(next_full),
                attempts,
                cluster_row: ClusterRow { left_at: Some(left_at), ..cluster_row },
            }
        }
        LeftAs::Interrupted => {
            let cluster_row = ClusterRow {
                reachable: Some(true),
                last_contact: Some(now),
                attempts: 0,
                retry_at: None,
                left_at: Some(now),
                ..cluster_row
            };
            Next { ready_at: now, attempts: 0, cluster_row }
        }
        LeftAs::Refused => {
            let wait = REFUSED.mul_f64(1.0 + PROBE_SPREAD * (2.0 * random - 1.0));
            // A second refusal changes nothing that is stored.
            let next_full = Some(cluster_row.next_full.unwrap_or(now));
            let cluster_row =
                ClusterRow { reachable: Some(false), attempts: 0, retry_at: None, next_full, ..cluster_row };
            Next { ready_at: after(now, wait), attempts: 0, cluster_row }
        }
        LeftAs::Silent { told, turn } => {
            // If it answered before, its attempts count how often it has asked to wait.
            let tries = if cluster_row.reachable == Some(true) { 1 } else { cluster_row.attempts.saturating_add(1) };
            let spread = 1.0 + PROBE_SPREAD * (2.0 * random - 1.0);
            let wait = doubled(PROBE, i32::try_from(tries).unwrap_or(i32::MAX)).mul_f64(spread);
            let wait = wait.max((*told).min(TOLD.cap)).max(*turn);
            let ready_at = after(now, wait);
            // A full pass that was asked for stays due, but no longer makes the cluster be asked at once.
            let next_full = Some(cluster_row.next_full.unwrap_or(now));
            let cluster_row = ClusterRow {
                reachable: Some(false),
                attempts: tries,
                retry_at: Some(ready_at),
                next_full,
                ..cluster_row
            };
            Next { ready_at, attempts: 0, cluster_row }
        }
        LeftAs::Nothing { until } => {
            Next { ready_at: until.unwrap_or_else(|| after(now, FAR)), attempts: 0, cluster_row }
        }
    }
}

/// How long a cluster is left alone that has asked for it so many times in a row.
fn told_to_wait(told: Duration, tries: u32) -> Duration {
    told.min(TOLD.cap).max(doubled(TOLD, i32::try_from(tries).unwrap_or(i32::MAX)))
}

/// The wait after so many attempts.
fn doubled(backoff: Backoff, attempts: i32) -> Duration {
    backoff.longest(u32::try_from(attempts.saturating_sub(1)).unwrap_or(0))
}

pub fn after(now: Timestamp, wait: Duration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_hours(2);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    fn cluster_row() -> ClusterRow {
        ClusterRow {
            identity: Some("uid".to_owned()),
            home: Some("first".to_owned()),
            kubeconfig_generation: 3,
            asked_generation: 3,
            reachable: None,
            last_contact: Some(at(-50)),
            last_full: Some(at(-200)),
            next_full: Some(at(7000)),
            attempts: 4,
            retry_at: Some(at(-1)),
            left_at: None,
        }
    }

    fn of(left_as: &LeftAs, attempts: i32, random: f64) -> Next {
        next(left_as, cluster_row(), attempts, INTERVAL, at(0), random)
    }

    #[test]
    fn a_completed_pass_waits_for_the_full_one_and_forgets_that_the_cluster_was_silent() {
        let next = of(&LeftAs::Complete { was_full: false, left: None }, 3, 0.9);
        let expected = ClusterRow {
            reachable: Some(true),
            last_contact: Some(at(0)),
            attempts: 0,
            retry_at: None,
            ..cluster_row()
        };
        assert_eq!(next, Next { ready_at: at(7000), attempts: 0, cluster_row: expected });
    }

    #[test]
    fn the_next_full_pass_is_up_to_a_tenth_later_than_the_interval() {
        for (random, second) in [(0.0, 7200), (0.5, 7560), (0.999_999, 7919)] {
            let next = of(&LeftAs::Complete { was_full: true, left: None }, 1, random);
            assert_eq!((next.ready_at.as_second(), next.cluster_row.last_full), (at(second).as_second(), Some(at(0))));
            assert_eq!(next.cluster_row.next_full, Some(next.ready_at));
        }
    }

    #[test]
    fn failures_are_retried_after_a_second_doubling_to_a_quarter_of_an_hour() {
        let left = LeftAs::Complete { was_full: false, left: Some(Left::Failing) };
        let waits: Vec<_> = [1, 2, 3, 10, 11, 60].map(|attempts| of(&left, attempts, 0.5).ready_at).into();
        assert_eq!(waits, [at(1), at(2), at(4), at(512), at(900), at(900)]);
        assert_eq!(of(&left, 7, 0.5).attempts, 7, "the queue counts on, until a request resets it");
        let soon = ClusterRow { next_full: Some(at(3)), ..cluster_row() };
        assert_eq!(next(&left, soon, 9, INTERVAL, at(0), 0.5).ready_at, at(3), "the full pass comes first");
    }

    #[test]
    fn what_is_left_to_its_time_is_tried_then_and_no_attempt_is_counted_meanwhile() {
        let failed = of(&LeftAs::Complete { was_full: false, left: Some(Left::Failing) }, 3, 0.5);
        assert_eq!((failed.ready_at, failed.cluster_row.left_at), (at(4), Some(at(4))));
        let later = LeftAs::Complete { was_full: false, left: Some(Left::Later(at(4))) };
        let read = next(&later, failed.cluster_row, 3, INTERVAL, at(2), 0.5);
        assert_eq!((read.ready_at, read.attempts, read.cluster_row.left_at), (at(4), 3, Some(at(4))));
        let done = next(&LeftAs::Complete { was_full: false, left: None }, read.cluster_row, 4, INTERVAL, at(4), 0.5);
        assert_eq!((done.attempts, done.cluster_row.left_at), (0, None));
    }

    #[test]
    fn what_is_deleted_and_not_gone_is_looked_at_each_minute_in_the_end() {
        let left = LeftAs::Complete { was_full: false, left: Some(Left::Ending) };
        let waits: Vec<_> = [1, 2, 6, 7, 60].map(|attempts| of(&left, attempts, 0.5).ready_at).into();
        assert_eq!(waits, [at(1), at(2), at(32), at(60), at(60)]);
    }

    fn told(seconds: u64) -> LeftAs {
        LeftAs::Complete { was_full: false, left: Some(Left::Throttled(Duration::from_secs(seconds))) }
    }

    #[test]
    fn an_api_server_that_asks_to_wait_is_obeyed_for_a_minute_at_most() {
        let answered = |next_full| ClusterRow { reachable: Some(true), retry_at: None, next_full, ..cluster_row() };
        let wait = |seconds, next_full| next(&told(seconds), answered(next_full), 2, INTERVAL, at(0), 0.5);
        assert_eq!(wait(7, Some(at(7000))).ready_at, at(7));
        assert_eq!(wait(3600, Some(at(7000))).ready_at, at(60));
        // Also if it was the full pass that had to end: that stays due.
        for next_full in [None, Some(at(-5)), Some(at(3))] {
            let next = wait(7, next_full);
            assert_eq!((next.ready_at, next.attempts), (at(7), 2));
            assert_eq!(next.cluster_row.next_full, next_full.or(Some(at(0))));
            assert_eq!(
                (next.cluster_row.retry_at, next.cluster_row.attempts),
                (Some(at(7)), 1),
                "no change makes it shorter"
            );
        }
    }

    #[test]
    fn one_that_asks_again_and_again_is_left_alone_for_longer_until_a_pass_ends() {
        let mut cluster_row = ClusterRow { reachable: Some(true), retry_at: None, ..cluster_row() };
        let mut waits = Vec::new();
        for seconds in [0, 0, 0, 9, 0, 0, 0, 0] {
            // However often a change has reset what the queue counts.
            let next = next(&told(seconds), cluster_row, 1, INTERVAL, at(0), 0.5);
            waits.push(next.ready_at);
            cluster_row = next.cluster_row;
        }
        assert_eq!(waits, [1, 2, 4, 9, 16, 32, 60, 60].map(at));
        let ended =
            next(&LeftAs::Complete { was_full: false, left: None }, cluster_row.clone(), 1, INTERVAL, at(0), 0.5);
        assert_eq!(next(&told(0), ended.cluster_row, 1, INTERVAL, at(0), 0.5).ready_at, at(1));
        // Silence is not more of the same.
        let silence = LeftAs::Silent { told: Duration::ZERO, turn: Duration::ZERO };
        let silent = next(&silence, cluster_row, 1, INTERVAL, at(0), 0.5);
        assert_eq!((silent.ready_at, silent.cluster_row.attempts), (at(5), 1));
        assert_eq!(next(&told(0), silent.cluster_row, 1, INTERVAL, at(0), 0.5).ready_at, at(1));
    }

    #[test]
    fn a_silent_cluster_that_asks_to_wait_is_asked_no_earlier() {
        for (seconds, tries, expected) in [(30, 0, 30), (3, 6, 10), (3600, 0, 60)] {
            let silent = LeftAs::Silent { told: Duration::from_secs(seconds), turn: Duration::ZERO };
            let before = ClusterRow { reachable: Some(false), attempts: tries, ..cluster_row() };
            let next = next(&silent, before, 1, INTERVAL, at(0), 0.5);
            assert_eq!((next.ready_at, next.cluster_row.retry_at), (at(expected), Some(at(expected))));
        }
    }

    #[test]
    fn deletions_that_were_not_checked_are_looked_at_a_second_later_and_each_minute_in_the_end() {
        let left = LeftAs::Complete { was_full: false, left: Some(Left::Unchecked) };
        for (attempts, second) in [(1, 1), (2, 2), (9, 60)] {
            let next = of(&left, attempts, 0.5);
            assert_eq!((next.ready_at, next.attempts), (at(second), attempts));
        }
    }

    #[test]
    fn an_interrupted_pass_goes_on_at_once() {
        let next = of(&LeftAs::Interrupted, 5, 0.5);
        assert_eq!((next.ready_at, next.attempts, next.cluster_row.next_full), (at(0), 0, Some(at(7000))));
    }

    #[test]
    fn a_silent_cluster_is_asked_after_5_and_then_each_10_seconds_with_a_tenth_of_spread_or_when_its_turn_comes() {
        let silent = LeftAs::Silent { told: Duration::ZERO, turn: Duration::ZERO };
        let wait = |tries, random| {
            let next = next(&silent, ClusterRow { attempts: tries, ..cluster_row() }, 1, INTERVAL, at(0), random);
            assert_eq!((next.cluster_row.reachable, next.cluster_row.attempts), (Some(false), tries + 1));
            assert_eq!(next.cluster_row.retry_at, Some(next.ready_at));
            next.ready_at.duration_since(at(0)).as_secs_f64()
        };
        for (tries, seconds) in [(0, 5.0), (1, 10.0), (2, 10.0), (40, 10.0)] {
            assert!((wait(tries, 0.5) - seconds).abs() < 0.001, "{tries}");
            assert!((wait(tries, 0.0) - 0.9 * seconds).abs() < 0.001, "{tries}");
            assert!((wait(tries, 1.0) - 1.1 * seconds).abs() < 0.001, "{tries}");
        }
        let turn = |seconds| {
            let ended = LeftAs::Silent { told: Duration::ZERO, turn: Duration::from_secs(seconds) };
            of(&ended, 1, 0.5).ready_at
        };
        assert_eq!([turn(3), turn(47)], [at(10), at(47)], "many that are silent take turns");
    }

    #[test]
    fn a_refused_kubeconfig_is_read_again_each_minute_and_a_resync_that_failed_is_not_one_for_ever() {
        let resync = ClusterRow { next_full: None, ..cluster_row() };
        let refused = next(&LeftAs::Refused, resync, 1, INTERVAL, at(0), 0.5);
        assert_eq!(
            (refused.ready_at, refused.cluster_row.retry_at, refused.cluster_row.next_full),
            (at(60), None, Some(at(0)))
        );
        let again = next(&LeftAs::Refused, refused.cluster_row.clone(), 1, INTERVAL, at(60), 0.5);
        assert_eq!((again.ready_at, again.cluster_row), (at(120), refused.cluster_row), "nothing to store");
    }

    #[test]
    fn a_cluster_with_nothing_to_do_keeps_what_is_stored() {
        let until = LeftAs::Nothing { until: Some(at(33)) };
        assert_eq!(of(&until, 1, 0.5), Next { ready_at: at(33), attempts: 0, cluster_row: cluster_row() });
        assert_eq!(of(&LeftAs::Nothing { until: None }, 1, 0.5).ready_at, at(86_400));
    }
}
