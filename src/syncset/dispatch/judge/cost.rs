//! What judging costs, and how it is split into transactions that each end in time.
//!
//! The unit is a look into an index for one cluster of a syncset: up to 0.1 ms on two busy cores. A unit of a document, 256 bytes or a
//! resource, bounds what is read of it into memory as well. Units are estimated from indexes and documents, but for those of decisions
//! before the dispatcher's lock is taken. Passes that store something meanwhile are few.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::renamed::names_by_labels;
use super::syncsets::{resources, unread};
use super::{count, texts};
use crate::db::{Database, Row, Transaction, Type, column};
use crate::syncset::dispatch::docket::{Docket, Stretch};
use crate::syncset::dispatch::error::DispatchError;
use crate::syncset::dispatch::ids;
use crate::syncset::dispatch::tracked::deletable;

/// Most units of one transaction: 2 s if every unit is as slow as it gets, less than a renewal of the claim waits for its lock. What
/// can't be split may have more.
pub(in crate::syncset::dispatch) const UNITS: usize = 20_000;
/// Most syncsets and clusters of one transaction, however cheap they are.
pub(in crate::syncset::dispatch) const MOST: usize = 2_000;

/// Whether it is known which clusters got other labels since they were judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::syncset::dispatch) enum Labels {
    /// Their changes are on the docket, now or later.
    Follow,
    /// They may be among what is missing.
    Unknown,
}

/// Something to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matter {
    /// Clusters of a syncset whose objects may have other names.
    Compared(Stretch),
    /// A syncset as a whole.
    Syncset(Uuid),
    /// A cluster that got other labels.
    Relabelled(Uuid),
}

/// What is judged or decided in one transaction.
#[derive(Debug, Default)]
pub(in crate::syncset::dispatch) struct Page<T> {
    /// What it is.
    pub(in crate::syncset::dispatch) of: T,
    /// What it costs.
    pub(in crate::syncset::dispatch) units: usize,
}

impl<T> Page<T> {
    /// Whether both fit into one transaction.
    pub(in crate::syncset::dispatch) fn fits_with<U>(&self, other: &Page<U>) -> bool {
        self.units.saturating_add(other.units) <= UNITS
    }
}

/// What is on the docket, in pages; there is always one. Syncsets come last, and count what was noted of clusters.
pub(in crate::syncset::dispatch) async fn pages(
    database: &Database,
    docket: &Docket,
    labels: Labels,
) -> Result<Vec<Page<Docket>>, DispatchError> {
    let mut matters = compared(database, &docket.syncsets, labels).await?;
    matters.extend(relabelled(database, &docket.relabelled).await?);
    matters.extend(syncsets(database, &docket.syncsets).await?);
    let dockets = packed(matters).into_iter();
    let mut pages: Vec<Page<Docket>> = dockets.map(|Page { of, units }| Page { of: docket_of(&of), units }).collect();
    if pages.is_empty() {
        pages.push(Page::default());
    }
    Ok(pages)
}

/// The syncsets that name objects by labels, if changes of labels may be missing, or were not judged while the syncset could not be read;
/// and those that were found to lose objects that got other names, since an edit may have taken that back. Of a cluster the rows of its
/// objects are read, four to a unit, as many as the syncset names.
async fn compared(
    database: &Database,
    syncsets: &BTreeSet<Uuid>,
    labels: Labels,
) -> Result<Vec<(Matter, usize)>, DispatchError> {
    const QUERY: &str = "weigh_names";
    let text = format!(
        "select i.id::text, n.is_full, r.count, 1 + coalesce(d.size, 0) / 256 from unnest($1::text[]::uuid[]) i(id) \
           left join towline_guard g on g.syncset = i.id \
           left join lateral (select length({resources}::text) as size from syncsets s where s.kind = 'syncsets' and s.id = i.id and {named} \
             union all select length({resources}::text) from selectorsyncsets s where s.kind = 'selectorsyncsets' and s.id = i.id and {named} \
             limit 1) d on true \
           cross join lateral (select d.size is not null and ($2 or (g.held and g.cause = 'unreadable')) as is_full, \
             exists (select from towline_lost l where l.syncset = i.id and l.objects is not null) as is_noted) n \
           cross join lateral (select count(*) from (select from towline_result r where r.syncset = i.id limit {UNITS}) r) r \
         where n.is_full or n.is_noted order by i.id",
        resources = resources("s.data"),
        named = names_by_labels("s.data"),
    );
    if syncsets.is_empty() {
        return Ok(Vec::new());
    }
    let is_unknown = labels == Labels::Unknown;
    let params = [(&texts(syncsets) as _, Type::TEXT_ARRAY), (&is_unknown as _, Type::BOOL)];
    let mut matters = Vec::new();
    let rows = database.all(QUERY, &text, &params).await?;
    for (syncset, row) in ids(QUERY, &rows)?.into_iter().zip(&rows) {
        let is_full: Option<bool> = column(QUERY, row, 1)?;
        let stretch = Stretch { syncset, after: None, until: None, only_noted: is_full != Some(true) };
        let (clusters, each) = (count(column(QUERY, row, 2)?), count(i64::from(column::<i32>(QUERY, row, 3)?)));
        let units = clusters.saturating_mul(each).saturating_add(1);
        if units <= UNITS {
            matters.push((Matter::Compared(stretch), units));
            continue;
        }
        let text = format!("select t.cluster::text from ({}) t", deletable("$1::text::uuid"));
        let rows = database.all("names_tracked", &text, &[(&syncset.to_string() as _, Type::TEXT)]).await?;
        let tracked = ids("names_tracked", &rows)?;
        matters.extend(split(stretch, &tracked, each).into_iter().map(|part| (Matter::Compared(part), UNITS)));
    }
    Ok(matters)
}

