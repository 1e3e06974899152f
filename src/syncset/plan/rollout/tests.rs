//! Situations that are decided in one rollout each.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::decide::assign;
use super::*;

const SYNCSET: Uuid = Uuid::from_u128(77);
const TICK: Duration = Duration::from_secs(1);

/// A syncset, its clusters and what is stored of both: what the database has.
struct World {
    spec: Spec,
    rollout: Rollout,
    observed: Observed,
    /// Clusters that the syncset is for no more.
    left: Vec<Seen>,
    now: Timestamp,
    /// The moves so far.
    released: Vec<Uuid>,
    refreshed: Vec<Uuid>,
    /// What clusters were pinned to before their turns.
    before: BTreeMap<Uuid, i32>,
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// A cluster that has the stable revision; the first wave selects those that are selected.
fn cluster(number: u128, selected: &[bool]) -> Seen {
    let selected = selected.to_vec();
    Seen {
        id: id(number),
        selected,
        is_away: false,
        is_paused: false,
        was_silent: false,
        has_begun: false,
        queued: Duration::ZERO,
        turn: None,
        applied: Applied::Not,
        health: None,
    }
}

/// As the database does it.
fn take_back(seen: &mut Seen, before: Option<&i32>) {
    let has_begun = seen.has_begun || seen.applied != Applied::Not;
    if let Some(turn) = seen.turn.take() {
        seen.turn = match before {
            _ if turn.done || has_begun => Some(turn),
            Some(before) if *before != 1 => Some(Turn { revision: *before, number: 0, ..turn }),
            _ => None,
        };
    }
}

/// A rollout of revision 2, with revision 1 on all clusters.
fn rollout() -> Rollout {
    Rollout {
        newest: 2,
        edited: 5,
        started: 4,
        number: 3,
        stable: Some(1),
        goal: 1,
        state: RolloutPhase::Complete,
        reason: ProgressReason::None,
        message: String::new(),
        wave: 9,
        clock: Duration::from_secs(99),
        settled: Some(TICK),
        checking: Some(TICK),
        promoted: 8,
        failures: 7,
        tolerated: 6,
        guarded: true,
    }
}

/// Health is read if it says within which time.
fn spec(rollout: &Value, health: Option<&str>) -> Spec {
    let health = health.map(|within| json!({ "within": within }));
    Spec::read(rollout, health.as_ref()).expect("a spec")
}

impl World {
    fn new(spec: Spec, clusters: Vec<Seen>) -> Self {
        let observed = Observed { clusters, ..Observed::default() };
        let (now, before) = (Timestamp::UNIX_EPOCH, BTreeMap::new());
        let (left, released, refreshed) = (Vec::new(), Vec::new(), Vec::new());
        Self { spec, rollout: rollout(), observed, left, now, released, refreshed, before }
    }

    fn at(&mut self, number: u128) -> &mut Seen {
        self.observed.clusters.iter_mut().find(|seen| seen.id == id(number)).expect("a cluster")
    }

    /// The syncset is for it no more, and is deleted there.
    fn leave(&mut self, number: u128) {
        let at = self.observed.clusters.iter().position(|seen| seen.id == id(number)).expect("a cluster");
        let seen = self.observed.clusters.remove(at);
        self.left.push(Seen { applied: Applied::Not, health: None, ..seen });
    }

    /// The syncset is for those again that have left it.
    fn return_all(&mut self) {
        self.observed.clusters.append(&mut self.left);
    }

    /// One decision. The guard has checked what has begun before it.
    fn tick(&mut self) {
        self.tick_after(TICK);
    }

    fn tick_after(&mut self, elapsed: Duration) {
        self.rollout.guarded |= !self.rollout.must_begin();
        let number = self.rollout.number;
        let had_turn = |seen: &&Seen| seen.turn.as_ref().is_some_and(|turn| turn.number == number);
        self.observed.gone = self.left.iter().filter(had_turn).map(|seen| seen.id).collect();
        let (rollout, moves) = decide(SYNCSET, &self.spec, &self.rollout, &self.observed, elapsed);
        for of in &moves {
            self.make(&rollout, of);
        }
        self.rollout = rollout;
    }

    fn make(&mut self, rollout: &Rollout, of: &Move) {
        let mut turns = self.observed.clusters.iter_mut().chain(&mut self.left);
        match *of {
            Move::Release { cluster, read_before } => {
                self.released.push(cluster);
                let seen = turns.find(|seen| seen.id == cluster).expect("a cluster");
                if seen.turn.as_ref().is_none_or(|turn| turn.revision != rollout.goal) {
                    (seen.applied, seen.has_begun) = (Applied::Not, false);
                }
                self.before.remove(&cluster);
                self.before.extend(seen.turn.as_ref().map(|turn| (cluster, turn.revision)));
                let Rollout { goal, number, wave, clock, .. } = *rollout;
                seen.turn = Some(Turn { revision: goal, number, wave, released: clock, done: false, read_before });
            }
            Move::Wait { cluster, released } => {
                let turn = turns.find(|seen| seen.id == cluster).and_then(|seen| seen.turn.as_mut()).expect("a turn");
                turn.released = released;
            }
            Move::Done { cluster } => {
                let turn = turns.find(|seen| seen.id == cluster).and_then(|seen| seen.turn.as_mut()).expect("a turn");
                (turn.done, turn.read_before) = (true, None);
            }
            Move::Leave { cluster } => {
                let seen = turns.find(|seen| seen.id == cluster).expect("a cluster");
                seen.turn.as_mut().expect("a turn").number = 0;
                take_back(seen, self.before.get(&cluster));
            }
            Move::TakeBack => {
                for seen in turns.filter(|seen| seen.turn.as_ref().is_some_and(|turn| turn.number > 0)) {
                    take_back(seen, self.before.get(&seen.id));
                }
            }
            Move::Refresh { cluster } => self.refreshed.push(cluster),
            Move::Reread { cluster, before } => {
                let turn = turns.find(|seen| seen.id == cluster).and_then(|seen| seen.turn.as_mut()).expect("a turn");
                turn.read_before = Some(before);
            }
            Move::Checked => {
                for turn in turns.filter_map(|seen| seen.turn.as_mut()).filter(|turn| turn.done) {
                    turn.read_before = None;
                }
            }
            Move::Settle => turns.for_each(|seen| seen.turn = None),
        }
    }

    /// Has the cluster applied the goal, and read in this state.
    fn apply(&mut self, number: u128, state: HealthState) {
        self.now += Duration::from_secs(1);
        let is_final = state == HealthState::Failed;
        let reading = HealthReading { at: self.now, state: Some(state), is_final };
        let seen = self.at(number);
        (seen.applied, seen.has_begun, seen.health) = (Applied::Fully, true, Some(reading));
    }

    /// Who has been released, since this was last asked.
    fn released(&mut self) -> Vec<u128> {
        let mut released: Vec<u128> = std::mem::take(&mut self.released).iter().map(Uuid::as_u128).collect();
        released.sort_unstable();
        released
    }

    /// What clusters are pinned to; zero is the stable revision.
    fn pins(&self) -> Vec<i32> {
        let pin = |seen: &Seen| seen.turn.as_ref().map_or(0, |turn| turn.revision);
        self.observed.clusters.iter().map(pin).collect()
    }

