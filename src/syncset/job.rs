//! Syncsets as a job of the daemon.

mod command;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::api::{self, SyncsetApi};
use super::config::{SYNCSETS, SyncsetsConfig};
use super::inspect::Inspector;
use super::metrics;
use super::metrics::SyncsetMetrics;
use super::run::dispatch::{Dispatch, Dispatcher};
use super::run::store::PassStore;
use super::run::work::Worker;
use super::status::SyncsetReport;
use super::status::counter::Counter;
use crate::actor::ChildSpec;
use crate::cluster::kubeconfig;
use crate::config::fault::{Fault, Problem};
use crate::config::source::Node;
use crate::config::{ClusterName, SectionName};
use crate::documents::{self, Shared, WorkQueue};
use crate::job::check::Surroundings;
use crate::job::command::JobCommand;
use crate::job::permission::{Kinds, Permission};
use crate::job::routes::ApiRoutes;
use crate::job::{Config, Job, Reading, Sections, Whole, Wiring};
use crate::telemetry::Metric;

/// The section on whose documents the job works.
const HUB: &str = "hub";

#[derive(Debug)]
pub struct SyncsetJob;

/// The section `[syncsets]`, if it is configured.
#[derive(Debug, Default)]
pub(super) struct SyncsetSection(Option<SyncsetsConfig>);

pub fn section(config: &Config) -> Option<&SyncsetsConfig> {
    config.of::<SyncsetSection>()?.0.as_ref()
}

impl Job for SyncsetJob {
    fn key(&self) -> &'static str {
        SYNCSETS
    }

    fn is_list(&self) -> bool {
        false
    }

    fn read(&self, node: Option<Node>, reading: &mut Reading<'_>) -> Arc<dyn Sections> {
        Arc::new(SyncsetSection(reading.table(self.key(), &[], node, |fields| Some(SyncsetsConfig::read(fields)))))
    }

    fn metrics(&self) -> &'static [Metric] {
        metrics::ALL
    }

    fn commands(&self) -> Vec<JobCommand> {
        command::commands()
    }
}

impl Sections for SyncsetSection {
    fn names(&self) -> Vec<&SectionName> {
        self.0.iter().map(|section| &section.name).collect()
    }

    fn clusters(&self) -> Vec<&ClusterName> {
        Vec::new()
    }

    /// Replicas share the work by claims in the database.
    fn is_elected(&self) -> bool {
        false
    }

    fn check(&self, whole: &Whole<'_>, faults: &mut Vec<Fault>) {
        if self.0.is_some() && !whole.present.contains(&HUB) {
            let allowed = "beside `[hub]`, on whose documents it works".to_owned();
            let found = "no section `[hub]`".to_owned();
            faults.push(Fault::new(SYNCSETS, Problem::Value { found, allowed, suggestion: None }));
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.0.iter().filter_map(SyncsetsConfig::warning).collect()
    }

    fn permissions(&self, _kinds: &Kinds) -> Vec<Permission> {
        Vec::new()
    }

    /// The hub checks the database; which clusters there are is known there alone.
    fn connect<'c>(&'c self, _surroundings: &'c Surroundings<'c>) -> BoxFuture<'c, usize> {
        async { 0 }.boxed()
    }

    fn wire(&self, wiring: &mut Wiring<'_>) {
        if let Some(section) = &self.0 {
            wire(section, wiring);
        }
    }
}

/// Wires the section. It is wired after the hub, so it drains first, while what it needs still runs.
fn wire(config: &SyncsetsConfig, wiring: &mut Wiring<'_>) {
    let Some(shared) = wiring.offered::<Shared>() else {
        // The configuration was checked: there is a hub.
        tracing::error!("the section [syncsets] has no hub");
        return;
    };
    let metrics = Arc::new(SyncsetMetrics::new(&config.name));
    let dispatch = Dispatch::new(shared.database.clone()).over(shared.broker.clone());
    let dispatch = if config.mass_delete_guard { dispatch } else { dispatch.unguarded() };
    let leadership = shared.claims.role(documents::Role::Dispatcher);
    let dispatcher = Dispatcher::new(dispatch, leadership, Arc::clone(&metrics) as _);
    let worker = Worker::new(config.clone(), &shared, Arc::clone(&metrics) as _);
    let counter = Counter::new(&shared, metrics);
    if let Some(mounted) = wiring.offered::<ApiRoutes>() {
        let queue = WorkQueue::new(&shared.database, &shared.claims).over(shared.broker.clone());
        let database = shared.database.clone();
        let inspector = Inspector::new(&worker.store, &worker.preparer, Arc::clone(&worker.clusters), config);
        let allowed = config.allowed;
        mounted
            .advise(Arc::new(move |text: &str| Some(kubeconfig::of_user(text.as_bytes(), allowed).err()?.to_string())));
        let (store, changes) = (PassStore::new(database.clone()), shared.changes.clone());
        mounted.mount(api::routes(SyncsetApi { store, queue, database, inspector, changes }));
    }
    let report = SyncsetReport::new(config.name.clone(), counter.clone());
    // The dispatcher waits for its claim, which nobody is granted before the schema is there.
    let children = move || vec![dispatcher.clone().child(), counter.clone().child(), worker.clone().child()];
    wiring.add(Arc::new(report), ChildSpec::supervisor("syncsets", children));
}