/// Parts of a stretch that each take a transaction: of a cluster so many units. The last one has no end.
fn split(stretch: Stretch, clusters: &[Uuid], each: usize) -> Vec<Stretch> {
    let most = (UNITS / each.max(1)).max(1);
    let (mut parts, mut after) = (Vec::new(), stretch.after);
    for until in clusters.chunks(most).filter_map(|part| part.last().copied()) {
        parts.push(Stretch { after, until: Some(until), ..stretch });
        after = Some(until);
    }
    parts.push(Stretch { after, ..stretch });
    parts
}

/// Each syncset looks at the clusters where it tracks objects, of which it has a result, or which it has lost; and it reads its document
/// and those that were not judged, as they are without compression, of which the newest stands for all.
async fn syncsets(database: &Database, syncsets: &BTreeSet<Uuid>) -> Result<Vec<(Matter, usize)>, DispatchError> {
    const QUERY: &str = "weigh_syncsets";
    let text = format!(
        "select i.id::text, 1 + r.count + l.count + coalesce(d.units, 0) * greatest(1, {unread}) from unnest($1::text[]::uuid[]) i(id) \
           cross join (select cursor from towline_claim where name = 'dispatcher') k \
           cross join lateral (select count(*) from (select from towline_result r where r.syncset = i.id limit {UNITS}) r) r \
           cross join lateral (select count(*) from (select from towline_lost l where l.syncset = i.id limit {UNITS}) l) l \
           left join lateral (select (octet_length(((d.data->'spec') - '{{resources,patches}}'::text[])::text) \
               + octet_length({resources}::text)) / 256 \
               + case when jsonb_typeof(d.data #> '{{spec,resources}}') = 'array' then jsonb_array_length(d.data #> '{{spec,resources}}') \
                 else 0 end as units from towline_documents d \
             where d.kind in ('syncsets', 'selectorsyncsets') and d.id = i.id limit 1) d on true order by i.id",
        unread = unread("k.cursor"),
        resources = resources("d.data"),
    );
    if syncsets.is_empty() {
        return Ok(Vec::new());
    }
    let params = [(&texts(syncsets) as _, Type::TEXT_ARRAY)];
    weighed(QUERY, &database.all(QUERY, &text, &params).await?, Matter::Syncset)
}

/// Of a cluster all rows of its objects are read, four to a unit.
async fn relabelled(database: &Database, clusters: &BTreeSet<Uuid>) -> Result<Vec<(Matter, usize)>, DispatchError> {
    const QUERY: &str = "weigh_clusters";
    let text = format!(
        "select i.id::text, 1 + (a.count + l.count) / 4 from unnest($1::text[]::uuid[]) i(id) \
           cross join lateral (select count(*) from (select from towline_applied a where a.cluster = i.id limit 4 * {UNITS}) a) a \
           cross join lateral (select count(*) from (select from towline_lost l where l.cluster = i.id limit 4 * {UNITS}) l) l order by i.id"
    );
    if clusters.is_empty() {
        return Ok(Vec::new());
    }
    let params = [(&texts(clusters) as _, Type::TEXT_ARRAY)];
    weighed(QUERY, &database.all(QUERY, &text, &params).await?, Matter::Relabelled)
}

