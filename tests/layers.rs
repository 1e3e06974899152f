//! Which module may import which: only those of lower layers, and no job another job.

#![expect(clippy::expect_used, reason = "a test that can't read the sources has failed")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// From the lowest to the highest. Modules of one layer know nothing of each other.
const LAYERS: [&[&str]; 8] = [
    &["actor", "config"],
    &["telemetry"],
    &["cluster", "db"],
    &["election", "state"],
    &["job"],
    &["lease", "resource_sync", "status_sync"],
    &["jobs"],
    &["app", "check", "cli"],
];

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// Every source file below a directory.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The source without its tests, which may go through whole configurations.
fn without_tests(path: &Path) -> String {
    const OF_TESTS: [&str; 3] = ["harness", "laws", "tests"];
    let is_test = |part: &str| OF_TESTS.contains(&part) || part.ends_with("tests.rs");
    if path.iter().any(|part| is_test(&part.to_string_lossy())) {
        return String::new();
    }
    let text = std::fs::read_to_string(path).expect("a source file");
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let code: Vec<&str> = text.lines().filter(is_code).collect();
    let code = code.join("\n");
    code.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned()
}

/// The modules of the crate that a source names: `crate::a`, `crate::{a, b::C}`.
fn imports(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (_, rest) in code.match_indices("crate::").map(|(at, found)| (at, &code[at + found.len()..])) {
        let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        let first = |name: &str| name.trim().split(|letter| !is_name(letter)).next().unwrap_or_default().to_owned();
        let Some(list) = rest.strip_prefix('{') else {
            found.push(first(rest));
            continue;
        };
        let (mut depth, mut begins) = (0, 0);
        for (at, letter) in list.char_indices() {
            match letter {
                '{' => depth += 1,
                ',' | '}' if depth == 0 => {
                    found.push(first(list.get(begins..at).unwrap_or_default()));
                    begins = at + 1;
                    if letter == '}' {
                        break;
                    }
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
    }
    found.retain(|name| layer_of(name).is_some());
    found
}

#[test]
fn every_module_imports_only_lower_layers() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&source, &mut all);
    let (mut wrong, mut modules) = (Vec::new(), BTreeMap::new());
    for path in &all {
        let within = path.strip_prefix(&source).expect("below src").to_owned();
        let first = within.iter().next().expect("a file").to_string_lossy().into_owned();
        let module = first.trim_end_matches(".rs").to_owned();
        if ["main", "lib"].contains(&module.as_str()) {
            continue;
        }
        let layer = layer_of(&module).unwrap_or_else(|| panic!("{module} is in no layer: give it a place in LAYERS"));
        *modules.entry(module.clone()).or_insert(0) += 1;
        for import in imports(&without_tests(path)).into_iter().filter(|import| *import != module) {
            if layer_of(&import).is_some_and(|of| of >= layer) {
                wrong.push(format!("{} imports {import}", within.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(modules.len(), LAYERS.iter().map(|layer| layer.len()).sum::<usize>(), "{modules:?}");
}

#[test]
fn what_is_imported_is_found_however_it_is_written() {
    let code = "use crate::config::{A, B};\nuse crate::{lease::{A, C}, status_sync::C};\nlet x = crate::db::Y;";
    assert_eq!(imports(code), ["config", "lease", "status_sync", "db"]);
}
