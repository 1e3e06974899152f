//! Only what a server makes of our own write counts as its result.

use serde_json::{Value, json};

use super::{LOCAL_GENERATION, REMOTE_GENERATION, REMOTE_UID, Scene, object};
use crate::cluster::Written;
use crate::resource_sync::plan::step::{Next, Rest, Step};

fn written(uid: &str, version: &str, generation: i64) -> Written {
    Written { uid: uid.into(), resource_version: version.into(), generation }
}

/// A pair whose local server has added a field to what we wrote at version 21, generation 5.
fn defaulted() -> Scene {
    let mut scene = Scene::in_step("");
    scene.server_result.in_step();
    scene.local["spec"]["engine"] = json!("standard");
    scene
}

fn shows(scene: &mut Scene) {
    let (remote, local) = (object(&scene.remote), object(&scene.local));
    scene.server_result.observe(Some(&remote), Some(&local), &scene.policy);
}

fn rests(scene: &Scene) -> bool {
    scene.next() == Next::Rest(Rest::InStep)
}

#[test]
fn what_the_watch_shows_at_our_write_is_settled() {
    for (version, generation) in [("21", 5), ("19", 5), ("21", 0)] {
        let mut scene = defaulted();
        assert!(!rests(&scene));
        scene.server_result.wrote_content(&object(&scene.remote), &written("local-uid", version, generation));
        shows(&mut scene);
        assert!(rests(&scene), "version {version}, generation {generation}");
    }
}

#[test]
fn what_is_older_or_newer_than_our_write_is_not_settled() {
    for (uid, version, generation) in
        [("local-uid", "22", 6), ("local-uid", "20", 4), ("another", "21", 5), ("local-uid", "20", 0)]
    {
        let mut scene = defaulted();
        scene.server_result.wrote_content(&object(&scene.remote), &written(uid, version, generation));
        shows(&mut scene);
        assert!(!rests(&scene), "{uid}, version {version}, generation {generation}");
    }
}

#[test]
fn a_change_of_either_side_unsettles() {
    let mut server_result = defaulted();
    server_result.server_result.wrote_content(&object(&server_result.remote), &written("local-uid", "21", 5));
    shows(&mut server_result);
    let mut drifted = server_result.clone();
    drifted.local["spec"]["engine"] = json!("another");
    assert_eq!(drifted.change().content.map(|content| content.value()), Some(json!({"spec": {"size": 2}})));
    server_result.remote["spec"]["size"] = json!(3);
    assert_eq!(server_result.change().content.map(|content| content.value()), Some(json!({"spec": {"size": 3}})));
}

/// A pair whose remote server prunes a field of the status, which we wrote at this version over this status.
fn pruned_status(version: &str, before: &Value) -> Scene {
    let mut scene = Scene::in_step("");
    scene.local["status"]["secret"] = json!("pruned");
    let mut remote = scene.remote.clone();
    remote["status"] = before.clone();
    scene.server_result.wrote_status(object(&scene.local).status, &object(&remote), &written("remote-uid", version, 3));
    shows(&mut scene);
    scene
}

#[test]
fn a_status_that_the_remote_prunes_is_settled_at_the_very_version_of_our_write() {
    let before = json!({"ready": "soon"});
    assert!(rests(&pruned_status("11", &before)));
    let older = pruned_status("10", &before);
    assert_eq!(older.next(), Next::Do(Step::WriteRemoteStatus), "the generation says nothing of a status");
    let mut changed = pruned_status("11", &before);
    changed.local["status"]["ready"] = json!(false);
    assert_eq!(changed.next(), Next::Do(Step::WriteRemoteStatus));
}

#[test]
fn a_status_write_that_changed_nothing_is_settled_only_when_the_kind_was_found_to_be_served_that_way() {
    let before = json!({"ready": true});
    let mut scene = pruned_status("11", &before);
    assert!(scene.server_result.status_is_unconfirmed());
    assert_eq!(scene.next(), Next::Do(Step::WriteRemoteStatus));
    scene.server_result.confirm_status();
    assert!(rests(&scene) && !scene.server_result.status_is_unconfirmed());
    let mut redefined = pruned_status("11", &before);
    redefined.server_result.forget_status();
    redefined.server_result.confirm_status();
    assert_eq!(redefined.next(), Next::Do(Step::WriteRemoteStatus));
}

