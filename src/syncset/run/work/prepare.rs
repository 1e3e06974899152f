//! From a snapshot to what a pass begins with: reads what is due, opens its secrets, and renders it. And from a cluster's document to a client.
//!
//! What a pass has rendered is in memory until it ends, which may take as long as its cluster does. So it waits for a share of a budget before
//! it reads, by the sizes of the documents. Small passes have a budget of their own, so that those with large syncsets, which may be of slow
//! clusters, never keep them waiting; and of each budget the passes of a namespace get half. What exceeds that by itself is
//! [left out](crate::syncset::plan::snapshot::Plan) before anything is read.
//!
//! What may take long runs apart from the runtime: parsing and rendering, and whatever a user has written in a kubeconfig.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretSlice, SecretString};
use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::executor::Client;
use crate::actor::{OwnSlots, Slot, Slots};
use crate::cluster::kubeconfig::{self, Allowed, Fault};
use crate::cluster::{Credentials, DynamicClusters, Fingerprint};
use crate::documents::{BlockingPool, Key, Keyring, Kind, OpenError, ShutsDown};
use crate::syncset::plan::action::PassPlan;
use crate::syncset::plan::object::SecretContent;
use crate::syncset::plan::pass::{Input, Progress};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::render;
use crate::syncset::plan::render::UnreadableSecret;
use crate::syncset::plan::rows::Failure;
use crate::syncset::plan::snapshot::{
    LiveSyncset, MOST_BYTES, Plan, SecretFacts, Sent, Snapshot, StoredCluster, source, sources,
};
use crate::syncset::plan::spec::{Header, Rendered, SecretSource};
use crate::syncset::plan::wanted::{Deletions, Live, also_due};
use crate::syncset::run::payloads::{Kept, Parsed, Payloads};
use crate::syncset::run::store::{
    Content, Lacking, MOST_ROWS, PassStore, PayloadRow, SealedSecret, StoreError, TooLarge,
};

/// A pass is small if it takes at most so many bytes of a budget.
const SMALL: usize = MOST_BYTES / 32;
/// How many times as long a small pass waits for its share as another one: what it waits for is soon free.
const PATIENCE_WHEN_SMALL: u32 = 5;
/// So many passes read payloads and secrets at once. Others that lack the same begin with what these have read.
const READERS: usize = 4;
/// A snapshot of so many bytes is read without a budget: two hundred times as much as one of a few small syncsets.
const SMALL_SNAPSHOT: usize = 1 << 17;
/// A larger one is not read. The syncsets of a cluster are cut to [`MOST_BYTES`]; the rest is for their names and results, if they are many.
const MOST_SNAPSHOT: usize = 2 * MOST_BYTES;
/// How often a snapshot is begun anew that has grown meanwhile.
const MOST_SNAPSHOTS: usize = 3;
/// The unit of the budgets, in bytes.
const UNIT: usize = 1 << 10;
/// An object or a patch that was sent counts like so many bytes of a document: what is noted of it takes 1.7 KiB, and the values of a document take
/// five to ten times its size.
const ROW: usize = 200;

/// Prepares passes. Clones share the budgets, threads and payloads.
#[derive(Clone)]
pub struct Preparer {
    store: PassStore,
    payloads: Payloads,
    /// One that lacks a payload or a secret waits for a slot here, and looks again before it reads. Never closed.
    readers: Arc<Semaphore>,
    keyring: watch::Receiver<Arc<Keyring>>,
    blocking: BlockingPool,
    budgets: Budgets,
    allowed: Allowed,
    proposed: Option<Proposed>,
    /// How long a large pass waits for its share.
    patience: Option<Duration>,
}

/// Units for large snapshots, for small passes and for large ones, of which the passes of one namespace have half at most: of the snapshots and
/// the large passes, one may have that.
#[derive(Clone)]
struct Budgets {
    snapshots: Slots,
    small: Slots,
    large: Slots,
}

/// A syncset that is not stored, or not like this.
#[derive(Clone)]
struct Proposed {
    syncset: Uuid,
    version: i64,
    kept: Kept,
}

