//! The Deployment fits the configuration that it mounts.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use towline::test_api::config::ClusterAccess;
use towline::test_api::job::Config;
use towline::test_api::jobs::JOBS;
use towline::test_api::resource_sync;

use super::{document, elements, text, texts};

/// Every configuration that a kustomization brings.
pub(crate) const CONFIGURATIONS: [&str; 3] =
    ["deploy/base/towline.toml", "deploy/overlays/edge-west/towline.toml", "deploy/overlays/replicated/towline.toml"];

/// Where the volume with the configuration and the kubeconfig is mounted.
const ETC: &str = "/etc/towline";

/// A configuration as the daemon reads it.
pub(crate) fn configuration(file: &str) -> Config {
    JOBS.parse(&text(file), []).unwrap_or_else(|error| match error {
        towline::test_api::config::Error::Invalid(faults) => panic!("{file}: {faults}"),
        other => panic!("{file}: {other}"),
    })
}

fn pod() -> Value {
    document("deploy/base/deployment.yaml")["spec"]["template"]["spec"].clone()
}

fn container() -> Value {
    let pod = pod();
    let containers = elements(&pod["containers"]);
    assert_eq!(containers.len(), 1);
    containers[0].clone()
}

#[test]
fn the_configuration_is_where_the_daemon_is_told_to_look() {
    let container = container();
    assert_eq!(texts(&container["args"]), ["run", "--config", &format!("{ETC}/towline.toml")]);
    let mounts = elements(&container["volumeMounts"]);
    assert_eq!(mounts.len(), 1);
    assert_eq!(mounts[0]["mountPath"], ETC);
    assert!(mounts[0].get("subPath").is_none(), "a mounted part of a volume is never renewed");

    let generated = &document("deploy/base/kustomization.yaml")["configMapGenerator"][0];
    assert_eq!(texts(&generated["files"]), ["towline.toml"]);
    let sources = pod()["volumes"][0]["projected"]["sources"].clone();
    assert_eq!(sources[0]["configMap"]["name"], generated["name"]);
}

#[test]
fn the_pod_serves_every_cluster_of_the_configuration() {
    let sources = pod()["volumes"][0]["projected"]["sources"].clone();
    let mounted = sources[1]["secret"]["items"][0]["path"].as_str().expect("a path").to_owned();
    let kubeconfig = Path::new(ETC).join(mounted);
    for file in CONFIGURATIONS {
        let config = configuration(file);
        assert!(!resource_sync::sections(&config).is_empty(), "{file}");
        for section in resource_sync::sections(&config) {
            let access = |name| &config.clusters[name].access;
            assert_eq!(*access(&section.local), ClusterAccess::InCluster, "{file}");
            match access(&section.remote) {
                ClusterAccess::Kubeconfig { path, .. } => assert_eq!(*path, kubeconfig, "{file}"),
                other @ (ClusterAccess::InCluster | ClusterAccess::Inferred) => panic!("{file}: {other:?}"),
            }
        }
    }
    assert_eq!(pod()["automountServiceAccountToken"], true);
}

#[test]
fn probes_and_metrics_are_asked_for_where_the_daemon_listens() {
    let container = container();
    let port = &container["ports"][0];
    for file in CONFIGURATIONS {
        let listen = configuration(file).daemon.listen;
        assert!(listen.ip().is_unspecified(), "{file}: the probes come from outside the pod");
        assert_eq!(port["containerPort"], listen.port(), "{file}");
    }
    for (probe, page) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let request = &container[probe]["httpGet"];
        assert_eq!((&request["path"], &request["port"]), (&json!(page), &port["name"]), "{probe}");
    }
    let monitor = document("deploy/base/monitoring/pod-monitor.yaml");
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!((&endpoint["path"], &endpoint["port"]), (&json!("/metrics"), &port["name"]));
    let labels = document("deploy/base/deployment.yaml")["spec"]["template"]["metadata"]["labels"].clone();
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], labels);
}

#[test]
fn the_platform_waits_longer_than_the_daemon() {
    let platform = pod()["terminationGracePeriodSeconds"].as_u64().expect("a number of seconds");
    for file in CONFIGURATIONS {
        assert!(Duration::from_secs(platform) > configuration(file).daemon.shutdown_grace, "{file}");
    }
}

#[test]
fn no_two_daemons_run_at_once() {
    let deployment = document("deploy/base/deployment.yaml");
    assert_eq!(deployment["spec"]["replicas"], 1);
    assert_eq!(deployment["spec"]["strategy"], json!({"type": "Recreate"}));
}

#[test]
fn several_replicas_share_the_sections_out_and_make_room_for_each_other() {
    let deployment = document("deploy/overlays/replicated/replicas.yaml");
    assert!(deployment["spec"]["replicas"].as_u64() > Some(1));
    assert_eq!(deployment["spec"]["strategy"]["type"], "RollingUpdate");
    let election = configuration("deploy/overlays/replicated/towline.toml").election.expect("an election");
    let namespace = document("deploy/base/namespace.yaml")["metadata"]["name"].clone();
    assert_eq!(namespace, election.namespace.as_str());
    let budget = document("deploy/overlays/replicated/disruption-budget.yaml");
    let labels = document("deploy/base/deployment.yaml")["spec"]["template"]["metadata"]["labels"].clone();
    assert_eq!(budget["spec"]["selector"]["matchLabels"], labels);
    let grace = configuration("deploy/overlays/replicated/towline.toml").daemon.shutdown_grace;
    assert!(grace >= election.lease_duration, "a section that is given up may take a lease's duration to drain");
}

#[test]
fn the_pod_may_do_nothing_that_it_does_not_need() {
    let namespace = document("deploy/base/namespace.yaml");
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    let container = container();
    let expected = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    });
    assert_eq!(container["securityContext"], expected);
    let pod = pod();
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"], json!({"type": "RuntimeDefault"}));
    for key in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod.get(key).is_none(), "{key}");
    }
    // Readable by the user and, for a kubeconfig that root owns, by the group of `fsGroup`.
    assert_eq!(pod["volumes"][0]["projected"]["defaultMode"], 0o440);
    assert!(container["resources"]["limits"].get("cpu").is_none(), "throttling would show as lag");
    for (kind, resource) in [("requests", "cpu"), ("requests", "memory"), ("limits", "memory")] {
        assert!(container["resources"][kind][resource].is_string(), "{kind} of {resource}");
    }
}
