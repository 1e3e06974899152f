//! Laws of the dispatcher.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures::FutureExt;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::super::mailbox::key_mailbox;
use super::super::tests::until;
use super::*;
use world::{LIMITS, OPEN, Rig, World};

mod world;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_key_never_runs_twice_at_once_and_no_request_of_a_hundred_thousand_is_lost() {
    const KEYS: usize = 500;
    const SENDERS: u64 = 8;
    let world = World::new(KEYS, OPEN, |key, run| match (key * 31 + run * 7) % 16 {
        0 => Outcome::Retry,
        1 => Outcome::RetryAfter(Duration::from_micros(200)),
        2 => Outcome::Wait,
        3 if run.is_multiple_of(11) => panic!("a run in a while"),
        _ => Outcome::Done,
    });
    let backoff = Backoff::new(Duration::from_micros(50), Duration::from_millis(5));
    let limits = Limits { slots: 16, waiting: 32, backoff };
    let rig = Arc::new(Rig::start(Arc::clone(&world), 64, limits));
    let senders = (0..SENDERS).map(|seed| {
        let rig = Arc::clone(&rig);
        tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            for _ in 0..100_000 / SENDERS {
                rig.request(random.random_range(0..KEYS)).await;
            }
        })
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.await.unwrap();
    }
    let settled = || {
        let all_seen = world.probes.iter().all(|probe| probe.seen.load(SeqCst) == probe.requested.load(SeqCst));
        all_seen && rig.mailbox.gauge().read().depth == 0 && rig.dispatcher.snapshot() == Snapshot::default()
    };
    until("each key's last request has been seen by a run", settled).await;
    assert!(!world.twice_at_once.load(SeqCst), "a key ran twice at once");
    assert!(world.most_running.load(SeqCst) <= 16, "more runs than slots");
    let reading = rig.mailbox.gauge().read();
    assert_eq!(reading.accepted + reading.merged, 100_000);
    assert_eq!(world.count("started"), world.count("finished") + world.count("panicked"));
}

