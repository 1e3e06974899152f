//! Towline beside the other program that took turns with it.

use std::fmt::Write;

use serde::Serialize;

use crate::daemon::Program;
use crate::options::Options;
use crate::phases::Phase;
use crate::summary::{Row, Summary, row};

/// One figure of both.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    objects: usize,
    phase: Phase,
    what: &'static str,
    /// Towline's median.
    ours: f64,
    /// The other's.
    theirs: f64,
    /// Ours by theirs; `None` where theirs is nothing.
    ratio: Option<f64>,
    /// The lowest and the highest ratio of two runs that followed each other.
    range: Option<(f64, f64)>,
}

/// A figure of a phase, where it has one.
type Figure = (&'static str, fn(&Row) -> Option<f64>);

/// What is compared where objects change.
const FIGURES: [Figure; 8] = [
    ("objects/s", |row| row.per_second),
    ("p50 ms", |row| row.latency_ms.map(|latency| latency.p50)),
    ("p99 ms", |row| row.latency_ms.map(|latency| latency.p99)),
    ("CPU ms/object", |row| Some(row.daemon_cpu_ms)),
    ("peak MiB", |row| Some(row.daemon_peak_mib)),
    ("requests/object", |row| Some(row.requests)),
    ("remote API server CPU ms/object", |row| Some(row.remote_cpu_ms)),
    ("local API server CPU ms/object", |row| Some(row.local_cpu_ms)),
];

/// The same at rest and over a restart, where nothing is per object.
const QUIET_FIGURES: [Figure; 4] = [
    ("seconds", |row| Some(row.seconds)),
    ("CPU ms", |row| Some(row.daemon_cpu_ms)),
    ("peak MiB", |row| Some(row.daemon_peak_mib)),
    ("requests", |row| Some(row.requests)),
];

/// Every figure of Towline beside the other program's. Nothing depends on the outcome: a bench is no test.
pub(crate) fn compare(options: &Options, summaries: &[Summary]) -> Vec<Comparison> {
    let Some(against) = options.against else { return Vec::new() };
    let mut all = Vec::new();
    for ours in summaries.iter().filter(|summary| summary.program == Program::Towline) {
        let counterpart = (against, ours.objects, ours.phase);
        let same = |summary: &&Summary| (summary.program, summary.objects, summary.phase) == counterpart;
        let Some(theirs) = summaries.iter().find(same) else { continue };
        let figures: &[Figure] = match ours.phase {
            // How long it is looked on is set.
            Phase::Idle => &QUIET_FIGURES[1..],
            Phase::Restart => &QUIET_FIGURES,
            _ => &FIGURES,
        };
        all.extend(figures.iter().filter_map(|figure| comparison(ours, theirs, *figure)));
    }
    all
}

fn comparison(ours: &Summary, theirs: &Summary, (what, figure): Figure) -> Option<Comparison> {
    let by = |ours: f64, theirs: f64| (theirs > 0.0).then(|| ours / theirs);
    let pairs = ours.runs.iter().zip(&theirs.runs).filter_map(|(ours, theirs)| {
        let of = |measured| figure(&row(std::slice::from_ref(measured)));
        by(of(ours)?, of(theirs)?)
    });
    let range = pairs.fold(None, |range: Option<(f64, f64)>, ratio| {
        Some(range.map_or((ratio, ratio), |(low, high)| (low.min(ratio), high.max(ratio))))
    });
    let (objects, phase) = (ours.objects, ours.phase);
    let (ours, theirs) = (figure(&ours.median)?, figure(&theirs.median)?);
    Some(Comparison { objects, phase, what, ours, theirs, ratio: by(ours, theirs), range })
}

/// The comparison as a table.
pub(crate) fn table(against: Program, comparisons: &[Comparison]) -> String {
    let mut text = format!(
        "{:>7} {:<13}{:<33}{:>9}{:>9}{:>7}  lowest to highest of the rounds\n",
        "objects",
        "phase",
        "",
        Program::Towline.as_str(),
        against.as_str(),
        "ratio"
    );
    for one in comparisons {
        let ratio = one.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let range = one.range.map_or_else(String::new, |(low, high)| format!("{low:.2} to {high:.2}"));
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "{:>7} {:<13}{:<33}{:>9.2}{:>9.2}{ratio:>7}  {range}",
            one.objects,
            one.phase.as_str(),
            one.what,
            one.ours,
            one.theirs,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{FIGURES, comparison};
    use crate::daemon::Program;
    use crate::measure::Cost;
    use crate::phases::{Measured, Phase};
    use crate::summary::{Round, Summary, summarize};

    fn rounds(program: Program, rates: &[f64]) -> Vec<Round> {
        let measured = |rate: &f64| Measured {
            phase: Phase::Create,
            changes: 100,
            seconds: 1.0,
            written_seconds: None,
            per_second: Some(*rate),
            latency_ms: None,
            cost: Cost::default(),
        };
        rates.iter().map(|rate| Round { program, objects: 100, measured: vec![measured(rate)] }).collect()
    }

    fn one(rounds: &[Round]) -> Summary {
        summarize(rounds).remove(0)
    }

    #[test]
    fn a_ratio_is_of_medians_and_its_range_of_runs_that_followed_each_other() {
        let (ours, theirs) =
            (rounds(Program::Towline, &[300.0, 100.0, 200.0]), rounds(Program::Go, &[100.0, 50.0, 400.0]));
        let found = comparison(&one(&ours), &one(&theirs), FIGURES[0]).unwrap();
        assert_eq!((found.ours, found.theirs, found.ratio), (200.0, 100.0, Some(2.0)));
        assert_eq!(found.range, Some((0.5, 3.0)));
    }

    #[test]
    fn programs_are_summarized_apart() {
        let both: Vec<_> = rounds(Program::Towline, &[1.0]).into_iter().chain(rounds(Program::Go, &[2.0])).collect();
        let rates: Vec<_> = summarize(&both).iter().map(|one| (one.program, one.median.per_second)).collect();
        assert_eq!(rates, [(Program::Towline, Some(1.0)), (Program::Go, Some(2.0))]);
    }

    #[test]
    fn nothing_has_no_ratio() {
        let summary = one(&rounds(Program::Go, &[0.0]));
        assert_eq!(comparison(&summary, &summary, FIGURES[0]).unwrap().ratio, None);
    }
}
