//! What an API is told of the Helm releases on edge east.

use std::path::Path;
use std::time::Instant;

use integration::eventually;
use serde_json::{Value, json};

use super::Told;
use crate::cluster::LIMIT;
use crate::error::Error;
use crate::inventory::API_LOG;
use crate::stage::{FILES, Stage};

const RELEASE: &str = "webshop";
/// The object that turns the inventory on.
const PROJECT: &str =
    "apiVersion: hossted.com/v1\nkind: Hosstedproject\nmetadata: {name: main}\nspec: {denyNamespaces: [kube-system]}\n";

pub(super) async fn installed(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the API to be told of the release");
    let file = Path::new(FILES).join("project.yaml");
    std::fs::write(&file, PROJECT).map_err(Error::file("write", &file))?;
    stage.terminal.types(&format!("kubectl --context east apply -f {}", file.display())).await?;
    let chart = stage.inventory.chart().to_owned();
    let install = format!("helm --kube-context east install {RELEASE} {chart} | grep STATUS");
    let (latency, body) = told_after(stage, &install, "deployed").await?;
    let services = body.pointer("/app_info/service_info/0/ports").cloned().unwrap_or_default();
    if services != json!([80]) {
        return Err(Error::wrong("what the API was told", body.to_string()));
    }
    acknowledged(stage, 1).await?;
    shows_the_log(stage, "deployed").await?;
    let text = format!(
        "east: helm install {RELEASE} → the API of `towline inventory`: the cluster is registered, {RELEASE} is deployed, with a \
         service and a claim of 8 GiB"
    );
    Ok(Told { text, latency })
}

pub(super) async fn uninstalled(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the API to be told of the end of the release");
    let uninstall = format!("helm --kube-context east uninstall {RELEASE}");
    let (latency, body) = told_after(stage, &uninstall, "uninstalled").await?;
    if body.pointer("/app_info/service_info") != Some(&json!([])) {
        return Err(Error::wrong("what the API was told", body.to_string()));
    }
    acknowledged(stage, 0).await?;
    shows_the_log(stage, "uninstalled").await?;
    let text = format!("east: helm uninstall {RELEASE} → the API: {RELEASE} is uninstalled, nothing runs in it");
    Ok(Told { text, latency })
}

/// Types a command, and waits for the report that follows. Returns how long that took, and the report.
async fn told_after(stage: &mut Stage, command: &str, status: &str) -> Result<(std::time::Duration, Value), Error> {
    let sent = Instant::now();
    stage.terminal.types(command).await?;
    let told = stage.inventory.told(RELEASE, status).await?;
    Ok((told.at.saturating_duration_since(sent), told.body))
}

/// Waits until the project's status says that all was acknowledged, of so many releases: no request follows then.
async fn acknowledged(stage: &Stage, releases: usize) -> Result<(), Error> {
    eventually(format!("{releases} releases in the project's status"), LIMIT, async || {
        let status = stage.east.project_status("main").await.map_err(|error| error.chain())?;
        let entries = status.get("helmStatus").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_done = entries.iter().all(|entry| entry.get("sendingHash").is_none() && entry.get("sentHash").is_some());
        if is_done && entries.len() == releases { Ok(()) } else { Err(status.to_string()) }
    })
    .await?;
    Ok(())
}

/// Shows what the API has written down.
async fn shows_the_log(stage: &mut Stage, status: &str) -> Result<(), Error> {
    eventually("the API to write it down", LIMIT, async || {
        let is_written = stage.inventory.is_written_down().map_err(|error| error.chain())?;
        if is_written { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await?;
    stage.terminal.sees(&format!("tail -n 2 {API_LOG}"), &format!("{RELEASE} {status} revision 1")).await
}
