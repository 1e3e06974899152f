//! No value of a chart, a Secret, a `ConfigMap` or an environment variable leaves the cluster or is logged, and neither does the token or
//! what the API answers.

use integration::{Reply, Towline};
use serde_json::json;

use crate::inventory::world::{CANARY, LIMIT, World, ask, chart, run};

/// What the API says in every answer.
const WHISPER: &str = "whisper-5f0c1d";

/// Looks at every place that shows something, and at an explanation.
async fn shows_nothing(world: &World, daemon: &Towline, explained: String) {
    let places = [
        ("a payload", format!("{:?}", world.sink.told().iter().map(|told| &told.body).collect::<Vec<_>>())),
        ("the status of the project", world.status().await.to_string()),
        ("/status", daemon.admin().status().await.unwrap().to_string()),
        ("/metrics", daemon.admin().metrics().await.unwrap()),
        ("the log", daemon.log().unwrap()),
        ("an explanation", explained),
    ];
    for (place, text) in places {
        assert!(!text.contains("canary-5f0c1d"), "in {place}");
        assert!(!text.contains("whisper"), "in {place}");
        assert!(!text.contains("Y2FuYXJ5LTVmMGMxZ"), "in {place}, in base64");
    }
}

#[test]
fn no_value_is_told_logged_stored_or_shown() {
    run(async {
        let world = World::new().await;
        world.change_token("token-canary-5f0c1d");
        // More than is read of an answer.
        let long: &'static str = WHISPER.repeat(10_000).leak();
        world.sink.script([Reply::Saying(200, long), Reply::Saying(500, long), Reply::Saying(400, WHISPER)]);
        let daemon = world.start("").await;
        let chart = world.helm.chart(&chart()).unwrap();
        world.helm.run(&["install", "keycloak", &chart, "--description", CANARY]).await.unwrap();
        integration::eventually("the first content to be rejected", LIMIT, async || {
            let section = daemon.admin().section("inventory").await.map_err(|error| error.to_string())?;
            if section["rejected"] == 1 { Ok(()) } else { Err(section.to_string()) }
        })
        .await
        .unwrap();
        assert_eq!(
            world.sink.told().len(),
            3,
            "a long answer counts by its status: the registration once, the release twice"
        );
        // While the refusal stands, before another content takes its place.
        integration::eventually("the refusal to be stored", LIMIT, async || {
            let status = world.status().await.to_string();
            if status.contains("HTTP400") { Ok(()) } else { Err(status) }
        })
        .await
        .unwrap();
        let (_, explained) = ask(&daemon, "explain", "default/keycloak").await;
        assert!(explained.contains("waits: HTTP400, until it changes"), "{explained}");
        shows_nothing(&world, &daemon, explained).await;
        world.sink.script([Reply::Saying(200, WHISPER)]);
        world.helm.run(&["upgrade", "keycloak", &chart, "--set", "image=keycloak:24"]).await.unwrap();
        world.told("keycloak", 1).await;
        // A record that no Helm has written, and a Secret with an id that is none.
        let secret = |name: &str, kind: &str, labels: &serde_json::Value, key: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "type": kind, "stringData": {(key): format!("no id {CANARY}")},
                "metadata": {"name": name, "namespace": "default", "labels": labels}})
        };
        let labels = json!({"owner": "helm", "name": "forged", "status": "deployed", "version": "1"});
        world.create(&secret("sh.helm.release.v1.forged.v1", "helm.sh/release.v1", &labels, "release")).await;
        world.create(&secret("uuid", "Opaque", &json!({}), "uuid")).await;
        integration::eventually("the forged release to be undecodable", LIMIT, async || {
            let section = daemon.admin().section("inventory").await.map_err(|error| error.to_string())?;
            if section["undecodable"] == 1 { Ok(()) } else { Err(section.to_string()) }
        })
        .await
        .unwrap();
        let (_, explained) = ask(&daemon, "explain", "default/forged").await;
        assert!(explained.contains("the record is no release of Helm"), "{explained}");
        shows_nothing(&world, &daemon, explained).await;
    });
}
