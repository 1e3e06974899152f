//! The listener: an actor, where `notify = true`.
//!
//! It owns one connection beside the pool, on which the database tells which tables have changed, and makes the triggers
//! that tell it. To the pollers of those tables it says so by a counter, of which they see the latest value: any number
//! of notifications is one pass. It has no mailbox. Whatever happens to the connection costs no more than the time to the
//! next pass by the interval: it is made anew with back-off, and then every poller looks once. Drained, it hangs up.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use super::triggers::{self, CHANNEL};
use crate::actor::{Backoff, BoxError, Scope};
use crate::cluster::full_text;
use crate::db::{self, Database, Session, Subscriber};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::metrics::ListenerMetrics;

/// How long until the triggers are looked at again while some are missing: each try is an error in the database's log.
const MAKE_AGAIN: Backoff = Backoff::new(Duration::from_secs(30), LOOK_AGAIN);
/// The same while all are there: a table may be dropped and made anew.
const LOOK_AGAIN: Duration = Duration::from_mins(10);

/// What the listener shows.
#[derive(Clone, Debug, Default)]
pub struct ListenerReport {
    /// Whether the connection stands and listens.
    pub listening: bool,
    /// Connections so far that did.
    pub connections: u64,
    /// Notifications so far.
    pub notifications: u64,
    /// Tables that don't tell, with the reason.
    pub without_trigger: BTreeMap<String, String>,
    /// Kind and text of what the last connection failed with.
    pub failure: Option<(&'static str, String)>,
}

impl ListenerReport {
    /// As `/status` shows it.
    pub fn to_json(&self) -> Value {
        let mut report = json!({
            "listening": self.listening,
            "connections": self.connections,
            "notifications": self.notifications,
            "without_trigger": self.without_trigger,
        });
        if let (Some((kind, error)), Some(map)) = (&self.failure, report.as_object_mut()) {
            map.insert("failure".to_owned(), json!({"kind": kind, "error": error}));
        }
        report
    }
}

/// A listener: what outlives its instances.
pub struct Listener {
    database: Database,
    /// For each table the counters of the families that read it.
    hints: BTreeMap<String, Vec<watch::Sender<u64>>>,
    tables: Vec<String>,
    report: watch::Sender<ListenerReport>,
    metrics: ListenerMetrics,
}

impl Listener {
    /// A listener that is not started. It counts the notifications that concern a family in that family's counter.
    pub fn new(database: Database, counters: &[(StatusFamily, watch::Sender<u64>)]) -> Self {
        let families: Vec<StatusFamily> = counters.iter().map(|(family, _)| *family).collect();
        let of = |families: Vec<StatusFamily>| {
            counters.iter().filter(|(family, _)| families.contains(family)).map(|(_, counter)| counter.clone()).collect()
        };
        let hints: BTreeMap<String, Vec<watch::Sender<u64>>> =
            triggers::tables(&families).into_iter().map(|(table, families)| (table, of(families))).collect();
        let tables = hints.keys().cloned().collect();
        let report = watch::Sender::new(ListenerReport::default());
        Self { database, hints, tables, report, metrics: ListenerMetrics::new() }
    }

    /// Its own report, as it is now.
    pub fn report(&self) -> ListenerReport {
        self.report.borrow().clone()
    }

    /// Refreshes the gauges, before a scrape.
    pub fn refresh(&self) {
        let report = self.report.borrow();
        self.metrics.set(report.listening, report.without_trigger.len());
    }

    /// Runs until it is drained.
    pub async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        let listener = db::Listener::new(self.database.clone(), "listener", &[CHANNEL]);
        let hearing = Hearing { listener: &self, scope: &scope };
        tokio::select! {
            () = scope.draining() => Ok(()),
            never = listener.run(&hearing) => match never {},
        }
    }

    /// Sees to the triggers, and lets every poller look at what changed before.
    async fn tend(&self, session: &Session, scope: &Scope) -> Result<Infallible, db::Error> {
        let mut before: Option<BTreeMap<String, String>> = None;
        let mut tries = 0;
        loop {
            let without = triggers::make(session, &self.tables).await?;
            if before.is_none() {
                scope.set_state("listening");
                tracing::info!(database = self.database.place(), "listening for changes");
            }
            self.publish(&without, before.is_none());
            // What was changed before there was a connection, or a trigger, nobody has told.
            let news = |table: &&String| match &before {
                None => true,
                Some(before) => before.contains_key(*table) && !without.contains_key(*table),
            };
            self.tables.iter().filter(news).for_each(|table| self.hint(table));
            tries = if before.as_ref() == Some(&without) { tries + 1 } else { 0 };
            let delay = if without.is_empty() { LOOK_AGAIN } else { MAKE_AGAIN.next_delay(tries) };
            before = Some(without);
            tokio::time::sleep(delay).await;
        }
    }

    fn hint(&self, table: &str) {
        for counter in self.hints.get(table).into_iter().flatten() {
            counter.send_modify(|hints| *hints += 1);
        }
    }

    /// Tells which tables are without a trigger; `begins` where the connection has just begun to listen.
    fn publish(&self, without: &BTreeMap<String, String>, begins: bool) {
        self.report.send_modify(|report| {
            if begins {
                report.listening = true;
                report.connections += 1;
                report.failure = None;
            }
            if report.without_trigger != *without {
                for (table, reason) in without {
                    tracing::warn!(table, reason, "a table does not tell of its changes, they wait for the next pass");
                }
                report.without_trigger.clone_from(without);
            }
        });
    }

    fn failed(&self, error: &db::Error, failures: u32) {
        let (kind, text) = (error.kind(), full_text(error));
        if failures == 0 {
            tracing::warn!(kind, error = %text, "not listening for changes, trying on");
        } else {
            tracing::debug!(kind, error = %text, "still not listening for changes");
        }
        let failure = Some((kind, text));
        self.report.send_modify(|report| report.failure = failure);
    }
}

/// What the connection tells while the listener runs.
struct Hearing<'l> {
    listener: &'l Listener,
    scope: &'l Scope,
}

impl Subscriber for Hearing<'_> {
    fn connecting(&self) {
        self.scope.set_state("connecting");
    }

    async fn listening(&self, session: &Session) -> Result<(), db::Error> {
        let _listening = Listening(&self.listener.report);
        match self.listener.tend(session, self.scope).await? {}
    }

    fn notified(&self, _channel: &str, table: &str) {
        self.listener.report.send_modify(|report| report.notifications += 1);
        self.listener.metrics.notified();
        self.listener.hint(table);
    }

    fn failed(&self, error: &db::Error, failures: u32) {
        self.listener.failed(error, failures);
        self.scope.set_state("waiting");
    }
}

/// However a connection ends, it no longer listens.
struct Listening<'l>(&'l watch::Sender<ListenerReport>);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|report| report.listening = false);
    }
}
