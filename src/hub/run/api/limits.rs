//! The limits of the API's server, and of the requests that are under way.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::Method;
use tokio::sync::Semaphore;

use super::parameters::asks_for_a_watch;
use crate::documents::{Problem, ProblemKind};
use crate::http::Limits;
use crate::hub::run::problem;

/// Most requests under way, watches aside. At 8 connections of the database's pool, the default, more would only wait there.
pub(super) const MOST_REQUESTS: usize = 256;
/// Connections beside two for each watch that may be served: so a watch too many gets its 429, and other clients have room beside all
/// watches.
const MORE_CONNECTIONS: usize = 1024;
/// Deadline for a request's head. Idle connections are closed after it, too: it is longer than the minute for which load balancers commonly keep theirs.
const LONGEST_HEAD: Duration = Duration::from_secs(75);
/// Most bytes of a request's head: a `continue` of 1,024 characters, a selector of 4 KiB whose characters are escaped.
const LARGEST_HEAD: usize = 16 * 1024;
/// The longest time in which a client takes nothing of its answer or its watch.
const LONGEST_STALL: Duration = Duration::from_secs(30);
/// Deadline for requests under way when the server stops.
const FAREWELL: Duration = Duration::from_secs(10);

/// The limits with this number of watches.
pub(super) fn limits(max_watchers: usize) -> Limits {
    Limits {
        most_connections: 2 * max_watchers + MORE_CONNECTIONS,
        longest_head: LONGEST_HEAD,
        largest_head: LARGEST_HEAD,
        longest_stall: LONGEST_STALL,
        keep_alive: true,
        farewell: FAREWELL,
    }
}

/// Refuses requests while [`MOST_REQUESTS`] are under way. Watches have a limit of their own.
pub(super) async fn admit(State(places): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    if is_watch(&request) {
        return next.run(request).await;
    }
    match places.try_acquire() {
        Ok(_place) => next.run(request).await,
        Err(_) => problem::answer(&Problem::new(ProblemKind::Busy, "too many requests are under way")),
    }
}

/// Whether a request may be a watch. What is not, after all, is answered at once.
fn is_watch(request: &Request) -> bool {
    request.method() == Method::GET
        && request.uri().path().starts_with("/v1/")
        && asks_for_a_watch(request.uri().query().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn a_request_is_a_watch_however_its_query_is_written() {
        let is_watch = |uri: &str| is_watch(&Request::get(uri).body(Body::empty()).expect("a request"));
        assert!(is_watch("/v1/clusters?watch=true") && is_watch("/v1/clusters?limit=1&watch=true&a=b"));
        assert!(is_watch("/v1/clusters?w%61tch=tru%65"));
        for other in ["/v1/clusters", "/v1/clusters?watch=false", "/docs?watch=true", "/v1/clusters?fields=watch=true"]
        {
            assert!(!is_watch(other), "{other}");
        }
        let post = Request::post("/v1/clusters?watch=true").body(Body::empty()).expect("a request");
        assert!(!super::is_watch(&post));
    }
}
