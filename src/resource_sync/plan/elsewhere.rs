//! Pairs that belong to other clusters than the section's two: remote objects that another local cluster holds, and local
//! objects and namespaces that came from another remote cluster. Pure.
//!
//! Two local clusters that use the same finalizer would each release remote objects that the other one still needs. Therefore a
//! note on the remote object says for which local cluster the finalizer was added. It also names the object and the finalizer,
//! so that it means nothing on a copy of the object, or beside another finalizer.
//!
//! Two daemons may run sections of the same name from different remote clusters to one local cluster. They have the same field
//! manager there, and each would mistake the other's objects for its own objects whose remote object is gone. Therefore the
//! marks of local objects and namespaces name the remote cluster.

use std::fmt;
use std::sync::Arc;

use super::ownership;
use super::policy::Policy;
use crate::cluster::Object;
use crate::resource_sync::config::Metadata;

/// What is known of one of the section's two clusters.
#[derive(Debug, Clone, Default)]
pub struct KnownCluster {
    /// The UID of its namespace `kube-system`, where it is known.
    pub uid: Option<Arc<str>>,
    /// Clusters that it replaces, as an operator has approved.
    pub in_place_of: Vec<Arc<str>>,
}

impl KnownCluster {
    /// Whether it is the cluster with this UID, or replaces it.
    fn stands_for(&self, uid: &str) -> bool {
        self.uid.as_deref() == Some(uid) || self.in_place_of.iter().any(|former| **former == *uid)
    }

    /// Whether it is known to be another cluster than the one with this UID.
    fn is_not(&self, uid: &str) -> bool {
        self.uid.as_deref().is_some_and(|ours| ours != uid)
    }
}

/// What is known of both.
#[derive(Debug, Clone, Default)]
pub struct Clusters {
    pub remote: KnownCluster,
    pub local: KnownCluster,
}

/// Why a pair belongs to another cluster, with that cluster's identity: the UID of its namespace `kube-system`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Elsewhere {
    /// Another local cluster holds the remote object with our finalizer.
    HeldFor(Arc<str>),
    /// A section of the same name created the local object for another remote cluster.
    CameFrom(Arc<str>),
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeldFor(uid) => {
                write!(
                    formatter,
                    "the local cluster whose kube-system has UID {uid} holds its remote object with the same finalizer"
                )
            }
            Self::CameFrom(uid) => write!(
                formatter,
                "a section of the same name created it for the remote cluster whose kube-system has UID {uid}"
            ),
        }
    }
}

impl Clusters {
    /// The other local cluster that holds a remote object with our finalizer.
    pub fn other_holder(&self, remote: &Object, policy: &Policy) -> Option<Elsewhere> {
        let holder =
            holder(remote, policy).filter(|holder| self.local.uid.is_some() && !self.local.stands_for(holder))?;
        Some(Elsewhere::HeldFor(holder.into()))
    }

    /// The other remote cluster that a local object of ours came from. While our own remote cluster's identity is unknown, every
    /// cluster counts as another one.
    pub fn other_source(&self, local: &Object, policy: &Policy) -> Option<Elsewhere> {
        self.elsewhere(source(local, policy)?)
    }

    /// The other remote cluster that a namespace of ours came from.
    pub fn other_source_of_namespace(&self, namespace: &Object, policy: &Policy) -> Option<Elsewhere> {
        self.elsewhere(own_mark(namespace, policy)?)
    }

    fn elsewhere(&self, source: &str) -> Option<Elsewhere> {
        (!self.remote.stands_for(source)).then(|| Elsewhere::CameFrom(source.into()))
    }

    /// The mark that names the remote cluster on a local object, where its identity is known.
    pub fn source_mark(&self, remote: &Object) -> Option<Arc<str>> {
        Some(format!("{}/{}", self.remote.uid.as_ref()?, remote.uid).into())
    }

    /// The note that belongs to our finalizer on a remote object. `None` if it is there already, if our cluster's identity is
    /// unknown, or if there is a note about another finalizer that is on the object.
    pub fn note(&self, remote: &Object, policy: &Policy) -> Option<Arc<str>> {
        let marks = &policy.marks;
        let uid = self.local.uid.as_ref().filter(|_| policy.write_back)?;
        let is_theirs = marks.is_noted_by_others(remote);
        let note = format!("{uid}/{}/{}", remote.uid, marks.finalizer);
        let is_noted = remote.annotation(&marks.local_cluster) == Some(&*note);
        (!is_theirs && !is_noted).then(|| note.into())
    }

    /// Whether the note on a remote object with our finalizer names a cluster that ours replaces, and has to be rewritten.
    pub fn takes_place(&self, remote: &Object, policy: &Policy) -> bool {
        let is_other = holder(remote, policy).is_some_and(|holder| self.local.is_not(holder));
        is_other && remote.has_finalizer(&policy.marks.finalizer)
    }

    /// The identity of the present remote cluster, where a namespace's proved marks name none or one that it replaces.
    pub fn new_source(&self, namespace: &Object, policy: &Policy) -> Option<Arc<str>> {
        let uid = self.remote.uid.clone()?;
        let source = namespace.annotation(&policy.marks.remote_cluster);
        let is_new =
            source.is_none_or(|source| *source != *uid) && self.other_source_of_namespace(namespace, policy).is_none();
        (is_new && ownership::marks_prove(namespace, policy).is_ok()).then_some(uid)
    }
}

/// The local cluster that a note about this very object and a finalizer of ours names.
fn holder<'o>(remote: &'o Object, policy: &Policy) -> Option<&'o str> {
    let marks = &policy.marks;
    if !policy.write_back || !marks.holds(remote) {
        return None;
    }
    let note = marks.holder_note(remote)?;
    marks.is_finalizer_on(remote, note.finalizer).then_some(note.cluster)
}

/// The remote cluster that a local object's mark names (`cluster/object`, by UID), where this section's manager wrote
/// it and it names the same remote object as the other marks: another section may have copied it.
fn source<'o>(local: &'o Object, policy: &Policy) -> Option<&'o str> {
    let marks = &policy.marks;
    let (cluster, object) = own_mark(local, policy).filter(|_| policy.metadata == Metadata::Merge)?.split_once('/')?;
    (local.annotation(&marks.remote_uid) == Some(object)).then_some(cluster)
}

/// The value of the mark of the remote cluster, where this section's manager wrote it to an object that is ours.
fn own_mark<'o>(object: &'o Object, policy: &Policy) -> Option<&'o str> {
    let mark = &policy.marks.remote_cluster;
    let is_ours = object.owned_by(&policy.manager).is_some_and(|owned| owned.annotations.contains(mark));
    object.annotation(mark).filter(|_| is_ours && ownership::marks_prove(object, policy).is_ok())
}
