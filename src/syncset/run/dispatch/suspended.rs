//! What is suspended, and its approval.

use jiff::Timestamp;
use uuid::Uuid;

use super::{DispatchError, begin_locked, ids};
use crate::db::{Database, Json, Row, Type, column};
use crate::documents::{Author, Entry, Kind, Parameters, WorkQueue};
use crate::status::HeldObject;
use crate::syncset::plan::guard::Cause;

/// A syncset whose deletions are suspended. It applies what it wants, and deletes nothing anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspendedSyncset {
    /// Assigned by the hub.
    pub id: Uuid,
    /// `SyncSet` or `SelectorSyncSet`. Of one that was gone when it was first checked, kind and name may be empty.
    pub kind: String,
    /// Namespace; empty for a `SelectorSyncSet`.
    pub namespace: String,
    pub name: String,
    pub cause: Cause,
    /// The generation that was checked.
    pub generation: i64,
    /// With a rollout, the revision to which it led.
    pub revision: Option<i32>,
    /// How many objects it would delete, but for those that were approved; 0 where nobody has asked for that.
    pub objects: usize,
    /// On how many clusters it would delete objects.
    pub clusters: usize,
    /// On how many clusters it tracks objects.
    pub tracks: usize,
    /// Since when; none if it begins now.
    pub since: Option<Timestamp>,
}

const QUERY: &str = "held_syncsets";

/// What is suspended, sorted by kind and name, but last what nobody can approve: all of it, for who lists or approves that.
pub async fn suspended(database: &Database) -> Result<Vec<SuspendedSyncset>, DispatchError> {
    Ok(suspended_within(database, |_| String::new(), None, true).await?.0)
}

/// What is suspended of the syncsets `c` for which a condition holds, which is preceded by `and`: at most so much, those last that nobody can
/// approve; and how much more there is. How many objects each would delete is summed up over its clusters.
pub async fn suspended_within(
    database: &Database,
    within: impl FnOnce(&mut Parameters) -> String,
    most: Option<i64>,
    with_objects: bool,
) -> Result<(Vec<SuspendedSyncset>, usize), DispatchError> {
    let mut parameters = Parameters::default();
    let within = within(&mut parameters);
    let objects = if with_objects {
        "(select coalesce(sum(greatest(l.objects - l.approved, 0)), 0)::int8 from towline_lost l where l.syncset = shown.syncset)"
    } else {
        "0::int8"
    };
    let limit = most.map(|most| format!(" limit {}", parameters.number(most))).unwrap_or_default();
    let text = format!(
        "with shown as materialized (select c.*, count(*) over () as total from towline_guard c where c.held{within} \
           order by c.cause is not distinct from 'unreadable', c.kind desc, c.namespace, c.name, c.syncset{limit}) \
         select syncset::text, kind, namespace, name, coalesce(cause, ''), clusters, tracks, to_json(since) #>> '{{}}', generation, revision, \
           {objects}, total \
         from shown order by cause is not distinct from 'unreadable', kind desc, namespace, name, syncset"
    );
    let rows = database.all(QUERY, &text, &parameters.as_params()).await?;
    let total = rows.first().map_or(Ok(0), |row| column::<i64>(QUERY, row, 11))?;
    let more = usize::try_from(total).unwrap_or_default().saturating_sub(rows.len());
    Ok((rows.iter().map(|row| SuspendedSyncset::of(QUERY, row)).collect::<Result<_, _>>()?, more))
}

