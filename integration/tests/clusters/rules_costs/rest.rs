//! What is in step costs nothing.

use std::time::Duration;

use integration::audit::{Mark, Record};
use integration::{ControlPlane, Filter, users};
use kube::api::{DeleteParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, interval};

use crate::rules_costs::ALONE;
use crate::rules_costs::rules_world::*;

/// Seconds without a change in which nothing may be asked. Longer than the first of the daemon's timers here, so that
/// the tests are quick; by hand, for the two minutes of the promise: `TOWLINE_IDLE_SECONDS=120`.
fn window() -> Duration {
    let seconds = std::env::var("TOWLINE_IDLE_SECONDS").ok().map(|text| text.parse().expect("whole seconds"));
    Duration::from_secs(seconds.unwrap_or(12))
}

/// Lets the window pass while both API servers answer somebody else, and gives how often they did.
async fn let_pass(section: &Section) -> usize {
    let end = Instant::now() + window();
    let mut ticks = interval(Duration::from_millis(500));
    let mut answered = 0;
    while Instant::now() < end {
        ticks.tick().await;
        section.mark().await;
        answered += 1;
    }
    answered
}

async fn everything(plane: &ControlPlane, since: Mark) -> Vec<Record> {
    let filter = Filter::since(since).user(users::TOWLINE).with_watches();
    plane.audit().unwrap().records(&filter).await.unwrap()
}

/// Databases with all that may have a timer: secrets that the hub does not show, defaults, a status; and a namespace
/// that is ours.
async fn full(name: &str) -> Section {
    let settings = "secret_names = [\"database-credentials\", \"database-watched\"]";
    let section = Section::start_with(name, databases(), settings, |mapping| {
        mapping.secret_names = vec!["database-credentials".to_owned(), WATCHED_SECRET.to_owned()];
    })
    .await;
    section.make_namespaces("a").await;
    section.make_remote_namespace("b").await;
    for suffix in ["a", "b"] {
        for number in 0..5 {
            let content = json!({"spec": {"engine": "postgres-17", "parameters": {"number": number.to_string()}}});
            section.make_remote(suffix, &format!("orders-{number}"), &content).await;
        }
    }
    for secret in ["database-credentials", WATCHED_SECRET] {
        make_secret(&section.remote_secrets("a"), secret, &json!({})).await;
        let database = section.local_has("a", "orders-0", |_| true).await;
        let content =
            json!({"stringData": {"password": secret}, "metadata": {"ownerReferences": [controller(&database)]}});
        put_secret(&section.local_secrets("a"), secret, &content).await;
        secret_that(&section.local_secrets("a"), secret, "its hash noted", |secret| noted_hash(secret).is_some()).await;
    }
    section.patch_local_status("a", "orders-0", &json!({"phase": "Ready"})).await;
    section.in_step().await;
    section.quiet().await;
    section
}

#[test]
fn nothing_is_asked_while_nothing_changes() {
    run(async {
        let _alone = ALONE.write().await;
        let section = full("idle").await;
        let since = section.mark().await;
        let answered = let_pass(&section).await;
        assert!(answered > 1, "the window has a length");
        let world = section.world;
        // A watch that the server ends is begun again; that is not counted, but one that is refused is.
        for (plane, since) in [(&world.hub, since.0), (&world.edge, since.1)] {
            let asked: Vec<Record> = everything(plane, since)
                .await
                .into_iter()
                .filter(|record| record.verb != "watch" || record.status >= 400)
                .collect();
            assert_eq!(asked, [], "{}", plane.name());
        }
    });
}

