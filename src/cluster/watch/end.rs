//! How a stream ends, and which errors end it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::runtime::watcher;
use tokio::time::Instant;

use super::{RETRY, Watch};
use crate::actor::Backoff;
use crate::cluster::error::{Asked, Error};
use crate::cluster::{Availability, Verb};

/// After so many failures in a row a watch is not resumed but starts with a new list.
const RESUMES: u32 = 3;

/// [`RETRY`] while the cluster is settling: failures of the outage say nothing about the cluster now.
const RETRY_WHILE_SETTLING: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

/// Why a stream ended.
pub(super) enum End {
    /// List again: the credentials are new, or the old watch can't be resumed.
    Relist,
    /// Nobody demands the watch any more.
    Unwanted,
    /// The section leases of all who demand it have expired.
    LeaseExpired,
    /// The server has no streaming lists.
    NoStreamingLists,
    /// The cache is void: list again later.
    Void(Error),
}

impl Watch {
    /// The delay before the next attempt, after so many failed ones.
    pub(super) fn retry_delay(&self, attempt: u32) -> Duration {
        let backoff = if self.cluster.is_settling() { RETRY_WHILE_SETTLING } else { RETRY };
        backoff.next_delay(attempt)
    }

    /// Waits until the cluster stops answering and then answers again.
    pub(super) async fn comes_back(&self) {
        let mut availability = self.cluster.availability();
        // The cluster, which this watch holds, has the sender.
        let _ = availability.wait_for(|availability| *availability != Availability::Available).await;
        let _ = availability.wait_for(|availability| *availability == Availability::Available).await;
    }

    /// The server no longer has the version that the watch was to resume from.
    async fn too_old(&self) {
        tracing::info!(cluster = %self.id.cluster, resource = %self.id.resource, "the resource version of a watch is too old, listing again");
        tokio::time::sleep(RETRY.next_delay(0)).await;
    }

    /// Logs the first failure in a row as a warning. kube's own messages, which print whole structures, are not logged.
    pub(super) fn log_failure(&self, error: &Error, is_first: bool) {
        let (cluster, resource) = (&self.id.cluster, &self.id.resource);
        if is_first {
            tracing::warn!(%cluster, %resource, %error, "watch failed, retrying");
        } else {
            tracing::debug!(%cluster, %resource, %error, "watch failed again");
        }
    }

    /// Decides what an error of the stream means; `None`: the stream recovers by itself.
    pub(super) async fn after_error(&self, error: watcher::Error, streaming: bool, attempt: &mut u32) -> Option<End> {
        let resource = self.id.resource.to_string();
        let asked = Asked { cluster: &self.id.cluster, verb: Verb::Watch, resource: &resource, name: None };
        let error = match error {
            watcher::Error::InitialListFailed(source) => Asked { verb: Verb::List, ..asked }.failed(source),
            watcher::Error::WatchStartFailed(source) | watcher::Error::WatchFailed(source) => asked.failed(source),
            // The watch fell behind. Kube's watcher would list again by itself, but every list has to begin with discovery.
            watcher::Error::WatchError(status) if status.code == 410 => {
                self.too_old().await;
                return Some(End::Relist);
            }
            watcher::Error::WatchError(status) => asked.refused(&status, None),
            watcher::Error::NoResourceVersion => Error::Decode { source: String::from("no resourceVersion").into() },
        };
        match error {
            Error::Rejected { code: 410, .. } => {
                self.too_old().await;
                Some(End::Relist)
            }
            // Servers without streaming lists refuse one or the other of the parameters.
            Error::Rejected { code: 400 | 422, .. } if streaming => Some(End::NoStreamingLists),
            Error::NotServed { .. } | Error::NotFound { .. } | Error::Forbidden { .. } => Some(End::Void(error)),
            Error::LeaseExpired(_) => Some(End::LeaseExpired),
            Error::Connect { .. } | Error::NoAnswer { .. } | Error::Unavailable { .. } | Error::Unauthorized { .. } => {
                let (cluster, resource) = (&self.id.cluster, &self.id.resource);
                tracing::debug!(%cluster, %resource, %error, "watch connection lost");
                self.lost.store(true, Ordering::Release);
                self.cluster.report_unreachable();
                tokio::time::sleep(RETRY.next_delay(0)).await;
                if self.cluster.is_available() {
                    return None;
                }
                self.wait_until_available().await;
                // The server that answers now may be another cluster, or this one restored to an older state. A watch from a
                // version that it has not reached yet would silently receive nothing.
                Some(End::Relist)
            }
            other => {
                self.log_failure(&other, *attempt == 0);
                let delay = self.retry_delay(*attempt);
                *attempt = attempt.saturating_add(1);
                if let Error::Throttled { retry_after, .. } = other {
                    tokio::time::sleep(retry_after.map_or(delay, |asked| asked.max(delay))).await;
                    return None;
                }
                if *attempt >= RESUMES {
                    // From now on it lists again, and the end of a list shows that it works.
                    self.broken.send_modify(|broken| {
                        broken.get_or_insert_with(|| (Instant::now(), String::new())).1 = other.to_string();
                    });
                }
                tokio::time::sleep(delay).await;
                (*attempt >= RESUMES).then_some(End::Relist)
            }
        }
    }
}
