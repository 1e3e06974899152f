//! Built-in kinds, whose controllers run on both sides: what each cluster puts into its own objects is neither copied nor fought over.

use std::collections::BTreeSet;

use integration::rbac::{Grant, Side};
use integration::{Filter, Towline, eventually, users};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::rules::check::check;
use crate::rules_world::*;

/// All objects that are made by hand have this label, so that a section leaves alone what controllers make of them.
const CHOSEN: &str = "sweep=yes";
/// A Service with an address that somebody chose.
const ORDERED: &str = "ordered";
/// What both sides are asked to show in the end.
type Holds = fn(&Value, &Value) -> bool;

/// A kind, and what is done with one object of it.
struct Row {
    /// `apiVersion`.
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
    name: &'static str,
    content: Value,
    /// Merged into the object on the hub.
    change: Value,
    /// Merged into the status on the edge, and expected on the hub.
    status: Option<Value>,
    /// Merged into the object on the hub by this component of its control plane.
    filled_in: Option<(&'static str, Value)>,
    /// Merged into the object on the edge by a component of its control plane, before it changes on the hub, and expected to stay.
    injected: Option<Value>,
    /// Of the two objects, the hub's first.
    holds: Option<Holds>,
    settings: &'static str,
    /// What the names of its namespace and its section begin with.
    world: &'static str,
}

impl Row {
    fn group(&self) -> &'static str {
        self.version.split_once('/').map_or("", |(group, _)| group)
    }

    fn resource(&self) -> ApiResource {
        let version = self.version.split_once('/').map_or(self.version, |(_, version)| version);
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(self.group(), version, self.kind), self.plural)
    }

    fn section(&self) -> String {
        format!("{}-{}", self.world, self.plural)
    }

    fn api(&self, client: &Client) -> Api<DynamicObject> {
        if self.namespaced {
            Api::namespaced_with(client.clone(), &format!("{}-a", self.world), &self.resource())
        } else {
            Api::all_with(client.clone(), &self.resource())
        }
    }

    fn object(&self) -> DynamicObject {
        let mut object = json!({
            "apiVersion": self.version, "kind": self.kind,
            "metadata": {"name": self.name, "labels": {"sweep": "yes"}},
        });
        merge(&mut object, &self.content);
        serde_json::from_value(object).unwrap()
    }

    #[must_use]
    fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    #[must_use]
    fn status(mut self, status: Value) -> Self {
        self.status = Some(status);
        self
    }

    #[must_use]
    fn filled_in(mut self, manager: &'static str, filled_in: Value) -> Self {
        self.filled_in = Some((manager, filled_in));
        self
    }

    #[must_use]
    fn injected(mut self, injected: Value) -> Self {
        self.injected = Some(injected);
        self
    }

    #[must_use]
    fn holds(mut self, holds: Holds) -> Self {
        self.holds = Some(holds);
        self
    }
}

/// A namespaced kind.
fn inside(version: &'static str, kind: &'static str, plural: &'static str, content: Value, change: Value) -> Row {
    let (status, filled_in, injected, holds) = (None, None, None, None);
    let (namespaced, name, settings, world) = (true, "sweep", "", "sweep");
    Row {
        version,
        kind,
        plural,
        namespaced,
        name,
        content,
        change,
        status,
        filled_in,
        injected,
        holds,
        settings,
        world,
    }
}

/// A cluster-scoped kind.
fn outside(version: &'static str, kind: &'static str, plural: &'static str, content: Value, change: Value) -> Row {
    Row { namespaced: false, ..inside(version, kind, plural, content, change) }
}

/// A change for objects that hardly can be changed.
fn label() -> Value {
    json!({"metadata": {"labels": {"changed": "yes"}}})
}

fn pod(image: &str) -> Value {
    json!({"containers": [{"name": "a", "image": image}]})
}

/// The template of a workload.
fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "a"}}, "spec": pod(image)})
}

fn workload(rest: &Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": "a"}}, "template": template("x:1")});
    merge(&mut spec, rest);
    json!({"spec": spec})
}

fn has(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).is_some()
}

fn at<'v>(object: &'v Value, pointer: &str) -> &'v Value {
    object.pointer(pointer).unwrap_or(&Value::Null)
}

fn numbers_differ(hub: &Value, edge: &Value, pointer: &str) -> bool {
    let (hub, edge) = (at(hub, pointer), at(edge, pointer));
    hub.is_number() && edge.is_number() && hub != edge
}

fn rows() -> Vec<Row> {
    [services(), plain(), workloads(), others(), roles_and_classes(), extensions()].into_iter().flatten().collect()
}

