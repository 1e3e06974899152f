//! Lists of built-in kinds that strategic merge patches merge by another key than the one by which their elements are told apart.
//!
//! A Service has its ports by number and protocol, and a patch merges them by number alone: TCP 53 and UDP 53 become one port, or the
//! server refuses the result. So such a list is merged here, with the list that is there, and replaced as a whole. The same holds for a list
//! that has one key more than once, as `env` may.

use serde_json::{Map, Value, json};

use super::name::ObjectRef;

/// How the elements of a list are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Keys {
    /// By which a strategic merge patch merges.
    first: &'static str,
    /// What tells apart elements of one `first`, with its default; none if it is the only key.
    second: Option<(&'static str, &'static str)>,
}

const fn by(first: &'static str) -> Keys {
    Keys { first, second: None }
}

const fn by_both(first: &'static str, second: &'static str, default: &'static str) -> Keys {
    Keys { first, second: Some((second, default)) }
}

/// Containers, which strategic merge patches merge by name, as they are told apart.
const CONTAINERS: [&str; 3] = ["containers", "ephemeralContainers", "initContainers"];
/// Lists of a container.
const OF_CONTAINER: [(&str, Keys); 2] = [("env", by("name")), ("ports", by_both("containerPort", "protocol", "TCP"))];
/// Lists of a pod.
const OF_POD: [(&str, Keys); 3] = [
    ("hostAliases", by("ip")),
    ("imagePullSecrets", by("name")),
    ("topologySpreadConstraints", by_both("topologyKey", "whenUnsatisfiable", "")),
];
const OF_SERVICE: [(&str, Keys); 1] = [("ports", by_both("port", "protocol", "TCP"))];
const OF_ACCOUNT: [(&str, Keys); 1] = [("secrets", by("name"))];

/// Where in a kind its pods are described, or the fields that have such lists.
fn place(object: &ObjectRef) -> Option<(&'static str, Lists)> {
    match (object.group.as_str(), object.kind.as_str()) {
        ("", "Service") => Some(("/spec", Lists::Of(&OF_SERVICE))),
        ("", "ServiceAccount") => Some(("", Lists::Of(&OF_ACCOUNT))),
        _ => pod(object).map(|place| (place, Lists::Pod)),
    }
}

/// Where in a built-in kind its pods are described.
pub(super) fn pod(object: &ObjectRef) -> Option<&'static str> {
    match (object.group.as_str(), object.kind.as_str()) {
        ("", "Pod") => Some("/spec"),
        ("", "PodTemplate") => Some("/template/spec"),
        ("batch", "CronJob") => Some("/spec/jobTemplate/spec/template/spec"),
        ("", "ReplicationController")
        | ("apps", "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet")
        | ("batch", "Job") => Some("/spec/template/spec"),
        _ => None,
    }
}

pub(super) fn containers(pod: &mut Value) -> impl Iterator<Item = &mut Value> {
    let lists = pod.as_object_mut().into_iter().flatten().filter(|(name, _)| CONTAINERS.contains(&name.as_str()));
    lists.filter_map(|(_, list)| list.as_array_mut()).flatten()
}

/// Which lists a part of an object has.
#[derive(Clone, Copy)]
enum Lists {
    /// Those of a pod, and of its containers.
    Pod,
    Of(&'static [(&'static str, Keys)]),
}

/// Whether a server may merge a list of this patch wrongly.
pub fn are_at_risk(object: &ObjectRef, patch: &Value) -> bool {
    let Some((pointer, lists)) = place(object) else { return false };
    let mut is_at_risk = false;
    if let Some(part) = patch.pointer(pointer) {
        each(part, None, lists, &mut |_, keys, asked, _| is_at_risk |= needs_merge(keys, asked));
    }
    is_at_risk
}

/// The patch that replaces such lists by what they come to, merged with those of the object that is there.
#[must_use]
pub fn merged(object: &ObjectRef, patch: &Value, live: &Value) -> Value {
    let mut patch = patch.clone();
    let Some((pointer, lists)) = place(object) else { return patch };
    let mut found = Vec::new();
    if let Some(part) = patch.pointer(pointer) {
        each(part, live.pointer(pointer), lists, &mut |path, keys, asked, there| {
            if needs_merge(keys, asked) {
                found.push((path.to_owned(), merged_list(keys, asked, there)));
            }
        });
    }
    for (path, elements) in found {
        if let Some(list) = patch.pointer_mut(&format!("{pointer}{path}")) {
            *list = std::iter::once(json!({"$patch": "replace"})).chain(elements).collect();
        }
    }
    patch
}

