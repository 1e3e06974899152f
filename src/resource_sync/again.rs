//! What is written once more although it was settled: the definition of a kind may have changed, or an hour has passed.

use tokio::time::Instant;

use super::missing::LISTING_LOOK;
use super::reconcile::{End, PairReconciler};
use super::section::Section;
use crate::telemetry::ObjectState as PairState;

impl Section {
    /// Asks for the pairs whose fields that a server did not keep are to be written again.
    pub(super) async fn request_due_again(&self) {
        let due = self.index(|index| index.table.due_again(Instant::now()));
        for key in due {
            self.request(key).await;
        }
    }

    /// The definition of the kind may have changed: what a server did not keep is written once more. Where it is served in
    /// another way, all statuses are compared anew.
    pub(super) fn definition_changed(&self, another_way: bool) {
        let again = self.index(|index| index.table.all_again());
        if another_way {
            self.index(|index| index.table.forget_statuses());
            self.ask_for(self.all_pairs());
        } else if !again.is_empty() {
            self.ask_for(again);
        }
    }
}

impl PairReconciler {
    /// A status whose write changed nothing, though it differs, is settled only where the kind is found to be served as it
    /// was written to: otherwise nothing that is written in that way arrives.
    pub(super) async fn confirm_status(&self, section: &Section) -> Option<End> {
        let is_unconfirmed = |section: &Section| {
            section.index(|index| index.table.get(&self.key).is_some_and(|pair| pair.settled.status_is_unconfirmed()))
        };
        if !is_unconfirmed(section) {
            return None;
        }
        let written_to = section.remote_kind();
        match section.watches().remote.confirm_kind().await {
            Ok(kind) if Some(&kind) == written_to.as_ref() => {
                section.index(|index| index.table.pair(&self.key, Instant::now()).settled.confirm_status());
                None
            }
            Ok(_) => {
                section.index(|index| index.table.pair(&self.key, Instant::now()).settled.forget_status());
                Some(End::Later(PairState::Pending, Some(LISTING_LOOK)))
            }
            Err(error) => Some(End::Failed("confirm_kind", error)),
        }
    }
}
