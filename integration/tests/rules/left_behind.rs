//! What a change of the configuration leaves behind: found and told, let go by `towline release`.

use integration::Towline;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::rules_world::*;

async fn release(section: &Section, args: &[&str]) -> (Option<i32>, String) {
    let path = section.towline.config_path();
    let args = ["release", "--config", path.to_str().unwrap()].into_iter().chain(args.iter().copied());
    let output = Towline::command(args).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// What is left with this mark, as far as it was this daemon's: others of these tests leave things, too.
fn left<'r>(report: &'r Value, mark: &str) -> Option<&'r Value> {
    let left = report["left_behind"].as_array()?;
    left.iter().find(|left| left["mark"] == json!(mark) && left["was_ours"] == json!(true))
}

fn is_told(report: &Value) -> bool {
    let left = report["left_behind"].as_array();
    left.is_some_and(|left| left.iter().any(|left| left["was_ours"] == json!(true)))
}

#[test]
fn what_a_narrower_prefix_leaves_behind_is_told_and_can_be_let_go() {
    run(async {
        let mut section = Section::start_with("narrow", databases(), "finalizer = \"sync-narrow\"", |mapping| {
            mapping.finalizer = "sync-narrow".to_owned();
        })
        .await;
        let finalizer = mark("sync-narrow");
        section.make_namespaces("a").await;
        section.make_remote_namespace("b").await;
        for (suffix, name) in [("a", "orders"), ("b", "orders"), ("b", "bills")] {
            section.make_remote(suffix, name, &json!({"spec": {"engine": "postgres-17"}})).await;
        }
        section.in_step().await;
        section.settings_noted("narrow").await;
        section.report_has("nothing that is left", |report| !is_told(report)).await;
        let narrower = sync("narrow", &section.kind, "finalizer = \"sync-narrow\"")
            .replace("namespace_prefix = \"narrow-\"", "namespace_prefix = \"narrow-a\"");
        section.restart_with(&narrower).await;
        let report = section.report_has("what is left", |report| left(report, &finalizer).is_some()).await;
        let found = left(&report, &finalizer).unwrap();
        assert_eq!((&found["side"], &found["objects"]), (&json!("remote"), &json!(2)), "{report}");
        assert!(found["first"].as_array().unwrap().contains(&json!("narrow-b/bills")), "{report}");
        let owner = left(&report, &format!("{}: narrow", mark("sync-owner-section"))).unwrap();
        assert_eq!(owner["first"], json!(["narrow-b"]), "{report}");
        assert!(left(&report, &mark("sync-remote-uid")).is_some_and(|left| left["objects"] == json!(2)), "{report}");
        let log = section.towline.log().unwrap();
        assert!(
            log.lines().any(|line| line.contains("no section owns this mark") && line.contains(&finalizer)),
            "{log}"
        );
        let metrics = section.towline.admin().metrics().await.unwrap();
        assert!(metrics.contains("towline_sync_left_behind_objects{section=\"narrow\"} 5"), "{metrics}");

        // Told after a restart without a change, too, as long as it is there.
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        section.report_has("what is still left", |report| left(report, &finalizer).is_some()).await;

        let (code, told) = release(&section, &["--finalizer", &finalizer, "--yes"]).await;
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("section narrow owns"), "{told}");
        let (code, told) =
            release(&section, &["--finalizer", &finalizer, "--namespace-prefix", "narrow-", "--list"]).await;
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("narrow-b/bills") && !told.contains("narrow-a/"), "{told}");
        assert!(told.contains("2 object(s) would be released, 1 kept"), "{told}");
        assert_eq!(section.remote_has("b", "bills", |_| true).await.finalizers(), [finalizer.as_str()], "listed only");
        section.delete_remote("b", "bills").await;
        let (code, told) =
            release(&section, &["--finalizer", &finalizer, "--namespace-prefix", "narrow-", "--yes"]).await;
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("2 object(s) released, 1 kept"), "{told}");
        section.remote_gone("b", "bills").await;
        assert!(section.remote_has("b", "orders", |_| true).await.finalizers().is_empty());
        assert_eq!(section.remote_has("a", "orders", |_| true).await.finalizers(), [finalizer.as_str()]);
        assert!(section.local("b").get_opt("bills").await.unwrap().is_some(), "local objects live on");
    });
}