    fn is(&self, state: RolloutPhase, reason: ProgressReason) {
        assert_eq!((self.rollout.state, self.rollout.reason), (state, reason), "{:?}", self.rollout);
    }

    /// Ticks until this many clusters have been released, each of which works at once.
    fn play(&mut self, ticks: usize) -> Vec<u128> {
        let mut all = Vec::new();
        for _ in 0..ticks {
            self.tick();
            for released in self.released() {
                self.apply(released, HealthState::Current);
                all.push(released);
            }
        }
        all
    }
}

fn canary() -> Value {
    json!({"waves": [{"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}}], "maxConcurrent": 1})
}

#[test]
fn a_good_content_reaches_one_wave_after_the_other_and_becomes_the_stable_one() {
    let clusters = vec![cluster(1, &[false]), cluster(2, &[true]), cluster(3, &[false])];
    let mut world = World::new(spec(&canary(), None), clusters);
    world.tick();
    world.is(RolloutPhase::Running, ProgressReason::Guarding);
    assert_eq!((world.rollout.number, world.rollout.started, world.rollout.goal), (4, 5, 2));
    assert_eq!(world.play(10), [2, 1, 3]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
    assert_eq!(world.rollout.stable, Some(2));
    assert!(world.observed.clusters.iter().all(|seen| seen.turn.is_none()), "all have the stable revision");
}

#[test]
fn nobody_is_released_before_the_guard_has_checked_or_while_it_holds() {
    let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true])]);
    world.tick();
    let (waiting, moves) = decide(SYNCSET, &world.spec, &world.rollout, &world.observed, TICK);
    assert_eq!((waiting.reason, moves), (ProgressReason::Guarding, Vec::new()));
    world.observed.is_held = true;
    world.tick();
    world.is(RolloutPhase::Running, ProgressReason::Held);
    world.observed.is_held = false;
    world.tick();
    assert_eq!(world.released(), [1]);
}

/// The objects that it drops are not deleted meanwhile, so no cluster can be done.
#[test]
fn no_cluster_fails_while_the_guard_holds_or_has_yet_to_check() {
    let mut world = World::new(spec(&canary(), Some("1m")), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    world.tick();
    assert_eq!(world.released(), [1]);
    for (is_held, is_aside, reason) in [
        (true, false, ProgressReason::Held),
        (false, true, ProgressReason::Guarding),
        (true, true, ProgressReason::Guarding),
    ] {
        (world.observed.is_held, world.observed.is_aside) = (is_held, is_aside);
        for _ in 0..10 {
            world.tick_after(Duration::from_secs(10));
            world.is(RolloutPhase::Running, reason);
        }
    }
    (world.observed.is_held, world.observed.is_aside) = (false, false);
    for _ in 0..6 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
    }
    world.tick_after(TICK);
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
}

/// Of three, one at a time. The second one changes when an edit or an undo begins the next rollout.
#[test]
fn whoever_changes_already_has_its_turn_first_in_the_next_rollout_and_keeps_its_place() {
    for is_edit in [true, false] {
        let mut world =
            World::new(spec(&json!({"maxConcurrent": 1}), None), (1..=3).map(|number| cluster(number, &[])).collect());
        world.tick();
        assert_eq!(world.play(1), [1]);
        world.tick();
        assert_eq!(world.released(), [2]);
        world.at(2).has_begun = true;
        if is_edit {
            (world.rollout.newest, world.rollout.edited) = (3, 6);
        } else {
            world.rollout = world.rollout.clone().undo(None, &[1, 2]).expect("it can be undone");
        }
        world.tick();
        world.tick();
        world.tick();
        assert_eq!(world.released(), [2], "is an edit: {is_edit}");
        world.apply(2, HealthState::Current);
        world.tick();
        assert_eq!(world.released(), [1], "is an edit: {is_edit}");
    }
    // It does not keep the first wave waiting if it belongs to a later one.
    let mut world =
        World::new(spec(&canary(), None), vec![cluster(1, &[true]), cluster(2, &[false]), cluster(3, &[false])]);
    world.tick();
    assert_eq!(world.play(2), [1]);
    world.tick();
    assert_eq!(world.released(), [2]);
    world.at(2).has_begun = true;
    (world.rollout.newest, world.rollout.edited) = (3, 6);
    world.tick();
    assert_eq!(world.play(4), [1, 2, 3]);
}

#[test]
fn a_canary_that_fails_stops_the_rollout_before_others_have_it() {
    let mut world = World::new(spec(&canary(), Some("1m")), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    world.tick();
    world.apply(1, HealthState::Failed);
    world.tick();
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
    assert_eq!(world.rollout.message, "1 of 1 clusters failed in wave canary, where 0 may");
    world.tick();
    assert_eq!(world.released(), [1]);
    world.rollout = world.rollout.clone().resume().expect("it may go on");
    world.tick();
    world.tick();
    assert_eq!(world.released(), [2], "what has failed so far is tolerated");
}

/// One answers and is never sent anything, as with credentials that don't work any more, and one does not work.
#[test]
fn a_stop_says_to_how_many_of_those_that_failed_nothing_was_sent() {
    let rollout = json!({"maxConcurrent": 3, "maxFailures": 1});
    let mut world = World::new(spec(&rollout, Some("1m")), (1..4).map(|number| cluster(number, &[])).collect());
    world.tick();
    world.tick();
    assert_eq!(world.released(), [1, 2, 3]);
    world.apply(1, HealthState::Current);
    world.apply(2, HealthState::Failed);
    for _ in 0..7 {
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
        world.tick_after(Duration::from_secs(10));
    }
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
    let told = "2 of 3 clusters failed in wave rest, where 1 may; nothing was sent to 1 of these";
    assert_eq!(world.rollout.message, told);
    assert_eq!(world.pins(), [2, 2, 0], "that one has what it had");
}

#[test]
fn a_failure_rolls_all_clusters_back_and_says_why() {
    let mut rollout = canary();
    rollout["onFailure"] = json!("rollback");
    let mut world = World::new(spec(&rollout, None), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    world.tick();
    world.at(1).applied = Applied::Never;
    world.tick();
    world.is(RolloutPhase::RollingBack, ProgressReason::Guarding);
    let turn = world.play(3);
    assert_eq!(turn, [1, 1], "the first one is that of the rollout");
    world.is(RolloutPhase::RolledBack, ProgressReason::None);
    assert_eq!(world.rollout.message, "1 of 1 clusters failed in wave canary, where 0 may");
    assert_eq!((world.rollout.stable, world.rollout.newest), (Some(1), 2));
}

#[test]
fn whoever_fails_on_the_way_back_is_told_of() {
    let mut rollout = canary();
    (rollout["onFailure"], rollout["maxConcurrent"]) = (json!("rollback"), json!(2));
    for has_failed_before in [true, false] {
        let mut world = World::new(spec(&rollout, None), vec![cluster(1, &[true]), cluster(2, &[true])]);
        world.tick();
        world.tick();
        world.apply(1, HealthState::Current);
        world.apply(2, HealthState::Current);
        let before = if has_failed_before {
            world.at(1).applied = Applied::Never;
            "1 of 2 clusters failed in wave canary, where 0 may; "
        } else {
            world.rollout = world.rollout.clone().undo(None, &[1, 2]).expect("it can be undone");
            ""
        };
        world.tick();
        world.tick();
        world.apply(1, HealthState::Current);
        (world.at(2).applied, world.at(2).has_begun) = (Applied::Never, true);
        world.tick();
        world.is(RolloutPhase::RolledBack, ProgressReason::None);
        assert_eq!(world.rollout.message, format!("{before}1 failed on the way back"));
    }
}

#[test]
fn a_syncset_for_nobody_is_undone_at_once_unless_that_gives_it_another_stable_revision() {
    for (to, state, reason) in [
        (None, RolloutPhase::RolledBack, ProgressReason::None),
        (Some(3), RolloutPhase::RollingBack, ProgressReason::EmptyWave),
    ] {
        let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true])]);
        world.tick();
        world.tick();
        world.observed.clusters.clear();
        world.tick();
        world.is(RolloutPhase::Running, ProgressReason::EmptyWave);
        world.rollout = world.rollout.clone().undo(to, &[1, 2, 3]).expect("it can be undone");
        world.tick();
        world.is(state, reason);
        assert_eq!(world.rollout.stable, Some(1));
    }
}