#[tokio::test(start_paused = true)]
async fn as_many_keys_run_at_once_as_there_are_slots() {
    let rig = Rig::start(World::new(10, 0, |_, _| Outcome::Done), 10, LIMITS);
    for key in 0..10 {
        rig.request(key).await;
    }
    until("four keys run", || rig.world.running.load(SeqCst) == 4).await;
    let snapshot = rig.dispatcher.snapshot();
    assert_eq!((snapshot.running, snapshot.waiting, snapshot.retrying), (4, 6, 0));
    tokio::time::advance(SECOND).await;
    assert!(rig.dispatcher.snapshot().oldest >= Some(SECOND), "the oldest key does not grow older");
    rig.world.gate.add_permits(10);
    until("all have run", || rig.world.starts() == [1; 10] && rig.dispatcher.snapshot().running == 0).await;
    assert_eq!(rig.world.most_running.load(SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn a_blocked_dispatcher_takes_exactly_its_limits_and_senders_wait() {
    let limits = Limits { slots: 1, waiting: 4, ..LIMITS };
    let rig = Rig::start(World::new(100, 0, |_, _| Outcome::Done), 2, limits);
    let accepted = Arc::new(AtomicUsize::new(0));
    for key in 0..100 {
        let (mailbox, accepted) = (rig.mailbox.clone(), Arc::clone(&accepted));
        tokio::spawn(async move {
            mailbox.request(key).await.expect("the inbox is open");
            accepted.fetch_add(1, SeqCst);
        });
    }
    // One runs, four are ready, two are in the mailbox.
    until("all but seven senders wait", || accepted.load(SeqCst) == 7).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(accepted.load(SeqCst), 7);
    let snapshot = rig.dispatcher.snapshot();
    assert_eq!((snapshot.running, snapshot.waiting, rig.mailbox.gauge().read().depth), (1, 4, 2));
    rig.world.gate.add_permits(1);
    until("the end of a run lets one more in", || accepted.load(SeqCst) == 8).await;
}

#[tokio::test(start_paused = true)]
async fn keys_in_back_off_do_not_hold_up_the_intake() {
    let limits = Limits { slots: 1, waiting: 1, ..LIMITS };
    let rig = Rig::start(World::new(50, OPEN, |_, _| Outcome::RetryAfter(SECOND * 100)), 1, limits);
    for key in 0..50 {
        rig.request(key).await;
    }
    until("all wait for their delay", || rig.dispatcher.snapshot().retrying == 50).await;
    assert_eq!(rig.world.starts(), [1; 50]);
}

#[tokio::test(start_paused = true)]
async fn a_request_during_a_run_runs_again_after_it_and_one_during_a_delay_at_once() {
    let world = World::new(1, 0, |_, run| if run == 1 { Outcome::RetryAfter(SECOND * 100) } else { Outcome::Done });
    let rig = Rig::start(world, 4, LIMITS);
    let began = Instant::now();
    rig.request(0).await;
    until("the first run is under way", || rig.world.starts() == [1]).await;
    for _ in 0..3 {
        rig.request(0).await;
    }
    rig.world.gate.add_permits(2);
    until("the second run has asked for a delay", || rig.dispatcher.snapshot().retrying == 1).await;
    assert_eq!(rig.world.starts(), [2], "three requests during a run are one more run");
    rig.request(0).await;
    until("the third run is under way", || rig.world.starts() == [3]).await;
    assert!(began.elapsed() < SECOND * 100, "the request waited for the delay");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_panics_is_retried_and_the_others_go_on() {
    let world = World::new(2, OPEN, |key, run| {
        assert!(key == 1 || run > 0, "the first run of key 0");
        Outcome::Done
    });
    let rig = Rig::start(world, 4, LIMITS);
    let began = Instant::now();
    rig.request(0).await;
    until("the key has panicked", || rig.world.count("panicked") == 1).await;
    rig.request(1).await;
    until("both are done", || rig.world.count("finished") == 2).await;
    assert!(began.elapsed() >= SECOND, "retried without back-off");
    assert_eq!(rig.world.starts(), [2, 1]);
    assert!(!rig.body.is_finished(), "the panic of a run ended the dispatcher");
}

#[tokio::test(start_paused = true)]
async fn a_drain_finishes_what_runs_and_starts_nothing_more() {
    let rig = Rig::start(World::new(20, 0, |_, _| Outcome::Done), 20, LIMITS);
    for key in 0..10 {
        rig.request(key).await;
    }
    until("four keys run", || rig.world.running.load(SeqCst) == 4).await;
    rig.drain.cancel();
    rig.request(11).await;
    tokio::time::sleep(SECOND).await;
    assert!(!rig.body.is_finished(), "the body ended before its runs");
    rig.world.gate.add_permits(20);
    rig.body.await.unwrap().unwrap();
    assert_eq!(rig.world.starts().iter().sum::<usize>(), 4, "a ready key or the one that came late has run");
    assert_eq!(rig.world.count("finished"), 4);
}

#[tokio::test(start_paused = true)]
async fn a_run_counts_as_work_in_hand_and_waiting_does_not() {
    let (mailbox, inbox) = key_mailbox(4);
    let (scope, _drain) = Scope::standalone("dispatcher");
    let world = World::new(1, 0, |_, _| Outcome::Done);
    let dispatcher = Dispatcher::new(Arc::clone(&world), Arc::new(Arc::clone(&world)), LIMITS);
    tokio::spawn(dispatcher.run(scope.clone(), inbox));
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!(scope.longest_silence(Instant::now()), None);
    mailbox.request(0).await.unwrap();
    until("the key runs", || world.starts() == [1]).await;
    tokio::time::sleep(SECOND * 5).await;
    assert!(scope.longest_silence(Instant::now()) >= Some(SECOND * 5));
    world.gate.add_permits(1);
    until("nothing is in hand", || scope.longest_silence(Instant::now()).is_none()).await;
    assert_eq!(scope.draining().now_or_never(), None);
}

#[tokio::test(start_paused = true)]
async fn a_run_costs_the_dispatcher_one_wake_up_beside_that_of_its_request() {
    const RUNS: usize = 1_000;
    let (mailbox, inbox) = key_mailbox(4);
    let (scope, _drain) = Scope::standalone("dispatcher");
    let world = World::new(RUNS, OPEN, |_, _| Outcome::Done);
    let dispatcher = Dispatcher::new(Arc::clone(&world), Arc::new(Arc::clone(&world)), LIMITS);
    let mut body = Box::pin(dispatcher.run(scope, inbox));
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&polls);
    tokio::spawn(std::future::poll_fn(move |context| {
        counted.fetch_add(1, SeqCst);
        body.as_mut().poll(context)
    }));
    until("it waits for requests", || polls.load(SeqCst) == 1).await;
    for run in 0..RUNS {
        mailbox.request(run).await.unwrap();
        until("the run is done", || world.count("finished") == run + 1).await;
    }
    assert!(polls.load(SeqCst) <= 2 * RUNS + 1, "{} wake-ups for {RUNS} runs", polls.load(SeqCst));
}
