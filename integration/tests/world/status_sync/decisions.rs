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
        for count in [0, 1, 100, 101, 250, 101, 100, 1, 0] {
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
fn decisions_have_a_score_where_one_is_given() {
    run(async {
        let stage = Stage::new("scores").await;
        stage.wanted("placements", "scored").await;
        let decision = |cluster: &str, score: Value| json!({"clusterName": cluster, "reason": "r", "score": score});
        let without = json!({"clusterName": "without", "reason": "r"});
        let scored =
            [decision("zero", json!(0)), decision("least", json!(i32::MIN)), decision("most", json!(i32::MAX))];
        let of = |decisions: Value| json!({"labels": {PLACEMENT_LABEL: "scored"}, "status": {"decisions": decisions}});
        stage.report(DECISIONS, "a", "x", &of(json!(scored))).await;
        stage.report(DECISIONS, "b", "x", &of(json!([without, decision("null", Value::Null)]))).await;
        stage.report(DECISIONS, "c", "x", &of(json!([decision("wide", json!(i64::from(i32::MAX) + 1))]))).await;
        let towline = stage.start().await;
        let [zero, least, most] = scored;
        let expected = json!([zero, least, most, without, {"clusterName": "null", "reason": "r"}]);
        stage.shows(DECISIONS, "scored-decision-1", "/status/decisions", &expected).await;
        // The kind would not take it.
        let report = stage.family(&towline, DECISIONS, "a bad row", |report| report["bad_rows"] == 1).await;
        assert_eq!(report["bad_row_examples"], json!(["c/x: score is not a whole number of 32 bits"]));
        // A score that changes is a change.
        stage.report(DECISIONS, "a", "x", &of(json!([decision("zero", json!(7))]))).await;
        let expected = json!([decision("zero", json!(7)), without, {"clusterName": "null", "reason": "r"}]);
        stage.shows(DECISIONS, "scored-decision-1", "/status/decisions", &expected).await;
    });
}

#[test]
fn the_label_decides_whose_a_decision_is_and_not_the_name() {
    run(async {
        let stage = Stage::new("labels").await;
        stage.wanted("placements", "foo").await;
        stage.wanted("placements", "foo-bar").await;
        stage.report(DECISIONS, "b", "foo-bar-decision-1", &reported("foo-bar", &clusters("bar", 2))).await;
        stage.report(DECISIONS, "b", "foo-decision-1", &reported("foo", &clusters("b", 1))).await;
        stage.report(DECISIONS, "a", "foo-decision-2", &reported("foo", &clusters("a2", 1))).await;
        stage.report(DECISIONS, "a", "foo-decision-1", &reported("foo", &clusters("a1", 1))).await;
        stage.report(DECISIONS, "a", "foo-decision-9", &json!({"status": {"decisions": [{"clusterName": "x"}]}})).await;
        let towline = stage.start().await;
        comes_to(&stage, "foo", &[vec!["a1000".to_owned(), "a2000".to_owned(), "b000".to_owned()]]).await;
        comes_to(&stage, "foo-bar", &[clusters("bar", 2)]).await;
        drop(towline);
    });
}

#[test]
fn an_object_is_made_and_has_its_status_in_one_pass() {
    run(async {
        let stage = Stage::new("onepass").await;
        stage.wanted("placements", "quick").await;
        stage.report(DECISIONS, "hub", "x", &reported("quick", &clusters("c", 3))).await;
        // The second pass is an hour away.
        let towline = stage.start_with("interval = \"1h\"").await;
        comes_to(&stage, "quick", &[clusters("c", 3)]).await;
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
