//! `towline check --connect`: what status sync needs of the hub and of its database, and whether it is there.

use std::collections::{BTreeMap, BTreeSet};

use super::config::StatusSyncConfig;
use super::rules::{FamilySpec as Facts, Home, Shape, family_spec as facts};
use super::triggers;
use crate::cluster::{AccessRequest, Cluster, Kind, Verb, full_text};
use crate::db::{self, Database, Messages, Param, Session, column};

/// Everything that is missing, one sentence each. `cluster` is the hub, where it answers.
pub(super) async fn check(config: &StatusSyncConfig, cluster: Option<&Cluster>) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(cluster) = cluster {
        faults.extend(check_hub(config, cluster).await);
    }
    faults.extend(check_database(config).await);
    faults
}

async fn check_hub(config: &StatusSyncConfig, cluster: &Cluster) -> Vec<String> {
    let name = cluster.name();
    let mut faults = Vec::new();
    let mut needed = Vec::new();
    let mut unserved = BTreeSet::new();
    for family in &config.families {
        let facts = facts(*family);
        for (resource, is_target) in
            std::iter::once((facts.target(), true)).chain(facts.owner().map(|owner| (owner, false)))
        {
            match Kind::discover(cluster, &resource).await {
                Ok(kind) => add_needed(&mut needed, &facts, &kind, is_target, &config.watch_namespace),
                Err(error) => {
                    if unserved.insert(resource.to_string()) {
                        faults.push(format!("cluster {name}: kind {resource}: {}", error.to_string().trim_end()));
                    }
                }
            }
        }
    }
    for request in needed {
        match cluster.review_access(&request).await {
            Ok(decision) if decision.allowed => {}
            Ok(decision) => faults.push(format!("cluster {name}: {}", request.denied(&decision.reason))),
            Err(error) => faults.push(format!("cluster {name}: {error}")),
        }
    }
    faults
}

/// The permissions on one kind of a family, as the specification lists them.
fn add_needed(needed: &mut Vec<AccessRequest>, facts: &Facts, kind: &Kind, is_target: bool, namespace: &str) {
    let resource = kind.full_resource();
    let mut need = |verbs: &[Verb], resource: &str| {
        for verb in verbs {
            let request = AccessRequest::new(*verb, resource, namespace, "");
            if !needed.contains(&request) {
                needed.push(request);
            }
        }
    };
    need(&[Verb::Get, Verb::List, Verb::Watch], &resource);
    if !is_target {
        // What is made blocks the deletion of its owner.
        need(&[Verb::Update], &format!("{resource}/finalizers"));
        return;
    }
    if facts.home == Home::Status && kind.status_subresource {
        need(&[Verb::Patch], &format!("{resource}/status"));
    } else {
        need(&[Verb::Patch], &resource);
    }
    if facts.shape != Shape::Itself {
        need(&[Verb::Create, Verb::Delete], &resource);
    }
}

async fn check_database(config: &StatusSyncConfig) -> Vec<String> {
    let url = match config.database.url() {
        Ok(url) => url,
        Err(error) => return vec![full_text(&error)],
    };
    let place = url.place();
    let fault = |error: db::Error| vec![format!("database {place}: {error}")];
    let (session, mut messages) = match Database::new(config.database.clone()).session("check").await {
        Ok(halves) => halves,
        Err(error) => return fault(error),
    };
    let outcome = tokio::select! {
        outcome = ask(config, &session) => outcome,
        lost = until_lost(&mut messages) => Err(lost),
    };
    match outcome {
        Ok(faults) => faults.into_iter().map(|text| format!("database {place}: {text}")).collect(),
        Err(error) => fault(error),
    }
}

async fn until_lost(messages: &mut Messages) -> db::Error {
    loop {
        if let Err(error) = messages.notification().await {
            return error;
        }
    }
}

async fn ask(config: &StatusSyncConfig, session: &Session) -> Result<Vec<String>, db::Error> {
    let mut wanted = BTreeMap::new();
    for family in &config.families {
        let facts = facts(*family);
        wanted.extend(facts.tables().into_iter().zip(facts.columns()));
    }
    let tables: Vec<String> = wanted.keys().cloned().collect();
    let mut faults = missing_columns(&wanted, &columns(session, &tables).await?);
    if config.notify {
        faults.extend(missing_triggers(session, &tables).await?);
    }
    Ok(faults)
}

