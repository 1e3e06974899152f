//! How PostgreSQL carries a list out: the plans of the replica's own statements, as `auto_explain` writes them to the server's log.

use std::collections::BTreeSet;
use std::fs;

use integration::Error;
use serde_json::Value;

use super::world::World;

/// The table whose lists are looked at.
const TABLE: &str = "clusters";

/// A statement's plan.
pub(crate) struct Plan {
    /// How rows of the table are found: `Index Scan clusters_pkey`, `Seq Scan`.
    pub(crate) scans: String,
    /// All of it.
    pub(crate) whole: Value,
}

/// The server's log, from when it was opened.
pub(crate) struct Plans {
    read: usize,
}

impl Plans {
    /// Has the server log every statement's plan, as it was carried out.
    pub(crate) async fn begin(world: &World<'_>) -> Result<Self, Error> {
        for setting in ["log_format = json", "log_analyze = on", "log_timing = off", "log_min_duration = 0"] {
            world.execute("explain statements", &format!("ALTER SYSTEM SET auto_explain.{setting}")).await?;
        }
        world.execute("explain statements", "SELECT pg_reload_conf()").await?;
        Ok(Self { read: read_log(world)?.len() })
    }

    /// The last plan since the last call that reads the table.
    pub(crate) fn next(&mut self, world: &World<'_>) -> Result<Option<Plan>, Error> {
        let log = read_log(world)?;
        let found = plans(log.get(self.read..).unwrap_or_default()).into_iter().rev().find_map(|whole| {
            let scans = scans(whole.get("Plan")?);
            (!scans.is_empty()).then(|| Plan { scans: scans.into_iter().collect::<Vec<_>>().join(", "), whole })
        });
        self.read = log.len();
        Ok(found)
    }

    pub(crate) async fn end(self, world: &World<'_>) -> Result<(), Error> {
        world.execute("explain no more", "ALTER SYSTEM RESET ALL").await?;
        world.execute("explain no more", "SELECT pg_reload_conf()").await
    }
}

fn read_log(world: &World<'_>) -> Result<String, Error> {
    let path = world.server.log_path();
    fs::read_to_string(&path).map_err(Error::file("read", &path))
}

/// Each is `duration: … ms  plan:` and lines that begin with a tab.
fn plans(log: &str) -> Vec<Value> {
    let mut plans = Vec::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.ends_with("plan:") {
            continue;
        }
        let mut text = String::new();
        while let Some(inner) = lines.next_if(|line| line.starts_with('\t')) {
            text.push_str(inner);
            text.push('\n');
        }
        plans.extend(serde_json::from_str::<Value>(&text).ok());
    }
    plans
}

/// How this node and those below it find rows of the table.
fn scans(node: &Value) -> BTreeSet<String> {
    let text = |name: &str| node.get(name).and_then(Value::as_str);
    let mut found = BTreeSet::new();
    let kind = text("Node Type").unwrap_or_default();
    match (text("Index Name"), text("Relation Name")) {
        (Some(index), _) if index.starts_with(TABLE) => found.extend([format!("{kind} {index}")]),
        (None, Some(TABLE)) if kind != "Bitmap Heap Scan" => found.extend([kind.to_owned()]),
        _ => {}
    }
    let below = node.get("Plans").and_then(Value::as_array);
    below.into_iter().flatten().for_each(|node| found.extend(scans(node)));
    found
}

#[cfg(test)]
mod tests {
    use super::{plans, scans};

    const LOG: &str = "2026-11-22 22:00:00 UTC [7] LOG:  duration: 0.5 ms  plan:\n\t{\n\t  \"Query Text\": \"select 1\\nfrom x\",\n\
        \t  \"Plan\": {\"Node Type\": \"Limit\", \"Plans\": [{\"Node Type\": \"Bitmap Heap Scan\", \"Relation Name\": \"clusters\",\n\
        \t    \"Plans\": [{\"Node Type\": \"Bitmap Index Scan\", \"Index Name\": \"clusters_labels_idx\"}]}]}\n\t}\n\
        2026-11-22 22:00:00 UTC [7] LOG:  checkpoint starting: time\n\
        2026-11-22 22:00:00 UTC [7] LOG:  duration: 0.5 ms  plan:\n\t{\"Plan\": {\"Node Type\": \"Seq Scan\", \"Relation Name\": \"clusters\"}}\n\
        2026-11-22 22:00:00 UTC [7] LOG:  duration: 0.5 ms  plan:\n\t{\"Plan\": {\"Node Type\": \"Seq Scan\", \"Relation Name\": \"towline_log\"}}\n";

    #[test]
    fn a_plan_in_the_log_tells_how_the_rows_of_the_table_were_found() {
        let plans = plans(LOG);
        let found: Vec<Vec<String>> = plans.iter().map(|plan| scans(&plan["Plan"]).into_iter().collect()).collect();
        assert_eq!(found, [vec!["Bitmap Index Scan clusters_labels_idx"], vec!["Seq Scan"], vec![]]);
        assert_eq!(plans[0]["Query Text"], "select 1\nfrom x");
    }
}
