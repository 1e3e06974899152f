//! The control lane of one instance of one actor.
//!
//! The shell owns the lifecycle of its body, the task that does the work: it starts the body, watches for its end and for
//! signs of progress, and answers [`Drain`], [`Report`] and [`Abort`] at once, whatever the body is doing. It ends with its
//! body; a restart creates a new shell. It never waits for an aborted body, which may be in blocking code for ever.

use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, MessageResult, SpawnHandle, WrapFuture,
};
use futures::future::BoxFuture;
use tokio::task::{AbortHandle, JoinError};
use tokio::time::Instant;
use tracing::Instrument;

use super::control::{Abort, Drain, Exit, ExitNotice, Report};
use super::exit::{BoxError, ExitReason};
use super::report::{ActorReport, DrainReport, Gauge};
use super::scope::Scope;

/// How often a body's progress is checked within one `stall_after`: a stall is detected at most a quarter too late.
const STALL_CHECKS: u32 = 4;
/// The shortest time between two checks.
const SHORTEST_CHECK: Duration = Duration::from_millis(10);

/// Creates a body, one for each instance.
pub(super) type BodyFactory = Arc<dyn Fn(Scope) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync>;

pub(super) struct Shell {
    pub(super) label: String,
    pub(super) scope: Scope,
    pub(super) factory: BodyFactory,
    pub(super) gauge: Option<Arc<dyn Gauge>>,
    pub(super) stall_after: Option<Duration>,
    /// Taken when the end is reported.
    pub(super) notice: Option<ExitNotice>,
    pub(super) body: Option<AbortHandle>,
    pub(super) deadline: Option<(Instant, SpawnHandle)>,
}

impl Actor for Shell {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        let (factory, scope) = (Arc::clone(&self.factory), self.scope.clone());
        let span = tracing::info_span!("actor", name = %self.scope.name());
        // The factory is called inside of the task, so that its panic counts as the body's.
        let task = tokio::spawn(async move { factory(scope).await }.instrument(span));
        self.body = Some(task.abort_handle());
        let ended = task.into_actor(self);
        context.spawn(ended.map(|joined, shell, context| shell.body_ended(joined, context)));

        let scope = self.scope.clone();
        let task_panic = async move { scope.task_panic().await }.into_actor(self);
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
        self.scope.drain();
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

impl Handler<Abort> for Shell {
    type Result = ();

    fn handle(&mut self, _: Abort, context: &mut Self::Context) {
        context.stop();
    }
}

impl Handler<Report> for Shell {
    type Result = MessageResult<Report>;

    fn handle(&mut self, _: Report, _: &mut Self::Context) -> Self::Result {
        let state = if self.scope.is_draining() { "draining" } else { self.scope.state() };
        MessageResult(ActorReport {
            name: self.label.clone(),
            state: state.to_owned(),
            restarts: 0,
            last_exit: None,
            mailbox: self.gauge.as_ref().map(|gauge| gauge.read()),
            children: Vec::new(),
        })
    }
}

impl Shell {
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
        if let Some(notice) = self.notice.take() {
            self.abort();
            let mut drained = DrainReport::default();
            drained.note(self.scope.name().clone(), &reason);
            notice.send(Exit { reason, drained });
            context.stop();
        }
    }

    fn abort(&mut self) {
        self.scope.end();
        if let Some(body) = self.body.take() {
            body.abort();
        }
    }
}

/// A shell that ends for any reason ends its body.
impl Drop for Shell {
    fn drop(&mut self) {
        self.abort();
    }
}
