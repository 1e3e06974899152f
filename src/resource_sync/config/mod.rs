//! `[[sync]]`: a kind that is kept in step between a remote and a local cluster.

mod overlap;
mod pointer;

use crate::cluster::built_in::unsyncable;
use crate::cluster::tool_marks::TOOL_MARKS;
use crate::config::fields::Fields;
use crate::config::setting::{
    Domain, FinalizerName, NamespacePrefix, NamespaceSuffix, ResourceSuffix, SecretName, Setting, Unfit, one_of,
};
use crate::config::{ClusterName, LabelSelector, ResourceId, SectionName};
use crate::state::Owner;

pub use overlap::{Scope, conflicts};
pub use pointer::{KeyPattern, SpecPointer};

/// A kind that is kept in step between a remote and a local cluster: `[[sync]]`.
///
/// The remote object `name` + [`remote_resource_suffix`](Self::remote_resource_suffix) in namespace `namespace` and
/// the local object `name` in `namespace` + [`local_namespace_suffix`](Self::local_namespace_suffix) are a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncConfig {
    /// Name of the section, unique among all sections.
    pub name: SectionName,
    /// Cluster that is the source of truth for the spec.
    pub remote: ClusterName,
    /// Cluster that is the source of truth for the status; may be the remote one.
    pub local: ClusterName,
    /// The kind, which both clusters serve.
    pub resource: ResourceId,
    /// Remote object name = local object name + this; empty by default. Remote objects without it are ignored.
    pub remote_resource_suffix: String,
    /// Local namespace = remote namespace + this; empty by default. Local namespaces without it are ignored.
    pub local_namespace_suffix: String,
    /// Remote and local namespaces without this prefix are ignored; empty by default.
    pub namespace_prefix: String,
    /// Label selector on the remote objects; empty by default. An object that leaves it is let go, not deleted.
    pub selector: LabelSelector,
    /// Names of local secrets to copy to the remote; none by default. Each costs a watch of its own.
    pub secret_names: Vec<String>,
    /// Labels and annotations that go along with a secret; none by default, since what the remote's tools obey is the remote's to decide.
    pub secret_metadata: Vec<KeyPattern>,
    /// How the local object is deleted.
    pub propagation_policy: PropagationPolicy,
    /// What happens to labels and annotations.
    pub metadata: Metadata,
    /// Labels and annotations that [`Metadata::Merge`] does not copy to the local object; by default those of tools that track what
    /// they applied, and would treat the copy as theirs.
    pub metadata_exclude: Vec<KeyPattern>,
    /// What happens to a local object in the section's namespaces that has no remote object and was never ours.
    pub unclaimed: Unclaimed,
    /// What happens to a local object that existed before the remote object of its name, and that nothing proves to be
    /// ours. `always` by default: the remote is the source of truth.
    pub adopt: Adopt,
    /// Whether an adopted object is deleted with its remote object; `false` by default: it is released.
    pub delete_adopted: bool,
    /// Fields that belong to the local side: set when the object is created, then left alone. None by default.
    pub local_fields: Vec<SpecPointer>,
    /// Whether status, secrets, generations and rejections by the local cluster are written to the remote; `true` by default.
    /// Of several daemons that follow the same remote objects only one may.
    pub write_back: bool,
    /// Whose count of generations `observedGeneration` in the remote status is: [`ObservedGeneration::Copy`] by default, the local
    /// cluster's, which tools on the remote compare with the generation of another object.
    pub observed_generation: ObservedGeneration,
    /// Domain of all annotations and the finalizer; `cloud.teleport.dev` by default, for objects that Teleport's
    /// sync-controller manages already.
    pub annotation_domain: String,
    /// Name part of the finalizer; `sync-local` by default. Each daemon that follows the same remote objects needs its own.
    pub finalizer: String,
    /// Name parts of finalizers that it used before; none by default. They count as its own and are replaced.
    pub former_finalizers: Vec<String>,
    /// Plans are made and reported, nothing is written; `false` by default.
    pub dry_run: bool,
}

impl From<&SyncConfig> for Owner {
    fn from(config: &SyncConfig) -> Self {
        Self { section: config.name.clone(), read_only: config.dry_run }
    }
}

impl SyncConfig {
    /// A section with the default of every optional key.
    pub fn new(name: SectionName, remote: ClusterName, local: ClusterName, resource: ResourceId) -> Self {
        Self {
            name,
            remote,
            local,
            resource,
            remote_resource_suffix: String::new(),
            local_namespace_suffix: String::new(),
            namespace_prefix: String::new(),
            selector: LabelSelector::default(),
            secret_names: Vec::new(),
            secret_metadata: Vec::new(),
            propagation_policy: PropagationPolicy::Foreground,
            metadata: Metadata::Merge,
            metadata_exclude: TOOL_MARKS.map(KeyPattern::known).to_vec(),
            unclaimed: Unclaimed::Keep,
            adopt: Adopt::Always,
            delete_adopted: false,
            local_fields: Vec::new(),
            write_back: true,
            observed_generation: ObservedGeneration::Copy,
            annotation_domain: "cloud.teleport.dev".to_owned(),
            finalizer: "sync-local".to_owned(),
            former_finalizers: Vec::new(),
            dry_run: false,
        }
    }

