//! Holds what is rendered to what is described, with a strict reader of Prometheus' text format.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::Duration;

use towline::test_api::config::SectionName;
use towline::test_api::documents::{BusObserver, Counts};
use towline::test_api::guard::{GuardedChange, record_held};
use towline::test_api::hub::HubMetrics;
use towline::test_api::jobs::JOBS;
use towline::test_api::lease::LeaseMetrics;
use towline::test_api::resource_sync::{Direction, SyncMetrics};
use towline::test_api::status::ObjectState;
use towline::test_api::status_sync::{StatusSyncMetrics, WriteOutcome};
use towline::test_api::syncset::dispatch::{Batch, DispatchObserver, SuspendedSyncset};
use towline::test_api::syncset::plan::guard::Cause;
use towline::test_api::syncset::plan::health::HealthState;
use towline::test_api::syncset::plan::spec::Behavior;
use towline::test_api::syncset::work::{First, WorkObserver};
use towline::test_api::syncset::{Applied, Counted, DispatcherState, RolloutGroup, SelectorApplied, SyncsetMetrics};
use towline::test_api::telemetry::{
    Metric, MetricKind, ReconcileResult, RestClientMetrics, VERSION, WorkqueueMetrics, cluster_available,
    cluster_new_credentials_fail, db_query, describe, leader_election_master_status, oldest_pending, recorder,
    render_families, render_process, section_objects, section_well,
};

const SECTION: &[&str] = &["databases"];
/// The sections with a workqueue.
const QUEUES: &[&str] = &["databases", "syncsets"];
const DIRECTIONS: &[&str] = &["spec", "status"];
const FAMILY: &[&str] = &["policies"];
const HELD_KINDS: &[&str] = &["delete", "let_go", "overwrite", "clear_status"];
const OBJECT_STATES: &[&str] = &{
    let mut names = [""; ObjectState::ALL.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = ObjectState::ALL[index].as_str();
        index += 1;
    }
    names
};

