//! What is printed of the lease job, and the same as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::Measured;
use super::fleet::FleetCost;
use super::moments::Moment;
use crate::report::write_json;

/// Below the working directory, which `make` makes the repository.
const FILE: &str = "target/bench/lease.json";

/// One line for a fleet that was just measured.
pub(crate) fn fleet_progress(who: &str, cost: &FleetCost) -> String {
    format!(
        "  {who:<9}{:>5} leases of {:>2} s: {} renewals in {:.0} s, {} other requests, {} at the managed cluster, {} discovery, \
         {} probes; \
         CPU s: towline {:.2}, hub {:.2}; {:.3} ms/renewal, {:.1} % of a core; {:.1} MiB, {:.1} anonymous",
        cost.leases,
        cost.duration_seconds,
        cost.renewals,
        cost.seconds,
        cost.other_hub_requests,
        cost.managed_requests,
        cost.discovery_requests,
        cost.probes,
        cost.cpu_seconds,
        cost.hub_cpu_seconds,
        cost.cpu_ms_per_renewal(),
        cost.cores() * 100.0,
        cost.peak_mib,
        cost.anonymous_mib,
    )
}

/// A figure and what it has to be.
#[derive(Debug, Serialize)]
struct Mark {
    what: String,
    ours: f64,
    at_most: f64,
    kept: bool,
}

/// Prints the marks and writes the JSON.
pub(crate) fn finish(measured: &Measured) -> Result<(), String> {
    let marks = marks(measured);
    let mut text = format!("\n{:<58}{:>9}{:>9}\n", "leases, marks (medians; gaps: the longest)", "towline", "at most");
    for mark in &marks {
        let kept = if mark.kept { "" } else { "  missed" };
        // Writing to a string can't fail.
        let _ = writeln!(text, "{:<58}{:>9.3}{:>9.3}{kept}", mark.what, mark.ours, mark.at_most);
    }
    println!("{text}");
    write_json(FILE, &Report { measured, marks: &marks })
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    measured: &'a Measured,
    marks: &'a [Mark],
}

fn marks(measured: &Measured) -> Vec<Mark> {
    let mut marks = Vec::new();
    let mut mark = |what: String, ours: Option<f64>, at_most: f64| {
        if let Some(ours) = ours {
            marks.push(Mark { what, ours, at_most, kept: ours <= at_most });
        }
    };
    let side_car = |figure: fn(&FleetCost) -> f64| median(measured.side_car.iter().map(figure));
    mark("side-car: hub requests for a renewal".to_owned(), side_car(requests_per_renewal), 1.0);
    mark("side-car: discovery requests at both clusters".to_owned(), side_car(discovery), 0.0);
    mark("side-car: probes of the managed cluster (`/version`)".to_owned(), side_car(probes), 1.0);
    mark("side-car: requests to the managed cluster at rest".to_owned(), side_car(managed), 0.0);
    mark("side-car: peak MiB".to_owned(), side_car(|cost| cost.peak_mib), 32.0);
    mark("side-car: anonymous MiB".to_owned(), side_car(|cost| cost.anonymous_mib), 3.0);
    mark("side-car: CPU s in 2 minutes".to_owned(), side_car(|cost| cost.cpu_seconds * 120.0 / cost.seconds), 0.09);
    let mut sizes: Vec<(usize, u64)> =
        measured.fleets.iter().map(|cost| (cost.leases, cost.duration_seconds)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for (leases, duration) in sizes {
        let of_size = |figure: fn(&FleetCost) -> f64| {
            let same = measured.fleets.iter().filter(move |cost| cost.leases == leases);
            median(same.map(figure))
        };
        let name = format!("{leases} leases of {duration} s");
        mark(format!("{name}: hub requests for a renewal"), of_size(requests_per_renewal), 1.0);
        mark(format!("{name}: share of one core"), of_size(FleetCost::cores), 0.05);
        mark(format!("{name}: peak MiB"), of_size(|cost| cost.peak_mib), 100.0);
        mark(format!("{name}: anonymous MiB"), of_size(|cost| cost.anonymous_mib), 50.0);
    }
    let returned = median(measured.hub_return_seconds.iter().copied());
    mark("from the hub's return to a renewal, s".to_owned(), returned, 1.0);
    for moment in Moment::ALL {
        let seconds = measured.moments.iter().filter(|(of, _)| *of == moment).map(|(_, seconds)| *seconds);
        mark(format!("{}, s", moment.as_str()), median(seconds), moment.at_most().as_secs_f64());
    }
    for gap in &measured.rotations {
        // A renewal is due after the period and its jitter, and takes a moment.
        let due = gap.period_seconds * 1.1 + 0.25;
        mark(format!("{}: longest gap, s", gap.rotation), Some(gap.longest_seconds), due);
    }
    marks
}

#[expect(clippy::cast_precision_loss, reason = "counts of a few thousands")]
fn requests_per_renewal(cost: &FleetCost) -> f64 {
    (cost.renewals + cost.other_hub_requests) as f64 / cost.renewals.max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "a handful")]
fn discovery(cost: &FleetCost) -> f64 {
    cost.discovery_requests as f64
}

#[expect(clippy::cast_precision_loss, reason = "a handful")]
fn probes(cost: &FleetCost) -> f64 {
    cost.probes as f64
}

#[expect(clippy::cast_precision_loss, reason = "a handful")]
fn managed(cost: &FleetCost) -> f64 {
    cost.managed_requests as f64
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}