/// What a snapshot may take, until it is dropped.
#[derive(Debug)]
pub struct SnapshotBudget {
    pub bytes: usize,
    /// Shortly before it was read.
    pub since: Instant,
    /// Its part of a budget, if it is not small.
    _slot: Option<Slot>,
}

#[derive(Debug)]
pub struct Prepared {
    pub input: Input,
    /// Its part of a budget, until it is dropped.
    pub budget: Slot,
}

#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A syncset or a secret has changed since the snapshot, so that another one has to be taken.
    #[error("the cluster's syncsets have changed meanwhile")]
    Outdated,
    /// There are no threads to render it. Another attempt may succeed.
    #[error("no thread is free to render the syncsets")]
    Busy,
    /// Other passes have the budget, for longer than it was to wait for it.
    #[error("other passes take all the memory there is for syncsets of this size")]
    NoBudget,
    /// With their results.
    #[error("the syncsets of the cluster are too many: what is to be known of them takes more than {} MiB, so nothing is applied or deleted", MOST_SNAPSHOT >> 20)]
    TooManySyncsets,
    /// With objects that syncsets had before, and which could not be deleted.
    #[error(
        "more than {MOST_ROWS} objects or patches are noted as sent to the cluster, so nothing is applied or deleted"
    )]
    TooManyObjects,
}

impl PrepareError {
    /// What the `ClusterSync` calls it, if only a change of documents helps.
    pub(super) fn reason(&self) -> Option<&'static str> {
        match self {
            Self::TooManySyncsets => Some("TooManySyncsets"),
            Self::TooManyObjects => Some("TooManyObjects"),
            Self::Store(_) | Self::Outdated | Self::Busy | Self::NoBudget => None,
        }
    }
}

impl From<ShutsDown> for PrepareError {
    fn from(ShutsDown: ShutsDown) -> Self {
        Self::Busy
    }
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            snapshots: Slots::new(2 * MOST_SNAPSHOT / UNIT),
            small: Slots::new(MOST_BYTES / UNIT),
            large: Slots::new(2 * MOST_BYTES / UNIT),
        }
    }
}

impl Preparer {
    /// Reads from this store. `keyring` opens what is sealed, and `allowed` is what kubeconfigs may use.
    pub fn new(store: PassStore, payloads: Payloads, keyring: watch::Receiver<Arc<Keyring>>, allowed: Allowed) -> Self {
        Self {
            store,
            payloads,
            readers: Arc::new(Semaphore::new(READERS)),
            keyring,
            blocking: BlockingPool::default(),
            budgets: Budgets::default(),
            allowed,
            proposed: None,
            patience: None,
        }
    }

    /// The same with budgets and threads of its own, reading from this store: for those who only look at clusters, and keep what they have
    /// rendered while a cluster takes its time. They wait for their share as long as they want to.
    #[must_use]
    pub fn apart(&self, store: PassStore) -> Self {
        let (readers, blocking) = (Arc::new(Semaphore::new(READERS)), BlockingPool::default());
        Self { store, readers, blocking, budgets: Budgets::default(), patience: None, ..self.clone() }
    }

