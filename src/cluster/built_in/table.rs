//! The table: by built-in kind, what a control plane puts into an object.

use serde_json::{Value, json};

use super::{BuiltIn, Field, Manifest, When};

/// A field that the server keeps if an update leaves it out.
const fn kept(path: &'static [&'static str], when: When) -> Field {
    Field { path, when, kept: true }
}

/// A field that has to be sent back with an update.
const fn field(path: &'static [&'static str], when: When) -> Field {
    Field { path, when, kept: false }
}

/// A kind of which nothing but a [status that its own cluster writes](super::super::object::Object::has_own_status) stays there.
const NONE: BuiltIn = BuiltIn { group: "", plural: "", kind: "", fields: &[], keys: &[], leaves_status_out: false };

/// The name of the volume with the token, which the admission of service accounts adds to each pod.
const TOKEN_VOLUME: &str = "kube-api-access-";

const IS_GENERATED: When =
    When::Manifest(|job| job.content.pointer("/spec/manualSelector") != Some(&Value::Bool(true)));
const IS_AGGREGATED: When =
    When::Manifest(|role| role.content.get("aggregationRule").is_some_and(|rule| !rule.is_null()));
/// An injector of each cluster fills it in.
const IS_INJECTED: When = When::Manifest(is_injected);
const IS_TOKEN: When = When::Value(is_token);
/// The binder of volumes puts this on a claim whose volume it has chosen, and on a volume whose claim it has chosen.
const IS_BOUND: When = When::Annotated("pv.kubernetes.io/bound-by-controller");

fn is_injected(manifest: &Manifest<'_>) -> bool {
    manifest
        .annotations
        .iter()
        .any(|key| key.starts_with("cert-manager.io/inject-") || *key == "service.beta.openshift.io/inject-cabundle")
}

fn is_token(volume: &Value) -> bool {
    volume.get("name").and_then(Value::as_str).is_some_and(|name| name.starts_with(TOKEN_VOLUME))
}

/// A toleration that an admission plugin adds to each pod.
fn is_default_toleration(toleration: &Value) -> bool {
    ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].into_iter().any(|key| {
        *toleration == json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    })
}

