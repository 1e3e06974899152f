//! Large bodies, documents and answers: only a few of them are in memory at a time.
//!
//! What a large text becomes takes many times as much. Small ones need no place: their number is bounded by that of the requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::problem::{Problem, ProblemKind};

/// How long a request waits for a place. A change with a large document takes about a second, and a client as long to send a body.
const PATIENCE: Duration = Duration::from_secs(10);

/// Places for large ones. Clones share them.
#[derive(Clone, Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    large: usize,
}

/// The place of a large one, until its last clone is dropped; the default is none, which suffices for what is small.
#[derive(Clone, Debug, Default)]
pub struct Place(Option<Arc<OwnedSemaphorePermit>>);

impl Places {
    /// So many, for what has more than `large` bytes.
    pub fn new(most: usize, large: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)), large }
    }

    /// Whether so many bytes need a place.
    pub fn is_large(&self, bytes: usize) -> bool {
        bytes > self.large
    }

    /// A place for so many bytes, if they need one. It does not wait.
    pub fn try_take(&self, bytes: usize) -> Result<Place, Problem> {
        if !self.is_large(bytes) {
            return Ok(Place::default());
        }
        let permit = Arc::clone(&self.free).try_acquire_owned().map_err(|_| busy())?;
        Ok(Place(Some(Arc::new(permit))))
    }

    /// A place, as soon as there is one. Whoever waits should have nothing large in memory.
    pub async fn take(&self) -> Result<Place, Problem> {
        match timeout(PATIENCE, Arc::clone(&self.free).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Place(Some(Arc::new(permit)))),
            Ok(Err(_)) | Err(_) => Err(busy()),
        }
    }
}

impl Place {
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
        let places = Places::new(1, LARGE);
        let place = places.take().await.expect("there is one");
        let clone = place.clone();
        drop(place);
        let refused = [places.try_take(LARGE + 1).err(), places.take().await.err()];
        assert!(
            refused.iter().all(|refused| refused.as_ref().is_some_and(|problem| problem.kind == ProblemKind::Busy))
        );
        assert!(!places.try_take(LARGE).expect("it needs none").is_for_large());
        drop(clone);
        assert!(places.try_take(LARGE + 1).expect("it is free again").is_for_large());
    }
}
