//! The actor of a section's state: reads it when the section starts, and writes it when it has changed.
//!
//! State it owns: how often it failed. It has no mailbox: changes wake it, and the cluster's availability and permissions.
//! What it sends: requests for one `ConfigMap`, and a call to the section after each attempt, since the state may have become
//! known by it. Restarted, it continues with the store's state. Drained, it makes one last attempt to write what is not
//! stored.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::store::StateStore;
use crate::actor::{Backoff, BoxError, Scope};
use crate::cluster::Retry;

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
/// How long the last write may take when the section ends.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// The body of the actor. `may_be_known` is called when the state may have become known.
pub async fn keep(store: Arc<StateStore>, scope: Scope, may_be_known: impl AsyncFn()) -> Result<(), BoxError> {
    let cluster = store.cluster();
    let mut availability = cluster.availability();
    let mut permissions = cluster.permissions_given();
    let mut failures = 0;
    loop {
        let mut retry_after = None;
        availability.mark_unchanged();
        permissions.mark_unchanged();
        if store.has_work() && cluster.is_available() {
            match store.work().await {
                Ok(()) => failures = 0,
                Err(error) => {
                    retry_after = match error.retry() {
                        Retry::WhenAvailable if !cluster.is_available() => None,
                        Retry::WhenElected => None,
                        Retry::After(delay) => Some(delay),
                        // A permission that is granted wakes the actor, too; other causes have to be tried again.
                        _ => Some(BACKOFF.next_delay(failures)),
                    };
                    failures = failures.saturating_add(1);
                }
            }
        }
        may_be_known().await;
        tokio::select! {
            () = scope.draining() => break,
            () = store.write_due() => {}
            Ok(()) = availability.changed() => {}
            Ok(()) = permissions.changed() => failures = 0,
            () = sleep(retry_after.unwrap_or_default()), if retry_after.is_some() => {}
        }
    }
    if store.has_work() && cluster.is_available() {
        // If this fails, the next process finds the state as it was stored last.
        let _ = timeout(LAST_WRITE, store.work()).await;
    }
    Ok(())
}
