//! `spec.health`: whether what was applied works. The edges have the controllers of workloads and no kubelet, so tests play it for bare pods.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use integration::users::ADMIN;
use integration::{ControlPlane, eventually, page};
use k8s_openapi::api::batch::v1::Job as K8sJob;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::syncsets::guard::{Objects, SECTION, api};
use crate::syncsets::kinds::{definition, widget, widgets};
use crate::syncsets::report::metric;
use crate::syncsets::requests::Requests;
use crate::syncsets::script::{Says, Script};
use crate::syncsets::world::{LIMIT, SYNCSETS, Stage, TIME_PASSES, condition, edge, run};

pub(crate) fn pod(stage: &Stage, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": stage.namespace},
        "spec": {"containers": [{"name": "main", "image": "main:1"}]}})
}

pub(crate) async fn apply(stage: &Stage, health: &Value, resources: &[Value]) {
    let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync", "health": health, "resources": resources});
    stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
}

/// What the kubelet would say of a pod.
async fn says(stage: &Stage, plane: &ControlPlane, name: &str, status: Value) {
    let pods: Api<Pod> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
    let patch = Patch::Merge(json!({ "status": status }));
    eventually("the pod to be there", LIMIT, async || {
        pods.patch_status(name, &PatchParams::default(), &patch).await.map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
}

pub(crate) fn running(ready: &str) -> Value {
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready, "reason": "ContainersNotReady"}], "containerStatuses": null})
}

fn crashing() -> Value {
    let container = json!({"name": "main", "image": "main:1", "imageID": "", "ready": false, "restartCount": 7,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [container]})
}

/// The health of the syncset, once it has this state and reason.
pub(crate) async fn has(stage: &Stage, wanted: &str, reason: Value) -> Value {
    let entry = |status: &Value| status["syncSets"][0]["health"].clone();
    let is_so = |status: &Value| entry(status)["state"] == wanted && entry(status)["reason"] == reason;
    entry(&stage.status("west-1", &format!("health {wanted} {reason}"), is_so).await)
}

/// As if so much time had passed since the objects of a syncset were first said not to be current, or to have failed. It is read again, unless
/// a reading has settled it meanwhile.
pub(crate) async fn passes(stage: &Stage, syncset: &str, time: &str) {
    let before = |field: &str, of: &str| format!("({of}->>'{field}')::timestamptz - interval '{time}'");
    let text = format!(
        "update towline_result set health = health || jsonb_build_object('next', now(), 'began', {}, 'objects', \
           (select jsonb_agg(case when o ? 'failedSince' then o || jsonb_build_object('failedSince', {}) else o end) \
              from jsonb_array_elements(health->'objects') o)) \
         where name = '{syncset}' and health->>'next' is not null and jsonb_array_length(health->'objects') > 0",
        before("began", "health"),
        before("failedSince", "o"),
    );
    // Not in one transaction: the end of a pass locks in another order.
    stage.sql.batch_execute(&text).await.unwrap();
    stage.sql.batch_execute(TIME_PASSES).await.unwrap();
}

/// The health of the syncset, once a second reading has confirmed that it has failed.
async fn has_failed(stage: &Stage, reason: &str) -> Value {
    eventually("the failure to be confirmed", LIMIT, async || {
        let health = stage.get(&stage.path("clustersyncs", "west-1")).await["status"]["syncSets"][0]["health"].clone();
        if health["state"] == "Failed" && health["reason"] == reason {
            return Ok(health);
        }
        passes(stage, "base", "15 s").await;
        Err(health.to_string())
    })
    .await
    .unwrap()
}

/// Waits until what is current was read once more, which is 15 s after it was applied: as if these had passed.
pub(crate) async fn confirmed(stage: &Stage) {
    let passes = "update towline_result \
         set health = health || jsonb_build_object('next', now(), 'applied', (health->>'applied')::timestamptz - interval '15 s') \
         where health->>'state' = 'Current' and health->>'next' is not null";
    eventually("what is current to be read once more", LIMIT, async || {
        let unread = stage.sql.execute(passes, &[]).await.map_err(|error| error.to_string())?;
        if unread == 0 {
            return Ok(());
        }
        stage.sql.batch_execute(TIME_PASSES).await.map_err(|error| error.to_string())?;
        Err(format!("{unread} are not"))
    })
    .await
    .unwrap();
}

