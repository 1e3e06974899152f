//! Answers with 429: one of the API server as a whole ends the pass, and one that is about an object does not keep others from
//! being sent for ever.

use std::slice::from_ref;

use super::super::{End, Input, Outcome, Progress, Refusal};
use super::store::{Store, run};
use super::world::{Flags, Set, World, map, set};
use crate::syncset::plan::name::SyncSetKind::SyncSet;
use crate::syncset::plan::reason::{Reason, Retry};
use crate::syncset::plan::spec::Behavior;

fn pass(world: &mut World, store: &mut Store, sets: &[Set], progress: Progress) -> Outcome {
    let input = store.input(sets, false).expect("something is due");
    run(world, store, Input { progress, ..input })
}

fn sets() -> [Set; 2] {
    [set(SyncSet, "a").maps(&["a1", "a2", "a3"]), set(SyncSet, "b").maps(&["b"])]
}

fn with(throttled: &[&str]) -> World {
    let mut world = World::new();
    world.refusals.extend(throttled.iter().map(|line| ((*line).to_owned(), Refusal::Throttled)));
    world
}

#[test]
fn what_is_throttled_alone_ends_two_passes_and_no_third() {
    for throttled in ["APPLY ConfigMap default/a2", "GET ConfigMap default/a2"] {
        let (mut world, mut store, sets) = (with(&[throttled]), Store::default(), sets());
        let mut progress = Progress::default();
        for round in 0..5 {
            let outcome = pass(&mut world, &mut store, &sets, progress);
            let expected = if round < 2 { (End::Interrupted, None) } else { (End::Finished, Some(Retry::Backoff)) };
            assert_eq!((outcome.end, outcome.retry), expected, "{throttled}, round {round}");
            assert_eq!(world.objects.contains_key(&map("b")), round >= 2, "{throttled}, round {round}");
            progress = outcome.progress;
        }
        let failure = store.results[&sets[0].id].failure.clone().expect("a failure");
        assert_eq!(failure.reason, Reason::Rejected);
        assert!(
            failure.message.starts_with("failed to apply resource 1 (ConfigMap default/a2): "),
            "{}",
            failure.message
        );
        // Once it is answered, it has to be throttled as often again.
        world.refusals.clear();
        let outcome = pass(&mut world, &mut store, &sets, progress);
        assert_eq!((outcome.end, outcome.retry, world.objects.len()), (End::Finished, None, 4));
        world.refusals.insert("APPLY ConfigMap default/a2".to_owned(), Refusal::Throttled);
        let changed = [sets[0].clone().maps(&["a1", "a2=2", "a3"]), sets[1].clone()];
        let outcome = pass(&mut world, &mut store, &changed, outcome.progress);
        assert_eq!(outcome.end, End::Interrupted);
    }
}

#[test]
fn an_api_server_that_answers_nothing_else_ends_each_pass_at_one_request() {
    let lines = [
        "APPLY ConfigMap default/a1",
        "APPLY ConfigMap default/a2",
        "APPLY ConfigMap default/a3",
        "APPLY ConfigMap default/b",
    ];
    let (mut world, mut store, sets) = (with(&lines), Store::default(), sets());
    world.throttles_all = true;
    let mut progress = Progress::default();
    for round in 0..9 {
        world.log.clear();
        let outcome = pass(&mut world, &mut store, &sets, progress);
        assert_eq!((outcome.end, outcome.retry), (End::Interrupted, None), "round {round}");
        let sent = world.log.iter().filter(|line| line.starts_with("APPLY")).count();
        assert_eq!(sent, 1, "round {round}: {:?}", world.log);
        progress = outcome.progress;
    }
}

#[test]
fn a_deletion_and_a_list_that_are_throttled_alone_end_two_passes_and_no_third() {
    let throttled = ["DELETE ConfigMap default/a2", "LIST ConfigMap 0"];
    let (mut world, mut store, sets) = (World::new(), Store::default(), sets());
    pass(&mut world, &mut store, &sets, Progress::default());
    world.refusals = with(&throttled).refusals;
    let dropped = [sets[0].clone().maps(&["a1"]), sets[1].clone().maps(&["b", "b2"])];
    let mut progress = Progress::default();
    for round in 0..4 {
        let outcome = pass(&mut world, &mut store, &dropped, progress);
        assert_eq!(outcome.end == End::Finished, round >= 2, "round {round}");
        assert_eq!(world.objects.contains_key(&map("b2")), round >= 2, "round {round}");
        progress = outcome.progress;
    }
    assert_eq!(store.results[&sets[0].id].failure.as_ref().expect("a failure").reason, Reason::DeletionFailed);
    // A list that is refused is replaced by looks.
    world.refusals.remove(throttled[0]);
    let mut ended = Vec::new();
    for _ in 0..3 {
        let sets = [dropped[0].clone().maps(&["a1", "a4", "a5"]), dropped[1].clone()];
        let input = store.input(&sets, true).expect("it is full");
        let outcome = run(&mut world, &mut store, Input { progress, ..input });
        ended.push(outcome.end);
        progress = outcome.progress;
    }
    assert_eq!(ended, [End::Interrupted, End::Interrupted, End::Finished]);
}

/// The requests for one object are counted apart: that the first one is answered each time says nothing of the second.
#[test]
fn the_second_request_for_an_object_that_is_throttled_alone_ends_two_passes_and_no_third() {
    let recreated = Flags { may_recreate: true, ..Flags::default() };
    for (throttled, is_update) in [("MERGE ConfigMap default/a", true), ("TRY ConfigMap default/a", false)] {
        let (mut world, mut store) = (World::new(), Store::default());
        let mut one = set(SyncSet, "a").maps(&["a"]).flags(recreated);
        if is_update {
            one = one.behavior(Behavior::CreateOrUpdate);
        }
        pass(&mut world, &mut store, from_ref(&one), Progress::default());
        (world.without_strategic, world.refusals) = (true, with(&[throttled]).refusals);
        if !is_update {
            world.refusals.insert("APPLY ConfigMap default/a".to_owned(), Refusal::Invalid);
        }
        let sets = [one.maps(&["a=2"]).flags(recreated), set(SyncSet, "b").maps(&["b"])];
        let mut progress = Progress::default();
        for round in 0..5 {
            let outcome = pass(&mut world, &mut store, &sets, progress);
            assert_eq!(outcome.end == End::Finished, round >= 2, "{throttled}, round {round}: {:?}", world.log);
            progress = outcome.progress;
        }
        assert!(world.objects.contains_key(&map("b")), "{throttled}");
    }
}
