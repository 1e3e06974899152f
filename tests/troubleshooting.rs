//! `docs/troubleshooting.md` names every value of the closed sets that `/status`, metrics, Events and commands show, and every alert.
//!
//! The sets are read from the sources: some are private, and an enum can't be asked for its variants. A set that has moved or
//! changed its form fails with the place where it was looked for.

#![expect(clippy::expect_used, reason = "a test that can't read the sources has failed")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Values that are shown as they are: folder below `src`, what they are a part of, and the function that gives them.
const WORDS: [(&str, &str, &str); 21] = [
    ("status", "impl ObjectState {", "fn as_str("),
    ("cluster", "impl ClusterState {", "fn as_str("),
    ("cluster", "impl Error {", "fn kind("),
    ("db", "impl Error {", "fn kind("),
    ("documents", "impl ProblemKind {", "fn as_str("),
    ("guard", "impl GuardedChange {", "fn as_str("),
    ("guard", "impl GuardedChange {", "fn phrase("),
    ("resource_sync", "impl Step {", "fn name("),
    ("resource_sync", "impl EventKind {", "fn reason("),
    ("resource_sync", "impl Contended {", "fn action("),
    ("state", "impl CachedState {", "fn report("),
    ("lease", "impl Obstacle {", "fn state("),
    ("lease", "impl Obstacle {", "fn reason("),
    ("status_sync", "impl Waiting {", "fn as_str("),
    ("syncset", "impl Release {", "fn as_str("),
    ("syncset", "impl Reason {", "fn as_str("),
    ("syncset/plan/rollout", "impl RolloutPhase {", "fn as_str("),
    ("syncset/plan/rollout", "impl ProgressReason {", "fn as_str("),
    ("syncset", "impl Cause {", "fn as_str("),
    ("syncset", "impl Cause {", "fn reason("),
    ("resource_sync", "impl fmt::Display for Unproven {", "fn fmt("),
];

/// Enums whose variants are shown in snake case.
const VARIANTS: [(&str, &str); 3] =
    [("status", "pub enum SectionState {"), ("status", "pub enum Readiness {"), ("actor", "pub enum ExitReason {")];

/// Sentences with names in them: their parts are looked for.
const SENTENCES: [(&str, &str); 12] = [
    ("resource_sync", "impl Waits {"),
    ("resource_sync", "impl fmt::Display for Elsewhere {"),
    ("cluster", "impl fmt::Display for Objection {"),
    ("cluster", "impl fmt::Display for Replaced {"),
    ("cluster", "impl fmt::Display for FieldProblem {"),
    ("cluster", "pub enum Fault {"),
    ("lease", "pub enum Error {"),
    ("hub", "fn not_ready(&self) -> Option<NotReady> {"),
    ("http", "pub enum FileError {"),
    ("hub", "fn grant(name: &str"),
    ("documents", "pub enum InvalidKeys {"),
    ("documents", "pub enum OpenError {"),
];

/// Shorter parts of a sentence, such as ` in `, are anywhere.
const SHORTEST_PART: usize = 9;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn page() -> String {
    let page = std::fs::read_to_string(root().join("docs/troubleshooting.md")).expect("the page");
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every file below a folder whose name ends with `.extension`.
fn files(folder: &str, extension: &str) -> Vec<String> {
    let mut folders = vec![root().join(folder)];
    let mut found = Vec::new();
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|of_file| of_file == extension) {
                found.push(std::fs::read_to_string(path).expect("a file"));
            }
        }
    }
    found
}

/// Every source file below a folder, without its tests and comments.
fn sources(folder: &str) -> Vec<String> {
    let code_of = |text: String| {
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let code = code.join("\n");
        code.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned()
    };
    files(&format!("src/{folder}"), "rs").into_iter().map(code_of).collect()
}

/// The alerts of a file with rules for Prometheus.
fn alerts(rules: &str) -> Vec<String> {
    let name_of = |line: &str| {
        let line = line.trim();
        let name = line.strip_prefix("- ").unwrap_or(line).strip_prefix("alert:")?;
        Some(name.trim().trim_matches(['"', '\'']).to_owned())
    };
    rules.lines().filter_map(name_of).collect()
}

/// The names between backquotes in a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// From where `anchor` begins to the brace that closes what it opens. Braces in texts come in pairs.
fn block<'t>(text: &'t str, anchor: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(anchor)?;
    // The anchor may hold the opening brace.
    let mut depth = usize::from(anchor.ends_with('{'));
    for (at, letter) in rest.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => return rest.get(..at),
            '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

/// What an anchor opens, in the one source below the folder that has it.
fn block_in(folder: &str, anchor: &str) -> String {
    block_with(folder, anchor, "")
}

/// The same in the one source where this is in it.
fn block_with(folder: &str, anchor: &str, part: &str) -> String {
    let all: Vec<String> = sources(folder)
        .iter()
        .filter_map(|source| block(source, anchor))
        .filter(|block| block.contains(part))
        .map(str::to_owned)
        .collect();
    assert_eq!(all.len(), 1, "src/{folder}: `{anchor}` with `{part}` is to be in one file");
    all.into_iter().next().unwrap_or_default()
}

