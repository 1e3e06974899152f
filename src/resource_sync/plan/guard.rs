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
use crate::guard::{Guard, GuardedChange, PendingChange, Sending, is_recent};

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
