//! Decides when to renew, with which credentials, and when to look again. Pure: the observed state and the time go in,
//! the actions come out.
//!
//! The renewer owns the credentials in use and the requests under way; the plan sees both in [`Observed`] and keeps
//! only back-offs and times. [`RenewalPlan::next`] applies the specification's rules in this order:
//! - Before the startup delay has passed and the Secret has been looked up, nothing is done.
//! - Without a Secret, nothing is renewed. A Secret that cannot be used changes nothing.
//! - New credentials are verified while renewals continue with the old ones. Once verified they take over at once, and
//!   a renewal that is due is sent with them. Credentials that fail are tried again with back-off, and at once when the
//!   hub refuses the old ones.
//! - While the pod is not ready, nothing is renewed. When it becomes ready, the lease is renewed at once.
//! - Otherwise a renewal is due an interval with jitter after the last one, or after a short back-off if that one
//!   failed.

use std::time::Duration;

use tokio::time::Instant;

use super::super::config::LeaseConfig;
use crate::actor::Backoff;
use crate::cluster::Fingerprint;

/// The shortest time between two renewals of a pod whose readiness keeps changing.
const LEAST_SPACING: Duration = Duration::from_millis(500);
/// A request has at least this deadline, if the duration allows it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Upper bound of the first deadline: a lost request is noticed after this at the latest.
const LONGEST_FIRST_DEADLINE: Duration = Duration::from_secs(5);
/// Upper bound of all deadlines, however slow the hub is.
const LONGEST_DEADLINE: Duration = Duration::from_secs(30);
/// Back-off after a renewal that the hub refused for a reason of its own; never longer than the interval.
const RENEWAL_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Back-off of verifying refused credentials while others are in use.
const VERIFICATION_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
/// Back-off of verifying refused credentials while none are in use.
const FIRST_VERIFICATION_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Pause before the next attempt when the section's own lease has expired.
const SECTION_LEASE_PAUSE: Duration = Duration::from_millis(200);
/// Largest deviation of an interval from the configured one, as a fraction, in either direction.
const JITTER: f64 = 0.1;

/// The times that the configuration and the start of the process determine.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    start_at: Instant,
    duration: Duration,
    interval: Duration,
}

impl Timing {
    /// The timing of a section in a process that started at `started`.
    pub fn new(config: &LeaseConfig, started: Instant) -> Self {
        Self { start_at: started + config.startup_delay, duration: config.duration, interval: config.renew_interval }
    }

    /// Time from sending one renewal to sending the next; `chance` is between 0 and 1. It leaves room for an answer
    /// that takes a second, so that no two renewals *arrive* further apart than the duration.
    fn pause(&self, chance: f64) -> Duration {
        let room = PATIENCE.min(self.duration / 2);
        self.interval.mul_f64(1.0 + JITTER * (2.0 * chance - 1.0)).min(self.duration.saturating_sub(room))
    }

    /// How long a request may take. Short at first, so that a lost request does not cost a period; doubled with every
    /// failure, so that a slow hub is not taken for a dead one.
    fn deadline(&self, failures: u32) -> Duration {
        let first = (self.interval / 2).clamp(PATIENCE, LONGEST_FIRST_DEADLINE).min(self.duration / 2);
        let longest = self.interval.clamp(first, LONGEST_DEADLINE);
        Backoff::new(first, longest).longest(failures)
    }
}

/// The state of the Secret, as far as it matters for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secret {
    /// It has not been looked up yet.
    Unknown,
    Missing,
    Invalid,
    Valid(Fingerprint),
}

/// What the renewer observes, and what it has in use and under way.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    pub secret: Secret,
    pub ready: bool,
    /// The credentials in use.
    pub current: Option<Fingerprint>,
    /// The credentials of the renewal under way.
    pub renewing: Option<Fingerprint>,
    /// The credentials that are being verified.
    pub verifying: Option<Fingerprint>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Stop using the credentials in use: the Secret is gone.
    DropCredentials,
    CancelRenewal,
    /// Let the renewal under way finish on its own, because the next one is sent with new credentials. It may be the
    /// one that arrives in time.
    DetachRenewal,
    CancelVerification,
    /// Verify the credentials in the Secret.
    Verify {
        /// How long the request may take.
        deadline: Duration,
        /// Whether to ignore the hub's back-off.
        at_once: bool,
    },
    /// Renew with the credentials in use.
    Renew {
        /// How long each request may take.
        deadline: Duration,
        /// Whether to acquire the lease (holder and acquire time), not only to renew it.
        take: bool,
    },
}

/// Why a request to the hub failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No answer, or one that says nothing about this lease. The hub's own back-off delays the next request.
    Hub,
    /// The hub does not accept the credentials.
    Unauthorized,
    /// The hub refused the request.
    Refused,
    /// The request was not sent, because the section's own lease has expired: either this renewer ends soon, or the
    /// section's lease is about to be renewed.
    SectionLeaseExpired,
}

/// Credentials that have not been verified yet.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    fingerprint: Fingerprint,
    failures: u32,
    next: Instant,
    at_once: bool,
}

/// What to do now, and when to look again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Next {
    /// The actions, in this order. The renewer begins all of them.
    pub actions: Vec<Action>,
    /// When to look again, unless something happens before.
    pub until: Option<Instant>,
}

/// What decides about future renewals, apart from what is observed.
#[derive(Debug)]
pub struct RenewalPlan {
    timing: Timing,
    candidate: Option<Candidate>,
    /// When the next renewal is due; `None` means as soon as possible.
    due: Option<Instant>,
    /// Failed renewals since the last one that succeeded.
    failures: u32,
    /// How many of the latest failures in a row were refusals. A server that has just come back may not know its roles
    /// yet.
    refusals: u32,
    /// When the last acknowledged renewal was sent.
    acknowledged: Option<Instant>,
}

