//! Publishing with confirms: so many at once, and what became of each.

use std::collections::VecDeque;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, PublisherConfirm};
use parking_lot::Mutex;

use super::plan::{Closures, has_room};
use super::read::Row;
use crate::amqp::{Error, Link};
use crate::documents::bus::broker::Opens;
use crate::documents::bus::message::Message;
use crate::documents::bus::topology::EVENTS;
use crate::documents::kind::Kind;

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
        let mut published = Published::default();
        let mut unconfirmed: VecDeque<Unconfirmed> = VecDeque::new();
        let mut last = 0;
        let sent = async {
            for row in rows {
                let (skips, is_careful) = {
                    let closures = closures.lock();
                    (closures.skips(row.version), closures.is_careful(row.version))
                };
                let Some(message) = row.message.as_ref().filter(|_| !skips) else {
                    tracing::error!(version = row.version, kind = %row.kind, "an event can't be published, consumers are told to list");
                    published.skipped.push(row.kind);
                    continue;
                };
                let bytes = message.body.len();
                while !has_room(unconfirmed.len(), bytes_of(&unconfirmed), bytes, is_careful) {
                    confirm_next(&mut unconfirmed, &mut published).await?;
                }
                last = row.version;
                let confirm = self.send(message).await;
                // Of one that was not sent, nobody knows whether it is what closed the channel.
                let confirm = confirm.inspect_err(|error| {
                    if error.is_of_channel() {
                        let first = unconfirmed.front().map_or(row.version, |oldest| oldest.version);
                        closures.lock().closed(first, row.version);
                    }
                })?;
                unconfirmed.push_back(Unconfirmed { version: row.version, kind: row.kind, bytes, confirm });
                if is_careful {
                    confirm_next(&mut unconfirmed, &mut published).await.inspect_err(|error| {
                        if error.is_of_channel() {
                            closures.lock().closed(row.version, row.version);
                        }
                    })?;
                }
            }
            Ok::<(), Error>(())
        }
        .await;
        let mut outcome = sent;
        while outcome.is_ok() && !unconfirmed.is_empty() {
            let first = unconfirmed.front().map_or(last, |oldest| oldest.version);
            outcome = confirm_next(&mut unconfirmed, &mut published).await;
            if outcome.as_ref().is_err_and(Error::is_of_channel) {
                closures.lock().closed(first, last);
            }
        }
        published.error = outcome.err();
        published
    }
}

fn bytes_of(unconfirmed: &VecDeque<Unconfirmed>) -> usize {
    unconfirmed.iter().map(|message| message.bytes).sum()
}

async fn confirm_next(unconfirmed: &mut VecDeque<Unconfirmed>, published: &mut Published) -> Result<(), Error> {
    let Some(Unconfirmed { kind, confirm, .. }) = unconfirmed.pop_front() else { return Ok(()) };
    if confirm.await.map_err(Error::of("publish an event"))?.is_ack() {
        published.confirmed += 1;
    } else {
        published.nacked.push(kind);
    }
    Ok(())
}
