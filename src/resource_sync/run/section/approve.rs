//! `towline approve`: one command approves one thing, the one of the largest scope first.
//!
//! The approval is stored before the pairs are requested again, so that it survives a restart. If it can't be stored it counts
//! all the same, and the answer says so.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::Section;
use crate::cluster::{Identification, Objection};
use crate::state::{NotDurable, remembered};
use crate::telemetry::Refused;

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
}

/// Why an approval of the clusters is lost when the process ends.
const UNKNOWN: &str = "the UID of the local cluster's namespace kube-system can't be read";
