//! Publishing with confirms: so many at once, and what became of each.

use std::collections::VecDeque;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, PublisherConfirm};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::plan::{Closures, has_room};
use super::read::Row;
use crate::amqp::{Error, Link};
use crate::documents::bus::broker::{EVENTS, Opens, declare_events};
use crate::documents::bus::message::Message;
use crate::documents::kind::Kind;

/// How long the confirms of what was sent before a failure may take.
const AFTER_A_FAILURE: Duration = Duration::from_secs(10);

/// A channel on which the broker confirms.
pub(super) struct Publisher(Channel);

/// What became of rows.
#[derive(Default)]
pub(super) struct Published {
    pub(super) confirmed: usize,
    /// The kinds of those that a queue did not take.
    pub(super) nacked: Vec<Kind>,
    /// The kinds of those that can't be published.
    pub(super) skipped: Vec<Kind>,
    /// Why the others were not confirmed.
    pub(super) error: Option<Error>,
}

/// A message that the broker has not confirmed.
struct Unconfirmed {
    version: i64,
    kind: Kind,
    bytes: usize,
    confirm: PublisherConfirm,
}

impl Opens for Publisher {
    async fn open(link: &Link) -> Result<Self, Error> {
        let channel = link.channel().await?;
        declare_events(&channel).await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(Error::of("ask for confirms"))?;
        Ok(Self(channel))
    }
}

impl Publisher {
    async fn send(&self, message: &Message) -> Result<PublisherConfirm, Error> {
        let (key, properties) = (message.routing_key.as_str().into(), message.properties.clone());
        let options = BasicPublishOptions::default();
        let sent = self.0.basic_publish(EVENTS.into(), key, options, &message.body, properties).await;
        sent.map_err(Error::of("publish an event"))
    }

    /// Publishes messages, waits for the confirms of all, and returns the kinds of those that were not taken.
    pub(super) async fn publish_all(&self, messages: &[Message]) -> Result<Vec<Kind>, Error> {
        let mut confirms = Vec::with_capacity(messages.len());
        for message in messages {
            confirms.push((message.kind, self.send(message).await?));
        }
        let mut nacked = Vec::new();
        for (kind, confirm) in confirms {
            if !confirm.await.map_err(Error::of("publish an event"))?.is_ack() {
                nacked.push(kind);
            }
        }
        Ok(nacked)
    }

    /// Publishes rows in their order, and waits for the confirms of all. If the channel is closed, `closures` learns of it.
    pub(super) async fn publish(&self, rows: &[Row], closures: &Mutex<Closures>) -> Published {
        let mut flight = Flight::default();
        for row in rows {
            let (skips, is_careful) = {
                let closures = closures.lock();
                (closures.skips(row.version), closures.is_careful(row.version))
            };
            let Some(message) = row.message.as_ref().filter(|_| !skips) else {
                tracing::error!(version = row.version, kind = %row.kind, "an event can't be published, consumers are told to list");
                flight.published.skipped.push(row.kind);
                continue;
            };
            let bytes = message.body.len();
            while flight.is_flying() && !has_room(flight.unconfirmed.len(), flight.bytes(), bytes, is_careful) {
                flight.confirm_next().await;
            }
            if !flight.is_flying() {
                break;
            }
            match self.send(message).await {
                Ok(confirm) => flight.sent(Unconfirmed { version: row.version, kind: row.kind, bytes, confirm }),
                // It was not sent: an earlier message has closed the channel, and its confirm says so.
                Err(error) => flight.fails(error),
            }
            if is_careful {
                flight.confirm_next().await;
            }
        }
        flight.land(closures).await
    }
}

/// Messages on their way.
#[derive(Default)]
struct Flight {
    published: Published,
    unconfirmed: VecDeque<Unconfirmed>,
    /// The last one that was sent.
    last: i64,
    /// The first one whose confirm has failed.
    first_lost: Option<i64>,
}

impl Flight {
    fn is_flying(&self) -> bool {
        self.published.error.is_none()
    }

    fn bytes(&self) -> usize {
        self.unconfirmed.iter().map(|message| message.bytes).sum()
    }

    fn sent(&mut self, message: Unconfirmed) {
        self.last = message.version;
        self.unconfirmed.push_back(message);
    }

    /// The first failure is what is told, unless a later one says why the channel was closed.
    fn fails(&mut self, error: Error) {
        if self.published.error.as_ref().is_none_or(|before| !before.is_of_channel() && error.is_of_channel()) {
            self.published.error = Some(error);
        }
    }

    async fn confirm_next(&mut self) {
        let Some(Unconfirmed { version, kind, confirm, .. }) = self.unconfirmed.pop_front() else { return };
        match confirm.await.map_err(Error::of("publish an event")) {
            Ok(confirmation) if confirmation.is_ack() => self.published.confirmed += 1,
            Ok(_) => self.published.nacked.push(kind),
            Err(error) => {
                self.first_lost.get_or_insert(version);
                self.fails(error);
            }
        }
    }

    /// Waits for all confirms. After a failure they come at once, or never.
    async fn land(mut self, closures: &Mutex<Closures>) -> Published {
        while self.is_flying() && !self.unconfirmed.is_empty() {
            self.confirm_next().await;
        }
        let rest = async {
            while !self.unconfirmed.is_empty() {
                self.confirm_next().await;
            }
        };
        let _elapsed = timeout(AFTER_A_FAILURE, rest).await;
        let closed_by = self.published.error.as_ref().filter(|error| error.is_of_channel());
        if let (Some(error), Some(first)) = (closed_by, self.first_lost) {
            closures.lock().closed(first, self.last, error.is_precondition_failed());
        }
        self.published
    }
}
