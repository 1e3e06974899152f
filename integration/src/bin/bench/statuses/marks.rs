//! The figures to keep, and those to compare with: a Go controller that does the same job, measured on this kind of machine
//! at 500 × 200 and an interval of 5 s.

use serde::Serialize;

use super::meter::Cost;
use super::phases::{Measured, Written};
use crate::measure::Latency;
use crate::options::{Size, StatusOptions};
use crate::phases::to_float;
use crate::summary::median;

/// Where the other controller was measured.
const SMALL: Size = Size { policies: 500, clusters: 200 };
/// From this many rows on, other marks hold.
const MANY_ROWS: usize = 1_000_000;
/// Families, each of which may send two statements a pass.
const FAMILIES: f64 = 6.0;
/// The daemon sends a patch at the rate that the API server takes it, if a flip is written at this share of the plain
/// loop's rate: it also reads rows, rolls up and watches on the same processors.
const SHARE_OF_ALONE: f64 = 0.6;

/// A figure, and what it has to be.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Mark {
    pub(crate) size: Size,
    pub(crate) what: &'static str,
    pub(crate) ours: f64,
    /// What the Go controller needs, where it was measured.
    pub(crate) theirs: Option<f64>,
    pub(crate) wanted: Option<Wanted>,
    pub(crate) kept: bool,
}

/// A bound.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wanted {
    Above(f64),
    Below(f64),
    AtMost(f64),
}

impl Wanted {
    fn holds(self, ours: f64) -> bool {
        match self {
            Self::Above(least) => ours > least,
            Self::Below(most) => ours < most,
            Self::AtMost(most) => ours <= most,
        }
    }
}

/// Medians of the runs of a size.
pub(crate) struct Runs<'m>(Vec<&'m Measured>);

impl<'m> Runs<'m> {
    /// Those of this size.
    pub(crate) fn of(size: Size, all: &'m [Measured]) -> Self {
        Self(all.iter().filter(|measured| measured.size == size).collect())
    }

    /// The median of a figure that each run has.
    pub(crate) fn each(&self, figure: impl Fn(&Measured) -> f64) -> Option<f64> {
        median(self.0.iter().map(|measured| figure(measured)).collect())
    }

    /// The median over the flips of all runs.
    pub(crate) fn flips(&self, figure: impl Fn(&Written) -> f64) -> Option<f64> {
        median(self.0.iter().flat_map(|measured| &measured.flips).map(figure).collect())
    }

    /// What a phase has cost, once for each time that it happened.
    pub(crate) fn costs(&self, phase: impl Fn(&'m Measured) -> Vec<&'m Cost>) -> Vec<&'m Cost> {
        self.0.iter().flat_map(|measured| phase(measured)).collect()
    }

    /// The median of the flips with a daemon that listens.
    pub(crate) fn flip_notified(&self, figure: impl Fn(&Written) -> f64) -> Option<f64> {
        median(self.0.iter().filter_map(|measured| measured.flip_notified.as_ref()).map(figure).collect())
    }

    /// The largest over the flips of all runs.
    pub(crate) fn worst_flip(&self, figure: impl Fn(&Written) -> f64) -> Option<f64> {
        self.0.iter().flat_map(|measured| &measured.flips).map(figure).max_by(f64::total_cmp)
    }

    /// The median of a figure of the trickle.
    pub(crate) fn trickle(&self, notified: bool, figure: impl Fn(&Latency) -> f64) -> Option<f64> {
        let latency = |measured: &&Measured| {
            let trickle = if notified { &measured.trickle_notified } else { &measured.trickle };
            trickle.as_ref()?.latency_ms
        };
        median(self.0.iter().filter_map(latency).map(|latency| figure(&latency)).collect())
    }

    fn peak_mib(&self) -> Option<f64> {
        self.each(|measured| {
            let flips = measured.flips.iter().chain(&measured.flip_notified).map(|flip| flip.cost.daemon_peak_mib);
            let trickles = [&measured.trickle, &measured.trickle_notified].into_iter().flatten();
            let others = [&measured.start.cost, &measured.idle.cost, &measured.restart.cost];
            let all = flips.chain(trickles.map(|trickle| trickle.cost.daemon_peak_mib));
            all.chain(others.map(|cost| cost.daemon_peak_mib)).fold(0.0, f64::max)
        })
    }
}

