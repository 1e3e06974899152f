use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::*;

/// The keys of the tests.
type Counted = Guard<usize>;

fn own(own: usize) -> Bounds {
    Bounds { own, blocked: false }
}

fn pending(own: bool) -> PendingChange {
    PendingChange { change: GuardedChange::Delete, own, follows: false }
}

fn pending_changes(guard: &mut Counted, numbers: std::ops::Range<usize>, of_the_section: bool) {
    numbers.for_each(|number| guard.register(number, pending(of_the_section), false, Instant::now()));
}

/// Asks for decisions until every pending change has to wait or is held. Returns how many went and how many were confirmed.
fn decide_all(guard: &mut Counted, bounds: Bounds, now: Instant) -> (usize, usize) {
    let (mut went, mut asked) = (0, 0);
    loop {
        let mut moved = false;
        for key in guard.waiting() {
            match guard.decide(&key, bounds, now) {
                Decision::Confirm => {
                    asked += 1;
                    guard.confirm(&key, GuardedChange::Delete);
                    moved = true;
                }
                Decision::Go => {
                    guard.send(&key, 1, |_| false, now);
                    went += 1;
                    moved = true;
                }
                Decision::Wait | Decision::Held => {}
            }
        }
        if !moved {
            return (went, asked);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn up_to_the_limit_all_go_and_above_it_none() {
    for (objects, missing, goes) in [(1, 1, 1), (6, 5, 5), (50, 10, 10), (50, 11, 0), (500, 50, 50), (500, 51, 0)] {
        let mut guard = Counted::default();
        pending_changes(&mut guard, 0..missing, true);
        let (went, asked) = decide_all(&mut guard, own(objects), Instant::now());
        assert_eq!(went, goes, "{missing} of {objects}");
        assert!(asked <= limit(objects) + 1, "asked {asked} times");
        let held = guard.held(own(objects), Instant::now());
        assert_eq!(held.get(&GuardedChange::Delete).copied(), (goes == 0).then_some(missing));
    }
}

#[tokio::test(start_paused = true)]
async fn all_of_two_or_more_never_go_at_once() {
    for objects in 2..=10 {
        let mut guard = Counted::default();
        let now = Instant::now();
        pending_changes(&mut guard, 0..objects, true);
        assert_eq!(decide_all(&mut guard, own(objects), now).0, 0, "{objects}");
        assert!(!guard.held(own(objects), now).is_empty());
        // All but one may go, and the last one not while they count.
        guard.clear(&0);
        assert_eq!(decide_all(&mut guard, own(objects), now).0, objects - 1);
        pending_changes(&mut guard, 0..1, true);
        assert_eq!(decide_all(&mut guard, own(1), now).0, 0);
        assert_eq!(decide_all(&mut guard, own(1), now + WINDOW + Duration::from_secs(1)).0, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn unclaimed_objects_neither_raise_the_limit_nor_count_as_all() {
    let mut guard = Counted::default();
    let now = Instant::now();
    // Three hundred unclaimed objects of the kind are no pairs of the section.
    pending_changes(&mut guard, 0..25, true);
    assert_eq!(decide_all(&mut guard, own(25), now).0, 0);
    let mut guard = Counted::default();
    pending_changes(&mut guard, 0..3, false);
    assert_eq!(decide_all(&mut guard, own(3), now).0, 3, "three unclaimed objects are not all of the three own pairs");
}

#[tokio::test(start_paused = true)]
async fn nobody_goes_while_it_is_blocked() {
    let mut guard = Counted::default();
    let now = Instant::now();
    pending_changes(&mut guard, 0..1, true);
    let blocked = Bounds { own: 500, blocked: true };
    assert_eq!(decide_all(&mut guard, blocked, now).0, 0);
    assert_eq!(guard.held(blocked, now), BTreeMap::from([(GuardedChange::Delete, 1)]));
    assert_eq!(decide_all(&mut guard, own(500), now).0, 1);
}

#[tokio::test(start_paused = true)]
async fn the_tenth_is_of_all_that_there_were_before_the_first_went() {
    let mut guard = Counted::default();
    let start = Instant::now();
    pending_changes(&mut guard, 0..20, true);
    for number in 0..20 {
        assert_eq!(guard.decide(&number, own(200), start), Decision::Confirm, "{number}");
        guard.confirm(&number, GuardedChange::Delete);
    }
    for number in 0..20 {
        assert_eq!(guard.decide(&number, own(200 - number), start), Decision::Go, "{number}");
        guard.send(&number, 1, |_| false, start);
    }
    pending_changes(&mut guard, 20..21, true);
    assert_eq!(guard.decide(&20, own(180), start), Decision::Confirm);
    guard.confirm(&20, GuardedChange::Delete);
    assert_eq!(guard.decide(&20, own(180), start), Decision::Held, "the 21st of 200");
}

#[tokio::test(start_paused = true)]
async fn what_went_counts_for_ten_minutes_also_in_the_next_process() {
    let start = Instant::now();
    let wall = SystemTime::now();
    let mut guard = Counted::default();
    pending_changes(&mut guard, 0..10, true);
    assert_eq!(decide_all(&mut guard, own(20), start).0, 10);
    let later = Duration::from_mins(4);
    let text = serde_json::to_string(&guard.remembered(start + later, wall + later)).unwrap();
    let mut guard = Counted::default();
    guard.recall(&serde_json::from_str(&text).unwrap(), start + later, wall + later);
    pending_changes(&mut guard, 10..11, true);
    assert_eq!(decide_all(&mut guard, own(10), start + WINDOW / 2).0, 0);
    // The stored times are rounded up to ten seconds.
    assert_eq!(decide_all(&mut guard, own(10), start + WINDOW + Duration::from_secs(12)).0, 1);
}

#[tokio::test(start_paused = true)]
async fn the_objects_of_a_namespace_count_each() {
    let mut guard = Counted::default();
    let now = Instant::now();
    pending_changes(&mut guard, 0..1, true);
    guard.confirm(&0, GuardedChange::Delete);
    guard.send(&0, 8, |_| false, now);
    pending_changes(&mut guard, 1..4, true);
    assert_eq!(decide_all(&mut guard, own(50), now).0, 0, "eleven of fifty");
    guard.clear(&1);
    assert_eq!(decide_all(&mut guard, own(50), now).0, 2);
}

#[tokio::test(start_paused = true)]
async fn approval_frees_those_that_wait_and_nobody_else() {
    let mut guard = Counted::default();
    let now = Instant::now();
    pending_changes(&mut guard, 0..30, true);
    assert_eq!(decide_all(&mut guard, own(30), now).0, 0);
    let freed = guard.approve();
    assert_eq!(freed.len(), 30);
    assert!(guard.held(own(30), now).is_empty());
    let (went, asked) = decide_all(&mut guard, own(30), now);
    assert_eq!(went, 30);
    assert!(asked >= 19, "approval does not replace the question whether it is really gone");
    pending_changes(&mut guard, 100..130, true);
    assert_eq!(decide_all(&mut guard, own(30), now).0, 0);
}

#[tokio::test(start_paused = true)]
async fn an_approval_survives_a_restart_half_way_for_as_many_as_were_left() {
    let (now, wall) = (Instant::now(), SystemTime::now());
    let mut guard = Counted::default();
    pending_changes(&mut guard, 0..30, true);
    decide_all(&mut guard, own(30), now);
    guard.approve();
    for number in 0..12 {
        guard.confirm(&number, GuardedChange::Delete);
        guard.send(&number, 1, |_| false, now);
    }
    let remembered = guard.remembered(now, wall);
    assert!(remembered.sent.is_empty(), "what was approved does not count");
    let mut next = Counted::default();
    next.recall(&remembered, now, wall + Duration::from_secs(30));
    pending_changes(&mut next, 12..45, true);
    assert_eq!(decide_all(&mut next, own(50), now).0, 18, "those that nobody approved are left");
    let mut late = Counted::default();
    late.recall(&remembered, now, wall + WINDOW);
    pending_changes(&mut late, 12..30, true);
    assert_eq!(decide_all(&mut late, own(18), now).0, 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_approved_and_not_sent_is_approved_still_and_takes_nothing_out_of_the_count() {
    let mut guard = Counted::default();
    let now = Instant::now();
    pending_changes(&mut guard, 0..10, true);
    assert_eq!(decide_all(&mut guard, own(50), now).0, 10);
    pending_changes(&mut guard, 10..30, true);
    assert_eq!(decide_all(&mut guard, own(40), now).0, 0);
    guard.approve();
    guard.confirm(&10, GuardedChange::Delete);
    let sending = guard.send(&10, 1, |_| false, now);
    guard.not_sent(sending);
    assert_eq!(guard.decide(&10, own(40), now), Decision::Go);
    assert_eq!(decide_all(&mut guard, own(40), now).0, 20);
    // What counted, counts no more when it was refused; the other changes of the same request are pending again.
    pending_changes(&mut guard, 30..33, true);
    guard.confirm(&30, GuardedChange::Delete);
    let sending = guard.send(&30, 3, |along| (31..33).contains(along), now);
    assert_eq!(guard.remembered(now, SystemTime::now()).sent.values().sum::<u64>(), 3);
    assert!(guard.waiting().is_empty());
    guard.not_sent(sending);
    assert_eq!(guard.waiting().len(), 3);
    assert_eq!(decide_all(&mut guard, own(20), now).0, 3);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_sent_again_counts_once_and_still_if_the_second_try_is_refused() {
    let mut guard = Counted::default();
    for attempt in 0..20 {
        assert_eq!(admit(&mut guard, 0..1, 2), 1, "attempt {attempt} of one of two, whose outcome is not known");
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    let now = Instant::now();
    pending_changes(&mut guard, 0..1, true);
    guard.confirm(&0, GuardedChange::Delete);
    let sending = guard.send(&0, 1, |_| false, now);
    guard.not_sent(sending);
    guard.clear(&0);
    assert_eq!(admit(&mut guard, 1..2, 2), 0, "the first try may have been carried out");
    tokio::time::advance(WINDOW).await;
    assert_eq!(admit(&mut guard, 1..2, 2), 1);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_sent_again_to_fewer_objects_counts_as_many_as_before() {
    let mut guard = Counted::default();
    let now = Instant::now();
    for count in [9, 1] {
        pending_changes(&mut guard, 0..1, true);
        guard.confirm(&0, GuardedChange::Delete);
        guard.send(&0, count, |_| false, now);
    }
    assert_eq!(admit(&mut guard, 1..3, 50), 0, "nine and two");
    // Also while it waits to be sent again.
    pending_changes(&mut guard, 0..3, true);
    (0..3).for_each(|number| guard.confirm(&number, GuardedChange::Delete));
    assert_eq!(guard.decide(&1, own(50), now), Decision::Held);
    guard.clear(&2);
    assert_eq!(guard.decide(&1, own(50), now), Decision::Go, "nine and one");
}

#[tokio::test(start_paused = true)]
async fn stored_numbers_of_any_size_hold_everything() {
    let (now, wall) = (Instant::now(), SystemTime::now());
    let second = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let sent = BTreeMap::from([(second, u64::MAX), (second - 10, u64::MAX)]);
    let remembered = crate::state::GuardState { sent, most: u64::MAX, ..Default::default() };
    let mut guard = Counted::default();
    guard.recall(&remembered, now, wall);
    pending_changes(&mut guard, 0..1, true);
    assert_eq!(decide_all(&mut guard, own(50), now).0, 0);
}

#[tokio::test(start_paused = true)]
async fn an_approved_change_that_is_refused_stays_approved_although_it_was_registered_again_meanwhile() {
    let mut guard = Counted::default();
    let now = Instant::now();
    pending_changes(&mut guard, 0..30, true);
    decide_all(&mut guard, own(30), now);
    guard.approve();
    guard.confirm(&7, GuardedChange::Delete);
    let sending = guard.send(&7, 1, |_| false, now);
    pending_changes(&mut guard, 7..8, true);
    guard.not_sent(sending);
    assert_eq!(decide_all(&mut guard, own(30), now).0, 30);
    // Not if another change is wanted now.
    pending_changes(&mut guard, 0..1, true);
    guard.approve();
    guard.confirm(&0, GuardedChange::Delete);
    let sending = guard.send(&0, 1, |_| false, now);
    guard.register(0, PendingChange { change: GuardedChange::Overwrite, ..pending(true) }, false, now);
    guard.not_sent(sending);
    assert_eq!((guard.change_to(&0), guard.approved_change_to(&0)), (Some(GuardedChange::Overwrite), None));
}

#[tokio::test(start_paused = true)]
async fn an_approval_to_let_go_is_none_to_delete() {
    let mut guard = Counted::default();
    let now = Instant::now();
    for number in 0..30 {
        guard.register(number, PendingChange { change: GuardedChange::LetGo, ..pending(true) }, false, now);
        guard.confirm(&number, GuardedChange::LetGo);
    }
    guard.approve();
    pending_changes(&mut guard, 0..30, true);
    // Meanwhile the objects that had left the selector were deleted.
    (0..20).for_each(|number| guard.confirm(&number, GuardedChange::Delete));
    assert_eq!(guard.held(own(30), now), BTreeMap::from([(GuardedChange::Delete, 20)]));
    assert_eq!(guard.decide(&0, own(30), now), Decision::Held);
    assert_eq!(guard.decide(&20, own(30), now), Decision::Go, "the others may go");
}

#[tokio::test(start_paused = true)]
async fn objects_that_come_back_lift_the_hold() {
    let mut guard = Counted::default();
    let now = Instant::now();
    pending_changes(&mut guard, 0..30, true);
    decide_all(&mut guard, own(30), now);
    assert!(!guard.held(own(30), now).is_empty());
    (0..30).for_each(|number| {
        guard.clear(&number);
    });
    assert!(guard.held(own(30), now).is_empty());
    assert!(guard.waiting().is_empty());
}

/// What follows objects that are gone.
fn following(guard: &mut Counted, now: Instant) -> bool {
    for number in 100..111 {
        guard.register(number, PendingChange { own: false, follows: true, ..pending(false) }, false, now);
        guard.confirm(&number, GuardedChange::Delete);
    }
    !guard.held(own(50), now).is_empty()
}

#[tokio::test(start_paused = true)]
async fn an_approval_that_outlives_its_process_is_not_used_up_by_what_follows() {
    let (mut guard, now, wall) = (Counted::default(), Instant::now(), SystemTime::now());
    pending_changes(&mut guard, 0..12, true);
    guard.approve();
    let remembered = guard.remembered(now, wall);
    let mut guard = Counted::default();
    guard.recall(&remembered, now, wall);
    assert!(following(&mut guard, now), "they were never approved");
    pending_changes(&mut guard, 0..12, true);
    assert_eq!(decide_all(&mut guard, own(50), now).0, 12);

    // Nor is one of these an approval of objects, and none lasts.
    let mut guard = Counted::default();
    assert!(following(&mut guard, now));
    guard.approve();
    assert_eq!(guard.remembered(now, wall).approved, 0);
    let mut guard = Counted::default();
    guard.recall(&remembered, now, wall);
    tokio::time::advance(WINDOW * 2).await;
    pending_changes(&mut guard, 0..12, true);
    assert_eq!(decide_all(&mut guard, own(50), Instant::now()).0, 0);
    assert_eq!(guard.remembered(Instant::now(), wall + WINDOW).approved, 0, "a restart does not renew it");

    // Nor does one while it is valid.
    let mut guard = Counted::default();
    guard.recall(&remembered, Instant::now(), wall);
    let later = Duration::from_mins(9);
    tokio::time::advance(later).await;
    let stored = guard.remembered(Instant::now(), wall + later);
    assert_eq!((stored.approved, stored.approved_at), (remembered.approved, remembered.approved_at));
}

/// How many of `numbers`, which are all that a decision would clear of `all` objects, may be cleared.
fn admit(guard: &mut Counted, numbers: std::ops::Range<usize>, all: usize) -> usize {
    let wanted = numbers.map(|number| (number, GuardedChange::ClearStatus)).collect();
    guard.admit(wanted, |_| false, own(all), Instant::now()).len()
}

fn held(guard: &mut Counted, all: usize) -> usize {
    guard.held(own(all), Instant::now()).values().sum()
}

#[tokio::test(start_paused = true)]
async fn a_whole_decision_is_admitted_up_to_the_limit_and_else_held() {
    for (wanted, all, admitted) in [(10, 20, 10), (50, 500, 50), (51, 500, 0), (11, 20, 0), (1, 1, 1), (2, 2, 0)] {
        let mut guard = Counted::default();
        assert_eq!(admit(&mut guard, 0..wanted, all), admitted, "{wanted} of {all}");
        assert_eq!(held(&mut guard, all), wanted - admitted);
    }
}

#[tokio::test(start_paused = true)]
async fn decisions_one_after_the_other_count_together() {
    let mut guard = Counted::default();
    assert_eq!(admit(&mut guard, 0..6, 50), 6);
    assert_eq!(admit(&mut guard, 6..11, 50), 0, "eleven of fifty");
    assert_eq!(held(&mut guard, 50), 5);
    assert_eq!(admit(&mut guard, 6..10, 50), 4, "one is no longer wanted");
    tokio::time::advance(WINDOW * 2).await;
    assert_eq!(admit(&mut guard, 10..20, 50), 10);
}

#[tokio::test(start_paused = true)]
async fn what_was_undone_counts_no_more() {
    let mut guard = Counted::default();
    for _ in 0..50 {
        let wanted = BTreeMap::from([(1, GuardedChange::ClearStatus)]);
        let admitted = guard.admit(wanted, |_| false, own(2), Instant::now());
        assert_eq!(admitted.len(), 1, "one of two that comes and goes");
        tokio::time::advance(Duration::from_secs(7)).await;
        guard.undone(&1);
    }
    assert_eq!(admit(&mut guard, 0..1, 2), 1);
    assert_eq!(admit(&mut guard, 1..2, 2), 0, "the other one, too");
}

#[tokio::test(start_paused = true)]
async fn what_is_held_goes_only_when_it_is_approved_or_most_is_no_longer_wanted() {
    let mut guard = Counted::default();
    for _ in 0..50 {
        assert_eq!(admit(&mut guard, 0..20, 20), 0, "however often it is wanted");
        tokio::time::advance(WINDOW).await;
    }
    assert_eq!(admit(&mut guard, 0..5, 20), 5);
    assert_eq!(guard.approve().len(), 0);
    tokio::time::advance(WINDOW * 2).await;
    assert_eq!(admit(&mut guard, 0..20, 20), 0, "nothing was held when it was approved");
    assert_eq!(guard.approve().len(), 20);
    assert_eq!(admit(&mut guard, 0..20, 20), 20);
}

#[tokio::test(start_paused = true)]
async fn what_is_approved_and_waits_for_a_later_decision_is_approved_still() {
    let mut guard = Counted::default();
    assert_eq!(admit(&mut guard, 0..20, 20), 0);
    guard.approve();
    let later: Vec<usize> = guard
        .admit(BTreeMap::new(), |number| *number < 15, own(20), Instant::now())
        .into_iter()
        .map(|(number, _)| number)
        .collect();
    assert!(later.is_empty());
    assert_eq!(admit(&mut guard, 0..15, 20), 15);
    assert_eq!(admit(&mut guard, 15..20, 20), 5, "these count, and are few");
}

#[tokio::test(start_paused = true)]
async fn an_approval_that_was_not_needed_opens_nothing_later() {
    let mut guard = Counted::default();
    assert_eq!(admit(&mut guard, 0..20, 20), 0);
    guard.approve();
    assert_eq!(admit(&mut guard, 0..5, 20), 5, "most are back");
    assert_eq!(admit(&mut guard, 0..20, 20), 0);
}

#[test]
fn a_tenth_or_ten_may_change_and_all_of_two_or_more_may_not() {
    for (affected, all, is_too_many) in [
        (0, 0, false),
        (1, 1, false),
        (1, 2, false),
        (2, 2, true),
        (10, 11, false),
        (10, 10, true),
        (11, 50, true),
        (11, 109, true),
        (11, 119, false),
        (12, 119, true),
        (100, 1000, false),
        (101, 1000, true),
    ] {
        assert_eq!(is_mass(affected, all), is_too_many, "{affected} of {all}");
    }
    assert_eq!([0, 109, 110, 119].map(limit), [10, 10, 11, 11], "rounded down");
}
