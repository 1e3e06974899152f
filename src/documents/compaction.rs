//! Compaction: deletes rows of the log that nobody needs, raises the version down to which it is complete, and deletes old records of
//! who did what, and those that a namespace has too many of.
//!
//! State: none; the cursor is in the database, in the row of the claim. Only the holder of the leader claim `compaction` runs it:
//! the function looks at the claim itself, so that a process that was stopped moves nothing. Nobody sends to this actor. It runs
//! once a minute, and repeats its step while there is more; it counts the records of each namespace once an hour, which reads an index
//! from end to end. A step that fails is left to the next minute. Drain: it ends after the
//! step in hand.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::claims::{Grant, Leadership};
use crate::actor::{BoxError, ChildSpec, Scope};
use crate::cluster::full_text;
use crate::db::{self, Database, Type, column};

/// Between two runs.
const EVERY: Duration = Duration::from_mins(1);
/// Between two counts of the records of each namespace.
const COUNT_EVERY: Duration = Duration::from_hours(1);
/// Rows that one step looks at, and most records that it deletes: a step that met fewer of both was the last.
const STEP: i64 = 5_000;
/// No step takes so long.
const STALL_AFTER: Duration = Duration::from_mins(3);

/// What a step has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Rows that it passed.
    pub scanned: i64,
    /// Rows that it deleted.
    pub removed: i64,
    /// Records of who did what that it deleted.
    pub expired: i64,
}

/// Compaction. Its clones are instances that take over from each other.
#[derive(Clone)]
pub struct Compaction {
    database: Database,
    leadership: Leadership,
    keeps: Keeps,
}

/// What compaction keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeps {
    /// Rows of the log that are younger.
    pub log: Duration,
    /// Records of who did what that are younger.
    pub history: Duration,
    /// So many of each namespace.
    pub records: u64,
}

impl Compaction {
    pub fn new(database: Database, leadership: Leadership, keeps: Keeps) -> Self {
        Self { database, leadership, keeps }
    }

    /// The actor, under its name `compaction`.
    pub fn child(self) -> ChildSpec {
        ChildSpec::new("compaction", move |scope| self.clone().run(scope)).stall_after(STALL_AFTER)
    }

    pub async fn run(mut self, scope: Scope) -> Result<(), BoxError> {
        let mut counted: Option<Instant> = None;
        loop {
            scope.set_state("waiting");
            let grant = tokio::select! {
                biased;
                () = scope.draining() => return Ok(()),
                grant = self.leadership.granted() => grant,
            };
            scope.set_state("running");
            if let Err(error) = self.compact(&scope, &grant).await {
                tracing::warn!(error = %full_text(&error), "failed to compact the log, retrying in a minute");
            }
            if counted.is_none_or(|counted| counted.elapsed() >= COUNT_EVERY) {
                match self.forget(&scope, &grant).await {
                    Ok(()) => counted = Some(Instant::now()),
                    Err(error) => {
                        tracing::warn!(error = %full_text(&error), "failed to bound the history, retrying in a minute");
                    }
                }
            }
            tokio::select! {
                biased;
                () = scope.draining() => return Ok(()),
                () = sleep(EVERY) => {}
            }
        }
    }

    /// Steps until the last one.
    async fn compact(&self, scope: &Scope, grant: &Grant) -> Result<(), db::Error> {
        while grant.check().is_ok() && !scope.is_draining() {
            let _work = scope.work();
            let step = compact(&self.database, grant, self.keeps).await?;
            if step.scanned < STEP && step.expired < STEP {
                break;
            }
        }
        Ok(())
    }

    /// Deletes the oldest records of namespaces that have too many. One that fails is left to the next hour, unless all would.
    async fn forget(&self, scope: &Scope, grant: &Grant) -> Result<(), db::Error> {
        for namespace in namespaces_with_records(&self.database).await? {
            match self.forget_of(&namespace, scope, grant).await {
                Ok(0) => {}
                Ok(forgotten) => tracing::warn!(
                    namespace,
                    records = forgotten,
                    "dropped the oldest records of who changed what in a namespace: there were too many"
                ),
                Err(error) if error.is_outage() => return Err(error),
                Err(error) => tracing::warn!(
                    namespace,
                    error = %full_text(&error),
                    "failed to bound the history of a namespace, retrying in an hour"
                ),
            }
        }
        Ok(())
    }

