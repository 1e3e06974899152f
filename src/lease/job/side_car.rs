//! The configuration of a process with one section, from flags and variables instead of a file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::super::config::LeaseConfig;
use super::LeaseSections;
use crate::config::fault::{Error, Fault, Faults, Problem};
use crate::config::fields::Fields;
use crate::config::names::STATUS_SYNC;
use crate::config::setting::Setting;
use crate::config::source::Node;
use crate::config::{ClusterAccess, ClusterConfig, DaemonConfig, ElectionConfig, SectionName};
use crate::job::{Config, Sections};

/// The name of a side-car's only section if the lease's name can't be used.
const SECTION: &str = "lease";
/// The allowed values of a host that is no address.
const ALLOWED_HOST: &str = "an IP address such as \"0.0.0.0\"";

/// The flags and variables of `towline lease`, unparsed; none if not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseFlags {
    /// `--lease-name`
    pub lease_name: Option<String>,
    /// `--lease-namespace`
    pub lease_namespace: Option<String>,
    /// `--hub-kubeconfig-secret`
    pub hub_kubeconfig_secret: Option<String>,
    /// `--lease-duration`, in seconds
    pub lease_duration: Option<String>,
    /// `--startup-delay`, in seconds
    pub startup_delay: Option<String>,
    /// `--metrics-host`
    pub metrics_host: Option<String>,
    /// `--metrics-port`
    pub metrics_port: Option<String>,
    /// `WATCH_NAMESPACE`
    pub watch_namespace: Option<String>,
    /// `POD_NAME`
    pub pod_name: Option<String>,
    /// `POD_NAMESPACE`
    pub pod_namespace: Option<String>,
    /// `--leader-election`
    pub leader_election: bool,
}

/// The key for each flag or variable.
const SOURCES: [(&str, &str); 8] = [
    ("lease_name", "--lease-name"),
    ("lease_namespace", "--lease-namespace"),
    ("secret_name", "--hub-kubeconfig-secret"),
    ("secret_namespace", "WATCH_NAMESPACE"),
    ("pod_name", "POD_NAME"),
    ("pod_namespace", "POD_NAMESPACE"),
    ("duration", "--lease-duration"),
    ("startup_delay", "--startup-delay"),
];

impl LeaseFlags {
    /// The configuration with one `[[lease]]` section. A fault's path is the flag or the variable.
    pub fn config(self) -> Result<Config, Error> {
        let flags = self;
        let mut faults = Vec::new();
        let listen = listen(flags.metrics_host, flags.metrics_port, &mut faults);
        let seconds = [
            ("duration", "--lease-duration", 1, flags.lease_duration),
            ("startup_delay", "--startup-delay", 0, flags.startup_delay),
        ];
        let name = section_name(flags.lease_name.as_deref().unwrap_or_default());
        let texts = [
            ("lease_name", flags.lease_name),
            ("lease_namespace", flags.lease_namespace),
            ("secret_name", flags.hub_kubeconfig_secret),
            ("secret_namespace", flags.watch_namespace),
            ("pod_name", flags.pod_name),
            ("pod_namespace", flags.pod_namespace),
            ("name", Some(name)),
        ];
        let mut table = BTreeMap::new();
        for (key, value) in texts {
            if let Some(value) = value {
                table.insert(key.to_owned(), Node::Text(value));
            }
        }
        for (key, flag, least, value) in seconds {
            let Some(value) = value else { continue };
            if let Some(text) = whole_seconds(&value, least) {
                table.insert(key.to_owned(), Node::Text(text));
            } else {
                faults.push(wrong(flag, &value, format!("a whole number of seconds from {least} to a year")));
            }
        }
        let mut named = Vec::new();
        let section = LeaseConfig::read(Fields::of("", table, &mut named));
        faults.extend(named.into_iter().map(by_flag));
        Faults::new(faults).into_result()?;
        // Without faults there is a section.
        let of_section = |section: &LeaseConfig| (section.cluster.clone(), ClusterConfig::new(ClusterAccess::Inferred));
        let clusters = section.iter().map(of_section).collect();
        let elected = section.as_ref().filter(|_| flags.leader_election);
        let election = elected.map(|section| {
            let namespace = section.pod.as_ref().map_or(&section.secret_namespace, |pod| &pod.namespace);
            ElectionConfig::new(section.cluster.clone(), namespace)
        });
        let daemon = DaemonConfig { listen, ..DaemonConfig::default() };
        let jobs =
            section.into_iter().map(|section| Arc::new(LeaseSections::one(section)) as Arc<dyn Sections>).collect();
        Ok(Config { daemon, clusters, election, jobs })
    }
}

/// The section has the name of the lease, so that side-cars with leader election in one namespace do not conflict; unless its
/// own Lease would then have the name of status sync's.
fn section_name(lease: &str) -> String {
    let label = lease.replace('.', "-");
    let label = if label == STATUS_SYNC { format!("{SECTION}-{label}") } else { label };
    if label.parse::<SectionName>().is_ok() { label } else { SECTION.to_owned() }
}

/// Faults name the flag that the user wrote, not the key.
fn by_flag(fault: Fault) -> Fault {
    let name = SOURCES.iter().find(|(key, _)| *key == fault.path).map_or(fault.path.as_str(), |(_, source)| source);
    let problem = match fault.problem {
        Problem::Missing { .. } if name == "POD_NAME" || name == "POD_NAMESPACE" => {
            Problem::Missing { allowed: "both POD_NAME and POD_NAMESPACE, or none".to_owned() }
        }
        other => other,
    };
    Fault::new(name, problem)
}

