//! The operators' commands: `towline approve`, `detach` and `attach`.
//!
//! Each is stored in the section's state before it is carried out, so that it survives a restart and a handover. If it can't be
//! stored it is carried out all the same, and the answer says so: with `detach --local-gone` the cluster that holds the state is
//! the one that does not answer. An approval approves one thing, that of the largest scope first. Detaching removes a section's
//! marks from both clusters for good.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Mode, Section};
use crate::cluster::{Identification, Objection};
use crate::state::{Detached, NotDurable, remembered};
use crate::status::{NotReady, Refused};

/// Why an approval of the clusters is lost when the process ends.
const UNKNOWN: &str = "the UID of the local cluster's namespace kube-system can't be read";

impl Section {
    /// Approves the first of these that applies: the clusters as they are; what the guard holds; that the section's clusters
    /// take the place of others that objects still name.
    pub(crate) async fn approve(&self) -> Result<Value, Refused> {
        if let Identification::Refused(objection) = self.identification() {
            return Err(Refused::Conflict { reason: format!("an approval does not help: {objection}") });
        }
        if let Some(objection) = self.change_and_reevaluate(|| self.accept_clusters()) {
            tracing::info!(section = %self.name(), overruled = %objection, "clusters approved");
            let stored = self.wait_until_stored("the approval").await;
            let is_known = !matches!(objection, Objection::LocalObjectsMissing { .. })
                || self.local_cluster().identity().uid().is_some();
            let stored = if is_known { stored } else { Err(NotDurable::because(UNKNOWN)) };
            self.unpark().await;
            self.request_all().await;
            return Ok(remembered(json!({"approved": 0, "overruled": objection.to_string()}), stored));
        }
        let bounds = self.bounds();
        if self.index(|index| index.guard.changes.held(bounds, Instant::now())).is_empty() {
            if let Some(taken_over) = self.change_and_reevaluate(|| self.take_over()) {
                tracing::info!(section = %self.name(), objects = taken_over, "objects of other clusters taken over");
                let stored = self.wait_until_stored("the approval").await;
                self.request_all().await;
                return Ok(remembered(json!({"approved": taken_over}), stored));
            }
            let is_held = matches!(self.identification(), Identification::Held(_));
            let reason = if is_held {
                "the clusters have changed in the meantime: list what is held again"
            } else {
                "nothing is held"
            };
            return Err(Refused::Conflict { reason: reason.into() });
        }
        let freed = self.index(|index| index.guard.approve(Instant::now()));
        self.remember_guard();
        tracing::info!(section = %self.name(), objects = freed.len(), "mass change approved");
        let stored = self.wait_until_stored("the approval").await;
        let count = freed.len();
        for key in freed {
            self.request(key).await;
        }
        Ok(remembered(json!({"approved": count}), stored))
    }

    /// Waits until the changes of the state are stored; an error if they can't be.
    pub(crate) async fn wait_until_stored(&self, what: &str) -> Result<(), NotDurable> {
        let ended = self.run.read().ended();
        tokio::select! {
            biased;
            stored = self.state().wait_until_stored(self.name(), what) => stored,
            () = ended.cancelled() => Err(NotDurable::because("the section no longer runs here")),
        }
    }

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
