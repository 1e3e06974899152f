//! Resource sync as a job of the daemon.

mod release;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};

use super::config::{Metadata, Scope, SyncConfig, conflicts};
use crate::actor::{Backoff, ChildSpec, Dispatcher, Inbox, KeyInbox, Limits, key_mailbox, mailbox};
use crate::cluster::events::{EVENT_CAPACITY, EVENTS, ObjectEvent, write_events};
use crate::cluster::{
    BuiltIn, Cluster, Error, Fence, Kind, ObjectKey, Objection, Verb, WatchId, WatchRegistry, WatchSpec,
};
use crate::config::fault::{Fault, Faults, Problem};
use crate::config::source::Node;
use crate::config::{ClusterName, ResourceId, SectionName};
use crate::job::check::{Surroundings, check_identity, say};
use crate::job::command::JobCommand;
use crate::job::permission::{Finding, Kinds, Permission, PermissionPlace, READ, Reviewer, check_state};
use crate::job::{Config, Job, Reading, Sections, Whole, Wiring};
use crate::resource_sync::metrics;
use crate::resource_sync::plan::names::{Mapping, PairKey};
use crate::resource_sync::run::section::requeue::run_requeue;
use crate::resource_sync::run::section::{Section, Watches};
use crate::resource_sync::status::queue_metrics::QueueMetrics;
use crate::resource_sync::status::{SyncDispatcher, SyncReport};
use crate::state::{Keeping, keep};
use crate::telemetry::Metric;

/// `[[sync]]`.
#[derive(Debug)]
pub struct SyncJob;

/// The sections of `[[sync]]`, with their indices in the file.
#[derive(Debug, Default)]
pub(super) struct SyncSections {
    sections: Vec<SyncConfig>,
    indices: Vec<usize>,
}

/// The `[[sync]]` sections of a configuration, in the order of the file.
pub fn sections(config: &Config) -> &[SyncConfig] {
    config.of::<SyncSections>().map_or(&[], |of| &of.sections)
}

impl Job for SyncJob {
    fn key(&self) -> &'static str {
        "sync"
    }

    fn is_list(&self) -> bool {
        true
    }

    fn read(&self, node: Option<Node>, reading: &mut Reading<'_>) -> Arc<dyn Sections> {
        let read = reading.list(self.key(), &["remote", "local"], node, SyncConfig::read);
        let (indices, sections) = read.into_iter().unzip();
        Arc::new(SyncSections { sections, indices })
    }

    fn metrics(&self) -> &'static [Metric] {
        metrics::ALL
    }

    fn commands(&self) -> Vec<JobCommand> {
        vec![release::command()]
    }
}

impl Sections for SyncSections {
    fn names(&self) -> Vec<&SectionName> {
        self.sections.iter().map(|section| &section.name).collect()
    }

    fn clusters(&self) -> Vec<&ClusterName> {
        self.sections.iter().flat_map(|section| [&section.remote, &section.local]).collect()
    }

    /// Assumes that every kind is namespaced; only `--connect` finds out.
    fn check(&self, whole: &Whole<'_>, faults: &mut Vec<Fault>) {
        faults.extend(self.placed().filter_map(|(index, section)| {
            let (found, reason) = (section.resource.to_string(), section.objection()?.to_owned());
            Some(Fault::new(format!("sync[{index}].resource"), Problem::Unsyncable { found, reason }))
        }));
        faults.extend(conflicts(&self.placed().collect::<Vec<_>>(), whole.clusters, |_| Scope::Namespaced));
    }

    fn warnings(&self) -> Vec<String> {
        let kinds = self.sections.iter().filter_map(|section| {
            let warning = section.warning()?;
            Some(format!("sync {}: kind {}: {warning}", section.name, section.resource))
        });
        let dry = self.sections.iter().filter(|section| section.dry_run);
        kinds.chain(dry.map(|section| format!("sync {}: dry_run: nothing is written", section.name))).collect()
    }

    fn announce(&self) {
        for section in self.sections.iter().filter(|section| section.dry_run) {
            tracing::warn!(section = %section.name, "dry run: nothing is written");
        }
    }

    fn kinds(&self) -> Vec<(ClusterName, ResourceId)> {
        let of =
            |section: &SyncConfig| [&section.remote, &section.local].map(|at| (at.clone(), section.resource.clone()));
        self.sections.iter().flat_map(of).collect()
    }

    fn permissions(&self, kinds: &Kinds) -> Vec<Permission> {
        self.sections.iter().flat_map(|section| of_section(section, kinds)).collect()
    }

    fn states(&self) -> Vec<(&ClusterName, &SectionName)> {
        self.sections.iter().map(|section| (&section.local, &section.name)).collect()
    }

