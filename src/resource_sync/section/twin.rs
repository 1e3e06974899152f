//! Another daemon that runs the same section, between the same clusters and under the same name.
//!
//! It has the same field manager and writes the same marks, so its objects look like this one's. Two things tell it: it has
//! written the section's state (the keeper sees that), or local objects that this daemon is about to make are there already,
//! with this section's marks. Once may be the last write of a replica that had the section before; more often is a twin.

use std::time::Duration;

use super::Section;
use crate::cluster::Object;
use crate::resource_sync::rules::ownership;

/// So long after a hand-over they may still be the other replica's.
const HAND_OVER: Duration = Duration::from_mins(1);

impl Section {
    /// A local object was there when it was to be made, and is in step now.
    pub(crate) fn made_by_another(&self, local: &Object) {
        if !ownership::is_ours(local, &self.policy) || ownership::is_adopted(local, &self.policy) {
            return;
        }
        // The last writes of the replica that had the section before.
        if self.fence.is_some() && self.is_young(HAND_OVER) {
            return;
        }
        if let Some(twin) = self.index(|index| index.twin.made_another(&local.key)) {
            tracing::warn!(section = %self.name(), "{twin}");
            // Whoever else runs it finds out by its next write.
            self.state().sign();
        }
    }

    /// The other daemon, where there seems to be one.
    pub(crate) fn other_daemon(&self) -> Option<String> {
        let written = || self.state().other().map(|other| format!("another daemon runs this section, too: {other}"));
        self.index(|index| index.twin.seen()).or_else(written)
    }
}
