//! What a change of the configuration leaves behind: found and told, let go by `towline release`.

use integration::Towline;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::asking::Asking;
use crate::rules_world::*;

async fn release(section: &Section, args: &[&str]) -> (Option<i32>, String) {
    let path = section.towline.config_path();
    let args = ["release", "--config", path.to_str().unwrap()].into_iter().chain(args.iter().copied());
    let output = Towline::command(args).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
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
        let narrower = sync("narrow", &section.kind, "finalizer = \"sync-narrow\"")
            .replace("namespace_prefix = \"narrow-\"", "namespace_prefix = \"narrow-a\"");
        section.restart_with(&narrower).await;
        let told = json!(["namespace_prefix was \"narrow-\""]);
        section.report_has("the changed prefix", |report| report["changed_settings"] == told).await;
        let log = section.towline.log().unwrap();
        assert!(log.lines().any(|line| line.contains("settings have changed") && line.contains("narrow-")), "{log}");

        let (code, told) = release(&section, &["--finalizer", &finalizer, "--yes"]).await;
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("section narrow owns"), "{told}");
        let (code, told) =
            release(&section, &["--finalizer", &finalizer, "--namespace-prefix", "narrow-", "--list"]).await;
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("narrow-b/bills") && !told.contains("narrow-a/"), "{told}");
        assert!(told.contains("2 object(s) would be released, 1 kept"), "{told}");
        assert_eq!(section.remote_has("b", "bills", |_| true).await.finalizers(), [finalizer.as_str()], "listed only");
        let (code, told) = release(&section, &["--finalizer", &finalizer, "--namespace-prefix", "narrow-"]).await;
        assert_eq!(code, Some(2), "there is no terminal to ask on: {told}");
        assert!(told.contains("2 object(s) would be released, 1 kept") && told.contains("--yes"), "{told}");
        let listing = ["--finalizer", &finalizer, "--namespace-prefix", "narrow-", "--list", "-o", "json"];
        let document: Value = serde_json::from_str(&release(&section, &listing).await.1).unwrap();
        assert_eq!(
            (&document["releasable"], &document["kept"], &document["faults"]),
            (&json!(2), &json!(1), &json!(0))
        );
        assert_eq!(document["items"][0]["outcome"], "releasable", "{document}");
        // Without anything to be let go, nothing is asked, and what was kept is a document all the same.
        let nothing = ["--finalizer", &finalizer, "--namespace-prefix", "narrow-a", "-o", "json"];
        let (code, told) = release(&section, &nothing).await;
        let document: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{told}"));
        assert_eq!((code, &document["releasable"], &document["kept"]), (Some(0), &json!(0), &json!(1)), "{told}");
        // Without the list, this would let go what the test itself puts on.
        let with_finalizer = json!({"metadata": {"finalizers": [&finalizer]}, "spec": {"engine": "postgres-17"}});
        section.make_remote("b", "earlier", &with_finalizer).await;
        let earlier = section.remote_has("b", "earlier", |_| true).await;
        let manager = earlier.managed_fields()[0].manager.clone().unwrap();
        let path = section.towline.config_path();
        let of_narrow = ["--finalizer", &finalizer, "--namespace-prefix", "narrow-", "--put-on-by", &manager];
        let asked = [&["release", path.to_str().unwrap()][..], &of_narrow].concat();
        let (code, told) = Asking::begin(&asked).await.answer("n\n").await;
        assert!(code == Some(1) && told.contains("nothing was done"), "{told}");
        assert_eq!(section.remote_has("b", "bills", |_| true).await.finalizers(), [finalizer.as_str()], "asked only");
        section.delete_remote("b", "bills").await;
        let asking = Asking::begin(&asked).await;
        section.make_remote("b", "later", &with_finalizer).await;
        let (code, told) = asking.answer("y\n").await;
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("3 object(s) released, 2 kept"), "{told}");
        assert!(told.contains("narrow-b/later: kept, it was not among what was listed"), "{told}");
        let later = section.remote_has("b", "later", |_| true).await;
        assert_eq!(later.finalizers(), [finalizer.as_str()]);
        section.remote_gone("b", "bills").await;
        assert!(section.remote_has("b", "orders", |_| true).await.finalizers().is_empty());
        assert_eq!(section.remote_has("a", "orders", |_| true).await.finalizers(), [finalizer.as_str()]);
        assert!(section.local("b").get_opt("bills").await.unwrap().is_some(), "local objects live on");
    });
}

