//! Marks with former names count, and are renewed without any other change.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::{Value, json};

use super::{ADOPTED, FINALIZER, LOCAL_NAME, MANAGER, OWNER, PAUSED, Scene, terminating};
use crate::cluster::{ObjectKey, Written};
use crate::resource_sync::rules::former::Renewal;
use crate::resource_sync::rules::ownership;
use crate::resource_sync::rules::plan::{self, Absence, Next, Observed, Policy, Rest, Step};

const RENAMED: &str =
    "former_names = [\"old\"]\nformer_finalizers = [\"sync-old\"]\nformer_annotation_domains = [\"old.dev\"]";
const FORMER_FINALIZER: &str = "old.dev/sync-old";

/// The same object with the former names of its marks.
fn formerly(value: &Value) -> Value {
    let text = value.to_string();
    let text = text.replace(&format!("\"{FINALIZER}\""), &format!("\"{FORMER_FINALIZER}\""));
    let text = text.replace("cloud.teleport.dev/", "old.dev/").replace(MANAGER, "towline-old");
    serde_json::from_str(&text).expect("an object")
}

/// A pair that was in step before the section was renamed.
fn renamed(keys: &str) -> Scene {
    let mut scene = Scene::in_step(&format!("{RENAMED}\n{keys}"));
    (scene.remote, scene.local) = (formerly(&scene.remote), formerly(&scene.local));
    scene
}

/// Carries out renewals until another step is due.
fn renew(mut observed: Observed, policy: &Policy) -> (Vec<Renewal>, Observed) {
    let mut renewals = Vec::new();
    while let Next::Do(Step::RenewMarks(renewal)) = plan::next(&observed, policy) {
        assert!(renewals.len() < 4, "{renewals:?}");
        observed = observed.after(&Step::RenewMarks(renewal.clone()), &Written::default(), policy);
        renewals.push(renewal);
    }
    (renewals, observed)
}

#[test]
fn former_marks_are_renewed_by_one_write_an_object_and_nothing_else_is_done() {
    let scene = renamed("");
    let (renewals, after) = renew(scene.observed(), &scene.policy);
    assert_eq!(renewals.len(), 2, "{renewals:?}");
    assert_eq!(plan::next(&after, &scene.policy), Next::Rest(Rest::InStep));
    // It is as if the names had never changed, and stays ours when the former names are removed from the configuration.
    let now = Scene::in_step("");
    let (remote, local) =
        (after.remote_object().expect("a remote object"), after.local.as_ref().expect("a local object"));
    let wanted = now.observed();
    assert_eq!(remote.annotations, wanted.remote_object().expect("a remote object").annotations);
    assert_eq!(remote.finalizers.iter().map(AsRef::as_ref).collect::<Vec<_>>(), ["other/first", FINALIZER]);
    assert_eq!(local.annotations, wanted.local.as_ref().expect("a local object").annotations);
    assert_eq!(local.owned, wanted.local.as_ref().expect("a local object").owned);
    assert!(ownership::is_ours(local, &now.policy));
}

#[test]
fn a_renewal_fails_where_the_object_has_changed_and_keeps_what_both_names_own() {
    let scene = renamed("");
    let (renewals, _) = renew(scene.observed(), &scene.policy);
    let local = super::object(&scene.local);
    let managers = json!([
        {"manager": "towline-old", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}},
        {"manager": "towline-old", "operation": "Update", "apiVersion": "v1", "subresource": "status", "fieldsV1": {"f:status": {}}},
        {"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:spec": {}}},
        {"manager": MANAGER, "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:metadata": {"f:labels": {"f:b": {}}}}},
    ]);
    let managers: Vec<ManagedFieldsEntry> = serde_json::from_value(managers).expect("a record");
    let patch = renewals[1].json_patch(&local, Some(&managers), &scene.policy);
    assert_eq!(patch[0], json!({"op": "replace", "path": "/metadata/resourceVersion", "value": "21"}));
    let record = patch.as_array().and_then(|operations| operations.last()).expect("operations");
    assert_eq!(record["path"], "/metadata/managedFields");
    let entries = record["value"].as_array().expect("entries");
    assert_eq!(entries.len(), 3, "{record}");
    assert_eq!(entries[0]["manager"], MANAGER);
    assert_eq!(entries[0]["fieldsV1"], json!({"f:metadata": {"f:labels": {"f:a": {}, "f:b": {}}}}));
    assert_eq!(entries[1]["manager"], "towline-old", "a status is nobody's proof");
}

