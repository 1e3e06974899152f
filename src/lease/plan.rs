//! When to renew, with which credentials, and when to look again. Pure: what is observed and the time go in, what is to
//! be done comes out.
//!
//! The rules of the specification, in the order in which [`Plan::next`] goes through them:
//! - nothing before the startup delay, and nothing before the Secret was looked for;
//! - no Secret: nothing is renewed. One that can't be used changes nothing;
//! - new credentials are verified beside the renewals and, when they work, take over at once, with a renewal if one is
//!   due. When they don't, the old ones go on, and the new ones are tried again with back-off, and at once when the old
//!   ones are refused;
//! - the pod not ready: no renewal, and again at once when it is;
//! - else a renewal when one is due: an interval with jitter after the last, or after a short back-off where that failed.

use std::time::Duration;

use tokio::time::Instant;

use super::config::LeaseConfig;
use super::credentials::Fingerprint;
use crate::actor::Backoff;

/// A pod that turns ready again and again does not make more renewals than this allows.
const LEAST_SPACING: Duration = Duration::from_millis(500);
/// A hub that answers within this is never given up on, where the duration allows.
const PATIENCE: Duration = Duration::from_secs(1);
/// A request that is lost is noticed after this at the latest, the first time.
const LONGEST_FIRST_DEADLINE: Duration = Duration::from_secs(5);
/// However slow the hub is, no request is waited for longer.
const LONGEST_DEADLINE: Duration = Duration::from_secs(30);
/// After a renewal that the hub has refused for a reason of its own; within the period.
const RENEWAL_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Between two looks whether credentials that were refused work now. Old ones go on meanwhile.
const VERIFICATION_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
/// The same where there are no old ones.
const FIRST_VERIFICATION_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Between two looks whether there is a claim again.
const UNCLAIMED_PAUSE: Duration = Duration::from_millis(200);
/// How much an interval differs from the configured one, to either side.
const JITTER: f64 = 0.1;

/// What the configuration and the start of the process say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    start_at: Instant,
    duration: Duration,
    interval: Duration,
}

impl Terms {
    /// The terms of a section in a process that was started then.
    pub(super) fn new(config: &LeaseConfig, started: Instant) -> Self {
        Self { start_at: started + config.startup_delay, duration: config.duration, interval: config.renew_interval }
    }

    /// From the sending of one renewal to the sending of the next; `chance` from 0 to 1. Room for an answer that takes a
    /// second is left, so that no two renewals *arrive* further apart than the duration.
    fn pause(&self, chance: f64) -> Duration {
        let room = PATIENCE.min(self.duration / 2);
        self.interval.mul_f64(1.0 + JITTER * (2.0 * chance - 1.0)).min(self.duration.saturating_sub(room))
    }

    /// How long a request is waited for: short at first, so that a lost one does not cost a period, longer the more have
    /// failed, so that a slow hub is not taken for a dead one for ever.
    fn deadline(&self, failures: u32) -> Duration {
        let first = (self.interval / 2).clamp(PATIENCE, LONGEST_FIRST_DEADLINE).min(self.duration / 2);
        let longest = self.interval.clamp(first, LONGEST_DEADLINE);
        first.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(longest)
    }
}

/// What the Secret offers, as far as it decides something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    /// Nobody has looked yet.
    Unknown,
    /// No Secret.
    Missing,
    /// One that can't be used.
    Faulty,
    /// Credentials.
    Given(Fingerprint),
}

/// What is observed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observed {
    /// The Secret.
    pub(super) offered: Offered,
    /// The pod.
    pub(super) ready: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Action {
    /// Give up the renewal that is under way.
    CancelRenewal,
    /// Leave the renewal that is under way to itself: another goes out beside it, with new credentials. It may be the
    /// one that arrives in time.
    LeaveRenewal,
    /// Give up the verification that is under way.
    CancelVerification,
    /// Find out whether the offered credentials work.
    Verify {
        /// How long to wait for the answer.
        deadline: Duration,
        /// Whether the hub's back-off is passed over.
        at_once: bool,
    },
    /// Renew with the credentials in use.
    Renew {
        /// How long to wait for each answer.
        deadline: Duration,
        /// Whether the lease is taken, not only renewed.
        take: bool,
    },
}

