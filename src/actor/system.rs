//! The one runtime: a multi-thread tokio runtime for the bodies, and on the calling thread the control lane.

use std::future::Future;
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::System;
use tokio::runtime;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Runs `root` on the control lane until it is done, with `worker_threads` threads for the bodies (`None`: one a core).
///
/// The runtime is not shut down afterwards: that would wait without limit for a body that blocks its thread, and the process
/// is about to end. So `root` drains the tree itself, and `main` returns soon after. Fails if the runtime can't be created.
///
/// ```no_run
/// use std::process::ExitCode;
/// use towline::test_api::actor::{self, RestartPolicy, Supervisor};
///
/// fn main() -> std::io::Result<ExitCode> {
///     let reason = actor::run(None, |_liveness| async {
///         let tree = Supervisor::start("towline", Vec::new(), RestartPolicy::ACTOR);
///         tree.exited().await
///     })?;
///     Ok(ExitCode::from(&reason))
/// }
/// ```
pub fn run<F, R>(worker_threads: Option<usize>, root: F) -> io::Result<R::Output>
where
    F: FnOnce(Liveness) -> R,
    R: Future,
{
    let mut builder = runtime::Builder::new_multi_thread();
    builder.enable_all().thread_name("towline");
    if let Some(threads) = worker_threads {
        builder.worker_threads(threads.max(1));
    }
    let runtime = builder.build()?;
    let system = System::with_tokio_rt(|| runtime);
    let output = system.block_on(async {
        let liveness = Liveness::new();
        actix::spawn(liveness.clone().answer_for_ever());
        root(liveness).await
    });
    mem::forget(system);
    Ok(output)
}

/// Shows whether the control lane is alive. Code that blocks its thread stops it, and with it restarts, drains and reports;
/// a health check on another thread can see that here. The lane is asked by who looks: a beat of its own would wake a process
/// that has nothing to do.
#[derive(Clone)]
pub struct Liveness(Arc<Question>);

struct Question {
    started: Instant,
    /// Milliseconds from `started` to when the lane was asked, at least one; 0 while there is no question without an answer.
    asked: AtomicU64,
    to_answer: Notify,
}

impl Liveness {
    fn new() -> Self {
        Self(Arc::new(Question { started: Instant::now(), asked: AtomicU64::new(0), to_answer: Notify::new() }))
    }

    /// Asks the control lane, and returns how long it has left an earlier question unanswered: nothing while it is alive. Whoever is the
    /// first to ask a lane that is blocked sees nothing of it either.
    pub fn ask(&self) -> Duration {
        let now = u64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        match self.0.asked.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_none) => {
                self.0.to_answer.notify_one();
                Duration::ZERO
            }
            Err(asked) => Duration::from_millis(now.saturating_sub(asked)),
        }
    }

    async fn answer_for_ever(self) {
        loop {
            self.0.to_answer.notified().await;
            self.0.asked.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn bodies_run_on_other_threads_than_the_control_lane() {
        let here = thread::current().id();
        let (root, body) = run(Some(2), |_liveness| async {
            let body = tokio::spawn(async { thread::current().id() }).await.unwrap();
            (thread::current().id(), body)
        })
        .unwrap();
        assert_eq!(root, here);
        assert_ne!(body, here);
    }

    #[test]
    fn a_blocked_control_lane_leaves_questions_unanswered() {
        const BLOCKED: Duration = Duration::from_millis(300);
        const LONGEST: Duration = Duration::from_mins(1);
        let (while_blocked, is_answered) = run(Some(1), |liveness| async move {
            let (report, reported) = mpsc::sync_channel(1);
            let seen = liveness.clone();
            tokio::spawn(async move {
                // Ends as soon as the lane is found blocked; the channel holds the lane until then.
                while seen.ask() < BLOCKED {
                    tokio::task::yield_now().await;
                }
                report.send(seen.ask()).unwrap();
            });
            let while_blocked = reported.recv().unwrap();
            // Ends when the lane has answered: then there is a new question.
            let began = Instant::now();
            while liveness.ask() > Duration::ZERO && began.elapsed() < LONGEST {
                tokio::task::yield_now().await;
            }
            (while_blocked, began.elapsed() < LONGEST)
        })
        .unwrap();
        assert!(while_blocked >= BLOCKED, "a blocked lane has answered: {while_blocked:?}");
        assert!(is_answered, "the lane did not answer when it was no longer blocked");
    }

    #[test]
    fn a_body_that_blocks_its_thread_does_not_hold_the_process() {
        let (release, blocked) = mpsc::sync_channel::<()>(1);
        let output = run(Some(1), |_liveness| async move {
            let (started, is_started) = tokio::sync::oneshot::channel();
            tokio::spawn(async move {
                started.send(()).unwrap();
                blocked.recv()
            });
            is_started.await.unwrap();
            "done"
        });
        assert_eq!(output.unwrap(), "done");
        drop(release);
    }
}
