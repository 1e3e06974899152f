//! Other field managers of an object.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
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

    /// Which other managers own fields of an object, through these subresources (`""`: the object itself), newest first; empty if it
    /// can't be read. The caches drop `managedFields`, so this sends a request, once for each conflict that is reported.
    pub async fn other_managers(&self, kind: &Kind, key: &ObjectKey, subresources: &[&str]) -> Vec<String> {
        let found: Result<Recorded, _> = self.fetch_as(&kind.object_path(key), PARTIAL_METADATA).await;
        let mut others: Vec<_> = found
            .map_or_else(|_| Vec::new(), |found| found.metadata.managed_fields)
            .into_iter()
            .filter_map(|entry| {
                let by = entry.subresource.unwrap_or_default();
                let is_meant = subresources.contains(&by.as_str());
                let manager = entry.manager.filter(|manager| is_meant && !manager.starts_with(FIELD_MANAGER))?;
                // A report about a status names the status already.
                Some((entry.time.map(|time| time.0), shown_manager(&manager, if by == "status" { "" } else { &by })))
            })
            .collect();
        others.sort_by(|one, other| other.cmp(one));
        others.into_iter().map(|(_, manager)| manager).collect()
    }
}

/// A manager as operators are shown it: `hpa by /scale` if it has written through a subresource.
pub fn shown_manager(manager: &str, subresource: &str) -> String {
    if subresource.is_empty() { manager.to_owned() } else { format!("{manager} by /{subresource}") }
}
