//! What the caches have yet to show of a pair's own writes.
//!
//! Kept by the section, not by the reconciler: a reconciler that is passivated or panics must not forget that the outcome
//! of a write is unknown, or the next one would decide from a cache that is behind.

use std::sync::Arc;

use super::former::Place;
use super::names::PairKey;
use super::plan::{Namespace, Observed, Step};
use super::section::Watches;
use crate::cluster::{ListMoment, ObjectKey, Store, Written};

/// What is awaited of one object.
#[derive(Debug, Clone, Default)]
pub(super) struct Awaited {
    /// Our last write's version, and when it was acknowledged: a list of later shows it too, also where the object is gone.
    written: Option<(Arc<str>, ListMoment)>,
    /// The version that a refused write was made for: the cache is to show another one. Empty: that there is none.
    stale: Option<Arc<str>>,
    /// The incarnation that we deleted: to be shown as terminating at least.
    deleted: Option<Arc<str>>,
    /// The incarnation that is gone for certain: to go from the cache.
    gone: Option<Arc<str>>,
    /// The outcome of our last write is unknown.
    pub(super) unknown: bool,
}

impl Awaited {
    fn is_shown(&mut self, store: &Store, key: &ObjectKey) -> bool {
        if let Some((written, when)) = &self.written
            && (store.has_caught_up(key, written) || store.has_listed_since(*when))
        {
            self.written = None;
        }
        if let Some(stale) = &self.stale
            && store.get(key).map_or(!stale.is_empty(), |held| held.resource_version != *stale)
        {
            self.stale = None;
        }
        if let Some(uid) = &self.deleted
            && store.get(key).is_none_or(|held| held.deleting || held.uid != *uid)
        {
            self.deleted = None;
        }
        if let Some(uid) = &self.gone
            && store.get(key).is_none_or(|held| held.uid != *uid)
        {
            self.gone = None;
        }
        !self.is_pending()
    }

    /// A write was acknowledged.
    pub(super) fn wrote(&mut self, written: &Written, store: &Store) {
        self.unknown = false;
        self.await_version(&written.resource_version, store);
    }

    /// The cache is to show this version.
    pub(super) fn await_version(&mut self, version: &Arc<str>, store: &Store) {
        if !version.is_empty() {
            self.written = Some((Arc::clone(version), store.moment()));
        }
    }

    /// A write was refused, since the object is no longer what it was made for.
    pub(super) fn await_another(&mut self, than: Option<&Arc<str>>) {
        self.stale = Some(than.map_or_else(|| "".into(), Arc::clone));
    }

    /// This incarnation is to be shown as terminating, or to go from the cache.
    pub(super) fn await_end(&mut self, uid: &Arc<str>) {
        self.deleted = Some(Arc::clone(uid));
    }

    /// This incarnation is to go from the cache: it was read to be gone, or went with its last finalizer, where the
    /// reply has no newer version to wait for.
    pub(super) fn await_absence(&mut self, uid: &Arc<str>) {
        self.gone = Some(Arc::clone(uid));
    }

    /// Nothing is awaited any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn is_pending(&self) -> bool {
        self.written.is_some() || self.stale.is_some() || self.deleted.is_some() || self.gone.is_some()
    }

    fn is_idle(&self) -> bool {
        !self.unknown && !self.is_pending()
    }
}

/// What is awaited of one pair.
#[derive(Debug, Clone, Default)]
pub(super) struct Awaiting {
    pub(super) remote: Awaited,
    pub(super) local: Awaited,
    pub(super) namespace: Awaited,
    /// Versions of secrets that we wrote, on either side, by index of the name.
    secrets: Vec<(usize, Side, ObjectKey, Arc<str>)>,
}

/// Where a secret was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Remote,
    Local,
}

