//! The work in hand of a pass: rows that are read, what they come to, and the writes under way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::contention::Contention;
use super::digest::{Digest, Fingerprint};
use super::entry::Entry;
use super::families::{Fields, RollUp, StatusRow};
use super::family::{Home, Shape, begin};
use super::made::Made;
use super::metrics::WriteOutcome;
use super::pass::{Stopped, answer};
use super::plan::{self, Change, Observed, Planned};
use super::poller::{Life, Poller};
use super::row_id::RowId;
use super::tally::Tally;
use super::write::{self, Written};
use crate::actor::Scope;
use crate::cluster::{Kind, Object, ObjectKey, Retry, Verb};
use crate::db::Type;

/// A pass may be long: so often its report follows what is written. It looks at every entry.
const SHOW_EVERY: Duration = Duration::from_secs(1);

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
    /// What was made for hub objects.
    made: Made,
    /// When the report was last brought up to date.
    shown: Instant,
}

impl<'w> Work<'w> {
    pub(super) fn new(poller: &'w Poller, scope: &'w Scope, life: &'w mut Life) -> Self {
        Self { poller, scope, life, tasks: JoinSet::new(), made: Made::default(), shown: Instant::now() }
    }

    /// Serves what has no rows: what would be cleared or deleted passes the guard. `counts` as the guard takes it.
    pub(super) async fn clear(&mut self, without: Vec<RowId>, counts: bool) {
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
    pub(super) async fn read(&mut self, ids: Vec<RowId>) -> Result<(), Stopped> {
        let poller = self.poller;
        let asked = async {
            // They are sent, and not kept while the rows come.
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            let (database, name) = (&poller.shared.database, poller.family.rows_name());
            database.rows(name, &poller.rows, &[(&ids, Type::TEXT_ARRAY)]).await
        };
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
            let owned = self.made.by(live, |namespace| target.in_namespace(namespace)).iter().cloned();
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
        let (family, standing) = (self.poller.family, Arc::clone(&self.poller.shared.standing));
        let contention = self.life.table.get_mut(id).and_then(|entry| self.poller.contention(entry, &kind));
        self.tasks.spawn(async move {
            if let Some(contention) = contention
                && standing.before_write(family).await.is_ok()
            {
                contention.tell().await;
            }
            done.written = write::carry_out(&cluster, &kind, changes, &standing, family).await;
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

    /// Waits for the writes in hand, and leaves what is known now.
    pub(super) async fn finish(mut self) -> &'w mut Life {
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
        self.life
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
