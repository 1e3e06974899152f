//! Names that were removed from `secret_names`: the copies of these secrets stay on the remote and are no longer updated.
//!
//! Access to secrets is granted by name, so the section can't list them in the clusters. Its state records the names of the
//! last run.

use crate::resource_sync::section::Section;

impl Section {
    /// The state was read: compares `secret_names` with that of the last run, warns of removed names, and records it.
    pub(crate) fn look_for_left_secrets(&self) {
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
}
