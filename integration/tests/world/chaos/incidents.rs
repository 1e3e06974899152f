//! What happens to workers, one of which is the dispatcher: they are killed and frozen.

use integration::soak::Random;

use crate::chaos::fleet::Fleet;

/// What has happened, and is to happen.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    pub(crate) killed: u32,
    /// How many of these were the dispatcher.
    pub(crate) dispatchers: u32,
    pub(crate) frozen: u32,
    /// Frozen workers, and at which round each is thawed.
    thaw: Vec<(usize, u64)>,
}

/// The longest that a worker is frozen, in rounds.
const LONGEST: u64 = 90;
/// In rounds.
const DISPATCHER_DIES_EVERY: u64 = 8;
/// In this round a worker is frozen whatever the lots say, if none is.
const FREEZES_AT: u64 = 1;

impl Incidents {
    /// Perhaps something happens in this round.
    pub(crate) async fn happen(&mut self, fleet: &mut Fleet, round: u64, random: &mut Random) {
        self.thaw_until(fleet, round);
        let worker = random.index(fleet.workers.len());
        let is_frozen = self.thaw.iter().any(|(frozen, _)| *frozen == worker);
        if round.is_multiple_of(DISPATCHER_DIES_EVERY) {
            let dispatcher = fleet.dispatcher().await;
            self.kill(fleet, dispatcher).await;
            self.dispatchers += 1;
        }
        let lot = if round == FREEZES_AT { 1 } else { random.below(10) };
        match lot {
            0 => self.kill(fleet, worker).await,
            // One goes on working.
            1 | 2 if !is_frozen && self.thaw.len() + 1 < fleet.workers.len() => {
                fleet.workers[worker].freeze().unwrap();
                let longest = if random.below(2) == 0 { 10 } else { LONGEST };
                self.thaw.push((worker, round + 1 + random.below(longest)));
                self.frozen += 1;
            }
            _ => {}
        }
    }

    /// Thaws the dispatcher if it is frozen: otherwise half a minute passes until another one moves rollouts on.
    pub(crate) async fn thaw_dispatcher(&mut self, fleet: &mut Fleet) {
        let dispatcher = fleet.dispatcher().await;
        let is_frozen = self.thaw.iter().any(|(frozen, _)| *frozen == dispatcher);
        self.thaw.retain(|(frozen, _)| *frozen != dispatcher);
        if is_frozen {
            fleet.thaw(dispatcher);
        }
    }

    pub(crate) async fn kill(&mut self, fleet: &mut Fleet, worker: usize) {
        self.thaw.retain(|(frozen, _)| *frozen != worker);
        fleet.restart(worker).await;
        self.killed += 1;
    }

    /// Thaws all.
    pub(crate) fn end(&mut self, fleet: &mut Fleet) {
        self.thaw_until(fleet, u64::MAX);
    }

    fn thaw_until(&mut self, fleet: &mut Fleet, round: u64) {
        self.thaw.retain(|(worker, at)| {
            let is_over = *at <= round;
            if is_over {
                fleet.thaw(*worker);
            }
            !is_over
        });
    }
}
