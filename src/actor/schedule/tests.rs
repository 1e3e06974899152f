//! Laws of the schedule.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn schedule(slots: usize) -> Schedule<&'static str> {
    let backoff = Backoff { first: SECOND, cap: SECOND * 4, jitter: 0.0 };
    Schedule::new(slots, backoff, 7)
}

fn started(schedule: &mut Schedule<&'static str>, now: Instant) -> Vec<&'static str> {
    std::iter::from_fn(|| schedule.start(now).map(|start| start.key)).collect()
}

#[test]
fn keys_start_in_the_order_of_their_first_request_while_slots_last() {
    let now = Instant::now();
    let mut schedule = schedule(2);
    for key in ["a", "b", "a", "c"] {
        schedule.request(&key, now);
    }
    assert_eq!(started(&mut schedule, now), ["a", "b"]);
    assert_eq!((schedule.ready(), schedule.running()), (1, 2));
    assert_eq!(schedule.finish(&"b", Outcome::Done, now), None);
    assert_eq!(schedule.start(now + SECOND), Some(Start { key: "c", waited: SECOND }));
}

#[test]
fn a_request_during_a_run_is_held_and_runs_at_once_after_it() {
    let now = Instant::now();
    let mut schedule = schedule(2);
    schedule.request(&"a", now);
    assert_eq!(started(&mut schedule, now), ["a"]);
    assert!(schedule.request(&"a", now + SECOND));
    assert!(!schedule.request(&"a", now + SECOND * 2), "two requests during a run are one more run");
    assert_eq!(schedule.start(now + SECOND * 2), None, "a key ran twice at once");
    assert_eq!(schedule.finish(&"a", Outcome::Retry, now + SECOND * 3), None, "the request waits for the back-off");
    assert_eq!(schedule.start(now + SECOND * 3), Some(Start { key: "a", waited: SECOND * 2 }));
}

#[test]
fn retries_back_off_and_a_request_resets_them() {
    let mut now = Instant::now();
    let mut schedule = schedule(1);
    schedule.request(&"a", now);
    for delay in [1, 2, 4, 4] {
        assert_eq!(started(&mut schedule, now), ["a"]);
        let delay = SECOND * delay;
        assert_eq!(schedule.finish(&"a", Outcome::Retry, now), Some(delay));
        assert_eq!(schedule.next_alarm(), Some(now + delay));
        schedule.advance(now + delay - Duration::from_nanos(1));
        assert_eq!((schedule.ready(), schedule.retrying()), (0, 1));
        now += delay;
        schedule.advance(now);
        assert_eq!((schedule.ready(), schedule.retrying()), (1, 0));
    }
    assert_eq!(started(&mut schedule, now), ["a"]);
    schedule.finish(&"a", Outcome::Retry, now);
    assert!(schedule.request(&"a", now));
    assert_eq!((schedule.retrying(), schedule.next_alarm()), (0, None), "the alarm outlived the delay");
    assert_eq!(started(&mut schedule, now), ["a"]);
    assert_eq!(schedule.finish(&"a", Outcome::Retry, now), Some(SECOND));
}

#[test]
fn a_delay_that_was_asked_for_does_not_count_as_an_attempt() {
    let now = Instant::now();
    let mut schedule = schedule(1);
    schedule.request(&"a", now);
    started(&mut schedule, now);
    assert_eq!(schedule.finish(&"a", Outcome::RetryAfter(SECOND * 9), now), Some(SECOND * 9));
    schedule.advance(now + SECOND * 9);
    assert_eq!(started(&mut schedule, now + SECOND * 9), ["a"]);
    assert_eq!(schedule.finish(&"a", Outcome::Retry, now + SECOND * 9), Some(SECOND));
}

/// One step of the outside world; indices are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
enum Step {
    Request(u16),
    Finish(usize, u8),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u16..200).prop_map(Step::Request),
        3 => (any::<usize>(), any::<u8>()).prop_map(|(index, outcome)| Step::Finish(index, outcome)),
        1 => (0_u64..3_000).prop_map(Step::Pass),
    ]
}

/// Plays steps against a schedule, and checks the laws after each.
fn play(steps: impl IntoIterator<Item = Step>, slots: usize) {
    let backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1));
    let mut schedule = Schedule::new(slots, backoff, 11);
    let mut now = Instant::now();
    // Keys requested and not yet started since; keys running.
    let mut requested: HashSet<u16> = HashSet::new();
    let mut running: Vec<u16> = Vec::new();
    let mut retrying: HashSet<u16> = HashSet::new();
    for step in steps {
        match step {
            Step::Request(key) => {
                schedule.request(&key, now);
                requested.insert(key);
                retrying.remove(&key);
            }
            Step::Finish(index, outcome) if !running.is_empty() => {
                let key = running.swap_remove(index % running.len());
                let outcome = match outcome % 4 {
                    0 => Outcome::Retry,
                    1 => Outcome::RetryAfter(Duration::from_millis(50)),
                    2 => Outcome::Wait,
                    _ => Outcome::Done,
                };
                if schedule.finish(&key, outcome, now).is_some() {
                    assert!(!requested.contains(&key), "the request for {key} waits for a delay");
                    assert!(retrying.insert(key));
                }
            }
            Step::Finish(..) => {}
            Step::Pass(milliseconds) => now += Duration::from_millis(milliseconds),
        }
        schedule.advance(now);
        while let Some(Start { key, .. }) = schedule.start(now) {
            assert!(!running.contains(&key), "{key} runs twice at once");
            assert!(requested.remove(&key) | retrying.remove(&key), "{key} started for nothing");
            running.push(key);
        }
        assert!(running.len() <= slots);
        assert_eq!(schedule.running(), running.len());
        let known = schedule.ready() + schedule.running() + schedule.retrying();
        assert_eq!(schedule.entries.len(), known, "a key that waits for nothing is kept");
    }
    // With nothing in the way, all that was asked for comes to run.
    while !(requested.is_empty() && running.is_empty() && retrying.is_empty()) {
        for key in running.drain(..) {
            schedule.finish(&key, Outcome::Done, now);
        }
        now += Duration::from_secs(1);
        schedule.advance(now);
        while let Some(Start { key, .. }) = schedule.start(now) {
            assert!(requested.remove(&key) | retrying.remove(&key));
            running.push(key);
        }
        assert!(!running.is_empty() || requested.is_empty() && retrying.is_empty(), "lost: {requested:?} {retrying:?}");
    }
    assert_eq!((schedule.entries.len(), schedule.alarms.len()), (0, 0), "something is kept for ever");
}

proptest! {
    #[test]
    fn no_key_runs_twice_at_once_and_no_request_is_lost(
        steps in proptest::collection::vec(step(), 0..400),
        slots in 1_usize..20,
    ) {
        play(steps, slots);
    }
}
