//! What operators see of a lease: whether it is held, why not, and how its renewals went.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::SignedDuration;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::config::LeaseConfig;
use super::run::latest::{LatestState, LeaseState, Obstacle};
use super::run::renewal::Target;
use crate::cluster::{ClusterStatus, Watch};
use crate::config::SectionName;
use crate::job::not_listed;
use crate::status::{self, Facts, ListedObject, ObjectState, Objects, Refused};

/// A lease as the admin server sees it.
pub struct LeaseReport {
    target: Arc<Target>,
    latest: Arc<LatestState>,
    /// The watches of the Secret and the pod. Both must have listed before anything is decided.
    watches: Vec<Arc<Watch>>,
    began: Instant,
}

/// The keys of `/status` that only sections of this job have.
#[derive(Debug, Serialize)]
struct OwnKeys {
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
    pub(super) fn new(target: Arc<Target>, latest: Arc<LatestState>, watches: Vec<Arc<Watch>>) -> Self {
        Self { target, latest, watches, began: Instant::now() }
    }

    /// Whether the lease is valid on the hub. `renewTime` is as far in the past as this machine's clock is behind.
    fn is_held(&self, state: &LeaseState) -> bool {
        let behind =
            state.skew.filter(SignedDuration::is_negative).map_or(Duration::ZERO, SignedDuration::unsigned_abs);
        state.holding.is_some_and(|sent| sent.elapsed().saturating_add(behind) < self.target.config.duration)
    }

    /// Why the lease is not held.
    fn reason(&self, state: &LeaseState) -> String {
        let failed = || state.failing.as_ref().map(|failed| failed.error.clone());
        let fault = || state.clock_fault(self.target.config.duration);
        let obstacle = state.obstacle.reason().map(str::to_owned);
        obstacle.or_else(failed).or_else(fault).unwrap_or_else(|| "not renewed yet".to_owned())
    }

    /// What an operator can do where renewing waits for something on the managed cluster.
    fn next_step(&self, obstacle: Obstacle) -> Option<String> {
        let LeaseConfig { cluster, secret_namespace, secret_name, pod, .. } = &self.target.config;
        match obstacle {
            Obstacle::Secret => Some(format!("make the Secret {secret_namespace}/{secret_name} on {cluster}")),
            Obstacle::Credentials => Some(format!(
                "check `kubeconfig` in the Secret {secret_namespace}/{secret_name} on {cluster}, and that its server answers"
            )),
            Obstacle::PodMissing | Obstacle::PodNotReady => {
                pod.as_ref().map(|pod| format!("look at the pod {}/{} on {cluster}", pod.namespace, pod.name))
            }
            Obstacle::Watch | Obstacle::Verification | Obstacle::Nothing => None,
        }
    }

    fn own_keys(&self) -> OwnKeys {
        let state = self.latest.state();
        let held = self.is_held(&state);
        let failing = state.failing.as_ref();
        OwnKeys {
            lease: self.target.key.to_string(),
            held,
            not_held_because: (!held).then(|| self.reason(&state)),
            holder: self.target.holder.clone(),
            seconds_since_renewal: state.acknowledged.map(|at| at.elapsed().as_secs_f64()),
            seconds_since_new_credentials: state.credentials_since.map(|at| at.elapsed().as_secs()),
            credentials_fault: state.credentials_fault.clone(),
            clock_skew_seconds: state.skew.map(|skew| skew.as_secs_f64()),
            clock_fault: state.clock_fault(self.target.config.duration),
            renewals: state.renewals,
            failures: state.failures,
            failing: failing.map(|failed| Failing {
                seconds_ago: failed.at.elapsed().as_secs(),
                kind: failed.kind,
                error: failed.error.clone(),
            }),
        }
    }
}

impl status::Section for LeaseReport {
    fn name(&self) -> &SectionName {
        &self.target.config.name
    }

    fn job(&self) -> &'static str {
        "lease"
    }

    /// A lease that is not renewed because its pod is not ready counts as ready: the process may be a container of that
    /// pod. For the same reason, a hub that is unreachable or refuses the credentials does not make the process
    /// unready.
    fn facts(&self) -> Facts {
        let state = self.latest.state();
        let reason = || state.obstacle.reason().map(str::to_owned);
        let (undelivered, waiting) = match (state.obstacle, &state.credentials_fault, &state.failing) {
            (Obstacle::Credentials, Some(fault), _) => (Some(fault.clone()), None),
            (Obstacle::Secret | Obstacle::Credentials, _, _) => (reason(), None),
            (Obstacle::Nothing, _, Some(failed)) => (Some(failed.error.clone()), None),
            (Obstacle::Nothing, _, None) => (state.clock_fault(self.target.config.duration), None),
            (Obstacle::Verification | Obstacle::PodMissing | Obstacle::PodNotReady, _, _) => (None, reason()),
            (Obstacle::Watch, _, _) => (None, None),
        };
        let is = match (self.is_held(&state), &undelivered) {
            (true, _) => ObjectState::InStep,
            (false, Some(_)) => ObjectState::Failing,
            (false, None) => ObjectState::Pending,
        };
        let lease = (&self.target.key, (), is, Some(state.acknowledged.unwrap_or(self.began)));
        let mut objects = Objects::of(std::iter::once(lease), Instant::now(), |key, (), is, since| ListedObject {
            cause: match (state.obstacle, &state.credentials_fault) {
                (Obstacle::Credentials, Some(fault)) => fault.clone(),
                _ => self.reason(&state),
            },
            next_step: self.next_step(state.obstacle),
            ..ListedObject::new(key, is, since)
        });
        objects.oldest = state.acknowledged.filter(|_| is != ObjectState::InStep).map(|at| at.elapsed());
        drop(state);
        let mut clusters: Vec<ClusterStatus> = Vec::new();
        for watch in &self.watches {
            let status = watch.cluster().status();
            if clusters.iter().all(|other| other.name != status.name) {
                clusters.push(status);
            }
        }
        Facts {
            flow: format!("{}→hub", self.target.config.cluster),
            subject: "leases".to_owned(),
            objects,
            clusters,
            undelivered,
            waiting,
            not_ready: not_listed(&self.watches, |_| true),
            ..Facts::default()
        }
    }

    /// There is one object, whose state is what the report says.
    fn explain<'s>(&'s self, name: &'s str) -> BoxFuture<'s, Result<Value, Refused>> {
        let lease = self.target.key.to_string();
        if lease != name {
            return status::explained(self.name(), &[], || format!("renews the lease {lease} alone"));
        }
        let found = self.facts().objects.not_in_step.pop();
        let state = if self.is_held(&self.latest.state()) { ObjectState::InStep } else { ObjectState::Pending };
        let mut object = found.unwrap_or_else(|| ListedObject::new(lease, state, None));
        if let Value::Object(report) = self.report() {
            object.also = report;
        }
        status::explained(self.name(), &[object], String::new)
    }

    fn report(&self) -> Value {
        // A struct of plain values always serializes.
        serde_json::to_value(self.own_keys()).unwrap_or(Value::Null)
    }

    fn refresh(&self) {
        let held = self.is_held(&self.latest.state());
        self.latest.set_held(held);
    }
}
