//! `towline diff`.

use std::path::PathBuf;

use http::Method;
use serde_json::{Value, json};

use super::of_mounted;
use crate::config::text::one_line;
use crate::documents::{Kind, Manifest, Problem, manifests_of_yaml};
use crate::job::check::say;
use crate::job::client::{Error, HubAccess, HubClient, complain_of};
use crate::job::command::{Exit, complain};
use crate::job::output::{Format, Output};
use crate::job::terminal::telling;

/// Most notes that are shown of a cluster, unless the table is wide.
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
    /// Exit with code 3 if something would change
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    access: HubAccess,
}

/// What was found in all documents together: the exit code is the worst of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    differs: bool,
    fails: bool,
}

/// Compares all documents, however many of them are wrong.
pub(super) async fn diff(command: DiffCommand) -> Result<Exit, Error> {
    let path = &command.file;
    let text = std::fs::read(path).map_err(|source| Error::Read { path: path.clone(), source })?;
    let manifests = manifests_of_yaml(&text).map_err(|problem| of_file(&problem))?;
    if manifests.is_empty() {
        return Err(Error::Content("the file has no document".to_owned()));
    }
    let client = HubClient::new(&command.access).await?;
    let query = if command.all { "all=true".to_owned() } else { format!("sample={}", command.sample) };
    let (output, total) = (command.format.output, manifests.len());
    let (mut found, mut answers) = (Found::default(), Vec::new());
    for (number, manifest) in (1..).zip(manifests) {
        let manifest = match comparable(number, manifest) {
            Ok(manifest) => manifest,
            Err(told) => {
                found.fails = true;
                complain(&told);
                continue;
            }
        };
        let name = name_of(&manifest);
        let body = ("application/json", manifest.body.json().into());
        let path = format!("/v1/syncset-diffs?{query}");
        let asking = client.ask(Method::POST, &path, Some(body));
        let answer = match telling(&format!("comparing {name} ({number} of {total})"), asking).await {
            Ok(answer) => answer,
            // The other documents may have no such problem.
            Err(error @ Error::Problem { .. }) => {
                found.fails = true;
                complain_of(&of_document(&name, of_mounted(error)));
                continue;
            }
            Err(other) => return Err(other),
        };
        found.note(&answer);
        match output {
            Output::Json | Output::Yaml => answers.push(answer),
            Output::Name if Found::of(&answer) != Found::default() => {
                say(&text_of(&answer, "syncset").replacen(' ', "/", 1));
            }
            Output::Name => {}
            Output::Table | Output::Wide => lines(&answer, output == Output::Wide).iter().for_each(|line| say(line)),
        }
    }
    if let Some(text) = output.document(&json!({"items": answers})) {
        say(text.trim_end_matches('\n'));
    }
    Ok(found.exit(command.exit_code))
}

/// A document of the file, if it can be compared.
fn comparable(number: usize, manifest: Result<Manifest, Problem>) -> Result<Manifest, String> {
    match manifest {
        Ok(manifest) if matches!(manifest.kind, Kind::SyncSet | Kind::SelectorSyncSet) => Ok(manifest),
        Ok(other) => Err(format!("{} can't be compared: only SyncSets and SelectorSyncSets can", name_of(&other))),
        Err(problem) => Err(format!("document {number}: {}", faults(&problem))),
    }
}

impl Found {
    fn of(answer: &Value) -> Self {
        let sample = || answer.get("sample").and_then(Value::as_array).into_iter().flatten();
        let any = |cluster: &Value, counts: &[&str]| counts.iter().any(|count| number(cluster, count) > 0);
        let changes = ["create", "change", "delete", "conflict"];
        let is_for_others = number(answer, "new") > 0 || number(answer, "noLonger") > 0;
        // Some clusters of a fleet are always away; if all are, nothing was compared.
        let is_tried = |cluster: &Value| cluster.get("obstacle").is_none() || any(cluster, &changes);
        Self {
            differs: is_for_others || sample().any(|cluster| any(cluster, &changes)),
            fails: sample().any(|cluster| any(cluster, &["failed"]))
                || (sample().next().is_some() && !sample().any(is_tried)),
        }
    }

    fn note(&mut self, answer: &Value) {
        let Self { differs, fails } = Self::of(answer);
        *self = Self { differs: self.differs || differs, fails: self.fails || fails };
    }

    fn exit(self, tells_changes: bool) -> Exit {
        match self {
            Self { fails: true, .. } => Exit::Failed,
            Self { differs: true, .. } if tells_changes => Exit::NotWell,
            Self { .. } => Exit::Done,
        }
    }
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
    Error::Content(format!("the file can't be read: {}", faults(problem)))
}

fn faults(problem: &Problem) -> String {
    let faults = problem.faults.iter().map(|fault| format!(" {}: {}", fault.pointer, fault.found));
    format!("{}{}", problem.title, faults.collect::<Vec<_>>().join(";"))
}

fn number(value: &Value, field: &str) -> u64 {
    value.get(field).and_then(Value::as_u64).unwrap_or_default()
}

