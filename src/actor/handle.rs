//! The way into a tree from any task: start it, look at it, drain it, wait for its end.

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
    /// `LocalSet`). The handle works from everywhere. `children` are started in order, and restarted by `policy` where they bring none of their own.
    pub fn start(name: &str, children: Vec<ChildSpec>, policy: RestartPolicy) -> SupervisorHandle {
        let (tell, exit) = watch::channel(None);
        let path = Name::root(name);
        let notice = ExitNotice::new(path.clone(), move |exit| {
            tell.send_replace(Some(exit));
        });
        let supervisor = Self::new(name.to_owned(), path.clone(), Box::new(move || children), policy, notice);
        SupervisorHandle { name: path, address: Actor::start(supervisor), exit }
    }
}

#[expect(clippy::disallowed_methods, reason = "the control lane; every caller waits for the answer")]
impl SupervisorHandle {
    /// Ends the tree: children are asked to drain in reverse order of their start, each when the one before it has ended,
    /// and whoever still works after `within` is aborted and named. Asking again moves the deadline up, never back;
    /// `Duration::ZERO` aborts. A tree that has ended already answers with how that went.
    pub async fn drain(&self, within: Duration) -> DrainReport {
        self.address.do_send(Drain { deadline: after(Instant::now(), within) });
        self.exit().await.drained
    }

    /// The tree as it is now. Answered at once, however busy the actors are.
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

    /// Waits for the end of the tree and tells its reason. `ExitCode::from` makes the process's code of it.
    pub async fn exited(&self) -> ExitReason {
        self.exit().await.reason
    }

    /// Starts one more child. It may have the name of one that has ended, and then counts as its continuation; an ended
    /// child keeps its line in the report until then, so names that come and go should come back.
    pub async fn start_child(&self, spec: ChildSpec) -> Result<(), StartError> {
        let child = self.name.child(spec.name());
        self.address.send(StartChild(spec)).await.unwrap_or(Err(StartError::Ending { child }))
    }

    async fn exit(&self) -> Exit {
        let mut exit = self.exit.clone();
        let told = exit.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone());
        told.unwrap_or_else(|| Exit {
            reason: ExitReason::Panicked { message: "its control lane broke".to_owned() },
            drained: DrainReport::default(),
        })
    }
}
