//! Resource sync as a job of the daemon.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::config::fault::{Fault, Faults, Problem};
use crate::config::source::Node;
use crate::config::{ClusterName, ResourceId, SectionName};
use crate::job::check::{Surroundings, say};
use crate::job::command::JobCommand;
use crate::job::permission::{Kinds, Permission};
use crate::job::{self, Config, Job, Reading, Role, Sections, Whole, Wiring};
use crate::resource_sync::check;
use crate::resource_sync::config::{Scope, SyncConfig, conflicts};
use crate::resource_sync::{metrics, permissions, release, wiring};
use crate::telemetry::Metric;

/// `[[sync]]`.
#[derive(Debug)]
pub struct SyncJob;

/// The sections of `[[sync]]`, with their indices in the file.
#[derive(Debug, Default)]
pub(super) struct SyncSections {
    sections: Vec<SyncConfig>,
    indices: Vec<usize>,
}

/// The `[[sync]]` sections of a configuration, in the order of the file.
pub fn sections(config: &Config) -> &[SyncConfig] {
    config.of::<SyncSections>().map_or(&[], |of| &of.sections)
}

impl Job for SyncJob {
    fn key(&self) -> &'static str {
        "sync"
    }

    fn is_list(&self) -> bool {
        true
    }

    fn read(&self, node: Option<Node>, reading: &mut Reading<'_>) -> Arc<dyn Sections> {
        let read = reading.list(self.key(), &["remote", "local"], node, SyncConfig::read);
        let (indices, sections) = read.into_iter().unzip();
        Arc::new(SyncSections { sections, indices })
    }

    fn metrics(&self) -> &'static [Metric] {
        metrics::ALL
    }

    fn commands(&self) -> Vec<JobCommand> {
        vec![release::command()]
    }

    fn roles(&self) -> &'static [Role] {
        const BELOW: &[Role] = &[
            Role::new("events", "", "writes Events to the local cluster, and where they are granted to the remote one"),
            job::STATE,
            Role::new("dispatcher", "", "reconciles: one run at a time for a key, many keys at once"),
            Role::new("attendant", "", "wakes pairs that wait for a cluster, a permission or the refresh of a secret"),
        ];
        const ROLES: &[Role] = &[Role::new("sync", "<name>", "one for each [[sync]] section").over(BELOW)];
        ROLES
    }
}

impl Sections for SyncSections {
    fn names(&self) -> Vec<&SectionName> {
        self.sections.iter().map(|section| &section.name).collect()
    }

    fn clusters(&self) -> Vec<&ClusterName> {
        self.sections.iter().flat_map(|section| [&section.remote, &section.local]).collect()
    }

    /// Assumes that every kind is namespaced; only `--connect` finds out.
    fn check(&self, whole: &Whole<'_>, faults: &mut Vec<Fault>) {
        faults.extend(self.placed().filter_map(|(index, section)| {
            let (found, reason) = (section.resource.to_string(), section.objection()?.to_owned());
            Some(Fault::new(format!("sync[{index}].resource"), Problem::Unsyncable { found, reason }))
        }));
        faults.extend(conflicts(&self.placed().collect::<Vec<_>>(), whole.clusters, |_| Scope::Namespaced));
    }

    fn warnings(&self) -> Vec<String> {
        let kinds = self.sections.iter().filter_map(|section| {
            let warning = section.warning()?;
            Some(format!("sync {}: kind {}: {warning}", section.name, section.resource))
        });
        let dry = self.sections.iter().filter(|section| section.dry_run);
        kinds.chain(dry.map(|section| format!("sync {}: dry_run: nothing is written", section.name))).collect()
    }

    fn announce(&self) {
        for section in self.sections.iter().filter(|section| section.dry_run) {
            tracing::warn!(section = %section.name, "dry run: nothing is written");
        }
    }

    fn kinds(&self) -> Vec<(ClusterName, ResourceId)> {
        let of =
            |section: &SyncConfig| [&section.remote, &section.local].map(|at| (at.clone(), section.resource.clone()));
        self.sections.iter().flat_map(of).collect()
    }

    fn permissions(&self, kinds: &Kinds) -> Vec<Permission> {
        self.sections.iter().flat_map(|section| permissions::of_section(section, kinds)).collect()
    }

    fn connect<'c>(&'c self, surroundings: &'c Surroundings<'c>) -> BoxFuture<'c, usize> {
        async move {
            let mut faults = 0;
            let mut kinds = Kinds::default();
            for section in &self.sections {
                faults += check::check_section(section, surroundings, &mut kinds).await;
            }
            let scope = |section: &SyncConfig| {
                let kind = kinds.any(&section.resource);
                if kind.is_none_or(|kind| kind.namespaced) { Scope::Namespaced } else { Scope::Cluster }
            };
            let between = Faults::new(conflicts(&self.placed().collect::<Vec<_>>(), surroundings.configured, scope));
            if !between.is_empty() {
                faults += between.as_slice().len();
                say(&between.to_string());
            }
            faults
        }
        .boxed()
    }

    fn wire(&self, wiring: &mut Wiring<'_>) {
        for wired in wiring::wire(&self.sections, wiring) {
            wiring.add(wired.report(), wired.into_child());
        }
    }
}

impl SyncSections {
    fn placed(&self) -> impl Iterator<Item = (usize, &SyncConfig)> {
        self.indices.iter().copied().zip(&self.sections)
    }
}