/// What gets addresses.
fn services() -> Vec<Row> {
    let service = |content: Value, change: Value| inside("v1", "Service", "services", json!({"spec": content}), change);
    let ports = json!([{"name": "a", "port": 80}, {"name": "b", "port": 81, "protocol": "UDP"}]);
    let more_ports = json!({"spec": {"ports": [{"name": "a", "port": 80}, {"name": "c", "port": 82}]}});
    let differ: Holds =
        |hub, edge| ["/spec/clusterIP", "/spec/clusterIPs"].into_iter().all(|field| at(hub, field) != at(edge, field));
    vec![
        service(json!({"ports": ports}), more_ports.clone()).holds(differ),
        service(json!({"type": "NodePort", "ports": ports}), more_ports.clone()).named("node-port").holds(
            |hub, edge| {
                at(hub, "/spec/clusterIP") != at(edge, "/spec/clusterIP")
                    && numbers_differ(hub, edge, "/spec/ports/0/nodePort")
            },
        ),
        service(
            json!({"type": "NodePort", "clusterIP": "10.0.0.9", "ports": [{"port": 80, "nodePort": 30009}]}),
            json!({"spec": {"ports": [{"port": 81, "nodePort": 30010}]}}),
        )
        .named(ORDERED)
        .holds(|_, edge| at(edge, "/spec/clusterIP") == "10.0.0.9" && at(edge, "/spec/ports/0/nodePort") == 30010),
        service(json!({"clusterIP": "None", "ports": ports}), more_ports.clone())
            .named("headless")
            .holds(|_, edge| at(edge, "/spec/clusterIP") == "None"),
        service(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": ports}), more_ports.clone())
            .named("balanced")
            .status(json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}))
            .filled_in("cloud-controller-manager", json!({"spec": {"loadBalancerIP": "203.0.113.1"}}))
            .injected(json!({"spec": {"loadBalancerIP": "203.0.113.2"}}))
            .holds(|hub, edge| {
                at(hub, "/spec/loadBalancerIP") == "203.0.113.1"
                    && at(edge, "/spec/loadBalancerIP") == "203.0.113.2"
                    && numbers_differ(hub, edge, "/spec/ports/0/nodePort")
                    && numbers_differ(hub, edge, "/spec/healthCheckNodePort")
            }),
        service(json!({"type": "LoadBalancer", "loadBalancerIP": "203.0.113.3", "ports": ports}), more_ports)
            .named("balanced-by-hand")
            .holds(|_, edge| at(edge, "/spec/loadBalancerIP") == "203.0.113.3"),
    ]
}

/// What no controller changes.
fn plain() -> Vec<Row> {
    vec![
        inside("v1", "ConfigMap", "configmaps", json!({"data": {"a": "1"}}), json!({"data": {"a": "2"}})),
        inside("v1", "Secret", "secrets", json!({"data": {"a": "MQ=="}}), json!({"data": {"a": "Mg=="}})),
        inside("v1", "ServiceAccount", "serviceaccounts", json!({}), json!({"automountServiceAccountToken": false}))
            // Under the name of the one process in which a distribution runs all components.
            .filled_in("k3s", json!({"secrets": [{"name": "token-of-the-hub"}]}))
            .holds(|hub, edge| has(hub, "/secrets/0") && !has(edge, "/secrets")),
        inside(
            "v1",
            "LimitRange",
            "limitranges",
            json!({"spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "100Gi"}}]}}),
            json!({"spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "200Gi"}}]}}),
        ),
        inside(
            "v1",
            "ResourceQuota",
            "resourcequotas",
            json!({"spec": {"hard": {"pods": "50"}}}),
            json!({"spec": {"hard": {"pods": "60"}}}),
        ),
        inside(
            "v1",
            "PodTemplate",
            "podtemplates",
            json!({"template": template("x:1")}),
            json!({"template": template("x:2")}),
        ),
        inside(
            "v1",
            "Endpoints",
            "endpoints",
            json!({"subsets": [{"addresses": [{"ip": "203.0.113.1"}], "ports": [{"port": 80}]}]}),
            json!({"subsets": [{"addresses": [{"ip": "203.0.113.2"}], "ports": [{"port": 80}]}]}),
        )
        .named("by-hand"),
        inside(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            "endpointslices",
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["203.0.113.1"]}], "ports": [{"port": 80}]}),
            json!({"endpoints": [{"addresses": ["203.0.113.2"]}]}),
        )
        .named("by-hand"),
    ]
}

