//! No value of a secret or of a kubeconfig is anywhere but where it belongs, however much a replica logs and whatever goes wrong.

use integration::canary::spellings;
use integration::hub::Request;
use integration::users::ADMIN;
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::syncsets::attackers::{PLAIN, base64};
use crate::syncsets::script::{Says, Script, TOKEN};
use crate::syncsets::world::{Stage, run};

const MAPPED: &str = "canary-mapped-8b1d-of-a-document";
const CHANGED: &str = "canary-changed-8b1d-of-a-document";
const STRING: &str = "canary-string-8b1d-of-a-document";
const RESOURCE: &str = "canary-resource-8b1d-of-a-syncset";
const PATCHED: &str = "canary-patched-8b1d-of-a-syncset";
/// The tables in which there is something in the end.
const FILLED: [&str; 7] = [
    "towline_applied",
    "towline_history",
    "towline_patched",
    "towline_result",
    "towline_revision",
    "towline_rollout",
    "towline_turn",
];

/// A syncset whose health is read, with an object beside the copies about which a rule decides, and a rollout that stays under way.
fn in_waves(stage: &Stage, mappings: &Value) -> Value {
    let rule = json!({"group": "", "kind": "ConfigMap", "current": "metadata.name == 'beside'"});
    let beside = stage.config_map("beside", &json!({}));
    let wave = json!({"name": "all", "percent": 100, "pause": true});
    json!({"secretMappings": mappings, "resources": [beside], "health": {"rules": [rule]}, "rollout": {"waves": [wave]}})
}

async fn refuses_a_rule_for_secrets(stage: &Stage, mapping: Value) {
    let rule = json!({"group": "", "kind": "Secret", "current": "metadata.name == 'mapped'"});
    let spec = json!({"secretMappings": [mapping], "health": {"rules": [rule]}});
    let body = json!({"namespace": stage.namespace, "name": "values", "spec": spec});
    let refused = stage.send(&Request::post("/v1/syncsets", &body)).await;
    let text = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(refused.status == 422 && text.contains("rules"), "{text}");
}

/// Of values as they are, and in base64.
async fn digests(stage: &Stage, values: &[&str]) -> Vec<String> {
    let mut digests = Vec::new();
    for value in values.iter().flat_map(|value| [(*value).to_owned(), base64(value)]) {
        let text = "select encode(sha256(convert_to($1, 'UTF8')), 'hex')";
        digests.push(stage.sql.query_one(text, &[&value]).await.unwrap().get::<_, String>(0));
    }
    digests
}

