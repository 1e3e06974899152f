//! Rollouts: how a new content of a syncset with `spec.rollout` goes through its clusters, wave by wave.
//!
//! Each content is a revision. A cluster applies the revision to which it is pinned: a cluster that has had its turn has one of its own,
//! all others have the stable one. [`decide()`] is called about once a second while a rollout runs, and says which clusters have their turn
//! next; [`count`] says how far it is. What people ask for, such as to pause, changes the [`Rollout`] between two of these calls.
//!
//! Times are of the rollout's own clock, which counts only while it runs.

mod commands;
mod decide;
mod spec;

#[cfg(test)]
pub(in crate::syncset::plan) mod laws;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

pub use commands::Refused;
pub use decide::{Counts, count, decide};
#[cfg(test)]
use spec::{Amount, Wave};
pub use spec::{OnFailure, Spec, Takes};

use crate::syncset::plan::health::HealthState;

/// Where the rollout of a syncset is, as it is stored (`towline_rollout`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The revision that the document has.
    pub newest: i32,
    /// Counts the changes of `newest`.
    pub edited: i64,
    /// The change with which the present rollout began.
    pub started: i64,
    /// Of the present rollout. Each new one, and each move back, has the next.
    pub number: i64,
    /// What clusters without a turn have; none before the first rollout has ended.
    pub stable: Option<i32>,
    /// The revision to which it leads.
    pub goal: i32,
    pub state: RolloutPhase,
    pub reason: ProgressReason,
    pub message: String,
    /// The wave that runs, from 0; the last one is that of the clusters in no other.
    pub wave: usize,
    pub clock: Duration,
    /// When the clusters of the wave were all done or had failed.
    pub settled: Option<Duration>,
    /// Since when the health of the clusters that are done is read again.
    pub checking: Option<Duration>,
    /// How many of the waves, from the first one on, somebody has promoted.
    pub promoted: usize,
    /// How many clusters of the wave have failed.
    pub failures: usize,
    /// How many had when somebody resumed it.
    pub tolerated: usize,
    /// Whether the guard has checked what the step to the goal deletes.
    pub guarded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RolloutPhase {
    Running,
    /// Nobody moves until somebody resumes it or edits the syncset.
    Stopped,
    RollingBack,
    RolledBack,
    /// The newest revision is the stable one.
    Complete,
}

impl RolloutPhase {
    pub const ALL: [Self; 5] = [Self::Running, Self::Stopped, Self::RollingBack, Self::RolledBack, Self::Complete];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Stopped => "Stopped",
            Self::RollingBack => "RollingBack",
            Self::RolledBack => "RolledBack",
            Self::Complete => "Complete",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether clusters may have their turns.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Running | Self::RollingBack)
    }
}

/// What a rollout waits for, or why it has stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProgressReason {
    /// It has ended.
    #[default]
    None,
    /// The guard has yet to check what it deletes.
    Guarding,
    /// The guard holds what it would delete.
    Held,
    /// Clusters have their turns.
    Releasing,
    /// The selector of the wave matches no cluster, and none has succeeded before, or the syncset is for no cluster at all.
    EmptyWave,
    /// No cluster of the wave could be reached.
    Unreachable,
    Soaking,
    /// The health of the clusters that are done is read again.
    Checking,
    AwaitingPromotion,
    /// Somebody has paused it.
    Paused,
    /// More clusters have failed than may.
    Failures,
    /// The database was restored.
    Restored,
    /// Somebody has ended it.
    Aborted,
}

