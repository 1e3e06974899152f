//! The bus: how many events a second reach a program outside and how long each takes, and how many clusters a second go through the
//! work queue; with `RabbitMQ`, and with PostgreSQL alone beside it.
//!
//! One PostgreSQL server, one broker and one replica. With PostgreSQL alone, a program outside has a watch. The clusters are paused, so that
//! a visit of a worker is a claim, a look and the end of the claim, and no more.

mod events;
mod keys;
mod queue;
mod report;
mod world;

use integration::Error;
use serde::Serialize;

use self::events::Relayed;
use self::keys::Worked;
use self::world::{Engine, Servers, World};
use crate::options::BusOptions;

/// What a run has shown of an engine.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    engine: Engine,
    events: Relayed,
    keys: Worked,
}

/// Measures, prints, and writes the JSON.
pub(crate) async fn bench(options: BusOptions) -> Result<(), String> {
    let measured = Box::pin(measure(options)).await.map_err(|error| error.chain())?;
    report::finish(options, &measured)
}

async fn measure(options: BusOptions) -> Result<Vec<Measured>, Error> {
    eprintln!("bus: a database server and a broker start");
    let servers = Servers::start().await?;
    let mut all = Vec::new();
    for number in 1..=options.runs {
        // In turns, so that whatever else the machine does meets both.
        for engine in [Engine::Postgres, Engine::Amqp] {
            eprintln!("bus: run {number} of {} with {}", options.runs, engine.as_str());
            let name = format!("bench_{}_{number}", engine.as_str());
            let mut world = World::begin(&servers, &name, engine).await?;
            world.create(options.clusters).await?;
            let events = Box::pin(events::measure(&world, options)).await?;
            eprintln!("{}", events.line());
            let keys = Box::pin(keys::measure(&mut world, options)).await?;
            eprintln!("{}", keys.line());
            world.end().await?;
            all.push(Measured { engine, events, keys });
        }
    }
    Ok(all)
}
