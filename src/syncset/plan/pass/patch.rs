//! Patches.

use super::ask::Ask;
use super::failure;
use super::item::{PatchItem, Work};
use super::run::{Pass, unexpected};
use super::step::{Answer, Refusal, Refused, Resolution, Seen};
use crate::syncset::plan::rows::PatchedRow;
use crate::syncset::plan::spec::{PatchType, Position};
use crate::syncset::plan::status::Reason;

impl Pass {
    pub(super) fn begin_patch(&mut self, mut patch: Box<PatchItem>) -> Option<Ask> {
        let key = (patch.desired.api_version.clone(), patch.desired.object.kind.clone());
        let place = Position::Patch(patch.position);
        let failure = match self.kinds.get(&key) {
            Some(Ok(Resolution::Served { namespaced, .. })) => {
                if *namespaced && patch.object.namespace.is_empty() {
                    "default".clone_into(&mut patch.object.namespace);
                }
                return self.send_patch(patch);
            }
            Some(Err(refused)) => failure::of_refusal(place, &patch.object, refused),
            Some(Ok(Resolution::OtherVersion { api_version })) => Self::unserved(&key, Some(api_version), place),
            Some(Ok(Resolution::NotServed)) | None => Self::unserved(&key, None, place),
        };
        let kind = (patch.object.group.clone(), patch.object.kind.clone());
        if patch.has_waited || !self.defined.contains(&kind) {
            // Its object may be another one when the kind is served again.
            self.note_patch(&patch, None);
            self.fail(patch.syncset, failure);
            return None;
        }
        patch.has_waited = true;
        self.works.insert((patch.syncset, place), Work::Patch(patch));
        Some(Ask::Kind { key, wait: true })
    }

    fn send_patch(&self, patch: Box<PatchItem>) -> Option<Ask> {
        let id = self.live.get(patch.syncset)?.header.id;
        let row = self.stored.patch(id, patch.position);
        let is_sent = row.is_some_and(|row| row.content == Some(patch.desired.content));
        if !is_sent || self.wrote.contains(&patch.object) {
            return Some(Ask::Patch(patch));
        }
        let is_checked = self.full && !self.progress.patches.contains(&(id, patch.position));
        is_checked.then_some(Ask::LookForPatch(patch))
    }

    pub(super) fn looked_for_patch(&mut self, patch: Box<PatchItem>, reply: Result<Answer, Refused>) {
        let Some(id) = self.live.get(patch.syncset).map(|live| live.header.id) else { return };
        match reply {
            Ok(Answer::Found(Some(seen))) => {
                let is_noted = |row: &PatchedRow| {
                    row.uid.as_ref() == Some(&seen.uid) && row.version.as_ref() == Some(&seen.version)
                };
                if self.stored.patch(id, patch.position).is_some_and(is_noted) {
                    self.progress.patches.insert((id, patch.position));
                } else {
                    self.follow_up = Some(Ask::Patch(patch));
                }
            }
            Ok(Answer::Found(None)) => {
                let message = format!("{} not found", patch.object);
                self.refuse_patch(&patch, &Refused { refusal: Refusal::NotFound, message });
            }
            Ok(_) => self.refuse_patch(&patch, &unexpected()),
            Err(refused) => self.refuse_patch(&patch, &refused),
        }
    }

    pub(super) fn patched(&mut self, mut patch: Box<PatchItem>, reply: Result<Answer, Refused>) {
        match reply {
            Ok(Answer::Written { seen, .. }) if seen.is_terminating() => {
                let message = "the object is being deleted";
                let failure = failure::of_place(Position::Patch(patch.position), Reason::Terminating, message);
                self.note_patch(&patch, None);
                self.fail(patch.syncset, failure);
            }
            Ok(Answer::Written { seen, .. }) => {
                self.note_patch(&patch, Some(seen));
                // Others may patch the same object: a full pass that goes on from this one does not begin with it again.
                if let Some(live) = self.live.get(patch.syncset).filter(|_| self.full) {
                    self.progress.patches.insert((live.header.id, patch.position));
                }
            }
            Ok(_) => self.refuse_patch(&patch, &unexpected()),
            Err(refused) => {
                let is_strategic = patch.desired.patch_type == PatchType::Strategic && !patch.as_merge;
                if refused.refusal == Refusal::UnsupportedMediaType && is_strategic {
                    patch.as_merge = true;
                    self.follow_up = Some(Ask::Patch(patch));
                } else {
                    self.refuse_patch(&patch, &refused);
                }
            }
        }
    }

    fn refuse_patch(&mut self, patch: &PatchItem, refused: &Refused) {
        self.note_patch(patch, None);
        self.fail(patch.syncset, failure::of_refusal(Position::Patch(patch.position), &patch.object, refused));
    }

    fn note_patch(&mut self, patch: &PatchItem, seen: Option<Seen>) {
        let Some(syncset) = self.live.get(patch.syncset).map(|live| live.header.id) else { return };
        let content = seen.is_some().then_some(patch.desired.content);
        let (uid, version) = seen.map(|seen| (seen.uid, seen.version)).unzip();
        self.stored.put_patch(PatchedRow { syncset, position: patch.position, content, uid, version });
    }
}
