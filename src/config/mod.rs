//! The configuration: one TOML file, the environment over it, and every fault of both at once.
//!
//! [`Config::load`] reads the file and lays variables over it (`source`), walks the tables key by key into one struct
//! a section (`fields`; `daemon`, `clusters`, `election`, `sync`, `lease`), and checks the sections against each other
//! (`overlap`). Each step records [`Fault`]s and goes on, so that whoever writes a file learns of all of them in one go: where, what was
//! found, what is allowed, and what was probably meant.
//!
//! `TOWLINE__DAEMON__LISTEN` sets `daemon.listen`, `TOWLINE__CLUSTERS__EU_WEST__KUBECONFIG` sets it for the cluster
//! `eu-west`, and `TOWLINE__SYNC__MY_DATABASES__DRY_RUN` for the `[[sync]]` section named `my-databases`
//! (`TOWLINE__LEASE__…` likewise): variables reach sections that the file has, and never make a new one. Lists are separated by commas there.
//!
//! Nothing here is secret: tokens and kubeconfigs are named by their files.

mod alone;
mod clusters;
mod daemon;
mod election;
mod fault;
mod fields;
mod lease;
mod names;
mod overlap;
mod pointer;
mod resource;
mod selector;
mod setting;
mod side_car;
mod source;
mod status_sync;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;

pub use clusters::{ClusterAccess, ClusterConfig};
pub use daemon::{DaemonConfig, LogConfig, LogFormat};
pub use election::ElectionConfig;
pub use fault::{Error, Fault, Faults, Problem};
pub use lease::{LeaseConfig, PodConfig};
pub use names::{ClusterName, InvalidName, SectionName};
pub use overlap::Scope;
pub use pointer::{KeyPattern, SpecPointer};
pub use resource::{InvalidResource, ResourceId};
pub use selector::LabelSelector;
pub use side_car::LeaseFlags;
pub use status_sync::{StatusFamily, StatusSyncConfig};

pub use crate::db::DatabaseSource;
pub use sync::{Adopt, Metadata, PropagationPolicy, SyncConfig, Unclaimed};

use fault::nearest;
use fields::Fields;
use setting::Setting;
use source::Node;

/// Enough to hide the latency of a far cluster (64 × 10 requests a second at 100 ms), and far below what an API
/// server admits at once (600 by default).
const DEFAULT_MAX_IN_FLIGHT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// What is told of a configuration without sections.
pub const NOTHING_RUNS: &str =
    "nothing will run: the configuration has no section; there can be [[sync]], [[lease]] and [status_sync]";

/// Everything that a daemon is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `[daemon]`: the process itself.
    pub daemon: DaemonConfig,
    /// `[clusters.<name>]`: the clusters that sections refer to.
    pub clusters: BTreeMap<ClusterName, ClusterConfig>,
    /// `[election]`: replicas share the sections out. None: all sections run here.
    pub election: Option<ElectionConfig>,
    /// `[[sync]]`, in the order of the file.
    pub sync: Vec<SyncConfig>,
    /// `[[lease]]`, in the order of the file.
    pub lease: Vec<LeaseConfig>,
    /// `[status_sync]`, where there is one.
    pub status_sync: Option<StatusSyncConfig>,
}

