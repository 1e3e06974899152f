//! Behaviors, and what a mode makes of a removal, each with a resource, a secret and a patch: what is on the cluster after the first apply, a change and a
//! removal, and the requests that it takes.

use integration::eventually;
use integration::users::ADMIN;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::syncsets::requests::Requests;
use crate::syncsets::world::{LIMIT, Stage, run};

/// What a syncset with this behavior and mode sends.
struct Case {
    name: &'static str,
    behavior: &'static str,
    mode: &'static str,
    /// For a new object and a new secret, and then for the patch.
    first: &'static [&'static str],
    /// For another value of each.
    change: &'static [&'static str],
    /// The data of object and secret after the change, of which `b` was given no more.
    changed: [&'static str; 2],
    removed: &'static [&'static str],
}

const APPLIED: &[&str] = &[
    "get configmaps/site 404",
    "get secrets/pull 404",
    "patch configmaps/site 201",
    "patch secrets/pull 201",
    "patch configmaps/target 200",
];
const POSTED: &[&str] = &[
    "get configmaps/site 404",
    "get secrets/pull 404",
    "create configmaps/site 201",
    "create secrets/pull 201",
    "patch configmaps/target 200",
];
const CREATED: &[&str] = &["create configmaps/site 201", "create secrets/pull 201", "patch configmaps/target 200"];
const PATCHED: &[&str] = &["patch configmaps/site 200", "patch secrets/pull 200", "patch configmaps/target 200"];
const DELETED: &[&str] =
    &["get configmaps/site 200", "delete configmaps/site 200", "get secrets/pull 200", "delete secrets/pull 200"];
const NOTHING: &[&str] = &[];

impl Case {
    fn apply(name: &'static str, mode: &'static str, removed: &'static [&'static str]) -> Self {
        let changed = [r#"{"a":"2"}"#, r#"{"a":"Mg=="}"#];
        Self { name, behavior: "Apply", mode, first: APPLIED, change: PATCHED, changed, removed }
    }

    fn create_or_update(name: &'static str, mode: &'static str, removed: &'static [&'static str]) -> Self {
        let changed = [r#"{"a":"2","b":"1"}"#, r#"{"a":"Mg==","b":"MQ=="}"#];
        Self { name, behavior: "CreateOrUpdate", mode, first: POSTED, change: PATCHED, changed, removed }
    }

    fn create_only(name: &'static str) -> Self {
        let (changed, change) = ([r#"{"a":"1","b":"1"}"#, r#"{"a":"MQ==","b":"MQ=="}"#], REFUSED);
        Self { name, behavior: "CreateOnly", mode: "Sync", first: CREATED, change, changed, removed: DELETED }
    }

    async fn hold(self) {
        let stage = Stage::new(self.name).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let client = plane.client(ADMIN).await.unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), stage.namespace);
        let secrets: Api<Secret> = Api::namespaced(client, stage.namespace);
        let target = serde_json::from_value(json!({"metadata": {"name": "target"}, "data": {"own": "1"}})).unwrap();
        maps.create(&PostParams::default(), &target).await.unwrap();
        let source = json!({"namespace": stage.namespace, "name": "source", "data": {"a": "MQ==", "b": "MQ=="}});
        stage.create("secrets", &source).await;
        stage.at_rest().await;

        let mut requests = Requests::from_now(&stage, plane).await;
        let spec = |resource: &Value, patch: &str| {
            json!({"clusterDeploymentRefs": [{"name": "west-1"}], "applyBehavior": self.behavior,
                "resourceApplyMode": self.mode, "resources": [resource],
                "secretMappings": [{"sourceRef": {"name": "source"},
                    "targetRef": {"name": "pull", "namespace": stage.namespace}}],
                "patches": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "target", "namespace": stage.namespace,
                    "patchType": "merge", "patch": format!("{{\"data\": {{\"p\": \"{patch}\"}}}}")}]})
        };
        let first = spec(&stage.config_map("site", &json!({"a": "1", "b": "1"})), "1");
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": first})).await;
        stage.succeeds("west-1", "base", 1).await;
        assert_eq!(requests.seen().await, self.first);
        let data = async |expected: [&str; 2], patch: Option<&str>| {
            let map = maps.get_opt("site").await.unwrap().map(|map| json!(map.data).to_string());
            let secret = secrets.get_opt("pull").await.unwrap().map(|secret| json!(secret.data).to_string());
            assert_eq!([map.as_deref().unwrap_or(""), secret.as_deref().unwrap_or("")], expected);
            let target = maps.get("target").await.unwrap().data.unwrap();
            assert_eq!((target["own"].as_str(), target.get("p").map(String::as_str)), ("1", patch));
        };
        data([r#"{"a":"1","b":"1"}"#, r#"{"a":"MQ==","b":"MQ=="}"#], Some("1")).await;

        // Both changes at once, so that their passes are counted together.
        stage.change(&stage.path("clusters", "west-1"), &json!({"paused": true})).await;
        stage.change(&stage.path("secrets", "source"), &json!({"data": {"a": "Mg==", "b": null}})).await;
        let second = spec(&stage.config_map("site", &json!({"a": "2"})), "2");
        stage.replace_spec("syncsets", "base", &second).await;
        stage.at_rest().await;
        assert_eq!(requests.seen().await, NOTHING, "paused");
        stage.change(&stage.path("clusters", "west-1"), &json!({"paused": false})).await;
        stage.succeeds("west-1", "base", 2).await;
        assert_eq!(requests.seen().await, self.change);
        data(self.changed, Some("2")).await;

        let none = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "applyBehavior": self.behavior,
            "resourceApplyMode": self.mode, "resources": []});
        stage.replace_spec("syncsets", "base", &none).await;
        stage.succeeds("west-1", "base", 3).await;
        assert_eq!(requests.seen().await, self.removed);
        data(if self.removed.is_empty() { self.changed } else { ["", ""] }, Some("2")).await;
    }
}

