//! The metrics of the hub: `towline_hub_*`, each with its description, and how they are recorded.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use http::{Method, StatusCode};
use metrics::{Gauge, counter, gauge, histogram};

use crate::config::SectionName;
use crate::documents::BusObserver;
use crate::telemetry::{self, Metric};

/// Requests to the API, by `route`, `method` and `code`.
const HUB_REQUESTS_TOTAL: &str = "towline_hub_requests_total";
/// How long requests took until their answer began, by `route` and `method`.
const HUB_REQUEST_SECONDS: &str = "towline_hub_request_seconds";
/// Watches that this replica serves.
const HUB_WATCHERS: &str = "towline_hub_watchers";
/// Events by `outcome`: `confirmed` by the broker, `nacked` (a queue did not take it), or `skipped` (it can't be published).
const BUS_PUBLISHED_TOTAL: &str = "towline_bus_published_total";

/// All metrics, with their descriptions for Prometheus.
pub(super) const ALL: &[Metric] = &[
    Metric::counter(HUB_REQUESTS_TOTAL, "Requests to the REST API by route, method and status code"),
    Metric::histogram(HUB_REQUEST_SECONDS, "Time until the answer to a request began, by route and method"),
    Metric::gauge(HUB_WATCHERS, "Watches that this replica serves"),
    Metric::counter(BUS_PUBLISHED_TOTAL, "Events by outcome: confirmed by the broker, nacked or skipped"),
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
    section: SectionName,
    watchers: Gauge,
}

impl HubMetrics {
    /// Registers the series without labels, with the value 0.
    pub fn new(section: &SectionName) -> Self {
        Self { section: section.clone(), watchers: gauge!(HUB_WATCHERS) }
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
}

impl BusObserver for HubMetrics {
    fn published(&self, outcome: &'static str, count: u64) {
        counter!(BUS_PUBLISHED_TOTAL, "outcome" => outcome).increment(count);
    }

    fn lag(&self, lag: Duration) {
        telemetry::oldest_pending(&self.section, "events", lag);
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
