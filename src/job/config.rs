//! The configuration as a whole: the tables that belong to no job, and the sections of every job.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::{Job, Sections};
use crate::config::fault::{Error, Fault, Faults, Problem, nearest};
use crate::config::fields::{self, Fields};
use crate::config::setting::Setting;
use crate::config::source::{self, Node};
use crate::config::{
    self, ClusterAccess, ClusterConfig, ClusterName, DaemonConfig, ElectionConfig, SectionName, environment,
};

#[derive(Clone, Debug, Default)]
pub struct Config {
    pub daemon: DaemonConfig,
    /// `[clusters.<name>]`: the clusters that sections refer to.
    pub clusters: BTreeMap<ClusterName, ClusterConfig>,
    /// `[election]`: replicas share the sections. `None`: all sections run here.
    pub election: Option<ElectionConfig>,
    /// The sections of each job, in the order of the jobs.
    pub jobs: Vec<Arc<dyn Sections>>,
}

/// The rest of the configuration, which a job's sections are checked against.
#[derive(Debug)]
pub struct Whole<'w> {
    pub daemon: &'w DaemonConfig,
    /// The clusters without faults.
    pub clusters: &'w BTreeMap<ClusterName, ClusterConfig>,
    /// The keys of the jobs that the configuration has, with faults or without.
    pub present: &'w [&'static str],
    /// There is no `[election]`, and no section of another job.
    pub is_alone: bool,
}

impl Config {
    /// Reads a file. Variables of this process's environment override its keys.
    pub fn load(path: &Path, jobs: &[&dyn Job]) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&text, environment(), jobs)
    }

    /// Reads a TOML text, overridden by the given variables.
    pub fn parse(
        text: &str,
        environment: impl IntoIterator<Item = (String, String)>,
        jobs: &[&dyn Job],
    ) -> Result<Self, Error> {
        let mut faults = Vec::new();
        let lists: Vec<&str> = jobs.iter().filter(|job| job.is_list()).map(|job| job.key()).collect();
        let root = source::read(text, environment, &lists, &mut faults)?;
        let config = Self::walk(root, jobs, &mut faults);
        Faults::new(faults).into_result()?;
        Ok(config)
    }

    /// The names of all sections, of whichever job.
    pub fn sections(&self) -> impl Iterator<Item = &SectionName> {
        self.jobs.iter().flat_map(|job| job.names())
    }

    /// Warnings that are no faults, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let election = self.election.iter().map(|election| &election.cluster);
        let used: BTreeSet<&ClusterName> = self.jobs.iter().flat_map(|job| job.clusters()).chain(election).collect();
        let unused = self.clusters.keys().filter(|name| !used.contains(name));
        let unused = unused.map(|name| format!("cluster {name}: no section uses it"));
        unused.chain(self.jobs.iter().flat_map(|job| job.warnings())).collect()
    }

    pub fn of<S: Sections>(&self) -> Option<&S> {
        self.jobs.iter().find_map(|job| (&**job as &dyn Any).downcast_ref())
    }

    /// Whether two names lead to one cluster, as far as the configuration says.
    pub fn is_same_cluster(&self, left: &ClusterName, right: &ClusterName) -> bool {
        config::same_cluster(left, right, &self.clusters)
    }

    /// Reads a document, and collects its faults.
    pub fn walk(root: BTreeMap<String, Node>, jobs: &[&dyn Job], faults: &mut Vec<Fault>) -> Self {
        let mut config = Self::default();
        let of_variables = of_variables(&root);
        let mut fields = Fields::of("", root, faults);
        if let Some(daemon) = fields.nested("daemon") {
            config.daemon = DaemonConfig::read(daemon);
        }
        let clusters = fields.take("clusters");
        let election = fields.take("election");
        let elects = election.is_some();
        let nodes: Vec<Option<Node>> = jobs.iter().map(|job| fields.take(job.key())).collect();
        fields.finish();
        let present: Vec<&'static str> =
            jobs.iter().zip(&nodes).filter(|(_, node)| node.is_some()).map(|(job, _)| job.key()).collect();

        let cluster_names = clusters.as_ref().map(table_keys).unwrap_or_default();
        if let Some(node) = clusters {
            config.clusters = read_clusters(node, faults);
        }
        if let Some(node) = election {
            if let Node::Table(table) = &node {
                check_cluster_is_known(table, "election", "cluster", &cluster_names, faults);
            }
            config.election = Fields::open("election", node, faults).and_then(ElectionConfig::read);
            offer_clusters(faults.iter_mut(), "election.cluster", &cluster_names);
        }
        let tables = jobs.iter().filter(|job| !job.is_list()).map(|job| job.key());
        // A job with one section names it after its key.
        let reserved = tables.map(|key| (key.replace('_', "-"), key)).collect();
        let mut reading = Reading { clusters: &cluster_names, reserved, names: BTreeMap::new(), faults };
        config.jobs = jobs.iter().zip(nodes).map(|(job, node)| job.read(node, &mut reading)).collect();
        for job in &config.jobs {
            let has_others = config.sections().count() > job.names().len();
            let is_alone = !elects && !has_others;
            let (daemon, clusters) = (&config.daemon, &config.clusters);
            let whole = Whole { daemon, clusters, present: &present, is_alone };
            job.check(&whole, faults);
            if whole.is_alone {
                config.election = config.election.take().or_else(|| job.election());
            }
        }
        let default = ClusterName::default();
        if config.jobs.iter().any(|job| job.clusters().contains(&&default)) {
            let inferred = || ClusterConfig::new(ClusterAccess::Inferred);
            config.clusters.entry(default).or_insert_with(inferred);
        }
        name_variables(&of_variables, faults);
        config
    }
}

