//! The metrics of the hub: `towline_hub_*`, each with its description, and how they are recorded.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Method, Response, StatusCode};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::documents::{BusObserver, Purpose, Role, Standing, WriterObserver};
use crate::http::Observer;
use crate::telemetry::{self, Metric};

/// Requests to the API, by `route`, `method` and `code`.
const HUB_REQUESTS_TOTAL: &str = "towline_hub_requests_total";
/// How long requests took until their answer began, by `route` and `method`.
const HUB_REQUEST_SECONDS: &str = "towline_hub_request_seconds";
/// Items of the last call of the writer.
const HUB_BATCH_ITEMS: &str = "towline_hub_batch_items";
/// The newest version that this replica has read.
const HUB_VERSION: &str = "towline_hub_version";
/// The lowest version that a watch can resume from.
const HUB_BASE: &str = "towline_hub_base";
/// Watches that this replica serves.
const HUB_WATCHERS: &str = "towline_hub_watchers";
/// How long after it was read a change was handed to a watch.
const HUB_WATCH_LAG_SECONDS: &str = "towline_hub_watch_lag_seconds";
/// Versions that the log may hold.
const HUB_LOG_ROWS: &str = "towline_hub_log_rows";
/// Events by `outcome`: `confirmed` by the broker, `nacked` (a queue did not take it), or `skipped` (it can't be published).
const BUS_PUBLISHED_TOTAL: &str = "towline_bus_published_total";
/// How old the oldest event is that the broker has not confirmed.
const BUS_LAG_SECONDS: &str = "towline_bus_lag_seconds";
/// Whether the broker can be used, by `connection`.
const BUS_CONNECTED: &str = "towline_bus_connected";
/// Whether this process fills a role, by `name`: `compaction`, `relay`, `dispatcher`.
const CLAIM_HELD: &str = "towline_claim_held";
/// Rows of the log that can't be read.
const HUB_UNREADABLE_ROWS_TOTAL: &str = "towline_hub_unreadable_rows_total";

/// All metrics, with their descriptions for Prometheus.
pub(super) const ALL: &[Metric] = &[
    Metric::counter(HUB_REQUESTS_TOTAL, "Requests to the REST API by route, method and status code"),
    Metric::histogram(HUB_REQUEST_SECONDS, "Time until the answer to a request began, by route and method"),
    Metric::gauge(HUB_BATCH_ITEMS, "Changes that the last call of the writer made together"),
    Metric::gauge(HUB_VERSION, "The newest version that this replica has read from the log"),
    Metric::gauge(HUB_BASE, "The lowest version that a watch can resume from"),
    Metric::gauge(HUB_WATCHERS, "Watches that this replica serves"),
    Metric::histogram(HUB_WATCH_LAG_SECONDS, "Time from reading a change from the log to handing it to a watch"),
    Metric::gauge(HUB_LOG_ROWS, "Rows of the log, as the database estimates them"),
    Metric::counter(
        HUB_UNREADABLE_ROWS_TOTAL,
        "Rows of the log that can't be read, each of which has ended the watches that it may concern",
    ),
    Metric::counter(BUS_PUBLISHED_TOTAL, "Events by outcome: confirmed by the broker, nacked or skipped"),
    Metric::gauge(BUS_LAG_SECONDS, "Age of the oldest event that the broker has not confirmed"),
    Metric::gauge(BUS_CONNECTED, "Whether a connection to the broker can be used"),
    Metric::gauge(CLAIM_HELD, "Whether this replica holds the leader claim of a role, by name"),
];

/// The label `route` of requests that no route has, or that are refused before their route is known.
const NO_ROUTE: &str = "none";

/// An extension of an answer: the label `route` of its request.
#[derive(Clone, Debug)]
pub(super) struct Route(Arc<str>);

impl Route {
    /// The path of an operation with its variables, or a fixed word.
    pub(super) fn new(label: &str) -> Self {
        Self(label.into())
    }
}

#[derive(Debug)]
pub struct HubMetrics {
    batch_items: Gauge,
    version: Gauge,
    base: Gauge,
    watchers: Gauge,
    watch_lag: Histogram,
    log_rows: Gauge,
    unreadable_rows: Counter,
}