/// A copy of an immutable Secret is immutable: the API server then refuses other data, and the syncset says so.
#[test]
fn a_copy_of_an_immutable_secret_is_immutable() {
    run(async {
        let stage = Stage::new("immutable").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let secrets: Api<Secret> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        let source = json!({"namespace": stage.namespace, "name": "source", "data": {"a": "MQ=="}});
        stage.create("secrets", &source).await;
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "secretMappings": [{"sourceRef": {"name": "source"},
            "targetRef": {"name": "pull", "namespace": stage.namespace}}]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
        stage.succeeds("west-1", "base", 1).await;
        assert_eq!(secrets.get("pull").await.unwrap().immutable, None);
        stage.change(&stage.path("secrets", "source"), &json!({"immutable": true})).await;
        eventually("the copy to be immutable", LIMIT, async || {
            let copy = secrets.get("pull").await.map_err(|error| error.to_string())?;
            if copy.immutable == Some(true) { Ok(()) } else { Err(format!("{:?}", copy.immutable)) }
        })
        .await
        .unwrap();
        stage.change(&stage.path("secrets", "source"), &json!({"data": {"a": "Mg=="}})).await;
        let is_rejected = |status: &Value| status["syncSets"][0]["reason"] == "Rejected";
        stage.status("west-1", "the other data to be refused", is_rejected).await;
        assert_eq!(json!(secrets.get("pull").await.unwrap().data), json!({"a": "MQ=="}));
    });
}

/// What exists already is success and stays as it is.
const REFUSED: &[&str] = &["create configmaps/site 409", "create secrets/pull 409", "patch configmaps/target 200"];

#[test]
fn apply_with_upsert_removes_fields_and_forgets_objects() {
    run(Case::apply("apply-upsert", "Upsert", NOTHING).hold());
}

#[test]
fn apply_with_sync_removes_fields_and_objects() {
    run(Case::apply("apply-sync", "Sync", DELETED).hold());
}

#[test]
fn create_or_update_with_upsert_removes_nothing() {
    run(Case::create_or_update("update-upsert", "Upsert", NOTHING).hold());
}

#[test]
fn create_or_update_with_sync_removes_objects_and_no_fields() {
    run(Case::create_or_update("update-sync", "Sync", DELETED).hold());
}

#[test]
fn create_only_with_sync_changes_nothing_and_removes_objects() {
    run(Case::create_only("create-sync").hold());
}
