//! Fields of which an object may have one: each goes over into each other, whoever has set the former, and what is there is what was asked for.

use integration::ControlPlane;
use integration::users::ADMIN;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::syncsets::asked::{container, merge, workload};
use crate::syncsets::world::{Stage, run};

/// Makes the object of a name.
type Base = Box<dyn Fn(&Stage, &str) -> Value>;

/// One such set of fields.
struct Union {
    name: &'static str,
    plural: &'static str,
    is_namespaced: bool,
    /// The object of a name, but for these fields.
    base: Base,
    /// Where they are.
    pointer: &'static str,
    /// What is there beside them.
    fixed: Value,
    /// Each of them alone, with the field that decides, if there is one.
    variants: Vec<Value>,
}

impl Union {
    /// The object with one of the fields.
    fn object(&self, stage: &Stage, at: usize, variant: usize) -> Value {
        let mut object = (self.base)(stage, &format!("{}-{}-{at}", stage.namespace, self.name));
        if self.is_namespaced {
            object["metadata"]["namespace"] = json!(stage.namespace);
        }
        let mut fields = self.fixed.clone();
        merge(&mut fields, &self.variants[variant]);
        merge(object.pointer_mut(self.pointer).unwrap(), &fields);
        object
    }

    fn api(&self, client: &Client, stage: &Stage) -> Api<DynamicObject> {
        let object = (self.base)(stage, "a");
        let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), self.plural);
        if self.is_namespaced {
            Api::namespaced_with(client.clone(), stage.namespace, &kind)
        } else {
            Api::all_with(client.clone(), &kind)
        }
    }

    /// Whether an object has this one and none of the others.
    fn check(&self, live: &Value, variant: usize) {
        let found = live.pointer(self.pointer).unwrap_or(&Value::Null);
        let asked = &self.variants[variant];
        assert!(contains(found, asked), "{}: {found} is not {asked}", self.name);
        for other in self.variants.iter().flat_map(|variant| variant.as_object().unwrap().keys()) {
            let is_asked = asked.get(other).is_some();
            assert!(is_asked || found[other].is_null(), "{}: {other} is still in {found}", self.name);
        }
    }
}