/// The labels of syncsets whose deletions are being counted beside the batches: they delete nothing until it is known whether that is held.
pub async fn being_counted(database: &Database) -> Result<Vec<String>, DispatchError> {
    const QUERY: &str = "counted_syncsets";
    const TEXT: &str = "select g.syncset::text, coalesce(nullif(g.kind, ''), case d.kind when 'syncsets' then 'SyncSet' when 'selectorsyncsets' then 'SelectorSyncSet' end, ''), \
           coalesce(d.namespace, g.namespace), coalesce(d.name, g.name) from towline_guard g \
           left join towline_documents d on d.kind in ('syncsets', 'selectorsyncsets') and d.id = g.syncset \
         where g.checked < 0 and not g.held order by 2 desc, 3, 4, 1";
    let rows = database.all(QUERY, TEXT, &[]).await?;
    let label_of = |(id, row): (Uuid, &Row)| {
        let [kind, namespace, name] = [1, 2, 3].map(|index| column::<&str>(QUERY, row, index));
        Ok(label(kind?, &argument(id, namespace?, name?)))
    };
    ids(QUERY, &rows)?.into_iter().zip(&rows).map(label_of).collect()
}

/// The condition on `c` that it is the syncset that [`SuspendedSyncset::argument`] or an id names.
fn is_named(name: &str, parameters: &mut Parameters) -> String {
    let name = parameters.text(name);
    format!(
        " and (c.syncset::text = {name} or c.name <> '' \
           and case c.namespace when '' then c.name else c.namespace || '/' || c.name end = {name})"
    )
}

/// Approves the deletions of a syncset by its name (`namespace/name`, or `name` of a `SelectorSyncSet`) or its id, or of all, and asks for
/// the clusters concerned. Returns what was suspended. An approval covers what the guard has checked: a later change is checked by itself. What can't be
/// read can't be approved. Each is approved in a transaction. If one of these fails, what those before it have approved stays approved.
pub async fn approve(
    database: &Database,
    name: Option<&str>,
    by: &Author,
) -> Result<Vec<SuspendedSyncset>, DispatchError> {
    let mut found = match name {
        Some(name) => suspended_within(database, |parameters| is_named(name, parameters), None, true).await?.0,
        None => suspended(database).await?,
    };
    found.retain(|suspended| suspended.cause != Cause::Unreadable);
    if let Some(name) = name {
        // A syncset that is gone may have had the name of one that exists. An id is unambiguous.
        if found.len() > 1 && found.iter().all(|suspended| suspended.id.to_string() != name) {
            let ids =
                found.iter().map(|suspended| format!("{} ({})", suspended.id, suspended.cause.reason())).collect();
            return Err(DispatchError::Ambiguous { name: name.to_owned(), ids });
        }
    }
    let mut approved = Vec::new();
    for suspended in found {
        if approve_one(database, &suspended, by).await? {
            tracing::info!(
                syncset = %suspended.label(),
                clusters = suspended.clusters,
                reason = suspended.cause.reason(),
                "mass change approved"
            );
            approved.push(suspended);
        } else if name.is_some() {
            return Err(DispatchError::Changed { label: suspended.label() });
        }
    }
    Ok(approved)
}

/// Returns whether it was suspended.
async fn approve_one(database: &Database, suspended: &SuspendedSyncset, by: &Author) -> Result<bool, DispatchError> {
    // A check that has read the row before is repeated. What has been checked again since it was read may delete something else.
    const RESUME: &str = "update towline_guard set held = false, cause = null, since = clock_timestamp() \
         where syncset = $1::text::uuid and held and cause is distinct from 'unreadable' and generation = $2 and clusters = $3 \
           and revision is not distinct from $4";
    const APPROVE: &str = "update towline_lost set approved = objects, approved_precious = precious, counted = false where syncset = $1::text::uuid";
    let clusters = format!("select t.cluster::text from ({}) t", tracked("$1::text::uuid"));
    let syncset = suspended.id.to_string();
    let params = [(&syncset as _, Type::TEXT)];
    let clusters_then = i32::try_from(suspended.clusters).unwrap_or(i32::MAX);
    let as_read = [
        (&syncset as _, Type::TEXT),
        (&suspended.generation as _, Type::INT8),
        (&clusters_then as _, Type::INT4),
        (&suspended.revision as _, Type::INT4),
    ];
    // The guard's decisions are written under a lock of the same row.
    let begun = begin_locked(database, "approve", None, None).await?;
    let mut transaction = begun.ok_or(DispatchError::Restoring)?;
    if transaction.execute("approve_syncset", RESUME, &as_read).await? == 0 {
        return Ok(false);
    }
    transaction.execute("approve_losses", APPROVE, &params).await?;
    let clusters = transaction.all("approved_clusters", &clusters, &params).await?;
    let entry = Json(suspended.entry(by.clone()));
    transaction.execute("record_approval", &Entry::statement(1), &[(&entry, Type::JSONB)]).await?;
    WorkQueue::ask_within(&mut transaction, &ids("approved_clusters", &clusters)?, true).await?;
    transaction.commit().await?;
    Ok(true)
}

