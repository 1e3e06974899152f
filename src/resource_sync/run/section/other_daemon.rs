//! Detects another daemon that runs the same section, between the same clusters and under the same name.
//!
//! The other daemon has the same field manager and writes the same marks, so its objects look like ours. There are two signs:
//! the section's `ConfigMap` was written by another process (the store notices that), or a local object that this daemon is
//! about to create exists already and has this section's marks. One such object may be the last write of the replica that ran
//! the section before; several are another daemon's.

use std::time::Duration;

use super::Section;
use crate::cluster::Object;
use crate::resource_sync::plan::ownership;

/// For this long after a section was handed over, late writes of the previous holder may still appear.
const HANDOVER: Duration = Duration::from_mins(1);

impl Section {
    /// A local object existed already when this daemon was about to create it. Counts it, if it has this section's marks.
    pub(crate) fn object_made_by_other_daemon(&self, local: &Object) {
        if !ownership::is_ours(local, &self.policy) || ownership::is_adopted(local, &self.policy) {
            return;
        }
        if self.fence.is_some() && self.began_within(HANDOVER) {
            return;
        }
        if let Some(duplicate) = self.index(|index| index.duplicate.made_another(&local.key)) {
            tracing::warn!(section = %self.name(), "{duplicate}");
            // So that the other daemon notices this one at its next write of the state.
            self.state().sign();
        }
    }

    /// What says that another daemon runs the section; `None`: nothing does.
    pub(crate) fn other_daemon(&self) -> Option<String> {
        let written = || self.state().other().map(|other| format!("another daemon runs this section, too: {other}"));
        self.index(|index| index.duplicate.seen()).or_else(written)
    }
}
