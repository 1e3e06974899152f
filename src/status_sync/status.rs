//! What operators see of status sync, and the orders that they can give.

use std::net::IpAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::run::database::Listener;
use super::run::poller::{FamilyReport, Poller, SectionContext, clearing_is_held};
use crate::cluster::{ClusterStatus, Identity, ObjectKey};
use crate::config::SectionName;
use crate::guard::{self, HeldChanges};
use crate::state::remembered;
use crate::status::{self, Facts, Held, HeldObject, NotReady, Refused};
use crate::telemetry;

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
}

/// Why no pass of a family can begin, or that its first pass is in progress or has failed. A held section is reported as held instead.
fn not_ready(poller: &Poller, report: &FamilyReport, is_held: bool) -> Option<NotReady> {
    let is_first = !is_held && report.passes == 0 && report.failure.is_none();
    let first_pass = || NotReady {
        reason: format!("the first pass of {} is in progress", poller.family().as_str()),
        unreachable: false,
    };
    let failed = report.failure.as_ref().filter(|_| report.passes == 0);
    let failed = || failed.map(|(_, error)| NotReady { reason: error.clone(), unreachable: false });
    poller.not_ready_because().or_else(|| is_first.then(first_pass)).or_else(failed)
}

impl status::Section for StatusSyncReport {
    fn name(&self) -> &SectionName {
        &self.name
    }

    fn job(&self) -> &'static str {
        "status_sync"
    }

    fn facts(&self) -> Facts {
        let hub = self.hub();
        let mut facts = Facts {
            flow: format!("database→{}", hub.as_ref().map(|cluster| cluster.name.to_string()).unwrap_or_default()),
            subject: match self.pollers.as_slice() {
                [one] => one.family().as_str().to_owned(),
                many => format!("{} families", many.len()),
            },
            clusters: hub.into_iter().collect(),
            objection: self.objection(),
            ..Facts::default()
        };
        let held = self.held_changes();
        for poller in &self.pollers {
            let report = poller.report();
            let family = poller.family().as_str();
            let mut rows = report.objects.clone();
            rows.oldest = report.oldest_pending.map(|since| since.elapsed());
            facts.objects.append(rows);
            if let Some((_, error)) = &report.failure {
                facts.database.get_or_insert_with(|| format!("{family}: {error}"));
            }
            if let Some((_, error)) = &report.write_failure {
                facts.failing.get_or_insert_with(|| format!("{family}: {error}"));
            }
            // What is not ready for another reason than a hub that does not answer comes first.
            let not_ready = not_ready(poller, &report, facts.objection.is_some());
            facts.not_ready = match (facts.not_ready.take(), not_ready) {
                (Some(first), Some(other)) if first.unreachable && !other.unreachable => Some(other),
                (first, other) => first.or(other),
            };
        }
        facts.held = (!held.is_empty()).then(|| guard::waits_for_approval(guard::in_words(&held), &self.name));
        facts
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
        for poller in &self.pollers {
            telemetry::oldest_pending(&self.name, poller.family().as_str(), poller.report().freshness());
        }
        guard::record_held(&self.name, &self.held_changes());
    }

    fn approve(&self, _from: IpAddr) -> BoxFuture<'_, Result<Value, Refused>> {
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
                reason: clearing_is_held(family),
                generation: None,
            }));
        }
        let held = Held { because: self.objection(), objects, ..Held::default() };
        Box::pin(async { Ok(held) })
    }

    fn explain<'s>(&'s self, name: &'s str) -> BoxFuture<'s, Result<Value, Refused>> {
        let (namespace, of_object) = name.split_once('/').unwrap_or(("", name));
        let key = ObjectKey::new(namespace, of_object);
        let found: Vec<_> = self.pollers.iter().filter_map(|poller| poller.explain(&key)).collect();
        // Of what has not been read it is not known whether it is there.
        let unread = self.pollers.iter().find(|poller| poller.report().passes == 0).filter(|_| found.is_empty());
        if let Some(poller) = unread {
            let reason = format!("section {} has not read all rows of {} yet", self.name, poller.family().as_str());
            return Box::pin(async { Err(Refused::Unavailable { reason }) });
        }
        status::explained(&self.name, &found, || format!("knows no object {name}: no row of the database is about it"))
    }
}
