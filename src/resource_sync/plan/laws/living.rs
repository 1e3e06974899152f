//! The remote object exists and is not terminating.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{FINALIZER, LOCAL_GENERATION, REMOTE_GENERATION, REMOTE_UID, Scene, UPLOADED_HASH, object, terminating};
use crate::cluster::{CanonicalJson, Written};
use crate::resource_sync::plan::conflicts;
use crate::resource_sync::plan::guard;
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::observed::{Namespace, Observed, Remote};
use crate::resource_sync::plan::patch::LocalChange;
use crate::resource_sync::plan::secrets::{RemoteSecret, SecretView};
use crate::resource_sync::plan::step::{Next, Rest, Step};

fn written(generation: i64) -> Written {
    Written { uid: "new-uid".into(), resource_version: "99".into(), generation }
}

#[test]
fn a_pair_in_step_rests() {
    assert_eq!(Scene::in_step("").next(), Next::Rest(Rest::InStep));
    assert_eq!(Scene::mirrored("").next(), Next::Rest(Rest::InStep));
}

#[test]
fn the_finalizer_comes_before_everything() {
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["finalizers"] = json!(["other/first"]);
    scene.local["status"] = json!({"ready": false});
    scene.namespace = Value::Null;
    assert_eq!(scene.next(), Next::Do(Step::AddFinalizer));
    scene.local = Value::Null;
    assert_eq!(scene.next(), Next::Do(Step::AddFinalizer));
    let after = scene.observed().after(&Step::AddFinalizer, &written(3), &scene.policy);
    assert!(after.remote_object().expect("the remote object").has_finalizer(FINALIZER));
    assert_eq!(next::next(&after, &scene.policy), Next::Do(Step::CreateNamespace));
}

#[test]
fn the_finalizer_is_the_one_that_is_configured() {
    let mut scene = Scene::in_step("finalizer = \"sync-second\"");
    assert_eq!(scene.next(), Next::Do(Step::AddFinalizer), "another follower's finalizer holds nothing for us");
    scene.remote["metadata"]["finalizers"] = json!(["cloud.teleport.dev/sync-second"]);
    assert_eq!(scene.next(), Next::Rest(Rest::InStep));
}

#[test]
fn status_goes_up_before_the_spec_comes_down() {
    for status in [json!({"ready": false}), json!({}), json!({"ready": true, "more": null}), Value::Null] {
        let mut scene = Scene::in_step("");
        scene.remote["spec"]["size"] = json!(9);
        scene.local["status"] = status.clone();
        scene.permitted = Some(crate::guard::GuardedChange::ClearStatus);
        assert_eq!(scene.next(), Next::Do(Step::WriteRemoteStatus), "{status}");
        let after = scene.observed().after(&Step::WriteRemoteStatus, &written(3), &scene.policy);
        assert_eq!(after.remote_object().expect("remote").status, after.local.as_ref().expect("local").status);
        assert!(matches!(next::next(&after, &scene.policy), Next::Do(Step::PatchLocal(_))));
    }
}

#[test]
fn a_status_that_the_remote_s_own_controllers_write_stays_and_loses_nothing() {
    for status in [json!({"ready": false}), json!({}), Value::Null] {
        let mut scene = Scene::in_step("");
        scene.local["status"] = status.clone();
        assert_ne!(scene.next(), Next::Rest(Rest::InStep), "{status}");
        let mut observed = scene.observed();
        let Remote::Present(remote) = &mut observed.remote else { panic!("it is there") };
        Arc::make_mut(remote).has_own_status = true;
        assert_eq!(next::next(&observed, &scene.policy), Next::Rest(Rest::InStep), "{status}");
        let (remote, local) = (observed.remote_object().expect("remote"), observed.local.as_ref().expect("local"));
        assert_eq!(guard::change_to_existing(remote, local, &scene.policy), None);
    }
}

#[test]
fn a_status_that_can_not_be_written_keeps_the_spec_up() {
    // A failed step changes nothing in the observation, so the plan decides the same again.
    let mut scene = Scene::in_step("");
    scene.remote["spec"]["size"] = json!(9);
    scene.local["status"] = json!({"ready": false});
    assert_eq!(scene.next(), Next::Do(Step::WriteRemoteStatus));
    assert_eq!(scene.next(), Next::Do(Step::WriteRemoteStatus));
}

#[test]
fn the_status_of_an_object_that_is_being_deleted_still_goes_up() {
    let mut scene = Scene::in_step("");
    terminating(&mut scene.local);
    scene.local["status"] = json!({"phase": "leaving"});
    assert_eq!(scene.next(), Next::Do(Step::WriteRemoteStatus));
}

