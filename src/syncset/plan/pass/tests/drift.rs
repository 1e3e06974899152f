//! Full passes.

use super::super::{End, Outcome, Refusal};
use super::store::{Store, pass, run};
use super::world::{Set, World, map, object, set};
use crate::syncset::plan::name::SyncSetKind::SyncSet;
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::spec::Behavior;
use std::slice::from_ref;

fn with(set: &Set) -> (World, Store) {
    let (mut world, mut store) = (World::new(), Store::default());
    pass(&mut world, &mut store, from_ref(set), false);
    (world, store)
}

fn base() -> Set {
    set(SyncSet, "base")
}

#[test]
fn a_full_pass_in_step_takes_one_list_for_each_kind_and_one_look_for_each_patch() {
    let secrets = ["s", "t", "u"].map(|name| object("", "Secret", "default", name));
    let maps = ["a", "b", "c"].map(map);
    let sets = [base().objects(&[&maps[..], &secrets[..]].concat()).patch(map("z"), "p")];
    let (mut world, mut store) = (World::new(), Store::default());
    world.create(&map("z"));
    pass(&mut world, &mut store, &sets, false);
    let requests = pass(&mut world, &mut store, &sets, true);
    // Two objects are on a page.
    let expected =
        ["LIST ConfigMap 0", "LIST Secret 0", "LIST ConfigMap 1", "LIST Secret 1", "GET ConfigMap default/z"];
    assert_eq!(requests, expected);
}

#[test]
fn one_or_two_objects_are_looked_at_alone_and_so_are_those_that_can_not_be_listed() {
    let sets = base().maps(&["a", "b"]);
    let (mut world, mut store) = with(&sets);
    let looks = ["GET ConfigMap default/a", "GET ConfigMap default/b", "GET ConfigMap default/c"];
    assert_eq!(pass(&mut world, &mut store, &[sets], true), looks[..2]);
    let sets = base().maps(&["a", "b", "c"]);
    let (mut world, mut store) = with(&sets);
    world.refusals.insert("LIST ConfigMap 0".to_owned(), Refusal::Forbidden);
    assert_eq!(pass(&mut world, &mut store, &[sets], true)[1..], looks);
}

#[test]
fn only_changes_of_our_fields_and_missing_objects_are_mended() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate] {
        let sets = base().behavior(behavior).maps(&["a", "b", "c", "d"]);
        let (mut world, mut store) = with(&sets);
        world.touch(&map("a"), false);
        world.touch(&map("b"), true);
        world.objects.remove(&map("c"));
        world.objects.get_mut(&map("d")).expect("it is there").labels.clear();
        world.touch(&map("d"), true);
        let requests = pass(&mut world, &mut store, from_ref(&sets), true);
        let (verb, create) = if behavior == Behavior::Apply { ("APPLY", "APPLY") } else { ("PATCH", "POST") };
        let expected = [
            "LIST ConfigMap 0".to_owned(),
            "GET ConfigMap default/c".to_owned(),
            "GET ConfigMap default/d".to_owned(),
            format!("{verb} ConfigMap default/b"),
            format!("{create} ConfigMap default/c"),
            format!("{verb} ConfigMap default/d"),
        ];
        assert_eq!(requests, expected);
        assert!(world.objects.values().all(|object| object.data == "1" && !object.labels.is_empty()));
        assert!(store.applied.values().all(|row| !row.adopted));
        assert_eq!(pass(&mut world, &mut store, &[sets], true), ["LIST ConfigMap 0", "LIST ConfigMap 1"]);
    }
}

#[test]
fn what_create_only_made_is_created_again_but_never_changed() {
    let sets = [base().behavior(Behavior::CreateOnly).maps(&["a", "b", "c"])];
    let (mut world, mut store) = (World::new(), Store::default());
    world.create(&map("c"));
    pass(&mut world, &mut store, &sets, false);
    world.touch(&map("a"), true);
    world.objects.remove(&map("b"));
    let requests = pass(&mut world, &mut store, &sets, true);
    let looks = ["GET ConfigMap default/c", "GET ConfigMap default/a", "GET ConfigMap default/b"];
    assert_eq!(requests[..3], looks);
    assert_eq!(requests[3..], ["POST ConfigMap default/b"]);
    assert_eq!(world.objects[&map("a")].data, "touched");
    assert_eq!(pass(&mut world, &mut store, &[], false).len(), 4);
    assert_eq!(world.objects.keys().collect::<Vec<_>>(), [&map("c")]);
}

