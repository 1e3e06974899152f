//! What judging writes.

use serde::Serialize;
use uuid::Uuid;

use super::texts;
use crate::db::{self, Json, Transaction, Type};
use crate::syncset::rules::guard::{Dropped, Objects};
use crate::syncset::rules::renaming::Finding;

/// A row of `towline_guard`, but for what the statement adds.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) syncset: Uuid,
    pub(super) gone: bool,
    pub(super) held: bool,
    pub(super) cause: Option<&'static str>,
    pub(super) clusters: usize,
    pub(super) tracks: usize,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) always: bool,
    pub(super) approved: i64,
    pub(super) objects: Option<Objects>,
    pub(super) held_objects: Option<Objects>,
    pub(super) dropped: Option<Vec<Dropped>>,
}

/// A row of `towline_lost` for objects that get other names.
#[derive(Debug, Serialize)]
struct Renamed {
    cluster: Uuid,
    syncset: Uuid,
    at: Moment,
    back: bool,
    objects: Objects,
}

/// When a loss counts as made.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Moment {
    Now,
    /// It does not count.
    Approved,
    /// When it was noted first.
    Noted,
}

/// Clusters that a syncset matches no more, or again, and those where it loses objects that get other names.
#[derive(Debug, Default)]
pub(super) struct Lost {
    new: Vec<(Uuid, Uuid, bool)>,
    again: Vec<(Uuid, Uuid)>,
    back: Vec<(Uuid, Uuid)>,
    renamed: Vec<Renamed>,
    /// Syncsets of which nothing counts any more that they have lost.
    approved: Vec<Uuid>,
    /// Syncsets that are no longer held because of an edit, of which counts what they have lost meanwhile.
    kept: Vec<Uuid>,
}

impl Lost {
    /// The syncset matches the cluster no more.
    pub(super) fn lose(&mut self, cluster: Uuid, syncset: Uuid, is_approved: bool) {
        self.new.push((cluster, syncset, is_approved));
    }

    /// The syncset matches the cluster again, before anything was deleted.
    pub(super) fn regain(&mut self, cluster: Uuid, syncset: Uuid) {
        self.again.push((cluster, syncset));
    }

    /// The syncset matches the cluster again, after its objects were deleted there.
    pub(super) fn come_back(&mut self, cluster: Uuid, syncset: Uuid) {
        self.back.push((cluster, syncset));
    }

    /// Notes what was found out about objects that get other names. `was_back` is what was noted before.
    pub(super) fn find(&mut self, cluster: Uuid, syncset: Uuid, finding: Finding, was_back: bool, is_approved: bool) {
        let of_loss = if is_approved { Moment::Approved } else { Moment::Now };
        let (at, back, objects) = match finding {
            Finding::Unchanged => return,
            Finding::Nothing => return self.again.push((cluster, syncset)),
            Finding::Loses(objects) => (of_loss, false, objects),
            Finding::Left(objects) => (Moment::Noted, was_back, objects),
            Finding::Restored(objects) => (Moment::Approved, false, objects),
            Finding::Back(objects) => (Moment::Noted, true, objects),
        };
        self.renamed.push(Renamed { cluster, syncset, at, back, objects });
    }

    /// The deletions of the syncset were approved.
    pub(super) fn approve(&mut self, syncset: Uuid) {
        self.approved.push(syncset);
    }

    /// An edit of the syncset was approved, and not that it has lost clusters meanwhile.
    pub(super) fn keep(&mut self, syncset: Uuid) {
        self.kept.push(syncset);
    }