/// What makes pods.
fn workloads() -> Vec<Row> {
    let scaled = json!({"metadata": {"annotations": {"deployment.kubernetes.io/desired-replicas": "7"}}});
    let keeps_scale: Holds = |hub, edge| {
        let annotation = "/metadata/annotations/deployment.kubernetes.io~1desired-replicas";
        has(hub, annotation) && !has(edge, annotation)
    };
    let manager = "kube-controller-manager";
    vec![
        inside("v1", "Pod", "pods", json!({"spec": pod("x:1")}), json!({"spec": pod("x:2")}))
            .status(json!({"phase": "Running", "message": "from the edge"}))
            .holds(|hub, edge| {
                let filled_in = ["/spec/nodeName", "/spec/priorityClassName"];
                filled_in.into_iter().all(|field| has(hub, field) && !has(edge, field))
            }),
        inside("v1", "ReplicationController", "replicationcontrollers",
            json!({"spec": {"replicas": 0, "template": template("x:1")}}), json!({"spec": {"minReadySeconds": 5}})),
        inside("apps/v1", "ReplicaSet", "replicasets", workload(&json!({"replicas": 0})), json!({"spec": {"minReadySeconds": 5}}))
            .filled_in(manager, scaled.clone()).holds(keeps_scale),
        // Two controllers write the status on the hub, and agree where nothing runs and each counts its own generations.
        Row {
            settings: "observed_generation = \"translate\"",
            ..inside("apps/v1", "Deployment", "deployments", workload(&json!({"replicas": 0})), json!({"spec": {"template": template("x:2")}}))
        }
        .filled_in(manager, scaled).holds(keeps_scale),
        inside("apps/v1", "StatefulSet", "statefulsets", workload(&json!({"replicas": 0, "serviceName": "a"})), json!({"spec": {"template": template("x:2")}})),
        inside("apps/v1", "DaemonSet", "daemonsets", workload(&json!({})), json!({"spec": {"template": template("x:2")}})),
        inside("batch/v1", "Job", "jobs",
            json!({"spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x:1"}]}}}}),
            json!({"spec": {"parallelism": 2}})).holds(|hub, edge| {
                let selector = "/spec/selector/matchLabels";
                has(edge, selector) && at(hub, selector) != at(edge, selector)
            }),
        inside("batch/v1", "CronJob", "cronjobs",
            json!({"spec": {"suspend": true, "schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "a", "image": "x:1"}]}}}}}}),
            json!({"spec": {"schedule": "0 0 2 1 *"}})),
    ]
}

/// What else is in namespaces.
fn others() -> Vec<Row> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let read = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
    let write = json!({"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "update"]}]});
    let subject = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}]);
    let other_subject =
        json!({"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "other"}]});
    vec![
        inside("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers",
            json!({"spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "none"}}}),
            json!({"spec": {"maxReplicas": 5}})),
        inside("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets",
            json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}), json!({"spec": {"minAvailable": 2}}))
            .status(json!({"currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 4, "disruptionsAllowed": 1, "observedGeneration": 1})),
        inside("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies",
            json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}), json!({"spec": {"policyTypes": ["Egress"]}})),
        inside("networking.k8s.io/v1", "Ingress", "ingresses",
            json!({"spec": {"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}}),
            json!({"spec": {"defaultBackend": {"service": {"port": {"number": 81}}}}}))
            .status(json!({"loadBalancer": {"ingress": [{"hostname": "a.example"}]}})),
        inside(rbac, "Role", "roles", json!({"rules": read}), write),
        inside(rbac, "RoleBinding", "rolebindings",
            json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "sweep"}, "subjects": subject}),
            other_subject),
        inside("resource.k8s.io/v1", "ResourceClaim", "resourceclaims",
            json!({"spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "sweep"}}]}}}), label()),
        inside("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates",
            json!({"spec": {"spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "sweep"}}]}}}}), label()),
        inside("v1", "PersistentVolumeClaim", "persistentvolumeclaims",
            json!({"spec": {"storageClassName": "sweep", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}), label())
            .holds(|hub, edge| [hub, edge].into_iter().all(|side| at(side, "/status/phase") == "Bound")),
    ]
}

/// What is in no namespace.
fn roles_and_classes() -> Vec<Row> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let read = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
    let write = json!({"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "update"]}]});
    let subject = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}]);
    let other_subject =
        json!({"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "other"}]});
    vec![
        outside("v1", "PersistentVolume", "persistentvolumes",
            json!({"spec": {"storageClassName": "sweep", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/tmp"}}}), json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}))
            .filled_in("csi-provisioner", json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "hub.example"}}}))
            .holds(|hub, edge| {
                let provisioner = "/metadata/annotations/pv.kubernetes.io~1provisioned-by";
                has(hub, provisioner) && !has(edge, provisioner)
                    && has(edge, "/spec/claimRef/uid") && at(hub, "/spec/claimRef/uid") != at(edge, "/spec/claimRef/uid")
            }),
        outside("v1", "Namespace", "namespaces", json!({}), label()).named("sweep-namespace"),
        outside(rbac, "ClusterRole", "clusterroles", json!({"rules": read}), write),
        outside(rbac, "ClusterRole", "clusterroles",
            json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"sweep-part": "yes"}}]}}),
            json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"sweep-part": "yes"}}, {"matchLabels": {"sweep-part": "more"}}]}}))
            .named("sweep-aggregated")
            .holds(|hub, edge| at(hub, "/rules/0/resources/0") == "nodes" && at(edge, "/rules/0/resources/0") == "pods"),
        outside(rbac, "ClusterRoleBinding", "clusterrolebindings",
            json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sweep"}, "subjects": subject}),
            other_subject),
        outside("storage.k8s.io/v1", "StorageClass", "storageclasses",
            json!({"provisioner": "kubernetes.io/no-provisioner"}), json!({"allowVolumeExpansion": true})),
        outside("storage.k8s.io/v1", "CSIDriver", "csidrivers", json!({"spec": {"attachRequired": false}}), json!({"spec": {"requiresRepublish": true}}))
            .named("csi.sweep.example"),
        outside("storage.k8s.io/v1", "VolumeAttributesClass", "volumeattributesclasses",
            json!({"driverName": "csi.sweep.example", "parameters": {"a": "1"}}), label()),
        outside("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", json!({"value": 7}), json!({"description": "changed"})),
        outside("networking.k8s.io/v1", "IngressClass", "ingressclasses", json!({"spec": {"controller": "sweep.example/a"}}), label()),
        // Of the other family, so that no Service gets an address of it.
        outside("networking.k8s.io/v1", "ServiceCIDR", "servicecidrs", json!({"spec": {"cidrs": ["fd00:5eeb::/120"]}}), label()),
        outside("node.k8s.io/v1", "RuntimeClass", "runtimeclasses", json!({"handler": "a"}), json!({"overhead": {"podFixed": {"cpu": "1m"}}})),
        outside("resource.k8s.io/v1", "DeviceClass", "deviceclasses", json!({"spec": {}}), json!({"spec": {"selectors": [{"cel": {"expression": "true"}}]}})),
    ]
}

