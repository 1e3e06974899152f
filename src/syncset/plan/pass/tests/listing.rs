//! Lists that are read at once.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::{End, Input, Outcome, Progress, Refusal};
use super::store::{Call, Fate, Store, pass, run, run_while};
use super::world::{Set, World, object, set};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::name::SyncSetKind::SyncSet;
use crate::syncset::plan::spec::Behavior;

/// An object of one of many kinds.
fn of(kind: usize, name: usize) -> ObjectRef {
    object("", &format!("K{kind}"), "default", &format!("o{name}"))
}

/// A cluster that has so many objects of each kind.
fn with(counts: &[usize], behavior: Behavior) -> (World, Store, Set) {
    let objects = counts.iter().enumerate().flat_map(|(kind, count)| (0..*count).map(move |name| of(kind, name)));
    let sets = set(SyncSet, "base").behavior(behavior).objects(&objects.collect::<Vec<_>>());
    let (mut world, mut store) = (World::new(), Store::default());
    for kind in 0..counts.len() {
        world.kinds.insert(("v1".to_owned(), format!("K{kind}")), true);
    }
    pass(&mut world, &mut store, std::slice::from_ref(&sets), false);
    world.log.clear();
    (world, store, sets)
}

fn full(store: &Store, sets: &Set, progress: Progress) -> Input {
    Input { progress, ..store.input(std::slice::from_ref(sets), true).expect("it is full") }
}

/// The lists that a full pass reads at once, each time.
fn lists_read(world: &mut World, store: &Store, input: Input) -> Vec<Vec<String>> {
    let mut lists = Vec::new();
    run_while(world, &mut store.clone(), input, |_, call| {
        if let Call::Lists(at_once) = call {
            lists.push(at_once.iter().map(|list| format!("LIST {} {}", list.kind, list.page)).collect());
        }
        Fate::Done
    });
    lists
}

#[test]
fn four_lists_are_read_at_once_and_the_next_takes_the_place_of_one_that_has_ended() {
    // Two objects are on a page.
    let (mut world, store, sets) = with(&[3, 5, 4, 3, 3, 4, 2], Behavior::Apply);
    world.refusals.insert("LIST K3 0".to_owned(), Refusal::Forbidden);
    let expected = [
        vec!["LIST K0 0", "LIST K1 0", "LIST K2 0", "LIST K3 0"],
        vec!["LIST K0 1", "LIST K1 1", "LIST K2 1", "LIST K4 0"],
        vec!["LIST K1 2", "LIST K4 1", "LIST K5 0"],
        vec!["LIST K5 1"],
    ];
    assert_eq!(lists_read(&mut world, &store, full(&store, &sets, Progress::default())), expected);
    // What can't be listed is looked at, and so is what is not worth a list.
    let looks = ["o0", "o1"].map(|name| format!("GET K6 default/{name}"));
    let forbidden = ["o0", "o1", "o2"].map(|name| format!("GET K3 default/{name}"));
    assert_eq!(world.log[12..], [&looks[..], &forbidden].concat());
}

#[test]
fn each_page_counts_and_of_lists_without_end_each_takes_one_pass() {
    let (mut world, mut store, sets) = with(&[3, 3, 3], Behavior::Apply);
    world.endless_lists = true;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for pages in [[167, 167, 166], [0, 250, 250], [0, 0, 500], [0, 0, 0]] {
        world.log.clear();
        let progress = outcomes.last().map(|last| last.progress.clone()).unwrap_or_default();
        let input = full(&store, &sets, progress);
        outcomes.push(run(&mut world, &mut store, input));
        let count = |kind| world.log.iter().filter(|line| line.starts_with(&format!("LIST K{kind} "))).count();
        assert_eq!([0, 1, 2].map(count), pages);
    }
    let ended: Vec<_> = outcomes.iter().map(|outcome| (outcome.requests, outcome.end)).collect();
    let yielded = (500, End::Yielded);
    assert_eq!(ended, [yielded, yielded, yielded, (9, End::Finished)]);
}