#[test]
fn an_object_that_somebody_replaced_is_mended_and_adopted() {
    let sets = [base().maps(&["a"])];
    let (mut world, mut store) = with(&sets[0]);
    world.create(&map("a"));
    assert_eq!(pass(&mut world, &mut store, &sets, true).len(), 2);
    assert_eq!(world.objects[&map("a")].annotations["towline.dev/adopted"], "true");
    pass(&mut world, &mut store, &[], false);
    assert_eq!(world.objects.len(), 1);
}

#[test]
fn what_somebody_made_in_place_of_what_create_only_had_made_is_not_ours() {
    let sets = [base().behavior(Behavior::CreateOnly).maps(&["a"])];
    let (mut world, mut store) = with(&sets[0]);
    // A backup brings our label and annotations with it.
    let copy = world.objects[&map("a")].clone();
    let restored = world.create(&map("a"));
    (restored.labels, restored.annotations) = (copy.labels, copy.annotations);
    pass(&mut world, &mut store, &sets, true);
    pass(&mut world, &mut store, &[], false);
    assert_eq!(world.objects.len(), 1);
}

#[test]
fn an_object_that_is_being_deleted_fails_so_that_it_is_created_again_soon() {
    let sets = [base().maps(&["a"])];
    let (mut world, mut store) = with(&sets[0]);
    world.objects.get_mut(&map("a")).expect("it is there").terminating = true;
    assert_eq!(pass(&mut world, &mut store, &sets, true).len(), 1);
    assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::Terminating);
}

#[test]
fn a_patch_is_sent_again_if_its_object_has_changed() {
    let sets = [base().patch(map("z"), "p")];
    let (mut world, mut store) = (World::new(), Store::default());
    world.create(&map("z"));
    pass(&mut world, &mut store, &sets, false);
    world.touch(&map("z"), false);
    let both = ["GET ConfigMap default/z", "PATCH ConfigMap default/z"];
    assert_eq!(pass(&mut world, &mut store, &sets, true), both);
    assert_eq!(pass(&mut world, &mut store, &sets, true), both[..1]);
    world.objects.clear();
    pass(&mut world, &mut store, &sets, true);
    assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::PatchTargetMissing);
}

#[test]
fn a_patch_whose_kind_was_not_served_is_sent_again_when_it_is() {
    let sets = [base().patch(map("z"), "p")];
    let (mut world, mut store) = (World::new(), Store::default());
    world.create(&map("z"));
    pass(&mut world, &mut store, &sets, false);
    let kinds = std::mem::take(&mut world.kinds);
    pass(&mut world, &mut store, &sets, true);
    assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::KindNotServed);
    // The object came back with its kind, and without the patch.
    world.kinds = kinds;
    world.objects.clear();
    world.create(&map("z"));
    assert_eq!(pass(&mut world, &mut store, &sets, false), ["PATCH ConfigMap default/z"]);
    assert_eq!(store.results[&sets[0].id].failure, None);
}

#[test]
fn a_full_pass_ends_although_its_patches_change_the_objects_of_each_other() {
    let mut sets = ["a", "b", "c"].map(|name| set(SyncSet, name));
    let (mut world, mut store) = (World::new(), Store::default());
    for at in 0..200 {
        let object = map(&format!("z{at:03}"));
        world.create(&object);
        sets = sets.map(|set| {
            let content = format!("{}{at}", set.name.name);
            set.patch(object.clone(), &content)
        });
    }
    while let Some(input) = store.input(&sets, false) {
        run(&mut world, &mut store, input);
    }
    let mut outcomes: Vec<Outcome> = Vec::new();
    while outcomes.last().is_none_or(|last| last.end != End::Finished) {
        assert!(outcomes.len() < 4, "it begins again and again");
        let mut input = store.input(&sets, true).expect("it is full");
        input.progress = outcomes.last().map(|last| last.progress.clone()).unwrap_or_default();
        outcomes.push(run(&mut world, &mut store, input));
    }
    // A look and a patch for each, but for those that were patched last.
    assert!(outcomes.iter().map(|outcome| outcome.requests).sum::<usize>() <= 2 * 600);
}

