//! Versions after a failover or a restore: none is given out twice.

use integration::postgres::{ADMIN, Transport};
use integration::{Postgres, eventually};
use towline::test_api::documents::{self, Claims, Expected, Holder, Item, Role, Store, WorkClaim};

use crate::documents::claims::Running;
use crate::documents::world::{LIMIT, Stage, Written, cluster, create, fresh_id, item, put, row, run};

/// How far versions are lifted.
const LIFT: i64 = 1 << 40;
const BASE: &str = "select base from towline_meta";
const NEWEST: &str = "select greatest(base, (select max(version) from towline_log)) from towline_meta";
const SAME_ORIGIN: &str = "select count(*) from towline_meta where origin = towline_origin()";

#[test]
fn a_restored_dump_is_renumbered_by_the_first_write_and_keeps_its_documents() {
    run(async {
        let stage = Stage::new("dumped").await;
        let version = stage.writer().version(create("c1")).await;
        let restored = Stage::empty("restored").await;
        stage.place.dump().await.expect("a dump").restore(&restored.place).await.expect("it is restored");
        // What the dump does not have.
        let lost = stage.writer().version(create("c2")).await;
        assert_eq!((restored.number(NEWEST).await, restored.number(SAME_ORIGIN).await), (version, 0));
        // Two replicas notice at once, with batches under way.
        let writers = [restored.writer(), restored.writer()];
        let (one, other) = tokio::join!(writers[0].version(create("c3")), writers[1].version(create("c4")));
        let base = restored.number(BASE).await;
        assert_eq!(base, version + LIFT, "it was renumbered once");
        assert_eq!((one.min(other), one.max(other)), (base + 1, base + 2));
        assert!(base > lost && restored.number(SAME_ORIGIN).await == 1);
        // A decision that was made from a version of before is still good.
        let again = towline::test_api::documents::Change::put(&cluster("c1"), Expected::Version(version), row());
        assert_eq!(writers[0].version(item(vec![again])).await, base + 3);
        let found = Store::new(restored.database()).get(&cluster("c1")).await.expect("a read").expect("a document");
        assert_eq!(found.version, base + 3);
        // The database that was dumped goes on as before.
        assert_eq!(stage.writer().version(create("c3")).await, lost + 1);
    });
}

/// docs/hub.md: a dump for a server without LZ4 does not name it. The servers of the tests are built with it.
#[test]
fn a_dump_without_compression_of_tables_can_be_restored_where_lz4_is_unknown() {
    run(async {
        let stage = Stage::new("dumped_plain").await;
        let as_ever = stage.place.dump_text(&[]).await.expect("a dump");
        assert!(as_ever.contains("SET COMPRESSION lz4"), "the tables are compressed with LZ4");
        let for_others = stage.place.dump_text(&["--no-toast-compression"]).await.expect("a dump");
        assert!(for_others.contains("towline_log") && !for_others.to_lowercase().contains("lz4"), "{for_others}");
    });
}

#[test]
fn a_restored_snapshot_has_the_same_origin_and_is_renumbered_by_order() {
    run(async {
        let server = Postgres::start("imaged", Transport::Plain).await.expect("a server");
        let stage = Stage::on(&server, "imaged").await;
        let version = stage.writer().version(create("c1")).await;
        let copy = server.snapshot("image").await.expect("a copy");
        let lost = stage.writer().version(create("c2")).await;
        let copied = Stage::of(copy.copied_database(&stage.place)).await;
        assert_eq!((copied.number(NEWEST).await, copied.number(SAME_ORIGIN).await), (version, 1));
        let database = copied.database();
        assert_eq!(documents::renumber(&database, false).await.expect("an answer"), None);
        let base = documents::renumber(&database, true).await.expect("an answer").expect("a base");
        assert!(base >= version + LIFT && base > lost, "{base}");
        assert_eq!(copied.number(NEWEST).await, base);
        assert_eq!(copied.writer().version(create("c2")).await, base + 1);
        // Again by order: further up.
        let further = documents::renumber(&database, true).await.expect("an answer");
        assert_eq!(further, Some(base + 1 + LIFT));
        // Also above a version that only a document has.
        let newest = base + 1 + LIFT + 1_000;
        copied.run(&format!("update clusters set version = {newest} where name = 'c1'")).await;
        let above = documents::renumber(&database, true).await.expect("an answer");
        assert_eq!(above, Some(newest + LIFT));
    });
}

