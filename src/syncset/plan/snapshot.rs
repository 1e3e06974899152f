//! What a reconcile reads of its cluster, the [`Snapshot`], and what that says, the [`Plan`]: which syncsets the cluster has, and what there is to do.
//!
//! Everything that decides whether something is due is in the snapshot, and nothing else: no payloads of syncsets, no data of secrets, and
//! no answer of the cluster. So mostly a reconcile knows after one statement that there is nothing to do. `run/store/snapshot.rs` reads it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::action;
use super::action::{Action, ClusterFacts};
use super::digest;
use super::guard;
use super::guard::Checked;
use super::health;
use super::health::{Entry, Health, Settings};
use super::matching::{Audience, EffectiveNamespaces};
use super::name::{Digest, SyncSetKind, SyncSetName};
use super::naming::{Names, Naming, Resource};
use super::parse;
use super::parse::Identity;
use super::reason::Reason;
use super::rows::{AppliedRow, ClusterRow, Failure, GuardRow, PatchedRow, ResultRow};
use super::spec::{Behavior, Header, Mode, SecretMapping, SecretSource};
use super::wanted::Deletions;
use crate::documents::{Document, Sealed};

#[cfg(test)]
mod tests;

/// Most bytes of syncsets that a cluster may have together, as the database has them, with a copy of the Secret for each mapping. As
/// values they usually take five to ten times as much in memory.
pub const MOST_BYTES: usize = 8 << 20;
const INSTANT: SignedDuration = SignedDuration::from_millis(1);
/// Each object, patch and copy of a Secret counts with so many bytes more, so a cluster has at most 26,214 of them, however small they are.
const OBJECT: usize = 320;

/// What is known of a cluster and its syncsets, without the syncsets' payloads.
#[derive(Debug)]
pub struct Snapshot {
    /// The database's time of the read.
    pub at: Timestamp,
    /// How far the dispatcher has read the log: what is newer is unchecked.
    pub cursor: i64,
    /// None if there is no such cluster; then nothing else is read.
    pub cluster: Option<StoredCluster>,
    pub cluster_sync: Option<Document>,
    /// Syncsets that may have to be applied: the index knows only the first part of a selector.
    pub candidates: Vec<Candidate>,
    /// What rollouts are about to bring, of syncsets that may match the cluster.
    pub awaited: Vec<Awaited>,
    /// The `Secret` documents that the candidates map, without their data.
    pub secrets: Vec<SecretFacts>,
    pub results: Vec<ResultRow>,
    /// What is known of the health of syncsets on this cluster, beside their results and without their objects.
    pub health: BTreeMap<Uuid, Health>,
    /// How many rows of applied objects and of patches the cluster has.
    pub rows: usize,
    /// These rows, if they are few.
    pub sent: Option<Sent>,
    /// Syncsets with rows of applied objects. One that is gone may have such rows and no result: the pass that wrote them was killed.
    pub with_applied: BTreeSet<Uuid>,
    /// None before the first pass has ended.
    pub cluster_row: Option<ClusterRow>,
    /// Whether it is noted that no pass could begin, which is over: this was read.
    pub has_failure: bool,
    /// How often a full pass was demanded; what is stored with what has come of the pass.
    pub resyncs: i64,
    /// The document of the same namespace that owns the cluster, if that is another one.
    pub owner: Option<String>,
    /// The guard's decisions about the candidates, and of all syncsets with a result or applied objects.
    pub guards: Vec<GuardRow>,
    /// The versions of those syncsets that exist and are not being deleted, whether they match the cluster or not.
    pub living: BTreeMap<Uuid, i64>,
}

/// A cluster with its kubeconfig as it is stored.
#[derive(Clone, PartialEq)]
pub struct StoredCluster {
    pub document: Document,
    /// Its kubeconfig, sealed.
    pub sealed: Option<Vec<u8>>,
}

/// A syncset that may have to be applied, without its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub id: Uuid,
    pub name: SyncSetName,
    /// Version of the last change of its document, or of the revision to which the cluster is pinned; the generation likewise.
    pub version: i64,
    pub generation: i64,
    /// Whether it is applied in a revision, and not as its document is.
    pub is_pinned: bool,
    /// Its health is read again unless it was read after that: before the soak of its rollout ends.
    pub read_before: Option<Timestamp>,
    /// The group under which its metrics count, an annotation. The others may have 256 KiB, and no pass needs them.
    pub metrics_group: Option<String>,
    pub created_at: Timestamp,
    pub is_being_deleted: bool,
    /// Bytes of its whole `spec`, as the database has it in memory: about as many as its text has.
    pub bytes: usize,
    /// How many resources and patches it has.
    pub objects: usize,
    /// Whether some of its `spec` is missing, since there was no room for it.
    pub is_cut: bool,
    /// Its `spec` without `resources`, `patches`, `rollout` and the names of clusters.
    pub spec: Map<String, Value>,
}