impl SuspendedSyncset {
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
            generation: column(query, row, 8)?,
            revision: column(query, row, 9)?,
            objects: usize::try_from(column::<i64>(query, row, 10)?).unwrap_or_default(),
            clusters: count(5)?,
            tracks: count(6)?,
            since: since.and_then(|since| since.parse().ok()),
        })
    }

    /// Its approval, as it is recorded: of a syncset whose kind is not known, for administrators alone.
    fn entry(&self, by: Author) -> Entry {
        const VERB: &str = "approve";
        let entry = match Kind::of_name(&self.kind) {
            Some(kind) => Entry::of(by, VERB, kind, &self.namespace, &self.name).with_id(self.id),
            None => Entry::of_all(by, VERB).with_id(self.id),
        };
        let clusters = if self.clusters == 1 { "1 cluster".to_owned() } else { format!("{} clusters", self.clusters) };
        entry.noting(&format!("deletions on {clusters} ({})", self.cause.reason()))
    }

    /// As [`approve`] takes it: `team-a/base`, `monitoring`.
    pub fn argument(&self) -> String {
        argument(self.id, &self.namespace, &self.name)
    }

    /// `SelectorSyncSet monitoring`.
    pub fn label(&self) -> String {
        label(&self.kind, &self.argument())
    }

    pub fn remedy(&self) -> String {
        match self.cause {
            Cause::Unreadable => "upgrade all replicas, or write the document again".to_owned(),
            _ => format!("take the change back, or `towline approve syncsets {}`", self.argument()),
        }
    }

    /// As the section's report lists it.
    pub fn as_object(&self) -> HeldObject {
        let Self { cause, objects, clusters, tracks, generation, .. } = self;
        let of = self.revision.map(|revision| format!(" by revision {revision}")).unwrap_or_default();
        HeldObject {
            key: self.label(),
            kind: cause.as_str(),
            reason: format!(
                "deletions on {clusters} of {tracks} clusters{of} are held, {objects} in all: {}; {}",
                cause.reason(),
                self.remedy()
            ),
            generation: Some(*generation),
        }
    }
}

/// A syncset that is suspended no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resumed {
    pub(super) id: Uuid,
    /// `SelectorSyncSet monitoring`.
    pub(super) label: String,
}

impl Resumed {
    /// One with this kind, namespace and name.
    pub(super) fn new(id: Uuid, kind: &str, namespace: &str, name: &str) -> Self {
        Self { id, label: label(kind, &argument(id, namespace, name)) }
    }
}

/// One that was gone when it was first checked may have no name.
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

/// On which clusters a syncset tracks objects, as a query without parentheses. Each cluster costs one look into the index, however many objects there are.
pub(super) fn tracked(syncset: &str) -> String {
    let first = format!("select a.cluster from towline_applied a where a.syncset = {syncset} and a.tracked");
    format!(
        "with recursive t(cluster) as ( \
           ({first} order by a.cluster limit 1) \
           union all select ({first} and a.cluster > t.cluster order by a.cluster limit 1) from t where t.cluster is not null) \
         select cluster from t where cluster is not null"
    )
}
