//! Clusters of one namespace that answer slowly, and those of others beside them.

use std::sync::Arc;

use integration::eventually;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::syncsets::guard::{Objects, api};
use crate::syncsets::script::{Says, Script};
use crate::syncsets::world::{LIMIT, Stage, run};

/// Clusters that are worked on at once, of one namespace.
const MOST: usize = 4;
const SLOW: usize = 12;
const SECTION: &str =
    "[syncsets]\nallow = [\"local-networks\", \"plain-http\"]\nmax_in_flight = 4\nrequest_timeout = \"5m\"";

/// More clusters than there are slots have work, and none of them answers what is sent to it. As many wait for an answer as their namespace
/// may have at once, and with them those that have given their slots back since their answers take long.
#[test]
fn a_change_of_another_namespace_is_carried_out_before_any_of_twelve_slow_clusters_has_answered() {
    run(async {
        let stage = Stage::with("fairness", SECTION, 1).await;
        let (objects, gate) = (Objects::default(), Arc::new(Semaphore::new(0)));
        let (shared, closed) = (Arc::clone(&objects), Arc::clone(&gate));
        let server = Script::start_with(move |line, body| match api(&shared, line, body) {
            Says::Body(status, reply) if line.starts_with("PATCH /slow-") => {
                Says::Later(Arc::clone(&closed), status, reply)
            }
            says => says,
        })
        .await;
        let has = async |cluster: &str, name: &str| {
            eventually(format!("{name} on {cluster}"), LIMIT, async || {
                let names: Vec<String> = objects.lock().keys().cloned().collect();
                let is_there = |path: &String| path.starts_with(&format!("/{cluster}/")) && path.ends_with(name);
                if names.iter().any(is_there) { Ok(()) } else { Err(format!("{names:?}")) }
            })
            .await
            .unwrap_or_else(|error| panic!("{error}\n{}", stage.log()));
        };
        let slow: Vec<String> = (0..SLOW).map(|number| format!("slow-{number}")).collect();
        for name in &slow {
            let kubeconfig = server.kubeconfig_below(&format!("/{name}")).to_string();
            stage.create("clusters", &json!({"namespace": "slow", "name": name, "kubeconfig": kubeconfig})).await;
        }
        stage.registers("west-1", &server.kubeconfig_below("/west-1")).await;
        stage.syncset("base", "Sync", &[stage.config_map("first", &json!({}))]).await;
        has("west-1", "first").await;
        stage.at_rest().await;

        let refs: Vec<Value> = slow.iter().map(|name| json!({"name": name})).collect();
        let spec = json!({"clusterDeploymentRefs": refs, "resources": [stage.config_map("first", &json!({}))]});
        stage.create("syncsets", &json!({"namespace": "slow", "name": "base", "spec": spec})).await;
        let begun = || server.requests().iter().filter(|line| line.starts_with("PATCH /slow-")).count();
        eventually("as many slow passes as may be under way", LIMIT, async || {
            let begun = begun();
            if begun == 2 * MOST { Ok(()) } else { Err(begun.to_string()) }
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", stage.log()));

        let mut wanted = vec![stage.config_map("first", &json!({}))];
        for round in 0..5 {
            let name = format!("round-{round}");
            wanted.push(stage.config_map(&name, &json!({})));
            stage.wants("base", &wanted).await;
            has("west-1", &name).await;
            assert_eq!(begun(), 2 * MOST, "no slow pass has ended or begun meanwhile");
        }

        gate.add_permits(Semaphore::MAX_PERMITS / 2);
        for name in &slow {
            has(name, "first").await;
        }
        stage.at_rest().await;
    });
}
