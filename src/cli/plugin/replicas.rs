//! What the replicas of a release say of themselves, as one document, and which of them runs a section. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::super::release::NotRun;
use super::super::table::rank;
use super::pods::Replica;

/// A replica with its `/status`, or why there is none.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) replica: Replica,
    pub(super) status: Result<Value, String>,
}

fn sections(status: &Value) -> impl Iterator<Item = (&String, &Value)> {
    status.get("sections").and_then(Value::as_object).into_iter().flatten()
}

/// Whether the replica that reports this section runs it: without an election every replica does.
fn is_run(section: &Value) -> bool {
    section.get("election").is_none_or(|election| election.get("held") == Some(&Value::Bool(true)))
}

/// How many sections a replica runs.
pub(super) fn runs(status: &Value) -> usize {
    sections(status).filter(|(_, section)| is_run(section)).count()
}

/// `towline-0 does not answer: …`, for each that doesn't.
pub(super) fn silent(said: &[Said]) -> Vec<String> {
    let faults = said.iter().filter_map(|said| Some((&said.replica.name, said.status.as_ref().err()?)));
    faults.map(|(replica, fault)| format!("{replica} does not answer: {fault}")).collect()
}

/// The replicas that answer, with their statuses.
fn answers(said: &[Said]) -> Vec<(&Replica, &Value)> {
    said.iter().filter_map(|said| Some((&said.replica, said.status.as_ref().ok()?))).collect()
}

pub(super) fn runner<'s>(section: &str, said: &'s [Said]) -> Result<&'s Replica, NotRun> {
    let (answers, silent) = (answers(said), silent(said));
    if answers.is_empty() {
        return Err(NotRun::Silent { silent });
    }
    let report = |status: &'s Value| sections(status).find(|(name, _)| *name == section).map(|(_, report)| report);
    let reports: Vec<(&Replica, &Value)> =
        answers.iter().filter_map(|(replica, status)| Some((*replica, report(status)?))).collect();
    if let Some((replica, _)) = reports.iter().find(|(_, report)| is_run(report)) {
        return Ok(replica);
    }
    let section = section.to_owned();
    if reports.is_empty() {
        let names: BTreeSet<&String> =
            answers.iter().flat_map(|(_, status)| sections(status)).map(|(name, _)| name).collect();
        return Err(NotRun::NoSection { section, there: names.into_iter().cloned().collect() });
    }
    let holder = reports.iter().find_map(|(_, report)| report.pointer("/election/holder")?.as_str());
    Err(NotRun::Nowhere { section, holder: holder.map(str::to_owned), silent })
}

/// One status of all: that of the only replica as it is; of several each section as the replica says that runs it, the worst one where
/// several do, and each cluster once if they agree on it.
pub(super) fn merged(said: &[Said]) -> Value {
    if let [Said { status: Ok(status), .. }] = said {
        return status.clone();
    }
    let answers = answers(said);
    let versions: BTreeSet<&str> =
        answers.iter().filter_map(|(_, status)| status.get("version").and_then(Value::as_str)).collect();
    let ages = answers.iter().filter_map(|(_, status)| status.get("started_seconds_ago").and_then(Value::as_u64));
    json!({
        "version": versions.into_iter().collect::<Vec<_>>().join(", "),
        "started_seconds_ago": ages.min(),
        "replicas": said.iter().map(|said| (said.replica.name.clone(), about(said))).collect::<Map<_, _>>(),
        "clusters": merged_clusters(&answers),
        "sections": merged_sections(&answers),
        "tree": {"name": "replicas", "children": answers.iter().map(tree).collect::<Vec<_>>()},
    })
}

fn about(said: &Said) -> Value {
    match &said.status {
        Ok(status) => {
            json!({"version": status.get("version"), "started_seconds_ago": status.get("started_seconds_ago")})
        }
        Err(fault) => json!({"error": fault}),
    }
}

fn tree((replica, status): &(&Replica, &Value)) -> Value {
    let mut tree = status.get("tree").and_then(Value::as_object).cloned().unwrap_or_default();
    tree.insert("name".to_owned(), json!(replica.name));
    Value::Object(tree)
}

fn merged_sections(answers: &[(&Replica, &Value)]) -> Map<String, Value> {
    let mut merged: BTreeMap<&String, (&str, &Value)> = BTreeMap::new();
    for (replica, status) in answers {
        for (name, section) in sections(status) {
            let is_before = |(_, earlier): &(&str, &Value)| {
                let order = |section: &Value| (!is_run(section), rank(section));
                order(earlier) <= order(section)
            };
            if !merged.get(name).is_some_and(is_before) {
                merged.insert(name, (&replica.name, section));
            }
        }
    }
    let with_replica = |(name, (replica, section)): (&String, (&str, &Value))| {
        let mut section = section.clone();
        if let Some(fields) = section.as_object_mut() {
            fields.insert("replica".to_owned(), json!(replica));
        }
        (name.clone(), section)
    };
    merged.into_iter().map(with_replica).collect()
}

fn merged_clusters(answers: &[(&Replica, &Value)]) -> Map<String, Value> {
    let mut of_names: BTreeMap<&String, Vec<(&str, &Value)>> = BTreeMap::new();
    for (replica, status) in answers {
        for (name, cluster) in status.get("clusters").and_then(Value::as_object).into_iter().flatten() {
            of_names.entry(name).or_default().push((&replica.name, cluster));
        }
    }
    let mut merged = Map::new();
    for (name, clusters) in of_names {
        let states: Vec<_> =
            clusters.iter().map(|(_, cluster)| (cluster.get("state"), cluster.get("reason"))).collect();
        if states.windows(2).all(|pair| pair.first() == pair.last()) {
            // It has been so for all of them since the last one saw it.
            let since = |(_, cluster): &&(&str, &Value)| cluster.get("since_seconds").and_then(Value::as_u64);
            if let Some((_, cluster)) = clusters.iter().min_by_key(since) {
                merged.insert(name.clone(), (*cluster).clone());
            }
        } else {
            merged
                .extend(clusters.iter().map(|(replica, cluster)| (format!("{name} ({replica})"), (*cluster).clone())));
        }
    }
    merged
}

#[cfg(test)]
mod tests;
