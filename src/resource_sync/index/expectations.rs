//! What the caches have yet to show of our own writes.
//!
//! A reconciler keeps no copy of it: one that is passivated or panics must not forget that the outcome of a write is unknown,
//! or the next one would decide from a cache that is behind.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::{ListMoment, Object, ObjectKey, Store, Written};
use crate::resource_sync::rules::former::Place;
use crate::resource_sync::rules::names::PairKey;
use crate::resource_sync::rules::plan::{Namespace, Observed, Step};

/// A cache that has not shown our write after this is not waited for any longer: a live GET tells.
pub(crate) const CATCH_UP: Duration = Duration::from_secs(5);

/// What a cache shows, as far as an expectation asks.
pub(crate) trait Cache {
    /// The object of a key.
    fn held(&self, key: &ObjectKey) -> Option<Arc<Object>>;
    /// Whether what it shows of an object is this write's result or newer.
    fn has_caught_up(&self, key: &ObjectKey, written: &str) -> bool;
    /// Whether a list that was asked for after that moment has ended.
    fn has_listed_since(&self, moment: ListMoment) -> bool;
    /// Whether it shows anything, or is about to.
    fn is_there(&self) -> bool;
}

impl Cache for Store {
    fn held(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.get(key)
    }

    fn has_caught_up(&self, key: &ObjectKey, written: &str) -> bool {
        Self::has_caught_up(self, key, written)
    }

    fn has_listed_since(&self, moment: ListMoment) -> bool {
        Self::has_listed_since(self, moment)
    }

    fn is_there(&self) -> bool {
        self.is_listed() || self.is_listing()
    }
}

/// The caches of a section.
pub(crate) struct Caches<'c, C> {
    /// The kind on the remote.
    pub(crate) remote: &'c C,
    /// The kind on the local cluster.
    pub(crate) local: &'c C,
    /// Namespaces of the local cluster.
    pub(crate) namespaces: &'c C,
    /// The named secrets on the remote and on the local cluster, by index of the name, where they are watched.
    pub(crate) secrets: [Vec<&'c C>; 2],
}

/// What is expected of all pairs; most have nothing outstanding, and no entry.
#[derive(Debug, Default)]
pub(crate) struct Expectations(HashMap<PairKey, PairExpectations>);

impl Expectations {
    /// What is expected of a pair; `None`: nothing.
    pub(crate) fn of(&self, key: &PairKey) -> Option<&PairExpectations> {
        self.0.get(key)
    }

    /// Changes what is expected of a pair.
    pub(crate) fn change(&mut self, key: &PairKey, change: impl FnOnce(&mut PairExpectations)) {
        let expected = self.0.entry(key.clone()).or_default();
        change(expected);
        if expected.is_idle() {
            self.0.remove(key);
        }
    }

    /// How long a run of the pair has to wait for the caches; `None`: they show everything, or have had their time.
    pub(crate) fn wait<C: Cache>(&mut self, key: &PairKey, caches: &Caches<'_, C>, now: Instant) -> Option<Duration> {
        let expected = self.0.get_mut(key)?;
        let left = expected.wait(key, caches, now);
        if expected.is_idle() {
            self.0.remove(key);
        }
        left
    }
}

/// What is expected of one object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    /// Our last write's version, and when it was acknowledged: a list of later shows it too, also where the object is gone.
    written: Option<(Arc<str>, ListMoment)>,
    /// The version that a refused write was made for: the cache is to show another one. Empty: that there is none.
    stale: Option<Arc<str>>,
    /// The incarnation that we deleted: to be shown as terminating at least.
    deleted: Option<Arc<str>>,
    /// The incarnation that is gone for certain: to go from the cache.
    gone: Option<Arc<str>>,
    /// The outcome of our last write is unknown.
    pub(crate) unknown: bool,
}

impl Expected {
    fn is_shown(&mut self, cache: &impl Cache, key: &ObjectKey) -> bool {
        if !self.is_pending() {
            return true;
        }
        if let Some((written, when)) = &self.written
            && (cache.has_caught_up(key, written) || cache.has_listed_since(*when))
        {
            self.written = None;
        }
        if let Some(stale) = &self.stale
            && cache.held(key).map_or(!stale.is_empty(), |held| held.resource_version != *stale)
        {
            self.stale = None;
        }
        if let Some(uid) = &self.deleted
            && cache.held(key).is_none_or(|held| held.deleting || held.uid != *uid)
        {
            self.deleted = None;
        }
        if let Some(uid) = &self.gone
            && cache.held(key).is_none_or(|held| held.uid != *uid)
        {
            self.gone = None;
        }
        !self.is_pending()
    }

    /// A write was acknowledged.
    pub(crate) fn wrote(&mut self, written: &Written, moment: ListMoment) {
        self.unknown = false;
        self.expect_version(&written.resource_version, moment);
    }

    /// The cache is to show this version, or a list that is asked for after this moment.
    pub(crate) fn expect_version(&mut self, version: &Arc<str>, moment: ListMoment) {
        if !version.is_empty() {
            self.written = Some((Arc::clone(version), moment));
        }
    }

