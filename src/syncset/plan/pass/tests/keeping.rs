//! What stays although nobody wants it any more stays also when its namespace or the definition of its kind goes.

use std::slice::from_ref;

use super::super::{Outcome, Refusal, Release};
use super::store::{Store, pass, run};
use super::world::{Flags, Resource, Set, World, object, set};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::name::SyncSetKind::{SelectorSyncSet, SyncSet};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::spec::{Behavior, Mode};

fn namespace() -> ObjectRef {
    object("", "Namespace", "", "n")
}

fn within() -> ObjectRef {
    object("", "ConfigMap", "n", "x")
}

fn definition() -> ObjectRef {
    object("apiextensions.k8s.io", "CustomResourceDefinition", "", "widgets.example.com")
}

fn base() -> Set {
    set(SyncSet, "base")
}

fn with(sets: &[Set]) -> (World, Store) {
    let (mut world, mut store) = (World::new(), Store::default());
    pass(&mut world, &mut store, sets, false);
    (world, store)
}

fn outcome(world: &mut World, store: &mut Store, sets: &[Set]) -> Outcome {
    let input = store.input(sets, false).expect("it is due");
    run(world, store, input)
}

/// The outer object and one in it that is to be kept.
fn keeping(outer: &ObjectRef, inner: &ObjectRef) -> Set {
    let mut keeping = base().objects(&[outer.clone(), inner.clone()]);
    keeping.resources[1] = Resource::Ready(inner.clone(), "1".to_owned(), Flags { keep: true, ..Flags::default() });
    keeping
}

fn pairs() -> [(ObjectRef, ObjectRef); 2] {
    [(namespace(), within()), (definition(), object("example.com", "Widget", "default", "w"))]
}

#[test]
fn what_is_kept_keeps_its_namespace_or_definition_when_both_are_dropped() {
    for (outer, inner) in pairs() {
        let (mut world, mut store) = with(&[keeping(&outer, &inner)]);
        assert_eq!(world.objects.len(), 2);
        let outcome = outcome(&mut world, &mut store, &[]);
        assert_eq!(outcome.releases.into_iter().collect::<Vec<_>>(), [(Release::Kept, 1)]);
        assert_eq!(world.objects.len(), 2, "{outer}");
        assert!(store.applied.is_empty() && store.results.is_empty());
    }
}

#[test]
fn what_was_kept_long_ago_keeps_its_namespace_or_definition_also_for_another_syncset() {
    for (outer, inner) in pairs() {
        for moves in [false, true] {
            let before = keeping(&outer, &inner);
            let (mut world, mut store) = with(from_ref(&before));
            let mut sets = vec![before.objects(from_ref(&outer))];
            pass(&mut world, &mut store, &sets, false);
            assert!(store.input(&sets, false).is_none(), "nothing waits for it");
            assert_eq!(store.applied.len(), 2);
            if moves {
                sets = vec![set(SelectorSyncSet, "other").objects(from_ref(&outer))];
                pass(&mut world, &mut store, &sets, false);
                assert!(store.applied.keys().all(|(_, syncset)| *syncset == sets[0].id));
            }
            pass(&mut world, &mut store, &[], false);
            assert_eq!(world.objects.len(), 2, "{outer}");
            assert!(store.applied.is_empty() && store.results.is_empty());
        }
    }
}

#[test]
fn what_is_wanted_again_is_as_if_it_had_not_been_kept() {
    let before = keeping(&namespace(), &within());
    let (mut world, mut store) = with(from_ref(&before));
    let dropped = before.objects(&[namespace()]);
    pass(&mut world, &mut store, from_ref(&dropped), false);
    let again = dropped.objects(&[namespace(), within()]);
    pass(&mut world, &mut store, from_ref(&again), false);
    assert!(store.applied.values().all(|row| row.wanted && row.tracked && !row.adopted));
    pass(&mut world, &mut store, &[], false);
    assert!(world.objects.is_empty() && store.applied.is_empty());
}

