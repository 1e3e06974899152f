//! `towline.dev/ignore-fields`: what others write on purpose is set at creation and then left alone; and what helps where a copy of a Secret
//! can't be changed.

use integration::hub::Request;
use integration::users::ADMIN;
use integration::{ControlPlane, eventually};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::syncsets::asked::merge;
use crate::syncsets::kinds::{definition, widget, widgets};
use crate::syncsets::requests::Requests;
use crate::syncsets::world::{LIMIT, Stage, run};

const IGNORE: &str = "towline.dev/ignore-fields";

fn deployment(stage: &Stage, image: &str, replicas: u8, ignored: &str) -> Value {
    let labels = json!({"app": "agent"});
    let pod = json!({"containers": [{"name": "agent", "image": image}]});
    let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "agent", "namespace": stage.namespace},
        "spec": {"replicas": replicas, "paused": true, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod}}});
    if !ignored.is_empty() {
        object["metadata"]["annotations"] = json!({IGNORE: ignored});
    }
    object
}

async fn deployments(plane: &ControlPlane, stage: &Stage) -> Api<Deployment> {
    Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace)
}

fn by(manager: &str) -> PatchParams {
    PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() }
}

fn spec_of(behavior: &str, resource: &Value) -> Value {
    json!({"clusterDeploymentRefs": [{"name": "west-1"}], "applyBehavior": behavior, "resourceApplyMode": "Sync",
        "resources": [resource]})
}

async fn has(all: &Api<Deployment>, replicas: i32, image: &str) {
    let found = json!(all.get("agent").await.unwrap());
    let image_found = &found["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!((&found["spec"]["replicas"], image_found), (&json!(replicas), &json!(image)));
}

async fn hold(name: &'static str, behavior: &str, created: &[&str], changed: &[&str]) {
    let stage = Stage::new(name).await;
    let plane = stage.register("west-1", &json!({}), 0).await;
    stage.at_rest().await;
    let all = deployments(plane, &stage).await;
    let mut requests = Requests::from_now(&stage, plane).await;
    let ignored = "/spec/replicas,/spec/paused";
    let syncset = json!({"namespace": stage.namespace, "name": "base",
        "spec": spec_of(behavior, &deployment(&stage, "agent:1", 3, ignored))});
    stage.create("syncsets", &syncset).await;
    stage.succeeds("west-1", "base", 1).await;
    assert_eq!(requests.seen_without_conflicts().await, created);
    has(&all, 3, "agent:1").await;

    // An autoscaler writes one of them, and somebody removes the other.
    all.patch("agent", &by("hpa"), &Patch::Merge(json!({"spec": {"replicas": 5, "paused": null}}))).await.unwrap();
    for _ in 0..2 {
        stage.full_pass().await;
        let seen = requests.seen().await;
        assert_eq!(seen, ["get deployments/agent 200"], "nothing is written at rest");
    }
    has(&all, 5, "agent:1").await;

    // What is not ignored is sent, whatever becomes of what is.
    stage.wants("base", &[deployment(&stage, "agent:2", 7, ignored)]).await;
    stage.succeeds("west-1", "base", 2).await;
    assert_eq!(requests.seen_without_conflicts().await, changed);
    has(&all, 5, "agent:2").await;
    all.patch("agent", &by("hpa"), &Patch::Merge(json!({"spec": {"replicas": 6}}))).await.unwrap();
    stage.full_pass().await;
    assert_eq!(requests.seen().await, ["get deployments/agent 200"]);
    has(&all, 6, "agent:2").await;

    let told = stage.explained("west-1", &format!("Deployment.apps/{}/agent", stage.namespace)).await;
    assert!(told.contains("after the creation it leaves alone /spec/replicas, /spec/paused"), "{told}");
    assert!(told.contains("in step"), "{told}");
    let document = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "base",
        "spec": spec_of(behavior, &deployment(&stage, "agent:3", 9, ignored))});
    let told = stage.compared(&document).await;
    assert!(told.contains("left alone after the creation: /spec/replicas, /spec/paused"), "{told}");
    has(&all, 6, "agent:2").await;

    // Without the annotation the field is ours again.
    stage.wants("base", &[deployment(&stage, "agent:2", 4, "")]).await;
    stage.succeeds("west-1", "base", 3).await;
    has(&all, 4, "agent:2").await;
    // And with it from then on it stays as it is.
    stage.wants("base", &[deployment(&stage, "agent:2", 2, ignored)]).await;
    stage.succeeds("west-1", "base", 4).await;
    has(&all, 4, "agent:2").await;
    stage.wants("base", &[]).await;
    eventually("the deployment to be deleted", LIMIT, async || match all.get_opt("agent").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
}

