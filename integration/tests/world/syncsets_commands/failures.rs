//! `towline failures`.

use serde_json::{Value, json};

use crate::syncsets_commands::world::{Stage, make, run};

/// Stores what a pass would have stored: a failure of a syncset on a cluster.
pub(crate) async fn fail(stage: &Stage, cluster: &str, (kind, namespace, name): (&str, &str, &str), message: &str) {
    let statement = "insert into towline_result select id, gen_random_uuid(), $2, $3, $4, decode(repeat('00', 32), 'hex'), 1, 'Failure', 'Rejected', $5, \
                     now(), null, false from clusters where name = $1";
    let stored = stage.sql.execute(statement, &[&cluster, &kind, &namespace, &name, &message]).await;
    assert_eq!(stored.expect("a row"), 1, "{cluster}");
}

const MONITORING: (&str, &str, &str) = ("SelectorSyncSet", "", "monitoring");
const BASE: (&str, &str, &str) = ("SyncSet", "foo", "base");

#[test]
fn failures_are_grouped_by_what_they_say_besides_numbers() {
    run(async {
        let stage = Stage::new("failures").await;
        let mut client = stage.replica.client();
        assert_eq!(stage.expect(&["failures"]).await, "no syncset fails\n");
        for name in ["a", "b", "c", "d", "e", "f", "g"] {
            make(&mut client, if name < "d" { "foo" } else { "bar" }, name, "prod", true).await;
        }
        // Letters of hexadecimal numbers are no words.
        let requests = [("a", "5f2ea01c"), ("b", "77"), ("c", "0c0ffee0"), ("d", "1a"), ("e", "a1"), ("f", "9")];
        for (number, (name, request)) in requests.into_iter().enumerate() {
            fail(&stage, name, MONITORING, &format!("dial tcp 10.0.0.{number}:443: request {request} failed")).await;
        }
        fail(&stage, "g", MONITORING, "dial tcp 10.0.0.1:443: request cafe failed").await;
        fail(&stage, "a", BASE, "failed to apply resource 0: bad").await;
        fail(&stage, "b", BASE, "failed to apply resource 7: bad").await;
        fail(&stage, "c", BASE, "failed to apply resource 0: dad").await;
        let success = "insert into towline_result select id, gen_random_uuid(), 'SyncSet', 'foo', 'fine', '\\x00', 1, 'Success', null, null, \
                       now(), now(), false from clusters";
        stage.sql.execute(success, &[]).await.expect("successes");

        let told = stage.expect(&["failures"]).await;
        let lines: Vec<&str> = told.lines().collect();
        let expected = [
            "CLUSTERS   SYNCSET                      REASON     MESSAGE                                      ON",
            "6          SelectorSyncSet monitoring   Rejected   dial tcp 10.0.0.3:443: request 1a failed     bar/d, bar/e, …",
            "2          SyncSet foo/base             Rejected   failed to apply resource 0: bad              foo/a, foo/b",
            "1          SyncSet foo/base             Rejected   failed to apply resource 0: dad              foo/c",
            "1          SelectorSyncSet monitoring   Rejected   dial tcp 10.0.0.1:443: request cafe failed   bar/g",
        ];
        assert_eq!(lines, expected);
        let told = stage.expect(&["failures", "--limit", "1"]).await;
        // The columns are as wide as what is shown.
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[1], expected[1].replace("failed     bar", "failed   bar"));
        assert_eq!(lines[2..], ["and 3 further groups: --limit shows more"]);
        let names = stage.expect(&["failures", "-o", "name"]).await;
        assert_eq!(names, "SelectorSyncSet/monitoring\nSyncSet/foo/base\n");
        let wide = stage.expect(&["failures", "-o", "wide"]).await;
        assert!(wide.contains("bar/d, bar/e, bar/f"), "{wide}");
        let told = stage.expect(&["failures", "-n", "bar", "-o", "json"]).await;
        let answer: Value = serde_json::from_str(&told).expect("JSON");
        let cluster = |name: &str| json!({"namespace": "bar", "name": name});
        assert_eq!((&answer["total"], &answer["items"][0]["count"]), (&json!(2), &json!(3)));
        assert_eq!(answer["items"][0]["clusters"], json!([cluster("d"), cluster("e"), cluster("f")]));
        assert_eq!(answer["items"][0].get("namespace"), None);
        for wrong in [["failures", "-n", "B!"], ["failures", "--limit", "501"]] {
            assert_eq!(stage.command(&wrong).await.code, Some(2), "{wrong:?}");
        }

        // Nobody works on a cluster that is being deleted.
        let deleted = "update clusters set finalizers = '{a.io/b}', deleted_at = now() where name <> 'c'";
        stage.sql.execute(deleted, &[]).await.expect("they are being deleted");
        let told = stage.expect(&["failures"]).await;
        assert_eq!(told.lines().count(), 3, "{told}");
    });
}