    /// The same, but no large pass waits for its share for longer than this, and no small one for longer than five times this.
    #[must_use]
    pub fn waiting_at_most(&self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self.clone() }
    }

    /// The same with the payload of a syncset that is not stored in this version.
    #[must_use]
    pub fn proposing(&self, syncset: Uuid, version: i64, kept: Kept) -> Self {
        Self { proposed: Some(Proposed { syncset, version, kept }), ..self.clone() }
    }

    pub fn blocking(&self) -> &BlockingPool {
        &self.blocking
    }

    pub fn keyring(&self) -> Arc<Keyring> {
        Arc::clone(&self.keyring.borrow())
    }

    /// What a pass with this plan begins with. `deletions` says whether a syncset may delete. It may wait until other passes have
    /// ended, and can be dropped at any time.
    pub async fn prepare(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        pass_plan: &PassPlan,
        another_cluster: bool,
        deletions: &(dyn Fn(Uuid) -> Deletions + Sync),
    ) -> Result<Prepared, PrepareError> {
        let is_due =
            |syncset: &&LiveSyncset| pass_plan.is_full || another_cluster || pass_plan.due.contains(&syncset.header.id);
        let mut wanted: BTreeSet<Uuid> = plan.live.iter().filter(is_due).map(|syncset| syncset.header.id).collect();
        let mut rows = snapshot.sent.clone();
        let (budget, live) = loop {
            let budget = self.budget(snapshot, plan, &wanted).await?;
            let live = self.rendered(snapshot, plan, &wanted, &mut rows, deletions).await?;
            let sent = rows.iter().filter(|_| !pass_plan.is_early).flat_map(|rows: &Sent| &rows.applied);
            let more = also_due(&live, sent);
            if more.is_empty() {
                break (budget, live);
            }
            // It begins anew: two passes that keep what they have and wait for more could wait for each other.
            wanted.extend(more);
        };
        let gone = pass_plan.gone.iter().map(|gone| (*gone, deletions(*gone)));
        let Sent { applied, patched } = rows.unwrap_or_default();
        let input = Input {
            live,
            gone: gone.collect(),
            awaited: plan.awaited.clone(),
            applied,
            patched,
            results: snapshot.results.clone(),
            full: pass_plan.is_full,
            another_cluster,
            elsewhere: false,
            progress: Progress::default(),
            now: snapshot.at,
        };
        Ok(Prepared { input, budget })
    }

    /// Waits for what it takes to render these syncsets, beside what was sent to the cluster.
    async fn budget(&self, snapshot: &Snapshot, plan: &Plan, wanted: &BTreeSet<Uuid>) -> Result<Slot, PrepareError> {
        let wanted = plan.live.iter().filter(|live| wanted.contains(&live.header.id) && live.undecodable.is_none());
        let bytes = wanted.map(|live| live.bytes).sum::<usize>().saturating_add(snapshot.rows.saturating_mul(ROW));
        let (budget, times) =
            if bytes <= SMALL { (&self.budgets.small, PATIENCE_WHEN_SMALL) } else { (&self.budgets.large, 1) };
        let units = u32::try_from(bytes.min(MOST_BYTES).div_ceil(UNIT)).unwrap_or(u32::MAX);
        let namespace = snapshot.cluster.as_ref().map_or("", |cluster| &cluster.document.namespace);
        self.take(&budget.of(namespace), units, times).await
    }

    async fn take(&self, own: &OwnSlots, units: u32, times: u32) -> Result<Slot, PrepareError> {
        match self.patience.map(|patience| patience.saturating_mul(times)) {
            Some(patience) => timeout(patience, own.take(units)).await.map_err(|_| PrepareError::NoBudget),
            None => Ok(own.take(units).await),
        }
    }

    /// What a pass over a cluster of this namespace begins with, and what that may take: whoever writes documents decides how much it is. So
    /// what is large is read once there is budget, which is taken before that of the pass. `namespace` is who has the budget; the empty one
    /// stands for all who only look at clusters.
    pub async fn snapshot(&self, cluster: Uuid, namespace: &str) -> Result<(Snapshot, SnapshotBudget), PrepareError> {
        let mut budget = SnapshotBudget { bytes: SMALL_SNAPSHOT, since: Instant::now(), _slot: None };
        for _ in 0..MOST_SNAPSHOTS {
            let TooLarge { bytes } = match self.store.snapshot_within(cluster, budget.bytes).await? {
                Ok(snapshot) => return Ok((snapshot, budget)),
                Err(too_large) => too_large,
            };
            // Those that keep what they have and wait for more could wait for each other.
            drop(budget);
            if bytes > MOST_SNAPSHOT {
                return Err(PrepareError::TooManySyncsets);
            }
            // With room for what the pass itself stores, and for another one that it compares with this one before it deletes.
            let bytes = bytes.saturating_add(SMALL_SNAPSHOT).min(MOST_SNAPSHOT);
            let units = u32::try_from((2 * bytes).min(MOST_SNAPSHOT).div_ceil(UNIT)).unwrap_or(u32::MAX);
            let slot = self.take(&self.budgets.snapshots.of(namespace), units, 1).await?;
            budget = SnapshotBudget { bytes, since: Instant::now(), _slot: Some(slot) };
        }
        Err(PrepareError::Outdated)
    }

    /// All syncsets of the cluster, of which these are rendered. Reads what is missing, with at most one statement: what was sent to the
    /// cluster, too, if it was not read before.
    async fn rendered(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        wanted: &BTreeSet<Uuid>,
        rows: &mut Option<Sent>,
        deletions: &(dyn Fn(Uuid) -> Deletions + Sync),
    ) -> Result<Vec<Live>, PrepareError> {
        let is_wanted = |live: &&LiveSyncset| live.undecodable.is_none() && wanted.contains(&live.header.id);
        let of_wanted: Vec<&LiveSyncset> = plan.live.iter().filter(is_wanted).collect();
        let headers: Vec<&Header> = of_wanted.iter().map(|live| &live.header).collect();
        let mapped = mapped(snapshot, &headers);
        let cluster = snapshot.cluster.as_ref().filter(|_| rows.is_none()).map(|cluster| cluster.document.id);
        let keys = self.keyring();
        let mut found = self.found(&of_wanted, &mapped, &keys);
        let mut reading = None;
        if found.lacks_any() {
            // Passes that begin with the same change wait here, and find what the first of them has read.
            reading = self.readers.acquire().await.ok();
            found = self.found(&of_wanted, &mapped, &keys);
            if !found.lacks_any() {
                reading = None;
            }
        }
        if cluster.is_some() || found.lacks_any() {
            let content = self.store.content(cluster, &found.lacking).await?;
            let Content { payloads, sent: Sent { applied, patched }, secrets } = content;
            if applied.len().max(patched.len()) > MOST_ROWS {
                return Err(PrepareError::TooManyObjects);
            }
            rows.get_or_insert(Sent { applied, patched });
            for (row, parsed) in parse(&self.blocking, payloads).await? {
                self.payloads.keep(row.id, row.version, parsed.clone());
                found.payloads.insert(row.id, (row.version, parsed));
            }
            for secret in secrets.into_iter().map(Arc::new) {
                self.payloads.keep_secret(&secret, &keys);
                found.secrets.push(secret);
            }
        }
        drop(reading);
        let mut syncsets = Vec::new();
        for header in headers {
            // A payload of another version does not fit to the header, nor to what the guard has checked and what is stored as its inputs.
            let payload = found.payloads.remove(&header.id).filter(|(version, _)| *version == header.version);
            syncsets.push((header.clone(), payload.ok_or(PrepareError::Outdated)?.1));
        }
        let sealed = found.secrets;
        let keyring = self.keyring();
        let bytes = sealed.iter().filter_map(|secret| secret.sealed.as_ref()).map(Vec::len).sum();
        let secrets = self.blocking.run(bytes, move || opened(&mapped, sealed, &keyring)).await?;
        let labels = plan.facts.as_ref().map(|facts| facts.labels.clone()).unwrap_or_default();
        let mut rendered = render(&self.blocking, syncsets, labels, secrets).await?;
        let live = plan.live.iter().map(|syncset| Live {
            header: syncset.header.clone(),
            inputs: syncset.inputs,
            rendered: match &syncset.undecodable {
                Some(failure) => Some(render::undecodable(failure.clone())),
                None => rendered.remove(&syncset.header.id),
            },
            deletions: deletions(syncset.header.id),
        });
        Ok(live.collect())
    }

    fn kept(&self, header: &Header) -> Option<Parsed> {
        let proposed = self.proposed.as_ref();
        let proposed = proposed.filter(|proposed| (proposed.syncset, proposed.version) == (header.id, header.version));
        proposed.map(|proposed| Ok(proposed.kept.clone())).or_else(|| self.payloads.get(header.id, header.version))
    }

    /// What the process has of these syncsets and secrets.
    fn found(&self, wanted: &[&LiveSyncset], mapped: &BTreeMap<Uuid, SecretFacts>, keys: &Arc<Keyring>) -> Found {
        let mut found = Found::default();
        for LiveSyncset { header, is_pinned, .. } in wanted {
            match self.kept(header) {
                Some(parsed) => {
                    found.payloads.insert(header.id, (header.version, parsed));
                }
                None if *is_pinned => found.lacking.revisions.push((header.id, header.version)),
                None => found.lacking.syncsets.push(header.id),
            }
        }
        for facts in mapped.values() {
            match self.payloads.secret(facts.id, facts.version, keys) {
                Some(secret) => found.secrets.push(secret),
                None => found.lacking.secrets.push(facts.id),
            }
        }
        found
    }
}

