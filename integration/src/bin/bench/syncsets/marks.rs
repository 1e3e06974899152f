//! What the figures of syncsets have to be.

use super::measured::Measured;
use crate::marks::{Mark, Wanted};
use crate::options::{Scenario, SyncsetOptions};
use crate::summary::median;

/// A claim of a dead cluster lasts for the 5 s in which a cluster has to answer, and for the statements around them.
const LONGEST_CLAIM: f64 = 5.5;

/// The marks of a scenario. Those of real API servers are for 100 clusters on two of them, for which there are figures of a Go
/// controller; those of simulated ones are for 5,000.
pub(super) fn marks(options: &SyncsetOptions, scenario: Scenario, all: &[Vec<Measured>]) -> Vec<Mark> {
    let mut marks = Marks { all, marks: Vec::new() };
    match scenario {
        Scenario::Real if (options.clusters, options.edges) == (100, 2) => marks.real(options),
        Scenario::Real => marks.claims(),
        Scenario::Simulated => marks.simulated(),
    }
    marks.marks
}

struct Marks<'m> {
    all: &'m [Vec<Measured>],
    marks: Vec<Mark>,
}

impl Marks<'_> {
    fn real(&mut self, options: &SyncsetOptions) {
        // Seconds, requests a cluster, CPU seconds: a tenth of the Go controller's.
        for (what, seconds, requests, cpu) in [
            ("first apply", Some(5.0), 25.0, Some(1.4)),
            ("one of eleven objects changed", Some(1.0), 1.0, Some(1.2)),
            ("full pass of all", Some(2.0), 3.0, Some(1.3)),
            ("one object removed", None, 2.0, None),
        ] {
            self.add(&format!("{what}, s"), seconds.map(Wanted::Below), of(what, |run| run.seconds));
            let clusters = options.clusters;
            self.add(&format!("{what}, requests a cluster"), Some(Wanted::AtMost(requests)), |run| {
                run.iter().find(|phase| phase.what == what).map(|phase| phase.requests_each(clusters))
            });
            self.add(
                &format!("{what}, CPU s"),
                cpu.map(Wanted::AtMost),
                of(what, |run| Some(run.cost.towline_cpu_seconds)),
            );
        }
        for what in ["one object on one cluster", "one label of one cluster"] {
            self.add(&format!("{what}, p50 ms"), Some(Wanted::Below(60.0)), of(what, |run| Some(run.latency_ms?.p50)));
        }
        self.add("mapped secret changed, s", Some(Wanted::Below(1.0)), of("mapped secret changed", |run| run.seconds));
        self.delays("one of eleven objects changed", 1.0);
        self.claims();
        // Up to the phases with more workers.
        self.add("peak MiB of one worker", Some(Wanted::Below(64.0)), |run| {
            let alone = run.iter().take_while(|phase| !phase.what.contains("workers"));
            alone.map(|phase| phase.cost.towline_peak_mib).max_by(f64::total_cmp)
        });
    }

    fn simulated(&mut self) {
        self.delays("one object changed in all", 15.0);
        for what in ["one label, as a tenth dies", "one label, a tenth is dead"] {
            self.add(
                &format!("{what}, p99 ms"),
                Some(Wanted::Below(1_000.0)),
                of(what, |run| Some(run.latency_ms?.p99)),
            );
        }
        self.claims();
        self.add("peak MiB of one worker", Some(Wanted::Below(256.0)), |run| {
            run.iter().map(|phase| phase.cost.towline_peak_mib).max_by(f64::total_cmp)
        });
    }

    /// How much longer a change takes beside dead clusters.
    fn delays(&mut self, before: &'static str, most: f64) {
        for what in ["one changed, as a tenth dies", "one changed, a tenth is dead"] {
            let (with, without) = (of(what, |run| run.seconds), of(before, |run| run.seconds));
            let delay = |run: &[Measured]| Some(with(run)? - without(run)?);
            self.add(&format!("{what}: later by, s"), Some(Wanted::Below(most)), delay);
        }
    }

    fn claims(&mut self) {
        self.add("the longest claim of a dead cluster, s", Some(Wanted::AtMost(LONGEST_CLAIM)), |run| {
            run.iter().filter_map(|phase| phase.longest_claim).max_by(f64::total_cmp)
        });
    }

    /// The median of a figure over the runs that have it.
    fn add(&mut self, what: &str, wanted: Option<Wanted>, figure: impl Fn(&[Measured]) -> Option<f64>) {
        let figures = self.all.iter().filter_map(|run| figure(run)).collect();
        self.marks.extend(median(figures).map(|ours| Mark::new(what, ours, wanted)));
    }
}

/// A figure of one phase of a run.
fn of(what: &'static str, figure: fn(&Measured) -> Option<f64>) -> impl Fn(&[Measured]) -> Option<f64> {
    move |run| figure(run.iter().find(|phase| phase.what == what)?)
}
