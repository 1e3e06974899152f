//! Fields of built-in kinds of which an object may have only one, or that another value of a field beside them forbids.
//!
//! A manifest that changes from one to the other does not give the former any more. It stays on the cluster all the same if it is a default
//! of the server, if somebody else has given it, or if nothing is removed (`CreateOrUpdate`), and the server refuses the change. What is
//! cleared here is only sent after such a refusal.

use serde_json::{Map, Value};

use super::lists::{containers, pod};
use super::name::ObjectRef;
use crate::documents::FieldPointer;

/// Which fields an object can't have together.
enum Rule {
    /// At most one of these fields may be set.
    OneOf(&'static [&'static str]),
    /// The field `by` with one of these values forbids others.
    Decided { by: &'static str, values: &'static [&'static str], forbidden: &'static [&'static str] },
}

/// Where in an object, or in a part of it, a rule holds; `*` stands for each element of a list.
type Rules = &'static [(&'static str, Rule)];

const HANDLERS: Rule = Rule::OneOf(&["exec", "grpc", "httpGet", "tcpSocket"]);
const ACTIONS: Rule = Rule::OneOf(&["exec", "httpGet", "sleep", "tcpSocket"]);
const CLIENT: Rule = Rule::OneOf(&["service", "url"]);
const PROFILE: Rule =
    Rule::Decided { by: "type", values: &["RuntimeDefault", "Unconfined"], forbidden: &["localhostProfile"] };
const ROLLING_UPDATE: Rule =
    Rule::Decided { by: "type", values: &["OnDelete", "Recreate"], forbidden: &["rollingUpdate"] };

const OF_POD: Rules = &[
    ("/securityContext/appArmorProfile", PROFILE),
    ("/securityContext/seccompProfile", PROFILE),
    ("/resourceClaims/*", Rule::OneOf(&["resourceClaimName", "resourceClaimTemplateName"])),
    (
        "/volumes/*",
        Rule::OneOf(&[
            "awsElasticBlockStore",
            "azureDisk",
            "azureFile",
            "cephfs",
            "cinder",
            "configMap",
            "csi",
            "downwardAPI",
            "emptyDir",
            "ephemeral",
            "fc",
            "flexVolume",
            "flocker",
            "gcePersistentDisk",
            "gitRepo",
            "glusterfs",
            "hostPath",
            "image",
            "iscsi",
            "nfs",
            "persistentVolumeClaim",
            "photonPersistentDisk",
            "portworxVolume",
            "projected",
            "quobyte",
            "rbd",
            "scaleIO",
            "secret",
            "storageos",
            "vsphereVolume",
        ]),
    ),
];

const OF_CONTAINER: Rules = &[
    ("/livenessProbe", HANDLERS),
    ("/readinessProbe", HANDLERS),
    ("/startupProbe", HANDLERS),
    ("/lifecycle/postStart", ACTIONS),
    ("/lifecycle/preStop", ACTIONS),
    ("/securityContext/appArmorProfile", PROFILE),
    ("/securityContext/seccompProfile", PROFILE),
    ("/env/*", Rule::OneOf(&["value", "valueFrom"])),
    (
        "/env/*/valueFrom",
        Rule::OneOf(&["configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"]),
    ),
];

