//! Answers that are lost: no item is applied twice, and none is said to be unwritten that may be written.

use integration::postgres::{ADMIN, Transport};
use integration::{Link, Postgres, eventually};
use towline::test_api::actor::Scope;
use towline::test_api::documents::{self, Change, Expected, Item, Outcome, Problem, ProblemKind, Tail, WriteError};

use crate::documents::world::{LIMIT, Stage, Written, cluster, create, item, put, row, run, source};

/// A writer whose way to the database can be cut.
async fn linked(stage: &Stage) -> (Link, Written) {
    let link = Link::to(stage.place.address()).await.expect("a link");
    let url = stage.place.url_by(ADMIN, &link.address().to_string());
    let writer = Written::to(documents::open(source(&url)));
    (link, writer)
}

/// Waits until so many bytes wait to be sent.
async fn waits(writer: &Written, expected: usize) {
    eventually("items to wait", LIMIT, async || match writer.handle.waiting_bytes() {
        bytes if bytes == expected => Ok(()),
        bytes => Err(format!("{bytes} bytes")),
    })
    .await
    .unwrap();
}

#[test]
fn an_answer_that_was_lost_is_found_in_the_log_and_nothing_is_applied_twice() {
    run(async {
        let stage = Stage::new("lost").await;
        let (link, writer) = linked(&stage).await;
        let first = writer.version(create("c0")).await;
        for round in 1..=5 {
            link.mute();
            let waiting = writer.send(create(&format!("c{round}")));
            stage.becomes("the change to be made", "select count(*) from towline_log", round + 1).await;
            link.hang_up();
            let outcome = waiting.await.expect("no panic").expect("it is found");
            let at = format!("select count(*) from towline_log where version = {}", first + round);
            let Outcome::Written { version, at: told } = outcome else { panic!("{outcome:?}") };
            assert_eq!((version, stage.number(&at).await), (first + round, 1));
            let found = documents::Store::new(stage.database()).get(&cluster(&format!("c{round}"))).await;
            assert_eq!(found.expect("a read").expect("a document").updated_at, told);
        }
        assert_eq!(
            stage.numbers("select count(*) from towline_log group by request having count(*) > 1").await,
            [0; 0]
        );
        assert_eq!(stage.number("select count(*) from towline_log").await, 6);
    });
}

#[test]
fn what_a_lost_call_has_not_written_is_sent_again_once_the_others_are_found() {
    run(async {
        let stage = Stage::new("partly").await;
        let (link, writer) = linked(&stage).await;
        let version = writer.version(create("c0")).await;
        stage.block_writers().await;
        let first = writer.send(put("c1"));
        stage.calls_wait(1).await;
        let outdated = item(vec![Change::put(&cluster("c0"), Expected::Version(version + 1), row())]);
        let (fresh, size) = (create("c2"), |item: &Item| serde_json::to_string(item).expect("JSON").len());
        let expected = size(&fresh) + size(&outdated);
        let written = writer.send(fresh);
        waits(&writer, size(&create("c2"))).await;
        let conflict = writer.send(outdated);
        waits(&writer, expected).await;
        // The first call's answer passes; the second call's does not.
        let other = stage.place.client(ADMIN).await.expect("a connection");
        let (link, stage) = (&link, &stage);
        let swallow = async {
            first.await.expect("no panic").expect("it is written");
            link.mute();
        };
        // Between the two calls the writers are blocked again: this session is next in the queue for the lock.
        let between = async {
            let lock = "select pg_advisory_lock('towline_log'::regclass::bigint)";
            other.batch_execute(lock).await.expect("the lock");
        };
        let release = async {
            stage.calls_wait(2).await;
            stage.let_write().await;
        };
        tokio::join!(swallow, between, release);
        stage.calls_wait(1).await;
        other.batch_execute("select pg_advisory_unlock_all()").await.expect("it is done");
        stage.becomes("the second call", "select count(*) from clusters", 3).await;
        link.hang_up();
        let written = written.await.expect("no panic").expect("it is found");
        assert!(matches!(written, Outcome::Written { version: found, .. } if found == version + 2), "{written:?}");
        let conflict = conflict.await.expect("no panic").expect("it is sent again");
        assert_eq!(conflict, Outcome::Conflict { present: Some(version) });
        assert_eq!(stage.number("select count(*) from towline_log").await, 3);
    });
}