#[test]
fn apply_leaves_alone_what_it_ignores() {
    let created = ["get deployments/agent 404", "patch deployments/agent 201", "patch deployments/agent 200"];
    run(hold("ignored-apply", "Apply", &created, &["get deployments/agent 200", "patch deployments/agent 200"]));
}

#[test]
fn create_or_update_leaves_alone_what_it_ignores() {
    let created = ["get deployments/agent 404", "create deployments/agent 201", "patch deployments/agent 200"];
    run(hold(
        "ignored-update",
        "CreateOrUpdate",
        &created,
        &["get deployments/agent 200", "patch deployments/agent 200"],
    ));
}

#[test]
fn what_is_ignored_in_all_elements_of_a_list_is_left_alone_in_each() {
    run(async {
        let stage = Stage::new("ignored-hooks").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let hooks: Api<MutatingWebhookConfiguration> = Api::all(plane.client(ADMIN).await.unwrap());
        let hook = |name: &str, path: &str| {
            let service = json!({"name": "hooks", "namespace": stage.namespace, "path": path, "port": 443});
            let rule = json!({"apiGroups": ["ignored-hooks.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["nothing"]});
            json!({"name": name, "clientConfig": {"caBundle": "Cg==", "service": service}, "rules": [rule], "sideEffects": "None",
                "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore"})
        };
        let wanted = |hooks: &[Value]| {
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": "ignored-hooks", "annotations": {IGNORE: "/webhooks/*/clientConfig/caBundle"}},
                "webhooks": hooks})
        };
        stage.syncset("base", "Sync", &[wanted(&[hook("a.b.c", "/1"), hook("b.b.c", "/1")])]).await;
        stage.succeeds("west-1", "base", 1).await;
        let injected = json!({"webhooks": [{"name": "a.b.c", "clientConfig": {"caBundle": "aW5qZWN0ZWQK"}}]});
        hooks.patch("ignored-hooks", &by("cainjector"), &Patch::Strategic(injected)).await.unwrap();
        let mut requests = Requests::from_now(&stage, plane).await;
        stage.full_pass().await;
        assert_eq!(requests.seen().await, ["get mutatingwebhookconfigurations/ignored-hooks 200"]);
        // One is changed, one dropped, and one new.
        stage.wants("base", &[wanted(&[hook("a.b.c", "/2"), hook("c.b.c", "/1")])]).await;
        stage.succeeds("west-1", "base", 2).await;
        let found: Vec<Value> = json!(hooks.get("ignored-hooks").await.unwrap())["webhooks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|hook| {
                let config = &hook["clientConfig"];
                json!([hook["name"], config["service"]["path"], config["caBundle"]])
            })
            .collect();
        assert_eq!(json!(found), json!([["a.b.c", "/2", "aW5qZWN0ZWQK"], ["c.b.c", "/1", null]]));
        stage.wants("base", &[]).await;
        stage.succeeds("west-1", "base", 3).await;
    });
}

#[test]
fn a_pointer_that_is_none_is_refused_when_it_is_written() {
    run(async {
        let stage = Stage::new("ignored-wrong").await;
        let document = json!({"namespace": stage.namespace, "name": "base",
            "spec": spec_of("Apply", &deployment(&stage, "agent:1", 1, "/spec/replicas,.spec.paused"))});
        let reply = stage.send(&Request::post("/v1/syncsets", &document)).await;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.status, 422, "{text}");
        for part in ["towline.dev~1ignore-fields", "does not begin with /", "JSON pointers"] {
            assert!(text.contains(part), "no {part} in {text}");
        }
    });
}

/// A copy of a Secret that can't be changed: the failure names the annotation, and the annotation on the hub's Secret helps.
#[test]
fn a_copy_that_cant_be_changed_is_created_again_if_the_secret_of_the_hub_says_so() {
    run(async {
        let stage = Stage::new("recreated-copy").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let secrets: Api<Secret> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        for (name, fixed, before, after) in [
            ("typed", "type", json!({"type": "example.com/a"}), json!({"type": "example.com/b"})),
            ("immutable", "data", json!({"immutable": true, "data": {"a": "MQ=="}}), json!({"data": {"a": "Mg=="}})),
        ] {
            let mut source = json!({"namespace": stage.namespace, "name": name});
            merge(&mut source, &before);
            stage.create("secrets", &source).await;
            let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync",
                "secretMappings": [{"sourceRef": {"name": name}, "targetRef": {"name": name, "namespace": stage.namespace},
                    "secretMetadata": ["towline.dev/recreate"]}]});
            stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
            stage.succeeds("west-1", name, 1).await;
            let first = secrets.get(name).await.unwrap();
            stage.change(&stage.path("secrets", name), &after).await;
            let failure = |status: &Value| {
                let mut entries = status["syncSets"].as_array().into_iter().flatten();
                let entry = entries.find(|entry| entry["name"] == name && entry["reason"] == "Rejected");
                entry.and_then(|entry| entry["failureMessage"].as_str().map(str::to_owned))
            };
            let what = format!("the other {fixed} to be refused");
            let status = stage.status("west-1", &what, |status| failure(status).is_some()).await;
            let told = failure(&status).unwrap();
            let parts = [&format!("422 Invalid: {fixed}"), "towline.dev/recreate: \"true\" on the hub's Secret"];
            assert!(parts.iter().all(|part| told.contains(part)), "{told}");
            assert_eq!(secrets.get(name).await.unwrap(), first);
            let annotations = json!({"annotations": {"towline.dev/recreate": "true"}});
            stage.change(&stage.path("secrets", name), &annotations).await;
            let mut expected = before;
            merge(&mut expected, &after);
            eventually(format!("{name} to be created again"), LIMIT, async || match secrets.get_opt(name).await {
                Ok(Some(copy))
                    if copy.metadata.uid != first.metadata.uid
                        && expected.as_object().unwrap().iter().all(|(field, value)| json!(copy)[field] == *value) =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            })
            .await
            .unwrap();
            stage.succeeds("west-1", name, 1).await;
        }
    });
}

/// An object that somebody else has made and that is taken over leaves alone what it ignores, too.
#[test]
fn what_existed_before_keeps_what_is_ignored() {
    run(async {
        let stage = Stage::new("ignored-before").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let all = deployments(plane, &stage).await;
        let theirs = serde_json::from_value(deployment(&stage, "agent:0", 8, "")).unwrap();
        all.create(&PostParams::default(), &theirs).await.unwrap();
        stage.syncset("base", "Upsert", &[deployment(&stage, "agent:1", 3, "/spec/replicas")]).await;
        stage.succeeds("west-1", "base", 1).await;
        has(&all, 8, "agent:1").await;

        // A map that they have written when it was empty is no whole.
        let limits = "/spec/template/spec/containers/*/resources/limits";
        let mut theirs = deployment(&stage, "other:0", 1, "");
        theirs["metadata"]["name"] = json!("other");
        theirs["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({});
        all.create(&PostParams::default(), &serde_json::from_value(theirs.clone()).unwrap()).await.unwrap();
        let mut ours = deployment(&stage, "other:1", 1, limits);
        ours["metadata"]["name"] = json!("other");
        ours["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
        stage.syncset("sized", "Upsert", &[ours]).await;
        stage.succeeds("west-1", "sized", 1).await;
        let found = json!(all.get("other").await.unwrap());
        assert_eq!(found["spec"]["template"]["spec"]["containers"][0]["resources"], json!({"requests": {"cpu": "1"}}));
    });
}

/// What is created leaves alone what it ignores, also when it is applied from then on.
#[test]
fn what_create_only_has_made_leaves_alone_what_is_ignored_when_it_is_applied() {
    run(async {
        let stage = Stage::new("ignored-create").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.at_rest().await;
        let all = deployments(plane, &stage).await;
        let mut requests = Requests::from_now(&stage, plane).await;
        let ignored = "/spec/replicas,/spec/paused";
        let spec = |behavior: &str, image: &str| spec_of(behavior, &deployment(&stage, image, 3, ignored));
        stage
            .create(
                "syncsets",
                &json!({"namespace": stage.namespace, "name": "base", "spec": spec("CreateOnly", "agent:1")}),
            )
            .await;
        stage.succeeds("west-1", "base", 1).await;
        assert_eq!(
            requests.seen_without_conflicts().await,
            ["create deployments/agent 201", "patch deployments/agent 200"]
        );
        let entries = all.get("agent").await.unwrap().metadata.managed_fields.unwrap();
        let ours = entries.iter().find(|entry| entry.manager.as_deref() == Some("towline-update")).unwrap();
        let fields = json!(ours.fields_v1);
        assert!(fields["f:spec"]["f:template"].is_object(), "{fields}");
        assert!(fields["f:spec"]["f:replicas"].is_null() && fields["f:spec"]["f:paused"].is_null(), "{fields}");
        all.patch("agent", &by("hpa"), &Patch::Merge(json!({"spec": {"replicas": 5}}))).await.unwrap();
        stage.replace_spec("syncsets", "base", &spec("CreateOnly", "agent:2")).await;
        stage.succeeds("west-1", "base", 2).await;
        stage.full_pass().await;
        has(&all, 5, "agent:1").await;
        stage.replace_spec("syncsets", "base", &spec("Apply", "agent:3")).await;
        stage.succeeds("west-1", "base", 3).await;
        has(&all, 5, "agent:3").await;
    });
}

/// The annotation that `kubectl rollout restart` writes stays, whether it is named, or named and given, or not given at all.
#[test]
fn a_restart_of_a_rollout_survives_full_passes_and_changes() {
    run(async {
        let stage = Stage::new("ignored-restart").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.at_rest().await;
        let all = deployments(plane, &stage).await;
        let pointer = "/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt";
        let cases = [("unnamed", "", false), ("named", pointer, false), ("given", pointer, true)];
        let wanted = |(name, ignored, is_given): (&str, &str, bool), image: &str| {
            let mut object = deployment(&stage, image, 1, ignored);
            object["metadata"]["name"] = json!(name);
            // A restart of a paused rollout is refused by kubectl.
            object["spec"]["paused"] = json!(false);
            if is_given {
                object["spec"]["template"]["metadata"]["annotations"] =
                    json!({"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"});
            }
            object
        };
        let resources = |image: &str| cases.map(|case| wanted(case, image));
        stage.syncset("base", "Sync", &resources("agent:1")).await;
        stage.succeeds("west-1", "base", 1).await;
        let restarted = async |name: &str| {
            json!(all.get(name).await.unwrap()).pointer(pointer).and_then(Value::as_str).map(str::to_owned)
        };
        assert_eq!(restarted("given").await.as_deref(), Some("2026-01-01T00:00:00Z"), "it is sent once");
        let mut command = plane.kubectl(ADMIN).await.unwrap();
        command.args(["rollout", "restart", "--namespace", stage.namespace, "deployment"]);
        let output = command.args(cases.map(|(name, ..)| name)).output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut written = Vec::new();
        for (name, ..) in cases {
            let at = restarted(name).await.expect("the restart");
            assert_ne!(at, "2026-01-01T00:00:00Z");
            written.push(at);
        }
        let mut requests = Requests::from_now(&stage, plane).await;
        for _ in 0..2 {
            stage.full_pass().await;
            assert_eq!(requests.seen().await, ["list deployments 200"], "nothing is written at rest");
        }
        stage.wants("base", &resources("agent:2")).await;
        stage.succeeds("west-1", "base", 2).await;
        stage.full_pass().await;
        for ((name, ..), at) in cases.into_iter().zip(written) {
            assert_eq!(restarted(name).await, Some(at), "{name}");
            let found = json!(all.get(name).await.unwrap());
            assert_eq!(found["spec"]["template"]["spec"]["containers"][0]["image"], "agent:2", "{name}");
        }
    });
}

/// A field that asks a controller to do something once, and that the controller takes away when it has done it.
#[test]
fn a_field_that_a_controller_consumes_is_sent_once() {
    run(async {
        let stage = Stage::new("ignored-once").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let group = "ignored-once.example.com";
        stage.syncset("definition", "Upsert", &[definition(group)]).await;
        stage.succeeds("west-1", "definition", 1).await;
        let all = widgets(plane.client(ADMIN).await.unwrap(), &stage, group);
        for behavior in ["Apply", "CreateOrUpdate"] {
            let name = behavior.to_lowercase();
            let wanted = |size: u8| {
                let mut object = widget(&stage, group, &name);
                object["spec"] = json!({"size": size, "restore": {"from": "backup-7"}});
                object["metadata"]["annotations"] = json!({IGNORE: "/spec/restore"});
                object
            };
            let document = json!({"namespace": stage.namespace, "name": name, "spec": spec_of(behavior, &wanted(1))});
            stage.create("syncsets", &document).await;
            stage.succeeds("west-1", &name, 1).await;
            let spec = async || json!(all.get(&name).await.unwrap())["spec"].clone();
            assert_eq!(spec().await, json!({"size": 1, "restore": {"from": "backup-7"}}));
            all.patch(&name, &by("restorer"), &Patch::Merge(json!({"spec": {"restore": null}}))).await.unwrap();
            let mut requests = Requests::from_now(&stage, plane).await;
            for _ in 0..2 {
                stage.full_pass().await;
                let seen = requests.seen().await;
                assert!(!seen.is_empty() && seen.iter().all(|request| is_read(request)), "{seen:?}");
            }
            assert_eq!(spec().await, json!({"size": 1}));
            stage.wants(&name, &[wanted(2)]).await;
            stage.succeeds("west-1", &name, 2).await;
            assert_eq!(spec().await, json!({"size": 2}), "{name}");
        }
    });
}

fn is_read(request: &str) -> bool {
    request.starts_with("get ") || request.starts_with("list ")
}

/// A copy with such a mark would look like an object of that tool on the cluster, which then prunes it.
#[test]
fn copies_of_secrets_lack_the_marks_of_other_tools_and_keep_what_is_the_users() {
    run(async {
        let stage = Stage::new("mapped-marks").await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        stage.at_rest().await;
        let source = json!({"namespace": stage.namespace, "name": "source", "data": {"a": "MQ=="},
            "labels": {"team": "platform", "app.kubernetes.io/instance": "shop", "app.kubernetes.io/managed-by": "Helm",
                "argocd.argoproj.io/instance": "shop", "kustomize.toolkit.fluxcd.io/name": "shop",
                "kustomize.toolkit.fluxcd.io/namespace": "flux-system", "helm.toolkit.fluxcd.io/name": "shop",
                "helm.toolkit.fluxcd.io/namespace": "flux-system"},
            "annotations": {"example.com/note": "kept", "argocd.argoproj.io/tracking-id": "shop:/Secret:a/source",
                "argocd.argoproj.io/sync-wave": "1", "kustomize.toolkit.fluxcd.io/checksum": "1",
                "meta.helm.sh/release-name": "shop", "meta.helm.sh/release-namespace": "a",
                "config.kubernetes.io/owning-inventory": "1",
                "kubectl.kubernetes.io/last-applied-configuration": json!({"data": {"a": "MQ=="}}).to_string()}});
        stage.create("secrets", &source).await;
        let mapping = |target: &str| {
            json!({"sourceRef": {"name": "source", "namespace": stage.namespace},
                "targetRef": {"name": target, "namespace": stage.namespace}, "secretMetadata": ["*"]})
        };
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync",
            "secretMappings": [mapping("applied")]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
        for (name, behavior) in [("updated", "CreateOrUpdate"), ("created", "CreateOnly")] {
            let spec = json!({"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}}, "applyBehavior": behavior,
                "clusterNamespaces": [stage.namespace], "secretMappings": [mapping(name)]});
            stage.create("selectorsyncsets", &json!({"name": name, "spec": spec})).await;
        }
        for syncset in ["base", "updated", "created"] {
            stage.succeeds("west-1", syncset, 1).await;
        }
        let secrets: Api<Secret> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        let labels =
            json!({"team": "platform", "app.kubernetes.io/instance": "shop", "hive.openshift.io/managed": "true"});
        let check = async || {
            for name in ["applied", "updated", "created"] {
                let found = secrets.get(name).await.unwrap();
                assert_eq!(json!(found.metadata.labels), labels, "{name}");
                let annotations = found.metadata.annotations.unwrap();
                let annotations: Vec<&str> = annotations.keys().map(String::as_str).collect();
                let expected = ["example.com/note", "towline.dev/syncset", "towline.dev/syncset-id"];
                assert_eq!(annotations, expected, "{name}");
            }
        };
        check().await;
        // Nor do they get one that comes later.
        let marked = json!({"annotations": {"argocd.argoproj.io/tracking-id": "another", "meta.helm.sh/release-name": null},
            "labels": {"argocd.argoproj.io/instance": null, "kustomize.toolkit.fluxcd.io/name": "another"}});
        stage.change(&stage.path("secrets", "source"), &marked).await;
        stage.at_rest().await;
        check().await;
        let mut requests = Requests::from_now(&stage, plane).await;
        stage.full_pass().await;
        assert_eq!(requests.seen().await, ["list secrets 200"], "nothing is written at rest");
    });
}

/// A custom resource of somebody else with two lists, of which the server knows the keys of one.
#[test]
fn a_part_of_what_is_replaced_as_a_whole_is_refused_and_what_others_have_there_stays() {
    run(async {
        let stage = Stage::new("ignored-parts").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let group = "ignored-parts.example.com";
        let element = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"},
            "a": {"type": "integer"}, "b": {"type": "integer"}}});
        let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": element});
        let properties = json!({"keyed": keyed, "plain": {"type": "array", "items": element}});
        let mut crd = definition(group);
        crd["spec"]["versions"][0]["schema"] = json!({"openAPIV3Schema": {"type": "object",
            "properties": {"spec": {"type": "object", "properties": properties}}}});
        stage.syncset("definition", "Upsert", &[crd]).await;
        stage.succeeds("west-1", "definition", 1).await;
        let all = widgets(plane.client(ADMIN).await.unwrap(), &stage, group);
        let theirs = json!([{"name": "x", "a": 7, "b": 1}]);
        for (list, behavior, is_part) in [
            ("keyed", "Apply", false),
            ("keyed", "CreateOrUpdate", true),
            ("plain", "Apply", true),
            ("plain", "CreateOrUpdate", true),
        ] {
            let name = format!("{list}-{}", behavior.to_lowercase());
            let mut object = widget(&stage, group, &name);
            object["spec"] = json!({list: theirs});
            all.create(&PostParams::default(), &serde_json::from_value(object.clone()).unwrap()).await.unwrap();
            // The syncset does not give what others have set there.
            object["spec"] = json!({list: [{"name": "x", "b": 2}]});
            object["metadata"]["annotations"] = json!({IGNORE: format!("/spec/{list}/*/a")});
            let syncset = json!({"namespace": stage.namespace, "name": name, "spec": spec_of(behavior, &object)});
            stage.create("syncsets", &syncset).await;
            let found = async || json!(all.get(&name).await.unwrap())["spec"][list].clone();
            if !is_part {
                stage.succeeds("west-1", &name, 1).await;
                assert_eq!(found().await, json!([{"name": "x", "a": 7, "b": 2}]));
                continue;
            }
            let told = format!("/spec/{list}/*/a is part of a field that is only written as a whole");
            let is_refused = |status: &Value| {
                let entries = status["syncSets"].as_array().into_iter().flatten();
                let messages =
                    entries.filter(|entry| entry["name"] == name).map(|entry| entry["failureMessage"].as_str());
                messages.flatten().any(|message| message.contains(&told))
            };
            stage.status("west-1", &format!("the refusal of {name}"), is_refused).await;
            assert_eq!(found().await, theirs, "{name}");
            object["metadata"]["annotations"] = json!({IGNORE: format!("/spec/{list}")});
            stage.wants(&name, &[object]).await;
            stage.succeeds("west-1", &name, 2).await;
            assert_eq!(found().await, theirs, "{name}");
        }
    });
}
