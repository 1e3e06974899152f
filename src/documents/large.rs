//! Large bodies, documents and answers: only a few of them are in memory at a time.
//!
//! What a large text becomes takes many times as much. Small ones need no slot: their number is bounded by that of the requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::problem::{Problem, ProblemKind};

/// How long a request waits for a slot. A change with a large document takes about a second, and a client as long to send a body.
const PATIENCE: Duration = Duration::from_secs(10);

/// Slots for large ones. Clones share them.
#[derive(Clone, Debug)]
pub struct LargeSlots {
    free: Arc<Semaphore>,
    large: usize,
}

/// The slot of a large one, until its last clone is dropped; the default is none, which suffices for what is small.
#[derive(Clone, Debug, Default)]
pub struct LargeSlot(Option<Arc<OwnedSemaphorePermit>>);

impl LargeSlots {
    /// So many, for what has more than `large` bytes.
    pub fn new(most: usize, large: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)), large }
    }

    /// Whether so many bytes need a slot.
    pub fn is_large(&self, bytes: usize) -> bool {
        bytes > self.large
    }

    /// A slot for so many bytes, if they need one. It does not wait.
    pub fn try_take(&self, bytes: usize) -> Result<LargeSlot, Problem> {
        if !self.is_large(bytes) {
            return Ok(LargeSlot::default());
        }
        let permit = Arc::clone(&self.free).try_acquire_owned().map_err(|_| busy())?;
        Ok(LargeSlot(Some(Arc::new(permit))))
    }

    /// A slot, as soon as there is one. Whoever waits should have nothing large in memory.
    pub async fn take(&self) -> Result<LargeSlot, Problem> {
        match timeout(PATIENCE, Arc::clone(&self.free).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(LargeSlot(Some(Arc::new(permit)))),
            Ok(Err(_)) | Err(_) => Err(busy()),
        }
    }
}

impl LargeSlot {
    /// Whether it suffices for what is large.
    pub fn is_for_large(&self) -> bool {
        self.0.is_some()
    }
}

fn busy() -> Problem {
    Problem::new(ProblemKind::Busy, "too many large bodies and documents are under way")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 100;

    #[tokio::test(start_paused = true)]
    async fn a_large_one_has_its_place_until_all_its_clones_are_gone_and_small_ones_need_none() {
        let slots = LargeSlots::new(1, LARGE);
        let slot = slots.take().await.expect("there is one");
        let clone = slot.clone();
        drop(slot);
        let refused = [slots.try_take(LARGE + 1).err(), slots.take().await.err()];
        assert!(
            refused.iter().all(|refused| refused.as_ref().is_some_and(|problem| problem.kind == ProblemKind::Busy))
        );
        assert!(!slots.try_take(LARGE).expect("it needs none").is_for_large());
        drop(clone);
        assert!(slots.try_take(LARGE + 1).expect("it is free again").is_for_large());
    }
}
