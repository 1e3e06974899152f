//! What the spec says of API servers, held against one.

use std::collections::BTreeMap;

use integration::page;
use integration::users::ADMIN;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Secret};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::syncsets::attackers::base64;
use crate::syncsets::kinds::definition;
use crate::syncsets::requests::Requests;
use crate::syncsets::world::{Stage, run};

const MANAGED: &str = "hive.openshift.io/managed";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A deployment whose containers have these names, images and limits of CPU.
fn deployment(stage: &Stage, name: &str, containers: &[(&str, &str, &str)]) -> Value {
    let labels = json!({"app": name});
    let containers: Vec<Value> = containers
        .iter()
        .map(|(name, image, cpu)| json!({"name": name, "image": image, "resources": {"limits": {"cpu": cpu}}}))
        .collect();
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": stage.namespace},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}}})
}

/// The entry of a `SyncSet` on `west-1`, once it fails.
async fn failure(stage: &Stage, name: &str) -> Value {
    let entry = |status: &Value| {
        let all = status["syncSets"].as_array().into_iter().flatten();
        all.into_iter().find(|entry| entry["name"] == name && entry["result"] == "Failure").cloned()
    };
    let status = stage.status("west-1", &format!("the failure of {name}"), |status| entry(status).is_some()).await;
    entry(&status).unwrap()
}

/// Content is never compared.
#[test]
fn a_quantity_that_comes_back_in_another_form_is_in_step() {
    run(async {
        let stage = Stage::new("quantities").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.syncset("base", "Sync", &[deployment(&stage, "agent", &[("agent", "agent:1", "1000m")])]).await;
        stage.succeeds("west-1", "base", 1).await;
        let all: Api<Deployment> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        let found = json!(all.get("agent").await.unwrap());
        let limit = found.pointer("/spec/template/spec/containers/0/resources/limits/cpu");
        assert_eq!(limit, Some(&json!("1")), "{found}");
        let mut requests = Requests::from_now(&stage, plane).await;
        for _ in 0..2 {
            stage.full_pass().await;
            assert_eq!(requests.seen().await, ["get deployments/agent 200"]);
        }
    });
}

/// The API server accepts a namespace on an object of a kind that has none, and drops it; so it is one object with and without.
#[test]
fn an_object_of_a_cluster_is_the_same_with_a_namespace_and_without() {
    run(async {
        let stage = Stage::new("clusterwide").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let role = |namespace: Option<&str>, verb: &str| {
            let allowed = json!({"apiGroups": [""], "resources": ["pods"], "verbs": [verb]});
            let mut role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": "clusterwide"}, "rules": [allowed]});
            if let Some(namespace) = namespace {
                role["metadata"]["namespace"] = json!(namespace);
            }
            role
        };
        stage.syncset("a", "Sync", &[role(Some("anywhere"), "get")]).await;
        stage.succeeds("west-1", "a", 1).await;
        let roles: Api<ClusterRole> = Api::all(plane.client(ADMIN).await.unwrap());
        let (uid, verbs) = (roles.get("clusterwide").await.unwrap().uid(), async || {
            roles.get("clusterwide").await.unwrap().rules.unwrap()[0].verbs.clone()
        });
        assert_eq!(verbs().await, ["get"]);
        stage.syncset("b", "Sync", &[role(None, "list")]).await;
        stage.succeeds("west-1", "b", 1).await;
        assert_eq!(verbs().await, ["list"], "the last one by name sends it");
        stage.syncset("c", "Sync", &[role(Some("elsewhere"), "watch")]).await;
        stage.succeeds("west-1", "c", 1).await;
        assert_eq!(verbs().await, ["watch"]);
        let mut requests = Requests::from_now(&stage, plane).await;
        for (name, left) in [("c", "list"), ("b", "get")] {
            stage.remove(&stage.path("syncsets", name)).await;
            stage
                .status("west-1", name, |status| !status["syncSets"].to_string().contains(&format!("\"{name}\"")))
                .await;
            stage.at_rest().await;
            assert_eq!(verbs().await, [left]);
        }
        let seen = requests.seen().await;
        assert!(!seen.iter().any(|request| request.starts_with("delete")), "{seen:?}");
        assert_eq!(roles.get("clusterwide").await.unwrap().uid(), uid);
        stage.remove(&stage.path("syncsets", "a")).await;
        stage.status("west-1", "no entries", |status| status["syncSets"] == json!([])).await;
        assert_eq!(requests.seen().await.last().map(String::as_str), Some("delete clusterroles/clusterwide 200"));
    });
}

