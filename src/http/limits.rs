//! The limits of a server, and how it refuses what exceeds them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse;
use http::request::Parts;
use http::{Response, StatusCode};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The limits of a server. They apply to each server of the process separately.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most open connections of all kinds. To admit a new one beyond that, the server closes the connection that has been
    /// idle longest, else the oldest one whose head is incomplete; if all have a request under way, it closes the new one. So
    /// the number should exceed `most_arriving`, `most_requests` and all reserved places together; the excess is room for
    /// idle connections.
    pub most_connections: usize,
    /// Most connections in their TLS handshake or with an incomplete head. Beyond that the oldest of them is closed.
    pub most_arriving: usize,
    /// Most concurrent requests without reserved places. Further ones are refused.
    pub most_requests: usize,
    /// Deadline for reading their answers.
    pub answer_within: AnswerWithin,
    /// Places reserved for certain kinds of requests, which use no others: probes, or streams that would keep others out.
    /// If all are taken, a request of that kind is refused. The first kind that matches a request counts.
    pub reserved: Vec<Reserved>,
    /// Deadline for the head of a request, from the start of the connection (including the TLS handshake), or on a kept
    /// connection from the head's first byte.
    pub longest_head: Duration,
    /// Most bytes of a request's head. hyper requires at least 8,192.
    pub largest_head: usize,
    /// Most bytes of a request's body, unless its route is in `largest_bodies`.
    pub largest_body: u64,
    /// Most bytes of a request's body by path prefix (whole segments); the longest prefix counts.
    pub largest_bodies: Vec<(&'static str, u64)>,
    /// Deadline for a request's body, from the end of its head.
    pub longest_body: Duration,
    /// Whether connections are kept for further requests, and how long.
    pub keep_alive: Option<KeepAlive>,
    /// Longest life of a connection. It is cut off then, even during a request.
    pub longest_connection: Duration,
    /// Deadline for requests and incomplete heads when the server stops. Idle connections are closed at once.
    pub farewell: Duration,
}

/// How long a connection is kept for further requests.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    /// Longest time without a request.
    pub longest_idle: Duration,
    /// An older connection takes no further request: the last answer says `connection: close`.
    pub longest_use: Duration,
}

/// Deadline for reading an answer. A slower client is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerWithin {
    /// For the whole answer, from when it is ready until the kernel has taken its last byte. For answers that are complete
    /// at once: a client that only reads a byte now and then does not keep its place.
    Whole(Duration),
    /// For progress: the longest time in which the kernel takes none of the bytes that wait for the client. For streams,
    /// which may last and be silent for any time.
    Progress(Duration),
}

/// Places for requests of one kind. Like every request, one of this kind holds its place from the end of its head until its
/// answer has been written or its connection ends.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// Whether a request is of this kind.
    pub serves: fn(&Parts) -> bool,
    /// Most concurrent requests.
    pub most: usize,
    /// Deadline for reading their answers.
    pub answer_within: AnswerWithin,
}

/// Why the server refuses a request. A function that the server is given turns it into the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// All places for requests of this kind are taken.
    Busy,
    /// The body is larger than this many bytes.
    BodyTooLarge(u64),
    /// The body did not arrive within this time.
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
    /// Most bytes of the body of a request to this path.
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

    /// Takes a place for a request if one is free, and returns the deadline for its answer.
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