#[test]
fn a_writer_that_is_given_versions_again_renumbers_by_itself() {
    run(async {
        let stage = Stage::new("givenagain").await;
        let writer = stage.writer();
        let version = writer.version(create("c1")).await;
        let lost = writer.version(create("c2")).await;
        // What a restored snapshot of the disk looks like: it has neither the last versions nor another origin.
        let admin = stage.place.client(ADMIN).await.expect("a connection");
        let back = format!(
            "delete from towline_documents where version > {version}; delete from towline_log where version > {version}; \
             select setval('towline_version', {version})"
        );
        admin.batch_execute(&back).await.expect("it is undone");
        let first = writer.version(create("c3")).await;
        assert!(first <= lost, "{first}");
        assert!(stage.number("select base from towline_meta").await >= lost + LIFT);
        let next = writer.version(create("c4")).await;
        assert!(next > lost + LIFT, "{next}");
        assert_eq!(writer.version(create("c5")).await - next, lost - version, "once");
    });
}

#[test]
fn a_restore_under_running_replicas_gives_out_no_version_twice() {
    run(async {
        let stage = Stage::new("cleaned").await;
        let writer = stage.writer();
        let version = writer.version(create("c1")).await;
        let dump = stage.place.dump().await.expect("a dump");
        let lost = writer.version(create("c2")).await;
        // What happens meanwhile is refused or written; what is written in between may go with the restore.
        let handle = writer.handle.clone();
        let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
        let writing = tokio::spawn(async move {
            let mut written = Vec::new();
            while stopped.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
                if let Ok(documents::Outcome::Written { version, .. }) = handle.write(put("c3")).await {
                    written.push(version);
                }
            }
            written
        });
        stage.becomes("writes under way", "select count(*) from clusters where name = 'c3'", 1).await;
        dump.replace(&stage.place).await.expect("it is restored");
        let restored = writer.version(put("c4")).await;
        drop(stop);
        let mut written = writing.await.expect("no panic");
        assert!(restored > lost + LIFT - 1 && restored > version + LIFT, "{restored}");
        let count = written.len();
        written.sort_unstable();
        written.dedup();
        assert_eq!(written.len(), count, "a version was given out twice");
        let base = stage.number(BASE).await;
        assert!(base > lost && base < restored, "{base}");
        assert_eq!(stage.number("select count(*) - count(distinct version) from towline_log").await, 0);
    });
}

#[test]
fn a_sequence_that_was_set_back_by_a_restore_gives_out_no_version_twice() {
    run(async {
        let stage = Stage::new("setback").await;
        let writer = stage.writer();
        let version = writer.version(create("c1")).await;
        let base = documents::renumber(&stage.database(), true).await.expect("an answer").expect("a base");
        let lifted = writer.version(create("c2")).await;
        assert_eq!((base, lifted), (version + LIFT, base + 1));
        stage.run(&format!("select setval('towline_version', {version})")).await;
        let next = writer.version(create("c3")).await;
        assert_eq!(next, lifted + LIFT + 1);
        // A restore that has not come to this row yet: nothing is written.
        stage.run("create table kept as table towline_meta; delete from towline_meta").await;
        let error = writer.handle.write(create("c4")).await.expect_err("the database is not complete");
        assert!(
            matches!(&error, documents::WriteError::Unavailable(error) if error.server().unwrap().code() == "TW001"),
            "{error:?}"
        );
        stage.run("insert into towline_meta table kept").await;
        assert_eq!(writer.version(create("c4")).await, next + 1);
    });
}

