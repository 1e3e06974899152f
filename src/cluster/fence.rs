//! Claims: what allows a section to send requests, for how long, and since which term.
//!
//! A section has one [`Fence`] for as long as the process lives. The election opens it for a term, extends it with every
//! acknowledged renewal (by a time that counts from when the renewal was *sent*), and closes it. Every request takes a
//! [`Claim`] when it begins, which is valid only in that term: a request that was decided on in one term is never sent in
//! the next. The claim is checked directly above the connection (`stack`), and its end, less [`MARGIN`], is the request's
//! deadline.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::clock::Clock;

/// A request ends this long before its claim: the time that its last packet may take.
pub(super) const MARGIN: Duration = Duration::from_secs(1);

/// The section's lease is not held, or has expired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease of section {section} has expired")]
pub struct Expired {
    pub section: Arc<str>,
}

/// The fence of one section. Clones are the same fence.
#[derive(Clone)]
pub struct Fence(Arc<Shared>);

struct Shared {
    section: Arc<str>,
    clock: Clock,
    /// Counts the terms.
    term: AtomicU64,
    /// When the term ends, in nanoseconds of the clock; 0 while there is none.
    ends: AtomicU64,
}

impl Fence {
    /// A closed fence.
    pub fn new(section: &str, clock: Clock) -> Self {
        Self(Arc::new(Shared { section: section.into(), clock, term: AtomicU64::new(0), ends: AtomicU64::new(0) }))
    }

    /// The time on the clock by which its claims end.
    pub fn now(&self) -> Duration {
        self.0.clock.now()
    }

    /// Begins a new term, which ends at `end` of [`Fence::now`]'s clock unless it is extended.
    pub fn open(&self, end: Duration) {
        // In this order no claim of an earlier term sees the end of the new one.
        self.0.ends.store(0, Ordering::SeqCst);
        self.0.term.fetch_add(1, Ordering::SeqCst);
        self.0.ends.store(nanos(end), Ordering::SeqCst);
    }

    /// Extends the term until `end`, unless it has ended; returns whether it continues.
    pub fn extend(&self, end: Duration) -> bool {
        let now = nanos(self.now());
        let held = |ends: u64| (ends > now).then(|| ends.max(nanos(end)));
        self.0.ends.fetch_update(Ordering::SeqCst, Ordering::SeqCst, held).is_ok()
    }

    /// Ends the term now.
    pub fn close(&self) {
        self.0.ends.store(0, Ordering::SeqCst);
    }

    pub fn is_held(&self) -> bool {
        self.0.ends.load(Ordering::SeqCst) > nanos(self.now())
    }

    pub fn remaining(&self) -> Duration {
        Duration::from_nanos(self.0.ends.load(Ordering::SeqCst)).saturating_sub(self.now())
    }

    /// A claim of the current term.
    pub fn claim(&self) -> Result<Claim, Expired> {
        let claim = Claim { fence: self.clone(), term: self.0.term.load(Ordering::SeqCst) };
        claim.check().map(|_| claim)
    }
}

/// The right to send, for one term.
#[derive(Clone)]
pub struct Claim {
    fence: Fence,
    term: u64,
}

impl Claim {
    /// The remaining time of the claim; an error if it has expired. It takes nanoseconds, so it can be called anywhere.
    pub fn check(&self) -> Result<Duration, Expired> {
        let shared = &self.fence.0;
        let ends = shared.ends.load(Ordering::SeqCst);
        let is_this_term = shared.term.load(Ordering::SeqCst) == self.term;
        let left = Duration::from_nanos(ends).saturating_sub(shared.clock.now());
        if is_this_term && !left.is_zero() { Ok(left) } else { Err(Expired { section: Arc::clone(&shared.section) }) }
    }

    /// The time that a request sent now may take: the remaining time less [`MARGIN`].
    pub fn left_for_a_request(&self) -> Result<Duration, Expired> {
        let left = self.check()?.saturating_sub(MARGIN);
        if left.is_zero() { Err(Expired { section: Arc::clone(&self.fence.0.section) }) } else { Ok(left) }
    }

    /// Ends when no time is left for a request. Every poll checks that, so a task that something else woke learns of it before
    /// it continues.
    pub async fn expired(&self) -> Expired {
        let mut timer = pin!(sleep(Duration::ZERO));
        poll_fn(|context| {
            loop {
                match self.left_for_a_request() {
                    Err(expired) => return Poll::Ready(expired),
                    // Renewed meanwhile, or the timer's clock was stopped.
                    Ok(left) if timer.is_elapsed() => timer.as_mut().reset(Instant::now() + left),
                    Ok(_) => {}
                }
                if timer.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

/// The condition under which a request is sent.
#[derive(Clone)]
pub(super) enum SentUnder {
    None,
    /// The fence is open when the request begins, and that term lasts until it is sent.
    Fence(Fence),
    Claim(Claim),
}

impl SentUnder {
    /// The claim to send a request under, if it needs one.
    pub(super) fn claim(&self) -> Result<Option<Claim>, Expired> {
        match self {
            Self::None => Ok(None),
            Self::Fence(fence) => fence.claim().map(Some),
            Self::Claim(claim) => Ok(Some(claim.clone())),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    // 584 years.
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn fence() -> Fence {
        Fence::new("databases", Clock::Paused(Instant::now()))
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_claim_is_not_revived_by_a_late_renewal() {
        let fence = fence();
        assert!(fence.claim().is_err() && !fence.is_held());
        fence.open(fence.now() + seconds(15));
        let claim = fence.claim().unwrap();
        advance(seconds(10)).await;
        assert_eq!(claim.check(), Ok(seconds(5)));
        assert_eq!(claim.left_for_a_request(), Ok(seconds(4)));
        assert!(fence.extend(fence.now() + seconds(15)));
        advance(seconds(14)).await;
        assert_eq!((claim.check(), claim.left_for_a_request().is_err()), (Ok(seconds(1)), true));
        advance(seconds(1)).await;
        assert!(claim.check().is_err() && !fence.is_held());
        assert!(!fence.extend(fence.now() + seconds(15)), "what has ended was extended");
        assert!(claim.check().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_of_one_term_is_not_valid_in_the_next() {
        let fence = fence();
        fence.open(fence.now() + seconds(15));
        let old = fence.claim().unwrap();
        fence.close();
        assert!(old.check().is_err(), "a closed fence lets through");
        fence.open(fence.now() + seconds(15));
        assert!(old.check().is_err(), "a claim outlived its term");
        assert!(fence.claim().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_end_of_a_claim_follows_its_renewals() {
        let fence = fence();
        let start = Instant::now();
        fence.open(fence.now() + seconds(15));
        let claim = fence.claim().unwrap();
        let waiting = tokio::spawn(async move { claim.expired().await });
        tokio::time::sleep(seconds(5)).await;
        assert!(fence.extend(fence.now() + seconds(15)));
        waiting.await.unwrap();
        assert_eq!(start.elapsed().as_secs(), 19, "the renewed end less the margin");
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_renewals_late_answer_never_shortens_a_claim() {
        let fence = fence();
        fence.open(fence.now() + seconds(15));
        assert!(fence.extend(fence.now() + seconds(20)));
        assert!(fence.extend(fence.now() + seconds(17)));
        assert_eq!(fence.remaining(), seconds(20));
    }
}
