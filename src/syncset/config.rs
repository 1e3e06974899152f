//! The section `[syncsets]`.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::cluster::kubeconfig::Allowed;
use crate::config::SectionName;
use crate::config::fields::Fields;
use crate::config::setting::{PositiveDuration, Setting, Unfit, one_of};
use crate::http::{DeniedNetworks, Network, NotANetwork};

pub const SYNCSETS: &str = "syncsets";

const REAPPLY_INTERVAL: Duration = Duration::from_hours(2);
const MAX_IN_FLIGHT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncsetsConfig {
    pub name: SectionName,
    /// Between full passes of a cluster; `2h` by default.
    pub reapply_interval: Duration,
    /// Most clusters of one namespace that this replica works on at once; 64 by default. Of several together, a quarter more.
    pub max_in_flight: NonZeroUsize,
    /// Deadline of one request to a cluster; `10s` by default.
    pub request_timeout: Duration,
    /// Whether deletions on many clusters are suspended until somebody approves them; `true` by default.
    pub mass_delete_guard: bool,
    /// Networks that no kubeconfig may lead to, beside what is local to a machine and metadata services of clouds; none by default.
    pub deny_networks: Vec<Network>,
    /// Whether kubeconfigs may lead to what is local to a machine; `false` by default.
    pub allows_local: bool,
    /// What kubeconfigs may use although it is refused by default; nothing by default.
    pub allowed: Allowed,
    /// Whether several documents of a namespace may lead to one cluster; `false` by default.
    pub allows_duplicates: bool,
}

impl Default for SyncsetsConfig {
    fn default() -> Self {
        Self {
            name: SectionName::of_table(SYNCSETS),
            reapply_interval: REAPPLY_INTERVAL,
            max_in_flight: MAX_IN_FLIGHT,
            request_timeout: REQUEST_TIMEOUT,
            mass_delete_guard: true,
            deny_networks: Vec::new(),
            allows_local: false,
            allowed: Allowed::default(),
            allows_duplicates: false,
        }
    }
}

impl SyncsetsConfig {
    pub fn read(mut fields: Fields<'_>) -> Self {
        let mut section = Self::default();
        fields.set_as::<PositiveDuration, _>("reapply_interval", &mut section.reapply_interval);
        fields.set("max_in_flight", &mut section.max_in_flight);
        fields.set_as::<PositiveDuration, _>("request_timeout", &mut section.request_timeout);
        fields.set("mass_delete_guard", &mut section.mass_delete_guard);
        fields.set("deny_networks", &mut section.deny_networks);
        if let Some(features) = fields.optional::<Vec<Feature>>("allow") {
            let has = |feature| features.contains(&feature);
            section.allowed = Allowed {
                insecure_tls: has(Feature::InsecureTls),
                proxy_url: has(Feature::ProxyUrl),
                plain_http: has(Feature::PlainHttp),
            };
            section.allows_duplicates = has(Feature::Duplicates);
            section.allows_local = has(Feature::LocalNetworks);
        }
        fields.finish();
        section
    }

    /// All networks that no kubeconfig may lead to.
    pub fn denied(&self) -> DeniedNetworks {
        if self.allows_local {
            self.deny_networks.iter().copied().collect()
        } else {
            DeniedNetworks::and_local(&self.deny_networks)
        }
    }

    /// What is no fault, and lets people reach more than an operator may have thought of.
    pub fn warning(&self) -> Option<String> {
        self.deny_networks.is_empty().then(|| {
            "syncsets.deny_networks: it is empty, so kubeconfigs may lead to all private networks, the hub's among them; add those that no \
             cluster is in"
                .to_owned()
        })
    }
}

/// What a kubeconfig may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feature {
    InsecureTls,
    ProxyUrl,
    PlainHttp,
    LocalNetworks,
    Duplicates,
}

impl Setting for Feature {
    const ALLOWED: &'static str = "insecure-tls, proxy-url, plain-http, local-networks, duplicates";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let words = [
            ("insecure-tls", Self::InsecureTls),
            ("proxy-url", Self::ProxyUrl),
            ("plain-http", Self::PlainHttp),
            ("local-networks", Self::LocalNetworks),
            ("duplicates", Self::Duplicates),
        ];
        one_of(text, &words)
    }
}

