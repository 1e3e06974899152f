//! `towline check --connect`: whether a lease has the permissions that it needs in both clusters.

use std::sync::Arc;

use super::config::LeaseConfig;
use super::{credentials, permissions};
use crate::cluster::{Cluster, DynamicCluster, DynamicClusters, Kind, ObjectKey};
use crate::job::check::say;
use crate::job::permission::Reviewer;

/// Prints what a section lacks whose managed cluster answers. Returns the number of faults.
pub(super) async fn check_section(config: &LeaseConfig, cluster: &Cluster) -> usize {
    let who = format!("lease {}", config.name);
    let faults = Reviewer::Cluster(cluster).check(&who, &permissions::on_the_managed_cluster(config)).await;
    if faults > 0 {
        return faults;
    }
    match hub(config, cluster).await {
        Ok(hub) => Reviewer::Hub(&hub).check(&who, &permissions::on_the_hub(config)).await,
        Err(fault) => {
            say(&format!("{who}: {fault}"));
            1
        }
    }
}

/// The hub, with the Secret's credentials.
async fn hub(config: &LeaseConfig, cluster: &Cluster) -> Result<Arc<DynamicCluster>, String> {
    let key = ObjectKey::new(config.secret_namespace.as_str(), config.secret_name.as_str());
    let fault = |text: &dyn std::fmt::Display| format!("secret {key}: {text}");
    let secret = cluster.get(&Kind::core("Secret", "secrets", true), &key).await.map_err(|error| fault(&error))?;
    let secret = secret.ok_or_else(|| fault(&"there is no such secret"))?;
    let credentials = credentials::read(secret.content.as_str()).map_err(|error| fault(&error))?;
    credentials.connect(&DynamicClusters::default()).map_err(|error| fault(&error))
}