    /// A write was refused, since the object is no longer what it was made for.
    pub(crate) fn expect_another(&mut self, than: Option<&Arc<str>>) {
        self.stale = Some(than.map_or_else(|| "".into(), Arc::clone));
    }

    /// This incarnation is to be shown as terminating, or to go from the cache.
    pub(crate) fn expect_end(&mut self, uid: &Arc<str>) {
        self.deleted = Some(Arc::clone(uid));
    }

    /// This incarnation is to go from the cache: it was read to be gone, or went with its last finalizer, where the
    /// reply has no newer version to wait for.
    pub(crate) fn expect_absence(&mut self, uid: &Arc<str>) {
        self.gone = Some(Arc::clone(uid));
    }

    /// The object was read and found to be this version: only that is expected from now on.
    pub(crate) fn restart_at(&mut self, version: &Arc<str>, moment: ListMoment) {
        self.clear();
        self.expect_version(version, moment);
    }

    /// It was read and found to be gone: only that is expected from now on.
    pub(crate) fn restart_without(&mut self, uid: &Arc<str>) {
        self.clear();
        self.expect_absence(uid);
    }

    /// Nothing is expected any more.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn is_pending(&self) -> bool {
        self.written.is_some() || self.stale.is_some() || self.deleted.is_some() || self.gone.is_some()
    }

    fn is_idle(&self) -> bool {
        !self.unknown && !self.is_pending()
    }
}

/// What is expected of one pair.
#[derive(Debug, Clone, Default)]
pub(crate) struct PairExpectations {
    /// Of the remote object.
    pub(crate) remote: Expected,
    /// Of the local object.
    pub(crate) local: Expected,
    /// Of the local namespace.
    pub(crate) namespace: Expected,
    /// Since when runs have waited for the caches.
    waiting_since: Option<Instant>,
    /// Versions of secrets that we wrote, on either side, by index of the name.
    secrets: Vec<(usize, Side, ObjectKey, Arc<str>)>,
}

/// Where a secret was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Remote,
    Local,
}

impl PairExpectations {
    /// Whether the caches show everything that we wrote.
    fn is_shown<C: Cache>(&mut self, key: &PairKey, caches: &Caches<'_, C>) -> bool {
        let remote = self.remote.is_shown(caches.remote, &key.remote);
        let local = self.local.is_shown(caches.local, &key.local);
        let namespace_key = ObjectKey::new("", Arc::clone(&key.local.namespace));
        let namespace = self.namespace.is_shown(caches.namespaces, &namespace_key);
        let [remotes, locals] = &caches.secrets;
        self.secrets.retain(|(index, side, key, written)| {
            let caches = if *side == Side::Remote { remotes } else { locals };
            // What is not watched shows nothing.
            caches.get(*index).is_some_and(|cache| cache.is_there() && !cache.has_caught_up(key, written))
        });
        remote && local && namespace && self.secrets.is_empty()
    }

    fn wait<C: Cache>(&mut self, key: &PairKey, caches: &Caches<'_, C>, now: Instant) -> Option<Duration> {
        if !self.is_shown(key, caches) {
            let since = *self.waiting_since.get_or_insert(now);
            let left = CATCH_UP.saturating_sub(now.saturating_duration_since(since));
            if !left.is_zero() {
                return Some(left);
            }
            // The watch is behind, or will never show it: look.
            self.give_up();
        }
        self.waiting_since = None;
        None
    }

    /// The local cluster is gone for ever, and shows nothing any more.
    pub(crate) fn forget_local(&mut self) {
        self.local.clear();
        self.namespace.clear();
        self.secrets.retain(|(_, side, ..)| *side == Side::Remote);
    }

    /// The caches have not shown it in time: they are not waited for any longer, the API servers are asked.
    fn give_up(&mut self) {
        self.remote.unknown |= self.remote.is_pending();
        self.local.unknown |= self.local.is_pending();
        self.namespace.clear();
        self.secrets.clear();
    }

    /// What is expected of the object that a step writes; a secret is not among them.
    fn of(&mut self, step: &Step) -> Option<&mut Expected> {
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
    pub(crate) fn set_unknown(&mut self, step: &Step, unknown: bool) {
        // A namespace or a secret that was written is written again to the same effect, or the conflict tells.
        if !matches!(step, Step::CreateNamespace | Step::DeleteNamespace | Step::ReleaseNamespace)
            && let Some(expected) = self.of(step)
        {
            expected.unknown = unknown;
        }
    }

    /// A step was refused since its object has changed or is gone: the cache is to show that first.
    pub(crate) fn refused(&mut self, step: &Step, observed: &Observed) {
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
        if let Some(expected) = self.of(step) {
            expected.expect_another(acted_on.map(|object| &object.resource_version));
        }
    }

    /// A secret was written.
    pub(crate) fn wrote_secret(&mut self, index: usize, side: Side, key: ObjectKey, written: &Written) {
        self.secrets.push((index, side, key, Arc::clone(&written.resource_version)));
    }

    /// Whether there is nothing to remember.
    fn is_idle(&self) -> bool {
        self.remote.is_idle() && self.local.is_idle() && self.namespace.is_idle() && self.secrets.is_empty()
    }
}