/// Why something with the hub failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No answer, or one that says nothing of this lease: the hub's own back-off is pause enough.
    Hub,
    /// The credentials are not accepted.
    Unauthorized,
    /// The request was refused.
    Refused,
    /// It was not sent: the section's claim has ended, and so will this renewer, or its claim is about to be a new one.
    Unclaimed,
}

/// Credentials that have not been found to work yet.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    fingerprint: Fingerprint,
    failures: u32,
    next: Instant,
    at_once: bool,
}

/// What is to be done at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Next {
    /// What to do, in this order.
    pub(super) actions: Vec<Action>,
    /// When to look again, unless something happens before.
    pub(super) until: Option<Instant>,
}

/// What a renewer knows.
#[derive(Debug)]
pub(super) struct Plan {
    terms: Terms,
    /// The credentials in use.
    current: Option<Fingerprint>,
    candidate: Option<Candidate>,
    /// The credentials that a renewal is under way with.
    renewing: Option<Fingerprint>,
    /// The credentials that are being verified.
    verifying: Option<Fingerprint>,
    /// When the next renewal is due; none: as soon as it may be.
    due: Option<Instant>,
    /// Failed renewals since the last that succeeded.
    failures: u32,
    /// How many of them, the last ones, were refused: a server that has just come back may know of no role yet.
    refusals: u32,
    /// When the last acknowledged renewal was sent.
    acknowledged: Option<Instant>,
}

