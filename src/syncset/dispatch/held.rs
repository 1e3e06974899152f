//! What is held, and its approval.

use jiff::Timestamp;
use uuid::Uuid;

use super::error::DispatchError;
use super::ids;
use super::judge::{UNITS, Verdicts, decide};
use super::tracked::tracked;
use crate::db::{Database, Row, Transaction, Type, column};
use crate::documents::WorkQueue;
use crate::syncset::rules::guard::Cause;
use crate::telemetry::HeldObject;

/// A syncset whose deletions are held. It applies what it wants, and deletes nothing anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldSyncset {
    /// Assigned by the hub.
    pub id: Uuid,
    /// `SyncSet` or `SelectorSyncSet`. Of one that was gone when it was first judged, kind and name may be empty.
    pub kind: String,
    /// Namespace; empty for a `SelectorSyncSet`.
    pub namespace: String,
    pub name: String,
    /// Why it is held.
    pub cause: Cause,
    /// On how many clusters it would delete objects.
    pub clusters: usize,
    /// On how many clusters it tracks objects.
    pub tracks: usize,
    /// Since when; none if it begins now.
    pub since: Option<Timestamp>,
}

const COLUMNS: &str =
    "syncset::text, kind, namespace, name, coalesce(cause, ''), clusters, tracks, to_json(since) #>> '{}'";

/// What is held, sorted by kind and name.
pub async fn held(database: &Database) -> Result<Vec<HeldSyncset>, DispatchError> {
    const QUERY: &str = "held_syncsets";
    let text = format!("select {COLUMNS} from towline_guard where held order by kind desc, namespace, name, syncset");
    let rows = database.all(QUERY, &text, &[]).await?;
    rows.iter().map(|row| HeldSyncset::of(QUERY, row)).collect()
}

/// Approves the deletions of a syncset by its name (`namespace/name`, or `name` of a `SelectorSyncSet`) or its id, or of all, and asks for
/// the clusters concerned. Returns what was held. Only what was judged and shown is approved: a later change is judged by itself, and a
/// syncset that was held because of an edit is held again if clusters have lost their labels meanwhile. What can't be read can't be
/// approved. All of them are approved in transactions of bounded cost, as they were judged. If one of these fails, what those before it
/// have approved stays approved.
pub async fn approve(database: &Database, name: Option<&str>) -> Result<Vec<HeldSyncset>, DispatchError> {
    match name {
        Some(name) => approve_page(database, &Approval::Named(name), true).await,
        None => approve_pages(database, true).await,
    }
}

/// The same without the guard: nothing is held afterwards.
pub(super) async fn approve_everything(database: &Database) -> Result<Vec<HeldSyncset>, DispatchError> {
    approve_pages(database, false).await
}

