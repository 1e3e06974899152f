//! Objects with fields that the local cluster does not know.

use integration::{Filter, eventually, users};
use kube::api::PostParams;
use serde_json::json;

use crate::faults::world::{LIMIT, Lane, edit, run};

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
