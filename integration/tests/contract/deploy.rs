//! What `deploy/` holds is taken by a real API server, as people apply and install it, and runs there.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

use std::path::{Path, PathBuf};

use integration::control_plane::{ControlPlane, Options};
use integration::{crds, programs, users};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::process::Command;

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

/// Every pod that we ship would be admitted where only restricted ones are.
async fn admitted(client: &Client) {
    let mut pods = Vec::new();
    for (group, kind, template) in [
        ("apps", "Deployment", "/spec/template"),
        ("apps", "StatefulSet", "/spec/template"),
        ("batch", "CronJob", "/spec/jobTemplate/spec/template"),
    ] {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        for object in Api::<DynamicObject>::all_with(client.clone(), &kind).list(&ListParams::default()).await.unwrap()
        {
            let mut pod = object.data.pointer(template).unwrap().clone();
            pod["metadata"]["name"] = object.name_any().into();
            pods.push((object.namespace().unwrap(), pod));
        }
    }
    assert_eq!(pods.len(), 7, "{pods:?}");
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let restricted: Api<Pod> = Api::namespaced(client.clone(), "towline");
    let mut privileged = pods[0].1.clone();
    privileged["spec"]["hostNetwork"] = true.into();
    let refused = restricted.create(&dry_run, &serde_json::from_value(privileged).unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("violates PodSecurity \"restricted"), "{refused}");
    for (namespace, pod) in pods {
        let admitted = restricted.create(&dry_run, &serde_json::from_value(pod).unwrap()).await;
        assert!(admitted.is_ok(), "a pod of {namespace}: {admitted:?}");
    }
}

#[test]
fn what_people_apply_is_taken_by_an_api_server_and_what_they_install_runs_and_is_forbidden_nothing() {
    super::run(async {
        let plane = ControlPlane::start(Options::named("deploy").with_crds(&[crds::DATABASES])).await.unwrap();
        let client = plane.client(users::ADMIN).await.unwrap();
        for (plural, kind) in [("podmonitors", "PodMonitor"), ("prometheusrules", "PrometheusRule")] {
            crds::install(&client, &monitoring_kind(plural, kind)).await.unwrap();
        }
        let kubeconfig = plane.kubeconfig(users::ADMIN).unwrap();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let shop = json!({"metadata": {"name": "west-shop"}});
        namespaces.create(&PostParams::default(), &serde_json::from_value(shop).unwrap()).await.unwrap();
        for directory in [
            "hub",
            "hub/edge-west",
            "base",
            "token-renewal",
            "side-car",
            "side-car/hub",
            "side-car/token-renewal",
            "status-sync",
            "inventory",
            "inventory-configmaps",
            "syncsets/production",
        ] {
            apply(&kubeconfig, directory, &[]).await;
            let again = apply(&kubeconfig, directory, &[]).await;
            // kubectl sends the selector of a budget each time, since it is replaced as a whole.
            let settles = |line: &str| line.ends_with("unchanged") || line.starts_with("poddisruptionbudget");
            assert!(again.lines().all(settles), "{directory} does not settle:\n{again}");
        }
        let namespace = "towline";
        let rules: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &monitoring("PrometheusRule"));
        let alerts = alerts(&rules.list(&ListParams::default()).await.unwrap().items);
        assert!(alerts.contains(&"TowlineSectionNotWell".to_owned()), "{alerts:?}");
        let dashboards: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let dashboard = dashboards.get("towline-dashboard").await.unwrap().data.unwrap_or_default();
        let dashboard: Value = serde_json::from_str(&dashboard["towline.json"]).unwrap();
        assert_eq!(dashboard["panels"][0]["title"], "Are the clusters in step?");
        // What it leaves out, `apply` does not delete.
        let told = apply(&kubeconfig, "hub/edge-west-namespaces", &[]).await;
        assert!(
            told.contains("rolebinding.rbac.authorization.k8s.io/towline-resource-sync-remote-west created"),
            "{told}"
        );
        admitted(&client).await;
        for directory in ["overlays/edge-west", "overlays/replicated", "overlays/without-monitoring"] {
            let told = apply(&kubeconfig, directory, &["--dry-run=server"]).await;
            assert!(told.contains("deployment.apps/towline") && told.contains("(server dry run)"), "{told}");
        }
        for use_of_the_hub in ["trial", "applying", "rabbitmq"] {
            let directory = &format!("syncsets/{use_of_the_hub}");
            let told = apply(&kubeconfig, directory, &["--dry-run=server"]).await;
            assert!(told.contains("deployment.apps/towline-hub") && told.contains("(server dry run)"), "{told}");
        }
        super::chart::is_taken(&kubeconfig, &client).await;
        super::chart::is_installed_and_upgraded(&kubeconfig, &client).await;
        tokio::join!(
            super::installed::runs_with_what_it_is_given(&plane),
            super::start::is_as_the_page_says(&plane, &client),
        );
        plane.stop().await.unwrap();
    });
}
