//! Room for what a process holds for many, of which nobody gets more than half: whatever somebody holds, and for however long, the others
//! have the other half.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Units of room. Clones share them.
#[derive(Clone, Debug)]
pub struct Halves {
    all: Arc<Semaphore>,
    /// Of one.
    most: usize,
    /// A half for each that uses or holds one. The lock is held for one look.
    each: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

/// What one of them may have. Clones share it.
#[derive(Clone, Debug)]
pub struct Half {
    all: Arc<Semaphore>,
    own: Arc<Semaphore>,
}

/// Units that are held, until they are dropped.
#[derive(Debug)]
pub struct Held {
    of_all: OwnedSemaphorePermit,
    of_own: OwnedSemaphorePermit,
}

impl Halves {
    /// So many units, of which each gets so many.
    pub fn of_each(most: usize) -> Self {
        let all = most.saturating_mul(2).clamp(2, Semaphore::MAX_PERMITS);
        Self { all: Arc::new(Semaphore::new(all)), most: all / 2, each: Arc::default() }
    }

    /// The half of this one. Nothing is remembered of those who don't use theirs.
    pub fn half(&self, of: &str) -> Half {
        let mut halves = self.each.lock();
        halves.retain(|_, half| Arc::strong_count(half) > 1);
        let own = halves.entry(of.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.most)));
        Half { all: Arc::clone(&self.all), own: Arc::clone(own) }
    }
}

impl Half {
    /// So many units, at most all of the half, as soon as they are free. Whoever waits for their own half holds up nobody else.
    ///
    /// Cancel safe.
    pub async fn take(&self, units: u32) -> Held {
        let of_own = acquired(&self.own, units).await;
        Held { of_own, of_all: acquired(&self.all, units).await }
    }

    /// So many units, if they are free.
    pub fn try_take(&self, units: u32) -> Option<Held> {
        let of_own = Arc::clone(&self.own).try_acquire_many_owned(units).ok()?;
        let of_all = Arc::clone(&self.all).try_acquire_many_owned(units).ok()?;
        Some(Held { of_all, of_own })
    }

    /// How many units it may still have.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.own.available_permits().min(self.all.available_permits())
    }
}

impl Held {
    pub fn units(&self) -> usize {
        self.of_own.num_permits()
    }

    /// Holds these, too, which are of the same half.
    pub fn add(&mut self, more: Self) {
        self.of_all.merge(more.of_all);
        self.of_own.merge(more.of_own);
    }
}

async fn acquired(room: &Arc<Semaphore>, units: u32) -> OwnedSemaphorePermit {
    match Arc::clone(room).acquire_many_owned(units).await {
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
        let halves = Halves::of_each(8);
        let (one, other) = (halves.half("one"), halves.half("other"));
        let mut held = one.try_take(5).expect("room");
        assert!(one.try_take(4).is_none(), "nine are more than half");
        let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(one.take(8))).collect();
        assert!(waiting.iter_mut().all(|waits| waits.as_mut().now_or_never().is_none()));
        assert!(halves.half("one").try_take(3).is_none(), "the half is one, however often it is asked for");
        let all = other.take(8).now_or_never().expect("room at once");
        assert_eq!((all.units(), other.free()), (8, 0));
        drop((waiting, all));
        held.add(one.try_take(3).expect("who has given up takes no room"));
        assert_eq!((held.units(), one.free()), (8, 0));
        drop((held, one, other));
        let third = halves.half("third");
        assert_eq!((third.free(), halves.each.lock().len()), (8, 1), "nothing is remembered of the others");
    }
}
