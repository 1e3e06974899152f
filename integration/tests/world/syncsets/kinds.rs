//! Kinds and namespaces that are not there, not yet, or not any more.

use integration::users::ADMIN;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::syncsets::requests::Requests;
use crate::syncsets::world::{Stage, UNGUARDED, condition, run};

/// A definition of a kind with a group of its own.
pub(crate) fn definition(group: &str) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}})
}

pub(crate) fn widget(stage: &Stage, group: &str, name: &str) -> Value {
    json!({"apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": name, "namespace": stage.namespace},
        "spec": {"size": 3}})
}

pub(crate) fn widgets(client: kube::Client, stage: &Stage, group: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", "Widget"), "widgets");
    Api::namespaced_with(client, stage.namespace, &kind)
}

#[test]
fn a_definition_and_its_object_are_applied_in_one_pass_and_deleted_in_the_other_order() {
    run(async {
        let stage = Stage::shared("definitions", UNGUARDED).await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        stage.at_rest().await;
        let group = "definitions.example.com";
        let client = plane.client(ADMIN).await.unwrap();
        let reconciles = stage.reconciles().await;
        stage.syncset("base", "Sync", &[definition(group), widget(&stage, group, "one")]).await;
        stage.succeeds("west-1", "base", 1).await;
        assert_eq!(stage.reconciles().await - reconciles, 1, "one pass");
        let api = widgets(client.clone(), &stage, group);
        api.get("one").await.unwrap();
        let definitions: Api<CustomResourceDefinition> = Api::all(client);
        let name = format!("widgets.{group}");
        // The object goes before its definition.
        stage.wants("base", &[]).await;
        stage.succeeds("west-1", "base", 2).await;
        integration::eventually("the definition to be deleted", crate::syncsets::world::LIMIT, async || {
            match definitions.get_opt(&name).await {
                Ok(None) => Ok(()),
                other => Err(format!("{:?}", other.map(|found| found.map(|found| found.metadata)))),
            }
        })
        .await
        .unwrap();
    });
}

#[test]
fn an_object_whose_kind_is_not_served_any_more_is_done_and_one_whose_kind_comes_is_applied() {
    run(async {
        let stage = Stage::new("kinds").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let group = "kinds.example.com";
        let client = plane.client(ADMIN).await.unwrap();
        stage.syncset("base", "Sync", &[widget(&stage, group, "one"), stage.config_map("after", &json!({}))]).await;
        let failed = |status: &Value| status["syncSets"][0]["result"] == "Failure";
        let status = stage.status("west-1", "the failure", failed).await;
        assert_eq!(status["syncSets"][0]["reason"], "KindNotServed", "{status}");
        assert!(stage.config_maps(plane).await.is_empty(), "what comes after is not sent");
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let document = serde_json::from_value(definition(group)).unwrap();
        definitions.create(&kube::api::PostParams::default(), &document).await.unwrap();
        stage.succeeds("west-1", "base", 1).await;
        let api = widgets(client, &stage, group);
        let found = api.list(&ListParams::default()).await.unwrap().items;
        assert_eq!(found.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["one"]);
        // Gone together with its kind, it needs no deletion.
        definitions.delete(&format!("widgets.{group}"), &DeleteParams::default()).await.unwrap();
        integration::eventually("the definition to be gone", crate::syncsets::world::LIMIT, async || {
            let found = definitions.get_opt(&format!("widgets.{group}")).await.map_err(|error| error.to_string())?;
            if found.is_none() { Ok(()) } else { Err("there".to_owned()) }
        })
        .await
        .unwrap();
        stage.wants("base", &[]).await;
        stage.has(plane, &[]).await;
        stage.succeeds("west-1", "base", 2).await;
    });
}

#[test]
fn a_namespace_that_is_missing_is_waited_for_and_may_come_with_the_syncset() {
    run(async {
        let stage = Stage::new("namespaces").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.at_rest().await;
        let within = |namespace: &str, name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}});
        let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let mut requests = Requests::from_now(&stage, plane).await;
        stage.syncset("brings", "Upsert", &[namespace("namespaces-own"), within("namespaces-own", "a")]).await;
        stage.succeeds("west-1", "brings", 1).await;
        let expected = [
            "get configmaps/a 404",
            "get namespaces/namespaces-own 404",
            "patch namespaces/namespaces-own 201",
            "patch configmaps/a 201",
        ];
        assert_eq!(requests.seen().await, expected);
        stage.syncset("waits", "Upsert", &[within("namespaces-late", "a")]).await;
        let missing = |status: &Value| status["syncSets"][1]["reason"] == "NamespaceMissing";
        stage.status("west-1", "the failure", missing).await;
        let client = plane.client(ADMIN).await.unwrap();
        let all: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client);
        let document = serde_json::from_value(namespace("namespaces-late")).unwrap();
        all.create(&kube::api::PostParams::default(), &document).await.unwrap();
        stage.succeeds("west-1", "waits", 1).await;
        // A namespace given to a kind without is none.
        let mut role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "namespaces", "namespace": "x"}, "rules": []});
        stage.syncset("scoped", "Sync", &[role.clone()]).await;
        stage.succeeds("west-1", "scoped", 1).await;
        requests.seen().await;
        role["metadata"]["namespace"] = json!("y");
        stage.wants("scoped", &[role]).await;
        stage.succeeds("west-1", "scoped", 2).await;
        let seen = requests.seen().await;
        assert!(!seen.iter().any(|request| request.starts_with("delete")), "{seen:?}");
    });
}

