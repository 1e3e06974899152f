//! Builds the actors from the configuration. Leases with the same Secret or pod share a watch, and leases with equal
//! credentials share a client.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::config::LeaseConfig;
use super::readiness::{ObjectFollower, PodState, SecretState};
use super::renewal::Target;
use super::renewer::Renewer;
use super::report::{LeaseReport, Shown};
use crate::actor::{ChildSpec, RestartPolicy};
use crate::cluster::{DynamicClusters, Fence, Kind, ObjectKey, Watch, WatchId, WatchRegistry, WatchSpec};
use crate::config::{ClusterName, ResourceId};
use crate::job;

/// A section that is wired and not started.
pub(super) struct WiredLease {
    renewer: Arc<Renewer>,
    report: Arc<LeaseReport>,
}

pub(super) fn wire(configs: &[LeaseConfig], with: &mut job::Wiring<'_>) -> Vec<WiredLease> {
    // The holder of leases that no pod gates.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut wiring =
        Wiring { started: Instant::now(), hubs: Arc::default(), secrets: BTreeMap::new(), pods: BTreeMap::new() };
    let wire_one = |config: &LeaseConfig| {
        let fence = with.fence(&config.name);
        wiring.wire_one(config, &host, with.watches, fence)
    };
    configs.iter().map(wire_one).collect()
}

struct Wiring {
    started: Instant,
    hubs: Arc<DynamicClusters>,
    secrets: BTreeMap<WatchId, Arc<ObjectFollower<SecretState>>>,
    pods: BTreeMap<WatchId, Arc<ObjectFollower<PodState>>>,
}

impl Wiring {
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
        let shown = Arc::new(Shown::new(config));
        let report = LeaseReport::new(Arc::clone(&target), Arc::clone(&shown), sources.clone());
        let demands = match &target.fence {
            // Demands that exist before anything starts share one list.
            None => sources.iter().map(|watch| watch.demand(None)).collect(),
            Some(_) => Vec::new(),
        };
        let started = self.started;
        let renewer = Renewer { target, started, secret: secret_state, pod, shown, sources, _demands: demands };
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
    let resource = ResourceId {
        plural: kind.resource.plural.clone(),
        version: kind.resource.version.clone(),
        group: kind.resource.group.clone(),
    };
    let id = WatchId {
        namespace: namespace.to_owned(),
        fields: format!("metadata.name={name}"),
        ..WatchId::all(cluster.clone(), resource)
    };
    let watch = watches.watch(id, WatchSpec { kind: Some(kind), ..WatchSpec::default() });
    (ObjectKey::new(namespace, name), watch)
}

impl WiredLease {
    /// The report for the admin server.
    pub(super) fn report(&self) -> Arc<LeaseReport> {
        Arc::clone(&self.report)
    }

    /// The section's actor. The watches that it follows belong to their clusters.
    pub(super) fn into_child(self) -> ChildSpec {
        let renewer = self.renewer;
        let name = format!("lease {}", renewer.target.config.name);
        ChildSpec::new(name, move |scope| Arc::clone(&renewer).run(scope)).restart(RestartPolicy::ACTOR)
    }
}
