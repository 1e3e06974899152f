//! The bodies of requests and of answers, which have a limit in all: the texts of requests and the values that are built of them, which
//! take many times as much; and in rooms of their own what clients have not taken of the answers.
//!
//! The first [`FREE`] bytes of each text, and of what is built of it, are free: their sum is bounded by the number of requests, and so
//! small requests never wait for large ones. The rest takes room that all requests share, as it arrives: a client that only announces a large body takes none. The
//! requests of one token have at most half of it. A body has its room until the request has been carried out, and an answer until its
//! client has taken it, however slowly.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Bytes;
use tokio::time::timeout;

use crate::documents::{Problem, ProblemKind, Room, Share};
use crate::hub::tokens::TokenDigest;

/// Most bytes of a body. A document has at most 4 MiB as the database prints it; the rest is room for a client's white space.
const LARGEST: usize = 5 << 20;
/// Deadline for a request's body, from the end of its head.
const LONGEST: Duration = Duration::from_secs(30);

/// What each body's text may have beside the common room, and what is built of it.
const FREE: usize = 64 << 10;
/// The common room, in bytes. Half of it has room for the largest body: 5 MiB of text and 80 MiB of values.
const ROOM: usize = 176 << 20;

/// The room for answers that clients have not taken, in bytes: twelve pages of the largest size.
const ANSWERS: usize = 96 << 20;
/// What answers to changes have beside it, in bytes: eight of the largest size. Clients that read slowly keep nobody from changing documents
/// until others have changed as many and do not take the answers either.
const ANSWERS_TO_CHANGES: usize = 32 << 20;

/// The room for bodies.
pub(in crate::hub) struct Bodies(Room);

/// A body that has arrived.
pub(super) struct Text {
    bytes: Vec<u8>,
    /// What has been built of it, in bytes.
    built: AtomicUsize,
    share: Share,
}

/// An answer on its way to its client.
struct Answer {
    bytes: Vec<u8>,
    _share: Share,
}

/// The body of an answer, which has its share until it has been sent or is dropped.
pub(super) fn answer(bytes: Vec<u8>, share: Share) -> Body {
    Body::from(Bytes::from_owner(Answer { bytes, _share: share }))
}

/// The body of an answer whose share was for all that it was made of.
pub(super) fn answer_of(bytes: Vec<u8>, share: Share) -> Body {
    share.shrink(bytes.len().saturating_sub(FREE));
    answer(bytes, share)
}

/// A body as bytes that keep its room.
struct Kept(Arc<Text>);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Text {
    /// The text, which has its room as long as one of its copies is there.
    pub(super) fn into_bytes(self: Arc<Self>) -> Bytes {
        Bytes::from_owner(Kept(self))
    }

    /// Takes room for so many bytes more that are built of it.
    pub(super) fn charge(&self, more: usize) -> Result<(), Problem> {
        let before = self.built.fetch_add(more, Ordering::Relaxed);
        self.share.take((before + more).saturating_sub(FREE.max(before)))
    }
}

impl Default for Bodies {
    fn default() -> Self {
        Self::of_size(ROOM)
    }
}

impl Bodies {
    pub(in crate::hub) fn of_answers() -> Self {
        Self(Room::new(ANSWERS, "large answers are under way"))
    }

    /// The room that answers to changes have beside that for all answers.
    pub(in crate::hub) fn of_answers_to_changes() -> Self {
        Self(Room::new(ANSWERS_TO_CHANGES, "large answers are under way"))
    }

    fn of_size(most: usize) -> Self {
        Self(Room::new(most, "large requests are under way"))
    }

    /// The room for what takes so many bytes, for a request with this token.
    pub(super) fn share(&self, token: Option<TokenDigest>, bytes: usize) -> Result<Share, Problem> {
        let share = self.0.share(token);
        share.take(bytes.saturating_sub(FREE))?;
        Ok(share)
    }

