//! Clusters that swallow packets: whoever does not need them goes on at full speed.

use std::time::{Duration, Instant};

use integration::audit::Mark;
use integration::{Filter, Link, Towline, eventually, users};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};

use crate::faults::world::{LIMIT, Lane, mortals, objects, report, run, start};

const OBJECTS: usize = 15;

/// Changes every object on the hub and waits until the edge shows it.
async fn round(lane: &Lane, storage: &str) -> Duration {
    let begun = Instant::now();
    lane.resize_many("team", OBJECTS, storage).await;
    eventually(format!("every local object to have {storage}"), LIMIT, async || {
        let listed = lane.on_edge("team").list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let behind_time: Vec<_> = listed
            .items
            .iter()
            .filter(|object| object.data["spec"]["storage"] != storage)
            .map(ResourceExt::name_any)
            .collect();
        if behind_time.is_empty() { Ok(()) } else { Err(behind_time.join(", ")) }
    })
    .await
    .unwrap();
    begun.elapsed()
}

#[test]
fn a_black_holed_cluster_at_either_end_of_other_sections_holds_nobody_else_up() {
    run(async {
        let near = Lane::shared("near", "databases").await;
        // Of one the remote cluster is behind a link, of the other the local one.
        let (from, to) = (near.beside("from", "databases").await, near.beside("to", "databases").await);
        for lane in [&near, &from, &to] {
            lane.make_namespace("team").await;
            lane.order_many("team", OBJECTS).await;
        }
        let links = [Link::to(near.hub.address()).await.unwrap(), Link::to(near.edge.address()).await.unwrap()];
        let config = near.clusters()
            + &Lane::cluster("far-hub", &near.hub.kubeconfig_by(users::TOWLINE, links[0].address()).unwrap())
            + &Lane::cluster("far-edge", &near.edge.kubeconfig_by(users::TOWLINE, links[1].address()).unwrap())
            + &near.section("near", "")
            + &from.section_between("from", "far-hub", "edge", "")
            + &to.section_between("to", "hub", "far-edge", "");
        let mut towline = start(&config).await;
        near.in_step("before").await;
        let before = [from.in_step("before").await, to.in_step("before").await];
        round(&near, "2Gi").await;
        let usual = round(&near, "3Gi").await;

        for link in &links {
            link.cut().await.unwrap();
        }
        // Work for both sides of the dead sections.
        for far in [&from, &to] {
            far.resize_many("team", OBJECTS, "4Gi").await;
            far.report_many("team", OBJECTS, "told-in-the-dark").await;
        }
        // Through everything: writes that hang, connections that time out, probes.
        let (mut slowest, mut rounds) = (Duration::ZERO, 0);
        eventually("both clusters to be known as dead, and their changes to wait", LIMIT, async || {
            slowest = slowest.max(round(&near, &format!("{}Gi", 100 + rounds)).await);
            rounds += 1;
            let status = towline.admin().status().await.map_err(|error| error.to_string())?;
            let is_dead = |cluster: &str| status["clusters"][cluster]["state"] == "unreachable";
            let waits = |section: &str| objects(&status["sections"][section], "pending") > 0;
            let is_known = is_dead("far-hub") && is_dead("far-edge") && waits("from") && waits("to");
            if is_known && rounds >= 5 { Ok(()) } else { Err(status.to_string()) }
        })
        .await
        .unwrap();
        // A machine that others use may be slower at times; a section that waits for the dead one would need 15 s or more.
        assert!(slowest < usual * 4 + Duration::from_secs(3), "{slowest:?} beside dead clusters, {usual:?} before");
        assert_eq!(towline.admin().readyz().await.unwrap().status, 200, "dead clusters do not take the daemon out");

        // Nor does a daemon that starts now wait for them.
        towline.kill9().await.unwrap();
        towline.start_again().await.unwrap();
        towline.wait_ready(LIMIT).await.unwrap();
        round(&near, "555Gi").await;
        for (section, cluster) in [("from", "far-hub"), ("to", "far-edge")] {
            report(&towline, section, "what it waits for", |report| {
                report["waits_for"].as_str().is_some_and(|reason| reason.contains(cluster))
            })
            .await;
            assert_eq!(towline.admin().section_readyz(section).await.unwrap().status, 503);
        }

        for link in &links {
            link.restore().await.unwrap();
        }
        for (far, before) in [&from, &to].into_iter().zip(&before) {
            assert_eq!(far.in_step("after the links were restored").await, *before, "nothing was made anew");
        }
        near.in_step("at the end").await;
        for section in ["from", "to"] {
            assert_eq!(towline.admin().section_readyz(section).await.unwrap().status, 200);
        }
    });
}

