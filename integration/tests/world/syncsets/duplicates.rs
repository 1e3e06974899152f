//! Several documents whose kubeconfigs lead to one cluster.

use std::sync::Arc;

use integration::hub::Request;
use integration::{ControlPlane, eventually};
use serde_json::{Value, json};

use crate::syncsets::attackers::PLAIN;
use crate::syncsets::guard::{Objects, api};
use crate::syncsets::report::{command, report};
use crate::syncsets::requests::Requests;
use crate::syncsets::script::{Says, Script};
use crate::syncsets::watching::Watching;
use crate::syncsets::world::{LIMIT, SYNCSETS, Stage, WITH_DUPLICATES, condition, run};

/// A `SyncSet` for one cluster.
async fn syncset(stage: &Stage, name: &str, cluster: &str, resources: &[Value]) {
    let spec =
        json!({"clusterDeploymentRefs": [{"name": cluster}], "resourceApplyMode": "Sync", "resources": resources});
    stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
}

/// Waits until a document is shown as a duplicate of another one.
async fn is_duplicate(stage: &Stage, cluster: &str, owner: &str) -> Value {
    let message = format!(
        "the kubeconfig leads to the same cluster as that of {owner}, which owns it: nothing is sent for this document"
    );
    let is_told = |status: &Value| {
        condition(status, "Unreachable")
            .is_some_and(|found| found["reason"] == "Duplicate" && found["message"] == message)
    };
    stage.status(cluster, &format!("{cluster} to be a duplicate of {owner}"), is_told).await
}

/// Lets a document lead to another edge.
async fn leads_to(stage: &Stage, cluster: &str, plane: &ControlPlane) {
    let kubeconfig = stage.kubeconfig(plane, plane.address()).to_string();
    stage.change(&stage.path("clusters", cluster), &json!({"kubeconfig": kubeconfig})).await;
}

#[test]
fn nothing_is_sent_for_the_second_document_of_a_cluster_until_the_first_one_is_gone() {
    run(async {
        let stage = Stage::new("duplicate").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let map = |name: &str| stage.config_map(name, &json!({"of": name}));
        let of = |name: &'static str| (name, json!({"of": name}));
        syncset(&stage, "first", "west-1", &[map("kept"), map("shared")]).await;
        stage.succeeds("west-1", "first", 1).await;
        let mut requests = Requests::from_now(&stage, plane).await;
        syncset(&stage, "second", "west-2", &[map("own"), map("shared")]).await;
        stage.register("west-2", &json!({}), 0).await;
        let status = is_duplicate(&stage, "west-2", "west-1").await;
        assert_eq!(condition(&status, "Failed").unwrap()["reason"], "Pending", "{status}");
        // Whatever changes.
        stage.wants("second", &[map("own"), map("shared"), map("dropped")]).await;
        stage.at_rest().await;
        stage.wants("second", &[map("own"), map("shared")]).await;
        stage.at_rest().await;
        let sent = requests.seen().await;
        assert!(!sent.is_empty() && sent.iter().all(|line| line == "get namespaces/kube-system 200"), "{sent:?}");

        let found = report(&stage, "the duplicate", |report| report["refused_kubeconfigs"] == 1).await;
        assert_eq!((&found["well"], &found["state"]), (&json!(false), &json!("failing")), "{found}");
        let listed = &found["not_in_step"][0];
        assert_eq!((&listed["key"], &listed["reason"]), (&json!("duplicate/west-2"), &json!("Duplicate")), "{found}");
        let (is_well, table) = command(&stage, &["status", "--exit-code"]).await;
        let row = table.lines().find(|line| line.starts_with("duplicate/west-2")).unwrap_or_default();
        assert!(!is_well && row.contains(" → delete this document or the one that owns the cluster"), "{table}");
        let failures = stage.send(&Request::get("/v1/syncset-failures")).await.json().unwrap();
        let named = json!([{"namespace": "duplicate", "name": "west-2"}]);
        assert_eq!((&failures["unreachable"], &failures["unreachableClusters"]), (&json!(1), &named), "{failures}");

        let watching = Watching::begin(&stage, plane).await;
        stage.remove(&stage.path("clusters", "west-1")).await;
        stage.succeeds("west-2", "second", 3).await;
        // Objects that were sent for a deleted document stay.
        stage.has(plane, &["kept", "own", "shared"].map(of)).await;
        assert_eq!(watching.deleted(&stage, plane).await, Vec::<String>::new());
        report(&stage, "nothing to be refused", |report| report["refused_kubeconfigs"] == 0).await;
        // Objects that both documents wanted belong to the second one now.
        stage.wants("second", &[map("own")]).await;
        stage.has(plane, &["kept", "own"].map(of)).await;
    });
}

