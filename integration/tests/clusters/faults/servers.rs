//! API servers that die.

use serde_json::json;

use crate::faults::world::{Lane, delete, edit, mortals, objects, report, run};

const OBJECTS: usize = 12;

#[test]
fn an_api_server_of_either_side_may_die_and_come_back() {
    run(async {
        let (_turn, hub, edge) = mortals().await;
        let lane = Lane::between(hub, edge, "mortal", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS - 4).await;
        lane.make_namespace("burst").await;
        lane.order_many("burst", 4).await;
        let towline = lane.towline().await;
        let before = lane.in_step("before").await;

        // The local one: the hub goes on meanwhile.
        lane.edge.kill_api_server().await.unwrap();
        lane.resize_many("team", OBJECTS - 4, "2Gi").await;
        delete(&lane.on_hub("team"), "o0").await;
        lane.order("team", "made-meanwhile", "8Gi").await;
        report(&towline, "lane", "changes that wait for the edge", |report| {
            objects(report, "pending") + objects(report, "failing") > 0
        })
        .await;
        assert_eq!(towline.admin().readyz().await.unwrap().status, 200, "a dead edge does not take the daemon out");
        lane.edge.start_api_server().await.unwrap();
        let between = lane.in_step("after the edge's API server came back").await;
        assert_eq!(between.len(), OBJECTS);
        let kept = between.iter().filter(|(key, uid)| before.get(*key) == Some(*uid)).count();
        assert_eq!(kept, OBJECTS - 1, "nothing but the deleted object went");

        // The remote one: the edge goes on meanwhile.
        lane.hub.kill_api_server().await.unwrap();
        let reported = json!({"status": {"phase": "Failed", "message": "told while the hub was away"}});
        let patch = kube::api::Patch::Merge(reported);
        lane.on_edge("team").patch_status("o1", &kube::api::PatchParams::default(), &patch).await.unwrap();
        edit(&lane.on_edge("team"), "o2", json!({"spec": {"storage": "drifted"}})).await;
        lane.hub.start_api_server().await.unwrap();
        assert_eq!(lane.in_step("after the hub's API server came back").await, between);
        let told = lane.on_hub("team").get("o1").await.unwrap();
        assert_eq!(told.data["status"]["phase"], "Failed");

        // Both, in the middle of a burst.
        lane.resize_many("burst", 4, "4Gi").await;
        lane.report_many("burst", 4, "early").await;
        let (one, other) = tokio::join!(lane.hub.kill_api_server(), lane.edge.kill_api_server());
        one.and(other).unwrap();
        let (one, other) = tokio::join!(lane.hub.start_api_server(), lane.edge.start_api_server());
        one.and(other).unwrap();
        assert_eq!(lane.in_step("after both came back").await, between);
    });
}
