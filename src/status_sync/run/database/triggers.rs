//! The triggers that make the database send a notification when a table changes, and the function that they all call.
//!
//! They are statement-level triggers: a statement that changes a million rows sends one notification, and `PostgreSQL`
//! merges equal notifications of a transaction. Existing triggers are looked up first, and only missing ones are created.
//! So an account without the rights to create them works if somebody else has created them.

use std::collections::BTreeMap;
use std::fmt;

use crate::cluster::full_text;
use crate::db::{self, Database, DatabaseSource, Session, Type, column};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::plan::family_spec;

/// Channel of the notifications. Their payload is the changed table: `status.compliance`.
pub const CHANNEL: &str = "towline_status_sync";
/// Name of each trigger, and of the function in schema `status`.
const NAME: &str = "towline_notify";
/// The function's body. It runs in the session of whoever changes the table, with that session's `search_path`, so it
/// qualifies every name.
const BODY: &str = "BEGIN PERFORM pg_catalog.pg_notify('towline_status_sync', TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME); RETURN NULL; END";
/// `tgtype` of a trigger after each statement that inserts (4), deletes (8), updates (16) or truncates (32).
const AFTER_STATEMENT: i16 = 4 + 8 + 16 + 32;
/// Limits the wait for a table's lock: a statement that waits for the lock blocks all later writers of the table.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '2s'";
/// Lets one replica at a time create or remove triggers. The key is "towline" in ASCII.
const LOCK_REPLICAS: &str = "SELECT pg_advisory_xact_lock(32773656009076325)";

/// The tables that these families read, each with the families that read it.
pub fn tables(families: &[StatusFamily]) -> BTreeMap<String, Vec<StatusFamily>> {
    let mut tables: BTreeMap<String, Vec<StatusFamily>> = BTreeMap::new();
    for family in families {
        for table in family_spec(*family).tables() {
            tables.entry(table).or_default().push(*family);
        }
    }
    tables
}

/// The trigger of our name on a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Which events fire it, and when: `tgtype` of the catalogue.
    pub events: i16,
    /// Whether it calls our function.
    pub is_ours: bool,
    pub disabled: bool,
}

/// What exists in the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The function's body, if it exists.
    pub body: Option<String>,
    /// For each table that exists the trigger of our name.
    pub triggers: BTreeMap<String, Option<Trigger>>,
}

/// What has to be created, and what prevents it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TriggerPlan {
    /// Whether the function has to be created or replaced.
    pub function: bool,
    /// Tables whose trigger has to be created.
    pub tables: Vec<String>,
    /// Tables whose trigger cannot be created, with the reason.
    pub faults: BTreeMap<String, String>,
}

/// Compares the wanted tables with what exists. Pure.
pub fn plan<'t>(wanted: impl IntoIterator<Item = &'t String>, present: &Present) -> TriggerPlan {
    let mut plan = TriggerPlan { function: present.body.as_deref() != Some(BODY), ..TriggerPlan::default() };
    for table in wanted {
        let fault = match present.triggers.get(table) {
            None => "there is no such table",
            Some(None) => {
                plan.tables.push(table.clone());
                continue;
            }
            Some(Some(trigger)) if !trigger.is_ours || trigger.events != AFTER_STATEMENT => {
                "it has another trigger named towline_notify"
            }
            Some(Some(trigger)) if trigger.disabled => "its trigger towline_notify is disabled",
            Some(Some(_)) => continue,
        };
        plan.faults.insert(table.clone(), fault.to_owned());
    }
    plan
}

/// Looks up what exists of the function and of these tables' triggers.
pub async fn look_up(session: &Session, wanted: &[String]) -> Result<Present, db::Error> {
    const QUERY: &str = "look_at_triggers";
    let text = format!(
        "SELECT n.nspname || '.' || c.relname, t.tgtype, t.tgenabled = 'D', coalesce(t.tgfoid = f.oid, false), f.prosrc \
         FROM (SELECT 1) one LEFT JOIN (SELECT p.oid, p.prosrc FROM pg_catalog.pg_proc p \
         JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
         WHERE n.nspname = 'status' AND p.proname = '{NAME}' AND p.pronargs = 0) f ON true \
         LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace) \
         ON n.nspname || '.' || c.relname = ANY ($1) AND c.relkind IN ('r', 'p') \
         LEFT JOIN pg_catalog.pg_trigger t ON t.tgrelid = c.oid AND t.tgname = '{NAME}' AND NOT t.tgisinternal"
    );
    let mut present = Present::default();
    for row in session.rows(QUERY, &text, &[(&wanted, Type::TEXT_ARRAY)]).await? {
        present.body = column(QUERY, &row, 4)?;
        let Some(table) = column::<Option<String>>(QUERY, &row, 0)? else { continue };
        let events: Option<i16> = column(QUERY, &row, 1)?;
        let disabled = column::<Option<bool>>(QUERY, &row, 2)?.unwrap_or_default();
        let is_ours = column(QUERY, &row, 3)?;
        present.triggers.insert(table, events.map(|events| Trigger { events, is_ours, disabled }));
    }
    Ok(present)
}

