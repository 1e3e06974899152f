//! The requests of a pass to one cluster.
//!
//! Each method is one request, or several while a kind is looked up, and returns what the pass continues from, or why it has no
//! answer (`refusal`). Requests go one after another, and only lists at once (`lists`). A write that one request is not enough for is in `write`.
//! Each is sent under the fence of the work claim: after the claim has ended nothing is sent, not even what waited.
//!
//! A [`Client`] outlives the pass: it keeps the connection and the kinds that discovery has found.

mod lists;
mod refusal;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use refusal::Missing;
pub use refusal::{Failed, Stop};
pub use write::{By, ObjectOnCluster, check_merge};

use crate::cluster::{
    Cluster, Credentials, DynamicCluster, DynamicClusters, Error, Fence, Fingerprint, Kind, KindError, KindId, Kinds,
    Metadata, ObjectKey, Pages, Request, Stated,
};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::pass::{Address, Ending, Manager, Resolution, Seen, Write, Written};
use crate::syncset::plan::seen::{ending, looked_at, seen};

/// Between two looks for a kind whose definition was applied, and how long it is looked for. A definition is served
/// after about 70 ms.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// For all requests of one look-up: a server chooses how many versions its groups have.
const LONGEST_LOOK_UP: Duration = Duration::from_secs(20);
/// A write may take long, for example because of webhooks. After this time the cluster is probed.
const PROBED_AFTER: Duration = Duration::from_secs(1);

/// A cluster's client, and the kinds found so far. It is kept between passes.
pub struct Client {
    cluster: Arc<DynamicCluster>,
    kinds: Kinds,
}

impl Client {
    /// The client of the cluster with this id, of this namespace, which connects with its first request. Fails where no client can be made of
    /// keys and certificates.
    pub fn of(
        clusters: &DynamicClusters,
        namespace: &str,
        id: Uuid,
        credentials: Credentials,
    ) -> Result<Self, kube::Error> {
        // An id is a label. What errors call the cluster is shown where its name is known.
        let name = id.to_string().parse().unwrap_or_default();
        clusters.cluster(namespace, &name, credentials).map(Self::new)
    }

    pub fn new(cluster: Arc<DynamicCluster>) -> Self {
        Self { cluster, kinds: Kinds::default() }
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.cluster.fingerprint()
    }
}

impl Client {
    /// Reads the metadata of an object at once and under no claim: for those who only look. None if there is no such object.
    pub async fn look(
        &mut self,
        api_version: &str,
        object: &ObjectRef,
        within: Duration,
    ) -> Result<Option<Metadata>, Error> {
        let (cluster, mut id) = (self.cluster.urgent(within), KindId::of(api_version, &object.kind));
        let (now, mut is_other) = (Instant::now(), false);
        let kind = loop {
            let mut found = self.kinds.look_up(&cluster, &BTreeSet::from([id.clone()]), now, now + within).await;
            match found.remove(&id) {
                Some(Ok(kind)) => break kind,
                Some(Err(KindError::Unread(error))) => return Err(error),
                // It may have been sent when the cluster served another version.
                Some(Err(KindError::OtherVersion { api_version, .. })) if !is_other => {
                    (id, is_other) = (KindId::of(&api_version, &object.kind), true);
                }
                Some(Err(unserved)) => {
                    return Err(Error::NotServed { message: unserved.to_string(), of_namespace: false });
                }
                None => return Err(Error::NotServed { message: id.to_string(), of_namespace: false }),
            }
        };
        let namespace = if kind.namespaced { object.namespace.as_str() } else { "" };
        cluster.read_metadata(&kind, &ObjectKey::new(namespace, object.name.as_str())).await
    }

    /// How the cluster serves these kinds, for those who only look.
    pub async fn served(
        &mut self,
        kinds: &BTreeSet<KindId>,
        within: Duration,
    ) -> BTreeMap<KindId, Result<Kind, KindError>> {
        let now = Instant::now();
        self.kinds.look_up(&self.cluster.urgent(within), kinds, now, now + within).await
    }

    /// For requests at once and under no claim, each with this deadline: they must change nothing.
    pub fn unclaimed(&self, within: Duration) -> Cluster {
        self.cluster.urgent(within)
    }
}

/// Sends the requests of one pass.
pub struct Executor<'c> {
    cluster: Cluster,
    fence: Fence,
    kinds: &'c mut Kinds,
    /// How the kinds are served as far as this pass goes: it must not change between two of its requests.
    served: BTreeMap<KindId, Kind>,
    /// Lists of which more pages follow.
    lists: BTreeMap<KindId, Pages>,
    /// Until the cluster has answered something, it has to do so within this time; then requests have their usual deadline.
    within: Duration,
    is_answered: bool,
}

