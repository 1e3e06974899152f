//! The hub: how many writes a second it takes, how long reads, lists and watches take, and what that costs it and PostgreSQL.

use std::fmt::Write;
use std::time::{Duration, Instant};

use integration::Error;
use integration::hub::{Reply, Request};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use crate::delays::Receivers;
use crate::hub_world::{HubWorld, start_server};
use crate::measure::{Done, Probes};
use crate::options::Options;
use crate::runner::{self, Phase, World};
use crate::table::Table;

const SETTING: &str = "one PostgreSQL server with the settings that it is installed with, replicas and clients on this machine over loopback; \
                       clusters of 2 KB with 6 labels; delays of watches from the time that the database gives a change; towline's release \
                       build";
/// Clients that write at the same time, and their part of the clusters in twelfths: no round is over at once.
const WRITERS: [(usize, usize, usize); 3] = [(1, 0, 1), (8, 1, 5), (64, 5, 12)];
/// Reads of one document.
const READS: usize = 5_000;
/// Between the numbers of two documents that are read: far apart, and each one in its turn.
const STRIDE: usize = 7_919;
/// Changes a second that watches show.
const CHANGE_RATE: u32 = 10;
/// How often a list, or its first page, is read.
const LISTS: usize = 20;
const PAGE: usize = 500;

pub(crate) async fn measure(options: &Options) -> Result<Table, Error> {
    let mut table = Table::new("hub", SETTING);
    let server = start_server("bench-hub", true).await?;
    let clusters = options.clusters.unwrap_or(10_000);
    for number in 1..=options.runs {
        let hub = HubWorld::begin(&server, &format!("bench_{number}"), "", options.replicas).await?;
        let mut world = Run { options, hub, clusters, versions: vec![0; clusters] };
        runner::run(&mut world, &clusters.to_string(), "", &mut table).await?;
        world.hub.end().await?;
    }
    Ok(table)
}

struct Run<'s> {
    options: &'s Options,
    hub: HubWorld<'s>,
    clusters: usize,
    /// The version of each cluster, as answered to its last writer.
    versions: Vec<u64>,
}

#[derive(Clone, Copy)]
enum Step {
    /// Clusters are created, or replaced on the condition that they have the version that their last writer was told.
    Write {
        clients: usize,
        from: usize,
        to: usize,
        is_update: bool,
    },
    /// Documents are read one by one.
    Read {
        clients: usize,
    },
    /// All pages of a list are read.
    List,
    /// The first page of a list by a selector that matches one in a hundred.
    Select,
    /// So many watches are open while clusters change at a steady rate.
    Watch {
        watches: usize,
    },
    Idle,
    /// The replicas are ended and started.
    Restart,
}

impl World for Run<'_> {
    type Step = Step;
    type Ready = Receivers;

    fn phases(&self) -> Vec<Phase<Step>> {
        let mut phases = Vec::new();
        for (what, is_update) in [("created", false), ("updated on condition", true)] {
            for (clients, from, to) in WRITERS {
                let (from, to) = (self.clusters * from / 12, self.clusters * to / 12);
                phases.push(Phase::new(
                    format!("{what}, by {clients}"),
                    Step::Write { clients, from, to, is_update },
                    "writes",
                ));
            }
        }
        phases.extend([
            Phase::new("read, by 1", Step::Read { clients: 1 }, "reads"),
            Phase::new("read, by 8", Step::Read { clients: 8 }, "reads"),
            Phase::new(format!("list in pages of {PAGE}"), Step::List, "lists"),
            Phase::new("first page by selector", Step::Select, "pages"),
        ]);
        for watches in [1, self.options.watches] {
            phases.push(Phase::new(format!("watched by {watches}"), Step::Watch { watches }, "changes"));
        }
        phases.push(Phase::new(format!("idle, {} s", self.options.idle.as_secs()), Step::Idle, ""));
        phases.push(Phase::new("start", Step::Restart, ""));
        phases
    }

    fn probes(&self) -> Probes<'_> {
        self.hub.probes()
    }

    /// An answer is the end of its request.
    async fn settled(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn prepare(&mut self, step: Step) -> Result<Receivers, Error> {
        let mut receivers = Receivers::default();
        match step {
            // What autovacuum does sooner or later, so that it happens in no measurement.
            Step::Read { .. } => self.hub.execute("vacuum", "VACUUM (ANALYZE)").await?,
            Step::Watch { watches } => {
                let path = format!("/v1/clusters?watch=true&resourceVersion={}", self.hub.newest().await?);
                for number in 0..watches {
                    receivers.watch(&self.hub.client(number)?, &path).await?;
                }
            }
            _ => {}
        }
        Ok(receivers)
    }

    async fn perform(&mut self, step: Step, receivers: Receivers) -> Result<Done, Error> {
        match step {
            Step::Write { clients, from, to, is_update } => self.write(clients, from, to, is_update).await,
            Step::Read { clients } => self.read(clients).await,
            Step::List => self.lists("/v1/clusters?namespace=fleet").await,
            Step::Select => self.pages("/v1/clusters?labelSelector=group%3Dg07").await,
            Step::Watch { watches } => self.watched(receivers, watches).await,
            Step::Idle => {
                tokio::time::sleep(self.options.idle).await;
                Ok(Done::default())
            }
            Step::Restart => {
                let time = self.hub.restart().await?;
                Ok(Done { time: Some(time), ..Done::default() })
            }
        }
    }
}