#[test]
fn the_first_content_has_nothing_to_go_back_to() {
    let mut rollout = canary();
    rollout["onFailure"] = json!("rollback");
    let mut world = World::new(spec(&rollout, None), vec![cluster(1, &[true])]);
    world.rollout.stable = None;
    world.tick();
    world.tick();
    world.at(1).applied = Applied::Never;
    world.tick();
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
    assert!(world.rollout.message.ends_with("there is no stable revision to go back to"), "{}", world.rollout.message);
    assert_eq!(world.rollout.clone().undo(None, &[1, 2]), Err(Refused::NoStable));
}

#[test]
fn counts_say_how_far_each_wave_is() {
    let clusters = vec![cluster(1, &[true]), cluster(2, &[true]), cluster(3, &[false]), cluster(4, &[false])];
    let mut rollout = canary();
    rollout["maxConcurrent"] = json!(2);
    let mut world = World::new(spec(&rollout, None), clusters);
    world.at(4).is_away = true;
    world.tick();
    world.tick();
    world.apply(1, HealthState::Current);
    world.at(2).applied = Applied::Never;
    world.tick();
    let counts = count(SYNCSET, &world.spec, &world.rollout, &world.observed.clusters);
    let canary = Counts { clusters: 2, released: 2, done: 1, failed: 1, away: 0 };
    assert_eq!(counts, [canary, Counts { clusters: 2, away: 1, ..Counts::default() }]);
}

#[test]
fn once_a_rollout_has_ended_counts_say_what_has_become_of_its_clusters() {
    let clusters = vec![cluster(1, &[true]), cluster(2, &[true]), cluster(3, &[false]), cluster(4, &[false])];
    let mut rollout = canary();
    (rollout["maxConcurrent"], rollout["maxFailures"]) = (json!(2), json!(1));
    let mut world = World::new(spec(&rollout, Some("1m")), clusters);
    world.at(4).is_away = true;
    world.tick();
    world.tick();
    world.apply(1, HealthState::Current);
    world.apply(2, HealthState::Failed);
    assert_eq!(world.released(), [1, 2]);
    assert_eq!(world.play(4), [3]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
    let count = |world: &World| count(SYNCSET, &world.spec, &world.rollout, &world.observed.clusters);
    let canary = Counts { clusters: 2, released: 2, done: 1, failed: 1, away: 0 };
    assert_eq!(count(&world), [canary, Counts { clusters: 2, released: 1, done: 1, failed: 0, away: 1 }]);
    // An edit whose rollout has yet to begin.
    (world.rollout.newest, world.rollout.edited) = (3, 6);
    assert_eq!(count(&world)[0], Counts { clusters: 2, ..Counts::default() });
}

#[test]
fn states_and_reasons_are_stored_by_their_names() {
    for state in RolloutPhase::ALL {
        assert_eq!(RolloutPhase::of_name(state.as_str()), Some(state));
    }
    for reason in ProgressReason::ALL {
        assert_eq!(ProgressReason::of_name(reason.as_str()), Some(reason));
    }
    assert_eq!((RolloutPhase::of_name("Waltzing"), ProgressReason::of_name("Rain")), (None, None));
}

#[test]
fn a_jump_of_the_clock_or_a_long_silence_lets_nothing_expire() {
    let mut world = World::new(spec(&canary(), Some("1m")), vec![cluster(1, &[true])]);
    world.tick();
    world.tick();
    for _ in 0..6 {
        world.now += Duration::from_hours(9);
        world.tick_after(Duration::from_hours(9));
    }
    world.is(RolloutPhase::Running, ProgressReason::Releasing);
    world.tick_after(TICK);
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
    assert_eq!(world.rollout.clock, Duration::from_secs(62), "ten seconds of each silence count");
}

#[test]
fn time_does_not_pass_while_a_rollout_is_stopped() {
    let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true])]);
    world.tick();
    world.tick();
    world.rollout = world.rollout.clone().pause().expect("it can be paused");
    let before = world.rollout.clone();
    world.tick_after(Duration::from_secs(10));
    assert_eq!(world.rollout, before);
}

#[test]
fn a_cluster_that_flaps_stays_done_and_holds_up_only_the_check_at_the_end_of_the_soak() {
    let mut rollout = canary();
    rollout["waves"][0]["soak"] = json!("2m");
    let mut world = World::new(spec(&rollout, Some("1m")), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    world.tick();
    world.apply(1, HealthState::Current);
    for state in [HealthState::Progressing, HealthState::Unknown, HealthState::Current].into_iter().cycle().take(12) {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Soaking);
        world.apply(1, state);
    }
    world.tick_after(Duration::from_secs(10));
    world.is(RolloutPhase::Running, ProgressReason::Checking);
    world.tick();
    world.is(RolloutPhase::Running, ProgressReason::Checking);
    assert_eq!(world.released(), [1], "the reading before the check does not count");
    world.apply(1, HealthState::Progressing);
    world.tick();
    world.is(RolloutPhase::Running, ProgressReason::Checking);
    world.apply(1, HealthState::Current);
    world.tick();
    world.tick();
    assert_eq!(world.released(), [2]);
}

#[test]
fn whoever_is_not_current_by_the_end_of_the_check_has_failed() {
    let mut rollout = canary();
    rollout["waves"][0]["soak"] = json!("5s");
    for (state, ticks) in [(HealthState::Failed, 1), (HealthState::Progressing, 7)] {
        let mut world = World::new(spec(&rollout, Some("1m")), vec![cluster(1, &[true]), cluster(2, &[false])]);
        world.tick();
        world.tick();
        world.apply(1, HealthState::Current);
        world.tick();
        world.tick_after(Duration::from_secs(5));
        world.is(RolloutPhase::Running, ProgressReason::Checking);
        world.apply(1, state);
        for _ in 1..ticks {
            world.tick_after(Duration::from_secs(10));
            world.is(RolloutPhase::Running, ProgressReason::Checking);
        }
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Stopped, ProgressReason::Failures);
        assert_eq!(world.released(), [1], "{state:?}");
    }
}

