//! What is sent, with the requests that it takes.

use std::slice::from_ref;
use std::time::Duration;

use super::super::{End, Refusal};
use super::store::{Call, Fate, Store, cut_short, pass, run, run_while};
use super::world::{Flags, Resource, Set, World, map, object, set};
use crate::syncset::plan::name::SyncSetKind::{SelectorSyncSet, SyncSet};
use crate::syncset::plan::reason::{Reason, Retry};
use crate::syncset::plan::rows::ResultRow;
use crate::syncset::plan::spec::{Behavior, Known, Mode};
use crate::syncset::plan::wanted::Deletions;

fn base() -> Set {
    set(SyncSet, "base")
}

fn new() -> (World, Store) {
    (World::new(), Store::default())
}

#[test]
fn a_new_syncset_takes_two_requests_for_each_object_and_one_for_each_patch_and_afterwards_none() {
    let (mut world, mut store) = new();
    let sets = [base().maps(&["a", "b"]).patch(map("a"), "p")];
    let requests = pass(&mut world, &mut store, &sets, false);
    let expected = [
        "GET ConfigMap default/a",
        "GET ConfigMap default/b",
        "APPLY ConfigMap default/a",
        "APPLY ConfigMap default/b",
        "PATCH ConfigMap default/a",
    ];
    assert_eq!(requests, expected);
    assert!(store.input(&sets, false).is_none());
    let row = &store.results[&sets[0].id];
    assert_eq!((row.generation, row.failure.is_none(), row.first_success.is_some()), (3, true, true));
}

#[test]
fn create_only_takes_one_request_for_each_object_and_leaves_what_exists() {
    let (mut world, mut store) = new();
    world.create(&map("b"));
    let sets = [base().behavior(Behavior::CreateOnly).maps(&["a", "b"])];
    let requests = pass(&mut world, &mut store, &sets, false);
    assert_eq!(requests, ["POST ConfigMap default/a", "POST ConfigMap default/b"]);
    assert_eq!(world.objects[&map("b")].data, "foreign");
    let requests = pass(&mut world, &mut store, &[], false);
    assert_eq!(requests, ["GET ConfigMap default/a", "DELETE ConfigMap default/a"]);
    assert!(store.applied.is_empty() && store.results.is_empty());
    assert_eq!(world.objects.len(), 1);
}

#[test]
fn create_or_update_creates_what_is_absent_and_patches_what_exists() {
    let (mut world, mut store) = new();
    world.create(&map("b"));
    let sets = [base().behavior(Behavior::CreateOrUpdate).maps(&["a", "b"])];
    let requests = pass(&mut world, &mut store, &sets, false);
    let expected =
        ["GET ConfigMap default/a", "GET ConfigMap default/b", "POST ConfigMap default/a", "PATCH ConfigMap default/b"];
    assert_eq!(requests, expected);
    assert_eq!(world.objects[&map("b")].annotations["towline.dev/adopted"], "true");
}

#[test]
fn a_kind_without_strategic_patches_gets_merge_patches() {
    let (mut world, mut store) = new();
    world.without_strategic = true;
    world.create(&map("b"));
    let sets = [base().behavior(Behavior::CreateOrUpdate).maps(&["b"]).patch(map("b"), "p")];
    let requests = pass(&mut world, &mut store, &sets, false);
    let expected = [
        "GET ConfigMap default/b",
        "PATCH ConfigMap default/b",
        "MERGE ConfigMap default/b",
        "PATCH ConfigMap default/b",
        "MERGE ConfigMap default/b",
    ];
    assert_eq!(requests, expected);
}

#[test]
fn k_changes_take_k_requests() {
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate, Behavior::CreateOnly] {
        let (mut world, mut store) = new();
        let sets = [base().behavior(behavior).maps(&["a", "b", "c"])];
        pass(&mut world, &mut store, &sets, false);
        let sets = [sets[0].clone().maps(&["a", "b=2", "c=2"])];
        assert_eq!(pass(&mut world, &mut store, &sets, false).len(), 2, "{behavior:?}");
        assert!(store.input(&sets, false).is_none());
    }
}

