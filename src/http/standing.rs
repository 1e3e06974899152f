//! What one of a server's connections is doing, since when, and until when it may.
//!
//! The connection, the handler of its requests and the [`Watchdog`] are one task, and share the [`Standing`] behind a lock that
//! nobody else ever holds. So the watchdog needs no message: it is polled after the connection, and sees what has changed.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use super::limits::{AnswerWithin, KeepAlive, Limits};
use super::registry::Entry;

/// A connection's standing, shared within its task.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<Standing>>);

struct Standing {
    entry: Entry,
    /// The place of the request.
    place: Option<OwnedSemaphorePermit>,
    phase: Phase,
    /// Since when the kernel has taken nothing of what waits for the peer.
    stalled: Option<Instant>,
    cut_at: Instant,
    /// From when on no request begins.
    use_until: Instant,
    longest_head: Duration,
    keep_alive: Option<KeepAlive>,
}

#[derive(Clone, Copy)]
enum Phase {
    /// The handshake, or a head, is on its way.
    Arriving { since: Instant },
    /// A request is under way.
    Working,
    /// Its answer is there. `ended`: all of it is in the hands of the HTTP stack.
    Answering { since: Instant, within: AnswerWithin, ended: bool },
    /// It waits for another request.
    Idle { since: Instant },
}

/// Why a connection does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cut {
    #[error("its request's head was not there in time")]
    Head,
    #[error("its answer was not read in time")]
    Answer,
    #[error("it was idle")]
    Idle,
    #[error("its time is over")]
    Life,
}

impl Shared {
    /// Of a connection that has just been accepted.
    pub(super) fn new(entry: Entry, limits: &Limits) -> Self {
        let now = Instant::now();
        let cut_at = now + limits.longest_connection;
        let standing = Standing {
            entry,
            place: None,
            phase: Phase::Arriving { since: now },
            stalled: None,
            cut_at,
            use_until: limits.keep_alive.map_or(cut_at, |kept| now + kept.longest_use),
            longest_head: limits.longest_head,
            keep_alive: limits.keep_alive,
        };
        Self(Arc::new(Mutex::new(standing)))
    }

    /// Bytes have been read.
    pub(super) fn received(&self) {
        let mut standing = self.0.lock();
        if let Phase::Idle { .. } = standing.phase {
            standing.phase = Phase::Arriving { since: Instant::now() };
            standing.entry.arrives();
        }
    }

    /// A head is there; the request has this place, or none.
    pub(super) fn works(&self, place: Option<OwnedSemaphorePermit>) {
        let mut standing = self.0.lock();
        standing.phase = Phase::Working;
        standing.entry.works();
        standing.place = place;
    }

    /// The answer's head is there. Whether the connection may be kept.
    pub(super) fn answers(&self, within: AnswerWithin) -> bool {
        let mut standing = self.0.lock();
        let since = Instant::now();
        standing.phase = Phase::Answering { since, within, ended: false };
        since < standing.use_until
    }

    /// The end of the answer is in the hands of the HTTP stack, or nobody wants it any more.
    pub(super) fn answer_ended(&self) {
        if let Phase::Answering { ended, .. } = &mut self.0.lock().phase {
            *ended = true;
        }
    }

    /// The kernel has taken everything that the HTTP stack had for the peer.
    pub(super) fn flushed(&self) {
        let mut standing = self.0.lock();
        // Without keep-alive the connection ends now, and has its place until then.
        if standing.keep_alive.is_some() && matches!(standing.phase, Phase::Answering { ended: true, .. }) {
            standing.phase = Phase::Idle { since: Instant::now() };
            standing.entry.idles();
            standing.place = None;
        }
    }

    /// The kernel has taken bytes.
    pub(super) fn progresses(&self) {
        self.0.lock().stalled = None;
    }

    /// The kernel takes nothing.
    pub(super) fn stalls(&self) {
        self.0.lock().stalled.get_or_insert_with(Instant::now);
    }

    /// Whether a head is on its way.
    pub(super) fn is_arriving(&self) -> bool {
        matches!(self.0.lock().phase, Phase::Arriving { .. })
    }

    /// Ends when the connection may not go on as it is.
    pub(super) fn watchdog(&self) -> Watchdog {
        Watchdog { standing: self.clone(), timer: Box::pin(tokio::time::sleep_until(self.0.lock().due().0)) }
    }
}

impl Standing {
    /// When the connection may not go on, if nothing happens until then.
    fn due(&self) -> (Instant, Cut) {
        let due = match self.phase {
            Phase::Arriving { since } => Some((since + self.longest_head, Cut::Head)),
            Phase::Working => None,
            Phase::Answering { since, within: AnswerWithin::Whole(within), .. } => Some((since + within, Cut::Answer)),
            Phase::Answering { within: AnswerWithin::Progress(within), .. } => {
                self.stalled.map(|since| (since + within, Cut::Answer))
            }
            Phase::Idle { since } => {
                let longest = self.keep_alive.map(|kept| since + kept.longest_idle);
                longest.map(|longest| (longest.min(self.use_until), Cut::Idle))
            }
        };
        due.filter(|(due, _)| *due < self.cut_at).unwrap_or((self.cut_at, Cut::Life))
    }
}

/// See [`Shared::watchdog`].
pub(super) struct Watchdog {
    standing: Shared,
    timer: Pin<Box<Sleep>>,
}

impl Watchdog {
    /// Ends when the connection may not go on. To be polled after whatever changes the standing, in the same task.
    pub(super) async fn barks(&mut self) -> Cut {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Cut> {
        let (due, cut) = self.standing.0.lock().due();
        if self.timer.deadline() != due {
            self.timer.as_mut().reset(due);
        }
        self.timer.as_mut().poll(context).map(|()| cut)
    }
}
