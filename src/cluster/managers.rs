//! Who else writes an object.

use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};

use super::object::{FIELD_MANAGER, ObjectKey};

/// Which other managers have fields of an object, by way of the subresource or of the object itself (`""`), newest first;
/// `None` where it can't be read. The caches drop `managedFields`, so this is a request: for the one time that a contest
/// is told.
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
