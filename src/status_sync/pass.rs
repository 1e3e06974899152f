//! One pass: what changed, its rows, what they come to, the writes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::contention::Contention;
use super::digest::{Digest, Fingerprint};
use super::families::{Fields, RollUp, StatusRow};
use super::family::{Home, Shape, begin};
use super::made::Made;
use super::plan::{self, Change, Observed, Planned};
use super::poller::{Life, Poller};
use super::table::{Entry, Found, RowId};
use super::tally::Tally;
use super::write::{self, Written};
use crate::actor::Scope;
use crate::cluster::{Error as ClusterError, Kind, Object, ObjectKey, Retry, Verb};
use crate::db::{self, Param};
use crate::telemetry::WriteOutcome;

/// A pass may be long: so often its report follows what is written. It looks at every entry.
const SHOW_EVERY: Duration = Duration::from_secs(1);

impl Poller {
    /// A whole pass.
    pub(super) async fn pass(&self, scope: &Scope, life: &mut Life) -> Result<(), Stopped> {
        let begun = Instant::now();
        let detected = self.detect(scope, life).await?;
        let now = Instant::now();
        life.detection = now - begun;
        let counts = life.counts(begun, self.shared.interval);
        let empty = detected.rows == 0;
        if !empty {
            self.shared.any_rows.send_if_modified(|any| !std::mem::replace(any, true));
        }
        life.table.take(detected.found, now);
        let chosen = self.choose(life, life.table.names());
        // A database without any row may be one that is being filled: its first pass clears nothing.
        let may_clear = !(life.first_pass && empty && !*self.shared.any_rows.borrow());
        let calm = self.shared.interval;
        let (without, changed): (Vec<RowId>, Vec<RowId>) = chosen
            .into_iter()
            .filter(|id| life.table.get(*id).is_some_and(|entry| entry.is_due(now, calm)))
            .partition(|id| life.table.get(*id).is_some_and(|entry| entry.found.rows() == 0));
        self.show(life);
        let mut work = self.work(scope, life);
        if may_clear {
            work.clear(without, counts).await;
        }
        let read = if changed.is_empty() { Ok(()) } else { work.read(changed).await };
        // Whatever became of the reading: what is under way is finished, and known.
        work.finish().await;
        self.note_all(life);
        read?;
        let bad = life.table.bad_rows(&detected.bad);
        self.report.send_modify(|report| {
            report.rows = detected.rows;
            report.bad_rows = bad.count;
            report.bad_row_examples = bad.examples;
        });
        Ok(())
    }

    /// Looks at some rows again, between passes. Nothing is cleared: only a whole pass knows how much would be. Returns
    /// whether one is needed.
    pub(super) async fn look_again(
        &self,
        scope: &Scope,
        life: &mut Life,
        ids: &HashSet<RowId>,
    ) -> Result<bool, Stopped> {
        let chosen = self.choose(life, life.table.names_of(ids));
        let (now, calm) = (Instant::now(), self.shared.interval);
        let (without, changed): (Vec<RowId>, Vec<RowId>) = chosen
            .into_iter()
            .filter(|id| life.table.get(*id).is_some_and(|entry| entry.is_due(now, calm)))
            .partition(|id| life.table.get(*id).is_some_and(|entry| entry.found.rows() == 0));
        if !changed.is_empty() {
            let mut work = self.work(scope, life);
            let read = work.read(changed).await;
            work.finish().await;
            self.note_all(life);
            read?;
        }
        Ok(!without.is_empty())
    }

    fn note_all(&self, life: &mut Life) {
        for key in std::mem::take(&mut life.noted) {
            self.note(life, &key);
        }
    }

    async fn detect(&self, scope: &Scope, life: &mut Life) -> Result<Detected, Stopped> {
        let params = vec![Param::Text(self.shared.namespace.clone())];
        let asked = self.shared.database.rows(self.family.detection_name(), &self.detection, params);
        let mut rows = answer(scope, life, asked).await?;
        let mut detected = Detected::default();
        while let Some(row) = answer(scope, life, rows.next()).await? {
            let what: &str = rows.column(&row, 0)?;
            let id: Option<&str> = rows.column(&row, 1)?;
            let count: i64 = rows.column(&row, 4)?;
            match what {
                "rows" => detected.rows = count,
                "bad" => detected.bad.add(usize::try_from(count).unwrap_or_default(), || {
                    format!("{}: no name or no namespace", id.unwrap_or_default())
                }),
                _ => {
                    let (namespace, name): (Option<&str>, Option<&str>) =
                        (rows.column(&row, 2)?, rows.column(&row, 3)?);
                    let sum: &str = rows.column(&row, 5)?;
                    match (id.and_then(|id| id.parse().ok()), namespace, name, sum.parse()) {
                        (Some(id), Some(namespace), Some(name), Ok(sum)) => detected.found.push(Found {
                            id,
                            key: ObjectKey::new(namespace, name),
                            print: Fingerprint::new(count, sum),
                        }),
                        _ => detected
                            .bad
                            .add(1, || format!("spec row {}: no name or no namespace", id.unwrap_or_default())),
                    }
                }
            }
        }
        Ok(detected)
    }
}

