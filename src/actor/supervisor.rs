//! The supervisor: starts its children, restarts them when they fail, gives up when they fail too often, and drains them in
//! order.
//!
//! State it owns: what it remembers of each child. Its own supervisor or handle sends to it (drain, report). What it sends: drains and
//! reports to its children, its own end to its supervisor. Restart: one child at a time, with what its factory captured.
//! Drain: the last started child first, one after the other.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, ResponseFuture, SpawnHandle, WrapFuture,
};
use futures::FutureExt;
use futures::future::{Shared, join_all};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::backoff::{RestartPolicy, after};
use super::gate::{Gate, Wanted};
use super::instance::{BodyFactory, Controls, Drain, Report, Scope, Shell};
use super::mailbox::Gauge;
use super::report::{ActorReport, BoxError, Exit, ExitReason};

/// How long the children of a supervisor that gives up have to finish their work. It is short: their subtree is broken
/// and waits for its restart, and unfinished work is found again at the source of truth.
const ESCALATION_GRACE: Duration = Duration::from_secs(5);

/// The part of the remaining time that a draining child may take while others wait for their turn: nine tenths. So a stuck
/// child never takes all the time of those after it, which release leases.
const SHARE: (u32, u32) = (9, 10);

/// What a supervisor knows of a child: its name, a factory for its instances, and its policies.
pub struct ChildSpec {
    name: String,
    kind: Kind,
    policy: RestartPolicy,
    stall_after: Option<Duration>,
    gauge: Option<Arc<dyn Gauge>>,
    gate: Option<Gate>,
}

enum Kind {
    Body(BodyFactory),
    Supervisor(ChildrenFactory),
}

/// Creates the children of a nested supervisor, once for each of its instances.
type ChildrenFactory = Arc<dyn Fn() -> Vec<ChildSpec> + Send + Sync>;

impl ChildSpec {
    /// An actor. `factory` creates the body of each instance, a future that runs on the multi-thread runtime. It is restarted by
    /// [`RestartPolicy::ACTOR`].
    ///
    /// The body returns `Ok(())` when it is drained or has finished for good, and an error to be restarted. The factory
    /// captures everything that outlives an instance (its inbox, its clients), and clones it in each call.
    pub fn new<F, B>(name: impl Into<String>, factory: F) -> Self
    where
        F: Fn(Scope) -> B + Send + Sync + 'static,
        B: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Self::of(name.into(), Kind::Body(Arc::new(move |scope| Box::pin(factory(scope)))), RestartPolicy::ACTOR)
    }

    /// A nested supervisor. When one of its children exhausts its budget, it ends all others and escalates: the whole subtree
    /// is restarted, by [`RestartPolicy::SUBTREE`].
    pub fn supervisor<F>(name: impl Into<String>, children: F) -> Self
    where
        F: Fn() -> Vec<Self> + Send + Sync + 'static,
    {
        Self::of(name.into(), Kind::Supervisor(Arc::new(children)), RestartPolicy::SUBTREE)
    }

    fn of(name: String, kind: Kind, policy: RestartPolicy) -> Self {
        Self { name, kind, policy, stall_after: None, gauge: None, gate: None }
    }

    /// Sets how this child is restarted.
    #[must_use]
    pub fn restart(mut self, policy: RestartPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Restarts the child when a [`WorkGuard`](super::instance::WorkGuard) of its body has not beaten for so long. Without this
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

    fn start(&self, path: String, exit: oneshot::Sender<Exit>) -> Controls {
        match &self.kind {
            Kind::Body(factory) => Shell::start(path, Arc::clone(factory), self.gauge.clone(), self.stall_after, exit),
            Kind::Supervisor(children) => {
                let children = Arc::clone(children);
                Controls::of(Actor::start(Supervisor::new(path, Box::new(move || children()), exit)))
            }
        }
    }
}

