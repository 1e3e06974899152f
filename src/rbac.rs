//! `towline rbac`: the roles that a configuration needs, of the lists that `towline check --connect` reviews, and their bindings to an account.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::cluster::{AccessRequest, Kind, Verb};
use crate::config::{ClusterAccess, ClusterName, SectionName};
use crate::job::Config;
use crate::job::check::say;
use crate::job::command::{Exit, complain};
use crate::job::output::yaml;
use crate::job::permission::{Kinds, PermissionPlace};
use crate::{election, state};

/// A service account, written `NAMESPACE/NAME`.
struct Account<'t> {
    namespace: &'t str,
    name: &'t str,
}

impl<'t> Account<'t> {
    fn of(text: &'t str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        let is_one = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
        is_one.then_some(Self { namespace, name })
    }
}

/// Whether an API server takes this name of a role.
fn is_name(text: &str) -> bool {
    !matches!(text, "" | "." | "..") && !text.contains(['/', '%'])
}

/// Where a role applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Cluster,
    Namespace(String),
    /// In the daemon's own namespace, which the configuration does not name.
    NamespaceOfPod,
}

/// Verbs by group, resource with its subresource, and name (empty: any).
type Access = BTreeMap<(String, String, String), BTreeSet<Verb>>;

/// Prints the roles for every cluster, or those for one of them, with bindings if the daemon's account there is given.
pub fn print(config: &Config, cluster: Option<&ClusterName>, name: &str, account: Option<&str>) -> Exit {
    let known: BTreeSet<&ClusterName> =
        config.clusters.keys().chain(config.jobs.iter().flat_map(|job| job.clusters())).collect();
    if let Some(name) = cluster.filter(|name| !known.contains(name)) {
        let known: Vec<&str> = known.iter().map(|name| name.as_str()).collect();
        complain(&format!("--cluster {name}: the configuration has {}", known.join(", ")));
        return Exit::Usage;
    }
    if !is_name(name) {
        complain(&format!("--name {name}: a role's name is not empty, and has no / and no %"));
        return Exit::Usage;
    }
    let bound = account.map(Account::of);
    if let (Some(account), Some(None)) = (account, &bound) {
        complain(&format!("--service-account {account}: write NAMESPACE/NAME"));
        return Exit::Usage;
    }
    let documents = documents(config, cluster, name, bound.flatten().as_ref());
    if documents.is_empty() {
        complain("no role is needed");
    } else {
        say(&format!(
            "# All roles are named {name}. Those of another daemon in the same cluster or namespace need another --name: `kubectl apply`\n\
             # would replace these by them.\n{}",
            documents.join("---\n").trim_end()
        ));
    }
    Exit::Done
}

fn documents(config: &Config, cluster: Option<&ClusterName>, name: &str, account: Option<&Account<'_>>) -> Vec<String> {
    let is_wanted =
        |place: &PermissionPlace| cluster.is_none_or(|name| *place == PermissionPlace::Cluster(name.clone()));
    // A pod runs in the namespace of its account.
    let is_own = |name| config.clusters.get(name).is_none_or(|cluster| cluster.access == ClusterAccess::InCluster);
    let of_pod = account.filter(|_| cluster.is_some_and(is_own)).map(|account| account.namespace);
    let mut documents = Vec::new();
    for ((place, scope), access) in roles(config).iter().filter(|((place, _), _)| is_wanted(place)) {
        documents.push(format!("{}{}", comment(place, scope, of_pod), yaml(&role(scope, access, name, of_pod))));
        documents.extend(account.map(|account| yaml(&binding(scope, name, account, of_pod))));
    }
    documents
}

fn roles(config: &Config) -> BTreeMap<(PermissionPlace, Scope), Access> {
    let mut roles: BTreeMap<(PermissionPlace, Scope), Access> = BTreeMap::new();
    for (place, scope, request) in requests(config) {
        let resource = [request.resource, request.subresource].join("/").trim_end_matches('/').to_owned();
        let access = roles.entry((place, scope)).or_default();
        access.entry((request.group, resource, request.name)).or_default().insert(request.verb);
    }
    roles
}

