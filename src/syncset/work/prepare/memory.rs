//! The memory that passes take for what they send: a limit for all of them, and one for each.
//!
//! There is one half for passes that take little and one for the others, so that those with large syncsets, which may be of slow clusters,
//! never keep the others waiting.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of the account. A semaphore's permits are counted in 32 bits where several are taken at once.
const UNIT: usize = 16 << 10;
/// A pass takes little if it takes at most this part of the memory for those.
const LITTLE: usize = 8;

/// Numbers of bytes that passes wait for. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    little: Pool,
    much: Pool,
}

#[derive(Clone, Debug)]
struct Pool {
    units: Arc<Semaphore>,
    /// What one pass may have.
    share: usize,
}

/// What a pass has of the memory. It is given back when it is dropped.
///
/// A pass that has some never waits for more, or two could wait for each other: it gives back what it has, and begins anew with
/// more.
#[derive(Debug)]
pub struct Weighed {
    pool: Pool,
    taken: Option<OwnedSemaphorePermit>,
}

impl Memory {
    /// So many bytes for all passes that take little, and so many for all others, of which one may have all.
    pub(super) fn of_bytes(little: usize, much: usize) -> Self {
        let units = |bytes: usize| (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let pool = |all, share| Pool { units: Arc::new(Semaphore::new(all)), share };
        let (little, much) = (units(little), units(much));
        Self { little: pool(little, (little / LITTLE).max(1)), much: pool(much, much) }
    }

    /// The bytes that one pass may have.
    pub(super) fn share(&self) -> usize {
        self.much.share * UNIT
    }

    /// Whether so many bytes are little.
    pub(super) fn is_little(&self, bytes: usize) -> bool {
        bytes.div_ceil(UNIT) <= self.little.share
    }

    /// Waits for so many bytes, or for as many as a pass may have if that is less.
    ///
    /// Cancel safe; whoever asks again is the last in the queue.
    pub(super) async fn take(&self, bytes: usize) -> Weighed {
        let pool = if self.is_little(bytes) { &self.little } else { &self.much };
        let units = u32::try_from(bytes.div_ceil(UNIT).min(pool.share)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let taken = Arc::clone(&pool.units).acquire_many_owned(units).await.ok();
        Weighed { pool: pool.clone(), taken }
    }
}

impl Weighed {
    /// Whether it may have so many bytes, for which it takes more if that is free.
    pub(super) fn has(&mut self, bytes: usize) -> bool {
        let needed = bytes.div_ceil(UNIT);
        let missing = needed.saturating_sub(self.units());
        if missing == 0 {
            return true;
        }
        if needed > self.pool.share {
            return false;
        }
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        match (Arc::clone(&self.pool.units).try_acquire_many_owned(missing), self.taken.as_mut()) {
            (Ok(more), Some(taken)) => taken.merge(more),
            (Ok(more), None) => self.taken = Some(more),
            (Err(_), _) => return false,
        }
        true
    }

    /// Gives back what is more than this.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let surplus = self.units().saturating_sub(bytes.div_ceil(UNIT));
        drop(self.taken.as_mut().and_then(|taken| taken.split(surplus)));
    }

    fn units(&self) -> usize {
        self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Passes that take little take up to 2 units.
    fn memory() -> Memory {
        Memory::of_bytes(16 * UNIT, 10 * UNIT)
    }

    #[tokio::test]
    async fn passes_together_never_have_more_than_the_memory_and_get_it_back() {
        let memory = memory();
        let (mut one, mut other) = (memory.take(3 * UNIT + 1).await, memory.take(4 * UNIT).await);
        assert_eq!((one.units(), other.units()), (4, 4));
        assert!(one.has(4 * UNIT), "it has that");
        assert!(one.has(6 * UNIT) && !other.has(5 * UNIT), "nothing is left");
        one.shrink(UNIT);
        assert!(other.has(9 * UNIT) && !one.has(2 * UNIT));
        other.shrink(90 * UNIT);
        assert_eq!((one.units(), other.units()), (1, 9), "shrinking takes nothing");
        let mut waiting = Box::pin(memory.take(5 * UNIT));
        assert!(waiting.as_mut().now_or_never().is_none(), "it waits");
        drop(other);
        assert_eq!(waiting.now_or_never().map(|weighed| weighed.units()), Some(5));
        drop(one);
        assert_eq!(memory.much.units.available_permits(), 10);
    }

    #[tokio::test]
    async fn a_pass_never_has_more_than_its_share() {
        let memory = memory();
        let mut alone = memory.take(11 * UNIT).await;
        assert_eq!((alone.units(), memory.share()), (10, 10 * UNIT));
        assert!(alone.has(10 * UNIT) && !alone.has(10 * UNIT + 1));
        alone.shrink(2 * UNIT);
        assert_eq!(alone.units(), 2);
        assert!(!alone.has(11 * UNIT), "although nobody has the rest");
        assert_eq!(alone.units(), 2, "it took nothing in vain");
    }

    #[tokio::test]
    async fn those_who_take_little_never_wait_for_those_who_take_much() {
        let memory = memory();
        let _all = memory.take(10 * UNIT).await;
        let mut large = Box::pin(memory.take(3 * UNIT));
        assert!(large.as_mut().now_or_never().is_none(), "it takes much, and waits");
        let mut small: Vec<Weighed> = Vec::new();
        while let Some(weighed) = memory.take(2 * UNIT).now_or_never() {
            small.push(weighed);
        }
        assert_eq!(small.len(), 8);
        drop(small.pop());
        let last = small.last_mut().expect("seven");
        assert!(!last.has(2 * UNIT + 1), "that would be much");
    }
}