#[test]
fn the_finalizer_of_a_section_that_is_gone_can_be_let_go() {
    run(async {
        let world = world().await;
        let first = sync("stays", &databases(), "finalizer = \"sync-stays\"");
        let second = sync("goes", &queues(), "finalizer = \"sync-goes\"").replace("\"goes-\"", "\"stays-\"");
        let config = clusters(world) + &second + &first;
        let mut section = Section::start_config("stays", queues(), &config, |_| {}).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "jobs", &json!({"spec": {}})).await;
        section.remote_has("a", "jobs", |remote| remote.finalizers() == [mark("sync-goes")]).await;
        section.restart_with(&first).await;
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

#[test]
fn a_renamed_section_goes_on_with_its_pairs_and_keeps_what_it_cannot_prove() {
    run(async {
        let mut section = Section::start("before", databases(), "").await;
        section.make_remote_namespace("a").await;
        section.make_namespaces("b").await;
        for (suffix, name) in [("a", "orders"), ("b", "bills"), ("b", "lost")] {
            section.make_remote(suffix, name, &json!({"spec": {"engine": "postgres-17"}})).await;
        }
        section.in_step().await;
        section.towline.kill9().await.unwrap();
        // Without its finalizer, while nobody looks.
        section.patch_remote("b", "lost", &json!({"metadata": {"finalizers": null}})).await;
        section.delete_remote("b", "lost").await;
        let now = sync("before", &section.kind, "").replace("name = \"before\"", "name = \"after\"");
        std::fs::write(section.towline.config_path(), clusters(section.world) + &now).unwrap();
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        section.place_mut().name = "after".to_owned();
        section.report_has("what it can't prove", |report| report["objects"]["unclaimed"] == json!(1)).await;
        section.place_mut().name = "before".to_owned();
        section.patch_remote("a", "orders", &json!({"spec": {"engine": "postgres-18"}})).await;
        let local = section.local_has("a", "orders", |local| local.data["spec"]["engine"] == "postgres-18").await;
        assert!(!local.annotations().contains_key(&mark("sync-adopted")), "it is no existing object: {local:?}");
        for (suffix, name) in [("a", "orders"), ("b", "bills")] {
            section.delete_remote(suffix, name).await;
            section.remote_gone(suffix, name).await;
            section.local_gone(suffix, name).await;
        }
        assert!(section.local("b").get_opt("lost").await.unwrap().is_some(), "nothing proves that it is its own");
        let namespaces: kube::Api<Namespace> = kube::Api::all(section.edge.clone());
        let kept = namespaces.get("before-a").await.unwrap();
        assert!(kept.metadata.deletion_timestamp.is_none(), "another section has made it: {kept:?}");
    });
}

#[test]
fn a_former_finalizer_is_replaced_and_one_of_another_domain_can_be_let_go() {
    run(async {
        let mut section = Section::start("moves", databases(), "finalizer = \"sync-first\"").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.remote_has("a", "orders", |remote| remote.finalizers() == [mark("sync-first")]).await;
        let noted = |remote: &DynamicObject| remote.annotations().contains_key(&mark("sync-local-generation"));
        section.remote_has("a", "orders", noted).await;
        section.settings_noted("moves").await;
        let second = "finalizer = \"sync-second\"\nformer_finalizers = [\"sync-first\"]";
        section.restart_with(&sync("moves", &section.kind, second)).await;
        section.remote_has("a", "orders", |remote| remote.finalizers() == [mark("sync-second")]).await;
        let report = section.report_has("nothing left", |report| report["mode"] == json!("syncing")).await;
        assert_eq!(report["changed_settings"], Value::Null, "{report}");

        let moved = "finalizer = \"sync-second\"\nannotation_domain = \"moved.example\"";
        section.restart_with(&sync("moves", &section.kind, moved)).await;
        let both = [mark("sync-second"), "moved.example/sync-second".to_owned()];
        section.remote_has("a", "orders", |remote| remote.finalizers() == both).await;
        let told = json!(["annotation_domain was \"cloud.teleport.dev\""]);
        section.report_has("the changed domain", |report| report["changed_settings"] == told).await;
        let adopted = |local: &DynamicObject| local.annotations().contains_key("moved.example/sync-adopted");
        section.local_has("a", "orders", adopted).await;
        section.delete_remote("a", "orders").await;
        section.remote_has("a", "orders", |remote| *remote.finalizers() == both[..1]).await;
        let (code, told) = release(&section, &["--finalizer", &both[0], "--namespace-prefix", "moves-", "--yes"]).await;
        assert_eq!(code, Some(0), "{told}");
        section.remote_gone("a", "orders").await;
        assert!(section.local("a").get_opt("orders").await.unwrap().is_some(), "an adopted object stays");
    });
}

#[test]
fn a_finalizer_of_another_controller_and_one_for_another_cluster_are_not_released() {
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