    /// Writes it, if there is anything.
    pub(super) async fn write(&self, transaction: &mut Transaction<'static>) -> Result<(), db::Error> {
        const TEXT: &str = "with again as (delete from towline_lost where ctid = any(array(select \
               (select l.ctid from towline_lost l where l.cluster = a.cluster and l.syncset = a.syncset) \
               from unnest($1::text[]::uuid[], $2::text[]::uuid[]) a(cluster, syncset)))), \
             approved as (update towline_lost set at = '-infinity' where syncset = any($3::text[]::uuid[]) \
               and (cluster, syncset) not in (select * from unnest($1::text[]::uuid[], $2::text[]::uuid[]) \
                 union all select * from unnest($4::text[]::uuid[], $5::text[]::uuid[]))) \
             insert into towline_lost as l (cluster, syncset, at) \
               select cluster, syncset, case when approved then '-infinity' else now() end \
               from unnest($4::text[]::uuid[], $5::text[]::uuid[], $6::boolean[]) n(cluster, syncset, approved) \
               on conflict (cluster, syncset) do update set at = excluded.at, back = false, objects = null \
                 where l.back or l.objects is not null";
        const RENAMED: &str = "insert into towline_lost (cluster, syncset, at, back, objects) \
             select r.cluster, r.syncset, case r.at when 'now' then now() when 'approved' then '-infinity' else coalesce( \
               (select l.at from towline_lost l where l.cluster = r.cluster and l.syncset = r.syncset), now()) end, r.back, r.objects \
             from jsonb_to_recordset($1) r(cluster uuid, syncset uuid, at text, back boolean, objects jsonb) \
             on conflict (cluster, syncset) do update set at = excluded.at, back = excluded.back, objects = excluded.objects";
        const BACK: &str = "update towline_lost set back = true where ctid = any(array(select \
               (select l.ctid from towline_lost l where l.cluster = b.cluster and l.syncset = b.syncset) \
               from unnest($1::text[]::uuid[], $2::text[]::uuid[]) b(cluster, syncset)))";
        // What is held does not get old.
        const KEPT: &str = "update towline_lost l set at = now() from towline_guard g where l.syncset = any($1::text[]::uuid[]) \
               and g.syncset = l.syncset and l.at > g.since - interval '10 min'";
        let Self { new, again, back, renamed, approved, kept } = self;
        let pairs = |pairs: &[(Uuid, Uuid)]| {
            let (clusters, syncsets): (Vec<Uuid>, Vec<Uuid>) = pairs.iter().copied().unzip();
            (texts(&clusters), texts(&syncsets))
        };
        if !kept.is_empty() {
            transaction.execute("write_kept", KEPT, &[(&texts(kept) as _, Type::TEXT_ARRAY)]).await?;
        }
        if !back.is_empty() {
            let (clusters, syncsets) = pairs(back);
            let params = [(&clusters as _, Type::TEXT_ARRAY), (&syncsets as _, Type::TEXT_ARRAY)];
            transaction.execute("write_back", BACK, &params).await?;
        }
        if !renamed.is_empty() {
            let renamed = Json(renamed);
            transaction.execute("write_renamed", RENAMED, &[(&renamed as _, Type::JSONB)]).await?;
        }
        if new.is_empty() && again.is_empty() && approved.is_empty() {
            return Ok(());
        }
        let ((clusters, syncsets), approved) = (pairs(again), texts(approved));
        let new_clusters: Vec<String> = new.iter().map(|(cluster, ..)| cluster.to_string()).collect();
        let new_syncsets: Vec<String> = new.iter().map(|(_, syncset, _)| syncset.to_string()).collect();
        let are_approved: Vec<bool> = new.iter().map(|(.., is_approved)| *is_approved).collect();
        let params = [
            (&clusters as _, Type::TEXT_ARRAY),
            (&syncsets as _, Type::TEXT_ARRAY),
            (&approved as _, Type::TEXT_ARRAY),
            (&new_clusters as _, Type::TEXT_ARRAY),
            (&new_syncsets as _, Type::TEXT_ARRAY),
            (&are_approved as _, Type::BOOL_ARRAY),
        ];
        transaction.execute("write_lost", TEXT, &params).await?;
        Ok(())
    }
}

/// Writes the rows of syncsets that were judged as a whole.
pub(super) async fn write(transaction: &mut Transaction<'static>, version: i64, rows: &[Row]) -> Result<(), db::Error> {
    const TEXT: &str = "insert into towline_guard as g \
         (syncset, judged, gone, held, clusters, since, tracks, cause, kind, namespace, name, always, approved, objects, held_objects, dropped) \
         select r.syncset, $2, r.gone, r.held, r.clusters, now(), r.tracks, r.cause, r.kind, r.namespace, r.name, r.always, r.approved, \
           r.objects, r.held_objects, r.dropped from jsonb_populate_recordset(null::towline_guard, $1) r order by r.syncset \
         on conflict (syncset) do update set judged = excluded.judged, gone = excluded.gone, held = excluded.held, \
           clusters = excluded.clusters, tracks = excluded.tracks, cause = excluded.cause, kind = excluded.kind, \
           namespace = excluded.namespace, name = excluded.name, always = excluded.always, approved = excluded.approved, \
           objects = excluded.objects, held_objects = excluded.held_objects, dropped = excluded.dropped, \
           since = case when g.held = excluded.held and g.gone = excluded.gone then g.since else now() end";
    let rows = Json(rows);
    transaction.execute("write_guards", TEXT, &[(&rows as _, Type::JSONB), (&version as _, Type::INT8)]).await?;
    Ok(())
}
