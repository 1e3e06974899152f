//! Tests of sections on scripted clusters: which requests the actors around the plan send, and when they wait.
//!
//! A test says what the caches show and what an API server answers, and every request is recorded.

mod absences;
mod approvals;
mod left_fields;
mod namespace_use;
mod namespaces;
mod rejected;
mod sessions;
mod waiting;
mod writes;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::actor::{Inbox, KeyInbox, Outcome, Reconcile, key_mailbox, mailbox};
use crate::cluster::events::ObjectEvent;
use crate::cluster::watch::scripted::Script;
use crate::cluster::{Cluster, ObjectKey, Watch, WatchId};
use crate::config::ResourceId;
use crate::resource_sync::config::SyncConfig;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::run::section::run::Running;
use crate::resource_sync::run::section::{Section, Watches};
use crate::state::Keeping;

const FINALIZER: &str = "cloud.teleport.dev/sync-local";
const LOCAL_NAME: &str = "cloud.teleport.dev/sync-local-name";
/// The paths of the objects `team/…`, and of their namespace.
const OBJECTS: &str = "/apis/demo.towline.dev/v1/namespaces/team/databases";
const NAMESPACE: &str = "/api/v1/namespaces/team";

/// The first section of a configuration.
pub fn parsed(text: &str) -> Result<SyncConfig, crate::config::Error> {
    let config = crate::job::Config::parse(text, [], &[&crate::resource_sync::SyncJob])?;
    Ok(crate::resource_sync::sections(&config)[0].clone())
}

/// One section, its clusters and its dispatcher's inbox.
struct Harness {
    section: Arc<Section>,
    hub: Script,
    edge: Script,
    inbox: KeyInbox<PairKey>,
    _events: Inbox<ObjectEvent>,
    /// Keeps the section running.
    running: Option<Running>,
}

/// The configuration of a section with these keys, of this name and kind.
pub(super) fn config(name: &str, plural: &str, keys: &str) -> SyncConfig {
    let text = format!(
        "[clusters.hub]\nkubeconfig = \"hub\"\n[clusters.edge]\nin_cluster = true\n[[sync]]\nname = \"{name}\"\n\
         remote = \"hub\"\nlocal = \"edge\"\nresource = \"{plural}.v1.demo.towline.dev\"\n{keys}\n"
    );
    parsed(&text).unwrap_or_else(|error| panic!("{keys}: {error}"))
}

impl Harness {
    /// A section with these keys, before its first list.
    fn new(keys: &str) -> Self {
        let (hub, edge) = (Cluster::scripted("hub"), Cluster::scripted("edge"));
        let mut harness = Self::between("databases", &hub, &edge, keys);
        harness.begin(&[Arc::clone(&harness.section)]);
        harness
    }

    /// A section of this name over the same watches.
    fn beside(&self, name: &str, keys: &str) -> Self {
        let own = self.watches();
        let watches = Watches {
            remote: Arc::clone(&own.remote),
            local: Arc::clone(&own.local),
            namespaces: Arc::clone(&own.namespaces),
            secrets: Vec::new(),
            remote_secrets: Vec::new(),
        };
        let mut harness = Self::over(config(name, "databases", keys), watches, self.hub.clone(), self.edge.clone());
        harness.begin(&[Arc::clone(&self.section), Arc::clone(&harness.section)]);
        harness
    }

    /// The section follows its watches, among these sections, and runs.
    fn begin(&mut self, sections: &[Arc<Section>]) {
        for (watch, spec) in self.section.follow(sections) {
            watch.specified(spec);
        }
        self.running = Some(self.section.begin());
    }

    /// A section over the same remote watch, with another local cluster.
    fn following_the_same(&self, edge: &(Cluster, Script)) -> Self {
        let unshared = Self::between("databases", &(self.section.remote_cluster().clone(), self.hub.clone()), edge, "");
        let mut config = config("follower", "databases", "finalizer = \"sync-follower\"");
        config.local = edge.0.name().clone();
        let own = unshared.watches();
        let watches = Watches {
            remote: Arc::clone(&self.watches().remote),
            local: Arc::clone(&own.local),
            namespaces: Arc::clone(&own.namespaces),
            secrets: Vec::new(),
            remote_secrets: Vec::new(),
        };
        Self::over(config, watches, self.hub.clone(), edge.1.clone())
    }

