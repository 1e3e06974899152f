//! The permissions that a section of resource sync needs on both clusters, as the specification lists them.

use super::config::SyncConfig;
use crate::cluster::{Kind, Verb};
use crate::job::permission::{EVENTS, Kinds, Permission, Place, READ};

/// The permissions that a section needs, on those of its clusters that are known to serve its kind.
pub(super) fn of_section(section: &SyncConfig, kinds: &Kinds) -> Vec<Permission> {
    let remote = kinds.get(&section.remote, &section.resource).map(|kind| on_the_remote(section, kind));
    let local = kinds.get(&section.local, &section.resource).map(|kind| on_the_local(section, kind));
    remote.into_iter().chain(local).flatten().collect()
}

fn on_the_remote(section: &SyncConfig, kind: &Kind) -> Vec<Permission> {
    let place = Place::Cluster(section.remote.clone());
    let resource = kind.full_resource();
    let needs = |verbs: &[Verb], resource: &str, name: &str| Permission::each(&place, verbs, resource, "", name);
    let mut permissions = needs(&READ, &resource, "");
    permissions.extend(needs(&[Verb::Patch], &resource, ""));
    if section.write_back {
        if kind.status_subresource {
            permissions.extend(needs(&[Verb::Patch], &format!("{resource}/status"), ""));
        }
        for name in &section.secret_names {
            permissions.extend(needs(&[Verb::Update], "secrets", &format!("{name}{}", section.remote_resource_suffix)));
        }
        let purpose = format!("Events on objects that {} rejects", section.local);
        let events = needs(&[Verb::Create, Verb::Patch], EVENTS, "");
        permissions.extend(events.into_iter().map(|permission| permission.optional(&purpose)));
    }
    permissions.push(Permission::identity(&place));
    permissions
}

fn on_the_local(section: &SyncConfig, kind: &Kind) -> Vec<Permission> {
    let place = Place::Cluster(section.local.clone());
    let resource = kind.full_resource();
    let needs = |verbs: &[Verb], resource: &str, name: &str| Permission::each(&place, verbs, resource, "", name);
    let write = [Verb::Create, Verb::Patch, Verb::Delete];
    let mut permissions = needs(&READ, &resource, "");
    permissions.extend(needs(&write, &resource, ""));
    if kind.namespaced {
        permissions.extend(needs(&READ, "namespaces", ""));
        // `patch` removes our marks when the section is detached or an object leaves the selector.
        permissions.extend(needs(&write, "namespaces", ""));
    }
    if section.write_back {
        for name in &section.secret_names {
            permissions.extend(needs(&READ, "secrets", name));
            permissions.extend(needs(&[Verb::Patch], "secrets", name));
        }
    }
    permissions.extend(needs(&[Verb::Create, Verb::Patch], EVENTS, ""));
    permissions.push(Permission::identity(&place));
    permissions
}