fn contains(found: &Value, asked: &Value) -> bool {
    match (found, asked) {
        (Value::Object(found), Value::Object(asked)) => {
            asked.iter().all(|(name, value)| found.get(name).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(found), Value::Array(asked)) => {
            found.len() == asked.len() && found.iter().zip(asked).all(|(found, asked)| contains(found, asked))
        }
        _ => found == asked,
    }
}

/// Each field alone.
fn each(fields: &Value) -> Vec<Value> {
    fields.as_object().unwrap().iter().map(|(name, value)| json!({name: value})).collect()
}

/// A field of a workload. `spec` and `pod` are what else it has, with room for the field.
fn of_workload(
    (kind, plural): (&'static str, &'static str),
    (name, pointer): (&'static str, &'static str),
    (spec, pod): (Value, Value),
    fixed: Value,
    variants: Vec<Value>,
) -> Union {
    let base = move |stage: &Stage, name: &str| workload(stage, kind, name, &spec, &pod);
    Union { name, plural, is_namespaced: true, base: Box::new(base), pointer, fixed, variants }
}

/// What keeps the cluster's own controllers from working on a Deployment.
fn idle() -> Value {
    json!({"replicas": 0, "paused": true})
}

/// A field of the pod of a Deployment.
fn of_pod(name: &'static str, pointer: &'static str, pod: Value, fixed: Value, variants: Vec<Value>) -> Union {
    of_workload(("Deployment", "deployments"), (name, pointer), (idle(), pod), fixed, variants)
}

pub(crate) fn volumes() -> Value {
    let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    json!({
        "awsElasticBlockStore": {"volumeID": "a"}, "azureDisk": {"diskName": "a", "diskURI": "https://a"},
        "azureFile": {"secretName": "a", "shareName": "b"}, "cephfs": {"monitors": ["a"]}, "cinder": {"volumeID": "a"},
        "configMap": {"name": "a"}, "csi": {"driver": "a.b"},
        "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]}, "emptyDir": {"medium": "Memory"},
        "ephemeral": {"volumeClaimTemplate": claim}, "fc": {"wwids": ["a"]}, "flexVolume": {"driver": "a/b"},
        "flocker": {"datasetName": "a"}, "gcePersistentDisk": {"pdName": "a"}, "gitRepo": {"repository": "a"},
        "glusterfs": {"endpoints": "a", "path": "b"}, "hostPath": {"path": "/a"}, "image": {"reference": "a:1"},
        "iscsi": {"targetPortal": "127.0.0.1:3260", "iqn": "iqn.2001-04.com.example:storage", "lun": 0},
        "nfs": {"server": "a", "path": "/a"}, "persistentVolumeClaim": {"claimName": "a"}, "photonPersistentDisk": {"pdID": "a"},
        "portworxVolume": {"volumeID": "a"}, "projected": {"sources": [{"secret": {"name": "a"}}]},
        "quobyte": {"registry": "a:1", "volume": "a"}, "rbd": {"monitors": ["a"], "image": "a"},
        "scaleIO": {"gateway": "a", "system": "b", "secretRef": {"name": "c"}, "volumeName": "d"}, "secret": {"secretName": "a"},
        "storageos": {"volumeName": "a"}, "vsphereVolume": {"volumePath": "a"},
    })
}

fn of_pods() -> Vec<Union> {
    let port = json!({"port": 1});
    let key = json!({"name": "a", "key": "b"});
    let nothing = json!({});
    let profiles = || {
        vec![
            json!({"type": "RuntimeDefault"}),
            json!({"type": "Localhost", "localhostProfile": "a"}),
            json!({"type": "Unconfined"}),
        ]
    };
    let of_container = |name, pointer, fields: Value, fixed: &Value, variants| {
        of_pod(name, pointer, container(&fields), fixed.clone(), variants)
    };
    vec![
        of_pod(
            "volume",
            "/spec/template/spec/volumes/0",
            json!({"volumes": [{}]}),
            json!({"name": "v"}),
            each(&volumes()),
        ),
        of_pod(
            "projected",
            "/spec/template/spec/volumes/0/projected/sources/0",
            json!({"volumes": [{"name": "v", "projected": {"sources": [{}]}}]}),
            nothing.clone(),
            each(&json!({"configMap": {"name": "a"}, "secret": {"name": "a"}, "serviceAccountToken": {"path": "a"}})),
        ),
        of_pod(
            "claim",
            "/spec/template/spec/resourceClaims/0",
            json!({"resourceClaims": [{}]}),
            json!({"name": "c"}),
            each(&json!({"resourceClaimName": "a", "resourceClaimTemplateName": "b"})),
        ),
        of_pod(
            "seccomp",
            "/spec/template/spec/securityContext/seccompProfile",
            json!({"securityContext": {"seccompProfile": {}}}),
            nothing.clone(),
            profiles(),
        ),
        of_container(
            "apparmor",
            "/spec/template/spec/containers/0/securityContext/appArmorProfile",
            json!({"securityContext": {"appArmorProfile": {}}}),
            &nothing,
            profiles(),
        ),
        of_container(
            "probe",
            "/spec/template/spec/containers/0/livenessProbe",
            json!({"livenessProbe": {}}),
            &json!({"periodSeconds": 7}),
            each(&json!({"exec": {"command": ["a"]}, "grpc": port, "httpGet": port, "tcpSocket": port})),
        ),
        of_container(
            "lifecycle",
            "/spec/template/spec/containers/0/lifecycle/preStop",
            json!({"lifecycle": {"preStop": {}}}),
            &nothing,
            each(&json!({"exec": {"command": ["a"]}, "httpGet": port, "sleep": {"seconds": 1}, "tcpSocket": port})),
        ),
        of_container(
            "env",
            "/spec/template/spec/containers/0/env/0",
            json!({"env": [{}]}),
            &json!({"name": "A"}),
            each(&json!({"value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})),
        ),
        of_container(
            "value",
            "/spec/template/spec/containers/0/env/0/valueFrom",
            json!({"env": [{"name": "A", "valueFrom": {}}]}),
            &nothing,
            each(&json!({"configMapKeyRef": key, "fieldRef": {"fieldPath": "metadata.name"},
                "resourceFieldRef": {"resource": "limits.cpu"}, "secretKeyRef": key})),
        ),
    ]
}

/// A field of a kind in namespaces.
fn of_kind(
    name: &'static str,
    plural: &'static str,
    pointer: &'static str,
    base: Value,
    fixed: Value,
    variants: Vec<Value>,
) -> Union {
    let base = move |_: &Stage, name: &str| {
        let mut object = base.clone();
        object["metadata"] = json!({"name": name});
        object
    };
    Union { name, plural, is_namespaced: true, base: Box::new(base), pointer, fixed, variants }
}

fn of_other_kinds() -> Vec<Union> {
    let service = json!({"apiVersion": "v1", "kind": "Service", "spec": {}});
    let ports = json!({"ports": [{"name": "a", "port": 1, "protocol": "TCP"}]});
    // The server takes it for each type.
    let mut named = ports.clone();
    named["externalName"] = json!("a.b");
    let ingress = |backend: Value| json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "spec": {"defaultBackend": backend}});
    vec![
        of_workload(
            ("StatefulSet", "statefulsets"),
            ("stateful", "/spec/updateStrategy"),
            (json!({"updateStrategy": {}, "replicas": 0}), json!({})),
            json!({}),
            vec![json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}), json!({"type": "OnDelete"})],
        ),
        of_workload(
            ("Deployment", "deployments"),
            ("strategy", "/spec/strategy"),
            (json!({"strategy": {}, "replicas": 0, "paused": true}), json!({})),
            json!({}),
            vec![json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2}}), json!({"type": "Recreate"})],
        ),
        of_kind(
            "affinity",
            "services",
            "/spec",
            service.clone(),
            ports.clone(),
            vec![
                json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}}),
                json!({"sessionAffinity": "None"}),
            ],
        ),
        of_kind(
            "service",
            "services",
            "/spec",
            service,
            named,
            vec![
                json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["10.0.0.0/8"],
                    "loadBalancerClass": "a.b/c", "allocateLoadBalancerNodePorts": false}),
                json!({"type": "NodePort", "externalTrafficPolicy": "Cluster"}),
                json!({"type": "ClusterIP"}),
                json!({"type": "ExternalName"}),
            ],
        ),
        of_kind(
            "budget",
            "poddisruptionbudgets",
            "/spec",
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {}}),
            json!({"selector": {"matchLabels": {"app": "a"}}}),
            vec![json!({"minAvailable": 1}), json!({"maxUnavailable": "10%"})],
        ),
        of_kind(
            "backend",
            "ingresses",
            "/spec/defaultBackend",
            ingress(json!({})),
            json!({}),
            each(
                &json!({"resource": {"apiGroup": "a.b", "kind": "C", "name": "d"}, "service": {"name": "a", "port": {"number": 1}}}),
            ),
        ),
        of_kind(
            "port",
            "ingresses",
            "/spec/defaultBackend/service/port",
            ingress(json!({"service": {"name": "a", "port": {}}})),
            json!({}),
            each(&json!({"name": "a", "number": 1})),
        ),
        of_kind(
            "peer",
            "networkpolicies",
            "/spec/ingress/0/from/0",
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}, "ingress": [{"from": [{}]}]}}),
            json!({}),
            each(&json!({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {"matchLabels": {"app": "a"}}})),
        ),
        of_kind(
            "metric",
            "horizontalpodautoscalers",
            "/spec/metrics/0",
            json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": {"maxReplicas": 3, "metrics": [{}],
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}}}),
            json!({}),
            vec![
                json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}),
                json!({"type": "Pods", "pods": {"metric": {"name": "a"}, "target": {"type": "AverageValue", "averageValue": "1"}}}),
            ],
        ),
    ]
}

