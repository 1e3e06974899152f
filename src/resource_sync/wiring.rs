//! Builds the actors from the configuration: first all mailboxes, watches and sections, then the children that run them.

use std::sync::Arc;
use std::time::Duration;

use crate::actor::{Backoff, ChildSpec, Dispatcher, KeyInbox, Limits, RestartPolicy, key_mailbox, mailbox};
use crate::cluster::{BuiltIn, Fence, WatchId, WatchRegistry, WatchSpec};
use crate::config::{ClusterName, ResourceId};
use crate::job::Wiring;
use crate::resource_sync::config::SyncConfig;
use crate::resource_sync::metrics::SyncMetrics;
use crate::resource_sync::reconcile::PairReconcilers;
use crate::resource_sync::report::events::{EVENT_CAPACITY, write_events};
use crate::resource_sync::report::queue_metrics::QueueMetrics;
use crate::resource_sync::report::{SyncDispatcher, SyncReport};
use crate::resource_sync::rules::names::PairKey;
use crate::resource_sync::section::requeue::run_requeue;
use crate::resource_sync::section::{Section, Watches};
use crate::state::{Keeping, keep};

/// Capacity of the dispatcher's mailbox. While it is full the watch is not read, so the cache does not show our own writes,
/// and each of them costs a live GET (with a capacity of 1,024: 0.7 GETs for each object when 9,000 or more are created at
/// once). A key is small beside the object in the cache.
const REQUEST_CAPACITY: usize = 32_768;
/// At most this many keys wait in the dispatcher itself.
const READY: usize = 1024;
/// A reconciler is dropped this long after its last run: longer than a cache takes to catch up with a write.
const IDLE: Duration = Duration::from_secs(30);
/// The specification's back-off of failed reconciles: first retry under 100 ms, cap 5 minutes.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_mins(5));
/// A reconcile makes a few requests, each with a deadline (30 s by default); one without progress for longer than this is
/// stuck.
const FROZEN_AFTER: Duration = Duration::from_mins(15);

/// A section that is wired and has not been started.
pub struct WiredSection {
    section: Arc<Section>,
    dispatcher: SyncDispatcher,
    inbox: KeyInbox<PairKey>,
    events: crate::actor::Inbox<crate::resource_sync::report::events::PairEvent>,
    report: Arc<SyncReport>,
}

/// Wires all sections, which share watches and know each other.
pub fn wire(configs: &[SyncConfig], wiring: &mut Wiring<'_>) -> Vec<WiredSection> {
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
    let core = |plural: &str| ResourceId { plural: plural.into(), version: "v1".into(), group: String::new() };
    let id = |cluster: &ClusterName, resource: ResourceId| WatchId::all(cluster.clone(), resource);
    let named = |cluster: &ClusterName, name: &str| WatchId {
        fields: format!("metadata.name={name}"),
        ..id(cluster, core("secrets"))
    };
    let mirrors = config.metadata == crate::resource_sync::config::Metadata::Mirror;
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
    let namespaces = watches.watch(WatchId { metadata_only: true, ..id(&config.local, core("namespaces")) }, beside);
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
    let metrics = Arc::new(SyncMetrics::new(&config.name));
    let queue = Arc::new(QueueMetrics::new(&config.name));
    let permits = section.remote_cluster().max_in_flight().max(section.local_cluster().max_in_flight());
    let limits = Limits { permits, waiting: READY, idle: IDLE, backoff: BACKOFF };
    let factory = Arc::new(PairReconcilers::new(Arc::clone(&section), Arc::clone(&metrics)));
    let dispatcher = Dispatcher::new(factory, Arc::clone(&queue), limits);
    let report = Arc::new(SyncReport::new(Arc::clone(&section), dispatcher.clone(), queue, metrics));
    WiredSection { section, dispatcher, inbox, events, report }
}

impl WiredSection {
    /// Its report, for the admin server.
    pub fn report(&self) -> Arc<SyncReport> {
        Arc::clone(&self.report)
    }

    /// The section's branch of the actor tree. Its watches belong to the branches of their clusters.
    pub fn into_child(self) -> ChildSpec {
        let Self { section, dispatcher, inbox, events, report: _ } = self;
        ChildSpec::supervisor(format!("sync {}", section.name()), RestartPolicy::ACTOR, move || {
            let running = section.begin();
            let dispatcher = dispatcher.clone();
            let dispatch_inbox = inbox.clone();
            let for_dispatcher = Arc::clone(&section);
            let dispatch = ChildSpec::new("dispatcher", move |scope| {
                let (dispatcher, inbox, section) =
                    (dispatcher.clone(), dispatch_inbox.clone(), Arc::clone(&for_dispatcher));
                async move {
                    // A restarted dispatcher may have lost keys that it had taken from the mailbox.
                    if section.is_listed() {
                        scope.spawn(async move { section.request_all().await });
                    }
                    dispatcher.run(scope, inbox).await
                }
            })
            .gauge(inbox.gauge())
            .stall_after(FROZEN_AFTER);
            let for_requeue = Arc::clone(&section);
            let requeue = ChildSpec::new("attendant", move |scope| run_requeue(Arc::clone(&for_requeue), scope));
            let (for_events, event_inbox) = (Arc::clone(&section), events.clone());
            let events = ChildSpec::new("events", move |scope| {
                // The first child is drained last, so the section runs until all others have ended.
                let _running = &running;
                write_events(Arc::clone(&for_events), event_inbox.clone(), scope)
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