#[test]
fn a_group_names_its_first_clusters_alone_and_an_answer_has_its_limit() {
    run(async {
        let stage = Stage::new("limits").await;
        make(&mut stage.replica.client(), "foo", "west", "prod", true).await;
        let copies = "insert into clusters select kind, gen_random_uuid(), namespace, 'c' || lpad(n::text, 5, '0'), labels, annotations, \
                      finalizers, generation, version, created_at, updated_at, deleted_at, data, status, sealed \
                      from clusters, generate_series(1, 200) n where name = 'west'";
        stage.sql.execute(copies, &[]).await.expect("clusters");
        let failures = "insert into towline_result select c.id, gen_random_uuid(), 'SyncSet', 'foo', 's' || n, '\\x00', 1, 'Failure', 'Rejected', \
                        repeat('é', 1000) || n, now(), null, false from clusters c, generate_series(1, 20) n";
        assert_eq!(stage.sql.execute(failures, &[]).await.expect("failures"), 201 * 20);
        let told = stage.expect(&["failures", "-o", "json", "--limit", "15"]).await;
        let answer: Value = serde_json::from_str(&told).expect("JSON");
        let items = answer["items"].as_array().expect("items");
        assert_eq!((items.len(), &answer["total"]), (15, &json!(20)));
        for item in items {
            let clusters = item["clusters"].as_array().expect("clusters");
            assert_eq!((clusters.len(), &item["count"], &clusters[0]["name"]), (5, &json!(201), &json!("c00001")));
        }
    });
}

#[test]
fn few_failures_among_many_results_are_found_without_reading_them_all() {
    run(async {
        let stage = Stage::new("few").await;
        make(&mut stage.replica.client(), "foo", "west", "prod", true).await;
        let copies = "insert into clusters select kind, gen_random_uuid(), namespace, 'c' || n, labels, annotations, finalizers, generation, \
                      version, created_at, updated_at, deleted_at, data, status, sealed from clusters, generate_series(1, 1000) n";
        stage.sql.execute(copies, &[]).await.expect("clusters");
        let results = "insert into towline_result select c.id, gen_random_uuid(), 'SyncSet', 'foo', 's' || n, '\\x00', 1, \
                       case when fails then 'Failure' else 'Success' end, case when fails then 'Rejected' end, \
                       case when fails then 'no' end, now(), now(), false \
                       from clusters c, generate_series(1, 50) n, lateral (select n = 1 and c.name like 'c__' as fails) f";
        stage.sql.execute(results, &[]).await.expect("results");
        assert_eq!(stage.expect(&["failures"]).await.lines().count(), 2, "the headings and one group");
        let read = "select sum(shared_blks_hit + shared_blks_read)::int8 from statistics.pg_stat_statements s \
                    where s.dbid = (select oid from pg_database where datname = current_database()) \
                      and query like 'with failed as materialized%'";
        let (read, pages) =
            (stage.number(read).await, stage.number("select pg_relation_size('towline_result') / 8192").await);
        assert!(pages > 500 && read < pages / 2, "{read} of {pages} pages are read");
    });
}
