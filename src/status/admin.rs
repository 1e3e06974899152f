//! The admin server's routes.
//!
//! | route | answer |
//! |---|---|
//! | `GET /metrics` | Prometheus' text format |
//! | `GET /healthz` | 503 if the actor tree has not answered an earlier request for more than [`LONGEST_SILENCE`] |
//! | `GET /readyz` | 503 while a section is [`Readiness::NotReady`]; an unreachable cluster or a held section does not count |
//! | `GET /readyz/{section}` | 503 unless that section is [`Readiness::Ready`] |
//! | `GET /status` | version, age, the clusters, the actor tree, and each section's condition, objects and report |
//! | `GET /objects/{section}?state=…&text=…&sort=…&offset=…&limit=…` | a page of a section's objects |
//! | `GET /history` | the last hour of the clusters, for the plots of the page |
//! | `GET /history/{section}` | the last hour of a section |
//! | `GET /ui/` | the page, which asks for the rest |
//! | `GET /held/{section}?limit=…` | the changes that an approval would release, by object, a digest of them, and whether a name may be approved alone |
//! | `POST /approve/{section}?name=…&digest=…` | the section's answer; without a name all that it holds is approved. 409 if what it holds has another digest than this |
//! | `POST /detach/{section}?local_gone=true` | the section's answer |
//! | `POST /attach/{section}` | the section's answer |
//! | `POST /resync/{section}?name=…` | the section's answer; without a name all is done again |
//! | `GET /explain/{section}?name=…` | the state of one object, in lines or as in the report |
//!
//! A request with a foreign `Host` gets 421. All but `/metrics` answer with JSON; errors are `{"error": "…"}`. Changes need the token, or without one a program of this machine: see `access`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures::future::join_all;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::access::{Denials, Denied, authorize};
use super::condition::Readiness;
use super::{History, Refused, Section, Selection, Tree};
use crate::cluster::{ClusterStatus, full_text};
use crate::http::{Peer, has_own_host};
use crate::telemetry::{Family, VERSION, render_families, render_process};
use crate::ui::Page;

/// An actor tree that does not answer for this long is dead. It is less than probes are apart: the second one that meets a blocked
/// tree fails.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);
/// How long `/status` waits for the tree and for the sections' counts: longer than a busy tree needs, and shorter than clients wait.
const LONGEST_REPORT: Duration = Duration::from_secs(5);
/// Why an approval is refused whose sender has seen something else.
const CHANGED: &str = "what is held has changed since it was listed: list it again";

/// What the admin server shows.
pub struct Admin {
    pub started: Instant,
    pub metrics: PrometheusHandle,
    /// Refreshes state gauges before each scrape.
    pub before_scrape: Arc<dyn Fn() + Send + Sync>,
    pub sections: Vec<Arc<dyn Section>>,
    /// The current state of each configured cluster, sorted by name.
    pub clusters: Arc<dyn Fn() -> Vec<ClusterStatus> + Send + Sync>,
    pub tree: Arc<dyn Tree>,
    /// The last hour, where there is a page to show it.
    pub history: Option<History>,
    /// Names of this server besides those that no page in a browser can have (`daemon.hosts`).
    pub hosts: Vec<String>,
    /// File with the token that authorizes changes.
    pub token_file: Option<PathBuf>,
    pub denials: Denials,
}

impl Admin {
    async fn authorize(&self, peer: SocketAddr, request: &Parts) -> Result<(), Denied> {
        authorize(peer, request, self.token_file.as_deref()).await.inspect_err(|denied| self.denials.note(peer, denied))
    }

    fn section(&self, name: &str) -> Result<Arc<dyn Section>, Problem> {
        Ok(Arc::clone(self.numbered(name)?.1))
    }

    fn history(&self) -> Result<&History, Problem> {
        self.history.as_ref().ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "daemon.ui is false"))
    }

    /// The section with its place among them.
    fn numbered(&self, name: &str) -> Result<(usize, &Arc<dyn Section>), Problem> {
        let found = self.sections.iter().enumerate().find(|(_, section)| section.name().as_str() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.sections.iter().map(|section| section.name().as_str()).collect();
            let known = if names.is_empty() { "there are none".to_owned() } else { names.join(", ") };
            Problem::new(StatusCode::NOT_FOUND, format!("no section of this name; sections: {known}"))
        })
    }
}

struct Problem {
    status: StatusCode,
    error: String,
}

impl Problem {
    fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, error: error.into() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.error }))).into_response()
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let status = match denied {
            Denied::Remote | Denied::Foreign(_) => StatusCode::FORBIDDEN,
            Denied::NeedsToken | Denied::WrongToken => StatusCode::UNAUTHORIZED,
            Denied::Unreadable(ref error) => {
                tracing::error!(error = %full_text(error), "failed to authorize a change");
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        Self::new(status, denied.to_string())
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let status = match refused {
            Refused::Conflict { .. } => StatusCode::CONFLICT,
            Refused::Unsupported { .. } => StatusCode::NOT_IMPLEMENTED,
            Refused::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Refused::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, full_text(&refused))
    }
}

