//! Work that runs and watches leave to the requeue actor. They can't request other pairs themselves: a run that waits for room in
//! the mailbox of its own dispatcher would wait for itself.

use tokio::time::Instant;

use super::Section;
use crate::cluster::Error;
use crate::resource_sync::plan::names::PairKey;

impl Section {
    /// Requeues the pairs that wait for the guard, whose decision may have changed: a pending change was cleared, or exceeds the
    /// limit.
    pub(crate) fn requeue_pending_changes(&self) {
        self.index(|index| index.requests.pending_changes_may_go());
        self.wake_requeue();
    }

    /// Leaves it to the requeue actor to request these pairs, for a caller that can't wait for room in the mailbox.
    pub(crate) fn request_later(&self, keys: impl IntoIterator<Item = PairKey>) {
        self.index(|index| keys.into_iter().for_each(|key| index.requests.asked.insert(key)));
        self.wake_requeue();
    }

    /// Schedules the search for objects that have left the selector unobserved and may still have our finalizer.
    pub(crate) fn look_for_unselected(&self) {
        if !self.config.selector.is_empty() {
            self.index(|index| index.requests.unselected = true);
            self.wake_requeue();
        }
    }

    /// Requests the pairs of remote objects that have our finalizer and are not in the cache.
    async fn request_unselected(&self) -> Result<(), Error> {
        let Some(kind) = self.remote_kind() else { return Ok(()) };
        let held =
            self.remote_cluster().held_by(&kind, |finalizer| self.policy.marks.is_finalizer_name(finalizer)).await?;
        for remote_key in held {
            if self.watches.remote.store().get(&remote_key).is_none()
                && let Some(key) = self.mapping.pair_of_remote(&remote_key)
            {
                self.index(|index| index.table.pair(&key, Instant::now()).holds_remote = true);
                self.request(key).await;
            }
        }
        self.index(|index| index.requests.unselected = false);
        Ok(())
    }

    /// Does the work that was left to the requeue actor. An error: one of the searches failed and is to be repeated.
    pub(crate) async fn process_requests(&self) -> Result<(), Error> {
        let (keys, pending_changes) = self.index(|index| index.requests.due());
        for (key, added) in keys {
            self.request(key.clone()).await;
            self.index(|index| index.requests.asked.requested(&key, added));
        }
        if let Some(number) = pending_changes {
            let waiting = self.index(|index| index.guard.changes.waiting());
            for key in waiting {
                self.request(key).await;
            }
            self.index(|index| index.requests.pending_changes_requested(number));
        }
        if self.index(|index| index.requests.unselected) {
            self.request_unselected().await?;
        }
        Ok(())
    }
}
