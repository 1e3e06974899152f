//! Status sync as a Deployment of its own, told by the environment alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use towline::test_api::status_sync;

use super::{document, documents, elements, texts};

const DEPLOYMENT: &str = "deploy/status-sync/deployment.yaml";

fn pod() -> Value {
    document(DEPLOYMENT)["spec"]["template"]["spec"].clone()
}

fn container() -> Value {
    let pod = pod();
    let containers = elements(&pod["containers"]);
    assert_eq!(containers.len(), 1);
    containers[0].clone()
}

fn namespace() -> String {
    let name = document("deploy/status-sync/namespace.yaml")["metadata"]["name"].clone();
    assert_eq!(name, document("deploy/status-sync/kustomization.yaml")["namespace"]);
    name.as_str().expect("a name").to_owned()
}

/// What the container's environment is, with what the Secret and the pod's own fields give.
fn environment() -> BTreeMap<String, String> {
    let value = |variable: &Value| match variable.pointer("/valueFrom") {
        None => variable["value"].as_str().unwrap_or_default().to_owned(),
        Some(from) if *from == json!({"fieldRef": {"fieldPath": "metadata.namespace"}}) => namespace(),
        Some(from) => {
            assert_eq!(*from, json!({"secretKeyRef": {"name": "hub-of-hubs-database-secret", "key": "url"}}));
            "postgres://reader:secret@database:5432/hoh?sslmode=verify-full".to_owned()
        }
    };
    let container = container();
    let variables = elements(&container["env"]);
    variables.iter().map(|variable| (variable["name"].as_str().expect("a name").to_owned(), value(variable))).collect()
}

#[test]
fn the_environment_is_a_whole_configuration() {
    let environment = environment();
    let config = status_sync::alone(environment.clone()).unwrap_or_else(|error| panic!("{error}"));
    for name in environment.keys() {
        let mut wrong = environment.clone();
        wrong.insert(name.clone(), "\u{1}".to_owned());
        assert!(status_sync::alone(wrong).is_err(), "nobody reads {name}");
    }
    let section = status_sync::section(&config).expect("status sync");
    assert_eq!((section.interval, section.watch_namespace.as_str()), (Duration::from_secs(5), ""));
    assert_eq!(config.election.expect("an election").namespace, namespace());
    assert_eq!(texts(&container()["args"]), ["status-sync"]);
    let port = &container()["ports"][0];
    assert_eq!(port["containerPort"], config.daemon.listen.port());
    let platform = pod()["terminationGracePeriodSeconds"].as_u64().expect("a number of seconds");
    assert!(Duration::from_secs(platform) > config.daemon.shutdown_grace);
}

#[test]
fn it_is_probed_scraped_and_confined_as_the_daemon_of_the_base() {
    let base = document("deploy/base/deployment.yaml")["spec"]["template"]["spec"].clone();
    let container = container();
    for key in ["ports", "livenessProbe", "readinessProbe", "securityContext", "image"] {
        assert_eq!(container[key], base["containers"][0][key], "{key}");
    }
    for key in ["securityContext", "automountServiceAccountToken", "terminationGracePeriodSeconds"] {
        assert_eq!(pod()[key], base[key], "{key}");
    }
    assert!(container["resources"]["limits"].get("cpu").is_none(), "throttling would show as lag");
    let labels = document(DEPLOYMENT)["spec"]["template"]["metadata"]["labels"].clone();
    assert_eq!(labels, document(DEPLOYMENT)["spec"]["selector"]["matchLabels"]);
    let monitor = document("deploy/base/monitoring/pod-monitor.yaml");
    for (label, value) in monitor["spec"]["selector"]["matchLabels"].as_object().expect("labels") {
        assert_eq!(labels[label], *value, "{label}");
    }
}

#[test]
fn the_database_s_authority_is_mounted_where_the_url_can_name_it() {
    let mounts = container()["volumeMounts"].clone();
    let volumes = pod()["volumes"].clone();
    assert_eq!((elements(&mounts).len(), elements(&volumes).len()), (1, 1));
    assert_eq!(mounts[0]["name"], volumes[0]["name"]);
    let secret = &volumes[0]["secret"];
    assert_eq!((&secret["secretName"], &secret["optional"]), (&json!("hub-of-hubs-database-secret"), &json!(true)));
    assert_eq!(secret["defaultMode"], 0o440, "for the user, and for the group of `fsGroup`");
    let path = format!(
        "{}/{}",
        mounts[0]["mountPath"].as_str().expect("a path"),
        secret["items"][0]["path"].as_str().expect("a path")
    );
    assert!(super::text("deploy/README.md").contains(&path), "{path}");
}

#[test]
fn its_account_has_the_roles_of_the_job_the_election_and_the_state() {
    let account = document("deploy/status-sync/service-account.yaml");
    assert_eq!(pod()["serviceAccountName"], account["metadata"]["name"]);
    let mut bound = BTreeSet::new();
    for binding in documents("deploy/status-sync/rbac-bindings.yaml") {
        let subject =
            json!([{"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": namespace()}]);
        assert_eq!(binding["subjects"], subject);
        bound.insert((binding["kind"].to_string(), binding["roleRef"]["name"].to_string()));
    }
    let role = |file: &str| document(file)["metadata"]["name"].to_string();
    let expected = BTreeSet::from([
        ("\"ClusterRoleBinding\"".to_owned(), role("deploy/base/rbac/status-sync.yaml")),
        ("\"RoleBinding\"".to_owned(), role("deploy/base/rbac/election.yaml")),
        ("\"RoleBinding\"".to_owned(), role("deploy/base/rbac/state.yaml")),
    ]);
    assert_eq!(bound, expected);
    assert!(texts(&document("deploy/status-sync/kustomization.yaml")["resources"]).contains(&"../base/rbac"));
}
