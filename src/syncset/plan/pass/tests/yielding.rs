//! Passes that end early, and those that go on from them.

use std::slice::from_ref;
use std::time::Duration;

use super::super::{End, Input, Outcome, Progress, Refusal};
use super::store::{Call, Fate, Store, pass, run, run_while};
use super::world::{Set, World, map, object, set};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::name::SyncSetKind::{SelectorSyncSet, SyncSet};
use crate::syncset::plan::reason::{Reason, Retry};
use crate::syncset::plan::spec::Behavior;

fn many(count: usize) -> Set {
    let names: Vec<String> = (0..count).map(|at| format!("m{at:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    set(SyncSet, "many").maps(&names)
}

/// Passes until one has finished, each from where the one before ended.
fn passes(world: &mut World, store: &mut Store, sets: &[Set], full: bool) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    while outcomes.len() < 5 && outcomes.last().is_none_or(|last| last.end != End::Finished) {
        let mut input = store.input(sets, full).expect("it is due");
        input.progress = outcomes.last().map(|last| last.progress.clone()).unwrap_or_default();
        outcomes.push(run(world, store, input));
    }
    outcomes
}

#[test]
fn what_can_not_be_deleted_does_not_keep_others_from_their_turn() {
    let gone = many(300);
    let (mut world, mut store) = (World::new(), Store::default());
    while let Some(input) = store.input(from_ref(&gone), false) {
        run(&mut world, &mut store, input);
    }
    for object in world.objects.keys() {
        world.refusals.insert(format!("DELETE {object}"), Refusal::Forbidden);
    }
    let outcomes = passes(&mut world, &mut store, &[set(SelectorSyncSet, "other").maps(&["z"])], false);
    let requests: Vec<usize> = outcomes.iter().map(|outcome| outcome.requests).collect();
    // A look at each and its deletion; the other one's object is looked at, once more right before it is sent, and sent.
    assert_eq!(requests, [1 + 500, 100 + 2]);
    assert!(world.objects.contains_key(&map("z")));
    let failure = store.results[&gone.id].failure.clone().expect("a failure");
    assert_eq!((failure.reason, outcomes[1].retry), (Reason::DeletionFailed, Some(Retry::Backoff)));
    // Whoever finished tries again later.
    assert_eq!(outcomes[1].progress, Progress::default());
    world.refusals.clear();
    passes(&mut world, &mut store, &[set(SelectorSyncSet, "other").maps(&["z"])], false);
    assert_eq!(world.objects.len(), 1);
}

/// A namespace may take any time to go, or never go.
#[test]
fn namespaces_that_do_not_go_keep_no_other_object_from_its_turn_and_are_looked_at_once_until_the_pass_comes_back() {
    let namespaces: Vec<ObjectRef> = (0..600).map(|at| object("", "Namespace", "", &format!("n{at:03}"))).collect();
    let (before, next) = (set(SyncSet, "s").objects(&namespaces), set(SyncSet, "z").maps(&["z"]));
    let (mut world, mut store) = (World::new(), Store::default());
    passes(&mut world, &mut store, from_ref(&before), false);
    world.slow_namespaces = true;
    world.log.clear();
    let after = [before.objects(&[]), next.clone()];
    let outcomes = passes(&mut world, &mut store, &after, false);
    // The object of the second one is looked at by the first pass, and once more before it is sent.
    assert_eq!(outcomes.iter().map(|outcome| outcome.requests).collect::<Vec<_>>(), [1 + 500, 500, 200 + 2]);
    let count = |world: &World, what: &str| world.log.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!((count(&world, "DELETE Namespace"), count(&world, "APPLY")), (600, 1));
    assert_eq!(outcomes.last().and_then(|last| last.retry), Some(Retry::Look));
    // Each time that it comes back it looks at each of them once, and sends what is new.
    world.log.clear();
    passes(&mut world, &mut store, &[after[0].clone(), next.maps(&["z=2"])], false);
    assert_eq!((world.log.len(), count(&world, "GET Namespace"), count(&world, "APPLY")), (600 + 2, 600, 1));
    world.finish_namespaces();
    passes(&mut world, &mut store, &after, false);
    assert!(store.applied.keys().all(|(object, _)| object.kind != "Namespace"));
}

#[test]
fn looks_that_fail_do_not_keep_others_from_their_turn() {
    for full in [false, true] {
        let (mut world, mut store) = (World::new(), Store::default());
        let sets = [many(600), set(SelectorSyncSet, "other").maps(&["z"])];
        for at in 0..600 {
            world.refusals.insert(format!("GET {}", map(&format!("m{at:03}"))), Refusal::Forbidden);
        }
        let outcomes = passes(&mut world, &mut store, &sets, full);
        assert_eq!(outcomes.iter().map(|outcome| outcome.requests).collect::<Vec<_>>(), [500, 102]);
        assert!(world.objects.contains_key(&map("z")));
        assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::Forbidden);
    }
}

