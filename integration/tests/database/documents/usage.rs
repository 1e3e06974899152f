//! How much each namespace has: what is kept is what there is, and a change that exceeds a quota is not made.

use towline::test_api::documents::{Change, Expected, Item, Key, Kind, Outcome, Quota, Row, Usage};

use crate::documents::world::{Stage, Written, create, fresh_id, item, row, run};

/// Namespaces whose sums are not those of their documents, and documents that count something else than they have.
pub(crate) const WRONG: &str = "select (select count(*) from towline_counts u full join ( \
       select namespace, count(*) filter (where kind <> 'clustersyncs') as documents, sum(kib) as kib from towline_documents \
       group by namespace) d using (namespace) where (u.documents, u.kib) is distinct from (d.documents, d.kib)) \
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
