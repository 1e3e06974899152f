//! The bodies of requests and of large answers.
//!
//! A body takes a slot among those that arrive, and its request one among those that are carried out once all of it is there: clients
//! that send slowly hold up nobody else. A large body has one of the slots for large requests while the rest of it arrives, and until its
//! client has the answer. A large answer to a read has one of the slots for answers until its client has taken it, however slowly. All of
//! these are divided among tokens ([`CallerSlots`](crate::documents::CallerSlots)).

use std::time::Duration;

use axum::body::Body;
use http::HeaderMap;
use http::header::EXPECT;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use tokio::time::{Instant, timeout_at};

use super::Api;
use crate::actor::Slot;
use crate::documents::{LargeSlot, LargeSlots, Problem, ProblemKind, SlotOwner};
use crate::hub::plan::access::Caller;

/// Most bytes of a body. A document has at most 4 MiB as the database prints it; the rest is room for a client's white space.
const LARGEST: usize = 5 << 20;
/// Deadline for a body, from the end of its request's head, and for the rest of a large one from when it has its slot.
const LONGEST: Duration = Duration::from_secs(30);
/// Most bytes of a refused body that are read all the same, and the longest time for that.
const MOST_DISCARDED: usize = 16 << 20;
const DISCARDED_WITHIN: Duration = Duration::from_secs(5);
/// Large answers to reads at a time, each of up to 8 MiB.
const MOST_ANSWERS: usize = 32;
/// An answer with more bytes is large. The kernel takes shorter ones at once for most clients.
const LARGE_ANSWER: usize = 256 << 10;

/// The slots for large answers to reads.
pub(in crate::hub) fn slots_for_answers() -> LargeSlots {
    LargeSlots::new("large answers", MOST_ANSWERS, LARGE_ANSWER)
}

/// The body of a request, and what the request has until it is carried out.
pub(super) struct Arrived {
    pub(super) bytes: Bytes,
    pub(super) slot: LargeSlot,
    pub(super) request_slot: Slot,
}

/// Reads the body of a request, and takes a slot for the request then.
pub(super) async fn read(api: &Api, caller: &Caller, headers: &HeaderMap, body: Body) -> Result<Arrived, Problem> {
    let arriving = api.bodies.try_take(caller.slot_owner())?;
    if headers.contains_key(EXPECT) && is_too_large(&body) {
        // The client has not sent it yet.
        return Err(too_large());
    }
    let (bytes, slot) = read_all((api.documents.slots(), caller.slot_owner()), body).await?;
    drop(arriving);
    Ok(Arrived { bytes, slot, request_slot: api.requests.try_take(caller.slot_owner())? })
}

/// Reads a body; a large one when it has a slot.
async fn read_all((slots, owner): (&LargeSlots, SlotOwner), body: Body) -> Result<(Bytes, LargeSlot), Problem> {
    if is_too_large(&body) {
        discard(body).await;
        return Err(too_large());
    }
    let (mut body, mut bytes, mut slot) = (body, Vec::new(), LargeSlot::none(owner));
    let mut until = Instant::now() + LONGEST;
    while let Some(frame) = timeout_at(until, body.frame()).await.map_err(|_| too_slow())? {
        let frame = frame.map_err(|_| Problem::new(ProblemKind::Malformed, "the body did not arrive"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > LARGEST {
            discard(body).await;
            return Err(too_large());
        }
        bytes.extend_from_slice(&data);
        if slots.is_large(bytes.len()) && !slot.is_for_large() {
            slot = slots.take(owner).await?;
            until = Instant::now() + LONGEST;
        }
    }
    Ok((bytes.into(), slot))
}

/// An answer on its way to its client.
struct PendingResponse {
    bytes: Vec<u8>,
    _slot: LargeSlot,
}

/// The body of an answer, which has its slot until it has been sent or is dropped.
pub(super) fn answer(bytes: Vec<u8>, slot: LargeSlot) -> Body {
    Body::from(Bytes::from_owner(PendingResponse { bytes, _slot: slot }))
}

impl AsRef<[u8]> for PendingResponse {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// By what its request says.
fn is_too_large(body: &Body) -> bool {
    body.size_hint().lower() > LARGEST as u64
}

/// Reads the rest of a body that is refused: many clients send all of it before they read the answer, which a connection that ends with
/// something unread would take from them.
async fn discard(mut body: Body) {
    let (until, mut left) = (Instant::now() + DISCARDED_WITHIN, MOST_DISCARDED);
    while let Ok(Some(Ok(frame))) = timeout_at(until, body.frame()).await {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if left == 0 {
            break;
        }
    }
}

fn too_large() -> Problem {
    Problem::new(ProblemKind::TooLarge, format!("the body has more than {LARGEST} bytes"))
}

fn too_slow() -> Problem {
    let within = humantime::format_duration(LONGEST);
    Problem::new(ProblemKind::Malformed, format!("the body did not arrive within {within}"))
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, stream};

    use super::*;

    const LARGE: usize = 64 << 10;

    fn of_size(bytes: usize) -> Body {
        let frames = vec![vec![b'x'; 16 << 10]; bytes >> 14].into_iter().chain([vec![b'x'; bytes % (16 << 10)]]);
        Body::from_stream(stream::iter(frames.map(|frame| Ok::<_, std::convert::Infallible>(Bytes::from(frame)))))
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_wait_for_a_slot_and_small_ones_do_not() {
        let slots = LargeSlots::new("large ones", 1, LARGE);
        let (text, slot) = read_all((&slots, SlotOwner::default()), of_size(LARGEST)).await.expect("there is a slot");
        assert_eq!((text.len(), slot.is_for_large()), (LARGEST, true));
        let (text, none) = read_all((&slots, SlotOwner::default()), of_size(LARGE)).await.expect("it needs none");
        assert_eq!((text.len(), none.is_for_large()), (LARGE, false));
        let refused =
            read_all((&slots, SlotOwner::default()), of_size(LARGE + 1)).await.err().map(|problem| problem.kind);
        assert_eq!(refused, Some(ProblemKind::Busy));
        let mut waiting = Box::pin(read_all((&slots, SlotOwner::default()), of_size(LARGE + 1)));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(slot);
        assert_eq!(waiting.await.expect("a slot is free").0.len(), LARGE + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_bounded_in_size_and_time() {
        let slots = LargeSlots::new("large ones", 1, LARGE);
        let refused =
            async |body| read_all((&slots, SlotOwner::default()), body).await.err().map(|problem| problem.kind);
        assert_eq!(refused(of_size(LARGEST + 1)).await, Some(ProblemKind::TooLarge));
        assert_eq!(refused(Body::from(vec![b'x'; LARGEST + 1])).await, Some(ProblemKind::TooLarge), "it says so");
        let begun = Instant::now();
        let half = stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from_static(b"half"))]);
        let never = Body::from_stream(futures::StreamExt::chain(half, stream::pending()));
        assert_eq!(refused(never).await, Some(ProblemKind::Malformed));
        assert_eq!(begun.elapsed(), LONGEST);
    }

    #[tokio::test]
    async fn an_answer_has_its_slot_until_its_client_has_taken_it() {
        let slots = LargeSlots::new("large ones", 1, LARGE);
        let body = answer(vec![b'x'; LARGE + 1], slots.try_take(LARGE + 1, SlotOwner::default()).expect("a slot"));
        let taken = body.collect().await.expect("the body").to_bytes();
        assert!(slots.try_take(LARGE + 1, SlotOwner::default()).is_err(), "it is still there");
        drop(taken);
        assert!(slots.try_take(LARGE + 1, SlotOwner::default()).is_ok());
    }
}
