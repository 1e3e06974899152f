//! What resource sync may cost, counted at the API servers: the table of docs/costs.md, row by row. What secrets cost is in `secrets`,
//! a status without a subresource and a kind without namespaces in `kinds`.
//!
//! Counted are all requests of the daemon in a test's namespaces, reads included and watches not; where everything counts, the daemon is
//! a user of its own.

use std::time::Duration;

use integration::audit::{Mark, Record};
use integration::{ControlPlane, Filter, Link, eventually, users};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, interval};

use crate::rules_world::*;

/// The number of writes by what was written.
type Writes<'w> = &'w [(&'w str, usize)];

/// Waits until nothing more is done for this place, and compares what was done in a namespace.
async fn cost(place: &Place, suffix: &str, since: (Mark, Mark), hub: Writes<'_>, edge: Writes<'_>, what: &str) {
    place.quiet().await;
    let expected =
        |writes: Writes<'_>| -> Counts { writes.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect() };
    assert_eq!(place.counted(suffix, since).await, (expected(hub), expected(edge)), "{what}");
}

#[test]
fn each_change_costs_the_writes_that_the_table_of_costs_names() {
    run(async {
        let place = Place::shared("costs", databases()).await;
        place.make_namespaces("there").await;
        place.make_remote_namespace("missing").await;
        place.quiet().await;
        let since = place.mark().await;
        let content = json!({"metadata": {"labels": {"tier": "a"}}, "spec": {"engine": "postgres-17"}});
        for suffix in ["there", "missing"] {
            place.make_remote(suffix, "orders", &content).await;
        }
        place.in_step().await;
        let (hub, edge) = (&[("patch databases", 2)], ("create databases", 1));
        cost(&place, "there", since, hub, &[edge], "a new object").await;
        cost(&place, "missing", since, hub, &[edge, ("create namespaces", 1)], "one with its namespace").await;

        let since = place.mark().await;
        place.patch_remote("there", "orders", &json!({"spec": {"storage": "20Gi"}})).await;
        place.in_step().await;
        cost(&place, "there", since, &[("patch databases", 1)], &[("patch databases", 1)], "a spec").await;

        let since = place.mark().await;
        place.patch_local_status("there", "orders", &json!({"phase": "Ready", "endpoint": "orders:5432"})).await;
        place.in_step().await;
        cost(&place, "there", since, &[("patch databases/status", 1)], &[], "a status").await;

        for change in [
            json!({"labels": {"team": "a"}}),
            json!({"annotations": {"example.org/note": "b"}}),
            json!({"labels": {"team": null, "tier": null}, "annotations": {"example.org/note": null}}),
        ] {
            let since = place.mark().await;
            place.patch_remote("there", "orders", &json!({"metadata": change})).await;
            place.in_step().await;
            cost(&place, "there", since, &[], &[("patch databases", 1)], &change.to_string()).await;
        }
        let local = place.local_has("there", "orders", |_| true).await;
        let left = (local.metadata.labels.is_none(), local.metadata.annotations.unwrap_or_default());
        assert!(left.0 && left.1.len() == 3, "what the remote drops goes, and the marks are left: {left:?}");

        for (suffix, gone) in [("there", "delete databases"), ("missing", "delete namespaces")] {
            let since = place.mark().await;
            place.delete_remote(suffix, "orders").await;
            place.remote_gone(suffix, "orders").await;
            cost(&place, suffix, since, &[("patch databases", 1)], &[(gone, 1)], "a deletion").await;
        }
    });
}

#[test]
fn a_new_local_object_with_a_status_of_its_own_costs_one_more_write() {
    run(async {
        let place = Place::shared("costs-status", widgets()).await;
        place.make_namespaces("a").await;
        let since = place.mark().await;
        // The remote has a status that the new local object does not have. Paused meanwhile, so that nobody conflicts.
        let paused = |value| json!({"metadata": {"annotations": {mark("paused"): value}}, "spec": {"size": 1}});
        place.make_remote("a", "gear", &paused(json!("true"))).await;
        let status = Patch::Merge(json!({"status": {"phase": "Old"}}));
        place.remote("a").patch_status("gear", &PatchParams::default(), &status).await.unwrap();
        place.patch_remote("a", "gear", &paused(json!(null))).await;
        place.local_has("a", "gear", |_| true).await;
        let is_done = |remote: &DynamicObject| {
            remote.data.get("status").is_none_or(|status| status.get("phase").is_none())
                && remote.annotations().contains_key(&mark("sync-local-generation"))
        };
        place.remote_has("a", "gear", is_done).await;
        let hub = counts([("patch widgets", 2), ("patch widgets/status", 1)]);
        assert_eq!(place.counted("a", since).await, (hub, counts([("create widgets", 1)])));
    });
}

#[test]
fn an_object_that_is_missing_without_having_been_seen_terminating_costs_one_read_and_one_write() {
    run(async {
        let mut section = Section::start("missing", databases(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.quiet().await;
        section.towline.kill9().await.unwrap();
        section.patch_remote("a", "orders", &json!({"metadata": {"finalizers": null}})).await;
        section.remote("a").delete("orders", &DeleteParams::default()).await.unwrap();
        section.remote_gone("a", "orders").await;
        let since = section.mark().await;
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        section.local_gone("a", "orders").await;
        cost(&section, "a", since, &[("get databases", 1)], &[("delete databases", 1)], "a missing object").await;
    });
}

#[test]
fn many_deletions_at_once_cost_one_write_each_and_one_more_at_most() {
    const MANY: usize = 20;
    run(async {
        let place = Place::shared("many", databases()).await;
        place.make_remote_namespace("a").await;
        for number in 0..MANY {
            place.make_remote("a", &format!("o{number}"), &json!({"spec": {"engine": "postgres-17"}})).await;
        }
        place.in_step().await;
        place.quiet().await;
        let since = place.mark().await;
        place.remote("a").delete_collection(&DeleteParams::background(), &ListParams::default()).await.unwrap();
        for number in 0..MANY {
            place.remote_gone("a", &format!("o{number}")).await;
        }
        place.quiet().await;
        let (hub, edge) = place.counted("a", since).await;
        assert_eq!(hub, counts([("patch databases", MANY)]), "each finalizer once");
        assert_eq!(edge.get("delete namespaces"), Some(&1), "{edge:?}");
        let locals = edge.get("delete databases").copied().unwrap_or_default();
        assert!(locals <= MANY && edge.len() <= 2, "{edge:?}");
    });
}

/// Waits until the daemon's write was carried out by a cluster to which it is connected by a link; its answer is lost.
async fn carried_out(place: &Place, cluster: &ControlPlane, since: Mark, verb: &str, subresource: &str) {
    let write = Filter::since(since).user(users::TOWLINE).verb(verb).resource("databases").name("orders");
    let write = write.subresource(subresource).namespace(&place.namespace("a"));
    eventually(format!("the {verb} to be carried out on {}", cluster.name()), LIMIT, async || {
        let all = cluster.audit().unwrap().records(&write).await.map_err(|error| error.to_string())?;
        if all.iter().any(|record| record.status < 300) { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await
    .unwrap();
}

#[test]
fn a_write_whose_answer_is_lost_costs_one_read_and_is_not_made_twice() {
    run(async {
        let world = world().await;
        let (to_hub, to_edge) =
            (Link::to(world.hub.address()).await.unwrap(), Link::to(world.edge.address()).await.unwrap());
        let config = format!(
            "[clusters.hub]\nkubeconfig = {:?}\n[clusters.edge]\nkubeconfig = {:?}\n{}",
            world.hub.kubeconfig_by(users::TOWLINE, to_hub.address()).unwrap(),
            world.edge.kubeconfig_by(users::TOWLINE, to_edge.address()).unwrap(),
            sync("lost", &databases(), "")
        );
        let section = Section::start_config("lost", databases(), &config, |_| {}).await;
        section.make_namespaces("a").await;
        section.quiet().await;

        let since = section.mark().await;
        to_edge.mute();
        let content =
            json!({"metadata": {"labels": {"team": "a"}}, "spec": {"engine": "postgres-17", "storage": "10Gi"}});
        section.make_remote("a", "orders", &content).await;
        carried_out(&section, &world.edge, since.1, "create", "").await;
        to_edge.hang_up();
        section.in_step().await;
        let edge = [("create databases", 1), ("get databases", 1)];
        cost(&section, "a", since, &[("patch databases", 2)], &edge, "a creation").await;

        let since = section.mark().await;
        to_edge.mute();
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "20Gi"}})).await;
        carried_out(&section, &world.edge, since.1, "patch", "").await;
        to_edge.hang_up();
        section.in_step().await;
        let edge = [("patch databases", 1), ("get databases", 1)];
        cost(&section, "a", since, &[("patch databases", 1)], &edge, "a change").await;

        let since = section.mark().await;
        to_hub.mute();
        section.patch_local_status("a", "orders", &json!({"phase": "Ready", "endpoint": "orders:5432"})).await;
        carried_out(&section, &world.hub, since.0, "patch", "status").await;
        to_hub.hang_up();
        section.in_step().await;
        let hub = [("patch databases/status", 1), ("get databases", 1)];
        cost(&section, "a", since, &hub, &[], "a status").await;

        let since = section.mark().await;
        to_edge.mute();
        section.delete_remote("a", "orders").await;
        carried_out(&section, &world.edge, since.1, "delete", "").await;
        to_edge.hang_up();
        section.remote_gone("a", "orders").await;
        let edge = [("delete databases", 1), ("get databases", 1)];
        cost(&section, "a", since, &[("patch databases", 1)], &edge, "a deletion").await;
    });
}

/// Seconds without a change in which nothing may be asked. Longer than the first of the daemon's timers here, so that
/// the tests are quick; by hand, for the two minutes of the promise: `TOWLINE_IDLE_SECONDS=120`.
fn window() -> Duration {
    let seconds = std::env::var("TOWLINE_IDLE_SECONDS").ok().map(|text| text.parse().expect("whole seconds"));
    Duration::from_secs(seconds.unwrap_or(12))
}

/// Lets the window pass while both API servers answer somebody else, and gives how often they did.
async fn let_pass(section: &Section) -> usize {
    let end = Instant::now() + window();
    let mut ticks = interval(Duration::from_secs(1));
    let mut answered = 0;
    while Instant::now() < end {
        ticks.tick().await;
        section.mark().await;
        answered += 1;
    }
    answered
}

/// All that a user has asked for, with watches.
async fn everything(plane: &ControlPlane, user: &str, since: Mark) -> Vec<Record> {
    plane.audit().unwrap().records(&Filter::since(since).user(user).with_watches()).await.unwrap()
}

/// Gives this user the roles that the daemon's user has for databases, and waits until they count.
async fn grant(world: &World, user: &str) {
    let group = "rbac.authorization.k8s.io";
    let binding = |kind: &str, role: &str| {
        json!({
            "metadata": {"name": format!("{role}:{user}")},
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        })
    };
    let (hub, edge) = (admin(&world.hub).await, admin(&world.edge).await);
    for (client, role) in [
        (&hub, "towline-resource-sync-remote:databases.demo.towline.dev"),
        (&hub, "watched-secret"),
        (&edge, "towline-resource-sync-local:databases.demo.towline.dev"),
    ] {
        let binding: ClusterRoleBinding = serde_json::from_value(binding("ClusterRole", role)).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &binding).await.unwrap();
    }
    let state: RoleBinding = serde_json::from_value(binding("Role", "towline-state")).unwrap();
    Api::namespaced(edge, "default").create(&PostParams::default(), &state).await.unwrap();
    let (hub, edge) = (world.hub.client(user).await.unwrap(), world.edge.client(user).await.unwrap());
    eventually(format!("the roles of {user} to count"), LIMIT, async || {
        let told = |error: kube::Error| error.to_string();
        for client in [&hub, &edge] {
            Api::<DynamicObject>::all_with(client.clone(), &databases())
                .list(&ListParams::default())
                .await
                .map_err(told)?;
        }
        Api::<Secret>::namespaced(hub.clone(), "default").get_opt(WATCHED_SECRET).await.map_err(told)?;
        Api::<ConfigMap>::namespaced(edge.clone(), "default").get_opt("towline-idle").await.map_err(told)?;
        Ok(())
    })
    .await
    .unwrap();
}

/// The section `idle` of databases with all that may have a timer: secrets that the hub does not show, defaults, a status; and a
/// namespace that is ours.
async fn full(user: &str) -> Section {
    let world = world().await;
    grant(world, user).await;
    let settings = "secret_names = [\"database-credentials\", \"database-watched\"]";
    let config = format!(
        "[clusters.hub]\nkubeconfig = \"{}\"\n[clusters.edge]\nkubeconfig = \"{}\"\n{}",
        world.hub.kubeconfig(user).unwrap().display(),
        world.edge.kubeconfig(user).unwrap().display(),
        sync("idle", &databases(), settings)
    );
    let section = Section::start_config("idle", databases(), &config, |mapping| {
        mapping.secret_names = vec!["database-credentials".to_owned(), WATCHED_SECRET.to_owned()];
    })
    .await;
    section.make_namespaces("a").await;
    section.make_remote_namespace("b").await;
    for suffix in ["a", "b"] {
        for number in 0..3 {
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
fn nothing_is_asked_while_nothing_changes_and_a_restart_costs_the_initial_lists_only() {
    run(async {
        let user = users::REFERENCE;
        let mut section = full(user).await;
        let world = section.world;
        let since = section.mark().await;
        let answered = let_pass(&section).await;
        assert!(answered > 1, "the window has a length");
        // A watch that the server ends is begun again; that is not counted, but one that is refused is.
        for (plane, since) in [(&world.hub, since.0), (&world.edge, since.1)] {
            let mut asked = everything(plane, user, since).await;
            asked.retain(|record| record.verb != "watch" || record.status >= 400);
            assert_eq!(asked, [], "{}", plane.name());
        }

        let before = versions(&section).await;
        section.towline.kill9().await.unwrap();
        let since = section.mark().await;
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        section
            .report_has("all pairs in step and nothing else", |report| {
                report["objects"]["in_step"] == json!(7) && report["queue"]["waiting"] == json!(0)
            })
            .await;
        let_pass(&section).await;
        let of_hub = everything(&world.hub, user, since.0).await;
        only_lists(&of_hub, &["databases", "secrets database-watched"], &["get namespaces kube-system"]);
        let of_edge = everything(&world.edge, user, since.1).await;
        let lists = ["databases", "namespaces", "secrets database-credentials", "secrets database-watched"];
        only_lists(&of_edge, &lists, &["get configmaps towline-idle", "get namespaces kube-system"]);
        assert_eq!(versions(&section).await, before, "nothing was written");
    });
}

/// These lists were granted, and nothing else was asked but what is expected.
fn only_lists(asked: &[Record], expected: &[&str], state: &[&str]) {
    let mut lists: Vec<String> = asked.iter().filter(|record| is_list(record)).map(listed).collect();
    lists.sort();
    let denials: Vec<String> = asked.iter().filter(|record| record.status == 403).map(listed).collect();
    let granted: Vec<&str> =
        lists.iter().map(String::as_str).filter(|list| !denials.iter().any(|denied| denied == list)).collect();
    assert_eq!(granted, expected);
    // What is not a list or a watch is discovery, or the question what may be watched at all; the section reads
    // once what it remembers, and each cluster's identity is read once.
    let others = asked.iter().filter(|record| {
        !matches!(record.verb.as_str(), "list" | "watch")
            && !record.resource.is_empty()
            && record.resource != "selfsubjectaccessreviews"
    });
    let mut others: Vec<String> = others.map(|record| format!("{} {}", record.verb, listed(record))).collect();
    others.sort();
    assert_eq!(others, state);
}

/// A list, or a watch that begins with one.
fn is_list(record: &Record) -> bool {
    record.verb == "list" || record.uri.contains("sendInitialEvents=true")
}

fn listed(record: &Record) -> String {
    format!("{} {}", record.resource, record.name).trim_end().to_owned()
}

async fn versions(place: &Place) -> Vec<Option<String>> {
    let mut versions = Vec::new();
    for suffix in ["a", "b"] {
        for api in [place.remote(suffix), place.local(suffix)] {
            let listed = api.list(&ListParams::default()).await.unwrap();
            versions.extend(listed.items.iter().map(ResourceExt::resource_version));
        }
        for api in [place.remote_secrets(suffix), place.local_secrets(suffix)] {
            let listed = api.list(&ListParams::default()).await.unwrap();
            versions.extend(listed.items.iter().map(ResourceExt::resource_version));
        }
    }
    versions
}
