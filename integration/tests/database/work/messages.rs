//! What becomes of messages that are in nobody's way: refused, stolen, lost, too many.

use integration::eventually;
use lapin::BasicProperties;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, BasicRejectOptions, ConfirmSelectOptions, QueueDeleteOptions,
};
use lapin::types::AMQPValue;
use towline::documents::{Finished, Purpose, WorkQueue};

use crate::work::broker::{DEAD, LISTENERS, URGENT, WORK, World, stands};
use crate::work::world::{LIMIT, MOST_WAITING, clusters, id, ids, run};

/// A row that somebody keeps locked holds up no other one, and is worked on afterwards.
#[test]
fn a_row_that_is_locked_holds_up_no_other_one_and_is_worked_on_afterwards() {
    run(async {
        let world = World::new("lockedrow").await;
        world.process.ask(&[1], false).await;
        world.holds("it to be announced", WORK, (1, 0)).await;
        // As an operator who looks at it, or a replica that was stopped in a request. No limit ends this session meanwhile.
        world.stage.run("begin; update towline_work set wanted = wanted + 1, attempts = 0").await;
        world.process.ask(&[2, 3], false).await;
        world.holds("the others to be announced behind it", WORK, (3, 0)).await;
        let (worker, mut waiting) = world.worker(1).await;
        let mut others = Vec::new();
        for _ in 0..2 {
            let (work, _permit) = waiting.next().await;
            others.extend(clusters(std::slice::from_ref(&work)));
            assert_eq!(worker.done(work).await, Finished::Settled);
        }
        others.sort_unstable();
        assert_eq!(others, [2, 3]);
        world.holds("nothing to be left", WORK, (0, 0)).await;
        world.stage.run("commit").await;
        let (work, _permit) = waiting.next().await;
        assert_eq!(clusters(std::slice::from_ref(&work)), [1]);
        assert_eq!(worker.done(work).await, Finished::Settled, "the pass has begun after the request");
    });
}

/// What becomes of a row between its announcement and the note of it is not lost.
#[test]
fn what_changes_while_it_is_announced_is_announced_again() {
    run(async {
        let world = World::new("overtaken").await;
        stands(&world.announcer, Purpose::Announcer, "ready", "").await;
        // While a message waits, nothing counts as lost.
        let (_connection, channel) = world.channel().await;
        let (options, nobody) = (BasicPublishOptions::default(), id::<String>(9));
        channel
            .basic_publish("".into(), WORK.into(), options, nobody.as_bytes(), BasicProperties::default())
            .await
            .expect("sent");
        world.holds("the message to wait", WORK, (1, 0)).await;
        let rows = "insert into towline_work (cluster, ready_at) \
            select ('00000000-0000-4000-8000-00000000000' || n)::uuid, now() + interval '5 s' from generate_series(1, 4) n";
        world.stage.run(rows).await;
        let database = world.stage.database();
        let mut change = database.begin("change", LIMIT).await.expect("a transaction");
        // Rows can be read and locked, but not written.
        change.run("lock", "lock table towline_work in share mode").await.expect("it is locked");
        // The broker has confirmed the messages.
        world.stage.waits_for_a_lock("with rows as materialized ( select w.cluster").await;
        let (first, third) = (id::<String>(1), id::<String>(3));
        // As a worker that has its message, and no permit.
        let again = format!("update towline_work set announced = null where cluster = '{first}'");
        change.run("again", &again).await.expect("it is given back");
        WorkQueue::ask_within(&mut change, &ids(&[2]), true).await.expect("it is asked for");
        // As another announcer, which has taken over.
        let later =
            format!("update towline_work set announced = ready_at + interval '1 hour' where cluster = '{third}'");
        change.run("later", &later).await.expect("it is announced");
        change.commit().await.expect("it is committed");
        let noted = "select count(*) from towline_work where announced >= ready_at";
        world.stage.becomes("all to be announced", noted, 4).await;
        world.holds("one urgent message", URGENT, (1, 0)).await;
        world.holds("one message of each, and one more of the first", WORK, (6, 0)).await;
        let kept = format!("{noted} and announced = ready_at + interval '1 hour' and cluster = '{third}'");
        assert_eq!(world.stage.number(&kept).await, 1, "the note was moved back");
    });
}

