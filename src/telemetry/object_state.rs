//! The states of a pair of objects, as reports and metrics name them.

use std::time::Duration;

/// The state of a pair of objects. A state is added only here: metrics, reports and tests iterate over
/// [`ObjectState::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectState {
    /// Both sides agree.
    InStep,
    /// A change is in progress.
    Pending,
    Paused,
    /// The last reconcile failed.
    Failing,
    /// One side is being deleted.
    Deleting,
    /// A change to it waits for an approval.
    Held,
    /// The local object has our marks, but is not proven to be ours: it is kept.
    Unclaimed,
    /// Another local cluster holds the remote object by the same finalizer.
    OtherCluster,
    /// The local object existed before the remote one, and the configuration forbids adopting it.
    Stranger,
    /// The source of the local object exists under another key: the local object is an orphan.
    MappingChanged,
    /// The remote object was created from the local one: nothing is done.
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

    /// The urgency of the state (0 is highest), and after how long in it an object is listed by name; `None`: never.
    pub fn listed_after(self) -> Option<(u8, Duration)> {
        match self {
            Self::Held => Some((0, Duration::ZERO)),
            Self::Failing => Some((1, Duration::ZERO)),
            // Healthy controllers remove their finalizers sooner.
            Self::Deleting => Some((2, Duration::from_mins(1))),
            // Longer than a change takes through healthy clusters.
            Self::Pending => Some((3, Duration::from_secs(10))),
            // These wait for an operator.
            Self::Circle | Self::OtherCluster | Self::MappingChanged | Self::Unclaimed | Self::Stranger => {
                Some((4, Duration::ZERO))
            }
            // Nobody has to act, but whoever looks for an object finds out why nothing happens.
            Self::Paused => Some((5, Duration::ZERO)),
            Self::InStep => None,
        }
    }
}
