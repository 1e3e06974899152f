//! The guard against mass deletions: finds out what a syncset would delete, and suspends the deletions if they are too many.
//!
//! A pass deletes because of a change only after the cursor has passed it, so the guard has always decided before. Documents are read as they
//! are now. Those that are newer than the cursor are checked again, and until then no pass deletes because of them.
//!
//! A syncset is checked when its document has changed, and when labels have changed of a cluster where it has objects, if it would delete
//! some of them there. What is found is written in the transaction that moves the cursor, or in others before it: it permits
//! nothing before the cursor has moved, and a batch that is repeated comes to the same. The reads need no lock. If somebody approves
//! something in between, the batch is repeated.
//!
//! What fails, or takes long, is set aside, and counted beside the batches. It deletes nothing meanwhile, so they leave it alone when labels
//! change: the count reads those clusters again before it ends.
//!
//! What counts is what is stored when a change is checked. A pass that is under way may store objects of another cluster afterwards, so a
//! count may be too low by as many clusters as are worked on.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use uuid::Uuid;

use super::suspended::{Resumed, SuspendedSyncset};
use super::{DispatchError, ids};
use crate::db::{Database, Json, Row, Transaction, Type, column};
use crate::syncset::plan::guard::{APPROVE, Amount, Approval, Cause, SyncsetState, Tally, TrackedObjects};
use crate::syncset::plan::name::{SyncSetKind, SyncSetName};
use crate::syncset::plan::naming::Resource;
use crate::syncset::run::store::tracked_objects;

/// Most syncsets whose documents are read at once, which bounds the memory that they take.
pub(super) const READ_AT_ONCE: usize = 10;
/// Most rows that are written in one transaction, but for those of one syncset.
const MOST_WRITTEN: usize = 10_000;

/// What the guard has decided, as far as it is not written.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    guards: Vec<StoredGuard>,
    losses: Vec<LossRow>,
    edited: Vec<Uuid>,
    /// Syncsets that are checked later, and delete nothing until then.
    pub(super) aside: Vec<StoredGuard>,
    /// Syncsets that were aside, and are left so: nobody must have finished their counts meanwhile.
    pub(super) left_aside: Vec<Uuid>,
    /// Syncsets of which a new version changes nothing that was decided, and that version.
    pub(super) decided: (Vec<Uuid>, i64),
    /// Syncsets whose deletions are suspended from now on.
    pub(super) suspended: Vec<SuspendedSyncset>,
    /// Syncsets whose deletions are suspended no more: the clusters where they track objects have to be asked for.
    pub(super) resumed: Vec<Resumed>,
    /// The same of syncsets that were set aside.
    pub(super) checked: Vec<Resumed>,
}

/// The guard in one batch of the dispatcher.
pub(super) struct DeletionGuard<'d> {
    pub(super) database: &'d Database,
    /// The same, with the time that a count may take.
    pub(super) counts: &'d Database,
    /// Whether deletions are suspended at all.
    pub(super) is_guarding: bool,
    /// The version of the log up to which it checks changes.
    pub(super) version: i64,
}

/// A syncset, as its document and the last check have it.
pub(super) struct Subject {
    pub(super) id: Uuid,
    name: SyncSetName,
    /// Whether it is known what it was called.
    is_named: bool,
    state: SyncsetState,
    approval: Approval,
    always: bool,
    approved: i64,
    generation: i64,
    /// Up to which version it was checked before; negative if it was set aside.
    checked: i64,
    /// Its generation when it was checked before.
    checked_generation: i64,
    /// To which revision its rollout leads, if it has one; and where it led when it was checked before.
    revision: Option<i32>,
    checked_revision: Option<i32>,
    was_suspended: bool,
    /// When its row was written that was read.
    since: Option<String>,
}

/// What a syncset has on each cluster, what it would delete there, and how much would be much.
#[derive(Debug, Default)]
pub(super) struct Counted(BTreeMap<Uuid, (TrackedObjects, Amount, usize)>);

