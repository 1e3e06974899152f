//! A connection that listens for notifications, and is made anew whenever it is lost.
//!
//! A notification is only a hint: what changed while no connection listened, nobody has told. So each time that it listens
//! (again), the subscriber is told to look at everything; and whatever happens to the connection costs no more than the
//! time to its next look of its own.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::Instant;

use super::{Database, Error, Messages, Session};
use crate::actor::Backoff;

/// Back-off of making the connection anew.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// A connection that lasted for so long was a good one: the back-off begins anew.
const GOOD: Duration = Duration::from_secs(30);

/// Who wants to know.
pub trait Subscriber: Send + Sync {
    /// A connection is about to be made.
    fn connecting(&self) {}

    /// The connection listens: look at everything. The future runs beside the notifications, may use the connection for
    /// its own statements, and is dropped with it; its error ends the connection.
    fn listening(&self, session: &Session) -> impl Future<Output = Result<(), Error>> + Send;

    /// A notification, in the order in which they came. It must not block.
    fn notified(&self, channel: &str, payload: &str);

    /// There is no connection; another one is tried after a back-off. `failures` counts those in a row before this one.
    fn failed(&self, error: &Error, failures: u32);
}

/// Listens to channels. It runs in the caller's task and ends when its future is dropped, and with it the connection.
pub struct Listener {
    database: Database,
    purpose: &'static str,
    listen: String,
}

impl Listener {
    /// `purpose` stands behind the application's name, where the database shows its connections.
    pub fn new(database: Database, purpose: &'static str, channels: &[&str]) -> Self {
        let one = |channel: &&str| format!("LISTEN \"{}\"", channel.replace('"', "\"\""));
        Self { database, purpose, listen: channels.iter().map(one).collect::<Vec<_>>().join("; ") }
    }

    /// Listens until the future is dropped.
    pub async fn run(&self, subscriber: &impl Subscriber) -> Infallible {
        let mut failures = 0;
        loop {
            subscriber.connecting();
            let begun = Instant::now();
            let Err(error) = self.listen(subscriber).await;
            if begun.elapsed() >= GOOD {
                failures = 0;
            }
            subscriber.failed(&error, failures);
            let delay = RETRY.next_delay(failures);
            failures = failures.saturating_add(1);
            tokio::time::sleep(delay).await;
        }
    }

    /// One connection, until it ends.
    async fn listen(&self, subscriber: &impl Subscriber) -> Result<Infallible, Error> {
        let (session, mut messages) = self.database.session(self.purpose).await?;
        tokio::select! {
            outcome = hear(&mut messages, subscriber) => outcome,
            outcome = self.attend(&session, subscriber) => outcome,
        }
    }

    /// Begins to listen, and gives the connection to the subscriber.
    async fn attend(&self, session: &Session, subscriber: &impl Subscriber) -> Result<Infallible, Error> {
        session.limit().await?;
        session.run("listen", &self.listen).await?;
        subscriber.listening(session).await?;
        std::future::pending().await
    }
}

/// Passes on what the database tells.
async fn hear(messages: &mut Messages, subscriber: &impl Subscriber) -> Result<Infallible, Error> {
    loop {
        let notification = messages.notification().await?;
        subscriber.notified(notification.channel(), notification.payload());
    }
}