/// Waits until nothing is to be read any more: the cluster is ready again when its full pass is due.
async fn is_settled(stage: &Stage) {
    confirmed(stage).await;
    let text = "select count(*) from towline_work w join towline_cluster c on c.cluster = w.cluster \
         where (w.until is null or w.until < now()) and w.ready_at > c.next_full - interval '1 min'";
    eventually("nothing to be read", LIMIT, async || {
        let settled: i64 = stage.sql.query_one(text, &[]).await.map_err(|error| error.to_string())?.get(0);
        if settled == 1 { Ok(()) } else { Err("the cluster is ready again before its full pass".to_owned()) }
    })
    .await
    .unwrap();
}

#[test]
fn pods_that_crash_have_failed_and_nothing_is_read_once_that_is_settled() {
    run(async {
        let stage = Stage::with("health-pods", SYNCSETS, 1).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.at_rest().await;
        let mut requests = Requests::from_now(&stage, plane).await;
        apply(&stage, &json!({}), &[pod(&stage, "web"), stage.config_map("site", &json!({"a": "1"}))]).await;
        let pending = has(&stage, "Progressing", json!("Pending")).await;
        assert_eq!(pending["message"], format!("Pod {}/web: it has not started", stage.namespace));

        says(&stage, plane, "web", running("True")).await;
        let well = has(&stage, "Current", Value::Null).await;
        assert!(well["since"].is_string() && well.get("message").is_none(), "{well}");
        let status = stage.status("west-1", "a condition", |status| condition(status, "Healthy").is_some()).await;
        assert_eq!(condition(&status, "Healthy").unwrap()["status"], "True");
        is_settled(&stage).await;
        // What is there is not listed, and a ConfigMap is not read.
        let seen = requests.seen().await;
        let written =
            ["get pods/web 404", "get configmaps/site 404", "patch pods/web 201", "patch configmaps/site 201"];
        let (first, read) = seen.split_at(seen.len().min(4));
        assert!(first.iter().all(|request| written.contains(&request.as_str())), "{seen:?}");
        assert!(!read.is_empty() && read.iter().all(|request| request == "get pods/web 200"), "{seen:?}");

        // A full pass reads it once more, and the second reading of a crash confirms it.
        stage.full_pass().await;
        is_settled(&stage).await;
        let after_full = requests.seen().await;
        let reads = after_full.iter().filter(|request| *request == "get pods/web 200").count();
        assert_eq!((reads, after_full.len()), (2, 3), "one compares its metadata: {after_full:?}");
        says(&stage, plane, "web", crashing()).await;
        stage.full_pass().await;
        has(&stage, "Progressing", json!("CrashLoopBackOff")).await;
        let failed = has_failed(&stage, "CrashLoopBackOff").await;
        assert!(failed["message"].as_str().unwrap().ends_with("container main crashes again and again"), "{failed}");
        is_settled(&stage).await;
        let status = stage.get(&stage.path("clustersyncs", "west-1")).await;
        page::agrees("/v1/clustersyncs", "health", &status).unwrap();
        let healthy = condition(&status["status"], "Healthy").unwrap();
        assert_eq!((&healthy["status"], &healthy["reason"]), (&json!("False"), &json!("Failed")));
        let entry = &status["status"]["syncSets"][0];
        assert_eq!(entry["result"], "Success", "that it was applied is something else");
        assert_eq!(
            (&entry["unhealthy"][0]["name"], &entry["unhealthy"][0]["state"]),
            (&json!("web"), &json!("Failed")),
            "{entry}"
        );
        // It is seen wherever somebody asks what does not work.
        has_counts(&stage, &json!({"current": 0, "progressing": 0, "unknown": 0, "failed": 1})).await;
        page::agrees("/v1/syncsets", "health", &stage.get(&stage.path("syncsets", "base")).await).unwrap();
        let failures = stage.get(&format!("syncset-failures?namespace={}", stage.namespace)).await;
        page::agrees("/v1/syncset-failures", "not working", &failures).unwrap();
        let group = &failures["items"][0];
        let told = (&group["health"], &group["reason"], &group["count"], &group["clusters"][0]["name"]);
        assert_eq!(told, (&json!("Failed"), &json!("CrashLoopBackOff"), &json!(1), &json!("west-1")), "{failures}");
        let explained = format!(
            "{}/explanation?kind=Pod&objectNamespace={}&objectName=web",
            stage.path("clusters", "west-1"),
            stage.namespace
        );
        let health = stage.get(&explained).await["health"].clone();
        assert!(health.as_str().unwrap().starts_with("Failed for "), "{health}");
        assert!(health.as_str().unwrap().contains("ago, assessed by what its kind's controller says"), "{health}");
        metric(&stage, "towline_syncset_health{state=\"failed\"} 1", true).await;

        // It is well again, and does not answer after that.
        says(&stage, plane, "web", running("True")).await;
        stage.full_pass().await;
        has(&stage, "Current", Value::Null).await;
        is_settled(&stage).await;
        let before = stored(&stage).await;
        let nowhere = stage.kubeconfig(plane, "127.0.0.1:1".parse().unwrap());
        stage.change(&stage.path("clusters", "west-1"), &json!({"kubeconfig": nowhere.to_string()})).await;
        let silent = has(&stage, "Unknown", json!("Unreachable")).await;
        for _ in 0..2 {
            is_asked_in_vain(&stage).await;
        }
        assert_eq!(stored(&stage).await, (before.0 + 1, before.1), "the ClusterSync once, and nothing else");
        let message = silent["message"].as_str().unwrap();
        assert!(message.starts_with("the cluster does not answer; it was Current at 20"), "{message}");
        // Whatever was read before.
        has_counts(&stage, &json!({"current": 0, "progressing": 0, "unknown": 1, "failed": 0})).await;
        metric(&stage, "towline_syncset_health{state=\"unknown\"} 1", true).await;
        let back = stage.kubeconfig(plane, plane.address());
        stage.change(&stage.path("clusters", "west-1"), &json!({"kubeconfig": back.to_string()})).await;
        has(&stage, "Current", Value::Null).await;
        has_counts(&stage, &json!({"current": 1, "progressing": 0, "unknown": 0, "failed": 0})).await;
    });
}

