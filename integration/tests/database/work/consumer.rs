//! Waiting for work.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use towline::test_api::documents::{ClaimSlot, ClaimSlots, RowEnd, Work, WorkConsumer};

use crate::work::world::{LIMIT, Process, Running, Stage, clusters, run};

/// A consumer with so many slots for one namespace, and what it delivers.
pub(crate) struct Waiting {
    pub(crate) running: Running,
    pub(crate) delivered: mpsc::Receiver<(Work, ClaimSlot)>,
}

impl Waiting {
    pub(crate) fn start(process: &Process, slots: usize) -> Self {
        let consumer = WorkConsumer::new(process.queue.clone(), ClaimSlots::new(slots));
        let (sender, delivered) = mpsc::channel(2 * slots);
        let deliver = move |work, slot| sender.try_send((work, slot)).expect("there is room for each slot");
        let running = Running::start(async move |scope| consumer.run(&scope, deliver).await);
        Self { running, delivered }
    }

    pub(crate) async fn next(&mut self) -> (Work, ClaimSlot) {
        timeout(LIMIT, self.delivered.recv()).await.expect("work is delivered").expect("it runs")
    }
}

/// No more rows than slots, and the next one as soon as a slot is free.
#[test]
fn a_consumer_delivers_one_row_for_each_slot() {
    run(async {
        let stage = Stage::new("slots").await;
        let process = stage.process();
        process.ask(&[1, 2, 3, 4, 5], false).await;
        let mut waiting = Waiting::start(&process, 2);
        let (first, second) = (waiting.next().await, waiting.next().await);
        assert_eq!(stage.number("select count(*) from towline_work where until > now()").await, 2);
        assert!(waiting.delivered.try_recv().is_err());
        assert_eq!(process.done(first.0).await, RowEnd::Settled);
        drop(first.1);
        let third = waiting.next().await;
        assert_eq!(stage.number("select count(*) from towline_work where until > now()").await, 2);
        drop((second, third));
    });
}

/// However many clusters of one namespace wait, and however long those take that were claimed, those of other namespaces have slots.
#[test]
fn a_cluster_of_another_namespace_is_claimed_next_while_a_namespace_has_its_share_of_the_slots() {
    run(async {
        let stage = Stage::new("neighbours").await;
        let process = stage.process();
        stage.documents("slow", 1, 40).await;
        stage.documents("other", 41, 42).await;
        process.ask(&(1..=40).collect::<Vec<_>>(), true).await;
        let mut waiting = Waiting::start(&process, 16);
        let mut slow = Vec::new();
        for _ in 0..16 {
            slow.push(waiting.next().await);
        }
        assert!(slow.iter().all(|(work, _)| work.namespace() == "slow"));
        process.ask(&[41, 42], true).await;
        let others = [waiting.next().await, waiting.next().await];
        assert!(others.iter().all(|(work, _)| work.namespace() == "other"));
        assert_eq!(stage.number("select count(*) from towline_work where until > now()").await, 18);
        // Of 32 slots, 11 are the share of each of two namespaces.
        for (work, slot) in slow.drain(..6) {
            assert_eq!(process.done(work).await, RowEnd::Settled);
            drop(slot);
        }
        assert_eq!(waiting.next().await.0.namespace(), "slow");
    });
}

/// A request through another process wakes a worker: it does not wait for the next look, which comes once a second.
#[test]
fn a_request_of_another_process_wakes_a_worker() {
    run(async {
        let stage = Stage::new("wakes").await;
        let (worker, asker) = (stage.process(), stage.process());
        let mut waiting = Waiting::start(&worker, 4);
        let listens = "select count(*) from pg_stat_activity where datname = current_database() and application_name like '%work' \
             and query like '%LISTEN%' and state = 'idle'";
        stage.becomes("the worker to listen", listens, 1).await;
        let mut taken = Vec::new();
        for number in 1..=40 {
            asker.ask(&[number], true).await;
            let begun = Instant::now();
            let (work, slot) = waiting.next().await;
            taken.push(begun.elapsed());
            assert_eq!(clusters(std::slice::from_ref(&work)), [number]);
            worker.done(work).await;
            drop(slot);
        }
        // The look after each work would be the last one for a second. Half of the requests may meet a machine that is busy.
        taken.sort();
        assert!(taken[taken.len() / 2] < Duration::from_millis(500), "{taken:?}");
    });
}

/// A request during a pass is worked on next, without another notification.
#[test]
fn a_request_during_a_pass_is_the_next_work() {
    run(async {
        let stage = Stage::new("next_pass").await;
        let process = stage.process();
        let mut waiting = Waiting::start(&process, 1);
        process.ask(&[1], false).await;
        for token in 1..=5 {
            let (work, slot) = waiting.next().await;
            assert_eq!(work.token, token);
            process.ask(&[1], false).await;
            assert_eq!(process.done(work).await, RowEnd::Ready);
            drop(slot);
        }
        waiting.running.drained().await;
    });
}
