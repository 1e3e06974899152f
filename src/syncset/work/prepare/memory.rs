//! The memory that passes take for what they send: a limit for all of them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of the account. A semaphore's permits are counted in 32 bits where several are taken at once.
const UNIT: usize = 16 << 10;

/// A number of bytes that passes wait for. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    units: Arc<Semaphore>,
    all: usize,
}

/// What a pass has of the memory. It is given back when it is dropped.
///
/// A pass that has some never waits for more, or two could wait for each other: it gives back what it has, and begins anew with
/// more.
#[derive(Debug)]
pub struct Weighed {
    memory: Memory,
    taken: Option<OwnedSemaphorePermit>,
}

impl Memory {
    /// So many bytes.
    pub(super) fn of_bytes(bytes: usize) -> Self {
        let all = (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self { units: Arc::new(Semaphore::new(all)), all }
    }

    /// Waits for so many bytes, or for all of them if that is less.
    pub(super) async fn take(&self, bytes: usize) -> Weighed {
        let units = u32::try_from(self.units_of(bytes)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let taken = Arc::clone(&self.units).acquire_many_owned(units).await.ok();
        Weighed { memory: self.clone(), taken }
    }

    fn units_of(&self, bytes: usize) -> usize {
        bytes.div_ceil(UNIT).min(self.all)
    }
}

impl Weighed {
    /// Whether it may have so many bytes, for which it takes more if that is free. One that has everything is not limited: what one
    /// cluster needs has to be there at once.
    pub(super) fn has(&mut self, bytes: usize) -> bool {
        let missing = self.memory.units_of(bytes).saturating_sub(self.units());
        if missing == 0 {
            return true;
        }
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        match (Arc::clone(&self.memory.units).try_acquire_many_owned(missing), self.taken.as_mut()) {
            (Ok(more), Some(taken)) => taken.merge(more),
            (Ok(more), None) => self.taken = Some(more),
            (Err(_), _) => return false,
        }
        true
    }

    /// Gives back what is more than this.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let surplus = self.units().saturating_sub(self.memory.units_of(bytes));
        drop(self.taken.as_mut().and_then(|taken| taken.split(surplus)));
    }

    fn units(&self) -> usize {
        self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn passes_together_never_have_more_than_the_memory_and_get_it_back() {
        let memory = Memory::of_bytes(10 * UNIT);
        let (mut one, mut other) = (memory.take(3 * UNIT + 1).await, memory.take(4 * UNIT).await);
        assert_eq!((one.units(), other.units()), (4, 4));
        assert!(one.has(4 * UNIT), "it has that");
        assert!(one.has(6 * UNIT) && !other.has(5 * UNIT), "nothing is left");
        one.shrink(UNIT);
        assert!(other.has(9 * UNIT) && !one.has(2 * UNIT));
        other.shrink(90 * UNIT);
        assert_eq!((one.units(), other.units()), (1, 9), "shrinking takes nothing");
        let waiting = tokio::spawn({
            let memory = memory.clone();
            async move { memory.take(5 * UNIT).await.units() }
        });
        drop(other);
        assert_eq!(waiting.await.expect("no panic"), 5);
        drop(one);
        assert_eq!(memory.units.available_permits(), 10);
    }

    #[tokio::test]
    async fn a_pass_that_needs_more_than_there_is_has_everything_and_no_limit() {
        let memory = Memory::of_bytes(10 * UNIT);
        let mut alone = memory.take(11 * UNIT).await;
        assert_eq!(alone.units(), 10);
        assert!(alone.has(usize::MAX));
        alone.shrink(2 * UNIT);
        assert_eq!(alone.units(), 2);
        assert!(alone.has(99 * UNIT), "nobody has the rest");
        assert_eq!(alone.units(), 10);
    }
}
