//! Two local clusters that follow the same remote objects by one finalizer: the first one holds them.

use serde_json::json;

use super::{FINALIZER, Scene, terminating};
use crate::cluster::Written;
use crate::resource_sync::holder::LocalCluster;
use crate::resource_sync::plan::{self, Absence, Next, Observed, Remote, Rest, Step};

const HOLDER: &str = "cloud.teleport.dev/sync-local-cluster";

/// The note of a cluster that holds the scene's remote object.
fn note(cluster: &str) -> String {
    format!("{cluster}/remote-uid/{FINALIZER}")
}

fn noted(observed: &Observed) -> Option<&str> {
    observed.remote_object().and_then(|remote| remote.annotation(HOLDER))
}

fn on(cluster: &str, scene: &Scene) -> Observed {
    let local_cluster = LocalCluster { uid: Some(cluster.into()), in_place_of: Vec::new() };
    Observed { local_cluster, ..scene.observed() }
}

/// A pair whose remote object a cluster holds.
fn held_by(cluster: &str) -> Scene {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["annotations"][HOLDER] = json!(note(cluster));
    scene
}

#[test]
fn the_finalizer_says_for_which_local_cluster_it_is_and_goes_with_that() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["finalizers"] = json!(["other/first"]);
    let after = on("east", &scene).after(&Step::AddFinalizer, &Written::default(), &scene.policy);
    assert_eq!(noted(&after), Some(&*note("east")));
    assert_eq!(plan::next(&after, &scene.policy), Next::Rest(Rest::InStep), "no write of its own");
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
    assert_eq!(plan::next(&on("east", &scene), &scene.policy), Next::Rest(Rest::OtherCluster));
    terminating(&mut scene.remote);
    assert_eq!(plan::next(&on("east", &scene), &scene.policy), Next::Rest(Rest::OtherCluster));
    // Detaching takes our marks off here, and nothing off there.
    let Next::Do(step) = plan::detach(&on("east", &scene), &scene.policy, false) else { panic!("marks to take off") };
    assert!(matches!(step, Step::ReleaseLocal(_)), "{step:?}");
    let after = on("east", &scene).after(&step, &Written::default(), &scene.policy);
    assert!(after.remote_object().is_some_and(|remote| remote.has_finalizer(FINALIZER)));
    assert_eq!(plan::detach(&after, &scene.policy, false), Next::Rest(Rest::Gone));
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
        assert_eq!(plan::next(&unselected("east"), &scene.policy), Next::Rest(Rest::Gone));
        assert_eq!(plan::detach(&unselected("east"), &scene.policy, false), Next::Rest(Rest::Gone));
        assert_eq!(plan::next(&unselected("west"), &scene.policy), Next::Do(Step::RemoveFinalizer));
    }
}

#[test]
fn a_note_counts_for_the_object_and_the_finalizer_that_it_names() {
    // A copy; another section's; a text of somebody's.
    for text in [format!("west/copied-from/{FINALIZER}"), "west/remote-uid/cloud.teleport.dev/x".into(), "west".into()]
    {
        let mut scene = Scene::in_step("");
        scene.remote["metadata"]["annotations"][HOLDER] = json!(text);
        assert_eq!(plan::next(&on("east", &scene), &scene.policy), Next::Rest(Rest::InStep), "{text}");
        terminating(&mut scene.remote);
        assert_eq!(plan::next(&on("east", &scene), &scene.policy), Next::Do(Step::DeleteLocal), "{text}");
    }
}

#[test]
fn who_takes_a_place_over_says_so_and_an_earlier_release_is_no_reason_to_write() {
    let scene = Scene::in_step("");
    assert_eq!(plan::next(&on("east", &scene), &scene.policy), Next::Rest(Rest::InStep));
    let scene = held_by("west");
    let mut observed = on("east", &scene);
    observed.local_cluster.in_place_of = vec!["west".into()];
    let Next::Do(step @ Step::NoteGenerations { .. }) = plan::next(&observed, &scene.policy) else { panic!("a note") };
    let after = observed.after(&step, &Written::default(), &scene.policy);
    assert_eq!(noted(&after), Some(&*note("east")));
    assert_eq!(plan::next(&after, &scene.policy), Next::Rest(Rest::InStep));
}
