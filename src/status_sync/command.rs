//! `towline status-sync`: runs status sync alone, configured by the environment, or removes the triggers of `notify`.

use futures::FutureExt;

use super::alone::alone;
use super::config::StatusSyncConfig;
use super::database::triggers;
use super::job::section;
use crate::cluster::full_text;
use crate::config;
use crate::job::check::say;
use crate::job::command::{Exit, JobCommand, Load, Order, complain};

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
pub(super) fn command() -> JobCommand {
    let execute = |command: StatusSyncCommand, _: &Load| {
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
