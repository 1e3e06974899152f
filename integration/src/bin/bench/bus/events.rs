//! Events to a program outside: how many a second where many wait, and how long each takes at a steady rate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use integration::Error;
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::queue::Queue;
use super::world::{Cost, Engine, LONGEST_STEP, World, change};
use crate::hub::crowd::{Onlooker, Sight};
use crate::measure::Latency;
use crate::options::BusOptions;
use crate::phases::to_float;

/// Between two looks at what has arrived.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a program outside has seen.
#[derive(Debug, Serialize)]
pub(crate) struct Relayed {
    pub(super) waiting: usize,
    /// From the first one to the last one; of a watch from its opening.
    pub(super) per_second: f64,
    pub(super) burst: Cost,
    pub(super) changes: usize,
    /// From the change's time in the database, which it is given just before the commit.
    pub(super) latency_ms: Option<Latency>,
    pub(super) paced: Cost,
}

/// Who receives, until this is dropped.
struct Receiver {
    sight: Arc<Sight>,
    body: JoinHandle<Result<(), Error>>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.body.abort();
    }
}

impl Receiver {
    /// A watch of all clusters from this version on.
    async fn watch(world: &World<'_>, version: i64, events: usize) -> Result<Self, Error> {
        let path = format!("/v1/clusters?watch=true&resourceVersion={version}");
        let (watch, sight) = (Onlooker::open(world.replica.api(), &path).await?, Sight::with_room_for(events));
        let body = tokio::spawn(watch.look(Arc::clone(&sight)));
        Ok(Self { sight, body })
    }

    /// A consumer of a queue.
    fn consume(queue: Queue, events: usize) -> Self {
        let sight = Sight::with_room_for(events);
        let body = tokio::spawn(queue.look(Arc::clone(&sight)));
        Self { sight, body }
    }

    /// Waits until so many have arrived. Returns how long that took since the first one.
    async fn until(&self, count: usize) -> Result<Duration, Error> {
        let (deadline, mut first) = (Instant::now() + LONGEST_STEP, None);
        loop {
            let arrived = self.sight.arrived();
            if arrived > 0 {
                let since = *first.get_or_insert_with(Instant::now);
                if arrived >= count {
                    return Ok(since.elapsed());
                }
            }
            if self.body.is_finished() || Instant::now() > deadline {
                let detail = format!("{arrived} of {count} have arrived");
                return Err(Error::Unreadable { what: "the events".to_owned(), detail });
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Many events that wait, and then a steady rate.
pub(super) async fn measure(world: &World<'_>, options: BusOptions) -> Result<Relayed, Error> {
    let waiting = options.clusters;
    let broker = &world.servers.broker;
    let version = newest(world).await?;
    let (receiver, meter, opened) = match world.engine {
        Engine::Postgres => {
            world.change(waiting, "waiting").await?;
            let (meter, opened) = (world.meter()?, Instant::now());
            (Receiver::watch(world, version, waiting).await?, meter, Some(opened))
        }
        Engine::Amqp => {
            // Events wait in the log, so that they don't come as slowly as they are written.
            relayed(world).await?;
            drop(Queue::open(broker, "bench.waiting").await?);
            broker.kill().await?;
            world.change(waiting, "waiting").await?;
            broker.start_again().await?;
            let meter = world.meter()?;
            (Receiver::consume(Queue::open(broker, "bench.waiting").await?, waiting), meter, None)
        }
    };
    let since_first = receiver.until(waiting).await?;
    let taken = opened.map_or(since_first, |opened| opened.elapsed());
    let burst = meter.end(world)?;
    drop(receiver);
    let changes = usize::try_from(options.window.as_secs()).unwrap_or_default() * options.rate as usize;
    let receiver = match world.engine {
        Engine::Postgres => Receiver::watch(world, newest(world).await?, changes).await?,
        Engine::Amqp => {
            relayed(world).await?;
            Receiver::consume(Queue::open(broker, "bench.paced").await?, changes)
        }
    };
    let meter = world.meter()?;
    let mut ticks = interval(Duration::from_secs(1) / options.rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut writer = world.replica.client();
    for number in 0..changes {
        ticks.tick().await;
        writer.send(&change(number % options.clusters, &format!("paced-{number}"))).await?.success()?;
    }
    receiver.until(changes).await?;
    let paced = meter.end(world)?;
    let latency_ms = Latency::taken(receiver.sight.delays());
    if world.engine == Engine::Amqp {
        for name in ["bench.waiting", "bench.paced"] {
            Queue::open(broker, name).await?.delete().await?;
        }
    }
    Ok(Relayed { waiting, per_second: to_float(waiting) / taken.as_secs_f64(), burst, changes, latency_ms, paced })
}

async fn newest(world: &World<'_>) -> Result<i64, Error> {
    world.number("select coalesce(max(version), 0) from towline_log").await
}

/// Waits until the relay has published everything.
async fn relayed(world: &World<'_>) -> Result<(), Error> {
    const BEHIND: &str = "select count(*) from towline_log where version > \
        (select coalesce(max(cursor), 0) from towline_claim where name = 'relay')";
    world.becomes_none("the relay to be behind no more", BEHIND).await
}

impl Relayed {
    pub(super) fn line(&self) -> String {
        let latency = self.latency_ms.map(|ms| format!("p50 {:.1} p99 {:.1} max {:.0} ms", ms.p50, ms.p99, ms.max));
        format!(
            "  events   {:>6} that wait: {:.0} a second; {}\n  events   {:>6} at a steady rate: {}; {}",
            self.waiting,
            self.per_second,
            self.burst.line(),
            self.changes,
            latency.unwrap_or_default(),
            self.paced.line()
        )
    }
}