pub(super) const KINDS: &[BuiltIn] = &[
    BuiltIn {
        plural: "services",
        kind: "Service",
        fields: &[
            // A headless Service was ordered so, whoever is noted as the owner of the field.
            kept(&["spec", "clusterIP"], When::NotOrderedValue(|address| address != "None")),
            kept(&["spec", "clusterIPs"], When::NotOrdered),
            kept(&["spec", "ports", "*", "nodePort"], When::NotOrdered),
            kept(&["spec", "healthCheckNodePort"], When::NotOrdered),
            field(&["spec", "loadBalancerIP"], When::NotOrdered),
            field(&["spec", "ipFamilies"], When::NotOrdered),
            field(&["spec", "ipFamilyPolicy"], When::NotOrdered),
        ],
        ..NONE
    },
    BuiltIn {
        plural: "pods",
        kind: "Pod",
        fields: &[
            field(&["spec", "nodeName"], When::NotOrdered),
            field(&["spec", "serviceAccount"], When::NotOrdered),
            field(&["spec", "serviceAccountName"], When::NotOrdered),
            field(&["spec", "imagePullSecrets", "*"], When::NotOrdered),
            field(&["spec", "volumes", "*"], IS_TOKEN),
            field(&["spec", "containers", "*", "volumeMounts", "*"], IS_TOKEN),
            field(&["spec", "initContainers", "*", "volumeMounts", "*"], IS_TOKEN),
            // Admission computes these from classes, and refuses another value.
            field(&["spec", "priority"], When::Always),
            field(&["spec", "priorityClassName"], When::NotOrdered),
            field(&["spec", "preemptionPolicy"], When::NotOrdered),
            field(&["spec", "overhead"], When::Always),
            field(&["spec", "nodeSelector"], When::NotOrdered),
            field(&["spec", "tolerations", "*"], When::Value(is_default_toleration)),
            field(&["spec", "tolerations"], When::NotOrdered),
            // An update can't change them; they debug this one pod.
            field(&["spec", "ephemeralContainers"], When::Always),
        ],
        keys: &[
            "kubernetes.io/limit-ranger",
            // Copied from the node.
            "topology.kubernetes.io/region",
            "topology.kubernetes.io/zone",
            "cni.projectcalico.org/*",
            "k8s.v1.cni.cncf.io/network-status",
            "k8s.ovn.org/*",
            "openshift.io/scc",
        ],
        ..NONE
    },
    BuiltIn {
        plural: "serviceaccounts",
        kind: "ServiceAccount",
        fields: &[field(&["secrets", "*"], When::NotOrdered), field(&["imagePullSecrets", "*"], When::NotOrdered)],
        keys: &["openshift.io/internal-registry-pull-secret-ref"],
        ..NONE
    },
    BuiltIn {
        plural: "persistentvolumeclaims",
        kind: "PersistentVolumeClaim",
        fields: &[field(&["spec", "volumeName"], IS_BOUND), field(&["spec", "storageClassName"], When::NotOrdered)],
        keys: &["pv.kubernetes.io/*", "volume.kubernetes.io/*", "volume.beta.kubernetes.io/storage-provisioner"],
        leaves_status_out: true,
        ..NONE
    },
    BuiltIn {
        plural: "persistentvolumes",
        kind: "PersistentVolume",
        fields: &[
            field(&["spec", "claimRef", "uid"], When::Always),
            field(&["spec", "claimRef", "resourceVersion"], When::Always),
            // The binder adds them to a reference that names a claim, and they are the same for each claim.
            field(&["spec", "claimRef", "apiVersion"], When::Always),
            field(&["spec", "claimRef", "kind"], When::Always),
            field(&["spec", "claimRef"], IS_BOUND),
        ],
        keys: &["pv.kubernetes.io/*", "volume.kubernetes.io/*"],
        leaves_status_out: true,
        ..NONE
    },
    BuiltIn {
        plural: "namespaces",
        kind: "Namespace",
        fields: &[field(&["spec", "finalizers"], When::Always)],
        keys: &["kubernetes.io/metadata.name", "openshift.io/sa.scc.*"],
        leaves_status_out: true,
        ..NONE
    },
    // What is used of it counts in its own cluster.
    BuiltIn { plural: "resourcequotas", kind: "ResourceQuota", leaves_status_out: true, ..NONE },
    BuiltIn {
        plural: "endpoints",
        kind: "Endpoints",
        keys: &["endpoints.kubernetes.io/last-change-trigger-time"],
        ..NONE
    },
    BuiltIn { plural: "replicationcontrollers", kind: "ReplicationController", ..NONE },
    BuiltIn { group: "apps", plural: "deployments", kind: "Deployment", keys: &["deployment.kubernetes.io/*"], ..NONE },
    BuiltIn { group: "apps", plural: "replicasets", kind: "ReplicaSet", keys: &["deployment.kubernetes.io/*"], ..NONE },
    BuiltIn { group: "apps", plural: "statefulsets", kind: "StatefulSet", ..NONE },
    BuiltIn {
        group: "apps",
        plural: "daemonsets",
        kind: "DaemonSet",
        keys: &["deprecated.daemonset.template.generation"],
        ..NONE
    },
    BuiltIn {
        group: "batch",
        plural: "jobs",
        kind: "Job",
        fields: &[
            field(&["spec", "selector"], IS_GENERATED),
            field(&["spec", "template", "metadata", "labels", "controller-uid"], IS_GENERATED),
            field(&["spec", "template", "metadata", "labels", "job-name"], IS_GENERATED),
            field(&["spec", "template", "metadata", "labels", "batch.kubernetes.io/controller-uid"], IS_GENERATED),
            field(&["spec", "template", "metadata", "labels", "batch.kubernetes.io/job-name"], IS_GENERATED),
        ],
        // A Job without labels shows those of its template.
        keys: &["batch.kubernetes.io/*", "controller-uid", "job-name"],
        ..NONE
    },
    BuiltIn { group: "batch", plural: "cronjobs", kind: "CronJob", ..NONE },
    BuiltIn { group: "policy", plural: "poddisruptionbudgets", kind: "PodDisruptionBudget", ..NONE },
    BuiltIn {
        group: "autoscaling",
        plural: "horizontalpodautoscalers",
        kind: "HorizontalPodAutoscaler",
        // Version 1 shows parts of the status so.
        keys: &["autoscaling.alpha.kubernetes.io/conditions", "autoscaling.alpha.kubernetes.io/current-metrics"],
        ..NONE
    },
    BuiltIn {
        group: "networking.k8s.io",
        plural: "ingresses",
        kind: "Ingress",
        fields: &[field(&["spec", "ingressClassName"], When::NotOrdered)],
        ..NONE
    },
    BuiltIn {
        group: "rbac.authorization.k8s.io",
        plural: "clusterroles",
        kind: "ClusterRole",
        fields: &[field(&["rules"], IS_AGGREGATED)],
        ..NONE
    },
    BuiltIn {
        group: "admissionregistration.k8s.io",
        plural: "validatingwebhookconfigurations",
        kind: "ValidatingWebhookConfiguration",
        fields: &[field(&["webhooks", "*", "clientConfig", "caBundle"], IS_INJECTED)],
        ..NONE
    },
    BuiltIn {
        group: "admissionregistration.k8s.io",
        plural: "mutatingwebhookconfigurations",
        kind: "MutatingWebhookConfiguration",
        fields: &[field(&["webhooks", "*", "clientConfig", "caBundle"], IS_INJECTED)],
        ..NONE
    },
    BuiltIn {
        group: "admissionregistration.k8s.io",
        plural: "validatingadmissionpolicies",
        kind: "ValidatingAdmissionPolicy",
        leaves_status_out: true,
        ..NONE
    },
    BuiltIn {
        group: "apiextensions.k8s.io",
        plural: "customresourcedefinitions",
        kind: "CustomResourceDefinition",
        fields: &[field(&["spec", "conversion", "webhook", "clientConfig", "caBundle"], IS_INJECTED)],
        leaves_status_out: true,
        ..NONE
    },
    BuiltIn {
        group: "apiregistration.k8s.io",
        plural: "apiservices",
        kind: "APIService",
        fields: &[field(&["spec", "caBundle"], IS_INJECTED)],
        leaves_status_out: true,
        ..NONE
    },
    BuiltIn {
        group: "flowcontrol.apiserver.k8s.io",
        plural: "flowschemas",
        kind: "FlowSchema",
        leaves_status_out: true,
        ..NONE
    },
    BuiltIn {
        group: "flowcontrol.apiserver.k8s.io",
        plural: "prioritylevelconfigurations",
        kind: "PriorityLevelConfiguration",
        leaves_status_out: true,
        ..NONE
    },
    BuiltIn {
        group: "networking.k8s.io",
        plural: "servicecidrs",
        kind: "ServiceCIDR",
        leaves_status_out: true,
        ..NONE
    },
    BuiltIn {
        group: "resource.k8s.io",
        plural: "resourceclaims",
        kind: "ResourceClaim",
        leaves_status_out: true,
        ..NONE
    },
];