pub(crate) type Label = (&'static str, &'static [&'static str]);

/// Every metric with its labels and all values that they can have in these tests.
pub(crate) const CLOSED: &[(&str, &[Label])] = &[
    (
        "controller_runtime_reconcile_total",
        &[("controller", QUEUES), ("result", &["success", "error", "requeue", "requeue_after"])],
    ),
    ("controller_runtime_reconcile_time_seconds", &[("controller", QUEUES)]),
    ("controller_runtime_active_workers", &[("controller", QUEUES)]),
    ("workqueue_depth", &[("name", QUEUES), ("controller", QUEUES)]),
    ("workqueue_adds_total", &[("name", QUEUES), ("controller", QUEUES)]),
    ("workqueue_queue_duration_seconds", &[("name", QUEUES), ("controller", QUEUES)]),
    ("workqueue_work_duration_seconds", &[("name", QUEUES), ("controller", QUEUES)]),
    ("workqueue_retries_total", &[("name", QUEUES), ("controller", QUEUES)]),
    (
        "rest_client_requests_total",
        &[("code", &["201", "<error>"]), ("method", &["POST", "GET"]), ("host", &["hub:6443"])],
    ),
    ("leader_election_master_status", &[("name", SECTION)]),
    ("towline_cluster_available", &[("cluster", &["edge", "hub"])]),
    ("towline_cluster_new_credentials_fail", &[("cluster", &["edge"])]),
    ("towline_section_well", &[("section", &["databases", "hub"])]),
    ("towline_objects", &[("section", &["databases", "inventory", "syncsets"]), ("state", OBJECT_STATES)]),
    ("towline_held_changes", &[("section", QUEUES), ("kind", HELD_KINDS)]),
    (
        "towline_oldest_pending_seconds",
        &[
            ("section", &["databases", "hub", "inventory", "status-sync", "syncsets"]),
            ("kind", &["spec", "status", "policies", "events", "changes", "clusters", "releases"]),
        ],
    ),
    ("towline_sync_lag_seconds", &[("section", SECTION), ("direction", DIRECTIONS)]),
    ("towline_sync_contended_fields_total", &[("section", SECTION)]),
    ("towline_lease_held", &[("section", SECTION)]),
    (
        "towline_status_sync_writes_total",
        &[("family", FAMILY), ("outcome", &["created", "patched", "deleted", "failed"])],
    ),
    (
        "towline_hub_requests_total",
        &[("route", &["/v1/clusters"]), ("method", &["GET", "POST", "other"]), ("code", &["200", "201", "405", "429"])],
    ),
    ("towline_hub_request_seconds", &[("route", &["/v1/clusters"]), ("method", &["GET", "POST", "other"])]),
    ("towline_hub_watchers", &[]),
    ("towline_bus_published_total", &[("outcome", &["confirmed", "nacked", "skipped"])]),
    ("towline_syncset_health", &[("state", &["current", "progressing", "unknown", "failed"])]),
    (
        "towline_syncset_rollouts",
        &[("state", &["running", "paused", "stopped", "aborted", "rolling_back", "rolled_back", "complete"])],
    ),
    ("hive_syncset_apply_duration_seconds", &[("group", &["none", "ingress"])]),
    ("hive_selectorsyncset_apply_duration_seconds", &[("name", &["monitoring"])]),
    (
        "hive_syncsetinstance_resources_applied_total",
        &[("type", &["apply", "createOrUpdate", "createOnly"]), ("result", &["success", "error"])],
    ),
    (
        "hive_syncsetinstance_apply_duration_seconds",
        &[("type", &["apply", "createOrUpdate", "createOnly"]), ("result", &["success", "error"])],
    ),
    ("hive_clustersync_first_success_duration_seconds", &[]),
    ("hive_selectorsyncset_clusters_total", &[("name", &["monitoring"])]),
    ("hive_selectorsyncset_clusters_unapplied_total", &[("name", &["monitoring"])]),
    ("hive_syncsets_total", &[]),
    ("hive_syncsets_unapplied_total", &[]),
    ("towline_db_query_seconds", &[("query", &["detect_policies"])]),
    ("towline_build_info", &[("version", &[VERSION])]),
    ("process_cpu_seconds_total", &[]),
    ("process_resident_memory_bytes", &[]),
    ("process_start_time_seconds", &[]),
];

/// The labels of one series, with their values.
type Labels = BTreeMap<String, String>;

/// A metric and its series.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    /// By the sample's full name and its labels.
    samples: BTreeMap<(String, Labels), f64>,
}

/// Everything that can be recorded, recorded once, with what was described before.
static RECORDED: LazyLock<(BTreeMap<String, Family>, Vec<Metric>)> = LazyLock::new(|| {
    let (text, described) = record();
    (parse(&text), described)
});

/// The labels of all series by name, as Prometheus stores them.
pub(crate) static SERIES: LazyLock<BTreeMap<&str, Vec<&Labels>>> = LazyLock::new(|| {
    let samples = RECORDED.0.values().flat_map(|family| family.samples.keys());
    samples.fold(BTreeMap::new(), |mut series, (name, labels)| {
        series.entry(name.as_str()).or_insert_with(Vec::new).push(labels);
        series
    })
});

/// Reads the text format; panics at what Prometheus would refuse, and at what it would only put up with.
fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    assert!(text.ends_with('\n'), "the last line is not ended");
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and a help text");
            assert!(!families.contains_key(name), "{name} comes twice");
            families.insert(name.to_owned(), Family { help: help.to_owned(), ..Family::default() });
            name.clone_into(&mut current);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            assert_eq!(name, current, "a type without a help text");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            kind.clone_into(&mut families.get_mut(name).expect("a family").kind);
        } else {
            let (sample, labels, value) = sample(line);
            let family = families.get_mut(&current).unwrap_or_else(|| panic!("{line} has no family"));
            let suffixes: &[&str] = if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|suffix| sample == format!("{current}{suffix}")), "{line} is not of {current}");
            let earlier = family.samples.insert((sample, labels), value);
            assert!(earlier.is_none(), "{line} comes twice");
        }
    }
    families
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let is_name = |text: &str| {
        text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && text.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
    };
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line} has no value"));
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}').expect("a closing brace")),
        None => (series, ""),
    };
    assert!(is_name(name), "{line}");
    let mut parsed = BTreeMap::new();
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (key, quoted) = label.split_once('=').unwrap_or_else(|| panic!("{line}: {label}"));
        let text = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let text = text.unwrap_or_else(|| panic!("{line}: {quoted}"));
        assert!(is_name(key) && !text.contains(['"', '\\']), "{line}");
        assert!(parsed.insert(key.to_owned(), text.to_owned()).is_none(), "{line}: {key} comes twice");
    }
    let value = value.parse().unwrap_or_else(|_| panic!("{line}: {value} is no number"));
    (name.to_owned(), parsed, value)
}