#[test]
fn a_change_that_was_taken_back_after_its_pass_was_cut_short_is_sent_again() {
    let (mut world, mut store) = new();
    let before = base().maps(&["a"]);
    pass(&mut world, &mut store, from_ref(&before), false);
    // The change reaches the cluster, and the pass dies before it can note that.
    cut_short(&mut world, &mut store, &[before.clone().maps(&["a=2"])]);
    assert_eq!(world.objects[&map("a")].data, "2");
    assert_eq!(store.results[&before.id].inputs, ResultRow::UNFINISHED);
    let requests = pass(&mut world, &mut store, &[before], false);
    assert_eq!(requests, ["GET ConfigMap default/a", "APPLY ConfigMap default/a"]);
    assert_eq!(world.objects[&map("a")].data, "1");
}

#[test]
fn an_object_that_a_pass_created_anew_before_it_was_cut_short_is_still_ours() {
    let (mut world, mut store) = new();
    pass(&mut world, &mut store, &[base().maps(&["a"])], false);
    world.objects.clear();
    let after = [Set { generation: 9, ..base().maps(&["a=2"]) }];
    cut_short(&mut world, &mut store, &after);
    pass(&mut world, &mut store, &after, false);
    assert!(!store.applied[&(map("a"), after[0].id)].adopted);
    assert_eq!(pass(&mut world, &mut store, &[], false).len(), 2);
    assert!(world.objects.is_empty());
}

#[test]
fn nothing_is_written_to_the_cluster_before_its_rows_are_stored() {
    let (mut world, mut store) = new();
    let input = store.input(&[base().maps(&["a", "b"])], false).expect("it is due");
    let mut stored = Vec::new();
    run_while(&mut world, &mut store, input, |world, call| {
        if let Call::Store(writes) = call {
            assert!(world.log.iter().all(|line| line.starts_with("GET")), "{:?}", world.log);
            stored.extend(writes.applied.clone());
        }
        Fate::Done
    });
    let stored: Vec<_> = stored.iter().map(|row| (row.object.name.as_str(), row.content, row.adopted)).collect();
    assert_eq!(stored, [("a", None, false), ("b", None, false)]);
}

#[test]
fn the_last_syncset_sends_an_object_and_the_next_one_follows_when_it_drops_it() {
    let (mut world, mut store) = new();
    let first = set(SelectorSyncSet, "a").maps(&["x=first"]);
    let last = set(SelectorSyncSet, "b").maps(&["x=last"]);
    let own = base().maps(&["x=own"]);
    let requests = pass(&mut world, &mut store, &[last.clone(), own.clone(), first.clone()], false);
    assert_eq!(requests, ["GET ConfigMap default/x", "APPLY ConfigMap default/x"]);
    assert_eq!(world.objects[&map("x")].data, "last");
    let uid = world.objects[&map("x")].uid;
    let requests = pass(&mut world, &mut store, &[own.clone(), first], false);
    assert_eq!(requests, ["APPLY ConfigMap default/x"]);
    assert_eq!(world.objects[&map("x")].data, "first");
    let requests = pass(&mut world, &mut store, &[own], false);
    assert_eq!(requests, ["APPLY ConfigMap default/x"]);
    assert_eq!((world.objects[&map("x")].uid, &world.objects[&map("x")].data), (uid, &"own".into()));
    assert_eq!(pass(&mut world, &mut store, &[], false).len(), 2);
    assert!(world.objects.is_empty());
}

