//! `towline rbac`: the roles that a configuration needs, of the lists that `towline check --connect` reviews.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::cluster::{AccessRequest, Kind, Verb};
use crate::config::{ClusterName, SectionName};
use crate::job::Config;
use crate::job::check::say;
use crate::job::command::{Exit, complain};
use crate::job::output::yaml;
use crate::job::permission::{Kinds, Place};
use crate::{election, state};

/// The name of all roles: of one daemon, a namespace has one, and a cluster another one.
const NAME: &str = "towline";

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

/// Prints the roles for every cluster, or for one of them.
pub fn print(config: &Config, cluster: Option<&ClusterName>) -> Exit {
    let known: BTreeSet<&ClusterName> =
        config.clusters.keys().chain(config.jobs.iter().flat_map(|job| job.clusters())).collect();
    if let Some(name) = cluster.filter(|name| !known.contains(name)) {
        let known: Vec<&str> = known.iter().map(|name| name.as_str()).collect();
        complain(&format!("--cluster {name}: the configuration has {}", known.join(", ")));
        return Exit::Usage;
    }
    let is_wanted = |place: &Place| cluster.is_none_or(|name| *place == Place::Cluster(name.clone()));
    let roles = roles(config);
    let wanted: Vec<String> = roles.iter().filter(|((place, _), _)| is_wanted(place)).map(text).collect();
    if wanted.is_empty() {
        complain("no role is needed");
    } else {
        say(&format!(
            "# All roles are named {NAME}. Where another daemon has roles in the same cluster or namespace, rename them: `kubectl apply`\n\
             # would replace the other one's.\n{}",
            wanted.join("---\n").trim_end()
        ));
    }
    Exit::Done
}

fn roles(config: &Config) -> BTreeMap<(Place, Scope), Access> {
    let mut roles: BTreeMap<(Place, Scope), Access> = BTreeMap::new();
    for (place, scope, request) in requests(config) {
        let resource = [request.resource, request.subresource].join("/").trim_end_matches('/').to_owned();
        let access = roles.entry((place, scope)).or_default();
        access.entry((request.group, resource, request.name)).or_default().insert(request.verb);
    }
    roles
}

/// Everything that is asked of clusters, whichever way they serve the kinds.
pub fn requests(config: &Config) -> Vec<(Place, Scope, AccessRequest)> {
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
        requests.extend(access.into_iter().map(|one| (Place::Cluster(cluster.clone()), of_states.clone(), one)));
    }
    if let Some(election) = election {
        let elected: Vec<&SectionName> =
            config.jobs.iter().filter(|job| job.is_elected()).flat_map(|job| job.names()).collect();
        let access = election::needed_access(elected, &election.namespace);
        let place = Place::Cluster(election.cluster.clone());
        let scope = Scope::Namespace(election.namespace.clone());
        requests.extend(access.into_iter().map(|one| (place.clone(), scope.clone(), one)));
    }
    requests
}

fn text(((place, scope), access): (&(Place, Scope), &Access)) -> String {
    let on = match place {
        Place::Cluster(name) => format!("the cluster {name}"),
        Place::HubOfSecret => "the hub that the Secret of a lease leads to".to_owned(),
    };
    let (kind, within) = match scope {
        Scope::Cluster => ("ClusterRole", ""),
        Scope::Namespace(_) => ("Role", ""),
        Scope::NamespaceOfPod => ("Role", ", in the namespace of the daemon's pod"),
    };
    let mut role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": NAME},
        "rules": rules(access),
    });
    if let (Scope::Namespace(namespace), Some(metadata)) = (scope, role.get_mut("metadata")) {
        *metadata = json!({"name": NAME, "namespace": namespace});
    }
    format!("# On {on}{within}.\n{}", yaml(&role))
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
        roles(config).iter().map(text).map(of).collect()
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
}
