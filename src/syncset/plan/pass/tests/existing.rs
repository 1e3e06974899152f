//! Objects that somebody has made in place of ours, or deleted, and those of Hive.

use std::slice::from_ref;

use super::super::{Refusal, Write};
use super::store::{Call, Fate, Store, killed_after, killed_while, pass, run_while};
use super::world::{Flags, HIVE, OF_ANOTHER_HUB, Object, Set, World, map, set};
use crate::syncset::plan::name::SyncSetKind::SyncSet;
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::spec::Behavior;

fn base() -> Set {
    set(SyncSet, "base")
}

fn with(set: &Set) -> (World, Store) {
    let (mut world, mut store) = (World::new(), Store::default());
    pass(&mut world, &mut store, from_ref(set), false);
    world.log.clear();
    (world, store)
}

fn lines(verbs: &[&str]) -> Vec<String> {
    verbs.iter().map(|verb| format!("{verb} ConfigMap default/a")).collect()
}

#[test]
fn an_object_in_place_of_ours_is_adopted_before_it_is_written_and_not_deleted() {
    for (behavior, without_strategic, verbs) in [
        (Behavior::Apply, false, &["APPLY", "GET", "APPLY"][..]),
        (Behavior::CreateOrUpdate, false, &["PATCH", "GET", "PATCH"]),
        (Behavior::CreateOrUpdate, true, &["PATCH", "MERGE", "GET", "MERGE"]),
    ] {
        let before = base().behavior(behavior).maps(&["a"]);
        let (mut world, mut store) = with(&before);
        world.without_strategic = without_strategic;
        let uid = world.create(&map("a")).uid;
        let after = [before.maps(&["a=2"])];
        let requests = pass(&mut world, &mut store, &after, false);
        assert_eq!(requests, lines(verbs));
        let found = &world.objects[&map("a")];
        assert_eq!((found.uid, &found.data), (uid, &"2".into()));
        assert_eq!(found.annotations["towline.dev/adopted"], "true");
        assert!(pass(&mut world, &mut store, &[], false).is_empty());
        assert_eq!(world.objects.len(), 1);
    }
}

#[test]
fn an_object_in_place_of_ours_is_ours_if_the_resource_says_that_it_may_be() {
    let before = base().maps(&["a"]);
    let (mut world, mut store) = with(&before);
    world.create(&map("a"));
    let after = [before.maps(&["a=2"]).flags(Flags { may_adopt: true, ..Flags::default() })];
    assert_eq!(pass(&mut world, &mut store, &after, false).len(), 3);
    assert_eq!(world.objects[&map("a")].annotations["towline.dev/adopted"], "false");
    assert_eq!(pass(&mut world, &mut store, &[], false).len(), 2);
    assert!(world.objects.is_empty());
}

#[test]
fn an_object_in_place_of_ours_is_never_deleted_whenever_passes_are_killed() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate] {
        let before = base().behavior(behavior).maps(&["a"]);
        for steps in 0.. {
            let (mut world, mut store) = with(&before);
            world.create(&map("a"));
            let after = [before.clone().maps(&["a=2"])];
            let has_died = killed_after(&mut world, &mut store, &after, steps);
            pass(&mut world, &mut store, &after, false);
            assert!(store.applied[&(map("a"), after[0].id)].adopted, "after {steps} steps");
            pass(&mut world, &mut store, &[], false);
            assert_eq!(world.objects.len(), 1, "after {steps} steps");
            if !has_died {
                break;
            }
        }
    }
}

/// A pass before whose first write somebody creates the object, and which dies after so many calls. Returns whether it died.
fn forestalled(world: &mut World, store: &mut Store, sets: &[Set], calls: usize) -> bool {
    let mut has_come = false;
    killed_while(world, store, sets, calls, |world, call| {
        if matches!(call, Call::Write(..)) && !std::mem::replace(&mut has_come, true) {
            world.create(&map("a"));
        }
    })
}

