//! What we ship runs in namespaces that admit restricted pods only, and is reached by Prometheus alone.

use serde_json::{Value, json};

use super::{RENDERED, document, elements, texts, the};

/// The namespaces of what we ship, but for that of status sync, in which others run, too.
fn namespaces() -> Vec<String> {
    let own = RENDERED.iter().filter(|directory| **directory != "deploy/status-sync");
    let rendered = own.map(|directory| format!("{directory}/namespace.yaml"));
    rendered.chain(["deploy/side-car/namespace.yaml".to_owned()]).collect()
}

/// Each policy with the workload that it is for, and both with where they are.
fn policies() -> Vec<(String, Value, Value)> {
    let rendered =
        RENDERED.map(|directory| (directory.to_owned(), the(directory, "NetworkPolicy"), the(directory, "Deployment")));
    let written =
        [("deploy/side-car", "stateful-set"), ("deploy/token-renewal", "cron-job")].map(|(directory, workload)| {
            let kustomization = document(&format!("{directory}/kustomization.yaml"));
            assert!(texts(&kustomization["resources"]).contains(&"network-policy.yaml"), "{directory}");
            let policy = document(&format!("{directory}/network-policy.yaml"));
            (directory.to_owned(), policy, document(&format!("{directory}/{workload}.yaml")))
        });
    rendered.into_iter().chain(written).collect()
}

#[test]
fn the_namespaces_of_what_we_ship_admit_restricted_pods_only() {
    for namespace in namespaces() {
        let labels = document(&namespace)["metadata"]["labels"].clone();
        let expected = json!({
            "pod-security.kubernetes.io/enforce": "restricted",
            "pod-security.kubernetes.io/enforce-version": "v1.30",
        });
        assert_eq!(labels, expected, "{namespace}");
    }
}

#[test]
fn every_pod_has_a_policy_that_lets_nobody_in_but_prometheus_and_nothing_out_but_to_named_ports() {
    for (file, policy, workload) in policies() {
        let policy = &policy["spec"];
        let pod = workload.pointer("/spec/template").or(workload.pointer("/spec/jobTemplate/spec/template"));
        let pod = pod.expect("a pod");
        for (label, value) in policy["podSelector"]["matchLabels"].as_object().expect("labels") {
            assert_eq!(pod["metadata"]["labels"][label], *value, "{file}");
        }
        assert_eq!(texts(&policy["policyTypes"]), ["Ingress", "Egress"], "{file}");
        let ports: Vec<&Value> = elements(&pod["spec"]["containers"])
            .iter()
            .flat_map(|container| elements(&container["ports"]).iter().map(|port| &port["name"]))
            // The API of a trial listens on loopback alone, where a port-forward reaches it.
            .filter(|port| *port != "api" || file != "deploy/syncsets/trial")
            .collect();
        let admitted: Vec<&Value> = elements(&policy["ingress"])
            .iter()
            .flat_map(|rule| elements(&rule["ports"]).iter().map(|port| &port["port"]))
            .collect();
        let sorted = |mut names: Vec<&Value>| {
            names.sort_by_key(ToString::to_string);
            names.into_iter().cloned().collect::<Vec<Value>>()
        };
        assert_eq!(sorted(admitted), sorted(ports), "{file}");
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
            assert!([53, 443, 5353, 5432, 5671, 6443].iter().any(|known| port["port"] == *known), "{file}: {port}");
        }
    }
}
