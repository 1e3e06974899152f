//! The actor of a lease: it renews while the pod is ready.
//!
//! It owns its [`Plan`] and at most one renewal and one verification that are under way; what the managed cluster says
//! comes to it as latest values, so it has no mailbox and nothing can pile up before it. It is woken by those, by its
//! own requests' ends and by the clock. Restarted, it verifies the credentials again and takes the lease anew; drained,
//! it leaves the lease to run out by itself.

use std::sync::Arc;

use futures::future::BoxFuture;
use rand::Rng;
use tokio::sync::watch;
use tokio::time::Instant;

use super::hub::{Hub, Urgency};
use super::plan::{Action, Observed, Offered, Plan, Terms};
use super::readiness::{Offer, PodState};
use super::renewal::{Order, Renewed, Target, Verified, failure, renew, verify};
use super::report::{Shown, Waits};
use super::turn::Method;
use crate::actor::{BoxError, Scope};
use crate::cluster::{Demand, Error, Watch};

/// What a renewer is made of, for each of its instances.
pub(super) struct Renewer {
    /// Which lease.
    pub(super) target: Arc<Target>,
    /// When the process started: the startup delay is not waited for again after a restart.
    pub(super) started: Instant,
    /// The Secret.
    pub(super) offers: watch::Receiver<Offer>,
    /// The pod; none where the lease is not gated.
    pub(super) pod: Option<watch::Receiver<PodState>>,
    /// What is told of it.
    pub(super) shown: Arc<Shown>,
    /// The watches behind the Secret and the pod.
    pub(super) sources: Vec<Arc<Watch>>,
    /// Keeps them running where the section is not elected.
    pub(super) _demands: Vec<Demand>,
}

/// One instance.
struct Running {
    target: Arc<Target>,
    shown: Arc<Shown>,
    offers: watch::Receiver<Offer>,
    pod: Option<watch::Receiver<PodState>>,
    plan: Plan,
    /// The credentials in use.
    current: Option<Arc<Hub>>,
    method: Method,
    /// The hub has just said that there is no such lease.
    is_missing: bool,
    renewing: Option<BoxFuture<'static, Renewed>>,
    /// A renewal with credentials that are no longer in use. That it went through counts, that it did not says nothing.
    leaving: Option<BoxFuture<'static, Renewed>>,
    verifying: Option<(Arc<Hub>, BoxFuture<'static, Verified>)>,
    /// Where the section is elected: what was seen in an earlier term says nothing, until it has been listed again.
    demands: Vec<Demand>,
}

impl Renewer {
    /// The actor's body.
    pub(super) async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        let mut running = Running {
            target: Arc::clone(&self.target),
            shown: Arc::clone(&self.shown),
            offers: self.offers.clone(),
            pod: self.pod.clone(),
            plan: Plan::new(Terms::new(&self.target.config, self.started)),
            current: None,
            method: Method::Patch,
            is_missing: false,
            renewing: None,
            leaving: None,
            verifying: None,
            demands: match &self.target.fence {
                Some(fence) => self.sources.iter().map(|watch| watch.demand(Some(fence))).collect(),
                None => Vec::new(),
            },
        };
        for demand in &running.demands {
            tokio::select! {
                () = scope.draining() => return Ok(()),
                () = demand.met() => {}
            }
        }
        loop {
            let until = running.turn(&scope);
            tokio::select! {
                biased;
                () = scope.draining() => return Ok(()),
                renewed = under_way(&mut running.renewing) => running.renewed(renewed),
                renewed = under_way(&mut running.leaving) => running.left(&renewed),
                verified = verification(&mut running.verifying) => running.verified(verified),
                Ok(()) = running.offers.changed() => {}
                () = changed(&mut running.pod) => {}
                () = sleep_until(until) => {}
            }
        }
    }
}

