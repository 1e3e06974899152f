//! How much each namespace has: what is kept is what there is, and a change that exceeds a quota is not made.

use towline::test_api::documents::{self, Change, Expected, Item, Key, Kind, Outcome, Quota, Row, SCHEMA, Usage};

use crate::documents::world::{LIMIT, Stage, Written, create, fresh_id, item, row, run, server};

/// Namespaces whose sums are not those of their documents, and documents that count something else than they have.
pub(crate) const WRONG: &str = "select (select count(*) from towline_counts u full join ( \
       select namespace, count(*) filter (where kind <> 'clustersyncs') as documents, sum(kib) as kib from towline_documents \
       group by namespace) d using (namespace) where (u.documents, u.kib) is distinct from (d.documents, d.kib)) \
     + (select count(*) from towline_documents where kib is distinct from \
       towline_kib(labels, annotations, finalizers, data, status, octet_length(sealed)))";

async fn sums(stage: &Stage, namespace: &str) -> Usage {
    let text = "select coalesce(sum(documents), 0)::bigint, coalesce(sum(kib), 0)::bigint from towline_counts where namespace = $1";
    let row = stage.sql.query_one(text, &[&namespace]).await.expect("a row");
    Usage(row.get(0), row.get(1))
}

/// Documents as earlier schemas had them: what is large is compressed, or sealed.
const OLD: &str = "insert into towline_documents (kind, id, namespace, name, labels, annotations, finalizers, generation, version, created_at, \
       updated_at, data, status, sealed) \
     select kind, gen_random_uuid(), case kind when 'selectorsyncsets' then '' else 'n' || number % 2 end, 'old' || number, \
       '{\"a\": \"b\"}', '{}', '{x.io/y}', 1, nextval('towline_version'), now(), now(), jsonb_build_object('text', repeat('x', number * 5000)), \
       '{}', case when kind = 'clusters' then convert_to(repeat('y', number * 1500), 'UTF8') end \
     from unnest('{clusters,syncsets,secrets,clustersyncs,selectorsyncsets}'::text[]) kind, generate_series(1, 20) number";

#[test]
fn a_migration_counts_what_there_is_whichever_schema_it_begins_with() {
    run(async {
        for before in [1, 2] {
            let stage = Stage::empty(server().await, &format!("usage{before}")).await;
            let earlier = SCHEMA.first(before).run(&stage.database(), LIMIT).await.expect("it is migrated");
            assert_eq!(usize::try_from(earlier.known).expect("a number"), before);
            stage.run(OLD).await;
            documents::migrate(&stage.database(), LIMIT).await.expect("it is migrated");
            assert_eq!(stage.number(WRONG).await, 0);
            // Ten of each kind; ClusterSyncs are not counted.
            let [one, other, none] = [sums(&stage, "n1").await, sums(&stage, "n0").await, sums(&stage, "").await];
            assert_eq!((one.0, other.0, none.0), (30, 30, 20));
            // 100, 110 or 210 times 5,000 bytes of each kind, and as often 1,500 of kubeconfigs, rounded up.
            let data = |numbers: i64, kinds: i64| numbers * 5_000 * kinds / 1024;
            assert!((data(100, 4) + 146..data(100, 4) + 146 + 50).contains(&one.1), "{one:?}");
            assert!((data(110, 4) + 161..data(110, 4) + 161 + 50).contains(&other.1), "{other:?}");
            assert!((data(210, 1)..data(210, 1) + 30).contains(&none.1), "{none:?}");
            let records =
                "select count(*) from towline_history where verb = 'migrate' and details like '%: count what%'";
            assert_eq!(stage.number(records).await, 1);
            // Later writes add to the sums that the migration has counted.
            let writer = stage.writer();
            let key = |kind, number| Key::new(kind, "n1", format!("old{number}"));
            let version = stage.number("select version from clusters where (namespace, name) = ('n1', 'old1')").await;
            writer.version(item(vec![Change::put(&key(Kind::Cluster, 1), Expected::Version(version), row())])).await;
            for kind in [Kind::SyncSet, Kind::ClusterSync] {
                writer.version(item(vec![Change::delete(&key(kind, 19), Expected::Any)])).await;
            }
            assert_eq!(sums(&stage, "n1").await.0, 29);
            assert_eq!(stage.number(WRONG).await, 0);
            // A renumbering counts again, so it also finds what was changed without Towline.
            stage.run("delete from clusters where namespace = 'n1'; update towline_counts set kib = 1 where namespace = 'n0'").await;
            assert!(stage.number(WRONG).await > 0);
            documents::renumber(&stage.database(), true).await.expect("it is renumbered");
            assert_eq!(stage.number(WRONG).await, 0);
        }
    });
}

fn large(kind: Kind, namespace: &str, name: &str, bytes: usize) -> Change {
    let mut row = Row { sealed: Some(vec![7; bytes]), ..row() };
    row.id = fresh_id().parse().expect("a UUID");
    Change::put(&Key::new(kind, namespace, name), Expected::Absent, row)
}

async fn outcome(writer: &Written, item: Item) -> Outcome {
    writer.handle.write(item).await.expect("an outcome")
}

#[test]
fn items_of_one_call_share_the_quota_and_what_the_hub_writes_has_none() {
    run(async {
        let stage = Stage::new("quota").await;
        let (writer, quota) = (stage.writer(), Quota { documents: 5, kib: 100 });
        stage.block_writers().await;
        let sent: Vec<_> = (0..12).map(|number| writer.send(create(&format!("c{number}")).within(quota))).collect();
        stage.calls_wait(1).await;
        stage.let_write().await;
        let mut refused = 0;
        for outcome in sent {
            match outcome.await.expect("no panic").expect("an outcome") {
                Outcome::Written { .. } => {}
                Outcome::Exceeded { used, more } => {
                    assert_eq!((used, more), (Usage(5, 5), Usage(1, 1)));
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((refused, sums(&stage, "foo").await), (7, Usage(5, 5)));
        // Without a quota, or in another namespace, or in none.
        let sync = Change::put(&Key::new(Kind::ClusterSync, "foo", "c1"), Expected::Any, row());
        writer.version(item(vec![sync])).await;
        writer.version(create("c20")).await;
        assert_eq!(sums(&stage, "foo").await, Usage(6, 7));
        let version = writer.version(item(vec![large(Kind::Secret, "bar", "s", 90 << 10)]).within(quota)).await;
        writer.version(item(vec![large(Kind::Secret, "", "s", 900 << 10)]).within(quota)).await;
        let more = item(vec![large(Kind::Secret, "bar", "t", 90 << 10)]).within(quota);
        assert_eq!(outcome(&writer, more).await, Outcome::Exceeded { used: Usage(1, 91), more: Usage(1, 91) });
        // A kept sealed field counts on, and one that exists is in conflict, whatever the quota is.
        let key = Key::new(Kind::Secret, "bar", "s");
        let keeps = Change::put(&key, Expected::Version(version), row());
        let kept = writer.version(item(vec![keeps]).within(quota)).await;
        assert_eq!(sums(&stage, "bar").await, Usage(1, 91));
        let again = item(vec![large(Kind::Secret, "bar", "s", 90 << 10)]).within(Quota { documents: 1, ..quota });
        assert_eq!(outcome(&writer, again).await, Outcome::Conflict { present: Some(kept) });
        assert_eq!(stage.number(WRONG).await, 0);
    });
}
