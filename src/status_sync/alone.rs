//! `towline status-sync`: the configuration of status sync alone, from the variables of the hub-of-hubs component.

use std::collections::BTreeMap;

use super::job::StatusSyncJob;
use crate::config::fault::{Error, Fault, Faults, Problem};
use crate::config::go_duration::go_duration;
use crate::config::setting::Setting;
use crate::config::source::{self, Node};
use crate::db::DatabaseUrl;
use crate::job::Config;

/// Where the admin server listens: the port that the component's probes and Prometheus use.
const LISTEN: &str = "0.0.0.0:8384";
/// The prefixes of Towline's own variables that are read as well: keys of the process and of the section.
const OWN: [&str; 2] = ["TOWLINE__DAEMON__", "TOWLINE__STATUS_SYNC__"];
/// The component's variables, each with the key of the section that it sets.
const SOURCES: [(&str, &str); 3] =
    [("DATABASE_URL", "database_url"), ("WATCH_NAMESPACE", "watch_namespace"), ("POD_NAMESPACE", "election_namespace")];

/// Reads the configuration of status sync alone: `DATABASE_URL`, `HOH_STATUS_SYNC_INTERVAL` (a Go duration),
/// `WATCH_NAMESPACE`, and `POD_NAMESPACE`, the namespace of the Lease. `TOWLINE__STATUS_SYNC__…` and
/// `TOWLINE__DAEMON__…` override them. The hub is the cluster that the process runs in, else the one that kubectl would
/// use.
pub fn alone(environment: impl IntoIterator<Item = (String, String)>) -> Result<Config, Error> {
    let variables: BTreeMap<String, String> = environment.into_iter().collect();
    let set = |name: &str| variables.get(name).filter(|value| !value.is_empty());
    let mut faults = Vec::new();
    let own = variables.clone().into_iter().filter(|(name, _)| OWN.iter().any(|prefix| name.starts_with(prefix)));
    let mut root = source::read("", own, &[], &mut faults)?;
    let mut daemon = take_table(&mut root, "daemon");
    daemon.entry("listen".to_owned()).or_insert_with(|| Node::Text(LISTEN.to_owned()));
    root.insert("daemon".to_owned(), Node::Table(daemon));

    let mut section = take_table(&mut root, "status_sync");
    let mut named = BTreeMap::new();
    let has_url = section.contains_key("database_url") || section.contains_key("database_url_file");
    for (name, key) in SOURCES {
        let is_given = section.contains_key(key) || key == "database_url" && has_url;
        if let Some(value) = set(name).filter(|_| !is_given) {
            section.insert(key.to_owned(), Node::Text(value.clone()));
            named.insert(format!("status_sync.{key}"), name);
        }
    }
    if !has_url && set("DATABASE_URL").is_none() {
        faults.push(Fault::new("DATABASE_URL", Problem::Missing { allowed: DatabaseUrl::ALLOWED.to_owned() }));
        // A placeholder: without it, the section would report the same fault again.
        section.insert("database_url_file".to_owned(), Node::Text("none".to_owned()));
    }
    if let Some(text) = set("HOH_STATUS_SYNC_INTERVAL").filter(|_| !section.contains_key("interval")) {
        if let Some(interval) = go_duration(text).filter(|interval| !interval.is_zero()) {
            let interval = humantime::format_duration(interval).to_string();
            section.insert("interval".to_owned(), Node::Text(interval));
        } else {
            let allowed = "a Go duration above zero such as 5s or 1m30s";
            faults.push(wrong("HOH_STATUS_SYNC_INTERVAL", text, allowed));
        }
    }
    root.insert("status_sync".to_owned(), Node::Table(section));

    let mut walked = Vec::new();
    let config = Config::walk(root, &[&StatusSyncJob], &mut walked);
    // A fault names the variable that the user has set.
    faults.extend(walked.into_iter().map(|fault| match named.get(&fault.path) {
        Some(name) => Fault::new(*name, fault.problem),
        None => fault,
    }));
    Faults::new(faults).into_result()?;
    Ok(config)
}