impl Plan {
    /// Nothing has been done yet.
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            terms,
            current: None,
            candidate: None,
            renewing: None,
            verifying: None,
            due: None,
            failures: 0,
            refusals: 0,
            acknowledged: None,
        }
    }

    /// The credentials in use.
    pub(super) fn current(&self) -> Option<Fingerprint> {
        self.current
    }

    /// When the last acknowledged renewal was sent.
    pub(super) fn acknowledged(&self) -> Option<Instant> {
        self.acknowledged
    }

    /// What is to be done now. What it says counts as begun.
    pub(super) fn next(&mut self, observed: Observed, now: Instant) -> Next {
        let mut next = Next::default();
        if now < self.terms.start_at {
            next.until = Some(self.terms.start_at);
            return next;
        }
        self.take_offer(observed.offered, now);
        self.plan_verification(&mut next, now);
        self.plan_renewal(observed.ready, &mut next, now);
        next
    }

    fn take_offer(&mut self, offered: Offered, now: Instant) {
        match offered {
            Offered::Unknown => {}
            Offered::Missing => {
                self.current = None;
                self.candidate = None;
            }
            Offered::Faulty => self.candidate = None,
            Offered::Given(fingerprint) if self.current == Some(fingerprint) => self.candidate = None,
            Offered::Given(fingerprint) => {
                if self.candidate.is_none_or(|candidate| candidate.fingerprint != fingerprint) {
                    self.candidate = Some(Candidate { fingerprint, failures: 0, next: now, at_once: false });
                }
            }
        }
    }

    fn plan_verification(&mut self, next: &mut Next, now: Instant) {
        let wanted = self.candidate.map(|candidate| candidate.fingerprint);
        let overtaken = self.candidate.is_some_and(|candidate| candidate.at_once);
        if self.verifying.is_some() && (self.verifying != wanted || overtaken) {
            self.verifying = None;
            next.actions.push(Action::CancelVerification);
        }
        let Some(candidate) = &mut self.candidate else { return };
        if self.verifying.is_some() {
            return;
        }
        if candidate.at_once || candidate.next <= now {
            self.verifying = Some(candidate.fingerprint);
            let at_once = std::mem::take(&mut candidate.at_once);
            next.actions.push(Action::Verify { deadline: self.terms.deadline(candidate.failures), at_once });
        } else {
            next.look_at(candidate.next);
        }
    }

    fn plan_renewal(&mut self, ready: bool, next: &mut Next, now: Instant) {
        let holder = self.current.filter(|_| ready);
        if self.renewing.is_some() && self.renewing != holder {
            self.renewing = None;
            next.actions.push(if holder.is_some() { Action::LeaveRenewal } else { Action::CancelRenewal });
        }
        if !ready {
            // At once when it is ready again, but for one that keeps changing its mind.
            self.due = self.acknowledged.map(|sent| sent + LEAST_SPACING.min(self.terms.interval));
            return;
        }
        if holder.is_none() || self.renewing.is_some() {
            return;
        }
        if let Some(due) = self.due.filter(|due| *due > now) {
            next.look_at(due);
            return;
        }
        self.renewing = holder;
        let take = !self.is_fresh(now);
        next.actions.push(Action::Renew { deadline: self.terms.deadline(self.failures), take });
    }

    /// Whether the last acknowledged renewal has not run out.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.acknowledged.is_some_and(|sent| now.saturating_duration_since(sent) < self.terms.duration)
    }

    /// The verification has ended. Returns whether the credentials took over.
    pub(super) fn verified(&mut self, outcome: Result<(), Failure>, now: Instant) -> bool {
        self.verifying = None;
        let Some(candidate) = &mut self.candidate else { return false };
        match outcome {
            Ok(()) => {
                self.current = Some(candidate.fingerprint);
                self.candidate = None;
                if self.failures > 0 {
                    // What failed with the old ones is due with the new ones.
                    self.failures = 0;
                    self.refusals = 0;
                    self.due = None;
                }
                return true;
            }
            // The hub's own back-off comes before the next request.
            Err(Failure::Hub) => candidate.next = now,
            Err(Failure::Unclaimed) => {
                candidate.next = now + UNCLAIMED_PAUSE;
                return false;
            }
            Err(Failure::Unauthorized | Failure::Refused) => {
                let backoff = if self.current.is_some() { VERIFICATION_BACKOFF } else { FIRST_VERIFICATION_BACKOFF };
                candidate.next = now + backoff.next_delay(candidate.failures);
            }
        }
        candidate.failures = candidate.failures.saturating_add(1);
        false
    }

    /// A renewal that was left to itself has gone through.
    pub(super) fn left_went_through(&mut self, sent: Instant) {
        self.acknowledged = self.acknowledged.max(Some(sent));
    }

    /// The renewal has ended; `sent` is when its last request was sent, `chance` decides the jitter.
    pub(super) fn renewed(&mut self, sent: Instant, outcome: Result<(), Failure>, now: Instant, chance: f64) {
        self.renewing = None;
        match outcome {
            Ok(()) => {
                self.failures = 0;
                self.refusals = 0;
                self.acknowledged = Some(sent);
                self.due = Some(sent + self.terms.pause(chance));
            }
            // It says nothing of the hub, nor of the credentials.
            Err(Failure::Unclaimed) => self.due = Some(now + UNCLAIMED_PAUSE),
            Err(failure @ (Failure::Hub | Failure::Unauthorized | Failure::Refused)) => {
                if failure == Failure::Refused {
                    let pause = RENEWAL_BACKOFF.next_delay(self.refusals).min(self.terms.interval);
                    self.refusals = self.refusals.saturating_add(1);
                    self.due = Some(now + pause);
                } else {
                    self.refusals = 0;
                    self.due = None;
                }
                self.failures = self.failures.saturating_add(1);
                if failure != Failure::Hub
                    && let Some(candidate) = &mut self.candidate
                {
                    candidate.at_once = true;
                }
            }
        }
    }
}

impl Next {
    fn look_at(&mut self, at: Instant) {
        self.until = Some(self.until.map_or(at, |until| until.min(at)));
    }
}

#[cfg(test)]
mod tests;
