//! Two local clusters that follow the same remote objects by one finalizer: the first one holds them.

use super::{FINALIZER, Scene, terminating};
use crate::cluster::Written;
use crate::resource_sync::plan::{self, Next, Observed, Rest, Step};

const HOLDER: &str = "cloud.teleport.dev/sync-local-cluster";

fn noted(observed: &Observed) -> Option<&str> {
    observed.remote_object().and_then(|remote| remote.annotation(HOLDER))
}

fn on(cluster: &str, scene: &Scene) -> Observed {
    Observed { local_cluster: Some(cluster.into()), ..scene.observed() }
}

#[test]
fn the_finalizer_says_for_which_local_cluster_it_is_and_goes_with_that() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["finalizers"] = serde_json::json!(["other/first"]);
    let after = on("east", &scene).after(&Step::AddFinalizer, &Written::default(), &scene.policy);
    assert_eq!(noted(&after), Some("east"));
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
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["annotations"][HOLDER] = serde_json::json!("west");
    scene.remote["spec"]["size"] = serde_json::json!(7);
    let elsewhere = |scene: &Scene| Observed { other_cluster: Some("west".into()), ..on("east", scene) };
    assert_eq!(plan::next(&elsewhere(&scene), &scene.policy), Next::Rest(Rest::OtherCluster));
    terminating(&mut scene.remote);
    assert_eq!(plan::next(&elsewhere(&scene), &scene.policy), Next::Rest(Rest::OtherCluster));
    // Detaching takes our marks off here, and nothing off there.
    let Next::Do(step) = plan::detach(&elsewhere(&scene), &scene.policy, false) else { panic!("marks to take off") };
    assert!(matches!(step, Step::ReleaseLocal(_)), "{step:?}");
    let after = elsewhere(&scene).after(&step, &Written::default(), &scene.policy);
    assert!(after.remote_object().is_some_and(|remote| remote.has_finalizer(FINALIZER)));
    assert_eq!(plan::detach(&after, &scene.policy, false), Next::Rest(Rest::Gone));
}

#[test]
fn who_takes_a_place_over_says_so_and_an_earlier_release_is_no_reason_to_write() {
    let mut scene = Scene::in_step("");
    assert_eq!(plan::next(&on("east", &scene), &scene.policy), Next::Rest(Rest::InStep));
    scene.remote["metadata"]["annotations"][HOLDER] = serde_json::json!("west");
    let observed = on("east", &scene);
    let Next::Do(step @ Step::NoteGenerations { .. }) = plan::next(&observed, &scene.policy) else { panic!("a note") };
    let after = observed.after(&step, &Written::default(), &scene.policy);
    assert_eq!(noted(&after), Some("east"));
    assert_eq!(plan::next(&after, &scene.policy), Next::Rest(Rest::InStep));
}
