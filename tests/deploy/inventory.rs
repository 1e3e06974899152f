//! The kind of the inventory, which the chart brings along.

use super::{document, elements, rendered, texts, the};

#[test]
fn the_kind_is_the_one_that_is_watched() {
    let crd = document("deploy/chart/files/hosstedprojects.yaml");
    let names = &crd["spec"]["names"];
    assert_eq!((&crd["spec"]["group"], &crd["spec"]["scope"]), (&"hossted.com".into(), &"Cluster".into()));
    assert_eq!((&names["plural"], texts(&names["shortNames"])), (&"hosstedprojects".into(), vec!["hp"]));
    let version = &elements(&crd["spec"]["versions"])[0];
    assert_eq!((&version["name"], version["subresources"]["status"].is_object()), (&"v1".into(), true));
    for directory in ["deploy/inventory", "deploy/inventory-configmaps"] {
        assert_eq!(document(&format!("{directory}/definition.yaml"))["spec"], crd["spec"], "{directory}");
        // `kubectl delete -f` of what may go would take all projects along.
        assert!(rendered(directory, "CustomResourceDefinition").is_empty(), "{directory}");
    }
}

/// One replaces the other: the same objects with other contents.
#[test]
fn with_config_maps_it_reads_no_secret_but_those_with_ids() {
    for kind in ["Deployment", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"] {
        let (one, other) = (the("deploy/inventory", kind), the("deploy/inventory-configmaps", kind));
        assert_eq!(one["metadata"]["name"], other["metadata"]["name"], "{kind}");
    }
    let role = the("deploy/inventory-configmaps", "ClusterRole");
    let of_secrets: Vec<_> =
        elements(&role["rules"]).iter().filter(|rule| texts(&rule["resources"]).contains(&"secrets")).collect();
    assert_eq!(of_secrets.len(), 1);
    let (names, verbs) = (texts(&of_secrets[0]["resourceNames"]), texts(&of_secrets[0]["verbs"]));
    assert_eq!((names, verbs), (vec!["uuid"], vec!["list", "watch"]));
}
