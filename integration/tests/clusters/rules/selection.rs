//! Which objects a section cares for, and whether it does anything.

use integration::Towline;
use kube::api::PostParams;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::rules_world::*;

fn labelled(place: &str) -> serde_json::Value {
    json!({"metadata": {"labels": {"place": place}}, "spec": {"engine": "postgres-17"}})
}

#[test]
fn an_object_that_leaves_the_selector_is_let_go_and_its_local_one_kept() {
    run(async {
        let mut section =
            Section::start_with("selector", databases(), "selector = \"place in (west, east)\"", |mapping| {
                mapping.selector = "place in (west, east)".to_owned();
            })
            .await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &labelled("west")).await;
        section.make_remote("a", "bills", &labelled("east")).await;
        section.make_remote("a", "notes", &labelled("north")).await;
        section.in_step().await;
        assert!(section.remote_has("a", "notes", |_| true).await.finalizers().is_empty());
        section.patch_remote("a", "orders", &json!({"metadata": {"labels": {"place": "north"}}})).await;
        let remote = section.remote_has("a", "orders", |remote| remote.finalizers().is_empty()).await;
        let unmarked = |local: &DynamicObject| !local.annotations().contains_key(&mark("sync-remote-uid"));
        let local = section.local_has("a", "orders", unmarked).await;
        assert!(local.metadata.deletion_timestamp.is_none());
        // Nothing of either side concerns the other any more.
        let since = section.mark().await;
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "9Gi"}})).await;
        section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
        section.quiet_with(&json!({"metadata": {"labels": {"place": "west"}}})).await;
        section.delete_remote("a", "orders").await;
        section.remote_gone("a", "orders").await;
        section.quiet_with(&json!({"metadata": {"labels": {"place": "west"}}})).await;
        assert_eq!(section.counted("a", since).await, (counts([]), counts([])), "{}", remote.name_any());
        assert_eq!(section.local("a").get("orders").await.unwrap().uid(), local.uid());
        // Nor after a restart, which sees it without a remote one.
        section.towline.kill9().await.unwrap();
        section.towline.start_again().await.unwrap();
        section.patch_local_status("a", "orders", &json!({"phase": "Failed"})).await;
        section.quiet_with(&json!({"metadata": {"labels": {"place": "west"}}})).await;
        assert_eq!(section.local("a").get("orders").await.unwrap().uid(), local.uid());
        // One that comes into it is taken.
        section.patch_remote("a", "notes", &json!({"metadata": {"labels": {"place": "east"}}})).await;
        let first = section.local_has("a", "notes", |_| true).await;
        // And one that comes back is taken up again.
        section.patch_remote("a", "notes", &json!({"metadata": {"labels": {"place": "north"}}})).await;
        section.remote_has("a", "notes", |remote| remote.finalizers().is_empty()).await;
        let change = json!({"metadata": {"labels": {"place": "west"}}, "spec": {"storage": "8Gi"}});
        section.patch_remote("a", "notes", &change).await;
        let again = section.local_has("a", "notes", |local| local.data["spec"]["storage"] == "8Gi").await;
        assert_eq!(again.uid(), first.uid());
    });
}

#[test]
fn what_left_the_selector_while_nobody_looked_loses_its_finalizer() {
    run(async {
        let mut section = Section::start_with("unseen", databases(), "selector = \"place=west\"", |mapping| {
            mapping.selector = "place=west".to_owned();
        })
        .await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &labelled("west")).await;
        section.in_step().await;
        section.towline.kill9().await.unwrap();
        // One was taken, but its local object was not made any more; another one is not ours to touch.
        let mut taken = labelled("north");
        taken["metadata"]["finalizers"] = json!(["example.org/theirs", FINALIZER]);
        section.make_remote("a", "taken", &taken).await;
        let mut theirs = labelled("north");
        theirs["metadata"]["finalizers"] = json!(["example.org/theirs"]);
        section.make_remote("a", "theirs", &theirs).await;
        let since = section.mark().await;
        section.towline.start_again().await.unwrap();
        let remote = section.remote_has("a", "taken", |remote| remote.finalizers().len() == 1).await;
        assert_eq!(remote.finalizers(), ["example.org/theirs"]);
        section.quiet_with(&json!({"metadata": {"labels": {"place": "west"}}})).await;
        let expected = (counts([("get databases", 1), ("patch databases", 1)]), counts([]));
        assert_eq!(section.counted("a", since).await, expected);
        for name in ["taken", "theirs"] {
            section.patch_remote("a", name, &json!({"metadata": {"finalizers": null}})).await;
        }
    });
}

