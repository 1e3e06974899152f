//! Builds the actors from the configuration.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use super::config::{StatusFamily, StatusSyncConfig};
use super::database::Listener;
use super::identity::HubIdentification;
use super::poller::{KeyFollower, Poller, SectionContext};
use super::report::StatusSyncReport;
use super::rules::{family_spec, projection};
use crate::actor::{ChildSpec, KeyInbox, RestartPolicy, key_mailbox};
use crate::cluster::{ObjectKey, Watch, WatchId, WatchRegistry, WatchSpec};
use crate::config::{ClusterName, ResourceId};
use crate::db::Database;
use crate::job::Wiring;
use crate::state::{StateStore, keep};

/// Capacity of a poller's mailbox, which is read in every pause of a pass.
const KEY_CAPACITY: usize = 1024;

/// Status sync, wired but not started.
pub struct WiredStatusSync {
    pollers: Vec<(Arc<Poller>, KeyInbox<ObjectKey>)>,
    listener: Option<Arc<Listener>>,
    report: Arc<StatusSyncReport>,
    shared: Arc<SectionContext>,
}

/// Wires the pollers, their watches and the listener.
pub fn wire(config: &StatusSyncConfig, wiring: &mut Wiring<'_>) -> WiredStatusSync {
    let fence = wiring.fence(&config.name);
    let (watches, keeping) = (&mut *wiring.watches, wiring.keeping);
    let cluster = watches.canonical(&config.cluster);
    let hub = watches.cluster(&cluster);
    let hub = fence.as_ref().map_or_else(|| hub.clone(), |fence| hub.under(fence));
    let store = StateStore::new(config, hub.clone(), keeping);
    let permits = Arc::new(Semaphore::new(hub.max_in_flight()));
    let database = Database::new(config.database.clone()).answering_within(config.statement_timeout);
    let identification =
        Arc::new(HubIdentification::new(config.name.clone(), hub, store, database.clone(), config.families.clone()));
    let shared = Arc::new(SectionContext {
        database,
        permits,
        interval: config.interval,
        namespace: config.watch_namespace.clone(),
        any_rows: watch::Sender::new(false),
        approvals: watch::Sender::new(0),
        fence,
        identification,
    });
    let mut pollers = Vec::new();
    for family in &config.families {
        let spec = family_spec(*family);
        let namespace = &config.watch_namespace;
        let target = projected(watches, &cluster, namespace, *family);
        let owner = spec.owner().map(|resource| {
            // If another family writes the kind of the owner, both share that family's watch and its projection.
            let written = StatusFamily::ALL.into_iter().find(|other| family_spec(*other).target() == resource);
            match written {
                Some(written) => projected(watches, &cluster, namespace, written),
                None => watches.watch(id(&cluster, resource, namespace, true), WatchSpec::default()),
            }
        });
        let (mailbox, inbox) = key_mailbox(KEY_CAPACITY);
        for watch in std::iter::once(&target).chain(&owner) {
            let follower = KeyFollower { namespace: namespace.clone(), mailbox: mailbox.clone() };
            watches.specify(watch, WatchSpec::followed_by(Arc::new(follower)));
        }
        pollers.push((Arc::new(Poller::new(*family, Arc::clone(&shared), target, owner)), inbox));
    }
    let all: Vec<Arc<Poller>> = pollers.iter().map(|(poller, _)| Arc::clone(poller)).collect();
    let hints: Vec<_> = all.iter().map(|poller| (poller.family(), poller.hints())).collect();
    let listener = config.notify.then(|| Arc::new(Listener::new(shared.database.clone(), &hints)));
    let report = Arc::new(StatusSyncReport::new(config.name.clone(), Arc::clone(&shared), all, listener.clone()));
    WiredStatusSync { pollers, listener, report, shared }
}