/// What extends the API.
fn extensions() -> Vec<Row> {
    let webhooks = |seconds: u8| {
        json!({"webhooks": [{
            "name": "a.sweep.example", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
            "timeoutSeconds": seconds, "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": ["none.sweep.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothings"]}],
        }]})
    };
    let mut injected_webhooks = webhooks(5);
    injected_webhooks["metadata"] = json!({"annotations": {"cert-manager.io/inject-ca-from": "sweep/sweep"}});
    vec![
        outside(
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
            webhooks(5),
            webhooks(6),
        ),
        outside(
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
            injected_webhooks,
            webhooks(6),
        )
        .named("sweep-injected")
        .injected(json!({"webhooks": [{"name": "a.sweep.example", "clientConfig": {"caBundle": "Zg=="}}]})),
        outside(
            "admissionregistration.k8s.io/v1",
            "MutatingWebhookConfiguration",
            "mutatingwebhookconfigurations",
            webhooks(5),
            webhooks(6),
        ),
        outside(
            "admissionregistration.k8s.io/v1",
            "ValidatingAdmissionPolicy",
            "validatingadmissionpolicies",
            json!({"spec": {"failurePolicy": "Ignore", "validations": [{"expression": "true"}], "matchConstraints": {"resourceRules": [
                {"apiGroups": ["none.sweep.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothings"]}]}}}),
            json!({"spec": {"validations": [{"expression": "1 == 1"}]}}),
        ),
        outside(
            "admissionregistration.k8s.io/v1",
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            json!({"spec": {"policyName": "sweep", "validationActions": ["Warn"]}}),
            json!({"spec": {"validationActions": ["Audit"]}}),
        ),
        outside(
            "admissionregistration.k8s.io/v1",
            "MutatingAdmissionPolicy",
            "mutatingadmissionpolicies",
            json!({"spec": {"failurePolicy": "Ignore", "reinvocationPolicy": "Never",
                "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{}"}}],
                "matchConstraints": {"resourceRules": [
                    {"apiGroups": ["none.sweep.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothings"]}]}}}),
            json!({"spec": {"reinvocationPolicy": "IfNeeded"}}),
        ),
        outside(
            "admissionregistration.k8s.io/v1",
            "MutatingAdmissionPolicyBinding",
            "mutatingadmissionpolicybindings",
            json!({"spec": {"policyName": "sweep"}}),
            json!({"spec": {"matchResources": {"namespaceSelector": {"matchLabels": {"sweep": "yes"}}}}}),
        ),
        // Without a Service, so that nothing of the cluster's API is unavailable.
        outside(
            "apiregistration.k8s.io/v1",
            "APIService",
            "apiservices",
            json!({"spec": {"group": "registered.example", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}}),
            json!({"spec": {"versionPriority": 20}}),
        )
        .named("v1.registered.example"),
        outside(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            json!({"spec": {"group": "sweep.example", "scope": "Namespaced",
                "names": {"kind": "Swept", "listKind": "SweptList", "plural": "swepts", "singular": "swept"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}}]}}),
            json!({"spec": {"names": {"shortNames": ["sw"]}}}),
        )
        .named("swepts.sweep.example"),
        outside(
            "flowcontrol.apiserver.k8s.io/v1",
            "PriorityLevelConfiguration",
            "prioritylevelconfigurations",
            json!({"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 1, "limitResponse": {"type": "Reject"}}}}),
            json!({"spec": {"limited": {"nominalConcurrencyShares": 2}}}),
        ),
        outside(
            "flowcontrol.apiserver.k8s.io/v1",
            "FlowSchema",
            "flowschemas",
            json!({"spec": {"matchingPrecedence": 9000, "priorityLevelConfiguration": {"name": "sweep"}}}),
            json!({"spec": {"matchingPrecedence": 9001}}),
        ),
    ]
}

