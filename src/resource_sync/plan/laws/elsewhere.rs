//! Pairs that belong to other clusters: two local clusters follow the same remote objects with the same finalizer, and the first
//! one holds them; or sections of the same name create objects from two remote clusters in the same local one.

use serde_json::{Value, json};

use super::{FINALIZER, OWNER, Scene, object, terminating};
use crate::cluster::{ObjectKey, Written};
use crate::resource_sync::plan::elsewhere::{Clusters, KnownCluster};
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::observed::{Absence, Namespace, Observed, Remote};
use crate::resource_sync::plan::patch;
use crate::resource_sync::plan::step::{Next, Rest, Step};

pub(super) const HOLDER: &str = "cloud.teleport.dev/sync-local-cluster";
pub(super) const SOURCE: &str = "cloud.teleport.dev/sync-remote-cluster";

/// The note of a cluster that holds the scene's remote object.
pub(super) fn note_of(cluster: &str) -> String {
    format!("{cluster}/remote-uid/{FINALIZER}")
}

fn known(cluster: &str) -> KnownCluster {
    KnownCluster { uid: Some(cluster.into()), in_place_of: Vec::new() }
}

pub(super) fn noted(observed: &Observed) -> Option<&str> {
    observed.remote_object().and_then(|remote| remote.annotation(HOLDER))
}

pub(super) fn on(cluster: &str, scene: &Scene) -> Observed {
    Observed { clusters: Clusters { local: known(cluster), ..Clusters::default() }, ..scene.observed() }
}

/// A pair whose remote object this cluster holds.
pub(super) fn held_by(cluster: &str) -> Scene {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["annotations"][HOLDER] = json!(note_of(cluster));
    scene
}

#[test]
fn the_finalizer_says_for_which_local_cluster_it_is_and_goes_with_that() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["finalizers"] = json!(["other/first"]);
    let after = on("east", &scene).after(&Step::AddFinalizer, &Written::default(), &scene.policy);
    assert_eq!(noted(&after), Some(&*note_of("east")));
    assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::InStep), "no write of its own");
    let released = after.after(&Step::RemoveFinalizer, &Written::default(), &scene.policy);
    assert_eq!(noted(&released), None);
    // Without an identity, and without write-back, nothing is noted.
    let unknown = scene.observed().after(&Step::AddFinalizer, &Written::default(), &scene.policy);
    assert_eq!(noted(&unknown), None);
    let follower = Scene { policy: super::policy("write_back = false"), ..scene };
    let after = on("east", &follower).after(&Step::AddFinalizer, &Written::default(), &follower.policy);
    assert_eq!(noted(&after), None);
}

#[test]
fn what_is_held_for_another_local_cluster_is_left_alone_its_finalizer_above_all() {
    let mut scene = held_by("west");
    scene.remote["spec"]["size"] = json!(7);
    assert_eq!(next::next(&on("east", &scene), &scene.policy), Next::Rest(Rest::OtherCluster));
    terminating(&mut scene.remote);
    assert_eq!(next::next(&on("east", &scene), &scene.policy), Next::Rest(Rest::OtherCluster));
    // Detaching removes our marks on this side, and nothing on the other.
    let Next::Do(step) = next::detach(&on("east", &scene), &scene.policy, false) else { panic!("marks to take off") };
    assert!(matches!(step, Step::ReleaseLocal(_)), "{step:?}");
    let after = on("east", &scene).after(&step, &Written::default(), &scene.policy);
    assert!(after.remote_object().is_some_and(|remote| remote.has_finalizer(FINALIZER)));
    assert_eq!(next::detach(&after, &scene.policy, false), Next::Rest(Rest::Gone));
}

#[test]
fn what_another_selector_selects_keeps_the_finalizer_of_whom_it_is_for() {
    for is_terminating in [false, true] {
        let mut scene = held_by("west");
        if is_terminating {
            terminating(&mut scene.remote);
        }
        let unselected = |cluster| {
            let mut observed = on(cluster, &scene);
            let Remote::Present(remote) = observed.remote else { panic!("a remote object") };
            observed.remote = Remote::Absent(Absence::LeftSelector(remote));
            observed.local = None;
            observed
        };
        assert_eq!(next::next(&unselected("east"), &scene.policy), Next::Rest(Rest::Gone));
        assert_eq!(next::detach(&unselected("east"), &scene.policy, false), Next::Rest(Rest::Gone));
        assert_eq!(next::next(&unselected("west"), &scene.policy), Next::Do(Step::RemoveFinalizer));
    }
}