    /// Reads the body of a request with this token.
    pub(super) async fn read(&self, token: Option<TokenDigest>, body: Body) -> Result<Arc<Text>, Problem> {
        if body.size_hint().lower() > LARGEST as u64 {
            return Err(too_large());
        }
        timeout(LONGEST, self.read_frames(token, Limited::new(body, LARGEST))).await.unwrap_or_else(|_| {
            let title = format!("the body did not arrive within {}", humantime::format_duration(LONGEST));
            Err(Problem::new(ProblemKind::Malformed, title))
        })
    }

    async fn read_frames(&self, token: Option<TokenDigest>, mut body: Limited<Body>) -> Result<Arc<Text>, Problem> {
        let share = self.0.share(token);
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|error| lost(&*error))?.into_data() else { continue };
            share.take((bytes.len() + data.len()).saturating_sub(FREE.max(bytes.len())))?;
            bytes.extend_from_slice(&data);
        }
        Ok(Arc::new(Text { bytes, built: AtomicUsize::new(0), share }))
    }
}

impl std::ops::Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why a body has not arrived: it is too large, or the client is gone.
fn lost(error: &(dyn Error + 'static)) -> Problem {
    if error.is::<LengthLimitError>() {
        too_large()
    } else {
        Problem::new(ProblemKind::Malformed, "the body did not arrive")
    }
}

fn too_large() -> Problem {
    Problem::new(ProblemKind::TooLarge, format!("the body has more than {LARGEST} bytes"))
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, stream};

    use super::*;
    use crate::documents::Body as Document;
    use crate::hub::tokens::digest_of;

    fn of_size(bytes: usize) -> Body {
        let frames = vec![vec![b'x'; 16 << 10]; bytes >> 14].into_iter().chain([vec![b'x'; bytes % (16 << 10)]]);
        Body::from_stream(stream::iter(frames.map(|frame| Ok::<_, std::convert::Infallible>(Bytes::from(frame)))))
    }

    fn taken(bodies: &Bodies) -> usize {
        bodies.0.taken().0
    }

    #[tokio::test]
    async fn large_bodies_share_the_room_and_the_next_one_is_busy() {
        const LARGE: usize = 5 << 20;
        let bodies = Bodies::default();
        let mut read = Vec::new();
        let refused = loop {
            match bodies.read(None, of_size(LARGE)).await {
                Ok(text) => read.push(text),
                Err(problem) => break problem,
            }
        };
        assert_eq!(refused.kind, ProblemKind::Busy);
        assert_eq!(read.len(), ROOM / (LARGE - FREE));
        assert!(read.iter().all(|text| text.len() == LARGE));
        assert_eq!(taken(&bodies), read.len() * (LARGE - FREE), "what was refused has no room");
        assert_eq!(bodies.read(None, of_size(FREE)).await.expect("small").len(), FREE);
        read.pop();
        assert_eq!(bodies.read(None, of_size(LARGE)).await.expect("there is room again").len(), LARGE);
    }

    #[tokio::test]
    async fn an_answer_has_its_room_until_it_is_gone() {
        const PAGE: usize = 8 << 20;
        let answers = Bodies::of_answers();
        let token = Some(digest_of(b"one"));
        let mut slow = Vec::new();
        let refused = loop {
            match answers.share(token, PAGE) {
                Ok(body) => slow.push(body),
                Err(problem) => break problem,
            }
        };
        assert_eq!(
            (refused.kind, slow.len()),
            (ProblemKind::Busy, ANSWERS / 2 / (PAGE - FREE)),
            "half of it for one token"
        );
        assert!(answers.share(token, FREE).is_ok(), "small answers are free");
        assert!(answers.share(Some(digest_of(b"other")), PAGE).is_ok());
        let body = answer_of(vec![b'x'; PAGE], slow.pop().expect("a share"));
        let taken_by_its_client = body.collect().await.expect("the body").to_bytes();
        assert_eq!(taken_by_its_client.len(), PAGE);
        assert!(answers.share(token, PAGE).is_err(), "it is still there");
        drop(taken_by_its_client);
        let further = answers.share(token, PAGE).expect("there is room again");
        let small = answer_of(vec![b'x'; FREE], further);
        assert!(answers.share(token, PAGE - FREE).is_ok(), "an answer has what it takes, and not what it was made of");
        drop(small);
    }

    #[tokio::test]
    async fn small_bodies_are_read_while_there_is_no_room_at_all() {
        let bodies = Bodies::of_size(0);
        for size in [0, 1, FREE] {
            assert_eq!(bodies.read(None, of_size(size)).await.expect("free").len(), size);
        }
        assert_eq!(
            bodies.read(None, of_size(FREE + 1)).await.err().map(|problem| problem.kind),
            Some(ProblemKind::Busy)
        );
    }

    #[tokio::test]
    async fn what_has_not_arrived_takes_no_room() {
        let bodies = Bodies::default();
        let first = stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from(vec![0; FREE + 7]))]);
        let never = Body::from_stream(futures::StreamExt::chain(first, stream::pending()));
        let mut reading = Box::pin(bodies.read(None, never));
        assert!(reading.as_mut().now_or_never().is_none());
        assert_eq!(taken(&bodies), 7);
        drop(reading);
        assert_eq!(taken(&bodies), 0);
    }

    #[tokio::test]
    async fn what_is_built_takes_room_until_the_request_is_over() {
        let bodies = Bodies::of_size(1 << 20);
        let maps = |count| Body::from(format!(r#"{{"list": [{}0]}}"#, r#"{"a":1},"#.repeat(count)));
        let built = |text: Arc<Text>| Document::charged(&text, &|more| text.charge(more)).map(|_| text.clone());
        let small = built(bodies.read(None, maps(50)).await.expect("small")).expect("free");
        assert_eq!(taken(&bodies), 0);
        let first = built(bodies.read(None, maps(700)).await.expect("small")).expect("there is room");
        let before = taken(&bodies);
        assert!(before > 700 * 600 - FREE && before <= 700 * 800, "{before}");
        let second = bodies.read(None, maps(1000)).await.expect("small");
        assert_eq!(built(second).err().map(|problem| problem.kind), Some(ProblemKind::Busy));
        assert_eq!(taken(&bodies), before, "what was refused has no room");
        drop((small, first));
        assert_eq!(taken(&bodies), 0);
    }

    #[tokio::test]
    async fn the_largest_document_fits_in_half_of_the_room() {
        let bodies = Bodies::default();
        let text = bodies.read(Some(digest_of(b"one")), of_size(5 << 20)).await.expect("there is room");
        assert_eq!(text.charge(80 << 20), Ok(()));
    }

    #[tokio::test]
    async fn one_token_has_at_most_half_of_the_room() {
        const LARGE: usize = 5 << 20;
        let bodies = Bodies::default();
        let [one, two] = [b"one", b"two"].map(|token| Some(digest_of(token)));
        let mut read = Vec::new();
        let refused = loop {
            match bodies.read(one, of_size(LARGE)).await {
                Ok(text) => read.push(text),
                Err(problem) => break problem,
            }
        };
        assert_eq!(refused.kind, ProblemKind::Busy);
        assert_eq!(read.len(), ROOM / 2 / (LARGE - FREE));
        assert_eq!(bodies.read(one, of_size(FREE)).await.expect("small").len(), FREE);
        for _ in 0..read.len() {
            read.push(bodies.read(two, of_size(LARGE)).await.expect("the other half"));
        }
        assert!(bodies.read(two, of_size(LARGE)).await.is_err());
        drop(read);
        assert_eq!(taken(&bodies), 0);
        assert_eq!(bodies.0.taken().1, 0, "nothing is remembered of a token without large bodies");
    }
}