/// Payloads with their versions, and secrets, by what the process has, and what it lacks.
#[derive(Default)]
struct Found {
    payloads: BTreeMap<Uuid, (i64, Parsed)>,
    secrets: Vec<Arc<SealedSecret>>,
    lacking: Lacking,
}

impl Found {
    fn lacks_any(&self) -> bool {
        let Lacking { syncsets, revisions, secrets } = &self.lacking;
        !(syncsets.is_empty() && revisions.is_empty() && secrets.is_empty())
    }
}

/// The secrets that these syncsets map and may map, by their ids.
fn mapped(snapshot: &Snapshot, headers: &[&Header]) -> BTreeMap<Uuid, SecretFacts> {
    let sources = sources(&snapshot.secrets);
    let mapped = headers.iter().flat_map(|header| LiveSyncset::secrets(header));
    let mapped = mapped.filter_map(|mapping| sources.get(&mapping.source()));
    mapped.map(|facts| (facts.id, (*facts).clone())).collect()
}

async fn parse(blocking: &BlockingPool, rows: Vec<PayloadRow>) -> Result<Vec<(PayloadRow, Parsed)>, PrepareError> {
    let bytes = rows.iter().map(|row| row.text.len()).sum();
    let parse = move || {
        let parsed = rows.into_iter().map(|PayloadRow { id, version, text }| {
            let payload = payload(&text);
            (PayloadRow { id, version, text: String::new() }, payload)
        });
        Ok(parsed.collect())
    };
    blocking.run(bytes, parse).await
}