#[test]
fn a_note_counts_for_the_object_and_the_finalizer_that_it_names() {
    // A copied note, another section's note, and any other text.
    for text in [format!("west/copied-from/{FINALIZER}"), "west/remote-uid/cloud.teleport.dev/x".into(), "west".into()]
    {
        let mut scene = Scene::in_step("");
        scene.remote["metadata"]["annotations"][HOLDER] = json!(text);
        assert_eq!(next::next(&on("east", &scene), &scene.policy), Next::Rest(Rest::InStep), "{text}");
        terminating(&mut scene.remote);
        assert_eq!(next::next(&on("east", &scene), &scene.policy), Next::Do(Step::DeleteLocal), "{text}");
    }
}

#[test]
fn who_takes_a_place_over_says_so_and_an_earlier_release_is_no_reason_to_write() {
    let scene = Scene::in_step("");
    assert_eq!(next::next(&on("east", &scene), &scene.policy), Next::Rest(Rest::InStep));
    let scene = held_by("west");
    let mut observed = on("east", &scene);
    observed.clusters.local.in_place_of = vec!["west".into()];
    let Next::Do(step @ Step::NoteGenerations { .. }) = next::next(&observed, &scene.policy) else { panic!("a note") };
    let after = observed.after(&step, &Written::default(), &scene.policy);
    assert_eq!(noted(&after), Some(&*note_of("east")));
    assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::InStep));
}

/// The scene as a section with this remote cluster sees it.
pub(super) fn below(cluster: &str, scene: &Scene) -> Observed {
    Observed { clusters: Clusters { remote: known(cluster), ..Clusters::default() }, ..scene.observed() }
}

/// A pair whose local object came from a remote cluster.
fn from(cluster: &str, keys: &str) -> Scene {
    let mut scene = Scene::in_step(keys);
    scene.local["metadata"]["annotations"][SOURCE] = json!(format!("{cluster}/remote-uid"));
    scene.local["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:annotations"][format!("f:{SOURCE}")] =
        json!({});
    scene
}

fn source(observed: &Observed) -> Option<&str> {
    observed.local.as_ref().and_then(|local| local.annotation(SOURCE))
}

#[test]
fn local_objects_and_namespaces_say_which_remote_cluster_they_are_from() {
    let mut scene = Scene::in_step("");
    (scene.local, scene.namespace) = (Value::Null, Value::Null);
    let mut observed = below("north", &scene);
    for expected in ["create_namespace", "create_local"] {
        let Next::Do(step) = next::next(&observed, &scene.policy) else { panic!("{expected}") };
        assert_eq!(step.name(), expected);
        observed = observed.after(&step, &Written::default(), &scene.policy);
    }
    assert_eq!(source(&observed), Some("north/remote-uid"));
    let Namespace::Present { object, .. } = &observed.namespace else { panic!("a namespace") };
    assert_eq!(object.annotation(SOURCE), Some("north"));
    // Objects without the mark get it in one write. An unknown identity is neither noted nor removed.
    let scene = Scene::in_step("");
    let Next::Do(step @ Step::PatchLocal(_)) = next::next(&below("north", &scene), &scene.policy) else {
        panic!("a mark")
    };
    let after = below("north", &scene).after(&step, &Written::default(), &scene.policy);
    assert_eq!(source(&after), Some("north/remote-uid"));
    assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::InStep));
    let known = from("north", "");
    assert_eq!(next::next(&below("north", &known), &known.policy), Next::Rest(Rest::InStep));
    let mirrored = Scene::mirrored("");
    assert_eq!(next::next(&below("north", &mirrored), &mirrored.policy), Next::Rest(Rest::InStep), "no room for marks");
}

#[test]
fn what_came_from_another_remote_cluster_is_left_alone() {
    let is_left_alone = |scene: &Scene| {
        assert_eq!(next::next(&below("north", scene), &scene.policy), Next::Rest(Rest::OtherCluster));
        let detached = next::detach(&below("north", scene), &scene.policy, false);
        let takes_nothing_off = matches!(detached, Next::Rest(Rest::Gone) | Next::Do(Step::RemoveFinalizer));
        // The namespace of this scene is ours.
        assert!(takes_nothing_off || detached == Next::Do(Step::ReleaseNamespace), "{detached:?}");
    };
    for keys in ["", "unclaimed = \"delete\"", "adopt = \"equal\"", "write_back = false"] {
        for absence in [Absence::Confirmed, Absence::SeenTerminating, Absence::Unexplained] {
            let mut missing = from("south", keys).owned_namespace();
            (missing.remote, missing.absence) = (Value::Null, absence);
            is_left_alone(&missing);
        }
        // The same key with another spec.
        let mut both = from("south", keys);
        both.remote["spec"]["size"] = json!(7);
        is_left_alone(&both);
        both.remote["metadata"]["annotations"] = json!({"note": "hello"});
        is_left_alone(&both);
    }
    // A remote object that is terminating does not wait for the local object.
    let ends = |scene: &Scene, observed: Observed| {
        assert_eq!(next::next(&observed, &scene.policy), Next::Do(Step::RemoveFinalizer));
        let after = observed.after(&Step::RemoveFinalizer, &Written::default(), &scene.policy);
        assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::OtherCluster));
    };
    for keys in ["", "write_back = false"] {
        let mut ending = from("south", keys);
        terminating(&mut ending.remote);
        ends(&ending, below("north", &ending));
        let unselected = from("south", keys);
        let mut observed = below("north", &unselected);
        let Remote::Present(remote) = observed.remote else { panic!("a remote object") };
        observed.remote = Remote::Absent(Absence::LeftSelector(remote));
        ends(&unselected, observed);
    }
}