/// A syncset whose rollout is about to bring another content to the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Awaited {
    pub name: SyncSetName,
    /// For which clusters it is.
    pub audience: Map<String, Value>,
    /// That content, without resources and patches.
    pub spec: Value,
    /// The objects that it names; none if they are no list.
    pub resources: Option<Vec<Resource>>,
}

/// A `Secret` document without its data.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SecretFacts {
    pub id: Uuid,
    pub namespace: String,
    pub name: String,
    /// Version of its last change.
    pub version: i64,
    /// Bytes of its data, sealed.
    pub bytes: usize,
    /// The generation that set its data.
    pub data_generation: i64,
    /// `Opaque`, …
    pub secret_type: String,
    /// Whether its copies can't be changed.
    pub is_immutable: bool,
    /// Whether labels and annotations are missing, since there was no room for them.
    pub is_cut: bool,
    /// Labels, if a mapping lists any that are copied.
    pub labels: BTreeMap<String, String>,
    /// Annotations, likewise, without what `kubectl` keeps in one of them: no copy has it.
    pub annotations: BTreeMap<String, String>,
}

/// What was sent to a cluster, or is about to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sent {
    pub applied: Vec<AppliedRow>,
    pub patched: Vec<PatchedRow>,
}

impl Snapshot {
    /// Whether a syncset is one of this cluster's, or was.
    pub fn knows(&self, syncset: Uuid) -> bool {
        let mut known = self.candidates.iter().map(|candidate| candidate.id);
        known.any(|id| id == syncset) || self.results.iter().any(|result| result.syncset == syncset)
    }

    /// Whether a syncset may delete on this cluster what it no longer wants there, whether it matches, matches no more, or
    /// is gone.
    pub fn deletions(&self, syncset: Uuid) -> Deletions {
        let Some(cluster) = &self.cluster else { return Deletions::Unchecked };
        guard::deletions(&Checked {
            cursor: self.cursor,
            guard: self.guards.iter().find(|guard| guard.syncset == syncset),
            cluster: cluster.document.version,
            syncset: self.living.get(&syncset).copied(),
        })
    }
}

impl SecretFacts {
    /// Bytes that a copy by this mapping takes, about.
    fn size(&self, mapping: &SecretMapping) -> usize {
        let texts = self.labels.iter().chain(&self.annotations).filter(|_| !mapping.metadata.is_empty());
        self.bytes + texts.map(|(key, value)| key.len() + value.len()).sum::<usize>()
    }
}

/// What a snapshot says.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The cluster, if there is one.
    pub facts: Option<ClusterFacts>,
    /// Its syncsets, in the order in which they are applied.
    pub live: Vec<LiveSyncset>,
    /// The objects that rollouts are about to bring.
    pub awaited: Vec<Names>,
    /// What there is to do at the time of the snapshot.
    pub action: Action,
}

/// A syncset that names or selects the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveSyncset {
    /// What is known of it without its payload. Of one that can't be read, only what identifies it.
    pub header: Header,
    /// What it would be applied with now.
    pub inputs: Digest,
    /// Whether it is applied in a revision, and not as its document is.
    pub is_pinned: bool,
    /// Its health is read again unless it was read after that.
    read_before: Option<Timestamp>,
    /// Bytes of its whole `spec`, as the database has it, and of a copy of the Secret for each mapping, with [`OBJECT`] for each object.
    pub bytes: usize,
    /// Whether not all of it was read that this needs, since there was no room.
    is_cut: bool,
    /// Why it can't be read, or is left out. Nothing of it is sent, and nothing is deleted meanwhile.
    pub undecodable: Option<Failure>,
}

impl Plan {
    pub fn of(snapshot: &Snapshot) -> Self {
        let facts = snapshot.cluster.as_ref().map(|cluster| facts(&cluster.document));
        let sources = sources(&snapshot.secrets);
        let of_candidate = |candidate: &Candidate| {
            let has_sent = snapshot.with_applied.contains(&candidate.id);
            of_candidate(candidate, facts.as_ref()?, &sources, has_sent)
        };
        let mut live: Vec<LiveSyncset> = snapshot.candidates.iter().filter_map(of_candidate).collect();
        live.sort_by(|left, right| left.header.name.cmp(&right.header.name));
        leave_out(&mut live);
        let of_live: Vec<action::LiveFacts> = live.iter().map(|live| live.live_facts(snapshot)).collect();
        let action = Action::of(
            facts.as_ref(),
            &of_live,
            &snapshot.results,
            &snapshot.with_applied,
            snapshot.cluster_row.as_ref(),
            snapshot.at,
        );
        let awaited =
            facts.iter().flat_map(|facts| snapshot.awaited.iter().filter_map(|awaited| names(awaited, facts)));
        Self { awaited: awaited.collect(), facts, live, action }
    }

