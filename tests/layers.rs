//! Which module may import which: only those of lower layers, and no job another job.

#![expect(clippy::expect_used, reason = "a test that can't read the sources has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// From the lowest to the highest. Modules of one layer know nothing of each other.
const LAYERS: [&[&str]; 8] = [
    &["actor", "config", "expression", "http", "yaml"],
    &["telemetry", "ui"],
    &["amqp", "cluster", "db"],
    &["status"],
    &["documents", "election", "state"],
    &["guard", "job"],
    // What runs jobs is given a list of them, and names none.
    &["app", "check", "cli", "hub", "inventory", "lease", "rbac", "resource_sync", "status_sync", "syncset"],
    &["jobs", "process"],
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
        // They name everything.
        if ["main", "lib", "test_api"].contains(&module.as_str()) {
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

/// The jobs, which have the same rooms.
const JOBS: [&str; 6] = ["hub", "inventory", "lease", "resource_sync", "status_sync", "syncset"];
/// The rooms of each job; those with metrics of their own have them in `metrics`.
const ROOMS: [&str; 5] = ["config", "job", "plan", "run", "status"];

/// The source with each path of a list by itself: `super::{a, b::C}` as `super::a, super::b::C`.
fn written_out(code: &str) -> String {
    let mut code = code.to_owned();
    while let Some(open) = code.rfind("::{") {
        let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
        let begins = code[..open].rfind(|letter| !is_path(letter)).map_or(0, |at| at + 1);
        let closes = code[open..].find('}').map_or(code.len(), |at| open + at);
        let (prefix, names) = (&code[begins..open], code.get(open + 3..closes).unwrap_or_default());
        let each: Vec<String> = names.split(',').map(|name| format!("{prefix}::{}", name.trim())).collect();
        code.replace_range(begins..code.len().min(closes + 1), &each.join(", "));
    }
    code
}

/// The paths of modules that a source names, resolved from the module `own`: `super::a::B`, `crate::c`.
fn paths(code: &str, own: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for text in written_out(code).split(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == ':')) {
        let parts: Vec<&str> = text.split("::").filter(|part| !part.is_empty()).collect();
        let ups = parts.iter().take_while(|part| **part == "super").count();
        let base = match parts.first() {
            Some(&"crate") => &[],
            Some(&"super") => own.get(..own.len().saturating_sub(ups)).unwrap_or_default(),
            _ => continue,
        };
        found.push(base.iter().cloned().chain(parts.iter().skip(ups.max(1)).map(ToString::to_string)).collect());
    }
    found
}

/// The names that a module imports, perhaps for others, with the first part of their paths: `pub use a::{B, c::D}`.
fn given_on(code: &str) -> BTreeMap<String, String> {
    let code = written_out(code);
    let is_list = |text: &str| text.chars().all(|letter| letter.is_alphanumeric() || "_:, \n".contains(letter));
    let lists = code.split(';').filter_map(|item| Some(item.rsplit_once("use ")?.1)).filter(|text| is_list(text));
    let named = lists.flat_map(|list| list.split(',')).filter_map(|path| {
        let (first, rest) = path.trim().trim_start_matches("self::").split_once("::")?;
        let name = rest.rsplit([':', ' ']).next()?;
        (!name.is_empty()).then(|| (name.to_owned(), first.to_owned()))
    });
    named.collect()
}

/// Which modules of a folder import which others of it.
fn imports_within(source: &Path, folder: &str) -> BTreeMap<String, Vec<String>> {
    let base: Vec<String> = folder.split('/').map(str::to_owned).collect();
    let mut all = Vec::new();
    files(&source.join(folder), &mut all);
    let own_path = |path: &Path| -> Vec<String> {
        let within = path.strip_prefix(source).expect("below src").with_extension("");
        let mut parts: Vec<String> = within.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        parts.retain(|part| part != "mod");
        parts
    };
    let own_file = [source.join(folder).join("mod.rs"), source.join(folder).with_extension("rs")];
    let given_on = own_file.iter().find(|file| file.is_file()).map(|file| given_on(&without_tests(file)));
    let given_on = given_on.unwrap_or_default();
    let first = |path: &[String]| path.strip_prefix(base.as_slice())?.first().cloned();
    let modules: BTreeSet<String> = all.iter().filter_map(|path| first(&own_path(path))).collect();
    // A name that is no file may be one that the folder gives on.
    let child = |path: &[String]| {
        let first = first(path)?;
        Some(given_on.get(&first).filter(|_| !modules.contains(&first)).unwrap_or(&first).clone())
    };
    let mut imports = BTreeMap::new();
    for path in &all {
        let own = own_path(path);
        let Some(module) = child(&own) else { continue };
        let of_module: &mut Vec<String> = imports.entry(module.clone()).or_default();
        let named = paths(&without_tests(path), &own);
        of_module.extend(named.iter().filter_map(|path| child(path)).filter(|name| *name != module));
        of_module.retain(|name| modules.contains(name));
    }
    imports
}

#[test]
fn modules_do_not_import_each_other_in_a_circle() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&source, &mut all);
    let folders = all.iter().filter_map(|path| path.strip_prefix(&source).ok()?.parent()?.to_str().map(str::to_owned));
    let folders: BTreeSet<String> = folders.filter(|folder| !folder.is_empty()).collect();
    assert!(JOBS.iter().all(|known| folders.contains(*known)), "{folders:?}");
    for folder in &folders {
        let mut imports = imports_within(&source, folder);
        let is_job = JOBS.contains(&folder.as_str());
        assert!(!is_job || imports.values().any(|named| !named.is_empty()), "{folder}: {imports:?}");
        // A module that imports nothing that is left is in no circle.
        while let Some(module) = imports.iter().find(|(_, named)| named.is_empty()).map(|(module, _)| module.clone()) {
            imports.remove(&module);
            for named in imports.values_mut() {
                named.retain(|name| *name != module);
            }
        }
        assert!(imports.is_empty(), "{folder} has a circle: {imports:#?}");
    }
}

#[test]
fn each_job_has_the_same_rooms() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for job in JOBS {
        for room in ROOMS {
            let place = source.join(job).join(room);
            assert!(place.is_dir() || place.with_extension("rs").is_file(), "{job} has no {room}");
        }
    }
}

#[test]
fn a_name_leads_to_the_module_that_it_is_imported_from() {
    let code = "mod a;\nmod b;\n\nuse std::fmt;\n#[cfg(test)]\npub use a::{\n    A, c::D as E,\n};\npub(super) use self::b::B;\nfn x() { let because = b::y(); }";
    let named: Vec<String> = given_on(code).iter().map(|(name, first)| format!("{name} {first}")).collect();
    assert_eq!(named, ["A a", "B b", "E a", "fmt std"]);
}

#[test]
fn a_path_is_resolved_from_the_module_that_names_it() {
    let own = ["lease", "plan"].map(str::to_owned);
    let code = "use super::config::LeaseConfig; let x = super::super::db::pool(); \
                use crate::lease::{hub::{Hub, Hubs}, run};";
    let paths: Vec<String> = paths(code, &own).iter().map(|path| path.join("/")).collect();
    assert_eq!(paths, ["lease/config/LeaseConfig", "db/pool", "lease/hub/Hub", "lease/hub/Hubs", "lease/run"]);
}