/// A row that somebody keeps locked is announced when it is free, and delays no other.
#[test]
fn a_row_that_somebody_keeps_locked_delays_no_other_announcement() {
    run(async {
        let world = World::new("keptlocked").await;
        stands(&world.announcer, Purpose::Announcer, "ready", "").await;
        let database = world.stage.database();
        // The announcer reads nothing until the row is locked.
        let mut gate = database.begin("gate", LIMIT).await.expect("a transaction");
        gate.run("lock", "lock table towline_meta in access exclusive mode").await.expect("it is locked");
        let rows = "insert into towline_work (cluster, ready_at) \
            select ('00000000-0000-4000-8000-00000000000' || n)::uuid, now() from generate_series(1, 3) n";
        world.stage.run(rows).await;
        let mut keeper = database.begin("keeper", LIMIT).await.expect("a transaction");
        let first = id::<String>(1);
        let lock = format!("select from towline_work where cluster = '{first}' for no key update");
        keeper.run("lock", &lock).await.expect("it is locked");
        gate.commit().await.expect("it is open");
        let noted = "select count(*) from towline_work where announced >= ready_at";
        world.stage.becomes("the others to be announced", noted, 2).await;
        world.holds("a message of each of the others", WORK, (2, 0)).await;
        keeper.commit().await.expect("it is free");
        world.holds("a message of each", WORK, (3, 0)).await;
        world.stage.becomes("all to be announced", noted, 3).await;
    });
}

/// The same where the row is locked after it was read: the others are noted, and it is announced once more.
#[test]
fn a_row_that_is_locked_while_it_is_announced_delays_no_other_note() {
    run(async {
        let world = World::new("lockednote").await;
        stands(&world.announcer, Purpose::Announcer, "ready", "").await;
        let rows = "insert into towline_work (cluster, ready_at) \
            select ('00000000-0000-4000-8000-00000000000' || n)::uuid, now() + interval '5 s' from generate_series(1, 3) n";
        world.stage.run(rows).await;
        let database = world.stage.database();
        let mut gate = database.begin("gate", LIMIT).await.expect("a transaction");
        // Rows can be read and locked, but not written.
        gate.run("lock", "lock table towline_work in share mode").await.expect("it is locked");
        // The broker has confirmed the messages.
        world.stage.waits_for_a_lock("with rows as materialized ( select w.cluster").await;
        let mut keeper = database.begin("keeper", LIMIT).await.expect("a transaction");
        let first = id::<String>(1);
        let lock = format!("select from towline_work where cluster = '{first}' for no key update");
        keeper.run("lock", &lock).await.expect("it is locked");
        gate.commit().await.expect("it is open");
        let noted = "select count(*) from towline_work where announced is not null";
        world.stage.becomes("the others to be noted", noted, 2).await;
        world.holds("a message of each", WORK, (3, 0)).await;
        keeper.commit().await.expect("it is free");
        world.stage.becomes("all to be noted", noted, 3).await;
        world.holds("one more of the first", WORK, (4, 0)).await;
    });
}

/// Three of four deliveries are urgent while both queues have some, also at a worker that takes one at a time.
#[test]
fn what_is_not_urgent_has_the_fourth_turn() {
    run(async {
        let world = World::new("fourth").await;
        world.process.ask(&(0..12).collect::<Vec<_>>(), false).await;
        world.process.ask(&(12..24).collect::<Vec<_>>(), true).await;
        world.holds("what is not urgent", WORK, (12, 0)).await;
        world.holds("what is urgent", URGENT, (12, 0)).await;
        // On a busy machine 12 turns take longer than five seconds, and what was ready for as long is claimed without its message.
        let just_now = "update towline_work set ready_at = now(), announced = now()";
        world.stage.run(just_now).await;
        let (worker, mut waiting) = world.worker(1).await;
        let mut turns = Vec::new();
        for _ in 0..12 {
            let (work, permit) = waiting.next().await;
            turns.push(work.urgent);
            assert_eq!(worker.done(work).await, Finished::Settled);
            world.stage.run(just_now).await;
            drop(permit);
        }
        let others = turns.iter().filter(|urgent| !**urgent).count();
        assert_eq!(others, 3, "{turns:?}");
    });
}