/// The rules of a built-in kind, beside those of its pods. A custom resource may have fields of the same names that mean something else.
fn of_kind(object: &ObjectRef) -> Rules {
    match (object.group.as_str(), object.kind.as_str()) {
        ("", "Service") => &[
            (
                "/spec",
                Rule::Decided { by: "sessionAffinity", values: &["None"], forbidden: &["sessionAffinityConfig"] },
            ),
            (
                "/spec",
                Rule::Decided {
                    by: "type",
                    values: &["ClusterIP", "ExternalName"],
                    forbidden: &["externalTrafficPolicy"],
                },
            ),
            (
                "/spec",
                Rule::Decided {
                    by: "type",
                    values: &["ClusterIP", "ExternalName", "NodePort"],
                    forbidden: &["allocateLoadBalancerNodePorts", "loadBalancerClass", "loadBalancerSourceRanges"],
                },
            ),
        ],
        ("apps", "Deployment") => &[("/spec/strategy", ROLLING_UPDATE)],
        ("apps", "DaemonSet" | "StatefulSet") => &[("/spec/updateStrategy", ROLLING_UPDATE)],
        ("policy", "PodDisruptionBudget") => &[("/spec", Rule::OneOf(&["maxUnavailable", "minAvailable"]))],
        ("networking.k8s.io", "Ingress") => &[
            ("/spec/defaultBackend", Rule::OneOf(&["resource", "service"])),
            ("/spec/defaultBackend/service/port", Rule::OneOf(&["name", "number"])),
        ],
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding" | "ValidatingAdmissionPolicyBinding") => {
            &[("/spec/paramRef", Rule::OneOf(&["name", "selector"]))]
        }
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration") => {
            &[("/webhooks/*/clientConfig", CLIENT)]
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => &[
            ("/spec/conversion", Rule::Decided { by: "strategy", values: &["None"], forbidden: &["webhook"] }),
            ("/spec/conversion/webhook/clientConfig", CLIENT),
        ],
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => &[(
            "/spec/limited/limitResponse",
            Rule::Decided { by: "type", values: &["Reject"], forbidden: &["queuing"] },
        )],
        _ => &[],
    }
}

/// What is sent of this object, with a null for each field that can't go along with what it gives; none if there is no such field.
pub fn cleared(object: &ObjectRef, body: &Value) -> Option<Value> {
    let mut cleared = body.clone();
    clear(&mut cleared, of_kind(object));
    if let Some(pod) = pod(object).and_then(|pointer| cleared.pointer_mut(pointer)) {
        clear(pod, OF_POD);
        containers(pod).for_each(|container| clear(container, OF_CONTAINER));
    }
    (cleared != *body).then_some(cleared)
}

fn clear(part: &mut Value, rules: Rules) {
    for (place, rule) in rules {
        clear_at(part, place, rule);
    }
}

fn clear_at(value: &mut Value, place: &str, rule: &Rule) {
    let Some(place) = place.strip_prefix('/') else {
        if let Value::Object(fields) = value {
            apply(fields, rule);
        }
        return;
    };
    let (segment, rest) = place.find('/').map_or((place, ""), |at| place.split_at(at));
    match value {
        Value::Array(elements) if segment == "*" => {
            for element in elements {
                clear_at(element, rest, rule);
            }
        }
        Value::Object(fields) => {
            if let Some(below) = fields.get_mut(segment) {
                clear_at(below, rest, rule);
            }
        }
        _ => {}
    }
}

fn apply(fields: &mut Map<String, Value>, rule: &Rule) {
    let (holds, members) = match rule {
        // A patch that sets none of them is about other fields.
        Rule::OneOf(members) => {
            (members.iter().any(|member| fields.get(*member).is_some_and(|value| !value.is_null())), members)
        }
        Rule::Decided { by, values, forbidden } => {
            (fields.get(*by).and_then(Value::as_str).is_some_and(|value| values.contains(&value)), forbidden)
        }
    };
    if holds {
        for member in *members {
            fields.entry(*member).or_insert(Value::Null);
        }
    }
}

/// The object without its nulls, and where they were.
pub fn without_nulls(body: &Value) -> (Value, Vec<FieldPointer>) {
    let (mut body, mut pointers) = (body.clone(), Vec::new());
    take_nulls(&mut body, &mut Vec::new(), &mut pointers);
    (body, pointers)
}

