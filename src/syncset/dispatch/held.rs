//! What is held, and its approval (rule 33).

use jiff::Timestamp;
use uuid::Uuid;

use super::error::DispatchError;
use super::ids;
use super::tracked::tracked;
use crate::db::{Database, Row, Type, column};
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
    /// Name.
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
/// the clusters concerned. Returns what was held. Only what was judged is approved; a later change is judged by itself. What can't be
/// read can't be approved.
pub async fn approve(database: &Database, name: Option<&str>) -> Result<Vec<HeldSyncset>, DispatchError> {
    const QUERY: &str = "approve_syncsets";
    const LOCK: &str = "select from towline_claim where name = 'dispatcher' \
         and (select origin = towline_origin() from towline_meta) for update";
    let clusters = format!(
        "select distinct t.cluster::text from unnest($1::text[]::uuid[]) i(id) cross join lateral ({}) t",
        tracked("i.id")
    );
    let text = format!(
        "with held as materialized (select * from towline_guard where held and cause is distinct from 'unreadable' and ($1::text is null \
             or $1 = case namespace when '' then name else namespace || '/' || name end or $1 = syncset::text)), \
           approved as (update towline_guard g set held = false, cause = null, since = now(), held_objects = null, dropped = null, \
             objects = coalesce(g.held_objects, g.objects) from held where g.syncset = held.syncset), \
           lost as (update towline_lost l set at = '-infinity' from held where l.syncset = held.syncset) \
         select {COLUMNS} from held order by kind desc, namespace, name, syncset"
    );
    let mut transaction = database.begin("approve", super::turn::WITHIN).await?;
    // The dispatcher judges under a lock of the same row.
    if transaction.execute("lock_judging", LOCK, &[]).await? == 0 {
        return Err(DispatchError::Restoring);
    }
    let rows = transaction.all(QUERY, &text, &[(&name as _, Type::TEXT)]).await?;
    let approved: Vec<HeldSyncset> = rows.iter().map(|row| HeldSyncset::of(QUERY, row)).collect::<Result<_, _>>()?;
    let syncsets: Vec<String> = approved.iter().map(|held| held.id.to_string()).collect();
    let clusters = transaction.all("approved_clusters", &clusters, &[(&syncsets as _, Type::TEXT_ARRAY)]).await?;
    WorkQueue::ask_within(&mut transaction, &ids("approved_clusters", &clusters)?, true).await?;
    transaction.commit().await?;
    for held in &approved {
        tracing::info!(syncset = %held.label(), clusters = held.clusters, "deletions of a syncset are approved");
    }
    Ok(approved)
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
        match (self.namespace.as_str(), self.name.as_str()) {
            (_, "") => self.id.to_string(),
            ("", name) => name.to_owned(),
            (namespace, name) => format!("{namespace}/{name}"),
        }
    }

    /// `SelectorSyncSet monitoring`.
    pub fn label(&self) -> String {
        let kind = if self.kind.is_empty() { "syncset" } else { &self.kind };
        format!("{kind} {}", self.argument())
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
