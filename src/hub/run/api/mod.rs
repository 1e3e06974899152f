//! The REST API: routes, what requests ask for, and their answers.
//!
//! `routes` is the table of operations, and [`router`] makes the routes from it. A request goes through the same steps whatever it
//! asks for: who is the caller, what do the parameters say, may the caller do it (before anything is read), what does the body say, is
//! there a slot for it (`limits`), and then the documents are asked. `lists` and `watch` read, `changes` writes. `bodies` bounds what all
//! bodies take. `mounted` serves the routes of other jobs, and `openapi` describes all of them.

pub mod bodies;
mod changes;
pub mod contract;
mod etag;
pub mod limits;
mod lists;
pub mod media;
pub mod mounted;
mod openapi;
mod parameters;
pub mod routes;
#[cfg(test)]
pub(in crate::hub) mod tests;
pub mod watch;

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use http::HeaderValue;
use http::header::{AUTHORIZATION, X_CONTENT_TYPE_OPTIONS};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::metrics::{HubMetrics, Route};
use super::super::plan::access::Caller;
use super::super::plan::tokens::{ActionScope, Role};
use super::access::Access;
use super::outages::Outages;
use super::problem::Refused;
use super::refusals::Refusals;
use crate::config::names::{is_label, is_subdomain};
use crate::db::Database;
use crate::documents::{
    Author, CallerSlots, Documents, Key, Kind, LargeSlots, Problem, ProblemKind, SchemaState, Tail, not_found,
};
use crate::http::{Peer, Server, ServerTls};
use crate::job::routes::{Advice, ApiRoute};
use crate::ui::Page;
use parameters::QueryParameters;
use routes::{Action, Operation, operations};

/// The label of requests for the description of the API and for files of the page, which are the same for everybody.
const DESCRIPTION: &str = "description";

/// What the handlers of requests share.
pub struct Api {
    pub database: Database,
    pub documents: Documents,
    pub tail: Tail,
    pub access: Access,
    /// Slots for requests that are carried out, watches aside.
    pub requests: CallerSlots,
    /// Slots for requests whose bodies arrive.
    pub bodies: CallerSlots,
    pub watches: CallerSlots,
    /// Slots for requests that read many documents.
    pub reads: CallerSlots,
    pub metrics: Arc<HubMetrics>,
    /// Slots for large answers to reads.
    pub answers: LargeSlots,
    pub outages: Arc<Outages>,
    /// Requests that were refused, for the record.
    pub refusals: Refusals,
    pub schema: tokio::sync::watch::Receiver<SchemaState>,
    /// Routes of other jobs.
    pub mounted: Vec<Arc<ApiRoute>>,
    /// Why a kubeconfig that is applied will not be used.
    pub advice: Option<Advice>,
    /// Whether there is a page.
    pub ui: bool,
    /// Ends the watches.
    pub stop: CancellationToken,
}

/// A request whose caller is known.
struct Asked<'o> {
    operation: &'o Operation,
    caller: Caller,
    parts: http::request::Parts,
    /// The variables of the path.
    namespace: Option<String>,
    name: Option<String>,
}

/// Serves the API on a listener until its `stop`.
pub async fn serve(api: Arc<Api>, listener: TcpListener, tls: Option<ServerTls>, max_watchers: usize) {
    let server = Server::new("hub", limits::limits(max_watchers)).counting_refused_heads(HubMetrics::refused_head);
    let server = match tls {
        Some(tls) => server.with_tls(tls),
        None => server,
    };
    let stop = api.stop.clone();
    server.serve(listener, router(api), stop).await;
}

pub fn router(api: Arc<Api>) -> Router {
    let mut router = Router::new();
    for operation in operations() {
        let filter = MethodFilter::try_from(operation.method.clone()).unwrap_or(MethodFilter::TRACE);
        let path = operation.path.clone();
        let (api, operation) = (Arc::clone(&api), Arc::new(operation));
        let handler = move |variables: Result<RawPathParams, RawPathParamsRejection>, request: Request| {
            let (api, operation) = (Arc::clone(&api), Arc::clone(&operation));
            async move {
                let mut answer = carry_out(&api, &operation, variables.ok(), request).await;
                answer.extensions_mut().insert(Route::new(&operation.path));
                answer
            }
        };
        router = router.route(&path, on(filter, handler));
    }
    for route in &api.mounted {
        router = router.route(route.path, mounted::method(&api, route));
    }
    let nowhere = |api: Arc<Api>, kind, title: &'static str| {
        move |request: Request| {
            let api = Arc::clone(&api);
            async move {
                let (parts, _) = request.into_parts();
                let denied = api.access.caller(&parts).err();
                let problem = denied.unwrap_or_else(|| Problem::new(kind, title));
                Refused(problem).into_response()
            }
        }
    };
    let described = axum::middleware::map_response(async |mut answer: Response| {
        answer.extensions_mut().insert(Route::new(DESCRIPTION));
        answer
    });
    let observed = Arc::clone(&api);
    let page = if api.ui { Page::Fleet.router() } else { Router::new() };
    router
        .merge(page.merge(openapi::router(api.access.has_tokens(), api.mounted.clone())).layer(described))
        .fallback(nowhere(Arc::clone(&api), ProblemKind::NotFound, "there is no such route"))
        .method_not_allowed_fallback(nowhere(api, ProblemKind::Method, "the route does not have this method"))
        .layer(from_fn_with_state(observed, observe))
}

