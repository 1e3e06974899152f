//! Placement decisions: objects that are made, of at most 100 decisions each.

use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::status_sync::world::{PLACEMENT_LABEL, Stage, run};

const DECISIONS: &str = "placementdecisions";

fn reported(placement: &str, clusters: &[String]) -> Value {
    let decisions: Vec<Value> =
        clusters.iter().map(|cluster| json!({"clusterName": cluster, "reason": format!("for {cluster}")})).collect();
    json!({"labels": {PLACEMENT_LABEL: placement}, "status": {"decisions": decisions}})
}

fn clusters(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{prefix}{index:03}")).collect()
}

/// Names of the clusters in the objects of a placement, object by object, in the order of their numbers.
async fn shown(stage: &Stage, placement: &str) -> Vec<Vec<String>> {
    let params = ListParams::default().labels(&format!("{PLACEMENT_LABEL}={placement}"));
    let mut objects = stage.api(DECISIONS).list(&params).await.expect("a list").items;
    objects.sort_by_key(|object| object.name_any().rsplit('-').next().and_then(|number| number.parse::<u32>().ok()));
    let names = |object: &kube::api::DynamicObject| {
        let decisions = object.data.pointer("/status/decisions").and_then(Value::as_array).cloned().unwrap_or_default();
        decisions.iter().map(|decision| decision["clusterName"].as_str().unwrap_or_default().to_owned()).collect()
    };
    objects.iter().map(names).collect()
}

async fn comes_to(stage: &Stage, placement: &str, expected: &[Vec<String>]) {
    integration::eventually(format!("the decisions of {placement}"), crate::status_sync::world::LIMIT, async || {
        let found = shown(stage, placement).await;
        if found == expected { Ok(()) } else { Err(format!("{:?}", found.iter().map(Vec::len).collect::<Vec<_>>())) }
    })
    .await
    .unwrap();
}

#[test]
fn decisions_of_any_number_are_spread_and_gathered_again() {
    run(async {
        let stage = Stage::new("spread").await;
        let uid = stage.wanted("placements", "many").await;
        let towline = stage.start().await;
        for count in [1, 100, 101, 250, 100, 0] {
            let all = clusters("c", count);
            stage.report(DECISIONS, "hub", "any-name", &reported("many", &all)).await;
            let expected: Vec<Vec<String>> =
                if all.is_empty() { vec![vec![]] } else { all.chunks(100).map(<[String]>::to_vec).collect() };
            comes_to(&stage, "many", &expected).await;
        }
        let made = stage.has(DECISIONS, "many-decision-1", |_| true).await;
        assert_eq!(made.data["status"], json!({"decisions": []}), "a list, never null");
        assert_eq!(made.labels().len(), 1);
        let owner = serde_json::to_value(&made.metadata.owner_references).expect("JSON");
        assert_eq!(
            owner,
            json!([{"apiVersion": "cluster.open-cluster-management.io/v1beta1", "kind": "Placement", "name": "many",
                "uid": uid, "controller": true, "blockOwnerDeletion": true}])
        );
        stage.execute("DELETE FROM status.placementdecisions", &[]).await;
        stage.gone(DECISIONS, "many-decision-1").await;
        drop(towline);
    });
}

#[test]
fn owners_are_told_by_their_live_uid_and_objects_follow_an_owner_that_was_made_anew() {
    run(async {
        let stage = Stage::new("owners").await;
        let before = stage.wanted("placements", "again").await;
        stage.report(DECISIONS, "hub", "x", &reported("again", &clusters("c", 2))).await;
        let towline = stage.start().await;
        comes_to(&stage, "again", &[clusters("c", 2)]).await;
        stage.api("placements").delete("again", &DeleteParams::background()).await.expect("it is deleted");
        stage.gone(DECISIONS, "again-decision-1").await;
        stage.family(&towline, DECISIONS, "a waiting row", |report| report["waiting"]["absent"] == 1).await;
        // The row still has the old UID; it is the only one of its name.
        let after = stage.make("placements", "again", &json!({})).await.uid().expect("a UID");
        assert_ne!(before, after);
        comes_to(&stage, "again", &[clusters("c", 2)]).await;
        let made = stage.has(DECISIONS, "again-decision-1", |_| true).await;
        assert_eq!(made.owner_references()[0].uid, after);
    });
}

#[test]
fn other_peoples_objects_are_left_alone() {
    run(async {
        let stage = Stage::new("strange").await;
        let uid = stage.wanted("placements", "mine").await;
        let owned = |uid: &str| {
            json!([{"apiVersion": "cluster.open-cluster-management.io/v1beta1", "kind": "Placement", "name": "mine",
                "uid": uid, "controller": true}])
        };
        // The label without the owner, the owner without the label, and neither.
        stage.make(DECISIONS, "mine-decision-1", &json!({"metadata": {"labels": {PLACEMENT_LABEL: "mine"}}})).await;
        stage.make(DECISIONS, "mine-decision-2", &json!({"metadata": {"ownerReferences": owned(&uid)}})).await;
        stage.make(DECISIONS, "unrelated", &json!({})).await;
        // Ours by both, whatever its name: there is no decision for it.
        let ours = json!({"metadata": {"labels": {PLACEMENT_LABEL: "mine"}, "ownerReferences": owned(&uid)}});
        stage.make(DECISIONS, "left-over", &ours).await;
        stage.report(DECISIONS, "hub", "x", &reported("mine", &clusters("c", 101))).await;
        let since = stage.mark().await;
        let towline = stage.start_with("interval = \"200ms\"\nfamilies = [\"placementdecisions\"]").await;
        stage.family(&towline, DECISIONS, "a taken name", |report| report["waiting"]["foreign"] == 1).await;
        stage.gone(DECISIONS, "left-over").await;
        stage.passes(&towline, DECISIONS, 3).await;
        let requests = stage.requests(since).await;
        assert_eq!(requests.get("delete placementdecisions"), Some(&1), "{requests:?}");
        let of_state =
            ["create configmaps", "get configmaps"].into_iter().filter(|kind| requests.get(*kind) == Some(&1)).count();
        assert_eq!((requests.len(), of_state), (3, 2), "what the section remembers beside that: {requests:?}");
        for name in ["mine-decision-1", "mine-decision-2", "unrelated"] {
            assert!(stage.has(DECISIONS, name, |_| true).await.data.get("status").is_none(), "{name}");
        }
        // A name that becomes free is taken at once.
        stage.api(DECISIONS).delete("mine-decision-1", &DeleteParams::default()).await.expect("it is deleted");
        stage.has(DECISIONS, "mine-decision-1", |object| object.data.pointer("/status/decisions/99").is_some()).await;
    });
}
