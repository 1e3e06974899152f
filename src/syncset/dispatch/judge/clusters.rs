//! Clusters that got other labels, so that syncsets match them no more, or again. One after the other they may lose their objects, until
//! a syncset has lost too many of them within ten minutes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use uuid::Uuid;

use super::guards::Lost;
use super::{Court, Verdicts, always, count, since, texts};
use crate::db::{Json, Transaction, Type, column};
use crate::syncset::dispatch::error::DispatchError;
use crate::syncset::dispatch::held::HeldSyncset;
use crate::syncset::dispatch::ids;
use crate::syncset::dispatch::tracked::deletable;
use crate::syncset::rules::guard::{Approval, Case, Cause, Change};
use crate::syncset::rules::matching::Audience;
use crate::syncset::rules::name::{SyncSetKind, SyncSetName};

/// A selector that tracks objects on a cluster that got other labels.
struct Selector {
    /// None if it can't be read: then nothing is deleted because of it.
    audience: Option<Audience>,
    is_approved: bool,
}

/// A cluster that got other labels.
struct Relabelled {
    id: Uuid,
    namespace: String,
    name: String,
    labels: BTreeMap<String, String>,
    /// The syncsets that track objects on it.
    tracking: BTreeSet<Uuid>,
    /// The syncsets that were found to match it no more.
    lost_by: BTreeSet<Uuid>,
    /// Those that matched it again after their objects had been deleted.
    back_at: BTreeSet<Uuid>,
}

/// How a syncset is held from now on.
#[derive(Debug, Serialize)]
struct Sentence {
    syncset: Uuid,
    held: bool,
    cause: Option<&'static str>,
    clusters: usize,
    tracks: usize,
}

impl Court {
    /// Notes which syncsets have lost clusters that got other labels, or got them back; `whole` are syncsets that are judged anyway.
    pub(super) async fn clusters(
        self,
        transaction: &mut Transaction<'static>,
        relabelled: &[Uuid],
        whole: &[Uuid],
    ) -> Result<Verdicts, DispatchError> {
        if relabelled.is_empty() {
            return Ok(Verdicts::default());
        }
        let (selectors, clusters) = read(transaction, relabelled, whole).await?;
        let (mut lost, mut touched) = (Lost::default(), BTreeSet::new());
        for cluster in &clusters {
            for id in cluster.tracking.iter().chain(cluster.lost_by.difference(&cluster.tracking)) {
                let Some(Selector { audience: Some(audience), is_approved }) = selectors.get(id) else { continue };
                let was_lost = cluster.lost_by.contains(id) && !cluster.back_at.contains(id);
                let is_lost = !audience.includes(&cluster.namespace, &cluster.name, &cluster.labels);
                match (was_lost, is_lost) {
                    (false, false) => continue,
                    (false, true) => lost.lose(cluster.id, *id, *is_approved),
                    (true, false) if cluster.tracking.contains(id) => lost.regain(cluster.id, *id),
                    (true, false) => lost.come_back(cluster.id, *id),
                    (true, true) => {}
                }
                touched.insert(*id);
            }
        }
        if touched.is_empty() {
            return Ok(Verdicts::default());
        }
        lost.write(transaction).await?;
        if !self.is_guarding {
            return Ok(Verdicts::default());
        }
        Ok(Verdicts { undecided: touched, ..Verdicts::default() })
    }
}

async fn read(
    transaction: &mut Transaction<'static>,
    relabelled: &[Uuid],
    whole: &[Uuid],
) -> Result<(BTreeMap<Uuid, Selector>, Vec<Relabelled>), DispatchError> {
    const QUERY: &str = "judge_clusters";
    // Each cluster is looked up, whatever the server believes of the tables: a join would read all rows of all clusters.
    const TEXT: &str = "with changed as materialized (select c.id, c.namespace, c.name, c.labels, t.tracking, l.lost, l.back from clusters c \
           cross join lateral (select array_agg(distinct a.syncset) as tracking from towline_applied a \
             where a.cluster = c.id and a.tracked and not a.adopted) t \
           cross join lateral (select array_agg(l.syncset) as lost, array_agg(l.syncset) filter (where l.back) as back \
             from towline_lost l where l.cluster = c.id) l \
           where c.kind = 'clusters' and c.deleted_at is null and c.id = any($1::text[]::uuid[])) \
         select null, s.id::text, s.name, ((s.data->'spec') - '{resources,patches}'::text[])::text, null::text[], null::text[], \
             coalesce(g.always, false), null::text[] \
           from selectorsyncsets s left join towline_guard g on g.syncset = s.id \
           where s.kind = 'selectorsyncsets' and s.deleted_at is null and s.id <> all ($2::text[]::uuid[]) \
             and s.id in (select unnest(tracking) from changed union select unnest(lost) from changed) \
         union all select namespace, id::text, name, labels::text, coalesce(tracking::text[], '{}'), coalesce(lost::text[], '{}'), false, \
             coalesce(back::text[], '{}') \
           from changed where tracking is not null or lost is not null";
    let params = [(&texts(relabelled) as _, Type::TEXT_ARRAY), (&texts(whole) as _, Type::TEXT_ARRAY)];
    let (mut selectors, mut clusters) = (BTreeMap::new(), Vec::new());
    for row in &transaction.all(QUERY, TEXT, &params).await? {
        let (id, text): (&str, &str) = (column(QUERY, row, 1)?, column(QUERY, row, 3)?);
        let (Ok(id), name) = (id.parse(), column::<String>(QUERY, row, 2)?) else { continue };
        let Some(namespace) = column::<Option<String>>(QUERY, row, 0)? else {
            let name = SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name };
            let spec: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
            let audience = Audience::of(&name, &spec).ok();
            selectors.insert(id, Selector { audience, is_approved: column(QUERY, row, 6)? });
            continue;
        };
        let ids = |index| -> Result<BTreeSet<Uuid>, DispatchError> {
            let texts: Vec<&str> = column(QUERY, row, index)?;
            Ok(texts.iter().filter_map(|text| text.parse().ok()).collect())
        };
        clusters.push(Relabelled {
            id,
            namespace,
            name,
            labels: serde_json::from_str(text).unwrap_or_default(),
            tracking: ids(4)?,
            lost_by: ids(5)?,
            back_at: ids(7)?,
        });
    }
    Ok((selectors, clusters))
}

