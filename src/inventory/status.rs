//! What operators see of the inventory, and the orders that they can give.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::config::InventoryConfig;
use super::metrics::InventoryMetrics;
use super::plan::index::Summary;
use super::run::reconciler::Ask;
use super::run::shown::{ProjectState, Shown};
use crate::actor::Mailbox;
use crate::cluster::{ObjectKey, Watch};
use crate::config::SectionName;
use crate::job::not_listed;
use crate::telemetry::{self, Condition, Facts, Overview, Readiness, Refused};

/// The inventory as the admin server sees it.
pub(super) struct InventoryReport {
    config: Arc<InventoryConfig>,
    shown: Arc<Shown>,
    metrics: Arc<InventoryMetrics>,
    projects: Arc<Watch>,
    watches: Vec<Arc<Watch>>,
    asks: Mailbox<Ask>,
}

impl InventoryReport {
    pub(super) fn new(
        config: Arc<InventoryConfig>,
        shown: Arc<Shown>,
        metrics: Arc<InventoryMetrics>,
        projects: Arc<Watch>,
        watches: Vec<Arc<Watch>>,
        asks: Mailbox<Ask>,
    ) -> Self {
        Self { config, shown, metrics, projects, watches, asks }
    }

    fn facts(&self) -> Facts {
        let state = self.shown.state();
        let collects = state.project == ProjectState::Counts;
        let watches = std::iter::once(&self.projects).chain(self.watches.iter().filter(|_| collects));
        Facts {
            clusters: vec![self.projects.cluster().status()],
            failing: state.summary.undelivered.clone().or_else(|| state.summary.status_failure.clone()),
            not_ready: not_listed(watches, |_| true),
            ..Facts::default()
        }
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

impl telemetry::Section for InventoryReport {
    fn name(&self) -> &SectionName {
        &self.config.name
    }

    fn job(&self) -> &'static str {
        "inventory"
    }

    fn condition(&self) -> Condition {
        Condition::of(&self.facts())
    }

    fn overview(&self) -> Overview {
        let state = self.shown.state();
        let Summary { releases, pending, oldest_since, .. } = &state.summary;
        Overview {
            flow: format!("{}→{}", self.config.cluster, self.config.api_url.place()),
            subject: "releases".to_owned(),
            total: *releases,
            in_step: releases.saturating_sub(*pending),
            oldest_seconds: oldest_since.map(|since| since.elapsed().as_secs_f64()),
        }
    }

    /// An API that does not answer, or refuses what it is sent, does not make the process unready.
    fn readiness(&self) -> Readiness {
        let facts = self.facts();
        match (facts.readiness(), facts.failing) {
            (Readiness::Ready, Some(failing)) => Readiness::Unreachable(failing),
            (readiness, _) => readiness,
        }
    }

    fn report(&self) -> Value {
        let state = self.shown.state();
        // A struct of plain values always serializes.
        let mut report = serde_json::to_value(&state.summary).unwrap_or(Value::Null);
        if let Some(fields) = report.as_object_mut() {
            fields.insert("project".to_owned(), json!(state.project.as_str()));
            if state.prunes {
                let text = "the CRD of the cluster drops sentHash: a restart sends all releases again";
                fields.insert("pruned".to_owned(), json!(text));
            }
        }
        report
    }

    fn refresh(&self) {
        self.metrics.set(&self.shown.state().summary);
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