/// Why objects of a kind can't be synced: each describes its own cluster. `selected`: a label selector chooses among them.
pub fn unsyncable(group: &str, plural: &str, selected: bool) -> Option<&'static str> {
    match (group, plural) {
        ("", "nodes") | ("storage.k8s.io", "csinodes" | "csistoragecapacities" | "volumeattachments") => {
            Some("such objects describe the nodes of their own cluster")
        }
        ("" | "events.k8s.io", "events") => Some("Events report what happened in their own cluster"),
        ("coordination.k8s.io", "leases" | "leasecandidates") => {
            Some("a Lease belongs to who renews it; its holders in two clusters would take it from each other")
        }
        ("", "endpoints") | ("discovery.k8s.io", "endpointslices") if !selected => Some(
            "the controllers of each cluster make them for its Services; those that you made for Services without a selector \
             can be synced with a label selector",
        ),
        ("apiregistration.k8s.io", "apiservices") if !selected => Some(
            "the API server of each cluster makes them for the kinds that it serves itself; those that you made can be synced \
             with a label selector",
        ),
        ("apps", "controllerrevisions") => Some("the controllers of each cluster make them for its own objects"),
        ("", "componentstatuses") => Some("they can't be watched, and describe their own cluster"),
        ("", "bindings") | ("authentication.k8s.io" | "authorization.k8s.io", _) => {
            Some("such objects are questions and are not stored")
        }
        ("certificates.k8s.io", "certificatesigningrequests") => {
            Some("its signer belongs to one cluster, and the requesting user is set by the API server")
        }
        ("networking.k8s.io", "ipaddresses") => Some("they are the allocations of their own cluster's Services"),
        ("resource.k8s.io", "resourceslices") => Some("drivers make them for the nodes of their own cluster"),
        ("internal.apiserver.k8s.io", "storageversions") | ("storagemigration.k8s.io", _) => {
            Some("they describe their own cluster's API server")
        }
        ("metrics.k8s.io" | "custom.metrics.k8s.io" | "external.metrics.k8s.io", _) => {
            Some("they are measurements of their own cluster")
        }
        _ => None,
    }
}
