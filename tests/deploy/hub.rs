//! The hub as a Deployment of its own, configured by the environment alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use towline::test_api::hub;
use towline::test_api::jobs::JOBS;
use towline::test_api::syncset;
use towline::test_api::syncset::config::SyncsetsConfig;

use super::{document, elements, text, texts};

const BASE: &str = "deploy/syncsets/base";
const TRIAL: &str = "deploy/syncsets/overlays/trial";
const RABBITMQ: &str = "deploy/syncsets/overlays/rabbitmq";
const APPLYING: &str = "deploy/syncsets/overlays/applying";
const PRODUCTION: &str = "deploy/syncsets/overlays/production";

fn deployment() -> Value {
    document(&format!("{BASE}/deployment.yaml"))
}

fn pod() -> Value {
    deployment()["spec"]["template"]["spec"].clone()
}

fn container() -> Value {
    let pod = pod();
    let containers = elements(&pod["containers"]);
    assert_eq!(containers.len(), 1);
    containers[0].clone()
}

fn labels() -> Value {
    deployment()["spec"]["template"]["metadata"]["labels"].clone()
}

/// The names of what a patch removes from a list, and the whole of what it sets.
fn patched<'p>(list: &'p [Value], key: &str) -> (BTreeSet<&'p str>, Vec<&'p Value>) {
    let (removed, set): (Vec<&Value>, Vec<&Value>) = list.iter().partition(|entry| entry["$patch"] == "delete");
    (removed.into_iter().map(|entry| entry[key].as_str().expect("a name")).collect(), set)
}

/// The container of the trial's patch.
fn loopback() -> Value {
    document(&format!("{TRIAL}/loopback.yaml"))["spec"]["template"]["spec"].clone()
}

/// The environment of the base, with what the Secret gives.
fn environment() -> BTreeMap<String, String> {
    let value = |variable: &Value| {
        let Some(from) = variable.get("valueFrom") else {
            return variable["value"].as_str().expect("a text").to_owned();
        };
        assert_eq!(*from, json!({"secretKeyRef": {"name": "towline-hub", "key": "POSTGRES_PARAMS"}}));
        let example = document(&format!("{TRIAL}/secret.yaml"));
        assert_eq!(example["metadata"]["name"], "towline-hub");
        example["stringData"]["POSTGRES_PARAMS"].as_str().expect("a text").to_owned()
    };
    let container = container();
    let variables = elements(&container["env"]);
    variables.iter().map(|variable| (variable["name"].as_str().expect("a name").to_owned(), value(variable))).collect()
}

/// The same for the trial.
fn trial() -> BTreeMap<String, String> {
    let mut environment = environment();
    let patch = loopback();
    let (removed, set) = patched(elements(&patch["containers"][0]["env"]), "name");
    for name in removed {
        assert!(environment.remove(name).is_some(), "the trial removes {name}, which the base does not have");
    }
    for variable in set {
        let name = variable["name"].as_str().expect("a name").to_owned();
        let value = variable["value"].as_str().expect("a text").to_owned();
        assert!(environment.insert(name, value).is_some(), "the trial sets {variable}, which the base does not have");
    }
    environment
}

/// C1: what other machines reach has tokens, keys and TLS, and the trial, which has none, is on loopback.
#[test]
fn the_environment_is_a_whole_configuration() {
    let environment = environment();
    for name in environment.keys() {
        let mut wrong = environment.clone();
        wrong.insert(name.clone(), "\u{1}".to_owned());
        let read = hub::alone(wrong, JOBS);
        // A path may be any text.
        let is_path = name.ends_with("_FILE") || name.contains("_TLS_");
        assert_eq!(read.is_ok(), is_path, "{name}");
        if is_path {
            let mut without = environment.clone();
            without.remove(name);
            assert!(hub::alone(without, JOBS).is_err(), "nobody reads {name}");
        }
    }
    let config = hub::alone(environment, JOBS).unwrap_or_else(|error| panic!("{error}"));
    let section = hub::section(&config).expect("the section");
    assert!(!section.is_local() && !section.plaintext && section.migrate);
    let ports: BTreeMap<String, u64> = elements(&container()["ports"])
        .iter()
        .map(|port| {
            (port["name"].as_str().expect("a name").to_owned(), port["containerPort"].as_u64().expect("a port"))
        })
        .collect();
    let api = section.listen.expect("an address").port();
    let expected = [("api", api), ("admin", config.daemon.listen.port())];
    assert_eq!(ports, expected.map(|(name, port)| (name.to_owned(), u64::from(port))).into());
    assert_eq!(texts(&container()["args"]), ["hub"]);
    let platform = pod()["terminationGracePeriodSeconds"].as_u64().expect("a number of seconds");
    let before = document(&format!("{PRODUCTION}/replicas.yaml"))["spec"]["template"]["spec"]["containers"][0]["lifecycle"]
        ["preStop"]["sleep"]["seconds"]
        .as_u64()
        .expect("a number of seconds");
    assert!(Duration::from_secs(platform) > config.daemon.shutdown_grace + Duration::from_secs(before));

    let config = hub::alone(trial(), JOBS).unwrap_or_else(|error| panic!("{error}"));
    let section = hub::section(&config).expect("the section");
    assert!(
        section.is_local() && section.tokens_file.is_none() && section.keys_file.is_none() && section.tls.is_none()
    );
    assert_eq!(section.listen.expect("an address").port(), api);
}

