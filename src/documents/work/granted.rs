//! A cluster that this process works on.

use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::cluster::{self, Expired, Fence};
use crate::documents::claims::{Holder, Registration};
use crate::documents::item::WorkClaim;

/// A claim on a cluster. It is renewed until it is dropped or lost. Dropping it closes its fence; without
/// [`WorkQueue::done`](super::WorkQueue::done) its row returns when the claim ends in the database.
pub struct Work {
    pub cluster: Uuid,
    /// `namespace/name`, as operators know it; the id if its document is gone.
    pub name: String,
    /// The number of the grant.
    pub token: i64,
    /// The number of requests that it serves, with all before.
    pub wanted: i64,
    /// How often it was claimed since it was last done or requested, this time included.
    pub attempts: u32,
    /// Whether somebody waits for it, so that it goes before full passes.
    pub urgent: bool,
    /// How long its row had been ready.
    pub waited: Duration,
    pub(super) holder: Holder,
    pub(super) claim: cluster::Claim,
    pub(super) registration: Registration,
}

impl Work {
    /// The namespace of its document; empty if that is gone.
    pub fn namespace(&self) -> &str {
        self.name.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The claim, for requests to the cluster.
    pub fn claim(&self) -> &cluster::Claim {
        &self.claim
    }

    /// The fence of the claim. It never opens again.
    pub fn fence(&self) -> &Fence {
        self.registration.fence()
    }

    /// The remaining time; an error if this process must not work on the cluster any more. It takes nanoseconds.
    pub fn check(&self) -> Result<Duration, Expired> {
        self.claim.check()
    }

    /// Completes when the claim is lost or has no time left.
    pub async fn expired(&self) -> Expired {
        self.claim.expired().await
    }

    /// Gives the claim up before a statement that ends it: the next pass may begin before the answer arrives.
    pub fn release(&self) {
        self.registration.release();
    }

    /// The claim as the writer checks it.
    pub fn writing(&self) -> WorkClaim {
        WorkClaim { cluster: self.cluster, holder: self.holder.as_str().to_owned(), token: self.token }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Work");
        shown.field("cluster", &self.name).field("token", &self.token).field("wanted", &self.wanted);
        shown.field("attempts", &self.attempts).field("urgent", &self.urgent).finish_non_exhaustive()
    }
}
