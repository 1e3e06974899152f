//! A client that watches: it resumes from its last event or bookmark, at any replica, in JSON or by server-sent events.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use http::header::{ACCEPT, HeaderName};
use integration::Error;
use integration::hub::{Client, Request, Watch};
use integration::soak::Random;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::hub_replicas::filter::Filter;
use crate::hub_replicas::history::{History, Seen};
use crate::hub_replicas::world::{Key, LIMIT, key, number, version};

/// How a watch is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// Lines of JSON.
    Lines,
    /// Server-sent events, whose `id` is what the client resumes from.
    Events,
}

/// How a client behaves.
pub(crate) struct Plan {
    pub(crate) filter: Filter,
    pub(crate) media: Media,
    /// Where it goes: to any of these, each time.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whether it also reconnects without a reason, at random.
    pub(crate) is_restless: bool,
    /// Whether a version that is gone makes it begin anew; otherwise it is a failure.
    pub(crate) begins_anew: bool,
    pub(crate) random: Random,
    /// Once there is a version, the client ends when it has come so far.
    pub(crate) until: watch::Receiver<Option<i64>>,
    /// Where it resumes from; 0 until it knows.
    pub(crate) place: Arc<AtomicI64>,
}

/// What a client has seen from one state on.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The state that it began with, and its version.
    state: BTreeMap<Key, Value>,
    begin: i64,
    seen: Vec<Seen>,
    /// The state, with all changes since.
    replayed: BTreeMap<Key, Value>,
    /// The version of the last event or bookmark.
    place: i64,
}

/// What a client has seen.
#[derive(Debug)]
pub(crate) struct Report {
    filter: Filter,
    /// Another one begins when the version to resume from is gone.
    pub(crate) segments: Vec<Segment>,
    /// How often it has resumed.
    pub(crate) resumed: u32,
}

pub(crate) struct Watcher {
    plan: Plan,
    segments: Vec<Segment>,
    resumed: u32,
}

/// How a connection ended.
enum End {
    /// The client has seen enough.
    Done,
    /// It resumes.
    Lost,
    /// Its version is gone.
    Gone,
}

impl Watcher {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, segments: Vec::new(), resumed: 0 }
    }

    /// Watches until it has come as far as it is told to.
    pub(crate) async fn run(mut self) -> Report {
        let mut from = None;
        loop {
            let end = self.connect(from).await;
            let place = self.plan.place.load(Ordering::Relaxed);
            match end {
                End::Done => {
                    return Report { filter: self.plan.filter, segments: self.segments, resumed: self.resumed };
                }
                End::Lost => from = from.max((place > 0).then_some(place)),
                End::Gone => {
                    assert!(self.plan.begins_anew, "version {from:?} or {place} is gone: {:?}", self.plan.filter);
                    self.plan.place.store(0, Ordering::Relaxed);
                    from = None;
                }
            }
            self.resumed += u32::from(from.is_some());
            // A replica that is down refuses at once.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// One connection, from a version or from the state on.
    async fn connect(&mut self, from: Option<i64>) -> End {
        let plan = &mut self.plan;
        let address = plan.addresses[plan.random.index(plan.addresses.len())];
        let path = plan.filter.path();
        let resumes = from.filter(|_| plan.media == Media::Lines).map(|from| format!("&resourceVersion={from}"));
        let mark = if path.contains('?') { "&" } else { "?" };
        let path = format!("{path}{mark}watch=true{}", resumes.unwrap_or_default());
        let mut request = Request::get(&path);
        if plan.media == Media::Events {
            request = request.header(ACCEPT, "text/event-stream");
            if let Some(from) = from {
                request = request.header(HeaderName::from_static("last-event-id"), &from.to_string());
            }
        }
        let client = Client::to(address);
        let patience = self.patience();
        match timeout(patience, client.try_watch(&request)).await {
            Ok(Ok(Ok(watch))) => self.follow(Events::of(watch, self.plan.media), from.is_some()).await,
            Ok(Ok(Err(refusal))) if refusal.status == 410 => End::Gone,
            Ok(Ok(Err(refusal))) if refusal.status == 503 => End::Lost,
            Ok(Ok(Err(refusal))) => panic!("{path}: {refusal:?}"),
            Ok(Err(_)) => End::Lost,
            Err(silent) => {
                assert!(self.plan.is_restless, "{path}: the hub stays silent: {silent}");
                End::Lost
            }
        }
    }

    /// How long the client waits for the next event.
    fn patience(&mut self) -> Duration {
        if self.plan.is_restless && self.plan.until.borrow().is_none() {
            Duration::from_millis([300, 1000, 3000][self.plan.random.index(3)])
        } else {
            LIMIT
        }
    }

    async fn follow(&mut self, mut events: Events, is_resumed: bool) -> End {
        let mut state = (!is_resumed).then(BTreeMap::new);
        let mut left = self.plan.random.below(400);
        loop {
            let until = *self.plan.until.borrow();
            if state.is_none() && until.is_some_and(|until| until <= self.plan.place.load(Ordering::Relaxed)) {
                return End::Done;
            }
            if left == 0 && self.plan.is_restless && until.is_none() {
                return End::Lost;
            }
            left = left.saturating_sub(1);
            let patience = self.patience();
            let mut changed = self.plan.until.clone();
            let next = tokio::select! {
                next = timeout(patience, events.next()) => next,
                // Then it has more patience.
                _ = changed.wait_for(|now| *now != until) => continue,
            };
            let event = match next {
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None) | Err(_)) => return End::Lost,
                Err(silent) => {
                    let is_restless = self.plan.is_restless && until.is_none();
                    assert!(is_restless, "{:?}: the hub stays silent: {silent}", self.plan.filter);
                    return End::Lost;
                }
            };
            if event.what == "ERROR" {
                return match event.object["status"].as_u64() {
                    Some(410) => End::Gone,
                    // It needed the database.
                    Some(503) => End::Lost,
                    _ => panic!("{event:?}"),
                };
            }
            if self.plan.media == Media::Events {
                event.check_id(state.is_some());
            }
            match &mut state {
                None => self.change(event),
                Some(_) if event.what == "BOOKMARK" => {
                    assert_eq!(event.object["annotations"]["k8s.io/initial-events-end"], "true", "{event:?}");
                    self.begin(version(&event.object), state.take().unwrap_or_default());
                }
                Some(state) => {
                    assert_eq!(event.what, "ADDED", "{event:?}");
                    let earlier = state.insert(key(&event.object), event.object);
                    assert_eq!(earlier, None, "a document comes once");
                }
            }
        }
    }

    /// The state is complete.
    fn begin(&mut self, begin: i64, state: BTreeMap<Key, Value>) {
        self.plan.place.store(begin, Ordering::Relaxed);
        self.segments.push(Segment { replayed: state.clone(), state, begin, seen: Vec::new(), place: begin });
    }

    /// A change or a bookmark.
    fn change(&mut self, event: Event) {
        let version = version(&event.object);
        let segment = self.segments.last_mut().expect("a watch resumes from a state");
        if event.what == "BOOKMARK" {
            assert!(
                event.object["annotations"].is_null() && version >= segment.place,
                "{event:?} after {}",
                segment.place
            );
        } else {
            assert!(version > segment.place, "{event:?} after {}", segment.place);
            let key = key(&event.object);
            segment.seen.push(Seen {
                version,
                what: event.what.clone(),
                key: key.clone(),
                number: number(&event.object),
            });
            let earlier = match event.what.as_str() {
                "DELETED" => segment.replayed.remove(&key),
                _ => segment.replayed.insert(key, event.object),
            };
            assert_eq!(earlier.is_none(), event.what == "ADDED", "version {version}");
        }
        segment.place = version;
        self.plan.place.store(version, Ordering::Relaxed);
    }
}

