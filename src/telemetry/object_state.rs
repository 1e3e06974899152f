//! The states that a pair of objects can be in, as reports and metrics name them.

use std::time::Duration;

/// What a pair of objects is in. A state is added here and nowhere else: metrics, reports and tests go by
/// [`ObjectState::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectState {
    /// Both sides agree.
    InStep,
    /// A change is on its way.
    Pending,
    /// Someone paused it.
    Paused,
    /// The last reconcile failed.
    Failing,
    /// One side is being deleted.
    Deleting,
    /// What would be done to it waits for an approval.
    Held,
    /// A local object bears our marks and is not proved to be ours: it is kept.
    Unclaimed,
    /// Another local cluster holds the remote object by the same finalizer.
    OtherCluster,
    /// A local object was there before its remote one and is not to be taken over.
    Stranger,
    /// The remote object that the local one came from lives under another key: the local one is an orphan.
    MappingChanged,
    /// The remote object was itself made from the local one: nothing is done.
    Circle,
}

impl ObjectState {
    /// Every state, in the order of a report.
    pub const ALL: [Self; 11] = [
        Self::InStep,
        Self::Pending,
        Self::Paused,
        Self::Failing,
        Self::Deleting,
        Self::Held,
        Self::Unclaimed,
        Self::Stranger,
        Self::MappingChanged,
        Self::Circle,
        Self::OtherCluster,
    ];

    /// The label's value, and the key in a report.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InStep => "in_step",
            Self::Pending => "pending",
            Self::Paused => "paused",
            Self::Failing => "failing",
            Self::Deleting => "deleting",
            Self::Held => "held",
            Self::Unclaimed => "unclaimed",
            Self::Stranger => "stranger",
            Self::MappingChanged => "mapping_changed",
            Self::Circle => "circle",
            Self::OtherCluster => "other_cluster",
        }
    }

    /// From when on an object in this state is listed by name, the most urgent states first; `None`: never.
    pub fn listed_after(self) -> Option<(u8, Duration)> {
        match self {
            Self::Held => Some((0, Duration::ZERO)),
            Self::Failing => Some((1, Duration::ZERO)),
            // Finalizers of healthy controllers are done sooner.
            Self::Deleting => Some((2, Duration::from_mins(1))),
            // Longer than a change takes on its way through clusters that are well.
            Self::Pending => Some((3, Duration::from_secs(10))),
            // Nothing happens to them before somebody looks.
            Self::Circle | Self::OtherCluster | Self::MappingChanged | Self::Unclaimed | Self::Stranger => {
                Some((4, Duration::ZERO))
            }
            Self::InStep | Self::Paused => None,
        }
    }
}
