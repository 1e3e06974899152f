//! What runs and watches ask of a section beside them: the attendant does it, since a run that waited for room in its own
//! dispatcher's mailbox would wait for itself.

use super::owed::Owed;
use super::section::Section;
use crate::cluster::Error;

/// A look for what was left behind that fails is tried again soon so often.
const QUICK_TRIES: u32 = 5;

/// What runs asked for.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) keys: Owed,
    /// Everyone who waits for the guard's verdict: how often that was asked for, and answered.
    suspects: u64,
    suspects_requested: u64,
    /// The remote objects that are not selected have to be looked through for our finalizer.
    pub(super) unselected: bool,
    /// It has to be looked for what earlier settings have left behind.
    left_behind: bool,
    /// How often it has failed since it went well.
    left_failures: u32,
}

impl Section {
    /// A suspect was cleared, or was one too many: there is another verdict for those that wait.
    pub(super) fn suspects_may_go(&self) {
        self.asked.lock().suspects += 1;
        self.asked_notify.notify_one();
    }

    /// Waits until a run has asked for something.
    pub(super) async fn asked(&self) {
        self.asked_notify.notified().await;
    }

    /// The section begins to decide: what its settings and its selector may have left unseen is to be looked for.
    pub(super) fn look_for_unseen(&self) {
        self.asked.lock().left_behind |= self.may_have_left_something();
        self.asked_notify.notify_one();
        self.look_for_unselected();
    }

    /// Whether it is to be looked again for what was left behind: something was, or nobody could find out.
    pub(super) fn may_look_for_left_again(&self) -> bool {
        self.has_left_something() || self.asked.lock().left_failures > 0
    }

    /// Something was left behind, and may be gone by now.
    pub(super) fn look_for_left_again(&self) {
        self.asked.lock().left_behind = true;
        self.asked_notify.notify_one();
    }

    /// What left the selector unseen may still bear our finalizer: it is to be looked for.
    pub(super) fn look_for_unselected(&self) {
        if !self.config.selector.is_empty() {
            self.asked.lock().unselected = true;
            self.asked_notify.notify_one();
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
                self.table.lock().pair(&key).holds_remote = true;
                self.request(key).await;
            }
        }
        self.asked.lock().unselected = false;
        Ok(())
    }

    /// Requests what runs have asked for; an error: something could not be found out, and is still to be.
    pub(super) async fn request_asked(&self) -> Result<(), Error> {
        let (keys, suspects) = {
            let asked = self.asked.lock();
            (asked.keys.seen(), (asked.suspects != asked.suspects_requested).then_some(asked.suspects))
        };
        for (key, added) in keys {
            self.request(key.clone()).await;
            self.asked.lock().keys.requested(&key, added);
        }
        if let Some(suspects) = suspects {
            let waiting = self.guard.lock().waiting();
            for key in waiting {
                self.request(key).await;
            }
            self.asked.lock().suspects_requested = suspects;
        }
        if self.asked.lock().unselected {
            self.request_unselected().await?;
        }
        let left_behind = self.asked.lock().left_behind;
        if left_behind && self.is_listed() {
            self.asked.lock().left_behind = false;
            if let Err(error) = self.look_for_left_behind().await {
                let mut asked = self.asked.lock();
                asked.left_failures += 1;
                // Whole lists: after some tries not so soon again.
                if asked.left_failures <= QUICK_TRIES {
                    asked.left_behind = true;
                    drop(asked);
                    return Err(error);
                }
                tracing::warn!(section = %self.name(), %error, "failed to look for what earlier settings have left");
            } else {
                self.asked.lock().left_failures = 0;
            }
        }
        Ok(())
    }
}