pub(super) fn router(admin: Arc<Admin>) -> Router {
    let page = if admin.history.is_some() { Page::Daemon.router() } else { Router::new() };
    Router::new()
        .merge(page)
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/readyz/{section}", get(section_readyz))
        .route("/status", get(status))
        .route("/objects/{section}", get(objects))
        .route("/history", get(history))
        .route("/history/{section}", get(section_history))
        .route("/held/{section}", get(held))
        .route("/approve/{section}", post(approve))
        .route("/detach/{section}", post(detach))
        .route("/attach/{section}", post(attach))
        .route("/resync/{section}", post(resync))
        .route("/explain/{section}", get(explain))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "not found"))
        .method_not_allowed_fallback(async || Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed"))
        .layer(middleware::from_fn_with_state(Arc::clone(&admin), of_this_server))
        .with_state(admin)
}

/// Refuses what a page of elsewhere asks by a name of its own that it lets lead here: it could read the answers.
async fn of_this_server(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    if has_own_host(request.headers(), &admin.hosts) {
        return next.run(request).await;
    }
    let error = "the Host header is no name of this server: use its address, or add the name to daemon.hosts";
    Problem::new(StatusCode::MISDIRECTED_REQUEST, error).into_response()
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    (admin.before_scrape)();
    let mut text = admin.metrics.render();
    let of_sections: Vec<Family> = admin.sections.iter().flat_map(|section| section.families()).collect();
    render_families(&mut text, &of_sections);
    render_process(&mut text);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn healthz(State(admin): State<Arc<Admin>>) -> Response {
    let silence = admin.tree.ask();
    let body = Json(json!({ "unanswered_seconds": silence.as_secs_f64() }));
    (ok_if(silence <= LONGEST_SILENCE), body).into_response()
}

async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    let sections: BTreeMap<String, Readiness> =
        admin.sections.iter().map(|section| (section.name().to_string(), section.facts().readiness())).collect();
    let is_ready = !sections.values().any(|readiness| matches!(readiness, Readiness::NotReady(_)));
    (ok_if(is_ready), Json(json!({ "ready": is_ready, "sections": sections }))).into_response()
}

async fn section_readyz(State(admin): State<Arc<Admin>>, Path(section): Path<String>) -> Result<Response, Problem> {
    let readiness = admin.section(&section)?.facts().readiness();
    Ok((ok_if(readiness == Readiness::Ready), Json(readiness)).into_response())
}

/// The query of a status.
#[derive(Deserialize)]
struct Asked {
    /// As it was counted last: for who asks all the time.
    #[serde(default)]
    latest: bool,
}

async fn status(
    State(admin): State<Arc<Admin>>,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(Asked { latest }) = query.map_err(bad_query)?;
    let counting = join_all(admin.sections.iter().filter(|_| !latest).map(|section| section.count()));
    // What can't be counted in time is shown as it was.
    let counting = tokio::time::timeout(LONGEST_REPORT, counting);
    let (tree, _) = tokio::join!(tokio::time::timeout(LONGEST_REPORT, admin.tree.report()), counting);
    let tree = tree.unwrap_or_else(|_| json!({ "error": "no answer" }));
    let sections: Map<String, Value> =
        admin.sections.iter().map(|section| (section.name().to_string(), section_status(section.as_ref()))).collect();
    let clusters: Map<String, Value> = (admin.clusters)().iter().map(cluster_status).collect();
    let status = json!({
        "version": VERSION,
        "started_seconds_ago": admin.started.elapsed().as_secs(),
        "clusters": clusters,
        "tree": tree,
        "sections": sections,
    });
    Ok(answer(status))
}

/// An answer that no browser keeps: it has names of objects, and ages, by which it differs each time.
fn answer(json: impl Serialize) -> Response {
    ([(CACHE_CONTROL, "no-store")], Json(json)).into_response()
}

async fn objects(
    State(admin): State<Arc<Admin>>,
    Path(section): Path<String>,
    query: Result<Query<Selection>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(selection) = query.map_err(bad_query)?;
    if !selection.is_allowed() {
        let error = format!("a page has at most {} objects", Selection::MOST);
        return Err(Problem::new(StatusCode::BAD_REQUEST, error));
    }
    Ok(answer(admin.section(&section)?.objects(&selection)))
}

async fn history(State(admin): State<Arc<Admin>>) -> Result<Response, Problem> {
    Ok(answer(admin.history()?.of_clusters(&(admin.clusters)())))
}

async fn section_history(State(admin): State<Arc<Admin>>, Path(section): Path<String>) -> Result<Response, Problem> {
    let (place, _) = admin.numbered(&section)?;
    Ok(answer(admin.history()?.of_section(place)))
}