    /// Returns how many records it has deleted.
    async fn forget_of(&self, namespace: &str, scope: &Scope, grant: &Grant) -> Result<i64, db::Error> {
        let mut forgotten = 0;
        let Some(last) = last_to_forget(&self.database, namespace, self.keeps.records).await? else { return Ok(0) };
        while grant.check().is_ok() && !scope.is_draining() {
            let _work = scope.work();
            let step = forget(&self.database, grant, namespace, &last).await?;
            forgotten += step;
            if step < STEP {
                break;
            }
        }
        Ok(forgotten)
    }
}

/// Looks up one after the other, however many records each has. Records without a namespace are not bounded: only tokens for
/// all namespaces cause them, and refusals, of which there are few.
async fn namespaces_with_records(database: &Database) -> Result<Vec<String>, db::Error> {
    const QUERY: &str = "namespaces_with_records";
    const TEXT: &str = "with recursive names as ( \
           (select namespace from towline_history where namespace > '' order by namespace limit 1) \
           union all \
           select (select h.namespace from towline_history h where h.namespace > n.namespace order by h.namespace limit 1) \
           from names n where n.namespace is not null) \
         select namespace from names where namespace is not null";
    let rows = database.all(QUERY, TEXT, &[]).await?;
    rows.iter().map(|row| column::<&str>(QUERY, row, 0).map(str::to_owned)).collect()
}

/// A record among those of its namespace: its time, as the database prints it, and its number.
struct RecordId(String, i64);

/// The newest record of a namespace that goes, if it has more than so many. To find it reads an index entry for each that stays.
async fn last_to_forget(database: &Database, namespace: &str, most: u64) -> Result<Option<RecordId>, db::Error> {
    const QUERY: &str = "last_to_forget";
    const TEXT: &str = "select at::text, number from towline_forget_to($1, $2) where number is not null";
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let rows = database.all(QUERY, TEXT, &[(&namespace as _, Type::TEXT), (&most as _, Type::INT8)]).await?;
    rows.first().map(|row| Ok(RecordId(column(QUERY, row, 0)?, column(QUERY, row, 1)?))).transpose()
}

/// One step of the deletion of the records of a namespace up to this one. Returns how many it has deleted.
async fn forget(database: &Database, grant: &Grant, namespace: &str, last: &RecordId) -> Result<i64, db::Error> {
    const QUERY: &str = "forget_records";
    const TEXT: &str = "select towline_forget($1, $2, $3, $4::text::timestamptz, $5)";
    let holder = grant.holder.as_str();
    let params = [
        (&holder as _, Type::TEXT),
        (&grant.token as _, Type::INT8),
        (&namespace as _, Type::TEXT),
        (&last.0 as _, Type::TEXT),
        (&last.1 as _, Type::INT8),
    ];
    let rows = database.all(QUERY, TEXT, &params).await?;
    rows.first().map_or(Ok(0), |row| column(QUERY, row, 0))
}

/// One step under a grant of the role.
pub async fn compact(database: &Database, grant: &Grant, keeps: Keeps) -> Result<Compacted, db::Error> {
    const QUERY: &str = "compact";
    const TEXT: &str = "select scanned, removed, expired from towline_compact($1, $2, make_interval(secs => $3)), \
         towline_expire($1, $2, make_interval(secs => $4)) expired";
    let (holder, log, history) = (grant.holder.as_str(), keeps.log.as_secs_f64(), keeps.history.as_secs_f64());
    let params = [
        (&holder as _, Type::TEXT),
        (&grant.token as _, Type::INT8),
        (&log as _, Type::FLOAT8),
        (&history as _, Type::FLOAT8),
    ];
    let rows = database.all(QUERY, TEXT, &params).await?;
    let Some(row) = rows.first() else { return Ok(Compacted::default()) };
    Ok(Compacted { scanned: column(QUERY, row, 0)?, removed: column(QUERY, row, 1)?, expired: column(QUERY, row, 2)? })
}
