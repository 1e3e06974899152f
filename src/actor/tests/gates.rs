//! Gated children: they run while their gate is open, and the handle reports when nothing of them runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::time::Instant;

use super::*;

/// How many instances have begun, and how many of them run.
#[derive(Default)]
struct Counts {
    begun: AtomicUsize,
    running: AtomicUsize,
}

/// Counts as running until it is dropped, however it ends.
struct Running(Arc<Counts>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

/// A child that needs `work` to drain.
fn worker(counts: &Arc<Counts>, work: Duration, gate: Gate) -> ChildSpec {
    let counts = Arc::clone(counts);
    ChildSpec::new("worker", move |scope| {
        let counts = Arc::clone(&counts);
        async move {
            counts.begun.fetch_add(1, SeqCst);
            counts.running.fetch_add(1, SeqCst);
            let _running = Running(counts);
            scope.draining().await;
            sleep(work).await;
            Ok(())
        }
    })
    .gated(gate)
}

async fn state(tree: &SupervisorHandle) -> String {
    tree.report().await.children[0].state.clone()
}

#[tokio::test(start_paused = true)]
async fn a_gated_child_runs_while_its_gate_is_open_and_no_longer() {
    on_control_lane(async {
        let (counts, (handle, gate)) = (Arc::<Counts>::default(), gate());
        let tree = Supervisor::start("test", vec![worker(&counts, Duration::from_secs(3), gate)]);
        assert_eq!((state(&tree).await.as_str(), handle.state()), ("waiting", GateState::Waiting));
        assert_eq!(counts.begun.load(SeqCst), 0, "it ran behind a closed gate");

        for round in 1..=3 {
            handle.open();
            until("it runs", || counts.running.load(SeqCst) == 1).await;
            assert_eq!((counts.begun.load(SeqCst), handle.state()), (round, GateState::Running));
            let asked = Instant::now();
            handle.drain(asked + Duration::from_mins(1));
            assert_eq!(handle.closed().await, GateState::Waiting);
            assert_eq!(asked.elapsed().as_secs(), 3, "what was in hand was not finished");
            assert_eq!((counts.running.load(SeqCst), state(&tree).await.as_str()), (0, "waiting"));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_abort_waits_for_nothing_and_a_drain_for_no_longer_than_its_deadline() {
    on_control_lane(async {
        let (counts, (handle, gate)) = (Arc::<Counts>::default(), gate());
        let tree = Supervisor::start("test", vec![worker(&counts, Duration::from_hours(1), gate)]);
        handle.open();
        until("it runs", || counts.running.load(SeqCst) == 1).await;
        let asked = Instant::now();
        handle.drain(asked + Duration::from_secs(5));
        handle.closed().await;
        assert_eq!(asked.elapsed().as_secs(), 5);

        handle.open();
        until("it runs again", || counts.running.load(SeqCst) == 1).await;
        let asked = Instant::now();
        handle.abort();
        assert_eq!(handle.closed().await, GateState::Waiting);
        assert!(asked.elapsed() < Duration::from_millis(10), "an abort took {:?}", asked.elapsed());
        until("its body is gone", || counts.running.load(SeqCst) == 0).await;
        assert_eq!(state(&tree).await, "waiting");
        assert!(tree.report().await.children[0].last_exit.is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_is_opened_while_its_child_ends_opens_afterwards() {
    on_control_lane(async {
        let (counts, (handle, gate)) = (Arc::<Counts>::default(), gate());
        let _tree = Supervisor::start("test", vec![worker(&counts, Duration::from_secs(1), gate)]);
        handle.open();
        until("it runs", || counts.running.load(SeqCst) == 1).await;
        handle.drain(Instant::now() + Duration::from_mins(1));
        sleep(Duration::from_millis(10)).await;
        handle.open();
        until("the second instance runs", || counts.begun.load(SeqCst) == 2).await;
        assert_eq!((counts.running.load(SeqCst), handle.state()), (1, GateState::Running));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_gated_child_that_fails_is_restarted_and_rests_when_its_gate_closes_meanwhile() {
    // It fails at once and is restarted a second later: the gate closes before, at, and after the moment of the restart.
    for closes_after in [500, 999, 1_000, 1_001, 1_002, 1_003, 1_500] {
        on_control_lane(async {
            let (begun, (handle, gate)) = (Arc::new(AtomicUsize::new(0)), gate());
            let counted = Arc::clone(&begun);
            let spec = ChildSpec::new("worker", move |_| {
                counted.fetch_add(1, SeqCst);
                async { Err("always".into()) }
            });
            let tree = Supervisor::start("test", vec![spec.restart(policy(5)).gated(gate)]);
            handle.open();
            until("it has begun", || begun.load(SeqCst) == 1).await;
            sleep(Duration::from_millis(closes_after)).await;
            assert_eq!(handle.state(), GateState::Running);
            handle.abort();
            assert_eq!(handle.closed().await, GateState::Waiting);
            let so_far = begun.load(SeqCst);
            sleep(Duration::from_secs(10)).await;
            let now = (begun.load(SeqCst), state(&tree).await);
            assert_eq!(
                now,
                (so_far, "waiting".to_owned()),
                "restarted behind its gate, closed after {closes_after} ms"
            );
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_fails_as_its_gate_closes_rests_and_costs_no_restart() {
    on_control_lane(async {
        let (begun, (handle, gate)) = (Arc::new(AtomicUsize::new(0)), gate());
        let handle = Arc::new(handle);
        let (counted, closing) = (Arc::clone(&begun), Arc::clone(&handle));
        let spec = ChildSpec::new("worker", move |_| {
            counted.fetch_add(1, SeqCst);
            closing.abort();
            async { Err("just then".into()) }
        });
        let tree = Supervisor::start("test", vec![spec.restart(policy(0)).gated(gate)]);
        for round in 1..=3 {
            handle.open();
            until("it has begun", || begun.load(SeqCst) == round).await;
            until("it rests", || handle.state() == GateState::Waiting).await;
        }
        let worker = &tree.report().await.children[0];
        assert_eq!((worker.state.as_str(), worker.restarts), ("waiting", 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_handle_reports_that_the_supervisor_ends_as_soon_as_its_own_child_has() {
    on_control_lane(async {
        let ((first, first_gate), (second, second_gate), (closed, closed_gate)) = (gate(), gate(), gate());
        let counts = Arc::<Counts>::default();
        let slow = |name: &str, gate| {
            let seconds = Duration::from_secs(4);
            ChildSpec::new(name, move |scope| async move {
                scope.draining().await;
                sleep(seconds).await;
                Ok(())
            })
            .gated(gate)
        };
        let children =
            vec![slow("first", first_gate), slow("second", second_gate), worker(&counts, Duration::ZERO, closed_gate)];
        let tree = Supervisor::start("test", children);
        first.open();
        second.open();
        first.reaches(|state| state == GateState::Running).await;
        second.reaches(|state| state == GateState::Running).await;
        let asked = Instant::now();
        let draining = tokio::task::spawn_local(async move { tree.drain(Duration::from_mins(1)).await });
        assert_eq!(closed.reaches(|state| state == GateState::Ended).await, GateState::Ended);
        assert_eq!(asked.elapsed().as_secs(), 0, "a closed gate waited for others");
        assert_eq!(second.reaches(|state| state == GateState::Ended).await, GateState::Ended);
        assert_eq!((asked.elapsed().as_secs(), first.state()), (4, GateState::Running));
        first.reaches(|state| state == GateState::Ended).await;
        assert_eq!(asked.elapsed().as_secs(), 8);
        assert_eq!(draining.await.unwrap(), Vec::<String>::new());
        closed.open();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(counts.begun.load(SeqCst), 0, "it was started in an ended tree");
    })
    .await;
}