/// Counts each answer, whoever gave it, and notes who was refused. And no browser shall guess that one is a page.
async fn observe(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let (begun, method) = (Instant::now(), request.method().clone());
    let (path, authorization) = (request.uri().clone(), request.headers().get(AUTHORIZATION).cloned());
    let peer = request.extensions().get::<Peer>().copied();
    let mut answer = next.run(request).await;
    api.metrics.answered(&method, &answer, begun.elapsed());
    if Refusals::are_noted(answer.status()) {
        let actor = api.access.name_of(authorization.as_ref());
        let target = format!("{method} {}", path.path());
        let reason = answer.extensions().get::<ProblemKind>().copied();
        api.refusals.note(actor, peer.map(|Peer(peer)| peer.ip()), (answer.status(), reason), &target);
    }
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

async fn carry_out(
    api: &Arc<Api>,
    operation: &Operation,
    variables: Option<RawPathParams>,
    request: Request,
) -> Response {
    let outcome = match &variables {
        Some(variables) => {
            let variable = |name: &str| variables.iter().find(|(variable, _)| *variable == name);
            let variable = |name: &str| variable(name).map(|(_, value)| value.to_owned());
            answer(api, operation, variable("namespace"), variable("name"), request).await
        }
        None => Err(Problem::new(ProblemKind::Malformed, "the path is not UTF-8")),
    };
    let answer = outcome.unwrap_or_else(|problem| refused(api, problem));
    debug_assert!(operation.action.may_answer(answer.status()), "{operation:?} has no status {}", answer.status());
    answer
}

/// The answer to a request that was not carried out.
fn refused(api: &Api, problem: Problem) -> Response {
    api.outages.note(&problem);
    Refused(problem).into_response()
}

async fn answer(
    api: &Arc<Api>,
    operation: &Operation,
    namespace: Option<String>,
    name: Option<String>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let caller = admit(api, &parts, operation.action.role())?;
    let asked = Asked { operation, caller, parts, namespace, name };
    match (operation.action, operation.kind) {
        (Action::List, Some(kind)) => lists::list(api, asked, kind).await,
        (Action::Read, Some(kind)) => lists::read(api, asked, kind).await,
        (Action::Apply, _) => changes::apply(api, asked, body).await,
        (_, Some(kind)) => changes::change(api, asked, kind, body).await,
        // Only `apply` has no kind.
        (_, None) => Err(Problem::new(ProblemKind::NotFound, "there is no such route")),
    }
}

/// The caller of a request, if it is to be read at all.
fn admit(api: &Api, parts: &http::request::Parts, role: Role) -> Result<Caller, Problem> {
    let caller = api.access.caller(parts)?;
    caller.require_somewhere(role)?;
    if let SchemaState::Missing { told, .. } = &*api.schema.borrow() {
        return Err(Problem::new(ProblemKind::Unavailable, *told));
    }
    Ok(caller)
}

/// Who asks, for the record.
fn author(caller: &Caller, parts: &http::request::Parts) -> Author {
    let peer = parts.extensions.get::<Peer>();
    Author::of_api(caller.name(), peer.map(|Peer(peer)| peer.ip()))
}

impl Asked<'_> {
    fn parameters(&self) -> QueryParameters {
        QueryParameters::read(self.parts.uri.query(), self.operation.action.parameters())
    }

    /// The document that the path names, if the caller may do this with it. A name that no document can have is not looked up.
    fn key(&self, kind: Kind) -> Result<Key, Problem> {
        let (namespace, name) =
            (self.namespace.as_deref().unwrap_or_default(), self.name.as_deref().unwrap_or_default());
        self.require(kind, namespace)?;
        let key = Key::new(kind, namespace, name);
        let is_possible = is_subdomain(name) && (!kind.is_namespaced() || is_label(namespace));
        if is_possible { Ok(key) } else { Err(not_found(&key)) }
    }

    /// The problem if the caller may not do this with documents of a kind in a namespace.
    fn require(&self, kind: Kind, namespace: &str) -> Result<(), Problem> {
        let place = if kind.is_namespaced() { ActionScope::Namespace(namespace) } else { ActionScope::Everywhere };
        self.caller.require(self.operation.action.role(), place)
    }
}