#[test]
fn a_section_that_is_gone_is_told_by_those_that_are_left() {
    run(async {
        let world = world().await;
        let first = sync("stays", &databases(), "finalizer = \"sync-stays\"");
        let second = sync("goes", &queues(), "finalizer = \"sync-goes\"").replace("\"goes-\"", "\"stays-\"");
        let config = clusters(world) + &second.replace("name = \"goes\"", "name = \"a-goes\"") + &first;
        let mut section = Section::start_config("stays", queues(), &config, |_| {}).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "jobs", &json!({"spec": {}})).await;
        section.remote_has("a", "jobs", |remote| remote.finalizers() == [mark("sync-goes")]).await;
        section.settings_noted("stays").await;
        section.settings_noted("a-goes").await;
        section.restart_with(&first).await;
        let report = section.report_has("what is left", |report| left(report, &mark("sync-goes")).is_some()).await;
        assert_eq!(left(&report, &mark("sync-goes")).unwrap()["first"], json!(["stays-a/jobs"]), "{report}");
        assert_eq!(report["left_states"], json!(["ConfigMap default/towline-a-goes"]), "{report}");
        let args = [
            "--finalizer",
            &mark("sync-goes"),
            "--cluster",
            "hub",
            "--resource",
            "queues.v1beta1.demo.towline.dev",
            "--yes",
        ];
        let (code, told) = release(&section, &args).await;
        assert_eq!(code, Some(0), "{told}");
        assert!(section.remote_has("a", "jobs", |_| true).await.finalizers().is_empty());
    });
}

/// The managers that wrote an object itself.
fn managers(object: &impl ResourceExt) -> Vec<String> {
    let entries = object.managed_fields().iter().filter(|entry| entry.subresource.is_none());
    entries.filter_map(|entry| entry.manager.clone()).collect()
}

