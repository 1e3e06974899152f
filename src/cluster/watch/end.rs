//! How the conversation of a watch with one client ends, and which errors end it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::runtime::watcher;

use super::{RETRY, Watch};
use crate::actor::Backoff;
use crate::cluster::error::{Asked, Error};
use crate::cluster::{Availability, Verb};

/// After as many failures in a row a watch is not resumed but begun anew.
const RESUMES: u32 = 3;

/// [`RETRY`] while the cluster is settling: what failed before it was there says nothing of it now.
const RETRY_WHILE_SETTLING: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

/// Why the conversation with one client ended.
pub(super) enum End {
    /// Begin anew: there is a new client, or the old watch can't be resumed.
    Relist,
    /// Nobody needs the watch any more.
    Unwanted,
    /// Those who need it have lost their claims, and are about to notice.
    Unclaimed,
    /// The server has no streaming lists.
    NoStreamingLists,
    /// The cache can't be trusted any more: list again later.
    Void(Error),
}

impl Watch {
    /// Before another try, after so many that failed.
    pub(super) fn retry_delay(&self, attempt: u32) -> Duration {
        let backoff = if self.cluster.is_settling() { RETRY_WHILE_SETTLING } else { RETRY };
        backoff.next_delay(attempt)
    }

    /// The cluster does not answer, and then it does.
    pub(super) async fn comes_back(&self) {
        let mut availability = self.cluster.availability();
        // The sender is in the cluster, which is right here.
        let _ = availability.wait_for(|availability| *availability != Availability::Available).await;
        let _ = availability.wait_for(|availability| *availability == Availability::Available).await;
    }

    /// The server has forgotten the version that the watch has come to.
    async fn too_old(&self) {
        tracing::info!(cluster = %self.id.cluster, resource = %self.id.resource, "watch is too old, listing again");
        tokio::time::sleep(RETRY.next_delay(0)).await;
    }

    /// One line of the log for the first failure in a row; kube's own are left out of the log, since they are whole
    /// structures.
    pub(super) fn tell_failure(&self, error: &Error, is_news: bool) {
        let (cluster, resource) = (&self.id.cluster, &self.id.resource);
        if is_news {
            tracing::warn!(%cluster, %resource, %error, "watch failed, retrying");
        } else {
            tracing::debug!(%cluster, %resource, %error, "watch failed again");
        }
    }

    /// Decides what an error of the stream means; `None`: the stream goes on by itself.
    pub(super) async fn after_error(&self, error: &watcher::Error, streaming: bool, attempt: &mut u32) -> Option<End> {
        let resource = self.id.resource.to_string();
        let asked = Asked { cluster: &self.id.cluster, verb: Verb::Watch, resource: &resource, name: None };
        let error = match error {
            watcher::Error::InitialListFailed(source) => Asked { verb: Verb::List, ..asked }.failed(source),
            watcher::Error::WatchStartFailed(source) | watcher::Error::WatchFailed(source) => asked.failed(source),
            // The watch fell behind. Kube's watcher would list again by itself, but every list begins with discovery.
            watcher::Error::WatchError(status) if status.code == 410 => {
                self.too_old().await;
                return Some(End::Relist);
            }
            watcher::Error::WatchError(status) => asked.refused(status, None),
            watcher::Error::NoResourceVersion => Error::Decode { reason: "no resourceVersion".into() },
        };
        match error {
            Error::Rejected { code: 410, .. } => {
                self.too_old().await;
                Some(End::Relist)
            }
            // Servers without streaming lists refuse one or the other of the parameters.
            Error::Rejected { code: 400 | 422, .. } if streaming => Some(End::NoStreamingLists),
            Error::NotServed { .. } | Error::NotFound { .. } | Error::Forbidden { .. } => Some(End::Void(error)),
            Error::Unclaimed(_) => Some(End::Unclaimed),
            Error::Connect { .. } | Error::NoAnswer { .. } | Error::Unavailable { .. } | Error::Unauthorized { .. } => {
                let (cluster, resource) = (&self.id.cluster, &self.id.resource);
                tracing::debug!(%cluster, %resource, %error, "the connection of a watch was lost");
                self.lost.store(true, Ordering::Release);
                self.cluster.suspect();
                tokio::time::sleep(RETRY.next_delay(0)).await;
                if self.cluster.is_available() {
                    return None;
                }
                self.wait_until_available().await;
                // What comes back may be another cluster, or an older state of this one, whose versions have not come
                // as far as ours: a watch from our version would then wait in silence. List again.
                Some(End::Relist)
            }
            other => {
                self.tell_failure(&other, *attempt == 0);
                let delay = self.retry_delay(*attempt);
                *attempt = attempt.saturating_add(1);
                if let Error::Throttled { retry_after, .. } = other {
                    tokio::time::sleep(retry_after.map_or(delay, |asked| asked.max(delay))).await;
                    return None;
                }
                if *attempt >= RESUMES {
                    let mut broken = self.broken.write();
                    // From here on it lists anew, and the end of a list shows that it is mended.
                    broken.get_or_insert_with(|| (tokio::time::Instant::now(), String::new())).1 = other.to_string();
                }
                tokio::time::sleep(delay).await;
                (*attempt >= RESUMES).then_some(End::Relist)
            }
        }
    }
}
