//! Syncsets that fail: what is sent before and after the element that fails, and how it is told.

use integration::users::ADMIN;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::syncsets::world::{SYNCSETS, Stage, condition, run};

/// Elements of each list.
const EACH: usize = 3;

/// The syncset of which this element fails, counted over resources, secrets and patches.
fn failing(stage: &Stage, position: usize) -> Value {
    let namespace = |at: usize| if at == position { "positions-missing" } else { stage.namespace };
    let of = |kind: &str, index: usize| format!("{kind}-{position}-{index}");
    let resources: Vec<Value> = (0..EACH)
        .map(|index| {
            let metadata = json!({"name": of("map", index), "namespace": namespace(index)});
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        })
        .collect();
    let mappings: Vec<Value> = (0..EACH)
        .map(|index| {
            let target = json!({"name": of("secret", index), "namespace": namespace(EACH + index)});
            json!({"sourceRef": {"name": "source"}, "targetRef": target})
        })
        .collect();
    let patches: Vec<Value> = (0..EACH)
        .map(|index| {
            let patch = json!({"data": {of("patch", index): "1"}}).to_string();
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "target", "namespace": namespace(2 * EACH + index),
                "patchType": "merge", "patch": patch})
        })
        .collect();
    json!({"namespace": stage.namespace, "name": format!("at-{position}"), "spec": {
        "clusterDeploymentRefs": [{"name": "west-1"}], "resources": resources, "secretMappings": mappings,
        "patches": patches}})
}

#[test]
fn a_syncset_ends_at_its_first_error_and_the_others_go_on() {
    run(async {
        let stage = Stage::new("positions").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let client = plane.client(ADMIN).await.unwrap();
        let (maps, secrets): (Api<ConfigMap>, Api<Secret>) =
            (Api::namespaced(client.clone(), stage.namespace), Api::namespaced(client.clone(), stage.namespace));
        let target: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "target"}})).unwrap();
        maps.create(&PostParams::default(), &target).await.unwrap();
        stage.create("secrets", &json!({"namespace": stage.namespace, "name": "source", "data": {"a": "MQ=="}})).await;
        // All in one pass.
        stage.pause(true).await;
        for position in 0..3 * EACH {
            stage.create("syncsets", &failing(&stage, position)).await;
        }
        stage.syncset("good", "Upsert", &[stage.config_map("good", &json!({}))]).await;
        stage.pause(false).await;
        let status = stage
            .status("west-1", "all results", |status| status["syncSets"].as_array().is_some_and(|all| all.len() == 10))
            .await;
        stage.at_rest().await;

        let entries = status["syncSets"].as_array().unwrap();
        for (position, entry) in entries.iter().take(3 * EACH).enumerate() {
            let (noun, reason, start) = match position / EACH {
                0 => ("resource", "NamespaceMissing", "namespaces \"positions-missing\" not found"),
                1 => ("secret", "NamespaceMissing", ""),
                _ => ("patch", "PatchTargetMissing", ""),
            };
            assert_eq!((&entry["name"], &entry["result"]), (&json!(format!("at-{position}")), &json!("Failure")));
            assert_eq!(entry["reason"], reason, "{entry}");
            let message = entry["failureMessage"].as_str().unwrap();
            let expected = format!("failed to apply {noun} {} (", position % EACH);
            assert!(message.starts_with(&expected) && message.contains(&format!("): {start}")), "{message}");
            assert!(entry["firstSuccessTime"].is_null() && entry["observedGeneration"] == 1, "{entry}");
        }
        assert_eq!(entries[9]["result"], "Success", "{status}");
        let failed = condition(&status, "Failed").unwrap();
        assert_eq!((&failed["status"], &failed["reason"]), (&json!("True"), &json!("Failure")), "{failed}");
        let all = "SyncSets at-0, at-1, at-2, at-3, at-4, at-5, at-6, at-7, at-8 are failing";
        assert_eq!(failed["message"], all, "{failed}");

        // What comes before is there, what comes after is not.
        let names = |names: Vec<String>| -> Vec<String> {
            names.into_iter().filter(|name| name.starts_with("map-") || name.starts_with("secret-")).collect()
        };
        let parameters = ListParams::default();
        let found = maps.list(&parameters).await.unwrap().items.iter().map(ResourceExt::name_any).collect();
        let before = |kind: &str, first: usize| -> Vec<String> {
            let of = |position: usize| {
                let count = position.saturating_sub(first).min(EACH);
                (0..count).map(move |index| format!("{kind}-{position}-{index}"))
            };
            (0..3 * EACH).flat_map(of).collect()
        };
        assert_eq!(names(found), before("map", 0));
        let found = secrets.list(&parameters).await.unwrap().items.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names(found), before("secret", EACH));
        let patched: Vec<String> = maps.get("target").await.unwrap().data.unwrap().into_keys().collect();
        assert_eq!(patched, before("patch", 2 * EACH));

        // A failure that stays the same is not written again.
        let version = async || {
            let found = stage.get(&stage.path("clustersyncs", "west-1")).await;
            found["resourceVersion"].as_str().unwrap().to_owned()
        };
        let before = version().await;
        stage.full_pass().await;
        stage.full_pass().await;
        assert_eq!(version().await, before);

        // With the namespace and the target it succeeds by itself.
        let namespace = serde_json::from_value(json!({"metadata": {"name": "positions-missing"}})).unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let there: Api<ConfigMap> = Api::namespaced(client, "positions-missing");
        there.create(&PostParams::default(), &target).await.unwrap();
        let succeeded = |status: &Value| condition(status, "Failed").is_some_and(|failed| failed["status"] == "False");
        let status = stage.status("west-1", "success of all", succeeded).await;
        let failed = condition(&status, "Failed").unwrap();
        assert_eq!(failed["message"], "All SyncSets and SelectorSyncSets have been applied to the cluster");
        assert_eq!(failed["reason"], "Success");
        let entries = status["syncSets"].as_array().unwrap();
        assert!(
            entries.iter().all(|entry| entry["firstSuccessTime"].is_string() && entry["reason"].is_null()),
            "{status}"
        );
    });
}

