//! `towline diff`, as an operator types it: a dry run on real edges.

use std::path::{Path, PathBuf};

use integration::hub::Request;
use integration::{ControlPlane, Towline, eventually, users};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::world::{LIMIT, Stage, run};

/// A file with a document.
fn file(name: &str, document: &Value) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("syncsets-{name}.json"));
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

/// What the command prints.
async fn compared(stage: &Stage, file: &Path) -> String {
    let server = format!("http://{}", stage.replicas[0].api());
    let file = file.display().to_string();
    let output = Towline::command_with(["diff", "-f", &file, "--hub", &server], &[]).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until the command prints a line.
async fn tells(stage: &Stage, file: &Path, line: &str) -> String {
    let told = eventually(format!("the line {line}"), LIMIT, async || {
        let told = compared(stage, file).await;
        if told.lines().any(|found| found == line) { Ok(told) } else { Err(told) }
    });
    match told.await {
        Ok(told) => told,
        Err(error) => panic!("{error}\n{}", stage.log()),
    }
}

/// Data of all config maps, by which it is seen that a dry run has changed nothing.
async fn state(stage: &Stage, plane: &ControlPlane) -> Value {
    json!(
        stage
            .config_maps(plane)
            .await
            .into_iter()
            .map(|map| (map.metadata.resource_version, map.data))
            .collect::<Vec<_>>()
    )
}

fn syncset(resources: &[Value], clusters: &[&str]) -> Value {
    let clusters: Vec<Value> = clusters.iter().map(|name| json!({"name": name})).collect();
    json!({"kind": "SyncSet", "namespace": "diff", "name": "base", "spec": {"clusterDeploymentRefs": clusters,
        "resourceApplyMode": "Sync", "resources": resources}})
}

#[test]
fn a_diff_tells_what_would_be_created_changed_taken_and_deleted_and_does_nothing() {
    run(async {
        let stage = Stage::new("diff").await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        let map = |name: &str, value: &str| stage.config_map(name, &json!({"value": value}));
        let stored = [map("changed", "one"), map("dropped", "one"), map("same", "one"), map("taken", "one")];
        stage.create("syncsets", &syncset(&stored, &["west-1"])).await;
        let one = || json!({"value": "one"});
        stage.has(plane, &[("changed", one()), ("dropped", one()), ("same", one()), ("taken", one())]).await;
        stage.status("west-1", "the result", |status| status["syncSets"][0]["result"] == "Success").await;
        let unchanged = file("diff-unchanged", &syncset(&stored, &["west-1"]));
        let told = compared(&stage, &unchanged).await;
        let first = "SyncSet diff/base: 1 clusters (0 new, 0 no longer); held: no (0 of at most 10 lose objects)";
        assert_eq!(told, format!("{first}\ndiff/west-1  create 0  change 0  delete 0  conflict 0\n"));
        let maps: Api<ConfigMap> = Api::namespaced(plane.client(users::ADMIN).await.unwrap(), "diff");
        let edit = PatchParams { field_manager: Some("hpa".to_owned()), ..PatchParams::default() };
        maps.patch("taken", &edit, &Patch::Merge(json!({"data": {"value": "two"}}))).await.unwrap();
        let before = state(&stage, plane).await;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "diff-new"}});
        let mut inside = map("inside", "one");
        inside["metadata"]["namespace"] = json!("diff-new");
        let proposed =
            [map("changed", "two"), map("new", "one"), map("same", "one"), map("taken", "three"), namespace, inside];
        let proposed = file("diff-proposed", &syncset(&proposed, &["west-1"]));
        let line =
            "diff/west-1  create 3  change 2  delete 1  conflict 1   ConfigMap diff/taken: .data.value belongs to hpa";
        let told = tells(&stage, &proposed, line).await;
        assert!(told.starts_with(first), "{told}");
        assert_eq!(state(&stage, plane).await, before, "a dry run changes nothing");
        let found = stage.send(&Request::get("/v1/syncsets/diff/base")).await.json().unwrap();
        assert_eq!(found["generation"], 1, "{found}");
    });
}

#[test]
fn a_diff_tells_which_clusters_come_and_go_and_which_do_not_answer() {
    run(async {
        let stage = Stage::new("diff-reach").await;
        stage.register("west-1", &json!({"env": "prod"}), 0).await;
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"token": "t"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        let silent = json!({"namespace": "diff-reach", "name": "silent", "labels": {"env": "test"}, "kubeconfig": kubeconfig.to_string()});
        stage.create("clusters", &silent).await;
        let selecting = |env: &str| {
            json!({"kind": "SelectorSyncSet", "name": "diff-reach", "spec": {"clusterDeploymentSelector": {"matchLabels": {"env": env}},
                "resources": [stage.config_map("site", &json!({"value": "one"}))]}})
        };
        stage.create("selectorsyncsets", &selecting("prod")).await;
        stage
            .status("silent", "the failure to connect", |status| {
                let conditions = status["conditions"].as_array().into_iter().flatten();
                conditions
                    .into_iter()
                    .any(|condition| condition["type"] == "Unreachable" && condition["status"] == "True")
            })
            .await;
        let told = compared(&stage, &file("diff-reach", &selecting("test"))).await;
        let expected = "SelectorSyncSet diff-reach: 1 clusters (1 new, 1 no longer); held: no (0 of at most 10 lose objects)\n\
                        diff-reach/silent  unreachable, and it has never answered\n";
        assert_eq!(told, expected);
        // What a write would refuse, a diff refuses.
        let refused =
            json!({"kind": "SelectorSyncSet", "name": "diff-reach", "spec": {"resources": [{"kind": "ConfigMap"}]}});
        let reply = stage.send(&Request::post("/v1/syncset-diffs", &refused)).await;
        assert_eq!(reply.status, 422, "{reply:?}");
    });
}
