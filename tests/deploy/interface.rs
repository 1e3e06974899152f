//! What users rely on, in lists of one thing a line: `tests/interface` has those of the last release. A difference fails unless *Unreleased* in
//! CHANGELOG.md names it. `UPDATE_INTERFACE=1 cargo test --test deploy interface` writes the lists anew, when a release is made.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;

use towline::test_api::cli::command_line;
use towline::test_api::jobs::JOBS;
use towline::test_api::rbac::{Scope, requests};

use super::daemon::configuration;
use super::{path, text};

/// Each command with its options and variables.
fn commands() -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = vec![(String::new(), command_line(JOBS))];
    while let Some((above, command)) = left.pop() {
        let name = format!("{above} {}", command.get_name()).trim().to_owned();
        lines.push(name.clone());
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let what =
                argument.get_long().map_or_else(|| format!("<{}>", argument.get_id()), |long| format!("--{long}"));
            let variable =
                argument.get_env().map(|variable| format!(" {}", variable.to_string_lossy())).unwrap_or_default();
            lines.push(format!("{name} {what}{variable}"));
        }
        left.extend(command.get_subcommands().map(|inner| (name.clone(), inner.clone())));
    }
    lines
}

/// Each key with its default, as config/towline.toml has them.
fn keys() -> Vec<String> {
    let (mut table, mut lines) = (String::new(), Vec::new());
    for line in text("config/towline.toml").lines() {
        let line = line.strip_prefix("# ").filter(|key| key.contains(" = ")).unwrap_or(line);
        if line.starts_with('[') {
            line.trim_matches(['[', ']']).clone_into(&mut table);
        } else if let Some((key, default)) = line.split_once(" = ").filter(|(key, _)| !key.contains([' ', '#', '`'])) {
            lines.push(format!("{table}.{key} = {default}"));
        }
    }
    lines
}

fn metrics() -> Vec<String> {
    let labels =
        |labels: &[super::metrics::Label]| labels.iter().fold(String::new(), |text, (label, _)| text + " " + label);
    super::metrics::CLOSED.iter().map(|(name, of)| format!("{name}{}", labels(of))).collect()
}

/// Those of the hub, by the client that is made of its description, and those of the admin server.
fn routes() -> Vec<String> {
    let (mut lines, mut route) = (Vec::new(), String::new());
    for line in text("clients/go/client.gen.go").lines().map(str::trim) {
        if let Some((_, rest)) = line.split_once("operationPath := fmt.Sprintf(\"") {
            route = rest.split('"').next().unwrap_or_default().replace("%s", "{}");
        } else if let Some((_, rest)) = line.split_once("http.NewRequest(http.Method") {
            lines.push(format!("hub {} {route}", rest.split(',').next().unwrap_or_default().to_uppercase()));
        }
    }
    for line in text("src/status/admin.rs").lines().map(str::trim).filter(|line| line.starts_with(".route(\"")) {
        let mut parts = line.split('"').skip(1);
        let (route, method) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let method = method.trim_start_matches(", ").split('(').next().unwrap_or_default().to_uppercase();
        lines.push(format!("admin {method} {route}"));
    }
    lines
}

/// What is asked of the clusters of a configuration of each job.
fn roles() -> Vec<String> {
    let mut lines = BTreeSet::new();
    for (job, file) in [
        ("sync", "deploy/overlays/replicated/towline.toml"),
        ("lease", "config/lease.toml"),
        ("status_sync", "config/status-sync.toml"),
        ("inventory", "config/inventory.toml"),
    ] {
        for (place, scope, request) in requests(&configuration(file)) {
            let within = if scope == Scope::Cluster { "" } else { " in one namespace" };
            let name = if request.name.is_empty() { String::new() } else { format!(" {}", request.name) };
            lines.insert(format!("{job}: {place:?}: {} {}{name}{within}", request.verb, request.full_resource()));
        }
    }
    lines.into_iter().collect()
}

/// The text below the heading *Unreleased*.
fn unreleased() -> String {
    let changes = text("CHANGELOG.md");
    let (_, rest) = changes.split_once("## [Unreleased]\n").expect("a heading");
    rest.split("\n## ").next().unwrap_or_default().to_owned()
}

/// Whether a text names something new or gone by its last word: `--exit-code`, `max_watchers`, `/v1/clusters`.
fn names(text: &str, line: &str) -> bool {
    let line = line.split(" = ").next().unwrap_or_default();
    let word = line.rsplit([' ', '.']).find(|word| !word.is_empty()).unwrap_or_default();
    text.split(|letter: char| letter.is_whitespace() || "`(),;".contains(letter))
        .any(|found| found.trim_end_matches(['.', ':']) == word || found.trim_end_matches(['.', ':']) == line)
}

#[test]
fn what_users_rely_on_changes_only_with_a_line_in_the_changelog() {
    let unreleased = unreleased();
    let mut unnamed = String::new();
    for (list, lines) in
        [("commands", commands()), ("keys", keys()), ("metrics", metrics()), ("routes", routes()), ("roles", roles())]
    {
        let now: BTreeSet<String> = lines.into_iter().collect();
        assert!(now.len() >= 10, "{list}: {now:?}");
        let file = path(&format!("tests/interface/{list}.txt"));
        if std::env::var_os("UPDATE_INTERFACE").is_some() {
            let text = now.iter().fold(String::new(), |text, line| text + line + "\n");
            fs::write(&file, text).expect("the list is written");
        }
        let before: BTreeSet<String> =
            fs::read_to_string(&file).expect("the list of the last release").lines().map(str::to_owned).collect();
        for line in before.symmetric_difference(&now).filter(|line| !names(&unreleased, line)) {
            let what = if now.contains(line) { "new" } else { "gone" };
            let _ = writeln!(unnamed, "{list}: {what}: {line}");
        }
    }
    assert!(unnamed.is_empty(), "write a line under Unreleased in CHANGELOG.md that names each of these:\n{unnamed}");
}

#[test]
fn a_line_names_a_thing_by_its_last_word_or_as_a_whole() {
    let text = "- A key `hub.max_watchers`, (`--exit-code`).";
    for line in ["hub.max_watchers = 1000", "status --exit-code", "x --exit-code"] {
        assert!(names(text, line), "{line}");
    }
    for line in ["hub.max = 1", "status --exit", "max_namespaces"] {
        assert!(!names(text, line), "{line}");
    }
    assert!(names("`max_watchers`", "hub.max_watchers = 1"));
}
