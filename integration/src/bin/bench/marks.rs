//! The figures to compare with: a Go controller that does the same job, on the same kind, the same machine and 1,000
//! objects (10 workers, client limits raised).

use std::fmt::Write;

use serde::Serialize;

use crate::phases::Phase;
use crate::summary::Summary;

/// A phase of the other controller: the ends of the ranges that were measured.
struct Reference {
    phase: Phase,
    /// The best throughput, in objects a second.
    per_second: Option<f64>,
    /// The worst p99, in ms, where the load is paced.
    paced_p99_ms: Option<f64>,
    /// The least CPU ms for an object.
    cpu_ms: f64,
    /// Requests for an object.
    requests: f64,
}

const REFERENCES: [Reference; 6] = [
    Reference { phase: Phase::Create, per_second: Some(234.0), paced_p99_ms: None, cpu_ms: 1.3, requests: 3.02 },
    Reference { phase: Phase::SpecPaced, per_second: None, paced_p99_ms: Some(9.0), cpu_ms: 2.2, requests: 2.2 },
    Reference { phase: Phase::SpecBurst, per_second: Some(283.0), paced_p99_ms: None, cpu_ms: 0.9, requests: 2.0 },
    Reference { phase: Phase::StatusPaced, per_second: None, paced_p99_ms: Some(9.0), cpu_ms: 1.8, requests: 1.0 },
    Reference { phase: Phase::StatusBurst, per_second: Some(408.0), paced_p99_ms: None, cpu_ms: 0.8, requests: 1.0 },
    Reference { phase: Phase::Delete, per_second: Some(158.0), paced_p99_ms: None, cpu_ms: 1.0, requests: 2.0 },
];
/// Its lowest peak of memory, in MiB.
const PEAK_MIB: f64 = 55.0;
/// Its restart, in seconds.
const RESTART_SECONDS: f64 = 0.25;
/// Where it was measured.
const OBJECTS: usize = 1_000;
/// The bound on memory at ten times as many objects, in MiB.
const LARGE: (usize, f64) = (10_000, 100.0);

/// One figure beside the other's.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    what: String,
    ours: f64,
    theirs: f64,
    /// Ours by theirs.
    ratio: f64,
    /// What the ratio has to be.
    wanted: Wanted,
    kept: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Wanted {
    /// More than theirs.
    Above(f64),
    /// At most this share of theirs.
    AtMost(f64),
}

/// Compares what can be compared. Nothing depends on the outcome but the text: a bench is no test.
pub(crate) fn compare(summaries: &[Summary]) -> Vec<Comparison> {
    let mut all = Vec::new();
    for summary in summaries.iter().filter(|summary| summary.objects == OBJECTS) {
        let (name, row) = (summary.phase.as_str(), &summary.median);
        if summary.phase == Phase::Restart {
            all.push(comparison("restart, seconds".to_owned(), row.seconds, RESTART_SECONDS, Wanted::AtMost(1.0)));
        }
        let Some(reference) = REFERENCES.iter().find(|reference| reference.phase == summary.phase) else { continue };
        if let (Some(ours), Some(theirs)) = (row.per_second, reference.per_second) {
            all.push(comparison(format!("{name}, objects/s"), ours, theirs, Wanted::Above(1.0)));
        }
        if let (Some(ours), Some(theirs)) = (row.latency_ms, reference.paced_p99_ms) {
            all.push(comparison(format!("{name}, p99 ms"), ours.p99, theirs, Wanted::AtMost(1.0)));
        }
        let cpu = comparison(
            format!("{name}, daemon CPU ms/object"),
            row.daemon_cpu_ms,
            reference.cpu_ms,
            Wanted::AtMost(1.0 / 3.0),
        );
        all.push(cpu);
        let requests =
            comparison(format!("{name}, requests/object"), row.requests, reference.requests, Wanted::AtMost(1.0));
        all.push(requests);
    }
    let peak = |objects: usize| {
        let peaks = summaries.iter().filter(|summary| summary.objects == objects);
        peaks.map(|summary| summary.median.daemon_peak_mib).max_by(f64::total_cmp)
    };
    if let Some(ours) = peak(OBJECTS) {
        all.push(comparison(format!("peak MiB, {OBJECTS} objects"), ours, PEAK_MIB, Wanted::AtMost(0.5)));
    }
    if let Some(ours) = peak(LARGE.0) {
        all.push(comparison(format!("peak MiB, {} objects (bound)", LARGE.0), ours, LARGE.1, Wanted::AtMost(1.0)));
    }
    all
}

fn comparison(what: String, ours: f64, theirs: f64, wanted: Wanted) -> Comparison {
    let ratio = ours / theirs;
    let kept = match wanted {
        Wanted::Above(least) => ratio > least,
        Wanted::AtMost(most) => ratio <= most,
    };
    Comparison { what, ours, theirs, ratio, wanted, kept }
}

/// The comparison as a table.
pub(crate) fn table(comparisons: &[Comparison]) -> String {
    let mut text =
        format!("{:<38}{:>9}{:>9}{:>8}  {:<10}\n", "marks (medians)", "towline", "the Go", "ratio", "wanted");
    for one in comparisons {
        let wanted = match one.wanted {
            Wanted::Above(least) => format!("> {least:.2}"),
            Wanted::AtMost(most) => format!("<= {most:.2}"),
        };
        let kept = if one.kept { "" } else { "missed" };
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{:<38}{:>9.2}{:>9.2}{:>8.2}  {wanted:<10}{kept}",
            one.what, one.ours, one.theirs, one.ratio
        );
    }
    text
}
