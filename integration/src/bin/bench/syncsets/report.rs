//! What is printed of syncsets, and the same as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::marks::marks;
use super::measured::Measured;
use crate::marks::{self, Mark};
use crate::options::{Scenario, SyncsetOptions};
use crate::report::write_json;
use crate::summary::median;

/// How it was measured; part of every figure.
const SETTING: &str = "one PostgreSQL server with the settings that it is installed with but for fsync, which is off; API servers and the workers \
                       on this machine over loopback; towline's release build";

#[derive(Serialize)]
struct Report<'a> {
    setting: &'a str,
    size: &'a str,
    runs: &'a [Vec<Measured>],
    marks: &'a [Mark],
}

/// What is measured, in words.
pub(crate) fn size(options: &SyncsetOptions, scenario: Scenario) -> String {
    let SyncsetOptions { clusters, edges, syncsets, each, .. } = options;
    match scenario {
        Scenario::Real => {
            format!(
                "{clusters} clusters on {edges} API servers, a SelectorSyncSet of ten config maps and a mapped secret"
            )
        }
        Scenario::Simulated => {
            format!(
                "{clusters} clusters with simulated API servers, {syncsets} SelectorSyncSets of {each} config maps each"
            )
        }
    }
}

/// Prints medians and writes the JSON, below the working directory, which `make` makes the repository. An error if something took more
/// requests than it may.
pub(crate) fn finish(options: &SyncsetOptions, scenario: Scenario, all: &[Vec<Measured>]) -> Result<(), String> {
    let (size, clusters) = (size(options, scenario), options.clusters);
    println!("\nsyncsets, medians of {} runs, {size}: {SETTING}\n", options.runs);
    print!("{}", table(all, clusters));
    let marks = marks(options, scenario, all);
    println!("\n{}", marks::table("syncsets", &marks));
    let file = match scenario {
        Scenario::Real => "target/bench/syncsets.json",
        Scenario::Simulated => "target/bench/syncsets-simulated.json",
    };
    write_json(file, &Report { setting: SETTING, size: &size, runs: all, marks: &marks })?;
    let excess: Vec<String> = all.iter().flatten().filter_map(|measured| measured.excess(clusters)).collect();
    if excess.is_empty() { Ok(()) } else { Err(excess.join("; ")) }
}

fn table(all: &[Vec<Measured>], clusters: usize) -> String {
    let mut text = format!(
        "{:<40}{:>9}{:>9}{:>9}{:>12}{:>12}{:>10}{:>10}{:>10}{:>8}\n",
        "phase", "s", "p50 ms", "p99 ms", "req/cluster", "stm/cluster", "CPU s", "db CPU s", "api CPU s", "MiB"
    );
    for (position, first) in all.first().into_iter().flatten().enumerate() {
        let of = |figure: fn(&Measured) -> Option<f64>| {
            median(all.iter().filter_map(|run| figure(run.get(position)?)).collect())
        };
        let cell =
            |figure: Option<f64>, digits: usize| figure.map_or_else(String::new, |figure| format!("{figure:.digits$}"));
        #[expect(clippy::cast_precision_loss, reason = "counts of a bench")]
        let each = |figure: Option<f64>| figure.map(|figure| figure / clusters as f64);
        #[expect(clippy::cast_precision_loss, reason = "counts of a bench")]
        let (requests, statements) =
            (of(|run| Some(run.cost.requests as f64)), of(|run| Some(run.cost.statements as f64)));
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{:<40}{:>9}{:>9}{:>9}{:>12}{:>12}{:>10}{:>10}{:>10}{:>8}",
            first.what,
            cell(of(|run| run.seconds), 2),
            cell(of(|run| Some(run.latency_ms?.p50)), 1),
            cell(of(|run| Some(run.latency_ms?.p99)), 1),
            cell(each(requests), 2),
            cell(each(statements), 2),
            cell(of(|run| Some(run.cost.towline_cpu_seconds)), 2),
            cell(of(|run| Some(run.cost.database_cpu_seconds)), 2),
            cell(of(|run| Some(run.cost.api_servers_cpu_seconds)), 2),
            cell(of(|run| Some(run.cost.towline_peak_mib)), 1),
        );
    }
    text
}
