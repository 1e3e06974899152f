//! What is deleted and what is not.

use std::collections::BTreeMap;
use std::slice::from_ref;

use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use super::super::{End, Input, Outcome, Refusal, Release};
use super::store::{Call, Fate, Store, cut_short, pass, run, run_while};
use super::world::{Flags, Object, Resource, Set, World, map, object, set};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::name::SyncSetKind::{SelectorSyncSet, SyncSet};
use crate::syncset::plan::naming::{Names, Naming};
use crate::syncset::plan::reason::{Reason, Retry};
use crate::syncset::plan::rows::TAKEN;
use crate::syncset::plan::spec::{Behavior, Known, Mode};
use crate::syncset::plan::wanted::Deletions;

fn base() -> Set {
    set(SyncSet, "base")
}

/// A cluster with objects of the syncset.
fn with(sets: &[Set]) -> (World, Store) {
    let (mut world, mut store) = (World::new(), Store::default());
    pass(&mut world, &mut store, sets, false);
    (world, store)
}

fn outcome(world: &mut World, store: &mut Store, sets: &[Set]) -> Outcome {
    let input = store.input(sets, false).expect("it is due");
    run(world, store, input)
}

fn failure(store: &Store, id: Uuid) -> (Reason, String) {
    let failure = store.results[&id].failure.clone().expect("a failure");
    (failure.reason, failure.message)
}

#[test]
fn one_dropped_object_takes_two_requests_after_what_is_sent() {
    let before = base().maps(&["a", "b"]);
    let (mut world, mut store) = with(from_ref(&before));
    let requests = pass(&mut world, &mut store, &[before.clone().maps(&["b=2"])], false);
    assert_eq!(requests, ["APPLY ConfigMap default/b", "GET ConfigMap default/a", "DELETE ConfigMap default/a"]);
    assert_eq!(store.applied.len(), 1);
    // Also after a failure.
    let (mut world, mut store) = with(from_ref(&before));
    world.refusals.insert("APPLY ConfigMap default/b".to_owned(), Refusal::Forbidden);
    assert_eq!(pass(&mut world, &mut store, &[before.maps(&["b=2"])], false).len(), 3);
}

#[test]
fn upsert_forgets_and_deletes_nothing() {
    let before = base().mode(Mode::Upsert).maps(&["a", "b"]);
    let (mut world, mut store) = with(from_ref(&before));
    assert!(pass(&mut world, &mut store, &[before.clone().maps(&["b"])], false).is_empty());
    assert_eq!(store.applied.len(), 1);
    assert!(pass(&mut world, &mut store, &[], false).is_empty());
    assert_eq!((store.applied.len(), store.results.len(), world.objects.len()), (0, 0, 2));
}

