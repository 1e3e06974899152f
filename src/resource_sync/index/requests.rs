//! The work of a section's attendant: pairs to request, and searches.
//!
//! Runs and watches leave requests to the attendant. A run that waited for room in its own dispatcher's mailbox would wait for
//! itself.

use super::requeue_set::{Added, RequeueSet};
use crate::resource_sync::rules::names::PairKey;

/// How often a failed search for leftovers is retried soon.
const QUICK_TRIES: u32 = 5;

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
    /// Whether leftovers of earlier configurations have to be searched.
    left_behind: bool,
    /// How often that has failed since its last success.
    left_failures: u32,
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

    /// Orders a search for leftovers.
    pub(crate) fn look_for_left(&mut self) {
        self.left_behind = true;
    }

    /// Whether a search is ordered. The caller begins it now.
    pub(crate) fn takes_left(&mut self) -> bool {
        std::mem::take(&mut self.left_behind)
    }

    /// Whether the last search has failed.
    pub(crate) fn left_is_unknown(&self) -> bool {
        self.left_failures > 0
    }

    /// Records that the search has succeeded.
    pub(crate) fn left_is_known(&mut self) {
        self.left_failures = 0;
    }

    /// Records that the search has failed. Returns whether it is retried soon: it reads whole lists, so after some failures it
    /// waits longer.
    pub(crate) fn left_failed(&mut self) -> bool {
        self.left_failures += 1;
        let is_soon = self.left_failures <= QUICK_TRIES;
        self.left_behind |= is_soon;
        is_soon
    }
}