/// The tables that come from variables alone, each with one of them.
fn of_variables(root: &BTreeMap<String, Node>) -> Vec<(String, String)> {
    let tables = root.iter().flat_map(|(key, node)| match node {
        Node::Table(clusters) if key == "clusters" => {
            clusters.iter().map(|(name, cluster)| (format!("{key}.{name}"), cluster)).collect()
        }
        Node::Table(_) => vec![(key.clone(), node)],
        _ => Vec::new(),
    });
    tables.filter_map(|(table, node)| Some((table, node.variable()?.to_owned()))).collect()
}

/// Whoever has set a variable for another file does not know that it makes a table here, of which the rest is missing.
fn name_variables(of_variables: &[(String, String)], faults: &mut [Fault]) {
    for fault in faults {
        let is_of =
            |table: &str| fault.path.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let Some((table, variable)) = of_variables.iter().find(|(table, _)| is_of(table)) else { continue };
        let allowed = match &mut fault.problem {
            Problem::Missing { allowed } => allowed,
            Problem::Value { found, allowed, .. } if !found.contains("(from ") => allowed,
            _ => continue,
        };
        *allowed = format!("{allowed}; `{table}` is there by variables alone, such as {variable}");
    }
}

/// The clusters without faults. The names of the others are known too, see [`table_keys`].
fn read_clusters(node: Node, faults: &mut Vec<Fault>) -> BTreeMap<ClusterName, ClusterConfig> {
    let mut clusters = BTreeMap::new();
    let Some(table) = fields::table(node, "clusters", faults) else {
        return clusters;
    };
    for (name, node) in table {
        let path = format!("clusters.{name}");
        let parsed_name = ClusterName::read(&Node::Text(name), &path, faults);
        let cluster = Fields::open(&path, node, faults).and_then(ClusterConfig::read);
        if let (Some(name), Some(cluster)) = (parsed_name, cluster) {
            clusters.insert(name, cluster);
        }
    }
    clusters
}

/// What the jobs' readers share: the names in the configuration, and the faults.
#[derive(Debug)]
pub struct Reading<'r> {
    /// The names under `[clusters]`, those with faults included.
    clusters: &'r [String],
    /// Names that no section of a list may have, and the tables that have them.
    reserved: BTreeMap<String, &'static str>,
    /// The path of each section's name so far, of all jobs.
    names: BTreeMap<String, String>,
    faults: &'r mut Vec<Fault>,
}

