//! What the writer writes, in which calls, and what it refuses.

use integration::postgres::ADMIN;
use serde_json::json;
use towline::test_api::documents::{
    Change, Expected, Item, Key, Kind, Outcome, Problem, ProblemKind, Store, WorkClaim, WriteError,
};

use crate::documents::world::{LIMIT, Stage, Written, cluster, create, fresh_id, item, put, row, run};

const ROWS: &str = "select count(*) from towline_log";
const TERMS: &str = "select string_agg(key || '=' || value, ' ' order by key, value) from towline_terms";

/// Waits until items of so many bytes wait to be sent.
async fn waits(writer: &Written, bytes: usize) {
    integration::eventually(format!("{bytes} bytes to wait"), LIMIT, async || match writer.handle.waiting_bytes() {
        found if found >= bytes => Ok(()),
        found => Err(format!("{found} of {bytes} bytes")),
    })
    .await
    .unwrap();
}

fn bytes(item: &Item) -> usize {
    serde_json::to_string(item).expect("JSON").len()
}

#[test]
fn one_call_is_under_way_and_the_next_takes_what_waits_in_order() {
    run(async {
        let stage = Stage::new("groups").await;
        let writer = stage.writer();
        stage.block_writers().await;
        let mut answers = vec![writer.send(create("c0"))];
        stage.calls_wait(1).await;
        let mut waiting = 0;
        for number in 1..=130 {
            let item = create(&format!("c{number}"));
            waiting += bytes(&item);
            answers.push(writer.send(item));
            // In this order.
            waits(&writer, waiting).await;
        }
        stage.let_write().await;
        let mut versions = Vec::new();
        for answer in answers {
            match answer.await.expect("no panic").expect("it is written") {
                Outcome::Written { version, .. } => versions.push(version),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(stage.sizes().await, [1, 64, 64, 2]);
        assert!(versions.is_sorted(), "{versions:?}");
        assert_eq!((stage.number(ROWS).await, writer.handle.waiting_bytes()), (131, 0));
    });
}

#[test]
fn a_caller_that_goes_away_loses_nothing_of_others() {
    run(async {
        let stage = Stage::new("gone").await;
        let writer = stage.writer();
        stage.block_writers().await;
        let first = writer.send(create("first"));
        stage.calls_wait(1).await;
        let gone = [writer.send(create("gone1")), writer.send(create("gone2"))];
        waits(&writer, 2 * bytes(&create("gone1"))).await;
        let kept = writer.send(create("kept"));
        waits(&writer, 2 * bytes(&create("gone1")) + 1).await;
        for caller in gone {
            caller.abort();
            assert!(caller.await.expect_err("it goes away").is_cancelled());
        }
        // Its item has been sent: it is written although nobody hears of it.
        first.abort();
        assert!(first.await.expect_err("it goes away").is_cancelled());
        stage.let_write().await;
        kept.await.expect("no panic").expect("it is written");
        let names = stage.sql.query("select name from clusters order by name", &[]).await.expect("rows");
        let names: Vec<&str> = names.iter().map(|row| row.get(0)).collect();
        assert_eq!((names, stage.sizes().await), (vec!["first", "kept"], vec![1, 1]));
    });
}

#[test]
fn what_waits_is_written_before_a_drain_ends() {
    run(async {
        let stage = Stage::new("drained").await;
        let mut writer = stage.writer();
        stage.block_writers().await;
        let first = writer.send(create("c0"));
        stage.calls_wait(1).await;
        let second = writer.send(create("c1"));
        waits(&writer, bytes(&create("c1"))).await;
        (writer.drain)();
        stage.let_write().await;
        first.await.expect("no panic").expect("it is written");
        second.await.expect("no panic").expect("it is written");
        (&mut writer.body).await.expect("it is drained");
        let refused = writer.handle.write(create("c2")).await.expect_err("nobody reads");
        assert_eq!(Problem::from(refused).kind, ProblemKind::Unavailable);
    });
}

#[test]
fn the_changes_of_an_item_are_made_together_or_not_at_all() {
    run(async {
        let stage = Stage::new("together").await;
        let (writer, store) = (stage.writer(), Store::new(stage.database()));
        let sync = Key::new(Kind::ClusterSync, "foo", "c1");
        let both =
            item(vec![Change::put(&cluster("c1"), Expected::Absent, row()), Change::put(&sync, Expected::Any, row())]);
        let version = writer.version(both).await;
        let found = store.get(&cluster("c1")).await.expect("a read").expect("a document");
        assert_eq!((found.version, found.generation, found.created_at == found.updated_at), (version, 1, true));
        assert_eq!(store.get(&sync).await.expect("a read").expect("a document").version, version + 1);
        // The second change has another version than expected: the first is not made either.
        let outdated = item(vec![
            Change::put(&cluster("c2"), Expected::Absent, row()),
            Change::put(&cluster("c1"), Expected::Version(version + 1), row()),
        ]);
        let outcome = writer.handle.write(outdated).await.expect("an outcome");
        assert_eq!(outcome, Outcome::Conflict { present: Some(version) });
        let present = Change::put(&cluster("c1"), Expected::Absent, row());
        let outcome = writer.handle.write(item(vec![present])).await.expect("an outcome");
        assert_eq!(outcome, Outcome::Conflict { present: Some(version) });
        let missing = item(vec![Change::delete(&cluster("c3"), Expected::Version(version))]);
        assert_eq!(writer.handle.write(missing).await.expect("an outcome"), Outcome::Conflict { present: None });
        assert_eq!((stage.number(ROWS).await, store.get(&cluster("c2")).await.expect("a read")), (2, None));
        // Both are deleted, and the log says so.
        let gone = item(vec![
            Change::delete(&cluster("c1"), Expected::Version(version)),
            Change::delete(&sync, Expected::Any),
        ]);
        let deleted = writer.version(gone).await;
        assert_eq!(stage.number("select count(*) from towline_documents").await, 0);
        let log = "select version from towline_log where document is null order by version";
        assert_eq!(stage.numbers(log).await, [deleted, deleted + 1]);
        let before = "select old_version from towline_log where document is null order by version";
        assert_eq!(stage.numbers(before).await, [version, version + 1]);
        // Nothing is there to delete: no version is drawn.
        let nothing = item(vec![Change::delete(&sync, Expected::Any)]);
        assert_eq!(writer.version(nothing).await, 0);
        assert_eq!(stage.number(ROWS).await, 4);
    });
}

/// An item sees what the items before it in the same call have changed.
#[test]
fn items_of_one_call_see_each_other() {
    run(async {
        let stage = Stage::new("each_other").await;
        let writer = stage.writer();
        let old = writer.version(create("old")).await;
        stage.block_writers().await;
        let first = writer.send(create("first"));
        stage.calls_wait(1).await;
        let change = |version| item(vec![Change::put(&cluster("old"), Expected::Version(version), row())]);
        let delete = |name, expected| item(vec![Change::delete(&cluster(name), expected)]);
        let mut sent = Vec::new();
        let mut waiting = 0;
        // Each after the one before it.
        for next in [
            create("new"),
            create("new"),
            change(old),
            change(old),
            delete("old", Expected::Version(old)),
            delete("old", Expected::Any),
            change(old),
            create("old"),
            put("new"),
            delete("new", Expected::Any),
            delete("new", Expected::Any),
        ] {
            waiting += bytes(&next);
            sent.push(writer.send(next));
            waits(&writer, waiting).await;
        }
        stage.let_write().await;
        first.await.expect("no panic").expect("it is written");
        let mut seen = Vec::new();
        for outcome in sent {
            seen.push(match outcome.await.expect("no panic").expect("an outcome") {
                Outcome::Written { version, .. } => Ok(version),
                Outcome::Conflict { present } => Err(present),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(stage.sizes().await, [1, 1, 6], "one call has written all");
        let (new, changed) = (seen[0].expect("it is new"), seen[2].expect("it is the version"));
        assert_eq!((seen[1], seen[3], seen[4]), (Err(Some(new)), Err(Some(changed)), Err(Some(changed))));
        let deleted = seen[5].expect("it is there");
        assert_eq!(seen[6], Err(None));
        let (again, put, gone) =
            (seen[7].expect("it is new"), seen[8].expect("whatever"), seen[9].expect("it is there"));
        assert_eq!(seen[10], Ok(0));
        let log = "select coalesce(old_version, 0) from towline_log where version > $1 order by version";
        let log = log.replace("$1", &(old + 1).to_string());
        assert_eq!(stage.numbers(&log).await, [0, old, changed, 0, new, put], "the predecessors");
        assert!([old, new, changed, deleted, again, put, gone].is_sorted());
        assert_eq!(stage.numbers("select version from clusters where name = 'old'").await, [again]);
    });
}

/// Nothing is written where a later change of the item has another version than expected, and a new document where there is one is
/// found out before anything is written, wherever it is in the item.
#[test]
fn a_conflict_at_any_change_writes_nothing() {
    run(async {
        let stage = Stage::new("nothing").await;
        let writer = stage.writer();
        let [one, two] = [writer.version(create("one")).await, writer.version(create("two")).await];
        let rows = stage.number(ROWS).await;
        let absent = |name: &str| Change::put(&cluster(name), Expected::Absent, row());
        let change = |name: &str, version| Change::put(&cluster(name), Expected::Version(version), row());
        let any = |name: &str| Change::put(&cluster(name), Expected::Any, row());
        for (changes, present) in [
            (vec![absent("new"), absent("one")], one),
            (vec![absent("one"), absent("new")], one),
            (vec![any("one"), absent("two")], two),
            (vec![change("one", one), change("two", one)], two),
            (vec![change("two", one), change("one", one)], two),
            (vec![Change::delete(&cluster("one"), Expected::Version(one)), absent("two")], two),
            // Of several, the first one's version.
            (vec![absent("one"), absent("two")], one),
            (vec![absent("two"), any("new"), change("one", two)], two),
        ] {
            let outcome = writer.handle.write(item(changes)).await.expect("an outcome");
            assert_eq!(outcome, Outcome::Conflict { present: Some(present) });
        }
        assert_eq!(
            (stage.number(ROWS).await, stage.numbers("select version from clusters order by version").await),
            (rows, vec![one, two])
        );
        // An id that another document has is refused for what it is.
        let mut taken = row();
        let id = "select id::text from clusters where name = 'one'";
        taken.id = stage.sql.query_one(id, &[]).await.expect("a row").get::<_, String>(0).parse().expect("a UUID");
        let refused = writer.handle.write(item(vec![Change::put(&cluster("new"), Expected::Absent, taken)])).await;
        let error = refused.expect_err("the id is taken");
        assert!(matches!(&error, WriteError::Refused(error) if error.server().unwrap().code() == "23505"), "{error:?}");
    });
}

/// Each change is compared with what was there before the item. The second change of a document would have a predecessor in the
/// log that is none, so that a watch or a page would show a state that nobody wrote.
#[test]
fn an_item_that_changes_a_document_twice_is_refused_alone() {
    run(async {
        let stage = Stage::new("twice").await;
        let writer = stage.writer();
        let one = writer.version(create("one")).await;
        let change = |name: &str, expected| Change::put(&cluster(name), expected, row());
        let delete = |name: &str, expected| Change::delete(&cluster(name), expected);
        let sync = Change::put(&Key::new(Kind::ClusterSync, "foo", "one"), Expected::Any, row());
        let elsewhere = Change::put(&Key::new(Kind::Cluster, "bar", "one"), Expected::Any, row());
        let twice = [
            vec![change("one", Expected::Any), change("one", Expected::Any)],
            vec![change("one", Expected::Version(one)), sync.clone(), delete("one", Expected::Version(one))],
            vec![delete("one", Expected::Any), change("one", Expected::Any)],
            vec![sync.clone(), change("new", Expected::Absent), change("new", Expected::Absent)],
            // What is in the database makes no difference.
            vec![change("one", Expected::Absent), change("one", Expected::Absent)],
        ];
        for changes in twice {
            stage.block_writers().await;
            let first = writer.send(put("first"));
            stage.calls_wait(1).await;
            let mut waiting = 0;
            let mut answers = Vec::new();
            for item in [put("before"), item(changes), put("after")] {
                waiting += bytes(&item);
                answers.push(writer.send(item));
                waits(&writer, waiting).await;
            }
            stage.let_write().await;
            first.await.expect("no panic").expect("it is written");
            let mut outcomes = Vec::new();
            for answer in answers {
                outcomes.push(answer.await.expect("no panic"));
            }
            let refused = outcomes.remove(1).expect_err("a document is changed twice");
            assert!(
                matches!(&refused, WriteError::Refused(error) if error.server().unwrap().code() == "22023"),
                "{refused:?}"
            );
            for outcome in outcomes {
                assert!(matches!(outcome, Ok(Outcome::Written { .. })), "{outcome:?}");
            }
        }
        assert_eq!(stage.numbers("select version from clusters where name in ('one', 'new')").await, [one]);
        // Documents that have the same name only are several.
        writer.version(item(vec![change("one", Expected::Version(one)), sync, elsewhere])).await;
    });
}

/// A connection keeps no plan from a time when the tables were empty, and known to be so: it would read a whole table for each change.
#[test]
fn the_plans_of_a_writer_grow_with_the_tables() {
    run(async {
        const MANY: i64 = 20_000;
        let stage = Stage::new("grown").await;
        stage.run("vacuum analyze").await;
        let writer = stage.writer();
        let key = Key::new(Kind::SelectorSyncSet, "", "s1");
        let id = fresh_id();
        let work = format!(
            "insert into towline_work (cluster, ready_at, holder, token, until) values ('{id}', now(), 'one', 7, now() + interval '1 h')"
        );
        stage.run(&work).await;
        // Each statement of the procedure more often than a plan for good needs.
        let rounds = async |rounds: usize| {
            for _ in 0..rounds {
                let terms = Some(vec![("a".to_owned(), "1".to_owned())]);
                let version =
                    writer.version(item(vec![Change { terms, ..Change::put(&key, Expected::Any, row()) }])).await;
                let version = writer.version(item(vec![Change::put(&key, Expected::Version(version), row())])).await;
                let claim = WorkClaim { cluster: id.parse().expect("a UUID"), holder: "one".to_owned(), token: 7 };
                let delete = item(vec![Change::delete(&key, Expected::Version(version))]);
                writer.version(Item { claim: Some(claim), ..delete }).await;
            }
        };
        rounds(20).await;
        let fill = format!(
            "insert into towline_documents select 'selectorsyncsets', gen_random_uuid(), '', 'n' || n, '{{}}', '{{}}', '{{}}', 1, -n, now(),              now(), null, '{{}}', '{{}}' from generate_series(1, {MANY}) n;              insert into towline_work (cluster, ready_at) select gen_random_uuid(), now() from generate_series(1, {MANY});              insert into towline_terms select 'a', n::text, gen_random_uuid() from generate_series(1, {MANY}) n"
        );
        stage.run(&fill).await;
        rounds(20).await;
        // What a session has read is known to others at the latest when it has ended.
        drop(writer);
        stage
            .becomes(
                "the writer to be gone",
                "select count(*) from pg_stat_activity where datname = current_database()",
                1,
            )
            .await;
        let read = "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int8 from pg_stat_user_tables \
             where relname in ('selectorsyncsets', 'towline_work', 'towline_terms')";
        let read = stage.number(read).await;
        assert!((1..MANY).contains(&read), "{read} rows were read");
    });
}

#[test]
fn a_change_keeps_the_id_the_creation_time_and_the_sealed_field_that_it_does_not_set() {
    run(async {
        let stage = Stage::new("kept").await;
        let (writer, store) = (stage.writer(), Store::new(stage.database()));
        let mut first = row();
        first.sealed = Some(vec![0, 255, 16]);
        let id = first.id;
        writer.version(item(vec![Change::put(&cluster("c1"), Expected::Absent, first)])).await;
        let created = store.stored(&cluster("c1")).await.expect("a read").expect("a document").read().expect("a row");
        assert_eq!((created.document.id, created.sealed.as_deref()), (id, Some([0, 255, 16].as_slice())));
        // Meanwhile the field is sealed with another key, which draws no version.
        stage.run("update clusters set sealed = '\\x01aabbccddeeff0011'").await;
        let mut second = row();
        second.generation = 2;
        second.labels.clear();
        let version = created.document.version;
        let version = writer.version(item(vec![Change::put(&cluster("c1"), Expected::Version(version), second)])).await;
        let changed = store.stored(&cluster("c1")).await.expect("a read").expect("a document").read().expect("a row");
        let sealed = [1, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0, 0x11];
        assert_eq!((changed.document.id, changed.sealed.as_deref()), (id, Some(sealed.as_slice())));
        assert_eq!(changed.document.created_at, created.document.created_at);
        assert!(changed.document.updated_at > created.document.updated_at);
        assert_eq!(
            (changed.document.generation, changed.document.labels.len(), changed.document.version),
            (2, 0, version)
        );
        // The log has no sealed field, and the labels of both versions. A shorter value may be part of an id.
        let rows =
            "select count(*) from towline_log where document ? 'sealed' or document::text like '%aabbccddeeff0011%'";
        assert_eq!(stage.number(rows).await, 0);
        let labels = "select count(*) from towline_log n join towline_log p on p.version = n.old_version \
             where n.labels = '{}' and p.labels = '{\"env\": \"prod\"}'";
        assert_eq!(stage.number(labels).await, 1);
    });
}

#[test]
fn terms_are_replaced_and_go_with_their_document() {
    run(async {
        let stage = Stage::new("terms").await;
        let writer = stage.writer();
        let key = Key::new(Kind::SelectorSyncSet, "", "s1");
        let term = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let with = |terms: Option<Vec<(String, String)>>| {
            item(vec![Change { terms, ..Change::put(&key, Expected::Any, row()) }])
        };
        let terms = async || stage.sql.query_one(TERMS, &[]).await.expect("a row").get::<_, Option<String>>(0);
        writer.version(with(Some(vec![term("b", "2"), term("a", "1"), term("a", "1")]))).await;
        assert_eq!(terms().await.as_deref(), Some("a=1 b=2"));
        writer.version(with(None)).await;
        assert_eq!(terms().await.as_deref(), Some("a=1 b=2"), "a change without terms has removed them");
        writer.version(with(Some(vec![term("c", "3")]))).await;
        assert_eq!(terms().await.as_deref(), Some("c=3"));
        writer.version(item(vec![Change::delete(&key, Expected::Any)])).await;
        assert_eq!(terms().await, None);
    });
}

#[test]
fn a_claim_that_has_ended_or_passed_on_writes_nothing_and_its_row_is_never_waited_for() {
    run(async {
        let stage = Stage::new("fenced").await;
        let writer = stage.writer();
        let id = fresh_id();
        let grant = format!(
            "insert into towline_work (cluster, ready_at, holder, token, until) \
             values ('{id}', now(), 'one', 7, now() + interval '1 h')"
        );
        stage.run(&grant).await;
        let under = |holder: &str, token| {
            let claim = WorkClaim { cluster: id.parse().expect("a UUID"), holder: holder.to_owned(), token };
            Item { claim: Some(claim), ..put("c1") }
        };
        writer.version(under("one", 7)).await;
        for (holder, token) in [("one", 6), ("two", 7)] {
            assert_eq!(writer.handle.write(under(holder, token)).await.expect("an outcome"), Outcome::Fenced);
        }
        let other = stage.place.client(ADMIN).await.expect("a connection");
        // A request for the cluster is under way, which changes the row without a grant: the holder may write.
        other.batch_execute("begin; update towline_work set wanted = wanted + 1").await.expect("it is done");
        writer.version(under("one", 7)).await;
        other.batch_execute("rollback").await.expect("it is done");
        // A new grant is under way: the holder may not, and does not wait.
        other.batch_execute("begin; select from towline_work for update").await.expect("it is done");
        assert_eq!(writer.handle.write(under("one", 7)).await.expect("an outcome"), Outcome::Fenced);
        other.batch_execute("rollback").await.expect("it is done");
        stage.run("update towline_work set until = now()").await;
        assert_eq!(writer.handle.write(under("one", 7)).await.expect("an outcome"), Outcome::Fenced);
        assert_eq!(stage.number(ROWS).await, 2);
    });
}

#[test]
fn an_item_that_the_database_refuses_for_its_content_fails_alone() {
    run(async {
        let stage = Stage::new("poisoned").await;
        let writer = stage.writer();
        stage.block_writers().await;
        let first = writer.send(create("first"));
        stage.calls_wait(1).await;
        let poisoned = {
            let mut bad = row();
            // JSONB has no such character.
            bad.status.insert("text".to_owned(), json!("hunter2\u{0}"));
            item(vec![Change::put(&cluster("poisoned"), Expected::Absent, bad)])
        };
        let mut waiting = 0;
        let mut answers = Vec::new();
        for item in [create("before"), poisoned, create("after")] {
            waiting += bytes(&item);
            answers.push(writer.send(item));
            waits(&writer, waiting).await;
        }
        stage.let_write().await;
        first.await.expect("no panic").expect("it is written");
        let mut outcomes = Vec::new();
        for answer in answers {
            outcomes.push(answer.await.expect("no panic"));
        }
        assert!(matches!(outcomes[0], Ok(Outcome::Written { .. })), "{:?}", outcomes[0]);
        assert!(matches!(outcomes[2], Ok(Outcome::Written { .. })), "{:?}", outcomes[2]);
        let refused = outcomes.remove(1).expect_err("it can't be stored");
        assert!(
            matches!(&refused, WriteError::Refused(error) if error.server().unwrap().code() == "22P05"),
            "{refused:?}"
        );
        let problem = Problem::from(refused);
        assert_eq!(problem.kind, ProblemKind::Invalid);
        assert!(!format!("{problem:?}").contains("hunter2"), "{problem:?}");
        assert_eq!(stage.number(ROWS).await, 3);
    });
}

#[test]
fn other_defaults_of_the_database_change_nothing() {
    run(async {
        let stage = Stage::new("defaults").await;
        // What the procedure commits with, as a trigger sees it.
        stage
            .run(
                "create table seen (isolation text, commits text); \
                 create function see() returns trigger language plpgsql as $$ begin insert into seen values \
                 (current_setting('transaction_isolation'), current_setting('synchronous_commit')); return null; end $$; \
                 create trigger see after insert on towline_log execute function see(); \
                 alter database defaults set default_transaction_isolation = 'repeatable read'; \
                 alter database defaults set synchronous_commit = off; \
                 alter database defaults set timezone = 'Asia/Kathmandu'",
            )
            .await;
        let (writer, store) = (stage.writer(), Store::new(stage.database()));
        writer.version(create("c1")).await;
        let seen = stage.sql.query_one("select isolation, commits from seen", &[]).await.expect("a row");
        assert_eq!((seen.get::<_, &str>(0), seen.get::<_, &str>(1)), ("read committed", "local"));
        let found = store.get(&cluster("c1")).await.expect("a read").expect("a document");
        assert!(found.created_at.to_string().ends_with('Z'), "{}", found.created_at);
        // Somebody else who calls the procedure in a snapshot that is older than the lock is refused.
        let other = stage.place.client(ADMIN).await.expect("a connection");
        let refused = other.batch_execute("call towline_write('[]', null)").await.expect_err("repeatable read");
        assert_eq!(refused.code().map(tokio_postgres::error::SqlState::code), Some("TW002"));
    });
}

#[test]
fn readers_that_follow_the_log_miss_no_version_while_eight_write_and_a_transaction_is_open() {
    run(async {
        const EACH: usize = 40;
        let stage = Stage::new("complete").await;
        let writers = [stage.writer(), stage.writer(), stage.writer()];
        // An open transaction of somebody else, with an id older than all others.
        let other = stage.place.client(ADMIN).await.expect("a connection");
        other.batch_execute("begin; create table unrelated (n int)").await.expect("it is done");
        let mut clients = Vec::new();
        for client in 0..8 {
            let handle = writers[client % 3].handle.clone();
            clients.push(tokio::spawn(async move {
                for number in 0..EACH {
                    handle.write(put(&format!("c{}", number % 5))).await.expect("it is written");
                }
            }));
        }
        let (mut seen, mut last) = (Vec::new(), 0);
        integration::eventually("all versions", LIMIT, async || {
            let next = format!("select version from towline_log where version > {last} order by version limit 7");
            let found = stage.numbers(&next).await;
            last = found.last().copied().unwrap_or(last);
            seen.extend(found);
            if seen.len() == 8 * EACH { Ok(()) } else { Err(format!("{} versions", seen.len())) }
        })
        .await
        .unwrap();
        for client in clients {
            client.await.expect("no panic");
        }
        assert_eq!(seen, stage.numbers("select version from towline_log order by version").await);
        other.batch_execute("rollback").await.expect("it is done");
    });
}

#[test]
fn a_writer_is_refused_while_the_database_is_read_only_and_writes_again_after_it() {
    run(async {
        let stage = Stage::new("readonly").await;
        let writer = stage.writer();
        stage.run("alter database readonly set default_transaction_read_only = on").await;
        let refused = writer.handle.write(create("c1")).await.expect_err("it is read-only");
        assert!(
            matches!(&refused, WriteError::Unavailable(error) if error.server().unwrap().code() == "25006"),
            "{refused:?}"
        );
        assert_eq!(Problem::from(refused).kind, ProblemKind::Unavailable);
        stage
            .run("set default_transaction_read_only = off; alter database readonly reset default_transaction_read_only")
            .await;
        let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
             where datname = current_database() and pid <> pg_backend_pid()";
        assert_eq!(stage.number(end).await, 1);
        // Its connection has ended, and it may not have noticed yet.
        integration::eventually("a new connection", LIMIT, async || match writer.handle.write(put("c1")).await {
            Ok(outcome) => Ok(outcome),
            Err(error) => Err(error.to_string()),
        })
        .await
        .unwrap();
    });
}
