//! `towline check --connect`: what a section needs of both clusters, and whether it is there.

use std::collections::BTreeMap;

use crate::cluster::{AccessRequest, Cluster, Kind, Verb};
use crate::job::check::{Surroundings, check_access, check_identity, check_state, say};
use crate::resource_sync::config::{Scope, SyncConfig};
use crate::resource_sync::section::standing::Objection;

/// Says what is missing for a section, and notes whether its kind has namespaces. Returns the number of faults.
pub(super) async fn check_section(
    section: &SyncConfig,
    surroundings: &Surroundings<'_>,
    scopes: &mut BTreeMap<String, Scope>,
) -> usize {
    let mut faults = 0;
    for (name, is_remote) in [(&section.remote, true), (&section.local, false)] {
        let Some(cluster) = surroundings.cluster(name) else { continue };
        let kind = match Kind::discover(cluster, &section.resource).await {
            Ok(kind) => kind,
            Err(error) => {
                faults += 1;
                let text = error.to_string();
                say(&format!("sync {}: cluster {name}: kind {}: {}", section.name, section.resource, text.trim_end()));
                continue;
            }
        };
        let scope = if kind.namespaced { Scope::Namespaced } else { Scope::Cluster };
        scopes.insert(section.resource.to_string(), scope);
        faults += check_access(&format!("sync {}", section.name), cluster, &needed(section, &kind, is_remote)).await;
        if is_remote && section.write_back {
            offer_events(section, cluster).await;
        }
    }
    faults += check_identities(section, surroundings);
    // A dry run writes no state.
    if let Some(cluster) = surroundings.cluster(&section.local)
        && !section.dry_run
    {
        faults += check_state(&format!("sync {}", section.name), section.into(), cluster, &surroundings.keeping).await;
    }
    faults
}

/// Whether both sides of a section are two clusters, as far as that can be told.
fn check_identities(section: &SyncConfig, surroundings: &Surroundings<'_>) -> usize {
    let mut faults = 0;
    let mut found = Vec::new();
    for name in [&section.remote, &section.local] {
        let Some(cluster) = surroundings.cluster(name) else { continue };
        faults += check_identity(&format!("sync {}", section.name), cluster);
        found.extend(cluster.identity().uid().cloned());
    }
    if section.remote != section.local && found.len() == 2 && found.first() == found.last() {
        faults += 1;
        let (remote, local) = (section.remote.clone(), section.local.clone());
        say(&format!("sync {}: {}", section.name, Objection::OneCluster { remote, local }));
    }
    faults
}

/// Events on the remote are optional: what is missing is said, and is no fault.
async fn offer_events(section: &SyncConfig, cluster: &Cluster) {
    for verb in [Verb::Create, Verb::Patch] {
        let request = AccessRequest::new(verb, "events.events.k8s.io", "", "");
        if let Ok(decision) = cluster.review_access(&request).await
            && !decision.allowed
        {
            let missing = request.denied(&decision.reason);
            say(&format!(
                "sync {}: cluster {}: optional, for Events on objects that {} rejects: {missing}",
                section.name,
                cluster.name(),
                section.local
            ));
        }
    }
}

/// The permissions that a section needs, as the specification lists them.
fn needed(section: &SyncConfig, kind: &Kind, is_remote: bool) -> Vec<AccessRequest> {
    let resource = kind.full_resource();
    let mut requests = Vec::new();
    let mut need = |verbs: &[Verb], resource: &str, name: &str| {
        requests.extend(verbs.iter().map(|verb| AccessRequest::new(*verb, resource, "", name)));
    };
    if is_remote {
        need(&[Verb::Get, Verb::List, Verb::Watch, Verb::Patch], &resource, "");
        if section.write_back {
            if kind.status_subresource {
                need(&[Verb::Patch], &format!("{resource}/status"), "");
            }
            for name in &section.secret_names {
                need(&[Verb::Update], "secrets", &format!("{name}{}", section.remote_resource_suffix));
            }
        }
    } else {
        need(&[Verb::Get, Verb::List, Verb::Watch, Verb::Create, Verb::Patch, Verb::Delete], &resource, "");
        if kind.namespaced {
            // Patch: to take our marks off when the section is detached or an object leaves the selector.
            need(&[Verb::Get, Verb::List, Verb::Watch, Verb::Create, Verb::Patch, Verb::Delete], "namespaces", "");
        }
        if section.write_back {
            for name in &section.secret_names {
                need(&[Verb::Get, Verb::List, Verb::Watch, Verb::Patch], "secrets", name);
            }
        }
        need(&[Verb::Create, Verb::Patch], "events.events.k8s.io", "");
    }
    requests
}
