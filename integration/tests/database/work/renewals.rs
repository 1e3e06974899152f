//! Claims are renewed as long as their holder lives, and end with it.

use integration::eventually;
use integration::postgres::{ADMIN, HUB};
use towline::test_api::documents::{Role, RowEnd, WorkEnd};

use crate::work::world::{END, LIMIT, Process, SHORT, Stage, clusters, id, in_a_century, open, run};

/// When the claim on a cluster ends in the database, in ms.
fn until(cluster: u64) -> String {
    let cluster: String = id(cluster);
    format!("select (extract(epoch from until) * 1000)::bigint from towline_work where cluster = '{cluster}'")
}

/// One statement renews all, and what it does not return is lost, alone and at once.
#[test]
fn a_renewal_keeps_all_claims_but_those_that_have_ended() {
    run(async {
        let stage = Stage::new("renewed").await;
        let process = stage.process_lasting(SHORT);
        process.ask(&[1, 2, 3, 4], false).await;
        let held = process.claim(9).await;
        let (ends, newest) = (
            "select count(distinct until) from towline_work",
            "select (extract(epoch from max(until)) * 1000)::bigint from towline_work",
        );
        let mut last = stage.number(newest).await;
        for _ in 0..2 {
            last = stage.exceeds("a renewal", newest, last).await;
            assert_eq!(stage.number(ends).await, 1, "one statement for all");
            let of_9_s = "select count(*) from towline_work where until between now() and now() + interval '9 s'";
            assert_eq!(stage.number(of_9_s).await, 4);
        }
        let second: String = id(2);
        stage.run(&format!("{END} and cluster = '{second}'")).await;
        let third: String = id(3);
        // Held by the same process in another grant.
        stage.run(&format!("update towline_work set token = token + 1 where cluster = '{third}'")).await;
        let fourth: String = id(4);
        stage.run(&format!("update towline_work set holder = 'other' where cluster = '{fourth}'")).await;
        tokio::time::timeout(LIMIT, held[1].expired()).await.expect("the renewal says that it has ended");
        eventually("the fences to close", LIMIT, async || {
            match held.iter().map(|work| work.check().is_ok()).collect::<Vec<_>>() {
                found if found == vec![true, false, false, false] => Ok(()),
                found => Err(format!("{found:?}")),
            }
        })
        .await
        .unwrap();
        assert_eq!(process.queue.held().len(), 1);
        assert!(stage.number(&until(1)).await > stage.number(&until(2)).await);
    });
}

/// The renewal of one table is not lost because somebody has locked a row of the other for long.
#[test]
fn work_is_kept_while_leader_claims_cannot_be_renewed() {
    run(async {
        let stage = Stage::new("other_table").await;
        let process = stage.process_lasting(SHORT);
        let mut leadership = process.claims.role(Role::Relay);
        let grant = leadership.granted().await;
        process.ask(&[1], false).await;
        let work = process.claim_one().await;
        let other = stage.place.client(ADMIN).await.expect("a connection");
        other.batch_execute("begin; select from towline_claim where name = 'relay' for update").await.expect("a lock");
        let mut last = stage.number(&until(1)).await;
        tokio::time::timeout(LIMIT, grant.expired()).await.expect("it ends by itself");
        for _ in 0..2 {
            last = stage.exceeds("a renewal", &until(1), last).await;
            assert!(work.check().is_ok());
        }
        other.batch_execute("rollback").await.expect("it is done");
        let again = tokio::time::timeout(LIMIT, leadership.granted()).await.expect("it is granted again");
        // The row was locked, and the claim ended there, too.
        assert_eq!((grant.token, again.token), (1, 2));
        assert!(work.check().is_ok());
    });
}