/// Compares medians with the marks. Nothing depends on the outcome but the text: a bench is no test.
pub(crate) fn compare(options: &StatusOptions, all: &[Measured]) -> Vec<Mark> {
    let mut marks = Vec::new();
    for size in &options.sizes {
        let runs = Runs::of(*size, all);
        let small = *size == SMALL;
        let many = size.policies * size.clusters >= MANY_ROWS;
        let mut mark = |what: &'static str, ours: Option<f64>, theirs: f64, wanted: Option<Wanted>| {
            if let Some(ours) = ours {
                let kept = wanted.is_none_or(|wanted| wanted.holds(ours));
                let theirs = (small && theirs > 0.0).then_some(theirs);
                marks.push(Mark { size: *size, what, ours, theirs, wanted, kept });
            }
        };
        let per_pass = |figure: fn(&Measured) -> f64| runs.each(|run| figure(run) / run.idle.passes.max(1.0));
        let below = |most: f64| Some(Wanted::Below(most));
        let if_small = |wanted: Wanted| small.then_some(wanted);
        mark("idle pass: requests", per_pass(|run| to_float(run.idle.cost.requests)), 601.0, below(f64::EPSILON));
        let statements = per_pass(|run| statements(run) / FAMILIES);
        mark("idle pass: statements for a family", statements, 1_557.0 / FAMILIES, Some(Wanted::AtMost(2.0)));
        let cpu = per_pass(|run| run.idle.cost.daemon_cpu_seconds);
        mark("idle pass: CPU s of the daemon", cpu, 1.2, if_small(Wanted::Below(0.02)));
        let cpu = per_pass(|run| run.idle.cost.database_cpu_seconds);
        mark("idle pass: CPU s of the database", cpu, 1.8, if_small(Wanted::Below(0.2)));
        let cpu = per_pass(|run| run.idle.cost.api_server_cpu_seconds);
        mark("interval: CPU s of the API server, idle", cpu, 2.2, None);
        let pass = runs.each(|run| run.idle.pass_seconds);
        mark("idle pass of the slowest family, s", pass, 0.0, many.then_some(Wanted::Below(1.5)));
        mark("start, s", runs.each(|run| run.start.seconds), 19.7, if_small(Wanted::Below(7.0)));
        mark("flip of all rows, s", runs.flips(|flip| flip.seconds), 11.3, None);
        let worst = runs.worst_flip(|flip| flip.seconds);
        mark("flip of all rows, the slowest, s", worst, 22.0, if_small(Wanted::Below(7.0)));
        let listening = runs.flip_notified(|flip| flip.seconds);
        mark("flip of all rows, notified, s", listening, 0.0, if_small(Wanted::Below(7.0)));
        let share = runs.flips(|flip| flip.per_second).zip(runs.each(|run| run.alone.per_second));
        let share = share.map(|(flip, alone)| flip / alone);
        mark("flip: patches a second, share of the plain loop's", share, 0.0, Some(Wanted::Above(SHARE_OF_ALONE)));
        mark("trickle: p50 ms", runs.trickle(false, |latency| latency.p50), 4_900.0, None);
        let fresh = options.interval.as_secs_f64() * 1_000.0 + 300.0;
        let p99 = runs.trickle(false, |latency| latency.p99);
        mark("trickle: p99 ms", p99, 7_900.0, if_small(Wanted::Below(fresh)));
        mark(
            "trickle, notified: p50 ms",
            runs.trickle(true, |latency| latency.p50),
            0.0,
            if_small(Wanted::Below(100.0)),
        );
        mark(
            "trickle, notified: p99 ms",
            runs.trickle(true, |latency| latency.p99),
            0.0,
            if_small(Wanted::Below(200.0)),
        );
        let peak = if many { Some(Wanted::Below(80.0)) } else { if_small(Wanted::Below(40.0)) };
        mark("peak MiB of the daemon", runs.peak_mib(), 122.0, peak);
        let early = runs.each(|run| to_float(run.written_while_reading));
        mark("policies written while rows are still read", early, 0.0, many.then_some(Wanted::Above(0.0)));
    }
    marks
}

#[expect(clippy::cast_precision_loss, reason = "counts of a few thousands")]
fn statements(run: &Measured) -> f64 {
    run.idle.cost.statements as f64
}
