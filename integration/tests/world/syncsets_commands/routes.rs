//! The routes that syncsets add to the hub's: each has a line here, or a test fails.

use std::collections::BTreeSet;

use integration::hub::{Client, Request};
use serde_json::{Value, json};

use crate::syncsets_commands::rights::{guarded, token};
use crate::syncsets_commands::world::{Stage, make, run, shown};

/// Method and path, the id of the operation, and the role that it needs in the namespace that a request is about.
const ROUTES: [(&str, &str, &str, &str); 14] = [
    ("get", "/v1/clusters/{namespace}/{name}/explanation", "explainObject", "read"),
    ("get", "/v1/fleet", "countFleet", "read"),
    ("get", "/v1/fleet/clusters", "listClusterStates", "read"),
    ("get", "/v1/rollouts", "listRollouts", "read"),
    ("get", "/v1/selectorsyncsets/{name}/rollout", "getSelectorSyncSetRollout", "read"),
    ("get", "/v1/selectorsyncsets/{name}/rollout/revisions", "listSelectorSyncSetRevisions", "read"),
    ("get", "/v1/syncset-failures", "listSyncSetFailures", "read"),
    ("get", "/v1/syncsets/{namespace}/{name}/rollout", "getSyncSetRollout", "read"),
    ("get", "/v1/syncsets/{namespace}/{name}/rollout/revisions", "listSyncSetRevisions", "read"),
    ("post", "/v1/clusters/resync", "resyncClusters", "write"),
    ("post", "/v1/clusters/{namespace}/{name}/resync", "resyncCluster", "write"),
    ("post", "/v1/selectorsyncsets/{name}/rollout", "steerSelectorSyncSetRollout", "write"),
    ("post", "/v1/syncset-diffs", "diffSyncSet", "write"),
    ("post", "/v1/syncsets/{namespace}/{name}/rollout", "steerSyncSetRollout", "write"),
];
const ROLES: [&str; 3] = ["read", "write", "admin"];

/// A valid request for an operation, about a namespace.
fn request(id: &str, namespace: &str) -> Option<Request> {
    let syncset =
        json!({"kind": "SyncSet", "namespace": namespace, "name": "base", "spec": {"clusterDeploymentRefs": []}});
    let post = |path: &str, body: &Value| Request::post(path, body);
    let (rolled, all) = (format!("/v1/syncsets/{namespace}/rolled/rollout"), "/v1/selectorsyncsets/rolled/rollout");
    let pause = json!({"action": "pause"});
    Some(match id {
        "explainObject" => Request::get(&format!(
            "/v1/clusters/{namespace}/west/explanation?kind=ConfigMap&objectNamespace=a&objectName=b"
        )),
        "countFleet" => Request::get(&format!("/v1/fleet?namespace={namespace}")),
        "listClusterStates" => Request::get(&format!("/v1/fleet/clusters?namespace={namespace}")),
        "listRollouts" => Request::get(&format!("/v1/rollouts?namespace={namespace}")),
        "getSyncSetRollout" => Request::get(&rolled),
        "listSyncSetRevisions" => Request::get(&format!("{rolled}/revisions")),
        "steerSyncSetRollout" => post(&rolled, &pause),
        "getSelectorSyncSetRollout" => Request::get(all),
        "listSelectorSyncSetRevisions" => Request::get(&format!("{all}/revisions")),
        "steerSelectorSyncSetRollout" => post(all, &pause),
        "listSyncSetFailures" => Request::get(&format!("/v1/syncset-failures?namespace={namespace}")),
        "resyncClusters" => post(&format!("/v1/clusters/resync?namespace={namespace}"), &json!({})),
        "resyncCluster" => post(&format!("/v1/clusters/{namespace}/west/resync"), &json!({})),
        "diffSyncSet" => post("/v1/syncset-diffs", &syncset),
        _ => return None,
    })
}

/// Method, path and id of everything that a hub describes.
async fn operations(client: &mut Client) -> BTreeSet<(String, String, String)> {
    let description = shown(client, "/openapi.json").await;
    let mut all = BTreeSet::new();
    for (path, methods) in description.pointer("/paths").and_then(Value::as_object).expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            if let Some(id) = operation.pointer("/operationId").and_then(Value::as_str) {
                all.insert((method.clone(), path.clone(), id.to_owned()));
            }
        }
    }
    all
}

#[test]
fn every_route_of_syncsets_is_described_and_has_a_line_in_the_table() {
    run(async {
        let (with, without) = (Stage::new("routes").await, Stage::with("noroutes", "", &[]).await);
        let own = operations(&mut without.replica.client()).await;
        let all = operations(&mut with.replica.client()).await;
        assert!(!own.is_empty() && own.is_subset(&all), "{own:?}");
        let mounted: BTreeSet<_> = all.difference(&own).cloned().collect();
        let table = ROUTES.map(|(method, path, id, _)| (method.to_owned(), path.to_owned(), id.to_owned()));
        assert_eq!(mounted, BTreeSet::from(table));
    });
}

#[test]
fn every_route_of_syncsets_asks_for_its_role_in_the_namespace_of_the_request() {
    run(async {
        let grants: Vec<(&str, &str)> = ROLES.iter().flat_map(|role| [(*role, "foo"), (*role, "*")]).collect();
        let stage = guarded("roles", &grants).await;
        let mut admin = stage.replica.client().with_token(&token("admin", "*"));
        for namespace in ["foo", "bar"] {
            make(&mut admin, namespace, "west", "prod", true).await;
            let rolled = json!({"namespace": namespace, "name": "rolled", "spec": {"rollout": {}}});
            admin.send(&Request::post("/v1/syncsets", &rolled)).await.expect("an answer").success().expect("a syncset");
        }
        let rolled = json!({"name": "rolled", "spec": {"rollout": {}}});
        admin
            .send(&Request::post("/v1/selectorsyncsets", &rolled))
            .await
            .expect("an answer")
            .success()
            .expect("a syncset");
        let rank = |role: &str| ROLES.iter().position(|one| *one == role).expect("a role");
        for (_, path, id, needed) in ROUTES {
            for namespace in ["foo", "bar"] {
                let request = || request(id, namespace).expect("a request for each route");
                for (role, namespaces) in &grants {
                    let mut client = stage.replica.client().with_token(&token(role, namespaces));
                    let reply = client.send(&request()).await.expect("an answer");
                    let is_within = *namespaces == namespace && !path.starts_with("/v1/selectorsyncsets");
                    let may = rank(role) >= rank(needed) && (*namespaces == "*" || is_within);
                    // What is paused can't be paused.
                    let is_done =
                        (200..300).contains(&reply.status) || (id.starts_with("steer") && reply.status == 409);
                    let is_as_expected = if may { is_done } else { reply.status == 403 };
                    assert!(is_as_expected, "{path} about {namespace} as {role} of {namespaces}: {reply:?}");
                }
                let reply = stage.replica.client().send(&request()).await.expect("an answer");
                assert_eq!(reply.status, 401, "{path} without a token");
            }
        }
    });
}