/// Decides on syncsets that have lost clusters, or got some back. On how many clusters they track objects is counted only as far as it
/// makes a difference: what is held stays so if it has lost more.
pub(in crate::syncset::dispatch) async fn decide(
    transaction: &mut Transaction<'static>,
    syncsets: &BTreeSet<Uuid>,
) -> Result<Verdicts, DispatchError> {
    const QUERY: &str = "judge_lost";
    const WRITE: &str = "update towline_guard g set held = r.held, cause = r.cause, clusters = r.clusters, tracks = r.tracks, \
           since = case when g.held = r.held then g.since else now() end \
         from jsonb_populate_recordset(null::towline_guard, $1) r where g.syncset = r.syncset";
    let text = format!(
        "select i.id::text, g.kind, g.namespace, g.name, g.held, l.lost, coalesce(t.tracks, 0), l.executed \
         from unnest($1::text[]::uuid[]) i(id) join towline_guard g on g.syncset = i.id \
           cross join lateral (select count(*) as lost, count(*) filter (where l.is_deleted) as deleted, \
               count(*) filter (where l.is_deleted or l.back) as executed \
             from (select l.back, not exists (select from towline_applied a \
                 where a.syncset = i.id and a.tracked and not a.adopted and a.cluster = l.cluster) as is_deleted \
               from towline_lost l where l.syncset = i.id and l.at > {since}) l) l \
           cross join lateral (select case when g.held and l.lost > l.executed and l.lost >= g.clusters then g.tracks \
             when l.lost > $2 or g.held then l.deleted + (select count(*) from ({deletable} limit 10 * (l.lost + 1)) x) end as tracks) t \
         where not g.gone and not g.always and (not g.held or g.cause = 'unmatched') order by i.id",
        since = since("g"),
        deletable = deletable("i.id"),
    );
    if syncsets.is_empty() {
        return Ok(Verdicts::default());
    }
    let params = [(&texts(syncsets) as _, Type::TEXT_ARRAY), (&always() as _, Type::INT8)];
    let rows = transaction.all(QUERY, &text, &params).await?;
    let known = ids(QUERY, &rows)?;
    let (mut verdicts, mut sentences) = (Verdicts::default(), Vec::new());
    for (row, id) in rows.iter().zip(known) {
        let was_held: bool = column(QUERY, row, 4)?;
        let facts = Case {
            held: was_held.then_some(Cause::Unmatched),
            change: Change::Living { drops: false },
            approval: Approval::None,
            lost: count(column(QUERY, row, 5)?),
            tracks: count(column(QUERY, row, 6)?),
            executed: count(column(QUERY, row, 7)?),
        };
        let cause = facts.judge();
        if let Some(cause) = cause.filter(|_| !was_held) {
            verdicts.held.push(HeldSyncset {
                id,
                kind: column(QUERY, row, 1)?,
                namespace: column(QUERY, row, 2)?,
                name: column(QUERY, row, 3)?,
                cause,
                clusters: facts.lost,
                tracks: facts.tracks,
                since: None,
            });
        } else if was_held && cause.is_none() {
            verdicts.released.push(id);
        }
        if was_held || cause.is_some() {
            sentences.push(Sentence {
                syncset: id,
                held: cause.is_some(),
                cause: cause.map(Cause::as_str),
                clusters: facts.lost,
                tracks: facts.tracks,
            });
        }
    }
    if !sentences.is_empty() {
        let sentences = Json(sentences);
        transaction.execute("write_sentences", WRITE, &[(&sentences as _, Type::JSONB)]).await?;
    }
    Ok(verdicts)
}
