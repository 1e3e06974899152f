//! Connections: by which strings they are made, how they are set up, and how long one of the pool is waited for.

use std::time::{Duration, Instant};

use integration::Postgres;
use integration::postgres::{ADMIN, READER, Transport};
use towline::test_api::db::{Database, Error};

use crate::db::world::{LIMIT, Stage, pid, run, source};
use crate::servers::of_library;

/// What the hub runs first on each connection, as far as a test can tell.
const SET_UP: &str = "DO $$ BEGIN IF pg_is_in_recovery() OR current_setting('server_version_num')::int < 130000 THEN \
     RAISE EXCEPTION 'the server is in recovery or older than 13'; END IF; END $$; \
     SET timezone = 'UTC'; SET statement_timeout = '31s'; SET tcp_keepalives_idle = 10";
const SHOWN: &str = "SELECT concat_ws(' ', current_setting('timezone'), current_setting('statement_timeout'))";

#[test]
fn keywords_and_urls_connect_over_tcp_and_over_the_socket() {
    run(async {
        let stage = Stage::new("strings").await;
        let sockets = stage.place.socket_directory().display().to_string();
        let (tcp, socket) = (stage.place.keywords(ADMIN, "localhost"), stage.place.keywords(ADMIN, &sockets));
        let port = stage.place.address().port();
        let encoded = sockets.replace('/', "%2F");
        let addressed = tcp.replace("host=localhost", "hostaddr=127.0.0.1");
        let reader = stage.place.keywords(READER, "localhost");
        for (text, is_tcp) in [
            (format!("{tcp} password=admin sslmode=disable"), true),
            (format!("{tcp} password='admin' sslmode = require pool_max_conns=2"), true),
            (format!("{addressed} password=admin"), true),
            (format!("{reader} password='reader p@ss/word'"), true),
            // Nobody listens at the first.
            (format!("host=127.0.0.1,localhost port=1,{port} user={ADMIN} dbname=strings password=admin"), true),
            (format!("{socket} sslmode=require"), false),
            (format!("postgres://{ADMIN}@{encoded}:{port}/strings?sslmode=disable"), false),
            (format!("postgresql://{ADMIN}@/strings?host={encoded}&port={port}"), false),
        ] {
            let database = Database::new(source(&text));
            let address = "SELECT inet_server_addr() IS NOT NULL AND current_database() = 'strings'";
            let rows = database.all("address", address, &[]).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
            assert_eq!(rows[0].get::<_, bool>(0), is_tcp, "{text}");
        }
        let wrong = Database::new(source(&format!("{reader} password='reader p@ss'")));
        let error = wrong.all("nothing", "SELECT", &[]).await.expect_err("another password");
        assert_eq!(error.kind(), "unauthorized", "{error:?}");
    });
}

#[test]
fn every_sslmode_does_what_its_name_says() {
    run(async {
        let both = Stage::new("sslmodes").await;
        let tls = Postgres::start("tls", Transport::Tls).await.expect("a server");
        let plain = of_library().await;
        let (only, never) = (Stage::on(&tls, "sslmodes").await, Stage::on(plain, "sslmodes").await);
        let (tls_url, both_url, plain_url) = (only.place.url(READER), both.place.url(READER), never.place.url(READER));
        let elsewhere = tls_url.replace("@localhost:", "@elsewhere.example:");
        let (own, others) = (tls.authority().display().to_string(), plain.authority().display().to_string());
        for (url, mode, works) in [
            (&plain_url, "disable".to_owned(), true),
            (&plain_url, "allow".to_owned(), true),
            (&plain_url, "prefer".to_owned(), true),
            (&plain_url, "require".to_owned(), false),
            (&both_url, "prefer".to_owned(), true),
            (&tls_url, "disable".to_owned(), false),
            (&tls_url, "allow".to_owned(), true),
            (&tls_url, "prefer".to_owned(), true),
            (&tls_url, "require".to_owned(), true),
            (&tls_url, format!("require&sslrootcert={others}"), false),
            (&tls_url, format!("verify-ca&sslrootcert={own}"), true),
            (&tls_url, format!("verify-ca&sslrootcert={others}"), false),
            (&tls_url, "verify-full".to_owned(), false),
            (&tls_url, format!("verify-full&sslrootcert={own}"), true),
            // The server by a name that its certificate does not have.
            (&elsewhere, format!("require&hostaddr=127.0.0.1&sslrootcert={own}"), true),
            (&elsewhere, format!("verify-ca&hostaddr=127.0.0.1&sslrootcert={own}"), true),
            (&elsewhere, format!("verify-full&hostaddr=127.0.0.1&sslrootcert={own}"), false),
        ] {
            let database = Database::new(source(&format!("{url}?sslmode={mode}")));
            let outcome = database.all("nothing", "SELECT", &[]).await;
            assert_eq!(outcome.is_ok(), works, "{url} sslmode={mode}: {:?}", outcome.err());
        }
    });
}

