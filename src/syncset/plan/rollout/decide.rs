//! What a rollout does next.
//!
//! A wave goes like this. Its clusters are released, a few at a time, until each is done or has failed ([`Step::release`]). If too many
//! have failed, the rollout stops or goes back ([`Step::fail`]). Once all are settled, the wave soaks, the health of all that are done is
//! read again, and somebody may have to promote it ([`Step::pass_gate`]). Then the next wave begins. Going back has no waves.
//!
//! A cluster that was released, and to which nothing has come yet, gets back what it had as soon as it should not move: when it misses its
//! turn, and whenever the rollout stops, goes back or begins anew.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Applied, Move, Observed, OnFailure, ProgressReason, Rollout, RolloutPhase, Seen, Spec, Takes, Turn};
use crate::syncset::plan::health::HealthState;

/// Most time that counts between two decisions: nothing expires because nobody was there to decide.
const LONGEST_TICK: Duration = Duration::from_secs(10);
/// Most clusters whose health is refreshed by one decision.
const MOST_REFRESHED: usize = 10;

/// What a rollout does next, after so much time in which it ran: its new state, and what changes for clusters. `syncset` is the id.
pub fn decide(
    syncset: Uuid,
    spec: &Spec,
    rollout: &Rollout,
    observed: &Observed,
    elapsed: Duration,
) -> (Rollout, Vec<Move>) {
    let mut rollout = rollout.clone();
    if rollout.must_begin() {
        rollout.begin();
        let is_at_goal = |seen: &Seen| seen.turn.as_ref().is_none_or(|turn| turn.revision == rollout.goal);
        let is_seen = !observed.clusters.is_empty();
        if rollout.stable == Some(rollout.goal) && is_seen && observed.clusters.iter().all(is_at_goal) {
            return end(rollout, RolloutPhase::Complete, Vec::new());
        }
        return (rollout, vec![Move::TakeBack]);
    }
    if !rollout.state.is_running() {
        return (rollout, Vec::new());
    }
    let mut moves: Vec<Move> = observed.gone.iter().map(|cluster| Move::Leave { cluster: *cluster }).collect();
    // With a mistyped selector a syncset is for nobody: that is no reason to have done with all waves, nor to have another stable revision.
    let moves_nobody = rollout.state == RolloutPhase::RollingBack && rollout.stable == Some(rollout.goal);
    if observed.clusters.is_empty() && !moves_nobody {
        rollout.reason = ProgressReason::EmptyWave;
        if rollout.state == RolloutPhase::Running {
            "the syncset is for no cluster".clone_into(&mut rollout.message);
        }
        return (rollout, moves);
    }
    // Deletions wait until the guard has decided, so no cluster can be done before.
    let waits_for_guard = !rollout.guarded || observed.is_aside || observed.is_held;
    let elapsed = if waits_for_guard { Duration::ZERO } else { elapsed.min(LONGEST_TICK) };
    rollout.clock += elapsed;
    rollout.wave = rollout.wave.min(spec.waves.len());
    let waves = assign(syncset, spec, &observed.clusters);
    let clusters = observed.clusters.iter().zip(waves).map(|(seen, wave)| Cluster::of(seen, wave, spec, &rollout));
    let clusters: Vec<Cluster> = clusters.collect();
    let missed = clusters.iter().filter(|cluster| cluster.has_missed_turn);
    moves.extend(missed.map(|cluster| Move::Leave { cluster: cluster.seen.id }));
    let mut step = Step { spec, rollout, clusters, moves };
    step.finish_turns();
    step.leave_out_waits(elapsed);
    step.refresh();
    match step.rollout.state {
        RolloutPhase::RollingBack => step.go_back(observed),
        _ => step.go_on(observed),
    }
}

/// A rollout that has ended: all clusters have its goal.
fn end(mut rollout: Rollout, state: RolloutPhase, mut moves: Vec<Move>) -> (Rollout, Vec<Move>) {
    rollout.stable = Some(rollout.goal);
    (rollout.state, rollout.reason) = (state, ProgressReason::None);
    if state == RolloutPhase::Complete {
        rollout.message = String::new();
    }
    moves.push(Move::Settle);
    (rollout, moves)
}