/// How often the `ClusterSync` was written, and by which transaction the health.
async fn stored(stage: &Stage) -> (i64, String) {
    let text = "select (select count(*) from towline_log where kind = 'clustersyncs'), xmin::text from towline_result";
    let row = stage.sql.query_one(text, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

/// Waits until a silent cluster was asked once more.
async fn is_asked_in_vain(stage: &Stage) {
    let attempts = async || -> i64 {
        let row = stage.sql.query_one("select attempts from towline_cluster", &[]).await.unwrap();
        row.get(0)
    };
    let before = attempts().await;
    stage.sql.batch_execute("update towline_cluster set retry_at = now()").await.unwrap();
    stage.sql.batch_execute(TIME_PASSES).await.unwrap();
    eventually("the cluster to be asked again", LIMIT, async || match attempts().await {
        more if more > before => Ok(()),
        other => Err(other.to_string()),
    })
    .await
    .unwrap();
    stage.at_rest().await;
}

/// Waits until the syncset has each state on so many clusters: the `ClusterSync` is written before whether its cluster answers.
async fn has_counts(stage: &Stage, expected: &Value) {
    eventually("counts of clusters", LIMIT, async || {
        let found = stage.get(&stage.path("syncsets", "base")).await["status"]["health"].clone();
        if found == *expected { Ok(()) } else { Err(found.to_string()) }
    })
    .await
    .unwrap();
}

#[test]
fn several_objects_of_a_kind_are_read_by_one_list() {
    run(async {
        let stage = Stage::new("health-lists").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let names = ["a", "b", "c"];
        let pods: Vec<Value> = names.iter().map(|name| pod(&stage, name)).collect();
        apply(&stage, &json!({"within": "1h"}), &pods).await;
        let pending = has(&stage, "Progressing", json!("Pending")).await;
        assert!(pending["message"].as_str().unwrap().ends_with("; 2 more objects are not current"), "{pending}");
        for name in names {
            says(&stage, plane, name, running("True")).await;
        }
        has(&stage, "Current", Value::Null).await;
        is_settled(&stage).await;
        let mut requests = Requests::from_now(&stage, plane).await;
        stage.full_pass().await;
        is_settled(&stage).await;
        assert_eq!(requests.seen().await, ["list pods 200"; 2], "one compares their metadata, one reads their health");

        // Another content is another health: what was read of the former one says nothing of it.
        stage.wants("base", &[pods.as_slice(), &[pod(&stage, "d")]].concat()).await;
        let added = has(&stage, "Progressing", json!("Pending")).await;
        assert_eq!(added["message"], format!("Pod {}/d: it has not started", stage.namespace));
        // Without `health` nothing is shown and nothing read, also of what was not settled.
        stage.change(&stage.path("syncsets", "base"), &json!({"spec": {"health": null}})).await;
        let status = stage.succeeds("west-1", "base", 3).await;
        assert!(status.get("health").is_none(), "{status}");
        is_settled(&stage).await;
        let status = stage.get(&stage.path("clustersyncs", "west-1")).await;
        assert_eq!(condition(&status["status"], "Healthy"), None);
    });
}

/// What the controller of a widget would say of it.
async fn widget_says(stage: &Stage, plane: &ControlPlane, group: &str, phase: &str) {
    let api = widgets(plane.client(ADMIN).await.unwrap(), stage, group);
    let patch = Patch::Merge(json!({"status": {"phase": phase}}));
    eventually("the widget to be there", LIMIT, async || {
        api.patch("one", &PatchParams::default(), &patch).await.map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
}

#[test]
fn own_rules_decide_and_what_flaps_has_not_failed_and_what_never_settles_is_late() {
    run(async {
        let stage = Stage::new("health-rules").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let group = "health.example.com";
        let definitions: Api<CustomResourceDefinition> = Api::all(plane.client(ADMIN).await.unwrap());
        let document = serde_json::from_value(definition(group)).unwrap();
        definitions.create(&PostParams::default(), &document).await.unwrap();
        let of_widgets = |current: &str| json!({"group": group, "kind": "Widget", "current": current, "failed": "status.phase == 'dead'"});
        let of_maps = json!({"kind": "ConfigMap", "current": "metadata.annotations.exists(key, key == 'seen')"});
        let never = json!({"within": "1m", "rules": [of_widgets("status.phase == 'never'")]});
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "health": never, "resources": [widget(&stage, group, "never")]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "never", "spec": spec})).await;
        let rules = json!({"rules": [of_widgets("status.phase == 'ready'"), of_maps]});
        let map = |annotations: Value| {
            let mut map = stage.config_map("site", &json!({"a": "1"}));
            map["metadata"]["annotations"] = annotations;
            map
        };
        apply(&stage, &rules, &[widget(&stage, group, "one"), map(json!({"seen": "yes"}))]).await;
        let message = has(&stage, "Progressing", json!("NotCurrent")).await["message"].clone();
        assert_eq!(message, format!("Widget {}/one: its rule for current is not true", stage.namespace));
        widget_says(&stage, plane, group, "ready").await;
        has(&stage, "Current", Value::Null).await;

        // Each reading of it says something else, so that none confirms the one before.
        widget_says(&stage, plane, group, "dead").await;
        stage.full_pass().await;
        for _ in 0..2 {
            has(&stage, "Progressing", json!("FailedByRule")).await;
            widget_says(&stage, plane, group, "starting").await;
            has(&stage, "Progressing", json!("NotCurrent")).await;
            widget_says(&stage, plane, group, "dead").await;
        }
        has(&stage, "Progressing", json!("FailedByRule")).await;
        let failed = has_failed(&stage, "FailedByRule").await;
        assert_eq!(failed["message"], format!("Widget {}/one: its rule for failed is true", stage.namespace));

        // Another rule is another health, of a kind that is not read without one as well.
        let other = json!({"rules": [of_widgets("has(status.phase)"), of_maps]});
        let spec = json!({"health": other, "resources": [widget(&stage, group, "one"), map(json!({}))]});
        stage.change(&stage.path("syncsets", "base"), &json!({ "spec": spec })).await;
        widget_says(&stage, plane, group, "ready").await;
        let unseen = has(&stage, "Progressing", json!("NotCurrent")).await;
        assert_eq!(unseen["message"], format!("ConfigMap {}/site: its rule for current is not true", stage.namespace));
        stage
            .change(
                &stage.path("syncsets", "base"),
                &json!({"spec": {"health": {"rules": [of_widgets("has(status.phase)")]}}}),
            )
            .await;
        has(&stage, "Current", Value::Null).await;

        let late = eventually("what never settles to be late", LIMIT, async || {
            let status = stage.get(&stage.path("clustersyncs", "west-1")).await;
            let health = status["status"]["syncSets"][1]["health"].clone();
            if health["reason"] == "Late" {
                return Ok(health);
            }
            passes(&stage, "never", "1 min").await;
            Err(health.to_string())
        });
        let late = late.await.unwrap();
        assert_eq!(late["state"], "Progressing", "{late}");
        is_settled(&stage).await;
        let mut requests = Requests::from_now(&stage, plane).await;
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"a": "b"}})).await;
        stage.at_rest().await;
        assert_eq!(requests.seen().await, Vec::<String>::new(), "what is late is not read any more");
    });
}

