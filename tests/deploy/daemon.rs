//! The rendered Deployments fit the configurations that they mount.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use towline::test_api::config::ClusterAccess;
use towline::test_api::job::Config;
use towline::test_api::jobs::JOBS;
use towline::test_api::resource_sync;

use super::{RENDERED, document, elements, labels, mounted, pod, text, texts, the};

/// Every configuration of resource sync that a kustomization brings.
pub(crate) const CONFIGURATIONS: [&str; 3] =
    ["deploy/base/towline.toml", "deploy/overlays/edge-west/towline.toml", "deploy/overlays/replicated/towline.toml"];

/// A configuration as the daemon reads it.
pub(crate) fn configuration(file: &str) -> Config {
    JOBS.parse(&text(file), []).unwrap_or_else(|error| match error {
        towline::test_api::config::Error::Invalid(faults) => panic!("{file}: {faults}"),
        other => panic!("{file}: {other}"),
    })
}

#[test]
fn the_configuration_is_where_the_daemon_is_told_to_look() {
    for directory in RENDERED {
        let (pod, container) = pod(directory);
        assert_eq!(texts(&container["args"]), ["run", "--config", "/etc/towline/towline.toml"], "{directory}");
        let mount = &container["volumeMounts"][0];
        assert_eq!(
            (&mount["mountPath"], &mount["subPath"]),
            (&json!("/etc/towline/towline.toml"), &json!("towline.toml"))
        );
        // kustomize gives the ConfigMap a name by its content, so that a changed one restarts the pod.
        let generated = &document(&format!("{directory}/kustomization.yaml"))["configMapGenerator"][0];
        assert_eq!(texts(&generated["files"]), ["towline.toml"], "{directory}");
        assert_eq!(pod["volumes"][0]["configMap"]["name"], generated["name"], "{directory}");
    }
}

#[test]
fn the_pod_serves_every_cluster_of_the_configuration() {
    for file in CONFIGURATIONS {
        let directory = if file.contains("replicated") { "deploy/overlays/replicated" } else { "deploy/base" };
        let (pod, container) = pod(directory);
        let config = configuration(file);
        assert!(!resource_sync::sections(&config).is_empty(), "{file}");
        for section in resource_sync::sections(&config) {
            let access = |name| &config.clusters[name].access;
            assert_eq!(*access(&section.local), ClusterAccess::InCluster, "{file}");
            let ClusterAccess::Kubeconfig { path, .. } = access(&section.remote) else { panic!("{file}") };
            let parent = path.parent().and_then(Path::to_str).expect("a directory");
            assert!(mounted(&container).contains(&parent), "{file}: {parent}");
        }
        assert_eq!(pod["automountServiceAccountToken"], true);
    }
}

#[test]
fn probes_and_metrics_are_asked_for_where_the_daemon_listens() {
    let monitor = document("deploy/base/monitoring/pod-monitor.yaml");
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    for directory in RENDERED {
        let (_, container) = pod(directory);
        let port = &container["ports"][0];
        let listen = configuration(&format!("{directory}/towline.toml")).daemon.listen;
        assert!(listen.ip().is_unspecified(), "{directory}: the probes come from outside the pod");
        assert_eq!(port["containerPort"], listen.port(), "{directory}");
        let ready = if directory.ends_with("production")
            || directory.ends_with("applying")
            || directory.ends_with("rabbitmq")
        {
            "/readyz/hub"
        } else {
            "/readyz"
        };
        for (probe, page) in [("livenessProbe", "/healthz"), ("readinessProbe", ready)] {
            let request = &container[probe]["httpGet"];
            assert_eq!((&request["path"], &request["port"]), (&json!(page), &port["name"]), "{directory} {probe}");
        }
        assert_eq!((&endpoint["path"], &endpoint["port"]), (&json!("/metrics"), &port["name"]));
        for (label, value) in monitor["spec"]["selector"]["matchLabels"].as_object().expect("labels") {
            assert_eq!(labels(directory)[label], *value, "{directory}: {label}");
        }
    }
}

#[test]
fn the_platform_waits_longer_than_the_daemon() {
    for directory in RENDERED {
        let (pod, container) = pod(directory);
        let platform = pod["terminationGracePeriodSeconds"].as_u64().expect("a number of seconds");
        let before = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap_or_default();
        let grace = configuration(&format!("{directory}/towline.toml")).daemon.shutdown_grace;
        assert!(Duration::from_secs(platform) > grace + Duration::from_secs(before), "{directory}");
    }
}

#[test]
fn no_two_daemons_run_at_once_without_an_election() {
    for directory in ["deploy/base", "deploy/inventory", "deploy/inventory-configmaps"] {
        let spec = the(directory, "Deployment")["spec"].clone();
        assert_eq!((&spec["replicas"], &spec["strategy"]), (&json!(1), &json!({"type": "Recreate"})), "{directory}");
    }
}

#[test]
fn several_replicas_share_the_sections_out_and_make_room_for_each_other() {
    for (directory, namespace) in
        [("deploy/overlays/replicated", "towline"), ("deploy/status-sync", "open-cluster-management")]
    {
        let spec = the(directory, "Deployment")["spec"].clone();
        assert!(spec["replicas"].as_u64() > Some(1), "{directory}");
        assert_eq!(spec["strategy"]["type"], "RollingUpdate");
        let config = configuration(&format!("{directory}/towline.toml"));
        let election = config.election.expect("an election");
        assert_eq!(election.namespace, namespace);
        assert_eq!(document(&format!("{directory}/namespace.yaml"))["metadata"]["name"], namespace);
        assert_eq!(the(directory, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels(directory));
        let grace = config.daemon.shutdown_grace;
        assert!(grace >= election.lease_duration, "a section that is given up may take a lease's duration to drain");
    }
}

#[test]
fn no_pod_may_do_anything_that_it_does_not_need() {
    for directory in RENDERED {
        let (pod, container) = pod(directory);
        let expected = json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        });
        assert_eq!(container["securityContext"], expected, "{directory}");
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{directory}");
        assert_eq!(pod["securityContext"]["seccompProfile"], json!({"type": "RuntimeDefault"}), "{directory}");
        for key in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(pod.get(key).is_none(), "{directory}: {key}");
        }
        // Readable by the user and, for what root owns, by the group of `fsGroup`.
        for volume in elements(&pod["volumes"]).iter().filter(|volume| volume["secret"] != Value::Null) {
            assert_eq!(volume["secret"]["defaultMode"], 0o440, "{directory}");
        }
        assert!(container["resources"]["limits"].get("cpu").is_none(), "throttling would show as lag");
        for (kind, resource) in [("requests", "cpu"), ("requests", "memory"), ("limits", "memory")] {
            assert!(container["resources"][kind][resource].is_string(), "{directory}: {kind} of {resource}");
        }
        let account = the(directory, "ServiceAccount");
        assert_eq!(pod["serviceAccountName"], account["metadata"]["name"], "{directory}");
        assert_eq!(account["automountServiceAccountToken"], false, "{directory}");
    }
}

#[test]
fn every_secret_of_a_pod_is_made_by_a_command_of_the_documentation() {
    let commands = ["deploy/README.md", "docs/inventory.md", "docs/status-sync.md"].map(text).concat();
    for directory in RENDERED {
        let (pod, _) = pod(directory);
        for name in elements(&pod["volumes"]).iter().filter_map(|volume| volume["secret"]["secretName"].as_str()) {
            let made =
                ["generic", "tls"].iter().any(|kind| commands.contains(&format!("create secret {kind} {name} ")));
            assert!(made, "{directory}: no command makes {name}");
        }
    }
}
