//! What a syncset would do that is not written: a dry run on the clusters that it selects (rule 42).
//!
//! It is rendered as a pass would render it, beside the stored syncsets of each cluster, and tried there. So many clusters are worked on
//! at once as are a quarter of the permits of passes, and the whole has a deadline: what is not done by then is said so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};
use utoipa::ToSchema;
use uuid::Uuid;

use super::explain::spoken;
use super::trial::{self, Trial, Verdict};
use super::{ANSWER_WITHIN, Inspector, Unseen};
use crate::cluster::Error;
use crate::documents::{Document, Key, Kind, Weight};
use crate::job::mass_change;
use crate::syncset::payloads::Kept;
use crate::syncset::rules::agenda::{Agenda, PassAgenda};
use crate::syncset::rules::guard::{APPROVE, Approval, Case, State};
use crate::syncset::rules::matching::Audience;
use crate::syncset::rules::name::{ObjectRef, SyncSetKind, SyncSetName};
use crate::syncset::rules::parse;
use crate::syncset::rules::pass::{Input, Progress};
use crate::syncset::rules::rows::{AppliedRow, Failure};
use crate::syncset::rules::spec::{Mode, Rendered, Rendering};
use crate::syncset::rules::wanted::{Deletions, Live, Wanted, placed};
use crate::syncset::store::{Candidate, ClusterPlace, Snapshot, StoreError, StoredSyncset};
use crate::syncset::work::{Plan, PrepareError};

/// Longest time for all clusters together.
const WITHIN: Duration = Duration::from_secs(30);
/// The version of a syncset that is not stored.
const PROPOSED: i64 = i64::MAX;
/// Most objects that an answer names, of all clusters together, and at least of each.
const MOST_NAMED: usize = 5_000;
const LEAST_NAMED: usize = 5;
/// Most characters of a note.
const LONGEST_NOTE: usize = 300;

/// What a syncset would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SyncSetDiff)]
pub struct Diff {
    /// `SyncSet team-a/base`.
    pub syncset: String,
    /// How many clusters it is for.
    pub clusters: usize,
    /// How many of these the stored syncset of its name is not for.
    pub new: usize,
    /// How many clusters the stored syncset of its name is for, and this one is not.
    pub no_longer: usize,
    /// Whether its deletions would be held.
    pub held: bool,
    /// On how many clusters it would delete objects at once.
    pub losing: usize,
    /// On how many clusters it may delete objects at once without being held.
    pub limit: usize,
    /// The clusters on which it was tried.
    pub sample: Vec<Compared>,
}

/// What a syncset would do on one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SyncSetDiffOfCluster)]
pub struct Compared {
    /// The cluster's namespace.
    pub namespace: String,
    /// The cluster's name.
    pub name: String,
    /// Why it was not tried, or not completely: `unreachable for 3 h`, `paused by …`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub obstacle: Option<String>,
    /// Objects that would be created.
    pub create: usize,
    /// Objects that would be changed.
    pub change: usize,
    /// Objects that would be deleted.
    pub delete: usize,
    /// Objects of which fields would be taken from other managers.
    pub conflict: usize,
    /// Objects that would be refused.
    pub failed: usize,
    /// Objects that another syncset sends.
    pub superseded: usize,
    /// The objects, conflicts and refusals first; not all if they are many.
    pub objects: Vec<DiffedObject>,
}

/// What would become of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = SyncSetDiffOfObject)]
pub struct DiffedObject {
    /// `Deployment.apps default/agent`.
    pub object: String,
    /// `conflict`, `failed`, `create`, `change` or `delete`.
    pub action: String,
    /// The fields and managers of a conflict, or why it would be refused; `(changed)` for a Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub note: Option<String>,
}

/// A syncset as it would be written.
#[derive(Clone)]
pub struct ProposedSyncset {
    key: Key,
    name: SyncSetName,
    annotations: BTreeMap<String, String>,
    /// Without resources and patches.
    spec: Map<String, Value>,
    /// Version, kind, namespace and name of each resource.
    resources: Vec<[Option<String>; 4]>,
    kept: Kept,
}

/// Why a syncset can't be compared.
#[derive(Debug, thiserror::Error)]
pub enum Undiffed {
    /// The database could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It can't be read, though it is valid.
    #[error("{}", .0.message)]
    Unreadable(Failure),
}

