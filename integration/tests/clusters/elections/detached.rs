//! An order that a section received in one replica holds in the next one.

use std::time::Duration;

use integration::eventually;
use kube::ResourceExt;
use serde_json::json;

use crate::elections::monitor::Monitor;
use crate::elections::sharing::replicas;
use crate::elections::world::{Company, LIMIT, World, run};

#[test]
fn a_section_that_was_detached_in_one_replica_is_detached_in_the_next() {
    run(Company::One, async {
        let world = World::shared("detached", Duration::from_secs(5), Duration::from_millis(1500)).await;
        let monitor = Monitor::start(&world).await;
        let replicas = replicas(&world, &monitor, 2).await;
        let section = world.sections()[0].clone();
        let finalizers = async || world.on_hub(0).get("orders").await.unwrap().finalizers().to_vec();
        eventually("the section to put its finalizer on the hub's object", LIMIT, async || match finalizers().await {
            held if held.is_empty() => Err("no finalizer".to_owned()),
            _ => Ok(()),
        })
        .await
        .unwrap();
        let holder = monitor.holders().await[&section].clone();
        let (first, second): (Vec<_>, Vec<_>) = replicas.iter().partition(|replica| replica.identity == holder);
        let answer = first[0].towline.admin().detach(&section, false).await.unwrap();
        assert_eq!(answer["remembered"], json!(true), "{answer}");
        eventually("the section to remove its finalizer", LIMIT, async || match finalizers().await {
            held if held.is_empty() => Ok(()),
            held => Err(format!("{held:?}")),
        })
        .await
        .unwrap();
        // The replica is killed, so that the next one knows only what is stored.
        first[0].kill().await;
        eventually("the section to run in the other replica, and to be detached there", LIMIT, async || {
            let report = second[0].towline.admin().section(&section).await.map_err(|error| error.to_string())?;
            let is_so = report["election"]["held"] == json!(true)
                && report["mode"] == json!("detached")
                && report["stored_state"]["state"] == json!("stored")
                && report["queue"]["waiting"] == json!(0);
            if is_so { Ok(()) } else { Err(report.to_string()) }
        })
        .await
        .unwrap();
        assert!(finalizers().await.is_empty(), "the finalizer is back");
    });
}
