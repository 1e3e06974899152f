//! A pass whose turn comes late, when what it was planned by no longer holds.

use integration::eventually;
use serde_json::{Value, json};

use crate::syncsets::requests::Requests;
use crate::syncsets::script::{Says, Script};
use crate::syncsets::watching::Watching;
use crate::syncsets::world::{LIMIT, Stage, run};

/// One slot to work on a cluster, and one slot for one that takes long.
const SECTION: &str =
    "[syncsets]\nallow = [\"local-networks\", \"plain-http\"]\nmax_in_flight = 1\nrequest_timeout = \"10m\"";

/// A cluster that answers everything but writes.
async fn stuck(uid: &'static str) -> Script {
    Script::start(move |line| {
        let path = line.split(' ').nth(1).unwrap().split('?').next().unwrap();
        let (status, body) = match path {
            _ if line.starts_with("PATCH") => return Says::Nothing,
            "/version" => (200, json!({"major": "1"})),
            "/api/v1/namespaces/kube-system" => (
                200,
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"name": "kube-system", "uid": uid, "resourceVersion": "1"}}),
            ),
            "/api/v1" => {
                let kind = json!({"name": "configmaps", "singularName": "configmap", "namespaced": true, "kind": "ConfigMap",
                    "verbs": ["get", "list", "create", "patch", "delete"]});
                (200, json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [kind]}))
            }
            _ => (
                404,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                    "message": "not found", "details": {"name": path.rsplit('/').next(), "kind": "configmaps"}}),
            ),
        };
        Says::Body(status, body.to_string())
    })
    .await
}

/// Two clusters that are being written to for ever: one has the slot of those that take long, the other one the permit.
async fn occupied(stage: &Stage) -> Vec<Script> {
    let mut servers = Vec::new();
    for (name, uid) in [("stuck-1", "uid-1"), ("stuck-2", "uid-2")] {
        let server = stuck(uid).await;
        let cluster = json!({"namespace": stage.namespace, "name": name, "labels": {"env": "stuck"},
            "kubeconfig": server.kubeconfig().to_string()});
        stage.create("clusters", &cluster).await;
        let outcome = eventually("a write that is not answered", LIMIT, async || {
            let requests = server.requests();
            let is_written = requests.iter().any(|line| line.starts_with("PATCH"));
            if is_written { Ok(()) } else { Err(format!("{requests:?}")) }
        });
        if let Err(error) = outcome.await {
            panic!("{error}\n{}", stage.log());
        }
        servers.push(server);
    }
    servers
}

/// A label is lost, and the deletions that follow are checked and begin. They wait for a slot, and meanwhile somebody restores the
/// label, or pauses the cluster.
#[test]
fn a_pass_that_has_waited_for_its_turn_deletes_nothing_that_is_wanted_again_or_while_it_is_paused() {
    run(async {
        let stage = Stage::with("overtaken", SECTION, 1).await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        for (name, env) in [("overtaken-site", "prod"), ("overtaken-stuck", "stuck")] {
            let spec = json!({"clusterDeploymentSelector": {"matchLabels": {"env": env}}, "resourceApplyMode": "Sync",
                "resources": [stage.config_map("site", &json!({"of": env}))]});
            stage.create("selectorsyncsets", &json!({"name": name, "spec": spec})).await;
        }
        stage.succeeds("west-1", "overtaken-site", 1).await;
        for change in [json!({"labels": {"env": "prod"}}), json!({"paused": true})] {
            let servers = occupied(&stage).await;
            let hub = stage.replicas[0].towline().admin().section("hub").await.unwrap();
            let (roles, work) = (hub["claims"].as_array().unwrap(), hub["work_claims"].as_array().unwrap());
            assert!(roles.iter().any(|claim| claim["role"] == "dispatcher" && claim["token"] == 1), "{hub}");
            let is_held = |claim: &Value| claim["holder"] == hub["holder"] && claim["held_seconds"].is_u64();
            assert!(work.len() >= 2 && work.iter().all(is_held), "two clusters are being written to: {hub}");
            let watching = Watching::begin(&stage, plane).await;
            let mut requests = Requests::from_now(&stage, plane).await;
            stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"env": "lost"}})).await;
            eventually("the object to be looked at before it is deleted", LIMIT, async || {
                let seen = requests.seen().await;
                if seen.iter().any(|line| line.starts_with("get configmaps/site")) {
                    Ok(())
                } else {
                    Err("no look".to_owned())
                }
            })
            .await
            .unwrap();
            stage.change(&stage.path("clusters", "west-1"), &change).await;
            // Its claim is renewed every 6 s: so long nothing has told the pass anything.
            let claim = "select extract(epoch from w.until)::float8 from towline_work w join clusters c on c.id = w.cluster \
                 where c.name = 'west-1' and w.until > now()";
            let before: f64 = stage.sql.query_one(claim, &[]).await.unwrap().get(0);
            eventually("the claim to be renewed", LIMIT, async || {
                let row = stage.sql.query_one(claim, &[]).await.map_err(|error| error.to_string())?;
                if row.get::<_, f64>(0) > before + 5.0 { Ok(()) } else { Err("not yet".to_owned()) }
            })
            .await
            .unwrap();
            for name in ["stuck-1", "stuck-2"] {
                stage.remove(&stage.path("clusters", name)).await;
            }
            drop(servers);
            stage.at_rest().await;
            assert_eq!(watching.deleted(&stage, plane).await, Vec::<String>::new(), "{change}");
            let names: Vec<Value> = stage.config_maps(plane).await.iter().map(|map| json!(map.metadata.name)).collect();
            assert_eq!(names, ["site"], "{change}");
        }
        // What was put off is done when the cluster goes on.
        stage.pause(false).await;
        stage.has(plane, &[]).await;
    });
}
