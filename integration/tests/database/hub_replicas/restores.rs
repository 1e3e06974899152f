//! The database goes back in time: by a dump, a standby that had not heard everything, or the snapshot of a disk. Versions of before
//! are 410 then, new ones are higher, and no watch stays silent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use integration::hub::{Client, Replica, Request};
use integration::postgres::{self, HUB};
use integration::soak::Random;
use integration::{Gateway, Postgres, eventually};
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::hub_replicas::filter::Filter;
use crate::hub_replicas::watcher::{Media, Plan, Report, Watcher};
use crate::hub_replicas::world::{
    LIMIT, Outcome, Roaming, addresses, database, prepared, replicas, run, server, sql, version,
};

/// How far versions are lifted.
const LIFT: i64 = 1 << 40;

/// Replicas, and watches that each stay at one of them.
struct Scene {
    /// Held: they end with it.
    _replicas: Vec<Replica>,
    addresses: Vec<SocketAddr>,
    watches: JoinSet<Report>,
    places: Vec<Arc<AtomicI64>>,
    until: watch::Sender<Option<i64>>,
}

/// What clients know from before.
struct Before {
    /// The version that is in every copy, and one that is in none.
    kept: i64,
    lost: i64,
    /// A list that has begun.
    page: String,
}

impl Scene {
    /// Three replicas on a database that they reach by this URL, a document, and a watch of each media type at each replica.
    async fn begin(database: &postgres::Database, url: &str) -> (Self, i64) {
        let replicas = replicas(database, &[("POSTGRES_PARAMS", url)]).await;
        let addresses = addresses(&replicas);
        let until = watch::Sender::new(None);
        let (mut watches, mut places) = (JoinSet::new(), Vec::new());
        for (address, media) in addresses.iter().flat_map(|address| [(address, Media::Lines), (address, Media::Events)])
        {
            let place = Arc::<AtomicI64>::default();
            places.push(Arc::clone(&place));
            let plan = Plan {
                filter: Filter::of("secrets"),
                media,
                addresses: vec![*address],
                is_restless: false,
                begins_anew: true,
                random: Random::new(1),
                until: until.subscribe(),
                place,
            };
            watches.spawn(Watcher::new(plan).run());
        }
        let scene = Self { _replicas: replicas, addresses, watches, places, until };
        create(scene.addresses[0], "first").await;
        let kept = create(scene.addresses[1], "kept").await;
        (scene, kept)
    }

    /// Writes what the copy does not have, waits until all watches have seen it, and begins a list.
    async fn lose(&self, kept: i64) -> Before {
        let lost = create(self.addresses[2], "lost").await;
        eventually("all watches to see what will be lost", LIMIT, async || {
            let slowest = self.places.iter().map(|place| place.load(Ordering::Relaxed)).min().unwrap_or_default();
            if slowest >= lost { Ok(()) } else { Err(slowest.to_string()) }
        })
        .await
        .expect("all watches to see it");
        let page = Roaming::new(&self.addresses, Random::new(1)).read("/v1/secrets?limit=1").await;
        let token = page.json().expect("JSON")["continue"].as_str().expect("there is more").to_owned();
        Before { kept, lost, page: format!("/v1/secrets?limit=1&continue={token}") }
    }

    /// Compares what the replicas and the watches show with what they must. These documents exist.
    async fn end(mut self, before: Before, names: &[&str]) {
        let mut newest = 0;
        for (address, name) in self.addresses.iter().zip(["new-1", "new-2", "new-3"]) {
            let version = create(*address, name).await;
            assert!(version > before.kept + LIFT && version > before.lost, "{version} after {}", before.lost);
            newest = newest.max(version);
        }
        self.until.send_replace(Some(newest));
        let mut reports = Vec::new();
        while let Some(report) = timeout(LIMIT, self.watches.join_next()).await.expect("no watch to stay silent") {
            reports.push(report.expect("no panic"));
        }
        for address in &self.addresses {
            let mut client = Roaming::new(&[*address], Random::new(1));
            for path in [
                before.page.clone(),
                format!("/v1/secrets?watch=true&resourceVersion={}", before.lost),
                format!("/v1/secrets?watch=true&resourceVersion={}", before.kept),
            ] {
                let reply = client.read(&path).await;
                assert_eq!(reply.status, 410, "{path}: {reply:?}");
            }
            let stale = Request::put("/v1/secrets/n0/kept", &json!({})).if_match(u64::try_from(before.lost).unwrap());
            let Outcome::Answered(reply) = client.send(&stale).await else { panic!("no answer") };
            assert_eq!(reply.status, 412, "{reply:?}");
            let list = client.list("/v1/secrets").await;
            let found: Vec<&str> = list.iter().filter_map(|document| document["name"].as_str()).collect();
            assert_eq!(found, names);
            for report in &reports {
                assert!(report.segments.len() > 1, "its version is gone: {report:?}");
                assert_eq!(report.replayed(), list);
            }
        }
    }
}

/// Creates a secret, and returns its version; while the database is away, it tries again.
async fn create(address: SocketAddr, name: &str) -> i64 {
    let (body, path) = (json!({"namespace": "n0", "name": name, "data": {}}), format!("/v1/secrets/n0/{name}"));
    let mut client = Client::to(address);
    let created = eventually(format!("{name} to be created"), LIMIT, async || {
        let reply = client.send(&Request::post("/v1/secrets", &body)).await.map_err(|error| error.to_string())?;
        match reply.status {
            201 => Ok(version(&reply.json().expect("a document"))),
            // An answer was lost before.
            409 => {
                let reply = client.send(&Request::get(&path)).await.map_err(|error| error.to_string())?;
                if reply.status == 200 {
                    Ok(version(&reply.json().expect("a document")))
                } else {
                    Err(format!("{reply:?}"))
                }
            }
            503 => Err(format!("{reply:?}")),
            _ => panic!("{reply:?}"),
        }
    });
    created.await.expect("it is created")
}

