//! Records that no Helm has written.

use integration::helm::{packed, record};
use serde_json::json;

use crate::inventory::world::{LIMIT, World, run, small_chart};

/// Somebody who may write Secrets has forged 80 releases. Uncut, their strings alone would exceed what the API server takes.
#[test]
fn forged_records_with_long_strings_do_not_stop_the_delivery() {
    const FORGED: usize = 80;
    run(async {
        let world = World::new().await;
        let long = "\u{1f600}".repeat(2000);
        let document =
            json!({"info": {"last_deployed": long}, "chart": {"metadata": {"name": long, "appVersion": long}}});
        let packed = packed(document.to_string().as_bytes()).unwrap();
        for number in 0..FORGED {
            world.create(&record(&format!("forged-{number:03}"), &packed)).await;
        }
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        let mut daemon = world.start("").await;
        world.told("web", 1).await;
        world.wait_until_acknowledged("web").await;
        world.sink.wait_for("of all", FORGED + 2, LIMIT, |_| true).await.unwrap();
        let last = world.told("forged-079", 1).await;
        assert_eq!(last[0]["app_info"]["helm_info"]["chart"].as_str().unwrap().chars().count(), 1024);
        world.wait_until_acknowledged("forged-079").await;
        let size = world.status().await.to_string().len();
        assert!(size < 100_000, "{size} bytes");
        // A restart sends nothing again, though the status does not hold the whole strings.
        daemon.start_again().await.unwrap();
        daemon.wait_ready(LIMIT).await.unwrap();
        world.helm.run(&["upgrade", "web", &chart, "--set", "value=2"]).await.unwrap();
        world.told("web", 2).await;
        assert_eq!(world.sink.told().len(), FORGED + 3);
    });
}
