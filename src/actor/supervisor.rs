//! The supervisor: starts its children, restarts them when they fail, gives up when they fail too often, and drains them in
//! order.
//!
//! State it owns: one slot for each child. Its children send to it (their end), and its own supervisor or handle (drain,
//! report, start a child). What it sends: drains and reports to its children, its own end to its supervisor. Restart: one
//! child at a time, with what its factory captured. Drain: the last started child first, one after the other.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, ResponseFuture};
use futures::future::join_all;
use tokio::time::Instant;

use super::control::{Abort, ChildExited, Drain, Exit, ExitNotice, Report, StartChild, StartError};
use super::exit::ExitReason;
use super::report::{ActorReport, DrainReport};
use super::restart::{RestartPolicy, Restarts};
use super::slot::{Phase, Slot};
use super::{ChildSpec, Name};

/// How long the children of a supervisor that gives up have to finish their work. It is short: their subtree is broken
/// and waits for its restart, and unfinished work is found again at the source of truth.
const ESCALATION_GRACE: Duration = Duration::from_secs(5);

/// The part of the remaining time that a draining child may take while others wait for their turn: nine tenths. So a stuck
/// child never takes all the time of those after it, which release leases.
const SHARE: (u32, u32) = (9, 10);

/// Starts, restarts and drains children; created by [`Supervisor::start`] or as a [`ChildSpec::supervisor`].
pub struct Supervisor {
    label: String,
    name: Name,
    policy: RestartPolicy,
    /// Creates the first children, once.
    children: Option<Box<dyn FnOnce() -> Vec<ChildSpec>>>,
    pub(super) slots: Vec<Slot>,
    last_instance: u64,
    ending: Option<Ending>,
    /// Taken when the end is reported.
    notice: Option<ExitNotice>,
}

struct Ending {
    reason: ExitReason,
    deadline: Instant,
    report: DrainReport,
    /// Children that have not been asked to drain yet, the next one at the back.
    waiting: VecDeque<u64>,
    /// The child that was asked last.
    asked: Option<u64>,
}

impl Supervisor {
    pub(super) fn new(
        label: String,
        name: Name,
        children: Box<dyn FnOnce() -> Vec<ChildSpec>>,
        policy: RestartPolicy,
        notice: ExitNotice,
    ) -> Self {
        Self {
            label,
            name,
            policy,
            children: Some(children),
            slots: Vec::new(),
            last_instance: 0,
            ending: None,
            notice: Some(notice),
        }
    }

    pub(super) fn run(&mut self, spec: ChildSpec, context: &mut Context<Self>) -> Phase {
        self.last_instance += 1;
        let instance = self.last_instance;
        let name = self.name.child(spec.name());
        tracing::debug!(actor = %name, "starting");
        let controls = spec.start(name, instance, context.address());
        Phase::Running { instance, controls, spec }
    }

    fn add(&mut self, spec: ChildSpec, context: &mut Context<Self>) {
        let (label, name) = (spec.name().to_owned(), self.name.child(spec.name()));
        let (index, gate) = (self.slots.len(), spec.gate().cloned());
        let phase = self.first_phase(spec, context);
        let (restarts, gated) = (Restarts::default(), gate.clone());
        self.slots.push(Slot { label, name, restarts, last_exit: None, phase, gate, is_closing: false });
        if let Some(gate) = gated {
            self.follow_gate(index, gate, context);
        }
    }

    /// A gated child waits, any other starts at once.
    fn first_phase(&mut self, spec: ChildSpec, context: &mut Context<Self>) -> Phase {
        if spec.gate().is_some() { Phase::Waiting { spec } } else { self.run(spec, context) }
    }

    /// Whether it ends and starts no more children.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Restarts a child or gives up.
    fn child_failed(&mut self, index: usize, spec: ChildSpec, reason: &ExitReason, context: &mut Context<Self>) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        let policy = spec.policy().unwrap_or(self.policy);
        let Some(delay) = slot.restarts.after_failure(&policy, Instant::now(), &mut rand::rng()) else {
            tracing::error!(actor = %slot.name, %reason, budget = policy.budget, "restart budget exhausted, giving up");
            let child = slot.name.clone();
            self.end(ExitReason::Escalated { child }, Instant::now() + ESCALATION_GRACE, context);
            return;
        };
        tracing::warn!(actor = %slot.name, %reason, ?delay, "restarting");
        let timer = context.run_later(delay, move |supervisor, context| {
            supervisor.restart(index, context);
        });
        slot.phase = Phase::BackingOff { timer, spec };
    }

    pub(super) fn restart(&mut self, index: usize, context: &mut Context<Self>) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        match mem::replace(&mut slot.phase, Phase::Ended) {
            Phase::BackingOff { spec, .. } if slot.is_shut() => {
                slot.phase = Phase::Waiting { spec };
                self.gate_closed(index, context);
            }
            Phase::BackingOff { spec, .. } => {
                slot.restarts.note_restart();
                let phase = self.run(spec, context);
                if let Some(slot) = self.slots.get_mut(index) {
                    slot.phase = phase;
                }
            }
            phase => slot.phase = phase,
        }
    }

    /// Begins to end: restarts no more children, and asks one after the other to drain.
    fn end(&mut self, reason: ExitReason, deadline: Instant, context: &mut Context<Self>) {
        let mut report = DrainReport::default();
        let mut waiting = VecDeque::new();
        for slot in &mut self.slots {
            match &slot.phase {
                Phase::Running { instance, .. } => waiting.push_back(*instance),
                Phase::BackingOff { .. } | Phase::Waiting { .. } => {
                    if let Phase::BackingOff { timer, .. } = &slot.phase {
                        context.cancel_future(*timer);
                    }
                    slot.end();
                    // Nothing was running, so nothing was cut short.
                    report.drained.push(slot.name.clone());
                }
                Phase::Ended => slot.end(),
            }
        }
        self.ending = Some(Ending { reason, deadline, report, waiting, asked: None });
        self.ask_next(context);
    }

    /// Asks the next child to drain; ends if there is none.
    fn ask_next(&mut self, context: &mut Context<Self>) {
        let Some(ending) = &mut self.ending else {
            return;
        };
        while let Some(instance) = ending.waiting.pop_back() {
            let running = self.slots.iter().find_map(|slot| slot.controls_of(instance));
            let Some(controls) = running else { continue };
            controls.drain(Drain { deadline: ending.share_of_next() });
            ending.asked = Some(instance);
            return;
        }
        let Some(ending) = self.ending.take() else {
            return;
        };
        let reason = match ending.reason {
            ExitReason::Drained if !ending.report.unfinished.is_empty() => ExitReason::DrainTimedOut,
            reason => reason,
        };
        self.slots.clear();
        if let Some(notice) = self.notice.take() {
            notice.send(Exit { reason, drained: ending.report });
        }
        context.stop();
    }
}

