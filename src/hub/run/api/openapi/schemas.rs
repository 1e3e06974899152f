//! The schemas of requests and answers, put together from those of the Rust types in `types`.
//!
//! A document is flat: what all kinds have, and a kind's own fields. So a kind's schema is put together from those of two types.

use std::sync::Arc;

use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ComponentsBuilder, Object, ObjectBuilder, OneOfBuilder, Schema, Type,
};
use utoipa::openapi::{Components, Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::types::{
    Applied, Bookmark, ClusterSyncFields, EventType, JsonPatchOperation, Problem, SeenCluster, SeenMetadata,
    SeenSecret, SelectorSyncSetFields, SelectorSyncSetSpec, SentCluster, SentMetadata, SentSecret, StatusRequest,
    SyncSetContent, SyncSetFields, SyncSetSpec, Which,
};
use crate::documents::Kind;
use crate::job::routes::ApiRoute;

/// The name of the schema that clients see of a kind: `Cluster`.
pub(super) fn seen(kind: Kind) -> String {
    kind.name().to_owned()
}

/// The name of the schema of a page of a kind's documents.
pub(super) fn list(kind: Kind) -> String {
    format!("{kind}List")
}

/// The name of the schema of an event of a watch.
pub(super) fn event(kind: Kind) -> String {
    format!("{kind}Event")
}

/// The name of the schema that clients send in `POST`.
pub(super) fn created(kind: Kind) -> String {
    format!("{kind}Create")
}

/// The name of the schema that clients send in `PUT`.
pub(super) fn replaced(kind: Kind) -> String {
    format!("{kind}Replace")
}

pub(super) const PROBLEM: &str = "Problem";
/// The name of the schema of the body of a DELETE.
pub(super) const WHICH: &str = "Which";
pub(super) const PATCH_OPERATION: &str = "JsonPatchOperation";
const BOOKMARK: &str = "Bookmark";
const EVENT_TYPE: &str = "EventType";
pub(super) const APPLIED: &str = "Applied";
/// The name of the schema that `…/status` accepts.
pub(super) const STATUS: &str = "StatusRequest";

/// All schemas by name, with those of the routes of other jobs.
pub(super) fn all(mounted: &[Arc<ApiRoute>]) -> Components {
    let mut schemas: Vec<(String, RefOr<Schema>)> = Vec::new();
    for kind in Kind::ALL {
        schemas.push((seen(kind), document(SeenMetadata::schema(), seen_fields(kind), kind, &[])));
        schemas.push((list(kind), RefOr::T(Schema::Object(page(kind)))));
        schemas.push((event(kind), RefOr::T(Schema::Object(line(kind)))));
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
    schemas.push((PATCH_OPERATION.to_owned(), JsonPatchOperation::schema()));
    schemas.push((BOOKMARK.to_owned(), closed(Bookmark::schema())));
    schemas.push((EVENT_TYPE.to_owned(), EventType::schema()));
    // Those that the others refer to.
    SyncSetSpec::schemas(&mut schemas);
    SelectorSyncSetSpec::schemas(&mut schemas);
    SyncSetContent::schemas(&mut schemas);
    Applied::schemas(&mut schemas);
    JsonPatchOperation::schemas(&mut schemas);
    let of_routes = mounted.iter().flat_map(|route| [Some(&route.answer), route.body.as_ref()]).flatten();
    schemas.extend(of_routes.flat_map(|schema| schema.schemas.iter().cloned()));
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
    }
    closed(schema)
}

/// The same with no other fields.
fn closed(mut schema: RefOr<Schema>) -> RefOr<Schema> {
    if let RefOr::T(Schema::Object(object)) = &mut schema {
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
        .property(
            "items",
            ArrayBuilder::new().items(Ref::from_schema_name(seen(kind))).description(Some("The documents.")),
        )
        .property("continue", next)
        .required("resourceVersion")
        .required("items")
        .build()
}

fn line(kind: Kind) -> Object {
    let object = OneOfBuilder::new()
        .description(Some("A document, a bookmark, or a problem, by `type`."))
        .item(Ref::from_schema_name(seen(kind)))
        .item(Ref::from_schema_name(BOOKMARK))
        .item(Ref::from_schema_name(PROBLEM));
    ObjectBuilder::new()
        .description(Some("An event: a line of a watch."))
        .property("type", Ref::from_schema_name(EVENT_TYPE))
        .property("object", object)
        .required("type")
        .required("object")
        .build()
}
