//! Clusters that are taken off the hub.

use serde_json::json;

use crate::syncsets::world::{Stage, run};

/// Nothing is left of it in the database.
#[test]
fn a_cluster_that_is_removed_keeps_its_objects_and_leaves_no_rows() {
    run(async {
        let stage = Stage::new("deregistered").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.syncset("base", "Sync", &[stage.config_map("site", &json!({"a": "1"}))]).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.remove(&stage.path("clusters", "west-1")).await;
        let rows = "select (select count(*) from towline_applied) + (select count(*) from towline_result) \
             + (select count(*) from towline_cluster) + (select count(*) from towline_work) + (select count(*) from towline_identity)";
        integration::eventually("the rows to be gone", crate::syncsets::world::LIMIT, async || {
            let rows: i64 = stage.sql.query_one(rows, &[]).await.map_err(|error| error.to_string())?.get(0);
            if rows == 0 { Ok(()) } else { Err(format!("{rows} rows")) }
        })
        .await
        .unwrap();
        stage.has(plane, &[("site", json!({"a": "1"}))]).await;
        stage.remove(&stage.path("syncsets", "base")).await;
        stage.at_rest().await;
        stage.has(plane, &[("site", json!({"a": "1"}))]).await;
    });
}
