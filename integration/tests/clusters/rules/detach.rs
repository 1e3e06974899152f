//! The commands that change a running daemon: `detach` and `approve`.

use std::process::Output;

use integration::Towline;
use integration::load::{Write, burst};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::asking::Asking;
use crate::rules_world::*;

async fn command(section: &Section, args: &[&str]) -> Output {
    let url = section.towline.admin_url();
    let output = Towline::command(args.iter().copied().chain(["--admin", &url])).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    eprintln!("{args:?}: {} {}{}", output.status, text(&output.stdout), text(&output.stderr));
    output
}

async fn asked(section: &Section, args: &[&str]) -> Asking {
    Asking::begin(&[args, &["--admin", &section.towline.admin_url()]].concat()).await
}

async fn three_pairs(name: &str) -> Section {
    let section = Section::start(name, databases(), "").await;
    section.make_namespaces("a").await;
    section.make_remote_namespace("b").await;
    for (suffix, name) in [("a", "orders"), ("b", "orders"), ("b", "bills")] {
        section.make_remote(suffix, name, &json!({"spec": {"engine": "postgres-17"}})).await;
    }
    section.in_step().await;
    section
}

#[test]
fn detaching_releases_the_remote_and_leaves_the_local_side_living_without_marks() {
    run(async {
        let section = three_pairs("detached").await;
        let before = section.local_has("b", "bills", |_| true).await;
        let unasked = command(&section, &["detach", "detached"]).await;
        let told = String::from_utf8_lossy(&unasked.stderr);
        assert_eq!((unasked.status.code(), unasked.stdout.len()), (Some(2), 0), "{told}");
        assert!(told.contains("detached (databases, hub→edge) would end for good, with 3 objects"), "{told}");
        assert!(told.contains("nothing was done") && told.contains("--yes"), "{told}");
        for refusal in ["n\n", "\n", "\u{4}"] {
            let (code, told) = asked(&section, &["detach", "detached"]).await.answer(refusal).await;
            assert_eq!(code, Some(1), "{told}");
            assert!(told.contains("nothing was done"), "{told}");
        }
        let (code, told) = asked(&section, &["detach", "detached"]).await.answer("\u{3}").await;
        assert_eq!(code, Some(130), "{told}");
        section.report_has("that it still works", |report| report["state"] == json!("ready")).await;
        let (code, told) = asked(&section, &["detach", "detached"]).await.answer("y\n").await;
        assert_eq!(code, Some(0), "{told}");
        section.report_has("its end", |report| report["mode"] == json!("detached")).await;
        for (suffix, name) in [("a", "orders"), ("b", "orders"), ("b", "bills")] {
            let remote = section.remote_has(suffix, name, |_| true).await;
            assert!(remote.finalizers().is_empty(), "{suffix}/{name}");
            let local = section.local_has(suffix, name, |_| true).await;
            assert!(local.metadata.deletion_timestamp.is_none());
            assert!(!local.annotations().keys().any(|key| key.starts_with("cloud.teleport.dev/")), "{suffix}/{name}");
        }
        let namespaces: Api<Namespace> = Api::all(section.edge.clone());
        let namespace = namespaces.get(&section.namespace("b")).await.unwrap();
        assert!(!namespace.annotations().keys().any(|key| key.starts_with("cloud.teleport.dev/")));
        // What happens on the remote from now on is no concern of the local side.
        let since = section.mark().await;
        section.delete_remote("b", "bills").await;
        section.remote_gone("b", "bills").await;
        section.patch_remote("b", "orders", &json!({"spec": {"storage": "1Gi"}})).await;
        section.make_remote("a", "new", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.report_has("that it is still detached", |report| report["mode"] == json!("detached")).await;
        assert_eq!(section.local("b").get("bills").await.unwrap().uid(), before.uid());
        assert_eq!(section.counted("b", since).await, (counts([]), counts([])));
        assert_eq!(section.counted("a", since).await, (counts([]), counts([])));
    });
}

#[test]
fn a_detached_section_stays_detached_over_a_restart_until_it_is_attached_again() {
    run(async {
        let mut section = three_pairs("remembered").await;
        assert_eq!(command(&section, &["attach", "remembered"]).await.status.code(), Some(1), "it is not detached");
        let done = command(&section, &["detach", "--yes", "remembered"]).await;
        let told = String::from_utf8_lossy(&done.stdout);
        assert!(
            told.starts_with("remembered: detaching, ") && told.ends_with("; a restart remembers that\n"),
            "{told}"
        );
        section.report_has("its end", |report| report["mode"] == json!("detached")).await;
        let since = section.mark().await;
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        let at_rest = |report: &serde_json::Value| {
            report["mode"] == json!("detached")
                && report["queue"]["waiting"] == json!(0)
                && report["stored_state"]["state"] == json!("stored")
        };
        section.report_has("that it is still detached", at_rest).await;
        // What comes later is not taken either, by whichever watch tells of it.
        section.make_remote("a", "later", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.patch_remote("b", "orders", &json!({"spec": {"storage": "1Gi"}})).await;
        section.report_has("that it is still detached", at_rest).await;
        assert_eq!(section.counted("a", since).await, (counts([]), counts([])));
        assert_eq!(section.counted("b", since).await, (counts([]), counts([])));
        // And so the hub's objects can be deleted, with nobody there to let them go.
        section.towline.kill9().await.unwrap();
        section.delete_remote("b", "bills").await;
        section.remote_gone("b", "bills").await;
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        let attached = command(&section, &["attach", "remembered", "-o", "name"]).await;
        assert_eq!((attached.status.success(), &*attached.stdout), (true, &b"remembered\n"[..]));
        for (suffix, name) in [("a", "orders"), ("a", "later"), ("b", "orders")] {
            let holds = |remote: &kube::core::DynamicObject| remote.finalizers() == [FINALIZER];
            section.remote_has(suffix, name, holds).await;
            section.local_has(suffix, name, |_| true).await;
        }
        section.local_has("b", "orders", |local| local.data["spec"]["storage"] == json!("1Gi")).await;
        assert!(section.local("b").get_opt("bills").await.unwrap().is_some(), "it was let go, and lives on");
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        section.report_has("that it is attached", |report| report["mode"] == json!("syncing")).await;
    });
}

#[test]
fn an_edge_that_returns_after_it_was_given_up_loses_nothing_over_restarts_either() {
    run(async {
        let world = world().await;
        let link = integration::Link::to(world.edge.address()).await.unwrap();
        let edge = world.edge.kubeconfig_by(integration::users::TOWLINE, link.address()).unwrap();
        let config = format!(
            "[clusters.hub]\nkubeconfig = {:?}\n[clusters.edge]\nkubeconfig = {edge:?}\nrequest_timeout = \"2s\"\n{}",
            world.hub_kubeconfig,
            sync("returned", &databases(), "")
        );
        let mut section = Section::start_config("returned", databases(), &config, |_| {}).await;
        section.make_namespaces("a").await;
        section.make_remote_namespace("b").await;
        let all = [("a", "orders"), ("a", "bills"), ("b", "orders")];
        for (suffix, name) in all {
            section.make_remote(suffix, name, &json!({"spec": {"engine": "postgres-17"}})).await;
        }
        section.in_step().await;
        let mut before = Vec::new();
        for (suffix, name) in all {
            before.push(section.local_has(suffix, name, |_| true).await.uid());
        }
        link.cut().await.unwrap();
        let is_unreachable = |report: &serde_json::Value| report["readiness"]["state"] == json!("unreachable");
        section.report_has("an unreachable edge", is_unreachable).await;
        let told = command(&section, &["detach", "returned"]).await;
        assert_eq!(told.status.code(), Some(2), "the daemon would take it, and so somebody is asked");
        assert!(String::from_utf8_lossy(&told.stderr).contains("would end for good, with 3 objects"), "{told:?}");
        // A daemon that starts now does not find it, either, and without `--local-gone` the local side is needed.
        section.towline.start_again().await.unwrap();
        section.report_has("an unreachable edge", is_unreachable).await;
        let told = command(&section, &["detach", "returned"]).await;
        assert_eq!(told.status.code(), Some(1), "nobody is asked");
        assert!(String::from_utf8_lossy(&told.stderr).contains("section returned: "), "{told:?}");
        let refused = command(&section, &["detach", "--yes", "returned"]).await;
        assert_eq!(refused.status.code(), Some(1));
        assert_eq!(section.remote_has("a", "orders", |_| true).await.finalizers(), [FINALIZER]);
        let done = integration::eventually("the detachment to be taken", LIMIT, async || {
            let output = command(&section, &["detach", "--yes", "returned", "--local-gone", "-o", "json"]).await;
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            // Where its cluster is gone, the state can't be stored, and whoever detaches is told.
            if told.contains("\"remembered\": false") && told.contains("a restart forgets it") {
                Ok(())
            } else {
                Err(format!("{told}{}", String::from_utf8_lossy(&output.stderr)))
            }
        });
        done.await.unwrap();
        for (suffix, name) in all {
            section.remote_has(suffix, name, |remote| remote.finalizers().is_empty()).await;
            section.delete_remote(suffix, name).await;
            section.remote_gone(suffix, name).await;
        }
        link.restore().await.unwrap();
        section.report_has("its state", |report| report["stored_state"]["state"] == json!("stored")).await;
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        let at_rest =
            |report: &serde_json::Value| report["mode"] == json!("detached") && report["queue"]["waiting"] == json!(0);
        section.report_has("that it is still detached", at_rest).await;
        for ((suffix, name), uid) in all.into_iter().zip(before) {
            let local = section.local_has(suffix, name, |_| true).await;
            assert_eq!((local.uid(), &local.metadata.deletion_timestamp), (uid, &None), "{suffix}/{name}");
        }
    });
}

#[test]
fn many_that_vanish_at_once_are_held_until_approved() {
    run(async {
        let mut section = Section::start("approve", queues(), "").await;
        // What others have in the cluster does not raise the limit: a tenth of all would be more than vanish.
        make_namespace(&section.edge, "crowd", &json!({})).await;
        let crowd = (0..100).map(|number| {
            let name = format!("orders-{number}");
            let object = serde_json::to_value(section.object(&name, &json!({"spec": {}}))).unwrap();
            Write::create(&section.kind, Some("crowd"), &name, &object)
        });
        burst(&section.edge, crowd.collect(), 8).await.unwrap();
        section.make_namespaces("a").await;
        for number in 0..12 {
            section.make_remote("a", &format!("orders-{number}"), &json!({"spec": {}})).await;
        }
        section.in_step().await;
        assert_eq!(
            command(&section, &["approve", "--yes", "approve"]).await.status.code(),
            Some(1),
            "nothing is held yet"
        );
        section.towline.kill9().await.unwrap();
        for number in 0..11 {
            let name = format!("orders-{number}");
            section.patch_remote("a", &name, &json!({"metadata": {"finalizers": null}})).await;
            section.remote("a").delete(&name, &DeleteParams::default()).await.unwrap();
        }
        let since = section.mark().await;
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        let report = section.report_has("held deletions", |report| report["held"].is_object()).await;
        assert_eq!(report["held"]["delete"], json!(11), "{report}");
        for (kind, count) in [("delete", "11"), ("let_go", "0"), ("overwrite", "0"), ("clear_status", "0")] {
            let held = series(&section, "towline_held_changes", &format!("kind=\"{kind}\"")).await;
            assert_eq!(held.as_deref(), Some(count), "{kind}");
        }
        let listed = command(&section, &["approve", "approve", "--list"]).await;
        let listed = String::from_utf8(listed.stdout).unwrap();
        for number in 0..11 {
            let key = format!("approve-a/orders-{number} ");
            let row = listed.lines().find(|line| line.starts_with(&key)).unwrap_or_else(|| panic!("{key}: {listed}"));
            assert!(
                row.contains("   delete   ") && row.contains("although nothing shows that it was deleted"),
                "{row}"
            );
        }
        assert_eq!(listed.lines().count(), 12, "a heading and a line for each: {listed}");
        section.quiet().await;
        let (_, edge) = section.counted_with_events("a", since).await;
        assert_eq!(edge, counts([("create events", 1)]), "none goes, and an Event says so");
        let unasked = command(&section, &["approve", "approve"]).await;
        let told = String::from_utf8_lossy(&unasked.stderr);
        assert_eq!((unasked.status.code(), unasked.stdout.len()), (Some(2), 0), "{told}");
        assert!(
            told.contains("approve-a/orders-10 ") && told.contains("11 changes of section approve would"),
            "{told}"
        );
        assert!(told.contains("nothing was done") && told.contains("--yes"), "{told}");
        let (first, second) =
            (asked(&section, &["approve", "approve"]).await, asked(&section, &["approve", "approve"]).await);
        assert!(first.shown.contains("11 changes of section approve would proceed"), "{}", first.shown);
        let (code, told) = second.answer("y\n").await;
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("approve: 11 changes are approved; a restart remembers that"), "{told}");
        let (code, told) = first.answer("y\n").await;
        assert_eq!(code, Some(1), "{told}");
        assert!(
            told.contains("what is held has changed since it was listed"),
            "what it listed is not held any more: {told}"
        );
        for number in 0..11 {
            section.local_gone("a", &format!("orders-{number}")).await;
        }
        section.in_step().await;
        section.report_has("no more", |report| report.get("held").is_none()).await;
        let held = series(&section, "towline_held_changes", "kind=\"delete\"").await;
        assert_eq!(held.as_deref(), Some("0"));
        let listed = command(&section, &["approve", "approve", "--list"]).await;
        assert_eq!(String::from_utf8(listed.stdout).unwrap(), "nothing is held\n");
        let (_, edge) = section.counted_with_events("a", since).await;
        assert_eq!(edge, counts([("create events", 1), ("delete queues", 11)]));
    });
}