#[test]
fn what_existed_before_keeps_its_namespace() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate, Behavior::CreateOnly] {
        let (mut world, mut store) = with(&[base().objects(&[namespace()])]);
        world.create(&within());
        let both = base().behavior(behavior).objects(&[namespace(), within()]);
        pass(&mut world, &mut store, &[both], false);
        pass(&mut world, &mut store, &[], false);
        assert!(world.objects.contains_key(&within()), "{behavior:?}");
        assert!(store.applied.is_empty() && store.results.is_empty());
    }
}

#[test]
fn what_is_not_tracked_for_the_sake_of_another_document_keeps_its_namespace() {
    let (mut world, mut store) = with(&[base().objects(&[namespace(), within()])]);
    let mut input = store.input(&[], false).expect("it is gone");
    input.applied.iter_mut().filter(|row| row.object == within()).for_each(|row| row.tracked = false);
    run(&mut world, &mut store, input);
    assert_eq!(world.objects.len(), 2);
}

#[test]
fn what_a_later_syncset_drops_in_the_same_pass_is_looked_at_before_its_namespace_goes() {
    for keep in [false, true] {
        let outer = set(SyncSet, "a").objects(&[namespace()]);
        let inner = set(SyncSet, "b").objects(&[within()]).flags(Flags { keep, ..Flags::default() });
        for is_gone in [false, true] {
            let (mut world, mut store) = with(&[outer.clone(), inner.clone()]);
            let mut sets = vec![inner.clone().objects(&[])];
            if !is_gone {
                sets.push(outer.clone().objects(&[]));
            }
            pass(&mut world, &mut store, &sets, false);
            assert_eq!(world.objects.len(), if keep { 2 } else { 0 });
            assert!(store.input(&sets, false).is_none(), "it was done in one pass");
        }
    }
}

#[test]
fn a_namespace_stays_as_long_as_something_in_it_can_not_be_looked_at() {
    let (mut world, mut store) = with(&[base().objects(&[namespace(), within()])]);
    world.refusals.insert("GET ConfigMap n/x".to_owned(), Refusal::Server);
    pass(&mut world, &mut store, &[], false);
    assert_eq!((world.objects.len(), store.applied.len()), (2, 2));
    assert_eq!(store.results[&base().id].failure.as_ref().expect("a failure").reason, Reason::DeletionFailed);
    world.refusals.clear();
    pass(&mut world, &mut store, &[], false);
    assert_eq!((world.objects.len(), store.applied.len()), (0, 0));
}

#[test]
fn what_upsert_drops_is_forgotten_and_what_existed_before_it_is_not() {
    for existed in [false, true] {
        let outer = set(SelectorSyncSet, "outer").objects(&[namespace()]);
        let (mut world, mut store) = with(from_ref(&outer));
        if existed {
            world.create(&within());
        }
        let upsert = base().mode(Mode::Upsert).objects(&[within()]);
        pass(&mut world, &mut store, &[outer.clone(), upsert.clone()], false);
        pass(&mut world, &mut store, &[outer.clone(), upsert.clone().objects(&[])], false);
        assert_eq!(store.applied.len(), if existed { 2 } else { 1 });
        pass(&mut world, &mut store, &[upsert.objects(&[])], false);
        assert_eq!(world.objects.contains_key(&within()), existed);
    }
}

#[test]
fn what_existed_before_keeps_its_namespace_also_if_several_syncsets_wanted_it() {
    for names in [["s", "t"], ["t", "s"]] {
        let sets = [
            set(SyncSet, names[0]).objects(&[within()]),
            set(SelectorSyncSet, names[1]).objects(&[namespace(), within()]),
        ];
        let (mut world, mut store) = (World::new(), Store::default());
        world.create(&within());
        pass(&mut world, &mut store, &sets, false);
        pass(&mut world, &mut store, &sets.map(|set| set.objects(&[])), false);
        assert!(world.objects.contains_key(&within()));
    }
}
