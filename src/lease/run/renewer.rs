//! The actor of a lease: it renews the Lease while the pod is ready.
//!
//! It owns the credentials in use, at most one renewal and one verification under way, and the [`RenewalPlan`], which sees all
//! three and decides. The managed cluster's state reaches it as latest values, so it has no mailbox and nothing can
//! queue up in front of it. It wakes up when one of those values changes, when a request of its own ends, and by the
//! clock. After a restart it verifies the credentials again and acquires the lease anew. When it is drained, the lease
//! stays and expires.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use rand::Rng;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::plan::renewals::{Action, Observed, RenewalPlan, Secret, Timing};
use super::super::plan::steps::{Found, Method};
use super::latest::{LatestState, Obstacle};
use super::readiness::{PodState, SecretState};
use super::renewal::{Order, Renewed, Target, Verified, failure, renew, verify};
use crate::actor::{BoxError, Scope, sleep_until};
use crate::cluster::{Demand, DynamicCluster, Error, Urgency, Watch};

/// A renewer: what all its runs have in common.
pub struct Renewer {
    pub target: Arc<Target>,
    /// When the process started: the startup delay is not waited for again after a restart.
    pub started: Instant,
    pub secret: watch::Receiver<SecretState>,
    /// The state of the pod; `None` where no pod gates the lease.
    pub pod: Option<watch::Receiver<PodState>>,
    /// What operators see of it.
    pub latest: Arc<LatestState>,
    /// The watches of the Secret and the pod.
    pub sources: Vec<Arc<Watch>>,
    /// Keeps the watches running where the section is not elected.
    pub _demands: Vec<Demand>,
}

/// The state of one run.
struct RenewerState {
    target: Arc<Target>,
    latest: Arc<LatestState>,
    secret: watch::Receiver<SecretState>,
    pod: Option<watch::Receiver<PodState>>,
    plan: RenewalPlan,
    /// The credentials in use.
    current: Option<Arc<DynamicCluster>>,
    method: Method,
    /// What the verification of the credentials in use has found, until the next renewal.
    found: Found,
    /// The credentials in the Secret were tried in vain since the last ones that worked.
    is_refused: bool,
    renewing: Option<UnderWay<Renewed>>,
    /// A renewal with credentials that are no longer in use. Its success counts, its failure means nothing.
    detached: Option<UnderWay<Renewed>>,
    verifying: Option<UnderWay<Verified>>,
    /// Where the section is elected: the watches list again in each run, because earlier lists prove nothing.
    demands: Vec<Demand>,
}

/// A request, or several in a row, with the credentials that it is sent with.
struct UnderWay<T> {
    hub: Arc<DynamicCluster>,
    outcome: BoxFuture<'static, T>,
}

impl Renewer {
    pub async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        let mut state = RenewerState {
            target: Arc::clone(&self.target),
            latest: Arc::clone(&self.latest),
            secret: self.secret.clone(),
            pod: self.pod.clone(),
            plan: RenewalPlan::new(Timing::new(&self.target.config, self.started)),
            current: None,
            method: Method::Patch,
            found: Found::Unknown,
            is_refused: false,
            renewing: None,
            detached: None,
            verifying: None,
            demands: match &self.target.fence {
                Some(fence) => self.sources.iter().map(|watch| watch.demand(Some(fence))).collect(),
                None => Vec::new(),
            },
        };
        for demand in &state.demands {
            tokio::select! {
                () = scope.draining() => return Ok(()),
                () = demand.met() => {}
            }
        }
        loop {
            let until = state.act(&scope);
            tokio::select! {
                biased;
                () = scope.draining() => return Ok(()),
                (_, renewed) = end_of(&mut state.renewing) => state.renewed(renewed),
                (_, renewed) = end_of(&mut state.detached) => state.detached_ended(&renewed),
                (hub, verified) = end_of(&mut state.verifying) => state.verified(hub, verified),
                Ok(()) = state.secret.changed() => {}
                () = changed(&mut state.pod) => {}
                () = sleep_until(until) => {}
            }
        }
    }
}

impl RenewerState {
    /// Observes, asks the plan, and begins its actions. Returns when to look again.
    fn act(&mut self, scope: &Scope) -> Option<Instant> {
        let secret = self.secret.borrow_and_update().clone();
        let pod = self.pod.as_mut().map(|pod| *pod.borrow_and_update());
        let ready = pod.is_none_or(|pod| pod == PodState::Ready);
        let observed = Observed {
            secret: match &secret {
                SecretState::Unknown => Secret::Unknown,
                SecretState::Missing => Secret::Missing,
                SecretState::Invalid(_) => Secret::Invalid,
                SecretState::Valid(hub) => Secret::Valid(hub.fingerprint()),
            },
            ready,
            current: self.current.as_ref().map(|hub| hub.fingerprint()),
            renewing: self.renewing.as_ref().map(|renewal| renewal.hub.fingerprint()),
            verifying: self.verifying.as_ref().map(|verification| verification.hub.fingerprint()),
        };
        let next = self.plan.next(observed, Instant::now());
        for action in next.actions {
            self.begin(action, &secret);
        }
        if !ready || self.current.is_none() {
            self.detached = None;
        }
        if self.current.as_ref().is_some_and(|hub| observed.secret == Secret::Valid(hub.fingerprint())) {
            self.latest.uses_the_secret();
        }
        let obstacle = self.obstacle(&secret, pod);
        scope.set_state(obstacle.state());
        self.latest.observed(obstacle, self.plan.acknowledged().filter(|_| ready && self.current.is_some()), &secret);
        next.until
    }