/// Why a pass has not come to its end.
#[derive(Debug)]
pub(super) enum Stopped {
    /// Nothing more is begun.
    Draining,
    /// The database has not told everything.
    Failed(db::Error),
}

impl From<db::Error> for Stopped {
    fn from(error: db::Error) -> Self {
        Self::Failed(error)
    }
}

/// Waits for the database unless the poller drains, and meanwhile takes news in, so that no watch has to wait for a pass.
async fn answer<T>(
    scope: &Scope,
    life: &mut Life,
    asked: impl Future<Output = Result<T, db::Error>>,
) -> Result<T, Stopped> {
    let mut asked = std::pin::pin!(asked);
    loop {
        tokio::select! {
            biased;
            answer = &mut asked => return Ok(answer?),
            () = scope.draining() => return Err(Stopped::Draining),
            key = life.inbox.next() => life.noted.extend(key),
        }
    }
}

/// What change detection tells.
#[derive(Default)]
struct Detected {
    found: Vec<Found>,
    rows: i64,
    bad: Tally,
}

/// One hub object's writes, done.
struct Done {
    id: RowId,
    print: Fingerprint,
    live: Arc<str>,
    planned: Vec<(ObjectKey, Digest)>,
    deleted: Vec<Arc<str>>,
    waiting: Option<plan::Waiting>,
    blockers: Vec<(ObjectKey, Arc<str>)>,
    foreign: Vec<ObjectKey>,
    written: Vec<Written>,
}

/// The work in hand of a pass.
pub(super) struct Work<'w> {
    poller: &'w Poller,
    scope: &'w Scope,
    life: &'w mut Life,
    tasks: JoinSet<Done>,
    /// What was made for hub objects, once somebody has asked for it.
    made: Option<Made>,
    /// When the report was last brought up to date.
    shown: Instant,
}

impl<'w> Work<'w> {
    pub(super) fn new(poller: &'w Poller, scope: &'w Scope, life: &'w mut Life) -> Self {
        Self { poller, scope, life, tasks: JoinSet::new(), made: None, shown: Instant::now() }
    }

    /// Serves what has no rows: what would be cleared or deleted passes the guard. `counts` as the guard takes it.
    async fn clear(&mut self, without: Vec<RowId>, counts: bool) {
        let mut candidates = Vec::new();
        for id in without {
            let Some(planned) = self.plan(id, Vec::new()) else { continue };
            if planned.changes.is_empty() {
                self.serve(id, Fingerprint::default(), planned).await;
            } else {
                candidates.push(id);
            }
        }
        let objects = self.life.table.len();
        let held_before = self.life.guard.held();
        let admitted = self.life.guard.admit(candidates, objects, counts);
        if let (Some(held), None) = (self.life.guard.held(), held_before) {
            let family = self.poller.family.as_str();
            tracing::error!(family, held, objects, "most rows are gone: clearing is held until it is approved");
        }
        for id in admitted {
            if let Some(planned) = self.plan(id, Vec::new()) {
                self.serve(id, Fingerprint::default(), planned).await;
            }
        }
    }

