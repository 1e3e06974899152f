//! The writer: the one actor of a process through which all changes of documents go, in group commits.
//!
//! State: a connection of its own, the version that was newest when it last sent, and an item that did not fit into the last
//! batch. Callers send through a [`WriterHandle`] and wait for the answer. It sends to nobody but the database.
//!
//! One call of the procedure `towline_write` is under way at a time; the next one takes the items that wait, in order, up to 64 of
//! them or 4 MiB (a larger item goes alone). Full mailbox: a caller waits for room in it, and is refused at once
//! ([`WriteError::Busy`]) if more than 64 MiB wait. A caller that goes away takes its own item back, unless that has been sent, and so
//! does one whose item was not sent for 20 s.
//!
//! What is done about a failed call is decided in [`failure`]. Restart: items that wait stay in the mailbox; callers whose items were
//! in a call learn that its outcome is unknown. Drain: what waits is still written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::sleep;
use uuid::Uuid;

use super::item::{Item, Outcome};
use super::problem::{Problem, ProblemKind};
use super::tail::Tail;
use crate::actor::{BoxError, ChildSpec, Gauge, Inbox, Mailbox, Scope, mailbox};
use crate::db::{self, Database};

mod batch;
mod call;
mod failure;

use batch::{Batch, Batches};
use call::Calls;
use failure::Failure;

/// Bytes of items that may wait. A busy database writes that much in about 15 s.
pub const MOST_WAITING_BYTES: usize = 64 << 20;
/// Items that may wait. The limits of requests and workers are lower, so that bytes are what runs out.
const MOST_WAITING_ITEMS: usize = 4_096;
/// How long an item may wait to be sent: longer than [`MOST_WAITING_BYTES`] take to be written. A database that has hung for so long
/// is treated like one that does not answer.
const SENT_WITHIN: Duration = Duration::from_secs(20);
/// No single step takes so long: connecting and answering have deadlines.
const STALL_AFTER: Duration = Duration::from_mins(3);
/// How often a batch is sent again after the versions were renumbered. Once is enough unless the server fails over meanwhile.
const MOST_RENUMBERINGS: u32 = 3;