#[test]
fn after_a_restart_matching_generations_settle_what_the_server_has_added() {
    let mut scene = Scene::in_step("");
    scene.local["spec"]["engine"] = json!("standard");
    shows(&mut scene);
    assert!(rests(&scene));
}

#[test]
fn after_a_restart_what_the_server_did_not_keep_is_written_once_more() {
    let bend: [fn(&mut Scene); 3] = [
        |scene| scene.remote["spec"]["pruned"] = json!("x"),
        |scene| scene.local["spec"]["size"] = json!("2"),
        |scene| scene.local["spec"] = json!({"engine": "standard"}),
    ];
    for (case, bend) in bend.into_iter().enumerate() {
        let mut scene = Scene::in_step("");
        bend(&mut scene);
        shows(&mut scene);
        assert!(scene.change().content.is_some(), "{case}");
        // The server accepts it and keeps as little as before.
        scene.server_result.wrote_content(&object(&scene.remote), &written("local-uid", "21", 5));
        shows(&mut scene);
        assert!(rests(&scene), "{case}");
        let [content, status] = scene.server_result.unkept();
        assert_eq!((content.map(|fields| fields.count), status), (Some(1), None), "{case}");
        // Until the result is doubted.
        assert!(scene.server_result.write_again());
        assert!(scene.change().content.is_some(), "{case}");
        assert!(scene.server_result.content_is_written_again(), "nobody's edit");
        assert!(!scene.server_result.write_again(), "it is under way");
    }
}

#[test]
fn a_local_field_that_left_the_settings_is_not_settled() {
    for (keys, expected) in
        [("local_fields = [\"/spec/replicas\"]", None), ("", Some(json!({"spec": {"size": 2, "replicas": 1}})))]
    {
        let mut scene = Scene::in_step(keys);
        scene.remote["spec"]["replicas"] = json!(1);
        scene.local["spec"]["replicas"] = json!(9);
        shows(&mut scene);
        match expected {
            None => assert!(rests(&scene)),
            Some(expected) => assert_eq!(scene.change().content.map(|content| content.value()), Some(expected)),
        }
    }
}

#[test]
fn what_is_equal_by_now_was_kept() {
    let mut scene = Scene::in_step("");
    scene.remote["spec"]["pruned"] = json!("x");
    scene.server_result.wrote_content(&object(&scene.remote), &written("local-uid", "21", 5));
    shows(&mut scene);
    assert!(scene.server_result.unkept()[0].is_some());
    scene.remote["spec"].as_object_mut().expect("a map").remove("pruned");
    shows(&mut scene);
    assert_eq!(scene.server_result.unkept(), [None, None]);
}

#[test]
fn generations_prove_nothing_without_our_mark_or_when_they_differ() {
    let bend: [fn(&mut Scene); 5] = [
        |scene| scene.remote["metadata"]["annotations"][REMOTE_GENERATION] = json!("2"),
        |scene| scene.remote["metadata"]["annotations"][LOCAL_GENERATION] = json!("4"),
        |scene| scene.local["metadata"]["annotations"] = json!({"note": "hello"}),
        |scene| scene.local["metadata"]["annotations"][REMOTE_UID] = json!("an earlier life"),
        |scene| {
            for side in [&mut scene.remote, &mut scene.local] {
                side["metadata"]["generation"] = Value::Null;
            }
        },
    ];
    for (case, bend) in bend.into_iter().enumerate() {
        let mut scene = Scene::in_step("");
        scene.local["spec"]["engine"] = json!("standard");
        bend(&mut scene);
        if scene.local["metadata"]["generation"].is_null() {
            scene.remote["metadata"].as_object_mut().expect("a map").remove("generation");
            scene.local["metadata"].as_object_mut().expect("a map").remove("generation");
        }
        shows(&mut scene);
        assert_eq!(scene.change().content.map(|content| content.value()), Some(json!({"spec": {"size": 2}})), "{case}");
    }
}

#[test]
fn generations_prove_nothing_once_the_pair_is_known() {
    let mut scene = Scene::in_step("");
    scene.server_result.in_step();
    scene.local["spec"]["engine"] = json!("drift that left the generation, of a kind that has an odd one");
    shows(&mut scene);
    assert!(!rests(&scene));
}
