//! The poller with a scripted cluster and a database that does not answer: when it sends statements, and when it waits.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Poller;
use super::actor::RETRY;
use super::run_tests::poller_of;
use crate::actor::{BoxError, KeyMailbox, Scope, key_mailbox};
use crate::cluster::ObjectKey;

const HOUR: Duration = Duration::from_hours(1);

struct Harness {
    poller: Arc<Poller>,
    task: JoinHandle<Result<(), BoxError>>,
    drain: CancellationToken,
    _mailbox: KeyMailbox<ObjectKey>,
}

impl Harness {
    /// A running poller of policies, with one pass an hour and a database at this port.
    fn new(port: u16) -> Self {
        let (poller, _script) = poller_of(port, HOUR);
        let (mailbox, inbox) = key_mailbox(4);
        let (scope, drain) = Scope::standalone("poller policies");
        let task = tokio::spawn(Arc::clone(&poller).run(scope, inbox));
        Self { poller, task, drain, _mailbox: mailbox }
    }

    /// Drains the poller.
    async fn end(self) {
        self.drain.cancel();
        self.task.await.expect("no panic").expect("it was drained");
    }
}

/// Notifies the poller of a change in the database.
fn hint(poller: &Poller) {
    poller.hints().send_modify(|hints| *hints += 1);
}

/// A port that refuses connections.
fn refusing() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

#[tokio::test(start_paused = true)]
async fn no_statement_is_sent_before_the_hub_is_listed() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a listener");
    let harness = Harness::new(listener.local_addr().expect("an address").port());
    for _ in 0..100 {
        hint(&harness.poller);
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
    assert!(listener.accept().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it connected");
    let report = harness.poller.report();
    assert!(report.waits_for.is_some_and(|reason| reason.contains("first list")));
    assert_eq!((report.passes, report.failure), (0, None));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_database_that_is_down_is_retried_with_back_off_despite_notifications() {
    let harness = Harness::new(refusing());
    let mut report = harness.poller.context.reporter.sender().subscribe();
    tokio::task::yield_now().await;
    harness.poller.context.hub.target.list(&[]).await;
    let poller = Arc::clone(&harness.poller);
    let storm = tokio::spawn(async move {
        loop {
            hint(&poller);
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
    let report = harness.poller.report();
    assert_eq!(report.failure.map(|(kind, _)| kind), Some("connect"));
    assert_eq!(report.passes, 0);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_drained_poller_ends_whatever_it_waits_for() {
    let waits_for_the_list = Harness::new(refusing());
    tokio::task::yield_now().await;
    waits_for_the_list.end().await;
    let waits_for_the_database = Harness::new(refusing());
    tokio::task::yield_now().await;
    waits_for_the_database.poller.context.hub.target.list(&[]).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    waits_for_the_database.end().await;
}
