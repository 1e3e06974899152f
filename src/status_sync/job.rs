//! Status sync as a job of the daemon.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::check::check_section;
use super::config::StatusSyncConfig;
use super::wiring::wire;
use super::{command, metrics, permissions};
use crate::config::fault::{Fault, Problem};
use crate::config::source::Node;
use crate::config::{ClusterName, ElectionConfig, ResourceId, SectionName};
use crate::job::check::{Surroundings, check_identity, check_state};
use crate::job::command::JobCommand;
use crate::job::permission::{Kinds, Permission};
use crate::job::{self, Config, Job, Reading, Role, Sections, Whole, Wiring};
use crate::telemetry::Metric;

/// The job with the section `[status_sync]`.
#[derive(Debug)]
pub struct StatusSyncJob;

/// The section `[status_sync]`, if it is configured.
#[derive(Debug, Default)]
pub(super) struct StatusSyncSection(Option<StatusSyncConfig>);

/// The section of status sync in a configuration, if there is one.
pub fn section(config: &Config) -> Option<&StatusSyncConfig> {
    config.of::<StatusSyncSection>()?.0.as_ref()
}

impl Job for StatusSyncJob {
    fn key(&self) -> &'static str {
        "status_sync"
    }

    fn is_list(&self) -> bool {
        false
    }

    fn read(&self, node: Option<Node>, reading: &mut Reading<'_>) -> Arc<dyn Sections> {
        Arc::new(StatusSyncSection(reading.table(self.key(), &["cluster"], node, StatusSyncConfig::read)))
    }

    fn metrics(&self) -> &'static [Metric] {
        metrics::ALL
    }

    fn commands(&self) -> Vec<JobCommand> {
        vec![command::command()]
    }

    fn roles(&self) -> &'static [Role] {
        const BELOW: &[Role] = &[
            job::STATE,
            Role::new("poller", "<family>", "reads what changed in the database, rolls it up, writes the differences"),
            Role::new(
                "listener",
                "",
                "with notify = true: listens on a connection of its own, and wakes the pollers concerned",
            ),
        ];
        const ROLES: &[Role] = &[Role::new("status_sync", "", "where there is [status_sync]").over(BELOW)];
        ROLES
    }
}

impl Sections for StatusSyncSection {
    fn names(&self) -> Vec<&SectionName> {
        self.0.iter().map(|section| &section.name).collect()
    }

    fn clusters(&self) -> Vec<&ClusterName> {
        self.0.iter().map(|section| &section.cluster).collect()
    }

    fn check(&self, whole: &Whole<'_>, faults: &mut Vec<Fault>) {
        let Some(namespace) = self.0.as_ref().and_then(|section| section.election_namespace.as_ref()) else { return };
        if whole.is_alone {
            return;
        }
        let allowed =
            "only without other sections and without `[election]`, which has a namespace of its own".to_owned();
        let problem = Problem::Value { found: format!("{namespace:?}"), allowed, suggestion: None };
        faults.push(Fault::new("status_sync.election_namespace", problem));
    }

    fn election(&self) -> Option<ElectionConfig> {
        let section = self.0.as_ref()?;
        Some(ElectionConfig::new(section.cluster.clone(), section.election_namespace.as_ref()?))
    }

    fn kinds(&self) -> Vec<(ClusterName, ResourceId)> {
        let of = |section: &StatusSyncConfig| {
            permissions::kinds(section).into_iter().map(|id| (section.cluster.clone(), id)).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    fn permissions(&self, kinds: &Kinds) -> Vec<Permission> {
        self.0.iter().flat_map(|section| permissions::of_section(section, kinds)).collect()
    }

    fn connect<'c>(&'c self, surroundings: &'c Surroundings<'c>) -> BoxFuture<'c, usize> {
        async move {
            let Some(section) = &self.0 else { return 0 };
            let cluster = surroundings.cluster(&section.cluster);
            let mut faults = check_section(section, cluster).await;
            if let Some(cluster) = cluster {
                let who = section.name.to_string();
                faults += check_identity(&who, cluster);
                faults += check_state(&who, section.into(), cluster, &surroundings.keeping).await;
            }
            faults
        }
        .boxed()
    }

    fn wire(&self, wiring: &mut Wiring<'_>) {
        if let Some(section) = &self.0 {
            let wired = wire(section, wiring);
            wiring.add(wired.report(), wired.into_child());
        }
    }
}
