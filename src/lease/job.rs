//! Leases as a job of the daemon.

mod command;
mod side_car;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::config::LeaseConfig;
use super::metrics;
use super::run::credentials;
use super::run::latest::LatestState;
use super::run::readiness::{ObjectFollower, PodState, SecretState};
use super::run::renewal::Target;
use super::run::renewer::Renewer;
use super::status::LeaseReport;
use crate::actor::ChildSpec;
use crate::cluster::{
    AccessRequest, Cluster, DynamicCluster, DynamicClusters, Fence, Kind, ObjectKey, Verb, Watch, WatchId,
    WatchRegistry, WatchSpec,
};
use crate::config::fault::{Fault, Problem};
use crate::config::source::Node;
use crate::config::{ClusterConfig, ClusterName, SectionName, same_cluster};
use crate::job::check::{Surroundings, say};
use crate::job::command::JobCommand;
use crate::job::permission::{Kinds, Need, Permission, PermissionPlace, READ, Reviewer};
use crate::job::{Config, Job, Reading, Sections, Whole, Wiring};
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
        let of = |section| [on_the_managed_cluster(section), on_the_hub(section)];
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

/// The permissions on the managed cluster: the Secret with the hub's credentials, and the pod.
fn on_the_managed_cluster(config: &LeaseConfig) -> Vec<Permission> {
    let place = PermissionPlace::Cluster(config.cluster.clone());
    let mut permissions = Permission::each(&place, &READ, "secrets", &config.secret_namespace, &config.secret_name);
    if let Some(pod) = &config.pod {
        permissions.extend(Permission::each(&place, &READ, "pods", &pod.namespace, &pod.name));
    }
    permissions
}

/// The permissions on the hub: to create the Lease, to read it, and to renew it in one of two ways.
fn on_the_hub(config: &LeaseConfig) -> Vec<Permission> {
    let (resource, namespace) = (Kind::lease().full_resource(), &config.lease_namespace);
    let needs = |verb, name| Permission::each(&PermissionPlace::HubOfSecret, &[verb], &resource, namespace, name);
    let renew =
        [Verb::Patch, Verb::Update].map(|verb| AccessRequest::new(verb, &resource, namespace, &config.lease_name));
    let mut permissions = needs(Verb::Get, &config.lease_name);
    // RBAC can't grant the creation of an object by its name.
    permissions.extend(needs(Verb::Create, ""));
    permissions.push(Permission { place: PermissionPlace::HubOfSecret, any_of: renew.into(), need: Need::Required });
    permissions
}

/// A section that is wired and not started.
struct WiredLease {
    renewer: Arc<Renewer>,
    report: Arc<LeaseReport>,
}

/// Builds the actors from the configuration. Leases with the same Secret or pod share a watch, and leases with equal credentials
/// share a client.
fn wire(configs: &[LeaseConfig], with: &mut Wiring<'_>) -> Vec<WiredLease> {
    // The holder of leases that no pod gates.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut shared =
        Shared { started: Instant::now(), hubs: Arc::default(), secrets: BTreeMap::new(), pods: BTreeMap::new() };
    let wire_one = |config: &LeaseConfig| {
        let fence = with.fence(&config.name);
        shared.wire_one(config, &host, with.watches, fence)
    };
    configs.iter().map(wire_one).collect()
}

/// What the sections share.
struct Shared {
    started: Instant,
    hubs: Arc<DynamicClusters>,
    secrets: BTreeMap<WatchId, Arc<ObjectFollower<SecretState>>>,
    pods: BTreeMap<WatchId, Arc<ObjectFollower<PodState>>>,
}

