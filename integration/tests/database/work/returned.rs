//! Messages for which a worker has no permit, and what is on its way to a worker that ends.

use std::collections::BTreeSet;

use integration::eventually;
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use towline::documents::Finished;

use crate::work::broker::{URGENT, WORK, World};
use crate::work::intake::Waiting;
use crate::work::world::{LIMIT, clusters, id, run};

/// How often a worker has given messages back.
const GIVEN_BACK: &str = "select coalesce(sum(calls), 0)::int8 from statistics.pg_stat_statements s join pg_database d on d.oid = s.dbid \
     where d.datname = current_database() and query like 'with rows as materialized ( select cluster from towline_work where cluster = any%'";

/// A delivery that comes without a permit is announced again, at once, and another worker works on it, once.
#[test]
fn what_a_busy_worker_gives_back_is_delivered_to_another_one_once() {
    run(async {
        let world = World::new("given_back").await;
        world.process.ask(&[1], true).await;
        world.process.ask(&[2], false).await;
        world.holds("what is urgent to be announced", URGENT, (1, 0)).await;
        world.holds("the other one to be announced", WORK, (1, 0)).await;
        let (_connection, channel) = world.channel().await;
        // The first delivery of a worker takes its permit only when this is over.
        let database = world.stage.database();
        let mut gate = database.begin("gate", LIMIT).await.expect("a transaction");
        gate.run("lock", "lock table towline_work in share mode").await.expect("it is locked");
        let (busy, mut waiting) = world.worker(1).await;
        world.stage.waits_for_a_lock("with ready as materialized").await;
        eventually("the other delivery to be at the worker", LIMIT, async || {
            let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let queue = channel.queue_declare(WORK.into(), passive, FieldTable::default()).await.expect("the queue");
            if queue.message_count() == 0 { Ok(()) } else { Err("it waits".to_owned()) }
        })
        .await
        .unwrap();
        // Nothing counts as lost while a message waits; nobody has a permit for this one.
        let (options, nobody) = (BasicPublishOptions::default(), id::<String>(9));
        channel
            .basic_publish("".into(), URGENT.into(), options, nobody.as_bytes(), BasicProperties::default())
            .await
            .expect("sent");
        gate.commit().await.expect("it is open");
        let (first, permit) = waiting.next().await;
        assert_eq!((clusters(std::slice::from_ref(&first)), first.token), (vec![1], 1));
        world.stage.becomes("the other delivery to be given back", GIVEN_BACK, 1).await;
        world.holds("it to be announced again", WORK, (1, 0)).await;
        let (worker, mut other) = world.worker(1).await;
        let (second, other_permit) = other.next().await;
        assert_eq!((clusters(std::slice::from_ref(&second)), second.token), (vec![2], 1));
        assert_eq!(worker.done(second).await, Finished::Settled);
        assert_eq!(busy.done(first).await, Finished::Settled);
        drop((permit, other_permit));
        for queue in [WORK, URGENT] {
            world.holds("no message to be left", queue, (0, 0)).await;
        }
        assert!(waiting.delivered.try_recv().is_err() && other.delivered.try_recv().is_err());
        assert_eq!(world.stage.number("select max(token) from towline_work").await, 1);
        assert_eq!(world.stage.number(GIVEN_BACK).await, 1);
    });
}

/// The deliveries are cancelled before the one is acknowledged that has taken the last permit, so that the broker sends no further one.
#[test]
fn a_worker_with_one_permit_is_sent_no_message_that_it_would_have_to_give_back() {
    run(async {
        const CLUSTERS: u64 = 40;
        let world = World::new("cancelled_first").await;
        world.process.ask(&(0..CLUSTERS).collect::<Vec<_>>(), false).await;
        world.holds("all to be announced", WORK, (CLUSTERS, 0)).await;
        let (worker, mut waiting) = world.worker(1).await;
        for _ in 0..CLUSTERS {
            // A row that has been ready for 5 s is claimed without its message, and takes the permit from the one that is on its way.
            let recent =
                "update towline_work set ready_at = now(), announced = now() where until is null and ready_at <= now()";
            world.stage.run(recent).await;
            let (work, permit) = waiting.next().await;
            assert_eq!(work.token, 1);
            assert_eq!(worker.done(work).await, Finished::Settled);
            drop(permit);
        }
        world.holds("no message to be left", WORK, (0, 0)).await;
        assert_eq!(world.stage.number(GIVEN_BACK).await, 0);
    });
}

/// What is on its way to a worker that ends is left to others: each cluster that it has not worked on has one message.
#[test]
fn a_worker_that_ends_acknowledges_nothing_that_it_has_not_claimed() {
    run(async {
        const CLUSTERS: u64 = 60;
        let world = World::new("ended_worker").await;
        world.process.ask(&(0..CLUSTERS).collect::<Vec<_>>(), false).await;
        world.holds("all to be announced", WORK, (CLUSTERS, 0)).await;
        let mut left: BTreeSet<u64> = (0..CLUSTERS).collect();
        // Each ends somewhere between a delivery and its claim.
        for round in 0..4 {
            let (worker, mut waiting) = world.worker(3).await;
            for _ in 0..=round {
                let (work, permit) = waiting.next().await;
                for cluster in clusters(std::slice::from_ref(&work)) {
                    assert!(left.remove(&cluster), "{cluster} was worked on twice");
                }
                assert_eq!(worker.done(work).await, Finished::Settled);
                drop(permit);
            }
            let Waiting { running, mut delivered } = waiting;
            let passes = async {
                while let Some((work, _permit)) = delivered.recv().await {
                    for cluster in clusters(std::slice::from_ref(&work)) {
                        assert!(left.remove(&cluster), "{cluster} was worked on twice");
                    }
                    assert_eq!(worker.done(work).await, Finished::Settled);
                }
            };
            tokio::join!(running.drained(), passes);
            let count = u64::try_from(left.len()).expect("few");
            assert!(count > 0, "messages are left in round {round}");
            world.holds("one message of each that is left", WORK, (count, 0)).await;
        }
        let (worker, mut waiting) = world.worker(8).await;
        eventually("the others", LIMIT, async || {
            let (work, permit) = waiting.next().await;
            assert!(work.attempts == 1, "{work:?}");
            for cluster in clusters(std::slice::from_ref(&work)) {
                assert!(left.remove(&cluster), "{cluster} was worked on twice");
            }
            assert_eq!(worker.done(work).await, Finished::Settled);
            drop(permit);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await
        .unwrap();
        world.holds("no message to be left", WORK, (0, 0)).await;
    });
}
