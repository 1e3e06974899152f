//! Waits for work and claims it: what the database says is ready, or what the message broker delivers.

mod delivered;
mod failures;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use self::failures::Failures;
use super::granted::Work;
use super::queue::WorkQueue;
use super::turns::Turns;
use crate::actor::{Backoff, Scope};
use crate::cluster::full_text;
use crate::db::{self, Listener, Session, Subscriber};
use crate::documents::bus::{Broker, Purpose};

/// What every request for work notifies.
const CHANNEL: &str = "towline_work";
/// Between two looks: a row may have become ready by the time, and a notification may have been lost.
const EVERY: Duration = Duration::from_secs(1);
/// The limit of LISTEN.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Between attempts of which each fails.
const RETRY: Backoff = Backoff::new(EVERY, Duration::from_secs(10));
/// How long the broker may be away before the database is asked for work.
const WITHOUT_BROKER: Duration = Duration::from_secs(5);

/// After connections to the broker of which each was lost soon.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// Claims work while there are free permits.
pub struct Intake {
    queue: WorkQueue,
    permits: Arc<Semaphore>,
    turns: Turns,
    broker: Option<Broker>,
    /// Of claims for deliveries, and of what is overdue.
    failed_claims: Failures,
    /// Of having work announced again.
    failed_returns: Failures,
}

/// What wakes the intake.
#[derive(Default)]
struct Wakes(Notify);

/// Says that the database need not be asked any more.
#[derive(Default)]
struct Relieved(Notify);

impl Subscriber for Wakes {
    async fn listening(&self, _session: &Session) -> Result<(), db::Error> {
        self.0.notify_one();
        Ok(())
    }

    fn notified(&self, _channel: &str, _payload: &str) {
        self.0.notify_one();
    }

    fn failed(&self, error: &db::Error, failures: u32) {
        if failures == 0 {
            tracing::warn!(error = full_text(error), "failed to listen for work, retrying");
        } else {
            tracing::debug!(error = full_text(error), failures, "failed to listen for work, retrying");
        }
    }
}

impl Intake {
    /// One that takes a permit for each row.
    pub fn new(queue: WorkQueue, permits: Arc<Semaphore>) -> Self {
        Self {
            queue,
            permits,
            turns: Turns::default(),
            broker: None,
            failed_claims: Failures::of("failed to claim work, retrying"),
            failed_returns: Failures::of("failed to have work announced again, it is found when it is overdue"),
        }
    }

    /// The same, but the broker says which rows are ready, as long as it can be used.
    #[must_use]
    pub fn over(mut self, broker: Option<Broker>) -> Self {
        self.broker = broker;
        self
    }

    /// Passes work on, each with a permit, until the actor drains. `deliver` must not block.
    ///
    /// It looks for work when it is notified, and once a second; never without a free permit. Where a look has filled all permits, the
    /// next one follows as soon as another is free. With a broker, it does so only while that can't be used; else see `delivered`. The
    /// actor hands back claims that are granted while it drains.
    pub async fn run(mut self, scope: &Scope, mut deliver: impl FnMut(Work, OwnedSemaphorePermit)) {
        let Some(broker) = self.broker.clone() else {
            return self.ask_the_database(scope, &Relieved::default(), &mut deliver).await;
        };
        let (mut usable_at, mut short_lives) = (Instant::now(), 0_u32);
        while !scope.is_draining() {
            let pause = short_lives.checked_sub(1).map_or(Duration::ZERO, |lives| AGAIN.next_delay(lives));
            let reached = async {
                sleep(pause).await;
                broker.reach(Purpose::Worker).await
            };
            tokio::pin!(reached);
            let connected = tokio::select! {
                biased;
                () = scope.draining() => return,
                connected = timeout_at(usable_at + WITHOUT_BROKER, &mut reached) => connected.ok(),
            };
            let connected = if connected.is_some() {
                connected
            } else {
                let relieved = Relieved::default();
                let connected = async {
                    tokio::select! {
                        biased;
                        () = scope.draining() => None,
                        connected = reached => {
                            relieved.0.notify_one();
                            Some(connected)
                        }
                    }
                };
                // It ends between two statements: dropping one would leave what it is granted to nobody.
                tokio::join!(connected, self.ask_the_database(scope, &relieved, &mut deliver)).0
            };
            let Some((link, deliveries)) = connected else { return };
            let begun = Instant::now();
            let until = self.take_deliveries(scope, &broker, link, deliveries, &mut deliver).await;
            if until.duration_since(begun) >= WITHOUT_BROKER {
                (usable_at, short_lives) = (until, 0);
            } else {
                // It does not count: the database is asked meanwhile, and connections are not made without pause.
                short_lives = short_lives.saturating_add(1);
            }
        }
    }

