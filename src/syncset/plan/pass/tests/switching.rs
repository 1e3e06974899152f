//! Switches to `Apply` from other behaviors: what these have sent is taken over once, so that nothing of it stays.

use std::slice::from_ref;

use super::super::{End, Input, Progress, Refusal};
use super::store::{Call, Fate, Store, cut_short, killed_after, pass, run, run_while};
use super::world::{Flags, HIVE, Set, World, map, set};
use crate::syncset::plan::name::SyncSetKind::{SelectorSyncSet, SyncSet};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::spec::Behavior;
use crate::syncset::plan::spec::Behavior::{Apply, CreateOnly, CreateOrUpdate};
use crate::syncset::plan::spec::Mode;

fn base() -> Set {
    set(SyncSet, "base")
}

fn lines(verbs: &[&str]) -> Vec<String> {
    verbs.iter().map(|verb| format!("{verb} ConfigMap default/a")).collect()
}

/// The object with what each of these behaviors and contents has sent, one after another.
fn after(steps: &[(Behavior, &str)], world: &mut World, store: &mut Store) -> Set {
    let mut set = base();
    for (behavior, content) in steps {
        set = set.behavior(*behavior).maps(&[&format!("a={content}")]);
        pass(world, store, from_ref(&set), false);
    }
    set
}

/// Whether what was sent last is all that is left of what was ever sent, except for what others own.
fn has_only(world: &World, content: &str) -> bool {
    let found = &world.objects[&map("a")];
    let is_alone = found.fields["towline"].len() == 1 && found.fields["towline"].contains(content);
    found.data == content && is_alone && world.leftovers(&map("a")).is_empty()
}

#[test]
fn a_switch_to_apply_takes_over_what_was_sent_by_three_requests_once() {
    for (steps, content) in [
        (&[(CreateOrUpdate, "1")][..], "1"),
        (&[(CreateOrUpdate, "1")], "2"),
        (&[(CreateOrUpdate, "1"), (CreateOrUpdate, "2")], "2"),
        (&[(Apply, "1"), (CreateOrUpdate, "2"), (CreateOrUpdate, "3")], "2"),
        (&[(CreateOnly, "1")], "2"),
        (&[(CreateOnly, "1"), (CreateOrUpdate, "2")], "3"),
    ] {
        let (mut world, mut store) = (World::new(), Store::default());
        let set = after(steps, &mut world, &mut store).behavior(Apply);
        let requests = pass(&mut world, &mut store, &[set.clone().maps(&[&format!("a={content}")])], false);
        assert_eq!(requests, lines(&["GET", "TAKE", "APPLY"]), "{steps:?}");
        assert!(has_only(&world, content), "{steps:?}: {world:?}");
        let sets = [Set { generation: 90, ..set.maps(&["a=9"]) }];
        assert_eq!(pass(&mut world, &mut store, &sets, false), lines(&["APPLY"]), "{steps:?}");
        assert!(has_only(&world, "9"));
        assert_eq!(pass(&mut world, &mut store, &sets, true), lines(&["GET"]), "{steps:?}");
        assert_eq!(pass(&mut world, &mut store, &[], false), lines(&["GET", "DELETE"]));
    }
}

#[test]
fn what_was_applied_before_it_was_only_created_has_nothing_to_take_over() {
    let (mut world, mut store) = (World::new(), Store::default());
    let set = after(&[(Apply, "1"), (CreateOnly, "2")], &mut world, &mut store);
    assert_eq!(world.objects[&map("a")].data, "1");
    let requests = pass(&mut world, &mut store, &[set.behavior(Apply)], false);
    assert_eq!(requests, lines(&["GET", "APPLY"]));
    assert!(has_only(&world, "2"));
}

