//! Work that the message broker delivers.
//!
//! A message says that a cluster has work, and nothing else: the row is claimed as always, and if it is not ready any more, the message
//! was one too many. So nothing depends on a message. What was ready for some seconds and of which no message came is claimed all the
//! same: the announcer may be away or blocked, which this connection does not learn. From then on until a message comes, rows are claimed
//! once a second without that wait.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::{EVERY, Intake, RETRY};
use crate::actor::Scope;
use crate::amqp::{Error, Link};
use crate::documents::bus::{Broker, Deliveries, Delivery, Purpose, Standing};
use crate::documents::work::granted::Work;
use crate::documents::work::queue::Answer;

/// Between two looks for rows of which no message came.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// For how long they have been ready.
const OVERDUE: Duration = Duration::from_secs(5);

/// How long a delivery may take to come. While some come, rows are not claimed past them.
const GRACE: Duration = Duration::from_millis(250);

/// Between two attempts to claim a row that somebody else has locked. Most often that is a request, which commits soon.
const LOCKED_EVERY: Duration = Duration::from_millis(50);
/// How many there are. Requests for 10,000 rows at once lock them for 0.3 s. After them the message is dropped, and the row is overdue: an
/// operator may keep it locked for hours, and all other rows would wait behind it.
const LOCKED_ATTEMPTS: u32 = 10;

/// The connection to the broker is gone.
const LOST: Ended = Ended::Lost("the connection was lost");

/// Why deliveries have ended.
enum Ended {
    /// The actor drains.
    Drained,
    /// The connection was lost.
    Lost(&'static str),
    /// The connection can't be used.
    Failed(Error),
}

/// What was found of rows of which no message came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overdue {
    None,
    Some,
    /// There may be more than permits.
    Many,
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Intake {
    /// Serves what the broker delivers until the connection is lost or the actor drains.
    ///
    /// It consumes while a permit is free, and ends that before it acknowledges the delivery that takes the last one: no message waits at
    /// a busy worker. Returns until when the connection was of use.
    pub(super) async fn take_deliveries(
        &mut self,
        scope: &Scope,
        broker: &Broker,
        link: Link,
        deliveries: Deliveries,
        deliver: &mut impl FnMut(Work, OwnedSemaphorePermit),
    ) -> Instant {
        broker.stands(Purpose::Worker, Standing::Ready);
        let Err(ended) = self.deliveries(scope, broker, &link, deliveries, deliver).await;
        let now = Instant::now();
        match &ended {
            Ended::Drained => {}
            Ended::Lost(reason) => broker.stands(Purpose::Worker, Standing::Away((*reason).to_owned())),
            Ended::Failed(error) => broker.fails(Purpose::Worker, error),
        }
        if let Ended::Failed(Error::Silent { within }) = ended {
            // It would not answer a close either.
            return now.checked_sub(within).unwrap_or(now);
        }
        link.close().await;
        now
    }

    async fn deliveries(
        &mut self,
        scope: &Scope,
        broker: &Broker,
        link: &Link,
        mut deliveries: Deliveries,
        deliver: &mut impl FnMut(Work, OwnedSemaphorePermit),
    ) -> Result<Infallible, Ended> {
        let (mut look_at, mut late_at) = (Instant::now() + LOOK_EVERY, None::<Instant>);
        loop {
            let permit = if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                permit
            } else {
                let left = deliveries.end().await?;
                self.give_back(broker, left).await?;
                tokio::select! {
                    biased;
                    () = scope.draining() => return Err(Ended::Drained),
                    () = link.lost() => return Err(LOST),
                    // The semaphore is never closed.
                    Ok(permit) = Arc::clone(&self.permits).acquire_owned() => permit,
                }
            };
            let since = deliveries.begin(self.turns.prefers_urgent()).await?;
            let next_look = late_at.map_or(look_at, |late| look_at.min(late.max(since + GRACE)));
            let delivery = tokio::select! {
                biased;
                () = scope.draining() => {
                    let left = deliveries.end().await?;
                    self.give_back(broker, left).await?;
                    return Err(Ended::Drained);
                }
                () = link.lost() => return Err(LOST),
                // Before the deliveries: if they never end, a row whose message was lost is found all the same.
                () = sleep_until(next_look) => None,
                found = deliveries.next(self.turns.prefers_urgent()) => Some(found?),
            };
            let _work = scope.work();
            match delivery {
                Some(Some(delivery)) => {
                    late_at = None;
                    let Some(cluster) = delivery.cluster() else {
                        reject(broker, delivery).await?;
                        continue;
                    };
                    self.serve(scope, link, cluster, permit, deliver).await?;
                    let is_busy = self.permits.available_permits() == 0;
                    let left = if is_busy { deliveries.end().await? } else { Vec::new() };
                    delivery.ack().await?;
                    self.give_back(broker, left).await?;
                }
                Some(None) => return Err(Ended::Lost("the broker has ended the deliveries")),
                None => {
                    let ready_for = if late_at.is_some() { Duration::ZERO } else { OVERDUE };
                    let found = self.take_overdue(scope, ready_for, permit, deliver).await;
                    look_at = Instant::now() + LOOK_EVERY;
                    late_at = match found {
                        Overdue::Many => Some(Instant::now()),
                        Overdue::None if late_at.is_none() => None,
                        Overdue::None | Overdue::Some => Some(Instant::now() + EVERY),
                    };
                }
            }
        }
    }

