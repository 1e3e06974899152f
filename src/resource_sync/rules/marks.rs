//! The annotations and the finalizer by which objects are known as ours. The domain is the section's.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::elsewhere::{KnownCluster, Note};
use crate::cluster::{Object, ObjectKey};
use crate::resource_sync::config::SyncConfig;

pub(crate) const PAUSED: &str = "paused";
pub(crate) const REMOTE_UID: &str = "sync-remote-uid";
pub(crate) const OWNER_SECTION: &str = "sync-owner-section";
const REMOTE_GENERATION: &str = "sync-remote-generation";
const LOCAL_GENERATION: &str = "sync-local-generation";
const SYNC_ERROR: &str = "sync-error";
const REMOTE_CLUSTER: &str = "sync-remote-cluster";
const LOCAL_CLUSTER: &str = "sync-local-cluster";

/// Every mark of one section, spelled out once.
#[derive(Debug, Clone)]
pub struct Marks {
    /// On either object: a true value, as [`Pause`] reads it, stops everything for the pair.
    pub paused: Arc<str>,
    /// On a namespace: the local object it was made for.
    pub owner: Arc<str>,
    /// On a namespace: `plural.group` of that object.
    pub owner_resource: Arc<str>,
    /// On a namespace: the section that made it.
    pub owner_section: Arc<str>,
    /// On a local object: UID of the remote object it came from.
    pub remote_uid: Arc<str>,
    /// On a local object (`cluster/object`) and on a namespace (`cluster`): the remote cluster that it came from, by the UID of
    /// its namespace `kube-system`, and the remote object's UID. Two daemons with a section of one name and different remote
    /// clusters are told apart by it.
    pub remote_cluster: Arc<str>,
    /// On a local object or namespace: the key of the object that carries it. A copy carries another's.
    pub local_name: Arc<str>,
    /// On a local object that was there before its remote one and was taken over.
    pub adopted: Arc<str>,
    /// On a local object, with `mirror`: it was ours and was let go, whatever the managed fields say.
    pub released: Arc<str>,
    /// On a remote object: the remote generation that the local object reflects.
    pub remote_generation: Arc<str>,
    /// On a remote object: the local generation that resulted.
    pub local_generation: Arc<str>,
    /// On a remote object: why the local cluster rejects what it orders.
    pub sync_error: Arc<str>,
    /// On a remote object: the local cluster whose section holds it, by the UID of its namespace `kube-system`. Two local
    /// clusters with one finalizer are told apart by it.
    pub local_cluster: Arc<str>,
    /// On a secret: hash of what was last uploaded.
    pub uploaded_hash: Arc<str>,
    /// On a remote object: held while the local object or namespace exists.
    pub finalizer: Arc<str>,
    /// Value of [`Marks::owner_resource`].
    pub resource: Arc<str>,
    /// Value of [`Marks::owner_section`].
    pub section: Arc<str>,
    /// What the marks were called before.
    former: Former,
}

/// What the marks of a section were called before: they count as its own, and are replaced.
#[derive(Debug, Clone, Default)]
struct Former {
    /// Values of [`Marks::owner_section`].
    sections: Vec<Arc<str>>,
    /// Finalizers, in full.
    finalizers: Vec<Arc<str>>,
    /// Domains of annotations.
    domains: Vec<Arc<str>>,
}

impl Marks {
    /// The marks of a section.
    pub fn new(config: &SyncConfig) -> Self {
        let mark = |name: &str| Arc::from(format!("{}/{name}", config.annotation_domain));
        Self {
            paused: mark(PAUSED),
            owner: mark("sync-owner"),
            owner_resource: mark("sync-owner-resource"),
            owner_section: mark(OWNER_SECTION),
            remote_uid: mark(REMOTE_UID),
            remote_cluster: mark(REMOTE_CLUSTER),
            local_name: mark("sync-local-name"),
            adopted: mark("sync-adopted"),
            released: mark("sync-released"),
            remote_generation: mark(REMOTE_GENERATION),
            local_generation: mark(LOCAL_GENERATION),
            sync_error: mark(SYNC_ERROR),
            local_cluster: local_cluster_mark(&config.annotation_domain).into(),
            uploaded_hash: mark("last-uploaded-hash"),
            finalizer: mark(&config.finalizer),
            resource: config.resource.plural_and_group().into(),
            section: config.name.to_string().into(),
            former: Former {
                sections: config.former_names.iter().map(|name| name.as_str().into()).collect(),
                finalizers: config.former_finalizer_keys().into_iter().map(Into::into).collect(),
                domains: config.former_annotation_domains.iter().map(|domain| domain.as_str().into()).collect(),
            },
        }
    }

    /// Whether anything was called otherwise before.
    pub fn has_former_names(&self) -> bool {
        let Former { sections, finalizers, domains } = &self.former;
        !(sections.is_empty() && finalizers.is_empty() && domains.is_empty())
    }

