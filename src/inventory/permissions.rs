//! The permissions that the inventory needs, as the specification lists them.

use super::config::InventoryConfig;
use super::kinds::{SECRET, id_of_projects};
use super::rules::release::Storage;
use crate::cluster::Verb;
use crate::job::permission::{Permission, Place, READ};

/// The verbs of what is only watched.
const FOLLOW: [Verb; 2] = [Verb::List, Verb::Watch];

/// The permissions of the section. RBAC can't narrow Secrets to those of Helm.
pub(super) fn of_section(config: &InventoryConfig) -> Vec<Permission> {
    let place = Place::Cluster(config.cluster.clone());
    let each = |verbs: &[Verb], resource: &str, name: &str| Permission::each(&place, verbs, resource, "", name);
    let mut permissions = match config.helm_driver {
        Storage::Secret => each(&READ, "secrets", ""),
        Storage::ConfigMap => [each(&READ, "configmaps", ""), each(&FOLLOW, "secrets", SECRET)].concat(),
    };
    for resource in ["pods", "services", "persistentvolumeclaims", "ingresses.networking.k8s.io"] {
        permissions.extend(each(&FOLLOW, resource, ""));
    }
    let id = id_of_projects();
    let projects = format!("{}.{}", id.plural, id.group);
    permissions.extend(each(&READ, &projects, ""));
    permissions.extend(each(&[Verb::Patch], &format!("{projects}/status"), ""));
    permissions
}
