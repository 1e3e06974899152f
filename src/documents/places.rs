//! Places for what a process has few of: requests that are carried out, bodies that arrive, watches, what is large.
//!
//! No token gets more than half of them, so that none keeps the others out, and some may be left to administrators of everything, so that
//! operators get through whatever the others do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::problem::{Problem, ProblemKind};

/// Who takes a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taker {
    /// The digest of its token. Whoever needs none may take all places.
    pub token: Option<[u8; 32]>,
    /// Whether it may have those that are left to administrators.
    pub is_administrator: bool,
}

/// Places for one thing.
#[derive(Debug)]
pub struct Places {
    /// A plural noun for messages: `watches`.
    what: &'static str,
    most: usize,
    common: Arc<Semaphore>,
    /// Those that are left to administrators.
    reserved: Arc<Semaphore>,
    /// Half of all places for each token that has some or waits. A lock, since all requests look here; it is held for one look.
    of_tokens: Mutex<HashMap<[u8; 32], Arc<Semaphore>>>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    _of_token: Option<OwnedSemaphorePermit>,
    _of_all: OwnedSemaphorePermit,
}

impl Places {
    /// So many, of which some are left to administrators.
    pub fn new(what: &'static str, most: usize, reserved: usize) -> Self {
        let semaphore = |places: usize| Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
        let (common, reserved) = (semaphore(most.saturating_sub(reserved)), semaphore(reserved));
        Self { what, most, common, reserved, of_tokens: Mutex::default() }
    }

    /// How many are taken.
    pub fn count(&self) -> usize {
        self.most.saturating_sub(self.common.available_permits() + self.reserved.available_permits())
    }

    /// A place, unless too many are taken, by all or by this token. It does not wait.
    pub fn try_take(&self, taker: Taker) -> Result<Place, Problem> {
        let busy = |title: String| Problem::new(ProblemKind::Busy, title);
        let of_token = match self.of_token(taker) {
            None => None,
            Some(half) => Some(
                half.try_acquire_owned()
                    .map_err(|_| busy(format!("the token has {} {} already", self.most_of_one(), self.what)))?,
            ),
        };
        let common = Arc::clone(&self.common).try_acquire_owned();
        let of_all = common.or_else(|none| {
            if taker.is_administrator { Arc::clone(&self.reserved).try_acquire_owned() } else { Err(none) }
        });
        let of_all = of_all.map_err(|_| busy(format!("this replica serves {} {} already", self.count(), self.what)))?;
        Ok(Place { _of_token: of_token, _of_all: of_all })
    }

    /// A place, as soon as there is one, in the order of arrival. A token that has half waits for its own places, and holds up no other.
    pub async fn take(&self, taker: Taker, patience: Duration) -> Result<Place, Problem> {
        match timeout(patience, self.next(taker)).await {
            Ok(place) => Ok(place),
            Err(_) => self.try_take(taker),
        }
    }

    async fn next(&self, taker: Taker) -> Place {
        let of_token = match self.of_token(taker) {
            None => None,
            Some(half) => Some(acquired(half).await),
        };
        let of_all = tokio::select! {
            biased;
            common = acquired(Arc::clone(&self.common)) => common,
            reserved = acquired(Arc::clone(&self.reserved)), if taker.is_administrator => reserved,
        };
        Place { _of_token: of_token, _of_all: of_all }
    }

    /// The half of the token, if it has one. Nothing is remembered of tokens without places.
    fn of_token(&self, taker: Taker) -> Option<Arc<Semaphore>> {
        let token = taker.token?;
        let mut of_tokens = self.of_tokens.lock();
        of_tokens.retain(|_, half| Arc::strong_count(half) > 1);
        let half = of_tokens.entry(token).or_insert_with(|| Arc::new(Semaphore::new(self.most_of_one())));
        Some(Arc::clone(half))
    }

    fn most_of_one(&self) -> usize {
        (self.most / 2).clamp(1, Semaphore::MAX_PERMITS)
    }
}

async fn acquired(places: Arc<Semaphore>) -> OwnedSemaphorePermit {
    match places.acquire_owned().await {
        Ok(permit) => permit,
        // It is never closed.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn token(token: u8) -> Taker {
        Taker { token: Some([token; 32]), is_administrator: false }
    }

    #[test]
    fn a_token_has_at_most_half_of_all_places_until_it_gives_them_back() {
        let places = Places::new("watches", 4, 0);
        let take = |of: u8| places.try_take(token(of));
        let (first, second) = (take(1).ok(), take(1).ok());
        assert!(first.is_some() && second.is_some());
        assert_eq!(take(1).err().map(|problem| problem.kind), Some(ProblemKind::Busy));
        drop(first);
        let others = [take(1).ok(), take(2).ok(), places.try_take(Taker::default()).ok()];
        assert!(others.iter().all(Option::is_some));
        assert!(take(3).is_err(), "four are all");
        assert_eq!(places.count(), 4);
        drop((second, others));
        assert_eq!(places.count(), 0);
        let last = take(9);
        assert_eq!(places.of_tokens.lock().len(), 1, "nothing is remembered of a token without places");
        drop(last);
    }

    #[test]
    fn what_is_left_to_administrators_is_taken_by_nobody_else() {
        let places = Places::new("requests", 8, 1);
        let all: Vec<_> = (1..=4).map(|of| [places.try_take(token(of)), places.try_take(token(of))]).collect();
        let taken = all.iter().flatten().filter(|place| place.is_ok()).count();
        assert_eq!(taken, 7);
        let administrator = Taker { is_administrator: true, ..token(9) };
        assert!(places.try_take(token(9)).is_err());
        let place = places.try_take(administrator);
        assert!(place.is_ok() && places.try_take(administrator).is_err());
        assert_eq!(places.count(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_waits_for_its_own_places_holds_up_no_other() {
        let places = Places::new("large bodies", 8, 1);
        let take = |of: u8| Box::pin(places.take(token(of), PATIENCE));
        let held: Vec<_> = (0..4).map(|_| take(1).now_or_never().expect("at once")).collect();
        let mut waiting: Vec<_> = (0..9).map(|_| take(1)).collect();
        assert!(waiting.iter_mut().all(|waits| waits.as_mut().now_or_never().is_none()));
        let others: Vec<_> = (2..5).map(|of| take(of).now_or_never().expect("at once")).collect();
        let mut last = take(5);
        assert!(last.as_mut().now_or_never().is_none(), "one is left to administrators");
        let administrator = Taker { token: None, is_administrator: true };
        let reserved = places.take(administrator, PATIENCE).now_or_never().expect("at once");
        drop(others);
        assert!(last.now_or_never().expect("its turn").is_ok());
        drop(held);
        let granted: Vec<_> = waiting.iter_mut().filter_map(|waits| waits.as_mut().now_or_never()).collect();
        assert_eq!(granted.len(), 4);
        drop(reserved);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_in_vain_is_told_why() {
        let places = Places::new("large answers", 2, 0);
        let _held = places.try_take(token(1)).expect("a place");
        let refused = places.take(token(1), PATIENCE).await.expect_err("it has its half");
        assert_eq!(refused.title, "the token has 1 large answers already");
        let _other = places.try_take(token(2)).expect("a place");
        let refused = places.take(token(3), PATIENCE).await.expect_err("all are taken");
        assert_eq!(refused.title, "this replica serves 2 large answers already");
    }
}
