//! Status sync: what it costs to keep the hub's statuses as the database says, and how fresh they are.
//!
//! One control plane is the hub, one PostgreSQL server has what three leaf hubs report. Writes are seen in watches of
//! this program's own; requests are counted by the hub's audit log, statements by the server's statistics. What the API
//! server takes is measured beside it: the same patches by a plain loop.

mod marks;
mod meter;
mod phases;
mod report;
mod seen;
mod world;

use integration::Error;

use self::phases::{Measured, Run};
use self::world::World;
use crate::options::{Size, StatusOptions};

/// Before what is measured: fresh servers are slower, and who is measured first would pay.
const WARM_UP: Size = Size { policies: 200, clusters: 50 };

/// Measures, prints, and writes the JSON.
pub(crate) async fn bench(options: &StatusOptions) -> Result<(), String> {
    let measured = Box::pin(measure(options)).await.map_err(|error| error.chain())?;
    report::finish(options, &measured)
}

async fn measure(options: &StatusOptions) -> Result<Vec<Measured>, Error> {
    eprintln!("statuses: a control plane and a database server start");
    let world = Box::pin(World::start()).await?;
    eprintln!("statuses: a run of {} × {} to warm up", WARM_UP.policies, WARM_UP.clusters);
    let warm_up = StatusOptions { passes: 1, flips: 1, trickle: 0, notify: false, ..options.clone() };
    run(&world, &warm_up, WARM_UP, |_| {}).await?;
    let mut all = Vec::new();
    for size in &options.sizes {
        for number in 1..=options.runs {
            eprintln!("statuses: run {number} of {} with {} × {}", options.runs, size.policies, size.clusters);
            all.push(run(&world, options, *size, |line| eprintln!("{line}")).await?);
        }
    }
    Ok(all)
}

async fn run(world: &World, options: &StatusOptions, size: Size, told: impl FnMut(String)) -> Result<Measured, Error> {
    let policies = world.fill(size, options.others).await?;
    Box::pin(Run { world, options, policies }.phases(told)).await
}
