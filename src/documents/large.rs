//! Large bodies, documents and answers: only a few of them are in memory at a time.
//!
//! What a large text becomes takes many times as much. Small ones need no slot: their number is bounded by that of the requests.

use std::sync::Arc;
use std::time::Duration;

use super::problem::Problem;
use super::slots::{CallerSlots, SlotOwner};
use crate::actor::Slot;

/// How long a request waits for a slot. A change with a large document takes about a second, and a client as long to send a body.
const PATIENCE: Duration = Duration::from_secs(10);
/// One in so many is left to administrators.
const RESERVED: usize = 8;

/// Slots for large ones. Clones share them.
#[derive(Clone, Debug)]
pub struct LargeSlots {
    slots: CallerSlots,
    large: usize,
}

/// The slot of a large one, until its last clone is dropped, or none, which suffices for what is small; and whose it is.
#[derive(Clone, Debug, Default)]
pub struct LargeSlot {
    owner: SlotOwner,
    slot: Option<Arc<Slot>>,
}

impl LargeSlots {
    /// So many, for what has more than `large` bytes. `what` they are, in the plural.
    pub fn new(what: &'static str, most: usize, large: usize) -> Self {
        Self { slots: CallerSlots::new(what, most, most / RESERVED), large }
    }

    /// Whether so many bytes need a slot.
    pub fn is_large(&self, bytes: usize) -> bool {
        bytes > self.large
    }

    /// A slot for so many bytes, if they need one. It does not wait.
    pub fn try_take(&self, bytes: usize, owner: SlotOwner) -> Result<LargeSlot, Problem> {
        if !self.is_large(bytes) {
            return Ok(LargeSlot::none(owner));
        }
        let slot = self.slots.try_take(owner)?;
        Ok(LargeSlot { owner, slot: Some(Arc::new(slot)) })
    }

    /// A slot, as soon as there is one. Whoever waits should have nothing large in memory.
    pub async fn take(&self, owner: SlotOwner) -> Result<LargeSlot, Problem> {
        let slot = self.slots.take(owner, PATIENCE).await?;
        Ok(LargeSlot { owner, slot: Some(Arc::new(slot)) })
    }
}

impl LargeSlot {
    /// None, for who has sent nothing large so far.
    pub fn none(owner: SlotOwner) -> Self {
        Self { owner, slot: None }
    }

    /// Whether it suffices for what is large.
    pub fn is_for_large(&self) -> bool {
        self.slot.is_some()
    }

    /// Whose it is.
    pub fn owner(&self) -> SlotOwner {
        self.owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::ProblemKind;

    const LARGE: usize = 100;

    #[tokio::test(start_paused = true)]
    async fn a_large_one_has_its_slot_until_all_its_clones_are_gone_and_small_ones_need_none() {
        let slots = LargeSlots::new("large ones", 1, LARGE);
        let anybody = SlotOwner::default();
        let slot = slots.take(anybody).await.expect("there is one");
        let clone = slot.clone();
        drop(slot);
        let refused = [slots.try_take(LARGE + 1, anybody).err(), slots.take(anybody).await.err()];
        assert!(
            refused.iter().all(|refused| refused.as_ref().is_some_and(|problem| problem.kind == ProblemKind::Busy))
        );
        assert!(!slots.try_take(LARGE, anybody).expect("it needs none").is_for_large());
        drop(clone);
        assert!(slots.try_take(LARGE + 1, anybody).expect("it is free again").is_for_large());
    }
}
