//! The operations of the API, as the OpenAPI document describes them: what the table `contract` says of each, in words.

use std::sync::Arc;

use http::{Method, StatusCode};
use utoipa::openapi::path::PathsBuilder;
use utoipa::openapi::path::{Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{AdditionalProperties, Array, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Content, Header, HttpMethod, PathItem, Paths, Ref, Required, Response, ResponseBuilder};

use super::schemas;
use crate::documents::{Kind, ProblemKind};
use crate::hub::run::api::contract::{DOCUMENTS, JSON, LINES, SERVER_SENT_EVENTS, Success, problems_of_mounted};
use crate::hub::run::api::media::Media;
use crate::hub::run::api::routes;
use crate::hub::run::api::routes::{Action, operations};
use crate::hub::run::problem;
use crate::hub::run::problem::PROBLEM_JSON;
use crate::job::routes::{ApiRoute, QueryParameter, QueryValue};

/// Problems of a request for this document: only the server can refuse it.
const OF_OPENAPI: [ProblemKind; 2] = [ProblemKind::TooLarge, ProblemKind::Busy];

/// All operations of the API, those of other jobs among them, and this document. A hub with tokens asks for none there.
pub(super) fn all(has_tokens: bool, routes: &[Arc<ApiRoute>]) -> Paths {
    let document = PathItem::new(HttpMethod::Get, openapi(has_tokens));
    let own = operations().into_iter().map(|one| (one.path.clone(), one.method.clone(), describe(&one)));
    let others = routes.iter().map(|one| (one.path.to_owned(), one.method.clone(), mounted(one)));
    own.chain(others)
        .fold(PathsBuilder::new(), |paths, (path, of_path, described)| {
            paths.path(path, PathItem::new(method(&of_path), described))
        })
        .path("/openapi.json", document)
        .build()
}

fn describe(operation: &routes::Operation) -> Operation {
    let (action, kind) = (operation.action, operation.kind);
    let tag = kind.map_or("apply", Kind::plural);
    let mut described =
        OperationBuilder::new().operation_id(Some(id(action, kind))).tag(tag).summary(Some(about(action)));
    if kind == Some(Kind::ClusterSync) {
        described = described.description(about_objects(action));
    }
    described = described.parameters(kind.filter(|_| operation.path.ends_with('}') || is_of_status(action)).map(path));
    for name in action.parameters() {
        // A kind without namespaces has none to select by.
        if *name != "namespace" || kind.is_some_and(Kind::is_namespaced) {
            described = described.parameter(query(name));
        }
    }
    for name in action.headers() {
        described = described.parameter(header(name));
    }
    if !action.bodies().is_empty() {
        described = described.request_body(Some(body(action, kind)));
    }
    for success in action.successes() {
        described = described.response(success.status.as_str(), answer(action, kind, success));
    }
    problems(described, &action.problems()).build()
}

/// A route of another job.
fn mounted(route: &ApiRoute) -> Operation {
    let about = &route.description;
    let mut described =
        OperationBuilder::new().operation_id(Some(about.id)).tag(about.tag).summary(Some(about.summary));
    for name in route.variables() {
        described = described.parameter(variable(name));
    }
    for QueryParameter { name, about, value } in route.parameters {
        let schema = match *value {
            QueryValue::Text => text(),
            QueryValue::Number { least, most } => integer(least.into(), most.into()),
        };
        described = described.parameter(parameter(name, ParameterIn::Query, schema, about));
    }
    if let Some(schema) = &route.body {
        let body = RequestBodyBuilder::new().required(Some(Required::True));
        let of_media =
            |body: RequestBodyBuilder, (name, _): &(&str, Media)| body.content(*name, of_schema(&schema.name));
        described = described.request_body(Some(DOCUMENTS.iter().fold(body, of_media).build()));
    }
    let answer = ResponseBuilder::new().description(about.answer).content(JSON, of_schema(&route.answer.name));
    problems(described.response(route.status.as_str(), answer), &problems_of_mounted(route)).build()
}

fn openapi(has_tokens: bool) -> Operation {
    let document = ResponseBuilder::new().description("OpenAPI 3.1").content(JSON, Content::new(Some(free_form())));
    let operation = OperationBuilder::new()
        .operation_id(Some("getOpenApi"))
        .summary(Some("This document"))
        .securities(has_tokens.then(|| [utoipa::openapi::SecurityRequirement::default()]))
        .response("200", document);
    problems(operation, &OF_OPENAPI).build()
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

/// `listClusters`, `getCluster`, `patchClusterStatus`.
fn id(action: Action, kind: Option<Kind>) -> String {
    let kind = kind.map_or("Documents", Kind::name);
    match action {
        Action::List => format!("list{kind}s"),
        Action::Create => format!("create{kind}"),
        Action::Read => format!("get{kind}"),
        Action::Replace => format!("replace{kind}"),
        Action::Patch => format!("patch{kind}"),
        Action::Delete => format!("delete{kind}"),
        Action::ReplaceStatus => format!("replace{kind}Status"),
        Action::PatchStatus => format!("patch{kind}Status"),
        Action::Apply => format!("apply{kind}"),
    }
}

fn is_of_status(action: Action) -> bool {
    matches!(action, Action::ReplaceStatus | Action::PatchStatus)
}

/// What the status of a `ClusterSync` names that is not stored in it.
fn about_objects(action: Action) -> Option<&'static str> {
    match action {
        Action::Read => Some(
            "Each entry of a syncset has `resourcesToDelete`, the objects that are deleted when it no longer wants them, and \
             `superseded`, those that it wants and another syncset sends, each as `{apiVersion, kind, namespace, name}`. At most 1,000 \
             are named, of all syncsets together; `resourcesToDeleteOmitted` and `supersededOmitted` say how many more an entry has. \
             They change without `resourceVersion`, so that the answer is never 304; lists and watches have none.",
        ),
        Action::ReplaceStatus | Action::PatchStatus => {
            Some("What the entries of syncsets name in `resourcesToDelete` and `superseded` is not stored.")
        }
        _ => None,
    }
}

fn about(action: Action) -> &'static str {
    match action {
        Action::List => "List documents, or watch them with `watch=true`",
        Action::Create => "Create a document",
        Action::Read => "Read a document",
        Action::Replace => "Replace own fields, labels and annotations; needs the version in `If-Match` or in the body",
        Action::Patch => "Change parts of a document",
        Action::Delete => "Delete a document",
        Action::ReplaceStatus => "Replace the status; needs role `admin`, and the version in `If-Match` or in the body",
        Action::PatchStatus => "Change parts of the status; needs role `admin`",
        Action::Apply => "Create or change documents; each by itself, in their order",
    }
}

