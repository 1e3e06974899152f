//! `towline status-sync`: the configuration of the job alone, from the environment of the hub-of-hubs component.

use std::time::Duration;

use super::fault::{Fault, Faults, Problem};
use super::setting::Setting;
use super::{ClusterAccess, ClusterConfig, ClusterName, Config, DatabaseSource, ElectionConfig, StatusSyncConfig};
use crate::db::DatabaseUrl;

/// Where the admin server listens: the component's port, for the cluster's Prometheus and probes.
const LISTEN: ([u8; 4], u16) = ([0, 0, 0, 0], 8384);

impl Config {
    /// The configuration of status sync alone: `DATABASE_URL`, `HOH_STATUS_SYNC_INTERVAL` (a Go duration),
    /// `WATCH_NAMESPACE`, and `POD_NAMESPACE`, which names the namespace of the Lease. The hub is the cluster that the
    /// process runs in, or else what kubectl would use.
    pub fn status_sync_alone(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Faults> {
        let mut faults = Vec::new();
        let mut fault = |name: &str, found: Option<String>, allowed: &str| {
            let allowed = allowed.to_owned();
            let problem = match found {
                Some(found) => Problem::Value { found, allowed, suggestion: None },
                None => Problem::Missing { allowed },
            };
            faults.push(Fault::new(name, problem));
        };
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let url = match set("DATABASE_URL") {
            None => {
                fault("DATABASE_URL", None, DatabaseUrl::ALLOWED);
                None
            }
            Some(text) => match text.parse::<DatabaseUrl>() {
                Ok(url) => Some(url),
                Err(error) => {
                    fault("DATABASE_URL", Some(format!("a text of which {error}")), DatabaseUrl::ALLOWED);
                    None
                }
            },
        };
        let interval = set("HOH_STATUS_SYNC_INTERVAL").map(|text| {
            let interval = go_duration(&text).filter(|interval| !interval.is_zero());
            if interval.is_none() {
                let allowed = "a Go duration above zero such as 5s or 1m30s";
                fault("HOH_STATUS_SYNC_INTERVAL", Some(format!("{text:?}")), allowed);
            }
            interval
        });
        let namespace = |name: &str, fault: &mut dyn FnMut(&str, Option<String>, &str)| {
            let namespace = set(name)?;
            if super::names::is_label(&namespace) {
                return Some(namespace);
            }
            fault(name, Some(format!("{namespace:?}")), "the name of a namespace");
            None
        };
        let watched = namespace("WATCH_NAMESPACE", &mut fault);
        let election = namespace("POD_NAMESPACE", &mut fault);
        let faults = Faults::new(faults);
        if !faults.is_empty() {
            return Err(faults);
        }

        let mut config = Self::default();
        config.daemon.listen = LISTEN.into();
        let hub = ClusterName::stand_in();
        config.clusters.insert(hub.clone(), ClusterConfig::new(ClusterAccess::Inferred));
        config.election = election.map(|namespace| ElectionConfig::new(hub.clone(), namespace));
        config.status_sync = url.map(|url| {
            let mut section = StatusSyncConfig::new(hub, DatabaseSource::Url(Box::new(url)));
            section.interval = interval.flatten().unwrap_or(section.interval);
            section.watch_namespace = watched.unwrap_or_default();
            section
        });
        Ok(config)
    }
}

/// A duration as Go writes it: `300ms`, `1.5h`, `1m30s`. None where it is not one, is negative, or is beyond a year.
fn go_duration(text: &str) -> Option<Duration> {
    const LONGEST: f64 = 365.0 * 24.0 * 3600.0;
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_ends = tail.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_ends);
        let factor = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * factor;
        rest = next;
    }
    (!text.is_empty() && seconds <= LONGEST).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: (&str, &str) = ("DATABASE_URL", "postgres://u:hunter2@db/hoh?sslmode=require");

    fn alone(variables: &[(&str, &str)]) -> Result<Config, Vec<String>> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Config::status_sync_alone(find).map_err(|faults| faults.as_slice().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, millis) in [
            ("5s", 5_000),
            ("1m30s", 90_000),
            ("300ms", 300),
            ("1.5h", 5_400_000),
            ("0", 0),
            (".5s", 500),
            ("+2s", 2_000),
        ] {
            assert_eq!(go_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for wrong in ["", "5", "-5s", "5 s", "s", "1x", "1h-5m", "9999999h", "1..5s"] {
            assert_eq!(go_duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_environment_is_all_that_the_job_alone_needs() {
        let config =
            alone(&[URL, ("HOH_STATUS_SYNC_INTERVAL", "1m30s"), ("WATCH_NAMESPACE", "team"), ("POD_NAMESPACE", "ocm")]);
        let config = config.expect("a configuration");
        let section = config.status_sync.expect("the section");
        assert_eq!((section.interval, section.watch_namespace.as_str()), (Duration::from_secs(90), "team"));
        assert_eq!(section.families.len(), 6);
        assert_eq!(config.election.expect("an election").namespace, "ocm");
        assert_eq!(config.daemon.listen.port(), 8384);
        let least = alone(&[URL]).expect("a configuration");
        assert!(least.election.is_none());
        assert_eq!(least.status_sync.expect("the section").interval, Duration::from_secs(5));
    }

    #[test]
    fn every_fault_is_told_and_no_secret_with_it() {
        let faults = alone(&[
            ("DATABASE_URL", "mysql://u:hunter2@db/hoh"),
            ("HOH_STATUS_SYNC_INTERVAL", "-5s"),
            ("WATCH_NAMESPACE", "No_Name"),
        ])
        .expect_err("faults");
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(!faults.join(" ").contains("hunter2"), "{faults:?}");
        assert!(
            alone(&[("HOH_STATUS_SYNC_INTERVAL", "0s")])
                .expect_err("faults")
                .join(" ")
                .contains("DATABASE_URL: missing")
        );
    }
}
