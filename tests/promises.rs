//! Each promise of `promises.md` has a test that exists: a promise is an item of a list, whose second line names it as
//! `cargo test --package integration --test BINARY MODULE::NAME` takes it, or a unit test as `lib MODULE::NAME`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The source of a module of the integration tests or of the library; empty if there is none.
fn source(binary: &str, module: &str) -> String {
    let folder = if binary == "lib" { root().join("src") } else { root().join("integration/tests").join(binary) };
    std::fs::read_to_string(folder.join(format!("{}.rs", module.replace("::", "/")))).unwrap_or_default()
}

/// Whether a function of a source is a test that is run.
fn is_test(source: &str, name: &str) -> bool {
    let Some((before, _)) = source.split_once(&format!("fn {name}(")) else { return false };
    let attributes = before.rsplit(['}', ';']).next().unwrap_or_default();
    attributes.contains("test]") && !attributes.contains("#[ignore")
}

/// What is wrong with a list of promises. `source` gives the source of a module of a binary.
fn faults(list: &str, source: impl Fn(&str, &str) -> String) -> Vec<String> {
    let (mut faults, mut named) = (Vec::new(), BTreeSet::new());
    let mut lines = list.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(promise) = line.strip_prefix("- ") else { continue };
        let test = lines.next_if(|line| line.starts_with("  ")).unwrap_or_default().trim().trim_matches('`');
        match test.split_once(' ').and_then(|(binary, path)| Some((binary, path.rsplit_once("::")?))) {
            None => faults.push(format!("{promise} names no test")),
            Some((binary, (module, name))) if !is_test(&source(binary, module), name) => {
                faults.push(format!("{promise} There is no test {test}"));
            }
            Some(_) if !named.insert(test) => faults.push(format!("{promise} {test} shows another one")),
            Some(_) => {}
        }
    }
    if named.is_empty() {
        faults.push("there are no promises".to_owned());
    }
    faults
}

#[test]
fn each_promise_has_a_test_of_its_own() {
    let list = std::fs::read_to_string(root().join("tests/promises.md")).expect("the list");
    assert_eq!(faults(&list, source), [""; 0]);
}

#[test]
fn each_fault_of_the_list_is_found() {
    let source = |binary: &str, module: &str| match (binary, module) {
        ("clusters", "leases::clock") => {
            "fn help() {}\n\n/// Words.\n#[test]\nfn one() {}\n\n#[test]\n#[ignore = \"slow\"]\nfn two() {}\n"
        }
        _ => "",
    };
    let found = |list: &str| faults(list, |binary, module| source(binary, module).to_owned());
    assert_eq!(found("# Words\n\n- A.\n  `clusters leases::clock::one`\n"), [""; 0]);
    for (list, fault) in [
        ("- A.\n  `clusters leases::clock::two`\n", "no test clusters leases::clock::two"),
        ("- A.\n  `clusters leases::clock::help`\n", "no test clusters leases::clock::help"),
        ("- A.\n  `clusters other::one`\n", "no test clusters other::one"),
        ("- A.\n- B.\n  `clusters leases::clock::one`\n", "A. names no test"),
        ("- A.\n  `clusters leases::clock::one`\n- B.\n  `clusters leases::clock::one`\n", "shows another one"),
        ("# Words\n", "no promises"),
    ] {
        assert!(found(list).iter().any(|found| found.contains(fault)), "no {fault} in {:?}", found(list));
    }
}

/// All sources below a folder.
fn sources(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        all.extend(if path.is_dir() { sources(&path) } else { std::fs::read_to_string(path).into_iter().collect() });
    }
    all
}

/// Whether a source compares the played answer of a request in a state with a real one (`integration/src/page.rs`): a call names both, or a
/// line of the loop around it names what it does not.
fn compares(source: &str, request: &str, state: &str) -> bool {
    source.match_indices("page::agrees(").any(|(at, _)| {
        let (before, call) = source.split_at(at);
        let names = call.split('&').next().unwrap_or_default();
        let lines = match before.rfind("for (") {
            Some(start) if names.matches('"').count() < 4 => before.get(start..).unwrap_or_default(),
            _ => "",
        };
        let has = |line: &str, name: &str| format!("{names}{line}").contains(&format!("{name:?}"));
        lines.lines().chain([""]).any(|line| has(line, request) && has(line, state))
    })
}

#[test]
fn each_answer_that_the_tests_of_the_page_play_is_compared_with_a_real_one() {
    let text = std::fs::read_to_string(root().join("tests/page/answers.json")).expect("the answers");
    let answers: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_str(&text).expect("requests with states");
    let all = sources(&root().join("integration/tests"));
    let played = answers.iter().flat_map(|(request, states)| states.keys().map(move |state| (request, state)));
    let never: Vec<_> =
        played.filter(|(request, state)| !all.iter().any(|source| compares(source, request, state))).collect();
    assert_eq!(never, []);
}

#[test]
fn an_answer_is_compared_where_a_call_or_its_loop_names_it() {
    let source = r#"
        for (path, request, state) in [
            ("/a/lane", "/a/", "held"),
            ("/b/lane", "/b/", "well"),
        ] {
            page::agrees(request, state, &read(path)).unwrap();
        }
        page::agrees("/c", "failing", &read("/c")).unwrap();
        for (path, request) in [("/d", "/d"), ("/e", "/e")] {
            page::agrees(request, "stopped", &read(path)).unwrap();
        }
    "#;
    for (request, state) in [("/a/", "held"), ("/b/", "well"), ("/c", "failing"), ("/d", "stopped"), ("/e", "stopped")]
    {
        assert!(compares(source, request, state), "{request} {state}");
    }
    for (request, state) in [("/a/", "well"), ("/c", "held"), ("/c", "stopped"), ("/d", "failing"), ("/f", "held")] {
        assert!(!compares(source, request, state), "{request} {state}");
    }
}

/// An operator can read what the hub server leaves to others.
#[test]
fn the_manual_says_what_the_hub_server_does_not_protect() {
    let manual = std::fs::read_to_string(root().join("SECURITY.md")).expect("SECURITY.md");
    let (_, part) = manual.split_once("## What the hub server does not protect").expect("the part");
    let part = part.split("\n## ").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [
        "can obtain its Secrets",
        "SelectorSyncSets send to them",
        "network policy",
        "old primary from accepting writes",
    ] {
        assert!(part.contains(said), "{said}");
    }
}
