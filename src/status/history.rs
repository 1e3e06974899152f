//! The last hour in memory, for the plots of the page: what the sections and clusters showed at each sample, and what was counted since
//! the one before. A restart forgets it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

use super::{ObjectState, Section};
use crate::cluster::ClusterStatus;
use crate::telemetry::Totals;

/// Samples of an hour, and the time between two.
const SAMPLES: usize = 240;
const STEP: Duration = Duration::from_secs(15);
/// Above this the time between two samples doubles, as often as it takes.
const MOST_BYTES: usize = 1 << 20;

/// A lock, since many requests read what one task writes; it is held for a copy.
pub struct History {
    step: Duration,
    samples: usize,
    ring: Mutex<VecDeque<Sample>>,
}

struct Sample {
    /// In seconds since 1970.
    at: i64,
    sections: Box<[SectionSample]>,
    clusters: Box<[ClusterSample]>,
}

#[derive(Clone, Copy)]
struct SectionSample {
    total: u32,
    in_step: u32,
    failing: u32,
    oldest: Option<f32>,
    /// Of sections that record their writes: since the sample before.
    writes: Option<u32>,
    /// The mean from a change to the write of it.
    delay: Option<f32>,
}

#[derive(Clone, Copy)]
struct ClusterSample {
    available: bool,
    /// Since the sample before: requests, and of these those that had no answer, 429 or 5xx.
    requests: Option<(u32, u32)>,
}

/// The samples as columns, the oldest first.
#[derive(Serialize)]
pub(super) struct Columns<'n> {
    step_seconds: u64,
    /// The length of what is kept.
    window_seconds: u64,
    /// When each sample was taken, in seconds since 1970.
    times: Vec<i64>,
    sections: BTreeMap<&'n str, SectionColumns>,
    clusters: BTreeMap<&'n str, ClusterColumns>,
}

#[derive(Default, Serialize)]
struct SectionColumns {
    total: Vec<u32>,
    in_step: Vec<u32>,
    failing: Vec<u32>,
    oldest_seconds: Vec<Option<f32>>,
    writes: Vec<Option<u32>>,
    delay_seconds: Vec<Option<f32>>,
}

#[derive(Default, Serialize)]
struct ClusterColumns {
    available: Vec<bool>,
    requests: Vec<Option<u32>>,
    errors: Vec<Option<u32>>,
}

impl History {
    /// For so many sections and clusters.
    pub fn new(sections: usize, clusters: usize) -> Self {
        let bytes = sections * size_of::<SectionSample>() + clusters * size_of::<ClusterSample>();
        let (mut step, mut samples) = (STEP, SAMPLES);
        while samples > 2 && samples * bytes > MOST_BYTES {
            (step, samples) = (step * 2, samples / 2);
        }
        Self { step, samples, ring: Mutex::default() }
    }

    pub(super) fn step(&self) -> Duration {
        self.step
    }

    /// Adds a sample of these sections and clusters, which are the same each time. `earlier` is what was counted at the sample before.
    pub(super) fn take(
        &self,
        sections: &[Arc<dyn Section>],
        clusters: &[ClusterStatus],
        earlier: Option<&Totals>,
        now: &Totals,
    ) {
        let sample = Sample {
            at: Timestamp::now().as_second(),
            sections: sections.iter().map(|section| of_section(section.as_ref(), earlier, now)).collect(),
            clusters: clusters.iter().map(|cluster| of_cluster(cluster, earlier, now)).collect(),
        };
        let mut ring = self.ring.lock();
        if ring.len() >= self.samples {
            ring.pop_front();
        }
        ring.push_back(sample);
    }

    /// All samples. The names are those of the sections and clusters that were given to [`take`](Self::take), in their order.
    pub(super) fn columns<'n>(
        &self,
        sections: impl Iterator<Item = &'n str>,
        clusters: impl Iterator<Item = &'n str>,
    ) -> Columns<'n> {
        let ring = self.ring.lock();
        let section = |(place, name): (usize, &'n str)| {
            let mut columns = SectionColumns::default();
            for sample in ring.iter().filter_map(|sample| sample.sections.get(place)) {
                columns.total.push(sample.total);
                columns.in_step.push(sample.in_step);
                columns.failing.push(sample.failing);
                columns.oldest_seconds.push(sample.oldest);
                columns.writes.push(sample.writes);
                columns.delay_seconds.push(sample.delay);
            }
            (name, columns)
        };
        let cluster = |(place, name): (usize, &'n str)| {
            let mut columns = ClusterColumns::default();
            for sample in ring.iter().filter_map(|sample| sample.clusters.get(place)) {
                columns.available.push(sample.available);
                columns.requests.push(sample.requests.map(|(requests, _)| requests));
                columns.errors.push(sample.requests.map(|(_, errors)| errors));
            }
            (name, columns)
        };
        Columns {
            step_seconds: self.step.as_secs(),
            window_seconds: self.step.as_secs() * u64::try_from(self.samples).unwrap_or_default(),
            times: ring.iter().map(|sample| sample.at).collect(),
            sections: sections.enumerate().map(section).collect(),
            clusters: clusters.enumerate().map(cluster).collect(),
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count; a plot needs few digits")]
fn of_section(section: &dyn Section, earlier: Option<&Totals>, now: &Totals) -> SectionSample {
    let objects = section.facts().objects;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let recorded = !section.lags().is_empty();
    let since = earlier.filter(|_| recorded).map(|earlier| now.lags_since(earlier, section.name().as_str()));
    SectionSample {
        total: count(objects.total()),
        in_step: count(objects.count(ObjectState::InStep)),
        failing: count(objects.count(ObjectState::Failing)),
        oldest: objects.oldest.map(|age| age.as_secs_f32()),
        writes: since.map(|(writes, _)| writes as u32),
        delay: since.filter(|(writes, _)| *writes > 0.0).map(|(writes, seconds)| (seconds / writes) as f32),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts")]
fn of_cluster(cluster: &ClusterStatus, earlier: Option<&Totals>, now: &Totals) -> ClusterSample {
    let since = earlier.zip(cluster.server.as_deref());
    let since = since.map(|(earlier, server)| now.requests_since(earlier, server));
    ClusterSample {
        available: cluster.state.is_fine(),
        requests: since.map(|(requests, errors)| (requests as u32, errors as u32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_sections_lengthen_the_step_and_not_the_memory() {
        let few = History::new(20, 20);
        assert_eq!((few.step, few.samples), (STEP, SAMPLES));
        let window = |history: &History| history.step * u32::try_from(history.samples).expect("few");
        for (sections, doublings) in [(200, 1), (900, 3)] {
            let many = History::new(sections, 2);
            assert_eq!(many.step, STEP * 2_u32.pow(doublings), "{sections}");
            assert_eq!(window(&many), window(&few), "an hour");
            assert!(many.samples * sections * size_of::<SectionSample>() <= MOST_BYTES);
        }
    }
}
