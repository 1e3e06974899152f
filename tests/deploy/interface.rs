//! What users rely on, in lists of one thing a line: `tests/interface` has those of the last release. A difference fails unless an entry of
//! *Unreleased* in CHANGELOG.md names it: has every word of the line. `UPDATE_INTERFACE=1 cargo test --test deploy interface` writes the lists anew, when a release is made.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;

use towline::test_api::cli::{command_line, plugin_command_line};
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
    lines.extend(commands_of_the_plugin());
    lines
}

/// Those of `kubectl towline`, without the options that they have as commands of `towline`.
fn commands_of_the_plugin() -> Vec<String> {
    let line = plugin_command_line(JOBS);
    let name = line.get_name();
    let options = line.get_arguments().filter_map(|argument| Some(format!("{name} --{}", argument.get_long()?)));
    let commands = line.get_subcommands().filter(|command| !command.is_hide_set());
    options.chain(commands.map(|command| format!("{name} {}", command.get_name()))).collect()
}

/// Whether a comment is a key that has no default, and no sentence.
fn is_key(comment: &str) -> bool {
    let value = comment.split_once(" = ").map(|(_, value)| value);
    value.is_some_and(|value| !value.starts_with('"') || value.split('"').nth(2).is_some_and(str::is_empty))
}

/// Each key with its default, as config/towline.toml has them.
fn keys() -> Vec<String> {
    let (mut table, mut lines) = (String::new(), Vec::new());
    for line in text("config/towline.toml").lines() {
        let line = line.strip_prefix("# ").filter(|key| is_key(key)).unwrap_or(line);
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

/// The words of each entry below the heading *Unreleased*.
fn entries(changes: &str) -> Vec<BTreeSet<String>> {
    let (_, rest) = changes.split_once("## [Unreleased]\n").expect("a heading");
    let unreleased = format!("\n{}", rest.split("\n## ").next().unwrap_or_default());
    let words = |entry: &str| {
        let words = entry.split(|letter: char| letter.is_whitespace() || "`\"(),;".contains(letter));
        words.map(|word| without_parameters(word.trim_end_matches(['.', ':']))).collect()
    };
    unreleased.split("\n- ").skip(1).map(words).collect()
}

/// `/v1/{kind}/{name}` becomes `/v1/{}/{}`, as the list of routes has it.
fn without_parameters(route: &str) -> String {
    let mut parts = route.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "{}" + part.split_once('}').map_or("", |(_, rest)| rest))
}

/// What an entry has to say of a line: of a key its path, of a role who may do what, of all else every word.
fn words(line: &str) -> Vec<String> {
    let line = line.split(" = ").next().unwrap_or_default();
    let line = line.trim_start_matches("towline ").trim_end_matches(" in one namespace");
    let is_place = |word: &str| word.starts_with("Cluster(") || word == "HubOfSecret:";
    let words = line.split(' ').filter(|word| !is_place(word));
    words.map(|word| without_parameters(word.trim_end_matches(':'))).collect()
}

fn names(entries: &[BTreeSet<String>], line: &str) -> bool {
    let words = words(line);
    entries.iter().any(|entry| words.iter().all(|word| entry.contains(word)))
}

/// Whether a line is an option of a command that is new or gone with all of it.
fn goes_with_its_command(line: &str, changed: &[&String]) -> bool {
    let command = line.split(' ').take_while(|word| !word.starts_with(['-', '<'])).collect::<Vec<_>>().join(" ");
    command != line && changed.iter().any(|changed| **changed == command)
}

#[test]
fn what_users_rely_on_changes_only_with_a_line_in_the_changelog() {
    let entries = entries(&text("CHANGELOG.md"));
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
        let changed: Vec<&String> = before.symmetric_difference(&now).collect();
        for line in &changed {
            if names(&entries, line) || (list == "commands" && goes_with_its_command(line, &changed)) {
                continue;
            }
            let what = if now.contains(*line) { "new" } else { "gone" };
            let _ = writeln!(unnamed, "{list}: {what}: {line}");
        }
    }
    assert!(
        unnamed.is_empty(),
        "write an entry under Unreleased in CHANGELOG.md that has the words of each of these:\n{unnamed}"
    );
}

#[test]
fn an_entry_names_a_thing_by_all_its_words() {
    let entries = entries(
        "## [Unreleased]\n\n### Added\n\n- A key `hub.max_watchers`, and `towline status\n  --exit-code`.\n\
         - The metric `towline_held` (`section`), and `GET /v1/{kind}/{name}` of the hub.\n\
         - `sync` needs `patch` for `databases.demo/status`: no namespace.\n\n## [0.1.0]\n\n- `old`\n",
    );
    for line in [
        "hub.max_watchers = 1000",
        "towline status --exit-code",
        "towline_held section",
        "hub GET /v1/{}/{}",
        "sync: Cluster(\"hub\"): patch databases.demo/status in one namespace",
    ] {
        assert!(names(&entries, line), "{line}");
    }
    for line in [
        "max_watchers = 1",
        "hub.max = 1",
        "syncsets.max_watchers = 1",
        "towline status --exit",
        "towline approve --exit-code",
        "towline_held section state",
        "towline_other section",
        "hub PUT /v1/{}/{}",
        "hub GET /v1/{}",
        "sync: Cluster(\"hub\"): delete databases.demo/status in one namespace",
        "lease: Cluster(\"hub\"): patch databases.demo/status in one namespace",
        "towline old",
    ] {
        assert!(!names(&entries, line), "{line}");
    }
}

#[test]
fn options_go_with_a_command_that_is_new_as_a_whole() {
    let changed = ["towline new", "towline new <name>", "towline old --flag"].map(str::to_owned);
    let changed: Vec<&String> = changed.iter().collect();
    let alone: Vec<_> = changed.iter().filter(|line| !goes_with_its_command(line, &changed)).collect();
    assert_eq!(alone, [&changed[0], &changed[2]]);
}
