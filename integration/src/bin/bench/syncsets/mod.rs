//! Syncsets: how fast changes of documents are on clusters, and what that costs the worker, PostgreSQL and the API servers.
//!
//! A few real API servers stand for many clusters: each document leads to one of them, and templates keep the documents' objects apart in
//! namespaces of their own. Thousands of clusters have simulated API servers, which this process plays ([`many`]). A `SelectorSyncSet` has ten config maps and a mapped secret. Times are from before the request to the hub
//! to the arrival of the last object at a watch of this program.

mod claims;
mod documents;
mod many;
mod marks;
mod measured;
mod meter;
mod outage;
mod phases;
mod plain;
mod report;
mod world;

use integration::Error;

use self::measured::Measured;
use self::world::World;
use crate::options::{Scenario, SyncsetOptions};

/// Measures, prints, and writes the JSON.
pub(crate) async fn bench(options: &SyncsetOptions) -> Result<(), String> {
    for scenario in &options.scenarios {
        let measured = Box::pin(measure(options, *scenario)).await.map_err(|error| error.chain())?;
        report::finish(options, *scenario, &measured)?;
    }
    Ok(())
}

async fn measure(options: &SyncsetOptions, scenario: Scenario) -> Result<Vec<Vec<Measured>>, Error> {
    let mut all = Vec::new();
    for number in 1..=options.runs {
        eprintln!("syncsets: run {number} of {}: {}", options.runs, report::size(options, scenario));
        let mut world = Box::pin(World::start(options, scenario)).await?;
        all.push(match scenario {
            Scenario::Real => Box::pin(phases::all(&mut world, options)).await?,
            Scenario::Simulated => Box::pin(many::all(&mut world, options)).await?,
        });
        world.end().await?;
    }
    Ok(all)
}