/// The object was not there when it was looked for. By what it is after a first write of ours nobody could tell whose it was.
#[test]
fn an_object_that_somebody_creates_before_our_first_write_is_never_ours_whenever_passes_are_killed() {
    for (behavior, was_known, verbs) in [
        (Behavior::Apply, false, &["GET", "APPLY", "GET", "APPLY"][..]),
        (Behavior::Apply, true, &["APPLY", "GET", "APPLY"]),
        (Behavior::CreateOrUpdate, false, &["GET", "POST", "GET", "PATCH"]),
        (Behavior::CreateOnly, false, &["POST"]),
    ] {
        let before = base().behavior(behavior).maps(&["a"]);
        for steps in 0.. {
            let (mut world, mut store) = if was_known { with(&before) } else { Default::default() };
            if !was_known {
                world = World::new();
            }
            world.objects.clear();
            let sets = [before.clone().maps(&["a=2"])];
            let has_died = forestalled(&mut world, &mut store, &sets, steps);
            if !has_died {
                assert_eq!(world.log, lines(verbs), "{behavior:?}");
            }
            pass(&mut world, &mut store, &sets, false);
            let is_foreign = world.objects[&map("a")].foreign;
            pass(&mut world, &mut store, &[], false);
            assert_eq!(world.objects.contains_key(&map("a")), is_foreign, "{behavior:?}, after {steps} steps");
            if !has_died {
                break;
            }
        }
    }
}

/// An API server may know no other way to create an object by an apply than without a precondition.
#[test]
fn an_object_that_the_server_does_not_create_with_a_precondition_is_created_without() {
    let (mut world, mut store) = (World::new(), Store::default());
    let sets = [base().maps(&["a"])];
    let input = store.input(&sets, false).expect("it is due");
    run_while(&mut world, &mut store, input, |world, call| match call {
        Call::Write(_, Write::Apply(body)) if body["metadata"].get("resourceVersion").is_some() => {
            world.log.push("REFUSED ConfigMap default/a".to_owned());
            Fate::Refused(Refusal::Conflict)
        }
        _ => Fate::Done,
    });
    assert_eq!(world.log, lines(&["GET", "REFUSED", "GET", "APPLY"]));
    assert_eq!(world.sent, [(Behavior::Apply, true)], "the first one is none of those that failed");
    assert!(store.results[&sets[0].id].failure.is_none() && !store.applied[&(map("a"), sets[0].id)].adopted);
}

/// It is the object that existed before, and not its name.
#[test]
fn an_adopted_object_that_somebody_deletes_and_we_create_again_is_ours() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate, Behavior::CreateOnly] {
        for (full, content) in [(true, "a"), (false, "a=2"), (true, "a=2")] {
            let before = base().behavior(behavior).maps(&["a"]);
            let (mut world, mut store) = (World::new(), Store::default());
            world.create(&map("a"));
            pass(&mut world, &mut store, from_ref(&before), false);
            assert!(store.applied[&(map("a"), before.id)].adopted);
            world.objects.clear();
            let after = if content == "a" { before } else { before.maps(&[content]) };
            pass(&mut world, &mut store, from_ref(&after), full);
            assert!(!world.objects[&map("a")].annotations.contains_key("towline.dev/adopted"), "{behavior:?} {full}");
            pass(&mut world, &mut store, &[], false);
            assert!(world.objects.is_empty(), "{behavior:?} {full} {content}");
        }
    }
}

/// As what was sent is counted: an answer upon which it is sent at once in another way is none.
#[test]
fn an_object_that_turns_out_to_be_gone_when_it_is_sent_is_counted_once() {
    let all = [Behavior::Apply, Behavior::CreateOrUpdate].map(|behavior| [(behavior, true), (behavior, false)]);
    for (behavior, is_gone) in all.into_iter().flatten() {
        let before = base().behavior(behavior).maps(&["a"]);
        let (mut world, mut store) = with(&before);
        if is_gone {
            world.objects.clear();
        } else {
            // As a webhook may refuse it: that is found out by a look at what is there.
            let verb = if behavior == Behavior::Apply { "APPLY" } else { "PATCH" };
            world.refusals.insert(format!("{verb} ConfigMap default/a"), Refusal::Conflict);
        }
        let after = [before.maps(&["a=2"])];
        world.sent.clear();
        pass(&mut world, &mut store, &after, false);
        assert_eq!(world.sent, [(behavior, is_gone)]);
    }
}

#[test]
fn what_somebody_deleted_is_created_again_and_ours_whenever_passes_are_killed() {
    for (behavior, verbs) in
        [(Behavior::Apply, &["APPLY", "GET", "APPLY"][..]), (Behavior::CreateOrUpdate, &["PATCH", "POST"])]
    {
        let before = base().behavior(behavior).maps(&["a"]);
        let after = [before.clone().maps(&["a=2"])];
        for steps in 0.. {
            let (mut world, mut store) = with(&before);
            world.objects.clear();
            let has_died = killed_after(&mut world, &mut store, &after, steps);
            if !has_died {
                assert_eq!(world.log, lines(verbs));
            }
            pass(&mut world, &mut store, &after, false);
            assert!(!store.applied[&(map("a"), after[0].id)].adopted, "after {steps} steps");
            pass(&mut world, &mut store, &[], false);
            assert!(world.objects.is_empty(), "after {steps} steps");
            if !has_died {
                break;
            }
        }
    }
}