impl RenewalPlan {
    /// The plan of a renewer that has done nothing yet.
    pub fn new(timing: Timing) -> Self {
        Self { timing, candidate: None, due: None, failures: 0, refusals: 0, acknowledged: None }
    }

    pub fn acknowledged(&self) -> Option<Instant> {
        self.acknowledged
    }

    pub fn next(&mut self, mut observed: Observed, now: Instant) -> Next {
        let mut next = Next::default();
        if now < self.timing.start_at {
            next.until = Some(self.timing.start_at);
            return next;
        }
        if observed.secret == Secret::Missing && observed.current.take().is_some() {
            next.actions.push(Action::DropCredentials);
        }
        self.update_candidate(&observed, now);
        self.plan_verification(observed.verifying, &mut next, now);
        self.plan_renewal(&observed, &mut next, now);
        next
    }

    fn update_candidate(&mut self, observed: &Observed, now: Instant) {
        match observed.secret {
            Secret::Unknown => {}
            Secret::Missing | Secret::Invalid => self.candidate = None,
            Secret::Valid(fingerprint) if observed.current == Some(fingerprint) => self.candidate = None,
            Secret::Valid(fingerprint) => {
                if self.candidate.is_none_or(|candidate| candidate.fingerprint != fingerprint) {
                    self.candidate = Some(Candidate { fingerprint, failures: 0, next: now, at_once: false });
                }
            }
        }
    }

    fn plan_verification(&mut self, mut verifying: Option<Fingerprint>, next: &mut Next, now: Instant) {
        let wanted = self.candidate.map(|candidate| candidate.fingerprint);
        let is_urgent = self.candidate.is_some_and(|candidate| candidate.at_once);
        if verifying.is_some() && (verifying != wanted || is_urgent) {
            verifying = None;
            next.actions.push(Action::CancelVerification);
        }
        let Some(candidate) = &mut self.candidate else { return };
        if verifying.is_some() {
            return;
        }
        if candidate.at_once || candidate.next <= now {
            let at_once = std::mem::take(&mut candidate.at_once);
            next.actions.push(Action::Verify { deadline: self.timing.deadline(candidate.failures), at_once });
        } else {
            next.look_at(candidate.next);
        }
    }

    fn plan_renewal(&mut self, observed: &Observed, next: &mut Next, now: Instant) {
        let usable = observed.current.filter(|_| observed.ready);
        let mut renewing = observed.renewing;
        if renewing.is_some() && renewing != usable {
            renewing = None;
            next.actions.push(if usable.is_some() { Action::DetachRenewal } else { Action::CancelRenewal });
        }
        if !observed.ready {
            // A pod that becomes ready is renewed at once, but one that keeps changing only this often.
            self.due = self.acknowledged.map(|sent| sent + LEAST_SPACING.min(self.timing.interval));
            return;
        }
        if usable.is_none() || renewing.is_some() {
            return;
        }
        if let Some(due) = self.due.filter(|due| *due > now) {
            next.look_at(due);
            return;
        }
        let take = !self.is_fresh(now);
        next.actions.push(Action::Renew { deadline: self.timing.deadline(self.failures), take });
    }

    /// Whether the lease is still valid by the last acknowledged renewal.
    fn is_fresh(&self, now: Instant) -> bool {
        self.acknowledged.is_some_and(|sent| now.saturating_duration_since(sent) < self.timing.duration)
    }

    /// Records the end of a verification. Returns whether the renewer must use the verified credentials from now on.
    /// `any_in_use` says whether others are in use meanwhile.
    pub fn verified(&mut self, outcome: Result<(), Failure>, any_in_use: bool, now: Instant) -> bool {
        let Some(candidate) = &mut self.candidate else { return false };
        match outcome {
            Ok(()) => {
                self.candidate = None;
                if self.failures > 0 {
                    // The renewal that failed with the old credentials is due with the new ones.
                    self.failures = 0;
                    self.refusals = 0;
                    self.due = None;
                }
                return true;
            }
            // The hub's own back-off delays the next request.
            Err(Failure::Hub) => candidate.next = now,
            Err(Failure::SectionLeaseExpired) => {
                candidate.next = now + SECTION_LEASE_PAUSE;
                return false;
            }
            Err(Failure::Unauthorized | Failure::Refused) => {
                let backoff = if any_in_use { VERIFICATION_BACKOFF } else { FIRST_VERIFICATION_BACKOFF };
                candidate.next = now + backoff.next_delay(candidate.failures);
            }
        }
        candidate.failures = candidate.failures.saturating_add(1);
        false
    }

    /// Records that a detached renewal succeeded.
    pub fn detached_succeeded(&mut self, sent: Instant) {
        self.acknowledged = self.acknowledged.max(Some(sent));
    }

    /// Records the end of a renewal whose last request was sent at `sent`; `chance` decides the jitter.
    pub fn renewed(&mut self, sent: Instant, outcome: Result<(), Failure>, now: Instant, chance: f64) {
        match outcome {
            Ok(()) => {
                self.failures = 0;
                self.refusals = 0;
                self.acknowledged = Some(sent);
                self.due = Some(sent + self.timing.pause(chance));
            }
            // This says nothing about the hub or the credentials.
            Err(Failure::SectionLeaseExpired) => self.due = Some(now + SECTION_LEASE_PAUSE),
            Err(failure @ (Failure::Hub | Failure::Unauthorized | Failure::Refused)) => {
                if failure == Failure::Refused {
                    let pause = RENEWAL_BACKOFF.next_delay(self.refusals).min(self.timing.interval);
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
