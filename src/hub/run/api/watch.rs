//! The body of a watch: its events as lines of JSON, or as server-sent events.
//!
//! A watch has no task and no queue of its own. The connection asks for the next bytes when it can write some, and gets the events
//! that are there by then, up to [`CHUNK`] bytes. Small objects are copied, so that one write sends many events; a large one is written
//! in pieces. One of the ring is not held meanwhile: clients that take it slowly, however many, keep nothing in memory that would
//! otherwise be gone. When it has left the ring, so has the watch.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered, StreamExt};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use hyper::body::Bytes;
use serde_json::json;
use tokio::time::Instant;

use super::Api;
use super::contract::{LINES, SERVER_SENT_EVENTS};
use super::media::Stream;
use crate::actor::Slot;
use crate::documents::{Ending, Event, Fields, Kind, Problem, ProblemKind, Watch, WatchQuery, WeakObject};
use crate::hub::plan::access::Caller;
use crate::hub::plan::tokens::{ActionScope, Role};
use crate::hub::run::problem;

/// Bytes that are written at once, unless a single event is larger. As much as the HTTP stack buffers (`LARGEST_HEAD`).
const CHUNK: usize = 16 * 1024;
/// Objects of this size are not copied, but written in pieces of a chunk, so that what ends a watch ends it in the middle of one, too.
const LARGE: usize = 8 * 1024;
/// Room for what is around an object.
const AROUND: usize = 64;

enum Chunk {
    /// Those of small events, or of an object of a page or window, which has room until it is taken.
    Held(Bytes),
    /// An object of the ring, as long as it is there, with what is before it.
    OfRing { before: Vec<u8>, object: WeakObject },
}

impl Chunk {
    fn len(&self) -> usize {
        match self {
            Self::Held(bytes) => bytes.len(),
            Self::OfRing { object, .. } => object.length(),
        }
    }

    /// A part of it, the first one with what is before it; none of an object that has left the ring.
    fn part(&self, range: Range<usize>) -> Option<Bytes> {
        match self {
            Self::Held(bytes) => Some(bytes.slice(range)),
            Self::OfRing { before, object } => {
                let before = if range.start == 0 { before.as_slice() } else { &[] };
                Some(Bytes::from([before, object.json()?.get(range)?].concat()))
            }
        }
    }
}

struct Served {
    api: Arc<Api>,
    watch: Watch,
    kind: Kind,
    fields: Fields,
    stream: Stream,
    /// The time, the server or the grants end it. It is one task among others, so that it is only looked at when it has been woken:
    /// an event wakes a thousand watches, and none of them looks at its timer.
    ends: FuturesUnordered<BoxFuture<'static, End>>,
    /// What is to be written next.
    chunks: VecDeque<Chunk>,
    /// How much of the first one is written.
    written: usize,
    is_over: bool,
    /// What has ended it.
    end: Option<End>,
    _slot: Slot,
}

/// What ends a watch whatever its events are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The time that its client has asked for.
    Time,
    /// The server stops.
    Server,
    /// The grant is gone.
    Grant,
}

/// Begins a watch. What prevents it from beginning is the status of the answer.
pub(super) async fn answer(
    api: Arc<Api>,
    caller: Caller,
    query: WatchQuery,
    lasts: Duration,
    stream: Stream,
) -> Result<Response, Problem> {
    let owner = caller.slot_owner();
    let slot = api.watches.try_take(owner)?;
    let (kind, fields) = (query.filter.kind(), query.fields);
    let namespace = query.filter.namespace().map(str::to_owned);
    let ends: BoxFuture<'static, End> = Box::pin(ends(Arc::clone(&api), caller, namespace, Instant::now() + lasts));
    let mut ends = FuturesUnordered::from_iter([ends]);
    // It may have to wait until it can read, and what ends a watch ends it then, too.
    let watch = tokio::select! {
        biased;
        end = ends.next() => return match end {
            // It has had no events in its time, as when there are none.
            Some(End::Time) => Ok(body_of(stream, Body::empty())),
            Some(End::Server | End::Grant) | None => {
                Err(Problem::new(ProblemKind::Unavailable, "the watch has ended before it could begin"))
            }
        },
        watch = api.tail.watch_of(owner, query) => watch.map_err(|error| Problem::from(&error))?,
    };
    let served = Served {
        api,
        watch,
        kind,
        fields,
        stream,
        ends,
        chunks: VecDeque::new(),
        written: 0,
        is_over: false,
        end: None,
        _slot: slot,
    };
    Ok(body_of(stream, Body::from_stream(served.chunks())))
}