    fn begin(&mut self, action: Action, secret: &SecretState) {
        match action {
            Action::DropCredentials => self.current = None,
            Action::CancelRenewal | Action::DetachRenewal => {
                self.detached = self.renewing.take().filter(|_| action == Action::DetachRenewal);
                // The renewal took the reply that an update would be based on.
                if matches!(self.method, Method::Update(_)) {
                    self.method = Method::Update(None);
                }
            }
            Action::CancelVerification => self.verifying = None,
            Action::Verify { deadline, at_once } => {
                let SecretState::Valid(hub) = secret else { return };
                let urgency = if at_once { Urgency::AtOnce } else { Urgency::WhenAdmitted };
                let outcome = verify(Arc::clone(&self.target), Arc::clone(hub), deadline, urgency).boxed();
                self.verifying = Some(UnderWay { hub: Arc::clone(hub), outcome });
            }
            Action::Renew { deadline, take } => {
                let Some(hub) = self.current.clone() else { return };
                let without_reply = match &self.method {
                    Method::Patch => Method::Patch,
                    Method::Update(_) => Method::Update(None),
                };
                let method = std::mem::replace(&mut self.method, without_reply);
                let found = std::mem::take(&mut self.found);
                let order = Order { hub: Arc::clone(&hub), method, found, take, deadline };
                let outcome = renew(Arc::clone(&self.target), order).boxed();
                self.renewing = Some(UnderWay { hub, outcome });
            }
        }
    }

    fn renewed(&mut self, renewed: Renewed) {
        let Renewed { sent, method, outcome, skew } = renewed;
        self.method = method;
        let chance = rand::rng().random();
        self.plan.renewed(sent, outcome.as_ref().copied().map_err(failure), Instant::now(), chance);
        match outcome {
            Ok(()) => self.latest.renewed(skew),
            // The section's own lease has expired. Even if an earlier request of this renewal was sent, its effect is
            // for the next holder to find.
            Err(Error::LeaseExpired(_)) => {}
            Err(error) => self.latest.failed(&error),
        }
    }

    fn detached_ended(&mut self, renewed: &Renewed) {
        if renewed.outcome.is_ok() {
            self.plan.detached_succeeded(renewed.sent);
            self.latest.renewed(renewed.skew);
        }
    }

    fn verified(&mut self, hub: Arc<DynamicCluster>, verified: Verified) {
        let outcome = verified.as_ref().map(|_| ()).map_err(failure);
        let takes_over = self.plan.verified(outcome, self.current.is_some(), Instant::now());
        match verified {
            Ok(found) if takes_over => {
                tracing::info!(section = %self.target.config.name, credentials = ?hub.fingerprint(), "credentials are in use");
                self.current = Some(hub);
                self.method = Method::Patch;
                self.found = found;
                self.is_refused = false;
                self.latest.took_over();
            }
            // The Secret no longer has these credentials, or the request was not sent.
            Ok(_) | Err(Error::LeaseExpired(_)) => {}
            Err(error) => {
                self.is_refused = true;
                self.latest.rejected(&error);
            }
        }
    }

    /// Why the lease is not renewed.
    fn obstacle(&self, secret: &SecretState, pod: Option<PodState>) -> Obstacle {
        match (secret, pod) {
            (SecretState::Unknown, _) | (_, Some(PodState::Unknown)) => Obstacle::Watch,
            (SecretState::Missing, _) => Obstacle::Secret,
            (SecretState::Valid(_), _) if self.current.is_none() && !self.is_refused => Obstacle::Verification,
            _ if self.current.is_none() => Obstacle::Credentials,
            (_, Some(PodState::Missing)) => Obstacle::PodMissing,
            (_, Some(PodState::NotReady)) => Obstacle::PodNotReady,
            _ => Obstacle::Nothing,
        }
    }
}

/// However a run ends, the lease is no longer held by it.
impl Drop for RenewerState {
    fn drop(&mut self) {
        self.latest.stopped();
    }
}

/// Waits for the outcome, and takes it out of its place. Never ends where nothing is under way.
async fn end_of<T>(place: &mut Option<UnderWay<T>>) -> (Arc<DynamicCluster>, T) {
    let Some(under_way) = place else { return std::future::pending().await };
    let outcome = (&mut under_way.outcome).await;
    let hub = Arc::clone(&under_way.hub);
    *place = None;
    (hub, outcome)
}

