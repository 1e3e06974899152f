//! The inventory as a job of the daemon.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::config::InventoryConfig;
use super::wiring::wire;
use super::{command, metrics, permissions};
use crate::config::ClusterName;
use crate::config::SectionName;
use crate::config::source::Node;
use crate::job::check::{Surroundings, say};
use crate::job::command::JobCommand;
use crate::job::permission::{Kinds, Permission, Reviewer};
use crate::job::{Job, Reading, Role, Sections, Wiring};
use crate::telemetry::Metric;

/// The job with the section `[inventory]`.
#[derive(Debug)]
pub struct InventoryJob;

/// The section `[inventory]`, if it is configured.
#[derive(Debug, Default)]
pub(super) struct InventorySection(pub(super) Option<InventoryConfig>);

/// The section of the inventory in a configuration, if there is one.
#[cfg(test)]
pub(crate) fn section(config: &crate::job::Config) -> Option<&InventoryConfig> {
    config.of::<InventorySection>()?.0.as_ref()
}

impl Job for InventoryJob {
    fn key(&self) -> &'static str {
        "inventory"
    }

    fn is_list(&self) -> bool {
        false
    }

    fn read(&self, node: Option<Node>, reading: &mut Reading<'_>) -> Arc<dyn Sections> {
        Arc::new(InventorySection(reading.table(self.key(), &["cluster"], node, InventoryConfig::read)))
    }

    fn metrics(&self) -> &'static [Metric] {
        metrics::ALL
    }

    fn commands(&self) -> Vec<JobCommand> {
        vec![command::command()]
    }

    fn orders(&self) -> &'static [&'static str] {
        &["resync", "explain"]
    }

    fn roles(&self) -> &'static [Role] {
        const BELOW: &[Role] = &[
            Role::new("poster", "", "posts to the API, four bodies at once; reads the token again when it changes"),
            Role::new(
                "reconciler",
                "",
                "decides what is told of each release, reads its record, writes the project's status",
            ),
        ];
        const ROLES: &[Role] = &[Role::new("inventory", "", "where there is [inventory]").over(BELOW)];
        ROLES
    }
}

impl Sections for InventorySection {
    fn names(&self) -> Vec<&SectionName> {
        self.0.iter().map(|section| &section.name).collect()
    }

    fn clusters(&self) -> Vec<&ClusterName> {
        self.0.iter().map(|section| &section.cluster).collect()
    }

    fn permissions(&self, _kinds: &Kinds) -> Vec<Permission> {
        self.0.iter().flat_map(permissions::of_section).collect()
    }

    fn connect<'c>(&'c self, surroundings: &'c Surroundings<'c>) -> BoxFuture<'c, usize> {
        async move {
            let Some(section) = &self.0 else { return 0 };
            let Some(cluster) = surroundings.cluster(&section.cluster) else { return 0 };
            let who = section.name.to_string();
            let mut kinds = Kinds::default();
            let missing = kinds.discover(&who, cluster, &super::kinds::id_of_projects()).await;
            if missing == 0 {
                // No fault: the inventory works without what is dropped.
                match super::crd::dropped(cluster).await {
                    Ok(None) => {}
                    Ok(Some(dropped)) => say(&format!("{who}: cluster {}: {dropped}", cluster.name())),
                    Err(error) => say(&format!("{who}: cluster {}: the schema is unknown: {error}", cluster.name())),
                }
            }
            missing + Reviewer::Cluster(cluster).check(&who, &permissions::of_section(section)).await
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
