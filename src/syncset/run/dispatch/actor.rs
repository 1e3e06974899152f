//! The actor that dispatches changes.
//!
//! State: a connection that listens to `towline`, which every write notifies; the cursor is in the database, in the row of the claim.
//! Only the holder of the leader claim `dispatcher` works, and each of its transactions checks the claim itself. Nobody sends to this
//! actor: any number of notifications causes one read, and a lost one costs a second. It dispatches until the end of the log, then
//! waits. While there are rollouts, it moves them on about once a second. A failed statement is repeated with the listener's back-off.
//! Restart: it continues at the cursor. Drain: it ends at once, since a transaction that is not committed has done nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::DispatchError;
use super::batch::{Aside, AsideCheck, Batch, Dispatch};
use super::rollout::Rollouts;
use crate::actor::{BoxError, ChildSpec, Scope};
use crate::db::{self, Listener, Session, Subscriber};
use crate::documents::{Grant, LOG_CHANNEL, LOG_EVERY, Leadership};

/// Longest pause after a batch of changes. One costs the database as much for one change as for twenty, and each pass writes a status, which is a
/// change. So the dispatcher pauses four times as long as the last batch took, and reads all changes of that time in one batch.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Between two checks of what is suspended.
const TIDY_EVERY: Duration = Duration::from_mins(1);
/// Between two looks whether a check was set aside.
const ASIDE_EVERY: Duration = Duration::from_secs(1);
/// No page of a batch takes so long.
const STALL_AFTER: Duration = Duration::from_mins(3);

/// Observes the dispatcher. It must not block.
pub trait DispatchObserver: Send + Sync {
    fn dispatched(&self, batch: Batch);
}

/// The dispatcher. Its clones are instances that take over from each other.
#[derive(Clone)]
pub struct Dispatcher {
    dispatch: Dispatch,
    leadership: Leadership,
    observer: Arc<dyn DispatchObserver>,
}

impl Dispatcher {
    /// A dispatcher under the leader claim of its role.
    pub fn new(dispatch: Dispatch, leadership: Leadership, observer: Arc<dyn DispatchObserver>) -> Self {
        Self { dispatch, leadership, observer }
    }

    pub fn child(self) -> ChildSpec {
        ChildSpec::new("dispatcher", move |scope| self.clone().run(scope)).stall_after(STALL_AFTER)
    }

    pub async fn run(self, scope: Scope) -> Result<(), BoxError> {
        let mut leadership = self.leadership.clone();
        while leadership.lead(&scope, |grant| self.follow(grant, &scope)).await {}
        Ok(())
    }

    /// Follows the log under a grant.
    async fn follow(&self, grant: Grant, scope: &Scope) -> Infallible {
        let listener = Listener::new(self.dispatch.database.clone(), "dispatcher", &[LOG_CHANNEL]);
        listener.run(&Follower { of: self, grant: &grant, scope, notified: Notify::new() }).await
    }
}

/// Follows the log under a grant.
struct Follower<'d> {
    of: &'d Dispatcher,
    grant: &'d Grant,
    scope: &'d Scope,
    notified: Notify,
}

impl Subscriber for Follower<'_> {
    async fn listening(&self, _session: &Session) -> Result<(), db::Error> {
        let dispatch = &self.of.dispatch;
        let _ends: (Infallible, Infallible) = tokio::try_join!(self.batches(dispatch), self.checks(dispatch))?;
        Ok(())
    }

    fn notified(&self, _channel: &str, _payload: &str) {
        self.notified.notify_one();
    }
}

impl Follower<'_> {
    async fn batches(&self, dispatch: &Dispatch) -> Result<Infallible, db::Error> {
        let mut tidy_at = Instant::now();
        let mut rollouts = Rollouts::unknown();
        loop {
            let began = Instant::now();
            let batch = self.batch(dispatch).await?;
            let pause = (began.elapsed() * 4).min(LONGEST_PAUSE);
            // Done even if there is more to read, so that the deletions of syncsets with nothing left to delete are held no more.
            if tidy_at <= Instant::now() {
                self.tidy(dispatch).await?;
                tidy_at = Instant::now() + TIDY_EVERY;
            }
            let roll_at = rollouts.next(&batch);
            if roll_at.is_some_and(|at| at <= Instant::now()) {
                self.roll(dispatch, &mut rollouts).await?;
            }
            if !batch.has_more {
                tokio::time::sleep(pause).await;
                let roll_in = rollouts.next(&Batch::default()).map(|at| at.saturating_duration_since(Instant::now()));
                let _elapsed = timeout(LOG_EVERY.min(roll_in.unwrap_or(LOG_EVERY)), self.notified.notified()).await;
            }
        }
    }

    /// Checks what was set aside, beside the batches.
    async fn checks(&self, dispatch: &Dispatch) -> Result<Infallible, db::Error> {
        let mut aside = Aside::default();
        loop {
            match not_expired(dispatch.check_aside(self.grant, &mut aside).await)? {
                AsideCheck::Done(batch) => self.of.observer.dispatched(batch),
                AsideCheck::Postponed => {}
                AsideCheck::Nothing => tokio::time::sleep(ASIDE_EVERY).await,
            }
        }
    }

    async fn batch(&self, dispatch: &Dispatch) -> Result<Batch, db::Error> {
        let work = self.scope.work();
        let batch = not_expired(dispatch.batch_in_pages(self.grant, &|| work.beat()).await)?;
        if batch != Batch::default() {
            tracing::debug!(changes = batch.changes, clusters = batch.asked, "changes dispatched");
            self.of.observer.dispatched(batch);
        }
        Ok(batch)
    }

    async fn tidy(&self, dispatch: &Dispatch) -> Result<(), db::Error> {
        let _work = self.scope.work();
        not_expired(dispatch.tidy(self.grant).await)
    }

    async fn roll(&self, dispatch: &Dispatch, rollouts: &mut Rollouts) -> Result<(), db::Error> {
        let work = self.scope.work();
        let clusters = not_expired(dispatch.roll(self.grant, rollouts, &|| work.beat()).await)?;
        if clusters > 0 {
            tracing::debug!(clusters, "rollouts moved on");
        }
        Ok(())
    }
}

/// Another process has become the dispatcher, or this one has but does not know it yet. The claim will show it; until then, nothing
/// is done.
fn not_expired<T: Default>(outcome: Result<T, DispatchError>) -> Result<T, db::Error> {
    match outcome {
        Ok(done) => Ok(done),
        Err(DispatchError::ClaimLost) => {
            tracing::debug!("the claim of the dispatcher has expired in the database, waiting for another one");
            Ok(T::default())
        }
        Err(DispatchError::Restoring) => {
            tracing::debug!("the database is being restored, nothing is approved meanwhile");
            Ok(T::default())
        }
        // It approves nothing by name.
        Err(DispatchError::Ambiguous { .. } | DispatchError::Changed { .. }) => Ok(T::default()),
        Err(DispatchError::Database(error)) => Err(error),
    }
}
