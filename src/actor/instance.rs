//! One instance of one actor: its *scope*, which the body has, and its *shell*, the actix actor that owns its lifecycle.
//!
//! The shell starts the body, the task that does the work, watches for its end and for signs of progress, and answers
//! [`Drain`] and [`Report`] at once, whatever the body is doing. It ends with its body; a restart creates a new shell. It
//! never waits for an aborted body, which may be in blocking code for ever. Only a supervisor sends to it, by [`Controls`],
//! and it answers once, with its [`Exit`].
//!
//! The messages go through actix mailboxes, which have no bound and need none here: an instance gets one [`Drain`] (and another
//! if the deadline is moved up, or if it breaks), its supervisor at most one message for each sibling that ends meanwhile and
//! one for each move of its gate; and the sender of a [`Report`] waits for the answer.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, MessageResult, Recipient,
    SpawnHandle, WrapFuture,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{SetOnce, oneshot};
use tokio::task::{AbortHandle, JoinError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::mailbox::Gauge;
use super::report::{ActorReport, BoxError, Exit, ExitReason, panic_message};

/// The state of a body that has set none.
const RUNNING: &str = "running";
/// How often a body's progress is checked within one `stall_after`: a stall is detected at most a quarter too late.
const STALL_CHECKS: u32 = 4;
/// The shortest time between two checks.
const SHORTEST_CHECK: Duration = Duration::from_millis(10);

/// One instance's view of its place in the tree: the request to drain, and ways to show that it makes progress. Clones are
/// views of the same instance; a restart makes a new one.
#[derive(Clone)]
pub struct Scope(Arc<Shared>);

struct Shared {
    path: String,
    draining: CancellationToken,
    ended: CancellationToken,
    task_panic: SetOnce<String>,
    /// The body writes it and the shell reads it: both need it at once, and neither waits for the other.
    progress: Mutex<Progress>,
}

/// What the body has said about its progress.
struct Progress {
    state: &'static str,
    last_number: u64,
    /// The last sign of progress of each piece of work in progress.
    beats: HashMap<u64, Instant>,
}

impl Scope {
    pub(super) fn new(path: String) -> Self {
        Self(Arc::new(Shared {
            path,
            draining: CancellationToken::new(),
            ended: CancellationToken::new(),
            task_panic: SetOnce::new(),
            progress: Mutex::new(Progress { state: RUNNING, last_number: 0, beats: HashMap::new() }),
        }))
    }

    /// A scope outside of any tree, for a body that runs alone, and the token that asks it to drain.
    pub fn standalone(name: &str) -> (Self, CancellationToken) {
        let scope = Self::new(name.to_owned());
        let drain = scope.0.draining.clone();
        (scope, drain)
    }

    /// Completes when the supervisor asks for a drain: the body takes no new work, finishes what it has begun, and returns
    /// `Ok(())`. At the deadline it is aborted.
    pub async fn draining(&self) {
        self.0.draining.cancelled().await;
    }

    /// Whether the supervisor has asked for a drain.
    pub fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
    }

    /// Shows that work is in progress until the guard is dropped. Until then the body must [`beat`](WorkGuard::beat) more often
    /// than the child's [`stall_after`](super::ChildSpec::stall_after), or the actor counts as stalled and is restarted.
    /// Without a guard no beat is expected: waiting for messages is never a stall.
    pub fn work(&self) -> WorkGuard {
        let mut progress = self.0.progress.lock();
        progress.last_number += 1;
        let number = progress.last_number;
        progress.beats.insert(number, Instant::now());
        WorkGuard { shared: Arc::clone(&self.0), number }
    }

    /// Sets what the actor is doing, in a word or two, for the report.
    pub fn set_state(&self, state: &'static str) {
        self.0.progress.lock().state = state;
    }

    /// Runs a task that belongs to the actor: it is aborted when the actor ends, for any reason, and if it panics, the
    /// actor counts as panicked.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let shared = Arc::clone(&self.0);
        let guarded = async move {
            let outcome = tokio::select! {
                biased;
                () = shared.ended.cancelled() => return,
                outcome = AssertUnwindSafe(task).catch_unwind() => outcome,
            };
            if let Err(payload) = outcome {
                // Only the first panic is reported: the actor ends with it.
                let _already_set = shared.task_panic.set(panic_message(payload.as_ref()));
            }
        };
        tokio::spawn(guarded.in_current_span());
    }

    /// The time since the oldest last beat of all work in progress.
    pub(super) fn longest_silence(&self, now: Instant) -> Option<Duration> {
        let oldest = self.0.progress.lock().beats.values().min().copied()?;
        Some(now.saturating_duration_since(oldest))
    }
}

