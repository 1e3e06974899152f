//! Routes of the hub's REST API that belong to another job.
//!
//! The hub offers [`ApiRoutes`] to the jobs that are wired after it. What they mount there it serves beside its own routes: with the same
//! authentication, limits, problems, metrics and description. It looks when its API starts, so that the order of the wiring suffices.
//!
//! A route says which right its callers need *somewhere*. Its handler checks the place: only that knows which namespaces a request is
//! about.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, StatusCode};
use hyper::body::Bytes;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::documents::{Author, Problem, ProblemKind, SlotOwner};

/// The routes that jobs have mounted, and what they say of documents that are applied.
#[derive(Default)]
pub struct ApiRoutes {
    routes: watch::Sender<Vec<Arc<ApiRoute>>>,
    advice: OnceLock<Advice>,
}

/// Why a job will not use a cluster's kubeconfig, if it won't.
pub type Advice = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To read, list and watch.
    Read,
    Write,
    /// What concerns the hub as a whole.
    Admin,
}

/// Namespaces in which a caller has a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All of them, and what has no namespace.
    Everywhere,
    Within {
        names: Vec<String>,
        /// By the beginnings of their names.
        prefixes: Vec<String>,
    },
}

/// What the caller of a request may do.
pub trait Rights: Send + Sync {
    /// The problem if the caller does not have a right in a namespace; without one, everywhere.
    fn require(&self, right: Right, namespace: Option<&str>) -> Result<(), Problem>;

    /// Where the caller has a right.
    fn reach(&self, right: Right) -> Reach;
}

/// A request for a mounted route.
#[derive(Clone)]
pub struct ApiRequest {
    pub rights: Arc<dyn Rights>,
    /// Whose slots it takes of what there are few of.
    pub slot_owner: SlotOwner,
    /// Who asks, for the record.
    pub author: Author,
    /// The variables of the path by name. Their values are whatever the caller has written.
    pub variables: BTreeMap<String, String>,
    /// The parameters of the query by name. Each fits its [`QueryValue`].
    pub parameters: BTreeMap<String, String>,
    /// The body; empty for a route that has none.
    pub body: Bytes,
}

/// A parameter in the query of a route. It may be absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryParameter {
    pub name: &'static str,
    /// What it means, for the description of the API.
    pub about: &'static str,
    pub value: QueryValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryValue {
    Text,
    Number { least: u32, most: u32 },
}

/// The name of a JSON document's schema, and the schema with those that it refers to.
#[derive(Clone)]
pub struct ApiSchema {
    /// Its name in the description.
    pub name: String,
    /// By name.
    pub schemas: Vec<(String, RefOr<Schema>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiDescription {
    /// The id of the operation: `resyncCluster`. Clients have functions of this name.
    pub id: &'static str,
    /// The group of operations.
    pub tag: &'static str,
    pub summary: &'static str,
    pub answer: &'static str,
}

/// A method of a path, which answers with JSON.
pub struct ApiRoute {
    pub method: Method,
    /// The path, with its variables in braces.
    pub path: &'static str,
    /// What callers need somewhere, or they are refused before anything else is read.
    pub right: Right,
    pub description: ApiDescription,
    pub parameters: &'static [QueryParameter],
    /// The JSON body, if there is one.
    pub body: Option<ApiSchema>,
    pub status: StatusCode,
    pub answer: ApiSchema,
    /// Problems beside those of all requests and those of bodies.
    pub problems: &'static [ProblemKind],
    /// Whether its statements may take long, so that only a few of its requests are carried out at a time.
    pub reads_many: bool,
    handler: Box<Handler>,
}

type Handler = dyn Fn(ApiRequest) -> BoxFuture<'static, Result<Value, Problem>> + Send + Sync;

impl ApiRoutes {
    /// Adds routes. Those that are added after the API has started are served when it starts again.
    pub fn mount(&self, routes: impl IntoIterator<Item = ApiRoute>) {
        self.routes.send_modify(|all| all.extend(routes.into_iter().map(Arc::new)));
    }

    pub fn all(&self) -> Vec<Arc<ApiRoute>> {
        self.routes.borrow().clone()
    }

    /// Warns whoever applies a cluster with a kubeconfig that will be refused. Only the first advice counts.
    pub fn advise(&self, advice: Advice) {
        // There is one job that uses kubeconfigs.
        let _ = self.advice.set(advice);
    }

    /// The advice that a job has set, if one has.
    pub fn advice(&self) -> Option<Advice> {
        self.advice.get().cloned()
    }
}

impl ApiRoute {
    /// A route that answers 200 with an `A`.
    pub fn new<A, F>(
        (method, path): (Method, &'static str),
        right: Right,
        description: ApiDescription,
        handler: impl Fn(ApiRequest) -> F + Send + Sync + 'static,
    ) -> Self
    where
        A: Serialize + ToSchema,
        F: Future<Output = Result<A, Problem>> + Send + 'static,
    {
        let handler = move |request| {
            let answer = handler(request);
            async move { json(&answer.await?) }.boxed()
        };
        Self {
            method,
            path,
            right,
            description,
            parameters: &[],
            body: None,
            status: StatusCode::OK,
            answer: ApiSchema::of::<A>(),
            problems: &[],
            reads_many: false,
            handler: Box::new(handler),
        }
    }

    #[must_use]
    pub fn with_parameters(self, parameters: &'static [QueryParameter]) -> Self {
        Self { parameters, ..self }
    }

    /// Adds a JSON body of type `B`.
    #[must_use]
    pub fn with_body<B: ToSchema>(self) -> Self {
        Self { body: Some(ApiSchema::of::<B>()), ..self }
    }

    #[must_use]
    pub fn answering(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    #[must_use]
    pub fn failing_with(self, problems: &'static [ProblemKind]) -> Self {
        Self { problems, ..self }
    }

    #[must_use]
    pub fn reading_many(self) -> Self {
        Self { reads_many: true, ..self }
    }

    pub fn variables(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    pub fn handle(&self, request: ApiRequest) -> BoxFuture<'static, Result<Value, Problem>> {
        (self.handler)(request)
    }
}

impl ApiSchema {
    fn of<T: ToSchema>() -> Self {
        let mut schemas = vec![(T::name().into_owned(), T::schema())];
        T::schemas(&mut schemas);
        Self { name: T::name().into_owned(), schemas }
    }
}

impl ApiRequest {
    pub fn variable(&self, name: &str) -> &str {
        self.variables.get(name).map(String::as_str).unwrap_or_default()
    }

    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// A parameter of the query that is a number.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.parameter(name)?.parse().ok()
    }
}

impl fmt::Debug for ApiRoute {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.method, self.path)
    }
}

fn json(answer: &impl Serialize) -> Result<Value, Problem> {
    // Texts, numbers and maps with text keys always become JSON.
    serde_json::to_value(answer)
        .map_err(|error| Problem::new(ProblemKind::Unavailable, "the answer can't be written").caused_by(error, false))
}
