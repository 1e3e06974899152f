//! Migrations: each once, whole or not at all, and never backwards.

use std::time::Duration;

use towline::test_api::db::migrations::{Error, Migration, Migrations, Status};

use crate::db::world::{LIMIT, Stage, run};

const FIRST: Migration = Migration {
    name: "make the schema",
    oldest: 1,
    sql: "CREATE TABLE test_meta (one boolean PRIMARY KEY DEFAULT true CHECK (one), migration int NOT NULL, base bigint, \
          oldest int NOT NULL DEFAULT 0, release text NOT NULL DEFAULT ''); INSERT INTO test_meta VALUES (true, 0, 17); CREATE TABLE applied (n int, by int DEFAULT pg_backend_pid()); \
          INSERT INTO applied VALUES (1); SELECT pg_sleep(0.3)",
};
const SECOND: Migration = Migration {
    name: "note the second",
    oldest: 2,
    sql: "INSERT INTO applied VALUES (2); CREATE PROCEDURE later() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$; \
          SELECT pg_sleep(0.3)",
};
const THIRD: Migration = Migration { name: "note the third", oldest: 3, sql: "INSERT INTO applied VALUES (3)" };
const FOURTH: Migration = Migration { name: "note the fourth", oldest: 4, sql: "INSERT INTO applied VALUES (4)" };
const BROKEN: Migration = Migration {
    name: "fail",
    oldest: 3,
    sql: "CREATE TABLE leftover (n int); INSERT INTO applied VALUES (3); UPDATE test_meta SET base = 18; SELECT 1 / 0",
};

/// The advisory locks of this database; the server has others.
const ADVISORY_LOCKS: &str = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
     WHERE d.datname = current_database() AND l.locktype = 'advisory'";

const TWO: Migrations = Migrations::new("test_meta", &[FIRST, SECOND]);
const THREE: Migrations = Migrations::new("test_meta", &[FIRST, SECOND, THIRD]);

/// What these migrations note of themselves: each needs a release that knows it.
fn at(applied: i32, known: i32) -> Status {
    let release = if applied == 0 { "" } else { env!("CARGO_PKG_VERSION") };
    Status { applied, known, oldest: applied, release: release.to_owned() }
}

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
        assert_eq!(THREE.run(&processes[0], LIMIT).await.expect("it is done"), at(3, 3));
        assert_eq!(applied(&stage).await, (vec![1, 2, 3], 3));
        stage.becomes("no lock", ADVISORY_LOCKS, 0).await;
    });
}

#[test]
fn a_schema_is_brought_up_to_date_from_where_it_is() {
    run(async {
        let stage = Stage::new("onwards").await;
        let database = stage.database("");
        assert_eq!(TWO.status(&database).await.expect("a status"), at(0, 2));
        assert_eq!(TWO.run(&database, LIMIT).await.expect("it is done").pending(), 2);
        assert_eq!(applied(&stage).await, (vec![1, 2], 2));
        assert_eq!(THREE.status(&database).await.expect("a status").pending(), 1);
        assert_eq!(THREE.run(&database, LIMIT).await.expect("it is done"), at(2, 3));
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
fn a_newer_schema_is_used_by_who_knows_the_oldest_migration_that_it_needs_and_refused_by_others() {
    // Which migration the third and the fourth one need, and whether a release that knows two may go on after them.
    for (third, fourth, is_used) in
        [(1, 1, true), (2, 2, true), (2, 1, true), (3, 3, false), (3, 1, false), (1, 4, false)]
    {
        run(async {
            let stage = Stage::new(&format!("newer{third}{fourth}")).await;
            let database = stage.database("");
            let list = [FIRST, SECOND, Migration { oldest: third, ..THIRD }, Migration { oldest: fourth, ..FOURTH }];
            Migrations::new("test_meta", list.to_vec().leak()).run(&database, LIMIT).await.expect("it is done");
            let status = TWO.status(&database).await.expect("a status can be read");
            assert_eq!((status.applied, status.known, status.pending(), status.is_newer()), (4, 2, 0, true));
            // Never lower than what an earlier one needs.
            let oldest = third.max(fourth).max(2);
            assert_eq!(status.oldest, oldest);
            for outcome in [status.check(), TWO.run(&database, LIMIT).await] {
                match outcome {
                    Ok(found) => assert!(is_used, "{found:?}"),
                    Err(Error::Newer { applied: 4, known: 2, oldest: needed, release }) => {
                        assert!(!is_used);
                        assert_eq!((needed, release.as_str()), (oldest, env!("CARGO_PKG_VERSION")));
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
            assert_eq!(applied(&stage).await, (vec![1, 2, 3, 4], 4));
        });
    }
}

#[test]
fn a_process_that_migrates_for_too_long_is_not_waited_for_longer_than_was_said() {
    run(async {
        let stage = Stage::new("waits").await;
        let database = stage.database("");
        let slow = Migrations::new(
            "test_meta",
            &[FIRST, Migration { name: "sleep", oldest: 2, sql: "SELECT pg_advisory_xact_lock_shared(1)" }],
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
        assert_eq!(migrating.await.expect("no panic").expect("it is done"), at(0, 2));
    });
}

#[test]
fn a_table_that_is_not_as_it_must_be_is_named() {
    run(async {
        let stage = Stage::new("tables").await;
        let database = stage.database("");
        let empty = Migrations::new(
            "Other Meta",
            &[Migration {
                name: "forget the row",
                oldest: 1,
                sql: "CREATE TABLE \"Other Meta\" (migration int, oldest int, release text)",
            }],
        );
        for _ in 0..2 {
            let error = empty.run(&database, LIMIT).await.expect_err("no row");
            assert!(matches!(&error, Error::Table { table, rows: 0 } if table == "public.\"Other Meta\""), "{error:?}");
        }
        stage.run("CREATE TABLE test_meta (migration int, oldest int, release text); INSERT INTO test_meta VALUES (1), (2)").await;
        let error = TWO.status(&database).await.expect_err("two rows");
        assert!(matches!(&error, Error::Table { table, rows: 2 } if table == "public.test_meta"), "{error:?}");
        // Each schema has migrations of its own.
        stage.run("CREATE SCHEMA other; ALTER ROLE postgres IN DATABASE tables SET search_path = other, public").await;
        assert_eq!(TWO.run(&stage.database(""), LIMIT).await.expect("it is done"), at(0, 2));
        assert_eq!(stage.number("SELECT migration::int8 FROM other.test_meta").await, 2);
        stage.run("ALTER ROLE postgres IN DATABASE tables SET search_path = nowhere").await;
        let error = TWO.status(&stage.database("")).await.expect_err("no schema");
        assert!(matches!(error, Error::NoSchema), "{error:?}");
    });
}
