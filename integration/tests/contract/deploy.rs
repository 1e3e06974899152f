//! What `deploy/` holds is taken by a real API server, as people apply it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

use std::path::{Path, PathBuf};

use integration::control_plane::{ControlPlane, Options};
use integration::{crds, programs, users};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;
use tokio::process::Command;

/// What somebody is told of when status sync does not do its work.
const STATUS_SYNC_ALERTS: [&str; 4] =
    ["TowlineStatusPassesFailing", "TowlineStatusStale", "TowlineStatusWritesFailing", "TowlineStatusBadRows"];
/// What stands in the dashboard's row of status sync.
const STATUS_SYNC_PANELS: [&str; 6] = [
    "Oldest change that is not written",
    "Length of a pass, p99",
    "Writes by outcome",
    "Reported rows",
    "Passes that failed",
    "Time per statement, p99",
];

/// What tells somebody that the hub does not do its work.
const HUB_ALERTS: [&str; 7] = [
    "TowlineHubUnavailable",
    "TowlineHubGone",
    "TowlineHubErrors",
    "TowlineHubBusy",
    "TowlineHubSlow",
    "TowlineHubWatchLag",
    "TowlineHubLogNotCompacted",
];
/// What stands in the dashboard's row of the hub.
const HUB_PANELS: [&str; 6] = [
    "Requests by code",
    "Time until an answer begins, p99",
    "Watches",
    "Delay of watches",
    "Changes per call of the writer",
    "Rows of the log",
];

/// What tells somebody that events or work do not go over the broker.
const BUS_ALERTS: [&str; 3] = ["TowlineBusLag", "TowlineBusAway", "TowlineBusRefused"];
/// What stands in the dashboard's row of the bus.
const BUS_PANELS: [&str; 3] = ["Events relayed", "Event lag", "Broker connected"];

/// What tells somebody that syncsets are not applied.
const SYNCSETS_ALERTS: [&str; 7] = [
    "TowlineSyncsetsFailing",
    "TowlineClustersUnreachable",
    "TowlineSyncsetsHeld",
    "TowlineDispatchLag",
    "TowlineWorkWaits",
    "TowlineVisitsFailing",
    "TowlineWorkMended",
];
/// What stands in the dashboard's row of syncsets.
const SYNCSETS_PANELS: [&str; 9] = [
    "Clusters by state",
    "Visits by outcome",
    "Length of a pass, p99",
    "Work queue",
    "Delays",
    "Dispatcher",
    "Objects that were sent",
    "Held and released",
    "Not applied, by SelectorSyncSet",
];

/// What tells somebody that an API is not told of Helm's releases.
const INVENTORY_ALERTS: [&str; 4] = [
    "TowlineInventoryPostsFailing",
    "TowlineInventoryPostsRefused",
    "TowlineInventoryUndelivered",
    "TowlineInventoryUndecodable",
];
/// What stands in the dashboard's row of the inventory.
const INVENTORY_PANELS: [&str; 3] = ["Releases", "Posts by outcome", "Releases that can't be decoded"];

/// The monitoring operator's kinds as far as an API server looks at them: their names.
fn monitoring_kind(plural: &str, kind: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.monitoring.coreos.com}}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {{kind: {kind}, listKind: {kind}List, plural: {plural}, singular: {}}}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
",
        kind.to_lowercase()
    )
}

fn monitoring(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("monitoring.coreos.com", "v1", kind))
}

/// Names of the alerts that rules have.
fn alerts(rules: &[DynamicObject]) -> Vec<String> {
    let elements = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let groups = rules.iter().flat_map(|rules| elements(&rules.data["spec"], "groups"));
    let alerts = groups.flat_map(|group| elements(&group, "rules"));
    alerts.filter_map(|alert| alert["alert"].as_str().map(str::to_owned)).collect()
}

/// Titles of the panels that stand in a row of a dashboard.
fn panels_of<'d>(dashboard: &'d Value, row: &str) -> Vec<&'d str> {
    let panels = dashboard["panels"].as_array().map(Vec::as_slice).unwrap_or_default();
    let behind = panels.iter().skip_while(|panel| panel["type"] != "row" || panel["title"] != row).skip(1);
    behind.take_while(|panel| panel["type"] != "row").filter_map(|panel| panel["title"].as_str()).collect()
}

fn deploy(directory: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(directory)
}

async fn apply(kubeconfig: &Path, directory: &str, flags: &[&str]) -> String {
    let kubectl = programs::control_plane("kubectl").await.unwrap();
    let output = Command::new(kubectl)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["apply", "-k"])
        .arg(deploy(directory))
        .args(flags)
        .output()
        .await
        .unwrap();
    let (told, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{directory}: {told}{failed}");
    told.into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_directory_that_people_apply_is_taken_by_an_api_server() {
    let plane = ControlPlane::start(Options::named("deploy").with_crds(&[crds::DATABASES])).await.unwrap();
    let client = plane.client(users::ADMIN).await.unwrap();
    for (plural, kind) in [("podmonitors", "PodMonitor"), ("prometheusrules", "PrometheusRule")] {
        crds::install(&client, &monitoring_kind(plural, kind)).await.unwrap();
    }
    let kubeconfig = plane.kubeconfig(users::ADMIN).unwrap();
    for directory in
        ["hub", "base", "side-car", "side-car/hub", "status-sync", "inventory", "inventory-configmaps", "syncsets/base"]
    {
        apply(&kubeconfig, directory, &[]).await;
        let again = apply(&kubeconfig, directory, &[]).await;
        assert!(again.lines().all(|line| line.ends_with("unchanged")), "{directory} does not settle:\n{again}");
    }
    let namespace = "towline";
    let rules: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &monitoring("PrometheusRule"));
    let alerts = alerts(&rules.list(&ListParams::default()).await.unwrap().items);
    let all = [&STATUS_SYNC_ALERTS[..], &HUB_ALERTS, &BUS_ALERTS, &SYNCSETS_ALERTS, &INVENTORY_ALERTS];
    for &alert in all.into_iter().flatten() {
        assert!(alerts.contains(&alert.to_owned()), "no alert {alert} among {alerts:?}");
    }
    let dashboards: Api<ConfigMap> = Api::namespaced(client, namespace);
    let dashboard = dashboards.get("towline-dashboard").await.unwrap().data.unwrap_or_default();
    let dashboard: Value = serde_json::from_str(&dashboard["towline.json"]).unwrap();
    assert_eq!(panels_of(&dashboard, "Status sync"), STATUS_SYNC_PANELS);
    assert_eq!(panels_of(&dashboard, "Hub"), HUB_PANELS);
    assert_eq!(panels_of(&dashboard, "Bus"), BUS_PANELS);
    assert_eq!(panels_of(&dashboard, "Syncsets"), SYNCSETS_PANELS);
    assert_eq!(panels_of(&dashboard, "Inventory"), INVENTORY_PANELS);
    for directory in ["overlays/edge-west", "overlays/replicated", "overlays/without-monitoring"] {
        let told = apply(&kubeconfig, directory, &["--dry-run=server"]).await;
        assert!(told.contains("deployment.apps/towline") && told.contains("(server dry run)"), "{told}");
    }
    for overlay in ["trial", "production", "applying", "rabbitmq"] {
        let directory = &format!("syncsets/overlays/{overlay}");
        let told = apply(&kubeconfig, directory, &["--dry-run=server"]).await;
        assert!(told.contains("deployment.apps/towline-hub") && told.contains("(server dry run)"), "{told}");
    }
    plane.stop().await.unwrap();
}
