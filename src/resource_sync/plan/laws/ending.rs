//! Letting go and detaching; the remote object is paused, terminating or gone.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ADOPTED, FINALIZER, LOCAL_NAME, OWNER, PAUSED, REMOTE_UID, Scene, object, terminating};
use crate::guard::GuardedChange;
use crate::resource_sync::plan::ending;
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::observed::{Absence, Observed, Remote};
use crate::resource_sync::plan::ownership;
use crate::resource_sync::plan::ownership::Unproven;
use crate::resource_sync::plan::step::{Next, Rest, Step};

const BOTH_FOUND_GONE: [Absence; 2] = [Absence::SeenTerminating, Absence::Confirmed];

#[test]
fn a_pause_on_either_side_stops_everything() {
    for side in ["remote", "local"] {
        for going in [false, true] {
            let mut scene = if going { Scene::remote_terminating("") } else { Scene::in_step("") };
            scene.remote["spec"]["size"] = json!(9);
            scene.local["status"]["ready"] = json!(false);
            let paused = if side == "remote" { &mut scene.remote } else { &mut scene.local };
            paused["metadata"]["annotations"][PAUSED] = json!("true");
            assert_eq!(scene.next(), Next::Rest(Rest::Paused), "{side}, going: {going}");
        }
    }
}

#[test]
fn only_the_word_true_pauses() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["annotations"][PAUSED] = json!("false");
    assert_eq!(scene.next(), Next::Rest(Rest::InStep));
}

#[test]
fn a_paused_local_object_outlives_its_remote_one() {
    for absence in [Absence::Unexplained, Absence::SeenTerminating, Absence::Confirmed] {
        let mut scene = Scene::remote_absent("", absence).owned_namespace();
        scene.local["metadata"]["annotations"][PAUSED] = json!("true");
        assert_eq!(scene.next(), Next::Rest(Rest::Paused));
    }
}

#[test]
fn a_local_object_of_ours_goes_with_its_remote_one() {
    assert_eq!(Scene::remote_terminating("").next(), Next::Do(Step::DeleteLocal));
    for absence in BOTH_FOUND_GONE {
        assert_eq!(Scene::remote_absent("", absence).next(), Next::Do(Step::DeleteLocal));
    }
}

#[test]
fn our_finalizer_on_the_terminating_remote_proves_that_the_local_object_is_ours() {
    let mut scene = Scene::remote_terminating("").foreign_local();
    assert_eq!(scene.next(), Next::Do(Step::DeleteLocal));
    scene.remote["metadata"]["finalizers"] = json!(["other/first"]);
    assert_eq!(scene.next(), Next::Rest(Rest::Unclaimed(Unproven::Unmarked)));
}

#[test]
fn managed_fields_prove_it_only_where_there_is_no_room_for_a_mark() {
    let mut scene = Scene::mirrored("");
    scene.remote = Value::Null;
    scene.absence = Absence::Confirmed;
    assert_eq!(scene.next(), Next::Do(Step::DeleteLocal));
    assert_eq!(scene.foreign_local().next(), Next::Rest(Rest::Unclaimed(Unproven::Unmarked)));

    let mut released = Scene::remote_absent("", Absence::Confirmed);
    released.local["metadata"]["annotations"] = json!({"note": "hello"});
    assert_eq!(released.next(), Next::Rest(Rest::Unclaimed(Unproven::Unmarked)), "let go earlier");
}

#[test]
fn an_unclaimed_local_object_is_kept_or_deleted_as_configured() {
    for absence in BOTH_FOUND_GONE {
        let kept = Scene::remote_absent("unclaimed = \"keep\"", absence.clone()).foreign_local();
        assert_eq!(kept.next(), Next::Rest(Rest::Unclaimed(Unproven::Unmarked)));
        let deleted = Scene::remote_absent("unclaimed = \"delete\"", absence).foreign_local();
        assert_eq!(deleted.next(), Next::Do(Step::DeleteLocal));
    }
    let unexplained = Scene::remote_absent("unclaimed = \"delete\"", Absence::Unexplained).foreign_local();
    assert_eq!(unexplained.next(), Next::ConfirmAbsence);
    let kept = Scene::remote_absent("", Absence::Unexplained).foreign_local();
    assert_eq!(kept.next(), Next::Rest(Rest::Unclaimed(Unproven::Unmarked)), "what is kept anyway is not asked for");
}

