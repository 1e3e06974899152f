//! A hub as one set of credentials sees it, shared by every lease that has these.
//!
//! It bounds the requests in flight and knows whether the hub answers. While it does not, one request at a time is the
//! probe, with back-off; the others wait for its success and then go. So a hub that is gone costs one connection attempt
//! now and then, however many leases wait, and a hub that is back is noticed within half a second.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use super::credentials::{self, Credentials, Fingerprint};
use crate::actor::Backoff;
use crate::cluster::{Connection, Error, Fence, Request};
use crate::config::ClusterName;

/// Requests in flight to one hub. A renewal takes milliseconds, so this many are thousands a second.
const MOST_IN_FLIGHT: usize = 64;
/// An answer that has not begun by then never comes; the deadlines of single requests are shorter.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
/// Between two probes of a hub that gives no answer. An outage mostly is a restart; the cap bounds how late its end is
/// noticed.
const UNREACHABLE: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(500));
/// Between two probes of a hub that answers with an error of its own, or does not know the credentials. New
/// credentials don't wait for this.
const REFUSED: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Whether requests go out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reach {
    /// All do.
    Up,
    /// One at a time does, not before `next`.
    Down { failures: u32, next: Instant },
}

/// A hub, with one set of credentials.
pub(super) struct Hub {
    connection: Connection,
    fingerprint: Fingerprint,
    in_flight: Semaphore,
    /// Whose turn it is to probe.
    turn: Semaphore,
    reach: watch::Sender<Reach>,
}

impl fmt::Debug for Hub {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Hub").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// When a request goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// In turn, with the back-off of a hub that does not answer.
    InTurn,
    /// At once: something else says that it may succeed now.
    AtOnce,
}

/// What came of a request, and when it was sent.
pub(super) struct Exchange<T> {
    /// The moment before it was sent.
    pub(super) sent: Instant,
    /// The answer.
    pub(super) answer: Result<T, Error>,
}

impl Hub {
    /// A hub that has not been asked anything yet.
    fn connect(credentials: Credentials) -> Result<Self, credentials::Error> {
        let Credentials { config, fingerprint } = credentials;
        let connection =
            Connection::steady(hub_name(), config, HEADERS_WITHIN).map_err(|_| credentials::Error::Unusable)?;
        Ok(Self {
            connection,
            fingerprint,
            in_flight: Semaphore::new(MOST_IN_FLIGHT),
            turn: Semaphore::new(1),
            reach: watch::Sender::new(Reach::Up),
        })
    }

    /// Which credentials.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Sends a request when it may go out, and under a fence only while that is open. It is made at that moment, and the
    /// deadline counts from then on.
    pub(super) async fn send<'r, T: DeserializeOwned>(
        &self,
        request: impl FnOnce() -> Request<'r>,
        accept: &'static str,
        deadline: Duration,
        urgency: Urgency,
        fence: Option<&Fence>,
    ) -> Exchange<T> {
        // Before it waits for its turn: what waits is not let through by the next term's claim.
        let claim = match fence.map(Fence::claim).transpose() {
            Ok(claim) => claim,
            Err(expired) => return Exchange { sent: Instant::now(), answer: Err(expired.into()) },
        };
        let _pass = match urgency {
            Urgency::InTurn => Some(self.admit().await),
            Urgency::AtOnce => None,
        };
        let sent = Instant::now();
        let answer = self.connection.holding(claim).send(request(), accept, deadline).await;
        self.settle(answer.as_ref().err(), sent);
        Exchange { sent, answer }
    }

    /// Waits until a request may go out.
    async fn admit(&self) -> SemaphorePermit<'_> {
        let mut reach = self.reach.subscribe();
        loop {
            if *reach.borrow_and_update() == Reach::Up {
                let pass = acquire(&self.in_flight).await;
                if *self.reach.borrow() == Reach::Up {
                    return pass;
                }
                continue;
            }
            let turn = tokio::select! {
                biased;
                () = is_up(&mut reach) => continue,
                turn = acquire(&self.turn) => turn,
            };
            // Read now: whoever had the turn before may have failed again.
            let Reach::Down { next, .. } = *self.reach.borrow() else { continue };
            tokio::select! {
                biased;
                () = is_up(&mut reach) => {}
                () = tokio::time::sleep_until(next) => return turn,
            }
        }
    }

    /// Takes in how a request went.
    fn settle(&self, failure: Option<&Error>, sent: Instant) {
        if let Some(Error::LeaseExpired(_)) = failure {
            // It says nothing of the hub.
            return;
        }
        let pause = |failures: u32| -> Option<Duration> {
            match failure? {
                Error::Throttled { retry_after: Some(delay), .. } => Some(*delay),
                error if error.is_unreachable() => Some(UNREACHABLE.next_delay(failures)),
                Error::Unauthorized { .. } | Error::Server { .. } | Error::Throttled { .. } | Error::Decode { .. } => {
                    Some(REFUSED.next_delay(failures))
                }
                _ => None,
            }
        };
        self.reach.send_if_modified(|reach| {
            let failures = match *reach {
                Reach::Up => 0,
                Reach::Down { failures, next } if sent >= next => failures.saturating_add(1),
                // Sent before the pause began, with others that failed alike: one failure, not many.
                Reach::Down { .. } if failure.is_some() => return false,
                Reach::Down { failures, .. } => failures,
            };
            let was_up = *reach == Reach::Up;
            *reach = pause(failures).map_or(Reach::Up, |pause| Reach::Down { failures, next: Instant::now() + pause });
            was_up != (*reach == Reach::Up)
        });
    }
}

async fn is_up(reach: &mut watch::Receiver<Reach>) {
    // The sender lives as long as the hub that is borrowed here.
    let _ = reach.wait_for(|reach| *reach == Reach::Up).await;
}

#[expect(clippy::expect_used, reason = "the semaphores of a hub are never closed")]
async fn acquire(semaphore: &Semaphore) -> SemaphorePermit<'_> {
    semaphore.acquire().await.expect("never closed")
}

/// What errors call it.
#[expect(clippy::expect_used, reason = "a constant DNS label")]
pub(super) fn hub_name() -> ClusterName {
    "hub".parse().expect("a DNS label")
}

/// Every hub in use, by its credentials: equal ones share a client.
#[derive(Default)]
pub(super) struct Hubs {
    by_fingerprint: Mutex<BTreeMap<Fingerprint, Weak<Hub>>>,
}

impl Hubs {
    /// The hub of these credentials.
    pub(super) fn hub(&self, credentials: Credentials) -> Result<Arc<Hub>, credentials::Error> {
        let mut hubs = self.by_fingerprint.lock();
        if let Some(hub) = hubs.get(&credentials.fingerprint).and_then(Weak::upgrade) {
            return Ok(hub);
        }
        let hub = Arc::new(Hub::connect(credentials)?);
        hubs.retain(|_, hub| hub.strong_count() > 0);
        hubs.insert(hub.fingerprint, Arc::downgrade(&hub));
        Ok(hub)
    }
}
