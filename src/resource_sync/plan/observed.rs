//! The observation that decides about one pair, and how a step changes it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::elsewhere::{Clusters, Elsewhere};
use super::names::PairKey;
use super::observed_generation;
use super::patch;
use super::policy::Policy;
use super::renewal::{Renewal, RenewedObject};
use super::secrets::SecretView;
use super::server_result::ServerResult;
use super::step::{Contended, Step};
use crate::cluster::{CanonicalJson, Object, ObjectKey, OwnedKeys, Written};
use crate::guard::GuardedChange;
use crate::resource_sync::config::ObservedGeneration;

/// Why the cache has no remote object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absence {
    /// The object was terminating when it was last seen, so that its end was a regular deletion.
    SeenTerminating,
    /// Nothing explains the absence. It has to be confirmed, since our finalizer should have kept the object.
    Unexplained,
    /// A live GET of this very object has returned `NotFound`.
    Confirmed,
    /// A live GET has found the object: it has left the selector.
    LeftSelector(Arc<Object>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// It is in the cache.
    Present(Arc<Object>),
    /// It is not in the cache.
    Absent(Absence),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespace {
    /// The kind is cluster-scoped.
    None,
    Missing,
    Present {
        object: Arc<Object>,
        /// Its owner marks are this section's, and proved to be.
        ours: bool,
    },
}

/// Everything that a decision about one pair depends on.
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
#[derive(Debug, Clone)]
pub struct Observed {
    /// Keys of the two objects, whether they exist or not.
    pub pair: PairKey,
    pub remote: Remote,
    pub local: Option<Arc<Object>>,
    /// The local object was just created: its status is unknown until the watch shows it.
    pub local_status_unknown: bool,
    /// A write of ours, or a change before it, has changed the remote object's generation: until the watch shows the object it is
    /// unknown which generation the local object reflects.
    pub remote_generation_unknown: bool,
    pub namespace: Namespace,
    /// Another remote object, of this or another section, maps to the local namespace and is not being deleted.
    pub namespace_in_use: bool,
    /// The local namespace is being deleted, and another pair keeps its finalizer until the namespace is gone.
    pub namespace_end_is_awaited: bool,
    /// The local namespace was created for another pair of this section, which deals with its end.
    pub namespace_is_of_another: bool,
    /// When the section was about to create the local object, it existed already.
    pub local_was_there: bool,
    /// The remote object that the local one names as its source exists under this key, which is not the pair's: the mapping has
    /// changed.
    pub source_lives_at: Option<ObjectKey>,
    /// The identities of the two clusters, as far as they are known.
    pub clusters: Clusters,
    /// The change that the guard has permitted for this run.
    pub permitted: Option<GuardedChange>,
    /// The named local secrets in the local namespace.
    pub secrets: Vec<SecretView>,
    /// The API servers' results of our earlier writes.
    pub server_result: ServerResult,
    /// The contended parts that must not be written now.
    pub contended: Vec<Contended>,
}

impl Observed {
    /// The remote object, if it exists.
    pub fn remote_object(&self) -> Option<&Arc<Object>> {
        match &self.remote {
            Remote::Present(remote) | Remote::Absent(Absence::LeftSelector(remote)) => Some(remote),
            Remote::Absent(_) => None,
        }
    }

    /// The other local cluster that holds the remote object with the same finalizer.
    pub fn other_holder(&self, policy: &Policy) -> Option<Elsewhere> {
        self.clusters.other_holder(self.remote_object()?, policy)
    }

    /// The other remote cluster that the local object came from.
    pub fn other_source(&self, policy: &Policy) -> Option<Elsewhere> {
        self.clusters.other_source(self.local.as_deref()?, policy)
    }

    /// The note about the holding local cluster that the remote object lacks.
    pub(crate) fn holder_to_note(&self, policy: &Policy) -> Option<Arc<str>> {
        self.clusters.note(self.remote_object()?, policy)
    }

    /// The note that stays when our finalizer is removed and one with a former name of ours stays, which belongs to somebody
    /// else. Without the note it would look like ours.
    pub(crate) fn holder_to_leave(&self, policy: &Policy) -> Option<Arc<str>> {
        let leaves_former = self.remote_object().is_some_and(|remote| policy.marks.has_former_of_others(remote));
        self.holder_to_note(policy).filter(|_| leaves_former)
    }

    /// The note that is written with the generations, once our finalizer is there under its present name.
    pub(crate) fn holder_to_renew(&self, policy: &Policy) -> Option<Arc<str>> {
        let is_on = self.remote_object().is_some_and(|remote| remote.has_finalizer(&policy.marks.finalizer));
        self.holder_to_note(policy).filter(|_| is_on)
    }

    /// Whether the remote object has our finalizer, for this local cluster.
    pub(crate) fn is_held_here(&self, policy: &Policy) -> bool {
        self.remote_object().is_some_and(|remote| policy.marks.holds(remote)) && self.other_holder(policy).is_none()
    }

    /// The status that the remote object is to have: its own if the remote's controllers write it, else the local one, with the remote
    /// object's generations if the section translates them.
    pub(crate) fn status_to_write(&self, policy: &Policy) -> Option<CanonicalJson> {
        let local = self.local.as_deref()?;
        if let Some(remote) = self.remote_object().filter(|remote| remote.has_own_status) {
            return remote.status.clone();
        }
        match (policy.observed_generation, self.remote_object()) {
            (ObservedGeneration::Copy, _) | (_, None) => local.status.clone(),
            (ObservedGeneration::Translate, Some(remote)) => {
                let in_step = !self.remote_generation_unknown
                    && patch::content_change(remote, local, policy, &self.server_result).is_none();
                observed_generation::translated(local, remote, in_step, policy)
            }
        }
    }

    /// Whether this part is contended and must not be written now.
    pub(crate) fn is_contended(&self, what: &Contended) -> bool {
        self.contended.contains(what)
    }

    /// Makes it the observation after a step: what a watch would show, as far as the reply tells.
    ///
    /// A write without a guard may reach an object that has changed since it was read. Its reply then has a newer version and
    /// generation than the known content, and these are not applied to it.
    pub fn apply(&mut self, step: &Step, written: &Written, policy: &Policy) {
        match step {
            Step::AddFinalizer => {
                let holder = self.holder_to_note(policy);
                self.change_remote(|remote| {
                    remote.resource_version = Arc::clone(&written.resource_version);
                    // The note about the holder is an annotation.
                    if policy.annotations_raise_generation {
                        remote.generation = written.generation;
                    }
                    remote.finalizers.push(Arc::clone(&policy.marks.finalizer));
                    remote.annotations.extend(holder.map(|uid| (Arc::clone(&policy.marks.local_cluster), uid)));
                });
            }
            Step::RemoveFinalizer => {
                let left = self.holder_to_leave(policy);
                self.change_remote(|remote| {
                    let gone = if policy.write_back { policy.marks.gone_with_finalizer(remote) } else { Vec::new() };
                    let of_before = remote.clone();
                    remote.finalizers.retain(|held| !policy.marks.is_finalizer_on(&of_before, held));
                    remote.resource_version = Arc::clone(&written.resource_version);
                    for mark in gone {
                        remote.annotations.remove(&mark);
                    }
                    remote.annotations.extend(left.map(|note| (Arc::clone(&policy.marks.local_cluster), note)));
                });
            }
            Step::WriteRemoteStatus => {
                let status = self.status_to_write(policy);
                self.remote_generation_unknown |=
                    self.remote_object().is_some_and(|remote| remote.generation != written.generation);
                self.change_remote(|remote| remote.status = status);
            }
            Step::NoteGenerations { remote, local } => self.note_generations(*remote, *local, policy),
            Step::NoteError(error) => self.change_remote(|remote| {
                let mark = &policy.marks.sync_error;
                match error {
                    Some(error) => remote.annotations.insert(Arc::clone(mark), Arc::clone(error)),
                    None => remote.annotations.remove(mark),
                };
            }),
            Step::UploadSecret(name) => self.change_secret(name, SecretView::uploaded),
            Step::NoteSecretHash(name) => self.change_secret(name, SecretView::noted),
            Step::CreateNamespace => {
                let marks = &policy.marks;
                let mut object = blank(ObjectKey::new("", Arc::clone(&self.pair.local.namespace)), written);
                object.annotations = marks.of_namespace(&self.pair.local, self.clusters.remote.uid.as_ref());
                object.owned = vec![OwnedKeys {
                    manager: Arc::clone(&policy.manager),
                    annotations: object.annotations.keys().cloned().collect(),
                    ..OwnedKeys::default()
                }];
                self.namespace = Namespace::Present { object: Arc::new(object), ours: true };
            }
            Step::CreateLocal => {
                if let Some(remote) = self.remote_object() {
                    let mut object = blank(self.pair.local.clone(), written);
                    let (labels, annotations) =
                        patch::desired_metadata(remote, &self.pair.local, policy, &self.clusters);
                    object.content = remote.content.clone();
                    object.owned = vec![OwnedKeys {
                        manager: Arc::clone(&policy.manager),
                        labels: labels.keys().cloned().collect(),
                        annotations: annotations.keys().cloned().collect(),
                    }];
                    object.labels = labels;
                    object.annotations = annotations;
                    self.local_status_unknown = true;
                    self.local = Some(Arc::new(object));
                }
            }
            Step::AdoptLocal(change) | Step::PatchLocal(change) | Step::ReleaseLocal(change) => {
                if let Some(local) = &mut self.local {
                    let local = Arc::make_mut(local);
                    if change.guarded {
                        local.resource_version = Arc::clone(&written.resource_version);
                    }
                    if change.content.is_some() || (change.guarded && policy.annotations_raise_generation) {
                        local.generation = written.generation;
                    }
                    change.apply_to(local, policy);
                }
            }
            Step::RenewMarks(renewal) => self.renew(renewal, written, policy),
            Step::DeleteLocal => {
                if let Some(local) = &mut self.local {
                    Arc::make_mut(local).deleting = true;
                }
            }
            Step::ReleaseNamespace => {
                if let Namespace::Present { ours, .. } = &mut self.namespace {
                    *ours = false;
                }
            }
            Step::DeleteNamespace => {
                if let Namespace::Present { object, .. } = &mut self.namespace {
                    Arc::make_mut(object).deleting = true;
                }
            }
        }
    }

    fn note_generations(&mut self, remote_generation: i64, local_generation: i64, policy: &Policy) {
        let marks = &policy.marks;
        let notes = [(&marks.remote_generation, remote_generation), (&marks.local_generation, local_generation)];
        let holder = self.holder_to_renew(policy);
        self.change_remote(|remote| {
            // Where the note raises the generation, it is about the raised one.
            remote.generation = remote_generation;
            for (mark, generation) in notes {
                remote.annotations.insert(Arc::clone(mark), generation.to_string().into());
            }
            remote.annotations.extend(holder.map(|uid| (Arc::clone(&marks.local_cluster), uid)));
            // The same write removes the note of an error that is over.
            remote.annotations.remove(&marks.sync_error);
        });
    }

    fn renew(&mut self, renewal: &Renewal, written: &Written, policy: &Policy) {
        let change = |object: &mut Object| {
            object.resource_version = Arc::clone(&written.resource_version);
            if policy.annotations_raise_generation {
                object.generation = written.generation;
            }
            renewal.apply_to(object, policy);
        };
        match (renewal.place, &mut self.namespace) {
            (RenewedObject::Remote, _) => self.change_remote(change),
            (RenewedObject::Namespace, Namespace::Present { object, .. }) => change(Arc::make_mut(object)),
            _ => {}
        }
    }

    fn change_remote(&mut self, change: impl FnOnce(&mut Object)) {
        if let Remote::Present(remote) | Remote::Absent(Absence::LeftSelector(remote)) = &mut self.remote {
            change(Arc::make_mut(remote));
        }
    }

    fn change_secret(&mut self, name: &str, change: impl FnOnce(&mut SecretView)) {
        if let Some(secret) = self.secrets.iter_mut().find(|secret| &*secret.name == name) {
            change(secret);
        }
    }
}

fn blank(key: ObjectKey, written: &Written) -> Object {
    Object {
        key,
        uid: Arc::clone(&written.uid),
        resource_version: Arc::clone(&written.resource_version),
        generation: written.generation,
        created: None,
        deleting: false,
        finalizers: Vec::new(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        hidden_annotations: false,
        hidden_labels: false,
        controller: None,
        owned: Vec::new(),
        content: CanonicalJson::of(&serde_json::Value::Object(serde_json::Map::new())),
        whole: None,
        status: None,
        is_account_token: false,
        has_own_status: false,
    }
}
