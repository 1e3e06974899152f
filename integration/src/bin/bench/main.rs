//! `make bench`: how fast the daemon is, what it costs itself and what it costs the API servers.
//!
//! Two control planes and the daemon's release build run on this machine. For resource sync, each run makes the objects, changes specs and
//! statuses at a steady rate and all at once, restarts the daemon with everything in step, and deletes the objects. What
//! is told are counts by the API servers' audit logs, the kernel's counters of each process, and times from the
//! acknowledgement of a write to its arrival at a watch of this program's own. See [`options::Options`] for what can be
//! set.

mod leases;
mod load_kind;
mod marks;
mod measure;
mod options;
mod phases;
mod report;
mod statuses;
mod summary;
mod world;

use std::process::ExitCode;

use integration::Error;

use crate::options::{Job, LeaseOptions, Options, StatusOptions};
use crate::phases::{Measured, Phase, Run};
use crate::world::Clusters;

/// Objects of the run before the measured ones: fresh API servers are slower, and who is measured first would pay.
const WARM_UP: usize = 200;

fn main() -> ExitCode {
    let options = Options::read()
        .and_then(|options| Ok((options::jobs()?, options, LeaseOptions::read()?, StatusOptions::read()?)));
    let (jobs, options, lease_options, status_options) = match options {
        Ok(options) => options,
        Err(fault) => {
            eprintln!("bench: {fault}");
            return ExitCode::from(2);
        }
    };
    // One thread: the cores belong to those who are measured.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(async {
            for job in jobs {
                match job {
                    Job::Sync => bench(&options).await?,
                    Job::Lease => leases::bench(&lease_options).await?,
                    Job::Status => statuses::bench(&status_options).await?,
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

async fn measure_all(options: &Options) -> Result<Vec<(usize, Vec<Measured>)>, Error> {
    eprintln!("two control planes start");
    // On the heap: the future of a run is large enough as it is.
    let clusters = Box::pin(Clusters::start(options)).await?;
    eprintln!("a run with {WARM_UP} objects to warm up");
    let warm_up = Options { phases: vec![Phase::SpecBurst, Phase::StatusBurst], ..options.clone() };
    measure(&warm_up, &clusters, WARM_UP, |_| {}).await?;
    let mut all = Vec::new();
    for &objects in &options.objects {
        for number in 1..=options.runs {
            eprintln!("run {number} of {} with {objects} objects", options.runs);
            let told = |measured: &Measured| eprintln!("{}", report::progress(measured));
            all.push((objects, measure(options, &clusters, objects, told).await?));
        }
    }
    Ok(all)
}

async fn measure(
    options: &Options,
    clusters: &Clusters,
    objects: usize,
    told: impl FnMut(&Measured),
) -> Result<Vec<Measured>, Error> {
    // A daemon of its own for each run, so that its memory is that of this many objects.
    let towline = clusters.towline(options).await?;
    Run { options, clusters, towline, objects }.phases(told).await
}
