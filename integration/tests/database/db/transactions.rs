//! Transactions end, whatever happens to them, and their connections with them or not at all.

use std::time::{Duration, Instant};

use towline::test_api::db::{Error, Type};

use crate::db::world::{LIMIT, Stage, pid, run};

const TABLE: &str = "CREATE TABLE kept (n int8 PRIMARY KEY)";
const INSERT: &str = "INSERT INTO kept VALUES ($1)";
const COUNT: &str = "SELECT count(*) FROM kept";
/// Statements that sleep in this database.
const SLEEPERS: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' AND query LIKE '%pg_sleep%'";
/// Transactions that are open in this database.
const OPEN: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'";

#[test]
fn nothing_is_visible_before_the_commit_and_all_of_it_after() {
    run(async {
        let stage = Stage::new("committed").await;
        stage.run(TABLE).await;
        let database = stage.database("pool_max_conns=1");
        let before = pid(&database).await;
        let mut transaction = database.begin("write", LIMIT).await.expect("a transaction");
        for number in [1_i64, 2] {
            assert_eq!(transaction.execute("insert", INSERT, &[(&number, Type::INT8)]).await.expect("it is done"), 1);
        }
        let seen: i64 = transaction.all("count", COUNT, &[]).await.expect("a row")[0].get(0);
        assert_eq!((seen, stage.number(COUNT).await), (2, 0));
        transaction.commit().await.expect("it is committed");
        assert_eq!(stage.number(COUNT).await, 2);
        assert_eq!(pid(&database).await, before, "its connection is used again");
    });
}

#[test]
fn a_dropped_transaction_is_rolled_back_before_its_connection_is_used_again() {
    run(async {
        let stage = Stage::new("dropped").await;
        stage.run(TABLE).await;
        let database = stage.database("pool_max_conns=1");
        let before = pid(&database).await;
        let mut transaction = database.begin("write", LIMIT).await.expect("a transaction");
        transaction.execute("insert", INSERT, &[(&1_i64, Type::INT8)]).await.expect("it is done");
        drop(transaction);
        // The pool has one connection: this waits for it.
        let row = &database.all("state", "SELECT pg_backend_pid(), txid_current_if_assigned() IS NULL", &[]).await;
        let row = &row.as_ref().expect("a row")[0];
        assert_eq!((row.get::<_, i32>(0), row.get::<_, bool>(1)), (before, true));
        stage.becomes("no open transaction", OPEN, 0).await;
        assert_eq!(stage.number(COUNT).await, 0);
        let mut explicit = database.begin("write", LIMIT).await.expect("a transaction");
        explicit.execute("insert", INSERT, &[(&1_i64, Type::INT8)]).await.expect("it is done");
        explicit.rollback().await.expect("it is rolled back");
        assert_eq!((stage.number(COUNT).await, pid(&database).await), (0, before));
    });
}

#[test]
fn a_transaction_with_a_failed_statement_can_not_be_committed() {
    run(async {
        let stage = Stage::new("failed").await;
        stage.run(TABLE).await;
        let database = stage.database("pool_max_conns=1");
        let before = pid(&database).await;
        let mut transaction = database.begin("write", LIMIT).await.expect("a transaction");
        transaction.execute("insert", INSERT, &[(&1_i64, Type::INT8)]).await.expect("it is done");
        let error = transaction.execute("insert", INSERT, &[(&1_i64, Type::INT8)]).await.expect_err("a double");
        assert_eq!(error.server().map(towline::test_api::db::ServerError::code), Some("23505"));
        // The server would answer COMMIT with ROLLBACK, which is no error to it.
        let error = transaction.commit().await.expect_err("nothing can be committed");
        assert!(matches!(error, Error::RolledBack { name: "write" }), "{error:?}");
        assert_eq!((stage.number(COUNT).await, pid(&database).await), (0, before));
        // The failure is forgotten with its transaction.
        let mut next = database.begin("write", LIMIT).await.expect("a transaction");
        next.execute("insert", INSERT, &[(&1_i64, Type::INT8)]).await.expect("it is done");
        next.commit().await.expect("it is committed");
        assert_eq!(stage.number(COUNT).await, 1);
    });
}