/// The wave of each cluster: the first one that takes it. A percentage takes clusters in an order that is the syncset's own, and the same
/// each time.
pub(super) fn assign(syncset: Uuid, spec: &Spec, clusters: &[Seen]) -> Vec<usize> {
    let order = |seen: &Seen| Sha256::new().chain_update(syncset).chain_update(seen.id).finalize();
    let mut waves: Vec<Option<usize>> = vec![None; clusters.len()];
    let mut ordered: Vec<usize> = (0..clusters.len()).collect();
    if spec.waves.iter().any(|wave| matches!(wave.takes, Takes::Percent(_))) {
        ordered.sort_by_cached_key(|index| clusters.get(*index).map(order));
    }
    for (number, wave) in spec.waves.iter().enumerate() {
        let mut room = match &wave.takes {
            Takes::Selected(_) => usize::MAX,
            Takes::Percent(percent) => {
                let share = (clusters.len() as u64).saturating_mul(*percent).div_ceil(100);
                let taken = waves.iter().flatten().count();
                usize::try_from(share).unwrap_or(usize::MAX).saturating_sub(taken)
            }
        };
        for index in &ordered {
            let (Some(seen), Some(of)) = (clusters.get(*index), waves.get_mut(*index)) else { continue };
            let is_taken = match &wave.takes {
                Takes::Selected(_) => seen.selected.get(number) == Some(&true),
                Takes::Percent(_) => true,
            };
            if of.is_none() && is_taken && room > 0 {
                *of = Some(number);
                room -= 1;
            }
        }
    }
    waves.into_iter().map(|wave| wave.unwrap_or(spec.waves.len())).collect()
}

/// A cluster in one decision.
struct Cluster<'s> {
    seen: &'s Seen,
    wave: usize,
    /// Its turn in the present rollout. One of an earlier rollout only says what it has.
    turn: Option<Turn>,
    /// Whether it has the goal without a turn.
    is_at_goal: bool,
    /// Whether it is away although its turn has begun, or its wave has yet to begin, and nothing of the turn has come to it: it has another
    /// one later, like those that were never released.
    has_missed_turn: bool,
}

impl<'s> Cluster<'s> {
    fn of(seen: &'s Seen, wave: usize, spec: &Spec, rollout: &Rollout) -> Self {
        let of_this = |turn: &&Turn| turn.number == rollout.number && turn.revision == rollout.goal;
        let is_at_goal = seen.turn.is_none() && rollout.stable == Some(rollout.goal);
        let mut turn = seen.turn.as_ref().filter(of_this).cloned();
        if let Some(turn) = &mut turn {
            // Waves may have been taken out since.
            turn.wave = turn.wave.min(spec.waves.len());
        }
        let is_early = rollout.state == RolloutPhase::Running && wave > rollout.wave;
        let is_missed = (seen.was_silent || seen.is_paused || is_early) && !seen.has_begun;
        let has_missed_turn = is_missed && turn.as_ref().is_some_and(|turn| !turn.done);
        Self { seen, wave, turn: turn.filter(|_| !has_missed_turn), is_at_goal, has_missed_turn }
    }

