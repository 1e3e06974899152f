//! Why a section can't decide, or decides from caches that may be behind.

use std::time::Duration;

use super::Section;
use crate::cluster::{Listed, WatchId};

impl Section {
    /// Why it can't decide, and whether that is a cluster that does not answer. A reason comes before a list that goes on or
    /// waits for another.
    pub fn not_listed_because(&self) -> Option<(String, bool)> {
        let run = self.run.read();
        let mut goes_on = None;
        for watch in self.needed() {
            let WatchId { resource, cluster, .. } = watch.id();
            match &*watch.store().listed().borrow() {
                Listed::Yes if run.knows(watch) => {}
                Listed::No { reason: Some(reason), unreachable } => {
                    return Some((format!("{resource} in cluster {cluster}: {reason}"), *unreachable));
                }
                Listed::Yes => {
                    goes_on.get_or_insert_with(|| {
                        (format!("{resource} in cluster {cluster}: the list has not ended"), false)
                    });
                }
                Listed::No { reason: None, unreachable } => {
                    goes_on.get_or_insert_with(|| {
                        (format!("{resource} in cluster {cluster}: the first list has not ended"), *unreachable)
                    });
                }
            }
        }
        goes_on.or_else(|| (!self.state_is_known()).then(|| self.state().waits_because()))
    }

    /// A watch that it decides from fails again and again though its cluster answers: for how long, and why.
    pub(crate) fn broken_watch(&self) -> Option<(Duration, String)> {
        self.needed().into_iter().find_map(|watch| {
            let (since, reason) = watch.broken()?;
            let WatchId { resource, cluster, .. } = watch.id();
            Some((since, format!("watch of {resource} in cluster {cluster}: {reason}")))
        })
    }
}
