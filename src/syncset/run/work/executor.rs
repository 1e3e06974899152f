//! Carries out the steps of a pass on one cluster.
//!
//! [`Pass`] says what to do next, an [`Executor`] does it with one request, or with several while a kind is looked up, and returns
//! what the pass continues from: an [`Answer`], or why there is none ([`Failed`]). Requests go one after
//! another, and only the lists of one step at once (`lists`). Each is sent under the fence of the work claim: after
//! the claim has ended nothing is sent, not even what waited.
//!
//! A [`Client`] outlives the pass: it keeps the connection and the kinds that discovery has found.

mod lists;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::refusal::{Failed, Missing, Stop};
use super::seen::{ending, looked_at, seen};
use super::write::{By, ObjectOnCluster};
use crate::cluster::{
    Cluster, DynamicCluster, DynamicClusters, Error, Fence, Fingerprint, Kind, KindError, KindId, Kinds, Metadata,
    ObjectKey, Pages, Request, Stated,
};
use crate::syncset::kubeconfig::Credentials;
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::pass::{Answer, Manager, Pass, Refusal, Resolution, Step, Target};

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
    /// The client of the cluster with this id, which connects with its first request. Fails where no client can be made of keys and
    /// certificates.
    pub fn of(clusters: &DynamicClusters, id: Uuid, credentials: Credentials) -> Result<Self, kube::Error> {
        // An id is a label. What errors call the cluster is shown where its name is known.
        let name = id.to_string().parse().unwrap_or_default();
        clusters.cluster(&name, credentials.config, credentials.fingerprint).map(Self::new)
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

/// Carries out the steps of one pass.
pub struct Executor<'c> {
    cluster: Cluster,
    fence: Fence,
    kinds: &'c mut Kinds,
    /// How the kinds are served as far as this pass goes: it must not change between two of its steps.
    served: BTreeMap<KindId, Kind>,
    /// Lists of which more pages follow.
    lists: BTreeMap<KindId, Pages>,
    is_answered: bool,
}

impl<'c> Executor<'c> {
    /// For one pass, under the fence of its work claim.
    pub fn new(client: &'c mut Client, fence: &Fence) -> Self {
        Self {
            cluster: client.cluster.under(fence),
            fence: fence.clone(),
            kinds: &mut client.kinds,
            served: BTreeMap::new(),
            lists: BTreeMap::new(),
            is_answered: false,
        }
    }

    /// Names the kinds that a pass is going to ask for, so that those of one version of a group cost one request together.
    pub fn expect(&mut self, pass: &Pass) {
        self.kinds.expect(pass.kinds().map(|(api_version, kind)| KindId::of(api_version, kind)).collect());
    }

    /// Whether the cluster has answered something. A step that needs no request leaves this as it was.
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Carries out a step that is a request to the cluster. The cluster has to answer something `within` this time;
    /// once it has, requests have their usual deadline.
    pub async fn carry_out(&mut self, step: &Step<'_>, within: Duration) -> Result<Answer, Failed> {
        if let Step::Lists(lists) = step {
            return Ok(self.list(lists, within).await?);
        }
        if !self.is_answered && is_write(step) {
            return self.write_first(step, within).await;
        }
        self.answered_within(step, if self.is_answered { Duration::MAX } else { within }).await
    }

    /// Carries out a step of which each request has this deadline.
    async fn answered_within(&mut self, step: &Step<'_>, within: Duration) -> Result<Answer, Failed> {
        // The caller decides when a cluster is asked again that was silent or wanted fewer requests. A request that waited here
        // for that would hold up the pass with its slot.
        let cluster = self.cluster.urgent(within);
        self.answer(&cluster, step).await
    }

