//! What a lease shows to operators: held or not and why, and how its renewals went.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::metrics::LeaseMetrics;
use super::readiness::Offer;
use super::renewal::Target;
use crate::cluster::{Error, Listed, Watch};
use crate::config::SectionName;
use crate::telemetry::{self, ClusterStanding, Condition, Facts, NotReady, Overview, Readiness, Refused};

/// What stands in the way of renewing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Waits {
    /// The Secret or the pod has not been looked for yet.
    #[default]
    Watch,
    /// There is no Secret.
    Secret,
    /// There are no credentials that were found to work.
    Credentials,
    /// There is no pod.
    PodMissing,
    /// The pod is not ready.
    PodNotReady,
    /// Nothing.
    Nothing,
}

impl Waits {
    /// For the actor tree.
    pub(super) fn state(self) -> &'static str {
        match self {
            Self::Watch => "connecting",
            Self::Secret => "no secret",
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
            Self::Credentials => Some("there are no credentials that work"),
            Self::PodMissing => Some("there is no such pod"),
            Self::PodNotReady => Some("the pod is not ready"),
            Self::Nothing => None,
        }
    }
}

/// What is known of a lease at a moment.
#[derive(Debug, Default)]
struct State {
    waits: Waits,
    /// When the last acknowledged renewal was sent, while nothing stands in the way of the next.
    holding: Option<Instant>,
    acknowledged: Option<Instant>,
    credentials_since: Option<Instant>,
    /// What is wrong with the Secret's credentials; those in use before go on.
    credentials_fault: Option<String>,
    /// What the last renewal failed with, since the last that succeeded.
    failing: Option<Failed>,
    renewals: u64,
    failures: u64,
}

#[derive(Debug)]
struct Failed {
    at: Instant,
    kind: &'static str,
    error: String,
}

/// What is told of a lease: written by its renewer, read by the admin server.
#[derive(Debug)]
pub(super) struct Shown {
    name: SectionName,
    state: Mutex<State>,
    metrics: LeaseMetrics,
}

impl Shown {
    /// Nothing has happened yet.
    pub(super) fn new(name: SectionName) -> Self {
        let metrics = LeaseMetrics::new(&name);
        Self { name, state: Mutex::default(), metrics }
    }

    /// The renewer has looked around. `holding`: when the last acknowledged renewal was sent, where the next one will be.
    pub(super) fn observed(&self, waits: Waits, holding: Option<Instant>, offer: &Offer) {
        let mut state = self.state.lock();
        if state.waits != waits {
            state.waits = waits;
            if let Some(reason) = waits.reason() {
                tracing::info!(section = %self.name, reason, "lease is not renewed");
            } else {
                tracing::info!(section = %self.name, "lease is renewed");
            }
            if waits != Waits::Nothing {
                // What failed while it was renewed says nothing of now.
                state.failing = None;
            }
        }
        state.holding = holding;
        match offer {
            Offer::Faulty(fault) => {
                let fault = fault.to_string();
                if state.credentials_fault.as_ref() != Some(&fault) {
                    tracing::warn!(section = %self.name, fault, "the secret's credentials can't be used");
                    state.credentials_fault = Some(fault);
                }
            }
            Offer::Missing => {
                state.credentials_fault = None;
                state.credentials_since = None;
            }
            Offer::Unknown | Offer::Given(_) => {}
        }
    }

    /// The renewer has ended: nothing is held here, and what was known is of now no more.
    pub(super) fn stopped(&self) {
        let mut state = self.state.lock();
        let State { acknowledged, renewals, failures, .. } = *state;
        *state = State { acknowledged, renewals, failures, ..State::default() };
    }

    /// New credentials are in use.
    pub(super) fn took_over(&self) {
        let mut state = self.state.lock();
        state.credentials_since = Some(Instant::now());
        state.credentials_fault = None;
    }

    /// The Secret has the credentials that are in use, perhaps again: what was wrong with others is over.
    pub(super) fn uses_what_is_offered(&self) {
        let fault = self.state.lock().credentials_fault.take();
        if fault.is_some() {
            tracing::info!(section = %self.name, "the secret has the credentials in use again");
        }
    }

    /// The hub does not take the Secret's credentials.
    pub(super) fn rejected(&self, error: &Error) {
        let mut state = self.state.lock();
        if state.credentials_fault.is_none() {
            tracing::warn!(section = %self.name, %error, "the secret's credentials don't work, trying on");
        }
        state.credentials_fault = Some(error.to_string());
    }

