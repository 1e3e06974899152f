//! What we ship runs in namespaces that admit restricted pods only, and is reached by Prometheus alone.

use serde_json::{Value, json};

use super::{document, elements, texts};

/// Each workload, with its network policy and its namespace: `None` if others run in it, too.
const WORKLOADS: [(&str, &str, Option<&str>); 6] = [
    ("deploy/base/deployment.yaml", "deploy/base/network-policy.yaml", Some("deploy/base/namespace.yaml")),
    (
        "deploy/side-car/stateful-set.yaml",
        "deploy/side-car/network-policy.yaml",
        Some("deploy/side-car/namespace.yaml"),
    ),
    ("deploy/status-sync/deployment.yaml", "deploy/status-sync/network-policy.yaml", None),
    (
        "deploy/inventory/deployment.yaml",
        "deploy/inventory/network-policy.yaml",
        Some("deploy/inventory/namespace.yaml"),
    ),
    (
        "deploy/syncsets/base/deployment.yaml",
        "deploy/syncsets/base/network-policy.yaml",
        Some("deploy/syncsets/base/namespace.yaml"),
    ),
    (
        "deploy/token-renewal/cron-job.yaml",
        "deploy/token-renewal/network-policy.yaml",
        Some("deploy/base/namespace.yaml"),
    ),
];

fn template(workload: &str) -> Value {
    let document = document(workload);
    document.pointer("/spec/template").or(document.pointer("/spec/jobTemplate/spec/template")).expect("a pod").clone()
}

#[test]
fn the_namespaces_of_what_we_ship_admit_restricted_pods_only() {
    for namespace in WORKLOADS.iter().filter_map(|(_, _, namespace)| *namespace) {
        let labels = document(namespace)["metadata"]["labels"].clone();
        let expected = json!({
            "pod-security.kubernetes.io/enforce": "restricted",
            "pod-security.kubernetes.io/enforce-version": "v1.30",
        });
        assert_eq!(labels, expected, "{namespace}");
    }
}

#[test]
fn every_pod_has_a_policy_that_lets_nobody_in_but_prometheus_and_nothing_out_but_to_named_ports() {
    for (workload, file, _) in WORKLOADS {
        let policy = &document(file)["spec"];
        let pod = template(workload);
        assert_eq!(policy["podSelector"]["matchLabels"], pod["metadata"]["labels"], "{file}");
        assert_eq!(texts(&policy["policyTypes"]), ["Ingress", "Egress"], "{file}");
        let ports: Vec<&Value> = elements(&pod["spec"]["containers"])
            .iter()
            .flat_map(|container| elements(&container["ports"]).iter().map(|port| &port["name"]))
            .collect();
        let admitted: Vec<&Value> = elements(&policy["ingress"])
            .iter()
            .flat_map(|rule| elements(&rule["ports"]).iter().map(|port| &port["port"]))
            .collect();
        assert_eq!(admitted, ports, "{file}");
        for rule in elements(&policy["ingress"]).iter().filter(|rule| rule["ports"][0]["port"] == "admin") {
            let monitoring =
                json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]);
            assert_eq!(rule["from"], monitoring, "{file}");
        }
        let egress = elements(&policy["egress"]);
        assert!(!egress.is_empty(), "{file}");
        for port in egress.iter().flat_map(|rule| {
            elements(&rule["ports"]).iter().chain((rule["ports"] == Value::Null).then_some(&Value::Null))
        }) {
            assert!([53, 443, 5353, 5432, 6443].iter().any(|known| port["port"] == *known), "{file}: {port}");
        }
        let directory = file.rsplit_once('/').expect("a directory").0;
        let kustomization = document(&format!("{directory}/kustomization.yaml"));
        assert!(texts(&kustomization["resources"]).contains(&"network-policy.yaml"), "{directory}");
    }
}
