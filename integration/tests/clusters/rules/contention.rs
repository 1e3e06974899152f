//! A fight over a field is seen, and fought slowly.

use std::fmt::Debug;
use std::time::Duration;

use futures::TryStreamExt;
use integration::audit::{Mark, Record};
use integration::{ControlPlane, Filter, Towline, eventually, users};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::rules_world::*;

/// Who fights, as the API servers record it.
const STUBBORN: &str = "stubborn-operator";

/// Merges its own values into an object, one after the other, whenever that has what the daemon writes.
async fn fight<K>(api: Api<K>, name: &str, subresource: bool, has_ours: impl Fn(&K) -> bool, patches: &[Value])
where
    K: Clone + DeserializeOwned + Debug,
{
    let params = PatchParams { field_manager: Some(STUBBORN.to_owned()), ..PatchParams::default() };
    let mut patches = patches.iter().cycle();
    loop {
        let selector = WatchParams::default().fields(&format!("metadata.name={name}"));
        let Ok(events) = api.watch(&selector, "0").await else { continue };
        let mut events = std::pin::pin!(events);
        while let Ok(Some(event)) = events.try_next().await {
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event
                && has_ours(&object)
            {
                let patch = Patch::Merge(patches.next().unwrap());
                if subresource {
                    drop(api.patch_status(name, &params, &patch).await);
                } else {
                    drop(api.patch(name, &params, &patch).await);
                }
            }
        }
    }
}

/// How often the daemon has written this since then.
async fn writes(section: &Place, plane: &ControlPlane, since: Mark, verb: &str, resource: &str, name: &str) -> usize {
    let about =
        |record: &Record| record.name == name && record.namespace == section.namespace("a") && record.status == 200;
    let counted = count(plane, since, about).await;
    counted.get(&format!("{verb} {resource}")).copied().unwrap_or_default()
}

/// Waits until there are so many, lets others go on, and sees that there are no more.
async fn slows_down_after(section: &Place, expected: usize, writes: impl AsyncFn() -> usize) {
    eventually(format!("{expected} writes"), Duration::from_mins(2), async || {
        let seen = writes().await;
        if seen >= expected { Ok(()) } else { Err(seen.to_string()) }
    })
    .await
    .unwrap();
    section.quiet().await;
    assert_eq!(writes().await, expected);
}

/// One database in step.
async fn one_database(place: &Place) {
    place.make_namespaces("a").await;
    place.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
    place.in_step().await;
}

/// A change of the remote spec is taken down, whatever is fought over.
async fn the_spec_goes_on(section: &Place) {
    section.patch_remote("a", "orders", &json!({"spec": {"storage": "2Gi"}})).await;
    section.local_has("a", "orders", |local| local.data["spec"]["storage"] == "2Gi").await;
}

#[test]
fn a_fight_over_the_status_is_slowed_and_named_and_holds_no_spec_back() {
    run(async {
        let section = Place::shared("fight-status", databases()).await;
        one_database(&section).await;
        section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
        section.in_step().await;
        section.quiet().await;
        let since = section.mark().await.0;
        let theirs = json!({"status": {"phase": "Failed"}});
        let ours = |remote: &DynamicObject| remote.data["status"]["phase"] == json!("Ready");
        let remote = section.remote("a");
        let fighter = tokio::spawn(async move { fight(remote, "orders", true, ours, &[theirs]).await });
        let written = async || writes(&section, &section.world.hub, since, "patch", "databases/status", "orders").await;
        slows_down_after(&section, 3, written).await;
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.contains(STUBBORN) && note.contains("cluster hub") && note.contains("status"), "{note}");
        the_spec_goes_on(&section).await;
        // Neither is a new status held back: it is no rewrite.
        section.patch_local_status("a", "orders", &json!({"phase": "Deleting"})).await;
        section.remote_has("a", "orders", |remote| remote.data["status"]["phase"] == "Deleting").await;
        fighter.abort();
        assert_eq!(section.events("a", "orders").await, counts([("Contended", 1)]), "told once");
    });
}

#[test]
fn a_fight_over_the_finalizer_is_slowed_and_named_and_the_rest_goes_on() {
    run(async {
        let section = Place::shared("fight-finalizer", databases()).await;
        one_database(&section).await;
        section.quiet().await;
        let since = section.mark().await.0;
        let theirs = json!({"metadata": {"finalizers": null}});
        let ours = |remote: &DynamicObject| !remote.finalizers().is_empty();
        let remote = section.remote("a");
        let fighter = tokio::spawn(async move { fight(remote, "orders", false, ours, &[theirs]).await });
        let written = async || writes(&section, &section.world.hub, since, "patch", "databases", "orders").await;
        slows_down_after(&section, 3, written).await;
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.contains("finalizers") && note.contains("cluster hub"), "{note}");
        the_spec_goes_on(&section).await;
        section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
        section.remote_has("a", "orders", |remote| remote.data["status"]["phase"] == "Ready").await;
        fighter.abort();
        // What nobody undoes any more is written when the pause has passed.
        section.remote_has("a", "orders", |remote| remote.finalizers() == [FINALIZER]).await;
        section.in_step().await;
    });
}