#[test]
fn a_conflict_over_the_object_that_is_ours_is_a_failure_and_changes_nothing() {
    let before = base().maps(&["a"]);
    let (mut world, mut store) = with(&before);
    let after = [before.maps(&["a=2"])];
    world.refusals.insert("APPLY ConfigMap default/a".to_owned(), Refusal::Conflict);
    let requests = pass(&mut world, &mut store, &after, false);
    assert_eq!(requests, ["APPLY ConfigMap default/a", "GET ConfigMap default/a"]);
    let failure = store.results[&after[0].id].failure.clone().expect("a failure");
    let told = "failed to apply resource 0 (ConfigMap default/a): conflict";
    assert_eq!((failure.reason, failure.message.as_str()), (Reason::Rejected, told));
    assert!(!store.applied[&(map("a"), after[0].id)].adopted);
    world.refusals.clear();
    assert_eq!(pass(&mut world, &mut store, &after, false), ["APPLY ConfigMap default/a"]);
}

#[test]
fn an_object_of_hive_is_taken_over_by_three_requests_once() {
    let (mut world, mut store) = (World::new(), Store::default());
    let uid = world.create_by_hive(&map("a")).uid;
    let sets = [base().maps(&["a"])];
    let requests = pass(&mut world, &mut store, &sets, false);
    assert_eq!(requests, lines(&["GET", "TAKE", "APPLY"]));
    let found = &world.objects[&map("a")];
    assert!(found.uid == uid && found.data == "1" && found.fields["towline"].len() == 1);
    assert!(world.leftovers(&map("a")).is_empty());
    assert!(!store.applied[&(map("a"), sets[0].id)].adopted);
    assert_eq!(pass(&mut world, &mut store, &[sets[0].clone().maps(&["a=2"])], false), ["APPLY ConfigMap default/a"]);
    assert_eq!(pass(&mut world, &mut store, &[], false).len(), 2);
    assert!(world.objects.is_empty());
}

#[test]
fn only_an_apply_takes_over_what_hive_has_sent_and_only_with_its_label() {
    let sets = [base().behavior(Behavior::CreateOrUpdate).maps(&["a"])];
    let (mut world, mut store) = (World::new(), Store::default());
    world.create_by_hive(&map("a"));
    let requests = pass(&mut world, &mut store, &sets, false);
    assert_eq!(requests, ["GET ConfigMap default/a", "PATCH ConfigMap default/a"]);
    assert!(!store.applied[&(map("a"), sets[0].id)].adopted);
    // What Hive has sent and somebody has taken from it existed before us.
    let sets = [base().maps(&["a"])];
    let (mut world, mut store) = (World::new(), Store::default());
    world.create_by_hive(&map("a")).labels.clear();
    let requests = pass(&mut world, &mut store, &sets, false);
    assert_eq!(requests, ["GET ConfigMap default/a", "APPLY ConfigMap default/a"]);
    assert!(store.applied[&(map("a"), sets[0].id)].adopted);
}

#[test]
fn an_object_of_hive_that_changes_before_it_is_taken_over_is_looked_at_again() {
    for is_deleted in [false, true] {
        let (mut world, mut store) = (World::new(), Store::default());
        world.create_by_hive(&map("a"));
        let (input, mut has_changed) = (store.input(&[base().maps(&["a"])], false).expect("it is due"), false);
        run_while(&mut world, &mut store, input, |world, call| {
            if call.is_write_of("TAKE", "a") && !std::mem::replace(&mut has_changed, true) {
                if is_deleted {
                    world.objects.clear();
                } else {
                    world.touch(&map("a"), true);
                }
            }
            Fate::Done
        });
        let verbs: &[&str] =
            if is_deleted { &["GET", "TAKE", "GET", "APPLY"] } else { &["GET", "TAKE", "GET", "TAKE", "APPLY"] };
        assert_eq!(world.log, lines(verbs));
        assert!(world.leftovers(&map("a")).is_empty() && world.objects[&map("a")].data == "1");
        assert!(store.applied.values().all(|row| !row.adopted));
    }
}

