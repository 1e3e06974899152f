//! The guard of a family: what a pass would clear is counted, and held if it is too much.
//!
//! An object counts for as long as it stays cleared: rows that come and go are usual. So counts are not stored, and a restart forgets
//! them with what was approved. The poller asks the guard in a pass, and operators list and approve what is held, so it is behind a
//! lock, which is held for one call.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::cluster::ObjectKey;
use crate::config::SectionName;
use crate::guard::{self, Bounds, Guard, GuardedChange, HeldChanges, Sending};
use crate::status_sync::config::StatusFamily;

/// A log line names at most this many keys.
const NAMED: usize = 20;

/// What a run of the poller has counted.
#[derive(Default)]
struct Counted {
    guard: Guard<ObjectKey>,
    /// Of how many objects.
    bounds: Bounds,
    /// What the last pass may clear, until it has.
    under_way: BTreeMap<ObjectKey, Sending<ObjectKey>>,
}

/// The guard of a family, by the keys of the hub's objects.
pub(super) struct FamilyGuard {
    section: SectionName,
    family: StatusFamily,
    counted: Mutex<Counted>,
}

impl FamilyGuard {
    pub(super) fn new(section: SectionName, family: StatusFamily) -> Self {
        Self { section, family, counted: Mutex::default() }
    }

    /// Forgets everything: a run begins, or has ended, and then another replica may run the section.
    pub(super) fn forget(&self) {
        *self.counted.lock() = Counted::default();
    }

    /// Takes what a pass would clear of a family in which so many objects show something, and returns what it may clear. `is_later`:
    /// whether a later pass will clear something of which an earlier one has failed to.
    pub(super) fn admit(
        &self,
        wanted: Vec<ObjectKey>,
        is_later: impl Fn(&ObjectKey) -> bool,
        objects: usize,
    ) -> Vec<ObjectKey> {
        let now = Instant::now();
        let Counted { guard, bounds, under_way } = &mut *self.counted.lock();
        let was_held = !guard.held(*bounds, now).is_empty();
        bounds.own = objects;
        let wanted: BTreeMap<_, _> = wanted.into_iter().map(|key| (key, GuardedChange::ClearStatus)).collect();
        let admitted = guard.admit(wanted, is_later, *bounds, now);
        let held = guard.held(*bounds, now);
        if !was_held && !held.is_empty() {
            let first: Vec<String> = guard.first(NAMED).iter().map(|(key, _)| key.to_string()).collect();
            guard::log_held(&self.section, Some(self.family.as_str()), &held, &first);
        }
        *under_way = admitted.into_iter().collect();
        under_way.keys().cloned().collect()
    }

    /// Takes back a clearing that was not sent, or that the hub has certainly refused.
    pub(super) fn not_cleared(&self, key: &ObjectKey) {
        let Counted { guard, under_way, .. } = &mut *self.counted.lock();
        if let Some(sending) = under_way.remove(key) {
            guard.not_sent(sending);
        }
    }

    /// The object may be cleared now. It counts until it has rows again.
    pub(super) fn cleared(&self, key: &ObjectKey) {
        self.counted.lock().under_way.remove(key);
    }

    /// The object has rows again, and shows them.
    pub(super) fn came_back(&self, key: &ObjectKey) {
        self.counted.lock().guard.undone(key);
    }

    /// How many objects are held; none before the first pass.
    pub(super) fn held(&self) -> HeldChanges {
        let Counted { guard, bounds, .. } = &mut *self.counted.lock();
        guard.held(*bounds, Instant::now())
    }

    pub(super) fn held_objects(&self) -> Vec<(ObjectKey, GuardedChange)> {
        if self.held().is_empty() { Vec::new() } else { self.counted.lock().guard.first(usize::MAX) }
    }

    /// Approves what is held. Returns how many objects that are.
    pub(super) fn approve(&self) -> usize {
        if self.held().is_empty() { 0 } else { self.counted.lock().guard.approve().len() }
    }
}