/// What is rendered then, and what was described before.
fn record() -> (String, Vec<Metric>) {
    let recorder = recorder(JOBS.metrics()).expect("the buckets are well formed");
    let handle = recorder.handle();
    let described = metrics::with_local_recorder(&recorder, || {
        let described = describe(JOBS.metrics());
        let section: SectionName = "databases".parse().expect("a name");
        let queue = WorkqueueMetrics::new(&section);
        queue.set_depth(3);
        queue.added();
        queue.started(Duration::from_millis(20));
        queue.started(Duration::from_millis(30));
        queue.finished(Duration::from_millis(40), ReconcileResult::Error);
        queue.retried();
        let lease = LeaseMetrics::new(&section);
        lease.set_held(true);
        let sync = SyncMetrics::new(&section);
        for direction in [Direction::Spec, Direction::Status] {
            oldest_pending(&section, direction.as_str(), Duration::from_millis(1500));
        }
        for (section, kind) in [("status-sync", "policies"), ("inventory", "releases")] {
            oldest_pending(&section.parse().expect("a name"), kind, Duration::from_secs(2));
        }
        sync.written(Direction::Spec, Duration::from_millis(5));
        sync.written(Direction::Status, Duration::from_mins(10));
        sync.contended_field();
        record_held(&section, &GuardedChange::ALL.map(|change| (change, change.as_str().len())).into());
        cluster_available(&"edge".parse().expect("a name"), false);
        cluster_available(&"hub".parse().expect("a name"), true);
        cluster_new_credentials_fail(&"edge".parse().expect("a name"), true);
        section_well(&section, true);
        section_well(&"hub".parse().expect("a name"), true);
        for name in ["databases", "inventory", "syncsets"] {
            for state in ObjectState::ALL {
                let objects = if state == ObjectState::Held { name.len() } else { 0 };
                section_objects(&name.parse().expect("a name"), state.as_str(), objects);
            }
        }
        let requests = RestClientMetrics::new("hub:6443");
        requests.answered(Some(http::StatusCode::CREATED), &http::Method::POST);
        requests.answered(None, &http::Method::GET);
        leader_election_master_status(&section, true);
        let status_sync = StatusSyncMetrics::new("policies");
        status_sync.written(WriteOutcome::Patched);
        let hub = HubMetrics::new(&"hub".parse().expect("a name"));
        let brew = http::Method::from_bytes(b"BREW").expect("a method");
        hub.request("/v1/clusters", &http::Method::GET, http::StatusCode::OK, Duration::from_millis(2));
        hub.request("/v1/clusters", &brew, http::StatusCode::METHOD_NOT_ALLOWED, Duration::from_millis(3));
        for code in [http::StatusCode::CREATED, http::StatusCode::TOO_MANY_REQUESTS] {
            hub.request("/v1/clusters", &http::Method::POST, code, Duration::from_millis(4));
        }
        hub.set_watchers(11);
        let bus: &dyn BusObserver = &hub;
        for (outcome, count) in [("confirmed", 5), ("nacked", 6), ("skipped", 7)] {
            bus.published(outcome, count);
        }
        bus.lag(Duration::from_secs(8));
        syncsets(&SyncsetMetrics::new(&"syncsets".parse().expect("a name")));
        db_query("detect_policies", Duration::from_millis(30));
        described
    });
    let mut text = handle.render();
    let monitoring = SelectorApplied { name: "monitoring".to_owned(), clusters: 7, unapplied: 2 };
    let applied = Applied { selectors: vec![monitoring], syncsets: 5, syncsets_unapplied: 1 };
    render_families(&mut text, &SyncsetMetrics::families(&applied));
    render_process(&mut text);
    (text, described)
}

