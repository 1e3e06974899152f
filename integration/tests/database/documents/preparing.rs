//! What a pass begins with: what is read and rendered for it, by how many statements, and what can't be read.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::{Value, json};
use tokio::sync::watch;
use towline::test_api::cluster::DynamicClusters;
use towline::test_api::documents::{Change, Expected, Key, Keyring, Kind, OpenError, Row, WorkClaim};
use towline::test_api::http::DeniedNetworks;
use towline::test_api::syncset::kubeconfig::Allowed;
use towline::test_api::syncset::payloads::Payloads;
use towline::test_api::syncset::plan::action::{Action, PassPlan};
use towline::test_api::syncset::plan::name::ObjectRef;
use towline::test_api::syncset::plan::pass::Writes;
use towline::test_api::syncset::plan::reason::Reason;
use towline::test_api::syncset::plan::rows::{AppliedRow, ResultRow};
use towline::test_api::syncset::plan::snapshot::{Plan, Snapshot, StoredCluster};
use towline::test_api::syncset::plan::spec::Rendering;
use towline::test_api::syncset::plan::wanted::{Deletions, Live, Scope, Wanted};
use towline::test_api::syncset::store::{Lacking, MOST_ROWS, PassStore};
use towline::test_api::syncset::work::{NoClient, NoCredentials, PrepareError, Prepared, Preparer};

use crate::documents::world::{LIMIT, Stage, Written, cluster, item, row, run};

fn id<T: FromStr<Err: std::fmt::Debug>>(number: u8) -> T {
    format!("00000000-0000-4000-9000-{number:012x}").parse().expect("an id")
}

/// A cluster with a claim, and what prepares its passes.
struct World {
    stage: Stage,
    writer: Written,
    claim: WorkClaim,
    store: PassStore,
    preparer: Preparer,
    keys: watch::Sender<Arc<Keyring>>,
}

impl World {
    /// `cache`: bytes of payloads that are kept.
    async fn of(name: &str, cache: u64) -> Self {
        let stage = Stage::new(name).await;
        stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let writer = stage.writer();
        let labels = BTreeMap::from([("env".to_owned(), "prod".to_owned())]);
        let sealed = Some(b"\0not: a kubeconfig".to_vec());
        writer
            .version(item(vec![Change::put(&cluster("c1"), Expected::Absent, Row { labels, sealed, ..row() })]))
            .await;
        let text = "insert into towline_work (cluster, ready_at, holder, token, until) \
             select id, now(), 'me', 17, now() + interval '1 h' from clusters where name = 'c1' returning cluster::text";
        let cluster: String = stage.sql.query_one(text, &[]).await.expect("a row").get(0);
        let claim = WorkClaim { cluster: cluster.parse().expect("an id"), holder: "me".to_owned(), token: 17 };
        let store = PassStore::new(stage.database());
        let (keys, keyring) = watch::channel(Arc::new(Keyring::default()));
        let payloads = Payloads::of_bytes(cache);
        let preparer = Preparer::new(store.clone(), payloads, keyring, Allowed::default());
        Self { stage, writer, claim, store, preparer, keys }
    }

    /// Writes a syncset of the cluster's namespace, which has this id.
    async fn syncset(&self, id: u8, name: &str, resources: &[Value], more: &Value) {
        let mut spec = json!({"clusterDeploymentRefs": [{"name": "c1"}], "resourceApplyMode": "Sync", "resources": resources,
            "patches": [], "secretMappings": []});
        let fields = spec.as_object_mut().expect("an object");
        fields.extend(more.as_object().cloned().expect("an object"));
        fields.retain(|_, value| !value.is_null());
        self.put(Kind::SyncSet, id, name, &json!({"spec": spec}), None).await;
    }

    async fn put(&self, kind: Kind, id: u8, name: &str, data: &Value, sealed: Option<&[u8]>) {
        self.put_in(if kind.is_namespaced() { "foo" } else { "" }, (kind, id, name), data, sealed).await;
    }

    async fn put_in(&self, namespace: &str, (kind, id, name): (Kind, u8, &str), data: &Value, sealed: Option<&[u8]>) {
        let data = data.as_object().cloned().expect("an object");
        let sealed = sealed.map(<[u8]>::to_vec);
        let row = Row { id: self::id(id), data, sealed, labels: BTreeMap::new(), ..row() };
        let key = Key::new(kind, namespace, name);
        let mut change = Change::put(&key, Expected::Any, row);
        change.terms = (kind == Kind::SelectorSyncSet).then(|| vec![(String::new(), String::new())]);
        self.writer.version(item(vec![change])).await;
    }

    async fn remove(&self, kind: Kind, name: &str) {
        self.writer.version(item(vec![Change::delete(&Key::new(kind, "foo", name), Expected::Any)])).await;
    }

    async fn snapshot(&self) -> Snapshot {
        self.preparer.snapshot(self.claim.cluster, "foo").await.expect("a snapshot").0
    }

    /// How often content was read.
    async fn reads(&self) -> i64 {
        self.stage
            .number(
                "select coalesce(sum(calls), 0)::bigint from statistics.pg_stat_statements s where s.dbid = \
                 (select oid from pg_database where datname = current_database()) and query like 'select $6,%'",
            )
            .await
    }