/// Why an item was not written, or may not have been.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// Too much waits to be written.
    #[error("too many changes wait to be written")]
    Busy,
    /// Nothing was written: the database can't be reached or refuses all writes.
    #[error("the database does not take the change")]
    Unavailable(#[source] db::Error),
    /// Nothing was written: earlier changes have not got an answer for too long.
    #[error("the database has not answered to earlier changes for {}", humantime::format_duration(SENT_WITHIN))]
    Overdue,
    /// Nothing was written: the process is shutting down.
    #[error("the process is shutting down")]
    ShuttingDown,
    /// The connection broke before the answer, and the log does not show the item: it was not written, or will be.
    #[error("the database's answer was lost")]
    OutcomeUnknown,
    /// Nothing was written: the database refuses the item for its content.
    #[error("the database refuses the content")]
    Refused(#[source] db::Error),
}

/// Sends items to the writer. Clones send to the same one.
#[derive(Clone)]
pub struct WriterHandle {
    mailbox: Mailbox<Waiting>,
    /// Bytes that may still wait.
    budget: Arc<Semaphore>,
}

/// The writer. Its clones are instances that take over from each other.
#[derive(Clone)]
pub struct Writer {
    database: Database,
    /// Knows the newest version.
    tail: Option<Tail>,
    inbox: Inbox<Waiting>,
}

/// An item as it is sent. To make it takes long if the item is large.
#[derive(Clone, PartialEq, Eq)]
pub struct Prepared {
    request: Uuid,
    /// As JSON.
    text: String,
}

impl From<Item> for Prepared {
    fn from(item: Item) -> Self {
        #[expect(clippy::expect_used, reason = "an item consists of texts, numbers and maps whose keys are texts")]
        let text = serde_json::to_string(&item).expect("an item has a form in JSON");
        Self { request: item.request, text }
    }
}

struct Waiting {
    request: Uuid,
    /// As JSON.
    text: String,
    /// What it takes of the bytes that may wait, until it is sent.
    budget: Option<OwnedSemaphorePermit>,
    fate: Fate,
    reply: oneshot::Sender<Result<Outcome, WriteError>>,
}

/// Whether an item is sent or taken back: what comes first.
#[derive(Clone, Default)]
struct Fate(Arc<AtomicBool>);

impl Fate {
    /// Decides, and returns false if it has been decided before.
    fn decide(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

impl WriterHandle {
    /// Writes an item, all of its changes or none, and returns what became of it.
    ///
    /// If the future is dropped before the item is sent, nothing is written; after that, its outcome is lost.
    pub async fn write(&self, item: impl Into<Prepared>) -> Result<Outcome, WriteError> {
        let Prepared { request, text } = item.into();
        let bytes = u32::try_from(text.len()).map_err(|_| WriteError::Busy)?;
        let budget = Arc::clone(&self.budget).try_acquire_many_owned(bytes).map_err(|_| WriteError::Busy)?;
        let (reply, mut answer) = oneshot::channel();
        let fate = Fate::default();
        let waiting = Waiting { request, text, budget: Some(budget), fate: fate.clone(), reply };
        let overdue = sleep(SENT_WITHIN);
        self.mailbox.send(waiting).await.map_err(|_| WriteError::ShuttingDown)?;
        let answered = tokio::select! {
            biased;
            answered = &mut answer => answered,
            () = overdue => {
                if fate.decide() {
                    return Err(WriteError::Overdue);
                }
                answer.await
            }
        };
        // Without an answer, the writer was aborted, or its mailbox was dropped with the item.
        answered
            .unwrap_or_else(|_| Err(if fate.decide() { WriteError::ShuttingDown } else { WriteError::OutcomeUnknown }))
    }

    /// Bytes of items that wait.
    pub fn waiting_bytes(&self) -> usize {
        MOST_WAITING_BYTES.saturating_sub(self.budget.available_permits())
    }
}

impl Writer {
    /// A writer for this database, and what sends to it.
    pub fn new(database: Database) -> (Self, WriterHandle) {
        let (mailbox, inbox) = mailbox(MOST_WAITING_ITEMS);
        let budget = Arc::new(Semaphore::new(MOST_WAITING_BYTES));
        (Self { database, tail: None, inbox }, WriterHandle { mailbox, budget })
    }

    /// A writer that looks for a lost answer only above what this tail had read when the call was sent. Without one, a writer whose
    /// first answer is lost looks through the whole log.
    #[must_use]
    pub fn above(self, tail: Tail) -> Self {
        Self { tail: Some(tail), ..self }
    }

    /// The actor, under its name `writer`.
    pub fn child(self) -> ChildSpec {
        let gauge: Arc<dyn Gauge> = self.inbox.gauge();
        ChildSpec::new("writer", move |scope| self.clone().run(scope)).stall_after(STALL_AFTER).gauge(gauge)
    }

    pub async fn run(self, scope: Scope) -> Result<(), BoxError> {
        let Self { database, tail, inbox } = self;
        let mut batches = Batches::new(inbox);
        let mut calls = Calls::new(database, tail);
        loop {
            let batch = tokio::select! {
                // What waits is written before the drain ends.
                biased;
                batch = batches.next() => batch,
                () = scope.draining() => return Ok(()),
            };
            let Some(batch) = batch else { return Ok(()) };
            let work = scope.work();
            let mut left = vec![batch];
            let mut renumberings = 0;
            // Batches that have to be sent again are at the end, the next one last.
            while let Some(batch) = left.pop() {
                work.beat();
                match calls.write(&batch).await {
                    Ok(outcomes) => batch.answer(outcomes),
                    Err(failed) => match Failure::of(&failed) {
                        Failure::Content if batch.len() == 1 => batch.fail(&WriteError::Refused(failed)),
                        Failure::Content => left.extend(batch.singly().rev()),
                        Failure::OtherOrigin if renumberings < MOST_RENUMBERINGS => match calls.renumber().await {
                            Ok(()) => {
                                renumberings += 1;
                                left.push(batch);
                            }
                            Err(error) => batch.fail(&WriteError::Unavailable(error)),
                        },
                        Failure::OtherOrigin | Failure::NothingWritten => batch.fail(&WriteError::Unavailable(failed)),
                        Failure::Unknown => {
                            work.beat();
                            left.extend(search(&mut calls, batch, &failed).await);
                        }
                    },
                }
            }
        }
    }
}

/// Looks for the items of a call whose answer was lost. Returns those that are certain not to have been written.
async fn search(calls: &mut Calls, batch: Batch, failed: &db::Error) -> Option<Batch> {
    let found = calls.find(&batch).await;
    tracing::warn!(
        error = %crate::cluster::full_text(failed),
        items = batch.len(),
        found = found.len(),
        "lost the answer of the database to a write"
    );
    if found.is_empty() {
        batch.fail(&WriteError::OutcomeUnknown);
        return None;
    }
    // The call was committed as a whole: what is not in the log had another outcome, and can't be written any more.
    batch.answer_some(&found)
}

impl From<WriteError> for Problem {
    fn from(error: WriteError) -> Self {
        const SOON: Duration = Duration::from_secs(1);
        let problem = |kind, title: &str| Self::new(kind, title);
        let is_outage = match &error {
            WriteError::Unavailable(failure) => failure.is_outage(),
            WriteError::Overdue => true,
            _ => false,
        };
        match &error {
            WriteError::Busy => problem(ProblemKind::Busy, "too many changes wait to be written").retry_after(SOON),
            WriteError::Unavailable(_) | WriteError::Overdue => {
                problem(ProblemKind::Unavailable, "the database does not take the change; nothing was written")
                    .retry_after(SOON)
                    .caused_by(error, is_outage)
            }
            WriteError::ShuttingDown => {
                problem(ProblemKind::Unavailable, "this replica is shutting down; nothing was written")
                    .retry_after(SOON)
            }
            WriteError::OutcomeUnknown => {
                let title =
                    "the database's answer was lost: the change may have been made, so read before trying again";
                problem(ProblemKind::OutcomeUnknown, title).retry_after(SOON).caused_by(error, is_outage)
            }
            // The server's message may quote the content.
            WriteError::Refused(refused) => {
                let code = refused.server().map_or("", db::ServerError::code);
                let kind = if code.starts_with("54") { ProblemKind::TooLarge } else { ProblemKind::Invalid };
                problem(kind, &format!("the database refuses the content (SQLSTATE {code})"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, advance};

    use super::*;
    use crate::db::DatabaseSource;
    use crate::documents::{Change, Expected, Key, Kind};

    fn writer() -> (Writer, WriterHandle) {
        let url = "postgres://localhost/hub".parse().unwrap();
        Writer::new(Database::new(DatabaseSource::Url(Box::new(url))))
    }

    fn item() -> Item {
        let change = Change::delete(&Key::new(Kind::Cluster, "foo", "c1"), Expected::Version(1));
        Item::of(Uuid::new_v4(), vec![change])
    }

    #[tokio::test(start_paused = true)]
    async fn more_than_64_mib_that_wait_are_refused_until_there_is_room() {
        let (writer, handle) = writer();
        let large = || {
            let mut large = item();
            if let Some(change) = large.changes.first_mut() {
                change.name = "x".repeat(8_000_000);
            }
            large
        };
        let bytes = serde_json::to_string(&large()).unwrap().len();
        let accepted = MOST_WAITING_BYTES / bytes;
        for _ in 0..accepted {
            let handle = handle.clone();
            tokio::spawn(async move { handle.write(large()).await });
        }
        while handle.waiting_bytes() < accepted * bytes {
            tokio::task::yield_now().await;
        }
        let error = handle.write(large()).await.unwrap_err();
        assert!(matches!(error, WriteError::Busy), "{error:?}");
        let problem = Problem::from(error);
        assert_eq!((accepted, problem.kind, problem.retry_after.is_some()), (8, ProblemKind::Busy, true));
        // What is sent no longer waits.
        let mut batches = Batches::new(writer.inbox.clone());
        let sent = batches.next().await.unwrap();
        assert_eq!((sent.len(), handle.waiting_bytes()), (1, (accepted - 1) * bytes));
        assert!(
            futures::FutureExt::now_or_never(handle.write(large())).is_none(),
            "it is refused although there is room"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_that_is_not_sent_in_time_is_taken_back() {
        let (writer, handle) = writer();
        let begun = Instant::now();
        let error = handle.write(item()).await.unwrap_err();
        assert!(matches!(error, WriteError::Overdue), "{error:?}");
        assert_eq!(begun.elapsed(), SENT_WITHIN);
        let mut batches = Batches::new(writer.inbox.clone());
        assert!(futures::FutureExt::now_or_never(batches.next()).is_none(), "it is sent all the same");
        assert_eq!(handle.waiting_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_that_was_sent_waits_for_its_answer_however_long_it_takes() {
        let (writer, handle) = writer();
        let waiting = tokio::spawn(async move { handle.write(item()).await });
        let batch = Batches::new(writer.inbox.clone()).next().await.unwrap();
        advance(SENT_WITHIN * 2).await;
        assert!(!waiting.is_finished());
        batch.answer(vec![Outcome::Fenced]);
        assert_eq!(waiting.await.unwrap().unwrap(), Outcome::Fenced);
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_item_that_was_sent_has_an_unknown_outcome_when_the_writer_is_gone() {
        let (writer, handle) = writer();
        let send = || {
            let handle = handle.clone();
            tokio::spawn(async move { handle.write(item()).await })
        };
        let first = send();
        let mut batches = Batches::new(writer.inbox.clone());
        let batch = batches.next().await.unwrap();
        let second = send();
        while handle.waiting_bytes() == 0 {
            tokio::task::yield_now().await;
        }
        drop((batch, batches, writer));
        let error = first.await.unwrap().unwrap_err();
        assert!(matches!(error, WriteError::OutcomeUnknown), "{error:?}");
        let error = second.await.unwrap().unwrap_err();
        assert!(matches!(error, WriteError::ShuttingDown), "{error:?}");
    }
}