#[test]
fn no_log_status_event_or_stored_row_holds_a_value_of_a_secret_or_kubeconfig() {
    run(async {
        let section = format!("{PLAIN}\n\n[daemon.log]\nfilter = \"trace\"");
        let stage = Stage::with("secrecy", &section, 1).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let token = stage.kubeconfig(plane, plane.address())["users"][0]["user"]["token"].as_str().unwrap().to_owned();
        // A cluster that refuses everything, with the token in its own words.
        let server = Script::start(|_| {
            let status =
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "message": "boom"});
            Says::Body(500, status.to_string())
        })
        .await;
        let refusing =
            json!({"namespace": stage.namespace, "name": "west-2", "kubeconfig": server.kubeconfig().to_string()});
        stage.create("clusters", &refusing).await;

        for (name, value) in [("source", MAPPED), ("strings", STRING)] {
            let source = json!({"namespace": stage.namespace, "name": name, "data": {"value": base64(value)}});
            stage.create("secrets", &source).await;
        }
        let secret = |name: &str, fields: Value| {
            let mut secret =
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": stage.namespace}});
            secret.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            secret
        };
        let create = async |name: &str, fields: Value| {
            let mut spec =
                json!({"clusterDeploymentRefs": [{"name": "west-1"}, {"name": "west-2"}], "resourceApplyMode": "Sync"});
            spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
        };
        let mapping = |source: &str, name: &str| json!({"sourceRef": {"name": source}, "targetRef": {"name": name, "namespace": stage.namespace}});
        create("mapped", in_waves(&stage, &json!([mapping("source", "mapped")]))).await;
        create("string", json!({"secretMappings": [mapping("strings", "string")]})).await;
        stage.succeeds("west-1", "mapped", 1).await;
        stage.succeeds("west-1", "string", 1).await;
        // A syncset is stored, logged and distributed as it is: values of a Secret are refused there, and not repeated.
        let patch_of = |patch: &Value| {
            json!({"apiVersion": "v1", "kind": "Secret", "name": "string", "namespace": stage.namespace,
                "patchType": "merge", "patch": patch.to_string()})
        };
        create("patched", json!({"patches": [patch_of(&json!({"metadata": {"labels": {"a": "b"}}}))]})).await;
        stage.succeeds("west-1", "patched", 1).await;
        let patch = patch_of(&json!({"stringData": {"patched": PATCHED}}));
        let with_value = secret("typed", json!({"data": {"value": base64(RESOURCE)}}));
        let mut said = String::new();
        refuses_a_rule_for_secrets(&stage, mapping("source", "mapped")).await;
        for fields in [json!({"resources": [with_value]}), json!({"patches": [patch]})] {
            let body = json!({"namespace": stage.namespace, "name": "values", "spec": fields});
            let refused = stage.send(&Request::post("/v1/syncsets", &body)).await;
            let text = String::from_utf8_lossy(&refused.body).into_owned();
            assert!(refused.status == 422 && text.contains("secretMappings"), "{text}");
            said += &text;
        }
        let entry = |status: &Value, name: &str| {
            let all = status["syncSets"].as_array().into_iter().flatten();
            all.into_iter().find(|entry| entry["name"] == name).cloned().unwrap_or_default()
        };
        let is_read = |status: &Value| entry(status, "mapped")["health"]["state"] == "Current";
        stage.status("west-1", "the health beside a copy", is_read).await;
        // A value that changes, a type that can't be changed, a full pass, and what is read of it.
        stage.change(&stage.path("secrets", "source"), &json!({"data": {"value": base64(CHANGED)}})).await;
        stage.at_rest().await;
        let secrets: Api<Secret> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        let held = async |name: &str, key: &str| {
            let data = secrets.get(name).await.unwrap().data.unwrap_or_default();
            data.get(key).map(|value| String::from_utf8(value.0.clone()).unwrap())
        };
        assert_eq!(held("mapped", "value").await.as_deref(), Some(CHANGED), "it is where it belongs");
        assert_eq!(held("string", "value").await.as_deref(), Some(STRING));
        stage.change(&stage.path("secrets", "source"), &json!({"type": "example.com/other"})).await;
        let refused = |status: &Value| entry(status, "mapped")["result"] == "Failure";
        stage.status("west-1", "the type to be refused", refused).await;
        stage.full_pass().await;
        said += &stage.explained("west-1", "Secret/secrecy/string").await;
        said += &stage.explained("west-1", "Secret/secrecy/mapped").await;
        said += &stage.command(&["failures"]).await;
        let spec =
            json!({"clusterDeploymentRefs": [{"name": "west-1"}], "secretMappings": [mapping("source", "string")]});
        let proposed = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "string", "spec": spec});
        said += &stage.compared(&proposed).await;
        stage.remove(&stage.path("syncsets", "string")).await;
        stage.status("west-1", "the end of one", |status| entry(status, "string").is_null()).await;
        let events: Api<Event> = Api::all(plane.client(ADMIN).await.unwrap());
        let events = events.list(&ListParams::default()).await.unwrap().items;
        said += &serde_json::to_string(&events).unwrap();

        let values = [MAPPED, CHANGED, STRING, RESOURCE, PATCHED, TOKEN, token.as_str()];
        let canaries: Vec<String> = values.iter().flat_map(|value| spellings(value)).collect();
        // Nor a digest of one, by which it could be guessed.
        let digests = digests(&stage, &values).await;
        let canaries: Vec<&str> = canaries.iter().chain(&digests).map(String::as_str).collect();
        for canary in &canaries {
            assert!(!said.contains(canary), "{canary} in {said}");
        }
        stage.never_shows(&canaries).await;
        assert!(stage.log().contains("TRACE"), "the log has everything");
        for table in FILLED {
            let rows: i64 = stage.sql.query_one(&format!("select count(*) from {table}"), &[]).await.unwrap().get(0);
            assert!(rows > 0, "{table} is empty");
        }
    });
}
