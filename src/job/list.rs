//! The jobs of a daemon, and what the daemon makes of all of them together.

use std::collections::BTreeMap;
use std::path::Path;

use super::command::JobCommand;
use super::{Config, Job};
use crate::config::Error;
use crate::config::fault::Fault;
use crate::config::source::Node;
use crate::telemetry::Metric;

/// The jobs that a daemon can do, in the order in which their sections are wired and shown.
#[derive(Clone, Copy)]
pub struct JobList(&'static [&'static dyn Job]);

impl JobList {
    pub const fn new(jobs: &'static [&'static dyn Job]) -> Self {
        Self(jobs)
    }

    pub fn iter(self) -> impl Iterator<Item = &'static dyn Job> {
        self.0.iter().copied()
    }

    /// Reads a configuration file with the environment of this process over it.
    pub fn load(self, path: &Path) -> Result<Config, Error> {
        Config::load(path, self.0)
    }

    /// Reads a TOML text with the given variables over it.
    pub fn parse(self, text: &str, environment: impl IntoIterator<Item = (String, String)>) -> Result<Config, Error> {
        Config::parse(text, environment, self.0)
    }

    /// Reads a document, and collects its faults.
    pub fn walk(self, root: BTreeMap<String, Node>, faults: &mut Vec<Fault>) -> Config {
        Config::walk(root, self.0, faults)
    }

    pub fn metrics(self) -> impl Iterator<Item = &'static Metric> {
        self.iter().flat_map(Job::metrics)
    }

    pub fn commands(self) -> impl Iterator<Item = JobCommand> {
        self.iter().flat_map(Job::commands)
    }

    /// The message for a configuration without sections.
    pub fn nothing_runs(self) -> String {
        let headings: Vec<String> = self.iter().map(heading).collect();
        let (last, others) = headings
            .split_last()
            .map_or((String::new(), String::new()), |(last, others)| (last.clone(), others.join(", ")));
        format!("nothing will run: the configuration has no section; there can be {others} and {last}")
    }
}

/// How a section of a job is written.
fn heading(job: &dyn Job) -> String {
    if job.is_list() { format!("[[{}]]", job.key()) } else { format!("[{}]", job.key()) }
}