#[test]
fn the_status_of_an_object_just_made_is_not_known() {
    let mut scene = Scene::in_step("");
    scene.local = Value::Null;
    let after = scene.observed().after(&Step::CreateLocal, &written(1), &scene.policy);
    assert_eq!(
        next::next(&after, &scene.policy),
        Next::Do(Step::NoteGenerations { remote: 3, local: 1 }),
        "the remote keeps its status until the watch shows the local one"
    );
}

#[test]
fn a_local_object_being_deleted_is_waited_for() {
    let mut scene = Scene::in_step("");
    terminating(&mut scene.local);
    scene.remote["spec"]["size"] = json!(9);
    assert_eq!(scene.next(), Next::Rest(Rest::LocalTerminating));
    scene.local = Value::Null;
    assert_eq!(scene.next(), Next::Do(Step::CreateLocal), "it is made anew when it is gone");
}

#[test]
fn a_missing_namespace_is_made_first_with_our_marks() {
    let mut scene = Scene::in_step("");
    scene.local = Value::Null;
    scene.namespace = Value::Null;
    assert_eq!(scene.next(), Next::Do(Step::CreateNamespace));
    let after = scene.observed().after(&Step::CreateNamespace, &written(0), &scene.policy);
    let Namespace::Present { object, ours } = &after.namespace else { panic!("a namespace was expected") };
    assert!(ours);
    let marks = object.annotations.iter().map(|(key, value)| (&**key, &**value)).collect::<Vec<_>>();
    assert_eq!(
        marks,
        [
            ("cloud.teleport.dev/sync-local-name", "team"),
            ("cloud.teleport.dev/sync-owner", "orders"),
            ("cloud.teleport.dev/sync-owner-resource", "databases.demo.towline.dev"),
            ("cloud.teleport.dev/sync-owner-section", "databases"),
        ]
    );
    assert_eq!(next::next(&after, &scene.policy), Next::Do(Step::CreateLocal));
}

#[test]
fn a_terminating_namespace_is_waited_for() {
    let mut scene = Scene::in_step("");
    terminating(&mut scene.namespace);
    scene.local = Value::Null;
    assert_eq!(scene.next(), Next::Rest(Rest::NamespaceTerminating));
}

#[test]
fn a_cluster_scoped_kind_needs_no_namespace() {
    let mut scene = Scene::in_step("");
    scene.local = Value::Null;
    let observed = Observed { namespace: Namespace::None, ..scene.observed() };
    assert_eq!(next::next(&observed, &scene.policy), Next::Do(Step::CreateLocal));
    scene = Scene::remote_terminating("");
    let observed = Observed { namespace: Namespace::None, ..scene.observed() };
    assert_eq!(next::next(&observed, &scene.policy), Next::Do(Step::DeleteLocal));
}

#[test]
fn generations_are_noted_when_either_differs() {
    for (mark, held) in [(REMOTE_GENERATION, "2"), (LOCAL_GENERATION, "4"), (LOCAL_GENERATION, "five")] {
        let mut scene = Scene::in_step("");
        scene.remote["metadata"]["annotations"][mark] = json!(held);
        let note = Step::NoteGenerations { remote: 3, local: 5 };
        assert_eq!(scene.next(), Next::Do(note.clone()), "{mark}: {held}");
        let after = scene.observed().after(&note, &written(3), &scene.policy);
        assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::InStep));
    }
}

#[test]
fn without_write_back_only_the_finalizer_is_written_to_the_remote() {
    let mut scene = Scene::in_step("write_back = false");
    scene.remote["metadata"]["finalizers"] = json!([]);
    scene.remote["metadata"]["annotations"] = json!({"note": "hello"});
    scene.local["status"] = json!({"ready": false});
    scene.secrets = vec![secret("one", "local-uid", RemoteSecret::Watched(None))];
    assert_eq!(scene.next(), Next::Do(Step::AddFinalizer));
    let after = scene.observed().after(&Step::AddFinalizer, &written(3), &scene.policy);
    assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::InStep));
}

fn secret(name: &str, owner: &str, remote: RemoteSecret) -> SecretView {
    let object = object(&json!({
        "metadata": {
            "name": name, "namespace": "team", "uid": format!("{name}-uid"), "resourceVersion": "31",
            "ownerReferences": [{"uid": owner, "name": "orders", "controller": true}],
        },
        "type": "Opaque",
        "data": {"key": "dmFsdWU="},
    }));
    SecretView::new(Arc::new(object), &super::policy(""), remote, Some("remote-uid".into()))
}

