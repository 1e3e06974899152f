//! The index of what keeps a namespace: it gives the answer of a full scan, at a cost that does not grow with the namespace.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{FINALIZER, Harness, LOCAL_NAME, local, managed, namespace, remote, terminating};
use crate::cluster::{Cluster, ObjectKey, Watch};
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::run::section::Section;

/// Whether a pair's local namespace is in use, by a full scan of the caches.
fn in_use_by_full_scan(asking: &Section, pair: &PairKey) -> bool {
    let is_known = |watch: &Arc<Watch>| asking.knows(watch) && watch.is_of_session();
    let is_used_by = |owner: &Section, except: Option<&PairKey>| {
        let Some(remote_namespace) = owner.mapping().remote_namespace_of(&pair.local.namespace) else { return false };
        let (remotes, locals) = (owner.watches().remote.store().keys(), owner.watches().local.store().keys());
        let lives = || {
            remotes.iter().any(|key| {
                &*key.namespace == remote_namespace
                    && Some(key) != except.map(|pair| &pair.remote)
                    && owner.counts_as_living(key)
            })
        };
        let keeps = || {
            locals.iter().any(|key| {
                key.namespace == pair.local.namespace
                    && Some(key) != except.map(|pair| &pair.local)
                    && owner.must_be_kept(key)
            })
        };
        !is_known(&owner.watches().remote) || !is_known(&owner.watches().local) || lives() || keeps()
    };
    is_used_by(asking, Some(pair)) || asking.others_here().any(|peer| is_used_by(&peer, None))
}

/// Sections whose objects share local namespaces: two of one kind over the same watches, one of another kind with a suffix,
/// and one that syncs a kind within one cluster, so that one cache serves both sides.
struct World {
    harnesses: Vec<Harness>,
    clusters: Vec<(Cluster, crate::cluster::watch::scripted::Script)>,
}

const NAMESPACES: [&str; 3] = ["a", "a-x", "b"];
const NAMES: [&str; 4] = ["one", "two", "one-hub", "two-hub-hub"];

impl World {
    fn new() -> Self {
        let (hub, edge) = (Cluster::scripted("hub"), Cluster::scripted("edge"));
        let plain = Harness::between("databases", &hub, &edge, "");
        let beside = Harness::over(
            super::config("beside", "databases", "finalizer = \"sync-beside\"\ndelete_adopted = true"),
            super::Watches {
                remote: Arc::clone(&plain.watches().remote),
                local: Arc::clone(&plain.watches().local),
                namespaces: Arc::clone(&plain.watches().namespaces),
                secrets: Vec::new(),
                remote_secrets: Vec::new(),
            },
            hub.1.clone(),
            edge.1.clone(),
        );
        let suffixed = Harness::between("gadgets", &hub, &edge, "local_namespace_suffix = \"-x\"");
        let apart = Harness::between("queues", &edge, &edge, "");
        let mut config = super::config("queues", "queues", "remote_resource_suffix = \"-hub\"");
        config.remote = config.local.clone();
        let one = apart.watches();
        let within = Harness::over(
            config,
            super::Watches {
                remote: Arc::clone(&one.local),
                local: Arc::clone(&one.local),
                namespaces: Arc::clone(&one.namespaces),
                secrets: Vec::new(),
                remote_secrets: Vec::new(),
            },
            edge.1.clone(),
            edge.1.clone(),
        );
        let mut harnesses = vec![plain, beside, suffixed, within];
        let sections: Vec<_> = harnesses.iter().map(|harness| Arc::clone(&harness.section)).collect();
        for harness in &mut harnesses {
            harness.begin(&sections);
        }
        Self { harnesses, clusters: vec![hub, edge] }
    }

    fn watch(&self, harness: usize, on_remote: bool) -> &Watch {
        let watches = self.harnesses[harness].watches();
        if on_remote { &watches.remote } else { &watches.local }
    }

