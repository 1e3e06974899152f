//! Reports on the remote object what the local cluster rejects, since whoever ordered it looks there.
//!
//! The report is an annotation, written once for each reason and slowly if reasons take turns, and an Event where those are permitted. No decision depends on
//! them: if the annotation can't be written, the failure still shows in the log, in an Event on the local cluster and in
//! `/status`. The plan removes the annotation later.

use std::hash::{DefaultHasher, Hash, Hasher};

use tokio::time::Instant;

use super::PairReconciler;
use super::execute::execute;
use crate::cluster::Error;
use crate::resource_sync::plan::conflicts::effects;
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::next::{Observed, Remote, Step};
use crate::resource_sync::plan::patch::desired_metadata;
use crate::resource_sync::plan::waits::brief;
use crate::resource_sync::run::events::PairEvent;
use crate::resource_sync::run::index::Index;
use crate::resource_sync::run::index::phase::Mode;
use crate::resource_sync::run::section::Section;

impl PairReconciler {
    /// Reports a step that a schema, an admission policy or a quota has rejected. Other errors, such as a missing permission
    /// or one that passes by itself, are not reported here.
    pub(crate) async fn note_rejection(&mut self, section: &Section, step: &Step, error: &Error, observed: &Observed) {
        let Error::Rejected { code, message, .. } = error else { return };
        let Remote::Present(remote) = &observed.remote else { return };
        if !step.is_order() {
            return;
        }
        // The text does not count: some webhooks word every refusal differently, and each write of the annotation triggers
        // another reconcile, which tries the step again.
        let reason = (order(section, observed), step.name(), *code);
        let key = self.key.clone();
        let set_noted = |index: &mut Index| index.table.pair(&key, Instant::now()).told_rejection = Some(reason);
        let is_noted =
            section.index(|index| index.table.get(&self.key).is_some_and(|pair| pair.told_rejection == Some(reason)));
        if is_noted || section.mode() != Mode::Syncing {
            return;
        }
        let message = brief(message);
        let Some(note) = next::rejected(observed, section.policy(), step, message) else {
            section.index(set_noted);
            return;
        };
        let effects = effects(&note, observed, section.policy());
        // The next attempt of the step repeats this.
        if effects.iter().any(|effect| self.conflicts.wait(effect, Instant::now()).is_some()) {
            return;
        }
        let asked_at = Instant::now();
        let contenders = self.contenders(section, &note, &effects, observed, asked_at).await;
        // Credentials may have changed since the last step.
        if !section.caches_match_sessions() {
            return;
        }
        self.count_rewrites(section, &effects, observed, contenders, asked_at);
        self.expect(section, |expected| expected.set_unknown(&note, true));
        let result = execute(section, &note, observed).await;
        let is_unknown = result.as_ref().is_err_and(Error::outcome_is_unknown);
        self.expect(section, |expected| expected.set_unknown(&note, is_unknown));
        match result {
            Ok(written) => {
                for effect in &effects {
                    self.conflicts.wrote(effect);
                }
                self.record(section, &note, &written, observed);
                section.index(set_noted);
                section.emit_event(PairEvent::rejected(remote, &section.config().local, step.name(), message));
            }
            // The next attempt of the step repeats this.
            Err(error) => {
                tracing::debug!(section = %section.name(), key = %self.key, %error, "failed to note the rejection on the remote object");
            }
        }
    }
}

/// A hash of what the remote object asks for.
fn order(section: &Section, observed: &Observed) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some(remote) = observed.remote_object() {
        (&remote.uid, remote.deleting, &remote.content).hash(&mut hasher);
        desired_metadata(remote, &observed.pair.local, section.policy(), &observed.clusters).hash(&mut hasher);
    }
    hasher.finish()
}
