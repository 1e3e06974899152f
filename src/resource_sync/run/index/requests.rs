//! The work of a section's requeue actor: pairs to request, and searches.
//!
//! Runs and watches leave requests to the requeue actor. A run that waited for room in its own dispatcher's mailbox would wait for
//! itself.

use super::requeue_set::{Added, RequeueSet};
use crate::resource_sync::plan::names::PairKey;

/// Pairs to request, and searches.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Pairs that wait for a cluster or a permission.
    pub(crate) parked: RequeueSet,
    /// Pairs that were requested otherwise.
    pub(crate) asked: RequeueSet,
    /// All pending changes of the guard: how often a request of them was ordered, and for which order it was made last.
    pending_changes: u64,
    pending_changes_requested: u64,
    /// Whether the remote objects outside the selector have to be searched for our finalizer.
    pub(crate) unselected: bool,
}

impl Requests {
    /// Orders a request of all pairs with pending changes, because the guard's decisions may have changed.
    pub(crate) fn pending_changes_may_go(&mut self) {
        self.pending_changes += 1;
    }

    /// The pairs that were requested, and the number of the order to request all pairs with pending changes, if there is a new one.
    pub(crate) fn due(&self) -> (Vec<(PairKey, Added)>, Option<u64>) {
        (self.asked.seen(), (self.pending_changes != self.pending_changes_requested).then_some(self.pending_changes))
    }

    /// Records that all pairs with pending changes were requested for the order with this number.
    pub(crate) fn pending_changes_requested(&mut self, number: u64) {
        self.pending_changes_requested = number;
    }
}
