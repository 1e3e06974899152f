//! What is printed of the hub, and the same as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::Measured;
use super::reads::PAGE;
use super::selectors::Selected;
use super::watches::Watched;
use super::writes::Written;
use crate::marks::{Mark, Wanted, table};
use crate::measure::Latency;
use crate::options::HubOptions;
use crate::report::write_json;
use crate::summary::median;

/// Below the working directory, which `make` makes the repository.
const FILE: &str = "target/bench/hub.json";

/// How it was measured; part of every figure.
const SETTING: &str = "one PostgreSQL server with the settings that it is installed with, all on this machine over loopback; towline's release \
                       build, each replica a process of its own; clusters of 2 KB with six labels and a kubeconfig of 1 KB, no keys_file; vacuumed \
                       between steps";

#[derive(Serialize)]
struct Report<'a> {
    setting: &'a str,
    clusters: usize,
    documents: usize,
    fsync: bool,
    runs: &'a [Measured],
    marks: &'a [Mark],
}

/// Prints the figures beside their marks and writes the JSON.
pub(crate) fn finish(options: &HubOptions, all: &[Measured]) -> Result<(), String> {
    let fsync = if options.fsync { "fsync on" } else { "fsync off" };
    println!("\nthe hub, medians of {} runs, {} clusters: {SETTING}; {fsync}\n", options.runs, options.clusters);
    print!("{}", selectors(all));
    let marks = marks(options, all);
    println!("\n{}", table("the hub", &marks));
    let HubOptions { clusters, documents, fsync, .. } = *options;
    write_json(FILE, &Report { setting: SETTING, clusters, documents, fsync, runs: all, marks: &marks })
}

/// The figures in the order of a run. Nothing depends on the outcome but the text: a bench is no test.
fn marks(options: &HubOptions, all: &[Measured]) -> Vec<Mark> {
    let mut marks = Marks { all, marks: Vec::new() };
    for (position, clients) in options.clients.iter().enumerate() {
        let least = match clients {
            1 => Some(Wanted::AtLeast(250.0)),
            64 => Some(Wanted::AtLeast(2_000.0)),
            _ => None,
        };
        marks.writes(&format!("creates by {clients}"), least, |run| run.creates.get(position));
    }
    for (position, clients) in options.clients.iter().enumerate() {
        marks.writes(&format!("conditional updates by {clients}"), None, |run| run.updates.get(position));
    }
    let read = |figure: fn(&Latency) -> f64| move |run: &Measured| Some(figure(&run.read.as_ref()?.latency_ms?));
    let name = format!("one read at {} a second", options.read_rate);
    marks.add(&format!("{name}, p50 ms"), None, read(|ms| ms.p50));
    marks.add(&format!("{name}, p99 ms"), Some(Wanted::Below(2.0)), read(|ms| ms.p99));
    let documents = all.iter().find_map(|run| Some(run.list.as_ref()?.documents)).unwrap_or_default();
    // The mark is for a list of 6,000.
    let whole = (documents >= 6_000).then_some(Wanted::Below(0.3));
    marks.add(&format!("list of {documents} in pages of {PAGE}, s"), whole, |run| Some(run.list.as_ref()?.seconds));
    for position in 0..2 {
        let Some(first) = all.iter().find_map(|run| run.watches.get(position)) else { continue };
        let Watched { watchers, replicas, .. } = *first;
        let name = format!("watch, {watchers} on {replicas}");
        let many = |bound: f64| (watchers >= 1_000).then_some(Wanted::Below(bound));
        let latency =
            |figure: fn(&Latency) -> f64| move |run: &Measured| Some(figure(&run.watches.get(position)?.latency_ms?));
        marks.add(&format!("{name}: from the commit, p50 ms"), many(10.0), latency(|ms| ms.p50));
        marks.add(&format!("{name}: from the commit, p99 ms"), many(50.0), latency(|ms| ms.p99));
        let peak = move |run: &Measured| Some(run.watches.get(position)?.cost.towline_peak_mib);
        marks.add(&format!("{name}: peak MiB of a replica"), many(64.0), peak);
    }
    // One read of the tail a second, a renewal of claims every six, and compaction once a minute.
    let rest = |run: &Measured| Some(run.rest.as_ref()?.statements_per_second);
    marks.add("at rest: statements a second", Some(Wanted::Below(1.25)), rest);
    marks.writes(&format!("creates by {} up to {}", super::writes::FILLERS, options.documents), None, |run| {
        run.fill.as_ref()
    });
    let start = format!("start with {} documents", options.documents);
    marks.add(&format!("{start}, s until ready"), None, |run| Some(run.start.as_ref()?.ready_seconds));
    marks.add(&format!("{start}, s until a watch is open"), None, |run| Some(run.start.as_ref()?.watch_seconds));
    marks.add(&format!("{start}: peak MiB"), None, |run| Some(run.start.as_ref()?.cost.towline_peak_mib));
    marks.marks
}

struct Marks<'m> {
    all: &'m [Measured],
    marks: Vec<Mark>,
}

impl Marks<'_> {
    /// The median of a figure over the runs that have it.
    fn add(&mut self, what: &str, wanted: Option<Wanted>, figure: impl Fn(&Measured) -> Option<f64>) {
        let Some(ours) = median(self.all.iter().filter_map(figure).collect()) else { return };
        self.marks.push(Mark::new(what, ours, wanted));
    }

    fn writes(&mut self, what: &str, least: Option<Wanted>, round: impl Fn(&Measured) -> Option<&Written>) {
        self.add(&format!("{what}, a second"), least, |run| Some(round(run)?.per_second));
        self.add(&format!("{what}, p99 ms"), None, |run| Some(round(run)?.latency_ms?.p99));
        self.add(&format!("{what}, CPU s of towline for 1,000"), None, |run| Some(round(run)?.cpu_per_thousand().0));
        self.add(&format!("{what}, CPU s of PostgreSQL for 1,000"), None, |run| Some(round(run)?.cpu_per_thousand().1));
        self.add(&format!("{what}, peak MiB of towline"), None, |run| Some(round(run)?.cost.towline_peak_mib));
        self.add(&format!("{what}, MiB of PostgreSQL"), None, |run| Some(round(run)?.cost.database_mib));
    }
}

/// The lists by selector, with how PostgreSQL found the documents in the last run.
fn selectors(all: &[Measured]) -> String {
    let Some(last) = all.last().filter(|run| !run.selectors.is_empty()) else { return String::new() };
    let mut text = format!(
        "{:<20}{:<26}{:>10}{:>12}{:>12}{:>12}  {}\n",
        "selector", "", "documents", "page p50 ms", "page max ms", "all pages s", "documents found by"
    );
    for (position, selected) in last.selectors.iter().enumerate() {
        let each = |figure: fn(&Selected) -> Option<f64>| {
            let of_run = |run: &Measured| figure(run.selectors.get(position)?);
            median(all.iter().filter_map(of_run).collect()).unwrap_or_default()
        };
        let Selected { what, selector, documents, scans, .. } = selected;
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{what:<20}{selector:<26}{documents:>10}{:>12.2}{:>12.2}{:>12.3}  {scans}",
            each(|selected| Some(selected.page_ms?.p50)),
            each(|selected| Some(selected.page_ms?.max)),
            each(|selected| Some(selected.all_seconds)),
        );
    }
    text
}
