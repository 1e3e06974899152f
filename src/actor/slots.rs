//! Slots: how many of something a process does or holds at once. Nobody gets more than half of them: whatever somebody holds, and for
//! however long, the others have the other half. Where a slot stands for bytes, slots are a budget.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Slots of one kind. Clones share them.
#[derive(Clone, Debug)]
pub struct Slots(Arc<All>);

#[derive(Debug)]
struct All {
    most: usize,
    common: Arc<Semaphore>,
    /// Those that are left to operators.
    reserved: Arc<Semaphore>,
    /// Half of all for each owner that has some or waits. The lock is held for one look.
    owners: Mutex<HashMap<Box<[u8]>, Arc<Semaphore>>>,
}

/// What one owner may have. Clones share it.
#[derive(Clone, Debug)]
pub struct OwnSlots {
    all: Arc<All>,
    /// None for who may have all of them.
    own: Option<Arc<Semaphore>>,
    may_use_reserved: bool,
}

/// One or more slots, until it is dropped.
#[derive(Debug)]
pub struct Slot {
    _of_owner: Option<OwnedSemaphorePermit>,
    _of_all: OwnedSemaphorePermit,
}

/// Why no slot is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlot {
    /// The owner has half of them.
    OfOwner,
    OfAll,
}

impl Slots {
    /// So many, of which an owner gets half, and at least one.
    pub fn new(most: usize) -> Self {
        Self::with_reserved(most, 0)
    }

    /// So many, of which some are left to operators.
    pub fn with_reserved(most: usize, reserved: usize) -> Self {
        let semaphore = |slots: usize| Arc::new(Semaphore::new(slots.min(Semaphore::MAX_PERMITS)));
        let (common, reserved) = (semaphore(most.saturating_sub(reserved)), semaphore(reserved));
        Self(Arc::new(All { most, common, reserved, owners: Mutex::default() }))
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.0.most.saturating_sub(self.0.common.available_permits() + self.0.reserved.available_permits())
    }

    /// How many an owner gets at most.
    pub fn most_of_owner(&self) -> usize {
        (self.0.most / 2).clamp(1, Semaphore::MAX_PERMITS)
    }

    /// Those of this owner. Nothing is remembered of owners without slots.
    pub fn of(&self, owner: impl AsRef<[u8]>) -> OwnSlots {
        let mut owners = self.0.owners.lock();
        owners.retain(|_, own| Arc::strong_count(own) > 1);
        let own = owners.entry(owner.as_ref().into()).or_insert_with(|| Arc::new(Semaphore::new(self.most_of_owner())));
        OwnSlots { all: Arc::clone(&self.0), own: Some(Arc::clone(own)), may_use_reserved: false }
    }

    /// Those of somebody who may have all that are not reserved.
    pub fn of_all(&self) -> OwnSlots {
        OwnSlots { all: Arc::clone(&self.0), own: None, may_use_reserved: false }
    }
}

impl OwnSlots {
    /// The same, and the reserved ones as well.
    #[must_use]
    pub fn or_reserved(self) -> Self {
        Self { may_use_reserved: true, ..self }
    }

    /// So many slots, at most half of all, as soon as they are free, in the order of arrival. Who waits for their own half holds up no other.
    ///
    /// Cancel safe.
    pub async fn take(&self, slots: u32) -> Slot {
        let of_owner = match &self.own {
            None => None,
            Some(own) => Some(acquired(own, slots).await),
        };
        let of_all = tokio::select! {
            biased;
            common = acquired(&self.all.common, slots) => common,
            reserved = acquired(&self.all.reserved, slots), if self.may_use_reserved => reserved,
        };
        Slot { _of_owner: of_owner, _of_all: of_all }
    }

    /// So many slots, if they are free.
    pub fn try_take(&self, slots: u32) -> Result<Slot, NoSlot> {
        let free = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).try_acquire_many_owned(slots).ok();
        let of_owner = match &self.own {
            None => None,
            Some(own) => Some(free(own).ok_or(NoSlot::OfOwner)?),
        };
        let reserved = || free(&self.all.reserved).filter(|_| self.may_use_reserved);
        let of_all = free(&self.all.common).or_else(reserved).ok_or(NoSlot::OfAll)?;
        Ok(Slot { _of_owner: of_owner, _of_all: of_all })
    }

    /// How many it may still have.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        let common = self.all.common.available_permits();
        self.own.as_ref().map_or(common, |own| own.available_permits().min(common))
    }
}

async fn acquired(semaphore: &Arc<Semaphore>, slots: u32) -> OwnedSemaphorePermit {
    match Arc::clone(semaphore).acquire_many_owned(slots).await {
        Ok(permit) => permit,
        // It is never closed.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn nobody_holds_more_than_half_and_who_waits_for_more_holds_up_no_other() {
        let slots = Slots::new(16);
        let (one, other) = (slots.of("one"), slots.of("other"));
        let held = one.try_take(5).expect("free slots");
        assert_eq!(one.try_take(4).err(), Some(NoSlot::OfOwner), "nine are more than half");
        let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(one.take(8))).collect();
        assert!(waiting.iter_mut().all(|waits| waits.as_mut().now_or_never().is_none()));
        assert!(slots.of("one").try_take(3).is_err(), "the half is one, however often it is asked for");
        let all = other.take(8).now_or_never().expect("free slots at once");
        assert_eq!((slots.taken(), other.free()), (13, 0));
        drop((waiting, all));
        let more = one.try_take(3).expect("who has given up takes no slot");
        assert_eq!((slots.taken(), one.free()), (8, 0));
        drop((held, more, one, other));
        let third = slots.of("third");
        assert_eq!((third.free(), slots.0.owners.lock().len()), (8, 1), "nothing is remembered of the others");
    }

    #[test]
    fn reserved_slots_are_taken_by_nobody_else_and_only_when_no_other_is_free() {
        let slots = Slots::with_reserved(8, 1);
        let all: Vec<_> = (0..4_u8).map(|owner| [(); 2].map(|()| slots.of([owner]).try_take(1))).collect();
        let taken = all.iter().flatten().filter(|slot| slot.is_ok()).count();
        assert_eq!((taken, slots.of([9_u8]).try_take(1).err()), (7, Some(NoSlot::OfAll)));
        let operator = slots.of([9_u8]).or_reserved();
        let held = operator.take(1).now_or_never().expect("the reserved one");
        assert_eq!((slots.taken(), operator.try_take(1).err()), (8, Some(NoSlot::OfAll)));
        let anybody = slots.of_all();
        let mut waits = Box::pin(anybody.take(1));
        drop(held);
        assert!(waits.as_mut().now_or_never().is_none(), "it is reserved again");
        drop(all);
        assert!(waits.now_or_never().is_some());
    }
}