#[test]
fn whoever_of_an_earlier_wave_fails_in_the_check_counts_in_the_message_as_one_of_those_that_were_asked() {
    let waves = json!({"waves": [
        {"name": "a", "clusterSelector": {}}, {"name": "b", "clusterSelector": {}, "soak": "5s"}], "maxConcurrent": 1});
    let clusters = vec![cluster(1, &[true, false]), cluster(2, &[false, true]), cluster(3, &[false, false])];
    let mut world = World::new(spec(&waves, Some("1m")), clusters);
    world.tick();
    assert_eq!(world.play(4), [1, 2]);
    world.tick_after(Duration::from_secs(5));
    world.is(RolloutPhase::Running, ProgressReason::Checking);
    world.apply(1, HealthState::Failed);
    world.apply(2, HealthState::Failed);
    world.tick();
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
    assert_eq!(world.rollout.message, "2 of 2 clusters failed in wave b, where 0 may");
}

#[test]
fn a_wave_that_waits_to_be_promoted_is_not_checked_again() {
    let mut rollout = canary();
    rollout["waves"][0]["soak"] = json!("5s");
    rollout["waves"][0]["pause"] = json!(true);
    let mut world = World::new(spec(&rollout, Some("1m")), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    world.tick();
    assert!(world.rollout.clone().promote().is_err(), "it does not wait yet");
    world.apply(1, HealthState::Current);
    world.tick();
    world.tick_after(Duration::from_secs(5));
    world.apply(1, HealthState::Current);
    world.tick();
    world.is(RolloutPhase::Running, ProgressReason::AwaitingPromotion);
    world.apply(1, HealthState::Progressing);
    for _ in 0..20 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::AwaitingPromotion);
    }
    world.rollout = world.rollout.clone().promote().expect("it waits");
    world.tick();
    world.tick();
    assert_eq!(world.released(), [1, 2]);
}

#[test]
fn a_cluster_that_dies_in_its_turn_keeps_its_place_and_fails_in_the_end() {
    let mut rollout = canary();
    rollout["waves"] = json!([]);
    let mut world = World::new(spec(&rollout, Some("1m")), vec![cluster(1, &[]), cluster(2, &[])]);
    world.tick();
    world.tick();
    (world.at(1).is_away, world.at(1).has_begun) = (true, true);
    for _ in 0..6 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
    }
    assert_eq!(world.released(), [1], "one at a time");
    world.tick_after(TICK);
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
    world.at(1).is_away = false;
    world.apply(1, HealthState::Current);
    world.rollout = world.rollout.clone().resume().expect("it has stopped after a failure");
    world.tick();
    assert_eq!((world.rollout.failures, world.released()), (0, vec![2]), "a cluster that recovers is done");
}

#[test]
fn no_cluster_fails_since_it_waits_for_a_worker_and_its_time_counts_from_when_one_comes() {
    let mut rollout = canary();
    rollout["waves"][0]["soak"] = json!("5s");
    let mut world = World::new(spec(&rollout, Some("1m")), vec![cluster(1, &[true]), cluster(2, &[false])]);
    let waits = |world: &mut World, seconds: u64| {
        world.at(1).queued = Duration::from_secs(seconds);
        world.tick_after(Duration::from_secs(10));
    };
    world.tick();
    world.tick();
    for tick in 1..=30 {
        waits(&mut world, 10 * tick);
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
    }
    // It was tried, and comes to wait for so much of ten seconds each time.
    for _ in 0..10 {
        waits(&mut world, 4);
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
    }
    waits(&mut world, 0);
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
    assert_eq!(world.rollout.clock, Duration::from_secs(30 * 10 + 11 * 10 + 1), "300 and 40 seconds were not its own");
}

#[test]
fn the_check_at_the_end_of_a_soak_waits_for_workers() {
    let mut rollout = canary();
    rollout["waves"][0]["soak"] = json!("5s");
    let mut world = World::new(spec(&rollout, Some("1m")), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    world.tick();
    world.apply(1, HealthState::Current);
    world.tick();
    world.tick_after(Duration::from_secs(5));
    for tick in 1..=30 {
        world.is(RolloutPhase::Running, ProgressReason::Checking);
        world.at(1).queued = Duration::from_secs(10 * tick);
        world.tick_after(Duration::from_secs(10));
    }
    world.at(1).queued = Duration::ZERO;
    for _ in 0..6 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Checking);
    }
    world.tick_after(TICK);
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
}

#[test]
fn a_wave_of_which_nobody_can_be_reached_waits_and_one_that_is_back_later_has_its_turn_then() {
    let clusters = vec![cluster(1, &[true]), cluster(2, &[true]), cluster(3, &[false])];
    let mut world = World::new(spec(&canary(), None), clusters);
    world.at(1).is_away = true;
    world.at(2).is_away = true;
    world.tick();
    assert_eq!(world.play(3), []);
    world.is(RolloutPhase::Running, ProgressReason::Unreachable);
    world.at(2).is_away = false;
    assert_eq!(world.play(2), [2], "the other one is not waited for");
    assert_eq!(world.rollout.wave, 1);
    world.at(1).is_away = false;
    assert_eq!(world.play(4), [1, 3]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
}

#[test]
fn a_typo_in_a_selector_does_not_send_everything_to_the_last_wave() {
    let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[false]), cluster(2, &[false])]);
    world.tick();
    assert_eq!(world.play(5), []);
    world.is(RolloutPhase::Running, ProgressReason::EmptyWave);
    assert_eq!(world.rollout.message, "the selector of wave canary matches no cluster");
    world.at(2).selected = vec![true];
    assert_eq!(world.play(5), [2, 1]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
    let waves = json!({"waves": [
        {"name": "a", "clusterSelector": {}}, {"name": "b", "clusterSelector": {}}], "maxConcurrent": "100%"});
    let clusters = vec![cluster(1, &[true, false]), cluster(2, &[false, false])];
    let mut world = World::new(spec(&waves, None), clusters);
    world.tick();
    assert_eq!(world.play(6), [1, 2], "once somebody has succeeded, an empty wave is passed over");
    world.is(RolloutPhase::Complete, ProgressReason::None);
}

#[test]
fn shares_of_few_clusters_are_never_nobody() {
    for (clusters, percent, in_first, at_once) in
        [(1, 10, 1, 1), (1, 50, 1, 1), (2, 10, 1, 1), (2, 50, 1, 1), (3, 10, 1, 1), (3, 50, 2, 1), (4, 50, 2, 1)]
    {
        let rollout = json!({"waves": [{"name": "some", "percent": percent}], "maxConcurrent": format!("{percent}%")});
        let all = (1..=clusters).map(|number| cluster(number, &[false])).collect();
        let mut world = World::new(spec(&rollout, None), all);
        world.tick();
        world.tick();
        let counts = count(SYNCSET, &world.spec, &world.rollout, &world.observed.clusters);
        assert_eq!(counts[0].clusters, in_first, "{percent} % of {clusters}");
        assert_eq!(world.released().len(), at_once, "{percent} % of {clusters}");
    }
}

