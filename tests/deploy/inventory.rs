//! The inventory as a Deployment of its own, told by the environment alone, and its kind.

use serde_json::Value;

use super::{document, elements, texts};

const DEPLOYMENT: &str = "deploy/inventory/deployment.yaml";

fn pod() -> Value {
    document(DEPLOYMENT)["spec"]["template"]["spec"].clone()
}

fn container() -> Value {
    let pod = pod();
    let containers = elements(&pod["containers"]);
    assert_eq!(containers.len(), 1);
    containers[0].clone()
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
    assert_eq!(texts(&container["args"]), ["inventory"]);
    let labels = document(DEPLOYMENT)["spec"]["template"]["metadata"]["labels"].clone();
    assert_eq!(labels, document(DEPLOYMENT)["spec"]["selector"]["matchLabels"]);
    let monitor = document("deploy/base/monitoring/pod-monitor.yaml");
    for (label, value) in monitor["spec"]["selector"]["matchLabels"].as_object().expect("labels") {
        assert_eq!(labels[label], *value, "{label}");
    }
}

#[test]
fn the_token_comes_from_a_secret_and_two_processes_never_report_at_once() {
    let container = container();
    let variable = |name: &str| {
        elements(&container["env"]).iter().find(|variable| variable["name"] == name).cloned().expect("a variable")
    };
    for (name, key) in [("HOSSTED_API_URL", "url"), ("HOSSTED_AUTH_TOKEN", "token")] {
        let reference = serde_json::json!({"secretKeyRef": {"name": "towline-inventory", "key": key}});
        assert_eq!(variable(name)["valueFrom"], reference, "{name}");
    }
    let spec = &document(DEPLOYMENT)["spec"];
    assert_eq!((&spec["replicas"], &spec["strategy"]["type"]), (&1.into(), &"Recreate".into()));
    let help = towline::test_api::jobs::JOBS.commands().find(|command| command.arguments.get_name() == "inventory");
    let help = help.expect("a command").arguments.render_long_help().to_string();
    for variable in elements(&container["env"]) {
        let name = variable["name"].as_str().expect("a name");
        assert!(help.contains(name), "{name} is not in towline inventory --help");
    }
}

#[test]
fn its_account_has_the_role_of_the_job() {
    let binding = document("deploy/inventory/rbac-binding.yaml");
    assert_eq!(binding["roleRef"]["name"], document("deploy/base/rbac/inventory.yaml")["metadata"]["name"]);
    let account = document("deploy/inventory/service-account.yaml");
    let namespace = &document("deploy/inventory/namespace.yaml")["metadata"]["name"];
    assert_eq!(document("deploy/inventory/kustomization.yaml")["namespace"], *namespace);
    assert_eq!(elements(&binding["subjects"])[0]["name"], account["metadata"]["name"]);
    assert_eq!(elements(&binding["subjects"])[0]["namespace"], *namespace);
    assert_eq!(pod()["serviceAccountName"], account["metadata"]["name"]);
}

#[test]
fn the_kind_is_the_one_that_is_watched() {
    let crd = document("deploy/inventory/crd.yaml");
    let names = &crd["spec"]["names"];
    assert_eq!((&crd["spec"]["group"], &crd["spec"]["scope"]), (&"hossted.com".into(), &"Cluster".into()));
    assert_eq!((&names["plural"], texts(&names["shortNames"])), (&"hosstedprojects".into(), vec!["hp"]));
    let version = &elements(&crd["spec"]["versions"])[0];
    assert_eq!((&version["name"], version["subresources"]["status"].is_object()), (&"v1".into(), true));
}

#[test]
fn with_config_maps_it_has_the_role_for_them_and_no_other() {
    const DIRECTORY: &str = "deploy/inventory-configmaps";
    let binding = document(&format!("{DIRECTORY}/rbac-binding.yaml"));
    let role = document("deploy/base/rbac/inventory-configmaps.yaml");
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    assert_eq!(binding["subjects"], document("deploy/inventory/rbac-binding.yaml")["subjects"]);
    let removed = document(&format!("{DIRECTORY}/without-secrets.yaml"));
    assert_eq!(removed["metadata"]["name"], document("deploy/inventory/rbac-binding.yaml")["metadata"]["name"]);
    assert_eq!(removed["$patch"], "delete");
    let driver = document(&format!("{DIRECTORY}/driver.yaml"));
    let patched = &driver["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        (&driver["metadata"]["name"], &patched["name"]),
        (&document(DEPLOYMENT)["metadata"]["name"], &container()["name"])
    );
    assert_eq!(patched["env"], serde_json::json!([{"name": "HELM_DRIVER", "value": "configmap"}]));
}
