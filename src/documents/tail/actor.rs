//! The actor that reads the log.
//!
//! It owns one connection beside the pool, which listens to `towline`: every write notifies. It reads behind the ring's position
//! until the end of the log, then waits for a notification, for a watch that wants a read, or for a second. It has no mailbox: any
//! number of notifications causes one read. A lost connection is made again with back-off; until then watches receive nothing,
//! not even bookmarks. A restarted actor continues at the ring's position. It has nothing to drain.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::entry::{self, Entry, EntryError};
use super::head::{Head, TailStep};
use super::{CHANNEL, EVERY, Tail};
use crate::actor::{BoxError, Scope};
use crate::cluster::full_text;
use crate::db::{self, Listener, Row, Session, Subscriber, Type, column};
use crate::documents::blocking::BlockingPool;
use crate::documents::restored::{IS_WHOLE, renumber};

/// The limit of a statement, on the server too.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Most rows of one read.
const ROWS: usize = 500;
/// Watches are woken at the end of a read, and after this many bytes: large documents would push each other out of the ring
/// before any watch has sent them.
const WAKE_AFTER: usize = 1024 * 1024;
/// At start the ring is filled with at most this many events.
const FILL_ROWS: i64 = 10_000;
const QUERY: &str = "tail";
/// Where the KiB are that a row counts: behind the four columns of the head and those of the entry.
const CHARGED: usize = 12;

impl Tail {
    pub async fn run(self, scope: Scope) -> Result<(), BoxError> {
        let database = self.0.database.clone().answering_within(ANSWER_WITHIN);
        let listener = Listener::new(database, "tail", &[CHANNEL]);
        let reader = Reader { tail: &self, notified: Notify::new(), blocking: BlockingPool::default() };
        tokio::select! {
            () = scope.draining() => Ok(()),
            never = listener.run(&reader) => match never {},
        }
    }
}

struct Reader<'t> {
    tail: &'t Tail,
    notified: Notify,
    /// Where large rows are read. It is the tail's own: decisions and watches that begin don't delay it.
    blocking: BlockingPool,
}

/// How a read ended.
enum Outcome {
    More,
    /// At the end of the log.
    End,
    /// Before its rows: they are not the next ones.
    Not(TailStep),
}

impl Subscriber for Reader<'_> {
    async fn listening(&self, session: &Session) -> Result<(), db::Error> {
        let mut wanted = self.tail.0.wanted.subscribe();
        if self.tail.0.ring.read().epoch() == 0 {
            self.restart(session).await?;
        }
        loop {
            let number = *wanted.borrow_and_update();
            if self.read_to_end(session).await? {
                self.tail.0.progress.send_modify(|progress| {
                    progress.complete += 1;
                    progress.served = number;
                    progress.is_listening = true;
                    progress.failure = None;
                });
            }
            let woken = async {
                tokio::select! {
                    () = self.notified.notified() => {}
                    // The sender lives as long as the tail.
                    _ = wanted.changed() => {}
                }
            };
            let _elapsed = timeout(EVERY, woken).await;
        }
    }

    fn notified(&self, _channel: &str, _payload: &str) {
        self.notified.notify_one();
    }

    fn failed(&self, error: &db::Error) {
        self.tail.0.progress.send_modify(|progress| {
            progress.is_listening = false;
            progress.failure = Some(error.clone());
        });
    }
}

