//! Notices about a pair for its users, in Events and in the log: one for each change of state.

use tokio::time::Instant;

use super::PairReconciler;
use crate::config::ClusterName;
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::marks::Pause;
use crate::resource_sync::plan::next::{Namespace, Observed};
use crate::resource_sync::run::events::PairEvent;
use crate::resource_sync::run::index::table::Failure;
use crate::resource_sync::run::section::Section;

impl Section {
    /// The cluster to which this direction writes.
    pub(crate) fn written_to(&self, direction: Direction) -> &ClusterName {
        match direction {
            Direction::Spec => &self.config.local,
            Direction::Status => &self.config.remote,
        }
    }
}

impl PairReconciler {
    /// Reports fields that an API server does not keep, each set of them once.
    pub(crate) fn report_unkept_fields(&self, section: &Section, observed: &Observed) {
        let untold = section.index(|index| index.table.untold_unkept(&self.key));
        for unkept in untold {
            let cluster = section.written_to(unkept.direction);
            let fields = unkept.fields.list();
            tracing::warn!(section = %section.name(), key = %self.key, %cluster, fields, "the API server does not keep fields as they were written");
            if let Some(local) = &observed.local {
                section.emit_event(PairEvent::fields_not_kept(local, cluster, &unkept.fields));
            }
        }
    }

    /// Reports a pause. An Event needs an object, or at least a namespace to be in; an annotation with an invalid value is
    /// logged in any case.
    pub(crate) fn report_pause(&self, section: &Section, observed: &Observed) {
        let marks = &section.policy().marks;
        let sides =
            [(observed.remote_object(), &section.config().remote), (observed.local.as_ref(), &section.config().local)];
        let unclear = sides.into_iter().find_map(|(object, cluster)| match marks.pause(object?) {
            Pause::Unclear(value) => Some(format!(
                "annotation {} on cluster {cluster} is {value:?}, which is neither true nor false",
                marks.paused
            )),
            Pause::No | Pause::Yes => None,
        });
        if let Some(problem) = &unclear {
            tracing::warn!(section = %section.name(), key = %self.key, problem, "the pair is paused by an annotation with an invalid value");
        }
        let local = observed.local.as_deref();
        if local.is_some() || (unclear.is_some() && observed.namespace != Namespace::Missing) {
            section.emit_event(PairEvent::paused(&self.key.local, local, unclear.as_deref()));
        }
    }

    /// Records the failed steps of a run, and reports those in which the run before did not fail in the same way.
    pub(crate) fn record_failures(&self, section: &Section, observed: &Observed, failures: Vec<Failure>, now: Instant) {
        let reasons = failures.iter().map(|failure| (failure.step, failure.kind)).collect();
        let told =
            section.index(|index| std::mem::replace(&mut index.table.pair(&self.key, now).told_failures, reasons));
        for failure in failures.iter().filter(|failure| !told.contains(&(failure.step, failure.kind))) {
            tracing::warn!(
                section = %section.name(), remote = %section.config().remote, local = %section.config().local,
                key = %failure.key, step = failure.step, reason = failure.reason, "sync failed"
            );
            // The object may not exist, but an Event needs a namespace to be in.
            if observed.local.is_some() || observed.namespace != Namespace::Missing {
                let local = observed.local.as_deref();
                section.emit_event(PairEvent::failed(&failure.key, local, failure.step, &failure.reason));
            }
        }
        section.index(|index| index.table.failed(&self.key.local, failures, now));
    }
}
