//! What `deploy/` holds is taken by a real API server, as people apply it.

#![expect(clippy::unwrap_used, reason = "the allowance for tests does not reach their helper functions")]

use std::path::{Path, PathBuf};

use integration::control_plane::{ControlPlane, Options};
use integration::{crds, programs, users};
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
    for directory in ["hub", "base", "side-car", "side-car/hub", "status-sync"] {
        apply(&kubeconfig, directory, &[]).await;
        let again = apply(&kubeconfig, directory, &[]).await;
        assert!(again.lines().all(|line| line.ends_with("unchanged")), "{directory} does not settle:\n{again}");
    }
    for directory in ["overlays/edge-west", "overlays/replicated", "overlays/without-monitoring"] {
        let told = apply(&kubeconfig, directory, &["--dry-run=server"]).await;
        assert!(told.contains("deployment.apps/towline") && told.contains("(server dry run)"), "{told}");
    }
    plane.stop().await.unwrap();
}
