//! A syncset as a pass reads it: the header, which is always read, and the payload, which only a syncset that is due needs.

use serde_json::Value;
use uuid::Uuid;

use super::health::Settings;
use super::name::{Digest, ObjectRef, SyncSetName};
use super::rows::Failure;
use crate::cluster::tool_marks::{is_match, is_tool_mark};

/// How our own annotations begin. Those that an object has because of a syncset never come from somebody else's document.
const OWN_MARKS: &str = "towline.dev/";
/// The annotation by which a resource may be deleted and created again.
pub(super) const RECREATE: &str = "towline.dev/recreate";
/// The type of Secrets that a cluster fills with a token of the account that an annotation names.
pub const SERVICE_ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behavior {
    /// By server-side apply; fields that are no longer given are removed.
    #[default]
    Apply,
    /// Created if absent, else patched; nothing is removed.
    CreateOrUpdate,
    /// Created if absent, and never changed.
    CreateOnly,
}

/// What becomes of objects that a syncset no longer wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They stay and are forgotten.
    #[default]
    Upsert,
    /// They are deleted.
    Sync,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PatchType {
    #[default]
    Strategic,
    /// JSON merge patch (RFC 7396).
    Merge,
    /// JSON patch (RFC 6902).
    Json,
}

/// A secret that is copied to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretMapping {
    /// Namespace of the `Secret` document; of a `SyncSet` always its own.
    pub source_namespace: String,
    /// Name of the `Secret` document.
    pub source_name: String,
    /// Namespace in the cluster; empty if none is given.
    pub target_namespace: String,
    /// Name in the cluster.
    pub target_name: String,
    /// Its labels and annotations that are copied, as patterns ([`is_match`]).
    pub metadata: Vec<String>,
}

impl SecretMapping {
    /// Namespace and name of the `Secret` document.
    pub fn source(&self) -> (&str, &str) {
        (&self.source_namespace, &self.source_name)
    }

    /// Whether a label or annotation of the secret is copied. Tools on the cluster, and we, obey some of them: whoever may write the secret
    /// would give orders there. So none is copied that is not listed, and none by which tools know what is theirs. Of ours only the one counts
    /// by which a copy that can't be changed is created again, if it is listed by its name.
    fn copies(&self, key: &str, value: &str) -> bool {
        if key.starts_with(OWN_MARKS) {
            return key == RECREATE && self.metadata.iter().any(|pattern| pattern == key);
        }
        !is_tool_mark(key, value) && self.metadata.iter().any(|pattern| is_match(pattern, key, value))
    }
}

/// What is known of a syncset without its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Assigned by the hub: a syncset that was created again under its name has another.
    pub id: Uuid,
    pub name: SyncSetName,
    /// Version of its last change, by which payloads are cached.
    pub version: i64,
    pub generation: i64,
    pub behavior: Behavior,
    /// What becomes of objects that it no longer wants.
    pub mode: Mode,
    /// Whether texts of resources are templates.
    pub resource_templates: bool,
    pub patch_templates: bool,
    pub secrets: Vec<SecretMapping>,
    /// Whether and how the health of what it sends is read.
    pub health: Option<Settings>,
}

/// What a syncset sends, as its document has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Payload {
    pub resources: Vec<Value>,
    pub patches: Vec<Patch>,
}

/// A patch of an object that exists.
#[expect(clippy::struct_field_names, reason = "as manifests name it")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// `apps/v1`.
    pub api_version: String,
    pub kind: String,
    /// Namespace; empty if none is given.
    pub namespace: String,
    pub name: String,
    pub patch_type: PatchType,
    /// JSON or YAML, or a template of it.
    pub text: String,
}

/// A `Secret` document that syncsets map: what `inputs` depends on, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretSource {
    pub namespace: String,
    pub name: String,
    /// Assigned by the hub.
    pub id: Uuid,
    /// The generation that set its data.
    pub data_generation: i64,
    /// `Opaque`, …
    pub secret_type: String,
    /// Whether its copies can't be changed.
    pub is_immutable: bool,
    pub labels: std::collections::BTreeMap<String, String>,
    pub annotations: std::collections::BTreeMap<String, String>,
}

impl SecretSource {
    /// The same with the labels and annotations that one of these mappings copies.
    pub fn copied_by<'m>(&self, mappings: &(impl Iterator<Item = &'m SecretMapping> + Clone)) -> Self {
        let mut copied = self.clone();
        for metadata in [&mut copied.labels, &mut copied.annotations] {
            metadata.retain(|key, value| mappings.clone().any(|mapping| mapping.copies(key, value)));
        }
        copied
    }
}

/// Where in a syncset an object or a patch comes from; the positions are those of its lists, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Position {
    /// An element of `resources`.
    Resource(usize),
    /// An element of `secretMappings`.
    Secret(usize),
    /// An element of `patches`.
    Patch(usize),
}

/// An object as a syncset wants it, ready to be sent.
#[derive(Clone, PartialEq)]
pub struct Desired {
    pub place: Position,
    pub object: ObjectRef,
    /// `apps/v1`.
    pub api_version: String,
    /// The whole object as it is sent.
    pub body: Value,
    /// By which it is compared with what was sent before.
    pub content: Digest,
    /// `towline.dev/adopt: "true"`: one that exists already is ours from then on.
    pub may_adopt: bool,
    /// `towline.dev/recreate: "true"`: deleted and created again if it can't be changed.
    pub may_recreate: bool,
}

/// A patch as a syncset wants it, ready to be sent.
#[derive(Clone, PartialEq)]
pub struct DesiredPatch {
    pub place: Position,
    pub object: ObjectRef,
    /// `apps/v1`.
    pub api_version: String,
    pub patch_type: PatchType,
    /// As it is sent: JSON.
    pub body: Value,
    /// By which it is compared with what was sent before.
    pub content: Digest,
}

/// `resource 2`, `secret 0`, `patch 1`.
impl std::fmt::Display for Position {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Resource(index) => write!(formatter, "resource {index}"),
            Self::Secret(index) => write!(formatter, "secret {index}"),
            Self::Patch(index) => write!(formatter, "patch {index}"),
        }
    }
}

/// Shows no content, which may be of a secret.
impl std::fmt::Debug for Desired {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Desired")
            .field("place", &self.place)
            .field("object", &self.object)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// Shows no content, which may have a secret.
impl std::fmt::Debug for DesiredPatch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("DesiredPatch")
            .field("place", &self.place)
            .field("object", &self.object)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// What became of an element of a syncset when it was rendered.
#[derive(Clone, Debug, PartialEq)]
pub enum Rendering<T> {
    Ready(T),
    Failed {
        /// What is known all the same of what it is.
        known: Known,
        failure: Failure,
    },
}

/// What is known of an element that can't be sent: nothing of it may be deleted meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    Object(ObjectRef),
    /// Only its kind: its name or namespace does not render.
    Kind {
        group: String,
        kind: String,
    },
    /// Nothing, so it may be any object.
    Nothing,
}

/// What a syncset wants on a cluster, each list in the order in which the document has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    pub resources: Vec<Rendering<Desired>>,
    /// Of `secretMappings`.
    pub secrets: Vec<Rendering<Desired>>,
    pub patches: Vec<Rendering<DesiredPatch>>,
}