/// What a supervisor remembers of one child, over all its instances.
struct Child {
    name: String,
    path: String,
    /// Gone as soon as the child has ended for good: it holds the child's inbox open.
    spec: Option<ChildSpec>,
    phase: Phase,
    gate: Option<Gate>,
    restarts: u64,
    /// The restarts that may still count against the budget.
    recent: VecDeque<Instant>,
    last_exit: Option<ExitReason>,
}

enum Phase {
    /// For its gate to open, if it has one.
    Waiting,
    Running(Controls),
    BackingOff(SpawnHandle),
    Ended,
}

impl Child {
    fn new(spec: ChildSpec, parent: &str) -> Self {
        Self {
            path: format!("{parent}/{}", spec.name),
            name: spec.name.clone(),
            gate: spec.gate.clone(),
            spec: Some(spec),
            phase: Phase::Waiting,
            restarts: 0,
            recent: VecDeque::new(),
            last_exit: None,
        }
    }

    fn wanted(&self) -> Wanted {
        self.gate.as_ref().map_or(Wanted::Run, Gate::wanted)
    }

    /// The child has ended for good. The handle of its gate reports it.
    fn end(&mut self) {
        self.phase = Phase::Ended;
        self.spec = None;
        if let Some(gate) = &self.gate {
            gate.end();
        }
    }

    fn controls(&self) -> Option<&Controls> {
        if let Phase::Running(controls) = &self.phase { Some(controls) } else { None }
    }

    /// Asks the child for its report and adds what only its supervisor knows. Borrows nothing, so that the supervisor can
    /// continue while its children answer.
    fn report(&self) -> impl Future<Output = ActorReport> + Send + use<> {
        let (answer, state) = match &self.phase {
            Phase::Running(controls) => (Some(controls.report()), "ended"),
            Phase::Waiting => (None, "waiting"),
            Phase::BackingOff(_) => (None, "backing off"),
            Phase::Ended => (None, "ended"),
        };
        let (name, restarts, last_exit) = (self.name.clone(), self.restarts, self.last_exit.clone());
        async move {
            let answered = match answer {
                Some(answer) => answer.await,
                None => None,
            };
            let live = answered.unwrap_or_else(|| ActorReport::new(&name, state));
            ActorReport { name, restarts, last_exit, ..live }
        }
    }
}

/// Starts, restarts and drains children; created by [`Supervisor::start`] or as a [`ChildSpec::supervisor`].
pub struct Supervisor {
    path: String,
    /// Creates the children, once.
    factory: Option<Box<dyn FnOnce() -> Vec<ChildSpec>>>,
    /// In the order of their start. None is ever removed: timers and futures hold indices.
    children: Vec<Child>,
    ending: Option<Ending>,
    /// Taken when the end is reported.
    exit: Option<oneshot::Sender<Exit>>,
}

struct Ending {
    reason: ExitReason,
    deadline: Instant,
    unfinished: Vec<String>,
}

impl Supervisor {
    /// Starts a tree on the control lane: call it in the future given to [`run`](super::run) (or in any task of a
    /// `LocalSet`). The handle works in any task. `children` are started in order.
    pub fn start(name: &str, children: Vec<ChildSpec>) -> SupervisorHandle {
        let (exit, exited) = oneshot::channel();
        let supervisor = Self::new(name.to_owned(), Box::new(move || children), exit);
        SupervisorHandle { name: name.to_owned(), address: Actor::start(supervisor), exited: exited.shared() }
    }

    fn new(path: String, children: Box<dyn FnOnce() -> Vec<ChildSpec>>, exit: oneshot::Sender<Exit>) -> Self {
        Self { path, factory: Some(children), children: Vec::new(), ending: None, exit: Some(exit) }
    }

