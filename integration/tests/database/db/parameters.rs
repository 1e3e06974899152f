//! Parameters and columns of every type that is used.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use towline::test_api::db::{Database, Error, Json, Row, Type};

use crate::db::world::{Stage, run};

const TABLE: &str = "CREATE TABLE kept (n int8, t text, u uuid, j jsonb, at timestamptz, b bytea, l text[], f bool)";
const INSERT: &str = "INSERT INTO kept VALUES ($1, $2, $3::text::uuid, $4, $5, $6, $7, $8)";
const SELECT: &str = "SELECT n, t, u::text, j, at, b, l, f FROM kept";
const UUID: &str = "6f1c2f60-1f0a-4c7c-9d9a-0c6f3f1c2a11";

/// Microseconds, which is what the server keeps.
fn moment() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(1_795_305_600_123_456)
}

async fn insert(database: &Database) -> Result<u64, Error> {
    let (document, bytes) = (Json(json!({"a": [1, 2.5, null], "ü": "x"})), vec![0_u8, 1, 255]);
    let list = vec!["one".to_owned(), String::new(), "it's {\"2\"}".to_owned()];
    let text = "two\nlines, and a quote: '";
    let number = i64::MIN;
    database
        .execute(
            "insert",
            INSERT,
            &[
                (&number, Type::INT8),
                (&text, Type::TEXT),
                (&UUID, Type::TEXT),
                (&document, Type::JSONB),
                (&moment(), Type::TIMESTAMPTZ),
                (&bytes, Type::BYTEA),
                (&list, Type::TEXT_ARRAY),
                (&true, Type::BOOL),
            ],
        )
        .await
}

async fn only(database: &Database) -> Row {
    let mut rows = database.all("select", SELECT, &[]).await.expect("rows");
    assert_eq!(rows.len(), 1);
    rows.remove(0)
}

#[test]
fn every_type_comes_back_as_it_was_sent() {
    run(async {
        let stage = Stage::new("everytype").await;
        stage.run(TABLE).await;
        let database = stage.database("");
        assert_eq!(insert(&database).await.expect("it is inserted"), 1);
        let row = only(&database).await;
        assert_eq!(row.get::<_, i64>(0), i64::MIN);
        assert_eq!(row.get::<_, &str>(1), "two\nlines, and a quote: '");
        assert_eq!(row.get::<_, &str>(2), UUID);
        assert_eq!(row.get::<_, Json<Value>>(3).0, json!({"a": [1, 2.5, null], "ü": "x"}));
        assert_eq!(row.get::<_, SystemTime>(4), moment());
        assert_eq!(row.get::<_, &[u8]>(5), [0, 1, 255]);
        assert_eq!(row.get::<_, Vec<String>>(6), ["one", "", "it's {\"2\"}"]);
        assert!(row.get::<_, bool>(7));
        // As the server itself understands them.
        let sent = "SELECT count(*) FROM kept WHERE j = '{\"a\": [1, 2.5, null], \"ü\": \"x\"}' AND b = '\\x0001ff' \
                    AND at = '2026-11-22 00:00:00.123456+00' AND l[3] = 'it''s {\"2\"}'";
        assert_eq!(stage.number(sent).await, 1);
    });
}

