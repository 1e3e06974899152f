//! What a server makes of our write is settled, and nothing else is.

use serde_json::{Value, json};

use super::{LOCAL_GENERATION, REMOTE_GENERATION, REMOTE_UID, Scene, object};
use crate::cluster::Written;
use crate::resource_sync::plan::{Next, Rest, Step};

fn written(uid: &str, version: &str, generation: i64) -> Written {
    Written { uid: uid.into(), resource_version: version.into(), generation }
}

/// A pair whose local server has added a field to what we wrote at version 21, generation 5.
fn defaulted() -> Scene {
    let mut scene = Scene::in_step("");
    scene.settled.in_step();
    scene.local["spec"]["engine"] = json!("standard");
    scene
}

fn shows(scene: &mut Scene) {
    let (remote, local) = (object(&scene.remote), object(&scene.local));
    scene.settled.observe(Some(&remote), Some(&local), &scene.policy);
}

fn rests(scene: &Scene) -> bool {
    scene.next() == Next::Rest(Rest::InStep)
}

#[test]
fn what_the_watch_shows_at_our_write_is_settled() {
    for (version, generation) in [("21", 5), ("19", 5), ("21", 0)] {
        let mut scene = defaulted();
        assert!(!rests(&scene));
        scene.settled.wrote_content(&object(&scene.remote), &written("local-uid", version, generation));
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
        scene.settled.wrote_content(&object(&scene.remote), &written(uid, version, generation));
        shows(&mut scene);
        assert!(!rests(&scene), "{uid}, version {version}, generation {generation}");
    }
}

#[test]
fn a_change_of_either_side_unsettles() {
    let mut settled = defaulted();
    settled.settled.wrote_content(&object(&settled.remote), &written("local-uid", "21", 5));
    shows(&mut settled);
    let mut drifted = settled.clone();
    drifted.local["spec"]["engine"] = json!("another");
    assert_eq!(drifted.change().content.map(|content| content.value()), Some(json!({"spec": {"size": 2}})));
    settled.remote["spec"]["size"] = json!(3);
    assert_eq!(settled.change().content.map(|content| content.value()), Some(json!({"spec": {"size": 3}})));
}

#[test]
fn a_status_that_the_remote_prunes_is_settled_at_the_very_version_of_our_write() {
    let scene = |version: &str| {
        let mut scene = Scene::in_step("");
        scene.local["status"]["secret"] = json!("pruned");
        scene.settled.wrote_status(&object(&scene.local), &written("remote-uid", version, 3));
        shows(&mut scene);
        scene
    };
    assert!(rests(&scene("11")));
    assert_eq!(scene("10").next(), Next::Do(Step::WriteRemoteStatus), "the generation says nothing of a status");
    let mut changed = scene("11");
    changed.local["status"]["ready"] = json!(false);
    assert_eq!(changed.next(), Next::Do(Step::WriteRemoteStatus));
}

#[test]
fn after_a_restart_matching_generations_are_settled() {
    let mut scene = Scene::in_step("");
    scene.local["spec"]["engine"] = json!("standard");
    shows(&mut scene);
    assert!(rests(&scene));
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
    scene.settled.in_step();
    scene.local["spec"]["engine"] = json!("drift that left the generation, of a kind that has an odd one");
    shows(&mut scene);
    assert!(!rests(&scene));
}
