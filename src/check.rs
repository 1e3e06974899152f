//! `towline check`: what is wrong with a configuration, and with `--connect` with what it leads to.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::actor::Scope;
use crate::cli::Exit;
use crate::cluster::{AccessRequest, Availability, Cluster, Identity, Kind, Verb, session};
use crate::config::{self, ClusterConfig, ClusterName, Config, Scope as KindScope, SyncConfig};
use crate::resource_sync::standing::Objection;
use crate::state;
use crate::{election, lease, status_sync};

/// A cluster that has not answered after this counts as unreachable.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The file itself is fine.
pub fn fine(config: &Config) -> Exit {
    if config.sections().next().is_none() {
        say(config::NOTHING_RUNS);
    }
    for section in &config.sync {
        if let Some(warning) = section.warning() {
            say(&format!("sync {}: kind {}: {warning}", section.name, section.resource));
        }
    }
    for section in config.sync.iter().filter(|section| section.dry_run) {
        say(&format!("sync {}: dry_run: nothing is written", section.name));
    }
    say(&format!(
        "the configuration is fine: {} cluster(s), {} section(s)",
        config.clusters.len(),
        config.sections().count()
    ));
    Exit::Done
}

/// Asks every cluster and database that a section refers to: does it answer, does it have the kinds and tables, are the
/// permissions there.
pub async fn connect(config: &Config) -> Exit {
    let mut faults = 0_usize;
    let mut clusters: BTreeMap<ClusterName, Option<Cluster>> = BTreeMap::new();
    for (name, cluster_config) in &config.clusters {
        match reach(name, cluster_config).await {
            Ok(cluster) => {
                say(&format!("cluster {name}: answers"));
                clusters.insert(name.clone(), Some(cluster));
            }
            Err(reason) => {
                faults += 1;
                say(&format!("cluster {name}: {reason}"));
                clusters.insert(name.clone(), None);
            }
        }
    }
    if let Some(election) = &config.election
        && let Some(Some(cluster)) = clusters.get(&election.cluster)
    {
        let needed = election::VERBS.map(|verb| AccessRequest::new(verb, election::RESOURCE, &election.namespace, ""));
        let missing = check_access("election", cluster, &needed).await;
        faults += missing;
        if missing == 0
            && let Err(error) = election::try_lease(election, cluster).await
        {
            faults += 1;
            say(&format!("election: cluster {}: namespace {}: {error}", cluster.name(), election.namespace));
        }
    }
    let mut scopes: BTreeMap<String, KindScope> = BTreeMap::new();
    let keeping = state::Keeping::new(config);
    for section in &config.sync {
        faults += check_section(section, &clusters, &mut scopes).await;
        faults += check_identities(section, &clusters);
        // A dry run writes no state.
        if let Some(Some(cluster)) = clusters.get(&section.local)
            && !section.dry_run
        {
            faults += check_state(&format!("sync {}", section.name), section.into(), cluster, &keeping).await;
        }
    }
    for section in &config.lease {
        let Some(Some(cluster)) = clusters.get(&section.cluster) else { continue };
        for fault in lease::check(section, cluster).await {
            faults += 1;
            say(&format!("lease {}: {fault}", section.name));
        }
    }
    if let Some(section) = &config.status_sync {
        let cluster = clusters.get(&section.cluster).and_then(Option::as_ref);
        for fault in status_sync::check(section, cluster).await {
            faults += 1;
            say(&format!("{}: {fault}", section.name));
        }
        if let Some(cluster) = cluster {
            let who = section.name.to_string();
            faults += check_identity(&who, cluster);
            faults += check_state(&who, section.into(), cluster, &keeping).await;
        }
    }
    let conflicts =
        config.conflicts(|section| scopes.get(&section.resource.to_string()).copied().unwrap_or(KindScope::Namespaced));
    if !conflicts.is_empty() {
        faults += conflicts.as_slice().len();
        say(&conflicts.to_string());
    }
    if faults == 0 {
        return fine(config);
    }
    say(&format!("{faults} fault(s)"));
    Exit::Failed
}

