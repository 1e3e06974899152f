//! The configurations in the documents are valid, as far as they go.

use std::path::{Path, PathBuf};

use crate::config::Error;

/// The README, and the pages in `docs/`.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_dir(root.join("docs")).expect("the folder docs/ is there");
    let docs = docs.map(|entry| entry.expect("an entry of docs/").path());
    docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .chain([root.join("README.md")])
        .collect()
}

/// The configurations in a page: blocks of TOML, and files that a command writes.
fn configurations(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let end = match line.trim() {
            "```toml" => "```",
            line if line.ends_with(".toml <<'END'") => "END",
            _ => continue,
        };
        let inside: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != end).collect();
        found.push(inside.join("\n"));
    }
    found
}

/// The values of the keys that name a cluster.
fn named_clusters(configuration: &str) -> Vec<&str> {
    let values = configuration.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        ["cluster", "remote", "local"].contains(&key.trim()).then(|| value.split('"').nth(1))?
    });
    let mut names: Vec<&str> = values.collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn every_configuration_in_the_documents_is_valid() {
    let mut checked = 0;
    for path in pages() {
        let page = std::fs::read_to_string(&path).expect("a readable page");
        for mut configuration in configurations(&page) {
            // A page that shows a section leaves out its clusters, and a database's URL comes from the environment.
            let names: Vec<String> = named_clusters(&configuration).into_iter().map(str::to_owned).collect();
            for name in names {
                let table = format!("[clusters.{name}]");
                if !configuration.contains(&table) {
                    configuration = format!("{configuration}\n{table}\nkubeconfig = \"{name}\"\n");
                }
            }
            let needs_database = configuration.contains("[status_sync]") && !configuration.contains("\ndatabase_url");
            let url = ("TOWLINE__STATUS_SYNC__DATABASE_URL".to_owned(), "postgres://u:p@db/hoh".to_owned());
            if let Err(error) = crate::jobs::JOBS.parse(&configuration, needs_database.then_some(url)) {
                let faults = match error {
                    Error::Invalid(faults) => faults.to_string(),
                    other => other.to_string(),
                };
                panic!("{}:\n{configuration}\n{faults}", path.display());
            }
            checked += 1;
        }
    }
    assert!(checked >= 8, "only {checked} configurations were found");
}
