//! What people ask of a rollout. Each command is for certain states, and refused in all others.

use std::time::Duration;

use super::{ProgressReason, Rollout, RolloutPhase};

/// Why a command is refused. The message says what is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the rollout is {}, and only {allowed} can be {done}", told(*.state, *.reason))]
    State { state: RolloutPhase, reason: ProgressReason, done: &'static str, allowed: &'static str },
    #[error("there is no stable revision to go back to: the first content has not reached all clusters yet")]
    NoStable,
    #[error("all clusters have the stable revision {0} already: name another one that is kept")]
    AtStable(i32),
    #[error("revision {0} is not kept")]
    NotKept(i32),
}

fn told(state: RolloutPhase, reason: ProgressReason) -> String {
    let (state, reason) = (state.as_str(), reason.as_str());
    if reason.is_empty() { state.to_owned() } else { format!("{state} ({reason})") }
}

impl Rollout {
    /// Nobody moves until it is resumed. One that is about to begin can be paused, too.
    pub fn pause(mut self) -> Result<Self, Refused> {
        if !self.state.is_running() && !self.must_begin() {
            return Err(self.refused("paused", "one that runs or rolls back"));
        }
        self.stop(ProgressReason::Paused, String::new());
        Ok(self)
    }

    /// Goes on where it was. What has failed so far does not stop it again, unless its waves are changed.
    pub fn resume(mut self) -> Result<Self, Refused> {
        let may_be =
            matches!(self.reason, ProgressReason::Paused | ProgressReason::Failures | ProgressReason::Restored);
        if self.state != RolloutPhase::Stopped || !may_be {
            return Err(self.refused("resumed", "one that was paused, has stopped after failures, or was restored"));
        }
        // That of an edit that has waited begins now, whichever way the one before it led.
        let is_edited = self.started < self.edited;
        let is_back = !is_edited && self.is_going_back();
        self.state = if is_back { RolloutPhase::RollingBack } else { RolloutPhase::Running };
        self.reason = if is_edited { ProgressReason::Guarding } else { ProgressReason::Releasing };
        self.message = String::new();
        self.tolerated = self.failures;
        Ok(self)
    }

    /// Lets the next wave begin.
    pub fn promote(mut self) -> Result<Self, Refused> {
        if self.must_begin() || (self.state, self.reason) != (RolloutPhase::Running, ProgressReason::AwaitingPromotion)
        {
            return Err(self.refused("promoted", "one that waits for it"));
        }
        self.promoted = self.wave.saturating_add(1);
        Ok(self)
    }

    /// Ends it: clusters stay at what they have until the syncset is edited, or undone.
    pub fn abort(mut self) -> Result<Self, Refused> {
        let is_stopped = self.state == RolloutPhase::Stopped && self.reason != ProgressReason::Aborted;
        if !self.state.is_running() && !is_stopped && self.started == self.edited {
            return Err(self.refused("aborted", "one that has not ended"));
        }
        self.started = self.edited;
        self.stop(ProgressReason::Aborted, String::new());
        Ok(self)
    }

    /// Goes back to the stable revision, or to another one of those that are kept. To the newest one it goes in waves, as after an edit.
    pub fn undo(mut self, to: Option<i32>, kept: &[i32]) -> Result<Self, Refused> {
        let stable = self.stable.ok_or(Refused::NoStable)?;
        let has_ended =
            matches!(self.state, RolloutPhase::Complete | RolloutPhase::RolledBack) && self.started == self.edited;
        let to = to.unwrap_or(stable);
        if !kept.contains(&to) {
            return Err(Refused::NotKept(to));
        }
        if has_ended && to == stable {
            return Err(Refused::AtStable(stable));
        }
        if to == self.newest {
            self.begin();
        } else {
            self.begin_back(to);
        }
        Ok(self)
    }

    /// Whether it leads back, also while it is stopped.
    pub(super) fn is_going_back(&self) -> bool {
        self.goal != self.newest || self.stable == Some(self.goal)
    }

    /// Whether the syncset was edited, and the rollout of that has to begin. Whoever has paused one is not overtaken by an edit.
    pub fn must_begin(&self) -> bool {
        let waits = self.state == RolloutPhase::Stopped
            && matches!(self.reason, ProgressReason::Paused | ProgressReason::Restored);
        self.started < self.edited && !waits
    }

    /// Begins the rollout of the newest revision, from the first wave. Clusters keep what they have until their turn.
    pub(super) fn begin(&mut self) {
        self.restart(self.newest);
        self.state = if self.is_going_back() { RolloutPhase::RollingBack } else { RolloutPhase::Running };
    }

    /// Begins to move all clusters back.
    pub(super) fn begin_back(&mut self, goal: i32) {
        self.restart(goal);
        self.state = RolloutPhase::RollingBack;
    }

    fn restart(&mut self, goal: i32) {
        let Self { newest, edited, stable, number, .. } = *self;
        *self = Self {
            newest,
            edited,
            started: edited,
            number: number.saturating_add(1),
            stable,
            goal,
            state: RolloutPhase::Running,
            reason: ProgressReason::Guarding,
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
    }

    pub(super) fn stop(&mut self, reason: ProgressReason, message: String) {
        (self.state, self.reason, self.message) = (RolloutPhase::Stopped, reason, message);
    }

    fn refused(&self, done: &'static str, allowed: &'static str) -> Refused {
        let now = if self.must_begin() {
            (RolloutPhase::Running, ProgressReason::Guarding)
        } else {
            (self.state, self.reason)
        };
        Refused::State { state: now.0, reason: now.1, done, allowed }
    }
}
