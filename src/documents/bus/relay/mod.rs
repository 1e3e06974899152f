//! The relay: publishes the log to the broker, in its order.
//!
//! State: a connection to the broker, a session that listens to `towline`, and which rows close the channel. The cursor is in the database,
//! in the row of the claim; beside it are the broker to which the events up to it were published, and whether a refusal was not told yet.
//! Only the holder of the leader claim `relay` works. Nobody sends to this actor: any number of notifications causes one read, and a lost
//! one costs a second. Unconfirmed messages are bounded, so a broker that accepts nothing delays the relay and nobody else. The cursor
//! moves when the broker has confirmed all rows up to it, so a crash at any point repeats events and misses none. Restart: it continues at
//! the cursor. Drain: it ends at once.

mod plan;
mod publish;
mod read;

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::broker::{Broker, Pauses};
use super::connection_state::{ConnectionState, Purpose};
use super::message::Message;
use crate::actor::{Backoff, BoxError, ChildSpec, Scope};
use crate::amqp::{Error, Link};
use crate::cluster::full_text;
use crate::db::{self, Database, Listener, Session, Subscriber};
use crate::documents::blocking::BlockingPool;
use crate::documents::claims::{Grant, Leadership};
use crate::documents::kind::Kind;
use crate::documents::restored::renumber;
use crate::documents::tail::{CHANNEL, EVERY};
use plan::{Closures, RelayStep, kinds};
use publish::{Published, Publisher};
use read::Read;

/// Between two looks at how far the relay is behind.
const LAG_EVERY: Duration = Duration::from_secs(5);
/// Before the next attempt where the broker refuses a `relist`: the queues that have room take each of them.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_mins(1));
/// A broker that confirms nothing for so long is reported. It is waited for.
const CONFIRMS_WITHIN: Duration = Duration::from_secs(20);

/// Why events wait.
const IS_REFUSED: &str = "the broker refuses events, perhaps since a queue is full";
/// Why events wait.
const IS_UNCONFIRMED: &str = "the broker does not confirm events";

/// The relay. Its clones are instances that take over from each other.
#[derive(Clone)]
pub struct Relay {
    database: Database,
    leadership: Leadership,
    broker: Broker,
}

/// The relay under a grant.
struct Under<'r> {
    of: &'r Relay,
    grant: &'r Grant,
    scope: &'r Scope,
    notified: Notify,
    /// Held for one synchronous look: the listener has the relay by a shared reference.
    closures: Mutex<Closures>,
}

/// Why a connection to the broker is used no more.
enum RelayEnd {
    Broker(Error),
    Database(db::Error),
    /// Another process is the relay.
    Claim,
}

impl From<Error> for RelayEnd {
    fn from(error: Error) -> Self {
        Self::Broker(error)
    }
}

impl From<db::Error> for RelayEnd {
    fn from(error: db::Error) -> Self {
        Self::Database(error)
    }
}

impl Relay {
    /// A relay under the leader claim of its role.
    pub fn new(database: Database, leadership: Leadership, broker: Broker) -> Self {
        Self { database, leadership, broker }
    }

    /// The actor, under its name `relay`.
    pub fn child(self) -> ChildSpec {
        ChildSpec::new("relay", move |scope| self.clone().run(scope))
    }

    pub async fn run(self, scope: Scope) -> Result<(), BoxError> {
        let mut leadership = self.leadership.clone();
        loop {
            self.broker.unused(Purpose::Relay);
            self.broker.observer.lag(Duration::ZERO);
            if !leadership.lead(&scope, |grant| self.follow(grant, &scope)).await {
                return Ok(());
            }
        }
    }

    /// Follows the log under a grant.
    async fn follow(&self, grant: Grant, scope: &Scope) {
        let listener = Listener::new(self.database.clone(), "relay", &[CHANNEL]);
        let (notified, closures) = (Notify::new(), Mutex::default());
        let under = Under { of: self, grant: &grant, scope, notified, closures };
        tokio::select! {
            biased;
            never = listener.run(&under) => match never {},
            () = under.measure() => {}
        }
    }
}

impl Subscriber for Under<'_> {
    async fn listening(&self, _session: &Session) -> Result<(), db::Error> {
        let mut pauses = Pauses::default();
        loop {
            let (link, publisher) = self.of.broker.reach(Purpose::Relay).await;
            let opened = Instant::now();
            let ended = tokio::select! {
                ended = self.relay(&link, &publisher, &mut pauses) => Some(ended),
                () = self.of.broker.follow(Purpose::Relay, &link) => None,
            };
            let Some(ended) = ended else {
                pauses.wait_after_life_from(opened).await;
                continue;
            };
            match ended {
                RelayEnd::Broker(error) => {
                    self.of.broker.fails(Purpose::Relay, &error);
                    link.close().await;
                    pauses.wait().await;
                }
                RelayEnd::Database(error) => return Err(error),
                // The claim will show it; until then, nothing is done.
                RelayEnd::Claim => std::future::pending().await,
            }
        }
    }

    fn notified(&self, _channel: &str, _payload: &str) {
        self.notified.notify_one();
    }
}

