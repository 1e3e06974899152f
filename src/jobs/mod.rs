//! The jobs that the daemon can do. A job is added here, and nowhere else.

#[cfg(test)]
mod tests;

use std::path::Path;

use crate::config::Error;
use crate::job::command::JobCommand;
use crate::job::{Config, Job};
use crate::lease::LeaseJob;
use crate::resource_sync::SyncJob;
use crate::status_sync::StatusSyncJob;
use crate::telemetry::Metric;

/// Every job, in the order in which its sections are wired and shown.
pub static JOBS: [&dyn Job; 3] = [&SyncJob, &LeaseJob, &StatusSyncJob];

/// Reads a configuration file with the environment of this process over it.
pub fn load(path: &Path) -> Result<Config, Error> {
    Config::load(path, &JOBS)
}

/// Reads a TOML text with the given variables over it.
pub fn parse(text: &str, environment: impl IntoIterator<Item = (String, String)>) -> Result<Config, Error> {
    Config::parse(text, environment, &JOBS)
}

/// The metrics of every job.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    JOBS.iter().flat_map(|job| job.metrics())
}

/// The commands of every job.
pub fn commands() -> impl Iterator<Item = JobCommand> {
    JOBS.iter().flat_map(|job| job.commands())
}

/// The message for a configuration without sections.
pub fn nothing_runs() -> String {
    let headings: Vec<String> = JOBS.iter().map(|job| heading(*job)).collect();
    let (last, others) = headings
        .split_last()
        .map_or((String::new(), String::new()), |(last, others)| (last.clone(), others.join(", ")));
    format!("nothing will run: the configuration has no section; there can be {others} and {last}")
}

/// How a section of a job is written.
fn heading(job: &dyn Job) -> String {
    if job.is_list() { format!("[[{}]]", job.key()) } else { format!("[{}]", job.key()) }
}
