//! The control lane: the few messages between supervisors, shells and handles.
//!
//! They are sent through actix mailboxes, which have no bound and need none here. An instance sends one [`ChildExited`], a
//! supervisor sends each one [`Drain`] (and one more if the deadline is moved up) and one [`Abort`], and the sender of a
//! [`Report`] waits for the answer.

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Handler, Message, Recipient};
use tokio::time::Instant;

use super::exit::ExitReason;
use super::report::{ActorReport, DrainReport};
use super::{ChildSpec, Name};

/// End by the deadline. The only answer is [`ChildExited`].
#[derive(Clone, Copy)]
pub(super) struct Drain {
    pub(super) deadline: Instant,
}

impl Message for Drain {
    type Result = ();
}

/// End now, without an answer.
pub(super) struct Abort;

impl Message for Abort {
    type Result = ();
}

/// Report on the actor and everything below it.
pub(super) struct Report;

impl Message for Report {
    type Result = ActorReport;
}

pub(super) struct StartChild(pub(super) ChildSpec);

impl Message for StartChild {
    type Result = Result<(), StartError>;
}

pub(super) struct ChildExited {
    pub(super) instance: u64,
    pub(super) exit: Exit,
}

impl Message for ChildExited {
    type Result = ();
}

/// How an actor ended, and everything below it.
#[derive(Debug, Clone)]
pub(super) struct Exit {
    pub(super) reason: ExitReason,
    pub(super) drained: DrainReport,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The supervisor is draining, escalating or gone.
    #[error("failed to start {child}: its supervisor has ended or is about to")]
    Ending { child: Name },
    /// A child of this name has not ended yet.
    #[error("failed to start {child}: a child of this name is running")]
    NameTaken { child: Name },
}

/// The control lane of a running child, either a shell or a supervisor. Dropping it aborts the child, so that a supervisor
/// that ends for any reason leaves no child running.
pub(super) struct Controls {
    drain: Recipient<Drain>,
    abort: Recipient<Abort>,
    report: Recipient<Report>,
}

#[expect(clippy::disallowed_methods, reason = "the control lane; the module comment says why it needs no bound")]
impl Controls {
    pub(super) fn of<A>(address: &Addr<A>) -> Self
    where
        A: Actor + Handler<Drain> + Handler<Abort> + Handler<Report>,
        A::Context: ToEnvelope<A, Drain> + ToEnvelope<A, Abort> + ToEnvelope<A, Report>,
    {
        Self {
            drain: address.clone().recipient(),
            abort: address.clone().recipient(),
            report: address.clone().recipient(),
        }
    }

    pub(super) fn drain(&self, drain: Drain) {
        self.drain.do_send(drain);
    }

    /// Asks for a report; `None` from a child that ends before it answers.
    pub(super) fn report(&self) -> impl Future<Output = Option<ActorReport>> + Send + use<> {
        let answer = self.report.send(Report);
        async move { answer.await.ok() }
    }
}

#[expect(clippy::disallowed_methods, reason = "the control lane; the module comment says why it needs no bound")]
impl Drop for Controls {
    fn drop(&mut self) {
        self.abort.do_send(Abort);
    }
}

/// Reports once that an actor has ended, also if its control lane breaks.
pub(super) struct ExitNotice {
    name: Name,
    report: Option<Box<dyn FnOnce(Exit) + Send>>,
}

impl ExitNotice {
    pub(super) fn new(name: Name, report: impl FnOnce(Exit) + Send + 'static) -> Self {
        Self { name, report: Some(Box::new(report)) }
    }

    pub(super) fn send(mut self, exit: Exit) {
        if let Some(report) = self.report.take() {
            report(exit);
        }
    }
}

impl Drop for ExitNotice {
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            let reason = ExitReason::Panicked { message: "its control lane broke".to_owned() };
            let mut drained = DrainReport::default();
            drained.note(self.name.clone(), &reason);
            report(Exit { reason, drained });
        }
    }
}
