//! The announcer: tells workers over the broker which clusters have work.
//!
//! State: a connection to the broker, and a session that listens to `towline_work`; what was announced is in the rows of the work queue.
//! Only the holder of the leader claim `dispatcher` works. Nobody sends to this actor: any number of notifications causes one read, and a
//! lost one costs a second. A message that is published twice is harmless, and so is a second announcer. Restart: it reads what is not
//! announced. Drain: it ends at once.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::queue::WorkQueue;
use crate::actor::{BoxError, ChildSpec, Scope};
use crate::amqp::{Error, Link};
use crate::cluster::full_text;
use crate::db::{self, Listener, Session, Subscriber};
use crate::documents::bus::{Announcements, Broker, Pauses, Purpose, Standing, Waiting};
use crate::documents::claims::Leadership;

/// What every request for work notifies.
const CHANNEL: &str = "towline_work";
/// Rows become ready by the time, too.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks at the queues.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Most rows of one read, which are published together.
const ROWS: i64 = 256;
/// More announcements than that wait only if nobody receives them: each cluster has one, or a few that are out of date.
const MOST_WAITING: u32 = 100_000;
/// Between the end of a grant and the wait for the next one.
const AFTER_A_GRANT: Duration = Duration::from_secs(1);
/// Longest wait for the confirms of what was published together, and for what the queues hold. A queue that has no leader confirms nothing while
/// its connection is alive; it has another leader within seconds, unless most of its nodes are away. As long as for opening a connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Between two reads without a result. While many clusters wait for workers, a read passes over all of them.
const READ_EVERY: Duration = Duration::from_millis(50);

/// Why nothing is announced for now: workers find what is overdue.
const IS_REFUSED: &str = "a work queue refuses announcements, perhaps since it is full or was deleted";
/// The same.
const IS_TOO_MUCH: &str = "too many announcements wait in the work queues, nobody seems to receive them";

/// The announcer. Its clones are instances that take over from each other.
#[derive(Clone)]
pub struct Announcer {
    queue: WorkQueue,
    leadership: Leadership,
    broker: Broker,
    most_waiting: u32,
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

/// What has failed since announcements were taken last.
#[derive(Default)]
struct Failures {
    pauses: Pauses,
    /// The broker has refused one. As long as there is no other, nobody knows whether it would be taken.
    is_refused: bool,
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
        Self { queue, leadership, broker, most_waiting: MOST_WAITING }
    }

    /// The same with another bound of the announcements that wait in the queues, instead of 100,000.
    #[must_use]
    pub fn waiting_at_most(mut self, announcements: u32) -> Self {
        self.most_waiting = announcements;
        self
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
            // They are counted by whoever has the claim.
            self.broker.dead_letters(0);
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
        let (broker, mut failures) = (&self.of.broker, Failures::default());
        loop {
            let (link, announcements) = broker.reach(Purpose::Announcer).await;
            let opened = Instant::now();
            let ended = tokio::select! {
                ended = self.announce(&link, &announcements, &mut failures) => Some(ended),
                () = broker.follow(Purpose::Announcer, &link) => None,
            };
            let Some(ended) = ended else {
                failures.pauses.wait_after_life_from(opened).await;
                continue;
            };
            match ended {
                Ended::Broker(error) => {
                    broker.fails(Purpose::Announcer, &error);
                    link.close().await;
                    failures.pauses.wait().await;
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
    /// Reads and publishes on this connection until that fails.
    async fn announce(&self, link: &Link, announcements: &Announcements, failures: &mut Failures) -> Ended {
        match self.announce_on(link, announcements, failures).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn announce_on(
        &self,
        link: &Link,
        announcements: &Announcements,
        failures: &mut Failures,
    ) -> Result<Infallible, Ended> {
        let (queue, broker) = (&self.of.queue, &self.of.broker);
        let mut look_at = Instant::now();
        loop {
            if look_at <= Instant::now() {
                look_at = Instant::now() + LOOK_EVERY;
                if self.look(link, announcements).await?.work >= self.of.most_waiting {
                    broker.stands(Purpose::Announcer, Standing::Away(IS_TOO_MUCH.to_owned()));
                    sleep_until(look_at).await;
                    continue;
                }
            }
            let next_read = Instant::now() + READ_EVERY;
            let found = queue.unannounced(ROWS).await?;
            if found.rows.is_empty() {
                if !failures.is_refused {
                    broker.works(Purpose::Announcer, link);
                }
                let _elapsed = timeout(EVERY, self.notified.notified()).await;
                sleep_until(next_read).await;
                continue;
            }
            let _work = self.scope.work();
            let published = link.answered(ANSWER_WITHIN, announcements.publish(&found.rows)).await;
            let taken = published.inspect_err(|error| failures.is_refused = error.is_of_channel())?;
            queue.announced(&found, &taken).await?;
            if taken.len() < found.rows.len() {
                broker.stands(Purpose::Announcer, Standing::Away(IS_REFUSED.to_owned()));
                failures.is_refused = true;
                failures.pauses.wait().await;
            } else {
                broker.works(Purpose::Announcer, link);
                *failures = Failures::default();
            }
        }
    }

    /// Counts dead letters, and has rows announced again whose messages were lost.
    async fn look(&self, link: &Link, announcements: &Announcements) -> Result<Waiting, Ended> {
        let waiting = link.answered(ANSWER_WITHIN, announcements.waiting()).await?;
        self.of.broker.dead_letters(waiting.dead);
        if waiting.work == 0 {
            let again = self.of.queue.announce_lost().await?;
            if again > 0 {
                tracing::info!(clusters = again, "announcements of work were lost, they are made again");
            }
        }
        Ok(waiting)
    }
}
