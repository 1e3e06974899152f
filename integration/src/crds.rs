//! The demo kinds, one for each thing about a kind that makes a difference, and the kinds of status sync's hub, typed
//! where a wrong value would have to be refused.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::Value;

use crate::{Error, eventually};

/// `databases.v1.demo.towline.dev`: namespaced, a status subresource, defaults (`spec.replicas`, `spec.backup`).
pub const DATABASES: &str = include_str!("../crds/databases.yaml");
/// `regions.v1.demo.towline.dev`: cluster-scoped, a status subresource.
pub const REGIONS: &str = include_str!("../crds/regions.yaml");
/// `queues.v1beta1.demo.towline.dev`: namespaced, a status without a subresource.
pub const QUEUES: &str = include_str!("../crds/queues.yaml");
/// `documents.v1.demo.towline.dev`: namespaced, a status subresource, and any content, nulls included.
pub const DOCUMENTS: &str = include_str!("../crds/documents.yaml");

/// `hosstedprojects.v1.hossted.com`, as `deploy/` has it.
pub const HOSSTED_PROJECTS: &str = include_str!("../../deploy/chart/files/hosstedprojects.yaml");

/// `policies.v1.policy.open-cluster-management.io`: what leaf hubs comply with; words of compliance are an enum.
pub const POLICIES: &str = include_str!("../crds/policies.yaml");
/// `placementrules.v1.apps.open-cluster-management.io`.
pub const PLACEMENT_RULES: &str = include_str!("../crds/placementrules.yaml");
/// `placements.v1beta1.cluster.open-cluster-management.io`.
pub const PLACEMENTS: &str = include_str!("../crds/placements.yaml");
/// `placementdecisions.v1beta1.cluster.open-cluster-management.io`: `status.decisions` is required, and at most 100.
pub const PLACEMENT_DECISIONS: &str = include_str!("../crds/placementdecisions.yaml");
/// `subscriptions.v1.apps.open-cluster-management.io`.
pub const SUBSCRIPTIONS: &str = include_str!("../crds/subscriptions.yaml");
/// `subscriptionstatuses.v1alpha1.apps.open-cluster-management.io`: no status subresource.
pub const SUBSCRIPTION_STATUSES: &str = include_str!("../crds/subscriptionstatuses.yaml");
/// `subscriptionreports.v1alpha1.apps.open-cluster-management.io`: no status subresource, sums as decimal strings.
pub const SUBSCRIPTION_REPORTS: &str = include_str!("../crds/subscriptionreports.yaml");
/// The kinds of the hub that status sync reads and writes.
pub const HUB_KINDS: [&str; 7] = [
    POLICIES,
    PLACEMENT_RULES,
    PLACEMENTS,
    PLACEMENT_DECISIONS,
    SUBSCRIPTIONS,
    SUBSCRIPTION_STATUSES,
    SUBSCRIPTION_REPORTS,
];

/// A kind of [`HUB_KINDS`], by its plural.
pub fn hub_kind(plural: &str) -> Result<ApiResource, Error> {
    for manifest in HUB_KINDS {
        let crd = definition(manifest)?;
        if crd.spec.names.plural == plural {
            let version = crd.spec.versions.first().map(|version| version.name.clone()).unwrap_or_default();
            return Ok(ApiResource {
                api_version: format!("{}/{version}", crd.spec.group),
                group: crd.spec.group,
                version,
                kind: crd.spec.names.kind,
                plural: crd.spec.names.plural,
            });
        }
    }
    Err(Error::Manifest { what: plural.to_owned(), detail: "it is no kind of the hub".to_owned() })
}

fn definition(manifest: &str) -> Result<CustomResourceDefinition, Error> {
    serde_saphyr::from_str(manifest)
        .map_err(|error| Error::Manifest { what: "of a kind".to_owned(), detail: error.to_string() })
}

/// A new kind is served within two seconds on an idle machine.
const LONGEST_START: Duration = Duration::from_mins(2);

/// Applies a manifest of one definition and waits until each of its served versions is established, in discovery, and
/// can be listed.
pub async fn install(client: &Client, manifest: &str) -> Result<(), Error> {
    let crd = definition(manifest)?;
    let name = crd.metadata.name.clone().unwrap_or_default();
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply("fixture").force();
    api.patch(&name, &params, &Patch::Apply(&crd)).await.map_err(Error::kubernetes(format!("apply {name}")))?;
    eventually(format!("{name} to be served"), LONGEST_START, async || {
        let found = api.get(&name).await.map_err(|error| error.to_string())?;
        let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
        let established =
            conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True");
        if !established {
            return Err(format!("{conditions:?}"));
        }
        for version in crd.spec.versions.iter().filter(|version| version.served) {
            served(client, &crd.spec.group, &version.name, &crd.spec.names.plural).await?;
        }
        Ok(())
    })
    .await
}

async fn served(client: &Client, group: &str, version: &str, plural: &str) -> Result<(), String> {
    let discovery = get(client, &format!("/apis/{group}/{version}")).await?;
    let resources = discovery.get("resources").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if !resources.iter().any(|resource| resource.get("name").and_then(Value::as_str) == Some(plural)) {
        return Err(format!("{plural} is not in the discovery of {group}/{version}"));
    }
    get(client, &format!("/apis/{group}/{version}/{plural}?limit=1")).await.map(|_| ())
}

async fn get(client: &Client, path: &str) -> Result<Value, String> {
    let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    client.request(request).await.map_err(|error| format!("{path}: {error}"))
}
