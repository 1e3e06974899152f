//! Switches of `applyBehavior`: after one to `Apply` nothing stays of what another behavior has sent, and it costs what
//! an object of Hive costs that is taken over.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::syncsets::requests::Requests;
use crate::syncsets::world::{Stage, run};

const MANAGED: &str = "hive.openshift.io/managed";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const HIVE: &str = "hive6-clustersync";

/// Once.
const TAKEN_OVER: &[&str] = &["get configmaps/site 200", "patch configmaps/site 200", "patch configmaps/site 200"];
const LOOKED_AT: &[&str] = &["get configmaps/site 200", "patch configmaps/site 200"];
const PATCHED: &[&str] = &["patch configmaps/site 200"];
const DELETED: &[&str] = &["get configmaps/site 200", "delete configmaps/site 200"];

/// A syncset with one object, which is sent in one behavior after another.
struct Switched {
    stage: Stage,
    maps: Api<ConfigMap>,
    requests: Requests,
    generation: u64,
}

impl Switched {
    async fn new(name: &'static str) -> Self {
        let stage = Stage::new(name).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let maps = stage.maps(plane).await;
        stage.at_rest().await;
        let requests = Requests::from_now(&stage, plane).await;
        Self { stage, maps, requests, generation: 0 }
    }

    /// Sends the object, and returns which requests that took.
    async fn sends(&mut self, behavior: &str, data: &Value) -> Vec<String> {
        let resources = json!([self.stage.config_map("site", data)]);
        self.wants(behavior, &resources).await
    }

    async fn wants(&mut self, behavior: &str, resources: &Value) -> Vec<String> {
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "applyBehavior": behavior,
            "resourceApplyMode": "Sync", "resources": resources});
        self.generation += 1;
        if self.generation == 1 {
            let document = json!({"namespace": self.stage.namespace, "name": "base", "spec": spec});
            self.stage.create("syncsets", &document).await;
        } else {
            self.stage.replace_spec("syncsets", "base", &spec).await;
        }
        self.stage.succeeds("west-1", "base", self.generation).await;
        self.requests.seen().await
    }

    async fn found(&self) -> ConfigMap {
        self.maps.get("site").await.unwrap()
    }

    async fn has(&self, data: &Value) {
        assert_eq!(json!(self.found().await.data), *data);
    }

    /// Who owns fields of the object, in which way.
    async fn managers(&self) -> Vec<String> {
        let entries = self.found().await.metadata.managed_fields.unwrap();
        let shown = |name: Option<String>| name.unwrap_or_default();
        let mut managers: Vec<String> =
            entries.into_iter().map(|entry| format!("{} {}", shown(entry.manager), shown(entry.operation))).collect();
        managers.sort_unstable();
        managers
    }

    /// Somebody creates the object, with or without Hive's marks.
    async fn existed(&self, manager: &str, label: bool) {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some("site".to_owned()),
                labels: label.then(|| [(MANAGED.to_owned(), "true".to_owned())].into()),
                annotations: Some([(LAST_APPLIED.to_owned(), "{}".to_owned())].into()),
                ..ObjectMeta::default()
            },
            data: Some([("theirs".to_owned(), "1".to_owned())].into()),
            ..ConfigMap::default()
        };
        let parameters = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
        self.maps.create(&parameters, &map).await.unwrap();
    }

    /// Somebody else gives it a field.
    async fn edited(&self) {
        let parameters = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };
        self.maps.patch("site", &parameters, &Patch::Merge(json!({"data": {"edited": "1"}}))).await.unwrap();
    }

    /// It is deleted when nobody wants it.
    async fn goes_when_dropped(mut self) {
        assert_eq!(self.wants("Apply", &json!([])).await, DELETED);
        assert!(self.maps.get_opt("site").await.unwrap().is_none());
    }

    /// It stays when nobody wants it.
    async fn stays_when_dropped(mut self) {
        let adopted = self.found().await.metadata.annotations.unwrap().remove("towline.dev/adopted");
        assert_eq!(adopted.as_deref(), Some("true"));
        assert!(self.wants("Apply", &json!([])).await.is_empty());
        assert!(self.maps.get_opt("site").await.unwrap().is_some());
    }
}

#[test]
fn a_switch_from_create_or_update_removes_what_is_no_longer_given() {
    run(async {
        let mut switched = Switched::new("switch-one-edit").await;
        switched.sends("CreateOrUpdate", &json!({"a": "1", "b": "1", "c": "1"})).await;
        switched.edited().await;
        // Dropped before, with and after the switch.
        assert_eq!(switched.sends("CreateOrUpdate", &json!({"a": "2", "b": "1"})).await, PATCHED);
        switched.has(&json!({"a": "2", "b": "1", "c": "1", "edited": "1"})).await;
        assert_eq!(switched.sends("Apply", &json!({"a": "2", "d": "1"})).await, TAKEN_OVER);
        switched.has(&json!({"a": "2", "d": "1", "edited": "1"})).await;
        assert_eq!(switched.managers().await, ["kubectl-edit Update", "towline Apply"]);
        assert_eq!(switched.sends("Apply", &json!({"a": "3"})).await, PATCHED);
        switched.has(&json!({"a": "3", "edited": "1"})).await;
        switched.stage.full_pass().await;
        assert_eq!(switched.requests.seen().await, ["get configmaps/site 200"]);
        switched.goes_when_dropped().await;
    });
}

