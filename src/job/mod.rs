//! The interface between the daemon and its jobs: sections in the configuration, actors that do the work, and reports.
//!
//! [`crate::jobs`] lists the jobs of the `towline` binary, and nothing else names them: the configuration, `towline check`, the actor tree and the
//! metrics go through that list. A job imports this module and never another job.

pub mod check;
pub mod client;
pub mod command;
mod config;
mod database;
mod environment;
pub mod output;
pub mod permission;
pub mod routes;
pub mod terminal;

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::actor::ChildSpec;
use crate::cluster::{Fence, Listed, Watch, WatchRegistry};
use crate::config::fault::Fault;
use crate::config::source::Node;
use crate::config::{ClusterName, ElectionConfig, Error, ResourceId, SectionName};
use crate::election::Election;
use crate::state::Keeping;
use crate::status::{NotReady, Section};
use crate::telemetry::Metric;
use command::JobCommand;
pub use config::{Config, Reading, Whole};
pub use database::database;
pub use environment::Environment;
use permission::{Kinds, Permission};

/// A job that the daemon can do.
pub trait Job: Send + Sync {
    /// The key of its sections in the configuration: `sync`.
    fn key(&self) -> &'static str;

    /// Whether its sections are a list and have names (`[[sync]]`), and not one table (`[status_sync]`).
    fn is_list(&self) -> bool;

    /// Reads its sections, and records what is wrong with them.
    fn read(&self, node: Option<Node>, reading: &mut Reading<'_>) -> Arc<dyn Sections>;

    /// Its metrics, as they are described to Prometheus.
    fn metrics(&self) -> &'static [Metric] {
        &[]
    }

    fn commands(&self) -> Vec<JobCommand> {
        Vec::new()
    }

    /// The words by which a running daemon is asked about its sections, of `resync` and `explain`: `towline resync inventory`. Another
    /// job may have commands with these names.
    fn orders(&self) -> &'static [&'static str] {
        &[]
    }
}

pub trait Sections: Any + fmt::Debug + Send + Sync {
    /// Their names, in the order of the file.
    fn names(&self) -> Vec<&SectionName>;

    fn clusters(&self) -> Vec<&ClusterName>;

    /// Records what is wrong between them and with the rest of the configuration.
    fn check(&self, _whole: &Whole<'_>, _faults: &mut Vec<Fault>) {}

    /// Whether leader election decides which replica runs them. If not, they run in every replica.
    fn is_elected(&self) -> bool {
        true
    }

    /// The election of a daemon that does this job alone and has no `[election]`.
    fn election(&self) -> Option<ElectionConfig> {
        None
    }

    /// Warnings that are no faults, a sentence each.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Logs what operators have to know when the daemon starts.
    fn announce(&self) {}

    /// The kinds that they work with, and their clusters, where discovery has to tell how they are served.
    fn kinds(&self) -> Vec<(ClusterName, ResourceId)> {
        Vec::new()
    }

    /// The permissions that they need on the kinds that are known. The check reviews them, and `deploy/` grants them.
    fn permissions(&self, kinds: &Kinds) -> Vec<Permission>;

    /// Those that keep state beyond the process, and the clusters in which they do.
    fn states(&self) -> Vec<(&ClusterName, &SectionName)> {
        Vec::new()
    }

    /// Checks against the clusters and databases whether everything that they need is there, and prints what is missing. Returns
    /// the number of faults.
    fn connect<'c>(&'c self, surroundings: &'c check::Surroundings<'c>) -> BoxFuture<'c, usize>;

    /// Adds their actors and reports.
    fn wire(&self, wiring: &mut Wiring<'_>);
}

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

/// Wires sections: holds what they share, and collects their reports and actors.
pub struct Wiring<'w> {
    /// The watches, which all sections share.
    pub watches: &'w mut WatchRegistry,
    pub keeping: &'w Keeping,
    election: Option<&'w Election>,
    sections: Vec<Arc<dyn Section>>,
    children: Vec<ChildSpec>,
    offers: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl<'w> Wiring<'w> {
    pub fn new(watches: &'w mut WatchRegistry, keeping: &'w Keeping, election: Option<&'w Election>) -> Self {
        Self { watches, keeping, election, sections: Vec::new(), children: Vec::new(), offers: HashMap::new() }
    }

    /// The fence of a section under leader election, which its writes pass.
    pub fn fence(&self, section: &SectionName) -> Option<Fence> {
        self.election?.fence(section)
    }

    /// Adds a section: its report and its actor, which leader election puts behind a gate.
    pub fn add(&mut self, section: Arc<dyn Section>, child: ChildSpec) {
        let gate = self.election.and_then(|election| election.gate(section.name()));
        self.children.push(match gate {
            Some(gate) => child.gated(gate),
            None => child,
        });
        self.sections.push(section);
    }

    /// Offers something to the sections that are wired after this one, perhaps of another job. Of each type there is one offer.
    pub fn offer<T: Any + Send + Sync>(&mut self, offer: Arc<T>) {
        self.offers.insert(TypeId::of::<T>(), offer);
    }

    /// What a section has offered that was wired before this one.
    pub fn offered<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.offers.get(&TypeId::of::<T>()).cloned()?.downcast().ok()
    }

    /// The reports and the actors of the sections.
    pub fn into_parts(self) -> (Vec<Arc<dyn Section>>, Vec<ChildSpec>) {
        (self.sections, self.children)
    }
}

/// Why these watches have not listed, with a list that fails before one that is in progress; `None` if all have. `knows`
/// tells whether the section has already taken up a list that has ended: each run begins with lists of its own.
pub fn not_listed<'w>(
    watches: impl IntoIterator<Item = &'w Arc<Watch>>,
    knows: impl Fn(&Arc<Watch>) -> bool,
) -> Option<NotReady> {
    let mut in_progress = None;
    for watch in watches {
        let id = watch.id();
        let not_ready = |reason: &str, unreachable| NotReady {
            reason: format!("{} in cluster {}: {reason}", id.what(), id.cluster),
            unreachable,
        };
        match &*watch.store().listed().borrow() {
            Listed::Yes if knows(watch) => {}
            Listed::Yes => {
                in_progress.get_or_insert_with(|| not_ready("a list is in progress", false));
            }
            Listed::No { reason: Some(reason), unreachable } => return Some(not_ready(reason, *unreachable)),
            Listed::No { reason: None, unreachable } => {
                in_progress.get_or_insert_with(|| not_ready("the first list is in progress", *unreachable));
            }
        }
    }
    in_progress
}
