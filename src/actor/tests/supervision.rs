//! Restart, back-off, budget and escalation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures::FutureExt;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::*;

/// How an instance of [`reader`] ends when it reads `"fail"`.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Panic,
    Error,
    Freeze,
    TaskPanic,
}

/// An actor that appends what it reads to `read`, and fails on demand.
fn reader(inbox: Inbox<String>, failure: Failure, read: Arc<parking_lot::Mutex<Vec<String>>>) -> ChildSpec {
    let gauge = inbox.gauge();
    ChildSpec::new("reader", move |scope| {
        let (mut inbox, read) = (inbox.clone(), Arc::clone(&read));
        async move {
            while let Some(word) = inbox.next().await {
                let _work = scope.work();
                if word != "fail" {
                    read.lock().push(word);
                    continue;
                }
                match failure {
                    Failure::Panic => panic!("cannot read {word}"),
                    Failure::Error => return Err("no such word".into()),
                    Failure::Freeze => std::future::pending::<()>().await,
                    Failure::TaskPanic => {
                        scope.spawn(async { panic!("the task failed") });
                        std::future::pending::<()>().await;
                    }
                }
            }
            Ok(())
        }
    })
    .stall_after(Duration::from_secs(20))
    .gauge(gauge)
    .restart(policy(3))
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_fails_is_started_again_onto_the_same_mailbox() {
    let stalled = ExitReason::Stalled { after: Duration::from_secs(20) };
    let cases = [
        (Failure::Panic, ExitReason::Panicked { message: "cannot read fail".to_owned() }),
        (Failure::Error, ExitReason::Failed { error: "no such word".to_owned() }),
        (Failure::Freeze, stalled),
        (Failure::TaskPanic, ExitReason::Panicked { message: "the task failed".to_owned() }),
    ];
    for (failure, expected) in cases {
        on_control_lane(async {
            let (mailbox, inbox) = mailbox(8);
            let read = Arc::default();
            let tree = Supervisor::start("test", vec![reader(inbox, failure, Arc::clone(&read))]);
            for word in ["one", "fail", "two", "fail", "three"] {
                mailbox.send(word.to_owned()).await.unwrap();
            }
            until("the third instance has read on", || read.lock().len() == 3).await;
            assert_eq!(*read.lock(), ["one", "two", "three"], "{failure:?} lost or doubled a message");

            let report = tree.report().await;
            let child = &report.children[0];
            assert_eq!((child.name.as_str(), child.state.as_str(), child.restarts), ("reader", "running", 2));
            assert_eq!(child.last_exit, Some(expected), "{failure:?}");
            let reading = child.mailbox.unwrap();
            assert_eq!((reading.depth, reading.capacity, reading.accepted), (0, 8, 5));
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn idle_waiting_is_never_a_stall() {
    on_control_lane(async {
        let (mailbox, inbox) = mailbox(8);
        let read = Arc::default();
        let spec = reader(inbox, Failure::Error, Arc::clone(&read));
        let tree = Supervisor::start("test", vec![spec]);
        sleep(Duration::from_hours(1)).await;
        mailbox.send("late".to_owned()).await.unwrap();
        until("the message was read", || read.lock().len() == 1).await;
        assert_eq!(tree.report().await.children[0].restarts, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn restarts_wait_for_their_back_off() {
    on_control_lane(async {
        let times = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let noted = Arc::clone(&times);
        let spec = ChildSpec::new("failing", move |_| {
            noted.lock().push(Instant::now());
            async { Err("again".into()) }
        });
        let backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(4), jitter: 0.0 };
        let policy = RestartPolicy { backoff, budget: 5, window: Duration::from_mins(1) };
        let tree = Supervisor::start("test", vec![spec.restart(policy)]);
        let child = "test/failing".to_owned();
        assert_eq!(tree.exited().await, ExitReason::Escalated { child });
        let times = times.lock();
        let delays: Vec<u64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 4, 4]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_sibling_is_left_alone_by_a_restart_and_drained_by_an_escalation() {
    on_control_lane(async {
        let starts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&starts);
        let sibling = ChildSpec::new("sibling", move |scope| {
            counted.fetch_add(1, SeqCst);
            async move {
                scope.draining().await;
                Ok(())
            }
        });
        let failing = ChildSpec::new("failing", |_| async { panic!("again") });
        let tree = Supervisor::start("test", vec![sibling, failing.restart(policy(4))]);
        let reason = tree.exited().await;
        assert_eq!(reason, ExitReason::Escalated { child: "test/failing".to_owned() });
        assert_eq!(starts.load(SeqCst), 1);
        assert_eq!(tree.drain(Duration::from_secs(1)).await, Vec::<String>::new(), "the sibling was aborted");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_finishes_is_not_restarted_and_closes_its_mailbox() {
    on_control_lane(async {
        let (mailbox, inbox) = mailbox::<u8>(1);
        let spec = ChildSpec::new("once", move |_| {
            let mut inbox = inbox.clone();
            async move {
                inbox.next().await;
                Ok(())
            }
        });
        let tree = Supervisor::start("test", vec![spec]);
        mailbox.send(1).await.unwrap();
        until("the mailbox is closed", || mailbox.send(2).now_or_never() == Some(Err(Closed))).await;
        let report = tree.report().await;
        let child = &report.children[0];
        assert_eq!((child.state.as_str(), child.restarts), ("ended", 0));
        assert_eq!(child.last_exit, Some(ExitReason::Finished));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_nested_supervisor_that_gives_up_is_made_anew_with_all_its_children() {
    on_control_lane(async {
        let sibling_starts = Arc::new(AtomicUsize::new(0));
        let failures = Arc::new(AtomicUsize::new(0));
        let (counted, failed) = (Arc::clone(&sibling_starts), Arc::clone(&failures));
        let subtree = ChildSpec::supervisor("section", move || {
            let (counted, failed) = (Arc::clone(&counted), Arc::clone(&failed));
            vec![
                ChildSpec::new("steady", move |scope| {
                    counted.fetch_add(1, SeqCst);
                    async move {
                        scope.draining().await;
                        Ok(())
                    }
                }),
                ChildSpec::new("failing", move |scope| {
                    let failures = failed.fetch_add(1, SeqCst) + 1;
                    async move {
                        if failures <= 2 {
                            return Err("not yet".into());
                        }
                        scope.draining().await;
                        Ok(())
                    }
                })
                .restart(policy(1)),
            ]
        })
        .restart(policy(2));
        let tree = Supervisor::start("test", vec![subtree]);
        until("the second subtree runs", || sibling_starts.load(SeqCst) == 2).await;
        sleep(Duration::from_secs(10)).await;
        assert_eq!(failures.load(SeqCst), 3);
        let report = tree.report().await;
        let section = &report.children[0];
        assert_eq!((section.state.as_str(), section.restarts), ("running", 1));
        let child = "test/section/failing".to_owned();
        assert_eq!(section.last_exit, Some(ExitReason::Escalated { child }));
        let children: Vec<_> = section.children.iter().map(|child| (child.name.as_str(), child.restarts)).collect();
        assert_eq!(children, [("steady", 0), ("failing", 0)], "counters outlived their subtree");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_two_levels_down_ends_the_tree_under_the_policies_of_the_kit() {
    on_control_lane(async {
        let starts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&starts);
        let outer = ChildSpec::supervisor("outer", move || {
            let counted = Arc::clone(&counted);
            vec![ChildSpec::supervisor("inner", move || {
                let counted = Arc::clone(&counted);
                vec![ChildSpec::new("failing", move |_| {
                    counted.fetch_add(1, SeqCst);
                    async { Err("again".into()) }
                })]
            })]
        });
        let tree = Supervisor::start("test", vec![outer]);
        let child = "test/outer".to_owned();
        assert_eq!(tree.exited().await, ExitReason::Escalated { child });
        // One start and eight restarts an inner tree, four inner trees an outer tree, four outer trees.
        assert_eq!(starts.load(SeqCst), 9 * 4 * 4);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_subtree_whose_children_cannot_be_made_counts_as_panicked() {
    on_control_lane(async {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&made);
        let subtree = ChildSpec::supervisor("section", move || {
            assert!(counted.fetch_add(1, SeqCst) > 0, "the first children cannot be made");
            Vec::new()
        });
        let tree = Supervisor::start("test", vec![subtree.restart(policy(1))]);
        until("the subtree is made anew", || made.load(SeqCst) == 2).await;
        let section = &tree.report().await.children[0];
        assert_eq!(section.last_exit, Some(ExitReason::Panicked { message: "its control lane broke".to_owned() }));
        assert_eq!((section.state.as_str(), section.restarts), ("running", 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_an_instance_has_spawned_ends_with_it() {
    on_control_lane(async {
        let (alive, gone) = oneshot::channel::<()>();
        let alive = Arc::new(parking_lot::Mutex::new(Some(alive)));
        let spec = ChildSpec::new("parent", move |scope| {
            if let Some(alive) = alive.lock().take() {
                scope.spawn(async move {
                    let _alive = alive;
                    std::future::pending::<()>().await;
                });
            }
            async { Err("at once".into()) }
        });
        let _tree = Supervisor::start("test", vec![spec]);
        gone.await.expect_err("the task of a failed instance lives on");
    })
    .await;
}
