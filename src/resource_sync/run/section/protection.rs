//! Protection against mistakes that would affect many objects: which pairs are the section's own, how many of them may be
//! deleted, whether a missing remote object exists under another key, and what is reported when the guard holds something.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

use super::Section;
use crate::cluster::{Error, Object, ObjectKey};
use crate::guard::{self, Bounds, GuardedChange, HeldChanges, Sending};
use crate::resource_sync::plan::guard::{PairChange, guarded_change_of};
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::observed::{Absence, Namespace, Observed, Remote};
use crate::resource_sync::plan::ownership;
use crate::resource_sync::plan::step::Step;
use crate::resource_sync::run::section::events::PairEvent;
use crate::state::NotDurable;

/// A log line and the report name at most this many keys.
const NAMED: usize = 20;

/// The keys of all remote objects by UID, those outside of the selector included, and the number of the cache's list that
/// preceded the request for them.
#[derive(Default)]
pub(crate) struct Sources {
    list: u64,
    keys: Option<std::collections::HashMap<Arc<str>, ObjectKey>>,
}

impl Section {
    /// Whether a local object belongs to one of the section's own pairs: its marks prove it, or
    /// it was in step with its remote object. One that came from another remote cluster does not.
    pub(crate) fn is_own(&self, local: &Object, remote: Option<&Object>) -> bool {
        !self.is_from_elsewhere(local) && ownership::is_own(local, remote, &self.policy)
    }

    /// A change that is pending for a pair. Where its local object is gone, only the namespace is left, which is none of the own pairs that
    /// [`Self::own_pairs`] counts.
    pub(crate) fn pending_change(
        &self,
        key: &PairKey,
        local: Option<&Object>,
        remote: Option<&Object>,
        change: GuardedChange,
    ) -> PairChange {
        let own = local.is_some_and(|local| self.is_own(local, remote));
        let is_empty = || self.watches.local.store().count_in_namespace(&key.local.namespace) == 0;
        PairChange { change, own, to_namespace_only: local.is_none() && is_empty() }
    }

    /// Whether the pair is the section's own.
    pub(crate) fn is_own_pair(&self, observed: &Observed) -> bool {
        let remote = observed.remote_object().map(|remote| &**remote);
        observed.local.as_deref().is_none_or(|local| self.is_own(local, remote))
    }

    /// How many pairs of its own the section has. The caches are shared with other sections, so the pairs have to be counted;
    /// that is done at most once a second. A count of caches that are not complete yet is too low for a decision, and not kept.
    pub(crate) fn own_pairs(&self) -> usize {
        let now = Instant::now();
        if let Some(count) = self.index(|index| index.own_pairs(now)) {
            return count;
        }
        let is_complete = self.is_listed();
        let remotes = self.watches.remote.store();
        let is_own = |local: &Arc<Object>| {
            let pair = self.mapping.pair_of_local(&local.key);
            pair.is_some_and(|pair| self.is_own(local, remotes.get(&pair.remote).as_deref()))
        };
        let count = self.watches.local.store().objects().iter().filter(|local| is_own(local)).count();
        if is_complete {
            self.index(|index| index.counted_own_pairs(count, now));
        }
        count
    }

