//! What comes of a pass: what is stored of it, and what the next one need not do again.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::Pass;
use super::item::KindKey;
use super::stored::is_undetermined;
use super::target::{Seen, Writes};
use crate::syncset::plan::name::{Digest, ObjectRef};
use crate::syncset::plan::reason::Retry;
use crate::syncset::plan::rows::{AppliedRow, Failure, ResultRow};
use crate::syncset::plan::wanted::Deletions;

/// Why nothing was deleted although nobody wants an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// It is a wanted object under another name of its kind.
    Wanted,
    /// It does not have our label.
    Unlabelled,
    /// Another syncset sent it last, or none.
    AnotherOwner,
    /// It existed before us, or was created anew by somebody else.
    Adopted,
    /// It is marked to be kept.
    Kept,
}

impl Release {
    /// Why the object of a row that nobody wants is not its syncset's to delete, if it is not. `rows` are all of the cluster.
    pub fn of<'r>(
        row: &AppliedRow,
        seen: &Seen,
        rows: impl IntoIterator<Item = &'r AppliedRow>,
        is_wanted: impl Fn(&ObjectRef) -> bool,
    ) -> Option<Self> {
        let is_another = row.uid.as_ref().is_some_and(|uid| *uid != seen.uid);
        // Who wants the object may not have sent it yet: then a row of somebody who no longer wants it knows its UID.
        let is_of_wanted = |of: &AppliedRow| of.uid.as_ref() == Some(&seen.uid) && is_wanted(&of.object);
        if rows.into_iter().any(is_of_wanted) {
            Some(Self::Wanted)
        } else if !seen.marks.managed {
            Some(Self::Unlabelled)
        } else if seen.marks.syncset != Some(row.syncset) {
            Some(Self::AnotherOwner)
        } else if seen.marks.adopted || is_another || (row.adopted && !is_undetermined(row)) {
            Some(Self::Adopted)
        } else if seen.marks.keep {
            Some(Self::Kept)
        } else {
            None
        }
    }

    /// In words, as what is said of the object.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Wanted => "a syncset wants it under another name of its kind",
            Self::Unlabelled => "it does not have the label hive.openshift.io/managed",
            Self::AnotherOwner => "it does not have the annotation of a syncset that has sent it",
            Self::Adopted => "it existed before, or was created by somebody else",
            Self::Kept => "it is marked to be kept",
        }
    }

    /// As the metric names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Wanted => "wanted",
            Self::Unlabelled => "unlabelled",
            Self::AnotherOwner => "another_owner",
            Self::Adopted => "adopted",
            Self::Kept => "kept",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything that was due was tried.
    Finished,
    /// It has made as many requests, or taken as long, as a pass may: the cluster is to be requeued.
    Yielded,
    /// It had to stop.
    Interrupted,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub end: End,
    /// What is still to be stored.
    pub writes: Writes,
    /// All results, for the status.
    pub results: Vec<ResultRow>,
    /// When it is tried again, by the failure that is tried again soonest, or with back-off if something that was deleted has to be gone
    /// first; none if nothing fails and nothing is waited for.
    pub retry: Option<Retry>,
    /// Whether deletions wait until the dispatcher has checked them, or were put off: it is tried again after 1 s.
    pub awaits_check: bool,
    /// Whether deletions are suspended.
    pub is_suspended: bool,
    /// What was not deleted, and why.
    pub releases: BTreeMap<Release, usize>,
    /// What this pass has sent although nothing of it is new, as the full passes before have, with the manager that has changed it
    /// each time, as far as that is known.
    pub contended: Vec<(ObjectRef, Option<String>)>,
    /// Syncsets that are gone and of which nothing is left but objects that are being deleted.
    pub ending: BTreeSet<Uuid>,
    /// Requests to the cluster, without discovery.
    pub requests: usize,
    /// What the next pass need not ask again, since this one had to end early. After a pass that finished it says only which kinds
    /// are asked for last.
    pub progress: Progress,
}

