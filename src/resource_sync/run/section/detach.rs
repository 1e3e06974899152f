//! `towline detach` and `towline attach`: removes a section's marks from both clusters for good, or resumes syncing.
//!
//! Both commands are stored in the section's state *before* anything is written, so that they survive a restart and a
//! handover. If the state can't be stored they are carried out all the same, and the answer says so: with `--local-gone` the
//! cluster that holds the state is the one that does not answer.

use serde_json::{Value, json};

use super::Section;
use crate::resource_sync::run::index::phase::Mode;
use crate::state::{Detached, remembered};
use crate::telemetry::{NotReady, Refused};

impl Section {
    /// Begins to release the remote objects and, unless the local cluster is gone, to remove our marks there, too.
    pub(crate) async fn detach(&self, local_gone: bool) -> Result<Value, Refused> {
        if self.config().dry_run {
            let reason =
                "the section is a dry run, which writes nothing: set `dry_run = false` to detach it".to_owned();
            return Err(Refused::Conflict { reason });
        }
        let before = self.mode();
        self.set_mode(if local_gone { Mode::DetachingLocalGone } else { Mode::Detaching });
        if let Some(NotReady { reason, .. }) = self.not_ready_because() {
            self.set_mode(before);
            return Err(Refused::Unavailable { reason });
        }
        self.state().change(|state| state.detached = Some(Detached { local_gone }));
        let stored = self.wait_until_stored("the detachment").await;
        self.look_for_unselected();
        let left = self.left_to_detach();
        tracing::info!(section = %self.name(), local_gone, objects = left, "section is being detached");
        self.request_all().await;
        Ok(remembered(json!({"detaching": left}), stored))
    }

    /// Resumes syncing of a detached section.
    pub(crate) async fn attach(&self) -> Result<Value, Refused> {
        if self.state().look(|state| state.detached.is_none()) {
            return Err(Refused::Conflict { reason: "the section is not detached".into() });
        }
        self.state().change(|state| state.detached = None);
        let stored = self.wait_until_stored("that the section is attached").await;
        tracing::info!(section = %self.name(), "section is attached again");
        self.reevaluate().await;
        Ok(remembered(json!({"attached": self.all_pairs().len()}), stored))
    }

    /// How many objects still have a mark that detaching removes.
    pub(crate) fn left_to_detach(&self) -> usize {
        let marks = &self.policy.marks;
        let watches = &self.watches;
        let unselected = usize::from(self.index(|index| index.requests.unselected)) + self.unselected_and_held();
        let remotes = watches.remote.store().objects();
        let held = remotes.iter().filter(|remote| {
            marks.holds(remote) && !self.is_held_elsewhere(remote) && self.mapping.covers_remote(&remote.key)
        });
        if self.mode() == Mode::DetachingLocalGone {
            return unselected + held.count();
        }
        let locals = watches.local.store().objects();
        let marked = locals.iter().filter(|local| {
            let is_marked = [&marks.remote_uid, &marks.adopted, &marks.released]
                .iter()
                .any(|mark| local.annotation(mark).is_some());
            is_marked && self.mapping.covers_local(&local.key) && !self.is_from_elsewhere(local)
        });
        let namespaces = watches.namespaces.store().objects();
        let owned = namespaces.iter().filter(|namespace| self.owner_in(namespace).is_some());
        unselected + held.count() + marked.count() + owned.count()
    }

    /// How many remote objects outside of the selector are known to have our finalizer.
    fn unselected_and_held(&self) -> usize {
        if self.config.selector.is_empty() {
            return 0;
        }
        let holding = self.index(|index| index.table.holding());
        holding.iter().filter(|key| self.watches.remote.store().get(&key.remote).is_none()).count()
    }
}