#[test]
fn syncsets_that_failed_slowly_do_not_keep_others_from_their_turn_unless_they_were_edited() {
    let one = |at: usize| {
        let name = format!("s{at:02}");
        set(SyncSet, &name).behavior(Behavior::CreateOnly).maps(&[&name])
    };
    let mut sets: Vec<Set> = (0..13).map(one).collect();
    let (mut world, mut store) = (World::new(), Store::default());
    for at in 0..12 {
        world.refusals.insert(format!("POST ConfigMap default/s{at:02}"), Refusal::Forbidden);
    }
    let input = store.input(&sets, false).expect("they are due");
    let outcome = run_while(&mut world, &mut store, input, |world, call| {
        world.clock += Duration::from_secs(if matches!(call, Call::Write(..)) { 5 } else { 0 });
        Fate::Done
    });
    assert_eq!((outcome.end, world.log.len()), (End::Yielded, 12));
    world.log.clear();
    sets[3] = sets[3].clone().maps(&["s03=2"]);
    let mut input = store.input(&sets, false).expect("they are due");
    input.progress = outcome.progress;
    let next = run(&mut world, &mut store, input);
    assert_eq!(world.log, ["POST ConfigMap default/s03", "POST ConfigMap default/s12"]);
    assert_eq!((next.end, next.retry), (End::Finished, Some(Retry::Backoff)));
    assert_eq!(store.results.values().filter(|row| row.failure.is_some()).count(), 12);
    assert_eq!(pass(&mut world, &mut store, &sets, false).len(), 12);
}

/// A pass in which each apply of this object takes more than a minute, from where the one before ended.
fn slow_pass(world: &mut World, store: &mut Store, sets: &[Set], progress: Progress, slow: &str) -> Outcome {
    let input = Input { progress, ..store.input(sets, false).expect("they are due") };
    run_while(world, store, input, |world, call| {
        world.clock += Duration::from_secs(if call.is_write_of("APPLY", slow) { 61 } else { 0 });
        Fate::Done
    })
}

#[test]
fn a_syncset_that_fails_slowly_deletes_in_the_next_pass_without_being_sent_again() {
    let before = set(SyncSet, "base").maps(&["a", "b", "c"]);
    let (mut world, mut store) = (World::new(), Store::default());
    pass(&mut world, &mut store, from_ref(&before), false);
    let slow = "APPLY ConfigMap default/a";
    world.refusals.insert(slow.to_owned(), Refusal::Server);
    let sets = [before.maps(&["a=2"]), set(SelectorSyncSet, "other").maps(&["z"])];
    let first = slow_pass(&mut world, &mut store, &sets, Progress::default(), "a");
    assert_eq!((first.end, world.log.last().map(String::as_str)), (End::Yielded, Some(slow)));
    world.log.clear();
    let second = slow_pass(&mut world, &mut store, &sets, first.progress, "a");
    let verbs = [
        "GET ConfigMap default/z",
        "GET ConfigMap default/b",
        "DELETE ConfigMap default/b",
        "GET ConfigMap default/c",
        "DELETE ConfigMap default/c",
        "APPLY ConfigMap default/z",
    ];
    let sent: Vec<&String> = world.log.iter().filter(|line| !line.starts_with("GET ConfigMap default/z")).collect();
    assert_eq!(
        (second.end, sent),
        (End::Finished, verbs[1..].iter().map(|line| (*line).to_owned()).collect::<Vec<_>>().iter().collect())
    );
    assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::ServerError);
    assert_eq!(second.retry, Some(Retry::Backoff));
    // It is sent again when it is tried again.
    world.refusals.clear();
    assert_eq!(pass(&mut world, &mut store, &sets, false), [slow]);
}

