//! What is ours: marks that were copied, existing objects of a remote object's name, a rule between names that has changed, and
//! sections that follow one another.

use integration::Towline;
use integration::rbac::{Grant, Side};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::rules_world::*;

fn database(storage: &str) -> Value {
    json!({"spec": {"engine": "postgres-17", "storage": storage}})
}

/// `kubectl get -o yaml`, another name, `kubectl apply`: what a server fills in goes, the annotations stay.
fn copy(object: &DynamicObject, name: &str) -> DynamicObject {
    let mut copy = object.clone();
    copy.metadata = kube::api::ObjectMeta {
        name: Some(name.to_owned()),
        labels: object.metadata.labels.clone(),
        annotations: object.metadata.annotations.clone(),
        ..kube::api::ObjectMeta::default()
    };
    copy
}

fn namespaces(section: &Place) -> Api<Namespace> {
    Api::all(section.edge.clone())
}

#[test]
fn copies_of_a_synced_object_and_of_its_namespace_are_kept_and_told_with_the_reason() {
    run(async {
        let section = Section::start("copies", databases(), "unclaimed = \"delete\"").await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &database("1Gi")).await;
        section.in_step().await;
        let ours = section.local_has("a", "orders", |_| true).await;
        let copied = section.local("a").create(&PostParams::default(), &copy(&ours, "copy")).await.unwrap();
        // The namespace's manifest, with somebody else's object in it.
        let made = namespaces(&section).get(&section.namespace("a")).await.unwrap();
        make_namespace(&section.edge, &section.namespace("b"), &json!(made.annotations())).await;
        let maps: Api<ConfigMap> = Api::namespaced(section.edge.clone(), &section.namespace("b"));
        let theirs = ConfigMap {
            metadata: kube::api::ObjectMeta { name: Some("theirs".into()), ..Default::default() },
            ..Default::default()
        };
        maps.create(&PostParams::default(), &theirs).await.unwrap();
        let report = section.report_has("both", |report| report["objects"]["unclaimed"] == json!(2)).await;
        let listed = report["not_in_step"].to_string();
        assert!(listed.contains("its marks were copied from another object"), "{listed}");
        section.quiet().await;
        assert_eq!(section.local("a").get("copy").await.unwrap().resource_version(), copied.resource_version());
        assert!(namespaces(&section).get(&section.namespace("b")).await.unwrap().metadata.deletion_timestamp.is_none());
        assert!(maps.get_opt("theirs").await.unwrap().is_some());
        // Its own namespace goes with the last remote object, and its copy does not.
        section.delete_remote("a", "orders").await;
        section.remote_gone("a", "orders").await;
        assert!(namespaces(&section).get_opt(&section.namespace("b")).await.unwrap().is_some());
    });
}

#[test]
fn a_changed_rule_between_names_deletes_nothing_that_lives_and_approval_does_not_either() {
    run(async {
        let mut section = Section::start("renamed", databases(), "").await;
        section.make_remote_namespace("a").await;
        for name in ["orders", "bills", "stock"] {
            section.make_remote("a", name, &database("1Gi")).await;
        }
        section.in_step().await;
        let before = section.local_has("a", "orders", |_| true).await;
        let now = sync(&section.name, &section.kind, "remote_resource_suffix = \"-hub\"");
        section.restart_with(&now).await;
        let report = section.report_has("the orphans", |report| report["objects"]["mapping_changed"] == json!(3)).await;
        let listed = report["not_in_step"].to_string();
        assert!(listed.contains("was a suffix changed?") && listed.contains("renamed-a/orders"), "{listed}");
        let url = section.towline.admin_url();
        let approved = Towline::command(["approve", "--yes", &section.name, "--admin", &url]).await.unwrap();
        assert_eq!(approved.status.code(), Some(1), "nothing is held");
        assert_eq!(section.local("a").get("orders").await.unwrap().uid(), before.uid());
        // As it was, all is in step again.
        let now = sync(&section.name, &section.kind, "");
        section.restart_with(&now).await;
        section.in_step().await;
        section.report_has("pairs in step", |report| report["objects"]["in_step"] == json!(3)).await;
        assert_eq!(section.local("a").get("orders").await.unwrap().uid(), before.uid());
    });
}

