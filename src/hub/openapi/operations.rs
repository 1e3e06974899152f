//! The operations of the API, as the OpenAPI document describes them.

use http::Method;
use utoipa::openapi::path::PathsBuilder;
use utoipa::openapi::path::{Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{AdditionalProperties, Array, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Content, Header, HttpMethod, PathItem, Paths, Ref, Required, ResponseBuilder};

use super::schemas;
use crate::documents::Kind;
use crate::hub::api::routes::{self, Action, operations};

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROBLEM_JSON: &str = "application/problem+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

/// Problems that any request with a token can have.
const ALWAYS: [(&str, &str); 5] = [
    ("400", "The request can't be read, or a parameter is wrong"),
    ("401", "No token, or an unknown one"),
    ("403", "The token does not allow this"),
    ("429", "Too much is under way; see Retry-After"),
    ("503", "The database does not answer; see Retry-After"),
];
const NOT_FOUND: (&str, &str) = ("404", "There is no such document");
const GONE: (&str, &str) = ("410", "The version is no longer available");
const BODY: [(&str, &str); 3] = [
    ("413", "The document is too large"),
    ("415", "The media type or the encoding is not accepted"),
    ("422", "The document is not valid"),
];
const PRECONDITIONS: [(&str, &str); 2] = [
    ("409", "The document has another version or id, or an operation `test` failed"),
    ("412", "`If-Match` does not hold"),
];

/// All operations of the API, and this document.
pub(super) fn all() -> Paths {
    let document = PathItem::new(HttpMethod::Get, openapi());
    operations()
        .iter()
        .fold(PathsBuilder::new(), |paths, operation| {
            paths.path(&operation.path, PathItem::new(method(&operation.method), describe(operation)))
        })
        .path("/openapi.json", document)
        .build()
}

fn describe(operation: &routes::Operation) -> Operation {
    // Only apply is of no kind.
    let Some(kind) = operation.kind else { return apply() };
    match operation.action {
        Action::List => list(kind),
        Action::Create => create(kind),
        Action::Read => get(kind),
        Action::Replace => replace(kind),
        Action::Patch => patch(kind, ""),
        Action::Delete => delete(kind),
        Action::ReplaceStatus => replace_status(kind),
        Action::PatchStatus => patch(kind, "Status"),
        Action::Apply => apply(),
    }
}

fn method(method: &Method) -> HttpMethod {
    match *method {
        Method::POST => HttpMethod::Post,
        Method::PUT => HttpMethod::Put,
        Method::PATCH => HttpMethod::Patch,
        Method::DELETE => HttpMethod::Delete,
        _ => HttpMethod::Get,
    }
}

fn list(kind: Kind) -> Operation {
    let events = Content::new(Some(text().description(Some(
        "An event a line, each `{\"type\": ADDED | MODIFIED | DELETED | BOOKMARK | ERROR, \"object\": …}`",
    ))));
    let page = ResponseBuilder::new()
        .description("A page of the list; with `watch=true` a stream of events")
        .content(JSON, of_schema(&schemas::list(kind)))
        .content("application/x-ndjson", events.clone())
        .content("text/event-stream", events);
    let mut operation = operation(kind, "list", "", "List documents, or watch them with `watch=true`");
    if kind.is_namespaced() {
        operation = operation.parameter(query("namespace", text(), "Only this namespace"));
    }
    operation = operation
        .parameter(query("labelSelector", text(), "Only documents whose labels match, as in Kubernetes"))
        .parameter(query("fieldSelector", text(), "`metadata.name=…` or `metadata.namespace=…`"))
        .parameter(query("limit", integer(1, 1000), "Most items of a page; 500 by default"))
        .parameter(query("continue", text(), "The next page, by the answer of the one before"))
        .parameter(query("fields", words(&["metadata"]), "`metadata`: neither own fields nor status"))
        .parameter(query("watch", boolean(), "Stream changes instead of a list"))
        .parameter(query("resourceVersion", text(), "With watch: changes after this version"))
        .parameter(query("timeoutSeconds", integer(1, 3_600), "With watch: when it ends"))
        .response("200", page);
    problems(operation, &[GONE]).build()
}

fn create(kind: Kind) -> Operation {
    let answer = document(kind, "The new document")
        .header("ETag", Header::new(text()))
        .header("Location", Header::new(text().description(Some("The path of the document"))));
    let operation = operation(kind, "create", "", "Create a document")
        .parameter(dry_run())
        .request_body(Some(body(&schemas::created(kind))))
        .response("201", answer)
        .response("200", document(kind, "With `dryRun=true`: the document that would be created"))
        .response("409", problem("A document of this name exists"))
        .response("412", problem("A new document fulfils no `If-Match`"));
    problems(operation, &BODY).build()
}

fn get(kind: Kind) -> Operation {
    let operation = operation(kind, "get", "", "Read a document")
        .parameters(Some(path(kind)))
        .parameter(header("If-None-Match", "304 if the document still has this ETag"))
        .response("200", with_etag(document(kind, "The document")))
        .response("304", with_etag(ResponseBuilder::new().description("The document has this ETag")));
    problems(operation, &[NOT_FOUND]).build()
}

fn replace(kind: Kind) -> Operation {
    let about = "Replace own fields, labels and annotations; needs the version in `If-Match` or in the body";
    let operation = operation(kind, "replace", "", about)
        .parameters(Some(path(kind)))
        .parameter(dry_run())
        .parameter(if_match())
        .request_body(Some(body(&schemas::replaced(kind))))
        .response("200", with_etag(document(kind, "The document as it is now")))
        .response("428", problem("Neither `If-Match` nor `resourceVersion`"));
    problems(problems(problems(operation, &[NOT_FOUND]), &BODY), &PRECONDITIONS).build()
}

fn patch(kind: Kind, part: &str) -> Operation {
    let about =
        if part.is_empty() { "Change parts of a document" } else { "Change parts of the status; needs role `admin`" };
    let operations = Array::new(ObjectBuilder::new().schema_type(Type::Object));
    let patch = RequestBodyBuilder::new()
        .required(Some(Required::True))
        .content(MERGE_PATCH, Content::new(Some(free_form())))
        .content(JSON_PATCH, Content::new(Some(Schema::Array(operations))))
        .build();
    let operation = operation(kind, "patch", part, about)
        .parameters(Some(path(kind)))
        .parameter(dry_run())
        .parameter(if_match())
        .request_body(Some(patch))
        .response("200", with_etag(document(kind, "The document as it is now")));
    problems(problems(problems(operation, &[NOT_FOUND]), &BODY), &PRECONDITIONS).build()
}

fn delete(kind: Kind) -> Operation {
    let which = RequestBodyBuilder::new()
        .description(Some("Which document is meant, and which version of it"))
        .content(JSON, of_schema(schemas::WHICH))
        .build();
    let operation = operation(kind, "delete", "", "Delete a document")
        .parameters(Some(path(kind)))
        .parameter(dry_run())
        .parameter(if_match())
        .request_body(Some(which))
        .response("200", document(kind, "It is gone; this was its last state"))
        .response("202", document(kind, "It is gone when its finalizers have been removed"));
    problems(problems(problems(operation, &[NOT_FOUND]), &BODY), &PRECONDITIONS).build()
}

fn replace_status(kind: Kind) -> Operation {
    let operation = operation(kind, "replace", "Status", "Replace the status; needs role `admin`")
        .parameters(Some(path(kind)))
        .parameter(dry_run())
        .parameter(if_match())
        .request_body(Some(body(schemas::STATUS)))
        .response("200", with_etag(document(kind, "The document as it is now")))
        .response("428", problem("Neither `If-Match` nor `resourceVersion`"));
    problems(problems(problems(operation, &[NOT_FOUND]), &BODY), &PRECONDITIONS).build()
}

fn apply() -> Operation {
    let documents = RequestBodyBuilder::new()
        .required(Some(Required::True))
        .description(Some("Up to 1,000 documents, also manifests of Hive's kinds"))
        .content(JSON, Content::new(Some(ObjectBuilder::new().schema_type(SchemaType::AnyValue))))
        .content(YAML, Content::new(Some(text())))
        .build();
    let results = ResponseBuilder::new()
        .description("For each document: created, configured, unchanged, or a problem")
        .content(JSON, of_schema(schemas::APPLIED));
    let operation = OperationBuilder::new()
        .operation_id(Some("apply"))
        .tag("apply")
        .summary(Some("Create or change documents; each by itself, in their order"))
        .parameter(dry_run())
        .request_body(Some(documents))
        .response("200", results);
    problems(problems(operation, &ALWAYS), &BODY).build()
}

fn openapi() -> Operation {
    let document = ResponseBuilder::new().description("OpenAPI 3.1").content(JSON, Content::new(Some(free_form())));
    OperationBuilder::new()
        .operation_id(Some("openapi"))
        .summary(Some("This document"))
        .securities(Some([utoipa::openapi::SecurityRequirement::default()]))
        .response("200", document)
        .build()
}

/// An operation on a kind: `listClusters`, `getCluster`, `patchClusterStatus`.
fn operation(kind: Kind, verb: &str, part: &str, summary: &str) -> OperationBuilder {
    let plural = if verb == "list" { "s" } else { "" };
    let operation = OperationBuilder::new()
        .operation_id(Some(format!("{verb}{kind}{plural}{part}")))
        .tag(kind.plural())
        .summary(Some(summary));
    problems(operation, &ALWAYS)
}

fn problems(operation: OperationBuilder, statuses: &[(&str, &str)]) -> OperationBuilder {
    statuses.iter().fold(operation, |operation, (status, about)| operation.response(*status, problem(about)))
}

fn problem(about: &str) -> ResponseBuilder {
    ResponseBuilder::new().description(about).content(PROBLEM_JSON, of_schema(schemas::PROBLEM))
}

fn document(kind: Kind, about: &str) -> ResponseBuilder {
    ResponseBuilder::new().description(about).content(JSON, of_schema(&schemas::seen(kind)))
}

fn with_etag(answer: ResponseBuilder) -> ResponseBuilder {
    answer.header("ETag", Header::new(text().description(Some("The resourceVersion in quotes"))))
}

fn body(schema: &str) -> RequestBody {
    RequestBodyBuilder::new().required(Some(Required::True)).content(JSON, of_schema(schema)).build()
}

fn of_schema(name: &str) -> Content {
    Content::new(Some(Ref::from_schema_name(name)))
}

/// The parameters in the path of a document.
fn path(kind: Kind) -> Vec<Parameter> {
    let name = |name: &str, about: &str| {
        let builder = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
        builder.description(Some(about)).schema(Some(text())).build()
    };
    let namespace = kind.is_namespaced().then(|| name("namespace", "Namespace"));
    namespace.into_iter().chain([name("name", "Name")]).collect()
}

fn query(name: &str, schema: ObjectBuilder, about: &str) -> ParameterBuilder {
    parameter(name, ParameterIn::Query, schema, about)
}

fn header(name: &str, about: &str) -> ParameterBuilder {
    parameter(name, ParameterIn::Header, text(), about)
}

fn parameter(name: &str, place: ParameterIn, schema: ObjectBuilder, about: &str) -> ParameterBuilder {
    let builder = ParameterBuilder::new().name(name).parameter_in(place).required(Required::False);
    builder.description(Some(about)).schema(Some(schema))
}

fn dry_run() -> ParameterBuilder {
    query("dryRun", boolean(), "All checks, and nothing is written")
}

fn if_match() -> ParameterBuilder {
    header("If-Match", "The document must have this ETag")
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn boolean() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Boolean)
}

fn integer(least: i64, most: i64) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).maximum(Some(most))
}

fn words(words: &[&str]) -> ObjectBuilder {
    text().enum_values(Some(words.iter().copied()))
}

fn free_form() -> ObjectBuilder {
    let any = AdditionalProperties::FreeForm(true);
    ObjectBuilder::new().schema_type(Type::Object).additional_properties(Some(any))
}
