//! `towline check --connect`: what a lease needs of both clusters, and whether it is there.

use std::time::Duration;

use super::config::LeaseConfig;
use super::credentials;
use crate::cluster::{AccessRequest, Cluster, Connection, Kind, ObjectKey, Verb};

/// An answer of the hub that has not come by then does not come.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The verbs on the Secret and the pod.
const READ: [Verb; 3] = [Verb::Get, Verb::List, Verb::Watch];

/// Everything that is missing for a section whose managed cluster answers, one sentence each.
pub(super) async fn check(config: &LeaseConfig, cluster: &Cluster) -> Vec<String> {
    let name = cluster.name();
    let mut faults = Vec::new();
    for request in on_the_managed_cluster(config) {
        match cluster.review_access(&request).await {
            Ok(decision) if decision.allowed => {}
            Ok(decision) => faults.push(format!("cluster {name}: {}", request.denied(&decision.reason))),
            Err(error) => faults.push(format!("cluster {name}: {error}")),
        }
    }
    if !faults.is_empty() {
        return faults;
    }
    match hub(config, cluster).await {
        Ok(connection) => faults.extend(on_the_hub(config, &connection).await),
        Err(fault) => faults.push(fault),
    }
    faults
}

/// The hub by the Secret's credentials.
async fn hub(config: &LeaseConfig, cluster: &Cluster) -> Result<Connection, String> {
    let key = ObjectKey::new(config.secret_namespace.as_str(), config.secret_name.as_str());
    let fault = |text: &dyn std::fmt::Display| format!("secret {key}: {text}");
    let secret = cluster.get(&Kind::core("Secret", "secrets", true), &key).await.map_err(|error| fault(&error))?;
    let secret = secret.ok_or_else(|| fault(&"there is no such secret"))?;
    let credentials = credentials::read(secret.content.as_str()).map_err(|error| fault(&error))?;
    let name = super::hub::hub_name();
    Connection::connect(name, credentials.config, ANSWER_WITHIN).map_err(|_| fault(&credentials::Error::Unusable))
}

async fn on_the_hub(config: &LeaseConfig, hub: &Connection) -> Vec<String> {
    let mut faults = Vec::new();
    let mut renews = None;
    for verb in [Verb::Get, Verb::Create, Verb::Patch, Verb::Update] {
        // A name can't be granted for what is not there yet.
        let name = if verb == Verb::Create { "" } else { &config.lease_name };
        let request = AccessRequest::new(verb, &Kind::lease().full_resource(), &config.lease_namespace, name);
        let allowed = match hub.review_access(&request, ANSWER_WITHIN).await {
            Ok(decision) => decision.allowed,
            Err(error) => return vec![format!("hub: {error}")],
        };
        match (verb, allowed) {
            (Verb::Patch | Verb::Update, true) => renews = Some(verb),
            (Verb::Patch | Verb::Update, false) | (_, true) => {}
            (_, false) => faults.push(format!("hub: {}", request.denied(""))),
        }
    }
    if renews.is_none() {
        let namespace = &config.lease_namespace;
        faults.push(format!("hub: not allowed to patch or update leases.coordination.k8s.io in namespace {namespace}"));
    }
    faults
}

fn on_the_managed_cluster(config: &LeaseConfig) -> Vec<AccessRequest> {
    let secret = ("secrets", &config.secret_namespace, &config.secret_name);
    let pod = config.pod.as_ref().map(|pod| ("pods", &pod.namespace, &pod.name));
    let read = |(resource, namespace, name): (&str, &String, &String)| {
        READ.map(|verb| AccessRequest::new(verb, resource, namespace, name))
    };
    std::iter::once(secret).chain(pod).flat_map(read).collect()
}
