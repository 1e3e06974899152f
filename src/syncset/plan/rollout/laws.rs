//! Laws of rollouts, on random specifications, fleets and events.
//!
//! The model has what the database would have, and clusters that apply what they are pinned to. All that happens to a rollout is an event:
//! decisions, of which some are lost or made twice, work of clusters, their deaths and labels, edits, commands, restores. Health that has
//! failed, or is late by the database's clock, is read again only if the rollout wants that.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::decide::assign;
use super::*;

const SYNCSET: Uuid = Uuid::from_u128(0xa11);
const WITHIN: Duration = Duration::from_mins(1);
/// Ticks of ten seconds after which everything has ended, once nothing more happens: each cluster alone for as long as it may take, twice
/// for a rollout that goes back, and the soaks.
pub(in crate::syncset::plan) const LONGEST_END: usize = 400;

/// What becomes of a revision on a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::syncset::plan) enum Fate {
    Works,
    /// It can't be applied.
    Never,
    /// It is not applied, for a reason that may pass.
    NotYet,
    Broken,
    Slow,
}

#[derive(Clone, Debug)]
pub(in crate::syncset::plan) enum Event {
    Tick(u64),
    /// A dispatcher decides and is killed before its transaction is committed.
    LostTick,
    /// Two decide on the same state.
    TickTwice,
    Work(usize),
    WorkAll,
    /// To another revision; one that does not exist yet is made.
    Edit(i32),
    Respecify(Spec),
    Relabel(usize, u8),
    Join(u8),
    Leave(usize),
    /// It answers, though no worker has come with its turn.
    Answer(usize),
    SetSilent(usize, bool),
    /// Something is sent to it, and no answer comes any more.
    Hang(usize),
    /// Whether no worker comes to any cluster.
    Stall(bool),
    SetPaused(usize, bool),
    SetFate(usize, usize, Fate),
    JumpClock(i64),
    Hold(bool),
    /// Whether the guard has yet to check what labels that have changed delete.
    Aside(bool),
    /// The guard checks the step to the goal.
    Guard,
    Restore,
    Pause,
    Resume,
    Promote,
    Abort,
    Undo(Option<i32>),
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
pub(in crate::syncset::plan) struct Node {
    labels: u8,
    is_silent: bool,
    is_paused: bool,
    pub(in crate::syncset::plan) matches: bool,
    fates: [Fate; 3],
    /// The revision that it was last applied with, and what came of that.
    applied: Option<(i32, Applied)>,
    /// When its health was last read, with which revision, and what it was.
    read: Option<(Timestamp, i32, HealthState)>,
    /// Whether what is read and is not current is late.
    is_late: bool,
    /// Whether the rollout wants it to be read again.
    is_refreshed: bool,
}

#[derive(Clone, Debug)]
pub(in crate::syncset::plan) struct Model {
    pub(in crate::syncset::plan) spec: Spec,
    pub(in crate::syncset::plan) rollout: Rollout,
    version: u64,
    kept: Vec<i32>,
    pub(in crate::syncset::plan) turns: BTreeMap<Uuid, Turn>,
    /// What clusters had before their turns, if that is not the stable revision.
    before: BTreeMap<Uuid, i32>,
    pub(in crate::syncset::plan) nodes: BTreeMap<Uuid, Node>,
    /// Those that have answered since their turn began, or were sent something.
    reached: BTreeSet<Uuid>,
    /// Those that were sent something of what they are pinned to.
    begun: BTreeSet<Uuid>,
    /// When turns began, and for how long workers could have come since.
    attended: BTreeMap<Uuid, Duration>,
    is_stalled: bool,
    is_held: bool,
    is_aside: bool,
    now: Timestamp,
}

fn waves() -> impl Strategy<Value = Vec<Wave>> {
    let takes = prop_oneof![
        Just(Takes::Selected(serde_json::Value::Null)),
        prop::sample::select(vec![10, 34, 50, 100]).prop_map(Takes::Percent),
    ];
    let soak = prop::sample::select(vec![0, 0, 25, 90]).prop_map(Duration::from_secs);
    let wave = (takes, soak, any::<bool>()).prop_map(|(takes, soak, pause)| Wave {
        name: "some".to_owned(),
        takes,
        soak,
        pause,
    });
    prop::collection::vec(wave, 0..4)
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![(0..3_usize).prop_map(Amount::Count), prop::sample::select(vec![10, 50, 100]).prop_map(Amount::Percent)]
}

pub(in crate::syncset::plan) fn spec() -> impl Strategy<Value = Spec> {
    let on_failure = prop_oneof![Just(OnFailure::Pause), Just(OnFailure::Rollback)];
    (waves(), amount(), amount(), on_failure, any::<bool>()).prop_map(
        |(waves, max_concurrent, max_failures, on_failure, reads_health)| Spec {
            waves,
            max_concurrent,
            max_failures,
            on_failure,
            within: WITHIN,
            reads_health,
        },
    )
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Works), 2 => Just(Fate::Never), 1 => Just(Fate::NotYet), 2 => Just(Fate::Broken), 2 => Just(Fate::Slow),
    ]
}