/// Creates what is missing, and returns the tables that are still without a trigger, with the reason. Fails only if the
/// connection is lost.
pub async fn create_missing(session: &Session, wanted: &[String]) -> Result<BTreeMap<String, String>, db::Error> {
    let plan = plan(wanted, &look_up(session, wanted).await?);
    let mut faults = plan.faults;
    if plan.function {
        let function = format!(
            "CREATE OR REPLACE FUNCTION status.{NAME}() RETURNS trigger LANGUAGE plpgsql AS $towline${BODY}$towline$"
        );
        if let Err(error) = in_transaction(session, "make_function", &function).await {
            fail_if_lost(&error)?;
            let reason = full_text(&error);
            faults.extend(plan.tables.iter().map(|table| (table.clone(), reason.clone())));
            return Ok(faults);
        }
    }
    // One table after the other, so that no two are locked at the same time.
    for table in plan.tables {
        let trigger = format!(
            "CREATE TRIGGER {NAME} AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table} \
             FOR EACH STATEMENT EXECUTE FUNCTION status.{NAME}()"
        );
        if let Err(error) = in_transaction(session, "make_trigger", &trigger).await {
            fail_if_lost(&error)?;
            faults.insert(table, full_text(&error));
        }
    }
    Ok(faults)
}

/// Removes the triggers and their function. It drops the function with all triggers that call it, since only a table's
/// owner could drop a single trigger.
pub async fn remove(session: &Session) -> Result<Removed, db::Error> {
    const QUERY: &str = "look_for_triggers";
    let text = format!(
        "SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_proc p \
         JOIN pg_catalog.pg_namespace s ON s.oid = p.pronamespace \
         LEFT JOIN (pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace) ON t.tgfoid = p.oid \
         WHERE s.nspname = 'status' AND p.proname = '{NAME}' AND p.pronargs = 0 ORDER BY 1"
    );
    let mut removed = Removed::default();
    for row in session.rows(QUERY, &text, &[]).await? {
        removed.function = true;
        removed.tables.extend(column::<Option<String>>(QUERY, &row, 0)?);
    }
    if removed.function {
        in_transaction(session, "remove_triggers", &format!("DROP FUNCTION IF EXISTS status.{NAME}() CASCADE")).await?;
    }
    Ok(removed)
}

/// [`remove`] over a connection of its own.
pub async fn remove_by(database: DatabaseSource) -> Result<Removed, db::Error> {
    let (session, mut messages) = Database::new(database).session("triggers").await?;
    tokio::select! {
        removed = remove(&session) => removed,
        lost = messages.until_lost() => Err(lost),
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Whether there was a function.
    pub function: bool,
    /// The tables that had a trigger.
    pub tables: Vec<String>,
}

/// One line each, for the command line.
impl fmt::Display for Removed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.function {
            return formatter.write_str("nothing to remove: there is no function status.towline_notify");
        }
        for table in &self.tables {
            writeln!(formatter, "removed trigger {NAME} on {table}")?;
        }
        write!(formatter, "removed function status.{NAME}")
    }
}

/// Runs a statement in a transaction of its own, while no other replica does.
async fn in_transaction(session: &Session, query: &'static str, statement: &str) -> Result<(), db::Error> {
    let outcome = session.run(query, &format!("BEGIN; {LOCK_TIMEOUT}; {LOCK_REPLICAS}; {statement}; COMMIT")).await;
    if outcome.as_ref().is_err_and(|error| !error.is_unreachable()) {
        session.run(query, "ROLLBACK").await?;
    }
    outcome
}

/// Fails if the error means that the connection is lost.
fn fail_if_lost(error: &db::Error) -> Result<(), db::Error> {
    if error.is_unreachable() { Err(error.clone()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(triggers: &[(&str, Option<Trigger>)]) -> Present {
        let triggers = triggers.iter().map(|(table, trigger)| ((*table).to_owned(), trigger.clone())).collect();
        Present { body: Some(BODY.to_owned()), triggers }
    }

    const GOOD: Trigger = Trigger { events: AFTER_STATEMENT, is_ours: true, disabled: false };

    #[test]
    fn existing_triggers_are_not_created_again() {
        let wanted = ["status.compliance".to_owned(), "status.placements".to_owned()];
        let all = present(&[("status.compliance", Some(GOOD)), ("status.placements", Some(GOOD))]);
        assert_eq!(plan(&wanted, &all), TriggerPlan::default());
        let one = present(&[("status.compliance", Some(GOOD)), ("status.placements", None)]);
        let missing = TriggerPlan { tables: vec!["status.placements".to_owned()], ..TriggerPlan::default() };
        assert_eq!(plan(&wanted, &one), missing);
    }

    #[test]
    fn a_function_with_another_body_is_replaced() {
        for body in [None, Some("BEGIN RETURN NULL; END".to_owned())] {
            assert!(plan(&[], &Present { body, ..Present::default() }).function);
        }
    }

    #[test]
    fn what_prevents_a_trigger_is_named_and_left_alone() {
        let cases = [
            (None, "there is no such table"),
            (Some(Trigger { is_ours: false, ..GOOD }), "another trigger"),
            (Some(Trigger { events: 5, ..GOOD }), "another trigger"),
            (Some(Trigger { disabled: true, ..GOOD }), "disabled"),
        ];
        for (trigger, reason) in cases {
            let there = match trigger {
                None => Present { body: Some(BODY.to_owned()), ..Present::default() },
                some => present(&[("status.compliance", some)]),
            };
            let plan = plan(&["status.compliance".to_owned()], &there);
            assert!(plan.faults["status.compliance"].contains(reason), "{plan:?}");
            assert!(plan.tables.is_empty() && !plan.function);
        }
    }

    #[test]
    fn each_table_has_the_families_that_read_it() {
        let all = tables(&StatusFamily::ALL);
        assert_eq!(all.len(), 10);
        assert_eq!(all["status.compliance"], [StatusFamily::Policies]);
        assert_eq!(all["spec.placements"], [StatusFamily::Placements, StatusFamily::PlacementDecisions]);
        assert_eq!(
            tables(&[StatusFamily::Policies]).keys().collect::<Vec<_>>(),
            ["spec.policies", "status.compliance"]
        );
    }
}
