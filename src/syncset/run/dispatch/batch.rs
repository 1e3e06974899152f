//! One batch of changes: a read, and the transaction that asks for clusters and moves the cursor.
//!
//! The transaction first locks the row of the dispatcher's claim, if it is still held and the cursor is where the read began. So of
//! two processes that both believe to be the dispatcher one moves the cursor, and it moves over each row once.
//!
//! The guard's decisions may be too many for one transaction. Then others come before, which move no cursor.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::guard::{Counted, Decisions, DeletionGuard, READ_AT_ONCE, StoredGuard, Subject, everything, tracking};
use super::log::{Read, read};
use super::remove::{remove, remove_all, tidy};
use super::selection::condition;
use super::suspended::{Resumed, tracked};
use super::{CLAIMED, DispatchError, begin_locked, ids};
use crate::cluster::full_text;
use crate::db::{Database, Row, Transaction, Type, column};
use crate::documents::{Broker, Grant, Parameters, WorkQueue, renumber};
use crate::syncset::plan::concern::{BatchStep, Change, Concern, Unchecked};
use crate::syncset::run::store::RESYNC;

#[derive(Clone)]
pub struct Dispatch {
    pub(super) database: Database,
    pub(super) broker: Option<Broker>,
    /// Whether deletions are suspended if they are too many.
    pub(super) is_guarding: bool,
}

/// A count that takes longer is made beside the batches, within the usual limit of a statement. So are the remaining counts of a namespace once its
/// counts, or the reads that find out what to count, have together taken this long in a batch. All `SelectorSyncSet`s together count as a namespace.
pub(super) const COUNTED_WITHIN: Duration = Duration::from_secs(2);
/// Of the syncsets of a namespace that map changed secrets, and of those without a namespace, so many KiB at most are read for the names of their
/// clusters.
const MOST_KIB: i64 = 1 << 10;
/// How often the clusters that changed during a count are counted again, before the last time.
const MOST_RECOUNTS: usize = 8;
/// Until a check is tried again that has failed, or was overtaken by a change.
const AFTER_A_FAILURE: Duration = Duration::from_mins(1);
const AFTER_A_CHANGE: Duration = Duration::from_secs(5);

/// What is known of the checks that were set aside. If it is lost, some are tried again early.
#[derive(Debug, Default)]
pub struct Aside {
    /// Those that have failed, and when they are tried again.
    later: BTreeMap<Uuid, Instant>,
    /// When the last one of each namespace was tried.
    tried: BTreeMap<String, Instant>,
}

/// What has become of the next one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AsideCheck {
    /// There is none to check now.
    #[default]
    Nothing,
    Done(Batch),
    /// It has failed, or was overtaken by a change, and is tried again later.
    Postponed,
}

/// How long a batch has taken for a namespace.
#[derive(Clone, Copy, Default)]
struct Spent {
    /// To find out what has to be counted.
    looking: Duration,
    counting: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Rows of the log.
    pub changes: usize,
    /// Clusters for which a pass was requested.
    pub asked: u64,
    /// Whether all clusters were asked for, since rows were missing or nothing had been dispatched before.
    pub was_gap: bool,
    /// Whether a rollout may have to begin.
    pub rolls: bool,
    /// Whether there may be more rows.
    pub has_more: bool,
    /// Syncsets whose deletions are suspended from now on.
    pub suspended: usize,
    /// Syncsets whose deletions are suspended no more.
    pub resumed: usize,
    /// Syncsets whose deletions are checked later.
    pub aside: usize,
}

enum CheckEnd {
    Decided(Box<Decisions>),
    /// Something was approved meanwhile, or counted that was aside: another batch checks the same again.
    Outdated,
}

impl Batch {
    fn count(&mut self, decisions: &Decisions) {
        self.suspended += decisions.suspended.len();
        self.resumed += decisions.resumed.len();
        self.aside += decisions.aside.len();
    }
}

impl Dispatch {
    pub fn new(database: Database) -> Self {
        Self { database, broker: None, is_guarding: true }
    }

    /// The same, which tells workers over a message broker which clusters somebody waits for.
    #[must_use]
    pub fn over(mut self, broker: Option<Broker>) -> Self {
        self.broker = broker;
        self
    }