impl Awaiting {
    /// Whether the caches show everything that we wrote.
    pub(super) fn is_shown(&mut self, watches: &Watches, key: &PairKey) -> bool {
        let remote = self.remote.is_shown(watches.remote.store(), &key.remote);
        let local = self.local.is_shown(watches.local.store(), &key.local);
        let namespace_key = ObjectKey::new("", Arc::clone(&key.local.namespace));
        let namespace = self.namespace.is_shown(watches.namespaces.store(), &namespace_key);
        self.secrets.retain(|(index, side, key, written)| {
            let watches = if *side == Side::Remote { &watches.remote_secrets } else { &watches.secrets };
            // What is not watched shows nothing.
            watches.get(*index).is_some_and(|watch| {
                let store = watch.store();
                (store.is_listed() || store.is_listing()) && !store.has_caught_up(key, written)
            })
        });
        remote && local && namespace && self.secrets.is_empty()
    }

    /// The local cluster is gone for ever, and shows nothing any more.
    pub(super) fn forget_local(&mut self) {
        self.local.clear();
        self.namespace.clear();
        self.secrets.retain(|(_, side, ..)| *side == Side::Remote);
    }

    /// The caches have not shown it in time: they are not waited for any longer, the API servers are asked.
    pub(super) fn give_up(&mut self) {
        self.remote.unknown |= self.remote.is_pending();
        self.local.unknown |= self.local.is_pending();
        self.namespace.clear();
        self.secrets.clear();
    }

    /// What is awaited of the object that a step writes; a secret is not among them.
    fn of(&mut self, step: &Step) -> Option<&mut Awaited> {
        match step {
            Step::AddFinalizer
            | Step::RemoveFinalizer
            | Step::WriteRemoteStatus
            | Step::NoteGenerations { .. }
            | Step::NoteError(_) => Some(&mut self.remote),
            Step::AdoptLocal(_)
            | Step::CreateLocal
            | Step::PatchLocal(_)
            | Step::ReleaseLocal(_)
            | Step::DeleteLocal => Some(&mut self.local),
            Step::CreateNamespace | Step::DeleteNamespace | Step::ReleaseNamespace => Some(&mut self.namespace),
            Step::RenewMarks(renewal) => Some(match renewal.place {
                Place::Remote => &mut self.remote,
                Place::Local => &mut self.local,
                Place::Namespace => &mut self.namespace,
            }),
            Step::UploadSecret(_) | Step::NoteSecretHash(_) => None,
        }
    }

    /// Whether the outcome of a step's write is unknown.
    pub(super) fn set_unknown(&mut self, step: &Step, unknown: bool) {
        // A namespace or a secret that was written is written again to the same effect, or the conflict tells.
        if !matches!(step, Step::CreateNamespace | Step::DeleteNamespace | Step::ReleaseNamespace)
            && let Some(awaited) = self.of(step)
        {
            awaited.unknown = unknown;
        }
    }

    /// A step was refused since its object has changed or is gone: the cache is to show that first.
    pub(super) fn refused(&mut self, step: &Step, observed: &Observed) {
        let of_namespace = match &observed.namespace {
            Namespace::Present { object, .. } => Some(object),
            Namespace::None | Namespace::Missing => None,
        };
        let acted_on = match step {
            Step::CreateNamespace | Step::DeleteNamespace | Step::ReleaseNamespace => of_namespace,
            Step::AdoptLocal(_)
            | Step::CreateLocal
            | Step::PatchLocal(_)
            | Step::ReleaseLocal(_)
            | Step::DeleteLocal => observed.local.as_ref(),
            Step::RenewMarks(renewal) => match renewal.place {
                Place::Remote => observed.remote_object(),
                Place::Local => observed.local.as_ref(),
                Place::Namespace => of_namespace,
            },
            _ => observed.remote_object(),
        };
        if let Some(awaited) = self.of(step) {
            awaited.await_another(acted_on.map(|object| &object.resource_version));
        }
    }

    /// A secret was written.
    pub(super) fn wrote_secret(&mut self, index: usize, side: Side, key: ObjectKey, written: &Written) {
        self.secrets.push((index, side, key, Arc::clone(&written.resource_version)));
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_idle(&self) -> bool {
        self.remote.is_idle() && self.local.is_idle() && self.namespace.is_idle() && self.secrets.is_empty()
    }
}