/// A row of `towline_guard`.
#[derive(Clone, Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a column")]
pub(super) struct StoredGuard {
    pub(super) syncset: Uuid,
    /// Whether its check was set aside before.
    #[serde(skip)]
    pub(super) was_aside: bool,
    checked: i64,
    gone: bool,
    held: bool,
    cause: Option<&'static str>,
    clusters: usize,
    tracks: usize,
    kind: String,
    namespace: String,
    name: String,
    always: bool,
    approved: i64,
    generation: i64,
    revision: Option<i32>,
    since: Option<String>,
}

/// A row of `towline_lost`.
#[derive(Debug, Serialize)]
struct LossRow {
    cluster: Uuid,
    syncset: Uuid,
    objects: usize,
    precious: usize,
    approved: usize,
    approved_precious: usize,
    allowed: bool,
    counted: bool,
}

/// All syncsets that may have to delete something: those that exist, those that the guard has checked, and those that track objects.
pub(super) async fn everything(database: &Database) -> Result<Vec<Uuid>, DispatchError> {
    const QUERY: &str = "all_syncsets";
    const TEXT: &str = "with recursive tracking(syncset) as ( \
           (select syncset from towline_applied where tracked order by syncset limit 1) \
           union all select (select a.syncset from towline_applied a where a.tracked and a.syncset > tracking.syncset \
             order by a.syncset limit 1) from tracking where tracking.syncset is not null) \
         select id::text from (select id from towline_documents where kind in ('syncsets', 'selectorsyncsets') \
           union select syncset from towline_guard union select syncset from tracking where syncset is not null) s order by id";
    ids(QUERY, &database.all(QUERY, TEXT, &[]).await?)
}

/// The syncsets that have objects on these clusters which they may delete. Each costs two looks into the index, however many objects there are.
pub(super) async fn tracking(database: &Database, clusters: &[Uuid]) -> Result<Vec<Uuid>, DispatchError> {
    const QUERY: &str = "syncsets_of_clusters";
    const TEXT: &str = "select distinct t.syncset::text from unnest($1::text[]::uuid[]) c(id) \
         cross join lateral (with recursive s(syncset) as ( \
             (select a.syncset from towline_applied a where a.cluster = c.id order by a.syncset limit 1) \
             union all select (select a.syncset from towline_applied a where a.cluster = c.id and a.syncset > s.syncset order by a.syncset limit 1) \
               from s where s.syncset is not null) \
           select s.syncset from s where exists (select from towline_applied a \
             where a.cluster = c.id and a.syncset = s.syncset and a.tracked and not a.adopted)) t";
    if clusters.is_empty() {
        return Ok(Vec::new());
    }
    ids(QUERY, &database.all(QUERY, TEXT, &[(&texts(clusters) as _, Type::TEXT_ARRAY)]).await?)
}