    /// The same without the guard: everything is checked, and nothing is suspended.
    #[must_use]
    pub fn unguarded(mut self) -> Self {
        self.is_guarding = false;
        self
    }

    /// Dispatches up to 500 changes.
    pub async fn batch(&self, grant: &Grant) -> Result<Batch, DispatchError> {
        self.batch_in_pages(grant, &|| ()).await
    }

    /// The same; `after_each` is called after each syncset that was checked.
    pub async fn batch_in_pages(&self, grant: &Grant, after_each: &(dyn Fn() + Sync)) -> Result<Batch, DispatchError> {
        let read = read(&self.database).await?;
        match read.head.step() {
            BatchStep::Follow => self.follow(grant, &read, after_each).await,
            BatchStep::All { in_full } => self.all(grant, &read, in_full, after_each).await,
            BatchStep::Renumber => {
                // It ends all claims, this one too. If the database is still being restored, nothing happens yet.
                renumber(&self.database, false).await?;
                Ok(Batch::default())
            }
        }
    }

    async fn follow(&self, grant: &Grant, read: &Read, after_each: &(dyn Fn() + Sync)) -> Result<Batch, DispatchError> {
        if read.changes.is_empty() {
            return Ok(Batch::default());
        }
        let (concern, unchecked) = (Concern::of(&read.changes), Unchecked::of(&read.changes));
        let gone: Vec<Uuid> = concern.gone.iter().copied().collect();
        remove(&self.database, &gone).await?;
        let rolls = read.changes.iter().any(Change::may_begin_a_rollout);
        let mut batch = Batch { changes: read.changes.len(), rolls, has_more: read.is_full, ..Batch::default() };
        if concern.is_empty() && unchecked.is_empty() {
            self.pass_over(grant, read).await?;
            return Ok(batch);
        }
        let repeated = Batch { has_more: true, ..Batch::default() };
        let CheckEnd::Decided(decisions) =
            self.check(grant, read, read.last, &unchecked, &mut batch, after_each).await?
        else {
            return Ok(repeated);
        };
        let concern = self.mappers(concern).await?;
        let mut transaction = self.begin(grant, read).await?;
        if !decisions.write(&mut transaction).await? {
            return Ok(repeated);
        }
        batch.count(&decisions);
        let clusters = concerned(&mut transaction, &concern, &decisions.resumed).await?;
        batch.asked = ask(&mut transaction, &clusters, true).await?;
        move_cursor(&mut transaction, read.last).await?;
        transaction.commit().await?;
        if let Some(broker) = &self.broker {
            broker.hint(&clusters);
        }
        decisions.announce();
        Ok(batch)
    }

    /// Asks for all clusters. The newest version was read before them, so that later ones are still dispatched.
    async fn all(
        &self,
        grant: &Grant,
        read: &Read,
        in_full: bool,
        after_each: &(dyn Fn() + Sync),
    ) -> Result<Batch, DispatchError> {
        tracing::info!(
            cursor = read.head.cursor,
            base = read.head.base,
            newest = read.head.newest,
            in_full,
            "changes are missing in the log or were never dispatched, asking for all clusters"
        );
        // The deletions of clusters may be among what is missing.
        remove_all(&self.database).await?;
        let mut batch = Batch { was_gap: true, has_more: true, ..Batch::default() };
        let syncsets = everything(&self.database).await?.into_iter().collect();
        let unchecked = Unchecked { syncsets, ..Unchecked::default() };
        let is_written = match self.check(grant, read, read.head.newest, &unchecked, &mut batch, after_each).await? {
            CheckEnd::Decided(decisions) => self.write(grant, read, &decisions, &mut batch).await?,
            CheckEnd::Outdated => false,
        };
        if !is_written {
            return Ok(Batch { has_more: true, ..Batch::default() });
        }
        let mut transaction = self.begin(grant, read).await?;
        if in_full {
            transaction.execute("resync_all", RESYNC, &[(&None::<Vec<String>>, Type::TEXT_ARRAY)]).await?;
        }
        let everybody = Concern { all: true, ..Concern::default() };
        let clusters = concerned(&mut transaction, &everybody, &[]).await?;
        batch.asked = ask(&mut transaction, &clusters, false).await?;
        move_cursor(&mut transaction, read.head.newest).await?;
        transaction.commit().await?;
        Ok(batch)
    }

