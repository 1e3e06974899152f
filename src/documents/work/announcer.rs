//! The announcer: tells workers over the broker which clusters have work (M1 and M4).
//!
//! State: a connection to the broker, and a session that listens to `towline_work`; what was announced is in the rows of the work queue.
//! Only the holder of the leader claim `dispatcher` works. Nobody sends to this actor: any number of notifications causes one read, and a
//! lost one costs a second. A message that is published twice is harmless, and so is a second announcer. Restart: it reads what is not
//! announced. Drain: it ends at once.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::queue::WorkQueue;
use crate::actor::{Backoff, BoxError, ChildSpec, Scope};
use crate::amqp::{Error, Link};
use crate::cluster::full_text;
use crate::db::{self, Listener, Session, Subscriber};
use crate::documents::bus::{Announcements, Broker, Purpose};
use crate::documents::claims::Leadership;

/// What every request for work notifies.
const CHANNEL: &str = "towline_work";
/// Rows become ready by the time, too.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks at the queues.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Most rows of one read, which are published together.
const ROWS: i64 = 256;
/// Between the end of a grant and the wait for the next one.
const AFTER_A_GRANT: Duration = Duration::from_secs(1);
/// Before the next attempt where the broker refuses.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// The announcer. Its clones are instances that take over from each other.
#[derive(Clone)]
pub struct Announcer {
    queue: WorkQueue,
    leadership: Leadership,
    broker: Broker,
}

/// Why a connection to the broker is used no more.
enum Ended {
    Broker(Error),
    Database(db::Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Broker(error)
    }
}

impl From<db::Error> for Ended {
    fn from(error: db::Error) -> Self {
        Self::Database(error)
    }
}

/// Announces under a grant.
struct Under<'a> {
    of: &'a Announcer,
    scope: &'a Scope,
    notified: Notify,
}

impl Announcer {
    /// An announcer of the rows of this queue, under the claim of the dispatcher.
    pub fn new(queue: WorkQueue, leadership: Leadership, broker: Broker) -> Self {
        Self { queue, leadership, broker }
    }

    /// The actor, under its name `announcer`.
    pub fn child(self) -> ChildSpec {
        ChildSpec::new("announcer", move |scope| self.clone().run(scope))
    }

    /// The actor's body.
    pub async fn run(mut self, scope: Scope) -> Result<(), BoxError> {
        loop {
            scope.set_state("waiting");
            self.broker.unused(Purpose::Announcer);
            let grant = tokio::select! {
                biased;
                () = scope.draining() => return Ok(()),
                grant = self.leadership.granted() => grant,
            };
            scope.set_state("running");
            let listener = Listener::new(self.queue.database().clone(), "announcer", &[CHANNEL]);
            let under = Under { of: &self, scope: &scope, notified: Notify::new() };
            tokio::select! {
                biased;
                () = scope.draining() => return Ok(()),
                _ = grant.expired() => {}
                never = listener.run(&under) => match never {},
            }
            // The grant ends a little later; until then it would count as a new one.
            tokio::select! {
                biased;
                () = scope.draining() => return Ok(()),
                () = sleep(AFTER_A_GRANT) => {}
            }
        }
    }
}

impl Subscriber for Under<'_> {
    async fn listening(&self, _session: &Session) -> Result<(), db::Error> {
        let (broker, mut attempt) = (&self.of.broker, 0);
        loop {
            let link = broker.reach(Purpose::Announcer).await;
            let ended = tokio::select! {
                ended = self.announce(&link, &mut attempt) => ended,
                () = broker.follow(Purpose::Announcer, &link) => continue,
            };
            match ended {
                Ended::Broker(error) => {
                    tracing::warn!(error = full_text(&error), "failed to announce work to the broker, retrying");
                    link.close().await;
                    sleep(AGAIN.next_delay(attempt)).await;
                    attempt = attempt.saturating_add(1);
                }
                Ended::Database(error) => return Err(error),
            }
        }
    }

    fn notified(&self, _channel: &str, _payload: &str) {
        self.notified.notify_one();
    }

    fn failed(&self, error: &db::Error, failures: u32) {
        if failures == 0 {
            tracing::warn!(error = full_text(error), "failed to announce work, retrying");
        } else {
            tracing::debug!(error = full_text(error), failures, "failed to announce work, retrying");
        }
    }
}

impl Under<'_> {
    /// Reads and publishes on this connection until that fails. `attempt` is set to 0 by what succeeds.
    async fn announce(&self, link: &Link, attempt: &mut u32) -> Ended {
        match self.announce_on(link, attempt).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn announce_on(&self, link: &Link, attempt: &mut u32) -> Result<std::convert::Infallible, Ended> {
        let queue = &self.of.queue;
        let announcements = Announcements::open(link).await?;
        let mut look_at = Instant::now();
        loop {
            if look_at <= Instant::now() {
                look_at = Instant::now() + LOOK_EVERY;
                self.look(&announcements).await?;
            }
            let found = queue.unannounced(ROWS).await?;
            if found.rows.is_empty() {
                let _elapsed = timeout(EVERY, self.notified.notified()).await;
                continue;
            }
            let _work = self.scope.work();
            let taken = announcements.publish(&found.rows).await?;
            queue.announced(&found, &taken).await?;
            if taken.len() < found.rows.len() {
                tracing::warn!("the broker refuses announcements of work, perhaps since a queue is full, retrying");
                sleep(AGAIN.next_delay(*attempt)).await;
                *attempt = attempt.saturating_add(1);
            } else {
                *attempt = 0;
            }
        }
    }

    /// Counts dead letters, and has rows announced again whose messages were lost (M4).
    async fn look(&self, announcements: &Announcements) -> Result<(), Ended> {
        let waiting = announcements.waiting().await?;
        self.of.broker.dead_letters(waiting.dead);
        if waiting.work == 0 {
            let again = self.of.queue.announce_lost().await?;
            if again > 0 {
                tracing::info!(clusters = again, "announcements of work were lost, they are made again");
            }
        }
        Ok(())
    }
}
