//! What is printed of the bus, and the same as JSON.

use serde::Serialize;

use super::Measured;
use super::world::{Cost, Engine};
use crate::marks::{Mark, Wanted, table};
use crate::measure::Latency;
use crate::options::BusOptions;
use crate::phases::to_float;
use crate::report::write_json;
use crate::summary::median;

/// Below the working directory, which `make` makes the repository.
const FILE: &str = "target/bench/bus.json";

/// How it was measured; part of every figure.
const SETTING: &str = "one PostgreSQL server with the settings that it is installed with but for fsync, which is off; one RabbitMQ node; both and \
                       towline's release build on this machine over loopback; paused clusters, so that a visit is a claim and its end; events that \
                       wait are those after an outage of the broker, or of a watch that continues at an old version";

#[derive(Serialize)]
struct Report<'a> {
    setting: &'a str,
    clusters: usize,
    rate: u32,
    runs: &'a [Measured],
    marks: &'a [Mark],
}

/// Prints the figures beside their marks and writes the JSON.
pub(crate) fn finish(options: BusOptions, all: &[Measured]) -> Result<(), String> {
    let BusOptions { clusters, rate, runs, .. } = options;
    println!("\nthe bus, medians of {runs} runs, {clusters} clusters: {SETTING}\n");
    let marks = marks(options, all);
    println!("{}", table("the bus", &marks));
    write_json(FILE, &Report { setting: SETTING, clusters, rate, runs: all, marks: &marks })
}

/// The figures of both engines, one below the other. PostgreSQL's are there to compare.
fn marks(options: BusOptions, all: &[Measured]) -> Vec<Mark> {
    let mut marks = Vec::new();
    let mut add = |what: &str, wanted: Option<Wanted>, figure: &dyn Fn(&Measured) -> Option<f64>| {
        for engine in [Engine::Amqp, Engine::Postgres] {
            let of_engine = all.iter().filter(|measured| measured.engine == engine).filter_map(figure).collect();
            let Some(ours) = median(of_engine) else { continue };
            let wanted = wanted.filter(|_| engine == Engine::Amqp);
            marks.push(Mark::new(&format!("{what}: {}", engine.as_str()), ours, wanted));
        }
    };
    add("events that wait, a second", Some(Wanted::AtLeast(2_000.0)), &|run| Some(run.events.per_second));
    let rate = options.rate;
    let latency = |figure: fn(&Latency) -> f64| move |run: &Measured| Some(figure(&run.events.latency_ms?));
    add(&format!("event at {rate} a second, p50 ms"), Some(Wanted::Below(20.0)), &latency(|ms| ms.p50));
    add(&format!("event at {rate} a second, p99 ms"), None, &latency(|ms| ms.p99));
    add("clusters through the work queue, a second", None, &|run| Some(run.keys.per_second));
    for (what, seconds) in [
        ("towline", (|cost| cost.towline) as fn(&Cost) -> f64),
        ("database", |cost| cost.database),
        ("broker", |cost| cost.broker),
    ] {
        let each = |seconds: f64, count: usize| Some(1_000.0 * seconds / to_float(count));
        add(&format!("CPU s of {what} for 1,000 events"), None, &|run| {
            each(seconds(&run.events.burst), run.events.waiting)
        });
        add(&format!("CPU s of {what} for 1,000 clusters"), None, &|run| {
            each(seconds(&run.keys.cost), run.keys.clusters)
        });
    }
    marks
}