    /// Has suspended syncsets checked again, and removes rows that are not needed.
    pub async fn tidy(&self, grant: &Grant) -> Result<(), DispatchError> {
        tidy(&self.database, grant).await
    }

    /// Has the guard check these syncsets and clusters. If they are many, some decisions are written in transactions of their own; what they store permits nothing
    /// before the cursor has moved, and stays right if that never happens: another batch checks the same again.
    async fn check(
        &self,
        grant: &Grant,
        read: &Read,
        version: i64,
        unchecked: &Unchecked,
        batch: &mut Batch,
        after_each: &(dyn Fn() + Sync),
    ) -> Result<CheckEnd, DispatchError> {
        let counts = self.database.clone().answering_within(COUNTED_WITHIN);
        let guard = DeletionGuard { database: &self.database, counts: &counts, is_guarding: self.is_guarding, version };
        let mut spent = BTreeMap::<String, Spent>::new();
        let relabelled: Vec<Uuid> = unchecked.relabelled.iter().copied().collect();
        let changed: Vec<Uuid> = unchecked.syncsets.iter().copied().collect();
        let mut others = tracking(&self.database, &relabelled).await?;
        others.retain(|id| !unchecked.syncsets.contains(id));
        let decided = unchecked.decided.iter().copied().collect();
        let mut decisions = Decisions::as_before(decided, version);
        let mut left_aside = Vec::new();
        let mut rounds = vec![(others, Some(&*relabelled)), (changed, None)];
        while let Some((syncsets, relabelled)) = rounds.pop() {
            for (namespace, mut of_one) in guard.by_namespace(&syncsets).await? {
                if relabelled.is_some() {
                    // It deletes nothing, and the count reads whatever labels have changed until it ends.
                    left_aside.extend(of_one.extract_if(.., |row| row.was_aside).map(|row| row.syncset));
                }
                let spent = spent.entry(namespace).or_default();
                for rows in of_one.chunks(READ_AT_ONCE) {
                    let subjects = read_some(&guard, rows, relabelled, spent, &mut decisions).await?;
                    after_each();
                    for subject in subjects {
                        check_one(&guard, &subject, relabelled, spent, &mut decisions).await?;
                        after_each();
                        if decisions.are_many()
                            && !self.write(grant, read, &std::mem::take(&mut decisions), batch).await?
                        {
                            return Ok(CheckEnd::Outdated);
                        }
                    }
                }
            }
            if relabelled.is_some() {
                let ended = guard.counted(&left_aside).await?;
                left_aside.retain(|id| !ended.contains(id));
                rounds.extend((!ended.is_empty()).then_some((ended, relabelled)));
            }
        }
        decisions.left_aside = left_aside;
        Ok(CheckEnd::Decided(decisions.into()))
    }

    /// Checks the next one of the syncsets that were set aside, in turns by namespace: beside the batches, so that no change of others waits for it,
    /// and however many objects it has. Whatever fails stays aside, and is tried again.
    pub async fn check_aside(&self, grant: &Grant, aside: &mut Aside) -> Result<AsideCheck, DispatchError> {
        const QUERY: &str = "aside_syncsets";
        const TEXT: &str = "select distinct on (g.namespace) g.syncset::text, g.namespace, g.checked, k.cursor \
             from towline_claim k join towline_guard g on g.checked < 0 and -g.checked <= k.cursor and g.syncset <> all($1::text[]::uuid[]) \
             where k.name = 'dispatcher' order by g.namespace, g.checked desc, g.syncset";
        let now = Instant::now();
        aside.later.retain(|_, at| *at > now);
        let later: Vec<String> = aside.later.keys().map(Uuid::to_string).collect();
        let rows = self.database.all(QUERY, TEXT, &[(&later as _, Type::TEXT_ARRAY)]).await?;
        let mut next: Option<(Option<Instant>, Uuid, String, &Row)> = None;
        for (syncset, row) in ids(QUERY, &rows)?.into_iter().zip(&rows) {
            let namespace: String = column(QUERY, row, 1)?;
            let tried = aside.tried.get(&namespace).copied();
            if next.as_ref().is_none_or(|next| tried < next.0) {
                next = Some((tried, syncset, namespace, row));
            }
        }
        let Some((_, syncset, namespace, row)) = next else {
            aside.tried.clear();
            return Ok(AsideCheck::Nothing);
        };
        aside.tried.insert(namespace, now);
        let mut postpone = |wait: Duration| {
            aside.later.insert(syncset, Instant::now() + wait);
            Ok(AsideCheck::Postponed)
        };
        match self.check_apart(grant, syncset, column(QUERY, row, 2)?, column(QUERY, row, 3)?).await {
            Ok(Some(batch)) => Ok(AsideCheck::Done(batch)),
            Ok(None) => postpone(AFTER_A_CHANGE),
            Err(DispatchError::Database(error)) if error.outage().is_none() || error.is_delay() => {
                let error = full_text(&error);
                tracing::warn!(%syncset, error, "failed to check what a syncset would delete, retrying");
                postpone(AFTER_A_FAILURE)
            }
            Err(error) => Err(error),
        }
    }

