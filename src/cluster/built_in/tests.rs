use proptest::prelude::*;
use serde_json::json;

use super::*;

/// An object as a cache of portable parts holds it.
fn reduced(group: &str, plural: &str, object: &Value) -> Object {
    let built_in = BuiltIn::of(group, plural).expect("a row of the table");
    built_in.portable(serde_json::from_value::<Managed>(object.clone()).expect("an object")).into_object()
}

fn by(manager: &str, fields: &Value) -> Value {
    json!({"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields})
}

#[test]
fn an_allocated_address_is_not_portable_and_an_ordered_one_is() {
    let spec = json!({
        "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "ipFamilies": ["IPv4"], "type": "NodePort",
        "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30001}, {"port": 81, "protocol": "TCP", "nodePort": 30002}],
    });
    let ports = json!({"k:{\"port\":81,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:nodePort": {}}});
    for (fields, expected) in [
        (
            json!({"f:spec": {"f:type": {}, "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}}}),
            json!({"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP"}]}),
        ),
        (
            json!({"f:spec": {"f:clusterIP": {}, "f:ports": ports}}),
            json!({
                "type": "NodePort", "clusterIP": "10.0.0.7",
                "ports": [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP", "nodePort": 30002}],
            }),
        ),
    ] {
        for manager in ["kubectl", "towline-services"] {
            let object = json!({"metadata": {"name": "a", "managedFields": [by(manager, &fields)]}, "spec": spec});
            let object = reduced("", "services", &object);
            assert_eq!(object.content.value(), json!({"spec": expected}), "{fields}");
            let mut whole = expected.clone();
            whole["ipFamilies"] = json!(["IPv4"]);
            assert_eq!(
                object.whole.expect("more").value(),
                json!({"spec": whole}),
                "what the server keeps is not sent back"
            );
        }
    }
    // What a controller wrote was not ordered.
    let fields = json!({"f:spec": {"f:loadBalancerIP": {}}});
    let address = |manager: &str| {
        let object = json!({"metadata": {"name": "a", "managedFields": [by(manager, &fields)]}, "spec": {"loadBalancerIP": "1.2.3.4"}});
        reduced("", "services", &object).content.value()["spec"].get("loadBalancerIP").cloned()
    };
    assert_eq!(address("cloud-controller-manager"), None);
    assert_eq!(address("helm"), Some(json!("1.2.3.4")));
    let headless = json!({"metadata": {"name": "a"}, "spec": {"clusterIP": "None", "clusterIPs": ["None"]}});
    assert_eq!(reduced("", "services", &headless).content.value(), json!({"spec": {"clusterIP": "None"}}));
}

#[test]
fn a_generated_selector_is_not_portable_and_a_manual_one_is() {
    let job = |manual: bool| {
        json!({
            "metadata": {"name": "a", "labels": {"job-name": "a", "team": "x"}},
            "spec": {
                "manualSelector": manual, "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}},
                "template": {"metadata": {"labels": {"app": "a", "controller-uid": "u", "batch.kubernetes.io/job-name": "a"}}},
            },
        })
    };
    let object = reduced("batch", "jobs", &job(false));
    assert_eq!(object.content.value()["spec"]["template"], json!({"metadata": {"labels": {"app": "a"}}}));
    assert_eq!(object.content.value()["spec"].get("selector"), None);
    assert_eq!(object.labels.keys().map(AsRef::as_ref).collect::<Vec<&str>>(), ["team"]);
    assert!(object.hidden_labels && !object.hidden_annotations);
    assert_eq!(object.whole.expect("more").value(), json!({"spec": job(false)["spec"]}));
    let object = reduced("batch", "jobs", &job(true));
    assert_eq!((object.content.value(), object.whole), (json!({"spec": job(true)["spec"]}), None));
}

const BOUND: &str = "pv.kubernetes.io/bound-by-controller";

#[test]
fn what_a_control_plane_writes_was_not_ordered_whatever_its_process_is_called() {
    let secrets = |manager: &str| {
        let fields = json!({"f:secrets": {".": {}, "k:{\"name\":\"token\"}": {".": {}, "f:name": {}}}});
        let metadata = json!({"name": "a", "managedFields": [by(manager, &fields)]});
        let account = json!({"metadata": metadata, "secrets": [{"name": "token"}]});
        reduced("", "serviceaccounts", &account).content.value().get("secrets").cloned()
    };
    for manager in ["kube-controller-manager", "openshift-controller-manager", "k3s", "kubelite", "microshift"] {
        assert_eq!(secrets(manager), None, "{manager}");
    }
    // K3s applies the manifests in a folder of its server under the first of these names.
    for manager in ["deploy@node-1", "kubectl-client-side-apply", "kubectl", "helm", "k0s", "rke2"] {
        assert_eq!(secrets(manager), Some(json!([{"name": "token"}])), "{manager}");
    }
}

#[test]
fn what_the_binder_writes_is_not_portable_and_what_a_user_binds_is() {
    let claim = |manager: &str| {
        json!({
            "metadata": {
                "name": "a", "annotations": {
                    "pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "n",
                    "volume.beta.kubernetes.io/storage-class": "fast",
                },
                "managedFields": [by(manager, &json!({"f:spec": {"f:volumeName": {}}}))],
            },
            "spec": {"volumeName": "v"}, "status": {"phase": "Bound"},
        })
    };
    // The annotation proves it, whatever the binder's process is called.
    for manager in ["kube-controller-manager", "a-distribution-of-its-own"] {
        let mut bound = claim(manager);
        bound["metadata"]["annotations"][BOUND] = json!("yes");
        let bound = reduced("", "persistentvolumeclaims", &bound);
        assert_eq!((bound.content.value(), bound.status), (json!({"spec": {}}), None));
        assert_eq!(
            bound.annotations.keys().map(AsRef::as_ref).collect::<Vec<&str>>(),
            ["volume.beta.kubernetes.io/storage-class"]
        );
    }
    let ordered = reduced("", "persistentvolumeclaims", &claim("kubectl"));
    assert_eq!(ordered.content.value(), json!({"spec": {"volumeName": "v"}}));
    // Syncsets send what is written in the manifest.
    let mut manifest = claim("kubectl");
    manifest["metadata"]["annotations"][BOUND] = json!("yes");
    BuiltIn::of_kind("", "PersistentVolumeClaim").expect("a row").reduce_manifest(&mut manifest);
    assert_eq!(manifest["spec"], json!({"volumeName": "v"}));
    let reference = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "n", "name": "a", "uid": "u", "resourceVersion": "1"});
    let volume = |annotations: &Value| {
        let managers = [by("a-distribution-of-its-own", &json!({"f:spec": {"f:claimRef": {}}}))];
        let metadata = json!({"name": "v", "annotations": annotations, "managedFields": managers});
        let object = json!({"metadata": metadata, "spec": {"claimRef": reference}});
        reduced("", "persistentvolumes", &object).content.value()
    };
    assert_eq!(volume(&json!({BOUND: "yes"})), json!({"spec": {}}));
    assert_eq!(volume(&json!({})), json!({"spec": {"claimRef": {"namespace": "n", "name": "a"}}}));
}

#[test]
fn rules_of_an_aggregated_role_are_not_portable() {
    let role = |selectors: Value| json!({"metadata": {"name": "a"}, "aggregationRule": selectors, "rules": [{"verbs": ["get"]}]});
    let aggregation = json!({"clusterRoleSelectors": []});
    assert_eq!(
        reduced("rbac.authorization.k8s.io", "clusterroles", &role(aggregation.clone())).content.value(),
        json!({"aggregationRule": aggregation})
    );
    let plain = reduced("rbac.authorization.k8s.io", "clusterroles", &role(Value::Null));
    assert!(plain.whole.is_none() && plain.content.value().get("rules").is_some());
    for (selectors, has_rules) in [(aggregation, false), (Value::Null, true)] {
        let mut manifest = role(selectors);
        BuiltIn::of_kind("rbac.authorization.k8s.io", "ClusterRole").expect("a row").reduce_manifest(&mut manifest);
        assert_eq!(manifest.get("rules").is_some(), has_rules);
    }
}

#[test]
fn what_admission_adds_to_a_pod_is_not_portable() {
    let toleration = |seconds: i64| json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let pod = json!({
        "metadata": {"name": "a", "managedFields": [by("kubectl", &json!({"f:spec": {"f:tolerations": {}}}))]},
        "spec": {
            "nodeName": "n", "serviceAccountName": "default", "serviceAccount": "default", "priority": 0,
            "tolerations": [toleration(300), toleration(60)],
            "volumes": [{"name": "data"}, {"name": "kube-api-access-x7"}],
            "containers": [
                {"name": "one", "volumeMounts": [mount("data"), mount("kube-api-access-x7")]},
                {"name": "two", "volumeMounts": [mount("kube-api-access-x7")]},
            ],
        },
    });
    let object = reduced("", "pods", &pod);
    let expected = json!({"spec": {
        "tolerations": [toleration(60)], "volumes": [{"name": "data"}],
        "containers": [{"name": "one", "volumeMounts": [mount("data")]}, {"name": "two"}],
    }});
    assert_eq!(object.content.value(), expected);
    // An update sends it back.
    let mut wanted = expected;
    wanted["spec"]["containers"][0]["image"] = json!("x:2");
    restore(&mut wanted, &object.content.value(), &object.whole.expect("more").value());
    assert_eq!(wanted["spec"]["containers"][0]["volumeMounts"], pod["spec"]["containers"][0]["volumeMounts"]);
    assert_eq!(wanted["spec"]["containers"][1], pod["spec"]["containers"][1]);
    assert_eq!(wanted["spec"]["volumes"], pod["spec"]["volumes"]);
    assert_eq!((&wanted["spec"]["nodeName"], &wanted["spec"]["containers"][0]["image"]), (&json!("n"), &json!("x:2")));
}

/// By field that an admission plugin may fill in: its value, and the record of who ordered it, if anybody can. `false`: nobody can.
#[test]
fn what_admission_fills_into_a_field_is_not_portable_and_what_is_ordered_there_is() {
    let one = |field: &str, value: Value| (json!({field: value}), json!({format!("f:{field}"): {}}), true);
    let computed = |field: &str, value: Value| (json!({field: value}), json!({format!("f:{field}"): {}}), false);
    let selector = json!({"pool": "sandboxed"});
    let toleration = json!([{"key": "sandboxed", "operator": "Exists"}]);
    let debugger = json!([{"name": "debugger", "image": "x:1"}]);
    let rows = [
        // ServiceAccount.
        ("", "pods", one("serviceAccountName", json!("default"))),
        ("", "pods", one("serviceAccount", json!("default"))),
        ("", "pods", one("imagePullSecrets", json!([{"name": "pull"}]))),
        // Priority.
        ("", "pods", one("priorityClassName", json!("usual"))),
        ("", "pods", one("preemptionPolicy", json!("Never"))),
        ("", "pods", computed("priority", json!(7))),
        // RuntimeClass.
        ("", "pods", computed("overhead", json!({"cpu": "1m"}))),
        ("", "pods", one("nodeSelector", selector)),
        ("", "pods", one("tolerations", toleration)),
        // No plugin, but a subresource of its own.
        ("", "pods", computed("ephemeralContainers", debugger)),
        // DefaultStorageClass, DefaultIngressClass.
        ("", "persistentvolumeclaims", one("storageClassName", json!("usual"))),
        ("networking.k8s.io", "ingresses", one("ingressClassName", json!("usual"))),
    ];
    for (group, plural, (spec, fields, may_be_ordered)) in rows {
        let content = |fields: &Value| {
            let metadata = json!({"name": "a", "managedFields": [by("kubectl", &json!({"f:spec": fields}))]});
            reduced(group, plural, &json!({"metadata": metadata, "spec": spec})).content.value()
        };
        assert_eq!(content(&fields) == json!({"spec": spec}), may_be_ordered, "{spec} is ordered");
        assert_eq!(content(&json!({"f:hostname": {}})), json!({"spec": {}}), "{spec} is filled in");
    }
}

/// What the second column of the docs' table has to name for a kind, and whether with a `*`.
fn named_in_docs(kind: &BuiltIn) -> BTreeMap<&str, bool> {
    let mut named: BTreeMap<&str, bool> = kind.keys.iter().map(|key| (*key, false)).collect();
    for field in kind.fields {
        let name = field.path.iter().rfind(|part| **part != "*").expect("a name");
        let may_be_ordered = matches!(field.when, When::NotOrdered | When::NotOrderedValue(_));
        *named.entry(name).or_default() |= may_be_ordered;
    }
    named
}

#[test]
fn the_docs_have_the_table() {
    let page = include_str!("../../../docs/built-in-kinds.md");
    let (_, table) = page.split_once("| kind | left to each cluster |\n|---|---|\n").expect("the table");
    let mut missing: Vec<&str> = table::KINDS.iter().map(|row| row.kind).collect();
    for line in table.lines().take_while(|line| line.starts_with('|')) {
        let [_, kinds, left, _] = line.split('|').collect::<Vec<&str>>()[..] else { panic!("two columns: {line}") };
        let parts: Vec<&str> = left.split('`').collect();
        let named: BTreeMap<&str, bool> =
            (1..parts.len()).step_by(2).map(|at| (parts[at], parts[at + 1].starts_with('*'))).collect();
        for kind in kinds.split(", ").filter_map(|kind| kind.split_whitespace().next()) {
            let row = table::KINDS.iter().find(|row| row.kind == kind).expect(kind);
            assert_eq!(named, named_in_docs(row), "{kind}");
            assert_eq!(left.contains("the status"), row.leaves_status_out, "{kind}");
            missing.retain(|missing| *missing != kind);
        }
    }
    assert_eq!(missing, [""; 0]);
}

#[test]
fn a_status_is_its_own_cluster_s_if_a_controller_of_the_control_plane_wrote_it() {
    for (manager, subresource, expected) in [
        ("kube-controller-manager", "status", true),
        ("k3s", "status", true),
        ("towline-web", "status", false),
        ("metallb", "status", false),
        ("kube-controller-manager", "", false),
        ("kube-controller-manager", "scale", false),
    ] {
        let mut entry = by(manager, &json!({"f:status": {"f:replicas": {}}}));
        entry["subresource"] = json!(subresource);
        let object = json!({"metadata": {"name": "a", "managedFields": [entry]}, "status": {"replicas": 1}});
        let object = reduced("apps", "deployments", &object);
        assert_eq!((object.has_own_status, object.status.is_some()), (expected, true), "{manager} {subresource}");
    }
}

#[test]
fn a_ca_bundle_is_left_to_the_injector_where_there_is_one() {
    for (annotations, is_kept) in [(json!({}), true), (json!({"cert-manager.io/inject-ca-from": "a/b"}), false)] {
        let object = json!({"metadata": {"name": "a", "annotations": annotations}, "webhooks": [{"name": "x", "clientConfig": {"caBundle": "Zg=="}}]});
        let object = reduced("admissionregistration.k8s.io", "mutatingwebhookconfigurations", &object);
        assert_eq!(object.content.as_str().contains("caBundle"), is_kept);
    }
}

#[test]
fn each_kind_has_one_row_and_can_be_synced() {
    for (index, row) in table::KINDS.iter().enumerate() {
        let before = &table::KINDS[..index];
        assert!(!before.iter().any(|other| (other.group, other.plural) == (row.group, row.plural)), "{}", row.plural);
        assert_eq!(unsyncable(row.group, row.plural, true), None, "{}", row.plural);
    }
    assert!(unsyncable("", "nodes", true).is_some() && unsyncable("", "endpoints", false).is_some());
    assert_eq!(unsyncable("demo.towline.dev", "nodes", false), None);
}

fn any_spec() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(json!(null)), Just(json!("None")), any::<u8>().prop_map(|number| json!(number))];
    let names = prop::sample::select(vec![
        "clusterIP",
        "ports",
        "selector",
        "volumeName",
        "nodePort",
        "name",
        "claimRef",
        "uid",
    ]);
    let tree = leaf.prop_recursive(3, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..4).prop_map(|map| json!(map)),
        ]
    });
    prop::collection::btree_map(
        prop::sample::select(vec!["clusterIP", "ports", "selector", "volumeName", "tolerations", "claimRef"])
            .prop_map(str::to_owned),
        tree,
        0..5,
    )
    .prop_map(|map| json!(map))
}

