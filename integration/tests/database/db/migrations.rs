//! Migrations: each once, whole or not at all, and never backwards.

use std::time::Duration;

use towline::test_api::db::migrations::{Error, Migration, Migrations, Status};

use crate::db::world::{LIMIT, Stage, run};

const FIRST: Migration = Migration {
    name: "make the schema",
    sql: "CREATE TABLE test_meta (one boolean PRIMARY KEY DEFAULT true CHECK (one), migration int NOT NULL, base bigint); \
          INSERT INTO test_meta VALUES (true, 0, 17); CREATE TABLE applied (n int, by int DEFAULT pg_backend_pid()); \
          INSERT INTO applied VALUES (1); SELECT pg_sleep(0.3)",
};
const SECOND: Migration = Migration {
    name: "note the second",
    sql: "INSERT INTO applied VALUES (2); CREATE PROCEDURE later() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$; \
          SELECT pg_sleep(0.3)",
};
const THIRD: Migration = Migration { name: "note the third", sql: "INSERT INTO applied VALUES (3)" };
const BROKEN: Migration = Migration {
    name: "fail",
    sql: "CREATE TABLE leftover (n int); INSERT INTO applied VALUES (3); UPDATE test_meta SET base = 18; SELECT 1 / 0",
};

/// The advisory locks of this database; the server has others.
const ADVISORY_LOCKS: &str = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
     WHERE d.datname = current_database() AND l.locktype = 'advisory'";

const TWO: Migrations = Migrations::new("test_meta", &[FIRST, SECOND]);
const THREE: Migrations = Migrations::new("test_meta", &[FIRST, SECOND, THIRD]);

/// The migrations that were applied, in order, and the number that is noted.
async fn applied(stage: &Stage) -> (Vec<i32>, i32) {
    let rows = stage.sql.query("SELECT n FROM applied ORDER BY n", &[]).await.expect("the table");
    let noted = stage.sql.query_one("SELECT migration FROM test_meta", &[]).await.expect("the table");
    (rows.iter().map(|row| row.get(0)).collect(), noted.get(0))
}

#[test]
fn each_is_applied_once_though_several_processes_migrate_at_once() {
    run(async {
        let stage = Stage::new("atonce").await;
        let processes: Vec<_> = (0..4).map(|_| stage.database("")).collect();
        let outcomes = futures::future::join_all(processes.iter().map(|database| THREE.run(database, LIMIT))).await;
        let mut found: Vec<i32> =
            outcomes.iter().map(|outcome| outcome.as_ref().expect("it is done").applied).collect();
        found.sort_unstable();
        assert_eq!(found, [0, 3, 3, 3], "one has applied all of them, the others none");
        assert_eq!(applied(&stage).await, (vec![1, 2, 3], 3));
        // Again, nothing is left to do, and the lock is free.
        assert_eq!(THREE.run(&processes[0], LIMIT).await.expect("it is done"), Status { applied: 3, known: 3 });
        assert_eq!(applied(&stage).await, (vec![1, 2, 3], 3));
        stage.becomes("no lock", ADVISORY_LOCKS, 0).await;
    });
}

#[test]
fn a_schema_is_brought_up_to_date_from_where_it_is() {
    run(async {
        let stage = Stage::new("onwards").await;
        let database = stage.database("");
        assert_eq!(TWO.status(&database).await.expect("a status"), Status { applied: 0, known: 2 });
        assert_eq!(TWO.run(&database, LIMIT).await.expect("it is done").pending(), 2);
        assert_eq!(applied(&stage).await, (vec![1, 2], 2));
        assert_eq!(THREE.status(&database).await.expect("a status").pending(), 1);
        assert_eq!(THREE.run(&database, LIMIT).await.expect("it is done"), Status { applied: 2, known: 3 });
        assert_eq!(applied(&stage).await, (vec![1, 2, 3], 3));
    });
}

