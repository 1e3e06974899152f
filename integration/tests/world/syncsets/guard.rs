//! Mistakes in one place that would delete objects on many clusters are held. The clusters are scripted, since each
//! needs an identity of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use integration::users::ADMIN;
use integration::{Towline, eventually};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, TypeMeta};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::syncsets::commands::has_lines;
use crate::syncsets::kinds::definition;
use crate::syncsets::report::command;
use crate::syncsets::script::{Says, Script};
use crate::syncsets::world::{LIMIT, Stage, condition, edge, run};

pub(crate) const SECTION: &str = "[syncsets]\nallow = [\"local-networks\", \"plain-http\"]";
/// More than ten of them may not lose objects.
const CLUSTERS: usize = 12;

pub(crate) type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

/// A stage with clusters `c-0`, `c-1`, … that have a label `env` of `prod`.
struct Fleet {
    stage: Stage,
    /// By path: what clusters have.
    objects: Objects,
    _server: Script,
}

/// What an API server says that has config maps alone, each below a path of its own.
pub(crate) fn api(objects: &Objects, line: &str, body: &[u8]) -> Says {
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap().split('?').next().unwrap());
    let (cluster, rest) = path.trim_start_matches('/').split_once('/').unwrap();
    let absent = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "not found", "details": {"name": rest.rsplit('/').next(), "kind": "configmaps"}});
    let mut objects = objects.lock();
    let (status, reply) = match (method, rest) {
        ("GET", "version") => (200, json!({"major": "1"})),
        ("GET", "api/v1/namespaces/kube-system") => {
            (200, metadata(&json!({"name": "kube-system", "uid": cluster, "resourceVersion": "1"})))
        }
        ("GET", "api/v1") => {
            let kind = json!({"name": "configmaps", "singularName": "configmap", "namespaced": true, "kind": "ConfigMap",
                "verbs": ["get", "list", "create", "patch", "delete"]});
            (200, json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [kind]}))
        }
        ("GET", _) => objects.get(path).map_or((404, absent), |found| (200, found.clone())),
        ("PATCH", _) => {
            let sent: Value = serde_json::from_slice(body).unwrap();
            let mut of = sent["metadata"].clone();
            let version = objects.len().to_string();
            (of["uid"], of["resourceVersion"]) = (json!(path), json!(version));
            let status = if objects.contains_key(path) { 200 } else { 201 };
            objects.insert(path.to_owned(), metadata(&of));
            (status, metadata(&of))
        }
        ("DELETE", _) => match objects.remove(path) {
            Some(_) => (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})),
            None => (404, absent),
        },
        _ => (405, json!({})),
    };
    Says::Body(status, reply.to_string())
}

