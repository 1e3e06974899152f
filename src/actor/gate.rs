//! Gates: a gated child runs only while its gate is open.
//!
//! The owner of the handle sets what is wanted, the supervisor starts or ends the child and sets its state. Both are latest values: if
//! the owner opens and closes the gate before the supervisor reads it, nothing happens. The owner can rely on this: once it
//! has asked for a drain or an abort and reads anything but [`GateState::Running`], nothing of the child is polled any more, but for
//! blocking code of an aborted one, which a fence has to stop, and nothing will before the gate is opened again.

use std::mem;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

/// What is wanted of a gated child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Run,
    /// It finishes its work by this deadline, and waits for its gate.
    Drain(Instant),
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
    let (wanted, wants) = watch::channel(Wanted::Drain(Instant::now()));
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

    /// Ends the child now.
    pub fn abort(&self) {
        self.drain(Instant::now());
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
    pub(super) fn wanted(&self) -> Wanted {
        *self.wanted.borrow()
    }

    /// Completes when something else is wanted than before; `false` if that can't happen any more.
    pub(super) async fn moved(&mut self) -> bool {
        self.wanted.changed().await.is_ok()
    }

    /// Sets that the child runs, and then checks that it still should. So if the owner of the handle closes the gate at the same
    /// time, either this notices it or the owner sees the child as running. `false`: the gate is closed, and nothing runs.
    pub(super) fn enter(&self) -> bool {
        let enters = self.wanted() == Wanted::Run && {
            self.note(GateState::Running);
            self.wanted() == Wanted::Run
        };
        if !enters {
            self.note(GateState::Waiting);
        }
        enters
    }

    /// The child has ended for good.
    pub(super) fn end(&self) {
        self.note(GateState::Ended);
    }

    fn note(&self, state: GateState) {
        self.state.send_if_modified(|current| mem::replace(current, state) != state);
    }
}
