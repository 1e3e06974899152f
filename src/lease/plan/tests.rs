//! Laws of the plan: single decisions, and whole lives against a hub that a seed makes up.

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::credentials;
use super::*;

const FIRST: Offered = Offered::Given(credentials::Fingerprint::of_test(1));
const SECOND: Offered = Offered::Given(credentials::Fingerprint::of_test(2));

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn terms(duration: u64, interval: u64) -> Terms {
    Terms { start_at: Instant::now(), duration: Duration::from_secs(duration), interval: millis(interval) }
}

fn ready(offered: Offered) -> Observed {
    Observed { offered, ready: true }
}

/// A plan that has verified the first credentials and renewed once, just now.
fn renewing(terms: Terms) -> (Plan, Instant) {
    let now = Instant::now();
    let mut plan = Plan::new(terms);
    assert!(matches!(plan.next(ready(FIRST), now).actions[..], [Action::Verify { .. }]));
    assert!(plan.verified(Ok(()), now));
    assert!(matches!(plan.next(ready(FIRST), now).actions[..], [Action::Renew { take: true, .. }]));
    plan.renewed(now, Ok(()), now, 0.5);
    (plan, now)
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_before_the_startup_delay_or_without_a_secret() {
    let now = Instant::now();
    let late = Terms { start_at: now + millis(10_000), ..terms(60, 20_000) };
    let mut plan = Plan::new(late);
    assert_eq!(plan.next(ready(FIRST), now), Next { actions: vec![], until: Some(late.start_at) });
    for offered in [Offered::Unknown, Offered::Missing, Offered::Faulty] {
        assert_eq!(plan.next(ready(offered), late.start_at), Next::default(), "{offered:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_due_an_interval_after_the_last_was_sent() {
    let (mut plan, sent) = renewing(terms(60, 20_000));
    let due = sent + millis(20_000);
    assert_eq!(plan.next(ready(FIRST), sent), Next { actions: vec![], until: Some(due) });
    assert!(matches!(plan.next(ready(FIRST), due).actions[..], [Action::Renew { take: false, .. }]));
    assert_eq!(plan.next(ready(FIRST), due), Next::default(), "one at a time");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_an_outage_is_a_first_one() {
    let (mut plan, sent) = renewing(terms(60, 20_000));
    let mut now = sent + millis(20_000);
    for _ in 0..30 {
        assert!(matches!(plan.next(ready(FIRST), now).actions[..], [Action::Renew { .. }]));
        plan.renewed(now, Err(Failure::Hub), now, 0.5);
        now += millis(500);
    }
    for longest in [100, 200, 400] {
        assert!(matches!(plan.next(ready(FIRST), now).actions[..], [Action::Renew { .. }]));
        plan.renewed(now, Err(Failure::Refused), now, 0.5);
        let again = plan.next(ready(FIRST), now).until.expect("it is tried again");
        assert!(again <= now + millis(longest), "{:?} after it was refused", again - now);
        now = again;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_sent_for_want_of_a_claim_says_nothing_and_is_not_sent_again_and_again() {
    let (mut plan, sent) = renewing(terms(60, 20_000));
    let due = sent + millis(20_000);
    // New credentials wait for their turn.
    assert!(matches!(plan.next(ready(SECOND), due).actions[..], [Action::Verify { .. }, Action::Renew { .. }]));
    assert!(!plan.verified(Err(Failure::Unclaimed), due));
    plan.renewed(due, Err(Failure::Unclaimed), due, 0.5);
    assert_eq!(plan.next(ready(SECOND), due), Next { actions: vec![], until: Some(due + UNCLAIMED_PAUSE) });
    let again = plan.next(ready(SECOND), due + UNCLAIMED_PAUSE);
    let first = plan.terms.deadline(0);
    let expected = [Action::Verify { deadline: first, at_once: false }, Action::Renew { deadline: first, take: false }];
    assert_eq!(again.actions, expected, "as if nothing had happened");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_was_left_to_itself_counts_when_it_goes_through_and_never_takes_back_a_later_one() {
    let (mut plan, sent) = renewing(terms(60, 20_000));
    plan.left_went_through(sent + millis(20_000));
    assert_eq!(plan.acknowledged(), Some(sent + millis(20_000)));
    plan.left_went_through(sent + millis(5_000));
    assert_eq!(plan.acknowledged(), Some(sent + millis(20_000)));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_not_ready_cancels_and_one_that_is_again_renews_at_once() {
    let (mut plan, sent) = renewing(terms(60, 20_000));
    let due = sent + millis(20_000);
    plan.next(ready(FIRST), due);
    let not_ready = Observed { offered: FIRST, ready: false };
    assert_eq!(plan.next(not_ready, due).actions, [Action::CancelRenewal]);
    assert!(matches!(plan.next(ready(FIRST), due).actions[..], [Action::Renew { .. }]));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_flaps_makes_no_storm() {
    let (mut plan, sent) = renewing(terms(60, 20_000));
    let not_ready = Observed { offered: FIRST, ready: false };
    for _ in 0..10 {
        assert_eq!(plan.next(not_ready, sent).actions, []);
        assert_eq!(plan.next(ready(FIRST), sent), Next { actions: vec![], until: Some(sent + LEAST_SPACING) });
    }
}

#[tokio::test(start_paused = true)]
async fn new_credentials_take_over_with_the_renewal_that_is_due() {
    let (mut plan, sent) = renewing(terms(60, 20_000));
    assert!(matches!(plan.next(ready(SECOND), sent).actions[..], [Action::Verify { at_once: false, .. }]));
    let due = sent + millis(20_000);
    assert!(
        matches!(plan.next(ready(SECOND), due).actions[..], [Action::Renew { .. }]),
        "the old ones go on meanwhile"
    );
    assert!(plan.verified(Ok(()), due));
    let actions = plan.next(ready(SECOND), due).actions;
    assert!(matches!(actions[..], [Action::LeaveRenewal, Action::Renew { .. }]), "{actions:?}");
}

#[tokio::test(start_paused = true)]
async fn new_credentials_that_take_over_in_between_don_t_renew_early() {
    let (mut plan, sent) = renewing(terms(60, 20_000));
    plan.next(ready(SECOND), sent);
    assert!(plan.verified(Ok(()), sent));
    assert_eq!(plan.next(ready(SECOND), sent), Next { actions: vec![], until: Some(sent + millis(20_000)) });
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_are_tried_again_with_back_off_and_at_once_when_the_old_ones_are_refused() {
    let (mut plan, sent) = renewing(terms(60, 20_000));
    plan.next(ready(SECOND), sent);
    assert!(!plan.verified(Err(Failure::Refused), sent));
    let next = plan.next(ready(SECOND), sent);
    assert_eq!(next.actions, []);
    assert!(next.until.is_some_and(|until| until > sent && until <= sent + VERIFICATION_BACKOFF.first));
    plan.candidate.as_mut().expect("still there").next = sent + millis(30_000);
    let due = sent + millis(20_000);
    plan.next(ready(SECOND), due);
    plan.renewed(due, Err(Failure::Unauthorized), due, 0.5);
    let actions = plan.next(ready(SECOND), due).actions;
    assert!(matches!(actions[..], [Action::Verify { at_once: true, .. }, Action::Renew { .. }]), "{actions:?}");
    assert!(plan.verified(Ok(()), due));
    let actions = plan.next(ready(SECOND), due).actions;
    assert!(matches!(actions[..], [Action::LeaveRenewal, Action::Renew { .. }]), "{actions:?}");
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_can_not_be_used_changes_nothing_and_one_that_is_gone_ends_it() {
    let (mut plan, sent) = renewing(terms(60, 20_000));
    let due = sent + millis(20_000);
    assert_eq!(plan.next(ready(Offered::Faulty), sent).until, Some(due));
    assert_eq!(plan.next(ready(Offered::Missing), due), Next::default());
    let actions = plan.next(ready(FIRST), due).actions;
    assert!(matches!(actions[..], [Action::Verify { .. }]), "back again, they are verified: {actions:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_has_run_out_is_taken_and_not_only_renewed() {
    let (mut plan, sent) = renewing(terms(60, 20_000));
    let late = sent + Duration::from_mins(1);
    assert!(matches!(plan.next(ready(FIRST), late).actions[..], [Action::Renew { take: true, .. }]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn pauses_and_deadlines_keep_their_bounds(duration in 1_u64..86_400, part in 0.001_f64..0.999, chance in 0.0_f64..=1.0, failures: u32) {
        let duration = Duration::from_secs(duration);
        let terms = Terms { start_at: Instant::now(), duration, interval: duration.mul_f64(part) };
        let pause = terms.pause(chance);
        let room = PATIENCE.min(duration / 2);
        prop_assert!(pause + room <= duration, "{pause:?} leaves no room for an answer");
        prop_assert!(pause <= terms.interval.mul_f64(1.1) && (pause >= terms.interval.mul_f64(0.9) || pause + room == duration));
        let deadline = terms.deadline(failures);
        prop_assert!(!deadline.is_zero() && deadline <= LONGEST_DEADLINE);
        prop_assert!(terms.deadline(0) <= duration / 2, "a lost request costs the lease");
        prop_assert!(duration < Duration::from_secs(2) || terms.deadline(0) >= PATIENCE);
    }

    /// A hub that answers within a second, a pod that is ready, and credentials that are rotated: whichever of the two
    /// work, renewals arrive no further apart than the duration.
    #[test]
    fn no_two_renewals_arrive_further_apart_than_the_duration(seed: u64, seconds in 3_u64..120, part in 0.1_f64..0.95) {
        let duration = Duration::from_secs(seconds);
        let begun = Instant::now();
        let terms = Terms { start_at: begun, duration, interval: duration.mul_f64(part) };
        let mut world = Life::new(terms, begun, seed);
        let arrivals = world.live(60);
        prop_assert!(arrivals.len() >= 5, "{} renewals", arrivals.len());
        for pair in arrivals.windows(2) {
            let gap = pair[1].saturating_duration_since(pair[0]);
            prop_assert!(gap <= duration, "{gap:?} of {duration:?}");
        }
    }
}

/// A lease's life against a hub that answers within a second.
struct Life {
    plan: Plan,
    random: StdRng,
    now: Instant,
    /// When what is under way was sent, arrives, and is answered.
    renewal: Option<(Instant, Instant, Instant)>,
    verification: Option<Instant>,
    offered: Offered,
}

impl Life {
    fn new(terms: Terms, now: Instant, seed: u64) -> Self {
        let plan = Plan::new(terms);
        Self { plan, random: StdRng::seed_from_u64(seed), now, renewal: None, verification: None, offered: FIRST }
    }

    fn within_a_second(&mut self) -> Duration {
        millis(self.random.random_range(1..1000))
    }

    /// Lives for so many events and tells when renewals arrived at the hub.
    fn live(&mut self, events: usize) -> Vec<Instant> {
        let mut arrivals = Vec::new();
        for _ in 0..events {
            let next = self.plan.next(ready(self.offered), self.now);
            for action in next.actions {
                match action {
                    Action::CancelRenewal => self.renewal = None,
                    // What was sent arrives.
                    Action::LeaveRenewal => arrivals.extend(self.renewal.take().map(|(_, arrived, _)| arrived)),
                    Action::CancelVerification => self.verification = None,
                    Action::Verify { .. } => self.verification = Some(self.now + self.within_a_second()),
                    Action::Renew { .. } => {
                        assert!(self.renewal.is_none(), "one at a time");
                        let arrives = self.now + self.within_a_second();
                        self.renewal = Some((self.now, arrives, arrives));
                    }
                }
            }
            let renewed = self.renewal.map(|(_, _, answered)| answered);
            let soonest = [renewed, self.verification, next.until].into_iter().flatten().min();
            self.now = soonest.expect("something is always to come").max(self.now);
            if let Some((sent, arrived, answered)) = self.renewal.filter(|(_, _, answered)| *answered <= self.now) {
                arrivals.push(arrived);
                self.renewal = None;
                let chance = self.random.random();
                self.plan.renewed(sent, Ok(()), answered, chance);
            } else if self.verification.is_some_and(|answered| answered <= self.now) {
                self.verification = None;
                let outcome = if self.random.random_bool(0.5) { Ok(()) } else { Err(Failure::Refused) };
                self.plan.verified(if self.plan.current().is_none() { Ok(()) } else { outcome }, self.now);
            }
            if self.plan.current().is_some() && self.random.random_bool(0.1) {
                self.offered = if self.offered == FIRST { SECOND } else { FIRST };
            }
        }
        arrivals.sort();
        arrivals
    }
}
