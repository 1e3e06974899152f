//! The latest state of a lease, which its renewer writes and the report reads.

use std::time::Duration;

use jiff::SignedDuration;
use tokio::sync::watch;
use tokio::time::Instant;

use super::readiness::SecretState;
use crate::cluster::Error;
use crate::config::SectionName;
use crate::lease::config::LeaseConfig;
use crate::lease::metrics::LeaseMetrics;

/// A clock that is wrong by more than this part of the duration is a fault.
const TOLERATED: u32 = 3;

/// Why the lease is not renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Obstacle {
    /// The Secret or the pod has not been looked up yet.
    #[default]
    Watch,
    /// The Secret does not exist.
    Secret,
    /// The credentials have not been tried yet.
    Verification,
    /// There are no credentials that work.
    Credentials,
    PodMissing,
    PodNotReady,
    /// It is renewed.
    Nothing,
}

impl Obstacle {
    /// The renewer's state in the actor tree.
    pub fn state(self) -> &'static str {
        match self {
            Self::Watch => "connecting",
            Self::Secret => "no secret",
            Self::Verification => "verifying",
            Self::Credentials => "no credentials",
            Self::PodMissing => "no pod",
            Self::PodNotReady => "pod not ready",
            Self::Nothing => "renewing",
        }
    }

    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Watch => Some("the managed cluster has not been listed yet"),
            Self::Secret => Some("there is no such secret"),
            Self::Verification => Some("the credentials have not been tried yet"),
            Self::Credentials => Some("there are no credentials that work"),
            Self::PodMissing => Some("there is no such pod"),
            Self::PodNotReady => Some("the pod is not ready"),
            Self::Nothing => None,
        }
    }
}

/// The latest state of a lease.
#[derive(Debug, Default)]
pub struct LeaseState {
    pub obstacle: Obstacle,
    /// When the last acknowledged renewal was sent, while the credentials and the pod allow the next one.
    pub holding: Option<Instant>,
    pub acknowledged: Option<Instant>,
    pub credentials_since: Option<Instant>,
    /// Why the Secret's credentials are not used. Earlier credentials may still be in use.
    pub credentials_fault: Option<String>,
    /// The last failure since the last renewal that succeeded.
    pub failing: Option<Failed>,
    /// How far this machine's clock is ahead of the hub's at least; negative where it is behind. `None` before the hub has told.
    pub skew: Option<SignedDuration>,
    pub renewals: u64,
    pub failures: u64,
}

impl LeaseState {
    /// What is wrong with the clock.
    pub fn clock_fault(&self, duration: Duration) -> Option<String> {
        let skew = self.skew.filter(|skew| skew.unsigned_abs() > duration / TOLERATED)?;
        let distance = humantime::format_duration(Duration::from_secs(skew.unsigned_abs().as_secs()));
        Some(if skew.is_negative() {
            format!(
                "this machine's clock is {distance} behind the hub's: on the hub the lease expires so much too early"
            )
        } else {
            format!(
                "this machine's clock is {distance} ahead of the hub's: on the hub the lease expires so much too late"
            )
        })
    }
}

#[derive(Debug)]
pub struct Failed {
    pub at: Instant,
    pub kind: &'static str,
    pub error: String,
}

/// The latest state of a lease, written by its renewer and read by the admin server.
#[derive(Debug)]
pub struct LatestState {
    name: SectionName,
    duration: Duration,
    state: watch::Sender<LeaseState>,
    metrics: LeaseMetrics,
}

impl LatestState {
    /// The state of a lease whose renewer has not started.
    pub fn new(config: &LeaseConfig) -> Self {
        let metrics = LeaseMetrics::new(&config.name);
        Self { name: config.name.clone(), duration: config.duration, state: watch::Sender::default(), metrics }
    }

