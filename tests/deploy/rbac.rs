//! The roles that are written by hand grant what the code asks for, and that is what the specification lists.

use std::collections::BTreeSet;

use serde_json::Value;
use towline::test_api::job::Config;
use towline::test_api::job::permission::PermissionPlace;

use super::daemon::configuration;
use super::{document, documents, elements, texts};

/// A permission: verb, group, resource with its subresource, and name (empty: any).
type Permission = (String, String, String, String);

/// The account of an edge on the hub.
const EDGE: &str = "deploy/hub/edge-west";

const READ: &[&str] = &["get", "list", "watch"];

/// What a role grants, rule by rule taken apart.
fn granted(file: &str) -> BTreeSet<Permission> {
    let is_role = |document: &Value| document["kind"] == "ClusterRole" || document["kind"] == "Role";
    let roles: Vec<Value> = documents(file).into_iter().filter(is_role).collect();
    let [role] = roles.as_slice() else { panic!("{file} has one role") };
    let mut granted = BTreeSet::new();
    for rule in elements(&role["rules"]) {
        let keys: BTreeSet<&str> = rule.as_object().expect("a rule").keys().map(String::as_str).collect();
        assert!(keys.is_subset(&["apiGroups", "resources", "resourceNames", "verbs"].into()), "{file}: {keys:?}");
        let names = texts(&rule["resourceNames"]);
        let names = if names.is_empty() { vec![""] } else { names };
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    for name in &names {
                        let permission = (verb.to_owned(), group.to_owned(), resource.to_owned(), (*name).to_owned());
                        assert!(granted.insert(permission.clone()), "{file} grants {permission:?} twice");
                    }
                }
            }
        }
    }
    granted
}

fn table(rows: &[(&[&str], &str, &str, &str)]) -> BTreeSet<Permission> {
    rows.iter()
        .flat_map(|(verbs, group, resource, name)| {
            verbs
                .iter()
                .map(|verb| ((*verb).to_owned(), (*group).to_owned(), (*resource).to_owned(), (*name).to_owned()))
        })
        .collect()
}

#[test]
fn the_roles_name_the_sections_of_the_configurations() {
    let configured = |file| configuration(file).sections().map(ToString::to_string).collect::<Vec<_>>();
    for file in super::daemon::CONFIGURATIONS {
        assert_eq!(configured(file), ["databases"], "{file}");
    }
    assert_eq!(configured("config/status-sync.toml"), ["status-sync"]);
}

/// What the sections of a configuration need in a place.
fn needed(config: &Config, place: &PermissionPlace) -> BTreeSet<Permission> {
    let requests = towline::test_api::rbac::requests(config).into_iter();
    let here = requests.filter(|(of, _, request)| of == place && request.resource != "configmaps");
    here.map(|(_, _, request)| {
        let resource = [request.resource, request.subresource].join("/").trim_end_matches('/').to_owned();
        (request.verb.as_str().to_owned(), request.group, resource, request.name)
    })
    .collect()
}

fn cluster(name: &str) -> PermissionPlace {
    PermissionPlace::Cluster(name.parse().expect("a name"))
}

#[test]
fn the_hub_s_role_grants_what_the_check_asks_for() {
    let config = configuration("deploy/base/towline.toml");
    let sections = towline::test_api::resource_sync::sections(&config);
    assert!(sections.iter().all(|section| section.write_back && !section.secret_names.is_empty()), "all of it is used");
    assert_eq!(granted("deploy/hub/resource-sync-remote.yaml"), needed(&config, &cluster(sections[0].remote.as_str())));
}

/// The specification lists what Teleport's sync-controller has been granted, and nothing beyond.
#[test]
fn what_resource_sync_asks_for_is_what_the_specification_lists() {
    let config = configuration("deploy/base/towline.toml");
    let section = &towline::test_api::resource_sync::sections(&config)[0];
    let local = table(&[
        (READ, "demo.towline.dev", "databases", ""),
        (&["create", "patch", "delete"], "demo.towline.dev", "databases", ""),
        (&["get"], "", "namespaces", "kube-system"),
        (READ, "", "namespaces", ""),
        (&["create", "delete"], "", "namespaces", ""),
        // `towline detach` alone.
        (&["patch"], "", "namespaces", ""),
        (READ, "", "secrets", "database-credentials"),
        (&["patch"], "", "secrets", "database-credentials"),
        (&["create", "patch"], "events.k8s.io", "events", ""),
    ]);
    assert_eq!(needed(&config, &cluster(section.local.as_str())), local);
    let remote = table(&[
        (READ, "demo.towline.dev", "databases", ""),
        (&["patch"], "demo.towline.dev", "databases", ""),
        (&["patch"], "demo.towline.dev", "databases/status", ""),
        (&["get"], "", "namespaces", "kube-system"),
        (&["update"], "", "secrets", "database-credentials"),
        // Optional.
        (&["create", "patch"], "events.k8s.io", "events", ""),
    ]);
    assert_eq!(needed(&config, &cluster(section.remote.as_str())), remote);
}