/// A cluster that has config maps alone, each with a rule that says of it what the test wants.
async fn of_config_maps(stage: &Stage, server: &Script, rule: Value) {
    let cluster = json!({"namespace": stage.namespace, "name": "west-1", "kubeconfig": server.kubeconfig_below("/west-1").to_string()});
    stage.create("clusters", &cluster).await;
    let maps = ["a", "b", "c"].map(|name| stage.config_map(name, &json!({})));
    apply(stage, &json!({ "rules": [rule] }), &maps).await;
}

#[test]
fn what_can_not_be_listed_is_read_by_itself_and_a_list_without_an_answer_is_no_silence() {
    run(async {
        let stage = Stage::with("health-unread", SECTION, 1).await;
        let (objects, hangs) = (Objects::default(), Arc::new(AtomicBool::new(false)));
        let does_hang = Arc::clone(&hangs);
        let forbidden = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no lists"});
        let server = Script::start_with(move |line, body| {
            let path = line.split(' ').nth(1).unwrap_or_default();
            if !path.split('?').next().unwrap_or_default().ends_with("/configmaps") {
                api(&objects, line, body)
            } else if does_hang.load(Ordering::Relaxed) {
                Says::Nothing
            } else {
                Says::Body(403, forbidden.to_string())
            }
        })
        .await;
        of_config_maps(&stage, &server, json!({"kind": "ConfigMap", "current": "metadata.name == 'never'"})).await;
        let unread = has(&stage, "Progressing", json!("NotCurrent")).await;
        assert!(unread["message"].as_str().unwrap().ends_with("; 2 more objects are not current"), "{unread}");
        hangs.store(true, Ordering::Relaxed);
        has(&stage, "Unknown", json!("NotRead")).await;
        let status = stage.get(&stage.path("clustersyncs", "west-1")).await;
        assert_eq!(condition(&status["status"], "Unreachable").unwrap()["status"], "False", "{status}");
        hangs.store(false, Ordering::Relaxed);
        has(&stage, "Progressing", json!("NotCurrent")).await;
    });
}

