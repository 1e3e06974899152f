//! Manifests as they are written for Hive and kubectl, and what is told where one can't be applied.

use std::path::Path;

use integration::users::ADMIN;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde_json::{Value, json};

use crate::world::{Stage, run};

fn file(name: &str, text: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("syncsets-{name}.yaml"));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn manifests_for_hive_are_applied_as_they_are_and_mean_what_kubectl_reads() {
    run(async {
        let stage = Stage::new("manifests").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let text = format!(
            r#"apiVersion: hive.openshift.io/v1
kind: SyncSetList
metadata: {{continue: "", resourceVersion: "7"}}
items:
- metadata: {{name: base, namespace: {0}, uid: 1-2}}
  spec:
    clusterDeploymentRefs: [{{name: west-1}}]
    applyBehavior: ""
    resourceApplyMode: ""
    resources:
    - apiVersion: apps/v1
      kind: Deployment
      metadata: {{name: modes, namespace: {0}}}
      spec:
        paused: yes
        selector: {{matchLabels: {{app: modes}}}}
        template:
          metadata: {{labels: {{app: modes}}}}
          spec:
            securityContext: {{fsGroup: 0100, runAsUser: 1_000}}
            containers: [{{name: a, image: a:1}}]
            volumes: [{{name: keys, secret: {{secretName: keys, defaultMode: 0400}}}}]
    patches:
    - apiVersion: apps/v1
      kind: Deployment
      name: modes
      namespace: {0}
      applyMode: AlwaysApply
      patchType: ""
      patch: |-
        spec: {{template: {{spec: {{terminationGracePeriodSeconds: 0x1F}}}}}}
"#,
            stage.namespace
        );
        let path = file("octal", &text);
        let told = stage.command(&["apply", "-f", &path]).await;
        assert_eq!(told.trim(), format!("SyncSet/{}/base created", stage.namespace));
        stage.succeeds("west-1", "base", 1).await;
        let all: Api<Deployment> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        let found = json!(all.get("modes").await.unwrap());
        let pod = &found["spec"]["template"]["spec"];
        let numbers = [&pod["volumes"][0]["secret"]["defaultMode"], &pod["securityContext"]["fsGroup"]];
        assert_eq!(numbers, [&json!(0o400), &json!(0o100)], "{found}");
        let numbers = [&pod["securityContext"]["runAsUser"], &pod["terminationGracePeriodSeconds"]];
        assert_eq!(numbers, [&json!(1_000), &json!(31)], "{found}");
        assert_eq!(found["spec"]["paused"], true);
        // Applied again as it is, it is the same document.
        let told = stage.command(&["apply", "-f", &path]).await;
        assert_eq!(told.trim(), format!("SyncSet/{}/base unchanged", stage.namespace));
    });
}

#[test]
fn a_manifest_that_can_not_work_is_refused_when_it_is_written_with_the_reason() {
    run(async {
        let stage = Stage::new("refused-manifests").await;
        let mut owned = stage.config_map("owned", &json!({"a": "1"}));
        owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "7b1c2d3e-0000-0000-0000-000000000000"}]);
        let mut labelled = stage.config_map("labelled", &json!({"a": "1"}));
        labelled["metadata"]["labels"] = json!({"version": 1.1});
        let once = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "namespace": "b", "patch": "{}", "applyMode": "ApplyOnce"});
        let syncset = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "wrong",
            "spec": {"resources": [owned, labelled], "patches": [once]}});
        let told = stage.refused(&["apply", "-f", &file("wrong", &syncset.to_string())]).await;
        for expected in [
            "/spec/resources/0/metadata/ownerReferences",
            "garbage collector",
            "/spec/resources/1/metadata/labels/version",
            "write the value in quotes",
            "/spec/patches/0/applyMode",
            "ApplyOnce",
        ] {
            assert!(told.contains(expected), "no {expected} in {told}");
        }
        let template = "apiVersion: template.openshift.io/v1\nkind: Template\nobjects: []\n";
        let told = stage.refused(&["apply", "-f", &file("template", template)]).await;
        assert!(told.contains("oc process"), "{told}");
    });
}

#[test]
fn a_refused_change_is_told_with_its_reason_and_without_values() {
    run(async {
        let stage = Stage::new("refused-changes").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let job = |value: &str, annotations: Value| {
            json!({"apiVersion": "batch/v1", "kind": "Job",
                "metadata": {"name": "once", "namespace": stage.namespace, "annotations": annotations},
                "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": [
                    {"name": "a", "image": "a:1", "env": [{"name": "A", "value": value.repeat(300)}]}]}}}})
        };
        stage.syncset("base", "Sync", &[job("first", json!({}))]).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.wants("base", &[job("canary", json!({}))]).await;
        let is_failing = |status: &Value| status["syncSets"][0]["result"] == "Failure";
        let status = stage.status("west-1", "the failure of base", is_failing).await;
        let message = status["syncSets"][0]["failureMessage"].as_str().unwrap();
        assert!(message.ends_with("field is immutable") && message.contains("spec.template"), "{message}");
        assert!(!status.to_string().contains("canary") && !status.to_string().contains("firstfirst"), "{status}");
        let object = format!("Job/{}/once", stage.namespace);
        let told = stage.explained("west-1", &object).await;
        assert!(told.contains("present; its last change has not been sent"), "{told}");

        // A resource that may be created again is, and `diff` says so beforehand.
        let recreated = [job("canary", json!({"towline.dev/recreate": "true"}))];
        let spec =
            json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync", "resources": recreated});
        let document = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "base", "spec": spec});
        let told = stage.compared(&document).await;
        assert!(told.contains("it is deleted and created again") && !told.contains("failed"), "{told}");
        stage.wants("base", &recreated).await;
        stage.succeeds("west-1", "base", 3).await;
        let jobs: Api<k8s_openapi::api::batch::v1::Job> =
            Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        let found = json!(jobs.get("once").await.unwrap());
        let value = found.pointer("/spec/template/spec/containers/0/env/0/value").and_then(Value::as_str);
        assert!(value.is_some_and(|value| value.starts_with("canary")), "{found}");
    });
}
