//! From a snapshot to what a pass begins with: reads what is due, opens its secrets, and renders it.
//!
//! What passes have rendered, and the rows of their clusters, are in memory until they end, and a cluster may have hundreds of syncsets
//! of 4 MiB. So a pass takes memory before it reads, by what is known of the sizes. If that was too little and no more is free, it drops
//! what it has read and begins anew with as much as it has turned out to need.
//!
//! No pass has more than its share. If that is too little for all of a cluster's syncsets, they are read and rendered one by one, and
//! those that don't fit are [left out](ResultRow::LEFT_OUT). From then on, and wherever they are large, each pass renders all of them and
//! not only those that are due: otherwise others would be left out in each pass.

mod attempt;
mod memory;
mod rendering;
mod room;
mod secrets;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

pub use memory::Weighed;
pub use secrets::{NoCredentials, OpenedKubeconfig};

use self::attempt::Attempt;
use self::memory::Memory;
use super::executor::Client;
use super::plan::{LiveSyncset, Plan};
use crate::cluster::DynamicClusters;
use crate::documents::{Aside, Keyring, ShutsDown};
use crate::syncset::kubeconfig::Allowed;
use crate::syncset::payloads::{Kept, Parsed, Payloads};
use crate::syncset::rules::agenda::PassAgenda;
use crate::syncset::rules::pass::{Input, Progress};
use crate::syncset::rules::render;
use crate::syncset::rules::rows::ResultRow;
use crate::syncset::rules::spec::Header;
use crate::syncset::rules::wanted::{Deletions, Live};
use crate::syncset::store::{PassStore, Snapshot, StoreError, StoredCluster};

/// What all passes that take little may have in memory together of what they send and have sent, about: 32 with 50 small syncsets each.
const LITTLE: usize = 48 << 20;
/// What all others may have together: one of them may have all of it, and then has no room for further syncsets.
const SHARE: usize = 48 << 20;
/// What inspections that take little may have in memory together, for as long as they ask clusters: passes never wait for them. Those of
/// large clusters have as much as a pass, or they would leave out others than it does.
const LITTLE_OF_INSPECTIONS: usize = LITTLE / 3;
/// Syncsets of a cluster that have more bytes together are all rendered by each pass: templates and secrets aside, they usually take up
/// to sixteen times as much in memory, so that there may be no room for all.
const LARGE: usize = SHARE / 16;
/// How many times as long a pass waits for little memory as for much.
const PATIENCE_WITH_LITTLE: u32 = 5;
/// A small syncset that is not in the cache counts as at most so many bytes until it is read. One with five objects takes that.
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
    /// How long a pass waits for memory if it takes much.
    patience: Option<Duration>,
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
    /// Other passes have the memory, for longer than it was to wait for it.
    #[error("no memory is free to render the syncsets")]
    NoMemory,
    /// The rows of the cluster alone take more than a pass may have: objects that syncsets had before, and which could not be deleted.
    #[error("the objects that were sent to the cluster take more than {} MiB of memory", SHARE >> 20)]
    TooManyObjects,
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
            memory: Memory::of_bytes(LITTLE, SHARE),
            allowed,
            proposed: None,
            patience: None,
        }
    }

    /// The same with a memory of its own: for those who only look at clusters, and keep what they have rendered while a cluster takes its
    /// time. They wait for it as long as they want to.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { memory: Memory::of_bytes(LITTLE_OF_INSPECTIONS, SHARE), patience: None, ..self.clone() }
    }

    /// The same, but no pass that takes much memory waits for it for longer than this. Those that take little wait some times as long, since
    /// what they wait for is soon free.
    #[must_use]
    pub fn waiting_at_most(&self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self.clone() }
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
        let takes_all = agenda.is_full || another_cluster || is_large(snapshot, plan);
        let is_due = |syncset: &&LiveSyncset| takes_all || agenda.due.contains(&syncset.header.id);
        let due: BTreeSet<Uuid> = plan.live.iter().filter(is_due).map(|syncset| syncset.header.id).collect();
        let (share, mut bytes) = (self.memory.share(), self.expected(plan, &due));
        let attempt = loop {
            let mut attempt = Attempt::new(self, snapshot, plan, self.take(bytes).await?, live(plan, deletions));
            let completed =
                if bytes > share { attempt.complete_one_by_one().await } else { attempt.complete(&due).await };
            match completed {
                Ok(()) => break attempt,
                Err(Setback::Failed(error)) => return Err(error),
                // Each time it is more, until they are rendered one by one, which fails for no lack of memory.
                Err(Setback::TooSmall(needed)) if needed > share => bytes = needed,
                Err(Setback::TooSmall(needed)) => bytes = needed.max(bytes.saturating_mul(2)).min(share),
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
            elsewhere: false,
            progress,
            now: snapshot.at,
        };
        Ok(Prepared { input, weighed })
    }

    async fn take(&self, bytes: usize) -> Result<Weighed, PrepareError> {
        let taking = self.memory.take(bytes);
        let times = if self.memory.is_little(bytes) { PATIENCE_WITH_LITTLE } else { 1 };
        match self.patience.map(|patience| patience.saturating_mul(times)) {
            Some(patience) => timeout(patience, taking).await.map_err(|_| PrepareError::NoMemory),
            None => Ok(taking.await),
        }
    }

    /// The memory that it takes to render these syncsets, by what is known before they are read.
    fn expected(&self, plan: &Plan, due: &BTreeSet<Uuid>) -> usize {
        let due = plan.live.iter().filter(|live| due.contains(&live.header.id));
        let unread = |bytes: usize| bytes.saturating_mul(GROWTH).min(USUAL).max(bytes);
        due.map(|live| self.kept(&live.header).map_or_else(|| unread(live.bytes), |parsed| built(&parsed))).sum()
    }
}

/// Whether there may be no room for all syncsets of the cluster, or was none in the pass before.
fn is_large(snapshot: &Snapshot, plan: &Plan) -> bool {
    let bytes = plan.live.iter().map(|live| live.bytes).fold(0, usize::saturating_add);
    let left_out = snapshot.results.iter().filter(|result| result.inputs == ResultRow::LEFT_OUT);
    let mut left_out = left_out.map(|result| result.syncset);
    bytes > LARGE || left_out.any(|syncset| plan.live.iter().any(|live| live.header.id == syncset))
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
