//! What a section remembers beyond its process: one `ConfigMap` in the local cluster.

use integration::Towline;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::rules_world::*;

/// The annotation by which the object is known.
const STATE_MARK: &str = "towline.dev/section-state";

fn config_map(name: &str, annotations: &Value, state: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}, "data": {"state": state}}))
        .unwrap()
}

async fn check(section: &Section) -> (Option<i32>, String) {
    let path = section.towline.config_path();
    let output = Towline::command(["check", "--config", path.to_str().unwrap(), "--connect"]).await.unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn an_object_of_somebody_else_in_the_states_place_is_left_as_it_is_and_told() {
    run(async {
        let world = world().await;
        let edge = world.edge.client(integration::users::EDGE_CONTROLLER).await.unwrap();
        let objects: Api<ConfigMap> = Api::namespaced(edge, "default");
        let strange = config_map("towline-strange", &json!({}), "mine");
        objects.create(&PostParams::default(), &strange).await.unwrap();
        let section = Section::start("strange", databases(), "").await;
        let report =
            section.report_has("why it has no state", |report| report["stored_state"]["state"] == json!("unavailable"));
        let report = report.await;
        let reason = report["stored_state"]["reason"].as_str().unwrap();
        assert!(reason.contains("ConfigMap default/towline-strange") && reason.contains(STATE_MARK), "{reason}");
        let (code, told) = check(&section).await;
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("sync strange: state") && told.contains("default/towline-strange"), "{told}");
        // The section syncs all the same.
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.in_step().await;
        let held = objects.get("towline-strange").await.unwrap();
        assert_eq!(held.data.unwrap()["state"], "mine");
        assert!(held.metadata.annotations.is_none());
    });
}

#[test]
fn a_section_of_config_maps_leaves_out_what_clusters_make_by_themselves_and_the_states_of_sections() {
    run(async {
        // The state of another daemon's section on the hub, and one in the section's local namespace.
        let section = Section::start("maps", config_maps(), "metadata = \"mirror\"\nunclaimed = \"delete\"").await;
        section.make_namespaces("a").await;
        let marked = json!({"metadata": {"annotations": {STATE_MARK: "far"}}, "data": {"state": "{}"}});
        section.make_remote("a", "towline-far", &marked).await;
        section.make_local("a", "towline-near", &marked).await;
        let towline = section.world.edge.client(integration::users::TOWLINE).await.unwrap();
        let written: Api<ConfigMap> = Api::namespaced(towline, &section.local_namespace("a"));
        let touch = Patch::Merge(json!({"data": {"state": "{\"version\":1}"}}));
        let manager = PatchParams { field_manager: Some("towline".into()), ..PatchParams::default() };
        written.patch("towline-near", &manager, &touch).await.unwrap();
        let name = "kube-root-ca.crt";
        // As the controller manager does in each cluster.
        let own = section.make_local("a", name, &json!({"data": {"ca.crt": "of the edge"}})).await;
        let theirs = section.make_remote("a", name, &json!({"data": {"ca.crt": "of the hub"}})).await;
        section.make_remote("a", "plain", &json!({"data": {"key": "value"}})).await;
        section.local_has("a", "plain", |_| true).await;
        section.quiet().await;
        assert_eq!(
            section.local("a").get(name).await.unwrap().metadata.resource_version,
            own.metadata.resource_version
        );
        let remote = section.remote("a").get(name).await.unwrap();
        assert_eq!(remote.metadata.resource_version, theirs.metadata.resource_version);
        let far = section.remote_has("a", "towline-far", |_| true).await;
        assert!(far.metadata.finalizers.is_none(), "{far:?}");
        let local: Vec<String> = section
            .local("a")
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .into_iter()
            .filter_map(|object| object.metadata.name)
            .filter(|found| found != name)
            .collect();
        assert_eq!(local, ["plain", "towline-near"], "of the edge");
    });
}
