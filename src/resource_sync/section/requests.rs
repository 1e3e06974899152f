//! What runs and watches ask of a section beside them: the attendant does it, since a run that waited for room in its own
//! dispatcher's mailbox would wait for itself.

use tokio::time::Instant;

use super::Section;
use crate::cluster::Error;
use crate::resource_sync::rules::names::PairKey;

impl Section {
    /// A suspect was cleared, or was one too many: there is another verdict for those that wait.
    pub(crate) fn suspects_may_go(&self) {
        self.index(|index| index.requests.suspects_may_go());
        self.wake_attendant();
    }

    /// These pairs are to be asked for by the attendant: whoever says so can't wait for room.
    pub(crate) fn ask_for(&self, keys: impl IntoIterator<Item = PairKey>) {
        self.index(|index| keys.into_iter().for_each(|key| index.requests.asked.insert(key)));
        self.wake_attendant();
    }

    /// The section begins to decide: what its settings and its selector may have left unseen is to be looked for.
    pub(crate) fn look_for_unseen(&self) {
        if self.may_have_left_something() {
            self.index(|index| index.requests.look_for_left());
        }
        self.wake_attendant();
        self.look_for_unselected();
    }

    /// Whether it is to be looked again for what was left behind: something was, or nobody could find out.
    pub(crate) fn may_look_for_left_again(&self) -> bool {
        self.has_left_something() || self.index(|index| index.requests.left_is_unknown())
    }

    /// Something was left behind, and may be gone by now.
    pub(crate) fn look_for_left_again(&self) {
        self.index(|index| index.requests.look_for_left());
        self.wake_attendant();
    }

    /// What left the selector unseen may still bear our finalizer: it is to be looked for.
    pub(crate) fn look_for_unselected(&self) {
        if !self.config.selector.is_empty() {
            self.index(|index| index.requests.unselected = true);
            self.wake_attendant();
        }
    }

    /// Requests what bears our finalizer and is not selected.
    async fn request_unselected(&self) -> Result<(), Error> {
        let Some(kind) = self.remote_kind() else { return Ok(()) };
        let held =
            self.remote_cluster().held_by(&kind, |finalizer| self.policy.marks.is_finalizer_name(finalizer)).await?;
        for remote_key in held {
            if self.watches.remote.store().get(&remote_key).is_none()
                && let Some(key) = self.mapping.pair_of_remote(&remote_key)
            {
                self.index(|index| index.table.pair(&key, Instant::now()).holds_remote = true);
                self.request(key).await;
            }
        }
        self.index(|index| index.requests.unselected = false);
        Ok(())
    }

    /// Requests what runs have asked for; an error: something could not be found out, and is still to be.
    pub(crate) async fn request_asked(&self) -> Result<(), Error> {
        let (keys, suspects) = self.index(|index| index.requests.due());
        for (key, added) in keys {
            self.request(key.clone()).await;
            self.index(|index| index.requests.asked.requested(&key, added));
        }
        if let Some(number) = suspects {
            let waiting = self.index(|index| index.guard.waiting());
            for key in waiting {
                self.request(key).await;
            }
            self.index(|index| index.requests.suspects_requested(number));
        }
        if self.index(|index| index.requests.unselected) {
            self.request_unselected().await?;
        }
        if self.is_listed() && self.index(|index| index.requests.takes_left()) {
            if let Err(error) = self.look_for_left_behind().await {
                if self.index(|index| index.requests.left_failed()) {
                    return Err(error);
                }
                tracing::warn!(section = %self.name(), %error, "failed to look for what earlier settings have left");
            } else {
                self.index(|index| index.requests.left_is_known());
            }
        }
        Ok(())
    }
}