/// What is to be approved.
enum Approval<'a> {
    /// What is held under this name or id.
    Named(&'a str),
    /// These, as long as they are held for the same cause.
    Listed(&'a [HeldSyncset]),
}

async fn approve_pages(database: &Database, is_guarding: bool) -> Result<Vec<HeldSyncset>, DispatchError> {
    let all: Vec<HeldSyncset> =
        held(database).await?.into_iter().filter(|held| held.cause != Cause::Unreadable).collect();
    let mut approved = Vec::new();
    for page in pages(&all) {
        approved.extend(approve_page(database, &Approval::Listed(page), is_guarding).await?);
    }
    Ok(approved)
}

/// So many of them at a time that their clusters are at most [`UNITS`], and at least one.
fn pages(all: &[HeldSyncset]) -> Vec<&[HeldSyncset]> {
    let (mut pages, mut rest) = (Vec::new(), all);
    while !rest.is_empty() {
        let mut units = 0_usize;
        let fitting = rest.iter().take_while(|held| {
            units = units.saturating_add(held.clusters.max(1));
            units <= UNITS
        });
        let (page, others) = rest.split_at(fitting.count().max(1));
        pages.push(page);
        rest = others;
    }
    pages
}

async fn approve_page(
    database: &Database,
    approval: &Approval<'_>,
    is_guarding: bool,
) -> Result<Vec<HeldSyncset>, DispatchError> {
    // Should this process stop before the end, it must not keep rows of the work queue from workers.
    const LOCK: &str = "select set_config('idle_in_transaction_session_timeout', '3s', true) from towline_claim \
         where name = 'dispatcher' \
         and (select origin = towline_origin() from towline_meta) for update";
    let clusters = format!(
        "select distinct t.cluster::text from unnest($1::text[]::uuid[]) i(id) cross join lateral ({}) t",
        tracked("i.id")
    );
    let mut transaction = database.begin("approve", super::turn::WITHIN).await?;
    // The dispatcher judges under a lock of the same row.
    if transaction.execute("lock_judging", LOCK, &[]).await? == 0 {
        return Err(DispatchError::Restoring);
    }
    let approved = approvable(&mut transaction, approval).await?;
    let syncsets: Vec<String> = approved.iter().map(|held| held.id.to_string()).collect();
    release(&mut transaction, &syncsets).await?;
    let mut verdicts = Verdicts::default();
    if is_guarding {
        // What was noted of labels while an edit was held was not shown.
        let of_edits = approved.iter().filter(|held| held.cause == Cause::Dropped).map(|held| held.id).collect();
        verdicts = decide(&mut transaction, &of_edits).await?;
    }
    let clusters = transaction.all("approved_clusters", &clusters, &[(&syncsets as _, Type::TEXT_ARRAY)]).await?;
    WorkQueue::ask_within(&mut transaction, &ids("approved_clusters", &clusters)?, true).await?;
    transaction.commit().await?;
    for held in &approved {
        tracing::info!(
            syncset = %held.label(),
            clusters = held.clusters,
            reason = held.cause.reason(),
            "deletions of a syncset are approved"
        );
    }
    verdicts.announce();
    Ok(approved)
}

/// The syncsets that are to be approved, as far as they are held and can be. A name does not approve several syncsets: one that is gone may
/// have had the name of one that exists.
async fn approvable(
    transaction: &mut Transaction<'static>,
    approval: &Approval<'_>,
) -> Result<Vec<HeldSyncset>, DispatchError> {
    const QUERY: &str = "approvable_syncsets";
    let text = format!(
        "select {COLUMNS} from towline_guard where held and cause is distinct from 'unreadable' \
           and ($1 = case namespace when '' then name else namespace || '/' || name end or $1 = syncset::text \
             or syncset = any($2::text[]::uuid[])) \
         order by kind desc, namespace, name, syncset"
    );
    let (name, listed) = match approval {
        Approval::Named(name) => (Some(*name), &[][..]),
        Approval::Listed(listed) => (None, *listed),
    };
    let ids: Vec<String> = listed.iter().map(|held| held.id.to_string()).collect();
    let rows = transaction.all(QUERY, &text, &[(&name as _, Type::TEXT), (&ids as _, Type::TEXT_ARRAY)]).await?;
    let mut found: Vec<HeldSyncset> = rows.iter().map(|row| HeldSyncset::of(QUERY, row)).collect::<Result<_, _>>()?;
    let Some(name) = name else {
        // The cause may have changed since the list was read: nobody has seen the new one.
        found.retain(|found| listed.iter().any(|listed| (listed.id, listed.cause) == (found.id, found.cause)));
        return Ok(found);
    };
    match found.iter().find(|held| held.id.to_string() == name) {
        Some(held) => Ok(vec![held.clone()]),
        None if found.len() > 1 => {
            let ids = found.iter().map(|held| format!("{} ({})", held.id, held.cause.reason())).collect();
            Err(DispatchError::Ambiguous { name: name.to_owned(), ids })
        }
        None => Ok(found),
    }
}

/// Lets go what holds these. Of one that an edit would have made drop much, what clusters have lost goes on to count, and does not get
/// old by the approval; of others, what edits have dropped before does.
async fn release(transaction: &mut Transaction<'static>, syncsets: &[String]) -> Result<(), DispatchError> {
    const TEXT: &str = "with held as materialized (select * from towline_guard where syncset = any($1::text[]::uuid[])), \
           approved as (update towline_guard g set held = false, cause = null, since = now(), held_objects = null, \
             dropped = case when g.cause = 'dropped' then null else g.dropped end, \
             objects = coalesce(g.held_objects, g.objects) from held where g.syncset = held.syncset) \
         update towline_lost l set at = case when held.cause = 'dropped' then now() else '-infinity' end from held \
           where l.syncset = held.syncset and (held.cause is distinct from 'dropped' or l.at > held.since - interval '10 min')";
    transaction.execute("approve_syncsets", TEXT, &[(&syncsets as _, Type::TEXT_ARRAY)]).await?;
    Ok(())
}

impl HeldSyncset {
    fn of(query: &'static str, row: &Row) -> Result<Self, DispatchError> {
        let count = |index| -> Result<usize, DispatchError> {
            Ok(usize::try_from(column::<i32>(query, row, index)?).unwrap_or_default())
        };
        let since: Option<&str> = column(query, row, 7)?;
        Ok(Self {
            id: ids(query, std::slice::from_ref(row))?.pop().unwrap_or_default(),
            kind: column(query, row, 1)?,
            namespace: column(query, row, 2)?,
            name: column(query, row, 3)?,
            // One that only a newer release knows.
            cause: Cause::of_name(column(query, row, 4)?).unwrap_or(Cause::Unreadable),
            clusters: count(5)?,
            tracks: count(6)?,
            since: since.and_then(|since| since.parse().ok()),
        })
    }

    /// As [`approve`] takes it: `team-a/base`, `monitoring`.
    pub fn argument(&self) -> String {
        argument(self.id, &self.namespace, &self.name)
    }

    /// `SelectorSyncSet monitoring`.
    pub fn label(&self) -> String {
        label(&self.kind, &self.argument())
    }

    /// What an operator can do.
    pub fn remedy(&self) -> String {
        match self.cause {
            Cause::Unreadable => "upgrade all replicas, or write the document again".to_owned(),
            _ => format!("take the change back, or `towline approve syncsets {}`", self.argument()),
        }
    }

    /// As the section's report lists it.
    pub fn as_object(&self) -> HeldObject {
        let Self { cause, clusters, tracks, .. } = self;
        HeldObject {
            key: self.label(),
            kind: cause.as_str(),
            reason: format!(
                "deletions on {clusters} of {tracks} clusters are held: {}; {}",
                cause.reason(),
                self.remedy()
            ),
        }
    }
}

/// A syncset that is held no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Released {
    pub(super) id: Uuid,
    /// `SelectorSyncSet monitoring`.
    pub(super) label: String,
}

