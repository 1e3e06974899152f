//! The annotations and the finalizer by which objects are known as ours. The domain is the section's.

use std::sync::Arc;

use crate::cluster::Object;
use crate::config::SyncConfig;

/// Every mark of one section, spelled out once.
#[derive(Debug, Clone)]
pub struct Marks {
    /// On either object: `"true"` stops everything for the pair.
    pub paused: Arc<str>,
    /// On a namespace: the local object it was made for.
    pub owner: Arc<str>,
    /// On a namespace: `plural.group` of that object.
    pub owner_resource: Arc<str>,
    /// On a namespace: the section that made it.
    pub owner_section: Arc<str>,
    /// On a local object: UID of the remote object it came from.
    pub remote_uid: Arc<str>,
    /// On a local object, with `mirror`: it was ours and was let go, whatever the managed fields say.
    pub released: Arc<str>,
    /// On a remote object: the remote generation that the local object reflects.
    pub remote_generation: Arc<str>,
    /// On a remote object: the local generation that resulted.
    pub local_generation: Arc<str>,
    /// On a secret: hash of what was last uploaded.
    pub uploaded_hash: Arc<str>,
    /// On a remote object: held while the local object or namespace exists.
    pub finalizer: Arc<str>,
    /// Value of [`Marks::owner_resource`].
    pub resource: Arc<str>,
    /// Value of [`Marks::owner_section`].
    pub section: Arc<str>,
}

impl Marks {
    /// The marks of a section.
    pub fn new(config: &SyncConfig) -> Self {
        let mark = |name: &str| Arc::from(format!("{}/{name}", config.annotation_domain));
        Self {
            paused: mark("paused"),
            owner: mark("sync-owner"),
            owner_resource: mark("sync-owner-resource"),
            owner_section: mark("sync-owner-section"),
            remote_uid: mark("sync-remote-uid"),
            released: mark("sync-released"),
            remote_generation: mark("sync-remote-generation"),
            local_generation: mark("sync-local-generation"),
            uploaded_hash: mark("last-uploaded-hash"),
            finalizer: mark(&config.finalizer),
            resource: config.resource.plural_and_group().into(),
            section: config.name.to_string().into(),
        }
    }

    /// Whether an annotation is one of these, and so never taken from one side to the other.
    pub fn is_mark(&self, annotation: &str) -> bool {
        [
            &self.paused,
            &self.owner,
            &self.owner_resource,
            &self.owner_section,
            &self.remote_uid,
            &self.released,
            &self.remote_generation,
            &self.local_generation,
            &self.uploaded_hash,
        ]
        .iter()
        .any(|mark| &***mark == annotation)
    }

    /// Whether the object says that nothing is to be done.
    pub fn is_paused(&self, object: &Object) -> bool {
        object.annotation(&self.paused) == Some("true")
    }

    /// Whose the namespace is.
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
