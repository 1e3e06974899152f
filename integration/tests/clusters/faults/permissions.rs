//! Permissions that are revoked and given back.

use integration::rbac::{Grant, Side};
use integration::{Filter, eventually, users};
use serde_json::json;

use crate::faults::world::{LIMIT, Lane, edit, objects, report, run};

const OBJECTS: usize = 12;
const GROUP: &str = "demo.towline.dev";

#[test]
fn a_revoked_permission_is_probed_once_for_all_and_what_waits_goes_on_together() {
    run(async {
        let lane = Lane::shared("denied", "sprockets").await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        let mut towline = lane.towline().await;
        let before = lane.in_step("before").await;
        let remote_before = lane.remote_uids().await;
        let (hub_admin, edge_admin) =
            (lane.hub.client(users::ADMIN).await.unwrap(), lane.edge.client(users::ADMIN).await.unwrap());
        let grant = Grant::kind(Side::Local, "sprockets", GROUP);
        grant.revoke(&edge_admin).await.unwrap();
        let audit = lane.edge.audit().unwrap();
        let mark = audit.mark().await.unwrap();

        // The first finds out, and nobody after it tries.
        edit(&lane.on_hub("team"), "o0", json!({"spec": {"storage": "2Gi"}})).await;
        let denied = report(&towline, "lane", "one object that fails", |report| objects(report, "failing") == 1).await;
        let failure = &denied["not_in_step"][0];
        assert_eq!(failure["key"], json!(format!("{}/o0", lane.namespace("team"))), "{failure}");
        let reason = failure["cause"].as_str().unwrap();
        assert!(reason.contains("not allowed to patch sprockets.demo.towline.dev in cluster edge"), "{reason}");
        lane.resize_many("team", OBJECTS, "2Gi").await;
        report(&towline, "lane", "all objects as failing", |report| objects(report, "failing") == OBJECTS as u64).await;
        let asked = Filter::since(mark).user(users::TOWLINE);
        let refused: Vec<_> = audit
            .records(&asked.clone().verb("patch"))
            .await
            .unwrap()
            .into_iter()
            .filter(|record| record.status == 403 && record.resource == "sprockets")
            .collect();
        assert_eq!(refused.len(), 1, "one for {OBJECTS} objects: {refused:?}");
        eventually("some rounds of questions", LIMIT, async || {
            let reviews = audit
                .count(&asked.clone().resource("selfsubjectaccessreviews"))
                .await
                .map_err(|error| error.to_string())?;
            if reviews >= 6 { Ok(()) } else { Err(format!("{reviews} reviews")) }
        })
        .await
        .unwrap();
        let refused = audit.records(&asked.clone().verb("patch")).await.unwrap();
        assert_eq!(
            refused.iter().filter(|record| record.resource == "sprockets").count(),
            1,
            "asking costs reviews only"
        );

        grant.apply(&edge_admin).await.unwrap();
        assert_eq!(lane.in_step("with the permission given back").await, before);
        report(&towline, "lane", "nothing that fails", |report| objects(report, "in_step") == OBJECTS as u64).await;

        // Without any right at all, on either side, a daemon that starts knows nothing and deletes nothing.
        for (side, admin, word) in [(Side::Local, &edge_admin, "edge"), (Side::Remote, &hub_admin, "hub")] {
            let grant = Grant::kind(side, "sprockets", GROUP);
            towline.kill9().await.unwrap();
            grant.revoke(admin).await.unwrap();
            towline.start_again().await.unwrap();
            report(&towline, "lane", &format!("what it may not list on the {word}"), |report| {
                report["waits_for"]
                    .as_str()
                    .is_some_and(|reason| reason.contains("not allowed to") && reason.contains(word))
            })
            .await;
            assert_eq!(towline.admin().readyz().await.unwrap().status, 503, "somebody must act");
            let sentence = format!("watch failed, retrying cluster={word} resource=sprockets");
            eventually("the refusal as one sentence of the log", LIMIT, async || {
                let log = towline.log().map_err(|error| error.to_string())?;
                let is_it = |entry: &str| entry.contains(&sentence) && entry.contains("error=not allowed to watch");
                if log.lines().any(|entry| entry.contains("WARN") && is_it(entry)) { Ok(()) } else { Err(log) }
            })
            .await
            .unwrap();
            let log = towline.log().unwrap();
            assert!(!log.contains("kube_runtime") && !log.contains("Api(Status"), "{log}");
            lane.resize_many("team", OBJECTS, &format!("3Gi{word}")).await;
            assert_eq!(lane.local_uids().await, before);
            assert_eq!(lane.remote_uids().await, remote_before);
            grant.apply(admin).await.unwrap();
            assert_eq!(lane.in_step(&format!("with the rights on the {word} given back")).await, before);
        }
    });
}
