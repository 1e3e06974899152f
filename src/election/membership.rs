//! The membership of this replica: one Lease that says that it lives, and for which sections.
//!
//! State it owns: nothing but whether its Lease is there. Who sends to it: nobody. What it sends: a renewal every interval,
//! and the deletion of Leases whose replicas have been silent for long. Restarted, it enrols again. Drained first of all,
//! before any section is: a replica that leaves must not be taken for the least loaded one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::leases::Leases;
use super::record;
use super::roll::Roll;
use crate::actor::{Backoff, BoxError, Scope};
use crate::cluster::{Error, ObjectKey, Watch};
use crate::config::SectionName;

/// Back-off while this replica can't enrol: the namespace of the Leases is missing, or a permission. Whatever it waits for, it
/// is told of once.
const ENROL: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
/// A drain waits for the deletion of the Lease for no longer than this.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// What the membership works with.
pub(super) struct Membership {
    pub(super) identity: Arc<str>,
    pub(super) lease_duration: Duration,
    pub(super) renew_interval: Duration,
    pub(super) sections: Vec<SectionName>,
    pub(super) leases: Arc<Leases>,
    pub(super) roll: Arc<Roll>,
    pub(super) watch: Arc<Watch>,
}

impl Membership {
    /// The body of the actor.
    pub(super) async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        let mut is_enrolled = false;
        let (mut failures, mut told_of) = (0, String::new());
        let mut sessions = self.watch.cluster().sessions();
        let mut availability = self.watch.cluster().availability();
        let mut ticks = interval(self.renew_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = scope.draining() => break,
                _ = ticks.tick() => {}
                // The first client comes after the first tick.
                Ok(()) = sessions.changed(), if !is_enrolled => {}
                Ok(()) = availability.changed(), if !is_enrolled => failures = 0,
            }
            if sessions.borrow_and_update().is_none() {
                continue;
            }
            let told = if is_enrolled {
                self.leases.stay(&self.identity).await
            } else {
                self.leases.enrol(&self.identity, self.lease_duration, &self.sections).await
            };
            match told {
                Ok(()) => {
                    is_enrolled = true;
                    failures = 0;
                    told_of.clear();
                    scope.set_state("enrolled");
                }
                Err(error) => {
                    is_enrolled &= !matches!(error, Error::NotFound { .. });
                    if is_enrolled {
                        tracing::debug!(%error, "membership was not renewed");
                    } else {
                        scope.set_state("not enrolled");
                        let text = error.to_string();
                        if text == told_of {
                            tracing::debug!(identity = %self.identity, %error, "replica still can't take part in the election");
                        } else {
                            tracing::warn!(identity = %self.identity, %error, "replica can't take part in the election yet");
                            told_of = text;
                        }
                        ticks.reset_after(ENROL.next_delay(failures));
                        failures = failures.saturating_add(1);
                    }
                    continue;
                }
            }
            self.forget_the_silent().await;
        }
        if is_enrolled {
            match timeout(LEAVE_WITHIN, self.leases.leave(&self.identity)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "membership runs out"),
                Err(_) => tracing::debug!("membership runs out"),
            }
        }
        Ok(())
    }

    async fn forget_the_silent(&self) {
        for silent in self.roll.forgotten() {
            let key = ObjectKey::new(self.leases.namespace(), record::replica_lease(&silent.identity));
            let Some(lease) = self.watch.store().get(&key).filter(|lease| lease.resource_version == silent.version)
            else {
                continue;
            };
            match self.leases.forget(&lease).await {
                Ok(()) => tracing::info!(replica = %silent.identity, "replica is forgotten"),
                // It came back, or another replica was first.
                Err(error) => tracing::debug!(replica = %silent.identity, %error, "replica was not forgotten"),
            }
        }
    }
}
