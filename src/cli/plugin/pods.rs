//! Which pods are the replicas of the one release that a command is for.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ContainerPort, Pod};

use super::super::release::Release;

/// Has the release's name, as the chart and Helm set it.
const INSTANCE: &str = "app.kubernetes.io/instance";
/// The names of the ports of the admin server and of the hub's API in a pod of the chart.
const ADMIN: &str = "admin";
const API: &str = "api";

/// One pod of the release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Its admin server, or why it has none now.
    pub(super) admin: Result<u16, String>,
    /// The API of its hub, likewise.
    pub(super) api: Result<u16, String>,
}

/// Why there are no replicas to ask.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unclear {
    /// No release has the name that was asked for; there are these.
    NotThere(Vec<Release>),
    /// One of them has to be named.
    Several(Vec<Release>),
}

/// The one release that is there, or the one with this name.
pub(super) fn choose(pods: &[Pod], named: Option<&str>) -> Result<Release, Unclear> {
    let there = releases(pods);
    let meant: Vec<&Release> = there.iter().filter(|release| named.is_none_or(|name| release.name == name)).collect();
    match meant[..] {
        [] => Err(Unclear::NotThere(there)),
        [release] => Ok(release.clone()),
        _ => Err(Unclear::Several(meant.into_iter().cloned().collect())),
    }
}

/// The pods of a release, sorted by name.
pub(super) fn replicas_of(pods: &[Pod], of: &Release) -> Result<Vec<Replica>, Unclear> {
    let mut replicas: Vec<Replica> =
        pods.iter().filter(|pod| is_there(pod) && release(pod) == *of).map(replica).collect();
    replicas.sort_by(|one, other| one.name.cmp(&other.name));
    if replicas.is_empty() { Err(Unclear::NotThere(releases(pods))) } else { Ok(replicas) }
}

fn releases(pods: &[Pod]) -> Vec<Release> {
    let all: BTreeSet<Release> = pods.iter().filter(|pod| is_there(pod)).map(release).collect();
    all.into_iter().collect()
}

/// A pod that has completed is no replica, and one that is being deleted hands over what it runs.
fn is_there(pod: &Pod) -> bool {
    !matches!(phase(pod), "Succeeded" | "Failed") && pod.metadata.deletion_timestamp.is_none()
}

fn release(pod: &Pod) -> Release {
    let name = pod.metadata.labels.as_ref().and_then(|labels| labels.get(INSTANCE)).cloned();
    Release { namespace: pod.metadata.namespace.clone().unwrap_or_default(), name: name.unwrap_or_default() }
}

fn replica(pod: &Pod) -> Replica {
    let number = |name: &str| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
        let named = ports.find(|port: &&ContainerPort| port.name.as_deref() == Some(name));
        named.and_then(|port| u16::try_from(port.container_port).ok())
    };
    let port = |name: &str| match (phase(pod), number(name)) {
        ("Running", Some(number)) => Ok(number),
        ("Running", None) => Err(format!("no container of it has a port named {name}")),
        (phase, _) => Err(format!("it is {phase}")),
    };
    Replica {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        admin: port(ADMIN),
        api: port(API),
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

#[cfg(test)]
mod tests {
    use std::slice;

    use serde_json::json;

    use super::*;

    fn pod(name: &str, namespace: &str, release: Option<&str>, phase: &str) -> Pod {
        let labels = release.map_or_else(|| json!({}), |release| json!({ INSTANCE: release }));
        let pod = json!({
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"containers": [
                {"name": "proxy", "ports": [{"name": "http", "containerPort": 80}]},
                {"name": "towline", "ports": [{"name": "api", "containerPort": 8443}, {"name": ADMIN, "containerPort": 8385}]},
            ]},
            "status": {"phase": phase},
        });
        serde_json::from_value(pod).expect("a pod")
    }

    fn terminating(mut pod: Pod) -> Pod {
        pod.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-11-29T12:00:00Z")).expect("a time"));
        pod
    }

    fn replicas(pods: &[Pod], named: Option<&str>) -> Vec<Replica> {
        replicas_of(pods, &choose(pods, named).expect("one release")).expect("replicas")
    }

    fn told(releases: &[Release]) -> Vec<String> {
        releases.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_only_release_needs_no_name() {
        let pods = [
            pod("b", "edge", Some("one"), "Running"),
            pod("a", "edge", Some("one"), "Pending"),
            pod("c", "edge", Some("two"), "Succeeded"),
            terminating(pod("d", "edge", Some("one"), "Running")),
            terminating(pod("e", "edge", Some("three"), "Running")),
        ];
        let replicas = replicas(&pods, None);
        let pending = || Err("it is Pending".to_owned());
        let expected = [("a", pending(), pending()), ("b", Ok(8385), Ok(8443))];
        let expected =
            expected.map(|(name, admin, api)| Replica { namespace: "edge".into(), name: name.into(), admin, api });
        assert_eq!(replicas, expected);
    }

    #[test]
    fn of_several_releases_one_is_named() {
        let pods = [
            pod("a", "edge", Some("one"), "Running"),
            pod("b", "edge", Some("two"), "Running"),
            pod("c", "lab", Some("two"), "Running"),
            pod("d", "lab", None, "Running"),
        ];
        let Err(Unclear::Several(all)) = choose(&pods, None) else { panic!("there are four") };
        let (one, two) = ("one (namespace edge)", "two (namespace edge)");
        assert_eq!(told(&all), [one, two, "one without a name (namespace lab)", "two (namespace lab)"]);
        assert_eq!(replicas(&pods, Some("one")).iter().map(|replica| replica.name.as_str()).collect::<Vec<_>>(), ["a"]);
        let Err(Unclear::Several(all)) = choose(&pods, Some("two")) else { panic!("it is in two namespaces") };
        assert_eq!(told(&all), [two, "two (namespace lab)"]);
        let Err(Unclear::NotThere(all)) = choose(&pods[..2], Some("three")) else { panic!("there is none") };
        assert_eq!(told(&all), [one, two]);
        assert_eq!(choose(&[], None), Err(Unclear::NotThere(Vec::new())));
    }

    #[test]
    fn a_release_that_was_chosen_stays_and_is_not_there_when_its_pods_are_gone() {
        let one = pod("a", "edge", Some("one"), "Running");
        let chosen = choose(slice::from_ref(&one), None).expect("one release");
        let others = [pod("b", "edge", Some("two"), "Running"), pod("c", "lab", Some("one"), "Running")];
        let of_both = replicas_of(&[&others[..], slice::from_ref(&one)].concat(), &chosen).expect("it is there");
        assert_eq!(of_both.iter().map(|replica| replica.name.as_str()).collect::<Vec<_>>(), ["a"]);
        let left = [&others[..], &[terminating(one)]].concat();
        let Err(Unclear::NotThere(there)) = replicas_of(&left, &chosen) else { panic!("it is gone") };
        assert_eq!(told(&there), ["two (namespace edge)", "one (namespace lab)"]);
    }

    #[test]
    fn a_pod_without_the_port_is_a_replica_that_does_not_answer() {
        let mut other = pod("a", "edge", Some("one"), "Running");
        other.spec.as_mut().expect("a spec").containers.truncate(1);
        let other = &replicas(&[other], None)[0];
        assert_eq!(other.admin, Err("no container of it has a port named admin".to_owned()));
        assert_eq!(other.api, Err("no container of it has a port named api".to_owned()));
    }
}
