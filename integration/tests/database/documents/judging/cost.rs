//! What judging costs, in statements and transactions.

use serde_json::{Value, json};
use towline::documents::Kind;
use towline::syncset::dispatch::held;
use towline::syncset::rules::guard::Cause;

use super::{Court, PROD, TEST, of_env, selector};
use crate::documents::dispatch::{CURSOR, Leader, NEWEST, document, removal, statements};
use crate::documents::world::{Stage, run};

#[test]
fn many_syncsets_of_one_turn_are_all_judged_before_the_cursor_moves() {
    run(async {
        let court = Court::new("many", 1).await;
        for number in 0..35 {
            let data =
                json!({"spec": {"clusterDeploymentRefs": [{"name": "c0"}], "resources": [], "secretMappings": []}});
            court.writes(document(Kind::SyncSet, &format!("s{number}"), 1, data, &[])).await;
        }
        assert_eq!(court.leader.turn().await.changes, 35);
        let judged =
            "select count(*) from towline_guard g join syncsets s on s.id = g.syncset where g.judged >= s.version";
        assert_eq!(court.stage.number(judged).await, 35);
        assert_eq!(court.stage.number(CURSOR).await, court.stage.number(NEWEST).await);
    });
}

/// 10,000 clusters with 5 objects of one syncset each.
#[test]
fn judging_costs_the_same_statements_however_many_clusters_there_are() {
    run(async {
        let stage = Stage::new("judged").await;
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
            "select i.id::text, d.id",
            "select i.id::text, t.cluster",
            "with again as",
            "insert into towline_guard",
            "with changed as materialized (select c.id",
            "select i.id::text, $2 + l.units",
            "select i.id::text, g.kind",
            "update towline_guard g",
            "select p.id::text, p.cluster",
        ];
        let counts = async || {
            let mut counts = Vec::new();
            for text in texts {
                counts.push(statements(&stage, text).await);
            }
            counts
        };
        for (item, expected, is_held) in [
            (selector(2, &selects, 4, &[]), [1, 1, 0, 1, 0, 0, 0, 0, 0], false),
            (document(Kind::Cluster, "n1", 1, json!({}), &TEST), [0, 0, 1, 0, 1, 1, 1, 0, 0], false),
            (
                document(Kind::Cluster, "n1", 1, json!({}), &[("env", "test"), ("x", "y")]),
                [0, 0, 0, 0, 1, 1, 1, 0, 0],
                false,
            ),
            (
                document(Kind::Cluster, "n2", 1, json!({}), &[("env", "prod"), ("x", "y")]),
                [0, 0, 0, 0, 1, 0, 0, 0, 0],
                false,
            ),
            (selector(3, &of_env("none"), 4, &[]), [1, 1, 1, 1, 0, 0, 0, 0, 0], true),
        ] {
            writer.version(item).await;
            let before = counts().await;
            let turn = leader.turn().await;
            assert_eq!((turn.changes, turn.held == 1), (1, is_held));
            let after = counts().await;
            let spent: Vec<i64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
            assert_eq!(spent, expected, "{texts:?}");
        }
        let held = held(&stage.database()).await.expect("a list");
        assert_eq!((held[0].clusters, held[0].tracks), (10_000, 10_000));
        // The server believes that the table of what is lost is empty.
        writer.version(selector(4, &of_env("nothing"), 4, &[])).await;
        assert_eq!(leader.turn().await.asked, 0);
        // One has lost its label by itself.
        writer.version(document(Kind::Cluster, "n1", 1, json!({}), &PROD)).await;
        writer.version(selector(5, &selects, 4, &[])).await;
        assert_eq!(leader.turn().await.released, 1);
    });
}