fn metadata(metadata: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

impl Fleet {
    async fn new(name: &'static str) -> Self {
        Self::with(name, "site").await
    }

    /// The same with a config map of this name, which may be a template, on each. Their label `region` is `a`.
    async fn with(name: &'static str, site: &str) -> Self {
        let stage = Stage::shared(name, SECTION).await;
        let objects = Objects::default();
        let shared = Arc::clone(&objects);
        let server = Script::start_with(move |line, body| api(&shared, line, body)).await;
        for cluster in 0..CLUSTERS {
            let name = format!("c-{cluster}");
            let kubeconfig = server.kubeconfig_below(&format!("/{name}")).to_string();
            let document = json!({"namespace": stage.namespace, "name": name, "labels": {"env": "prod", "region": "a"},
                "kubeconfig": kubeconfig});
            stage.create("clusters", &document).await;
        }
        let fleet = Self { stage, objects, _server: server };
        fleet.stage.create("selectorsyncsets", &json!({"name": "fleet", "spec": fleet.spec("prod", &[site])})).await;
        fleet.count(CLUSTERS).await;
        fleet.stage.at_rest().await;
        fleet
    }

    fn spec(&self, env: &str, names: &[&str]) -> Value {
        let maps: Vec<Value> = names.iter().map(|name| self.stage.config_map(name, &json!({}))).collect();
        json!({"clusterDeploymentSelector": {"matchLabels": {"env": env}}, "resourceApplyMode": "Sync",
            "enableResourceTemplates": true, "resources": maps})
    }

    fn names(&self) -> Vec<String> {
        self.objects.lock().keys().cloned().collect()
    }

    /// Waits until all clusters together have so many objects.
    async fn count(&self, expected: usize) {
        let outcome = eventually(format!("{expected} objects"), LIMIT, async || {
            let names = self.names();
            if names.len() == expected { Ok(()) } else { Err(format!("{names:?}")) }
        });
        if let Err(error) = outcome.await {
            panic!("{error}\n{}", self.stage.log());
        }
    }

    /// Waits until every one of these clusters says that the syncset is held.
    async fn is_held(&self, clusters: impl Iterator<Item = usize>) {
        for cluster in clusters {
            let held = |status: &Value| condition(status, "Held").is_some();
            let status = self.stage.status(&format!("c-{cluster}"), "the condition Held", held).await;
            let held = condition(&status, "Held").unwrap();
            assert_eq!((&held["status"], &held["reason"]), (&json!("True"), &json!("MassDeletion")), "{held}");
            assert_eq!(
                held["message"],
                "deletions of SelectorSyncSet fleet are held until they are checked and approved"
            );
        }
    }

    async fn is_held_no_more(&self) {
        for cluster in 0..CLUSTERS {
            let free = |status: &Value| condition(status, "Held").is_none();
            self.stage.status(&format!("c-{cluster}"), "no condition Held", free).await;
        }
    }
}

#[test]
fn a_typo_in_a_selector_is_held_until_it_is_taken_back() {
    run(async {
        let fleet = Fleet::new("typo").await;
        let stage = &fleet.stage;
        let before = fleet.names();
        let diff = async |env: &str| {
            let document = json!({"kind": "SelectorSyncSet", "name": "fleet", "spec": fleet.spec(env, &["site"])});
            stage.compared(&document).await.lines().next().unwrap().to_owned()
        };
        let told = "SelectorSyncSet fleet: 0 clusters (0 new, 12 no longer); held: yes (12 of at most 10 lose objects)";
        assert_eq!(diff("prodd").await, told, "it is told before");
        stage.replace_spec("selectorsyncsets", "fleet", &fleet.spec("prodd", &["site"])).await;
        fleet.is_held(0..CLUSTERS).await;
        eventually("the report to count what is held", LIMIT, async || {
            let report =
                stage.replicas[0].towline().admin().section("syncsets").await.map_err(|error| error.to_string())?;
            let is_counted = report.to_string().contains("would delete objects on 12 of 12 clusters, 12 in all: ");
            if is_counted { Ok(()) } else { Err(report["not_in_step"].to_string()) }
        })
        .await
        .unwrap();
        let told = stage.explained("c-0", "ConfigMap/typo/site").await;
        has_lines(
            &told,
            &[
                "wanted by  no syncset",
                "if dropped dropped already: its deletion by SelectorSyncSet fleet is held; `towline approve syncsets --list` says why",
            ],
        );
        stage.at_rest().await;
        stage.full_pass().await;
        assert_eq!(fleet.names(), before, "nothing is deleted");
        assert!(stage.log().contains("approve syncsets fleet"), "the remedy is told");
        stage.replace_spec("selectorsyncsets", "fleet", &fleet.spec("prod", &["site"])).await;
        fleet.is_held_no_more().await;
        stage.at_rest().await;
        assert_eq!(fleet.names(), before);
    });
}

#[test]
fn labels_that_are_wiped_one_by_one_delete_until_the_limit() {
    run(async {
        let fleet = Fleet::new("wiped").await;
        for cluster in 0..CLUSTERS {
            let path = fleet.stage.path("clusters", &format!("c-{cluster}"));
            fleet.stage.change(&path, &json!({"labels": {"env": null}})).await;
            // Each by itself.
            fleet.stage.at_rest().await;
        }
        fleet.is_held(10..CLUSTERS).await;
        assert_eq!(fleet.names().len(), 2, "{:?}", fleet.names());
        // One that is held and one that has lost its object come back: the latter counts all the same, and a diff says so.
        for cluster in ["c-0", "c-11"] {
            fleet.stage.change(&fleet.stage.path("clusters", cluster), &json!({"labels": {"env": "prod"}})).await;
        }
        fleet.count(3).await;
        fleet.stage.at_rest().await;
        let spec = fleet.spec("prod", &["site"]);
        let document = json!({"kind": "SelectorSyncSet", "name": "fleet", "spec": spec});
        let told = fleet.stage.compared(&document).await;
        let first =
            "SelectorSyncSet fleet: 2 clusters (0 new, 0 no longer); held: yes (11 of at most 10 lose objects)\n";
        assert!(told.starts_with(first), "{told}");
    });
}

#[test]
fn labels_that_give_objects_other_names_delete_the_former_until_the_limit() {
    run(async {
        let fleet = Fleet::with("othernames", "site-{{ fromCDLabel \"region\" }}").await;
        let stage = &fleet.stage;
        let relabel = async |cluster: usize, region: &str| {
            let path = stage.path("clusters", &format!("c-{cluster}"));
            stage.change(&path, &json!({"labels": {"region": region}})).await;
            // Each by itself.
            stage.at_rest().await;
        };
        let names = |cluster: usize| -> Vec<String> {
            let of_cluster = format!("/c-{cluster}/");
            let names = fleet.names().into_iter().filter(|name| name.starts_with(&of_cluster));
            names.map(|name| name.rsplit('/').next().unwrap().to_owned()).collect()
        };
        for cluster in 0..CLUSTERS {
            relabel(cluster, "b").await;
        }
        fleet.is_held(10..CLUSTERS).await;
        for cluster in 0..10 {
            assert_eq!(names(cluster), ["site-b"], "below the limit");
        }
        for cluster in 10..CLUSTERS {
            assert_eq!(names(cluster), ["site-a", "site-b"], "what it wants is applied all the same");
        }
        stage.full_pass().await;
        assert_eq!(fleet.names().len(), CLUSTERS + 2, "nothing is deleted");
        assert!(stage.log().contains("most of its objects there would be deleted"), "the cause is told");
        // Taken back, what was made under the other name is to be deleted, which counts like anything else.
        relabel(11, "a").await;
        fleet.is_held(10..CLUSTERS).await;
        assert_eq!(
            (names(10), names(11)),
            (vec!["site-a".to_owned(), "site-b".to_owned()], vec!["site-a".to_owned(), "site-b".to_owned()])
        );
        let generation = stage.get("selectorsyncsets/fleet").await["generation"].to_string();
        let approval = json!({"annotations": {"towline.dev/approve-deletions": generation}});
        stage.change("selectorsyncsets/fleet", &approval).await;
        fleet.is_held_no_more().await;
        fleet.count(CLUSTERS).await;
        assert_eq!((names(10), names(11)), (vec!["site-b".to_owned()], vec!["site-a".to_owned()]), "approved");
    });
}

#[test]
fn a_syncset_that_drops_most_is_held_applies_go_on_and_its_generation_approves() {
    run(async {
        let fleet = Fleet::new("dropped").await;
        let stage = &fleet.stage;
        stage.replace_spec("selectorsyncsets", "fleet", &fleet.spec("prod", &["other"])).await;
        fleet.is_held(0..CLUSTERS).await;
        // What it wants is applied all the same, which is not all that it wants.
        fleet.count(2 * CLUSTERS).await;
        let applied = |status: &Value| condition(status, "Failed").is_some_and(|failed| failed["reason"] == "Held");
        let status = stage.status("c-0", "nothing to be called done", applied).await;
        let entry = &status["selectorSyncSets"][0];
        assert_eq!((entry.get("result"), &entry["reason"]), (None, &json!("Held")), "{status}");
        assert_eq!(condition(&status, "Failed").unwrap()["status"], "Unknown", "{status}");
        stage.replace_spec("selectorsyncsets", "fleet", &fleet.spec("prod", &["other", "third"])).await;
        fleet.count(3 * CLUSTERS).await;
        let generation = stage.get("selectorsyncsets/fleet").await["generation"].to_string();
        // Another generation's approval is none.
        let approve = async |value: &str| {
            let annotations = json!({"annotations": {"towline.dev/approve-deletions": value}});
            stage.change("selectorsyncsets/fleet", &annotations).await;
            stage.at_rest().await;
        };
        approve("1").await;
        fleet.is_held(0..CLUSTERS).await;
        assert_eq!(fleet.names().len(), 3 * CLUSTERS);
        approve(&generation).await;
        fleet.count(2 * CLUSTERS).await;
        assert!(fleet.names().iter().all(|name| !name.ends_with("/site")), "{:?}", fleet.names());
        fleet.is_held_no_more().await;
    });
}

#[test]
fn a_syncset_that_is_deleted_by_mistake_is_held_and_another_one_takes_its_objects() {
    run(async {
        let fleet = Fleet::new("mistake").await;
        let stage = &fleet.stage;
        let before = fleet.names();
        stage.remove("selectorsyncsets/fleet").await;
        fleet.is_held(0..CLUSTERS).await;
        stage.at_rest().await;
        stage.full_pass().await;
        assert_eq!(fleet.names(), before, "nothing is deleted");
        let status = stage.status("c-0", "its entry", |status| status["selectorSyncSets"][0].is_object()).await;
        let entry = &status["selectorSyncSets"][0];
        assert_eq!((&entry["observedGeneration"], &entry["result"]), (&json!(0), &json!("Failure")), "{entry}");
        // Created again, it keeps them.
        stage.create("selectorsyncsets", &json!({"name": "fleet", "spec": fleet.spec("prod", &["site"])})).await;
        fleet.is_held_no_more().await;
        stage.at_rest().await;
        assert_eq!(fleet.names(), before);
    });
}

/// Deletes a syncset as people do, who are told beforehand what waits.
async fn is_deleted_by_command(stage: &Stage, name: &str) {
    let server = format!("http://{}", stage.replicas[0].api());
    let output = Towline::command(["delete", "selectorsyncsets", name, "--hub", &server]).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("SelectorSyncSet/{name} deleted\n"), "{output:?}");
    let expected = format!(
        "its objects are deleted on its clusters; on all of two or more, and with a Namespace, CRD \
         or PVC on any, that waits for: towline approve syncsets {name}\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

/// With a namespace goes everything in it, so one cluster is too many.
#[test]
fn a_namespace_on_the_only_cluster_is_held_and_deleted_once_it_is_approved() {
    run(async {
        let stage = Stage::new("precious").await;
        let plane = stage.register("west-1", &json!({"env": "prod", "kept": "1"}), 0).await;
        let namespaces: Api<Namespace> = Api::all(plane.client(ADMIN).await.unwrap());
        let is_there = async |name: &str| {
            namespaces.get_opt(name).await.unwrap().is_some_and(|found| found.metadata.deletion_timestamp.is_none())
        };
        let space = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let held = async || {
            let status =
                stage.status("west-1", "the deletions to be held", |status| condition(status, "Held").is_some()).await;
            stage.at_rest().await;
            status
        };
        let approve = async |name: &str| {
            let (is_done, told) = command(&stage, &["approve", "--yes", "syncsets", name]).await;
            assert!(is_done, "{told}");
            stage.status("west-1", "nothing to be held", |status| condition(status, "Held").is_none()).await;
        };
        let gone = async |name: &str| {
            eventually(format!("{name} to be deleted"), LIMIT, async || {
                if is_there(name).await { Err(stage.log()) } else { Ok(()) }
            })
            .await
            .unwrap();
        };
        // It is deleted, matches the cluster no more, or drops it beside much that stays.
        for way in ["deleted", "unmatched", "edited"] {
            let name = format!("precious-{way}");
            let map = |number: usize| stage.config_map(&format!("{way}-{number}"), &json!({}));
            let spec = json!({"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}}, "resourceApplyMode": "Sync",
                "resources": [space(&name), map(0), map(1), map(2)]});
            stage.create("selectorsyncsets", &json!({"name": name, "spec": spec})).await;
            stage.succeeds("west-1", &name, 1).await;
            match way {
                "deleted" => is_deleted_by_command(&stage, &name).await,
                "unmatched" => {
                    drop(stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"env": "dev"}})).await);
                }
                _ => {
                    let mut edited = spec.clone();
                    edited["resources"] = json!([map(0), map(1), map(2)]);
                    let told = stage.compared(&json!({"kind": "SelectorSyncSet", "name": name, "spec": edited})).await;
                    let first =
                        format!("SelectorSyncSet {name}: 1 cluster (0 new, 0 no longer); held: yes (deletions on 1)\n");
                    assert!(
                        told.starts_with(&first) && told.contains(&format!("Namespace {name} is deleted")),
                        "{told}"
                    );
                    // What takes nothing along is no more than half.
                    edited["resources"] = json!([space(&name), map(0), map(1)]);
                    let told = stage.compared(&json!({"kind": "SelectorSyncSet", "name": name, "spec": edited})).await;
                    let first = format!("SelectorSyncSet {name}: 1 cluster (0 new, 0 no longer); held: no\n");
                    let dropped = format!("ConfigMap {}/{way}-2 is deleted", stage.namespace);
                    assert!(told.starts_with(&first) && told.contains(&dropped), "{told}");
                    edited["resources"] = json!([map(0), map(1), map(2)]);
                    stage.replace_spec("selectorsyncsets", &name, &edited).await;
                }
            }
            let status = held().await;
            assert!(is_there(&name).await, "{way}: {status}");
            approve(&name).await;
            gone(&name).await;
            stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"env": "prod"}})).await;
            stage.at_rest().await;
        }
        // What takes nothing along is deleted on the only cluster at once.
        stage.syncset("plain", "Sync", &[stage.config_map("plain", &json!({}))]).await;
        stage.succeeds("west-1", "plain", 1).await;
        stage.remove(&stage.path("syncsets", "plain")).await;
        let maps = stage.maps(plane).await;
        eventually("it to be deleted", LIMIT, async || match maps.get_opt("plain").await.unwrap() {
            Some(_) => Err(stage.log()),
            None => Ok(()),
        })
        .await
        .unwrap();
    });
}