impl ProposedSyncset {
    /// From a document that is not stored.
    pub fn of(document: &Document) -> Result<Self, Failure> {
        let kind = if document.kind == Kind::SyncSet { SyncSetKind::SyncSet } else { SyncSetKind::SelectorSyncSet };
        let name = SyncSetName { kind, namespace: document.namespace.clone(), name: document.name.clone() };
        let spec = document.data.get("spec").cloned().unwrap_or_default();
        let payload = Arc::new(parse::payload(&spec)?);
        let kept = Kept { payload, weight: Weight::of_value(&spec) };
        let resources = spec.get("resources").and_then(Value::as_array).into_iter().flatten();
        let resources = resources.map(identity).collect();
        let Value::Object(mut spec) = spec else { return Err(parse::invalid("spec", Some(&spec), "an object")) };
        spec.remove("resources");
        spec.remove("patches");
        let key = Key::new(document.kind, document.namespace.as_str(), document.name.as_str());
        Ok(Self { key, name, annotations: document.annotations.clone(), spec, resources, kept })
    }
}

fn identity(resource: &Value) -> [Option<String>; 4] {
    let text = |pointer: &str| resource.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    ["/apiVersion", "/kind", "/metadata/namespace", "/metadata/name"].map(text)
}

/// The clusters of a syncset.
struct Selected<'p> {
    places: Vec<&'p ClusterPlace>,
    new: usize,
    no_longer: usize,
    /// Where the stored syncset tracks objects, and on how many of these clusters it would match no more.
    tracks: usize,
    lost: usize,
}

fn selected<'p>(audience: &Audience, stored: Option<&Audience>, places: &'p [ClusterPlace]) -> Selected<'p> {
    let mut selected = Selected { places: Vec::new(), new: 0, no_longer: 0, tracks: 0, lost: 0 };
    for place in places {
        let ClusterPlace { namespace, name, labels, is_tracked, .. } = place;
        let is_now = audience.includes(namespace, name, labels);
        let was = stored.is_some_and(|stored| stored.includes(namespace, name, labels));
        selected.new += usize::from(is_now && !was);
        selected.no_longer += usize::from(was && !is_now);
        selected.tracks += usize::from(*is_tracked);
        selected.lost += usize::from(*is_tracked && !is_now);
        if is_now {
            selected.places.push(place);
        }
    }
    selected
}

/// So many of them, from everywhere in the list.
fn spread<T: Copy>(all: &[T], most: usize) -> Vec<T> {
    let count = all.len().min(most);
    (0..count).filter_map(|index| all.get(index * all.len() / count).copied()).collect()
}

