//! The requeue actor of a section: requeues pairs that wait for something that their watches don't report.
//!
//! It follows the availability and the identity of both clusters and the permissions that were granted, and then requests the
//! pairs that were parked. It requests the pairs that runs and watches left to it (`requests`), and periodically those with
//! secrets or fields that are due to be written again. It has no state of its own, and takes a key out of the index only after
//! requesting it, so a restart loses nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::Section;
use crate::actor::{BoxError, Scope};

/// How often it searches for secrets whose refresh is due, and for pairs with fields that an API server did not keep and that are
/// due to be written again.
const LOOK: Duration = Duration::from_mins(1);

/// A search that failed is repeated after this.
const RETRY_SEARCH: Duration = Duration::from_secs(10);

/// Returns whether a search failed and is to be repeated.
async fn process_requests(section: &Section) -> bool {
    match section.process_requests().await {
        Ok(()) => false,
        Err(error) => {
            tracing::debug!(section = %section.name(), %error, "failed to search for objects outside of the caches, retrying");
            true
        }
    }
}

pub async fn run_requeue(section: Arc<Section>, scope: Scope) -> Result<(), BoxError> {
    let (remote, local) = (section.remote_cluster(), section.local_cluster());
    let mut remote_availability = remote.availability();
    let mut local_availability = local.availability();
    let (mut remote_identity, mut local_identity) = (remote.identities(), local.identities());
    let mut remote_permissions = remote.permissions_given();
    let mut local_permissions = local.permissions_given();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Requests from before this actor started, or between two starts.
    let mut search_failed = process_requests(&section).await;
    let mut may_unpark = true;
    loop {
        if std::mem::take(&mut may_unpark) && section.is_available() {
            section.unpark().await;
        }
        tokio::select! {
            () = scope.draining() => return Ok(()),
            Ok(()) = remote_availability.changed() => may_unpark = true,
            Ok(()) = local_availability.changed() => may_unpark = true,
            Ok(()) = remote_identity.changed() => may_unpark = true,
            Ok(()) = local_identity.changed() => may_unpark = true,
            Ok(()) = remote_permissions.changed() => may_unpark = true,
            Ok(()) = local_permissions.changed() => may_unpark = true,
            () = section.requeue_woken() => search_failed = process_requests(&section).await,
            () = tokio::time::sleep(RETRY_SEARCH), if search_failed => search_failed = process_requests(&section).await,
            _ = look.tick() => {
                section.forget_left_fields();
                section.request_due_again().await;
                section.request_due_secrets().await;
            }
        }
    }
}
