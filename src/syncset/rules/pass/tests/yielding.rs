//! Passes that end early, and those that go on from them (rule 16).

use std::slice::from_ref;
use std::time::Duration;

use super::super::{Answer, End, Outcome, Pass, Progress, Refusal, Step};
use super::world::{Set, Store, World, map, pass, run, set};
use crate::syncset::rules::name::SyncSetKind::{SelectorSyncSet, SyncSet};
use crate::syncset::rules::spec::Behavior;
use crate::syncset::rules::status::{Reason, Retry};

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
    let mut slow = Pass::new(store.input(&sets, false).expect("they are due"));
    let mut elapsed = Duration::ZERO;
    let outcome = loop {
        let answer = match slow.next(elapsed) {
            Step::Done(outcome) => break outcome,
            Step::Store(writes) => {
                store.write(writes);
                Ok(Answer::Stored)
            }
            step => {
                elapsed += Duration::from_secs(if matches!(step, Step::Create { .. }) { 5 } else { 0 });
                world.perform(step)
            }
        };
        slow.reply(answer);
    };
    store.write(outcome.writes);
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
