//! Documents that change while a pass is under way, each time before it deletes something.

use std::collections::BTreeMap;
use std::sync::Arc;

use integration::eventually;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::syncsets::script::{Says, Script};
use crate::syncsets::world::{LIMIT, Stage, run};

const SECTION: &str = "[syncsets]\nallow = [\"local-networks\", \"plain-http\"]\nrequest_timeout = \"10m\"";

/// A cluster of config maps. The looks at those that are there and whose names begin with `gone` need a permit each.
async fn config_maps(looks: Arc<Semaphore>) -> Script {
    let maps: Arc<Mutex<BTreeMap<String, Value>>> = Arc::default();
    Script::start_with(move |line, body| {
        let mut words = line.split(' ');
        let (verb, path) = (words.next().unwrap(), words.next().unwrap().split('?').next().unwrap());
        let name = path.rsplit('/').next().unwrap().to_owned();
        let metadata = |fields: &Value| {
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": fields}).to_string()
        };
        let mut maps = maps.lock();
        match (verb, path) {
            (_, "/version") => Says::Body(200, json!({"major": "1"}).to_string()),
            (_, "/api/v1/namespaces/kube-system") => {
                Says::Body(200, metadata(&json!({"name": name, "uid": "of-maps", "resourceVersion": "7"})))
            }
            (_, "/api/v1") => {
                let kind = json!({"name": "configmaps", "singularName": "configmap", "namespaced": true, "kind": "ConfigMap",
                    "verbs": ["get", "list", "create", "patch", "delete"]});
                let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [kind]});
                Says::Body(200, list.to_string())
            }
            ("PATCH", _) => {
                let mut fields = serde_json::from_slice::<Value>(body).unwrap()["metadata"].clone();
                (fields["uid"], fields["resourceVersion"]) = (json!(format!("uid-of-{name}")), json!("8"));
                let is_new = maps.insert(name, fields.clone()).is_none();
                Says::Body(if is_new { 201 } else { 200 }, metadata(&fields))
            }
            ("DELETE", _) => {
                maps.remove(&name);
                Says::Body(200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}).to_string())
            }
            _ => match maps.get(&name) {
                Some(fields) if name.starts_with("gone") => Says::Later(Arc::clone(&looks), 200, metadata(fields)),
                Some(fields) => Says::Body(200, metadata(fields)),
                None => {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                        "message": "not found", "details": {"name": name, "kind": "configmaps"}});
                    Says::Body(404, status.to_string())
                }
            },
        }
    })
    .await
}

/// The requests for config maps, as verbs and names.
fn requests(server: &Script) -> Vec<String> {
    let of_map = |line: &String| {
        let (verb, path) = line.split_once(' ')?;
        let name = path.split(['?', ' ']).next()?.rsplit_once("/configmaps/")?.1;
        Some(format!("{verb} {name}"))
    };
    server.requests().iter().filter_map(of_map).collect()
}

async fn requested(server: &Script, since: usize, what: &[&str]) {
    eventually(format!("{what:?}"), LIMIT, async || {
        let found = requests(server).split_off(since);
        if found == what { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await
    .unwrap();
}

/// Waits until the dispatcher has seen everything, and the claim is renewed: for so long nothing has told the pass anything.
async fn time_passes(stage: &Stage) {
    let claim = "select extract(epoch from w.until)::float8, (select c.cursor >= (select max(version) from towline_log) \
           from towline_claim c where c.name = 'dispatcher') from towline_work w where w.until > now()";
    let before: f64 = stage.sql.query_one(claim, &[]).await.unwrap().get(0);
    eventually("the claim to be renewed", LIMIT, async || {
        let row = stage.sql.query_one(claim, &[]).await.map_err(|error| error.to_string())?;
        let is_later = row.get::<_, f64>(0) > before + 5.0;
        if is_later && row.get(1) { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await
    .unwrap();
}

/// A change that concerns nothing of what is wanted delays no deletion. One that may concern it puts the deletion off and keeps nothing
/// from being sent: a document that changes as often as a pass comes to a deletion would keep it from that for ever.
#[test]
fn a_document_that_changes_before_a_deletion_keeps_nothing_from_being_sent() {
    run(async {
        let stage = Stage::with("churning", SECTION, 1).await;
        let looks = Arc::new(Semaphore::new(0));
        let server = config_maps(Arc::clone(&looks)).await;
        stage.registers("west-1", &server.kubeconfig()).await;
        let map = |name: &str| stage.config_map(name, &json!({}));
        let west = stage.path("clusters", "west-1");
        // One of them is applied at a time, by the cluster's label.
        for (turn, name) in [("1", "gone-1"), ("2", "gone-2"), ("3", "gone-3")] {
            let spec = json!({"clusterDeploymentSelector": {"matchLabels": {"turn": turn}}, "resourceApplyMode": "Sync",
                "resources": [map(name)]});
            stage.create("selectorsyncsets", &json!({"name": format!("churning-{turn}"), "spec": spec})).await;
        }
        let turn = async |turn: &str| stage.change(&west, &json!({"labels": {"turn": turn}})).await;
        turn("1").await;
        requested(&server, 0, &["GET gone-1", "PATCH gone-1"]).await;
        stage.at_rest().await;

        let since = requests(&server).len();
        turn("2").await;
        requested(&server, since, &["GET gone-2", "GET gone-1"]).await;
        stage.change(&west, &json!({"annotations": {"note": "nobody minds"}})).await;
        time_passes(&stage).await;
        looks.add_permits(1);
        requested(&server, since, &["GET gone-2", "GET gone-1", "DELETE gone-1", "PATCH gone-2"]).await;
        stage.at_rest().await;

        let since = requests(&server).len();
        turn("3").await;
        requested(&server, since, &["GET gone-3", "GET gone-2"]).await;
        let more = json!({"spec": {"resources": [map("gone-3"), map("gone-4")]}});
        stage.change("selectorsyncsets/churning-3", &more).await;
        time_passes(&stage).await;
        looks.add_permits(1);
        // The pass sends what it has, and the next one looks again.
        let next = ["GET gone-3", "GET gone-2", "PATCH gone-3", "GET gone-4", "GET gone-2"];
        requested(&server, since, &next).await;
        looks.add_permits(1);
        requested(&server, since, &[&next[..], &["DELETE gone-2", "PATCH gone-4"]].concat()).await;
        stage.at_rest().await;

        // A pause ends it.
        let since = requests(&server).len();
        turn("1").await;
        requested(&server, since, &["GET gone-1", "GET gone-3"]).await;
        stage.change(&west, &json!({"paused": true})).await;
        time_passes(&stage).await;
        looks.add_permits(1);
        stage.at_rest().await;
        requested(&server, since, &["GET gone-1", "GET gone-3"]).await;
    });
}
