//! Objects that the local cluster does not take.

use std::collections::BTreeMap;

use integration::compare::differences;
use integration::eventually;
use integration::{Filter, users};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

use crate::faults::world::{LIMIT, Lane, edit, objects, report, run, start};

#[test]
fn what_the_local_schema_rejects_is_told_with_its_cause_and_everything_else_goes_on() {
    run(async {
        let lane = Lane::shared("invalid", "valves").await;
        lane.make_namespace("team").await;
        lane.order_many("team", 5).await;
        // The hub takes any storage, the edge only whole Gi.
        let config = format!(
            "[daemon.log]\nformat = \"json\"\n{}{}",
            lane.clusters(),
            lane.section("strict", "propagation_policy = \"Background\"")
        );
        let towline = start(&config).await;
        lane.in_step("before").await;
        let mark = lane.edge.audit().unwrap().mark().await.unwrap();

        edit(&lane.on_hub("team"), "o1", json!({"spec": {"storage": "plenty"}})).await;
        lane.order("team", "born-bad", "a-lot").await;
        let failing = report(&towline, "strict", "two failures", |report| objects(report, "failing") == 2).await;
        for (name, step) in [("o1", "patch_local"), ("born-bad", "create_local")] {
            let key = lane.namespace("team") + "/" + name;
            let failures = failing["failures"].as_array().unwrap();
            let told = failures.iter().find(|failure| failure["key"] == json!(key)).unwrap();
            assert_eq!((&told["step"], &told["kind"]), (&json!(step), &json!("rejected")));
            let tells_cause =
                |text: &str| text.contains("422") && text.contains("spec.storage") && text.contains("^[0-9]+Gi$");
            assert!(tells_cause(told["reason"].as_str().unwrap()), "{told}");

            let log = towline.log().unwrap();
            let entries = log.lines().map(|text| serde_json::from_str::<Value>(text).unwrap());
            let told: Vec<Value> =
                entries.filter(|entry| entry["message"] == "sync failed" && entry["key"] == json!(key)).collect();
            let [entry] = told.as_slice() else { panic!("once, however often it is tried: {told:#?}") };
            assert_eq!(
                (&entry["section"], &entry["local"], &entry["level"]),
                (&json!("strict"), &json!("edge"), &json!("WARN"))
            );
            assert!(tells_cause(entry["reason"].as_str().unwrap()), "{entry}");
        }
        let events: Api<Event> = Api::namespaced(lane.edge_client.clone(), &lane.namespace("team"));
        let told = async |reason: &str, names: &[&str]| {
            eventually(format!("an Event {reason} for {names:?}"), LIMIT, async || {
                let listed = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
                let found = listed.items.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
                let found: BTreeMap<String, Event> =
                    found.map(|event| (event.regarding.clone().unwrap().name.unwrap(), event)).collect();
                if found.keys().eq(names) { Ok(found) } else { Err(format!("{:?}", found.keys())) }
            })
            .await
            .unwrap()
        };
        for (name, event) in told("SyncFailed", &["born-bad", "o1"]).await {
            assert_eq!(event.type_.as_deref(), Some("Warning"), "{name}");
            assert!(event.note.as_ref().unwrap().contains("spec.storage"), "{event:#?}");
        }

        // The others, and the status of the one that fails, go on; it is tried with back-off, and at once when it changes.
        for name in ["o0", "o2", "o3", "o4"] {
            edit(&lane.on_hub("team"), name, json!({"spec": {"storage": "7Gi"}})).await;
        }
        lane.report_many("team", 5, "still-told").await;
        eventually("everything else to be in step", LIMIT, async || {
            let (hub, edge) = (&lane.hub_client, &lane.edge_client);
            let found = differences(hub, edge, &lane.kind, &lane.mapping()).await.map_err(|error| error.to_string())?;
            let expected = |found: &String| {
                ["/o1: spec", "/o1: sync-remote-generation", "/born-bad"].iter().any(|known| found.contains(known))
            };
            let other: Vec<_> = found.iter().filter(|found| !expected(found)).collect();
            if other.is_empty() { Ok(()) } else { Err(format!("{other:#?}")) }
        })
        .await
        .unwrap();
        edit(&lane.on_hub("team"), "o1", json!({"spec": {"storage": "11Gi"}})).await;
        edit(&lane.on_hub("team"), "born-bad", json!({"spec": {"storage": "12Gi"}})).await;
        assert_eq!(lane.in_step("with what the edge takes").await.len(), 6);
        told("Synced", &["born-bad", "o1"]).await;
        let filter = Filter::since(mark).user(users::TOWLINE).resource("events");
        let written = lane.edge.audit().unwrap().records(&filter).await.unwrap();
        let written = written.iter().filter(|record| record.namespace == lane.namespace("team")).count();
        assert_eq!(written, 4, "one for each change of state, and none for a retry");
    });
}

#[test]
fn an_object_with_more_unknown_fields_than_a_reply_can_have_headers_is_written_like_any_other() {
    run(async {
        let lane = Lane::shared("unknown-fields", "sluices").await;
        lane.make_namespace("team").await;
        let mut object = lane.object("many", "1Gi");
        for number in 0..150 {
            object["spec"][format!("unknown{number}")] = json!(number);
        }
        let towline = lane.towline().await;
        let (before, audit) = (lane.edge.audit().unwrap().mark().await.unwrap(), lane.edge.audit().unwrap());
        lane.on_hub("team").create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        for storage in ["1Gi", "2Gi"] {
            edit(&lane.on_hub("team"), "many", json!({"spec": {"storage": storage}})).await;
            eventually(format!("the edge to have {storage} and the hub to know it"), LIMIT, async || {
                let local = lane.on_edge("team").get("many").await.map_err(|error| error.to_string())?;
                let remote = lane.on_hub("team").get("many").await.map_err(|error| error.to_string())?;
                let noted = remote.metadata.annotations.clone().unwrap_or_default();
                let noted = noted.get("cloud.teleport.dev/sync-remote-generation").cloned();
                let generation = remote.metadata.generation.map(|generation| generation.to_string());
                let is_known = local.data["spec"]["storage"] == storage && noted == generation;
                if is_known { Ok(()) } else { Err(format!("{:?}, {noted:?} of {generation:?}", local.data)) }
            })
            .await
            .unwrap();
        }
        let records = audit.records(&Filter::since(before).user(users::TOWLINE)).await.unwrap();
        let ours =
            records.iter().filter(|record| record.resource == "sluices" && record.namespace == lane.namespace("team"));
        let mut verbs: Vec<&str> = ours.map(|record| record.verb.as_str()).filter(|verb| *verb != "watch").collect();
        verbs.sort_unstable();
        assert_eq!(verbs, ["create", "patch"], "no reply was lost, so nothing is read or written twice");
        assert!(!towline.log().unwrap().contains("no answer"));
    });
}
