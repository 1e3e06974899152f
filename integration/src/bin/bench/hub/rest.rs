//! A replica at rest, and the start of one.

use std::collections::BTreeMap;
use std::time::Instant;

use integration::Error;
use serde::Serialize;
use tokio::time::sleep;

use super::meter::{Cost, Meter, statements};
use super::watches::newest;
use super::world::{LONGEST_STEP, World};
use crate::options::HubOptions;

/// A replica without requests.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rest {
    pub(crate) seconds: f64,
    pub(crate) statements_per_second: f64,
    /// How often each statement was sent.
    pub(crate) statements: BTreeMap<String, i64>,
    pub(crate) cost: Cost,
}

/// The start of a replica.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Start {
    /// How many documents and rows of the log there were.
    pub(crate) documents: i64,
    pub(crate) log_rows: i64,
    /// From the start of the process to the first success of `/readyz/hub`.
    pub(crate) ready_seconds: f64,
    /// And to the beginning of the answer to a watch from the newest version.
    pub(crate) watch_seconds: f64,
    pub(crate) statements: BTreeMap<String, i64>,
    pub(crate) cost: Cost,
}

/// Looks at a replica that nobody asks for anything.
pub(crate) async fn rest(world: &World<'_>, options: &HubOptions) -> Result<Rest, Error> {
    let meter = Meter::begin(world).await?;
    let began = Instant::now();
    sleep(options.idle).await;
    let seconds = began.elapsed().as_secs_f64();
    let statements = statements(world).await?;
    let cost = meter.end(world).await?;
    Ok(Rest { seconds, statements_per_second: float(cost.statements) / seconds, statements, cost })
}

/// Ends the replica in order and starts it again.
pub(crate) async fn start(world: &mut World<'_>) -> Result<Start, Error> {
    let count = "SELECT (SELECT count(*) FROM towline_documents), (SELECT count(*) FROM towline_log)";
    let rows = world.sql.query_one(count, &[]).await.map_err(Error::database("count the documents"))?;
    world.first().towline().terminate(LONGEST_STEP).await?;
    let meter = Meter::before_start(world).await?;
    let began = Instant::now();
    world.first_mut().start_again().await?;
    world.wait_for_hub().await?;
    let ready_seconds = began.elapsed().as_secs_f64();
    let client = world.first().client();
    let version = newest(world).await?;
    // Its answer begins when the tail has read the log. A line comes with the next change or bookmark only.
    drop(client.watch(&format!("/v1/clusters?watch=true&resourceVersion={version}")).await?);
    let watch_seconds = began.elapsed().as_secs_f64();
    let statements = statements(world).await?;
    let cost = meter.end(world).await?;
    Ok(Start { documents: rows.get(0), log_rows: rows.get(1), ready_seconds, watch_seconds, statements, cost })
}

#[expect(clippy::cast_precision_loss, reason = "statements of a minute")]
fn float(count: i64) -> f64 {
    count as f64
}

impl Rest {
    pub(crate) fn line(&self) -> String {
        format!(
            "  at rest  {:>6.1} s: {:.2} statements a second, {} different ones; {}",
            self.seconds,
            self.statements_per_second,
            self.statements.len(),
            self.cost.line()
        )
    }
}

impl Start {
    pub(crate) fn line(&self) -> String {
        format!(
            "  started with {} documents and {} rows of the log: ready after {:.2} s, a watch open after {:.2} s; {}",
            self.documents,
            self.log_rows,
            self.ready_seconds,
            self.watch_seconds,
            self.cost.line()
        )
    }
}