impl Ending {
    /// The deadline of the child that is asked next.
    fn share_of_next(&self) -> Instant {
        if self.waiting.is_empty() {
            return self.deadline;
        }
        let now = Instant::now();
        now + self.deadline.saturating_duration_since(now) * SHARE.0 / SHARE.1
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        if let Some(children) = self.children.take() {
            for spec in children() {
                self.add(spec, context);
            }
        }
    }
}

impl Handler<ChildExited> for Supervisor {
    type Result = ();

    fn handle(&mut self, exited: ChildExited, context: &mut Self::Context) {
        let ChildExited { instance, exit } = exited;
        let Some(index) = self.slots.iter().position(|slot| slot.controls_of(instance).is_some()) else {
            return;
        };
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        slot.last_exit = Some(exit.reason.clone());
        let Phase::Running { spec, .. } = mem::replace(&mut slot.phase, Phase::Ended) else {
            return;
        };
        if let Some(ending) = &mut self.ending {
            tracing::debug!(actor = %slot.name, reason = %exit.reason, "ended");
            slot.end();
            ending.report.append(exit.drained);
            if ending.asked == Some(instance) {
                self.ask_next(context);
            }
        } else if slot.is_closing || (slot.is_shut() && !exit.reason.is_clean()) {
            // A child that fails behind a closed gate is not restarted, and its failure does not count against its budget.
            tracing::debug!(actor = %slot.name, reason = %exit.reason, "ended at its gate");
            slot.phase = Phase::Waiting { spec };
            self.gate_closed(index, context);
        } else if exit.reason.is_clean() {
            tracing::info!(actor = %slot.name, reason = %exit.reason, "ended");
            slot.end();
        } else {
            self.child_failed(index, spec, &exit.reason, context);
        }
    }
}

impl Handler<Drain> for Supervisor {
    type Result = ();

    fn handle(&mut self, drain: Drain, context: &mut Self::Context) {
        let Some(ending) = &mut self.ending else {
            self.end(ExitReason::Drained, drain.deadline, context);
            return;
        };
        if drain.deadline < ending.deadline {
            ending.deadline = drain.deadline;
            let moved_up = Drain { deadline: ending.share_of_next() };
            let asked = ending.asked;
            if let Some(controls) =
                self.slots.iter().find_map(|slot| asked.and_then(|instance| slot.controls_of(instance)))
            {
                controls.drain(moved_up);
            }
        }
    }
}

impl Handler<Abort> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: Abort, context: &mut Self::Context) {
        self.slots.iter_mut().for_each(Slot::end);
        self.slots.clear();
        context.stop();
    }
}

impl Handler<Report> for Supervisor {
    type Result = ResponseFuture<ActorReport>;

    fn handle(&mut self, _: Report, _: &mut Self::Context) -> Self::Result {
        let children: Vec<_> = self.slots.iter().map(Slot::report).collect();
        let name = self.label.clone();
        let state = if self.ending.is_some() { "draining" } else { "running" }.to_owned();
        Box::pin(async move {
            let children = join_all(children).await;
            ActorReport { name, state, restarts: 0, last_exit: None, mailbox: None, children }
        })
    }
}

impl Handler<StartChild> for Supervisor {
    type Result = Result<(), StartError>;

    fn handle(&mut self, start: StartChild, context: &mut Self::Context) -> Self::Result {
        let StartChild(spec) = start;
        let child = self.name.child(spec.name());
        if self.ending.is_some() {
            return Err(StartError::Ending { child });
        }
        match self.slots.iter().position(|slot| slot.name == child) {
            None => self.add(spec, context),
            Some(index) => {
                if !matches!(self.slots.get(index), Some(Slot { phase: Phase::Ended, .. })) {
                    return Err(StartError::NameTaken { child });
                }
                // The back-off timers of other children hold indices of slots: replace a slot, never remove it.
                let gate = spec.gate().cloned();
                let phase = self.first_phase(spec, context);
                if let Some(slot) = self.slots.get_mut(index) {
                    (slot.phase, slot.gate, slot.is_closing) = (phase, gate.clone(), false);
                }
                if let Some(gate) = gate {
                    self.follow_gate(index, gate, context);
                }
            }
        }
        Ok(())
    }
}
