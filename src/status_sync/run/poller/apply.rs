//! Compares desired fields with the objects in the caches, and writes the differences.
//!
//! The writes of each hub object are one task. A semaphore that all families share limits the tasks. Their outcomes are
//! recorded in the table before the object is compared again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::owned_index::OwnedIndex;
use super::report::ConflictReport;
use super::state::{FamilyContext, PollerState};
use super::write::{self, Written};
use crate::actor::Scope;
use crate::cluster::{Kind, Object, ObjectKey, Retry};
use crate::status_sync::plan::changes;
use crate::status_sync::plan::changes::{Change, Observed, Planned};
use crate::status_sync::plan::families::Fields;
use crate::status_sync::plan::{Digest, Fingerprint, Home, RowId, Shape};
use crate::status_sync::run::database::RolledUp;

/// How often the report is updated during a long pass. Each update iterates over the whole table.
const UPDATE_EVERY: Duration = Duration::from_secs(1);

/// The outcome of one hub object's writes.
struct Outcome {
    id: RowId,
    fingerprint: Fingerprint,
    /// UID of the hub object.
    hub_object: Arc<str>,
    parts: Vec<(ObjectKey, Digest)>,
    /// UIDs of the objects that the plan deletes.
    deleted: Vec<Arc<str>>,
    waiting: Option<changes::Waiting>,
    blockers: Vec<(ObjectKey, Arc<str>)>,
    foreign: Vec<ObjectKey>,
    /// Another writer that keeps editing the object, as it was told before the writes.
    contender: Option<String>,
    written: Vec<Written>,
}

/// The writes of a pass, or of a recheck between passes.
pub(super) struct Apply<'p> {
    context: &'p FamilyContext,
    scope: &'p Scope,
    pub(super) state: &'p mut PollerState,
    tasks: JoinSet<Outcome>,
    owned: OwnedIndex,
    /// When the report was last updated.
    updated: Instant,
}

impl<'p> Apply<'p> {
    pub(super) fn new(context: &'p FamilyContext, scope: &'p Scope, state: &'p mut PollerState) -> Self {
        Self { context, scope, state, tasks: JoinSet::new(), owned: OwnedIndex::default(), updated: Instant::now() }
    }

    /// Clears or deletes the objects of rows of `spec` without rows of `status`, as far as the guard admits it. A database that was
    /// emptied, restored or filled anew looks the same as one whose rows are really gone.
    pub(super) async fn clear(&mut self, ids: Vec<RowId>) {
        let mut candidates = BTreeMap::new();
        for id in ids {
            let Some(planned) = self.plan(id, Vec::new()) else { continue };
            let known = self.context.table.lock().get(id).map(|entry| (entry.key.clone(), entry.was_cleared));
            let Some((key, was_cleared)) = known else { continue };
            if planned.changes.is_empty() || was_cleared {
                self.carry_out(id, Fingerprint::default(), planned).await;
            } else {
                candidates.insert(key, id);
            }
        }
        let wanted = candidates.keys().cloned().collect();
        let admitted = {
            let (now, interval) = (Instant::now(), self.context.shared.interval);
            let table = self.context.table.lock();
            self.context.guard.admit(wanted, |key| table.is_cleared_later(key, now, interval), table.shown())
        };
        for key in admitted {
            let planned = candidates.get(&key).and_then(|id| Some((*id, self.plan(*id, Vec::new())?)));
            let has_begun = match planned {
                Some((id, planned)) => self.carry_out(id, Fingerprint::default(), planned).await,
                None => false,
            };
            if !has_begun {
                self.context.guard.not_cleared(&key);
            }
        }
    }

    /// Applies the rows of one hub object.
    pub(super) async fn object(&mut self, rolled_up: RolledUp) {
        let RolledUp { id, fingerprint, desired, bad } = rolled_up;
        if let Some(entry) = self.context.table.lock().get_mut(id) {
            entry.bad = bad;
        }
        let Some(planned) = self.plan(id, desired) else { return };
        self.carry_out(id, fingerprint, planned).await;
    }

    /// Compares the desired fields with the objects in the caches.
    fn plan(&mut self, id: RowId, desired: Vec<Fields>) -> Option<Planned> {
        let table = self.context.table.lock();
        let entry = table.get(id)?;
        let targets = self.context.hub.targets();
        let hub_object = self.context.hub.hub_objects().get(&entry.key);
        let spec = &self.context.spec;
        let mut owned: BTreeMap<ObjectKey, Arc<Object>> = BTreeMap::new();
        if let (Shape::Numbered | Shape::Named, Some(live)) = (spec.shape, &hub_object) {
            let indexed = self.owned.owned_by(live, |namespace| targets.in_namespace(namespace)).iter().cloned();
            let wanted = (0..desired.len()).map(|index| changes::part_name(spec.shape, &entry.key, index));
            let cached = indexed.chain(wanted).filter_map(|key| Some((key.clone(), targets.get(&key)?)));
            owned.extend(cached.filter(|(_, object)| !entry.has_deleted(&object.uid)));
        }
        let server_result = |key: &ObjectKey, desired| entry.server_result(targets, key, desired);
        let outdated = |key: &ObjectKey, desired| entry.is_outdated(targets, key, desired);
        let observed = Observed { hub_object, owned, server_result: &server_result, outdated: &outdated };
        Some(changes::next(spec, &entry.key, desired, &observed))
    }

