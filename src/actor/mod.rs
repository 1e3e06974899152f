//! The actor kit: bounded mailboxes, supervised actors, and a dispatcher that reconciles by key. It knows nothing of
//! Kubernetes.
//!
//! # The canonical actor
//! ```
//! use std::process::ExitCode;
//! use std::time::Duration;
//! use towline::test_api::actor::{self, BoxError, ChildSpec, Inbox, RestartPolicy, Scope, Supervisor};
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
//! fn main() -> Result<ExitCode, BoxError> {
//!     let reason = actor::run(Some(1), |_liveness| async {
//!         // First all mailboxes, then the actors, so that every actor can have every address.
//!         let (greetings, inbox) = actor::mailbox(16);
//!         let spec = ChildSpec::new("greeter", {
//!             let inbox = inbox.clone();
//!             move |scope| greeter(scope, inbox.clone()) // each instance gets a clone, which takes over
//!         });
//!         let spec = spec.stall_after(Duration::from_secs(30)).gauge(inbox.gauge());
//!         drop(inbox);
//!         let tree = Supervisor::start("morning", vec![spec], RestartPolicy::ACTOR);
//!
//!         greetings.send(Greet { name: "Ada".to_owned() }).await?; // waits while 16 are queued
//!         let ended = tree.drain(Duration::from_secs(10)).await;
//!         println!("drained: {:?}, unfinished: {:?}", ended.drained, ended.unfinished);
//!         Ok::<_, BoxError>(tree.exited().await)
//!     })??;
//!     Ok(ExitCode::from(&reason))
//! }
//! ```
//!
//! # The shape
//! ```text
//!   control lane (one thread, actix)            work lane (worker threads, tokio)
//!   Supervisor ── Drain, Abort, Report ──▶ Shell ── starts, watches, aborts ──▶ body ◀── Inbox ◀── Mailbox
//!       ▲                                    │                                   │
//!       └──────────── ChildExited ───────────┘                                   └── Scope::spawn: tasks of its own
//! ```
//! An actor is a *shell* and a *body*. The shell is an actix actor that owns the lifecycle and does no work. The body is a
//! task that does the work and owns the state: it reads one message at a time from a bounded inbox. Only its supervisor
//! sends to a shell, and a body only receives messages through its mailbox.
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
//! - **Restarts.** A body that panics, returns an error, or holds a [`WorkGuard`] without a beat for longer than
//!   [`ChildSpec::stall_after`] is restarted by its factory after a back-off with jitter, with the same mailbox: senders only
//!   notice a delay.
//! - **Gives up.** After more restarts than [`RestartPolicy`] allows, the supervisor ends its other children and escalates.
//!   Its own supervisor restarts the subtree, under a budget of its own; at the root the process exits with code 1.
//! - **Drains.** Children are drained in reverse order of their start, one after the other, under one deadline. Each may take
//!   nine tenths of the remaining time, so that a stuck one delays those after it but never takes their turn.
//!   [`DrainReport`] names those that did not finish.
//! - **Gates.** A child with a [`gate()`] runs only while the gate is open. The owner of the handle learns when nothing of the
//!   child runs any more, because the gate was closed or because the supervisor has ended.
//! - **Reports.** [`SupervisorHandle::report`] shows the tree whatever the bodies are doing; [`Liveness`] shows on another
//!   thread whether the control lane itself is alive.
//! - **Reconciles by key.** [`Dispatcher`]: never twice at once for one key, many keys at once. No request is lost, neither by
//!   a retry nor by a restart of the dispatcher, and a slow receiver slows its senders down.
//! - **Cleans up.** When an actor ends, so do its body and its spawned tasks; when a supervisor breaks, its children are
//!   aborted and its own supervisor learns of it.
//!
//! # What it doesn't
//! - It does not restore state. A new instance has its captured clients and its inbox, and rebuilds the rest from the source
//!   of truth. A message that was being handled at a crash is lost; keys are not, see [`KeyInbox::put_back`].
//! - It can't stop a thread. An aborted body ends at its next await. One that blocks keeps its thread; its successor starts all
//!   the same, takes over the inbox, and may overlap with it. A body that must not overlap checks a lease before each write.
//! - It does not hide failures of other systems: a cluster that does not answer is a state of the body, with its own
//!   back-off, not a reason to fail and be restarted.
//! - It has no replies. A message that needs one carries a `oneshot` sender.
//!
//! # Why
//! - *Why not work in actix handlers?* Its mailbox capacity bounds nothing that matters: `do_send` ignores it, every
//!   cloned address has a slot of its own, and a handler that returns a future lets any number run at once. A flooded
//!   actor starves its own timers, so it can neither be drained nor be detected as stalled. `clippy.toml` bans its ways of
//!   sending; the exceptions are in `control`, `handle` and `child`, each with its reason.
//! - *Why not actix's supervisor?* It never restarts an actor that panicked, and has no budget and no back-off.
//! - *Why is the control lane made of actix actors?* One thread, no locks, one message at a time: the lifecycle has no races.
//!   It does so little that one thread serves any number of actors.
//! - *Why do children drain one by one?* They start in the order of their dependencies: leases first, the workers that need
//!   them after them. In reverse, no actor loses what it still uses.
//! - *Why does an inbox outlive its reader?* Otherwise every sender would have to handle every restart.

mod backoff;
mod channel;
mod child;
mod control;
mod dispatcher;
mod exit;
mod gate;
mod handle;
mod key_mailbox;
mod mailbox;
mod moment;
mod name;
mod report;
mod restart;
mod schedule;
mod scope;
mod shell;
mod slot;
mod supervisor;
mod system;

pub use backoff::Backoff;
pub use child::ChildSpec;
#[cfg(test)]
use control::StartError;
pub use dispatcher::{Dispatcher, Limits, Observe, Outcome, Reconciler, ReconcilerFactory, Snapshot};
pub use exit::{BoxError, ExitReason};
pub use gate::{Gate, GateHandle, GateState, gate};
pub use handle::SupervisorHandle;
pub use key_mailbox::{Key, KeyInbox, KeyMailbox, Requested, key_mailbox};
#[cfg(test)]
use mailbox::Offered;
pub use mailbox::{Inbox, Mailbox, mailbox};
pub use name::Name;
#[cfg(test)]
use report::DrainReport;
pub use report::{ActorReport, Gauge};
pub use restart::RestartPolicy;
pub use scope::Scope;
pub use supervisor::Supervisor;
pub use system::{Liveness, run};

#[cfg(test)]
mod tests;
