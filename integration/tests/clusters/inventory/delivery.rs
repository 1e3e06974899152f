//! An API that does not take what it is told, and a daemon that is killed: everything arrives, under its key.

use std::collections::BTreeMap;
use std::time::Duration;

use integration::soak::{Random, rounds, seed};
use integration::{Reply, Told, eventually};
use serde_json::{Value, json};

use crate::inventory::world::{LIMIT, World, ask, brief, run, small_chart};

/// A world with a daemon that has told of the release `web`.
async fn told_of_web() -> (World, integration::Towline, String) {
    let world = World::new().await;
    let daemon = world.start("").await;
    let chart = world.helm.chart(&small_chart()).unwrap();
    world.helm.run(&["install", "web", &chart]).await.unwrap();
    world.told("web", 1).await;
    world.wait_until_acknowledged("web").await;
    (world, daemon, chart)
}

/// The posts of a revision of `web`.
fn of_revision(told: &Told, revision: u64) -> bool {
    let info = &told.body["app_info"]["helm_info"];
    info["name"] == "web" && info["revision"] == revision
}

#[test]
fn a_post_that_fails_or_whose_daemon_is_killed_in_the_midst_is_repeated_under_its_key() {
    run(async {
        let (world, mut daemon, chart) = told_of_web().await;
        world.sink.script([
            // Long enough to be seen.
            Reply::RetryAfter(500, 10),
            // Longer than the back-off, which is two seconds at most by then.
            Reply::RetryAfter(429, 4),
            Reply::Status(503),
            Reply::CutBefore,
            Reply::CutAfter,
        ]);
        world.helm.run(&["upgrade", "web", &chart, "--set", "value=2"]).await.unwrap();
        let condition = world.wait_for_condition("main", "Delivered", "False").await;
        assert_eq!(condition["reason"], "HTTP500");
        assert!(condition["message"].as_str().unwrap().starts_with("1 release waits since "), "{condition}");
        let (_, explained) = ask(&daemon, "explain", "default/web").await;
        assert!(explained.contains("waits: HTTP500, next try in "), "{explained}");
        let told = world.sink.wait_for("of the second revision", 6, LIMIT, |told| of_revision(told, 2)).await.unwrap();
        world.wait_for_condition("main", "Delivered", "True").await;
        assert_eq!(told.len(), 6, "a post after the one that was taken");
        assert!(told.iter().all(|post| post.key == told[0].key && post.body == told[0].body), "{told:?}");
        let asked = told[2].at - told[1].at;
        assert!(asked >= Duration::from_secs(4), "it did not wait as it was asked to: {asked:?}");
        assert_eq!(world.accepted("web").len(), 2);
        let metrics = daemon.admin().metrics().await.unwrap();
        assert!(
            metrics.lines().any(|found| found == "towline_objects{section=\"inventory\",state=\"pending\"} 0"),
            "{metrics}"
        );

        world.sink.script([Reply::Hang]);
        world.helm.run(&["upgrade", "web", &chart, "--set", "value=3"]).await.unwrap();
        world.sink.wait_for("of the third revision", 1, LIMIT, |told| of_revision(told, 3)).await.unwrap();
        daemon.kill9().await.unwrap();
        daemon.start_again().await.unwrap();
        let told = world.sink.wait_for("of the third revision", 2, LIMIT, |told| of_revision(told, 3)).await.unwrap();
        world.wait_until_acknowledged("web").await;
        assert_eq!((told.len(), &told[0].key, &told[0].body), (2, &told[1].key, &told[1].body));
        assert_eq!(world.accepted("web").len(), 3);

        // What somebody asks for again gets another key.
        daemon.wait_ready(LIMIT).await.unwrap();
        assert!(ask(&daemon, "resync", "default/web").await.0 && !ask(&daemon, "resync", "default/none").await.0);
        let again = world.sink.wait_for("of the third revision", 3, LIMIT, |told| of_revision(told, 3)).await.unwrap();
        assert!(again[2].body == told[0].body && again[2].key != told[0].key, "{again:?}");
    });
}

