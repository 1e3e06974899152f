//! First contact with objects: those that somebody has made in place of ours, and those of Hive. Whole passes
//! against a real server, with a database of maps.

use std::collections::BTreeMap;

use integration::Filter;
use integration::users::EDGE_CONTROLLER;
use serde_json::{Value, json};
use towline::test_api::cluster::{Clock, Error, Fence, Kind, Payload, Request};
use towline::test_api::syncset::plan::name::{Digest, ObjectRef, SyncSetKind, SyncSetName};
use towline::test_api::syncset::plan::object::normalize;
use towline::test_api::syncset::plan::pass::{End, Input, Outcome, Progress, Writes, pass};
use towline::test_api::syncset::plan::rows::AppliedRow;
use towline::test_api::syncset::plan::spec::{Behavior, Desired, Header, Mode, Position, Rendered, Rendering};
use towline::test_api::syncset::plan::wanted::{Deletions, Live};
use towline::test_api::syncset::work::{Client, Executor, Stop};

use crate::edges::cluster_state::OnEdge;
use crate::edges::world::{Edge, LIMIT, config_maps, custom, run};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn deployments() -> Kind {
    let mut kind = Kind::core("Deployment", "deployments", true);
    "apps".clone_into(&mut kind.resource.group);
    "apps/v1".clone_into(&mut kind.resource.api_version);
    kind
}

/// A syncset with one object, and what is stored of it.
struct Applied {
    client: Client,
    fence: Fence,
    behavior: Behavior,
    rows: BTreeMap<ObjectRef, AppliedRow>,
    passes: u8,
}

impl Applied {
    fn new(edge: &Edge, behavior: Behavior) -> Self {
        let fence = Fence::new("contacts", Clock::Boot);
        fence.open(fence.now() + LIMIT);
        Self { client: Client::new(edge.cluster.clone()), fence, behavior, rows: BTreeMap::new(), passes: 0 }
    }

    fn live(&self, kind: &Kind, mut body: Value) -> Live {
        let name =
            SyncSetName { kind: SyncSetKind::SyncSet, namespace: "team".to_owned(), name: "contacts".to_owned() };
        let id = "00000000-0000-0000-0000-000000000001".parse().unwrap();
        normalize(&mut body, &name, id).unwrap();
        let text = |at: &str| body["metadata"][at].as_str().unwrap().to_owned();
        let object = ObjectRef {
            group: kind.resource.group.clone(),
            kind: kind.resource.kind.clone(),
            namespace: text("namespace"),
            name: text("name"),
        };
        let desired = Desired {
            place: Position::Resource(0),
            object,
            api_version: kind.resource.api_version.clone(),
            content: Digest([self.passes; 32]),
            body,
            may_adopt: false,
            may_recreate: false,
        };
        Live {
            header: Header {
                id,
                name,
                version: i64::from(self.passes),
                generation: i64::from(self.passes),
                behavior: self.behavior,
                mode: Mode::Sync,
                resource_templates: false,
                patch_templates: false,
                health: None,
                secrets: Vec::new(),
            },
            inputs: Digest([self.passes; 32]),
            rendered: Some(Rendered { resources: vec![Rendering::Ready(desired)], ..Rendered::default() }),
            deletions: Deletions::Allowed,
        }
    }

    fn input(&mut self, kind: &Kind, body: &Value) -> Input {
        self.passes += 1;
        Input {
            live: vec![self.live(kind, body.clone())],
            gone: BTreeMap::new(),
            awaited: Vec::new(),
            applied: self.rows.values().cloned().collect(),
            patched: Vec::new(),
            results: Vec::new(),
            full: false,
            another_cluster: false,
            elsewhere: false,
            progress: Progress::default(),
            now: "2026-11-19T08:00:03Z".parse().unwrap(),
        }
    }

    /// Sends the object, as one that is new.
    async fn sends(&mut self, kind: &Kind, body: &Value) -> Outcome {
        let input = self.input(kind, body);
        let Self { client, fence, rows, .. } = self;
        let mut save =
            |writes: &Writes| rows.extend(writes.applied.iter().map(|row| (row.object.clone(), row.clone())));
        let executor = Executor::new(client, fence, LIMIT);
        let (outcome, stop) = pass(&mut OnEdge::new(executor, &mut save), input).await;
        assert!(stop.is_none(), "{stop:?}");
        save(&outcome.writes);
        assert_eq!((outcome.end, &outcome.results[0].failure), (End::Finished, &None));
        outcome
    }

