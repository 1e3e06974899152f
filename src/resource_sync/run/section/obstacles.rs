//! Why a section can't decide yet, or decides from caches that may be outdated.

use std::time::Duration;

use super::Section;
use crate::job::not_listed;
use crate::telemetry::NotReady;

impl Section {
    pub fn not_ready_because(&self) -> Option<NotReady> {
        let run = self.run.read();
        let unlisted = not_listed(self.needed(), |watch| run.knows(watch));
        unlisted.or_else(|| (!self.state_is_known()).then(|| self.state().waits_because()))
    }

    /// A watch that the section decides from and that keeps failing although its cluster answers: for how long, and why.
    pub(crate) fn broken_watch(&self) -> Option<(Duration, String)> {
        self.needed().into_iter().find_map(|watch| {
            let (since, reason) = watch.broken()?;
            let id = watch.id();
            Some((since, format!("watch of {} in cluster {}: {reason}", id.what(), id.cluster)))
        })
    }
}