fn text_of<'v>(value: &'v Value, field: &str) -> &'v str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A wide table has all notes.
fn lines(answer: &Value, is_wide: bool) -> Vec<String> {
    let of = |field| number(answer, field);
    let (losing, limit) = (of("losing"), of("limit"));
    let is_held = answer.get("held") == Some(&Value::Bool(true));
    let held = match (is_held, losing) {
        // All of its clusters, or a namespace and what goes with it: there is no limit to compare with.
        (true, losing) if losing <= limit => format!("yes (deletions on {losing})"),
        (true, losing) => format!("yes ({losing} of at most {limit} lose objects)"),
        // Clusters where it wants more than it deletes do not count.
        (false, 0) => "no".to_owned(),
        (false, losing) => format!("no ({losing} of at most {limit} lose objects)"),
    };
    let clusters = of("clusters");
    let plural = if clusters == 1 { "" } else { "s" };
    let mut lines = vec![format!(
        "{}: {clusters} cluster{plural} ({} new, {} no longer); held: {held}",
        text_of(answer, "syncset"),
        of("new"),
        of("noLonger"),
    )];
    lines.extend(
        Some(text_of(answer, "rollout")).filter(|told| !told.is_empty()).map(|told| format!("rollout: {told}")),
    );
    for (field, what) in [("missing", "missing or being deleted"), ("noLonger", "no longer")] {
        lines.extend(listed(answer, field).map(|listed| format!("{what}: {listed}")));
    }
    let sample: Vec<&Value> = answer.get("sample").and_then(Value::as_array).into_iter().flatten().collect();
    let most = if is_wide { usize::MAX } else { MOST_NOTES };
    let width = sample.iter().map(|cluster| place(cluster).chars().count()).max().unwrap_or_default();
    lines.extend(sample.into_iter().map(|cluster| format!("{:<width$}  {}", place(cluster), told(cluster, most))));
    // A cluster may choose what the hub tells of it.
    lines.iter().map(|line| one_line(line)).collect()
}

fn place(cluster: &Value) -> String {
    format!("{}/{}", text_of(cluster, "namespace"), text_of(cluster, "name"))
}

/// The clusters of a count, as far as the answer names them; none if there are none.
fn listed(answer: &Value, field: &str) -> Option<String> {
    let clusters = answer.get(format!("{field}Clusters")).and_then(Value::as_array).into_iter().flatten();
    let names: Vec<String> = clusters.map(place).collect();
    let more = number(answer, field).saturating_sub(names.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| names.join(", ") + &more)
}

/// What would happen on a cluster, in one line with so many notes.
fn told(cluster: &Value, most: usize) -> String {
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
        .filter(|object| object.get("note").is_some() || text_of(object, "action") == "delete")
        .map(|object| match text_of(object, "object") {
            name if text_of(object, "action") == "delete" => format!("{name} is deleted"),
            "" => text_of(object, "note").to_owned(),
            name if text_of(object, "action") == "change" => format!("{name} {}", text_of(object, "note")),
            name => format!("{name}: {}", text_of(object, "note")),
        })
        .collect();
    let more = notes.len().saturating_sub(most);
    let mut shown: Vec<String> = notes.into_iter().take(most).collect();
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
        assert_eq!(lines(&answer, false), expected);
        let on_the_only_one =
            json!({"syncset": "SyncSet team-a/web", "clusters": 1, "held": true, "losing": 1, "limit": 10});
        assert_eq!(
            lines(&on_the_only_one, false),
            ["SyncSet team-a/web: 1 cluster (0 new, 0 no longer); held: yes (deletions on 1)"]
        );
        assert_eq!(Found::of(&answer), Found { differs: true, fails: false });
    }

    #[test]
    fn what_a_cluster_has_chosen_of_a_diff_does_not_reach_the_terminal() {
        let text = "a\u{1b}[31m\u{9b}\nb";
        let object = json!({"object": text, "action": "change", "note": text});
        let cluster = json!({"namespace": text, "name": text, "obstacle": text, "change": 1, "objects": [object]});
        let answer = json!({"syncset": text, "rollout": text, "noLonger": 1, "noLongerClusters": [cluster], "sample": [cluster]});
        let lines = lines(&answer, true);
        assert!(lines.len() == 4 && !lines.concat().contains(char::is_control), "{lines:?}");
    }

    #[test]
    fn what_would_be_deleted_is_named() {
        let site = json!({"object": "ConfigMap default/site", "action": "delete"});
        let made = json!({"object": "ConfigMap default/new", "action": "create"});
        let line = told(&json!({"create": 1, "delete": 1, "objects": [site, made]}), MOST_NOTES);
        assert_eq!(line, "create 1  change 0  delete 1  conflict 0   ConfigMap default/site is deleted");
    }

    #[test]
    fn of_many_notes_the_first_are_shown_and_the_rest_are_counted() {
        let failed = json!({"object": "", "action": "failed", "note": "no"});
        let line = told(&json!({"failed": 7, "objects": vec![failed; 7]}), MOST_NOTES);
        assert_eq!(line, "create 0  change 0  delete 0  conflict 0  failed 7   no; no; no; no; no; and 2 more");
    }

    #[test]
    fn the_exit_code_is_the_worst_of_what_was_found() {
        let of = |clusters: &[Value]| Found::of(&json!({"sample": clusters})).exit(true);
        let (same, away) = (json!({"create": 0}), json!({"obstacle": "unreachable"}));
        let (changed, failed) = (json!({"change": 1}), json!({"change": 1, "failed": 1}));
        assert_eq!(of(&[]), Exit::Done);
        assert_eq!(of(&[same.clone(), away.clone()]), Exit::Done);
        assert_eq!(of(&[same, changed.clone(), away.clone()]), Exit::NotWell);
        assert_eq!(of(&[changed, failed]), Exit::Failed);
        assert_eq!(of(&[away]), Exit::Failed, "nothing was compared");
        assert_eq!(Found::of(&json!({"noLonger": 1, "sample": []})).exit(true), Exit::NotWell);
        assert_eq!(Found::of(&json!({"noLonger": 1, "sample": []})).exit(false), Exit::Done);
    }
}