fn body(action: Action, kind: Option<Kind>) -> RequestBody {
    let content = |media: Media| match (action, kind, media) {
        (Action::Create, Some(kind), _) => of_schema(&schemas::created(kind)),
        (Action::Replace, Some(kind), _) => of_schema(&schemas::replaced(kind)),
        (Action::ReplaceStatus, ..) => of_schema(schemas::STATUS),
        (Action::Delete, ..) => of_schema(schemas::WHICH),
        (_, _, Media::MergePatch) => Content::new(Some(free_form())),
        (_, _, Media::JsonPatch) => {
            let operations = Array::new(Ref::from_schema_name(schemas::PATCH_OPERATION));
            Content::new(Some(Schema::Array(operations)))
        }
        (_, _, Media::Json | Media::Yaml) => Content::new(Some(ObjectBuilder::new().schema_type(SchemaType::AnyValue))),
    };
    let body = match action {
        Action::Delete => {
            RequestBodyBuilder::new().description(Some("Which document is meant, and which version of it"))
        }
        Action::Apply => RequestBodyBuilder::new()
            .required(Some(Required::True))
            .description(Some("Up to 1,000 documents, also manifests of Hive's kinds")),
        _ => RequestBodyBuilder::new().required(Some(Required::True)),
    };
    action.bodies().iter().fold(body, |body, (name, media)| body.content(*name, content(*media))).build()
}

/// An answer to a request that was carried out.
fn answer(action: Action, kind: Option<Kind>, success: &Success) -> Response {
    let content = |media: &str| match (action, kind, media) {
        (_, Some(kind), LINES) => of_schema(&schemas::event(kind)),
        (_, _, SERVER_SENT_EVENTS) => Content::new(Some(text())),
        (Action::List, Some(kind), _) => of_schema(&schemas::list(kind)),
        (_, Some(kind), _) => of_schema(&schemas::seen(kind)),
        (_, None, _) => of_schema(schemas::APPLIED),
    };
    let answer = ResponseBuilder::new().description(result(action, success.status));
    let answer = success.media.iter().fold(answer, |answer, media| answer.content(*media, content(media)));
    success.headers.iter().fold(answer, |answer, name| answer.header(*name, answer_header(name))).build()
}

/// What an answer to a request that was carried out says.
fn result(action: Action, status: StatusCode) -> &'static str {
    match (action, status) {
        (Action::List, _) => {
            "A page of the list. With `watch=true` a stream of events: a JSON document in each line, or server-sent \
             events whose `data` is such a document"
        }
        (Action::Create, StatusCode::CREATED) => "The new document",
        (Action::Create, _) => "With `dryRun=true`: the document that would be created",
        (Action::Read, StatusCode::NOT_MODIFIED) => "The document still has an ETag of `If-None-Match`",
        (Action::Read, _) => "The document",
        (Action::Delete, StatusCode::ACCEPTED) => "The document will be gone when its finalizers have been removed",
        (Action::Delete, _) => "The document is gone; this was its last state",
        (Action::Apply, _) => "For each document: created, configured, unchanged, or a problem",
        (Action::Replace | Action::Patch | Action::ReplaceStatus | Action::PatchStatus, _) => {
            "The document as it is now"
        }
    }
}