impl Running {
    /// Looks, and begins what the plan says. Returns when to look again.
    fn turn(&mut self, scope: &Scope) -> Option<Instant> {
        let offer = self.offers.borrow_and_update().clone();
        let pod = self.pod.as_mut().map(|pod| *pod.borrow_and_update());
        let ready = pod.is_none_or(|pod| pod == PodState::Ready);
        let offered = match &offer {
            Offer::Unknown => Offered::Unknown,
            Offer::Missing => Offered::Missing,
            Offer::Faulty(_) => Offered::Faulty,
            Offer::Given(hub) => Offered::Given(hub.fingerprint()),
        };
        if !ready || self.current.is_none() {
            self.leaving = None;
        }
        let now = Instant::now();
        let next = self.plan.next(Observed { offered, ready }, now);
        if self.plan.current().is_none() {
            self.current = None;
        }
        for action in next.actions {
            self.begin(action, &offer);
        }
        if self.current.as_ref().is_some_and(|hub| offered == Offered::Given(hub.fingerprint())) {
            self.shown.uses_what_is_offered();
        }
        let waits = self.waits(&offer, pod);
        scope.set_state(waits.state());
        self.shown.observed(waits, self.plan.acknowledged().filter(|_| ready && self.current.is_some()), &offer);
        next.until
    }

    fn begin(&mut self, action: Action, offer: &Offer) {
        match action {
            Action::CancelRenewal | Action::LeaveRenewal => {
                self.leaving = self.renewing.take().filter(|_| action == Action::LeaveRenewal);
                // What an update was to be based on went with it.
                if matches!(self.method, Method::Update(_)) {
                    self.method = Method::Update(None);
                }
            }
            Action::CancelVerification => self.verifying = None,
            Action::Verify { deadline, at_once } => {
                let Offer::Given(hub) = offer else { return };
                let urgency = if at_once { Urgency::AtOnce } else { Urgency::InTurn };
                let asking = verify(Arc::clone(&self.target), Arc::clone(hub), deadline, urgency);
                self.verifying = Some((Arc::clone(hub), Box::pin(asking)));
            }
            Action::Renew { deadline, take } => {
                let Some(hub) = self.current.clone() else { return };
                let left = match &self.method {
                    Method::Patch => Method::Patch,
                    Method::Update(_) => Method::Update(None),
                };
                let method = std::mem::replace(&mut self.method, left);
                let is_missing = std::mem::take(&mut self.is_missing);
                let order = Order { hub, method, is_missing, take, deadline };
                self.renewing = Some(Box::pin(renew(Arc::clone(&self.target), order)));
            }
        }
    }

    fn renewed(&mut self, renewed: Renewed) {
        let Renewed { sent, method, outcome } = renewed;
        self.method = method;
        let chance = rand::rng().random();
        self.plan.renewed(sent, outcome.as_ref().copied().map_err(failure), Instant::now(), chance);
        match outcome {
            Ok(()) => self.shown.renewed(),
            // Its claim has ended: not before a first request, perhaps, but what came of that is the next holder's to find.
            Err(Error::Unclaimed(_)) => {}
            Err(error) => self.shown.failed(&error),
        }
    }

    /// A renewal that was left to itself has ended.
    fn left(&mut self, renewed: &Renewed) {
        if renewed.outcome.is_ok() {
            self.plan.left_went_through(renewed.sent);
            self.shown.renewed();
        }
    }

    fn verified(&mut self, (hub, verified): (Arc<Hub>, Verified)) {
        let outcome = verified.as_ref().map(|_| ()).map_err(failure);
        let took_over = self.plan.verified(outcome, Instant::now());
        match verified {
            Ok(is_there) if took_over => {
                tracing::info!(section = %self.target.config.name, credentials = ?hub.fingerprint(), "credentials are in use");
                self.current = Some(hub);
                self.method = Method::Patch;
                self.is_missing = !is_there;
                self.shown.took_over();
            }
            // Of credentials that are no longer offered, or never sent.
            Ok(_) | Err(Error::Unclaimed(_)) => {}
            Err(error) => self.shown.rejected(&error),
        }
    }

    /// What stands in the way of a renewal.
    fn waits(&self, offer: &Offer, pod: Option<PodState>) -> Waits {
        match (offer, pod) {
            (Offer::Unknown, _) | (_, Some(PodState::Unknown)) => Waits::Watch,
            (Offer::Missing, _) => Waits::Secret,
            _ if self.current.is_none() => Waits::Credentials,
            (_, Some(PodState::Missing)) => Waits::PodMissing,
            (_, Some(PodState::NotReady)) => Waits::PodNotReady,
            _ => Waits::Nothing,
        }
    }
}

