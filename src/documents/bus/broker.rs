//! What the parts of this process share of the broker, and what they need there. A connection declares what it uses; where that exists with other
//! arguments, it is not used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::connection_state::{ConnectionState, Purpose};
use crate::actor::Backoff;
use crate::amqp::{AmqpSource, Error, Link};
use crate::cluster::full_text;

/// Where events are published.
pub(super) const EVENTS: &str = "towline.events";
/// Clusters that have work.
pub(super) const WORK: &str = "towline.work.clusters";
/// How long a hint waits, in milliseconds: by then each worker that had a slot has looked at the database many times.
const HINT_LASTS: i32 = 60_000;
/// How many hints wait. Beyond that the oldest is dropped.
const MOST_HINTS: i32 = 10_000;

/// Between attempts to connect.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// Longest wait for all declarations, and for what is opened. A broker that has blocked the connection answers none.
const OPEN_WITHIN: Duration = Duration::from_secs(20);

/// A connection that was lost within this time after it was opened is one of many, perhaps: the next one waits.
const SHORT_LIFE: Duration = Duration::from_secs(5);

/// Waits before a connection is made anew. It starts with a short one after each success.
#[derive(Default)]
pub(super) struct Pauses {
    attempt: u32,
}

impl Pauses {
    /// After something that failed.
    pub(super) async fn wait(&mut self) {
        sleep(AGAIN.next_delay(self.attempt)).await;
        self.attempt = self.attempt.saturating_add(1);
    }

    /// After a connection was lost that was opened then. A broker that accepts connections and drops them is not asked all the time.
    pub(super) async fn wait_after_life_from(&mut self, opened: Instant) {
        if opened.elapsed() < SHORT_LIFE {
            self.wait().await;
        } else {
            self.reset();
        }
    }

    /// Something has succeeded.
    pub(super) fn reset(&mut self) {
        self.attempt = 0;
    }
}

/// Observes the bus. It must not block.
pub trait BusObserver: Send + Sync {
    /// So many events have had this outcome: `confirmed`, `nacked` or `skipped`.
    fn published(&self, outcome: &'static str, count: u64);

    /// How old the oldest event is that the broker has not confirmed.
    fn lag(&self, lag: Duration);
}

impl BusObserver for () {
    fn published(&self, _: &'static str, _: u64) {}

    fn lag(&self, _: Duration) {}
}

/// What a purpose needs of a connection.
pub(super) trait Opens: Sized {
    /// Opens it. If that fails, the connection is of no use.
    fn open(link: &Link) -> impl Future<Output = Result<Self, Error>> + Send;
}

/// The broker, as this process knows it. Clones are the same.
#[derive(Clone)]
pub struct Broker {
    source: Arc<AmqpSource>,
    connection_states: watch::Sender<BTreeMap<Purpose, ConnectionState>>,
    /// Hints that nobody has published yet.
    pub(super) hints: watch::Sender<BTreeSet<Uuid>>,
    pub(super) observer: Arc<dyn BusObserver>,
}

impl Broker {
    pub fn new(source: AmqpSource, observer: Arc<dyn BusObserver>) -> Self {
        Self {
            source: Arc::new(source),
            connection_states: watch::Sender::default(),
            hints: watch::Sender::default(),
            observer,
        }
    }

    /// Host, port and virtual host. May block on the disk.
    pub fn place(&self) -> String {
        self.source.place()
    }

    /// How the connections that this process has use for stand.
    pub fn connection_states(&self) -> BTreeMap<Purpose, ConnectionState> {
        self.connection_states.borrow().clone()
    }

    /// Connects once, and declares everything that replicas use.
    pub async fn check(&self) -> Result<(), Error> {
        let link = Link::connect(&self.source, "towline check").await?;
        let declared = within(async {
            let channel = link.channel().await?;
            declare_events(&channel).await?;
            declare_work(&channel).await
        });
        let declared = declared.await;
        link.close().await;
        declared
    }

    /// Connects and opens what the purpose needs, however often it takes. Whoever has seen that it can be used says so. Cancel safe.
    pub(super) async fn reach<T: Opens>(&self, purpose: Purpose) -> (Link, T) {
        let mut pauses = Pauses::default();
        loop {
            match self.connect_and_open(purpose).await {
                Ok(reached) => return reached,
                Err(error) if error.is_precondition_failed() => {
                    self.connection_is(purpose, ConnectionState::Refused(full_text(&error)));
                }
                Err(error) => self.fails(purpose, &error),
            }
            pauses.wait().await;
        }
    }