    /// Carries out a plan. If there is something to write, a task with a slot does so. Returns whether that was begun.
    async fn carry_out(&mut self, id: RowId, fingerprint: Fingerprint, planned: Planned) -> bool {
        let context = self.context;
        let key = context.table.lock().get(id).map(|entry| entry.key.clone());
        let Some(live) = key.and_then(|key| context.hub.hub_objects().get(&key)) else { return false };
        let deleted = planned.changes.iter().filter_map(|change| match change {
            Change::Delete { object } => Some(Arc::clone(&object.uid)),
            _ => None,
        });
        let mut outcome = Outcome {
            id,
            fingerprint,
            hub_object: Arc::clone(&live.uid),
            deleted: deleted.collect(),
            parts: planned.parts,
            waiting: planned.waiting,
            blockers: planned.blockers,
            foreign: planned.foreign,
            contender: None,
            written: Vec::new(),
        };
        if planned.changes.is_empty() {
            self.record(outcome);
            return true;
        }
        let Some(kind) = context.hub.target.kind() else { return false };
        let changes = write::prepare(&kind, &context.spec, planned.changes);
        let Some(slot) = self.slot().await else { return false };
        let cluster = context.hub.cluster();
        let (family, identification) = (context.family, Arc::clone(&context.shared.identification));
        let conflict = self.conflict(id, &kind);
        self.tasks.spawn(async move {
            if let Some(conflict) = conflict
                && identification.before_write(family).await.is_ok()
            {
                outcome.contender = Some(conflict.send().await);
            }
            outcome.written = write::send_all(&cluster, &kind, changes, &identification, family).await;
            drop(slot);
            outcome
        });
        true
    }

    /// Waits for a slot. Meanwhile it records outcomes and takes keys from the mailbox. Returns `None` if the poller is
    /// drained.
    async fn slot(&mut self) -> Option<OwnedSemaphorePermit> {
        let mut slot = std::pin::pin!(Arc::clone(&self.context.shared.slots).acquire_owned());
        loop {
            tokio::select! {
                biased;
                slot = &mut slot => return slot.ok(),
                () = self.scope.draining() => return None,
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Ok(outcome) = ended {
                        self.record(outcome);
                    }
                }
                key = self.state.inbox.next() => self.state.changed_keys.extend(key),
            }
        }
    }

    /// The conflict with another writer that has to be reported before the write of an object that begins now, if there is one.
    fn conflict(&self, id: RowId, kind: &Arc<Kind>) -> Option<ConflictReport> {
        let (context, now) = (self.context, Instant::now());
        let object = context.table.lock().get_mut(id)?.conflict.write_begins(now, context.shared.interval)?;
        let is_subresource = context.spec.home == Home::Status && kind.status_subresource;
        Some(ConflictReport {
            family: context.family,
            cluster: context.hub.cluster(),
            kind: Arc::clone(kind),
            subresource: if is_subresource { "status" } else { "" },
            uid: context.hub.targets().get(&object).map(|shown| Arc::clone(&shown.uid)),
            object,
            events: context.shared.events.clone(),
        })
    }

    /// Waits for the writes in progress, and then records the keys that have arrived since the last time.
    pub(super) async fn finish(mut self) {
        while !self.tasks.is_empty() {
            tokio::select! {
                biased;
                Some(ended) = self.tasks.join_next() => {
                    if let Ok(outcome) = ended {
                        self.record(outcome);
                    }
                }
                key = self.state.inbox.next() => self.state.changed_keys.extend(key),
            }
        }
        for key in std::mem::take(&mut self.state.changed_keys) {
            self.context.record_change(&key);
        }
    }

    /// Records an outcome in the table and in the report.
    fn record(&mut self, outcome: Outcome) {
        let reporter = &self.context.reporter;
        reporter.written(&outcome.written);
        let mut table = self.context.table.lock();
        for (key, _) in &outcome.parts {
            table.own(key.clone(), outcome.id);
        }
        let Some(entry) = table.get_mut(outcome.id) else { return };
        if let Some(contender) = outcome.contender {
            entry.conflict.told(contender);
        }
        let now = Instant::now();
        let is_refused = |written: &Written| written.result.as_ref().is_err_and(|error| !error.outcome_is_unknown());
        let wrote = !outcome.written.is_empty();
        let is_clearing = wrote && outcome.fingerprint.rows() == 0 && !entry.was_cleared;
        if is_clearing && outcome.written.iter().all(is_refused) {
            self.context.guard.not_cleared(&entry.key);
        } else if is_clearing {
            self.context.guard.cleared(&entry.key);
        }
        let failed = outcome.written.iter().rev().find_map(|write| Some((write, write.result.as_ref().err()?)));
        if let Some((write, error)) = failed {
            let failure = reporter.write_failed(write, error);
            entry.record_failure(now, matches!(error.retry(), Retry::Backoff | Retry::After(_)), failure);
            return;
        }
        let has_corrected = entry.conflict.record_applied(wrote);
        if wrote && entry.pending.is_none() {
            entry.corrected = Some(now);
        }
        let parts = write::versions(outcome.parts, &outcome.written, self.context.hub.targets().moment());
        if entry.was_cleared && outcome.fingerprint.rows() > 0 {
            self.context.guard.came_back(&entry.key);
        }
        entry.record_applied(outcome.fingerprint, outcome.hub_object, parts);
        if !outcome.deleted.is_empty() {
            entry.record_deleted(outcome.deleted);
        }
        if let Some(waiting) = outcome.waiting {
            entry.record_blockers(waiting, outcome.blockers, outcome.foreign);
        }
        if has_corrected {
            reporter.corrected();
        }
        if now.saturating_duration_since(self.updated) >= UPDATE_EVERY {
            self.updated = now;
            reporter.update(&table, &self.context.guard);
        }
    }
}