fn payload(text: &str) -> Parsed {
    // The database has printed it, but perhaps for a release that allows more levels.
    let spec: Value = serde_json::from_str(text).map_err(|error| Failure {
        reason: Reason::ResourceInvalid,
        message: format!("failed to decode spec: {error}"),
    })?;
    Kept::of(&spec)
}

/// What syncsets want on a cluster with these labels, by their ids. `secrets` has all that they map.
async fn render(
    blocking: &BlockingPool,
    syncsets: Vec<(Header, Parsed)>,
    labels: BTreeMap<String, String>,
    secrets: Contents,
) -> Result<BTreeMap<Uuid, Rendered>, PrepareError> {
    // Patches may be YAML, and templates may make much of a short text.
    let takes_long = syncsets.iter().any(|(header, parsed)| {
        let has_patches = parsed.as_ref().is_ok_and(|kept| !kept.payload.patches.is_empty());
        has_patches || header.resource_templates
    });
    let bytes = syncsets.iter().filter_map(|(_, parsed)| parsed.as_ref().ok()).map(|kept| kept.bytes).sum();
    let render = move || {
        let secrets = |namespace: &str, name: &str| match secrets.get(&(namespace.to_owned(), name.to_owned())) {
            Some(content) => content.as_ref().map_err(|error| *error),
            None => Err(UnreadableSecret::Missing),
        };
        let rendered = syncsets.iter().map(|(header, parsed)| {
            let rendered = match parsed {
                Ok(kept) => render::render(header, &kept.payload, &labels, &secrets),
                Err(failure) => render::undecodable(failure.clone()),
            };
            (header.id, rendered)
        });
        Ok(rendered.collect())
    };
    if takes_long { blocking.apart(render).await } else { blocking.run(bytes, render).await }
}

/// A mapped secret by namespace and name, or why it can't be read.
type Contents = BTreeMap<(String, String), Result<SecretContent, UnreadableSecret>>;