#[test]
fn a_renamed_section_takes_its_marks_along_and_forgets_the_former_names() {
    run(async {
        let mut section = Section::start_with(
            "taken-along",
            databases(),
            "finalizer = \"sync-before\"\nannotation_domain = \"before.example\"",
            |mapping| {
                mapping.finalizer = "sync-before".to_owned();
                mapping.annotation_domain = "before.example".to_owned();
            },
        )
        .await;
        section.make_remote_namespace("a").await;
        section.make_namespaces("b").await;
        section
            .make_remote(
                "a",
                "orders",
                &json!({"metadata": {"labels": {"tier": "one"}}, "spec": {"engine": "postgres-17"}}),
            )
            .await;
        section.make_remote("b", "bills", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.in_step().await;
        let before = section.local_has("a", "orders", |_| true).await;
        assert!(before.annotations().contains_key("before.example/sync-local-name"), "{before:?}");

        // Another name, finalizer and domain, all at once.
        let now =
            sync("taken-along", &section.kind, "finalizer = \"sync-after\"\nformer_finalizers = [\"sync-before\"]")
                .replace("name = \"taken-along\"", "name = \"after\"");
        let former = "former_names = [\"taken-along\"]\nformer_annotation_domains = [\"before.example\"]\n";
        section.settings_noted("taken-along").await;
        let since = section.mark().await;
        section.restart_with(&(now.clone() + former)).await;
        section.mapping.finalizer = "sync-after".to_owned();
        section.mapping.annotation_domain = "cloud.teleport.dev".to_owned();
        section.in_step().await;
        let renamed = |object: &kube::core::DynamicObject| object.annotations().contains_key(&mark("sync-local-name"));
        for (suffix, name) in [("a", "orders"), ("b", "bills")] {
            let local = section.local_has(suffix, name, renamed).await;
            assert!(!local.annotations().keys().any(|key| key.starts_with("before.example/sync")), "{local:?}");
            assert_eq!(managers(&local), ["towline-after"], "{local:?}");
            let remote = section.remote_has(suffix, name, |remote| remote.finalizers() == [mark("sync-after")]).await;
            assert!(!remote.annotations().keys().any(|key| key.starts_with("before.example/sync")), "{remote:?}");
        }
        let after = section.local_has("a", "orders", renamed).await;
        assert_eq!((after.uid(), after.metadata.generation), (before.uid(), before.metadata.generation));
        // One write for each object, and one read for each record of field managers.
        let (hub, edge) = section.counted("a", since).await;
        assert_eq!(hub, counts([("patch databases", 1)]));
        let expected = [("get databases", 1), ("patch databases", 1), ("get namespaces", 1), ("patch namespaces", 1)];
        assert_eq!(edge, counts(expected));

        // The former names are no longer needed: the section goes on under its new ones, and ends what it began before.
        section.name = "after".to_owned();
        section.settings_noted("after").await;
        let renewed = |report: &Value| !is_told(report) && report["former_marks"] == json!(0);
        section.report_has("that nothing is left by former names", renewed).await;
        section.restart_with(&now.replace("former_finalizers = [\"sync-before\"]", "")).await;
        section.name = "taken-along".to_owned();
        section.patch_remote("a", "orders", &json!({"metadata": {"labels": {"tier": null}}})).await;
        section.local_has("a", "orders", |local| !local.labels().contains_key("tier")).await;
        section.delete_remote("a", "orders").await;
        section.delete_remote("b", "bills").await;
        section.remote_gone("a", "orders").await;
        section.remote_gone("b", "bills").await;
        section.local_gone("b", "bills").await;
        let namespaces: kube::Api<Namespace> = kube::Api::all(section.edge.clone());
        assert!(
            namespaces
                .get_opt("taken-along-a")
                .await
                .unwrap()
                .is_none_or(|found| found.metadata.deletion_timestamp.is_some())
        );
        assert!(namespaces.get("taken-along-b").await.unwrap().metadata.deletion_timestamp.is_none());
    });
}

#[test]
fn a_section_that_was_detached_stays_so_under_another_name() {
    run(async {
        let mut section = Section::start_with("ended", databases(), "finalizer = \"sync-ended\"", |_| {}).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.remote_has("a", "orders", |remote| remote.finalizers() == [mark("sync-ended")]).await;
        let detached = Towline::command(["detach", "ended", "--admin", &section.towline.admin_url()]).await.unwrap();
        assert!(detached.status.success(), "{detached:?}");
        section.remote_has("a", "orders", |remote| remote.finalizers().is_empty()).await;
        let now = sync("ended", &section.kind, "finalizer = \"sync-ended\"\nformer_names = [\"ended\"]")
            .replace("name = \"ended\"", "name = \"ended-anew\"");
        section.restart_with(&now).await;
        section.name = "ended-anew".to_owned();
        section.report_has("that it is still detached", |report| report["mode"] == json!("detached")).await;
        section.name = "ended".to_owned();
        let remote = section.remote("a").get("orders").await.unwrap();
        assert!(remote.finalizers().is_empty(), "{remote:?}");
    });
}

#[test]
fn a_finalizer_of_a_stranger_and_one_for_another_cluster_are_not_released() {
    run(async {
        let mut section = Section::start_with("let-go", databases(), "finalizer = \"sync-let-go\"", |mapping| {
            mapping.finalizer = "sync-let-go".to_owned();
        })
        .await;
        let finalizer = mark("sync-let-go");
        section.make_namespaces("a").await;
        for name in ["ours", "elsewhere", "theirs"] {
            section.make_remote("a", name, &json!({"spec": {"engine": "postgres-17"}})).await;
        }
        section.in_step().await;
        section.settings_noted("let-go").await;
        let now = sync("let-go", &section.kind, "finalizer = \"sync-kept\"");
        section.restart_with(&now).await;
        section.remote_has("a", "ours", |remote| remote.finalizers().contains(&mark("sync-kept"))).await;
        section.towline.kill9().await.unwrap();
        // As if another daemon had put ours on for its own local cluster, and somebody else another one.
        let elsewhere = section.remote("a").get("elsewhere").await.unwrap();
        let note = format!("another-cluster/{}/{finalizer}", elsewhere.uid().unwrap());
        let holder = mark("sync-local-cluster");
        section.patch_remote("a", "elsewhere", &json!({"metadata": {"annotations": {&holder: note}}})).await;
        let hold = "example.com/hold";
        section.patch_remote("a", "theirs", &json!({"metadata": {"finalizers": [hold]}})).await;

        let prefix = ["--namespace-prefix", "let-go-", "--yes"];
        let (code, told) = release(&section, &[&["--finalizer", hold], &prefix[..]].concat()).await;
        assert_eq!(code, Some(0), "{told}");
        assert!(
            told.contains("0 object(s) released, 1 kept") && told.contains("and not towline: `--put-on-by "),
            "{told}"
        );
        assert_eq!(section.remote("a").get("theirs").await.unwrap().finalizers(), [hold]);

        let (code, told) = release(&section, &[&["--finalizer", &finalizer], &prefix[..]].concat()).await;
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("1 object(s) released, 1 kept"), "{told}");
        assert!(told.contains("--held-for another-cluster"), "{told}");
        let released = section.remote("a").get("ours").await.unwrap();
        assert_eq!(released.finalizers(), [mark("sync-kept")]);
        assert!(section.remote("a").get("elsewhere").await.unwrap().finalizers().contains(&finalizer));

        let held_for = ["--finalizer", &finalizer, "--held-for", "another-cluster"];
        let (code, told) = release(&section, &[&held_for, &prefix[..]].concat()).await;
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("1 object(s) released, 0 kept"), "{told}");
        let released = section.remote("a").get("elsewhere").await.unwrap();
        assert!(!released.finalizers().contains(&finalizer), "{released:?}");
        assert!(!released.annotations().contains_key(&holder), "{released:?}");
    });
}