#[test]
fn the_cluster_of_a_document_that_leads_elsewhere_belongs_to_the_next_one() {
    run(async {
        let stage = Stage::new("passed-on").await;
        let here = stage.register("west-1", &json!({}), 0).await;
        let map = |name: &str| stage.config_map(name, &json!({"of": name}));
        let of = |name: &'static str| (name, json!({"of": name}));
        syncset(&stage, "first", "west-1", &[map("a"), map("both")]).await;
        stage.succeeds("west-1", "first", 1).await;
        syncset(&stage, "second", "west-2", &[map("b"), map("both")]).await;
        stage.register("west-2", &json!({}), 0).await;
        is_duplicate(&stage, "west-2", "west-1").await;
        // Its namespace is there.
        let there = stage.register("scaffold", &json!({}), 1).await;
        stage.remove(&stage.path("clusters", "scaffold")).await;

        leads_to(&stage, "west-1", there).await;
        stage.succeeds("west-2", "second", 1).await;
        stage.has(here, &["a", "b", "both"].map(of)).await;
        stage.has(there, &["a", "both"].map(of)).await;
        // Back there it is the second one, whatever it has sent there before: it deletes nothing.
        leads_to(&stage, "west-1", here).await;
        is_duplicate(&stage, "west-1", "west-2").await;
        stage.wants("first", &[]).await;
        stage.at_rest().await;
        stage.has(here, &["a", "b", "both"].map(of)).await;
        stage.has(there, &["a", "both"].map(of)).await;
    });
}

/// Two replicas find out at once which cluster they lead to.
#[test]
fn of_documents_that_are_registered_at_once_one_owns_the_cluster_and_then_the_next_one() {
    run(async {
        const DOCUMENTS: usize = 5;
        let stage = Stage::with("at-once", SYNCSETS, 2).await;
        let plane = stage.register("scaffold", &json!({}), 0).await;
        stage.remove(&stage.path("clusters", "scaffold")).await;
        let resources = [stage.config_map("site", &json!({"of": "all"}))];
        let spec = json!({"clusterDeploymentSelector": {}, "resourceApplyMode": "Sync", "resources": resources});
        stage.create("selectorsyncsets", &json!({"name": "at-once", "spec": spec})).await;
        let kubeconfig = stage.kubeconfig(plane, plane.address());
        let mut left: Vec<String> = (0..DOCUMENTS).map(|number| format!("c-{number}")).collect();
        futures::future::join_all(left.iter().map(|name| stage.registers(name, &kubeconfig))).await;
        let is_decided = |status: &Value| {
            let is_applied = status["selectorSyncSets"][0]["result"] == "Success";
            is_applied || condition(status, "Unreachable").is_some_and(|found| found["reason"] == "Duplicate")
        };
        for name in &left {
            stage.status(name, "it to be decided", is_decided).await;
        }
        while !left.is_empty() {
            let first =
                "select c.name from towline_identity i join clusters c on c.id = i.cluster order by i.since limit 1";
            let owner: String = stage.sql.query_one(first, &[]).await.unwrap().get(0);
            stage.succeeds(&owner, "at-once", 1).await;
            for name in left.iter().filter(|name| **name != owner) {
                is_duplicate(&stage, name, &owner).await;
            }
            let sent = "select count(distinct cluster) from towline_applied";
            assert_eq!(stage.sql.query_one(sent, &[]).await.unwrap().get::<_, i64>(0), 1, "{}", stage.log());
            stage.has(plane, &[("site", json!({"of": "all"}))]).await;
            stage.remove(&stage.path("clusters", &owner)).await;
            left.retain(|name| *name != owner);
            eventually(format!("nothing to be stored of {owner}"), LIMIT, async || {
                let text = "select count(*) from towline_identity";
                let count: i64 = stage.sql.query_one(text, &[]).await.unwrap().get(0);
                if usize::try_from(count) == Ok(left.len()) { Ok(()) } else { Err(count.to_string()) }
            })
            .await
            .unwrap();
        }
        stage.has(plane, &[("site", json!({"of": "all"}))]).await;
    });
}

