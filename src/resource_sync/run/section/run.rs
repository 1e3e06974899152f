//! One run of a section: from when this process may run it until it has to stop.
//!
//! With leader election a section may run in another replica and come back. What this process knew about it is outdated
//! then, so every run starts with an empty index and reads everything from the clusters again. While it runs it demands the
//! watches that it decides from, those of its peers included; when it stops, a watch without another demand stops too.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Section;
use crate::cluster::{Demand, Watch};
use crate::job::not_listed;
use crate::resource_sync::run::index::Index;
use crate::state::Detached;
use crate::status::NotReady;

/// What the section does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It keeps pairs in step.
    #[default]
    Syncing,
    /// It removes our marks from both sides.
    Detaching,
    /// It removes our finalizer from the remote, because the local cluster is gone.
    DetachingLocalGone,
}

/// What a section holds while it runs; the default is a section that does not run.
#[derive(Default)]
pub(crate) struct Run {
    demands: Vec<Demand>,
    /// Cancelled when the run ends; `None` while the section does not run.
    ended: Option<CancellationToken>,
}

impl Run {
    /// Whether a watch has finished the list that the run demanded.
    pub(crate) fn knows(&self, watch: &Arc<Watch>) -> bool {
        self.demands.iter().any(|demand| Arc::ptr_eq(demand.watch(), watch) && demand.is_met())
    }

    /// A token that is cancelled when the run ends; already cancelled while the section does not run.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.ended.clone().unwrap_or_else(|| {
            let ended = CancellationToken::new();
            ended.cancel();
            ended
        })
    }
}

/// Keeps a section running; the run ends when this is dropped.
pub struct Running {
    section: Arc<Section>,
    ended: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended.cancel();
        let mut run = self.section.run.write();
        // The next run may have begun already.
        if run.ended.as_ref().is_some_and(CancellationToken::is_cancelled) {
            *run = Run::default();
            self.section.index(|index| index.phase.end());
        }
    }
}

impl Section {
    /// Begins a run with an empty index.
    pub fn begin(self: &Arc<Self>) -> Running {
        self.index(Index::begin);
        // Without election no other replica can have changed the state in the meantime.
        self.state().forget(self.fence.is_none());
        self.restore_mode();
        self.restore_memory();
        let ended = CancellationToken::new();
        let demands = self.demanded().iter().map(|watch| watch.demand(self.fence.as_ref())).collect();
        let pending_changes_incomplete = !self.state().is_known();
        let mut run = self.run.write();
        *run = Run { demands, ended: Some(ended.clone()) };
        self.index(|index| index.phase.begin(pending_changes_incomplete, Instant::now()));
        drop(run);
        Running { section: Arc::clone(self), ended }
    }

    /// The watches that the section decides from: its own, and those of peers whose objects may be in the same namespaces. In
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

    /// Takes over from the stored state whether the section is being detached.
    pub(crate) fn restore_mode(&self) {
        self.set_mode(match self.state().look(|state| state.detached) {
            None => Mode::Syncing,
            Some(Detached { local_gone: false }) => Mode::Detaching,
            Some(Detached { local_gone: true }) => Mode::DetachingLocalGone,
        });
    }

    /// Takes over from the stored state which clusters these are, and what the guard has counted.
    fn restore_memory(&self) {
        let (identities, sent) = self.state().look(|state| (state.identities.clone(), state.guard.clone()));
        self.index(|index| index.recall(identities, &sent, Instant::now(), SystemTime::now()));
    }

    /// Whether this run began within this time.
    pub(crate) fn began_within(&self, window: Duration) -> bool {
        self.index(|index| index.phase.is_younger_than(window, Instant::now()))
    }

    /// The state may have been read: the first time in a run, the section reevaluates all pairs.
    pub(crate) async fn on_state_read(&self) {
        if self.state().is_known() && self.index(|index| index.phase.is_noting) {
            self.reevaluate().await;
        }
    }

    /// Decides about all pairs again, by the stored state as it is now. If the caches have not been listed yet, the end of the
    /// last list does so.
    pub(crate) async fn reevaluate(&self) {
        self.index(|index| index.phase.decide_anew());
        self.restore_mode();
        self.restore_memory();
        self.compare_settings();
        // As at the end of a list, the guard has to know all pending changes before a run makes any of them.
        let is_listed = self.is_listed();
        if is_listed {
            if self.begins_now() {
                self.look_for_unselected();
                self.write_left_fields_again();
            }
            self.update_pending_changes();
        }
        self.index(|index| index.phase.is_noting = false);
        if is_listed {
            self.request_all().await;
            self.requeue_pending_changes();
        }
    }

    /// Makes a change after which guarded changes of other pairs may be pending. The guard evaluates all pairs again before a run acts on any of
    /// them, as at the end of a list. `None`: `change` has changed nothing.
    pub(crate) fn change_and_reevaluate<T>(&self, change: impl FnOnce() -> Option<T>) -> Option<T> {
        self.index(|index| index.phase.changes += 1);
        let changed = change();
        // While a list goes on, its end does this.
        if changed.is_some() && self.is_listed() {
            self.index(Index::forget_count);
            self.update_pending_changes();
        }
        self.index(|index| index.phase.changes = index.phase.changes.saturating_sub(1));
        self.requeue_pending_changes();
        changed
    }

    fn update_pending_changes(&self) {
        for key in self.all_pairs() {
            self.update_pending_change(&key);
        }
    }

    /// Whether it runs in this process.
    pub(crate) fn is_running(&self) -> bool {
        self.run.read().ended.is_some()
    }

    /// Whether a watch has finished the list that this run demanded.
    pub(crate) fn knows(&self, watch: &Arc<Watch>) -> bool {
        self.run.read().knows(watch)
    }

    /// Whether every pair has been requested once in this run.
    pub(crate) fn has_begun(&self) -> bool {
        self.index(|index| index.phase.has_begun)
    }

    /// Whether this is the first call since the run began or reevaluates everything: all pairs are to be requested.
    pub(crate) fn begins_now(&self) -> bool {
        self.index(|index| index.phase.begins_now())
    }

    /// Why it can't decide yet.
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
