//! Builds the actors from the configuration.

use std::sync::Arc;

use super::caches::Caches;
use super::config::InventoryConfig;
use super::follower::{Changed, Source, SourceFollower};
use super::kinds;
use super::metrics::InventoryMetrics;
use super::poster::{Deliver, Poster};
use super::reconciler::{Ask, Reconciler};
use super::report::InventoryReport;
use super::rules::contents::Content;
use super::shown::Shown;
use crate::actor::{ChildSpec, Inbox, KeyInbox, KeyMailbox, RestartPolicy, key_mailbox, mailbox};
use crate::cluster::{Watch, WatchId, WatchRegistry, WatchSpec};
use crate::job::Wiring;

/// Capacity of the reconciler's mailbox of keys, which is emptied in every turn.
const KEYS: usize = 1024;
/// Capacity of its mailbox of operators' questions.
const ASKS: usize = 16;
/// Capacity of the poster's mailbox: more posts are never under way.
const POSTS: usize = 4;

/// The section, wired but not started.
pub(super) struct WiredInventory {
    reconciler: Arc<Reconciler>,
    poster: Arc<Poster>,
    keys: KeyInbox<Changed>,
    asks: Inbox<Ask>,
    posts: Inbox<Deliver>,
    report: Arc<InventoryReport>,
}

/// Wires the reconciler, its watches and the poster.
pub(super) fn wire(config: &InventoryConfig, wiring: &mut Wiring<'_>) -> WiredInventory {
    let config = Arc::new(config.clone());
    let fence = wiring.fence(&config.name);
    let watches = &mut *wiring.watches;
    let cluster = watches.canonical(&config.cluster);
    let (keys, inbox) = key_mailbox(KEYS);
    let mut follow = |(id, spec): (WatchId, WatchSpec), source| follow(watches, id, spec, source, &keys);
    let projects = follow(kinds::projects_watch(&cluster), Source::Projects);
    let caches = Caches {
        releases: follow(kinds::releases(&cluster, config.helm_driver), Source::Releases),
        contents: Content::ALL
            .map(|content| follow(kinds::contents(&cluster, content), Source::Contents(content.place()))),
        ids: follow(kinds::given_ids(&cluster), Source::Ids),
    };
    let handle = watches.cluster(&cluster);
    let handle = fence.as_ref().map_or_else(|| handle.clone(), |fence| handle.under(fence));
    let metrics = Arc::new(InventoryMetrics::new());
    let poster = Arc::new(Poster::new(&config, fence.clone(), Arc::clone(&metrics)));
    let (post, posts) = mailbox(POSTS);
    let (ask, asks) = mailbox(ASKS);
    let shown = Arc::new(Shown::default());
    let followed: Vec<Arc<Watch>> = caches.all().cloned().collect();
    let report =
        InventoryReport::new(Arc::clone(&config), Arc::clone(&shown), metrics, Arc::clone(&projects), followed, ask);
    let reconciler = Reconciler {
        settings: config.settings(),
        storage: config.helm_driver,
        cluster: handle,
        fence,
        projects,
        caches,
        poster: post,
        token: poster.token_changes(),
        shown,
    };
    WiredInventory { reconciler: Arc::new(reconciler), poster, keys: inbox, asks, posts, report: Arc::new(report) }
}

fn follow(
    watches: &mut WatchRegistry,
    id: WatchId,
    spec: WatchSpec,
    source: Source,
    mailbox: &KeyMailbox<Changed>,
) -> Arc<Watch> {
    let watch = watches.watch(id, spec);
    let follower = SourceFollower { source, mailbox: mailbox.clone() };
    watches.specify(&watch, WatchSpec::followed_by(Arc::new(follower)));
    watch
}

impl WiredInventory {
    /// The report for the admin server.
    pub(super) fn report(&self) -> Arc<InventoryReport> {
        Arc::clone(&self.report)
    }

    /// The section's supervisor. The watches belong to their cluster.
    pub(super) fn into_child(self) -> ChildSpec {
        let Self { reconciler, poster, keys, asks, posts, report: _ } = self;
        ChildSpec::supervisor("inventory", RestartPolicy::ACTOR, move || {
            let (poster, posts) = (Arc::clone(&poster), posts.clone());
            let post_gauge = posts.gauge();
            let posting = ChildSpec::new("poster", move |scope| Arc::clone(&poster).run(scope, posts.clone()));
            let (reconciler, keys, asks) = (Arc::clone(&reconciler), keys.clone(), asks.clone());
            let key_gauge = keys.gauge();
            let reconciling = ChildSpec::new("reconciler", move |scope| {
                Arc::clone(&reconciler).run(scope, keys.clone(), asks.clone())
            });
            // Drained in reverse order: the reconciler first, which waits for its posts.
            vec![posting.gauge(post_gauge), reconciling.gauge(key_gauge)]
        })
    }
}
