//! The inventory: what it costs to report releases of Helm, to report one that changed, to rest, and to start in step; and what memory many
//! releases take.
//!
//! One control plane and one API that accepts everything. Requests are counted by the API server's audit log, posts by that API.

mod report;
mod world;

use std::time::{Duration, Instant};

use integration::{Error, Mark, Switches, Towline, Usage};
use serde::Serialize;

use self::world::World;
use crate::measure::mebibytes;
use crate::options::InventoryOptions;

/// By then, connections and threads that nothing uses have ended: connections are swept every 20 s, once they have been idle for longer.
const SETTLED_AFTER: Duration = Duration::from_mins(1);

/// What one step has cost.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Cost {
    seconds: f64,
    requests: usize,
    /// Requests for watches among them, of which each begins with a list where nothing is known yet.
    watches: usize,
    posts: usize,
    cpu_seconds: f64,
    /// How often a thread gave its core up.
    switches: u64,
    /// The most memory that the process has held so far.
    peak_mib: f64,
}

/// Everything that one run has shown.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    first: Cost,
    change: Cost,
    idle: Cost,
    in_step: Cost,
    many: Cost,
}

/// Measures, prints, and writes the JSON.
pub(crate) async fn bench(options: InventoryOptions) -> Result<(), String> {
    let mut all = Vec::new();
    for number in 1..=options.runs {
        eprintln!("inventory: run {number} of {}", options.runs);
        all.push(Box::pin(measure(options)).await.map_err(|error| error.chain())?);
    }
    report::finish(options, &all)
}

async fn measure(options: InventoryOptions) -> Result<Measured, Error> {
    let InventoryOptions { releases, namespaces, many, idle, .. } = options;
    let world = World::start(namespaces).await?;
    let names: Vec<String> = (0..releases).map(|number| format!("web-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        world.install(name, number).await?;
    }
    let step = Step::of_process(&world).await?;
    let towline = world.towline().await?;
    world.wait_until_told(releases).await?;
    let first = step.end(&world, &towline).await?;
    eprintln!("{}", first.line("first reports"));

    let step = Step::of(&world, &towline).await?;
    world.upgrade("web-0", 0).await?;
    world.wait_until_sent("web-0", 2).await?;
    let change = step.end(&world, &towline).await?;
    eprintln!("{}", change.line("one release upgraded"));

    tokio::time::sleep(SETTLED_AFTER).await;
    let step = Step::of(&world, &towline).await?;
    tokio::time::sleep(idle).await;
    let rest = step.end(&world, &towline).await?;
    eprintln!("{}", rest.line("idle"));

    towline.kill9().await?;
    drop(towline);
    let step = Step::of_process(&world).await?;
    let towline = world.towline().await?;
    // What has to be told would be on its way by now.
    tokio::time::sleep(world::DELAY * 4).await;
    let in_step = step.end(&world, &towline).await?;
    eprintln!("{}", in_step.line("start in step"));

    towline.kill9().await?;
    drop(towline);
    world.write_records(many).await?;
    let step = Step::of_process(&world).await?;
    let towline = world.towline().await?;
    world.wait_until_told(releases + many).await?;
    let of_many = step.end(&world, &towline).await?;
    eprintln!("{}", of_many.line("many releases"));
    Ok(Measured { first, change, idle: rest, in_step, many: of_many })
}

/// A step under way.
struct Step {
    begun: Instant,
    mark: Mark,
    posts: usize,
    cpu: Duration,
    switches: Switches,
}

impl Step {
    /// One of a process that has just begun.
    async fn of_process(world: &World) -> Result<Self, Error> {
        let mark = world.plane.audit()?.mark().await?;
        Ok(Self {
            begun: Instant::now(),
            mark,
            posts: world.sink.told().len(),
            cpu: Duration::ZERO,
            switches: Switches::default(),
        })
    }

    async fn of(world: &World, towline: &Towline) -> Result<Self, Error> {
        let Usage { cpu, switches, .. } = towline.usage()?;
        Ok(Self { cpu, switches, ..Self::of_process(world).await? })
    }

    async fn end(self, world: &World, towline: &Towline) -> Result<Cost, Error> {
        let usage = towline.usage()?;
        let (requests, watches) = world.requests(self.mark).await?;
        Ok(Cost {
            seconds: self.begun.elapsed().as_secs_f64(),
            requests,
            watches,
            posts: world.sink.told().len() - self.posts,
            cpu_seconds: usage.cpu.saturating_sub(self.cpu).as_secs_f64(),
            switches: usage.switches.since(&self.switches),
            peak_mib: mebibytes(usage.rss_peak),
        })
    }
}

impl Cost {
    fn line(&self, what: &str) -> String {
        let Self { seconds, requests, watches, posts, cpu_seconds, switches, peak_mib } = self;
        format!(
            "  {what:<24} {seconds:>6.2} s, {requests} requests and {watches} watches, {posts} posts; CPU {cpu_seconds:.3} s, {switches} switches, at most {peak_mib:.1} MiB so far"
        )
    }
}