#[test]
fn a_fight_over_the_generation_notes_is_slowed_and_named_and_the_rest_goes_on() {
    run(async {
        let section = Place::shared("fight-notes", databases()).await;
        one_database(&section).await;
        section.quiet().await;
        let since = section.mark().await.0;
        let theirs = json!({"metadata": {"annotations": {mark("sync-local-generation"): "99"}}});
        let ours = |remote: &DynamicObject| {
            remote.annotations().get(&mark("sync-local-generation")).is_some_and(|noted| noted != "99")
        };
        let remote = section.remote("a");
        let fighter = tokio::spawn(async move { fight(remote, "orders", false, ours, &[theirs]).await });
        let written = async || writes(&section, &section.world.hub, since, "patch", "databases", "orders").await;
        slows_down_after(&section, 3, written).await;
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.contains(STUBBORN) && note.contains("generation"), "{note}");
        section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
        section.remote_has("a", "orders", |remote| remote.data["status"]["phase"] == "Ready").await;
        the_spec_goes_on(&section).await;
        fighter.abort();
    });
}

#[test]
fn fights_over_a_secret_and_over_its_hash_are_slowed_and_named_and_the_rest_goes_on() {
    run(async {
        let mut section = Place::shared_with_secrets("fight").await;
        section.mapping.secret_names = vec![WATCHED_SECRET.to_owned()];
        one_database(&section).await;
        make_secret(&section.remote_secrets("a"), WATCHED_SECRET, &json!({})).await;
        let database = section.local_has("a", "orders", |_| true).await;
        let content =
            json!({"stringData": {"password": "ours"}, "metadata": {"ownerReferences": [controller(&database)]}});
        put_secret(&section.local_secrets("a"), WATCHED_SECRET, &content).await;
        secret_that(&section.local_secrets("a"), WATCHED_SECRET, "its hash noted", |secret| {
            noted_hash(secret).is_some()
        })
        .await;
        section.in_step().await;
        section.quiet().await;
        let since = section.mark().await;
        let theirs = json!({"stringData": {"password": "theirs"}});
        let ours = |secret: &Secret| {
            secret.data.as_ref().and_then(|data| data.get("password")).is_some_and(|password| password.0 == b"ours")
        };
        let secrets = section.remote_secrets("a");
        let fighter = tokio::spawn(async move { fight(secrets, WATCHED_SECRET, false, ours, &[theirs]).await });
        let uploads = async || writes(&section, &section.world.hub, since.0, "update", "secrets", WATCHED_SECRET).await;
        slows_down_after(&section, 3, uploads).await;
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.contains(STUBBORN) && note.contains(WATCHED_SECRET), "{note}");
        the_spec_goes_on(&section).await;
        fighter.abort();

        let theirs = json!({"metadata": {"annotations": {mark("last-uploaded-hash"): null}}});
        let secrets = section.local_secrets("a");
        let ours = |secret: &Secret| noted_hash(secret).is_some();
        let fighter = tokio::spawn(async move { fight(secrets, WATCHED_SECRET, false, ours, &[theirs]).await });
        let notes = async || writes(&section, &section.world.edge, since.1, "patch", "secrets", WATCHED_SECRET).await;
        slows_down_after(&section, 3, notes).await;
        eventually("the second fight to be told", LIMIT, async || {
            let events = section.events("a", "orders").await;
            if events == counts([("Contended", 2)]) { Ok(()) } else { Err(format!("{events:?}")) }
        })
        .await
        .unwrap();
        fighter.abort();
    });
}