    fn row(&self) -> &AppliedRow {
        self.rows.values().next().unwrap()
    }
}

/// Somebody creates the object after the look at it and before the first write, and the process is killed after that. Nobody could
/// tell afterwards that it was not ours.
#[test]
fn an_object_that_somebody_creates_after_the_look_is_not_ours_even_if_the_process_is_killed_then() {
    run(async {
        let edge = Edge::new("forestalled").await;
        let kind = config_maps();
        for behavior in [Behavior::Apply, Behavior::CreateOrUpdate] {
            let mut applied = Applied::new(&edge, behavior);
            let body = object(&edge, &kind, "ours", false);
            let mut theirs = object(&edge, &kind, "theirs", false);
            theirs["metadata"]["labels"] = json!({});
            let key = edge.key("site");
            let input = applied.input(&kind, &body);
            let mut stored = BTreeMap::new();
            let save =
                |writes: &Writes| stored.extend(writes.applied.iter().map(|row| (row.object.clone(), row.clone())));
            let executor = Executor::new(&mut applied.client, &applied.fence, LIMIT);
            let mut target = OnEdge::new(executor, save);
            target.forestalled = Some(Box::pin(async {
                edge.cluster.change(Request::create(&kind, &key, &theirs).by("somebody")).await.unwrap();
            }));
            let (_, stop) = pass(&mut target, input).await;
            assert_eq!(stop, Some(Stop::Lost), "{behavior:?}: it has written nothing");
            drop(target);
            applied.rows = stored;
            applied.sends(&kind, &body).await;
            assert!(applied.row().adopted, "{behavior:?}");
            let found = edge.metadata(&kind, "site").await.unwrap();
            assert_eq!(
                (found.labels["value"].as_str(), found.annotations["towline.dev/adopted"].as_str()),
                ("ours", "true")
            );
            edge.cluster.remove(&kind, &key, &found.uid, None).await.unwrap();
        }
    });
}