#[test]
fn a_full_pass_with_more_looks_than_a_pass_may_have_ends_all_the_same() {
    let mut sets = [base()];
    let (mut world, mut store) = (World::new(), Store::default());
    world.create(&map("z"));
    for at in 0..600 {
        sets[0] = sets[0].clone().patch(map("z"), &format!("p{at}"));
    }
    while let Some(input) = store.input(&sets, false) {
        run(&mut world, &mut store, input);
    }
    for row in store.patched.values_mut() {
        row.version = Some(world.objects[&map("z")].version.to_string());
    }
    let mut outcomes: Vec<Outcome> = Vec::new();
    while outcomes.last().is_none_or(|last| last.end != End::Finished) {
        let mut input = store.input(&sets, true).expect("it is full");
        input.progress = outcomes.last().map(|last| last.progress.clone()).unwrap_or_default();
        outcomes.push(run(&mut world, &mut store, input));
    }
    assert_eq!(outcomes.iter().map(|outcome| outcome.requests).collect::<Vec<_>>(), [500, 100]);
}

fn full(world: &mut World, store: &mut Store, sets: &[Set]) -> Outcome {
    let input = store.input(sets, true).expect("it is full");
    run(world, store, input)
}

#[test]
fn an_object_that_was_sent_in_two_full_passes_in_a_row_is_contended() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate] {
        let sets = [base().behavior(behavior).maps(&["a", "b", "c", "d"])];
        let (mut world, mut store) = with(&sets[0]);
        for time in 1..=4 {
            world.touch(&map("a"), true);
            // It is none of ours.
            world.touch(&map("b"), false);
            world.objects.remove(&map("c"));
            let contended = full(&mut world, &mut store, &sets).contended;
            let expected = [(map("a"), Some("kubectl-edit".to_owned())), (map("c"), None)];
            assert_eq!(contended, if time < 2 { &[] } else { &expected[..] }, "full pass {time}");
            // An edit is none of theirs.
            let edited = [sets[0].clone().maps(&["a=2", "b", "c", "d"])];
            pass(&mut world, &mut store, &edited, false);
            pass(&mut world, &mut store, &[Set { generation: 20 + time, ..sets[0].clone() }], false);
        }
        // One full pass in step, and it begins anew.
        assert!(full(&mut world, &mut store, &sets).contended.is_empty());
        world.touch(&map("a"), true);
        assert!(full(&mut world, &mut store, &sets).contended.is_empty());
    }
}

#[test]
fn what_a_full_pass_has_sent_is_not_looked_at_again_when_it_goes_on() {
    let names: Vec<String> = (0..300).map(|at| format!("m{at:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let sets = [base().maps(&names)];
    let (mut world, mut store) = (World::new(), Store::default());
    while let Some(input) = store.input(&sets, false) {
        run(&mut world, &mut store, input);
    }
    world.refusals.insert("LIST ConfigMap 0".to_owned(), Refusal::Forbidden);
    for object in names.iter().map(|name| map(name)) {
        world.touch(&object, true);
    }
    let first = full(&mut world, &mut store, &sets);
    assert_eq!((first.end, first.requests), (End::Yielded, 500));
    let mut input = store.input(&sets, true).expect("it is full");
    input.progress = first.progress;
    let second = run(&mut world, &mut store, input);
    // Those that were not sent are looked at right before they are.
    let left = 1 + 300 + 300 - 500;
    assert_eq!((second.end, second.requests), (End::Finished, 2 * left));
    assert!(store.applied.values().all(|row| row.resent == 1 && row.content.is_some()));
}

/// Its definition is gone, which discovery of a moment ago does not show yet.
#[test]
fn a_kind_that_is_no_longer_served_is_told_as_such() {
    let base = set(SyncSet, "base").maps(&["a", "b", "c"]);
    let (mut world, mut store) = (World::new(), Store::default());
    pass(&mut world, &mut store, from_ref(&base), false);
    world.refusals.insert("LIST ConfigMap 0".to_owned(), Refusal::NotServed);
    for name in ["a", "b", "c"] {
        world.refusals.insert(format!("GET {}", map(name)), Refusal::NotServed);
    }
    pass(&mut world, &mut store, from_ref(&base), true);
    assert_eq!(store.results[&base.id].failure.as_ref().expect("a failure").reason, Reason::KindNotServed);
}

/// What something deletes after each creation is no success, and it is created once in each full pass.
#[test]
fn what_is_gone_in_two_full_passes_in_a_row_is_a_failure_until_it_stays() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate, Behavior::CreateOnly] {
        let sets = base().behavior(behavior).maps(&["a", "b"]);
        let (mut world, mut store) = with(&sets);
        let reasons = |store: &Store| -> Vec<_> { store.results.values().map(|row| row.failure.clone()).collect() };
        for (gone, is_failing) in [(true, false), (true, true), (true, true), (false, false), (true, false)] {
            if gone {
                world.objects.remove(&map("a"));
            }
            pass(&mut world, &mut store, from_ref(&sets), true);
            let failures = reasons(&store);
            let is_it = failures.iter().flatten().all(|failure| failure.reason == Reason::DeletedAgain);
            assert!(is_it && failures[0].is_some() == is_failing, "{failures:?}");
            assert!(world.objects.contains_key(&map("a")) && world.objects.contains_key(&map("b")));
            // Another pass says nothing of that.
            assert_eq!(pass(&mut world, &mut store, from_ref(&sets), false), Vec::<String>::new());
            assert_eq!(reasons(&store), failures);
        }
        // What is no longer wanted is no failure.
        world.objects.remove(&map("a"));
        pass(&mut world, &mut store, from_ref(&sets), true);
        assert!(reasons(&store)[0].is_some());
        pass(&mut world, &mut store, &[sets.maps(&["b"])], false);
        assert_eq!(reasons(&store), [None]);
    }
}

