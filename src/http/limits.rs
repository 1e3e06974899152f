//! What a server takes upon itself, and what it refuses beyond that.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse;
use http::request::Parts;
use http::{Response, StatusCode};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bounds of a server. Every one of them holds for each server of the process by itself.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at the same time, of all kinds. Where there is no room for a newer one, the connection that has been idle
    /// for longest is closed for it, then the oldest of those that arrive; where all have a request under way, the newer one
    /// is closed. So it is to be more than `most_arriving`, `most_requests` and all reserved places together; what it is beyond that is room
    /// for idle connections.
    pub most_connections: usize,
    /// Connections at the same time that are in their TLS handshake or whose head is not complete. Beyond it the oldest of
    /// them is closed for a newer one.
    pub most_arriving: usize,
    /// Requests at the same time that have no reserved places. Beyond it a request is refused.
    pub most_requests: usize,
    /// How long their answers may take to be read.
    pub answer_within: AnswerWithin,
    /// Places for requests of certain kinds, which these alone take: probes, or streams that would keep others out. Where all
    /// are taken, a request of the kind is refused. The first kind that a request is of counts for it.
    pub reserved: Vec<Reserved>,
    /// Time for the head of a request, from the connection's beginning (with the TLS handshake in it), or on a kept
    /// connection from the head's first byte.
    pub longest_head: Duration,
    /// Bytes of a request's head. hyper takes no less than 8,192.
    pub largest_head: usize,
    /// Bytes of a request's body, where its route is not in `largest_bodies`.
    pub largest_body: u64,
    /// Bytes of a request's body by the route's path: whole segments from the beginning, the longest that fits counts.
    pub largest_bodies: Vec<(&'static str, u64)>,
    /// Time for a request's body, from when its head was there.
    pub longest_body: Duration,
    /// Whether connections are kept for further requests, and how long.
    pub keep_alive: Option<KeepAlive>,
    /// A connection's life. It is cut off then, whatever is under way on it.
    pub longest_connection: Duration,
    /// Time for what is under way when the server stops: requests, and heads that arrive. Idle connections are closed at once.
    pub farewell: Duration,
}

/// How long a connection is kept for further requests.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    /// Time without a request.
    pub longest_idle: Duration,
    /// No request begins on a connection that is older: the answer before says `connection: close`.
    pub longest_use: Duration,
}

/// How long an answer may take to be read. Whoever reads more slowly is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerWithin {
    /// The whole answer, from when it is there until the kernel has taken its last byte. For answers that are there at once: a
    /// client that reads a byte now and then does not keep its place.
    Whole(Duration),
    /// Time in which the kernel takes nothing of what is there for the client. For streams, which last as long as they like
    /// and are silent for as long: only bytes that wait for the client count against it.
    Progress(Duration),
}

/// Places for requests of one kind. As every request, one of them holds its place from when its head is there until its answer
/// has been written, or its connection ends.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// Which requests these are.
    pub serves: fn(&Parts) -> bool,
    /// How many at the same time.
    pub most: usize,
    /// How long their answers may take to be read.
    pub answer_within: AnswerWithin,
}

/// Why the server itself refuses a request. It says so by the function that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// All places for requests of this kind are taken.
    Busy,
    /// The body has more bytes than this.
    BodyTooLarge(u64),
    /// The body was not there within this.
    BodyTooSlow(Duration),
}

impl Refusal {
    /// `{"error": "…"}` with 503, 413 or 408.
    pub fn into_json(self) -> Response<Body> {
        let (status, error) = match self {
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, "too many requests at the same time"),
            Self::BodyTooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
            Self::BodyTooSlow(_) => (StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
        };
        (status, axum::Json(json!({ "error": error }))).into_response()
    }
}

/// Whether a path begins with these segments: `/readyz` begins `/readyz` and `/readyz/a`, and not `/readyzs`.
pub fn begins_with(path: &str, segments: &str) -> bool {
    path.strip_prefix(segments).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Limits {
    /// Bytes that the body of a request to this path may have.
    pub(super) fn largest_body_of(&self, path: &str) -> u64 {
        let fitting = self.largest_bodies.iter().filter(|(route, _)| begins_with(path, route));
        fitting.max_by_key(|(route, _)| route.len()).map_or(self.largest_body, |(_, bytes)| *bytes)
    }
}

/// The places of a running server.
pub(super) struct Places {
    reserved: Vec<(Reserved, Arc<Semaphore>)>,
    others: Arc<Semaphore>,
    answer_within: AnswerWithin,
}

impl Places {
    pub(super) fn of(limits: &Limits) -> Self {
        let reserved = limits.reserved.iter().map(|kind| (kind.clone(), Arc::new(Semaphore::new(kind.most))));
        let others = Arc::new(Semaphore::new(limits.most_requests));
        Self { reserved: reserved.collect(), others, answer_within: limits.answer_within }
    }

    /// Takes a place for a request where one is free, and says how long the answer may take.
    pub(super) fn take(&self, request: &Parts) -> (Option<OwnedSemaphorePermit>, AnswerWithin) {
        let reserved = self.reserved.iter().find(|(kind, _)| (kind.serves)(request));
        let (places, answer_within) = match reserved {
            Some((kind, places)) => (places, kind.answer_within),
            None => (&self.others, self.answer_within),
        };
        (Arc::clone(places).try_acquire_owned().ok(), answer_within)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const WHOLE: AnswerWithin = AnswerWithin::Whole(Duration::from_secs(10));

    fn limits() -> Limits {
        Limits {
            most_connections: 1,
            most_arriving: 12,
            most_requests: 2,
            answer_within: WHOLE,
            reserved: Vec::new(),
            longest_head: Duration::from_secs(3),
            largest_head: 8192,
            largest_body: 4,
            largest_bodies: vec![("/v1", 5), ("/v1/apply", 6)],
            longest_body: Duration::from_secs(7),
            keep_alive: None,
            longest_connection: Duration::from_secs(8),
            farewell: Duration::from_secs(9),
        }
    }

    #[test]
    fn the_longest_route_that_fits_says_how_large_a_body_may_be() {
        let limits = limits();
        for (path, bytes) in [
            ("/", 4),
            ("/v", 4),
            ("/v1", 5),
            ("/v1/", 5),
            ("/v12", 4),
            ("/v1/things", 5),
            ("/v1/apply", 6),
            ("/v1/apply/", 6),
            ("/v1/applying", 5),
        ] {
            assert_eq!(limits.largest_body_of(path), bytes, "{path}");
        }
    }

    #[test]
    fn reserved_places_are_taken_by_their_kind_alone_and_their_kind_takes_no_others() {
        let progress = AnswerWithin::Progress(Duration::from_secs(11));
        let probes =
            Reserved { serves: |request| begins_with(request.uri.path(), "/readyz"), most: 1, answer_within: progress };
        let places = Places::of(&Limits { reserved: vec![probes], ..limits() });
        let parts = |path: &str| Request::get(path).body(()).unwrap().into_parts().0;
        let (probe, other) = (parts("/readyz/a"), parts("/a"));
        let first = places.take(&probe);
        assert!(first.0.is_some());
        assert_eq!((places.take(&probe).0.is_none(), first.1), (true, progress));
        let held = [places.take(&other), places.take(&other)];
        assert!(held.iter().all(|(place, within)| place.is_some() && *within == WHOLE));
        assert!(places.take(&other).0.is_none());
        drop(first);
        assert!(places.take(&probe).0.is_some());
    }
}