#[test]
fn a_changed_suffix_of_namespaces_deletes_no_namespace() {
    run(async {
        let mut section = Section::start_with("moved", databases(), "local_namespace_suffix = \"-edge\"", |mapping| {
            mapping.local_namespace_suffix = "-edge".to_owned();
        })
        .await;
        section.make_remote_namespace("a").await;
        section.make_remote("a", "orders", &database("1Gi")).await;
        section.in_step().await;
        let namespace = section.local_namespace("a");
        let maps: Api<ConfigMap> = Api::namespaced(section.edge.clone(), &namespace);
        let theirs = ConfigMap {
            metadata: kube::api::ObjectMeta { name: Some("theirs".into()), ..Default::default() },
            ..Default::default()
        };
        maps.create(&PostParams::default(), &theirs).await.unwrap();
        let now = sync(&section.name, &section.kind, "");
        section.restart_with(&now).await;
        section.report_has("the orphan", |report| report["objects"]["mapping_changed"] == json!(1)).await;
        assert!(maps.get_opt("theirs").await.unwrap().is_some());
        let kept = namespaces(&section).get(&namespace).await.unwrap();
        assert!(kept.metadata.deletion_timestamp.is_none());
    });
}

#[test]
fn an_existing_object_is_adopted_as_configured_told_and_released() {
    run(async {
        let settings = [
            ("adopt-always", "adopt = \"always\""),
            ("adopt-equal", "adopt = \"equal\""),
            ("adopt-never", "adopt = \"never\""),
            ("adopt-delete", "delete_adopted = true"),
        ];
        let (always, others) = Section::start_several(&databases(), &settings).await;
        let [equal, never, deletes] = &others[..] else { panic!("three others") };
        for place in [&*always, equal, never, deletes] {
            place.make_namespaces("a").await;
            for (name, storage) in [("same", "1Gi"), ("other", "7Gi")] {
                place.make_local("a", name, &database(storage)).await;
                place.make_remote("a", name, &database("1Gi")).await;
            }
        }
        let is_adopted = |local: &DynamicObject| local.annotations().contains_key(&mark("sync-adopted"));
        for (place, name) in [(&*always, "same"), (&*always, "other"), (equal, "same")] {
            let local = place.local_has("a", name, is_adopted).await;
            place.local_has("a", name, |local| local.data["spec"]["storage"] == json!("1Gi")).await;
            let note = place.event("a", name, "Adopted").await;
            let overwritten = place.name == "adopt-always" && name == "other";
            assert_eq!(note.contains("differed and is overwritten"), overwritten, "{note}");
            place.delete_remote("a", name).await;
            place.remote_gone("a", name).await;
            let released = place.local_has("a", name, |local| local.annotations().is_empty()).await;
            assert_eq!((released.uid(), released.metadata.deletion_timestamp), (local.uid(), None), "released");
        }
        for (place, names) in [(equal, &["other"][..]), (never, &["same", "other"][..])] {
            let count = names.len();
            let is_so = |report: &Value| report["objects"]["existing"] == json!(count);
            report_has(&always.towline, &place.name, "existing objects", is_so).await;
            for name in names {
                // It may have been put on before the existing object was seen.
                place.remote_has("a", name, |remote| remote.finalizers().is_empty()).await;
                assert!(place.local_has("a", name, |_| true).await.annotations().is_empty(), "{name}");
                place.delete_remote("a", name).await;
                place.remote_gone("a", name).await;
                assert!(place.local("a").get_opt(name).await.unwrap().is_some());
            }
        }
        deletes.in_step().await;
        deletes.delete_remote("a", "same").await;
        deletes.remote_gone("a", "same").await;
        deletes.local_gone("a", "same").await;
    });
}

#[test]
fn many_existing_objects_of_other_content_are_overwritten_only_when_that_is_approved() {
    run(async {
        let section = Section::start("adopt-many", databases(), "").await;
        section.make_namespaces("a").await;
        for number in 0..11 {
            section.make_local("a", &format!("o{number}"), &database("7Gi")).await;
        }
        for number in 0..11 {
            let mut remote = database("1Gi");
            remote["metadata"] = json!({"annotations": {mark("paused"): "true"}});
            section.make_remote("a", &format!("o{number}"), &remote).await;
        }
        for number in 0..11 {
            section
                .patch_remote("a", &format!("o{number}"), &json!({"metadata": {"annotations": {mark("paused"): null}}}))
                .await;
        }
        let report = section.report_has("that it is held", |report| report["held"]["overwrite"].is_u64()).await;
        let held = report["held"]["overwrite"].as_u64().unwrap();
        let url = section.towline.admin_url();
        let approved = Towline::command(["approve", "--yes", &section.name, "--admin", &url]).await.unwrap();
        assert!(held > 0 && approved.status.success(), "{approved:?} {report}");
        section.in_step().await;
    });
}

