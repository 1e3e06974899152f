//! The work of a section's attendant: pairs to request, and searches.
//!
//! Runs and watches leave requests to the attendant. A run that waited for room in its own dispatcher's mailbox would wait for
//! itself.

use super::requeue_set::{Added, RequeueSet};
use crate::resource_sync::rules::names::PairKey;

/// Pairs to request, and searches.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Pairs that wait for a cluster or a permission.
    pub(crate) parked: RequeueSet,
    /// Pairs that were requested otherwise.
    pub(crate) asked: RequeueSet,
    /// All suspects of the guard: how often a request of them was ordered, and for which order it was made last.
    suspects: u64,
    suspects_requested: u64,
    /// Whether the remote objects outside the selector have to be searched for our finalizer.
    pub(crate) unselected: bool,
}

impl Requests {
    /// Orders a request of all suspects, because their verdicts may have changed.
    pub(crate) fn suspects_may_go(&mut self) {
        self.suspects += 1;
    }

    /// The pairs that were requested, and the number of the order to request all suspects, if there is a new one.
    pub(crate) fn due(&self) -> (Vec<(PairKey, Added)>, Option<u64>) {
        (self.asked.seen(), (self.suspects != self.suspects_requested).then_some(self.suspects))
    }

    /// Records that all suspects were requested for the order with this number.
    pub(crate) fn suspects_requested(&mut self, number: u64) {
        self.suspects_requested = number;
    }
}