    /// The inputs of the guard's limit.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { own: self.own_pairs(), blocked: self.is_blocked() }
    }

    /// The key of the remote object that a local one records as its source, if that is not the pair's. With a selector the
    /// cache does not hold all objects, so the UIDs of all remote objects are requested, once after each list.
    pub(crate) async fn find_source(&self, observed: &Observed, list: u64) -> Result<Option<ObjectKey>, Error> {
        let marks = &self.policy.marks;
        let Some(source) = observed.local.as_ref().and_then(|local| local.annotation(&marks.remote_uid)) else {
            return Ok(None);
        };
        let (Some(kind), false) = (self.remote_kind(), self.config.selector.is_empty()) else { return Ok(None) };
        let mut sources = self.sources.lock().await;
        if sources.list != list || sources.keys.is_none() {
            *sources = Sources { list, keys: Some(self.remote_cluster().uids(&kind).await?) };
        }
        let found = sources.keys.as_ref().and_then(|keys| keys.get(source));
        Ok(found.filter(|key| **key != observed.pair.remote).cloned())
    }

    /// The guarded change that a step makes, and how many objects it affects.
    pub(crate) fn guarded_change_of(&self, step: &Step, observed: &Observed) -> Option<(GuardedChange, usize)> {
        let locals = self.watches.local.store();
        guarded_change_of(step, observed, &self.policy, |namespace| locals.count_in_namespace(namespace))
    }

    /// Counts the request for a guarded change before it is sent, so that it counts even if its answer is lost or the process ends. An error:
    /// the count can't be stored, so the request must not be sent and is not counted.
    pub(crate) async fn count_guarded_change(
        &self,
        key: &PairKey,
        count: usize,
        observed: &Observed,
    ) -> Result<Sending<PairKey>, NotDurable> {
        let namespace = match &observed.namespace {
            // All objects of a namespace are deleted with it.
            Namespace::Present { object, .. } if count > 1 => Some(&*object.key.name),
            _ => None,
        };
        let sending = self.index(|index| index.guard.send(key, count, namespace, Instant::now()));
        self.remember_guard();
        // Where the state can't be stored, `is_blocked` has let nothing through for one window since the run began.
        if !self.state().is_durable() {
            return Ok(sending);
        }
        match self.state().persisted().await {
            Ok(()) => Ok(sending),
            Err(error) => {
                self.not_sent(Some(sending));
                Err(error)
            }
        }
    }

    /// Takes a count back: the request was not sent, or was certainly refused.
    pub(crate) fn not_sent(&self, sending: Option<Sending<PairKey>>) {
        let Some(sending) = sending else { return };
        let keys = self.index(|index| index.guard.changes.not_sent(sending));
        for key in keys {
            // A watch event may have cleared the pending change in the meantime.
            self.update_pending_change(&key);
        }
        self.remember_guard();
    }

    /// Stores what the guard has counted in the section's state.
    pub(crate) fn remember_guard(&self) {
        let remembered = self.index(|index| index.guard.changes.remembered(Instant::now(), SystemTime::now()));
        self.state().change(|state| state.guard = remembered);
    }

    /// How many objects the guard holds, by what would be done to them.
    pub(crate) fn held_objects(&self) -> HeldChanges {
        let bounds = self.bounds();
        self.index(|index| index.guard.changes.held(bounds, Instant::now()))
    }

    /// What the guard holds, in words; `None`: nothing.
    pub(crate) fn what_is_held(&self) -> Option<String> {
        let held = self.held_objects();
        if held.is_empty() {
            return None;
        }
        Some(guard::waits_for_approval(guard::in_words(&held), self.name()))
    }

    /// Reports that an existing object was adopted, in the log and an Event.
    pub(crate) fn report_adoption(&self, observed: &Observed) {
        let Some(local) = &observed.local else { return };
        let overwritten = observed.permitted == Some(GuardedChange::Overwrite);
        tracing::info!(
            section = %self.name(), key = %local.key, uid = %local.uid, overwritten,
            "adopted a local object that existed before its remote object"
        );
        let content = if overwritten { "differed and is overwritten" } else { "is the same" };
        let note = format!(
            "existed before {} on the remote cluster and is now synced from it; its content {content}",
            observed.pair.remote
        );
        self.emit_event(PairEvent::adopted(local, note));
    }

    /// Logs a deletion with its cause.
    pub(crate) fn log_deletion(&self, object: &Object, observed: &Observed) {
        let cause = match &observed.remote {
            Remote::Present(_) | Remote::Absent(Absence::LeftSelector(_)) => "the remote object is being deleted",
            Remote::Absent(Absence::SeenTerminating) => "the remote object was deleted",
            Remote::Absent(_) => "the remote object is missing",
        };
        let kind = if object.key.namespace.is_empty() && !observed.pair.local.namespace.is_empty() {
            "namespace"
        } else {
            &self.config.resource.plural
        };
        tracing::info!(section = %self.name(), key = %object.key, uid = %object.uid, kind, cause, "deleted");
    }

    /// Reports that the guard has begun to hold objects: in the log with the first keys, and in an Event on the first local
    /// object.
    pub(crate) fn report_held(&self) {
        let bounds = self.bounds();
        let (held, first) =
            self.index(|index| (index.guard.changes.held(bounds, Instant::now()), index.guard.changes.first(NAMED)));
        let keys: Vec<String> = first.iter().map(|(key, _)| key.to_string()).collect();
        guard::log_held(self.name(), None, &held, &keys);
        let local = first.iter().find_map(|(key, _)| self.watches.local.store().get(&key.local));
        if let Some(local) = local {
            let what = format!("{} objects of section {}", held.values().sum::<usize>(), self.name());
            let note = format!("{}: {}", guard::waits_for_approval(what, self.name()), guard::in_words(&held));
            self.emit_event(PairEvent::held(&local, note));
        }
    }
}