#[test]
fn what_the_inventory_asks_for_is_what_the_specification_lists() {
    let config = configuration("config/inventory.toml");
    let expected = table(&[
        (READ, "", "secrets", ""),
        (&["list", "watch"], "", "pods", ""),
        (&["list", "watch"], "", "services", ""),
        (&["list", "watch"], "", "persistentvolumeclaims", ""),
        (&["list", "watch"], "networking.k8s.io", "ingresses", ""),
        (READ, "hossted.com", "hosstedprojects", ""),
        (&["patch"], "hossted.com", "hosstedprojects/status", ""),
    ]);
    assert_eq!(needed(&config, &cluster("edge")), expected);
}

#[test]
fn the_roles_of_the_side_car_grant_what_the_check_asks_for() {
    let config = configuration("config/lease.toml");
    let section = &towline::test_api::lease::sections(&config)[0];
    assert_eq!(granted("deploy/side-car/rbac.yaml"), needed(&config, &cluster(section.cluster.as_str())));
    assert_eq!(granted("deploy/side-car/hub/rbac.yaml"), needed(&config, &PermissionPlace::HubOfSecret));
}

/// Name of the bound role and of the account, and its namespace.
fn bound(file: &str) -> (String, String, String) {
    let binding = document(file);
    assert_eq!(binding["kind"], "ClusterRoleBinding", "{file}");
    assert_eq!(binding["roleRef"]["kind"], "ClusterRole", "{file}");
    let subjects = elements(&binding["subjects"]);
    assert_eq!(subjects.len(), 1, "{file}");
    assert_eq!(subjects[0]["kind"], "ServiceAccount", "{file}");
    let name = |value: &Value| value.as_str().expect("a name").to_owned();
    (name(&binding["roleRef"]["name"]), name(&subjects[0]["name"]), name(&subjects[0]["namespace"]))
}

#[test]
fn the_hub_binds_its_role_to_the_account_of_the_edge() {
    let (role, account, namespace) = bound(&format!("{EDGE}/rbac-binding.yaml"));
    assert_eq!(document("deploy/hub/resource-sync-remote.yaml")["metadata"]["name"], role.as_str());
    let accounts = documents(&format!("{EDGE}/service-account.yaml"));
    assert_eq!(accounts[0]["metadata"]["name"], account.as_str());
    assert_eq!(accounts[0]["automountServiceAccountToken"], false);
    assert_eq!(document("deploy/hub/namespace.yaml")["metadata"]["name"], namespace.as_str());
    for directory in [EDGE, "deploy/hub"] {
        assert_eq!(document(&format!("{directory}/kustomization.yaml"))["namespace"], namespace.as_str());
    }
}

#[test]
fn where_an_edge_writes_in_single_namespaces_it_reads_the_same_in_all() {
    let reads = |(verb, _, resource, _): &Permission| {
        READ.contains(&verb.as_str()) && (resource == "databases" || resource == "namespaces")
    };
    let remote = granted("deploy/hub/resource-sync-remote.yaml").into_iter().filter(reads).collect();
    assert_eq!(granted("deploy/hub/resource-sync-remote-read.yaml"), remote);
    let bindings = documents(&format!("{EDGE}-namespaces/rbac-bindings.yaml"));
    let whole = document(&format!("{EDGE}/rbac-binding.yaml"));
    let bound: Vec<_> = bindings.iter().map(|binding| (&binding["kind"], &binding["roleRef"]["name"])).collect();
    let read = &document("deploy/hub/resource-sync-remote-read.yaml")["metadata"]["name"];
    assert_eq!(bound, [(&"ClusterRoleBinding".into(), read), (&"RoleBinding".into(), &whole["roleRef"]["name"])]);
    assert!(bindings.iter().all(|binding| binding["subjects"] == whole["subjects"]));
    let removed = document(&format!("{EDGE}-namespaces/without-all-namespaces.yaml"));
    assert_eq!((&removed["metadata"]["name"], &removed["$patch"]), (&whole["metadata"]["name"], &"delete".into()));
}