#[test]
fn a_syncset_stops_at_its_first_error_and_others_go_on() {
    for (broken, sent) in [("ConfigMap default/a", 1), ("ConfigMap default/b", 2)] {
        let (mut world, mut store) = new();
        world.refusals.insert(format!("APPLY {broken}"), Refusal::Forbidden);
        let sets = [base().maps(&["a", "b"]).patch(map("a"), "p"), set(SelectorSyncSet, "other").maps(&["z"])];
        let requests = pass(&mut world, &mut store, &sets, false);
        let of_base = requests.iter().filter(|line| !line.starts_with("GET") && !line.ends_with('z'));
        assert_eq!(of_base.count(), sent, "{requests:?}");
        assert_eq!(requests.last().map(String::as_str), Some("APPLY ConfigMap default/z"));
        let failure = store.results[&sets[0].id].failure.clone().expect("a failure");
        assert_eq!(failure.reason, Reason::Forbidden);
        assert_eq!(failure.message, format!("failed to apply resource {} ({broken}): forbidden", sent - 1));
        assert!(store.results[&sets[1].id].failure.is_none());
        // What is not known to have been sent is sent again.
        world.refusals.clear();
        let requests = pass(&mut world, &mut store, &sets, false);
        assert_eq!(requests.len(), 7 - 2 * sent, "{requests:?}");
    }
}

#[test]
fn nothing_of_a_syncset_is_sent_or_deleted_while_a_resource_does_not_render() {
    let (mut world, mut store) = new();
    let before = base().maps(&["a", "b"]);
    pass(&mut world, &mut store, from_ref(&before), false);
    let mut after = before.maps(&["c"]);
    after.resources.push(Resource::Broken(Known::Object(map("a"))));
    assert!(pass(&mut world, &mut store, from_ref(&after), false).is_empty());
    assert_eq!(store.applied.len(), 2);
    assert_eq!(store.results[&after.id].failure.as_ref().expect("a failure").reason, Reason::TemplateInvalid);
    let after = after.maps(&["c"]);
    assert_eq!(pass(&mut world, &mut store, &[after], false).len(), 6);
}

#[test]
fn a_secret_that_can_not_be_read_fails_at_its_place_and_stays() {
    let (mut world, mut store) = new();
    let secret = object("", "Secret", "default", "pull");
    let mut sets = [base().maps(&["a"])];
    sets[0].secrets = vec![Resource::Ready(secret.clone(), "1".to_owned(), Flags::default())];
    pass(&mut world, &mut store, &sets, false);
    sets[0] = sets[0].clone().maps(&["a=2"]).patch(map("a"), "p");
    sets[0].secrets = vec![Resource::Broken(Known::Object(secret.clone()))];
    assert_eq!(pass(&mut world, &mut store, &sets, false), ["APPLY ConfigMap default/a"]);
    assert!(world.objects.contains_key(&secret));
}

#[test]
fn an_object_that_existed_is_adopted_and_never_deleted_unless_it_says_that_it_may_be() {
    for may_adopt in [false, true] {
        let (mut world, mut store) = new();
        world.create(&map("a"));
        let sets = [base().maps(&["a"]).flags(Flags { may_adopt, ..Flags::default() })];
        pass(&mut world, &mut store, &sets, false);
        assert_eq!(world.objects[&map("a")].data, "1");
        assert_eq!(
            world.objects[&map("a")].annotations.get("towline.dev/adopted").is_some_and(|is| is == "true"),
            !may_adopt
        );
        let requests = pass(&mut world, &mut store, &[], false);
        assert_eq!((requests.len(), world.objects.len()), if may_adopt { (2, 0) } else { (0, 1) });
        assert!(store.applied.is_empty());
    }
}

#[test]
fn an_adopted_object_stays_adopted_whoever_sends_it() {
    let (mut world, mut store) = new();
    world.create(&map("a"));
    let forgetful = base().mode(Mode::Upsert).maps(&["a"]);
    pass(&mut world, &mut store, &[forgetful], false);
    pass(&mut world, &mut store, &[], false);
    assert!(store.applied.is_empty());
    // Now it has our label, but the annotation says that it was there before.
    let other = set(SelectorSyncSet, "other").maps(&["a"]);
    pass(&mut world, &mut store, &[other], false);
    let third = set(SelectorSyncSet, "third").maps(&["a=3"]);
    pass(&mut world, &mut store, from_ref(&third), false);
    assert_eq!(world.objects[&map("a")].data, "3");
    assert!(store.applied[&(map("a"), third.id)].adopted);
    pass(&mut world, &mut store, &[], false);
    assert_eq!(world.objects.len(), 1);
}