impl Config {
    /// Reads a file with the environment of this process over it.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&text, environment())
    }

    /// The names of all sections, of whichever job.
    pub fn sections(&self) -> impl Iterator<Item = &SectionName> {
        let sync = self.sync.iter().map(|section| &section.name);
        let status_sync = self.status_sync.iter().map(|section| &section.name);
        sync.chain(self.lease.iter().map(|section| &section.name)).chain(status_sync)
    }

    /// Reads a TOML text with the given variables over it.
    pub fn parse(text: &str, environment: impl IntoIterator<Item = (String, String)>) -> Result<Self, Error> {
        let mut faults = Vec::new();
        let root = source::read(text, environment, &mut faults)?;
        let config = Self::walk(root, &mut faults);
        Faults::new(faults).into_result()?;
        Ok(config)
    }

    /// Whether two names lead to one cluster, as far as the configuration says.
    pub fn is_same_cluster(&self, left: &ClusterName, right: &ClusterName) -> bool {
        overlap::same_cluster(left, right, &self.clusters)
    }

    /// What is wrong between sections, now that discovery has told which kinds have namespaces.
    ///
    /// [`Config::parse`] assumes that all have: two sections that differ by namespace only and whose kind turns out to
    /// be cluster-scoped are told apart by nothing.
    pub fn conflicts(&self, scope: impl Fn(&SyncConfig) -> Scope) -> Faults {
        let sections: Vec<(usize, SyncConfig)> = self.sync.iter().cloned().enumerate().collect();
        Faults::new(overlap::conflicts(&sections, &self.clusters, scope))
    }

    fn walk(root: BTreeMap<String, Node>, faults: &mut Vec<Fault>) -> Self {
        let mut config = Self::default();
        let mut fields = Fields::of("", root, faults);
        if let Some(daemon) = fields.nested("daemon") {
            config.daemon = DaemonConfig::read(daemon);
        }
        let clusters = fields.take("clusters");
        let election = fields.take("election");
        let elects = election.is_some();
        let sync = fields.take("sync");
        let lease = fields.take("lease");
        let status_sync = fields.take("status_sync");
        fields.finish();

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
        let mut names = BTreeMap::new();
        let sync = SectionList { job: "sync", clusters: &["remote", "local"], known: &cluster_names }.read(
            sync,
            &mut names,
            faults,
            SyncConfig::read,
        );
        let lease = SectionList { job: "lease", clusters: &["cluster"], known: &cluster_names }.read(
            lease,
            &mut names,
            faults,
            LeaseConfig::read,
        );
        if config.election.is_some() {
            check_names_of_elected(&names, faults);
        }
        check_former_names(&sync, &names, faults);
        check_leases(&lease, &config.clusters, faults);
        faults.extend(overlap::conflicts(&sync, &config.clusters, |_| Scope::Namespaced));
        config.sync = sync.into_iter().map(|(_, section)| section).collect();
        config.lease = lease.into_iter().map(|(_, section)| section).collect();
        if let Some(node) = status_sync {
            if let Node::Table(table) = &node {
                check_cluster_is_known(table, "status_sync", "cluster", &cluster_names, faults);
            }
            config.status_sync = Fields::open("status_sync", node, faults).and_then(StatusSyncConfig::read);
        }
        let is_alone = !elects && config.sync.is_empty() && config.lease.is_empty();
        config.election = config.election.take().or(elect_alone(config.status_sync.as_ref(), is_alone, faults));
        let default = ClusterName::default();
        let mut hubs = config.lease.iter().map(|section| &section.cluster);
        if hubs.any(|cluster| *cluster == default)
            || config.status_sync.as_ref().is_some_and(|section| section.cluster == default)
        {
            let inferred = || ClusterConfig::new(ClusterAccess::Inferred);
            config.clusters.entry(default).or_insert_with(inferred);
        }
        config
    }
}

/// The environment of this process. A name that is not text is none of ours, and a value that is not text gets a fault as
/// the wrong value it is.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
}

/// The clusters without faults. A faulty one is still known by name, see [`table_keys`].
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

/// The sections of one job: `[[sync]]`.
struct SectionList<'c> {
    /// The job.
    job: &'static str,
    /// Its keys that name clusters.
    clusters: &'static [&'static str],
    /// The clusters that there are.
    known: &'c [String],
}

impl SectionList<'_> {
    /// The sections whose required keys are there, with their index in the file. `names` holds the path of each name of
    /// all jobs so far.
    fn read<S>(
        &self,
        node: Option<Node>,
        names: &mut BTreeMap<String, String>,
        faults: &mut Vec<Fault>,
        read: impl Fn(Fields<'_>) -> Option<S>,
    ) -> Vec<(usize, S)> {
        let nodes = match node {
            None => return Vec::new(),
            Some(Node::List(nodes)) => nodes,
            Some(other) => {
                let allowed = format!("sections `[[{}]]`", self.job);
                let problem = Problem::Value { found: other.to_string(), allowed, suggestion: None };
                faults.push(Fault::new(self.job, problem));
                return Vec::new();
            }
        };
        let mut sections = Vec::new();
        for (index, node) in nodes.into_iter().enumerate() {
            let path = format!("{}[{index}]", self.job);
            if let Node::Table(table) = &node {
                check_name_is_new(table, &path, names, faults);
                for key in self.clusters {
                    check_cluster_is_known(table, &path, key, self.known, faults);
                }
            }
            let before = faults.len();
            if let Some(section) = Fields::open(&path, node, faults).and_then(&read) {
                sections.push((index, section));
            }
            for key in self.clusters {
                offer_clusters(faults.iter_mut().skip(before), &format!("{path}.{key}"), self.known);
            }
        }
        sections
    }
}