pub(in crate::syncset::plan) fn event() -> impl Strategy<Value = Event> {
    let which = 0..8_usize;
    prop_oneof![
        12 => (0..40_u64).prop_map(Event::Tick),
        2 => Just(Event::LostTick),
        2 => Just(Event::TickTwice),
        12 => which.clone().prop_map(Event::Work),
        2 => Just(Event::WorkAll),
        2 => (1..5_i32).prop_map(Event::Edit),
        1 => spec().prop_map(Event::Respecify),
        2 => (which.clone(), 0..8_u8).prop_map(|(node, labels)| Event::Relabel(node, labels)),
        1 => (0..8_u8).prop_map(Event::Join),
        1 => which.clone().prop_map(Event::Leave),
        1 => which.clone().prop_map(Event::Answer),
        2 => (which.clone(), any::<bool>()).prop_map(|(node, is)| Event::SetSilent(node, is)),
        1 => which.clone().prop_map(Event::Hang),
        2 => any::<bool>().prop_map(Event::Stall),
        2 => (which.clone(), any::<bool>()).prop_map(|(node, is)| Event::SetPaused(node, is)),
        8 => (which, 0..3_usize, fate()).prop_map(|(node, revision, fate)| Event::SetFate(node, revision, fate)),
        2 => (-100_000..100_000_i64).prop_map(Event::JumpClock),
        1 => any::<bool>().prop_map(Event::Hold),
        1 => any::<bool>().prop_map(Event::Aside),
        8 => Just(Event::Guard),
        1 => Just(Event::Restore),
        1 => Just(Event::Pause),
        3 => Just(Event::Resume),
        3 => Just(Event::Promote),
        1 => Just(Event::Abort),
        1 => prop::option::of(1..5_i32).prop_map(Event::Undo),
    ]
}

impl Node {
    fn new(labels: u8) -> Self {
        Self {
            labels,
            is_silent: false,
            is_paused: false,
            matches: true,
            fates: [Fate::Works; 3],
            applied: None,
            read: None,
            is_late: false,
            is_refreshed: false,
        }
    }

    /// Whether what was read is not current, and is not read again by itself.
    fn is_final(&self) -> bool {
        self.read.is_some_and(|(.., state)| match state {
            HealthState::Current => false,
            HealthState::Failed => true,
            HealthState::Progressing | HealthState::Unknown => self.is_late,
        })
    }

    pub(in crate::syncset::plan) fn is_away(&self) -> bool {
        self.is_silent || self.is_paused
    }

    /// What becomes of a revision on it.
    pub(in crate::syncset::plan) fn fate(&self, revision: i32) -> Fate {
        let index = usize::try_from(revision.rem_euclid(3)).unwrap_or_default();
        self.fates.get(index).copied().unwrap_or(Fate::Works)
    }

    /// A pass, of a cluster that is pinned to this revision. What has settled is read again only if somebody wants that. Each revision
    /// deletes something.
    fn work(&mut self, pin: i32, turn: Option<&Turn>, now: Timestamp, may_delete: bool) {
        let fate = self.fate(pin);
        let had_deleted = self.applied == Some((pin, Applied::Fully));
        let applied = match fate {
            Fate::Never => Applied::Never,
            Fate::NotYet => Applied::Not,
            _ if !may_delete && !had_deleted => Applied::Not,
            Fate::Works | Fate::Broken | Fate::Slow => Applied::Fully,
        };
        self.applied = Some((pin, applied));
        let last = self.read.filter(|(_, revision, _)| *revision == pin);
        let is_awaited = last.is_some_and(|(at, ..)| turn.is_some_and(|turn| turn.read_before == Some(at)));
        let is_wanted = is_awaited || self.is_refreshed;
        self.is_late &= last.is_some();
        let is_open =
            last.is_none_or(|(.., state)| state != HealthState::Current) && !(last.is_some() && self.is_final());
        if applied == Applied::Fully && (is_wanted || is_open) {
            self.is_refreshed = false;
            let state = match fate {
                Fate::Broken => HealthState::Failed,
                Fate::Slow => HealthState::Progressing,
                _ => HealthState::Current,
            };
            self.is_late &= state != HealthState::Current;
            self.read = Some((now, pin, state));
        }
    }
}

