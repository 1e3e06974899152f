//! What happens to workers: they are killed and frozen.

use integration::soak::Random;

use crate::chaos::fleet::Fleet;

/// What has happened, and is to happen.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    pub(crate) killed: u32,
    pub(crate) frozen: u32,
    /// Frozen workers, and at which round each is thawed.
    thaw: Vec<(usize, u64)>,
}

/// The longest that a worker is frozen, in rounds.
const LONGEST: u64 = 90;

impl Incidents {
    /// Perhaps something happens in this round.
    pub(crate) async fn happen(&mut self, fleet: &mut Fleet, round: u64, random: &mut Random) {
        self.thaw_until(fleet, round);
        let worker = random.index(fleet.workers.len());
        let is_frozen = self.thaw.iter().any(|(frozen, _)| *frozen == worker);
        match random.below(10) {
            0 => {
                self.thaw.retain(|(frozen, _)| *frozen != worker);
                fleet.restart(worker).await;
                self.killed += 1;
            }
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
