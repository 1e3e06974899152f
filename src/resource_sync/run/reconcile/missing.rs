//! Remote objects that the cache does not hold: confirms that they are gone, and gets the guard's permission for what follows.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{End, PairRun};
use crate::cluster::{Error, Kind, Object};
use crate::guard::{Decision, GuardedChange};
use crate::resource_sync::plan::guard::PairChange;
use crate::resource_sync::plan::observed::{Absence, Remote};
use crate::resource_sync::plan::step::Rest;
use crate::resource_sync::run::index::expectations::CATCH_UP;
use crate::resource_sync::run::section::Section;
use crate::status::ObjectState;

/// A run that can't decide before the end of a list is repeated after this.
pub(crate) const LISTING_RECHECK: Duration = Duration::from_secs(1);
/// A pair that the guard holds asks again after this: earlier deletions stop to count against the limit.
pub(crate) const GUARD_RECHECK: Duration = Duration::from_mins(1);

/// The run ends: the caches are not as far as its question.
const BEFORE_A_LIST: End = End::Later(ObjectState::Pending, Some(LISTING_RECHECK));

/// Whether the section's watch shows the object.
pub(super) fn is_selected(section: &Section, remote: &Object) -> bool {
    let labels = remote.labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    section.config().selector.matches(&labels)
}

/// The remote kind and the number of the cache's last list. `None` while an object that the cache lacks need not be missing:
/// during a list, between new credentials or a lost connection and the end of the next list, and before the guard knows all
/// pending changes.
fn known_missing(section: &Section) -> Option<(Arc<Kind>, u64)> {
    let remote = &section.watches().remote;
    if !remote.is_current() {
        remote.become_current();
        return None;
    }
    if section.pending_changes_incomplete() {
        return None;
    }
    Some((section.remote_kind()?, remote.store().lists()))
}

impl PairRun<'_> {
    /// Whether the remote object may have left the selector with our finalizer: to the cache it looks as if it were gone.
    pub(super) fn may_have_left_the_selector(&self, rest: Rest) -> bool {
        let section = self.section;
        matches!(self.observed.remote, Remote::Absent(Absence::SeenTerminating | Absence::Unexplained))
            && matches!(rest, Rest::Gone | Rest::Unclaimed(_) | Rest::OtherCluster)
            && !section.config().selector.is_empty()
            && section.index(|index| index.table.get(self.key).is_some_and(|pair| pair.holds_remote))
    }

    /// Asks for the remote object, which the cache lacks, and returns it with the number of the cache's last list.
    async fn live_remote(&self, step: &'static str) -> Result<(Option<Object>, u64), End> {
        let section = self.section;
        let (kind, list) = known_missing(section).ok_or(BEFORE_A_LIST)?;
        let live = section.remote_cluster().get_portable(&kind, &self.key.remote).await;
        let live = live.map_err(|error: Error| End::Failed(step, error))?;
        // A list since then may be of another cluster, and then the answer says nothing about this cache.
        if known_missing(section).is_none_or(|(_, now)| now != list) {
            return Err(BEFORE_A_LIST);
        }
        Ok((live, list))
    }

    /// Gets a remote object that may have left the selector. The plan goes on, or the run ends.
    pub(super) async fn look_behind_the_selector(&mut self) -> ControlFlow<End> {
        let section = self.section;
        let live = match self.live_remote("look_behind_selector").await {
            Ok((live, _)) => live,
            Err(end) => return Break(end),
        };
        let holds_remote =
            live.as_ref().is_some_and(|live| section.policy().marks.holds(live) && !section.is_held_elsewhere(live));
        section.index(|index| index.table.pair(self.key, Instant::now()).holds_remote = holds_remote);
        if let Some(live) = live {
            if is_selected(section, &live) {
                // The cache is behind and will show it.
                return Break(End::Later(ObjectState::Pending, Some(CATCH_UP)));
            }
            self.observed.remote = Remote::Absent(Absence::LeftSelector(Arc::new(live)));
        }
        Continue(())
    }

    /// Confirms to the guard that this change would be made to the pair. If that exceeds the limit, requeues the pairs that
    /// wait for a decision and reports what is held.
    fn confirmed(&self, change: GuardedChange) {
        let section = self.section;
        let (bounds, now) = (section.bounds(), Instant::now());
        let is_new = section.index(|index| {
            let guard = &mut index.guard.changes;
            let was_held = !guard.held(bounds, now).is_empty();
            guard.confirm(self.key, change);
            !was_held && !guard.held(bounds, now).is_empty()
        });
        if is_new {
            section.requeue_pending_changes();
            section.report_held();
        }
    }

    fn decide(&self) -> Decision {
        let bounds = self.section.bounds();
        self.section.index(|index| index.guard.changes.decide(self.key, bounds, Instant::now()))
    }

    fn register(&self, pending: PairChange) {
        self.section.index(|index| index.guard.register(self.key.clone(), pending, Instant::now()));
    }

    /// Asks the guard whether a change that it limits may be made to the pair. If not, the run ends.
    pub(super) fn ask_guard(&mut self, change: GuardedChange) -> ControlFlow<End> {
        if self.section.pending_changes_incomplete() {
            return Break(BEFORE_A_LIST);
        }
        let own = self.section.is_own_pair(&self.observed);
        self.register(PairChange { change, own, to_namespace_only: false });
        self.confirmed(change);
        match self.decide() {
            Decision::Go => self.observed.permitted = Some(change),
            Decision::Held => return Break(End::Held),
            Decision::Wait | Decision::Confirm => {
                return Break(End::Later(ObjectState::Pending, Some(GUARD_RECHECK)));
            }
        }
        Continue(())
    }

    /// Confirms with a live GET that a missing remote object is gone, unless the guard holds the pair. The plan
    /// goes on, or the run ends.
    pub(super) async fn confirm_absence(&mut self) -> ControlFlow<End> {
        let section = self.section;
        if known_missing(section).is_none() {
            return Break(BEFORE_A_LIST);
        }
        self.register(section.pending_change(self.key, self.observed.local.as_deref(), None, GuardedChange::Delete));
        match self.decide() {
            Decision::Held => return Break(End::Held),
            Decision::Wait => return Break(End::Later(ObjectState::Pending, Some(GUARD_RECHECK))),
            Decision::Go if self.absence_confirmed => {
                self.observed.remote = Remote::Absent(Absence::Confirmed);
                return Continue(());
            }
            // A confirmation of an earlier run may be from another cluster, so the object is requested again.
            Decision::Go | Decision::Confirm => {}
        }
        let (live, list) = match self.live_remote("confirm_absence").await {
            Ok(live) => live,
            Err(end) => return Break(end),
        };
        let Some(live) = live else {
            match section.find_source(&self.observed, list).await {
                Ok(Some(source)) => self.observed.source_lives_at = Some(source),
                Ok(None) => {
                    self.confirmed(GuardedChange::Delete);
                    self.absence_confirmed = true;
                }
                Err(error) => return Break(End::Failed("confirm_absence", error)),
            }
            return Continue(());
        };
        if is_selected(section, &live) {
            if section.index(|index| index.guard.changes.clear(self.key)) {
                section.requeue_pending_changes();
            }
            // It exists and is selected: the cache is behind and will show it.
            return Break(End::Later(ObjectState::Pending, Some(CATCH_UP)));
        }
        self.confirmed(GuardedChange::LetGo);
        self.observed.remote = Remote::Absent(Absence::LeftSelector(Arc::new(live)));
        Continue(())
    }
}
