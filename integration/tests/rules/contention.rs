//! A fight over a field is seen, and fought slowly.

use std::time::Duration;

use futures::TryStreamExt;
use integration::{Filter, eventually, users};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::json;

use crate::rules_world::*;

/// Sets the storage of one database to its own value whenever it has another.
async fn fight(client: Client, namespace: String, kind: kube::discovery::ApiResource) {
    let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &kind);
    let params = PatchParams { field_manager: Some("stubborn-operator".to_owned()), ..PatchParams::default() };
    loop {
        let Ok(events) = api.watch(&WatchParams::default().fields("metadata.name=orders"), "0").await else { continue };
        let mut events = std::pin::pin!(events);
        while let Ok(Some(event)) = events.try_next().await {
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event
                && object.data["spec"]["storage"] != json!("stubborn")
            {
                let patch = Patch::Merge(json!({"spec": {"storage": "stubborn"}}));
                drop(api.patch("orders", &params, &patch).await);
            }
        }
    }
}

#[test]
fn a_fight_is_told_with_the_other_manager_s_name_and_slows_down() {
    run(async {
        let section = Section::start("contended", databases(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
        section.in_step().await;
        let since = section.mark().await;
        // When each arrived, by the server's log.
        let rewrites = async || -> Vec<Timestamp> {
            let filter = Filter::since(since.1).user(users::TOWLINE).verb("patch").resource("databases").name("orders");
            let records = section.world.edge.audit().unwrap().records(&filter).await.unwrap();
            let of_ours =
                records.iter().filter(|record| record.namespace == section.namespace("a") && record.status == 200);
            of_ours.map(|record| record.received.parse().unwrap()).collect()
        };
        let fighter = tokio::spawn(fight(section.edge.clone(), section.namespace("a"), section.kind.clone()));
        let limit = Duration::from_mins(2);
        let reach = async |count: usize| {
            eventually(format!("{count} rewrites"), limit, async || {
                let seen = rewrites().await;
                if seen.len() >= count { Ok(()) } else { Err(format!("{seen:?}")) }
            })
            .await
            .unwrap();
        };
        reach(3).await;
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.contains("stubborn-operator"), "{note}");
        // Others are not slowed down meanwhile.
        section.quiet().await;
        assert_eq!(rewrites().await.len(), 3);
        reach(4).await;
        section.quiet().await;
        let times = rewrites().await;
        assert_eq!(times.len(), 4);
        // Half a minute, of which an arrival may take some.
        let pause = times[3].duration_since(times[2]).unsigned_abs();
        assert!(pause > Duration::from_secs(25), "the fourth came {pause:?} after the third");
        fighter.abort();
        assert_eq!(section.events("a", "orders").await, counts([("Contended", 1)]), "told once");
        let metrics = section.towline.admin().metrics().await.unwrap();
        let line = metrics.lines().find(|line| line.starts_with("towline_sync_contended_fields_total{"));
        assert!(line.is_some_and(|line| line.ends_with(" 4")), "{line:?}");
        // A change of the remote's is no fight: it is taken down at once.
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "2Gi"}})).await;
        section.local_has("a", "orders", |local| local.data["spec"]["storage"] == "2Gi").await;
        section.in_step().await;
    });
}
