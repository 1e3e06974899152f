//! What leaf hubs do at random.

use integration::soak::Random;
use serde_json::{Value, json};

use super::OBJECTS;
use crate::status_sync::world::{PLACEMENT_LABEL, Stage};

fn one_of<'t>(random: &mut Random, texts: &[&'t str]) -> &'t str {
    texts[random.index(texts.len())]
}

/// Changes something, as a leaf hub would.
pub(super) async fn churn(stage: &Stage, policies: &[String], random: &mut Random) {
    let leaf_hub = format!("hub-{}", random.below(3));
    let object = random.below(OBJECTS);
    let name = format!("o{object}");
    match random.below(16) {
        0 => {
            let sql = "DELETE FROM status.compliance WHERE leaf_hub_name = $1 AND cluster_name = $2";
            stage.execute(sql, &[&leaf_hub, &format!("c{}", random.below(9))]).await;
        }
        1..=4 => {
            let word = one_of(random, &["compliant", "non_compliant", "unknown", "pending"]);
            let uid = &policies[usize::try_from(object).expect("a small number")];
            stage.comply(uid, &leaf_hub, &format!("c{}", random.below(9)), word).await;
        }
        5 | 6 => {
            let table = one_of(
                random,
                &[
                    "placementrules",
                    "placements",
                    "placementdecisions",
                    "subscription_statuses",
                    "subscription_reports",
                ],
            );
            let sql = format!(
                "DELETE FROM status.{table} WHERE leaf_hub_name = $1 AND payload -> 'metadata' ->> 'name' = $2"
            );
            stage.execute(&sql, &[&leaf_hub, &name]).await;
        }
        7 | 8 => {
            let content = json!({"labels": {PLACEMENT_LABEL: name}, "status": {"decisions": decisions(random, 130)}});
            stage.report("placementdecisions", &leaf_hub, &name, &content).await;
        }
        9 | 10 => {
            let content = json!({"status": {"decisions": decisions(random, 9)}});
            stage.report("placementrules", &leaf_hub, &name, &content).await;
        }
        11 => {
            // The sum of three may be more than the field holds.
            let number = [random.below(100), 2_000_000_000][usize::from(random.below(5) == 0)];
            let content = json!({"status": {"numberOfSelectedClusters": number}});
            stage.report("placements", &leaf_hub, &name, &content).await;
        }
        12 | 13 => stage.report("subscription_statuses", &leaf_hub, &name, &statuses(random)).await,
        _ => stage.report("subscription_reports", &leaf_hub, &name, &report(random)).await,
    }
}

/// Some decisions, of which doubles come from leaf hubs that have the same clusters.
fn decisions(random: &mut Random, most: u64) -> Vec<Value> {
    let first = random.below(4);
    let decision = |index: u64| {
        let cluster = format!("c{}", first + index);
        json!({"clusterName": cluster, "clusterNamespace": cluster, "reason": ""})
    };
    (0..random.below(most)).map(decision).collect()
}

fn statuses(random: &mut Random) -> Value {
    let packages: Vec<Value> = (0..random.below(4)).map(|index| json!({"name": format!("p{index}")})).collect();
    let mut statuses = json!({"packages": packages});
    if random.below(3) > 0 {
        let phase = one_of(random, &["Deployed", "Failed", "PropagationFailed"]);
        statuses["subscription"] = json!({"phase": phase, "message": format!("m{}", random.below(1_000))});
    }
    json!({"statuses": statuses})
}

fn report(random: &mut Random) -> Value {
    let results: Vec<Value> =
        (0..random.below(4)).map(|_| json!({"source": format!("c{}", random.below(99)), "result": "failed"})).collect();
    json!({
        "reportType": one_of(random, &["Application", "Cluster"]),
        "resources": [{"kind": format!("K{}", random.below(9))}],
        "results": results,
        "summary": {"deployed": random.below(50).to_string(), "failed": one_of(random, &["", "0", "7"])},
    })
}
