//! Remote objects that the cache does not hold: whether they are gone, and who says so (rule 3).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{End, PairReconciler};
use crate::cluster::{Error, Kind, Object};
use crate::resource_sync::index::expectations::CATCH_UP;
use crate::resource_sync::rules::guard::Verdict;
use crate::resource_sync::rules::plan::{Absence, Harm, Observed, Remote, Rest};
use crate::resource_sync::section::Section;
use crate::telemetry::ObjectState as PairState;

/// What can't be decided before the end of a list is looked at again after this.
pub(crate) const LISTING_LOOK: Duration = Duration::from_secs(1);
/// What the guard holds back asks again after this: deletions that counted against it grow old.
pub(crate) const GUARD_LOOK: Duration = Duration::from_mins(1);

/// Whether the section's watch shows the object.
pub(crate) fn is_selected(section: &Section, remote: &Object) -> bool {
    let labels = remote.labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    section.config().selector.matches(&labels)
}

/// The remote kind and the list that the cache is of, where it is known what is missing: not in the middle of a list, nor
/// between new credentials or a lost connection and the end of the next list, nor before the guard knows all suspects.
fn known_missing(section: &Section) -> Option<(Arc<Kind>, u64)> {
    let remote = &section.watches().remote;
    if !remote.is_current() {
        remote.become_current();
        return None;
    }
    if section.is_noting() {
        return None;
    }
    Some((section.remote_kind()?, remote.store().lists()))
}

impl PairReconciler {
    /// An object that leaves the selector looks like one that is gone, and may still bear our finalizer.
    pub(crate) fn may_have_left_the_selector(&self, section: &Section, observed: &Observed, rest: Rest) -> bool {
        let unseen = matches!(observed.remote, Remote::Absent(Absence::SeenTerminating | Absence::Unexplained));
        unseen
            && matches!(rest, Rest::Gone | Rest::Unclaimed(_) | Rest::OtherCluster)
            && !section.config().selector.is_empty()
            && section.index(|index| index.table.get(&self.key).is_some_and(|pair| pair.holds_remote))
    }

    /// `Ok(None)`: the plan can go on.
    pub(crate) async fn look_behind_the_selector(
        &mut self,
        section: &Section,
        observed: &mut Observed,
    ) -> Result<Option<End>, Error> {
        let Some((kind, list)) = known_missing(section) else {
            return Ok(Some(End::Later(PairState::Pending, Some(LISTING_LOOK))));
        };
        let live = section.remote_cluster().get(&kind, &observed.pair.remote).await?;
        // Who answers must be the cluster that the cache is of.
        if known_missing(section).is_none_or(|(_, now)| now != list) {
            return Ok(Some(End::Later(PairState::Pending, Some(LISTING_LOOK))));
        }
        let holds_remote =
            live.as_ref().is_some_and(|live| section.policy().marks.holds(live) && !section.is_held_elsewhere(live));
        section.index(|index| index.table.pair(&self.key, Instant::now()).holds_remote = holds_remote);
        if let Some(live) = live {
            if is_selected(section, &live) {
                // The cache is behind and will show it.
                return Ok(Some(End::Later(PairState::Pending, Some(CATCH_UP))));
            }
            observed.remote = Remote::Absent(Absence::LeftSelector(Arc::new(live)));
        }
        Ok(None)
    }

    /// Notes that a suspect would suffer this for certain, and tells those that wait for a verdict where that is one too
    /// many.
    fn confirmed(&self, section: &Section, harm: Harm) {
        let (bounds, now) = (section.bounds(), Instant::now());
        let is_news = section.index(|index| {
            let guard = &mut index.guard;
            let was_held = !guard.held(bounds, now).is_empty();
            guard.confirm(&self.key, harm);
            !was_held && !guard.held(bounds, now).is_empty()
        });
        if is_news {
            section.suspects_may_go();
            section.tell_held();
        }
    }

    fn verdict(&self, section: &Section) -> Verdict {
        let bounds = section.bounds();
        section.index(|index| index.guard.verdict(&self.key, bounds, Instant::now()))
    }

    /// What harms when it happens to many objects needs the guard's permission. `None`: it has it, and the plan can go on.
    pub(crate) fn ask_guard(&self, section: &Section, harm: Harm, observed: &mut Observed) -> Option<End> {
        if section.is_noting() {
            return Some(End::Later(PairState::Pending, Some(LISTING_LOOK)));
        }
        let own = section.is_own_pair(observed);
        section.index(|index| index.guard.suspect(self.key.clone(), harm, own));
        self.confirmed(section, harm);
        match self.verdict(section) {
            Verdict::Go => observed.permitted = Some(harm),
            Verdict::Held => return Some(End::Held),
            Verdict::Wait | Verdict::Confirm => return Some(End::Later(PairState::Pending, Some(GUARD_LOOK))),
        }
        None
    }

    /// Rule 3: a missing remote object is asked for, under the guard. `Ok(None)`: the plan can go on.
    pub(crate) async fn confirm_absence(
        &mut self,
        section: &Section,
        observed: &mut Observed,
        asked: &mut bool,
    ) -> Result<Option<End>, Error> {
        let Some((kind, list)) = known_missing(section) else {
            return Ok(Some(End::Later(PairState::Pending, Some(LISTING_LOOK))));
        };
        let own = section.is_own_pair(observed);
        section.index(|index| index.guard.suspect(self.key.clone(), Harm::Delete, own));
        match self.verdict(section) {
            Verdict::Held => return Ok(Some(End::Held)),
            Verdict::Wait => return Ok(Some(End::Later(PairState::Pending, Some(GUARD_LOOK)))),
            Verdict::Go if *asked => {
                observed.remote = Remote::Absent(Absence::Confirmed);
                return Ok(None);
            }
            // What was confirmed before it had to wait may have been so in another cluster: it is asked for again.
            Verdict::Go | Verdict::Confirm => {}
        }
        let Some(live) = section.remote_cluster().get(&kind, &observed.pair.remote).await? else {
            // Who says so must be the cluster that the cache is of.
            if known_missing(section).is_none_or(|(_, now)| now != list) {
                return Ok(Some(End::Later(PairState::Pending, Some(LISTING_LOOK))));
            }
            if let Some(source) = section.find_source(observed, list).await? {
                observed.source_lives_at = Some(source);
                return Ok(None);
            }
            self.confirmed(section, Harm::Delete);
            *asked = true;
            return Ok(None);
        };
        if is_selected(section, &live) {
            if section.index(|index| index.guard.clear(&self.key)) {
                section.suspects_may_go();
            }
            // It lives and is selected: the cache is behind and will show it.
            return Ok(Some(End::Later(PairState::Pending, Some(CATCH_UP))));
        }
        self.confirmed(section, Harm::LetGo);
        observed.remote = Remote::Absent(Absence::LeftSelector(Arc::new(live)));
        Ok(None)
    }
}
