//! What the guard costs, in statements and transactions.

use serde_json::json;
use towline::test_api::documents::Kind;
use towline::test_api::syncset::dispatch::suspended;

use super::{PROD, TEST, World, of_env, selector};
use crate::documents::dispatch::{CURSOR, Leader, NEWEST, document, removal, statements};
use crate::documents::world::{Stage, run};

#[test]
fn many_syncsets_of_one_turn_are_all_checked_before_the_cursor_moves() {
    run(async {
        let world = World::new("many", 1).await;
        for number in 0..35 {
            let data =
                json!({"spec": {"clusterDeploymentRefs": [{"name": "c0"}], "resources": [], "secretMappings": []}});
            world.writes(document(Kind::SyncSet, &format!("s{number}"), 1, data, &[])).await;
        }
        assert_eq!(world.leader.batch().await.changes, 35);
        let checked =
            "select count(*) from towline_guard g join syncsets s on s.id = g.syncset where g.checked >= s.version";
        assert_eq!(world.stage.number(checked).await, 35);
        assert_eq!(world.stage.number(CURSOR).await, world.stage.number(NEWEST).await);
    });
}

/// 10,000 clusters with 5 objects of one syncset each.
#[test]
fn checking_costs_the_same_statements_however_many_clusters_there_are() {
    run(async {
        let stage = Stage::new("checked").await;
        stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let leader = Leader::of(&stage).await;
        let (writer, selects) = (stage.writer(), of_env("prod"));
        writer.version(selector(1, &selects, 5, &[])).await;
        leader.all().await;
        stage
            .run(
                "insert into towline_documents select 'clusters', gen_random_uuid(), 'foo', 'n' || n, '{\"env\": \"prod\"}', '{}', \
                 '{}', 1, 1, now(), now(), null, '{}', '{}' from generate_series(1, 10000) n; \
                 insert into towline_applied select c.id, '', 'ConfigMap', 'default', 'm' || n, s.id, 'v1', null, true, true, false, null, null, null, 0 \
                 from clusters c, selectorsyncsets s, generate_series(0, 4) n; analyze",
            )
            .await;
        let texts = [
            "select distinct t.syncset::text",
            "select i.id::text, d.id",
            "with has as materialized",
            "insert into towline_guard",
            "with r as materialized",
        ];
        let counts = async || {
            let mut counts = Vec::new();
            for text in texts {
                counts.push(statements(&stage, text).await);
            }
            counts
        };
        for (item, expected, is_held) in [
            (selector(2, &selects, 5, &[]), [0, 1, 1, 1, 1], false),
            (document(Kind::Cluster, "n1", 1, json!({}), &TEST), [1, 1, 2, 1, 1], false),
            (document(Kind::Cluster, "n2", 1, json!({}), &[("env", "prod"), ("x", "y")]), [1, 1, 1, 0, 0], false),
            (selector(3, &of_env("none"), 5, &[]), [0, 1, 1, 1, 1], true),
        ] {
            writer.version(item).await;
            let before = counts().await;
            let batch = leader.batch().await;
            assert_eq!((batch.changes, batch.suspended == 1), (1, is_held));
            let after = counts().await;
            let spent: Vec<i64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
            assert_eq!(spent, expected, "{texts:?}");
        }
        let suspended = suspended(&stage.database()).await.expect("a list");
        assert_eq!((suspended[0].clusters, suspended[0].tracks), (10_000, 10_000));
        writer.version(document(Kind::Cluster, "n1", 1, json!({}), &PROD)).await;
        writer.version(selector(4, &selects, 5, &[])).await;
        assert_eq!(leader.batch().await.resumed, 1);
    });
}

/// Whoever has many objects on his clusters may change their labels each second.
#[test]
fn the_syncsets_of_relabelled_clusters_are_found_without_a_look_at_their_objects() {
    run(async {
        const BLOCKS: &str = "select coalesce(sum(shared_blks_hit + shared_blks_read), 0)::bigint from statistics.pg_stat_statements s \
             where s.dbid = (select oid from pg_database where datname = current_database()) and query like 'select distinct t.syncset::text%'";
        let world = World::new("relabelled_many", 3).await;
        world.stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let many = "insert into towline_applied select c.id, '', 'ConfigMap', 'default', 'x' || n, s.id, 'v1', null, true, true, false, null, null, null, 0 \
             from clusters c, selectorsyncsets s, generate_series(1, 10000) n; analyze";
        world.stage.run(many).await;
        for number in 0..3 {
            world.relabels(number, &TEST).await;
        }
        assert_eq!(world.leader.batch().await.suspended, 1);
        let spent = world.stage.number(BLOCKS).await;
        assert!(0 < spent && spent < 100, "{spent} blocks for one syncset on three clusters with 30,000 objects");
    });
}

/// The log of all other documents is not searched for the last version of each.
#[test]
fn syncsets_that_are_gone_cost_the_same_however_much_was_written_after_them() {
    run(async {
        // Blocks that the statement has looked at.
        const BLOCKS: &str = "select coalesce(sum(shared_blks_hit + shared_blks_read), 0)::bigint from statistics.pg_stat_statements s \
             where s.dbid = (select oid from pg_database where datname = current_database()) and query like 'select i.id::text, d.id%'";
        let world = World::new("log_behind", 1).await;
        world.stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        for number in 0..10 {
            let data =
                json!({"spec": {"clusterDeploymentRefs": [{"name": "c0"}], "resources": [], "secretMappings": []}});
            world.changes(document(Kind::SyncSet, &format!("s{number}"), 1, data, &[])).await;
        }
        for number in 0..10 {
            world.writes(removal(Kind::SyncSet, &format!("s{number}"))).await;
        }
        world
            .stage
            .run(
                "insert into towline_log select m.version + n, now(), gen_random_uuid(), 'clustersyncs', \
                   (select id from clusters), 'foo', 'c0', '{}', m.version, '{\"generation\": 1}' \
                 from (select max(version) as version from towline_log) m, generate_series(1, 100000) n; \
                 select setval('towline_version', (select max(version) from towline_log))",
            )
            .await;
        let before = world.stage.number(BLOCKS).await;
        assert_eq!(world.leader.batch().await.changes, 500);
        let spent = world.stage.number(BLOCKS).await - before;
        assert!(0 < spent && spent < 2_000, "{spent} blocks for ten syncsets: the log behind them has as many");
        assert_eq!(world.stage.number("select count(*) from towline_guard where gone").await, 10);
    });
}
