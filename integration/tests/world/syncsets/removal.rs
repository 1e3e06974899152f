//! What nobody wants any more.

use serde_json::json;

use crate::syncsets::world::{Stage, run};

#[test]
fn a_sync_set_deletes_what_left_it_and_an_upsert_set_keeps_it() {
    run(async {
        let stage = Stage::new("removal").await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        let map = |name: &str| stage.config_map(name, &json!({"of": name}));
        for (mode, left) in [("Sync", "a-left"), ("Upsert", "b-left")] {
            let syncset = json!({"namespace": "removal", "name": mode.to_lowercase(), "spec": {"clusterDeploymentRefs": [{"name": "west-1"}],
                "resourceApplyMode": mode, "resources": [map(left), map(&format!("{left}-stays"))]}});
            stage.create("syncsets", &syncset).await;
        }
        let of = |name: &'static str| (name, json!({"of": name}));
        let all = [of("a-left"), of("a-left-stays"), of("b-left"), of("b-left-stays")];
        stage.has(plane, &all).await;
        for (mode, left) in [("sync", "a-left"), ("upsert", "b-left")] {
            let spec = json!({"spec": {"resources": [map(&format!("{left}-stays"))]}});
            stage.change(&format!("syncsets/removal/{mode}"), &spec).await;
        }
        stage.has(plane, &[of("a-left-stays"), of("b-left"), of("b-left-stays")]).await;
        // What was forgotten stays also when its syncset goes, and the rest of a `Sync` set goes with it.
        for mode in ["sync", "upsert"] {
            let path = format!("/v1/syncsets/removal/{mode}");
            stage.send(&integration::hub::Request::delete(&path)).await.success().unwrap();
        }
        stage.has(plane, &[of("b-left"), of("b-left-stays")]).await;
        stage
            .status("west-1", "no syncset to be left", |status| {
                status["syncSets"].as_array().is_some_and(Vec::is_empty)
            })
            .await;
    });
}

/// Who takes a cluster off the hub does not empty it. Nothing is left of it in the database.
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