/// Grants a group, which no other test here uses, the rights of `deploy/` for each kind, and those that roles need beyond them: nobody hands on rights that he does not have.
async fn grant(client: &Client, side: Side, rows: &[Row]) {
    let kinds: BTreeSet<(&str, &str)> = rows.iter().map(|row| (row.plural, row.group())).collect();
    for (plural, group) in kinds {
        Grant::kind(side, plural, group).to_group(users::REPLICAS).apply(client).await.expect("a role is granted");
    }
    let group = "rbac.authorization.k8s.io";
    let rules = json!([{"apiGroups": [group], "resources": ["roles", "clusterroles"], "verbs": ["escalate", "bind"]}]);
    apply_role(client, "sweep-hands-on", &json!({}), &rules).await;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "sweep-hands-on"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "sweep-hands-on"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": users::REPLICAS}],
    });
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings.patch("sweep-hands-on", &PatchParams::apply("fixture"), &Patch::Apply(&binding)).await.unwrap();
}

/// Two tests need the same roles.
async fn apply_role(client: &Client, name: &str, labels: &Value, rules: &Value) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels}, "rules": rules,
    });
    let api: Api<ClusterRole> = Api::all(client.clone());
    api.patch(name, &PatchParams::apply("fixture"), &Patch::Apply(&role)).await.unwrap();
}

/// The daemon's requests on both clusters while several changes of an object nearby travel down.
async fn asked_meanwhile(world: &World, hub: &Client, edge: &Client, (name, user): (&str, &str)) -> Vec<String> {
    let messages = format!("{name}-messages");
    let since = (mark_of(&world.hub).await, mark_of(&world.edge).await);
    let [remote, local]: [Api<DynamicObject>; 2] =
        [hub, edge].map(|client| Api::namespaced_with(client.clone(), &messages, &config_maps()));
    for round in 0..3 {
        let held = remote.get("messenger").await.unwrap().metadata.resource_version.unwrap_or_default();
        let value = format!("{round}-{held}");
        let patch = json!({"data": {"message": value}});
        remote.patch("messenger", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        object_that(&local, "the messenger on the edge", "messenger", |local| local.data["data"]["message"] == value)
            .await;
    }
    let mut asked = Vec::new();
    for (plane, since) in [(&world.hub, since.0), (&world.edge, since.1)] {
        let records = plane.audit().unwrap().records(&Filter::since(since).user(user)).await.unwrap();
        // Sections of other daemons have other namespaces; those of a cluster-scoped kind are in one sweep only.
        let is_of_it = |namespace: &str| namespace.is_empty() || namespace == format!("{name}-a");
        let counted = records.into_iter().filter(|record| is_of_it(&record.namespace) && record.verb != "watch");
        asked.extend(counted.map(|record| {
            format!("{}: {} {} {} {}", plane.name(), record.verb, record.resource, record.subresource, record.name)
        }));
    }
    asked
}

fn value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap()
}

/// Whether all that is in `part` is in `whole`; lists have to be equal in length.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| contains(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}

#[test]
fn every_built_in_kind_is_made_changed_and_then_at_rest() {
    run(async { sweep("sweep", users::REPLICA[0], rows(), "").await });
}

/// The built-in kinds that a cluster serves: group and plural.
async fn served(client: &Client) -> BTreeSet<(String, String)> {
    let mut kinds = BTreeSet::new();
    for path in ["/api", "/apis"] {
        let accepted = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let request = http::Request::get(path).header("accept", accepted).body(Vec::new()).unwrap();
        let found: Value = client.request(request).await.unwrap();
        for group in found["items"].as_array().unwrap() {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            // All other groups are those of definitions.
            if name.contains('.') && !name.ends_with(".k8s.io") {
                continue;
            }
            let versions = group["versions"].as_array().unwrap().iter();
            let resources = versions.flat_map(|version| version["resources"].as_array().unwrap());
            kinds.extend(resources.map(|kind| (name.to_owned(), kind["resource"].as_str().unwrap().to_owned())));
        }
    }
    kinds
}

#[test]
fn every_built_in_kind_that_a_cluster_serves_is_swept_or_refused() {
    run(async {
        let world = world().await;
        let mut left = served(&admin(&world.hub).await).await;
        assert!(left.len() > 50, "{left:?}");
        for row in rows() {
            left.remove(&(row.group().to_owned(), row.plural.to_owned()));
        }
        let mut config = clusters(world);
        for (index, (group, plural)) in left.iter().enumerate() {
            let kind =
                ApiResource { group: group.clone(), version: "v1".to_owned(), plural: plural.clone(), ..config_maps() };
            config += &sync(&format!("left-{index}"), &kind, &format!("selector = {CHOSEN:?}"));
        }
        let (_, told) = check(world, "left", &config, false).await;
        let is_refused = |index: usize| told.lines().any(|line| line.contains(&format!("sync[{index}].resource")));
        let neither: Vec<_> =
            left.iter().enumerate().filter(|(index, _)| !is_refused(*index)).map(|(_, kind)| kind).collect();
        assert!(neither.is_empty(), "neither in a row nor refused: {neither:?}\n{told}");
    });
}