#[test]
fn what_ends_is_ours_by_its_former_marks() {
    let mut scene = renamed("");
    terminating(&mut scene.remote);
    assert_eq!(scene.next(), Next::Do(Step::DeleteLocal));
    scene.local = Value::Null;
    assert_eq!(scene.next(), Next::Do(Step::RemoveFinalizer), "no server takes a new finalizer now");
    let after = scene.observed().after(&Step::RemoveFinalizer, &Written::default(), &scene.policy);
    assert_eq!(after.remote_object().expect("a remote object").finalizers.len(), 1);

    let mut orphan = renamed("");
    (orphan.remote, orphan.absence) = (Value::Null, Absence::Confirmed);
    assert_eq!(orphan.next(), Next::Do(Step::DeleteLocal));
    orphan.source_lives_at = Some(ObjectKey::new("team", "renamed"));
    assert_eq!(orphan.next(), Next::Rest(Rest::MappingChanged));
}

#[test]
fn a_copy_with_former_marks_is_nobodys() {
    let mut copy = renamed("");
    (copy.remote, copy.absence) = (Value::Null, Absence::Confirmed);
    copy.local["metadata"]["annotations"][LOCAL_NAME.replace("cloud.teleport.dev", "old.dev")] = json!("team/another");
    assert!(matches!(copy.next(), Next::Rest(Rest::Unclaimed(_))));
    assert_eq!(Renewal::of_local(&super::object(&copy.local), &copy.policy), None);
    // Without the former names the marks mean nothing.
    let mut forgotten = renamed("");
    (forgotten.remote, forgotten.absence, forgotten.policy) = (Value::Null, Absence::Confirmed, super::policy(""));
    assert!(matches!(forgotten.next(), Next::Rest(Rest::Unclaimed(_))));
}

#[test]
fn an_adopted_object_stays_adopted_and_a_paused_pair_paused() {
    let mut adopted = renamed("");
    adopted.local["metadata"]["annotations"]["old.dev/sync-adopted"] = json!("true");
    let (_, after) = renew(adopted.observed(), &adopted.policy);
    assert_eq!(after.local.as_ref().and_then(|local| local.annotation(ADOPTED)), Some("true"));
    terminating(&mut adopted.remote);
    assert_eq!(adopted.next(), Next::Do(Step::RemoveFinalizer));

    for side in [true, false] {
        let mut paused = renamed("");
        let object = if side { &mut paused.remote } else { &mut paused.local };
        object["metadata"]["annotations"][PAUSED.replace("cloud.teleport.dev", "old.dev")] = json!("true");
        assert_eq!(paused.next(), Next::Rest(Rest::Paused));
    }
}

#[test]
fn a_namespace_of_before_is_renewed_and_ours() {
    let mut scene = renamed("").owned_namespace();
    scene.namespace["metadata"]["annotations"] = json!({
        "old.dev/sync-owner": "orders", "old.dev/sync-owner-resource": "databases.demo.towline.dev",
        "old.dev/sync-owner-section": "old", "old.dev/sync-local-name": "team",
    });
    scene.namespace["metadata"]["managedFields"] = json!([{"manager": "towline-old", "operation": "Update",
        "fieldsV1": {"f:metadata": {"f:annotations": {"f:old.dev/sync-local-name": {}}}}}]);
    assert!(ownership::namespace_proof(&super::object(&scene.namespace), &scene.policy).is_ok());
    let (renewals, after) = renew(scene.observed(), &scene.policy);
    assert_eq!(renewals.len(), 3, "{renewals:?}");
    let plan::Namespace::Present { object, .. } = &after.namespace else { panic!("a namespace") };
    assert_eq!((object.annotations.len(), object.annotation(OWNER)), (4, Some("orders")));
    assert_eq!(object.annotation("cloud.teleport.dev/sync-owner-section"), Some("databases"));
    assert!(ownership::namespace_proof(object, &super::policy("")).is_ok());
}

#[test]
fn without_write_back_the_notes_of_another_follower_keep_their_names() {
    let scene = renamed("write_back = false");
    let (renewals, after) = renew(scene.observed(), &scene.policy);
    assert_eq!(renewals.len(), 2, "{renewals:?}");
    let remote = after.remote_object().expect("a remote object");
    assert!(remote.annotation("old.dev/sync-remote-generation").is_some() && remote.has_finalizer(FINALIZER));
}
