//! What operators see of a lease: whether it is held, why not, and how its renewals went.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::config::LeaseConfig;
use super::metrics::LeaseMetrics;
use super::readiness::SecretState;
use super::renewal::Target;
use crate::cluster::{Error, Watch};
use crate::config::SectionName;
use crate::job::not_listed;
use crate::telemetry::{self, ClusterStatus, Condition, Facts, Overview, Readiness};

/// A clock that is wrong by more than this part of the duration is a fault.
const TOLERATED: u32 = 3;

/// Why the lease is not renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Obstacle {
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
    pub(super) fn state(self) -> &'static str {
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

    fn reason(self) -> Option<&'static str> {
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
struct State {
    obstacle: Obstacle,
    /// When the last acknowledged renewal was sent, while the credentials and the pod allow the next one.
    holding: Option<Instant>,
    acknowledged: Option<Instant>,
    credentials_since: Option<Instant>,
    /// Why the Secret's credentials are not used. Earlier credentials may still be in use.
    credentials_fault: Option<String>,
    /// The last failure since the last renewal that succeeded.
    failing: Option<Failed>,
    /// How far this machine's clock is ahead of the hub's at least; negative where it is behind. `None` before the hub has told.
    skew: Option<SignedDuration>,
    renewals: u64,
    failures: u64,
}

