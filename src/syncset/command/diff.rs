//! `towline diff`.

use std::path::PathBuf;

use http::Method;
use serde_json::Value;

use super::of_mounted;
use crate::documents::{Kind, Manifest, Problem, manifests_of_yaml};
use crate::job::check::say;
use crate::job::client::{Error, HubAccess, HubClient};
use crate::job::command::Exit;

/// Most notes that are shown of a cluster.
const MOST_NOTES: usize = 5;

/// `towline diff`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(super) struct DiffCommand {
    /// A file with syncsets in YAML or JSON; those of Hive, too
    #[arg(short, long, value_name = "FILE", alias = "filename")]
    file: PathBuf,
    /// On how many clusters each is tried
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    sample: u32,
    /// Try them on all clusters, at most 1,000
    #[arg(long, conflicts_with = "sample")]
    all: bool,
    /// Show the hub's answers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: HubAccess,
}

pub(super) async fn diff(command: DiffCommand) -> Result<Exit, Error> {
    let path = &command.file;
    let text = std::fs::read(path).map_err(|source| Error::Read { path: path.clone(), source })?;
    let manifests = manifests_of_yaml(&text, &|_| Ok(())).map_err(|problem| of_file(&problem))?;
    let manifests: Result<Vec<Manifest>, Problem> = manifests.into_iter().collect();
    let manifests = manifests.map_err(|problem| of_file(&problem))?;
    if manifests.is_empty() {
        return Err(Error::Name("the file has no document".to_owned()));
    }
    // Before anything is tried: a file may have the clusters as well.
    if let Some(other) =
        manifests.iter().find(|manifest| !matches!(manifest.kind, Kind::SyncSet | Kind::SelectorSyncSet))
    {
        let name = name_of(other);
        return Err(Error::Name(format!("{name} can't be compared: only SyncSets and SelectorSyncSets can")));
    }
    let client = HubClient::new(&command.access).await?;
    let query = if command.all { "all=true".to_owned() } else { format!("sample={}", command.sample) };
    for manifest in manifests {
        let name = name_of(&manifest);
        let body = ("application/json", manifest.body.json().into());
        let answer = client.ask(Method::POST, &format!("/v1/syncset-diffs?{query}"), Some(body)).await;
        let answer = answer.map_err(|error| of_document(&name, of_mounted(error)))?;
        if command.json {
            say(&format!("{answer:#}"));
        } else {
            for line in lines(&answer) {
                say(&line);
            }
        }
    }
    Ok(Exit::Done)
}

/// `SyncSet team-a/base`, as far as the document says it.
fn name_of(manifest: &Manifest) -> String {
    let text = |field| manifest.body.text(field).filter(|text| !text.is_empty());
    let namespace = text("namespace").map(|namespace| format!("{namespace}/")).unwrap_or_default();
    format!("{} {namespace}{}", manifest.kind.name(), text("name").unwrap_or("without a name"))
}

/// A problem with one of the file's documents.
fn of_document(name: &str, error: Error) -> Error {
    match error {
        Error::Problem { status, told } => Error::Problem { status, told: format!("{name}: {told}") },
        other => other,
    }
}

fn of_file(problem: &Problem) -> Error {
    let faults = problem.faults.iter().map(|fault| format!(" {}: {}", fault.pointer, fault.found));
    Error::Name(format!("the file can't be read: {}{}", problem.title, faults.collect::<Vec<_>>().join(";")))
}

