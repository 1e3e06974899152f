//! Conflicts with other writers: leaves contended parts out of the observation while they wait, counts rewrites, and reports
//! the conflict.

use std::time::Duration;

use tokio::time::Instant;

use super::PairReconciler;
use crate::resource_sync::report::events::PairEvent;
use crate::resource_sync::rules::conflicts::Effect;
use crate::resource_sync::rules::plan::Observed;
use crate::resource_sync::section::Section;

impl PairReconciler {
    /// Leaves the parts of a step that another writer keeps undoing out of the observation, after a few rewrites. Returns how
    /// long the first of them waits; `None`: the step may be sent.
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

    /// Counts the rewrites in a step that is sent now, and emits an Event when they become a conflict.
    pub(crate) fn count_rewrites(&mut self, section: &Section, effects: &[Effect], observed: &Observed) {
        for effect in effects {
            let Some(is_conflict) = self.conflicts.sent(effect, Instant::now()) else { continue };
            self.metrics.contended_field();
            let Some(local) = observed.local.as_ref().filter(|_| is_conflict) else { continue };
            let is_new = section
                .index(|index| index.table.pair(&self.key, Instant::now()).told_contended.insert(effect.what.clone()));
            if is_new {
                section.emit_event(PairEvent::contended(local, &observed.pair.remote, effect.what.clone()));
            }
        }
    }
}