    async fn connect_and_open<T: Opens>(&self, purpose: Purpose) -> Result<(Link, T), Error> {
        let link = Link::connect(&self.source, &format!("towline {}", purpose.as_str())).await?;
        match within(T::open(&link)).await {
            Ok(opened) => Ok((link, opened)),
            Err(error) => {
                link.close().await;
                Err(error)
            }
        }
    }

    /// Notes that a connection can't be used, and why.
    pub(super) fn fails(&self, purpose: Purpose, error: &Error) {
        self.connection_is(purpose, ConnectionState::Away(full_text(error)));
    }

    /// Notes how a connection stands. A change is logged, once.
    pub(super) fn connection_is(&self, purpose: Purpose, state: ConnectionState) {
        let was = self.connection_states.borrow().get(&purpose).cloned();
        let is_news = was.as_ref().map(ConnectionState::as_str) != Some(state.as_str());
        let connection = purpose.as_str();
        match &state {
            ConnectionState::Ready if is_news => tracing::info!(connection, "connected to the broker"),
            ConnectionState::Ready => {}
            other if is_news => tracing::warn!(connection, reason = %other, "the broker can't be used, retrying"),
            other => tracing::debug!(connection, reason = %other, "the broker can't be used, retrying"),
        }
        self.connection_states.send_modify(|connection_states| drop(connection_states.insert(purpose, state)));
    }

    /// Notes that a connection was of use. One that the broker has blocked can be used when it says so.
    pub(super) fn works(&self, purpose: Purpose, link: &Link) {
        let is_news = !matches!(self.connection_states.borrow().get(&purpose), Some(ConnectionState::Ready));
        if is_news && !link.is_blocked() {
            self.connection_is(purpose, ConnectionState::Ready);
        }
    }

    /// This process has no use for a connection now.
    pub(super) fn unused(&self, purpose: Purpose) {
        self.connection_states.send_modify(|connection_states| drop(connection_states.remove(&purpose)));
    }

    /// Follows a connection until it is lost, and notes when the broker blocks it.
    pub(super) async fn follow(&self, purpose: Purpose, link: &Link) {
        let lost = async {
            link.lost().await;
            self.connection_is(purpose, ConnectionState::Away("the connection was lost".to_owned()));
        };
        let blocked = async {
            loop {
                link.blocked_is(true).await;
                self.connection_is(purpose, ConnectionState::Blocked);
                link.blocked_is(false).await;
                let is_blocked =
                    matches!(self.connection_states.borrow().get(&purpose), Some(ConnectionState::Blocked));
                if is_blocked {
                    self.connection_is(purpose, ConnectionState::Ready);
                }
            }
        };
        tokio::select! {
            () = lost => {}
            () = blocked => {}
        }
    }
}

async fn within<T>(opened: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let silent = |_| Error::Silent { within: OPEN_WITHIN };
    timeout(OPEN_WITHIN, opened).await.map_err(silent).flatten()
}

/// Declares the exchange of events. The channel can't be used after an error.
pub(super) async fn declare_events(channel: &Channel) -> Result<(), Error> {
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared = channel.exchange_declare(EVENTS.into(), ExchangeKind::Topic, durable, FieldTable::default()).await;
    declared.map_err(Error::of("declare an exchange"))
}

/// Declares the queue of hints. The channel can't be used after an error.
pub(super) async fn declare_work(channel: &Channel) -> Result<(), Error> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(HINT_LASTS));
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(MOST_HINTS));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(WORK.into(), durable, arguments).await;
    declared.map(|_| ()).map_err(Error::of("declare a queue"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As with a proxy before a broker that is down, or a node that has paused itself.
    #[tokio::test(start_paused = true)]
    async fn connections_that_are_dropped_at_once_are_made_ever_more_slowly() {
        let (began, mut pauses) = (Instant::now(), Pauses::default());
        for _ in 0..20 {
            let opened = Instant::now();
            sleep(Duration::from_millis(100)).await;
            pauses.wait_after_life_from(opened).await;
        }
        assert!(began.elapsed() > Duration::from_mins(1), "{:?}", began.elapsed());
        let opened = Instant::now();
        sleep(SHORT_LIFE).await;
        pauses.wait_after_life_from(opened).await;
        assert_eq!(opened.elapsed(), SHORT_LIFE, "one that was of use is made anew at once");
        let opened = Instant::now();
        pauses.wait_after_life_from(opened).await;
        assert!(opened.elapsed() < Duration::from_secs(1), "and the next one soon");
    }
}