/// The watch of the kind that a family writes. It holds digests, so no other job can share it.
fn projected(watches: &mut WatchRegistry, cluster: &ClusterName, namespace: &str, family: StatusFamily) -> Arc<Watch> {
    let spec = family_spec(family);
    let whole = id(cluster, spec.target(), namespace, false);
    let projection = Some(projection(spec));
    let digests = WatchSpec { projection, ..WatchSpec::default() };
    watches.watch(WatchId { projection: Some("status_sync"), ..whole }, digests)
}

fn id(cluster: &ClusterName, resource: ResourceId, namespace: &str, metadata_only: bool) -> WatchId {
    WatchId { namespace: namespace.to_owned(), metadata_only, ..WatchId::all(cluster.clone(), resource) }
}

impl WiredStatusSync {
    /// The report for the admin server.
    pub fn report(&self) -> Arc<StatusSyncReport> {
        Arc::clone(&self.report)
    }

    /// The section's supervisor. The watches belong to their cluster.
    pub fn into_child(self) -> ChildSpec {
        let Self { pollers, listener, shared, report: _ } = self;
        ChildSpec::supervisor("status_sync", RestartPolicy::ACTOR, move || {
            // Without an election no other replica can have run the section in between.
            shared.identification.begin(shared.fence.is_none());
            let identification = Arc::clone(&shared.identification);
            let state = ChildSpec::new("state", move |scope| {
                let identification = Arc::clone(&identification);
                keep(Arc::clone(identification.store()), scope, async move || identification.changed())
            });
            let listener = listener
                .clone()
                .map(|listener| ChildSpec::new("listener", move |scope| Arc::clone(&listener).run(scope)));
            let pollers = pollers.iter().map(|(poller, inbox)| {
                let (poller, inbox) = (Arc::clone(poller), inbox.clone());
                let gauge = inbox.gauge();
                ChildSpec::new(format!("poller {}", poller.family().as_str()), move |scope| {
                    Arc::clone(&poller).run(scope, inbox.clone())
                })
                .gauge(gauge)
            });
            // Children drain in reverse order: the listener stops first, then the pollers, and the state last, because
            // pollers change it.
            std::iter::once(state).chain(pollers).chain(listener).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::ResourceId;

    #[tokio::test]
    async fn a_kind_that_another_job_watches_is_watched_twice_and_projected_for_one() {
        let mut watches = WatchRegistry::new(&BTreeMap::new());
        let cluster: ClusterName = "hub".parse().expect("a name");
        let resource: ResourceId = "policies.v1.policy.open-cluster-management.io".parse().expect("a kind");
        let whole = watches.watch(id(&cluster, resource, "", false), WatchSpec::default());
        let digests = projected(&mut watches, &cluster, "", StatusFamily::Policies);
        let policy = serde_json::json!({"metadata": {"namespace": "n", "name": "p", "uid": "u", "resourceVersion": "1"},
            "spec": {"disabled": false}, "status": {"compliant": "Compliant"}});
        for watch in [&whole, &digests] {
            let (mailbox, _inbox) = key_mailbox(KEY_CAPACITY);
            let follower = KeyFollower { namespace: String::new(), mailbox };
            watches.specify(watch, WatchSpec::followed_by(Arc::new(follower)));
            watch.list(std::slice::from_ref(&policy)).await;
        }
        let held = whole.store().get(&ObjectKey::new("n", "p")).expect("it is listed");
        assert_eq!(held.content.value()["spec"], policy["spec"], "the other job decides from the whole object");
        assert!(held.status.is_some());
        let held = digests.store().get(&ObjectKey::new("n", "p")).expect("it is listed");
        assert!(held.content.as_str().len() < 40 && held.status.is_none(), "{:?}", held.content);
        assert_ne!(whole.id().label(), digests.id().label());
    }

    #[tokio::test]
    async fn families_share_the_watch_of_a_kind() {
        let mut watches = WatchRegistry::new(&BTreeMap::new());
        let cluster: ClusterName = "hub".parse().expect("a name");
        let one = projected(&mut watches, &cluster, "", StatusFamily::Placements);
        assert!(Arc::ptr_eq(&one, &projected(&mut watches, &cluster, "", StatusFamily::Placements)));
    }
}
