//! Patches.

use super::item::PatchItem;
use super::target::{Manager, Refusal, Refused, Resolution, Seen, Target, Write, Written};
use super::{Flow, Pass, failure};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::PatchedRow;
use crate::syncset::plan::spec::{PatchType, Position};

impl Pass {
    pub(super) async fn send_patch<T: Target>(&mut self, target: &mut T, mut patch: Box<PatchItem>) -> Flow<T> {
        let key = (patch.desired.api_version.clone(), patch.desired.object.kind.clone());
        let place = Position::Patch(patch.position);
        let kind = (patch.object.group.clone(), patch.object.kind.clone());
        if !self.is_served(&key) && self.defined.contains(&kind) {
            self.step(target).await?;
            self.resolve_late(target, key.clone(), true).await?;
        }
        let failure = match self.kinds.get(&key) {
            Some(Ok(Resolution::Served { namespaced, .. })) => {
                if *namespaced && patch.object.namespace.is_empty() {
                    "default".clone_into(&mut patch.object.namespace);
                }
                return self.patch_if_due(target, &patch).await;
            }
            Some(Err(refused)) => failure::of_refusal(place, &patch.object, refused),
            Some(Ok(Resolution::OtherVersion { api_version })) => Self::unserved(&key, Some(api_version), place),
            Some(Ok(Resolution::NotServed)) | None => Self::unserved(&key, None, place),
        };
        // Its object may be another one when the kind is served again.
        self.note_patch(&patch, None);
        self.fail(patch.syncset, failure);
        Ok(())
    }

    async fn patch_if_due<T: Target>(&mut self, target: &mut T, patch: &PatchItem) -> Flow<T> {
        let Some(id) = self.live.get(patch.syncset).map(|live| live.header.id) else { return Ok(()) };
        let row = self.stored.patch(id, patch.position);
        let is_sent = row.is_some_and(|row| row.content == Some(patch.desired.content));
        let is_in_place = is_sent && !self.wrote.contains(&patch.object);
        if is_in_place && (!self.full || self.progress.patches.contains(&(id, patch.position))) {
            return Ok(());
        }
        self.step(target).await?;
        if is_in_place {
            match self.look(target, patch.address()).await? {
                Ok(Some(seen)) => {
                    let is_noted = |row: &PatchedRow| {
                        row.uid.as_ref() == Some(&seen.uid) && row.version.as_ref() == Some(&seen.version)
                    };
                    if self.stored.patch(id, patch.position).is_some_and(is_noted) {
                        self.progress.patches.insert((id, patch.position));
                        return Ok(());
                    }
                }
                Ok(None) => {
                    let message = format!("{} not found", patch.object);
                    self.refuse_patch(patch, &Refused { refusal: Refusal::NotFound, message });
                    return Ok(());
                }
                Err(refused) => {
                    self.refuse_patch(patch, &refused);
                    return Ok(());
                }
            }
        }
        self.patch(target, patch).await
    }

    async fn patch<T: Target>(&mut self, target: &mut T, patch: &PatchItem) -> Flow<T> {
        let desired = &patch.desired;
        let write = |patch_type| Write::Patch { patch_type, manager: Manager::Patch, body: &desired.body };
        let mut patched = self.write(target, patch.address(), write(desired.patch_type)).await?;
        // Some kinds know no strategic merge patches.
        let is_unsupported = |refused: &Refused| refused.refusal == Refusal::UnsupportedMediaType;
        if desired.patch_type == PatchType::Strategic && patched.as_ref().is_err_and(is_unsupported) {
            patched = self.write(target, patch.address(), write(PatchType::Merge)).await?;
        }
        match patched {
            Ok(Written { seen, .. }) if seen.is_terminating() => {
                let message = "the object is being deleted";
                let failure = failure::of_place(Position::Patch(patch.position), Reason::Terminating, message);
                self.note_patch(patch, None);
                self.fail(patch.syncset, failure);
            }
            Ok(Written { seen, .. }) => {
                self.note_patch(patch, Some(seen));
                // Others may patch the same object: a full pass that goes on from this one does not begin with it again.
                if let Some(live) = self.live.get(patch.syncset).filter(|_| self.full) {
                    self.progress.patches.insert((live.header.id, patch.position));
                }
            }
            Err(refused) => self.refuse_patch(patch, &refused),
        }
        Ok(())
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