impl Inspector {
    /// Tries a syncset on so many of its clusters.
    pub async fn diff(&self, proposed: &ProposedSyncset, sample: usize) -> Result<Diff, Undiffed> {
        let deadline = Instant::now() + WITHIN;
        let spec = Value::Object(proposed.spec.clone());
        let audience = Audience::of(&proposed.name, &spec).map_err(Undiffed::Unreadable)?;
        let stored = self.store.stored_syncset(&proposed.key).await?;
        let stored_audience = stored.as_ref().and_then(|stored| Audience::of(&proposed.name, &stored.spec).ok());
        let namespace = Some(proposed.name.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let places = self.store.cluster_places(stored.as_ref().map(|stored| stored.id), namespace).await?;
        let selected = selected(&audience, stored_audience.as_ref(), &places);
        let case = self.case(proposed, stored.as_ref(), &selected);
        let sampled = spread(&selected.places, sample);
        let id = stored.as_ref().map_or_else(Uuid::new_v4, |stored| stored.id);
        let generation = stored.as_ref().map_or(1, |stored| stored.generation.saturating_add(1));
        let candidate = Candidate {
            id,
            name: proposed.name.clone(),
            version: PROPOSED,
            generation,
            annotations: proposed.annotations.clone(),
            created_at: Timestamp::now(),
            is_being_deleted: false,
            spec: proposed.spec.clone(),
        };
        let most_named = (MOST_NAMED / sampled.len().max(1)).max(LEAST_NAMED);
        let compare = |place: &ClusterPlace| {
            let (place, candidate) = (place.clone(), candidate.clone());
            async move {
                let mut compared = Compared { namespace: place.namespace, name: place.name, ..Compared::default() };
                let tried = timeout_at(deadline, async {
                    // The semaphore is never closed.
                    let _permit = self.permits.acquire().await.ok();
                    Box::pin(self.compare(place.id, candidate, &proposed.kept, &mut compared)).await
                });
                match tried.await {
                    Ok(Ok(())) => {}
                    Ok(Err(text)) => compared.obstacle = Some(shortened(&text)),
                    Err(_) => compared.obstacle = Some("not done in time".to_owned()),
                }
                compared.objects.sort_by_key(DiffedObject::rank);
                compared.objects.truncate(most_named);
                compared
            }
        };
        let running: Vec<_> = sampled.into_iter().map(compare).collect();
        let compared = futures::stream::iter(running).buffered(self.at_once).collect().await;
        Ok(Diff {
            syncset: proposed.name.to_string(),
            clusters: selected.places.len(),
            new: selected.new,
            no_longer: selected.no_longer,
            held: case.judge().is_some(),
            losing: case.clusters(),
            limit: mass_change::limit(case.tracks),
            sample: compared,
        })
    }

    /// As it would be judged when it was written now.
    fn case(&self, proposed: &ProposedSyncset, stored: Option<&StoredSyncset>, selected: &Selected<'_>) -> Case {
        let state = State::read(&proposed.name, &Value::Object(proposed.spec.clone()), Some(&proposed.resources));
        let (generation, approved) = stored.map_or((0, 0), |stored| (stored.generation, stored.approved));
        let annotation = proposed.annotations.get(APPROVE).map(String::as_str);
        let approval = match Approval::read(annotation, generation.saturating_add(1), approved) {
            _ if !self.is_guarding => Approval::Always,
            approval => approval,
        };
        let executed = stored.map_or(0, |stored| stored.executed);
        let executed = if selected.tracks > 0 { executed } else { 0 };
        Case {
            held: stored.and_then(|stored| stored.held),
            change: state.change_since(stored.and_then(|stored| stored.objects.as_ref())),
            approval,
            lost: selected.lost + executed,
            executed,
            tracks: selected.tracks + executed,
        }
    }

    /// Tries a syncset on a cluster; an error says why that is not possible.
    async fn compare(
        &self,
        cluster: Uuid,
        candidate: Candidate,
        kept: &Kept,
        compared: &mut Compared,
    ) -> Result<(), String> {
        let id = candidate.id;
        let mut snapshot = self.store.snapshot(cluster).await.map_err(|error| of_store(&error))?;
        self.propose(&mut snapshot, candidate).await.map_err(|error| of_store(&error))?;
        let plan = Plan::of(&snapshot);
        match &plan.agenda {
            Agenda::Gone => return Err("it is being deleted".to_owned()),
            Agenda::Paused(pause) => return Err(pause.message()),
            Agenda::Silent { .. } | Agenda::InStep { .. } | Agenda::Pass(_) => {}
        }
        let Some(stored) = &snapshot.cluster else { return Err("it is being deleted".to_owned()) };
        let pace = snapshot.pace.as_ref().filter(|pace| pace.reachable == Some(false));
        if let Some(pace) = pace {
            return Err(unreachable_for(pace.last_contact, snapshot.at));
        }
        let agenda = PassAgenda { due: BTreeSet::from([id]), ..PassAgenda::default() };
        let deletions = |_| Deletions::NotJudged;
        let beside = self.preparer.proposing(id, PROPOSED, kept.clone());
        let prepared = beside.prepare(&snapshot, &plan, &agenda, false, Progress::default(), &deletions).await;
        let prepared = prepared.map_err(|error| match error {
            PrepareError::Store(error) => of_store(&error),
            other => other.to_string(),
        })?;
        let Input { live, applied, .. } = &prepared.input;
        let mine = live.iter().position(|live| live.header.id == id);
        let mine = mine.and_then(|position| Some((position, live.get(position)?)));
        let Some((position, syncset)) = mine else { return Err("its labels have changed meanwhile".to_owned()) };
        if let Some(failure) = syncset.obstacle() {
            return Err(failure.message.clone());
        }
        let Some(rendered) = &syncset.rendered else { return Err("it was not rendered".to_owned()) };
        let mut client = self.client(stored).await.map_err(|unseen| unseen.text())?;
        let kinds = client.served(&trial::kinds(rendered), ANSWER_WITHIN).await;
        let trial = Trial::new(client.unclaimed(ANSWER_WITHIN), kinds, rendered, syncset.header.behavior);
        let wanted = Wanted::new(live, applied, |object| trial.scope(object));
        compared.note_deletions(syncset, applied, &wanted);
        let tried = try_all(&trial, rendered, |object| wanted.winner(object) == Some(position), applied, compared);
        tried.await.map_err(|error| Unseen::Cluster(error).text())
    }

    /// Puts a syncset into what is known of a cluster, instead of the stored one.
    async fn propose(&self, snapshot: &mut Snapshot, candidate: Candidate) -> Result<(), StoreError> {
        let mappings = candidate.spec.get("secretMappings").and_then(Value::as_array).into_iter().flatten();
        let text = |mapping: &Value, field: &str| mapping.pointer(field).and_then(Value::as_str).map(str::to_owned);
        let sources = mappings.filter_map(|mapping| {
            let namespace = text(mapping, "/sourceRef/namespace").filter(|namespace| !namespace.is_empty());
            let namespace = namespace.unwrap_or_else(|| candidate.name.namespace.clone());
            Some((namespace, text(mapping, "/sourceRef/name")?))
        });
        let sources: Vec<(String, String)> = sources.collect();
        let facts = self.store.secret_facts(&sources).await?;
        let known: BTreeSet<Uuid> = snapshot.secrets.iter().map(|facts| facts.id).collect();
        snapshot.secrets.extend(facts.into_iter().filter(|facts| !known.contains(&facts.id)));
        snapshot.candidates.retain(|stored| stored.id != candidate.id);
        snapshot.candidates.push(candidate);
        Ok(())
    }
}

/// Tries what a syncset sends itself.
async fn try_all(
    trial: &Trial,
    rendered: &Rendered,
    is_winner: impl Fn(&ObjectRef) -> bool,
    applied: &[AppliedRow],
    compared: &mut Compared,
) -> Result<(), Error> {
    for desired in trial::ready(rendered) {
        let object = placed(&desired.object, trial.scope(&desired.object));
        if !is_winner(&object) {
            compared.superseded += 1;
            continue;
        }
        let is_adopted = applied.iter().any(|row| row.object == object && row.adopted);
        compared.note(&object, trial.object(desired, is_adopted).await?);
    }
    for rendering in &rendered.secrets {
        if let Rendering::Failed { failure, .. } = rendering {
            compared.note_failure(failure);
        }
    }
    for rendering in &rendered.patches {
        match rendering {
            Rendering::Ready(patch) => {
                let object = placed(&patch.object, trial.scope(&patch.object));
                compared.note(&object, trial.patch(patch).await?);
            }
            Rendering::Failed { failure, .. } => compared.note_failure(failure),
        }
    }
    Ok(())
}

impl Compared {
    fn add(&mut self, object: String, action: &str, note: Option<String>) {
        let note = note.map(|note| shortened(&note));
        self.objects.push(DiffedObject { object, action: action.to_owned(), note });
    }

