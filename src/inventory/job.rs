//! The inventory as a job of the daemon.

mod command;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::config::{InventoryConfig, Storage};
use super::plan::contents::Content;
use super::plan::index::Settings;
use super::run::caches::Caches;
use super::run::crd;
use super::run::follower::{Changed, Source, SourceFollower};
use super::run::kinds::{self, SECRET, projects};
use super::run::latest::LatestState;
use super::run::poster::{Deliver, Poster, Token};
use super::run::reconciler::{Ask, Reconciler};
use super::status::InventoryReport;
use crate::actor::{ChildSpec, Inbox, KeyInbox, KeyMailbox, key_mailbox, mailbox};
use crate::cluster::{Verb, Watch, WatchId, WatchRegistry, WatchSpec};
use crate::config::source::Node;
use crate::config::{ClusterName, SectionName};
use crate::job::check::{Surroundings, say};
use crate::job::command::JobCommand;
use crate::job::permission::{Kinds, Permission, PermissionPlace, READ, Reviewer};
use crate::job::{Job, Reading, Sections, Wiring};

/// The job with the section `[inventory]`.
#[derive(Debug)]
pub struct InventoryJob;

/// The section `[inventory]`, if it is configured.
#[derive(Debug, Default)]
pub(super) struct InventorySection(pub(super) Option<InventoryConfig>);

/// The section of the inventory in a configuration, if there is one.
#[cfg(test)]
pub(crate) fn section(config: &crate::job::Config) -> Option<&InventoryConfig> {
    config.of::<InventorySection>()?.0.as_ref()
}

impl Job for InventoryJob {
    fn key(&self) -> &'static str {
        "inventory"
    }

    fn is_list(&self) -> bool {
        false
    }

    fn read(&self, node: Option<Node>, reading: &mut Reading<'_>) -> Arc<dyn Sections> {
        Arc::new(InventorySection(reading.table(self.key(), &["cluster"], node, InventoryConfig::read)))
    }

    fn commands(&self) -> Vec<JobCommand> {
        vec![command::command()]
    }

    fn orders(&self) -> &'static [&'static str] {
        &["resync", "explain"]
    }
}

impl Sections for InventorySection {
    fn names(&self) -> Vec<&SectionName> {
        self.0.iter().map(|section| &section.name).collect()
    }

    fn clusters(&self) -> Vec<&ClusterName> {
        self.0.iter().map(|section| &section.cluster).collect()
    }

    fn permissions(&self, _kinds: &Kinds) -> Vec<Permission> {
        self.0.iter().flat_map(of_section).collect()
    }

    fn connect<'c>(&'c self, surroundings: &'c Surroundings<'c>) -> BoxFuture<'c, usize> {
        async move {
            let Some(section) = &self.0 else { return 0 };
            let who = section.name.to_string();
            let token_fault = Token::of(section).fault();
            if let Some(fault) = &token_fault {
                say(&format!("{who}: {fault}"));
            }
            let faults = usize::from(token_fault.is_some());
            let Some(cluster) = surroundings.cluster(&section.cluster) else { return faults };
            let mut kinds = Kinds::default();
            let missing = kinds.discover(&who, cluster, &projects().id()).await;
            if missing == 0 {
                // No fault: the inventory works without what is dropped.
                match crd::dropped(cluster).await {
                    Ok(None) => {}
                    Ok(Some(dropped)) => say(&format!("{who}: cluster {}: {dropped}", cluster.name())),
                    Err(error) => say(&format!("{who}: cluster {}: the schema is unknown: {error}", cluster.name())),
                }
            }
            let refused = Reviewer::Cluster(cluster).check(&who, &of_section(section)).await;
            faults + missing + refused
        }
        .boxed()
    }

    fn wire(&self, wiring: &mut Wiring<'_>) {
        if let Some(section) = &self.0 {
            let wired = wire(section, wiring);
            wiring.add(wired.report(), wired.into_child());
        }
    }
}

/// The verbs of what is only watched.
const FOLLOW: [Verb; 2] = [Verb::List, Verb::Watch];

/// The permissions that the section needs. RBAC can't narrow Secrets to those of Helm.
fn of_section(config: &InventoryConfig) -> Vec<Permission> {
    let place = PermissionPlace::Cluster(config.cluster.clone());
    let each = |verbs: &[Verb], resource: &str, name: &str| Permission::each(&place, verbs, resource, "", name);
    let mut permissions = match config.helm_driver {
        Storage::Secret => each(&READ, "secrets", ""),
        Storage::ConfigMap => [each(&READ, "configmaps", ""), each(&FOLLOW, "secrets", SECRET)].concat(),
    };
    for resource in ["pods", "services", "persistentvolumeclaims", "ingresses.networking.k8s.io"] {
        permissions.extend(each(&FOLLOW, resource, ""));
    }
    let id = projects().id();
    let projects = format!("{}.{}", id.plural, id.group);
    permissions.extend(each(&READ, &projects, ""));
    permissions.extend(each(&[Verb::Patch], &format!("{projects}/status"), ""));
    permissions
}

/// Capacity of the reconciler's mailbox of keys, which is emptied in every turn.
const KEYS: usize = 1024;
/// Capacity of its mailbox of operators' questions.
const ASKS: usize = 16;
/// Capacity of the poster's mailbox: more posts are never under way.
const POSTS: usize = 4;

/// The section, wired but not started.
struct WiredInventory {
    reconciler: Arc<Reconciler>,
    poster: Arc<Poster>,
    keys: KeyInbox<Changed>,
    asks: Inbox<Ask>,
    posts: Inbox<Deliver>,
    report: Arc<InventoryReport>,
}

/// Wires the reconciler, its watches and the poster.
fn wire(config: &InventoryConfig, wiring: &mut Wiring<'_>) -> WiredInventory {
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
    let poster = Arc::new(Poster::new(&config, fence.clone()));
    let (post, posts) = mailbox(POSTS);
    let (ask, asks) = mailbox(ASKS);
    let latest = Arc::new(LatestState::default());
    let followed: Vec<Arc<Watch>> = caches.all().cloned().collect();
    let report = InventoryReport::new(
        Arc::clone(&config),
        Arc::clone(&latest),
        Arc::clone(&poster),
        Arc::clone(&projects),
        followed,
        ask,
    );
    let reconciler = Reconciler {
        settings: Settings::of(&config),
        storage: config.helm_driver,
        cluster: handle,
        fence,
        projects,
        caches,
        poster: post,
        token: poster.token_changes(),
        latest,
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
    fn report(&self) -> Arc<InventoryReport> {
        Arc::clone(&self.report)
    }

    /// The section's supervisor. The watches belong to their cluster.
    fn into_child(self) -> ChildSpec {
        let Self { reconciler, poster, keys, asks, posts, report: _ } = self;
        ChildSpec::supervisor("inventory", move || {
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