impl Model {
    /// A rollout that is new, or a syncset whose content was stable before.
    pub(in crate::syncset::plan) fn new(spec: Spec, labels: &[u8], has_stable: bool) -> Self {
        let ids = (1_u128..).map(Uuid::from_u128);
        let nodes: BTreeMap<Uuid, Node> = ids.zip(labels.iter().map(|labels| Node::new(*labels))).collect();
        let rollout = Rollout {
            newest: 1,
            edited: i64::from(!has_stable),
            started: 0,
            number: 0,
            stable: has_stable.then_some(1),
            goal: 1,
            state: if has_stable { RolloutPhase::Complete } else { RolloutPhase::Running },
            reason: ProgressReason::None,
            message: String::new(),
            wave: 0,
            clock: Duration::ZERO,
            settled: None,
            checking: None,
            promoted: 0,
            failures: 0,
            tolerated: 0,
            guarded: false,
        };
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        Self {
            spec,
            rollout,
            version: 0,
            kept: vec![1],
            turns: BTreeMap::new(),
            before: BTreeMap::new(),
            nodes,
            reached: BTreeSet::new(),
            begun: BTreeSet::new(),
            attended: BTreeMap::new(),
            is_stalled: false,
            is_held: false,
            is_aside: false,
            now,
        }
    }

    fn observe(&self) -> Observed {
        let see = |(id, node): (&Uuid, &Node)| {
            let applied = node.applied.filter(|(revision, _)| *revision == self.rollout.goal);
            let revision = node.applied.map(|(revision, _)| revision);
            Seen {
                id: *id,
                selected: (0..self.spec.waves.len()).map(|wave| node.labels & (1 << wave) != 0).collect(),
                is_away: node.is_away(),
                is_paused: node.is_paused,
                was_silent: node.is_silent && !self.reached.contains(id),
                has_begun: self.begun.contains(id),
                queued: if self.is_stalled { Duration::from_hours(1) } else { Duration::ZERO },
                turn: self.turns.get(id).cloned(),
                applied: applied.map_or(Applied::Not, |(_, applied)| applied),
                health: node.read.map(|(at, of, state)| HealthReading {
                    at,
                    state: (Some(of) == revision && of == self.rollout.goal).then_some(state),
                    is_final: Some(of) == revision && node.is_final() && !node.is_refreshed,
                }),
            }
        };
        let is_gone = |(id, turn): &(&Uuid, &Turn)| {
            turn.number == self.rollout.number && self.nodes.get(id).is_some_and(|node| !node.matches)
        };
        Observed {
            clusters: self.nodes.iter().filter(|(_, node)| node.matches).map(see).collect(),
            gone: self.turns.iter().filter(is_gone).map(|(id, _)| *id).collect(),
            is_held: self.is_held,
            is_aside: self.is_aside,
        }
    }

    /// Whether passes delete what a revision drops.
    fn may_delete(&self) -> bool {
        !self.is_held && !self.is_aside
    }

    /// Whether clusters may have their turns and get done.
    fn is_free(&self) -> bool {
        self.rollout.guarded && self.may_delete()
    }

    fn decide(&self, elapsed: Duration) -> (Rollout, Vec<Move>) {
        decide(SYNCSET, &self.spec, &self.rollout, &self.observe(), elapsed)
    }

    fn tick(&mut self, elapsed: Duration) -> Result<(), TestCaseError> {
        let (rollout, moves) = self.decide(elapsed);
        self.write(rollout, &moves)
    }