    /// The same for a reconcile that nobody has asked for.
    #[must_use]
    pub fn unasked(mut self, snapshot: &Snapshot) -> Self {
        if let Action::Pass(pass_plan) = &mut self.action {
            let inputs = self.live.iter().map(|live| (live.header.id, live.inputs)).collect();
            let left_at = snapshot.cluster_row.as_ref().and_then(|cluster_row| cluster_row.left_at);
            pass_plan.unasked(&snapshot.results, &inputs, left_at, snapshot.at);
        }
        self
    }

    /// The syncsets that the cluster has, by their ids.
    pub fn ids(&self) -> BTreeSet<Uuid> {
        self.live.iter().map(|live| live.header.id).collect()
    }

    /// The generation that set the cluster's kubeconfig; 0 if there is no cluster.
    pub fn kubeconfig_generation(&self) -> i64 {
        self.facts.as_ref().map_or(0, |facts| facts.kubeconfig_generation)
    }

    /// The syncsets whose deletions are suspended, of those that have something to delete.
    pub fn suspended(&self, snapshot: &Snapshot, results: &[ResultRow]) -> Vec<SyncSetName> {
        let is_suspended = |row: &&ResultRow| {
            let has_deletions =
                row.has_pending_deletions || !self.live.iter().any(|live| live.header.id == row.syncset);
            has_deletions && snapshot.guards.iter().any(|guard| guard.syncset == row.syncset && guard.is_suspended())
        };
        let mut suspended: Vec<_> = results.iter().filter(is_suspended).map(|row| row.name.clone()).collect();
        suspended.sort();
        suspended
    }

    /// How the health of one of the cluster's syncsets is read, if it is.
    pub fn health_settings(&self, syncset: Uuid) -> Option<&Settings> {
        self.live.iter().find(|live| live.header.id == syncset)?.header.health.as_ref()
    }

    /// When the health of each syncset is read next that has been applied as it is now.
    pub fn health_at(
        &self,
        snapshot: &Snapshot,
        results: &[ResultRow],
        read: &BTreeMap<Uuid, Health>,
        last_full: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let with_health = self.live.iter().filter(|live| live.header.health.is_some() && live.undecodable.is_none());
        let due = with_health.filter_map(|live| {
            let id = live.header.id;
            let result = results.iter().find(|result| result.syncset == id);
            let health = read.get(&id).or_else(|| snapshot.health.get(&id));
            health::due(live.inputs, result, health, last_full)
        });
        due.min()
    }

    /// What the `ClusterSync` says of the health of each syncset that has `spec.health`.
    pub fn health_entries(
        &self,
        snapshot: &Snapshot,
        results: &[ResultRow],
        read: &BTreeMap<Uuid, Health>,
        (is_unreachable, is_another): (bool, bool),
    ) -> BTreeMap<SyncSetName, Entry> {
        let with_health = self.live.iter().filter(|live| live.header.health.is_some());
        let entries = with_health.map(|live| {
            let id = live.header.id;
            let result = results.iter().find(|result| result.syncset == id);
            // Of the cluster before, nothing is said any more.
            let before = || snapshot.health.get(&id).filter(|_| !is_another);
            let health = read.get(&id).or_else(before);
            (live.header.name.clone(), Entry::of(live.inputs, result, health, is_unreachable))
        });
        entries.collect()
    }
}

