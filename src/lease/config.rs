//! `[[lease]]`: a Lease on a hub that is renewed while a pod is ready.

use std::time::Duration;

use crate::config::fault::{Fault, Problem};
use crate::config::fields::Fields;
use crate::config::setting::{
    LeaseName, NamespaceName, PodName, PositiveDuration, SecretName, Setting, Unfit, read_duration,
};
use crate::config::source::Node;
use crate::config::{ClusterName, SectionName};

/// A Lease on a hub that is renewed while a pod is ready: `[[lease]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Name of the section, unique among all sections.
    pub name: SectionName,
    /// The managed cluster, where the secret and the pod are. If none is named: `[clusters.default]` if that is
    /// configured, else the cluster that the daemon runs in, else the one that kubectl would use.
    pub cluster: ClusterName,
    /// The Lease on the hub.
    pub lease_name: String,
    /// Its namespace on the hub, which must exist.
    pub lease_namespace: String,
    /// The Secret on the managed cluster that holds the hub's kubeconfig and what it refers to.
    pub secret_name: String,
    pub secret_namespace: String,
    /// The pod whose readiness gates the lease; without one it is always ready.
    pub pod: Option<PodConfig>,
    /// `leaseDurationSeconds`: whole seconds, at least one; `60s` by default. With a shorter one a dead add-on is noticed
    /// sooner, and a slow hub makes a living one look dead.
    pub duration: Duration,
    /// How often the lease is renewed; a third of `duration` by default, and always less than it.
    pub renew_interval: Duration,
    /// How long the section waits after the start of the process before its first action; `10s` by default.
    pub startup_delay: Duration,
}

/// A pod on the managed cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodConfig {
    pub name: String,
    pub namespace: String,
}

impl LeaseConfig {
    pub const DEFAULT_DURATION: Duration = Duration::from_mins(1);
    pub const DEFAULT_STARTUP_DELAY: Duration = Duration::from_secs(10);

    /// None if a required key has a fault. Other keys with a fault have their default.
    pub fn read(mut fields: Fields<'_>) -> Option<Self> {
        let name = fields.required("name");
        let cluster: Option<ClusterName> = fields.optional("cluster");
        let lease_name = fields.required::<LeaseName>("lease_name");
        let lease_namespace = fields.required::<NamespaceName>("lease_namespace");
        let secret_name = fields.required::<SecretName>("secret_name");
        let secret_namespace = fields.required::<NamespaceName>("secret_namespace");
        let pod = read_pod(&mut fields);
        let before = fields.faults();
        let mut duration = Self::DEFAULT_DURATION;
        fields.set_as::<WholeSeconds, _>("duration", &mut duration);
        let mut startup_delay = Self::DEFAULT_STARTUP_DELAY;
        fields.set("startup_delay", &mut startup_delay);
        let mut renew_interval = duration / 3;
        fields.set_as::<PositiveDuration, _>("renew_interval", &mut renew_interval);
        // A default in the place of a faulty value is in nobody's file.
        if fields.faults() == before && renew_interval >= duration {
            let found = format!("{:?}", humantime::format_duration(renew_interval).to_string());
            let allowed = format!("less than `duration`, which is {}", humantime::format_duration(duration));
            fields.fault_at("renew_interval", Problem::Value { found, allowed, suggestion: None });
        }
        fields.finish();
        Some(Self {
            name: name?,
            cluster: cluster.unwrap_or_default(),
            lease_name: lease_name?.into(),
            lease_namespace: lease_namespace?.into(),
            secret_name: secret_name?.into(),
            secret_namespace: secret_namespace?.into(),
            pod,
            duration,
            renew_interval,
            startup_delay,
        })
    }
}

/// The pod: both keys or neither.
fn read_pod(fields: &mut Fields<'_>) -> Option<PodConfig> {
    let given = [fields.has("pod_name"), fields.has("pod_namespace")];
    let name = fields.optional::<PodName>("pod_name");
    let namespace = fields.optional::<NamespaceName>("pod_namespace");
    let allowed = |other: &str| format!("both `pod_name` and `pod_namespace`, or none; `{other}` is there");
    match given {
        [true, false] => fields.fault_at("pod_namespace", Problem::Missing { allowed: allowed("pod_name") }),
        [false, true] => fields.fault_at("pod_name", Problem::Missing { allowed: allowed("pod_namespace") }),
        _ => {}
    }
    Some(PodConfig { name: name?.into(), namespace: namespace?.into() })
}