/// A tenth of 40 clusters is drawn for 1,000 syncsets: each is in it for about a hundred. Of 50 the same five are in it, and one more if there is
/// one more.
#[test]
fn a_percentage_takes_each_cluster_for_as_many_syncsets_as_any_other_and_stays_the_same() {
    let spec = spec(&json!({"waves": [{"name": "some", "percent": 10}]}), None);
    let first = |syncset: u128, clusters: u128| -> BTreeSet<u128> {
        let clusters: Vec<Seen> = (1..=clusters).map(|number| cluster(number, &[false])).collect();
        let waves = assign(Uuid::from_u128(syncset), &spec, &clusters);
        clusters.iter().zip(waves).filter(|(_, wave)| *wave == 0).map(|(seen, _)| seen.id.as_u128()).collect()
    };
    let mut times = BTreeMap::<u128, u32>::new();
    for syncset in 0..1_000 {
        for drawn in first(syncset, 40) {
            *times.entry(drawn).or_default() += 1;
        }
    }
    assert_eq!((times.len(), times.values().sum::<u32>()), (40, 4_000));
    assert!(times.values().all(|times| (60..=140).contains(times)), "{times:?}");
    for syncset in 0..100 {
        let (before, after) = (first(syncset, 50), first(syncset, 51));
        assert_eq!((before.len(), after.len()), (5, 6));
        assert!(before.is_subset(&after), "{before:?} {after:?}");
    }
}

#[test]
fn an_edit_begins_anew_and_clusters_keep_what_they_have_until_their_turn() {
    let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    assert_eq!(world.play(1), [1]);
    (world.rollout.newest, world.rollout.edited) = (3, 6);
    world.tick();
    world.is(RolloutPhase::Running, ProgressReason::Guarding);
    assert_eq!((world.rollout.goal, world.rollout.stable, world.rollout.guarded), (3, Some(1), false));
    assert_eq!(world.at(1).turn.as_ref().map(|turn| turn.revision), Some(2));
    assert_eq!(world.play(4), [1, 2]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
}

#[test]
fn an_edit_back_to_the_stable_content_is_an_undo_without_waves() {
    let clusters = vec![cluster(1, &[true]), cluster(2, &[false]), cluster(3, &[true])];
    let mut world = World::new(spec(&canary(), None), clusters);
    world.tick();
    assert_eq!(world.play(2), [1, 3]);
    (world.rollout.newest, world.rollout.edited) = (1, 6);
    world.tick();
    world.is(RolloutPhase::RollingBack, ProgressReason::Guarding);
    assert_eq!(world.play(4), [3, 1], "first who is not known to be done, and who has it already is left alone");
    world.is(RolloutPhase::Complete, ProgressReason::None);
    assert_eq!((world.rollout.stable, world.rollout.newest), (Some(1), 1));
}

#[test]
fn an_edit_that_was_taken_back_before_anybody_had_it_is_complete_at_once() {
    let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true])]);
    (world.rollout.newest, world.rollout.edited) = (1, 7);
    world.tick();
    world.is(RolloutPhase::Complete, ProgressReason::None);
    assert_eq!(world.released(), []);
}

#[test]
fn going_back_counts_no_earlier_reading_of_the_old_content() {
    let mut world = World::new(spec(&canary(), Some("1m")), vec![cluster(1, &[true])]);
    world.apply(1, HealthState::Current);
    world.at(1).applied = Applied::Not;
    world.tick();
    world.tick();
    world.rollout = world.rollout.clone().undo(None, &[1, 2]).expect("it can be undone");
    world.tick();
    // It has the old content again, and what was read before it had the new one.
    world.at(1).applied = Applied::Fully;
    world.tick();
    world.is(RolloutPhase::RollingBack, ProgressReason::Releasing);
    world.apply(1, HealthState::Current);
    world.tick();
    world.is(RolloutPhase::RolledBack, ProgressReason::None);
}

#[test]
fn going_back_waits_for_nobody_who_is_away() {
    let mut rollout = canary();
    rollout["maxConcurrent"] = json!(3);
    let clusters = vec![cluster(1, &[true]), cluster(2, &[true]), cluster(3, &[true])];
    let mut world = World::new(spec(&rollout, None), clusters);
    world.tick();
    assert_eq!(world.play(1), [1, 2, 3]);
    world.rollout = world.rollout.clone().undo(None, &[1, 2]).expect("it can be undone");
    world.at(1).is_away = true;
    world.tick();
    assert_eq!(world.released(), [2, 3]);
    world.at(2).is_away = true;
    world.apply(3, HealthState::Current);
    world.tick();
    world.is(RolloutPhase::RolledBack, ProgressReason::None);
}

#[test]
fn going_back_is_not_held_up_by_who_is_paused_in_its_turn() {
    let mut rollout = canary();
    rollout["maxConcurrent"] = json!(2);
    let clusters = vec![cluster(1, &[true]), cluster(2, &[true]), cluster(3, &[false])];
    let mut world = World::new(spec(&rollout, None), clusters);
    world.tick();
    assert_eq!(world.play(1), [1, 2]);
    world.rollout = world.rollout.clone().undo(None, &[1, 2]).expect("it can be undone");
    world.spec.max_concurrent = spec(&canary(), None).max_concurrent;
    world.tick();
    assert_eq!(world.released(), [1]);
    let first = world.at(1);
    (first.has_begun, first.is_paused, first.is_away) = (true, true, true);
    assert_eq!(world.play(1), [2]);
    world.tick();
    world.is(RolloutPhase::RolledBack, ProgressReason::None);
}

#[test]
fn a_cluster_whose_labels_change_moves_on_and_never_back() {
    let waves = json!({"waves": [
        {"name": "a", "clusterSelector": {}}, {"name": "b", "clusterSelector": {}}], "maxConcurrent": 1});
    let clusters = vec![cluster(1, &[true, false]), cluster(2, &[false, true]), cluster(3, &[false, false])];
    let mut world = World::new(spec(&waves, None), clusters);
    world.tick();
    assert_eq!(world.play(2), [1]);
    assert_eq!(world.rollout.wave, 1);
    // One that has had its turn keeps it; one of a later wave joins the one that runs.
    world.at(1).selected = vec![false, false];
    world.at(3).selected = vec![true, false];
    assert_eq!(world.play(4), [3, 2]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
}

#[test]
fn a_cluster_that_the_syncset_leaves_is_not_waited_for_and_one_that_joins_has_its_turn() {
    let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    world.tick();
    world.observed.clusters.retain(|seen| seen.id != id(1));
    world.observed.clusters.push(cluster(3, &[true]));
    world.released();
    assert_eq!(world.play(4), [3, 2]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
}

#[test]
fn a_cluster_that_leaves_in_its_turn_has_as_long_as_others_when_it_is_back() {
    let mut rollout = canary();
    rollout["waves"] = json!([]);
    let mut world = World::new(spec(&rollout, Some("1m")), vec![cluster(1, &[]), cluster(2, &[])]);
    world.at(2).is_away = true;
    world.tick();
    world.tick();
    assert_eq!(world.released(), [1]);
    world.leave(1);
    for _ in 0..10 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Unreachable);
    }
    world.return_all();
    for _ in 0..7 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
    }
    assert_eq!(world.released(), [1], "its turn begins again");
    assert_eq!(world.at(1).turn.as_ref().map(|turn| turn.revision), Some(2), "it has not gone back meanwhile");
    world.tick_after(TICK);
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
}

