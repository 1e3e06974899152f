//! Ownership, objects that existed before, and a mapping that has changed.

use serde_json::{Value, json};

use super::{ADOPTED, FINALIZER, LOCAL_NAME, MANAGER, OWNER, REMOTE_UID, Scene, config, object};
use crate::cluster::{ObjectKey, Written};
use crate::guard::GuardedChange;
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::observed::Absence;
use crate::resource_sync::plan::ownership;
use crate::resource_sync::plan::ownership::Unproven;
use crate::resource_sync::plan::step::{Next, Rest, Step};
use crate::resource_sync::plan::waits::Waits;

/// A pair whose remote object is certainly gone.
fn orphan(keys: &str) -> Scene {
    Scene::remote_absent(keys, Absence::Confirmed)
}

/// A pair that was never in step: no finalizer, no generations on the remote, no marks on the local object.
fn existing(keys: &str) -> Scene {
    let mut scene = Scene::in_step(keys).foreign_local();
    scene.remote["metadata"]["finalizers"] = json!(["other/first"]);
    scene.remote["metadata"]["annotations"] = json!({"note": "hello"});
    scene
}

fn owns(value: &Value) -> Value {
    json!([{"manager": value, "operation": "Update", "fieldsV1": {"f:metadata": {"f:annotations": {
        format!("f:{REMOTE_UID}"): {}, format!("f:{LOCAL_NAME}"): {},
    }}}}])
}

#[test]
fn a_mark_proves_only_the_object_that_it_names_and_only_by_this_sections_manager() {
    assert_eq!(orphan("").next(), Next::Do(Step::DeleteLocal));
    let rest = |scene: &Scene| match scene.next() {
        Next::Rest(Rest::Unclaimed(unproven)) => unproven,
        other => panic!("{other:?}"),
    };
    for name in ["team/another", "another/orders", "orders", "team/orders/x"] {
        let mut copy = orphan("unclaimed = \"delete\"");
        copy.local["metadata"]["annotations"][LOCAL_NAME] = json!(name);
        assert_eq!(rest(&copy), Unproven::NamesAnother, "{name}");
    }
    // Written by kubectl, by another section, by another daemon, or by an unknown manager.
    for manager in ["kubectl-client-side-apply", "towline", "towline-other", "towline-databases.remote"] {
        let mut copy = orphan("");
        copy.local["metadata"]["managedFields"] = owns(&json!(manager));
        assert_eq!(rest(&copy), Unproven::WrittenByOthers, "{manager}");
    }
    let mut unnamed = orphan("");
    unnamed.local["metadata"]["annotations"] = json!({REMOTE_UID: "remote-uid"});
    assert_eq!(rest(&unnamed), Unproven::Unnamed);
}

#[test]
fn with_mirror_ours_is_what_this_sections_manager_wrote_to_the_object_itself() {
    let mut scene = Scene { remote: Value::Null, absence: Absence::Confirmed, ..Scene::mirrored("") };
    assert_eq!(scene.next(), Next::Do(Step::DeleteLocal));
    for (manager, subresource) in
        [("towline", ""), ("towline-leaf.remote", ""), ("towline-leaf", ""), (MANAGER, "status")]
    {
        scene.local["metadata"]["managedFields"] =
            json!([{"manager": manager, "operation": "Update", "subresource": subresource, "fieldsV1": {}}]);
        assert_eq!(scene.next(), Next::Rest(Rest::Unclaimed(Unproven::Unmarked)), "{manager} {subresource}");
    }
}

/// The manager's name stays when `annotation_domain` changes, and is all that proves with `mirror`.
#[test]
fn what_was_adopted_or_let_go_under_another_domain_is_kept() {
    for mirror in [false, true] {
        for (mark, is_going) in [("sync-adopted", false), ("sync-adopted", true), ("sync-released", false)] {
            let mut scene = if mirror { Scene::mirrored("") } else { Scene::in_step("") };
            scene.local["metadata"]["annotations"] = json!({format!("former.example/{mark}"): "true"});
            if is_going {
                super::terminating(&mut scene.remote);
            } else {
                (scene.remote, scene.absence) = (Value::Null, Absence::Confirmed);
            }
            let (mut observed, mut steps) = (scene.observed(), Vec::new());
            while let Next::Do(step) = next::next(&observed, &scene.policy) {
                steps.push(step.name());
                observed = observed.after(&step, &Written::default(), &scene.policy);
                assert!(steps.len() < 10, "{steps:?}");
            }
            let local = observed.local.as_ref().expect("it is kept");
            assert!(!local.deleting && !steps.contains(&"delete_local"), "{mark}, mirror: {mirror}: {steps:?}");
        }
    }
}