    /// Reads the rows of these objects and serves each as soon as its last row is there. An object whose rows did not
    /// all arrive is not touched.
    async fn read(&mut self, ids: Vec<RowId>) -> Result<(), Stopped> {
        let params = vec![Param::Texts(ids.iter().map(ToString::to_string).collect())];
        let poller = self.poller;
        let asked = poller.shared.database.rows(poller.family.rows_name(), &poller.rows, params);
        let mut rows = answer(self.scope, self.life, asked).await?;
        let mut current: Option<Current> = None;
        while let Some(row) = answer(self.scope, self.life, rows.next()).await? {
            if self.scope.is_draining() {
                return Err(Stopped::Draining);
            }
            let id: &str = rows.column(&row, 0)?;
            let Ok(id) = id.parse::<RowId>() else { continue };
            if current.as_ref().is_none_or(|current| current.id != id) {
                let complete = current.replace(Current {
                    id,
                    print: Fingerprint::default(),
                    roll_up: begin(poller.family),
                    bad: Tally::default(),
                });
                self.complete(complete).await;
            }
            let Some(current) = &mut current else { continue };
            let (leaf_hub, name): (Option<&str>, Option<&str>) = (rows.column(&row, 1)?, rows.column(&row, 2)?);
            let (value, hash): (Option<&str>, Option<i64>) = (rows.column(&row, 3)?, rows.column(&row, 4)?);
            let (Some(leaf_hub), Some(hash)) = (leaf_hub, hash) else { continue };
            current.print.add(hash);
            let mut faults = Vec::new();
            current.roll_up.take(&StatusRow { leaf_hub, name: name.unwrap_or_default(), value }, &mut faults);
            for fault in faults {
                let named = format!("{leaf_hub}/{}: {fault}", name.unwrap_or_default());
                current.bad.add(1, || named);
            }
        }
        self.complete(current).await;
        Ok(())
    }

    async fn complete(&mut self, complete: Option<Current>) {
        // Without rows there is nothing to do here: the next pass clears it, if it is so.
        let Some(Current { id, print, roll_up, bad }) = complete.filter(|current| current.print.rows() > 0) else {
            return;
        };
        if let Some(entry) = self.life.table.get_mut(id) {
            entry.bad = bad;
        }
        let Some(planned) = self.plan(id, roll_up.finish()) else { return };
        self.serve(id, print, planned).await;
    }

    /// Compares with what the caches show now.
    fn plan(&mut self, id: RowId, desired: Vec<Fields>) -> Option<Planned> {
        let entry = self.life.table.get(id)?;
        let target = self.poller.target.store();
        let hub_object = self.poller.hub().store().get(&entry.key);
        let facts = &self.poller.facts;
        let mut made: BTreeMap<ObjectKey, Arc<Object>> = BTreeMap::new();
        if let (Shape::Numbered | Shape::Named, Some(live)) = (facts.shape, &hub_object) {
            let owned = self.made.get_or_insert_with(|| Made::of(target.objects())).by(&live.uid).iter().cloned();
            let wanted = (0..desired.len()).map(|index| plan::part_name(facts.shape, &entry.key, index));
            let held = owned.chain(wanted).filter_map(|key| Some((key.clone(), target.get(&key)?)));
            made.extend(held.filter(|(_, held)| !entry.has_deleted(&held.uid)));
        }
        let accepted = |key: &ObjectKey, desired| entry.accepts(target, key, desired);
        let outdated = |key: &ObjectKey, desired| entry.is_outdated(target, key, desired);
        let observed = Observed { hub_object, made, accepted: &accepted, outdated: &outdated };
        Some(plan::next(facts, &entry.key, desired, &observed))
    }

    /// Does what was planned: at once where that is nothing, else under a permit.
    async fn serve(&mut self, id: RowId, print: Fingerprint, planned: Planned) {
        let Some(entry) = self.life.table.get(id) else { return };
        let Some(live) = self.poller.hub().store().get(&entry.key) else { return };
        let deleted = planned.changes.iter().filter_map(|change| match change {
            Change::Delete { object } => Some(Arc::clone(&object.uid)),
            _ => None,
        });
        let mut done = Done {
            id,
            print,
            live: Arc::clone(&live.uid),
            deleted: deleted.collect(),
            planned: planned.parts,
            waiting: planned.waiting,
            blockers: planned.blockers,
            foreign: planned.foreign,
            written: Vec::new(),
        };
        if planned.changes.is_empty() {
            self.settle(done);
            return;
        }
        let Some(kind) = self.poller.target.kind() else { return };
        let changes = write::prepare(&kind, &self.poller.facts, planned.changes);
        let Some(permit) = self.permit().await else { return };
        let cluster = self.poller.cluster();
        let contention = self.life.table.get_mut(id).and_then(|entry| self.poller.contention(entry, &kind));
        self.tasks.spawn(async move {
            if let Some(contention) = contention {
                contention.tell().await;
            }
            done.written = write::carry_out(&cluster, &kind, changes).await;
            drop(permit);
            done
        });
    }

