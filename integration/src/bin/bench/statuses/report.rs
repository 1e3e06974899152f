//! What is printed of status sync, and the same as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::marks::{self, Mark, Runs, Wanted};
use super::meter::Cost;
use super::phases::Measured;
use crate::options::StatusOptions;
use crate::phases::to_float;
use crate::report::write_json;
use crate::summary::median;

/// Below the working directory, which `make` makes the repository.
const FILE: &str = "target/bench/status-sync.json";

/// How it was measured; part of every figure.
const SETTING: &str = "one API server with an etcd of its own (no fsync) and one PostgreSQL server (no fsync; vacuumed between phases), all on \
                       this machine; audit log at level Metadata, written in batches; towline's release build as its own process; \
                       a flip is counted from the commit, the wait for the next pass included";

#[derive(Serialize)]
struct Report<'a> {
    setting: &'a str,
    interval_seconds: f64,
    others: usize,
    runs: &'a [Measured],
    marks: &'a [Mark],
}

/// Prints the tables and writes the JSON.
pub(crate) fn finish(options: &StatusOptions, all: &[Measured]) -> Result<(), String> {
    println!("\nstatus sync, medians of {} runs: {SETTING}\n", options.runs);
    print!("{}", phases(options, all));
    let marks = marks::compare(options, all);
    println!("\n{}", table(&marks));
    let interval_seconds = options.interval.as_secs_f64();
    write_json(FILE, &Report { setting: SETTING, interval_seconds, others: options.others, runs: all, marks: &marks })
}

/// One row a phase.
fn phases(options: &StatusOptions, all: &[Measured]) -> String {
    let mut text = format!(
        "{:>11} {:<9}{:>8}{:>10}{:>10}{:>11} |{:>9}{:>9}{:>9}{:>7}{:>7} |{:>8}\n{:>11} {:<9}{:>8}{:>10}{:>10}{:>11} |{:>41} |{:>8}\n",
        "",
        "",
        "",
        "policies",
        "",
        "",
        "towline",
        "database",
        "API srv",
        "etcd",
        "load",
        "towline",
        "size",
        "phase",
        "s",
        "a second",
        "requests",
        "statements",
        "CPU s",
        "MiB"
    );
    for size in &options.sizes {
        let runs = Runs::of(*size, all);
        let mut row = |phase: &str, seconds: Option<f64>, rate: Option<f64>, costs: &[&Cost]| {
            let Some(seconds) = seconds else { return };
            let of =
                |figure: fn(&Cost) -> f64| median(costs.iter().map(|cost| figure(cost)).collect()).unwrap_or_default();
            let rate = rate.filter(|rate| *rate > 0.0).map_or(String::new(), |rate| format!("{rate:.0}"));
            // Writing to a string can't fail.
            let _ = writeln!(
                text,
                "{:>11} {phase:<9}{seconds:>8.2}{rate:>10}{:>10.0}{:>11.0} |{:>9.3}{:>9.3}{:>9.3}{:>7.2}{:>7.2} |{:>8.1}",
                format!("{}x{}", size.policies, size.clusters),
                of(|cost| to_float(cost.requests)),
                of(|cost| f64::from(i32::try_from(cost.statements).unwrap_or(i32::MAX))),
                of(|cost| cost.daemon_cpu_seconds),
                of(|cost| cost.database_cpu_seconds),
                of(|cost| cost.api_server_cpu_seconds),
                of(|cost| cost.etcd_cpu_seconds),
                of(|cost| cost.load_cpu_seconds),
                of(|cost| cost.daemon_peak_mib),
            );
        };
        let costs = runs.costs(|run| vec![&run.start.cost]);
        row("start", runs.each(|run| run.start.seconds), runs.each(|run| run.start.per_second), &costs);
        let costs = runs.costs(|run| vec![&run.idle.cost]);
        row("idle", runs.each(|run| run.idle.seconds), None, &costs);
        let costs = runs.costs(|run| run.flips.iter().map(|flip| &flip.cost).collect());
        row("flip", runs.flips(|flip| flip.seconds), runs.flips(|flip| flip.per_second), &costs);
        let costs = runs.costs(|run| run.flip_notified.iter().map(|flip| &flip.cost).collect());
        let (seconds, rate) = (runs.flip_notified(|flip| flip.seconds), runs.flip_notified(|flip| flip.per_second));
        row("listening", seconds, rate, &costs);
        let costs = runs.costs(|run| vec![&run.restart.cost]);
        row("restart", runs.each(|run| run.restart.seconds), None, &costs);
        let costs = runs.costs(|run| vec![&run.alone.cost]);
        row("loop", runs.each(|run| run.alone.seconds), runs.each(|run| run.alone.per_second), &costs);
    }
    text.push_str(
        "loop: the patches of a flip by a plain loop, 64 at a time and without the daemon: the API server alone\n",
    );
    text
}

fn table(marks: &[Mark]) -> String {
    let mut text =
        format!("{:<62}{:>10}{:>10}  {:<10}\n", "status sync, marks (medians)", "towline", "the Go", "wanted");
    for mark in marks {
        let wanted = match mark.wanted {
            None => String::new(),
            Some(Wanted::Above(least)) => format!("> {least:.2}"),
            Some(Wanted::Below(most)) if most <= f64::EPSILON => "0".to_owned(),
            Some(Wanted::Below(most)) => format!("< {most}"),
            Some(Wanted::AtMost(most)) => format!("<= {most}"),
        };
        let what = format!("{}x{}: {}", mark.size.policies, mark.size.clusters, mark.what);
        let theirs = mark.theirs.map_or(String::new(), |theirs| format!("{theirs:.2}"));
        let kept = if mark.kept { "" } else { "missed" };
        // Writing to a string can't fail.
        let _ = writeln!(text, "{what:<62}{:>10.3}{theirs:>10}  {wanted:<10}{kept}", mark.ours);
    }
    text
}
