//! How much each namespace has: what is kept is what there is, and a change that exceeds a quota is not made.

use serde_json::{Map, json};
use towline::test_api::documents::{Change, Expected, Item, Key, Kind, Outcome, Quota, Row, Usage};

use crate::documents::world::{Stage, Written, create, fresh_id, item, row, run};

/// Namespaces whose sums are not those of their documents and revisions, and documents and revisions that count something else than they have.
pub(crate) const WRONG: &str = "select (select count(*) from towline_counts u full join ( \
       select namespace, count(*) filter (where kind <> 'clustersyncs') as documents, sum(kib + coalesce(r.revised, 0)) as kib \
         from towline_documents left join (select syncset, sum(kib) as revised from towline_revision group by syncset) r on r.syncset = id \
       group by namespace) d using (namespace) where (u.documents, u.kib) is distinct from (d.documents, d.kib)) \
     + (select count(*) from towline_revision where kib is distinct from towline_content_kib(content) \
       or syncset not in (select id from towline_documents)) \
     + (select count(*) from towline_documents where kib is distinct from \
       towline_kib(labels, annotations, finalizers, data, status, towline_sealed(sealed)))";

async fn sums(stage: &Stage, namespace: &str) -> Usage {
    let text = "select coalesce(sum(documents), 0)::bigint, coalesce(sum(kib), 0)::bigint from towline_counts where namespace = $1";
    let row = stage.sql.query_one(text, &[&namespace]).await.expect("a row");
    Usage(row.get(0), row.get(1))
}

fn large(kind: Kind, namespace: &str, name: &str, bytes: usize) -> Change {
    let mut row = Row { sealed: Some(vec![7; bytes]), ..row() };
    row.id = fresh_id().parse().expect("a UUID");
    Change::put(&Key::new(kind, namespace, name), Expected::Absent, row)
}

/// A text that no server compresses, another one for each name.
fn incompressible(name: &str, bytes: usize) -> String {
    let mut state = name.bytes().fold(1, |seed, byte| seed * 256 + u64::from(byte));
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + u8::try_from(state >> 58).expect("six bits"))
    };
    (0..bytes).map(|_| next()).collect()
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