/// Work in progress; see [`Scope::work`].
#[must_use = "the work counts as done when the guard is dropped"]
pub struct WorkGuard {
    shared: Arc<Shared>,
    number: u64,
}

impl WorkGuard {
    /// A sign of progress.
    pub fn beat(&self) {
        self.shared.progress.lock().beats.insert(self.number, Instant::now());
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.shared.progress.lock().beats.remove(&self.number);
    }
}

/// End by the deadline.
#[derive(Clone, Copy)]
pub(super) struct Drain {
    pub(super) deadline: Instant,
}

impl Message for Drain {
    type Result = ();
}

/// Report on the actor and everything below it.
pub(super) struct Report;

impl Message for Report {
    type Result = ActorReport;
}

/// A running child, either a shell or a supervisor. Dropping it aborts the child, so that a supervisor that ends for any reason
/// leaves no child running.
pub(super) struct Controls {
    drain: Recipient<Drain>,
    report: Recipient<Report>,
}

#[expect(clippy::disallowed_methods, reason = "the control lane; the module comment says why it needs no bound")]
impl Controls {
    pub(super) fn of<A>(address: Addr<A>) -> Self
    where
        A: Actor + Handler<Drain> + Handler<Report>,
        A::Context: ToEnvelope<A, Drain> + ToEnvelope<A, Report>,
    {
        Self { drain: address.clone().recipient(), report: address.recipient() }
    }

    pub(super) fn drain(&self, deadline: Instant) {
        self.drain.do_send(Drain { deadline });
    }

    /// Asks for a report; `None` from a child that ends before it answers.
    pub(super) fn report(&self) -> impl Future<Output = Option<ActorReport>> + Send + use<> {
        let answer = self.report.send(Report);
        async move { answer.await.ok() }
    }
}

impl Drop for Controls {
    fn drop(&mut self) {
        self.drain(Instant::now());
    }
}

/// Creates a body, one for each instance.
pub(super) type BodyFactory = Arc<dyn Fn(Scope) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync>;

pub(super) struct Shell {
    scope: Scope,
    factory: BodyFactory,
    gauge: Option<Arc<dyn Gauge>>,
    stall_after: Option<Duration>,
    /// Taken when the end is reported.
    exit: Option<oneshot::Sender<Exit>>,
    body: Option<AbortHandle>,
    deadline: Option<(Instant, SpawnHandle)>,
}

impl Shell {
    /// Starts an instance, which reports its end once.
    pub(super) fn start(
        path: String,
        factory: BodyFactory,
        gauge: Option<Arc<dyn Gauge>>,
        stall_after: Option<Duration>,
        exit: oneshot::Sender<Exit>,
    ) -> Controls {
        let scope = Scope::new(path);
        let shell = Self { scope, factory, gauge, stall_after, exit: Some(exit), body: None, deadline: None };
        Controls::of(Actor::start(shell))
    }

