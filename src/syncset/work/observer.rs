//! What is told of visits, for metrics.

use std::time::Duration;

use crate::syncset::rules::pass::Outcome;

/// How a visit of a cluster ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Visited {
    /// There is no such cluster.
    Gone,
    /// It is paused.
    Paused,
    /// It did not answer before, and is asked later.
    Waiting,
    /// Nothing was to be done.
    InStep,
    /// A pass came to its end.
    Complete,
    /// A pass has to go on.
    Yielded,
    /// It does not answer.
    Silent,
    /// Its API server wants fewer requests.
    Throttled,
    /// The claim was lost, or the process ends.
    Interrupted,
    /// What is stored could not be read or written.
    Failed,
}

impl Visited {
    /// As the metric names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Paused => "paused",
            Self::Waiting => "waiting",
            Self::InStep => "in_step",
            Self::Complete => "complete",
            Self::Yielded => "yielded",
            Self::Silent => "silent",
            Self::Throttled => "throttled",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        }
    }
}

/// Observes workers. It must not block.
pub trait WorkObserver: Send + Sync {
    /// A visit has ended after this time, with what a pass came to, if there was one.
    fn visited(&self, visited: Visited, took: Duration, outcome: Option<&Outcome>);
}

/// Observes nothing.
impl WorkObserver for () {
    fn visited(&self, _: Visited, _: Duration, _: Option<&Outcome>) {}
}
