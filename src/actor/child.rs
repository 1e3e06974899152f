//! What a supervisor knows of a child: how to create an instance, and what to do when it ends.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr};

use super::Name;
use super::control::{ChildExited, Controls, ExitNotice};
use super::exit::BoxError;
use super::gate::Gate;
use super::report::Gauge;
use super::restart::RestartPolicy;
use super::scope::Scope;
use super::shell::{BodyFactory, Shell};
use super::supervisor::Supervisor;

/// The specification of a child: its name, a factory for its instances, and its policies.
pub struct ChildSpec {
    name: String,
    kind: Kind,
    restart: Option<RestartPolicy>,
    stall_after: Option<Duration>,
    gauge: Option<Arc<dyn Gauge>>,
    gate: Option<Gate>,
}

enum Kind {
    Body(BodyFactory),
    Supervisor { policy: RestartPolicy, children: ChildrenFactory },
}

/// Creates the children of a nested supervisor, once for each of its instances.
type ChildrenFactory = Arc<dyn Fn() -> Vec<ChildSpec> + Send + Sync>;

impl ChildSpec {
    /// An actor. `factory` creates the body of each instance, a future that runs on the multi-thread runtime.
    ///
    /// The body returns `Ok(())` when it is drained or has finished for good, and an error to be restarted. The factory
    /// captures everything that outlives an instance (its inbox, its clients), and clones it in each call.
    pub fn new<F, B>(name: impl Into<String>, factory: F) -> Self
    where
        F: Fn(Scope) -> B + Send + Sync + 'static,
        B: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Self::of(name.into(), Kind::Body(Arc::new(move |scope| Box::pin(factory(scope)))))
    }

    /// A nested supervisor, which restarts its children by `policy`. When one of them exhausts its budget, it ends all
    /// others and escalates: the whole subtree is restarted, by [`RestartPolicy::SUBTREE`] unless
    /// [`restart`](Self::restart) says otherwise.
    pub fn supervisor<F>(name: impl Into<String>, policy: RestartPolicy, children: F) -> Self
    where
        F: Fn() -> Vec<Self> + Send + Sync + 'static,
    {
        let mut spec = Self::of(name.into(), Kind::Supervisor { policy, children: Arc::new(children) });
        spec.restart = Some(RestartPolicy::SUBTREE);
        spec
    }

    fn of(name: String, kind: Kind) -> Self {
        Self { name, kind, restart: None, stall_after: None, gauge: None, gate: None }
    }

    /// Sets how this child is restarted, in place of its supervisor's policy.
    #[must_use]
    pub fn restart(mut self, policy: RestartPolicy) -> Self {
        self.restart = Some(policy);
        self
    }

    /// Restarts the child when a [`WorkGuard`](super::WorkGuard) of its body has not beaten for so long. Without this
    /// setting a child never counts as stalled. Nested supervisors hold no guards and don't stall.
    #[must_use]
    pub fn stall_after(mut self, silence: Duration) -> Self {
        self.stall_after = Some(silence);
        self
    }

    /// Sets the mailbox to show in the child's report.
    #[must_use]
    pub fn gauge(mut self, gauge: Arc<dyn Gauge>) -> Self {
        self.gauge = Some(gauge);
        self
    }

    /// Runs the child only while the gate is open; closed, it is `waiting` in the report.
    #[must_use]
    pub fn gated(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    pub(super) fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn policy(&self) -> Option<RestartPolicy> {
        self.restart
    }

    /// Starts an instance, which reports its end to `supervisor` under the number `instance`.
    pub(super) fn start(&self, name: Name, instance: u64, supervisor: Addr<Supervisor>) -> Controls {
        #[expect(clippy::disallowed_methods, reason = "the control lane: one message in an instance's life")]
        let notice = ExitNotice::new(name.clone(), move |exit| {
            supervisor.do_send(ChildExited { instance, exit });
        });
        match &self.kind {
            Kind::Body(factory) => {
                let shell = Shell {
                    label: self.name.clone(),
                    scope: Scope::new(name),
                    factory: Arc::clone(factory),
                    gauge: self.gauge.clone(),
                    stall_after: self.stall_after,
                    notice: Some(notice),
                    body: None,
                    deadline: None,
                };
                Controls::of(&shell.start())
            }
            Kind::Supervisor { policy, children } => {
                let children = Arc::clone(children);
                let nested = Supervisor::new(self.name.clone(), name, Box::new(move || children()), *policy, notice);
                Controls::of(&nested.start())
            }
        }
    }
}
