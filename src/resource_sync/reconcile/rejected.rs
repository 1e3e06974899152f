//! What the local cluster rejects is told where it was ordered: on the remote object.
//!
//! By an annotation, written once for a reason, and an Event where those are granted. Neither decides anything: where the
//! annotation can't be written, the failure is told on the local side and in the report all the same. The plan takes it off
//! again.

use std::hash::{DefaultHasher, Hash, Hasher};

use tokio::time::Instant;

use super::PairReconciler;
use super::execute::execute;
use crate::cluster::Error;
use crate::resource_sync::index::Index;
use crate::resource_sync::index::phase::Mode;
use crate::resource_sync::report::events::PairEvent;
use crate::resource_sync::rules::conflicts::Contended;
use crate::resource_sync::rules::patch::desired_metadata;
use crate::resource_sync::rules::plan::{self, Observed, Remote, Step};
use crate::resource_sync::rules::waits::brief;
use crate::resource_sync::section::Section;

impl PairReconciler {
    /// A step was rejected: by a schema, an admission policy or a quota. What may pass by itself, and a permission that is
    /// missing, are other errors.
    pub(crate) async fn tell_rejection(&mut self, section: &Section, step: &Step, error: &Error, observed: &Observed) {
        let Error::Rejected { code, message, .. } = error else { return };
        let Remote::Present(remote) = &observed.remote else { return };
        if !step.is_order() {
            return;
        }
        // Not by the text: some webhooks say something else each time, and each write of ours tries the step again at once.
        let reason = (order(section, observed), step.name(), *code);
        let told = |index: &mut Index| index.table.pair(&self.key, Instant::now()).told_rejection = Some(reason);
        let is_told =
            section.index(|index| index.table.get(&self.key).is_some_and(|pair| pair.told_rejection == Some(reason)));
        if is_told || section.mode() != Mode::Syncing {
            return;
        }
        let message = brief(message);
        let Some(note) = plan::rejected(observed, section.policy(), step, message) else {
            section.index(told);
            return;
        };
        // Credentials may have changed since the last step.
        if !section.is_of_sessions() {
            return;
        }
        self.expect(section, |expected| expected.set_unknown(&note, true));
        let result = execute(section, &note, observed).await;
        let is_unknown = result.as_ref().is_err_and(Error::outcome_is_unknown);
        self.expect(section, |expected| expected.set_unknown(&note, is_unknown));
        match result {
            Ok(written) => {
                self.note(section, &note, &written, observed);
                // When this error is over, taking it off is no rewrite.
                self.conflicts.took_back(&Contended::SyncError);
                section.index(told);
                section.tell(PairEvent::rejected(remote, &section.config().local, step.name(), message));
            }
            // The next attempt tells it.
            Err(error) => {
                tracing::debug!(section = %section.name(), key = %self.key, %error, "failed to note the rejection on the remote object");
            }
        }
    }
}

/// A hash of what the remote object orders.
fn order(section: &Section, observed: &Observed) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some(remote) = observed.remote_object() {
        (&remote.uid, remote.deleting, &remote.content).hash(&mut hasher);
        desired_metadata(remote, &observed.pair.local, section.policy(), &observed.clusters).hash(&mut hasher);
    }
    hasher.finish()
}