    /// Carries out a write to a cluster that has answered nothing yet. If it takes longer, a cluster that lives is told from a dead
    /// one by a probe: a dead one must not hold the pass for the write's whole deadline.
    async fn write_first(&mut self, step: &Step<'_>, within: Duration) -> Result<Answer, Failed> {
        let (cluster, fence) = (self.cluster.clone(), self.fence.clone());
        let probed_after = PROBED_AFTER.min(within / 2);
        let mut written = Box::pin(self.answered_within(step, Duration::MAX));
        if let Ok(written) = timeout(probed_after, &mut written).await {
            return written;
        }
        check_claim(&fence)?;
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

    /// The UID of `kube-system`, by which clusters are told apart.
    pub async fn identity(&mut self, within: Duration) -> Result<String, Failed> {
        check_claim(&self.fence)?;
        let read = self.cluster.read_uid(within).await;
        self.note(&read);
        read.map(|uid| uid.to_string()).map_err(|error| Failed::of(&error, Missing::Unclear))
    }

    /// Whether a cluster answers that did not before: `GET /version`.
    pub async fn probe(&mut self, within: Duration) -> Result<(), Stop> {
        check_claim(&self.fence)?;
        let probed = self.cluster.probe(within).await;
        self.note(&probed);
        probed.err().as_ref().and_then(Failed::of_probe).map_or(Ok(()), Err)
    }

    async fn answer(&mut self, cluster: &Cluster, step: &Step<'_>) -> Result<Answer, Failed> {
        match step {
            Step::Resolve { api_version, kind, wait } => {
                let id = KindId::of(api_version, kind);
                let found = if *wait { self.wait_for(cluster, &id).await } else { self.resolve(cluster, &id).await };
                found.map(Answer::Kind)
            }
            Step::Look { target } => self.look(cluster, target).await,
            Step::Apply { target, body } => self.write(cluster, target, async |place| place.apply(body).await).await,
            Step::Create { target, body, dry_run: false } => {
                self.write(cluster, target, async |place| place.create(body).await).await
            }
            Step::Create { target, body, dry_run: true } => {
                let manager = Manager::Update.as_str();
                let tried = async |place: ObjectOnCluster<'_>| {
                    place.cluster.change(Request::create(place.kind, place.key, body).by(manager).tried()).await
                };
                self.write(cluster, target, tried).await
            }
            Step::Patch { target, patch_type, manager: Manager::Update, body } => {
                self.write(cluster, target, async |place| place.update(body, *patch_type).await).await
            }
            Step::Patch { target, patch_type, manager, body } => {
                let by = By { manager: manager.as_str(), is_tried: false };
                self.write(cluster, target, async |place| place.patch(body, *patch_type, by).await).await
            }
            Step::Delete { target, uid, version } => self.delete(cluster, target, uid, version).await,
            Step::Lists(_) | Step::Store(_) | Step::Done(_) => {
                Err(Failed::refused(Refusal::Server, "the step is none for a single request".to_owned()))
            }
        }
    }

    /// How the cluster serves a kind; asked only if that is not known.
    async fn resolve(&mut self, cluster: &Cluster, id: &KindId) -> Result<Resolution, Failed> {
        match self.look_up(cluster, id).await {
            Ok(kind) => Ok(Resolution::Served { namespaced: kind.namespaced, plural: kind.resource.plural }),
            Err(KindError::OtherVersion { api_version, .. }) => Ok(Resolution::OtherVersion { api_version }),
            Err(KindError::NotServed(_)) => Ok(Resolution::NotServed),
            Err(error @ KindError::Unread(_)) => Err(Failed::of_kind(&error)),
        }
    }

    /// The same for a kind whose definition was applied a moment ago.
    async fn wait_for(&mut self, cluster: &Cluster, id: &KindId) -> Result<Resolution, Failed> {
        let begun = Instant::now();
        loop {
            let found = self.resolve(cluster, id).await;
            let is_final = matches!(found, Ok(Resolution::Served { .. }) | Err(Failed::Stopped(_)));
            if is_final || begun.elapsed() + LOOK_AGAIN > LONGEST_WAIT {
                return found;
            }
            sleep(LOOK_AGAIN).await;
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

    async fn look(&mut self, cluster: &Cluster, target: &Target<'_>) -> Result<Answer, Failed> {
        let (id, key) = named(target);
        let kind = self.kind(cluster, &id).await?;
        let read = cluster.read_metadata(&kind, &key).await;
        let found = self.answered(&id, read, Missing::Unclear)?;
        Ok(Answer::Found(found.as_ref().map(looked_at)))
    }

    async fn write(
        &mut self,
        cluster: &Cluster,
        target: &Target<'_>,
        write: impl AsyncFnOnce(ObjectOnCluster<'_>) -> Result<Stated<Metadata>, Error>,
    ) -> Result<Answer, Failed> {
        let (id, key) = named(target);
        let kind = self.kind(cluster, &id).await?;
        let written = write(ObjectOnCluster { cluster, kind: &kind, key: &key, object: target.object }).await;
        let Stated { created, body } = self.answered(&id, written, Missing::Place)?;
        Ok(Answer::Written { created, seen: seen(&body) })
    }

    async fn delete(
        &mut self,
        cluster: &Cluster,
        target: &Target<'_>,
        uid: &str,
        version: &str,
    ) -> Result<Answer, Failed> {
        let (id, key) = named(target);
        let kind = self.kind(cluster, &id).await?;
        let removed = cluster.remove(&kind, &key, uid, Some(version)).await;
        // A 404 that is not about the object does not prove that the object is gone.
        let left = self.answered(&id, removed, Missing::Unclear)?;
        Ok(Answer::Deleted(left.as_ref().map(ending)))
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

fn is_write(step: &Step<'_>) -> bool {
    matches!(step, Step::Apply { .. } | Step::Create { .. } | Step::Patch { .. } | Step::Delete { .. })
}

/// Whether an error is an answer of the cluster.
fn is_answer(error: &Error) -> bool {
    let is_unsent = matches!(error, Error::LeaseExpired(_) | Error::Rejected { code: 0, .. });
    !is_unsent && !error.is_unreachable()
}

fn named(target: &Target<'_>) -> (KindId, ObjectKey) {
    let object = target.object;
    (KindId::of(&target.api_version, &object.kind), ObjectKey::new(object.namespace.as_str(), object.name.as_str()))
}

#[cfg(test)]
mod tests;
