//! Snapshots that several passes ask for in one moment.

use futures::future::join_all;
use integration::postgres::ADMIN;
use serde_json::json;
use towline::test_api::documents::{Change, Expected, Key, Kind, Row};
use towline::test_api::syncset::store::{PassStore, StoreError, TooLarge};

use crate::documents::dispatch::document;
use crate::documents::world::{Stage, create, item, row, run};

/// So many clusters, by their names.
async fn clusters(stage: &Stage, count: usize) -> Vec<String> {
    let writer = stage.writer();
    for number in 0..count {
        writer.version(create(&format!("c{number}"))).await;
    }
    let rows = stage.sql.query("select id::text from clusters order by name", &[]).await.expect("rows");
    rows.iter().map(|row| row.get(0)).collect()
}

/// What is asked for together: the name of each cluster, or why there is none.
async fn names(store: &PassStore, asked: &[(&str, usize)]) -> Vec<String> {
    let read = asked.iter().map(|(cluster, room)| store.snapshot_within(cluster.parse().expect("an id"), *room));
    let names = join_all(read).await.into_iter().map(|read| match read {
        Ok(Ok(snapshot)) => snapshot.cluster.map_or("none".to_owned(), |cluster| cluster.document.name),
        Ok(Err(TooLarge { bytes })) => format!("{} bytes", if bytes > 10 { "too many" } else { "few" }),
        Err(StoreError::Database(error)) => error.server().map_or("no answer", |refused| refused.code()).to_owned(),
        Err(error) => panic!("{error:?}"),
    });
    names.collect()
}

/// One after the other is one statement each.
#[test]
fn snapshots_that_are_asked_for_at_once_are_read_with_one_statement_but_by_those_who_only_look() {
    run(async {
        let stage = Stage::new("snapshots").await;
        stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let statements = async || {
            let text = "select coalesce(sum(calls), 0)::bigint from statistics.pg_stat_statements s where s.dbid = \
                 (select oid from pg_database where datname = current_database()) and query like 'select snapshot.%'";
            stage.number(text).await
        };
        let ids = clusters(&stage, 5).await;
        let store = PassStore::new(stage.database());
        let none = "00000000-0000-4000-8000-000000000000";
        let all = [(&*ids[3], 1 << 20), (&*ids[0], 10), (none, 1 << 20), (&*ids[4], 1 << 20), (&*ids[3], 1 << 20)];
        let expected = ["c3", "too many bytes", "none", "c4", "c3"];
        assert_eq!((names(&store, &all).await, statements().await), (expected.map(str::to_owned).to_vec(), 1));
        assert_eq!((names(&store.apart(), &all).await, statements().await), (expected.map(str::to_owned).to_vec(), 6));
        let many: Vec<_> = (0..40).map(|number| (&*ids[number % 5], 1 << 20)).collect();
        let expected: Vec<_> = (0..40).map(|number| format!("c{}", number % 5)).collect();
        assert_eq!((names(&store, &many).await, statements().await), (expected, 6 + 3), "16 at most");
        for one in all.chunks(1).skip(3) {
            names(&store, one).await;
        }
        assert_eq!(statements().await, 11);
    });
}

#[test]
fn a_cluster_that_cannot_be_read_keeps_nobody_from_the_snapshots_that_were_asked_for_with_it() {
    run(async {
        let stage = Stage::new("snapshot_unreadable").await;
        let (ids, writer) = (clusters(&stage, 3).await, stage.writer());
        let spec = json!({"spec": {"clusterDeploymentRefs": [{"name": "c1"}], "resources": [], "patches": [],
            "secretMappings": [{"sourceRef": {"namespace": "foo", "name": "pull"}}]}});
        writer.version(document(Kind::SyncSet, "a", 1, spec, &[])).await;
        // No release writes that.
        let data = json!({"dataGeneration": "x"}).as_object().cloned().expect("an object");
        let secret = Change::put(&Key::new(Kind::Secret, "foo", "pull"), Expected::Any, Row { data, ..row() });
        writer.version(item(vec![secret])).await;
        let asked: Vec<_> = ids.iter().map(|cluster| (&**cluster, 1 << 20)).collect();
        let store = PassStore::new(stage.database());
        assert_eq!(names(&store, &asked).await, ["c0", "22P02", "c2"]);
    });
}

/// Its statement is given up, and with it what the others wait for.
#[test]
fn whoever_reads_for_others_and_ends_leaves_nobody_without_a_snapshot() {
    run(async {
        let stage = Stage::new("deserted").await;
        let ids = clusters(&stage, 4).await;
        let asked: Vec<_> = ids.iter().map(|cluster| (&**cluster, 1 << 20)).collect();
        let store = PassStore::new(stage.database());
        let other = stage.place.client(ADMIN).await.expect("a connection");
        other.batch_execute("begin; lock table clusters in access exclusive mode").await.expect("the lock");
        let (mut first, mut others) = (Box::pin(names(&store, &asked[..1])), Box::pin(names(&store, &asked[1..])));
        let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' \
             and query like 'select snapshot.%'";
        tokio::select! {
            biased;
            found = &mut first => panic!("{found:?} in spite of the lock"),
            found = &mut others => panic!("{found:?} in spite of the lock"),
            () = stage.becomes("one statement to wait for all", waiting, 1) => {}
        }
        drop(first);
        other.batch_execute("commit").await.expect("no lock");
        assert_eq!(others.await, ["c1", "c2", "c3"]);
    });
}
