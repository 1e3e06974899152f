//! The permissions that a lease needs on the managed cluster and on the hub, as the specification lists them.

use super::config::LeaseConfig;
use crate::cluster::{AccessRequest, Kind, Verb};
use crate::job::permission::{Need, Permission, Place, READ};

/// Those on the managed cluster: the Secret with the hub's credentials, and the pod.
pub(super) fn on_the_managed_cluster(config: &LeaseConfig) -> Vec<Permission> {
    let place = Place::Cluster(config.cluster.clone());
    let mut permissions = Permission::each(&place, &READ, "secrets", &config.secret_namespace, &config.secret_name);
    if let Some(pod) = &config.pod {
        permissions.extend(Permission::each(&place, &READ, "pods", &pod.namespace, &pod.name));
    }
    permissions
}

/// Those on the hub: to create the Lease, to read it, and to renew it in one of two ways.
pub(super) fn on_the_hub(config: &LeaseConfig) -> Vec<Permission> {
    let (resource, namespace) = (Kind::lease().full_resource(), &config.lease_namespace);
    let needs = |verb, name| Permission::each(&Place::HubOfSecret, &[verb], &resource, namespace, name);
    let renew =
        [Verb::Patch, Verb::Update].map(|verb| AccessRequest::new(verb, &resource, namespace, &config.lease_name));
    let mut permissions = needs(Verb::Get, &config.lease_name);
    // RBAC can't grant the creation of an object by its name.
    permissions.extend(needs(Verb::Create, ""));
    permissions.push(Permission { place: Place::HubOfSecret, any_of: renew.into(), need: Need::Required });
    permissions
}
