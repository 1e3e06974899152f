//! What is printed of the inventory, and the same as JSON.

use serde::Serialize;

use super::{Cost, Measured};
use crate::marks::{Mark, Wanted, table};
use crate::options::InventoryOptions;
use crate::phases::to_float;
use crate::report::write_json;
use crate::summary::median;

/// Below the working directory, which `make` makes the repository.
const FILE: &str = "target/bench/inventory.json";

/// How it was measured; part of every figure.
const SETTING: &str = "one API server and one API that accepts everything, on this machine over loopback; releases that Helm has installed, with a \
                       ConfigMap each, and many that are written as Helm writes them; towline's release build";

#[derive(Serialize)]
struct Report<'a> {
    setting: &'a str,
    releases: usize,
    namespaces: usize,
    many: usize,
    runs: &'a [Measured],
    marks: &'a [Mark],
}

/// Prints the figures beside their marks and writes the JSON.
pub(crate) fn finish(options: InventoryOptions, all: &[Measured]) -> Result<(), String> {
    let InventoryOptions { releases, namespaces, many, runs, .. } = options;
    println!(
        "\nthe inventory, medians of {runs} runs, {releases} releases in {namespaces} namespaces, then {many} more: {SETTING}\n"
    );
    let marks = marks(options, all);
    println!("{}", table("the inventory", &marks));
    write_json(FILE, &Report { setting: SETTING, releases, namespaces, many, runs: all, marks: &marks })
}

fn marks(options: InventoryOptions, all: &[Measured]) -> Vec<Mark> {
    let mut marks = Vec::new();
    let mut add = |what: &str, wanted: Option<Wanted>, figure: fn(&Measured) -> f64| {
        if let Some(ours) = median(all.iter().map(figure).collect()) {
            marks.push(Mark::new(what, ours, wanted));
        }
    };
    add("first reports, requests", None, |run| to_float(run.first.requests));
    add("first reports, posts", None, |run| to_float(run.first.posts));
    add("first reports, CPU s", None, |run| run.first.cpu_seconds);
    // A read of the release, and two writes of the status.
    add("one release upgraded, requests", Some(Wanted::AtMost(3.0)), |run| to_float(run.change.requests));
    add("one release upgraded, posts", Some(Wanted::AtMost(1.0)), |run| to_float(run.change.posts));
    let idle = options.idle.as_secs();
    add(&format!("{idle} s idle, requests"), Some(Wanted::AtMost(0.0)), |run| to_float(run.idle.requests));
    add(&format!("{idle} s idle, posts"), Some(Wanted::AtMost(0.0)), |run| to_float(run.idle.posts));
    add(&format!("{idle} s idle, CPU s"), None, |run| run.idle.cpu_seconds);
    add(&format!("{idle} s idle, switches"), None, |run| switches(&run.idle));
    add("memory until then, MiB", Some(Wanted::Below(20.0)), |run| run.idle.peak_mib);
    add("start in step, requests", None, |run| to_float(run.in_step.requests));
    add("start in step, lists and watches", None, |run| to_float(run.in_step.watches));
    add("start in step, posts", Some(Wanted::AtMost(0.0)), |run| to_float(run.in_step.posts));
    add("many releases, CPU s", None, |run| run.many.cpu_seconds);
    add("many releases, memory, MiB", Some(Wanted::Below(64.0)), |run| run.many.peak_mib);
    marks
}

fn switches(cost: &Cost) -> f64 {
    to_float(usize::try_from(cost.switches).unwrap_or(usize::MAX))
}