#[test]
fn what_was_let_go_and_what_has_not_the_prefix_is_kept_though_the_unclaimed_are_deleted() {
    run(async {
        for metadata in ["merge", "mirror"] {
            let name = format!("let-go-{metadata}");
            let keys = format!("selector = \"place=west\"\nunclaimed = \"delete\"\nmetadata = \"{metadata}\"");
            let mut section = Section::start_with(&name, databases(), &keys, |mapping| {
                mapping.selector = "place=west".to_owned();
            })
            .await;
            section.make_namespaces("a").await;
            let outside = format!("outside-of-{name}");
            let mut others = Vec::new();
            for client in [&section.hub, &section.edge] {
                make_namespace(client, &outside, &json!({})).await;
                let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &outside, &section.kind);
                let made =
                    api.create(&PostParams::default(), &section.object("other", &labelled("west"))).await.unwrap();
                others.push((api, made));
            }
            section.make_remote("a", "orders", &labelled("west")).await;
            section.local_has("a", "orders", |_| true).await;
            section.patch_remote("a", "orders", &json!({"metadata": {"labels": {"place": "north"}}})).await;
            section.remote_has("a", "orders", |remote| remote.finalizers().is_empty()).await;
            let is_let_go = |local: &DynamicObject| {
                let annotations = local.annotations();
                let released = annotations.contains_key(&mark("sync-released"));
                released == (metadata == "mirror") && !annotations.contains_key(&mark("sync-remote-uid"))
            };
            let kept = section.local_has("a", "orders", is_let_go).await;
            section.delete_remote("a", "orders").await;
            section.remote_gone("a", "orders").await;
            section.towline.kill9().await.unwrap();
            section.towline.start_again().await.unwrap();
            // What never was ours goes, so the other one has been looked at too.
            section.make_local("a", "stray", &labelled("west")).await;
            section.local_gone("a", "stray").await;
            section.patch_local("a", "orders", &json!({"spec": {"storage": "7Gi"}})).await;
            section.make_local("a", "stray", &labelled("west")).await;
            section.local_gone("a", "stray").await;
            assert_eq!(section.local("a").get("orders").await.unwrap().uid(), kept.uid(), "{metadata}");
            for (api, made) in others {
                assert_eq!(api.get("other").await.unwrap().resource_version(), made.resource_version(), "{metadata}");
            }
        }
    });
}

#[test]
fn a_dry_run_reports_what_it_would_do_and_writes_nothing() {
    run(async {
        let section = Section::start("dry-run", databases(), "dry_run = true").await;
        let log = section.towline.log().unwrap();
        let warned = log.lines().find(|entry| entry.contains("dry run: nothing is written"));
        assert!(warned.is_some_and(|entry| entry.contains("WARN") && entry.contains("section=dry-run")), "{log}");
        let output = Towline::command(["check".into(), section.towline.config_path().into_os_string()]).await.unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{told}");
        assert!(told.contains("sync dry-run: dry_run: nothing is written"), "{told}");
        section.make_namespaces("a").await;
        let since = section.mark().await;
        section.make_remote("a", "orders", &labelled("west")).await;
        let content = json!({"metadata": {"finalizers": [FINALIZER]}, "spec": {"engine": "postgres-17"}});
        section.make_remote("a", "bills", &content).await;
        section.make_remote_namespace("b").await;
        section.make_remote("b", "bills", &content).await;
        let report = section
            .report_has("its plans", |report| {
                ["add_finalizer", "create_local", "create_namespace"]
                    .iter()
                    .all(|step| report["planned"][step].as_u64() >= Some(1))
            })
            .await;
        assert_eq!((&report["mode"], &report["state"]), (&json!("dry_run"), &json!("dry_run")), "{report}");
        section.delete_remote("a", "bills").await;
        section
            .report_has("the finalizer's end", |report| report["planned"]["remove_finalizer"].as_u64() >= Some(1))
            .await;
        for suffix in ["a", "b"] {
            assert_eq!(section.counted(suffix, since).await, (counts([]), counts([])), "{suffix}");
        }
        let held = section.remote_has("a", "bills", |_| true).await;
        assert_eq!(held.finalizers(), [FINALIZER]);
    });
}

#[test]
fn one_at_a_time_is_enough_for_all() {
    run(async {
        let config = clusters(world().await).replace("kubeconfig = ", "max_in_flight = 1\nkubeconfig = ")
            + &sync("one-at-a-time", &databases(), "");
        let section = Section::start_config("one-at-a-time", databases(), &config, |_| {}).await;
        section.make_remote_namespace("a").await;
        for number in 0..6 {
            section.make_remote("a", &format!("orders-{number}"), &labelled("west")).await;
        }
        section.in_step().await;
    });
}
