use proptest::prelude::*;

use super::*;
use crate::documents::Kind;
use crate::documents::tail::entry::tests::{change, unreadable};

fn created(version: i64, labels: &[(&str, &str)]) -> Entry {
    change(version, &format!("c{version}"), [None, Some(labels)])
}

fn everything() -> Filter {
    Filter::of(Kind::Cluster)
}

/// All versions that a watch sees from here, and its position afterwards.
fn seen(ring: &Ring, mut position: i64, filter: &Filter) -> (Vec<i64>, i64) {
    let mut versions = Vec::new();
    loop {
        match ring.next(ring.epoch(), &mut position, filter, None) {
            Next::Found(event, _) => versions.push(event.resume_version().expect("a version")),
            Next::Nothing => return (versions, position),
            other => panic!("{other:?} at {position}"),
        }
    }
}

#[test]
fn watches_share_the_ring_and_each_sees_what_its_filter_matches_behind_its_position() {
    let mut ring = Ring::new(1 << 20);
    ring.restart(10);
    for (version, tier) in [(11, "gold"), (13, "silver"), (14, "gold"), (17, "gold")] {
        ring.push(created(version, &[("tier", tier)]));
    }
    ring.reach_end(19, Instant::now());
    let gold = everything().selected_by("tier=gold").expect("a selector");
    assert_eq!(seen(&ring, 10, &everything()), (vec![11, 13, 14, 17], 19));
    assert_eq!(seen(&ring, 12, &gold), (vec![14, 17], 19));
    assert_eq!(seen(&ring, 14, &gold), (vec![17], 19));
    assert_eq!(seen(&ring, 19, &gold), (vec![], 19));
    assert_eq!(seen(&ring, 10, &Filter::of(Kind::Secret)), (vec![], 19));
}

#[test]
fn the_oldest_events_leave_a_full_ring_and_a_watch_that_has_not_seen_them_has_missed_them() {
    let size = created(11, &[]).bytes();
    let mut ring = Ring::new(3 * size);
    ring.restart(10);
    for version in 11..=14 {
        ring.push(created(version, &[]));
    }
    assert_eq!(ring.size(), (3, 3 * size));
    assert_eq!(ring.next(ring.epoch(), &mut 10, &everything(), None), Next::Missed);
    assert_eq!(seen(&ring, 11, &everything()).0, [12, 13, 14]);
    assert_eq!(ring.start(10), Start::Log);
    assert_eq!(ring.start(11), Start::Ring);
}

#[test]
fn an_event_larger_than_the_ring_leaves_it_empty_and_is_missed_by_all() {
    let mut ring = Ring::new(100);
    ring.restart(10);
    ring.push(created(11, &[]));
    assert_eq!(ring.size(), (0, 0));
    assert_eq!(ring.next(ring.epoch(), &mut 10, &everything(), None), Next::Missed);
    assert_eq!(seen(&ring, 11, &everything()), (vec![], 11));
}

#[test]
fn a_restart_ends_all_watches_whatever_their_position() {
    let mut ring = Ring::new(1 << 20);
    ring.restart(10);
    ring.follow("origin", 5);
    ring.push(created(11, &[]));
    let epoch = ring.epoch();
    ring.restart(11);
    assert_eq!(ring.origin(), None);
    for mut position in [10, 11, 12] {
        assert_eq!(ring.next(epoch, &mut position, &everything(), None), Next::Gone);
    }
    assert_eq!(seen(&ring, 11, &everything()), (vec![], 11));
}

#[test]
fn a_row_that_can_not_be_read_ends_the_watches_that_come_to_it_and_may_concern_them() {
    let mut ring = Ring::new(1 << 20);
    ring.restart(10);
    ring.push(created(11, &[]));
    ring.push(unreadable(12, "c12"));
    ring.push(created(13, &[]));
    let gold = everything().selected_by("tier=gold").expect("a selector");
    let named = |name: &str| everything().named(name).expect("a name");
    let end = |filter: &Filter, mut position| match ring.next(ring.epoch(), &mut position, filter, None) {
        Next::Found(event, _) => event.resume_version(),
        Next::Gone => None,
        other => panic!("{other:?}"),
    };
    assert_eq!((end(&everything(), 10), end(&everything(), 11)), (Some(11), None), "not before its turn");
    assert_eq!(end(&gold, 10), None);
    assert_eq!(end(&named("c12"), 10), None);
    assert_eq!(end(&everything(), 12), Some(13), "behind it");
    assert_eq!(seen(&ring, 10, &named("c13")), (vec![13], 13));
    assert_eq!(seen(&ring, 10, &Filter::of(Kind::Secret)), (vec![], 13));
    assert_eq!(seen(&ring, 10, &everything().in_namespace("bar").expect("a namespace")), (vec![], 13));
}

