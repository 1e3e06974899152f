//! Another daemon that runs the same section, between the same clusters and under the same name.
//!
//! It has the same field manager and writes the same marks, so its objects look like this one's. Two things tell it: it has
//! written the section's state (the keeper sees that), or local objects that this daemon is about to make are there already,
//! with this section's marks. Once may be the last write of a replica that had the section before; more often is a twin.

use std::fmt;
use std::time::Duration;

use super::ownership;
use super::section::Section;
use crate::cluster::{Object, ObjectKey};

/// So many objects that another one made are no coincidence.
const COINCIDENCES: u64 = 3;
/// So long after a hand-over they may still be the other replica's.
const HAND_OVER: Duration = Duration::from_mins(1);

/// Local objects that bear this section's marks, and that it has not made.
#[derive(Debug, Default)]
pub(super) struct Twin {
    made: u64,
    first: Option<ObjectKey>,
}

impl fmt::Display for Twin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first.as_ref().map(|key| format!(", the first {key}")).unwrap_or_default();
        write!(
            formatter,
            "another daemon seems to run this section: {} objects were made with its field manager before it made them{first}",
            self.made
        )
    }
}

impl Section {
    /// A local object was there when it was to be made, and is in step now.
    pub(super) fn made_by_another(&self, local: &Object) {
        if !ownership::is_ours(local, &self.policy) || ownership::is_adopted(local, &self.policy) {
            return;
        }
        // The last writes of the replica that had the section before.
        if self.fence.is_some() && self.is_young(HAND_OVER) {
            return;
        }
        let mut twin = self.twin.lock();
        twin.made += 1;
        twin.first.get_or_insert_with(|| local.key.clone());
        if twin.made == COINCIDENCES {
            tracing::warn!(section = %self.name(), "{twin}");
            drop(twin);
            // Whoever else runs it finds out by its next write.
            self.state().sign();
        }
    }

    /// The other daemon, where there seems to be one.
    pub(super) fn other_daemon(&self) -> Option<String> {
        let written = || self.state().other().map(|other| format!("another daemon runs this section, too: {other}"));
        let twin = self.twin.lock();
        (twin.made >= COINCIDENCES).then(|| twin.to_string()).or_else(written)
    }
}
