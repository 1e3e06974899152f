//! The requeue actor of a section: requeues pairs that wait for something that their watches don't report.
//!
//! It follows the availability and the identity of both clusters and the permissions that were granted, and then requests the
//! pairs that were parked. It requests the pairs that runs and watches leave to it: they can't request other pairs themselves,
//! since a run that waits for room in the mailbox of its own dispatcher would wait for itself. Periodically it requests those with
//! secrets or fields that are due to be written again. It has no state of its own, and takes a key out of the index only after
//! requesting it, so a restart loses nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::Section;
use crate::actor::{BoxError, Scope};
use crate::cluster::Error;
use crate::resource_sync::plan::names::PairKey;

/// How often it searches for secrets whose refresh is due, and for pairs with fields that an API server did not keep and that are
/// due to be written again.
const LOOK: Duration = Duration::from_mins(1);

/// An unchanged secret is written again after this where the remote's secrets can't be watched: others may have changed it there.
pub(crate) const SECRET_REFRESH: Duration = Duration::from_hours(1);

/// A search that failed is repeated after this.
const RETRY_SEARCH: Duration = Duration::from_secs(10);

/// Returns whether a search failed and is to be repeated.
async fn process_requests(section: &Section) -> bool {
    match section.process_requests().await {
        Ok(()) => false,
        Err(error) => {
            tracing::debug!(section = %section.name(), %error, "failed to search for objects outside of the caches, retrying");
            true
        }
    }
}

pub async fn run_requeue(section: Arc<Section>, scope: Scope) -> Result<(), BoxError> {
    let (remote, local) = (section.remote_cluster(), section.local_cluster());
    let mut remote_availability = remote.availability();
    let mut local_availability = local.availability();
    let (mut remote_identity, mut local_identity) = (remote.identities(), local.identities());
    let mut remote_permissions = remote.permissions_given();
    let mut local_permissions = local.permissions_given();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Requests from before this actor started, or between two starts.
    let mut search_failed = process_requests(&section).await;
    let mut may_unpark = true;
    loop {
        if std::mem::take(&mut may_unpark) && section.is_available() {
            section.unpark().await;
        }
        tokio::select! {
            () = scope.draining() => return Ok(()),
            Ok(()) = remote_availability.changed() => may_unpark = true,
            Ok(()) = local_availability.changed() => may_unpark = true,
            Ok(()) = remote_identity.changed() => may_unpark = true,
            Ok(()) = local_identity.changed() => may_unpark = true,
            Ok(()) = remote_permissions.changed() => may_unpark = true,
            Ok(()) = local_permissions.changed() => may_unpark = true,
            () = section.requeue_woken() => search_failed = process_requests(&section).await,
            () = tokio::time::sleep(RETRY_SEARCH), if search_failed => search_failed = process_requests(&section).await,
            _ = look.tick() => {
                section.forget_left_fields();
                section.index(|index| index.table.conflicts.forget_old(Instant::now()));
                section.request_due_again().await;
                section.request_due_secrets().await;
            }
        }
    }
}

impl Section {
    /// Sets a pair aside that waits for a cluster or a permission; the requeue actor requests it again.
    pub(crate) fn park(&self, key: PairKey) {
        self.index(|index| index.requests.parked.insert(key));
    }

    pub(crate) async fn unpark(&self) {
        let parked = self.index(|index| index.requests.parked.seen());
        for (key, added) in parked {
            self.request(key.clone()).await;
            self.index(|index| index.requests.parked.requested(&key, added));
        }
    }

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

    /// Requests the pairs that have a secret whose refresh is due.
    pub(crate) async fn request_due_secrets(&self) {
        let due = self.index(|index| index.table.with_uploads_before(Instant::now(), SECRET_REFRESH));
        for key in due {
            self.request(key).await;
        }
    }

    /// Requests the pairs with fields that are due to be written again.
    pub(crate) async fn request_due_again(&self) {
        let due = self.index(|index| index.table.due_again(Instant::now()));
        for key in due {
            self.request(key).await;
        }
    }

    /// The definition of the kind may have changed, so fields that the server did not keep are written once more. Where
    /// discovery shows the kind served differently, all statuses are compared again.
    pub(crate) fn definition_changed(&self, another_way: bool) {
        let again = self.index(|index| index.table.all_again());
        if another_way {
            self.index(|index| index.table.forget_statuses());
            self.request_later(self.all_pairs());
        } else if !again.is_empty() {
            self.request_later(again);
        }
    }
}
