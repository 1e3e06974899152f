//! The end in order: who is asked when, who is named, and that a panic on the way harms nobody else.

use std::sync::Arc;

use tokio::time::Instant;

use super::*;

type Log = Arc<parking_lot::Mutex<Vec<&'static str>>>;

/// A child that notes its end, `work` after it was asked to drain.
fn child(name: &'static str, work: Duration, log: &Log) -> ChildSpec {
    let log = Arc::clone(log);
    ChildSpec::new(name, move |scope| {
        let log = Arc::clone(&log);
        async move {
            scope.draining().await;
            sleep(work).await;
            log.lock().push(name);
            Ok(())
        }
    })
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn children_drain_one_after_the_other_the_last_started_first() {
    on_control_lane(async {
        let log = Log::default();
        let inner = Arc::clone(&log);
        let children = vec![
            child("leases", SECOND, &log),
            ChildSpec::supervisor("section", move || {
                vec![child("dispatcher", SECOND * 2, &inner), child("watcher", SECOND * 3, &inner)]
            }),
            child("admin", SECOND * 4, &log),
        ];
        let tree = Supervisor::start("test", children);
        let began = Instant::now();
        assert_eq!(tree.drain(SECOND * 100).await, Vec::<String>::new());
        assert_eq!(*log.lock(), ["admin", "watcher", "dispatcher", "leases"]);
        assert_eq!(began.elapsed().as_secs(), 10, "they did not drain one after the other");
        assert_eq!(tree.exited().await, ExitReason::Drained);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_does_not_finish_is_aborted_and_named_and_those_after_it_still_get_their_turn() {
    on_control_lane(async {
        let log = Log::default();
        let inner = Arc::clone(&log);
        let children = vec![
            child("leases", SECOND, &log),
            ChildSpec::supervisor("section", move || {
                vec![child("quick", SECOND / 2, &inner), child("stuck", SECOND * 1_000, &inner)]
            }),
        ];
        let tree = Supervisor::start("test", children);
        let began = Instant::now();
        assert_eq!(tree.drain(SECOND * 100).await, ["test/section/stuck"]);
        // The section gets 90 s of 100 s, its stuck child 81 s of them; then half a second and a second.
        assert_eq!(began.elapsed().as_millis() / 10, 8_250);
        assert_eq!(tree.exited().await, ExitReason::DrainTimedOut);
        assert_eq!(*log.lock(), ["quick", "leases"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_draining_is_named_and_stops_no_other_drain() {
    on_control_lane(async {
        let log = Log::default();
        let panicking = ChildSpec::new("panicking", |scope| async move {
            scope.draining().await;
            panic!("on the way out")
        });
        let failing = ChildSpec::new("failing", |scope| async move {
            scope.draining().await;
            Err("on the way out".into())
        });
        let children = vec![child("leases", SECOND, &log), panicking, failing, child("admin", SECOND, &log)];
        let tree = Supervisor::start("test", children);
        assert_eq!(tree.drain(SECOND * 10).await, ["test/failing", "test/panicking"]);
        assert_eq!(*log.lock(), ["admin", "leases"]);
        assert_eq!(tree.exited().await, ExitReason::DrainTimedOut);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_restarted_during_a_drain_and_a_restart_under_way_is_called_off() {
    on_control_lane(async {
        let log = Log::default();
        let starts = Log::default();
        let noted = Arc::clone(&starts);
        let failing = ChildSpec::new("failing", move |_| {
            noted.lock().push("start");
            async { Err("at once".into()) }
        });
        let failing = failing.restart(policy(100));
        let tree = Supervisor::start("test", vec![failing, child("slow", SECOND * 5, &log)]);
        sleep(SECOND / 2).await;
        assert_eq!(tree.report().await.children[0].state, "backing off");
        assert_eq!(tree.drain(SECOND * 100).await, Vec::<String>::new(), "nothing of it was running");
        assert_eq!(starts.lock().len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_second_drain_moves_the_deadline_up() {
    on_control_lane(async {
        let log = Log::default();
        let tree = Supervisor::start("test", vec![child("stuck", SECOND * 1_000, &log)]);
        let began = Instant::now();
        let (first, second) = futures::join!(tree.drain(SECOND * 500), async {
            sleep(SECOND).await;
            assert_eq!(tree.report().await.state, "draining");
            tree.drain(Duration::ZERO).await
        });
        assert_eq!(first, second);
        assert_eq!(first, ["test/stuck"]);
        assert_eq!(began.elapsed().as_secs(), 1, "the second drain did not abort");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_has_ended_still_answers() {
    on_control_lane(async {
        let tree = Supervisor::start("test", Vec::new());
        assert_eq!(tree.drain(SECOND).await, Vec::<String>::new());
        let report = tree.report().await;
        assert_eq!((report.state.as_str(), report.last_exit), ("ended", Some(ExitReason::Drained)));
    })
    .await;
}