    async fn prepared(&self, snapshot: &Snapshot, pass_plan: &PassPlan) -> Result<Prepared, PrepareError> {
        let plan = Plan::of(snapshot);
        let is_living = |syncset: &_| snapshot.candidates.iter().any(|candidate| candidate.id == *syncset);
        let deletions = |syncset| if is_living(&syncset) { Deletions::Allowed } else { Deletions::Suspended };
        self.preparer.prepare(snapshot, &plan, pass_plan, false, &deletions).await
    }

    /// With the plan of the snapshot.
    async fn whole(&self, snapshot: &Snapshot) -> Result<Prepared, PrepareError> {
        self.prepared(snapshot, &pass_plan(snapshot)).await
    }
}

fn pass_plan(snapshot: &Snapshot) -> PassPlan {
    match Plan::of(snapshot).action {
        Action::Pass(pass_plan) => pass_plan,
        other => panic!("no pass: {other:?}"),
    }
}

fn due(ids: &[u8]) -> PassPlan {
    PassPlan { due: ids.iter().copied().map(id).collect(), ..PassPlan::default() }
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}})
}

fn object(name: &str) -> ObjectRef {
    ObjectRef {
        group: String::new(),
        kind: "ConfigMap".to_owned(),
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

/// The syncsets that are rendered, by name.
fn rendered(live: &[Live]) -> BTreeSet<&str> {
    live.iter().filter(|live| live.rendered.is_some()).map(|live| live.header.name.name.as_str()).collect()
}

/// The bodies of the objects of a syncset, and its failures.
fn bodies<'l>(live: &'l [Live], name: &str) -> Vec<Result<&'l Value, (Reason, &'l str)>> {
    let live = live.iter().find(|live| live.header.name.name == name).expect("a syncset");
    let rendered = live.rendered.as_ref().expect("it is rendered");
    let parts = rendered.resources.iter().chain(&rendered.secrets).map(|rendering| match rendering {
        Rendering::Ready(desired) => Ok(&desired.body),
        Rendering::Failed { failure, .. } => Err((failure.reason, failure.message.as_str())),
    });
    parts.collect()
}

fn wanted(syncset: u8, name: &str, content: bool) -> AppliedRow {
    AppliedRow {
        object: object(name),
        syncset: id(syncset),
        api_version: "v1".to_owned(),
        content: content.then_some(ResultRow::UNFINISHED),
        wanted: true,
        tracked: true,
        adopted: false,
        uid: None,
        version: None,
        owned: None,
        resent: 0,
        gone: 0,
    }
}