/// The variables of the overlay make syncsets run, with what they do by themselves.
#[test]
fn the_overlay_that_applies_syncsets_is_a_configuration_of_both() {
    let patch = document(&format!("{APPLYING}/syncsets.yaml"));
    let variables = elements(&patch["spec"]["template"]["spec"]["containers"][0]["env"]);
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let mut environment = environment();
    environment.extend(variables.iter().map(|variable| (text(&variable["name"]), text(&variable["value"]))));
    let config = hub::alone(environment, JOBS).unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<String> = config.sections().map(ToString::to_string).collect();
    assert_eq!(names, ["hub", "syncsets"]);
    assert_eq!(syncset::section(&config), Some(&SyncsetsConfig::default()));
    let policy = document(&format!("{APPLYING}/network-policy.yaml"));
    assert_eq!(policy["spec"]["podSelector"]["matchLabels"], labels());
}

/// The variable of the overlay is one that the hub reads, and makes it use the broker.
#[test]
fn the_overlay_of_the_broker_makes_the_hub_use_it() {
    let patch = document(&format!("{RABBITMQ}/bus.yaml"));
    let [variable] = elements(&patch["spec"]["template"]["spec"]["containers"][0]["env"]) else {
        panic!("one variable")
    };
    let (name, from) = (variable["name"].as_str().expect("a name"), &variable["valueFrom"]["secretKeyRef"]);
    assert_eq!(*from, json!({"name": "towline-hub", "key": name}));
    let kustomization = text(&format!("{RABBITMQ}/kustomization.yaml"));
    let url = kustomization.split_whitespace().find(|word| word.starts_with("amqps://")).expect("an example");
    let mut environment = environment();
    environment.insert(name.to_owned(), url.trim_end_matches('.').to_owned());
    let config = hub::alone(environment, JOBS).unwrap_or_else(|error| panic!("{error}"));
    let amqp = hub::section(&config).expect("the section").amqp.as_ref().expect("a broker");
    assert_eq!(amqp.place(), "broker.example:5671/towline");
    let policy = document(&format!("{RABBITMQ}/network-policy.yaml"));
    assert_eq!(policy["spec"]["podSelector"]["matchLabels"], labels());
    assert_eq!(policy["spec"]["egress"][0]["ports"][0]["port"], 5671);
}

#[test]
fn each_file_that_is_named_is_mounted_from_a_secret() {
    let (container, pod) = (container(), pod());
    let mut mounted = BTreeSet::new();
    for mount in elements(&container["volumeMounts"]) {
        assert!(mount.get("subPath").is_none(), "a mounted part of a volume is never renewed");
        assert_eq!(mount["readOnly"], true);
        let volume = elements(&pod["volumes"]).iter().find(|volume| volume["name"] == mount["name"]).expect("a volume");
        assert_eq!(volume["secret"]["defaultMode"], 0o440, "for the user, and for the group of `fsGroup`");
        let folder = mount["mountPath"].as_str().expect("a path");
        // A Secret of TLS has these keys.
        let keys = match elements(&volume["secret"]["items"]) {
            [] => vec!["tls.crt", "tls.key"],
            items => items.iter().map(|item| item["path"].as_str().expect("a path")).collect(),
        };
        mounted.extend(keys.into_iter().map(|key| format!("{folder}/{key}")));
    }
    let named: BTreeSet<String> = environment().into_values().filter(|value| value.starts_with("/etc/")).collect();
    // `POSTGRES_PARAMS` may name it.
    let authority = "/etc/towline/database/ca.crt".to_owned();
    assert!(text("deploy/README.md").contains(&authority));
    let expected: BTreeSet<String> = named.iter().cloned().chain([authority.clone()]).collect();
    assert_eq!(mounted, expected);

    // The trial has none of them but the authority.
    let patch = loopback();
    let (folders, _) = patched(elements(&patch["containers"][0]["volumeMounts"]), "mountPath");
    let (volumes, _) = patched(elements(&patch["volumes"]), "name");
    let left = |path: &String| !folders.iter().any(|folder| path.starts_with(&format!("{folder}/")));
    assert_eq!(mounted.into_iter().filter(left).collect::<Vec<_>>(), [authority]);
    assert_eq!(
        volumes,
        elements(&pod["volumes"])
            .iter()
            .filter_map(|volume| volume["name"].as_str())
            .filter(|name| *name != "database")
            .collect()
    );
}

#[test]
fn every_secret_is_made_by_a_command_of_the_readme_or_by_the_trial() {
    let readme = text("deploy/README.md");
    let pod = pod();
    for volume in elements(&pod["volumes"]) {
        let name = volume["secret"]["secretName"].as_str().expect("a name");
        let made = ["generic", "tls"].iter().any(|kind| readme.contains(&format!("create secret {kind} {name} ")));
        assert!(made, "no command makes {name}");
    }
}

