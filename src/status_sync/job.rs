//! Status sync as a job of the daemon.

pub mod command;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{Semaphore, watch};

use super::config::{StatusFamily, StatusSyncConfig};
use super::metrics;
use super::plan::{FamilySpec, Home, Shape, family_spec, projection};
use super::run::database::{Listener, check_database};
use super::run::identity::HubIdentification;
use super::run::poller::{KeyFollower, Poller, SectionContext};
use super::status::StatusSyncReport;
use crate::actor::{ChildSpec, Inbox, KeyInbox, key_mailbox, mailbox};
use crate::cluster::events::{EVENT_CAPACITY, EVENTS, ObjectEvent, write_events};
use crate::cluster::{Cluster, Kind, ObjectKey, Verb, Watch, WatchId, WatchRegistry, WatchSpec};
use crate::config::fault::{Fault, Problem};
use crate::config::source::Node;
use crate::config::{ClusterName, ElectionConfig, ResourceId, SectionName};
use crate::db::Database;
use crate::job::check::{Surroundings, check_identity, say};
use crate::job::command::JobCommand;
use crate::job::permission::{Kinds, Permission, PermissionPlace, READ, Reviewer, check_state};
use crate::job::{Config, Job, Reading, Sections, Whole, Wiring};
use crate::state::{StateStore, keep};
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
            written_kinds(section).into_iter().map(|id| (section.cluster.clone(), id)).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    fn permissions(&self, kinds: &Kinds) -> Vec<Permission> {
        self.0.iter().flat_map(|section| of_section(section, kinds)).collect()
    }

    fn states(&self) -> Vec<(&ClusterName, &SectionName)> {
        self.0.iter().map(|section| (&section.cluster, &section.name)).collect()
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

/// The kinds that the families write, and the kinds of the owners of created objects.
fn written_kinds(config: &StatusSyncConfig) -> Vec<ResourceId> {
    let mut ids = Vec::new();
    for family in &config.families {
        let spec = family_spec(*family);
        for id in std::iter::once(spec.target()).chain(spec.owner()) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    ids
}

/// The permissions of the section. Kinds that have not been discovered are left out, since the subresource that is
/// patched depends on how the hub serves the kind.
fn of_section(config: &StatusSyncConfig, kinds: &Kinds) -> Vec<Permission> {
    let place = PermissionPlace::Cluster(config.cluster.clone());
    let namespace = config.watch_namespace.as_str();
    let mut permissions: Vec<Permission> = Vec::new();
    for family in &config.families {
        let spec = family_spec(*family);
        if let Some(kind) = kinds.get(&config.cluster, &spec.target()) {
            permissions.extend(on_the_target(&place, &spec, kind, namespace));
        }
        if let Some(kind) = spec.owner().and_then(|owner| kinds.get(&config.cluster, &owner)) {
            let resource = kind.full_resource();
            permissions.extend(Permission::each(&place, &READ, &resource, namespace, ""));
            // Created objects have an owner reference that blocks the owner's deletion.
            permissions.extend(Permission::each(
                &place,
                &[Verb::Update],
                &format!("{resource}/finalizers"),
                namespace,
                "",
            ));
        }
    }
    let events = Permission::each(&place, &[Verb::Create, Verb::Patch], EVENTS, namespace, "");
    permissions.extend(events.into_iter().map(|event| event.optional("Events on objects that others keep changing")));
    permissions.push(Permission::identity(&place));
    let mut seen: Vec<Permission> = Vec::new();
    for permission in permissions {
        if !seen.contains(&permission) {
            seen.push(permission);
        }
    }
    seen
}

fn on_the_target(place: &PermissionPlace, spec: &FamilySpec, kind: &Kind, namespace: &str) -> Vec<Permission> {
    let resource = kind.full_resource();
    let needs = |verbs: &[Verb], resource: &str| Permission::each(place, verbs, resource, namespace, "");
    let mut permissions = needs(&READ, &resource);
    if spec.home == Home::Status && kind.status_subresource {
        permissions.extend(needs(&[Verb::Patch], &format!("{resource}/status")));
    } else {
        permissions.extend(needs(&[Verb::Patch], &resource));
    }
    if spec.shape != Shape::Itself {
        permissions.extend(needs(&[Verb::Create, Verb::Delete], &resource));
    }
    permissions
}

/// Capacity of a poller's mailbox, which is read in every pause of a pass.
const KEY_CAPACITY: usize = 1024;

/// Status sync, wired but not started.
struct WiredStatusSync {
    pollers: Vec<(Arc<Poller>, KeyInbox<ObjectKey>)>,
    listener: Option<Arc<Listener>>,
    report: Arc<StatusSyncReport>,
    events: Inbox<ObjectEvent>,
    shared: Arc<SectionContext>,
}

/// Wires the pollers, their watches and the listener.
fn wire(config: &StatusSyncConfig, wiring: &mut Wiring<'_>) -> WiredStatusSync {
    let fence = wiring.fence(&config.name);
    let (watches, keeping) = (&mut *wiring.watches, wiring.keeping);
    let cluster = watches.canonical(&config.cluster);
    let hub = watches.cluster(&cluster);
    let hub = fence.as_ref().map_or_else(|| hub.clone(), |fence| hub.under(fence));
    let store = StateStore::new(config, hub.clone(), keeping);
    let slots = Arc::new(Semaphore::new(hub.max_in_flight()));
    let database = Database::new(config.database.clone()).answering_within(config.statement_timeout);
    let identification =
        Arc::new(HubIdentification::new(config.name.clone(), hub, store, database.clone(), config.families.clone()));
    let (event_mailbox, events) = mailbox(EVENT_CAPACITY);
    let shared = Arc::new(SectionContext {
        database,
        slots,
        interval: config.interval,
        namespace: config.watch_namespace.clone(),
        any_rows: watch::Sender::new(false),
        approvals: watch::Sender::new(0),
        fence,
        identification,
        events: event_mailbox,
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
    WiredStatusSync { pollers, listener, report, events, shared }
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
    fn report(&self) -> Arc<StatusSyncReport> {
        Arc::clone(&self.report)
    }

    /// The section's supervisor. The watches belong to their cluster.
    fn into_child(self) -> ChildSpec {
        let Self { pollers, listener, events, shared, report: _ } = self;
        ChildSpec::supervisor("status_sync", move || {
            // Without an election no other replica can have run the section in between.
            shared.identification.begin(shared.fence.is_none());
            let identification = Arc::clone(&shared.identification);
            let state = ChildSpec::new("state", move |scope| {
                let identification = Arc::clone(&identification);
                keep(Arc::clone(identification.store()), scope, async move || identification.changed())
            });
            let event_inbox = events.clone();
            let events =
                ChildSpec::new("events", move |scope| write_events(event_inbox.clone(), scope)).gauge(events.gauge());
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
            // Children drain in reverse order: the listener stops first, then the pollers, and the state after them, because
            // pollers change it.
            [events, state].into_iter().chain(pollers).chain(listener).collect()
        })
    }
}

/// `towline check --connect`: prints what the section lacks, and returns how many faults that are. `cluster` is the hub, if it answers.
async fn check_section(config: &StatusSyncConfig, cluster: Option<&Cluster>) -> usize {
    let who = config.name.to_string();
    let mut faults = 0;
    if let Some(cluster) = cluster {
        let mut kinds = Kinds::default();
        for id in written_kinds(config) {
            faults += kinds.discover(&who, cluster, &id).await;
        }
        faults += Reviewer::Cluster(cluster).check(&who, &of_section(config, &kinds)).await;
    }
    for fault in check_database(config).await {
        faults += 1;
        say(&format!("{who}: {fault}"));
    }
    faults
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