fn of_kinds_without_namespaces() -> Vec<Union> {
    let global = |union: Union| Union { is_namespaced: false, ..union };
    let hook = json!({"name": "a.b.c", "rules": [{"apiGroups": ["unions.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["nothing"]}], "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore", "clientConfig": {}});
    let definition = |_: &Stage, name: &str| {
        let (group, schema) = (format!("{name}.example.com"), json!({"openAPIV3Schema": {"type": "object"}}));
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("gears.{group}")},
            "spec": {"group": group, "scope": "Namespaced", "names": {"kind": "Gear", "plural": "gears"}, "conversion": {},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}})
    };
    let web = json!({"url": "https://a.b/c"});
    vec![
        global(of_kind(
            "parameter",
            "validatingadmissionpolicybindings",
            "/spec/paramRef",
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
                "spec": {"policyName": "unions-nothing", "validationActions": ["Audit"], "paramRef": {}}}),
            json!({"parameterNotFoundAction": "Allow"}),
            each(&json!({"name": "a", "selector": {"matchLabels": {"app": "a"}}})),
        )),
        global(of_kind(
            "hook",
            "validatingwebhookconfigurations",
            "/webhooks/0/clientConfig",
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "webhooks": [hook]}),
            json!({}),
            vec![json!({"service": {"name": "a", "namespace": "b"}}), web.clone()],
        )),
        global(of_kind(
            "queue",
            "prioritylevelconfigurations",
            "/spec/limited/limitResponse",
            json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
                "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 1, "limitResponse": {}}}}),
            json!({}),
            vec![
                json!({"type": "Queue", "queuing": {"queues": 8, "handSize": 2, "queueLengthLimit": 5}}),
                json!({"type": "Reject"}),
            ],
        )),
        global(Union {
            base: Box::new(definition),
            ..of_kind(
                "conversion",
                "customresourcedefinitions",
                "/spec/conversion",
                json!({}),
                json!({}),
                vec![
                    json!({"strategy": "Webhook", "webhook": {"clientConfig": web, "conversionReviewVersions": ["v1"]}}),
                    json!({"strategy": "None"}),
                ],
            )
        }),
    ]
}

