//! `towline inventory`: the configuration of the inventory alone, from the variables of hossted-operator.

use std::collections::BTreeMap;
use std::sync::Arc;

use secrecy::SecretString;

use super::config::TokenSource;
use super::job::{InventoryJob, InventorySection};
use crate::config::fault::{Error, Fault, Faults, Problem};
use crate::config::go_duration::go_duration;
use crate::config::source::{self, Node};
use crate::job::Config;

/// Where the admin server listens.
const LISTEN: &str = "0.0.0.0:8384";
/// The prefixes of Towline's own variables that are read as well: keys of the process and of the section.
const OWN: [&str; 2] = ["TOWLINE__DAEMON__", "TOWLINE__INVENTORY__"];
/// The variables, each with the key of the section that it sets.
const SOURCES: [(&str, &str); 6] = [
    ("HOSSTED_API_URL", "api_url"),
    ("EMAIL_ID", "email"),
    ("HOSSTED_ORG_ID", "org_id"),
    ("CONTEXT_NAME", "context_name"),
    ("RECONCILE_DURATION", "delay"),
    ("HELM_DRIVER", "helm_driver"),
];
/// The variable with the token.
const TOKEN: &str = "HOSSTED_AUTH_TOKEN";

/// Reads the configuration of the inventory alone. `TOWLINE__INVENTORY__…` and `TOWLINE__DAEMON__…` override the other variables. The
/// cluster is the one that the process runs in, else the one that kubectl would use.
pub(super) fn alone(environment: impl IntoIterator<Item = (String, String)>) -> Result<Config, Error> {
    let variables: BTreeMap<String, String> = environment.into_iter().collect();
    let set = |name: &str| variables.get(name).filter(|value| !value.is_empty());
    let mut faults = Vec::new();
    let own = variables.clone().into_iter().filter(|(name, _)| OWN.iter().any(|prefix| name.starts_with(prefix)));
    let mut root = source::read("", own, &[], &mut faults)?;
    let mut daemon = take_table(&mut root, "daemon");
    daemon.entry("listen".to_owned()).or_insert_with(|| Node::Text(LISTEN.to_owned()));
    root.insert("daemon".to_owned(), Node::Table(daemon));

    let mut section = take_table(&mut root, "inventory");
    let mut named = BTreeMap::from([("inventory.api_url".to_owned(), "HOSSTED_API_URL")]);
    for (name, key) in SOURCES {
        let Some(value) = set(name).filter(|_| !section.contains_key(key)) else { continue };
        let value = if key == "delay" {
            let Some(delay) = go_duration(value) else {
                let (found, allowed) = (format!("{value:?}"), "a Go duration such as 10s or 1m30s".to_owned());
                faults.push(Fault::new(name, Problem::Value { found, allowed, suggestion: None }));
                continue;
            };
            humantime::format_duration(delay).to_string()
        } else {
            value.clone()
        };
        section.insert(key.to_owned(), Node::Text(value));
        named.insert(format!("inventory.{key}"), name);
    }
    let token = set(TOKEN).filter(|_| !section.contains_key("token_file")).cloned().map(SecretString::from);
    if token.is_none() && !section.contains_key("token_file") {
        faults.push(Fault::new(TOKEN, Problem::Missing { allowed: "the token for the API".to_owned() }));
    }
    // A placeholder where a variable has the token: without it, the section would report that the key is missing.
    section.entry("token_file".to_owned()).or_insert_with(|| Node::Text("none".to_owned()));
    root.insert("inventory".to_owned(), Node::Table(section));

    let mut walked = Vec::new();
    let mut config = Config::walk(root, &[&InventoryJob], &mut walked);
    // A fault names the variable that the user has set.
    faults.extend(walked.into_iter().map(|fault| match named.get(&fault.path) {
        Some(name) => Fault::new(*name, fault.problem),
        None => fault,
    }));
    Faults::new(faults).into_result()?;
    let read = config.of::<InventorySection>().and_then(|section| section.0.clone());
    if let (Some(token), Some(mut section)) = (token, read) {
        section.token = TokenSource::Given(token);
        config.jobs = vec![Arc::new(InventorySection(Some(section)))];
    }
    Ok(config)
}

fn take_table(root: &mut BTreeMap<String, Node>, key: &str) -> BTreeMap<String, Node> {
    match root.remove(key) {
        Some(Node::Table(table)) => table,
        _ => BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use secrecy::ExposeSecret;

    use super::super::job::section;
    use super::super::rules::release::Storage;
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, Vec<String>> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        alone(variables).map_err(|error| match error {
            Error::Invalid(faults) => faults.as_slice().iter().map(ToString::to_string).collect(),
            other => panic!("{other:?}"),
        })
    }

    const URL: (&str, &str) = ("HOSSTED_API_URL", "https://api.example");
    const SECRET: (&str, &str) = (TOKEN, "hunter2");

    #[test]
    fn the_environment_configures_the_job_alone() {
        let config = read(&[
            URL,
            SECRET,
            ("EMAIL_ID", "a@b.example"),
            ("HOSSTED_ORG_ID", "o1"),
            ("CONTEXT_NAME", "edge-west"),
            ("RECONCILE_DURATION", "1m30s"),
            ("HELM_DRIVER", "configmap"),
        ])
        .expect("a configuration");
        let found = section(&config).expect("the section");
        assert_eq!(
            (found.email.as_str(), found.org_id.as_str(), found.context_name.as_str()),
            ("a@b.example", "o1", "edge-west")
        );
        assert_eq!((found.delay, found.helm_driver), (Duration::from_secs(90), Storage::ConfigMap));
        let TokenSource::Given(token) = &found.token else { panic!("{:?}", found.token) };
        assert_eq!(token.expose_secret(), "hunter2");
        assert_eq!((config.daemon.listen.port(), found.cluster.as_str()), (8384, "default"));
        let least = read(&[URL, SECRET, ("EMAIL_ID", "")]).expect("a configuration");
        assert_eq!(section(&least).expect("the section").delay, Duration::from_secs(10));
    }

    #[test]
    fn variables_with_towlines_prefix_override_the_others() {
        let config = read(&[
            URL,
            ("RECONCILE_DURATION", "7s"),
            ("TOWLINE__INVENTORY__DELAY", "9s"),
            ("TOWLINE__INVENTORY__TOKEN_FILE", "/token"),
            ("TOWLINE__DAEMON__LISTEN", "127.0.0.1:3"),
        ])
        .expect("a configuration");
        let found = section(&config).expect("the section");
        assert_eq!((found.delay, &found.token), (Duration::from_secs(9), &TokenSource::File("/token".into())));
        assert_eq!(config.daemon.listen.port(), 3);
    }

    #[test]
    fn every_fault_is_reported_with_its_variable_and_without_secrets() {
        let faults = read(&[
            ("HOSSTED_API_URL", "http://api.example/?hunter2"),
            ("RECONCILE_DURATION", "soon"),
            ("HELM_DRIVER", "sql"),
        ])
        .expect_err("faults");
        for name in ["HOSSTED_API_URL", "RECONCILE_DURATION", "HELM_DRIVER", TOKEN] {
            assert!(faults.iter().any(|fault| fault.starts_with(&format!("{name}: "))), "{name} in {faults:?}");
        }
        assert_eq!(faults.len(), 4, "{faults:?}");
        let missing = read(&[]).expect_err("two faults");
        assert!(missing.len() == 2 && missing.iter().all(|fault| fault.contains("missing")), "{missing:?}");
    }
}
