//! The permissions that status sync needs on the hub, as the specification lists them.

use super::config::StatusSyncConfig;
use super::rules::{FamilySpec, Home, Shape, family_spec};
use crate::cluster::{Kind, Verb};
use crate::config::ResourceId;
use crate::job::permission::{EVENTS, Kinds, Permission, Place, READ};

/// The kinds that the families write, and the kinds of the owners of created objects.
pub(super) fn kinds(config: &StatusSyncConfig) -> Vec<ResourceId> {
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
pub(super) fn of_section(config: &StatusSyncConfig, kinds: &Kinds) -> Vec<Permission> {
    let place = Place::Cluster(config.cluster.clone());
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

fn on_the_target(place: &Place, spec: &FamilySpec, kind: &Kind, namespace: &str) -> Vec<Permission> {
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