    fn note(&mut self, object: &ObjectRef, verdict: Verdict) {
        let is_secret = object.group.is_empty() && object.kind == "Secret";
        match verdict {
            Verdict::Same => {}
            Verdict::Create => {
                self.create += 1;
                self.add(object.to_string(), "create", None);
            }
            Verdict::Change => {
                self.change += 1;
                self.add(object.to_string(), "change", is_secret.then(|| "(changed)".to_owned()));
            }
            Verdict::Conflict(owners) => {
                self.change += 1;
                self.conflict += 1;
                self.add(object.to_string(), "conflict", Some(owners.join("; ")));
            }
            Verdict::Failed(text) => {
                self.failed += 1;
                self.add(object.to_string(), "failed", Some(text));
            }
        }
    }

    fn note_failure(&mut self, failure: &Failure) {
        self.failed += 1;
        self.add(String::new(), "failed", Some(failure.message.clone()));
    }

    /// What the syncset tracks and nobody wants any more, but what existed before it.
    fn note_deletions(&mut self, syncset: &Live, applied: &[AppliedRow], wanted: &Wanted) {
        if syncset.header.mode != Mode::Sync {
            return;
        }
        let is_lost = |row: &&AppliedRow| {
            let is_tracked = row.syncset == syncset.header.id && row.tracked && !row.adopted;
            is_tracked && wanted.winner(&row.object).is_none() && !wanted.may_want(&row.object)
        };
        for row in applied.iter().filter(is_lost) {
            self.delete += 1;
            self.add(row.object.to_string(), "delete", None);
        }
    }
}

impl DiffedObject {
    fn rank(&self) -> usize {
        let order = ["conflict", "failed", "delete", "change", "create"];
        order.iter().position(|action| *action == self.action).unwrap_or(order.len())
    }
}

fn of_store(error: &StoreError) -> String {
    crate::cluster::full_text(error)
}

fn unreachable_for(last_contact: Option<Timestamp>, now: Timestamp) -> String {
    last_contact.map_or_else(
        || "unreachable, and it has never answered".to_owned(),
        |contact| format!("unreachable for {}", spoken(contact, now)),
    )
}

/// A text in one line, which is not too long.
fn shortened(text: &str) -> String {
    let line = |letter: char| if letter.is_control() { ' ' } else { letter };
    let mut short: String = text.chars().take(LONGEST_NOTE).map(line).collect();
    if text.chars().nth(LONGEST_NOTE).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn place(name: &str, env: &str, is_tracked: bool) -> ClusterPlace {
        let labels = BTreeMap::from([("env".to_owned(), env.to_owned())]);
        ClusterPlace { id: Uuid::from_u128(1), namespace: "team".to_owned(), name: name.to_owned(), labels, is_tracked }
    }

    fn audience(env: &str) -> Audience {
        let name =
            SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: "monitoring".to_owned() };
        let spec = json!({"clusterDeploymentSelector": {"matchLabels": {"env": env}}});
        Audience::of(&name, &spec).expect("an audience")
    }

