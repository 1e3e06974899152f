//! Who gets which rows, and what becomes of them.

use std::collections::BTreeMap;
use std::time::Duration;

use integration::postgres::{ADMIN, HUB};
use towline::test_api::documents::{
    self, Change, ClaimLimits, ClaimMix, ClaimOrder, Expected, Item, Key, Kind, Outcome, Row, RowEnd, Work, WorkEnd,
    Writer,
};
use towline::test_api::syncset::plan::pass::Writes;
use towline::test_api::syncset::plan::rows::ClusterRow;
use towline::test_api::syncset::store::{ClusterUpdate, PassStore, StoreError};

use crate::work::world::{END, LIMIT, Process, Running, Stage, clusters, id, in_a_century, open, run};

/// The end of a pass waits for a connection for longer than a client would: without it the pass would be repeated.
#[test]
fn a_pass_ends_although_no_connection_is_free_for_some_seconds() {
    run(async {
        let stage = Stage::new("patient").await;
        let database = open(&format!("{}?pool_max_conns=1", stage.place.url(HUB)));
        let process = Process::start(&database);
        process.ask(&[1], false).await;
        let work = process.claim_one().await;
        // The only connection, until somebody who began to wait later has given up.
        let transaction = database.begin("other", LIMIT).await.expect("a transaction");
        let (finished, ()) = tokio::join!(process.done(work), async {
            assert!(database.all("another", "select 1", &[]).await.is_err(), "the connection was free");
            drop(transaction);
        });
        assert_eq!(finished, RowEnd::Settled);
        assert_eq!(process.claim(1).await.len(), 0);
    });
}

/// A row is granted once, and requests for one that waits are merged.
#[test]
fn a_cluster_is_granted_once_and_requests_for_a_waiting_one_are_merged() {
    run(async {
        let stage = Stage::new("granted_once").await;
        let (one, other) = (stage.process(), stage.process());
        one.ask(&[3, 1, 2, 1, 3], false).await;
        other.ask(&[2], true).await;
        let (first, second) = tokio::join!(one.claim(2), other.claim(2));
        let mut all = clusters(&first);
        all.extend(clusters(&second));
        all.extend(clusters(&other.claim(2).await));
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3], "each exactly once");
        assert_eq!(one.claim(9).await.len() + other.claim(9).await.len(), 0);
        let twice = first.iter().chain(&second).find(|work| work.wanted == 2).expect("one was asked for twice");
        assert_eq!((clusters(std::slice::from_ref(twice)), twice.urgent, twice.token), (vec![2], true, 1));
        assert!(first.iter().all(|work| work.check().is_ok() && work.attempts == 1));
        let held: Vec<_> = one.queue.held().iter().map(|held| (held.cluster, held.token)).collect();
        assert_eq!(held, first.iter().map(|work| (work.cluster, work.token)).collect::<Vec<_>>());
    });
}

/// `done` stores the given time and attempts, unless somebody has asked during the pass.
#[test]
fn the_end_of_a_pass_is_as_it_says_unless_another_was_requested_meanwhile() {
    run(async {
        let stage = Stage::new("ends").await;
        let process = stage.process();
        process.ask(&[1], true).await;
        let work = process.claim_one().await;
        let claim = work.claim().clone();
        let failed = process.queue.done(work, &WorkEnd::done(in_a_century(), 7)).await.expect("an answer");
        assert_eq!((failed, claim.check().is_err()), (RowEnd::Settled, true));
        let row = "select count(*) from towline_work where attempts = 7 and not urgent and holder is null and until is null \
             and ready_at = '2126-01-01' and wanted = 1 and token = 1";
        assert_eq!(stage.number(row).await, 1);
        assert_eq!(process.claim(9).await.len(), 0, "it is not due");
        // Another request makes it ready, and forgets the failures.
        process.ask(&[1], false).await;
        let work = process.claim_one().await;
        assert_eq!((work.token, work.attempts, work.wanted, work.urgent), (2, 1, 2, false));
        process.ask(&[1], true).await;
        assert_eq!(process.claim(9).await.len(), 0, "it is being worked on");
        assert_eq!(
            process.queue.done(work, &WorkEnd::done(in_a_century(), 7)).await.expect("an answer"),
            RowEnd::Ready
        );
        let again = process.claim_one().await;
        assert_eq!((again.token, again.attempts, again.wanted, again.urgent), (3, 1, 3, true));
        assert_eq!(process.done(again).await, RowEnd::Settled);
    });
}

