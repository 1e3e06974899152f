//! The status: the remote is told before the local object is touched.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::rules_world::*;

/// Makes the hub refuse what the daemon writes to databases in one namespace, and waits until it does.
async fn refuse(section: &Place, suffix: &str, resource: &str) -> String {
    let client: Client = section.hub.clone();
    let name = format!("refuse-{}", section.name);
    let namespace = section.namespace(suffix);
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["demo.towline.dev"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": [resource],
            }]},
            "matchConditions": [
                {"name": "here", "expression": format!("object.metadata.namespace == '{namespace}'")},
                {"name": "daemon", "expression": "request.userInfo.username in ['towline', 'edge-controller']"},
            ],
            "validations": [{"expression": "false", "message": "the hub is in no mood"}],
        },
    }))
    .unwrap();
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &policy).await.unwrap();
    Api::all(client).create(&PostParams::default(), &binding).await.unwrap();
    name
}

/// Waits until a write of somebody to whom the same applies fails with this text.
async fn fails(section: &Place, suffix: &str, name: &str, status: bool, text: &str) {
    let client = section.world.hub.client(integration::users::EDGE_CONTROLLER).await.unwrap();
    let api: Api<kube::core::DynamicObject> = Api::namespaced_with(client, &section.namespace(suffix), &section.kind);
    integration::eventually(format!("the hub to say {text:?}"), LIMIT, async || {
        let number = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let params = PatchParams::default();
        let answer = if status {
            let patch = Patch::Merge(json!({"status": {"message": number.to_string()}}));
            api.patch_status(name, &params, &patch).await
        } else {
            let patch = Patch::Merge(json!({"metadata": {"labels": {"try": number.to_string()}}}));
            api.patch(name, &params, &patch).await
        };
        match answer {
            Err(kube::Error::Api(status)) if status.message.contains(text) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
}

async fn allow(section: &Place, name: &str) {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(section.hub.clone());
    bindings.delete(name, &DeleteParams::default()).await.unwrap();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(section.hub.clone());
    policies.delete(name, &DeleteParams::default()).await.unwrap();
}

fn failing(report: &Value) -> bool {
    report["objects"]["failing"] == json!(1)
}

#[test]
fn nothing_is_made_before_the_finalizer_is_on_and_no_spec_goes_down_before_the_status_is_told_unless_it_is_refused() {
    run(async {
        let section = Section::start("told-first", databases(), "").await;
        nothing_is_made_before_the_finalizer_is_on(&section).await;
        no_spec_goes_down_before_the_status_is_told(&section).await;
        a_status_that_is_refused_holds_neither_the_spec_nor_the_deletion(&section).await;
    });
}

async fn nothing_is_made_before_the_finalizer_is_on(section: &Section) {
    section.make_remote_namespace("a").await;
    let policy = refuse(section, "a", "databases").await;
    // One that is no concern of the section's, so that the refusal can be seen.
    let paused = json!({"metadata": {"annotations": {mark("paused"): "true"}}, "spec": {"engine": "probe-1"}});
    section.make_remote("a", "probe", &paused).await;
    fails(section, "a", "probe", false, "no mood").await;
    section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
    section.report_has("a failing finalizer", failing).await;
    assert!(section.local("a").get_opt("orders").await.unwrap().is_none());
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(section.edge.clone());
    assert!(namespaces.get_opt(&section.namespace("a")).await.unwrap().is_none());
    allow(section, &policy).await;
    section.local_has("a", "orders", |_| true).await;
    section.in_step().await;
}

/// Makes the hub unable to write the status of databases in one namespace: it has to ask a webhook that does not answer.
async fn break_status(section: &Place, suffix: &str) -> String {
    let name = format!("broken-{}", section.name);
    let webhook: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": name},
        "webhooks": [{
            "name": "broken.demo.towline.dev",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": section.namespace(suffix)}},
            "rules": [{
                "apiGroups": ["demo.towline.dev"], "apiVersions": ["v1"], "operations": ["UPDATE"],
                "resources": ["databases/status"],
            }],
        }],
    }))
    .unwrap();
    Api::all(section.hub.clone()).create(&PostParams::default(), &webhook).await.unwrap();
    name
}