#[test]
fn a_watch_can_resume_from_the_base_to_the_position() {
    let mut ring = Ring::new(1 << 20);
    ring.restart(10);
    ring.follow("origin", 5);
    ring.push(created(12, &[]));
    let starts = [4, 5, 9, 10, 12, 13].map(|version| ring.start(version));
    assert_eq!(starts, [Start::Gone, Start::Log, Start::Log, Start::Ring, Start::Ring, Start::Ahead]);
}

#[test]
fn only_a_read_to_the_end_of_the_log_says_that_a_watch_has_seen_everything() {
    let mut ring = Ring::new(1 << 20);
    ring.restart(10);
    let begun = Instant::now();
    assert_eq!(ring.end_since(begun), None);
    ring.push(created(11, &[]));
    assert_eq!(ring.end_since(begun), None, "there may be more");
    ring.reach_end(12, begun);
    assert_eq!(ring.end_since(begun), Some(12));
    assert_eq!(ring.end_since(begun + std::time::Duration::from_nanos(1)), None, "the read began before");
    ring.push(created(13, &[]));
    assert_eq!(ring.end_since(begun), Some(12), "more was read since");
    ring.restart(13);
    assert_eq!(ring.end_since(begun), None, "the versions of before are worth nothing");
}

#[test]
fn a_bookmark_comes_behind_all_events_up_to_its_version_and_before_the_later_ones() {
    let mut ring = Ring::new(1 << 20);
    ring.restart(10);
    for version in [11, 14, 17] {
        ring.push(created(version, &[]));
    }
    let gold = everything().selected_by("tier=gold").expect("a selector");
    // Where a watch comes from, what is shown to it, and where it is then, if its bookmark is due at version 14.
    for (filter, from, is_event, to) in [
        (&everything(), 10, true, 11),
        (&everything(), 11, true, 14),
        (&everything(), 14, false, 14),
        (&everything(), 15, false, 15),
        (&everything(), 17, false, 17),
        (&gold, 10, false, 14),
        (&Filter::of(Kind::Secret), 17, false, 17),
    ] {
        let mut position = from;
        let next = ring.next(ring.epoch(), &mut position, filter, Some(14));
        assert_eq!((matches!(next, Next::Found(..)), next == Next::Bookmark, position), (is_event, !is_event, to));
    }
    let mut ahead = 18;
    let next = ring.next(ring.epoch(), &mut ahead, &everything(), Some(14));
    assert_eq!((next, ahead), (Next::Nothing, 18), "a watch that is ahead of the tail");
}

proptest! {
    /// Whatever the sizes: a watch that keeps up sees each version once, ascending; one that does not has missed some, and
    /// never sees the later ones without being told.
    #[test]
    fn a_watch_sees_each_version_once_or_is_told_that_it_missed_some(
        steps in prop::collection::vec((1..5_i64, 0..40_usize), 1..60),
        capacity in 1..8_usize,
    ) {
        let mut ring = Ring::new(capacity * created(1, &[]).bytes());
        ring.restart(0);
        let (epoch, filter) = (ring.epoch(), everything());
        let (mut position, mut version, mut written, mut read) = (0, 0, Vec::new(), Vec::new());
        let mut has_missed = false;
        for (gap, looks) in steps {
            version += gap;
            ring.push(created(version, &[]));
            written.push(version);
            for _ in 0..looks {
                match ring.next(epoch, &mut position, &filter, None) {
                    Next::Found(event, _) => read.extend(event.resume_version()),
                    Next::Nothing => { prop_assert_eq!(&read, &written); break },
                    Next::Missed => has_missed = true,
                    Next::Bookmark => prop_assert!(false, "none is due"),
                    Next::Gone => prop_assert!(false, "nobody restarted it"),
                }
            }
            prop_assert_eq!(&read[..], &written[..read.len()]);
            prop_assert!(!has_missed || written.len() - read.len() > ring.size().0);
        }
    }
}