impl Released {
    /// One with this kind, namespace and name.
    pub(super) fn new(id: Uuid, kind: &str, namespace: &str, name: &str) -> Self {
        Self { id, label: label(kind, &argument(id, namespace, name)) }
    }
}

/// What was judged by an earlier release has no name.
fn argument(id: Uuid, namespace: &str, name: &str) -> String {
    match (namespace, name) {
        (_, "") => id.to_string(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

fn label(kind: &str, argument: &str) -> String {
    let kind = if kind.is_empty() { "syncset" } else { kind };
    format!("{kind} {argument}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(clusters: usize) -> HeldSyncset {
        let id = Uuid::from_u128(u128::try_from(clusters).unwrap_or_default());
        HeldSyncset {
            id,
            kind: "SyncSet".to_owned(),
            namespace: "team-a".to_owned(),
            name: "base".to_owned(),
            cause: Cause::Gone,
            clusters,
            tracks: clusters,
            since: None,
        }
    }

    #[test]
    fn a_page_of_approvals_has_bounded_clusters_and_at_least_one_syncset() {
        let sizes = |clusters: &[usize]| -> Vec<usize> {
            let all: Vec<HeldSyncset> = clusters.iter().map(|clusters| held(*clusters)).collect();
            let found = pages(&all);
            assert_eq!(found.concat(), all);
            found.iter().map(|page| page.len()).collect()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[1, UNITS - 1, 1, UNITS, 2 * UNITS, 0, 1]), [2, 1, 1, 1, 2]);
        assert_eq!(sizes(&vec![0; UNITS + 1]), [UNITS, 1], "each counts");
    }
}