#[test]
fn an_owned_namespace_goes_instead_of_the_object() {
    assert_eq!(Scene::remote_terminating("").owned_namespace().next(), Next::Do(Step::DeleteNamespace));
    let mut empty = Scene::remote_terminating("").owned_namespace();
    empty.local = Value::Null;
    assert_eq!(empty.next(), Next::Do(Step::DeleteNamespace), "the namespace is ours even without an object");
}

#[test]
fn while_others_live_in_an_owned_namespace_only_the_object_goes() {
    let mut scene = Scene::remote_terminating("").owned_namespace();
    scene.namespace_in_use = true;
    assert_eq!(scene.next(), Next::Do(Step::DeleteLocal));
    let by_namespace = Scene { remote: Value::Null, absence: Absence::Confirmed, ..scene.clone() }.foreign_local();
    assert_eq!(by_namespace.next(), Next::Do(Step::DeleteLocal), "the namespace's owner mark proves that it is ours");
    scene.local = Value::Null;
    assert_eq!(scene.next(), Next::Do(Step::RemoveFinalizer));
}

#[test]
fn a_namespace_of_others_is_never_deleted() {
    let mut scene = Scene::remote_terminating("");
    scene.local = Value::Null;
    assert_eq!(scene.next(), Next::Do(Step::RemoveFinalizer));
}

#[test]
fn a_pair_without_objects_does_not_wait_for_its_namespace_to_go() {
    for absence in [Absence::Unexplained, Absence::SeenTerminating, Absence::Confirmed] {
        let mut scene = Scene::remote_absent("", absence).owned_namespace();
        terminating(&mut scene.namespace);
        assert_eq!(scene.next(), Next::Rest(Rest::NamespaceTerminating), "the local object is still there");
        scene.local = Value::Null;
        assert_eq!(scene.next(), Next::Rest(Rest::Gone));
    }
}

#[test]
fn only_one_pair_waits_for_the_end_of_a_namespace_that_this_section_deleted() {
    let mut scene = Scene::remote_terminating("").owned_namespace();
    terminating(&mut scene.namespace);
    assert_eq!(scene.next(), Next::Rest(Rest::NamespaceTerminating), "nobody else is known to wait");
    scene.namespace_end_is_awaited = true;
    assert_eq!(scene.next(), Next::Do(Step::DeleteLocal));
    let existing = scene.clone();
    terminating(&mut scene.local);
    assert_eq!(scene.next(), Next::Rest(Rest::LocalTerminating), "the finalizer stays while the local object does");
    scene.local = Value::Null;
    assert_eq!(scene.next(), Next::Do(Step::RemoveFinalizer));
    let missing = Scene { remote: Value::Null, absence: Absence::Unexplained, ..existing };
    assert_eq!(missing.next(), Next::Rest(Rest::NamespaceTerminating), "what is missing has no finalizer to take off");
}

#[test]
fn what_is_going_already_is_waited_for() {
    let mut scene = Scene::remote_terminating("");
    terminating(&mut scene.local);
    assert_eq!(scene.next(), Next::Rest(Rest::LocalTerminating));
    let mut scene = Scene::remote_terminating("").owned_namespace();
    terminating(&mut scene.namespace);
    assert_eq!(scene.next(), Next::Rest(Rest::NamespaceTerminating));
    scene.local = Value::Null;
    assert_eq!(
        scene.next(),
        Next::Rest(Rest::NamespaceTerminating),
        "the finalizer is held while the namespace exists"
    );
}

#[test]
fn our_finalizer_goes_last_and_no_other() {
    let mut scene = Scene::remote_terminating("");
    scene.local = Value::Null;
    assert_eq!(scene.next(), Next::Do(Step::RemoveFinalizer));
    let after = scene.observed().after(&Step::RemoveFinalizer, &crate::cluster::Written::default(), &scene.policy);
    let left = &after.remote_object().expect("the remote object").finalizers;
    assert_eq!(left.iter().map(|held| &**held).collect::<Vec<_>>(), ["other/first"]);
    assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::Gone));
}

