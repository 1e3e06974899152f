//! Our own writes that the caches do not show yet.
//!
//! A run keeps no copy of them. If it panics or is aborted, the section must still know that the outcome of a write is unknown; the
//! next run would otherwise decide from an outdated cache.
//!
//! Status sync has its own expectations, since it compares digests and never waits for a cache. Both share the rule itself:
//! [`Store::has_caught_up`] with the version of the write, or [`Store::has_listed_since`] the reply.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::{ListMoment, Object, ObjectKey, Store, Written};
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::observed::{Namespace, Observed, Remote};
use crate::resource_sync::plan::policy::Policy;
use crate::resource_sync::plan::renewal::RenewedObject;
use crate::resource_sync::plan::step::Step;

/// How long a run waits for a cache to show our write. After that it sends a live GET.
pub(crate) const CATCH_UP: Duration = Duration::from_secs(5);

/// A cache, as far as expectations need it.
pub(crate) trait Cache {
    fn held(&self, key: &ObjectKey) -> Option<Arc<Object>>;
    /// Whether it shows the result of this write or a newer version.
    fn has_caught_up(&self, key: &ObjectKey, written: &str) -> bool;
    /// Whether a list that was requested after that moment has ended.
    fn has_listed_since(&self, moment: ListMoment) -> bool;
    /// Whether it has listed or is listing.
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

/// The expectations of all pairs. Pairs without any have no entry.
#[derive(Debug, Default)]
pub(crate) struct Expectations(HashMap<PairKey, PairExpectations>);

impl Expectations {
    /// The expectations of a pair; `None` if there are none.
    pub(crate) fn of(&self, key: &PairKey) -> Option<&PairExpectations> {
        self.0.get(key)
    }

    pub(crate) fn change(&mut self, key: &PairKey, change: impl FnOnce(&mut PairExpectations)) {
        let expected = self.0.entry(key.clone()).or_default();
        change(expected);
        if expected.is_idle() {
            self.0.remove(key);
        }
    }

    /// How long a run of the pair has to wait for the caches; `None` if they show everything, or if the time is up.
    pub(crate) fn wait<C: Cache>(&mut self, key: &PairKey, caches: &Caches<'_, C>, now: Instant) -> Option<Duration> {
        let expected = self.0.get_mut(key)?;
        let left = expected.wait(key, caches, now);
        if expected.is_idle() {
            self.0.remove(key);
        }
        left
    }
}

/// The expectations of one object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    /// The version of our last write, and when it was acknowledged. A later list shows the write too, even if the object is gone.
    written: Option<(Arc<str>, ListMoment)>,
    /// The version that a rejected write was made for. The cache has to show another one; empty: it has to show an object.
    stale: Option<Arc<str>>,
    /// The UID that we deleted. The cache has to show it as terminating, or no more.
    deleted: Option<Arc<str>>,
    /// The UID that is certainly gone. The cache must no longer show it.
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

    /// Records that a write was acknowledged.
    pub(crate) fn wrote(&mut self, written: &Written, moment: ListMoment) {
        self.unknown = false;
        self.expect_version(&written.resource_version, moment);
    }

    /// Expects the cache to show this version, or a list that is requested after this moment.
    pub(crate) fn expect_version(&mut self, version: &Arc<str>, moment: ListMoment) {
        if !version.is_empty() {
            self.written = Some((Arc::clone(version), moment));
        }
    }

    /// Expects another version than this one, because a write was rejected with a conflict.
    pub(crate) fn expect_another(&mut self, than: Option<&Arc<str>>) {
        self.stale = Some(than.map_or_else(|| "".into(), Arc::clone));
    }

    /// Expects the cache to show this UID as terminating, or no more.
    pub(crate) fn expect_end(&mut self, uid: &Arc<str>) {
        self.deleted = Some(Arc::clone(uid));
    }

    /// Expects the cache to drop this UID. A read has shown that it is gone, or it went with its last finalizer, and the reply
    /// has no newer version to wait for.
    pub(crate) fn expect_absence(&mut self, uid: &Arc<str>) {
        self.gone = Some(Arc::clone(uid));
    }

    /// Expects only this version from now on, because a read has returned it.
    pub(crate) fn restart_at(&mut self, version: &Arc<str>, moment: ListMoment) {
        self.clear();
        self.expect_version(version, moment);
    }

    /// Expects only this absence from now on, because a read has shown it.
    pub(crate) fn restart_without(&mut self, uid: &Arc<str>) {
        self.clear();
        self.expect_absence(uid);
    }

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

#[derive(Debug, Clone, Default)]
pub(crate) struct PairExpectations {
    pub(crate) remote: Expected,
    pub(crate) local: Expected,
    pub(crate) namespace: Expected,
    /// When runs began to wait for the caches.
    waiting_since: Option<Instant>,
    /// Versions of the secrets that we have written, on either side, with the index of the name.
    secrets: Vec<(usize, Side, ObjectKey, Arc<str>)>,
}

/// Of which objects the outcome of our last write is unknown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unknown {
    pub(crate) remote: bool,
    pub(crate) local: bool,
}