    /// A renewal was acknowledged.
    pub(super) fn renewed(&self) {
        self.metrics.renewed();
        let mut state = self.state.lock();
        state.renewals += 1;
        state.acknowledged = Some(Instant::now());
        if let Some(failed) = state.failing.take() {
            tracing::info!(section = %self.name, after = failed.kind, "lease is renewed again");
        }
    }

    /// A renewal failed.
    pub(super) fn failed(&self, error: &Error) {
        self.metrics.failed();
        let mut state = self.state.lock();
        state.failures += 1;
        if state.failing.as_ref().is_none_or(|failed| failed.kind != error.kind()) {
            tracing::warn!(section = %self.name, %error, "lease can't be renewed, trying on");
        }
        state.failing = Some(Failed { at: Instant::now(), kind: error.kind(), error: error.to_string() });
    }
}

/// A lease as the admin server sees it.
pub struct LeaseReport {
    target: Arc<Target>,
    shown: Arc<Shown>,
    /// What has to be listed before anything is decided: the Secret's and the pod's.
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
    /// The report of a lease.
    pub(super) fn new(target: Arc<Target>, shown: Arc<Shown>, watches: Vec<Arc<Watch>>) -> Self {
        Self { target, shown, watches }
    }

    /// Whether the hub holds the lease for valid, by this process's clock.
    fn is_held(&self, state: &State) -> bool {
        state.holding.is_some_and(|sent| sent.elapsed() < self.target.config.duration)
    }

    fn build(&self) -> Report {
        let state = self.shown.state.lock();
        let held = self.is_held(&state);
        let failing = state.failing.as_ref();
        let reason = || {
            let waits = state.waits.reason().map(str::to_owned);
            waits.or_else(|| failing.map(|failed| failed.error.clone())).or(Some("not renewed yet".to_owned()))
        };
        Report {
            lease: self.target.key.to_string(),
            held,
            not_held_because: if held { None } else { reason() },
            holder: self.target.holder.clone(),
            seconds_since_renewal: state.acknowledged.map(|at| at.elapsed().as_secs_f64()),
            seconds_since_new_credentials: state.credentials_since.map(|at| at.elapsed().as_secs()),
            credentials_fault: state.credentials_fault.clone(),
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
        let state = self.shown.state.lock();
        let reason = || state.waits.reason().map(str::to_owned);
        let (failing, waiting) = match (state.waits, &state.credentials_fault, &state.failing) {
            (Waits::Credentials, Some(fault), _) => (Some(fault.clone()), None),
            (Waits::Secret | Waits::Credentials, _, _) => (reason(), None),
            (Waits::Nothing, _, Some(failed)) => (Some(failed.error.clone()), None),
            (Waits::PodMissing | Waits::PodNotReady, _, _) => (None, reason()),
            (Waits::Watch | Waits::Nothing, _, _) => (None, None),
        };
        drop(state);
        let not_ready = self.not_listed_because();
        let mut clusters: Vec<ClusterStanding> = Vec::new();
        for watch in &self.watches {
            let standing = watch.cluster().standing();
            if clusters.iter().all(|other| other.name != standing.name) {
                clusters.push(standing);
            }
        }
        Facts {
            clusters,
            failing,
            waiting,
            not_ready: not_ready.map(|(reason, unreachable)| NotReady { reason, unreachable }),
            ..Facts::default()
        }
    }

    /// Why the managed cluster has not been looked at yet, and whether it does not answer.
    fn not_listed_because(&self) -> Option<(String, bool)> {
        self.watches.iter().find_map(|watch| match &*watch.store().listed().borrow() {
            Listed::Yes => None,
            Listed::No { reason, unreachable } => {
                let reason = reason.clone().unwrap_or_else(|| "not listed yet".to_owned());
                Some((format!("{}: {reason}", watch.id().label()), *unreachable))
            }
        })
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
        let state = self.shown.state.lock();
        let held = self.is_held(&state);
        Overview {
            flow: format!("{}→hub", self.target.config.cluster),
            subject: "leases".to_owned(),
            total: 1,
            in_step: usize::from(held),
            oldest_seconds: state.acknowledged.filter(|_| !held).map(|at| at.elapsed().as_secs_f64()),
        }
    }

    /// Ready while it does what it is to do, which is nothing while the pod is not ready: the process may be a container
    /// of that pod. For the same reason a hub that can't be reached, or not with these credentials, does not make the
    /// process unready.
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
        let held = self.is_held(&self.shown.state.lock());
        self.shown.metrics.set_held(held);
    }

    fn approve(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async { Err(Refused::Unsupported { job: "lease" }) })
    }

    fn detach(&self, _local_gone: bool) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async { Err(Refused::Unsupported { job: "lease" }) })
    }
}
