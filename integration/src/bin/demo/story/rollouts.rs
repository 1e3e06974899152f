//! A syncset whose changes go through both edges one after the other.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use super::Told;
use super::syncsets::{look_out, succeeded, write};
use crate::error::Error;
use crate::stage::{FILES, Stage};

/// The syncset, its name, and its object that tells its version.
pub(crate) const GATEWAY: &str = "gateway";
const GATEWAY_TEXT: &str = include_str!("gateway.yaml");
const VERSION: (&str, &str) = ("default", GATEWAY);

/// A change that breaks the canary stops before the other edge has it, and is undone.
pub(super) async fn stopped(stage: &mut Stage) -> Result<Told, Error> {
    let first = write(GATEWAY, GATEWAY_TEXT)?;
    stage.terminal.types(&format!("cat {}", first.display())).await?;
    stage.apply(&first).await?;
    stage.rollout_is("Running (AwaitingPromotion)").await?;
    stage.promote().await?;
    stage.rollout_is("Complete").await?;
    for edge in ["west", "east"] {
        succeeded(stage, edge, GATEWAY, 1).await?;
    }
    let broken = edited("broken");
    let edit = format!("sed 's/\"1\"/\"2\"/; s/targetPort/tagetPort/' {} > {}", first.display(), broken.display());
    stage.terminal.types(&edit).await?;
    stage.apply(&broken).await?;
    stage.rollout_is("Stopped (Failures)").await?;
    stage.shows("west", VERSION, "\"version\":\"2\"").await?;
    stage.shows("east", VERSION, "\"version\":\"1\"").await?;
    let back = look_out(&stage.west, VERSION, |_, map| version(map) == "1").await?;
    let sent = Instant::now();
    let undo = format!("towline rollout undo {GATEWAY} --yes{}", stage.hub_server.option());
    stage.terminal.types(&undo).await?;
    let latency = back.moment().await?.saturating_duration_since(sent);
    stage.rollout_is("RolledBack").await?;
    stage.shows("west", VERSION, "\"version\":\"1\"").await?;
    let text = "hub: version 2 of a syncset with waves has a misspelt field → west, the canary, refuses it, and the rollout \
                stops; east: version 1, as before; `towline rollout undo` → west: version 1";
    Ok(Told { text: text.to_owned(), latency })
}

/// The same without the mistake: the other edge has it once somebody lets its wave begin.
pub(super) async fn promoted(stage: &mut Stage) -> Result<Told, Error> {
    let (broken, mended) = (edited("broken"), edited("mended"));
    let edit = format!("sed 's/tagetPort/targetPort/' {} > {}", broken.display(), mended.display());
    stage.terminal.types(&edit).await?;
    stage.apply(&mended).await?;
    stage.rollout_is("Running (AwaitingPromotion)").await?;
    stage.shows("west", VERSION, "\"version\":\"2\"").await?;
    stage.shows("east", VERSION, "\"version\":\"1\"").await?;
    let arrived = look_out(&stage.east, VERSION, |_, map| version(map) == "2").await?;
    let sent = Instant::now();
    stage.promote().await?;
    let latency = arrived.moment().await?.saturating_duration_since(sent);
    stage.rollout_is("Complete").await?;
    for edge in ["west", "east"] {
        succeeded(stage, edge, GATEWAY, 3).await?;
    }
    stage.shows("east", VERSION, "\"version\":\"2\"").await?;
    let text = "hub: version 2 without the mistake → west: version 2; east: version 1, until `towline rollout promote` → \
                east: version 2";
    Ok(Told { text: text.to_owned(), latency })
}

impl Stage {
    /// Types the command that shows the rollout, until it is in this state.
    async fn rollout_is(&mut self, state: &str) -> Result<(), Error> {
        self.waits_for(format!("the rollout: {state}"));
        let command = format!("towline rollout status {GATEWAY}{}", self.hub_server.option());
        self.terminal.sees_at_last(&command, &format!("{GATEWAY}: {state} ")).await.map(|_| ())
    }

    async fn promote(&mut self) -> Result<(), Error> {
        let command = format!("towline rollout promote {GATEWAY}{}", self.hub_server.option());
        self.terminal.types(&command).await.map(|_| ())
    }
}

fn version(map: &Value) -> &str {
    map.pointer("/data/version").and_then(Value::as_str).unwrap_or_default()
}

/// Where the syncset's file is after an edit.
fn edited(how: &str) -> PathBuf {
    Path::new(FILES).join(format!("{GATEWAY}-{how}.yaml"))
}
