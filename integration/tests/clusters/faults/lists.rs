//! How what is there is read: from servers without streaming lists, and by watches that are too old.

use std::sync::Arc;

use integration::audit::Record;
use integration::rbac::Side;
use integration::{ControlPlane, Filter, Link, Storage, eventually, users};
use serde_json::json;

use crate::faults::world::{LIMIT, Lane, delete, edit, objects, plane, report, run, start};

/// The daemon's lists and watches of the kind, since the server was started.
async fn reads(plane: &ControlPlane, mark: integration::audit::Mark) -> Vec<Record> {
    let filter = Filter::since(mark).user(users::TOWLINE).resource("databases").with_watches();
    let all = plane.audit().unwrap().records(&filter).await.unwrap();
    all.into_iter().filter(|record| record.verb == "list" || record.verb == "watch").collect()
}

/// A page of a list is no larger.
const PAGE: usize = 500;
const OBJECTS: usize = 20;

#[test]
fn servers_without_streaming_lists_are_listed_page_by_page() {
    run(async {
        let hub = plane("paged-hub", Side::Remote, |options| {
            options.controller_manager = false;
            options.extra_flags.push("--feature-gates=WatchList=false".to_owned());
        })
        .await;
        let lane =
            Lane::between(hub, Lane::shared("unused-by-paged", "databases").await.edge, "paged", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        // Objects that the section does not sync are listed, too, and come before its own.
        let others = Lane::between(Arc::clone(&lane.hub), Arc::clone(&lane.edge), "between", "databases").await;
        others.make_namespace("team").await;
        others.order_many("team", PAGE).await;
        let mark = lane.hub.audit().unwrap().mark().await.unwrap();
        let mut towline = lane.towline().await;
        let before = lane.in_step("at first").await;
        assert_eq!(before.len(), OBJECTS);
        lane.settings_noted("lane").await;
        towline.kill9().await.unwrap();
        edit(&lane.on_hub("team"), "o3", json!({"spec": {"storage": "3Gi"}})).await;
        delete(&lane.on_hub("team"), "o4").await;
        towline.start_again().await.unwrap();
        report(&towline, "lane", "that all is in step", |report| objects(report, "in_step") == OBJECTS as u64 - 1)
            .await;
        let after = lane.in_step("after a restart").await;
        assert_eq!(after.len(), OBJECTS - 1);
        assert!(after.iter().all(|(key, uid)| before.get(key) == Some(uid)), "the others were left alone");

        // Two starts.
        let all = reads(&lane.hub, mark).await;
        let streamed = all.iter().filter(|record| record.uri.contains("sendInitialEvents=true"));
        assert!(streamed.clone().count() >= 2, "streams are tried first: {all:#?}");
        assert!(streamed.clone().all(|record| record.status >= 400), "and refused: {all:#?}");
        let count_of = |of: &str| {
            let listed = all.iter().filter(|record| record.verb == "list" && record.status == 200);
            listed.filter(|record| record.uri.contains("limit=500") && record.uri.contains(of)).count()
        };
        assert_eq!(count_of("continue="), 2, "one second page for each start: {all:#?}");
        assert_eq!(count_of("limit=500"), 4, "and one first page: {all:#?}");
    });
}

#[test]
fn a_watch_that_is_too_old_lists_again_and_loses_and_deletes_nothing() {
    run(async {
        let shared = Lane::shared("unused", "databases").await;
        let hub = plane("outrun", Side::Remote, |options| {
            options.controller_manager = false;
            options.etcd = Storage::Own;
        })
        .await;
        let lane = Lane::between(hub, shared.edge, "outrun", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        let link = Link::to(lane.hub.address()).await.unwrap();
        let kubeconfig = lane.hub.kubeconfig_by(users::TOWLINE, link.address()).unwrap();
        let clusters =
            Lane::cluster("hub", &kubeconfig) + &Lane::cluster("edge", &lane.edge.kubeconfig(users::TOWLINE).unwrap());
        let towline = start(&(clusters + &lane.section("lane", ""))).await;
        let before = lane.in_step("before").await;
        report(&towline, "lane", "that all is in step", |report| objects(report, "in_step") == OBJECTS as u64).await;
        // The last that it asks of the hub by itself.
        lane.settings_noted("lane").await;
        let mark = lane.hub.audit().unwrap().mark().await.unwrap();

        // The daemon hears nothing and misses nobody: its connections stand, and it has nothing to ask.
        link.mute();
        lane.resize_many("team", OBJECTS, "2Gi").await;
        lane.order("team", "new", "7Gi").await;
        delete(&lane.on_hub("team"), "o7").await;
        // This one vanishes without being seen terminating.
        edit(&lane.on_hub("team"), "o8", json!({"metadata": {"finalizers": []}})).await;
        delete(&lane.on_hub("team"), "o8").await;
        lane.hub.kill_api_server().await.unwrap();
        lane.hub.compact_etcd().await.unwrap();
        lane.hub.start_api_server().await.unwrap();
        link.hang_up();

        let after = lane.in_step("after the watch was taken up again").await;
        assert_eq!(after.len(), OBJECTS - 1);
        let kept = after.iter().filter(|(key, uid)| before.get(*key) == Some(*uid)).count();
        assert_eq!(kept, OBJECTS - 2, "only what was deleted went");
        let log = towline.log().unwrap();
        assert!(log.contains("watch is too old, listing again"), "no 410 was seen:\n{log}");
        assert!(!log.contains("cluster is not available"), "it was not the outage that made it list again:\n{log}");
        let all = reads(&lane.hub, mark).await;
        let resumed = all.iter().position(|record| record.verb == "watch" && !record.uri.contains("sendInitialEvents"));
        let listed = all.iter().position(|record| record.uri.contains("sendInitialEvents=true"));
        assert!(resumed.is_some() && resumed < listed, "first resumed, then listed: {all:#?}");
        eventually("nothing more to be held", LIMIT, async || {
            let report = towline.admin().section("lane").await.map_err(|error| error.to_string())?;
            if report["objects"]["in_step"] == json!(OBJECTS - 1) { Ok(()) } else { Err(report.to_string()) }
        })
        .await
        .unwrap();
    });
}

#[test]
fn a_watch_lasts_as_long_as_configured_and_the_next_one_begins_where_it_ended() {
    run(async {
        let lane = Lane::shared("short-watch", "databases").await;
        let edge = lane.edge.kubeconfig(users::TOWLINE).unwrap();
        let hub = lane.hub.kubeconfig(users::TOWLINE).unwrap();
        let clusters = Lane::cluster("hub", &hub) + &Lane::cluster("edge", &edge) + "watch_timeout = \"6s\"\n";
        lane.make_namespace("team").await;
        let audit = lane.edge.audit().unwrap();
        let mark = audit.mark().await.unwrap();
        let _towline = start(&(clusters + &lane.section("lane", ""))).await;
        // Other daemons of these tests watch the same kind with the default timeout: this one's watches ask for six seconds.
        let watches = async || {
            let filter = Filter::since(mark).user(users::TOWLINE).verb("watch").resource("databases").with_watches();
            let records = audit.records(&filter).await.map_err(|error| error.to_string())?;
            let of_six_seconds =
                |record: &Record| record.uri.split(['?', '&']).any(|parameter| parameter == "timeoutSeconds=6");
            Ok::<_, String>(records.into_iter().filter(of_six_seconds).map(|record| record.uri).collect::<Vec<_>>())
        };
        let begun = eventually("three watches, one after the other", LIMIT, async || {
            let begun = watches().await?;
            if begun.len() >= 3 { Ok(begun) } else { Err(format!("{begun:?}")) }
        })
        .await
        .unwrap();
        let lists: Vec<&String> = begun.iter().filter(|uri| uri.contains("sendInitialEvents=true")).collect();
        assert_eq!(lists.len(), 1, "only the first one lists: {begun:?}");
        lane.order("team", "late", "1Gi").await;
        lane.in_step("over watches that end").await;
    });
}