#[test]
fn what_has_failed_on_one_cluster_has_not_on_the_next_one_of_the_document() {
    run(async {
        let stage = Stage::with("health-moved", SECTION, 1).await;
        let objects = Objects::default();
        let server = Script::start_with(move |line, body| {
            let path = line.split(' ').nth(1).unwrap_or_default();
            let empty =
                json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []});
            if path.split('?').next().unwrap_or_default().ends_with("/configmaps") {
                Says::Body(200, empty.to_string())
            } else {
                api(&objects, line, body)
            }
        })
        .await;
        of_config_maps(&stage, &server, json!({"kind": "ConfigMap", "current": "false", "failed": "true"})).await;
        has_failed(&stage, "FailedByRule").await;
        let there = server.kubeconfig_below("/east-1").to_string();
        stage.change(&stage.path("clusters", "west-1"), &json!({ "kubeconfig": there })).await;
        has(&stage, "Progressing", json!("FailedByRule")).await;
        has_failed(&stage, "FailedByRule").await;

        // While it does not answer, nobody knows whether that is so still.
        let mut nowhere = server.kubeconfig_below("/east-1");
        nowhere["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
        stage.change(&stage.path("clusters", "west-1"), &json!({"kubeconfig": nowhere.to_string()})).await;
        has(&stage, "Unknown", json!("Unreachable")).await;
        eventually("failures without it", LIMIT, async || {
            let failures = stage.get(&format!("syncset-failures?namespace={}", stage.namespace)).await;
            let found = (&failures["items"], &failures["unreachable"]);
            if found == (&json!([]), &json!(1)) { Ok(()) } else { Err(failures.to_string()) }
        })
        .await
        .unwrap();
    });
}