/// The same secret with the hash noted on it.
fn uploaded(name: &str, remote: impl Fn(Arc<str>) -> RemoteSecret) -> SecretView {
    let mut view = secret(name, "local-uid", RemoteSecret::Unwatched { due: false });
    let mut object = (*view.object).clone();
    object.annotations.insert(UPLOADED_HASH.into(), Arc::clone(&view.hash));
    let remote = remote(Arc::clone(&view.hash));
    view = SecretView::new(Arc::new(object), &super::policy(""), remote, Some("remote-uid".into()));
    view
}

/// The secret steps of a pair, carried out in turn; those of `failing` fail.
fn secret_steps(secrets: Vec<SecretView>, failing: &[&str]) -> Vec<String> {
    let scene = Scene { secrets, ..Scene::in_step("") };
    let (mut observed, mut steps) = (scene.observed(), Vec::new());
    while let Next::Do(step) = next::next(&observed, &scene.policy) {
        let (Step::UploadSecret(name) | Step::NoteSecretHash(name)) = &step else { panic!("{step:?}") };
        steps.push(format!("{} {name}", step.name()));
        if failing.contains(&&**name) {
            observed.secrets.iter_mut().find(|secret| secret.name == *name).expect("the secret").fail();
        } else {
            observed = observed.after(&step, &written(0), &scene.policy);
        }
        assert!(steps.len() < 10, "{steps:?}");
    }
    steps
}

#[test]
fn a_secret_goes_up_and_then_its_hash_is_noted() {
    let steps = secret_steps(vec![secret("one", "local-uid", RemoteSecret::Unwatched { due: false })], &[]);
    assert_eq!(steps, ["upload_secret one", "note_secret_hash one"]);
}

#[test]
fn secrets_go_only_with_their_controlling_owner_by_uid() {
    let mut other = secret("one", "local-uid-of-an-earlier-life", RemoteSecret::Watched(None));
    assert_eq!(secret_steps(vec![other.clone()], &[]), [""; 0]);
    Arc::make_mut(&mut other.object).controller = None;
    assert_eq!(secret_steps(vec![other], &[]), [""; 0]);
}

#[test]
fn one_failing_secret_stops_neither_the_others_nor_the_spec() {
    let names = ["one", "two"];
    let secrets = names.map(|name| secret(name, "local-uid", RemoteSecret::Unwatched { due: false })).to_vec();
    let steps = secret_steps(secrets.clone(), &["one"]);
    assert_eq!(steps, ["upload_secret one", "upload_secret two", "note_secret_hash two"]);
    let mut scene = Scene { secrets, ..Scene::in_step("") };
    scene.remote["spec"]["size"] = json!(9);
    scene.secrets.iter_mut().for_each(SecretView::fail);
    assert_eq!(scene.change().content.map(|content| content.value()), Some(json!({"spec": {"size": 9}})));
}

#[test]
fn an_unchanged_secret_costs_nothing() {
    assert_eq!(secret_steps(vec![uploaded("one", |_| RemoteSecret::Unwatched { due: false })], &[]), [""; 0]);
    let same = |hash: Arc<str>| RemoteSecret::Watched(Some((hash, Some("remote-uid".into()))));
    assert_eq!(secret_steps(vec![uploaded("one", same)], &[]), [""; 0]);
}

#[test]
fn drift_of_a_remote_secret_is_mended_where_it_is_seen() {
    let drifted: [fn(Arc<str>) -> RemoteSecret; 4] = [
        |_| RemoteSecret::Watched(None),
        |_| RemoteSecret::Watched(Some(("another hash".into(), Some("remote-uid".into())))),
        |hash| RemoteSecret::Watched(Some((hash, Some("uid of an earlier life".into())))),
        |_| RemoteSecret::Unwatched { due: true },
    ];
    for remote in drifted {
        assert_eq!(secret_steps(vec![uploaded("one", remote)], &[]), ["upload_secret one"]);
    }
}