impl State {
    /// What is wrong with the clock.
    fn clock_fault(&self, duration: Duration) -> Option<String> {
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
struct Failed {
    at: Instant,
    kind: &'static str,
    error: String,
}

/// The latest state of a lease, written by its renewer and read by the admin server.
#[derive(Debug)]
pub(super) struct Shown {
    name: SectionName,
    duration: Duration,
    state: watch::Sender<State>,
    metrics: LeaseMetrics,
}

impl Shown {
    /// The state of a lease whose renewer has not started.
    pub(super) fn new(config: &LeaseConfig) -> Self {
        let metrics = LeaseMetrics::new(&config.name);
        Self { name: config.name.clone(), duration: config.duration, state: watch::Sender::default(), metrics }
    }

    /// Records what the renewer has observed. `holding` is when the last acknowledged renewal was sent, where another
    /// one will follow.
    pub(super) fn observed(&self, obstacle: Obstacle, holding: Option<Instant>, secret: &SecretState) {
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
    pub(super) fn stopped(&self) {
        self.state.send_modify(|state| {
            let State { acknowledged, skew, renewals, failures, .. } = *state;
            *state = State { acknowledged, skew, renewals, failures, ..State::default() };
        });
    }

    /// Records that new credentials are in use.
    pub(super) fn took_over(&self) {
        self.state.send_modify(|state| {
            state.credentials_since = Some(Instant::now());
            state.credentials_fault = None;
        });
    }

    /// Records that the Secret has the credentials in use, perhaps again: the fault of other credentials is over.
    pub(super) fn uses_the_secret(&self) {
        let is_over = self.state.send_if_modified(|state| state.credentials_fault.take().is_some());
        if is_over {
            tracing::info!(section = %self.name, "the secret has the credentials in use again");
        }
    }

    /// Records that the hub refused the Secret's credentials.
    pub(super) fn rejected(&self, error: &Error) {
        self.state.send_modify(|state| {
            if state.credentials_fault.is_none() {
                tracing::warn!(section = %self.name, %error, "the secret's credentials do not work, retrying");
            }
            state.credentials_fault = Some(error.to_string());
        });
    }

    /// Records an acknowledged renewal, and what the answer said of this machine's clock.
    pub(super) fn renewed(&self, skew: Option<SignedDuration>) {
        self.metrics.renewed();
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

    pub(super) fn failed(&self, error: &Error) {
        self.state.send_modify(|state| {
            state.failures += 1;
            if state.failing.as_ref().is_none_or(|failed| failed.kind != error.kind()) {
                tracing::warn!(section = %self.name, %error, "failed to renew the lease, retrying");
            }
            state.failing = Some(Failed { at: Instant::now(), kind: error.kind(), error: error.to_string() });
        });
    }
}

/// A lease as the admin server sees it.
pub struct LeaseReport {
    target: Arc<Target>,
    shown: Arc<Shown>,
    /// The watches of the Secret and the pod. Both must have listed before anything is decided.
    watches: Vec<Arc<Watch>>,
}

/// The section's part of `/status`.
#[derive(Debug, Serialize)]
struct Report {
    lease: String,
    held: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_held_because: Option<String>,
    holder: String,
    seconds_since_renewal: Option<f64>,
    seconds_since_new_credentials: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    credentials_fault: Option<String>,
    /// Positive where this machine's clock is ahead of the hub's.
    clock_skew_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_fault: Option<String>,
    renewals: u64,
    failures: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    failing: Option<Failing>,
}

#[derive(Debug, Serialize)]
struct Failing {
    seconds_ago: u64,
    kind: &'static str,
    error: String,
}

impl LeaseReport {
    pub(super) fn new(target: Arc<Target>, shown: Arc<Shown>, watches: Vec<Arc<Watch>>) -> Self {
        Self { target, shown, watches }
    }

    /// Whether the lease is valid on the hub. `renewTime` is as far in the past as this machine's clock is behind.
    fn is_held(&self, state: &State) -> bool {
        let behind =
            state.skew.filter(SignedDuration::is_negative).map_or(Duration::ZERO, SignedDuration::unsigned_abs);
        state.holding.is_some_and(|sent| sent.elapsed().saturating_add(behind) < self.target.config.duration)
    }

    fn build(&self) -> Report {
        let state = self.shown.state.borrow();
        let held = self.is_held(&state);
        let failing = state.failing.as_ref();
        let fault = state.clock_fault(self.target.config.duration);
        let reason = || {
            let obstacle = state.obstacle.reason().map(str::to_owned);
            let failed = || failing.map(|failed| failed.error.clone());
            obstacle.or_else(failed).or_else(|| fault.clone()).or(Some("not renewed yet".to_owned()))
        };
        Report {
            lease: self.target.key.to_string(),
            held,
            not_held_because: if held { None } else { reason() },
            holder: self.target.holder.clone(),
            seconds_since_renewal: state.acknowledged.map(|at| at.elapsed().as_secs_f64()),
            seconds_since_new_credentials: state.credentials_since.map(|at| at.elapsed().as_secs()),
            credentials_fault: state.credentials_fault.clone(),
            clock_skew_seconds: state.skew.map(|skew| skew.as_secs_f64()),
            clock_fault: fault.clone(),
            renewals: state.renewals,
            failures: state.failures,
            failing: failing.map(|failed| Failing {
                seconds_ago: failed.at.elapsed().as_secs(),
                kind: failed.kind,
                error: failed.error.clone(),
            }),
        }
    }

    fn facts(&self) -> Facts {
        let state = self.shown.state.borrow();
        let reason = || state.obstacle.reason().map(str::to_owned);
        let (failing, waiting) = match (state.obstacle, &state.credentials_fault, &state.failing) {
            (Obstacle::Credentials, Some(fault), _) => (Some(fault.clone()), None),
            (Obstacle::Secret | Obstacle::Credentials, _, _) => (reason(), None),
            (Obstacle::Nothing, _, Some(failed)) => (Some(failed.error.clone()), None),
            (Obstacle::Nothing, _, None) => (state.clock_fault(self.target.config.duration), None),
            (Obstacle::Verification | Obstacle::PodMissing | Obstacle::PodNotReady, _, _) => (None, reason()),
            (Obstacle::Watch, _, _) => (None, None),
        };
        drop(state);
        let mut clusters: Vec<ClusterStatus> = Vec::new();
        for watch in &self.watches {
            let status = watch.cluster().status();
            if clusters.iter().all(|other| other.name != status.name) {
                clusters.push(status);
            }
        }
        Facts { clusters, failing, waiting, not_ready: not_listed(&self.watches, |_| true), ..Facts::default() }
    }
}

impl telemetry::Section for LeaseReport {
    fn name(&self) -> &SectionName {
        &self.target.config.name
    }

    fn job(&self) -> &'static str {
        "lease"
    }

    fn condition(&self) -> Condition {
        Condition::of(&self.facts())
    }

    fn overview(&self) -> Overview {
        let state = self.shown.state.borrow();
        let held = self.is_held(&state);
        Overview {
            flow: format!("{}→hub", self.target.config.cluster),
            subject: "leases".to_owned(),
            total: 1,
            in_step: usize::from(held),
            oldest_seconds: state.acknowledged.filter(|_| !held).map(|at| at.elapsed().as_secs_f64()),
        }
    }

    /// A lease that is not renewed because its pod is not ready counts as ready: the process may be a container of that
    /// pod. For the same reason, a hub that is unreachable or refuses the credentials does not make the process
    /// unready.
    fn readiness(&self) -> Readiness {
        let facts = self.facts();
        match (facts.readiness(), facts.failing) {
            (Readiness::Ready, Some(failing)) => Readiness::Unreachable(failing),
            (readiness, _) => readiness,
        }
    }

    fn report(&self) -> Value {
        // A struct of plain values always serializes.
        serde_json::to_value(self.build()).unwrap_or(Value::Null)
    }

    fn refresh(&self) {
        let held = self.is_held(&self.shown.state.borrow());
        self.shown.metrics.set_held(held);
    }
}