impl DeletionGuard<'_> {
    /// These syncsets by their namespaces, as rows that set them aside: without a look at what they say, which may be much. So of what was deleted
    /// since its last check nothing is known to be approved.
    pub(super) async fn by_namespace(
        &self,
        syncsets: &[Uuid],
    ) -> Result<BTreeMap<String, Vec<StoredGuard>>, DispatchError> {
        const QUERY: &str = "namespaces_of_syncsets";
        const TEXT: &str = "select i.id::text, \
               coalesce(case d.kind when 'syncsets' then 'SyncSet' when 'selectorsyncsets' then 'SelectorSyncSet' end, nullif(g.kind, ''), r.kind, ''), \
               coalesce(d.namespace, nullif(g.namespace, ''), r.namespace, ''), coalesce(d.name, nullif(g.name, ''), r.name, ''), \
               d.id is null or d.deleted_at is not null, coalesce(g.gone and g.always, false), coalesce(g.checked < 0, false) \
             from unnest($1::text[]::uuid[]) i(id) \
             left join towline_documents d on d.kind in ('syncsets', 'selectorsyncsets') and d.id = i.id \
             left join towline_guard g on g.syncset = i.id \
             left join lateral (select * from towline_result where syncset = i.id limit 1) r on d.id is null and coalesce(g.name, '') = ''";
        let mut namespaces = BTreeMap::<String, Vec<StoredGuard>>::new();
        if syncsets.is_empty() {
            return Ok(namespaces);
        }
        let rows = self.database.all(QUERY, TEXT, &[(&texts(syncsets) as _, Type::TEXT_ARRAY)]).await?;
        for (id, row) in ids(QUERY, &rows)?.into_iter().zip(&rows) {
            let (kind, namespace, name) =
                (column(QUERY, row, 1)?, column::<String>(QUERY, row, 2)?, column(QUERY, row, 3)?);
            let mut aside = self.aside(id, kind, namespace.clone(), name);
            (aside.gone, aside.always) = (column(QUERY, row, 4)?, column(QUERY, row, 5)?);
            aside.was_aside = column(QUERY, row, 6)?;
            namespaces.entry(namespace).or_default().push(aside);
        }
        Ok(namespaces)
    }

    /// The documents of syncsets, and the last decisions about them. What a rollout leads to is what counts, on all clusters at once: of an
    /// edit, before its rollout has begun. After an abort no cluster moves: the revision is read without its
    /// mode, so that no object counts as dropped, and only which clusters the syncset is for does.
    pub(super) async fn read(&self, syncsets: &[Uuid]) -> Result<Vec<Subject>, DispatchError> {
        const QUERY: &str = "check_syncsets";
        const TEXT: &str = "select i.id::text, d.id is not null, \
               coalesce(case d.kind when 'syncsets' then 'SyncSet' when 'selectorsyncsets' then 'SelectorSyncSet' end, \
                 nullif(g.kind, ''), r.kind, ''), \
               coalesce(d.namespace, nullif(g.namespace, ''), r.namespace, ''), coalesce(d.name, nullif(g.name, ''), r.name, ''), \
               coalesce(d.generation, 0), d.annotations->>$2, (w.spec - '{resources,patches}'::text[])::text, \
               case when jsonb_typeof(w.spec->'resources') = 'array' then coalesce((select jsonb_agg(jsonb_build_array( \
                   e->>'apiVersion', e->>'kind', e #>> '{metadata,namespace}', e #>> '{metadata,name}')) \
                 from jsonb_array_elements(w.spec->'resources') e), '[]') end::text, \
               coalesce(g.held, false), coalesce(g.approved, 0), to_json(g.since) #>> '{}', \
               case when d.id is not null or g.gone then coalesce(g.always, false) else coalesce(( \
                 select coalesce(l.document, o.document) #>> array['annotations', $2] = 'always' from towline_log l \
                   left join towline_log o on o.version = l.old_version \
                 where l.version > k.cursor and l.id = i.id and l.kind in ('syncsets', 'selectorsyncsets') \
                 order by l.version desc limit 1), false) end, coalesce(g.generation, 0), v.revision, g.revision, coalesce(g.checked, 0) \
             from unnest($1::text[]::uuid[]) i(id) cross join (select cursor from towline_claim where name = 'dispatcher') k \
             left join towline_documents d on d.kind in ('syncsets', 'selectorsyncsets') and d.id = i.id and d.deleted_at is null \
             left join lateral (select r.revision, case when o.started < o.edited or o.reason <> 'Aborted' then r.content \
                 else r.content - 'resourceApplyMode' end as content \
               from towline_rollout o join towline_revision r on r.syncset = o.syncset \
                 and r.revision = case when o.started < o.edited then o.newest when o.reason = 'Aborted' then coalesce(o.stable, o.goal) \
                 else o.goal end where o.syncset = d.id) v on true \
             cross join lateral (select case when v.revision is null then d.data->'spec' else v.content || coalesce(( \
                 select jsonb_object_agg(key, value) from jsonb_each(d.data->'spec') \
                   where key in ('clusterDeploymentRefs', 'clusterDeploymentSelector', 'clusterNamespaces')), '{}') end as spec offset 0) w \
             left join towline_guard g on g.syncset = i.id \
             left join lateral (select * from towline_result where syncset = i.id limit 1) r on d.id is null and coalesce(g.name, '') = ''";
        let params = [(&texts(syncsets) as _, Type::TEXT_ARRAY), (&APPROVE as _, Type::TEXT)];
        let rows = self.counts.all(QUERY, TEXT, &params).await?;
        ids(QUERY, &rows)?.into_iter().zip(&rows).map(|(id, row)| self.subject(QUERY, id, row)).collect()
    }

    fn subject(&self, query: &'static str, id: Uuid, row: &Row) -> Result<Subject, DispatchError> {
        let text = |index| column::<Option<&str>>(query, row, index);
        let (exists, kind): (bool, &str) = (column(query, row, 1)?, column(query, row, 2)?);
        let kind = [SyncSetKind::SyncSet, SyncSetKind::SelectorSyncSet].into_iter().find(|of| of.as_str() == kind);
        let (is_named, kind) = (kind.is_some(), kind.unwrap_or(SyncSetKind::SelectorSyncSet));
        let name = SyncSetName { kind, namespace: column(query, row, 3)?, name: column(query, row, 4)? };
        let state = if exists {
            // What the database prints is valid JSON.
            let spec = text(7)?.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            let resources: Option<Vec<Resource>> = text(8)?.and_then(|text| serde_json::from_str(text).ok());
            SyncsetState::read(&name, &spec, resources.as_deref())
        } else {
            SyncsetState::Gone
        };
        let (generation, approved) = (column(query, row, 5)?, column(query, row, 10)?);
        // For a syncset that is gone, its last document counts: the approval in an older one may have been revoked since.
        let always = if exists { text(6)? == Some("always") } else { column(query, row, 12)? };
        let approval = match Approval::read(text(6)?, generation, approved) {
            // Nobody can know what an approval of an unreadable document would delete.
            _ if state == SyncsetState::Unreadable => Approval::None,
            _ if always || !self.is_guarding => Approval::Always,
            approval => approval,
        };
        Ok(Subject {
            id,
            name,
            is_named,
            state,
            approval,
            always,
            approved: if approval == Approval::Once { generation } else { approved },
            generation,
            checked: column(query, row, 16)?,
            checked_generation: column(query, row, 13)?,
            revision: column(query, row, 14)?,
            checked_revision: column(query, row, 15)?,
            was_suspended: column(query, row, 9)?,
            since: text(11)?.map(str::to_owned),
        })
    }

    /// Those whose counts have ended of some that were aside.
    pub(super) async fn counted(&self, aside: &[Uuid]) -> Result<Vec<Uuid>, DispatchError> {
        const QUERY: &str = "counted_meanwhile";
        const TEXT: &str =
            "select syncset::text from towline_guard where syncset = any($1::text[]::uuid[]) and checked >= 0";
        if aside.is_empty() {
            return Ok(Vec::new());
        }
        ids(QUERY, &self.database.all(QUERY, TEXT, &[(&texts(aside) as _, Type::TEXT_ARRAY)]).await?)
    }

    /// Whether it has to be checked since these clusters got other labels: it is suspended, or would delete something there that was not approved.
    pub(super) async fn is_concerned(&self, subject: &Subject, clusters: &[Uuid]) -> Result<bool, DispatchError> {
        let (state, mut is_concerned) = (&subject.state, subject.was_suspended);
        if !is_concerned {
            let found = |_, place: TrackedObjects| {
                let (loses, _) = state.loses(&place);
                is_concerned |= loses != place.approved || (place.was_allowed && loses.objects == 0);
            };
            tracked_objects(self.counts, subject.id, state.plain().as_ref(), Some(clusters), found).await?;
        }
        Ok(is_concerned)
    }

    /// Counts what a syncset would delete, and decides whether that is suspended.
    pub(super) async fn check(&self, subject: &Subject, decisions: &mut Decisions) -> Result<(), DispatchError> {
        let mut counted = Counted::default();
        self.count(subject, None, &mut counted).await?;
        self.decide(subject, &counted, decisions);
        Ok(())
    }

    /// Counts what a syncset would delete: on these clusters anew, or on all.
    pub(super) async fn count(
        &self,
        subject: &Subject,
        clusters: Option<&[Uuid]>,
        counted: &mut Counted,
    ) -> Result<(), DispatchError> {
        if clusters.is_some_and(<[Uuid]>::is_empty) {
            return Ok(());
        }
        for cluster in clusters.unwrap_or_default() {
            counted.0.remove(cluster);
        }
        let (state, is_edited) = (&subject.state, subject.is_edited());
        let found = |cluster, mut place: TrackedObjects| {
            if is_edited {
                place.approved = Amount::default();
            }
            let (loses, much) = state.loses(&place);
            // What is large is not needed any more.
            let place = TrackedObjects { labels: BTreeMap::new(), others: BTreeSet::new(), ..place };
            counted.0.insert(cluster, (place, loses, much));
        };
        Ok(tracked_objects(self.counts, subject.id, state.plain().as_ref(), clusters, found).await?)
    }

    /// Decides whether the deletions of a syncset are suspended.
    pub(super) fn decide(&self, subject: &Subject, counted: &Counted, decisions: &mut Decisions) {
        let Subject { id, state, approval, was_suspended, .. } = subject;
        let (id, approval, was_suspended) = (*id, *approval, *was_suspended);
        let (mut tally, mut rows, mut objects) = (Tally::default(), Vec::new(), 0);
        for (cluster, (place, loses, much)) in &counted.0 {
            let counts = tally.add(place, *loses, *much);
            objects += loses.objects.saturating_sub(place.approved.objects);
            if loses.objects > 0 {
                rows.push((*cluster, *loses, counts, counts || place.approved != Amount::default()));
            }
        }
        let cause = tally.check(state, was_suspended, approval);
        let is_approved = approval == Approval::Once;
        rows.retain(|(.., is_stored)| *is_stored || cause.is_some() || is_approved);
        decisions.losses.extend(rows.into_iter().map(|(cluster, loses, counts, _)| LossRow {
            cluster,
            syncset: id,
            objects: loses.objects,
            precious: loses.precious,
            approved: if is_approved { loses.objects } else { 0 },
            approved_precious: if is_approved { loses.precious } else { 0 },
            allowed: cause.is_none(),
            counted: cause.is_some() && counts,
        }));
        if subject.is_edited() {
            decisions.edited.push(id);
        }
        let kind = subject.kind();
        let SyncSetName { namespace, name, .. } = subject.name.clone();
        match cause {
            Some(cause) if !was_suspended => decisions.suspended.push(SuspendedSyncset {
                id,
                kind: kind.to_owned(),
                namespace: namespace.clone(),
                name: name.clone(),
                cause,
                generation: subject.generation,
                revision: subject.revision,
                objects,
                clusters: tally.loses,
                tracks: tally.tracks,
                since: None,
            }),
            None if was_suspended => decisions.resumed.push(Resumed::new(id, kind, &namespace, &name)),
            // Its clusters wait for it, too.
            None if subject.is_aside() => decisions.checked.push(Resumed::new(id, kind, &namespace, &name)),
            _ => {}
        }
        decisions.guards.push(StoredGuard {
            syncset: id,
            was_aside: subject.is_aside(),
            checked: self.version,
            gone: subject.state == SyncsetState::Gone,
            held: cause.is_some(),
            cause: cause.map(Cause::as_str),
            clusters: tally.loses,
            tracks: tally.tracks,
            kind: kind.to_owned(),
            namespace,
            name,
            always: subject.always,
            approved: subject.approved,
            generation: subject.generation,
            revision: subject.revision,
            since: subject.since.clone(),
        });
    }

    /// Has a syncset checked later, since that has failed. It deletes nothing until then.
    pub(super) fn set_aside(&self, subject: &Subject, decisions: &mut Decisions) {
        let SyncSetName { namespace, name, .. } = subject.name.clone();
        let mut aside = self.aside(subject.id, subject.kind().to_owned(), namespace, name);
        (aside.gone, aside.always) = (subject.state == SyncsetState::Gone, subject.always);
        decisions.aside.push(aside);
    }

    /// The row of a syncset that is checked later.
    fn aside(&self, syncset: Uuid, kind: String, namespace: String, name: String) -> StoredGuard {
        StoredGuard {
            syncset,
            was_aside: false,
            checked: -self.version.max(1),
            gone: false,
            held: false,
            cause: None,
            clusters: 0,
            tracks: 0,
            kind,
            namespace,
            name,
            always: false,
            approved: 0,
            generation: 0,
            revision: None,
            since: None,
        }
    }
}