/// The events of one connection.
struct Events {
    watch: Watch,
    media: Media,
    /// Of the server-sent event that has begun to arrive.
    id: Option<i64>,
    data: Option<String>,
}

#[derive(Debug)]
struct Event {
    what: String,
    object: Value,
    /// A server-sent event's id, where it has one.
    id: Option<i64>,
}

impl Events {
    fn of(watch: Watch, media: Media) -> Self {
        Self { watch, media, id: None, data: None }
    }

    /// The next event; none at the end in order. May be cancelled.
    async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            let Some(line) = self.watch.next_line().await? else { return Ok(None) };
            let line = std::str::from_utf8(line).expect("text");
            if self.media == Media::Lines {
                return Ok(Some(Event::read(line, None)));
            }
            if line.is_empty() {
                let data = self.data.take().expect("an event has data");
                return Ok(Some(Event::read(&data, self.id.take())));
            }
            match line.split_once(": ") {
                Some(("id", id)) => self.id = Some(id.parse().unwrap_or_else(|_| panic!("{line}"))),
                Some(("data", data)) if self.data.is_none() => self.data = Some(data.to_owned()),
                _ => panic!("{line}"),
            }
        }
    }
}

impl Event {
    fn read(text: &str, id: Option<i64>) -> Self {
        let event: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let what = event["type"].as_str().unwrap_or_else(|| panic!("{text}")).to_owned();
        Self { what, object: event["object"].clone(), id }
    }

    /// `id` is the version, and only the documents of a state have none.
    fn check_id(&self, is_state: bool) {
        let expected = (!is_state || self.what == "BOOKMARK").then(|| version(&self.object));
        assert_eq!(self.id, expected, "{self:?}");
    }
}

impl Report {
    /// Each version that the client had to see, it has seen once, in ascending order, with its content.
    pub(crate) fn check(&self, history: &History) {
        for segment in &self.segments {
            let state = segment.state.iter().map(|(key, object)| (key.clone(), (version(object), number(object))));
            let (filter, begin) = (&self.filter, segment.begin);
            assert_eq!(state.collect::<BTreeMap<_, _>>(), history.state(begin, filter), "{filter:?} at {begin}");
            assert_eq!(segment.seen, history.changes(begin, segment.place, filter), "{filter:?} from {begin} on");
        }
    }

    /// The last state with all changes since, in the order of a list.
    pub(crate) fn replayed(&self) -> Vec<Value> {
        self.segments.last().expect("a state").replayed.values().cloned().collect()
    }

    pub(crate) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The number of changes that it has seen.
    pub(crate) fn changes(&self) -> usize {
        self.segments.iter().map(|segment| segment.seen.len()).sum()
    }
}