#[test]
fn a_cluster_that_was_done_and_has_left_is_done_again_only_once_it_has_the_content_again() {
    let mut rollout = canary();
    rollout["waves"][0]["soak"] = json!("1m");
    let clusters = vec![cluster(1, &[true]), cluster(2, &[true]), cluster(3, &[false])];
    let mut world = World::new(spec(&rollout, None), clusters);
    world.tick();
    assert_eq!(world.play(3), [1, 2]);
    world.is(RolloutPhase::Running, ProgressReason::Soaking);
    world.leave(1);
    world.tick();
    world.is(RolloutPhase::Running, ProgressReason::Soaking);
    world.return_all();
    for _ in 0..20 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
    }
    assert_eq!(world.released(), [1], "the next wave has not begun without it");
    world.apply(1, HealthState::Current);
    for _ in 0..6 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Soaking);
    }
    assert_eq!(world.play(4), []);
    world.tick_after(Duration::from_secs(10));
    assert_eq!(world.play(4), [3]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
}

#[test]
fn an_edit_that_waits_is_not_promoted() {
    let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true])]);
    world.tick();
    world.rollout.reason = ProgressReason::AwaitingPromotion;
    assert!(world.rollout.clone().promote().is_ok());
    world.rollout.edited += 1;
    let refused = world.rollout.clone().promote().expect_err("it begins anew").to_string();
    assert_eq!(refused, "the rollout is Running (Guarding), and only one that waits for it can be promoted");
}

#[test]
fn a_rollout_whose_syncset_is_for_nobody_waits_in_whichever_wave_it_is() {
    for wave in 0..=1 {
        let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true]), cluster(2, &[false])]);
        world.tick();
        world.rollout.wave = wave;
        let before = world.rollout.clone();
        let clusters = std::mem::take(&mut world.observed.clusters);
        for _ in 0..3 {
            world.tick();
        }
        world.is(RolloutPhase::Running, ProgressReason::EmptyWave);
        assert_eq!((world.rollout.wave, world.rollout.clock), (wave, before.clock));
        world.observed.clusters = clusters;
        world.rollout.wave = 0;
        assert_eq!(world.play(4), [1, 2]);
        world.is(RolloutPhase::Complete, ProgressReason::None);
    }
}

#[test]
fn after_a_restore_or_a_pause_nobody_moves_until_it_is_resumed_not_even_for_an_edit() {
    for reason in [ProgressReason::Restored, ProgressReason::Paused] {
        let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true]), cluster(2, &[false])]);
        world.tick();
        (world.rollout.state, world.rollout.reason) = (RolloutPhase::Stopped, reason);
        (world.rollout.newest, world.rollout.edited) = (3, 6);
        assert_eq!(world.play(3), []);
        world.is(RolloutPhase::Stopped, reason);
        world.rollout = world.rollout.clone().resume().expect("it can be resumed");
        world.tick();
        assert_eq!(world.rollout.goal, 3);
        assert_eq!(world.play(4), [1, 2]);
        world.is(RolloutPhase::Complete, ProgressReason::None);
    }
}

#[test]
fn what_was_aborted_begins_with_an_edit_or_is_undone() {
    let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    assert_eq!(world.play(1), [1]);
    world.rollout = world.rollout.clone().abort().expect("it runs");
    assert_eq!(world.play(2), []);
    assert!(world.rollout.clone().resume().is_err());
    assert!(world.rollout.clone().abort().is_err());
    let mut edited = world;
    (edited.rollout.newest, edited.rollout.edited) = (3, 6);
    edited.tick();
    edited.is(RolloutPhase::Running, ProgressReason::Guarding);
    edited.rollout = edited.rollout.clone().abort().expect("it runs again").undo(Some(2), &[1, 2, 3]).expect("kept");
    edited.tick();
    assert_eq!(edited.play(4), [1, 2], "whoever has it already is looked at again");
    edited.is(RolloutPhase::RolledBack, ProgressReason::None);
    assert_eq!(edited.rollout.stable, Some(2));
}

#[test]
fn a_command_for_a_state_that_has_passed_is_refused_and_says_what_is_now() {
    let complete = Rollout { started: 5, newest: 1, ..rollout() };
    let stopped = Rollout {
        state: RolloutPhase::Stopped,
        reason: ProgressReason::Failures,
        newest: 2,
        goal: 2,
        ..complete.clone()
    };
    let refused = |result: Result<Rollout, Refused>| result.expect_err("it is refused").to_string();
    for (text, message) in [
        (
            refused(complete.clone().pause()),
            "the rollout is Complete, and only one that runs or rolls back can be paused",
        ),
        (
            refused(complete.clone().resume()),
            "the rollout is Complete, and only one that was paused, has stopped after failures, or was restored can be resumed",
        ),
        (
            refused(stopped.clone().promote()),
            "the rollout is Stopped (Failures), and only one that waits for it can be promoted",
        ),
        (refused(complete.clone().abort()), "the rollout is Complete, and only one that has not ended can be aborted"),
        (
            refused(complete.clone().undo(None, &[1, 2])),
            "all clusters have the stable revision 1 already: name another one that is kept",
        ),
        (refused(stopped.clone().undo(Some(9), &[1, 2])), "revision 9 is not kept"),
    ] {
        assert_eq!(text, message);
    }
    let back = stopped.clone().undo(None, &[1, 2]).expect("it can be undone");
    assert_eq!((back.state, back.goal, back.number, back.guarded), (RolloutPhase::RollingBack, 1, 4, false));
    let paused = back.pause().expect("it runs");
    let resumed = paused.clone().resume().expect("it was paused");
    assert_eq!(resumed.state, RolloutPhase::RollingBack, "where it leads is remembered");
    let edited = Rollout { newest: 3, edited: 6, ..paused }.resume().expect("it was paused");
    assert_eq!(
        (edited.state, edited.reason),
        (RolloutPhase::Running, ProgressReason::Guarding),
        "that of the edit begins"
    );
    assert!(edited.must_begin());
    let again = Rollout { state: RolloutPhase::RolledBack, ..stopped }.undo(Some(2), &[1, 2]).expect("it is kept");
    assert_eq!((again.state, again.wave), (RolloutPhase::Running, 0), "the newest content goes in waves again");
}

#[test]
fn a_rollout_that_a_newer_release_has_written_is_not_read_as_something_else() {
    assert!(Spec::read(&json!({}), None).is_some());
    for rollout in [
        json!([]),
        json!({"waves": [{"name": "a", "namespace": "b"}]}),
        json!({"waves": [{"name": "a", "percent": 10, "soak": "soon"}]}),
        json!({"maxConcurrent": "half"}),
        json!({"onFailure": "shrug"}),
    ] {
        assert_eq!(Spec::read(&rollout, None), None, "{rollout}");
    }
    let values = |count: usize| (0..count).map(|at| format!("v{at}")).collect::<Vec<_>>();
    let wave = |count| json!({"name": "a", "clusterSelector": {"matchExpressions": [{"key": "k", "operator": "NotIn", "values": values(count)}]}});
    let waves = |last| Spec::read(&json!({"waves": [wave(250), wave(250), wave(250), wave(last)]}), None);
    assert!(waves(250).is_some() && waves(251).is_none(), "each look would compare them all");
}