/// *Costs*: what a pass came to is stored by the statement that ends its claim, or neither is done.
#[test]
fn the_last_statement_of_a_pass_stores_its_result_and_ends_its_claim() {
    run(async {
        let stage = Stage::new("ends_stored").await;
        let (process, store) = (stage.process(), PassStore::new(stage.database()));
        let stored = ClusterUpdate { row: ClusterRow { attempts: 3, ..ClusterRow::default() }, resyncs: 0 };
        let end = async |work: &Work, attempts: u32| {
            let end = WorkEnd::done(in_a_century(), attempts);
            store.end(work, &end, &Writes::default(), &stored).await
        };
        let rows = "select count(*) from towline_cluster where attempts = 3";
        process.ask(&[1], true).await;
        let work = process.claim_one().await;
        assert!(!end(&work, 7).await.expect("it is held"), "nobody has asked for another one");
        assert!(work.check().is_err() && process.queue.held().is_empty());
        let row = "select count(*) from towline_work where attempts = 7 and not urgent and holder is null and until is null \
             and ready_at = '2126-01-01' and wanted = 1 and token = 1";
        assert_eq!((stage.number(row).await, stage.number(rows).await), (1, 1));
        process.ask(&[1], false).await;
        let work = process.claim_one().await;
        process.ask(&[1], true).await;
        assert!(end(&work, 7).await.expect("it is held"), "somebody has");
        let work = process.claim_one().await;
        assert_eq!((work.token, work.attempts, work.wanted, work.urgent), (3, 1, 3, true));
        // Somebody else holds it.
        stage.run("delete from towline_cluster; update towline_work set token = token + 1").await;
        assert!(matches!(end(&work, 0).await, Err(StoreError::ClaimLost)));
        let held = "select count(*) from towline_work where token = 4 and holder is not null";
        assert_eq!((stage.number(held).await, stage.number(rows).await), (1, 0));
    });
}

/// The dispatcher locks the rows of clusters, and then those of their claims. A pass that ends does it in the same order: else one of the
/// two would lose what it has done.
#[test]
fn the_end_of_a_pass_and_a_turn_of_the_dispatcher_never_wait_for_each_other() {
    run(async {
        let stage = Stage::new("ends_in_order").await;
        let (process, store) = (stage.process(), PassStore::new(stage.database()));
        let stored = ClusterUpdate { row: ClusterRow::default(), resyncs: 0 };
        process.ask(&[1], true).await;
        let work = process.claim_one().await;
        store.save(&work.writing(), &Writes::default(), Some(&stored)).await.expect("it is held");
        let dispatcher = stage.place.client(ADMIN).await.expect("a connection");
        dispatcher.batch_execute("begin; update towline_cluster set resyncs = resyncs + 1").await.expect("a lock");
        let turn = async {
            let waiting =
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
            integration::eventually("the pass to wait", LIMIT, async || match stage.number(waiting).await {
                1 => Ok(()),
                other => Err(other.to_string()),
            })
            .await
            .unwrap();
            dispatcher.batch_execute("select from towline_work for no key update; commit").await.expect("no circle");
        };
        let (end, none) = (WorkEnd::done(in_a_century(), 7), Writes::default());
        let (ended, ()) = tokio::join!(store.end(&work, &end, &none, &stored), turn);
        assert!(!ended.expect("it is held"));
        assert_eq!(stage.number("select count(*) from towline_work where holder is null and attempts = 7").await, 1);
    });
}

/// What was urgent is urgent until somebody has come to its end.
#[test]
fn a_pass_that_has_to_go_on_stays_as_urgent_as_it_was() {
    run(async {
        let stage = Stage::new("further").await;
        let process = stage.process();
        process.ask(&[1], false).await;
        process.ask(&[2], true).await;
        let long_ago = || "2026-01-01T00:00:00Z".parse().expect("a time");
        for round in 2..5 {
            for work in process.claim(9).await {
                assert_eq!(
                    process.queue.done(work, &WorkEnd::go_on(long_ago(), 0)).await.expect("an answer"),
                    RowEnd::Settled
                );
            }
            let found: Vec<_> = process.claim(9).await;
            let told: Vec<_> = found.iter().map(|work| (work.token, work.attempts, work.urgent)).collect();
            assert_eq!(told, [(round * 2 - 2, 1, false), (round * 2 - 2, 1, true)]);
            for work in found {
                process.queue.done(work, &WorkEnd::go_on(long_ago(), 0)).await.expect("an answer");
            }
        }
        for work in process.claim(9).await {
            process.queue.done(work, &WorkEnd::done(long_ago(), 0)).await.expect("an answer");
        }
        assert!(process.claim(9).await.iter().all(|work| !work.urgent));
    });
}

