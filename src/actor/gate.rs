//! Gates: a gated child runs only while its gate's keeper wants it to.
//!
//! The keeper sets what is wanted, the supervisor starts or ends the child and sets its standing. Both are latest values: if
//! a keeper opens and closes the gate before the supervisor reads it, nothing happens. A keeper can rely on this: once it
//! has asked for a drain or an abort and reads anything but [`Standing::Running`], nothing of the child runs, and nothing
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
pub enum Standing {
    /// The gate is closed, and nothing of it runs.
    Waiting,
    /// It runs, is being restarted, or has not ended yet.
    Running,
    /// It has ended for good: by itself, or because its supervisor has.
    Ended,
}

/// Creates a closed gate and its keeper.
pub fn gate() -> (GateKeeper, Gate) {
    let (wanted, wants) = watch::channel(Wanted::Abort);
    let (stands, standing) = watch::channel(Standing::Waiting);
    (GateKeeper { wanted, standing }, Gate { wanted: wants, standing: Arc::new(stands) })
}

/// The end of a gate that sets what is wanted.
pub struct GateKeeper {
    wanted: watch::Sender<Wanted>,
    standing: watch::Receiver<Standing>,
}

impl GateKeeper {
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

    pub fn standing(&self) -> Standing {
        // A supervisor that was dropped runs nothing.
        if self.standing.has_changed().is_err() { Standing::Ended } else { *self.standing.borrow() }
    }

    /// Waits until the child's standing meets the condition.
    pub async fn stands(&self, mut condition: impl FnMut(Standing) -> bool) -> Standing {
        let mut standing = self.standing.clone();
        standing.wait_for(|standing| condition(*standing)).await.map_or(Standing::Ended, |standing| *standing)
    }

    /// Waits until nothing of the child runs, after a drain or an abort.
    pub async fn closed(&self) -> Standing {
        self.stands(|standing| standing != Standing::Running).await
    }
}

/// The supervisor's end of a gate, see [`ChildSpec::gated`](super::ChildSpec::gated).
#[derive(Clone)]
pub struct Gate {
    wanted: watch::Receiver<Wanted>,
    standing: Arc<watch::Sender<Standing>>,
}

impl Gate {
    fn wanted(&self) -> Wanted {
        *self.wanted.borrow()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.wanted() != Wanted::Run
    }

    fn note(&self, standing: Standing) {
        self.standing.send_if_modified(|current| mem::replace(current, standing) != standing);
    }

    /// Sets that the child runs, and then checks that it still should. So if the keeper closes the gate at the same time,
    /// either this notices it or the keeper sees the child as running.
    fn enter(&self) -> bool {
        self.note(Standing::Running);
        let enters = !self.is_closed();
        if !enters {
            self.note(Standing::Waiting);
        }
        enters
    }

    /// The child has ended for good.
    pub(super) fn end(&self) {
        self.note(Standing::Ended);
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
                gate.note(Standing::Waiting);
            }
            _ => {}
        }
    }

    /// A gated child has ended because its gate was closed. It waits until the gate opens.
    pub(super) fn gate_closed(&mut self, index: usize, context: &mut Context<Self>) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.is_closing = false;
            if let Some(gate) = &slot.gate {
                gate.note(Standing::Waiting);
            }
        }
        self.gate_moved(index, context);
    }
}
