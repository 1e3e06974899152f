//! Several runs of one phase in one row of medians.

use serde::Serialize;

use crate::daemon::Program;
use crate::measure::{Latency, Share};
use crate::phases::{Measured, Phase, to_float};

/// One run of one program.
pub(crate) struct Round {
    /// Whose.
    pub(crate) program: Program,
    /// How many objects there were.
    pub(crate) objects: usize,
    /// Its phases.
    pub(crate) measured: Vec<Measured>,
}

/// One phase of one program at one number of objects.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    /// Whose.
    pub(crate) program: Program,
    /// How many objects there are.
    pub(crate) objects: usize,
    pub(crate) phase: Phase,
    /// Each number the median of its runs.
    pub(crate) median: Row,
    /// Each run.
    pub(crate) runs: Vec<Measured>,
}

/// The numbers of a phase. CPU time, requests and switches are per changed object; of the phases without changes
/// (idle, restart), all in all.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Seconds that the phase took; of a restart, until it was ready.
    pub(crate) seconds: f64,
    /// Changes a second.
    pub(crate) per_second: Option<f64>,
    /// From acknowledged write to arrival, in ms.
    pub(crate) latency_ms: Option<Latency>,
    /// The daemon's requests but for watches.
    pub(crate) requests: f64,
    pub(crate) daemon_cpu_ms: f64,
    /// Switches to one of the daemon's threads.
    pub(crate) daemon_switches: f64,
    /// The daemon's peak of memory.
    pub(crate) daemon_peak_mib: f64,
    /// CPU ms of the hub's API server, and its peak of memory.
    pub(crate) remote_cpu_ms: f64,
    /// Its peak of memory.
    pub(crate) remote_peak_mib: f64,
    /// CPU ms of the edge's API server.
    pub(crate) local_cpu_ms: f64,
    /// Its peak of memory.
    pub(crate) local_peak_mib: f64,
    /// CPU ms of both etcds.
    pub(crate) etcd_cpu_ms: f64,
    /// CPU ms of the load generator, which also watches.
    pub(crate) load_cpu_ms: f64,
}

/// Rows in the order of their numbers of objects and phases.
pub(crate) fn summarize(rounds: &[Round]) -> Vec<Summary> {
    let mut summaries: Vec<Summary> = Vec::new();
    for Round { program, objects, measured } in rounds {
        for one in measured {
            let same = |summary: &&mut Summary| {
                (summary.program, summary.objects, summary.phase) == (*program, *objects, one.phase)
            };
            match summaries.iter_mut().find(same) {
                Some(summary) => summary.runs.push(one.clone()),
                None => summaries.push(Summary {
                    program: *program,
                    objects: *objects,
                    phase: one.phase,
                    median: row(std::slice::from_ref(one)),
                    runs: vec![one.clone()],
                }),
            }
        }
    }
    for summary in &mut summaries {
        summary.median = row(&summary.runs);
    }
    summaries
}

/// What one object costs the daemon among so many.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PerObject {
    /// How many objects there are.
    pub(crate) objects: usize,
    /// CPU ms of the daemon for each that was changed.
    pub(crate) cpu_ms: f64,
}

/// How the cost of one object grows with the number of objects.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Growth {
    pub(crate) phase: Phase,
    /// Among the fewest objects that were measured.
    pub(crate) few: PerObject,
    /// Among the most.
    pub(crate) many: PerObject,
    /// The second by the first.
    pub(crate) ratio: f64,
}

/// Compares the fewest with the most objects of towline's runs, for each phase that changes objects; nothing where one number was measured.
pub(crate) fn growth(summaries: &[Summary]) -> Vec<Growth> {
    let counts = summaries.iter().map(|summary| summary.objects);
    let (Some(fewest), Some(most)) = (counts.clone().min(), counts.max()) else { return Vec::new() };
    let of = |objects: usize, phase: Phase| {
        let wanted = (Program::Towline, objects, phase);
        let found = summaries.iter().find(|summary| (summary.program, summary.objects, summary.phase) == wanted)?;
        Some(PerObject { objects, cpu_ms: found.median.daemon_cpu_ms })
    };
    let changing = Phase::ALL.into_iter().filter(|phase| !matches!(phase, Phase::Idle | Phase::Restart));
    changing
        .filter(|_| fewest < most)
        .filter_map(|phase| {
            let (few, many) = (of(fewest, phase)?, of(most, phase)?);
            Some(Growth { phase, ratio: many.cpu_ms / few.cpu_ms, few, many })
        })
        .collect()
}

pub(crate) fn row(runs: &[Measured]) -> Row {
    let middle = |of: &dyn Fn(&Measured) -> f64| median(runs.iter().map(of).collect()).unwrap_or_default();
    let each = |measured: &Measured| match measured.phase {
        Phase::Idle | Phase::Restart => 1.0,
        _ => to_float(measured.changes.max(1)),
    };
    let cpu_ms = |share: &dyn Fn(&Measured) -> f64| middle(&|one| share(one) * 1_000.0 / each(one));
    let peak = |share: &dyn Fn(&Measured) -> Share| middle(&|one| share(one).peak_mib);
    let switches = |one: &Measured| u32::try_from(one.cost.daemon_switches).map_or(f64::INFINITY, f64::from);
    Row {
        seconds: middle(&|one| one.seconds),
        per_second: median(runs.iter().filter_map(|one| one.per_second).collect()),
        latency_ms: latency(runs),
        requests: middle(&|one| to_float(one.cost.request_count) / each(one)),
        daemon_cpu_ms: cpu_ms(&|one| one.cost.daemon.cpu_seconds),
        daemon_switches: middle(&|one| switches(one) / each(one)),
        daemon_peak_mib: peak(&|one| one.cost.daemon),
        remote_cpu_ms: cpu_ms(&|one| one.cost.remote.cpu_seconds),
        remote_peak_mib: peak(&|one| one.cost.remote),
        local_cpu_ms: cpu_ms(&|one| one.cost.local.cpu_seconds),
        local_peak_mib: peak(&|one| one.cost.local),
        etcd_cpu_ms: cpu_ms(&|one| one.cost.remote_etcd.cpu_seconds + one.cost.local_etcd.cpu_seconds),
        load_cpu_ms: cpu_ms(&|one| one.cost.load.cpu_seconds),
    }
}

fn latency(runs: &[Measured]) -> Option<Latency> {
    let middle = |of: fn(&Latency) -> f64| median(runs.iter().filter_map(|one| Some(of(&one.latency_ms?))).collect());
    Some(Latency {
        p50: middle(|latency| latency.p50)?,
        p99: middle(|latency| latency.p99)?,
        max: middle(|latency| latency.max)?,
    })
}

/// The middle one; of an even number, the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(*values.get(middle.checked_sub(1)?)?, upper))
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn a_median_is_in_the_middle_of_what_was_measured() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(Vec::new()), None);
    }
}
