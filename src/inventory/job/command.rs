//! `towline inventory`: runs the inventory alone, configured by the environment.

use std::sync::Arc;

use secrecy::SecretString;

use super::super::config::TokenSource;
use super::{InventoryJob, InventorySection};
use crate::config;
use crate::config::fault::Error;
use crate::job::command::{JobCommand, Order};
use crate::job::{Config, Environment, JobList};

/// The part of `towline inventory --help` about the environment.
const VARIABLES: &str = "\
Required variables:
  HOSSTED_API_URL      The API that gets the reports, an https:// URL
  HOSSTED_AUTH_TOKEN   The token for it

Further variables:
  EMAIL_ID             In the bodies
  HOSSTED_ORG_ID       In the bodies
  CONTEXT_NAME         In the registration
  RECONCILE_DURATION   From a release's first change to its post, a Go duration such as 1m30s [default: 10s]
  HELM_DRIVER          Where Helm stores releases: secret or configmap [default: secret]
  TOWLINE__INVENTORY__*  Further keys of the section: TOWLINE__INVENTORY__WIRE=single
  TOWLINE__DAEMON__*     Keys of [daemon]: TOWLINE__DAEMON__LISTEN [default: 0.0.0.0:8384]

The cluster is the one that the process runs in, else the one that kubectl would use.";

/// `towline inventory`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct InventoryCommand {}

/// The command, for the job's list of commands.
pub fn command() -> JobCommand {
    let execute = |_: InventoryCommand, _: &JobList| Ok(Order::Run(Box::new(alone(config::environment())?)));
    JobCommand::new("inventory", "Run the inventory alone, configured by the environment", execute)
        .after_help(VARIABLES)
}

/// Where the admin server listens.
const LISTEN: &str = "0.0.0.0:8384";
/// The key of the section.
const SECTION: &str = "inventory";
/// The variables, each with the key of the section that it sets.
const SOURCES: [(&str, &str); 5] = [
    ("HOSSTED_API_URL", "api_url"),
    ("EMAIL_ID", "email"),
    ("HOSSTED_ORG_ID", "org_id"),
    ("CONTEXT_NAME", "context_name"),
    ("HELM_DRIVER", "helm_driver"),
];
/// The variable with the token.
const TOKEN: &str = "HOSSTED_AUTH_TOKEN";

/// Reads the configuration of the inventory alone. `TOWLINE__INVENTORY__…` and `TOWLINE__DAEMON__…` override the other variables. The
/// cluster is the one that the process runs in, else the one that kubectl would use.
pub fn alone(environment: impl IntoIterator<Item = (String, String)>) -> Result<Config, Error> {
    let mut environment = Environment::read(environment, &[SECTION])?;
    environment.listen_by_default(LISTEN);
    // Also if it has no value.
    environment.name_faults(SECTION, "api_url", "HOSSTED_API_URL");
    for (name, key) in SOURCES {
        environment.set(SECTION, key, name);
    }
    environment.set_duration(SECTION, "delay", "RECONCILE_DURATION", true, "10s or 1m30s");
    let token = environment.variable(TOKEN).filter(|_| !environment.has(SECTION, &["token_file"]));
    match &token {
        // A placeholder: without it, the section would report that the key is missing.
        Some(_) => environment.set_default(SECTION, "token_file", "none"),
        None if environment.has(SECTION, &["token_file"]) => {}
        None => environment.report_missing(TOKEN, "the token for the API", (SECTION, "token_file")),
    }
    let mut config = environment.walk(|root, faults| Config::walk(root, &[&InventoryJob], faults))?;
    let read = config.of::<InventorySection>().and_then(|section| section.0.clone());
    if let (Some(token), Some(mut section)) = (token, read) {
        section.token = TokenSource::Given(SecretString::from(token));
        config.jobs = vec![Arc::new(InventorySection(Some(section)))];
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use secrecy::ExposeSecret;

    use super::super::section;
    use super::*;
    use crate::inventory::config::Storage;

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
