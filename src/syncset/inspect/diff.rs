//! What a syncset would do that is not written: a dry run on the clusters that it selects.
//!
//! It is rendered as a pass would render it, beside the stored syncsets of each cluster, and tried there. So many clusters are worked on
//! at once as are a quarter of the slots of passes, and the whole has a deadline: what is not done by then is said so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep_until, timeout_at};
use utoipa::ToSchema;
use uuid::Uuid;

use super::compared::{ClusterReference, Compared, DiffedObject, LONGEST_NOTE};
use super::explain::spoken;
use super::losses::{Losses, dropped};
use super::trial::{self, Known, Trial};
use super::{ANSWER_WITHIN, Inspector, Unseen};
use crate::cluster::{Error, KindId};
use crate::config::text::shortened;
use crate::documents::{Document, Key, Kind, Parameters, Problem, SlotOwner};
use crate::guard;
use crate::syncset::plan::action::{Action, PassPlan};
use crate::syncset::plan::guard::{APPROVE, Approval, SyncsetState, Tally};
use crate::syncset::plan::matching::Audience;
use crate::syncset::plan::name::{ObjectRef, SyncSetKind, SyncSetName};
use crate::syncset::plan::object::left_alone;
use crate::syncset::plan::parse;
use crate::syncset::plan::pass::Input;
use crate::syncset::plan::rows::Failure;
use crate::syncset::plan::snapshot::{Candidate, Plan, Snapshot};
use crate::syncset::plan::spec::{Rendered, Rendering};
use crate::syncset::plan::wanted::{Deletions, Wanted, placed};
use crate::syncset::run::dispatch::condition;
use crate::syncset::run::payloads::Kept;
use crate::syncset::run::store::{ClusterPlace, Selected, StoreError};
use crate::syncset::run::work::PrepareError;

/// Longest time from the first slot on, for all clusters together.
const WITHIN: Duration = Duration::from_secs(30);
/// A second of any cluster's clock, whatever its speed: when it has passed, a write has another time than one before it.
const SECOND: Duration = Duration::from_millis(1_100);
/// The version of a syncset that is not stored.
const PROPOSED: i64 = i64::MAX;
/// Most objects that an answer names, of all clusters together, and at least of each.
const MOST_NAMED: usize = 5_000;
const LEAST_NAMED: usize = 5;
/// Most clusters that are listed of those that it is no longer for, and of those that are missing.
const MOST_REFERENCES: usize = 20;

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
    /// The first of those, by namespace and name.
    pub no_longer_clusters: Vec<ClusterReference>,
    /// How many of the clusters that it names are not there, or are being deleted.
    pub missing: usize,
    /// The first of those, by name.
    pub missing_clusters: Vec<ClusterReference>,
    /// Whether its deletions would be held.
    pub held: bool,
    /// On how many clusters it would delete most of its objects; if its deletions are held, on how many any.
    pub losing: usize,
    /// On how many clusters it may do so without being held.
    pub limit: usize,
    /// In which waves it would reach its clusters, or that it has no rollout any more; absent if neither it nor the stored one has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rollout: Option<String>,
    /// The clusters on which it was tried.
    pub sample: Vec<Compared>,
}

/// What is said of the rollout that a syncset has, or no longer has.
fn told_of_rollout(stored: Option<&Value>, proposed: &Value) -> Option<String> {
    let rollout = |spec: &Value| spec.get("rollout").filter(|rollout| rollout.is_object()).cloned();
    if let Some(rollout) = rollout(proposed) {
        let waves = rollout.get("waves").and_then(Value::as_array).into_iter().flatten();
        let names = waves.filter_map(|wave| wave.get("name").and_then(Value::as_str)).chain(["rest"]);
        return Some(format!("a change goes through its clusters in waves: {}", names.collect::<Vec<_>>().join(", ")));
    }
    let had_one = stored.and_then(rollout).is_some();
    had_one.then(|| "it has none any more: its newest content goes to all clusters at once".to_owned())
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
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It can't be read, though it is valid.
    #[error("{}", .0.message)]
    Unreadable(Failure),
    /// Too many clusters are looked at at the moment, by all or by this token.
    #[error(transparent)]
    NoSlot(Problem),
}