/// What server-side apply refuses with a 500 is the document's fault, and no remedy is named that does not help.
#[test]
fn a_key_twice_and_a_value_of_another_type_are_mismatches_of_the_schema() {
    run(async {
        let stage = Stage::new("mismatches").await;
        stage.register("west-1", &json!({}), 0).await;
        let twice = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "twice", "namespace": stage.namespace},
            "spec": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 80}]}});
        let mut typed = deployment(&stage, "typed", &[("agent", "agent:1", "1")]);
        typed["spec"]["replicas"] = json!("three");
        for (name, resource, field) in [("twice", twice, ".spec.ports"), ("typed", typed, ".spec.replicas")] {
            stage.syncset(name, "Upsert", &[resource]).await;
            let entry = failure(&stage, name).await;
            assert_eq!(entry["reason"], "SchemaMismatch", "{entry}");
            let read = stage.get(&stage.path("clustersyncs", "west-1")).await;
            page::agrees("/v1/clustersyncs", "failing", &read).unwrap();
            let message = entry["failureMessage"].as_str().unwrap();
            assert!(message.contains(field) && !message.contains("CreateOrUpdate"), "{message}");
        }
        // It waits for a change.
        stage.at_rest().await;
        let later = "select count(*) from towline_work where ready_at > now() + interval '1 h'";
        assert_eq!(stage.sql.query_one(later, &[]).await.unwrap().get::<_, i64>(0), 1);
    });
}

/// Each type of patch, and the namespace of one that names none.
#[test]
fn patches_go_as_they_are_typed_and_to_namespace_default_if_they_name_none() {
    run(async {
        let stage = Stage::new("patch-types").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let client = plane.client(ADMIN).await.unwrap();
        let (own, default): (Api<ConfigMap>, Api<ConfigMap>) =
            (stage.maps(plane).await, Api::namespaced(client.clone(), "default"));
        let target: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "patch-types"}, "data": {"drop": "1", "keep": "1"}}))
                .unwrap();
        own.create(&PostParams::default(), &target).await.unwrap();
        default.create(&PostParams::default(), &target).await.unwrap();
        let deployments: Api<Deployment> = Api::namespaced(client, stage.namespace);
        let two = deployment(&stage, "agent", &[("agent", "agent:1", "1"), ("sidecar", "sidecar:1", "1")]);
        deployments.create(&PostParams::default(), &serde_json::from_value(two).unwrap()).await.unwrap();

        stage.at_rest().await;
        let mut requests = Requests::from_now(&stage, plane).await;
        let containers = json!([{"name": "agent", "image": "agent:2"}]);
        let patches = json!([
            // Strategic is the default: of a list with a key the rest stays.
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "agent", "namespace": stage.namespace,
                "patch": json!({"spec": {"template": {"spec": {"containers": containers}}}}).to_string()},
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "patch-types", "namespace": stage.namespace, "patchType": "json",
                "patch": "[{\"op\": \"test\", \"path\": \"/data/drop\", \"value\": \"1\"}, {\"op\": \"remove\", \"path\": \"/data/drop\"}]"},
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "patch-types", "patchType": "merge",
                "patch": "{\"data\": {\"drop\": null, \"of\": \"default\"}}"},
        ]);
        let spec =
            json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync", "patches": patches});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
        stage.succeeds("west-1", "base", 1).await;
        let sent =
            ["patch deployments/agent 200", "patch configmaps/patch-types 200", "patch configmaps/patch-types 200"];
        assert_eq!(requests.seen().await, sent);
        let found = deployments.get("agent").await.unwrap().spec.template.spec.unwrap().containers;
        let images: BTreeMap<_, _> =
            found.into_iter().map(|container| (container.name, container.image.unwrap())).collect();
        let expected = [("agent", "agent:2"), ("sidecar", "sidecar:1")];
        assert_eq!(images, BTreeMap::from(expected.map(|(name, image)| (name.to_owned(), image.to_owned()))));
        let data = async |maps: &Api<ConfigMap>| {
            let found = maps.get("patch-types").await.unwrap();
            assert!(!found.labels().contains_key(MANAGED), "{found:?}");
            json!(found.data)
        };
        assert_eq!(data(&own).await, json!({"keep": "1"}));
        assert_eq!(data(&default).await, json!({"keep": "1", "of": "default"}));
        let by = default.get("patch-types").await.unwrap();
        let by: Vec<_> = by.managed_fields().iter().filter_map(|entry| entry.manager.as_deref()).collect();
        assert!(by.contains(&"towline-patch"), "{by:?}");
        // Never undone.
        stage.remove(&stage.path("syncsets", "base")).await;
        stage.status("west-1", "no entries", |status| status["syncSets"] == json!([])).await;
        assert_eq!(requests.seen().await, Vec::<String>::new());
    });
}