    /// Commits a decision about the present state, and checks that it was a lawful one.
    fn write(&mut self, rollout: Rollout, moves: &[Move]) -> Result<(), TestCaseError> {
        let (before, observed) = (self.clone(), self.observe());
        if !self.is_stalled && self.is_free() && rollout.number == self.rollout.number {
            let is_paused = |id: &Uuid| self.nodes.get(id).is_some_and(|node| node.is_paused);
            for (_, attended) in self.attended.iter_mut().filter(|(id, _)| !is_paused(id)) {
                *attended += rollout.clock.saturating_sub(self.rollout.clock);
            }
        }
        let waves = assign(SYNCSET, &self.spec, &observed.clusters);
        let is_early = |cluster: Uuid| {
            let wave = observed.clusters.iter().position(|seen| seen.id == cluster).and_then(|at| waves.get(at));
            before.rollout.state == RolloutPhase::Running && wave.is_some_and(|wave| *wave > before.rollout.wave)
        };
        for of in moves {
            match *of {
                Move::Release { cluster, read_before } => {
                    let Rollout { goal, number, wave, clock, .. } = rollout;
                    let turn = Turn { revision: goal, number, wave, released: clock, done: false, read_before };
                    self.before.remove(&cluster);
                    self.before.extend(self.turns.insert(cluster, turn).map(|had| (cluster, had.revision)));
                    self.reached.remove(&cluster);
                    if self.before.get(&cluster) != Some(&goal) {
                        self.begun.remove(&cluster);
                    }
                    self.attended.insert(cluster, Duration::ZERO);
                    let node = self.nodes.get_mut(&cluster).expect("a cluster");
                    node.applied = node.applied.filter(|(_, applied)| *applied == Applied::Fully);
                }
                Move::Wait { cluster, released } => {
                    self.turns.get_mut(&cluster).expect("a turn").released = released;
                }
                Move::Done { cluster } => {
                    let turn = self.turns.get_mut(&cluster).expect("a turn");
                    (turn.done, turn.read_before) = (true, None);
                }
                Move::Leave { cluster } => {
                    let (was_reached, has_begun) = (self.reached.contains(&cluster), self.begun.contains(&cluster));
                    let has_missed =
                        |node: &Node| (node.is_silent && !was_reached) || node.is_paused || is_early(cluster);
                    let may_leave = |node: &Node| !node.matches || (has_missed(node) && !has_begun);
                    prop_assert!(self.nodes.get(&cluster).is_some_and(may_leave), "it has not left");
                    self.take_back(&cluster);
                    self.turns.entry(cluster).and_modify(|turn| turn.number = 0);
                }
                Move::TakeBack => self.take_all_back(),
                Move::Refresh { cluster } => {
                    let node = self.nodes.get_mut(&cluster).expect("a cluster");
                    let turn = self.turns.get(&cluster).expect("a turn");
                    prop_assert!(node.is_final() && !node.is_away(), "it is read as it is, or can't be");
                    prop_assert!(!turn.done || turn.read_before.is_some(), "nobody waits for it");
                    node.is_refreshed = true;
                }
                Move::Reread { cluster, before } => {
                    self.turns.get_mut(&cluster).expect("a turn").read_before = Some(before);
                }
                Move::Checked => {
                    for turn in self.turns.values_mut().filter(|turn| turn.done) {
                        turn.read_before = None;
                    }
                }
                Move::Settle => {
                    self.turns.clear();
                    self.begun.clear();
                }
            }
        }
        if rollout != self.rollout || !moves.is_empty() {
            self.version += 1;
        }
        self.rollout = rollout;
        let counted = count(SYNCSET, &self.spec, &self.rollout, &self.observe().clusters);
        let shown: usize = counted.iter().map(|wave| wave.clusters).sum();
        let all = self.nodes.values().filter(|node| node.matches).count();
        prop_assert_eq!(shown, all, "each cluster is shown in a wave");
        before.check_failures(self, &observed, moves)?;
        before.check_releases(self, &observed, moves)?;
        before.check_gate(self, &observed)?;
        before.check_end(self, &observed)
    }

    /// As the database does it.
    fn take_back(&mut self, cluster: &Uuid) {
        let before = self.before.get(cluster).copied().filter(|before| Some(*before) != self.rollout.stable);
        let Some(turn) = self.turns.get_mut(cluster) else { return };
        if turn.number == 0 || turn.done || self.begun.contains(cluster) {
            return;
        }
        match before {
            Some(before) => {
                (turn.revision, turn.number) = (before, 0);
                // It was sent that before its turn.
                self.begun.insert(*cluster);
            }
            None => drop(self.turns.remove(cluster)),
        }
    }

    fn take_all_back(&mut self) {
        for cluster in self.turns.keys().copied().collect::<Vec<_>>() {
            self.take_back(&cluster);
        }
    }

    fn is_of_this(&self, turn: &Turn) -> bool {
        turn.number == self.rollout.number && turn.revision == self.rollout.goal
    }

    /// Whether a turn has failed; that one is not checked at the end of the soak is another failure.
    fn has_failed(&self, seen: &Seen, turn: &Turn) -> bool {
        let health =
            seen.health.filter(|reading| Some(reading.at) != turn.read_before).and_then(|reading| reading.state);
        seen.applied == Applied::Never
            || (self.spec.reads_health && health == Some(HealthState::Failed))
            || (!turn.done && self.attended.get(&seen.id).is_some_and(|attended| *attended > WITHIN))
    }

    /// Whether a cluster changes still since another rollout has released it.
    fn changes_already(&self, seen: &Seen) -> bool {
        let is_open = |turn: &Turn| turn.number != Turn::LEFT && !turn.done && !self.is_of_this(turn);
        !seen.is_away && seen.turn.as_ref().is_some_and(is_open)
    }

    /// Whether a turn of the present rollout is neither done nor has failed.
    fn is_under_way(&self, seen: &Seen, turn: &Turn) -> bool {
        self.is_of_this(turn) && !turn.done && !self.has_failed(seen, turn)
    }