impl<'c> Executor<'c> {
    /// For one pass, under the fence of its work claim.
    pub fn new(client: &'c mut Client, fence: &Fence, within: Duration) -> Self {
        Self {
            cluster: client.cluster.under(fence),
            fence: fence.clone(),
            kinds: &mut client.kinds,
            served: BTreeMap::new(),
            lists: BTreeMap::new(),
            within,
            is_answered: false,
        }
    }

    /// Names the kinds that a pass is going to ask for, as `apps/v1`, `Deployment`, so that those of one version of a group cost one request together.
    pub fn expect(&mut self, kinds: impl IntoIterator<Item = (String, String)>) {
        self.kinds.expect(kinds.into_iter().map(|(api_version, kind)| KindId::of(&api_version, &kind)).collect());
    }

    /// Whether the cluster has answered something. What needs no request leaves this as it was.
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// The cluster for the next request. The caller decides when a cluster is asked again that was silent or wanted fewer requests. A
    /// request that waited here for that would hold up the pass with its slot.
    fn asked(&self) -> Cluster {
        self.cluster.urgent(if self.is_answered { Duration::MAX } else { self.within })
    }

    /// How the cluster serves a kind; asked only if that is not known. `wait`: its definition was applied a moment ago.
    pub async fn resolve(&mut self, api_version: &str, kind: &str, wait: bool) -> Result<Resolution, Failed> {
        let (cluster, id, begun) = (self.asked(), KindId::of(api_version, kind), Instant::now());
        loop {
            let found = self.resolved(&cluster, &id).await;
            let is_final = matches!(found, Ok(Resolution::Served { .. }) | Err(Failed::Stopped(_)));
            if !wait || is_final || begun.elapsed() + LOOK_AGAIN > LONGEST_WAIT {
                return found;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Reads an object's metadata.
    pub async fn look(&mut self, at: Address<'_>) -> Result<Option<Seen>, Failed> {
        let (cluster, (id, key)) = (self.asked(), named(at));
        let kind = self.kind(&cluster, &id).await?;
        let read = cluster.read_metadata(&kind, &key).await;
        let found = self.answered(&id, read, Missing::Unclear)?;
        Ok(found.as_ref().map(looked_at))
    }

    pub async fn write(&mut self, at: Address<'_>, write: Write<'_>) -> Result<Written, Failed> {
        if self.is_answered {
            return self.write_within(at, write).await;
        }
        let (cluster, fence, within) = (self.cluster.clone(), self.fence.clone(), self.within);
        while_it_lives(&cluster, &fence, within, Box::pin(self.write_within(at, write))).await
    }

    async fn write_within(&mut self, at: Address<'_>, write: Write<'_>) -> Result<Written, Failed> {
        let (cluster, (id, key)) = (self.cluster.urgent(Duration::MAX), named(at));
        let kind = self.kind(&cluster, &id).await?;
        let place = ObjectOnCluster { cluster: &cluster, kind: &kind, key: &key, object: at.object };
        let written = match write {
            Write::Apply(body) => place.apply(body).await,
            Write::Create { body, dry_run: false } => place.create(body).await,
            Write::Create { body, dry_run: true } => {
                let tried = Request::create(&kind, &key, body).by(Manager::Update.as_str()).tried();
                cluster.change(tried).await
            }
            Write::Patch { patch_type, manager: Manager::Update, body } => place.update(body, patch_type).await,
            Write::Patch { patch_type, manager, body } => {
                place.patch(body, patch_type, By { manager: manager.as_str(), is_tried: false }).await
            }
        };
        let Stated { created, body } = self.answered(&id, written, Missing::Place)?;
        Ok(Written { created, seen: seen(&body) })
    }

    /// Deletes an object with this UID in this version. Returns what is known of it if it is still there.
    pub async fn delete(&mut self, at: Address<'_>, uid: &str, version: &str) -> Result<Option<Ending>, Failed> {
        if self.is_answered {
            return self.delete_within(at, uid, version).await;
        }
        let (cluster, fence, within) = (self.cluster.clone(), self.fence.clone(), self.within);
        while_it_lives(&cluster, &fence, within, Box::pin(self.delete_within(at, uid, version))).await
    }

    async fn delete_within(&mut self, at: Address<'_>, uid: &str, version: &str) -> Result<Option<Ending>, Failed> {
        let (cluster, (id, key)) = (self.cluster.urgent(Duration::MAX), named(at));
        let kind = self.kind(&cluster, &id).await?;
        let removed = cluster.remove(&kind, &key, uid, Some(version)).await;
        // A 404 that is not about the object does not prove that the object is gone.
        let left = self.answered(&id, removed, Missing::Unclear)?;
        Ok(left.as_ref().map(ending))
    }

    /// The UID of `kube-system`, by which clusters are told apart.
    pub async fn identity(&mut self) -> Result<String, Failed> {
        check_claim(&self.fence)?;
        let read = self.cluster.read_uid(self.within).await;
        self.note(&read);
        read.map(|uid| uid.to_string()).map_err(|error| Failed::of(&error, Missing::Unclear))
    }

    /// Whether a cluster answers that did not before: `GET /version`.
    pub async fn probe(&mut self) -> Result<(), Stop> {
        check_claim(&self.fence)?;
        let probed = self.cluster.probe(self.within).await;
        self.note(&probed);
        probed.err().as_ref().and_then(Failed::of_probe).map_or(Ok(()), Err)
    }

    async fn resolved(&mut self, cluster: &Cluster, id: &KindId) -> Result<Resolution, Failed> {
        match self.look_up(cluster, id).await {
            Ok(kind) => Ok(Resolution::Served { namespaced: kind.namespaced, plural: kind.resource.plural }),
            Err(KindError::OtherVersion { api_version, .. }) => Ok(Resolution::OtherVersion { api_version }),
            Err(KindError::NotServed(_)) => Ok(Resolution::NotServed),
            Err(error @ KindError::Unread(_)) => Err(Failed::of_kind(&error)),
        }
    }

    async fn look_up(&mut self, cluster: &Cluster, id: &KindId) -> Result<Kind, KindError> {
        let now = Instant::now();
        let known = self.kinds.known(id, now).cloned();
        let kind = if let Some(kind) = known { kind } else { self.discover(cluster, id, now).await? };
        self.served.insert(id.clone(), kind.clone());
        Ok(kind)
    }

    async fn discover(&mut self, cluster: &Cluster, id: &KindId, now: Instant) -> Result<Kind, KindError> {
        let wanted = BTreeSet::from([id.clone()]);
        let found = self.kinds.look_up(cluster, &wanted, now, now + LONGEST_LOOK_UP).await.remove(id);
        let found = found.unwrap_or_else(|| Err(KindError::NotServed(id.clone())));
        self.is_answered |= match &found {
            Err(KindError::Unread(error)) => is_answer(error),
            Ok(_) | Err(KindError::NotServed(_) | KindError::OtherVersion { .. }) => true,
        };
        found
    }

    /// A kind that the pass has resolved before.
    async fn kind(&mut self, cluster: &Cluster, id: &KindId) -> Result<Kind, Failed> {
        match self.served.get(id) {
            Some(kind) => Ok(kind.clone()),
            None => self.look_up(cluster, id).await.map_err(|error| Failed::of_kind(&error)),
        }
    }

    /// Notes what the answer to a request for a kind says of the cluster.
    fn answered<T>(&mut self, id: &KindId, result: Result<T, Error>, missing: Missing) -> Result<T, Failed> {
        self.note(&result);
        if matches!(result, Err(Error::NotServed { of_namespace: false, .. })) {
            self.kinds.forget(id);
        }
        result.map_err(|error| Failed::of(&error, missing))
    }

    fn note<T>(&mut self, result: &Result<T, Error>) {
        self.is_answered |= result.as_ref().err().is_none_or(is_answer);
    }
}

/// For requests that are not sent under the fence.
fn check_claim(fence: &Fence) -> Result<(), Stop> {
    fence.claim().map(drop).map_err(|_| Stop::Lost)
}

/// Waits for a write to a cluster that has answered nothing yet. If it takes longer, a cluster that lives is told from a dead
/// one by a probe: a dead one must not hold the pass for the write's whole deadline.
async fn while_it_lives<T>(
    cluster: &Cluster,
    fence: &Fence,
    within: Duration,
    mut written: Pin<Box<impl Future<Output = Result<T, Failed>>>>,
) -> Result<T, Failed> {
    let probed_after = PROBED_AFTER.min(within / 2);
    if let Ok(written) = timeout(probed_after, &mut written).await {
        return written;
    }
    check_claim(fence)?;
    tokio::select! {
        biased;
        written = &mut written => return written,
        probed = cluster.probe(within.saturating_sub(probed_after)) => {
            // Whatever else it answers, it lives, and the write may still be carried out.
            let failed = probed.err().map(|error| Failed::of(&error, Missing::Unclear));
            if let Some(silent @ Failed::Stopped(Stop::Silent { .. })) = failed {
                return Err(silent);
            }
        }
    }
    written.await
}

/// Whether an error is an answer of the cluster.
fn is_answer(error: &Error) -> bool {
    let is_unsent = matches!(error, Error::LeaseExpired(_) | Error::Rejected { code: 0, .. });
    !is_unsent && !error.is_unreachable()
}

fn named(at: Address<'_>) -> (KindId, ObjectKey) {
    let object = at.object;
    (KindId::of(at.api_version, &object.kind), ObjectKey::new(object.namespace.as_str(), object.name.as_str()))
}

#[cfg(test)]
mod tests;