    fn is_done(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.done)
    }

    /// Whether it was released by a rollout before this one, and was not done then.
    fn changes_already(&self) -> bool {
        let is_open = |turn: &Turn| !turn.done && turn.number != Turn::LEFT;
        self.turn.is_none() && !self.has_missed_turn && self.seen.turn.as_ref().is_some_and(is_open)
    }

    /// Whether it counts when a share of the wave is meant: once it has had its turn, its wave stays the one that ran then.
    fn counts_in(&self, wave: usize) -> bool {
        self.turn.as_ref().map_or(self.wave, |turn| turn.wave) == wave
    }

    /// Whether the wave waits for it, soaks and is promoted for it: also if its labels have changed since its turn.
    fn is_member_of(&self, wave: usize) -> bool {
        self.wave == wave || self.counts_in(wave)
    }

    /// Its health in a reading that counts.
    fn health(&self) -> Option<HealthState> {
        let before = self.turn.as_ref()?.read_before;
        self.seen.health.filter(|reading| Some(reading.at) != before)?.state
    }

    /// Whether it has had its turn, and has failed.
    fn has_failed(&self, spec: &Spec, rollout: &Rollout) -> bool {
        let Some(turn) = &self.turn else { return false };
        let is_late = |since: Duration| rollout.clock.saturating_sub(since) > spec.within;
        let is_unhealthy = spec.reads_health && self.health() == Some(HealthState::Failed);
        let is_unchecked = rollout.checking.is_some_and(is_late) && self.is_unchecked(rollout);
        self.seen.applied == Applied::Never || is_unhealthy || (!turn.done && is_late(turn.released)) || is_unchecked
    }

    /// Whether its health is read again at the end of the soak. What is paused, or has become silent long after its turn, is not asked.
    fn is_asked(&self, rollout: &Rollout) -> bool {
        let is_there = |turn: &Turn| !self.seen.is_paused && (turn.wave == rollout.wave || !self.seen.is_away);
        let is_asked = |turn: &Turn| turn.done && turn.read_before.is_some() && is_there(turn);
        rollout.checking.is_some() && self.turn.as_ref().is_some_and(is_asked)
    }

    fn is_unchecked(&self, rollout: &Rollout) -> bool {
        self.is_asked(rollout) && self.health() != Some(HealthState::Current)
    }
}

/// A decision under way.
struct Step<'s> {
    spec: &'s Spec,
    rollout: Rollout,
    clusters: Vec<Cluster<'s>>,
    moves: Vec<Move>,
}