fn take_nulls(value: &mut Value, path: &mut Vec<String>, pointers: &mut Vec<FieldPointer>) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                path.push(name.clone());
                if value.is_null() {
                    pointers.push(FieldPointer::new(path.clone()));
                } else {
                    take_nulls(value, path, pointers);
                }
                path.pop();
                !value.is_null()
            });
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter_mut().enumerate() {
                path.push(index.to_string());
                take_nulls(element, path, pointers);
                path.pop();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn object(kind: &str) -> ObjectRef {
        let (kind, group) = kind.split_once('.').unwrap_or((kind, ""));
        ObjectRef { group: group.to_owned(), kind: kind.to_owned(), namespace: "n".to_owned(), name: "a".to_owned() }
    }

    /// A value at a place, in an object that has nothing else.
    fn at(place: &str, value: Value) -> Value {
        let segments = place.split('/').skip(1).collect::<Vec<_>>();
        segments
            .into_iter()
            .rev()
            .fold(value, |inner, segment| if segment == "*" { json!([inner]) } else { json!({segment: inner}) })
    }

    /// Kinds and places of a part, what the part is, and what becomes null in it.
    fn cases() -> Vec<(&'static str, String, Value, Vec<&'static str>)> {
        let mut cases = vec![
            ("Deployment.apps", "/spec/strategy", json!({"type": "Recreate"}), vec!["rollingUpdate"]),
            ("StatefulSet.apps", "/spec/updateStrategy", json!({"type": "OnDelete"}), vec!["rollingUpdate"]),
            ("DaemonSet.apps", "/spec/updateStrategy", json!({"type": "OnDelete"}), vec!["rollingUpdate"]),
            ("Service", "/spec", json!({"sessionAffinity": "None"}), vec!["sessionAffinityConfig"]),
            (
                "Service",
                "/spec",
                json!({"type": "ExternalName"}),
                vec![
                    "allocateLoadBalancerNodePorts",
                    "externalTrafficPolicy",
                    "loadBalancerClass",
                    "loadBalancerSourceRanges",
                ],
            ),
            ("PodDisruptionBudget.policy", "/spec", json!({"minAvailable": 1}), vec!["maxUnavailable"]),
            ("Ingress.networking.k8s.io", "/spec/defaultBackend", json!({"resource": {}}), vec!["service"]),
            ("Ingress.networking.k8s.io", "/spec/defaultBackend/service/port", json!({"name": "a"}), vec!["number"]),
            (
                "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io",
                "/spec/paramRef",
                json!({"name": "a"}),
                vec!["selector"],
            ),
            (
                "MutatingWebhookConfiguration.admissionregistration.k8s.io",
                "/webhooks/*/clientConfig",
                json!({"url": "a"}),
                vec!["service"],
            ),
            (
                "CustomResourceDefinition.apiextensions.k8s.io",
                "/spec/conversion",
                json!({"strategy": "None"}),
                vec!["webhook"],
            ),
            (
                "PriorityLevelConfiguration.flowcontrol.apiserver.k8s.io",
                "/spec/limited/limitResponse",
                json!({"type": "Reject"}),
                vec!["queuing"],
            ),
        ]
        .into_iter()
        .map(|(kind, place, part, nulls)| (kind, place.to_owned(), part, nulls))
        .collect::<Vec<_>>();
        for (kind, pod) in [
            ("Pod", "/spec"),
            ("PodTemplate", "/template/spec"),
            ("ReplicationController", "/spec/template/spec"),
            ("Deployment.apps", "/spec/template/spec"),
            ("Job.batch", "/spec/template/spec"),
            ("CronJob.batch", "/spec/jobTemplate/spec/template/spec"),
        ] {
            for (place, part, nulls) in [
                ("/securityContext/seccompProfile", json!({"type": "Unconfined"}), vec!["localhostProfile"]),
                ("/resourceClaims/*", json!({"resourceClaimName": "a"}), vec!["resourceClaimTemplateName"]),
                ("/containers/*/livenessProbe", json!({"tcpSocket": {"port": 1}}), vec!["exec", "grpc", "httpGet"]),
                (
                    "/initContainers/*/lifecycle/preStop",
                    json!({"sleep": {"seconds": 1}}),
                    vec!["exec", "httpGet", "tcpSocket"],
                ),
                ("/containers/*/env/*", json!({"name": "A", "value": "1"}), vec!["valueFrom"]),
                (
                    "/ephemeralContainers/*/env/*/valueFrom",
                    json!({"fieldRef": {}}),
                    vec!["configMapKeyRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"],
                ),
            ] {
                cases.push((kind, format!("{pod}{place}"), part, nulls));
            }
        }
        cases
    }

    #[test]
    fn what_cant_go_along_with_what_is_given_is_cleared_and_nothing_that_is_given() {
        for (kind, place, part, nulls) in cases() {
            let mut expected = part.clone();
            for name in nulls {
                expected[name] = Value::Null;
            }
            let mut expected = at(&place, expected);
            // What is around it has a rule of its own.
            for (inner, outer) in [("/valueFrom", "value"), ("/service/port", "resource")] {
                if let Some(around) = place.strip_suffix(inner) {
                    expected.pointer_mut(&around.replace('*', "0")).expect("what is around it")[outer] = Value::Null;
                }
            }
            assert_eq!(cleared(&object(kind), &at(&place, part)), Some(expected.clone()), "{kind} {place}");
            assert_eq!(cleared(&object(kind), &expected), None, "done once");
        }
        let volumes = at("/spec/volumes/*", json!({"name": "v", "secret": {}}));
        let volumes = cleared(&object("Pod"), &volumes).expect("nulls");
        let volume = &volumes["spec"]["volumes"][0];
        assert_eq!((&volume["emptyDir"], &volume["secret"], &volume["name"]), (&Value::Null, &json!({}), &json!("v")));
        let deployment = |spec: &Value| json!({"spec": {"template": {"spec": spec}}});
        for (kind, same) in [
            ("Deployment.apps", json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {}}}})),
            ("Deployment.apps", json!({"spec": {"strategy": {"rollingUpdate": {}}}})),
            ("Deployment.apps", json!({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}})),
            ("Deployment.apps", json!({"spec": {"strategy": {"type": "One that is new"}}})),
            ("Deployment.apps", deployment(&json!({"volumes": [{"name": "v"}], "nodeSelector": {"env": "value"}}))),
            ("Deployment.apps", deployment(&json!({"containers": [{"livenessProbe": {"periodSeconds": 3}}]}))),
            ("Service", json!({"spec": {"type": "LoadBalancer"}})),
            ("Service", json!({"spec": null})),
            // Values of a definition's schema are somebody else's.
            (
                "CustomResourceDefinition.apiextensions.k8s.io",
                json!({"spec": {"versions": [{"schema": {"default": {"conversion": {"strategy": "None"}}}}]}}),
            ),
        ] {
            assert_eq!(cleared(&object(kind), &same), None, "{same}");
        }
    }

    /// Other kinds have such fields as well: only whoever has made them knows what they mean.
    #[test]
    fn an_object_of_another_kind_is_never_cleared() {
        let cases = cases();
        let built_in: BTreeSet<&str> = cases.iter().map(|(kind, ..)| *kind).collect();
        for (_, place, part, _) in &cases {
            let body = at(place, part.clone());
            for kind in &built_in {
                let (name, _) = kind.split_once('.').unwrap_or((kind, ""));
                for group in ["example.com", "serving.knative.dev", "apps.openshift.io"] {
                    assert_eq!(cleared(&object(&format!("{name}.{group}")), &body), None, "{name}.{group} {place}");
                }
            }
            for kind in ["ConfigMap", "Widget.apps", "Widget.example.com", "Rollout.argoproj.io"] {
                assert_eq!(cleared(&object(kind), &body), None, "{kind} {place}");
            }
        }
    }

    #[test]
    fn nulls_are_taken_out_with_their_places() {
        let body = json!({"a": null, "b": [null, {"c": null, "d": 1}], "e": {"f/g": null}});
        let (plain, pointers) = without_nulls(&body);
        assert_eq!(plain, json!({"b": [null, {"d": 1}], "e": {}}));
        let mut shown: Vec<String> = pointers.iter().map(ToString::to_string).collect();
        shown.sort();
        assert_eq!(shown, ["/a", "/b/1/c", "/e/f~1g"]);
    }
}
