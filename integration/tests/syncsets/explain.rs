//! `towline explain`, as an operator types it.

use integration::{Towline, eventually, users};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::world::{LIMIT, Stage, run};

/// What the command prints.
async fn explained(stage: &Stage, object: &str) -> String {
    let server = format!("http://{}", stage.replicas[0].api());
    let output = Towline::command_with(["explain", "explain/west-1", object, "--hub", &server], &[]).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_object_is_explained_with_its_syncsets_and_what_others_did_to_it() {
    run(async {
        let stage = Stage::new("explain").await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        for (name, value) in [("a-first", "one"), ("b-last", "two")] {
            let syncset = json!({"namespace": "explain", "name": name, "spec": {"clusterDeploymentRefs": [{"name": "west-1"}],
                "resourceApplyMode": "Sync", "resources": [stage.config_map("site", &json!({"value": value}))]}});
            stage.create("syncsets", &syncset).await;
        }
        stage.has(plane, &[("site", json!({"value": "two"}))]).await;
        stage
            .status("west-1", "both results", |status| status["syncSets"].as_array().is_some_and(|all| all.len() == 2))
            .await;
        let told = explained(&stage, "ConfigMap/explain/site").await;
        for line in [
            "wanted by  SyncSet explain/a-first (Sync, Apply, resource 0): superseded",
            "           SyncSet explain/b-last (Sync, Apply, resource 0): wins, sent",
            "live       in step",
            "if dropped deleted (tracked, not adopted)",
        ] {
            assert!(told.lines().any(|found| found == line), "no {line} in {told}");
        }
        let maps: Api<ConfigMap> = Api::namespaced(plane.client(users::ADMIN).await.unwrap(), "explain");
        let edit = Patch::Merge(json!({"data": {"value": "three"}}));
        maps.patch(
            "site",
            &PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() },
            &edit,
        )
        .await
        .unwrap();
        let drift = "live       drift: .data.value was taken by kubectl-edit at ";
        eventually("the drift to be told", LIMIT, async || {
            let told = explained(&stage, "ConfigMap/explain/site").await;
            if told.lines().any(|line| line.starts_with(drift)) { Ok(()) } else { Err(told) }
        })
        .await
        .unwrap();
        let told = explained(&stage, "ConfigMap/explain/other").await;
        assert!(told.contains("wanted by  no syncset") && told.contains("none has sent it"), "{told}");
    });
}