    /// Whether a remote object bears our finalizer, by any of its names.
    pub fn holds(&self, remote: &Object) -> bool {
        remote.has_finalizer(&self.finalizer) || self.holds_former(remote)
    }

    /// Whether a remote object bears our finalizer by a former name.
    pub fn holds_former(&self, remote: &Object) -> bool {
        remote.finalizers.iter().any(|held| *held != self.finalizer && self.is_finalizer_on(remote, held))
    }

    /// Whether a finalizer on this remote object is ours, by any of its names. One by a former name is somebody else's where
    /// the present one is there, too, or is noted: a renewal is one write, so whoever has put it on since has that name now.
    pub fn is_finalizer_on(&self, remote: &Object, finalizer: &str) -> bool {
        let is_renewed = || {
            let is_noted = self.holder_note(remote).is_some_and(|note| note.finalizer == &*self.finalizer);
            is_noted || remote.has_finalizer(&self.finalizer)
        };
        finalizer == &*self.finalizer || (self.is_former_finalizer(finalizer) && !is_renewed())
    }

    /// Whether a finalizer by a former name is on a remote object that is somebody else's.
    pub fn has_former_of_others(&self, remote: &Object) -> bool {
        remote.finalizers.iter().any(|held| self.is_former_finalizer(held) && !self.is_finalizer_on(remote, held))
    }

    fn is_former_finalizer(&self, finalizer: &str) -> bool {
        self.former.finalizers.iter().any(|former| &**former == finalizer)
    }

    /// Whether a remote object says that somebody holds it by a finalizer that is on it and not ours.
    pub fn is_noted_by_others(&self, remote: &Object) -> bool {
        self.holder_note(remote)
            .is_some_and(|note| remote.has_finalizer(note.finalizer) && !self.is_finalizer_on(remote, note.finalizer))
    }