#[test]
fn an_idle_watch_behind_a_proxy_that_stays_up_is_given_up_when_nothing_comes_back_any_more() {
    run(async {
        let lane = Lane::shared("idle-proxy", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", 3).await;
        let link = Link::to(lane.hub.address()).await.unwrap();
        let behind = lane.hub.kubeconfig_by(users::TOWLINE, link.address()).unwrap();
        let config = "[daemon.log]\nfilter = \"info,towline::http=debug\"\n".to_owned()
            + &Lane::cluster("behind", &behind)
            + &Lane::cluster("edge", &lane.edge.kubeconfig(users::TOWLINE).unwrap())
            + &lane.section_between("lane", "behind", "edge", "");
        let towline = start(&config).await;
        let before = lane.in_step("before").await;
        let says = async |text: &str, of: &str| {
            eventually(format!("the log to say {text:?} of {of:?}"), LIMIT, async || {
                let log = towline.log().map_err(|error| error.to_string())?;
                let is_told = log.lines().any(|line| line.contains(text) && line.contains(of));
                if is_told { Ok(()) } else { Err(log.lines().last().unwrap_or_default().to_owned()) }
            })
            .await
            .unwrap();
        };
        says("idle connections are probed with them", &link.address().to_string()).await;
        // The connections stay, and so does what the daemon is connected to. Nobody asks for anything: without a sign of life
        // from the far end, all of that would look like a quiet day for five minutes.
        link.mute();
        says("cluster is not available", "behind").await;
        link.hang_up();
        lane.resize_many("team", 3, "2Gi").await;
        assert_eq!(lane.in_step("when answers arrive again").await, before);
    });
}

/// Waits until something waits for an answer of the edge that is not heard: a question whether a permission is granted by now, or, if the
/// silence of the connection was noticed before the next one was due, a probe.
async fn unanswered(lane: &Lane, towline: &Towline, since: Mark) {
    let reviews = Filter::since(since).user(users::TOWLINE).resource("selfsubjectaccessreviews");
    eventually("a question about a permission, or probes", LIMIT, async || {
        let log = towline.log().map_err(|error| error.to_string())?;
        let is_probed = log.contains("cluster is not available");
        match lane.edge.audit().unwrap().count(&reviews).await {
            Ok(0) if !is_probed => Err("none".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.chain()),
        }
    })
    .await
    .unwrap();
}

#[test]
fn questions_that_are_never_answered_hold_up_neither_new_credentials_nor_the_end() {
    run(async {
        // Of one test at a time: it takes a right away.
        let (_turn, hub, edge) = mortals().await;
        let lane = Lane::between(hub, edge, "unanswered", "databases").await;
        lane.make_namespace("team").await;
        lane.order("team", "o0", "1Gi").await;
        let links = [Link::to(lane.edge.address()).await.unwrap(), Link::to(lane.edge.address()).await.unwrap()];
        let text_of = |link: &Link| {
            let path = lane.edge.kubeconfig_by(users::TOWLINE, link.address()).unwrap();
            std::fs::read_to_string(path).unwrap()
        };
        let file = lane.edge.directory().join("unanswered.kubeconfig");
        std::fs::write(&file, text_of(&links[0])).unwrap();
        let config = Lane::cluster("hub", &lane.hub.kubeconfig(users::TOWLINE).unwrap())
            + &Lane::cluster("behind", &file)
            + &lane.section_between("lane", "hub", "behind", "");
        let towline = start(&config).await;
        lane.in_step("before").await;
        // The right to create is gone: one question for all namespaces, and one for each of ten.
        let admin = lane.edge.client(users::ADMIN).await.unwrap();
        let roles: Api<ClusterRole> = Api::all(admin);
        let name = "towline-resource-sync-local:databases.demo.towline.dev";
        let mut role = roles.get(name).await.unwrap();
        for rule in role.rules.iter_mut().flatten() {
            if rule.resources.iter().flatten().any(|resource| resource == "databases") {
                rule.verbs.retain(|verb| verb != "create");
            }
        }
        roles.replace(name, &PostParams::default(), &role).await.unwrap();
        for number in 0..10 {
            let namespace = format!("denied-{number}");
            lane.make_namespace(&namespace).await;
            lane.order(&namespace, "o0", "1Gi").await;
        }
        report(&towline, "lane", "ten objects that fail", |report| objects(report, "failing") == 10).await;

        // Before the answers stop: the question that is not answered may be asked at once, and is the last one then.
        let since = lane.edge.audit().unwrap().mark().await.unwrap();
        links[0].mute();
        unanswered(&lane, &towline, since).await;
        let switched = lane.edge.audit().unwrap().mark().await.unwrap();
        std::fs::write(&file, text_of(&links[1])).unwrap();
        // What the daemon says still arrives over the old way; what the edge says arrives over the new one only. One question after
        // the other would take longer: each has to break its connection, or to give up a new one.
        lane.report_many("team", 1, "over-the-new-way").await;
        eventually("the status on the hub", Duration::from_secs(40), async || {
            let remote = lane.on_hub("team").get("o0").await.map_err(|error| error.to_string())?;
            let status = &remote.data["status"];
            if status["endpoint"] == "over-the-new-way" { Ok(()) } else { Err(status.to_string()) }
        })
        .await
        .unwrap();
        // New credentials may have the right: each of the ten is sent once more. A write that is on its way is waited for at the end.
        let denied = Filter::since(switched).user(users::TOWLINE).verb("create").resource("databases");
        eventually("the ten objects to be refused again", LIMIT, async || {
            match lane.edge.audit().unwrap().count(&denied).await {
                Ok(10..) => Ok(()),
                count => Err(format!("{count:?}")),
            }
        })
        .await
        .unwrap();

        // Before the answers stop: the question that is not answered may be asked at once, and is the last one then.
        let since = lane.edge.audit().unwrap().mark().await.unwrap();
        links[1].mute();
        unanswered(&lane, &towline, since).await;
        let begun = Instant::now();
        assert!(towline.terminate(LIMIT).await.unwrap().success());
        assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?} to end", begun.elapsed());
    });
}