/// Everything that is asked of clusters, whichever way they serve the kinds.
pub fn requests(config: &Config) -> Vec<(PermissionPlace, Scope, AccessRequest)> {
    let mut requests = Vec::new();
    for (namespaced, status_subresource) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut kinds = Kinds::default();
        for (cluster, id) in config.jobs.iter().flat_map(|job| job.kinds()) {
            let mut kind = Kind::core("Any", &id.plural, namespaced);
            kind.resource.group.clone_from(&id.group);
            kind.status_subresource = status_subresource;
            kinds.insert(&cluster, &id, kind);
        }
        for permission in config.jobs.iter().flat_map(|job| job.permissions(&kinds)) {
            // Of several that would do, the first is granted.
            let Some(request) = permission.any_of.into_iter().next() else { continue };
            let scope =
                if request.namespace.is_empty() { Scope::Cluster } else { Scope::Namespace(request.namespace.clone()) };
            requests.push((permission.place, scope, request));
        }
    }
    let election = config.election.as_ref();
    let namespace = election.map(|election| &election.namespace).or(config.daemon.state_namespace.as_ref());
    let of_states = namespace.map_or(Scope::NamespaceOfPod, |namespace| Scope::Namespace(namespace.clone()));
    for (cluster, section) in config.jobs.iter().flat_map(|job| job.states()) {
        let access = state::needed_access(section, namespace.map(String::as_str).unwrap_or_default());
        requests
            .extend(access.into_iter().map(|one| (PermissionPlace::Cluster(cluster.clone()), of_states.clone(), one)));
    }
    if let Some(election) = election {
        let elected: Vec<&SectionName> =
            config.jobs.iter().filter(|job| job.is_elected()).flat_map(|job| job.names()).collect();
        let access = election::needed_access(elected, &election.namespace);
        let place = PermissionPlace::Cluster(election.cluster.clone());
        let scope = Scope::Namespace(election.namespace.clone());
        requests.extend(access.into_iter().map(|one| (place.clone(), scope.clone(), one)));
    }
    requests
}

fn comment(place: &PermissionPlace, scope: &Scope, of_pod: Option<&str>) -> String {
    let on = match place {
        PermissionPlace::Cluster(name) => format!("the cluster {name}"),
        PermissionPlace::HubOfSecret => "the hub that the Secret of a lease leads to".to_owned(),
    };
    let is_unknown = *scope == Scope::NamespaceOfPod && of_pod.is_none();
    format!("# On {on}{}.\n", if is_unknown { ", in the namespace of the daemon's pod" } else { "" })
}

/// The name, and the namespace of a scope where it is known.
fn metadata(scope: &Scope, name: &str, of_pod: Option<&str>) -> Value {
    let namespace = match scope {
        Scope::Cluster => None,
        Scope::Namespace(namespace) => Some(namespace.as_str()),
        Scope::NamespaceOfPod => of_pod,
    };
    match namespace {
        Some(namespace) => json!({"name": name, "namespace": namespace}),
        None => json!({"name": name}),
    }
}

fn kind(scope: &Scope) -> &'static str {
    if *scope == Scope::Cluster { "ClusterRole" } else { "Role" }
}

fn role(scope: &Scope, access: &Access, name: &str, of_pod: Option<&str>) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind(scope),
        "metadata": metadata(scope, name, of_pod),
        "rules": rules(access),
    })
}

fn binding(scope: &Scope, name: &str, account: &Account<'_>, of_pod: Option<&str>) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": format!("{}Binding", kind(scope)),
        "metadata": metadata(scope, name, of_pod),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind(scope), "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": account.namespace, "name": account.name}],
    })
}