#[test]
fn a_commit_that_fails_is_an_error_and_its_connection_is_kept() {
    run(async {
        let stage = Stage::new("deferred").await;
        stage.run("CREATE TABLE kept (n int8 UNIQUE DEFERRABLE INITIALLY DEFERRED)").await;
        let database = stage.database("pool_max_conns=1");
        let before = pid(&database).await;
        let mut transaction = database.begin("write", LIMIT).await.expect("a transaction");
        for _ in 0..2 {
            transaction.execute("insert", INSERT, &[(&1_i64, Type::INT8)]).await.expect("it is done");
        }
        let error = transaction.commit().await.expect_err("a double");
        assert_eq!(error.server().map(towline::test_api::db::ServerError::code), Some("23505"));
        assert_eq!((stage.number(COUNT).await, pid(&database).await), (0, before));
    });
}

#[test]
fn a_transaction_that_is_dropped_in_a_statement_ends_with_its_connection() {
    run(async {
        let stage = Stage::new("abandoned").await;
        stage.run(TABLE).await;
        let database = stage.database("pool_max_conns=1");
        let before = pid(&database).await;
        let mut transaction = database.begin("write", LIMIT).await.expect("a transaction");
        transaction.execute("insert", INSERT, &[(&1_i64, Type::INT8)]).await.expect("it is done");
        {
            let mut sleeping = std::pin::pin!(transaction.execute("sleep", "SELECT pg_sleep(600)", &[]));
            tokio::select! {
                _ = &mut sleeping => panic!("it does not sleep"),
                () = stage.becomes("the statement to run", SLEEPERS, 1) => {}
            }
        }
        drop(transaction);
        assert_ne!(pid(&database).await, before, "the connection has been replaced");
        stage.becomes("the statement to be cancelled", SLEEPERS, 0).await;
        stage.becomes("no open transaction", OPEN, 0).await;
        assert_eq!(stage.number(COUNT).await, 0);
    });
}

#[test]
fn a_transaction_ends_at_its_deadline_however_many_statements_it_has() {
    run(async {
        let stage = Stage::new("deadline").await;
        stage.run(TABLE).await;
        let database = stage.database("pool_max_conns=1");
        let limit = Duration::from_secs(1);
        let begun = Instant::now();
        let mut transaction = database.begin("write", limit).await.expect("a transaction");
        transaction.execute("insert", INSERT, &[(&1_i64, Type::INT8)]).await.expect("it is done");
        // Each is short, and all together take too long.
        let error = loop {
            if let Err(error) = transaction.execute("sleep", "SELECT pg_sleep(0.2)", &[]).await {
                break error;
            }
            assert!(begun.elapsed() < LIMIT, "the deadline has passed");
        };
        assert!(matches!(error, Error::Silent { query: "sleep", within } if within == limit), "{error:?}");
        assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());
        assert!(transaction.commit().await.is_err(), "it has ended");
        pid(&database).await;
        stage.becomes("no open transaction", OPEN, 0).await;
        assert_eq!(stage.number(COUNT).await, 0);
    });
}

#[test]
fn a_connection_beside_the_pool_has_transactions_too() {
    run(async {
        let stage = Stage::new("beside").await;
        stage.run(TABLE).await;
        let mut connection = stage.database("pool_max_conns=1").connect("writer").await.expect("a connection");
        let mut transaction = connection.begin("write", LIMIT).await.expect("a transaction");
        transaction.execute("insert", INSERT, &[(&1_i64, Type::INT8)]).await.expect("it is done");
        drop(transaction);
        let seen: i64 = connection.all("count", COUNT, &[]).await.expect("a row")[0].get(0);
        assert_eq!(seen, 0);
        stage.becomes("no open transaction", OPEN, 0).await;
        let mut transaction = connection.begin("write", LIMIT).await.expect("a transaction");
        transaction.execute("insert", INSERT, &[(&2_i64, Type::INT8)]).await.expect("it is done");
        transaction.commit().await.expect("it is committed");
        assert_eq!(stage.number(COUNT).await, 1);
        assert!(!connection.is_closed());
    });
}
