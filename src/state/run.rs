//! The actor of a section's state: reads it when the section starts, and writes it when it has changed.
//!
//! State it owns: how often it failed. Who sends to it: nobody; it is woken by changes, and by the cluster's availability
//! and permissions. What it sends: requests for one `ConfigMap`, and a call to the section after each attempt, since the
//! state may have become known by it. Restarted, it goes on with what the keeper knows. Drained, it writes what is not stored yet, once.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::keeper::Keeper;
use crate::actor::{Backoff, BoxError, Scope};
use crate::cluster::Retry;

/// Back-off of requests that failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
/// What is not stored when the section ends has so long.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// The body of the actor. `may_be_known` is called when the state may have become known.
pub async fn keep(keeper: Arc<Keeper>, scope: Scope, may_be_known: impl AsyncFn()) -> Result<(), BoxError> {
    let cluster = keeper.cluster();
    let mut availability = cluster.availability();
    let mut permissions = cluster.permissions_given();
    let mut failures = 0;
    loop {
        let mut again = None;
        availability.mark_unchanged();
        permissions.mark_unchanged();
        if keeper.has_work() && cluster.is_available() {
            match keeper.work().await {
                Ok(()) => failures = 0,
                Err(error) => {
                    again = match error.retry() {
                        Retry::WhenAvailable if !cluster.is_available() => None,
                        Retry::WhenElected => None,
                        Retry::After(delay) => Some(delay),
                        // A permission that is given is also heard of; what can't be has to be looked for.
                        _ => Some(BACKOFF.next_delay(failures)),
                    };
                    failures = failures.saturating_add(1);
                }
            }
        }
        may_be_known().await;
        tokio::select! {
            () = scope.draining() => break,
            () = keeper.changed() => {}
            Ok(()) = availability.changed() => {}
            Ok(()) = permissions.changed() => failures = 0,
            () = sleep(again.unwrap_or_default()), if again.is_some() => {}
        }
    }
    if keeper.has_work() && cluster.is_available() {
        // Whoever reads it next finds what is stored; that this may fail was told when it was changed.
        let _ = timeout(LAST_WRITE, keeper.work()).await;
    }
    Ok(())
}
