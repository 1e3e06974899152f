use super::*;

fn key(number: usize) -> PairKey {
    PairKey::alike("n", &number.to_string())
}

#[test]
fn every_guarded_change_is_a_kind_of_the_gauge() {
    assert_eq!(GuardedChange::ALL.map(GuardedChange::as_str), crate::resource_sync::HELD_KINDS);
}

fn own(own: usize) -> Bounds {
    Bounds { own, blocked: false }
}

fn pending(own: bool) -> PendingChange {
    PendingChange { change: GuardedChange::Delete, own, to_namespace_only: false }
}

fn pending_changes(guard: &mut Guard, numbers: std::ops::Range<usize>, of_the_section: bool) {
    numbers.for_each(|number| guard.register(key(number), pending(of_the_section), Instant::now()));
}

/// Asks for decisions until every pending change has to wait or is held. Returns how many went and how many were confirmed.
fn decide_all(guard: &mut Guard, bounds: Bounds, now: Instant) -> (usize, usize) {
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
                    guard.send(&key, 1, None, now);
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
        let mut guard = Guard::default();
        pending_changes(&mut guard, 0..missing, true);
        let (went, asked) = decide_all(&mut guard, own(objects), Instant::now());
        assert_eq!(went, goes, "{missing} of {objects}");
        assert!(asked <= mass_change::limit(objects) + 1, "asked {asked} times");
        let held = guard.held(own(objects), Instant::now());
        assert_eq!(held.get(&GuardedChange::Delete).copied(), (goes == 0).then_some(missing));
    }
}

