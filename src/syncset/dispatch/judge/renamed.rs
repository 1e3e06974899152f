//! Clusters whose labels give objects other names: those under the old names are deleted although the syncset matches the cluster.
//!
//! Few syncsets have such names, and an index finds them. Each is read once for a page, and what it tracks is compared one cluster after
//! the other.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::guards::Lost;
use super::syncsets::{Resource, resources};
use super::{since, texts};
use crate::db::{Row, Transaction, Type, column};
use crate::syncset::dispatch::docket::Stretch;
use crate::syncset::dispatch::error::DispatchError;
use crate::syncset::dispatch::tracked::deletable_within;
use crate::syncset::rules::guard::Objects;
use crate::syncset::rules::matching::Audience;
use crate::syncset::rules::name::{SyncSetKind, SyncSetName};
use crate::syncset::rules::renaming::{Finding, Naming, Noted};

/// A syncset that may name objects by labels.
pub(super) struct Namer {
    audience: Audience,
    naming: Naming,
    is_approved: bool,
}

/// Whether a document names objects by labels and deletes what it no longer wants, as an expression of its data: the one of the indexes.
pub(super) fn names_by_labels(data: &str) -> String {
    format!(
        "({data} #> '{{spec,enableResourceTemplates}}' = 'true' and {data} #> '{{spec,resourceApplyMode}}' = '\"Sync\"' \
           and jsonb_path_exists({data}, '$.spec.resources[*].metadata ? (@.name like_regex \"{{{{\" flag \"q\" \
             || @.namespace like_regex \"{{{{\" flag \"q\")'))"
    )
}

impl Namer {
    /// None if it can't be read which clusters it is for: then nothing is deleted.
    pub(super) fn read(name: &SyncSetName, spec: &str, resources: Option<&str>, is_approved: bool) -> Option<Self> {
        let spec = serde_json::from_str(spec).unwrap_or_default();
        let resources: Option<Vec<Resource>> = json(resources);
        let audience = Audience::of(name, &spec).ok()?;
        Some(Self { audience, naming: Naming::read(name, &spec, resources.as_deref()), is_approved })
    }
}

/// Compares what these syncsets track on these clusters, and notes what they lose. Returns the syncsets of which something is noted.
pub(super) async fn compare_pairs(
    transaction: &mut Transaction<'static>,
    namers: &BTreeMap<Uuid, Namer>,
    pairs: &[(Uuid, Uuid)],
    lost: &mut Lost,
) -> Result<BTreeSet<Uuid>, DispatchError> {
    const QUERY: &str = "judge_names";
    const PAIRS: &str =
        "select id, cluster, false as noted from unnest($1::text[]::uuid[], $2::text[]::uuid[]) p(id, cluster)";
    if pairs.is_empty() {
        return Ok(BTreeSet::new());
    }
    let (syncsets, clusters): (Vec<Uuid>, Vec<Uuid>) = pairs.iter().copied().unzip();
    let (syncsets, clusters) = (texts(&syncsets), texts(&clusters));
    let params = [(&syncsets as _, Type::TEXT_ARRAY), (&clusters as _, Type::TEXT_ARRAY)];
    let (text, mut touched) = (statement(PAIRS), BTreeSet::new());
    let mut rows = transaction.rows(QUERY, &text, &params).await?;
    while let Some(row) = rows.next().await? {
        touched.extend(compare(QUERY, &row, namers, lost)?);
    }
    Ok(touched)
}

/// The same for stretches of clusters, of syncsets that are judged as a whole afterwards.
pub(super) async fn compare_stretches(
    transaction: &mut Transaction<'static>,
    stretches: &BTreeSet<Stretch>,
) -> Result<(), DispatchError> {
    const QUERY: &str = "judge_stretches";
    if stretches.is_empty() {
        return Ok(());
    }
    let syncsets: BTreeSet<Uuid> = stretches.iter().map(|stretch| stretch.syncset).collect();
    let (namers, mut lost) = (read(transaction, &syncsets).await?, Lost::default());
    let text = |id: &Uuid| id.to_string();
    let (syncsets, only_noted): (Vec<String>, Vec<bool>) =
        stretches.iter().map(|stretch| (text(&stretch.syncset), stretch.only_noted)).unzip();
    let (after, until): (Vec<Option<String>>, Vec<Option<String>>) =
        stretches.iter().map(|stretch| (stretch.after.as_ref().map(text), stretch.until.as_ref().map(text))).unzip();
    let params = [
        (&syncsets as _, Type::TEXT_ARRAY),
        (&after as _, Type::TEXT_ARRAY),
        (&until as _, Type::TEXT_ARRAY),
        (&only_noted as _, Type::BOOL_ARRAY),
    ];
    let pairs = format!(
        "select i.id, t.cluster, i.noted from unnest($1::text[]::uuid[], $2::text[]::uuid[], $3::text[]::uuid[], $4::boolean[]) \
           i(id, after, until, noted) cross join lateral ({}) t",
        deletable_within("i.id", "i.after", "i.until")
    );
    let text = statement(&pairs);
    let mut rows = transaction.rows(QUERY, &text, &params).await?;
    while let Some(row) = rows.next().await? {
        compare(QUERY, &row, &namers, &mut lost)?;
    }
    drop(rows);
    lost.write(transaction).await?;
    Ok(())
}

