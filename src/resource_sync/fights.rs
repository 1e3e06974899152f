//! What a reconciler does about fights: it leaves out what has to wait, counts rewrites and has the other writer named.

use std::time::Duration;

use tokio::time::Instant;

use super::contention::Effect;
use super::events::PairEvent;
use super::plan::Observed;
use super::reconcile::PairReconciler;
use super::section::Section;

impl PairReconciler {
    /// Somebody else keeps undoing what this step writes: after a few rewrites it waits. Returns how long, and leaves that
    /// part out of the observation; `None`: it may go.
    pub(super) fn contention(&mut self, effects: &[Effect], observed: &mut Observed) -> Option<Duration> {
        let now = Instant::now();
        let mut left: Option<Duration> = None;
        for effect in effects {
            if let Some(wait) = self.contests.wait(effect, now) {
                left = Some(left.map_or(wait, |left| left.min(wait)));
                observed.contended.push(effect.what.clone());
            }
        }
        left
    }

    /// Counts the rewrites among what is sent now, and tells of a fight.
    pub(super) fn count_rewrites(&mut self, section: &Section, effects: &[Effect], observed: &Observed) {
        for effect in effects {
            let Some(is_fight) = self.contests.sent(effect, Instant::now()) else { continue };
            self.metrics.contended_field();
            let Some(local) = observed.local.as_ref().filter(|_| is_fight) else { continue };
            let is_news = section
                .index(|index| index.table.pair(&self.key, Instant::now()).told_contended.insert(effect.what.clone()));
            if is_news {
                section.tell(PairEvent::contended(local, &observed.pair.remote, effect.what.clone()));
            }
        }
    }
}
