//! `[election]`: replicas of one daemon divide its sections among themselves.

use std::time::Duration;

use super::fault::Problem;
use super::fields::Fields;
use super::names::ClusterName;
use super::setting::{PositiveDuration, Setting, Unfit, read_duration};
use super::source::Node;

/// Leases count whole seconds. With less than two, a claim would expire within the safety margin of a request.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);
/// A longer duration is a typing error: if a replica dies, its sections stop for that long.
const LONGEST_LEASE: Duration = Duration::from_hours(1);
const LONGEST_IDENTITY: usize = 200;

/// How replicas divide the sections: `[election]`. Without it, every section runs in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// The cluster of the Leases. Choose a near one: if it does not answer for longer than `lease_duration`, no section
    /// runs.
    pub cluster: ClusterName,
    /// Namespace of the Leases; it must exist. All replicas of one daemon use the same, and daemons with different sections
    /// may share one.
    pub namespace: String,
    /// How long a lease is valid without renewal, in whole seconds; `15s` by default. The sections of a dead replica stop
    /// for that long. If it is shorter than a restart of the API server, each restart changes the holders.
    pub lease_duration: Duration,
    /// How often a lease is renewed; `5s` by default. At most half of `lease_duration`, so that one lost request does no
    /// harm.
    pub renew_interval: Duration,
    /// The name of this replica in the Leases; the host name and a random suffix by default. It must be unique among all
    /// processes.
    pub identity: Option<String>,
}

impl ElectionConfig {
    /// An election with the defaults.
    pub fn new(cluster: ClusterName, namespace: impl Into<String>) -> Self {
        Self {
            cluster,
            namespace: namespace.into(),
            lease_duration: Duration::from_secs(15),
            renew_interval: Duration::from_secs(5),
            identity: None,
        }
    }

    /// None if a required key has a fault.
    pub fn read(mut fields: Fields<'_>) -> Option<Self> {
        let cluster = fields.required("cluster");
        let namespace = fields.required::<Namespace>("namespace");
        let complete = cluster.is_some() && namespace.is_some();
        let namespace = namespace.map(|Namespace(name)| name).unwrap_or_default();
        let mut election = Self::new(cluster.unwrap_or_else(ClusterName::stand_in), namespace);
        let before = fields.faults();
        fields.set_as::<LeaseDuration, _>("lease_duration", &mut election.lease_duration);
        fields.set_as::<PositiveDuration, _>("renew_interval", &mut election.renew_interval);
        let are_known = fields.faults() == before;
        election.identity = fields.optional::<Identity>("identity").map(|Identity(identity)| identity);
        if are_known && election.renew_interval * 2 > election.lease_duration {
            let found = format!(
                "a renew_interval of {} beside a lease_duration of {}",
                humantime::format_duration(election.renew_interval),
                humantime::format_duration(election.lease_duration)
            );
            let allowed = "a renew_interval of at most half the lease_duration".to_owned();
            fields.fault(Problem::Value { found, allowed, suggestion: None });
        }
        fields.finish();
        complete.then_some(election)
    }
}

struct Namespace(String);

impl Setting for Namespace {
    const ALLOWED: &'static str = "the name of a namespace";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        if super::names::is_label(text) { Ok(Self(text.to_owned())) } else { Err(Unfit::default()) }
    }
}

struct LeaseDuration(Duration);

impl Setting for LeaseDuration {
    const ALLOWED: &'static str = "a duration of whole seconds from 2s to 1h";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let duration = Duration::from_text(text)?;
        let is_whole = duration.subsec_nanos() == 0;
        if is_whole && (SHORTEST_LEASE..=LONGEST_LEASE).contains(&duration) {
            Ok(Self(duration))
        } else {
            Err(Unfit::default())
        }
    }

    fn read(node: &Node, path: &str, faults: &mut Vec<super::Fault>) -> Option<Self> {
        read_duration(node, path, faults)
    }
}

impl From<LeaseDuration> for Duration {
    fn from(duration: LeaseDuration) -> Self {
        duration.0
    }
}

struct Identity(String);

impl Setting for Identity {
    const ALLOWED: &'static str = "1 to 200 of a-z, A-Z, 0-9, -, _ and ., beginning and ending with a letter or digit";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let is_end = |end: char| end.is_ascii_alphanumeric();
        let fits = text.len() <= LONGEST_IDENTITY
            && text.chars().all(|character| is_end(character) || "-_.".contains(character))
            && text.starts_with(is_end)
            && text.ends_with(is_end);
        if fits { Ok(Self(text.to_owned())) } else { Err(Unfit::default()) }
    }
}
