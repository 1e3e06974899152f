//! What operators see of the inventory, and the orders that they can give.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::config::InventoryConfig;
use super::plan::index::Summary;
use super::run::latest::{LatestState, ProjectState};
use super::run::poster::Poster;
use super::run::reconciler::Ask;
use crate::actor::Mailbox;
use crate::cluster::{ObjectKey, Watch};
use crate::config::SectionName;
use crate::job::not_listed;
use crate::status::{self, Facts, ObjectState, Objects, Refused};
use crate::telemetry;

/// The inventory as the admin server sees it.
pub(super) struct InventoryReport {
    config: Arc<InventoryConfig>,
    latest: Arc<LatestState>,
    poster: Arc<Poster>,
    projects: Arc<Watch>,
    watches: Vec<Arc<Watch>>,
    asks: Mailbox<Ask>,
}

impl InventoryReport {
    pub(super) fn new(
        config: Arc<InventoryConfig>,
        latest: Arc<LatestState>,
        poster: Arc<Poster>,
        projects: Arc<Watch>,
        watches: Vec<Arc<Watch>>,
        asks: Mailbox<Ask>,
    ) -> Self {
        Self { config, latest, poster, projects, watches, asks }
    }

    /// Asks the reconciler, which answers while it runs here.
    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T, Refused> {
        let (reply, answer) = oneshot::channel();
        let is_sent = self.asks.send(ask(reply)).await.is_ok();
        let unavailable = || Refused::Unavailable { reason: "the section does not run here".to_owned() };
        if is_sent { answer.await.map_err(|_| unavailable()) } else { Err(unavailable()) }
    }
}

/// A release as it is typed: NAMESPACE/NAME.
fn release(text: &str) -> Result<ObjectKey, Refused> {
    let (namespace, name) = text
        .split_once('/')
        .ok_or_else(|| Refused::Conflict { reason: format!("{text:?} is no release: NAMESPACE/NAME") })?;
    Ok(ObjectKey::new(namespace, name))
}

impl status::Section for InventoryReport {
    fn name(&self) -> &SectionName {
        &self.config.name
    }

    fn job(&self) -> &'static str {
        "inventory"
    }

    /// An API that does not answer, or refuses what it is sent, does not make the process unready.
    fn facts(&self) -> Facts {
        let state = self.latest.state();
        let collects = state.project == ProjectState::Counts;
        let watches = std::iter::once(&self.projects).chain(self.watches.iter().filter(|_| collects));
        let Summary { releases, pending, oldest_since, undelivered, status_failure, .. } = &state.summary;
        // One that is new waits before it is reported.
        let in_step = releases.saturating_sub(*pending);
        let mut objects = Objects::counted([(ObjectState::InStep, in_step), (ObjectState::Pending, *pending)]);
        objects.oldest = oldest_since.map(|since| since.elapsed());
        Facts {
            flow: format!("{}→{}", self.config.cluster, self.config.api_url.place()),
            subject: "releases".to_owned(),
            objects,
            clusters: vec![self.projects.cluster().status()],
            // A faulty token is the cause of what follows from it, and shows before anything is posted.
            undelivered: self.poster.token_fault().or_else(|| undelivered.clone()).or_else(|| status_failure.clone()),
            not_ready: not_listed(watches, |_| true),
            ..Facts::default()
        }
    }

    fn report(&self) -> Value {
        let state = self.latest.state();
        // A struct of plain values always serializes.
        let mut report = serde_json::to_value(&state.summary).unwrap_or(Value::Null);
        if let Some(fields) = report.as_object_mut() {
            fields.insert("project".to_owned(), json!(state.project.as_str()));
            if let Some(fault) = self.poster.token_fault() {
                fields.insert("token_fault".to_owned(), json!(fault));
            }
            if state.prunes {
                let text = "the CRD of the cluster drops sentHash: a restart sends all releases again";
                fields.insert("pruned".to_owned(), json!(text));
            }
        }
        report
    }

    fn refresh(&self) {
        let oldest = self.latest.state().summary.oldest_since.map(|since| since.elapsed());
        telemetry::oldest_pending(self.name(), "releases", oldest.unwrap_or_default());
    }

    fn resync<'s>(&'s self, name: Option<&'s str>) -> BoxFuture<'s, Result<Value, Refused>> {
        Box::pin(async move {
            let only = name.map(release).transpose()?;
            let count = self.ask(|reply| Ask::Resync { only, reply }).await?;
            if count == 0 {
                return Err(Refused::Conflict { reason: "no such release was sent".to_owned() });
            }
            tracing::info!(releases = count, "releases are sent again");
            Ok(json!({ "releases": count }))
        })
    }

    fn explain<'s>(&'s self, name: &'s str) -> BoxFuture<'s, Result<Value, Refused>> {
        Box::pin(async move {
            let key = release(name)?;
            let lines = self.ask(|reply| Ask::Explain { key, reply }).await?;
            let lines = lines.ok_or_else(|| Refused::Conflict { reason: format!("there is no release {name}") })?;
            Ok(json!({ "lines": lines }))
        })
    }
}