#[test]
fn an_object_of_hive_is_not_applied_before_it_is_taken_over_whatever_fails() {
    let sets = [base().maps(&["a"])];
    for refused in [false, true] {
        for steps in 0.. {
            let (mut world, mut store) = (World::new(), Store::default());
            world.create_by_hive(&map("a"));
            if refused {
                world.refusals.insert("TAKE ConfigMap default/a".to_owned(), Refusal::Forbidden);
            }
            let has_died = killed_after(&mut world, &mut store, &sets, steps);
            if refused && !has_died {
                let failure = store.results[&sets[0].id].failure.clone().expect("a failure");
                assert_eq!(failure.reason, Reason::Forbidden);
            }
            world.refusals.clear();
            pass(&mut world, &mut store, &sets, false);
            let found = &world.objects[&map("a")];
            assert!(found.data == "1" && found.fields["towline"].len() == 1, "after {steps} steps");
            assert!(world.leftovers(&map("a")).is_empty(), "after {steps} steps");
            assert!(!store.applied[&(map("a"), sets[0].id)].adopted, "after {steps} steps");
            if !has_died {
                break;
            }
        }
    }
}

#[test]
fn what_was_adopted_is_ours_once_the_resource_says_so_under_any_behavior() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate] {
        let (mut world, mut store) = (World::new(), Store::default());
        world.create(&map("a"));
        let before = set(SyncSet, "base").behavior(behavior).maps(&["a"]);
        pass(&mut world, &mut store, from_ref(&before), false);
        assert_eq!(world.objects[&map("a")].annotations["towline.dev/adopted"], "true");
        let after = before.maps(&["a=2"]).flags(Flags { may_adopt: true, ..Flags::default() });
        pass(&mut world, &mut store, from_ref(&after), false);
        assert_eq!(world.objects[&map("a")].annotations["towline.dev/adopted"], "false", "{behavior:?}");
        pass(&mut world, &mut store, &[], false);
        assert!(world.objects.is_empty(), "{behavior:?}");
    }
}

/// What an object bears that existed before.
const BEARS: [&str; 6] =
    ["nothing", "label", "our marks", "marks of another hub", "label and Hive's entry", "Hive's entry"];

fn bears(found: &mut Object, what: &str) {
    let syncset = if what == "our marks" { base().id } else { OF_ANOTHER_HUB };
    if what.contains("marks") {
        found.annotations.insert("towline.dev/syncset-id".to_owned(), syncset.to_string());
    }
    if what.contains("label") || what.contains("marks") {
        found.labels.insert("hive.openshift.io/managed".to_owned(), "true".to_owned());
    }
    if what.contains("Hive") || what == "marks of another hub" {
        found.fields.insert(HIVE.to_owned(), ["of Hive".to_owned()].into());
    }
}

#[test]
fn what_exists_is_ours_only_if_a_mark_of_this_hub_or_the_entry_of_hive_proves_it() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate] {
        for what in BEARS {
            let (mut world, mut store) = (World::new(), Store::default());
            bears(world.create(&map("a")), what);
            let sets = [base().behavior(behavior).maps(&["a"])];
            pass(&mut world, &mut store, &sets, false);
            assert_eq!(world.objects[&map("a")].data, "1", "it is sent all the same");
            pass(&mut world, &mut store, &[], false);
            let is_ours = ["our marks", "label and Hive's entry"].contains(&what);
            assert_eq!(world.objects.is_empty(), is_ours, "{what}, {behavior:?}");
        }
    }
}

/// Where the kubeconfig has led to another cluster first: the marks may have been copied from there, and the kubeconfig may be a mistake.
#[test]
fn on_another_cluster_nothing_that_was_there_before_is_deleted_whatever_it_bears_and_whenever_passes_are_killed() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate, Behavior::CreateOnly] {
        for (what, may_adopt) in BEARS.into_iter().flat_map(|what| [(what, false), (what, true)]) {
            for steps in 0.. {
                let (mut world, mut store) = (World::new(), Store { elsewhere: true, ..Store::default() });
                bears(world.create(&map("a")), what);
                let uid = world.objects[&map("a")].uid;
                let flags = Flags { may_adopt, ..Flags::default() };
                let sets = [base().behavior(behavior).maps(&["a", "new"]).flags(flags)];
                let has_died = killed_after(&mut world, &mut store, &sets, steps);
                pass(&mut world, &mut store, &sets, false);
                let kept = [sets[0].clone().maps(&[])];
                pass(&mut world, &mut store, &kept, false);
                let found = world.objects.get(&map("a")).map(|found| found.uid);
                assert_eq!(found, Some(uid), "{what}, {behavior:?}, after {steps} steps");
                if !has_died {
                    assert!(!world.objects.contains_key(&map("new")), "what was made there is ours");
                    break;
                }
            }
        }
    }
}
