//! Reading, deciding and printing large documents, which takes long: on threads of their own, a few at a time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::block_in_place;
use tokio::time::Instant;

use super::problem::{Problem, ProblemKind};

/// A text with more bytes is large. Less is read, decided or printed within a millisecond, which is not worth another thread.
const LARGE: usize = 64 << 10;
/// Large ones at a time. What a body becomes in memory can be many times its size.
const AT_ONCE: usize = 4;

/// Threads for what would keep those of the runtime from other requests. Clones share them.
#[derive(Clone, Debug)]
pub struct BlockingPool(Arc<Semaphore>);

/// The runtime is shutting down: the work may not have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica is shutting down")]
pub struct ShutsDown;

impl From<ShutsDown> for Problem {
    fn from(ShutsDown: ShutsDown) -> Self {
        Self::new(ProblemKind::Unavailable, "this replica is shutting down; nothing was written")
    }
}

impl Default for BlockingPool {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl BlockingPool {
    /// Does work with a text of `bytes` bytes: at once if that is little, else when one of the threads is free.
    pub async fn run<T: Send + 'static, E: From<ShutsDown> + Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        if bytes <= LARGE { work() } else { self.apart(work).await }
    }

    /// Does work of which the size does not say how long it takes, when one of the threads is free.
    pub async fn apart<T: Send + 'static, E: From<ShutsDown> + Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        // The semaphore is never closed.
        let slot = Arc::clone(&self.0).acquire_owned().await.ok();
        let done = tokio::task::spawn_blocking(move || {
            // It keeps its slot to the end, even if nobody waits for it any more.
            let _slot = slot;
            work()
        });
        match done.await {
            Ok(done) => done,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(ShutsDown.into()),
        }
    }
}

/// One slot of the process for work of which somebody else decides how long it takes, in the midst of what a thread of the runtime does and
/// can't be moved to another one.
#[derive(Debug, Default)]
pub struct BlockingSlot(Mutex<()>);

impl BlockingSlot {
    /// Does the work when nobody else does any here, while another thread takes over what this one has to do beside. Returns how long it took.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> (T, Duration) {
        let alone = || {
            let _slot = self.0.lock();
            let begun = Instant::now();
            (work(), begun.elapsed())
        };
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => block_in_place(alone),
            Ok(_) | Err(_) => alone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn small_work_is_done_at_once_and_large_work_on_a_blocking_thread() {
        let blocking = BlockingPool::default();
        let runtime = thread::current().id();
        let whose = async |bytes| blocking.run(bytes, || Ok::<_, Problem>(thread::current().id())).await.expect("done");
        assert_eq!(whose(LARGE).await, runtime);
        assert_ne!(whose(LARGE + 1).await, runtime);
        let failed = blocking.run(LARGE + 1, || Err::<(), _>(Problem::new(ProblemKind::Invalid, "wrong"))).await;
        assert_eq!(failed.expect_err("the problem").kind, ProblemKind::Invalid);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_is_done_in_place_keeps_the_only_thread_of_the_runtime_from_nobody() {
        let (other_has_run, waits) = mpsc::sync_channel(1);
        let done = tokio::spawn(async move {
            // It runs on the same thread as soon as that is free.
            tokio::spawn(async move { other_has_run.send(()).expect("the work listens") });
            BlockingSlot::default().run(move || waits.recv_timeout(Duration::from_mins(1))).0
        });
        assert_eq!(done.await.expect("no panic"), Ok(()));
    }

    #[tokio::test]
    async fn large_work_waits_for_a_slot_and_keeps_it_when_nobody_waits() {
        let blocking = BlockingPool::default();
        let (begun, mut beginnings) = tokio::sync::mpsc::channel(16);
        let mut waiting = Vec::new();
        for _ in 0..AT_ONCE {
            let (end, ended) = mpsc::sync_channel::<()>(0);
            let (blocking, begun) = (blocking.clone(), begun.clone());
            let work = move || {
                begun.blocking_send(()).expect("the test listens");
                ended.recv().map_err(|_| Problem::new(ProblemKind::Invalid, "the test has ended"))
            };
            waiting.push((tokio::spawn(async move { blocking.run(LARGE + 1, work).await }), end));
        }
        for _ in 0..AT_ONCE {
            beginnings.recv().await.expect("it begins");
        }
        let (gone, end) = waiting.pop().expect("one of them");
        gone.abort();
        assert!(gone.await.expect_err("aborted").is_cancelled());
        assert_eq!(blocking.0.available_permits(), 0, "its work still runs");
        let next = tokio::spawn({
            let blocking = blocking.clone();
            async move { blocking.run(LARGE + 1, || Ok::<_, Problem>(7)).await }
        });
        end.send(()).expect("it waits");
        assert_eq!(next.await.expect("no panic").expect("a slot is free"), 7);
        for (work, end) in waiting {
            end.send(()).expect("it waits");
            work.await.expect("no panic").expect("done");
        }
    }
}
