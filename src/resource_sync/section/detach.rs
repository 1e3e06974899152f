//! Ending a section for good, and taking it back.
//!
//! Both are remembered in the section's state *before* anything is done, so that neither a restart nor a hand-over undoes
//! them. Where the state can't be stored they are done all the same, and the answer says so: with `--local-gone` the
//! cluster that the state is in is the one that does not answer.

use serde_json::{Value, json};

use super::Section;
use crate::resource_sync::index::phase::Mode;
use crate::state::{Detached, remembered};
use crate::telemetry::{NotReady, Refused};

impl Section {
    /// Releases the remote, and unless the local cluster is gone for ever takes our marks off there, too.
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

    /// Takes a section back that was detached: its pairs are kept in step again.
    pub(crate) async fn attach(&self) -> Result<Value, Refused> {
        if self.state().look(|state| state.detached.is_none()) {
            return Err(Refused::Conflict { reason: "the section is not detached".into() });
        }
        self.state().change(|state| state.detached = None);
        let stored = self.wait_until_stored("that the section is attached").await;
        tracing::info!(section = %self.name(), "section is attached again");
        self.decide_anew().await;
        Ok(remembered(json!({"attached": self.all_pairs().len()}), stored))
    }
}
