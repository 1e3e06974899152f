//! Everything that a decision about one pair depends on, and what it is after a step was carried out. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::conflicts::Contended;
use super::elsewhere::{Clusters, Elsewhere};
use super::former::{Place, Renewal};
use super::names::PairKey;
use super::patch;
use super::plan::{Harm, Policy, Step};
use super::secrets::SecretView;
use super::server_result::ServerResult;
use crate::cluster::{CanonicalJson, Object, ObjectKey, OwnedKeys, Written};

/// What is known of a remote object that the cache does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absence {
    /// It was being deleted when it was last seen: it went the regular way.
    SeenTerminating,
    /// It is just not there, which is suspicious: our finalizer should have held it.
    Unexplained,
    /// A live GET said `NotFound` for this very object.
    Confirmed,
    /// A live GET found it: it lives, but has left the selector.
    LeftSelector(Arc<Object>),
}

/// The remote side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// It is in the cache.
    Present(Arc<Object>),
    /// It is not.
    Absent(Absence),
}

/// The local namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespace {
    /// The kind is cluster-scoped.
    None,
    /// It does not exist.
    Missing,
    /// It exists.
    Present {
        /// Its metadata.
        object: Arc<Object>,
        /// Its owner marks are this section's, and proved to be.
        ours: bool,
    },
}

/// Everything that a decision about one pair depends on.
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
#[derive(Debug, Clone)]
pub struct Observed {
    /// Keys of the two objects, each of which exists, is to be made or is gone.
    pub pair: PairKey,
    /// The remote object.
    pub remote: Remote,
    /// The local object.
    pub local: Option<Arc<Object>>,
    /// The local object was just made: its status is not known before the watch shows it.
    pub local_status_unknown: bool,
    /// A write of ours, or a change that came before it, has changed the remote object's generation: what the local
    /// object reflects is not known before the watch shows which.
    pub remote_generation_unknown: bool,
    /// The local namespace.
    pub namespace: Namespace,
    /// A living remote object of this or another section maps to the local namespace (this pair's own aside).
    pub namespace_in_use: bool,
    /// The local namespace is being deleted, and another pair keeps its finalizer until it is gone.
    pub namespace_end_is_awaited: bool,
    /// A local object was found to be there when one was to be made.
    pub local_was_there: bool,
    /// The remote object that the local one records as its source lives under this key, which is not the pair's: the rule
    /// between names has changed.
    pub source_lives_at: Option<ObjectKey>,
    /// The two clusters, as far as they are known.
    pub clusters: Clusters,
    /// The guard lets this run do what may harm many objects at once.
    pub permitted: Option<Harm>,
    /// The named local secrets in the local namespace.
    pub secrets: Vec<SecretView>,
    /// What the servers made of earlier writes of ours.
    pub server_result: ServerResult,
    /// What somebody else keeps undoing, and is not to be written now.
    pub contended: Vec<Contended>,
}

impl Observed {
    /// The remote object, where it is there.
    pub fn remote_object(&self) -> Option<&Arc<Object>> {
        match &self.remote {
            Remote::Present(remote) | Remote::Absent(Absence::LeftSelector(remote)) => Some(remote),
            Remote::Absent(_) => None,
        }
    }

    /// The other local cluster that holds the remote object by the same finalizer.
    pub fn other_holder(&self, policy: &Policy) -> Option<Elsewhere> {
        self.clusters.other_holder(self.remote_object()?, policy)
    }

    /// The other remote cluster that the local object came from.
    pub fn other_source(&self, policy: &Policy) -> Option<Elsewhere> {
        self.clusters.other_source(self.local.as_deref()?, policy)
    }

    /// What is to be noted on the remote object about which local cluster holds it.
    pub(crate) fn holder_to_note(&self, policy: &Policy) -> Option<Arc<str>> {
        self.clusters.note(self.remote_object()?, policy)
    }

    /// The same where our finalizer goes and one by a former name stays, which is somebody else's: else that would look like
    /// ours from then on.
    pub(crate) fn holder_to_leave(&self, policy: &Policy) -> Option<Arc<str>> {
        let leaves_former = self.remote_object().is_some_and(|remote| policy.marks.has_former_of_others(remote));
        self.holder_to_note(policy).filter(|_| leaves_former)
    }

    /// The same where nothing else is written for it: not before our finalizer is on, by its present name.
    pub(crate) fn holder_to_renew(&self, policy: &Policy) -> Option<Arc<str>> {
        let is_on = self.remote_object().is_some_and(|remote| remote.has_finalizer(&policy.marks.finalizer));
        self.holder_to_note(policy).filter(|_| is_on)
    }

    /// Whether the remote object bears our finalizer, for this local cluster.
    pub(crate) fn is_held_here(&self, policy: &Policy) -> bool {
        self.remote_object().is_some_and(|remote| policy.marks.holds(remote)) && self.other_holder(policy).is_none()
    }

    /// Whether somebody else keeps undoing this, and it is not to be written now.
    pub(crate) fn is_contended(&self, what: &Contended) -> bool {
        self.contended.contains(what)
    }

    /// The observation after a step was carried out: what a watch would show, as far as the reply tells.
    ///
    /// A write that is not guarded may land on an object that has changed since it was read. Its reply then has a newer
    /// version and generation than the content that is known, and is not taken for that content's.
    #[must_use]
    pub fn after(mut self, step: &Step, written: &Written, policy: &Policy) -> Self {
        match step {
            Step::AddFinalizer => {
                let holder = self.holder_to_note(policy);
                self.change_remote(|remote| {
                    remote.resource_version = Arc::clone(&written.resource_version);
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
                let status = self.local.as_ref().and_then(|local| local.status.clone());
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
                object.annotations = marks.of_namespace(&self.pair.local, &self.clusters.remote);
                object.owned = vec![OwnedKeys {
                    manager: policy.manager(),
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
                        manager: policy.manager(),
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
                    if change.content.is_some() {
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
        self
    }

    fn note_generations(&mut self, remote_generation: i64, local_generation: i64, policy: &Policy) {
        let marks = &policy.marks;
        let notes = [(&marks.remote_generation, remote_generation), (&marks.local_generation, local_generation)];
        let holder = self.holder_to_renew(policy);
        self.change_remote(|remote| {
            for (mark, generation) in notes {
                remote.annotations.insert(Arc::clone(mark), generation.to_string().into());
            }
            remote.annotations.extend(holder.map(|uid| (Arc::clone(&marks.local_cluster), uid)));
            // An error that is over goes with the same write.
            remote.annotations.remove(&marks.sync_error);
        });
    }

    fn renew(&mut self, renewal: &Renewal, written: &Written, policy: &Policy) {
        let change = |object: &mut Object| {
            object.resource_version = Arc::clone(&written.resource_version);
            renewal.apply_to(object, policy);
        };
        match (renewal.place, &mut self.local, &mut self.namespace) {
            (Place::Remote, ..) => self.change_remote(change),
            (Place::Local, Some(local), _) => change(Arc::make_mut(local)),
            (Place::Namespace, _, Namespace::Present { object, .. }) => change(Arc::make_mut(object)),
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
        deleting: false,
        finalizers: Vec::new(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        hidden_annotations: false,
        controller: None,
        owned: Vec::new(),
        content: CanonicalJson::of(&serde_json::Value::Object(serde_json::Map::new())),
        status: None,
    }
}