/// The first element of such a list that the object lacks although the patch has it, in words.
pub fn lacking(object: &ObjectRef, patch: &Value, after: &Value) -> Option<String> {
    let (pointer, lists) = place(object)?;
    let mut lacking = None;
    each(patch.pointer(pointer)?, after.pointer(pointer), lists, &mut |path, keys, asked, there| {
        if !needs_merge(keys, asked) {
            return;
        }
        let count = |elements: &[Value], key: &(String, String)| {
            elements.iter().filter(|element| keys.of(element).as_ref() == Some(key)).count()
        };
        for key in asked.iter().filter_map(|element| keys.of(element)) {
            if count(there, &key) < count(asked, &key) && lacking.is_none() {
                let (first, second) = &key;
                let second = keys.second.map(|(name, _)| format!(", {name} {second}")).unwrap_or_default();
                lacking = Some(format!("{pointer}{path} lacks {} {first}{second}", keys.first));
            }
        }
    });
    lacking
}

/// Takes a list's place, its keys, and its elements in both objects.
type Call<'c> = dyn FnMut(&str, Keys, &[Value], &[Value]) + 'c;

/// Calls back for each list of a part of an object.
fn each(part: &Value, live: Option<&Value>, lists: Lists, call: &mut Call<'_>) {
    let fields = match lists {
        Lists::Pod => &OF_POD[..],
        Lists::Of(fields) => fields,
    };
    each_of(part, live, "", fields, call);
    if !matches!(lists, Lists::Pod) {
        return;
    }
    for name in CONTAINERS {
        for (index, container) in elements(part, name).iter().enumerate() {
            let is_it = |there: &&Value| there.get("name") == container.get("name");
            let there = live.and_then(|live| elements(live, name).iter().find(is_it));
            each_of(container, there, &format!("/{name}/{index}"), &OF_CONTAINER, call);
        }
    }
}

fn each_of(part: &Value, live: Option<&Value>, path: &str, fields: &[(&str, Keys)], call: &mut Call<'_>) {
    for (name, keys) in fields {
        let asked = elements(part, name);
        if !asked.is_empty() {
            call(&format!("{path}/{name}"), *keys, asked, live.map_or(&[], |live| elements(live, name)));
        }
    }
}

fn elements<'v>(part: &'v Value, name: &str) -> &'v [Value] {
    part.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl Keys {
    /// The keys of an element, as text; none if it has none, as a directive of a patch.
    fn of(self, element: &Value) -> Option<(String, String)> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let first = element.get(self.first).map(text)?;
        let second = self.second.map(|(name, default)| element.get(name).map_or_else(|| default.to_owned(), text));
        Some((first, second.unwrap_or_default()))
    }
}

/// Whether the server may take several elements for one.
fn needs_merge(keys: Keys, asked: &[Value]) -> bool {
    let all: Option<Vec<_>> = asked.iter().map(|element| keys.of(element)).collect();
    let is_directive = |element: &Value| element.as_object().is_some_and(|fields| fields.contains_key("$patch"));
    let Some(mut all) = all.filter(|_| !asked.iter().any(is_directive)) else { return false };
    let count = all.len();
    all.sort();
    all.dedup();
    keys.second.is_some() || all.len() < count
}

/// The elements that are there, each with what is asked of it, and then those that are new.
fn merged_list(keys: Keys, asked: &[Value], there: &[Value]) -> Vec<Value> {
    let mut left: Vec<(Option<(String, String)>, &Value)> =
        asked.iter().map(|element| (keys.of(element), element)).collect();
    let asked_keys: Vec<Option<(String, String)>> = left.iter().map(|(key, _)| key.clone()).collect();
    let mut merged = Vec::new();
    for element in there {
        let key = keys.of(element);
        match left.iter().position(|(asked, _)| *asked == key) {
            Some(at) => {
                let (_, asked) = left.remove(at);
                let mut element = element.clone();
                merge(&mut element, asked);
                merged.push(element);
            }
            // The patch gives all elements of this key, so a further one goes.
            None if asked_keys.contains(&key) => {}
            None => merged.push(element.clone()),
        }
    }
    merged.extend(left.into_iter().map(|(_, element)| element.clone()));
    merged
}