/// What a full pass has found in step or has sent, and what failed in a pass that yielded. Without it, a full pass over more objects than
/// one pass may send requests for would never end, and later syncsets would never have a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub(super) objects: BTreeSet<ObjectRef>,
    pub(super) patches: BTreeSet<(Uuid, usize)>,
    /// Looks that failed, of the syncsets that send the objects, with the inputs of these.
    pub(super) looks: BTreeMap<(ObjectRef, Uuid), (Digest, Failure)>,
    /// Objects that could not be deleted.
    pub(super) removals: BTreeMap<(ObjectRef, Uuid), Failure>,
    /// Objects that are being deleted: they are forgotten when they are gone. They may take any time: a pass that goes on does
    /// not look at them again, or many of them would keep all others from their turns.
    pub(super) ending: BTreeSet<(ObjectRef, Uuid)>,
    /// Syncsets that could not be sent, with their inputs. Their deletions may still be pending.
    pub(super) failed: BTreeMap<Uuid, (Digest, Failure)>,
    /// Syncsets whose turn ended in a failure, with their inputs.
    pub(super) ended: BTreeMap<Uuid, Digest>,
    /// Kinds whose list had not ended when the pass did: it may have no end. Of lists that are read at once it is the longest one.
    pub(super) unlisted: BTreeSet<KindKey>,
    /// Kinds for which the cluster gave no answer, which may take long each time.
    pub(super) slow_kinds: BTreeSet<KindKey>,
    /// Those of them that were asked for because of what is deleted. A pass that goes on does not ask again, or it would never get
    /// further.
    pub(super) unknown_within: BTreeSet<KindKey>,
}

#[cfg(test)]
impl Progress {
    /// Of a pass that has done something.
    pub(in crate::syncset) fn begun() -> Self {
        Self { slow_kinds: BTreeSet::from([("v1".to_owned(), "ConfigMap".to_owned())]), ..Self::default() }
    }
}

impl Pass {
    pub(super) fn take_writes(&mut self) -> Writes {
        if self.stored.has_changed() {
            for live in self.turns.iter().filter_map(|turn| self.live.get(*turn)) {
                let header = &live.header;
                let mut row = self.stored.result(header.id).cloned().unwrap_or_else(|| ResultRow {
                    syncset: header.id,
                    name: header.name.clone(),
                    inputs: ResultRow::UNFINISHED,
                    generation: 0,
                    failure: None,
                    since: self.started,
                    first_success: None,
                    has_pending_deletions: false,
                });
                row.inputs = ResultRow::UNFINISHED;
                self.stored.put_result(row);
            }
        }
        self.stored.take()
    }

    pub(super) fn outcome(&mut self, end: End) -> Outcome {
        let writes = self.take_writes();
        let pending = self.stored.rows().filter(|row| !row.wanted && row.tracked);
        let deletions: BTreeSet<_> = pending
            .map(|row| match self.deletions_of(row.syncset) {
                Deletions::Allowed => 0,
                Deletions::Suspended => 1,
                Deletions::Unchecked => 2,
            })
            .collect();
        let failures = self.stored.results().filter_map(|row| row.failure.as_ref());
        let mut retries: Vec<Retry> = failures.map(|failure| failure.reason.retry()).collect();
        retries.extend((!self.progress.ending.is_empty()).then_some(Retry::Look));
        let awaits_check = deletions.contains(&2) || (self.are_deletions_off && deletions.contains(&0));
        // No wait for a look is longer than the back-off of as many attempts.
        let mut by_time = [Retry::Look, Retry::Backoff];
        if awaits_check {
            by_time.reverse();
        }
        let soonest = by_time.into_iter().find(|retry| retries.contains(retry));
        Outcome {
            end,
            writes,
            results: self.stored.results().cloned().collect(),
            retry: soonest.or(retries.first().copied()),
            awaits_check,
            is_suspended: deletions.contains(&1),
            releases: std::mem::take(&mut self.releases),
            contended: std::mem::take(&mut self.contended),
            ending: self.ending(),
            requests: self.requests,
            progress: self.progress_after(end),
        }
    }

    /// Failures are carried over only to a pass that continues at once: after an interruption the next pass comes later and tries
    /// everything again.
    fn progress_after(&mut self, end: End) -> Progress {
        let mut progress = std::mem::take(&mut self.progress);
        if end != End::Yielded {
            let Progress { objects, patches, unlisted, slow_kinds, .. } = progress;
            progress = Progress { slow_kinds, ..Progress::default() };
            if end == End::Interrupted && self.full {
                (progress.objects, progress.patches, progress.unlisted) = (objects, patches, unlisted);
            }
        }
        progress.unlisted.extend(self.longest_list());
        progress
    }
}
