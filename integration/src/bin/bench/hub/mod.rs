//! The hub: how many writes a second it takes, how long reads, lists and watches take, and what that costs it and PostgreSQL.
//!
//! One PostgreSQL server, as it is installed but for the statistics, and up to three replicas of `towline hub`. Each run has a
//! database of its own. Clients are connections of this program; times are from the request to the end of the answer, and
//! of watches from the time that the database gave the change.

pub(crate) mod crowd;
mod documents;
mod meter;
mod plans;
mod reads;
mod report;
mod rest;
mod selectors;
mod watches;
pub(crate) mod world;
mod writes;

use integration::Error;
use serde::Serialize;

use self::documents::Fleet;
use self::reads::{Listed, Read};
use self::rest::{Rest, Start};
use self::selectors::Selected;
use self::watches::Watched;
use self::world::World;
use self::writes::{Versions, Written};
use crate::options::{HubOptions, Step};

/// What a run has shown.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Measured {
    creates: Vec<Written>,
    updates: Vec<Written>,
    read: Option<Read>,
    list: Option<Listed>,
    /// One watch, and a crowd on all replicas.
    watches: Vec<Watched>,
    rest: Option<Rest>,
    /// The creation of the documents beyond the clusters.
    fill: Option<Written>,
    selectors: Vec<Selected>,
    start: Option<Start>,
}

/// Measures, prints, and writes the JSON.
pub(crate) async fn bench(options: &HubOptions) -> Result<(), String> {
    let measured = Box::pin(measure(options)).await.map_err(|error| error.chain())?;
    report::finish(options, &measured)
}

async fn measure(options: &HubOptions) -> Result<Vec<Measured>, Error> {
    eprintln!("hub: a database server starts");
    let server = world::start_server(options).await?;
    let mut all = Vec::new();
    for number in 1..=options.runs {
        eprintln!("hub: run {number} of {}", options.runs);
        let fleet = Fleet { clusters: options.clusters };
        let mut world = World::begin(&server, &format!("bench_{number}"), fleet).await?;
        all.push(Box::pin(run(&mut world, options)).await?);
        world.end().await?;
    }
    Ok(all)
}

async fn run(world: &mut World<'_>, options: &HubOptions) -> Result<Measured, Error> {
    let mut measured = Measured::default();
    let told = |line: String| eprintln!("{line}");
    writes::warm_up(world).await?;
    let versions = Versions::of(options.documents);
    let shares = writes::shares(options.clusters, &options.clients);
    for (clients, numbers) in options.clients.iter().zip(&shares) {
        let written = writes::create(world, *clients, numbers.clone(), &versions).await?;
        told(written.line("created"));
        measured.creates.push(written);
    }
    if options.has(Step::Updates) {
        for (clients, numbers) in options.clients.iter().zip(&shares) {
            let written = writes::update(world, *clients, numbers.clone(), &versions).await?;
            told(written.line("updated"));
            measured.updates.push(written);
        }
    }
    // What autovacuum does sooner or later, so that it happens in no measurement.
    world.vacuum().await?;
    if options.has(Step::Read) {
        let read = reads::one(world, options).await?;
        told(read.line());
        measured.read = Some(read);
    }
    if options.has(Step::List) {
        let listed = reads::list(world).await?;
        told(listed.line());
        measured.list = Some(listed);
    }
    if options.has(Step::Watch) {
        let alone = watches::measure(world, options, 1).await?;
        told(alone.line());
        world.replicas(options.replicas).await?;
        let crowd = watches::measure(world, options, options.watchers).await?;
        told(crowd.line());
        world.replicas(1).await?;
        measured.watches = vec![alone, crowd];
    }
    if options.has(Step::Idle) {
        let rest = rest::rest(world, options).await?;
        told(rest.line());
        measured.rest = Some(rest);
    }
    if options.has(Step::Selectors) || options.has(Step::Start) {
        if options.clusters < options.documents {
            let fill = writes::create(world, writes::FILLERS, options.clusters..options.documents, &versions).await?;
            told(fill.line("filled"));
            measured.fill = Some(fill);
        }
        world.vacuum().await?;
    }
    if options.has(Step::Selectors) {
        measured.selectors = selectors::all(world).await?;
        measured.selectors.iter().for_each(|selected| told(selected.line()));
    }
    if options.has(Step::Start) {
        let start = rest::start(world).await?;
        told(start.line());
        measured.start = Some(start);
    }
    Ok(measured)
}
