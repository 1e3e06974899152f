//! The bus: how many events a second reach a program outside, and how long each takes; from a queue of `RabbitMQ`, and from a watch with
//! PostgreSQL alone beside it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use integration::hub::Request;
use integration::{Error, RabbitMq};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::delays::{Delays, Receivers};
use crate::hub_world::{HubWorld, start_server};
use crate::measure::{Done, Probes};
use crate::options::Options;
use crate::runner::{self, Phase, World};
use crate::table::Table;

const SETTING: &str = "one PostgreSQL server with the settings that it is installed with but for fsync, which is off; one RabbitMQ node; both \
                       and towline's release build on this machine over loopback; events that wait are those after an outage of the broker, \
                       or of a watch that continues at an old version; delays from the time that the database gives a change";
/// Clients that write at the same time.
const WRITERS: usize = 64;
/// Deliveries under way, and how many are acknowledged at once.
const PREFETCH: u16 = 500;
const ACKNOWLEDGED: u64 = 100;

pub(crate) async fn measure(options: &Options) -> Result<Table, Error> {
    let mut table = Table::new("bus", SETTING);
    let server = start_server("bench-bus", false).await?;
    let broker = RabbitMq::start("bench-bus").await?;
    let clusters = options.clusters.unwrap_or(5_000);
    for number in 1..=options.runs {
        // In turns, so that whatever else the machine does meets both.
        for engine in ["postgres", "amqp"] {
            let is_amqp = engine == "amqp";
            let sections =
                if is_amqp { format!("bus = \"amqp\"\namqp_url = {:?}\n", broker.url()) } else { String::new() };
            let hub = HubWorld::begin(&server, &format!("bench_{engine}_{number}"), &sections, 1).await?;
            let mut world = Bus { options, hub, broker: &broker, is_amqp, clusters };
            world.create().await?;
            runner::run(&mut world, &clusters.to_string(), engine, &mut table).await?;
            world.hub.end().await?;
        }
    }
    Ok(table)
}

struct Bus<'s> {
    options: &'s Options,
    hub: HubWorld<'s>,
    broker: &'s RabbitMq,
    is_amqp: bool,
    clusters: usize,
}

#[derive(Clone, Copy)]
enum Step {
    /// All clusters have been changed, and a program begins to receive the events.
    Waiting,
    /// Clusters change at a steady rate.
    Paced,
}

impl World for Bus<'_> {
    type Step = Step;
    type Ready = (String, Receivers);

    fn phases(&self) -> Vec<Phase<Step>> {
        vec![
            Phase::new("events that wait", Step::Waiting, "events"),
            Phase::new(format!("events, {} a second", self.options.rate), Step::Paced, "events"),
        ]
    }

    fn probes(&self) -> Probes<'_> {
        Probes { broker: Some(self.broker), ..self.hub.probes() }
    }

    /// Each step waits for its last event.
    async fn settled(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn prepare(&mut self, step: Step) -> Result<(String, Receivers), Error> {
        let version = self.hub.newest().await?;
        let mut receivers = Receivers::default();
        self.relayed().await?;
        match step {
            Step::Waiting => {
                if self.is_amqp {
                    // Events wait in the log, so that they don't come as slowly as they are written.
                    drop(Queue::open(self.broker).await?);
                    self.broker.kill().await?;
                }
                let change = |number| Ok(change(number, "waiting"));
                self.hub.by_clients(WRITERS, 0..self.clusters, change, |_, _| Ok(())).await?;
                if self.is_amqp {
                    self.broker.start_again().await?;
                }
            }
            Step::Paced => self.receive(&version, &mut receivers).await?,
        }
        Ok((version, receivers))
    }

    async fn perform(&mut self, step: Step, (version, mut receivers): (String, Receivers)) -> Result<Done, Error> {
        match step {
            Step::Waiting => {
                let began = Instant::now();
                self.receive(&version, &mut receivers).await?;
                let since_first = receivers.wait_for(self.clusters).await?;
                // How long the replica waits before it connects to the broker again is no part of the rate.
                let time = if self.is_amqp { since_first } else { began.elapsed() };
                Ok(Done { changes: Some(self.clusters), time: Some(time), ..Done::default() })
            }
            Step::Paced => {
                let changes = self.options.changes.unwrap_or(1_000);
                let mut ticks = interval(Duration::from_secs(1) / self.options.rate);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                let mut writer = self.hub.client(0)?;
                for number in 0..changes {
                    ticks.tick().await;
                    let request = change(number % self.clusters, &format!("paced-{number}"));
                    writer.send(&request).await?.success()?;
                }
                receivers.wait_for(changes).await?;
                Ok(Done { changes: Some(changes), time: None, delays: receivers.delays() })
            }
        }
    }

    async fn verify(&self, _step: Step) -> Result<(), Error> {
        if self.is_amqp { Queue::open(self.broker).await?.delete().await } else { Ok(()) }
    }
}