#[test]
fn of_an_interrupted_pass_only_the_longest_list_is_not_begun_again() {
    let (mut world, store, sets) = with(&[5, 7, 5], Behavior::Apply);
    let mut reads = 0;
    let input = full(&store, &sets, Progress::default());
    let progress = run_while(&mut world, &mut store.clone(), input, |_, call| {
        reads += usize::from(matches!(call, Call::Lists(_)));
        if reads == 2 { Fate::Unsent } else { Fate::Done }
    })
    .progress;
    world.log.clear();
    // Two of each are known to be in step.
    assert_eq!(
        lists_read(&mut world, &store, full(&store, &sets, progress)),
        [["LIST K1 0", "LIST K2 0"], ["LIST K1 1", "LIST K2 1"], ["LIST K1 2", "LIST K2 2"]]
            .map(Vec::from)
            .into_iter()
            .chain([vec!["LIST K1 3"]])
            .collect::<Vec<_>>()
    );
}

#[test]
fn lists_that_were_not_asked_for_since_the_cluster_had_not_answered_yet_are_asked_for_then() {
    let (mut world, mut store, sets) = with(&[3, 3, 3, 3, 3], Behavior::Apply);
    let (input, mut steps) = (full(&store, &sets, Progress::default()), Vec::new());
    let outcome = run_while(&mut world, &mut store, input, |_, call| {
        let Call::Lists(lists) = call else { return Fate::Done };
        steps.push(if steps.is_empty() { 1 } else { lists.len() });
        if steps.len() == 1 { Fate::FirstList } else { Fate::Done }
    });
    assert_eq!((outcome.end, outcome.requests, world.log.len()), (End::Finished, 10, 10), "{:?}", world.log);
    // The second page of the first one, and three others.
    assert_eq!(steps, [1, 4, 4, 1]);
}

/// What somebody does to an object.
fn change(world: &mut World, object: &ObjectRef, what: u8) {
    match what {
        0 => {}
        1 => world.touch(object, false),
        2 => world.touch(object, true),
        3 => drop(world.objects.remove(object)),
        4 => {
            world.objects.get_mut(object).expect("it is there").labels.clear();
            world.touch(object, true);
        }
        _ => drop(world.create(object)),
    }
}

const BEHAVIORS: &[Behavior] = &[Behavior::Apply, Behavior::CreateOrUpdate, Behavior::CreateOnly];

proptest! {
    /// A list is a cheaper way to look at each object, whatever becomes of the others that are read beside it.
    #[test]
    fn lists_come_to_what_looks_come_to(
        kinds in vec((vec(0..6_u8, 1..7), option::of((0..2_usize, select(vec![Refusal::Forbidden, Refusal::Server])))), 1..8),
        behavior in select(BEHAVIORS),
    ) {
        let counts: Vec<usize> = kinds.iter().map(|(changes, _)| changes.len()).collect();
        let (mut world, store, sets) = with(&counts, behavior);
        for (kind, (changes, _)) in kinds.iter().enumerate() {
            for (name, what) in changes.iter().enumerate() {
                change(&mut world, &of(kind, name), *what);
            }
        }
        let list = |kind: usize, page: usize| format!("LIST K{kind} {page}");
        let (mut looked, mut by_looks) = (world.clone(), store.clone());
        looked.refusals.extend((0..counts.len()).map(|kind| (list(kind, 0), Refusal::Forbidden)));
        let outcome = run(&mut looked, &mut by_looks, full(&store, &sets, Progress::default()));

        let (mut listed, mut by_lists) = (world.clone(), store.clone());
        for (kind, (_, refusal)) in kinds.iter().enumerate() {
            listed.refusals.extend(refusal.map(|(page, refusal)| (list(kind, page), refusal)));
        }
        let at_once = run(&mut listed, &mut by_lists, full(&store, &sets, Progress::default()));
        prop_assert_eq!(&listed.objects, &looked.objects);
        prop_assert_eq!(&by_lists, &by_looks);
        prop_assert_eq!((at_once.end, at_once.contended), (outcome.end, outcome.contended));
    }
}