/// However it ends: what is not renewed here any more is not held here.
impl Drop for Running {
    fn drop(&mut self) {
        self.shown.stopped();
    }
}

/// The end of what is under way; it is taken out with it.
async fn under_way(renewing: &mut Option<BoxFuture<'static, Renewed>>) -> Renewed {
    match renewing {
        Some(going_on) => {
            let renewed = going_on.await;
            *renewing = None;
            renewed
        }
        None => std::future::pending().await,
    }
}

async fn verification(verifying: &mut Option<(Arc<Hub>, BoxFuture<'static, Verified>)>) -> (Arc<Hub>, Verified) {
    match verifying {
        Some((hub, going_on)) => {
            let verified = going_on.await;
            let hub = Arc::clone(hub);
            *verifying = None;
            (hub, verified)
        }
        None => std::future::pending().await,
    }
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

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::config::LeaseConfig;
    use super::*;
    use crate::lease::credentials::Error as Fault;
    use crate::lease::hub::Hubs;
    use crate::lease::report::LeaseReport;
    use crate::telemetry::Section;

    fn running() -> (Running, LeaseReport) {
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
        let shown = Arc::new(Shown::new(config.name.clone()));
        let plan = Plan::new(Terms::new(&config, Instant::now()));
        let target = Arc::new(Target::new(config, "host".to_owned(), None));
        let report = LeaseReport::new(Arc::clone(&target), Arc::clone(&shown), Vec::new());
        let running = Running {
            target,
            shown,
            offers: watch::channel(Offer::Unknown).1,
            pod: None,
            plan,
            current: None,
            method: Method::Patch,
            is_missing: false,
            renewing: None,
            leaving: None,
            verifying: None,
            demands: Vec::new(),
        };
        (running, report)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_not_held_where_its_renewer_has_ended() {
        let (running, report) = running();
        running.shown.renewed();
        running.shown.observed(Waits::Nothing, Some(Instant::now()), &Offer::Unknown);
        assert_eq!(report.report()["held"], true);
        drop(running);
        let told = report.report();
        assert_eq!((&told["held"], &told["renewals"]), (&false.into(), &1.into()), "{told}");
    }

    /// Credentials that differ from others by the name of their server.
    fn hub(server: &str) -> Arc<Hub> {
        let kubeconfig = format!(
            r#"{{"clusters":[{{"name":"hub","cluster":{{"server":"https://{server}"}}}}],"current-context":"hub",
            "contexts":[{{"name":"hub","context":{{"cluster":"hub"}}}}]}}"#
        );
        let data = serde_json::json!({"kubeconfig": k8s_openapi::ByteString(kubeconfig.into_bytes())});
        let content = serde_json::json!({ "data": data }).to_string();
        Hubs::default().hub(crate::lease::credentials::read(&content).unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_is_put_back_to_the_credentials_in_use_is_not_told_as_broken() {
        let (mut running, report) = running();
        let (secret, offers) = watch::channel(Offer::Given(hub("old.invalid")));
        running.offers = offers;
        let (scope, _drain) = Scope::standalone("renewer");
        let fault = || report.report().get("credentials_fault").cloned();
        running.turn(&scope);
        let given = hub("old.invalid");
        running.verified((given, Ok(true)));
        for broken in [Offer::Given(hub("new.invalid")), Offer::Faulty(Fault::NoKubeconfig)] {
            secret.send_replace(broken);
            running.turn(&scope);
            if let Some((hub, _)) = running.verifying.take() {
                running.verified((hub, Err(Error::Decode { reason: "it is another server".into() })));
                running.turn(&scope);
            }
            assert!(fault().is_some(), "what is broken is not told");
            secret.send_replace(Offer::Given(hub("old.invalid")));
            running.turn(&scope);
            assert_eq!(fault(), None, "what is no longer in the secret is told of it");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_with_the_last_credentials_counts_when_it_goes_through() {
        let (mut running, report) = running();
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        running.left(&Renewed { sent, method: Method::Patch, outcome: Ok(()) });
        assert_eq!((running.plan.acknowledged(), &report.report()["renewals"]), (Some(sent), &1.into()));
    }
}
