//! What an operator approves: one thing at a time, the greatest first.
//!
//! It is stored before the pairs are asked for again, so that a restart does not ask the operator again. Where it can't be
//! stored it counts all the same, and the answer says so.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::section::Section;
use super::standing::Standing;
use crate::state::{NotDurable, remembered};
use crate::telemetry::Refused;

impl Section {
    /// Approves what is held: the clusters as they are, then what the guard holds, then that the clusters are in the place of
    /// others.
    pub(super) async fn approve(&self) -> Result<Value, Refused> {
        let noting = self.note_suspects();
        if let Some(objection) = self.accept_clusters() {
            tracing::info!(section = %self.name(), overruled = %objection, "the clusters are approved");
            let stored = self.wait_until_stored("the approval").await;
            let stored = if self.knows_clusters() { stored } else { Err(NotDurable::because(UNKNOWN)) };
            drop(noting);
            self.unpark().await;
            self.request_all().await;
            return Ok(remembered(json!({"approved": 0, "overruled": objection.to_string()}), stored));
        }
        let bounds = self.bounds();
        if self.guard.lock().held(bounds, Instant::now()).is_empty() {
            let taken_over = self.take_over();
            if taken_over > 0 {
                tracing::info!(section = %self.name(), objects = taken_over, "its clusters take the place of others");
                let stored = self.wait_until_stored("the approval").await;
                drop(noting);
                self.request_all().await;
                return Ok(remembered(json!({"approved": taken_over}), stored));
            }
            drop(noting);
            let is_held = matches!(self.standing(), Standing::Held(_));
            let reason = if is_held { "it has changed meanwhile, look again" } else { "nothing is held" };
            return Err(Refused::Conflict { reason: reason.into() });
        }
        let freed = self.guard.lock().approve();
        self.remember_guard();
        tracing::info!(section = %self.name(), objects = freed.len(), "mass change approved");
        let stored = self.wait_until_stored("the approval").await;
        drop(noting);
        let count = freed.len();
        for key in freed {
            self.request(key).await;
        }
        Ok(remembered(json!({"approved": count}), stored))
    }

    /// Waits until what was changed is stored; an error where it can't be.
    pub(super) async fn wait_until_stored(&self, what: &str) -> Result<(), NotDurable> {
        self.state().wait_until_stored(self.name(), what).await
    }
}

/// Why an approval of clusters lasts only as long as the process.
const UNKNOWN: &str = "the UID of a cluster's namespace kube-system can't be read";
