//! From a snapshot to what a pass begins with: reads what is due, opens its secrets, and renders it.
//!
//! What passes have rendered, and the rows of their clusters, are in memory until they end, and a cluster may have hundreds of syncsets
//! of 4 MiB. So a pass takes its share of the memory before it reads, by what is known of the sizes. If that was too little and no more
//! is free, it drops what it has read and begins anew with as much as it has turned out to need.

mod memory;
mod rendering;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use uuid::Uuid;

pub use memory::Weighed;
pub use secrets::{NoCredentials, OpenedKubeconfig};

use self::memory::Memory;
use self::rendering::Batch;
use self::secrets::Contents;
use super::executor::Client;
use super::plan::{self, LiveSyncset, Plan};
use crate::cluster::DynamicClusters;
use crate::documents::{Aside, Keyring, ShutsDown};
use crate::syncset::kubeconfig::Allowed;
use crate::syncset::payloads::{Kept, Parsed, Payloads};
use crate::syncset::rules::agenda::PassAgenda;
use crate::syncset::rules::pass::{Input, Progress};
use crate::syncset::rules::render::{self, NoThread};
use crate::syncset::rules::rows::{AppliedRow, PatchedRow};
use crate::syncset::rules::spec::{Header, Rendered};
use crate::syncset::rules::wanted::{Deletions, Live, also_due};
use crate::syncset::store::{PassStore, SealedSecret, SecretFacts, Snapshot, StoreError, StoredCluster};

/// What all passes together may have in memory of what they send and have sent, about. 64 passes with 50 small syncsets each take that.
const MEMORY: usize = 96 << 20;
/// What all inspections together may have in memory, for as long as they ask clusters: passes never wait for them.
const INSPECTION_MEMORY: usize = MEMORY / 4;
/// What a syncset takes that is not in the cache, as long as its size is not known: one with five objects.
const USUAL: usize = 96 << 10;
/// How many times the bytes of its text a payload takes while it is rendered, as long as its parts have not been counted.
const GROWTH: usize = 20;
/// How many times the sealed bytes a secret takes: sealed, opened, and rendered.
const OF_SECRET: usize = 4;

/// Prepares passes. Clones share memory, threads and payloads.
#[derive(Clone)]
pub struct Preparer {
    store: PassStore,
    payloads: Payloads,
    keyring: watch::Receiver<Arc<Keyring>>,
    aside: Aside,
    memory: Memory,
    allowed: Allowed,
    proposed: Option<Proposed>,
}

/// A syncset that is not stored, or not like this.
#[derive(Clone)]
struct Proposed {
    syncset: Uuid,
    version: i64,
    kept: Kept,
}

/// What a pass begins with.
#[derive(Debug)]
pub struct Prepared {
    /// The input of the pass.
    pub input: Input,
    /// What its memory is counted by, until it is dropped.
    pub weighed: Weighed,
}

/// Why a pass can't begin.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The database could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A syncset or a secret has changed since the snapshot, so that another one has to be taken.
    #[error("the cluster's syncsets have changed meanwhile")]
    Outdated,
    /// There are no threads to render it. Another attempt may succeed.
    #[error("no thread is free to render the syncsets")]
    Busy,
}