/// What a pass that yields has tried in vain, the next one does not try again; so that must have been stored.
#[test]
fn a_failure_that_could_not_be_stored_when_its_pass_yielded_is_found_again_and_told() {
    // Each time the failure is to be stored, once it is refused.
    const REFUSE: &str = "create sequence refusals; grant usage on sequence refusals to public; \
         create function refuse() returns trigger language plpgsql as $$ begin \
           if nextval('refusals') = 1 then raise exception 'the test refuses the failure'; end if; return new; end $$; \
         create trigger refuse before insert or update on towline_result for each row \
           when (new.name = 'b' and new.reason is not null) execute function refuse()";
    run(async {
        let stage = Stage::with("unstored", SYNCSETS, 1).await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        stage.sql.batch_execute(REFUSE).await.unwrap();
        let maps = |prefix: &str, count: usize| -> Vec<Value> {
            (0..count).map(|number| stage.config_map(&format!("{prefix}-{number:03}"), &json!({}))).collect()
        };
        // Each object is looked at and applied, so that the 500 requests of the first pass end with some of the last syncset.
        stage.pause(true).await;
        stage.syncset("a", "Upsert", &maps("a", 230)).await;
        let nowhere = json!({"name": "nowhere", "namespace": "unstored-missing"});
        stage.syncset("b", "Upsert", &[json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": nowhere})]).await;
        stage.syncset("c", "Upsert", &maps("c", 30)).await;
        stage.pause(false).await;
        let entry = |status: &Value, name: &str, result: &str| {
            let entries = status["syncSets"].as_array().into_iter().flatten();
            entries.into_iter().any(|entry| entry["name"] == name && entry["result"] == result)
        };
        let told = |status: &Value| {
            entry(status, "a", "Success") && entry(status, "b", "Failure") && entry(status, "c", "Success")
        };
        stage.status("west-1", "what came of all", told).await;
        let asked: i64 = stage.sql.query_one("select last_value from refusals", &[]).await.unwrap().get(0);
        assert!(asked > 1, "it was refused once, and stored then");
        let client = plane.client(ADMIN).await.unwrap();
        let there = Api::<ConfigMap>::namespaced(client, stage.namespace).list(&ListParams::default()).await.unwrap();
        assert_eq!(there.items.iter().filter(|map| map.name_any() != "kube-root-ca.crt").count(), 260);
    });
}

#[test]
fn the_condition_names_all_that_fail_and_the_first_success_stays() {
    run(async {
        let stage = Stage::new("wording").await;
        stage.register("west-1", &json!({}), 0).await;
        stage.status("west-1", "the first pass", |status| status["firstSuccessTime"].is_string()).await;
        let first = stage.get(&stage.path("clustersyncs", "west-1")).await["status"]["firstSuccessTime"].clone();
        let missing = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "wording-missing"}});
        let message = async |message: &str| {
            let told = |status: &Value| condition(status, "Failed").is_some_and(|failed| failed["message"] == message);
            let status = stage.status("west-1", message, told).await;
            assert_eq!(condition(&status, "Failed").unwrap()["status"], "True", "{status}");
            assert_eq!(status["firstSuccessTime"], first, "{status}");
        };
        let selector = async |name: &str| {
            let spec = json!({"clusterDeploymentSelector": {}, "resources": [missing(name)]});
            stage.create("selectorsyncsets", &json!({"name": name, "spec": spec})).await;
        };
        stage.syncset("b", "Upsert", &[missing("b")]).await;
        message("SyncSet b is failing").await;
        stage.syncset("a", "Upsert", &[missing("a")]).await;
        message("SyncSets a, b are failing").await;
        selector("c").await;
        message("SyncSets a, b and SelectorSyncSet c are failing").await;
        stage.remove(&stage.path("syncsets", "a")).await;
        stage.remove(&stage.path("syncsets", "b")).await;
        message("SelectorSyncSet c is failing").await;
        selector("d").await;
        message("SelectorSyncSets c, d are failing").await;
    });
}

