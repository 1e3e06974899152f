//! Clusters that got other labels, so that syncsets match them no more, or again, or that objects get other names. One after the other they
//! may lose their objects, until a syncset has lost too many of them within ten minutes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use uuid::Uuid;

use super::guards::Lost;
use super::renamed::{Namer, compare_pairs, names_by_labels};
use super::syncsets::resources;
use super::{Court, Verdicts, count, since, texts};
use crate::db::{Json, Transaction, Type, column};
use crate::syncset::dispatch::error::DispatchError;
use crate::syncset::dispatch::held::{HeldSyncset, Released};
use crate::syncset::dispatch::ids;
use crate::syncset::dispatch::tracked::deletable;
use crate::syncset::rules::guard::{Approval, Case, Cause, Change, precious_row};
use crate::syncset::rules::matching::Audience;
use crate::syncset::rules::name::{SyncSetKind, SyncSetName};
use crate::syncset::store::is_left;

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
    /// Those that were found to match it and to lose objects that get other names.
    renamed_by: BTreeSet<Uuid>,
    /// Those of them of which that counts, and is not carried out.
    renames_left: BTreeSet<Uuid>,
}

/// What syncsets lose on clusters that got other labels is found out of this.
#[derive(Default)]
struct Labelling {
    /// The selectors that are not judged as a whole anyway.
    selectors: BTreeMap<Uuid, Selector>,
    /// The syncsets that name objects by labels.
    namers: BTreeMap<Uuid, Namer>,
    clusters: Vec<Relabelled>,
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
        let Labelling { selectors, namers, clusters } = read(transaction, relabelled, whole).await?;
        let (mut lost, mut touched, mut pairs) = (Lost::default(), BTreeSet::new(), Vec::new());
        for cluster in &clusters {
            let named = cluster.tracking.iter().filter(|id| namers.contains_key(id));
            pairs.extend(named.map(|id| (*id, cluster.id)));
            for id in cluster.tracking.iter().chain(cluster.lost_by.difference(&cluster.tracking)) {
                let Some(Selector { audience: Some(audience), is_approved }) = selectors.get(id) else { continue };
                let (is_tracked, is_renamed) = (cluster.tracking.contains(id), cluster.renamed_by.contains(id));
                let was_lost = cluster.lost_by.contains(id) && !cluster.back_at.contains(id) && !is_renamed;
                let is_lost = !audience.includes(&cluster.namespace, &cluster.name, &cluster.labels);
                match (was_lost, is_lost) {
                    // Nothing is left to delete.
                    (false, true) if is_renamed && !is_tracked => continue,
                    // It counts once, and what has to come back is what there was before it got other names.
                    (false, true) if cluster.renames_left.contains(id) => {}
                    (false, true) => lost.lose(cluster.id, *id, *is_approved),
                    (false, false) => continue,
                    // It is compared, since it may lose something all the same.
                    (true, false) if is_tracked && namers.contains_key(id) => continue,
                    (true, false) if is_tracked => lost.regain(cluster.id, *id),
                    (true, false) => lost.come_back(cluster.id, *id),
                    (true, true) => {}
                }
                touched.insert(*id);
            }
        }
        touched.append(&mut compare_pairs(transaction, &namers, &pairs, &mut lost).await?);
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
) -> Result<Labelling, DispatchError> {
    const QUERY: &str = "judge_clusters";
    // Each cluster is looked up, whatever the server believes of the tables: a join would read all rows of all clusters.
    let text = format!(
        "with changed as materialized (select c.id, c.namespace, c.name, c.labels, t.tracking, l.* from clusters c \
           cross join lateral (select array_agg(distinct a.syncset) as tracking from towline_applied a \
             where a.cluster = c.id and a.tracked and not a.adopted) t \
           cross join lateral (select array_agg(l.syncset) as lost, array_agg(l.syncset) filter (where l.back) as back, \
               array_agg(l.syncset) filter (where l.objects is not null) as renamed, \
               array_agg(l.syncset) filter (where l.objects is not null and not l.back and l.at > {since} and ({is_left})) as renames_left \
             from towline_lost l left join towline_guard g on g.syncset = l.syncset where l.cluster = c.id) l \
           where c.kind = 'clusters' and c.deleted_at is null and c.id = any($1::text[]::uuid[])) \
         select null, s.id::text, s.name, ((s.data->'spec') - '{{resources,patches}}'::text[])::text, null::text[], null::text[], \
             coalesce(g.always, false), null::text[], null::text[], '', null, null::text[] \
           from selectorsyncsets s left join towline_guard g on g.syncset = s.id \
           where s.kind = 'selectorsyncsets' and s.deleted_at is null and s.id <> all ($2::text[]::uuid[]) \
             and s.id in (select unnest(tracking) from changed union select unnest(lost) from changed) \
         union all select null, s.id::text, s.name, ((s.data->'spec') - '{{resources,patches}}'::text[])::text, null, null, \
             coalesce(g.always, false), null, null, s.namespace, {resources}::text, null \
           from (select distinct unnest(tracking) from changed) t(id) cross join lateral ( \
               select * from syncsets s where s.kind = 'syncsets' and s.id = t.id and s.deleted_at is null and {named} \
               union all select * from selectorsyncsets s where s.kind = 'selectorsyncsets' and s.id = t.id and s.deleted_at is null and {named} \
               limit 1) s \
             left join towline_guard g on g.syncset = s.id \
         union all select namespace, id::text, name, labels::text, coalesce(tracking::text[], '{{}}'), coalesce(lost::text[], '{{}}'), false, \
             coalesce(back::text[], '{{}}'), coalesce(renamed::text[], '{{}}'), '', null, coalesce(renames_left::text[], '{{}}') \
           from changed where tracking is not null or lost is not null",
        resources = resources("s.data"),
        named = names_by_labels("s.data"),
        since = since("g"),
        is_left = is_left("l"),
    );
    let params = [(&texts(relabelled) as _, Type::TEXT_ARRAY), (&texts(whole) as _, Type::TEXT_ARRAY)];
    let mut labelling = Labelling::default();
    for row in &transaction.all(QUERY, &text, &params).await? {
        let (id, text): (&str, &str) = (column(QUERY, row, 1)?, column(QUERY, row, 3)?);
        let (Ok(id), name) = (id.parse(), column::<String>(QUERY, row, 2)?) else { continue };
        let Some(namespace) = column::<Option<String>>(QUERY, row, 0)? else {
            let (namespace, is_approved) = (column::<String>(QUERY, row, 9)?, column(QUERY, row, 6)?);
            let is_selector = namespace.is_empty();
            let kind = if is_selector { SyncSetKind::SelectorSyncSet } else { SyncSetKind::SyncSet };
            let name = SyncSetName { kind, namespace, name };
            if let Some(resources) = column::<Option<&str>>(QUERY, row, 10)? {
                labelling
                    .namers
                    .extend(Namer::read(&name, text, Some(resources), is_approved).map(|namer| (id, namer)));
            } else if is_selector {
                let spec: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
                labelling.selectors.insert(id, Selector { audience: Audience::of(&name, &spec).ok(), is_approved });
            }
            continue;
        };
        let ids = |index| -> Result<BTreeSet<Uuid>, DispatchError> {
            let texts: Vec<&str> = column(QUERY, row, index)?;
            Ok(texts.iter().filter_map(|text| text.parse().ok()).collect())
        };
        labelling.clusters.push(Relabelled {
            id,
            namespace,
            name,
            labels: serde_json::from_str(text).unwrap_or_default(),
            tracking: ids(4)?,
            lost_by: ids(5)?,
            back_at: ids(7)?,
            renamed_by: ids(8)?,
            renames_left: ids(11)?,
        });
    }
    Ok(labelling)
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
        "select i.id::text, g.kind, g.namespace, g.name, g.held, l.lost, coalesce(t.tracks, 0), l.executed, l.renamed, g.cause, \
           exists (select from towline_lost l join towline_applied a on a.cluster = l.cluster and a.syncset = i.id and a.tracked and not a.adopted \
               and {precious} where l.syncset = i.id and l.at > {since} and not l.back \
             and (l.objects is null or l.objects @> jsonb_build_array(jsonb_build_array(a.api_group, a.kind, a.namespace, a.name)))) \
         from unnest($1::text[]::uuid[]) i(id) join towline_guard g on g.syncset = i.id \
           cross join lateral (select count(*) as lost, count(*) filter (where l.is_deleted) as deleted, \
               count(*) filter (where l.is_deleted or l.back or not l.is_left) as executed, count(*) filter (where l.is_renamed) as renamed \
             from (select l.back, l.objects is not null as is_renamed, l.objects is null or ({is_left}) as is_left, not exists (select from towline_applied a \
                 where a.syncset = i.id and a.tracked and not a.adopted and a.cluster = l.cluster) as is_deleted \
               from towline_lost l where l.syncset = i.id and l.at > {since}) l) l \
           cross join lateral (select case when g.held and l.lost > l.executed and l.lost >= g.clusters then g.tracks \
             when l.lost > 0 or g.held then l.deleted + (select count(*) from ({deletable} limit 10 * (l.lost + 1)) x) end as tracks) t \
         where not g.gone and not g.always and (not g.held or g.cause in ('unmatched', 'renamed')) order by i.id",
        is_left = is_left("l"),
        since = since("g"),
        precious = precious_row("a"),
        deletable = deletable("i.id"),
    );
    if syncsets.is_empty() {
        return Ok(Verdicts::default());
    }
    let rows = transaction.all(QUERY, &text, &[(&texts(syncsets) as _, Type::TEXT_ARRAY)]).await?;
    let known = ids(QUERY, &rows)?;
    let (mut verdicts, mut sentences) = (Verdicts::default(), Vec::new());
    for (row, id) in rows.iter().zip(known) {
        let was_held: bool = column(QUERY, row, 4)?;
        let facts = Case {
            held: column::<Option<&str>>(QUERY, row, 9)?.and_then(Cause::of_name).filter(|_| was_held),
            change: Change::Living { drops: false },
            approval: Approval::None,
            lost: count(column(QUERY, row, 5)?),
            tracks: count(column(QUERY, row, 6)?),
            executed: count(column(QUERY, row, 7)?),
            renamed: count(column(QUERY, row, 8)?),
            precious: column(QUERY, row, 10)?,
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
            let (kind, namespace, name) = (column(QUERY, row, 1)?, column(QUERY, row, 2)?, column(QUERY, row, 3)?);
            verdicts.released.push(Released::new(id, kind, namespace, name));
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