impl Reading<'_> {
    /// The sections of a list such as `[[sync]]` that have all required keys, with their index in the file;
    /// `cluster_keys`: the keys that name clusters.
    pub fn list<S>(
        &mut self,
        key: &str,
        cluster_keys: &[&str],
        node: Option<Node>,
        read: impl Fn(Fields<'_>) -> Option<S>,
    ) -> Vec<(usize, S)> {
        let nodes = match node {
            None => return Vec::new(),
            Some(Node::List(nodes)) => nodes,
            Some(other) => {
                let allowed = format!("sections `[[{key}]]`");
                let problem = Problem::Value { found: other.to_string(), allowed, suggestion: None };
                self.faults.push(Fault::new(key, problem));
                return Vec::new();
            }
        };
        let mut sections = Vec::new();
        for (index, node) in nodes.into_iter().enumerate() {
            let path = format!("{key}[{index}]");
            if let Node::Table(table) = &node {
                self.check_name(table, &path);
            }
            sections.extend(self.open(&path, cluster_keys, node, &read).map(|section| (index, section)));
        }
        sections
    }

    /// The one section of a table such as `[status_sync]`.
    pub fn table<S>(
        &mut self,
        key: &str,
        cluster_keys: &[&str],
        node: Option<Node>,
        read: impl Fn(Fields<'_>) -> Option<S>,
    ) -> Option<S> {
        self.open(key, cluster_keys, node?, read)
    }

    fn check_name(&mut self, table: &BTreeMap<String, Node>, path: &str) {
        let Some(name) = table.get("name").and_then(Node::text) else { return };
        let path = format!("{path}.name");
        let found = format!("{name:?}");
        if let Some(key) = self.reserved.get(name) {
            let allowed = format!("any other name: this one is kept for `[{key}]`");
            self.faults.push(Fault::new(path.clone(), Problem::Value { found, allowed, suggestion: None }));
        } else if let Some(first) = self.names.get(name) {
            self.faults.push(Fault::new(path, Problem::Duplicate { found, first: first.clone() }));
            return;
        }
        self.names.entry(name.to_owned()).or_insert(path);
    }

    fn open<S>(
        &mut self,
        path: &str,
        cluster_keys: &[&str],
        node: Node,
        read: impl Fn(Fields<'_>) -> Option<S>,
    ) -> Option<S> {
        if let Node::Table(table) = &node {
            for key in cluster_keys {
                check_cluster_is_known(table, path, key, self.clusters, self.faults);
            }
        }
        let before = self.faults.len();
        let section = Fields::open(path, node, self.faults).and_then(read);
        for key in cluster_keys {
            offer_clusters(self.faults.iter_mut().skip(before), &format!("{path}.{key}"), self.clusters);
        }
        section
    }
}

fn check_cluster_is_known(
    table: &BTreeMap<String, Node>,
    path: &str,
    side: &str,
    clusters: &[String],
    faults: &mut Vec<Fault>,
) {
    let Some(node) = table.get(side) else { return };
    // An invalid name is reported where it is read.
    let Some(name) = node.text().filter(|name| name.parse::<ClusterName>().is_ok()) else {
        return;
    };
    if clusters.iter().any(|cluster| cluster == name) {
        return;
    }
    let allowed = allowed_clusters(clusters);
    let suggestion = nearest(name, clusters.iter().map(String::as_str));
    let problem = Problem::Value { found: node.to_string(), allowed, suggestion };
    faults.push(Fault::new(format!("{path}.{side}"), problem));
}

/// Adds the configured clusters to the fault of a section that names none.
fn offer_clusters<'f>(faults: impl Iterator<Item = &'f mut Fault>, path: &str, clusters: &[String]) {
    for fault in faults.filter(|fault| fault.path == path) {
        if let Problem::Missing { allowed } = &mut fault.problem {
            *allowed = allowed_clusters(clusters);
        }
    }
}

fn allowed_clusters(clusters: &[String]) -> String {
    match clusters {
        [] => "a name under `[clusters]`, of which there are none".to_owned(),
        present => format!("a name under `[clusters]`: {}", present.join(", ")),
    }
}

fn table_keys(node: &Node) -> Vec<String> {
    match node {
        Node::Table(table) => table.keys().cloned().collect(),
        _ => Vec::new(),
    }
}
