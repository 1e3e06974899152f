//! Other people's objects and other people's writes: left alone or taken back, counted and named.

use std::collections::BTreeMap;

use futures::TryStreamExt;
use integration::eventually;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::json;

use crate::status_sync::world::{LIMIT, Stage, kind, run};

#[test]
fn objects_of_others_that_have_our_names_are_counted_and_named() {
    run(async {
        let stage = Stage::new("taken").await;
        let statuses = json!({"packages": [{"name": "p"}]});
        let families = [
            ("subscription_statuses", "subscriptionstatuses", "statuses", &statuses, json!({"packages": []})),
            ("subscription_reports", "subscriptionreports", "reportType", &json!("Application"), json!("Cluster")),
        ];
        for name in ["one", "two", "three"] {
            stage.wanted("subscriptions", name).await;
            for (table, _, field, ours, _) in &families {
                stage.report(table, "hub", name, &json!({*field: ours})).await;
            }
        }
        for name in ["one", "two"] {
            for (_, target, field, _, others) in &families {
                stage.make(target, name, &json!({*field: others})).await;
            }
        }
        let since = stage.mark().await;
        let towline = stage.start().await;
        for (family, target, field, ours, others) in &families {
            let report =
                stage.family(&towline, family, "two taken names", |report| report["foreign"]["objects"] == 2).await;
            assert_eq!(report["foreign"]["examples"], json!(["taken/one", "taken/two"]));
            assert_eq!(report["waiting"], json!({"foreign": 2}));
            let pointer = format!("/{field}");
            stage.shows(target, "three", &pointer, ours).await;
            stage.passes(&towline, family, 3).await;
            for name in ["one", "two"] {
                stage.shows(target, name, &pointer, others).await;
            }
        }
        // What nobody had the names of is all that was written, beside what the section remembers.
        let made = ["create subscriptionreports", "create subscriptionstatuses", "get configmaps", "create configmaps"]
            .map(|made| (made.to_owned(), 1));
        assert_eq!(stage.requests(since).await, BTreeMap::from(made));
        for (family, target, field, ours, _) in &families {
            for name in ["one", "two"] {
                stage.api(target).delete(name, &DeleteParams::default()).await.expect("it goes");
                stage.shows(target, name, &format!("/{field}"), ours).await;
            }
            stage.family(&towline, family, "no taken names", |report| report["foreign"].is_null()).await;
        }
    });
}

/// Sets the compliance of a policy to its own value whenever it has another.
async fn fight(client: Client, namespace: String) {
    let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &kind("policies"));
    let params = PatchParams { field_manager: Some("propagator".to_owned()), ..PatchParams::default() };
    loop {
        let selected = WatchParams::default().fields("metadata.name=fought-over");
        let Ok(events) = api.watch(&selected, "0").await else { continue };
        let mut events = std::pin::pin!(events);
        while let Ok(Some(event)) = events.try_next().await {
            if let WatchEvent::Added(policy) | WatchEvent::Modified(policy) = event
                && policy.data.pointer("/status/compliant") != Some(&json!("NonCompliant"))
            {
                let patch = Patch::Merge(json!({"status": {"compliant": "NonCompliant"}}));
                drop(api.patch_status("fought-over", &params, &patch).await);
            }
        }
    }
}

#[test]
fn a_manager_that_keeps_writing_a_field_of_ours_is_counted_and_named_once() {
    run(async {
        let stage = Stage::new("contested").await;
        let uid = stage.wanted("policies", "fought-over").await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        let towline = stage.start_with("interval = \"1s\"\nfamilies = [\"policies\"]").await;
        stage.shows("policies", "fought-over", "/status/compliant", &json!("Compliant")).await;
        let fighter = tokio::spawn(fight(stage.world.client.clone(), stage.name.clone()));
        let named = |report: &serde_json::Value| report["contenders"]["objects"] == 1;
        let report = stage.family(&towline, "policies", "the other manager", named).await;
        let told = report["contenders"]["examples"][0].as_str().unwrap_or_default();
        assert_eq!(told, "contested/fought-over: field manager propagator");
        let further = report["contended_fields"].as_u64().unwrap_or_default() + 3;
        let report = stage
            .family(&towline, "policies", "further rewrites", |report| {
                report["contended_fields"].as_u64() >= Some(further)
            })
            .await;
        fighter.abort();
        assert_eq!(report["contenders"]["objects"], 1, "told once");
        let events: Api<Event> = Api::namespaced(stage.world.client.clone(), &stage.name);
        let notes = eventually("the Event", LIMIT, async || {
            let all = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            // Without the UID, `kubectl describe` does not show it.
            let is_about_it = |event: &Event| event.regarding.as_ref().is_some_and(|of| of.uid.as_ref() == Some(&uid));
            let notes: Vec<String> = all
                .items
                .into_iter()
                .filter(|event| event.reason.as_deref() == Some("Contended") && is_about_it(event))
                .filter_map(|event| event.note)
                .collect();
            if notes.is_empty() { Err("none".to_owned()) } else { Ok(notes) }
        })
        .await
        .unwrap();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with("field manager propagator keeps changing"), "{notes:?}");
        stage.shows("policies", "fought-over", "/status/compliant", &json!("Compliant")).await;
        let told = towline.log().expect("a log").matches("another writer keeps changing fields").count();
        assert_eq!(told, 1, "a line of the log for each object");
    });
}