#[test]
fn a_switch_and_an_edit_after_it_remove_the_same_and_so_does_a_switch_there_and_back() {
    run(async {
        let mut switched = Switched::new("switch-two-edits").await;
        let both = json!({"a": "1", "b": "1"});
        switched.sends("CreateOrUpdate", &both).await;
        assert_eq!(switched.sends("Apply", &both).await, TAKEN_OVER);
        switched.has(&both).await;
        assert_eq!(switched.sends("Apply", &json!({"a": "1"})).await, PATCHED);
        switched.has(&json!({"a": "1"})).await;
        // Nothing is removed as long as it is updated.
        assert_eq!(switched.sends("CreateOrUpdate", &json!({"e": "1", "f": "1"})).await, PATCHED);
        assert_eq!(switched.sends("CreateOrUpdate", &json!({"f": "2"})).await, PATCHED);
        switched.has(&json!({"a": "1", "e": "1", "f": "2"})).await;
        assert_eq!(switched.managers().await, ["towline Apply", "towline-update Update"]);
        assert_eq!(switched.sends("Apply", &json!({"f": "2"})).await, TAKEN_OVER);
        switched.has(&json!({"f": "2"})).await;
        assert_eq!(switched.managers().await, ["towline Apply"]);
        switched.goes_when_dropped().await;
    });
}

#[test]
fn an_object_of_hive_that_was_updated_first_is_taken_over_by_the_switch() {
    run(async {
        let mut switched = Switched::new("switch-hive").await;
        switched.existed(HIVE, true).await;
        switched.edited().await;
        assert_eq!(switched.sends("CreateOrUpdate", &json!({"a": "1", "b": "1"})).await, LOOKED_AT);
        switched.has(&json!({"a": "1", "b": "1", "edited": "1", "theirs": "1"})).await;
        assert_eq!(switched.sends("Apply", &json!({"b": "1"})).await, TAKEN_OVER);
        switched.has(&json!({"b": "1", "edited": "1"})).await;
        assert_eq!(switched.managers().await, ["kubectl-edit Update", "towline Apply"]);
        assert!(!switched.found().await.metadata.annotations.unwrap().contains_key(LAST_APPLIED));
        switched.goes_when_dropped().await;
    });
}

#[test]
fn what_somebody_has_applied_on_an_object_that_is_updated_stays_after_the_switch() {
    run(async {
        let mut switched = Switched::new("switch-kubectl").await;
        switched.sends("CreateOrUpdate", &json!({"a": "1", "b": "1"})).await;
        let parameters =
            PatchParams { field_manager: Some("kubectl-client-side-apply".to_owned()), ..PatchParams::default() };
        let applied = json!({"metadata": {"annotations": {LAST_APPLIED: "{}"}}, "data": {"theirs": "1"}});
        switched.maps.patch("site", &parameters, &Patch::Merge(applied)).await.unwrap();
        assert_eq!(switched.sends("Apply", &json!({"a": "1"})).await, TAKEN_OVER);
        switched.has(&json!({"a": "1", "theirs": "1"})).await;
        switched.goes_when_dropped().await;
    });
}

#[test]
fn what_create_only_has_created_is_taken_over_and_deleted_later() {
    run(async {
        let mut switched = Switched::new("switch-created").await;
        switched.sends("CreateOnly", &json!({"a": "1", "b": "1"})).await;
        assert_eq!(switched.sends("CreateOnly", &json!({"a": "2"})).await, ["create configmaps/site 409"]);
        assert_eq!(switched.sends("Apply", &json!({"a": "3"})).await, TAKEN_OVER);
        switched.has(&json!({"a": "3"})).await;
        switched.goes_when_dropped().await;
    });
}

#[test]
fn what_create_only_has_found_is_adopted_and_keeps_what_others_gave_it() {
    run(async {
        let mut switched = Switched::new("switch-existed").await;
        switched.existed("kubectl-client-side-apply", false).await;
        assert_eq!(switched.sends("CreateOnly", &json!({"a": "1"})).await, ["create configmaps/site 409"]);
        assert_eq!(switched.sends("Apply", &json!({"a": "1", "b": "1"})).await, LOOKED_AT);
        assert_eq!(switched.sends("Apply", &json!({"a": "1"})).await, PATCHED);
        switched.has(&json!({"a": "1", "theirs": "1"})).await;
        switched.stays_when_dropped().await;
    });
}

#[test]
fn of_an_adopted_object_a_switch_takes_over_what_was_sent_from_here() {
    run(async {
        let mut switched = Switched::new("switch-adopted").await;
        switched.existed("kubectl-client-side-apply", false).await;
        assert_eq!(switched.sends("CreateOrUpdate", &json!({"a": "1", "b": "1"})).await, LOOKED_AT);
        assert_eq!(switched.sends("Apply", &json!({"a": "1"})).await, TAKEN_OVER);
        switched.has(&json!({"a": "1", "theirs": "1"})).await;
        assert_eq!(switched.managers().await, ["kubectl-client-side-apply Update", "towline Apply"]);
        switched.stays_when_dropped().await;
    });
}