impl Setting for Network {
    const ALLOWED: &'static str = "a network in CIDR notation such as \"10.0.0.0/8\" or \"fd00::/8\"";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        text.parse().map_err(|wrong: NotANetwork| Unfit {
            reason: Some(wrong.to_string()),
            suggestion: wrong.meant().map(|network| network.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::source::Node;

    fn read(keys: &[(&str, Node)]) -> (SyncsetsConfig, Vec<String>) {
        let table: BTreeMap<String, Node> =
            keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let mut faults = Vec::new();
        let section = SyncsetsConfig::read(Fields::of(SYNCSETS, table, &mut faults));
        (section, faults.iter().map(ToString::to_string).collect())
    }

    fn text(text: &str) -> Node {
        Node::Text(text.to_owned())
    }

    fn list(elements: &[&str]) -> Node {
        Node::List(elements.iter().map(|element| text(element)).collect())
    }

    fn denies(section: &SyncsetsConfig, address: &str) -> bool {
        section.denied().denying(address.parse().expect("an address")).is_some()
    }

    #[test]
    fn an_empty_section_has_all_defaults() {
        let (section, faults) = read(&[]);
        assert_eq!((section.clone(), faults), (SyncsetsConfig::default(), Vec::new()));
        assert!(section.warning().is_some_and(|warning| warning.starts_with("syncsets.deny_networks: ")));
        assert_eq!(read(&[("deny_networks", list(&["10.0.0.0/8"]))]).0.warning(), None);
        assert_eq!((section.reapply_interval, section.max_in_flight.get()), (Duration::from_hours(2), 64));
        assert_eq!((section.request_timeout, section.mass_delete_guard), (Duration::from_secs(10), true));
        for address in ["127.0.0.1", "169.254.169.254", "100.100.100.200", "fd00:ec2::23", "0.0.0.0", "::1", "fe80::1"]
        {
            assert!(denies(&section, address), "{address}");
        }
        assert!(!denies(&section, "10.0.0.1"));
    }

    #[test]
    fn every_key_is_read() {
        let (section, faults) = read(&[
            ("reapply_interval", text("90s")),
            ("max_in_flight", Node::Integer(3)),
            ("request_timeout", text("2s")),
            ("mass_delete_guard", Node::Bool(false)),
            ("deny_networks", list(&["10.0.0.0/8"])),
            ("allow", list(&["proxy-url", "duplicates", "local-networks"])),
        ]);
        assert_eq!(faults, Vec::<String>::new());
        assert_eq!((section.reapply_interval, section.max_in_flight.get()), (Duration::from_secs(90), 3));
        assert_eq!((section.request_timeout, section.mass_delete_guard), (Duration::from_secs(2), false));
        assert_eq!(section.allowed, Allowed { insecure_tls: false, proxy_url: true, plain_http: false });
        assert!(section.allows_duplicates);
        assert!(denies(&section, "10.0.0.1") && !denies(&section, "127.0.0.1"));
        // It takes more than a list to let kubeconfigs lead to this machine.
        let (section, _) = read(&[("deny_networks", list(&["10.0.0.0/8"]))]);
        assert!(denies(&section, "10.0.0.1") && denies(&section, "127.0.0.1"));
    }

    #[test]
    fn every_fault_is_reported() {
        let (_, faults) = read(&[
            ("reapply_interval", text("0s")),
            ("deny_networks", list(&["10.0.0.1", "10.0.0.1/8"])),
            ("allow", list(&["insecure_tls"])),
            ("deny_network", list(&[])),
        ]);
        let all = faults.join("\n");
        for fault in [
            "syncsets.reapply_interval: found \"0s\"",
            "syncsets.deny_networks[0]: found \"10.0.0.1\", where the prefix is missing; allowed: a network in CIDR notation \
             such as \"10.0.0.0/8\" or \"fd00::/8\"; did you mean `10.0.0.1/32`?",
            "syncsets.deny_networks[1]: found \"10.0.0.1/8\", where bits behind the prefix are set; allowed: ",
            "syncsets.allow[0]: found \"insecure_tls\"; allowed: insecure-tls, proxy-url, plain-http, local-networks, duplicates; did you mean `insecure-tls`?",
            "syncsets.deny_network: unknown key; did you mean `deny_networks`?",
        ] {
            assert!(all.contains(fault), "no {fault} in {all}");
        }
        assert_eq!(faults.len(), 5, "{all}");
    }
}
