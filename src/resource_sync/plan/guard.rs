//! The guard of a section's pairs. The caches report each [`GuardedChange`] to a pair as a [`PairChange`], before the section makes
//! any of them.
//!
//! A live GET confirms first that a missing remote object is really gone. An approval lifts the limit for the changes that are pending,
//! and does not replace the GET. The guard only counts confirmations: the run that deletes sends its own GET.
//!
//! An approved deletion includes the local namespace that was created for the section's pairs, which follows when it is empty.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::names::PairKey;
use super::observed::{Absence, Namespace, Observed, Remote};
use super::ownership;
use super::patch;
use super::policy::Policy;
use super::server_result::ServerResult;
use super::step::Step;
use crate::cluster::{CanonicalJson, Object};
use crate::guard::{Guard, GuardedChange, PendingChange, Sending, is_recent};
use crate::resource_sync::config::Adopt;

/// A guarded change that is about to be made to a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairChange {
    pub change: GuardedChange,
    /// Whether it is one of the section's own pairs.
    pub own: bool,
    /// Its local object is gone. What is left is the namespace that was created for it, without an object of the kind.
    pub to_namespace_only: bool,
}

#[derive(Debug, Default)]
pub struct PairGuard {
    pub changes: Guard<PairKey>,
    /// The local namespaces in which an approved deletion was sent within the window.
    emptied: BTreeMap<Arc<str>, Instant>,
}

impl PairGuard {
    pub fn register(&mut self, key: PairKey, pending: PairChange, now: Instant) {
        let PairChange { change, own, to_namespace_only } = pending;
        // The object may have been deleted by somebody else after the approval, which includes the namespace. The other way round it
        // does not: there are objects in the namespace again.
        let was_approved = || self.changes.approved_change_to(&key) == Some(GuardedChange::Delete);
        let is_emptied = || self.emptied.get(&key.local.namespace).is_some_and(|when| is_recent(*when, now));
        let is_approved = to_namespace_only && (was_approved() || is_emptied());
        self.changes.register(key, PendingChange { change, own, follows: to_namespace_only }, is_approved, now);
    }

    /// The pair has a remote object, which lives in its namespace: what was approved there is over.
    pub fn came_back(&mut self, key: &PairKey) {
        self.emptied.remove(&key.local.namespace);
    }

    /// Counts the objects that one pending change is about to change. With `namespace`, the pending changes in it are made along
    /// with it, since the namespace is deleted.
    pub fn send(&mut self, key: &PairKey, count: usize, namespace: Option<&str>, now: Instant) -> Sending<PairKey> {
        if self.changes.approved_change_to(key) == Some(GuardedChange::Delete) {
            self.emptied.insert(Arc::clone(&key.local.namespace), now);
        }
        let goes_along = |other: &PairKey| namespace.is_some_and(|namespace| *other.local.namespace == *namespace);
        self.changes.send(key, count, goes_along, now)
    }

    /// Records an operator's approval of all pending changes, and returns their pairs.
    pub fn approve(&mut self, now: Instant) -> Vec<PairKey> {
        self.emptied.retain(|_, when| is_recent(*when, now));
        self.changes.approve()
    }
}

/// Whether writing the local status clears the status of a remote object whose pair was in step before. If the local cluster is
/// suddenly another one, this is so for all objects at once.
pub fn clears_status(remote: &Object, local: &Object, policy: &Policy) -> bool {
    let is_blank = |status: &Option<CanonicalJson>| status.as_ref().is_none_or(|status| status.as_str() == "{}");
    is_blank(&local.status)
        && !is_blank(&remote.status)
        && !remote.has_own_status
        && ownership::has_notes(remote, policy)
}

/// The guarded change that the rules would make to a pair whose remote object exists. It follows from the two objects alone, before the
/// section acts on any pair.
pub fn change_to_existing(remote: &Object, local: &Object, policy: &Policy) -> Option<GuardedChange> {
    let is_left_alone = |object: &Object| object.deleting || policy.marks.is_paused(object);
    if is_left_alone(remote) || is_left_alone(local) {
        return None;
    }
    if ownership::existed_before(local, remote, policy) {
        let differs = || patch::content_change(remote, local, policy, &ServerResult::default()).is_some();
        return (policy.adopt == Adopt::Always && differs()).then_some(GuardedChange::Overwrite);
    }
    (policy.write_back && clears_status(remote, local, policy)).then_some(GuardedChange::ClearStatus)
}