#[test]
fn a_fight_over_two_labels_in_turn_is_one_and_is_slowed_and_named() {
    run(async {
        let section = Place::shared("fight-labels", databases()).await;
        one_database(&section).await;
        let since = section.mark().await.1;
        let theirs = ["colour", "shape"].map(|label| json!({"metadata": {"labels": {label: "theirs"}}}));
        let ours = |local: &DynamicObject| {
            ["colour", "shape"].iter().all(|label| local.labels().get(*label).is_some_and(|value| value == "ours"))
        };
        let local = section.local("a");
        let fighter = tokio::spawn(async move { fight(local, "orders", false, ours, &theirs).await });
        let labels = json!({"metadata": {"labels": {"colour": "ours", "shape": "ours"}}});
        section.patch_remote("a", "orders", &labels).await;
        let written = async || writes(&section, &section.world.edge, since, "patch", "databases", "orders").await;
        // The labels as they were ordered, and three rewrites.
        slows_down_after(&section, 4, written).await;
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.contains(STUBBORN) && note.contains("keeps changing label "), "{note}");
        the_spec_goes_on(&section).await;
        fighter.abort();
        section.in_step().await;
        assert_eq!(section.events("a", "orders").await, counts([("Contended", 1)]), "told once");
    });
}

#[test]
fn a_fight_is_told_with_the_other_manager_s_name_and_slows_down() {
    run(async {
        let section = Section::start("contended", databases(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
        section.in_step().await;
        let since = section.mark().await;
        // When each arrived, by the server's log.
        let rewrites = async || -> Vec<Timestamp> {
            let filter = Filter::since(since.1).user(users::TOWLINE).verb("patch").resource("databases").name("orders");
            let records = section.world.edge.audit().unwrap().records(&filter).await.unwrap();
            let of_ours =
                records.iter().filter(|record| record.namespace == section.namespace("a") && record.status == 200);
            of_ours.map(|record| record.received.parse().unwrap()).collect()
        };
        let theirs = json!({"spec": {"storage": "stubborn"}});
        let ours = |local: &DynamicObject| local.data["spec"]["storage"] != json!("stubborn");
        let local = section.local("a");
        let fighter = tokio::spawn(async move { fight(local, "orders", false, ours, &[theirs]).await });
        let limit = Duration::from_mins(2);
        let reach = async |count: usize| {
            eventually(format!("{count} rewrites"), limit, async || {
                let seen = rewrites().await;
                if seen.len() >= count { Ok(()) } else { Err(format!("{seen:?}")) }
            })
            .await
            .unwrap();
        };
        reach(3).await;
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.contains("stubborn-operator") && note.contains("keeps changing spec.storage"), "{note}");
        // Others are not slowed down meanwhile.
        section.quiet().await;
        assert_eq!(rewrites().await.len(), 3);
        reach(4).await;
        section.quiet().await;
        let times = rewrites().await;
        assert_eq!(times.len(), 4);
        // Half a minute, of which an arrival may take some.
        let pause = times[3].duration_since(times[2]).unsigned_abs();
        assert!(pause > Duration::from_secs(25), "the fourth came {pause:?} after the third");
        // Its age is that of the fight, although the fourth write has just put it in step for a moment.
        section
            .report_has("the field, the other manager and the age", |report| {
                let listed = &report["not_in_step"][0];
                let cause = listed["cause"].as_str().unwrap_or_default();
                cause == "field manager stubborn-operator on cluster edge keeps changing spec.storage"
                    && listed["for_seconds"].as_u64().is_some_and(|age| age >= 25)
                    && report["oldest_unsynced_seconds"]["spec"].as_f64().is_some_and(|age| age >= 25.0)
            })
            .await;
        let admin = section.towline.admin_url();
        let table = Towline::command(["status", "--admin", &admin]).await.unwrap();
        let table = String::from_utf8(table.stdout).unwrap();
        let told =
            "field manager stubborn-operator on cluster edge keeps changing spec.storage → stop the other client";
        let is_told = table.lines().any(|line| line.contains("contended-a/orders") && line.contains(told));
        assert!(is_told, "{table}");
        fighter.abort();
        assert_eq!(section.events("a", "orders").await, counts([("Contended", 1)]), "told once");
        let metrics = section.towline.admin().metrics().await.unwrap();
        let line = metrics.lines().find(|line| line.starts_with("towline_sync_contended_fields_total{"));
        assert!(line.is_some_and(|line| line.ends_with(" 4")), "{line:?}");
        // A change of the remote's is no fight: it is taken down at once.
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "2Gi"}})).await;
        section.local_has("a", "orders", |local| local.data["spec"]["storage"] == "2Gi").await;
        section.in_step().await;
    });
}

/// A line of the log at WARN that names who undoes what.
fn is_warning(line: &str, cause: &str) -> bool {
    line.contains("WARN") && line.contains("another writer") && line.contains(cause)
}

