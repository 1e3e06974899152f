//! Each rule of a specification has a test. The tables in `rules/` name for each rule the tests that show that it holds: a rule without
//! tests, a rule that is missing or unknown, and a test that does not exist fail here.
//!
//! A table has a line for each rule: its identifier, and in a few words what it says. The tests follow, one in an indented line: file and name.
//! An empty line, and one that begins with `#`, says nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The tables, and the rules that each must have: letters with the number of their rules, in the order of the specification. `test` stands
/// for its list of tests.
const TABLES: [(&str, &[(&str, usize)]); 4] = [
    ("hub", &[("C", 5), ("D", 5), ("S", 7), ("W", 9), ("V", 8), ("A", 5), ("L", 6), ("T", 8), ("X", 7), ("test ", 6)]),
    ("bus", &[("K", 7), ("Q", 8), ("P", 5), ("E", 1), ("R", 6), ("M", 5)]),
    ("syncsets", &[("", 45)]),
    ("inventory", &[("", 18)]),
];

/// A rule as a table has it.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    name: String,
    says: String,
    /// File and name of each test.
    tests: Vec<(String, String)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Reads a table. What is no rule and no test is an error.
fn read(table: &str) -> Result<Vec<Rule>, String> {
    let mut rules: Vec<Rule> = Vec::new();
    for (index, line) in table.lines().enumerate() {
        let wrong = |what: &str| Err(format!("line {}: {what}: {line}", index + 1));
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with(' ') {
            let words: Vec<&str> = line.split_whitespace().collect();
            match (&words[..], rules.last_mut()) {
                ([file, test], Some(rule)) => rule.tests.push(((*file).to_owned(), (*test).to_owned())),
                (_, None) => return wrong("a test of no rule"),
                _ => return wrong("not a file and the name of a test"),
            }
        } else if let Some((name, says)) = line.split_once("  ").filter(|(_, says)| !says.trim().is_empty()) {
            rules.push(Rule { name: name.to_owned(), says: says.trim().to_owned(), tests: Vec::new() });
        } else {
            return wrong("a rule needs two spaces between its identifier and what it says");
        }
    }
    Ok(rules)
}

/// The names of the tests in a source: functions with an attribute that makes them tests, and with none that leaves them out.
fn tests_in(source: &str) -> BTreeSet<String> {
    let (mut found, mut is_test, mut is_ignored) = (BTreeSet::new(), false, false);
    for line in source.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if line.starts_with("#[ignore") {
            is_ignored = true;
        } else if let Some(name) = line.trim_start_matches("async ").strip_prefix("fn ") {
            if is_test && !is_ignored {
                found.insert(name.split('(').next().unwrap_or_default().to_owned());
            }
            (is_test, is_ignored) = (false, false);
        } else if !line.is_empty() && !line.starts_with("//") && !line.starts_with('#') {
            // The attribute was that of something else, unless this is its next line.
            is_test &= !line.contains('}');
        }
    }
    found
}

/// Whether the file is a part of the program or of a test: another source names it as its module.
fn is_compiled(file: &Path) -> bool {
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = file.parent().unwrap_or(Path::new(""));
    // `tests/a.rs` and `tests/a/main.rs` are targets of their own.
    let targets = ["tests", "integration/tests"].map(|folder| root().join(folder));
    let is_target = |path: &Path| targets.iter().any(|folder| path.parent() == Some(folder));
    if is_target(file) || stem(file) == "main" && is_target(folder) {
        return true;
    }
    let (module, within) = match stem(file).as_str() {
        "mod" => (stem(folder), folder.parent().unwrap_or(Path::new("")).to_owned()),
        other => (other.to_owned(), folder.to_owned()),
    };
    let own = within.with_extension("rs");
    let parents = ["mod.rs", "main.rs", "lib.rs"].map(|name| within.join(name));
    parents.iter().chain([&own]).any(|parent| {
        let source = std::fs::read_to_string(parent).unwrap_or_default();
        source.lines().any(|line| line.ends_with(&format!("mod {module};")))
    })
}

