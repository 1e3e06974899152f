//! Answers to requests that change documents.

use std::sync::Arc;

use axum::body::Body as HttpBody;
use axum::response::{IntoResponse, Response};
use http::header::{ETAG, IF_MATCH, LOCATION};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;

use super::lists::{document_answer, json};
use super::media::{self, Media};
use super::routes::Action;
use super::{Api, Asked, read};
use crate::documents::{
    self, Body, IfMatch, Key, Kind, Manifest, Operations, Part, Problem, ProblemKind, Request, Verdict, key_of_body,
    manifests_of_json, manifests_of_yaml,
};
use crate::hub::problem::{ProblemBody, body as problem_body};

/// Any change of a single document.
pub(super) async fn change(api: &Arc<Api>, asked: Asked<'_>, kind: Kind, body: HttpBody) -> Result<Response, Problem> {
    let action = asked.operation.action;
    let dry_run = asked.parameters().dry_run()?;
    // The rights of all but a POST are known before its body is.
    let key = if action == Action::Create { None } else { Some(asked.key(kind)?) };
    let condition = if_match(&asked.parts.headers)?;
    let (key, wanted) = match (action, key) {
        (Action::Delete, Some(key)) => {
            let text = read(body).await?;
            let body = if text.is_empty() {
                None
            } else {
                media::of_body(action, &asked.parts.headers, asked.caller.is_local())?;
                Some(Body::from_json(&text)?)
            };
            (key, documents::Action::Delete(body))
        }
        (_, key) => {
            let media = media::of_body(action, &asked.parts.headers, asked.caller.is_local())?;
            let text = read(body).await?;
            let wanted = wanted(action, media, &text)?;
            match (key, &wanted) {
                (Some(key), _) => (key, wanted),
                (None, documents::Action::Create(body)) => (new_key(&asked, kind, body)?, wanted),
                // Only a new document's key is in its body.
                (None, _) => return Err(Problem::new(ProblemKind::NotFound, "there is no such route")),
            }
        }
    };
    let request = Request { key, action: wanted, condition, dry_run };
    let done = api.documents.change(&request).await?;
    let status = match done.verdict {
        Verdict::Created if !dry_run => StatusCode::CREATED,
        Verdict::Deleting => StatusCode::ACCEPTED,
        Verdict::Created | Verdict::Changed | Verdict::Unchanged | Verdict::Deleted => StatusCode::OK,
    };
    let mut answer = document_answer(status, &done.document);
    if done.verdict == Verdict::Created && dry_run {
        // It has no version.
        answer.headers_mut().remove(ETAG);
    }
    if status == StatusCode::CREATED {
        let location = HeaderValue::try_from(format!("/v1/{}", done.document.key()));
        // Names of documents are letters of a path.
        answer.headers_mut().extend(location.ok().map(|location| (LOCATION, location)));
    }
    Ok(answer)
}

/// What a body asks for.
fn wanted(action: Action, media: Media, text: &[u8]) -> Result<documents::Action, Problem> {
    let part = match action {
        Action::ReplaceStatus | Action::PatchStatus => Part::Status,
        _ => Part::Document,
    };
    Ok(match (action, media) {
        (Action::Create, _) => documents::Action::Create(Body::from_json(text)?),
        (_, Media::MergePatch) => documents::Action::Merge(part, Body::from_json(text)?),
        (_, Media::JsonPatch) => documents::Action::Patch(part, Operations::from_json(text)?),
        (_, Media::Json | Media::Yaml) => documents::Action::Replace(part, Body::from_json(text)?),
    })
}

/// The key of a new document, if the caller may create it. Its namespace is looked at first, so that other faults of a body show
/// nothing to a caller without rights.
fn new_key(asked: &Asked<'_>, kind: Kind, body: &Body) -> Result<Key, Problem> {
    let key = key_of_body(kind, body);
    if let Ok(key) = &key {
        asked.permit(kind, &key.namespace)?;
    }
    key
}

/// The condition of a request.
fn if_match(headers: &HeaderMap) -> Result<Option<IfMatch>, Problem> {
    let mut given = headers.get_all(IF_MATCH).iter();
    let (first, second) = (given.next(), given.next());
    let malformed = || Problem::new(ProblemKind::Malformed, "the header If-Match is repeated or not valid");
    match (first, second) {
        (None, _) => Ok(None),
        (Some(value), None) => IfMatch::parse(value.to_str().map_err(|_| malformed())?).map(Some),
        (Some(_), Some(_)) => Err(malformed()),
    }
}

/// The result of an apply for one document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Applied<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemBody<'a>>,
}

/// What became of one document of an apply. The document itself is not kept: a thousand of them may be large.
type Outcome = (Option<Key>, Result<(Verdict, i64), Problem>);

/// `POST /v1/apply`: one document after the other, in their order, without a common transaction.
pub(super) async fn apply(api: &Arc<Api>, asked: Asked<'_>, body: HttpBody) -> Result<Response, Problem> {
    let dry_run = asked.parameters().dry_run()?;
    let media = media::of_body(Action::Apply, &asked.parts.headers, asked.caller.is_local())?;
    let text = read(body).await?;
    let manifests = if media == Media::Yaml { manifests_of_yaml(&text) } else { manifests_of_json(&text) }?;
    let mut results: Vec<Outcome> = Vec::with_capacity(manifests.len());
    for manifest in manifests {
        results.push(apply_one(api, &asked, manifest, dry_run).await);
    }
    let items: Vec<Applied<'_>> = results.iter().map(applied).collect();
    Ok(json(&serde_json::json!({ "items": items })).into_response())
}

async fn apply_one(api: &Arc<Api>, asked: &Asked<'_>, manifest: Result<Manifest, Problem>, dry_run: bool) -> Outcome {
    let key = |manifest: &Manifest| {
        if !manifest.kind.is_written_by_clients() {
            let title = format!("the hub itself writes documents of kind {}", manifest.kind);
            return Err(Problem::new(ProblemKind::Method, title));
        }
        new_key(asked, manifest.kind, &manifest.body)
    };
    match manifest.and_then(|manifest| Ok((key(&manifest)?, manifest.body))) {
        Err(problem) => (None, Err(problem)),
        Ok((key, body)) => {
            let action = documents::Action::Apply(body);
            let request = Request { key: key.clone(), action, condition: None, dry_run };
            let done = api.documents.change(&request).await;
            (Some(key), done.map(|done| (done.verdict, done.document.version)))
        }
    }
}

fn applied((key, outcome): &Outcome) -> Applied<'_> {
    let of_key = |part: fn(&Key) -> &String| key.as_ref().map(part).filter(|part| !part.is_empty()).cloned();
    let (result, version, problem) = match outcome {
        Ok((verdict, version)) => (word(*verdict), Some(version.to_string()), None),
        Err(problem) => ("failed", None, Some(problem_body(problem))),
    };
    Applied {
        kind: key.as_ref().map(|key| key.kind.name()),
        namespace: of_key(|key| &key.namespace),
        name: of_key(|key| &key.name),
        result,
        resource_version: version,
        problem,
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Created => "created",
        Verdict::Changed | Verdict::Deleted | Verdict::Deleting => "configured",
        Verdict::Unchanged => "unchanged",
    }
}
