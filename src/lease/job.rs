//! Leases as a job of the daemon.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::check::check_section;
use super::config::LeaseConfig;
use super::wiring::wire;
use super::{command, metrics, permissions};
use crate::config::fault::{Fault, Problem};
use crate::config::source::Node;
use crate::config::{ClusterConfig, ClusterName, SectionName, same_cluster};
use crate::job::check::Surroundings;
use crate::job::command::JobCommand;
use crate::job::permission::{Kinds, Permission};
use crate::job::{Config, Job, Reading, Role, Sections, Whole, Wiring};
use crate::telemetry::Metric;

/// `[[lease]]`.
#[derive(Debug)]
pub struct LeaseJob;

/// The sections of `[[lease]]`, with their places in the file.
#[derive(Debug, Default)]
pub(super) struct LeaseSections {
    sections: Vec<LeaseConfig>,
    indices: Vec<usize>,
}

/// The `[[lease]]` sections of a configuration, in the order of the file.
pub fn sections(config: &Config) -> &[LeaseConfig] {
    config.of::<LeaseSections>().map_or(&[], |of| &of.sections)
}

impl LeaseSections {
    /// One section that is not from a file.
    pub(super) fn one(section: LeaseConfig) -> Self {
        Self { sections: vec![section], indices: vec![0] }
    }
}

impl Job for LeaseJob {
    fn key(&self) -> &'static str {
        "lease"
    }

    fn is_list(&self) -> bool {
        true
    }

    fn read(&self, node: Option<Node>, reading: &mut Reading<'_>) -> Arc<dyn Sections> {
        let read = reading.list(self.key(), &["cluster"], node, LeaseConfig::read);
        let (indices, sections) = read.into_iter().unzip();
        Arc::new(LeaseSections { sections, indices })
    }

    fn metrics(&self) -> &'static [Metric] {
        metrics::ALL
    }

    fn commands(&self) -> Vec<JobCommand> {
        vec![command::command()]
    }

    fn roles(&self) -> &'static [Role] {
        const ROLES: &[Role] =
            &[Role::new("lease", "<name>", "one for each [[lease]] section: renews its Lease while its pod is ready")];
        ROLES
    }
}

impl Sections for LeaseSections {
    fn names(&self) -> Vec<&SectionName> {
        self.sections.iter().map(|section| &section.name).collect()
    }

    fn clusters(&self) -> Vec<&ClusterName> {
        self.sections.iter().map(|section| &section.cluster).collect()
    }

    fn check(&self, whole: &Whole<'_>, faults: &mut Vec<Fault>) {
        let placed: Vec<(usize, &LeaseConfig)> = self.indices.iter().copied().zip(&self.sections).collect();
        check_leases(&placed, whole.clusters, faults);
    }

    fn permissions(&self, _kinds: &Kinds) -> Vec<Permission> {
        let of = |section| [permissions::on_the_managed_cluster(section), permissions::on_the_hub(section)];
        self.sections.iter().flat_map(of).flatten().collect()
    }

    fn connect<'c>(&'c self, surroundings: &'c Surroundings<'c>) -> BoxFuture<'c, usize> {
        async move {
            let mut faults = 0;
            for section in &self.sections {
                let Some(cluster) = surroundings.cluster(&section.cluster) else { continue };
                faults += check_section(section, cluster).await;
            }
            faults
        }
        .boxed()
    }

    fn wire(&self, wiring: &mut Wiring<'_>) {
        for wired in wire(&self.sections, wiring) {
            wiring.add(wired.report(), wired.into_child());
        }
    }
}

/// Two sections must not renew one Lease. Two Secrets may lead to one hub, which can't be detected.
fn check_leases(
    lease: &[(usize, &LeaseConfig)],
    clusters: &BTreeMap<ClusterName, ClusterConfig>,
    faults: &mut Vec<Fault>,
) {
    for (position, (index, section)) in lease.iter().enumerate() {
        let is_same = |other: &LeaseConfig| {
            same_cluster(&other.cluster, &section.cluster, clusters)
                && (&other.secret_namespace, &other.secret_name) == (&section.secret_namespace, &section.secret_name)
                && (&other.lease_namespace, &other.lease_name) == (&section.lease_namespace, &section.lease_name)
        };
        if let Some((first, _)) = lease.iter().take(position).find(|(_, other)| is_same(other)) {
            let found =
                format!("Lease {}/{} on the hub of the same Secret", section.lease_namespace, section.lease_name);
            let problem = Problem::Duplicate { found, first: format!("lease[{first}].lease_name") };
            faults.push(Fault::new(format!("lease[{index}].lease_name"), problem));
        }
    }
}
