//! The Rust types from which the schemas of the OpenAPI document are generated.
//!
//! Optional fields are absent and never `null`, so no schema allows `null`: generators for OpenAPI 3.0 can read it too.

#![expect(dead_code, reason = "of these types only the schemas are used")]
#![expect(clippy::struct_field_names, reason = "fields have the names that clients see")]

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

/// What clients see of every document.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct SeenMetadata {
    /// The kind.
    kind: String,
    /// Assigned by the hub when the document is created.
    id: Uuid,
    /// Namespace: a DNS label.
    #[schema(max_length = 63)]
    namespace: String,
    /// Name: a DNS subdomain.
    #[schema(max_length = 253)]
    name: String,
    /// Version of the last change: a decimal number. `PUT` needs it, here or in `If-Match`.
    #[schema(pattern = "^[0-9]+$")]
    resource_version: String,
    /// 1, and one more with each change of own fields.
    #[schema(minimum = 1)]
    generation: i64,
    /// Labels, by which lists and watches select.
    labels: BTreeMap<String, String>,
    /// Annotations.
    annotations: BTreeMap<String, String>,
    /// What has to be removed before the document, once deleted, is gone.
    finalizers: Vec<String>,
    /// When it was created, by the database's clock.
    #[schema(format = "date-time")]
    created_at: String,
    /// When it was last changed.
    #[schema(format = "date-time")]
    updated_at: String,
    /// When its deletion was requested; absent unless it was.
    #[schema(nullable = false, format = "date-time")]
    deleted_at: Option<String>,
    /// Observed state; absent with `fields=metadata`.
    #[schema(nullable = false, required = false, value_type = Object, additional_properties)]
    status: Option<Map<String, Value>>,
}

/// What every document has in a request beside [`Which`].
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct SentMetadata {
    /// Labels; absent means none.
    #[schema(nullable = false)]
    labels: Option<BTreeMap<String, String>>,
    /// Annotations; absent means none.
    #[schema(nullable = false)]
    annotations: Option<BTreeMap<String, String>>,
    /// Finalizers; absent means unchanged.
    #[schema(nullable = false, max_items = 64)]
    finalizers: Option<Vec<String>>,
    /// Ignored.
    #[schema(nullable = false)]
    generation: Option<i64>,
    /// Ignored.
    #[schema(nullable = false)]
    created_at: Option<String>,
    /// Ignored.
    #[schema(nullable = false)]
    updated_at: Option<String>,
    /// Ignored.
    #[schema(nullable = false)]
    deleted_at: Option<String>,
    /// Ignored; `…/status` changes it.
    #[schema(nullable = false, required = false, value_type = Object, additional_properties)]
    status: Option<Map<String, Value>>,
}

/// A cluster, with a kubeconfig that leads to it. The kubeconfig is never shown.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct SeenCluster {
    /// Whether the cluster is left alone.
    #[schema(nullable = false)]
    paused: Option<bool>,
    /// The generation that set the kubeconfig.
    #[schema(nullable = false)]
    kubeconfig_generation: Option<i64>,
}

/// A cluster, with a kubeconfig that leads to it.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct SentCluster {
    /// Ignored.
    #[schema(nullable = false)]
    kubeconfig_generation: Option<i64>,
    /// Required by `POST`; otherwise absent means unchanged. It is stored sealed and never shown.
    #[schema(nullable = false)]
    kubeconfig: Option<String>,
    /// Whether the cluster is left alone.
    #[schema(nullable = false, default = false)]
    paused: Option<bool>,
}

/// Values that syncsets copy to clusters. The values are never shown.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct SeenSecret {
    /// Type of the secret.
    #[schema(nullable = false, rename = "type")]
    secret_type: Option<String>,
    /// Whether the copies on clusters can't be changed; absent means that they can.
    #[schema(nullable = false)]
    immutable: Option<bool>,
    /// Names of the values, sorted.
    #[schema(nullable = false)]
    keys: Option<Vec<String>>,
    /// The generation that set the values.
    #[schema(nullable = false)]
    data_generation: Option<i64>,
}