#[tokio::test(start_paused = true)]
async fn all_of_two_or_more_never_go_at_once() {
    for objects in 2..=10 {
        let mut guard = Guard::default();
        let now = Instant::now();
        pending_changes(&mut guard, 0..objects, true);
        assert_eq!(decide_all(&mut guard, own(objects), now).0, 0, "{objects}");
        assert!(!guard.held(own(objects), now).is_empty());
        // All but one may go, and the last one not while they count.
        guard.clear(&key(0));
        assert_eq!(decide_all(&mut guard, own(objects), now).0, objects - 1);
        pending_changes(&mut guard, 0..1, true);
        assert_eq!(decide_all(&mut guard, own(1), now).0, 0);
        assert_eq!(decide_all(&mut guard, own(1), now + WINDOW + Duration::from_secs(1)).0, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn unclaimed_objects_neither_raise_the_limit_nor_count_as_all() {
    let mut guard = Guard::default();
    let now = Instant::now();
    // Three hundred unclaimed objects of the kind are no pairs of the section.
    pending_changes(&mut guard, 0..25, true);
    assert_eq!(decide_all(&mut guard, own(25), now).0, 0);
    let mut guard = Guard::default();
    pending_changes(&mut guard, 0..3, false);
    assert_eq!(decide_all(&mut guard, own(3), now).0, 3, "three unclaimed objects are not all of the three own pairs");
}

#[tokio::test(start_paused = true)]
async fn nobody_goes_while_it_is_blocked() {
    let mut guard = Guard::default();
    let now = Instant::now();
    pending_changes(&mut guard, 0..1, true);
    let blocked = Bounds { own: 500, blocked: true };
    assert_eq!(decide_all(&mut guard, blocked, now).0, 0);
    assert_eq!(guard.held(blocked, now), BTreeMap::from([(GuardedChange::Delete, 1)]));
    assert_eq!(decide_all(&mut guard, own(500), now).0, 1);
}

#[tokio::test(start_paused = true)]
async fn the_tenth_is_of_all_that_there_were_before_the_first_went() {
    let mut guard = Guard::default();
    let start = Instant::now();
    pending_changes(&mut guard, 0..20, true);
    for number in 0..20 {
        assert_eq!(guard.decide(&key(number), own(200), start), Decision::Confirm, "{number}");
        guard.confirm(&key(number), GuardedChange::Delete);
    }
    for number in 0..20 {
        assert_eq!(guard.decide(&key(number), own(200 - number), start), Decision::Go, "{number}");
        assert_eq!(guard.send(&key(number), 1, None, start).counted, 1);
    }
    pending_changes(&mut guard, 20..21, true);
    assert_eq!(guard.decide(&key(20), own(180), start), Decision::Confirm);
    guard.confirm(&key(20), GuardedChange::Delete);
    assert_eq!(guard.decide(&key(20), own(180), start), Decision::Held, "the 21st of 200");
}

#[tokio::test(start_paused = true)]
async fn what_went_counts_for_ten_minutes_also_in_the_next_process() {
    let start = Instant::now();
    let wall = SystemTime::now();
    let mut guard = Guard::default();
    pending_changes(&mut guard, 0..10, true);
    assert_eq!(decide_all(&mut guard, own(20), start).0, 10);
    let later = Duration::from_mins(4);
    let text = serde_json::to_string(&guard.remembered(start + later, wall + later)).unwrap();
    let mut guard = Guard::default();
    guard.recall(&serde_json::from_str(&text).unwrap(), start + later, wall + later);
    pending_changes(&mut guard, 10..11, true);
    assert_eq!(decide_all(&mut guard, own(10), start + WINDOW / 2).0, 0);
    assert_eq!(decide_all(&mut guard, own(10), start + WINDOW + Duration::from_secs(2)).0, 1);
}

#[tokio::test(start_paused = true)]
async fn the_objects_of_a_namespace_count_each() {
    let mut guard = Guard::default();
    let now = Instant::now();
    pending_changes(&mut guard, 0..1, true);
    guard.confirm(&key(0), GuardedChange::Delete);
    guard.send(&key(0), 8, None, now);
    pending_changes(&mut guard, 1..4, true);
    assert_eq!(decide_all(&mut guard, own(50), now).0, 0, "eleven of fifty");
    guard.clear(&key(1));
    assert_eq!(decide_all(&mut guard, own(50), now).0, 2);
}

#[tokio::test(start_paused = true)]
async fn approval_frees_those_that_wait_and_nobody_else() {
    let mut guard = Guard::default();
    let now = Instant::now();
    pending_changes(&mut guard, 0..30, true);
    assert_eq!(decide_all(&mut guard, own(30), now).0, 0);
    let freed = guard.approve(Instant::now());
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
    let mut guard = Guard::default();
    pending_changes(&mut guard, 0..30, true);
    decide_all(&mut guard, own(30), now);
    guard.approve(Instant::now());
    for number in 0..12 {
        guard.confirm(&key(number), GuardedChange::Delete);
        assert_eq!(guard.send(&key(number), 1, None, now).counted, 0, "what was approved does not count");
    }
    let remembered = guard.remembered(now, wall);
    let mut next = Guard::default();
    next.recall(&remembered, now, wall + Duration::from_secs(30));
    pending_changes(&mut next, 12..45, true);
    assert_eq!(decide_all(&mut next, own(50), now).0, 18, "those that nobody approved are left");
    let mut late = Guard::default();
    late.recall(&remembered, now, wall + WINDOW);
    pending_changes(&mut late, 12..30, true);
    assert_eq!(decide_all(&mut late, own(18), now).0, 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_approved_and_not_sent_is_approved_still_and_takes_nothing_out_of_the_count() {
    let mut guard = Guard::default();
    let now = Instant::now();
    pending_changes(&mut guard, 0..10, true);
    assert_eq!(decide_all(&mut guard, own(50), now).0, 10);
    pending_changes(&mut guard, 10..30, true);
    assert_eq!(decide_all(&mut guard, own(40), now).0, 0);
    guard.approve(Instant::now());
    guard.confirm(&key(10), GuardedChange::Delete);
    let sending = guard.send(&key(10), 1, None, now);
    guard.not_sent(sending);
    assert_eq!(guard.decide(&key(10), own(40), now), Decision::Go);
    assert_eq!(decide_all(&mut guard, own(40), now).0, 20);
    // What counted, counts no more when it was refused; the other changes of a namespace are pending again.
    pending_changes(&mut guard, 30..33, true);
    guard.confirm(&key(30), GuardedChange::Delete);
    let namespace = key(30).local.namespace;
    let sending = guard.send(&key(30), 3, Some(&namespace), now);
    assert_eq!((sending.counted, guard.waiting().len()), (3, 0));
    guard.not_sent(sending);
    assert_eq!(guard.waiting().len(), 3);
    assert_eq!(decide_all(&mut guard, own(20), now).0, 3);
}

#[tokio::test(start_paused = true)]
async fn objects_that_come_back_lift_the_hold() {
    let mut guard = Guard::default();
    let now = Instant::now();
    pending_changes(&mut guard, 0..30, true);
    decide_all(&mut guard, own(30), now);
    assert!(!guard.held(own(30), now).is_empty());
    (0..30).for_each(|number| {
        guard.clear(&key(number));
    });
    assert!(guard.held(own(30), now).is_empty());
    assert!(guard.waiting().is_empty());
}

fn of_namespace() -> PendingChange {
    PendingChange { change: GuardedChange::Delete, own: false, to_namespace_only: true }
}

/// The pair for which a namespace was created.
fn owner(number: usize) -> PairKey {
    PairKey::alike(&format!("n{number}"), "owner")
}

/// Whether the owners of eleven namespaces are held.
fn owners_held(guard: &mut Guard, pending: PendingChange, now: Instant) -> bool {
    for number in 0..11 {
        guard.register(owner(number), pending, now);
        guard.confirm(&owner(number), GuardedChange::Delete);
    }
    !guard.held(own(50), now).is_empty()
}

/// Namespaces follow their objects, be they those of their owners or others, unless somebody lives there again or the approval is old.
#[tokio::test(start_paused = true)]
async fn an_approved_deletion_includes_the_namespaces_that_it_empties() {
    let deleted = || {
        let (mut guard, now) = (Guard::default(), Instant::now());
        (0..11).for_each(|number| guard.register(PairKey::alike(&format!("n{number}"), "a"), pending(true), now));
        guard.approve(now);
        assert_eq!(decide_all(&mut guard, own(50), now).0, 11);
        (guard, now)
    };
    let (mut guard, now) = deleted();
    assert!(!owners_held(&mut guard, of_namespace(), now));
    assert_eq!(guard.decide(&owner(3), own(50), now), Decision::Go);
    let (mut guard, now) = deleted();
    assert!(owners_held(&mut guard, pending(true), now), "other objects there");
    let (mut guard, now) = deleted();
    assert!(owners_held(&mut guard, of_namespace(), now + WINDOW + MOMENT), "too late");
    let (mut guard, now) = deleted();
    (0..11).for_each(|number| guard.came_back(&PairKey::alike(&format!("n{number}"), "b")));
    assert!(owners_held(&mut guard, of_namespace(), now), "somebody lives there again");
    // Objects are there again before the namespace goes.
    let (mut guard, now) = deleted();
    assert!(!owners_held(&mut guard, of_namespace(), now));
    assert!(owners_held(&mut guard, PendingChange { to_namespace_only: false, ..of_namespace() }, now));
    // Somebody else deletes the objects after the approval.
    let (mut guard, now) = (Guard::default(), Instant::now());
    assert!(owners_held(&mut guard, pending(true), now));
    guard.approve(now);
    assert!(!owners_held(&mut guard, of_namespace(), now));
    // A late event of the object makes its deletion pending once more; then only the namespace is left.
    let (mut guard, now) = deleted();
    (0..11).for_each(|number| guard.register(owner(number), PendingChange { own: false, ..pending(true) }, now));
    assert!(!owners_held(&mut guard, of_namespace(), now));
}

#[tokio::test(start_paused = true)]
async fn an_approval_of_objects_that_outlives_its_process_is_not_used_up_by_namespaces() {
    let (mut guard, now, wall) = (Guard::default(), Instant::now(), SystemTime::now());
    pending_changes(&mut guard, 0..12, true);
    guard.approve(now);
    let remembered = guard.remembered(now, wall);
    let mut guard = Guard::default();
    guard.recall(&remembered, now, wall);
    assert!(owners_held(&mut guard, of_namespace(), now), "they were never approved");
    pending_changes(&mut guard, 0..12, true);
    assert_eq!(decide_all(&mut guard, own(50), now).0, 12);

    // Nor is one of namespaces an approval of objects, and none lasts.
    let mut guard = Guard::default();
    assert!(owners_held(&mut guard, of_namespace(), now));
    guard.approve(now);
    assert_eq!(guard.remembered(now, wall).approved, 0);
    let mut guard = Guard::default();
    guard.recall(&remembered, now, wall);
    tokio::time::advance(WINDOW + MOMENT).await;
    pending_changes(&mut guard, 0..12, true);
    assert_eq!(decide_all(&mut guard, own(50), Instant::now()).0, 0);
    assert_eq!(guard.remembered(Instant::now(), wall + WINDOW).approved, 0, "a restart does not renew it");
}
