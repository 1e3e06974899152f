//! Everything that a daemon can show at `/metrics`, as a scrape brings it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use towline::test_api::documents::{BusObserver, Purpose};
use towline::test_api::hub::HubMetrics;
use towline::test_api::inventory::InventoryMetrics;
use towline::test_api::jobs::JOBS;
use towline::test_api::lease::LeaseMetrics;
use towline::test_api::resource_sync::{Direction, SyncMetrics};
use towline::test_api::status::{Admin, Tree, serve};
use towline::test_api::status_sync::StatusSyncMetrics;
use towline::test_api::syncset::dispatch::{DispatchObserver, Turn};
use towline::test_api::syncset::plan::pass::{End, Outcome, Progress, Writes};
use towline::test_api::syncset::plan::spec::Behavior;
use towline::test_api::syncset::work::{First, ReconcileEnd, WorkObserver};
use towline::test_api::syncset::{Applied, Counted, SelectorApplied, SyncState, SyncsetMetrics};
use towline::test_api::telemetry::{
    self, ReconcileResult, RestClientMetrics, WorkqueueMetrics, actors, cluster_available,
    cluster_new_credentials_fail, db_query, leader_election_master_status, section_well, state_undone,
};

/// The labels of one series, with their values.
type Labels = BTreeMap<String, String>;

/// Series by name, as Prometheus stores them.
pub(crate) type Series = BTreeMap<String, Vec<Labels>>;

/// The recorder is the process's, so there is one scrape for all tests.
pub(crate) static SERIES: LazyLock<Series> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let text = runtime.block_on(scrape());
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).fold(Series::new(), |mut series, line| {
        let (name, labels) = sample(line);
        series.entry(name).or_default().push(labels);
        series
    })
});

/// A tree without actors.
struct Bare;

impl Tree for Bare {
    fn report(&self) -> BoxFuture<'_, Value> {
        Box::pin(async { Value::Null })
    }

    fn ask(&self) -> Duration {
        Duration::ZERO
    }
}

async fn scrape() -> String {
    let metrics = telemetry::install_metrics(JOBS.metrics()).expect("the only recorder");
    record_everything_once();
    let admin = Admin {
        started: Instant::now(),
        metrics,
        before_scrape: Arc::new(|| {}),
        sections: Vec::new(),
        clusters: Arc::new(Vec::new),
        tree: Arc::new(Bare),
        admin_token_file: None,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(serve(listener, admin, CancellationToken::new()));
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("the server answers in text");
    server.abort();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains(" 200 OK"), "{head}");
    let monitoring = SelectorApplied { name: "monitoring".to_owned(), clusters: 2, unapplied: 1 };
    let applied = Applied { selectors: vec![monitoring], syncsets: 2, syncsets_unapplied: 1 };
    let mut body = body.to_owned();
    // As the admin server shows what the section has.
    telemetry::render_families(&mut body, &SyncsetMetrics::families(&applied));
    body
}

/// A histogram is shown once it has a value; most others are from the start.
fn record_everything_once() {
    let section = "databases".parse().expect("a name");
    let queue = WorkqueueMetrics::new(&section);
    queue.started(Duration::ZERO);
    queue.finished(Duration::ZERO, ReconcileResult::Success);
    let sync = SyncMetrics::new(&section);
    sync.written(Direction::Spec, Duration::ZERO);
    sync.written(Direction::Status, Duration::ZERO);
    LeaseMetrics::new(&section).renewed();
    let _ = InventoryMetrics::new();
    StatusSyncMetrics::new("policies").pass(Duration::ZERO);
    let hub = HubMetrics::new();
    hub.request("/v1/clusters", &http::Method::POST, http::StatusCode::CREATED, Duration::ZERO);
    hub.request("/v1/clusters", &http::Method::POST, http::StatusCode::TOO_MANY_REQUESTS, Duration::ZERO);
    let bus: &dyn BusObserver = &hub;
    for outcome in ["confirmed", "nacked", "skipped"] {
        bus.published(outcome, 1);
    }
    bus.lag(Duration::ZERO);
    for purpose in [Purpose::Relay, Purpose::Worker] {
        bus.connection_is(purpose, None);
    }
    syncsets(&SyncsetMetrics::new(&"syncsets".parse().expect("a name")));
    db_query("detect_policies", Duration::ZERO);
    RestClientMetrics::new("hub:6443").answered(None, &http::Method::GET);
    leader_election_master_status(&section, true);
    section_well(&section, true);
    state_undone(&section);
    section_well(&"hub".parse().expect("a name"), true);
    cluster_available(&"hub".parse().expect("a name"), true);
    cluster_new_credentials_fail(&"hub".parse().expect("a name"), false);
    actors("watcher", 0, 0);
}

fn syncsets(metrics: &SyncsetMetrics) {
    let outcome = Outcome {
        end: End::Finished,
        writes: Writes::default(),
        results: Vec::new(),
        retry: None,
        awaits_check: false,
        is_suspended: false,
        releases: BTreeMap::new(),
        contended: Vec::new(),
        ending: BTreeSet::new(),
        requests: 0,
        progress: Progress::default(),
    };
    metrics.begun(Duration::ZERO);
    metrics.ended(ReconcileEnd::Complete, Duration::ZERO, Some(&outcome));
    metrics.ended(ReconcileEnd::Failed, Duration::ZERO, None);
    metrics.sent(Behavior::Apply, true, Duration::ZERO);
    metrics.first_success(First::SyncSet { group: None }, Duration::ZERO);
    metrics.first_success(First::SelectorSyncSet { name: "monitoring" }, Duration::ZERO);
    metrics.first_success(First::Cluster, Duration::ZERO);
    metrics.dispatched(Turn::default());
    metrics.mended(0);
    let states = SyncState::ALL.into_iter().map(|state| (state, 1)).collect();
    metrics.counted(&Counted { states, ..Counted::default() });
}

/// `name{label="value",…} 1`. No value of a label has a comma or a brace.
fn sample(line: &str) -> (String, Labels) {
    let (series, _value) = line.rsplit_once(' ').expect("a value");
    let (name, labels) = series.strip_suffix('}').and_then(|series| series.split_once('{')).unwrap_or((series, ""));
    let labels = labels.split(',').filter(|label| !label.is_empty()).map(|label| {
        let (key, value) = label.split_once('=').unwrap_or_else(|| panic!("{line}: {label}"));
        (key.to_owned(), value.trim_matches('"').to_owned())
    });
    (name.to_owned(), labels.collect())
}
