//! Builds the actors of syncsets from their configuration.

use std::sync::Arc;

use super::api::{self, SyncsetApi};
use super::config::SyncsetsConfig;
use super::dispatch::Dispatcher;
use super::kubeconfig;
use super::metrics::SyncsetMetrics;
use super::overview::Overview;
use super::report::SyncsetReport;
use super::store::PassStore;
use super::work::Worker;
use crate::actor::{ChildSpec, RestartPolicy};
use crate::documents::{Role, Shared, WorkQueue};
use crate::job::Wiring;
use crate::job::routes::ApiRoutes;

/// Wires the section. It is wired after the hub, so it drains first, while what it needs still runs.
pub(super) fn wire(config: &SyncsetsConfig, wiring: &mut Wiring<'_>) {
    let Some(shared) = wiring.offered::<Shared>() else {
        // The configuration was checked: there is a hub.
        tracing::error!("the section [syncsets] has no hub");
        return;
    };
    let metrics = Arc::new(SyncsetMetrics::new(&config.name));
    let dispatcher =
        Dispatcher::new(shared.database.clone(), shared.claims.role(Role::Dispatcher), Arc::clone(&metrics) as _);
    let dispatcher = dispatcher.over(shared.broker.clone());
    let dispatcher = if config.mass_delete_guard { dispatcher } else { dispatcher.unguarded() };
    let worker = Worker::new(config.clone(), &shared, Arc::clone(&metrics) as _);
    let overview = Overview::new(&shared, metrics);
    if let Some(mounted) = wiring.offered::<ApiRoutes>() {
        let queue = WorkQueue::new(&shared.database, &shared.claims).over(shared.broker.clone());
        let database = shared.database.clone();
        let inspector = worker.inspector();
        let allowed = config.allowed;
        mounted
            .advise(Arc::new(move |text: &str| kubeconfig::read(text, allowed).err().map(|fault| fault.to_string())));
        mounted.mount(api::routes(SyncsetApi { store: PassStore::new(database.clone()), queue, database, inspector }));
    }
    let report = SyncsetReport::new(config.name.clone(), overview.clone());
    // The dispatcher waits for its claim, which nobody is granted before the schema is there.
    let children = move || vec![dispatcher.clone().child(), overview.clone().child(), worker.clone().child()];
    wiring.add(Arc::new(report), ChildSpec::supervisor("syncsets", RestartPolicy::ACTOR, children));
}
