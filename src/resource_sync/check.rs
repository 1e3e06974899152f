//! `towline check --connect`: whether both clusters have what a section needs.

use crate::job::check::{Surroundings, check_identity, check_state, say};
use crate::job::permission::{Kinds, Place, Reviewer};
use crate::resource_sync::config::SyncConfig;
use crate::resource_sync::permissions;
use crate::resource_sync::section::identity::Objection;

/// Prints what a section lacks, and records in `kinds` how the clusters serve its kind. Returns the number of faults.
pub(super) async fn check_section(section: &SyncConfig, surroundings: &Surroundings<'_>, kinds: &mut Kinds) -> usize {
    let label = format!("sync {}", section.name);
    let clusters = || [&section.remote, &section.local].into_iter().filter_map(|name| surroundings.cluster(name));
    let mut faults = 0;
    for cluster in clusters() {
        faults += kinds.discover(&label, cluster, &section.resource).await;
    }
    let permissions = permissions::of_section(section, kinds);
    for cluster in clusters() {
        let place = Place::Cluster(cluster.name().clone());
        let here: Vec<_> = permissions.iter().filter(|permission| permission.place == place).cloned().collect();
        faults += Reviewer::Cluster(cluster).check(&label, &here).await;
    }
    faults += check_identities(section, surroundings);
    // A dry run writes no state.
    if let Some(cluster) = surroundings.cluster(&section.local)
        && !section.dry_run
    {
        faults += check_state(&label, section.into(), cluster, &surroundings.keeping).await;
    }
    faults
}

/// Checks that the two sides of a section are different clusters, where their identities can be read.
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