impl ProgressReason {
    pub const ALL: [Self; 13] = [
        Self::None,
        Self::Guarding,
        Self::Held,
        Self::Releasing,
        Self::EmptyWave,
        Self::Unreachable,
        Self::Soaking,
        Self::Checking,
        Self::AwaitingPromotion,
        Self::Paused,
        Self::Failures,
        Self::Restored,
        Self::Aborted,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Guarding => "Guarding",
            Self::Held => "Held",
            Self::Releasing => "Releasing",
            Self::EmptyWave => "EmptyWave",
            Self::Unreachable => "Unreachable",
            Self::Soaking => "Soaking",
            Self::Checking => "Checking",
            Self::AwaitingPromotion => "AwaitingPromotion",
            Self::Paused => "Paused",
            Self::Failures => "Failures",
            Self::Restored => "Restored",
            Self::Aborted => "Aborted",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}

/// A cluster that is or was pinned by a rollout of the syncset (`towline_turn`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// What it is pinned to.
    pub revision: i32,
    /// The rollout that has pinned it.
    pub number: i64,
    /// The wave that ran then.
    pub wave: usize,
    /// When, by the rollout's clock, and later by as long as it has waited for a worker since, or was paused.
    pub released: Duration,
    /// Whether it was seen to have applied the revision, and to be healthy if that is read. It stays so.
    pub done: bool,
    /// Only a reading of its health other than this one counts.
    pub read_before: Option<Timestamp>,
}

impl Turn {
    /// The number of one that counts no more. No rollout has it.
    pub const LEFT: i64 = 0;
}

/// What is known of a cluster that the syncset is for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
pub struct Seen {
    pub id: Uuid,
    /// For each wave, whether its selector matches the cluster.
    pub selected: Vec<bool>,
    /// Whether it is paused, or was not reached when it was last asked.
    pub is_away: bool,
    pub is_paused: bool,
    /// Whether it was not reached when it was last asked, and has not answered since its turn began.
    pub was_silent: bool,
    /// Whether something of its turn may have come to it: a pass has begun to write, or has ended.
    pub has_begun: bool,
    /// How long it has been waiting for a worker; zero if one has it, or if its time has not come.
    pub queued: Duration,
    pub turn: Option<Turn>,
    pub applied: Applied,
    pub health: Option<HealthReading>,
}

/// Whether a cluster has applied the goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Not yet, or it has failed in a way that may pass.
    Not,
    /// With nothing left to be deleted.
    Fully,
    /// It has failed, and only a change mends that.
    Never,
}

/// The last reading of the health of the syncset on a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthReading {
    pub at: Timestamp,
    /// None if it was read of something else than what is applied now.
    pub state: Option<HealthState>,
    /// Whether it was not current, and is not read again soon unless somebody wants that: it has failed, or is late.
    pub is_final: bool,
}

/// What was found out for one decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The clusters that the syncset is for.
    pub clusters: Vec<Seen>,
    /// Clusters that had a turn of the present rollout, and that the syncset is for no more.
    pub gone: Vec<Uuid>,
    /// Whether the guard holds the deletions of the syncset.
    pub is_held: bool,
    /// Whether it has yet to check them since labels have changed: until then nothing is deleted, either.
    pub is_aside: bool,
}

/// A change of what is stored of the clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Pins it to the goal. Its health counts again once a later reading than this one is there.
    Release { cluster: Uuid, read_before: Option<Timestamp> },
    /// It has waited for a worker, or was paused: its time counts as if it had been released then.
    Wait { cluster: Uuid, released: Duration },
    /// It is done: any reading of its health counts again.
    Done { cluster: Uuid },
    /// Its turn counts no more: the syncset is not for it, or it has missed the turn. If nothing of that has come to it, it has again what it had
    /// before; otherwise it stays pinned. It has another turn when it is back.
    Leave { cluster: Uuid },
    /// All to whom nothing of their turns has come, whichever rollout these are of, have again what they had before.
    TakeBack,
    /// Has its health read again. Until then, what was read before counts no more.
    Reread { cluster: Uuid, before: Timestamp },
    /// Has its health read again that is final, and counts until then.
    Refresh { cluster: Uuid },
    /// The health of those that are done was read again: any reading counts.
    Checked,
    /// Forgets all turns, since all clusters have the stable revision. Until then, a cluster that the syncset is for no more keeps its turn:
    /// it may be for it again, and must not go back then.
    Settle,
}
