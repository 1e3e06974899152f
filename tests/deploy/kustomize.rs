//! The kustomizations list what lies beside them, and nothing else.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use super::{document, documents, elements, path, text, texts};

/// Every directory with a kustomization, and below `deploy/` every directory but those of the chart.
fn directories() -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec!["deploy".to_owned()];
    while let Some(directory) = left.pop() {
        let entries: Vec<_> =
            std::fs::read_dir(path(&directory)).expect("a directory").map(|entry| entry.expect("an entry")).collect();
        for entry in &entries {
            if entry.path().is_dir() && entry.file_name() != "chart" {
                left.push(format!("{directory}/{}", entry.file_name().to_string_lossy()));
            }
        }
        if entries.iter().any(|entry| entry.path().is_file() && entry.file_name() != "README.md") {
            found.push(directory);
        }
    }
    found
}

/// What the kustomization of a directory takes: files beside it and directories, by their names.
fn listed(directory: &str) -> BTreeSet<String> {
    let kustomization = document(&format!("{directory}/kustomization.yaml"));
    let mut listed: Vec<&str> = texts(&kustomization["resources"]);
    for generator in elements(&kustomization["configMapGenerator"]) {
        // `key=file`, or only the file.
        listed.extend(texts(&generator["files"]).iter().map(|file| file.rsplit('=').next().unwrap_or_default()));
    }
    for patch in elements(&kustomization["patches"]) {
        listed.push(patch["path"].as_str().expect("patches are files"));
    }
    let count = listed.len();
    let unique: BTreeSet<String> = listed.into_iter().map(str::to_owned).collect();
    assert_eq!(unique.len(), count, "{directory} lists something twice");
    unique
}

#[test]
fn every_file_is_listed_by_the_kustomization_beside_it() {
    let directories = directories();
    assert!(directories.len() >= 6, "{directories:?}");
    for directory in directories {
        let is_kustomizations = |name: &str| name == "kustomization.yaml" || name == "README.md";
        let files: BTreeSet<String> = std::fs::read_dir(path(&directory))
            .expect("a directory")
            .map(|entry| entry.expect("an entry"))
            .filter(|entry| entry.path().is_file())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !is_kustomizations(name))
            .collect();
        let (listed_files, listed_directories): (BTreeSet<String>, BTreeSet<String>) =
            listed(&directory).into_iter().partition(|entry| path(&format!("{directory}/{entry}")).is_file());
        assert_eq!(files, listed_files, "{directory}");
        for other in listed_directories {
            let kustomization = path(&format!("{directory}/{other}/kustomization.yaml"));
            assert!(kustomization.is_file(), "{directory} lists {other}, which is no kustomization");
        }
    }
}

#[test]
fn every_document_is_an_object_with_a_name() {
    for directory in directories() {
        for file in listed(&directory).iter().filter(|file| Path::new(file).extension() == Some(OsStr::new("yaml"))) {
            for document in documents(&format!("{directory}/{file}")) {
                for pointer in ["/apiVersion", "/kind", "/metadata/name"] {
                    let found = document.pointer(pointer).and_then(serde_json::Value::as_str);
                    assert!(found.is_some_and(|text| !text.is_empty()), "{directory}/{file} has no {pointer}");
                }
            }
        }
    }
}

#[test]
fn the_image_has_the_tag_of_this_version() {
    let version = towline::test_api::telemetry::VERSION;
    let kustomization = document("deploy/side-car/kustomization.yaml");
    assert_eq!(kustomization["images"], serde_json::json!([{"name": "towline", "newTag": version}]));
    for directory in super::RENDERED {
        assert_eq!(super::pod(directory).1["image"], format!("towline:{version}"), "{directory}");
    }
}

#[test]
fn the_readme_names_every_kustomization() {
    let readme = text("deploy/README.md");
    for directory in directories() {
        let name = directory.strip_prefix("deploy/").expect("all are below deploy");
        if name != "base/monitoring" {
            assert!(readme.contains(&format!("| `{name}` |")), "{name} is not in the table");
        }
    }
}