/// A client that writes one document again and again, and keeps the versions that it is answered.
struct Writing {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Vec<i64>>,
}

impl Writing {
    fn start(addresses: &[SocketAddr], name: &str) -> Self {
        let (stop, mut stopped) = oneshot::channel::<()>();
        let mut client = Roaming::new(addresses, Random::new(1));
        let path = format!("/v1/secrets/n0/{name}");
        let task = tokio::spawn(async move {
            let (mut versions, mut number) = (Vec::new(), 0);
            while stopped.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
                number += 1;
                let change = json!({"annotations": {"number": format!("{number}")}});
                match client.send(&Request::merge_patch(&path, &change)).await {
                    Outcome::Answered(reply) if reply.status == 200 => {
                        versions.push(version(&reply.json().expect("a document")));
                    }
                    // While the tables are there and their rows are not.
                    Outcome::Answered(reply) => assert_eq!(reply.status, 404, "{reply:?}"),
                    Outcome::Refused | Outcome::Unknown => {}
                }
            }
            versions
        });
        Self { stop, task }
    }

    /// Ends it. Its versions have ascended.
    async fn end(self) -> Vec<i64> {
        drop(self.stop);
        let versions = self.task.await.expect("no panic");
        let sorted = versions.is_sorted_by(|one, other| one < other);
        assert!(sorted && !versions.is_empty(), "{versions:?}");
        versions
    }
}

#[test]
fn a_dump_that_replaces_everything_under_running_replicas() {
    run(async {
        let database = database("cleaned").await;
        let (scene, kept) = Scene::begin(&database, &database.url(HUB)).await;
        let dump = database.dump().await.expect("a dump");
        let before = scene.lose(kept).await;
        let writing = Writing::start(&scene.addresses, "kept");
        dump.replace(&database).await.expect("it is restored");
        create(scene.addresses[0], "restored").await;
        let versions = writing.end().await;
        println!("{} writes were made meanwhile", versions.len());
        scene.end(before, &["first", "kept", "new-1", "new-2", "new-3", "restored"]).await;
    });
}

#[test]
fn a_dump_in_another_database_that_takes_the_place_of_the_first() {
    run(async {
        let server = server("swapped").await;
        let database = prepared(&server, "swapped").await;
        let (scene, kept) = Scene::begin(&database, &database.url(HUB)).await;
        let dump = database.dump().await.expect("a dump");
        let before = scene.lose(kept).await;
        let restored = server.empty_database("restored").await.expect("a database");
        dump.restore(&restored).await.expect("it is restored");
        let swap = [
            "alter database swapped with allow_connections false",
            "select pg_terminate_backend(pid) from pg_stat_activity where datname in ('swapped', 'restored')",
            "alter database swapped rename to earlier",
            "alter database restored rename to swapped",
        ];
        let admin = server.maintenance().await.expect("a connection");
        for statement in swap {
            admin.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        scene.end(before, &["first", "kept", "new-1", "new-2", "new-3"]).await;
    });
}

/// A server behind a gateway.
async fn behind_gateway(name: &str) -> (Postgres, postgres::Database, Gateway, String) {
    let server = server(name).await;
    let database = prepared(&server, name).await;
    let gateway = Gateway::to(database.address()).await.expect("a gateway");
    let url = database.url_by(HUB, &gateway.address().to_string());
    (server, database, gateway, url)
}

#[test]
fn a_standby_that_is_promoted_before_it_has_heard_everything() {
    run(async {
        let (primary, database, gateway, url) = behind_gateway("promoted").await;
        let (scene, kept) = Scene::begin(&database, &url).await;
        let standby = primary.standby("standby").await.expect("a standby");
        standby.cut_off().await.expect("it hears nothing");
        let before = scene.lose(kept).await;
        primary.kill().await.expect("it is killed");
        standby.promote().await.expect("it is promoted");
        gateway.lead_to(standby.copied_database(&database).address());
        scene.end(before, &["first", "kept", "new-1", "new-2", "new-3"]).await;
    });
}

#[test]
fn the_snapshot_of_a_disk_under_replicas_that_know_more_than_it() {
    run(async {
        let (server, database, gateway, url) = behind_gateway("known").await;
        let (scene, kept) = Scene::begin(&database, &url).await;
        let copy = server.snapshot("known-image").await.expect("a copy");
        let before = scene.lose(kept).await;
        server.kill().await.expect("it is killed");
        gateway.lead_to(copy.copied_database(&database).address());
        // A replica renumbers before it serves a watch; the first write may still be given a version that was lost.
        eventually("a replica to renumber", LIMIT, async || {
            let base =
                sql(&copy.copied_database(&database)).await.query_one("select base from towline_meta", &[]).await;
            match base.map_err(|error| error.to_string())?.get::<_, i64>(0) {
                base if base > LIFT => Ok(()),
                base => Err(base.to_string()),
            }
        })
        .await
        .expect("it renumbers");
        scene.end(before, &["first", "kept", "new-1", "new-2", "new-3"]).await;
    });
}
