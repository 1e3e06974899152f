//! `make bench`: how fast the daemon is, what it costs itself and what it costs the API servers.
//!
//! Two control planes and the daemon's release build run on this machine. For resource sync, each run makes the objects, changes specs and
//! statuses at a steady rate and all at once, restarts the daemon with everything in step, and deletes the objects. What
//! is told are counts by the API servers' audit logs, the kernel's counters of each process, and times from the
//! acknowledgement of a write to its arrival at a watch of this program's own. With `AGAINST=go`, a Go controller that
//! does the same job (`integration/reference`) takes turns with the daemon, and the two are compared. The other jobs are measured in
//! [`leases`], [`statuses`], [`hub`], [`syncsets`], [`bus`] and [`inventory`]. See [`options`] for what can be set.

mod bus;
mod compare;
mod daemon;
mod hub;
mod inventory;
mod leases;
mod load_kind;
mod marks;
mod measure;
mod options;
mod phases;
mod report;
mod statuses;
mod summary;
mod syncsets;
mod world;

use std::process::ExitCode;

use integration::{Error, programs};

use crate::daemon::Program;
use crate::options::{Options, Planned};
use crate::phases::{Measured, Phase, Run};
use crate::summary::Round;
use crate::world::Clusters;

/// Objects of the run before the measured ones: fresh API servers are slower, and who is measured first would pay.
const WARM_UP: usize = 200;

fn main() -> ExitCode {
    let planned = match options::planned() {
        Ok(planned) => planned,
        Err(fault) => {
            eprintln!("bench: {fault}");
            return ExitCode::from(2);
        }
    };
    // One thread: the cores belong to those who are measured.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(async {
            for job in &planned {
                match job {
                    Planned::Sync(options) => bench(options).await?,
                    Planned::Lease(options) => leases::bench(options).await?,
                    Planned::Status(options) => statuses::bench(options).await?,
                    Planned::Hub(options) => hub::bench(options).await?,
                    Planned::Syncsets(options) => syncsets::bench(options).await?,
                    Planned::Bus(options) => bus::bench(*options).await?,
                    Planned::Inventory(options) => inventory::bench(*options).await?,
                }
            }
            Ok(())
        }),
        Err(error) => Err(format!("failed to start the runtime: {error}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn bench(options: &Options) -> Result<(), String> {
    let runs = Box::pin(measure_all(options)).await.map_err(|error| error.chain())?;
    report::finish(options, &runs)
}

async fn measure_all(options: &Options) -> Result<Vec<Round>, Error> {
    // Nothing is built while somebody is measured.
    for program in options.programs() {
        match program {
            Program::Towline => programs::towline().await?,
            Program::Go => programs::reference().await?,
        };
    }
    eprintln!("two control planes start");
    // On the heap: the future of a run is large enough as it is.
    let clusters = Box::pin(Clusters::start(options)).await?;
    let warm_up = Options { phases: vec![Phase::SpecBurst, Phase::StatusBurst], ..options.clone() };
    for program in options.programs() {
        eprintln!("{}: a run with {WARM_UP} objects to warm up", program.as_str());
        measure(&warm_up, &clusters, program, WARM_UP, |_| {}).await?;
    }
    let mut all = Vec::new();
    for &objects in &options.objects {
        for number in 1..=options.runs {
            // In turns, so that whatever else the machine does meets both.
            for program in options.programs() {
                eprintln!("{}: run {number} of {} with {objects} objects", program.as_str(), options.runs);
                let told = |measured: &Measured| eprintln!("{}", report::progress(measured));
                let measured = measure(options, &clusters, program, objects, told).await?;
                all.push(Round { program, objects, measured });
            }
        }
    }
    Ok(all)
}

async fn measure(
    options: &Options,
    clusters: &Clusters,
    program: Program,
    objects: usize,
    told: impl FnMut(&Measured),
) -> Result<Vec<Measured>, Error> {
    // A process of its own for each run, so that its memory is that of this many objects.
    let daemon = clusters.start_program(program, options).await?;
    Run { options, clusters, daemon, objects }.phases(told).await
}
