//! Statements that are prepared once for each connection.

use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time;
use towline::test_api::db::{Database, Error, Text, Type};

use crate::db::world::{LIMIT, Stage, run};

const KEPT: Text<'_> = Text::Prepared("SELECT * FROM kept WHERE n = $1");

/// The number of columns of the row.
async fn kept(database: &Database) -> Result<usize, Error> {
    let rows = database.all("kept", KEPT, &[(&1_i64, Type::INT8)]).await?;
    Ok(rows.first().expect("a row").len())
}

/// What the connection of the pool has prepared: the names on the server.
async fn prepared(database: &Database) -> Vec<String> {
    let names = "SELECT name FROM pg_prepared_statements ORDER BY prepare_time";
    let rows = database.all("names", names, &[]).await.expect("rows");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn stage(name: &str) -> Stage {
    let stage = Stage::new(name).await;
    stage.run("CREATE TABLE kept (n int8); INSERT INTO kept VALUES (1)").await;
    stage
}

#[test]
fn a_statement_is_prepared_once_and_anew_after_a_minute() {
    let stage = run(stage("prepared"));
    // On a runtime of its own, whose time can pass at once.
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let database = stage.database("pool_max_conns=1");
        assert_eq!(kept(&database).await.expect("a row"), 1);
        let first = prepared(&database).await;
        assert_eq!(first.len(), 1, "others are sent as they are: {first:?}");
        for _ in 0..200 {
            kept(&database).await.expect("a row");
        }
        assert_eq!(prepared(&database).await, first);
        time::pause();
        time::advance(Duration::from_mins(1)).await;
        time::resume();
        kept(&database).await.expect("a row");
        let second = prepared(&database).await;
        assert_eq!(second.len(), 1, "the one before is closed: {second:?}");
        assert_ne!(second, first);
    });
}

#[test]
fn after_a_change_of_its_result_and_on_a_new_connection_it_is_prepared_anew() {
    run(async {
        let stage = stage("changed").await;
        let database = stage.database("pool_max_conns=1");
        kept(&database).await.expect("a row");
        for (change, code, columns) in [("ALTER TABLE kept ADD t text", "0A000", 2), ("DEALLOCATE ALL", "26000", 2)] {
            database.execute("change", change, &[]).await.expect("it is changed");
            let error = kept(&database).await.expect_err("it is not what was prepared");
            assert_eq!(error.server().map(|server| server.code().to_owned()).as_deref(), Some(code), "{error:?}");
            assert_eq!(kept(&database).await.expect("a row"), columns);
        }
        // One that fails in a transaction rolls that back, and no other.
        database.execute("change", "DEALLOCATE ALL", &[]).await.expect("it is changed");
        let mut transaction = database.begin("test", LIMIT).await.expect("a transaction");
        transaction.all("kept", KEPT, &[(&1_i64, Type::INT8)]).await.expect_err("it is gone");
        transaction.commit().await.expect_err("it has failed");
        let mut transaction = database.begin("test", LIMIT).await.expect("a transaction");
        assert_eq!(transaction.all("kept", KEPT, &[(&1_i64, Type::INT8)]).await.expect("rows").len(), 1);
        transaction.commit().await.expect("it is committed");
        stage
            .run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'changed' AND pid <> pg_backend_pid()")
            .await;
        let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'changed' AND pid <> pg_backend_pid()";
        stage.becomes("the connection to end", others, 0).await;
        // Until the driver has seen the end, the pool can't know of it.
        while kept(&database).await.is_err() {}
        assert_eq!(prepared(&database).await.len(), 1);
    });
}
