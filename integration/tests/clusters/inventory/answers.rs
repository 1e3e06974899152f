//! What an API answers is shown nowhere, and how long its answer is changes nothing.

use integration::{Reply, eventually};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::inventory::world::{LIMIT, World, ask, run, small_chart};

/// What the API says in every answer.
const WHISPER: &str = "whisper-5f0c1d";

#[test]
fn the_body_of_an_answer_is_shown_nowhere_and_may_be_long() {
    run(async {
        let world = World::new().await;
        // More than is read of an answer.
        let long: &'static str = WHISPER.repeat(10_000).leak();
        world.sink.script([Reply::Saying(200, long), Reply::Saying(500, WHISPER), Reply::Saying(500, long)]);
        let daemon = world.start("").await;
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        world.told("web", 1).await;
        world.wait_until_acknowledged("web").await;
        let posts = world.sink.told();
        assert_eq!(posts.len(), 4, "a long answer counts by its status: the registration once, and the release thrice");
        world.sink.script([Reply::Saying(400, long), Reply::Saying(422, WHISPER)]);
        world.helm.run(&["upgrade", "web", &chart, "--set", "value=2"]).await.unwrap();
        let rejected = eventually("the release to be rejected", LIMIT, async || {
            let section = daemon.admin().section("inventory").await.map_err(|error| error.to_string())?;
            if section["rejected"] == 1 { Ok(section["problems"].clone()) } else { Err(section.to_string()) }
        });
        assert_eq!(rejected.await.unwrap(), json!([{"release": "default/web", "reason": "rejected: HTTP400"}]));
        world.wait_for_condition("main", "Delivered", "False").await;
        let (_, explained) = ask(&daemon, "explain", "default/web").await;
        let places = [
            ("the status of the project", world.status().await.to_string()),
            ("/status", daemon.admin().status().await.unwrap().to_string()),
            ("/metrics", daemon.admin().metrics().await.unwrap()),
            ("an explanation", explained),
            ("the log", daemon.log().unwrap()),
        ];
        for (place, text) in places {
            assert!(!text.contains("whisper"), "in {place}");
        }
    });
}

/// A service that belongs to the release `web`.
fn service() -> Value {
    let labels = json!({"app.kubernetes.io/instance": "web", "app.kubernetes.io/managed-by": "Helm"});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "more", "namespace": "default", "labels": labels},
        "spec": {"ports": [{"port": 80}]}})
}

/// What runs in a release changes and changes back, while its revision stays: the same body again, which is another post. What was
/// rejected in between is none.
#[test]
fn a_content_that_returns_is_told_again_unless_the_one_in_between_was_rejected() {
    run(async {
        let world = World::new().await;
        let mut daemon = world.start("").await;
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        world.told("web", 1).await;
        let services: Api<Service> = Api::namespaced(world.admin.clone(), "default");
        world.create(&service()).await;
        world.told("web", 2).await;
        services.delete("more", &DeleteParams::default()).await.unwrap();
        let told = world.told("web", 3).await;
        world.wait_until_acknowledged("web").await;
        assert!(told[0] == told[2] && told[0] != told[1], "{told:?}");
        assert_eq!(world.status().await["helmStatus"][0]["sent"], 3);

        world.sink.script([Reply::Status(400)]);
        world.create(&service()).await;
        world.wait_for_condition("main", "Delivered", "False").await;
        // Another process does not try it again, and knows why.
        daemon.kill9().await.unwrap();
        daemon.start_again().await.unwrap();
        daemon.wait_ready(LIMIT).await.unwrap();
        eventually("the rejection to be remembered", LIMIT, async || {
            let section = daemon.admin().section("inventory").await.map_err(|error| error.to_string())?;
            if section["rejected"] == 1 { Ok(()) } else { Err(section.to_string()) }
        })
        .await
        .unwrap();
        world.helm.run(&["install", "other", &chart]).await.unwrap();
        world.told("other", 1).await;
        assert_eq!(world.sink.told().len(), 6, "the registration, four posts of web and one of other");
        services.delete("more", &DeleteParams::default()).await.unwrap();
        world.wait_for_condition("main", "Delivered", "True").await;
        world.helm.run(&["upgrade", "other", &chart, "--set", "value=2"]).await.unwrap();
        world.told("other", 2).await;
        assert_eq!((world.sink.told().len(), world.accepted("web").len()), (7, 3), "nothing has changed for the API");
    });
}
