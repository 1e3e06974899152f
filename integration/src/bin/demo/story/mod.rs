//! The story: what happens, step by step, and the table at its end.
//!
//! A step tells what it saw, in one line, and how long it took from sending the request on one side until the other
//! showed the effect. Then everything comes to rest, so that each request is counted for the step that caused it.
//! Steps of people at a terminal show below that line what was typed and printed.

mod compliance;
mod faults;
mod heartbeats;
mod registration;
mod releases;
mod replicas;
mod rollouts;
mod syncsets;
mod travel;

use std::time::Duration;

use crate::error::Error;
use crate::requests::Requests;
use crate::screen::{Look, Screen, milliseconds};
use crate::stage::Stage;

pub(crate) use self::rollouts::GATEWAY;
pub(crate) use self::syncsets::EDITED as EDITED_SYNCSET;

/// Where the objects of the story are, on the hub and on edge west.
const SHOP: &str = "west-shop";
/// The database that the story follows.
const ORDERS: &str = "orders";
/// Another one, that stays to the end.
const CARTS: &str = "carts";

/// What a step has to tell.
#[derive(Debug)]
struct Told {
    text: String,
    latency: Duration,
}

#[derive(Debug)]
struct Row {
    title: &'static str,
    latency: Option<Duration>,
    /// At hub, west and east.
    requests: [Requests; 3],
}

struct Story<'s> {
    screen: Screen,
    stage: &'s mut Stage,
    rows: Vec<Row>,
    /// Before the present step.
    counted: [Requests; 3],
}

/// Plays it all, and ends with the table.
pub(crate) async fn play(screen: Screen, stage: &mut Stage) -> Result<(), Error> {
    let mut story = Story { screen, stage, rows: Vec::new(), counted: [Requests::default(); 3] };
    story.prelude().await?;
    story.step("created", travel::created).await?;
    story.step("status", travel::status).await?;
    story.step("secret", travel::secret).await?;
    story.step("changed", travel::changed).await?;
    story.step("drift", travel::drift).await?;
    story.step("paused", travel::paused).await?;
    story.step("resumed", travel::resumed).await?;
    story.step("heartbeat", heartbeats::heartbeat).await?;
    story.step("not ready", heartbeats::not_ready).await?;
    story.step("rolled up", compliance::compliance).await?;
    story.step("register", registration::registered).await?;
    story.step("applied", syncsets::applied).await?;
    story.step("relabel", syncsets::relabelled).await?;
    story.step("explain", syncsets::explained).await?;
    story.step("diff", syncsets::compared).await?;
    story.step("removed", syncsets::removed).await?;
    story.step("failing", syncsets::failing).await?;
    story.step("stopped", rollouts::stopped).await?;
    story.step("promoted", rollouts::promoted).await?;
    story.step("install", releases::installed).await?;
    story.step("uninstall", releases::uninstalled).await?;
    story.step("edge down", faults::edge_down).await?;
    story.step("edge back", faults::edge_back).await?;
    story.step("killed", faults::killed).await?;
    story.step("takeover", replicas::taken_over).await?;
    story.step("deleted", travel::deleted).await?;
    story.step("cleared", faults::cleared).await?;
    story.table();
    Ok(())
}

impl Story<'_> {
    /// What the daemon has asked since its start.
    async fn prelude(&mut self) -> Result<(), Error> {
        self.count("started", None).await?;
        self.screen.line(&format!(
            "\n{}{}",
            self.screen.paint(Look::Bold, "The story"),
            self.screen.paint(
                Look::Dim,
                "   times: from sending the request on one side until the other side shows the effect\n"
            )
        ));
        Ok(())
    }

    async fn step(
        &mut self,
        title: &'static str,
        work: impl AsyncFnOnce(&mut Stage) -> Result<Told, Error>,
    ) -> Result<(), Error> {
        let number = self.rows.len();
        let note = self.stage.note.clone();
        let what = || format!("{number} {title}: {}", note.borrow());
        let stage = &mut *self.stage;
        let played = self.screen.during(what, async {
            let told = work(stage).await?;
            stage.rest().await?;
            Ok(told)
        });
        let told = played.await.map_err(|error: Error| Error::Step { number, title, source: Box::new(error) })?;
        self.count(title, Some(told.latency)).await?;
        self.screen.step(number, title, &told.text, told.latency);
        self.screen.transcript(&self.stage.terminal.take());
        Ok(())
    }

    async fn count(&mut self, title: &'static str, latency: Option<Duration>) -> Result<(), Error> {
        let now = self.stage.requests().await?;
        let mut requests = now;
        for (count, before) in requests.iter_mut().zip(self.counted) {
            *count = *count - before;
        }
        self.counted = now;
        self.rows.push(Row { title, latency, requests });
        Ok(())
    }

    fn table(&self) {
        let screen = self.screen;
        let bold = |text: &str| screen.line(&screen.paint(Look::Bold, text));
        bold("\nRequests of towline and of its hub server, counted at the three API servers");
        screen.line(format!("{:31}{:^27}{:^27}", "", "writes", "reads").trim_end());
        bold(&format!("     {:<11}{:>12}   {}{}", "step", "latency", sides(), sides()));
        screen.line(&format!("  {}", "─".repeat(83)));
        for (number, row) in self.rows.iter().enumerate() {
            let latency = row.latency.map(milliseconds).unwrap_or_default();
            screen.line(&line(&format!(" {number:>2}"), row.title, &latency, &row.requests));
        }
        screen.line(&format!("  {}", "─".repeat(83)));
        screen.line(&line("", "all", "", &self.counted));
        screen.line(&screen.paint(
            Look::Dim,
            "  reads: lists and watches at the start and after an outage, discovery, dry runs, questions about permissions",
        ));
        let leases: usize = self.counted.iter().map(|at| at.leases).sum();
        screen.line(&screen.paint(
            Look::Dim,
            &format!("  not in it: {leases} requests for Leases, one a second for each section and heartbeat"),
        ));
    }
}

fn sides() -> String {
    format!("{:>9}{:>9}{:>9}", "hub", "west", "east")
}

fn line(number: &str, title: &str, latency: &str, requests: &[Requests; 3]) -> String {
    let count = |count: usize| if count == 0 { format!("{:>9}", "-") } else { format!("{count:>9}") };
    let writes: String = requests.iter().map(|at| count(at.writes)).collect();
    let reads: String = requests.iter().map(|at| count(at.reads)).collect();
    format!("{number:>3}  {title:<11}{latency:>12}   {writes}{reads}")
}
