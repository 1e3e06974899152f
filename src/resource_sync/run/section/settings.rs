//! What a change of the configuration leaves in the clusters. The section's state records the settings of the last run. When
//! it has been read, they are compared with the present ones, and `/status` and the log name what needs an operator.
//!
//! - Keys that decide which objects have the section's finalizer and marks: what it no longer covers keeps them, so deletions
//!   on the remote wait until `towline release` removes the finalizer.
//! - Names that were removed from `secret_names`: the copies of these Secrets stay on the remote and are no longer updated.
//!   Access to Secrets is granted by name, so the section can't list them.
//! - Fields that were removed from `local_fields`. After a restart, a field that only the local object has counts as added by
//!   the API server if the generation annotations agree. A field that belonged to the local side until then looks the same, and
//!   would stay until either side changes. So the state records the removed fields until the objects that have them were
//!   written once more.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::Object;
use crate::resource_sync::config::SyncConfig;
use crate::resource_sync::run::section::Section;

/// The keys that decide which objects have which marks, with their values.
fn marking(config: &SyncConfig) -> BTreeMap<String, String> {
    [
        ("remote", config.remote.to_string()),
        ("local", config.local.to_string()),
        ("resource", config.resource.to_string()),
        ("remote_resource_suffix", config.remote_resource_suffix.clone()),
        ("local_namespace_suffix", config.local_namespace_suffix.clone()),
        ("namespace_prefix", config.namespace_prefix.clone()),
        ("annotation_domain", config.annotation_domain.clone()),
        (FINALIZER, config.finalizer.clone()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

const FINALIZER: &str = "finalizer";

/// The keys that have changed, with the values of the last run. A former finalizer is renamed, and leaves nothing.
fn changes(then: &BTreeMap<String, String>, now: &BTreeMap<String, String>, former: &[String]) -> Vec<String> {
    let is_changed = |(key, value): &(&String, &String)| {
        now.get(*key).is_some_and(|now| now != *value) && !(*key == FINALIZER && former.contains(value))
    };
    then.iter().filter(is_changed).map(|(key, value)| format!("{key} was {value:?}")).collect()
}

impl Section {
    /// The state was read: compares the settings with those of the last run, and records them.
    pub(crate) fn compare_settings(&self) {
        self.look_for_changed_marking();
        self.look_for_left_secrets();
        self.look_for_left_fields();
    }

    fn look_for_changed_marking(&self) {
        let now = marking(&self.config);
        let then = self.state().look(|state| state.settings.clone().unwrap_or_default().marking);
        if then == now {
            return;
        }
        let changed = changes(&then, &now, &self.config.former_finalizers);
        if !changed.is_empty() {
            tracing::warn!(
                section = %self.name(), ?changed,
                "settings have changed: objects that the section no longer covers keep its finalizer and marks; \
                 `towline release` removes the finalizer"
            );
        }
        self.index(|index| index.left.settings = changed);
        self.state().change(|state| state.settings.get_or_insert_default().marking = now);
    }

    fn look_for_left_secrets(&self) {
        let now = if self.policy.write_back { self.config.secret_names.clone() } else { Vec::new() };
        let before = self
            .state()
            .look(|state| state.settings.as_ref().map(|settings| settings.secret_names.clone()).unwrap_or_default());
        let left: Vec<String> = before.iter().filter(|name| !now.contains(name)).cloned().collect();
        if !left.is_empty() {
            tracing::warn!(
                section = %self.name(), remote = %self.config.remote, names = ?left,
                "names were taken out of secret_names: their copies on the remote stay as they are, delete them there"
            );
        }
        self.index(|index| index.left.secrets = left);
        if before != now {
            self.state().change(|state| state.settings.get_or_insert_default().secret_names = now);
        }
    }

    fn look_for_left_fields(&self) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_changed_key_is_told_with_its_last_value() {
        let then =
            map(&[("annotation_domain", "old.dev"), ("finalizer", "sync-old"), ("gone", "x"), ("remote", "hub")]);
        let now =
            map(&[("annotation_domain", "new.dev"), ("finalizer", "sync-new"), ("local", "y"), ("remote", "hub")]);
        assert_eq!(changes(&then, &now, &[]), ["annotation_domain was \"old.dev\"", "finalizer was \"sync-old\""]);
        assert_eq!(changes(&then, &now, &["sync-old".to_owned()]), ["annotation_domain was \"old.dev\""]);
        assert_eq!(changes(&map(&[]), &now, &[]), Vec::<String>::new(), "the first run");
    }
}
