//! The actor kit: bounded mailboxes, supervised actors, and a dispatcher that reconciles by key. It knows nothing of
//! Kubernetes.
//!
//! # The canonical actor
//! ```
//! use std::process::ExitCode;
//! use std::time::Duration;
//! use towline::actor::{self, BoxError, ChildSpec, Inbox, RestartPolicy, Scope, Supervisor};
//!
//! /// What the greeter reads.
//! struct Greet {
//!     name: String,
//! }
//!
//! /// The body: an ordinary async function. It ends with `Ok` when it is drained, and with an error to be started anew.
//! async fn greeter(scope: Scope, mut inbox: Inbox<Greet>) -> Result<(), BoxError> {
//!     loop {
//!         let greet = tokio::select! {
//!             () = scope.draining() => return Ok(()),
//!             message = inbox.next() => message,
//!         };
//!         let Some(Greet { name }) = greet else { return Ok(()) };
//!         let _work = scope.work(); // from here to the end of the turn, silence for 30 s counts as frozen
//!         println!("good morning, {name}");
//!     }
//! }
//!
//! fn main() -> Result<ExitCode, BoxError> {
//!     let reason = actor::run(Some(1), |_heartbeat| async {
//!         // First all mailboxes, then the actors: everyone can be given everyone's address.
//!         let (greetings, inbox) = actor::mailbox(16);
//!         let spec = ChildSpec::new("greeter", {
//!             let inbox = inbox.clone();
//!             move |scope| greeter(scope, inbox.clone()) // each instance gets a clone, and with it the reading
//!         });
//!         let spec = spec.stall_after(Duration::from_secs(30)).gauge(inbox.gauge());
//!         drop(inbox);
//!         let tree = Supervisor::start("morning", vec![spec], RestartPolicy::ACTOR);
//!
//!         greetings.send(Greet { name: "Ada".to_owned() }).await?; // waits while 16 wait already
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
//! An actor is a *shell* and a *body*. The shell is an actix actor that owns the lifecycle and never works. The body
//! is a task that works and owns the state: one message at a time from an inbox with a bound. Nobody but its supervisor
//! talks to a shell, and nobody talks to a body but through a mailbox.
//!
//! Sending says what happens when there is no room:
//!
//! | | full mailbox | for |
//! |---|---|---|
//! | [`Mailbox::send`] | the sender *waits* | what must arrive |
//! | [`KeyMailbox::request`] | *merges* with the same key at once, else waits | "look at this object again" |
//! | [`Mailbox::offer`] | *drops and counts* | hints that the next pass makes good |
//!
//! # What the kit does
//! - **Restarts.** A body that panics, returns an error, or holds a [`WorkGuard`] in silence for longer than
//!   [`ChildSpec::stall_after`] is made anew by its factory after a back-off with jitter, onto the same mailbox: senders
//!   notice nothing but the wait.
//! - **Gives up.** More restarts than [`RestartPolicy`] allows, and the supervisor ends its other children and escalates;
//!   its own supervisor makes the subtree anew, under a budget of its own; at the root the process ends with code 1.
//! - **Drains.** Children are asked in reverse order of their start, one after the other, under one deadline. Each may
//!   take nine tenths of what is left, so that a stuck one costs those after it time, never their turn.
//!   [`DrainReport`] names who did not finish.
//! - **Waits at gates.** A child with a [`gate()`] runs only while its keeper wants it to. The keeper learns when nothing
//!   of it runs any more, be it that the gate was closed or that the supervisor ends.
//! - **Answers.** [`SupervisorHandle::report`] shows the tree whatever the bodies are doing; [`Heartbeat`] tells from
//!   another thread whether the control lane itself still turns.
//! - **Reconciles by key.** [`Dispatcher`]: never twice at once for one key, many keys at once, nothing requested is
//!   forgotten, neither by a retry nor by a restart of the dispatcher, and a slow receiver slows its senders.
//! - **Leaves nothing behind.** When an actor ends, so do its body and its spawned tasks; when a supervisor breaks, its
//!   children are aborted and its own supervisor learns of it.
//!
//! # What it doesn't
//! - It does not restore state. A new instance knows its captured clients and its inbox and rebuilds the rest from the
//!   source of truth. A message that was in hand at a crash is gone; keys are not, see [`KeyInbox::put_back`].
//! - It can't stop a thread. An aborted body ends at its next await. One that blocks keeps its thread; its successor
//!   starts all the same, takes over the inbox, and may overlap with it. Whoever must not overlap checks a lease before
//!   each write.
//! - It does not hide failures of the outside world: a cluster that does not answer is a state of the body, with
//!   its own back-off, not a reason to fail and be restarted.
//! - There are no replies. A message that wants one carries a `oneshot` sender.
//!
//! # Why so
//! - *Why not work in actix handlers?* Its mailbox capacity bounds nothing that matters: `do_send` ignores it, every
//!   cloned address has a slot of its own, and a handler that returns a future lets any number run at once. A flooded
//!   actor starves its own timers, so it can neither be drained nor be found frozen. `clippy.toml` bans its ways of
//!   sending; the exceptions are in `control`, `handle` and `child`, each with its reason.
//! - *Why not its supervisor?* It never restarts an actor that panicked, and has no budget and no back-off.
//! - *Why a control lane of actors, then?* One thread, no locks, one message at a time: the lifecycle's races are gone.
//!   It does little enough that one thread serves any number of actors.
//! - *Why do children drain one by one?* The order of start is the order of need: leases first, workers on top of them.
//!   In reverse, nobody loses what it still uses.
//! - *Why does an inbox outlive its reader?* Otherwise every sender would have to learn of every restart.

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
pub use channel::Closed;
pub use child::ChildSpec;
pub use control::StartError;
pub use dispatcher::{Dispatcher, Limits, Observe, Outcome, Reconciler, ReconcilerFactory, Snapshot, dispatch};
pub use exit::{BoxError, ExitReason};
pub use gate::{Gate, GateKeeper, Standing, gate};
pub use handle::SupervisorHandle;
pub use key_mailbox::{Key, KeyInbox, KeyMailbox, Requested, key_mailbox};
pub use mailbox::{Inbox, Mailbox, Offered, mailbox};
pub use name::Name;
pub use report::{ActorReport, DrainReport, Gauge, MailboxReading};
pub use restart::RestartPolicy;
pub use scope::{Scope, WorkGuard};
pub use supervisor::Supervisor;
pub use system::{Heartbeat, run};

#[cfg(test)]
mod tests;