impl Step<'_> {
    /// Notes who is done.
    fn finish_turns(&mut self) {
        for cluster in &mut self.clusters {
            let works = !self.spec.reads_health || cluster.health() == Some(HealthState::Current);
            let Some(turn) = cluster.turn.as_mut().filter(|turn| !turn.done) else { continue };
            if cluster.seen.applied == Applied::Fully && works {
                (turn.done, turn.read_before) = (true, None);
                // The wave soaks anew for one that is late. One that comes and goes puts nothing off.
                if turn.wave == self.rollout.wave {
                    (self.rollout.settled, self.rollout.checking) = (None, None);
                }
                self.moves.push(Move::Done { cluster: cluster.seen.id });
            }
        }
    }

    /// Leaves out the time in which clusters have waited for a worker, or were paused: that is no failure of theirs.
    fn leave_out_waits(&mut self, elapsed: Duration) {
        let mut longest = Duration::ZERO;
        for cluster in
            self.clusters.iter_mut().filter(|cluster| cluster.seen.is_paused || !cluster.seen.queued.is_zero())
        {
            let waited = if cluster.seen.is_paused { elapsed } else { cluster.seen.queued.min(elapsed) };
            if cluster.is_unchecked(&self.rollout) {
                longest = longest.max(waited);
            }
            if let Some(turn) = cluster.turn.as_mut().filter(|turn| !turn.done) {
                turn.released += waited;
                self.moves.push(Move::Wait { cluster: cluster.seen.id, released: turn.released });
            }
        }
        self.rollout.checking = self.rollout.checking.map(|since| since + longest);
    }

    /// Has health read again that is final by the database's clock and not by the rollout's, which may have stood still: what works by now is
    /// done, whatever was read of it. First what was read the longest ago.
    fn refresh(&mut self) {
        let is_awaited = |cluster: &&Cluster| {
            let is_open = cluster.turn.as_ref().is_some_and(|turn| !turn.done) || cluster.is_asked(&self.rollout);
            let is_final = cluster.seen.health.is_some_and(|reading| reading.is_final);
            is_open && is_final && cluster.seen.applied == Applied::Fully && !cluster.seen.is_away
        };
        let mut awaited: Vec<&Seen> = self.clusters.iter().filter(is_awaited).map(|cluster| cluster.seen).collect();
        awaited.sort_by_key(|seen| seen.health.map(|reading| reading.at));
        let refresh = awaited.into_iter().take(MOST_REFRESHED).map(|seen| Move::Refresh { cluster: seen.id });
        let moves: Vec<Move> = refresh.filter(|_| self.spec.reads_health).collect();
        self.moves.extend(moves);
    }

    fn go_on(mut self, observed: &Observed) -> (Rollout, Vec<Move>) {
        if self.fail() {
            return (self.rollout, self.moves);
        }
        let wave = self.rollout.wave;
        if self.is_guarded(observed) || self.release(self.size(), |cluster| cluster.wave <= wave) || !self.pass_gate() {
            return (self.rollout, self.moves);
        }
        if wave >= self.spec.waves.len() {
            return end(self.rollout, RolloutPhase::Complete, self.moves);
        }
        let Rollout { settled, checking, failures, tolerated, .. } = &mut self.rollout;
        (*settled, *checking, *failures, *tolerated) = (None, None, 0, 0);
        self.rollout.wave = wave + 1;
        self.wait(ProgressReason::Releasing, String::new());
        (self.rollout, self.moves)
    }

    fn go_back(mut self, observed: &Observed) -> (Rollout, Vec<Move>) {
        let failures = self.clusters.iter().filter(|cluster| self.has_failed(cluster)).count();
        self.rollout.failures = failures;
        if self.is_guarded(observed) || self.release(self.clusters.len(), |_| true) {
            return (self.rollout, self.moves);
        }
        if failures > 0 {
            let before = match self.rollout.message.as_str() {
                "" => String::new(),
                message => format!("{message}; "),
            };
            self.rollout.message = format!("{before}{failures} failed on the way back");
        }
        // An edit back to what was there before leaves nothing to be corrected.
        let state =
            if self.rollout.goal == self.rollout.newest { RolloutPhase::Complete } else { RolloutPhase::RolledBack };
        end(self.rollout, state, self.moves)
    }

    /// Counts the failures of the wave. Returns whether they are too many: then the rollout has stopped, or goes back from now on.
    fn fail(&mut self) -> bool {
        let (wave, rollout) = (self.rollout.wave, &self.rollout);
        let counts = |cluster: &&Cluster| {
            let is_of_wave = cluster.turn.as_ref().is_some_and(|turn| turn.wave == wave);
            (is_of_wave || cluster.is_asked(rollout)) && self.has_failed(cluster)
        };
        let failed: Vec<&Cluster> = self.clusters.iter().filter(counts).collect();
        let failures = failed.len();
        let size = self.size();
        let allowed = self.spec.max_failures.of(size);
        let goes_on = failures <= allowed.max(rollout.tolerated);
        let was_sent_nothing = |cluster: &&&Cluster| !cluster.seen.has_begun && cluster.seen.applied == Applied::Not;
        let sent_nothing = match failed.iter().filter(was_sent_nothing).count() {
            0 => String::new(),
            count => format!("; nothing was sent to {count} of these"),
        };
        self.rollout.failures = failures;
        if goes_on {
            return false;
        }
        self.moves.push(Move::TakeBack);
        let name = self.spec.wave_name(wave);
        // Those of earlier waves count whose health is read again.
        let is_counted = |cluster: &&Cluster| cluster.counts_in(wave) || cluster.is_asked(&self.rollout);
        let counted = self.clusters.iter().filter(is_counted).count();
        let message =
            format!("{failures} of {counted} clusters failed in wave {name}, where {allowed} may{sent_nothing}");
        match (self.spec.on_failure, self.rollout.stable) {
            (OnFailure::Rollback, Some(stable)) => {
                self.rollout.begin_back(stable);
                self.rollout.message = message;
            }
            (OnFailure::Rollback, None) => {
                let message = format!("{message}; there is no stable revision to go back to");
                self.rollout.stop(ProgressReason::Failures, message);
            }
            (OnFailure::Pause, _) => self.rollout.stop(ProgressReason::Failures, message),
        }
        true
    }

    /// Whether the guard keeps clusters from having their turns.
    fn is_guarded(&mut self, observed: &Observed) -> bool {
        match (self.rollout.guarded && !observed.is_aside, observed.is_held) {
            (true, false) => return false,
            (false, _) => self.wait(ProgressReason::Guarding, String::new()),
            (true, true) => self.wait(ProgressReason::Held, "the guard holds what it would delete".to_owned()),
        }
        true
    }

    /// Gives as many of these clusters their turns as may be under way at once, of so many. Returns whether some are under way, or still
    /// have to be.
    fn release(&mut self, of: usize, may_have_turn: impl Fn(&Cluster) -> bool) -> bool {
        let most = self.spec.max_concurrent.of(of).max(1);
        // Going back does not wait for those that are away, and one that is paused does not keep its place.
        let is_back = self.rollout.state == RolloutPhase::RollingBack;
        let is_under_way = |cluster: &&Cluster| {
            cluster.turn.is_some() && !self.is_settled(cluster) && !(is_back && cluster.seen.is_paused)
        };
        let under_way: Vec<_> = self.clusters.iter().filter(is_under_way).collect();
        let is_waited_for = under_way.iter().any(|cluster| !is_back || !cluster.seen.is_away);
        let waits = |cluster: &&Cluster| {
            cluster.turn.is_none() && !cluster.is_at_goal && !cluster.seen.is_away && may_have_turn(cluster)
        };
        let mut waiting: Vec<&Cluster> = self.clusters.iter().filter(waits).collect();
        // Those that change already, since the rollout before has released them, come first: others only where these leave room.
        waiting.sort_by_key(|cluster| (!cluster.changes_already(), cluster.wave, cluster.seen.id));
        let paused = under_way.iter().filter(|cluster| cluster.seen.is_paused).count();
        let is_under_way = is_waited_for || !waiting.is_empty();
        waiting.truncate(most.saturating_sub(under_way.len()));
        self.moves.extend(waiting.into_iter().map(|cluster| Move::Release {
            cluster: cluster.seen.id,
            read_before: cluster.seen.health.map(|reading| reading.at),
        }));
        if is_under_way {
            // The check of the soak begins again afterwards, so that its deadline does not pass while it can't go on.
            self.rollout.checking = None;
            let message = match paused {
                0 => String::new(),
                1 => "a cluster was paused in its turn, and is waited for".to_owned(),
                paused => format!("{paused} clusters were paused in their turns, and are waited for"),
            };
            self.wait(ProgressReason::Releasing, message);
        }
        is_under_way
    }

    /// Whether the next wave may begin, now that nobody of this one is under way.
    fn pass_gate(&mut self) -> bool {
        let (index, wave) = (self.rollout.wave, self.spec.waves.get(self.rollout.wave));
        let mut members = self.clusters.iter().filter(|cluster| cluster.is_member_of(index)).peekable();
        let name = self.spec.wave_name(index).to_owned();
        if members.peek().is_none() {
            let is_selected = wave.is_some_and(|wave| matches!(wave.takes, Takes::Selected(_)));
            if !is_selected || self.clusters.iter().any(Cluster::is_done) {
                return true;
            }
            self.wait(ProgressReason::EmptyWave, format!("the selector of wave {name} matches no cluster"));
            return false;
        }
        // The last wave has no successor that would wait. That nobody answers at all is no end.
        let is_there = |cluster: &Cluster| cluster.is_done() && !cluster.seen.is_away;
        let is_enough = wave.is_none() && self.clusters.iter().any(is_there);
        if !is_enough && !members.any(|cluster| self.is_settled(cluster)) {
            self.wait(ProgressReason::Unreachable, format!("all clusters of wave {name} are paused or do not answer"));
            return false;
        }
        let Some(wave) = wave else { return true };
        let settled = *self.rollout.settled.get_or_insert(self.rollout.clock);
        if self.rollout.clock.saturating_sub(settled) < wave.soak {
            self.wait(ProgressReason::Soaking, String::new());
            return false;
        }
        if self.spec.reads_health && !wave.soak.is_zero() && !self.is_checked() {
            self.wait(ProgressReason::Checking, String::new());
            return false;
        }
        if wave.pause && self.rollout.promoted <= index {
            self.wait(ProgressReason::AwaitingPromotion, format!("wave {name} is done, and waits to be promoted"));
            return false;
        }
        true
    }

    /// Whether everybody who is done was found current in a reading that began after the soak.
    fn is_checked(&mut self) -> bool {
        let (clusters, rollout) = (self.clusters.iter(), &self.rollout);
        if rollout.checking.is_some() {
            let (mut is_open, mut was_asked) = (false, false);
            for cluster in clusters {
                is_open |= cluster.is_unchecked(rollout) && !self.has_failed(cluster);
                was_asked |= cluster.is_asked(rollout);
            }
            // Whoever promotes it later is not kept from it by what happens meanwhile.
            self.moves.extend((was_asked && !is_open).then_some(Move::Checked));
            return !is_open;
        }
        let asked = clusters.filter(|cluster| cluster.is_done() && !self.has_failed(cluster));
        let reread = |cluster: &Cluster| {
            cluster.seen.health.map(|reading| Move::Reread { cluster: cluster.seen.id, before: reading.at })
        };
        let asked: Vec<Move> = asked.filter_map(reread).collect();
        self.moves.extend(asked);
        self.rollout.checking = Some(self.rollout.clock);
        false
    }

    /// How many clusters the wave has.
    fn size(&self) -> usize {
        self.clusters.iter().filter(|cluster| cluster.counts_in(self.rollout.wave)).count()
    }

    /// While it goes back, the message says why.
    fn wait(&mut self, reason: ProgressReason, message: String) {
        self.rollout.reason = reason;
        if self.rollout.state != RolloutPhase::RollingBack {
            self.rollout.message = message;
        }
    }

    fn has_failed(&self, cluster: &Cluster) -> bool {
        cluster.has_failed(self.spec, &self.rollout)
    }

    fn is_settled(&self, cluster: &Cluster) -> bool {
        cluster.is_done() || self.has_failed(cluster)
    }
}

