//! Laws of `deploy/` and the image, as far as they can be told without an API server and a container engine: the
//! manifests fit each other, the daemon's configuration, and the metrics that there are.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail anywhere; the lints' exemption knows only `#[test]`"
)]

mod daemon;
mod hub;
mod image;
mod inventory;
mod isolation;
mod kustomize;
mod metrics;
mod monitoring;
mod promql;
mod rbac;
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

/// The texts of a list; empty where there is none.
fn texts(list: &Value) -> Vec<&str> {
    let texts = list.as_array().map(|list| list.iter().map(|text| text.as_str().expect("a text")).collect());
    texts.unwrap_or_default()
}

/// The elements of a list; empty where there is none.
fn elements(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}
