//! The bodies of requests, which have a limit in all.
//!
//! The first [`FREE`] bytes of each are free: their sum is bounded by the number of requests, and so small requests never wait for
//! large ones. The rest takes room that all requests share, as it arrives: a client that only announces a large body takes none. A
//! body has its room until the request has been carried out.

use std::sync::Arc;

use axum::body::Body;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::documents::{Problem, ProblemKind};
use crate::http::BodyRefused;
use crate::hub::problem;

/// What each body may have beside the common room.
const FREE: usize = 64 << 10;
/// The common room, in bytes.
const ROOM: usize = 64 << 20;

/// The room for bodies.
pub(in crate::hub) struct Bodies(Arc<Semaphore>);

/// A body that has arrived.
pub(super) struct Text {
    bytes: Vec<u8>,
    /// Its room, until it is dropped.
    _room: Option<OwnedSemaphorePermit>,
}

impl Default for Bodies {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM)))
    }
}

impl Bodies {
    /// Reads a body. The server bounds the size and the time of each.
    pub(super) async fn read(&self, mut body: Body) -> Result<Arc<Text>, Problem> {
        let (mut bytes, mut room) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|error| lost(&error))?.into_data() else { continue };
            let more = (bytes.len() + data.len()).saturating_sub(FREE.max(bytes.len()));
            if more > 0 {
                let more = self.take(more)?;
                match &mut room {
                    None => room = Some(more),
                    Some(room) => room.merge(more),
                }
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Arc::new(Text { bytes, _room: room }))
    }

    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Problem> {
        let taken = u32::try_from(bytes).ok().and_then(|bytes| Arc::clone(&self.0).try_acquire_many_owned(bytes).ok());
        taken.ok_or_else(|| Problem::new(ProblemKind::Busy, "too many large requests are under way"))
    }
}

impl std::ops::Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why a body has not arrived: the server has refused it, or the client is gone.
fn lost(error: &axum::Error) -> Problem {
    let refused = std::error::Error::source(error).and_then(|source| source.downcast_ref::<BodyRefused>());
    match refused {
        Some(BodyRefused(refusal)) => problem::of_refusal(*refusal),
        None => Problem::new(ProblemKind::Malformed, "the body did not arrive"),
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, stream};
    use hyper::body::Bytes;

    use super::*;

    fn of_size(bytes: usize) -> Body {
        let frames = vec![vec![b'x'; 16 << 10]; bytes >> 14].into_iter().chain([vec![b'x'; bytes % (16 << 10)]]);
        Body::from_stream(stream::iter(frames.map(|frame| Ok::<_, std::convert::Infallible>(Bytes::from(frame)))))
    }

    #[tokio::test]
    async fn large_bodies_share_64_mib_and_the_next_one_is_busy() {
        const LARGE: usize = 5 << 20;
        let bodies = Bodies::default();
        let mut read = Vec::new();
        let refused = loop {
            match bodies.read(of_size(LARGE)).await {
                Ok(text) => read.push(text),
                Err(problem) => break problem,
            }
        };
        assert_eq!(refused.kind, ProblemKind::Busy);
        assert_eq!(read.len(), ROOM / (LARGE - FREE));
        assert!(read.iter().all(|text| text.len() == LARGE));
        assert_eq!(bodies.0.available_permits(), ROOM - read.len() * (LARGE - FREE), "what was refused has no room");
        assert_eq!(bodies.read(of_size(FREE)).await.expect("small").len(), FREE);
        read.pop();
        assert_eq!(bodies.read(of_size(LARGE)).await.expect("there is room again").len(), LARGE);
    }

    #[tokio::test]
    async fn small_bodies_are_read_while_there_is_no_room_at_all() {
        let bodies = Bodies(Arc::new(Semaphore::new(0)));
        for size in [0, 1, FREE] {
            assert_eq!(bodies.read(of_size(size)).await.expect("free").len(), size);
        }
        assert_eq!(bodies.read(of_size(FREE + 1)).await.err().map(|problem| problem.kind), Some(ProblemKind::Busy));
    }

    #[tokio::test]
    async fn what_has_not_arrived_takes_no_room() {
        let bodies = Bodies::default();
        let first = stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from(vec![0; FREE + 7]))]);
        let never = Body::from_stream(futures::StreamExt::chain(first, stream::pending()));
        let mut reading = Box::pin(bodies.read(never));
        assert!(reading.as_mut().now_or_never().is_none());
        assert_eq!(bodies.0.available_permits(), ROOM - 7);
        drop(reading);
        assert_eq!(bodies.0.available_permits(), ROOM);
    }
}
