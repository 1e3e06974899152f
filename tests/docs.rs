//! The documentation: its links lead somewhere, and its book has every page.

#![expect(clippy::expect_used, reason = "a test may fail anywhere; the lints' exemption knows only `#[test]`")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use towline::test_api::cli::{command_line, plugin_command_line};
use towline::test_api::jobs::JOBS;

/// The pages of the book that are made of the program and of config/towline.toml.
const MADE: [&str; 2] = ["docs/commands.md", "docs/keys.md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages that people read, by their paths in the repository. The summary is one of a book that begins at the root.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for directory in ["", "docs", "deploy", "clients/go"] {
        let entries = fs::read_dir(root().join(directory)).expect("a directory");
        let files = entries.map(|entry| Path::new(directory).join(entry.expect("an entry").file_name()));
        pages.extend(files.filter(|file| file.extension().is_some_and(|extension| extension == "md")));
    }
    pages
}

fn text(page: &Path) -> String {
    fs::read_to_string(root().join(page)).expect("a page")
}

/// The text without what is code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.extend(line.split('`').step_by(2).chain(["\n"]));
        }
    }
    prose
}

/// The targets of the links in a text: `[…](target)`.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    prose.split("](").skip(1).map(|rest| rest.split(')').next().unwrap_or_default().to_owned()).collect()
}

/// The names by which links reach the headings of a text, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            anchors.insert(kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect());
        }
    }
    anchors
}

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            part => normal.push(part),
        }
    }
    normal
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_of_it() {
    // `make docs` makes them.
    let is_made = |page: &Path| MADE.map(Path::new).contains(&page);
    let mut broken = Vec::new();
    let mut count = 0;
    for page in pages() {
        let begins =
            if page == Path::new("docs/SUMMARY.md") { Path::new("") } else { page.parent().unwrap_or(Path::new("")) };
        for link in links(&text(&page)).into_iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        {
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.clone() } else { begins.join(path) };
            let is_there = is_made(&target) || root().join(&target).exists();
            if !is_there || (!anchor.is_empty() && !anchors(&text(&target)).contains(anchor)) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(count > 100, "{count}");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_book_has_every_page() {
    let listed: BTreeSet<PathBuf> = links(&text(Path::new("docs/SUMMARY.md"))).into_iter().map(PathBuf::from).collect();
    let not_listed = ["docs/SUMMARY.md", "clients/go/README.md"].map(PathBuf::from);
    let others = MADE.into_iter().chain(["tests/promises.md"]).map(PathBuf::from);
    let expected: BTreeSet<PathBuf> =
        pages().into_iter().filter(|page| !not_listed.contains(page)).chain(others).collect();
    assert_eq!(listed, expected);
    // The book turns a link to a page into one to its HTML, also where it has no such page, and has no page of a directory.
    for page in listed.iter().filter(|page| !MADE.map(Path::new).contains(&page.as_path())) {
        for link in links(&text(page)).into_iter().filter(|link| !link.contains("://") && !link.starts_with('#')) {
            let target = link.split('#').next().unwrap_or_default();
            let is_page = Path::new(target).extension().is_some_and(|extension| extension == "md");
            let target = normal(&page.parent().unwrap_or(Path::new("")).join(target));
            let is_there = if is_page { listed.contains(&target) } else { !root().join(&target).is_dir() };
            assert!(is_there, "{}: {link} is not in the book", page.display());
        }
    }
}

#[test]
fn the_page_of_commands_has_all_options_of_all_commands() {
    let made = Command::new(root().join("hack/commands.sh")).arg(env!("CARGO_BIN_EXE_towline")).output();
    let made = made.expect("the script runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let page = String::from_utf8(made.stdout).expect("text");
    let mut left: Vec<(String, clap::Command)> = Vec::new();
    for (name, line) in [("towline", command_line(JOBS)), ("kubectl towline", plugin_command_line(JOBS))] {
        left.extend(line.get_subcommands().map(|command| (name.to_owned(), command.clone())));
    }
    let mut count = 0;
    while let Some((above, command)) = left.pop() {
        let name = match command.get_name() {
            of_section if of_section.ends_with("-section") => {
                // The same for both programs.
                format!("towline {} SECTION", of_section.trim_end_matches("-section"))
            }
            _ if command.is_hide_set() => continue,
            name => format!("{above} {name}"),
        };
        let of_command = page.split("\n## ").find(|part| part.lines().next() == Some(&name));
        let of_command = of_command.unwrap_or_else(|| panic!("{name} is not on the page"));
        for option in command.get_arguments().filter(|option| !option.is_hide_set()).filter_map(clap::Arg::get_long) {
            assert!(of_command.contains(&format!("--{option}")), "{name} --{option}");
        }
        left.extend(command.get_subcommands().map(|inner| (name.clone(), inner.clone())));
        count += 1;
    }
    assert!(count > 50, "{count}");
}

#[test]
fn links_and_headings_are_read_as_they_are_written() {
    let page = "# A `b` c, d\n[x](a.md#b) `[no](no.md)` [y](#z)\n```sh\n# no heading\n[no](no.md)\n```\n";
    assert_eq!(links(page), ["a.md#b", "#z"]);
    assert_eq!(anchors(page), BTreeSet::from(["a-b-c-d".to_owned()]));
}
