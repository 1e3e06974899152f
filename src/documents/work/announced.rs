//! Which rows the message broker was told of, in column `announced`.
//!
//! The column only saves messages: a row that was announced in vain is announced again, and one that was announced twice is claimed once.

use std::collections::HashMap;

use uuid::Uuid;

use super::queue::{WorkQueue, texts};
use crate::db::{Error, Type, column};

/// Rows that are ready, that nobody has, and that were not announced since. `announced` becomes the time of this read: what a row becomes
/// afterwards is announced once more. `xmin` is the transaction that has written the row last. A row that somebody has locked is left
/// to a later read: its note would have to wait.
const UNANNOUNCED: &str = "select cluster::text, urgent, now()::text, xmin::text from towline_work \
     where ready_at <= now() and (until is null or until < now()) and (announced is null or announced < greatest(ready_at, until)) \
       and (select origin = towline_origin() from towline_meta) \
     order by ready_at limit $1 for no key update skip locked";
/// Notes when rows were read that the broker has taken; only those that nobody has written since they were read. One of the others may
/// have been given back by a worker, have become urgent or been noted by the announcer that has taken over, and its columns need not show
/// that. If it was none of these, it is announced twice, as is one that is being written now. One that was claimed meanwhile is reset at
/// the end of its pass.
const ANNOUNCED: &str = "with rows as materialized ( \
       select w.cluster from towline_work w join unnest($1::text[]::uuid[], $2::text[]) r(cluster, version) \
         on w.cluster = r.cluster and w.xmin::text = r.version order by w.cluster for no key update of w skip locked) \
     update towline_work w set announced = $3::text::timestamptz from rows where w.cluster = rows.cluster";
/// Rows that are to be announced again. Those that somebody has locked are found when they are overdue.
const AGAIN: &str = "with rows as materialized ( \
       select cluster from towline_work where cluster = any ($1::text[]::uuid[]) order by cluster for no key update skip locked) \
     update towline_work w set announced = null from rows where w.cluster = rows.cluster";
/// Rows whose messages were lost: they wait although no message does.
const LOST: &str = "with rows as materialized ( \
       select cluster from towline_work where ready_at <= now() and (until is null or until < now()) \
         and announced < now() - interval '10 s' order by cluster for no key update skip locked) \
     update towline_work w set announced = null from rows where w.cluster = rows.cluster";

/// Rows to announce, and when they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unannounced {
    /// Each with whether it is urgent; the oldest first.
    pub(super) rows: Vec<(Uuid, bool)>,
    /// Who has written each of them last.
    versions: HashMap<Uuid, String>,
    at: String,
}

impl WorkQueue {
    /// Rows to announce, so many at most. One statement.
    pub(super) async fn unannounced(&self, most: i64) -> Result<Unannounced, Error> {
        const QUERY: &str = "unannounced_work";
        let rows = self.database().all(QUERY, UNANNOUNCED, &[(&most as _, Type::INT8)]).await?;
        let mut found = Unannounced::default();
        for row in &rows {
            let (cluster, urgent): (&str, bool) = (column(QUERY, row, 0)?, column(QUERY, row, 1)?);
            found.at = column(QUERY, row, 2)?;
            let Ok(cluster) = cluster.parse() else { continue };
            found.rows.push((cluster, urgent));
            found.versions.insert(cluster, column(QUERY, row, 3)?);
        }
        Ok(found)
    }

    /// Notes that these of the rows were announced, except those that were written since they were read. One statement.
    pub(super) async fn announced(&self, of: &Unannounced, clusters: &[Uuid]) -> Result<(), Error> {
        let read = clusters.iter().filter_map(|cluster| of.versions.get_key_value(cluster));
        let (clusters, versions): (Vec<_>, Vec<_>) =
            read.map(|(cluster, version)| (cluster.to_string(), version)).unzip();
        let params =
            [(&clusters as _, Type::TEXT_ARRAY), (&versions as _, Type::TEXT_ARRAY), (&of.at as _, Type::TEXT)];
        self.database().execute("work_announced", ANNOUNCED, &params).await.map(|_| ())
    }

    /// Has these rows announced again: their messages were received and not served. One statement.
    pub(super) async fn announce_again(&self, clusters: &[Uuid]) -> Result<(), Error> {
        let clusters = texts(clusters);
        self.database().execute("announce_work_again", AGAIN, &[(&clusters as _, Type::TEXT_ARRAY)]).await.map(|_| ())
    }

    /// Has rows announced again whose messages were lost. Only for when no message waits. One statement.
    pub(super) async fn announce_lost(&self) -> Result<u64, Error> {
        self.database().execute("announce_lost_work", LOST, &[]).await
    }
}