impl Reader<'_> {
    /// Reads until the end of the log, and returns whether it was reached.
    async fn read_to_end(&self, session: &Session) -> Result<bool, db::Error> {
        let mut has_renumbered = false;
        loop {
            match self.read(session).await? {
                Outcome::More | Outcome::Not(TailStep::Follow) => {}
                Outcome::End => return Ok(true),
                Outcome::Not(TailStep::Restart) => {
                    tracing::warn!("the versions of the log have another origin or were missed, ending all watches");
                    self.restart(session).await?;
                }
                Outcome::Not(TailStep::Renumber { force }) if !has_renumbered => {
                    has_renumbered = true;
                    renumber(&self.tail.0.database, force).await?;
                }
                // The next read tries it again.
                Outcome::Not(TailStep::Renumber { .. }) => return Ok(false),
            }
        }
    }

    /// Empties the ring, and begins so far behind the newest version that the ring will be full.
    async fn restart(&self, session: &Session) -> Result<(), db::Error> {
        const QUERY: &str = "begin_tail";
        const TEXT: &str = "select greatest(m.base, ( \
               select min(version) - 1 from ( \
                 select version, sum(coalesce(pg_column_size(document), 0)) over (order by version desc) as bytes \
                 from (select version, document from towline_log order by version desc limit $1) n) s \
               where bytes <= $2)) from towline_meta m";
        let bytes = i64::try_from(self.tail.0.ring.read().max_bytes()).unwrap_or(i64::MAX);
        let rows = session.rows(QUERY, TEXT, &[(&FILL_ROWS, Type::INT8), (&bytes, Type::INT8)]).await?;
        // An empty table is one that is being restored: the next attempt will find it.
        let begin = match rows.first() {
            Some(row) => column(QUERY, row, 0)?,
            None => 0,
        };
        self.tail.0.refills.store(true, Ordering::Relaxed);
        self.tail.0.ring.write().restart(begin);
        self.wake();
        Ok(())
    }

    /// One statement. Its rows go into the ring as they arrive.
    async fn read(&self, session: &Session) -> Result<Outcome, db::Error> {
        let ring = &self.tail.0.ring;
        let begun = Instant::now();
        let (position, known) = {
            let ring = ring.read();
            (ring.position(), ring.origin().map(str::to_owned))
        };
        let mut rows = session.stream(QUERY, &statement(), &[(&position, Type::INT8)]).await?;
        let (mut newest, mut count, mut unannounced) = (None, 0, 0);
        while let Some(row) = rows.next().await? {
            if newest.is_none() {
                let head = head(&row)?;
                match head.step(known.as_deref(), position) {
                    TailStep::Follow => ring.write().follow(&head.origin, head.base),
                    other => return Ok(Outcome::Not(other)),
                }
                newest = Some(head.newest);
            }
            let Some(version) = column::<Option<i64>>(QUERY, &row, 4)? else { continue };
            count += 1;
            let charged = column::<i32>(QUERY, &row, CHARGED)?;
            match Entry::read_blocking(&self.blocking, QUERY, row, 4).await {
                Ok(Some(entry)) => {
                    if let Err(error) = &entry.change {
                        self.tail.0.unreadable.fetch_add(1, Ordering::Relaxed);
                        tracing::error!(
                            version,
                            kind = entry.kind.plural(),
                            namespace = entry.namespace,
                            name = entry.name,
                            error = full_text(error),
                            "a row of the log can't be read, ending the watches of its place"
                        );
                    }
                    if let Some(changes) = &self.tail.0.changes
                        && !self.tail.0.refills.load(Ordering::Relaxed)
                    {
                        changes.count(&entry.namespace, charged.try_into().unwrap_or_default());
                    }
                    unannounced += entry.bytes();
                    ring.write().push(entry);
                }
                // Only a newer release knows what it is.
                Ok(None) => ring.write().skip_to(version),
                Err(EntryError::Columns(error)) => return Err(error),
                Err(EntryError::ShutsDown(error)) => {
                    return Err(db::Error::Decode { query: QUERY, source: std::sync::Arc::new(error) });
                }
            }
            if unannounced > WAKE_AFTER {
                unannounced = 0;
                self.wake();
            }
        }
        match newest {
            Some(newest) if count < ROWS => {
                ring.write().reach_end(newest, begun);
                self.tail.0.refills.store(false, Ordering::Relaxed);
                Ok(Outcome::End)
            }
            Some(_) => {
                self.wake();
                Ok(Outcome::More)
            }
            // The table of the origin is empty: it is being restored.
            None => Err(db::Error::Decode { query: QUERY, source: std::sync::Arc::new(NoOrigin) }),
        }
    }

    fn wake(&self) {
        self.tail.0.progress.send_modify(|_| {});
    }
}

/// The database has not recorded the origin of its versions.
#[derive(Debug, thiserror::Error)]
#[error("table towline_meta is empty")]
struct NoOrigin;

/// The statement of a read behind `$1`. It always returns a row; its version is null where there is nothing new.
fn statement() -> String {
    format!(
        "select m.origin, {IS_WHOLE}, m.base, greatest(m.base, (select max(version) from towline_log)), l.* \
         from towline_meta m cross join towline_version s left join lateral ( \
           select {}, n.charged from (select * from towline_log where version > $1 order by version limit {ROWS}) n \
           left join towline_log p on p.version = n.old_version) l on true order by l.version",
        entry::COLUMNS
    )
}

fn head(row: &Row) -> Result<Head, db::Error> {
    Ok(Head {
        origin: column(QUERY, row, 0)?,
        is_own_origin: column(QUERY, row, 1)?,
        base: column(QUERY, row, 2)?,
        newest: column(QUERY, row, 3)?,
    })
}
