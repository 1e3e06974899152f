//! Status sync as a Deployment of its own, in the place of the hub-of-hubs component.

use std::time::Duration;

use towline::test_api::status_sync;

use super::daemon::configuration;
use super::{document, elements, pod};

const DIRECTORY: &str = "deploy/status-sync";

#[test]
fn it_has_the_namespace_the_secret_and_the_settings_of_the_component() {
    let config = configuration(&format!("{DIRECTORY}/towline.toml"));
    let section = status_sync::section(&config).expect("status sync");
    assert_eq!((section.interval, section.watch_namespace.as_str()), (Duration::from_secs(5), ""));
    assert_eq!(section.families.len(), 6);
    let namespace = document(&format!("{DIRECTORY}/namespace.yaml"))["metadata"]["name"].clone();
    assert_eq!(namespace, "open-cluster-management");
    assert_eq!(document(&format!("{DIRECTORY}/kustomization.yaml"))["namespace"], namespace);
    let (pod, _) = pod(DIRECTORY);
    let secrets: Vec<_> =
        elements(&pod["volumes"]).iter().filter_map(|volume| volume["secret"]["secretName"].as_str()).collect();
    assert_eq!(secrets, ["hub-of-hubs-database-secret"]);
    assert!(super::text(&format!("{DIRECTORY}/towline.toml")).contains("\"/etc/towline/database/url\""));
}
