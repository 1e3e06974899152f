//! The daemon is killed at random moments while rows churn; afterwards the cluster is what the database says, by plain SQL.

use std::collections::BTreeMap;
use std::time::Duration;

use integration::{Towline, eventually};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::world::{LIMIT, PLACEMENT_LABEL, Stage, run};

/// How often the daemon is killed.
const KILLS: u32 = 20;
/// Objects of each kind.
const OBJECTS: u64 = 6;

/// A small generator, so that a run can be repeated by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Changes something, as a leaf hub would.
async fn churn(stage: &Stage, uids: &[String], random: &mut Random) {
    let hub = format!("hub-{}", random.below(3));
    let object = random.below(OBJECTS);
    match random.below(8) {
        0 => {
            let sql = "DELETE FROM status.compliance WHERE leaf_hub_name = $1 AND cluster_name = $2";
            stage.execute(sql, &[&hub, &format!("c{}", random.below(9))]).await;
        }
        1 => {
            stage.execute("DELETE FROM status.placementdecisions WHERE leaf_hub_name = $1 AND payload -> 'metadata' ->> 'name' = $2", &[&hub, &format!("o{object}")]).await;
        }
        2 | 3 => {
            let decisions: Vec<Value> =
                (0..random.below(130)).map(|index| json!({"clusterName": format!("c{index}"), "reason": ""})).collect();
            let content =
                json!({"labels": {PLACEMENT_LABEL: format!("o{object}")}, "status": {"decisions": decisions}});
            stage.report("placementdecisions", &hub, &format!("o{object}"), &content).await;
        }
        _ => {
            let words = ["compliant", "non_compliant", "unknown", "pending"];
            let uid = &uids[usize::try_from(object).expect("a small number")];
            let word = words[usize::try_from(random.below(4)).expect("a small number")];
            stage.comply(uid, &hub, &format!("c{}", random.below(9)), word).await;
        }
    }
}

/// What policies should say, by plain SQL: `name: compliant [cluster compliant, …]`.
async fn expected_policies(stage: &Stage) -> BTreeMap<String, Value> {
    let sql = "SELECT s.payload -> 'metadata' ->> 'name', json_build_object( \
         'compliant', CASE WHEN bool_or(c.compliance = 'non_compliant') THEN 'NonCompliant' \
             WHEN bool_or(c.compliance = 'pending') THEN 'Pending' \
             WHEN bool_and(c.compliance = 'compliant') THEN 'Compliant' END, \
         'status', json_agg(json_strip_nulls(json_build_object('clustername', c.cluster_name, \
             'clusternamespace', c.cluster_name, 'compliant', CASE c.compliance WHEN 'compliant' THEN 'Compliant' \
             WHEN 'non_compliant' THEN 'NonCompliant' WHEN 'pending' THEN 'Pending' END)) \
             ORDER BY c.leaf_hub_name COLLATE \"C\", c.cluster_name COLLATE \"C\") FILTER (WHERE c.id IS NOT NULL))::text \
         FROM spec.policies s LEFT JOIN status.compliance c ON c.id = s.id GROUP BY 1";
    rows(stage, sql).await
}

/// What decisions there should be, by plain SQL: the clusters of each placement in order.
async fn expected_decisions(stage: &Stage) -> BTreeMap<String, Value> {
    let sql = "SELECT r.payload -> 'metadata' -> 'labels' ->> 'cluster.open-cluster-management.io/placement', \
         coalesce(json_agg(d.value ->> 'clusterName' ORDER BY r.leaf_hub_name COLLATE \"C\", \
         r.payload -> 'metadata' ->> 'name' COLLATE \"C\", d.ordinality) FILTER (WHERE d.value IS NOT NULL), '[]')::text \
         FROM status.placementdecisions r \
         LEFT JOIN LATERAL jsonb_array_elements(r.payload -> 'status' -> 'decisions') WITH ORDINALITY d ON true GROUP BY 1";
    rows(stage, sql).await
}

async fn rows(stage: &Stage, sql: &str) -> BTreeMap<String, Value> {
    let found = stage.sql.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let parsed = |row: &tokio_postgres::Row| {
        let text: String = row.get(1);
        (row.get(0), serde_json::from_str(&text).expect("JSON"))
    };
    found.iter().map(parsed).collect()
}

async fn shown_policies(stage: &Stage) -> BTreeMap<String, Value> {
    let policies = stage.api("policies").list(&ListParams::default()).await.expect("a list").items;
    let parts = |policy: &kube::api::DynamicObject| {
        let status = policy.data.get("status").cloned().unwrap_or_default();
        (policy.name_any(), json!({"compliant": status["compliant"], "status": status["status"]}))
    };
    policies.iter().map(parts).collect()
}

async fn shown_decisions(stage: &Stage) -> BTreeMap<String, Value> {
    let mut objects = stage.api("placementdecisions").list(&ListParams::default()).await.expect("a list").items;
    objects.sort_by_key(|object| object.name_any().rsplit('-').next().and_then(|number| number.parse::<u32>().ok()));
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for object in objects {
        let clusters = all.entry(object.labels()[PLACEMENT_LABEL].clone()).or_default();
        let decisions = object.data.pointer("/status/decisions").and_then(Value::as_array).cloned().unwrap_or_default();
        assert!(decisions.len() <= 100);
        clusters.extend(decisions.iter().map(|decision| decision["clusterName"].clone()));
    }
    all.into_iter().map(|(name, clusters)| (name, Value::Array(clusters))).collect()
}

#[test]
fn after_kills_at_random_moments_the_cluster_is_what_plain_sql_says() {
    run(async {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_121);
        println!("SEED={seed}");
        let mut random = Random(seed);
        let stage = Stage::new("kills").await;
        let mut uids = Vec::new();
        for index in 0..OBJECTS {
            uids.push(stage.wanted("policies", &format!("o{index}")).await);
            stage.wanted("placements", &format!("o{index}")).await;
        }
        let settings = "interval = \"50ms\"\nfamilies = [\"policies\", \"placementdecisions\"]";
        let mut towline = Towline::start(&stage.config(settings), &[]).await.expect("the daemon starts");
        for _ in 0..KILLS {
            // Not a wait for anything: the moment of the kill is to be anywhere.
            let moment = tokio::time::Instant::now() + Duration::from_millis(random.below(1_200));
            while tokio::time::Instant::now() < moment {
                churn(&stage, &uids, &mut random).await;
            }
            towline.start_again().await.expect("it is killed and started");
        }
        eventually("the cluster to be what the database says", LIMIT, async || {
            let (policies, decisions) = (expected_policies(&stage).await, expected_decisions(&stage).await);
            let shown = (shown_policies(&stage).await, shown_decisions(&stage).await);
            if shown == (policies.clone(), decisions.clone()) {
                return Ok(());
            }
            Err(format!("expected {policies:?} {decisions:?}, shown {shown:?}"))
        })
        .await
        .unwrap();
    });
}