impl Subject {
    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    /// Whether it is checked later.
    pub(super) fn is_aside(&self) -> bool {
        self.checked < 0
    }

    /// Whether it is another one than when it was checked before: what was approved of another generation is not what it would delete now, nor
    /// what was approved on another way.
    fn is_edited(&self) -> bool {
        self.state != SyncsetState::Gone
            && (self.generation, self.revision) != (self.checked_generation, self.checked_revision)
    }

    /// Whether it was checked as it is now.
    pub(super) fn is_decided(&self) -> bool {
        let now = (self.generation, self.revision);
        self.checked > 0 && (self.checked_generation, self.checked_revision) == now
    }

    fn kind(&self) -> &'static str {
        if self.is_named { self.name.kind.as_str() } else { "" }
    }
}

impl Decisions {
    /// Nothing but that what was decided of these syncsets holds for this version, too.
    pub(super) fn as_before(decided: Vec<Uuid>, version: i64) -> Self {
        Self { decided: (decided, version), ..Self::default() }
    }

    /// Whether it is as much as a transaction should write.
    pub(super) fn are_many(&self) -> bool {
        self.losses.len() >= MOST_WRITTEN
    }

    /// Writes it. Returns false, and the transaction must not be committed, if something was approved since it was read, or counted that was aside.
    pub(super) async fn write(&self, transaction: &mut Transaction<'static>) -> Result<bool, DispatchError> {
        const GUARDS: &str = "insert into towline_guard as g \
             (syncset, checked, gone, held, clusters, since, tracks, cause, kind, namespace, name, always, approved, generation, revision) \
             select r.syncset, r.checked, r.gone, r.held, r.clusters, coalesce(r.since, now()), r.tracks, r.cause, r.kind, r.namespace, r.name, \
               r.always, r.approved, r.generation, r.revision from jsonb_populate_recordset(null::towline_guard, $1) r order by r.syncset \
             on conflict (syncset) do update set checked = excluded.checked, gone = excluded.gone, held = excluded.held, \
               clusters = excluded.clusters, tracks = excluded.tracks, cause = excluded.cause, kind = excluded.kind, \
               namespace = excluded.namespace, name = excluded.name, always = excluded.always, approved = excluded.approved, \
               generation = case when excluded.gone then g.generation else excluded.generation end, \
               revision = excluded.revision, \
               since = case when g.held = excluded.held and g.gone = excluded.gone then g.since else now() end \
             where g.since = excluded.since";
        // What passes have deleted meanwhile of what was approved was deducted. An edit ends what was approved before it.
        const LOSSES: &str = "with r as materialized (select * from jsonb_populate_recordset(null::towline_lost, $2)), \
             restored as (delete from towline_lost l where l.syncset = any($1::text[]::uuid[]) \
               and not exists (select from r where r.cluster = l.cluster and r.syncset = l.syncset)) \
             insert into towline_lost as l select * from r order by cluster, syncset \
             on conflict (cluster, syncset) do update set objects = excluded.objects, precious = excluded.precious, \
               approved = greatest(excluded.approved, case when l.syncset = any($3::text[]::uuid[]) then 0 else least(l.approved, excluded.objects) end), \
               approved_precious = greatest(excluded.approved_precious, \
                 case when l.syncset = any($3::text[]::uuid[]) then 0 else least(l.approved_precious, excluded.precious) end), \
               allowed = l.allowed or excluded.allowed, counted = excluded.counted";
        const COUNTED: &str = "select from towline_guard where syncset = any($1::text[]::uuid[]) and checked >= 0";
        if !self.left_aside.is_empty() {
            let left = [(&texts(&self.left_aside) as _, Type::TEXT_ARRAY)];
            if transaction.execute("left_aside", COUNTED, &left).await? > 0 {
                return Ok(false);
            }
        }
        self.write_others(transaction).await?;
        if self.guards.is_empty() {
            return Ok(true);
        }
        let guards = Json(&self.guards);
        let written = transaction.execute("write_guards", GUARDS, &[(&guards as _, Type::JSONB)]).await?;
        if usize::try_from(written).is_ok_and(|written| written < self.guards.len()) {
            return Ok(false);
        }
        let syncsets = texts(self.guards.iter().map(|guard| &guard.syncset));
        let losses = Json(&self.losses);
        let edited = texts(&self.edited);
        let params =
            [(&syncsets as _, Type::TEXT_ARRAY), (&losses as _, Type::JSONB), (&edited as _, Type::TEXT_ARRAY)];
        transaction.execute("write_losses", LOSSES, &params).await?;
        Ok(true)
    }