/// A cluster of which it is known that it answers; else why it does not.
pub(crate) async fn reach(name: &ClusterName, config: &ClusterConfig) -> Result<Cluster, String> {
    let cluster = Cluster::new(name.clone(), config.clone());
    cluster.want_identity();
    let (scope, _stop) = Scope::standalone("check");
    let running = cluster.clone();
    tokio::spawn(async move { session::run(running, scope).await });
    let mut availability = cluster.availability();
    let answer = tokio::time::timeout(
        ANSWER_WITHIN,
        availability.wait_for(|availability| *availability != Availability::Starting),
    )
    .await;
    match answer {
        Ok(Ok(availability)) => match &*availability {
            Availability::Unavailable { reason } => return Err(reason.clone()),
            Availability::Available | Availability::Starting => {}
        },
        Ok(Err(_)) | Err(_) => return Err(format!("no answer within {}", humantime::format_duration(ANSWER_WITHIN))),
    }
    Ok(cluster)
}

async fn check_section(
    section: &SyncConfig,
    clusters: &BTreeMap<ClusterName, Option<Cluster>>,
    scopes: &mut BTreeMap<String, KindScope>,
) -> usize {
    let mut faults = 0;
    for (name, is_remote) in [(&section.remote, true), (&section.local, false)] {
        let Some(Some(cluster)) = clusters.get(name) else { continue };
        let kind = match Kind::discover(cluster, &section.resource).await {
            Ok(kind) => kind,
            Err(error) => {
                faults += 1;
                let text = error.to_string();
                say(&format!("sync {}: cluster {name}: kind {}: {}", section.name, section.resource, text.trim_end()));
                continue;
            }
        };
        let scope = if kind.namespaced { KindScope::Namespaced } else { KindScope::Cluster };
        scopes.insert(section.resource.to_string(), scope);
        faults += check_access(&format!("sync {}", section.name), cluster, &needed(section, &kind, is_remote)).await;
        if is_remote && section.write_back {
            offer_events(section, cluster).await;
        }
    }
    faults
}

/// Whether both sides of a section are two clusters, as far as that can be told.
fn check_identities(section: &SyncConfig, clusters: &BTreeMap<ClusterName, Option<Cluster>>) -> usize {
    let mut faults = 0;
    let mut found = Vec::new();
    for name in [&section.remote, &section.local] {
        let Some(Some(cluster)) = clusters.get(name) else { continue };
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

/// Whether a cluster's identity can be read.
fn check_identity(who: &str, cluster: &Cluster) -> usize {
    let Identity::Unknown { reason } = cluster.identity() else { return 0 };
    say(&format!("{who}: cluster {}: its identity is unknown: {reason}", cluster.name()));
    1
}

/// Where a section keeps what outlives the process: is it allowed to, and is nobody else's object in its place.
async fn check_state(who: &str, owner: state::Owner, cluster: &Cluster, keeping: &state::Keeping) -> usize {
    let who = format!("{who}: state");
    let section = owner.section.clone();
    let keeper = state::Keeper::new(owner, cluster.clone(), keeping);
    let Some(namespace) = keeper.namespace() else { return 0 };
    let faults = check_access(&who, cluster, &state::needed_access(&section, &namespace)).await;
    if faults > 0 {
        return faults;
    }
    match keeper.check().await {
        Ok(()) => 0,
        Err(reason) => {
            say(&format!("{who}: cluster {}: {reason}", cluster.name()));
            1
        }
    }
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

/// Asks for each of the permissions and says which are missing.
async fn check_access(who: &str, cluster: &Cluster, needed: &[AccessRequest]) -> usize {
    let mut faults = 0;
    for request in needed {
        let problem = match cluster.review_access(request).await {
            Ok(decision) if decision.allowed => continue,
            Ok(decision) => request.denied(&decision.reason),
            Err(error) => error.to_string(),
        };
        faults += 1;
        say(&format!("{who}: cluster {}: {problem}", cluster.name()));
    }
    faults
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

#[expect(clippy::print_stdout, reason = "the command's output")]
fn say(text: &str) {
    println!("{text}");
}
