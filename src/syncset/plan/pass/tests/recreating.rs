//! Objects that are deleted to be created again, and those that are not ours to delete.

use std::slice::from_ref;

use uuid::Uuid;

use super::super::{Input, Outcome, Refusal};
use super::store::{Call, Fate, Store, pass, run, run_while};
use super::world::{Flags, Object, Set, World, map, set};
use crate::syncset::plan::name::SyncSetKind::{SelectorSyncSet, SyncSet};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::Failure;

const RECREATED: Flags = Flags { may_adopt: false, may_recreate: true, keep: false };

fn base(content: &str) -> Set {
    let generation = i64::try_from(content.len()).expect("it is short");
    Set { generation, ..set(SyncSet, "base").maps(&[content]).flags(RECREATED) }
}

/// A cluster with an object of the syncset that refuses each change of it.
fn immutable(set: &Set) -> (World, Store) {
    let (mut world, mut store) = (World::new(), Store::default());
    pass(&mut world, &mut store, from_ref(set), false);
    world.log.clear();
    world.refusals.insert("APPLY ConfigMap default/a".to_owned(), Refusal::Invalid);
    (world, store)
}

fn lines(verbs: &[&str]) -> Vec<String> {
    verbs.iter().map(|verb| format!("{verb} ConfigMap default/a")).collect()
}

fn failure(store: &Store, set: &Set) -> Failure {
    store.results[&set.id].failure.clone().expect("a failure")
}

#[test]
fn an_object_that_is_not_provably_ours_is_not_deleted_to_be_created_again() {
    type Change = fn(&mut Object);
    let changes: [(&str, Change); 5] = [
        ("does not have the label", |object| object.labels.clear()),
        ("does not have the annotation of a syncset", |object| {
            drop(object.annotations.remove("towline.dev/syncset-id"));
        }),
        ("does not have the annotation of a syncset", |object| {
            object.annotations.insert("towline.dev/syncset-id".to_owned(), Uuid::from_u128(7).to_string());
        }),
        ("it existed before", |object| {
            drop(object.annotations.insert("towline.dev/adopted".to_owned(), "true".to_owned()));
        }),
        ("it is marked to be kept", |object| {
            drop(object.annotations.insert("towline.dev/prune".to_owned(), "false".to_owned()));
        }),
    ];
    for (why, change) in changes {
        let (mut world, mut store) = immutable(&base("a"));
        change(world.objects.get_mut(&map("a")).expect("it is there"));
        let uid = world.objects[&map("a")].uid;
        let after = base("a=2");
        assert_eq!(pass(&mut world, &mut store, from_ref(&after), false), lines(&["APPLY", "GET"]), "{why}");
        assert_eq!(world.objects[&map("a")].uid, uid);
        let Failure { reason, message } = failure(&store, &after);
        assert!(reason == Reason::Rejected && message.contains(why), "{message}");
    }
}

#[test]
fn an_object_that_is_being_deleted_is_waited_for() {
    let (mut world, mut store) = immutable(&base("a"));
    world.objects.get_mut(&map("a")).expect("it is there").terminating = true;
    let after = base("a=2");
    assert_eq!(pass(&mut world, &mut store, from_ref(&after), false), lines(&["APPLY", "GET"]));
    assert_eq!(failure(&store, &after).reason, Reason::Terminating);
}

/// Runs a pass in which something happens to the cluster right before the object is deleted.
fn before_deletion(
    world: &mut World,
    store: &mut Store,
    input: Input,
    mut change: impl FnMut(&mut World) + Send,
) -> Outcome {
    run_while(world, store, input, |world, call| {
        if matches!(call, Call::Delete(_)) {
            change(world);
        }
        Fate::Done
    })
}

#[test]
fn what_somebody_changes_before_the_deletion_is_not_deleted_and_what_is_still_ours_by_the_next_pass() {
    let after = base("a=2");
    for is_taken in [true, false] {
        let (mut world, mut store) = immutable(&base("a"));
        let input = store.input(from_ref(&after), false).expect("it is due");
        before_deletion(&mut world, &mut store, input, |world| {
            world.touch(&map("a"), true);
            if is_taken {
                world.objects.get_mut(&map("a")).expect("it is there").labels.clear();
            }
        });
        assert_eq!(world.log, lines(&["APPLY", "GET", "TRY", "DELETE"]));
        assert!(world.objects.contains_key(&map("a")) && failure(&store, &after).reason == Reason::Rejected);
        pass(&mut world, &mut store, from_ref(&after), false);
        assert_eq!(world.objects.contains_key(&map("a")), is_taken);
    }
}

#[test]
fn an_object_of_a_syncset_that_dropped_it_is_created_again_by_the_one_that_sends_it_now() {
    for other in [set(SyncSet, "other"), set(SelectorSyncSet, "other")] {
        let before = Set { id: other.id, name: other.name.clone(), ..base("a") };
        let (mut world, mut store) = immutable(&before);
        let dropped = before.maps(&[]);
        let requests = pass(&mut world, &mut store, &[base("a=2"), dropped], false);
        assert_eq!(requests, lines(&["APPLY", "GET", "TRY", "DELETE"]));
        assert_eq!(failure(&store, &base("a=2")).reason, Reason::Terminating);
    }
}

#[test]
fn an_object_that_somebody_deleted_meanwhile_is_created() {
    let (mut world, mut store) = immutable(&base("a"));
    let after = base("a=2");
    let input = store.input(from_ref(&after), false).expect("it is due");
    before_deletion(&mut world, &mut store, input, |world| world.objects.clear());
    world.refusals.clear();
    let input = store.input(from_ref(&after), false).expect("it is due");
    run(&mut world, &mut store, input);
    assert!(world.objects[&map("a")].data == "2" && !store.applied[&(map("a"), after.id)].adopted);
}
