//! Conflicts with other writers: leaves contended parts out of the observation while they wait, counts rewrites, and reports
//! the conflict.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::PairReconciler;
use super::execute::{namespaces, secret_kind};
use crate::cluster::ObjectKey;
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::conflicts::{Contended, Effect};
use crate::resource_sync::plan::next::{Observed, Step};
use crate::resource_sync::plan::renewal::RenewedObject;
use crate::resource_sync::run::events::PairEvent;
use crate::resource_sync::run::section::Section;

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

    /// What other writers do, for each part of a step that becomes contended with it at `now` and has not been reported yet. It asks a
    /// cluster: afterwards the caller has to check anew whether the step may be sent.
    pub(crate) async fn contenders(
        &mut self,
        section: &Section,
        step: &Step,
        effects: &[Effect],
        observed: &Observed,
        now: Instant,
    ) -> Vec<(Contended, String)> {
        let mut found = Vec::new();
        for effect in effects {
            let what = &effect.what;
            let is_conflict = self.conflicts.would_contend(effect, now) == Some(true);
            if !is_conflict || section.index(|index| index.table.is_told_as_contended(&self.key, what, now)) {
                continue;
            }
            let fields = what.fields(step, observed, section.policy());
            let deed = if fields.is_empty() { what.to_string() } else { format!("keeps changing {fields}") };
            found.push((what.clone(), format!("{} {deed}", self.other_writer(section, what).await)));
        }
        found
    }

    /// Counts the rewrites in a step that is sent, and reports the contenders that were found at `now`. It decides by the same moment: a
    /// contention that has expired since would be new here without a cause. The Event may be lost among many; the log and the report
    /// have it in any case.
    pub(crate) fn count_rewrites(
        &mut self,
        section: &Section,
        effects: &[Effect],
        observed: &Observed,
        mut contenders: Vec<(Contended, String)>,
        now: Instant,
    ) {
        for effect in effects {
            let what = &effect.what;
            let Some(is_conflict) = self.conflicts.sent(effect, now) else { continue };
            self.metrics.contended_field();
            let is_new = is_conflict && section.index(|index| index.table.contended(&self.key, what, now));
            let contender = contenders.iter().position(|(contended, _)| contended == what).filter(|_| is_new);
            let Some((what, cause)) = contender.map(|at| contenders.swap_remove(at)) else { continue };
            tracing::warn!(section = %section.name(), key = %self.key, cause, "another writer keeps changing what the section writes");
            let event = PairEvent::contended(&self.key.local, observed.local.as_deref(), &what, &cause);
            section.index(|index| index.table.contender_found(&self.key, &what, cause));
            section.emit_event(event);
        }
    }

    /// Who undoes our writes of this part. Until the next of them the other field managers own the part. The newest comes first:
    /// others may have created the object.
    async fn other_writer(&self, section: &Section, what: &Contended) -> String {
        let (cluster, key, kind) = match what.direction() {
            Direction::Status => (section.remote_cluster(), &self.key.remote, section.remote_kind()),
            Direction::Spec => (section.local_cluster(), &self.key.local, section.local_kind()),
        };
        let has_subresource = kind.as_ref().is_some_and(|kind| kind.status_subresource);
        let subresources: &[&str] = match what {
            Contended::Status if has_subresource => &["status"],
            Contended::Content => &["", "scale"],
            _ => &[""],
        };
        let secret = |name| Some((Arc::new(secret_kind()), ObjectKey::new(Arc::clone(&key.namespace), name)));
        let written = match what {
            Contended::Rejection => return format!("cluster {}", section.local_cluster().name()),
            // A deletion leaves no field manager.
            Contended::Object | Contended::Namespace | Contended::Removal(_) => {
                return format!("a client of cluster {}", cluster.name());
            }
            Contended::Secret(name) => secret(section.mapping().remote_secret_name(name).into()),
            Contended::SecretHash(name) => secret(Arc::clone(name)),
            Contended::Marks(RenewedObject::Namespace) => {
                Some((Arc::new(namespaces()), ObjectKey::new("", Arc::clone(&key.namespace))))
            }
            _ => kind.map(|kind| (kind, key.clone())),
        };
        let names = match &written {
            Some((kind, key)) => cluster.other_managers(kind, key, subresources).await,
            None => Vec::new(),
        };
        match names.as_slice() {
            [] => format!("another field manager on cluster {}", cluster.name()),
            names => format!("field manager {} on cluster {}", names.join(", "), cluster.name()),
        }
    }
}
