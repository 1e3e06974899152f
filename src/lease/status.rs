//! What operators see of a lease: whether it is held, why not, and how its renewals went.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use serde::Serialize;
use serde_json::Value;

use super::run::renewal::Target;
use super::run::shown::{LeaseState, Obstacle, Shown};
use crate::cluster::Watch;
use crate::config::SectionName;
use crate::job::not_listed;
use crate::telemetry::{self, ClusterStatus, Condition, Facts, Overview, Readiness};

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
    fn is_held(&self, state: &LeaseState) -> bool {
        let behind =
            state.skew.filter(SignedDuration::is_negative).map_or(Duration::ZERO, SignedDuration::unsigned_abs);
        state.holding.is_some_and(|sent| sent.elapsed().saturating_add(behind) < self.target.config.duration)
    }

    fn build(&self) -> Report {
        let state = self.shown.state();
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
        let state = self.shown.state();
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
        let state = self.shown.state();
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
        let held = self.is_held(&self.shown.state());
        self.shown.set_held(held);
    }
}