#[test]
fn a_turn_of_a_wave_that_was_taken_out_counts_in_the_last_one() {
    let waves = json!({"waves": [
        {"name": "a", "clusterSelector": {}}, {"name": "b", "clusterSelector": {}}], "maxConcurrent": 1});
    let clusters = vec![cluster(1, &[true, false]), cluster(2, &[false, true]), cluster(3, &[false, false])];
    let mut world = World::new(spec(&waves, None), clusters);
    world.tick();
    assert_eq!(world.play(4), [1, 2]);
    world.tick();
    assert_eq!((world.released(), world.rollout.wave), (vec![3], 2));
    // As the database does it.
    (world.spec, world.rollout.wave) = (spec(&canary(), None), 0);
    (world.at(3).applied, world.at(3).has_begun) = (Applied::Never, true);
    world.tick();
    let counts = count(SYNCSET, &world.spec, &world.rollout, &world.observed.clusters);
    assert_eq!(counts.iter().map(|wave| (wave.clusters, wave.failed)).collect::<Vec<_>>(), [(1, 0), (2, 1)]);
    world.tick();
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
    assert_eq!(world.rollout.message, "1 of 2 clusters failed in wave rest, where 0 may");
}

#[test]
fn a_canary_whose_labels_change_after_its_turn_is_soaked_and_promoted_all_the_same() {
    let mut rollout = canary();
    rollout["waves"][0]["soak"] = json!("1m");
    rollout["waves"][0]["pause"] = json!(true);
    let mut world = World::new(spec(&rollout, None), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    assert_eq!(world.play(2), [1]);
    world.at(1).selected = vec![false];
    for _ in 0..6 {
        world.is(RolloutPhase::Running, ProgressReason::Soaking);
        world.tick_after(Duration::from_secs(10));
    }
    world.is(RolloutPhase::Running, ProgressReason::AwaitingPromotion);
    world.rollout = world.rollout.clone().promote().expect("it waits");
    assert_eq!(world.play(4), [2]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
}

#[test]
fn a_rollout_completes_although_nobody_of_the_last_wave_can_be_reached_if_others_are_done() {
    let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.at(2).is_away = true;
    world.tick();
    assert_eq!(world.play(4), [1]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
    assert_eq!(world.rollout.stable, Some(2));
    let mut world = World::new(spec(&json!({}), None), vec![cluster(1, &[])]);
    world.at(1).is_away = true;
    world.tick();
    assert_eq!(world.play(4), []);
    world.is(RolloutPhase::Running, ProgressReason::Unreachable);
    // That others are done is not enough while nobody answers, not even those.
    let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    assert_eq!(world.play(1), [1]);
    world.at(1).is_away = true;
    world.at(2).is_away = true;
    assert_eq!(world.play(4), []);
    world.is(RolloutPhase::Running, ProgressReason::Unreachable);
    assert_eq!(
        (world.rollout.wave, world.rollout.message.as_str()),
        (1, "all clusters of wave rest are paused or do not answer")
    );
    world.at(1).is_away = false;
    world.tick();
    world.is(RolloutPhase::Complete, ProgressReason::None);
}

#[test]
fn a_cluster_that_is_back_for_the_first_time_during_the_soak_is_soaked_too() {
    let mut rollout = canary();
    rollout["waves"][0]["soak"] = json!("1m");
    let clusters = vec![cluster(1, &[true]), cluster(2, &[true]), cluster(3, &[false])];
    let mut world = World::new(spec(&rollout, None), clusters);
    world.at(2).is_away = true;
    world.tick();
    assert_eq!(world.play(2), [1]);
    world.tick_after(Duration::from_secs(10));
    world.is(RolloutPhase::Running, ProgressReason::Soaking);
    world.at(2).is_away = false;
    assert_eq!(world.play(2), [2]);
    for _ in 0..6 {
        world.is(RolloutPhase::Running, ProgressReason::Soaking);
        world.tick_after(Duration::from_secs(10));
    }
    assert_eq!(world.play(2), [3]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
}

#[test]
fn a_cluster_that_was_silent_before_its_turn_is_away_and_has_another_one_when_it_is_back() {
    let clusters = vec![cluster(1, &[true]), cluster(2, &[true]), cluster(3, &[false])];
    let mut world = World::new(spec(&canary(), Some("1m")), clusters);
    world.tick();
    world.tick();
    assert_eq!(world.released(), [1]);
    (world.at(1).is_away, world.at(1).was_silent) = (true, true);
    world.tick();
    assert_eq!(world.released(), [2], "it keeps no place");
    let counts = count(SYNCSET, &world.spec, &world.rollout, &world.observed.clusters);
    assert_eq!(counts[0], Counts { clusters: 2, released: 1, away: 1, ..Counts::default() });
    world.apply(2, HealthState::Current);
    world.tick();
    for _ in 0..6 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
    }
    world.apply(3, HealthState::Current);
    (world.at(1).is_away, world.at(1).was_silent) = (false, false);
    world.tick();
    assert_eq!(world.released(), [1, 3]);
    for _ in 0..6 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
    }
    world.apply(1, HealthState::Current);
    world.tick();
    world.is(RolloutPhase::Complete, ProgressReason::None);
}

#[test]
fn whoever_is_paused_once_it_is_done_is_not_asked_at_the_end_of_the_soak() {
    let mut rollout = canary();
    rollout["waves"][0]["soak"] = json!("5s");
    let clusters = vec![cluster(1, &[true]), cluster(2, &[true]), cluster(3, &[false])];
    let mut world = World::new(spec(&rollout, Some("1m")), clusters);
    world.tick();
    assert_eq!(world.play(3), [1, 2]);
    world.is(RolloutPhase::Running, ProgressReason::Soaking);
    (world.at(1).is_away, world.at(1).is_paused) = (true, true);
    world.tick_after(Duration::from_secs(5));
    world.is(RolloutPhase::Running, ProgressReason::Checking);
    // The other one is paused while it is asked.
    (world.at(2).is_away, world.at(2).is_paused) = (true, true);
    assert_eq!(world.play(2), [3]);
    world.is(RolloutPhase::Running, ProgressReason::Releasing);
}

#[test]
fn a_release_that_ends_without_success_leaves_the_soak_alone() {
    for has_failed in [true, false] {
        let mut rollout = canary();
        rollout["waves"][0]["soak"] = json!("1m");
        rollout["maxFailures"] = json!(1);
        let clusters = vec![cluster(1, &[true]), cluster(2, &[true]), cluster(3, &[false])];
        let mut world = World::new(spec(&rollout, None), clusters);
        world.at(2).is_away = true;
        world.tick();
        assert_eq!(world.play(2), [1]);
        world.is(RolloutPhase::Running, ProgressReason::Soaking);
        let settled = world.rollout.settled;
        world.tick_after(Duration::from_secs(10));
        world.at(2).is_away = false;
        world.tick();
        assert_eq!(world.released(), [2]);
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
        if has_failed {
            world.at(2).applied = Applied::Never;
        } else {
            // It was silent before its turn.
            (world.at(2).is_away, world.at(2).was_silent) = (true, true);
        }
        world.tick();
        world.is(RolloutPhase::Running, ProgressReason::Soaking);
        assert_eq!(world.rollout.settled, settled, "has failed: {has_failed}");
        // Late success is one.
        (world.at(2).is_away, world.at(2).was_silent) = (false, false);
        world.apply(2, HealthState::Current);
        world.tick();
        if !has_failed {
            world.apply(2, HealthState::Current);
            world.tick();
        }
        assert!(world.rollout.settled > settled, "has failed: {has_failed}");
    }
}

#[test]
fn whoever_was_sent_nothing_has_what_it_had_before_once_a_rollout_stops_goes_back_or_begins_anew() {
    type End = (RolloutPhase, ProgressReason, [i32; 4]);
    let cases: [(&str, End); 3] = [
        ("pause", (RolloutPhase::Stopped, ProgressReason::Failures, [2, 2, 0, 0])),
        ("rollback", (RolloutPhase::RollingBack, ProgressReason::Guarding, [2, 2, 0, 0])),
        ("edit", (RolloutPhase::Running, ProgressReason::Guarding, [2, 2, 0, 0])),
    ];
    for (how, (state, reason, pins)) in cases {
        let on_failure = if how == "rollback" { "rollback" } else { "pause" };
        let rollout = json!({"maxConcurrent": 3, "onFailure": on_failure});
        let mut world = World::new(spec(&rollout, None), (1..=4).map(|number| cluster(number, &[])).collect());
        world.tick();
        world.tick();
        assert_eq!(world.released(), [1, 2, 3]);
        // To the second one something may have come, and the third one waits in the queue.
        world.at(2).has_begun = true;
        match how {
            "edit" => (world.rollout.newest, world.rollout.edited) = (3, 6),
            _ => world.at(1).applied = Applied::Never,
        }
        if how == "edit" {
            world.at(1).has_begun = true;
        }
        world.tick();
        world.is(state, reason);
        assert_eq!(world.pins(), pins, "{how}");
        if how != "edit" {
            continue;
        }
        // What was sent is what they had, once the next one is taken back.
        world.tick();
        assert_eq!((world.released(), world.pins()), (vec![1, 2, 3], vec![3, 3, 3, 0]));
        (world.rollout.newest, world.rollout.edited) = (4, 7);
        world.tick();
        assert_eq!(world.pins(), pins);
    }
}

#[test]
fn a_cluster_that_was_sent_nothing_when_its_rollout_stopped_has_its_turn_again_once_that_is_resumed() {
    let clusters = (1..=3).map(|number| cluster(number, &[])).collect();
    let mut world = World::new(spec(&json!({"maxConcurrent": 2}), None), clusters);
    world.tick();
    world.tick();
    world.at(1).applied = Applied::Never;
    world.tick();
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
    assert_eq!(world.released(), [1, 2]);
    world.rollout = world.rollout.clone().resume().expect("it has stopped after a failure");
    assert_eq!(world.play(4), [2, 3]);
    world.is(RolloutPhase::Complete, ProgressReason::None);
}

#[test]
fn a_cluster_that_is_paused_in_its_turn_is_away_if_nothing_has_come_to_it_and_is_waited_for_otherwise() {
    let rollout = json!({"maxConcurrent": 1});
    let clusters = || vec![cluster(1, &[]), cluster(2, &[])];
    let mut world = World::new(spec(&rollout, Some("1m")), clusters());
    world.tick();
    world.tick();
    (world.at(1).is_away, world.at(1).is_paused) = (true, true);
    world.tick();
    assert_eq!((world.released(), world.pins()), (vec![1, 2], vec![0, 2]), "its place is another one's");
    world.apply(2, HealthState::Current);
    world.tick();
    world.is(RolloutPhase::Complete, ProgressReason::None);
    let mut world = World::new(spec(&rollout, Some("1m")), clusters());
    world.tick();
    world.tick();
    (world.at(1).is_away, world.at(1).is_paused, world.at(1).has_begun) = (true, true, true);
    for _ in 0..30 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
    }
    assert_eq!(world.rollout.message, "a cluster was paused in its turn, and is waited for");
    (world.at(1).is_away, world.at(1).is_paused) = (false, false);
    for _ in 0..6 {
        world.tick_after(Duration::from_secs(10));
        world.is(RolloutPhase::Running, ProgressReason::Releasing);
    }
    assert_eq!((world.released(), world.rollout.message.as_str()), (vec![1], ""));
    world.tick_after(TICK);
    world.is(RolloutPhase::Stopped, ProgressReason::Failures);
}

#[test]
fn a_cluster_whose_wave_has_yet_to_begin_again_keeps_its_turn_only_if_something_has_come_to_it() {
    for has_begun in [true, false] {
        let clusters = vec![cluster(1, &[true]), cluster(2, &[false]), cluster(3, &[false])];
        let mut world = World::new(spec(&canary(), None), clusters);
        world.tick();
        assert_eq!(world.play(2), [1]);
        world.tick();
        assert_eq!(world.released(), [2]);
        world.at(2).has_begun = has_begun;
        // Somebody changes the waves, as the database does it: the third one is the canary now.
        world.rollout.wave = 0;
        world.at(3).selected = vec![true];
        world.tick();
        assert_eq!(world.pins(), if has_begun { [2, 2, 0] } else { [2, 0, 2] }, "one at a time");
    }
}

/// The rollout has stood still, or the database's clock has jumped.
#[test]
fn health_that_is_final_is_read_again_while_somebody_waits_for_it() {
    let rollout = json!({"waves": [{"name": "some", "percent": 50}], "maxConcurrent": 12, "maxFailures": 12});
    let mut world = World::new(spec(&rollout, Some("1m")), (1..=24).map(|number| cluster(number, &[false])).collect());
    world.tick();
    world.tick();
    let released = world.released();
    assert_eq!(released.len(), 12);
    for number in &released {
        world.apply(*number, HealthState::Progressing);
    }
    world.tick();
    assert!(world.refreshed.is_empty(), "it is read as it is");
    let late = |world: &mut World, number: u128| {
        world.apply(number, HealthState::Progressing);
        world.at(number).health.as_mut().expect("a reading").is_final = true;
    };
    for number in &released {
        late(&mut world, *number);
    }
    world.tick();
    assert_eq!(world.refreshed.len(), 10, "not all at once");
    let (first, second) = (released[0], released[1]);
    for number in &released[2..] {
        world.apply(*number, HealthState::Current);
    }
    let longest = world.refreshed.clone();
    assert!(released.iter().take(10).all(|number| longest.contains(&id(*number))), "{longest:?}");
    world.apply(first, HealthState::Failed);
    world.at(second).is_away = true;
    world.refreshed.clear();
    world.tick();
    assert_eq!(world.refreshed, [id(first)], "neither who is done nor who is away");
    world.is(RolloutPhase::Running, ProgressReason::Releasing);
    assert_eq!(world.rollout.failures, 1, "until it is read again, it has failed");
    world.at(second).is_away = false;
    for recovered in [first, second] {
        world.apply(recovered, HealthState::Current);
    }
    world.tick();
    assert_eq!((world.rollout.failures, world.rollout.wave), (0, 1));
}