#[test]
fn an_unexplained_absence_is_confirmed_before_anything_goes() {
    assert_eq!(Scene::remote_absent("", Absence::Unexplained).next(), Next::ConfirmAbsence);
    let mut scene = Scene::remote_absent("", Absence::Unexplained).owned_namespace();
    assert_eq!(scene.next(), Next::ConfirmAbsence);
    scene.local = Value::Null;
    assert_eq!(scene.next(), Next::ConfirmAbsence);
    scene.namespace_is_of_another = true;
    assert_eq!(scene.next(), Next::Rest(Rest::Gone), "the other pair asks for the end of the namespace");
}

#[test]
fn the_guard_knows_every_deletion_before_the_plan_asks_for_it() {
    let mut asked = 0;
    for keys in ["", "unclaimed = \"delete\"", "delete_adopted = true", "metadata = \"mirror\""] {
        for owned in [false, true] {
            let absent = || {
                let scene = Scene::remote_absent(keys, Absence::Unexplained);
                if owned { scene.owned_namespace() } else { scene }
            };
            let mut scenes = [absent(), absent().foreign_local(), absent(), absent(), absent(), absent(), absent()];
            scenes[2].local["metadata"]["annotations"][ADOPTED] = json!("true");
            scenes[3].local["metadata"]["annotations"][LOCAL_NAME] = json!("team/another");
            scenes[4].local["metadata"]["annotations"][PAUSED] = json!("true");
            terminating(&mut scenes[5].local);
            scenes[6].local = Value::Null;
            for (number, scene) in scenes.iter().enumerate() {
                let is_asked = scene.next() == Next::ConfirmAbsence;
                let is_pending = ending::would_go(scene.observed().local.as_deref(), owned, &scene.policy);
                // A terminating object may leave a namespace of ours, which is deleted when another object ends.
                if !(owned && number == 5) {
                    assert_eq!(is_asked, is_pending, "{keys}, owned: {owned}, scene {number}");
                }
                asked += usize::from(is_asked);
            }
        }
    }
    assert!(asked > 10, "only {asked}");
}

#[test]
fn nothing_on_either_side_is_nothing_to_do() {
    for absence in [Absence::Unexplained, Absence::SeenTerminating, Absence::Confirmed] {
        let mut scene = Scene::remote_absent("unclaimed = \"delete\"", absence);
        scene.local = Value::Null;
        assert_eq!(scene.next(), Next::Rest(Rest::Gone));
    }
}

/// A pair whose remote object exists and has left the selector.
fn unselected(keys: &str) -> Scene {
    let mut scene = Scene::in_step(keys);
    scene.absence = Absence::LeftSelector(Arc::new(object(&scene.remote)));
    scene.remote = Value::Null;
    scene.permitted = Some(GuardedChange::LetGo);
    scene
}

/// The steps of a pair until it rests.
fn steps(scene: &Scene, decide: impl Fn(&Observed) -> Next) -> (Vec<&'static str>, Observed) {
    let (mut observed, mut steps) = (scene.observed(), Vec::new());
    while let Next::Do(step) = decide(&observed) {
        steps.push(step.name());
        observed = observed.after(&step, &crate::cluster::Written::default(), &scene.policy);
        assert!(steps.len() < 10, "{steps:?}");
    }
    assert_eq!(decide(&observed), Next::Rest(Rest::Gone));
    (steps, observed)
}

#[test]
fn leaving_the_selector_lets_the_pair_go_and_keeps_the_local_object() {
    let scene = unselected("");
    let (steps, after) = steps(&scene, |observed| next::next(observed, &scene.policy));
    assert_eq!(steps, ["remove_finalizer", "release_local"]);
    let local = after.local.as_ref().expect("the local object is kept");
    assert!(!local.deleting && local.annotation(REMOTE_UID).is_none());
    assert_eq!(local.annotation("note"), Some("hello"), "only the mark goes");
}

