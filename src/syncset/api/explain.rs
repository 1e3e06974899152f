//! What there is to know about one object on a cluster: the route.

use std::sync::Arc;

use super::{RETRY_AFTER, SyncsetApi, of_store};
use crate::config::names::{is_label, is_subdomain};
use crate::documents::{Filter, Key, Kind, Problem, ProblemKind, is_kind, is_path_segment, not_found, selected_ids};
use crate::job::routes::{ApiRequest, QueryParameter, QueryValue, Reach, Right};
use crate::syncset::inspect::{Asked, Explanation, Unexplained};

pub(super) const PARAMETERS: &[QueryParameter] = &[
    QueryParameter { name: "kind", about: "Kind of the object: ConfigMap", value: QueryValue::Text },
    QueryParameter { name: "group", about: "API group of the kind, if syncsets name several", value: QueryValue::Text },
    QueryParameter { name: "objectNamespace", about: "Namespace of the object", value: QueryValue::Text },
    QueryParameter { name: "objectName", about: "Name of the object", value: QueryValue::Text },
];

pub(super) async fn explain(api: Arc<SyncsetApi>, request: ApiRequest) -> Result<Explanation, Problem> {
    let (namespace, name) = (request.variable("namespace"), request.variable("name"));
    request.rights.require(Right::Read, Some(namespace))?;
    let key = Key::new(Kind::Cluster, namespace, name);
    if !is_label(namespace) || !is_subdomain(name) {
        return Err(not_found(&key));
    }
    let asked = asked(&request)?;
    let filter = Filter::of(Kind::Cluster).in_namespace(namespace)?.named(name)?;
    let clusters = selected_ids(&api.database, &filter).await?;
    let Some(cluster) = clusters.first() else { return Err(not_found(&key)) };
    let is_everywhere = request.rights.reach(Right::Read) == Reach::Everywhere;
    api.inspector.explain(*cluster, &asked, is_everywhere, request.slot_owner).await.map_err(|error| match error {
        Unexplained::NoCluster => not_found(&key),
        Unexplained::Store(error) => {
            of_store(ProblemKind::Unavailable, "the state of the cluster could not be read", error)
        }
        Unexplained::NoSlot(problem) => problem.retry_after(RETRY_AFTER),
        busy @ Unexplained::Busy => Problem::new(ProblemKind::Busy, busy.to_string()).retry_after(RETRY_AFTER),
        large @ Unexplained::TooLarge(_) => Problem::new(ProblemKind::TooLarge, large.to_string()),
    })
}

fn asked(request: &ApiRequest) -> Result<Asked, Problem> {
    let text = |name: &str| request.parameter(name).unwrap_or_default().to_owned();
    let (kind, name, namespace) = (text("kind"), text("objectName"), text("objectNamespace"));
    let wrong = |name: &str, what: &str| {
        Err(Problem::new(ProblemKind::Parameter, format!("parameter {name} is not valid: {what}")))
    };
    if !is_kind(&kind) {
        return wrong("kind", "a kind such as ConfigMap is required");
    }
    if !is_path_segment(&name) {
        return wrong("objectName", "the name of an object is required");
    }
    if !namespace.is_empty() && !is_path_segment(&namespace) {
        return wrong("objectNamespace", "it is no name of a namespace");
    }
    Ok(Asked { kind, group: request.parameter("group").map(str::to_owned), namespace, name })
}