/// A tenant who edits a syncset with a rollout again and again.
#[test]
fn revisions_of_a_rollout_count_until_they_are_dropped_and_one_that_finds_no_room_is_not_noted() {
    run(async {
        let stage = Stage::new("revisionquota").await;
        let (writer, key) = (stage.writer(), Key::new(Kind::SyncSet, "foo", "s"));
        let (mut version, mut generation) = (None, 0);
        let mut put = async |content: &str, kib: usize, rolls: bool, most: u64| {
            generation += 1;
            let mut spec = json!({"clusterDeploymentRefs": [], "resources": [incompressible(content, kib << 10)]});
            if rolls {
                spec["rollout"] = json!({"waves": []});
            }
            let row = Row { generation, data: Map::from_iter([("spec".to_owned(), spec)]), ..row() };
            let expected = version.map_or(Expected::Absent, Expected::Version);
            let item = item(vec![Change::put(&key, expected, row)]).within(Quota { documents: 5, kib: most });
            let outcome = outcome(&writer, item).await;
            if let Outcome::Written { version: written, .. } = &outcome {
                version = Some(*written);
            }
            outcome
        };
        let used = async || {
            assert_eq!(stage.number(WRONG).await, 0);
            (sums(&stage, "foo").await.1, stage.number("select count(*) from towline_revision").await)
        };
        let is_written = |outcome: Outcome| assert!(matches!(outcome, Outcome::Written { .. }), "{outcome:?}");
        let refused = put("a", 30, true, 60).await;
        assert_eq!(refused, Outcome::Exceeded { used: Usage(0, 0), more: Usage(1, 62) });
        assert_eq!(used().await, (0, 0));
        is_written(put("a", 30, false, 100).await);
        assert_eq!(used().await, (31, 0));
        is_written(put("a", 30, true, 100).await);
        assert_eq!(used().await, (62, 1), "what clusters have");
        is_written(put("b", 30, true, 100).await);
        assert_eq!(used().await, (93, 2));
        stage.run("insert into towline_turn select syncset, gen_random_uuid(), 2, 1, 0, 0 from towline_rollout").await;
        let large_values =
            "select pg_relation_size(reltoastrelid) from pg_class where oid = 'towline_revision'::regclass";
        let stored = stage.number(large_values).await;
        assert!(stored >= 60 << 10, "{stored} bytes");
        for _ in 0..3 {
            let refused = put("c", 30, true, 100).await;
            assert_eq!(refused, Outcome::Exceeded { used: Usage(1, 93), more: Usage(0, 31) });
            assert_eq!(used().await, (93, 2), "nothing of it is noted");
        }
        assert_eq!(stage.number(large_values).await, stored, "what is refused is not written before");
        assert_eq!(stage.number("select count(*) from towline_rollout where newest = 2 and edited = 1").await, 1);
        is_written(put("a", 30, true, 0).await);
        assert_eq!(used().await, (93, 2), "back to a content that is kept");
        is_written(put("d", 10, true, 0).await);
        assert_eq!(used().await, (84, 3), "what makes less of it is not refused, however full it is");
        stage.run("delete from towline_turn").await;
        for number in 0..20 {
            is_written(put(&char::from(b'e' + number).to_string(), 10, true, 1_000).await);
        }
        assert_eq!(used().await, (11 * 11 + 31, 11), "ten are kept, and the stable one, where the rollout leads");
        is_written(put("z", 10, true, 1).await);
        assert_eq!(used().await, (11 * 11 + 31, 11), "for one that comes another one goes");
        is_written(put("A", 20, true, 152).await);
        assert_eq!(used().await, (21 + 31 + 7 * 11 + 21, 9), "the oldest go where there is no room for one more");
        assert_eq!(
            stage.number("select count(*) from towline_revision where revision = 1").await,
            1,
            "not what clusters have"
        );
        let refused = put("B", 200, true, 152).await;
        assert_eq!(refused, Outcome::Exceeded { used: Usage(1, 150), more: Usage(0, 180 + 201 - 98) });
        assert_eq!(used().await, (150, 9), "none goes where that would not help");
        is_written(put("z", 10, false, 1).await);
        assert_eq!(used().await, (11, 0));
        is_written(put("z", 10, true, 100).await);
        assert_eq!(used().await, (22, 1));
        writer.version(item(vec![Change::delete(&key, Expected::Any)])).await;
        assert_eq!(used().await, (0, 0));
    });
}

#[test]
fn a_client_s_change_counts_what_is_stored_of_it_and_no_other_counts() {
    run(async {
        let stage = Stage::new("charged").await;
        let writer = stage.writer();
        let key = Key::new(Kind::Secret, "foo", "s");
        let charged = async |change: Change, is_charged: bool| -> (i64, i64) {
            let version = writer.version(Item { is_charged, ..item(vec![change]) }).await;
            let text = format!("select charged::bigint from towline_log where version = {version}");
            (version, stage.number(&text).await)
        };
        let (version, kib) = charged(large(Kind::Secret, "foo", "s", 90 << 10), true).await;
        assert_eq!(kib, 91, "a sealed field counts");
        let change = |version, row| Change::put(&key, Expected::Version(version), row);
        let (version, kib) = charged(change(version, row()), true).await;
        assert!((1..=2).contains(&kib), "one that is kept is not stored again: {kib}");
        let labels = (0..40).map(|number| (format!("label{number}"), "x".repeat(1000))).collect();
        let labelled = Row { labels, ..row() };
        let (version, kib) = charged(change(version, labelled.clone()), true).await;
        assert!((79..=82).contains(&kib), "the log has labels of 40 KiB twice: {kib}");
        let (version, kib) = charged(change(version, labelled), false).await;
        assert_eq!(kib, 0, "who writes it is no client of the namespace");
        let (_, kib) = charged(Change::delete(&key, Expected::Version(version)), true).await;
        assert!((40..=42).contains(&kib), "a deletion has the labels: {kib}");
    });
}