#[test]
fn an_object_that_somebody_created_anew_is_adopted() {
    let (mut world, mut store) = new();
    let sets = [base().maps(&["a"])];
    pass(&mut world, &mut store, &sets, false);
    world.create(&map("a"));
    let sets = [base().maps(&["a=2"])];
    pass(&mut world, &mut store, &[Set { generation: 9, ..sets[0].clone() }], false);
    assert!(store.applied[&(map("a"), sets[0].id)].adopted);
    assert_eq!(pass(&mut world, &mut store, &[], false), Vec::<String>::new());
    assert_eq!(world.objects.len(), 1);
}

#[test]
fn an_object_that_somebody_creates_after_a_pass_that_failed_is_adopted() {
    let (mut world, mut store) = new();
    world.refusals.insert("APPLY ConfigMap default/a".to_owned(), Refusal::Server);
    let sets = [base().maps(&["a"])];
    pass(&mut world, &mut store, &sets, false);
    world.refusals.clear();
    world.create(&map("a"));
    let requests = pass(&mut world, &mut store, &sets, false);
    assert_eq!(requests, ["GET ConfigMap default/a", "APPLY ConfigMap default/a"]);
    assert!(store.applied[&(map("a"), sets[0].id)].adopted);
}

#[test]
fn a_terminating_object_fails_and_is_created_when_it_is_gone() {
    let (mut world, mut store) = new();
    world.create(&map("a")).terminating = true;
    let sets = [base().maps(&["a"])];
    assert_eq!(pass(&mut world, &mut store, &sets, false), ["GET ConfigMap default/a"]);
    assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::Terminating);
    world.objects.clear();
    assert_eq!(pass(&mut world, &mut store, &sets, false).len(), 2);
    assert!(!store.applied[&(map("a"), sets[0].id)].adopted);
    // It may also be found out by an apply.
    world.objects.get_mut(&map("a")).expect("it is there").terminating = true;
    let sets = [sets[0].clone().maps(&["a=2"])];
    pass(&mut world, &mut store, &sets, false);
    assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::Terminating);
    assert_eq!(store.applied[&(map("a"), sets[0].id)].content, None);
}

#[test]
fn an_object_is_only_created_anew_if_it_says_so_and_would_be_valid() {
    for (may_recreate, valid) in [(false, true), (true, false), (true, true)] {
        let (mut world, mut store) = new();
        let flags = Flags { may_recreate, ..Flags::default() };
        let sets = [base().maps(&["a"]).flags(flags)];
        pass(&mut world, &mut store, &sets, false);
        world.refusals.insert("APPLY ConfigMap default/a".to_owned(), Refusal::Invalid);
        if !valid {
            world.refusals.insert("TRY ConfigMap default/a".to_owned(), Refusal::Invalid);
        }
        let sets = [Set { generation: 9, ..base().maps(&["a=2"]).flags(flags) }];
        let requests = pass(&mut world, &mut store, &sets, false);
        // The object is looked at since the server may have refused its UID.
        let all = ["APPLY", "GET", "TRY", "DELETE"].map(|verb| format!("{verb} ConfigMap default/a"));
        assert_eq!(requests, all[..2 + usize::from(may_recreate) + usize::from(may_recreate && valid)]);
        let reason = store.results[&sets[0].id].failure.as_ref().expect("a failure").reason;
        assert_eq!(reason, if may_recreate && valid { Reason::Terminating } else { Reason::Rejected });
        world.refusals.clear();
        let requests = pass(&mut world, &mut store, &sets, false);
        let is_gone = may_recreate && valid;
        assert_eq!(
            requests,
            ["APPLY", "GET", "APPLY"].map(|verb| format!("{verb} ConfigMap default/a"))[..if is_gone { 3 } else { 1 }]
        );
        assert!(!store.applied[&(map("a"), sets[0].id)].adopted);
    }
}

