//! Syncsets that take objects over from one another, and changes that are taken back.

use std::slice::from_ref;

use super::super::Refusal;
use super::store::{Store, cut_short, pass};
use super::world::{Resource, Set, World, map, set};
use crate::syncset::plan::name::SyncSetKind::{SelectorSyncSet, SyncSet};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::ResultRow;
use crate::syncset::plan::spec::{Known, Mode};

fn base() -> Set {
    set(SyncSet, "base")
}

fn with(sets: &[Set]) -> (World, Store) {
    let (mut world, mut store) = (World::new(), Store::default());
    pass(&mut world, &mut store, sets, false);
    (world, store)
}

#[test]
fn a_syncset_that_is_selected_again_after_another_took_its_object_keeps_it() {
    for other in ["a", "z"] {
        let before = set(SelectorSyncSet, "m").maps(&["x"]);
        let other = set(SelectorSyncSet, other).maps(&["x=2"]);
        let (mut world, mut store) = with(from_ref(&before));
        let uid = world.objects[&map("x")].uid;
        // A label flips, the pass dies after the other one has sent the object, and the label flips back.
        cut_short(&mut world, &mut store, from_ref(&other));
        assert_eq!(world.objects[&map("x")].data, "2");
        assert_eq!(store.results[&before.id].inputs, ResultRow::UNFINISHED);
        pass(&mut world, &mut store, from_ref(&before), false);
        let found = world.objects.get(&map("x")).map(|found| (found.uid, found.data.clone()));
        assert_eq!(found, Some((uid, "1".into())));
    }
}

#[test]
fn a_syncset_that_becomes_upsert_deletes_nothing_even_if_it_does_not_render() {
    let before = base().maps(&["a", "b"]);
    // What it dropped before and could not delete is forgotten as well.
    let dropped = before.clone().maps(&["a"]);
    let (mut world, mut store) = with(from_ref(&before));
    world.refusals.insert("DELETE ConfigMap default/b".to_owned(), Refusal::Forbidden);
    pass(&mut world, &mut store, from_ref(&dropped), false);
    world.refusals.clear();
    let mut broken = dropped.mode(Mode::Upsert);
    broken.resources.push(Resource::Broken(Known::Nothing));
    assert!(pass(&mut world, &mut store, from_ref(&broken), false).is_empty());
    assert_eq!(store.results[&broken.id].failure.as_ref().expect("a failure").reason, Reason::TemplateInvalid);
    assert!(pass(&mut world, &mut store, &[], false).is_empty());
    assert_eq!((world.objects.len(), store.applied.len(), store.results.len()), (2, 0, 0));
}

#[test]
fn what_a_syncset_dropped_is_sent_by_the_next_one_even_if_that_one_fails_at_first() {
    let next = base().maps(&["x=next"]);
    let winner = set(SelectorSyncSet, "winner").maps(&["x=winner", "y"]);
    let (mut world, mut store) = with(&[next.clone(), winner.clone()]);
    let uid = world.objects[&map("x")].uid;
    let sets = [next, winner.maps(&["y"])];
    let kinds = std::mem::take(&mut world.kinds);
    assert!(pass(&mut world, &mut store, &sets, false).is_empty());
    assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::KindNotServed);
    assert!(store.results[&sets[1].id].failure.is_none());
    world.kinds = kinds;
    assert_eq!(pass(&mut world, &mut store, &sets, false), ["APPLY ConfigMap default/x"]);
    assert_eq!((world.objects[&map("x")].uid, &world.objects[&map("x")].data), (uid, &"next".into()));
    assert!(store.input(&sets, false).is_none(), "{:#?}", store.results);
}

#[test]
fn what_was_edited_while_another_syncset_should_have_sent_it_is_sent_when_that_one_is_gone() {
    let before = base().maps(&["y=1"]);
    let (mut world, mut store) = with(from_ref(&before));
    let mut broken = set(SelectorSyncSet, "broken").maps(&["y=other"]);
    broken.resources.push(Resource::Broken(Known::Object(map("z"))));
    let after = before.maps(&["y=2"]);
    assert!(pass(&mut world, &mut store, &[after.clone(), broken], false).is_empty());
    assert!(store.results[&after.id].failure.is_none(), "another one sends it");
    assert_eq!(pass(&mut world, &mut store, from_ref(&after), false), ["APPLY ConfigMap default/y"]);
    assert_eq!(world.objects[&map("y")].data, "2");
}