/// As a merge patch does.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Some(target) = value.as_object_mut() else { return };
    for (name, given) in fields {
        if given.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name).or_insert(Value::Null), given);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(group: &str, kind: &str) -> ObjectRef {
        ObjectRef { group: group.to_owned(), kind: kind.to_owned(), namespace: "n".to_owned(), name: "a".to_owned() }
    }

    fn port(port: u16, protocol: Option<&str>, target: u16) -> Value {
        let mut element = json!({"port": port, "targetPort": target});
        if let Some(protocol) = protocol {
            element["protocol"] = json!(protocol);
        }
        element
    }

    fn service(ports: &[Value]) -> Value {
        json!({"spec": {"type": "ClusterIP", "ports": ports}})
    }

    #[test]
    fn ports_of_one_number_are_told_apart_by_protocol_and_none_is_lost() {
        let (tcp, udp) = (Some("TCP"), Some("UDP"));
        let of = object("", "Service");
        for (asked, there, expected) in [
            // Both, where there is one.
            (
                vec![port(53, tcp, 1), port(53, udp, 2)],
                vec![port(53, tcp, 9)],
                vec![port(53, tcp, 1), port(53, udp, 2)],
            ),
            // One, where there are both.
            (
                vec![port(53, udp, 2)],
                vec![port(53, tcp, 9), port(53, udp, 9)],
                vec![port(53, tcp, 9), port(53, udp, 2)],
            ),
            // Another protocol than what is there.
            (vec![port(53, udp, 2)], vec![port(53, tcp, 9)], vec![port(53, tcp, 9), port(53, udp, 2)]),
            // No protocol is TCP, as for the server.
            (vec![port(53, None, 2)], vec![port(53, udp, 9)], vec![port(53, udp, 9), port(53, None, 2)]),
            (
                vec![port(53, None, 1), port(53, udp, 2)],
                vec![port(53, udp, 9)],
                vec![port(53, udp, 2), port(53, None, 1)],
            ),
            (
                vec![port(53, None, 2)],
                vec![port(53, udp, 9), port(53, tcp, 9)],
                vec![port(53, udp, 9), port(53, tcp, 2)],
            ),
            (vec![port(80, None, 2)], vec![port(53, udp, 9)], vec![port(53, udp, 9), port(80, None, 2)]),
            (vec![port(80, None, 2)], vec![], vec![port(80, None, 2)]),
        ] {
            let patch = service(&asked);
            assert!(are_at_risk(&of, &patch));
            let mut whole = vec![json!({"$patch": "replace"})];
            whole.extend(expected.clone());
            assert_eq!(merged(&of, &patch, &service(&there)), service(&whole), "{asked:?} {there:?}");
            assert_eq!(lacking(&of, &patch, &service(&expected)), None);
        }
        let both = service(&[port(53, tcp, 1), port(53, udp, 1)]);
        let lacks = lacking(&of, &both, &service(&[port(53, udp, 1)]));
        assert_eq!(lacks.as_deref(), Some("/spec/ports lacks port 53, protocol TCP"));
        assert_eq!(
            lacking(&of, &service(&[port(53, None, 1)]), &service(&[])).as_deref(),
            Some("/spec/ports lacks port 53, protocol TCP")
        );
    }

    #[test]
    fn lists_of_containers_are_merged_with_those_of_the_same_container() {
        let of = object("apps", "Deployment");
        let pod = |containers: Value, constraints: Value| json!({"spec": {"template": {"spec": {"containers": containers, "topologySpreadConstraints": constraints}}}});
        let constraint = |when: &str, skew: u8| json!({"topologyKey": "z", "whenUnsatisfiable": when, "maxSkew": skew});
        let env = |value: &str| json!({"name": "A", "value": value});
        let ports = |protocol: &str| json!({"containerPort": 53, "protocol": protocol});
        let patch = pod(
            json!([{"name": "b", "env": [env("1"), env("2")]}, {"name": "a", "ports": [ports("UDP")]}]),
            json!([constraint("ScheduleAnyway", 1)]),
        );
        let live = pod(
            json!([{"name": "a", "ports": [ports("TCP")]}, {"name": "b", "env": [json!({"name": "B"}), env("0"), env("7"), env("8")]}]),
            json!([constraint("DoNotSchedule", 2)]),
        );
        let replace = json!({"$patch": "replace"});
        let expected = pod(
            json!([{"name": "b", "env": [replace, {"name": "B"}, env("1"), env("2")]},
                {"name": "a", "ports": [replace, ports("TCP"), ports("UDP")]}]),
            json!([replace, constraint("DoNotSchedule", 2), constraint("ScheduleAnyway", 1)]),
        );
        assert_eq!(merged(&of, &patch, &live), expected);
        // A container that is not there yet.
        let of_new = merged(&of, &patch, &json!({}));
        assert_eq!(of_new["spec"]["template"]["spec"]["containers"][0]["env"], json!([replace, env("1"), env("2")]));
    }

    #[test]
    fn a_patch_without_such_lists_or_with_directives_is_sent_as_it_is() {
        let deployment = object("apps", "Deployment");
        for patch in [
            json!({"spec": {"replicas": 1}}),
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "env": [{"name": "A"}, {"name": "B"}]}]}}}}),
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "ports": []}]}}}}),
        ] {
            assert!(!are_at_risk(&deployment, &patch), "{patch}");
        }
        let service_of = object("", "Service");
        for ports in [json!([{"$patch": "delete", "port": 53}]), json!([{"port": 1}, {"$patch": "replace"}])] {
            assert!(!are_at_risk(&service_of, &json!({"spec": {"ports": ports}})), "{ports}");
        }
        assert!(!are_at_risk(&object("networking.k8s.io", "NetworkPolicy"), &service(&[port(1, None, 1)])));
        let secrets =
            json!({"imagePullSecrets": [{"name": "a"}, {"name": "a"}], "secrets": [{"name": "a"}, {"name": "a"}]});
        let account = merged(&object("", "ServiceAccount"), &secrets, &json!({}));
        assert_eq!(account["imagePullSecrets"], secrets["imagePullSecrets"], "it is replaced by the server");
        assert_eq!(account["secrets"][0], json!({"$patch": "replace"}));
    }
}