#[test]
fn an_object_is_not_created_anew_while_its_syncset_may_not_delete() {
    for deletions in [Deletions::Suspended, Deletions::Unchecked] {
        let (mut world, mut store) = new();
        let flags = Flags { may_recreate: true, ..Flags::default() };
        pass(&mut world, &mut store, &[base().maps(&["a"]).flags(flags)], false);
        world.refusals.insert("APPLY ConfigMap default/a".to_owned(), Refusal::Invalid);
        let sets = [Set { generation: 9, deletions, ..base().maps(&["a=2"]).flags(flags) }];
        assert_eq!(
            pass(&mut world, &mut store, &sets, false),
            ["APPLY ConfigMap default/a", "GET ConfigMap default/a"]
        );
        assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::Rejected);
        let sets = [Set { deletions: Deletions::Allowed, ..sets[0].clone() }];
        assert_eq!(pass(&mut world, &mut store, &sets, false).len(), 4);
    }
}

#[test]
fn nothing_is_sent_after_a_write_to_the_database_failed() {
    let (mut world, mut store) = new();
    let input = store.input(&[base().maps(&["a"])], false).expect("it is due");
    let outcome = run_while(&mut world, &mut store, input, |_, call| {
        if matches!(call, Call::Store(_)) { Fate::Unsent } else { Fate::Done }
    });
    assert_eq!(outcome.end, End::Interrupted);
    assert!(outcome.writes.is_empty(), "they rest on what was not stored: {:?}", outcome.writes);
    assert_eq!(world.log, ["GET ConfigMap default/a"]);
}

#[test]
fn an_adopted_object_is_never_created_anew() {
    let (mut world, mut store) = new();
    world.create(&map("a"));
    world.refusals.insert("APPLY ConfigMap default/a".to_owned(), Refusal::Invalid);
    let sets = [base().maps(&["a"]).flags(Flags { may_recreate: true, ..Flags::default() })];
    let requests = pass(&mut world, &mut store, &sets, false);
    let apply = "APPLY ConfigMap default/a";
    assert_eq!(requests, ["GET ConfigMap default/a", apply, "GET ConfigMap default/a"]);
}

#[test]
fn objects_of_a_kind_that_the_syncset_defines_follow_in_the_same_pass() {
    let (mut world, mut store) = new();
    let definition = object("apiextensions.k8s.io", "CustomResourceDefinition", "", "widgets.example.com");
    let widget = object("example.com", "Widget", "default", "w");
    let sets = [base().objects(&[definition.clone(), widget.clone()])];
    pass(&mut world, &mut store, &sets, false);
    assert!(world.objects.contains_key(&widget));
    assert!(store.results[&sets[0].id].failure.is_none());
    assert!(!store.applied[&(widget.clone(), sets[0].id)].adopted);
    let sets = [base().objects(&[widget])];
    let (mut world, mut store) = new();
    assert!(pass(&mut world, &mut store, &sets, false).is_empty());
    assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::KindNotServed);
}

#[test]
fn a_kind_that_its_definition_does_not_serve_is_waited_for_once_in_a_pass() {
    let (mut world, mut store) = new();
    let definition = object("apiextensions.k8s.io", "CustomResourceDefinition", "", "widgets.example.com");
    let widget = |name: &str| object("example.com", "Widget", "default", name);
    world.defines_nothing = true;
    let sets = [
        base().objects(&[definition, widget("a"), widget("b")]),
        set(SelectorSyncSet, "b").objects(&[widget("c")]),
        set(SelectorSyncSet, "c").objects(&[widget("d")]),
    ];
    pass(&mut world, &mut store, &sets, false);
    assert_eq!(world.waits, 1);
    for set in &sets {
        assert_eq!(store.results[&set.id].failure.as_ref().expect("a failure").reason, Reason::KindNotServed);
    }
}

#[test]
fn a_cluster_scoped_object_is_one_object_whatever_namespace_is_given() {
    let (mut world, mut store) = new();
    let with = object("", "Namespace", "default", "n");
    let without = object("", "Namespace", "", "n");
    let sets = [base().objects(&[with]), set(SelectorSyncSet, "b").objects(from_ref(&without))];
    assert_eq!(pass(&mut world, &mut store, &sets, false), ["GET Namespace n", "APPLY Namespace n"]);
    assert_eq!(pass(&mut world, &mut store, &sets[..1], false), ["APPLY Namespace n"]);
    assert!(world.objects.contains_key(&without));
}