async fn no_spec_goes_down_before_the_status_is_told(section: &Section) {
    section.make_remote_namespace("b").await;
    section.make_remote("b", "orders", &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
    section.in_step().await;
    let webhook = break_status(section, "b").await;
    fails(section, "b", "orders", true, "failed calling webhook").await;
    section.patch_local_status("b", "orders", &json!({"phase": "Ready"})).await;
    section.report_has("a failing status", failing).await;
    section.patch_remote("b", "orders", &json!({"spec": {"storage": "2Gi"}})).await;
    section.quiet().await;
    let local = section.local_has("b", "orders", |_| true).await;
    assert_eq!(local.data["spec"]["storage"], json!("1Gi"));
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(section.hub.clone());
    webhooks.delete(&webhook, &DeleteParams::default()).await.unwrap();
    section.in_step().await;
    section.event("b", "orders", "Synced").await;
}

/// Waits until the one object that is not in step has a cause with all of these.
async fn explained(section: &Section, parts: &[&str], next_step: &str) {
    section
        .report_has(&format!("{parts:?} → {next_step}"), |report| {
            let listed = report["not_in_step"].as_array().cloned().unwrap_or_default();
            let [object] = &listed[..] else { return false };
            let cause = object["cause"].as_str().unwrap_or_default();
            parts.iter().all(|part| cause.contains(part)) && object["next_step"] == next_step
        })
        .await;
}

#[test]
fn a_status_that_the_remote_refuses_does_not_hold_the_spec_and_both_causes_are_shown() {
    run(async {
        let section = Section::start("status-refused", widgets(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "gear", &json!({"spec": {"size": 1}})).await;
        section.local_has("a", "gear", |_| true).await;
        // The schema of the hub does not know this mood.
        section.patch_local_status("a", "gear", &json!({"mood": "degraded"})).await;
        explained(&section, &["status.mood"], "check why hub rejects it").await;
        let note = section.event("a", "gear", "SyncFailed").await;
        assert!(note.contains("write_remote_status") && note.contains("status.mood"), "{note}");
        section.patch_remote("a", "gear", &json!({"spec": {"size": 2}})).await;
        section.local_has("a", "gear", |local| local.data["spec"]["size"] == 2).await;
        // The edge takes no size above ten.
        section.patch_remote("a", "gear", &json!({"spec": {"size": 11}})).await;
        let both = ["spec.size", "write_remote_status", "status.mood"];
        let next_step =
            "change it on hub, or delete it on edge if the field can't change there; check why hub rejects it";
        explained(&section, &both, next_step).await;
        section.report_has("both failures", failing).await;
        section.patch_remote("a", "gear", &json!({"spec": {"size": 3}})).await;
        section.local_has("a", "gear", |local| local.data["spec"]["size"] == 3).await;
        explained(&section, &["status.mood"], "check why hub rejects it").await;
        section.patch_local_status("a", "gear", &json!({"mood": "fine"})).await;
        section.remote_has("a", "gear", |remote| remote.data["status"]["mood"] == "fine").await;
        section.report_has("no failure", |report| report["objects"]["failing"] == json!(0)).await;
        section.event("a", "gear", "Synced").await;
    });
}

async fn a_status_that_is_refused_holds_neither_the_spec_nor_the_deletion(section: &Section) {
    section.make_remote_namespace("c").await;
    section.make_remote("c", "orders", &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
    section.in_step().await;
    let policy = refuse(section, "c", "databases/status").await;
    fails(section, "c", "orders", true, "no mood").await;
    section.patch_local_status("c", "orders", &json!({"phase": "Ready"})).await;
    section.report_has("a failing status", failing).await;
    section.patch_remote("c", "orders", &json!({"spec": {"storage": "2Gi"}})).await;
    section.local_has("c", "orders", |local| local.data["spec"]["storage"] == "2Gi").await;
    let note = section.event("c", "orders", "SyncFailed").await;
    assert!(note.contains("write_remote_status") && note.contains("no mood"), "{note}");
    section.delete_remote("c", "orders").await;
    section.remote_gone("c", "orders").await;
    section.local_gone("c", "orders").await;
    allow(section, &policy).await;
}

#[test]
fn the_remote_status_equals_the_local_one_removed_fields_included() {
    run(async {
        let section = Place::shared("status-equal", databases()).await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.in_step().await;
        let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"});
        section
            .patch_local_status("a", "orders", &json!({"phase": "Ready", "endpoint": "x", "conditions": [condition]}))
            .await;
        section.in_step().await;
        section.patch_local_status("a", "orders", &json!({"endpoint": null, "conditions": []})).await;
        section.in_step().await;
        let remote = section.remote_has("a", "orders", |_| true).await;
        assert_eq!(remote.data["status"], json!({"phase": "Ready", "conditions": []}));
        // Drift on the remote is no truth.
        let drift = Patch::Merge(json!({"status": {"phase": "Failed", "message": "somebody on the hub"}}));
        section.remote("a").patch_status("orders", &PatchParams::default(), &drift).await.unwrap();
        section.in_step().await;
        // And the whole status goes, where it goes.
        let held = section.local_has("a", "orders", |_| true).await;
        let mut whole = serde_json::to_value(&held).unwrap();
        whole.as_object_mut().unwrap().remove("status");
        let without = serde_json::from_value(whole).unwrap();
        section.local("a").replace_status("orders", &PostParams::default(), &without).await.unwrap();
        section.remote_has("a", "orders", |remote| remote.data.get("status").is_none()).await;
        assert_eq!(held.name_any(), "orders");
    });
}

#[test]
fn a_status_that_the_remote_prunes_and_defaults_settles() {
    run(async {
        let mut section = Section::start("status-pruned", widgets(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "gear", &json!({"spec": {"size": 1}})).await;
        section.local_has("a", "gear", |_| true).await;
        let write = async |section: &Section, phase: &str| {
            section.patch_local_status("a", "gear", &json!({"phase": phase, "detail": phase})).await;
            let expected = json!({"phase": phase, "defaulted": "by-the-hub"});
            section.remote_has("a", "gear", |remote| remote.data.get("status") == Some(&expected)).await;
        };
        write(&section, "one").await;
        section.quiet().await;
        let since = section.mark().await;
        write(&section, "two").await;
        section.patch_local("a", "gear", &json!({"metadata": {"labels": {"touched": "yes"}}})).await;
        section.quiet().await;
        let once = (counts([("patch widgets/status", 1)]), counts([]));
        assert_eq!(section.counted("a", since).await, once);
        section.towline.kill9().await.unwrap();
        let since = section.mark().await;
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        section.quiet().await;
        // What the last process knew is gone: it is written once more, and that changes nothing.
        assert_eq!(section.counted("a", since).await, once);
    });
}