/// The same the other way round.
#[test]
fn a_role_is_kept_while_work_cannot_be_renewed() {
    run(async {
        let stage = Stage::new("locked_work").await;
        let process = stage.process_lasting(SHORT);
        let grant = process.claims.role(Role::Dispatcher).granted().await;
        process.ask(&[1, 2], false).await;
        let held = process.claim(9).await;
        let other = stage.place.client(ADMIN).await.expect("a connection");
        other
            .batch_execute("begin; select from towline_work where token > 0 limit 1 for update")
            .await
            .expect("a lock");
        let leads = "select (extract(epoch from until) * 1000)::bigint from towline_claim where name = 'dispatcher'";
        let mut last = stage.number(leads).await;
        tokio::time::timeout(LIMIT, held[0].expired()).await.expect("it ends by itself");
        for _ in 0..2 {
            last = stage.exceeds("a renewal", leads, last).await;
            assert!(grant.check().is_ok());
        }
        other.batch_execute("rollback").await.expect("it is done");
        assert!(grant.check().is_ok());
    });
}

/// A process without its database stops before another takes over.
#[test]
fn a_worker_without_its_database_stops_before_another_begins() {
    run(async {
        let stage = Stage::new("cut_off").await;
        let link = integration::Link::to(stage.place.address()).await.expect("a link");
        let far = Process::lasting(&open(&stage.place.url_by(HUB, &link.address().to_string())), SHORT);
        far.ask(&[1], false).await;
        let work = far.claim_one().await;
        link.cut().await.expect("no packet arrives");
        tokio::time::timeout(LIMIT, work.expired()).await.expect("it stops by itself");
        eventually("the claim to end", LIMIT, async || {
            work.check().map_or(Ok(()), |left| Err(format!("{left:?} left")))
        })
        .await
        .unwrap();
        let left = "select (extract(epoch from until - clock_timestamp()) * 1000)::bigint from towline_work";
        let left = stage.number(left).await;
        assert!(left > 0, "the claim had ended {} ms before", -left);
        link.restore().await.expect("packets arrive");
    });
}

/// Shutdown: nobody has to wait for claims of a process that has ended, and no cluster is blamed.
#[test]
fn a_process_that_ends_hands_its_work_back() {
    run(async {
        let stage = Stage::new("hands_back").await;
        let (one, other) = (stage.process(), stage.process());
        one.ask(&[1, 2], true).await;
        let mut held = one.claim(9).await;
        let first = held.remove(0);
        let claim = first.claim().clone();
        assert_eq!(one.queue.hand_back(first).await.expect("an answer"), RowEnd::Ready);
        assert!(claim.check().is_err());
        one.actor.drained().await;
        assert!(held[0].check().is_err(), "nobody renews it any more");
        let taken = other.claim(9).await;
        assert_eq!(clusters(&taken), [1, 2]);
        assert!(taken.iter().all(|work| work.attempts == 1 && work.token == 2 && work.urgent));
        assert_eq!(
            one.queue.done(held.remove(0), &WorkEnd::done(in_a_century(), 0)).await.expect("an answer"),
            RowEnd::Lost
        );
    });
}

/// A part of the process may want a role long after the actor has started, and nobody else's role is asked for.
#[test]
fn a_role_is_asked_for_once_somebody_wants_it() {
    run(async {
        let stage = Stage::new("wanted").await;
        let process = stage.process_lasting(SHORT);
        process.ask(&[1], false).await;
        let work = process.claim_one().await;
        let first = stage.number(&until(1)).await;
        stage.exceeds("a turn of the actor", &until(1), first).await;
        let asked = "select coalesce(sum(calls), 0)::bigint from statistics.pg_stat_statements s join pg_database d on d.oid = s.dbid \
             where d.datname = current_database() and query like '%update towline_claim%token = c.token%'";
        assert_eq!(stage.number(asked).await, 0);
        let shared = process.claims.clone();
        let grant = tokio::time::timeout(LIMIT, shared.role(Role::Dispatcher).granted()).await.expect("it is granted");
        assert_eq!(grant.token, 1);
        assert_eq!(shared.role(Role::Dispatcher).grant().map(|grant| grant.token), Some(1));
        assert_eq!(stage.number("select count(*) from towline_claim where holder is not null").await, 1);
        assert_eq!(stage.number(asked).await, 1);
        assert!(work.check().is_ok());
    });
}