#[test]
fn a_restart_with_everything_in_step_costs_the_initial_lists_only() {
    run(async {
        let _alone = ALONE.write().await;
        let mut section = full("restart").await;
        let before = versions(&section).await;
        section.towline.kill9().await.unwrap();
        let since = section.mark().await;
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        section
            .report_has("ten pairs in step and nothing else", |report| {
                report["objects"]["in_step"] == json!(11) && report["queue"]["waiting"] == json!(0)
            })
            .await;
        let_pass(&section).await;
        let world = section.world;
        for (plane, since, expected, state) in [
            (
                &world.hub,
                since.0,
                ["databases", "secrets database-watched"].as_slice(),
                ["get namespaces kube-system"].as_slice(),
            ),
            (
                &world.edge,
                since.1,
                ["databases", "namespaces", "secrets database-credentials", "secrets database-watched"].as_slice(),
                ["get configmaps towline-restart", "get namespaces kube-system"].as_slice(),
            ),
        ] {
            let asked = everything(plane, since).await;
            let mut lists: Vec<String> = asked.iter().filter(|record| is_list(record)).map(listed).collect();
            lists.sort();
            let denied = |record: &&Record| record.status == 403;
            let denials: Vec<String> = asked.iter().filter(denied).map(listed).collect();
            let granted: Vec<&str> =
                lists.iter().map(String::as_str).filter(|list| !denials.iter().any(|denied| denied == list)).collect();
            assert_eq!(granted, expected, "{}", plane.name());
            // What is not a list or a watch is discovery, or the question what may be watched at all; the section reads
            // once what it remembers, and each cluster's identity is read once.
            let others = asked.iter().filter(|record| {
                !matches!(record.verb.as_str(), "list" | "watch")
                    && !record.resource.is_empty()
                    && record.resource != "selfsubjectaccessreviews"
            });
            let mut others: Vec<String> = others.map(|record| format!("{} {}", record.verb, listed(record))).collect();
            others.sort();
            assert_eq!(others, state, "{}", plane.name());
        }
        assert_eq!(versions(&section).await, before, "nothing was written");
    });
}

/// A list, or a watch that begins with one.
fn is_list(record: &Record) -> bool {
    record.verb == "list" || record.uri.contains("sendInitialEvents=true")
}

fn listed(record: &Record) -> String {
    format!("{} {}", record.resource, record.name).trim_end().to_owned()
}

async fn versions(section: &Section) -> Vec<Option<String>> {
    let mut versions = Vec::new();
    for suffix in ["a", "b"] {
        for api in [section.remote(suffix), section.local(suffix)] {
            let listed = api.list(&kube::api::ListParams::default()).await.unwrap();
            versions.extend(listed.items.iter().map(ResourceExt::resource_version));
        }
        for api in [section.remote_secrets(suffix), section.local_secrets(suffix)] {
            let listed = api.list(&kube::api::ListParams::default()).await.unwrap();
            versions.extend(listed.items.iter().map(ResourceExt::resource_version));
        }
    }
    versions
}

#[test]
fn a_cluster_scoped_kind_never_asks_for_namespaces() {
    run(async {
        let _alone = ALONE.write().await;
        let since = mark_of(&world().await.edge).await;
        let section = Section::start("scoped", regions(), "").await;
        let everywhere = |client: &Client| -> Api<DynamicObject> { Api::all_with(client.clone(), &section.kind) };
        let (hub, edge) = (everywhere(&section.hub), everywhere(&section.edge));
        let region = section.object("east", &json!({"spec": {"location": "12E", "capacity": 7}}));
        hub.create(&PostParams::default(), &region).await.unwrap();
        section.in_step().await;
        hub.delete("east", &DeleteParams::default()).await.unwrap();
        gone(&hub, "the region on the hub", "east").await;
        gone(&edge, "the region on the edge", "east").await;
        let all = everything(&section.world.edge, since).await;
        assert!(all.iter().any(|record| record.resource == "regions"), "the daemon is heard: {all:#?}");
        // But for the one that says which cluster it is.
        let is_asked_for = |record: &&Record| record.resource == "namespaces" && record.name != "kube-system";
        let namespaces: Vec<_> = all.iter().filter(is_asked_for).collect();
        assert!(namespaces.is_empty(), "{namespaces:#?}");
    });
}