async fn changed(pod: &mut Option<watch::Receiver<PodState>>) {
    let open = match pod {
        Some(pod) => pod.changed().await.is_ok(),
        None => false,
    };
    if !open {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::DynamicClusters;
    use crate::lease::config::LeaseConfig;
    use crate::lease::run::credentials::{self, Error as Fault};
    use crate::lease::status::LeaseReport;
    use crate::status::Section;

    fn renewer() -> (RenewerState, LeaseReport) {
        let config = LeaseConfig {
            name: "heartbeat".parse().unwrap(),
            cluster: "edge".parse().unwrap(),
            lease_name: "add-on".into(),
            lease_namespace: "managed".into(),
            secret_name: "hub-kubeconfig".into(),
            secret_namespace: "add-ons".into(),
            pod: None,
            duration: Duration::from_mins(1),
            renew_interval: Duration::from_secs(20),
            startup_delay: Duration::ZERO,
        };
        let latest = Arc::new(LatestState::new(&config));
        let plan = RenewalPlan::new(Timing::new(&config, Instant::now()));
        let target = Arc::new(Target::new(config, "host".to_owned(), None));
        let report = LeaseReport::new(Arc::clone(&target), Arc::clone(&latest), Vec::new());
        let state = RenewerState {
            target,
            latest,
            secret: watch::channel(SecretState::Unknown).1,
            pod: None,
            plan,
            current: None,
            method: Method::Patch,
            found: Found::Unknown,
            is_refused: false,
            renewing: None,
            detached: None,
            verifying: None,
            demands: Vec::new(),
        };
        (state, report)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_not_held_after_its_renewer_has_ended() {
        let (state, report) = renewer();
        state.latest.renewed(None);
        state.latest.observed(Obstacle::Nothing, Some(Instant::now()), &SecretState::Unknown);
        assert_eq!(report.report()["held"], true);
        drop(state);
        let told = report.report();
        assert_eq!((&told["held"], &told["renewals"]), (&false.into(), &1.into()), "{told}");
    }

    /// Credentials that differ from others by the name of their server.
    fn hub(server: &str) -> Arc<DynamicCluster> {
        let kubeconfig = format!(
            r#"{{"clusters":[{{"name":"hub","cluster":{{"server":"https://{server}"}}}}],"current-context":"hub",
            "contexts":[{{"name":"hub","context":{{"cluster":"hub"}}}}]}}"#
        );
        let data = serde_json::json!({"kubeconfig": k8s_openapi::ByteString(kubeconfig.into_bytes())});
        let content = serde_json::json!({ "data": data }).to_string();
        credentials::connect(credentials::read(&content).unwrap(), &DynamicClusters::default()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_is_put_back_to_the_credentials_in_use_is_not_reported_as_broken() {
        let (mut state, report) = renewer();
        let (secret, states) = watch::channel(SecretState::Valid(hub("old.invalid")));
        state.secret = states;
        let (scope, _drain) = Scope::standalone("renewer");
        let fault = || report.report().get("credentials_fault").cloned();
        state.act(&scope);
        let UnderWay { hub: verified, .. } = state.verifying.take().expect("the credentials are verified");
        state.verified(verified, Ok(Found::Unknown));
        for broken in [SecretState::Valid(hub("new.invalid")), SecretState::Invalid(Fault::NoKubeconfig)] {
            secret.send_replace(broken);
            state.act(&scope);
            if let Some(UnderWay { hub, .. }) = state.verifying.take() {
                state.verified(hub, Err(Error::Decode { source: String::from("it is another server").into() }));
                state.act(&scope);
            }
            assert!(fault().is_some(), "the fault is not reported");
            secret.send_replace(SecretState::Valid(hub("old.invalid")));
            state.act(&scope);
            assert_eq!(fault(), None, "the fault of an earlier secret is reported");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_is_gone_ends_the_use_of_its_credentials_and_the_renewal_under_way() {
        let (mut state, _) = renewer();
        let (secret, states) = watch::channel(SecretState::Valid(hub("hub.invalid")));
        state.secret = states;
        let (scope, _drain) = Scope::standalone("renewer");
        state.act(&scope);
        let UnderWay { hub, .. } = state.verifying.take().expect("the credentials are verified");
        state.verified(hub, Ok(Found::Unknown));
        state.act(&scope);
        assert!(state.renewing.is_some(), "a renewal is due");
        secret.send_replace(SecretState::Missing);
        state.act(&scope);
        assert!(state.current.is_none() && state.renewing.is_none() && state.detached.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_detached_renewal_counts_when_it_succeeds() {
        let (mut state, report) = renewer();
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        state.detached_ended(&Renewed { sent, method: Method::Patch, outcome: Ok(()), skew: None });
        assert_eq!((state.plan.acknowledged(), &report.report()["renewals"]), (Some(sent), &1.into()));
    }
}