/// A new client asks for each version of a group once, and a client that is kept asks for nothing.
#[test]
fn discovery_is_asked_once_for_each_version_of_a_group() {
    run(async {
        let stage = Stage::new("discovery").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.at_rest().await;
        let mut requests = Requests::from_now(&stage, plane).await;
        let map = |value: &str| stage.config_map("site", &json!({"a": value}));
        stage.syncset("base", "Upsert", &[map("1")]).await;
        stage.succeeds("west-1", "base", 1).await;
        let site = "/api/v1/namespaces/discovery/configmaps/site";
        let paths = async |requests: &mut Requests| -> Vec<String> {
            let paths = requests.paths().await;
            paths.into_iter().map(|path| path.split('?').next().unwrap().to_owned()).collect()
        };
        let first = ["get /api/v1".to_owned(), format!("get {site}"), format!("patch {site}")];
        assert_eq!(paths(&mut requests).await, first);
        stage.wants("base", &[map("2")]).await;
        stage.succeeds("west-1", "base", 2).await;
        assert_eq!(paths(&mut requests).await, [format!("patch {site}")]);
    });
}

/// A look that fails in a full pass is not forgotten by the pass that tries again.
#[test]
fn an_object_that_went_with_its_definition_comes_back_with_it() {
    run(async {
        let stage = Stage::new("lost").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let group = "lost.example.com";
        let client = plane.client(ADMIN).await.unwrap();
        stage.syncset("base", "Sync", &[definition(group), widget(&stage, group, "one")]).await;
        stage.succeeds("west-1", "base", 1).await;
        let api = widgets(client.clone(), &stage, group);
        let first = api.get("one").await.unwrap().metadata.uid;
        // Somebody deletes the definition, and all objects with it: the next full pass brings both back.
        let definitions: Api<CustomResourceDefinition> = Api::all(client);
        let name = format!("widgets.{group}");
        definitions.delete(&name, &DeleteParams::default()).await.unwrap();
        integration::eventually("the definition to be gone", crate::syncsets::world::LIMIT, async || match definitions
            .get_opt(&name)
            .await
        {
            Ok(None) => Ok(()),
            other => Err(format!("{:?}", other.map(|found| found.map(|found| found.metadata)))),
        })
        .await
        .unwrap();
        stage.full_pass().await;
        let succeeded = |status: &Value| condition(status, "Failed").is_some_and(|failed| failed["status"] == "False");
        stage.status("west-1", "success", succeeded).await;
        let second = api.get("one").await.unwrap().metadata.uid;
        assert_ne!(second, first);
    });
}

