//! The membership of this replica: one Lease that says that the replica is alive, and which sections it is configured with.
//!
//! State it owns: only whether its Lease exists. It has no mailbox. What it sends: one renewal in each interval, and
//! deletions of Leases whose replicas have been dead for long. Restarted, it writes its Lease anew. It is drained first of
//! all, before any section: a replica that shuts down must not be taken for the least loaded one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::leases::Leases;
use super::membership_view::MembershipView;
use super::record;
use crate::actor::{Backoff, BoxError, Scope};
use crate::cluster::{Error, ObjectKey, Watch};
use crate::config::SectionName;

/// Back-off while the replica's Lease can't be created, because its namespace or a permission is missing. The log has one
/// warning for each cause.
const JOIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
/// A drain waits no longer than this for the deletion of the Lease.
const DELETE_WITHIN: Duration = Duration::from_secs(1);

/// What the membership works with.
pub(super) struct Membership {
    pub(super) identity: Arc<str>,
    pub(super) lease_duration: Duration,
    pub(super) renew_interval: Duration,
    pub(super) sections: Vec<SectionName>,
    pub(super) leases: Arc<Leases>,
    pub(super) view: Arc<MembershipView>,
    pub(super) watch: Arc<Watch>,
}

impl Membership {
    /// The body of the actor.
    pub(super) async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        let mut is_member = false;
        let (mut failures, mut last_warning) = (0, String::new());
        let mut sessions = self.watch.cluster().sessions();
        let mut availability = self.watch.cluster().availability();
        let mut ticks = interval(self.renew_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = scope.draining() => break,
                _ = ticks.tick() => {}
                // The first client may come after the first tick.
                Ok(()) = sessions.changed(), if !is_member => {}
                Ok(()) = availability.changed(), if !is_member => failures = 0,
            }
            if sessions.borrow_and_update().is_none() {
                continue;
            }
            let written = if is_member {
                self.leases.renew_replica(&self.identity).await
            } else {
                self.leases.create_replica(&self.identity, self.lease_duration, &self.sections).await
            };
            match written {
                Ok(()) => {
                    is_member = true;
                    failures = 0;
                    last_warning.clear();
                    scope.set_state("member");
                }
                Err(error) => {
                    is_member &= !matches!(error, Error::NotFound { .. });
                    if is_member {
                        tracing::debug!(%error, "membership lease was not renewed, retrying");
                    } else {
                        scope.set_state("not a member");
                        let text = error.to_string();
                        if text == last_warning {
                            tracing::debug!(identity = %self.identity, %error, "replica still can't join the election, retrying");
                        } else {
                            tracing::warn!(identity = %self.identity, %error, "replica can't join the election yet, retrying");
                            last_warning = text;
                        }
                        ticks.reset_after(JOIN.next_delay(failures));
                        failures = failures.saturating_add(1);
                    }
                    continue;
                }
            }
            self.delete_abandoned().await;
        }
        if is_member {
            match timeout(DELETE_WITHIN, self.leases.delete_replica(&self.identity)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "membership lease was not deleted and will expire"),
                Err(_) => tracing::debug!("deleting the membership lease timed out; it will expire"),
            }
        }
        Ok(())
    }

    async fn delete_abandoned(&self) {
        for dead in self.view.abandoned() {
            let key = ObjectKey::new(self.leases.namespace(), record::replica_lease_name(&dead.identity));
            let Some(lease) = self.watch.store().get(&key).filter(|lease| lease.resource_version == dead.version)
            else {
                continue;
            };
            match self.leases.delete_abandoned(&lease).await {
                Ok(()) => tracing::info!(replica = %dead.identity, "deleted the lease of a dead replica"),
                // The replica is back, or another one has deleted its Lease.
                Err(error) => {
                    tracing::debug!(replica = %dead.identity, %error, "the lease of a dead replica was not deleted");
                }
            }
        }
    }
}
