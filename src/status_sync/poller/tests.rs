//! The poller on a scripted cluster, and a database that is not there: when it asks, and when it waits.

use std::net::TcpListener;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::run_tests::poller_of;
use super::*;
use crate::actor::{KeyMailbox, key_mailbox};

const HOUR: Duration = Duration::from_hours(1);

struct Stage {
    poller: Arc<Poller>,
    task: JoinHandle<Result<(), BoxError>>,
    drain: CancellationToken,
    _mailbox: KeyMailbox<ObjectKey>,
}

impl Stage {
    /// A poller of policies that runs, with a pass an hour, on a database at this port.
    fn new(port: u16) -> Self {
        let (poller, _script) = poller_of(port, HOUR);
        let (mailbox, inbox) = key_mailbox(4);
        let (scope, drain) = Scope::standalone("poller policies");
        let task = tokio::spawn(Arc::clone(&poller).run(scope, inbox));
        Self { poller, task, drain, _mailbox: mailbox }
    }

    /// The poller ends in order.
    async fn end(self) {
        self.drain.cancel();
        self.task.await.expect("no panic").expect("it was drained");
    }
}

/// A port that refuses: somebody has it, and listens no longer.
fn refusing() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_before_the_hub_is_listed() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a listener");
    let stage = Stage::new(listener.local_addr().expect("an address").port());
    for _ in 0..100 {
        stage.poller.hint();
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
    assert!(listener.accept().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it connected");
    let report = stage.poller.report();
    assert!(report.waits_for.is_some_and(|reason| reason.contains("first list")));
    assert_eq!((report.passes, report.failure), (0, None));
    stage.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_database_that_is_gone_is_asked_with_growing_pauses_whatever_it_had_told() {
    let stage = Stage::new(refusing());
    let mut report = stage.poller.report.subscribe();
    tokio::task::yield_now().await;
    stage.poller.target.list(&[]).await;
    let poller = Arc::clone(&stage.poller);
    let storm = tokio::spawn(async move {
        loop {
            poller.hint();
            tokio::time::sleep(Duration::from_millis(7)).await;
        }
    });
    let mut failed: Vec<Instant> = Vec::new();
    while failed.len() < 12 {
        report.changed().await.expect("the poller lives");
        let now = Instant::now();
        if report.borrow_and_update().failure.is_some() && failed.last().is_none_or(|last| *last < now) {
            failed.push(now);
        }
    }
    storm.abort();
    for (attempt, times) in failed.windows(2).enumerate() {
        let longest = RETRY.first.saturating_mul(1 << attempt).min(RETRY.cap);
        let pause = times[1] - times[0];
        assert!(pause >= longest / 2, "attempt {attempt} after {pause:?}, at least half of {longest:?}");
    }
    let report = stage.poller.report();
    assert_eq!(report.failure.map(|(kind, _)| kind), Some("connect"));
    assert_eq!(report.passes, 0);
    stage.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_drained_poller_ends_whatever_it_waits_for() {
    let waits_for_the_list = Stage::new(refusing());
    tokio::task::yield_now().await;
    waits_for_the_list.end().await;
    let waits_for_the_database = Stage::new(refusing());
    tokio::task::yield_now().await;
    waits_for_the_database.poller.target.list(&[]).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    waits_for_the_database.end().await;
}
