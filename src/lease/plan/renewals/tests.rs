//! Laws of the plan: single decisions, and whole lifetimes against a hub that a seed generates.

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const FIRST: Secret = Secret::Valid(Fingerprint([1; 32]));
const SECOND: Secret = Secret::Valid(Fingerprint([2; 32]));

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn timing(duration: u64, interval: u64) -> Timing {
    Timing { start_at: Instant::now(), duration: Duration::from_secs(duration), interval: millis(interval) }
}

/// A plan with a renewer that sends nothing: it begins each action and remembers with which credentials.
struct Played {
    plan: RenewalPlan,
    current: Option<Fingerprint>,
    renewing: Option<Fingerprint>,
    verifying: Option<Fingerprint>,
}

impl Played {
    fn new(timing: Timing) -> Self {
        Self { plan: RenewalPlan::new(timing), current: None, renewing: None, verifying: None }
    }

    fn next_if(&mut self, ready: bool, secret: Secret, now: Instant) -> Next {
        let Self { current, renewing, verifying, .. } = *self;
        let next = self.plan.next(Observed { secret, ready, current, renewing, verifying }, now);
        for action in &next.actions {
            match action {
                Action::DropCredentials => self.current = None,
                Action::CancelRenewal | Action::DetachRenewal => {
                    assert!(self.renewing.take().is_some(), "no renewal to cancel or detach");
                }
                Action::CancelVerification => assert!(self.verifying.take().is_some(), "no verification to cancel"),
                Action::Verify { .. } => {
                    let Secret::Valid(credentials) = secret else { panic!("nothing to verify in {secret:?}") };
                    assert_eq!(self.verifying.replace(credentials), None, "one verification at a time");
                }
                Action::Renew { .. } => {
                    assert!(self.current.is_some(), "no credentials to renew with");
                    assert_eq!(self.renewing, None, "one renewal at a time");
                    self.renewing = self.current;
                }
            }
        }
        next
    }

    /// The next actions while the pod is ready.
    fn next(&mut self, secret: Secret, now: Instant) -> Next {
        self.next_if(true, secret, now)
    }

    fn verified(&mut self, outcome: Result<(), Failure>, now: Instant) -> bool {
        let credentials = self.verifying.take();
        let takes_over = self.plan.verified(outcome, self.current.is_some(), now);
        if takes_over {
            self.current = credentials;
        }
        takes_over
    }

    fn renewed(&mut self, sent: Instant, outcome: Result<(), Failure>, now: Instant, chance: f64) {
        self.renewing = None;
        self.plan.renewed(sent, outcome, now, chance);
    }
}

