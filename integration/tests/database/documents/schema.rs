//! The schema, and which servers are refused.

use towline::test_api::documents::{self, Key, Kind, Migrated, SCHEMA, Store};

use crate::documents::world::{LIMIT, Stage, create, run, source};

#[test]
fn the_schema_is_made_once_however_many_replicas_start() {
    run(async {
        let stage = Stage::empty("once").await;
        let replicas: Vec<_> = (0..3).map(|_| stage.database()).collect();
        let made = futures::future::join_all(replicas.iter().map(|replica| documents::migrate(replica, LIMIT))).await;
        let mut before: Vec<i32> = made.into_iter().map(|made| made.expect("the schema").before.applied).collect();
        before.sort_unstable();
        let status = SCHEMA.status(&replicas[0]).await.expect("a status");
        let known = status.known;
        assert_eq!(before, [0, known, known]);
        let again = documents::migrate(&replicas[0], LIMIT).await.expect("nothing is left to do");
        assert_eq!(again, Migrated { before: status, shows_origin: true });
        for kind in Kind::ALL {
            let table = format!("select count(*) from {}", kind.plural());
            assert_eq!(stage.number(&table).await, 0);
        }
        assert_eq!(
            stage.number("select count(*) from towline_meta where origin = towline_origin() and base = 0").await,
            1
        );
        // The cluster of databases, its timeline, and the table.
        let origin = "select (towline_origin() = system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) \
             || '/' || 'towline_log'::regclass::oid)::int::bigint from pg_control_system()";
        assert_eq!(stage.number(origin).await, 1);
    });
}

#[test]
fn a_document_is_a_row_of_its_kinds_table() {
    run(async {
        let stage = Stage::new("tables").await;
        stage.writer().version(create("c1")).await;
        let row =
            stage.sql.query_one("select namespace, name, labels->>'env' from clusters", &[]).await.expect("a row");
        let [namespace, name, label] = [0, 1, 2].map(|column| row.get::<_, String>(column));
        assert_eq!([namespace, name, label], ["foo", "c1", "prod"]);
        let other = Store::new(stage.database()).get(&Key::new(Kind::SyncSet, "foo", "c1")).await.expect("a read");
        assert_eq!(other, None);
    });
}

#[test]
fn an_account_that_may_not_see_where_versions_come_from_has_a_hub_all_the_same() {
    run(async {
        let stage = Stage::empty("managed").await;
        stage
            .run(
                "revoke execute on function pg_control_system() from public; \
                 create role customer login password 'customer'; grant create on schema public to customer",
            )
            .await;
        let url = format!("postgres://customer:customer@localhost:{}/managed", stage.place.address().port());
        let database = documents::open(source(&url));
        let made = documents::migrate(&database, LIMIT).await.expect("the schema");
        assert!(!made.shows_origin, "{made:?}");
        let writer = crate::documents::world::Written::to(database);
        assert_eq!(writer.version(create("c1")).await, 1);
        assert_eq!(stage.number("select count(*) from towline_meta where origin = ''").await, 1);
    });
}

#[test]
fn connections_have_limits_and_the_writer_has_one_of_its_own() {
    run(async {
        let stage = Stage::new("limits").await;
        let writer = stage.writer();
        writer.version(create("c1")).await;
        let database = stage.database();
        for (setting, expected) in [
            ("statement_timeout", "30s"),
            ("jit", "off"),
            ("lock_timeout", "5s"),
            ("idle_in_transaction_session_timeout", "30s"),
            ("default_transaction_isolation", "read committed"),
            ("TimeZone", "UTC"),
            ("tcp_keepalives_idle", "10"),
            ("tcp_keepalives_interval", "5"),
            ("tcp_keepalives_count", "3"),
        ] {
            let rows = database.all("show", &format!("show {setting}"), &[]).await.expect("a row");
            assert_eq!(rows[0].get::<_, &str>(0), expected, "{setting}");
        }
        let names = "select application_name from pg_stat_activity \
             where datname = current_database() and application_name <> 'fixture' order by 1";
        let rows = stage.sql.query(names, &[]).await.expect("rows");
        let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert_eq!(names.iter().filter(|name| name.ends_with(" writer")).count(), 1, "{names:?}");
    });
}

/// No server that is too old can be had here: a function of the database's own, which is found first, says that it is one.
#[test]
fn a_server_that_is_too_old_is_refused() {
    run(async {
        let stage = Stage::new("ancient").await;
        let pretend = "create function current_setting(name text) returns text language sql as $$ \
             select case name when 'server_version_num' then '120017' else pg_catalog.current_setting(name) end $$; \
             alter database ancient set search_path = public, pg_catalog";
        stage.run(pretend).await;
        let error = stage.database().all("any", "select 1", &[]).await.expect_err("too old");
        assert_eq!((error.kind(), error.server().expect("an answer").code()), ("set_up", "TW004"));
        stage.run("drop function public.current_setting(text)").await;
        assert!(stage.database().all("any", "select 1", &[]).await.is_ok());
    });
}
