//! `towline inventory`: runs the inventory alone, configured by the environment.

use super::alone::alone;
use crate::config;
use crate::job::command::{JobCommand, Load, Order};

/// The part of `towline inventory --help` about the environment.
const VARIABLES: &str = "\
Required variables:
  HOSSTED_API_URL      The API that is told, an https:// URL
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
pub(super) fn command() -> JobCommand {
    let execute = |_: InventoryCommand, _: &Load| Ok(Order::Run(Box::new(alone(config::environment())?)));
    JobCommand::new("inventory", "Run the inventory alone, configured by the environment", execute)
        .after_help(VARIABLES)
}