    /// What is noted on a remote object about who holds it; a note on a copy is about what was copied.
    pub fn holder_note<'o>(&self, remote: &'o Object) -> Option<Note<'o>> {
        let note = self.value_of(remote, &self.local_cluster).and_then(Note::parse)?;
        (note.object == &*remote.uid).then_some(note)
    }

    /// Whether a finalizer has a name of ours, present or former.
    pub fn is_finalizer_name(&self, finalizer: &str) -> bool {
        finalizer == &*self.finalizer || self.is_former_finalizer(finalizer)
    }

    /// The same among the finalizers of an object of which no more is known: one by a former name beside the present one is
    /// somebody else's.
    pub fn is_finalizer_among(&self, finalizers: &[String], finalizer: &str) -> bool {
        let is_renewed = || finalizers.iter().any(|held| *held == *self.finalizer);
        finalizer == &*self.finalizer || (self.is_former_finalizer(finalizer) && !is_renewed())
    }

    /// The former names of a mark.
    pub fn former_names_of<'a>(&'a self, mark: &'a str) -> impl Iterator<Item = Arc<str>> + 'a {
        let name = mark.split_once('/').map_or(mark, |(_, name)| name);
        self.former.domains.iter().map(move |domain| format!("{domain}/{name}").into())
    }

    /// Under which of its names an object bears a mark.
    pub fn names_on(&self, object: &Object, mark: &Arc<str>) -> Vec<Arc<str>> {
        let names = std::iter::once(Arc::clone(mark)).chain(self.former_names_of(mark));
        names.filter(|name| object.annotations.contains_key(name)).collect()
    }

    /// The value of a mark on an object, by any of its names.
    pub fn value_of<'o>(&self, object: &'o Object, mark: &str) -> Option<&'o str> {
        object.annotation(mark).or_else(|| self.former_names_of(mark).find_map(|former| object.annotation(&former)))
    }

    /// The marks that this section writes on remote objects.
    pub fn on_remote(&self) -> [&Arc<str>; 4] {
        [&self.remote_generation, &self.local_generation, &self.sync_error, &self.local_cluster]
    }

    /// What goes from a remote object with our finalizer, by the names that it has there. A note stays where it says that a
    /// finalizer which stays is somebody else's.
    pub fn gone_with_finalizer(&self, remote: &Object) -> Vec<Arc<str>> {
        let mut names = self.names_on(remote, &self.sync_error);
        let is_of_others = self.holder_note(remote).is_some_and(|note| !self.is_finalizer_name(note.finalizer));
        if !is_of_others && !self.has_former_of_others(remote) {
            names.extend(self.names_on(remote, &self.local_cluster));
        }
        names
    }

    /// The marks that this section writes on local objects.
    pub fn on_local(&self) -> [&Arc<str>; 5] {
        [&self.remote_uid, &self.remote_cluster, &self.local_name, &self.adopted, &self.released]
    }

    /// The marks that this section writes on namespaces.
    pub fn on_namespace(&self) -> [&Arc<str>; 5] {
        [&self.owner, &self.owner_resource, &self.owner_section, &self.local_name, &self.remote_cluster]
    }

    /// Whether an annotation is one of these, and so never taken from one side to the other.
    pub fn is_mark(&self, annotation: &str) -> bool {
        [
            &self.paused,
            &self.owner,
            &self.owner_resource,
            &self.owner_section,
            &self.remote_uid,
            &self.remote_cluster,
            &self.local_name,
            &self.adopted,
            &self.released,
            &self.remote_generation,
            &self.local_generation,
            &self.sync_error,
            &self.local_cluster,
            &self.uploaded_hash,
        ]
        .iter()
        .any(|mark| {
            &***mark == annotation
                || (!self.former.domains.is_empty() && self.former_names_of(mark).any(|former| *former == *annotation))
        })
    }

    /// Whether the object says that nothing is to be done.
    pub fn is_paused(&self, object: &Object) -> bool {
        self.pause(object) != Pause::No
    }

    /// What the object says of a pause.
    pub fn pause<'a>(&self, object: &'a Object) -> Pause<'a> {
        self.value_of(object, &self.paused).map_or(Pause::No, Pause::of)
    }

    /// Whether an annotation that the remote object lacks stays on the local one all the same, also with `mirror`: what this
    /// section itself wrote there, and what another section notes there, to which it is the remote object.
    pub fn stays_on_local(&self, annotation: &str) -> bool {
        annotation == &*self.adopted
            || self.former_names_of(&self.adopted).any(|former| *former == *annotation)
            || is_note(annotation)
    }

    /// Whether an annotation is the mark of the remote cluster, by any of its names.
    pub fn is_remote_cluster(&self, annotation: &str) -> bool {
        annotation == &*self.remote_cluster
            || self.former_names_of(&self.remote_cluster).any(|former| *former == *annotation)
    }

    /// Whether the object carries a mark that names the object itself, as every mark does that was not copied.
    pub fn names_itself(&self, object: &Object) -> bool {
        let ObjectKey { namespace, name } = &object.key;
        self.value_of(object, &self.local_name).is_some_and(|mark| match mark.split_once('/') {
            Some((marked, rest)) => marked == &**namespace && rest == &**name,
            None => namespace.is_empty() && mark == &**name,
        })
    }

    /// The annotations of a namespace that is made for a local object, by a section with this remote cluster.
    pub fn of_namespace(&self, local: &ObjectKey, remote: &KnownCluster) -> BTreeMap<Arc<str>, Arc<str>> {
        let mut annotations = BTreeMap::from(
            [
                (&self.owner, &local.name),
                (&self.owner_resource, &self.resource),
                (&self.owner_section, &self.section),
                (&self.local_name, &local.namespace),
            ]
            .map(|(mark, value)| (Arc::clone(mark), Arc::clone(value))),
        );
        annotations.extend(remote.uid.clone().map(|uid| (Arc::clone(&self.remote_cluster), uid)));
        annotations
    }

    /// Whose the namespace is.
    pub fn namespace_owner(&self, namespace: &Object) -> NamespaceOwner {
        if self.value_of(namespace, &self.owner).is_none() {
            return NamespaceOwner::Nobody;
        }
        let is_us =
            |section: &str| section == &*self.section || self.former.sections.iter().any(|former| &**former == section);
        match (self.value_of(namespace, &self.owner_resource), self.value_of(namespace, &self.owner_section)) {
            (None, None) => NamespaceOwner::Unnamed,
            (Some(resource), Some(section)) if resource == &*self.resource && is_us(section) => NamespaceOwner::Us,
            _ => NamespaceOwner::Others,
        }
    }
}

/// The annotation that says which local cluster holds a remote object, under a domain.
pub fn local_cluster_mark(domain: &str) -> String {
    format!("{domain}/{LOCAL_CLUSTER}")
}

/// Whether an annotation is what a section notes about a pair on one of its objects, of whichever domain, and which is never
/// taken from one side to the other.
pub fn is_note(annotation: &str) -> bool {
    let notes = [REMOTE_GENERATION, LOCAL_GENERATION, SYNC_ERROR, LOCAL_CLUSTER, REMOTE_CLUSTER];
    annotation.split_once('/').is_some_and(|(_, name)| notes.contains(&name))
}

/// What an object says of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause<'a> {
    /// It is not paused.
    No,
    /// It is paused.
    Yes,
    /// The value is neither true nor false. Whoever set it wanted something, and a pause is what can be taken back: the
    /// pair is paused.
    Unclear(&'a str),
}

impl<'a> Pause<'a> {
    /// The values that Go's `strconv.ParseBool` accepts.
    fn of(value: &'a str) -> Self {
        match value {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Self::Yes,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Self::No,
            _ => Self::Unclear(value),
        }
    }
}

/// Whose a namespace is, by its marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceOwner {
    /// No owner mark.
    Nobody,
    /// This section.
    Us,
    /// An owner mark of a program that does not name itself: ours where no other section maps to the namespace.
    Unnamed,
    /// Another section.
    Others,
}
