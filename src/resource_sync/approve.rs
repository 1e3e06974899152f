//! What an operator approves: one thing at a time, the greatest first.
//!
//! It is stored before anything is done by it, so that a restart does not ask again. Where the state can't be stored it holds
//! all the same, and the answer says so.

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
        if let Some(objection) = self.accept_clusters() {
            tracing::info!(section = %self.name(), overruled = %objection, "the clusters are approved");
            let is_stored = self.stored("the approval").await;
            self.unpark().await;
            self.request_all().await;
            return Ok(remembered(json!({"approved": 0, "overruled": objection.to_string()}), is_stored));
        }
        let bounds = self.bounds();
        if self.guard.lock().held(bounds, Instant::now()).is_empty() {
            let taken_over = self.take_over();
            if taken_over > 0 {
                tracing::info!(section = %self.name(), objects = taken_over, "its clusters take the place of others");
                let is_stored = self.stored("the approval").await;
                self.request_all().await;
                return Ok(remembered(json!({"approved": taken_over}), is_stored));
            }
            let is_held = matches!(self.standing(), Standing::Held(_));
            let reason = if is_held { "it has changed meanwhile, look again" } else { "nothing is held" };
            return Err(Refused::Conflict { reason: reason.into() });
        }
        let freed = self.guard.lock().approve();
        self.remember_guard();
        tracing::info!(section = %self.name(), objects = freed.len(), "mass change approved");
        let is_stored = self.stored("the approval").await;
        let count = freed.len();
        for key in freed {
            self.request(key).await;
        }
        Ok(remembered(json!({"approved": count}), is_stored))
    }

    /// Waits until what was changed is stored; an error where it can't be.
    pub(super) async fn stored(&self, what: &str) -> Result<(), NotDurable> {
        self.state().stored(self.name(), what).await
    }
}