/// What is wrong with a table.
fn faults(rules: &[Rule], wanted: &[(&str, usize)]) -> Vec<String> {
    let mut faults = Vec::new();
    let names: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    let wanted: Vec<String> =
        wanted.iter().flat_map(|(letter, count)| (1..=*count).map(move |number| format!("{letter}{number}"))).collect();
    if names != wanted {
        let missing: Vec<_> = wanted.iter().filter(|name| !names.contains(&name.as_str())).collect();
        let unknown: Vec<_> = names.iter().filter(|name| !wanted.contains(&(**name).to_owned())).collect();
        faults.push(format!("missing: {missing:?}, unknown: {unknown:?}, or twice or not in their order"));
    }
    let mut files = BTreeMap::new();
    for Rule { name, says, tests } in rules {
        if tests.is_empty() {
            faults.push(format!("{name} ({says}) has no test"));
        }
        for (file, test) in tests {
            let path = root().join(file);
            let (is_compiled, there) = files.entry(file).or_insert_with(|| {
                let source = std::fs::read_to_string(&path).unwrap_or_default();
                (is_compiled(&path), tests_in(&source))
            });
            if !*is_compiled {
                faults.push(format!("{name} ({says}): no source names {file} as its module"));
            } else if !there.contains(test) {
                faults.push(format!("{name} ({says}): there is no test {test} in {file}"));
            }
        }
        if tests.iter().collect::<BTreeSet<_>>().len() < tests.len() {
            faults.push(format!("{name} ({says}) has a test twice"));
        }
    }
    faults
}

#[test]
fn each_rule_of_each_specification_has_a_test_that_exists() {
    let mut all = Vec::new();
    for (name, wanted) in TABLES {
        let table = std::fs::read_to_string(root().join(format!("tests/rules/{name}.txt"))).expect("a table");
        match read(&table) {
            Ok(rules) => all.extend(faults(&rules, wanted).into_iter().map(|fault| format!("{name}.txt: {fault}"))),
            Err(error) => all.push(format!("{name}.txt: {error}")),
        }
    }
    assert!(all.is_empty(), "{all:#?}");
}

#[test]
fn each_fault_of_a_table_is_found() {
    let own = "tests/rules.rs each_fault_of_a_table_is_found";
    let wanted = [("A", 2), ("test ", 1)];
    let right = format!("# A comment.\nA1  one\n  {own}\n\nA2  two\n  {own}\ntest 1  three\n  {own}\n");
    assert_eq!(faults(&read(&right).expect("a table"), &wanted), [""; 0]);
    for (from, to, fault) in [
        ("A2  two\n", "", "missing: [\"A2\"]"),
        ("A2  two\n", "A3  two\n", "unknown: [\"A3\"]"),
        ("A2  two\n", "A1  two\n", "or twice"),
        ("two\n  tests/rules.rs each_fault_of_a_table_is_found\n", "two\n", "A2 (two) has no test"),
        ("three\n  tests/rules.rs each", "three\n  tests/rules.rs some", "no test some_fault_of"),
        ("three\n  tests/rules.rs", "three\n  tests/ruler.rs", "no test each_fault_of"),
        ("three\n  tests/rules.rs", "three\n  tests/rules/hub.txt", "no source names tests/rules/hub.txt"),
        ("three\n", "three\n  tests/rules.rs each_fault_of_a_table_is_found\n", "has a test twice"),
    ] {
        let table = right.replacen(from, to, 1);
        assert_ne!(table, right, "{from}");
        let found = faults(&read(&table).expect("a table"), &wanted).join("; ");
        assert!(found.contains(fault), "no {fault} in {found}");
    }
    for wrong in ["  file test\n", "A1 one\n", "A1  \n", "A1  one\n  file\n", "A1  one\n  file test twice\n"] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn tests_are_told_from_other_functions() {
    let source = "/// Words.\n#[test]\nfn one() {\n    fn inner() {}\n}\nfn two() {}\n#[tokio::test(start_paused = true)]\n\
        async fn three() {}\n#[test]\n#[ignore = \"slow\"]\nfn four() {}\nproptest! {\n    /// Words.\n    #[test]\n    \
        fn five(a in 0..5) {}\n}\n#[test]\n#[expect(\n    lint,\n    reason = \"b\"\n)]\nfn six() {}\n";
    assert_eq!(tests_in(source).into_iter().collect::<Vec<_>>(), ["five", "one", "six", "three"]);
}

/// X7: an operator can read what the hub server leaves to others.
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