/// An answer with the events of a watch.
fn body_of(stream: Stream, events: Body) -> Response {
    let media = match stream {
        Stream::Lines => LINES,
        Stream::Events => SERVER_SENT_EVENTS,
    };
    ([(CONTENT_TYPE, media), (CACHE_CONTROL, "no-store")], events).into_response()
}

/// Waits for what ends a watch whatever its events are. Without a namespace it shows all of them.
async fn ends(api: Arc<Api>, caller: Caller, namespace: Option<String>, ends_at: Instant) -> End {
    let place = namespace.as_deref().map_or(ActionScope::Everywhere, ActionScope::Namespace);
    tokio::select! {
        () = api.stop.cancelled() => End::Server,
        () = tokio::time::sleep_until(ends_at) => End::Time,
        () = api.access.lost(&caller, Role::Read, place) => End::Grant,
    }
}

impl Served {
    /// The bytes of the watch until it ends.
    fn chunks(self) -> impl stream::Stream<Item = io::Result<Bytes>> {
        stream::unfold(self, |mut served| async move {
            if served.chunks.is_empty() && !served.is_over {
                let mut bytes = Vec::new();
                served.is_over = !served.next(&mut bytes).await;
                served.flush(&mut bytes);
            }
            served.piece().map(|piece| (piece, served))
        })
    }

    /// The next piece of the chunks. A client that takes a large object slowly gets the rest of it if the time is over or the server
    /// stops, and nothing more if it lost its grant: that cuts the answer off.
    fn piece(&mut self) -> Option<io::Result<Bytes>> {
        let chunk = self.chunks.front()?;
        if self.written > 0 {
            self.end = self.end.or_else(|| self.ends.next().now_or_never().flatten());
            if self.end == Some(End::Grant) {
                self.chunks.clear();
                self.is_over = true;
                return Some(Err(io::Error::other("the grant is gone")));
            }
        }
        let (length, until) = (chunk.len(), chunk.len().min(self.written + CHUNK));
        let Some(piece) = chunk.part(self.written..until) else {
            // Of an object that has not begun nothing is missing.
            let is_cut = self.written > 0;
            self.chunks.clear();
            self.is_over = true;
            return is_cut.then(|| Err(io::Error::other("the object has left the ring")));
        };
        self.written = until;
        if until == length {
            self.chunks.pop_front();
            self.written = 0;
        }
        Some(Ok(piece))
    }

    /// Waits for an event, and writes it and those that are there already. Returns whether there will be more.
    async fn next(&mut self, into: &mut Vec<u8>) -> bool {
        if self.end.is_some() {
            return false;
        }
        let first = tokio::select! {
            biased;
            _ = self.ends.next() => return false,
            first = self.watch.next() => first,
        };
        let mut next = Some(first);
        while let Some(event) = next {
            let is_of_ring = self.watch.lag().is_some();
            match event {
                Ok(event) => self.write(&event, is_of_ring, into),
                Err(ending) => {
                    self.write_ending(&ending, into);
                    return false;
                }
            }
            let written = into.len() + self.chunks.iter().map(Chunk::len).sum::<usize>();
            next = if written < CHUNK { self.watch.next_if_there() } else { None };
        }
        true
    }

    /// What was written so far becomes a chunk.
    fn flush(&mut self, bytes: &mut Vec<u8>) {
        if !bytes.is_empty() {
            self.chunks.push_back(Chunk::Held(Bytes::from(std::mem::take(bytes))));
        }
    }