    /// A permit, when it is this family's turn; meanwhile what is done and what is new is taken in.
    async fn permit(&mut self) -> Option<OwnedSemaphorePermit> {
        let mut permit = std::pin::pin!(Arc::clone(&self.poller.shared.permits).acquire_owned());
        loop {
            tokio::select! {
                biased;
                permit = &mut permit => return permit.ok(),
                () = self.scope.draining() => return None,
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Ok(done) = done {
                        self.settle(done);
                    }
                }
                key = self.life.inbox.next() => self.life.noted.extend(key),
            }
        }
    }

    /// Waits for the writes in hand.
    pub(super) async fn finish(mut self) {
        while !self.tasks.is_empty() {
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next() => {
                    if let Ok(done) = done {
                        self.settle(done);
                    }
                }
                key = self.life.inbox.next() => self.life.noted.extend(key),
            }
        }
    }

    /// Takes the outcome in.
    fn settle(&mut self, done: Done) {
        let poller = self.poller;
        let mut failed = None;
        for write in &done.written {
            let outcome = match &write.result {
                Ok(_) => outcome_of(write.verb),
                Err(error) => {
                    failed = Some((write, error.clone()));
                    WriteOutcome::Failed
                }
            };
            poller.metrics.written(outcome);
        }
        let succeeded = done.written.iter().filter(|write| write.result.is_ok()).count();
        if succeeded > 0 {
            poller.report.send_modify(|report| report.written += u64::try_from(succeeded).unwrap_or_default());
        }
        for (key, _) in &done.planned {
            self.life.table.own(key.clone(), done.id);
        }
        let Some(entry) = self.life.table.get_mut(done.id) else { return };
        if let Some((write, error)) = failed {
            let refused = matches!(error.retry(), Retry::Backoff | Retry::After(_));
            entry.fail(Instant::now(), refused);
            poller.write_failed(write, &error);
            return;
        }
        let (now, wrote) = (Instant::now(), !done.written.is_empty());
        let taken_back = entry.contest.settled(wrote, now, poller.shared.interval);
        if wrote && entry.pending.is_none() {
            entry.mended = Some(now);
        }
        let moment = poller.target.store().moment();
        entry.settle(done.print, done.live, write::versions(done.planned, &done.written, moment));
        if !done.deleted.is_empty() {
            entry.delete(done.deleted);
        }
        if let Some(waiting) = done.waiting {
            entry.block(waiting, done.blockers, done.foreign);
        }
        if taken_back {
            poller.metrics.contended_field();
            poller.report.send_modify(|report| report.contended += 1);
        }
        if now.saturating_duration_since(self.shown) >= SHOW_EVERY {
            self.shown = now;
            poller.show(self.life);
        }
    }
}

impl Poller {
    fn write_failed(&self, write: &Written, error: &ClusterError) {
        let family = self.family.as_str();
        if error.is_unreachable() || matches!(error.retry(), Retry::Reread) {
            tracing::debug!(family, object = %write.key, verb = %write.verb, %error, "write failed");
        } else {
            tracing::warn!(family, object = %write.key, verb = %write.verb, %error, "write failed, trying on");
        }
        let text = format!("{} {}: {error}", write.verb, write.key);
        self.report.send_modify(|report| report.write_failure = Some((error.kind(), text)));
    }
}

impl Poller {
    /// What is to be told of an object that somebody keeps editing, where it is time to.
    fn contention(&self, entry: &mut Entry, kind: &Arc<Kind>) -> Option<Contention> {
        let object = entry.contest.object()?.clone();
        if !entry.contest.is_due(Instant::now(), self.shared.interval) {
            return None;
        }
        entry.contest.told();
        let subresource = if self.facts.home == Home::Status && kind.status_subresource { "status" } else { "" };
        Some(Contention {
            family: self.family,
            cluster: self.cluster(),
            kind: Arc::clone(kind),
            subresource,
            object,
            report: self.report.clone(),
        })
    }
}

fn outcome_of(verb: Verb) -> WriteOutcome {
    match verb {
        Verb::Create => WriteOutcome::Created,
        Verb::Delete => WriteOutcome::Deleted,
        _ => WriteOutcome::Patched,
    }
}

/// The hub object whose rows are being read.
struct Current {
    id: RowId,
    print: Fingerprint,
    roll_up: Box<dyn RollUp>,
    bad: Tally,
}