fn check_name_is_new(
    table: &BTreeMap<String, Node>,
    path: &str,
    names: &mut BTreeMap<String, String>,
    faults: &mut Vec<Fault>,
) {
    let Some(name) = table.get("name").and_then(Node::text) else {
        return;
    };
    let path = format!("{path}.name");
    match names.get(name) {
        Some(first) => {
            let problem = Problem::Duplicate { found: format!("{name:?}"), first: first.clone() };
            faults.push(Fault::new(path, problem));
        }
        None => drop(names.insert(name.to_owned(), path)),
    }
}

/// `names` holds the path of each.
fn check_names_of_elected(names: &BTreeMap<String, String>, faults: &mut Vec<Fault>) {
    let prefix = election::OF_REPLICAS;
    for (name, path) in names.iter().filter(|(name, _)| name.starts_with(prefix)) {
        let allowed =
            format!("a name that does not begin with `{prefix}`, as the Leases of replicas do beside `[election]`");
        let problem = Problem::Value { found: format!("{name:?}"), allowed, suggestion: None };
        faults.push(Fault::new(path.clone(), problem));
    }
}

/// A former name must not be the name of another section, nor a former one of it: the marks of that section would count as
/// this one's.
fn check_former_names(sync: &[(usize, SyncConfig)], names: &BTreeMap<String, String>, faults: &mut Vec<Fault>) {
    let mut seen: BTreeMap<&str, String> = BTreeMap::new();
    for (index, section) in sync {
        for (position, former) in section.former_names.iter().enumerate() {
            let path = format!("sync[{index}].former_names[{position}]");
            let found = format!("{:?}", former.as_str());
            if let Some(holder) = names.get(former.as_str()) {
                let allowed = format!("a name that no section has ({holder} is called so)");
                faults.push(Fault::new(path.clone(), Problem::Value { found, allowed, suggestion: None }));
            } else if let Some(first) = seen.get(former.as_str()) {
                faults.push(Fault::new(path.clone(), Problem::Duplicate { found, first: first.clone() }));
            }
            seen.entry(former.as_str()).or_insert(path);
        }
    }
}

/// Two sections must not renew one Lease. As far as can be seen: two Secrets may lead to one hub.
fn check_leases(
    lease: &[(usize, LeaseConfig)],
    clusters: &BTreeMap<ClusterName, ClusterConfig>,
    faults: &mut Vec<Fault>,
) {
    for (position, (index, section)) in lease.iter().enumerate() {
        let is_same = |other: &LeaseConfig| {
            overlap::same_cluster(&other.cluster, &section.cluster, clusters)
                && (&other.secret_namespace, &other.secret_name) == (&section.secret_namespace, &section.secret_name)
                && (&other.lease_namespace, &other.lease_name) == (&section.lease_namespace, &section.lease_name)
        };
        if let Some((first, _)) = lease.iter().take(position).find(|(_, other)| is_same(other)) {
            let found =
                format!("Lease {}/{} on the hub of the same Secret", section.lease_namespace, section.lease_name);
            let problem = Problem::Duplicate { found, first: format!("lease[{first}].lease_name") };
            faults.push(Fault::new(format!("lease[{index}].lease_name"), problem));
        }
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
    // A name that is none is told where it is read.
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

/// The election of a daemon that does status sync alone.
fn elect_alone(section: Option<&StatusSyncConfig>, is_alone: bool, faults: &mut Vec<Fault>) -> Option<ElectionConfig> {
    let section = section?;
    let namespace = section.election_namespace.as_ref()?;
    if is_alone {
        return Some(ElectionConfig::new(section.cluster.clone(), namespace));
    }
    let allowed = "only without other sections and without `[election]`, which has a namespace of its own".to_owned();
    let problem = Problem::Value { found: format!("{namespace:?}"), allowed, suggestion: None };
    faults.push(Fault::new("status_sync.election_namespace", problem));
    None
}

/// A missing cluster is told with those that there are.
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
