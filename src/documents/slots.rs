//! Slots for what callers of the API do: requests that are carried out, bodies that arrive, watches, what is large. No token gets more than
//! half of them, and some may be left to administrators of everything, so that operators get through whatever the others do.

use std::time::Duration;

use tokio::time::timeout;

use super::problem::{Problem, ProblemKind};
use crate::actor::{NoSlot, OwnSlots, Slot, Slots};

/// Who takes a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotOwner {
    /// The digest of its token. Whoever needs none may take all slots.
    pub token: Option<[u8; 32]>,
    /// Whether it may have those that are left to administrators.
    pub is_administrator: bool,
}

/// Slots for one thing. Clones share them.
#[derive(Clone, Debug)]
pub struct CallerSlots {
    /// A plural noun for messages: `watches`.
    what: &'static str,
    slots: Slots,
}

impl CallerSlots {
    /// So many, of which some are left to administrators.
    pub fn new(what: &'static str, most: usize, reserved: usize) -> Self {
        Self { what, slots: Slots::with_reserved(most, reserved) }
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.slots.taken()
    }

    /// A slot, unless too many are taken, by all or by this token. It does not wait.
    pub fn try_take(&self, owner: SlotOwner) -> Result<Slot, Problem> {
        self.of(owner).try_take(1).map_err(|no_slot| {
            let title = match no_slot {
                NoSlot::OfOwner => format!("the token has {} {} already", self.slots.most_of_owner(), self.what),
                NoSlot::OfAll => format!("this replica serves {} {} already", self.taken(), self.what),
            };
            Problem::new(ProblemKind::Busy, title)
        })
    }

    /// A slot, as soon as there is one, in the order of arrival. A token that has half waits for its own slots, and holds up no other.
    pub async fn take(&self, owner: SlotOwner, patience: Duration) -> Result<Slot, Problem> {
        match timeout(patience, self.of(owner).take(1)).await {
            Ok(slot) => Ok(slot),
            Err(_) => self.try_take(owner),
        }
    }

    fn of(&self, owner: SlotOwner) -> OwnSlots {
        let slots = owner.token.map_or_else(|| self.slots.of_all(), |token| self.slots.of(token));
        if owner.is_administrator { slots.or_reserved() } else { slots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_in_vain_is_told_why_and_an_administrator_finds_a_slot() {
        let token = |token: u8| SlotOwner { token: Some([token; 32]), is_administrator: false };
        let slots = CallerSlots::new("large answers", 3, 1);
        let _held = slots.try_take(token(1)).expect("a slot");
        let refused = slots.take(token(1), PATIENCE).await.expect_err("it has its half");
        assert_eq!((refused.kind, &*refused.title), (ProblemKind::Busy, "the token has 1 large answers already"));
        let _other = slots.take(SlotOwner::default(), PATIENCE).await.expect("a slot");
        let refused = slots.take(token(3), PATIENCE).await.expect_err("one is left to administrators");
        assert_eq!(refused.title, "this replica serves 2 large answers already");
        let administrator = SlotOwner { is_administrator: true, ..token(3) };
        assert!(slots.try_take(administrator).is_ok());
        assert_eq!(slots.taken(), 2, "it is dropped");
    }
}