    /// Before a decision: whether it goes on although too many have failed, or stops although they have not.
    fn check_failures(&self, after: &Self, observed: &Observed, moves: &[Move]) -> Result<(), TestCaseError> {
        let is_same = after.rollout.number == self.rollout.number && !self.rollout.must_begin();
        if !is_same || self.rollout.state != RolloutPhase::Running {
            return Ok(());
        }
        let last = self.spec.waves.len();
        let has_failed = |seen: &&Seen| {
            let is_settled =
                |of: &Move| [Move::Done { cluster: seen.id }, Move::Leave { cluster: seen.id }].contains(of);
            let counts = |turn: &Turn| self.is_of_this(turn) && turn.wave.min(last) == self.rollout.wave.min(last);
            let turn = seen.turn.as_ref().filter(|turn| counts(turn));
            !moves.iter().any(is_settled) && turn.is_some_and(|turn| after.has_failed(seen, turn))
        };
        let failures = observed.clusters.iter().filter(has_failed).count();
        let counts = count(SYNCSET, &self.spec, &self.rollout, &observed.clusters);
        let size = counts.get(self.rollout.wave.min(last)).map_or(0, |wave| wave.clusters);
        let allowed = self.spec.max_failures.of(size).max(self.rollout.tolerated);
        // Who is not checked at the end of the soak has failed, too.
        let may_stop = failures > allowed || self.rollout.checking.is_some();
        if after.rollout.state == RolloutPhase::Stopped {
            prop_assert!(may_stop, "it stops with {failures} failures, where {allowed} may be");
        } else {
            prop_assert!(failures <= allowed, "it goes on with {failures} failures, where {allowed} may be");
        }
        Ok(())
    }

    /// Before a decision: whom it may release.
    fn check_releases(&self, after: &Self, observed: &Observed, moves: &[Move]) -> Result<(), TestCaseError> {
        let released: Vec<Uuid> = moves
            .iter()
            .filter_map(|of| if let Move::Release { cluster, .. } = of { Some(*cluster) } else { None })
            .collect();
        prop_assert!(
            after.rollout.clock.saturating_sub(self.rollout.clock) <= Duration::from_secs(10),
            "time has jumped"
        );
        for seen in &observed.clusters {
            let is_finished = moves.contains(&Move::Done { cluster: seen.id });
            let before = seen.turn.as_ref().and_then(|turn| turn.read_before);
            let works =
                seen.health.is_some_and(|read| Some(read.at) != before && read.state == Some(HealthState::Current));
            let is_done = seen.applied == Applied::Fully && (works || !self.spec.reads_health);
            prop_assert!(!is_finished || is_done, "it is not done");
        }
        if released.is_empty() {
            return Ok(());
        }
        let (rollout, forward) = (&after.rollout, after.rollout.state == RolloutPhase::Running);
        prop_assert!(self.rollout.state.is_running() && !self.rollout.must_begin(), "released after a stop");
        prop_assert!(self.is_free(), "released although it was not checked, or is held");
        prop_assert_eq!((rollout.number, rollout.goal), (self.rollout.number, self.rollout.goal));
        let waves = assign(SYNCSET, &self.spec, &observed.clusters);
        for (seen, wave) in observed.clusters.iter().zip(&waves).filter(|(seen, _)| released.contains(&seen.id)) {
            prop_assert!(!seen.is_away, "released one that is away");
            prop_assert!(!forward || *wave <= rollout.wave, "released one of a later wave");
            let had = seen.turn.as_ref().map(|turn| (turn.number, turn.revision));
            prop_assert_ne!(had, Some((rollout.number, rollout.goal)), "released twice");
        }
        let now = after.observe().clusters;
        let is_under_way = |seen: &&Seen| seen.turn.as_ref().is_some_and(|turn| after.is_under_way(seen, turn));
        // The way back does not wait for one that is paused.
        let under_way = now.iter().filter(is_under_way).filter(|seen| forward || !seen.is_paused).count();
        let counts = count(SYNCSET, &self.spec, &self.rollout, &observed.clusters);
        let size =
            if forward { counts.get(rollout.wave).map_or(0, |wave| wave.clusters) } else { observed.clusters.len() };
        let most = self.spec.max_concurrent.of(size).max(1);
        prop_assert!(under_way <= most, "{under_way} under way at once of {size}");
        // Of those that the rollout before has released, those of later waves do not count: this one's reach them later.
        let others = now.iter().zip(&waves).filter(|(_, wave)| !forward || **wave <= rollout.wave);
        let others = others.filter(|(seen, _)| after.changes_already(seen)).count();
        let mut begins = observed.clusters.iter().filter(|seen| released.contains(&seen.id));
        let is_none_new = begins.all(|seen| self.changes_already(seen));
        prop_assert!(is_none_new || under_way + others <= most, "{others} change beside {under_way}, of {size}");
        Ok(())
    }

