//! `make bench`: how fast the daemon is, what it costs itself, and what it costs the servers that it talks to.
//!
//! Each job is a list of phases ([`runner::Phase`]) on real components. One runner does them all: it waits until nothing is under way,
//! reads the counters of every process and server ([`measure`]), does the phase, waits again, and makes a row of the difference
//! ([`table`]). Requests are counted by the API servers' audit logs, statements by the database's statistics, CPU time and memory by the
//! kernel, and delays from the acknowledgement of a write to its arrival at a watch of this program. With `AGAINST=go`, a Go controller
//! that does the job of resource sync (`integration/reference`) takes turns with the daemon, and the two are compared.

mod bus;
mod delays;
mod hub;
mod hub_world;
mod inventory;
mod leases;
mod measure;
mod options;
mod runner;
mod statuses;
mod sync;
mod syncsets;
mod table;

use std::process::ExitCode;

use clap::Parser;
use integration::Error;

use crate::options::{JobName, Options};
use crate::table::Table;

fn main() -> ExitCode {
    let options = Options::parse();
    // One thread: the cores belong to those who are measured.
    let result = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(all(&options)),
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

async fn all(options: &Options) -> Result<(), String> {
    for job in &options.jobs {
        let table = Box::pin(measured(*job, options)).await.map_err(|error| error.chain())?;
        table.finish()?;
    }
    Ok(())
}

async fn measured(job: JobName, options: &Options) -> Result<Table, Error> {
    match job {
        JobName::Sync => sync::measure(options).await,
        JobName::Lease => leases::measure(options).await,
        JobName::Status => statuses::measure(options).await,
        JobName::Hub => hub::measure(options).await,
        JobName::Syncsets => syncsets::measure(options).await,
        JobName::Bus => bus::measure(options).await,
        JobName::Inventory => inventory::measure(options).await,
    }
}
