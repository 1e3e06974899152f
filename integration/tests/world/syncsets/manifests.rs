//! Manifests as they are written for Hive and kubectl, and what is told where one can't be applied.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use integration::eventually;
use integration::users::ADMIN;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::syncsets::attackers::STATE;
use crate::syncsets::world::{LIMIT, SYNCSETS, Stage, run};

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

/// An object of an edge by its path, if there is one.
async fn live(client: &Client, path: &str) -> Option<Value> {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    match client.request::<Value>(request).await {
        Ok(found) => Some(found),
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => panic!("{path}: {error}"),
    }
}

/// The manifests in the folder `hive`, which use what the API of Hive documents for syncsets. Each is applied as it is, succeeds, and the
/// cluster has what it says.
#[test]
fn the_fields_that_hive_documents_do_what_they_say() {
    run(async {
        let stage = Stage::new("hive-manifests").await;
        let plane = stage.register("west-1", &json!({"env": "prod", "region": "west"}), 0).await;
        let client = plane.client(ADMIN).await.unwrap();
        let maps = stage.maps(plane).await;
        for name in ["applied", "updated", "created"] {
            let theirs = stage.config_map(name, &json!({"ours": "0", "theirs": "0"}));
            maps.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world/syncsets/hive");
        let tried = RefCell::new(BTreeSet::new());
        let apply = async |name: &'static str, outcome: &str, syncsets: &[(&str, u64)]| {
            let path = folder.join(name);
            assert!(path.exists(), "{name}");
            tried.borrow_mut().insert(name);
            let told = stage.command(&["apply", "-f", &path.display().to_string()]).await;
            assert!(!told.is_empty() && told.lines().all(|line| line.ends_with(outcome)), "{name}: {told}");
            for (syncset, generation) in syncsets {
                stage.succeeds("west-1", syncset, *generation).await;
            }
        };
        let has = async |path: &str, pointer: &str, expected: Value| {
            let path = path.replace("NS", "namespaces/hive-manifests");
            let found = live(&client, &path).await.unwrap_or_else(|| panic!("no {path}"));
            assert_eq!(found.pointer(pointer).unwrap_or(&Value::Null), &expected, "{path}{pointer}");
        };
        let data =
            async |name: &str, expected: Value| has(&format!("/api/v1/NS/configmaps/{name}"), "/data", expected).await;

        apply("resources.yaml", "created", &[("resources", 1)]).await;
        let (core, logging) = ("/api/v1/NS-logging", "NS-logging");
        has(core, "/metadata/labels/pod-security.kubernetes.io~1enforce", json!("restricted")).await;
        has(&format!("{core}/serviceaccounts/collector"), "/kind", json!("ServiceAccount")).await;
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let reader = format!("{rbac}/clusterroles/hive-manifests-log-reader");
        has(&reader, "/rules/0/resources", json!(["pods", "pods/log"])).await;
        has(&reader, "/rules/1/nonResourceURLs", json!(["/logs/*"])).await;
        let binding = format!("{rbac}/clusterrolebindings/hive-manifests-log-reader");
        has(&binding, "/subjects/0/name", json!("collector")).await;
        has(&format!("{rbac}/{logging}/roles/tuner"), "/rules/0/verbs", json!(["get", "update"])).await;
        has(&format!("{rbac}/{logging}/rolebindings/tuner"), "/subjects/0/kind", json!("Group")).await;
        let text = json!("sources:\n- type: journal\nsinks: [central]\n");
        has(&format!("{core}/configmaps/collector"), "/data/config.yaml", text).await;
        let deployment = format!("/apis/apps/v1/{logging}/deployments/collector");
        has(&deployment, "/spec/template/spec/volumes/0/configMap/defaultMode", json!(0o440)).await;
        let policy = format!("/apis/networking.k8s.io/v1/{logging}/networkpolicies/collector");
        has(&policy, "/spec/ingress/0/ports", json!([{"port": 8080, "protocol": "TCP"}])).await;

        apply("patches.yaml", "created", &[("patches", 1)]).await;
        let collector = format!("{core}/configmaps/collector");
        has(&collector, "/data/endpoint", json!("https://logs.example.com")).await;
        has(&collector, "/data/added", json!("yes")).await;
        has(&collector, "/data/interval", json!("30")).await;
        has(core, "/metadata/annotations/example.com~1patched", json!("true")).await;
        let found = live(&client, &deployment.replace("NS", "namespaces/hive-manifests")).await.unwrap();
        let containers = found["spec"]["template"]["spec"]["containers"].as_array().unwrap();
        let names: BTreeSet<_> = containers.iter().map(|container| container["name"].as_str().unwrap()).collect();
        assert_eq!(names, BTreeSet::from(["collector", "sidecar"]), "merged by name");

        apply("sync.yaml", "created", &[("sync", 1)]).await;
        data("dropped", json!({"release": "1"})).await;
        apply("sync-changed.yaml", "configured", &[("sync", 2)]).await;
        data("kept", json!({"release": "2"})).await;
        has("/api/v1/NS/limitranges/limits", "/spec/limits/0/default/memory", json!("512Mi")).await;
        let dropped = "/api/v1/namespaces/hive-manifests/configmaps/dropped";
        eventually("the object that is dropped to be deleted", LIMIT, async || match live(&client, dropped).await {
            None => Ok(()),
            Some(found) => Err(found.to_string()),
        })
        .await
        .unwrap();

        apply("selected.yaml", "created", &[("hive-manifests-selected", 1)]).await;
        data("selected", json!({"region": "west", "url": "https://west.prod.example.com"})).await;
        assert_eq!(live(&client, &dropped.replace("dropped", "unselected")).await, None);

        apply("secrets.yaml", "created", &[("secrets", 1), ("hive-manifests-secrets", 1)]).await;
        for name in ["registry", "registry-again", "registry-selected"] {
            let path = format!("/api/v1/NS/secrets/{name}");
            has(&path, "/type", json!("kubernetes.io/dockerconfigjson")).await;
            has(&path, "/data", json!({".dockerconfigjson": "eyJhdXRocyI6IHt9fQ=="})).await;
            // Unlike Hive: only what a mapping lists (`secretMetadata`), since tools obey labels.
            has(&path, "/metadata/labels/team", Value::Null).await;
        }

        let behaviors = ["behavior-apply", "behavior-create-or-update", "behavior-create-only"].map(|name| (name, 1));
        apply("behaviors.yaml", "created", &behaviors).await;
        data("applied", json!({"ours": "1", "theirs": "0"})).await;
        data("updated", json!({"ours": "1", "theirs": "0"})).await;
        data("created", json!({"ours": "0", "theirs": "0"})).await;
        data("created-new", json!({"ours": "1"})).await;

        apply("defaults.yaml", "created", &[("defaults", 1)]).await;
        let expected = json!({"given": "1", "patched": "1", "template": "{{ fromCDLabel \"region\" }}"});
        data("defaults", expected).await;
        let stored = stage.get(&stage.path("syncsets", "defaults")).await;
        assert_ne!(stored["uid"], "3c7a9a3e-5d7f-4f6e-9a53-0d5b7f5a1c11", "it is another server's");

        let listed = ["listed", "hive-manifests-listed", "item", "hive-manifests-item"].map(|name| (name, 1));
        apply("lists.yaml", "created", &listed).await;
        for (name, of) in [
            ("listed", "List"),
            ("listed-for-all", "List"),
            ("item", "SyncSetList"),
            ("item-for-prod", "SelectorSyncSetList"),
        ] {
            data(name, json!({"of": of})).await;
        }

        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let tried_once = tried.borrow().clone();
        assert_eq!(files.collect::<BTreeSet<_>>(), tried_once.iter().map(|name| (*name).to_owned()).collect());
        // Applied again they are the same documents.
        for name in tried_once.iter().filter(|name| **name != "sync.yaml") {
            apply(name, "unchanged", &[]).await;
        }
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
        labelled["metadata"]["annotations"] = json!({"example.com/enabled": true});
        let once = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "namespace": "b", "patch": "{}", "applyMode": "ApplyOnce"});
        let owners =
            json!([{"op": "add", "path": "/metadata/ownerReferences", "value": owned["metadata"]["ownerReferences"]}]);
        let adopt = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "namespace": "b", "patchType": "json", "patch": owners.to_string()});
        let syncset = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "wrong",
            "spec": {"resources": [owned, labelled], "patches": [once, adopt]}});
        let told = stage.refused(&["apply", "-f", &file("wrong", &syncset.to_string())]).await;
        for expected in [
            "/spec/resources/0/metadata/ownerReferences",
            "garbage collector",
            "/spec/resources/1/metadata/labels/version: found 1.1",
            "/spec/resources/1/metadata/annotations/example.com~1enabled: found true",
            "write the value in quotes",
            "/spec/patches/1/patch",
            "owners of the object",
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

/// The values of a `ConfigMap` are nobody else's, whether the server tells its reason alone or quotes the whole object first.
#[test]
fn a_refused_change_of_a_config_map_is_told_with_its_reason_and_without_values() {
    run(async {
        let section = format!("{SYNCSETS}\n\n[daemon.log]\nfilter = \"debug\"");
        let stage = Stage::with("quoted-maps", &section, 1).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let (live, wanted) = ("canary-live-5e1b", "canary-wanted-5e1b");
        let fixed = |value: &str| {
            let mut map = stage.config_map("fixed", &json!({"a": value.repeat(100)}));
            map["immutable"] = json!(true);
            map
        };
        let maps = stage.maps(plane).await;
        for map in [fixed(live), stage.config_map("open", &json!({"a": live.repeat(100)}))] {
            maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
        }
        let patch = |patch_type: &str, patch: Value| {
            json!({"patches": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "open", "namespace": stage.namespace,
                "patchType": patch_type, "patch": patch.to_string()}]})
        };
        let number = json!({"data": {"b": wanted, "n": 7}});
        let operations =
            json!([{"op": "add", "path": "/data/b", "value": wanted}, {"op": "add", "path": "/data/n", "value": 7}]);
        let updated =
            json!({"applyBehavior": "CreateOrUpdate", "resources": [stage.config_map("open", &number["data"])]});
        let is_immutable = "data: Forbidden: field is immutable when `immutable` is set";
        let is_number = "cannot unmarshal number into Go struct field ConfigMap.data of type string";
        let is_no_text = "patch: Invalid value: cannot convert int64 to string";
        for (name, mut spec, cause) in [
            ("applied", json!({"resources": [fixed(wanted)]}), is_immutable),
            ("updated", updated, is_no_text),
            ("merged", patch("merge", number.clone()), is_number),
            ("patched", patch("json", operations), is_number),
            ("strategic", patch("strategic", number.clone()), is_no_text),
        ] {
            spec["clusterDeploymentRefs"] = json!([{"name": "west-1"}]);
            stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
            let failure = |status: &Value| {
                let mut entries = status["syncSets"].as_array().into_iter().flatten();
                let entry = entries.find(|entry| entry["name"] == name && entry["result"] == "Failure");
                entry.map(|entry| (entry["reason"].clone(), entry["failureMessage"].clone()))
            };
            let status =
                stage.status("west-1", &format!("the failure of {name}"), |status| failure(status).is_some()).await;
            let (reason, message) = failure(&status).unwrap();
            let message = message.as_str().unwrap();
            assert!(reason == "Rejected" && message.ends_with(cause), "{name}: {reason}: {message}");
        }
        stage.never_shows_in(&STATE, &[live, wanted]).await;
    });
}