    fn connect<'c>(&'c self, surroundings: &'c Surroundings<'c>) -> BoxFuture<'c, usize> {
        async move {
            let mut faults = 0;
            let mut kinds = Kinds::default();
            for section in &self.sections {
                faults += check_section(section, surroundings, &mut kinds).await;
            }
            let scope = |section: &SyncConfig| {
                let kind = kinds.any(&section.resource);
                if kind.is_none_or(|kind| kind.namespaced) { Scope::Namespaced } else { Scope::Cluster }
            };
            let between = Faults::new(conflicts(&self.placed().collect::<Vec<_>>(), surroundings.configured, scope));
            if !between.is_empty() {
                faults += between.as_slice().len();
                say(&between.to_string());
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

impl SyncSections {
    fn placed(&self) -> impl Iterator<Item = (usize, &SyncConfig)> {
        self.indices.iter().copied().zip(&self.sections)
    }
}

/// The permissions that a section needs, on those of its clusters that are known to serve its kind.
fn of_section(section: &SyncConfig, kinds: &Kinds) -> Vec<Permission> {
    let remote = kinds.get(&section.remote, &section.resource).map(|kind| on_the_remote(section, kind));
    let local = kinds.get(&section.local, &section.resource).map(|kind| on_the_local(section, kind));
    remote.into_iter().chain(local).flatten().collect()
}

fn on_the_remote(section: &SyncConfig, kind: &Kind) -> Vec<Permission> {
    let place = PermissionPlace::Cluster(section.remote.clone());
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
    let place = PermissionPlace::Cluster(section.local.clone());
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

/// Capacity of the dispatcher's mailbox. While it is full the watch is not read, so the cache does not show our own writes,
/// and each of them costs a live GET (with a capacity of 1,024: 0.7 GETs for each object when 9,000 or more are created at
/// once). A key is small beside the object in the cache.
const REQUEST_CAPACITY: usize = 32_768;
/// At most this many keys wait in the dispatcher itself.
const READY: usize = 1024;
/// The specification's back-off of failed reconciles: first retry under 100 ms, cap 5 minutes.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_mins(5));
/// A reconcile makes a few requests, each with a deadline (30 s by default); one without progress for longer than this is
/// stuck.
const FROZEN_AFTER: Duration = Duration::from_mins(15);

/// A section that is wired and has not been started.
struct WiredSection {
    section: Arc<Section>,
    dispatcher: SyncDispatcher,
    inbox: KeyInbox<PairKey>,
    events: Inbox<ObjectEvent>,
    report: Arc<SyncReport>,
}

/// Makes all mailboxes, watches and sections, which share watches and know each other.
fn wire(configs: &[SyncConfig], wiring: &mut Wiring<'_>) -> Vec<WiredSection> {
    let wired: Vec<WiredSection> = configs
        .iter()
        .map(|config| {
            let watches = &mut *wiring.watches;
            let (remote, local) = (watches.canonical(&config.remote), watches.canonical(&config.local));
            let fence = wiring.fence(&config.name);
            wire_one(&SyncConfig { remote, local, ..config.clone() }, wiring.watches, wiring.keeping, fence)
        })
        .collect();
    let sections: Vec<Arc<Section>> = wired.iter().map(|wired| Arc::clone(&wired.section)).collect();
    for section in &sections {
        for (watch, spec) in section.follow(&sections) {
            wiring.watches.specify(&watch, spec);
        }
    }
    wired
}

fn wire_one(config: &SyncConfig, watches: &mut WatchRegistry, keeping: &Keeping, fence: Option<Fence>) -> WiredSection {
    let id = |cluster: &ClusterName, resource: ResourceId| WatchId::all(cluster.clone(), resource);
    let named = |cluster: &ClusterName, name: &str| WatchId {
        fields: format!("metadata.name={name}"),
        ..id(cluster, Kind::core("Secret", "secrets", true).id())
    };
    let mirrors = config.metadata == Metadata::Mirror;
    let of_kind = WatchSpec { keep_last_applied: mirrors, portable: true, ..WatchSpec::default() };
    // Nobody else can use the portable parts.
    let is_reduced = BuiltIn::of(&config.resource.group, &config.resource.plural).is_some();
    let id_of_kind = |cluster: &ClusterName| WatchId {
        projection: is_reduced.then_some("sync"),
        ..id(cluster, config.resource.clone())
    };
    let labels = config.selector.as_str().to_owned();
    let remote = watches.watch(WatchId { labels, ..id_of_kind(&config.remote) }, of_kind.clone());
    let local = watches.watch(id_of_kind(&config.local), of_kind);
    // A cluster-scoped kind is synced without namespaces, and without the permission to see them.
    let beside = WatchSpec { only_beside_namespaced: vec![Arc::clone(&local)], ..WatchSpec::default() };
    let namespace = Kind::core("Namespace", "namespaces", false);
    let namespaces = WatchId { metadata_only: true, ..id(&config.local, namespace.id()) };
    let namespaces = watches.watch(namespaces, beside);
    let secret_names = if config.write_back { config.secret_names.as_slice() } else { &[] };
    // The hash of a secret counts all its annotations.
    let secret = WatchSpec { keep_last_applied: true, ..WatchSpec::default() };
    let optional = WatchSpec { only_if_granted: true, ..secret.clone() };
    let secrets = secret_names.iter().map(|name| watches.watch(named(&config.local, name), secret.clone())).collect();
    let remote_name = |name| format!("{name}{}", config.remote_resource_suffix);
    let remote_secrets = secret_names
        .iter()
        .map(|name| watches.watch(named(&config.remote, &remote_name(name)), optional.clone()))
        .collect();

    let (requests, inbox) = key_mailbox(REQUEST_CAPACITY);
    let (event_mailbox, events) = mailbox(EVENT_CAPACITY);
    let watches = Watches { remote, local, namespaces, secrets, remote_secrets };
    let section = Section::new(config.clone(), watches, requests, event_mailbox, fence, keeping);
    let queue = Arc::new(QueueMetrics::new(&config.name));
    let slots = section.remote_cluster().max_in_flight().max(section.local_cluster().max_in_flight());
    let limits = Limits { slots, waiting: READY, backoff: BACKOFF };
    let dispatcher = Dispatcher::new(Arc::clone(&section), Arc::clone(&queue), limits);
    let report = Arc::new(SyncReport::new(Arc::clone(&section), dispatcher.clone(), queue));
    WiredSection { section, dispatcher, inbox, events, report }
}

impl WiredSection {
    /// Its report, for the admin server.
    fn report(&self) -> Arc<SyncReport> {
        Arc::clone(&self.report)
    }

    /// The section's branch of the actor tree. Its watches belong to the branches of their clusters.
    fn into_child(self) -> ChildSpec {
        let Self { section, dispatcher, inbox, events, report: _ } = self;
        ChildSpec::supervisor(format!("sync {}", section.name()), move || {
            let running = section.begin();
            let dispatcher = dispatcher.clone();
            let dispatch_inbox = inbox.clone();
            let for_dispatcher = Arc::clone(&section);
            let dispatch = ChildSpec::new("dispatcher", move |scope| {
                let (dispatcher, inbox, section) =
                    (dispatcher.clone(), dispatch_inbox.clone(), Arc::clone(&for_dispatcher));
                async move {
                    // The instance before has lost the keys that it had taken from the mailbox.
                    if section.is_listed() {
                        scope.spawn(async move { section.request_all().await });
                    }
                    dispatcher.run(scope, inbox).await
                }
            })
            .gauge(inbox.gauge())
            .stall_after(FROZEN_AFTER);
            let for_requeue = Arc::clone(&section);
            let requeue = ChildSpec::new("requeue", move |scope| run_requeue(Arc::clone(&for_requeue), scope));
            let event_inbox = events.clone();
            let events = ChildSpec::new("events", move |scope| {
                // The first child is drained last, so the section runs until all others have ended.
                let _running = &running;
                write_events(event_inbox.clone(), scope)
            })
            .gauge(events.gauge());
            let for_state = Arc::clone(&section);
            // Before the dispatcher, so that it is drained after it: runs change the state.
            let state = ChildSpec::new("state", move |scope| {
                let section = Arc::clone(&for_state);
                keep(Arc::clone(section.state()), scope, async move || section.on_state_read().await)
            });
            vec![events, state, dispatch, requeue]
        })
    }
}

/// `towline check --connect`: prints what a section lacks, and records in `kinds` how the clusters serve its kind. Returns the number of faults.
async fn check_section(section: &SyncConfig, surroundings: &Surroundings<'_>, kinds: &mut Kinds) -> usize {
    let label = format!("sync {}", section.name);
    let clusters = || [&section.remote, &section.local].into_iter().filter_map(|name| surroundings.cluster(name));
    let mut faults = 0;
    for cluster in clusters() {
        faults += kinds.discover(&label, cluster, &section.resource).await;
    }
    let permissions = of_section(section, kinds);
    for cluster in clusters() {
        let place = PermissionPlace::Cluster(cluster.name().clone());
        let here: Vec<_> = permissions.iter().filter(|permission| permission.place == place).cloned().collect();
        let findings = match kinds.get(cluster.name(), &section.resource) {
            Some(kind) if *cluster.name() == section.remote => lacks_on_the_remote(section, cluster, kind, here).await,
            _ => Reviewer::Cluster(cluster).find(&here).await,
        };
        faults += Reviewer::Cluster(cluster).tell(&label, &findings);
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

/// Namespaces without permissions that are named.
const MOST_NAMED: usize = 5;
/// Namespaces that are looked at together.
const TOGETHER: usize = 8;

/// What a section lacks on its remote cluster. Permissions to write may be granted in single namespaces: it needs them where it has objects.
async fn lacks_on_the_remote(
    section: &SyncConfig,
    cluster: &Cluster,
    kind: &Kind,
    permissions: Vec<Permission>,
) -> Vec<Finding> {
    let reviewer = Reviewer::Cluster(cluster);
    let (writes, reads): (Vec<_>, Vec<_>) = permissions.into_iter().partition(Permission::is_to_write);
    let (mut findings, everywhere) = (reviewer.find(&reads).await, reviewer.find(&writes).await);
    let is_lacking = |findings: &[Finding]| findings.iter().any(Finding::is_fault);
    let namespaces = if is_lacking(&everywhere) && !is_lacking(&findings) && kind.namespaced {
        namespaces_of(section, cluster, kind).await.ok()
    } else {
        None
    };
    let Some(namespaces) = namespaces else {
        findings.extend(everywhere);
        return findings;
    };
    if namespaces.is_empty() {
        const WHY: &str = "not in all namespaces, and no object of the section shows in which it is needed";
        findings.extend(everywhere.into_iter().map(|finding| finding.unknown(WHY)));
        return findings;
    }
    let asked: Vec<Vec<_>> = namespaces
        .iter()
        .map(|namespace| writes.iter().map(|permission| permission.within(namespace)).collect())
        .collect();
    let reviewer = &reviewer;
    let within = asked.into_iter().map(|writes| async move { reviewer.find(&writes).await });
    let (mut within, mut found) = (stream::iter(within).buffered(TOGETHER), Vec::new());
    while let Some(of_one) = within.next().await {
        // The reviews of the others would not be answered either.
        if of_one.iter().any(Finding::is_unanswered) {
            findings.extend(of_one);
            return findings;
        }
        found.push(of_one);
    }
    findings.extend(in_namespaces(found, everywhere));
    findings
}

/// What is told of reviews in several namespaces: what is missing everywhere once, and else what is in the first namespaces, and in how many.
fn in_namespaces(found: Vec<Vec<Finding>>, everywhere: Vec<Finding>) -> Vec<Finding> {
    let all = found.len();
    let (lacking, others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|findings| findings.iter().any(Finding::is_fault));
    if others.is_empty() {
        return everywhere;
    }
    let number = lacking.len();
    let mut told: Vec<Finding> = lacking.into_iter().take(MOST_NAMED).flatten().collect();
    if number > MOST_NAMED {
        told.push(Finding::fault(format!(
            "in {number} of the {all} namespaces with objects of the section, of which the first {MOST_NAMED} are named"
        )));
    }
    // What is optional, where nothing else is missing.
    told.extend(others.into_iter().find(|findings| !findings.is_empty()).unwrap_or_default());
    told
}

/// The namespaces of a section's objects on its remote cluster.
async fn namespaces_of(section: &SyncConfig, cluster: &Cluster, kind: &Kind) -> Result<BTreeSet<String>, Error> {
    let (mapping, mut namespaces) = (Mapping::new(section), BTreeSet::new());
    let take = |key: ObjectKey| {
        if mapping.covers_remote(&key) {
            namespaces.insert(key.namespace.to_string());
        }
    };
    cluster.keys(kind, section.selector.as_str(), take).await?;
    Ok(namespaces)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> Finding {
        Finding::fault(text.to_owned())
    }

    /// A hundred namespaces, of which the first so many lack a permission.
    fn told(lacking: usize) -> Vec<Finding> {
        let found = (0..100).map(|number| Vec::from_iter((number < lacking).then(|| fault(&format!("n{number}")))));
        in_namespaces(found.collect(), vec![fault("everywhere")])
    }

    #[test]
    fn all_namespaces_count_although_only_the_first_that_lack_something_are_named() {
        let named = |number: usize| (0..number).map(|number| fault(&format!("n{number}"))).collect::<Vec<_>>();
        assert_eq!([told(0), told(3), told(5)], [named(0), named(3), named(5)]);
        for lacking in [6, 99] {
            let all = format!(
                "in {lacking} of the 100 namespaces with objects of the section, of which the first 5 are named"
            );
            assert_eq!(told(lacking), [named(5), vec![fault(&all)]].concat());
        }
        assert_eq!(told(100), [fault("everywhere")]);
    }
}