#[test]
fn a_syncset_of_a_cluster_that_was_never_reached_is_shown_and_counted() {
    run(async {
        let stage = Stage::with("health-unreached", SYNCSETS, 1).await;
        let nowhere = stage.kubeconfig(edge(0).await, "127.0.0.1:1".parse().unwrap());
        stage.registers("west-1", &nowhere).await;
        apply(&stage, &json!({}), &[stage.config_map("site", &json!({}))]).await;
        has(&stage, "Unknown", json!("Unreachable")).await;
        let shown = stage.get(&stage.path("clustersyncs", "west-1")).await;
        let entry = &shown["status"]["syncSets"][0];
        assert_eq!((&entry["name"], entry.get("result")), (&json!("base"), None), "{shown}");
        assert_eq!(condition(&shown["status"], "Healthy").unwrap()["status"], "Unknown");
        metric(&stage, "towline_syncset_health{state=\"unknown\"} 1", true).await;
    });
}

#[test]
fn reading_health_is_no_attempt_at_what_fails_beside_it() {
    run(async {
        let stage = Stage::new("health-beside").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let mut broken = stage.config_map("broken", &json!({}));
        broken["dat"] = json!({});
        stage.syncset("failing", "Sync", &[broken]).await;
        let fails = |status: &Value| status["syncSets"][0]["reason"] == "SchemaMismatch";
        stage.status("west-1", "what fails", fails).await;
        apply(&stage, &json!({}), &[pod(&stage, "web")]).await;
        has_readings(&stage, 1).await;
        let mut requests = Requests::from_now(&stage, plane).await;
        has_readings(&stage, 4).await;
        let seen = requests.seen().await;
        assert!(seen.len() >= 2 && seen.iter().all(|request| request == "get pods/web 200"), "{seen:?}");
        // A change of anything has it tried at once.
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"a": "b"}})).await;
        stage.at_rest().await;
        let seen = requests.seen().await;
        assert!(seen.iter().any(|request| request.contains("configmaps/broken")), "{seen:?}");
    });
}

/// Waits until the health of the syncset was read so often since it is not current.
async fn has_readings(stage: &Stage, count: i32) {
    let text = "select (health->>'readings')::int from towline_result where name = 'base' and health is not null";
    eventually("readings", LIMIT, async || {
        let rows = stage.sql.query(text, &[]).await.map_err(|error| error.to_string())?;
        let found: Option<i32> = rows.first().map(|row| row.get(0));
        if found >= Some(count) { Ok(()) } else { Err(format!("{found:?} of {count}")) }
    })
    .await
    .unwrap();
}

#[test]
fn a_job_that_has_finished_and_deleted_itself_stays_current() {
    run(async {
        let stage = Stage::new("health-job").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "migrate", "namespace": stage.namespace},
            "spec": {"ttlSecondsAfterFinished": 86_400, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "main:1"}]}}}});
        apply(&stage, &json!({}), std::slice::from_ref(&job)).await;
        has(&stage, "Progressing", json!("JobRunning")).await;
        let jobs: Api<K8sJob> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        let pods: Api<Pod> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        eventually("its pod to have succeeded", LIMIT, async || {
            let found = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let pod = found.items.first().and_then(|pod| pod.metadata.name.clone()).ok_or("none yet")?;
            let patch = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
            pods.patch_status(&pod, &PatchParams::default(), &patch).await.map(drop).map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        has(&stage, "Current", Value::Null).await;
        is_settled(&stage).await;
        jobs.delete("migrate", &DeleteParams::background()).await.unwrap();
        stage.full_pass().await;
        is_settled(&stage).await;
        has(&stage, "Current", Value::Null).await;
        assert!(jobs.get_opt("migrate").await.unwrap().is_none(), "it is not created again");
        // Something else is sent as well.
        stage.wants("base", &[job, stage.config_map("site", &json!({}))]).await;
        stage.succeeds("west-1", "base", 2).await;
        has(&stage, "Current", Value::Null).await;
        assert!(jobs.get_opt("migrate").await.unwrap().is_none(), "it is not created again");
    });
}