#[test]
fn a_switch_to_upsert_forgets_and_a_switch_to_sync_tracks_what_is_wanted_from_then_on() {
    let before = base().maps(&["a", "b"]);
    let (mut world, mut store) = with(from_ref(&before));
    let forgetful = before.mode(Mode::Upsert).maps(&["b"]);
    assert!(pass(&mut world, &mut store, from_ref(&forgetful), false).is_empty());
    assert!(!store.applied[&(map("b"), forgetful.id)].tracked);
    // What the edit drops was not tracked.
    let strict = forgetful.maps(&["b", "c"]);
    pass(&mut world, &mut store, from_ref(&strict), false);
    let strict = strict.mode(Mode::Sync).maps(&["c"]);
    assert!(pass(&mut world, &mut store, from_ref(&strict), false).is_empty());
    assert_eq!(pass(&mut world, &mut store, &[strict.maps(&[])], false).len(), 2);
    assert_eq!(world.objects.keys().map(|object| object.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn syncsets_that_are_gone_are_deleted_first_namespaces_last() {
    let namespace = object("", "Namespace", "", "n");
    let definition = object("apiextensions.k8s.io", "CustomResourceDefinition", "", "widgets.example.com");
    let gone = base().objects(&[namespace, definition, object("", "ConfigMap", "n", "x"), map("a")]);
    let (mut world, mut store) = with(&[gone]);
    let requests = pass(&mut world, &mut store, &[set(SyncSet, "new").maps(&["z"])], false);
    let deleted: Vec<&str> = requests.iter().filter_map(|line| line.strip_prefix("DELETE ")).collect();
    let all = [
        "ConfigMap default/a",
        "ConfigMap n/x",
        "CustomResourceDefinition.apiextensions.k8s.io widgets.example.com",
        "Namespace n",
    ];
    assert_eq!(deleted, all);
    assert_eq!(requests.last().map(String::as_str), Some("APPLY ConfigMap default/z"));
}

/// A syncset sends what it wants before it deletes anything, also what goes with something of another one.
#[test]
fn what_a_live_syncset_drops_within_what_another_one_drops_is_deleted_after_what_it_sends() {
    let namespace = object("", "Namespace", "", "n");
    let definition = object("apiextensions.k8s.io", "CustomResourceDefinition", "", "widgets.example.com");
    let outer = set(SyncSet, "a").objects(&[namespace, definition.clone()]);
    let within = [object("", "ConfigMap", "n", "x"), object("example.com", "Widget", "default", "w")];
    let inner = set(SyncSet, "b").objects(&within);
    for (is_gone, fails) in [(true, false), (false, false), (true, true), (false, true)] {
        let (mut world, mut store) = with(&[outer.clone(), inner.clone()]);
        if fails {
            world.refusals.insert("APPLY ConfigMap default/new".to_owned(), Refusal::Forbidden);
        }
        let mut sets = vec![inner.clone().objects(&[map("new")]), set(SyncSet, "c").maps(&["z"])];
        if !is_gone {
            sets.push(outer.clone().objects(&[map("own")]));
        }
        let requests = pass(&mut world, &mut store, &sets, false);
        let written: Vec<&str> = requests.iter().map(String::as_str).filter(|line| !line.starts_with("GET")).collect();
        let mut expected = if is_gone { vec![] } else { vec!["APPLY ConfigMap default/own"] };
        expected.extend([
            "APPLY ConfigMap default/new",
            "DELETE ConfigMap n/x",
            "DELETE Widget.example.com default/w",
            "APPLY ConfigMap default/z",
            "DELETE CustomResourceDefinition.apiextensions.k8s.io widgets.example.com",
            "DELETE Namespace n",
        ]);
        assert_eq!(written, expected, "{is_gone} {fails}");
        assert_eq!(store.results.contains_key(&outer.id), !is_gone);
        assert!(store.results.values().all(|row| !row.has_pending_deletions), "{:?}", store.results);
        assert_eq!(store.results.values().filter(|row| row.failure.is_some()).count(), usize::from(fails));
    }
}

/// Any name is that of a definition, also one of a group of definitions: each seems to be in the other.
#[test]
fn definitions_that_seem_to_be_within_each_other_are_deleted_all_the_same() {
    let [foos, bars, widgets] = ["foos.apiextensions.k8s.io", "bars.apiextensions.k8s.io", "widgets.example.com"]
        .map(|name| object("apiextensions.k8s.io", "CustomResourceDefinition", "", name));
    let (a, b, c) = (set(SyncSet, "a"), set(SyncSet, "b"), set(SyncSet, "c"));
    let with_objects = |of: &Set, objects: &[ObjectRef]| of.clone().objects(objects);
    for before in [
        vec![with_objects(&a, &[foos.clone(), widgets.clone()])],
        vec![with_objects(&a, &[foos.clone(), bars.clone()])],
        vec![
            with_objects(&a, from_ref(&foos)),
            with_objects(&b, from_ref(&bars)),
            with_objects(&c, from_ref(&widgets)),
        ],
    ] {
        let (mut world, mut store) = with(&before);
        let after: Vec<Set> = before.iter().map(|set| set.clone().maps(&[])).collect();
        let requests = pass(&mut world, &mut store, &after, false);
        let deleted = requests.iter().filter(|line| line.starts_with("DELETE CustomResourceDefinition")).count();
        let expected: usize = before.iter().map(|set| set.resources.len()).sum();
        assert_eq!(deleted, expected, "{requests:?}");
        assert!(store.results.values().all(|row| !row.has_pending_deletions && row.failure.is_none()));
    }
}

/// What it was planned by has changed, so that the object may be wanted again: what is wanted is sent all the same.
#[test]
fn deletions_that_are_put_off_keep_nothing_from_being_sent_and_are_done_by_the_next_pass() {
    let live = base().maps(&["a", "b"]);
    let (world, store) = with(&[live.clone(), set(SelectorSyncSet, "gone").maps(&["c"])]);
    let after = [live.maps(&["b=2"]), set(SelectorSyncSet, "new").maps(&["d"])];
    for put_off_at in 0..2 {
        let (mut world, mut store) = (world.clone(), store.clone());
        world.log.clear();
        let (input, mut deletions) = (store.input(&after, false).expect("it is due"), 0);
        let outcome = run_while(&mut world, &mut store, input, |_, call| {
            deletions += usize::from(matches!(call, Call::Delete(_)));
            let is_put_off = matches!(call, Call::MayDelete) && deletions == put_off_at;
            if is_put_off { Fate::Refused(Refusal::Server) } else { Fate::Done }
        });
        assert!(outcome.awaits_check && outcome.end == End::Finished && outcome.retry.is_none());
        let writes = |line: &&String| !line.starts_with("GET");
        let written: Vec<&String> = world.log.iter().filter(writes).collect();
        let all = ["DELETE ConfigMap default/c", "APPLY ConfigMap default/b", "APPLY ConfigMap default/d"];
        assert_eq!(written, all[1 - put_off_at..]);
        assert!(store.results[&after[0].id].has_pending_deletions);
        let requests = super::store::pass(&mut world, &mut store, &after, false);
        assert_eq!(requests.len(), if put_off_at == 0 { 4 } else { 2 }, "{requests:?}");
        assert_eq!(world.objects.len(), 2);
    }
}

#[test]
fn what_a_live_syncset_wants_is_not_deleted_even_if_that_one_can_not_send_it() {
    let (mut world, mut store) = with(&[base().maps(&["a"])]);
    let mut broken = set(SelectorSyncSet, "broken").maps(&[]);
    broken.resources = vec![Resource::Broken(Known::Object(map("a")))];
    assert!(pass(&mut world, &mut store, from_ref(&broken), false).is_empty());
    // Nor forgotten: somebody has to delete it in the end.
    assert_eq!(store.applied.len(), 1);
    assert!(store.results[&base().id].has_pending_deletions);
    assert_eq!(pass(&mut world, &mut store, &[], false).len(), 2);
    assert!(world.objects.is_empty() && store.applied.is_empty() && store.results.is_empty());
}

#[test]
fn while_a_name_does_not_render_nothing_of_its_kind_is_deleted() {
    let secret = object("", "Secret", "default", "s");
    let namespace = object("", "Namespace", "", "n");
    let gone = base().objects(&[map("a"), secret, namespace]);
    let kind = Known::Kind { group: String::new(), kind: "ConfigMap".to_owned() };
    for (known, deleted) in [(kind, vec!["DELETE Secret default/s"]), (Known::Nothing, vec![])] {
        let (mut world, mut store) = with(from_ref(&gone));
        let mut broken = set(SelectorSyncSet, "broken").maps(&[]);
        broken.resources = vec![Resource::Broken(known)];
        let requests = pass(&mut world, &mut store, from_ref(&broken), false);
        let of: Vec<&String> = requests.iter().filter(|line| line.starts_with("DELETE")).collect();
        assert_eq!(of, deleted);
        pass(&mut world, &mut store, &[broken.maps(&["z"])], false);
        assert_eq!(world.objects.len(), 1);
    }
}

#[test]
fn an_object_that_moves_to_another_syncset_is_never_absent() {
    for (from, to) in [("a", "b"), ("b", "a")] {
        let before = set(SelectorSyncSet, from).maps(&["x"]);
        let (mut world, mut store) = with(&[before]);
        let uid = world.objects[&map("x")].uid;
        let requests = pass(&mut world, &mut store, &[set(SyncSet, to).maps(&["x"])], false);
        assert_eq!(requests, ["APPLY ConfigMap default/x"]);
        assert_eq!(world.objects[&map("x")].uid, uid);
        assert_eq!(store.applied.len(), 1);
        assert_eq!(pass(&mut world, &mut store, &[], false).len(), 2);
        assert!(world.objects.is_empty());
    }
}

#[test]
fn what_somebody_has_made_of_an_object_keeps_it_and_is_a_failure_until_that_is_over() {
    type Change = fn(&mut Object);
    let changes: [(Release, Change); 5] = [
        (Release::Unlabelled, |object| object.labels.clear()),
        (Release::AnotherOwner, |object| drop(object.annotations.remove("towline.dev/syncset-id"))),
        (Release::Adopted, |object| {
            drop(object.annotations.insert("towline.dev/adopted".to_owned(), "true".to_owned()));
        }),
        (Release::Adopted, |object| object.uid += 1000),
        (Release::Kept, |object| drop(object.annotations.insert("towline.dev/prune".to_owned(), "false".to_owned()))),
    ];
    for (release, change) in changes {
        let all = [base().maps(&["a", "b"])];
        let before = with(&all).0.objects[&map("a")].clone();
        // Whether its syncset is gone or only wants it no more.
        for left in [vec![], vec![base().maps(&[]).maps(&["b"])]] {
            let (mut world, mut store) = with(&all);
            change(world.objects.get_mut(&map("a")).expect("it is there"));
            for is_full in [false, true] {
                pass(&mut world, &mut store, &left, is_full);
                let (reason, message) = failure(&store, base().id);
                let told =
                    format!("v1, Kind=ConfigMap default/a stays, although no syncset wants it: {}", release.reason());
                assert_eq!((reason, message), (Reason::NotDeleted, told), "however often it is looked at");
                assert!(world.objects.contains_key(&map("a")));
            }
            // It ends when the object is as it was, is deleted by somebody else, or is wanted with the mark that it stays.
            let (mut deleted, mut stored) = (world.clone(), store.clone());
            deleted.objects.remove(&map("a"));
            pass(&mut deleted, &mut stored, &left, true);
            assert!(stored.results.values().all(|row| row.failure.is_none()) && stored.applied.len() == left.len());
            world.objects.insert(map("a"), before.clone());
            pass(&mut world, &mut store, &left, true);
            assert!(!world.objects.contains_key(&map("a")), "{release:?}");
            assert!(store.results.values().all(|row| row.failure.is_none()) && store.applied.len() == left.len());
        }
    }
    // What bears the id of another syncset is that one's.
    let (mut world, mut store) = with(&[base().maps(&["a"])]);
    let another = Uuid::from_u128(7).to_string();
    world.objects.get_mut(&map("a")).expect("there").annotations.insert("towline.dev/syncset-id".to_owned(), another);
    let released = outcome(&mut world, &mut store, &[]).releases;
    assert_eq!(released.into_iter().collect::<Vec<_>>(), [(Release::AnotherOwner, 1)]);
    assert!(world.objects.contains_key(&map("a")) && store.applied.is_empty() && store.results.is_empty());
    // One that is wanted again begins anew.
    let (mut world, mut store) = with(&[base().maps(&["a"])]);
    world.objects.values_mut().for_each(|object| object.labels.clear());
    pass(&mut world, &mut store, &[], false);
    assert!(store.applied.values().all(|row| row.gone == TAKEN && row.tracked && !row.wanted));
    pass(&mut world, &mut store, &[base().maps(&["a"])], true);
    assert!(store.applied.values().all(|row| row.gone == 0 && row.wanted));
    assert_eq!(store.results[&base().id].failure, None);
    // What is tried again is told before what only somebody can mend.
    let (namespace, within) = (object("", "Namespace", "", "n"), object("", "ConfigMap", "n", "x"));
    let sets =
        [base().objects(&[map("a"), namespace.clone()]), set(SelectorSyncSet, "other").objects(from_ref(&within))];
    let (mut world, mut store) = with(&sets);
    world.objects.get_mut(&map("a")).expect("there").labels.clear();
    for is_full in [false, true] {
        pass(&mut world, &mut store, &sets[1..], is_full);
        assert_eq!(failure(&store, base().id).0, Reason::DeletionFailed);
    }
    // A namespace around such an object is not tried in vain, and is not counted again either.
    let (mut world, mut store) = with(&[base().objects(&[namespace, within.clone()])]);
    world.objects.get_mut(&within).expect("there").labels.clear();
    for _ in 0..2 {
        assert_eq!(outcome(&mut world, &mut store, &[]).retry, Some(Retry::OnChange));
        let (reason, message) = failure(&store, base().id);
        assert!(reason == Reason::NotDeleted && message.ends_with("; and 1 more"), "{message}");
        assert!(store.applied.len() == 2 && store.applied.values().all(|row| row.gone == TAKEN));
    }
    world.objects.remove(&within);
    pass(&mut world, &mut store, &[], true);
    assert!(world.objects.is_empty() && store.applied.is_empty() && store.results.is_empty());
    // Of several it says how many.
    let (mut world, mut store) = with(&[base().maps(&["a", "b", "c"])]);
    world.objects.values_mut().for_each(|object| object.labels.clear());
    pass(&mut world, &mut store, &[], false);
    assert!(failure(&store, base().id).1.ends_with("; and 2 more"));
}

#[test]
fn an_object_that_is_wanted_in_another_group_is_not_deleted() {
    let old = object("extensions", "Deployment", "default", "d");
    let new = object("apps", "Deployment", "default", "d");
    let (mut world, mut store) = with(&[base().objects(from_ref(&old))]);
    // The cluster serves one object in both groups.
    let same = world.objects[&old].clone();
    world.objects.insert(new.clone(), same);
    let outcome = outcome(&mut world, &mut store, &[set(SyncSet, "new").objects(from_ref(&new))]);
    assert_eq!(outcome.releases.into_iter().collect::<Vec<_>>(), [(Release::Wanted, 1)]);
    assert!(world.objects.contains_key(&old) && world.objects.contains_key(&new));
    // Without a look at the new one it is not known whether it is the same.
    let (mut world, mut store) = with(&[base().objects(from_ref(&old))]);
    let only_new = set(SyncSet, "new").behavior(Behavior::CreateOnly).objects(&[new]);
    pass(&mut world, &mut store, from_ref(&only_new), false);
    let (reason, message) = failure(&store, base().id);
    assert_eq!(reason, Reason::DeletionFailed);
    let expected = "failed to delete extensions/v1, Kind=Deployment default/d: it may be Deployment.apps default/d, which is wanted";
    assert_eq!(message, expected);
    pass(&mut world, &mut store, &[only_new], false);
    assert!(!world.objects.contains_key(&old));
}

#[test]
fn a_namespace_or_a_definition_stays_while_something_in_it_is_wanted() {
    let namespace = object("", "Namespace", "", "n");
    let within = object("", "ConfigMap", "n", "x");
    let sets = [base().objects(from_ref(&namespace)), set(SelectorSyncSet, "other").objects(from_ref(&within))];
    let (mut world, mut store) = with(&sets);
    assert!(pass(&mut world, &mut store, &sets[1..], false).is_empty());
    let (reason, message) = failure(&store, base().id);
    assert_eq!(reason, Reason::DeletionFailed);
    assert_eq!(message, "failed to delete v1, Kind=Namespace n: ConfigMap n/x is still wanted");
    let requests = pass(&mut world, &mut store, &[], false);
    assert_eq!(requests.last().map(String::as_str), Some("DELETE Namespace n"));
    assert!(world.objects.is_empty() && store.results.is_empty());
}

#[test]
fn a_namespace_or_a_definition_stays_while_something_in_it_may_not_be_deleted() {
    let namespace = object("", "Namespace", "", "n");
    let definition = object("apiextensions.k8s.io", "CustomResourceDefinition", "", "widgets.example.com");
    let widget = object("example.com", "Widget", "default", "w");
    for (outer, within) in [(namespace, object("", "ConfigMap", "n", "x")), (definition, widget)] {
        for deletions in [Deletions::Suspended, Deletions::Unchecked] {
            let mut held = set(SelectorSyncSet, "held").objects(from_ref(&within));
            let (mut world, mut store) = with(&[base().objects(from_ref(&outer)), held.clone()]);
            held = held.objects(&[]);
            held.deletions = deletions;
            assert!(pass(&mut world, &mut store, from_ref(&held), false).is_empty(), "{deletions:?}");
            assert!(world.objects.contains_key(&within) && world.objects.contains_key(&outer));
            let (reason, message) = failure(&store, base().id);
            assert_eq!(reason, Reason::DeletionFailed);
            assert!(message.ends_with(&format!("{within} may not be deleted yet")), "{message}");
            held.deletions = Deletions::Allowed;
            pass(&mut world, &mut store, from_ref(&held), false);
            pass(&mut world, &mut store, from_ref(&held), false);
            assert!(world.objects.is_empty(), "{deletions:?}");
        }
    }
}

#[test]
fn what_existed_in_another_group_is_told_apart_by_a_full_pass() {
    let old = object("extensions", "Deployment", "default", "d");
    let new = object("apps", "Deployment", "default", "d");
    for is_same in [false, true] {
        let (mut world, mut store) = with(&[base().objects(from_ref(&old))]);
        world.create(&new);
        if is_same {
            let same = world.objects[&old].clone();
            world.objects.insert(new.clone(), same);
        }
        let only_new = set(SyncSet, "new").behavior(Behavior::CreateOnly).objects(from_ref(&new));
        pass(&mut world, &mut store, from_ref(&only_new), false);
        assert_eq!(failure(&store, base().id).0, Reason::DeletionFailed);
        pass(&mut world, &mut store, from_ref(&only_new), true);
        assert_eq!((world.objects.contains_key(&old), world.objects.contains_key(&new)), (is_same, true));
        assert!(!store.results.contains_key(&base().id));
        assert!(store.applied[&(new.clone(), only_new.id)].adopted);
    }
}

#[test]
fn a_look_that_fails_keeps_the_row_and_a_missing_object_or_kind_ends_it() {
    for refusal in [Refusal::Forbidden, Refusal::Server] {
        let (mut world, mut store) = with(&[base().maps(&["a"])]);
        world.refusals.insert("GET ConfigMap default/a".to_owned(), refusal);
        pass(&mut world, &mut store, &[], false);
        assert_eq!((store.applied.len(), failure(&store, base().id).0), (1, Reason::DeletionFailed));
        world.refusals.clear();
        assert_eq!(pass(&mut world, &mut store, &[], false).len(), 2);
    }
    let (mut world, mut store) = with(&[base().maps(&["a"])]);
    world.objects.clear();
    assert_eq!(pass(&mut world, &mut store, &[], false), ["GET ConfigMap default/a"]);
    assert!(store.applied.is_empty());
    let (mut world, mut store) = with(&[base().maps(&["a"])]);
    world.kinds.clear();
    assert!(pass(&mut world, &mut store, &[], false).is_empty());
    assert!(store.applied.is_empty() && store.results.is_empty());
}

#[test]
fn an_object_that_changes_all_the_time_is_looked_at_three_times() {
    let (mut world, mut store) = with(&[base().maps(&["a"])]);
    world.refusals.insert("DELETE ConfigMap default/a".to_owned(), Refusal::Conflict);
    assert_eq!(pass(&mut world, &mut store, &[], false).len(), 6);
    assert_eq!(failure(&store, base().id).0, Reason::DeletionFailed);
}

#[test]
fn what_is_held_or_not_checked_is_not_deleted_and_waits() {
    for (deletions, is_suspended, awaits) in [(Deletions::Suspended, true, false), (Deletions::Unchecked, false, true)]
    {
        let before = base().maps(&["a", "b"]);
        let (mut world, mut store) = with(from_ref(&before));
        let mut after = before.maps(&["b=2"]);
        after.deletions = deletions;
        world.log.clear();
        let ended = outcome(&mut world, &mut store, from_ref(&after));
        assert_eq!((ended.is_suspended, ended.awaits_check, ended.retry), (is_suspended, awaits, None));
        assert_eq!(world.log, ["APPLY ConfigMap default/b"]);
        assert!(store.results[&after.id].has_pending_deletions);
        after.deletions = Deletions::Allowed;
        assert_eq!(pass(&mut world, &mut store, &[after], false).len(), 2);
    }
    let (mut world, mut store) = with(&[base().maps(&["a"])]);
    let mut input = store.input(&[], false).expect("it is gone");
    input.gone.clear();
    assert!(run(&mut world, &mut store, input).awaits_check);
    assert_eq!((store.applied.len(), world.objects.len()), (1, 1));
}

#[test]
fn another_cluster_behind_the_kubeconfig_loses_nothing() {
    let sets = [base().maps(&["a", "b"]), set(SelectorSyncSet, "gone").maps(&["c"])];
    let (_, mut store) = with(&sets);
    let mut world = World::new();
    for name in ["a", "b", "c"] {
        world.create(&map(name));
    }
    let sets = [sets[0].clone().maps(&["a"])];
    let mut input = store.input(&sets, true).expect("it is due");
    input.another_cluster = true;
    run(&mut world, &mut store, input);
    assert_eq!(world.log, ["GET ConfigMap default/a", "APPLY ConfigMap default/a"]);
    assert!(store.applied[&(map("a"), sets[0].id)].adopted);
    assert_eq!((store.applied.len(), store.results.len()), (1, 1));
}

#[test]
fn a_deletion_that_was_taken_back_is_sent_again() {
    let before = base().maps(&["a"]);
    let (mut world, mut store) = with(from_ref(&before));
    // Selected no more; the pass dies right after the deletion; selected again.
    cut_short(&mut world, &mut store, &[]);
    assert!(world.objects.is_empty());
    pass(&mut world, &mut store, &[before], false);
    assert!(world.objects.contains_key(&map("a")));
}

#[test]
fn what_create_only_made_before_it_was_cut_short_is_still_ours() {
    let only = base().behavior(Behavior::CreateOnly).maps(&["a"]);
    for goes_on in [false, true] {
        let (mut world, mut store) = (World::new(), Store::default());
        cut_short(&mut world, &mut store, from_ref(&only));
        if goes_on {
            let requests = pass(&mut world, &mut store, from_ref(&only), false);
            assert_eq!(requests, ["POST ConfigMap default/a", "GET ConfigMap default/a"]);
        }
        assert_eq!(pass(&mut world, &mut store, &[], false).len(), 2);
        assert!(world.objects.is_empty());
    }
}

#[test]
fn prune_false_on_the_resource_keeps_it() {
    let (mut world, mut store) = with(&[base().maps(&["a"]).flags(Flags { keep: true, ..Flags::default() })]);
    let kept: Vec<ObjectRef> = world.objects.keys().cloned().collect();
    pass(&mut world, &mut store, &[], false);
    assert_eq!(world.objects.keys().cloned().collect::<Vec<_>>(), kept);
}

#[test]
fn what_create_only_took_over_is_not_its_own_to_delete() {
    let only = base().behavior(Behavior::CreateOnly).maps(&["a"]);
    let (mut world, mut store) = with(&[only.clone(), set(SelectorSyncSet, "other").maps(&["a"])]);
    assert_eq!(pass(&mut world, &mut store, &[only], false), ["POST ConfigMap default/a"]);
    let outcome = outcome(&mut world, &mut store, &[]);
    assert_eq!(outcome.releases.into_iter().collect::<Vec<_>>(), [(Release::AnotherOwner, 1)]);
}

#[test]
fn what_a_syncset_wants_is_noted_even_if_the_one_that_sends_it_fails() {
    let last = set(SelectorSyncSet, "last").maps(&["a"]);
    let (mut world, mut store) = with(from_ref(&last));
    world.refusals.insert("GET ConfigMap default/a".to_owned(), Refusal::Forbidden);
    let uid = world.objects[&map("a")].uid;
    pass(&mut world, &mut store, &[base().maps(&["a"]), last], true);
    world.refusals.clear();
    pass(&mut world, &mut store, &[base().maps(&["a"])], false);
    assert_eq!(world.objects[&map("a")].uid, uid);
}

#[test]
fn a_definition_is_kept_for_its_own_kind_and_not_for_others_of_its_group() {
    let widgets = object("apiextensions.k8s.io", "CustomResourceDefinition", "", "widgets.example.com");
    for (kind, stays) in [("Widget", true), ("Gadget", false), ("Unknown", true)] {
        for is_due in [false, true] {
            let wanted = object("example.com", kind, "default", "w");
            let mut sets =
                [base().objects(from_ref(&widgets)), set(SelectorSyncSet, "other").objects(from_ref(&wanted))];
            let mut world = World::new();
            world.kinds.insert(("example.com/v1".to_owned(), kind.to_owned()), true);
            let mut store = Store::default();
            pass(&mut world, &mut store, &sets, false);
            if kind == "Unknown" {
                world.kinds.remove(&("example.com/v1".to_owned(), kind.to_owned()));
            }
            if is_due {
                sets[1].generation += 1;
            }
            pass(&mut world, &mut store, &sets[1..], false);
            assert_eq!(world.objects.contains_key(&widgets), stays, "{kind} {is_due}");
            if stays {
                let message = format!(
                    "failed to delete apiextensions.k8s.io/v1, Kind=CustomResourceDefinition widgets.example.com: {wanted} is still wanted"
                );
                assert_eq!(failure(&store, base().id), (Reason::DeletionFailed, message));
            }
        }
    }
}

/// The row stays until the object is gone, and says what holds it from a minute on.
#[test]
fn an_object_that_is_deleted_and_not_gone_is_looked_at_until_it_is() {
    let held = |world: &mut World| {
        world.objects.get_mut(&map("a")).expect("it is there").finalizers = vec!["example.com/wait".to_owned()];
    };
    let before = base().maps(&["a", "b", "c"]);
    for is_gone in [false, true] {
        let (mut world, mut store) = with(from_ref(&before));
        held(&mut world);
        let after = if is_gone { Vec::new() } else { vec![before.clone().maps(&["b", "c"])] };
        world.log.clear();
        let first = outcome(&mut world, &mut store, &after);
        assert_eq!((first.retry, first.releases.len()), (Some(Retry::Look), 0));
        assert_eq!(first.ending.contains(&before.id), is_gone, "that is no failure yet");
        let row = &store.applied[&(map("a"), before.id)];
        assert!(!row.wanted && row.tracked && store.results[&before.id].failure.is_none());
        assert!(store.results[&before.id].has_pending_deletions);
        let requests = pass(&mut world, &mut store, &after, false);
        assert_eq!(requests, ["GET ConfigMap default/a"], "it is deleted once");
        let mut late = store.input(&after, false).expect("it is due");
        late.now = Timestamp::from_second(61).expect("a time");
        let outcome = run(&mut world, &mut store, late);
        assert_eq!(outcome.retry, Some(Retry::Look));
        let told = "v1, Kind=ConfigMap default/a is being deleted since 1970-01-01T00:00:00Z and not gone: held by finalizer example.com/wait";
        assert_eq!(failure(&store, before.id), (Reason::DeletionPending, told.to_owned()));
        world.objects.remove(&map("a"));
        pass(&mut world, &mut store, &after, false);
        assert!(!store.applied.contains_key(&(map("a"), before.id)));
        assert_eq!(store.results.get(&before.id).map(|row| row.failure.is_none()), (!is_gone).then_some(true));
    }
}

/// Whatever a cluster says: of a syncset that is gone and of one that is not, in a failure to send, to look and to delete, and of what holds an object.
#[test]
fn a_cluster_chooses_no_long_message_and_no_control_character_of_a_failure() {
    type Source<'a> = (Reason, &'a dyn Fn(&mut World));
    let words = format!("\u{1b}[31m{}\u{9b}\n", "x\u{85}y".repeat(10_000));
    let hold = |world: &mut World, finalizer: &str, remaining: Option<&String>| {
        let held = world.objects.get_mut(&map("a")).expect("it is there");
        (held.finalizers, held.remaining) = (vec![finalizer.to_owned()], remaining.cloned());
    };
    let refuse = |world: &mut World, verb: &str| {
        world.words.clone_from(&words);
        world.refusals.insert(format!("{verb} {}", map("a")), Refusal::Forbidden);
    };
    let sources: [Source<'_>; 5] = [
        (Reason::Forbidden, &|world| refuse(world, "APPLY")),
        (Reason::DeletionFailed, &|world| refuse(world, "GET")),
        (Reason::DeletionFailed, &|world| refuse(world, "DELETE")),
        (Reason::DeletionPending, &|world| hold(world, &words, None)),
        (Reason::DeletionPending, &|world| hold(world, "a", Some(&words))),
    ];
    for (reason, says) in sources {
        for is_gone in [false, true] {
            let before = base().maps(&["a", "b"]);
            let (mut world, mut store) = with(from_ref(&before));
            says(&mut world);
            let after = match reason {
                Reason::Forbidden => vec![before.clone().maps(&["a=2", "b"])],
                _ if is_gone => Vec::new(),
                _ => vec![before.clone().maps(&["b"])],
            };
            pass(&mut world, &mut store, &after, false);
            let mut told = Vec::new();
            for second in [61, 62] {
                let mut late = store.input(&after, false).expect("it is due");
                late.now = Timestamp::from_second(second).expect("a time");
                run(&mut world, &mut store, late);
                told.push(store.results[&before.id].clone());
            }
            let failure = told[0].failure.as_ref().expect("a failure");
            assert_eq!(failure.reason, reason);
            let message = &failure.message;
            assert!((1_000..=1_024).contains(&message.len()) && !message.contains(char::is_control), "{message:?}");
            assert_eq!(told[1], told[0], "it is the same failure since then");
        }
    }
}

/// The wait for a look is the shorter one. While nothing is looked at, since the guard has not decided yet, what fails is not tried each second.
#[test]
fn what_fails_beside_an_object_that_is_not_gone_does_not_put_off_the_look_at_that() {
    for (deletions, expected) in [(Deletions::Allowed, Retry::Look), (Deletions::Unchecked, Retry::Backoff)] {
        let (before, bad) = (base().maps(&["a", "b"]), set(SelectorSyncSet, "bad").maps(&["z"]));
        let (mut world, mut store) = with(from_ref(&before));
        world.objects.get_mut(&map("a")).expect("it is there").finalizers = vec!["example.com/wait".to_owned()];
        world.refusals.insert(format!("APPLY {}", map("z")), Refusal::Forbidden);
        let mut sets = [before.maps(&["b"]), bad];
        assert_eq!(outcome(&mut world, &mut store, &sets).retry, Some(Retry::Look));
        assert_eq!(failure(&store, sets[1].id).0, Reason::Forbidden);
        if deletions == Deletions::Unchecked {
            sets[0] = sets[0].clone().maps(&[]);
            sets[0].deletions = deletions;
        }
        assert_eq!(outcome(&mut world, &mut store, &sets).retry, Some(expected));
    }
}

#[test]
fn what_is_on_its_way_out_holds_up_no_namespace() {
    let namespace = object("", "Namespace", "", "n");
    let within = object("", "ConfigMap", "n", "x");
    let before = base().objects(&[namespace, within.clone()]);
    let (mut world, mut store) = with(from_ref(&before));
    world.objects.get_mut(&within).expect("it is there").finalizers = vec!["example.com/wait".to_owned()];
    world.slow_namespaces = true;
    let requests = pass(&mut world, &mut store, &[before.objects(&[])], false);
    let deleted: Vec<&String> = requests.iter().filter(|line| line.starts_with("DELETE")).collect();
    assert_eq!(deleted, ["DELETE ConfigMap n/x", "DELETE Namespace n"]);
    assert!(store.results[&base().id].failure.is_none() && store.applied.len() == 2);
}

/// What a rollout is about to bring: maps, in these namespaces.
pub(super) fn awaited(maps: &[(&str, &str)]) -> Vec<Names> {
    let map = |(namespace, name): &(&str, &str)| ["v1", "ConfigMap", namespace, name].map(|text| Some(text.to_owned()));
    let resources: Vec<_> = maps.iter().map(map).collect();
    let spec = json!({"resourceApplyMode": "Upsert", "enableResourceTemplates": true, "secretMappings": []});
    let naming = Naming::of_any(&set(SyncSet, "z").name, &spec, Some(&resources)).expect("it names objects");
    vec![naming.names(&BTreeMap::new())]
}

#[test]
fn what_a_rollout_is_about_to_bring_is_never_absent_and_nobody_waits_for_its_deletion() {
    let namespace = object("", "Namespace", "", "n");
    for is_gone in [false, true] {
        let before = base().objects(&[map("a"), map("b"), namespace.clone()]);
        let (mut world, mut store) = with(from_ref(&before));
        let after = before.clone().maps(&["c"]);
        let live = if is_gone { Vec::new() } else { vec![after.clone()] };
        let input =
            Input { awaited: awaited(&[("default", "a"), ("n", "x")]), ..store.input(&live, false).expect("due") };
        let outcome = run(&mut world, &mut store, input);
        assert_eq!(outcome.retry, None);
        let left: Vec<&str> =
            world.objects.keys().map(|object| object.name.as_str()).filter(|name| *name != "c").collect();
        assert_eq!(left, ["a", "n"]);
        if !is_gone {
            let result = &store.results[&after.id];
            assert_eq!((result.failure.as_ref(), result.has_pending_deletions), (None, false));
        }
        // The rollout has come.
        let (mut moved, mut stored) = (world.clone(), store.clone());
        let other = set(SyncSet, "z").maps(&["a"]);
        let requests = pass(&mut moved, &mut stored, &[live.clone(), vec![other]].concat(), true);
        assert!(requests.iter().all(|request| request != "DELETE ConfigMap default/a"), "{requests:?}");
        assert!(moved.objects.contains_key(&map("a")));
        assert!(!stored.applied.contains_key(&(map("a"), before.id)), "it is the other one's");
        // It is over, and did not come.
        let requests = pass(&mut world, &mut store, &live, true);
        assert!(requests.iter().any(|request| request == "DELETE ConfigMap default/a"), "{requests:?}");
        assert!(requests.iter().any(|request| request == "DELETE Namespace n"), "{requests:?}");
    }
}

#[test]
fn a_name_that_does_not_render_keeps_everything_of_its_kind() {
    let before = base().maps(&["a"]).objects(&[object("", "Secret", "default", "s"), map("a")]);
    let (mut world, mut store) = with(from_ref(&before));
    let input = store.input(&[before.maps(&[]).objects(&[])], false).expect("due");
    let input = Input { awaited: awaited(&[("default", "{{ fromCDLabel \"none\" }}")]), ..input };
    run(&mut world, &mut store, input);
    assert_eq!(world.objects.keys().map(|object| object.kind.as_str()).collect::<Vec<_>>(), ["ConfigMap"]);
}