    /// Claims the cluster of a delivery and passes it on. If it is not granted, the permit is free again, for the next delivery.
    async fn serve(
        &mut self,
        scope: &Scope,
        link: &Link,
        cluster: Uuid,
        permit: OwnedSemaphorePermit,
        deliver: &mut impl FnMut(Work, OwnedSemaphorePermit),
    ) -> Result<(), Ended> {
        // Dropping this request would leave what it is granted to nobody.
        let Some(work) = self.claim_for_delivery(scope, link, cluster).await? else { return Ok(()) };
        if scope.is_draining() {
            self.hand_back(vec![work]).await;
        } else {
            self.turns.taken(1);
            deliver(work, permit);
        }
        Ok(())
    }

    /// Claims a cluster, however long the database is away: the broker keeps its message meanwhile, and has it back if the actor drains.
    /// None if it is not ready, or can't be claimed although the database answers: then it is found when it is overdue.
    async fn claim_for_delivery(&mut self, scope: &Scope, link: &Link, cluster: Uuid) -> Result<Option<Work>, Ended> {
        let mut locked = 0;
        loop {
            let (pause, is_last) = match self.queue.claim_one(cluster).await {
                Ok(Answer::Locked) => {
                    self.failed_claims.end();
                    locked += 1;
                    (LOCKED_EVERY, locked >= LOCKED_ATTEMPTS)
                }
                Ok(answer) => {
                    self.failed_claims.end();
                    return Ok(answer.work());
                }
                // Each message has its pause, or all would be dropped at once.
                Err(error) => (RETRY.next_delay(self.failed_claims.add(&error)), !error.is_outage()),
            };
            tokio::select! {
                biased;
                () = scope.draining() => return Err(Ended::Drained),
                () = link.lost() => return Err(LOST),
                () = sleep(pause) => {}
            }
            if is_last {
                tracing::debug!(%cluster, locked, "a cluster can't be claimed, dropping its message");
                return Ok(None);
            }
        }
    }

    /// Claims rows that have been ready for so long, and of which no message came.
    async fn take_overdue(
        &mut self,
        scope: &Scope,
        ready_for: Duration,
        permit: OwnedSemaphorePermit,
        deliver: &mut impl FnMut(Work, OwnedSemaphorePermit),
    ) -> Overdue {
        let further = std::iter::from_fn(|| Arc::clone(&self.permits).try_acquire_owned().ok());
        let permits: Vec<_> = std::iter::once(permit).chain(further).collect();
        let free = u32::try_from(permits.len()).unwrap_or(u32::MAX);
        let granted = match self.queue.claim_ready_for(ready_for, self.turns.shares(free)).await {
            Ok(granted) => granted,
            Err(error) => {
                self.failed_claims.add(&error);
                return Overdue::None;
            }
        };
        self.failed_claims.end();
        let rows = u32::try_from(granted.len()).unwrap_or(u32::MAX);
        self.turns.taken(rows);
        if scope.is_draining() {
            self.hand_back(granted).await;
            return Overdue::None;
        }
        for (work, permit) in granted.into_iter().zip(permits) {
            deliver(work, permit);
        }
        match rows {
            0 => Overdue::None,
            rows if rows >= free => Overdue::Many,
            _ => Overdue::Some,
        }
    }

    /// Deliveries for which no permit is free: they are announced again.
    async fn give_back(&mut self, broker: &Broker, left: Vec<Delivery>) -> Result<(), Error> {
        let clusters: Vec<Uuid> = left.iter().filter_map(Delivery::cluster).collect();
        if !clusters.is_empty() {
            match self.queue.announce_again(&clusters).await {
                Ok(()) => self.failed_returns.end(),
                // Somebody will find them overdue.
                Err(error) => drop(self.failed_returns.add(&error)),
            }
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
