//! Objects that were deleted and that finalizers hold: who looks for them finds what holds them until they are gone.

use integration::eventually;
use integration::users::ADMIN;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::syncsets::commands::has_lines;
use crate::syncsets::world::{LIMIT, Stage, TIME_PASSES, run};

const HELD: &str = "example.com/wait";

async fn finalizers(maps: &Api<ConfigMap>, name: &str, finalizers: &[&str]) {
    let change = json!({"metadata": {"finalizers": finalizers}});
    maps.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
}

/// The entry of a syncset.
fn entry<'s>(status: &'s Value, name: &str) -> Option<&'s Value> {
    status["syncSets"].as_array()?.iter().find(|entry| entry["name"] == name)
}

#[test]
fn what_a_finalizer_holds_is_named_until_it_is_gone_also_in_a_namespace_and_after_the_syncset_is_gone() {
    run(async {
        let stage = Stage::new("ending").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let map = |name: &str| stage.config_map(name, &json!({}));
        stage.syncset("living", "Sync", &[map("held"), map("kept"), map("third")]).await;
        stage.syncset("removed", "Sync", &[map("left")]).await;
        let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ending-inner"}});
        stage.syncset("space", "Sync", &[space]).await;
        let approves = json!({"annotations": {"towline.dev/approve-deletions": "always"}});
        stage.change(&stage.path("syncsets", "space"), &approves).await;
        for name in ["living", "removed", "space"] {
            stage.succeeds("west-1", name, 1).await;
        }
        let maps = stage.maps(plane).await;
        finalizers(&maps, "held", &[HELD]).await;
        finalizers(&maps, "left", &[HELD]).await;
        // Somebody else's.
        let within: Api<ConfigMap> = Api::namespaced(plane.client(ADMIN).await.unwrap(), "ending-inner");
        let inner = json!({"metadata": {"name": "inner", "finalizers": [HELD]}});
        within.create(&PostParams::default(), &serde_json::from_value(inner).unwrap()).await.unwrap();

        stage.wants("living", &[map("kept"), map("third")]).await;
        stage.remove(&stage.path("syncsets", "removed")).await;
        stage.wants("space", &[]).await;
        for name in ["held", "left"] {
            eventually(format!("{name} to be deleted"), LIMIT, async || {
                let found = maps.get(name).await.unwrap();
                found.metadata.deletion_timestamp.as_ref().map(drop).ok_or_else(|| format!("{found:?}"))
            })
            .await
            .unwrap();
        }
        // What comes soon by itself is no failure, and a syncset that is gone is not shown for it.
        let status = stage.status("west-1", "both results", |status| {
            let has_ended = |name| entry(status, name).is_some_and(|entry| entry["observedGeneration"] == 2);
            has_ended("living") && has_ended("space") && entry(status, "removed").is_none()
        });
        let status = status.await;
        assert_eq!(entry(&status, "living").unwrap()["result"], "Success");
        let to_delete = json!([{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "ending", "name": "held"}]);
        let space_to_delete = json!([{"apiVersion": "v1", "kind": "Namespace", "name": "ending-inner"}]);
        let named = |status: &Value| {
            let entry = entry(status, "living").unwrap()["resourcesToDelete"].as_array().unwrap().clone();
            json!(entry.into_iter().filter(|object| object["name"] == "held").collect::<Vec<_>>())
        };
        let path = stage.path("clustersyncs", "west-1");
        let are_named = async || {
            let status = stage.get(&path).await["status"].clone();
            assert_eq!(named(&status), to_delete);
            assert_eq!(entry(&status, "space").unwrap()["resourcesToDelete"], space_to_delete);
        };
        are_named().await;
        let told = stage.explained("west-1", "ConfigMap/ending/held").await;
        has_lines(&told, &["wanted by  no syncset", "if dropped dropped already: it is deleted and not gone"]);
        let live = told.lines().find(|line| line.starts_with("live")).unwrap();
        assert!(
            live.starts_with("live       being deleted for ") && live.ends_with(", held by finalizer example.com/wait"),
            "{live}"
        );

        let is_pending =
            |status: &Value, name: &str| entry(status, name).is_some_and(|entry| entry["reason"] == "DeletionPending");
        let are_pending = |status: &Value| ["living", "removed", "space"].iter().all(|name| is_pending(status, name));
        let status = stage.status("west-1", "what is not gone after a minute to be a failure", are_pending).await;
        for (name, object) in [
            ("living", "ConfigMap ending/held"),
            ("removed", "ConfigMap ending/left"),
            ("space", "Namespace ending-inner"),
        ] {
            let entry = entry(&status, name).unwrap();
            let message = entry["failureMessage"].as_str().unwrap();
            let begins = format!("v1, Kind={object} is being deleted since 2");
            assert!(
                entry["result"] == "Failure" && message.starts_with(&begins) && message.contains(HELD),
                "{message}"
            );
        }
        are_named().await;
        let told = stage.command(&["failures"]).await;
        assert_eq!(told.matches("DeletionPending").count(), 3, "{told}");
        let told = stage.explained("west-1", "Namespace/ending-inner").await;
        assert!(told.contains("being deleted for ") && told.contains(HELD), "{told}");

        for name in ["held", "left"] {
            finalizers(&maps, name, &[]).await;
        }
        finalizers(&within, "inner", &[]).await;
        let is_over = |status: &Value| {
            let succeeds = |name| entry(status, name).is_some_and(|entry| entry["result"] == "Success");
            succeeds("living") && succeeds("space") && entry(status, "removed").is_none()
        };
        // By now it looks for them once a minute.
        eventually("all of them to be gone", LIMIT, async || {
            stage.sql.batch_execute(TIME_PASSES).await.map_err(|error| error.to_string())?;
            let status = stage.get(&path).await["status"].clone();
            if is_over(&status) { Ok(()) } else { Err(status.to_string()) }
        })
        .await
        .unwrap();
        // It is shown before it is stored.
        stage.at_rest().await;
        let status = stage.get(&path).await["status"].clone();
        assert_eq!(named(&status), json!([]));
        assert_eq!(entry(&status, "space").unwrap()["resourcesToDelete"], Value::Null);
        let rows = "select count(*) from towline_applied where not wanted";
        assert_eq!(stage.sql.query_one(rows, &[]).await.unwrap().get::<_, i64>(0), 0, "{}", stage.log());
    });
}