#[test]
fn every_new_connection_is_set_up() {
    run(async {
        let stage = Stage::new("setup").await;
        let text = format!("{}?pool_max_conns=1", stage.place.url(ADMIN));
        let database = Database::with_set_up(source(&text), SET_UP);
        let first = pid(&database).await;
        for _ in 0..2 {
            let shown: String = database.all("show", SHOWN, &[]).await.expect("a row")[0].get(0);
            assert_eq!(shown, "UTC 31s");
            // The next one is another connection.
            stage.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'setup' AND pid <> pg_backend_pid()").await;
            let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'setup' AND pid <> pg_backend_pid()";
            stage.becomes("the connection to end", others, 0).await;
            // Until the driver has seen the end, the pool can't know of it.
            while database.all("show", SHOWN, &[]).await.is_err() {}
        }
        assert_ne!(pid(&database).await, first);
        let mut beside = database.connect("writer").await.expect("a connection");
        let row = &beside.all("show", SHOWN, &[]).await.expect("a row")[0];
        assert_eq!(row.get::<_, &str>(0), "UTC 31s");
        let name =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = 'setup' AND application_name = 'towline writer'";
        assert_eq!(stage.number(name).await, 1);
        let (session, mut messages) = database.session("tail").await.expect("a session");
        let rows = tokio::select! {
            rows = session.rows("show", SHOWN, &[]) => rows.expect("a row"),
            lost = messages.until_lost() => panic!("{lost:?}"),
        };
        assert_eq!(rows[0].get::<_, &str>(0), "UTC 31s");
    });
}

#[test]
fn a_server_that_the_set_up_refuses_is_not_used() {
    run(async {
        let stage = Stage::new("refused").await;
        let refuse = "DO $$ BEGIN RAISE EXCEPTION 'the server is in recovery'; END $$";
        let database = Database::with_set_up(source(&stage.place.url(ADMIN)), refuse);
        // It is told why: had it waited for a connection until its patience ended, it would be told that instead.
        let pooled = database.all("nothing", "SELECT", &[]).await.expect_err("no connection");
        let beside = database.connect("writer").await.map(drop).expect_err("no connection");
        let session = database.session("tail").await.map(drop).expect_err("no connection");
        for error in [pooled, beside, session] {
            assert_eq!(error.kind(), "set_up");
            assert_eq!(
                error.server().map(towline::test_api::db::ServerError::message),
                Some("the server is in recovery")
            );
        }
        let left = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'refused' AND pid <> pg_backend_pid()";
        stage.becomes("what was refused to hang up", left, 0).await;
    });
}

#[test]
fn a_connection_of_the_pool_is_waited_for_as_long_as_was_said() {
    run(async {
        let stage = Stage::new("patience").await;
        let database = stage.database("pool_max_conns=1").waiting_at_most(Duration::from_secs(1));
        let held = database.begin("hold", LIMIT).await.expect("a transaction");
        let begun = Instant::now();
        let error = database.all("nothing", "SELECT", &[]).await.expect_err("no connection is free");
        assert!(matches!(error, Error::PoolExhausted { seconds: 1 }), "{error:?}");
        assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
        drop(held);
        pid(&database).await;
    });
}

#[test]
fn a_connection_whose_statement_was_not_answered_is_closed_and_takes_no_other() {
    run(async {
        let stage = Stage::new("unanswered").await;
        let within = Duration::from_millis(300);
        let mut connection = stage.database("").answering_within(within).connect("claims").await.expect("a connection");
        let error = connection.execute("sleep", "SELECT pg_sleep(600)", &[]).await.expect_err("no answer");
        assert!(matches!(error, Error::Silent { query: "sleep", .. }), "{error:?}");
        assert!(connection.is_closed());
        let error = connection.execute("next", "SELECT 1", &[]).await.expect_err("it is closed");
        assert!(matches!(error, Error::Lost { query: "next", .. }), "{error:?}");
        let sleepers = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'unanswered' AND query LIKE '%sleep(600)' \
                        AND pid <> pg_backend_pid()";
        drop(connection);
        stage.becomes("the statement to be cancelled", sleepers, 0).await;
    });
}