/// What else takes others along: a definition its objects, a claim its data.
#[test]
fn a_definition_and_a_claim_on_the_only_cluster_are_held_and_deleted_once_that_is_approved() {
    run(async {
        let stage = Stage::new("takes-along").await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        let client = plane.client(ADMIN).await.unwrap();
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": stage.namespace},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        for object in [definition("takes-along.example.com"), claim] {
            let is_alive = async || is_alive(&client, &object).await;
            let kind = object["kind"].as_str().unwrap();
            let name = kind.to_lowercase();
            let map = |number: usize| stage.config_map(&format!("{name}-{number}"), &json!({}));
            let spec = json!({"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}}, "resourceApplyMode": "Sync",
                "resources": [&object, map(0), map(1), map(2)]});
            stage.create("selectorsyncsets", &json!({"name": name, "spec": spec})).await;
            stage.succeeds("west-1", &name, 1).await;
            is_deleted_by_command(&stage, &name).await;
            let status =
                stage.status("west-1", "the deletions to be held", |status| condition(status, "Held").is_some()).await;
            stage.at_rest().await;
            assert!(is_alive().await, "{kind}: {status}");
            let (is_done, told) = command(&stage, &["approve", "--yes", "syncsets", &name]).await;
            assert!(is_done, "{told}");
            eventually(format!("the {kind} to be deleted"), LIMIT, async || {
                if is_alive().await { Err(stage.log()) } else { Ok(()) }
            })
            .await
            .unwrap();
        }
    });
}

