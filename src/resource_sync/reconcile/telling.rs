//! What a reconciler tells people of its pair, in Events and in the log: once per change of state.

use tokio::time::Instant;

use super::PairReconciler;
use crate::config::ClusterName;
use crate::resource_sync::index::table::Failure;
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::report::events::PairEvent;
use crate::resource_sync::rules::marks::Pause;
use crate::resource_sync::rules::plan::{Namespace, Observed};
use crate::resource_sync::section::Section;

impl Section {
    /// Whose API server takes what is written in this direction.
    pub(crate) fn written_to(&self, direction: Direction) -> &ClusterName {
        match direction {
            Direction::Spec => &self.config.local,
            Direction::Status => &self.config.remote,
        }
    }
}

impl PairReconciler {
    /// Fields that an API server does not keep, each set of them once.
    pub(crate) fn tell_unkept(&self, section: &Section, observed: &Observed) {
        let untold = section.index(|index| index.table.untold_unkept(&self.key));
        for unkept in untold {
            let cluster = section.written_to(unkept.direction);
            let fields = unkept.fields.list();
            tracing::warn!(section = %section.name(), key = %self.key, %cluster, fields, "the API server does not keep fields as they were written");
            if let Some(local) = &observed.local {
                section.tell(PairEvent::fields_not_kept(local, cluster, &unkept.fields));
            }
        }
    }

    /// An Event needs an object, or at least a namespace to be in; what can't be read is logged in any case.
    pub(crate) fn tell_pause(&self, section: &Section, observed: &Observed) {
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
            tracing::warn!(section = %section.name(), key = %self.key, problem, "the pair is paused: the annotation cannot be read");
        }
        let local = observed.local.as_deref();
        if local.is_some() || (unclear.is_some() && observed.namespace != Namespace::Missing) {
            section.tell(PairEvent::paused(&self.key.local, local, unclear.as_deref()));
        }
    }

    /// A step failed; told when it is another failure than before.
    pub(crate) fn failed(&self, section: &Section, observed: &Observed, failure: Failure, now: Instant) {
        let reason = (failure.step, failure.kind);
        let told = section.index(|index| index.table.pair(&self.key, now).told_failure.replace(reason));
        if told != Some(reason) {
            tracing::warn!(
                section = %section.name(), remote = %section.config().remote, local = %section.config().local,
                key = %failure.key, step = failure.step, reason = failure.reason, "sync failed"
            );
            // Also of one that could not be made; but an Event needs a namespace to be in.
            if observed.local.is_some() || observed.namespace != Namespace::Missing {
                let local = observed.local.as_deref();
                section.tell(PairEvent::failed(&failure.key, local, failure.step, &failure.reason));
            }
        }
        section.index(|index| index.table.failed(failure, now));
    }
}
