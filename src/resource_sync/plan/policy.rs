//! The part of a section's configuration that the rules depend on.

use std::sync::Arc;

use super::marks::Marks;
use crate::cluster::FIELD_MANAGER;
use crate::resource_sync::config::{
    Adopt, KeyPattern, Metadata, ObservedGeneration, SpecPointer, SyncConfig, Unclaimed,
};

/// How a section applies the rules.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the section or its kind")]
#[derive(Debug, Clone)]
pub struct Policy {
    /// Names of annotations and the finalizer.
    pub marks: Marks,
    /// The field manager of this section's writes to the local cluster. Each section has its own, which tells its writes from
    /// those of other sections and daemons.
    pub manager: Arc<str>,
    /// Whether the section takes over a local object that existed before its remote object.
    pub adopt: Adopt,
    /// Whether an adopted object is deleted with its remote object.
    pub delete_adopted: bool,
    /// How labels and annotations are copied to the local object.
    pub metadata: Metadata,
    /// Labels and annotations that are not copied with [`Metadata::Merge`].
    pub metadata_exclude: Vec<KeyPattern>,
    /// Labels and annotations that are copied with secrets.
    pub secret_metadata: Vec<KeyPattern>,
    /// Whether a local object that never was ours is deleted.
    pub unclaimed: Unclaimed,
    /// Fields that belong to the local side.
    pub local_fields: Vec<SpecPointer>,
    /// Whether anything but the finalizer is written to the remote.
    pub write_back: bool,
    /// What happens to `observedGeneration` in a status.
    pub observed_generation: ObservedGeneration,
    /// Whether objects of the kind may be the stored states of sections, which are never synced.
    pub has_states: bool,
    /// Whether objects of the kind may be tokens that each cluster makes for its own service accounts, which are never synced.
    pub has_tokens: bool,
    /// Whether the API server raises an object's generation when its annotations change, and not only its spec. Of the built-in
    /// kinds it does so for Deployments alone.
    pub annotations_raise_generation: bool,
}

impl Policy {
    pub fn new(config: &SyncConfig) -> Self {
        Self {
            marks: Marks::new(config),
            manager: format!("{FIELD_MANAGER}-{}", config.name).into(),
            adopt: config.adopt,
            delete_adopted: config.delete_adopted,
            metadata: config.metadata,
            metadata_exclude: config.metadata_exclude.clone(),
            secret_metadata: config.secret_metadata.clone(),
            unclaimed: config.unclaimed,
            local_fields: config.local_fields.clone(),
            write_back: config.write_back,
            observed_generation: config.observed_generation,
            has_states: config.resource.plural_and_group() == "configmaps",
            has_tokens: config.resource.plural_and_group() == "secrets",
            annotations_raise_generation: config.resource.plural_and_group() == "deployments.apps",
        }
    }

    /// Whether a label or annotation is left out of a copy.
    pub fn is_excluded(&self, key: &str, value: &str) -> bool {
        self.metadata_exclude.iter().any(|pattern| pattern.matches(key, value))
    }
}
