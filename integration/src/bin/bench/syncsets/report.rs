//! What is printed of syncsets, and the same as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::phases::Measured;
use crate::options::SyncsetOptions;
use crate::report::write_json;
use crate::summary::median;

/// Below the working directory, which `make` makes the repository.
const FILE: &str = "target/bench/syncsets.json";

/// How it was measured; part of every figure.
const SETTING: &str = "one PostgreSQL server with the settings that it is installed with but for fsync, which is off; API servers with etcds of \
                       their own and the workers on this machine over loopback; towline's release build; a SelectorSyncSet of ten config maps \
                       and a mapped secret";

#[derive(Serialize)]
struct Report<'a> {
    setting: &'a str,
    clusters: usize,
    edges: usize,
    runs: &'a [Vec<Measured>],
}

/// Prints medians and writes the JSON.
pub(crate) fn finish(options: &SyncsetOptions, all: &[Vec<Measured>]) -> Result<(), String> {
    let SyncsetOptions { clusters, edges, runs, .. } = *options;
    println!("\nsyncsets, medians of {runs} runs, {clusters} clusters on {edges} API servers: {SETTING}\n");
    print!("{}", table(all, clusters));
    write_json(FILE, &Report { setting: SETTING, clusters, edges, runs: all })
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