async fn sweep(name: &'static str, behavior: &str) {
    let stage = Stage::new(name).await;
    let plane: &ControlPlane = stage.register("west-1", &json!({}), 0).await;
    let client = plane.client(ADMIN).await.unwrap();
    let unions: Vec<Union> =
        of_pods().into_iter().chain(of_other_kinds()).chain(of_kinds_without_namespaces()).collect();
    // All of them have been set by somebody else.
    for union in &unions {
        for at in 0..union.variants.len() {
            let theirs = serde_json::from_value(union.object(&stage, at, at)).unwrap();
            let by = PostParams { field_manager: Some("kubectl-create".to_owned()), ..PostParams::default() };
            let created = union.api(&client, &stage).create(&by, &theirs).await;
            created.unwrap_or_else(|error| panic!("{} {at}: {error}", union.name));
        }
    }
    let wanted = |by: usize| -> Vec<Value> {
        let of = |union: &Union| {
            let count = union.variants.len();
            (0..count).map(|at| union.object(&stage, at, (at + by) % count)).collect::<Vec<_>>()
        };
        unions.iter().flat_map(of).collect()
    };
    // First somebody else has set the former one, and then the syncset itself.
    for (by, generation) in [(1, 1), (2, 2)] {
        if generation == 1 {
            let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "applyBehavior": behavior, "resources": wanted(by)});
            stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
        } else {
            stage.wants("base", &wanted(by)).await;
        }
        stage.succeeds("west-1", "base", generation).await;
        for union in &unions {
            let (api, count) = (union.api(&client, &stage), union.variants.len());
            for at in 0..count {
                let object = union.object(&stage, at, at);
                let live = json!(api.get(object["metadata"]["name"].as_str().unwrap()).await.unwrap());
                union.check(&live, (at + by) % count);
            }
        }
    }
}

#[test]
fn each_of_several_exclusive_fields_goes_over_into_the_next_one_with_apply() {
    run(sweep("unions-apply", "Apply"));
}

#[test]
fn each_of_several_exclusive_fields_goes_over_into_the_next_one_with_create_or_update() {
    run(sweep("unions-update", "CreateOrUpdate"));
}

/// A part of a custom resource that has the name of a part of a built-in kind, what somebody else has set there, and what the syncset gives,
/// which the definition refuses beside that: in an object, and in an element of a list.
fn of_others() -> [(&'static str, Value, Value); 2] {
    [
        ("livenessProbe", json!({"exec": "a"}), json!({"httpGet": "b"})),
        ("env", json!([{"key": "a", "valueFrom": "a"}]), json!([{"key": "a", "value": "b"}])),
    ]
}

/// The definition of a kind whose specs have such a part, with one or the other of its fields.
fn exclusive(group: &str, plural: &str, part: &str, theirs: &Value, ours: &Value) -> Value {
    let text = json!({"type": "string"});
    let fields_of = |value: &Value| {
        let fields = value.get(0).unwrap_or(value).as_object().unwrap();
        fields.keys().filter(|name| *name != "key").cloned().collect::<Vec<_>>()
    };
    let (theirs_has, ours_has) = (fields_of(theirs), fields_of(ours));
    let mut properties: serde_json::Map<String, Value> =
        theirs_has.iter().chain(&ours_has).map(|name| (name.clone(), text.clone())).collect();
    let rule = format!("!(has(self.{}) && has(self.{}))", theirs_has[0], ours_has[0]);
    let rules = json!([{"rule": rule, "message": "one of both"}]);
    let mut schema = json!({"type": "object", "x-kubernetes-validations": rules});
    if theirs.is_array() {
        properties.insert("key".to_owned(), text);
        schema["required"] = json!(["key"]);
        schema["properties"] = Value::Object(properties);
        schema = json!({"type": "array", "maxItems": 9, "items": schema, "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["key"]});
    } else {
        schema["properties"] = Value::Object(properties);
    }
    let spec = json!({"type": "object", "properties": {part: schema}});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"kind": kind_of(plural), "plural": plural},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}})
}