/// 20,000 units are the most of a transaction.
#[test]
fn what_costs_much_is_judged_in_several_transactions_of_one_turn() {
    run(async {
        let court = Court::new("paged", 12).await;
        court.stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let of_env = |env: &str| json!({"spec": {"clusterDeploymentSelector": of_env(env), "resources": [], "secretMappings": []}});
        court.changes(document(Kind::SelectorSyncSet, "other", 1, of_env("none"), &[])).await;
        // The other one has lost a cluster, and so many that were approved count as well.
        court
            .stage
            .run(
                "insert into towline_lost select c.id, s.id, now() from clusters c, selectorsyncsets s where c.name = 'c0' and s.name = 'other'; \
                 insert into towline_lost select gen_random_uuid(), s.id, '-infinity' from selectorsyncsets s, generate_series(1, 7500); \
                 insert into towline_result select gen_random_uuid(), s.id, 'SelectorSyncSet', '', s.name, '', 1, 'Success', null, null, \
                   now(), null, false from selectorsyncsets s, generate_series(1, 5000)",
            )
            .await;
        // Each transaction locks the dispatcher's claim.
        let spent = async || {
            let before = statements(&court.stage, "select set_config(").await;
            let turn = court.leader.turn().await;
            assert_eq!(court.stage.number(CURSOR).await, court.stage.number(NEWEST).await);
            (turn.changes, turn.held, statements(&court.stage, "select set_config(").await - before)
        };
        // Two syncsets of 12,500 units each.
        court.writes(selector(2, &json!({"matchLabels": {"env": "prod"}}), 10, &[])).await;
        assert_eq!(spent().await, (1, 0, 1));
        court.writes(selector(3, &json!({"matchLabels": {"env": "prod"}}), 10, &[])).await;
        court.writes(document(Kind::SelectorSyncSet, "other", 2, of_env("nobody"), &[])).await;
        assert_eq!(spent().await, (2, 0, 2));
        // Clusters that are cheap, and two decisions of 20,000 units each.
        for number in 0..11 {
            court.relabels(number, &TEST).await;
        }
        assert_eq!(spent().await, (11, 1, 3));
        assert_eq!(court.held().await, Some((11, 12, Cause::Unmatched)));
        // Two clusters of 10,000 units each and more, and a decision that does not fit to the second.
        court.stage.run("insert into towline_lost select c.id, gen_random_uuid(), now() from clusters c, generate_series(1, 40000) where c.name in ('c10', 'c11')").await;
        for number in [10, 11] {
            court.relabels(number, &[("env", "prod"), ("x", "y")]).await;
        }
        assert_eq!(spent().await, (2, 0, 3));
        assert_eq!(court.held().await, Some((10, 12, Cause::Unmatched)));
    });
}

/// However well their texts compress: what is read of them takes memory.
#[test]
fn syncsets_of_many_resources_are_judged_in_several_transactions() {
    run(async {
        let court = Court::new("voluminous", 1).await;
        court.stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let resource = |n| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{n}"), "namespace": "default"}});
        let resources: Vec<Value> = (0..1_000).map(resource).collect();
        for number in 0..25 {
            let data = json!({"spec": {"clusterDeploymentRefs": [], "resources": resources, "secretMappings": []}});
            court.writes(document(Kind::SyncSet, &format!("s{number}"), 1, data, &[])).await;
        }
        let before = statements(&court.stage, "select set_config(").await;
        assert_eq!(court.leader.turn().await.changes, 25);
        assert_eq!(statements(&court.stage, "select set_config(").await - before, 2);
    });
}

/// The log of all other documents is not searched for the last version of each.
#[test]
fn syncsets_that_are_gone_cost_the_same_however_much_was_written_after_them() {
    run(async {
        // Blocks that the statement has looked at.
        const BLOCKS: &str = "select coalesce(sum(shared_blks_hit + shared_blks_read), 0)::bigint from statistics.pg_stat_statements s \
             where s.dbid = (select oid from pg_database where datname = current_database()) and query like 'select i.id::text, d.id%'";
        let court = Court::new("log_behind", 1).await;
        court.stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        for number in 0..10 {
            let data =
                json!({"spec": {"clusterDeploymentRefs": [{"name": "c0"}], "resources": [], "secretMappings": []}});
            court.changes(document(Kind::SyncSet, &format!("s{number}"), 1, data, &[])).await;
        }
        for number in 0..10 {
            court.writes(removal(Kind::SyncSet, &format!("s{number}"))).await;
        }
        court
            .stage
            .run(
                "insert into towline_log select m.version + n, now(), gen_random_uuid(), 'clustersyncs', \
                   (select id from clusters), 'foo', 'c0', '{}', m.version, '{\"generation\": 1}' \
                 from (select max(version) as version from towline_log) m, generate_series(1, 100000) n; \
                 select setval('towline_version', (select max(version) from towline_log))",
            )
            .await;
        let before = court.stage.number(BLOCKS).await;
        assert_eq!(court.leader.turn().await.changes, 500);
        let spent = court.stage.number(BLOCKS).await - before;
        assert!(0 < spent && spent < 2_000, "{spent} blocks for ten syncsets: the log behind them has as many");
        assert_eq!(court.stage.number("select count(*) from towline_guard where gone").await, 10);
    });
}
