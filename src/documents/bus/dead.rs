//! Dead letters: messages of the work queues that no worker could serve.

use std::time::Duration;

use jiff::Timestamp;
use lapin::Channel;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions};
use lapin::types::{AMQPValue, FieldTable};
use uuid::Uuid;

use super::broker::Broker;
use super::topology::DEAD_WORK;
use crate::amqp::{Error, Link};

/// How much of a message's text is shown.
const SHOWN: usize = 80;
/// Most that is read at once: anybody may have put a large message into the queue. It reads one at least.
const MOST_BYTES: usize = 64 << 20;

/// Longest wait for an answer: a queue without a leader gives none.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Dead letters that were read. The broker has them back when this is dropped, but for those that were removed.
pub struct DeadLetters {
    link: Link,
    /// On which they were read, and have to be acknowledged. It is closed when this is dropped.
    channel: Channel,
    letters: Vec<DeadLetter>,
    is_all: bool,
}

/// A message that no worker could serve.
pub struct DeadLetter {
    message: BasicGetMessage,
}

impl DeadLetters {
    /// Reads them, so many at most, and fewer of large ones: the oldest.
    pub async fn read(broker: &Broker, most: usize) -> Result<Self, Error> {
        let link = broker.connect("towline dead-letters").await?;
        let channel = link.channel().await?;
        let (mut letters, mut bytes, mut is_all) = (Vec::new(), 0, false);
        while letters.len() < most && bytes < MOST_BYTES {
            let found = channel.basic_get(DEAD_WORK.into(), BasicGetOptions::default());
            let found =
                link.answered(ANSWER_WITHIN, async { found.await.map_err(Error::of("read dead letters")) }).await;
            let Some(message) = found? else {
                is_all = true;
                break;
            };
            bytes += message.data.len();
            letters.push(DeadLetter { message });
        }
        Ok(Self { link, channel, letters, is_all })
    }

    /// What was read, the oldest first.
    pub fn letters(&self) -> &[DeadLetter] {
        &self.letters
    }

    /// Whether there were no others.
    pub fn is_all(&self) -> bool {
        self.is_all
    }

    /// Removes those for which this holds, and gives the others back. Returns how many were removed.
    pub async fn remove(self, holds: impl Fn(&DeadLetter) -> bool) -> Result<usize, Error> {
        let mut removed = 0;
        for letter in self.letters.iter().filter(|letter| holds(letter)) {
            let acked = letter.message.acker.ack(BasicAckOptions::default()).await;
            acked.map_err(Error::of("remove a dead letter"))?;
            removed += 1;
        }
        // The broker answers this after it has removed them; an acknowledgement has no answer.
        let closed = self.channel.close(200, "closed".into());
        let closed = async { closed.await.map_err(Error::of("remove dead letters")) };
        self.link.answered(ANSWER_WITHIN, closed).await?;
        self.link.close().await;
        Ok(removed)
    }
}

impl DeadLetter {
    /// The cluster that it announced; none if it is no announcement.
    pub fn cluster(&self) -> Option<Uuid> {
        std::str::from_utf8(&self.message.data).ok()?.parse().ok()
    }

    /// The beginning of its text, in which nothing moves a terminal's cursor.
    pub fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.message.data);
        let shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
        if text.chars().nth(SHOWN).is_some() { format!("{shown}…") } else { shown }
    }

    /// Why the broker keeps it: `rejected`, `delivery_limit`, …
    pub fn reason(&self) -> String {
        self.header("x-first-death-reason")
    }

    /// The queue in which it was.
    pub fn queue(&self) -> String {
        self.header("x-first-death-queue")
    }

    /// When it left that queue.
    pub fn since(&self) -> Option<Timestamp> {
        let AMQPValue::FieldArray(deaths) = self.headers()?.inner().get("x-death")? else { return None };
        let AMQPValue::FieldTable(last) = deaths.as_slice().first()? else { return None };
        let AMQPValue::Timestamp(seconds) = last.inner().get("time")? else { return None };
        Timestamp::from_second(i64::try_from(*seconds).ok()?).ok()
    }

    fn headers(&self) -> Option<&FieldTable> {
        self.message.properties.headers().as_ref()
    }

    fn header(&self, name: &str) -> String {
        match self.headers().and_then(|headers| headers.inner().get(name)) {
            Some(AMQPValue::LongString(text)) => text.to_string(),
            _ => "unknown".to_owned(),
        }
    }
}
