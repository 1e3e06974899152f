//! A section's time at work: from when it may begin until it has to stop.
//!
//! Where replicas share the sections out, a section comes and goes. It begins each time with nothing but what is written
//! in the clusters: what it remembered was true before somebody else had it. While it runs it demands the watches that it
//! decides from, its peers' among them; when it stops, the watches that nobody else needs stop too.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::section::{Mode, Section};
use crate::cluster::{Demand, Watch};

/// What a section has while it runs; by default it does not.
#[derive(Default)]
pub(super) struct Run {
    demands: Vec<Demand>,
    /// Cancelled when it stops; `None` while it does not run.
    ended: Option<CancellationToken>,
    /// All pairs have been asked for once.
    has_begun: bool,
}

impl Run {
    /// Whether a watch shows all that was there when the section began, and what came since.
    pub(super) fn knows(&self, watch: &Arc<Watch>) -> bool {
        self.demands.iter().any(|demand| Arc::ptr_eq(demand.watch(), watch) && demand.is_met())
    }

    /// Done when the section stops, at once where it does not run.
    pub(super) fn ended(&self) -> CancellationToken {
        self.ended.clone().unwrap_or_else(|| {
            let ended = CancellationToken::new();
            ended.cancel();
            ended
        })
    }
}

/// That a section runs; dropped, it stops.
pub struct Running {
    section: Arc<Section>,
    ended: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended.cancel();
        let mut run = self.section.run.write();
        // A successor may have begun.
        if run.ended.as_ref().is_some_and(CancellationToken::is_cancelled) {
            *run = Run::default();
        }
    }
}

impl Section {
    /// Begins to run, with nothing but what the watches are going to show.
    pub fn begin(self: &Arc<Self>) -> Running {
        *self.table.lock() = super::table::Table::default();
        *self.guard.lock() = super::guard::Guard::default();
        *self.parked.lock() = super::owed::Owed::default();
        self.awaiting.lock().clear();
        self.making_namespaces.lock().clear();
        self.deleting_namespaces.lock().clear();
        *self.asked.lock() = super::section::Asked::default();
        *self.counted.lock() = None;
        if self.fence.is_some() {
            self.set_mode(Mode::Syncing);
        }
        let ended = CancellationToken::new();
        let demands = self.demanded().iter().map(|watch| watch.demand(self.fence.as_ref())).collect();
        *self.run.write() = Run { demands, ended: Some(ended.clone()), has_begun: false };
        Running { section: Arc::clone(self), ended }
    }

    /// The watches that decisions are made from: the section's own, and those of peers that it may meet in a namespace. In
    /// the order in which they should list.
    fn demanded(&self) -> Vec<Arc<Watch>> {
        let own = self.watches();
        let mut demanded = vec![Arc::clone(&own.local), Arc::clone(&own.namespaces), Arc::clone(&own.remote)];
        demanded.extend(own.secrets.iter().chain(&own.remote_secrets).cloned());
        for peer in self.others_here() {
            demanded.extend([Arc::clone(&peer.watches().local), Arc::clone(&peer.watches().remote)]);
        }
        let mut distinct: Vec<Arc<Watch>> = Vec::new();
        for watch in demanded {
            if !distinct.iter().any(|earlier| Arc::ptr_eq(earlier, &watch)) {
                distinct.push(watch);
            }
        }
        distinct
    }

    /// Whether it runs in this process.
    pub(super) fn is_running(&self) -> bool {
        self.run.read().ended.is_some()
    }

    /// Whether this run knows a watch's content.
    pub(super) fn knows(&self, watch: &Arc<Watch>) -> bool {
        self.run.read().knows(watch)
    }

    /// Whether this is the first time that the run can decide.
    pub(super) fn begins_now(&self) -> bool {
        !std::mem::replace(&mut self.run.write().has_begun, true)
    }
}