#[test]
fn one_of_several_that_notice_another_origin_renumbers() {
    run(async {
        let stage = Stage::new("notices").await;
        stage.run("update towline_meta set origin = 'elsewhere'").await;
        let databases: Vec<_> = (0..4).map(|_| stage.database()).collect();
        let all = databases.iter().map(|database| documents::renumber(database, false));
        let bases = futures::future::join_all(all).await;
        let bases: Vec<Option<i64>> = bases.into_iter().map(|base| base.expect("an answer")).collect();
        assert_eq!(bases.iter().flatten().count(), 1, "{bases:?}");
        assert_eq!(stage.number(NEWEST).await, bases.into_iter().flatten().max().expect("a base"));
    });
}

#[test]
fn a_renumbering_ends_all_claims_with_a_higher_token_and_blocks_new_ones_for_30_s() {
    run(async {
        let stage = Stage::new("ended").await;
        let id = fresh_id();
        let work = format!(
            "insert into towline_work (cluster, ready_at, holder, token, until) \
             values ('{id}', now(), 'one', 7, now() + interval '1 h'); \
             update towline_claim set holder = 'somebody', token = 3, until = now() + interval '1 h', cursor = 41 where name = 'relay'"
        );
        stage.run(&work).await;
        let claims = Claims::new(&stage.database(), Holder::of_this_process(), towline::test_api::cluster::Clock::Boot);
        let mut leadership = claims.role(Role::Compaction);
        let running = Running::start(claims);
        let grant = leadership.granted().await;
        let writer: Written = stage.writer();
        documents::renumber(&stage.database(), true).await.expect("an answer").expect("a base");
        let expired = tokio::time::timeout(LIMIT, grant.expired()).await.expect("the holder learns of it");
        assert!(expired.section.contains("compaction") && leadership.grant().is_none());
        let claim = WorkClaim { cluster: id.parse().expect("a UUID"), holder: "one".to_owned(), token: 7 };
        let outcome = writer.handle.write(Item { claim: Some(claim), ..put("c1") }).await.expect("an outcome");
        assert_eq!(outcome, documents::Outcome::Fenced);
        let tokens = "select token from towline_work union all select token from towline_claim order by 1";
        // Also of a role that nobody has ever led, as far as this database knows.
        let mut expected = vec![8, 4, 1, grant.token + 1];
        expected.sort_unstable();
        assert_eq!(stage.numbers(tokens).await, expected);
        for table in ["towline_work", "towline_claim"] {
            let free = format!(
                "select count(*) from {table} where holder is not null or until is null \
                 or until not between now() and now() + interval '30 s'"
            );
            assert_eq!(stage.number(&free).await, 0, "{table}");
        }
        drop(running);
    });
}

#[test]
fn nothing_is_granted_while_the_origin_differs() {
    run(async {
        let stage = Stage::new("differs").await;
        stage.run("update towline_meta set origin = 'elsewhere'").await;
        let claims = Claims::new(&stage.database(), Holder::of_this_process(), towline::test_api::cluster::Clock::Boot);
        let mut leadership = claims.role(Role::Compaction);
        let _running = Running::start(claims);
        let asked = "select count(*) from pg_stat_activity where datname = current_database() \
             and application_name like '%claims' and state = 'idle' and query like 'with free as%towline_claim%'";
        stage.becomes("the claim to be asked for", asked, 1).await;
        let granted = "select count(*) from towline_claim where holder is not null or token <> 0 or until is not null";
        assert_eq!((stage.number(granted).await, leadership.grant().is_none()), (0, true));
        stage.run("update towline_meta set origin = towline_origin()").await;
        let granted =
            eventually("the claim to be granted", LIMIT, async || leadership.grant().ok_or("none".to_owned()));
        assert_eq!(granted.await.unwrap().token, 1);
        assert_eq!(leadership.granted().await.token, 1);
    });
}