/// Whoever has the token of an account may get the next one, and those of no other account.
#[test]
fn an_account_on_the_hub_gets_tokens_of_its_own_and_no_lasting_one() {
    for directory in [EDGE, "deploy/side-car/hub"] {
        let [account] = &documents(&format!("{directory}/service-account.yaml"))[..] else {
            panic!("{directory}: an account and no Secret")
        };
        let name = account["metadata"]["name"].as_str().expect("a name");
        let file = format!("{directory}/token.yaml");
        assert_eq!(granted(&file), table(&[(&["create"], "", "serviceaccounts/token", name)]), "{file}");
        assert_eq!(documents(&file)[1]["subjects"][0]["name"], name, "{file}");
    }
    let tokens = |directory: &str| documents(&format!("{directory}/policy-tokens.yaml"))[0]["spec"].clone();
    let (edges, add_ons) = (tokens("deploy/hub"), tokens("deploy/side-car/hub"));
    assert_eq!(
        (&edges["matchConstraints"], edges["validations"][0]["expression"].as_str()),
        (&add_ons["matchConstraints"], Some("object.spec.expirationSeconds <= 604800"))
    );
    assert_eq!(add_ons["validations"][0]["expression"], edges["validations"][0]["expression"]);
    assert_eq!(add_ons["matchConditions"][0]["expression"], "request.userInfo.username.endsWith(\":add-on\")");
}

/// The job that renews a token, with the patches for the side-car.
#[test]
fn the_renewal_of_a_token_may_write_the_secret_that_it_reads() {
    let job = |file: &str| document(file)["spec"]["jobTemplate"]["spec"]["template"]["spec"].clone();
    for (directory, account, secret, namespace) in [
        ("deploy/token-renewal", "west", "towline-hub", "towline-edges"),
        ("deploy/side-car/token-renewal", "add-on", "add-on-hub-kubeconfig", "edge-west"),
    ] {
        let role = format!("{directory}/rbac.yaml");
        assert_eq!(granted(&role), table(&[(&["get", "patch"], "", "secrets", secret)]), "{role}");
        let pod = job(&format!("{directory}/cron-job.yaml"));
        let set = |name: &str| {
            let variables = elements(&pod["containers"][0]["env"]);
            variables.iter().find(|variable| variable["name"] == name).map(|variable| variable["value"].clone())
        };
        let expected = [("HUB_ACCOUNT", account), ("HUB_NAMESPACE", namespace), ("SECRET", secret)];
        for (variable, value) in expected {
            assert_eq!(set(variable), Some(value.into()), "{directory}: {variable}");
        }
        assert_eq!(pod["volumes"][0]["secret"]["secretName"], secret, "{directory}");
        let home = document(&format!("{directory}/kustomization.yaml"))["namespace"].clone();
        assert_eq!(documents(&role)[1]["subjects"][0]["namespace"], home, "{role}");
    }
}

/// The policies know edges by the namespace of their accounts, and let each have the finalizer of its configuration and its label.
#[test]
fn the_policies_are_for_the_accounts_the_kinds_and_the_marks_of_the_configurations() {
    let namespace = document("deploy/hub/namespace.yaml")["metadata"]["name"].clone();
    let account = format!("\"system:serviceaccount:{}:\"", namespace.as_str().expect("a name"));
    let edge = document(&format!("{EDGE}/service-account.yaml"))["metadata"]["name"].clone();
    let edge = edge.as_str().expect("a name");
    for file in ["policy", "policy-secrets", "policy-events", "policy-tokens"] {
        let documents = documents(&format!("deploy/hub/{file}.yaml"));
        let [policy, binding] = &documents[..] else { panic!("{file}: a policy and its binding") };
        let name = &policy["metadata"]["name"];
        assert_eq!((&binding["metadata"]["name"], &binding["spec"]["policyName"]), (name, name), "{file}");
        assert_eq!(
            (&policy["spec"]["failurePolicy"], texts(&binding["spec"]["validationActions"])),
            (&"Fail".into(), vec!["Deny"])
        );
        let condition = policy["spec"]["matchConditions"][0]["expression"].as_str().expect("an expression");
        assert!(condition.contains(&account), "{file}: {condition}");
        let of_the_label = super::text(&format!("deploy/hub/{file}.yaml")).contains("\"placement.towline.dev/edge\"");
        assert_eq!(of_the_label, file != "policy-tokens", "{file}");
    }
    let policy = &documents("deploy/hub/policy.yaml")[0]["spec"];
    let rule = &policy["matchConstraints"]["resourceRules"][0];
    let of_secrets = super::text("deploy/hub/policy-secrets.yaml");
    for file in super::daemon::CONFIGURATIONS {
        let config = configuration(file);
        for section in towline::test_api::resource_sync::sections(&config) {
            assert!(texts(&rule["apiGroups"]).contains(&section.resource.group.as_str()), "{file}");
            assert!(texts(&rule["resources"]).contains(&section.resource.plural.as_str()), "{file}");
            assert!(of_secrets.contains(&format!("startsWith(\"{}/\")", section.resource.group)), "{file}");
            assert_eq!(section.finalizer_key(), format!("cloud.teleport.dev/sync-{edge}"), "{file}");
        }
    }
    let variables = elements(&policy["variables"]);
    let finalizer = variables.iter().find(|variable| variable["name"] == "finalizer").expect("a variable");
    assert_eq!(finalizer["expression"], "\"cloud.teleport.dev/sync-\" + variables.edge");
}