/// The API of a group is down (its server does not answer): nothing of it is deleted or forgotten, and others go on.
#[test]
fn while_an_api_service_is_down_nothing_of_it_is_deleted_and_others_go_on() {
    run(async {
        let stage = Stage::new("down").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let group = "down.example.com";
        let client = plane.client(ADMIN).await.unwrap();
        let map = |name: &str| stage.config_map(name, &json!({"of": name}));
        let of = |name: &'static str| (name, json!({"of": name}));
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let document = serde_json::from_value(definition(group)).unwrap();
        definitions.create(&kube::api::PostParams::default(), &document).await.unwrap();
        stage.syncset("base", "Sync", &[widget(&stage, group, "one"), widget(&stage, group, "two"), map("mine")]).await;
        stage.syncset("other", "Sync", &[map("before")]).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.succeeds("west-1", "other", 1).await;
        // From now on the group is served by a service that does not exist.
        let services: Api<APIService> = Api::all(client.clone());
        let nowhere = json!({"metadata": {"labels": {"kube-aggregator.kubernetes.io/automanaged": null}},
            "spec": {"insecureSkipTLSVerify": true, "service": {"name": "nowhere", "namespace": "default", "port": 443}}});
        let name = format!("v1.{group}");
        let parameters = kube::api::PatchParams::default();
        services.patch(&name, &parameters, &kube::api::Patch::Merge(&nowhere)).await.unwrap();
        let api = widgets(client, &stage, group);
        let answers = async |what: &str, code: u16| {
            integration::eventually(what.to_owned(), crate::syncsets::world::LIMIT, async || {
                match api.get("two").await {
                    Ok(_) if code == 200 => Ok(()),
                    Err(kube::Error::Api(status)) if status.code == code => Ok(()),
                    other => Err(format!("{:?}", other.map(|found| found.metadata))),
                }
            })
            .await
            .unwrap();
        };
        answers("the API to be down", 503).await;
        let failed = |reason: &'static str| {
            move |status: &Value| {
                let base = &status["syncSets"][0];
                base["result"] == "Failure" && base["reason"] == reason && status["syncSets"][1]["result"] == "Success"
            }
        };
        stage.full_pass().await;
        stage.status("west-1", "a failure of the kind", failed("ServerError")).await;
        stage.wants("base", &[widget(&stage, group, "one")]).await;
        stage.wants("other", &[map("after")]).await;
        stage.has(plane, &[of("after")]).await;
        stage.status("west-1", "a failure of the kind", failed("ServerError")).await;
        stage.wants("base", &[]).await;
        let status = stage.status("west-1", "a failure to delete", failed("DeletionFailed")).await;
        assert!(status["syncSets"][0]["failureMessage"].as_str().unwrap().contains("Kind=Widget"), "{status}");
        // Nothing of it has been forgotten: it is there again, and is deleted.
        stage.pause(true).await;
        services.delete(&name, &DeleteParams::default()).await.unwrap();
        answers("the API to be back", 200).await;
        let found = api.list(&ListParams::default()).await.unwrap().items;
        assert_eq!(found.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["one", "two"]);
        stage.pause(false).await;
        answers("the object to be deleted", 404).await;
        stage.succeeds("west-1", "base", 3).await;
        assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 0);
    });
}

/// A definition of a kind in these versions, each served or not; the last one is stored.
fn definition_of(group: &str, versions: &[(&str, bool)]) -> Value {
    let mut definition = definition(group);
    let schema = definition["spec"]["versions"][0]["schema"].clone();
    let last = versions.len() - 1;
    let version = |(at, (name, served)): (usize, &(&str, bool))| json!({"name": name, "served": served, "storage": at == last, "schema": schema});
    definition["spec"]["versions"] = versions.iter().enumerate().map(version).collect();
    definition
}

/// An object is the same in every version of its kind.
#[test]
fn an_object_whose_kind_moves_to_another_version_is_never_absent() {
    run(async {
        let stage = Stage::new("versions").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let group = "versions.example.com";
        let client = plane.client(ADMIN).await.unwrap();
        let of_version = |version: &str, size: u32| {
            let mut widget = widget(&stage, group, "one");
            (widget["apiVersion"], widget["spec"]["size"]) = (json!(format!("{group}/{version}")), json!(size));
            widget
        };
        let served_as = |version: &str| -> Api<DynamicObject> {
            let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, "Widget"), "widgets");
            Api::namespaced_with(client.clone(), stage.namespace, &kind)
        };
        stage.syncset("base", "Sync", &[definition_of(group, &[("v1alpha1", true)]), of_version("v1alpha1", 1)]).await;
        stage.succeeds("west-1", "base", 1).await;
        let uid = served_as("v1alpha1").get("one").await.unwrap().uid();
        let mut requests = Requests::from_now(&stage, plane).await;
        // Both versions are served, the object moves, and the old version ends; in one step and in several.
        let both = [("v1alpha1", true), ("v1", true)];
        let only_new = [("v1alpha1", false), ("v1", true)];
        for (generation, resources) in [
            (2, [definition_of(group, &both), of_version("v1alpha1", 1)]),
            (3, [definition_of(group, &only_new), of_version("v1", 2)]),
        ] {
            stage.wants("base", &resources).await;
            stage.succeeds("west-1", "base", generation).await;
        }
        stage.full_pass().await;
        stage.succeeds("west-1", "base", 3).await;
        let found = served_as("v1").get("one").await.unwrap();
        assert_eq!((found.uid(), &found.data["spec"]["size"]), (uid, &json!(2)));
        let deletions: Vec<String> =
            requests.seen().await.into_iter().filter(|request| request.to_lowercase().starts_with("delete")).collect();
        assert_eq!(deletions, Vec::<String>::new());
        let rows = "select count(*) from towline_applied where kind = 'Widget' and api_version = $1";
        let row = stage.sql.query_one(rows, &[&format!("{group}/v1")]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 1, "the row of the old version is its row");
        // It was ours all the time: it goes when nobody wants it any more.
        stage.wants("base", &[definition_of(group, &only_new)]).await;
        stage.succeeds("west-1", "base", 4).await;
        assert!(served_as("v1").get_opt("one").await.unwrap().is_none());
    });
}