    async fn ask_the_database(
        &mut self,
        scope: &Scope,
        relieved: &Relieved,
        deliver: &mut impl FnMut(Work, OwnedSemaphorePermit),
    ) {
        let database = self.queue.database().clone().answering_within(ANSWER_WITHIN);
        let listener = Listener::new(database, "work", &[CHANNEL]);
        let wakes = Wakes::default();
        tokio::select! {
            never = listener.run(&wakes) => match never {},
            () = self.claims(scope, relieved, &wakes, deliver) => {}
        }
    }

    async fn claims(
        &mut self,
        scope: &Scope,
        relieved: &Relieved,
        wakes: &Wakes,
        deliver: &mut impl FnMut(Work, OwnedSemaphorePermit),
    ) {
        let (mut look_at, mut failures) = (Instant::now(), 0);
        loop {
            let permits = tokio::select! {
                biased;
                () = scope.draining() => return,
                () = relieved.0.notified() => return,
                permits = self.next(look_at, wakes, failures > 0) => permits,
            };
            let _work = scope.work();
            look_at = Instant::now() + EVERY;
            let free = u32::try_from(permits.len()).unwrap_or(u32::MAX);
            // Dropping this request would leave what it is granted to nobody.
            match self.queue.claim(self.turns.shares(free)).await {
                Ok(granted) => {
                    failures = 0;
                    let rows = u32::try_from(granted.len()).unwrap_or(u32::MAX);
                    self.turns.taken(rows);
                    if rows >= free {
                        // There may be more.
                        look_at = Instant::now();
                    }
                    if scope.is_draining() {
                        return self.hand_back(granted).await;
                    }
                    for (work, permit) in granted.into_iter().zip(permits) {
                        deliver(work, permit);
                    }
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(error = full_text(&error), "failed to claim work, retrying");
                    } else {
                        tracing::debug!(error = full_text(&error), failures, "failed to claim work, retrying");
                    }
                    look_at = Instant::now() + RETRY.next_delay(failures);
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Waits until it is time to look and a permit is free, and takes all free permits.
    async fn next(&self, look_at: Instant, wakes: &Wakes, has_failed: bool) -> Vec<OwnedSemaphorePermit> {
        let woken = async {
            if has_failed {
                // A notification does not mean that the next attempt succeeds.
                std::future::pending::<()>().await;
            }
            tokio::select! {
                () = wakes.0.notified() => {}
                () = self.queue.returned() => {}
            }
        };
        tokio::select! {
            () = sleep_until(look_at) => {}
            () = woken => {}
        }
        // The semaphore is never closed.
        let Ok(first) = Arc::clone(&self.permits).acquire_owned().await else { return std::future::pending().await };
        let further = std::iter::from_fn(|| Arc::clone(&self.permits).try_acquire_owned().ok());
        std::iter::once(first).chain(further).collect()
    }

    async fn hand_back(&self, granted: Vec<Work>) {
        for work in granted {
            if let Err(error) = self.queue.hand_back(work).await {
                tracing::warn!(error = full_text(&error), "failed to hand back work: others wait until its claim ends");
            }
        }
    }
}
