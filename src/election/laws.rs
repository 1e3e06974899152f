//! The laws of distributing sections, on simulated replicas.

mod world;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use self::world::{Event, LEASE, SECTIONS, START_DELAY, TICK, World};
use super::record::SectionRecord;

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => Just(Event::Join),
        1 => any::<usize>().prop_map(Event::Kill),
        1 => any::<usize>().prop_map(Event::Leave),
        1 => (any::<usize>(), 1..400_u32).prop_map(|(index, ticks)| Event::Freeze(index, ticks)),
    ]
}

fn check_balanced(world: &mut World) {
    // The longest freeze, then the time to notice it, and the handovers that no replica acquired.
    world.run(TICK * 400 + LEASE * 16);
    let (loads, log) = (world.loads(), &world.log);
    assert_eq!(loads.iter().sum::<usize>(), SECTIONS.len(), "{loads:?}: {log:#?}");
    let (most, least) = (loads.iter().max().unwrap(), loads.iter().min().unwrap());
    assert!(most - least <= 1, "{loads:?}: {log:#?}");
    let acquisitions = world.acquisitions;
    world.run(LEASE * 12);
    assert_eq!(world.acquisitions, acquisitions, "sections keep moving: {:#?}", world.log);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whichever_replicas_join_leave_or_freeze_loads_end_within_one_and_then_nothing_moves(
        seed in any::<u64>(),
        lag in 0..6_usize,
        events in prop::collection::vec((event(), 0..200_u32), 1..12),
    ) {
        let mut world = World::new(seed, lag);
        world.happen(&Event::Join);
        for (event, ticks) in &events {
            world.happen(event);
            world.run(TICK * *ticks);
        }
        check_balanced(&mut world);
        // Each event moves each section at most once there and once back.
        let most = SECTIONS.len() * (1 + 2 * events.len());
        prop_assert!(world.acquisitions <= most, "{} moves for {} events: {:#?}", world.acquisitions, events.len(), world.log);
    }
}

#[test]
fn three_replicas_that_start_together_share_sections_without_a_move_and_a_fourth_gets_its_share_once() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3);
        (0..3).for_each(|_| world.happen(&Event::Join));
        world.run(LEASE);
        assert_eq!((world.loads(), world.acquisitions), (vec![2, 2, 2], 6), "{:#?}", world.log);
        world.happen(&Event::Join);
        world.run(LEASE * 4);
        let mut loads = world.loads();
        assert_eq!((loads.pop(), world.acquisitions), (Some(1), 7), "{:#?}", world.log);
        loads.sort_unstable();
        assert_eq!(loads, [1, 2, 2]);
    }
}

#[test]
fn the_only_replica_hands_sections_over_one_by_one_to_those_that_join() {
    let mut world = World::new(7, 2);
    world.happen(&Event::Join);
    world.run(LEASE);
    assert_eq!(world.loads(), [6]);
    (0..2).for_each(|_| world.happen(&Event::Join));
    world.run(LEASE * 2);
    assert_eq!((world.loads(), world.acquisitions), (vec![2, 2, 2], 10), "{:#?}", world.log);
}

#[test]
fn the_sections_of_a_killed_replica_go_to_the_others_as_soon_as_they_expire() {
    for seed in 0..20 {
        let mut world = World::new(seed, 2);
        (0..3).for_each(|_| world.happen(&Event::Join));
        world.run(LEASE);
        world.happen(&Event::Kill(1));
        world.run(LEASE + Duration::from_secs(2));
        assert_eq!((world.loads(), world.acquisitions), (vec![3, 3], 8), "{:#?}", world.log);
    }
}

#[test]
fn the_sections_of_a_leaving_replica_are_acquired_within_a_second_and_none_gets_too_many() {
    for seed in 0..20 {
        let mut world = World::new(seed, 2);
        (0..4).for_each(|_| world.happen(&Event::Join));
        world.run(LEASE);
        world.happen(&Event::Leave(2));
        let acquisitions = world.acquisitions;
        world.run(Duration::from_secs(1));
        let held: BTreeSet<&str> = world.replicas.iter().flat_map(|replica| replica.held.keys().copied()).collect();
        assert_eq!(held.len(), SECTIONS.len(), "{:#?}", world.log);
        world.run(LEASE * 2);
        assert_eq!(world.loads(), [2, 2, 2], "{:#?}", world.log);
        assert!(world.acquisitions - acquisitions <= 2, "{:#?}", world.log);
    }
}

