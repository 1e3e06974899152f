//! Many objects that vanish at once: of more than a hundred, a tenth may go, and not one more.

use integration::load::{Write, burst};
use integration::{Towline, eventually};
use kube::api::DeleteParams;
use serde_json::json;

use crate::faults::world::{LIMIT, Lane, edit, objects, report, run};

/// A tenth of them is more than the ten that may always go.
const OBJECTS: usize = 200;

/// Takes objects away from the hub as nobody should: without the finalizer that holds them.
async fn strip(lane: &Lane, numbers: std::ops::Range<usize>) {
    let space = lane.namespace("team");
    let patch = json!({"metadata": {"finalizers": null}});
    let writes = numbers.clone().map(|number| Write::merge(&lane.kind, Some(&space), &format!("o{number}"), &patch));
    burst(&lane.hub_client, writes.collect(), 8).await.unwrap();
    for number in numbers {
        lane.on_hub("team").delete(&format!("o{number}"), &DeleteParams::background()).await.unwrap();
    }
}

async fn left(lane: &Lane, count: usize, when: &str) {
    eventually(format!("{count} local objects {when}"), LIMIT, async || {
        let found = lane.local_uids().await.len();
        if found == count { Ok(()) } else { Err(format!("{found} objects")) }
    })
    .await
    .unwrap();
}

async fn settled(towline: &Towline, count: usize, when: &str) {
    report(towline, "lane", &format!("{count} objects in step and nothing held {when}"), |report| {
        objects(report, "in_step") == count as u64 && report.get("mass_delete_held").is_none()
    })
    .await;
}

#[test]
fn a_tenth_of_many_may_vanish_unseen_and_one_more_is_held_until_it_is_approved() {
    run(async {
        let lane = Lane::shared("tenth", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        let mut towline = lane.towline().await;
        let before = lane.in_step("before").await;
        settled(&towline, OBJECTS, "at first").await;

        // Ten may always go, and 20 of 200 may, too.
        towline.kill9().await.unwrap();
        strip(&lane, 0..20).await;
        towline.start_again().await.unwrap();
        left(&lane, OBJECTS - 20, "when a tenth has vanished").await;
        settled(&towline, OBJECTS - 20, "without the tenth").await;

        // Of the 180 that are left, 18 may; and here are 19.
        towline.kill9().await.unwrap();
        strip(&lane, 20..39).await;
        towline.start_again().await.unwrap();
        report(&towline, "lane", "that 19 deletions are held", |report| {
            report["mass_delete_held"] == json!(19) && objects(report, "held") == 19
        })
        .await;
        assert_eq!(lane.local_uids().await.len(), OBJECTS - 20, "none went");
        edit(&lane.on_hub("team"), "o39", json!({"spec": {"storage": "2Gi"}})).await;
        let approved = Towline::command(["approve", "--yes", "lane", "--admin", &towline.admin_url()]).await.unwrap();
        assert!(approved.status.success(), "{approved:?}");
        let after = lane.in_step("after the approval").await;
        assert_eq!(after.len(), OBJECTS - 39);
        assert!(after.iter().all(|(key, uid)| before.get(key) == Some(uid)), "the others were left alone");
        settled(&towline, OBJECTS - 39, "after the approval").await;
    });
}
