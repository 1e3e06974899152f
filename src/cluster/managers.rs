//! Other field managers of an object.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde::Deserialize;

use super::connection::PARTIAL_METADATA;
use super::object::{FIELD_MANAGER, Object, ObjectKey};
use super::{Cluster, Error, Kind};

#[derive(Deserialize)]
struct Recorded {
    metadata: RecordedMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecordedMetadata {
    resource_version: Arc<str>,
    #[serde(default)]
    managed_fields: Vec<ManagedFieldsEntry>,
}

impl Cluster {
    /// The managed fields of an object. It is a conflict if the object has changed since it was read.
    pub async fn managed_fields(&self, kind: &Kind, object: &Object) -> Result<Vec<ManagedFieldsEntry>, Error> {
        let found: Recorded = self.fetch_as(&kind.object_path(&object.key), PARTIAL_METADATA).await?;
        if found.metadata.resource_version != object.resource_version {
            let message = format!("{} has changed since it was read", object.key);
            return Err(Error::Conflict { message, exists: true });
        }
        Ok(found.metadata.managed_fields)
    }
}

/// Which other managers own fields of an object, through the subresource or the object itself (`""`), newest first; `None` if
/// it can't be read. The caches drop `managedFields`, so this sends a request, once for each conflict that is reported.
pub async fn other_managers(
    client: &Client,
    resource: &ApiResource,
    key: &ObjectKey,
    subresource: &str,
) -> Option<Vec<String>> {
    let api: Api<DynamicObject> = if key.namespace.is_empty() {
        Api::all_with(client.clone(), resource)
    } else {
        Api::namespaced_with(client.clone(), &key.namespace, resource)
    };
    let object = api.get_metadata(&key.name).await.ok()?;
    let mut others: Vec<_> = object
        .metadata
        .managed_fields
        .unwrap_or_default()
        .into_iter()
        .filter(|entry| entry.subresource.as_deref().unwrap_or_default() == subresource)
        .filter_map(|entry| Some((entry.time.map(|time| time.0), entry.manager?)))
        .filter(|(_, manager)| !manager.starts_with(FIELD_MANAGER))
        .collect();
    others.sort_by(|one, other| other.cmp(one));
    Some(others.into_iter().map(|(_, manager)| manager).collect())
}