/// The range of `leaseDurationSeconds`.
struct WholeSeconds(Duration);

impl Setting for WholeSeconds {
    const ALLOWED: &'static str = "whole seconds, from \"1s\" to a year";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let duration = Duration::from_text(text)?;
        let is_whole = duration.subsec_nanos() == 0 && !duration.is_zero();
        if is_whole { Ok(Self(duration)) } else { Err(Unfit::default()) }
    }

    fn read(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        read_duration(node, path, faults)
    }
}

impl From<WholeSeconds> for Duration {
    fn from(seconds: WholeSeconds) -> Self {
        seconds.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn read(changes: &[(&str, Option<&str>)]) -> Result<LeaseConfig, Vec<String>> {
        let mut table: BTreeMap<String, Node> = [
            ("name", "heartbeat"),
            ("lease_name", "add-on"),
            ("lease_namespace", "edge-west"),
            ("secret_name", "hub-kubeconfig"),
            ("secret_namespace", "add-ons"),
        ]
        .map(|(key, value)| (key.to_owned(), Node::Text(value.to_owned())))
        .into();
        for (key, value) in changes {
            match value {
                Some(value) => table.insert((*key).to_owned(), Node::Text((*value).to_owned())),
                None => table.remove(*key),
            };
        }
        let mut faults = Vec::new();
        let read = LeaseConfig::read(Fields::of("lease[0]", table, &mut faults));
        let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
        read.filter(|_| told.is_empty()).ok_or(told)
    }

    #[test]
    fn the_interval_is_a_third_of_the_duration_unless_told() {
        let config = read(&[]).expect("the required keys are enough");
        assert_eq!((config.duration, config.renew_interval), (Duration::from_mins(1), Duration::from_secs(20)));
        assert_eq!((config.startup_delay, config.pod), (Duration::from_secs(10), None));
        assert_eq!(config.cluster.as_str(), "default");
        let config = read(&[("duration", Some("3s"))]).expect("a duration");
        assert_eq!(config.renew_interval, Duration::from_secs(1));
        let config = read(&[("duration", Some("3s")), ("renew_interval", Some("2s"))]).expect("an interval");
        assert_eq!(config.renew_interval, Duration::from_secs(2));
    }

    #[test]
    fn a_duration_is_whole_seconds_and_longer_than_the_interval() {
        for wrong in ["0s", "500ms", "1500ms", "60", "2y"] {
            let told = read(&[("duration", Some(wrong))]).expect_err(wrong);
            assert!(told[0].contains("whole seconds, from \"1s\" to a year"), "{told:?}");
            // Not compared with the default.
            let told = read(&[("duration", Some(wrong)), ("renew_interval", Some("90s"))]).expect_err(wrong);
            assert_eq!(told.len(), 1, "{told:?}");
        }
        assert!(read(&[("duration", Some("60"))]).expect_err("no unit")[0].ends_with("did you mean `60s`?"));
        let told = read(&[("duration", Some("5s")), ("renew_interval", Some("5s"))]).expect_err("as long");
        assert_eq!(told, ["lease[0].renew_interval: found \"5s\"; allowed: less than `duration`, which is 5s"]);
        assert!(read(&[("renew_interval", Some("0s"))]).is_err());
    }

    #[test]
    fn a_pod_has_a_name_and_a_namespace() {
        let told = read(&[("pod_name", Some("add-on-0"))]).expect_err("half a pod");
        assert_eq!(
            told,
            [
                "lease[0].pod_namespace: missing; allowed: both `pod_name` and `pod_namespace`, or none; `pod_name` is there"
            ]
        );
        let config = read(&[("pod_name", Some("add-on-0")), ("pod_namespace", Some("n"))]).expect("a pod");
        assert_eq!(config.pod, Some(PodConfig { name: "add-on-0".into(), namespace: "n".into() }));
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let told = read(&[
            ("lease_name", None),
            ("lease_namespace", Some("Edge")),
            ("secret_nam", Some("x")),
            ("secret_namespace", Some("")),
        ])
        .expect_err("four faults");
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told.iter().any(|fault| fault.contains("did you mean `secret_name`?")), "{told:?}");
    }
}