fn syncsets(metrics: &SyncsetMetrics) {
    for waited in [0, 1, 2, 4] {
        metrics.begun(Duration::from_secs(waited));
    }
    metrics.ended(ReconcileResult::Success, Duration::from_secs(2));
    metrics.ended(ReconcileResult::Error, Duration::from_secs(5));
    metrics.ended(ReconcileResult::Error, Duration::from_secs(1));
    metrics.sent(Behavior::CreateOrUpdate, true, Duration::from_millis(700));
    metrics.sent(Behavior::Apply, false, Duration::from_secs(40));
    metrics.first_success(First::SyncSet { group: None }, Duration::from_secs(7));
    metrics.first_success(First::SyncSet { group: Some("ingress") }, Duration::from_secs(70));
    metrics.first_success(First::SelectorSyncSet { name: "monitoring" }, Duration::from_secs(11));
    metrics.first_success(First::Cluster, Duration::from_secs(299));
    metrics.dispatched(Batch { asked: 4, ..Batch::default() });
    metrics.dispatched(Batch { asked: 40, was_gap: true, ..Batch::default() });
    let lag = Some(Duration::from_millis(2500));
    let work = Counts { running: 1, ready: 12, waiting: 13, oldest: Some(Duration::from_secs(6)) };
    let dispatcher = DispatcherState { lag, ..DispatcherState::default() };
    let health = [(HealthState::Current, 12), (HealthState::Progressing, 13)].into();
    let suspended = SuspendedSyncset {
        id: uuid::Uuid::nil(),
        kind: String::new(),
        namespace: String::new(),
        name: String::new(),
        cause: Cause::Gone,
        generation: 0,
        revision: None,
        objects: 7,
        clusters: 0,
        tracks: 0,
        since: None,
    };
    let rollouts = [(RolloutGroup::Stopped, 14), (RolloutGroup::Complete, 15)].into();
    metrics.counted(&Counted {
        health,
        rollouts,
        suspended: vec![suspended; 8],
        work,
        dispatcher,
        ..Counted::default()
    });
}

fn value(families: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let family = name.trim_end_matches("_bucket").trim_end_matches("_count").trim_end_matches("_sum");
    *families[family].samples.get(&(name.to_owned(), labels)).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn every_metric_is_rendered_as_it_is_described() {
    let (families, described) = &*RECORDED;
    for metric in described {
        let family = families.get(metric.name).unwrap_or_else(|| panic!("{} is missing", metric.name));
        assert_eq!(family.kind, format!("{:?}", metric.kind).to_lowercase(), "{}", metric.name);
        assert_eq!(family.help, metric.help, "{}", metric.name);
    }
    let names: BTreeSet<&str> = families.keys().map(String::as_str).collect();
    let expected: BTreeSet<&str> = CLOSED.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, expected);
}

