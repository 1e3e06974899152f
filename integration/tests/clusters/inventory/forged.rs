//! Records that no Helm has written, or that are too large: they are named, and others go on.

use integration::eventually;
use integration::helm::{self, record};
use serde_json::json;

use crate::inventory::world::{LIMIT, World, run, small_chart};

pub(crate) fn packed(document: &[u8]) -> Vec<u8> {
    helm::packed(document).unwrap()
}

#[test]
fn what_can_t_be_decoded_is_named_and_others_go_on() {
    run(async {
        let world = World::new().await;
        let daemon = world.start("").await;
        let large = format!("{{\"manifest\":\"{}\"}}", "a".repeat(65 << 20));
        world.create(&record("bomb", &packed(large.as_bytes()))).await;
        world.create(&record("garbage", b"neither packed nor JSON")).await;
        // Random digits do not pack: a record of 900 KB.
        let mut seed = 1_u64;
        let noise: String = (0..900_000)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(b'!' + u8::try_from((seed >> 33) % 90).unwrap()).to_string().replace(['"', '\\'], "x")
            })
            .collect();
        let whole = json!({"info": {"last_deployed": "2026-11-21T21:58:40Z"}, "unknown": [{"a": noise}],
            "chart": {"metadata": {"name": "large", "appVersion": "\u{7}1"}}});
        let whole = packed(whole.to_string().as_bytes());
        // The API server takes 1 MiB of data, of which Helm's own encoding is a third.
        let whole = if whole.len() > 700_000 { whole } else { panic!("it packs to {} bytes", whole.len()) };
        world.create(&record("large", &whole)).await;
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        world.told("web", 1).await;
        let told = world.told("large", 1).await;
        assert_eq!(
            (&told[0]["app_info"]["helm_info"]["chart"], &told[0]["app_info"]["helm_info"]["appVersion"]),
            (&json!("large"), &json!("1"))
        );
        let problems = eventually("both to be named", LIMIT, async || {
            let section = daemon.admin().section("inventory").await.map_err(|error| error.to_string())?;
            if section["undecodable"] == 2 { Ok(section["problems"].clone()) } else { Err(section.to_string()) }
        })
        .await
        .unwrap();
        let expected = json!([
            {"release": "default/bomb", "reason": "the release unpacks to more than 64 MiB"},
            {"release": "default/garbage", "reason": "the record is no release of Helm"},
        ]);
        assert_eq!(problems, expected);
        let metrics = daemon.admin().metrics().await.unwrap();
        assert!(metrics.lines().any(|found| found == "towline_inventory_pending 0"), "{metrics}");
        let posts = "towline_inventory_posts_total{kind=\"app\",outcome=\"ok\"} 2";
        assert!(metrics.lines().any(|found| found == posts), "{metrics}");
    });
}

/// Somebody who may write Secrets has forged 120 releases. Uncut, their strings alone would exceed what the API server takes.
#[test]
fn forged_records_with_long_strings_do_not_stop_the_delivery() {
    const FORGED: usize = 120;
    run(async {
        let world = World::new().await;
        let long = "\u{1f600}".repeat(2000);
        let document =
            json!({"info": {"last_deployed": long}, "chart": {"metadata": {"name": long, "appVersion": long}}});
        let packed = packed(document.to_string().as_bytes());
        for number in 0..FORGED {
            world.create(&record(&format!("forged-{number:03}"), &packed)).await;
        }
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        let mut daemon = world.start("").await;
        world.told("web", 1).await;
        world.wait_until_acknowledged("web").await;
        world.sink.wait_for("of all", FORGED + 2, LIMIT, |_| true).await.unwrap();
        let last = world.told("forged-119", 1).await;
        assert_eq!(last[0]["app_info"]["helm_info"]["chart"].as_str().unwrap().chars().count(), 1024);
        world.wait_until_acknowledged("forged-119").await;
        let size = world.status().await.to_string().len();
        assert!(size < 150_000, "{size} bytes");
        // A restart sends nothing again, though the status does not hold the whole strings.
        daemon.start_again().await.unwrap();
        daemon.wait_ready(LIMIT).await.unwrap();
        world.helm.run(&["upgrade", "web", &chart, "--set", "value=2"]).await.unwrap();
        world.told("web", 2).await;
        assert_eq!(world.sink.told().len(), FORGED + 3);
    });
}
