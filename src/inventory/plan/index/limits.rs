//! Which releases are reported: the first ones by namespace and name, as many as [`Settings::max_releases`](super::Settings) and the size of the status allow.
//!
//! Only releases that have been reported, or could be, count. One that was reported and no longer is keeps its id and what was
//! acknowledged, in the status as long as there is room.

use std::collections::{BTreeMap, BTreeSet};

use super::Index;
use super::release::{Excluded, Release};
use crate::cluster::ObjectKey;
use crate::inventory::plan::status::{Condition, Entry};

/// The most bytes that releases may take in the status. The API server takes about 1.4 MiB (1,468,006 bytes) for the project as a whole,
/// with its spec, its conditions and its managed fields. 2,000 ordinary releases fit.
pub(super) const STATUS_BUDGET: usize = 1_400_000;

/// The most releases that are reported. About 700 bytes of the project's status are set aside for each, of which all may take 1.4 MB
/// together: beyond that, further releases are not reported, either.
pub(super) const MAX_RELEASES: usize = 2000;

impl Release {
    /// Whether it counts against the limits of what is reported: it was reported, or could be.
    fn counts(&self) -> bool {
        let is_readable = self.undecodable.is_none() && !self.has_no_id;
        let is_reported = self.newest.as_ref().is_some_and(|newest| newest.stage.is_reported());
        !self.is_gone && (self.entry.is_some() || is_reported && is_readable)
    }

    fn size(&self, key: &ObjectKey) -> usize {
        let facts = self.known.as_ref().map(|known| &known.facts);
        Entry::size(key, self.entry.as_ref(), facts, self.newest.as_ref())
    }

    /// Whether it is gone and the API does not want to know: nothing more is to be told of it.
    fn is_refused_for_good(&self) -> bool {
        self.is_gone && self.entry.as_ref().is_some_and(|entry| entry.rejected.is_some())
    }

    /// It is not reported any more. Its id stays its own if the API knows it. Returns whether the entry has changed.
    pub(super) fn set_aside(&mut self) -> bool {
        self.wanted = None;
        let is_unknown_to_the_api = self.posting.is_none() && !self.is_uncertain;
        let Some(entry) = self.entry.as_mut().filter(|_| is_unknown_to_the_api) else { return false };
        if entry.sent == 0 {
            self.entry = None;
            return true;
        }
        let was_announced = !entry.sending_hash.is_empty();
        entry.sending_hash.clear();
        was_announced
    }
}

impl Index {
    /// Decides which releases are reported. Returns those for which that has changed: they have to be observed again.
    pub(super) fn limit_reported(&mut self) -> Vec<ObjectKey> {
        let is_to_be_told =
            |release: &Release| release.is_gone && release.entry.is_some() && !release.is_refused_for_good();
        let gone = self.releases.iter().filter(|(_, release)| is_to_be_told(release));
        let of_gone: usize = gone.map(|(key, release)| release.size(key)).sum();
        let mut budget = self.settings.status_budget.saturating_sub(of_gone);
        let mut left_to_report = self.settings.max_releases;
        let mut moved = Vec::new();
        for (key, release) in &mut self.releases {
            let excluded = if !release.counts() {
                None
            } else if left_to_report == 0 {
                Some(Excluded::MaxReleases)
            } else if let Some(left) = budget.checked_sub(release.size(key)) {
                (budget, left_to_report) = (left, left_to_report - 1);
                None
            } else {
                Some(Excluded::StatusSize)
            };
            if release.excluded != excluded {
                release.excluded = excluded;
                moved.push(key.clone());
            }
        }
        self.forget_refused();
        moved
    }

    /// The entries that the status holds.
    pub(super) fn stored_entries(&self) -> BTreeMap<ObjectKey, Entry> {
        self.stored().map(|(key, entry)| (key.clone(), entry.stored())).collect()
    }

    /// What the status has room for: entries of releases that are gone, of reported ones, and as long as there is room of those that
    /// are not reported any more, and of those that are gone and rejected.
    fn stored(&self) -> impl Iterator<Item = (&ObjectKey, &Entry)> {
        let is_of_rank = |rank: usize, release: &Release| match rank {
            0 => release.is_gone && !release.is_refused_for_good(),
            1 => !release.is_gone && release.excluded.is_none(),
            2 => !release.is_gone && release.excluded.is_some(),
            _ => release.is_refused_for_good(),
        };
        let of_rank = move |rank| self.releases.iter().filter(move |(_, release)| is_of_rank(rank, release));
        let mut budget = self.settings.status_budget;
        (0..4).flat_map(of_rank).filter_map(move |(key, release)| {
            let entry = release.entry.as_ref()?;
            budget = budget.checked_sub(release.size(key))?;
            Some((key, entry))
        })
    }

    /// Forgets releases that are gone and rejected, and for which the status has no room: an API that never wants to know would let them
    /// become ever more, and a restart would forget them, too.
    fn forget_refused(&mut self) {
        let is_ended = |release: &Release| {
            release.is_refused_for_good()
                && release.newest.is_none()
                && release.posting.is_none()
                && !release.is_reading
        };
        if !self.releases.values().any(is_ended) {
            return;
        }
        let stored: BTreeSet<ObjectKey> = self.stored().map(|(key, _)| key.clone()).collect();
        self.releases.retain(|key, release| !is_ended(release) || stored.contains(key));
    }

    /// The condition that names how many releases are not reported, and why.
    pub(super) fn too_many(&self) -> Option<Condition> {
        let count = |why| self.releases.values().filter(|release| release.excluded == Some(why)).count();
        let which = |count: usize| if count == 1 { "1 release is".to_owned() } else { format!("{count} releases are") };
        let (beyond, large) = (count(Excluded::MaxReleases), count(Excluded::StatusSize));
        let most = self.settings.max_releases;
        let beyond = (beyond > 0).then(|| format!("{} beyond the first {most}, which are reported", which(beyond)));
        let large = (large > 0).then(|| format!("{} left out, since the status has no more room", which(large)));
        let reason = if beyond.is_some() { "MaxReleases" } else { "StatusSize" };
        let messages: Vec<String> = beyond.into_iter().chain(large).collect();
        (!messages.is_empty()).then(|| Condition::because("TooMany", true, reason, &messages.join("; ")))
    }
}
