//! The handle of a tree, for any task: starts it, reports on it, drains it, waits for its end.

use std::time::Duration;

use actix::{Actor, Addr};
use tokio::sync::watch;
use tokio::time::Instant;

use super::control::{Drain, Exit, ExitNotice, Report, StartChild, StartError};
use super::exit::ExitReason;
use super::moment::after;
use super::report::{ActorReport, DrainReport};
use super::restart::RestartPolicy;
use super::supervisor::Supervisor;
use super::{ChildSpec, Name};

/// A root supervisor seen from outside. Cheap to clone; dropping it ends nothing.
#[derive(Clone)]
pub struct SupervisorHandle {
    name: Name,
    address: Addr<Supervisor>,
    exit: watch::Receiver<Option<Exit>>,
}

impl Supervisor {
    /// Starts a tree on the control lane: call it in the future given to [`run`](super::run) (or in any task of a
    /// `LocalSet`). The handle works in any task. `children` are started in order, and restarted by `policy` unless they have
    /// one of their own.
    pub fn start(name: &str, children: Vec<ChildSpec>, policy: RestartPolicy) -> SupervisorHandle {
        let (report, exit) = watch::channel(None);
        let path = Name::root(name);
        let notice = ExitNotice::new(path.clone(), move |exit| {
            report.send_replace(Some(exit));
        });
        let supervisor = Self::new(name.to_owned(), path.clone(), Box::new(move || children), policy, notice);
        SupervisorHandle { name: path, address: Actor::start(supervisor), exit }
    }
}

#[expect(clippy::disallowed_methods, reason = "the control lane; every caller waits for the answer")]
impl SupervisorHandle {
    /// Ends the tree: drains its children in reverse order of their start, each after the one before it has ended, and
    /// aborts and names those that are not done after `within`. Another call can only move the deadline up;
    /// `Duration::ZERO` aborts. A tree that has already ended answers with the report of its end.
    pub async fn drain(&self, within: Duration) -> DrainReport {
        self.address.do_send(Drain { deadline: after(Instant::now(), within) });
        self.exit().await.drained
    }

    /// The tree as it is now. The answer comes at once, however busy the actors are.
    pub async fn report(&self) -> ActorReport {
        if let Ok(report) = self.address.send(Report).await {
            return report;
        }
        ActorReport {
            name: self.name.to_string(),
            state: "ended".to_owned(),
            restarts: 0,
            last_exit: Some(self.exit().await.reason),
            mailbox: None,
            children: Vec::new(),
        }
    }

    /// Waits for the end of the tree and returns its reason, from which `ExitCode::from` makes the process's exit code.
    pub async fn exited(&self) -> ExitReason {
        self.exit().await.reason
    }

    /// Starts one more child. It may have the name of a child that has ended, and then takes its place in the report. Ended
    /// children stay in the report, so names should be reused.
    pub async fn start_child(&self, spec: ChildSpec) -> Result<(), StartError> {
        let child = self.name.child(spec.name());
        self.address.send(StartChild(spec)).await.unwrap_or(Err(StartError::Ending { child }))
    }

    async fn exit(&self) -> Exit {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone());
        ended.unwrap_or_else(|| Exit {
            reason: ExitReason::Panicked { message: "its control lane broke".to_owned() },
            drained: DrainReport::default(),
        })
    }
}