/// Why there is no client of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum NoClient {
    /// Nothing leads to it.
    #[error(transparent)]
    Credentials(#[from] NoCredentials),
    /// No client can be made of keys and certificates.
    #[error("no client can be made of the kubeconfig")]
    Unusable(#[source] kube::Error),
    /// The process ends.
    #[error(transparent)]
    ShutsDown(#[from] ShutsDown),
}

/// Why an attempt ended without an input.
enum Setback {
    Failed(PrepareError),
    /// It takes so many bytes.
    TooSmall(usize),
}

impl From<ShutsDown> for PrepareError {
    fn from(ShutsDown: ShutsDown) -> Self {
        Self::Busy
    }
}

impl From<NoThread> for PrepareError {
    fn from(NoThread: NoThread) -> Self {
        Self::Busy
    }
}

impl<E: Into<PrepareError>> From<E> for Setback {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Preparer {
    /// Reads from this store. `keyring` opens what is sealed, and `allowed` is what kubeconfigs may use.
    pub fn new(store: PassStore, payloads: Payloads, keyring: watch::Receiver<Arc<Keyring>>, allowed: Allowed) -> Self {
        Self {
            store,
            payloads,
            keyring,
            aside: Aside::default(),
            memory: Memory::of_bytes(MEMORY),
            allowed,
            proposed: None,
        }
    }

    /// The same with a memory of its own, which is a quarter as large: for those who only look at clusters, and keep what they have
    /// rendered while a cluster takes its time.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { memory: Memory::of_bytes(INSPECTION_MEMORY), ..self.clone() }
    }

    /// The same with the payload of a syncset that is not stored in this version.
    #[must_use]
    pub fn proposing(&self, syncset: Uuid, version: i64, kept: Kept) -> Self {
        Self { proposed: Some(Proposed { syncset, version, kept }), ..self.clone() }
    }

    /// Where what takes long is done.
    pub fn aside(&self) -> &Aside {
        &self.aside
    }

    /// The keys that open what is sealed.
    pub fn keyring(&self) -> Arc<Keyring> {
        Arc::clone(&self.keyring.borrow())
    }

    fn kept(&self, header: &Header) -> Option<Parsed> {
        let proposed = self.proposed.as_ref();
        let proposed = proposed.filter(|proposed| (proposed.syncset, proposed.version) == (header.id, header.version));
        proposed.map(|proposed| Ok(proposed.kept.clone())).or_else(|| self.payloads.get(header.id, header.version))
    }

    /// The kubeconfig of a cluster, as a text.
    pub fn open(&self, cluster: &StoredCluster) -> Result<OpenedKubeconfig, NoCredentials> {
        secrets::kubeconfig(cluster, &self.keyring())
    }

    /// A client of a cluster. Its kubeconfig, keys and certificates are what a user has written, so they are read where that keeps
    /// nobody else waiting.
    pub async fn client(
        &self,
        clusters: &Arc<DynamicClusters>,
        cluster: Uuid,
        kubeconfig: OpenedKubeconfig,
    ) -> Result<Client, NoClient> {
        let (clusters, allowed) = (Arc::clone(clusters), self.allowed);
        let connect = move || Client::of(&clusters, cluster, kubeconfig.read(allowed)?).map_err(NoClient::Unusable);
        self.aside.apart(connect).await
    }

    /// What a pass with this agenda begins with. `deletions` says whether a syncset may delete. It may wait until other passes have
    /// ended, and can be dropped at any time.
    pub async fn prepare(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        agenda: &PassAgenda,
        another_cluster: bool,
        progress: Progress,
        deletions: &(dyn Fn(Uuid) -> Deletions + Sync),
    ) -> Result<Prepared, PrepareError> {
        let is_full = agenda.is_full || another_cluster;
        let is_due = |syncset: &&LiveSyncset| is_full || agenda.due.contains(&syncset.header.id);
        let due: BTreeSet<Uuid> = plan.live.iter().filter(is_due).map(|syncset| syncset.header.id).collect();
        let mut bytes = self.expected(plan, &due);
        let attempt = loop {
            let weighed = self.memory.take(bytes).await;
            let mut attempt = Attempt {
                preparer: self,
                snapshot,
                labels: plan.facts.as_ref().map(|facts| facts.labels.clone()).unwrap_or_default(),
                live: live(plan, deletions),
                applied: Vec::new(),
                patched: Vec::new(),
                bytes: 0,
                weighed,
            };
            match attempt.complete(&due).await {
                Ok(()) => break attempt,
                Err(Setback::Failed(error)) => return Err(error),
                // Each time it is more, up to everything, which is enough for whatever it is.
                Err(Setback::TooSmall(needed)) => bytes = needed.max(bytes.saturating_mul(2)),
            }
        };
        let gone = agenda.gone.iter().map(|gone| (*gone, deletions(*gone)));
        let Attempt { live, applied, patched, bytes, mut weighed, .. } = attempt;
        weighed.shrink(bytes);
        let input = Input {
            live,
            gone: gone.collect(),
            applied,
            patched,
            results: snapshot.results.clone(),
            full: agenda.is_full,
            another_cluster,
            shared: false,
            progress,
            now: snapshot.at,
        };
        Ok(Prepared { input, weighed })
    }

    /// The memory that it takes to render these syncsets, by what is known before they are read.
    fn expected(&self, plan: &Plan, due: &BTreeSet<Uuid>) -> usize {
        let due = plan.live.iter().map(|live| &live.header).filter(|header| due.contains(&header.id));
        due.map(|header| self.kept(header).map_or(USUAL, |parsed| built(&parsed))).sum()
    }
}

/// What a payload takes as it is kept.
fn built(parsed: &Parsed) -> usize {
    parsed.as_ref().map_or(0, |kept| kept.weight.built)
}

/// The syncsets of a cluster before any of them is rendered; those that can't be read are as far as they get.
fn live(plan: &Plan, deletions: &(dyn Fn(Uuid) -> Deletions + Sync)) -> Vec<Live> {
    let live = plan.live.iter().map(|syncset| Live {
        header: syncset.header.clone(),
        inputs: syncset.inputs,
        rendered: syncset.undecodable.clone().map(render::undecodable),
        deletions: deletions(syncset.header.id),
    });
    live.collect()
}

/// One attempt, with the memory that it has.
struct Attempt<'p> {
    preparer: &'p Preparer,
    snapshot: &'p Snapshot,
    labels: BTreeMap<String, String>,
    live: Vec<Live>,
    applied: Vec<AppliedRow>,
    patched: Vec<PatchedRow>,
    /// What is rendered so far takes so many bytes.
    bytes: usize,
    weighed: Weighed,
}

/// What was read of some syncsets.
#[derive(Default)]
struct Gathered {
    payloads: BTreeMap<Uuid, Parsed>,
    secrets: Contents,
    /// What they take, about.
    bytes: usize,
}

impl Attempt<'_> {
    /// Renders the syncsets that are due, and those that have to send something because of that.
    async fn complete(&mut self, due: &BTreeSet<Uuid>) -> Result<(), Setback> {
        // Without a result and without applied objects there are no patches either.
        let has_rows = !self.snapshot.with_applied.is_empty() || !self.snapshot.results.is_empty();
        let cluster = self.snapshot.cluster.as_ref().filter(|_| has_rows).map(|cluster| cluster.document.id);
        self.render(due, cluster).await?;
        loop {
            let more = also_due(&self.live, &self.applied);
            if more.is_empty() {
                return Ok(());
            }
            self.render(&more, None).await?;
        }
    }

    /// Renders these syncsets, and reads the rows of the cluster, if it is given.
    async fn render(&mut self, syncsets: &BTreeSet<Uuid>, cluster: Option<Uuid>) -> Result<(), Setback> {
        let is_wanted = |live: &&Live| live.rendered.is_none() && syncsets.contains(&live.header.id);
        let headers: Vec<Header> = self.live.iter().filter(is_wanted).map(|live| live.header.clone()).collect();
        let gathered = self.gather(&headers, cluster).await?;
        let Gathered { mut payloads, secrets, bytes } = gathered;
        let syncsets =
            headers.into_iter().filter_map(|header| payloads.remove(&header.id).map(|parsed| (header, parsed)));
        let batch = Batch { syncsets: syncsets.collect(), labels: self.labels.clone(), secrets };
        let made = batch.render(&self.preparer.aside).await?;
        let rendered: usize = made.iter().map(|made| made.bytes).sum();
        // Templates and aliases may have made more of it than was expected.
        self.has_room(bytes.max(rendered))?;
        self.bytes += rendered;
        let mut made: BTreeMap<Uuid, Rendered> = made.into_iter().map(|made| (made.syncset, made.rendered)).collect();
        for live in self.live.iter_mut().filter(|live| live.rendered.is_none()) {
            live.rendered = made.remove(&live.header.id);
        }
        Ok(())
    }

    /// Reads what is needed to render these syncsets, with at most one statement.
    async fn gather(&mut self, headers: &[Header], cluster: Option<Uuid>) -> Result<Gathered, Setback> {
        let Preparer { store, payloads: cache, aside, keyring, .. } = self.preparer;
        let mut gathered = Gathered::default();
        let mut missing = Vec::new();
        for header in headers {
            match self.preparer.kept(header) {
                Some(parsed) => {
                    gathered.bytes += built(&parsed);
                    gathered.payloads.insert(header.id, parsed);
                }
                None => missing.push(header.id),
            }
        }
        self.has_room(gathered.bytes)?;
        let secrets = self.mapped(headers);
        if cluster.is_none() && missing.is_empty() && secrets.is_empty() {
            return Ok(gathered);
        }
        let ids: Vec<Uuid> = secrets.keys().copied().collect();
        let before = self.bytes + gathered.bytes;
        let mut has_room = |bytes: usize| self.weighed.has(before + bytes);
        let content = store.content(cluster, &missing, &ids, &mut has_room).await?;
        if content.is_cut {
            return Err(Setback::TooSmall(before + content.rows + content.bytes.saturating_mul(GROWTH)));
        }
        // They are there until the pass has ended.
        self.bytes += content.rows;
        if cluster.is_some() {
            (self.applied, self.patched) = (content.applied, content.patched);
        }
        let versions: BTreeMap<Uuid, i64> = content.payloads.iter().map(|row| (row.id, row.version)).collect();
        let mut read = headers.iter().filter(|header| missing.contains(&header.id));
        // A payload of another version does not fit to the header, nor to what was judged and is stored as its inputs.
        if read.any(|header| versions.get(&header.id) != Some(&header.version)) {
            return Err(Setback::Failed(PrepareError::Outdated));
        }
        let weighed = rendering::weigh(aside, content.payloads).await?;
        let built = weighed.iter().map(|(_, weight)| weight.bytes + 2 * weight.built).sum::<usize>();
        let sealed = content.secrets.iter().filter_map(|secret| secret.sealed.as_ref());
        let of_secrets = sealed.map(|sealed| sealed.len().saturating_mul(OF_SECRET)).sum::<usize>();
        gathered.bytes += built + of_secrets;
        self.has_room(gathered.bytes)?;
        for (row, parsed) in rendering::parse(aside, weighed).await? {
            cache.keep(row.id, row.version, parsed.clone());
            gathered.payloads.insert(row.id, parsed);
        }
        let keyring = Arc::clone(&keyring.borrow());
        let open = move || opened(&secrets, content.secrets, &keyring);
        gathered.secrets = aside.run(of_secrets, open).await?;
        Ok(gathered)
    }

    /// The secrets that these syncsets map and may map, by their ids.
    fn mapped(&self, headers: &[Header]) -> BTreeMap<Uuid, SecretFacts> {
        let places: BTreeSet<(&str, &str)> = headers
            .iter()
            .flat_map(LiveSyncset::secrets)
            .map(|mapping| (mapping.source_namespace.as_str(), mapping.source_name.as_str()))
            .collect();
        let secrets = self.snapshot.secrets.iter();
        let mapped = secrets.filter(|facts| places.contains(&(facts.namespace.as_str(), facts.name.as_str())));
        mapped.map(|facts| (facts.id, facts.clone())).collect()
    }

    /// Whether so many bytes are there beside what is rendered.
    fn has_room(&mut self, bytes: usize) -> Result<(), Setback> {
        let bytes = self.bytes.saturating_add(bytes);
        if self.weighed.has(bytes) { Ok(()) } else { Err(Setback::TooSmall(bytes)) }
    }
}

/// Opens secrets. One that has changed since the snapshot would be sent under what is known of the one before.
fn opened(
    facts: &BTreeMap<Uuid, SecretFacts>,
    read: Vec<SealedSecret>,
    keyring: &Keyring,
) -> Result<Contents, PrepareError> {
    let read: BTreeMap<Uuid, SealedSecret> = read.into_iter().map(|secret| (secret.id, secret)).collect();
    let mut contents = Contents::new();
    for (id, facts) in facts {
        let sealed = read.get(id).filter(|secret| secret.version == facts.version).ok_or(PrepareError::Outdated)?;
        let content = secrets::content(plan::source(facts), sealed.sealed.as_deref(), keyring);
        contents.insert((facts.namespace.clone(), facts.name.clone()), content);
    }
    Ok(contents)
}
