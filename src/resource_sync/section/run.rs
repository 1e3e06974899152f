//! A section's time at work: from when it may begin until it has to stop.
//!
//! Where replicas share the sections out, a section comes and goes. It begins each time with nothing but what is written
//! in the clusters: what it remembered was true before somebody else had it. While it runs it demands the watches that it
//! decides from, its peers' among them; when it stops, the watches that nobody else needs stop too.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Section;
use crate::cluster::{Demand, Watch};
use crate::resource_sync::index::Index;
use crate::resource_sync::index::phase::Mode;
use crate::state::Detached;

/// What a section has while it runs; by default it does not.
#[derive(Default)]
pub(crate) struct Run {
    demands: Vec<Demand>,
    /// Cancelled when it stops; `None` while it does not run.
    ended: Option<CancellationToken>,
}

impl Run {
    /// Whether a watch shows all that was there when the section began, and what came since.
    pub(crate) fn knows(&self, watch: &Arc<Watch>) -> bool {
        self.demands.iter().any(|demand| Arc::ptr_eq(demand.watch(), watch) && demand.is_met())
    }

    /// Done when the section stops, at once where it does not run.
    pub(crate) fn ended(&self) -> CancellationToken {
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
            self.section.index(|index| index.phase.end());
        }
    }
}

impl Section {
    /// Begins to run, with nothing but what the watches are going to show.
    pub fn begin(self: &Arc<Self>) -> Running {
        self.index(Index::begin);
        // Where there is no election nobody else had the section meanwhile.
        self.state().forget(self.fence.is_none());
        self.take_mode_from_state();
        self.take_memory_from_state();
        let ended = CancellationToken::new();
        let demands = self.demanded().iter().map(|watch| watch.demand(self.fence.as_ref())).collect();
        let is_noting = !self.state().is_known();
        let mut run = self.run.write();
        *run = Run { demands, ended: Some(ended.clone()) };
        self.index(|index| index.phase.begin(is_noting, Instant::now()));
        drop(run);
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

    /// What the state says of detaching counts.
    pub(crate) fn take_mode_from_state(&self) {
        self.set_mode(match self.state().look(|state| state.detached) {
            None => Mode::Syncing,
            Some(Detached { local_gone: false }) => Mode::Detaching,
            Some(Detached { local_gone: true }) => Mode::DetachingLocalGone,
        });
    }

    /// What the state says of the clusters, and of what the guard counts.
    fn take_memory_from_state(&self) {
        let (identities, sent) = self.state().look(|state| (state.identities.clone(), state.guard.clone()));
        self.index(|index| index.recall(identities, &sent, Instant::now(), SystemTime::now()));
    }

    /// Whether this run began within the window of the guard.
    pub(crate) fn is_young(&self, window: Duration) -> bool {
        self.index(|index| index.phase.is_younger_than(window, Instant::now()))
    }

    /// The first time that the state is known in this run, the section begins to decide, if its caches have been listed.
    pub(crate) async fn state_may_be_known(&self) {
        if self.state().is_known() && self.index(|index| index.phase.is_noting) {
            self.decide_anew().await;
        }
    }

    /// What the section is about may have changed: it begins to decide, if its caches have been listed, and else when they
    /// have.
    pub(crate) async fn decide_anew(&self) {
        self.index(|index| index.phase.decide_anew());
        self.take_mode_from_state();
        self.take_memory_from_state();
        self.look_for_left_secrets();
        self.look_for_left_fields();
        // As at the end of a list: the guard knows all suspects before any of them is acted upon.
        let is_listed = self.is_listed();
        if is_listed {
            if self.begins_now() {
                self.look_for_unseen();
                self.write_left_fields_again();
            }
            self.look_for_suspects();
        }
        self.index(|index| index.phase.is_noting = false);
        if is_listed {
            self.request_all().await;
            self.suspects_may_go();
        }
    }

    /// A change after which other pairs are suspicious than before: the guard looks at all of them before any is acted upon, as
    /// at the end of a list. `None`: nothing has changed.
    pub(crate) fn change_suspects<T>(&self, change: impl FnOnce() -> Option<T>) -> Option<T> {
        self.index(|index| index.phase.changes += 1);
        let changed = change();
        // A list that has not ended yet is looked at when it ends.
        if changed.is_some() && self.is_listed() {
            self.index(Index::forget_count);
            self.look_for_suspects();
        }
        self.index(|index| index.phase.changes = index.phase.changes.saturating_sub(1));
        self.suspects_may_go();
        changed
    }

    fn look_for_suspects(&self) {
        for key in self.all_pairs() {
            self.look_for_suspect(&key);
        }
    }

    /// Whether it runs in this process.
    pub(crate) fn is_running(&self) -> bool {
        self.run.read().ended.is_some()
    }

    /// Whether this run knows a watch's content.
    pub(crate) fn knows(&self, watch: &Arc<Watch>) -> bool {
        self.run.read().knows(watch)
    }

    /// Whether the run has begun to decide.
    pub(crate) fn has_begun(&self) -> bool {
        self.index(|index| index.phase.has_begun)
    }

    /// Whether this is the first time that the run can decide.
    pub(crate) fn begins_now(&self) -> bool {
        self.index(|index| index.phase.begins_now())
    }
}
