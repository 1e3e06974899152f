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

/// Runs `root` on the control lane until it is done, with so many threads for the bodies (at least 1).
///
/// The runtime is not shut down afterwards: that would wait without limit for a body that blocks its thread, and the process
/// is about to end. So `root` drains the tree itself, and `main` returns soon after. Fails if the runtime can't be created.
pub fn run<F, R>(worker_threads: usize, root: F) -> io::Result<R::Output>
where
    F: FnOnce(Liveness) -> R,
    R: Future,
{
    let mut builder = runtime::Builder::new_multi_thread();
    builder.enable_all().thread_name("towline").worker_threads(worker_threads.max(1));
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

    use super::super::report::ExitReason;
    use super::super::supervisor::{ChildSpec, Supervisor};
    use super::*;

    #[test]
    fn a_blocked_control_lane_leaves_questions_unanswered() {
        const BLOCKED: Duration = Duration::from_millis(300);
        const LONGEST: Duration = Duration::from_mins(1);
        let (while_blocked, is_answered) = run(1, |liveness| async move {
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
    fn a_body_that_blocks_its_thread_holds_up_neither_drain_nor_the_end_of_the_process() {
        let (release, blocked) = mpsc::sync_channel::<()>(0);
        let blocked = Arc::new(parking_lot::Mutex::new(blocked));
        // A second thread, since timers wait for a worker.
        let ended = run(2, |_liveness| async move {
            let (started, mut is_started) = tokio::sync::mpsc::channel(1);
            let spec = ChildSpec::new("blocked", move |_| {
                let (started, blocked) = (started.clone(), Arc::clone(&blocked));
                async move {
                    started.send(()).await?;
                    // Holds the thread until the test is over.
                    let _released = blocked.lock().recv();
                    Ok(())
                }
            });
            let tree = Supervisor::start("daemon", vec![spec]);
            is_started.recv().await.unwrap();
            (tree.drain(Duration::from_millis(100)).await, tree.exited().await)
        });
        assert_eq!(ended.unwrap(), (vec!["daemon/blocked".to_owned()], ExitReason::DrainTimedOut));
        drop(release);
    }
}
