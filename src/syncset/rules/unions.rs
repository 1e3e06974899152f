//! Fields of built-in kinds of which an object may have only one, or that another value of a field beside them forbids.
//!
//! A manifest that changes from one to the other does not give the former any more. It stays on the cluster all the same if it is a default
//! of the server, if somebody else has given it, or if nothing is removed (`CreateOrUpdate`), and the server refuses the change. What is
//! cleared here is only sent after such a refusal.

use serde_json::{Map, Value};

use crate::documents::FieldPointer;

/// Of the fields below one of these names, an object has one.
const ONE_OF: [(&[&str], &[&str]); 11] = [
    (&["livenessProbe", "readinessProbe", "startupProbe"], &["exec", "grpc", "httpGet", "tcpSocket"]),
    (&["postStart", "preStop"], &["exec", "httpGet", "sleep", "tcpSocket"]),
    (&["env"], &["value", "valueFrom"]),
    (&["valueFrom"], &["configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"]),
    (&["resourceClaims"], &["resourceClaimName", "resourceClaimTemplateName"]),
    (&["clientConfig"], &["service", "url"]),
    // Of an Ingress, and the port of its service.
    (&["defaultBackend"], &["resource", "service"]),
    (&["port"], &["name", "number"]),
    // Of a PodDisruptionBudget.
    (&["spec"], &["maxUnavailable", "minAvailable"]),
    // Of the binding of an admission policy.
    (&["paramRef"], &["name", "selector"]),
    (
        &["volumes"],
        &[
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
        ],
    ),
];

/// Below one of these names, a field that decides, values of it, and the fields that these values forbid.
type Decided = (&'static [&'static str], &'static str, &'static [&'static str], &'static [&'static str]);

const DECIDED: [Decided; 7] = [
    (&["strategy", "updateStrategy"], "type", &["OnDelete", "Recreate"], &["rollingUpdate"]),
    (&["appArmorProfile", "seccompProfile"], "type", &["RuntimeDefault", "Unconfined"], &["localhostProfile"]),
    (&["conversion"], "strategy", &["None"], &["webhook"]),
    (&["limitResponse"], "type", &["Reject"], &["queuing"]),
    // Of a Service.
    (&["spec"], "sessionAffinity", &["None"], &["sessionAffinityConfig"]),
    (&["spec"], "type", &["ClusterIP", "ExternalName"], &["externalTrafficPolicy"]),
    (
        &["spec"],
        "type",
        &["ClusterIP", "ExternalName", "NodePort"],
        &["allocateLoadBalancerNodePorts", "loadBalancerClass", "loadBalancerSourceRanges"],
    ),
];

/// The object with a null for each field that can't go along with what it gives; none if there is no such field.
pub fn cleared(body: &Value) -> Option<Value> {
    let mut cleared = body.clone();
    clear(&mut cleared, "");
    (cleared != *body).then_some(cleared)
}

fn clear(value: &mut Value, name: &str) {
    match value {
        Value::Object(fields) => {
            for (_, members) in ONE_OF.iter().filter(|(names, _)| names.contains(&name)) {
                // What gives none is a patch of another part.
                if members.iter().any(|member| fields.get(*member).is_some_and(|value| !value.is_null())) {
                    members.iter().for_each(|member| nullify(fields, member));
                }
            }
            for (_, decider, values, members) in DECIDED.iter().filter(|(names, ..)| names.contains(&name)) {
                if fields.get(*decider).and_then(Value::as_str).is_some_and(|value| values.contains(&value)) {
                    members.iter().for_each(|member| nullify(fields, member));
                }
            }
            fields.iter_mut().for_each(|(name, value)| clear(value, name));
        }
        Value::Array(elements) => elements.iter_mut().for_each(|element| clear(element, name)),
        _ => {}
    }
}

fn nullify(fields: &mut Map<String, Value>, member: &str) {
    fields.entry(member).or_insert(Value::Null);
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
    use serde_json::json;

    use super::*;

    /// Each is a part of an object, and what it is with nulls.
    #[test]
    fn what_cant_go_along_with_what_is_given_is_cleared_and_nothing_that_is_given() {
        for (given, expected) in [
            (
                json!({"strategy": {"type": "Recreate"}}),
                json!({"strategy": {"type": "Recreate", "rollingUpdate": null}}),
            ),
            (
                json!({"updateStrategy": {"type": "OnDelete"}}),
                json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}),
            ),
            (json!({"conversion": {"strategy": "None"}}), json!({"conversion": {"strategy": "None", "webhook": null}})),
            (
                json!({"limitResponse": {"type": "Reject"}}),
                json!({"limitResponse": {"type": "Reject", "queuing": null}}),
            ),
            (
                json!({"spec": {"sessionAffinity": "None"}}),
                json!({"spec": {"sessionAffinity": "None", "sessionAffinityConfig": null}}),
            ),
            (
                json!({"livenessProbe": {"tcpSocket": {"port": 1}}}),
                json!({"livenessProbe": {"tcpSocket": {"port": 1}, "exec": null, "grpc": null, "httpGet": null}}),
            ),
            (
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}),
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}, "exec": null, "httpGet": null, "tcpSocket": null}}}),
            ),
            (
                json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {}}}]}),
                json!({"env": [{"name": "A", "value": "1", "valueFrom": null}, {"name": "B", "value": null,
                    "valueFrom": {"fieldRef": {}, "configMapKeyRef": null, "fileKeyRef": null, "resourceFieldRef": null,
                        "secretKeyRef": null}}]}),
            ),
            (
                json!({"spec": {"minAvailable": 1}, "seccompProfile": {"type": "Unconfined"}}),
                json!({"spec": {"minAvailable": 1, "maxUnavailable": null},
                    "seccompProfile": {"type": "Unconfined", "localhostProfile": null}}),
            ),
            (
                json!({"clientConfig": {"url": "https://a"}}),
                json!({"clientConfig": {"url": "https://a", "service": null}}),
            ),
        ] {
            assert_eq!(cleared(&given), Some(expected.clone()));
            assert_eq!(cleared(&expected), None, "done once");
        }
        let volumes = cleared(&json!({"volumes": [{"name": "v", "secret": {}}]})).expect("nulls");
        assert_eq!((&volumes["volumes"][0]["emptyDir"], &volumes["volumes"][0]["secret"]), (&Value::Null, &json!({})));
        for same in [
            json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {}}}),
            json!({"strategy": {"rollingUpdate": {}}}),
            json!({"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}),
            json!({"spec": {"type": "LoadBalancer"}, "strategy": {"type": "One that is new"}}),
            json!({"volumes": [{"name": "v"}], "data": {"env": "value"}, "livenessProbe": {"periodSeconds": 3}}),
        ] {
            assert_eq!(cleared(&same), None);
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
