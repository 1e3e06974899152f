//! The dispatcher: which clusters it asks for, that it loses no change and moves no cursor that is not its own, and what it costs.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use serde_json::{Value, json};
use towline::test_api::actor::Scope;
use towline::test_api::cluster::Clock;
use towline::test_api::documents::{
    Change, Claims, Expected, Grant, Holder, Item, Keeps, Key, Kind, Role, Row, compact, renumber,
};
use towline::test_api::syncset::SyncsetMetrics;
use towline::test_api::syncset::dispatch::{Batch, Dispatch, DispatchError, DispatchObserver, Dispatcher};

use crate::documents::claims::Running;
use crate::documents::world::{LIMIT, Stage, Written, cluster, create, item, put, row, run};

pub(crate) const CURSOR: &str = "select cursor from towline_claim where name = 'dispatcher'";
pub(crate) const NEWEST: &str = "select greatest(base, (select max(version) from towline_log)) from towline_meta";
const WORK: &str = "select count(*) from towline_work";

/// A dispatcher in this process that makes a batch when a test wants it.
pub(crate) struct Leader {
    pub(crate) dispatch: Dispatch,
    pub(crate) grant: Grant,
    _claims: Running,
}

impl Leader {
    pub(crate) async fn of(stage: &Stage) -> Self {
        let claims = Claims::new(&stage.database(), Holder::of_this_process(), Clock::Boot);
        let mut leadership = claims.role(Role::Dispatcher);
        let claims = Running::start(claims);
        Self { dispatch: Dispatch::new(stage.database()), grant: leadership.granted().await, _claims: claims }
    }

    pub(crate) async fn batch(&self) -> Batch {
        self.dispatch.batch(&self.grant).await.expect("a batch")
    }

    /// Dispatches until nothing is left to dispatch.
    pub(crate) async fn all(&self) -> u64 {
        let mut asked = 0;
        loop {
            let batch = self.batch().await;
            asked += batch.asked;
            if batch == Batch::default() {
                return asked;
            }
        }
    }

