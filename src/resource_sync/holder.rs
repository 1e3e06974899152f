//! Which local cluster holds a remote object by our finalizer. Pure.
//!
//! Two local clusters with one finalizer would each release what the other one still has. So whoever puts the finalizer on
//! notes which cluster it is for. The note names the object and the finalizer, too: a copy of the object, and one that has
//! another finalizer, are held by nobody whom it names.

use std::sync::Arc;

use super::plan::Policy;
use crate::cluster::Object;

/// What is known of the local cluster.
#[derive(Debug, Clone, Default)]
pub struct LocalCluster {
    /// The UID of its namespace `kube-system`, where it is known.
    pub uid: Option<Arc<str>>,
    /// Clusters in whose place it is, as an operator says.
    pub in_place_of: Vec<Arc<str>>,
}

impl LocalCluster {
    /// The other local cluster that holds a remote object by our finalizer.
    pub fn other_holder(&self, remote: &Object, policy: &Policy) -> Option<Arc<str>> {
        let (ours, holder) = (self.uid.as_deref()?, holder(remote, policy)?);
        let is_ours = holder == ours || self.in_place_of.iter().any(|former| **former == *holder);
        (!is_ours).then(|| holder.into())
    }

    /// What is to be noted on a remote object with our finalizer; `None`: it says so, or it is not known.
    pub fn note(&self, remote: &Object, policy: &Policy) -> Option<Arc<str>> {
        let uid = self.uid.as_ref().filter(|_| policy.write_back)?;
        let note = format!("{uid}/{}/{}", remote.uid, policy.marks.finalizer);
        (remote.annotation(&policy.marks.local_cluster) != Some(&*note)).then(|| note.into())
    }

    /// Whether a remote object was held for a cluster in whose place this one is: that is to be noted.
    pub fn takes_place(&self, remote: &Object, policy: &Policy) -> bool {
        holder(remote, policy).is_some_and(|holder| self.uid.as_deref().is_some_and(|ours| ours != holder))
    }
}

/// What a note says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note<'t> {
    /// The local cluster, by the UID of its namespace `kube-system`.
    pub cluster: &'t str,
    /// The remote object, by UID.
    pub object: &'t str,
    /// The finalizer, in full.
    pub finalizer: &'t str,
}

impl<'t> Note<'t> {
    /// Reads `cluster/object/finalizer`.
    pub fn parse(text: &'t str) -> Option<Self> {
        let mut parts = text.splitn(3, '/');
        Some(Self { cluster: parts.next()?, object: parts.next()?, finalizer: parts.next()? })
    }
}

/// The local cluster that is noted for this very object and a finalizer of ours.
fn holder<'o>(remote: &'o Object, policy: &Policy) -> Option<&'o str> {
    let marks = &policy.marks;
    if !policy.write_back || !marks.holds(remote) {
        return None;
    }
    let note = marks.value_of(remote, &marks.local_cluster).and_then(Note::parse)?;
    (*note.object == *remote.uid && marks.is_finalizer(note.finalizer)).then_some(note.cluster)
}
