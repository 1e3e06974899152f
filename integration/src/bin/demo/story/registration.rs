//! The edges are registered with the hub server, where no Kubernetes is involved.

use std::time::{Duration, Instant};

use integration::hub::{Event, Watch};
use serde_json::json;
use tokio::time::timeout;

use super::Told;
use crate::cluster::LIMIT;
use crate::error::Error;
use crate::kubeconfigs::write_registration;
use crate::stage::Stage;

/// Both edges are registered at one replica, and a watch at the other one shows them.
pub(super) async fn registered(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the watch to show the clusters");
    let mut watch = stage.hub_server.second().watch("/v1/clusters?watch=true&labelSelector=env%3Dprod").await?;
    // The end of what is there already, which is nothing.
    expect(&next(&mut watch).await?, "BOOKMARK")?;

    let mut slowest = Duration::ZERO;
    for edge in [&stage.west, &stage.east] {
        let file = write_registration(edge)?;
        let command = format!("curl -fsS -X POST {}/v1/clusters -d @{}", stage.hub_server.url(), file.display());
        let sent = Instant::now();
        stage.terminal.types(&command).await?;
        let event = change(&mut watch).await?;
        slowest = slowest.max(sent.elapsed());
        expect(&event, "ADDED")?;
        if event.object.get("name") != Some(&json!(edge.name)) || event.object.get("kubeconfig").is_some() {
            return Err(Error::wrong("the watch shows another document, or a kubeconfig", event.object.to_string()));
        }
    }
    let text = "REST API of `towline hub`: POST west, east, each with its kubeconfig and labels → a watch of env=prod at \
                its second replica: 2 ADDED, without kubeconfigs; the database is all they share";
    Ok(Told { text: text.to_owned(), latency: slowest })
}

async fn next(watch: &mut Watch) -> Result<Event, Error> {
    let ended = || Error::wrong("the watch", "it has ended");
    timeout(LIMIT, watch.next()).await.map_err(|_| Error::wrong("the watch", "it shows nothing"))??.ok_or_else(ended)
}

/// The next event that is a change.
async fn change(watch: &mut Watch) -> Result<Event, Error> {
    loop {
        let event = next(watch).await?;
        if event.kind != "BOOKMARK" {
            return Ok(event);
        }
    }
}

fn expect(event: &Event, kind: &str) -> Result<(), Error> {
    if event.kind == kind { Ok(()) } else { Err(Error::wrong("the watch", format!("{} {}", event.kind, event.object))) }
}
