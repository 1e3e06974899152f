//! The body of a request as a handler reads it, with the size limit of its route and a deadline.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use tokio::time::Sleep;
use tower::BoxError;

use super::limits::Refusal;

/// Set when the server refuses the rest of a request's body.
pub(super) type Outcome = Arc<OnceLock<Refusal>>;

/// A bounded request body.
pub(super) struct Arrival {
    body: Incoming,
    largest: u64,
    left: u64,
    longest: Duration,
    timer: Pin<Box<Sleep>>,
    outcome: Outcome,
}

/// The error that a handler gets when the server refuses the body. The server replaces the handler's response.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the body was refused: {0:?}")]
pub struct BodyRefused(pub Refusal);

impl Arrival {
    /// The deadline starts now.
    pub(super) fn new(body: Incoming, largest: u64, longest: Duration, outcome: Outcome) -> Self {
        Self { body, largest, left: largest, longest, timer: Box::pin(tokio::time::sleep(longest)), outcome }
    }

    fn refuse(&self, refusal: Refusal) -> BoxError {
        let refusal = *self.outcome.get_or_init(|| refusal);
        Box::new(BodyRefused(refusal))
    }
}

impl http_body::Body for Arrival {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            ready!(this.timer.as_mut().poll(context));
            return Poll::Ready(Some(Err(this.refuse(Refusal::BodyTooSlow(this.longest)))));
        };
        let length = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref().map(Bytes::len)).unwrap_or(0);
        match this.left.checked_sub(length as u64) {
            Some(left) => this.left = left,
            None => return Poll::Ready(Some(Err(this.refuse(Refusal::BodyTooLarge(this.largest))))),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