/// The texts between quotes, with continued lines put together.
fn literals(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut letters = code.chars();
    while letters.by_ref().any(|letter| letter == '"') {
        let mut text = String::new();
        while let Some(letter) = letters.next() {
            match letter {
                '"' => break,
                '\\' => match letters.next() {
                    // What follows a continued line is collapsed with the white space of the page.
                    Some('\n') => text.push(' '),
                    Some(escaped) => text.push(escaped),
                    None => break,
                },
                other => text.push(other),
            }
        }
        found.push(text.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    found
}

/// The parts of a sentence between its names. `{KUBECONFIG}` is the one that is always the same.
fn parts(sentence: &str) -> Vec<String> {
    let sentence = sentence.replace("{KUBECONFIG}", "kubeconfig");
    let mut found = Vec::new();
    let mut rest = sentence.as_str();
    while let Some((part, behind)) = rest.split_once('{') {
        found.push(part.trim().to_owned());
        rest = behind.split_once('}').map_or("", |(_, behind)| behind);
    }
    found.push(rest.trim().to_owned());
    found.retain(|part| part.chars().count() >= SHORTEST_PART);
    found
}

/// `NotReady` as `not_ready`.
fn snake_case(variant: &str) -> String {
    let mut text = String::new();
    for letter in variant.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

fn variants(code: &str) -> Vec<String> {
    let is_variant = |line: &&str| line.starts_with(|first: char| first.is_ascii_uppercase());
    let name_of =
        |line: &str| snake_case(line.split(|letter: char| !letter.is_ascii_alphanumeric()).next().unwrap_or_default());
    code.lines().map(str::trim).filter(is_variant).map(name_of).collect()
}

#[test]
fn every_value_of_a_closed_set_is_named() {
    let page = page();
    let mut missing = Vec::new();
    for (folder, of, function) in WORDS {
        let code = block_with(folder, of, function);
        let body = block(&code, function).unwrap_or_else(|| panic!("src/{folder}: `{of}` has no `{function}`"));
        let words: Vec<String> = literals(body).into_iter().filter(|word| !word.contains(['{', '('])).collect();
        assert!(words.len() >= 2, "src/{folder}: `{of}` `{function}` gives {words:?}");
        for word in words.iter().filter(|word| !word.is_empty()) {
            // A phrase stands in a sentence; a word by itself.
            let is_named = if word.contains(' ') { page.contains(word) } else { page.contains(&format!("`{word}`")) };
            if !is_named {
                missing.push(format!("src/{folder} {of} {function}): {word}"));
            }
        }
    }
    for (folder, anchor) in VARIANTS {
        let words = variants(&block_in(folder, anchor));
        assert!(words.len() >= 2, "src/{folder}: `{anchor}` gives {words:?}");
        let not_named = words.into_iter().filter(|word| !page.contains(&format!("`{word}`")));
        missing.extend(not_named.map(|word| format!("src/{folder} {anchor}: {word}")));
    }
    assert!(missing.is_empty(), "docs/troubleshooting.md does not name {missing:#?}");
}

#[test]
fn every_sentence_about_a_cause_is_named() {
    let page = page();
    let mut missing = Vec::new();
    for (folder, anchor) in SENTENCES {
        let sentences = literals(&block_in(folder, anchor));
        let told: Vec<String> = sentences.iter().flat_map(|sentence| parts(sentence)).collect();
        assert!(!told.is_empty(), "src/{folder}: `{anchor}` gives {sentences:?}");
        let not_named = told.into_iter().filter(|part| !page.contains(part.as_str()));
        missing.extend(not_named.map(|part| format!("src/{folder} {anchor}: {part}")));
    }
    assert!(missing.is_empty(), "docs/troubleshooting.md does not name {missing:#?}");
}

#[test]
fn the_table_of_alerts_has_every_alert_of_deploy_and_no_other() {
    let rules: BTreeSet<String> = files("deploy", "yaml").iter().flat_map(|rules| alerts(rules)).collect();
    assert!(rules.contains("TowlineDown"), "deploy has {rules:?}");
    let page = page();
    let (_, table) = page.split_once("## Alerts").expect("the part about alerts");
    let named = quoted(table).filter(|name| name.starts_with("Towline")).map(str::to_owned);
    assert_eq!(named.collect::<BTreeSet<_>>(), rules);
}

#[test]
fn texts_parts_and_variants_are_found_however_they_are_written() {
    assert_eq!(alerts("  - alert: A\n    expr: b\n  - expr: alert\n    alert: \"C\"\n"), ["A", "C"]);
    assert_eq!(quoted("| `A`, `B` | see `c` |").collect::<Vec<_>>(), ["A", "B", "c"]);
    let code = "fn a() { say(\"one \\\n   two\", \"three \\\"four\\\"\") }";
    assert_eq!(literals(code), ["one two", "three \"four\""]);
    assert_eq!(
        parts("cluster {name} is the other of {a} and of nobody else"),
        ["is the other of", "and of nobody else"]
    );
    assert_eq!(variants("\n    A,\n    /// Told.\n    NotReady(String),\n"), ["a", "not_ready"]);
    assert_eq!(block("impl A { fn b() { c(\"{d}\") } } fn e() {}", "fn b("), Some(") { c(\"{d}\") "));
}