#[test]
fn with_mirror_too_what_clusters_fill_in_stays_and_all_is_at_rest() {
    run(async {
        let kinds = ["ConfigMap", "Service", "ServiceAccount", "ReplicaSet", "DaemonSet", "Job"];
        let mut rows = rows();
        // An address can be chosen once.
        rows.retain(|row| kinds.contains(&row.kind) && row.name != ORDERED);
        // Version 1 shows parts of the status as annotations.
        let scaler = json!({"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "none"}});
        rows.push(
            inside(
                "autoscaling/v1",
                "HorizontalPodAutoscaler",
                "horizontalpodautoscalers",
                json!({"spec": scaler}),
                json!({"spec": {"maxReplicas": 5}}),
            )
            .holds(|hub, edge| {
                let conditions = "/metadata/annotations/autoscaling.alpha.kubernetes.io~1conditions";
                [hub, edge].into_iter().all(|side| has(side, conditions))
            }),
        );
        for row in &mut rows {
            row.world = "reflected";
        }
        sweep("reflected", users::REPLICA[1], rows, "metadata = \"mirror\"").await;
    });
}

/// Makes and changes an object of each kind, writes its status on the edge, and waits until Towline asks for nothing more.
async fn sweep(name: &str, user: &str, rows: Vec<Row>, settings: &str) {
    let world = world().await;
    let admins = (admin(&world.hub).await, admin(&world.edge).await);
    tokio::join!(grant(&admins.0, Side::Remote, &rows), grant(&admins.1, Side::Local, &rows));
    let hub = world.hub.client(users::HUB_USER).await.unwrap();
    let edge = world.edge.client(users::EDGE_CONTROLLER).await.unwrap();
    let (namespace, messages) = (format!("{name}-a"), format!("{name}-messages"));
    for (client, resource) in [(&hub, "nodes"), (&edge, "pods")] {
        for namespace in [&namespace, &messages] {
            make_namespace(client, namespace, &json!({})).await;
        }
        // What is aggregated differs.
        let rules = json!([{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]);
        apply_role(client, "sweep-part", &json!({"sweep-part": "yes"}), &rules).await;
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(client.clone(), &namespace);
        account_is_there(&accounts, "default").await;
    }
    if let Some(pod) = rows.iter().find(|row| row.kind == "Pod") {
        admission_fills_in(&hub, pod).await;
    }
    for row in &rows {
        let made = row.api(&hub).create(&PostParams::default(), &row.object()).await;
        made.expect(row.kind);
    }
    controllers_act(&hub, &rows, &namespace).await;
    ports_are_taken(&hub, &edge, &rows).await;
    let messenger =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "messenger", "labels": {"sweep": "yes"}}});
    let messages: Api<DynamicObject> = Api::namespaced_with(hub.clone(), &messages, &config_maps());
    messages.create(&PostParams::default(), &serde_json::from_value(messenger).unwrap()).await.unwrap();

    let [hub_file, edge_file] = [&world.hub, &world.edge].map(|plane| plane.kubeconfig(user).unwrap());
    let mut config = format!(
        "[clusters.hub]\nkubeconfig = \"{}\"\n[clusters.edge]\nkubeconfig = \"{}\"\n",
        hub_file.display(),
        edge_file.display()
    );
    let mut sections = BTreeSet::new();
    for row in rows.iter().filter(|row| sections.insert(row.section())) {
        let resource = resource(&row.resource());
        let section = format!(
            "[[sync]]\nname = {:?}\nremote = \"hub\"\nlocal = \"edge\"\nresource = {resource:?}\nnamespace_prefix = \"{name}-\"\n\
             selector = \"{CHOSEN}\"\nannotation_domain = \"{name}.example\"\n{settings}\n{}\n",
            row.section(),
            row.settings
        );
        config.push_str(&section);
    }
    let towline = Towline::start(&config, &[]).await.unwrap();
    towline.wait_ready(LIMIT).await.unwrap();

    for row in &rows {
        object_that(&row.api(&edge), &format!("{} {} on the edge", row.kind, row.name), row.name, |_| true).await;
    }
    for (row, injected) in rows.iter().filter_map(|row| Some((row, row.injected.as_ref()?))) {
        let by_a_cloud = by("cloud-controller-manager");
        row.api(&edge).patch(row.name, &by_a_cloud, &Patch::Strategic(injected)).await.expect(row.kind);
    }
    for row in &rows {
        // A pod's containers have to be merged with what admission has added to them.
        let is_pod = row.kind == "Pod";
        let patch = if is_pod { Patch::Strategic(&row.change) } else { Patch::Merge(&row.change) };
        let changed = row.api(&hub).patch(row.name, &PatchParams::default(), &patch).await;
        changed.expect(row.kind);
    }
    for row in &rows {
        let what = format!("the change of {} {} on the edge", row.kind, row.name);
        object_that(&row.api(&edge), &what, row.name, |local| contains(&value(local), &row.change)).await;
    }
    for (row, injected) in rows.iter().filter_map(|row| Some((row, row.injected.as_ref()?))) {
        let local = value(&row.api(&edge).get(row.name).await.unwrap());
        assert!(contains(&local, injected), "{local}");
    }
    for (row, status) in rows.iter().filter_map(|row| Some((row, row.status.as_ref()?))) {
        let patch = Patch::Merge(json!({"status": status}));
        row.api(&edge).patch_status(row.name, &PatchParams::default(), &patch).await.unwrap();
        let what = format!("the status of {} {} on the hub", row.kind, row.name);
        object_that(&row.api(&hub), &what, row.name, |remote| contains(&remote.data["status"], status)).await;
    }
    for (row, holds) in rows.iter().filter_map(|row| Some((row, row.holds?))) {
        eventually(format!("what {} {} keeps apart", row.kind, row.name), LIMIT, async || {
            let remote = value(&row.api(&hub).get(row.name).await.map_err(|error| error.to_string())?);
            let local = value(&row.api(&edge).get(row.name).await.map_err(|error| error.to_string())?);
            if holds(&remote, &local) { Ok(()) } else { Err(format!("hub: {remote}\nedge: {local}")) }
        })
        .await
        .unwrap();
    }
    eventually("no request of Towline while an object nearby changes three times", LIMIT, async || {
        let asked = asked_meanwhile(world, &hub, &edge, (name, user)).await;
        if asked.is_empty() { Ok(()) } else { Err(asked.join("\n")) }
    })
    .await
    .unwrap();
    for section in sections {
        let of_section = rows.iter().filter(|row| row.section() == section).count();
        let expected = of_section + usize::from(section == format!("{name}-configmaps"));
        // A Deployment's controller copies its annotations, our marks among them, to its ReplicaSets.
        let is_of_copies = section == format!("{name}-replicasets") && rows.iter().any(|row| row.kind == "Deployment");
        is_in_step(&towline, &section, expected, is_of_copies).await;
    }
}

