//! A program outside that follows the rules for consumers.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use integration::hub::{Client, Request};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueBindOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, Consumer};
use serde_json::Value;
use tokio::time::timeout;

use crate::bus::world::LIMIT;

/// A queue of clusters.
pub(crate) struct Queue {
    pub(crate) channel: Channel,
    consumer: Consumer,
    _connection: Connection,
}

#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) routing_key: String,
    pub(crate) message_id: Option<i64>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Value,
    pub(crate) is_persistent: bool,
    delivery: Delivery,
}

pub(crate) async fn connect(url: &str) -> lapin::Result<Connection> {
    Connection::connect(url, ConnectionProperties::default()).await
}

impl Queue {
    /// Declares a durable queue with these further arguments, binds it to all clusters, and consumes in order.
    pub(crate) async fn open(url: &str, name: &str, arguments: FieldTable) -> lapin::Result<Self> {
        let connection = connect(url).await?;
        let channel = connection.create_channel().await?;
        let mut all = arguments;
        all.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        // Whatever the default of the broker is, now or later.
        all.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(name.into(), options, all).await?;
        let (binding, none) = (QueueBindOptions::default(), FieldTable::default());
        channel.queue_bind(name.into(), "towline.events".into(), "clusters.*".into(), binding, none.clone()).await?;
        channel.basic_qos(100, BasicQosOptions::default()).await?;
        let consumer = channel.basic_consume(name.into(), "".into(), BasicConsumeOptions::default(), none).await?;
        Ok(Self { channel, consumer, _connection: connection })
    }

    pub(crate) async fn next(&mut self) -> Received {
        timeout(LIMIT, self.try_next()).await.expect("a message comes").expect("it is connected")
    }

    /// None if nothing comes in this time.
    pub(crate) async fn next_within(&mut self, limit: Duration) -> Option<Received> {
        timeout(limit, self.try_next()).await.ok().map(|received| received.expect("it is connected"))
    }

    pub(crate) async fn try_next(&mut self) -> lapin::Result<Received> {
        let Some(delivery) = self.consumer.next().await else { std::future::pending().await };
        Ok(Received::of(delivery?))
    }

    pub(crate) async fn purge(&self, name: &str) {
        self.channel.queue_purge(name.into(), QueuePurgeOptions::default()).await.expect("it is purged");
    }
}

impl Received {
    fn of(delivery: Delivery) -> Self {
        let properties = &delivery.properties;
        let text = |value: &AMQPValue| match value {
            AMQPValue::LongString(text) => text.to_string(),
            other => format!("{other:?}"),
        };
        let headers = properties.headers().clone().unwrap_or_default();
        Self {
            routing_key: delivery.routing_key.to_string(),
            message_id: properties.message_id().as_ref().map(|id| id.to_string().parse().expect("a version")),
            headers: headers.inner().iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            body: serde_json::from_slice(&delivery.data).expect("JSON"),
            is_persistent: *properties.delivery_mode() == Some(2),
            delivery,
        }
    }

    pub(crate) async fn ack(&self) -> lapin::Result<()> {
        self.delivery.acker.ack(BasicAckOptions::default()).await.map(drop)
    }
}

/// What a consumer knows: the version of each cluster.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    pub(crate) clusters: BTreeMap<String, i64>,
    pub(crate) highest: i64,
    /// The version of the last list, and of each event that was handled since.
    pub(crate) listed: i64,
    pub(crate) handled: Vec<i64>,
    pub(crate) events: usize,
    pub(crate) repeated: usize,
    pub(crate) relists: usize,
}

impl Mirror {
    /// Lists, and continues above the list's version.
    pub(crate) async fn list(&mut self, api: &mut Client) {
        let (clusters, version) = list(api).await;
        self.clusters = clusters;
        (self.highest, self.listed) = (version, version);
        self.handled.clear();
    }

    /// Handles a message; true if it demands a list.
    pub(crate) fn handle(&mut self, received: &Received) -> bool {
        let Some(version) = received.message_id else {
            assert_eq!(received.body["type"], "RELIST");
            self.relists += 1;
            return true;
        };
        if version <= self.highest {
            // It was missed, and its turn is over, or is it one that is known?
            assert!(
                version <= self.listed || self.handled.contains(&version),
                "{version} comes after {}",
                self.highest
            );
            self.repeated += 1;
            return false;
        }
        self.highest = version;
        self.handled.push(version);
        self.events += 1;
        let name = received.body["object"]["name"].as_str().expect("a name").to_owned();
        match received.body["type"].as_str() {
            Some("DELETED") => drop(self.clusters.remove(&name)),
            _ => drop(self.clusters.insert(name, version)),
        }
        false
    }
}

/// The versions of all clusters, and the version of the list.
pub(crate) async fn list(api: &mut Client) -> (BTreeMap<String, i64>, i64) {
    let reply = api.send(&Request::get("/v1/clusters?limit=1000")).await.expect("an answer").success().expect("a list");
    let page = reply.json().expect("JSON");
    let number = |value: &Value| value.as_str().and_then(|text| text.parse().ok()).expect("a version");
    let of = |item: &Value| (item["name"].as_str().expect("a name").to_owned(), number(&item["resourceVersion"]));
    (page["items"].as_array().expect("items").iter().map(of).collect(), number(&page["resourceVersion"]))
}