    /// The cursor is moved meanwhile. If it moves over a change of the syncset, that is set aside anew, and nothing is written. The clusters over
    /// whose changes it has moved since the count began are counted again, until that takes little time, and the last ones while it stands still.
    async fn check_apart(
        &self,
        grant: &Grant,
        syncset: Uuid,
        checked: i64,
        mut cursor: i64,
    ) -> Result<Option<Batch>, DispatchError> {
        const QUERY: &str = "still_aside";
        const STILL: &str = "select l.id::text, k.cursor from towline_guard g join towline_claim k on k.name = 'dispatcher' \
             join towline_meta m on m.base <= $3 and k.cursor >= $3 \
             left join lateral (select distinct id from towline_log where version > $3 and version <= k.cursor and kind = 'clusters') l on true \
             where g.syncset = $1::text::uuid and g.checked = $2 and -g.checked <= k.cursor for update of g";
        let id = syncset.to_string();
        let since = |rows: &[Row]| -> Result<Option<(i64, Vec<Uuid>)>, DispatchError> {
            let Some(first) = rows.first() else { return Ok(None) };
            let clusters =
                if column::<Option<&str>>(QUERY, first, 0)?.is_some() { ids(QUERY, rows)? } else { Vec::new() };
            Ok(Some((column(QUERY, first, 1)?, clusters)))
        };
        let (database, is_guarding) = (&self.database, self.is_guarding);
        let guard = DeletionGuard { database, counts: database, is_guarding, version: cursor };
        let Some(subject) = guard.read(&[syncset]).await?.pop() else { return Ok(None) };
        let mut counted = Counted::default();
        guard.count(&subject, None, &mut counted).await?;
        for _ in 0..MOST_RECOUNTS {
            let params = [(&id as _, Type::TEXT), (&checked as _, Type::INT8), (&cursor as _, Type::INT8)];
            let Some((then, clusters)) = since(&database.all(QUERY, STILL, &params).await?)? else { return Ok(None) };
            let began = Instant::now();
            guard.count(&subject, Some(&clusters), &mut counted).await?;
            cursor = then;
            if began.elapsed() < COUNTED_WITHIN / 4 {
                break;
            }
        }
        let begun = begin_locked(database, "check_aside", Some(grant), None).await?;
        let mut transaction = begun.ok_or(DispatchError::ClaimLost)?;
        let params = [(&id as _, Type::TEXT), (&checked as _, Type::INT8), (&cursor as _, Type::INT8)];
        let Some((version, clusters)) = since(&transaction.all(QUERY, STILL, &params).await?)? else { return Ok(None) };
        let counts = database.clone().answering_within(COUNTED_WITHIN);
        let guard = DeletionGuard { database, counts: &counts, is_guarding, version };
        // The claim is locked as long as that takes, a wait for a connection included.
        let Ok(recounted) = timeout(COUNTED_WITHIN, guard.count(&subject, Some(&clusters), &mut counted)).await else {
            tracing::info!(%syncset, "counting what changed during a count takes long: it deletes nothing until that is done");
            return Ok(None);
        };
        recounted?;
        let mut decisions = Decisions::default();
        guard.decide(&subject, &counted, &mut decisions);
        if !decisions.write(&mut transaction).await? {
            return Ok(None);
        }
        let waiting: Vec<Resumed> = decisions.resumed.iter().chain(&decisions.checked).cloned().collect();
        let clusters = concerned(&mut transaction, &Concern::default(), &waiting).await?;
        ask(&mut transaction, &clusters, true).await?;
        transaction.commit().await?;
        decisions.announce();
        let mut batch = Batch::default();
        batch.count(&decisions);
        Ok(Some(batch))
    }