#[test]
fn it_is_probed_and_confined_as_the_daemon_of_the_base() {
    let base = document("deploy/base/deployment.yaml")["spec"]["template"]["spec"].clone();
    let container = container();
    for key in ["livenessProbe", "securityContext", "image"] {
        assert_eq!(container[key], base["containers"][0][key], "{key}");
    }
    let mut ready = base["containers"][0]["readinessProbe"].clone();
    ready["httpGet"]["path"] = json!("/readyz/hub");
    assert_eq!(container["readinessProbe"], ready);
    for key in ["securityContext", "terminationGracePeriodSeconds"] {
        assert_eq!(pod()[key], base[key], "{key}");
    }
    assert!(container["resources"]["limits"].get("cpu").is_none(), "throttling would show as lag");
    let namespace = document(&format!("{BASE}/namespace.yaml"));
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    for directory in [BASE, TRIAL, PRODUCTION, APPLYING, RABBITMQ] {
        let kustomization = document(&format!("{directory}/kustomization.yaml"));
        assert_eq!(kustomization["namespace"], namespace["metadata"]["name"], "{directory}");
    }
}

/// The hub has no permission in the cluster, and nothing that could get one.
#[test]
fn its_account_has_no_token_and_no_role() {
    let account = document(&format!("{BASE}/service-account.yaml"));
    assert_eq!(pod()["serviceAccountName"], account["metadata"]["name"]);
    assert_eq!(
        (&account["automountServiceAccountToken"], &pod()["automountServiceAccountToken"]),
        (&json!(false), &json!(false))
    );
    for directory in [BASE, TRIAL, PRODUCTION, APPLYING, RABBITMQ] {
        let kustomization = document(&format!("{directory}/kustomization.yaml"));
        for resource in texts(&kustomization["resources"]).into_iter().filter(|resource| !resource.starts_with("..")) {
            let kind = document(&format!("{directory}/{resource}"))["kind"].clone();
            let kind = kind.as_str().expect("a kind");
            assert!(!kind.contains("Role"), "{directory}/{resource}: {kind}");
        }
    }
}

#[test]
fn service_monitor_policy_and_budget_select_the_pods() {
    let labels = labels();
    assert_eq!(labels, deployment()["spec"]["selector"]["matchLabels"]);
    let service = document(&format!("{BASE}/service.yaml"));
    assert_eq!(service["spec"]["selector"], labels);
    let policy = document(&format!("{BASE}/network-policy.yaml"));
    assert_eq!(policy["spec"]["podSelector"]["matchLabels"], labels);
    let budget = document(&format!("{PRODUCTION}/disruption-budget.yaml"));
    assert_eq!(budget["spec"]["selector"]["matchLabels"], labels);
    let replicas = document(&format!("{PRODUCTION}/replicas.yaml"));
    for constraint in elements(&replicas["spec"]["template"]["spec"]["topologySpreadConstraints"]) {
        assert_eq!(constraint["labelSelector"]["matchLabels"], labels);
    }
    let monitor = document("deploy/base/monitoring/pod-monitor.yaml");
    for (label, value) in monitor["spec"]["selector"]["matchLabels"].as_object().expect("labels") {
        assert_eq!(labels[label], *value, "{label}");
    }

    let container = container();
    let ports = elements(&container["ports"]);
    let names: Vec<&str> = ports.iter().filter_map(|port| port["name"].as_str()).collect();
    let port = &service["spec"]["ports"][0];
    assert_eq!((elements(&service["spec"]["ports"]).len(), &port["targetPort"]), (1, &json!("api")));
    assert_eq!(port["port"], ports[0]["containerPort"], "the documents' port is the Service's");
    let admitted = elements(&policy["spec"]["ingress"]).iter().flat_map(|rule| elements(&rule["ports"]));
    let admitted: Vec<&str> = admitted.filter_map(|port| port["port"].as_str()).collect();
    assert_eq!(admitted, names);
    assert!(names.contains(&monitor["spec"]["podMetricsEndpoints"][0]["port"].as_str().expect("a port")));
    assert!(policy["spec"]["ingress"][1]["from"].is_array(), "the admin server asks for no token");
}

#[test]
fn production_survives_a_node_and_an_update() {
    let replicas = document(&format!("{PRODUCTION}/replicas.yaml"))["spec"]["replicas"].as_u64().expect("a number");
    let budget = document(&format!("{PRODUCTION}/disruption-budget.yaml"));
    assert!(replicas >= 3);
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    assert_eq!(
        deployment()["spec"]["strategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    );
}

/// C1, for the smallest configuration in a file.
#[test]
fn the_example_is_a_hub_for_other_machines() {
    let config = super::daemon::configuration("config/hub.toml");
    let section = hub::section(&config).expect("the section");
    assert!(!section.is_local() && section.tls.is_some() && !section.plaintext);
    assert_eq!(config.sections().count(), 1);
}