/// Values that syncsets copy to clusters.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct SentSecret {
    /// Ignored.
    #[schema(nullable = false)]
    data_generation: Option<i64>,
    /// Ignored.
    #[schema(nullable = false)]
    keys: Option<Vec<String>>,
    /// Type of the secret.
    #[schema(nullable = false, rename = "type", default = "Opaque")]
    secret_type: Option<String>,
    /// Whether the copies on clusters can't be changed, as in Kubernetes.
    #[schema(nullable = false, default = false)]
    immutable: Option<bool>,
    /// Base64 values by name; absent means unchanged. They are stored sealed and never shown.
    #[schema(nullable = false)]
    data: Option<BTreeMap<String, String>>,
}

/// Objects, patches and secrets for the clusters of its own namespace that it names.
#[derive(ToSchema)]
pub(super) struct SyncSetFields {
    /// What is applied, and to which clusters.
    #[schema(nullable = false)]
    spec: Option<SyncSetSpec>,
}

/// Objects, patches and secrets for the clusters that it selects by label.
#[derive(ToSchema)]
pub(super) struct SelectorSyncSetFields {
    /// What is applied, and to which clusters.
    #[schema(nullable = false)]
    spec: Option<SelectorSyncSetSpec>,
}

/// What was applied to a cluster: its status. The hub creates and deletes it with its cluster.
#[derive(ToSchema)]
pub(super) struct ClusterSyncFields {}

/// The names of clusters and of what they get.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct SyncSetSpec {
    /// Clusters of the same namespace.
    #[schema(nullable = false)]
    cluster_deployment_refs: Option<Vec<Reference>>,
    /// The same under another name.
    #[schema(nullable = false)]
    cluster_refs: Option<Vec<Reference>>,
}

/// The selector of clusters and what they get.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct SelectorSyncSetSpec {
    /// Selects clusters by label; empty selects all.
    #[schema(nullable = false)]
    cluster_deployment_selector: Option<LabelSelector>,
    /// The same under another name.
    #[schema(nullable = false)]
    cluster_selector: Option<LabelSelector>,
    /// Namespaces of the clusters: names, or prefixes that end in `*`; all by default. Required beside `secretMappings`.
    #[schema(nullable = false)]
    cluster_namespaces: Option<Vec<String>>,
}

/// What syncsets of both kinds have.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct SyncSetContent {
    /// How objects are written.
    #[schema(nullable = false)]
    apply_behavior: Option<ApplyBehavior>,
    /// Whether what is no longer wanted is deleted.
    #[schema(nullable = false)]
    resource_apply_mode: Option<ResourceApplyMode>,
    /// Whether string values of resources are templates.
    #[schema(nullable = false)]
    enable_resource_templates: Option<bool>,
    /// Whether patches are templates.
    #[schema(nullable = false)]
    enable_patch_templates: Option<bool>,
    /// Objects: manifests with `apiVersion`, `kind` and `metadata.name`. A core `Secret` has no values: `secretMappings` bring them.
    #[schema(nullable = false, max_items = 1000, value_type = Option<Vec<Object>>)]
    resources: Option<Vec<Value>>,
    /// Patches of objects that exist on the cluster.
    #[schema(nullable = false, max_items = 200)]
    patches: Option<Vec<Patch>>,
    /// Secrets that are copied to the cluster.
    #[schema(nullable = false, max_items = 200)]
    secret_mappings: Option<Vec<SecretMapping>>,
    /// Given, even if empty: whether what was applied works is read, and shown in each cluster's `ClusterSync`.
    #[schema(nullable = false)]
    health: Option<Health>,
    /// Given, even if empty: a change of the content reaches the clusters in waves.
    #[schema(nullable = false)]
    rollout: Option<Rollout>,
}

/// How the health of what a syncset sends is read.
#[derive(ToSchema)]
pub(super) struct Health {
    /// How long its objects may take to become current: a duration from `1m` to `24h`, by default `10m`.
    #[schema(nullable = false)]
    within: Option<String>,
    /// How objects of some kinds are assessed instead.
    #[schema(nullable = false, max_items = 20)]
    rules: Option<Vec<HealthRule>>,
}