#[test]
fn what_is_ordered_by_now_is_not_mixed_with_what_was_filled_in() {
    let role = json!({"metadata": {"name": "a"}, "aggregationRule": {}, "rules": [{"verbs": ["filled in"]}]});
    let object = reduced("rbac.authorization.k8s.io", "clusterroles", &role);
    let ordered = json!({"rules": [{"verbs": ["ordered"]}]});
    let mut wanted = ordered.clone();
    restore(&mut wanted, &object.content.value(), &object.whole.expect("rules").value());
    assert_eq!(wanted, ordered);
}

#[test]
fn what_was_filled_into_an_item_stays_with_the_item_of_that_name() {
    let hook = |name: &str, bundle: Option<&str>| match bundle {
        Some(bundle) => json!({"name": name, "clientConfig": {"url": "u", "caBundle": bundle}}),
        None => json!({"name": name, "clientConfig": {"url": "u"}}),
    };
    let annotations = json!({"cert-manager.io/inject-ca-from": "n/c"});
    let hooks = json!({"metadata": {"name": "a", "annotations": annotations},
        "webhooks": [hook("a", Some("1")), hook("b", Some("2"))]});
    let object = reduced("admissionregistration.k8s.io", "validatingwebhookconfigurations", &hooks);
    assert_eq!(object.content.value(), json!({"webhooks": [hook("a", None), hook("b", None)]}));
    let whole = object.whole.expect("bundles").value();
    for (wanted, expected) in [
        (
            vec![hook("c", None), hook("b", None), hook("a", None)],
            vec![hook("c", None), hook("b", Some("2")), hook("a", Some("1"))],
        ),
        (vec![hook("b", None)], vec![hook("b", Some("2"))]),
        (vec![hook("b", None), hook("c", None)], vec![hook("b", Some("2")), hook("c", None)]),
    ] {
        let mut restored = json!({"webhooks": wanted});
        restore(&mut restored, &object.content.value(), &whole);
        assert_eq!(restored, json!({"webhooks": expected}));
    }
}

proptest! {
    /// Reducing again changes nothing, and what an update sends to an unchanged object is the object.
    #[test]
    fn a_portable_part_is_portable_and_restoring_it_gives_the_object(spec in any_spec(), row in 0..table::KINDS.len()) {
        let row = &table::KINDS[row];
        let object = json!({"metadata": {"name": "a"}, "spec": spec});
        let once = reduced(row.group, row.plural, &object);
        let again = reduced(row.group, row.plural, &json!({"metadata": {"name": "a"}, "spec": once.content.value()["spec"]}));
        prop_assert_eq!(&again.content, &once.content);
        prop_assert_eq!(again.whole, None);
        if let Some(whole) = once.whole {
            let mut wanted = once.content.value();
            restore(&mut wanted, &once.content.value(), &whole.value());
            prop_assert_eq!(CanonicalJson::of(&wanted), whole);
        }
        let plain = serde_json::from_value::<Decoded>(object).unwrap().into_object();
        prop_assert_eq!(plain.whole, None);
    }
}
