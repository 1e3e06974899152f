//! Conflicts with other writers: leaves contended parts out of the observation while they wait, counts rewrites, and reports
//! the conflict.

use std::time::Duration;

use tokio::time::Instant;

use super::PairReconciler;
use crate::resource_sync::report::events::{Contender, PairEvent};
use crate::resource_sync::rules::conflicts::Effect;
use crate::resource_sync::rules::plan::{Observed, Step};
use crate::resource_sync::section::Section;

impl PairReconciler {
    /// Leaves the parts of a step that another writer keeps undoing out of the observation, after a few rewrites. `None`: the
    /// step may be sent; otherwise whether the plan knew of all of them, so that it has no step without them. `left` is how long
    /// the first contended part of the run waits.
    pub(crate) fn leave_out_conflicts(
        &mut self,
        effects: &[Effect],
        observed: &mut Observed,
        left: &mut Option<Duration>,
    ) -> Option<bool> {
        let now = Instant::now();
        let mut is_stuck = None;
        for effect in effects {
            if let Some(wait) = self.conflicts.wait(effect, now) {
                *left = Some(left.map_or(wait, |left| left.min(wait)));
                let is_known = observed.is_contended(&effect.what);
                is_stuck = Some(is_stuck.unwrap_or(true) && is_known);
                if !is_known {
                    observed.contended.push(effect.what.clone());
                }
            }
        }
        is_stuck
    }

    /// Counts the rewrites in a step that is sent now, and reports them when they become a conflict.
    pub(crate) fn count_rewrites(&mut self, section: &Section, step: &Step, effects: &[Effect], observed: &Observed) {
        for effect in effects {
            let Some(is_conflict) = self.conflicts.sent(effect, Instant::now()) else { continue };
            self.metrics.contended_field();
            if !is_conflict {
                continue;
            }
            let fields = effect.what.fields(step, observed, section.policy());
            let deed = if fields.is_empty() { effect.what.to_string() } else { format!("keeps changing {fields}") };
            let is_new = section.index(|index| index.table.contended(&self.key, &effect.what, &deed, Instant::now()));
            if is_new {
                let contender = Contender { pair: self.key.clone(), what: effect.what.clone(), deed };
                section.emit_event(PairEvent::contended(observed.local.as_deref(), contender));
            }
        }
    }
}
