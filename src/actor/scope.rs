//! What a body receives: its name, the request to drain, and ways to show that it makes progress.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::SetOnce;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Name;
use super::exit::panic_message;

/// The state of a body that has set none.
const RUNNING: &str = "running";

/// One instance's view of its place in the tree. Clones are views of the same instance; a restart makes a new one.
#[derive(Clone)]
pub struct Scope(Arc<Shared>);

struct Shared {
    name: Name,
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
    pub(super) fn new(name: Name) -> Self {
        Self(Arc::new(Shared {
            name,
            draining: CancellationToken::new(),
            ended: CancellationToken::new(),
            task_panic: SetOnce::new(),
            progress: Mutex::new(Progress { state: RUNNING, last_number: 0, beats: HashMap::new() }),
        }))
    }

    /// A scope outside of any tree, for a body that runs alone, and the token that asks it to drain.
    pub fn standalone(name: &str) -> (Self, CancellationToken) {
        let scope = Self::new(Name::root(name));
        let drain = scope.0.draining.clone();
        (scope, drain)
    }

    /// The actor's place in the tree.
    pub fn name(&self) -> &Name {
        &self.0.name
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

    pub(super) fn drain(&self) {
        self.0.draining.cancel();
    }

    /// Aborts every task of [`Scope::spawn`].
    pub(super) fn end(&self) {
        self.0.ended.cancel();
    }

    pub(super) fn state(&self) -> &'static str {
        self.0.progress.lock().state
    }

    /// Completes with the message when a spawned task has panicked.
    pub(super) async fn task_panic(&self) -> String {
        self.0.task_panic.wait().await.clone()
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

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
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

    #[tokio::test]
    async fn a_spawned_task_ends_with_its_actor() {
        let (scope, _drain) = Scope::standalone("worker");
        let (alive, gone) = oneshot::channel::<()>();
        scope.spawn(async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        scope.end();
        gone.await.expect_err("the task outlived its actor and said so");
    }

    #[tokio::test]
    async fn the_panic_of_a_spawned_task_is_reported() {
        let (scope, _drain) = Scope::standalone("worker");
        scope.spawn(async { panic!("lost the stream") });
        assert_eq!(scope.task_panic().await, "lost the stream");
    }
}
