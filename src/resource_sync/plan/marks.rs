//! The annotations and the finalizer that identify objects as ours. The section configures their domain.

use std::collections::BTreeMap;
use std::sync::Arc;

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
const ADOPTED: &str = "sync-adopted";
const RELEASED: &str = "sync-released";

/// Every mark of one section, spelled out once.
#[derive(Debug, Clone)]
pub struct Marks {
    /// On either object: a true value (see [`Pause`]) suspends the pair.
    pub paused: Arc<str>,
    /// On a namespace: the local object that it was created for.
    pub owner: Arc<str>,
    /// On a namespace: `plural.group` of that object.
    pub owner_resource: Arc<str>,
    /// On a namespace: the section that created it.
    pub owner_section: Arc<str>,
    /// On a local object: UID of the remote object it came from.
    pub remote_uid: Arc<str>,
    /// On a local object (`cluster/object`) and on a namespace (`cluster`): the remote cluster that it came from, by the UID of
    /// its namespace `kube-system`, and the remote object's UID. It distinguishes two daemons that run sections of the same name
    /// with different remote clusters.
    pub remote_cluster: Arc<str>,
    /// On a local object or namespace: its own key. A copy of the object has the key of the original.
    pub local_name: Arc<str>,
    /// On a local object that existed before its remote object and was adopted.
    pub adopted: Arc<str>,
    /// On a local object, with `mirror`: it was ours and was let go, even if the managed fields still name us.
    pub released: Arc<str>,
    /// On a remote object: the remote generation that the local object reflects.
    pub remote_generation: Arc<str>,
    /// On a remote object: the local generation that resulted.
    pub local_generation: Arc<str>,
    /// On a remote object: why the local cluster rejects its content.
    pub sync_error: Arc<str>,
    /// On a remote object: the local cluster whose section holds it, by the UID of its namespace `kube-system`. It distinguishes
    /// two local clusters that use the same finalizer.
    pub local_cluster: Arc<str>,
    /// On a secret: the hash of the last upload.
    pub uploaded_hash: Arc<str>,
    /// On a remote object: held while the local object or namespace exists.
    pub finalizer: Arc<str>,
    /// Value of [`Marks::owner_resource`].
    pub resource: Arc<str>,
    /// Value of [`Marks::owner_section`].
    pub section: Arc<str>,
    /// Former names of the finalizer, in full. A finalizer with such a name counts as the section's own, and is renamed.
    former_finalizers: Vec<Arc<str>>,
}

/// Whether an annotation stays on the local object although the remote object lacks it, also with `mirror`: this section
/// wrote it, or it is a note of another section to which this object is the remote one.
pub fn stays_on_local(annotation: &str) -> bool {
    is_adopted_mark(annotation) || is_note(annotation)
}