impl ProposedSyncset {
    /// From a document that is not stored.
    pub fn of(document: &Document) -> Result<Self, Failure> {
        let kind = if document.kind == Kind::SyncSet { SyncSetKind::SyncSet } else { SyncSetKind::SelectorSyncSet };
        let name = SyncSetName { kind, namespace: document.namespace.clone(), name: document.name.clone() };
        let spec = document.data.get("spec").cloned().unwrap_or_default();
        let kept = Kept::of(&spec)?;
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

impl Inspector {
    /// Tries a syncset on so many of its clusters.
    pub async fn diff(&self, proposed: &ProposedSyncset, sample: usize, owner: SlotOwner) -> Result<Diff, Undiffed> {
        let spec = Value::Object(proposed.spec.clone());
        let audience = Audience::of(&proposed.name, &spec).map_err(Undiffed::Unreadable)?;
        let state = SyncsetState::read(&proposed.name, &spec, Some(&proposed.resources));
        // What is read of a fleet takes a slot as each look at one of its clusters does.
        let slot = self.slot(owner).await.map_err(Undiffed::NoSlot)?;
        let deadline = Instant::now() + WITHIN;
        let stored = self.store.stored_syncset(&proposed.key).await?;
        let stored_audience = stored.as_ref().and_then(|stored| Audience::of(&proposed.name, &stored.spec).ok());
        let selected = self.selected(&audience, stored_audience.as_ref(), sample).await?;
        let tally = match &stored {
            Some(stored) => self.store.tally(stored.id, &state).await?,
            None => Tally::default(),
        };
        drop(slot);
        let id = stored.as_ref().map_or_else(Uuid::new_v4, |stored| stored.id);
        let generation = stored.as_ref().map_or(1, |stored| stored.generation.saturating_add(1));
        let annotation = proposed.annotations.get(APPROVE).map(String::as_str);
        let (was_suspended, approved) =
            stored.as_ref().map_or((false, 0), |stored| (stored.suspended, stored.approved));
        let approval = match Approval::read(annotation, generation, approved) {
            _ if !self.is_guarding => Approval::Always,
            approval => approval,
        };
        let held = tally.check(&state, was_suspended, approval).is_some();
        // As they are in a snapshot: it may name thousands of clusters, and each of those that are compared at once has it.
        let mut without_clusters = proposed.spec.clone();
        without_clusters.remove("clusterDeploymentRefs");
        let candidate = Candidate {
            id,
            name: proposed.name.clone(),
            version: PROPOSED,
            generation,
            is_pinned: false,
            read_before: None,
            metrics_group: None,
            created_at: Timestamp::now(),
            is_being_deleted: false,
            bytes: proposed.kept.bytes,
            objects: proposed.resources.len() + proposed.kept.payload.patches.len(),
            is_cut: false,
            spec: without_clusters,
        };
        let most_named = (MOST_NAMED / selected.sample.len().max(1)).max(LEAST_NAMED);
        let compare = |place: &ClusterPlace| {
            let (place, candidate) = (place.clone(), &candidate);
            async move {
                let mut compared = Compared { namespace: place.namespace, name: place.name, ..Compared::default() };
                let tried = timeout_at(deadline, async {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let slot = self.slots.take(owner, left).await;
                    let _slot = slot.map_err(|busy| Obstacle::Failed(format!("not looked at: {busy}")))?;
                    Box::pin(self.compare(place.id, candidate.clone(), &proposed.kept, &mut compared)).await
                });
                match tried.await {
                    Ok(Ok(())) => {}
                    Ok(Err(Obstacle::Waits(text))) => compared.obstacle = Some(shortened(&text, LONGEST_NOTE)),
                    Ok(Err(Obstacle::Failed(text))) => compared.note_fault(&text),
                    Err(_) => compared.note_fault("not done in time"),
                }
                compared.objects.sort_by_key(DiffedObject::rank);
                compared.objects.truncate(most_named);
                compared
            }
        };
        let of_namespace = |name| reference((proposed.name.namespace.clone(), name));
        let running: Vec<_> = selected.sample.iter().map(compare).collect();
        let compared = futures::stream::iter(running).buffered(self.at_once).collect().await;
        Ok(Diff {
            syncset: proposed.name.to_string(),
            clusters: selected.clusters,
            new: selected.new,
            no_longer: selected.no_longer,
            no_longer_clusters: selected.first_no_longer.into_iter().map(reference).collect(),
            missing: selected.missing,
            missing_clusters: selected.first_missing.into_iter().map(of_namespace).collect(),
            held,
            losing: if held { tally.loses } else { tally.counted },
            limit: guard::limit(tally.tracks),
            rollout: told_of_rollout(stored.as_ref().map(|stored| &stored.spec), &spec),
            sample: compared,
        })
    }

    /// The clusters for which a syncset would be, and those that the stored one is for.
    async fn selected(&self, now: &Audience, before: Option<&Audience>, sample: usize) -> Result<Selected, StoreError> {
        let conditions = |parameters: &mut Parameters| {
            let before = before.map_or_else(|| "false".to_owned(), |before| condition(before, parameters));
            [condition(now, parameters), before].map(|condition| format!("({condition})"))
        };
        let names = match now {
            Audience::Named { namespace, clusters } => Some((namespace.as_str(), clusters.iter().cloned().collect())),
            Audience::Selected { .. } => None,
        };
        self.store.selected(conditions, names, (sample, MOST_REFERENCES)).await
    }

    async fn compare(
        &self,
        cluster: Uuid,
        candidate: Candidate,
        kept: &Kept,
        compared: &mut Compared,
    ) -> Result<(), Obstacle> {
        let waits = |text: &str| Err(Obstacle::Waits(text.to_owned()));
        let id = candidate.id;
        let (mut snapshot, _room) = self.preparer.snapshot(cluster, "").await.map_err(of_preparing)?;
        self.propose(&mut snapshot, candidate).await.map_err(|error| Obstacle::Failed(of_store(&error)))?;
        let plan = Plan::of(&snapshot);
        match &plan.action {
            Action::Gone => return waits("it is being deleted"),
            Action::Paused(pause) => return waits(&pause.message()),
            Action::Throttled { until } => return waits(&format!("its API server asks to wait until {until:.0}")),
            Action::Silent { .. } | Action::InStep { .. } | Action::Pass(_) => {}
        }
        let Some(stored) = &snapshot.cluster else { return waits("it is being deleted") };
        let cluster_row = snapshot.cluster_row.as_ref().filter(|cluster_row| cluster_row.reachable == Some(false));
        if let Some(cluster_row) = cluster_row {
            if let Some(owner) = &snapshot.owner {
                return waits(&format!("a duplicate: {owner} leads to the same cluster and owns it"));
            }
            return waits(&unreachable_for(cluster_row.last_contact, snapshot.at));
        }
        let pass_plan = PassPlan { due: BTreeSet::from([id]), ..PassPlan::default() };
        let deletions = |_| Deletions::Unchecked;
        let beside = self.preparer.proposing(id, PROPOSED, kept.clone());
        let prepared = beside.prepare(&snapshot, &plan, &pass_plan, false, &deletions).await;
        let prepared = prepared.map_err(of_preparing)?;
        let Input { live, applied, .. } = &prepared.input;
        let mine = live.iter().position(|live| live.header.id == id);
        let mine = mine.and_then(|position| Some((position, live.get(position)?)));
        let Some((position, syncset)) = mine else { return waits("its labels have changed meanwhile") };
        if let Some(failure) = syncset.obstacle() {
            compared.note_failure(failure);
            return Ok(());
        }
        let Some(rendered) = &syncset.rendered else { return Err(Obstacle::Failed("it was not rendered".to_owned())) };
        let mut client = self.client(stored).await.map_err(|unseen| Obstacle::Waits(unseen.text()))?;
        let mut kinds = trial::kinds(rendered);
        let of_rows = applied.iter().filter(|row| row.syncset == id);
        kinds.extend(of_rows.map(|row| KindId::of(&row.api_version, &row.object.kind)));
        let kinds = client.served(&kinds, ANSWER_WITHIN).await;
        let trial = Trial::new(client.unclaimed(ANSWER_WITHIN), &kinds, rendered, syncset.header.behavior);
        let wanted = Wanted::new(live, applied, |object| trial.scope(object));
        let known = Known { store: &self.store, snapshot: &snapshot, applied, wanted: &wanted };
        let is_winner = |object: &ObjectRef| wanted.winner(object) == Some(position);
        let tried = try_all(&trial, rendered, is_winner, known, compared);
        let unseen = |error| Obstacle::Waits(Unseen::of(stored, error).text());
        tried.await.map_err(unseen)?;
        let mut losses = Losses::new(&mut client, &kinds, applied, &wanted, &plan.awaited);
        for row in dropped(syncset, applied, &wanted) {
            let loss = losses.of(row).await.map_err(unseen)?;
            compared.note_loss(&row.object, loss);
        }
        Ok(())
    }

    /// Puts a syncset into what is known of a cluster, instead of the stored one.
    async fn propose(&self, snapshot: &mut Snapshot, candidate: Candidate) -> Result<(), StoreError> {
        let mappings = candidate.spec.get("secretMappings").and_then(Value::as_array).into_iter().flatten();
        let text = |mapping: &Value, field: &str| mapping.pointer(field).and_then(Value::as_str).map(str::to_owned);
        let sources = mappings.filter_map(|mapping| {
            let namespace = text(mapping, "/sourceRef/namespace").filter(|namespace| !namespace.is_empty());
            let namespace = namespace.unwrap_or_else(|| candidate.name.namespace.clone());
            let is_listed =
                mapping.get("secretMetadata").and_then(Value::as_array).is_some_and(|keys| !keys.is_empty());
            Some((namespace, text(mapping, "/sourceRef/name")?, is_listed))
        });
        let sources: Vec<(String, String, bool)> = sources.collect();
        for facts in self.store.secret_facts(&sources).await? {
            match snapshot.secrets.iter_mut().find(|known| known.id == facts.id) {
                // What stored syncsets copy was read, and what only this one copies was not.
                Some(known) if known.labels.is_empty() && known.annotations.is_empty() => *known = facts,
                Some(_) => {}
                None => snapshot.secrets.push(facts),
            }
        }
        snapshot.candidates.retain(|stored| stored.id != candidate.id);
        snapshot.awaited.retain(|awaited| awaited.name != candidate.name);
        snapshot.candidates.push(candidate);
        Ok(())
    }
}

fn of_preparing(error: PrepareError) -> Obstacle {
    Obstacle::Failed(match error {
        PrepareError::Store(error) => of_store(&error),
        other => other.to_string(),
    })
}

/// How an answer names a cluster.
fn reference((namespace, name): (String, String)) -> ClusterReference {
    ClusterReference { namespace, name }
}

/// Tries what a syncset sends itself. What may have been written in the same second is tried again when that is over.
async fn try_all(
    trial: &Trial<'_>,
    rendered: &Rendered,
    is_winner: impl Fn(&ObjectRef) -> bool,
    known: Known<'_>,
    compared: &mut Compared,
) -> Result<(), Error> {
    let mut again = Vec::new();
    for desired in trial::ready(rendered) {
        let object = placed(&desired.object, trial.scope(&desired.object));
        if !is_winner(&object) {
            compared.superseded += 1;
            continue;
        }
        let tried = trial.object(desired, known).await?;
        if tried.may_be_outdated {
            again.push((desired, object));
        } else {
            compared.note(&object, tried.outcome);
            compared.note_left_alone(&object, &left_alone(&desired.body));
        }
    }
    let outdated_until = Instant::now() + SECOND;
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
    if !again.is_empty() {
        sleep_until(outdated_until).await;
    }
    for (desired, object) in again {
        compared.note(&object, trial.object(desired, known).await?.outcome);
        compared.note_left_alone(&object, &left_alone(&desired.body));
    }
    Ok(())
}

/// Why a cluster was not compared, or not completely.
enum Obstacle {
    /// It is paused or does not answer: no syncset is applied to it now.
    Waits(String),
    /// The comparison failed, or the syncset can't be applied to this cluster.
    Failed(String),
}

fn of_store(error: &StoreError) -> String {
    crate::cluster::full_text(error)
}

fn unreachable_for(last_contact: Option<Timestamp>, now: Timestamp) -> String {
    last_contact.map_or_else(
        || "unreachable, and it has never answered".to_owned(),
        |at| format!("unreachable for {}", spoken(at, now)),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rollout_that_is_taken_out_is_told_as_well_as_the_waves_of_one_that_is_there() {
        let of = |waves: &[&str]| {
            let waves: Vec<Value> = waves.iter().map(|name| json!({ "name": name })).collect();
            json!({ "rollout": { "waves": waves } })
        };
        let (none, waves) = (json!({}), "a change goes through its clusters in waves: ");
        let taken_out = Some("it has none any more: its newest content goes to all clusters at once".to_owned());
        assert_eq!(told_of_rollout(None, &of(&["a", "b"])), Some(format!("{waves}a, b, rest")));
        assert_eq!(told_of_rollout(Some(&of(&["a"])), &of(&[])), Some(format!("{waves}rest")));
        assert_eq!(told_of_rollout(Some(&of(&["a"])), &none), taken_out);
        assert_eq!((told_of_rollout(Some(&none), &none), told_of_rollout(None, &none)), (None, None));
    }
}