impl Under<'_> {
    /// Reads and publishes on this connection until that fails. `pauses` start anew with what succeeds.
    async fn relay(&self, link: &Link, publisher: &Publisher, pauses: &mut Pauses) -> RelayEnd {
        match self.relay_on(link, publisher, pauses).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    async fn relay_on(
        &self,
        link: &Link,
        publisher: &Publisher,
        pauses: &mut Pauses,
    ) -> Result<std::convert::Infallible, RelayEnd> {
        let database = &self.of.database;
        let blocking = BlockingPool::default();
        loop {
            let read = read::read(database, &blocking, link.place()).await?;
            match read.head.step() {
                RelayStep::Follow if read.last == read.head.cursor => {
                    self.of.broker.works(Purpose::Relay, link);
                    let _elapsed = timeout(EVERY, self.notified.notified()).await;
                    continue;
                }
                RelayStep::Follow => {
                    let _work = self.scope.work();
                    if self.grant.check().is_err() {
                        return Err(RelayEnd::Claim);
                    }
                    let missed = self.publish(link, publisher, &read).await?;
                    self.relist(publisher, &missed).await?;
                    self.move_cursor(link, read.head.cursor, read.last).await?;
                }
                RelayStep::Relist => {
                    let head = read.head;
                    tracing::info!(
                        cursor = head.cursor,
                        base = head.base,
                        newest = head.newest,
                        is_other_broker = head.is_elsewhere,
                        "events are missing in the log, were published to another broker or never, consumers are told to list"
                    );
                    self.relist(publisher, &Kind::ALL).await?;
                    self.move_cursor(link, head.cursor, head.newest).await?;
                }
                RelayStep::Renumber => {
                    // It ends all claims, this one too. If the database is still being restored, nothing happens yet.
                    renumber(database, false).await?;
                    sleep(EVERY).await;
                }
            }
            self.of.broker.works(Purpose::Relay, link);
            pauses.reset();
        }
    }

    /// Publishes rows, and returns the kinds of those that consumers will not get. A queue may have taken later rows than it has refused,
    /// so that publishing them again would not help: that is noted before anything else can end this.
    async fn publish(&self, link: &Link, publisher: &Publisher, read: &Read) -> Result<Vec<Kind>, RelayEnd> {
        let publishing = publisher.publish(&read.rows, &self.closures);
        let Published { confirmed, nacked, skipped, error } = self.reported(link, publishing).await;
        if !nacked.is_empty() {
            read::note_pending_relist(&self.of.database).await?;
        }
        let count =
            |outcome, count| self.of.broker.observer.published(outcome, u64::try_from(count).unwrap_or(u64::MAX));
        count("confirmed", confirmed);
        count("nacked", nacked.len());
        if let Some(error) = error {
            return Err(error.into());
        }
        count("skipped", skipped.len());
        Ok(kinds(nacked.into_iter().chain(skipped)))
    }

    /// Waits for confirms, however long it takes, and reports that it takes long.
    async fn reported<T>(&self, link: &Link, confirmed: impl Future<Output = T>) -> T {
        let mut confirmed = std::pin::pin!(confirmed);
        if let Ok(outcome) = timeout(CONFIRMS_WITHIN, &mut confirmed).await {
            return outcome;
        }
        if !link.is_blocked() {
            self.of.broker.connection_is(Purpose::Relay, ConnectionState::Away(IS_UNCONFIRMED.to_owned()));
        }
        confirmed.await
    }

    /// Tells consumers to list these kinds, until the broker has confirmed it.
    async fn relist(&self, publisher: &Publisher, of: &[Kind]) -> Result<(), Error> {
        let (mut left, mut attempt) = (of.to_vec(), 0);
        while !left.is_empty() {
            if attempt > 0 {
                sleep(AGAIN.next_delay(attempt)).await;
            }
            attempt += 1;
            let messages: Vec<Message> = left.iter().copied().map(Message::relist).collect();
            left = publisher.publish_all(&messages).await?;
            if !left.is_empty() {
                self.of.broker.connection_is(Purpose::Relay, ConnectionState::Away(IS_REFUSED.to_owned()));
            }
        }
        Ok(())
    }

    async fn move_cursor(&self, link: &Link, from: i64, to: i64) -> Result<(), RelayEnd> {
        if !read::move_cursor(&self.of.database, self.grant, link.place(), from, to).await? {
            tracing::debug!("the claim of the relay has expired in the database, waiting for another one");
            return Err(RelayEnd::Claim);
        }
        self.closures.lock().passed(to);
        Ok(())
    }

    /// Says how far the relay is behind, whatever holds it up.
    async fn measure(&self) {
        loop {
            match read::lag(&self.of.database).await {
                Ok(lag) => self.of.broker.observer.lag(lag),
                Err(error) => tracing::debug!(error = full_text(&error), "failed to see how far the relay is behind"),
            }
            sleep(LAG_EVERY).await;
        }
    }
}