/// A column as the catalogue has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    of_type: String,
    readable: bool,
}

/// Columns by name, by table.
type Columns = BTreeMap<String, BTreeMap<String, Column>>;

async fn columns(session: &Session, tables: &[String]) -> Result<Columns, db::Error> {
    const QUERY: &str = "look_at_columns";
    const TEXT: &str = "SELECT n.nspname || '.' || c.relname, a.attname::text, pg_catalog.format_type(a.atttypid, NULL), \
         has_schema_privilege(n.oid, 'USAGE') AND has_column_privilege(c.oid, a.attnum, 'SELECT') \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
         WHERE n.nspname || '.' || c.relname = ANY ($1) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')";
    let mut found = Columns::new();
    for row in session.rows(QUERY, TEXT, &[Param::Texts(tables.to_vec())]).await? {
        let (table, name): (String, String) = (column(QUERY, &row, 0)?, column(QUERY, &row, 1)?);
        let (of_type, readable) = (column(QUERY, &row, 2)?, column(QUERY, &row, 3)?);
        found.entry(table).or_default().insert(name, Column { of_type, readable });
    }
    Ok(found)
}

/// Compares the columns that are read with those that there are.
fn missing_columns(wanted: &BTreeMap<String, &[(&str, Option<&str>)]>, found: &Columns) -> Vec<String> {
    let mut faults = Vec::new();
    for (table, columns) in wanted {
        let Some(there) = found.get(table) else {
            faults.push(format!("there is no table {table}"));
            continue;
        };
        if there.values().all(|column| !column.readable) {
            faults.push(format!("not allowed to read table {table}"));
            continue;
        }
        for (name, of_type) in *columns {
            match (there.get(*name), of_type) {
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

/// What `notify` needs, and the account can't make.
async fn missing_triggers(session: &Session, tables: &[String]) -> Result<Vec<String>, db::Error> {
    const QUERY: &str = "look_at_rights";
    const TEXT: &str = "SELECT n.nspname || '.' || c.relname, has_table_privilege(c.oid, 'TRIGGER') \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname || '.' || c.relname = ANY ($1) \
         UNION ALL SELECT '', has_schema_privilege('status', 'CREATE') \
         WHERE EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'status') ORDER BY 1";
    let plan = triggers::plan(tables, &triggers::look(session, tables).await?);
    let mut faults: Vec<String> =
        plan.faults.iter().map(|(table, reason)| format!("notify: table {table}: {reason}")).collect();
    for row in session.rows(QUERY, TEXT, &[Param::Texts(plan.tables.clone())]).await? {
        let (table, allowed): (String, bool) = (column(QUERY, &row, 0)?, column(QUERY, &row, 1)?);
        match (allowed, table.as_str()) {
            (false, "") if plan.function => {
                faults.push("notify: not allowed to make a function in schema status".to_owned());
            }
            (true, _) | (false, "") => {}
            (false, table) => faults.push(format!("notify: not allowed to make a trigger on table {table}")),
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::super::config::StatusFamily;
    use super::*;

    #[test]
    fn every_missing_column_and_right_is_named() {
        let wanted: BTreeMap<_, _> = {
            let facts = facts(StatusFamily::Policies);
            facts.tables().into_iter().zip(facts.columns()).collect()
        };
        let column = |of_type: &str, readable| Column { of_type: of_type.to_owned(), readable };
        let spec =
            BTreeMap::from([("id".to_owned(), column("text", true)), ("payload".to_owned(), column("jsonb", false))]);
        let told = missing_columns(&wanted, &Columns::from([("spec.policies".to_owned(), spec)]));
        assert_eq!(
            told,
            [
                "column id of table spec.policies is of type text, and should be uuid",
                "not allowed to read column payload of table spec.policies",
                "table spec.policies has no column deleted",
                "there is no table status.compliance",
            ]
        );
        let hidden = BTreeMap::from([("id".to_owned(), column("uuid", false))]);
        let told = missing_columns(&wanted, &Columns::from([("status.compliance".to_owned(), hidden)]));
        assert_eq!(told, ["there is no table spec.policies", "not allowed to read table status.compliance"]);
    }
}
