//! The hub server, which asks nothing of the cluster that it runs in.

use serde_json::json;
use towline::test_api::hub;
use towline::test_api::syncset;

use super::daemon::configuration;
use super::{document, elements, labels, mounted, pod, rendered, text, the};

const TRIAL: &str = "deploy/syncsets/trial";
const PRODUCTION: &str = "deploy/syncsets/production";
/// What other machines reach.
const SERVED: [&str; 3] = [PRODUCTION, "deploy/syncsets/applying", "deploy/syncsets/rabbitmq"];

/// What other machines reach has tokens, keys and TLS, and the trial, which has none, is on loopback.
#[test]
fn what_others_reach_is_guarded_and_the_trial_is_on_loopback() {
    for directory in SERVED {
        let config = configuration(&format!("{directory}/towline.toml"));
        let section = hub::section(&config).expect("the section");
        assert!(!section.is_local() && !section.plaintext && section.migrate, "{directory}");
        assert!(section.tokens_file.is_some() && section.keys_file.is_some() && section.tls.is_some(), "{directory}");
        let api = section.listen.expect("an address").port();
        let (_, container) = pod(directory);
        assert_eq!(container["ports"][1], json!({"name": "api", "containerPort": api}), "{directory}");
        assert_eq!(syncset::section(&config).is_some(), directory != PRODUCTION, "{directory}");
        assert_eq!(section.amqp.is_some(), directory.ends_with("rabbitmq"), "{directory}");
    }
    let config = configuration(&format!("{TRIAL}/towline.toml"));
    let section = hub::section(&config).expect("the section");
    assert!(
        section.is_local() && section.tokens_file.is_none() && section.keys_file.is_none() && section.tls.is_none()
    );
    assert!(rendered(TRIAL, "Service").is_empty());
}

/// A database and a broker with certificates of one's own authority.
#[test]
fn an_authority_of_ones_own_lies_beside_the_database_s_url() {
    let readme = text("deploy/README.md");
    assert!(readme.contains("sslrootcert=/etc/towline/database/ca.crt"));
    for directory in [PRODUCTION, TRIAL, "deploy/status-sync"] {
        let (_, container) = pod(directory);
        assert!(mounted(&container).contains(&"/etc/towline/database"), "{directory}");
    }
}

/// The hub has no permission in the cluster, and nothing that could get one.
#[test]
fn its_account_has_no_token_and_no_role() {
    for directory in SERVED.into_iter().chain([TRIAL]) {
        let (pod, _) = pod(directory);
        assert_eq!(pod["automountServiceAccountToken"], false, "{directory}");
        for kind in ["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"] {
            assert!(rendered(directory, kind).is_empty(), "{directory}: {kind}");
        }
    }
}

#[test]
fn service_policy_and_budget_select_the_pods() {
    for directory in SERVED {
        let labels = labels(directory);
        let service = the(directory, "Service");
        assert_eq!(service["spec"]["selector"], labels);
        let policy = the(directory, "NetworkPolicy");
        assert_eq!(policy["spec"]["podSelector"]["matchLabels"], labels);
        assert_eq!(the(directory, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels);
        let (pod, container) = pod(directory);
        for constraint in elements(&pod["topologySpreadConstraints"]) {
            assert_eq!(constraint["labelSelector"]["matchLabels"], labels);
        }
        let port = &service["spec"]["ports"][0];
        assert_eq!((elements(&service["spec"]["ports"]).len(), &port["targetPort"]), (1, &json!("api")));
        assert_eq!(port["port"], container["ports"][1]["containerPort"], "the documents' port is the Service's");
        for rule in elements(&policy["spec"]["ingress"]).iter().filter(|rule| rule["ports"][0]["port"] == "admin") {
            assert!(rule["from"].is_array(), "the admin server asks for no token");
        }
    }
}

#[test]
fn production_survives_a_node_and_an_update() {
    for directory in SERVED {
        let spec = the(directory, "Deployment")["spec"].clone();
        assert!(spec["replicas"].as_u64() >= Some(3), "{directory}");
        assert_eq!(the(directory, "PodDisruptionBudget")["spec"]["maxUnavailable"], 1);
        let one_by_one = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
        assert_eq!(spec["strategy"], one_by_one);
        assert!(pod(directory).1["lifecycle"]["preStop"]["sleep"]["seconds"].is_u64(), "{directory}");
    }
}

#[test]
fn their_namespace_admits_restricted_pods_only() {
    for directory in SERVED.into_iter().chain([TRIAL]) {
        let namespace = document(&format!("{directory}/namespace.yaml"));
        assert_eq!(namespace["metadata"]["name"], document(&format!("{directory}/kustomization.yaml"))["namespace"]);
        assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    }
}

/// For the smallest configuration in a file.
#[test]
fn the_example_is_a_hub_for_other_machines() {
    let config = configuration("config/hub.toml");
    let section = hub::section(&config).expect("the section");
    assert!(!section.is_local() && section.tls.is_some() && !section.plaintext);
    assert_eq!(config.sections().count(), 1);
}