/// When objects of a kind are current, by CEL expressions over `metadata`, `spec` and `status`.
#[derive(ToSchema)]
pub(super) struct HealthRule {
    /// API group; empty or left out for that of Pods.
    #[schema(nullable = false)]
    group: Option<String>,
    /// Kind, not `Secret`. There is one rule for a kind.
    kind: String,
    /// When an object is current.
    #[schema(max_length = 1024)]
    current: String,
    /// When an object has failed; asked first.
    #[schema(nullable = false, max_length = 1024)]
    failed: Option<String>,
}

/// In which waves a change of a syncset's content reaches its clusters.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct Rollout {
    /// The waves, in their order. Clusters that are in none are in a last one, `rest`.
    #[schema(nullable = false, max_items = 20)]
    waves: Option<Vec<RolloutWave>>,
    /// How many clusters of a wave change at the same time: a number, or a percentage such as `10%`, which is the default.
    #[schema(nullable = false)]
    max_concurrent: Option<Value>,
    /// How many clusters of a wave may fail before the rollout stops: a number, by default 0, or a percentage such as `5%`.
    #[schema(nullable = false)]
    max_failures: Option<Value>,
    /// What happens when more fail.
    #[schema(nullable = false)]
    on_failure: Option<OnFailure>,
}

/// Some of a syncset's clusters: with `clusterSelector` or `percent`.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct RolloutWave {
    /// Its name: a DNS label that no other wave has, and not `rest`.
    #[schema(max_length = 63)]
    name: String,
    /// The clusters with these labels that are in no earlier wave.
    #[schema(nullable = false)]
    cluster_selector: Option<LabelSelector>,
    /// So much of all clusters is in this wave or an earlier one.
    #[schema(nullable = false, minimum = 1, maximum = 100)]
    percent: Option<i32>,
    /// How long its clusters are watched before the next wave begins: a duration from `0s`, the default, to `30d`.
    #[schema(nullable = false)]
    soak: Option<String>,
    /// Whether the next wave waits until somebody promotes the rollout.
    #[schema(nullable = false, default = false)]
    pause: Option<bool>,
}

/// What happens when more clusters fail than may.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum OnFailure {
    Pause,
    Rollback,
}

/// A name.
#[derive(ToSchema)]
pub(super) struct Reference {
    /// Name.
    name: String,
}

/// A label selector as in Kubernetes.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct LabelSelector {
    /// Labels that must have these values.
    #[schema(nullable = false)]
    match_labels: Option<BTreeMap<String, String>>,
    /// Further requirements.
    #[schema(nullable = false)]
    match_expressions: Option<Vec<MatchExpression>>,
}

/// A requirement of a selector.
#[derive(ToSchema)]
pub(super) struct MatchExpression {
    /// The label's key.
    key: String,
    /// What is required.
    operator: Operator,
    /// The values of `In` and `NotIn`.
    #[schema(nullable = false)]
    values: Option<Vec<String>>,
}

/// What is required of a label.
#[derive(ToSchema)]
pub(super) enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// How objects are written.
#[derive(ToSchema)]
pub(super) enum ApplyBehavior {
    Apply,
    CreateOnly,
    CreateOrUpdate,
}

/// Whether what is no longer wanted is deleted.
#[derive(ToSchema)]
pub(super) enum ResourceApplyMode {
    Upsert,
    Sync,
}

/// A patch of an object that exists on the cluster.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct Patch {
    /// Its API version.
    api_version: String,
    /// Its kind.
    kind: String,
    /// Its name.
    name: String,
    /// Its namespace.
    #[schema(nullable = false)]
    namespace: Option<String>,
    /// How the patch is written.
    #[schema(nullable = false)]
    patch_type: Option<PatchType>,
    /// The patch, in JSON or YAML.
    patch: String,
}

/// How a patch is written.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum PatchType {
    Strategic,
    Merge,
    Json,
}

/// A secret that is copied to the cluster.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct SecretMapping {
    /// The secret on the hub.
    source_ref: SecretReference,
    /// The secret on the cluster.
    target_ref: SecretReference,
    /// Its labels and annotations that the copy gets: keys, prefixes with `*`, or key and value (`key=value`). Without it, none.
    #[schema(nullable = false)]
    secret_metadata: Option<Vec<String>>,
}