    /// A section of its own kind between clusters that others may share. It does not follow its watches yet.
    fn between(plural: &str, hub: &(Cluster, Script), edge: &(Cluster, Script), keys: &str) -> Self {
        let config = config(plural, plural, keys);
        let watch = |cluster: &Cluster, resource: ResourceId| {
            let id = WatchId::all(cluster.name().clone(), resource);
            Watch::new(id, cluster.clone())
        };
        let core = |plural: &str| ResourceId { plural: plural.into(), version: "v1".into(), group: String::new() };
        let watches = Watches {
            remote: watch(&hub.0, config.resource.clone()),
            local: watch(&edge.0, config.resource.clone()),
            namespaces: watch(&edge.0, core("namespaces")),
            secrets: config.secret_names.iter().map(|_| watch(&edge.0, core("secrets"))).collect(),
            remote_secrets: config.secret_names.iter().map(|_| watch(&hub.0, core("secrets"))).collect(),
        };
        Self::over(config, watches, hub.1.clone(), edge.1.clone())
    }

    fn over(config: SyncConfig, watches: Watches, hub: Script, edge: Script) -> Self {
        let (requests, inbox) = key_mailbox(64);
        let (event_mailbox, events) = mailbox(64);
        let section = Section::new(config, watches, requests, event_mailbox, None, &Keeping::in_memory());
        Self { section, hub, edge, inbox, _events: events, running: None }
    }

    fn watches(&self) -> &Watches {
        self.section.watches()
    }

    /// Ends every list with these remote and local objects and these namespaces.
    async fn list(&self, remotes: &[Value], locals: &[Value], namespaces: &[Value]) {
        self.watches().namespaces.list(namespaces).await;
        self.watches().local.list(locals).await;
        self.watches().remote.list(remotes).await;
    }

    /// One run.
    async fn reconcile(&self, name: &str) -> Outcome {
        self.section.reconcile(&pair(name)).await
    }

    /// The keys that wait for the dispatcher.
    fn requested(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.inbox.try_next()).map(|key| key.to_string()).collect()
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("team", name)
}

/// The pair of two objects of that name, where both sides have the same names.
fn pair(name: &str) -> PairKey {
    PairKey::alike("team", name)
}

/// The managed fields that prove that the section of this name wrote the mark that names an object.
fn managed(section: &str) -> Value {
    json!([{"manager": format!("towline-{section}"), "operation": "Update", "fieldsV1": {"f:metadata": {"f:annotations": {
        format!("f:{LOCAL_NAME}"): {},
    }}}}])
}

/// A remote object with our finalizer.
fn remote(name: &str, version: u64) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "team", "uid": format!("remote-{name}"), "resourceVersion": version.to_string(),
            "generation": 1, "finalizers": [FINALIZER],
            "annotations": {"cloud.teleport.dev/sync-remote-generation": "1", "cloud.teleport.dev/sync-local-generation": "1"},
        },
        "spec": {"size": 1},
    })
}

/// The local object of that remote one, in step with it.
fn local(name: &str, version: u64) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "team", "uid": format!("local-{name}"), "resourceVersion": version.to_string(),
            "generation": 1, "annotations": {
                "cloud.teleport.dev/sync-remote-uid": format!("remote-{name}"),
                "cloud.teleport.dev/sync-remote-cluster": format!("hub/remote-{name}"),
                LOCAL_NAME: format!("team/{name}"),
            },
            "managedFields": managed("databases"),
        },
        "spec": {"size": 1},
    })
}

/// The local namespace, created for an object by the section of that name.
fn namespace(version: u64, owner: &str, section: &str) -> Value {
    json!({"metadata": {"name": "team", "uid": "namespace", "resourceVersion": version.to_string(),
        "managedFields": managed(section), "annotations": {
        LOCAL_NAME: "team",
        "cloud.teleport.dev/sync-owner": owner,
        "cloud.teleport.dev/sync-owner-resource": format!("{section}.demo.towline.dev"),
        "cloud.teleport.dev/sync-owner-section": section,
    }}})
}

/// The same object, being deleted since this version.
fn terminating(mut object: Value, version: u64) -> Value {
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    object
}