fn number(value: &Value, field: &str) -> u64 {
    value.get(field).and_then(Value::as_u64).unwrap_or_default()
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn lines(answer: &Value) -> Vec<String> {
    let held = if answer.get("held") == Some(&Value::Bool(true)) { "yes" } else { "no" };
    let of = |field| number(answer, field);
    let clusters = of("clusters");
    let plural = if clusters == 1 { "" } else { "s" };
    let mut lines = vec![format!(
        "{}: {clusters} cluster{plural} ({} new, {} no longer); held: {held} ({} of at most {} lose objects)",
        text(answer, "syncset"),
        of("new"),
        of("noLonger"),
        of("losing"),
        of("limit")
    )];
    for (field, what) in [("missing", "missing or being deleted"), ("noLonger", "no longer")] {
        lines.extend(listed(answer, field).map(|listed| format!("{what}: {listed}")));
    }
    let sample: Vec<&Value> = answer.get("sample").and_then(Value::as_array).into_iter().flatten().collect();
    let width = sample.iter().map(|cluster| place(cluster).chars().count()).max().unwrap_or_default();
    lines.extend(sample.into_iter().map(|cluster| format!("{:<width$}  {}", place(cluster), told(cluster))));
    lines
}

fn place(cluster: &Value) -> String {
    format!("{}/{}", text(cluster, "namespace"), text(cluster, "name"))
}

/// The clusters of a count, as far as the answer names them; none if there are none.
fn listed(answer: &Value, field: &str) -> Option<String> {
    let clusters = answer.get(format!("{field}Clusters")).and_then(Value::as_array).into_iter().flatten();
    let names: Vec<String> = clusters.map(place).collect();
    let more = number(answer, field).saturating_sub(names.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| names.join(", ") + &more)
}

/// What would happen on a cluster, in one line.
fn told(cluster: &Value) -> String {
    let actions = ["create", "change", "delete", "conflict", "failed", "superseded"];
    let is_shown = |action: &&str| !matches!(*action, "failed" | "superseded") || number(cluster, action) > 0;
    let counts = actions.into_iter().filter(is_shown).map(|action| format!("{action} {}", number(cluster, action)));
    let counts = counts.collect::<Vec<_>>().join("  ");
    let has_counts = actions.into_iter().any(|action| number(cluster, action) > 0);
    let mut parts = match cluster.get("obstacle").and_then(Value::as_str) {
        Some(obstacle) if has_counts => vec![counts, obstacle.to_owned()],
        Some(obstacle) => vec![obstacle.to_owned()],
        None => vec![counts],
    };
    let objects = cluster.get("objects").and_then(Value::as_array).into_iter().flatten();
    let notes: Vec<String> = objects
        .filter(|object| object.get("note").is_some() || text(object, "action") == "delete")
        .map(|object| match text(object, "object") {
            name if text(object, "action") == "delete" => format!("{name} is deleted"),
            "" => text(object, "note").to_owned(),
            name if text(object, "action") == "change" => format!("{name} {}", text(object, "note")),
            name => format!("{name}: {}", text(object, "note")),
        })
        .collect();
    let more = notes.len().saturating_sub(MOST_NOTES);
    let mut shown: Vec<String> = notes.into_iter().take(MOST_NOTES).collect();
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    if !shown.is_empty() {
        parts.push(shown.join("; "));
    }
    parts.join("   ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_diff_has_a_line_for_the_syncset_and_one_for_each_cluster() {
        let agent = json!({"object": "Deployment default/agent", "action": "conflict", "note": ".spec.replicas belongs to hpa"});
        let secret = json!({"object": "Secret default/pull", "action": "change", "note": "(changed)"});
        let answer = json!({"syncset": "SelectorSyncSet monitoring", "clusters": 217, "new": 3, "noLonger": 3, "held": false,
            "noLongerClusters": [{"namespace": "team-a", "name": "east-1"}, {"namespace": "team-b", "name": "east-2"}],
            "missing": 1, "missingClusters": [{"namespace": "team-a", "name": "wset-1"}], "losing": 1, "limit": 21, "sample": [
            {"namespace": "team-a", "name": "west-1", "create": 0, "change": 2, "delete": 0, "conflict": 1, "failed": 0,
             "superseded": 1, "objects": [agent, secret]},
            {"namespace": "team-b", "name": "north-1", "obstacle": "unreachable for 3 h", "objects": []}]});
        let expected = [
            "SelectorSyncSet monitoring: 217 clusters (3 new, 3 no longer); held: no (1 of at most 21 lose objects)",
            "missing or being deleted: team-a/wset-1",
            "no longer: team-a/east-1, team-b/east-2 and 1 more",
            "team-a/west-1   create 0  change 2  delete 0  conflict 1  superseded 1   Deployment default/agent: .spec.replicas belongs to hpa; \
             Secret default/pull (changed)",
            "team-b/north-1  unreachable for 3 h",
        ];
        assert_eq!(lines(&answer), expected);
    }

    #[test]
    fn what_would_be_deleted_is_named() {
        let site = json!({"object": "ConfigMap default/site", "action": "delete"});
        let made = json!({"object": "ConfigMap default/new", "action": "create"});
        let line = told(&json!({"create": 1, "delete": 1, "objects": [site, made]}));
        assert_eq!(line, "create 1  change 0  delete 1  conflict 0   ConfigMap default/site is deleted");
    }

    #[test]
    fn of_many_notes_the_first_are_shown_and_the_rest_are_counted() {
        let failed = json!({"object": "", "action": "failed", "note": "no"});
        let line = told(&json!({"failed": 7, "objects": vec![failed; 7]}));
        assert_eq!(line, "create 0  change 0  delete 0  conflict 0  failed 7   no; no; no; no; no; and 2 more");
    }
}
