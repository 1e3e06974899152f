//! The schemas of requests and answers, generated from the Rust types below.
//!
//! A document is flat: what all kinds have, and a kind's own fields. So a kind's schema is put together from those of two
//! types. Optional fields are absent and never `null`, so no schema allows `null`: generators for OpenAPI 3.0 can read it too.

#![expect(dead_code, reason = "of these types only the schemas are used")]
#![expect(clippy::struct_field_names, reason = "fields have the names that clients see")]

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use utoipa::openapi::schema::{AdditionalProperties, Array, ComponentsBuilder, Object, ObjectBuilder, Schema, Type};
use utoipa::openapi::{Components, Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use crate::documents::Kind;

/// Labels, annotations, or the values of a secret.
type Texts = BTreeMap<String, String>;

/// What clients see of every document.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
struct SeenMetadata {
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
    labels: Texts,
    /// Annotations.
    annotations: Texts,
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
    #[schema(nullable = false, value_type = Object, additional_properties)]
    status: Option<Map<String, Value>>,
}

/// What every document has in a request beside [`Which`].
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
struct SentMetadata {
    /// Labels; absent means none.
    #[schema(nullable = false)]
    labels: Option<Texts>,
    /// Annotations; absent means none.
    #[schema(nullable = false)]
    annotations: Option<Texts>,
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
    #[schema(nullable = false, value_type = Object, additional_properties)]
    status: Option<Map<String, Value>>,
}

/// A cluster, with a kubeconfig that leads to it. The kubeconfig is never shown.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
struct SeenCluster {
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
struct SentCluster {
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
struct SeenSecret {
    /// Type of the secret.
    #[schema(nullable = false, rename = "type")]
    secret_type: Option<String>,
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
struct SentSecret {
    /// Ignored.
    #[schema(nullable = false)]
    data_generation: Option<i64>,
    /// Ignored.
    #[schema(nullable = false)]
    keys: Option<Vec<String>>,
    /// Type of the secret.
    #[schema(nullable = false, rename = "type", default = "Opaque")]
    secret_type: Option<String>,
    /// Base64 values by name; absent means unchanged. They are stored sealed and never shown.
    #[schema(nullable = false)]
    data: Option<Texts>,
}

/// Objects, patches and secrets for the clusters of its own namespace that it names.
#[derive(ToSchema)]
struct SyncSetFields {
    /// What is applied, and to which clusters.
    #[schema(nullable = false)]
    spec: Option<SyncSetSpec>,
}

/// Objects, patches and secrets for the clusters that it selects by label.
#[derive(ToSchema)]
struct SelectorSyncSetFields {
    /// What is applied, and to which clusters.
    #[schema(nullable = false)]
    spec: Option<SelectorSyncSetSpec>,
}

/// What was applied to a cluster: its status. The hub creates and deletes it with its cluster.
#[derive(ToSchema)]
struct ClusterSyncFields {}

/// The names of clusters and of what they get.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
struct SyncSetSpec {
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
struct SelectorSyncSetSpec {
    /// Selects clusters by label; empty selects all.
    #[schema(nullable = false)]
    cluster_deployment_selector: Option<LabelSelector>,
    /// The same under another name.
    #[schema(nullable = false)]
    cluster_selector: Option<LabelSelector>,
    /// Namespaces of the clusters: names, or prefixes that end in `*`.
    #[schema(nullable = false)]
    cluster_namespaces: Option<Vec<String>>,
}

/// What syncsets of both kinds have.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
struct SyncSetContent {
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
    /// Objects: manifests with `apiVersion`, `kind` and `metadata.name`.
    #[schema(nullable = false, max_items = 1000, value_type = Option<Vec<Object>>)]
    resources: Option<Vec<Value>>,
    /// Patches of objects that exist on the cluster.
    #[schema(nullable = false, max_items = 200)]
    patches: Option<Vec<Patch>>,
    /// Secrets that are copied to the cluster.
    #[schema(nullable = false, max_items = 200)]
    secret_mappings: Option<Vec<SecretMapping>>,
}

/// A name.
#[derive(ToSchema)]
struct Reference {
    /// Name.
    name: String,
}

/// A label selector as in Kubernetes.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
struct LabelSelector {
    /// Labels that must have these values.
    #[schema(nullable = false)]
    match_labels: Option<Texts>,
    /// Further requirements.
    #[schema(nullable = false)]
    match_expressions: Option<Vec<MatchExpression>>,
}

/// A requirement of a selector.
#[derive(ToSchema)]
struct MatchExpression {
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
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// How objects are written.
#[derive(ToSchema)]
enum ApplyBehavior {
    Apply,
    CreateOnly,
    CreateOrUpdate,
}

/// Whether what is no longer wanted is deleted.
#[derive(ToSchema)]
enum ResourceApplyMode {
    Upsert,
    Sync,
}

/// A patch of an object that exists on the cluster.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
struct Patch {
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
enum PatchType {
    Strategic,
    Merge,
    Json,
}

/// A secret that is copied to the cluster.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
struct SecretMapping {
    /// The secret on the hub.
    source_ref: SecretReference,
    /// The secret on the cluster.
    target_ref: SecretReference,
}

/// A secret.
#[derive(ToSchema)]
struct SecretReference {
    /// Its name.
    name: String,
    /// Its namespace. A syncset's source is in the syncset's own.
    #[schema(nullable = false)]
    namespace: Option<String>,
}

/// A request for the status.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
struct StatusRequest {
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
struct Which {
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

/// What became of the documents of an apply, in their order.
#[derive(ToSchema)]
struct Applied {
    /// One for each document.
    items: Vec<AppliedDocument>,
}

/// What became of a document of an apply.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
struct AppliedDocument {
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
enum AppliedResult {
    Created,
    Configured,
    Unchanged,
    Failed,
}

/// Why a request was not carried out (RFC 9457).
#[derive(ToSchema)]
struct Problem {
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
struct Fault {
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

/// The name of the schema that clients see of a kind: `Cluster`.
pub(super) fn seen(kind: Kind) -> String {
    kind.name().to_owned()
}

/// The name of the schema of a page of a kind's documents.
pub(super) fn list(kind: Kind) -> String {
    format!("{kind}List")
}

/// The name of the schema that clients send in `POST`.
pub(super) fn created(kind: Kind) -> String {
    format!("{kind}Create")
}

/// The name of the schema that clients send in `PUT`.
pub(super) fn replaced(kind: Kind) -> String {
    format!("{kind}Replace")
}

/// The name of the schema of problems.
pub(super) const PROBLEM: &str = "Problem";
/// The name of the schema of the body of a DELETE.
pub(super) const WHICH: &str = "Which";
/// The name of the schema of the answer to an apply.
pub(super) const APPLIED: &str = "Applied";
/// The name of the schema that `…/status` accepts.
pub(super) const STATUS: &str = "StatusRequest";

/// All schemas by name.
pub(super) fn all() -> Components {
    let mut schemas: Vec<(String, RefOr<Schema>)> = Vec::new();
    for kind in Kind::ALL {
        schemas.push((seen(kind), document(SeenMetadata::schema(), seen_fields(kind), kind, &[])));
        schemas.push((list(kind), RefOr::T(Schema::Object(page(kind)))));
        if let Some(fields) = sent_fields(kind) {
            let mut required = vec!["name"];
            required.extend(kind.is_namespaced().then_some("namespace"));
            required.extend((kind == Kind::Cluster).then_some("kubeconfig"));
            schemas.push((created(kind), document(sent_metadata(), fields.clone(), kind, &required)));
            schemas.push((replaced(kind), document(sent_metadata(), fields, kind, &[])));
        }
    }
    schemas.push(("SyncSetSpec".to_owned(), merged(SyncSetSpec::schema(), SyncSetContent::schema())));
    schemas.push(("SelectorSyncSetSpec".to_owned(), merged(SelectorSyncSetSpec::schema(), SyncSetContent::schema())));
    schemas.push((PROBLEM.to_owned(), Problem::schema()));
    schemas.push((STATUS.to_owned(), StatusRequest::schema()));
    schemas.push((WHICH.to_owned(), Which::schema()));
    schemas.push((APPLIED.to_owned(), Applied::schema()));
    // Those that the others refer to.
    SyncSetSpec::schemas(&mut schemas);
    SelectorSyncSetSpec::schemas(&mut schemas);
    SyncSetContent::schemas(&mut schemas);
    Applied::schemas(&mut schemas);
    schemas.into_iter().fold(ComponentsBuilder::new(), |all, (name, schema)| all.schema(name, schema)).build()
}

/// What every document has in a request.
fn sent_metadata() -> RefOr<Schema> {
    merged(Which::schema(), SentMetadata::schema())
}

/// The own fields that clients see.
fn seen_fields(kind: Kind) -> RefOr<Schema> {
    match kind {
        Kind::Cluster => SeenCluster::schema(),
        Kind::SyncSet => SyncSetFields::schema(),
        Kind::SelectorSyncSet => SelectorSyncSetFields::schema(),
        Kind::Secret => SeenSecret::schema(),
        Kind::ClusterSync => ClusterSyncFields::schema(),
    }
}

/// The own fields that clients send; none of a kind that they don't write.
fn sent_fields(kind: Kind) -> Option<RefOr<Schema>> {
    match kind {
        Kind::Cluster => Some(SentCluster::schema()),
        Kind::Secret => Some(SentSecret::schema()),
        Kind::SyncSet | Kind::SelectorSyncSet => Some(seen_fields(kind)),
        Kind::ClusterSync => None,
    }
}

/// A document: what all kinds have, and its own fields.
fn document(metadata: RefOr<Schema>, own: RefOr<Schema>, kind: Kind, required: &[&str]) -> RefOr<Schema> {
    let mut schema = merged(own, metadata);
    if let RefOr::T(Schema::Object(object)) = &mut schema {
        if !kind.is_namespaced() {
            object.properties.remove("namespace");
            object.required.retain(|field| field != "namespace");
        }
        object.required.extend(required.iter().map(|field| (*field).to_owned()));
        object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
    }
    schema
}

/// The first schema with the fields of both.
fn merged(first: RefOr<Schema>, second: RefOr<Schema>) -> RefOr<Schema> {
    match (first, second) {
        (RefOr::T(Schema::Object(mut first)), RefOr::T(Schema::Object(second))) => {
            first.properties.extend(second.properties);
            first.required.extend(second.required);
            RefOr::T(Schema::Object(first))
        }
        // A type with named fields has an object as its schema.
        (first, _) => first,
    }
}

fn page(kind: Kind) -> Object {
    let version = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[0-9]+$"))
        .description(Some("The version whose state all pages of this list show."));
    let next = ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some("The parameter `continue` of the next page; absent on the last one."));
    ObjectBuilder::new()
        .description(Some("A page of a list, sorted by namespace and name."))
        .property("resourceVersion", version)
        .property("items", Array::new(Ref::from_schema_name(seen(kind))))
        .property("continue", next)
        .required("resourceVersion")
        .required("items")
        .build()
}