#[test]
fn a_switch_away_from_apply_looks_at_nothing_and_removes_nothing() {
    let (mut world, mut store) = (World::new(), Store::default());
    let set = after(&[(Apply, "1")], &mut world, &mut store);
    let requests = pass(&mut world, &mut store, &[set.behavior(CreateOrUpdate).maps(&["a=2"])], false);
    assert_eq!(requests, lines(&["PATCH"]));
    assert_eq!(world.objects[&map("a")].fields.len(), 2);
}

#[test]
fn what_hive_had_sent_before_it_was_updated_here_is_taken_over_as_well() {
    let (mut world, mut store) = (World::new(), Store::default());
    world.create_by_hive(&map("a"));
    let set = after(&[(CreateOrUpdate, "1")], &mut world, &mut store);
    assert_eq!(world.leftovers(&map("a")), ["towline-update", HIVE]);
    let requests = pass(&mut world, &mut store, &[set.behavior(Apply).maps(&["a=2"])], false);
    assert_eq!(requests, lines(&["GET", "TAKE", "APPLY"]));
    assert!(has_only(&world, "2"));
    assert_eq!(pass(&mut world, &mut store, &[], false), lines(&["GET", "DELETE"]));
}

#[test]
fn of_what_existed_before_only_what_was_sent_from_here_is_taken_over() {
    for behavior in [CreateOrUpdate, CreateOnly] {
        let (mut world, mut store) = (World::new(), Store::default());
        world.create_by_hive(&map("a")).labels.clear();
        let set = after(&[(behavior, "1")], &mut world, &mut store).behavior(Apply).maps(&["a=2"]);
        let requests = pass(&mut world, &mut store, from_ref(&set), false);
        let verbs: &[&str] = if behavior == CreateOnly { &["GET", "APPLY"] } else { &["GET", "TAKE", "APPLY"] };
        assert_eq!(requests, lines(verbs));
        assert_eq!(world.leftovers(&map("a")), [HIVE]);
        assert!(store.applied[&(map("a"), set.id)].adopted);
        assert_eq!(world.objects[&map("a")].annotations["towline.dev/adopted"], "true");
        assert!(pass(&mut world, &mut store, &[], false).is_empty());
    }
}

#[test]
fn what_may_be_adopted_is_ours_after_a_switch_too() {
    let (mut world, mut store) = (World::new(), Store::default());
    world.create(&map("a"));
    let before = after(&[(CreateOrUpdate, "1")], &mut world, &mut store);
    let set = before.behavior(Apply).maps(&["a=2"]).flags(Flags { may_adopt: true, ..Flags::default() });
    assert_eq!(pass(&mut world, &mut store, &[set], false), lines(&["GET", "TAKE", "APPLY"]));
    assert!(has_only(&world, "2"));
    assert_eq!(pass(&mut world, &mut store, &[], false), lines(&["GET", "DELETE"]));
}

#[test]
fn what_moves_to_a_syncset_that_applies_is_taken_over_whether_the_other_one_stays_or_not() {
    for stays in [false, true] {
        for to_apply in [false, true] {
            let update = base().behavior(CreateOrUpdate).maps(&["a=1"]);
            let apply = set(SelectorSyncSet, "apply").maps(&["a=2"]);
            let (one, other, verbs) = if to_apply {
                (update, apply, &["GET", "TAKE", "APPLY"][..])
            } else {
                (
                    base().maps(&["a=1"]),
                    set(SelectorSyncSet, "update").behavior(CreateOrUpdate).maps(&["a=2"]),
                    &["PATCH"][..],
                )
            };
            let (mut world, mut store) = (World::new(), Store::default());
            pass(&mut world, &mut store, from_ref(&one), false);
            let sets = if stays { vec![one.clone(), other] } else { vec![other] };
            assert_eq!(pass(&mut world, &mut store, &sets, false), lines(verbs), "{stays}");
            if to_apply {
                assert!(has_only(&world, "2"));
            } else {
                // And back to the one that applies.
                assert_eq!(pass(&mut world, &mut store, &[one], false), lines(&["GET", "TAKE", "APPLY"]), "{stays}");
                assert!(has_only(&world, "1"));
            }
        }
    }
}

