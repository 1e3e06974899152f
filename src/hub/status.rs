//! What the admin server shows of the hub.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::config::HUB;
use super::run::actors::Hub;
use crate::cluster::full_text;
use crate::config::SectionName;
use crate::db;
use crate::documents::{ConnectionState, Purpose, SchemaState};
use crate::status::{self, Facts, NotReady};

pub(super) struct HubReport(pub(super) Arc<Hub>);

impl HubReport {
    /// How the database fails. The tail reads once a second, and the claims are renewed by writes; requests notice first that there are no
    /// new connections.
    fn outage(&self) -> Option<db::Error> {
        let hub = &self.0;
        hub.tail.state().failure.or_else(|| hub.outages.failure()).or_else(|| hub.claims.failure())
    }

    /// The files that can't be used.
    fn faulty_files(&self) -> Option<String> {
        let tokens = self.0.tokens.as_ref().and_then(|file| file.fault().borrow().clone());
        let keys = self.0.keys.as_ref().and_then(|file| file.fault().borrow().clone());
        let faults: Vec<String> = tokens.into_iter().chain(keys).map(|error| full_text(&*error)).collect();
        (!faults.is_empty()).then(|| faults.join("; "))
    }

    /// How the broker fails. The database does its work meanwhile, so requests are served.
    fn unusable_broker(&self) -> Option<String> {
        let connection_states = self.0.bus.as_ref()?.0.connection_states();
        let (_, state) = connection_states.into_iter().find(|(_, state)| *state != ConnectionState::Ready)?;
        Some(format!("the broker can't be used: {state}"))
    }

    /// Why no request can be served.
    fn not_ready(&self) -> Option<NotReady> {
        let not_ready = |reason: String, unreachable| Some(NotReady { reason, unreachable });
        if let SchemaState::Missing { reason, .. } = &*self.0.schema.borrow() {
            return not_ready(reason.clone(), false);
        }
        if let Some(failure) = self.outage() {
            let what = if failure.is_unreachable() { "does not answer" } else { "refuses statements" };
            return not_ready(format!("the database {what}: {}", full_text(&failure)), failure.is_unreachable());
        }
        if !self.0.tail.state().is_ready {
            return not_ready("the log has not been read yet".to_owned(), false);
        }
        let awaited = self.0.config.listen.filter(|_| self.0.listening.borrow().is_none());
        awaited.and_then(|address| not_ready(format!("the API does not listen on {address} yet"), false))
    }
}

impl status::Section for HubReport {
    fn name(&self) -> &SectionName {
        &self.0.config.name
    }

    fn job(&self) -> &'static str {
        HUB
    }

    fn facts(&self) -> Facts {
        let api = self.0.listening.borrow().map_or_else(|| "no API".to_owned(), |address| address.to_string());
        Facts {
            flow: format!("{api}→database"),
            subject: "no objects".to_owned(),
            database: self.outage().map(|failure| full_text(&failure)),
            failing: self.faulty_files().or_else(|| self.unusable_broker()),
            not_ready: self.not_ready(),
            ..Facts::default()
        }
    }

    fn report(&self) -> Value {
        let hub = &self.0;
        let tail = hub.tail.state();
        let schema = match &*hub.schema.borrow() {
            SchemaState::Current => "current".to_owned(),
            SchemaState::Missing { reason, .. } => reason.clone(),
        };
        let held = |of: &str, name: &str, token: i64, age: Duration| json!({of: name, "holder": hub.holder.as_str(), "token": token, "held_seconds": age.as_secs()});
        let claims =
            hub.claims.grants().map(|(role, grant)| held("role", role.as_str(), grant.token, grant.since.elapsed()));
        let work = hub.claims.held_work();
        let work = work.iter().map(|claim| held("cluster", &claim.cluster.to_string(), claim.token, claim.age));
        let bus = hub.bus.as_ref().map(|(broker, _)| {
            let state = |(purpose, state): (Purpose, ConnectionState)| {
                (purpose.as_str().to_owned(), json!({"state": state.as_str(), "detail": state.to_string()}))
            };
            let connections: serde_json::Map<_, _> = broker.connection_states().into_iter().map(state).collect();
            json!({"broker": broker.place(), "connections": connections})
        });
        json!({
            "api": hub.listening.borrow().map(|address| address.to_string()),
            "database": hub.database.place(),
            "pool": hub.database.state(),
            "schema": schema,
            "version": tail.version.to_string(),
            "base": tail.base.to_string(),
            "listening": tail.is_listening,
            "unreadable_rows": tail.unreadable,
            "ring": {"events": tail.ring.0, "bytes": tail.ring.1},
            "watches": hub.watches.taken(),
            "waiting_bytes": hub.handle.waiting_bytes(),
            "holder": hub.holder.as_str(),
            "claims": claims.collect::<Vec<_>>(),
            "work_claims": work.collect::<Vec<_>>(),
            "bus": bus,
            "tokens": hub.tokens.as_ref().map(|tokens| tokens.content().borrow().tokens()),
            "seals": hub.keys.is_some(),
        })
    }

    fn refresh(&self) {
        self.0.metrics.set_watchers(self.0.watches.taken());
    }
}