/// What controllers and a scheduler do on the hub.
async fn controllers_act(hub: &Client, rows: &[Row], namespace: &str) {
    for (row, (manager, filled_in)) in rows.iter().filter_map(|row| Some((row, row.filled_in.as_ref()?))) {
        row.api(hub).patch(row.name, &by(manager), &Patch::Merge(filled_in)).await.expect(row.kind);
    }
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(hub.clone(), namespace);
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "sweep"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-of-the-hub"},
    });
    if rows.iter().any(|row| row.kind == "Pod") {
        let bound: Result<Value, _> =
            pods.create_subresource("binding", "sweep", &PostParams::default(), &binding).await;
        bound.unwrap();
    }
}

fn by(manager: &str) -> PatchParams {
    PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() }
}

/// Gives the ports that the hub has allocated to others on the edge, which so refuses a copy of them.
async fn ports_are_taken(hub: &Client, edge: &Client, rows: &[Row]) {
    let services: Api<Service> = Api::namespaced(edge.clone(), "default");
    for row in rows.iter().filter(|row| row.kind == "Service" && row.name != ORDERED) {
        let service = value(&row.api(hub).get(row.name).await.unwrap());
        let ports = at(&service, "/spec/ports").as_array().into_iter().flatten().map(|port| &port["nodePort"]);
        for port in ports.chain([at(&service, "/spec/healthCheckNodePort")]).filter(|port| port.is_number()) {
            let holder = json!({
                "metadata": {"name": format!("holds-{port}")},
                "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]},
            });
            match services.create(&PostParams::default(), &serde_json::from_value(holder).unwrap()).await {
                Err(kube::Error::Api(status)) if status.message.contains("already allocated") => {}
                made => drop(made.expect("a port is taken")),
            }
        }
    }
}

/// Lets the hub's admission fill in a class, and waits until it does so.
async fn admission_fills_in(hub: &Client, pod: &Row) {
    let class = json!({"metadata": {"name": "default-of-the-hub"}, "value": 11, "globalDefault": true});
    let classes: Api<k8s_openapi::api::scheduling::v1::PriorityClass> = Api::all(hub.clone());
    classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
    eventually("a class in a new pod on the hub", LIMIT, async || {
        let tried = PostParams { dry_run: true, ..PostParams::default() };
        let tried = pod.api(hub).create(&tried, &pod.object()).await.map_err(|error| error.to_string())?;
        let tried = value(&tried);
        if has(&tried, "/spec/priorityClassName") { Ok(()) } else { Err(tried.to_string()) }
    })
    .await
    .unwrap();
}