impl Bus<'_> {
    async fn create(&self) -> Result<(), Error> {
        let request = |number| {
            let cluster = json!({"namespace": "fleet", "name": name(number), "kubeconfig": "none"});
            Ok(Request::post("/v1/clusters", &cluster))
        };
        self.hub.by_clients(WRITERS, 0..self.clusters, request, |_, _| Ok(())).await.map(drop)
    }

    /// Waits until the relay, if there is one, has published everything.
    async fn relayed(&self) -> Result<(), Error> {
        const BEHIND: &str = "SELECT count(*) FROM towline_log WHERE version > \
                              (SELECT coalesce(max(cursor), 0) FROM towline_claim WHERE name = 'relay')";
        if self.is_amqp {
            self.hub.wait_for("the relay to be behind no more", BEHIND, |left| left == 0).await
        } else {
            Ok(())
        }
    }

    /// Begins to receive: from the queue, or by a watch from this version on.
    async fn receive(&self, version: &str, receivers: &mut Receivers) -> Result<(), Error> {
        if self.is_amqp {
            let queue = Queue::open(self.broker).await?;
            receivers.receive(|delays| queue.consume(delays));
            return Ok(());
        }
        let path = format!("/v1/clusters?watch=true&resourceVersion={version}");
        receivers.watch(&self.hub.client(0)?, &path).await
    }
}

/// A change of a cluster that no other round makes.
fn change(number: usize, round: &str) -> Request {
    let change = json!({"annotations": {"example.org/change": round}});
    Request::merge_patch(&format!("/v1/clusters/fleet/{}", name(number)), &change)
}

fn name(number: usize) -> String {
    format!("cluster-{number:06}")
}

/// A durable queue of all clusters.
struct Queue {
    channel: Channel,
    _connection: Connection,
}

const QUEUE: &str = "bench";

impl Queue {
    async fn open(broker: &RabbitMq) -> Result<Self, Error> {
        let connection = Connection::connect(&broker.url(), ConnectionProperties::default()).await.map_err(failed)?;
        let channel = connection.create_channel().await.map_err(failed)?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(QUEUE.into(), durable, FieldTable::default()).await.map_err(failed)?;
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        let bound = channel.queue_bind(QUEUE.into(), "towline.events".into(), "clusters.*".into(), options, none);
        bound.await.map_err(failed)?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.map_err(failed)?;
        Ok(Self { channel, _connection: connection })
    }

    async fn delete(self) -> Result<(), Error> {
        let deleted = self.channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await;
        deleted.map(drop).map_err(failed)
    }

    /// Notes when events arrive, until the connection ends: it should not.
    async fn consume(self, delays: Arc<Delays>) -> Result<(), Error> {
        let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
        let mut consumer = self.channel.basic_consume(QUEUE.into(), "".into(), options, none).await.map_err(failed)?;
        while let Some(delivery) = consumer.next().await {
            let delivery = delivery.map_err(failed)?;
            delays.sees(&delivery.data);
            if delivery.delivery_tag.is_multiple_of(ACKNOWLEDGED) {
                delivery.acker.ack(BasicAckOptions { multiple: true }).await.map_err(failed)?;
            }
        }
        Err(Error::Unreadable { what: QUEUE.to_owned(), detail: "the broker has ended it".to_owned() })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: lapin::Error) -> Error {
    Error::Unreadable { what: "the broker's answer".to_owned(), detail: error.to_string() }
}