/// The syncset, if it is one of the cluster's. One that is being deleted is none any more, whatever finalizers it still has; nor is a revision
/// whose secrets are not for the cluster, unless something was sent by another one: that stays.
fn of_candidate(
    candidate: &Candidate,
    cluster: &ClusterFacts,
    secrets: &Sources<'_>,
    has_sent: bool,
) -> Option<LiveSyncset> {
    if candidate.is_being_deleted {
        return None;
    }
    let spec = Value::Object(candidate.spec.clone());
    let audience = match candidate.name.kind {
        // The index compares the whole names, so that it decides; the names themselves were not read.
        SyncSetKind::SyncSet => Ok(candidate.name.namespace == cluster.namespace),
        SyncSetKind::SelectorSyncSet => Audience::of(&candidate.name, &spec)
            .map(|audience| audience.includes(&cluster.namespace, &cluster.name, &cluster.labels)),
    };
    let identity = Identity {
        id: candidate.id,
        name: candidate.name.clone(),
        version: candidate.version,
        generation: candidate.generation,
    };
    let header = match audience {
        Ok(false) => return None,
        Ok(true) if EffectiveNamespaces::of(&spec).include(&cluster.namespace) => {
            parse::header(identity.clone(), &spec)
        }
        Ok(true) if !has_sent => return None,
        Ok(true) => Err(Failure {
            reason: Reason::SecretInvalid,
            message: format!(
                "secretMappings: this revision was not for clusters in the namespace {}, and changes nothing here",
                cluster.namespace
            ),
        }),
        // Whom it is for is not known, so that it may be this cluster: the index has found it.
        Err(failure) => Err(failure),
    };
    let (header, undecodable) = match header {
        Ok(header) => (header, None),
        Err(failure) => (unread(identity), Some(failure)),
    };
    let copies = || {
        let mappings = LiveSyncset::secrets(&header);
        mappings.filter_map(|mapping| Some((mapping, *secrets.get(&mapping.source())?)))
    };
    let mapped: BTreeMap<Uuid, SecretSource> = copies().map(|(_, facts)| (facts.id, source(facts))).collect();
    let inputs = digest::inputs(&header, &cluster.labels, mapped.values());
    let objects = candidate.objects + header.secrets.len();
    let bytes =
        candidate.bytes + copies().map(|(mapping, facts)| facts.size(mapping)).sum::<usize>() + objects * OBJECT;
    let Candidate { is_pinned, read_before, .. } = *candidate;
    let is_cut = candidate.is_cut || copies().any(|(mapping, facts)| facts.is_cut && !mapping.metadata.is_empty());
    Some(LiveSyncset { header, inputs, is_pinned, read_before, bytes, is_cut, undecodable })
}

/// The objects that a rollout is about to bring to this cluster, if it is for it. What can't be read may be anything.
fn names(awaited: &Awaited, cluster: &ClusterFacts) -> Option<Names> {
    let is_for_it = match awaited.name.kind {
        SyncSetKind::SyncSet => awaited.name.namespace == cluster.namespace,
        SyncSetKind::SelectorSyncSet => Audience::of(&awaited.name, &Value::Object(awaited.audience.clone()))
            .is_ok_and(|audience| audience.includes(&cluster.namespace, &cluster.name, &cluster.labels)),
    };
    let naming = || Naming::of_any(&awaited.name, &awaited.spec, awaited.resources.as_deref());
    is_for_it.then(|| naming().map_or_else(Names::anything, |naming| naming.names(&cluster.labels)))
}

/// Leaves out what exceeds [`MOST_BYTES`], in the order in which syncsets are applied: the same ones in each pass, whatever is due. They count like
/// those that can't be read: nobody knows what they want, so what they have sent stays, and nothing is deleted.
fn leave_out(live: &mut [LiveSyncset]) {
    let mut used = 0;
    for syncset in live.iter_mut().filter(|syncset| syncset.undecodable.is_none()) {
        if !syncset.is_cut && used + syncset.bytes <= MOST_BYTES {
            used += syncset.bytes;
            continue;
        }
        let message = format!(
            "the syncsets of this cluster have more than {} MiB together: no room is left for the {} KiB of this one",
            MOST_BYTES >> 20,
            syncset.bytes.div_ceil(1 << 10)
        );
        syncset.undecodable = Some(Failure { reason: Reason::ResourceInvalid, message });
        // It is due when that begins, whatever else happens to it.
        syncset.inputs = syncset.inputs.inverted();
    }
}

/// The header of a syncset that can't be read. Its mode is `Sync`, since `Upsert` would forget what it has sent.
fn unread(identity: Identity) -> Header {
    Header {
        id: identity.id,
        name: identity.name,
        version: identity.version,
        generation: identity.generation,
        behavior: Behavior::default(),
        mode: Mode::Sync,
        resource_templates: false,
        patch_templates: false,
        secrets: Vec::new(),
        health: None,
    }
}

