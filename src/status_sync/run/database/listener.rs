//! The listener: an actor that receives the database's notifications of changes. It runs only with `notify = true`.
//!
//! It owns one connection beside the pool, creates the triggers, and listens. A notification names a table; the listener
//! increments a counter of each family that reads the table. A poller sees only the latest value of its counter, so any
//! number of notifications causes one pass, and nothing queues up. The listener has no mailbox.
//!
//! A lost connection delays changes at most until the next pass by the interval. The listener reconnects with back-off,
//! and then hints every family, since changes in between caused no notification. When drained, it closes the connection.

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

/// Back-off of creating triggers while some are missing. Each failed attempt is an error in the database's log.
const CREATE_AGAIN: Backoff = Backoff::new(Duration::from_secs(30), CHECK_EVERY);
/// How often the triggers are checked while all exist: a table may be dropped and created again without its trigger.
const CHECK_EVERY: Duration = Duration::from_mins(10);

/// What operators see of the listener.
#[derive(Clone, Debug, Default)]
pub struct ListenerReport {
    pub listening: bool,
    /// Connections so far that have listened.
    pub connections: u64,
    /// Notifications so far.
    pub notifications: u64,
    /// Tables that send no notifications, with the reason.
    pub without_trigger: BTreeMap<String, String>,
    /// Kind and text of the error that ended the last connection.
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

/// A listener, across the runs of its actor.
pub struct Listener {
    database: Database,
    /// For each table the counters of the families that read it.
    hints: BTreeMap<String, Vec<watch::Sender<u64>>>,
    tables: Vec<String>,
    report: watch::Sender<ListenerReport>,
}

impl Listener {
    /// A listener that is not started. It counts the notifications that concern a family in that family's counter.
    pub fn new(database: Database, counters: &[(StatusFamily, watch::Sender<u64>)]) -> Self {
        let families: Vec<StatusFamily> = counters.iter().map(|(family, _)| *family).collect();
        let of = |families: Vec<StatusFamily>| {
            counters
                .iter()
                .filter(|(family, _)| families.contains(family))
                .map(|(_, counter)| counter.clone())
                .collect()
        };
        let hints: BTreeMap<String, Vec<watch::Sender<u64>>> =
            triggers::tables(&families).into_iter().map(|(table, families)| (table, of(families))).collect();
        let tables = hints.keys().cloned().collect();
        let report = watch::Sender::new(ListenerReport::default());
        Self { database, hints, tables, report }
    }

    /// Its own report, as it is now.
    pub fn report(&self) -> ListenerReport {
        self.report.borrow().clone()
    }

    pub async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        let listener = db::Listener::new(self.database.clone(), "listener", &[CHANNEL]);
        let subscription = Subscription { listener: &self, scope: &scope };
        tokio::select! {
            () = scope.draining() => Ok(()),
            never = listener.run(&subscription) => match never {},
        }
    }

    /// Creates missing triggers, at once and from time to time, and hints the families whose changes so far may have
    /// caused no notification. Returns when the connection is lost.
    async fn maintain_triggers(&self, session: &Session, scope: &Scope) -> Result<Infallible, db::Error> {
        let mut before: Option<BTreeMap<String, String>> = None;
        let mut tries = 0;
        loop {
            let without = triggers::create_missing(session, &self.tables).await?;
            if before.is_none() {
                scope.set_state("listening");
                tracing::info!(database = self.database.place(), "listening for changes");
            }
            self.publish(&without, before.is_none());
            // Changes before the connection listened, or before a table had its trigger, have caused no notification.
            let may_have_changed = |table: &&String| match &before {
                None => true,
                Some(before) => before.contains_key(*table) && !without.contains_key(*table),
            };
            self.tables.iter().filter(may_have_changed).for_each(|table| self.hint(table));
            tries = if before.as_ref() == Some(&without) { tries + 1 } else { 0 };
            let delay = if without.is_empty() { CHECK_EVERY } else { CREATE_AGAIN.next_delay(tries) };
            before = Some(without);
            tokio::time::sleep(delay).await;
        }
    }

    /// Makes the next pass of the families that read a table begin earlier.
    fn hint(&self, table: &str) {
        for counter in self.hints.get(table).into_iter().flatten() {
            counter.send_modify(|hints| *hints += 1);
        }
    }

    /// Reports the tables that send no notifications. `begins` says that the connection has just begun to listen.
    fn publish(&self, without: &BTreeMap<String, String>, begins: bool) {
        self.report.send_modify(|report| {
            if begins {
                report.listening = true;
                report.connections += 1;
                report.failure = None;
            }
            if report.without_trigger != *without {
                for (table, reason) in without {
                    tracing::warn!(table, reason, "table sends no notifications, its changes wait for the next pass");
                }
                report.without_trigger.clone_from(without);
            }
        });
    }
}

/// Handles what happens to the connection during one run of the actor.
struct Subscription<'l> {
    listener: &'l Listener,
    scope: &'l Scope,
}

impl Subscriber for Subscription<'_> {
    fn connecting(&self) {
        self.scope.set_state("connecting");
    }

    async fn listening(&self, session: &Session) -> Result<(), db::Error> {
        let _listening = Listening(&self.listener.report);
        match self.listener.maintain_triggers(session, self.scope).await? {}
    }

    fn notified(&self, _channel: &str, table: &str) {
        self.listener.report.send_modify(|report| report.notifications += 1);
        self.listener.hint(table);
    }

    fn failed(&self, error: &db::Error) {
        let failure = Some((error.kind(), full_text(error)));
        self.listener.report.send_modify(|report| report.failure = failure);
        self.scope.set_state("waiting");
    }
}

/// Reports that the connection no longer listens, however it ends.
struct Listening<'l>(&'l watch::Sender<ListenerReport>);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|report| report.listening = false);
    }
}