#[test]
fn a_fight_over_the_marks_of_an_object_is_slowed_and_named_and_the_rest_goes_on() {
    run(async {
        let section = Section::start("fight-marks", databases(), "").await;
        one_database(&section).await;
        section.quiet().await;
        let since = section.mark().await.1;
        let (name, uid) = (mark("sync-local-name"), mark("sync-remote-uid"));
        let theirs = json!({"metadata": {"annotations": {&name: null, &uid: null}}});
        let ours = |local: &DynamicObject| local.annotations().contains_key(&mark("sync-local-name"));
        let local = section.local("a");
        let fighter = tokio::spawn(async move { fight(local, "orders", false, ours, &[theirs]).await });
        let written = async || writes(&section, &section.world.edge, since, "patch", "databases", "orders").await;
        // The first is no rewrite: the object was made with them.
        slows_down_after(&section, 4, written).await;
        let cause = format!("on cluster edge keeps changing annotation {name}, annotation {uid}");
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.contains(&cause), "{note}");
        section
            .report_has("who strips the marks", |report| {
                let listed = &report["not_in_step"][0];
                listed["cause"].as_str().is_some_and(|told| told.ends_with(&cause))
                    && report["objects"]["pending"] == json!(1)
            })
            .await;
        let rewrites = series(&section, "towline_sync_contended_fields_total", "section=\"fight-marks\"").await;
        assert_eq!(rewrites.as_deref(), Some("3"));
        the_spec_goes_on(&section).await;
        fighter.abort();
        section
            .local_has("a", "orders", |local| [&name, &uid].iter().all(|mark| local.annotations().contains_key(*mark)))
            .await;
        section.in_step().await;
        let log = section.towline.log().unwrap();
        assert_eq!(log.lines().filter(|line| is_warning(line, &cause)).count(), 1, "told once");
    });
}

#[test]
fn a_fight_over_the_mark_of_a_namespace_is_slowed_and_named_and_the_other_marks_are_not_written_again() {
    run(async {
        let section = Section::start("fight-namespace", databases(), "").await;
        section.make_remote_namespace("a").await;
        for name in ["orders", "bills", "users"] {
            section.make_remote("a", name, &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
        }
        section.in_step().await;
        section.quiet().await;
        let since = section.mark().await;
        let namespaces: Api<Namespace> = Api::all(admin(&section.world.edge).await);
        let source = mark("sync-remote-cluster");
        let theirs = json!({"metadata": {"annotations": {&source: null}}});
        let ours = |namespace: &Namespace| namespace.annotations().contains_key(&mark("sync-remote-cluster"));
        let (fought, name) = (namespaces.clone(), section.namespace("a"));
        let fighter = tokio::spawn(async move { fight(fought, &name, false, ours, &[theirs]).await });
        let written = async || {
            let (_, edge) = section.counted("a", since).await;
            edge.get("patch namespaces").copied().unwrap_or_default()
        };
        // However many objects are in it.
        slows_down_after(&section, 4, written).await;
        let owner = namespaces.get(&section.namespace("a")).await.unwrap().annotations()[&mark("sync-owner")].clone();
        let cause = "on cluster edge keeps changing this section's marks";
        let note = section.event("a", &owner, "Contended").await;
        assert!(note.contains(cause), "{note}");
        section
            .report_has("who strips the mark", |report| {
                let listed = &report["not_in_step"][0];
                listed["cause"].as_str().is_some_and(|told| told.ends_with(cause))
                    && report["objects"]["pending"] == json!(1)
            })
            .await;
        let rewrites = series(&section, "towline_sync_contended_fields_total", "section=\"fight-namespace\"").await;
        assert_eq!(rewrites.as_deref(), Some("3"));
        section.patch_remote("a", &owner, &json!({"spec": {"storage": "2Gi"}})).await;
        section.local_has("a", &owner, |local| local.data["spec"]["storage"] == "2Gi").await;
        fighter.abort();
        let log = section.towline.log().unwrap();
        assert_eq!(log.lines().filter(|line| is_warning(line, cause)).count(), 1, "told once");
        let has_source = async || {
            eventually("the mark to be there again", LIMIT, async || {
                let namespace = namespaces.get(&section.namespace("a")).await.map_err(|error| error.to_string())?;
                if ours(&namespace) { Ok(()) } else { Err(format!("{:?}", namespace.annotations())) }
            })
            .await
            .unwrap();
        };
        has_source().await;
        // Without one of these it is not the section's any more.
        section.quiet().await;
        let before = written().await;
        for stripped in ["sync-local-name", "sync-owner"] {
            let change = Patch::Merge(json!({"metadata": {"annotations": {mark(stripped): null, &source: null}}}));
            namespaces.patch(&section.namespace("a"), &PatchParams::default(), &change).await.unwrap();
            section.quiet().await;
            assert_eq!(written().await, before, "{stripped}");
        }
    });
}