    fn write(&mut self, event: &Event, is_of_ring: bool, into: &mut Vec<u8>) {
        let (name, object) = match event {
            Event::Initial(object) | Event::Added(object) => ("ADDED", object),
            Event::Modified(object) => ("MODIFIED", object),
            Event::Deleted(object) => ("DELETED", object),
            Event::Bookmark { version, is_end_of_state } => {
                self.begin_line(event, into);
                into.extend_from_slice(bookmark(self.kind, *version, *is_end_of_state).as_bytes());
                return self.end_line(into);
            }
        };
        let is_large = self.fields == Fields::All && object.json().len() >= LARGE;
        if is_large {
            self.flush(into);
        }
        into.reserve(AROUND + if is_large { 0 } else { object.json().len() });
        self.begin_line(event, into);
        into.extend_from_slice(b"{\"type\":\"");
        into.extend_from_slice(name.as_bytes());
        into.extend_from_slice(b"\",\"object\":");
        if is_large && is_of_ring {
            self.chunks.push_back(Chunk::OfRing { before: std::mem::take(into), object: object.downgrade() });
        } else if is_large {
            self.flush(into);
            self.chunks.push_back(Chunk::Held(Bytes::from_owner(object.clone())));
        } else {
            object.write(self.fields, into);
        }
        into.push(b'}');
        self.end_line(into);
    }

    fn begin_line(&self, event: &Event, into: &mut Vec<u8>) {
        if self.stream == Stream::Events {
            if let Some(version) = event.resume_version() {
                into.extend_from_slice(format!("id: {version}\n").as_bytes());
            }
            into.extend_from_slice(b"data: ");
        }
    }

    fn write_ending(&self, ending: &Ending, into: &mut Vec<u8>) {
        let problem = match ending {
            // The client resumes anywhere.
            Ending::FellBehind => return,
            Ending::Gone => Problem::new(ProblemKind::Gone, ending.to_string()),
            Ending::Failed(error) => Problem::from(error),
        };
        self.api.outages.note(&problem);
        if self.stream == Stream::Events {
            into.extend_from_slice(b"data: ");
        }
        into.extend_from_slice(line("ERROR", &json!(problem::body(&problem))).as_bytes());
        self.end_line(into);
    }

    fn end_line(&self, into: &mut Vec<u8>) {
        // An empty line ends a server-sent event.
        into.extend_from_slice(if self.stream == Stream::Events { b"\n\n" } else { b"\n" });
    }
}

fn bookmark(kind: Kind, version: i64, is_end_of_state: bool) -> String {
    let mut object = json!({"kind": kind.name(), "resourceVersion": version.to_string()});
    if is_end_of_state && let Some(fields) = object.as_object_mut() {
        fields.insert("annotations".to_owned(), json!({"k8s.io/initial-events-end": "true"}));
    }
    line("BOOKMARK", &object)
}

/// The type comes first: people read these lines, too.
fn line(kind: &str, object: &serde_json::Value) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::documents::{Document, Object};

    fn object(length: usize) -> Object {
        let row = json!({"id": "6f1c0000-0000-4000-8000-000000000000", "kind": "clusters", "namespace": "foo", "name": "c1",
            "labels": {}, "annotations": {}, "finalizers": [], "generation": 1, "version": 7, "created_at": "2026-11-21T23:40:00Z",
            "updated_at": "2026-11-21T23:40:00Z", "deleted_at": null, "data": {"text": "x".repeat(length)}, "status": {}});
        Object::of(&Document::from_row(&row.to_string()).expect("a row"))
    }

    #[test]
    fn an_object_of_the_ring_is_written_as_long_as_it_is_there() {
        let object = object(1000);
        let json = object.json().to_vec();
        let chunk = Chunk::OfRing { before: b"before".to_vec(), object: object.downgrade() };
        assert_eq!(chunk.len(), json.len());
        assert_eq!(chunk.part(0..100), Some(Bytes::from([b"before", &json[..100]].concat())));
        assert_eq!(chunk.part(100..json.len()), Some(Bytes::copy_from_slice(&json[100..])));
        let (ring, held) = (object.clone(), Chunk::Held(Bytes::from_owner(object)));
        assert!(chunk.part(0..1).is_some());
        drop(ring);
        assert!(chunk.part(0..1).is_some(), "a page has it");
        drop(held);
        assert_eq!(chunk.part(0..1), None);
    }

    #[test]
    fn a_bookmark_says_where_the_state_ends() {
        let read = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
        let end = json!({"type": "BOOKMARK", "object": {"kind": "Cluster", "resourceVersion": "57",
            "annotations": {"k8s.io/initial-events-end": "true"}}});
        assert_eq!(read(bookmark(Kind::Cluster, 57, true)), end);
        let later = json!({"type": "BOOKMARK", "object": {"kind": "Secret", "resourceVersion": "58"}});
        assert_eq!(read(bookmark(Kind::Secret, 58, false)), later);
    }
}
