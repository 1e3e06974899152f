//! The state of a server's connection, and the deadline of that state.
//!
//! The connection, the handler of its requests and the [`Watchdog`] run in one task and share the [`Standing`]. Its lock is
//! therefore never contended; it is there because the parts are separate objects that must be `Send`. The watchdog is polled
//! after the connection, and so sees each change without a message.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::StatusCode;
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
    /// The request's place.
    place: Option<OwnedSemaphorePermit>,
    phase: Phase,
    /// Since when the kernel has taken none of the bytes that wait for the client.
    stalled: Option<Instant>,
    cut_at: Instant,
    /// After this, no further request is taken.
    use_until: Instant,
    longest_head: Duration,
    keep_alive: Option<KeepAlive>,
    refused_head: Option<StatusCode>,
}

#[derive(Clone, Copy)]
enum Phase {
    /// The TLS handshake, or a head, is incomplete.
    Arriving { since: Instant },
    /// A request is under way.
    Working,
    /// The answer is being written. `ended`: the HTTP stack has all of it.
    Answering { since: Instant, within: AnswerWithin, ended: bool },
    /// It waits for a further request.
    Idle { since: Instant },
}

/// Why a connection is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cut {
    #[error("the request's head did not arrive in time")]
    Head,
    #[error("the client did not read the answer in time")]
    Answer,
    #[error("it was idle")]
    Idle,
    #[error("it reached its maximum age")]
    Life,
}

impl Shared {
    /// The standing of a connection that has just been accepted.
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
            refused_head: None,
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

    /// The head is complete; the request has this place, or none.
    pub(super) fn works(&self, place: Option<OwnedSemaphorePermit>) {
        let mut standing = self.0.lock();
        standing.phase = Phase::Working;
        standing.entry.works();
        standing.place = place;
    }

    /// The answer is ready. Returns whether the connection may be kept.
    pub(super) fn answers(&self, within: AnswerWithin) -> bool {
        let mut standing = self.0.lock();
        let since = Instant::now();
        standing.phase = Phase::Answering { since, within, ended: false };
        since < standing.use_until
    }

    /// The HTTP stack has the end of the answer, or dropped the answer.
    pub(super) fn answer_ended(&self) {
        if let Phase::Answering { ended, .. } = &mut self.0.lock().phase {
            *ended = true;
        }
    }

    /// The kernel has taken everything that the HTTP stack had to write.
    pub(super) fn flushed(&self) {
        let mut standing = self.0.lock();
        // Without keep-alive the connection ends now and keeps its place until then.
        if standing.keep_alive.is_some() && matches!(standing.phase, Phase::Answering { ended: true, .. }) {
            standing.phase = Phase::Idle { since: Instant::now() };
            standing.entry.idles();
            standing.place = None;
        }
    }

    /// The HTTP stack writes these bytes. What it writes before a head is complete is an answer of its own to that head.
    pub(super) fn writes(&self, bytes: &[u8]) {
        let mut standing = self.0.lock();
        if matches!(standing.phase, Phase::Arriving { .. }) && standing.refused_head.is_none() {
            standing.refused_head = status_of(bytes);
        }
    }

    /// The status with which the HTTP stack has answered a head that it can't read, whether or not the client gets it.
    pub(super) fn refused_head(&self) -> Option<StatusCode> {
        self.0.lock().refused_head
    }

    /// The kernel has taken bytes.
    pub(super) fn progresses(&self) {
        self.0.lock().stalled = None;
    }

    /// The kernel takes nothing.
    pub(super) fn stalls(&self) {
        self.0.lock().stalled.get_or_insert_with(Instant::now);
    }

    /// Whether a head is incomplete.
    pub(super) fn is_arriving(&self) -> bool {
        matches!(self.0.lock().phase, Phase::Arriving { .. })
    }

    /// The watchdog of this connection.
    pub(super) fn watchdog(&self) -> Watchdog {
        Watchdog { standing: self.clone(), timer: Box::pin(tokio::time::sleep_until(self.0.lock().due().0)) }
    }
}

impl Standing {
    /// The deadline of the current state, and the reason for which the connection is cut off then.
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

/// The status of an answer that begins with these bytes: `HTTP/1.1 431 …`.
fn status_of(answer: &[u8]) -> Option<StatusCode> {
    StatusCode::from_bytes(answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?).ok()
}

/// See [`Shared::watchdog`].
pub(super) struct Watchdog {
    standing: Shared,
    timer: Pin<Box<Sleep>>,
}

impl Watchdog {
    /// Waits until a deadline passes. Must be polled in the connection's task, after everything that changes the standing.
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