    /// A batch that is killed after so many steps, unless it ends before.
    async fn killed(&self, mut steps: usize) {
        let mut batch = pin!(self.dispatch.batch(&self.grant));
        poll_fn(|context| {
            steps -= 1;
            if steps == 0 || batch.as_mut().poll(context).is_ready() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

fn key(kind: Kind, name: &str) -> Key {
    Key::new(kind, if kind.is_namespaced() { "foo" } else { "" }, name)
}

/// A document of which a test says only what matters.
pub(crate) fn document(kind: Kind, name: &str, generation: i64, data: Value, labels: &[(&str, &str)]) -> Item {
    let Value::Object(data) = data else { panic!("data of a document") };
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    item(vec![Change::put(&key(kind, name), Expected::Any, Row { generation, data, labels, ..row() })])
}

pub(crate) fn removal(kind: Kind, name: &str) -> Item {
    item(vec![Change::delete(&key(kind, name), Expected::Any)])
}

/// The names of the clusters that were asked for since the last call.
pub(crate) async fn asked(stage: &Stage) -> BTreeSet<String> {
    let text = "with w as (delete from towline_work returning cluster) select c.name from w join clusters c on c.id = w.cluster";
    stage.sql.query(text, &[]).await.expect("rows").iter().map(|row| row.get(0)).collect()
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

#[test]
fn each_kind_of_change_asks_for_the_clusters_that_it_concerns() {
    run(async {
        let stage = Stage::new("concerned").await;
        let writer = stage.writer();
        for (name, labels) in [("c1", [("env", "prod")]), ("c2", [("env", "prod")]), ("c3", [("env", "test")])] {
            writer.version(document(Kind::Cluster, name, 1, json!({}), &labels)).await;
        }
        let leader = Leader::of(&stage).await;
        assert!(leader.batch().await.was_gap, "the first start");
        leader.all().await;
        assert_eq!(asked(&stage).await, names(["c1", "c2", "c3"]));
        let refs = |names: &[&str]| {
            let refs: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
            json!({"spec": {"clusterDeploymentRefs": refs,
                "secretMappings": [{"sourceRef": {"namespace": "foo", "name": "pull"}, "targetRef": {"name": "x"}}]}})
        };
        let selects = |env: &str, namespaces: Value| json!({"spec": {"clusterDeploymentSelector": {"matchLabels": {"env": env}}, "clusterNamespaces": namespaces}});
        let mapping = json!({"spec": {"clusterDeploymentSelector": {"matchExpressions": [
            {"key": "env", "operator": "NotIn", "values": ["prod"]}]}, "clusterNamespaces": ["f*"],
            "secretMappings": [{"sourceRef": {"namespace": "foo", "name": "ca"}}]}});
        let rolls = |mapped: &[&str]| {
            let mappings: Vec<Value> =
                mapped.iter().map(|name| json!({"sourceRef": {"namespace": "foo", "name": name}})).collect();
            json!({"spec": {"clusterDeploymentRefs": [{"name": "c1"}], "secretMappings": mappings, "rollout": {"waves": []}}})
        };
        let with_status = {
            let mut item = document(Kind::Cluster, "c1", 1, json!({}), &[("env", "prod")]);
            if let Some(row) = &mut item.changes[0].row {
                row.status.insert("seen".to_owned(), json!(true));
            }
            item
        };
        for (what, item, expected) in [
            ("a new syncset", document(Kind::SyncSet, "s", 1, refs(&["c1", "c9"]), &[]), names(["c1"])),
            ("other references", document(Kind::SyncSet, "s", 2, refs(&["c2"]), &[]), names(["c1", "c2"])),
            (
                "a selector",
                document(Kind::SelectorSyncSet, "t", 1, selects("prod", json!(["*"])), &[]),
                names(["c1", "c2"]),
            ),
            (
                "another selector",
                document(Kind::SelectorSyncSet, "t", 2, selects("test", json!(["foo"])), &[]),
                names(["c1", "c2", "c3"]),
            ),
            (
                "other namespaces",
                document(Kind::SelectorSyncSet, "t", 3, selects("test", json!(["fo-*"])), &[]),
                names(["c3"]),
            ),
            ("none of its namespaces", removal(Kind::SelectorSyncSet, "t"), names([])),
            ("a selector by absence", document(Kind::SelectorSyncSet, "u", 1, mapping, &[]), names(["c3"])),
            ("a secret of a syncset", document(Kind::Secret, "pull", 1, json!({}), &[]), names(["c2"])),
            ("a secret of a selector", document(Kind::Secret, "ca", 1, json!({}), &[]), names(["c3"])),
            ("a secret of nobody", document(Kind::Secret, "other", 1, json!({}), &[]), names([])),
            ("a syncset with a rollout", document(Kind::SyncSet, "r", 1, rolls(&["old", "both"]), &[]), names(["c1"])),
            ("another content", document(Kind::SyncSet, "r", 2, rolls(&["new", "both"]), &[]), names([])),
            ("a secret of an earlier revision", document(Kind::Secret, "old", 1, json!({}), &[]), names(["c1"])),
            ("a secret of the newest one", document(Kind::Secret, "new", 1, json!({}), &[]), names(["c1"])),
            ("the end of a rollout", removal(Kind::SyncSet, "r"), names(["c1"])),
            ("a secret of what is gone", document(Kind::Secret, "old", 2, json!({}), &[]), names([])),
            ("a status", with_status, names([])),
            ("a status of a pass", document(Kind::ClusterSync, "c1", 1, json!({}), &[]), names([])),
            ("a label", document(Kind::Cluster, "c1", 1, json!({}), &[("env", "test")]), names(["c1"])),
            ("the end of a syncset", removal(Kind::SyncSet, "s"), names(["c2"])),
            ("a removed cluster", removal(Kind::Cluster, "c2"), names([])),
        ] {
            writer.version(item).await;
            leader.all().await;
            assert_eq!(asked(&stage).await, expected, "{what}");
            assert_eq!(stage.number(CURSOR).await, stage.number(NEWEST).await, "{what}");
        }
    });
}

/// A cluster of the model: whether it exists, and its label.
type Labels = [Option<u64>; 12];

/// Numbers that look random, and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Test 3 of the bus: killed before and after each of its statements, it asks for exactly whom the changes concern.
#[test]
fn a_dispatcher_that_is_killed_at_any_statement_asks_for_exactly_whom_the_changes_concern() {
    run(async {
        let stage = Stage::new("killed").await;
        let writer = stage.writer();
        let leader = Leader::of(&stage).await;
        let mut dice = Dice(7);
        let mut clusters: Labels = [None; 12];
        // The label that a selector selects, and the clusters that a syncset names.
        let (mut selectors, mut refs) = ([None::<u64>; 4], [const { BTreeSet::<usize>::new() }; 4]);
        writer.version(document(Kind::Secret, "other", 1, json!({}), &[])).await;
        leader.all().await;
        for round in 0..15_i64 {
            let mut expected = BTreeSet::new();
            let with_label = |clusters: &Labels, label: Option<u64>| -> Vec<usize> {
                (0..12).filter(|at| label.is_some() && clusters[*at] == label).collect()
            };
            for step in 0..8_i64 {
                let generation = round * 8 + step + 2;
                let at = usize::try_from(dice.below(12)).expect("small");
                match dice.below(4) {
                    0 if clusters[at].is_some() && dice.below(3) == 0 => {
                        clusters[at] = None;
                        writer.version(removal(Kind::Cluster, &format!("c{at}"))).await;
                    }
                    0 | 1 => {
                        let label = dice.below(3);
                        let is_same = clusters[at] == Some(label);
                        clusters[at] = Some(label);
                        let (name, text) = (format!("c{at}"), label.to_string());
                        writer.version(document(Kind::Cluster, &name, 1, json!({}), &[("l", &text)])).await;
                        if !is_same {
                            expected.insert(at);
                        }
                    }
                    2 => {
                        let at = at % 4;
                        expected.extend(with_label(&clusters, selectors[at]));
                        selectors[at] = (dice.below(4) > 0).then(|| dice.below(3));
                        expected.extend(with_label(&clusters, selectors[at]));
                        let name = format!("t{at}");
                        writer
                            .handle
                            .write(match selectors[at] {
                                Some(label) => {
                                    let selector = json!({"matchExpressions": [
                                        {"key": "l", "operator": "In", "values": [label.to_string()]}]});
                                    let data = json!({"spec": {"clusterDeploymentSelector": selector}});
                                    document(Kind::SelectorSyncSet, &name, generation, data, &[])
                                }
                                None => removal(Kind::SelectorSyncSet, &name),
                            })
                            .await
                            .expect("it is written");
                    }
                    _ => {
                        let of = at % 4;
                        let exists = |at: &usize| clusters[*at].is_some();
                        expected.extend(refs[of].iter().copied().filter(exists));
                        refs[of] =
                            (0..dice.below(3)).map(|_| usize::try_from(dice.below(12)).expect("small")).collect();
                        expected.extend(refs[of].iter().copied().filter(exists));
                        let named: Vec<Value> = refs[of].iter().map(|at| json!({"name": format!("c{at}")})).collect();
                        let data = json!({"spec": {"clusterDeploymentRefs": named}});
                        writer.version(document(Kind::SyncSet, &format!("s{of}"), generation, data, &[])).await;
                    }
                }
            }
            for steps in [dice.below(6) + 1, dice.below(14) + 1, dice.below(30) + 1] {
                leader.killed(usize::try_from(steps).expect("small")).await;
            }
            leader.all().await;
            let expected: BTreeSet<String> =
                expected.into_iter().filter(|at| clusters[*at].is_some()).map(|at| format!("c{at}")).collect();
            assert_eq!(asked(&stage).await, expected, "round {round}");
        }
        assert_eq!(stage.number(CURSOR).await, stage.number(NEWEST).await);
    });
}

#[test]
fn a_leader_that_was_replaced_moves_no_cursor_and_asks_for_nobody() {
    run(async {
        let stage = Stage::new("replaced").await;
        stage.writer().version(create("c1")).await;
        let leader = Leader::of(&stage).await;
        leader.all().await;
        let cursor = stage.number(CURSOR).await;
        stage.writer().version(put("c1")).await;
        asked(&stage).await;
        // Of another token, of another holder, and ended.
        for (taken, given_back) in [
            ("token = token + 1", "token = token - 1"),
            ("holder = holder || 'x'", "holder = left(holder, -1)"),
            ("until = now() - interval '1 s'", "until = now() + interval '30 s'"),
        ] {
            stage.run(&format!("update towline_claim set {taken} where name = 'dispatcher'")).await;
            let error = leader.dispatch.batch(&leader.grant).await.expect_err("it must not");
            assert!(matches!(error, DispatchError::ClaimLost), "{taken}: {error}");
            assert_eq!((stage.number(CURSOR).await, stage.number(WORK).await), (cursor, 0), "{taken}");
            // Neither over changes that concern nobody.
            stage.run(&format!("update towline_claim set {given_back} where name = 'dispatcher'")).await;
        }
        leader.all().await;
        assert_eq!(asked(&stage).await.len(), 0, "the same labels and generation concern nobody");
        let cursor = stage.number(CURSOR).await;
        stage.writer().version(put("c1")).await;
        stage.run("update towline_claim set token = token + 1 where name = 'dispatcher'").await;
        let error = leader.dispatch.batch(&leader.grant).await.expect_err("it must not");
        assert!(matches!(error, DispatchError::ClaimLost) && stage.number(CURSOR).await == cursor, "{error}");
    });
}

#[test]
fn what_is_missing_in_the_log_asks_for_all_clusters_and_removes_what_is_left_of_others() {
    run(async {
        let stage = Stage::new("missing").await;
        let writer = stage.writer();
        for name in ["c1", "c2", "c3"] {
            writer.version(create(name)).await;
        }
        let leader = Leader::of(&stage).await;
        leader.all().await;
        let rows = "insert into towline_cluster (cluster, kubeconfig_generation, attempts, next_full) \
             select id, 1, 0, now() + interval '1 h' from clusters";
        stage.run(rows).await;
        writer.version(item(vec![Change::delete(&cluster("c3"), Expected::Any)])).await;
        let newest = stage.number(NEWEST).await;
        stage.run(&format!("update towline_meta set base = {newest}")).await;
        assert_eq!(stage.number(WORK).await, 3);
        let batch = leader.batch().await;
        assert_eq!((batch.was_gap, batch.asked), (true, 2));
        assert_eq!(asked(&stage).await, names(["c1", "c2"]));
        assert_eq!(stage.number("select count(*) from towline_cluster where next_full is not null").await, 2);
        assert_eq!((stage.number(CURSOR).await, leader.batch().await), (newest, Batch::default()));
        // Versions were lost: clusters may hold what nobody knows of any more.
        renumber(&stage.database(), true).await.expect("it is renumbered");
        stage.run("update towline_claim set until = now()").await;
        let next = Leader::of(&stage).await;
        let batch = next.batch().await;
        assert_eq!((batch.was_gap, batch.asked), (true, 2));
        assert_eq!(
            stage.number("select count(*) from towline_cluster where next_full is null and resyncs = 1").await,
            2
        );
        assert_eq!(next.batch().await, Batch::default());
        // A cursor from a future that was lost.
        stage.run("update towline_claim set cursor = cursor + 1000 where name = 'dispatcher'").await;
        assert!(next.batch().await.was_gap);
        assert_eq!(stage.number("select count(*) from towline_cluster where resyncs = 2").await, 2);
    });
}

/// A removed cluster may have had any number of objects: no statement deletes all of their rows.
#[test]
fn the_rows_of_removed_clusters_are_deleted_some_at_a_time() {
    run(async {
        let stage = Stage::new("manyrows").await;
        let writer = stage.writer();
        for name in ["c1", "c2"] {
            writer.version(create(name)).await;
        }
        let leader = Leader::of(&stage).await;
        leader.all().await;
        stage
            .run(
                "insert into towline_applied select c.id, '', 'ConfigMap', 'ns', 'm-' || n, gen_random_uuid(), 'v1', null, true, true, false, \
                   null, null, null, 0 from clusters c, generate_series(1, 22000) n; \
                 create table deleted (rows bigint); \
                 create function count_deleted() returns trigger language plpgsql as $$ \
                   begin insert into deleted select count(*) from old_rows; return null; end $$; \
                 create trigger counted after delete on towline_applied referencing old table as old_rows \
                   for each statement execute function count_deleted()",
            )
            .await;
        writer.version(item(vec![Change::delete(&cluster("c1"), Expected::Any)])).await;
        leader.all().await;
        assert_eq!(stage.number("select count(*) from towline_applied").await, 22_000, "those of the other cluster");
        let [most, all] = ["max", "sum"].map(|what| format!("select {what}(rows)::int8 from deleted"));
        assert_eq!((stage.number(&most).await, stage.number(&all).await), (20_000, 22_000));
    });
}

#[test]
fn compaction_keeps_what_was_not_dispatched() {
    run(async {
        let stage = Stage::new("undispatched").await;
        stage.writer().version(create("c1")).await;
        let claims = Claims::new(&stage.database(), Holder::of_this_process(), Clock::Boot);
        let (mut dispatcher, mut compaction) = (claims.role(Role::Dispatcher), claims.role(Role::Compaction));
        let _running = Running::start(claims);
        let (grant, compacts) = (dispatcher.granted().await, compaction.granted().await);
        let dispatch = Dispatch::new(stage.database());
        while dispatch.batch(&grant).await.expect("a batch") != Batch::default() {}
        let cursor = stage.number(CURSOR).await;
        stage
            .run(
                "insert into towline_log select n, now() - interval '2 h', gen_random_uuid(), 'clusters', \
                   (select id from clusters), 'foo', 'c1', '{}', n - 1, jsonb_build_object('generation', n) \
                 from generate_series((select max(version) + 1 from towline_log), 3000) n; select setval('towline_version', 3000); \
                 update towline_log set at = now() - interval '2 h'",
            )
            .await;
        let keeps = Keeps { log: Duration::from_hours(1), history: Duration::from_hours(1), records: 1_000 };
        compact(&stage.database(), &compacts, keeps).await.expect("a step");
        assert_eq!(stage.number("select base from towline_meta").await, cursor);
        assert_eq!(dispatch.batch(&grant).await.expect("a batch").changes, 500);
        while dispatch.batch(&grant).await.expect("a batch") != Batch::default() {}
        assert_eq!(stage.number(CURSOR).await, 3000);
        compact(&stage.database(), &compacts, keeps).await.expect("a step");
        assert_eq!(stage.number("select base from towline_meta").await, 2001);
    });
}

/// Statements of the dispatcher since the last call, by the beginnings of their texts.
pub(crate) async fn statements(stage: &Stage, beginning: &str) -> i64 {
    stage
        .number(&format!(
            "select coalesce(sum(calls), 0)::bigint from statistics.pg_stat_statements s \
             where s.dbid = (select oid from pg_database where datname = current_database()) and query like '{beginning}%'"
        ))
        .await
}

/// Whoever maps a Secret by many syncsets with thousands of clusters each has all of these read with each change of the Secret.
#[test]
fn a_changed_secret_concerns_the_clusters_that_its_syncsets_name_and_all_of_their_namespace_if_these_are_large() {
    run(async {
        let stage = Stage::new("large_mappers").await;
        let (writer, leader) = (stage.writer(), Leader::of(&stage).await);
        for name in ["c1", "c2"] {
            writer.version(document(Kind::Cluster, name, 1, json!({}), &[])).await;
        }
        let mappings = json!([{"sourceRef": {"namespace": "foo", "name": "pull"}}]);
        let data = json!({"spec": {"clusterDeploymentRefs": [{"name": "c1"}], "secretMappings": mappings}});
        writer.version(document(Kind::SyncSet, "s", 1, data, &[])).await;
        leader.all().await;
        for (kib, expected) in [(1, names(["c1"])), (1_024, names(["c1"])), (1_025, names(["c1", "c2"]))] {
            stage.run(&format!("update towline_documents set kib = {kib} where kind = 'syncsets'")).await;
            asked(&stage).await;
            writer.version(document(Kind::Secret, "pull", kib, json!({}), &[])).await;
            leader.all().await;
            assert_eq!(asked(&stage).await, expected, "{kib} KiB");
        }
    });
}

/// What can't be read holds no change.
#[test]
fn a_changed_secret_concerns_all_clusters_if_its_selector_syncsets_are_large_or_can_not_be_read() {
    run(async {
        let stage = Stage::new("large_selectors").await;
        let (writer, leader) = (stage.writer(), Leader::of(&stage).await);
        for (name, labels) in [("c1", [("env", "prod")]), ("c2", [("env", "test")])] {
            writer.version(document(Kind::Cluster, name, 1, json!({}), &labels)).await;
        }
        let mappings = json!([{"sourceRef": {"namespace": "foo", "name": "pull"}}]);
        let selector = json!({"matchLabels": {"env": "prod"}});
        let data = json!({"spec": {"clusterDeploymentSelector": selector, "secretMappings": mappings}});
        writer.version(document(Kind::SelectorSyncSet, "t", 1, data, &[])).await;
        leader.all().await;
        let kib = |kib: i64| format!("update towline_documents set kib = {kib} where kind = 'selectorsyncsets'");
        let unreadable = "alter table selectorsyncsets rename to unreadable".to_owned();
        let cases = [(kib(1_024), names(["c1"])), (kib(1_025), names(["c1", "c2"])), (kib(1), names(["c1"]))];
        for (generation, (change, expected)) in (1..).zip([&cases[..], &[(unreadable, names(["c1", "c2"]))]].concat()) {
            stage.run(&change).await;
            asked(&stage).await;
            writer.version(document(Kind::Secret, "pull", generation, json!({}), &[])).await;
            leader.all().await;
            assert_eq!(asked(&stage).await, expected, "{change}");
        }
    });
}

#[test]
fn a_turn_is_one_read_and_one_transaction_however_many_clusters_it_asks_for() {
    run(async {
        let stage = Stage::new("counted").await;
        stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let writer = stage.writer();
        let leader = Leader::of(&stage).await;
        leader.all().await;
        stage
            .run(
                "insert into towline_documents select 'clusters', gen_random_uuid(), 'foo', 'n' || n, '{\"env\": \"prod\"}', '{}', \
                 '{}', 1, 1, now(), now(), null, '{}', '{}' from generate_series(1, 2000) n; analyze clusters",
            )
            .await;
        writer.version(document(Kind::Secret, "other", 1, json!({}), &[])).await;
        leader.all().await;
        let texts = [
            "select (m.origin",
            "BEGIN",
            "select set_config(% from towline_claim",
            "select i.id::text, d.id",
            "with has as materialized",
            "insert into towline_guard",
            "select c.id::text from clusters",
            "with asked as",
            "update towline_claim set cursor",
            "COMMIT",
        ];
        let counts = async || {
            let mut counts = Vec::new();
            for text in texts {
                counts.push(statements(&stage, text).await);
            }
            counts
        };
        let selector = json!({"spec": {"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}}}});
        for generation in 1..3 {
            writer.version(document(Kind::SelectorSyncSet, "t", generation, selector.clone(), &[])).await;
            let before = counts().await;
            let batch = leader.batch().await;
            assert_eq!((batch.changes, batch.asked), (1, 2_000));
            let after = counts().await;
            let spent: Vec<i64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
            assert_eq!(spent, [1; 10], "{texts:?}");
        }
        let before = counts().await;
        assert_eq!(leader.batch().await, Batch::default());
        let after = counts().await;
        let spent: Vec<i64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
        assert_eq!(spent, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0], "idle");
        assert_eq!(stage.number(WORK).await, 2_000);
    });
}

#[test]
fn a_turn_ends_where_its_documents_come_to_eight_mebibytes() {
    run(async {
        let stage = Stage::new("heavy").await;
        let writer = stage.writer();
        let leader = Leader::of(&stage).await;
        writer.version(create("c1")).await;
        leader.all().await;
        // Each names so many clusters that it prints about a mebibyte.
        let refs: Vec<Value> = (0..10_000).map(|n| json!({"name": format!("{}{n}", "c".repeat(85))})).collect();
        for number in 0..10 {
            let data = json!({"spec": {"clusterDeploymentRefs": refs}});
            writer.version(document(Kind::SyncSet, &format!("s{number}"), 1, data, &[])).await;
        }
        let mut batches = Vec::new();
        while batches.iter().sum::<usize>() < 10 {
            let batch = leader.batch().await;
            assert_eq!(batch.has_more, batches.iter().sum::<usize>() + batch.changes < 10);
            batches.push(batch.changes);
        }
        assert!(batches.len() >= 2 && batches[0] > 1, "{batches:?}");
        assert_eq!((leader.batch().await, stage.number(CURSOR).await), (Batch::default(), stage.number(NEWEST).await));
    });
}

#[test]
fn a_row_that_can_not_be_read_stops_nothing() {
    run(async {
        let stage = Stage::new("malformed").await;
        let writer = stage.writer();
        writer.version(create("c1")).await;
        let leader = Leader::of(&stage).await;
        leader.all().await;
        for document in
            ["{\"generation\": \"x\"}", "{\"generation\": 1.5, \"labels\": 3, \"data\": 7}", "[1]", "3", "{}"]
        {
            let row = format!(
                "insert into towline_log select max(version) + 1, now(), gen_random_uuid(), 'syncsets', gen_random_uuid(), \
                   'foo', 'x', '{{}}', null, '{document}' from towline_log; \
                 select setval('towline_version', (select max(version) from towline_log))"
            );
            stage.run(&row).await;
            asked(&stage).await;
            let batch = leader.batch().await;
            assert_eq!((batch.changes, batch.asked), (1, 1), "{document}: it may concern all");
        }
        assert_eq!(stage.number(CURSOR).await, stage.number(NEWEST).await);
    });
}

/// Drains the actor after two batches.
struct TwoBatches {
    batches: AtomicUsize,
    drain: Box<dyn Fn() + Send + Sync>,
}

impl DispatchObserver for TwoBatches {
    fn dispatched(&self, batch: Batch) {
        assert!(batch.has_more, "{batch:?}");
        if self.batches.fetch_add(1, Ordering::SeqCst) == 1 {
            (self.drain)();
        }
    }
}

#[test]
fn what_is_not_needed_any_more_goes_also_while_there_is_always_more_to_read() {
    run(async {
        let stage = Stage::new("always_more").await;
        stage.writer().version(create("c1")).await;
        Leader::of(&stage).await.all().await;
        stage
            .run(
                "update towline_claim set until = now(); \
                 insert into towline_guard values (gen_random_uuid(), 1, true, false, 0, now() - interval '2 h'); \
                 insert into towline_log select m.version + n, now(), gen_random_uuid(), 'clustersyncs', gen_random_uuid(), 'foo', 'c1', \
                   '{}', m.version, '{\"generation\": 1}' \
                 from (select max(version) as version from towline_log) m, generate_series(1, 5000) n; \
                 select setval('towline_version', (select max(version) from towline_log))",
            )
            .await;
        let claims = Claims::new(&stage.database(), Holder::of_this_process(), Clock::Boot);
        let leadership = claims.role(Role::Dispatcher);
        let _claims = Running::start(claims);
        let (scope, drain) = Scope::standalone("dispatcher");
        let observer = TwoBatches { batches: 0.into(), drain: Box::new(move || drain.cancel()) };
        let dispatcher = Dispatcher::new(Dispatch::new(stage.database()), leadership, std::sync::Arc::new(observer));
        let body = async { dispatcher.run(scope).await.map_err(|error| error.to_string()) };
        tokio::time::timeout(LIMIT, body).await.expect("it ends").expect("no failure");
        assert_eq!(stage.number("select count(*) from towline_guard").await, 0);
    });
}

#[test]
fn the_actor_dispatches_what_is_written_and_wakes_workers() {
    run(async {
        let stage = Stage::new("acting").await;
        let writer: Written = stage.writer();
        let claims = Claims::new(&stage.database(), Holder::of_this_process(), Clock::Boot);
        let leadership = claims.role(Role::Dispatcher);
        let _claims = Running::start(claims);
        let metrics = SyncsetMetrics::new(&"syncsets".parse().expect("a name"));
        let dispatcher = Dispatcher::new(Dispatch::new(stage.database()), leadership, std::sync::Arc::new(metrics));
        let (scope, drain) = Scope::standalone("dispatcher");
        let body = tokio::spawn(async move { dispatcher.run(scope).await.map_err(|error| error.to_string()) });
        for number in 1..=3 {
            writer.version(create(&format!("c{number}"))).await;
            stage.becomes("the cluster to be asked for", WORK, number).await;
        }
        drain.cancel();
        tokio::time::timeout(LIMIT, body).await.expect("it ends").expect("no panic").expect("no failure");
    });
}