    /// Before a decision: whether it may have begun the next wave.
    fn check_gate(&self, after: &Self, observed: &Observed) -> Result<(), TestCaseError> {
        let (wave, next) = (self.rollout.wave, after.rollout.wave);
        if after.rollout.number != self.rollout.number || next <= wave {
            return Ok(());
        }
        prop_assert_eq!(next, wave + 1);
        let waves = assign(SYNCSET, &self.spec, &observed.clusters);
        for (seen, of) in after.observe().clusters.iter().zip(&waves) {
            let turn = seen.turn.as_ref().filter(|turn| turn.number == after.rollout.number);
            match turn {
                Some(turn) => {
                    prop_assert!(!after.is_under_way(seen, turn), "the next wave began before all were settled");
                    let soak = self.spec.waves.get(wave).map_or(Duration::ZERO, |wave| wave.soak);
                    let has_soaked = after.rollout.clock.saturating_sub(turn.released) >= soak;
                    let counts = turn.done && turn.wave == wave && turn.revision == after.rollout.goal;
                    prop_assert!(!counts || has_soaked, "not all have soaked");
                }
                None => prop_assert!(*of > wave || seen.is_away, "the next wave began without a cluster"),
            }
        }
        let spec = self.spec.waves.get(wave).expect("a wave before the last one");
        let had_turn = |seen: &Seen| seen.turn.as_ref().is_some_and(|turn| self.is_of_this(turn) && turn.wave == wave);
        let is_empty = !waves.contains(&wave) && !observed.clusters.iter().any(had_turn);
        prop_assert!(is_empty || !spec.pause || self.rollout.promoted > wave, "it was not promoted");
        if !is_empty && !spec.soak.is_zero() {
            let settled = self.rollout.settled.expect("it has settled before");
            prop_assert!(after.rollout.clock.saturating_sub(settled) >= spec.soak, "it has not soaked");
        }
        Ok(())
    }

    /// Before a decision: what all clusters have that can be reached, if it has ended the rollout.
    fn check_end(&self, after: &Self, observed: &Observed) -> Result<(), TestCaseError> {
        let has_ended = matches!(after.rollout.state, RolloutPhase::Complete | RolloutPhase::RolledBack);
        if !has_ended || after.rollout.state == self.rollout.state {
            return Ok(());
        }
        prop_assert_eq!(after.rollout.stable, Some(after.rollout.goal));
        let moves_nobody = self.rollout.stable == after.rollout.stable;
        prop_assert!(moves_nobody || !observed.clusters.is_empty(), "it has ended for clusters that it has not seen");
        for seen in observed.clusters.iter().filter(|seen| !seen.is_away) {
            let pin = seen.turn.as_ref().map(|turn| turn.revision).or(self.rollout.stable);
            prop_assert_eq!(pin, Some(after.rollout.goal), "it has ended without a cluster");
        }
        Ok(())
    }

    /// Whether something may be sent to a cluster that is new to it: only in a turn of the rollout that runs.
    fn check_beginning(&self, id: &Uuid) -> Result<(), TestCaseError> {
        if let Some(turn) = self.turns.get(id).filter(|_| !self.begun.contains(id)) {
            let moves = self.is_of_this(turn) && self.rollout.state.is_running();
            prop_assert!(moves, "{id} begins with {turn:?} while it is {:?}", self.rollout);
        }
        Ok(())
    }