#[test]
fn a_migration_that_fails_leaves_nothing_and_those_before_it_stay() {
    run(async {
        let stage = Stage::new("broken").await;
        let database = stage.database("");
        let broken = Migrations::new("test_meta", &[FIRST, SECOND, BROKEN]);
        for _ in 0..2 {
            let error = broken.run(&database, LIMIT).await.expect_err("it divides by zero");
            let Error::Apply { number: 3, name: "fail", source } = &error else { panic!("{error:?}") };
            assert_eq!(source.server().map(towline::test_api::db::ServerError::code), Some("22012"));
            assert_eq!(applied(&stage).await, (vec![1, 2], 2));
            assert_eq!(stage.number("SELECT base FROM test_meta").await, 17);
            assert_eq!(stage.number("SELECT count(*) FROM pg_class WHERE relname = 'leftover'").await, 0);
        }
        // Mended, it goes on: the lock has not been kept.
        THREE.run(&database, LIMIT).await.expect("it is done");
        assert_eq!(applied(&stage).await, (vec![1, 2, 3], 3));
    });
}

#[test]
fn a_schema_that_is_newer_than_the_program_is_refused() {
    run(async {
        let stage = Stage::new("newer").await;
        let database = stage.database("");
        THREE.run(&database, LIMIT).await.expect("it is done");
        let status = TWO.status(&database).await.expect("a status is no judgement");
        assert_eq!((status, status.pending()), (Status { applied: 3, known: 2 }, 0));
        for error in [status.check().expect_err("newer"), TWO.run(&database, LIMIT).await.expect_err("newer")] {
            assert!(matches!(error, Error::Newer { applied: 3, known: 2 }), "{error:?}");
        }
        assert_eq!(applied(&stage).await, (vec![1, 2, 3], 3));
    });
}

#[test]
fn a_process_that_migrates_for_too_long_is_not_waited_for_longer_than_was_said() {
    run(async {
        let stage = Stage::new("waits").await;
        let database = stage.database("");
        let slow = Migrations::new(
            "test_meta",
            &[FIRST, Migration { name: "sleep", sql: "SELECT pg_advisory_xact_lock_shared(1)" }],
        );
        // The second migration waits for this.
        stage.run("SELECT pg_advisory_lock(1)").await;
        let migrating = tokio::spawn({
            let database = database.clone();
            async move { slow.run(&database, LIMIT).await }
        });
        let waiting = format!("{ADVISORY_LOCKS} AND NOT granted");
        stage.becomes("the second migration to wait", &waiting, 1).await;
        let within = Duration::from_millis(200);
        let error = slow.run(&database, within).await.expect_err("another one has the lock");
        assert!(matches!(error, Error::Locked { within: told } if told == within), "{error:?}");
        stage.run("SELECT pg_advisory_unlock(1)").await;
        assert_eq!(migrating.await.expect("no panic").expect("it is done"), Status { applied: 0, known: 2 });
    });
}

#[test]
fn a_table_that_is_not_as_it_must_be_is_named() {
    run(async {
        let stage = Stage::new("tables").await;
        let database = stage.database("");
        let empty = Migrations::new(
            "Other Meta",
            &[Migration { name: "forget the row", sql: "CREATE TABLE \"Other Meta\" (migration int)" }],
        );
        for _ in 0..2 {
            let error = empty.run(&database, LIMIT).await.expect_err("no row");
            assert!(matches!(&error, Error::Table { table, rows: 0 } if table == "public.\"Other Meta\""), "{error:?}");
        }
        stage.run("CREATE TABLE test_meta (migration int); INSERT INTO test_meta VALUES (1), (2)").await;
        let error = TWO.status(&database).await.expect_err("two rows");
        assert!(matches!(&error, Error::Table { table, rows: 2 } if table == "public.test_meta"), "{error:?}");
        // Each schema has migrations of its own.
        stage.run("CREATE SCHEMA other; ALTER ROLE postgres IN DATABASE tables SET search_path = other, public").await;
        assert_eq!(TWO.run(&stage.database(""), LIMIT).await.expect("it is done"), Status { applied: 0, known: 2 });
        assert_eq!(stage.number("SELECT migration::int8 FROM other.test_meta").await, 2);
        stage.run("ALTER ROLE postgres IN DATABASE tables SET search_path = nowhere").await;
        let error = TWO.status(&stage.database("")).await.expect_err("no schema");
        assert!(matches!(error, Error::NoSchema), "{error:?}");
    });
}
