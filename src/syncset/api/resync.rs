//! Full passes on demand: the routes that make them due.
//!
//! Each request for clusters of a namespace leaves a record, so it counts among what the clients of that namespace change, in this replica.

use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::{SELECTOR, SyncsetApi, namespace, of_store};
use crate::config::names::{is_label, is_subdomain};
use crate::documents::{Entry, Filter, Key, Kind, Problem, ProblemKind, not_found, selected_ids};
use crate::job::routes::{ApiRequest, Right};
use crate::syncset::run::store::StoreError;

/// What it is called in the record of who did what.
const RESYNC: &str = "resync";

/// What was requested.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct ResyncRequested {
    /// How many clusters have a full pass due now. A cluster that is paused is passed when it is resumed.
    clusters: usize,
}

pub(super) async fn one(api: Arc<SyncsetApi>, request: ApiRequest) -> Result<ResyncRequested, Problem> {
    let (namespace, name) = (request.variable("namespace"), request.variable("name"));
    request.rights.require(Right::Write, Some(namespace))?;
    let key = Key::new(Kind::Cluster, namespace, name);
    if !is_label(namespace) || !is_subdomain(name) {
        return Err(not_found(&key));
    }
    let filter = Filter::of(Kind::Cluster).in_namespace(namespace)?.named(name)?;
    let entry = Entry::of(request.author.clone(), RESYNC, Kind::Cluster, namespace, name);
    let requested = request_passes(&api, &request, (&filter, Some(namespace)), entry).await?;
    if requested.clusters == 0 { Err(not_found(&key)) } else { Ok(requested) }
}

/// Of all clusters of a namespace or of all namespaces, whose labels match.
pub(super) async fn many(api: Arc<SyncsetApi>, request: ApiRequest) -> Result<ResyncRequested, Problem> {
    let namespace = namespace(&request)?;
    request.rights.require(Right::Write, namespace)?;
    let mut filter = Filter::of(Kind::Cluster);
    if let Some(namespace) = namespace {
        filter = filter.in_namespace(namespace)?;
    }
    if let Some(selector) = request.parameter(SELECTOR.name).filter(|selector| !selector.is_empty()) {
        filter = filter.selected_by(selector)?;
    }
    let author = request.author.clone();
    let entry = match namespace {
        Some(namespace) => Entry::of(author, RESYNC, Kind::Cluster, namespace, ""),
        None => Entry::of_all(author, RESYNC),
    };
    let selector = request.parameter(SELECTOR.name).filter(|selector| !selector.is_empty());
    let entry = entry
        .noting(&selector.map_or_else(|| "all clusters".to_owned(), |selector| format!("clusters with {selector}")));
    request_passes(&api, &request, (&filter, namespace), entry).await
}

/// First the passes become full ones, and then they are requested: a pass between the two is only one more.
async fn request_passes(
    api: &SyncsetApi,
    request: &ApiRequest,
    (filter, namespace): (&Filter, Option<&str>),
    entry: Entry,
) -> Result<ResyncRequested, Problem> {
    let charged = namespace.filter(|_| request.rights.require(Right::Admin, None).is_err());
    charged.map_or(Ok(()), |namespace| api.changes.admit(namespace))?;
    let clusters = selected_ids(&api.database, filter).await?;
    if !clusters.is_empty() {
        if let Some(namespace) = charged {
            api.changes.count(namespace, 1);
        }
        api.store.resync(&clusters, &entry).await.map_err(unknown)?;
        api.queue.ask(&clusters, true).await.map_err(|error| unknown(error.into()))?;
    }
    Ok(ResyncRequested { clusters: clusters.len() })
}

/// A failed write. Some of it may be there, which does no harm.
fn unknown(error: StoreError) -> Problem {
    of_store(ProblemKind::OutcomeUnknown, "the passes may not have been requested; ask again", error)
}
