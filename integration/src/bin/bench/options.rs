//! What is measured: by environment, so that `make bench OBJECTS=1000` is enough, or by flags.

use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Parser, ValueEnum};

/// Measures Towline's jobs on real components, and prints a table for each.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Options {
    /// What is measured, in this order.
    #[arg(
        long,
        env = "JOBS",
        value_enum,
        value_delimiter = ',',
        default_value = "sync,lease,status,hub,syncsets,bus,inventory"
    )]
    pub(crate) jobs: Vec<JobName>,
    /// Another program that does the job of resource sync in turns with Towline, and is compared with it.
    #[arg(long, env = "AGAINST", value_enum)]
    pub(crate) against: Option<Against>,
    /// Runs of each; the table has their medians.
    #[arg(long, env = "RUNS", default_value = "3", value_parser = count())]
    pub(crate) runs: usize,
    /// Seconds without changes in the idle phases, and seconds of renewals of leases.
    #[arg(long, env = "IDLE", default_value = "60", value_parser = seconds)]
    pub(crate) idle: Duration,
    /// Changes in each phase that changes objects: 1000 of resource sync and of events, 200 of watches, 60 of statuses, 50 of syncsets.
    #[arg(long, env = "CHANGES", value_parser = count())]
    pub(crate) changes: Option<usize>,
    /// Changes a second, where they come at a steady rate: of resource sync and of events.
    #[arg(long, env = "RATE", default_value = "50", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: u32,
    /// Objects of resource sync (1000), policies of status sync (500); several numbers are measured one after the other.
    #[arg(long, env = "OBJECTS", value_delimiter = ',', value_parser = count())]
    pub(crate) objects: Vec<usize>,
    /// Namespaces of the objects of resource sync.
    #[arg(long, env = "NAMESPACES", default_value = "20", value_parser = count())]
    pub(crate) namespaces: usize,
    /// Towline makes the namespaces of resource sync on the edge, and deletes them. The Go controller finds them there, since it makes none.
    #[arg(long, env = "OWNED")]
    pub(crate) owned: bool,
    /// The kind of the objects of resource sync: built in, or a custom resource, with which API servers are slower.
    #[arg(long, env = "KIND", value_enum, default_value = "poddisruptionbudgets")]
    pub(crate) kind: Kind,
    /// Leases of one minute.
    #[arg(long, env = "LEASES", default_value = "5000", value_parser = count())]
    pub(crate) leases: usize,
    /// Clusters of each policy (200), of the hub (10000), of syncsets (100), of the bus (5000).
    #[arg(long, env = "CLUSTERS", value_parser = count())]
    pub(crate) clusters: Option<usize>,
    /// API servers that stand for the clusters of syncsets.
    #[arg(long, env = "EDGES", default_value = "2", value_parser = count())]
    pub(crate) edges: usize,
    /// Further phases of syncsets: a rollout to all clusters and, if this is more than 1, so many at once to a tenth of the clusters each.
    #[arg(long, env = "ROLLOUTS", value_parser = count())]
    pub(crate) rollouts: Option<usize>,
    /// Replicas of the hub, which are the workers of syncsets.
    #[arg(long, env = "REPLICAS", default_value = "1", value_parser = count())]
    pub(crate) replicas: usize,
    /// Watches of the hub that are open at the same time.
    #[arg(long, env = "WATCHES", default_value = "100", value_parser = count())]
    pub(crate) watches: usize,
    /// Releases that Helm installs for the inventory.
    #[arg(long, env = "RELEASES", default_value = "40", value_parser = count())]
    pub(crate) releases: usize,
    /// Further releases for the inventory, at the end.
    #[arg(long, env = "MANY", default_value = "1000", value_parser = count())]
    pub(crate) many: usize,
}

/// A job of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum JobName {
    Sync,
    Lease,
    Status,
    Hub,
    Syncsets,
    Bus,
    Inventory,
}

/// Who does the same job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Against {
    /// The Go controller in `integration/reference`.
    Go,
}

/// A kind of small objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    #[value(name = "poddisruptionbudgets")]
    PodDisruptionBudgets,
    Databases,
}

impl Options {
    /// The numbers of objects, or the default.
    pub(crate) fn objects(&self, default: usize) -> Vec<usize> {
        if self.objects.is_empty() { vec![default] } else { self.objects.clone() }
    }
}

fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: u64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if seconds == 0 { Err("at least 1".to_owned()) } else { Ok(Duration::from_secs(seconds)) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{JobName, Options};

    #[test]
    fn all_jobs_are_measured_by_default_and_a_count_is_at_least_one() {
        let options = Options::try_parse_from(["bench", "--objects", "10,20"]).unwrap();
        assert_eq!((options.jobs.len(), options.objects(1)), (7, vec![10, 20]));
        let options = Options::try_parse_from(["bench", "--jobs", "bus,sync"]).unwrap();
        assert_eq!((options.jobs.as_slice(), options.objects(1)), (&[JobName::Bus, JobName::Sync][..], vec![1]));
        for refused in [["bench", "--runs", "0"], ["bench", "--idle", "0"], ["bench", "--jobs", "none"]] {
            assert!(Options::try_parse_from(refused).is_err(), "{refused:?}");
        }
    }
}