/// How often a pass stores something before it ends.
fn stores(world: &mut World, store: &mut Store, sets: &[Set]) -> usize {
    let (input, mut stores) = (store.input(sets, false).expect("it is due"), 0);
    run_while(world, store, input, |_, call| {
        stores += usize::from(matches!(call, Call::Store(_)));
        Fate::Done
    });
    stores
}

#[test]
fn objects_of_a_kind_that_the_pass_defines_are_stored_together() {
    let definition = object("apiextensions.k8s.io", "CustomResourceDefinition", "", "widgets.example.com");
    let widgets = (0..40).map(|at| object("example.com", "Widget", "default", &format!("w{at:02}")));
    let sets = [set(SyncSet, "base").objects(&std::iter::once(definition).chain(widgets).collect::<Vec<_>>())];
    let (mut world, mut store) = (World::new(), Store::default());
    // Once before the definition, and once before the first object.
    assert_eq!(stores(&mut world, &mut store, &sets), 2);
    assert_eq!((world.objects.len(), world.log.len()), (41, 82));
    assert!(store.applied.values().all(|row| row.content.is_some() && !row.adopted));
}

#[test]
fn objects_that_are_looked_at_again_are_not_stored_one_by_one() {
    let sets = [many(40)];
    let (mut world, mut store) = (World::new(), Store::default());
    // It dies when its rows are stored.
    let input = store.input(&sets, false).expect("it is due");
    run_while(
        &mut world,
        &mut store,
        input,
        |_, call| {
            if matches!(call, Call::Store(_)) { Fate::Killed } else { Fate::Done }
        },
    );
    world.log.clear();
    assert_eq!(stores(&mut world, &mut store, &sets), 0);
    assert_eq!((world.objects.len(), world.log.len()), (40, 80));
}

#[test]
fn a_list_without_end_takes_one_pass_and_then_each_object_is_looked_at() {
    let sets = [many(4)];
    let (mut world, mut store) = (World::new(), Store::default());
    pass(&mut world, &mut store, &sets, false);
    (world.endless_lists, world.log) = (true, Vec::new());
    let outcomes = passes(&mut world, &mut store, &sets, true);
    assert_eq!(outcomes.iter().map(|outcome| outcome.requests).collect::<Vec<_>>(), [500, 4]);
    assert!(world.log[..500].iter().all(|line| line.starts_with("LIST")), "{:?}", world.log);
    assert!(world.log[500..].iter().all(|line| line.starts_with("GET")), "{:?}", world.log);
    assert_eq!((outcomes[1].end, &outcomes[1].progress), (End::Finished, &Progress::default()));
}

/// A pass over a cluster that takes 20 s to say that it can't say whether it serves one of these kinds. Returns how long it took.
fn pass_with_slow_kinds(
    world: &mut World,
    store: &mut Store,
    sets: &[Set],
    slow: &str,
    progress: &mut Progress,
) -> Duration {
    let (input, began) = (store.input(sets, false).expect("they are due"), world.clock);
    let input = Input { progress: std::mem::take(progress), ..input };
    *progress = run_while(world, store, input, |world, call| match call {
        Call::Resolve { kind, .. } if kind.starts_with(slow) => {
            world.clock += Duration::from_secs(20);
            Fate::Refused(Refusal::Server)
        }
        _ => Fate::Done,
    })
    .progress;
    world.clock.saturating_sub(began)
}

#[test]
fn kinds_that_do_not_answer_take_no_pass_long_and_do_not_keep_others_from_being_sent() {
    let of = |at: usize| object("", &format!("Slow{at:02}"), "default", "x");
    let slow: Vec<Set> = (0..9).map(|at| set(SyncSet, &format!("s{at}")).objects(&[of(at)])).collect();
    let good = object("apps", "Deployment", "default", "z");
    let sets = [&slow[..], &[set(SyncSet, "good").objects(std::slice::from_ref(&good))]].concat();
    let (mut world, mut store, mut progress) = (World::new(), Store::default(), Progress::default());
    let mut passes = 0;
    while !world.objects.contains_key(&good) {
        let took = pass_with_slow_kinds(&mut world, &mut store, &sets, "Slow", &mut progress);
        assert_eq!(took, Duration::from_secs(40));
        passes += 1;
        assert!(passes <= 5, "two kinds in each");
    }
    assert_eq!(store.results.values().filter(|row| row.failure.is_some()).count(), 9);
}

