//! Remote objects that the cache does not hold: confirms that they are gone, and gets the guard's permission for what follows.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{End, PairReconciler};
use crate::cluster::{Error, Kind, Object};
use crate::guard::{Decision, GuardedChange};
use crate::resource_sync::plan::guard::PairChange;
use crate::resource_sync::plan::next::{Absence, Observed, Remote, Rest};
use crate::resource_sync::run::index::expectations::CATCH_UP;
use crate::resource_sync::run::section::Section;
use crate::telemetry::ObjectState as PairState;

/// A run that can't decide before the end of a list is repeated after this.
pub(crate) const LISTING_RECHECK: Duration = Duration::from_secs(1);
/// A pair that the guard holds asks again after this: earlier deletions stop to count against the limit.
pub(crate) const GUARD_RECHECK: Duration = Duration::from_mins(1);

/// Whether the section's watch shows the object.
pub(crate) fn is_selected(section: &Section, remote: &Object) -> bool {
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

impl PairReconciler {
    /// Whether the remote object may have left the selector with our finalizer: to the cache it looks as if it were gone.
    pub(crate) fn may_have_left_the_selector(&self, section: &Section, observed: &Observed, rest: Rest) -> bool {
        let is_absent = matches!(observed.remote, Remote::Absent(Absence::SeenTerminating | Absence::Unexplained));
        is_absent
            && matches!(rest, Rest::Gone | Rest::Unclaimed(_) | Rest::OtherCluster)
            && !section.config().selector.is_empty()
            && section.index(|index| index.table.get(&self.key).is_some_and(|pair| pair.holds_remote))
    }

    /// Gets a remote object that may have left the selector. The plan goes on, or the run ends.
    pub(crate) async fn look_behind_the_selector(
        &mut self,
        section: &Section,
        observed: &mut Observed,
    ) -> Result<ControlFlow<End>, Error> {
        let Some((kind, list)) = known_missing(section) else {
            return Ok(ControlFlow::Break(End::Later(PairState::Pending, Some(LISTING_RECHECK))));
        };
        let live = section.remote_cluster().get_portable(&kind, &observed.pair.remote).await?;
        // A list since then may be of another cluster, and then the answer says nothing about this cache.
        if known_missing(section).is_none_or(|(_, now)| now != list) {
            return Ok(ControlFlow::Break(End::Later(PairState::Pending, Some(LISTING_RECHECK))));
        }
        let holds_remote =
            live.as_ref().is_some_and(|live| section.policy().marks.holds(live) && !section.is_held_elsewhere(live));
        section.index(|index| index.table.pair(&self.key, Instant::now()).holds_remote = holds_remote);
        if let Some(live) = live {
            if is_selected(section, &live) {
                // The cache is behind and will show it.
                return Ok(ControlFlow::Break(End::Later(PairState::Pending, Some(CATCH_UP))));
            }
            observed.remote = Remote::Absent(Absence::LeftSelector(Arc::new(live)));
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Confirms to the guard that this change would be made to the pair. If that exceeds the limit, requeues the pairs that
    /// wait for a decision and reports what is held.
    fn confirmed(&self, section: &Section, change: GuardedChange) {
        let (bounds, now) = (section.bounds(), Instant::now());
        let is_new = section.index(|index| {
            let guard = &mut index.guard.changes;
            let was_held = !guard.held(bounds, now).is_empty();
            guard.confirm(&self.key, change);
            !was_held && !guard.held(bounds, now).is_empty()
        });
        if is_new {
            section.requeue_pending_changes();
            section.report_held();
        }
    }

    fn decide(&self, section: &Section) -> Decision {
        let bounds = section.bounds();
        section.index(|index| index.guard.changes.decide(&self.key, bounds, Instant::now()))
    }

    /// Asks the guard whether a change that it limits may be made to the pair. If not, the run ends.
    pub(crate) fn ask_guard(
        &self,
        section: &Section,
        change: GuardedChange,
        observed: &mut Observed,
    ) -> ControlFlow<End> {
        if section.pending_changes_incomplete() {
            return ControlFlow::Break(End::Later(PairState::Pending, Some(LISTING_RECHECK)));
        }
        let own = section.is_own_pair(observed);
        let pending = PairChange { change, own, to_namespace_only: false };
        section.index(|index| index.guard.register(self.key.clone(), pending, Instant::now()));
        self.confirmed(section, change);
        match self.decide(section) {
            Decision::Go => observed.permitted = Some(change),
            Decision::Held => return ControlFlow::Break(End::Held),
            Decision::Wait | Decision::Confirm => {
                return ControlFlow::Break(End::Later(PairState::Pending, Some(GUARD_RECHECK)));
            }
        }
        ControlFlow::Continue(())
    }

    /// Confirms with a live GET that a missing remote object is gone, unless the guard holds the pair. The plan
    /// goes on, or the run ends.
    pub(crate) async fn confirm_absence(
        &mut self,
        section: &Section,
        observed: &mut Observed,
        confirmed: &mut bool,
    ) -> Result<ControlFlow<End>, Error> {
        let Some((kind, list)) = known_missing(section) else {
            return Ok(ControlFlow::Break(End::Later(PairState::Pending, Some(LISTING_RECHECK))));
        };
        let pending = section.pending_change(&self.key, observed.local.as_deref(), None, GuardedChange::Delete);
        section.index(|index| index.guard.register(self.key.clone(), pending, Instant::now()));
        match self.decide(section) {
            Decision::Held => return Ok(ControlFlow::Break(End::Held)),
            Decision::Wait => return Ok(ControlFlow::Break(End::Later(PairState::Pending, Some(GUARD_RECHECK)))),
            Decision::Go if *confirmed => {
                observed.remote = Remote::Absent(Absence::Confirmed);
                return Ok(ControlFlow::Continue(()));
            }
            // A confirmation of an earlier run may be from another cluster, so the object is requested again.
            Decision::Go | Decision::Confirm => {}
        }
        let Some(live) = section.remote_cluster().get_portable(&kind, &observed.pair.remote).await? else {
            // A list since then may be of another cluster, and then the answer says nothing about this cache.
            if known_missing(section).is_none_or(|(_, now)| now != list) {
                return Ok(ControlFlow::Break(End::Later(PairState::Pending, Some(LISTING_RECHECK))));
            }
            if let Some(source) = section.find_source(observed, list).await? {
                observed.source_lives_at = Some(source);
                return Ok(ControlFlow::Continue(()));
            }
            self.confirmed(section, GuardedChange::Delete);
            *confirmed = true;
            return Ok(ControlFlow::Continue(()));
        };
        if is_selected(section, &live) {
            if section.index(|index| index.guard.changes.clear(&self.key)) {
                section.requeue_pending_changes();
            }
            // It exists and is selected: the cache is behind and will show it.
            return Ok(ControlFlow::Break(End::Later(PairState::Pending, Some(CATCH_UP))));
        }
        self.confirmed(section, GuardedChange::LetGo);
        observed.remote = Remote::Absent(Absence::LeftSelector(Arc::new(live)));
        Ok(ControlFlow::Continue(()))
    }
}