/// How far a wave is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub clusters: usize,
    /// Those that have had their turn. Each is done, or has failed, or is under way.
    pub released: usize,
    pub done: usize,
    pub failed: usize,
    /// Those that are paused or do not answer, and have not had their turn.
    pub away: usize,
}

/// How far each wave is, the last one of the clusters in no other included. Where a rollout goes back, the waves only say where clusters
/// would be. Once it has ended, nobody has a turn any more: then all that can be reached have had it, and what they are now counts.
pub fn count(syncset: Uuid, spec: &Spec, rollout: &Rollout, clusters: &[Seen]) -> Vec<Counts> {
    let has_ended = matches!(rollout.state, RolloutPhase::Complete | RolloutPhase::RolledBack) && !rollout.must_begin();
    let had_turn = |seen: &Seen, wave: usize| Turn {
        revision: rollout.goal,
        number: rollout.number,
        wave,
        released: rollout.clock,
        done: seen.applied == Applied::Fully,
        read_before: None,
    };
    let mut counts: BTreeMap<usize, Counts> = BTreeMap::new();
    for (seen, wave) in clusters.iter().zip(assign(syncset, spec, clusters)) {
        let mut cluster = Cluster::of(seen, wave, spec, rollout);
        if has_ended && !seen.is_away {
            cluster.turn = Some(had_turn(seen, wave));
        }
        let had_turn = cluster.turn.as_ref().filter(|_| !rollout.is_going_back());
        let counts = counts.entry(had_turn.map_or(wave, |turn| turn.wave)).or_default();
        let has_failed = cluster.has_failed(spec, rollout);
        counts.clusters += 1;
        counts.released += usize::from(cluster.turn.is_some());
        counts.failed += usize::from(has_failed);
        counts.done += usize::from(cluster.is_done() && !has_failed);
        counts.away += usize::from(cluster.turn.is_none() && seen.is_away);
    }
    (0..=spec.waves.len()).map(|wave| counts.get(&wave).copied().unwrap_or_default()).collect()
}
