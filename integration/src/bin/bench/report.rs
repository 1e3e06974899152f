//! What is printed, and the same as JSON.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use crate::compare::{self, Comparison};
use crate::daemon::Program;
use crate::options::Options;
use crate::phases::{Measured, Phase};
use crate::summary::{self, Growth, Round, Summary, summarize};

/// Below the working directory, which `make` makes the repository.
const FILE: &str = "target/bench/resource-sync.json";

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report<'a> {
    kind: &'a str,
    propagation: &'a str,
    runs: usize,
    rate: u32,
    at_once: usize,
    namespaces: usize,
    owned: bool,
    setting: &'a str,
    phases: &'a [Summary],
    against: Option<Program>,
    comparisons: &'a [Comparison],
    growth: &'a [Growth],
}

/// How it was measured; part of every figure.
const SETTING: &str = "two API servers with an etcd of their own each (no fsync), all on this machine; audit log at \
                       level Metadata, written in batches; each program a release build and a process of its own; latency from \
                       the acknowledged write to the arrival at a watch of the load generator";

/// One line for a phase that has just ended.
pub(crate) fn progress(measured: &Measured) -> String {
    let mut line = format!("  {:<13}{:>6} in {:>6.2} s", measured.phase.as_str(), measured.changes, measured.seconds);
    let cost = &measured.cost;
    // Writing to a string can't fail.
    let _ = write!(
        line,
        ", CPU s: daemon {:.2}, remote {:.2}, local {:.2}, load {:.2}; {} requests, {} switches, {:.1} MiB",
        cost.daemon.cpu_seconds,
        cost.remote.cpu_seconds,
        cost.local.cpu_seconds,
        cost.load.cpu_seconds,
        cost.request_count,
        cost.daemon_switches,
        cost.daemon.peak_mib,
    );
    if let Some(written) = measured.written_seconds {
        let _ = write!(line, "; all written after {written:.2} s");
    }
    if let Some(latency) = measured.latency_ms {
        let _ = write!(line, "; p50 {:.1} p99 {:.1} max {:.1} ms", latency.p50, latency.p99, latency.max);
    }
    line
}

/// Prints the tables and writes the JSON.
pub(crate) fn finish(options: &Options, rounds: &[Round]) -> Result<(), String> {
    let summaries = summarize(rounds);
    let comparisons = compare::compare(options, &summaries);
    println!("\n{} of {} runs: {SETTING}\n", if options.runs == 1 { "values" } else { "medians" }, options.runs);
    print!("{}", table(&summaries));
    if let Some(against) = options.against {
        println!("\n{}", compare::table(against, &comparisons));
    }
    let growth = summary::growth(&summaries);
    if !growth.is_empty() {
        println!("\n{}", growth_table(&growth));
    }
    let report = Report {
        kind: options.kind.as_str(),
        propagation: options.propagation.as_str(),
        runs: options.runs,
        rate: options.rate,
        at_once: options.at_once,
        namespaces: options.namespaces,
        owned: options.owned,
        setting: SETTING,
        phases: &summaries,
        against: options.against,
        comparisons: &comparisons,
        growth: &growth,
    };
    write_json(FILE, &report)
}

/// Writes everything that was measured to a file below the working directory.
pub(crate) fn write_json(file: &str, report: &impl Serialize) -> Result<(), String> {
    let path = PathBuf::from(file);
    let failed = |error: std::io::Error| format!("failed to write {file}: {error}");
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    let text = serde_json::to_string_pretty(report).map_err(|error| format!("failed to write {file}: {error}"))?;
    fs::write(&path, text + "\n").map_err(failed)?;
    println!("all runs: {file}");
    Ok(())
}

/// One row a phase. CPU time is in ms for a changed object; of idle and restart in ms all in all.
fn table(summaries: &[Summary]) -> String {
    let mut text = format!(
        "{:<8}{:>7} {:<13}{:>7}{:>9}{:>9}{:>9}{:>8} |{:>8}{:>8}{:>8}{:>8}{:>8} |{:>8}{:>7}\n\
         {:<8}{:>7} {:<13}{:>7}{:>9}{:>9}{:>9}{:>8} |{:>40} |{:>8}{:>7}\n",
        "",
        "",
        "",
        "",
        "p50",
        "p99",
        "max",
        "",
        "daemon",
        "remote",
        "local",
        "etcds",
        "load",
        "daemon",
        "",
        "",
        "objects",
        "phase",
        "per s",
        "ms",
        "ms",
        "ms",
        "req/obj",
        "CPU ms/object",
        "sw/obj",
        "MiB"
    );
    let optional = |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
    for summary in summaries {
        let row = &summary.median;
        let latency = row.latency_ms;
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{:<8}{:>7} {:<13}{:>7}{:>9}{:>9}{:>9}{:>8.2} |{:>8.2}{:>8.2}{:>8.2}{:>8.2}{:>8.2} |{:>8.1}{:>7.1}{}",
            summary.program.as_str(),
            summary.objects,
            summary.phase.as_str(),
            optional(row.per_second, 0),
            optional(latency.map(|latency| latency.p50), 1),
            optional(latency.map(|latency| latency.p99), 1),
            optional(latency.map(|latency| latency.max), 1),
            row.requests,
            row.daemon_cpu_ms,
            row.remote_cpu_ms,
            row.local_cpu_ms,
            row.etcd_cpu_ms,
            row.load_cpu_ms,
            row.daemon_switches,
            row.daemon_peak_mib,
            note(summary),
        );
    }
    text
}

/// What an object costs among the fewest and among the most objects.
fn growth_table(growth: &[Growth]) -> String {
    let mut text = String::from("towline: CPU ms/object among few and many objects (medians)\n");
    for one in growth {
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{:<13}{:>9.2} ({} objects){:>9.2} ({} objects){:>8.2} times",
            one.phase.as_str(),
            one.few.cpu_ms,
            one.few.objects,
            one.many.cpu_ms,
            one.many.objects,
            one.ratio,
        );
    }
    text
}

fn note(summary: &Summary) -> String {
    match summary.phase {
        Phase::Idle => format!("  all in all, in {:.0} s", summary.median.seconds),
        Phase::Restart => format!("  all in all; ready in {:.2} s", summary.median.seconds),
        _ => String::new(),
    }
}
