//! Deleting an object that can't be changed, so that it can be created again.

use super::ask::Ask;
use super::failure;
use super::item::Item;
use super::run::{CHANGED, Pass, unexpected};
use super::step::{Answer, Refusal, Refused, Release, Seen};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::object::NEVER_RECREATED;
use crate::syncset::plan::rows::AppliedRow;
use crate::syncset::plan::status::Reason;
use crate::syncset::plan::wanted::Deletions;

impl Pass {
    /// What the cluster does not accept as a change, it may accept as a new object. Only an object that is known to be ours may be
    /// deleted for that, as it was seen after the refusal, and only by a syncset that may delete.
    pub(super) fn refuse_or_recreate(&mut self, item: Box<Item>, refused: Refused, seen: Seen) {
        let kind = (item.object.group.as_str(), item.object.kind.as_str());
        let may_delete = self.live.get(item.syncset).is_some_and(|live| live.deletions == Deletions::Allowed);
        let may_recreate = item.desired.may_recreate && may_delete && !NEVER_RECREATED.contains(&kind);
        if refused.refusal != Refusal::Invalid || !may_recreate {
            self.refuse(&item, &refused);
        } else if seen.is_terminating() {
            self.fail_terminating(&item);
        } else if let Some(release) = self.not_ours(&item, &seen) {
            self.refuse_to_recreate(&item, &refused, release.reason());
        } else {
            self.follow_up = Some(Ask::Probe(item, refused, seen));
        }
    }

    /// Why an object is not ours to delete, none if it is: the same rules as for an object that nobody wants. The known facts come from the
    /// syncset that sent it last, which need not be the one that sends it now.
    fn not_ours(&self, item: &Item, seen: &Seen) -> Option<Release> {
        let own = self.live.get(item.syncset).map(|live| live.header.id);
        let is_wanted = |object: &ObjectRef| *object != item.object && self.wanted.winner(object).is_some();
        let mut release = None;
        for row in self.stored.rows_of(&item.object) {
            let row = AppliedRow { uid: item.facts.uid.clone(), adopted: item.facts.adopted, ..row.clone() };
            let found = Release::of(&row, seen, self.stored.rows(), is_wanted)?;
            if release.is_none() || Some(row.syncset) == own {
                release = Some(found);
            }
        }
        // Without a row nothing is known of it.
        release.or(Some(Release::AnotherOwner))
    }

    pub(super) fn probed(&mut self, item: Box<Item>, refused: Refused, seen: Seen, reply: &Result<Answer, Refused>) {
        match reply {
            Err(answer) if answer.refusal == Refusal::Exists && self.are_deletions_off => {
                self.refuse_to_recreate(&item, &refused, CHANGED);
            }
            Err(answer) if answer.refusal == Refusal::Exists => {
                self.follow_up = Some(Ask::Replace(item, refused, seen));
            }
            _ => self.refuse(&item, &refused),
        }
    }

    pub(super) fn refuse_to_recreate(&mut self, item: &Item, refused: &Refused, why: &str) {
        let message = format!("{}; it is not deleted to be created again: {why}", refused.message);
        self.refuse(item, &Refused { refusal: refused.refusal, message });
    }

    pub(super) fn replaced(&mut self, item: &Item, refused: &Refused, reply: Result<Answer, Refused>) {
        match reply {
            Ok(Answer::Deleted(_)) => {
                let message = "the object is being deleted, to be created again";
                self.fail(item.syncset, failure::of_place(item.desired.place, Reason::Terminating, message));
            }
            Ok(_) => self.refuse(item, &unexpected()),
            // It has changed since it was seen. The next pass finds out what it is now.
            Err(answer) if answer.refusal == Refusal::Conflict => self.refuse(item, refused),
            Err(answer) => self.refuse(item, &answer),
        }
    }
}