/// Opens secrets. One that has changed since the snapshot would be sent under what is known of the one before.
fn opened(
    facts: &BTreeMap<Uuid, SecretFacts>,
    read: Vec<Arc<SealedSecret>>,
    keyring: &Keyring,
) -> Result<Contents, PrepareError> {
    let read: BTreeMap<Uuid, Arc<SealedSecret>> = read.into_iter().map(|secret| (secret.id, secret)).collect();
    let mut contents = Contents::new();
    for (id, facts) in facts {
        let sealed = read.get(id).filter(|secret| secret.version == facts.version).ok_or(PrepareError::Outdated)?;
        let content = content(source(facts), sealed.sealed.as_deref(), keyring);
        contents.insert((facts.namespace.clone(), facts.name.clone()), content);
    }
    Ok(contents)
}

/// The data of a secret. A document without any, which no release writes, is not an empty secret.
fn content(source: SecretSource, sealed: Option<&[u8]>, keyring: &Keyring) -> Result<SecretContent, UnreadableSecret> {
    let sealed = sealed.ok_or(UnreadableSecret::Sealed)?;
    let document = Key::new(Kind::Secret, source.namespace.as_str(), source.name.as_str());
    let opened = keyring.open(&document, source.id, sealed).map_err(|error| match error {
        OpenError::Unsealed => UnreadableSecret::Unsealed,
        OpenError::Mismatch { .. } => UnreadableSecret::Mismatch,
        OpenError::UnknownKey { .. } | OpenError::Unread | OpenError::Unknown => UnreadableSecret::Sealed,
    })?;
    let data: BTreeMap<String, String> =
        serde_json::from_slice(opened.expose_secret()).map_err(|_| UnreadableSecret::Sealed)?;
    let data = data.into_iter().map(|(name, value)| (name, SecretString::from(value))).collect();
    Ok(SecretContent { source, data })
}

impl Preparer {
    /// The kubeconfig of a cluster, as a text.
    pub fn open(&self, cluster: &StoredCluster) -> Result<OpenedKubeconfig, NoCredentials> {
        let sealed = cluster.sealed.as_deref().ok_or(NoCredentials::Missing)?;
        let (key, id) = (cluster.document.key(), cluster.document.id);
        let text = self.keyring().open(&key, id, sealed).map_err(NoCredentials::Sealed)?;
        let fingerprint = kubeconfig::fingerprint(text.expose_secret());
        Ok(OpenedKubeconfig { text, fingerprint })
    }

    /// A client of a cluster. Its kubeconfig, keys and certificates are what a user has written, so they are read where that keeps
    /// nobody else waiting.
    pub async fn client(
        &self,
        clusters: &Arc<DynamicClusters>,
        cluster: &StoredCluster,
        kubeconfig: OpenedKubeconfig,
    ) -> Result<Client, NoClient> {
        let (clusters, allowed) = (Arc::clone(clusters), self.allowed);
        let (namespace, id) = (cluster.document.namespace.clone(), cluster.document.id);
        let connect =
            move || Client::of(&clusters, &namespace, id, kubeconfig.read(allowed)?).map_err(NoClient::Unusable);
        self.blocking.apart(connect).await
    }
}

/// A kubeconfig that was opened and not read.
pub struct OpenedKubeconfig {
    text: SecretSlice<u8>,
    fingerprint: Fingerprint,
}

/// Why nothing leads to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCredentials {
    /// The kubeconfig is refused, until it is another one.
    #[error("failed to read the kubeconfig")]
    Invalid(#[source] Fault),
    /// This replica does not have its key, now. Another replica may have it.
    #[error("failed to open the kubeconfig")]
    Sealed(#[source] OpenError),
    #[error("the cluster has no kubeconfig")]
    Missing,
}

#[derive(Debug, thiserror::Error)]
pub enum NoClient {
    #[error(transparent)]
    Credentials(#[from] NoCredentials),
    /// No client can be made of keys and certificates.
    #[error("no client can be made of the kubeconfig")]
    Unusable(#[source] kube::Error),
    #[error(transparent)]
    ShutsDown(#[from] ShutsDown),
}

impl OpenedKubeconfig {
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Parses it, which may take long.
    pub fn read(&self, allowed: Allowed) -> Result<Credentials, NoCredentials> {
        kubeconfig::of_user(self.text.expose_secret(), allowed).map_err(NoCredentials::Invalid)
    }
}

/// Shows nothing of it.
impl fmt::Debug for OpenedKubeconfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OpenedKubeconfig").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}