#[test]
fn labels_are_closed_sets() {
    let families = &RECORDED.0;
    for (name, closed) in CLOSED {
        let family = &families[*name];
        assert!(!family.samples.is_empty(), "{name} has no series");
        for (sample, labels) in family.samples.keys() {
            let keys: BTreeSet<&str> = labels.keys().map(String::as_str).filter(|key| *key != "le").collect();
            let expected: BTreeSet<&str> = closed.iter().map(|(key, _)| *key).collect();
            assert_eq!(keys, expected, "{sample}");
            assert_eq!(labels.contains_key("le"), sample.ends_with("_bucket"), "{sample}");
            for (key, values) in *closed {
                assert!(values.contains(&labels[*key].as_str()), "{sample}: {key}={}", labels[*key]);
            }
        }
    }
}

#[test]
fn names_follow_the_conventions_of_their_kind() {
    for metric in &RECORDED.1 {
        assert_eq!(metric.name.ends_with("_total"), metric.kind == MetricKind::Counter, "{}", metric.name);
        if metric.kind == MetricKind::Histogram {
            assert!(metric.name.ends_with("_seconds"), "{}", metric.name);
        }
        assert!(!metric.help.is_empty() && !metric.help.ends_with('.'), "{}", metric.name);
    }
}

#[test]
fn what_is_recorded_is_what_is_rendered() {
    let families = &RECORDED.0;
    let queue = [("name", "databases"), ("controller", "databases")];
    let controller = [("controller", "databases")];
    assert_near(value(families, "workqueue_depth", &queue), 3.0);
    assert_near(value(families, "workqueue_adds_total", &queue), 1.0);
    assert_near(value(families, "workqueue_retries_total", &queue), 1.0);
    assert_near(value(families, "workqueue_queue_duration_seconds_count", &queue), 2.0);
    assert_near(value(families, "controller_runtime_active_workers", &controller), 1.0);
    for (result, expected) in [("success", 0.0), ("error", 1.0), ("requeue", 0.0)] {
        let labels = [("controller", "databases"), ("result", result)];
        assert_near(value(families, "controller_runtime_reconcile_total", &labels), expected);
    }
    assert_near(value(families, "towline_objects", &[("section", "databases"), ("state", "held")]), 9.0);
    assert_near(value(families, "towline_objects", &[("section", "syncsets"), ("state", "pending")]), 0.0);
    for (section, kind, expected) in [("databases", "status", 1.5), ("hub", "events", 8.0)] {
        let labels = [("section", section), ("kind", kind)];
        assert_near(value(families, "towline_oldest_pending_seconds", &labels), expected);
    }
    assert_near(value(families, "towline_hub_watchers", &[]), 11.0);
    for (outcome, expected) in [("confirmed", 5.0), ("nacked", 6.0), ("skipped", 7.0)] {
        assert_near(value(families, "towline_bus_published_total", &[("outcome", outcome)]), expected);
    }
    for (cluster, expected) in [("edge", 0.0), ("hub", 1.0)] {
        assert_near(value(families, "towline_cluster_available", &[("cluster", cluster)]), expected);
    }
    assert_near(value(families, "towline_cluster_new_credentials_fail", &[("cluster", "edge")]), 1.0);
    assert_near(value(families, "towline_section_well", &[("section", "databases")]), 1.0);
    for kind in HELD_KINDS {
        assert_near(
            value(families, "towline_held_changes", &[("section", "databases"), ("kind", kind)]),
            f64::from(u32::try_from(kind.len()).unwrap()),
        );
    }
    let request = [("code", "<error>"), ("method", "GET"), ("host", "hub:6443")];
    assert_near(value(families, "rest_client_requests_total", &request), 1.0);
    assert_near(value(families, "towline_build_info", &[("version", VERSION)]), 1.0);
}