#[test]
fn a_namespace_of_copied_marks_is_kept_and_told() {
    let mut scene = orphan("");
    scene.local = Value::Null;
    scene.namespace["metadata"]["annotations"] = json!({
        OWNER: "orders", format!("{OWNER}-resource"): "databases.demo.towline.dev", format!("{OWNER}-section"): "databases",
        LOCAL_NAME: "another",
    });
    scene.namespace["metadata"]["managedFields"] = owns(&json!(MANAGER));
    assert_eq!(scene.next(), Next::Rest(Rest::Unclaimed(Unproven::NamesAnother)));
    let namespace = object(&scene.namespace);
    assert_eq!(ownership::namespace_proof(&namespace, &scene.policy), Err(Unproven::NamesAnother));
    scene.namespace["metadata"]["annotations"][LOCAL_NAME] = json!("team");
    assert_eq!(ownership::namespace_proof(&object(&scene.namespace), &scene.policy), Ok(()));
}

#[test]
fn nothing_is_deleted_whose_source_lives_under_another_key() {
    for absence in [Absence::Unexplained, Absence::SeenTerminating, Absence::Confirmed] {
        for owned in [false, true] {
            let mut scene = Scene::remote_absent("unclaimed = \"delete\"", absence.clone());
            if owned {
                scene = scene.owned_namespace();
            }
            scene.source_lives_at = Some(ObjectKey::new("team", "orders-hub"));
            assert_eq!(scene.next(), Next::Rest(Rest::MappingChanged), "{absence:?}, owned: {owned}");
        }
    }
    // Another remote object of that name is terminating. It does not wait for the local object.
    let mut scene = Scene::remote_terminating("");
    scene.source_lives_at = Some(ObjectKey::new("team", "orders-hub"));
    assert_eq!(scene.next(), Next::Do(Step::RemoveFinalizer));
}

#[test]
fn a_pair_whose_remote_object_was_made_from_the_local_one_is_left_alone() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["annotations"][REMOTE_UID] = json!("local-uid");
    scene.remote["spec"]["size"] = json!(9);
    assert_eq!(scene.next(), Next::Rest(Rest::Circle));
    scene.remote["metadata"]["annotations"][REMOTE_UID] = json!("of-a-cluster-further-up");
    assert!(matches!(scene.next(), Next::Do(Step::PatchLocal(_))), "a chain is no circle");
}

#[test]
fn an_existing_object_is_marked_before_anything_else_and_then_synced() {
    for keys in ["adopt = \"always\"", "adopt = \"equal\"", "adopt = \"always\"\nmetadata = \"mirror\""] {
        let scene = existing(keys);
        let Next::Do(step @ Step::AdoptLocal(_)) = scene.next() else { panic!("{keys}: {:?}", scene.next()) };
        let mut observed = scene.observed().after(&step, &Written::default(), &scene.policy);
        let local = observed.local.as_ref().expect("the local object");
        assert!(ownership::is_ours(local, &scene.policy) && local.annotation(ADOPTED).is_some(), "{keys}");
        assert_eq!(next::next(&observed, &scene.policy), Next::Do(Step::AddFinalizer), "{keys}");
        for _ in 0..10 {
            let Next::Do(step) = next::next(&observed, &scene.policy) else { break };
            observed = observed.after(&step, &Written::default(), &scene.policy);
        }
        let local = observed.local.as_ref().expect("the local object");
        assert!(local.annotation(ADOPTED).is_some(), "{keys}: the mark stays");
        assert_eq!(next::next(&observed, &scene.policy), Next::Rest(Rest::InStep), "{keys}");
    }
}

#[test]
fn an_existing_object_of_other_content_is_overwritten_only_with_permission() {
    let mut scene = existing("");
    scene.local["spec"]["size"] = json!(7);
    assert_eq!(scene.next(), Next::AskGuard(GuardedChange::Overwrite));
    scene.permitted = Some(GuardedChange::Overwrite);
    assert!(matches!(scene.next(), Next::Do(Step::AdoptLocal(_))));
    let mut equal = existing("adopt = \"equal\"");
    equal.local["spec"]["size"] = json!(7);
    assert_eq!(equal.next(), Next::Rest(Rest::Existing));
    let never = existing("adopt = \"never\"");
    assert_eq!(never.next(), Next::Rest(Rest::Existing));
    for (scene, adopt, differing) in [(equal, "equal", "; both sides differ in spec.size"), (never, "never", "")] {
        let config = config(&format!("adopt = {adopt:?}"));
        let waits = Waits::left_alone(Rest::Existing, &scene.observed(), &config, &scene.policy).expect("it is told");
        let expected = format!("it existed before its remote object, and `adopt` is \"{adopt}\"{differing}");
        assert_eq!(waits.cause, expected);
    }
}

