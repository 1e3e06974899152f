//! The limits of the API's server.

use std::time::Duration;

use http::request::Parts;

use super::parameters::asks_for_a_watch;
use crate::http::{AnswerWithin, KeepAlive, Limits, Reserved, begins_with};

/// Most requests under way, watches aside. At 8 connections of the database's pool, the default, more would only wait there.
const MOST_REQUESTS: usize = 256;
/// Connections in a handshake or with an incomplete head, at most, where there may be fewer watches.
const MOST_ARRIVING: usize = 128;
/// Deadline for a request's head.
const LONGEST_HEAD: Duration = Duration::from_secs(5);
/// Most bytes of a request's head: a `continue` of 1,024 characters, a selector of 4 KiB whose characters are escaped.
const LARGEST_HEAD: usize = 16 * 1024;
/// Deadline for a request's body.
const LONGEST_BODY: Duration = Duration::from_secs(30);
/// Most bytes of a body. A document has at most 4 MiB as the database prints it; the rest is room for a client's white space.
const LARGEST_BODY: u64 = 5 << 20;
/// The longest time without progress of an answer.
const ANSWER_STALLS: Duration = Duration::from_mins(1);
/// The longest time in which a watch accepts no byte.
const WATCH_STALLS: Duration = Duration::from_secs(30);
/// Most requests for the description of the API, which have places of their own: no token is needed for them.
const MOST_DESCRIPTIONS: usize = 16;
/// Deadline for reading one of them, at most half a megabyte.
const DESCRIPTION_WITHIN: Duration = Duration::from_secs(30);
/// Idle connections are closed after this. It is longer than common clients keep theirs.
const LONGEST_IDLE: Duration = Duration::from_mins(2);
/// An older connection takes no further request.
const LONGEST_USE: Duration = Duration::from_mins(30);
/// Longest life of a connection: a watch of an hour may begin at the end of its use.
const LONGEST_CONNECTION: Duration = Duration::from_hours(2);
/// Deadline for requests under way when the server stops.
const FAREWELL: Duration = Duration::from_secs(10);

/// The limits with this number of watches.
pub(super) fn limits(max_watchers: usize) -> Limits {
    let watches =
        Reserved { serves: is_watch, most: max_watchers, answer_within: AnswerWithin::Progress(WATCH_STALLS) };
    let descriptions = Reserved {
        serves: is_description,
        most: MOST_DESCRIPTIONS,
        answer_within: AnswerWithin::Whole(DESCRIPTION_WITHIN),
    };
    Limits {
        most_connections: max_watchers + MOST_REQUESTS,
        // When a replica is gone, the clients of all its watches connect at once: with fewer places some were closed before their heads
        // were read. A thousand take at most 16 MiB of heads, and about as much again for the buffers of TLS.
        most_arriving: max_watchers.max(MOST_ARRIVING),
        most_requests: MOST_REQUESTS,
        answer_within: AnswerWithin::Progress(ANSWER_STALLS),
        reserved: vec![watches, descriptions],
        longest_head: LONGEST_HEAD,
        largest_head: LARGEST_HEAD,
        largest_body: LARGEST_BODY,
        largest_bodies: Vec::new(),
        longest_body: LONGEST_BODY,
        keep_alive: Some(KeepAlive { longest_idle: LONGEST_IDLE, longest_use: LONGEST_USE }),
        longest_connection: LONGEST_CONNECTION,
        farewell: FAREWELL,
    }
}

/// Whether a request may be a watch. What is not, after all, is answered at once and returns its place.
fn is_watch(request: &Parts) -> bool {
    begins_with(request.uri.path(), "/v1") && asks_for_a_watch(request.uri.query().unwrap_or_default())
}

/// Whether a request is for the description of the API, for which nobody needs a token.
fn is_description(request: &Parts) -> bool {
    let path = request.uri.path();
    begins_with(path, "/docs") || path == "/openapi.json"
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn watches_have_places_of_their_own() {
        let is_watch = |uri: &str| is_watch(&Request::get(uri).body(()).expect("a request").into_parts().0);
        assert!(is_watch("/v1/clusters?watch=true") && is_watch("/v1/clusters?limit=1&watch=true&a=b"));
        assert!(is_watch("/v1/clusters?w%61tch=tru%65"), "another way to write the same takes no other place");
        for other in ["/v1/clusters", "/v1/clusters?watch=false", "/docs?watch=true", "/v1/clusters?fields=watch=true"]
        {
            assert!(!is_watch(other), "{other}");
        }
        let limits = limits(1000);
        assert_eq!((limits.most_connections, limits.reserved[0].most, limits.most_requests), (1256, 1000, 256));
        let seconds = Duration::from_secs;
        assert_eq!((limits.longest_head, limits.largest_head), (seconds(5), 16 << 10));
        assert_eq!((limits.longest_body, limits.largest_body), (seconds(30), 5 << 20));
        assert_eq!(limits.answer_within, AnswerWithin::Progress(seconds(60)));
        assert_eq!(limits.reserved[0].answer_within, AnswerWithin::Progress(seconds(30)));
    }
}
