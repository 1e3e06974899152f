//! `towline status-sync`: runs status sync alone, configured by the environment, or removes the triggers of `notify`.

use futures::FutureExt;

use super::super::config::StatusSyncConfig;
use super::super::run::database::triggers;
use super::{StatusSyncJob, section};
use crate::cluster::full_text;
use crate::config;
use crate::config::fault::Error;
use crate::config::setting::Setting;
use crate::db::DatabaseUrl;
use crate::job::check::say;
use crate::job::command::{Exit, JobCommand, Order, complain};
use crate::job::{Config, Environment, JobList};

/// The part of `towline status-sync --help` about the environment.
const VARIABLES: &str = "\
Required variable:
  DATABASE_URL              postgres://user:password@host:5432/database?sslmode=verify-full&pool_max_conns=8

Further variables:
  HOH_STATUS_SYNC_INTERVAL  Time between passes, a Go duration such as 1m30s [default: 5s]
  WATCH_NAMESPACE           Only sync hub objects of this namespace [default: all namespaces]
  POD_NAMESPACE             Namespace of the Lease for leader election [default: no election]
  TOWLINE__STATUS_SYNC__*   Further keys of the section: TOWLINE__STATUS_SYNC__NOTIFY=true
  TOWLINE__DAEMON__*        Keys of [daemon]: TOWLINE__DAEMON__LISTEN [default: 0.0.0.0:8384]

The hub is the cluster that the process runs in, else the one that kubectl would use.";

/// `towline status-sync`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct StatusSyncCommand {
    /// Remove the triggers that `notify` creates, and their function, from the database and exit. A daemon that still
    /// runs with `notify` creates them again
    #[arg(long)]
    remove_triggers: bool,
}

/// The command, for the job's list of commands.
pub fn command() -> JobCommand {
    let execute = |command: StatusSyncCommand, _: &JobList| {
        let config = alone(config::environment())?;
        if !command.remove_triggers {
            return Ok(Order::Run(Box::new(config)));
        }
        let section = section(&config).cloned();
        Ok(Order::Task(async move { remove_triggers(section).await }.boxed()))
    };
    JobCommand::new("status-sync", "Run status sync alone, configured by the environment", execute)
        .after_help(VARIABLES)
}

/// `towline status-sync --remove-triggers`.
async fn remove_triggers(section: Option<StatusSyncConfig>) -> Exit {
    let Some(section) = section else { return Exit::Usage };
    match triggers::remove_by(section.database).await {
        Ok(removed) => {
            say(&removed.to_string());
            Exit::Done
        }
        Err(error) => {
            complain(&full_text(&error));
            Exit::Failed
        }
    }
}

/// Where the admin server listens: the port that the component's probes and Prometheus use.
const LISTEN: &str = "0.0.0.0:8384";
/// The key of the section.
const SECTION: &str = "status_sync";

/// Reads the configuration of status sync alone: `DATABASE_URL`, `HOH_STATUS_SYNC_INTERVAL` (a Go duration),
/// `WATCH_NAMESPACE`, and `POD_NAMESPACE`, the namespace of the Lease. `TOWLINE__STATUS_SYNC__…` and
/// `TOWLINE__DAEMON__…` override them. The hub is the cluster that the process runs in, else the one that kubectl would
/// use.
pub fn alone(environment: impl IntoIterator<Item = (String, String)>) -> Result<Config, Error> {
    let mut environment = Environment::read(environment, &[SECTION])?;
    environment.listen_by_default(LISTEN);
    environment.require(SECTION, ("database_url", "database_url_file"), "DATABASE_URL", DatabaseUrl::ALLOWED);
    environment.set(SECTION, "watch_namespace", "WATCH_NAMESPACE");
    environment.set(SECTION, "election_namespace", "POD_NAMESPACE");
    environment.set_duration(SECTION, "interval", "HOH_STATUS_SYNC_INTERVAL", false, "5s or 1m30s");
    environment.walk(|root, faults| Config::walk(root, &[&StatusSyncJob], faults))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::section;
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
