//! A section's mode, and how far its run has come.

use std::time::Duration;

use tokio::time::Instant;

/// What the section does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It keeps pairs in step.
    #[default]
    Syncing,
    /// It removes our marks from both sides.
    Detaching,
    /// It removes our finalizer from the remote, because the local cluster is gone.
    DetachingLocalGone,
}

/// How far a run has come. By default no run has begun.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    /// The mode, which outlives the run.
    pub(crate) mode: Mode,
    pub(crate) began: Option<Instant>,
    /// All pairs have been requested once.
    pub(crate) has_begun: bool,
    /// The stored state has just become known, and the pending changes that follow from it are being recorded.
    pub(crate) is_noting: bool,
    /// How many changes are under way after which changes of other pairs may be pending.
    pub(crate) changes: usize,
}

impl Phase {
    /// Begins a run; `is_noting`: the stored state is not known yet.
    pub(crate) fn begin(&mut self, is_noting: bool, now: Instant) {
        *self = Self { mode: self.mode, began: Some(now), is_noting, ..Self::default() };
    }

    pub(crate) fn end(&mut self) {
        *self = Self { mode: self.mode, ..Self::default() };
    }

    /// Makes the run decide anew, once the guard knows the pending changes.
    pub(crate) fn decide_anew(&mut self) {
        (self.has_begun, self.is_noting) = (false, true);
    }

    /// Whether the run can decide for the first time.
    pub(crate) fn begins_now(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }

    /// Whether the guard does not know all pending changes yet.
    pub(crate) fn is_noting(&self) -> bool {
        self.is_noting || self.changes > 0
    }

    /// Whether the run began within this time.
    pub(crate) fn is_younger_than(&self, window: Duration, now: Instant) -> bool {
        self.began.is_some_and(|began| now.saturating_duration_since(began) < window)
    }
}
