//! What a reconcile has read, and what that says: which syncsets a cluster has, and what there is to do. Pure, without payloads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use crate::documents::{Document, Sealed};
use crate::syncset::plan::action;
use crate::syncset::plan::action::{Action, ClusterFacts};
use crate::syncset::plan::digest;
use crate::syncset::plan::health;
use crate::syncset::plan::health::Health;
use crate::syncset::plan::matching::{Audience, EffectiveNamespaces};
use crate::syncset::plan::name::{Digest, SyncSetKind, SyncSetName};
use crate::syncset::plan::naming::{Names, Naming};
use crate::syncset::plan::parse;
use crate::syncset::plan::parse::Identity;
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::{ClusterRow, Failure, ResultRow};
use crate::syncset::plan::spec::{Behavior, Header, Mode, SecretMapping, SecretSource};
use crate::syncset::run::store::{Awaited, Candidate, SecretFacts, Snapshot};

/// Most bytes of syncsets that a cluster may have together, as the database has them, with a copy of the Secret for each mapping. As
/// values they usually take five to ten times as much in memory.
pub(super) const MOST_BYTES: usize = 8 << 20;
const INSTANT: SignedDuration = SignedDuration::from_millis(1);
/// Each object, patch and copy of a Secret counts with so many bytes more, so a cluster has at most 26,214 of them, however small they are.
const OBJECT: usize = 320;

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
    pub(super) is_pinned: bool,
    /// Its health is read again unless it was read after that.
    read_before: Option<Timestamp>,
    /// Bytes of its whole `spec`, as the database has it, and of a copy of the Secret for each mapping, with [`OBJECT`] for each object.
    pub bytes: usize,
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
        let wanted: Vec<action::Live> = live.iter().map(|live| live.as_live(snapshot)).collect();
        let action = Action::of(
            facts.as_ref(),
            &wanted,
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
    pub(super) fn unasked(mut self, snapshot: &Snapshot) -> Self {
        if let Action::Pass(pass_plan) = &mut self.action {
            let inputs = self.live.iter().map(|live| (live.header.id, live.inputs)).collect();
            let left_at = snapshot.cluster_row.as_ref().and_then(|cluster_row| cluster_row.left_at);
            pass_plan.unasked(&snapshot.results, &inputs, left_at, snapshot.at);
        }
        self
    }
}

/// The demand for a full pass, and the last one, when a pass began: what another pass has seen does not count.
pub(super) type Demand = (i64, Option<Timestamp>);

/// What a reconcile has read, and when.
pub(super) struct Read {
    pub(super) snapshot: Snapshot,
    pub(super) plan: Plan,
    pub(super) at: Instant,
}

impl Read {
    /// The database's time.
    pub(super) fn now(&self) -> Timestamp {
        after(self.snapshot.at, self.at.elapsed())
    }

    pub(super) fn cluster_row(&self) -> ClusterRow {
        self.snapshot.cluster_row.clone().unwrap_or_default()
    }

    /// Which cluster it was, when that was last found out.
    pub(super) fn identity(&self) -> Option<&str> {
        self.snapshot.cluster_row.as_ref()?.identity.as_deref()
    }

    /// By what a pass finds out whether it goes on with an earlier one.
    pub(super) fn demand(&self) -> Demand {
        (self.snapshot.resyncs, self.snapshot.cluster_row.as_ref().and_then(|cluster_row| cluster_row.last_full))
    }

    pub(super) fn live(&self) -> BTreeSet<Uuid> {
        self.plan.live.iter().map(|syncset| syncset.header.id).collect()
    }

    /// The syncsets whose deletions are suspended, of those that have something to delete.
    pub(super) fn suspended(&self, results: &[ResultRow]) -> Vec<SyncSetName> {
        let is_suspended = |row: &&ResultRow| {
            let has_deletions =
                row.has_pending_deletions || !self.plan.live.iter().any(|live| live.header.id == row.syncset);
            has_deletions && self.snapshot.guards.iter().any(|guard| guard.syncset == row.syncset && guard.held)
        };
        let mut suspended: Vec<_> = results.iter().filter(is_suspended).map(|row| row.name.clone()).collect();
        suspended.sort();
        suspended
    }
}

pub(super) fn after(at: Timestamp, elapsed: Duration) -> Timestamp {
    let elapsed = SignedDuration::try_from(elapsed).unwrap_or(SignedDuration::MAX);
    at.checked_add(elapsed).unwrap_or(Timestamp::MAX)
}

impl LiveSyncset {
    fn as_live(&self, snapshot: &Snapshot) -> action::Live {
        let Header { id, name, .. } = &self.header;
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
        action::Live { id: *id, name: name.clone(), inputs: self.inputs, health_at: due.flatten() }
    }

    /// The secrets that it may copy. Their facts are needed for its inputs, and their data when it is rendered.
    pub(super) fn secrets(header: &Header) -> impl Iterator<Item = &SecretMapping> {
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

/// What is not secret of a `Secret` document.
pub(super) fn source(facts: &SecretFacts) -> SecretSource {
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
pub(super) type Sources<'s> = BTreeMap<(&'s str, &'s str), &'s SecretFacts>;

pub(super) fn sources(secrets: &[SecretFacts]) -> Sources<'_> {
    secrets.iter().map(|facts| ((facts.namespace.as_str(), facts.name.as_str()), facts)).collect()
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
    let copies = || LiveSyncset::secrets(&header).filter_map(|mapping| secrets.get(&mapping.source()).copied());
    let mapped: BTreeMap<Uuid, SecretSource> = copies().map(|facts| (facts.id, source(facts))).collect();
    let inputs = digest::inputs(&header, &cluster.labels, mapped.values());
    let objects = candidate.objects + header.secrets.len();
    let bytes = candidate.bytes + copies().map(SecretFacts::size).sum::<usize>() + objects * OBJECT;
    let Candidate { is_pinned, read_before, .. } = *candidate;
    Some(LiveSyncset { header, inputs, is_pinned, read_before, bytes, undecodable })
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
        if used + syncset.bytes <= MOST_BYTES {
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

#[cfg(test)]
mod tests;
