//! Situations that are decided in one rollout each.

use serde_json::{Value, json};

use super::*;

const SYNCSET: Uuid = Uuid::from_u128(77);
const TICK: Duration = Duration::from_secs(1);

/// A syncset, its clusters and what is stored of both: what the database has.
struct World {
    spec: Spec,
    rollout: Rollout,
    observed: Observed,
    now: Timestamp,
    /// The moves so far.
    released: Vec<Uuid>,
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// A cluster that has the stable revision; the first wave selects those that are selected.
fn cluster(number: u128, selected: &[bool]) -> Seen {
    let selected = selected.to_vec();
    Seen { id: id(number), selected, is_away: false, turn: None, applied: Applied::Not, health: None }
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
        state: State::Complete,
        reason: Reason::None,
        message: String::new(),
        wave: 9,
        clock: Duration::from_secs(99),
        settled: Some(TICK),
        checking: Some(TICK),
        promoted: 8,
        failures: 7,
        tolerated: 6,
        judged: true,
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
        Self { spec, rollout: rollout(), observed, now: Timestamp::UNIX_EPOCH, released: Vec::new() }
    }

    fn at(&mut self, number: u128) -> &mut Seen {
        self.observed.clusters.iter_mut().find(|seen| seen.id == id(number)).expect("a cluster")
    }

    /// One decision. The guard has judged what has begun before it.
    fn tick(&mut self) {
        self.tick_after(TICK);
    }

    fn tick_after(&mut self, elapsed: Duration) {
        self.rollout.judged |= !self.rollout.must_begin();
        let (rollout, moves) = decide(SYNCSET, &self.spec, &self.rollout, &self.observed, elapsed);
        for of in &moves {
            self.make(&rollout, of);
        }
        self.rollout = rollout;
    }

    fn make(&mut self, rollout: &Rollout, of: &Move) {
        let mut turns = self.observed.clusters.iter_mut();
        match *of {
            Move::Release { cluster, read_before } => {
                self.released.push(cluster);
                let seen = turns.find(|seen| seen.id == cluster).expect("a cluster");
                if seen.turn.as_ref().is_none_or(|turn| turn.revision != rollout.goal) {
                    seen.applied = Applied::Not;
                }
                let Rollout { goal, number, wave, clock, .. } = *rollout;
                seen.turn = Some(Turn { revision: goal, number, wave, released: clock, done: false, read_before });
            }
            Move::Done { cluster } => {
                let turn = turns.find(|seen| seen.id == cluster).and_then(|seen| seen.turn.as_mut()).expect("a turn");
                (turn.done, turn.read_before) = (true, None);
            }
            Move::Reread { cluster, before } => {
                let turn = turns.find(|seen| seen.id == cluster).and_then(|seen| seen.turn.as_mut()).expect("a turn");
                turn.read_before = Some(before);
            }
            Move::Checked => {
                for turn in turns.filter_map(|seen| seen.turn.as_mut()).filter(|turn| turn.done) {
                    turn.read_before = None;
                }
            }
            Move::Leave { cluster } => self.observed.left.retain(|left| *left != cluster),
            Move::Settle => turns.for_each(|seen| seen.turn = None),
        }
    }

    /// Has the cluster applied the goal, and read in this state.
    fn apply(&mut self, number: u128, state: health::State) {
        self.now += Duration::from_secs(1);
        let reading = Reading { at: self.now, state: Some(state) };
        let seen = self.at(number);
        (seen.applied, seen.health) = (Applied::Fully, Some(reading));
    }

    /// Who has been released, since this was last asked.
    fn released(&mut self) -> Vec<u128> {
        let mut released: Vec<u128> = std::mem::take(&mut self.released).iter().map(Uuid::as_u128).collect();
        released.sort_unstable();
        released
    }

    fn is(&self, state: State, reason: Reason) {
        assert_eq!((self.rollout.state, self.rollout.reason), (state, reason), "{:?}", self.rollout);
    }

    /// Ticks until this many clusters have been released, each of which works at once.
    fn play(&mut self, ticks: usize) -> Vec<u128> {
        let mut all = Vec::new();
        for _ in 0..ticks {
            self.tick();
            for released in self.released() {
                self.apply(released, health::State::Current);
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
    world.is(State::Running, Reason::Judging);
    assert_eq!((world.rollout.number, world.rollout.started, world.rollout.goal), (4, 5, 2));
    assert_eq!(world.play(10), [2, 1, 3]);
    world.is(State::Complete, Reason::None);
    assert_eq!(world.rollout.stable, Some(2));
    assert!(world.observed.clusters.iter().all(|seen| seen.turn.is_none()), "all have the stable revision");
}

#[test]
fn nobody_is_released_before_the_guard_has_judged_or_while_it_holds() {
    let mut world = World::new(spec(&canary(), None), vec![cluster(1, &[true])]);
    world.tick();
    let (waiting, moves) = decide(SYNCSET, &world.spec, &world.rollout, &world.observed, TICK);
    assert_eq!((waiting.reason, moves), (Reason::Judging, Vec::new()));
    world.observed.is_held = true;
    world.tick();
    world.is(State::Running, Reason::Held);
    world.observed.is_held = false;
    world.tick();
    assert_eq!(world.released(), [1]);
}

#[test]
fn a_canary_that_fails_stops_the_rollout_before_others_have_it() {
    let mut world = World::new(spec(&canary(), Some("1m")), vec![cluster(1, &[true]), cluster(2, &[false])]);
    world.tick();
    world.tick();
    world.apply(1, health::State::Failed);
    world.tick();
    world.is(State::Stopped, Reason::Failures);
    assert_eq!(world.rollout.message, "1 of 1 clusters failed in wave canary, where 0 may");
    world.tick();
    assert_eq!(world.released(), [1]);
    world.rollout = world.rollout.clone().resume().expect("it may go on");
    world.tick();
    world.tick();
    assert_eq!(world.released(), [2], "what has failed so far is tolerated");
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
    world.is(State::RollingBack, Reason::Judging);
    let turn = world.play(3);
    assert_eq!(turn, [1, 1], "the first one is that of the rollout");
    world.is(State::RolledBack, Reason::None);
    assert_eq!(world.rollout.message, "1 of 1 clusters failed in wave canary, where 0 may");
    assert_eq!((world.rollout.stable, world.rollout.newest), (Some(1), 2));
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
    world.is(State::Stopped, Reason::Failures);
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
    world.apply(1, health::State::Current);
    world.at(2).applied = Applied::Never;
    world.tick();
    let counts = count(SYNCSET, &world.spec, &world.rollout, &world.observed.clusters);
    let canary = Counts { clusters: 2, released: 2, done: 1, failed: 1, away: 0 };
    assert_eq!(counts, [canary, Counts { clusters: 2, away: 1, ..Counts::default() }]);
}

#[test]
fn states_and_reasons_are_stored_by_their_names() {
    for state in State::ALL {
        assert_eq!(State::of_name(state.as_str()), Some(state));
    }
    for reason in Reason::ALL {
        assert_eq!(Reason::of_name(reason.as_str()), Some(reason));
    }
    assert_eq!((State::of_name("Waltzing"), Reason::of_name("Rain")), (None, None));
}