/// What waits in a queue is not lost, however long it waits. A look that finds nothing lost announces nothing.
#[test]
fn nothing_is_announced_again_while_messages_wait() {
    run(async {
        let world = World::new("waiting").await;
        world.process.ask(&[1], false).await;
        world.process.ask(&[2], true).await;
        world.holds("what is not urgent", WORK, (1, 0)).await;
        world.holds("what is urgent", URGENT, (1, 0)).await;
        // As if that had been an hour ago.
        let text =
            "update towline_work set ready_at = ready_at - interval '1 h', announced = announced - interval '1 h'";
        world.stage.run(text).await;
        world.looks_twice().await;
        let again =
            "select count(*) from towline_work where announced is null or announced > now() - interval '30 min'";
        assert_eq!(world.stage.number(again).await, 0);
        world.holds("one message", WORK, (1, 0)).await;
        // One queue is empty now, but not both.
        world.server.control(&["purge_queue", URGENT]).await.expect("it is purged");
        world.looks_twice().await;
        assert_eq!(world.stage.number(again).await, 0);
    });
}

/// A row whose claim has ended without an end of its pass is announced again. No worker is there that would find it overdue.
#[test]
fn what_a_worker_has_left_is_announced_again_when_its_claim_ends() {
    run(async {
        let world = World::new("orphaned").await;
        let (worker, mut waiting) = world.worker(1).await;
        world.process.ask(&[1], false).await;
        let (work, _permit) = waiting.next().await;
        world.holds("its message to be acknowledged", WORK, (0, 0)).await;
        drop((waiting, work, worker));
        // As if half a minute had passed. That it was announced is later than that it was ready.
        let text = "update towline_work set until = now(), ready_at = announced - interval '1 s'";
        world.stage.run(text).await;
        world.holds("it to be announced again", WORK, (1, 0)).await;
    });
}

/// What was delivered 20 times more to workers that died is a dead letter with its reason, and its row is announced again.
#[test]
fn a_message_that_no_worker_survives_becomes_a_dead_letter_and_its_row_is_worked_on() {
    run(async {
        let world = World::new("poisoned").await;
        let (_connection, channel) = world.channel().await;
        world.process.ask(&[5], false).await;
        world.holds("it to be announced", WORK, (1, 0)).await;
        let mut deliveries = 0;
        let mut letter = None;
        eventually("a dead letter", LIMIT, async || {
            // The same as a connection that ends without an acknowledgement.
            while let Some(message) =
                channel.basic_get(WORK.into(), BasicGetOptions::default()).await.expect("an answer")
            {
                deliveries += 1;
                message.acker.reject(BasicRejectOptions { requeue: true }).await.expect("given back");
                if deliveries == 21 {
                    break;
                }
            }
            let found = channel.basic_get(DEAD.into(), BasicGetOptions { no_ack: true }).await.expect("an answer");
            letter = found;
            if letter.is_some() { Ok(()) } else { Err(format!("{deliveries} deliveries")) }
        })
        .await
        .unwrap();
        assert_eq!(deliveries, 21);
        let letter = letter.expect("one");
        let headers = letter.properties.headers().clone().expect("headers");
        let reason = headers.inner().get("x-first-death-reason").cloned();
        assert_eq!(reason, Some(AMQPValue::LongString("delivery_limit".into())));
        assert_eq!(String::from_utf8_lossy(&letter.data), id::<String>(5));
        world.holds("the row to be announced again", WORK, (1, 0)).await;
        let (_worker, mut waiting) = world.worker(1).await;
        let (work, _permit) = waiting.next().await;
        assert_eq!(clusters(&[work]), [5]);
    });
}

