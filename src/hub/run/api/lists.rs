//! Answers to requests that read: a document, a page of a list, a watch.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use serde::Serialize;

use super::parameters::Listing;
use super::{Api, Asked, bodies, etag, limits, media, watch};
use crate::documents::{Filter, Kind, Page, Problem, ProblemKind, list_json, not_found};
use crate::hub::plan::tokens::{ActionScope, Role};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The version that a browser resumes a watch from.
const LAST_EVENT_ID: &str = "last-event-id";

/// `GET` of a document.
pub(super) async fn read(api: &Arc<Api>, asked: Asked<'_>, kind: Kind) -> Result<Response, Problem> {
    asked.parameters().none()?;
    let key = asked.key(kind)?;
    let owner = asked.caller.slot_owner();
    let _request_slot = api.requests.try_take(owner)?;
    // The status of a ClusterSync has a row for each syncset, and that of a syncset counts its clusters.
    let reads_many = matches!(kind, Kind::ClusterSync | Kind::SyncSet | Kind::SelectorSyncSet);
    let _read_slot = if reads_many { Some(api.reads.take(owner, limits::PATIENCE).await?) } else { None };
    let found = api.documents.store().found(&key).await?;
    let found = found.ok_or_else(|| not_found(&key))?;
    let version = found.version();
    let is_known = etag::is_known(&asked.parts.headers, version)?;
    // What is shown beside a document changes without its version.
    if is_known && found.is_as_stored() {
        return Ok((StatusCode::NOT_MODIFIED, [(ETAG, etag::of(version))]).into_response());
    }
    let slot = api.answers.try_take(found.length(), owner)?;
    let json = found.print(api.documents.blocking()).await?;
    Ok(document_answer(StatusCode::OK, version, bodies::answer(json, slot)))
}

/// A document of this version as an answer.
pub(super) fn document_answer(status: StatusCode, version: i64, json: Body) -> Response {
    (status, [(ETAG, etag::of(version)), (CONTENT_TYPE, JSON)], json).into_response()
}

/// A page of a list, or a watch.
pub(super) async fn list(api: &Arc<Api>, asked: Asked<'_>, kind: Kind) -> Result<Response, Problem> {
    let headers = &asked.parts.headers;
    let stream = media::of_watch(headers);
    let last_event = headers.get(LAST_EVENT_ID).filter(|_| stream == media::Stream::Events);
    let last_event = last_event.map(|id| id.to_str().unwrap_or_default()).filter(|id| !id.is_empty());
    match asked.parameters().listing(kind, last_event)? {
        Listing::Watch(query, lasts) => {
            asked.caller.require(Role::Read, place(&query.filter))?;
            watch::answer(Arc::clone(api), asked.caller, query, lasts, stream).await
        }
        Listing::List(query) => {
            asked.caller.require(Role::Read, place(&query.filter))?;
            let owner = asked.caller.slot_owner();
            let _request_slot = api.requests.try_take(owner)?;
            let _read_slot = api.reads.take(owner, limits::PATIENCE).await?;
            let slots = (&api.answers, owner);
            let (page, slot) = list_json(&api.database, api.documents.blocking(), &query, slots).await?;
            let body = page_body(page, &query.filter);
            Ok(([(CONTENT_TYPE, JSON)], bodies::answer(body, slot)).into_response())
        }
    }
}

/// Where a filter looks.
fn place(filter: &Filter) -> ActionScope<'_> {
    filter.namespace().map_or(ActionScope::Everywhere, ActionScope::Namespace)
}

/// A page as clients see it. The token's characters need no escape.
fn page_body(page: Page<Vec<u8>>, filter: &Filter) -> Vec<u8> {
    let Page { version, items, next } = page;
    let mut body = format!("{{\"resourceVersion\":\"{version}\",\"items\":[").into_bytes();
    let next = next.map(|next| format!(",\"continue\":\"{}\"", next.encode(filter))).unwrap_or_default();
    body.reserve_exact(items.len() + next.len() + 2);
    body.extend_from_slice(&items);
    body.push(b']');
    body.extend_from_slice(next.as_bytes());
    body.push(b'}');
    body
}

/// A JSON body. Texts, numbers and maps with text keys always become JSON.
pub(super) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => ([(CONTENT_TYPE, JSON)], bytes).into_response(),
        Err(error) => {
            tracing::error!(%error, "failed to write an answer");
            let problem = Problem::new(ProblemKind::Unavailable, "the answer can't be written");
            crate::hub::run::problem::answer(&problem)
        }
    }
}