impl LiveSyncset {
    fn live_facts(&self, snapshot: &Snapshot) -> action::LiveFacts {
        let id = &self.header.id;
        let result = snapshot.results.iter().find(|result| result.syncset == *id);
        let last_full = snapshot.cluster_row.as_ref().and_then(|cluster_row| cluster_row.last_full);
        let is_read = self.header.health.is_some() && self.undecodable.is_none();
        // What was read before a silence says nothing of how it is after it.
        let was_silent = snapshot.cluster_row.as_ref().is_some_and(|cluster_row| cluster_row.reachable == Some(false));
        let read = snapshot.health.get(id).filter(|_| !was_silent);
        // A soak ends with a reading of its own. The database has stored the time of the last one in microseconds.
        let is_before =
            |read: &Health| self.read_before.is_some_and(|before| read.read.duration_since(before).abs() < INSTANT);
        let is_applied = result.is_some_and(|result| health::is_applied(result, self.inputs));
        let is_reread = is_applied && read.is_some_and(|read| read.is_of(self.inputs) && is_before(read));
        let reread = is_reread.then_some(snapshot.at);
        let due = is_read.then(|| reread.or(health::due(self.inputs, result, read, last_full)));
        action::LiveFacts { id: *id, inputs: self.inputs, health_at: due.flatten() }
    }

    /// The secrets that it may copy. Their facts are needed for its inputs, and their data when it is rendered.
    pub fn secrets(header: &Header) -> impl Iterator<Item = &SecretMapping> {
        header.secrets.iter().filter(|mapping| may_copy(header, &mapping.source_namespace))
    }
}

/// Whether a syncset may copy secrets of a namespace. This was checked when it was written, and is checked again.
fn may_copy(header: &Header, namespace: &str) -> bool {
    match header.name.kind {
        SyncSetKind::SyncSet => header.name.namespace == namespace,
        SyncSetKind::SelectorSyncSet => !namespace.is_empty(),
    }
}

/// What is not secret of a `Secret` document.
pub fn source(facts: &SecretFacts) -> SecretSource {
    SecretSource {
        namespace: facts.namespace.clone(),
        name: facts.name.clone(),
        id: facts.id,
        data_generation: facts.data_generation,
        secret_type: facts.secret_type.clone(),
        is_immutable: facts.is_immutable,
        labels: facts.labels.clone(),
        annotations: facts.annotations.clone(),
    }
}

/// Secrets by namespace and name.
pub type Sources<'s> = BTreeMap<(&'s str, &'s str), &'s SecretFacts>;

pub fn sources(secrets: &[SecretFacts]) -> Sources<'_> {
    secrets.iter().map(|facts| ((facts.namespace.as_str(), facts.name.as_str()), facts)).collect()
}

fn facts(document: &Document) -> ClusterFacts {
    ClusterFacts {
        id: document.id,
        namespace: document.namespace.clone(),
        name: document.name.clone(),
        labels: document.labels.clone(),
        annotations: document.annotations.clone(),
        // Another release may have written another value. To pause does the least harm.
        paused: document.data.get("paused").is_some_and(|paused| !matches!(paused, Value::Bool(false) | Value::Null)),
        is_being_deleted: document.deleted_at.is_some(),
        kubeconfig_generation: document
            .data
            .get(Sealed::Kubeconfig.generation_field())
            .and_then(Value::as_i64)
            .unwrap_or_default(),
    }
}

/// Whether what a pass is about to delete is still to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rechecked {
    /// Everything that it rests on is as it was.
    Same,
    /// Not all of it, or some of it is unchecked: what is wanted now has to be found out first.
    Changed,
    /// Nothing is to be done to the cluster any more.
    Ended,
}

impl Rechecked {
    pub fn of((before, planned): (&Snapshot, &Plan), (snapshot, plan): (&Snapshot, &Plan)) -> Self {
        if matches!(plan.action, Action::Gone | Action::Paused(_)) {
            return Self::Ended;
        }
        let of_kubeconfig = |plan: &Plan| plan.facts.as_ref().map(|facts| facts.kubeconfig_generation);
        let wants = |plan: &Plan| {
            let live = plan.live.iter().map(|live| (live.header.id, live.inputs, live.undecodable.is_some()));
            live.collect::<Vec<_>>()
        };
        let of_results = before.results.iter().map(|row| row.syncset);
        let mut all = of_results.chain(before.with_applied.iter().copied());
        let is_same = of_kubeconfig(plan) == of_kubeconfig(planned)
            && plan.awaited == planned.awaited
            && wants(plan) == wants(planned)
            && all.all(|syncset| snapshot.deletions(syncset) == before.deletions(syncset));
        if is_same { Self::Same } else { Self::Changed }
    }
}

/// Shows no kubeconfig.
impl std::fmt::Debug for StoredCluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("StoredCluster").field("document", &self.document).finish_non_exhaustive()
    }
}