#[test]
fn a_source_counts_only_with_the_marks_that_prove_it() {
    let missing = |mut scene: Scene| {
        (scene.remote, scene.absence) = (Value::Null, Absence::Confirmed);
        scene
    };
    // First the cluster is the same, then an operator approves that it replaces the other one.
    let orphan = missing(from("south", ""));
    assert_eq!(next::next(&below("south", &orphan), &orphan.policy), Next::Do(Step::DeleteLocal));
    let mut observed = below("north", &orphan);
    observed.clusters.remote.in_place_of = vec!["south".into()];
    assert_eq!(next::next(&observed, &orphan.policy), Next::Do(Step::DeleteLocal));
    // Its identity is unknown.
    assert_eq!(orphan.next(), Next::Rest(Rest::OtherCluster));
    observed.clusters.remote.uid = None;
    assert_eq!(next::next(&observed, &orphan.policy), Next::Do(Step::DeleteLocal));
    // The mark was copied from a local object that is the remote object of another section.
    let mut chain = missing(from("south", ""));
    chain.local["metadata"]["annotations"][SOURCE] = json!("south/its-remote-uid");
    assert_eq!(next::next(&below("north", &chain), &chain.policy), Next::Do(Step::DeleteLocal));
    let mut mirrored = missing(from("south", "metadata = \"mirror\""));
    assert_eq!(next::next(&below("north", &mirrored), &mirrored.policy), Next::Do(Step::DeleteLocal));
    mirrored.remote = from("south", "").remote;
    mirrored.remote["metadata"]["annotations"][SOURCE] = json!("south/x");
    let (_, taken) = patch::desired_metadata(
        &object(&mirrored.remote),
        &ObjectKey::new("team", "orders"),
        &mirrored.policy,
        &Clusters::default(),
    );
    assert!(!taken.contains_key(SOURCE), "{taken:?}");
    // Another manager has written the mark.
    let mut edited = missing(from("south", ""));
    edited.local["metadata"]["managedFields"] = Scene::in_step("").local["metadata"]["managedFields"].clone();
    assert_eq!(next::next(&below("north", &edited), &edited.policy), Next::Do(Step::DeleteLocal));
    // The marks of a copy mean nothing.
    let mut copy = missing(from("south", ""));
    copy.local["metadata"]["annotations"][super::LOCAL_NAME] = json!("team/another");
    assert!(matches!(next::next(&below("north", &copy), &copy.policy), Next::Rest(Rest::Unclaimed(_))));
    // A client has applied the mark to an object that never was ours.
    let mut existing = Scene::in_step("").foreign_local();
    existing.local["metadata"]["annotations"] = json!({SOURCE: "south"});
    assert!(!matches!(next::next(&below("north", &existing), &existing.policy), Next::Rest(Rest::OtherCluster)));
}

#[test]
fn who_takes_the_place_of_a_remote_cluster_says_so() {
    let mut scene = from("south", "").owned_namespace();
    scene.namespace["metadata"]["annotations"] = json!({
        OWNER: "orders", "cloud.teleport.dev/sync-owner-resource": "databases.demo.towline.dev",
        "cloud.teleport.dev/sync-owner-section": "databases", super::LOCAL_NAME: "team", SOURCE: "south",
    });
    scene.namespace["metadata"]["managedFields"] = json!([{"manager": super::MANAGER, "operation": "Update",
    "fieldsV1": {"f:metadata": {"f:annotations": {
        format!("f:{}", super::LOCAL_NAME): {}, format!("f:{SOURCE}"): {},
    }}}}]);
    let mut observed = below("north", &scene);
    observed.clusters.remote.in_place_of = vec!["south".into()];
    for expected in ["patch_local", "renew_marks"] {
        let Next::Do(step) = next::next(&observed, &scene.policy) else { panic!("{expected}") };
        assert_eq!(step.name(), expected);
        observed = observed.after(&step, &Written::default(), &scene.policy);
    }
    assert_eq!(next::next(&observed, &scene.policy), Next::Rest(Rest::InStep));
    assert_eq!(source(&observed), Some("north/remote-uid"));
    let Namespace::Present { object, .. } = &observed.namespace else { panic!("a namespace") };
    assert_eq!(object.annotation(SOURCE), Some("north"));
}