    /// Writes what is not decided, or was before.
    async fn write_others(&self, transaction: &mut Transaction<'static>) -> Result<(), DispatchError> {
        // An approval, and since when something is held, stay as they are.
        const ASIDE: &str = "insert into towline_guard as g \
             (syncset, checked, gone, held, clusters, since, kind, namespace, name, always) \
             select r.syncset, r.checked, r.gone, false, 0, now(), r.kind, r.namespace, r.name, r.always \
               from jsonb_populate_recordset(null::towline_guard, $1) r order by r.syncset \
             on conflict (syncset) do update set checked = excluded.checked, gone = excluded.gone, kind = excluded.kind, \
               namespace = excluded.namespace, name = excluded.name, always = excluded.always, \
               since = case when g.gone = excluded.gone then g.since else now() end";
        // One without a row was never checked.
        const DECIDED: &str = "insert into towline_guard as g (syncset, checked, gone, held, clusters, since, kind, namespace, name) \
             select d.id, -greatest($2::bigint, 1), false, false, 0, now(), case d.kind when 'syncsets' then 'SyncSet' else 'SelectorSyncSet' end, \
               d.namespace, d.name from unnest($1::text[]::uuid[]) s(id) \
               join towline_documents d on d.kind in ('syncsets', 'selectorsyncsets') and d.id = s.id order by d.id \
             on conflict (syncset) do update set checked = case when g.checked < 0 then g.checked else greatest(g.checked, $2::bigint) end";
        if !self.aside.is_empty() {
            let aside = Json(&self.aside);
            transaction.execute("set_aside", ASIDE, &[(&aside as _, Type::JSONB)]).await?;
        }
        let (decided, version) = &self.decided;
        if !decided.is_empty() {
            let params = [(&texts(decided) as _, Type::TEXT_ARRAY), (version as _, Type::INT8)];
            transaction.execute("decided_before", DECIDED, &params).await?;
        }
        Ok(())
    }

    /// Tells the operator, once the transaction is committed.
    pub(super) fn announce(&self) {
        for suspended in &self.suspended {
            // Somebody has to decide.
            tracing::error!(
                syncset = %suspended.label(),
                clusters = suspended.clusters,
                of = suspended.tracks,
                reason = suspended.cause.reason(),
                remedy = suspended.remedy(),
                "mass change is held until it is approved"
            );
        }
        for Resumed { label: syncset, .. } in &self.resumed {
            tracing::info!(syncset, "mass change is no longer held");
        }
    }
}

fn texts<'i>(ids: impl IntoIterator<Item = &'i Uuid>) -> Vec<String> {
    ids.into_iter().map(Uuid::to_string).collect()
}