#[test]
fn what_an_api_refuses_waits_for_another_token_or_another_content_and_no_redirect_is_followed() {
    run(async {
        let (world, daemon, chart) = told_of_web().await;
        world.sink.answer(Some(Reply::Status(401)));
        world.helm.run(&["upgrade", "web", &chart, "--set", "value=2"]).await.unwrap();
        let condition = world.wait_for_condition("main", "Delivered", "False").await;
        assert_eq!(condition["reason"], "Unauthorized");
        assert!(condition["message"].as_str().unwrap().starts_with("1 release waits since "), "{condition}");
        let (_, explained) = ask(&daemon, "explain", "default/web").await;
        assert!(explained.starts_with("revision 2 deployed, app A-"), "{explained}");
        // Another release does not make it try again.
        world.helm.run(&["install", "other", &chart]).await.unwrap();
        eventually("the other release to wait", LIMIT, async || {
            let section = daemon.admin().section("inventory").await.map_err(|error| error.to_string())?;
            let is_so = section["pending"] == 2 && section["state"] == "failing";
            if is_so { Ok(()) } else { Err(section.to_string()) }
        })
        .await
        .unwrap();
        let before = world.sink.told().len();
        world.sink.answer(None);
        world.change_token("token-2");
        world.told("web", 2).await;
        world.told("other", 1).await;
        let after = world.sink.told().split_off(before);
        assert!(after.iter().all(|told| told.authorization == "Bearer token-2"), "{after:?}");
        let of_second = world.sink.told().iter().filter(|told| of_revision(told, 2)).count();
        assert_eq!(of_second, 2, "one that was refused, one that was not");

        world.sink.script([Reply::Status(302)]);
        world.helm.run(&["upgrade", "web", &chart, "--set", "value=3"]).await.unwrap();
        let problem = json!([{"release": "default/web", "reason": "rejected: HTTP302"}]);
        eventually("the redirect to be shown", LIMIT, async || {
            let section = daemon.admin().section("inventory").await.map_err(|error| error.to_string())?;
            if section["problems"] == problem { Ok(()) } else { Err(section.to_string()) }
        })
        .await
        .unwrap();
        let condition = world.wait_for_condition("main", "Delivered", "False").await;
        assert_eq!(condition["reason"], "Rejected");
        // Others go on.
        world.helm.run(&["upgrade", "other", &chart, "--set", "value=2"]).await.unwrap();
        world.told("other", 2).await;
        world.helm.run(&["upgrade", "web", &chart, "--set", "value=4"]).await.unwrap();
        assert_eq!(brief(&world.told("web", 3).await[2]), (4, "deployed".to_owned()));
        world.wait_for_condition("main", "Delivered", "True").await;
        assert_eq!(world.sink.told().iter().filter(|told| of_revision(told, 3)).count(), 1, "it was sent once");
        assert!(world.sink.told().iter().all(|told| !told.line.contains("elsewhere")), "a redirect was followed");
    });
}

/// What was accepted last of each release, and whether a key ever had two bodies.
fn last_accepted(told: &[Told]) -> BTreeMap<String, Value> {
    let mut bodies: BTreeMap<&str, &Value> = BTreeMap::new();
    let mut last = BTreeMap::new();
    for told in told.iter().filter(|told| told.accepted) {
        assert_eq!(*bodies.entry(&told.key).or_insert(&told.body), &told.body, "one key for two bodies");
        if let Some(name) = told.body["app_info"]["helm_info"]["name"].as_str() {
            last.insert(name.to_owned(), told.body.clone());
        }
    }
    last
}

#[test]
fn through_faults_and_kills_every_last_content_arrives() {
    run(async {
        let world = World::new().await;
        let mut daemon = world.start("").await;
        let chart = world.helm.chart(&small_chart()).unwrap();
        for name in ["a", "b"] {
            world.helm.run(&["install", name, &chart]).await.unwrap();
        }
        let mut random = Random::new(seed());
        let last_round = rounds(6) + 1;
        let faults = [Reply::Status(500), Reply::CutBefore, Reply::CutAfter, Reply::Status(503), Reply::Hang];
        let mut drawn = random.split().rounds_of(&faults);
        for round in 2..=last_round {
            let fault = drawn.next().unwrap();
            world.sink.script([fault]);
            for name in ["a", "b"] {
                world.helm.run(&["upgrade", name, &chart, "--set", &format!("value={round}")]).await.unwrap();
            }
            if fault == Reply::Hang || random.below(2) == 0 {
                // At some moment between the change and its acknowledgement.
                tokio::time::sleep(Duration::from_millis(random.below(900))).await;
                daemon.kill9().await.unwrap();
                daemon.start_again().await.unwrap();
            }
        }
        daemon.kill9().await.unwrap();
        daemon.start_again().await.unwrap();
        eventually("the last contents", LIMIT, async || {
            let last = last_accepted(&world.sink.told());
            let revisions: Vec<_> = ["a", "b"].iter().map(|name| last.get(*name).map(brief)).collect();
            if revisions.iter().all(|told| *told == Some((last_round, "deployed".to_owned()))) {
                Ok(())
            } else {
                Err(format!("{revisions:?}"))
            }
        })
        .await
        .unwrap();
        let ids = |name: &str| -> Vec<Value> {
            let mut ids: Vec<Value> = world.accepted(name).iter().map(|body| body["app_api_info"].clone()).collect();
            ids.dedup();
            ids
        };
        assert_eq!((ids("a").len(), ids("b").len()), (1, 1), "a second id");
        world.wait_until_acknowledged("a").await;
        world.wait_until_acknowledged("b").await;
    });
}