/// What a mapped secret has beside its data.
#[test]
fn a_mapped_secret_has_the_type_of_its_source_and_the_labels_and_annotations_that_the_mapping_lists() {
    run(async {
        let stage = Stage::new("mapped").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let source = json!({"namespace": stage.namespace, "name": "source", "type": "example.com/key", "data": {"a": base64("1")},
            "labels": {"team": "a", "other": "o"},
            "annotations": {"example.com/note": "n", LAST_APPLIED: "{}", "towline.dev/prune": "false", "towline.dev/adopt": "true",
                "reflector.v1.k8s.emberstack.com/reflection-auto-enabled": "true"}});
        stage.create("secrets", &source).await;
        let mapping = json!({"sourceRef": {"name": "source"}, "targetRef": {"name": "target", "namespace": stage.namespace},
                "secretMetadata": ["team", "example.com/*", "towline.dev/*"]});
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync", "secretMappings": [mapping]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
        stage.succeeds("west-1", "base", 1).await;
        let secrets: Api<Secret> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        let found = secrets.get("target").await.unwrap();
        assert_eq!(found.type_.as_deref(), Some("example.com/key"));
        assert_eq!(json!(found.data), json!({"a": base64("1")}));
        assert_eq!(json!(found.labels()), json!({"team": "a", MANAGED: "true"}));
        let annotations: Vec<&str> = found.annotations().keys().map(String::as_str).collect();
        assert_eq!(annotations, ["example.com/note", "towline.dev/syncset", "towline.dev/syncset-id"]);
        // Each of them wakes the cluster.
        let mut requests = Requests::from_now(&stage, plane).await;
        for change in [
            json!({"labels": {"team": "b"}}),
            json!({"annotations": {"example.com/note": "m"}}),
            json!({"data": {"a": base64("2")}}),
        ] {
            stage.change(&stage.path("secrets", "source"), &change).await;
            stage.at_rest().await;
            assert_eq!(requests.seen().await, ["patch secrets/target 200"], "{change}");
        }
        // What is not listed is an order to tools there, and nobody's but the writer's of the Secret.
        let unlisted =
            json!({"labels": {"other": "p"}, "annotations": {"replicator.v1.mittwald.de/replicate-to": "*"}});
        stage.change(&stage.path("secrets", "source"), &unlisted).await;
        stage.at_rest().await;
        assert_eq!(requests.seen().await, Vec::<String>::new());
        let found = secrets.get("target").await.unwrap();
        assert_eq!(
            (&found.labels()["team"], &found.annotations()["example.com/note"]),
            (&"b".to_owned(), &"m".to_owned())
        );
        assert_eq!(json!(found.data), json!({"a": base64("2")}));
        // It is deleted as a resource is.
        stage.remove(&stage.path("syncsets", "base")).await;
        stage.status("west-1", "no entries", |status| status["syncSets"] == json!([])).await;
        assert_eq!(requests.seen().await, ["get secrets/target 200", "delete secrets/target 200"]);
    });
}

/// Whatever the annotation says, objects are not created again that take others with them.
#[test]
fn namespaces_claims_and_definitions_are_never_created_again() {
    run(async {
        let stage = Stage::new("kept-kinds").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let client = plane.client(ADMIN).await.unwrap();
        let asked_for = |mut object: Value| {
            object["metadata"]["annotations"] = json!({"towline.dev/recreate": "true"});
            object
        };
        let claim = |mode: &str| {
            asked_for(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": "claim", "namespace": stage.namespace},
                "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}}))
        };
        let of_scope = |scope: &str| {
            let mut definition = asked_for(definition("kept.example.com"));
            definition["spec"]["scope"] = json!(scope);
            definition
        };
        // Which fields of a namespace can't be changed nobody can change; a label that is not valid is a 422 as well.
        let namespace = |label: &str| {
            let mut namespace =
                asked_for(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kept-kinds-inner"}}));
            namespace["metadata"]["labels"] = json!({"a": label});
            namespace
        };
        stage.syncset("claim", "Sync", &[claim("ReadWriteOnce")]).await;
        stage.syncset("definition", "Sync", &[of_scope("Namespaced")]).await;
        stage.syncset("namespace", "Sync", &[namespace("b")]).await;
        let (claims, definitions, namespaces): (
            Api<PersistentVolumeClaim>,
            Api<CustomResourceDefinition>,
            Api<Namespace>,
        ) = (Api::namespaced(client.clone(), stage.namespace), Api::all(client.clone()), Api::all(client));
        for name in ["claim", "definition", "namespace"] {
            stage.succeeds("west-1", name, 1).await;
        }
        let uids = async || {
            let (claim, definition, namespace) = tokio::join!(
                claims.get("claim"),
                definitions.get("widgets.kept.example.com"),
                namespaces.get("kept-kinds-inner")
            );
            [claim.unwrap().uid(), definition.unwrap().uid(), namespace.unwrap().uid()]
        };
        let before = uids().await;
        let mut requests = Requests::from_now(&stage, plane).await;
        for (name, changed, request) in [
            ("claim", claim("ReadWriteMany"), "patch persistentvolumeclaims/claim 422"),
            ("definition", of_scope("Cluster"), "patch customresourcedefinitions/widgets.kept.example.com 422"),
            ("namespace", namespace("not valid"), "patch namespaces/kept-kinds-inner 422"),
        ] {
            stage.wants(name, &[changed]).await;
            let entry = failure(&stage, name).await;
            assert_eq!(entry["reason"], "Rejected", "{entry}");
            stage.at_rest().await;
            let seen = requests.seen().await;
            assert!(seen.contains(&request.to_owned()), "{seen:?}");
            // Neither a creation, nor a dry run of one, nor a deletion; what fails is tried again.
            let is_harmless = |request: &String| request.starts_with("patch ") || request.starts_with("get ");
            assert!(seen.iter().all(is_harmless), "{seen:?}");
        }
        assert_eq!(uids().await, before);
    });
}
