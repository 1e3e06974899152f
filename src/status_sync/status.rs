//! What operators see of status sync, and the orders that they can give.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::run::database::Listener;
use super::run::poller::{FamilyReport, Poller, SectionContext};
use crate::cluster::Identity;
use crate::config::SectionName;
use crate::guard::{self, HeldChanges};
use crate::state::remembered;
use crate::telemetry::{
    self, ClusterStatus, Condition, Facts, Held, HeldObject, NotReady, Overview, Readiness, Refused,
};

/// The report of status sync for the admin server.
pub struct StatusSyncReport {
    name: SectionName,
    shared: Arc<SectionContext>,
    pollers: Vec<Arc<Poller>>,
    listener: Option<Arc<Listener>>,
}

impl StatusSyncReport {
    /// The report of these pollers and of the listener, if there is one.
    pub fn new(
        name: SectionName,
        shared: Arc<SectionContext>,
        pollers: Vec<Arc<Poller>>,
        listener: Option<Arc<Listener>>,
    ) -> Self {
        Self { name, shared, pollers, listener }
    }
}

impl StatusSyncReport {
    /// The cluster that all families write to.
    fn hub(&self) -> Option<ClusterStatus> {
        let poller = self.pollers.first()?;
        poller.watches().next().map(|watch| watch.cluster().status())
    }

    /// Why the whole section is held; `None` if it is not.
    fn objection(&self) -> Option<String> {
        self.shared.identification.current().held().map(|objection| objection.to_string())
    }

    /// What the guards of all families hold.
    fn held_changes(&self) -> HeldChanges {
        let mut held = HeldChanges::new();
        for (change, count) in self.pollers.iter().flat_map(|poller| poller.report().held) {
            *held.entry(change).or_default() += count;
        }
        held
    }

    fn facts(&self) -> Facts {
        let objection = self.objection();
        let mut facts = Facts { clusters: self.hub().into_iter().collect(), ..Facts::default() };
        let held = self.held_changes();
        for poller in &self.pollers {
            let report = poller.report();
            let family = poller.family().as_str();
            if let Some((_, error)) = &report.failure {
                facts.database.get_or_insert_with(|| format!("{family}: {error}"));
            }
            if let Some((_, error)) = &report.write_failure {
                facts.failing.get_or_insert_with(|| format!("{family}: {error}"));
            }
            facts.not_ready = facts.not_ready.or_else(|| not_ready(poller, &report, objection.is_some()));
        }
        facts.held = match objection {
            Some(objection) => Some(format!("{objection}; waits for `towline approve {}`", self.name)),
            None => (!held.is_empty()).then(|| guard::waits_for_approval(guard::in_words(&held), &self.name)),
        };
        facts
    }
}

/// Why no pass of a family can begin, or that its first pass is in progress. A held section is reported as held instead.
fn not_ready(poller: &Poller, report: &FamilyReport, is_held: bool) -> Option<NotReady> {
    let is_first = !is_held && report.passes == 0 && report.failure.is_none();
    let first_pass = || NotReady {
        reason: format!("the first pass of {} is in progress", poller.family().as_str()),
        unreachable: false,
    };
    poller.not_ready_because().or_else(|| is_first.then(first_pass))
}

impl telemetry::Section for StatusSyncReport {
    fn name(&self) -> &SectionName {
        &self.name
    }

    fn job(&self) -> &'static str {
        "status_sync"
    }

    fn condition(&self) -> Condition {
        Condition::of(&self.facts())
    }

    fn overview(&self) -> Overview {
        let reports = || self.pollers.iter().map(|poller| poller.report());
        let total: usize = reports().map(|report| report.objects).sum();
        let waiting: usize = reports().flat_map(|report| report.waiting.into_values()).sum();
        let oldest = reports().filter_map(|report| report.oldest_pending).min();
        Overview {
            flow: format!("database→{}", self.hub().map(|cluster| cluster.name.to_string()).unwrap_or_default()),
            subject: match self.pollers.as_slice() {
                [one] => one.family().as_str().to_owned(),
                many => format!("{} families", many.len()),
            },
            total,
            in_step: total.saturating_sub(waiting),
            oldest_seconds: oldest.map(|since| since.elapsed().as_secs_f64()),
        }
    }

    fn readiness(&self) -> Readiness {
        let objection = self.objection();
        let mut unreachable = None;
        for poller in &self.pollers {
            let report = poller.report();
            match (not_ready(poller, &report, objection.is_some()), &report.failure) {
                (Some(NotReady { reason, unreachable: true }), _) => unreachable = Some(reason),
                (Some(NotReady { reason, .. }), _) => return Readiness::NotReady(reason),
                (None, Some((_, error))) if report.passes == 0 => return Readiness::NotReady(error.clone()),
                (None, _) => {}
            }
        }
        let held = || objection.map_or(Readiness::Ready, Readiness::Held);
        unreachable.map_or_else(held, Readiness::Unreachable)
    }

    fn report(&self) -> Value {
        let families: Map<String, Value> = self
            .pollers
            .iter()
            .map(|poller| (poller.family().as_str().to_owned(), poller.report().to_json()))
            .collect();
        let mut report = json!({
            "database": self.shared.database.place(),
            "pool": self.shared.database.state(),
            "families": families,
            // A struct of plain values always serializes.
            "stored_state": serde_json::to_value(self.shared.identification.store().report()).unwrap_or(Value::Null),
        });
        let Some(map) = report.as_object_mut() else { return report };
        match self.shared.identification.identity() {
            Identity::Known(uid) => map.insert("hub_identity".to_owned(), json!(uid)),
            Identity::Unknown { reason } => map.insert("hub_identity_unknown".to_owned(), json!(reason)),
            Identity::Unread => None,
        };
        if let Some(listener) = &self.listener {
            map.insert("notify".to_owned(), listener.report().to_json());
        }
        report
    }

    fn refresh(&self) {
        self.pollers.iter().for_each(|poller| poller.refresh());
        guard::record_held(&self.name, &self.held_changes());
    }

    fn approve(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move {
            if let Some(objection) = self.shared.identification.approve() {
                tracing::info!(section = %self.name, overruled = %objection, "the hub is approved");
                let done = json!({"approved": 0, "overruled": objection.to_string()});
                let stored = self.shared.identification.store().wait_until_stored(&self.name, "the approval").await;
                return Ok(remembered(done, stored));
            }
            let approved: usize = self.pollers.iter().map(|poller| poller.approve()).sum();
            if approved == 0 {
                return Err(Refused::Conflict { reason: "nothing is held".into() });
            }
            tracing::info!(section = %self.name, objects = approved, "mass change approved");
            self.shared.approvals.send_modify(|approvals| *approvals += 1);
            Ok(remembered(json!({"approved": approved}), Err("the approval covers only what is held now")))
        })
    }

    fn held(&self) -> BoxFuture<'_, Result<Held, Refused>> {
        let mut objects = Vec::new();
        for poller in &self.pollers {
            let family = poller.family().as_str();
            objects.extend(poller.held().into_iter().map(|(key, change)| HeldObject {
                key: key.to_string(),
                kind: change.as_str(),
                reason: format!("its rows in the database are gone, like those of many others of {family}"),
            }));
        }
        let held = Held { because: self.objection(), objects };
        Box::pin(async { Ok(held) })
    }
}
