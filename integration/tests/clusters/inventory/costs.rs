//! What the inventory costs the API server, counted where requests arrive.

use std::time::Duration;

use integration::{Filter, users};
use serde_json::json;

use crate::inventory::world::{LIMIT, World, run, small_chart};

/// Requests by verb and resource.
async fn summary(world: &World, since: integration::Mark, watches: bool) -> Vec<String> {
    let filter = Filter::since(since).user(users::TOWLINE);
    let filter = if watches { filter.with_watches() } else { filter };
    world
        .plane
        .audit()
        .unwrap()
        .summary(&filter)
        .await
        .unwrap()
        .into_iter()
        .map(|(what, count)| format!("{count} {what}"))
        .collect()
}

#[test]
fn one_change_costs_one_get_one_post_and_two_writes_and_an_idle_minute_nothing() {
    run(async {
        let world = World::new().await;
        let mut daemon = world.start("").await;
        let chart = world.helm.chart(&small_chart()).unwrap();
        for number in 2..4 {
            world.helm.run(&["install", &format!("web-{number}"), &chart]).await.unwrap();
        }
        for number in 2..4 {
            world.told(&format!("web-{number}"), 1).await;
            world.wait_until_acknowledged(&format!("web-{number}")).await;
        }
        let audit = world.plane.audit().unwrap();
        let (mark, posts) = (audit.mark().await.unwrap(), world.sink.told().len());
        world.helm.run(&["upgrade", "web-3", &chart, "--set", "value=2"]).await.unwrap();
        world.told("web-3", 2).await;
        world.wait_until_acknowledged("web-3").await;
        let expected = ["1 towline get secrets", "2 towline patch hosstedprojects/status"];
        assert_eq!(summary(&world, mark, false).await, expected);
        assert_eq!(world.sink.told().len(), posts + 1);

        // Idle: the subject is time.
        let mark = audit.mark().await.unwrap();
        let before = daemon.usage().unwrap();
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(summary(&world, mark, false).await, [""; 0]);
        assert_eq!(world.sink.told().len(), posts + 1);
        let used = daemon.usage().unwrap().cpu.saturating_sub(before.cpu);
        // This is a debug build, for which there is no mark; something that turns in a circle takes a minute.
        assert!(used < Duration::from_secs(20), "{used:?} in an idle minute");

        // A start in step costs the lists and nothing else: no record is read, nothing written, nothing posted.
        daemon.kill9().await.unwrap();
        let mark = audit.mark().await.unwrap();
        daemon.start_again().await.unwrap();
        daemon.wait_ready(LIMIT).await.unwrap();
        world.helm.run(&["install", "last", &chart]).await.unwrap();
        world.told("last", 1).await;
        world.wait_until_acknowledged("last").await;
        let requests = summary(&world, mark, false).await;
        let others: Vec<&String> = requests.iter().filter(|line| !line.contains("/version")).collect();
        assert_eq!(others, ["1 towline get secrets", "2 towline patch hosstedprojects/status"], "{requests:?}");
        assert_eq!(world.sink.told().len(), posts + 2);
        let watches = summary(&world, mark, true).await;
        let lists: Vec<&String> = watches.iter().filter(|line| line.contains(" watch ")).collect();
        assert_eq!(lists.len(), 6, "Secrets twice: {lists:?}");
    });
}

#[test]
fn a_project_that_is_ignored_keeps_what_it_knows_and_one_that_is_stopped_costs_nothing_until_it_goes_on() {
    run(async {
        let world = World::new().await;
        let daemon = world.start("").await;
        let chart = world.helm.chart(&small_chart()).unwrap();
        for name in ["web", "gone"] {
            world.helm.run(&["install", name, &chart]).await.unwrap();
            world.told(name, 1).await;
            world.wait_until_acknowledged(name).await;
        }
        let before = world.status().await;
        world.change_project("main", &json!({"helm": [{"chartName": "x"}]})).await;
        let condition = world.wait_for_condition("main", "Ignored", "True").await;
        assert_eq!(condition["reason"], "InstallsCharts");
        let ignored = world.status().await;
        for field in ["clusterUUID", "registeredHash", "helmStatus"] {
            assert_eq!(ignored[field], before[field], "{field}");
        }
        assert_eq!(ignored["conditions"].as_array().map(Vec::len), Some(1), "{ignored}");
        world.change_project("main", &json!({"helm": []})).await;
        world.wait_for_condition("main", "Delivered", "True").await;
        let after = world.status().await;
        assert_eq!((&after["clusterUUID"], &after["helmStatus"]), (&before["clusterUUID"], &before["helmStatus"]));

        world.change_project("main", &json!({"stop": true})).await;
        let condition = world.wait_for_condition("main", "Ready", "False").await;
        assert_eq!(condition["reason"], "Stopped");
        let mark = world.plane.audit().unwrap().mark().await.unwrap();
        world.helm.run(&["upgrade", "web", &chart, "--set", "value=2"]).await.unwrap();
        world.helm.run(&["upgrade", "web", &chart, "--set", "value=3"]).await.unwrap();
        world.helm.run(&["uninstall", "gone"]).await.unwrap();
        world.helm.run(&["install", "new", &chart]).await.unwrap();
        assert_eq!(summary(&world, mark, true).await, [""; 0], "something is watched");
        world.change_project("main", &json!({"stop": false})).await;
        let told = world.told("web", 2).await;
        assert_eq!(told[1]["app_info"]["helm_info"]["revision"], 3);
        world.told("gone", 2).await;
        world.told("new", 1).await;
        assert_eq!(world.sink.told().len(), 1 + 2 + 3, "the registration, and each change once");
        drop(daemon);
    });
}