#[test]
fn what_was_let_go_is_never_taken_for_what_never_was_ours() {
    for keys in ["metadata = \"merge\"", "metadata = \"mirror\""] {
        let scene = unselected(&format!("unclaimed = \"delete\"\n{keys}"));
        let scene = if keys.contains("mirror") {
            let mirrored = Scene::mirrored("unclaimed = \"delete\"");
            Scene { local: mirrored.local, policy: mirrored.policy, ..scene }
        } else {
            scene
        };
        let (_, after) = steps(&scene, |observed| next::next(observed, &scene.policy));
        let later = Observed { remote: Remote::Absent(Absence::Confirmed), ..after.clone() };
        assert_eq!(next::next(&later, &scene.policy), Next::Rest(Rest::Unclaimed(Unproven::Unmarked)), "{keys}");
        // When it is selected again, it is ours again.
        let again = Scene::in_step("").observed().remote;
        let (mut observed, mut patched) = (Observed { remote: again, ..after }, false);
        while let Next::Do(step) = next::next(&observed, &scene.policy) {
            patched |= matches!(step, Step::PatchLocal(_));
            observed = observed.after(&step, &crate::cluster::Written::default(), &scene.policy);
        }
        let local = observed.local.clone().expect("the local object");
        assert!(patched && ownership::is_ours(&local, &scene.policy), "{keys}");
        let (_, detached) = steps(&scene, |observed| next::detach(observed, &scene.policy, false));
        let local = detached.local.expect("the local object");
        assert!(!local.annotations.keys().any(|key| scene.policy.marks.is_mark(key)), "{keys}: {local:?}");
    }
}

#[test]
fn without_a_kept_object_the_namespace_is_left_to_those_who_live_in_it() {
    let mut scene = unselected("").owned_namespace();
    scene.local = Value::Null;
    let decide = |scene: &Scene| steps(scene, |observed| next::next(observed, &scene.policy)).0;
    assert_eq!(decide(&scene), ["remove_finalizer", "release_namespace"]);
    scene.namespace_in_use = true;
    assert_eq!(decide(&scene), ["remove_finalizer"]);
}

#[test]
fn detaching_takes_off_every_mark_and_deletes_nothing() {
    for going in [false, true] {
        let scene = if going { Scene::remote_terminating("") } else { Scene::in_step("") }.owned_namespace();
        let (steps, after) = steps(&scene, |observed| next::detach(observed, &scene.policy, false));
        assert_eq!(steps, ["remove_finalizer", "release_local", "release_namespace"]);
        assert!(!after.remote_object().expect("the remote object").has_finalizer(FINALIZER));
        assert!(after.local.expect("the local object").annotation(REMOTE_UID).is_none());
    }
}

#[test]
fn detaching_from_a_lost_local_cluster_touches_the_remote_alone() {
    let scene = Scene::in_step("").owned_namespace();
    let (steps, _) = steps(&scene, |observed| next::detach(observed, &scene.policy, true));
    assert_eq!(steps, ["remove_finalizer"]);
}

#[test]
fn a_namespace_without_an_owner_mark_needs_no_release() {
    let mut scene = Scene::in_step("").owned_namespace();
    scene.namespace["metadata"]["annotations"].as_object_mut().expect("a map").remove(OWNER);
    let (steps, _) = steps(&scene, |observed| next::detach(observed, &scene.policy, false));
    assert_eq!(steps, ["remove_finalizer", "release_local"]);
}

#[test]
fn what_is_going_already_is_not_asked_for_again() {
    let mut scene = Scene::remote_absent("", Absence::Unexplained);
    terminating(&mut scene.local);
    assert_eq!(scene.next(), Next::Rest(Rest::LocalTerminating));
    let mut scene = Scene::remote_absent("", Absence::Unexplained).owned_namespace();
    terminating(&mut scene.namespace);
    assert_eq!(scene.next(), Next::Rest(Rest::NamespaceTerminating));
}

#[test]
fn a_kept_object_keeps_its_namespace() {
    let scene = unselected("").owned_namespace();
    let (done, after) = steps(&scene, |observed| next::next(observed, &scene.policy));
    assert_eq!(done, ["remove_finalizer", "release_namespace", "release_local"]);
    // The remote object is deleted later. Neither the local object nor its namespace may be deleted then.
    let later = Observed { remote: Remote::Absent(Absence::Confirmed), ..after };
    assert_eq!(next::next(&later, &scene.policy), Next::Rest(Rest::Unclaimed(Unproven::Unmarked)));
}