/// A tenant's server claims to be another tenant's cluster, and wants there what an administrator takes from that one.
#[test]
fn what_a_server_of_another_namespace_claims_to_be_keeps_nothing_from_being_deleted() {
    run(async {
        const TENANT: &str = "claimed-tenant";
        let stage = Stage::shared("claimed", PLAIN).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let map = |name: &str| stage.config_map(name, &json!({}));
        syncset(&stage, "base", "west-1", &[map("access"), map("one"), map("two")]).await;
        stage.succeeds("west-1", "base", 1).await;

        let (objects, uid) = (Objects::default(), plane.uid().await.unwrap());
        let shared = Arc::clone(&objects);
        let server = Script::start_with(move |line, body| match api(&shared, line, body) {
            Says::Body(200, _) if line.contains("/namespaces/kube-system") => {
                let metadata = json!({"name": "kube-system", "uid": uid, "resourceVersion": "1"});
                let reply =
                    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
                Says::Body(200, reply.to_string())
            }
            says => says,
        })
        .await;
        let kubeconfig = server.kubeconfig_below("/east-1").to_string();
        let cluster = json!({"namespace": TENANT, "name": "east-1", "kubeconfig": kubeconfig});
        stage.create("clusters", &cluster).await;
        let spec = json!({"clusterDeploymentRefs": [{"name": "east-1"}], "resourceApplyMode": "Sync", "resources": [map("access")]});
        stage.create("syncsets", &json!({"namespace": TENANT, "name": "protect", "spec": spec})).await;
        eventually("the tenant's syncset to succeed", LIMIT, async || {
            let found = stage.get(&format!("clustersyncs/{TENANT}/east-1")).await;
            let is_done = found["status"]["syncSets"][0]["result"] == "Success";
            if is_done { Ok(()) } else { Err(found.to_string()) }
        })
        .await
        .unwrap();

        let watching = Watching::begin(&stage, plane).await;
        stage.wants("base", &[map("one"), map("two")]).await;
        stage.succeeds("west-1", "base", 2).await;
        assert_eq!(watching.deleted(&stage, plane).await, ["access"]);
        let status = stage.get(&stage.path("clustersyncs", "west-1")).await;
        assert_eq!(condition(&status["status"], "Unreachable").unwrap()["status"], "False", "{status}");
        assert!(!status.to_string().contains("east-1"), "it is told nothing of another namespace: {status}");
        assert_eq!(objects.lock().len(), 1, "the tenant's server has what it was sent");
    });
}

#[test]
fn with_the_permission_each_document_of_a_cluster_is_worked_on() {
    run(async {
        let stage = Stage::with("permitted", WITH_DUPLICATES, 1).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.register("west-2", &json!({}), 0).await;
        let map = |name: &str| stage.config_map(name, &json!({"of": name}));
        for (name, cluster) in [("first", "west-1"), ("second", "west-2")] {
            syncset(&stage, name, cluster, &[map(name)]).await;
        }
        for (name, cluster) in [("first", "west-1"), ("second", "west-2")] {
            stage.succeeds(cluster, name, 1).await;
        }
        stage.has(plane, &["first", "second"].map(|name| (name, json!({"of": name})))).await;
    });
}