/// A plan that has verified the first credentials and renewed once, just now.
fn renewing(timing: Timing) -> (Played, Instant) {
    let now = Instant::now();
    let mut plan = Played::new(timing);
    assert!(matches!(plan.next(FIRST, now).actions[..], [Action::Verify { .. }]));
    assert!(plan.verified(Ok(()), now));
    assert!(matches!(plan.next(FIRST, now).actions[..], [Action::Renew { take: true, .. }]));
    plan.renewed(now, Ok(()), now, 0.5);
    (plan, now)
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_before_the_startup_delay_or_without_a_secret() {
    let now = Instant::now();
    let late = Timing { start_at: now + millis(10_000), ..timing(60, 20_000) };
    let mut plan = Played::new(late);
    assert_eq!(plan.next(FIRST, now), Next { actions: vec![], until: Some(late.start_at) });
    for secret in [Secret::Unknown, Secret::Missing, Secret::Invalid] {
        assert_eq!(plan.next(secret, late.start_at), Next::default(), "{secret:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_due_an_interval_after_the_last_was_sent() {
    let (mut plan, sent) = renewing(timing(60, 20_000));
    let due = sent + millis(20_000);
    assert_eq!(plan.next(FIRST, sent), Next { actions: vec![], until: Some(due) });
    assert!(matches!(plan.next(FIRST, due).actions[..], [Action::Renew { take: false, .. }]));
    assert_eq!(plan.next(FIRST, due), Next::default(), "one at a time");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_an_outage_is_a_first_one() {
    let (mut plan, sent) = renewing(timing(60, 20_000));
    let mut now = sent + millis(20_000);
    for _ in 0..30 {
        assert!(matches!(plan.next(FIRST, now).actions[..], [Action::Renew { .. }]));
        plan.renewed(now, Err(Failure::Hub), now, 0.5);
        now += millis(500);
    }
    for longest in [100, 200, 400] {
        assert!(matches!(plan.next(FIRST, now).actions[..], [Action::Renew { .. }]));
        plan.renewed(now, Err(Failure::Refused), now, 0.5);
        let again = plan.next(FIRST, now).until.expect("it is tried again");
        assert!(again <= now + millis(longest), "{:?} after it was refused", again - now);
        now = again;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_not_sent_says_nothing_about_the_hub_and_is_not_retried_in_a_loop() {
    let (mut plan, sent) = renewing(timing(60, 20_000));
    let due = sent + millis(20_000);
    // New credentials wait for their turn.
    assert!(matches!(plan.next(SECOND, due).actions[..], [Action::Verify { .. }, Action::Renew { .. }]));
    assert!(!plan.verified(Err(Failure::SectionLeaseExpired), due));
    plan.renewed(due, Err(Failure::SectionLeaseExpired), due, 0.5);
    assert_eq!(plan.next(SECOND, due), Next { actions: vec![], until: Some(due + SECTION_LEASE_PAUSE) });
    let again = plan.next(SECOND, due + SECTION_LEASE_PAUSE);
    let first = plan.plan.timing.deadline(0);
    let expected = [Action::Verify { deadline: first, at_once: false }, Action::Renew { deadline: first, take: false }];
    assert_eq!(again.actions, expected, "as if nothing had happened");
}

#[tokio::test(start_paused = true)]
async fn a_detached_renewal_counts_when_it_succeeds_and_never_replaces_a_later_one() {
    let (mut plan, sent) = renewing(timing(60, 20_000));
    plan.plan.detached_succeeded(sent + millis(20_000));
    assert_eq!(plan.plan.acknowledged(), Some(sent + millis(20_000)));
    plan.plan.detached_succeeded(sent + millis(5_000));
    assert_eq!(plan.plan.acknowledged(), Some(sent + millis(20_000)));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_not_ready_cancels_and_one_that_is_again_renews_at_once() {
    let (mut plan, sent) = renewing(timing(60, 20_000));
    let due = sent + millis(20_000);
    plan.next(FIRST, due);
    assert_eq!(plan.next_if(false, FIRST, due).actions, [Action::CancelRenewal]);
    assert!(matches!(plan.next(FIRST, due).actions[..], [Action::Renew { .. }]));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_flaps_makes_no_storm() {
    let (mut plan, sent) = renewing(timing(60, 20_000));
    for _ in 0..10 {
        assert_eq!(plan.next_if(false, FIRST, sent).actions, []);
        assert_eq!(plan.next(FIRST, sent), Next { actions: vec![], until: Some(sent + LEAST_SPACING) });
    }
}

#[tokio::test(start_paused = true)]
async fn new_credentials_take_over_with_the_renewal_that_is_due() {
    let (mut plan, sent) = renewing(timing(60, 20_000));
    assert!(matches!(plan.next(SECOND, sent).actions[..], [Action::Verify { at_once: false, .. }]));
    let due = sent + millis(20_000);
    assert!(
        matches!(plan.next(SECOND, due).actions[..], [Action::Renew { .. }]),
        "the old credentials are used meanwhile"
    );
    assert!(plan.verified(Ok(()), due));
    let actions = plan.next(SECOND, due).actions;
    assert!(matches!(actions[..], [Action::DetachRenewal, Action::Renew { .. }]), "{actions:?}");
}

#[tokio::test(start_paused = true)]
async fn new_credentials_that_take_over_in_between_don_t_renew_early() {
    let (mut plan, sent) = renewing(timing(60, 20_000));
    plan.next(SECOND, sent);
    assert!(plan.verified(Ok(()), sent));
    assert_eq!(plan.next(SECOND, sent), Next { actions: vec![], until: Some(sent + millis(20_000)) });
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_are_tried_again_with_back_off_and_at_once_when_the_old_ones_are_refused() {
    let (mut plan, sent) = renewing(timing(60, 20_000));
    plan.next(SECOND, sent);
    assert!(!plan.verified(Err(Failure::Refused), sent));
    let next = plan.next(SECOND, sent);
    assert_eq!(next.actions, []);
    assert!(next.until.is_some_and(|until| until > sent && until <= sent + VERIFICATION_BACKOFF.first));
    plan.plan.candidate.as_mut().expect("still there").next = sent + millis(30_000);
    let due = sent + millis(20_000);
    plan.next(SECOND, due);
    plan.renewed(due, Err(Failure::Unauthorized), due, 0.5);
    let actions = plan.next(SECOND, due).actions;
    assert!(matches!(actions[..], [Action::Verify { at_once: true, .. }, Action::Renew { .. }]), "{actions:?}");
    assert!(plan.verified(Ok(()), due));
    let actions = plan.next(SECOND, due).actions;
    assert!(matches!(actions[..], [Action::DetachRenewal, Action::Renew { .. }]), "{actions:?}");
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_can_not_be_used_changes_nothing_and_one_that_is_gone_ends_it() {
    let (mut plan, sent) = renewing(timing(60, 20_000));
    let due = sent + millis(20_000);
    assert_eq!(plan.next(Secret::Invalid, sent).until, Some(due));
    let gone = Next { actions: vec![Action::DropCredentials], until: None };
    assert_eq!(plan.next(Secret::Missing, due), gone);
    assert_eq!(plan.next(Secret::Missing, due), Next::default());
    let actions = plan.next(FIRST, due).actions;
    assert!(matches!(actions[..], [Action::Verify { .. }]), "back again, they are verified: {actions:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_has_run_out_is_taken_and_not_only_renewed() {
    let (mut plan, sent) = renewing(timing(60, 20_000));
    let late = sent + Duration::from_mins(1);
    assert!(matches!(plan.next(FIRST, late).actions[..], [Action::Renew { take: true, .. }]));
}

proptest! {
    #[test]
    fn pauses_and_deadlines_keep_their_bounds(duration in 1_u64..86_400, part in 0.001_f64..0.999, chance in 0.0_f64..=1.0, failures: u32) {
        let duration = Duration::from_secs(duration);
        let timing = Timing { start_at: Instant::now(), duration, interval: duration.mul_f64(part) };
        let pause = timing.pause(chance);
        let room = PATIENCE.min(duration / 2);
        prop_assert!(pause + room <= duration, "{pause:?} leaves no room for an answer");
        prop_assert!(pause <= timing.interval.mul_f64(1.1) && (pause >= timing.interval.mul_f64(0.9) || pause + room == duration));
        let deadline = timing.deadline(failures);
        prop_assert!(!deadline.is_zero() && deadline <= LONGEST_DEADLINE);
        prop_assert!(timing.deadline(0) <= duration / 2, "a lost request costs the lease");
        prop_assert!(duration < Duration::from_secs(2) || timing.deadline(0) >= PATIENCE);
    }

    /// A hub that answers within a second, a pod that is ready, and credentials that are rotated: whichever of the two
    /// work, renewals arrive no further apart than the duration.
    #[test]
    fn no_two_renewals_arrive_further_apart_than_the_duration(seed: u64, seconds in 3_u64..120, part in 0.1_f64..0.95) {
        let duration = Duration::from_secs(seconds);
        let begun = Instant::now();
        let timing = Timing { start_at: begun, duration, interval: duration.mul_f64(part) };
        let mut world = World::new(timing, begun, seed);
        let arrivals = world.play(60);
        prop_assert!(arrivals.len() >= 5, "{} renewals", arrivals.len());
        for pair in arrivals.windows(2) {
            let gap = pair[1].saturating_duration_since(pair[0]);
            prop_assert!(gap <= duration, "{gap:?} of {duration:?}");
        }
    }
}

/// A lease and a hub that answers within a second.
struct World {
    plan: Played,
    random: StdRng,
    now: Instant,
    /// When the renewal under way was sent, when it arrives, and when it is answered.
    renewal: Option<(Instant, Instant, Instant)>,
    verification: Option<Instant>,
    secret: Secret,
}

impl World {
    fn new(timing: Timing, now: Instant, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self { plan: Played::new(timing), random, now, renewal: None, verification: None, secret: FIRST }
    }

    fn within_a_second(&mut self) -> Duration {
        millis(self.random.random_range(1..1000))
    }

    /// Plays so many events, and returns when renewals arrived at the hub.
    fn play(&mut self, events: usize) -> Vec<Instant> {
        let mut arrivals = Vec::new();
        for _ in 0..events {
            let next = self.plan.next(self.secret, self.now);
            for action in next.actions {
                match action {
                    Action::DropCredentials => panic!("the Secret never goes"),
                    Action::CancelRenewal => self.renewal = None,
                    // A request that was sent arrives.
                    Action::DetachRenewal => arrivals.extend(self.renewal.take().map(|(_, arrived, _)| arrived)),
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
            self.now = soonest.expect("something always happens next").max(self.now);
            if let Some((sent, arrived, answered)) = self.renewal.filter(|(_, _, answered)| *answered <= self.now) {
                arrivals.push(arrived);
                self.renewal = None;
                let chance = self.random.random();
                self.plan.renewed(sent, Ok(()), answered, chance);
            } else if self.verification.is_some_and(|answered| answered <= self.now) {
                self.verification = None;
                let outcome = if self.random.random_bool(0.5) { Ok(()) } else { Err(Failure::Refused) };
                self.plan.verified(if self.plan.current.is_none() { Ok(()) } else { outcome }, self.now);
            }
            if self.plan.current.is_some() && self.random.random_bool(0.1) {
                self.secret = if self.secret == FIRST { SECOND } else { FIRST };
            }
        }
        arrivals.sort();
        arrivals
    }
}
