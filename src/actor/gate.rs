//! Gates: a gated child runs only while its gate is open.
//!
//! The owner of the handle sets what is wanted, the supervisor starts or ends the child and sets its state. Both are latest values: if
//! the owner opens and closes the gate before the supervisor reads it, nothing happens. The owner can rely on this: once it
//! has asked for a drain or an abort and reads anything but [`GateState::Running`], nothing of the child runs, and nothing
//! will before the gate is opened again.

use std::mem;
use std::sync::Arc;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use tokio::sync::watch;
use tokio::time::Instant;

use super::control::Drain;
use super::slot::Phase;
use super::supervisor::Supervisor;

/// What is wanted of a gated child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Run,
    /// It finishes its work by this deadline, and waits for its gate.
    Drain(Instant),
    /// It ends now, and waits for its gate.
    Abort,
}

/// The state of a gated child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// The gate is closed, and nothing of it runs.
    Waiting,
    /// It runs, is being restarted, or has not ended yet.
    Running,
    /// It has ended for good: by itself, or because its supervisor has.
    Ended,
}

/// Creates a closed gate and its handle.
pub fn gate() -> (GateHandle, Gate) {
    let (wanted, wants) = watch::channel(Wanted::Abort);
    let (sender, state) = watch::channel(GateState::Waiting);
    (GateHandle { wanted, state }, Gate { wanted: wants, state: Arc::new(sender) })
}

/// The end of a gate that sets what is wanted.
pub struct GateHandle {
    wanted: watch::Sender<Wanted>,
    state: watch::Receiver<GateState>,
}

impl GateHandle {
    /// Lets the child run.
    pub fn open(&self) {
        self.wanted.send_replace(Wanted::Run);
    }

    /// Asks the child to finish its work. At the deadline it is aborted.
    pub fn drain(&self, deadline: Instant) {
        self.wanted.send_replace(Wanted::Drain(deadline));
    }

    pub fn abort(&self) {
        self.wanted.send_replace(Wanted::Abort);
    }

    pub fn state(&self) -> GateState {
        // A supervisor that was dropped runs nothing.
        if self.state.has_changed().is_err() { GateState::Ended } else { *self.state.borrow() }
    }

    /// Waits until the child's state meets the condition.
    pub async fn reaches(&self, mut condition: impl FnMut(GateState) -> bool) -> GateState {
        let mut state = self.state.clone();
        state.wait_for(|state| condition(*state)).await.map_or(GateState::Ended, |state| *state)
    }

    /// Waits until nothing of the child runs, after a drain or an abort.
    pub async fn closed(&self) -> GateState {
        self.reaches(|state| state != GateState::Running).await
    }
}

/// The supervisor's end of a gate, see [`ChildSpec::gated`](super::ChildSpec::gated).
#[derive(Clone)]
pub struct Gate {
    wanted: watch::Receiver<Wanted>,
    state: Arc<watch::Sender<GateState>>,
}

impl Gate {
    fn wanted(&self) -> Wanted {
        *self.wanted.borrow()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.wanted() != Wanted::Run
    }

    fn note(&self, state: GateState) {
        self.state.send_if_modified(|current| mem::replace(current, state) != state);
    }

    /// Sets that the child runs, and then checks that it still should. So if the owner of the handle closes the gate at the same time,
    /// either this notices it or the owner sees the child as running.
    fn enter(&self) -> bool {
        self.note(GateState::Running);
        let enters = !self.is_closed();
        if !enters {
            self.note(GateState::Waiting);
        }
        enters
    }

    /// The child has ended for good.
    pub(super) fn end(&self) {
        self.note(GateState::Ended);
    }
}

impl Supervisor {
    /// Follows a gate: acts on what is wanted now, and again whenever that changes.
    pub(super) fn follow_gate(&mut self, index: usize, gate: Gate, context: &mut Context<Self>) {
        self.gate_moved(index, context);
        let moved = async move {
            let mut gate = gate;
            gate.wanted.changed().await.is_ok().then_some(gate)
        };
        context.spawn(moved.into_actor(self).map(move |gate, supervisor, context| {
            if let Some(gate) = gate {
                supervisor.follow_gate(index, gate, context);
            }
        }));
    }

    /// Starts or ends a gated child as its gate wants.
    pub(super) fn gate_moved(&mut self, index: usize, context: &mut Context<Self>) {
        let is_ending = self.is_ending();
        let Some(slot) = self.slots.get_mut(index) else { return };
        let Some(gate) = slot.gate.clone() else { return };
        match (&slot.phase, gate.wanted()) {
            (Phase::Waiting { .. }, Wanted::Run) if !is_ending && gate.enter() => {
                if let Phase::Waiting { spec } = mem::replace(&mut slot.phase, Phase::Ended) {
                    let phase = self.run(spec, context);
                    if let Some(slot) = self.slots.get_mut(index) {
                        slot.phase = phase;
                    }
                }
            }
            (Phase::Running { controls, .. }, Wanted::Drain(deadline)) => {
                slot.is_closing = true;
                controls.drain(Drain { deadline });
            }
            (Phase::Running { controls, .. }, Wanted::Abort) => {
                slot.is_closing = true;
                controls.drain(Drain { deadline: Instant::now() });
            }
            (Phase::BackingOff { timer, .. }, Wanted::Drain(_) | Wanted::Abort) => {
                context.cancel_future(*timer);
                if let Phase::BackingOff { spec, .. } = mem::replace(&mut slot.phase, Phase::Ended) {
                    slot.phase = Phase::Waiting { spec };
                }
                gate.note(GateState::Waiting);
            }
            _ => {}
        }
    }

    /// A gated child has ended because its gate was closed. It waits until the gate opens.
    pub(super) fn gate_closed(&mut self, index: usize, context: &mut Context<Self>) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.is_closing = false;
            if let Some(gate) = &slot.gate {
                gate.note(GateState::Waiting);
            }
        }
        self.gate_moved(index, context);
    }
}
