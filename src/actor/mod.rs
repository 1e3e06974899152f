//! The actor kit: bounded mailboxes, supervised actors, and a dispatcher that reconciles by key. It knows nothing of
//! Kubernetes.
//!
//! # The canonical actor
//! ```
//! use std::time::Duration;
//! use towline::test_api::actor::{self, BoxError, ChildSpec, Inbox, Scope, Supervisor};
//!
//! /// What the greeter reads.
//! struct Greet {
//!     name: String,
//! }
//!
//! /// The body: an ordinary async function. It returns `Ok` when it is drained, and an error to be restarted.
//! async fn greeter(scope: Scope, mut inbox: Inbox<Greet>) -> Result<(), BoxError> {
//!     loop {
//!         let greet = tokio::select! {
//!             () = scope.draining() => return Ok(()),
//!             message = inbox.next() => message,
//!         };
//!         let Some(Greet { name }) = greet else { return Ok(()) };
//!         let _work = scope.work(); // until the end of the turn, 30 s without a beat count as a stall
//!         println!("good morning, {name}");
//!     }
//! }
//!
//! fn main() -> Result<(), BoxError> {
//!     actor::run(1, |_liveness| async {
//!         // First all mailboxes, then the actors, so that every actor can have every address.
//!         let (greetings, inbox) = actor::mailbox(16);
//!         let spec = ChildSpec::new("greeter", {
//!             let inbox = inbox.clone();
//!             move |scope| greeter(scope, inbox.clone()) // each instance gets a clone, which takes over
//!         });
//!         let spec = spec.stall_after(Duration::from_secs(30)).gauge(inbox.gauge());
//!         drop(inbox);
//!         let tree = Supervisor::start("morning", vec![spec]);
//!
//!         greetings.send(Greet { name: "Ada".to_owned() }).await?; // waits while 16 are queued
//!         let unfinished = tree.drain(Duration::from_secs(10)).await;
//!         println!("unfinished: {unfinished:?}; the tree: {}", tree.exited().await);
//!         Ok(())
//!     })?
//! }
//! ```
//!
//! # The room
//! ```text
//!   control lane (one thread, actix)            work lane (worker threads, tokio)
//!   Supervisor ───── Drain, Report ─────▶ Shell ── starts, watches, aborts ──▶ body ◀── Inbox ◀── Mailbox
//!       ▲                                    │                                   │
//!       └────────────── Exit ────────────────┘                                   └── Scope::spawn: tasks of its own
//! ```
//! An actor is a *shell* and a *body* (`instance.rs`). The shell is an actix actor that owns the lifecycle and does no work. The
//! body is a task that does the work and owns the state: it reads one message at a time from a bounded inbox (`mailbox.rs`).
//! Only its supervisor (`supervisor.rs`) sends to a shell, and a body only receives messages through its mailbox. A gated
//! child runs while its owner keeps its gate open (`gate.rs`). `dispatcher.rs` is the body of an actor that runs many keys at
//! once, by the rules of `schedule.rs`; `halves.rs` divides room among those for whom bodies work; `system.rs` starts the
//! runtime, `report.rs` has what is told of actors, `backoff.rs` all delays.
//!
//! Each way of sending says what happens when there is no room:
//!
//! | | full mailbox | for |
//! |---|---|---|
//! | [`Mailbox::send`] | the sender *waits* | messages that must arrive |
//! | [`KeyMailbox::request`] | *merges* with the same key at once, otherwise *waits* | "reconcile this object" |
//! | [`Mailbox::offer`] | *drops and counts* | hints that the next periodic pass repairs |
//!
//! # What the kit does
//! - **Restarts.** A body that panics, returns an error, or holds a [`WorkGuard`](instance::WorkGuard) without a beat for longer
//!   than [`ChildSpec::stall_after`] is restarted by its factory after a back-off with jitter, with the same mailbox: senders
//!   only notice a delay.
//! - **Gives up.** After more restarts than [`RestartPolicy`] allows, the supervisor ends its other children and escalates.
//!   Its own supervisor restarts the subtree, under a budget of its own; at the root the process ends.
//! - **Drains.** Children are drained in reverse order of their start, one after the other, under one deadline. Each may take
//!   nine tenths of the remaining time, so that a stuck one delays those after it but never takes their turn.
//!   [`SupervisorHandle::drain`] names those that did not finish.
//! - **Gates.** A child with a [`gate()`] runs only while the gate is open. The owner of the handle learns when nothing of the
//!   child runs any more, because the gate was closed or because the supervisor has ended.
//! - **Reports.** [`SupervisorHandle::report`] shows the tree whatever the bodies are doing; [`Liveness`] shows on another
//!   thread whether the control lane itself is alive.
//! - **Reconciles by key.** [`Dispatcher`]: never twice at once for one key, many keys at once. A request during a run or a
//!   retry is never lost, and a slow receiver slows its senders down.
//! - **Cleans up.** When an actor ends, so do its body and its spawned tasks; when a supervisor breaks, its children are
//!   aborted and its own supervisor learns of it.
//!
//! # What it doesn't
//! - It does not restore state. A new instance has its captured clients and its inbox, and rebuilds the rest from the source
//!   of truth. What was taken from the mailbox before a crash is lost; whoever starts a dispatcher requests all keys again.
//! - It can't stop a thread. An aborted body ends at its next await. One that blocks keeps its thread, and if that is the only
//!   one, no timer fires meanwhile. Otherwise its successor starts all the same, takes over the inbox, and may overlap with it.
//!   A body that must not overlap checks a lease before each write.
//! - It does not hide failures of other systems: a cluster that does not answer is a state of the body, with its own
//!   back-off, not a reason to fail and be restarted.
//! - It has no replies. A message that needs one carries a `oneshot` sender.
//!
//! # Why
//! - *Why not work in actix handlers?* Its mailbox capacity bounds nothing that matters: `do_send` ignores it, every
//!   cloned address has a slot of its own, and a handler that returns a future lets any number run at once. A flooded
//!   actor starves its own timers, so it can neither be drained nor be detected as stalled. `clippy.toml` bans its ways of
//!   sending; the exceptions are in `instance.rs` and `supervisor.rs`, each with its reason.
//! - *Why not actix's supervisor?* It never restarts an actor that panicked, and has no budget and no back-off.
//! - *Why is the control lane made of actix actors?* One thread, no locks, one message at a time: the lifecycle has no races.
//!   It does so little that one thread serves any number of actors.
//! - *Why do children drain one by one?* They start in the order of their dependencies: leases first, the workers that need
//!   them after them. In reverse, no actor loses what it still uses.
//! - *Why does an inbox outlive its reader?* Otherwise every sender would have to handle every restart.

mod backoff;
mod dispatcher;
mod gate;
mod instance;
mod mailbox;
mod report;
mod schedule;
mod slots;
mod supervisor;
mod system;

pub use backoff::{Backoff, RestartPolicy, sleep_until};
pub use dispatcher::{Dispatcher, Limits, Observe, Reconcile, Snapshot};
pub use gate::{Gate, GateHandle, GateState, gate};
pub use instance::Scope;
pub use mailbox::{Gauge, Inbox, KeyInbox, KeyMailbox, Mailbox, key_mailbox, mailbox};
#[cfg(test)]
pub use report::ActorReport;
pub use report::{BoxError, with_sources};
pub use schedule::Outcome;
pub use slots::{NoSlot, OwnSlots, Slot, Slots};
pub use supervisor::{ChildSpec, Supervisor, SupervisorHandle};
pub use system::{Liveness, run};

#[cfg(test)]
mod tests;