#[test]
fn a_generation_is_noted_only_with_the_content_that_was_seen() {
    // A client changes the spec of either side between our read and our write. The replies then have a generation whose content
    // is unknown. If that generation was noted, it would count as proof after a restart.
    let mut scene = Scene::in_step("");
    scene.remote["metadata"]["generation"] = json!(2);
    let note = Step::NoteGenerations { remote: 2, local: 5 };
    assert_eq!(scene.next(), Next::Do(note.clone()));
    let after = scene.observed().after(&note, &written(3), &scene.policy);
    assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::InStep), "the watch will show generation 3");

    let mut scene = Scene::in_step("");
    scene.local["status"] = json!({"ready": false});
    let after = scene.observed().after(&Step::WriteRemoteStatus, &written(4), &scene.policy);
    assert_eq!(
        next::next(&after, &scene.policy),
        Next::Rest(Rest::InStep),
        "the watch will show whose generation 4 is"
    );

    let mut scene = Scene::in_step("");
    scene.local["metadata"]["labels"]["app"] = json!("changed");
    let step = Step::PatchLocal(scene.change());
    let after = scene.observed().after(&step, &written(6), &scene.policy);
    assert_eq!(next::next(&after, &scene.policy), Next::Rest(Rest::InStep), "labels have no generation");
}

#[test]
fn a_version_of_an_unguarded_write_guards_nothing() {
    let mut scene = Scene::in_step("");
    scene.local["status"] = json!({"ready": false});
    let after = scene.observed().after(&Step::WriteRemoteStatus, &written(3), &scene.policy);
    assert_eq!(&*after.remote_object().expect("the remote object").resource_version, "11");
}

/// What is ordered and what a step writes, by which repetitions are recognised.
fn told_apart_by(scene: &Scene, step: &Step) -> (u64, Vec<conflicts::Effect>) {
    let observed = scene.observed();
    (
        conflicts::order(observed.remote_object().map(|remote| &**remote)),
        conflicts::effects(step, &observed, &scene.policy),
    )
}

#[test]
fn a_note_of_generations_that_makes_the_next_one_necessary_is_a_rewrite_and_one_after_a_change_is_not() {
    let note = Step::NoteGenerations { remote: 3, local: 5 };
    let scene = Scene::in_step("");
    let first = told_apart_by(&scene, &note);
    assert_eq!(first.1.len(), 1);
    let mut raised = scene.clone();
    raised.remote["metadata"]["generation"] = json!(4);
    raised.remote["metadata"]["annotations"][REMOTE_GENERATION] = json!("3");
    let again = Step::NoteGenerations { remote: 4, local: 5 };
    assert_eq!(told_apart_by(&raised, &again), first, "only the generation was raised");
    let mut changed = scene.clone();
    changed.remote["spec"]["size"] = json!(3);
    assert_ne!(told_apart_by(&changed, &note), first, "another spec");
    let later = Step::NoteGenerations { remote: 3, local: 6 };
    assert_ne!(told_apart_by(&scene, &later), first, "another local object");
}

#[test]
fn a_rewrite_is_one_whatever_undid_it_and_whichever_object_it_is_written_to_unless_the_order_has_changed() {
    let relabel = |label: &str| {
        let labels = BTreeMap::from([(Arc::from(label), Some("ours".into()))]);
        Step::PatchLocal(LocalChange { labels, content: Some(CanonicalJson::of(&json!({}))), ..LocalChange::default() })
    };
    let refusal = |text: &str| Step::NoteError(Some(text.into()));
    let scene = Scene::in_step("");
    let mut anew = scene.clone().foreign_local();
    anew.local["metadata"]["uid"] = json!("another-uid");
    anew.local["metadata"]["annotations"] = json!({REMOTE_UID: "another-remote"});
    for (one, other) in [
        (relabel("app"), relabel("tier")),
        (refusal("create_local: no"), refusal("patch_local: not yet")),
        (Step::AdoptLocal(LocalChange::default()), Step::AdoptLocal(LocalChange::default())),
        (Step::CreateLocal, Step::CreateLocal),
        (Step::DeleteLocal, Step::DeleteLocal),
    ] {
        let first = told_apart_by(&scene, &one);
        assert!(!first.1.is_empty(), "{one:?}");
        assert_eq!(told_apart_by(&anew, &other), first, "{one:?}");
        for (field, value) in [("uid", "another"), ("deletionTimestamp", "2026-01-01T00:00:00Z")] {
            let mut changed = scene.clone();
            changed.remote["metadata"][field] = json!(value);
            assert_ne!(told_apart_by(&changed, &one), first, "{one:?} after another {field}");
        }
        let mut changed = scene.clone();
        changed.remote["spec"]["size"] = json!(9);
        assert_ne!(told_apart_by(&changed, &one), first, "{one:?} after another spec");
    }
    let mut labelled = scene.clone();
    labelled.remote["metadata"]["labels"] = json!({"app": "another"});
    for step in [relabel("app"), refusal("patch_local: no")] {
        assert_ne!(told_apart_by(&labelled, &step), told_apart_by(&scene, &step), "{step:?} after another label");
    }
}