/// A secret.
#[derive(ToSchema)]
pub(super) struct SecretReference {
    /// Its name.
    name: String,
    /// Its namespace. A syncset's source is in the syncset's own.
    #[schema(nullable = false)]
    namespace: Option<String>,
}

/// A request for the status.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct StatusRequest {
    /// The document must have this version.
    #[schema(nullable = false)]
    resource_version: Option<String>,
    /// The observed state, which replaces the present one.
    #[schema(value_type = Object, additional_properties)]
    status: Map<String, Value>,
}

/// Which document is meant, and which version of it.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct Which {
    /// Must fit the path.
    #[schema(nullable = false)]
    kind: Option<String>,
    /// Must be the document's; `POST` ignores it.
    #[schema(nullable = false)]
    id: Option<String>,
    /// Namespace: a DNS label. Required by `POST`; otherwise it must equal the path.
    #[schema(nullable = false)]
    namespace: Option<String>,
    /// Name: a DNS subdomain. Required by `POST`; otherwise it must equal the path.
    #[schema(nullable = false)]
    name: Option<String>,
    /// The document must have this version; `POST` ignores it.
    #[schema(nullable = false)]
    resource_version: Option<String>,
}

/// An operation of a JSON patch (RFC 6902).
#[derive(ToSchema)]
pub(super) struct JsonPatchOperation {
    /// What it does.
    op: JsonPatchOp,
    /// The place: a JSON pointer, which is not empty.
    #[schema(min_length = 1)]
    path: String,
    /// Where `copy` and `move` find the value: a JSON pointer, which is not empty.
    #[schema(nullable = false, min_length = 1)]
    from: Option<String>,
    /// The value of `add`, `replace` and `test`.
    #[schema(nullable = false)]
    value: Option<Value>,
}

/// What an operation of a JSON patch does.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum JsonPatchOp {
    Add,
    Remove,
    Replace,
    Move,
    Copy,
    Test,
}

/// What a watch tells.
#[derive(ToSchema)]
#[schema(rename_all = "UPPERCASE")]
pub(super) enum EventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// How far a watch has come: it has sent all changes up to this version.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct Bookmark {
    /// The kind of the documents.
    kind: String,
    /// The version, from which a client can resume.
    #[schema(pattern = "^[0-9]+$")]
    resource_version: String,
    /// `k8s.io/initial-events-end`: `true` after the present documents.
    #[schema(nullable = false)]
    annotations: Option<BTreeMap<String, String>>,
}

/// What became of the documents of an apply, in their order.
#[derive(ToSchema)]
pub(super) struct Applied {
    /// One for each document.
    items: Vec<AppliedDocument>,
}

/// What became of a document of an apply.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct AppliedDocument {
    /// Its kind.
    #[schema(nullable = false)]
    kind: Option<String>,
    /// Its namespace.
    #[schema(nullable = false)]
    namespace: Option<String>,
    /// Its name.
    #[schema(nullable = false)]
    name: Option<String>,
    /// What became of it.
    result: AppliedResult,
    /// Its version now.
    #[schema(nullable = false)]
    resource_version: Option<String>,
    /// Why it was not applied.
    #[schema(nullable = false)]
    problem: Option<Problem>,
}

/// What became of a document.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum AppliedResult {
    Created,
    Configured,
    Unchanged,
    Failed,
}

/// Why a request was not carried out (RFC 9457).
#[derive(ToSchema)]
pub(super) struct Problem {
    /// The kind of problem: `urn:towline:problem:` and a word.
    #[schema(pattern = "^urn:towline:problem:[a-z-]+$")]
    r#type: String,
    /// What is wrong.
    title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: i32,
    /// Each single fault of a document.
    #[schema(nullable = false)]
    errors: Option<Vec<Fault>>,
}

/// A fault at one place of a document.
#[derive(ToSchema)]
pub(super) struct Fault {
    /// The place: a JSON pointer.
    pointer: String,
    /// What is there.
    found: String,
    /// What may be there.
    #[schema(nullable = false)]
    allowed: Option<String>,
    /// What was probably meant.
    #[schema(nullable = false)]
    suggestion: Option<String>,
}
