//! The process as an operator and a platform see it: health, metrics, logs, signals.

use std::collections::BTreeSet;
use std::time::Duration;

use integration::{Error, Link, Towline, eventually, users};
use serde_json::Value;

use crate::faults::prometheus;
use crate::faults::world::{LIMIT, Lane, edit, report, run, start};

/// Labels that metrics may have, and nothing else: closed sets all of them.
const LABELS: [&str; 13] = [
    "code",
    "controller",
    "direction",
    "host",
    "kind",
    "le",
    "method",
    "name",
    "result",
    "section",
    "state",
    "version",
    "cluster",
];

#[test]
fn what_it_tells_of_itself_is_well_formed_and_names_no_object() {
    run(async {
        let lane = Lane::shared("told", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", 12).await;
        let config = format!(
            "[daemon.log]\nformat = \"json\"\nfilter = \"debug\"\n{}{}",
            lane.clusters(),
            lane.section("lane", "")
        );
        let towline = start(&config).await;
        lane.in_step("at first").await;
        lane.report_many("team", 12, "ready").await;
        lane.in_step("with a status").await;

        let health = towline.admin().healthz().await.unwrap();
        assert_eq!(health.status, 200, "{}", health.body);
        for answer in [towline.admin().readyz().await.unwrap(), towline.admin().section_readyz("lane").await.unwrap()] {
            assert_eq!(answer.status, 200, "{}", answer.body);
            let _: Value = serde_json::from_str(&answer.body).unwrap();
        }
        assert_eq!(towline.admin().section_readyz("none").await.unwrap().status, 404);

        let families = prometheus::read(&towline.admin().metrics().await.unwrap()).unwrap();
        for name in [
            "towline_objects",
            "towline_sync_lag_seconds",
            "towline_oldest_pending_seconds",
            "towline_build_info",
            "controller_runtime_reconcile_total",
            "controller_runtime_reconcile_time_seconds",
            "controller_runtime_active_workers",
            "workqueue_depth",
            "workqueue_adds_total",
            "workqueue_queue_duration_seconds",
            "workqueue_work_duration_seconds",
            "workqueue_retries_total",
            "rest_client_requests_total",
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
        ] {
            assert!(families.contains_key(name), "no {name} among {:?}", families.keys());
        }
        let samples = || families.values().flat_map(|family| &family.samples);
        let used: BTreeSet<&str> = samples().flat_map(|sample| sample.labels.keys()).map(String::as_str).collect();
        assert!(used.iter().all(|label| LABELS.contains(label)), "{used:?}");
        let is_object = |value: &String| value.starts_with(&lane.prefix) || value.starts_with("o1");
        assert!(!samples().flat_map(|sample| sample.labels.values()).any(is_object), "an object's name is a label");
        let state = |wanted: &str| {
            let found = families["towline_objects"].samples.iter().find(|sample| sample.labels["state"] == wanted);
            found.unwrap().value
        };
        assert_eq!((state("in_step").to_string(), state("failing").to_string()), ("12".to_owned(), "0".to_owned()));

        let log = towline.log().unwrap();
        for text in log.lines() {
            let entry: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
            for field in ["timestamp", "level", "target", "message"] {
                assert!(entry[field].is_string(), "no {field} in {entry}");
            }
        }
        assert!(!log.contains("-on-hub") && !log.contains("-on-edge"), "a token is in the log");
        let shown = Towline::command(["status", "--admin", &towline.admin_url()]).await.unwrap();
        assert!(shown.status.success() && String::from_utf8_lossy(&shown.stdout).contains("lane"), "{shown:?}");
        let shown = Towline::command(["status", "--admin", &towline.admin_url(), "-o", "json"]).await.unwrap();
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(shown["sections"]["lane"]["objects"]["in_step"], 12);
        assert!(towline.terminate(LIMIT).await.unwrap().success());
        lane.in_step("at the end").await;
    });
}

#[test]
fn a_signal_drains_and_ends_with_0_and_an_address_in_use_with_1() {
    run(async {
        let lane = Lane::shared("signalled", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", 20).await;
        let towline = lane.towline().await;
        let url = towline.admin_url();
        let second = lane.hub.directory().join("second.toml");
        let listen = url.strip_prefix("http://").unwrap();
        std::fs::write(
            &second,
            format!("[daemon]\nlisten = \"{listen}\"\n{}{}", lane.clusters(), lane.section("lane", "")),
        )
        .unwrap();
        let refused = Towline::command(["run", "--config", second.to_str().unwrap()]).await.unwrap();
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("failed to listen on {listen}")), "{told}");

        // In the middle of work, which another instance goes on with.
        let status = towline.terminate(Duration::from_secs(30)).await.unwrap();
        let log = towline.log().unwrap();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains("towline has shut down"), "{log}");
        let successor = lane.towline().await;
        assert_eq!(lane.in_step("by the successor").await.len(), 20);
        // A terminal that is closed is a request to end, too.
        assert!(successor.hang_up(LIMIT).await.unwrap().success());
        let log = successor.log().unwrap();
        assert!(log.contains("towline has shut down") && !log.contains("work undone"), "{log}");
    });
}

#[test]
fn a_second_signal_aborts_work_that_hangs() {
    run(async {
        let lane = Lane::shared("aborted", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", 5).await;
        let link = Link::to(lane.edge.address()).await.unwrap();
        let behind = lane.edge.kubeconfig_by(users::TOWLINE, link.address()).unwrap();
        let config = format!(
            "[daemon]\nshutdown_grace = \"10m\"\n{}{}{}",
            Lane::cluster("hub", &lane.hub.kubeconfig(users::TOWLINE).unwrap()),
            Lane::cluster("edge", &behind),
            lane.section("lane", "")
        );
        let mut towline = start(&config).await;
        lane.in_step("before").await;
        link.cut().await.unwrap();
        edit(&lane.on_hub("team"), "o1", serde_json::json!({"spec": {"storage": "2Gi"}})).await;
        report(&towline, "lane", "a write that hangs", |report| report["queue"]["running"].as_u64() > Some(0)).await;

        // The connection is given up after 15 s; until then the first signal waits for the write.
        let first = towline.terminate(Duration::from_secs(1)).await;
        assert!(matches!(first, Err(Error::TimedOut { .. })), "{first:?}");
        let status = towline.terminate(Duration::from_secs(10)).await.unwrap();
        let log = towline.log().unwrap();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("second signal: work is aborted"), "{log}");

        link.restore().await.unwrap();
        towline.start_again().await.unwrap();
        eventually("the successor to be ready", LIMIT, async || {
            towline.wait_ready(LIMIT).await.map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        lane.in_step("after the abort").await;
    });
}
