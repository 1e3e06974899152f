//! `towline check --connect`: whether the database has everything that status sync needs.

use std::collections::BTreeMap;

use super::triggers;
use crate::cluster::full_text;
use crate::db::{self, Database, Session, Type, column};
use crate::status_sync::config::StatusSyncConfig;
use crate::status_sync::plan::family_spec;

/// What the database lacks, each fault with the database's place.
pub async fn check_database(config: &StatusSyncConfig) -> Vec<String> {
    let url = match config.database.url() {
        Ok(url) => url,
        Err(error) => return vec![full_text(&error)],
    };
    let place = url.place();
    let fault = |error: db::Error| vec![format!("database {place}: {}", full_text(&error))];
    let (session, mut messages) = match Database::new(config.database.clone()).session("check").await {
        Ok(halves) => halves,
        Err(error) => return fault(error),
    };
    let outcome = tokio::select! {
        outcome = check_tables(config, &session) => outcome,
        lost = messages.until_lost() => Err(lost),
    };
    match outcome {
        Ok(faults) => faults.into_iter().map(|text| format!("database {place}: {text}")).collect(),
        Err(error) => fault(error),
    }
}

/// Checks the tables of the families, their columns, and with `notify` the triggers.
async fn check_tables(config: &StatusSyncConfig, session: &Session) -> Result<Vec<String>, db::Error> {
    let mut wanted = BTreeMap::new();
    for family in &config.families {
        let spec = family_spec(*family);
        wanted.extend(spec.tables().into_iter().zip(spec.columns()));
    }
    let tables: Vec<String> = wanted.keys().cloned().collect();
    let mut faults = missing_columns(&wanted, &columns(session, &tables).await?);
    if config.notify {
        faults.extend(missing_triggers(session, &tables).await?);
    }
    Ok(faults)
}

/// A column of a table in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    of_type: String,
    readable: bool,
}

/// The columns of each table, by name.
type Columns = BTreeMap<String, BTreeMap<String, Column>>;

async fn columns(session: &Session, tables: &[String]) -> Result<Columns, db::Error> {
    const QUERY: &str = "look_at_columns";
    const TEXT: &str = "SELECT n.nspname || '.' || c.relname, a.attname::text, pg_catalog.format_type(a.atttypid, NULL), \
         has_schema_privilege(n.oid, 'USAGE') AND has_column_privilege(c.oid, a.attnum, 'SELECT') \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
         WHERE n.nspname || '.' || c.relname = ANY ($1) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')";
    let mut found = Columns::new();
    for row in session.rows(QUERY, TEXT, &[(&tables, Type::TEXT_ARRAY)]).await? {
        let (table, name): (String, String) = (column(QUERY, &row, 0)?, column(QUERY, &row, 1)?);
        let (of_type, readable) = (column(QUERY, &row, 2)?, column(QUERY, &row, 3)?);
        found.entry(table).or_default().insert(name, Column { of_type, readable });
    }
    Ok(found)
}

/// Compares the columns that status sync reads with those that exist.
fn missing_columns(wanted: &BTreeMap<String, &[(&str, Option<&str>)]>, found: &Columns) -> Vec<String> {
    let mut faults = Vec::new();
    for (table, columns) in wanted {
        let Some(existing) = found.get(table) else {
            faults.push(format!("there is no table {table}"));
            continue;
        };
        if existing.values().all(|column| !column.readable) {
            faults.push(format!("not allowed to read table {table}"));
            continue;
        }
        for (name, of_type) in *columns {
            match (existing.get(*name), of_type) {
                (None, _) => faults.push(format!("table {table} has no column {name}")),
                (Some(column), _) if !column.readable => {
                    faults.push(format!("not allowed to read column {name} of table {table}"));
                }
                (Some(column), Some(wanted)) if column.of_type != *wanted => {
                    let found = &column.of_type;
                    faults.push(format!("column {name} of table {table} is of type {found}, and should be {wanted}"));
                }
                (Some(_), _) => {}
            }
        }
    }
    faults
}

/// What `notify` needs and the account cannot create.
async fn missing_triggers(session: &Session, tables: &[String]) -> Result<Vec<String>, db::Error> {
    const QUERY: &str = "look_at_rights";
    const TEXT: &str = "SELECT n.nspname || '.' || c.relname, has_table_privilege(c.oid, 'TRIGGER') \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname || '.' || c.relname = ANY ($1) \
         UNION ALL SELECT '', has_schema_privilege('status', 'CREATE') \
         WHERE EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'status') ORDER BY 1";
    let plan = triggers::plan(tables, &triggers::look_up(session, tables).await?);
    let mut faults: Vec<String> =
        plan.faults.iter().map(|(table, reason)| format!("notify: table {table}: {reason}")).collect();
    for row in session.rows(QUERY, TEXT, &[(&plan.tables, Type::TEXT_ARRAY)]).await? {
        let (table, allowed): (String, bool) = (column(QUERY, &row, 0)?, column(QUERY, &row, 1)?);
        match (allowed, table.as_str()) {
            (false, "") if plan.function => {
                faults.push("notify: not allowed to create a function in schema status".to_owned());
            }
            (true, _) | (false, "") => {}
            (false, table) => faults.push(format!("notify: not allowed to create a trigger on table {table}")),
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status_sync::config::StatusFamily;

    #[test]
    fn every_missing_column_and_right_is_named() {
        let wanted: BTreeMap<_, _> = {
            let spec = family_spec(StatusFamily::Policies);
            spec.tables().into_iter().zip(spec.columns()).collect()
        };
        let column = |of_type: &str, readable| Column { of_type: of_type.to_owned(), readable };
        let spec =
            BTreeMap::from([("id".to_owned(), column("text", true)), ("payload".to_owned(), column("jsonb", false))]);
        let missing = missing_columns(&wanted, &Columns::from([("spec.policies".to_owned(), spec)]));
        assert_eq!(
            missing,
            [
                "column id of table spec.policies is of type text, and should be uuid",
                "not allowed to read column payload of table spec.policies",
                "table spec.policies has no column deleted",
                "there is no table status.compliance",
            ]
        );
        let hidden = BTreeMap::from([("id".to_owned(), column("uuid", false))]);
        let missing = missing_columns(&wanted, &Columns::from([("status.compliance".to_owned(), hidden)]));
        assert_eq!(missing, ["there is no table spec.policies", "not allowed to read table status.compliance"]);
    }
}
