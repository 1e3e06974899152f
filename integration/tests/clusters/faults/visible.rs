//! What is wrong shows: in `/status`, `/readyz`, `/metrics`, the log and `towline status`.

use integration::{Towline, eventually};
use serde_json::{Value, json};

use crate::faults::world::{LIMIT, Lane, delete, edit, mortals, objects, report, run};

const OBJECTS: usize = 3;

/// A gauge of the daemon that has one label.
async fn gauge(towline: &Towline, series: &str) -> Option<f64> {
    let metrics = towline.admin().metrics().await.unwrap();
    let line = metrics.lines().find(|line| line.starts_with(series))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// `towline status` with its exit code.
async fn table(towline: &Towline, more: &[&str]) -> (String, Option<i32>) {
    let url = towline.admin_url();
    let output = Towline::command(["status", "--admin", &url].iter().chain(more).copied()).await.unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

async fn status_has(towline: &Towline, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(format!("/status to have {what}"), LIMIT, async || {
        let status = towline.admin().status().await.map_err(|error| error.to_string())?;
        if holds(&status) { Ok(status) } else { Err(status.to_string()) }
    })
    .await
    .unwrap()
}

/// Everything that says whether all is well says that one cluster does not answer.
async fn shows_dead(towline: &Towline, dead: &str, other: &str) {
    // The first attempt may still meet the socket of a server that is ending, and says "connection reset"; the next one is refused.
    let away = |status: &Value| {
        let cluster = &status["clusters"][dead];
        let reason = cluster["reason"].as_str().unwrap_or_default();
        cluster["state"] == "unreachable" && reason.starts_with("connection refused (127.0.0.1:")
    };
    let status = status_has(towline, &format!("cluster {dead} as unreachable"), away).await;
    assert!(status["clusters"][dead]["since_seconds"].is_u64(), "{status}");
    assert_eq!(status["clusters"][other]["state"], "available");
    let section = &status["sections"]["lane"];
    assert_eq!((&section["state"], &section["well"]), (&json!("blocked"), &json!(false)), "{section}");
    let message = section["message"].as_str().unwrap();
    assert!(
        message.starts_with(&format!("cluster {dead} unreachable")) && message.contains("objects as of"),
        "{message}"
    );
    assert!(section["objects_unknown_for_seconds"].is_u64(), "{section}");

    let ready = towline.admin().section_readyz("lane").await.unwrap();
    assert_eq!(ready.status, 503, "{}", ready.body);
    assert!(ready.body.contains("unreachable") && ready.body.contains("connection refused"), "{}", ready.body);
    let ready = towline.admin().readyz().await.unwrap();
    assert_eq!(ready.status, 200, "one dead cluster does not take the daemon out: {}", ready.body);

    let available =
        async |cluster: &str| gauge(towline, &format!("towline_cluster_available{{cluster=\"{cluster}\"}}")).await;
    assert_eq!((available(dead).await, available(other).await), (Some(0.0), Some(1.0)));
    assert_eq!(gauge(towline, "towline_section_well{section=\"lane\"}").await, Some(0.0));

    let (text, code) = table(towline, &["--exit-code"]).await;
    assert_eq!(code, Some(3), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("CLUSTER") && lines[0].ends_with("REASON"), "{text}");
    assert!(lines.iter().any(|line| line.starts_with(dead) && line.contains("connection refused (")), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("lane") && line.contains(" hub→edge ")), "{text}");
    assert!(text.contains(" blocked ") && !text.contains("ACTOR"), "{text}");
    assert_eq!(table(towline, &[]).await.1, Some(0), "without being asked it only tells");
    assert!(table(towline, &["--tree"]).await.0.contains("ACTOR"));
}

/// Everything says that all is well.
async fn shows_well(towline: &Towline) {
    let well = |status: &Value| {
        let section = &status["sections"]["lane"];
        section["state"] == "ready" && section["objects"]["in_step"] == json!(OBJECTS)
    };
    let status = status_has(towline, "a section that is ready", well).await;
    let section = &status["sections"]["lane"];
    assert_eq!((&section["well"], &section["message"]), (&json!(true), &json!("")), "{section}");
    assert_eq!(section["not_in_step"], json!([]), "{section}");
    for cluster in ["hub", "edge"] {
        assert_eq!(status["clusters"][cluster]["state"], "available", "{status}");
        assert!(status["clusters"][cluster]["reason"].is_null(), "{status}");
        let series = format!("towline_cluster_available{{cluster=\"{cluster}\"}}");
        assert_eq!(gauge(towline, &series).await, Some(1.0), "{cluster}");
    }
    assert_eq!(gauge(towline, "towline_section_well{section=\"lane\"}").await, Some(1.0));
    assert_eq!(towline.admin().section_readyz("lane").await.unwrap().status, 200);
    let (text, code) = table(towline, &["--exit-code"]).await;
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn no_section_is_ready_or_in_step_while_one_of_its_clusters_is_dead() {
    run(async {
        let (_turn, hub, edge) = mortals().await;
        let lane = Lane::between(hub, edge, "shown", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        let towline = lane.towline().await;
        lane.in_step("before").await;
        shows_well(&towline).await;

        lane.edge.kill_api_server().await.unwrap();
        edit(&lane.on_hub("team"), "o1", json!({"spec": {"storage": "9Gi"}})).await;
        shows_dead(&towline, "edge", "hub").await;
        // What is known to have changed is not in step, and nobody says so of it.
        let waits = |report: &Value| objects(report, "pending") == 1 && objects(report, "in_step") == 2;
        report(&towline, "lane", "the change that waits", waits).await;
        let listed = |report: &Value| report["not_in_step"][0]["key"] == json!(lane.namespace("team") + "/o1");
        let told = report(&towline, "lane", "the object that waits by name", listed).await;
        assert_eq!(told["not_in_step"][0]["cause"], "cluster edge does not answer", "{told}");
        lane.edge.start_api_server().await.unwrap();
        shows_well(&towline).await;

        lane.hub.kill_api_server().await.unwrap();
        shows_dead(&towline, "hub", "edge").await;
        lane.hub.start_api_server().await.unwrap();
        shows_well(&towline).await;
    });
}

#[test]
fn an_object_that_somebody_s_finalizer_holds_is_told_by_the_finalizer_s_name() {
    run(async {
        let lane = Lane::shared("held-on", "databases").await;
        // Each in a namespace of its own: one that ends waits for all that is in it.
        let places = [("team", "o0"), ("other", "o1")];
        for (namespace, name) in places {
            lane.make_namespace(namespace).await;
            lane.order(namespace, name, "1Gi").await;
        }
        let towline = lane.towline().await;
        lane.in_step("before").await;
        let hold = json!({"metadata": {"finalizers": ["example.com/never"]}});
        edit(&lane.on_edge("team"), "o0", hold).await;
        let ours = crate::faults::world::FINALIZER;
        edit(&lane.on_hub("other"), "o1", json!({"metadata": {"finalizers": [ours, "example.com/hold"]}})).await;
        lane.in_step("with others' finalizers").await;
        for (namespace, name) in places {
            delete(&lane.on_hub(namespace), name).await;
        }
        let key = |name: &str| lane.namespace(if name == "o0" { "team" } else { "other" }) + "/" + name;
        let going = report(&towline, "lane", "two deletions", |report| objects(report, "deleting") == 2).await;
        assert_eq!(going["not_in_step"], json!([]), "most finalizers are done within a minute: {going}");
        let told = eventually("both finalizers to be told", LIMIT * 2, async || {
            let report = towline.admin().section("lane").await.map_err(|error| error.to_string())?;
            let listed = report["not_in_step"].as_array().unwrap().len();
            if listed == 2 { Ok(report) } else { Err(report.to_string()) }
        })
        .await
        .unwrap();
        for (name, cause) in [
            ("o0", "waits for finalizer example.com/never (edge)"),
            ("o1", "waits for finalizer example.com/hold (hub)"),
        ] {
            let object =
                told["not_in_step"].as_array().unwrap().iter().find(|object| object["key"] == key(name)).unwrap();
            assert_eq!((&object["cause"], &object["state"]), (&json!(cause), &json!("deleting")));
            assert!(object["for_seconds"].as_u64().unwrap() >= 60, "{object}");
            assert_eq!(object["next_step"], "ask its owner");
        }
        assert_eq!(told["state"], "waiting");
        let message = told["message"].as_str().unwrap();
        let sentences = ["o0", "o1"].map(|name| {
            let (finalizer, cluster) = if name == "o0" { ("never", "edge") } else { ("hold", "hub") };
            format!("waiting for finalizer example.com/{finalizer} on {} ({cluster}); 2 deleting", key(name))
        });
        assert!(sentences.contains(&message.to_owned()), "{message}");
        let (text, code) = table(&towline, &["--exit-code"]).await;
        assert_eq!(code, Some(3));
        let row = text.lines().find(|line| line.starts_with(&key("o0"))).unwrap();
        assert!(row.ends_with("waits for finalizer example.com/never (edge) → ask its owner"), "{text}");

        let free = json!({"metadata": {"finalizers": null}});
        edit(&lane.on_edge("team"), "o0", free.clone()).await;
        edit(&lane.on_hub("other"), "o1", free).await;
        report(&towline, "lane", "nothing that waits", |report| {
            report["state"] == "ready" && report["not_in_step"] == json!([]) && objects(report, "deleting") == 0
        })
        .await;
        assert_eq!(lane.remote_uids().await.len(), 0);
    });
}