/// Whether an object is there and not being deleted.
async fn is_alive(client: &Client, object: &Value) -> bool {
    let types: TypeMeta = serde_json::from_value(object.clone()).unwrap();
    let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
    let all: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    let found = all.get_opt(object["metadata"]["name"].as_str().unwrap()).await.unwrap();
    found.is_some_and(|found| found.metadata.deletion_timestamp.is_none())
}

#[test]
fn deletions_on_all_of_two_clusters_are_held_and_on_one_of_them_are_not() {
    run(async {
        let stage = Stage::new("pair").await;
        let planes = [stage.register("west-1", &json!({}), 0).await, stage.register("west-2", &json!({}), 1).await];
        assert!(std::ptr::eq(planes[1], edge(1).await));
        let spec = |clusters: &[&str]| {
            let clusters: Vec<Value> = clusters.iter().map(|name| json!({"name": name})).collect();
            json!({"clusterDeploymentRefs": clusters, "resourceApplyMode": "Sync",
                "resources": [stage.config_map("one", &json!({})), stage.config_map("two", &json!({}))]})
        };
        let both = json!({"namespace": "pair", "name": "base", "spec": spec(&["west-1", "west-2"])});
        stage.create("syncsets", &both).await;
        let of = |name: &'static str| (name, Value::Null);
        for plane in planes {
            stage.has(plane, &[of("one"), of("two")]).await;
        }
        stage.at_rest().await;
        stage.remove(&stage.path("syncsets", "base")).await;
        for cluster in ["west-1", "west-2"] {
            stage.status(cluster, "its deletions to be held", |status| condition(status, "Held").is_some()).await;
        }
        stage.at_rest().await;
        for plane in planes {
            stage.has(plane, &[of("one"), of("two")]).await;
        }
        let (is_done, told) = command(&stage, &["approve", "--yes", "syncsets", "pair/base"]).await;
        assert!(is_done && told.contains("pair/base"), "{told}");
        for plane in planes {
            stage.has(plane, &[]).await;
        }
        // One of the two alone is no mistake that spreads.
        stage.create("syncsets", &both).await;
        for plane in planes {
            stage.has(plane, &[of("one"), of("two")]).await;
        }
        stage.at_rest().await;
        stage.replace_spec("syncsets", "base", &spec(&["west-1"])).await;
        stage.has(planes[1], &[]).await;
        stage.has(planes[0], &[of("one"), of("two")]).await;
    });
}