fn wrong(source: &str, found: &str, allowed: impl Into<String>) -> Fault {
    Fault::new(source, Problem::Value { found: format!("{found:?}"), allowed: allowed.into(), suggestion: None })
}

/// A number of seconds in the format of the file's durations.
fn whole_seconds(text: &str, least: u64) -> Option<String> {
    let seconds: u64 = text.parse().ok().filter(|seconds| *seconds >= least)?;
    let written = format!("{seconds}s");
    Duration::from_text(&written).is_ok().then_some(written)
}

fn listen(host: Option<String>, port: Option<String>, faults: &mut Vec<Fault>) -> SocketAddr {
    let default = SocketAddr::from(([0, 0, 0, 0], 8384));
    let mut listen = default;
    if let Some(host) = host {
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(address) => listen.set_ip(address),
            Err(_) => faults.push(wrong("--metrics-host", &host, ALLOWED_HOST)),
        }
    }
    if let Some(port) = port {
        match port.parse() {
            Ok(number) => listen.set_port(number),
            Err(_) => faults.push(wrong("--metrics-port", &port, "a port from 0 (any free one) to 65535")),
        }
    }
    listen
}

#[cfg(test)]
mod tests {
    use super::super::sections;
    use super::*;

    fn flags() -> LeaseFlags {
        let text = |text: &str| Some(text.to_owned());
        LeaseFlags {
            lease_name: text("add-on"),
            lease_namespace: text("edge-west"),
            hub_kubeconfig_secret: text("hub-kubeconfig"),
            watch_namespace: text("add-ons"),
            ..LeaseFlags::default()
        }
    }

    fn told(flags: LeaseFlags) -> Vec<String> {
        match flags.config() {
            Err(Error::Invalid(faults)) => faults.as_slice().iter().map(ToString::to_string).collect(),
            other => panic!("faults expected, got {other:?}"),
        }
    }

    #[test]
    fn no_lease_makes_a_section_whose_lease_is_called_as_that_of_status_sync() {
        for (lease, section) in [("add-on", "add-on"), ("add.on", "add-on"), ("status-sync", "lease-status-sync")] {
            let given = LeaseFlags { lease_name: Some(lease.into()), leader_election: true, ..flags() };
            let config = given.config().expect("a configuration");
            assert_eq!(
                (sections(&config)[0].name.as_str(), sections(&config)[0].lease_name.as_str()),
                (section, lease)
            );
        }
    }

    #[test]
    fn flags_make_one_section_on_the_cluster_around() {
        let given = LeaseFlags {
            lease_duration: Some("30".into()),
            startup_delay: Some("0".into()),
            metrics_port: Some("0".into()),
            ..flags()
        };
        let config = given.config().expect("a configuration");
        assert_eq!(config.daemon.listen, "0.0.0.0:0".parse().expect("an address"));
        assert_eq!(
            config.clusters.values().map(|cluster| &cluster.access).collect::<Vec<_>>(),
            [&ClusterAccess::Inferred]
        );
        let section = &sections(&config)[0];
        assert_eq!((section.duration, section.renew_interval), (Duration::from_secs(30), Duration::from_secs(10)));
        assert_eq!((section.startup_delay, section.secret_namespace.as_str()), (Duration::ZERO, "add-ons"));
        assert_eq!((section.name.as_str(), &config.election), ("add-on", &None));
        let config = LeaseFlags { leader_election: true, ..flags() }.config().expect("a configuration");
        let election = config.election.expect("an election");
        assert_eq!((election.cluster.as_str(), election.namespace.as_str()), ("default", "add-ons"));
        assert_eq!(config.daemon.listen, "0.0.0.0:8384".parse().expect("an address"));
        let (pod_name, pod_namespace) = (Some("add-on-0".into()), Some("pods".into()));
        let beside_a_pod = LeaseFlags { leader_election: true, pod_name, pod_namespace, ..flags() };
        let election = beside_a_pod.config().expect("a configuration").election.expect("an election");
        assert_eq!(election.namespace, "pods");
    }

    #[test]
    fn every_fault_names_the_flag_or_variable_that_has_it() {
        let all = LeaseFlags {
            lease_name: Some(String::new()),
            lease_duration: Some("0".into()),
            startup_delay: Some("soon".into()),
            metrics_host: Some("everywhere".into()),
            metrics_port: Some("70000".into()),
            watch_namespace: None,
            pod_name: Some("add-on-0".into()),
            ..flags()
        };
        let told = told(all);
        for source in [
            "--lease-name: found \"\"",
            "--lease-duration: found \"0\"; allowed: a whole number of seconds from 1 ",
            "--startup-delay: found \"soon\"",
            "--metrics-host: found \"everywhere\"",
            "--metrics-port: found \"70000\"",
            "WATCH_NAMESPACE: missing",
            "POD_NAMESPACE: missing; allowed: both POD_NAME and POD_NAMESPACE, or none",
        ] {
            assert!(told.iter().any(|fault| fault.starts_with(source)), "{source} in {told:?}");
        }
        assert_eq!(told.len(), 7, "{told:?}");
    }
}