/// A queue that was deleted with its messages is declared again, and serves as before.
#[test]
fn a_queue_that_somebody_deletes_is_there_again() {
    run(async {
        let world = World::new("deleted").await;
        let (worker, mut waiting) = world.worker(2).await;
        let (_connection, channel) = world.channel().await;
        for (queue, urgent, cluster) in [(WORK, false, 1), (URGENT, true, 2)] {
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.expect("it is deleted");
            world.process.ask(&[cluster], urgent).await;
            let (work, _permit) = waiting.next().await;
            assert_eq!(clusters(std::slice::from_ref(&work)), [cluster]);
            assert_eq!(worker.done(work).await, Finished::Settled);
            eventually("the worker to consume again", LIMIT, async || {
                let consumers = world.server.control(&["-q", "list_queues", "name", "consumers"]).await;
                let consumers = consumers.expect("the queues");
                let is_consumed = |queue: &str| consumers.lines().any(|line| line.split_whitespace().eq([queue, "1"]));
                if is_consumed(WORK) && is_consumed(URGENT) { Ok(()) } else { Err(consumers.clone()) }
            })
            .await
            .unwrap();
        }
        // A worker may find a row before its refused announcement is repeated: then only the next one shows that they are taken.
        eventually("an announcement to be taken", LIMIT, async || {
            world.process.ask(&[3], false).await;
            let (work, _permit) = waiting.next().await;
            assert_eq!(worker.done(work).await, Finished::Settled);
            match world.announcer.standings().get(&Purpose::Announcer) {
                Some(standing) if standing.as_str() == "ready" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
        assert_eq!(world.stage.number(LISTENERS).await, 0);
    });
}

/// A queue that takes no more is named, no memory is taken for it, and the rows are worked on.
#[test]
fn a_full_queue_is_named_and_its_rows_are_worked_on() {
    run(async {
        let world = World::new("limited").await;
        let limit = ["set_policy", "--apply-to", "queues", "limit", r"^towline\.work", r#"{"max-length": 1}"#];
        world.server.control(&limit).await.expect("a policy");
        // A quorum queue takes some more before it refuses.
        let mut asked = Vec::new();
        eventually("the announcer to be refused", LIMIT, async || {
            let next = u64::try_from(asked.len()).expect("few") + 1;
            world.process.ask(&[next], false).await;
            asked.push(next);
            match world.announcer.standings().get(&Purpose::Announcer) {
                Some(standing) if standing.to_string().contains("refuses") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
        let (worker, mut waiting) = world.worker(asked.len()).await;
        let mut works = Vec::new();
        for _ in &asked {
            works.push(waiting.next().await.0);
        }
        works.sort_by_key(|work| work.cluster);
        assert_eq!(clusters(&works), asked, "each once");
        for work in works {
            assert_eq!(worker.done(work).await, Finished::Settled);
        }
        world.server.control(&["clear_policy", "limit"]).await.expect("no policy");
        world.process.ask(&[10_000], false).await;
        stands(&world.announcer, Purpose::Announcer, "ready", "").await;
    });
}

/// What is never confirmed, although the connection is alive, is announced on another connection.
#[test]
fn announcements_that_are_never_confirmed_are_made_again() {
    run(async {
        let world = World::new("unconfirmed").await;
        stands(&world.announcer, Purpose::Announcer, "ready", "").await;
        let connected = connections(&world);
        // As a queue whose leader is gone: its process takes nothing.
        let leader = format!("whereis('%2F_{WORK}')");
        world.server.control(&["eval", &format!("sys:suspend({leader}).")]).await.expect("it is suspended");
        world.process.ask(&[1], false).await;
        stands(&world.announcer, Purpose::Announcer, "away", "did not answer within 20 s").await;
        eventually("another connection", LIMIT, async || match connections(&world) {
            more if more > connected => Ok(()),
            other => Err(other.to_string()),
        })
        .await
        .unwrap();
        world.server.control(&["eval", &format!("sys:resume({leader}).")]).await.expect("it goes on");
        stands(&world.announcer, Purpose::Announcer, "ready", "").await;
        let (worker, mut waiting) = world.worker(1).await;
        let (work, permit) = waiting.next().await;
        assert_eq!(clusters(std::slice::from_ref(&work)), [1]);
        assert_eq!(worker.done(work).await, Finished::Settled);
        drop(permit);
        world.holds("what was announced more than once to be dropped", WORK, (0, 0)).await;
    });
}

/// How often an announcer has connected.
fn connections(world: &World) -> usize {
    world.server.log().expect("the log").matches("has a client-provided name: towline announcer").count()
}

/// What is out of date does not end the deliveries of a worker with a single permit.
#[test]
fn a_worker_on_its_last_permit_goes_on_consuming_past_messages_that_are_out_of_date() {
    run(async {
        let world = World::new("outdated").await;
        let (_worker, mut waiting) = world.worker(1).await;
        let consumers = async || {
            let listed = world.server.control(&["-q", "list_consumers", "queue_name", "consumer_tag"]).await;
            let mut listed: Vec<_> = listed.expect("the consumers").lines().map(str::to_owned).collect();
            listed.sort();
            listed
        };
        let before = consumers().await;
        assert!(before.iter().any(|line| line.starts_with(WORK)), "{before:?}");
        let (_connection, channel) = world.channel().await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        let (options, body) = (BasicPublishOptions::default(), id::<String>(1));
        for _ in 0..20 {
            let properties = BasicProperties::default();
            channel.basic_publish("".into(), WORK.into(), options, body.as_bytes(), properties).await.expect("sent");
        }
        channel.wait_for_confirms().await.expect("confirms");
        world.holds("all of them to be dropped", WORK, (0, 0)).await;
        assert_eq!(consumers().await, before);
        world.process.ask(&[1], false).await;
        let (work, _permit) = waiting.next().await;
        assert_eq!(clusters(&[work]), [1]);
        let after = consumers().await;
        assert!(!after.iter().any(|line| line.starts_with("towline.work")), "a busy worker consumes: {after:?}");
    });
}

/// Announcements that nobody receives end, so that the broker does not fill up.
#[test]
fn no_more_is_announced_where_nobody_receives_it() {
    run(async {
        let world = World::new("flooded").await;
        // Its connection has declared the queues.
        stands(&world.announcer, Purpose::Announcer, "ready", "").await;
        let (_connection, channel) = world.channel().await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        let (options, body) = (BasicPublishOptions::default(), id::<String>(1));
        for _ in 0..MOST_WAITING {
            let properties = BasicProperties::default();
            channel.basic_publish("".into(), WORK.into(), options, body.as_bytes(), properties).await.expect("sent");
        }
        channel.wait_for_confirms().await.expect("confirms");
        world.holds("all messages to wait", WORK, (MOST_WAITING.into(), 0)).await;
        stands(&world.announcer, Purpose::Announcer, "away", "nobody seems to receive them").await;
        world.process.ask(&[1], false).await;
        // A worker works on it without its message, which is not there.
        let (worker, mut waiting) = world.worker(4).await;
        let (work, permit) = waiting.next().await;
        assert_eq!(worker.done(work).await, Finished::Settled);
        drop(permit);
        // What is out of date is dropped, and then there is room again.
        world.holds("the worker to have dropped the messages", WORK, (0, 0)).await;
        world.process.ask(&[2], false).await;
        let (work, _permit) = waiting.next().await;
        assert_eq!(clusters(&[work]), [2]);
        stands(&world.announcer, Purpose::Announcer, "ready", "").await;
    });
}