    /// Starts a child, unless its gate is closed: then it waits. Returns whether it runs.
    fn start_child(&mut self, index: usize, context: &mut Context<Self>) -> bool {
        let Some(child) = self.children.get_mut(index) else { return false };
        let Some(spec) = &child.spec else { return false };
        if !child.gate.as_ref().is_none_or(Gate::enter) {
            child.phase = Phase::Waiting;
            return false;
        }
        tracing::debug!(actor = %child.path, "starting");
        let (exit, exited) = oneshot::channel();
        child.phase = Phase::Running(spec.start(child.path.clone(), exit));
        let path = child.path.clone();
        context.spawn(exited.into_actor(self).map(move |exit, supervisor, context| {
            supervisor.child_exited(index, exit.unwrap_or_else(|_| Exit::broken(&path)), context);
        }));
        true
    }

    fn child_exited(&mut self, index: usize, exit: Exit, context: &mut Context<Self>) {
        let Some(child) = self.children.get_mut(index) else { return };
        let Exit { reason, unfinished } = exit;
        child.last_exit = Some(reason.clone());
        if let Some(ending) = &mut self.ending {
            tracing::debug!(actor = %child.path, %reason, "ended");
            child.end();
            ending.unfinished.extend(unfinished);
            self.drain_last(context);
            return;
        }
        match reason {
            ExitReason::Finished => {
                tracing::info!(actor = %child.path, %reason, "ended");
                child.end();
            }
            // Only its gate asks a child to drain while the supervisor does not end.
            ExitReason::Drained | ExitReason::DrainTimedOut => {
                tracing::debug!(actor = %child.path, %reason, "ended at its gate");
                self.start_child(index, context);
            }
            // Not restarted, and its failure does not count against its budget.
            reason if child.wanted() != Wanted::Run => {
                tracing::debug!(actor = %child.path, %reason, "failed behind its closed gate");
                self.start_child(index, context);
            }
            reason => self.child_failed(index, &reason, context),
        }
    }

    /// Restarts a child or gives up.
    fn child_failed(&mut self, index: usize, reason: &ExitReason, context: &mut Context<Self>) {
        let Some(child) = self.children.get_mut(index) else { return };
        let Some(policy) = child.spec.as_ref().map(|spec| spec.policy) else { return };
        let Some(delay) = policy.after_failure(&mut child.recent, Instant::now(), &mut rand::rng()) else {
            tracing::error!(actor = %child.path, %reason, budget = policy.budget, "restart budget exhausted, giving up");
            child.end();
            let path = child.path.clone();
            self.end(ExitReason::Escalated { child: path }, Instant::now() + ESCALATION_GRACE, context);
            return;
        };
        tracing::warn!(actor = %child.path, %reason, ?delay, "restarting");
        child.phase = Phase::BackingOff(context.run_later(delay, move |supervisor, context| {
            let runs = supervisor.start_child(index, context);
            if let Some(child) = supervisor.children.get_mut(index) {
                child.restarts += u64::from(runs);
            }
        }));
    }

    /// Follows a gate: acts whenever what it wants changes.
    fn follow_gate(&mut self, index: usize, mut gate: Gate, context: &mut Context<Self>) {
        let moved = async move { gate.moved().await.then_some(gate) };
        context.spawn(moved.into_actor(self).map(move |gate, supervisor, context| {
            if let Some(gate) = gate {
                supervisor.gate_moved(index, context);
                supervisor.follow_gate(index, gate, context);
            }
        }));
    }

    fn gate_moved(&mut self, index: usize, context: &mut Context<Self>) {
        let Some(child) = self.children.get(index) else { return };
        match (&child.phase, child.wanted()) {
            (Phase::Waiting, Wanted::Run) => {
                self.start_child(index, context);
            }
            (Phase::Running(controls), Wanted::Drain(deadline)) => controls.drain(deadline),
            (Phase::BackingOff(timer), Wanted::Drain(_)) => {
                context.cancel_future(*timer);
                self.start_child(index, context);
            }
            _ => {}
        }
    }

    /// Begins to end: restarts no more children, and asks one after the other to drain.
    fn end(&mut self, reason: ExitReason, deadline: Instant, context: &mut Context<Self>) {
        for child in &mut self.children {
            if let Phase::BackingOff(timer) = &child.phase {
                context.cancel_future(*timer);
            }
            if child.controls().is_none() {
                child.end();
            }
        }
        self.ending = Some(Ending { reason, deadline, unfinished: Vec::new() });
        self.drain_last(context);
    }