/// Whether all of a section is in step; of copies others may be told as unclaimed.
async fn is_in_step(towline: &Towline, section: &str, expected: usize, is_of_copies: bool) {
    eventually(format!("all of section {section} to be in step"), LIMIT, async || {
        let report = towline.admin().section(section).await.map_err(|error| error.to_string())?;
        let mut objects = report["objects"].clone();
        let in_step = objects.as_object_mut().and_then(|objects| objects.remove("in_step")).unwrap_or_default();
        let mut others =
            objects.as_object().into_iter().flatten().filter(|(state, _)| !(is_of_copies && *state == "unclaimed"));
        if in_step == json!(expected) && others.all(|(_, count)| *count == 0) {
            return Ok(());
        }
        Err(report.to_string())
    })
    .await
    .unwrap();
}

async fn account_is_there(accounts: &Api<k8s_openapi::api::core::v1::ServiceAccount>, name: &str) {
    eventually(format!("the service account {name}"), LIMIT, async || {
        accounts.get(name).await.map(|_| ()).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
}

#[test]
fn replicas_that_an_autoscaler_sets_on_the_edge_stay_and_all_is_at_rest() {
    run(async {
        let deployments = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "Deployment"));
        let settings = "local_fields = [\"/spec/replicas\"]";
        let section = Section::start("scaled", deployments, settings).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "web", &workload(&json!({"replicas": 1}))).await;
        section.local_has("a", "web", |local| local.data["spec"]["replicas"] == 1).await;
        // Fewer than the least need no metrics.
        let scaler = json!({"metadata": {"name": "web"}, "spec": {"minReplicas": 2, "maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
        let scalers: Api<k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler> =
            Api::namespaced(section.edge.clone(), &section.namespace("a"));
        scalers.create(&PostParams::default(), &serde_json::from_value(scaler).unwrap()).await.unwrap();
        section.local_has("a", "web", |local| local.data["spec"]["replicas"] == 2).await;
        section.quiet_with(&workload(&json!({"replicas": 0}))).await;
        let since = section.mark().await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await, (counts([]), counts([])), "it rests");
        section.patch_remote("a", "web", &json!({"spec": {"replicas": 3, "template": template("x:2")}})).await;
        let image = "/spec/template/spec/containers/0/image";
        let local = section.local_has("a", "web", |local| at(&value(local), image) == "x:2").await;
        assert_eq!(local.data["spec"]["replicas"], 2);
        section.quiet().await;
        let expected = (counts([("patch deployments", 1)]), counts([("patch deployments", 1)]));
        assert_eq!(section.counted("a", since).await, expected, "the change, and its note");
    });
}

#[test]
fn a_claim_that_is_bound_on_the_hub_is_not_lost_on_the_edge_and_stays_bound() {
    run(async {
        let world = world().await;
        let claims = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "PersistentVolumeClaim"));
        for (client, side) in [(admin(&world.hub).await, Side::Remote), (admin(&world.edge).await, Side::Local)] {
            Grant::kind(side, "persistentvolumeclaims", "").apply(&client).await.unwrap();
        }
        let section = Section::start("claims", claims, "").await;
        section.make_remote_namespace("a").await;
        let rest = json!({"storageClassName": "claims", "accessModes": ["ReadWriteOnce"]});
        let mut volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "claims-volume"},
            "spec": {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/tmp"}},
        });
        merge(&mut volume["spec"], &rest);
        let volumes = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "PersistentVolume"));
        let api: Api<DynamicObject> = Api::all_with(section.hub.clone(), &volumes);
        api.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
        let mut claim = json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}});
        merge(&mut claim["spec"], &rest);
        section.make_remote("a", "data", &claim).await;
        let is_bound = |claim: &DynamicObject| claim.data["status"]["phase"] == "Bound";
        section.remote_has("a", "data", is_bound).await;
        let by_a_provisioner = json!({
            "volume.kubernetes.io/selected-node": "node-of-the-hub",
            "volume.kubernetes.io/storage-provisioner": "hub.example",
            "volume.beta.kubernetes.io/storage-provisioner": "hub.example",
        });
        let metadata = json!({"labels": {"seen": "bound"}, "annotations": by_a_provisioner});
        section.patch_remote("a", "data", &json!({"metadata": metadata})).await;
        let local = section
            .local_has("a", "data", |local| {
                local.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key("seen"))
                    && local.data["status"]["phase"] == "Pending"
            })
            .await;
        assert_eq!(local.data["spec"].get("volumeName"), None);
        let of_volumes = |claim: &DynamicObject| -> Vec<String> {
            let is_of_volumes = |key: &&String| key.starts_with("pv.kubernetes.io/") || key.starts_with("volume.");
            claim.annotations().keys().filter(is_of_volumes).cloned().collect()
        };
        assert_eq!(of_volumes(&local), [""; 0]);
        let remote = section.remote_has("a", "data", |_| true).await;
        assert!(is_bound(&remote), "the hub's claim stays bound");
        assert!(of_volumes(&remote).len() >= 4, "{:?}", of_volumes(&remote));
    });
}