    #[test]
    fn clusters_that_are_new_no_longer_selected_and_lost_are_counted() {
        let places =
            [place("a", "prod", true), place("b", "test", true), place("c", "test", false), place("d", "dev", true)];
        let found = selected(&audience("prod"), Some(&audience("test")), &places);
        let names: Vec<&str> = found.places.iter().map(|place| place.name.as_str()).collect();
        assert_eq!(names, ["a"]);
        assert_eq!((found.new, found.no_longer, found.tracks, found.lost), (1, 2, 3, 2));
        assert_eq!(selected(&audience("prod"), None, &places).new, 1, "of a name that nobody has, all are new");
    }

    #[test]
    fn a_sample_is_taken_from_everywhere_in_the_list() {
        let all: Vec<usize> = (0..10).collect();
        assert_eq!(spread(&all, 3), [0, 3, 6]);
        assert_eq!(spread(&all, 20), all);
        assert!(spread::<usize>(&[], 5).is_empty());
    }

    #[test]
    fn conflicts_come_before_what_is_created_and_secrets_show_no_more_than_that_they_change() {
        let object = |kind: &str, name: &str| ObjectRef {
            group: String::new(),
            kind: kind.to_owned(),
            namespace: "team".to_owned(),
            name: name.to_owned(),
        };
        let mut compared = Compared::default();
        compared.note(&object("ConfigMap", "new"), Verdict::Create);
        compared.note(&object("Secret", "pull"), Verdict::Change);
        compared.note(&object("ConfigMap", "same"), Verdict::Same);
        compared.note(&object("ConfigMap", "taken"), Verdict::Conflict(vec![".data.a belongs to hpa".to_owned()]));
        compared.objects.sort_by_key(DiffedObject::rank);
        let shown = |object: &DiffedObject| (object.object.clone(), object.note.clone().unwrap_or_default());
        let expected = [
            ("ConfigMap team/taken", ".data.a belongs to hpa"),
            ("Secret team/pull", "(changed)"),
            ("ConfigMap team/new", ""),
        ];
        let expected = expected.map(|(object, note)| (object.to_owned(), note.to_owned()));
        assert_eq!(compared.objects.iter().map(shown).collect::<Vec<_>>(), expected);
        assert_eq!((compared.create, compared.change, compared.delete, compared.conflict), (1, 2, 0, 1));
    }
}