/// The object that a step writes.
enum Target {
    Remote,
    Local,
    Namespace,
}

impl Target {
    /// `None` for a secret.
    fn of(step: &Step) -> Option<Self> {
        Some(match step {
            Step::AddFinalizer
            | Step::RemoveFinalizer
            | Step::WriteRemoteStatus
            | Step::NoteGenerations { .. }
            | Step::NoteError(_) => Self::Remote,
            Step::AdoptLocal(_)
            | Step::CreateLocal
            | Step::PatchLocal(_)
            | Step::ReleaseLocal(_)
            | Step::DeleteLocal => Self::Local,
            Step::CreateNamespace | Step::DeleteNamespace | Step::ReleaseNamespace => Self::Namespace,
            Step::RenewMarks(renewal) => match renewal.place {
                RenewedObject::Remote => Self::Remote,
                RenewedObject::Namespace => Self::Namespace,
            },
            Step::UploadSecret(_) | Step::NoteSecretHash(_) => return None,
        })
    }
}

/// The side on which a secret was written.
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
            // A secret that is not watched is never shown.
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
            // The watch is delayed, or will never show the write: ask the API server.
            self.give_up();
        }
        self.waiting_since = None;
        None
    }

    /// Removes the expectations of the local cluster, which is gone for good.
    pub(crate) fn forget_local(&mut self) {
        self.local.clear();
        self.namespace.clear();
        self.secrets.retain(|(_, side, ..)| *side == Side::Remote);
    }

    /// Ends the wait for the caches. The API servers have to be asked instead.
    fn give_up(&mut self) {
        self.remote.unknown |= self.remote.is_pending();
        self.local.unknown |= self.local.is_pending();
        self.namespace.clear();
        self.secrets.clear();
    }

    pub(crate) fn unknown(&self) -> Unknown {
        Unknown { remote: self.remote.unknown, local: self.local.unknown }
    }

    fn of(&mut self, target: &Target) -> &mut Expected {
        match target {
            Target::Remote => &mut self.remote,
            Target::Local => &mut self.local,
            Target::Namespace => &mut self.namespace,
        }
    }

    /// Records whether the outcome of a step's write is unknown.
    pub(crate) fn set_unknown(&mut self, step: &Step, unknown: bool) {
        // A namespace or a secret can simply be written again: the effect is the same, or the reply is a conflict.
        if !matches!(step, Step::CreateNamespace | Step::DeleteNamespace | Step::ReleaseNamespace)
            && let Some(target) = Target::of(step)
        {
            self.of(&target).unknown = unknown;
        }
    }

    /// Records that a step was acknowledged: the caches have to show its result.
    pub(crate) fn acknowledged(
        &mut self,
        step: &Step,
        written: &Written,
        observed: &Observed,
        caches: &Caches<'_, Store>,
        policy: &Policy,
    ) {
        self.set_unknown(step, false);
        let Some(target) = Target::of(step) else { return };
        // The watch does not show an object outside of the selector.
        if !matches!(observed.remote, Remote::Present(_)) && matches!(step, Step::NoteError(_) | Step::RemoveFinalizer)
        {
            return;
        }
        let moment = match target {
            Target::Remote => caches.remote.moment(),
            Target::Local => caches.local.moment(),
            Target::Namespace => caches.namespaces.moment(),
        };
        let expected = self.of(&target);
        expected.wrote(written, moment);
        match (step, &observed.remote, &observed.local, &observed.namespace) {
            (Step::RemoveFinalizer, Remote::Present(remote), ..)
                if remote.deleting
                    && remote.finalizers.iter().all(|held| policy.marks.is_finalizer_on(remote, held)) =>
            {
                expected.expect_absence(&remote.uid);
            }
            (Step::DeleteLocal, _, Some(local), _) => expected.expect_end(&local.uid),
            (Step::DeleteNamespace, .., Namespace::Present { object, .. }) => expected.expect_end(&object.uid),
            _ => {}
        }
    }

    /// Records that a step was rejected because its object has changed or is gone: the cache has to show that first.
    pub(crate) fn refused(&mut self, step: &Step, observed: &Observed) {
        let Some(target) = Target::of(step) else { return };
        let acted_on = match (&target, &observed.namespace) {
            (Target::Remote, _) => observed.remote_object(),
            (Target::Local, _) => observed.local.as_ref(),
            (Target::Namespace, Namespace::Present { object, .. }) => Some(object),
            (Target::Namespace, Namespace::None | Namespace::Missing) => None,
        };
        self.of(&target).expect_another(acted_on.map(|object| &object.resource_version));
    }

    /// Records that a secret was written.
    pub(crate) fn wrote_secret(&mut self, index: usize, side: Side, key: ObjectKey, written: &Written) {
        self.secrets.push((index, side, key, Arc::clone(&written.resource_version)));
    }

    /// Whether there is nothing to expect.
    fn is_idle(&self) -> bool {
        self.remote.is_idle() && self.local.is_idle() && self.namespace.is_idle() && self.secrets.is_empty()
    }
}