/// An object of each sort of kind, with a value of its own and one that only some have.
fn object(edge: &Edge, kind: &Kind, value: &str, optional: bool) -> Value {
    let mut object = json!({"apiVersion": kind.resource.api_version, "kind": kind.resource.kind,
        "metadata": {"name": "site", "namespace": edge.namespace, "labels": {"hive.openshift.io/managed": "true", "value": value}}});
    match kind.resource.kind.as_str() {
        "ConfigMap" => {
            object["data"] = json!({"value": value});
            if optional {
                object["data"]["optional"] = json!("given");
            }
        }
        "Database" => {
            object["spec"] = json!({"engine": "postgres-16", "parameters": {"value": value}});
            if optional {
                object["spec"]["parameters"]["optional"] = json!("given");
            }
        }
        _ => {
            let container = |name: &str| json!({"name": name, "image": "image"});
            let labels = json!({"app": "site"});
            object["spec"] = json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": [container("main")]}}});
            if optional {
                object["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().push(container("optional"));
            }
        }
    }
    object
}

#[test]
fn a_server_refuses_an_object_with_the_uid_of_another_one_and_creates_none_with_a_uid() {
    run(async {
        let edge = Edge::new("uids").await;
        for kind in [config_maps(), custom("Database", "databases", true), deployments()] {
            let key = edge.key("site");
            let with = |uid: &str| {
                let mut body = object(&edge, &kind, "1", false);
                body["metadata"]["uid"] = json!(uid);
                body
            };
            let other = "0c7e0f0e-0000-4000-8000-000000000000";
            let apply = async |body: Value| {
                edge.cluster.change(Request::apply(&kind, &key, &body).by("towline").forced()).await
            };
            let error = apply(with(other)).await.unwrap_err();
            assert!(matches!(error, Error::Conflict { exists: false, .. }), "{error:?}");
            assert_eq!(edge.metadata(&kind, "site").await, None);
            let made = apply(object(&edge, &kind, "1", false)).await.unwrap();
            let same = apply(with(&made.body.uid)).await.unwrap();
            assert_eq!((same.created, &same.body), (false, &made.body), "the UID is owned by nobody");
            let patch = |body: Value| {
                let is_core = kind.resource.kind != "Database";
                if is_core { Payload::strategic_merge_patch(&body) } else { Payload::merge_patch(&body) }
            };
            let update = async |body: Value| {
                edge.cluster.change(Request::patch(&kind, &key, patch(body)).by("towline-update")).await
            };
            for error in [apply(with(other)).await.unwrap_err(), update(with(other)).await.unwrap_err()] {
                assert!(matches!(error, Error::Rejected { code: 422, .. }), "{error:?}");
            }
            assert_eq!(edge.metadata(&kind, "site").await.as_ref(), Some(&made.body));
            update(with(&made.body.uid)).await.unwrap();
        }
    });
}

#[test]
fn a_pass_adopts_what_is_in_place_of_our_object_and_creates_what_was_deleted() {
    run(async {
        let edge = Edge::new("places").await;
        for kind in [config_maps(), custom("Database", "databases", true)] {
            for behavior in [Behavior::Apply, Behavior::CreateOrUpdate] {
                let mut applied = Applied::new(&edge, behavior);
                applied.sends(&kind, &object(&edge, &kind, "1", false)).await;
                let (key, ours) = (edge.key("site"), applied.row().clone());
                edge.cluster.remove(&kind, &key, ours.uid.as_ref().unwrap(), None).await.unwrap();
                edge.is_gone(&kind, "site").await;
                applied.sends(&kind, &object(&edge, &kind, "2", false)).await;
                let again = applied.row().clone();
                assert!(again.uid != ours.uid && !again.adopted && again.content.is_some());
                // Somebody restores it with all its marks.
                edge.cluster.remove(&kind, &key, again.uid.as_ref().unwrap(), None).await.unwrap();
                edge.is_gone(&kind, "site").await;
                let copy = object(&edge, &kind, "copy", false);
                let copy = edge.cluster.change(Request::create(&kind, &key, &copy).by("restore")).await.unwrap().body;
                applied.sends(&kind, &object(&edge, &kind, "3", false)).await;
                assert!(applied.row().adopted && applied.row().uid.as_deref() == Some(&*copy.uid));
                let found = edge.metadata(&kind, "site").await.unwrap();
                assert_eq!((found.uid.clone(), found.labels["value"].as_str()), (copy.uid.clone(), "3"));
                assert_eq!(found.annotations["towline.dev/adopted"], "true");
                edge.cluster.remove(&kind, &key, &copy.uid, None).await.unwrap();
                edge.is_gone(&kind, "site").await;
            }
        }
    });
}

#[test]
fn what_hive_has_applied_is_ours_after_three_requests_and_what_others_own_stays() {
    run(async {
        let edge = Edge::of(EDGE_CONTROLLER, "hive").await;
        for kind in [config_maps(), custom("Database", "databases", true), deployments()] {
            let key = edge.key("site");
            let by = async |manager: &str, patch: Value| {
                let request = Request::patch(&kind, &key, Payload::merge_patch(&patch)).by(manager);
                edge.cluster.change(request).await.unwrap()
            };
            let mut body = object(&edge, &kind, "0", true);
            body["metadata"]["annotations"] = json!({LAST_APPLIED: "{}"});
            body["metadata"]["labels"]["dropped"] = json!("x");
            edge.cluster.change(Request::create(&kind, &key, &body).by("hive6-clustersync")).await.unwrap();
            by(
                "hive6-clustersync",
                json!({"metadata": {"annotations": {LAST_APPLIED: "{\"second\": 1}"}, "labels": {"second": "x"}}}),
            )
            .await;
            by("hive7-clustersync", json!({"metadata": {"labels": {"patched": "x"}}})).await;
            by("kubectl-edit", json!({"metadata": {"labels": {"edited": "x"}}})).await;
            let mut applied = Applied::new(&edge, Behavior::Apply);
            let mark = edge.plane.audit().unwrap().mark().await.unwrap();
            applied.sends(&kind, &object(&edge, &kind, "1", false)).await;
            let filter =
                Filter::since(mark).user(EDGE_CONTROLLER).resource(&kind.resource.plural).namespace(edge.namespace);
            let asked = edge.plane.audit().unwrap().records(&filter).await.unwrap();
            let verbs: Vec<&str> = asked.iter().map(|record| record.verb.as_str()).collect();
            assert_eq!(verbs, ["get", "patch", "patch"], "{asked:?}");

            let found = edge.metadata(&kind, "site").await.unwrap();
            let labels: Vec<&str> = found.labels.keys().map(String::as_str).collect();
            assert_eq!(labels, ["edited", "hive.openshift.io/managed", "patched", "value"]);
            assert!(!found.annotations.contains_key(LAST_APPLIED), "{:?}", found.annotations);
            let mut managers: Vec<_> =
                found.managers.iter().map(|entry| (entry.manager.as_str(), entry.operation.as_str())).collect();
            managers.sort_unstable();
            assert_eq!(managers, [("hive7-clustersync", "Update"), ("kubectl-edit", "Update"), ("towline", "Apply")]);
            let client = edge.cluster.session().unwrap().connection;
            let whole: Value = client.send(Request::get(&kind, &key), "application/json", LIMIT).await.unwrap().0;
            assert!(!whole["spec"].to_string().contains("optional") && whole["data"]["optional"].is_null(), "{whole}");
            assert!(!applied.row().adopted && applied.row().owned.is_some());
            // It is done once.
            let mark = edge.plane.audit().unwrap().mark().await.unwrap();
            applied.sends(&kind, &object(&edge, &kind, "2", false)).await;
            let filter =
                Filter::since(mark).user(EDGE_CONTROLLER).resource(&kind.resource.plural).namespace(edge.namespace);
            assert_eq!(edge.plane.audit().unwrap().count(&filter).await.unwrap(), 1);
        }
    });
}

#[test]
fn a_switch_to_apply_removes_what_another_behavior_has_sent_and_what_others_own_stays() {
    run(async {
        let edge = Edge::of(EDGE_CONTROLLER, "switched").await;
        for kind in [config_maps(), custom("Database", "databases", true), deployments()] {
            for behavior in [Behavior::CreateOrUpdate, Behavior::CreateOnly] {
                let key = edge.key("site");
                let mut applied = Applied::new(&edge, behavior);
                applied.sends(&kind, &object(&edge, &kind, "1", true)).await;
                let edited = json!({"metadata": {"labels": {"edited": "x"}}});
                let edit = Request::patch(&kind, &key, Payload::merge_patch(&edited)).by("kubectl-edit");
                edge.cluster.change(edit).await.unwrap();
                applied.behavior = Behavior::Apply;
                let sent = async |applied: &mut Applied, value: &str| {
                    let mark = edge.plane.audit().unwrap().mark().await.unwrap();
                    applied.sends(&kind, &object(&edge, &kind, value, false)).await;
                    let filter = Filter::since(mark)
                        .user(EDGE_CONTROLLER)
                        .resource(&kind.resource.plural)
                        .namespace(edge.namespace);
                    let asked = edge.plane.audit().unwrap().records(&filter).await.unwrap();
                    asked.iter().map(|record| record.verb.clone()).collect::<Vec<_>>()
                };
                assert_eq!(sent(&mut applied, "2").await, ["get", "patch", "patch"]);
                assert_eq!(sent(&mut applied, "3").await, ["patch"]);
                let found = edge.metadata(&kind, "site").await.unwrap();
                let mut managers: Vec<_> =
                    found.managers.iter().map(|entry| (entry.manager.as_str(), entry.operation.as_str())).collect();
                managers.sort_unstable();
                assert_eq!(managers, [("kubectl-edit", "Update"), ("towline", "Apply")]);
                let labels: Vec<&str> = found.labels.keys().map(String::as_str).collect();
                assert_eq!(labels, ["edited", "hive.openshift.io/managed", "value"]);
                let client = edge.cluster.session().unwrap().connection;
                let whole: Value = client.send(Request::get(&kind, &key), "application/json", LIMIT).await.unwrap().0;
                let is_left = whole["spec"].to_string().contains("optional") || !whole["data"]["optional"].is_null();
                assert!(!is_left, "{whole}");
                assert!(!applied.row().adopted && applied.row().owned.is_some());
                edge.cluster.remove(&kind, &key, &found.uid, None).await.unwrap();
                edge.is_gone(&kind, "site").await;
            }
        }
    });
}
