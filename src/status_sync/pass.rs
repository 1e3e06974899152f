//! One pass: what changed, its rows, what they come to, the writes.

use std::collections::HashSet;

use futures::FutureExt;
use tokio::time::Instant;

use super::poller::{Life, Poller};
use super::row_id::RowId;
use super::standing::{Objection, Standing};
use super::work::Work;
use crate::actor::Scope;
use crate::cluster::ObjectKey;
use crate::db;

impl Poller {
    /// A whole pass.
    pub(super) async fn pass(&self, scope: &Scope, life: &mut Life) -> Result<(), Stopped> {
        let begun = Instant::now();
        let detected = self.detect(scope, life).await?;
        let now = Instant::now();
        life.detection = now - begun;
        let empty = detected.rows == 0;
        if !empty {
            self.shared.any_rows.send_if_modified(|any| !std::mem::replace(any, true));
        }
        life.table.take(detected.found, now);
        self.report.send_modify(|report| report.rows = detected.rows);
        self.until_decided(scope, life).await?;
        let now = Instant::now();
        let counts = life.counts(begun, self.shared.interval);
        // A database without any row may be one that is being filled: its first pass clears nothing.
        let may_clear = !(life.first_pass && empty && !*self.shared.any_rows.borrow());
        let names = life.table.names();
        let due = self.due(life, names, now);
        self.show(life);
        let mut work = Work::new(self, scope, life);
        if may_clear {
            work.clear(due.without_rows, counts).await;
        }
        self.carry_out(work, due.with_rows).await?;
        let bad = life.table.bad_rows(&detected.bad);
        self.report.send_modify(|report| {
            report.bad_rows = bad.count;
            report.bad_row_examples = bad.examples;
        });
        Ok(())
    }

    /// Waits until it is known whether the hub is the cluster of before: where its identity does not tell, every family
    /// compares its rows before any of them writes.
    async fn until_decided(&self, scope: &Scope, life: &mut Life) -> Result<(), Stopped> {
        let hub = &self.shared.standing;
        let mut changes = hub.changes();
        let mut identities = hub.identities();
        if hub.asks_for_rows() {
            // A cache of before the doubt would say that all is as it was.
            if !self.can_decide(life) {
                return Err(Stopped::Doubt);
            }
            hub.compared(self.family, life.table.compare(self.hub().store()));
            self.show(life);
        }
        loop {
            match hub.of(self.family) {
                Standing::Clear => return Ok(()),
                Standing::Held(objection) => return Err(Stopped::Held(objection)),
                Standing::Undecided if hub.has_compared(self.family) => {}
                Standing::Undecided | Standing::Unread => return Err(Stopped::Doubt),
            }
            tokio::select! {
                () = scope.draining() => return Err(Stopped::Draining),
                _ = changes.changed() => {}
                _ = identities.changed() => {}
                key = life.inbox.next() => life.noted.extend(key),
            }
        }
    }

    /// Looks at some rows again, between passes. Nothing is cleared: only a whole pass knows how much would be. Returns
    /// whether one is needed.
    pub(super) async fn look_again(
        &self,
        scope: &Scope,
        life: &mut Life,
        ids: &HashSet<RowId>,
    ) -> Result<bool, Stopped> {
        let names = life.table.names_of(ids);
        let due = self.due(life, names, Instant::now());
        self.carry_out(Work::new(self, scope, life), due.with_rows).await?;
        Ok(!due.without_rows.is_empty())
    }

    /// Reads the rows of these, and writes what they come to.
    async fn carry_out(&self, mut work: Work<'_>, ids: Vec<RowId>) -> Result<(), Stopped> {
        let read = if ids.is_empty() { Ok(()) } else { work.read(ids).await };
        // Whatever became of the reading: what is under way is finished, and known.
        let life = work.finish().await;
        for key in std::mem::take(&mut life.noted) {
            self.note(life, &key);
        }
        read
    }

    /// Of the rows that are served, those that are to be looked at now.
    fn due(&self, life: &mut Life, names: Vec<(ObjectKey, Vec<RowId>)>, now: Instant) -> Due {
        let calm = self.shared.interval;
        let chosen = self.choose(life, names);
        let due = chosen.into_iter().filter(|id| life.table.get(*id).is_some_and(|entry| entry.is_due(now, calm)));
        let (without_rows, with_rows) =
            due.partition(|id| life.table.get(*id).is_some_and(|entry| entry.found.rows() == 0));
        Due { without_rows, with_rows }
    }
}

/// What is to be looked at.
struct Due {
    without_rows: Vec<RowId>,
    with_rows: Vec<RowId>,
}

/// Why a pass has not come to its end.
#[derive(Debug)]
pub(super) enum Stopped {
    /// Nothing more is begun.
    Draining,
    /// It has to be found out anew which cluster the hub is.
    Doubt,
    /// Nothing may be written to this hub.
    Held(Objection),
    /// The database has not told everything.
    Failed(db::Error),
}

impl From<db::Error> for Stopped {
    fn from(error: db::Error) -> Self {
        Self::Failed(error)
    }
}

/// Waits for the database unless the poller drains, and meanwhile takes news in, so that no watch has to wait for a pass.
pub(super) async fn answer<T>(
    scope: &Scope,
    life: &mut Life,
    asked: impl Future<Output = Result<T, db::Error>>,
) -> Result<T, Stopped> {
    let mut asked = std::pin::pin!(asked);
    // Most rows are there already.
    if let Some(answer) = asked.as_mut().now_or_never() {
        return Ok(answer?);
    }
    life.unanswered_since_now();
    loop {
        tokio::select! {
            biased;
            answer = &mut asked => {
                let answer = answer?;
                life.answered();
                return Ok(answer);
            }
            () = scope.draining() => return Err(Stopped::Draining),
            key = life.inbox.next() => life.noted.extend(key),
        }
    }
}