    /// Asks the child that was started last of those that run to drain, or again if the deadline was moved up; an instance
    /// ignores a later deadline than it has. Ends when none runs.
    fn drain_last(&mut self, context: &mut Context<Self>) {
        let Some(ending) = &self.ending else { return };
        let mut running = self.children.iter().rev().filter_map(Child::controls);
        if let Some(last) = running.next() {
            let now = Instant::now();
            let left = ending.deadline.saturating_duration_since(now);
            let share = if running.next().is_some() { left * SHARE.0 / SHARE.1 } else { left };
            last.drain(now + share);
            return;
        }
        let (Some(Ending { reason, unfinished, .. }), Some(exit)) = (self.ending.take(), self.exit.take()) else {
            return;
        };
        let reason = match reason {
            ExitReason::Drained if !unfinished.is_empty() => ExitReason::DrainTimedOut,
            reason => reason,
        };
        // The receiver is gone where nobody waits for the end.
        let _ = exit.send(Exit { reason, unfinished });
        context.stop();
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        // Here, so that a factory that panics breaks this supervisor and not its own.
        for spec in self.factory.take().map(|create| create()).into_iter().flatten() {
            let (index, gate) = (self.children.len(), spec.gate.clone());
            self.children.push(Child::new(spec, &self.path));
            self.start_child(index, context);
            if let Some(gate) = gate {
                self.follow_gate(index, gate, context);
            }
        }
    }
}

impl Handler<Drain> for Supervisor {
    type Result = ();

    fn handle(&mut self, drain: Drain, context: &mut Self::Context) {
        match &mut self.ending {
            None => self.end(ExitReason::Drained, drain.deadline, context),
            Some(ending) if drain.deadline < ending.deadline => {
                ending.deadline = drain.deadline;
                self.drain_last(context);
            }
            Some(_) => {}
        }
    }
}

impl Handler<Report> for Supervisor {
    type Result = ResponseFuture<ActorReport>;

    fn handle(&mut self, _: Report, _: &mut Self::Context) -> Self::Result {
        let children: Vec<_> = self.children.iter().map(Child::report).collect();
        let report = ActorReport::new(&self.path, if self.ending.is_some() { "draining" } else { "running" });
        Box::pin(async move { ActorReport { children: join_all(children).await, ..report } })
    }
}

/// A root supervisor seen from outside, for any task. Cheap to clone; dropping it ends nothing.
#[derive(Clone)]
pub struct SupervisorHandle {
    name: String,
    address: Addr<Supervisor>,
    exited: Shared<oneshot::Receiver<Exit>>,
}

#[expect(clippy::disallowed_methods, reason = "the control lane; every caller waits for the answer")]
impl SupervisorHandle {
    /// Ends the tree: drains its children in reverse order of their start, each after the one before it has ended, and
    /// aborts those that are not done after `within`. Returns the paths of those that lost work: they were aborted, failed or
    /// panicked. Another call can only move the deadline up; `Duration::ZERO` aborts. A tree that has already ended answers
    /// with the result of its end.
    pub async fn drain(&self, within: Duration) -> Vec<String> {
        self.address.do_send(Drain { deadline: after(Instant::now(), within) });
        self.exit().await.unfinished
    }

    /// The tree as it is now. The answer comes at once, however busy the actors are.
    pub async fn report(&self) -> ActorReport {
        if let Ok(report) = self.address.send(Report).await {
            return report;
        }
        let last_exit = Some(self.exited().await);
        ActorReport { last_exit, ..ActorReport::new(&self.name, "ended") }
    }

    /// Waits for the end of the tree and returns its reason.
    pub async fn exited(&self) -> ExitReason {
        self.exit().await.reason
    }

    async fn exit(&self) -> Exit {
        self.exited.clone().await.unwrap_or_else(|_| Exit::broken(&self.name))
    }
}