/// The guarded change that a step makes, if it makes one, and the number of objects affected; `objects_in`: how many local objects a
/// namespace has.
pub fn guarded_change_of(
    step: &Step,
    observed: &Observed,
    policy: &Policy,
    objects_in: impl FnOnce(&str) -> usize,
) -> Option<(GuardedChange, usize)> {
    let is_missing = matches!(&observed.remote, Remote::Absent(Absence::Confirmed));
    match step {
        Step::DeleteLocal if is_missing => Some((GuardedChange::Delete, 1)),
        Step::DeleteNamespace if is_missing => {
            let Namespace::Present { object, .. } = &observed.namespace else { return None };
            Some((GuardedChange::Delete, objects_in(&object.key.name).max(1)))
        }
        Step::ReleaseLocal(_) if is_missing || observed.permitted == Some(GuardedChange::LetGo) => {
            Some((GuardedChange::LetGo, 1))
        }
        Step::AdoptLocal(_) if observed.permitted == Some(GuardedChange::Overwrite) => {
            Some((GuardedChange::Overwrite, 1))
        }
        Step::WriteRemoteStatus => {
            let (remote, local) = (observed.remote_object()?, observed.local.as_deref()?);
            clears_status(remote, local, policy).then_some((GuardedChange::ClearStatus, 1))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Bounds, Decision, WINDOW};

    const OWN: Bounds = Bounds { own: 50, blocked: false };

    fn pending(own: bool) -> PairChange {
        PairChange { change: GuardedChange::Delete, own, to_namespace_only: false }
    }

    fn of_namespace() -> PairChange {
        PairChange { own: false, to_namespace_only: true, ..pending(false) }
    }

    /// The pair for which a namespace was created.
    fn owner(number: usize) -> PairKey {
        PairKey::alike(&format!("n{number}"), "owner")
    }

    /// Whether the owners of eleven namespaces are held.
    fn owners_held(guard: &mut PairGuard, pending: PairChange, now: Instant) -> bool {
        for number in 0..11 {
            guard.register(owner(number), pending, now);
            guard.changes.confirm(&owner(number), GuardedChange::Delete);
        }
        !guard.changes.held(OWN, now).is_empty()
    }

    /// Confirms all pending changes, and sends those that may go.
    fn send_all(guard: &mut PairGuard, now: Instant) -> usize {
        let keys = guard.changes.waiting();
        for key in &keys {
            guard.changes.confirm(key, GuardedChange::Delete);
        }
        let goes = |key: &&PairKey| {
            let goes = guard.changes.decide(key, OWN, now) == Decision::Go;
            if goes {
                guard.send(key, 1, None, now);
            }
            goes
        };
        keys.iter().filter(goes).count()
    }

    /// Namespaces follow their objects, be they those of their owners or others, unless somebody lives there again or the approval is old.
    #[tokio::test(start_paused = true)]
    async fn an_approved_deletion_includes_the_namespaces_that_it_empties() {
        let deleted = || {
            let (mut guard, now) = (PairGuard::default(), Instant::now());
            (0..11).for_each(|number| guard.register(PairKey::alike(&format!("n{number}"), "a"), pending(true), now));
            guard.approve(now);
            assert_eq!(send_all(&mut guard, now), 11);
            (guard, now)
        };
        let (mut guard, now) = deleted();
        assert!(!owners_held(&mut guard, of_namespace(), now));
        assert_eq!(guard.changes.decide(&owner(3), OWN, now), Decision::Go);
        let (mut guard, now) = deleted();
        assert!(owners_held(&mut guard, pending(true), now), "other objects there");
        let (mut guard, now) = deleted();
        assert!(owners_held(&mut guard, of_namespace(), now + WINDOW * 2), "too late");
        let (mut guard, now) = deleted();
        (0..11).for_each(|number| guard.came_back(&PairKey::alike(&format!("n{number}"), "b")));
        assert!(owners_held(&mut guard, of_namespace(), now), "somebody lives there again");
        // Objects are there again before the namespace goes.
        let (mut guard, now) = deleted();
        assert!(!owners_held(&mut guard, of_namespace(), now));
        assert!(owners_held(&mut guard, PairChange { to_namespace_only: false, ..of_namespace() }, now));
        // Somebody else deletes the objects after the approval.
        let (mut guard, now) = (PairGuard::default(), Instant::now());
        assert!(owners_held(&mut guard, pending(true), now));
        guard.approve(now);
        assert!(!owners_held(&mut guard, of_namespace(), now));
        // A late event of the object makes its deletion pending once more; then only the namespace is left.
        let (mut guard, now) = deleted();
        (0..11).for_each(|number| guard.register(owner(number), pending(false), now));
        assert!(!owners_held(&mut guard, of_namespace(), now));
    }
}
