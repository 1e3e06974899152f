//! Syncsets: how fast changes of documents are on clusters, and what that costs the worker, PostgreSQL and the API servers.
//!
//! A few API servers stand for many clusters: each document leads to one of them, and templates keep the documents' objects apart in
//! namespaces of their own. A `SelectorSyncSet` has ten config maps and a mapped secret. Times are from before the request to the hub
//! to the arrival of the last object at a watch of this program.

mod documents;
mod meter;
mod phases;
mod report;
mod world;

use integration::Error;

use self::phases::Measured;
use self::world::World;
use crate::options::SyncsetOptions;

/// Measures, prints, and writes the JSON.
pub(crate) async fn bench(options: &SyncsetOptions) -> Result<(), String> {
    let measured = Box::pin(measure(options)).await.map_err(|error| error.chain())?;
    report::finish(options, &measured)
}

async fn measure(options: &SyncsetOptions) -> Result<Vec<Vec<Measured>>, Error> {
    let mut all = Vec::new();
    for number in 1..=options.runs {
        eprintln!(
            "syncsets: run {number} of {}: {} clusters on {} API servers",
            options.runs, options.clusters, options.edges
        );
        let mut world = Box::pin(World::start(options)).await?;
        all.push(Box::pin(phases::all(&mut world, options)).await?);
        world.end().await?;
    }
    Ok(all)
}
