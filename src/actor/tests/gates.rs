//! Gated children: they run while their gate is open, and the handle reports when nothing of them runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use actix::{Actor, AsyncContext, Context, Handler};
use tokio::time::Instant;

use super::*;
use crate::actor::control::{ChildExited, Exit, ExitNotice};
use crate::actor::restart::Restarts;
use crate::actor::slot::{Phase, Slot};

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
        let tree = Supervisor::start("test", vec![worker(&counts, Duration::from_secs(3), gate)], policy(0));
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
        let tree = Supervisor::start("test", vec![worker(&counts, Duration::from_hours(1), gate)], policy(0));
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
        let _tree = Supervisor::start("test", vec![worker(&counts, Duration::from_secs(1), gate)], policy(0));
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
    on_control_lane(async {
        let (begun, (handle, gate)) = (Arc::new(AtomicUsize::new(0)), gate());
        let counted = Arc::clone(&begun);
        let spec = ChildSpec::new("worker", move |_| {
            counted.fetch_add(1, SeqCst);
            async { Err("always".into()) }
        });
        let tree = Supervisor::start("test", vec![spec.gated(gate)], policy(5));
        handle.open();
        until("it was restarted", || begun.load(SeqCst) == 2).await;
        assert_eq!(handle.state(), GateState::Running);
        handle.abort();
        assert_eq!(handle.closed().await, GateState::Waiting);
        let so_far = begun.load(SeqCst);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(
            (begun.load(SeqCst), state(&tree).await.as_str()),
            (so_far, "waiting"),
            "it was restarted all the same"
        );
    })
    .await;
}

/// A supervisor of one gated child, up to which nothing of its gate has come yet; `then` does something to it before it
/// starts. Gives how often the child has begun, some time after that.
async fn with_a_closed_gate(then: impl FnOnce(&mut Supervisor, ChildSpec, &mut Context<Supervisor>)) -> usize {
    let (counts, (_handle, gate)) = (Arc::<Counts>::default(), gate());
    let spec = worker(&counts, Duration::ZERO, gate.clone());
    let supervisor = Supervisor::create(|context| {
        let name = Name::root("test");
        let notice = ExitNotice::new(name.clone(), |_| {});
        let mut supervisor = Supervisor::new("test".into(), name.clone(), Box::new(Vec::new), policy(0), notice);
        let (label, name) = ("worker".to_owned(), name.child("worker"));
        let restarts = Restarts::default();
        let phase = Phase::Ended;
        supervisor.slots.push(Slot {
            label,
            name,
            restarts,
            last_exit: None,
            phase,
            gate: Some(gate),
            is_closing: false,
        });
        then(&mut supervisor, spec, context);
        assert!(!supervisor.is_ending(), "it gave up for a child that was not to run");
        assert!(matches!(supervisor.slots[0].phase, Phase::Waiting { .. }), "it does not rest");
        supervisor
    });
    sleep(Duration::from_secs(10)).await;
    drop(supervisor);
    counts.begun.load(SeqCst)
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_is_due_when_the_gate_has_closed_does_not_happen() {
    on_control_lane(async {
        let begun = with_a_closed_gate(|supervisor, spec, context| {
            let timer = context.run_later(Duration::from_hours(1), |_, _| {});
            supervisor.slots[0].phase = Phase::BackingOff { timer, spec };
            supervisor.restart(0, context);
        })
        .await;
        assert_eq!(begun, 0, "it was started behind a closed gate");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_fails_when_the_gate_has_closed_rests_and_costs_no_restart() {
    on_control_lane(async {
        let begun = with_a_closed_gate(|supervisor, spec, context| {
            supervisor.slots[0].phase = supervisor.run(spec, context);
            let reason = ExitReason::Panicked { message: "just before".into() };
            let exit = Exit { reason, drained: DrainReport::default() };
            supervisor.handle(ChildExited { instance: 1, exit }, context);
            assert_eq!(supervisor.slots[0].restarts.total(), 0);
        })
        .await;
        assert!(begun <= 1, "it was started again behind a closed gate");
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
        let tree = Supervisor::start("test", children, policy(0));
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
        assert_eq!(draining.await.unwrap().unfinished, []);
        closed.open();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(counts.begun.load(SeqCst), 0, "it was started in an ended tree");
    })
    .await;
}