#[test]
fn a_call_that_ended_without_an_answer_and_is_not_in_the_log_has_an_unknown_outcome() {
    run(async {
        let stage = Stage::new("unknown").await;
        let writer = stage.writer();
        writer.version(create("c0")).await;
        stage.block_writers().await;
        let waiting = writer.send(create("c1"));
        stage.calls_wait(1).await;
        let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
             where datname = current_database() and application_name like '%writer'";
        assert_eq!(stage.number(end).await, 1);
        // The writer looks in the log when nobody writes any more.
        stage.let_write().await;
        let error = waiting.await.expect("no panic").expect_err("it was not written");
        assert!(matches!(error, WriteError::OutcomeUnknown), "{error:?}");
        assert_eq!(Problem::from(error).kind, ProblemKind::OutcomeUnknown);
        writer.version(create("c1")).await;
        assert_eq!(stage.number("select count(*) from towline_log").await, 2);
    });
}

/// An answer is looked for above the version that was newest at sending. What is below has the same request only by chance.
#[test]
fn a_lost_answer_is_looked_for_above_the_newest_version_alone() {
    run(async {
        let stage = Stage::new("above").await;
        stage.writer().version(create("c0")).await;
        let tail = Tail::with_ring(stage.database(), 1 << 20);
        let (scope, drain) = Scope::standalone("tail");
        let reading = tokio::spawn(tail.clone().run(scope));
        eventually("the tail to have read it", LIMIT, async || {
            let version = tail.state().version;
            if version > 0 { Ok(()) } else { Err(version.to_string()) }
        })
        .await
        .unwrap();
        let found_by = async |writer: Written| {
            stage.block_writers().await;
            let mut again = create("c1");
            let request = "select request::text from towline_log order by version limit 1";
            let request: String = stage.sql.query_one(request, &[]).await.expect("a row").get(0);
            again.request = request.parse().expect("a UUID");
            let waiting = writer.send(again);
            stage.calls_wait(1).await;
            let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                 where datname = current_database() and application_name like '%writer' and query like 'call%'";
            assert_eq!(stage.number(end).await, 1);
            stage.let_write().await;
            waiting.await.expect("no panic")
        };
        let above = found_by(Written::above(stage.database(), tail.clone())).await;
        assert!(matches!(above, Err(WriteError::OutcomeUnknown)), "{above:?}");
        // Without a tail it knows of no version.
        let below = found_by(stage.writer()).await;
        assert!(matches!(below, Ok(Outcome::Written { .. })), "{below:?}");
        drain.cancel();
        reading.await.expect("no panic").expect("it is drained");
    });
}

#[test]
fn a_call_that_waits_too_long_for_the_lock_has_written_nothing() {
    run(async {
        let stage = Stage::new("locked").await;
        let writer = stage.writer();
        stage.block_writers().await;
        let error = writer.handle.write(create("c1")).await.expect_err("somebody else has the lock");
        assert!(
            matches!(&error, WriteError::Unavailable(error) if error.server().unwrap().code() == "55P03"),
            "{error:?}"
        );
        assert_eq!(Problem::from(error).kind, ProblemKind::Unavailable);
        stage.let_write().await;
        writer.version(create("c1")).await;
    });
}

#[test]
fn a_database_that_is_away_is_unavailable_at_once_and_used_again_when_it_is_back() {
    run(async {
        let server = Postgres::start("away", Transport::Plain).await.expect("a server");
        let stage = Stage::on(&server, "away").await;
        let writer = stage.writer();
        writer.version(create("c0")).await;
        server.kill().await.expect("it is killed");
        // The first write may meet the old connection, whose end the writer has not seen.
        eventually("the database to be unavailable", LIMIT, async || match writer.handle.write(put("c1")).await {
            Err(WriteError::Unavailable(error)) if error.is_unreachable() => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        server.start_again().await.expect("it starts");
        writer.version(put("c1")).await;
        // A server in which a call hangs: killed, its answer is lost, and the log is looked up once it is back.
        let stage = Stage::of(stage.place).await;
        stage.block_writers().await;
        let waiting = writer.send(create("c2"));
        stage.calls_wait(1).await;
        server.kill().await.expect("it is killed");
        server.start_again().await.expect("it starts");
        let error = waiting.await.expect("no panic").expect_err("it was not written");
        assert!(matches!(error, WriteError::OutcomeUnknown), "{error:?}");
        writer.version(create("c2")).await;
    });
}