/// A rule for each resource and list of verbs, and of the names that have the same verbs.
fn rules(access: &Access) -> Vec<Value> {
    let mut rules: BTreeMap<(&str, &str, bool, Vec<&str>), Vec<&str>> = BTreeMap::new();
    for ((group, resource, name), verbs) in access {
        let verbs = verbs.iter().map(|verb| verb.as_str()).collect();
        rules.entry((group, resource, !name.is_empty(), verbs)).or_default().push(name);
    }
    let rule = |((group, resource, is_named, verbs), names): ((&str, &str, bool, Vec<&str>), Vec<&str>)| {
        let mut rule = json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
        if let Some(rule) = rule.as_object_mut().filter(|_| is_named) {
            rule.insert("resourceNames".to_owned(), json!(names));
        }
        rule
    };
    rules.into_iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::JOBS;

    const FILE: &str = r#"
        [daemon]
        state_namespace = "kept"
        [clusters.hub]
        kubeconfig = "/k"
        [clusters.edge]
        in_cluster = true
        [[sync]]
        name = "databases"
        remote = "hub"
        local = "edge"
        resource = "databases.v1.demo.towline.dev"
        secret_names = ["a", "b"]
        [[lease]]
        name = "heartbeat"
        cluster = "edge"
        lease_name = "add-on"
        lease_namespace = "edge-west"
        secret_name = "kubeconfig"
        secret_namespace = "add-on"
    "#;

    fn documents(config: &Config) -> Vec<(String, Value)> {
        let of = |text: String| {
            let (comment, _) = text.split_once('\n').expect("a comment");
            (comment.to_owned(), serde_saphyr::from_str(&text).expect("YAML"))
        };
        super::documents(config, None, "towline", None).into_iter().map(of).collect()
    }

    #[test]
    fn each_cluster_and_each_namespace_has_a_role_with_what_is_asked_of_it() {
        let documents = documents(&JOBS.parse(FILE, []).expect("a configuration"));
        let places: Vec<(&str, &str, &str)> = documents
            .iter()
            .map(|(comment, role)| {
                let text = |pointer: &str| role.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                (comment.as_str(), text("/kind"), text("/metadata/namespace"))
            })
            .collect();
        assert_eq!(
            places,
            [
                ("# On the cluster edge.", "ClusterRole", ""),
                ("# On the cluster edge.", "Role", "add-on"),
                ("# On the cluster edge.", "Role", "kept"),
                ("# On the cluster hub.", "ClusterRole", ""),
                ("# On the hub that the Secret of a lease leads to.", "Role", "edge-west"),
            ]
        );
        let rules = documents[3].1["rules"].as_array().expect("rules");
        let secrets =
            json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"], "verbs": ["update"]});
        assert!(rules.contains(&secrets), "{rules:?}");
    }

    #[test]
    fn without_a_namespace_in_the_configuration_the_state_s_role_is_for_the_pod_s() {
        let text = FILE.replace("state_namespace = \"kept\"", "");
        let documents = documents(&JOBS.parse(&text, []).expect("a configuration"));
        let (_, role) = documents.iter().find(|(comment, _)| comment.contains("daemon's pod")).expect("a role");
        assert_eq!((&role["kind"], role["metadata"].get("namespace")), (&json!("Role"), None));
        assert!(role["rules"].to_string().contains("towline-databases"), "{role}");
    }
    #[test]
    fn each_role_is_bound_in_its_namespace_to_the_account_of_the_cluster() {
        let config = JOBS.parse(&FILE.replace("state_namespace = \"kept\"", ""), []).expect("a configuration");
        let account = Account::of("home/daemon").expect("an account");
        let bound = |cluster: &str| {
            let cluster: ClusterName = cluster.parse().expect("a name");
            let documents = super::documents(&config, Some(&cluster), "other", Some(&account));
            let documents: Vec<Value> =
                documents.iter().map(|text| serde_saphyr::from_str(text).expect("YAML")).collect();
            let pairs = documents.chunks(2).map(|pair| {
                let [role, binding] = pair else { panic!("{pair:?}") };
                assert_eq!(binding["metadata"], role["metadata"]);
                assert_eq!(
                    (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]),
                    (&role["kind"], &json!("other"))
                );
                let subject = json!({"kind": "ServiceAccount", "namespace": "home", "name": "daemon"});
                assert_eq!(binding["subjects"], json!([subject]));
                (binding["kind"].as_str().map(str::to_owned), role["metadata"]["namespace"].as_str().map(str::to_owned))
            });
            pairs.collect::<Vec<_>>()
        };
        let (cluster, role) = (Some("ClusterRoleBinding".to_owned()), Some("RoleBinding".to_owned()));
        let expected =
            [(cluster.clone(), None), (role.clone(), Some("add-on".to_owned())), (role, Some("home".to_owned()))];
        assert_eq!(bound("edge"), expected);
        assert_eq!(bound("hub"), [(cluster, None)]);
    }

    #[test]
    fn names_that_no_role_and_no_account_can_have_are_refused() {
        assert!(is_name("towline:edge") && ["", ".", "..", "a/b", "a%b"].iter().all(|name| !is_name(name)));
        assert!(["", "a", "a/", "/b", "a/b/c"].iter().all(|account| Account::of(account).is_none()));
    }
}
