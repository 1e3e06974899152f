//! What makes the database tell of changes: a trigger on each table, and the one function that they call.
//!
//! Triggers are of the statement, not of the row: a statement that changes a million rows says so once, and within a
//! transaction equal notifications are one. What is there is looked at first, and only what is missing is made, so that
//! an account that may not make anything works where somebody else has made them. [`plan`] is pure.

use std::collections::BTreeMap;
use std::fmt;

use crate::cluster::full_text;
use crate::db::{self, Database, DatabaseSource, Session, Type, column};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::rules::family_spec;

/// Channel of the notifications, whose text is the changed table: `status.compliance`.
pub const CHANNEL: &str = "towline_status_sync";
/// Name of each trigger, and of the function in schema `status`.
const NAME: &str = "towline_notify";
/// The function's body. The writer of a row runs it, so that it names everything in full.
const BODY: &str = "BEGIN PERFORM pg_catalog.pg_notify('towline_status_sync', TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME); RETURN NULL; END";
/// `tgtype` of a trigger after each statement that inserts (4), deletes (8), updates (16) or truncates (32).
const AFTER_STATEMENT: i16 = 4 + 8 + 16 + 32;
/// A lock on a table that is being written to is not waited for longer: who waits for it keeps all later writers waiting.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '2s'";
/// One replica at a time makes or removes: "towline" in ASCII.
const IN_TURN: &str = "SELECT pg_advisory_xact_lock(32773656009076325)";

/// The tables whose changes some families want to know, with those families.
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
    /// Which events fire it, and when, as the catalogue has it.
    pub events: i16,
    /// Whether it calls our function.
    pub is_ours: bool,
    /// Whether it is disabled.
    pub disabled: bool,
}

/// What the database has of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The function's body, where there is one.
    pub body: Option<String>,
    /// Of the tables that there are, the trigger of our name.
    pub triggers: BTreeMap<String, Option<Trigger>>,
}

/// What is missing, and what is in the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The function is to be made, or made anew.
    pub function: bool,
    /// Tables that are to have a trigger.
    pub tables: Vec<String>,
    /// Tables that can have none, with the reason.
    pub faults: BTreeMap<String, String>,
}

/// Compares what is wanted with what is there.
pub fn plan<'t>(wanted: impl IntoIterator<Item = &'t String>, present: &Present) -> Plan {
    let mut plan = Plan { function: present.body.as_deref() != Some(BODY), ..Plan::default() };
    for table in wanted {
        let fault = match present.triggers.get(table) {
            None => "there is no such table",
            Some(None) => {
                plan.tables.push(table.clone());
                continue;
            }
            Some(Some(trigger)) if !trigger.is_ours || trigger.events != AFTER_STATEMENT => {
                "it has another trigger of the name towline_notify"
            }
            Some(Some(trigger)) if trigger.disabled => "its trigger towline_notify is disabled",
            Some(Some(_)) => continue,
        };
        plan.faults.insert(table.clone(), fault.to_owned());
    }
    plan
}

/// Looks at what is there of these tables.
pub async fn look(session: &Session, wanted: &[String]) -> Result<Present, db::Error> {
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

/// Makes what is missing, and returns the tables that are without, with the reason. An error where nothing can be said:
/// the connection is lost.
pub async fn make(session: &Session, wanted: &[String]) -> Result<BTreeMap<String, String>, db::Error> {
    let plan = plan(wanted, &look(session, wanted).await?);
    let mut faults = plan.faults;
    if plan.function {
        let function = format!(
            "CREATE OR REPLACE FUNCTION status.{NAME}() RETURNS trigger LANGUAGE plpgsql AS $towline${BODY}$towline$"
        );
        if let Err(error) = alone(session, "make_function", &function).await {
            lost(&error)?;
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
        if let Err(error) = alone(session, "make_trigger", &trigger).await {
            lost(&error)?;
            faults.insert(table, full_text(&error));
        }
    }
    Ok(faults)
}

/// Removes the triggers and their function, and returns the tables that had one. The function goes with all that calls
/// it, since a trigger alone can only be dropped by its table's owner.
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
        alone(session, "remove_triggers", &format!("DROP FUNCTION IF EXISTS status.{NAME}() CASCADE")).await?;
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

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Whether there was a function.
    pub function: bool,
    /// The tables that had a trigger.
    pub tables: Vec<String>,
}

/// A line for each, for people.
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

/// A statement in a transaction of its own, and in turn with other replicas.
async fn alone(session: &Session, query: &'static str, statement: &str) -> Result<(), db::Error> {
    let outcome = session.run(query, &format!("BEGIN; {LOCK_TIMEOUT}; {IN_TURN}; {statement}; COMMIT")).await;
    if outcome.as_ref().is_err_and(|error| !error.is_unreachable()) {
        session.run(query, "ROLLBACK").await?;
    }
    outcome
}

/// Passes on that the connection is lost.
fn lost(error: &db::Error) -> Result<(), db::Error> {
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
    fn what_is_there_is_not_made_again() {
        let wanted = ["status.compliance".to_owned(), "status.placements".to_owned()];
        let all = present(&[("status.compliance", Some(GOOD)), ("status.placements", Some(GOOD))]);
        assert_eq!(plan(&wanted, &all), Plan::default());
        let one = present(&[("status.compliance", Some(GOOD)), ("status.placements", None)]);
        let missing = Plan { tables: vec!["status.placements".to_owned()], ..Plan::default() };
        assert_eq!(plan(&wanted, &one), missing);
    }

    #[test]
    fn a_function_that_does_something_else_is_made_anew() {
        for body in [None, Some("BEGIN RETURN NULL; END".to_owned())] {
            assert!(plan(&[], &Present { body, ..Present::default() }).function);
        }
    }

    #[test]
    fn what_is_in_the_way_is_named_and_left_alone() {
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
    fn each_family_is_told_of_its_own_tables() {
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