/// A pass that never ends returns after its claim, and each time later; a request forgets that.
#[test]
fn a_pass_that_kills_its_process_returns_ever_later_and_starves_nobody() {
    run(async {
        let stage = Stage::new("poison").await;
        let process = stage.process();
        process.ask(&[1], true).await;
        for attempt in 1..=12_i64 {
            drop(process.claim_one().await);
            // It was claimed as often, and is to wait longer than the claim by this.
            let remembered = "select attempts * 1000 + extract(epoch from ready_at - until)::bigint from towline_work";
            assert_eq!(
                stage.number(remembered).await,
                attempt * 1000 + 30 * (attempt.min(10) - 1),
                "attempt {attempt}"
            );
            assert_eq!(process.claim(9).await.len(), 0, "the claim goes on in the database");
            stage.run(END).await;
            assert_eq!(process.claim(9).await.len(), 0, "attempt {attempt}: it has to wait");
            stage.run("update towline_work set ready_at = now()").await;
        }
        stage.run("update towline_work set ready_at = now() + interval '5 min'").await;
        process.ask(&[2], false).await;
        assert_eq!(clusters(&process.claim(9).await), [2]);
        process.ask(&[1], false).await;
        assert_eq!(process.claim_one().await.attempts, 1);
    });
}

/// One statement does it for several slots.
#[test]
fn three_of_four_slots_take_urgent_rows_and_the_fourth_the_oldest() {
    run(async {
        let stage = Stage::new("mix").await;
        let process = stage.process();
        let fill = "delete from towline_work; \
             insert into towline_work (cluster, ready_at, urgent) \
             select ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, now() - interval '1 h' + n * interval '1 s', n > 8 \
             from generate_series(1, 16) n";
        let mut orders = Vec::new();
        for slots in [1, 4] {
            stage.run(fill).await;
            let (mut order, mut taken, mut held) = (ClaimOrder::default(), Vec::new(), Vec::new());
            loop {
                let granted = process.claimed(order.mix(slots)).await;
                order.taken(u32::try_from(granted.len()).expect("few"));
                if granted.is_empty() {
                    break;
                }
                let mut round = clusters(&granted);
                round.sort_unstable_by_key(|cluster| (*cluster <= 8, *cluster));
                taken.extend(round);
                held.extend(granted);
            }
            orders.push(taken);
        }
        let expected = [9, 10, 11, 1, 12, 13, 14, 2, 15, 16, 3, 4, 5, 6, 7, 8];
        assert_eq!(orders, [expected.to_vec(), expected.to_vec()]);
        // Where nothing is urgent, all slots take the others, and the other way round.
        stage.run(fill).await;
        stage.run("delete from towline_work where urgent").await;
        assert_eq!(process.claimed(ClaimOrder::default().mix(4)).await.len(), 4);
        stage.run(fill).await;
        stage.run("delete from towline_work where not urgent").await;
        let mix = ClaimMix { urgent_first: 0, oldest: 3 };
        let mut oldest = clusters(&process.claimed(mix).await);
        oldest.sort_unstable();
        assert_eq!(oldest, [9, 10, 11]);
    });
}

