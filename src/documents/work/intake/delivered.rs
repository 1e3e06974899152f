//! Work that the message broker delivers (M2, M3 and M5).
//!
//! A message says that a cluster has work, and nothing else: the row is claimed as always, and if it is not ready any more, the message
//! was one too many. So nothing depends on a message. What was ready for some seconds and of which no message came is claimed all the
//! same: the announcer may be away or blocked, which this connection does not learn.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::{Intake, RETRY};
use crate::actor::Scope;
use crate::amqp::{Error, Link};
use crate::cluster::full_text;
use crate::documents::bus::{Broker, Deliveries, Delivery, Purpose, Standing};
use crate::documents::work::granted::Work;

/// Between two looks for rows of which no message came.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// For how long they have been ready.
const OVERDUE: Duration = Duration::from_secs(5);

/// Why deliveries have ended.
enum Ended {
    /// The actor drains.
    Drained,
    /// The connection can't be used.
    Lost(String),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Lost(full_text(&error))
    }
}

impl Intake {
    /// Serves what the broker delivers until the connection is lost or the actor drains.
    ///
    /// It consumes while a permit is free, and ends that before it acknowledges the delivery that takes the last one: no message waits at
    /// a busy worker.
    pub(super) async fn take_deliveries(
        &mut self,
        scope: &Scope,
        broker: &Broker,
        link: Link,
        deliver: &mut impl FnMut(Work, OwnedSemaphorePermit),
    ) {
        let Err(ended) = self.deliveries(scope, broker, &link, deliver).await;
        if let Ended::Lost(reason) = ended {
            broker.stands(Purpose::Worker, Standing::Away(reason));
        }
        link.close().await;
    }

    async fn deliveries(
        &mut self,
        scope: &Scope,
        broker: &Broker,
        link: &Link,
        deliver: &mut impl FnMut(Work, OwnedSemaphorePermit),
    ) -> Result<std::convert::Infallible, Ended> {
        let lost = || Ended::Lost("the connection was lost".to_owned());
        let mut deliveries = Deliveries::open(link).await?;
        let mut look_at = Instant::now() + LOOK_EVERY;
        loop {
            let permit = match Arc::clone(&self.permits).try_acquire_owned() {
                Ok(permit) => permit,
                Err(_) => {
                    let left = deliveries.end().await?;
                    self.give_back(broker, left).await?;
                    tokio::select! {
                        biased;
                        () = scope.draining() => return Err(Ended::Drained),
                        () = link.lost() => return Err(lost()),
                        // The semaphore is never closed.
                        Ok(permit) = Arc::clone(&self.permits).acquire_owned() => permit,
                    }
                }
            };
            deliveries.begin().await?;
            let delivery = tokio::select! {
                biased;
                () = scope.draining() => {
                    let left = deliveries.end().await?;
                    self.give_back(broker, left).await?;
                    return Err(Ended::Drained);
                }
                () = link.lost() => return Err(lost()),
                found = deliveries.next(self.turns.prefers_urgent()) => Some(found?),
                () = sleep_until(look_at) => None,
            };
            let _work = scope.work();
            match delivery {
                Some(Some(delivery)) => self.serve(scope, broker, &mut deliveries, delivery, permit, deliver).await?,
                Some(None) => return Err(Ended::Lost("the broker has ended the deliveries".to_owned())),
                None => {
                    look_at = Instant::now() + LOOK_EVERY;
                    self.take_overdue(scope, permit, deliver).await;
                }
            }
        }
    }

    /// Claims the cluster of a delivery.
    async fn serve(
        &mut self,
        scope: &Scope,
        broker: &Broker,
        deliveries: &mut Deliveries,
        delivery: Delivery,
        permit: OwnedSemaphorePermit,
        deliver: &mut impl FnMut(Work, OwnedSemaphorePermit),
    ) -> Result<(), Error> {
        let Some(cluster) = delivery.cluster() else { return reject(broker, delivery).await };
        let is_last = self.permits.available_permits() == 0;
        let left = if is_last { deliveries.end().await? } else { Vec::new() };
        // Dropping this request would leave what it is granted to nobody.
        match self.claim_until_answered(scope, cluster).await {
            Some(work) if scope.is_draining() => self.hand_back(vec![work]).await,
            Some(work) => {
                self.turns.taken(1);
                deliver(work, permit);
            }
            None => {}
        }
        delivery.ack().await?;
        self.give_back(broker, left).await
    }

    /// Claims a cluster, however long the database is away: the broker keeps its message meanwhile. None if it is not ready.
    async fn claim_until_answered(&self, scope: &Scope, cluster: Uuid) -> Option<Work> {
        let mut failures = 0;
        loop {
            match self.queue.claim_one(cluster).await {
                Ok(granted) => return granted,
                Err(error) if failures == 0 => {
                    tracing::warn!(error = full_text(&error), "failed to claim work, retrying")
                }
                Err(error) => tracing::debug!(error = full_text(&error), failures, "failed to claim work, retrying"),
            }
            tokio::select! {
                biased;
                () = scope.draining() => return None,
                () = sleep(RETRY.next_delay(failures)) => failures = failures.saturating_add(1),
            }
        }
    }

    /// Claims rows of which no message came.
    async fn take_overdue(
        &mut self,
        scope: &Scope,
        permit: OwnedSemaphorePermit,
        deliver: &mut impl FnMut(Work, OwnedSemaphorePermit),
    ) {
        let further = std::iter::from_fn(|| Arc::clone(&self.permits).try_acquire_owned().ok());
        let permits: Vec<_> = std::iter::once(permit).chain(further).collect();
        let free = u32::try_from(permits.len()).unwrap_or(u32::MAX);
        match self.queue.claim_ready_for(OVERDUE, self.turns.shares(free)).await {
            Ok(granted) => {
                self.turns.taken(u32::try_from(granted.len()).unwrap_or(u32::MAX));
                if scope.is_draining() {
                    return self.hand_back(granted).await;
                }
                for (work, permit) in granted.into_iter().zip(permits) {
                    deliver(work, permit);
                }
            }
            Err(error) => tracing::debug!(error = full_text(&error), "failed to look for work, retrying"),
        }
    }

    /// Deliveries for which no permit is free: they are announced again.
    async fn give_back(&self, broker: &Broker, left: Vec<Delivery>) -> Result<(), Error> {
        let clusters: Vec<Uuid> = left.iter().filter_map(Delivery::cluster).collect();
        if !clusters.is_empty()
            && let Err(error) = self.queue.announce_again(&clusters).await
        {
            // Somebody will find them overdue.
            tracing::debug!(error = full_text(&error), "failed to have work announced again");
        }
        for delivery in left {
            match delivery.cluster() {
                Some(_) => delivery.ack().await?,
                None => reject(broker, delivery).await?,
            }
        }
        Ok(())
    }
}

/// A message that nobody can serve is kept among the dead letters.
async fn reject(broker: &Broker, delivery: Delivery) -> Result<(), Error> {
    tracing::warn!(
        "a message of the work queue is no cluster's id, it is among the dead letters now: `towline hub dead-letters`"
    );
    broker.rejected();
    delivery.reject().await
}