/// The table of reasons, as far as an API server decides.
#[test]
fn a_failure_has_its_reason() {
    run(async {
        let stage = Stage::new("reasons").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let client = plane.client(ADMIN).await.unwrap();
        let in_namespace = |resource: Value| {
            let mut resource = resource;
            resource["metadata"]["namespace"] = json!(stage.namespace);
            resource
        };
        let service =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "typo"}, "spec": {"prots": []}});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "empty"}, "spec": {"replicas": 1}});
        let unknown = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
        for (name, resource, reason) in [
            ("schema", in_namespace(service), "SchemaMismatch"),
            ("invalid", in_namespace(deployment), "Rejected"),
            ("kind", in_namespace(unknown), "KindNotServed"),
        ] {
            stage.syncset(name, "Upsert", &[resource]).await;
            let failed = |status: &Value| {
                let entries = status["syncSets"].as_array();
                entries.is_some_and(|entries| {
                    entries.iter().any(|entry| entry["name"] == name && entry["result"] == "Failure")
                })
            };
            let status = stage.status("west-1", name, failed).await;
            let entry =
                status["syncSets"].as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap().clone();
            assert_eq!(entry["reason"], reason, "{entry}");
            let message = entry["failureMessage"].as_str().unwrap();
            assert!(message.starts_with("failed to apply resource 0"), "{message}");
            if reason == "SchemaMismatch" {
                assert!(
                    message.contains("prots") && message.ends_with("; remove it, or use CreateOrUpdate"),
                    "{message}"
                );
            }
            stage.remove(&stage.path("syncsets", name)).await;
        }
        // An object that is on its way out.
        let maps: Api<ConfigMap> = Api::namespaced(client, stage.namespace);
        let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/wait"]}});
        maps.create(&PostParams::default(), &serde_json::from_value(held).unwrap()).await.unwrap();
        maps.delete("held", &kube::api::DeleteParams::default()).await.unwrap();
        stage.syncset("terminating", "Upsert", &[stage.config_map("held", &json!({"a": "1"}))]).await;
        let failed = |status: &Value| {
            let entries = status["syncSets"].as_array();
            entries.is_some_and(|entries| entries.iter().any(|entry| entry["reason"] == "Terminating"))
        };
        stage.status("west-1", "the terminating object", failed).await;
        let free = json!({"metadata": {"finalizers": null}});
        let parameters = kube::api::PatchParams::default();
        maps.patch("held", &parameters, &kube::api::Patch::Merge(&free)).await.unwrap();
        stage.has(plane, &[("held", json!({"a": "1"}))]).await;
    });
}
