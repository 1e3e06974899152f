//! Routes of the REST API beside the hub's: what operators ask of passes.
//!
//! `resync` makes full passes due, `failures` shows what failed on all clusters together, and `explain` what there is to know about one
//! object. `diff` shows what a syncset would do that is not written, `fleet` all clusters by state, and
//! `rollout` how a change goes through them.

mod diff;
mod explain;
mod failures;
mod fleet;
mod resync;
mod rollout;

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};

use super::inspect::{Diff, Explanation, Inspector};
use super::run::store::{PassStore, StoreError};
use crate::config::names::is_label;
use crate::db::Database;
use crate::documents::{Changes, Problem, ProblemKind, WorkQueue};
use crate::job::routes::{ApiDescription, ApiRequest, ApiRoute, QueryParameter, QueryValue, Reach, Right};
use crate::syncset::run::counts::fleet::NamespaceFilter;
use diff::SyncSetToCompare;
use failures::SyncSetFailureList;
use fleet::{ClusterStateList, Fleet};
use resync::ResyncRequested;

/// The parameter of what concerns clusters of one namespace.
const NAMESPACE: QueryParameter =
    QueryParameter { name: "namespace", about: "Only clusters of this namespace", value: QueryValue::Text };
const SELECTOR: QueryParameter = QueryParameter {
    name: "labelSelector",
    about: "Only clusters whose labels match, as in Kubernetes",
    value: QueryValue::Text,
};

/// Problems of a request for a full pass of one cluster.
const OF_RESYNC: &[ProblemKind] = &[ProblemKind::NotFound, ProblemKind::ChangeQuota, ProblemKind::OutcomeUnknown];

/// When another attempt may succeed, if too much is looked at: about as long as one that looks at a cluster takes.
const RETRY_AFTER: Duration = Duration::from_secs(5);

pub(super) struct SyncsetApi {
    pub(super) store: PassStore,
    pub(super) queue: WorkQueue,
    pub(super) database: Database,
    pub(super) inspector: Inspector,
    /// What the clients of each namespace have changed.
    pub(super) changes: Changes,
}

/// A failed read or write of the state of passes, with what that means for its sender.
fn of_store(kind: ProblemKind, what: &str, error: StoreError) -> Problem {
    let outage = if let StoreError::Database(failure) = &error { failure.outage() } else { None };
    let title = outage.map_or_else(|| what.to_owned(), |outage| format!("{outage}: {what}"));
    Problem::new(kind, title).caused_by(error, outage.is_some())
}

pub(super) fn routes(api: SyncsetApi) -> Vec<ApiRoute> {
    let api = Arc::new(api);
    let mut routes = rollout::routes(&api);
    let [of_one, of_many, explains, compares, counts, lists] = std::array::from_fn(|_| Arc::clone(&api));
    let one = ApiRoute::new::<ResyncRequested, _>(
        (Method::POST, "/v1/clusters/{namespace}/{name}/resync"),
        Right::Write,
        ApiDescription {
            id: "resyncCluster",
            tag: "clusters",
            summary: "Make a full pass of a cluster due now: everything that syncsets want is compared with what is there",
            answer: "The pass is due",
        },
        move |request| resync::one(Arc::clone(&of_one), request),
    );
    let many = ApiRoute::new::<ResyncRequested, _>(
        (Method::POST, "/v1/clusters/resync"),
        Right::Write,
        ApiDescription {
            id: "resyncClusters",
            tag: "clusters",
            summary: "Make full passes of clusters due now, of all without parameters",
            answer: "The passes are due",
        },
        move |request| resync::many(Arc::clone(&of_many), request),
    );
    let explanation = ApiRoute::new::<Explanation, _>(
        (Method::GET, "/v1/clusters/{namespace}/{name}/explanation"),
        Right::Read,
        ApiDescription {
            id: "explainObject",
            tag: "clusters",
            summary: "Which syncsets want an object on a cluster, which one sends it, and how it is there now",
            answer: "The explanation",
        },
        move |request| explain::explain(Arc::clone(&explains), request),
    );
    let comparison = ApiRoute::new::<Diff, _>(
        (Method::POST, "/v1/syncset-diffs"),
        Right::Write,
        ApiDescription {
            id: "diffSyncSet",
            tag: "clusters",
            summary: "What a syncset would do on its clusters if it were written: a dry run on some of them",
            answer: "What it would do",
        },
        move |request| diff::diff(Arc::clone(&compares), request),
    );
    let fleet = ApiRoute::new::<Fleet, _>(
        (Method::GET, "/v1/fleet"),
        Right::Read,
        ApiDescription {
            id: "countFleet",
            tag: "clusters",
            summary: "The clusters that the caller may read by state, and the syncsets whose deletions are held",
            answer: "The counts",
        },
        move |request| fleet::count(Arc::clone(&counts), request),
    );
    let states = ApiRoute::new::<ClusterStateList, _>(
        (Method::GET, "/v1/fleet/clusters"),
        Right::Read,
        ApiDescription {
            id: "listClusterStates",
            tag: "clusters",
            summary: "The clusters that the caller may read, with their states and what fails on them",
            answer: "A page",
        },
        move |request| fleet::page(Arc::clone(&lists), request),
    );
    let failing = ApiRoute::new::<SyncSetFailureList, _>(
        (Method::GET, "/v1/syncset-failures"),
        Right::Read,
        ApiDescription {
            id: "listSyncSetFailures",
            tag: "clusters",
            summary: "What fails on the clusters that the caller may read, the most frequent first",
            answer: "Failures, grouped",
        },
        move |request| failures::list(Arc::clone(&api), request),
    );
    routes.extend([
        one.answering(StatusCode::ACCEPTED).failing_with(OF_RESYNC),
        many.answering(StatusCode::ACCEPTED)
            .with_parameters(&[NAMESPACE, SELECTOR])
            .failing_with(&[ProblemKind::ChangeQuota, ProblemKind::OutcomeUnknown])
            .reading_many(),
        failing.with_parameters(failures::PARAMETERS).reading_many(),
        fleet.with_parameters(fleet::PARAMETERS).reading_many(),
        states.with_parameters(fleet::OF_PAGE).reading_many(),
        explanation.with_parameters(explain::PARAMETERS).failing_with(&[ProblemKind::NotFound]),
        comparison
            .with_parameters(diff::PARAMETERS)
            .with_body::<SyncSetToCompare>()
            .failing_with(&[ProblemKind::Invalid]),
    ]);
    routes
}

/// Where the caller may read, or the one namespace that the request names.
fn namespaces(request: &ApiRequest) -> Result<NamespaceFilter, Problem> {
    if let Some(namespace) = namespace(request)? {
        request.rights.require(Right::Read, Some(namespace))?;
        return Ok(NamespaceFilter { names: Some(vec![namespace.to_owned()]), prefixes: Vec::new() });
    }
    Ok(match request.rights.reach(Right::Read) {
        Reach::Everywhere => NamespaceFilter::default(),
        Reach::Within { names, prefixes } => NamespaceFilter { names: Some(names), prefixes },
    })
}

fn namespace(request: &ApiRequest) -> Result<Option<&str>, Problem> {
    match request.parameter(NAMESPACE.name) {
        Some(namespace) if !is_label(namespace) => {
            Err(Problem::new(ProblemKind::Parameter, "parameter namespace is not valid: it is no DNS label"))
        }
        namespace => Ok(namespace),
    }
}
