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
    /// Requests since the sample before, and of these those that had no answer, 429 or 5xx.
    clusters: Box<[Option<(u32, u32)>]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SectionSample {
    /// How many objects are in step, and how many fail, where that is known: nothing is known of a section that another replica runs.
    counts: Option<(u32, u32)>,
    oldest: Option<f32>,
    /// Of sections that record their writes: since the sample before.
    writes: Option<u32>,
    /// The mean from a change to the write of it.
    delay: Option<f32>,
}

/// The samples as columns, the oldest first: of one section, or of all clusters.
#[derive(Serialize)]
pub(super) struct Columns {
    step_seconds: u64,
    /// The length of what is kept.
    window_seconds: u64,
    /// When each sample was taken, in seconds since 1970.
    times: Vec<i64>,
    #[serde(flatten)]
    of: Of,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Of {
    Section(SectionColumns),
    /// By the names of the clusters that have one API server, whose requests are counted together.
    Clusters(BTreeMap<String, ClusterColumns>),
}

#[derive(Default, Serialize)]
struct SectionColumns {
    in_step: Vec<Option<u32>>,
    failing: Vec<Option<u32>>,
    oldest_seconds: Vec<Option<f32>>,
    writes: Vec<Option<u32>>,
    delay_seconds: Vec<Option<f32>>,
}

#[derive(Serialize)]
struct ClusterColumns {
    requests: Vec<Option<u32>>,
    errors: Vec<Option<u32>>,
}

impl History {
    /// For so many sections and clusters.
    pub fn new(sections: usize, clusters: usize) -> Self {
        let bytes = sections * size_of::<SectionSample>() + clusters * size_of::<Option<(u32, u32)>>();
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

    /// The samples of the section at this place among those that were given to [`take`](Self::take).
    pub(super) fn of_section(&self, place: usize) -> Columns {
        let mut columns = SectionColumns::default();
        let ring = self.ring.lock();
        for sample in ring.iter().filter_map(|sample| sample.sections.get(place)) {
            columns.in_step.push(sample.counts.map(|(in_step, _)| in_step));
            columns.failing.push(sample.counts.map(|(_, failing)| failing));
            columns.oldest_seconds.push(sample.oldest);
            columns.writes.push(sample.writes);
            columns.delay_seconds.push(sample.delay);
        }
        self.columns(&ring, Of::Section(columns))
    }

    /// The samples of the clusters, which are those that were given to [`take`](Self::take).
    pub(super) fn of_clusters(&self, clusters: &[ClusterStatus]) -> Columns {
        // The first cluster of each server has its requests; the others have the same.
        let mut servers: Vec<(usize, Option<&str>, String)> = Vec::new();
        for (place, cluster) in clusters.iter().enumerate() {
            let server = cluster.server.as_deref();
            match servers.iter_mut().find(|(_, known, _)| server.is_some() && *known == server) {
                Some((.., names)) => {
                    names.push_str(", ");
                    names.push_str(cluster.name.as_str());
                }
                None => servers.push((place, server, cluster.name.to_string())),
            }
        }
        let ring = self.ring.lock();
        let columns = |(place, _, names): (usize, Option<&str>, String)| {
            let samples = || ring.iter().filter_map(|sample| sample.clusters.get(place).copied());
            let requests = samples().map(|sample| sample.map(|(requests, _)| requests)).collect();
            let errors = samples().map(|sample| sample.map(|(_, errors)| errors)).collect();
            (names, ClusterColumns { requests, errors })
        };
        self.columns(&ring, Of::Clusters(servers.into_iter().map(columns).collect()))
    }

    fn columns(&self, ring: &VecDeque<Sample>, of: Of) -> Columns {
        Columns {
            step_seconds: self.step.as_secs(),
            window_seconds: self.step.as_secs() * u64::try_from(self.samples).unwrap_or_default(),
            times: ring.iter().map(|sample| sample.at).collect(),
            of,
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count; a plot needs few digits")]
fn of_section(section: &dyn Section, earlier: Option<&Totals>, now: &Totals) -> SectionSample {
    let objects = section.facts().objects;
    if objects.is_unknown() {
        return SectionSample::default();
    }
    let count = |state| u32::try_from(objects.count(state)).unwrap_or(u32::MAX);
    let since =
        earlier.filter(|_| section.lag().is_some()).map(|earlier| now.lags_since(earlier, section.name().as_str()));
    SectionSample {
        counts: Some((count(ObjectState::InStep), count(ObjectState::Failing))),
        oldest: objects.oldest.map(|age| age.as_secs_f32()),
        writes: since.map(|(writes, _)| writes as u32),
        delay: since.filter(|(writes, _)| *writes > 0.0).map(|(writes, seconds)| (seconds / writes) as f32),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts")]
fn of_cluster(cluster: &ClusterStatus, earlier: Option<&Totals>, now: &Totals) -> Option<(u32, u32)> {
    let (requests, errors) = now.requests_since(earlier?, cluster.server.as_deref()?);
    Some((requests as u32, errors as u32))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cluster::ClusterState;

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

    #[test]
    fn an_hour_is_kept_and_the_oldest_sample_makes_room_for_the_newest() {
        let (history, none) = (History::new(0, 1), Totals::default());
        let cluster = ClusterStatus {
            name: "edge".parse().expect("a name"),
            state: ClusterState::Available,
            since: Duration::ZERO,
            reason: None,
            server: Some("10.0.0.7:6443".into()),
        };
        let requests = |count: u32| {
            let text =
                format!("rest_client_requests_total{{code=\"200\",method=\"GET\",host=\"10.0.0.7:6443\"}} {count}\n");
            Totals::read(&text, &BTreeSet::new())
        };
        for number in 0..u32::try_from(SAMPLES).expect("few") + 3 {
            history.take(&[], std::slice::from_ref(&cluster), Some(&none), &requests(number));
        }
        let Columns { times, of: Of::Clusters(clusters), .. } = history.of_clusters(&[cluster]) else {
            panic!("clusters")
        };
        let requests = &clusters["edge"].requests;
        assert_eq!((times.len(), requests.len()), (SAMPLES, SAMPLES));
        assert_eq!((requests.first(), requests.last()), (Some(&Some(3)), Some(&Some(242))));
    }
}