/// Adds the answers to requests that are not carried out, one for each status.
fn problems(operation: OperationBuilder, kinds: &[ProblemKind]) -> OperationBuilder {
    let same_status = |one: &ProblemKind, other: &ProblemKind| problem::status(*one) == problem::status(*other);
    kinds.chunk_by(same_status).fold(operation, |operation, kinds| {
        let Some(first) = kinds.first() else { return operation };
        let status = problem::status(*first);
        let words: Vec<String> = kinds.iter().map(|kind| format!("`{}`: {}", kind.as_str(), reason(*kind))).collect();
        let mut answer =
            ResponseBuilder::new().description(words.join(". ")).content(PROBLEM_JSON, of_schema(schemas::PROBLEM));
        for name in problem::headers(status) {
            answer = answer.header(*name, answer_header(name));
        }
        operation.response(status.as_str(), answer)
    })
}

fn reason(kind: ProblemKind) -> &'static str {
    match kind {
        ProblemKind::Malformed => "the request can't be read",
        ProblemKind::Parameter => "a parameter is unknown, repeated or wrong",
        ProblemKind::Unauthenticated => "there is no token, or an unknown one",
        ProblemKind::Forbidden => "the token does not allow this",
        ProblemKind::Quota => "the namespace would have more documents or bytes than it may have",
        ProblemKind::ChangeQuota => "the namespace has changed more than it may for now",
        ProblemKind::NotFound => "there is no such document",
        ProblemKind::Method => "the route does not have this method",
        ProblemKind::Exists => "a document of this name exists",
        ProblemKind::Conflict => "the document has another version",
        ProblemKind::Identity => "the document has another id",
        ProblemKind::TestFailed => "an operation `test` of the JSON patch failed",
        ProblemKind::Gone => "the version is no longer available",
        ProblemKind::Precondition => "`If-Match` does not hold",
        ProblemKind::TooLarge => "the document or the request is too large",
        ProblemKind::MediaType => "the media type or the encoding is not accepted",
        ProblemKind::Invalid => "the document is not valid; `errors` has every fault",
        ProblemKind::PreconditionRequired => "there is neither `If-Match` nor `resourceVersion`",
        ProblemKind::Busy => "too much is under way",
        ProblemKind::Unavailable => "the database does not answer; nothing was written",
        ProblemKind::OutcomeUnknown => "the database's answer was lost; read the document to see what was written",
    }
}

fn answer_header(name: &str) -> Header {
    let (schema, about) = match name {
        "ETag" => (text(), "The `resourceVersion` in quotes"),
        "Location" => (text(), "The path of the document"),
        "Retry-After" => (ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)), "Seconds to wait"),
        _ => (text(), "How to authenticate"),
    };
    utoipa::openapi::HeaderBuilder::new().schema(Some(schema)).description(Some(about)).build()
}

fn of_schema(name: &str) -> Content {
    Content::new(Some(Ref::from_schema_name(name)))
}

/// The parameters in the path of a document.
fn path(kind: Kind) -> Vec<Parameter> {
    let namespace = || variable("namespace");
    kind.is_namespaced().then(namespace).into_iter().chain([variable("name")]).collect()
}

fn variable(name: &str) -> Parameter {
    let (schema, about) = match name {
        "namespace" => (text().max_length(Some(63)), "Namespace: a DNS label"),
        _ => (text().max_length(Some(253)), "Name: a DNS subdomain"),
    };
    parameter(name, ParameterIn::Path, schema, about).required(Required::True).build()
}

fn query(name: &str) -> ParameterBuilder {
    let (schema, about) = match name {
        "namespace" => (text(), "Only this namespace"),
        "labelSelector" => (text(), "Only documents whose labels match, as in Kubernetes"),
        "fieldSelector" => (text(), "`metadata.name=…` or `metadata.namespace=…`, or both with a comma between"),
        "limit" => (integer(1, 1000), "Most items of a page; 500 by default"),
        "continue" => (text(), "The next page, by the answer of the one before"),
        "fields" => (text().enum_values(Some(["metadata"])), "`metadata`: neither own fields nor status"),
        "watch" => (boolean(), "Stream changes instead of a list"),
        "resourceVersion" => (text(), "With watch: changes after this version"),
        "timeoutSeconds" => (integer(1, 3_600), "With watch: when it ends"),
        "dryRun" => (boolean(), "All checks, and nothing is written"),
        _ => (text(), ""),
    };
    parameter(name, ParameterIn::Query, schema, about)
}

fn header(name: &str) -> ParameterBuilder {
    let about = match name {
        "If-Match" => "The document must have this ETag",
        "If-None-Match" => "304 if the document still has this ETag",
        "Last-Event-ID" => {
            "With watch, as server-sent events: changes after this version, in place of `resourceVersion`"
        }
        _ => "",
    };
    parameter(name, ParameterIn::Header, text(), about)
}

fn parameter(name: &str, place: ParameterIn, schema: ObjectBuilder, about: &str) -> ParameterBuilder {
    let builder = ParameterBuilder::new().name(name).parameter_in(place).required(Required::False);
    builder.description(Some(about)).schema(Some(schema))
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

fn free_form() -> ObjectBuilder {
    let any = AdditionalProperties::FreeForm(true);
    ObjectBuilder::new().schema_type(Type::Object).additional_properties(Some(any))
}