#[test]
fn what_is_recorded_of_syncsets_is_what_is_rendered() {
    const QUEUE: [(&str, &str); 2] = [("name", "syncsets"), ("controller", "syncsets")];
    let families = &RECORDED.0;
    for (name, labels, expected) in [
        ("towline_syncset_health", &[("state", "progressing")][..], 13.0),
        ("towline_syncset_health", &[("state", "failed")], 0.0),
        ("towline_syncset_rollouts", &[("state", "stopped")], 14.0),
        ("towline_syncset_rollouts", &[("state", "running")], 0.0),
        ("towline_held_changes", &[("section", "syncsets"), ("kind", "delete")], 8.0),
        ("towline_oldest_pending_seconds", &[("section", "syncsets"), ("kind", "changes")], 2.5),
        ("towline_oldest_pending_seconds", &[("section", "syncsets"), ("kind", "clusters")], 6.0),
        ("workqueue_depth", &QUEUE, 12.0),
        ("workqueue_adds_total", &QUEUE, 44.0),
        ("workqueue_queue_duration_seconds_count", &QUEUE, 4.0),
        ("workqueue_queue_duration_seconds_sum", &QUEUE, 7.0),
        ("workqueue_work_duration_seconds_sum", &QUEUE, 8.0),
        ("workqueue_retries_total", &QUEUE, 2.0),
        ("controller_runtime_active_workers", &QUEUE[1..], 1.0),
        ("controller_runtime_reconcile_total", &[QUEUE[1], ("result", "success")], 1.0),
        ("controller_runtime_reconcile_total", &[QUEUE[1], ("result", "error")], 2.0),
        ("hive_syncsetinstance_resources_applied_total", &[("type", "apply"), ("result", "error")], 1.0),
        ("hive_syncset_apply_duration_seconds_count", &[("group", "none")], 1.0),
        ("hive_selectorsyncset_clusters_total", &[("name", "monitoring")], 7.0),
        ("hive_selectorsyncset_clusters_unapplied_total", &[("name", "monitoring")], 2.0),
        ("hive_syncsets_total", &[], 5.0),
        ("hive_syncsets_unapplied_total", &[], 1.0),
    ] {
        assert_near(value(families, name, labels), expected);
    }
}

#[test]
fn hive_s_histograms_have_hive_s_buckets() {
    let families = &RECORDED.0;
    let of_syncsets = ["5", "10", "30", "60", "300", "600", "1800", "3600", "+Inf"];
    let of_objects = ["0.5", "1", "3", "5", "10", "20", "30", "+Inf"];
    let of_clusters = ["60", "300", "600", "1200", "1800", "2400", "3000", "3600", "+Inf"];
    for (name, bounds) in [
        ("hive_syncset_apply_duration_seconds", &of_syncsets[..]),
        ("hive_selectorsyncset_apply_duration_seconds", &of_syncsets),
        ("hive_syncsetinstance_apply_duration_seconds", &of_objects),
        ("hive_clustersync_first_success_duration_seconds", &of_clusters),
    ] {
        let found: BTreeSet<&str> =
            families[name].samples.keys().filter_map(|(_, labels)| labels.get("le").map(String::as_str)).collect();
        assert_eq!(found, bounds.iter().copied().collect(), "{name}");
    }
    let bucket = |le| value(families, "hive_syncset_apply_duration_seconds_bucket", &[("group", "none"), ("le", le)]);
    assert_near(bucket("5"), 0.0);
    assert_near(bucket("10"), 1.0);
}

#[test]
fn buckets_are_cumulative_and_end_at_infinity() {
    let families = &RECORDED.0;
    let bucket = |direction, le| {
        let labels = [("section", "databases"), ("direction", direction), ("le", le)];
        value(families, "towline_sync_lag_seconds_bucket", &labels)
    };
    assert_near(bucket("status", "300"), 0.0);
    assert_near(bucket("status", "+Inf"), 1.0);
    assert_near(bucket("spec", "0.0025"), 0.0);
    assert_near(bucket("spec", "0.005"), 1.0);
    assert_near(bucket("spec", "300"), 1.0);
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "found {found}, expected {expected}");
}
