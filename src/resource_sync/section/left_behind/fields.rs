//! Fields that were removed from `local_fields`.
//!
//! After a restart, a field that only the local object has counts as added by the API server if the generation annotations
//! agree. A field that belonged to the local side until then looks the same, and would stay until either side changes. So the
//! section's state records the removed fields until the objects that have them were written once more.

use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::Object;
use crate::resource_sync::section::Section;

impl Section {
    /// The state was read: compares `local_fields` with that of the last run, and records it and the removed fields.
    pub(crate) fn look_for_left_fields(&self) {
        let now: Vec<String> = self.policy.local_fields.iter().map(ToString::to_string).collect();
        let (before, remembered) = self.state().look(|state| {
            let settings = state.settings.clone().unwrap_or_default();
            (settings.local_fields, settings.left_fields)
        });
        let mut left: Vec<String> =
            before.iter().chain(&remembered).filter(|field| !now.contains(field)).cloned().collect();
        left.sort_unstable();
        left.dedup();
        self.index(|index| index.left.fields.clone_from(&left));
        if (&before, &remembered) != (&now, &left) {
            self.state().change(|state| {
                let settings = state.settings.get_or_insert_default();
                (settings.local_fields, settings.left_fields) = (now, left);
            });
        }
    }

    /// The section begins to decide: objects that have a removed field are written once more.
    pub(crate) fn write_left_fields_again(&self) {
        let left = self.index(|index| index.left.fields.clone());
        if left.is_empty() {
            return;
        }
        let (remotes, locals) = (self.watches.remote.store(), self.watches.local.store());
        for key in self.all_pairs() {
            if let (Some(remote), Some(local)) = (remotes.get(&key.remote), locals.get(&key.local))
                && has_more(&local, &remote, &left)
            {
                self.index(|index| index.table.pair(&key, Instant::now()).server_result.write_content_again());
            }
        }
    }

    /// Forgets the removed fields after all objects that had them were written.
    pub(crate) fn forget_left_fields(&self) {
        if !self.has_begun() {
            return;
        }
        let are_written = self.index(|index| {
            let are_written = !index.left.fields.is_empty() && !index.table.writes_content_again();
            if are_written {
                index.left.fields.clear();
            }
            are_written
        });
        if !are_written {
            return;
        }
        self.state().change(|state| {
            if let Some(settings) = &mut state.settings {
                settings.left_fields.clear();
            }
        });
    }
}

/// Whether the local object has one of these fields, and the remote one does not.
fn has_more(local: &Object, remote: &Object, fields: &[String]) -> bool {
    let (local, remote): (Value, Value) = (local.content.value(), remote.content.value());
    fields.iter().any(|field| local.pointer(field).is_some() && remote.pointer(field).is_none())
}