fn take_table(root: &mut BTreeMap<String, Node>, key: &str) -> BTreeMap<String, Node> {
    match root.remove(key) {
        Some(Node::Table(table)) => table,
        _ => BTreeMap::new(),
    }
}

fn wrong(name: &str, found: &str, allowed: &str) -> Fault {
    Fault::new(name, Problem::Value { found: format!("{found:?}"), allowed: allowed.to_owned(), suggestion: None })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::job::section;
    use super::*;

    const URL: (&str, &str) = ("DATABASE_URL", "postgres://u:hunter2@db/hoh?sslmode=require");

    fn read(variables: &[(&str, &str)]) -> Result<Config, Vec<String>> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        alone(variables).map_err(|error| match error {
            Error::Invalid(faults) => faults.as_slice().iter().map(ToString::to_string).collect(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_environment_configures_the_job_alone() {
        let config =
            read(&[URL, ("HOH_STATUS_SYNC_INTERVAL", "1m30s"), ("WATCH_NAMESPACE", "team"), ("POD_NAMESPACE", "ocm")]);
        let config = config.expect("a configuration");
        let found = section(&config).expect("the section");
        assert_eq!((found.interval, found.watch_namespace.as_str()), (Duration::from_secs(90), "team"));
        assert_eq!(found.families.len(), 6);
        assert_eq!(config.election.expect("an election").namespace, "ocm");
        assert_eq!(config.daemon.listen.port(), 8384);
        let least = read(&[URL]).expect("a configuration");
        assert!(least.election.is_none());
        assert_eq!(section(&least).expect("the section").interval, Duration::from_secs(5));
    }

    #[test]
    fn variables_with_towlines_prefix_override_those_of_the_component() {
        let config = read(&[
            URL,
            ("HOH_STATUS_SYNC_INTERVAL", "7s"),
            ("TOWLINE__DAEMON__LISTEN", "127.0.0.1:3"),
            ("TOWLINE__STATUS_SYNC__NOTIFY", "true"),
            ("TOWLINE__STATUS_SYNC__FAMILIES", "policies"),
            ("TOWLINE__SYNC__OTHER__DRY_RUN", "true"),
        ]);
        let config = config.expect("a configuration");
        let found = section(&config).expect("the section");
        assert!(found.notify && found.families.len() == 1 && found.interval == Duration::from_secs(7));
        assert_eq!(config.daemon.listen.port(), 3);
        let file = ("TOWLINE__STATUS_SYNC__DATABASE_URL_FILE", "/url");
        let over = read(&[URL, file, ("TOWLINE__STATUS_SYNC__INTERVAL", "9s")]).expect("a configuration");
        let found = section(&over).expect("the section");
        assert_eq!(found.database, crate::db::DatabaseSource::File("/url".into()));
        assert_eq!(found.interval, Duration::from_secs(9));
        assert_eq!(read(&[URL, ("TOWLINE__STATUS_SYNC__NOTIFI", "true")]).expect_err("a fault").len(), 1);
    }

    #[test]
    fn every_fault_is_reported_without_secrets() {
        let faults = read(&[
            ("DATABASE_URL", "mysql://u:hunter2@db/hoh"),
            ("HOH_STATUS_SYNC_INTERVAL", "-5s"),
            ("WATCH_NAMESPACE", "No_Name"),
            ("POD_NAMESPACE", "-"),
        ])
        .expect_err("faults");
        assert_eq!(faults.len(), 4, "{faults:?}");
        for (fault, name) in
            faults.iter().zip(["DATABASE_URL", "HOH_STATUS_SYNC_INTERVAL", "POD_NAMESPACE", "WATCH_NAMESPACE"])
        {
            assert!(fault.starts_with(&format!("{name}: found ")), "{fault}");
        }
        assert!(!faults.join(" ").contains("hunter2"), "{faults:?}");
        assert!(
            read(&[("HOH_STATUS_SYNC_INTERVAL", "0s")])
                .expect_err("faults")
                .join(" ")
                .contains("DATABASE_URL: missing")
        );
    }
}