/// A field that somebody has set back is no loss of the object.
#[test]
fn only_losses_of_the_object_itself_in_a_row_are_told_as_deleted_again() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate] {
        let sets = base().behavior(behavior).maps(&["a", "b"]);
        let (mut world, mut store) = with(&sets);
        for (step, (deed, is_failing)) in [
            ("revert", false),
            ("delete", false),
            ("revert", false),
            ("delete", false),
            ("delete", true),
            ("revert", false),
            ("delete", false),
            ("delete", true),
            ("leave", false),
        ]
        .into_iter()
        .enumerate()
        {
            match deed {
                "revert" => world.touch(&map("a"), true),
                "delete" => drop(world.objects.remove(&map("a"))),
                _ => {}
            }
            let contended = full(&mut world, &mut store, from_ref(&sets)).contended;
            assert_eq!(contended.is_empty(), step == 0 || deed == "leave", "step {step}: each one was sent");
            let reason = store.results[&sets.id].failure.as_ref().map(|failure| failure.reason);
            assert_eq!(reason, is_failing.then_some(Reason::DeletedAgain), "step {step}: {deed}");
        }
    }
}

/// Whatever kind of pass that is.
#[test]
fn what_was_deleted_again_is_well_in_the_next_pass_that_finds_it_in_place() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate, Behavior::CreateOnly] {
        let sets = base().behavior(behavior).maps(&["a", "b"]);
        let (mut world, mut store) = with(&sets);
        let reason =
            |store: &Store| store.results.values().find_map(|row| row.failure.as_ref().map(|failure| failure.reason));
        let again = |world: &mut World, store: &mut Store, sets: &Set| {
            for _ in 0..2 {
                world.objects.remove(&map("a"));
                pass(world, store, from_ref(sets), true);
            }
            assert_eq!(reason(store), Some(Reason::DeletedAgain));
        };
        again(&mut world, &mut store, &sets);
        // A change of another object says nothing of this one.
        let other = Set { generation: 2, ..sets.clone() }.maps(&["a", "b=2"]);
        pass(&mut world, &mut store, from_ref(&other), false);
        assert_eq!(reason(&store), Some(Reason::DeletedAgain));
        // One of this object finds it in place, or gone once more.
        let changed = Set { generation: 3, ..sets.clone() }.maps(&["a=3", "b=2"]);
        pass(&mut world, &mut store, from_ref(&changed), false);
        assert_eq!(reason(&store), None);
        again(&mut world, &mut store, &changed);
        world.objects.remove(&map("a"));
        let gone = Set { generation: 4, ..sets.clone() }.maps(&["a=4", "b=2"]);
        pass(&mut world, &mut store, from_ref(&gone), false);
        assert_eq!(reason(&store), Some(Reason::DeletedAgain));
        pass(&mut world, &mut store, from_ref(&gone), true);
        assert_eq!(reason(&store), None);
    }
}