/// A namespace that may have one more keeps no other from getting all that it may have, however much of its own is ready and for how long.
#[test]
fn each_namespace_gets_as_much_as_it_may_have_whatever_the_others_may() {
    run(async {
        let stage = Stage::new("limits").await;
        let process = stage.process();
        let fill = "delete from towline_work; \
             insert into towline_work (cluster, ready_at, urgent, namespace) \
             select ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, now() - interval '1 h' + n * interval '1 s', \
               n % 2 = 0, case when n <= 40 then 'near' when n <= 60 then 'far' when n <= 80 then 'third' else 'new-' || n end \
             from generate_series(1, 82) n";
        let granted = async |mix: ClaimMix, of: &[(&str, usize)]| {
            stage.run(fill).await;
            let of = of.iter().map(|(name, most)| ((*name).into(), *most));
            let limits = ClaimLimits { of: of.collect(), of_others: 3 };
            let claimed = process.queue.claim(mix, &limits).await.expect("an answer");
            assert!(claimed.has_more && claimed.granted == claimed.work.len());
            let namespace = |cluster: u64| match cluster {
                ..=40 => "near",
                41..=60 => "far",
                61..=80 => "third",
                _ => "new",
            };
            let mut counts = BTreeMap::<&str, Vec<bool>>::new();
            for work in &claimed.work {
                counts.entry(namespace(clusters(std::slice::from_ref(work))[0])).or_default().push(work.urgent);
            }
            counts
        };
        let lengths = |counts: &BTreeMap<&'static str, Vec<bool>>| {
            counts.iter().map(|(name, urgent)| (*name, urgent.len())).collect::<Vec<_>>()
        };
        for mix in [ClaimMix { urgent_first: 72, oldest: 24 }, ClaimMix { urgent_first: 0, oldest: 96 }] {
            let all = granted(mix, &[("far", 4), ("near", 1)]).await;
            assert_eq!(lengths(&all), [("far", 4), ("near", 1), ("new", 2), ("third", 3)]);
            let others = granted(mix, &[("far", 4), ("near", 1), ("third", 0)]).await;
            assert_eq!(lengths(&others), [("far", 4), ("near", 1), ("new", 2)]);
        }
        // With fewer slots, the oldest rows are of one that may have no more then, and the next claim passes over it.
        let few = ClaimMix { urgent_first: 0, oldest: 6 };
        assert_eq!(lengths(&granted(few, &[("far", 4), ("near", 1)]).await), [("near", 1)]);
        assert_eq!(lengths(&granted(few, &[("far", 4), ("near", 0)]).await), [("far", 4)]);
        // Where only one may be claimed of a namespace, it is not always an urgent one.
        let mut seen = [false; 2];
        for _ in 0..200 {
            let found = granted(ClaimMix { urgent_first: 48, oldest: 16 }, &[("near", 1)]).await;
            seen[usize::from(found["near"][0])] = true;
            if seen == [true; 2] {
                break;
            }
        }
        assert_eq!(seen, [true; 2]);
    });
}

/// However few slots a worker has, and whether or not it passes over a namespace.
#[test]
fn a_claim_takes_the_next_rows_where_the_oldest_are_locked() {
    run(async {
        let stage = Stage::new("behind_locked").await;
        let process = stage.process();
        process.ask(&[1], false).await;
        process.ask(&[2], false).await;
        let other = stage.place.client(ADMIN).await.expect("a connection");
        let lock = "begin; select from towline_work where cluster = '00000000-0000-4000-8000-000000000001' for update";
        for of in [BTreeMap::new(), BTreeMap::from([("slow".into(), 0)])] {
            other.batch_execute(lock).await.expect("a lock");
            let limits = ClaimLimits { of, of_others: 9 };
            let claimed =
                process.queue.claim(ClaimMix { urgent_first: 0, oldest: 1 }, &limits).await.expect("an answer");
            assert_eq!((clusters(&claimed.work), claimed.has_more), (vec![2], false));
            other.batch_execute("rollback").await.expect("it is done");
            stage
                .run("update towline_work set holder = null, until = null, ready_at = '2026-01-01' where until > now()")
                .await;
            stage.run("update towline_work set ready_at = '2025-01-01' where cluster = '00000000-0000-4000-8000-000000000001'").await;
        }
    });
}

/// Whoever changes a row keeps nobody from the others.
#[test]
fn a_claim_waits_for_no_row_that_somebody_else_is_changing() {
    run(async {
        let stage = Stage::new("locked").await;
        let process = stage.process();
        process.ask(&[1, 2, 3], false).await;
        let other = stage.place.client(ADMIN).await.expect("a connection");
        // As the writer does where it checks a claim.
        let lock =
            "begin; select from towline_work where cluster = '00000000-0000-4000-8000-000000000002' for key share";
        other.batch_execute(lock).await.expect("a lock");
        assert_eq!(clusters(&process.claim(9).await), [1, 3]);
        other.batch_execute("rollback").await.expect("it is done");
        assert_eq!(clusters(&process.claim(9).await), [2]);
    });
}

/// Nothing is granted by a database that may have lost grants, nor for 30 s after it was renumbered.
#[test]
fn nothing_is_granted_after_a_failover_until_claims_from_before_have_ended() {
    run(async {
        let stage = Stage::new("failover").await;
        let process = stage.process();
        process.ask(&[1, 2], true).await;
        let before = process.claim(1).await.remove(0);
        stage.run("update towline_meta set origin = 'another server'").await;
        assert_eq!(process.claim(9).await.len(), 0);
        documents::renumber(&stage.database(), false).await.expect("an answer").expect("a base");
        assert_eq!(process.claim(9).await.len(), 0);
        let blocked =
            "select count(*) from towline_work where until > now() + interval '20 s' and token = 1 and holder is null";
        assert_eq!(stage.number(&blocked.replace("token = 1", "token in (1, 2)")).await, 2);
        // The row of a cluster may have been lost, and its claim with it.
        process.ask(&[3], true).await;
        assert_eq!(process.claim(9).await.len(), 0);
        tokio::time::timeout(LIMIT, before.expired()).await.expect("its renewal says that it has ended");
        stage
            .run(&format!("{END}; update towline_claim set until = now(); update towline_work set ready_at = now()"))
            .await;
        let tokens: Vec<_> = process.claim(9).await.iter().map(|work| work.token).collect();
        let mut sorted = tokens.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [1, 2, 3], "they only grow");
        assert_eq!(process.done(before).await, RowEnd::Lost);
    });
}