impl Shared {
    fn wire_one(
        &mut self,
        config: &LeaseConfig,
        holder: &str,
        watches: &mut WatchRegistry,
        fence: Option<Fence>,
    ) -> WiredLease {
        let cluster = watches.canonical(&config.cluster);
        let (secret_key, secret) = watch_one(
            watches,
            &cluster,
            Kind::core("Secret", "secrets", true),
            &config.secret_namespace,
            &config.secret_name,
        );
        let follower = self.secrets.entry(secret.id().clone()).or_insert_with(|| {
            let hubs = Arc::clone(&self.hubs);
            let follower = Arc::new(ObjectFollower::new(secret_key, move |secret| SecretState::of(secret, &hubs)));
            watches.specify(&secret, WatchSpec::followed_by(Arc::clone(&follower) as _));
            follower
        });
        let secret_state = follower.states();
        let mut sources = vec![secret];
        let pod = config.pod.as_ref().map(|pod| {
            let (key, watch) = watch_one(watches, &cluster, Kind::core("Pod", "pods", true), &pod.namespace, &pod.name);
            let follower = self.pods.entry(watch.id().clone()).or_insert_with(|| {
                let follower = Arc::new(ObjectFollower::new(key, PodState::of));
                watches.specify(&watch, WatchSpec::followed_by(Arc::clone(&follower) as _));
                follower
            });
            sources.push(watch);
            follower.states()
        });
        let holder = config.pod.as_ref().map_or(holder, |pod| &pod.name).to_owned();
        let target = Arc::new(Target::new(config.clone(), holder, fence));
        let latest = Arc::new(LatestState::new(config));
        let report = LeaseReport::new(Arc::clone(&target), Arc::clone(&latest), sources.clone());
        let demands = match &target.fence {
            // Demands that exist before anything starts share one list.
            None => sources.iter().map(|watch| watch.demand(None)).collect(),
            Some(_) => Vec::new(),
        };
        let started = self.started;
        let renewer = Renewer { target, started, secret: secret_state, pod, latest, sources, _demands: demands };
        WiredLease { renewer: Arc::new(renewer), report: Arc::new(report) }
    }
}

/// A watch of one object of a kind that every cluster serves.
fn watch_one(
    watches: &mut WatchRegistry,
    cluster: &ClusterName,
    kind: Kind,
    namespace: &str,
    name: &str,
) -> (ObjectKey, Arc<Watch>) {
    let id = WatchId {
        namespace: namespace.to_owned(),
        fields: format!("metadata.name={name}"),
        ..WatchId::all(cluster.clone(), kind.id())
    };
    let watch = watches.watch(id, WatchSpec { kind: Some(kind), ..WatchSpec::default() });
    (ObjectKey::new(namespace, name), watch)
}

impl WiredLease {
    /// The report for the admin server.
    fn report(&self) -> Arc<LeaseReport> {
        Arc::clone(&self.report)
    }

    /// The section's actor. The watches that it follows belong to their clusters.
    fn into_child(self) -> ChildSpec {
        let renewer = self.renewer;
        let name = format!("lease {}", renewer.target.config.name);
        ChildSpec::new(name, move |scope| Arc::clone(&renewer).run(scope))
    }
}

/// `towline check --connect`: prints what a section lacks whose managed cluster answers. Returns the number of faults.
async fn check_section(config: &LeaseConfig, cluster: &Cluster) -> usize {
    let who = format!("lease {}", config.name);
    let faults = Reviewer::Cluster(cluster).check(&who, &on_the_managed_cluster(config)).await;
    if faults > 0 {
        return faults;
    }
    match hub(config, cluster).await {
        Ok(hub) => Reviewer::Hub(&hub).check(&who, &on_the_hub(config)).await,
        Err(fault) => {
            say(&format!("{who}: {fault}"));
            1
        }
    }
}

/// The hub, with the Secret's credentials.
async fn hub(config: &LeaseConfig, cluster: &Cluster) -> Result<Arc<DynamicCluster>, String> {
    let key = ObjectKey::new(config.secret_namespace.as_str(), config.secret_name.as_str());
    let fault = |text: &dyn std::fmt::Display| format!("secret {key}: {text}");
    let secret = cluster.get(&Kind::core("Secret", "secrets", true), &key).await.map_err(|error| fault(&error))?;
    let secret = secret.ok_or_else(|| fault(&"there is no such secret"))?;
    let credentials = credentials::read(secret.content.as_str()).map_err(|error| fault(&error))?;
    credentials::connect(credentials, &DynamicClusters::default()).map_err(|error| fault(&error))
}