    pub(in crate::syncset::plan) fn work(&mut self, id: Uuid) -> Result<(), TestCaseError> {
        // Each reading has a time of its own, whichever way the clock has jumped.
        self.now += Duration::from_millis(1);
        let (turn, pin) = (self.turns.get(&id), self.pin(id));
        let (is_stalled, may_delete) = (self.is_stalled, self.may_delete());
        let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.is_away() && !is_stalled) else { return Ok(()) };
        self.reached.insert(id);
        match pin {
            Some(pin) if node.matches => {
                node.work(pin, turn, self.now, may_delete);
                self.check_beginning(&id)?;
                self.begun.insert(id);
            }
            Some(_) => (node.applied, node.read) = (None, None),
            None => {}
        }
        Ok(())
    }

    /// A pass has begun and was killed.
    pub(in crate::syncset::plan) fn interrupt(&mut self, id: Uuid, has_begun: bool) -> Result<(), TestCaseError> {
        self.reached.insert(id);
        if has_begun {
            self.check_beginning(&id)?;
            self.begun.insert(id);
        }
        Ok(())
    }

    /// The revision to which a cluster is pinned.
    pub(in crate::syncset::plan) fn pin(&self, id: Uuid) -> Option<i32> {
        self.turns.get(&id).map(|turn| turn.revision).or(self.rollout.stable)
    }

    fn work_all(&mut self) -> Result<(), TestCaseError> {
        self.nodes.keys().copied().collect::<Vec<_>>().into_iter().try_for_each(|id| self.work(id))
    }

    fn id(&self, node: usize) -> Option<Uuid> {
        self.nodes.keys().nth(node % self.nodes.len().max(1)).copied()
    }

    fn node(&mut self, node: usize) -> Option<&mut Node> {
        let id = self.id(node)?;
        self.nodes.get_mut(&id)
    }

    fn command(&mut self, command: impl FnOnce(Rollout, &[i32]) -> Result<Rollout, Refused>) {
        if let Ok(rollout) = command(self.rollout.clone(), &self.kept) {
            self.rollout = rollout;
            self.version += 1;
        }
    }

    /// The same of a command after which nobody moves as before.
    fn stop(&mut self, command: impl FnOnce(Rollout, &[i32]) -> Result<Rollout, Refused>) {
        let version = self.version;
        self.command(command);
        if self.version > version {
            self.take_all_back();
        }
    }

    /// Writes the document with another rollout. Other waves begin at the first one, as `towline_revise` says.
    fn respecify(&mut self, spec: &Spec) {
        let has_other_waves = self.spec.waves != spec.waves;
        self.spec = spec.clone();
        let rollout = &mut self.rollout;
        if !has_other_waves || !matches!(rollout.state, RolloutPhase::Running | RolloutPhase::Stopped) {
            return;
        }
        (rollout.wave, rollout.settled, rollout.checking) = (0, None, None);
        (rollout.promoted, rollout.tolerated, rollout.failures) = (0, 0, 0);
        if rollout.state == RolloutPhase::Running {
            (rollout.reason, rollout.message) = (ProgressReason::Releasing, String::new());
        }
        self.version += 1;
    }

    pub(in crate::syncset::plan) fn happen(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match event {
            Event::Tick(seconds) => self.tick(Duration::from_secs(*seconds))?,
            Event::LostTick => drop(self.decide(Duration::from_secs(1))),
            Event::TickTwice => {
                let (version, second) = (self.version, self.decide(Duration::from_secs(1)));
                self.tick(Duration::from_secs(1))?;
                if self.version == version {
                    self.write(second.0, &second.1)?;
                }
            }
            Event::Work(node) => self.id(*node).map_or(Ok(()), |id| self.work(id))?,
            Event::WorkAll => self.work_all()?,
            Event::Edit(revision) if *revision != self.rollout.newest => {
                self.kept.extend((!self.kept.contains(revision)).then_some(*revision));
                (self.rollout.newest, self.rollout.edited) = (*revision, self.rollout.edited + 1);
                self.version += 1;
            }
            Event::Respecify(spec) => self.respecify(spec),
            Event::Relabel(node, labels) => self.node(*node).into_iter().for_each(|node| node.labels = *labels),
            Event::Join(labels) => {
                let id = Uuid::from_u128(self.nodes.len() as u128 + 1);
                self.nodes.insert(id, Node::new(*labels));
            }
            Event::Leave(node) => self.node(*node).into_iter().for_each(|node| node.matches = !node.matches),
            Event::Answer(node) => {
                let is_there = |id: &Uuid| self.nodes.get(id).is_some_and(|node| !node.is_away());
                self.reached.extend(self.id(*node).filter(is_there));
            }
            Event::SetSilent(node, is) => self.node(*node).into_iter().for_each(|node| node.is_silent = *is),
            Event::Hang(node) => {
                let id = self.id(*node).filter(|_| !self.is_stalled);
                if let Some((id, node)) =
                    id.and_then(|id| Some((id, self.nodes.get_mut(&id)?))).filter(|(_, node)| !node.is_away())
                {
                    node.is_silent = true;
                    self.reached.insert(id);
                    if node.matches {
                        self.check_beginning(&id)?;
                        self.begun.insert(id);
                    }
                }
            }
            Event::Stall(is) => self.is_stalled = *is,
            Event::SetPaused(node, is) => self.node(*node).into_iter().for_each(|node| node.is_paused = *is),
            Event::SetFate(node, revision, fate) => {
                if let Some(of) = self.node(*node).and_then(|node| node.fates.get_mut(*revision)) {
                    *of = *fate;
                }
            }
            Event::JumpClock(seconds) => {
                self.now += jiff::SignedDuration::from_secs(*seconds);
                self.nodes.values_mut().for_each(|node| node.is_late |= *seconds > 0);
            }
            Event::Hold(is_held) => self.is_held = *is_held,
            Event::Aside(is_aside) => self.is_aside = *is_aside,
            Event::Guard if !self.rollout.must_begin() => self.rollout.guarded = true,
            Event::Restore if self.rollout.state.is_running() => {
                let Rollout { state, reason, guarded, .. } = &mut self.rollout;
                (*state, *reason, *guarded) = (RolloutPhase::Stopped, ProgressReason::Restored, false);
                self.take_all_back();
            }
            Event::Edit(_) | Event::Guard | Event::Restore => {}
            Event::Pause => self.stop(|rollout, _| rollout.pause()),
            Event::Resume => self.command(|rollout, _| rollout.resume()),
            Event::Promote => self.command(|rollout, _| rollout.promote()),
            Event::Abort => self.stop(|rollout, _| rollout.abort()),
            Event::Undo(to) => self.stop(|rollout, kept| rollout.undo(*to, kept)),
        }
        Ok(())
    }

    /// From now on everything works, all clusters can be reached, and whatever waits for somebody gets what it waits for.
    pub(in crate::syncset::plan) fn heal(&mut self) {
        (self.is_held, self.is_aside, self.is_stalled) = (false, false, false);
        if self.nodes.values().all(|node| !node.matches) {
            self.nodes.insert(Uuid::from_u128(self.nodes.len() as u128 + 1), Node::new(0));
        }
        for node in self.nodes.values_mut() {
            (node.is_silent, node.is_paused, node.fates) = (false, false, [Fate::Works; 3]);
        }
        if let Some(node) = self.nodes.values_mut().find(|node| node.matches) {
            node.labels = u8::MAX;
        }
    }

    pub(in crate::syncset::plan) fn has_ended(&self) -> bool {
        matches!(self.rollout.state, RolloutPhase::Complete | RolloutPhase::RolledBack) && !self.rollout.must_begin()
    }

    /// Whatever it waits for comes, and time passes.
    pub(in crate::syncset::plan) fn go_on(&mut self) -> Result<(), TestCaseError> {
        match (self.rollout.state, self.rollout.reason) {
            (RolloutPhase::Stopped, ProgressReason::Aborted) => {
                self.stop(|rollout, _| rollout.undo(None, &[1, 2, 3, 4]));
            }
            (RolloutPhase::Stopped, _) => self.command(|rollout, _| rollout.resume()),
            _ => self.command(|rollout, _| rollout.promote()),
        }
        if self.rollout.reason == ProgressReason::Aborted {
            self.happen(&Event::Edit(self.rollout.newest % 4 + 1))?;
        }
        self.happen(&Event::Guard)?;
        self.tick(Duration::from_secs(10))
    }

    fn run_to_the_end(&mut self) -> Result<(), TestCaseError> {
        for round in 0..LONGEST_END {
            if self.has_ended() {
                break;
            }
            self.work_all()?;
            // By then all health has been read again that was late or had failed.
            let counts = count(SYNCSET, &self.spec, &self.rollout, &self.observe().clusters);
            let failed: usize = counts.iter().map(|wave| wave.failed).sum();
            prop_assert!(
                round <= 3 || failed == 0,
                "{failed} have failed, though everything works: {:?}",
                self.rollout
            );
            self.go_on()?;
        }
        prop_assert!(self.has_ended(), "it has not ended: {:?} of {:?}", self.rollout, self.spec);
        self.work_all()?;
        for (id, node) in self.nodes.iter().filter(|(_, node)| node.matches) {
            prop_assert_eq!(node.applied, Some((self.rollout.goal, Applied::Fully)), "{}", id);
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn whatever_happens_a_rollout_moves_only_whom_it_may_and_comes_to_an_end(
        spec in spec(),
        labels in prop::collection::vec(0..8_u8, 0..8),
        has_stable in any::<bool>(),
        events in prop::collection::vec(event(), 0..120),
    ) {
        let mut model = Model::new(spec, &labels, has_stable);
        for event in &events {
            model.happen(event)?;
        }
        model.heal();
        model.run_to_the_end()?;
    }

    #[test]
    fn every_cluster_is_in_the_first_wave_that_takes_it(
        spec in spec(),
        labels in prop::collection::vec(0..8_u8, 0..40),
    ) {
        let model = Model::new(spec, &labels, true);
        let clusters = model.observe().clusters;
        let waves = assign(SYNCSET, &model.spec, &clusters);
        prop_assert_eq!(waves.len(), clusters.len());
        for (seen, of) in clusters.iter().zip(&waves) {
            for (index, wave) in model.spec.waves.iter().enumerate() {
                let selects = matches!(wave.takes, Takes::Selected(_)) && seen.selected.get(index) == Some(&true);
                prop_assert!(!selects || *of <= index, "an earlier wave would have taken it");
                prop_assert!(*of != index || selects || matches!(wave.takes, Takes::Percent(_)));
            }
        }
        for (index, wave) in model.spec.waves.iter().enumerate() {
            let Takes::Percent(percent) = wave.takes else { continue };
            let share = usize::try_from((clusters.len() as u64 * percent).div_ceil(100)).unwrap_or(usize::MAX);
            let before = waves.iter().filter(|of| **of < index).count();
            prop_assert_eq!(waves.iter().filter(|of| **of <= index).count(), share.max(before));
        }
        let reversed: Vec<Seen> = clusters.iter().rev().cloned().collect();
        let again: Vec<usize> = assign(SYNCSET, &model.spec, &reversed).into_iter().rev().collect();
        prop_assert_eq!(again, waves, "the order in which clusters are read makes no difference");
    }
}
