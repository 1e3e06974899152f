//! `towline resync` and how many clusters `towline diff` works on at once, seen from the clusters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use integration::eventually;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::syncsets::commands::file;
use crate::syncsets::script::{Says, Script};
use crate::syncsets::world::{LIMIT, Stage, condition, run};

fn kube_system(uid: &str) -> String {
    let metadata = json!({"name": "kube-system", "uid": uid, "resourceVersion": "1"});
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}).to_string()
}

#[test]
fn a_resync_mends_what_others_have_changed_at_once() {
    run(async {
        let stage = Stage::new("resynced").await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        let names = ["changed", "gone"];
        stage.syncset("base", "Upsert", &names.map(|name| stage.config_map(name, &json!({"a": "1"})))).await;
        stage.succeeds("west-1", "base", 1).await;
        let maps = stage.maps(plane).await;
        let by_name = format!("{}/west-1", stage.namespace);
        for which in [&["resync", by_name.as_str()][..], &["resync", "-l", "env=prod"]] {
            let theirs = json!({"data": {"a": "theirs"}});
            maps.patch("changed", &PatchParams::default(), &Patch::Merge(&theirs)).await.unwrap();
            maps.delete("gone", &DeleteParams::default()).await.unwrap();
            // The next full pass by itself would be in two hours.
            assert_eq!(stage.command(which).await, "a full pass of 1 cluster is due now\n");
            stage.has(plane, &names.map(|name| (name, json!({"a": "1"})))).await;
            stage.at_rest().await;
        }
    });
}

#[test]
fn a_resync_asks_a_silent_cluster_at_once_whether_it_answers() {
    run(async {
        let section = "[syncsets]\nallow = [\"local-networks\", \"plain-http\"]";
        let stage = Stage::with("woken", section, 1).await;
        let is_known = Arc::new(AtomicBool::new(false));
        let knows = Arc::clone(&is_known);
        let server = Script::start(move |request| match request {
            _ if !knows.load(Ordering::Relaxed) => Says::Body(401, json!({"kind": "Status"}).to_string()),
            "GET /version HTTP/1.1" => Says::Body(200, "{}".to_owned()),
            _ => Says::Body(200, kube_system("u-1")),
        })
        .await;
        stage.registers("west-1", &server.kubeconfig()).await;
        stage.unreachable("west-1").await;
        stage.at_rest().await;
        // By itself it would be asked again in an hour.
        let later = "update towline_cluster set retry_at = now() + interval '1 h'; \
             update towline_work set ready_at = now() + interval '1 h'";
        stage.sql.batch_execute(later).await.unwrap();
        stage.at_rest().await;
        let before = server.requests().len();
        is_known.store(true, Ordering::Relaxed);
        stage.command(&["resync", &format!("{}/west-1", stage.namespace)]).await;
        let answers = |status: &Value| condition(status, "Unreachable").is_some_and(|found| found["status"] == "False");
        stage.status("west-1", "the cluster to answer", answers).await;
        assert_eq!(server.requests()[before], "GET /version HTTP/1.1", "a probe comes first");
    });
}

/// Clusters of the test that is about `diff`, and how many a quarter of the slots to work lets it work on.
const CLUSTERS: usize = 6;
const AT_ONCE: usize = 2;

/// Two diffs share the quarter: of both together so many clusters are tried at once.
#[test]
fn diffs_try_as_many_clusters_at_once_as_are_a_quarter_of_the_slots() {
    run(async {
        let section =
            format!("[syncsets]\nallow = [\"local-networks\", \"plain-http\"]\nmax_in_flight = {}", 4 * AT_ONCE);
        let stage = Stage::with("quartered", &section, 1).await;
        let (gate, tried) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (waits, counts) = (Arc::clone(&gate), Arc::clone(&tried));
        let server = Script::start(move |line| {
            let mut words = line.split([' ', '?']);
            let (method, path) = (words.next().unwrap(), words.next().unwrap());
            let (cluster, rest) = path.trim_start_matches('/').split_once('/').unwrap();
            match (method, rest) {
                ("GET", "version") => Says::Body(200, "{}".to_owned()),
                ("GET", "api/v1/namespaces/kube-system") => Says::Body(200, kube_system(cluster)),
                ("GET", "api/v1") => {
                    let kind = json!({"name": "configmaps", "singularName": "configmap", "namespaced": true,
                        "kind": "ConfigMap", "verbs": ["get", "patch"]});
                    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [kind]});
                    Says::Body(200, list.to_string())
                }
                ("PATCH", _) => {
                    counts.fetch_add(1, Ordering::Relaxed);
                    let made = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                        "metadata": {"name": "site", "namespace": "quartered", "uid": "u", "resourceVersion": "1"}});
                    Says::Later(Arc::clone(&waits), 201, made.to_string())
                }
                _ => {
                    let absent = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
                        "code": 404, "message": "not found", "details": {"name": "site", "kind": "configmaps"}});
                    Says::Body(404, absent.to_string())
                }
            }
        })
        .await;
        for number in 0..CLUSTERS {
            let name = format!("c-{number}");
            let kubeconfig = server.kubeconfig_below(&format!("/{name}")).to_string();
            stage
                .create("clusters", &json!({"namespace": stage.namespace, "name": name, "kubeconfig": kubeconfig}))
                .await;
            stage.status(&name, "its first pass", |status| status["firstSuccessTime"].is_string()).await;
        }
        let document = json!({"kind": "SelectorSyncSet", "name": "quartered",
            "spec": {"clusterDeploymentSelector": {}, "resources": [stage.config_map("site", &json!({}))]}});
        let document = file("quartered", &document).display().to_string();
        let arguments = ["diff", "-f", &document, "--all"];
        let answers = async {
            // As long as nobody is answered, no other cluster is tried; with each answer one more is.
            for answered in 0..2 * CLUSTERS {
                let expected = (answered + AT_ONCE).min(2 * CLUSTERS);
                eventually(format!("{expected} clusters to be tried"), LIMIT, async || {
                    let tried = tried.load(Ordering::Relaxed);
                    if tried >= expected { Ok(()) } else { Err(format!("{tried}")) }
                })
                .await
                .unwrap();
                assert_eq!(tried.load(Ordering::Relaxed), expected, "{answered} are answered");
                gate.add_permits(1);
            }
        };
        let (one, other, ()) = tokio::join!(stage.ended(&arguments), stage.ended(&arguments), answers);
        for (code, told) in [one, other] {
            assert_eq!(code, 0, "it was compared: {told}");
            assert_eq!(told.matches("create 1  change 0  delete 0  conflict 0").count(), CLUSTERS, "{told}");
        }
    });
}
