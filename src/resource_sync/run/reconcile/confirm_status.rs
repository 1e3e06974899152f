//! A status write that changed nothing, confirmed by discovery.

use tokio::time::Instant;

use super::missing::LISTING_RECHECK;
use super::{End, PairReconciler};
use crate::resource_sync::run::section::Section;
use crate::telemetry::ObjectState as PairState;

impl PairReconciler {
    /// A status write was taken and changed nothing, although the statuses differ. The server's result counts only if
    /// discovery shows the kind served as before: the kind may have a status subresource by now, and then a write without it
    /// has no effect.
    pub(crate) async fn confirm_status(&self, section: &Section) -> Option<End> {
        let is_unconfirmed = |section: &Section| {
            section.index(|index| {
                index.table.get(&self.key).is_some_and(|pair| pair.server_result.status_is_unconfirmed())
            })
        };
        if !is_unconfirmed(section) {
            return None;
        }
        let written_to = section.remote_kind();
        match section.watches().remote.confirm_kind().await {
            Ok(kind) if Some(&kind) == written_to.as_ref() => {
                section.index(|index| index.table.pair(&self.key, Instant::now()).server_result.confirm_status());
                None
            }
            Ok(_) => {
                section.index(|index| index.table.pair(&self.key, Instant::now()).server_result.forget_status());
                Some(End::Later(PairState::Pending, Some(LISTING_RECHECK)))
            }
            Err(error) => Some(End::Failed("confirm_kind", error)),
        }
    }
}