    /// The latest state.
    pub fn state(&self) -> watch::Ref<'_, LeaseState> {
        self.state.borrow()
    }

    /// Whether the lease is held, for the metrics.
    pub fn set_held(&self, held: bool) {
        self.metrics.set_held(held);
    }

    /// Records what the renewer has observed. `holding` is when the last acknowledged renewal was sent, where another
    /// one will follow.
    pub fn observed(&self, obstacle: Obstacle, holding: Option<Instant>, secret: &SecretState) {
        self.state.send_modify(|state| {
            if state.obstacle != obstacle {
                state.obstacle = obstacle;
                match (obstacle, obstacle.reason()) {
                    // That takes a moment at each start. If it fails, that is logged.
                    (Obstacle::Verification, _) => {}
                    (_, Some(reason)) => tracing::info!(section = %self.name, reason, "lease is not renewed"),
                    (_, None) => tracing::info!(section = %self.name, "lease is renewed"),
                }
                if obstacle != Obstacle::Nothing {
                    // An earlier failure does not explain the current state.
                    state.failing = None;
                }
            }
            state.holding = holding;
            match secret {
                SecretState::Invalid(fault) => {
                    let fault = fault.to_string();
                    if state.credentials_fault.as_ref() != Some(&fault) {
                        tracing::warn!(section = %self.name, fault, "the secret's credentials cannot be used");
                        state.credentials_fault = Some(fault);
                    }
                }
                SecretState::Missing => {
                    state.credentials_fault = None;
                    state.credentials_since = None;
                }
                SecretState::Unknown | SecretState::Valid(_) => {}
            }
        });
    }

    /// Records that the renewer has ended: the lease is not held here, and only the counters remain.
    pub fn stopped(&self) {
        self.state.send_modify(|state| {
            let LeaseState { acknowledged, skew, renewals, failures, .. } = *state;
            *state = LeaseState { acknowledged, skew, renewals, failures, ..LeaseState::default() };
        });
    }

    /// Records that new credentials are in use.
    pub fn took_over(&self) {
        self.state.send_modify(|state| {
            state.credentials_since = Some(Instant::now());
            state.credentials_fault = None;
        });
    }

    /// Records that the Secret has the credentials in use, perhaps again: the fault of other credentials is over.
    pub fn uses_the_secret(&self) {
        let is_over = self.state.send_if_modified(|state| state.credentials_fault.take().is_some());
        if is_over {
            tracing::info!(section = %self.name, "the secret has the credentials in use again");
        }
    }

    /// Records that the hub refused the Secret's credentials.
    pub fn rejected(&self, error: &Error) {
        self.state.send_modify(|state| {
            if state.credentials_fault.is_none() {
                tracing::warn!(section = %self.name, %error, "the secret's credentials do not work, retrying");
            }
            state.credentials_fault = Some(error.to_string());
        });
    }

    /// Records an acknowledged renewal, and what the answer said of this machine's clock.
    pub fn renewed(&self, skew: Option<SignedDuration>) {
        self.state.send_modify(|state| {
            let before = state.clock_fault(self.duration);
            state.skew = skew.or(state.skew);
            match (before, state.clock_fault(self.duration)) {
                (None, Some(fault)) => {
                    tracing::warn!(section = %self.name, fault, "the clock of this machine is wrong");
                }
                (Some(_), None) => {
                    tracing::info!(section = %self.name, "the clock of this machine agrees with the hub's again");
                }
                _ => {}
            }
            state.renewals += 1;
            state.acknowledged = Some(Instant::now());
            if let Some(failed) = state.failing.take() {
                tracing::info!(section = %self.name, after = failed.kind, "lease is renewed again");
            }
        });
    }

    pub fn failed(&self, error: &Error) {
        self.state.send_modify(|state| {
            state.failures += 1;
            if state.failing.as_ref().is_none_or(|failed| failed.kind != error.kind()) {
                tracing::warn!(section = %self.name, %error, "failed to renew the lease, retrying");
            }
            state.failing = Some(Failed { at: Instant::now(), kind: error.kind(), error: error.to_string() });
        });
    }
}
