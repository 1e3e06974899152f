//! What the users of a watch require of it: one value, complete before the watch starts.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::Watch;
use crate::cluster::kind::Kind;
use crate::cluster::object::{Object, ObjectKey};

/// Reduces an object to the parts that are to be cached.
pub type Projection = Arc<dyn Fn(&mut Object) + Send + Sync>;

/// Receives the changes of a watch.
pub trait Follower: Send + Sync {
    /// Whether objects with this key are of interest. Objects that no follower wants are not cached.
    fn wants(&self, key: &ObjectKey) -> bool;
    /// An object appeared, changed or disappeared. Returns when the follower has room for the next call.
    fn changed<'a>(&'a self, watch: &'a Watch, key: &'a ObjectKey) -> BoxFuture<'a, ()>;
    /// A list has ended, and these keys vanished since the last one. `first`: the cache was void before. All followers
    /// are called before any of them acts on the list; the result is passed to [`Follower::listed`].
    fn note(&self, _watch: &Watch, _first: bool, vanished: Vec<ObjectKey>) -> Vec<ObjectKey> {
        vanished
    }
    /// All followers have noted the end of the list, and tasks that waited for it continue. Returns when the follower
    /// has room for the next call.
    fn listed<'a>(&'a self, _watch: &'a Watch, _first: bool, _noted: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
    /// The definition of the kind may have changed; `differs`: discovery shows the kind served differently.
    fn redefined(&self, _watch: &Watch, _differs: bool) {}
    /// Nobody demands the watch any more, and its cache was emptied: the follower drops what it derived from it.
    fn forget(&self) {}
}

/// What the users of a watch require of it. The watch does what any of them requires: see [`WatchSpec::share`].
#[derive(Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent options, each set by name")]
pub struct WatchSpec {
    /// Keep kubectl's last-applied annotation in the cache.
    pub keep_last_applied: bool,
    /// Remember which objects were terminating when they disappeared. Whoever requires this must
    /// [`forget`](crate::cluster::Store::forget) them.
    pub remember_terminated: bool,
    /// Keep the key of every object by its UID, also of objects that no follower wants.
    pub index_uids: bool,
    /// List and watch only where both verbs are granted. An access review asks again every few minutes. It restricts the
    /// watch only if all who share it want that.
    pub only_if_granted: bool,
    /// Reduces every object before it is cached, for kinds with large objects of which only a small part is needed. All
    /// users of the watch see the reduced objects, so the [id](super::WatchId::projection) names the projection.
    pub projection: Option<Projection>,
    /// Cache the portable parts of objects, if the kind is in the table of [`BuiltIn`](crate::cluster::BuiltIn). The
    /// [id](super::WatchId::projection) says so too.
    pub portable: bool,
    /// How the kind is served, which saves discovery. For built-in kinds in a version that every cluster serves.
    pub kind: Option<Kind>,
    /// Watches that list before this one lists, unless their cluster is unreachable. A watch that already waits for this
    /// one is ignored.
    pub list_after: Vec<Arc<Watch>>,
    /// The watch starts when one of these kinds is known to be namespaced. Empty: it starts at once.
    pub only_beside_namespaced: Vec<Arc<Watch>>,
    /// Who receives its changes, in this order.
    pub followers: Vec<Arc<dyn Follower>>,
}

impl WatchSpec {
    pub fn followed_by(follower: Arc<dyn Follower>) -> Self {
        Self { followers: vec![follower], ..Self::default() }
    }

    /// The rule by which users share one watch: it does what any of them requires, and a restriction stays only if all of
    /// them state it.
    pub(super) fn share(&mut self, other: Self) {
        let only_if_granted = self.only_if_granted && other.only_if_granted;
        self.merge(other);
        self.only_if_granted = only_if_granted;
    }

    /// What the same user requires as well: a flag is set if either sets it, lists are appended, and the first kind and the
    /// first projection stay, because everyone who shares the watch's id states the same ones.
    pub(super) fn merge(&mut self, other: Self) {
        let Self {
            keep_last_applied,
            remember_terminated,
            index_uids,
            only_if_granted,
            projection,
            portable,
            kind,
            list_after,
            only_beside_namespaced,
            followers,
        } = other;
        self.keep_last_applied |= keep_last_applied;
        self.remember_terminated |= remember_terminated;
        self.index_uids |= index_uids;
        self.only_if_granted |= only_if_granted;
        self.projection = self.projection.take().or(projection);
        self.portable |= portable;
        self.kind = self.kind.take().or(kind);
        self.list_after.extend(list_after);
        self.only_beside_namespaced.extend(only_beside_namespaced);
        self.followers.extend(followers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_watch_does_what_any_of_its_users_requires() {
        let reduce = || Some(Arc::new(|_: &mut Object| {}) as Projection);
        let one = || WatchSpec { keep_last_applied: true, index_uids: true, ..WatchSpec::default() };
        let other = || WatchSpec {
            remember_terminated: true,
            only_if_granted: true,
            projection: reduce(),
            kind: Some(Kind::lease()),
            ..WatchSpec::default()
        };
        for (mut merged, second) in [(one(), other()), (other(), one()), (other(), other())] {
            let both = merged.keep_last_applied != second.keep_last_applied;
            let restricted = merged.only_if_granted && second.only_if_granted;
            merged.share(second);
            assert_eq!((merged.keep_last_applied, merged.index_uids), (both, both));
            assert!(merged.remember_terminated);
            assert_eq!(merged.only_if_granted, restricted, "one user's restriction does not bind the others");
            assert!(merged.projection.is_some() && merged.kind == Some(Kind::lease()));
        }
        let mut nothing = WatchSpec::default();
        nothing.merge(WatchSpec::default());
        assert!(!nothing.keep_last_applied && !nothing.only_if_granted && nothing.projection.is_none());
    }
}