/// What a holder writes after its claim was granted to another changes nothing, neither in the queue nor in documents.
#[test]
fn a_claim_that_was_lost_changes_nothing() {
    run(async {
        let stage = Stage::new("fenced").await;
        let (one, other) = (stage.process(), stage.process());
        let (writer, handle) = Writer::new(stage.database());
        let _writer = Running::start(async move |scope| writer.run(scope).await.expect("the writer does not fail"));
        let write = async |work: &documents::Work, name: &str| {
            let row = Row {
                id: id(99),
                labels: std::collections::BTreeMap::new(),
                annotations: std::collections::BTreeMap::new(),
                finalizers: Vec::new(),
                generation: 1,
                deleted_at: None,
                data: serde_json::Map::new(),
                status: serde_json::Map::new(),
                sealed: None,
            };
            let change = Change::put(&Key::new(Kind::ClusterSync, "foo", name), Expected::Any, row);
            let item = Item { claim: Some(work.writing()), ..Item::of(id(work.token.unsigned_abs()), vec![change]) };
            handle.write(item).await.expect("an answer")
        };
        one.ask(&[1], false).await;
        let lost = [one.claim_one().await, {
            stage.run(&format!("{END}; update towline_work set ready_at = now()")).await;
            one.claim_one().await
        }];
        assert!(lost[0].check().is_err() && lost[1].check().is_ok(), "the second grant ends the first");
        assert!(matches!(write(&lost[1], "c1").await, Outcome::Written { .. }));
        stage.run(&format!("{END}; update towline_work set ready_at = now()")).await;
        let work = other.claim_one().await;
        assert_eq!(work.token, 3);
        let row = async || stage.number("select hashtextextended(w::text, 0) from towline_work w").await;
        let before = row().await;
        for work in &lost {
            assert_eq!(write(work, "c1").await, Outcome::Fenced);
        }
        let [first, second] = lost;
        assert_eq!(one.done(first).await, RowEnd::Lost);
        assert_eq!(one.queue.forget(second).await.expect("an answer"), RowEnd::Lost);
        assert_eq!(row().await, before);
        assert!(matches!(write(&work, "c1").await, Outcome::Written { .. }));
        assert_eq!(other.done(work).await, RowEnd::Settled);
    });
}

/// The row of a cluster that is gone goes, too.
#[test]
fn a_cluster_that_is_gone_is_forgotten() {
    run(async {
        let stage = Stage::new("forgotten").await;
        let process = stage.process();
        process.ask(&[1, 2], false).await;
        let gone = process.claim(9).await.remove(0);
        process.ask(&[1], true).await;
        assert_eq!(process.queue.forget(gone).await.expect("an answer"), RowEnd::Settled);
        assert_eq!(stage.number("select count(*) from towline_work").await, 1);
    });
}

#[test]
fn each_row_is_counted_as_running_ready_or_waiting() {
    run(async {
        let stage = Stage::new("counted").await;
        let process = stage.process();
        assert_eq!(process.queue.counts().await.expect("an answer"), documents::Counts::default());
        process.ask(&[1, 2, 3, 4, 5, 6], false).await;
        let mut held = process.claim(3).await;
        process.done(held.remove(0)).await;
        // One that is asked for while it is worked on is running.
        process.ask(&clusters(&held[..1]), false).await;
        stage
            .run("update towline_work set ready_at = now() - interval '90 s' where ready_at < now() and until is null")
            .await;
        let counts = process.queue.counts().await.expect("an answer");
        assert_eq!((counts.running, counts.ready, counts.waiting), (2, 3, 1));
        let oldest = counts.oldest.expect("one is ready");
        assert!(oldest >= Duration::from_secs(90) && oldest < Duration::from_secs(90) + LIMIT, "{oldest:?}");
        let waited = process.claim(1).await[0].waited;
        assert!(waited >= oldest, "{waited:?}");
    });
}
