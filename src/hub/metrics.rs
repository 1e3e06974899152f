//! The metrics of the hub: `towline_hub_*`, each with its description, and how they are recorded.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use http::{Method, StatusCode};
use metrics::{Counter, Gauge, counter, gauge, histogram};

use crate::documents::{BusObserver, ConnectionState, Purpose};
use crate::telemetry::{self, Metric};

/// Requests to the API, by `route`, `method` and `code`.
const HUB_REQUESTS_TOTAL: &str = "towline_hub_requests_total";
/// How long requests took until their answer began, by `route` and `method`.
const HUB_REQUEST_SECONDS: &str = "towline_hub_request_seconds";
/// Watches that this replica serves.
const HUB_WATCHERS: &str = "towline_hub_watchers";
/// Changes that were refused, since their namespace would exceed its quota.
const HUB_QUOTA_REFUSALS_TOTAL: &str = "towline_hub_quota_refusals_total";
/// Versions that the log may hold.
const HUB_LOG_ROWS: &str = "towline_hub_log_rows";
/// Events by `outcome`: `confirmed` by the broker, `nacked` (a queue did not take it), or `skipped` (it can't be published).
const BUS_PUBLISHED_TOTAL: &str = "towline_bus_published_total";
/// How old the oldest event is that the broker has not confirmed.
const BUS_LAG_SECONDS: &str = "towline_bus_lag_seconds";
/// Whether the broker can be used, by `connection`.
const BUS_CONNECTED: &str = "towline_bus_connected";

/// All metrics, with their descriptions for Prometheus.
pub(super) const ALL: &[Metric] = &[
    Metric::counter(HUB_REQUESTS_TOTAL, "Requests to the REST API by route, method and status code"),
    Metric::histogram(HUB_REQUEST_SECONDS, "Time until the answer to a request began, by route and method"),
    Metric::gauge(HUB_WATCHERS, "Watches that this replica serves"),
    Metric::counter(
        HUB_QUOTA_REFUSALS_TOTAL,
        "Changes of documents that were refused, since their namespace would exceed its quota",
    ),
    Metric::gauge(HUB_LOG_ROWS, "Rows of the log, as the database estimates them"),
    Metric::counter(BUS_PUBLISHED_TOTAL, "Events by outcome: confirmed by the broker, nacked or skipped"),
    Metric::gauge(BUS_LAG_SECONDS, "Age of the oldest event that the broker has not confirmed"),
    Metric::gauge(BUS_CONNECTED, "Whether a connection to the broker can be used"),
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
    watchers: Gauge,
    quota_refusals: Counter,
    log_rows: Gauge,
}

impl HubMetrics {
    /// Registers the series that have no labels, all with the value 0.
    #[expect(clippy::new_without_default, reason = "it registers series, and a default should have no such effect")]
    pub fn new() -> Self {
        Self {
            watchers: gauge!(HUB_WATCHERS),
            quota_refusals: counter!(HUB_QUOTA_REFUSALS_TOTAL),
            log_rows: gauge!(HUB_LOG_ROWS),
        }
    }

    /// Records a request. `route` is the path of an operation with its variables, or a fixed word.
    pub fn request(&self, route: &str, method: &Method, code: StatusCode, took: Duration) {
        let (route, method) = (route.to_owned(), label(method));
        histogram!(HUB_REQUEST_SECONDS, "route" => route.clone(), "method" => method).record(took);
        count(route, method, code);
    }

    /// Records an answer. That of a route has its label as an extension.
    pub(super) fn answered(&self, method: &Method, answer: &Response, took: Duration) {
        let route = answer.extensions().get::<Route>().map_or(NO_ROUTE, |route| &route.0);
        self.request(route, method, answer.status(), took);
    }

    /// Records a head that can't be read: what its method is, nobody knows.
    pub(super) fn refused_head(code: StatusCode) {
        count(NO_ROUTE.to_owned(), OTHER, code);
    }

    /// Sets the number of watches; before a scrape.
    pub fn set_watchers(&self, watchers: usize) {
        self.watchers.set(telemetry::count(watchers));
    }

    /// Counts a change of a document whose namespace would exceed its quota.
    pub fn exceeded_quota(&self) {
        self.quota_refusals.increment(1);
    }

    /// Sets the number of rows of the log.
    pub fn log_rows(&self, rows: i64) {
        self.log_rows.set(telemetry::count(usize::try_from(rows).unwrap_or_default()));
    }
}

impl BusObserver for HubMetrics {
    fn published(&self, outcome: &'static str, count: u64) {
        counter!(BUS_PUBLISHED_TOTAL, "outcome" => outcome).increment(count);
    }

    fn lag(&self, lag: Duration) {
        gauge!(BUS_LAG_SECONDS).set(lag);
    }

    fn connection_is(&self, purpose: Purpose, state: Option<&ConnectionState>) {
        // A connection that nobody needs here is not missing.
        let is_usable = state.is_none_or(|state| *state == ConnectionState::Ready);
        gauge!(BUS_CONNECTED, "connection" => purpose.as_str()).set(if is_usable { 1.0 } else { 0.0 });
    }
}

fn count(route: String, method: &'static str, code: StatusCode) {
    counter!(HUB_REQUESTS_TOTAL, "route" => route, "method" => method, "code" => code.as_str().to_owned()).increment(1);
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