/// What is tracked and noted of pairs of syncset and cluster, which this statement returns. Each is looked up, whatever the server
/// believes of the tables.
fn statement(pairs: &str) -> String {
    format!(
        "select p.id::text, p.cluster::text, c.namespace, c.name, c.labels::text, l.objects::text, l.back, coalesce(l.at > {since}, false), \
           a.objects::text, p.noted \
         from ({pairs}) p left join towline_guard g on g.syncset = p.id \
           cross join lateral (select c.namespace, c.name, c.labels from clusters c \
             where c.kind = 'clusters' and c.id = p.cluster and c.deleted_at is null limit 1) c \
           left join lateral (select l.* from towline_lost l where l.cluster = p.cluster and l.syncset = p.id limit 1) l on true \
           cross join lateral (select jsonb_agg(jsonb_build_array(a.api_group, a.kind, a.namespace, a.name)) as objects \
             from towline_applied a where a.syncset = p.id and a.cluster = p.cluster and a.tracked and not a.adopted \
               and (not p.noted or l.objects is not null)) a \
         where not p.noted or l.objects is not null",
        since = since("g"),
    )
}

/// Compares one of them. Returns the syncset if something is noted.
fn compare(
    query: &'static str,
    row: &Row,
    namers: &BTreeMap<Uuid, Namer>,
    lost: &mut Lost,
) -> Result<Option<Uuid>, DispatchError> {
    let text = |index| column::<Option<&str>>(query, row, index);
    let id = |index| -> Result<Option<Uuid>, DispatchError> { Ok(column::<&str>(query, row, index)?.parse().ok()) };
    let (Some(syncset), Some(cluster)) = (id(0)?, id(1)?) else { return Ok(None) };
    let Some(Namer { audience, naming, is_approved }) = namers.get(&syncset) else { return Ok(None) };
    let labels: BTreeMap<String, String> = json(text(4)?).unwrap_or_default();
    // What is deleted because a cluster is matched no more is judged elsewhere.
    if !audience.includes(column(query, row, 2)?, column(query, row, 3)?, &labels) {
        return Ok(None);
    }
    let was_back = column::<Option<bool>>(query, row, 6)?;
    let noted = match (was_back, json::<Objects>(text(5)?)) {
        (None, _) => None,
        (Some(back), None) => Some(Noted::Unmatched { back }),
        (Some(back), Some(objects)) => Some(Noted::Renamed { objects, back, counts: column(query, row, 7)? }),
    };
    let tracked: Objects = json(text(8)?).unwrap_or_default();
    let finding = naming.judge(&labels, &tracked, noted.as_ref(), column(query, row, 9)?);
    // A turn that was killed may have noted it.
    let is_noted = noted.is_some() || finding != Finding::Unchanged;
    lost.find(cluster, syncset, finding, was_back.unwrap_or_default(), *is_approved);
    Ok(Some(syncset).filter(|_| is_noted))
}

/// The documents of syncsets.
async fn read(
    transaction: &mut Transaction<'static>,
    syncsets: &BTreeSet<Uuid>,
) -> Result<BTreeMap<Uuid, Namer>, DispatchError> {
    const QUERY: &str = "read_names";
    let text = format!(
        "select i.id::text, d.kind, d.namespace, d.name, ((d.data->'spec') - '{{resources,patches}}'::text[])::text, {resources}::text, \
           coalesce(g.always, false) \
         from unnest($1::text[]::uuid[]) i(id) cross join lateral (select d.* from towline_documents d \
           where d.kind in ('syncsets', 'selectorsyncsets') and d.id = i.id and d.deleted_at is null limit 1) d \
         left join towline_guard g on g.syncset = i.id",
        resources = resources("d.data"),
    );
    let mut namers = BTreeMap::new();
    for row in &transaction.all(QUERY, &text, &[(&texts(syncsets) as _, Type::TEXT_ARRAY)]).await? {
        let text = |index| column::<Option<&str>>(QUERY, row, index);
        let kind = if column::<&str>(QUERY, row, 1)? == "syncsets" {
            SyncSetKind::SyncSet
        } else {
            SyncSetKind::SelectorSyncSet
        };
        let name = SyncSetName { kind, namespace: column(QUERY, row, 2)?, name: column(QUERY, row, 3)? };
        let namer = Namer::read(&name, text(4)?.unwrap_or_default(), text(5)?, column(QUERY, row, 6)?);
        if let (Ok(id), Some(namer)) = (column::<&str>(QUERY, row, 0)?.parse(), namer) {
            namers.insert(id, namer);
        }
    }
    Ok(namers)
}

/// What the database prints is valid JSON; what is not of this form is not there.
fn json<T: DeserializeOwned>(text: Option<&str>) -> Option<T> {
    text.and_then(|text| serde_json::from_str(text).ok())
}
