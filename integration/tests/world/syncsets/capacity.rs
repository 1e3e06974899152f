//! Syncsets that take much memory: what has no room on its cluster, and who waits for whom.

use std::sync::Arc;

use integration::eventually;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::syncsets::guard::{Objects, SECTION, api};
use crate::syncsets::script::{Says, Script};
use crate::syncsets::world::{LIMIT, Stage, run};

/// One slot to work, and four slots to connect.
const NARROW: &str =
    "[syncsets]\nallow = [\"local-networks\", \"plain-http\"]\nmax_in_flight = 1\nrequest_timeout = \"10m\"";

/// A config map with a text of so many KiB.
fn heavy(stage: &Stage, name: &str, kib: usize) -> Value {
    let metadata = json!({"name": name, "namespace": stage.namespace});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": "x".repeat(kib << 10)}})
}

/// The names of the objects of cluster `west-1`.
fn names(objects: &Objects) -> Vec<String> {
    objects.lock().keys().map(|path| path.rsplit('/').next().unwrap().to_owned()).collect()
}

/// The entries of a status as name, result and message.
fn entries(status: &Value) -> Vec<(&str, &str, &str)> {
    let lists = [&status["syncSets"], &status["selectorSyncSets"]];
    let all = lists.into_iter().filter_map(Value::as_array).flatten();
    all.map(|entry| {
        let of = |field: &str| entry[field].as_str().unwrap_or_default();
        (of("name"), of("result"), of("failureMessage"))
    })
    .collect()
}

#[test]
fn what_has_no_room_on_its_cluster_is_told_and_the_rest_goes_on_without_deletions() {
    run(async {
        let stage = Stage::shared("capacity", SECTION).await;
        let objects = Objects::default();
        let shared = Arc::clone(&objects);
        let server = Script::start_with(move |line, body| api(&shared, line, body)).await;
        let kubeconfig = server.kubeconfig_below("/west-1").to_string();
        let cluster = json!({"namespace": stage.namespace, "name": "west-1", "kubeconfig": kubeconfig});
        stage.create("clusters", &cluster).await;
        stage.syncset("d", "Sync", &[stage.config_map("first", &json!({}))]).await;
        stage.succeeds("west-1", "d", 1).await;
        stage.pause(true).await;
        for name in ["a", "b", "c"] {
            stage.syncset(name, "Sync", &[heavy(&stage, name, 3 << 10)]).await;
        }
        stage.pause(false).await;
        let is_left_out =
            |status: &Value| entries(status).iter().any(|(name, result, _)| *name == "c" && *result == "Failure");
        let status = stage.status("west-1", "c to be left out", is_left_out).await;
        let found = entries(&status);
        let told = "the syncsets of this cluster have more than 8 MiB together: no room is left for the ";
        for (name, result, message) in &found {
            assert_eq!((*result == "Failure", message.starts_with(told)), (*name == "c", *name == "c"), "{found:?}");
        }
        assert_eq!(status["syncSets"][2]["reason"], "ResourceInvalid", "{status}");
        assert_eq!(names(&objects), ["a", "b", "first"]);
        let failures = stage.get("syncset-failures").await.to_string();
        assert!(failures.contains(told) && failures.contains("ResourceInvalid"), "{failures}");
        // The same one, whatever is due. It may want what another one drops.
        stage.wants("d", &[stage.config_map("second", &json!({}))]).await;
        stage.at_rest().await;
        assert_eq!(names(&objects), ["a", "b", "first", "second"]);
        stage.full_pass().await;
        let status = stage.status("west-1", "c to be left out", is_left_out).await;
        assert_eq!(entries(&status).iter().filter(|(_, result, _)| *result == "Failure").count(), 1, "{status}");
        assert_eq!(names(&objects), ["a", "b", "first", "second"]);
        // With room for it nothing is in doubt any more.
        stage.wants("a", &[heavy(&stage, "a", 1 << 10)]).await;
        stage.succeeds("west-1", "c", 1).await;
        stage.succeeds("west-1", "d", 2).await;
        assert_eq!(names(&objects), ["a", "b", "c", "second"]);
    });
}

#[test]
fn slow_clusters_with_large_syncsets_hold_up_none_with_small_ones() {
    run(async {
        let stage = Stage::with("crowded", NARROW, 1).await;
        let (objects, permits) = (Objects::default(), Arc::new(Semaphore::new(0)));
        let (shared, held) = (Arc::clone(&objects), Arc::clone(&permits));
        let server = Script::start_with(move |line, body| match api(&shared, line, body) {
            Says::Body(status, reply) if line.starts_with("PATCH /large-") => {
                Says::Later(Arc::clone(&held), status, reply)
            }
            says => says,
        })
        .await;
        let cluster = async |name: &str| {
            let kubeconfig = server.kubeconfig_below(&format!("/{name}")).to_string();
            stage
                .create("clusters", &json!({"namespace": stage.namespace, "name": name, "kubeconfig": kubeconfig}))
                .await;
        };
        let syncset = async |name: &str, clusters: &[String], resource: Value| {
            let refs: Vec<Value> = clusters.iter().map(|name| json!({"name": name})).collect();
            let spec = json!({"clusterDeploymentRefs": refs, "resources": [resource]});
            stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
        };
        let is_applied = |status: &Value| status["syncSets"][0]["result"] == "Success";
        // One has the whole budget, and the others wait for it.
        let large: Vec<String> = (0..5).map(|number| format!("large-{number}")).collect();
        for name in ["large-a", "large-b"] {
            syncset(name, &large, heavy(&stage, name, 4_000)).await;
        }
        for name in &large {
            cluster(name).await;
        }
        let claimed = "select count(*) from towline_work where token > 0";
        eventually("the large clusters to be claimed, and one to be written to", LIMIT, async || {
            let claimed: i64 = stage.sql.query_one(claimed, &[]).await.map_err(|error| error.to_string())?.get(0);
            let requests = server.requests();
            let is_held = requests.iter().any(|line| line.starts_with("PATCH /large-"));
            if claimed == 5 && is_held { Ok(()) } else { Err(format!("claimed: {claimed}, requests: {requests:?}")) }
        })
        .await
        .unwrap();
        let small: Vec<String> = (0..3).map(|number| format!("small-{number}")).collect();
        syncset("small", &small, stage.config_map("small", &json!({}))).await;
        for name in &small {
            cluster(name).await;
        }
        for name in &small {
            stage.status(name, "the small syncset to be applied", is_applied).await;
        }
        let writes = server.requests().iter().filter(|line| line.starts_with("PATCH /large-")).count();
        assert_eq!(writes, 1, "the first one still has the budget");
        permits.add_permits(10);
        for name in &large {
            stage.status(name, "the large syncset to be applied", is_applied).await;
        }
    });
}