#[test]
fn a_namespaced_object_without_namespace_fails() {
    let (mut world, mut store) = new();
    // Of built-in kinds the hub has refused it.
    world.kinds.insert(("example.com/v1".to_owned(), "Widget".to_owned()), true);
    let sets = [base().objects(&[object("example.com", "Widget", "", "a")])];
    assert!(pass(&mut world, &mut store, &sets, false).is_empty());
    let failure = store.results[&sets[0].id].failure.clone().expect("a failure");
    let message = "failed to apply resource 0: a Widget needs a namespace: set metadata.namespace, none is assumed";
    assert_eq!((failure.reason, failure.message.as_str()), (Reason::ResourceInvalid, message));
}

#[test]
fn a_patch_is_sent_again_after_its_object_was_written_and_after_a_failure() {
    let (mut world, mut store) = new();
    let sets = [base().maps(&["a"]).patch(map("a"), "p").patch(map("z"), "q")];
    pass(&mut world, &mut store, &sets, false);
    let failure = store.results[&sets[0].id].failure.clone().expect("a failure");
    assert_eq!(failure.reason, Reason::PatchTargetMissing);
    assert_eq!(failure.message, "failed to apply patch 1 (ConfigMap default/z): notfound");
    assert_eq!(pass(&mut world, &mut store, &sets, false), ["PATCH ConfigMap default/z"]);
    world.create(&map("z"));
    assert_eq!(pass(&mut world, &mut store, &sets, false), ["PATCH ConfigMap default/z"]);
    let sets = [sets[0].clone().maps(&["a=2"])];
    let requests = pass(&mut world, &mut store, &sets, false);
    assert_eq!(requests, ["APPLY ConfigMap default/a", "PATCH ConfigMap default/a"]);
}

