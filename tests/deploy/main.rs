//! Laws of `deploy/` and the image, as far as they can be told without an API server, Helm and a container engine: the
//! manifests fit each other, the daemon's configuration, and the metrics that there are. That the rendered ones are the chart's, and that its
//! roles are what the code asks for, is shown by `integration/tests/contract/chart.rs`.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail anywhere; the lints' exemption knows only `#[test]`"
)]

mod daemon;
mod hub;
mod image;
mod interface;
mod inventory;
mod isolation;
mod kustomize;
mod metrics;
mod monitoring;
mod promql;
mod rbac;
mod release;
mod status_sync;

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A path of the repository.
fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// A file of the repository.
fn text(relative: &str) -> String {
    let path = path(relative);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All documents of a YAML file.
fn documents(relative: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&text(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

/// The only document of a YAML file.
fn document(relative: &str) -> Value {
    let mut documents = documents(relative);
    assert_eq!(documents.len(), 1, "{relative} has one document");
    documents.remove(0)
}

/// The directories whose daemon `make manifests` renders from the chart.
const RENDERED: [&str; 9] = [
    "deploy/base",
    "deploy/overlays/replicated",
    "deploy/status-sync",
    "deploy/inventory",
    "deploy/inventory-configmaps",
    "deploy/syncsets/production",
    "deploy/syncsets/applying",
    "deploy/syncsets/rabbitmq",
    "deploy/syncsets/trial",
];

/// What a directory has of a kind in its rendered file.
fn rendered(directory: &str, kind: &str) -> Vec<Value> {
    let is_of_kind = |document: &Value| document["kind"] == kind;
    documents(&format!("{directory}/towline.yaml")).into_iter().filter(is_of_kind).collect()
}

/// The only object of a kind in a directory's rendered file.
fn the(directory: &str, kind: &str) -> Value {
    let mut found = rendered(directory, kind);
    assert_eq!(found.len(), 1, "{directory} has one {kind}");
    found.remove(0)
}

/// The pod of a directory's Deployment, and its container.
fn pod(directory: &str) -> (Value, Value) {
    let pod = the(directory, "Deployment")["spec"]["template"]["spec"].clone();
    let containers = elements(&pod["containers"]);
    assert_eq!(containers.len(), 1, "{directory}");
    let container = containers[0].clone();
    (pod, container)
}

/// The labels by which a directory's Deployment finds its pods.
fn labels(directory: &str) -> Value {
    the(directory, "Deployment")["spec"]["selector"]["matchLabels"].clone()
}

/// Where a pod mounts Secrets.
fn mounted(container: &Value) -> Vec<&str> {
    elements(&container["volumeMounts"]).iter().filter_map(|mount| mount["mountPath"].as_str()).collect()
}

/// The texts of a list; empty where there is none.
fn texts(list: &Value) -> Vec<&str> {
    let texts = list.as_array().map(|list| list.iter().map(|text| text.as_str().expect("a text")).collect());
    texts.unwrap_or_default()
}

/// The elements of a list; empty where there is none.
fn elements(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}