#[test]
fn a_first_contact_reads_content_once_and_not_at_all_if_it_is_cached() {
    run(async {
        let world = World::of("first", 1 << 20).await;
        for (id, name) in [(1, "b"), (2, "a")] {
            world.syncset(id, name, &[config_map(name)], &json!({})).await;
        }
        let snapshot = world.snapshot().await;
        let Prepared { input, .. } = world.whole(&snapshot).await.expect("an input");
        assert_eq!(world.reads().await, 1);
        let names: Vec<&str> = input.live.iter().map(|live| live.header.name.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(input.full && !input.another_cluster && input.now == snapshot.at);
        assert_eq!(bodies(&input.live, "a")[0].expect("an object")["metadata"]["name"], "a");
        assert!(input.live.iter().all(|live| live.deletions == Deletions::Allowed));
        let Prepared { input: again, .. } = world.whole(&snapshot).await.expect("an input");
        assert_eq!(world.reads().await, 1, "both payloads are kept, and there are no rows");
        assert_eq!(again.live, input.live);
    });
}

/// As a rollout does it.
async fn pins(world: &World, to: &str) {
    let text = format!(
        "insert into towline_turn select r.syncset, c.id, {to}, 1, 0, 0 from towline_rollout r, clusters c \
         on conflict (syncset, cluster) do update set revision = excluded.revision"
    );
    world.stage.run(&text).await;
}

#[test]
fn a_cluster_gets_the_revision_to_which_it_is_pinned() {
    run(async {
        let world = World::of("pinned", 1 << 20).await;
        let write = async |generation: i64, names: &[&str], rollout: Value| {
            let resources: Vec<Value> = names.iter().map(|name| config_map(name)).collect();
            let spec = json!({"clusterDeploymentRefs": [{"name": "c1"}], "resourceApplyMode": "Sync", "resources": resources,
                "patches": [], "secretMappings": [], "rollout": rollout});
            let Value::Object(mut spec) = spec else { panic!("an object") };
            spec.retain(|_, value| !value.is_null());
            let data = json!({ "spec": spec }).as_object().cloned().expect("an object");
            let key = Key::new(Kind::SyncSet, "foo", "a");
            let row = Row { id: id(1), generation, data, labels: BTreeMap::new(), ..row() };
            world.writer.version(item(vec![Change::put(&key, Expected::Any, row)])).await
        };
        let seen = async || {
            let snapshot = world.snapshot().await;
            let Prepared { input, .. } = world.whole(&snapshot).await.expect("an input");
            let of = |live: &Live| {
                let bodies = bodies(&input.live, "a");
                let names = bodies
                    .iter()
                    .map(|body| body.expect("an object")["metadata"]["name"].as_str().expect("a name").to_owned());
                (live.header.generation, names.collect::<Vec<_>>(), live.inputs)
            };
            input.live.first().map(of)
        };
        let waves = || json!({"waves": [{"name": "first", "percent": 10}]});
        write(1, &["one"], json!(null)).await;
        let before = seen().await.expect("it is wanted");
        assert_eq!((before.0, before.1.clone()), (1, vec!["one".to_owned()]));
        write(2, &["one"], waves()).await;
        assert_eq!(seen().await, Some(before.clone()), "a rollout is no content: nothing is due");
        let reads = world.reads().await;
        write(3, &["one", "two"], waves()).await;
        assert_eq!(seen().await, Some(before.clone()), "its turn has not come");
        assert_eq!(world.reads().await, reads, "the content is the one that was read before");
        pins(&world, "2").await;
        let after = seen().await.expect("it is wanted");
        assert_eq!((after.0, after.1.clone()), (3, vec!["one".to_owned(), "two".to_owned()]));
        assert_eq!(world.reads().await, reads + 1, "and no other statement");
        write(4, &["three"], waves()).await;
        assert_eq!(seen().await, Some(after), "an edit moves nobody");
        pins(&world, "1").await;
        assert_eq!(seen().await, Some(before), "as it was");
        // A revision that is not there is nothing that a syncset wants, but not that it wants nothing.
        pins(&world, "7").await;
        let plan = Plan::of(&world.snapshot().await);
        assert!(plan.live[0].undecodable.as_ref().is_some_and(|failure| failure.reason == Reason::ResourceInvalid));
        // All get the newest one.
        write(5, &["three"], json!(null)).await;
        assert_eq!(seen().await.map(|(generation, names, _)| (generation, names)), Some((5, vec!["three".to_owned()])));
        // The first content of all.
        world.remove(Kind::SyncSet, "a").await;
        write(1, &["one"], waves()).await;
        assert_eq!(Plan::of(&world.snapshot().await).live, Vec::new(), "its turn has not come");
        pins(&world, "1").await;
        assert_eq!(seen().await.map(|(generation, names, _)| (generation, names)), Some((1, vec!["one".to_owned()])));
    });
}

#[test]
fn only_what_is_due_is_rendered_and_who_takes_over_an_object() {
    run(async {
        let world = World::of("taking", 1 << 20).await;
        for (id, name) in [(1, "a"), (2, "b"), (3, "c")] {
            world.syncset(id, name, &[config_map("shared"), config_map(name)], &json!({})).await;
        }
        // c sent the object last; a and b want it, and c no longer does.
        world.syncset(3, "c", &[config_map("c")], &json!({})).await;
        let rows = vec![
            wanted(1, "shared", false),
            wanted(1, "a", true),
            wanted(2, "shared", false),
            wanted(3, "shared", true),
            wanted(9, "gone", true),
        ];
        let writes = Writes { applied: rows, ..Writes::default() };
        world.store.save(&world.claim, &writes, None).await.expect("it is stored");
        let snapshot = world.snapshot().await;
        let pass_plan = PassPlan { gone: BTreeSet::from([id(9)]), ..due(&[3]) };
        let Prepared { input, .. } = world.prepared(&snapshot, &pass_plan).await.expect("an input");
        assert_eq!(rendered(&input.live), BTreeSet::from(["b", "c"]), "a is not the one that sends it now");
        assert_eq!((input.applied.len(), input.full), (5, false));
        assert_eq!(input.gone, BTreeMap::from([(id(9), Deletions::Suspended)]));
        assert_eq!(world.reads().await, 2, "c, then b");
        let Prepared { input, .. } = world.prepared(&snapshot, &pass_plan).await.expect("an input");
        assert_eq!((rendered(&input.live).len(), input.applied.len()), (2, 5));
        assert_eq!(world.reads().await, 2, "the snapshot has the rows, and the payloads are kept");
        let nothing = PassPlan { due: BTreeSet::new(), ..pass_plan };
        let Prepared { input, .. } = world.prepared(&snapshot, &nothing).await.expect("an input");
        assert_eq!(rendered(&input.live), BTreeSet::new());
    });
}

/// Each of them has to render a second one after the first, and both together do not fit into the budget.
#[test]
fn passes_that_turn_out_to_need_more_do_not_wait_for_each_other() {
    run(async {
        let world = World::of("more_needed", 1).await;
        let mut large = heavy("b", 3 << 10);
        large["metadata"]["name"] = json!("shared");
        world.syncset(1, "a", &[large], &json!({})).await;
        world.syncset(2, "b", &[heavy("b", 3 << 10)], &json!({})).await;
        let rows = vec![wanted(1, "shared", false), wanted(2, "shared", true)];
        world.store.save(&world.claim, &Writes { applied: rows, ..Writes::default() }, None).await.expect("stored");
        let (snapshot, pass_plan) = (world.snapshot().await, due(&[2]));
        let passes = futures::future::join_all((0..3).map(|_| async {
            let prepared = world.prepared(&snapshot, &pass_plan).await.expect("an input");
            rendered(&prepared.input.live).len()
        }));
        assert_eq!(passes.await, [2; 3]);
    });
}

/// So many mappings with names as long as they may be have about 200 KiB.
fn mappings(count: usize) -> Value {
    let long = |what: &str, n: usize| format!("{what}-{n}-{}", "x".repeat(230));
    let mapping = |n: usize| {
        json!({"sourceRef": {"name": long("source", n), "namespace": "foo"},
            "targetRef": {"name": long("target", n), "namespace": long("namespace", n)}})
    };
    json!((0..count).map(mapping).collect::<Vec<_>>())
}

/// One with a token for a namespace writes what a pass reads before anything is rendered, and names as many clusters as he likes, which say
/// nothing for half a minute.
#[test]
fn snapshots_that_somebody_makes_large_have_the_half_of_a_budget_and_keep_no_other_namespace_waiting() {
    run(async {
        const MIB: usize = 1 << 20;
        let world = World::of("large_snapshots", 1).await;
        let cluster = world.claim.cluster;
        let preparer = world.preparer.waiting_at_most(Duration::from_millis(100));
        let (_, small) = preparer.snapshot(cluster, "foo").await.expect("a small one needs no budget");
        assert_eq!(small.bytes, 128 << 10);
        for number in 1..=25 {
            world.syncset(number, &format!("s{number:02}"), &[], &json!({"secretMappings": mappings(200)})).await;
        }
        let too_large = world.store.snapshot_within(cluster, small.bytes).await.expect("an answer");
        let bytes = too_large.expect_err("nothing of it is read").bytes;
        assert!((4 * MIB..8 * MIB).contains(&bytes), "{bytes}");
        let (snapshot, held) = preparer.snapshot(cluster, "foo").await.expect("there is room for one");
        assert_eq!((snapshot.candidates.len(), held.bytes), (25, bytes + (128 << 10)), "and for what comes meanwhile");
        let second = preparer.snapshot(cluster, "foo").await;
        assert!(matches!(second, Err(PrepareError::NoBudget)), "not for two of a namespace");
        let (_, of_another) = preparer.snapshot(cluster, "bar").await.expect("others have as much");
        assert_eq!(of_another.bytes, held.bytes);
        drop(held);
        preparer.snapshot(cluster, "foo").await.expect("it is given back");
        // Beyond 8 MiB syncsets are left out, the last ones by name, and the others are applied.
        for number in 26..=60 {
            world.syncset(number, &format!("s{number:02}"), &[], &json!({"secretMappings": mappings(200)})).await;
        }
        let (snapshot, room) = world.preparer.snapshot(cluster, "baz").await.expect("a snapshot");
        assert!((7 * MIB..9 * MIB).contains(&room.bytes), "{}", room.bytes);
        let read: usize = snapshot.candidates.iter().map(|candidate| json!(candidate.spec).to_string().len()).sum();
        assert!(read < 9 * MIB, "{read}");
        let cut = snapshot.candidates.iter().filter(|candidate| candidate.is_cut).count();
        let plan = Plan::of(&snapshot);
        let left_out: Vec<bool> = plan.live.iter().map(|live| live.undecodable.is_some()).collect();
        assert!(cut > 0 && !left_out[0] && left_out.is_sorted() && left_out.iter().filter(|out| **out).count() >= cut);
        drop((snapshot, room));
        // Of an annotation no more is read than counts.
        let noted = "update towline_documents set annotations = jsonb_build_object('hive.openshift.io/syncset-metrics-group', repeat('x', 200000)) \
             where kind = 'syncsets'";
        world.stage.run(noted).await;
        let (snapshot, room) = world.preparer.snapshot(cluster, "baz").await.expect("a snapshot");
        let groups =
            snapshot.candidates.iter().filter_map(|candidate| candidate.metrics_group.as_ref()).map(String::len);
        assert_eq!(groups.max(), Some(63));
        drop((snapshot, room));
        // Nor is anything read of so many syncsets that their results alone take more than there is for one cluster.
        let results = "insert into towline_result \
               (cluster, syncset, kind, namespace, name, inputs, generation, result, reason, message, since, pending_deletions) \
             select id, gen_random_uuid(), 'SyncSet', 'foo', 'n' || n, decode(repeat('00', 32), 'hex'), 1, 'Failure', 'Rejected', \
               repeat('x', 20000), now(), false from clusters, generate_series(1, 1000) n where name = 'c1'";
        world.stage.run(results).await;
        let refused = world.preparer.snapshot(cluster, "baz").await;
        assert!(matches!(refused, Err(PrepareError::TooManySyncsets)), "{}", refused.is_ok());
    });
}

/// Labels and annotations of a Secret that no mapping lists are not read at all.
#[test]
fn annotations_of_mapped_secrets_are_read_only_if_they_are_copied_and_as_long_as_there_is_room() {
    run(async {
        let world = World::of("large_annotations", 1).await;
        let cluster = world.claim.cluster;
        let mapping = |n: u8, more: &Value| {
            let mut mapping = json!({"sourceRef": {"name": format!("m{n}"), "namespace": "foo"},
                "targetRef": {"name": format!("m{n}"), "namespace": "default"}});
            mapping.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
            mapping
        };
        for number in 1..=40 {
            let data = json!({"type": "Opaque", "dataGeneration": 1});
            world.put(Kind::Secret, 100 + number, &format!("m{number}"), &data, Some(br#" {"key": "Y2FuYXJ5"}"#)).await;
        }
        // They are stored in a hundredth of that.
        world
            .stage
            .run("update towline_documents set annotations = jsonb_build_object('note', repeat('x', 250000)) where kind = 'secrets'")
            .await;
        let all = |more: &Value| json!({"secretMappings": (1..=40).map(|n| mapping(n, more)).collect::<Vec<_>>()});
        world.syncset(1, "a", &[], &all(&json!({}))).await;
        let read = world.store.snapshot_within(cluster, 128 << 10).await.expect("an answer");
        let snapshot = read.expect("it is small");
        assert!(snapshot.secrets.len() == 40 && snapshot.secrets.iter().all(|facts| facts.annotations.is_empty()));
        assert!(Plan::of(&snapshot).live[0].undecodable.is_none());
        world
            .syncset(2, "b", &[], &json!({"secretMappings": [mapping(1, &json!({"secretMetadata": ["note"]}))]}))
            .await;
        let snapshot = world.snapshot().await;
        let with = snapshot.secrets.iter().filter(|facts| !facts.annotations.is_empty());
        assert_eq!(with.map(|facts| facts.name.as_str()).collect::<Vec<_>>(), ["m1"]);
        world.syncset(3, "c", &[], &all(&json!({"secretMetadata": ["*"]}))).await;
        let (snapshot, _room) = world.preparer.snapshot(cluster, "foo").await.expect("a snapshot");
        let read: usize =
            snapshot.secrets.iter().map(|facts| facts.annotations.values().map(String::len).sum::<usize>()).sum();
        assert!((7 << 20..8 << 20).contains(&read), "{read}");
        let plan = Plan::of(&snapshot);
        let out = plan.live.iter().map(|live| live.undecodable.as_ref().map(|failure| failure.reason));
        assert_eq!(out.collect::<Vec<_>>(), [None, None, Some(Reason::ResourceInvalid)], "a part of them is not sent");
    });
}

#[test]
fn what_has_changed_since_the_snapshot_is_not_sent_under_what_was_known_before() {
    run(async {
        // Nothing is kept.
        let world = World::of("outdated", 1).await;
        let mapping = json!({"secretMappings": [{"sourceRef": {"name": "pull", "namespace": "foo"},
            "targetRef": {"name": "copy", "namespace": "default"}}]});
        let secret = async |generation: i64| {
            let data = json!({"type": "Opaque", "dataGeneration": generation});
            world.put(Kind::Secret, 50, "pull", &data, Some(br#" {"key": "Y2FuYXJ5"}"#)).await;
        };
        secret(1).await;
        world.syncset(1, "a", &[config_map("a")], &mapping).await;
        let is_outdated = |prepared: Result<Prepared, PrepareError>| matches!(prepared, Err(PrepareError::Outdated));
        let before = world.snapshot().await;
        assert!(!is_outdated(world.whole(&before).await));
        world.syncset(1, "a", &[config_map("b")], &mapping).await;
        assert!(is_outdated(world.whole(&before).await), "a newer payload");
        let before = world.snapshot().await;
        secret(2).await;
        assert!(is_outdated(world.whole(&before).await), "a newer secret");
        let before = world.snapshot().await;
        assert!(!is_outdated(world.whole(&before).await));
        world.remove(Kind::Secret, "pull").await;
        assert!(is_outdated(world.whole(&before).await), "a secret that is gone");
        let before = world.snapshot().await;
        assert!(!is_outdated(world.whole(&before).await));
        world.remove(Kind::SyncSet, "a").await;
        assert!(is_outdated(world.whole(&before).await), "a syncset that is gone");
    });
}

#[test]
fn secrets_are_opened_for_those_who_may_copy_them() {
    run(async {
        let world = World::of("secrets", 1 << 20).await;
        let mapping = |namespace: &str, name: &str| {
            json!({"secretMappings": [{"sourceRef": {"name": name, "namespace": namespace},
                "targetRef": {"name": "copy", "namespace": "default"}}]})
        };
        let data = json!({"type": "Opaque", "dataGeneration": 1});
        world.put(Kind::Secret, 50, "pull", &data, Some(b"\0{\"key\": \"Y2FuYXJ5\"}")).await;
        world.put(Kind::Secret, 51, "sealed", &data, Some(b"\x01\x03keyand the rest")).await;
        world.put(Kind::Secret, 52, "empty", &data, None).await;
        world.syncset(1, "a", &[], &mapping("foo", "pull")).await;
        world.syncset(2, "b", &[], &mapping("foo", "sealed")).await;
        world.syncset(3, "c", &[], &mapping("foo", "missing")).await;
        world.syncset(4, "d", &[], &mapping("bar", "pull")).await;
        world.syncset(5, "e", &[], &mapping("foo", "empty")).await;
        let snapshot = world.snapshot().await;
        let Prepared { input, .. } = world.whole(&snapshot).await.expect("an input");
        let of = |name: &str| bodies(&input.live, name).remove(0);
        assert_eq!(of("a").expect("a secret")["data"], json!({"key": "Y2FuYXJ5"}));
        let sealed =
            (Reason::SecretUnavailable, "failed to read secret 0: Secret foo/sealed: its data can't be opened");
        assert_eq!(of("b"), Err(sealed));
        let missing = (Reason::SecretUnavailable, "failed to read secret 0: Secret foo/missing: not found");
        assert_eq!(of("c"), Err(missing));
        assert_eq!(of("d"), Err((Reason::SecretInvalid, "source in wrong namespace for secret 0")));
        assert_eq!(of("e").map_err(|(reason, _)| reason), Err(Reason::SecretUnavailable), "it is not an empty secret");
        assert_eq!(world.reads().await, 1);
        assert!(!format!("{input:?}").contains("Y2FuYXJ5"));
    });
}

#[test]
fn one_syncset_that_can_not_be_read_keeps_no_other_from_being_applied() {
    run(async {
        let world = World::of("undecodable", 1 << 20).await;
        world.syncset(1, "a", &[config_map("a")], &json!({})).await;
        world.syncset(2, "b", &[config_map("b")], &json!({"secretMappings": 7})).await;
        world.syncset(3, "c", &[config_map("c")], &json!({"resources": {"kind": "ConfigMap"}})).await;
        world.syncset(4, "d", &[config_map("d")], &json!({"secretMappings": null})).await;
        world.put(Kind::SelectorSyncSet, 5, "e", &json!({"spec": null}), None).await;
        world.put(Kind::SelectorSyncSet, 6, "f", &json!({"spec": [1]}), None).await;
        let snapshot = world.snapshot().await;
        let Prepared { input, .. } = world.whole(&snapshot).await.expect("an input");
        assert_eq!(rendered(&input.live).len(), 6);
        for live in &input.live {
            assert_eq!(live.obstacle().is_none(), live.header.name.name == "a", "{:?}", live.header.name);
        }
        let wrong = bodies(&input.live, "c").remove(0).expect_err("it can't be read");
        assert_eq!(wrong, (Reason::ResourceInvalid, "failed to decode spec.resources: an object; allowed: a list"));
        let reads = world.reads().await;
        let Prepared { input: again, .. } = world.whole(&snapshot).await.expect("an input");
        assert_eq!(world.reads().await, reads, "what can't be read is not read again");
        assert_eq!(again.live, input.live);
        // Also if it is not due.
        let Prepared { input, .. } = world.prepared(&snapshot, &due(&[1])).await.expect("an input");
        assert_eq!(rendered(&input.live), BTreeSet::from(["a", "b", "d", "e", "f"]));
    });
}

#[test]
fn patches_in_yaml_and_templates_are_rendered_with_the_labels_of_the_cluster() {
    run(async {
        let world = World::of("rendering", 1 << 20).await;
        let patch = json!({"apiVersion": "v1", "kind": "Namespace", "name": "default", "patchType": "merge",
            "patch": "metadata:\n  labels:\n    env: {{ fromCDLabel \"env\" }}\n"});
        let more = json!({"patches": [patch], "enableResourceTemplates": true, "enablePatchTemplates": true});
        world.syncset(1, "a", &[config_map("site-{{ fromCDLabel \"env\" }}")], &more).await;
        let snapshot = world.snapshot().await;
        let Prepared { input, .. } = world.whole(&snapshot).await.expect("an input");
        assert_eq!(bodies(&input.live, "a")[0].expect("an object")["metadata"]["name"], "site-prod");
        let patches = &input.live[0].rendered.as_ref().expect("it is rendered").patches;
        let [Rendering::Ready(patch)] = patches.as_slice() else { panic!("{patches:?}") };
        assert_eq!(patch.body, json!({"metadata": {"labels": {"env": "prod"}}}));
    });
}

/// A config map with a text of so many KiB.
fn heavy(name: &str, kib: usize) -> Value {
    let metadata = json!({"name": name, "namespace": "default"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": "x".repeat(kib << 10)}})
}

#[test]
fn passes_with_large_payloads_wait_for_each_other_and_all_of_them_end() {
    run(async {
        let world = Arc::new(World::of("large", 1).await);
        world.syncset(1, "a", &[heavy("a", 3 << 10)], &json!({})).await;
        let snapshot = Arc::new(world.snapshot().await);
        let passes: Vec<_> = (0..8)
            .map(|_| {
                let (world, snapshot) = (Arc::clone(&world), Arc::clone(&snapshot));
                tokio::spawn(async move {
                    let prepared = world.whole(&snapshot).await.expect("an input");
                    tokio::task::yield_now().await;
                    bodies(&prepared.input.live, "a").len()
                })
            })
            .collect();
        for pass in passes {
            assert_eq!(pass.await.expect("no panic"), 1);
        }
    });
}

/// Whatever is due: the sizes of syncsets and Secrets are known before they are read.
#[test]
fn of_syncsets_that_are_too_large_together_the_same_ones_are_left_out_in_each_pass() {
    run(async {
        let world = World::of("too_large", 1).await;
        let mapping = json!({"secretMappings": [{"sourceRef": {"name": "pull", "namespace": "foo"},
            "targetRef": {"name": "copy", "namespace": "default"}}]});
        world.put(Kind::Secret, 50, "pull", &json!({"type": "Opaque"}), Some(&vec![b' '; 2 << 20])).await;
        for (id, name, kib, more) in [
            (1, "a", 3 << 10, json!({})),
            (2, "b", 1 << 10, mapping),
            (3, "c", 3 << 10, json!({})),
            (4, "d", 1, json!({})),
        ] {
            world.syncset(id, name, &[heavy(name, kib)], &more).await;
        }
        let rows = vec![wanted(3, "c", true), wanted(1, "dropped", true)];
        world.store.save(&world.claim, &Writes { applied: rows, ..Writes::default() }, None).await.expect("stored");
        let snapshot = world.snapshot().await;
        let left_out = |live: &[Live]| {
            let failure = |live: &Live| Some((live.header.name.name.clone(), live.obstacle()?.message.clone()));
            live.iter().filter_map(failure).collect::<BTreeMap<_, _>>()
        };
        let first = world.whole(&snapshot).await.expect("an input").input;
        let out = left_out(&first.live);
        assert_eq!(out.keys().collect::<Vec<_>>(), ["c"], "{out:?}");
        let told = "the syncsets of this cluster have more than 8 MiB together: no room is left for the ";
        assert!(out["c"].starts_with(told), "{out:?}");
        for name in ["a", "b", "d"] {
            assert!(bodies(&first.live, name)[0].is_ok(), "{name}");
        }
        // Objects that a left out syncset has sent count as wanted, and it might want any other object.
        let everything = Wanted::new(&first.live, &first.applied, |_| Scope::Namespaced);
        assert!(everything.winner(&object("c")).is_some() && everything.winner(&object("dropped")).is_none());
        assert!(everything.may_want(&object("dropped")), "nothing is deleted");
        for due in [due(&[3]), due(&[4])] {
            let again = world.prepared(&snapshot, &due).await.expect("an input").input;
            assert_eq!(left_out(&again.live), out, "{due:?}");
        }
        world.syncset(1, "a", &[heavy("a", 1 << 10)], &json!({})).await;
        let after = world.whole(&world.snapshot().await).await.expect("an input").input;
        assert!(left_out(&after.live).is_empty(), "with room for it nothing is in doubt any more");
    });
}

/// Each pass keeps its share until it ends, as one does that sends it to a slow cluster.
#[test]
fn a_pass_with_large_syncsets_waits_for_as_long_as_it_has_patience_and_small_ones_need_not_wait() {
    run(async {
        let mut world = World::of("patience", 1 << 20).await;
        world.preparer = world.preparer.waiting_at_most(Duration::from_millis(50));
        world.syncset(1, "a", &[heavy("a", 3 << 10)], &json!({})).await;
        let large = world.snapshot().await;
        let held = [world.whole(&large).await.expect("an input"), world.whole(&large).await.expect("an input")];
        let refused = world.whole(&large).await.map(drop);
        assert!(matches!(refused, Err(PrepareError::NoBudget)), "{refused:?}");
        world.syncset(2, "b", &[heavy("b", 200)], &json!({})).await;
        let small = world.snapshot().await;
        let only_second = due(&[2]);
        let passes = futures::future::join_all((0..12).map(|_| world.prepared(&small, &only_second))).await;
        assert!(passes.iter().all(Result::is_ok), "all at once, whatever else the cluster has");
        drop(held);
        assert!(world.whole(&small).await.is_ok());
    });
}

/// A tenant's clusters take long: their passes hold all that its namespace gets.
#[test]
fn however_much_the_passes_of_a_namespace_hold_those_of_another_one_have_as_much() {
    run(async {
        let mut world = World::of("budgets", 1 << 20).await;
        world.preparer = world.preparer.waiting_at_most(Duration::from_millis(50));
        let spec = |resources: &[Value]| {
            json!({"spec": {"clusterDeploymentRefs": [{"name": "c1"}], "resourceApplyMode": "Sync", "resources": resources,
                "patches": [], "secretMappings": []}})
        };
        let kubeconfig = b"\0not: a kubeconfig".as_slice();
        world.put_in("bar", (Kind::Cluster, 60, "c1"), &json!({}), Some(kubeconfig)).await;
        for (namespace, ids) in [("foo", [1, 2]), ("bar", [3, 4])] {
            let (large, small) = (spec(&[heavy("a", 3 << 10)]), spec(&[heavy("b", 200)]));
            world.put_in(namespace, (Kind::SyncSet, ids[0], "a"), &large, None).await;
            world.put_in(namespace, (Kind::SyncSet, ids[1], "b"), &small, None).await;
        }
        let (foo, bar) = (
            world.snapshot().await,
            world.store.snapshot_within(id(60), usize::MAX).await.expect("a snapshot").expect("there is room"),
        );
        // As many as get their share, which they all keep.
        let most = async |snapshot: &Snapshot, syncset: u8| {
            let mut held = Vec::new();
            loop {
                match world.prepared(snapshot, &due(&[syncset])).await {
                    Ok(prepared) => held.push(prepared),
                    Err(PrepareError::NoBudget) => return held,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let of_foo = [most(&foo, 1).await, most(&foo, 2).await];
        let of_bar = [most(&bar, 3).await, most(&bar, 4).await];
        assert_eq!(of_foo.each_ref().map(Vec::len), [2, 20]);
        assert_eq!(of_bar.each_ref().map(Vec::len), [2, 20]);
    });
}

#[test]
fn a_kubeconfig_is_opened_with_the_keys_of_now() {
    run(async {
        let world = World::of("kubeconfigs", 1 << 20).await;
        let mut stored = world.snapshot().await.cluster.expect("a cluster");
        let read =
            |stored: &StoredCluster| world.preparer.open(stored).and_then(|opened| opened.read(Allowed::default()));
        let refused = read(&stored).expect_err("no kubeconfig");
        assert!(matches!(refused, NoCredentials::Invalid(_)), "{refused:?}");
        let kubeconfig = json!({"clusters": [{"name": "a", "cluster": {"server": "https://west.test"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a"});
        let keyring = Keyring::parse(&format!("k1 {}=", "A".repeat(43)).into()).expect("keys");
        let text = kubeconfig.to_string();
        stored.sealed = keyring.seal(&stored.document.key(), stored.document.id, text.as_bytes(), [7; 12]).ok();
        let unknown = read(&stored).expect_err("no key");
        assert!(matches!(unknown, NoCredentials::Sealed(_)), "{unknown:?}");
        world.keys.send_replace(Arc::new(keyring));
        let credentials = read(&stored).expect("a kubeconfig");
        assert_eq!(credentials.config.cluster_url.to_string(), "https://west.test/");
        // Somebody who writes to the database and has no key: he copies the value to another cluster, gives this one the name of another
        // one, or stores a kubeconfig of his own.
        let sealed_as = |id, namespace: &str, value: &[u8]| {
            let mut stored = stored.clone();
            (stored.document.id, stored.sealed) = (id, Some(value.to_vec()));
            stored.document.namespace = namespace.to_owned();
            read(&stored).expect_err("refused")
        };
        let (own, sealed) = (stored.document.id, stored.sealed.clone().expect("it is sealed"));
        let plain = [b"\0", text.as_bytes()].concat();
        let mismatch = || NoCredentials::Sealed(OpenError::Mismatch { key: "k1".to_owned() });
        assert_eq!(sealed_as(id(99), "foo", &sealed), mismatch());
        assert_eq!(sealed_as(own, "bar", &sealed), mismatch());
        assert_eq!(sealed_as(own, "foo", &plain), NoCredentials::Sealed(OpenError::Unsealed));
        stored.sealed = None;
        assert_eq!(read(&stored).expect_err("none"), NoCredentials::Missing);
    });
}

/// Users write kubeconfigs, and choose how long it takes to read one.
#[test]
fn a_kubeconfig_is_read_on_threads_of_its_own_and_only_if_it_is_new() {
    run(async {
        let world = World::of("threads", 1 << 20).await;
        let mut stored = world.snapshot().await.cluster.expect("a cluster");
        let kubeconfig = json!({"clusters": [{"name": "a", "cluster": {"server": "https://west.test"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a"});
        stored.sealed = Some([b"\0", kubeconfig.to_string().as_bytes()].concat());
        // All threads are busy until this is dropped.
        let (free, freed) = std::sync::mpsc::sync_channel::<()>(0);
        let freed = Arc::new(parking_lot::Mutex::new(freed));
        let (begun, mut beginnings) = tokio::sync::mpsc::channel(4);
        for _ in 0..4 {
            let (blocking, freed, begun) = (world.preparer.blocking().clone(), Arc::clone(&freed), begun.clone());
            tokio::spawn(async move {
                let wait = move || {
                    begun.blocking_send(()).expect("the test listens");
                    let _freed = freed.lock().recv();
                    Ok::<_, NoClient>(())
                };
                blocking.apart(wait).await
            });
        }
        for _ in 0..4 {
            beginnings.recv().await.expect("it has begun");
        }
        let clusters = Arc::new(DynamicClusters::of_many(LIMIT, NonZeroUsize::MIN, "test", DeniedNetworks::default()));
        let opened = world.preparer.open(&stored).expect("it opens");
        let fingerprint = opened.fingerprint();
        let mut client = Box::pin(world.preparer.client(&clusters, &stored, opened));
        assert!(client.as_mut().now_or_never().is_none(), "it waits for a thread");
        drop(free);
        let client = client.await.expect("a client");
        assert_eq!(client.fingerprint(), fingerprint, "by which it is known without being read again");
    });
}

/// A cluster that takes what it is sent and refuses to delete it may have any number of them.
#[test]
fn a_cluster_with_too_many_rows_is_refused_and_not_read_to_the_end() {
    run(async {
        let world = World::of("rows", 1 << 20).await;
        let writes = Writes { applied: vec![wanted(1, "object", true)], ..Writes::default() };
        world.store.save(&world.claim, &writes, None).await.expect("it is stored");
        let copy = async |more: usize| {
            let text = format!(
                "insert into towline_applied select (jsonb_populate_record(a, jsonb_build_object('name', 'copy-' || n))).* \
                 from towline_applied a, generate_series(1, {more}) n where a.name = 'object' on conflict do nothing"
            );
            world.stage.run(&text).await;
        };
        copy(MOST_ROWS - 1).await;
        let snapshot = world.snapshot().await;
        let input = world.whole(&snapshot).await.expect("an input").input;
        assert_eq!(input.applied.len(), MOST_ROWS);
        copy(MOST_ROWS + 100).await;
        let refused = world.whole(&snapshot).await.map(drop);
        assert!(matches!(refused, Err(PrepareError::TooManyObjects)), "{refused:?}");
        let content = world.store.content(Some(world.claim.cluster), &Lacking::default()).await;
        let content = content.expect("content");
        assert_eq!(content.sent.applied.len(), MOST_ROWS + 1);
    });
}
