//! Kinds that are no longer served, and definitions that are deleted.

use integration::{Towline, crds, eventually, users};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::faults::world::{LIMIT, Lane, edit, manifest, objects, report, run, start};

const OBJECTS: usize = 5;

fn definitions(client: &Client) -> Api<CustomResourceDefinition> {
    Api::all(client.clone())
}

/// Serves the kind or not, and waits until the API server does so.
async fn serve(client: &Client, plural: &str, served: bool) {
    let name = format!("{plural}.demo.towline.dev");
    let mut definition = definitions(client).get(&name).await.unwrap();
    definition.spec.versions[0].served = served;
    definitions(client).replace(&name, &PostParams::default(), &definition).await.unwrap();
    let path = format!("/apis/demo.towline.dev/v1/{plural}?limit=1");
    eventually(format!("{plural} to be served: {served}"), LIMIT, async || {
        let request = http::Request::get(&path).body(Vec::new()).unwrap();
        let answer = client.request_text(request).await;
        if answer.is_ok() == served { Ok(()) } else { Err(format!("{:?}", answer.map(|_| "served"))) }
    })
    .await
    .unwrap();
}

#[test]
fn a_kind_that_is_not_served_for_a_while_is_no_deletion() {
    run(async {
        let lane = Lane::shared("unserved", "gadgets").await;
        // A second section shows that nothing else stands still meanwhile.
        let other = lane.beside("served", "databases").await;
        for lane in [&lane, &other] {
            lane.make_namespace("team").await;
            lane.order_many("team", OBJECTS).await;
        }
        let towline = start(&(lane.clusters() + &lane.section("lane", "") + &other.section("other", ""))).await;
        let before = lane.in_step("before").await;
        let remote_before = lane.remote_uids().await;

        for (side, client, live) in [("edge", &lane.edge_client, "hub"), ("hub", &lane.hub_client, "edge")] {
            serve(client, "gadgets", false).await;
            report(&towline, "lane", "the kind that is not served", |report| {
                report["waits_for"].as_str().is_some_and(|reason| reason.contains(side) && reason.contains("gadgets"))
            })
            .await;
            // The live side changes meanwhile.
            if live == "hub" {
                lane.resize_many("team", OBJECTS, "2Gi").await;
            } else {
                lane.report_many("team", OBJECTS, "told-meanwhile").await;
                edit(&lane.on_edge("team"), "o3", json!({"spec": {"storage": "drift"}})).await;
            }
            other.resize_many("team", OBJECTS, if live == "hub" { "2Gi" } else { "3Gi" }).await;
            other.in_step("while the other kind is not served").await;
            assert!(towline.admin().section("lane").await.unwrap().get("held").is_none());
            serve(client, "gadgets", true).await;
            assert_eq!(lane.in_step(&format!("with the kind served again on the {side}")).await, before);
            assert_eq!(lane.remote_uids().await, remote_before);
        }
        for command in ["approve", "detach"] {
            let output = Towline::command([command, "nosuch", "--admin", &towline.admin_url()]).await.unwrap();
            assert_eq!(output.status.code(), Some(1));
            let told = String::from_utf8(output.stderr).unwrap();
            assert!(told.contains("no section") && told.contains("; sections: lane, other"), "{command}: {told}");
        }
    });
}

#[test]
fn a_definition_that_is_deleted_locally_is_no_deletion_and_all_is_made_anew_when_it_is_back() {
    run(async {
        let lane = Lane::shared("undefined", "widgets").await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        let towline = start(&(lane.clusters() + &lane.section("lane", ""))).await;
        let before = lane.in_step("before").await;
        let remote_before = lane.remote_uids().await;

        let name = "widgets.demo.towline.dev";
        definitions(&lane.edge_client).delete(name, &DeleteParams::default()).await.unwrap();
        eventually("the definition to be gone", LIMIT, async || {
            match definitions(&lane.edge_client).get_opt(name).await {
                Ok(None) => Ok(()),
                other => Err(format!("{:?}", other.map(|found| found.and_then(|found| found.status)))),
            }
        })
        .await
        .unwrap();
        // Which cluster lacks which kind, and what to do.
        let parts = ["widgets", "in cluster edge: not served: ", "install what defines it"];
        report(&towline, "lane", "the missing kind", |report| {
            report["waits_for"].as_str().is_some_and(|reason| parts.iter().all(|part| reason.contains(part)))
        })
        .await;
        lane.resize_many("team", OBJECTS, "2Gi").await;
        assert_eq!(lane.remote_uids().await, remote_before, "the remote objects live");

        let admin = lane.edge.client(users::ADMIN).await.unwrap();
        crds::install(&admin, &manifest("widgets")).await.unwrap();
        let after = lane.in_step("with the definition back").await;
        assert!(after.keys().eq(before.keys()) && after.values().all(|uid| !before.values().any(|old| old == uid)));
        assert_eq!(lane.remote_uids().await, remote_before);
        let report =
            report(&towline, "lane", "that it is in step", |report| objects(report, "in_step") == OBJECTS as u64).await;
        assert!(report.get("held").is_none());
    });
}

#[test]
fn a_definition_that_is_deleted_remotely_deletes_its_objects() {
    run(async {
        let lane = Lane::shared("revoked", "gizmos").await;
        let other = lane.beside("kept", "databases").await;
        for lane in [&lane, &other] {
            lane.make_namespace("team").await;
            lane.order_many("team", OBJECTS).await;
        }
        // The garbage collector needs half a minute to learn of kinds that come and go; that is not what is tested.
        let policy = "propagation_policy = \"Background\"";
        let towline = start(&(lane.clusters() + &lane.section("lane", policy) + &other.section("other", ""))).await;
        lane.in_step("before").await;
        let kept = other.in_step("before").await;

        let name = "gizmos.demo.towline.dev";
        definitions(&lane.hub_client).delete(name, &DeleteParams::default()).await.unwrap();
        // It goes only when every finalizer is released, which is when the local objects are gone.
        eventually("the definition to be gone", LIMIT, async || {
            match definitions(&lane.hub_client).get_opt(name).await {
                Ok(None) => Ok(()),
                other => Err(format!(
                    "{:?}; {}",
                    other.map(|found| found.and_then(|found| found.status)),
                    towline.admin().section("lane").await.unwrap()
                )),
            }
        })
        .await
        .unwrap();
        assert!(lane.local_uids().await.is_empty());
        let admin = lane.hub.client(users::ADMIN).await.unwrap();
        crds::install(&admin, &manifest("gizmos")).await.unwrap();
        assert!(lane.in_step("without any object").await.is_empty());
        assert_eq!(other.in_step("at the end").await, kept);

        // The kind is the same again, and so is what is done with it.
        lane.order_many("team", 3).await;
        assert_eq!(lane.in_step("with new objects").await.len(), 3);
    });
}