#[test]
fn every_type_may_be_null() {
    run(async {
        let stage = Stage::new("nulls").await;
        stage.run(TABLE).await;
        let database = stage.database("");
        let (number, text, moment): (Option<i64>, Option<&str>, Option<SystemTime>) = (None, None, None);
        let (document, bytes): (Option<Json<Value>>, Option<Vec<u8>>) = (None, None);
        let (list, flag): (Option<Vec<String>>, Option<bool>) = (None, None);
        let changed = database
            .execute(
                "insert",
                INSERT,
                &[
                    (&number, Type::INT8),
                    (&text, Type::TEXT),
                    (&text, Type::TEXT),
                    (&document, Type::JSONB),
                    (&moment, Type::TIMESTAMPTZ),
                    (&bytes, Type::BYTEA),
                    (&list, Type::TEXT_ARRAY),
                    (&flag, Type::BOOL),
                ],
            )
            .await
            .expect("it is inserted");
        assert_eq!(changed, 1);
        let row = only(&database).await;
        assert_eq!(row.get::<_, Option<i64>>(0), None);
        assert_eq!((row.get::<_, Option<&str>>(1), row.get::<_, Option<&str>>(2)), (None, None));
        assert!(row.get::<_, Option<Json<Value>>>(3).is_none());
        assert_eq!(row.get::<_, Option<SystemTime>>(4), None);
        assert_eq!(row.get::<_, Option<&[u8]>>(5), None);
        assert_eq!(row.get::<_, Option<Vec<String>>>(6), None);
        assert_eq!(row.get::<_, Option<bool>>(7), None);
        let all = "SELECT count(*) FROM kept WHERE num_nulls(n, t, u, j, at, b, l, f) = 8";
        assert_eq!(stage.number(all).await, 1);
    });
}

#[test]
fn rows_are_streamed_and_those_that_were_changed_are_counted() {
    run(async {
        let stage = Stage::new("streamed").await;
        let database = stage.database("pool_max_conns=1");
        let mut rows =
            database.rows("series", "SELECT generate_series(1, $1)", &[(&3_i64, Type::INT8)]).await.expect("rows");
        let mut found = Vec::new();
        while let Some(row) = rows.next().await.expect("a row or the end") {
            found.push(rows.column::<i64>(&row, 0).expect("a number"));
        }
        drop(rows);
        assert_eq!(found, [1, 2, 3]);
        stage.run("CREATE TABLE kept AS SELECT generate_series(1, 10) AS n").await;
        let (delete, above) = ("DELETE FROM kept WHERE n > $1", 4_i32);
        assert_eq!(database.execute("delete", delete, &[(&above, Type::INT4)]).await.expect("it is done"), 6);
        assert_eq!(database.execute("delete", delete, &[(&above, Type::INT4)]).await.expect("it is done"), 0);
    });
}

#[test]
fn a_parameter_of_the_wrong_type_is_an_error_and_the_connection_is_kept() {
    run(async {
        let stage = Stage::new("misfits").await;
        let database = stage.database("pool_max_conns=1");
        let before = crate::db::world::pid(&database).await;
        let error = database.all("wrong", "SELECT $1", &[(&1_i64, Type::TEXT)]).await.expect_err("no text");
        assert_eq!((error.kind(), error.is_unreachable()), ("encode", false), "{error:?}");
        let rows = database.rows("wrong", "SELECT 'x'::text", &[]).await.expect("rows");
        let error = towline::test_api::db::column::<i64>("wrong", &rows.rest().await.expect("a row")[0], 0)
            .expect_err("no number");
        assert_eq!(error.kind(), "decode");
        let error = database.all("wrong", "SELECT $1::text::int8", &[(&"x", Type::TEXT)]).await.expect_err("no number");
        assert_eq!(error.server().map(towline::test_api::db::ServerError::code), Some("22P02"), "{error:?}");
        assert_eq!(error.to_string(), "statement wrong failed (22P02)");
        assert_eq!(crate::db::world::pid(&database).await, before);
    });
}

#[test]
fn an_error_does_not_quote_the_row() {
    run(async {
        let stage = Stage::new("unquoted").await;
        stage.run("CREATE TABLE kept (t text PRIMARY KEY CHECK (t <> 'hunter2'))").await;
        let database = stage.database("");
        let insert = "INSERT INTO kept VALUES ($1)";
        let error = database.execute("insert", insert, &[(&"hunter2", Type::TEXT)]).await.expect_err("the check");
        assert_eq!(error.server().and_then(towline::test_api::db::ServerError::constraint), Some("kept_t_check"));
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    });
}
