//! Laws of the index, without a runtime: time and what the caches show are passed in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::expectations::{CATCH_UP, Cache, Caches, Expectations};
use super::{ChangedPair, Index};
use crate::cluster::object::Decoded;
use crate::cluster::{ListMoment, Object, ObjectKey, Store, Written};
use crate::guard::GuardedChange;
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::guard::PairChange;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::policy::Policy;
use crate::status::ObjectState;

fn object(name: &str, version: &str) -> Arc<Object> {
    let text = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"uid-{name}","resourceVersion":"{version}"}},"spec":{{}}}}"#
    );
    Arc::new(serde_json::from_str::<Decoded>(&text).expect("an object").into_object())
}

fn policy() -> Policy {
    Policy::new(&crate::resource_sync::tests::config("databases", "databases", ""))
}

/// A cache that shows these objects and no lists.
#[derive(Default)]
struct Showing(BTreeMap<ObjectKey, Arc<Object>>);

impl Showing {
    fn of(object: &Arc<Object>) -> Self {
        Self(BTreeMap::from([(object.key.clone(), Arc::clone(object))]))
    }
}

impl Cache for Showing {
    fn held(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.0.get(key).cloned()
    }

    fn has_caught_up(&self, key: &ObjectKey, written: &str) -> bool {
        self.0.get(key).is_some_and(|held| crate::cluster::is_at_least(&held.resource_version, written))
    }

    fn has_listed_since(&self, _: ListMoment) -> bool {
        false
    }

    fn is_there(&self) -> bool {
        true
    }
}

fn wait(expectations: &mut Expectations, pair: &PairKey, local: &Showing, now: Instant) -> Option<Duration> {
    let nothing = Showing::default();
    let caches = Caches { remote: &nothing, local, namespaces: &nothing, secrets: [Vec::new(), Vec::new()] };
    expectations.wait(pair, &caches, now)
}

#[test]
fn a_write_is_expected_until_the_cache_shows_it_and_no_longer_than_five_seconds() {
    let (pair, start, moment) = (PairKey::alike("n", "a"), Instant::now(), Store::default().moment());
    let written = Written { uid: "uid-a".into(), resource_version: "7".into(), generation: 1 };
    let (before, after) = (Showing::of(&object("a", "6")), Showing::of(&object("a", "7")));
    let mut expectations = Expectations::default();
    assert_eq!(wait(&mut expectations, &pair, &before, start), None, "nothing was written");

    expectations.change(&pair, |expected| expected.local.wrote(&written, moment));
    assert_eq!(wait(&mut expectations, &pair, &before, start), Some(CATCH_UP));
    assert_eq!(wait(&mut expectations, &pair, &after, start + Duration::from_secs(2)), None);
    assert!(expectations.of(&pair).is_none(), "what is shown is forgotten");

    expectations.change(&pair, |expected| expected.local.wrote(&written, moment));
    assert_eq!(wait(&mut expectations, &pair, &before, start), Some(CATCH_UP));
    let later = start + Duration::from_secs(3);
    assert_eq!(wait(&mut expectations, &pair, &before, later), Some(Duration::from_secs(2)), "from the first wait on");
    assert_eq!(wait(&mut expectations, &pair, &before, start + CATCH_UP), None);
    assert!(expectations.of(&pair).is_some_and(|expected| expected.local.unknown), "the API server is asked");
}

#[test]
fn of_many_pairs_one_makes_a_namespace_and_one_deletes_it() {
    let (mut index, start, name) = (Index::default(), Instant::now(), Arc::from("team"));
    assert!(index.namespaces.may_create(&name, start));
    assert!(!index.namespaces.may_create(&name, start + Duration::from_secs(4)));
    assert!(index.namespaces.may_create(&name, start + Duration::from_secs(5)), "it was not made");
    index.namespaces.was_not_made(&name);
    assert!(index.namespaces.may_create(&name, start + Duration::from_secs(6)));

    let (one, two) = (PairKey::alike("team", "one"), PairKey::alike("team", "two"));
    let mut namespace = Object::clone(&object("team", "7"));
    assert!(index.namespaces.may_delete(&namespace, Some(&one), start));
    assert!(!index.namespaces.may_delete(&namespace, Some(&two), start));
    assert!(!index.namespaces.another_awaits_end_of(&namespace, &two), "it is not going yet");
    namespace.deleting = true;
    assert!(index.namespaces.another_awaits_end_of(&namespace, &two));
    assert!(!index.namespaces.another_awaits_end_of(&namespace, &one), "it awaits that itself");
    index.namespaces.forget_deletion("team");
    assert!(!index.namespaces.another_awaits_end_of(&namespace, &two));
}

#[test]
fn what_a_watch_shows_is_noted_in_one_go_and_a_change_that_is_no_longer_pending_frees_others() {
    let (mut index, policy, start) = (Index::default(), policy(), Instant::now());
    let (one, two) = (PairKey::alike("n", "one"), PairKey::alike("n", "two"));
    let local = object("one", "5");
    let gone = ChangedPair {
        remote: None,
        local: Some(&local),
        pending: Some(PairChange { change: GuardedChange::Delete, own: true, to_namespace_only: false }),
        direction: Direction::Spec,
    };
    for pair in [&one, &two] {
        assert!(!index.shown(pair, &gone, &policy, start));
    }
    assert_eq!(index.guard.changes.waiting(), [one.clone(), two.clone()]);
    let later = start + Duration::from_secs(3);
    assert_eq!(index.table.oldest_pending(later).spec, Some(Duration::from_secs(3)));
    index.guard.changes.confirm(&two, GuardedChange::Delete);
    let back = ChangedPair { remote: Some(&local), pending: None, ..gone };
    assert!(index.shown(&one, &back, &policy, later), "the other one may go now");
    assert_eq!(index.table.oldest_pending(later).spec, Some(Duration::from_secs(3)), "since the first change");
}

#[test]
fn a_run_begins_with_nothing_but_the_clusters() {
    let (mut index, policy, now) = (Index::default(), policy(), Instant::now());
    let pair = PairKey::alike("n", "a");
    index.phase.begin(true, now);
    index.clusters.identities.local = Some("edge".into());
    index.table.ended(&pair, ObjectState::Failing, now, None, now);
    index.guard.register(
        pair.clone(),
        PairChange { change: GuardedChange::Delete, own: true, to_namespace_only: false },
        now,
    );
    index.expectations.change(&pair, |expected| expected.remote.unknown = true);
    index.requests.parked.insert(pair.clone());
    index.requests.unselected = true;
    index.counted_own_pairs(7, now);
    index.left.secrets.push("gone".into());

    index.begin();
    assert_eq!(index.clusters.identities.local.as_deref(), Some("edge"));
    assert!(!index.phase.is_noting() && index.phase.began.is_none());
    assert_eq!((index.table.keys().count(), index.guard.changes.waiting().len()), (0, 0));
    assert!(index.expectations.of(&pair).is_none() && index.requests.parked.keys().is_empty());
    assert!(!index.requests.unselected && index.left.secrets.is_empty());
    assert_eq!(index.own_pairs(now), None);
    // The first look at a pair makes its record anew.
    assert!(!index.observe(&pair, None, None, &policy, now).1);
}