/// Syncsets that have lost clusters, or got some back, and may be held or released because of that, in pages. On how many clusters they track
/// objects matters as far as that is ten times as many as they have lost.
pub(in crate::syncset::dispatch) async fn decisions(
    transaction: &mut Transaction<'static>,
    undecided: &BTreeSet<Uuid>,
) -> Result<Vec<Page<BTreeSet<Uuid>>>, DispatchError> {
    const QUERY: &str = "weigh_decisions";
    let text = format!(
        "select i.id::text, 1 + l.units + coalesce(r.count, 0) from unnest($1::text[]::uuid[]) i(id) \
           join towline_guard g on g.syncset = i.id and not g.gone and not g.always and (not g.held or g.cause in ('unmatched', 'renamed')) \
           cross join lateral (select count(*), coalesce(sum(2 + coalesce(jsonb_array_length(l.objects), 0)), 0)::bigint as units \
             from (select l.objects from towline_lost l where l.syncset = i.id limit {UNITS}) l) l \
           left join lateral (select count(*) from (select from towline_result r where r.syncset = i.id \
             limit least(10 * (l.count + 1), {UNITS})) r) r on l.count > 0 or g.held order by i.id"
    );
    if undecided.is_empty() {
        return Ok(Vec::new());
    }
    let params = [(&texts(undecided) as _, Type::TEXT_ARRAY)];
    let weighed = weighed(QUERY, &transaction.all(QUERY, &text, &params).await?, |id| id)?;
    Ok(packed(weighed).into_iter().map(|Page { of, units }| Page { of: of.into_iter().collect(), units }).collect())
}

fn weighed<T>(query: &'static str, rows: &[Row], of: impl Fn(Uuid) -> T) -> Result<Vec<(T, usize)>, DispatchError> {
    let pair = |(id, row): (Uuid, &Row)| -> Result<(T, usize), DispatchError> {
        let units: i64 = column(query, row, 1)?;
        Ok((of(id), count(units)))
    };
    ids(query, rows)?.into_iter().zip(rows).map(pair).collect()
}

fn docket_of(page: &[Matter]) -> Docket {
    let mut docket = Docket::default();
    for matter in page {
        match matter {
            Matter::Compared(stretch) => docket.compared.insert(*stretch),
            Matter::Syncset(id) => docket.syncsets.insert(*id),
            Matter::Relabelled(id) => docket.relabelled.insert(*id),
        };
    }
    docket
}

/// Pages of at most so many units, in the given order. What has more of them is alone.
fn packed<T>(weighed: Vec<(T, usize)>) -> Vec<Page<Vec<T>>> {
    let mut pages = Vec::<Page<Vec<T>>>::new();
    for (matter, units) in weighed {
        match pages.last_mut() {
            Some(page) if page.units.saturating_add(units) <= UNITS && page.of.len() < MOST => {
                page.of.push(matter);
                page.units += units;
            }
            _ => pages.push(Page { of: vec![matter], units }),
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_ends_where_the_next_one_would_be_too_much() {
        let sizes = |units: &[usize]| -> Vec<usize> {
            packed(units.iter().map(|units| ((), *units)).collect()).iter().map(|page| page.of.len()).collect()
        };
        assert_eq!(sizes(&[UNITS / 2, UNITS / 2, 1, UNITS, UNITS * 3, 1]), [2, 1, 1, 1, 1]);
        assert_eq!(sizes(&vec![1; 2 * MOST + 1]), [MOST, MOST, 1]);
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[usize::MAX, usize::MAX]), [1, 1]);
    }

    #[test]
    fn a_page_of_both_keeps_syncsets_and_clusters_apart() {
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let docket = docket_of(&[Matter::Syncset(one), Matter::Relabelled(other)]);
        assert_eq!(docket, Docket { syncsets: [one].into(), relabelled: [other].into(), ..Docket::default() });
    }

    #[test]
    fn the_clusters_of_a_syncset_are_split_without_a_gap() {
        let [one, two, three] = [1, 2, 3].map(Uuid::from_u128);
        let stretch = Stretch { syncset: Uuid::from_u128(9), after: None, until: None, only_noted: true };
        let part = |after, until| Stretch { after, until, ..stretch };
        let clusters = [one, two, three];
        assert_eq!(
            split(stretch, &clusters, UNITS / 2),
            [part(None, Some(two)), part(Some(two), Some(three)), part(Some(three), None)]
        );
        assert_eq!(split(stretch, &clusters, UNITS * 2)[0], part(None, Some(one)), "each by itself");
        assert_eq!(split(stretch, &[], 1), [stretch]);
    }

    proptest! {
        /// Nothing is left out, and no page is larger than it may be.
        #[test]
        fn all_is_judged_once_in_pages_of_bounded_cost(units in proptest::collection::vec(0..UNITS * 2, 0..60)) {
            let pages = packed(units.iter().copied().enumerate().collect());
            let all: Vec<usize> = pages.iter().flat_map(|page| &page.of).copied().collect();
            prop_assert_eq!(all, (0..units.len()).collect::<Vec<_>>());
            for page in &pages {
                let sum: usize = page.of.iter().map(|at| units[*at]).sum();
                prop_assert!(sum == page.units && (sum <= UNITS || page.of.len() == 1));
            }
            for pair in pages.windows(2) {
                let sum: usize = pair[0].of.iter().chain(&pair[1].of[..1]).map(|at| units[*at]).sum();
                prop_assert!(sum > UNITS, "two pages that fit into one");
            }
        }
    }
}
