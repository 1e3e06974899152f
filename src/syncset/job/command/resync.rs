//! `towline resync`.

use http::{Method, StatusCode};
use serde_json::Value;

use super::of_mounted;
use super::which::{Chosen, Which};
use crate::documents::Kind;
use crate::job::client::{Error, HubAccess, HubClient};
use crate::job::command::{Exit, complain};
use crate::job::output::Format;

/// `towline resync`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(super) struct ResyncCommand {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    access: HubAccess,
}

pub(super) async fn resync(command: ResyncCommand) -> Result<Exit, Error> {
    let client = HubClient::new(&command.access).await?;
    let mut names = Vec::new();
    let answer = match command.which.chosen()? {
        Chosen::One(path) => {
            names.extend(
                path.strip_prefix("/v1/clusters/").map(|cluster| format!("{}/{cluster}", Kind::Cluster.name())),
            );
            match client.order(Method::POST, &format!("{path}/resync"), None).await {
                // The cluster is missing or the route: the hub says which if there is no such cluster.
                Err(error @ Error::Problem { status: StatusCode::NOT_FOUND, .. }) => {
                    client.get(&path).await?;
                    return Err(of_mounted(error));
                }
                answer => answer?,
            }
        }
        Chosen::Many(filters) => {
            let query = filters.strip_prefix('&').map(|filters| format!("?{filters}")).unwrap_or_default();
            let answer = client.order(Method::POST, &format!("/v1/clusters/resync{query}"), None).await;
            answer.map_err(of_mounted)?
        }
    };
    let line = match answer.get("clusters").and_then(Value::as_u64).unwrap_or_default() {
        0 => {
            complain("no cluster matches");
            return Ok(Exit::Failed);
        }
        1 => "a full pass of 1 cluster is due now".to_owned(),
        more => format!("full passes of {more} clusters are due now"),
    };
    command.format.output.print(&answer, &names, &[line]);
    Ok(Exit::Done)
}