impl Marks {
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
            adopted: mark(ADOPTED),
            released: mark(RELEASED),
            remote_generation: mark(REMOTE_GENERATION),
            local_generation: mark(LOCAL_GENERATION),
            sync_error: mark(SYNC_ERROR),
            local_cluster: local_cluster_mark(&config.annotation_domain).into(),
            uploaded_hash: mark("last-uploaded-hash"),
            finalizer: mark(&config.finalizer),
            resource: config.resource.plural_and_group().into(),
            section: config.name.to_string().into(),
            former_finalizers: config.former_finalizer_keys().into_iter().map(Into::into).collect(),
        }
    }

    /// Whether a remote object has our finalizer, under any of its names.
    pub fn holds(&self, remote: &Object) -> bool {
        remote.has_finalizer(&self.finalizer) || self.holds_former(remote)
    }

    /// Whether a remote object has our finalizer under a former name.
    pub fn holds_former(&self, remote: &Object) -> bool {
        remote.finalizers.iter().any(|held| *held != self.finalizer && self.is_finalizer_on(remote, held))
    }

    /// Whether a finalizer on this remote object is ours, under any of its names. A former name beside the present one, or
    /// beside a note about the present one, belongs to somebody else: our renewal replaces the name in one write, so another
    /// section has added it since.
    pub fn is_finalizer_on(&self, remote: &Object, finalizer: &str) -> bool {
        let is_renewed = || {
            let is_noted = self.holder_note(remote).is_some_and(|note| note.finalizer == &*self.finalizer);
            is_noted || remote.has_finalizer(&self.finalizer)
        };
        finalizer == &*self.finalizer || (self.is_former_finalizer(finalizer) && !is_renewed())
    }

    /// Whether a remote object has a finalizer with a former name of ours that belongs to somebody else.
    pub fn has_former_of_others(&self, remote: &Object) -> bool {
        remote.finalizers.iter().any(|held| self.is_former_finalizer(held) && !self.is_finalizer_on(remote, held))
    }

    fn is_former_finalizer(&self, finalizer: &str) -> bool {
        self.former_finalizers.iter().any(|former| &**former == finalizer)
    }

    /// Whether a note on a remote object is about a finalizer on it that is not ours.
    pub fn is_noted_by_others(&self, remote: &Object) -> bool {
        self.holder_note(remote)
            .is_some_and(|note| remote.has_finalizer(note.finalizer) && !self.is_finalizer_on(remote, note.finalizer))
    }

    /// The note on a remote object about who holds it. A note that was copied with the object does not count.
    pub fn holder_note<'o>(&self, remote: &'o Object) -> Option<Note<'o>> {
        let note = remote.annotation(&self.local_cluster).and_then(Note::parse)?;
        (note.object == &*remote.uid).then_some(note)
    }

    /// Whether a finalizer has our present name or a former one.
    pub fn is_finalizer_name(&self, finalizer: &str) -> bool {
        finalizer == &*self.finalizer || self.is_former_finalizer(finalizer)
    }

    /// The marks that are removed from a remote object together with our finalizer. A note stays if it
    /// is about a finalizer of somebody else that stays.
    pub fn gone_with_finalizer(&self, remote: &Object) -> Vec<Arc<str>> {
        let is_of_others = self.holder_note(remote).is_some_and(|note| !self.is_finalizer_name(note.finalizer));
        let note = (!is_of_others && !self.has_former_of_others(remote)).then_some(&self.local_cluster);
        let marks = std::iter::once(&self.sync_error).chain(note);
        marks.filter(|mark| remote.annotations.contains_key(*mark)).map(Arc::clone).collect()
    }

    /// The marks that this section writes on local objects.
    pub fn on_local(&self) -> [&Arc<str>; 5] {
        [&self.remote_uid, &self.remote_cluster, &self.local_name, &self.adopted, &self.released]
    }

    /// The marks that this section writes on namespaces.
    pub fn on_namespace(&self) -> [&Arc<str>; 5] {
        [&self.owner, &self.owner_resource, &self.owner_section, &self.local_name, &self.remote_cluster]
    }

    /// Whether an annotation is a mark, and is therefore never copied to the other side.
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
        .any(|mark| &***mark == annotation)
    }

    pub fn is_paused(&self, object: &Object) -> bool {
        self.pause(object) != Pause::No
    }

    /// The object's annotation about a pause.
    pub fn pause<'a>(&self, object: &'a Object) -> Pause<'a> {
        object.annotation(&self.paused).map_or(Pause::No, Pause::of)
    }

    /// Whether the object's mark contains its own key, as every mark does that was not copied.
    pub fn names_itself(&self, object: &Object) -> bool {
        let ObjectKey { namespace, name } = &object.key;
        object.annotation(&self.local_name).is_some_and(|mark| match mark.split_once('/') {
            Some((marked, rest)) => marked == &**namespace && rest == &**name,
            None => namespace.is_empty() && mark == &**name,
        })
    }

    /// The annotations of a namespace that is created for a local object, by a section with this remote cluster, if it is known.
    pub fn of_namespace(&self, local: &ObjectKey, remote: Option<&Arc<str>>) -> BTreeMap<Arc<str>, Arc<str>> {
        let mut annotations = BTreeMap::from(
            [
                (&self.owner, &local.name),
                (&self.owner_resource, &self.resource),
                (&self.owner_section, &self.section),
                (&self.local_name, &local.namespace),
            ]
            .map(|(mark, value)| (Arc::clone(mark), Arc::clone(value))),
        );
        annotations.extend(remote.map(|uid| (Arc::clone(&self.remote_cluster), Arc::clone(uid))));
        annotations
    }

    pub fn namespace_owner(&self, namespace: &Object) -> NamespaceOwner {
        if namespace.annotation(&self.owner).is_none() {
            return NamespaceOwner::Nobody;
        }
        match (namespace.annotation(&self.owner_resource), namespace.annotation(&self.owner_section)) {
            (None, None) => NamespaceOwner::Unnamed,
            (Some(resource), Some(section)) if resource == &*self.resource && section == &*self.section => {
                NamespaceOwner::Us
            }
            _ => NamespaceOwner::Others,
        }
    }
}

/// The annotation that says which local cluster holds a remote object, under a domain.
pub fn local_cluster_mark(domain: &str) -> String {
    format!("{domain}/{LOCAL_CLUSTER}")
}

/// Whether an annotation is a note of a section about a pair, of any domain. Notes are never copied to the other side.
pub fn is_note(annotation: &str) -> bool {
    let notes = [REMOTE_GENERATION, LOCAL_GENERATION, SYNC_ERROR, LOCAL_CLUSTER, REMOTE_CLUSTER];
    annotation.split_once('/').is_some_and(|(_, name)| notes.contains(&name))
}

/// Whether an annotation says, under any domain, that its object was adopted: so it is still kept after `annotation_domain` changed.
pub fn is_adopted_mark(annotation: &str) -> bool {
    annotation.split_once('/').is_some_and(|(_, name)| name == ADOPTED)
}

/// Whether an annotation says, under any domain, that its object was released.
pub fn is_released_mark(annotation: &str) -> bool {
    annotation.split_once('/').is_some_and(|(_, name)| name == RELEASED)
}

/// The annotation of an object about a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause<'a> {
    No,
    Yes,
    /// The value is neither true nor false. The pair is paused, since a pause can be undone.
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

/// The owner of a namespace, by its marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceOwner {
    /// No owner mark.
    Nobody,
    /// This section.
    Us,
    /// Its owner mark does not name a section: it is ours if no other section maps to the namespace.
    Unnamed,
    /// Another section.
    Others,
}

/// The content of the note on a remote object about who holds it.
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