impl Run<'_> {
    async fn write(&mut self, clients: usize, from: usize, to: usize, is_update: bool) -> Result<Done, Error> {
        let before = self.versions.clone();
        let request = |number: usize| {
            let mut document = cluster(number, usize::from(is_update));
            if !is_update {
                return Ok(Request::post("/v1/clusters", &document));
            }
            // A sealed field that is not sent stays as it is.
            document.as_object_mut().map(|fields| fields.remove("kubeconfig"));
            let version = before.get(number).copied().unwrap_or_default();
            Ok(Request::put(&path(number), &document).if_match(version))
        };
        let began = Instant::now();
        let versions = &mut self.versions;
        let replied = |number: usize, reply: &Reply| {
            if let Some(version) = versions.get_mut(number) {
                *version = reply.version()?;
            }
            Ok(())
        };
        let delays = self.hub.by_clients(clients, from..to, request, replied).await?;
        Ok(Done { changes: Some(to - from), time: Some(began.elapsed()), delays })
    }

    async fn read(&self, clients: usize) -> Result<Done, Error> {
        let request = |number: usize| Ok(Request::get(&path(number * STRIDE % self.clusters)));
        let began = Instant::now();
        let delays = self.hub.by_clients(clients, 0..READS, request, |_, _| Ok(())).await?;
        Ok(Done { changes: Some(READS), time: Some(began.elapsed()), delays })
    }

    async fn lists(&self, path: &str) -> Result<Done, Error> {
        let mut client = self.hub.client(0)?;
        let mut delays = Vec::new();
        for _ in 0..LISTS {
            let (mut next, mut all_pages) = (String::new(), Duration::ZERO);
            loop {
                let sent = Instant::now();
                let reply = client.send(&Request::get(&format!("{path}&limit={PAGE}{next}"))).await?.success()?;
                // Without what this program takes to find `continue`.
                all_pages += sent.elapsed();
                match reply.json()?.get("continue").and_then(Value::as_str).filter(|token| !token.is_empty()) {
                    Some(token) => next = format!("&continue={token}"),
                    None => break,
                }
            }
            delays.push(all_pages);
        }
        Ok(Done { changes: Some(LISTS), time: None, delays })
    }

    async fn pages(&self, path: &str) -> Result<Done, Error> {
        let request = |_| Ok(Request::get(&format!("{path}&limit={PAGE}")));
        let delays = self.hub.by_clients(1, 0..LISTS, request, |_, _| Ok(())).await?;
        Ok(Done { changes: Some(LISTS), time: None, delays })
    }

    async fn watched(&self, mut receivers: Receivers, watches: usize) -> Result<Done, Error> {
        let changes = self.options.changes.unwrap_or(200);
        let mut ticks = interval(Duration::from_secs(1) / CHANGE_RATE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut writer = self.hub.client(0)?;
        for number in 0..changes {
            ticks.tick().await;
            // Never the value of an earlier phase: a write that changes nothing is no change.
            let change = json!({"annotations": {"example.org/change": format!("{watches}-{number}")}});
            writer.send(&Request::merge_patch(&path(number % self.clusters), &change)).await?.success()?;
        }
        receivers.wait_for(watches * changes).await?;
        Ok(Done { changes: Some(changes), time: None, delays: receivers.delays() })
    }
}

/// Six in ten clusters are in the namespace that is listed.
fn namespace(number: usize) -> &'static str {
    if number % 10 < 6 { "fleet" } else { "team" }
}

fn path(number: usize) -> String {
    format!("/v1/clusters/{}/cluster-{number:06}", namespace(number))
}

/// A cluster of 2 KB, and a kubeconfig of 1 KB, which is sealed and not shown. The round changes its annotation, and nothing that has an
/// index.
fn cluster(number: usize, round: usize) -> Value {
    json!({
        "namespace": namespace(number),
        "name": format!("cluster-{number:06}"),
        "labels": {
            "env": if number.is_multiple_of(10) { "prod" } else { "dev" },
            "group": format!("g{:02}", number % 100),
            "region": format!("region-{}", number % 20),
            "version": format!("1.{}", number % 30),
            "tier": if number.is_multiple_of(3) { "edge" } else { "core" },
            "owner": format!("team-{}", number % 7),
        },
        "annotations": {"example.org/inventory": noise(number * 31 + round, 1_600)},
        "kubeconfig": noise(number * 37, 1_024),
    })
}

/// Text that does not compress, as keys and certificates don't.
fn noise(seed: usize, length: usize) -> String {
    let mut state = u64::try_from(seed).unwrap_or_default();
    let mut text = String::with_capacity(length + 16);
    while text.len() < length {
        // Numbers of the generator SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        // Writing to a string can't fail.
        let _ = write!(text, "{:016x}", mixed ^ (mixed >> 27));
    }
    text.truncate(length);
    text
}