#[test]
fn in_a_chain_of_mirrors_users_objects_on_the_way_are_nobodys_but_theirs() {
    run(async {
        // hub → edge → edge, by two daemons: the second's remote objects are the first one's local ones, and users' own.
        let world = world().await;
        Grant::kind(Side::Remote, "documents", "demo.towline.dev")
            .secrets(&["of-nobody"])
            .apply(&admin(&world.edge).await)
            .await
            .unwrap();
        let second = sync("chain-on", &documents(), "metadata = \"mirror\"\nlocal_namespace_suffix = \"-leaf\"")
            .replace("remote = \"hub\"", "remote = \"edge\"")
            .replace("namespace_prefix = \"chain-on-\"", "namespace_prefix = \"chain-a\"");
        let settings = "metadata = \"mirror\"";
        let section = Section::start_with("chain", documents(), settings, |mapping| mapping.mirror = true).await;
        let onwards = Towline::start(&(clusters(world) + &second), &[]).await.unwrap();
        onwards.wait_ready(LIMIT).await.unwrap();
        section.make_namespaces("a").await;
        section.make_remote("a", "ordered", &json!({"spec": {"size": 1}})).await;
        let own = section.make_local("a", "own", &json!({"spec": {"size": 2}})).await;
        let leaves: Api<DynamicObject> = Api::namespaced_with(section.edge.clone(), "chain-a-leaf", &section.kind);
        for name in ["ordered", "own"] {
            object_that(&leaves, &format!("{name} on the leaf"), name, |_| true).await;
        }
        let noted = |local: &DynamicObject| local.annotations().contains_key(&mark("sync-local-generation"));
        let before = section.local_has("a", "own", noted).await;
        section.local_has("a", "ordered", noted).await;
        section.quiet().await;
        let after = section.local_has("a", "own", |_| true).await;
        assert_eq!(
            (after.uid(), after.resource_version()),
            (own.uid(), before.resource_version()),
            "kept, and no fight"
        );
        let ordered = section.local_has("a", "ordered", noted).await;
        section.quiet().await;
        let quiet = section.local_has("a", "ordered", noted).await;
        assert_eq!(quiet.resource_version(), ordered.resource_version(), "nobody strips the other's notes");
        section.local("a").delete("own", &DeleteParams::background()).await.unwrap();
        gone(&leaves, "own on the leaf", "own").await;
    });
}

#[test]
fn a_section_turned_around_overwrites_nothing() {
    run(async {
        let mut section = Section::start("around", documents(), "").await;
        let world = section.world;
        // Not the secrets of other tests: where they may be watched, sections do.
        Grant::kind(Side::Local, "documents", "demo.towline.dev")
            .secrets(&["of-nobody"])
            .apply(&admin(&world.hub).await)
            .await
            .unwrap();
        Grant::kind(Side::Remote, "documents", "demo.towline.dev")
            .secrets(&["of-nobody"])
            .apply(&admin(&world.edge).await)
            .await
            .unwrap();
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"size": 1}})).await;
        section.local_has("a", "orders", |_| true).await;
        section.in_step().await;
        section.towline.kill9().await.unwrap();
        section.patch_remote("a", "orders", &json!({"spec": {"size": 5}})).await;
        let turned = clusters(world)
            + &sync(&section.name, &section.kind, "")
                .replace("remote = \"hub\"\nlocal = \"edge\"", "remote = \"edge\"\nlocal = \"hub\"");
        std::fs::write(section.towline.config_path(), turned).unwrap();
        section.towline.start_again().await.unwrap();
        section.report_has("the circle", |report| report["objects"]["circle"] == json!(1)).await;
        let remote = section.remote_has("a", "orders", |_| true).await;
        assert_eq!(remote.data["spec"]["size"], json!(5), "the newer spec of the hub");
    });
}

#[test]
fn a_mark_that_somebody_has_taken_off_is_put_back_when_its_living_remote_is_reconciled() {
    run(async {
        let mut section = Section::start("taken-off", databases(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &database("1Gi")).await;
        section.in_step().await;
        section.towline.kill9().await.unwrap();
        section
            .local("a")
            .patch(
                "orders",
                &PatchParams::default(),
                &Patch::Merge(json!({"metadata": {"annotations": {mark("sync-local-name"): null}}})),
            )
            .await
            .unwrap();
        section.towline.start_again().await.unwrap();
        let named = |local: &DynamicObject| {
            local.annotations().get(&mark("sync-local-name")).is_some_and(|name| name == "taken-off-a/orders")
        };
        section.local_has("a", "orders", named).await;
        section.delete_remote("a", "orders").await;
        section.local_gone("a", "orders").await;
    });
}