#[test]
fn a_local_object_that_was_in_step_before_is_no_existing_one() {
    let with = |finalizer: bool, notes: bool, keys: &str| {
        let (mut scene, in_step) = (existing(&format!("adopt = \"never\"\n{keys}")), Scene::in_step(""));
        if finalizer {
            scene.remote["metadata"]["finalizers"] = in_step.remote["metadata"]["finalizers"].clone();
        }
        if notes {
            scene.remote["metadata"]["annotations"] = in_step.remote["metadata"]["annotations"].clone();
        }
        scene
    };
    // A finalizer that was added before the existing object was seen is removed.
    let existed_before =
        |scene: &Scene| matches!(scene.next(), Next::Rest(Rest::Existing) | Next::Do(Step::RemoveFinalizer));
    assert!(!existed_before(&with(true, true, "")), "as Teleport's controller leaves it");
    assert!(!existed_before(&with(false, true, "")), "somebody took the finalizer off");
    assert!(existed_before(&with(true, false, "")), "the finalizer comes before the local object");
    assert!(!existed_before(&with(true, false, "write_back = false")), "there it is all that is written");
    assert!(existed_before(&with(false, true, "write_back = false")), "another follower's notes");
    let mut found = with(true, true, "write_back = false");
    found.local_was_there = true;
    assert!(existed_before(&found), "it was there when ours was to be made");
}

#[test]
fn an_adopted_object_is_released_when_its_remote_goes_unless_it_is_to_be_deleted() {
    for mirror in [false, true] {
        let with = |keys: &str, terminating: bool| {
            let mut scene = if mirror { Scene::mirrored(keys) } else { Scene::in_step(keys) };
            scene.local["metadata"]["annotations"][ADOPTED] = json!("true");
            if terminating {
                super::terminating(&mut scene.remote);
            } else {
                (scene.remote, scene.absence) = (Value::Null, Absence::Confirmed);
            }
            scene.owned_namespace()
        };
        for terminating in [true, false] {
            let scene = with("", terminating);
            let (mut observed, mut steps) = (scene.observed(), Vec::new());
            while let Next::Do(step) = next::next(&observed, &scene.policy) {
                steps.push(step.name());
                observed = observed.after(&step, &Written::default(), &scene.policy);
                assert!(steps.len() < 10, "{steps:?}");
            }
            let expected = ["remove_finalizer", "release_namespace", "release_local"];
            assert_eq!(steps, expected[usize::from(!terminating)..], "mirror: {mirror}");
            let local = observed.local.as_ref().expect("it is kept");
            assert!(
                !local.deleting && local.annotation(ADOPTED).is_none() && !ownership::is_ours(local, &scene.policy)
            );
            let deleted = with("delete_adopted = true", terminating);
            assert_eq!(deleted.next(), Next::Do(Step::DeleteNamespace));
        }
        let mut unexplained = with("", false);
        unexplained.absence = Absence::Unexplained;
        assert_eq!(unexplained.next(), Next::ConfirmAbsence);
    }
}

#[test]
fn an_existing_object_outlives_a_remote_object_that_was_never_in_step_with_it() {
    let mut scene = existing("");
    scene.remote["metadata"]["finalizers"] = json!([FINALIZER]);
    super::terminating(&mut scene.remote);
    assert_eq!(scene.next(), Next::Do(Step::RemoveFinalizer));
    let after = scene.observed().after(&Step::RemoveFinalizer, &Written::default(), &scene.policy);
    assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::Unclaimed(Unproven::Unmarked)));
}

#[test]
fn statuses_that_were_in_step_are_cleared_only_with_permission() {
    for blank in [Value::Null, json!({})] {
        let mut scene = Scene::in_step("");
        scene.local["status"] = blank;
        assert_eq!(scene.next(), Next::AskGuard(GuardedChange::ClearStatus));
        scene.permitted = Some(GuardedChange::ClearStatus);
        assert_eq!(scene.next(), Next::Do(Step::WriteRemoteStatus));
        scene.permitted = None;
        scene.remote["metadata"]["annotations"] = json!({"note": "hello"});
        assert_eq!(scene.next(), Next::Do(Step::WriteRemoteStatus), "it was not in step before");
    }
}

#[test]
fn a_pair_is_let_go_only_with_permission() {
    let mut scene = Scene::in_step("");
    scene.absence = Absence::LeftSelector(std::sync::Arc::new(object(&scene.remote)));
    scene.remote = Value::Null;
    assert_eq!(scene.next(), Next::AskGuard(GuardedChange::LetGo));
    scene.permitted = Some(GuardedChange::LetGo);
    assert_eq!(scene.next(), Next::Do(Step::RemoveFinalizer));
    scene.permitted = None;
    assert_eq!(scene.foreign_local().next(), Next::Do(Step::RemoveFinalizer), "nothing of ours is lost");
}