#[test]
fn whenever_passes_are_killed_a_switch_leaves_nothing_behind() {
    for hive in [false, true] {
        for edit in ["1", "2"] {
            for steps in 0.. {
                let (mut world, mut store) = (World::new(), Store::default());
                if hive {
                    world.create_by_hive(&map("a"));
                }
                let before = after(&[(CreateOrUpdate, "1")], &mut world, &mut store);
                let sets = [before.behavior(Apply).maps(&[&format!("a={edit}")])];
                let has_died = killed_after(&mut world, &mut store, &sets, steps);
                pass(&mut world, &mut store, &sets, false);
                assert!(has_only(&world, edit), "after {steps} steps: {world:?}");
                assert!(!store.applied[&(map("a"), sets[0].id)].adopted, "after {steps} steps");
                assert!(store.input(&sets, false).is_none());
                if !has_died {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_detour_over_another_behavior_leaves_nothing_behind_whenever_its_pass_is_killed() {
    for moves in [false, true] {
        for was_refused in [false, true] {
            for steps in 0.. {
                let (mut world, mut store) = (World::new(), Store::default());
                let mut before = after(&[(Apply, "1")], &mut world, &mut store);
                if was_refused {
                    world.refusals.insert("APPLY ConfigMap default/a".to_owned(), Refusal::Forbidden);
                    before = before.maps(&["a=4"]);
                    pass(&mut world, &mut store, from_ref(&before), false);
                    world.refusals.clear();
                }
                let detour = if moves { set(SelectorSyncSet, "detour") } else { before.clone() };
                let detour = detour.behavior(CreateOrUpdate).maps(&["a=2"]);
                let has_died = killed_after(&mut world, &mut store, &[detour], steps);
                let back = Set { generation: 90, ..before.behavior(Apply).maps(&["a=3"]) };
                pass(&mut world, &mut store, from_ref(&back), false);
                assert!(has_only(&world, "3"), "after {steps} steps: {world:?}");
                if !has_died {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_takeover_that_is_refused_fails_and_is_tried_again() {
    let (mut world, mut store) = (World::new(), Store::default());
    let sets = [after(&[(CreateOrUpdate, "1")], &mut world, &mut store).behavior(Apply).maps(&["a=2"])];
    world.refusals.insert("TAKE ConfigMap default/a".to_owned(), Refusal::Forbidden);
    for _ in 0..2 {
        assert_eq!(pass(&mut world, &mut store, &sets, false), lines(&["GET", "TAKE"]));
        assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::Forbidden);
    }
    world.refusals.clear();
    assert_eq!(pass(&mut world, &mut store, &sets, false), lines(&["GET", "TAKE", "APPLY"]));
    assert!(has_only(&world, "2"));
}

#[test]
fn an_apply_that_is_refused_after_the_takeover_takes_nothing_over_again() {
    let (mut world, mut store) = (World::new(), Store::default());
    let sets = [after(&[(CreateOrUpdate, "1")], &mut world, &mut store).behavior(Apply).maps(&["a=2"])];
    world.refusals.insert("APPLY ConfigMap default/a".to_owned(), Refusal::Forbidden);
    assert_eq!(pass(&mut world, &mut store, &sets, false), lines(&["GET", "TAKE", "APPLY"]));
    assert_eq!(pass(&mut world, &mut store, &sets, false), lines(&["GET", "APPLY"]));
    world.refusals.clear();
    assert_eq!(pass(&mut world, &mut store, &sets, false), lines(&["GET", "APPLY"]));
    assert!(has_only(&world, "2"));
}

#[test]
fn an_object_that_was_deleted_or_replaced_before_a_switch_is_created_or_adopted() {
    for replaced in [false, true] {
        let (mut world, mut store) = (World::new(), Store::default());
        let sets = [after(&[(CreateOrUpdate, "1")], &mut world, &mut store).behavior(Apply).maps(&["a=2"])];
        world.objects.clear();
        if replaced {
            world.create(&map("a"));
        }
        assert_eq!(pass(&mut world, &mut store, &sets, false), lines(&["GET", "APPLY"]));
        assert!(has_only(&world, "2"));
        assert_eq!(store.applied[&(map("a"), sets[0].id)].adopted, replaced);
        assert_eq!(pass(&mut world, &mut store, &[], false).len(), if replaced { 0 } else { 2 });
    }
}

#[test]
fn a_switch_of_many_objects_is_stored_as_seldom_as_an_edit_and_ends_in_as_many_passes_as_it_takes() {
    let names: Vec<String> = (0..300).map(|at| format!("m{at:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let update = base().behavior(CreateOrUpdate).maps(&names);
    let (mut world, mut store) = (World::new(), Store::default());
    let mut progress = Progress::default();
    while let Some(input) = store.input(from_ref(&update), false) {
        progress = run(&mut world, &mut store, Input { progress, ..input }).progress;
    }
    let sets = [update.behavior(Apply)];
    let (mut requests, mut stores) = (Vec::new(), Vec::new());
    while let Some(input) = store.input(&sets, false) {
        let mut saves = 0;
        let outcome = run_while(&mut world, &mut store, input, |_, call| {
            saves += usize::from(matches!(call, Call::Store(_)));
            Fate::Done
        });
        assert_eq!(outcome.end == End::Finished, requests.len() == 1);
        requests.push(outcome.requests);
        stores.push(saves);
    }
    // The last object of the first pass is applied although the limit is reached: a step that follows from another one is not cut off.
    assert_eq!(requests, [501, 399]);
    // One before the first write, which holds for both, and one after each 100 requests.
    assert_eq!(stores, [1 + 4, 3]);
    assert!(world.objects.keys().all(|object| world.leftovers(object).is_empty()));
}

#[test]
fn what_upsert_has_dropped_and_wants_again_is_ours_as_its_marks_say() {
    for behavior in [Apply, CreateOrUpdate] {
        for existed in [false, true] {
            let (mut world, mut store) = (World::new(), Store::default());
            if existed {
                world.create(&map("a"));
            }
            let upsert = base().behavior(behavior).mode(Mode::Upsert).maps(&["a"]);
            pass(&mut world, &mut store, from_ref(&upsert), false);
            let dropped = upsert.maps(&["z"]);
            pass(&mut world, &mut store, from_ref(&dropped), false);
            assert!(store.applied.keys().all(|(object, _)| *object != map("a")), "it is forgotten");
            // Whoever wants it again, and deletes, knows it by its label and the annotation of what existed before.
            let again = Set { generation: 90, ..dropped.mode(Mode::Sync).maps(&["a=2", "z"]) };
            let requests = pass(&mut world, &mut store, from_ref(&again), false);
            let verb = if behavior == Apply { "APPLY" } else { "PATCH" };
            assert_eq!(requests, lines(&["GET", verb]));
            assert_eq!(store.applied[&(map("a"), again.id)].adopted, existed);
            pass(&mut world, &mut store, &[again.maps(&["z"])], false);
            assert_eq!(world.objects.contains_key(&map("a")), existed);
        }
    }
}

#[test]
fn a_switch_that_was_cut_short_at_its_end_is_repeated_and_changes_nothing() {
    let (mut world, mut store) = (World::new(), Store::default());
    let sets = [after(&[(CreateOrUpdate, "1")], &mut world, &mut store).behavior(Apply).maps(&["a=2"])];
    cut_short(&mut world, &mut store, &sets);
    assert!(has_only(&world, "2"));
    world.log.clear();
    assert_eq!(pass(&mut world, &mut store, &sets, false), lines(&["GET", "APPLY"]));
    assert_eq!(pass(&mut world, &mut store, &sets, true), lines(&["GET"]));
}
