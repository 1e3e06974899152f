//! Names that were taken out of `secret_names`: their copies on the remote stay, and nobody keeps them in step any more.
//!
//! Nothing in the clusters that may be read tells of them: secrets are granted by name. The section's state does, which
//! says the names of the last run.

use super::Section;

impl Section {
    /// The state is known: compares the names of the last run with those of now, and remembers these.
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