fn cluster_status(cluster: &ClusterStatus) -> (String, Value) {
    let status = json!({
        "state": cluster.state, "since_seconds": cluster.since.as_secs(), "reason": cluster.reason,
    });
    (cluster.name.to_string(), status)
}

fn section_status(section: &dyn Section) -> Value {
    let mut status = match section.report() {
        Value::Object(report) => report,
        other => Map::from_iter([("report".to_owned(), other)]),
    };
    status.insert("job".to_owned(), json!(section.job()));
    status.extend(section.facts().shown(section.name()));
    Value::Object(status)
}

/// The query of what is held.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Most {
    limit: Option<usize>,
}

async fn held(
    State(admin): State<Arc<Admin>>,
    Path(section): Path<String>,
    query: Result<Query<Most>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(Most { limit }) = query.map_err(bad_query)?;
    let section = admin.section(&section)?;
    let mut held = section.held().await?;
    let digest = held.digest();
    let more = limit.map_or(0, |limit| held.objects.len().saturating_sub(limit));
    held.objects.truncate(limit.unwrap_or(usize::MAX));
    let mut shown = json!(held);
    if let Some(fields) = shown.as_object_mut() {
        fields.insert("digest".to_owned(), json!(digest));
        fields.insert("by_name".to_owned(), json!(section.approves_by_name()));
        if more > 0 {
            fields.insert("more".to_owned(), json!(more));
        }
    }
    Ok(Json(shown))
}

/// The query of an approval.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approval {
    name: Option<String>,
    /// Of what its sender has seen.
    digest: Option<String>,
}

async fn approve(
    State(admin): State<Arc<Admin>>,
    Extension(Peer(peer)): Extension<Peer>,
    Path(section): Path<String>,
    query: Result<Query<Approval>, QueryRejection>,
    request: Parts,
) -> Result<Json<Value>, Problem> {
    admin.authorize(peer, &request).await?;
    let Query(Approval { name, digest }) = query.map_err(bad_query)?;
    let section = admin.section(&section)?;
    tracing::info!(section = %section.name(), %peer, name, "approval requested");
    to_the_end(async move {
        if let Some(seen) = digest
            && section.held().await?.digest() != seen
        {
            return Err(Refused::Conflict { reason: CHANGED.to_owned() });
        }
        match name {
            None => section.approve(peer.ip()).await,
            Some(name) => section.approve_one(&name, peer.ip()).await,
        }
    })
    .await
}

/// The query of a request that may name an object.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: Option<String>,
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn bad_query(rejection: QueryRejection) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, rejection.body_text())
}

/// The query of a detach.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Detach {
    #[serde(default)]
    local_gone: bool,
}

async fn detach(
    State(admin): State<Arc<Admin>>,
    Extension(Peer(peer)): Extension<Peer>,
    Path(section): Path<String>,
    query: Result<Query<Detach>, QueryRejection>,
    request: Parts,
) -> Result<Json<Value>, Problem> {
    admin.authorize(peer, &request).await?;
    let Query(Detach { local_gone }) = query.map_err(bad_query)?;
    let section = admin.section(&section)?;
    tracing::info!(section = %section.name(), %peer, local_gone, "detach requested");
    to_the_end(async move { section.detach(local_gone).await }).await
}

async fn attach(
    State(admin): State<Arc<Admin>>,
    Extension(Peer(peer)): Extension<Peer>,
    Path(section): Path<String>,
    request: Parts,
) -> Result<Json<Value>, Problem> {
    admin.authorize(peer, &request).await?;
    let section = admin.section(&section)?;
    tracing::info!(section = %section.name(), %peer, "attach requested");
    to_the_end(async move { section.attach().await }).await
}

async fn resync(
    State(admin): State<Arc<Admin>>,
    Extension(Peer(peer)): Extension<Peer>,
    Path(section): Path<String>,
    query: Result<Query<Named>, QueryRejection>,
    request: Parts,
) -> Result<Json<Value>, Problem> {
    admin.authorize(peer, &request).await?;
    let Query(Named { name }) = query.map_err(bad_query)?;
    let section = admin.section(&section)?;
    tracing::info!(section = %section.name(), %peer, name, "resync requested");
    to_the_end(async move { section.resync(name.as_deref()).await }).await
}

async fn explain(
    State(admin): State<Arc<Admin>>,
    Path(section): Path<String>,
    query: Result<Query<Named>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(Named { name }) = query.map_err(bad_query)?;
    Ok(Json(admin.section(&section)?.explain(&name.unwrap_or_default()).await?))
}

/// Runs a change in a separate task, so that a client that disconnects does not stop it halfway.
async fn to_the_end(
    change: impl Future<Output = Result<Value, Refused>> + Send + 'static,
) -> Result<Json<Value>, Problem> {
    match tokio::spawn(change).await {
        Ok(outcome) => Ok(Json(outcome?)),
        Err(_) => Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the section panicked")),
    }
}

fn ok_if(condition: bool) -> StatusCode {
    if condition { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

#[cfg(test)]
mod tests;