impl HubMetrics {
    /// Registers the series that have no labels, all with the value 0.
    #[expect(clippy::new_without_default, reason = "it registers series, and a default should have no such effect")]
    pub fn new() -> Self {
        Self {
            batch_items: gauge!(HUB_BATCH_ITEMS),
            version: gauge!(HUB_VERSION),
            base: gauge!(HUB_BASE),
            watchers: gauge!(HUB_WATCHERS),
            watch_lag: histogram!(HUB_WATCH_LAG_SECONDS),
            log_rows: gauge!(HUB_LOG_ROWS),
            unreadable_rows: counter!(HUB_UNREADABLE_ROWS_TOTAL),
        }
    }

    /// Records a request. `route` is the path of an operation with its variables, or a fixed word.
    pub fn request(&self, route: &str, method: &Method, code: StatusCode, took: Duration) {
        let (route, method) = (route.to_owned(), label(method));
        histogram!(HUB_REQUEST_SECONDS, "route" => route.clone(), "method" => method).record(took);
        counter!(HUB_REQUESTS_TOTAL, "route" => route, "method" => method, "code" => code.as_str().to_owned())
            .increment(1);
    }

    /// Records how long after it was read a change is handed to a watch.
    pub fn lag(&self, lag: Duration) {
        self.watch_lag.record(lag);
    }

    /// Sets the state of the log and the number of watches; before a scrape.
    pub fn set(&self, version: i64, base: i64, watchers: usize) {
        self.version.set(number(version));
        self.base.set(number(base));
        self.watchers.set(telemetry::count(watchers));
    }

    /// Sets whether this process fills a role; before a scrape.
    pub fn fills(&self, role: Role, is_held: bool) {
        gauge!(CLAIM_HELD, "name" => role.as_str()).set(if is_held { 1.0 } else { 0.0 });
    }

    /// Sets how many rows of the log could not be read.
    pub fn unreadable_rows(&self, rows: u64) {
        self.unreadable_rows.absolute(rows);
    }

    /// Sets the number of rows of the log.
    pub fn log_rows(&self, rows: i64) {
        self.log_rows.set(number(rows));
    }
}

impl BusObserver for HubMetrics {
    fn published(&self, outcome: &'static str, count: u64) {
        counter!(BUS_PUBLISHED_TOTAL, "outcome" => outcome).increment(count);
    }

    fn lag(&self, lag: Duration) {
        gauge!(BUS_LAG_SECONDS).set(lag);
    }

    fn stands(&self, purpose: Purpose, standing: Option<&Standing>) {
        // A connection that nobody needs here is not missing.
        let is_usable = standing.is_none_or(|standing| *standing == Standing::Ready);
        gauge!(BUS_CONNECTED, "connection" => purpose.as_str()).set(if is_usable { 1.0 } else { 0.0 });
    }
}

impl WriterObserver for HubMetrics {
    fn sends(&self, items: usize) {
        self.batch_items.set(telemetry::count(items));
    }
}

/// All answers of the server, whoever gave them.
impl Observer for HubMetrics {
    fn answers(&self, method: &Method, answer: &Response<Body>, took: Duration) {
        let route = answer.extensions().get::<Route>().map_or(NO_ROUTE, |route| &route.0);
        self.request(route, method, answer.status(), took);
    }

    fn refuses_head(&self, code: StatusCode) {
        // What the method is, nobody knows.
        let (route, method) = (NO_ROUTE, OTHER);
        counter!(HUB_REQUESTS_TOTAL, "route" => route, "method" => method, "code" => code.as_str().to_owned())
            .increment(1);
    }
}

/// A version as a sample. A renumbering adds 2^40, so that it takes thousands of them until samples are not exact any more.
#[expect(clippy::cast_precision_loss, reason = "numbers up to 2^53 are exact")]
fn number(version: i64) -> f64 {
    version as f64
}

/// A method that clients have made up, and the unknown one.
const OTHER: &str = "other";

/// The methods are a closed set: a client can make up others.
fn label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => OTHER,
    }
}
