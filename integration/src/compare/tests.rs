use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::{Mapping, compare_pair};

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn remote() -> Value {
    json!({
        "apiVersion": "demo.towline.dev/v1",
        "kind": "Database",
        "metadata": {
            "name": "orders-hub",
            "namespace": "team-a",
            "generation": 7,
            "finalizers": ["cloud.teleport.dev/sync-local"],
            "labels": {"tier": "gold"},
            "annotations": {
                "note": "kept",
                "argocd.argoproj.io/tracking-id": "stays",
                "cloud.teleport.dev/sync-remote-generation": "7",
                "cloud.teleport.dev/sync-local-generation": "2"
            }
        },
        "spec": {"engine": "postgres-17", "replicas": 3},
        "status": {"phase": "Ready"}
    })
}

fn local() -> Value {
    json!({
        "apiVersion": "demo.towline.dev/v1",
        "kind": "Database",
        "metadata": {
            "name": "orders",
            "namespace": "team-a",
            "generation": 2,
            "labels": {"tier": "gold", "others": "may be"},
            "annotations": {"note": "kept"}
        },
        "spec": {"engine": "postgres-17", "replicas": 3},
        "status": {"phase": "Ready"}
    })
}

fn found(remote: Value, local: Value, mapping: &Mapping) -> Vec<String> {
    let mut found = Vec::new();
    compare_pair(&object(remote), &object(local), mapping, &mut found);
    found
}

#[test]
fn a_pair_in_step_has_no_differences() {
    assert_eq!(found(remote(), local(), &Mapping::default()), Vec::<String>::new());
}

#[test]
fn every_part_that_is_synced_is_compared() {
    for (side, pointer, value, expected) in [
        ("local", "/spec/engine", json!("mysql-8"), "spec"),
        ("local", "/metadata/labels/tier", json!("silver"), "label tier"),
        ("local", "/metadata/annotations/note", json!("lost"), "annotation note"),
        ("local", "/status/phase", json!("Failed"), "status"),
        ("local", "/metadata/generation", json!(3), "sync-local-generation"),
        ("remote", "/metadata/generation", json!(8), "sync-remote-generation"),
        ("remote", "/metadata/finalizers", json!([]), "finalizer"),
    ] {
        let (mut remote, mut local) = (remote(), local());
        let changed = if side == "remote" { &mut remote } else { &mut local };
        *changed.pointer_mut(pointer).unwrap() = value;
        let found = found(remote, local, &Mapping::default());
        assert!(found.len() == 1 && found[0].contains(expected), "{pointer}: {found:?}");
    }
}

#[test]
fn local_fields_are_not_compared() {
    let mut local = local();
    local["spec"]["replicas"] = json!(9);
    assert_eq!(found(remote(), local.clone(), &Mapping::default()).len(), 1);
    let mapping = Mapping { local_fields: vec!["/spec/replicas".to_owned()], ..Mapping::default() };
    assert_eq!(found(remote(), local, &mapping), Vec::<String>::new());
}

#[test]
fn an_explicit_null_is_not_an_absent_field() {
    let mut remote = remote();
    remote["spec"]["backup"] = Value::Null;
    assert_eq!(found(remote, local(), &Mapping::default()).len(), 1);
}

#[test]
fn names_and_namespaces_are_mapped_by_suffix_and_prefix() {
    let mapping = Mapping {
        remote_resource_suffix: "-hub".to_owned(),
        local_namespace_suffix: "-west".to_owned(),
        namespace_prefix: "team-".to_owned(),
        ..Mapping::default()
    };
    let key = mapping.local_key(&object(remote())).unwrap();
    assert_eq!(key.to_string(), "team-a-west/orders");
    let mut foreign = remote();
    foreign["metadata"]["namespace"] = json!("kube-system");
    assert_eq!(mapping.local_key(&object(foreign)), None);
}