    async fn take(&mut self, event: &Event) {
        match event {
            Event::Show(harness, on_remote, thing) => {
                self.watch(*harness, *on_remote).show(&thing.object(*harness)).await;
            }
            Event::Gone(harness, on_remote, thing) => {
                self.watch(*harness, *on_remote).gone(&thing.object(*harness)).await;
            }
            Event::List(harness, on_remote, things) => {
                let objects: Vec<_> = things.iter().map(|thing| thing.object(*harness)).collect();
                self.watch(*harness, *on_remote).list(&objects).await;
            }
            Event::Begin(harness, on_remote, things) => {
                let objects: Vec<_> = things.iter().map(|thing| thing.object(*harness)).collect();
                self.watch(*harness, *on_remote).begin(&objects).await;
            }
            Event::Empty(harness, on_remote) => self.watch(*harness, *on_remote).empty(),
            Event::Forget(harness, key) => self.watch(*harness, true).store().forget(key),
            Event::NamespaceGone(harness, name) => self.harnesses[*harness].section.forget_namespace(name),
            Event::Restart(harness) => {
                let harness = &mut self.harnesses[*harness];
                harness.running = None;
                harness.running = Some(harness.section.begin());
            }
            Event::Stop(harness) => self.harnesses[*harness].running = None,
            Event::NewSession(cluster) => {
                let (cluster, script) = &self.clusters[*cluster];
                cluster.new_session(script);
            }
            Event::Ask(harness, key) => self.ask(*harness, key),
        }
        for harness in &mut self.harnesses {
            harness.requested();
        }
    }

    fn ask(&self, harness: usize, local_key: &ObjectKey) {
        let section = &self.harnesses[harness].section;
        if let Some(pair) = section.mapping().pair_of_local(local_key) {
            let (indexed, scanned) = (section.is_in_use(&pair), in_use_by_full_scan(section, &pair));
            assert_eq!(indexed, scanned, "{local_key} of {}", section.name());
        }
    }
}

/// The properties of an object that decide about its namespace.
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
#[derive(Debug, Clone)]
struct Thing {
    key: ObjectKey,
    uid: u8,
    version: u64,
    deleting: bool,
    paused: bool,
    source: Option<u8>,
    names_itself: bool,
    adopted: bool,
    writer: usize,
}

impl Thing {
    fn object(&self, harness: usize) -> Value {
        let mark = |name: &str| format!("cloud.teleport.dev/{name}");
        let mut annotations = json!({});
        if self.paused {
            annotations[mark("paused")] = json!("true");
        }
        if let Some(source) = self.source {
            annotations[mark("sync-remote-uid")] = json!(format!("uid-{source}"));
        }
        if self.names_itself {
            annotations[LOCAL_NAME] = json!(self.key.to_string());
        }
        if self.adopted {
            annotations[mark("sync-adopted")] = json!("true");
        }
        let writer = ["databases", "beside", "gadgets", "queues"][if self.writer < 4 { self.writer } else { harness }];
        let object = json!({"metadata": {
            "namespace": &*self.key.namespace, "name": &*self.key.name, "uid": format!("uid-{}", self.uid),
            "resourceVersion": self.version.to_string(), "generation": 1, "finalizers": [FINALIZER],
            "annotations": annotations, "managedFields": managed(writer),
        }});
        if self.deleting { terminating(object, self.version) } else { object }
    }
}

