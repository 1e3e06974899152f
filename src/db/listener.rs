//! A connection that listens for notifications and reconnects when it is lost.
//!
//! A notification is only a hint: changes made while no connection listened are not announced. So after each (re)connect
//! the subscriber is asked to check everything. A lost notification delays a change at most until the subscriber's next
//! periodic pass.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::Instant;

use super::{Database, Error, Messages, Session};
use crate::actor::{Backoff, with_sources};

const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// A connection that lasted this long resets the back-off.
const GOOD: Duration = Duration::from_secs(30);

/// Receives notifications and the state of the connection.
pub trait Subscriber: Send + Sync {
    /// The listener is about to connect.
    fn connecting(&self) {}

    /// The connection listens: check everything. The future runs concurrently with the notifications, may use the
    /// connection for its own statements, and is dropped with it; its error ends the connection.
    fn listening(&self, session: &Session) -> impl Future<Output = Result<(), Error>> + Send;

    /// A notification has arrived; they come in the order in which they were sent. Must not block.
    fn notified(&self, channel: &str, payload: &str);

    /// The connection failed; the listener has logged it, and reconnects after a back-off.
    fn failed(&self, _error: &Error) {}
}

/// Listens to channels. It runs in the caller's task; dropping its future ends it and closes the connection.
pub struct Listener {
    database: Database,
    purpose: &'static str,
    listen: String,
}

impl Listener {
    /// `purpose` is appended to the application name that the database shows for the connection.
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
            self.log(&error, failures);
            subscriber.failed(&error);
            let delay = RETRY.next_delay(failures);
            failures = failures.saturating_add(1);
            tokio::time::sleep(delay).await;
        }
    }

    /// One failure after another is one warning.
    fn log(&self, error: &Error, failures: u32) {
        let (purpose, kind, error) = (self.purpose, error.kind(), with_sources(error));
        if failures == 0 {
            tracing::warn!(purpose, kind, error, "following the database failed, retrying");
        } else {
            tracing::debug!(purpose, kind, error, failures, "following the database failed, retrying");
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

    /// Sends LISTEN and lends the connection to the subscriber.
    async fn attend(&self, session: &Session, subscriber: &impl Subscriber) -> Result<Infallible, Error> {
        session.run_limited("listen", &self.listen).await?;
        subscriber.listening(session).await?;
        std::future::pending().await
    }
}

/// Passes notifications to the subscriber.
async fn hear(messages: &mut Messages, subscriber: &impl Subscriber) -> Result<Infallible, Error> {
    loop {
        let notification = messages.notification().await?;
        subscriber.notified(notification.channel(), notification.payload());
    }
}
