//! A rejection by the local cluster is noted on the remote object, and only as long as it lasts.

use std::sync::Arc;

use serde_json::json;

use super::{LOCAL_GENERATION, SYNC_ERROR, Scene};
use crate::cluster::Written;
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::observed::Absence;
use crate::resource_sync::plan::patch;
use crate::resource_sync::plan::patch::LocalChange;
use crate::resource_sync::plan::step::Contended;
use crate::resource_sync::plan::step::{Next, Rest, Step};

/// A change that the local cluster has rejected.
fn order() -> Step {
    Step::PatchLocal(LocalChange::default())
}

fn error(text: &str) -> Step {
    Step::NoteError(Some(text.into()))
}

#[test]
fn a_rejection_is_noted_once_and_again_for_another_reason() {
    let scene = Scene::in_step("");
    let observed = scene.observed();
    let note = next::rejected(&observed, &scene.policy, &order(), "spec.size: too large");
    assert_eq!(note, Some(error("patch_local: spec.size: too large")));
    let after = observed.after(&note.expect("a note"), &Written::default(), &scene.policy);
    assert_eq!(next::rejected(&after, &scene.policy, &order(), "spec.size: too large"), None);
    assert_eq!(
        next::rejected(&after, &scene.policy, &Step::CreateLocal, "spec.size: too large"),
        Some(error("create_local: spec.size: too large"))
    );
}

#[test]
fn what_is_no_order_what_has_no_remote_and_what_writes_nothing_back_is_not_noted() {
    let noted = |scene: &Scene, step: &Step| next::rejected(&scene.observed(), &scene.policy, step, "no").is_some();
    let scene = Scene::in_step("");
    for step in [Step::CreateNamespace, Step::CreateLocal, Step::DeleteLocal, Step::DeleteNamespace] {
        assert!(noted(&scene, &step), "{step:?}");
    }
    for step in [Step::AddFinalizer, Step::WriteRemoteStatus, Step::UploadSecret("s".into()), Step::ReleaseNamespace] {
        assert!(!noted(&scene, &step), "{step:?}");
    }
    assert!(!noted(&Scene::in_step("write_back = false"), &order()));
    assert!(!noted(&Scene::remote_absent("", Absence::Confirmed), &Step::DeleteLocal));
    let remote = scene.observed().remote_object().cloned().expect("a remote object");
    let left = Scene::remote_absent("", Absence::LeftSelector(remote));
    assert!(!noted(&left, &Step::DeleteLocal), "what is not selected is none of the section's");
}

#[test]
fn a_long_reason_is_cut() {
    let scene = Scene::in_step("");
    let note = next::rejected(&scene.observed(), &scene.policy, &order(), &"é".repeat(5000));
    let Some(Step::NoteError(Some(text))) = note else { panic!("{note:?}") };
    assert_eq!(text.chars().count(), 1024);
}

#[test]
fn what_is_mended_takes_the_note_off_with_the_generations_or_by_itself() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["annotations"][SYNC_ERROR] = json!("patch_local: no");
    assert_eq!(scene.next(), Next::Do(Step::NoteError(None)));
    let after = scene.observed().after(&Step::NoteError(None), &Written::default(), &scene.policy);
    assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::InStep));
    // The note is removed in the write that notes the generations.
    scene.remote["metadata"]["annotations"][LOCAL_GENERATION] = json!("4");
    let note = Step::NoteGenerations { remote: 3, local: 5 };
    assert_eq!(scene.next(), Next::Do(note.clone()));
    let after = scene.observed().after(&note, &Written::default(), &scene.policy);
    assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::InStep));
    // Without write-back nothing is removed.
    let scene = Scene { policy: super::policy("write_back = false"), ..scene };
    assert_eq!(scene.next(), Next::Rest(Rest::InStep));
}

#[test]
fn the_note_stays_where_it_is() {
    for mut scene in [Scene::in_step(""), Scene::mirrored("")] {
        scene.remote["metadata"]["annotations"][SYNC_ERROR] = json!("patch_local: no");
        let observed = scene.observed();
        let remote = observed.remote_object().expect("a remote object");
        let (_, annotations) = patch::desired_metadata(remote, &observed.pair.local, &scene.policy, &observed.clusters);
        assert!(!annotations.contains_key(&Arc::from(SYNC_ERROR)), "{annotations:?}");
        assert_eq!(scene.next(), Next::Do(Step::NoteError(None)), "the local object is as it should be");
    }
}

#[test]
fn a_pair_that_is_paused_or_fought_over_keeps_its_note() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["annotations"][SYNC_ERROR] = json!("patch_local: no");
    let mut observed = scene.observed();
    observed.contended.push(Contended::SyncError);
    assert_eq!(next::next(&observed, &scene.policy), Next::Rest(Rest::InStep));
    // The content is contended, so the pair is not in step.
    observed.contended = vec![Contended::Content];
    assert_eq!(next::next(&observed, &scene.policy), Next::Rest(Rest::InStep));
    scene.remote["metadata"]["annotations"][super::PAUSED] = json!("true");
    assert_eq!(scene.next(), Next::Rest(Rest::Paused));
}

#[test]
fn whoever_lets_go_of_the_remote_object_takes_the_note_along() {
    for (keys, rest) in [("", None), ("write_back = false", Some("patch_local: no"))] {
        let mut scene = Scene::in_step(keys);
        scene.remote["metadata"]["annotations"][SYNC_ERROR] = json!("patch_local: no");
        // Detaching removes it in the same write as the finalizer.
        assert_eq!(next::detach(&scene.observed(), &scene.policy, true), Next::Do(Step::RemoveFinalizer));
        let after = scene.observed().after(&Step::RemoveFinalizer, &Written::default(), &scene.policy);
        let remote = after.remote_object().expect("a remote object");
        assert_eq!(remote.annotation(SYNC_ERROR), rest, "{keys}");
        assert_eq!(next::detach(&after, &scene.policy, true), Next::Rest(Rest::Gone), "{keys}");
        // Without the finalizer it takes a write of its own.
        scene.remote["metadata"]["finalizers"] = json!([]);
        let expected = if rest.is_none() { Next::Do(Step::NoteError(None)) } else { Next::Rest(Rest::Gone) };
        assert_eq!(next::detach(&scene.observed(), &scene.policy, true), expected, "{keys}");
    }
}

#[test]
fn a_section_to_which_the_object_is_the_local_one_leaves_the_note_of_the_next_section() {
    for mut scene in [Scene::in_step(""), Scene::mirrored("")] {
        scene.local["metadata"]["annotations"]["example.org/sync-error"] = json!("create_local: no");
        scene.local["metadata"]["annotations"][SYNC_ERROR] = json!("create_local: no");
        assert_eq!(scene.next(), Next::Rest(Rest::InStep));
    }
}
