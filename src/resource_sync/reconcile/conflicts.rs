//! What a reconciler does about fights: it leaves out what has to wait, counts rewrites and has the other writer named.

use std::time::Duration;

use tokio::time::Instant;

use super::PairReconciler;
use crate::resource_sync::report::events::PairEvent;
use crate::resource_sync::rules::conflicts::Effect;
use crate::resource_sync::rules::plan::Observed;
use crate::resource_sync::section::Section;

impl PairReconciler {
    /// Somebody else keeps undoing what this step writes: after a few rewrites it waits. Returns how long, and leaves that
    /// part out of the observation; `None`: it may go.
    pub(crate) fn leave_out_conflicts(&mut self, effects: &[Effect], observed: &mut Observed) -> Option<Duration> {
        let now = Instant::now();
        let mut left: Option<Duration> = None;
        for effect in effects {
            if let Some(wait) = self.conflicts.wait(effect, now) {
                left = Some(left.map_or(wait, |left| left.min(wait)));
                observed.contended.push(effect.what.clone());
            }
        }
        left
    }

    /// Counts the rewrites among what is sent now, and tells of a fight.
    pub(crate) fn count_rewrites(&mut self, section: &Section, effects: &[Effect], observed: &Observed) {
        for effect in effects {
            let Some(is_fight) = self.conflicts.sent(effect, Instant::now()) else { continue };
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