/// `part3s` are of the kind `Part3`.
fn kind_of(plural: &str) -> String {
    plural.replacen('p', "P", 1).trim_end_matches('s').to_owned()
}

/// Only whoever has made a kind knows which of its fields exclude each other: what is refused stays refused, and somebody else's field stays.
#[test]
fn a_custom_resource_keeps_its_own_fields_of_such_names_when_a_write_is_refused() {
    run(async {
        let stage = Stage::new("unions-custom").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let client = plane.client(ADMIN).await.unwrap();
        let group = "unions-custom.example.com";
        let cases = of_others();
        let plurals: Vec<String> = (0..cases.len()).map(|number| format!("part{number}s")).collect();
        let numbered = || plurals.iter().zip(&cases);
        let definitions: Vec<Value> =
            numbered().map(|(plural, (part, theirs, ours))| exclusive(group, plural, part, theirs, ours)).collect();
        stage.syncset("definitions", "Upsert", &definitions).await;
        stage.succeeds("west-1", "definitions", 1).await;
        let object = |plural: &str, name: &str, part: &str, fields: &Value| {
            let spec = json!({part: fields});
            json!({"apiVersion": format!("{group}/v1"), "kind": kind_of(plural),
                "metadata": {"name": name, "namespace": stage.namespace}, "spec": spec})
        };
        let behaviors = ["Apply", "CreateOrUpdate", "patch"];
        let api = |plural: &str| {
            let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", &kind_of(plural)), plural);
            Api::<DynamicObject>::namespaced_with(client.clone(), stage.namespace, &kind)
        };
        for (plural, (part, theirs, ours)) in numbered() {
            for behavior in behaviors {
                let name = format!("{plural}-{}", behavior.to_lowercase());
                let by = PostParams { field_manager: Some("somebody".to_owned()), ..PostParams::default() };
                let made = serde_json::from_value(object(plural, &name, part, theirs)).unwrap();
                api(plural).create(&by, &made).await.unwrap();
                let ours = object(plural, &name, part, ours);
                let mut spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}]});
                if behavior == "patch" {
                    // A list is a whole to a merge patch, so that it has what the definition refuses.
                    let mut fields = ours["spec"].clone();
                    if let Some(element) = fields.pointer_mut(&format!("/{part}/0")) {
                        merge(element, &theirs[0]);
                    }
                    spec["patches"] = json!([{"apiVersion": ours["apiVersion"], "kind": ours["kind"], "name": name,
                        "namespace": stage.namespace, "patchType": "merge", "patch": json!({"spec": fields}).to_string()}]);
                } else {
                    spec["applyBehavior"] = json!(behavior);
                    spec["resources"] = json!([ours]);
                }
                stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
            }
        }
        for (plural, (part, theirs, _)) in numbered() {
            for behavior in behaviors {
                let name = format!("{plural}-{}", behavior.to_lowercase());
                // A merge patch replaces a list, and whatever was in it.
                let is_list = theirs.is_array() && behavior == "CreateOrUpdate";
                let is_done = |status: &Value| {
                    let entries = status["syncSets"].as_array().into_iter().flatten();
                    entries.into_iter().any(|entry| {
                        entry["name"] == name
                            && if is_list { entry["result"] == "Success" } else { entry["reason"] == "Rejected" }
                    })
                };
                let status = stage.status("west-1", &format!("the end of {name} ({part})"), is_done).await;
                let live = json!(api(plural).get(&name).await.unwrap());
                let found = &live["spec"][*part];
                assert!(is_list || found == theirs, "{name} ({part}): {found} is not {theirs}: {status}");
            }
        }
    });
}