#[test]
fn a_leaving_replica_hands_over_within_a_second_also_while_a_new_one_counts_the_dead_as_alive() {
    for seed in 0..20 {
        let mut world = World::new(seed, 2);
        (0..3).for_each(|_| world.happen(&Event::Join));
        world.run(LEASE);
        world.happen(&Event::Kill(0));
        world.run(Duration::from_secs(9));
        world.happen(&Event::Join);
        world.run(TICK * 80);
        assert_eq!(world.loads().iter().sum::<usize>(), SECTIONS.len(), "{:#?}", world.log);
        world.happen(&Event::Leave(1));
        world.run(Duration::from_secs(1));
        assert_eq!(world.loads().iter().sum::<usize>(), SECTIONS.len(), "{:#?}", world.log);
        world.run(LEASE * 3);
        assert_eq!(world.loads(), [3, 3], "{:#?}", world.log);
    }
}

#[test]
fn a_joining_replica_gets_its_share_at_once_and_once_also_while_it_counts_the_dead_as_alive() {
    for (seed, lag) in (0..20).zip([0, 1, 2].into_iter().cycle()) {
        let mut world = World::new(seed, lag);
        // The first is killed with all its sections; the second joins at once, and acquires everything.
        world.happen(&Event::Join);
        world.run(LEASE);
        world.happen(&Event::Join);
        world.happen(&Event::Kill(0));
        world.run(LEASE + Duration::from_secs(2));
        assert_eq!((world.loads(), world.acquisitions), (vec![6], 12), "{:#?}", world.log);
        // The third sees the record of the first as if it had just been written. By name the dead one may come first.
        world.happen(&Event::Join);
        if seed % 2 == 0 {
            world.replicas[1].identity = "a".into();
        }
        world.run(START_DELAY);
        assert!(lag > 0 || world.loads()[1] > 0, "a preferred holder must not have to wait: {:#?}", world.log);
        world.run(Duration::from_secs(3));
        assert_eq!((world.loads(), world.acquisitions), (vec![3, 3], 15), "{:#?}", world.log);
        world.run(LEASE * 20);
        assert_eq!((world.loads(), world.acquisitions), (vec![3, 3], 15), "{:#?}", world.log);
    }
}

#[test]
fn the_sections_of_a_killed_replica_are_held_and_shared_within_two_leases_also_by_one_that_joins_meanwhile() {
    for seed in 0..10 {
        for ticks in [0, 5, 9, 25, 40, 80, 149] {
            let mut world = World::new(seed, 2);
            (0..2).for_each(|_| world.happen(&Event::Join));
            // All Leases were renewed just before.
            world.run(LEASE + TICK * 3);
            assert_eq!((world.loads(), world.acquisitions), (vec![3, 3], 6), "{:#?}", world.log);
            let killed = usize::from(seed % 2 == 0);
            let dead = Arc::clone(&world.replicas[killed].identity);
            let due = world.now + LEASE + Duration::from_secs(2);
            world.happen(&Event::Kill(killed));
            world.run(TICK * ticks);
            world.happen(&Event::Join);
            world.run_until(due);
            let is_its = |section: &&SectionRecord| section.holder.as_ref() == Some(&dead);
            assert_eq!(world.sections.values().find(is_its), None, "seed {seed}, {ticks} ticks: {:#?}", world.log);
            world.run(LEASE);
            assert_eq!(world.loads(), [3, 3], "seed {seed}, {ticks} ticks: {:#?}", world.log);
            // Its sections are acquired, and at most as many move on to the one that joined.
            assert!(
                (9..=12).contains(&world.acquisitions),
                "{} seed {seed}, {ticks} ticks: {:#?}",
                world.acquisitions,
                world.log
            );
            let acquisitions = world.acquisitions;
            world.run(LEASE * 12);
            assert_eq!(world.acquisitions, acquisitions, "{:#?}", world.log);
        }
    }
}

#[test]
fn a_replica_that_acquires_nothing_is_preferred_less_and_less_and_no_other_waits_for_it() {
    for seed in 0..10 {
        let mut world = World::new(seed, 2);
        world.happen(&Event::Join);
        world.run(LEASE);
        world.happen(&Event::Join);
        world.replicas[1].acquires_nothing = true;
        world.run(START_DELAY);
        world.happen(&Event::Join);
        world.run(LEASE);
        assert_eq!(world.loads(), [3, 0, 3], "{:#?}", world.log);
        world.run(LEASE * 59);
        // By each that is most loaded: a lease after the first handover, then two, four, eight, sixteen, and sixteen.
        let handovers = world.log.iter().filter(|line| line.ends_with("over to r1")).count();
        assert!((7..=14).contains(&handovers), "{handovers} handovers: {:#?}", world.log);
        world.run(TICK * 50);
        assert_eq!(world.loads(), [3, 0, 3], "{:#?}", world.log);
    }
}
