//! What a section is about, and how far its run has come.

use std::time::Duration;

use tokio::time::Instant;

/// What the section is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Keeping pairs in step.
    #[default]
    Syncing,
    /// Taking our marks off both sides.
    Detaching,
    /// Taking our finalizer off the remote; the local cluster is gone.
    DetachingLocalGone,
}

/// How far a run has come; by default there is none.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    /// What the section is about. It outlives the run.
    pub(crate) mode: Mode,
    /// When the run began.
    pub(crate) began: Option<Instant>,
    /// All pairs have been asked for once.
    pub(crate) has_begun: bool,
    /// The state has just become known, and what follows from that is being done.
    pub(crate) is_noting: bool,
    /// So many changes after which other pairs are suspicious are being made.
    pub(crate) changes: usize,
}

impl Phase {
    /// A run begins; `is_noting`: before the state is known.
    pub(crate) fn begin(&mut self, is_noting: bool, now: Instant) {
        *self = Self { mode: self.mode, began: Some(now), is_noting, ..Self::default() };
    }

    /// The run has ended.
    pub(crate) fn end(&mut self) {
        *self = Self { mode: self.mode, ..Self::default() };
    }

    /// The run begins to decide anew, before the guard knows what is suspicious.
    pub(crate) fn decide_anew(&mut self) {
        (self.has_begun, self.is_noting) = (false, true);
    }

    /// Whether this is the first time that the run can decide.
    pub(crate) fn begins_now(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }

    /// Whether the guard does not know yet what is suspicious.
    pub(crate) fn is_noting(&self) -> bool {
        self.is_noting || self.changes > 0
    }

    /// Whether the run began within this time.
    pub(crate) fn is_younger_than(&self, window: Duration, now: Instant) -> bool {
        self.began.is_some_and(|began| now.saturating_duration_since(began) < window)
    }
}