    /// A warning about syncing this kind; `None` for most kinds.
    pub fn warning(&self) -> Option<&'static str> {
        let is_everything = self.namespace_prefix.is_empty() && self.remote_resource_suffix.is_empty();
        match self.resource.plural.as_str() {
            _ if !self.resource.group.is_empty() => None,
            "namespaces" => Some("deleting a namespace deletes everything in it"),
            "secrets" => Some(
                "secrets of the remote replace those of the local cluster, and everyone who may read them there sees them",
            ),
            "pods" => Some("controllers create and delete pods by themselves"),
            "configmaps" | "serviceaccounts" if is_everything => Some(
                "without a prefix, this includes objects that the clusters and their add-ons create for themselves",
            ),
            _ => None,
        }
    }

    /// Why this kind can't be synced; `None` for almost all kinds.
    pub fn objection(&self) -> Option<&'static str> {
        unsyncable(&self.resource.group, &self.resource.plural, !self.selector.as_str().is_empty())
    }

    /// The finalizer in full: `cloud.teleport.dev/sync-local`.
    pub fn finalizer_key(&self) -> String {
        format!("{}/{}", self.annotation_domain, self.finalizer)
    }

    /// The finalizers that it used before, in full.
    pub fn former_finalizer_keys(&self) -> Vec<String> {
        let names = self.former_finalizers.iter().filter(|name| **name != self.finalizer);
        names.map(|name| format!("{}/{name}", self.annotation_domain)).collect()
    }

    /// None if a required key has a fault. A fault of another key leaves its default in place.
    pub fn read(mut fields: Fields<'_>) -> Option<Self> {
        let name = fields.required("name");
        let remote = fields.required("remote");
        let local = fields.required("local");
        let resource = fields.required("resource");
        let complete = name.is_some() && remote.is_some() && local.is_some() && resource.is_some();
        let mut section = Self::new(
            name.unwrap_or_else(SectionName::stand_in),
            remote.unwrap_or_else(ClusterName::stand_in),
            local.unwrap_or_else(ClusterName::stand_in),
            resource.unwrap_or_else(ResourceId::stand_in),
        );
        fields.set_as::<ResourceSuffix, _>("remote_resource_suffix", &mut section.remote_resource_suffix);
        fields.set_as::<NamespaceSuffix, _>("local_namespace_suffix", &mut section.local_namespace_suffix);
        fields.set_as::<NamespacePrefix, _>("namespace_prefix", &mut section.namespace_prefix);
        fields.set("selector", &mut section.selector);
        if let Some(names) = fields.optional::<Vec<SecretName>>("secret_names") {
            section.secret_names = names.into_iter().map(String::from).collect();
        }
        fields.set("secret_metadata", &mut section.secret_metadata);
        fields.set("propagation_policy", &mut section.propagation_policy);
        fields.set("metadata", &mut section.metadata);
        fields.set("metadata_exclude", &mut section.metadata_exclude);
        fields.set("unclaimed", &mut section.unclaimed);
        fields.set("adopt", &mut section.adopt);
        fields.set("delete_adopted", &mut section.delete_adopted);
        fields.set("local_fields", &mut section.local_fields);
        fields.set("write_back", &mut section.write_back);
        fields.set("observed_generation", &mut section.observed_generation);
        fields.set_as::<Domain, _>("annotation_domain", &mut section.annotation_domain);
        fields.set_as::<FinalizerName, _>("finalizer", &mut section.finalizer);
        if let Some(names) = fields.optional::<Vec<FinalizerName>>("former_finalizers") {
            section.former_finalizers = names.into_iter().map(String::from).collect();
        }
        fields.set("dry_run", &mut section.dry_run);
        fields.finish();
        complete.then_some(section)
    }
}

/// How a local object is deleted; what Kubernetes calls the propagation policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropagationPolicy {
    /// Its dependents are deleted first. The default.
    Foreground,
    /// It is deleted first, its dependents afterwards.
    Background,
    /// Its dependents stay.
    Orphan,
}

impl PropagationPolicy {
    /// The value in the Kubernetes API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Foreground => "Foreground",
            Self::Background => "Background",
            Self::Orphan => "Orphan",
        }
    }
}

impl Setting for PropagationPolicy {
    const ALLOWED: &'static str = "Foreground, Background or Orphan";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        one_of(text, &[Self::Foreground, Self::Background, Self::Orphan].map(|policy| (policy.as_str(), policy)))
    }
}

/// What happens to `observedGeneration` in a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservedGeneration {
    /// It is copied: the count of the local cluster. The default.
    Copy,
    /// The generation of the remote object takes its place.
    Translate,
}

impl Setting for ObservedGeneration {
    const ALLOWED: &'static str = "copy or translate";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        one_of(text, &[("copy", Self::Copy), ("translate", Self::Translate)])
    }
}

/// What happens to labels and annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Those of the remote object are set on the local one, those that it drops are removed, and those of others stay. The
    /// default.
    Merge,
    /// The local object has those of the remote object and no others.
    Mirror,
}

impl Setting for Metadata {
    const ALLOWED: &'static str = "merge or mirror";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        one_of(text, &[("merge", Self::Merge), ("mirror", Self::Mirror)])
    }
}

/// What happens to a local object that has no remote object and was never ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclaimed {
    /// It is left alone. The default.
    Keep,
    /// It is deleted.
    Delete,
}

impl Setting for Unclaimed {
    const ALLOWED: &'static str = "keep or delete";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        one_of(text, &[("keep", Self::Keep), ("delete", Self::Delete)])
    }
}

/// What happens to a local object that existed before its remote one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopt {
    /// It is adopted. The default.
    Always,
    /// It is adopted if its content equals that of the remote object.
    Equal,
    /// The pair is left alone.
    Never,
}

impl Adopt {
    /// The value in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Equal => "equal",
            Self::Never => "never",
        }
    }
}

impl Setting for Adopt {
    const ALLOWED: &'static str = "always, equal or never";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        one_of(text, &[Self::Always, Self::Equal, Self::Never].map(|adopt| (adopt.as_str(), adopt)))
    }
}
