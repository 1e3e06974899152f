//! What the attendant of a section is to request and to look for.
//!
//! Runs and watches ask for it beside them: a run that waited for room in its own dispatcher's mailbox would wait for itself.

use super::requeue_set::{Added, RequeueSet};
use crate::resource_sync::rules::names::PairKey;

/// A look for what was left behind that fails is tried again soon so often.
const QUICK_TRIES: u32 = 5;

/// What is to be requested and looked for.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Pairs that wait for a cluster or a permission.
    pub(crate) parked: RequeueSet,
    /// Pairs that somebody asked for.
    pub(crate) asked: RequeueSet,
    /// Everyone who waits for the guard's verdict: how often that was asked for, and answered.
    suspects: u64,
    suspects_requested: u64,
    /// The remote objects that are not selected have to be looked through for our finalizer.
    pub(crate) unselected: bool,
    /// It has to be looked for what earlier settings have left behind.
    left_behind: bool,
    /// How often it has failed since it went well.
    left_failures: u32,
}

impl Requests {
    /// There is another verdict for those that wait.
    pub(crate) fn suspects_may_go(&mut self) {
        self.suspects += 1;
    }

    /// What somebody asked for, and whether everyone is to be requested who waits for a verdict: by which number.
    pub(crate) fn due(&self) -> (Vec<(PairKey, Added)>, Option<u64>) {
        (self.asked.seen(), (self.suspects != self.suspects_requested).then_some(self.suspects))
    }

    /// Everyone who waited for a verdict at that number was requested.
    pub(crate) fn suspects_requested(&mut self, number: u64) {
        self.suspects_requested = number;
    }

    /// It is to be looked for what was left behind.
    pub(crate) fn look_for_left(&mut self) {
        self.left_behind = true;
    }

    /// Whether that is to be done, which is being done then.
    pub(crate) fn takes_left(&mut self) -> bool {
        std::mem::take(&mut self.left_behind)
    }

    /// Whether nobody could find out what was left behind.
    pub(crate) fn left_is_unknown(&self) -> bool {
        self.left_failures > 0
    }

    /// It was found out.
    pub(crate) fn left_is_known(&mut self) {
        self.left_failures = 0;
    }

    /// It could not be found out. Returns whether it is tried again soon: these are whole lists, after some tries not so soon
    /// again.
    pub(crate) fn left_failed(&mut self) -> bool {
        self.left_failures += 1;
        let is_soon = self.left_failures <= QUICK_TRIES;
        self.left_behind |= is_soon;
        is_soon
    }
}
