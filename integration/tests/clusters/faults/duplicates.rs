//! Two that should be one, or be told apart: local clusters with one finalizer, daemons with one section, daemons with one
//! section name and different hubs.

use std::sync::Arc;

use integration::{Towline, eventually};
use kube::ResourceExt;
use serde_json::Value;

use crate::faults::world::{LIMIT, Lane, another_edge, another_hub, delete, objects, report, run};

const OBJECTS: usize = 4;

async fn command(towline: &Towline, word: &str) {
    let yes = if word == "attach" { None } else { Some("--yes") };
    let url = towline.admin_url();
    let args = [word, "lane", "--admin", &url].into_iter().chain(yes);
    let output = Towline::command(args).await.unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Waits until so many objects are left alone since they are another cluster's.
async fn held_elsewhere(towline: &Towline, count: usize, when: &str) -> Value {
    report(towline, "lane", &format!("that another cluster holds {count} objects {when}"), |report| {
        objects(report, "other_cluster") == count as u64
    })
    .await
}

#[test]
fn two_local_clusters_with_one_finalizer_do_not_share_objects_and_one_takes_the_others_place() {
    run(async {
        let lane = Lane::shared("two-edges", "databases").await;
        let other = another_edge().await;
        let there = Lane::between(Arc::clone(&lane.hub), Arc::clone(&other), "two-edges", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", OBJECTS).await;
        let first = lane.towline().await;
        lane.in_step("before").await;

        let second = there.towline().await;
        let told = held_elsewhere(&second, OBJECTS, "at the start").await;
        assert!(told["not_in_step"].to_string().contains("with the same finalizer"), "{told}");
        assert!(told["well"] == false, "{told}");
        // A new object goes to one of the two clusters. A deleted object waits for the cluster that has it.
        lane.order("team", "late", "1Gi").await;
        eventually("the late object to be somewhere", LIMIT, async || {
            let found = lane.local_uids().await.len() + there.local_uids().await.len();
            if found == OBJECTS + 1 { Ok(()) } else { Err(format!("{found} local objects")) }
        })
        .await
        .unwrap();
        delete(&lane.on_hub("team"), "late").await;
        delete(&lane.on_hub("team"), "o0").await;
        eventually("both deleted objects to be gone everywhere", LIMIT, async || {
            let found = lane.remote_uids().await.len() + lane.local_uids().await.len() + there.local_uids().await.len();
            if found == 2 * (OBJECTS - 1) { Ok(()) } else { Err(format!("{found} objects")) }
        })
        .await
        .unwrap();
        held_elsewhere(&second, OBJECTS - 1, "still").await;

        // One that lets go is no hindrance to the other.
        command(&first, "detach").await;
        there.in_step("when the first has let go").await;
        assert_eq!(there.local_uids().await.len(), OBJECTS - 1);
        // Back again it finds the other there, and takes its place when somebody says so.
        command(&first, "attach").await;
        held_elsewhere(&first, OBJECTS - 1, "for the first").await;
        command(&first, "approve").await;
        lane.in_step("when the first has taken over").await;
        held_elsewhere(&second, OBJECTS - 1, "for the second").await;
        let remote = lane.on_hub("team").get("o1").await.unwrap();
        let holder = remote.annotations().get("cloud.teleport.dev/sync-local-cluster");
        let uid = lane.edge.uid().await.unwrap();
        assert!(holder.is_some_and(|holder| holder.starts_with(&format!("{uid}/"))), "{holder:?} {uid}");
    });
}

/// The daemon with the section `lane`, which remembers things in a namespace of its own.
async fn daemon_with_own_state(lane: &Lane, states: &str) -> Towline {
    let config = lane.clusters() + &lane.section("lane", "");
    let towline = Towline::start(&config, &[("TOWLINE__DAEMON__STATE_NAMESPACE", states)]).await.unwrap();
    towline.wait_ready(LIMIT).await.unwrap();
    towline
}

#[test]
fn two_daemons_with_one_section_name_and_different_hubs_keep_off_each_others_objects() {
    run(async {
        let here = Lane::shared("two-hubs", "databases").await;
        let other_hub = another_hub().await;
        let there = Lane::between(other_hub, Arc::clone(&here.edge), "two-hubs", "databases").await;
        // Only for what the second daemon remembers.
        here.beside("two-hubs-there", "databases").await;
        here.make_namespace("team").await;
        here.order_many("team", 3).await;
        let first = daemon_with_own_state(&here, "state-of-two-hubs").await;
        here.in_step("before").await;

        for namespace in ["team", "solo"] {
            there.make_namespace(namespace).await;
            there.order(namespace, "theirs", "2Gi").await;
        }
        there.order("team", "o0", "9Gi").await;
        let second = daemon_with_own_state(&there, "state-of-two-hubs-there").await;
        let told = held_elsewhere(&second, 3, "of the first").await;
        assert!(told["not_in_step"].to_string().contains("a section of the same name created it"), "{told}");
        held_elsewhere(&first, 2, "of the second").await;
        let before = here.local_uids().await;
        assert_eq!(before.len(), 5, "{before:?}");
        assert_eq!(here.on_edge("team").get("o0").await.unwrap().data["spec"]["storage"], "1Gi");

        // A start looks at everything anew.
        first.terminate(LIMIT).await.unwrap();
        let first = daemon_with_own_state(&here, "state-of-two-hubs").await;
        held_elsewhere(&first, 2, "after a restart").await;
        // Each goes on with its own, deletions included.
        delete(&here.on_hub("team"), "o2").await;
        delete(&there.on_hub("solo"), "theirs").await;
        eventually("both deleted objects to be gone everywhere, and nothing else", LIMIT, async || {
            let (locals, remotes) =
                (here.local_uids().await, here.remote_uids().await.len() + there.remote_uids().await.len());
            if locals.len() == 3 && remotes == 4 {
                Ok(())
            } else {
                Err(format!("{locals:?}, {remotes} remote objects"))
            }
        })
        .await
        .unwrap();
        assert!(here.local_uids().await.iter().all(|(key, uid)| before[key] == *uid), "{before:?}");

        // A namespace goes with the last object of whoever made it, and stays with an object of the other's in it.
        eventually("the namespace of the deleted object to be gone", LIMIT, async || {
            let left = here.local_namespaces().await;
            if left == [here.namespace("team")] { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await
        .unwrap();
        // One hub in the other's place, as somebody says: what it has not is gone.
        first.terminate(LIMIT).await.unwrap();
        held_elsewhere(&second, 2, "still").await;
        let listed = Towline::command(["approve", "lane", "--list", "--admin", &second.admin_url()]).await.unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(listed.contains("a section of the same name created it"), "{listed}");
        command(&second, "approve").await;
        there.in_step("when the second hub has taken the first one's place").await;
        let source = here.on_edge("team").get("o0").await.unwrap();
        let source = source.annotations().get("cloud.teleport.dev/sync-remote-cluster").cloned();
        let hub = there.hub.uid().await.unwrap();
        assert!(source.as_ref().is_some_and(|source| source.starts_with(&hub)), "{source:?} {hub}");
    });
}

#[test]
fn two_daemons_that_run_one_section_are_told_and_keep_it_in_step() {
    run(async {
        let lane = Lane::shared("two-daemons", "databases").await;
        lane.make_namespace("team").await;
        let daemons = [lane.towline().await, lane.towline().await];
        lane.order_many("team", 20).await;
        lane.in_step("by both").await;
        // While one daemon happens to create every object first, the other leaves no trace.
        let mut more = 0;
        eventually("one of them to tell of the other", LIMIT, async || {
            more += 1;
            lane.order("team", &format!("more{more}"), "1Gi").await;
            let mut told = Vec::new();
            for daemon in &daemons {
                let report = daemon.admin().section("lane").await.map_err(|error| error.to_string())?;
                let message = report["message"].as_str().unwrap_or_default().to_owned();
                if message.contains("another daemon") && report["well"] == false {
                    return Ok(());
                }
                told.push(message);
            }
            Err(format!("{told:?}"))
        })
        .await
        .unwrap();
        let logs = daemons.each_ref().map(|daemon| daemon.log().unwrap());
        assert!(logs.iter().any(|log| log.contains("another daemon")), "{logs:?}");
    });
}