#[derive(Debug, Clone)]
enum Event {
    Show(usize, bool, Thing),
    Gone(usize, bool, Thing),
    List(usize, bool, Vec<Thing>),
    Begin(usize, bool, Vec<Thing>),
    Empty(usize, bool),
    Forget(usize, ObjectKey),
    NamespaceGone(usize, &'static str),
    Restart(usize),
    Stop(usize),
    NewSession(usize),
    Ask(usize, ObjectKey),
}

fn keys() -> impl Strategy<Value = ObjectKey> {
    (prop::sample::select(&NAMESPACES[..]), prop::sample::select(&NAMES[..]))
        .prop_map(|(namespace, name)| ObjectKey::new(namespace, name))
}

fn things() -> impl Strategy<Value = Thing> {
    let flags = (prop::bool::weighted(0.6), prop::bool::weighted(0.1), any::<bool>(), prop::bool::weighted(0.1));
    (keys(), 0u8..6, 1u64..1_000_000, flags, prop::option::of(0u8..6), 0usize..8).prop_map(
        |(key, uid, version, (deleting, paused, names_itself, adopted), source, writer)| Thing {
            key,
            uid,
            version,
            deleting,
            paused,
            source,
            names_itself,
            adopted,
            writer,
        },
    )
}

fn events() -> impl Strategy<Value = Event> {
    let lists = || prop::collection::vec(things(), 0..4);
    prop_oneof![
        12 => (0usize..4, any::<bool>(), things()).prop_map(|(harness, side, thing)| Event::Show(harness, side, thing)),
        8 => (0usize..4, any::<bool>(), things()).prop_map(|(harness, side, thing)| Event::Gone(harness, side, thing)),
        2 => (0usize..4, any::<bool>(), lists()).prop_map(|(harness, side, things)| Event::List(harness, side, things)),
        1 => (0usize..4, any::<bool>(), lists()).prop_map(|(harness, side, things)| Event::Begin(harness, side, things)),
        1 => (0usize..4, any::<bool>()).prop_map(|(harness, side)| Event::Empty(harness, side)),
        2 => (0usize..4, keys()).prop_map(|(harness, key)| Event::Forget(harness, key)),
        1 => (0usize..4, prop::sample::select(&NAMESPACES[..])).prop_map(|(harness, name)| Event::NamespaceGone(harness, name)),
        1 => (0usize..4).prop_map(Event::Restart),
        1 => (0usize..4).prop_map(Event::Stop),
        1 => (0usize..2).prop_map(Event::NewSession),
        16 => (0usize..4, keys()).prop_map(|(harness, key)| Event::Ask(harness, key)),
    ]
}

proptest! {
    #[test]
    fn the_index_gives_the_answer_of_a_full_scan(
        listed in prop::collection::vec((0usize..4, any::<bool>(), prop::collection::vec(things(), 0..3)), 8),
        events in prop::collection::vec(events(), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            for harness in 0..world.harnesses.len() {
                for on_remote in [false, true] {
                    let things = &listed[2 * harness + usize::from(on_remote)].2;
                    world.take(&Event::List(harness, on_remote, things.clone())).await;
                }
                world.harnesses[harness].watches().namespaces.list(&[]).await;
            }
            for event in &events {
                world.take(event).await;
            }
            for harness in 0..world.harnesses.len() {
                for namespace in NAMESPACES {
                    for name in NAMES {
                        world.ask(harness, &ObjectKey::new(namespace, name));
                    }
                }
            }
        });
    }
}

/// Deletes `count` objects in one namespace of ours, one after the other, with an observation after each event. Returns how
/// many objects the index has evaluated or listed.
async fn examined_while_deleting(count: usize) -> usize {
    let mut harness = Harness::new("");
    let section = Arc::clone(&harness.section);
    let names: Vec<String> = (0..count).map(|number| format!("o{number}")).collect();
    let remotes: Vec<_> = names.iter().map(|name| remote(name, 5)).collect();
    let locals: Vec<_> = names.iter().map(|name| local(name, 7)).collect();
    let watches = section.watches();
    watches.namespaces.list(&[namespace(8, "o0", "databases")]).await;
    watches.local.list(&locals).await;
    let taken = async {
        loop {
            harness.requested();
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = watches.remote.list(&remotes) => {}
        () = taken => {}
    }
    section.namespace_use.examined();
    let observe =
        |name: &str| section.observe(&super::pair(name)).expect("nothing was written").observed.namespace_in_use;
    let mut version = 1_000;
    for (number, name) in names.iter().enumerate() {
        let is_last = number + 1 == count;
        version += 10;
        watches.remote.show(&terminating(remote(name, 5), version)).await;
        assert_eq!(observe(name), !is_last, "{name}: while another lives the namespace stays");
        watches.local.gone(&local(name, version + 1)).await;
        assert_eq!(observe(name), !is_last);
        watches.remote.gone(&terminating(remote(name, 5), version + 2)).await;
        assert_eq!(observe(name), !is_last);
        harness.requested();
    }
    section.namespace_use.examined()
}

#[tokio::test(start_paused = true)]
async fn how_many_objects_an_observation_evaluates_does_not_grow_with_the_namespace() {
    // Three observations for each object, each after a change, and one listing.
    for count in [50, 1_000] {
        let examined = examined_while_deleting(count).await;
        assert!(examined <= 8 * count, "{examined} for {count} objects");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_indexed_while_no_pair_ends() {
    let harness = Harness::new("");
    harness.list(&[remote("a", 5)], &[local("a", 7)], &[namespace(8, "a", "databases")]).await;
    harness.section.observe(&super::pair("a")).expect("nothing was written");
    harness.watches().remote.show(&remote("a", 9)).await;
    assert_eq!(harness.section.namespace_use.examined(), 0);
}