#[test]
fn a_pass_yields_after_500_requests_and_ends_in_as_many_passes_as_that_takes() {
    let (mut world, mut store) = new();
    let names: Vec<String> = (0..700).map(|at| format!("m{at:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let sets = [base().maps(&names)];
    let mut ends = Vec::new();
    while let Some(input) = store.input(&sets, false) {
        let outcome = run(&mut world, &mut store, input);
        ends.push((outcome.end, outcome.requests));
    }
    // What was looked at in an earlier pass is looked at again right before it is sent.
    let mut expected = vec![(End::Yielded, 500); 4];
    expected.push((End::Finished, 100));
    assert_eq!(ends, expected);
    assert_eq!(world.objects.len(), 700);
}

#[test]
fn what_was_done_is_stored_after_100_requests_and_after_10_s() {
    for seconds in [0, 4] {
        let mut world = World::new();
        let names: Vec<String> = (0..150).map(|at| format!("m{at:03}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut store = Store::default();
        let (input, mut stores) = (store.input(&[base().maps(&names)], false).expect("it is due"), 0);
        let outcome = run_while(&mut world, &mut store, input, |world, call| {
            stores += usize::from(matches!(call, Call::Store(_)));
            world.clock += Duration::from_secs(seconds);
            Fate::Done
        });
        let end = outcome.end;
        if seconds == 0 {
            // After 100 looks, before the first apply, and 100 requests later.
            assert_eq!((stores, end), (3, End::Finished));
        } else {
            assert_eq!(end, End::Yielded);
            assert!(stores >= 3, "{stores}");
            assert!(world.log.len() <= 16, "{}", world.log.len());
        }
    }
}

/// A syncset is shown to be done although those that come after it take long, and change no row.
#[test]
fn what_only_a_result_says_is_stored_after_100_requests_too() {
    let mut world = World::new();
    let mut store = Store::default();
    let names: Vec<String> = (0..300).map(|at| format!("m{at:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (first, gone) = (set(SyncSet, "a"), set(SyncSet, "z").maps(&names));
    pass(&mut world, &mut store, &[first.clone(), gone.clone()], false);
    // Nothing of its objects may be deleted, so that no row changes while they are looked at.
    for name in &names {
        world.refusals.insert(format!("DELETE ConfigMap default/{name}"), Refusal::Forbidden);
    }
    let sets = [Set { generation: 9, ..first }, gone.maps(&[])];
    let input = store.input(&sets, false).expect("it is due");
    let (mut requests, mut stored_at) = (0, None);
    run_while(&mut world, &mut store, input, |_, call| {
        if let Call::Store(writes) = call
            && writes.results.iter().any(|row| row.syncset == sets[0].id && row.generation == 9)
        {
            stored_at.get_or_insert(requests);
        }
        requests += usize::from(!matches!(call, Call::MayDelete));
        Fate::Done
    });
    assert!(stored_at.is_some_and(|at| at <= 110), "{stored_at:?} of {requests}");
}

#[test]
fn what_create_only_left_as_it_was_is_sent_once_it_is_to_be_applied() {
    for foreign in [false, true] {
        let (mut world, mut store) = new();
        let only = base().behavior(Behavior::CreateOnly);
        if foreign {
            world.create(&map("a"));
        } else {
            pass(&mut world, &mut store, &[only.clone().maps(&["a"])], false);
        }
        let only = Set { generation: 7, ..only.maps(&["a=2"]) };
        pass(&mut world, &mut store, from_ref(&only), false);
        assert_ne!(world.objects[&map("a")].data, "2");
        let only = only.behavior(Behavior::Apply);
        let requests = pass(&mut world, &mut store, from_ref(&only), false);
        // What this behavior has created is taken over, and what existed before is adopted.
        let verbs: &[&str] = if foreign { &["GET", "APPLY"] } else { &["GET", "TAKE", "APPLY"] };
        assert_eq!(requests, verbs.iter().map(|verb| format!("{verb} ConfigMap default/a")).collect::<Vec<_>>());
        assert_eq!(world.objects[&map("a")].data, "2");
        assert_eq!(store.applied[&(map("a"), only.id)].adopted, foreign);
    }
}

#[test]
fn a_switch_of_behavior_sends_what_is_wanted_once_more() {
    let (mut world, mut store) = new();
    let update = base().behavior(Behavior::CreateOrUpdate).maps(&["a"]);
    pass(&mut world, &mut store, from_ref(&update), false);
    let requests = pass(&mut world, &mut store, &[update.behavior(Behavior::Apply)], false);
    assert_eq!(requests, ["GET ConfigMap default/a", "TAKE ConfigMap default/a", "APPLY ConfigMap default/a"]);
}

#[test]
fn an_interrupted_pass_keeps_what_was_done_and_the_results_of_what_was_not() {
    let (mut world, mut store) = new();
    let sets = [base().maps(&["a"]), set(SelectorSyncSet, "other").maps(&["z"])];
    let input = store.input(&sets, false).expect("it is due");
    let outcome = run_while(&mut world, &mut store, input, |_, call| {
        if call.is_write_of("APPLY", "z") { Fate::Unsent } else { Fate::Done }
    });
    assert_eq!(outcome.end, End::Interrupted);
    assert!(store.results[&sets[0].id].first_success.is_some());
    assert_eq!(store.results[&sets[1].id].inputs, ResultRow::UNFINISHED);
    assert_eq!(world.log.len(), 3);
    let requests = super::store::pass(&mut world, &mut store, &sets, false);
    assert_eq!(requests, ["GET ConfigMap default/z", "APPLY ConfigMap default/z"]);
}

#[test]
fn the_outcome_says_when_the_cluster_is_tried_again() {
    for (refusal, retry) in [(Refusal::SchemaMismatch, Retry::OnChange), (Refusal::Server, Retry::Backoff)] {
        let (mut world, mut store) = new();
        world.refusals.insert("APPLY ConfigMap default/a".to_owned(), refusal);
        let input = store.input(&[base().maps(&["a"])], false).expect("it is due");
        assert_eq!(run(&mut world, &mut store, input).retry, Some(retry));
    }
}
