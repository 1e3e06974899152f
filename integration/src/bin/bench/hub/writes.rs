//! Creates and conditional updates by clients that each send one request after the other.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Instant;

use futures::future::try_join_all;
use integration::Error;
use integration::hub::{Client, Request};
use serde::Serialize;

use super::documents::{cluster_in, path_in};
use super::meter::{Cost, Meter};
use super::world::World;
use crate::measure::Latency;
use crate::phases::to_float;

/// Clients that create the documents beyond the clusters.
pub(crate) const FILLERS: usize = 64;
/// Before what is measured: fresh servers are slower.
const WARM_UP: usize = 300;

/// A number of writes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Written {
    pub(crate) clients: usize,
    pub(crate) writes: usize,
    pub(crate) seconds: f64,
    pub(crate) per_second: f64,
    pub(crate) latency_ms: Option<Latency>,
    pub(crate) cost: Cost,
}

/// The version of each document, by its number; 0 before it is created.
pub(crate) struct Versions(Vec<Cell<u64>>);

impl Versions {
    /// Of so many documents.
    pub(crate) fn of(documents: usize) -> Self {
        Self(vec![Cell::new(0); documents])
    }

    fn get(&self, number: usize) -> u64 {
        self.0.get(number).map_or(0, Cell::get)
    }

    fn set(&self, number: usize, version: u64) {
        if let Some(cell) = self.0.get(number) {
            cell.set(version);
        }
    }
}

/// Divides documents among the rounds: one part for one client, and another one for each doubling, so that no round is over
/// at once.
pub(crate) fn shares(documents: usize, clients: &[usize]) -> Vec<Range<usize>> {
    let parts: Vec<usize> = clients.iter().map(|clients| clients.ilog2() as usize + 1).collect();
    let all: usize = parts.iter().sum();
    let mut before = 0;
    let mut next = |part: &usize| {
        let start = documents * before / all;
        before += part;
        start..documents * before / all
    };
    parts.iter().map(&mut next).collect()
}

/// Creates clusters, and deletes them.
pub(crate) async fn warm_up(world: &World<'_>) -> Result<(), Error> {
    const NAMESPACE: &str = "warm-up";
    let create = |number: usize| Request::post("/v1/clusters", &cluster_in(NAMESPACE, number, 0));
    let versions = Versions::of(WARM_UP);
    by_clients(world, 16, 0..WARM_UP, &create, &versions).await?;
    let mut client = world.first().client();
    for number in 0..WARM_UP {
        client.send(&Request::delete(&path_in(NAMESPACE, number))).await?.success()?;
    }
    Ok(())
}

/// Creates the documents with these numbers.
pub(crate) async fn create(
    world: &World<'_>,
    clients: usize,
    numbers: Range<usize>,
    versions: &Versions,
) -> Result<Written, Error> {
    let request = |number: usize| Request::post("/v1/clusters", &world.fleet.cluster(number, 0));
    by_clients(world, clients, numbers, &request, versions).await
}

/// Replaces each of them once, on the condition that it has the version that its last writer was told.
pub(crate) async fn update(
    world: &World<'_>,
    clients: usize,
    numbers: Range<usize>,
    versions: &Versions,
) -> Result<Written, Error> {
    let request = |number: usize| {
        let mut document = world.fleet.cluster(number, 1);
        // A sealed field that is not sent stays as it is.
        document.as_object_mut().map(|fields| fields.remove("kubeconfig"));
        Request::put(&world.fleet.path(number), &document).if_match(versions.get(number))
    };
    by_clients(world, clients, numbers, &request, versions).await
}

/// Each client takes the next number when its last write was answered, until there is none.
async fn by_clients(
    world: &World<'_>,
    clients: usize,
    numbers: Range<usize>,
    request: &impl Fn(usize) -> Request,
    versions: &Versions,
) -> Result<Written, Error> {
    let meter = Meter::begin(world).await?;
    let taken = RefCell::new(Vec::with_capacity(numbers.len()));
    let (next, writes) = (RefCell::new(numbers.clone()), numbers.len());
    let began = Instant::now();
    let one = async |mut client: Client| {
        loop {
            let number = next.borrow_mut().next();
            let Some(number) = number else { return Ok::<_, Error>(()) };
            let request = request(number);
            let sent = Instant::now();
            let reply = client.send(&request).await?;
            taken.borrow_mut().push(sent.elapsed());
            versions.set(number, reply.success()?.version()?);
        }
    };
    try_join_all((0..clients).map(|_| one(world.first().client()))).await?;
    let seconds = began.elapsed().as_secs_f64();
    let cost = meter.end(world).await?;
    let latency_ms = Latency::taken(taken.into_inner());
    Ok(Written { clients, writes, seconds, per_second: to_float(writes) / seconds, latency_ms, cost })
}

impl Written {
    /// CPU seconds for a thousand writes: of the replica, and of the database.
    pub(crate) fn cpu_per_thousand(&self) -> (f64, f64) {
        let thousands = to_float(self.writes) / 1_000.0;
        (self.cost.towline_cpu_seconds / thousands, self.cost.database_cpu_seconds / thousands)
    }

    pub(crate) fn line(&self, what: &str) -> String {
        let latency = self.latency_ms.map(|ms| format!("p50 {:.1} p99 {:.1} max {:.0} ms", ms.p50, ms.p99, ms.max));
        format!(
            "  {what:<9}{:>6} by {:>2} clients in {:>6.2} s: {:>5.0} a second, {}; {}",
            self.writes,
            self.clients,
            self.seconds,
            self.per_second,
            latency.unwrap_or_default(),
            self.cost.line()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn shares_take_every_document_once_and_grow_with_the_clients() {
        assert_eq!(shares(12_000, &[1, 8, 64]), [0..1_000, 1_000..5_000, 5_000..12_000]);
        assert_eq!(shares(101, &[3]), vec![0_usize..101]);
    }
}