#[test]
fn kinds_of_what_is_to_be_deleted_take_no_pass_long_either() {
    let of = |at: usize| object("", &format!("Gone{at:02}"), "default", "x");
    let gone = set(SyncSet, "gone").objects(&(0..9).map(of).collect::<Vec<_>>());
    let (mut world, mut store, mut progress) = (World::new(), Store::default(), Progress::default());
    for at in 0..9 {
        world.kinds.insert(("v1".to_owned(), format!("Gone{at:02}")), true);
    }
    pass(&mut world, &mut store, &[gone], false);
    let sets = [set(SelectorSyncSet, "other").objects(&[object("", "Secret", "default", "z")])];
    let mut passes = 0;
    while !world.objects.contains_key(&object("", "Secret", "default", "z")) {
        passes += 1;
        assert!(passes <= 5, "two kinds in each");
        let took = pass_with_slow_kinds(&mut world, &mut store, &sets, "Gone", &mut progress);
        assert!(took <= Duration::from_mins(1), "{took:?}");
    }
}

#[test]
fn kinds_in_a_definition_that_is_to_be_deleted_are_asked_for_once_and_not_in_each_pass() {
    let definition = object("apiextensions.k8s.io", "CustomResourceDefinition", "", "widgets.example.com");
    let within: Vec<_> = (0..9).map(|at| object("example.com", &format!("Slow{at:02}"), "default", "x")).collect();
    let (mut world, mut store, mut progress) = (World::new(), Store::default(), Progress::default());
    for object in &within {
        world.kinds.insert(("example.com/v1".to_owned(), object.kind.clone()), true);
    }
    let users = set(SelectorSyncSet, "users").objects(&within);
    let owner = set(SyncSet, "owner").objects(from_ref(&definition));
    pass(&mut world, &mut store, &[owner.clone(), users.clone()], false);
    let sets = [users, set(SelectorSyncSet, "z").maps(&["z"])];
    let mut took = Vec::new();
    while !world.objects.contains_key(&map("z")) {
        assert!(took.len() < 5, "three kinds in each");
        took.push(pass_with_slow_kinds(&mut world, &mut store, &sets, "Slow", &mut progress).as_secs());
    }
    assert_eq!(took, [60, 60, 60, 0]);
    assert_eq!(store.results[&owner.id].failure.as_ref().expect("a failure").reason, Reason::DeletionFailed);
    assert!(world.objects.contains_key(&definition));
    // The next try asks again, and finds out that the definition is none of theirs.
    assert_eq!(pass_with_slow_kinds(&mut world, &mut store, &sets, "None", &mut progress).as_secs(), 0);
    assert!(!world.objects.contains_key(&definition));
}

/// A caller that waits for its turn after each request keeps the cluster from nothing.
#[test]
fn what_the_caller_waits_for_its_own_turn_is_not_the_time_of_the_pass() {
    let wait = Duration::from_secs(70);
    for counts in [false, true] {
        let sets =
            [set(SyncSet, "s").maps(&["a", "b"]), set(SyncSet, "t").objects(&[object("", "Secret", "default", "x")])];
        let (mut world, mut store) = (World::new(), Store::default());
        let input = store.input(&sets, false).expect("due");
        let outcome = run_while(&mut world, &mut store, input, |world, _| {
            world.clock += wait;
            world.waited += if counts { Duration::ZERO } else { wait };
            Fate::Done
        });
        assert_eq!(outcome.end == End::Finished, !counts);
        assert_eq!(world.objects.len() == 3, !counts, "{:?}", world.log);
    }
}

/// The list of a version has all its kinds.
#[test]
fn kinds_of_a_version_that_has_answered_are_known_also_if_it_took_long() {
    let sets = [set(SyncSet, "s").objects(&[
        map("a"),
        object("", "Secret", "default", "x"),
        object("apps", "Deployment", "default", "d"),
    ])];
    let (mut world, mut store) = (World::new(), Store::default());
    let (input, mut asked) = (store.input(&sets, false).expect("due"), Vec::new());
    run_while(&mut world, &mut store, input, |world, call| {
        if let Call::Resolve { api_version, kind } = call {
            asked.push(format!("{api_version} {kind}"));
            world.clock += Duration::from_secs(if *kind == "ConfigMap" { 31 } else { 0 });
        }
        Fate::Done
    });
    assert_eq!(asked, ["apps/v1 Deployment", "v1 ConfigMap", "v1 Secret"]);
}