    fn body_ended(&mut self, joined: Result<Result<(), BoxError>, JoinError>, context: &mut Context<Self>) {
        let reason = match joined {
            Ok(Ok(())) if self.scope.is_draining() => ExitReason::Drained,
            Ok(Ok(())) => ExitReason::Finished,
            Ok(Err(error)) => ExitReason::failed(&error),
            Err(joined) => match joined.try_into_panic() {
                Ok(payload) => ExitReason::panicked(payload.as_ref()),
                // Only the shell aborts a body, and by then the shell has ended. So here the runtime is shutting down.
                Err(_) => ExitReason::DrainTimedOut,
            },
        };
        self.end(reason, context);
    }

    fn end(&mut self, reason: ExitReason, context: &mut Context<Self>) {
        if let Some(exit) = self.exit.take() {
            self.abort();
            // The receiver is gone where the supervisor is.
            let _ = exit.send(Exit::of(&self.scope.0.path, reason));
            context.stop();
        }
    }

    fn abort(&mut self) {
        self.scope.0.ended.cancel();
        if let Some(body) = self.body.take() {
            body.abort();
        }
    }
}

impl Actor for Shell {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        let (factory, scope) = (Arc::clone(&self.factory), self.scope.clone());
        let span = tracing::info_span!("actor", name = %self.scope.0.path);
        // The factory is called inside of the task, so that its panic counts as the body's.
        let task = tokio::spawn(async move { factory(scope).await }.instrument(span));
        self.body = Some(task.abort_handle());
        let ended = task.into_actor(self);
        context.spawn(ended.map(|joined, shell, context| shell.body_ended(joined, context)));

        let scope = self.scope.clone();
        let task_panic = async move { scope.0.task_panic.wait().await.clone() }.into_actor(self);
        context.spawn(task_panic.map(|message, shell, context| {
            shell.end(ExitReason::Panicked { message }, context);
        }));

        if let Some(stall_after) = self.stall_after {
            let every = (stall_after / STALL_CHECKS).max(SHORTEST_CHECK);
            context.run_interval(every, move |shell, context| {
                if let Some(after) = shell.scope.longest_silence(Instant::now())
                    && after >= stall_after
                {
                    shell.end(ExitReason::Stalled { after }, context);
                }
            });
        }
    }
}

impl Handler<Drain> for Shell {
    type Result = ();

    fn handle(&mut self, drain: Drain, context: &mut Self::Context) {
        self.scope.0.draining.cancel();
        if let Some((deadline, timer)) = self.deadline {
            if deadline <= drain.deadline {
                return;
            }
            context.cancel_future(timer);
        }
        let left = drain.deadline.saturating_duration_since(Instant::now());
        let timer = context.run_later(left, |shell, context| {
            shell.end(ExitReason::DrainTimedOut, context);
        });
        self.deadline = Some((drain.deadline, timer));
    }
}

impl Handler<Report> for Shell {
    type Result = MessageResult<Report>;

    fn handle(&mut self, _: Report, _: &mut Self::Context) -> Self::Result {
        let state = if self.scope.is_draining() { "draining" } else { self.scope.0.progress.lock().state };
        let mailbox = self.gauge.as_ref().map(|gauge| gauge.read());
        MessageResult(ActorReport { mailbox, ..ActorReport::new(&self.scope.0.path, state) })
    }
}

/// A shell that ends for any reason ends its body.
impl Drop for Shell {
    fn drop(&mut self) {
        self.abort();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_longest_silence_is_that_of_the_guard_that_beat_longest_ago() {
        let (scope, _drain) = Scope::standalone("worker");
        assert_eq!(scope.longest_silence(Instant::now()), None, "idle waiting counts as work");
        let first = scope.work();
        advance(Duration::from_secs(2)).await;
        let second = scope.work();
        advance(Duration::from_secs(3)).await;
        assert_eq!(scope.longest_silence(Instant::now()), Some(Duration::from_secs(5)));
        first.beat();
        assert_eq!(scope.longest_silence(Instant::now()), Some(Duration::from_secs(3)));
        drop(second);
        assert_eq!(scope.longest_silence(Instant::now()), Some(Duration::ZERO));
        drop(first);
        assert_eq!(scope.longest_silence(Instant::now()), None);
    }
}