    /// Writes decisions in a transaction that moves no cursor. A crash must not forget whom to ask for. Returns whether it was
    /// written: it is not if something was approved since, or counted that was aside.
    async fn write(
        &self,
        grant: &Grant,
        read: &Read,
        decisions: &Decisions,
        batch: &mut Batch,
    ) -> Result<bool, DispatchError> {
        let mut transaction = self.begin(grant, read).await?;
        if !decisions.write(&mut transaction).await? {
            return Ok(false);
        }
        let clusters = concerned(&mut transaction, &Concern::default(), &decisions.resumed).await?;
        ask(&mut transaction, &clusters, true).await?;
        transaction.commit().await?;
        decisions.announce();
        batch.count(decisions);
        Ok(true)
    }

    /// Adds the clusters of the syncsets that map changed secrets, or did in a revision. A syncset that no longer maps one is covered by its own change.
    /// A `SyncSet` maps Secrets of its namespace: where such syncsets are large together, or reading them fails, all clusters of that are concerned; and
    /// all there are where that is so of `SelectorSyncSet`s.
    async fn mappers(&self, mut concern: Concern) -> Result<Concern, DispatchError> {
        const QUERY: &str = "secret_mappers";
        const OF_SYNCSETS: &str = "with changed as materialized (select namespace, jsonb_build_array(jsonb_build_object('sourceRef', \
               jsonb_build_object('namespace', namespace, 'name', name))) as mapping from unnest($1::text[], $2::text[]) c(namespace, name)), \
             mapper as materialized ( \
               select s.namespace, s.id, s.kib from changed \
                 join syncsets s on s.data #> '{spec,secretMappings}' @> changed.mapping and s.namespace = changed.namespace \
               union select s.namespace, s.id, s.kib from changed join towline_revision r on r.content->'secretMappings' @> changed.mapping \
                 join syncsets s on s.kind = 'syncsets' and s.id = r.syncset and s.namespace = changed.namespace), \
             large as materialized (select namespace from mapper group by namespace having sum(kib) > $3) \
             select namespace, 'true' from large \
             union all select m.namespace, (s.data #> '{spec,clusterDeploymentRefs}')::text from mapper m \
               join syncsets s on s.kind = 'syncsets' and s.id = m.id where m.namespace not in (select namespace from large)";
        const OF_SELECTORS: &str = "with changed as materialized (select jsonb_build_array(jsonb_build_object('sourceRef', \
               jsonb_build_object('namespace', namespace, 'name', name))) as mapping from unnest($1::text[], $2::text[]) c(namespace, name)), \
             mapper as materialized ( \
               select s.id, s.kib from changed join selectorsyncsets s on s.data #> '{spec,secretMappings}' @> changed.mapping \
               union select s.id, s.kib from changed join towline_revision r on r.content->'secretMappings' @> changed.mapping \
                 join selectorsyncsets s on s.kind = 'selectorsyncsets' and s.id = r.syncset), \
             large as materialized (select true as is_large from mapper having sum(kib) > $3) \
             select is_large, null, null from large \
             union all select false, (s.data #> '{spec,clusterDeploymentSelector}')::text, (s.data #> '{spec,clusterNamespaces}')::text \
               from mapper m join selectorsyncsets s on s.kind = 'selectorsyncsets' and s.id = m.id where not exists (select from large)";
        if concern.secrets.is_empty() {
            return Ok(concern);
        }
        let (namespaces, names): (Vec<String>, Vec<String>) = std::mem::take(&mut concern.secrets).into_iter().unzip();
        let value = |row: &Row, index| -> Result<Option<serde_json::Value>, DispatchError> {
            let text = column::<Option<&str>>(QUERY, row, index)?;
            // The database prints valid JSON.
            Ok(text.and_then(|text| serde_json::from_str(text).ok()))
        };
        let database = self.database.clone().answering_within(COUNTED_WITHIN);
        let params =
            [(&namespaces as _, Type::TEXT_ARRAY), (&names as _, Type::TEXT_ARRAY), (&MOST_KIB as _, Type::INT8)];
        match database.all(QUERY, OF_SYNCSETS, &params).await {
            Ok(rows) => {
                for row in &rows {
                    concern.add_refs(column(QUERY, row, 0)?, value(row, 1)?.as_ref());
                }
            }
            Err(error) if error.outage().is_none() || error.is_delay() => {
                tracing::warn!(
                    error = full_text(&error),
                    "failed to read which syncsets map a secret, asking for all clusters of its namespace"
                );
                concern.namespaces.extend(namespaces.iter().cloned());
            }
            Err(error) => return Err(error.into()),
        }
        match database.all(QUERY, OF_SELECTORS, &params).await {
            Ok(rows) => {
                for row in &rows {
                    if column(QUERY, row, 0)? {
                        concern.all = true;
                    } else {
                        concern.add_selection(value(row, 1)?.as_ref(), value(row, 2)?.as_ref());
                    }
                }
            }
            Err(error) if error.outage().is_none() || error.is_delay() => {
                tracing::warn!(
                    error = full_text(&error),
                    "failed to read which selector syncsets map a secret, asking for all clusters"
                );
                concern.all = true;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(concern.limited())
    }

    /// Moves the cursor over changes that concern nobody.
    async fn pass_over(&self, grant: &Grant, read: &Read) -> Result<(), DispatchError> {
        let holder = grant.holder.as_str();
        let params = [
            (&holder as _, Type::TEXT),
            (&grant.token as _, Type::INT8),
            (&read.head.cursor as _, Type::INT8),
            (&read.last as _, Type::INT8),
        ];
        let text = format!("update towline_claim set cursor = $4 where {CLAIMED}");
        match self.database.execute("pass_over", &text, &params).await? {
            0 => Err(DispatchError::ClaimLost),
            _ => Ok(()),
        }
    }

    async fn begin(&self, grant: &Grant, read: &Read) -> Result<Transaction<'static>, DispatchError> {
        let begun = begin_locked(&self.database, "dispatch", Some(grant), Some(read.head.cursor)).await?;
        begun.ok_or(DispatchError::ClaimLost)
    }
}

/// Reads syncsets of a namespace. If that fails, or the namespace has spent its share of the batch, they are set aside as they are; but those on
/// clusters with other labels for as long as there is time to find out whether they are concerned.
async fn read_some(
    guard: &DeletionGuard<'_>,
    rows: &[StoredGuard],
    relabelled: Option<&[Uuid]>,
    spent: &mut Spent,
    decisions: &mut Decisions,
) -> Result<Vec<Subject>, DispatchError> {
    let is_spent = spent.looking >= COUNTED_WITHIN || (relabelled.is_none() && spent.counting >= COUNTED_WITHIN);
    if !is_spent {
        let (began, syncsets) = (Instant::now(), rows.iter().map(|row| row.syncset).collect::<Vec<_>>());
        let subjects = guard.read(&syncsets).await;
        spent.looking += began.elapsed();
        match subjects {
            Ok(subjects) => return Ok(subjects),
            Err(error) => isolated(&syncsets, error)?,
        }
    }
    decisions.aside.extend_from_slice(rows);
    Ok(Vec::new())
}

/// Has the guard check a syncset, if it is concerned by these clusters with other labels, or in any case. One whose statement fails, or takes too
/// long, is set aside: it keeps no other waiting. One that is aside already is set aside anew, since what is being counted no longer holds.
async fn check_one(
    guard: &DeletionGuard<'_>,
    subject: &Subject,
    relabelled: Option<&[Uuid]>,
    spent: &mut Spent,
    decisions: &mut Decisions,
) -> Result<(), DispatchError> {
    let checked = async {
        if let Some(relabelled) = relabelled.filter(|_| spent.looking < COUNTED_WITHIN) {
            let began = Instant::now();
            let is_concerned = guard.is_concerned(subject, relabelled).await;
            spent.looking += began.elapsed();
            if !is_concerned? {
                return Ok(());
            }
        }
        if subject.is_aside() || spent.looking.max(spent.counting) >= COUNTED_WITHIN {
            guard.set_aside(subject, decisions);
            return Ok(());
        }
        let began = Instant::now();
        let checked = guard.check(subject, decisions).await;
        spent.counting += began.elapsed();
        checked
    };
    if let Err(error) = checked.await {
        isolated(&[subject.id()], error)?;
        guard.set_aside(subject, decisions);
    }
    Ok(())
}

/// Tells an error that concerns these syncsets alone, or returns it.
pub(super) fn isolated(syncsets: &[Uuid], error: DispatchError) -> Result<(), DispatchError> {
    match error {
        DispatchError::Database(error) if error.outage().is_none() || error.is_delay() => {
            let (is_delay, error) = (error.is_delay(), full_text(&error));
            if is_delay {
                tracing::info!(
                    ?syncsets,
                    "counting what a syncset would delete takes long: it deletes nothing until that is done"
                );
            } else {
                tracing::warn!(
                    ?syncsets,
                    error,
                    "failed to check what a syncset would delete: it deletes nothing until that succeeds"
                );
            }
            Ok(())
        }
        error => Err(error),
    }
}

/// Asks for clusters, and returns their number.
pub(super) async fn ask(
    transaction: &mut Transaction<'static>,
    clusters: &[Uuid],
    urgent: bool,
) -> Result<u64, DispatchError> {
    if !clusters.is_empty() {
        WorkQueue::ask_within(transaction, clusters, urgent).await?;
    }
    Ok(u64::try_from(clusters.len()).unwrap_or(u64::MAX))
}

/// Moves the cursor. Requests wake workers by themselves.
async fn move_cursor(transaction: &mut Transaction<'static>, to: i64) -> Result<(), DispatchError> {
    const TEXT: &str = "update towline_claim set cursor = $1 where name = 'dispatcher'";
    transaction.execute("move_cursor", TEXT, &[(&to, Type::INT8)]).await?;
    Ok(())
}

/// The clusters that are concerned, and those where these syncsets track objects: one statement, whatever the changes are.
pub(super) async fn concerned(
    transaction: &mut Transaction<'static>,
    concern: &Concern,
    resumed: &[Resumed],
) -> Result<Vec<Uuid>, DispatchError> {
    const QUERY: &str = "concerned_clusters";
    if concern.is_empty() && resumed.is_empty() {
        return Ok(Vec::new());
    }
    let mut parameters = Parameters::default();
    let text = if concern.all {
        "select c.id::text from clusters c".to_owned()
    } else {
        let ids = parameters.texts(Some(concern.clusters.iter().map(Uuid::to_string).collect()));
        let (namespaces, names) = concern.named.iter().cloned().unzip();
        let (namespaces, names) = (parameters.texts(Some(namespaces)), parameters.texts(Some(names)));
        let whole = parameters.texts(Some(concern.namespaces.iter().cloned().collect()));
        let mut text = format!(
            "select c.id::text from clusters c where c.kind = 'clusters' and c.id = any({ids}::text[]::uuid[]) \
             union select c.id::text from unnest({namespaces}::text[], {names}::text[]) r(namespace, name) join clusters c \
               on c.kind = 'clusters' and c.namespace = r.namespace and c.name = r.name \
             union select c.id::text from clusters c where c.kind = 'clusters' and c.namespace = any({whole}::text[])"
        );
        for audience in &concern.selections {
            let condition = condition(audience, &mut parameters);
            text.push_str(" union select c.id::text from clusters c where ");
            text.push_str(&condition);
        }
        if !resumed.is_empty() {
            let resumed = parameters.texts(Some(resumed.iter().map(|resumed| resumed.id.to_string()).collect()));
            let of_resumed = format!(
                " union select t.cluster::text from unnest({resumed}::text[]::uuid[]) i(id) cross join lateral ({}) t",
                tracked("i.id")
            );
            text.push_str(&of_resumed);
        }
        text
    };
    ids(QUERY, &transaction.all(QUERY, &text, &parameters.as_params()).await?)
}
