//! What a supervisor remembers of one child, over all its instances.

use std::future::Future;

use actix::SpawnHandle;

use super::control::Controls;
use super::exit::ExitReason;
use super::gate::Gate;
use super::report::ActorReport;
use super::restart::Restarts;
use super::{ChildSpec, Name};

pub(super) struct Slot {
    pub(super) label: String,
    pub(super) name: Name,
    pub(super) restarts: Restarts,
    pub(super) last_exit: Option<ExitReason>,
    pub(super) phase: Phase,
    pub(super) gate: Option<Gate>,
    /// The running instance was asked to end because its gate was closed.
    pub(super) is_closing: bool,
}

/// A spec is dropped as soon as it is no longer needed: it holds the child's inbox open.
pub(super) enum Phase {
    /// It waits for its gate to open.
    Waiting {
        spec: ChildSpec,
    },
    Running {
        instance: u64,
        controls: Controls,
        spec: ChildSpec,
    },
    BackingOff {
        timer: SpawnHandle,
        spec: ChildSpec,
    },
    Ended,
}

impl Slot {
    pub(super) fn controls_of(&self, wanted: u64) -> Option<&Controls> {
        match &self.phase {
            Phase::Running { instance, controls, .. } if *instance == wanted => Some(controls),
            _ => None,
        }
    }

    /// Whether the child should not run: its gate is closed, even if the supervisor has not acted on that yet.
    pub(super) fn is_shut(&self) -> bool {
        self.gate.as_ref().is_some_and(Gate::is_closed)
    }

    /// The child has ended for good. The handle of its gate reports it.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Ended;
        if let Some(gate) = &self.gate {
            gate.end();
        }
    }

    /// Asks the child for its report and adds what only its supervisor knows. Borrows nothing, so that the supervisor can
    /// continue while its children answer.
    pub(super) fn report(&self) -> impl Future<Output = ActorReport> + Send + use<> {
        let (answer, state) = match &self.phase {
            Phase::Running { controls, .. } => (Some(controls.report()), "ended"),
            Phase::Waiting { .. } => (None, "waiting"),
            Phase::BackingOff { .. } => (None, "backing off"),
            Phase::Ended => (None, "ended"),
        };
        let known = ActorReport {
            name: self.label.clone(),
            state: state.to_owned(),
            restarts: self.restarts.total(),
            last_exit: self.last_exit.clone(),
            mailbox: None,
            children: Vec::new(),
        };
        async move {
            let answered = match answer {
                Some(answer) => answer.await,
                None => None,
            };
            match answered {
                Some(live) => ActorReport { restarts: known.restarts, last_exit: known.last_exit, ..live },
                None => known,
            }
        }
    }
}
