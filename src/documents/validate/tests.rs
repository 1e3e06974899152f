use secrecy::ExposeSecret;
use serde_json::json;

use super::*;

fn key(kind: Kind) -> Key {
    Key::new(kind, if kind.is_namespaced() { "team-a" } else { "" }, "base")
}

fn checked(kind: Kind, body: Value) -> Result<Draft, Vec<Fault>> {
    let Value::Object(fields) = body else { panic!("an object") };
    let mut faults = Faults::default();
    let draft = draft(&key(kind), fields, true, &mut faults);
    faults.into_result().map(|()| draft).map_err(|problem| problem.faults)
}

fn faults(kind: Kind, body: Value) -> Vec<Fault> {
    checked(kind, body).err().unwrap_or_default()
}

/// Pointer, what was found, and the suggestion of each fault.
fn told(faults: &[Fault]) -> Vec<(&str, &str, &str)> {
    faults
        .iter()
        .map(|fault| (fault.pointer.as_str(), fault.found.as_str(), fault.suggestion.as_deref().unwrap_or("")))
        .collect()
}

#[expect(clippy::needless_pass_by_value, reason = "every call makes the value")]
fn spec(kind: Kind, spec: Value) -> Result<Draft, Vec<Fault>> {
    checked(kind, json!({"spec": spec}))
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}})
}

#[test]
fn a_cluster_needs_no_more_than_a_kubeconfig() {
    let draft = checked(Kind::Cluster, json!({"name": "base", "namespace": "team-a", "kubeconfig": "foobar"}));
    let draft = draft.unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(Value::Object(draft.data), json!({"paused": false}));
    assert!(matches!(draft.sealed, Some(SealedValue::Kubeconfig(text)) if text.expose_secret() == "foobar"));
    assert_eq!(told(&faults(Kind::Cluster, json!({}))), [("/kubeconfig", "missing", "")]);
}

/// The native form, which no `metadata` is taken out of.
#[test]
fn a_copy_that_kubectl_has_made_of_a_document_is_not_kept() {
    let annotations = json!({"kubectl.kubernetes.io/last-applied-configuration": "canary", "a": "b"});
    let data = json!({"annotations": annotations, "data": {"a": "eA=="}});
    for (kind, body) in [(Kind::Secret, data), (Kind::Cluster, json!({"annotations": annotations, "kubeconfig": "x"}))]
    {
        let draft = checked(kind, body).unwrap_or_else(|faults| panic!("{faults:?}"));
        assert_eq!(draft.annotations, Some([("a".to_owned(), "b".to_owned())].into()));
    }
}

#[test]
fn an_unknown_field_is_named_and_its_value_is_not() {
    let found = faults(Kind::Cluster, json!({"kubeconfig": 1, "kubeconfg": "canary", "spec": {"x": "canary"}}));
    assert_eq!(
        told(&found),
        [
            ("/kubeconfg", "an unknown field", "kubeconfig"),
            ("/spec", "an unknown field", ""),
            ("/kubeconfig", "a number", ""),
        ]
    );
    assert!(!format!("{found:?}").contains("canary"));
}

#[test]
fn what_answers_have_may_be_sent_back() {
    let answer = json!({"kind": "Secret", "id": "x", "resourceVersion": "x", "generation": 1, "createdAt": 1, "updatedAt": 2,
        "deletedAt": null, "status": 7, "dataGeneration": 1, "keys": ["a"], "type": "x", "data": null});
    let draft = checked(Kind::Secret, answer).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(Value::Object(draft.data), json!({"type": "x"}));
    assert!(draft.sealed.is_none());
    assert_eq!(told(&faults(Kind::SyncSet, json!({"keys": []}))), [("/keys", "an unknown field", "")]);
    let allowed = faults(Kind::SyncSet, json!({"keys": []}))[0].allowed.clone().expect("what is allowed");
    assert!(allowed.split(", ").any(|field| field == "spec"), "{allowed}");
}

#[test]
fn only_a_secret_that_is_immutable_says_so() {
    for (given, stored) in [(true, json!({"type": "Opaque", "immutable": true})), (false, json!({"type": "Opaque"}))] {
        let draft = checked(Kind::Secret, json!({"immutable": given})).unwrap_or_else(|faults| panic!("{faults:?}"));
        assert_eq!(Value::Object(draft.data), stored);
    }
    assert_eq!(told(&faults(Kind::Secret, json!({"immutable": "yes"}))), [("/immutable", "\"yes\"", "")]);
}

#[test]
fn every_fault_of_metadata_is_found_at_once() {
    let found = faults(
        Kind::SyncSet,
        json!({
            "labels": {"env": "prod", "a b": "c", "d": "e f", "g": 1, "h/i": ""},
            "annotations": {"Upper.Case/x": "any text", "k": null},
            "finalizers": ["a.io/b", "a.io/b", "", 7],
        }),
    );
    assert_eq!(
        told(&found),
        [
            ("/labels", "the key \"a b\"", ""),
            ("/labels/g", "1", ""),
            ("/labels/d", "\"e f\"", ""),
            ("/annotations/k", "null", ""),
            ("/finalizers/1", "\"a.io/b\" again", ""),
            ("/finalizers/2", "\"\"", ""),
            ("/finalizers/3", "7", ""),
        ]
    );
    let wrong_types = json!({"labels": [], "annotations": "x", "finalizers": {}});
    let pointers: Vec<_> = faults(Kind::Secret, wrong_types).into_iter().map(|fault| fault.pointer).collect();
    assert_eq!(pointers, ["/labels", "/annotations", "/finalizers"]);
}

#[test]
fn metadata_has_limits() {
    let labels = |count: usize| (0..count).map(|index| (format!("l{index}"), json!("x"))).collect::<Map<_, _>>();
    assert!(checked(Kind::SyncSet, json!({"labels": labels(256)})).is_ok());
    assert_eq!(told(&faults(Kind::SyncSet, json!({"labels": labels(257)}))), [("/labels", "257 labels", "")]);
    let annotation = |bytes: usize| json!({"annotations": {"a": "x".repeat(bytes - 1)}});
    assert!(checked(Kind::SyncSet, annotation(256 << 10)).is_ok());
    let found = faults(Kind::SyncSet, annotation((256 << 10) + 1));
    assert_eq!(told(&found), [("/annotations", "262145 bytes", "")]);
    let finalizers = |count: usize| json!({"finalizers": (0..count).map(|n| format!("a.io/f{n}")).collect::<Vec<_>>()});
    assert!(checked(Kind::SyncSet, finalizers(64)).is_ok());
    assert_eq!(told(&faults(Kind::SyncSet, finalizers(65))), [("/finalizers", "65 finalizers", "")]);
}

#[test]
fn values_of_a_secret_are_base64_and_faults_show_names_alone() {
    let data = json!({"type": "x", "data": {"user": "YQ==", "empty": ""}});
    let draft = checked(Kind::Secret, data).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert!(matches!(draft.sealed, Some(SealedValue::Data(data)) if data.len() == 2));
    let found = faults(
        Kind::Secret,
        json!({"type": "", "data": {"a": "canary!", "b": {"canary": "canary"}, "c/d": "YQ==", "e": "YQ"}}),
    );
    assert_eq!(
        told(&found),
        [
            ("/data/a", "a string that is not base64", ""),
            ("/data/b", "an object", ""),
            ("/data", "the key \"c/d\"", ""),
            ("/data/e", "a string that is not base64", ""),
            ("/type", "\"\"", ""),
        ]
    );
    assert!(!format!("{found:?}").contains("canary"));
    assert_eq!(told(&faults(Kind::Secret, json!({"data": "canary"}))), [("/data", "a string", "")]);
}

#[test]
fn defaults_are_filled_in_and_aliases_resolved() {
    let empty = spec(Kind::SyncSet, json!({})).unwrap_or_else(|faults| panic!("{faults:?}"));
    let expected = json!({"applyBehavior": "Apply", "resourceApplyMode": "Upsert", "enableResourceTemplates": false,
        "enablePatchTemplates": false, "resources": [], "patches": [], "secretMappings": [], "clusterDeploymentRefs": []});
    assert_eq!(empty.data["spec"], expected);
    assert_eq!(empty.terms, None);
    let alias =
        spec(Kind::SyncSet, json!({"clusterRefs": [{"name": "west-1"}]})).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(alias.data["spec"]["clusterDeploymentRefs"], json!([{"name": "west-1"}]));
    assert_eq!(alias.data["spec"].get("clusterRefs"), None);
    let selecting = json!({"clusterSelector": {"matchLabels": {"env": "prod"}}});
    let selecting = spec(Kind::SelectorSyncSet, selecting).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(selecting.data["spec"]["clusterDeploymentSelector"], json!({"matchLabels": {"env": "prod"}}));
    assert_eq!(
        selecting.data["spec"].get("clusterNamespaces"),
        None,
        "or mappings that are added later would go by it"
    );
    assert_eq!(selecting.terms, Some(vec![("env".to_owned(), "prod".to_owned())]));
    let all = checked(Kind::SelectorSyncSet, json!({})).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(all.terms, Some(vec![(String::new(), String::new())]));
}

#[test]
fn checking_a_checked_document_changes_nothing() {
    let first = spec(
        Kind::SyncSet,
        json!({"clusterRefs": [{"name": "a"}], "resources": [config_map("site")],
            "patches": [{"apiVersion": "v1", "kind": "Namespace", "name": "default", "patch": "a: 1"}],
            "secretMappings": [{"sourceRef": {"name": "pull"}, "targetRef": {"name": "pull", "namespace": "default"}}]}),
    );
    let first = first.unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(first.data["spec"]["patches"][0]["patchType"], "strategic");
    assert_eq!(first.data["spec"]["secretMappings"][0]["sourceRef"]["namespace"], "team-a");
    let second =
        checked(Kind::SyncSet, Value::Object(first.data.clone())).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(first.data, second.data);
}

#[test]
fn the_example_of_the_specification_is_told_as_it_says() {
    let found = spec(Kind::SyncSet, json!({"resourceApplyMode": "Synk", "patchs": []})).err().unwrap_or_default();
    assert_eq!(
        found,
        [
            Fault::new("/spec/patchs", "an unknown field").suggestion(Some("patches".to_owned())),
            Fault::new("/spec/resourceApplyMode", "\"Synk\"")
                .allowed("Upsert or Sync")
                .suggestion(Some("Sync".to_owned())),
        ]
    );
}

#[test]
fn every_fault_of_a_resource_is_found() {
    let resource =
        |version: &str, kind: &str, metadata: Value| json!({"apiVersion": version, "kind": kind, "metadata": metadata});
    let found = spec(
        Kind::SyncSet,
        json!({"resources": [
            7,
            {"apiVersion": "v1", "kind": "ConfigMap"},
            resource("v1", "", json!({"generateName": "x-"})),
            resource("a/b/c", "Pod", json!({"name": "a"})),
            resource("apps/", "Pod", json!({"name": "a"})),
            resource("v1", "Pod", json!({"name": "..", "namespace": "a%2fb"})),
            {"apiVersion": "v1", "kind": "PodList", "items": []},
            resource("authorization.openshift.io/v1", "RoleBinding", json!({"name": "a"})),
            config_map("site"),
            config_map("site"),
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}, "data": {"$patch": "delete"},
             "spec": [{"$setElementOrder/containers": [], "$deleteFromPrimitiveList/x": [], "$retainKeys": []}]},
            resource("v1", "Pod", json!({"name": "c", "labels": {"a": 1.1, "b": null, "c": "1"}, "annotations": [],
                "ownerReferences": [{"uid": "canary"}]})),
            resource("v1", "Pod", json!({"name": "d", "namespace": "", "labels": null, "ownerReferences": []})),
        ], "secretMappings": [{"sourceRef": {"name": "a"}, "targetRef": {"name": "s", "namespace": "n"}},
                              {"sourceRef": {"name": "b"}, "targetRef": {"name": "s", "namespace": "n"}}]}),
    );
    let found = found.err().unwrap_or_default();
    let told: Vec<_> = told(&found).into_iter().map(|(pointer, found, _)| (pointer, found)).collect();
    assert_eq!(
        told,
        [
            ("/spec/resources/0", "a number"),
            ("/spec/resources/1/metadata", "missing"),
            ("/spec/resources/2/kind", "\"\""),
            ("/spec/resources/2/metadata/name", "missing"),
            ("/spec/resources/3/apiVersion", "\"a/b/c\""),
            ("/spec/resources/4/apiVersion", "\"apps/\""),
            ("/spec/resources/5/metadata/name", "\"..\""),
            ("/spec/resources/5/metadata/namespace", "\"a%2fb\""),
            ("/spec/resources/6", "a list of objects"),
            ("/spec/resources/7/kind", "RoleBinding of authorization.openshift.io"),
            ("/spec/resources/9", "ConfigMap \"default/site\" again"),
            ("/spec/resources/10/data/$patch", "a directive of strategic merge patches"),
            ("/spec/resources/10/spec/0/$deleteFromPrimitiveList~1x", "a directive of strategic merge patches"),
            ("/spec/resources/10/spec/0/$retainKeys", "a directive of strategic merge patches"),
            ("/spec/resources/10/spec/0/$setElementOrder~1containers", "a directive of strategic merge patches"),
            ("/spec/resources/11/metadata/labels/a", "1.1"),
            ("/spec/resources/11/metadata/annotations", "a list"),
            ("/spec/resources/11/metadata/ownerReferences", "owners of the object"),
            ("/spec/resources/10/metadata/namespace", "missing"),
            ("/spec/resources/11/metadata/namespace", "missing"),
            ("/spec/resources/12/metadata/namespace", "missing"),
            ("/spec/secretMappings/1/targetRef", "Secret \"n/s\" again"),
        ]
    );
    let other_group = json!({"resources": [resource("v1", "Secret", json!({"name": "s", "namespace": "n"}))],
        "secretMappings": [{"sourceRef": {"name": "a"}, "targetRef": {"name": "s", "namespace": "n"}}]});
    let found = spec(Kind::SyncSet, other_group).err().unwrap_or_default();
    assert_eq!(found[0].pointer, "/spec/secretMappings/0/targetRef");
    // Another version of a kind is the same object, another group is not.
    let versions = json!({"resources": [resource("apps/v1", "D", json!({"name": "a"})), resource("apps/v2", "D", json!({"name": "a"})),
        resource("v1", "D", json!({"name": "a"}))]});
    let found = spec(Kind::SyncSet, versions).err().unwrap_or_default();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].pointer, "/spec/resources/1");
}

/// Of other kinds the clusters know whether they have namespaces, and templates may make one.
#[test]
fn the_namespace_of_a_kind_that_has_one_on_each_cluster_is_not_left_out() {
    let resource = |version: &str, kind: &str, metadata: Value| {
        json!({"enableResourceTemplates": true,
        "resources": [{"apiVersion": version, "kind": kind, "metadata": metadata}]})
    };
    let patch = |kind: &str| json!({"patches": [{"apiVersion": "v1", "kind": kind, "name": "a", "patch": "a: 1"}]});
    let expected = "a namespace of the clusters: a ConfigMap has one, and none is assumed";
    for (given, fault) in [
        (resource("v1", "ConfigMap", json!({"name": "a"})), Some("/spec/resources/0/metadata/namespace")),
        (
            resource("v1", "ConfigMap", json!({"name": "a", "namespace": null})),
            Some("/spec/resources/0/metadata/namespace"),
        ),
        (resource("v1", "ConfigMap", json!({"name": "a", "namespace": "{{ fromCDLabel \"team\" }}"})), None),
        (resource("v1", "Namespace", json!({"name": "a"})), None),
        (resource("example.com/v1", "ConfigMap", json!({"name": "a"})), None),
        (patch("ConfigMap"), None),
    ] {
        let found = spec(Kind::SyncSet, given.clone()).err().unwrap_or_default();
        let told: Vec<_> =
            found.iter().map(|fault| (fault.pointer.as_str(), fault.allowed.as_deref().unwrap_or_default())).collect();
        assert_eq!(told, fault.map(|pointer| (pointer, expected)).into_iter().collect::<Vec<_>>(), "{given}");
    }
    for (version, kind) in [("apps/v1", "Deployment"), ("rbac.authorization.k8s.io/v1", "Role"), ("batch/v1", "Job")] {
        assert!(spec(Kind::SyncSet, resource(version, kind, json!({"name": "a"}))).is_err(), "{kind}");
    }
}

#[test]
fn a_syncset_has_limits() {
    let resources =
        |count: usize| json!({"resources": (0..count).map(|n| config_map(&format!("c{n}"))).collect::<Vec<_>>()});
    assert!(spec(Kind::SyncSet, resources(1_000)).is_ok());
    let found = spec(Kind::SyncSet, resources(1_001)).err().unwrap_or_default();
    assert_eq!(told(&found), [("/spec/resources", "a list of 1001 elements", "")]);
    let patch = json!({"apiVersion": "v1", "kind": "Namespace", "name": "default", "patch": "{}"});
    assert!(spec(Kind::SyncSet, json!({"patches": vec![patch.clone(); 200]})).is_ok());
    assert!(spec(Kind::SyncSet, json!({"patches": vec![patch; 201]})).is_err());
    let mapping = |n: usize| json!({"sourceRef": {"name": "s"}, "targetRef": {"name": format!("t{n}")}});
    assert!(spec(Kind::SyncSet, json!({"secretMappings": (0..200).map(mapping).collect::<Vec<_>>()})).is_ok());
    assert!(spec(Kind::SyncSet, json!({"secretMappings": (0..201).map(mapping).collect::<Vec<_>>()})).is_err());
}

#[test]
fn secrets_come_from_the_namespace_of_the_syncset_or_from_a_named_one() {
    let mapping = |kind: Kind, source: Value| {
        let mut mapping = json!({"secretMappings": [{"sourceRef": source, "targetRef": {"name": "t"}}]});
        if kind == Kind::SelectorSyncSet {
            mapping["clusterNamespaces"] = json!(["team-a"]);
        }
        mapping
    };
    for (kind, source, pointer) in [
        (Kind::SyncSet, json!({"name": "s", "namespace": "team-a"}), None),
        (Kind::SyncSet, json!({"name": "s", "namespace": ""}), None),
        (
            Kind::SyncSet,
            json!({"name": "s", "namespace": "team-b"}),
            Some("/spec/secretMappings/0/sourceRef/namespace"),
        ),
        (Kind::SyncSet, json!({"namespace": "team-a"}), Some("/spec/secretMappings/0/sourceRef/name")),
        (Kind::SyncSet, json!(null), Some("/spec/secretMappings/0/sourceRef")),
        (Kind::SelectorSyncSet, json!({"name": "s", "namespace": "team-b"}), None),
        (Kind::SelectorSyncSet, json!({"name": "s"}), Some("/spec/secretMappings/0/sourceRef/namespace")),
        (
            Kind::SelectorSyncSet,
            json!({"name": "s", "namespace": ""}),
            Some("/spec/secretMappings/0/sourceRef/namespace"),
        ),
    ] {
        let found = spec(kind, mapping(kind, source.clone())).err().unwrap_or_default();
        assert_eq!(found.first().map(|fault| fault.pointer.as_str()), pointer, "{kind} {source}");
    }
}

#[test]
fn a_secret_goes_to_a_target_with_a_name() {
    for (target, pointer) in [
        (json!(null), Some("/spec/secretMappings/0/targetRef")),
        (json!({}), Some("/spec/secretMappings/0/targetRef/name")),
        (json!({"name": ""}), Some("/spec/secretMappings/0/targetRef/name")),
        (json!({"name": "t"}), None),
    ] {
        let mapping = json!({"secretMappings": [{"sourceRef": {"name": "s"}, "targetRef": target}]});
        let found = spec(Kind::SyncSet, mapping).err().unwrap_or_default();
        assert_eq!(found.first().map(|fault| fault.pointer.as_str()), pointer, "{target}");
    }
}

/// Requests of these kinds are answered by other objects than they name.
#[test]
fn kinds_that_openshift_keeps_for_old_clients_are_no_resources() {
    for (group, is_allowed) in [("authorization.openshift.io", false), ("rbac.authorization.k8s.io", true)] {
        for kind in ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "SubjectAccessReview"] {
            let api_version = format!("{group}/v1");
            let resource =
                json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a", "namespace": "b"}});
            let found = spec(Kind::SyncSet, json!({"resources": [resource]})).err().unwrap_or_default();
            let pointers: Vec<_> = found.iter().map(|fault| fault.pointer.as_str()).collect();
            assert_eq!(pointers.is_empty(), is_allowed, "{group} {kind}: {pointers:?}");
            assert!(is_allowed || pointers == ["/spec/resources/0/kind"], "{group} {kind}: {pointers:?}");
        }
    }
}

#[test]
fn patches_are_json_or_yaml_of_their_type() {
    let patch = |patch_type: &str, text: &str| json!({"patches": [{"apiVersion": "v1", "kind": "Namespace", "name": "default", "patchType": patch_type, "patch": text}]});
    for (patch_type, text, found) in [
        ("merge", "{\"metadata\": {\"labels\": {}}}", None),
        ("strategic", "metadata:\n  labels: {a: b}\n", None),
        ("json", "[{\"op\": \"add\", \"path\": \"/a\", \"value\": 1}]", None),
        ("json", "- op: remove\n  path: /a\n", None),
        ("json", "- op: delete\n  path: /a\n", Some("a list that is no JSON patch, at /0/op an unknown operation")),
        ("json", "{}", Some("an object as the patch")),
        ("merge", "[]", Some("a list as the patch")),
        ("merge", "# nothing", Some("nothing")),
        ("merge", "a: 1\n---\nb: 2\n", Some("several documents")),
        ("Merge", "{}", Some("\"Merge\"")),
    ] {
        let faults = spec(Kind::SyncSet, patch(patch_type, text)).err().unwrap_or_default();
        assert_eq!(faults.first().map(|fault| fault.found.as_str()), found, "{patch_type} {text}");
    }
    let faults = spec(Kind::SyncSet, patch("merge", "{\"a\": canary")).err().unwrap_or_default();
    assert_eq!(faults[0].pointer, "/spec/patches/0/patch");
    assert!(!format!("{faults:?}").contains("canary"), "{faults:?}");
}

#[test]
fn what_hive_writes_for_a_default_is_the_default_and_a_mode_that_is_not_kept_is_refused() {
    let patch = |fields: Value| {
        let mut patch = json!({"apiVersion": "v1", "kind": "Namespace", "name": "default", "patch": "{}"});
        patch.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        patch
    };
    let patches =
        [json!({"applyMode": "AlwaysApply", "patchType": ""}), json!({"applyMode": ""}), json!({"applyMode": null})];
    let given = json!({"applyBehavior": "", "resourceApplyMode": "", "patches": patches.map(patch)});
    let draft = spec(Kind::SyncSet, given).unwrap_or_else(|faults| panic!("{faults:?}"));
    let checked = &draft.data["spec"];
    assert_eq!((&checked["applyBehavior"], &checked["resourceApplyMode"]), (&json!("Apply"), &json!("Upsert")));
    assert_eq!(checked["patches"], json!(vec![patch(json!({"patchType": "strategic"})); 3]));
    for mode in ["ApplyOnce", "Always"] {
        let found =
            spec(Kind::SyncSet, json!({"patches": [patch(json!({"applyMode": mode}))]})).err().unwrap_or_default();
        assert_eq!(found[0].pointer, "/spec/patches/0/applyMode");
    }
}

/// Go writes a nil list or map as null, and reads null as an empty one.
#[test]
fn a_list_or_map_that_is_null_is_empty() {
    let resource = |metadata: Value| {
        let mut resource = config_map("a");
        resource["metadata"]
            .as_object_mut()
            .expect("an object")
            .extend(metadata.as_object().expect("an object").clone());
        json!({"resources": [resource]})
    };
    let selector = |selector: Value| json!({"clusterDeploymentSelector": selector});
    let expression = json!({"key": "a", "operator": "Exists", "values": null});
    for (kind, given) in [
        (Kind::SyncSet, json!({"resources": null})),
        (Kind::SyncSet, json!({"patches": null})),
        (Kind::SyncSet, json!({"secretMappings": null})),
        (Kind::SyncSet, json!({"clusterDeploymentRefs": null})),
        (Kind::SyncSet, json!({"clusterRefs": null, "clusterDeploymentRefs": null})),
        (
            Kind::SyncSet,
            resource(json!({"labels": null, "annotations": null, "ownerReferences": null, "finalizers": null})),
        ),
        (Kind::SelectorSyncSet, json!({"clusterNamespaces": null})),
        (Kind::SelectorSyncSet, selector(json!(null))),
        (Kind::SelectorSyncSet, selector(json!({"matchLabels": null, "matchExpressions": null}))),
        (Kind::SelectorSyncSet, selector(json!({"matchExpressions": [expression]}))),
    ] {
        assert_eq!(spec(kind, given.clone()).err(), None, "{given}");
    }
    for (kind, given) in [
        (Kind::SyncSet, json!({"spec": null, "labels": null, "annotations": null, "finalizers": null})),
        (Kind::Secret, json!({"data": null, "type": null, "immutable": null})),
    ] {
        assert_eq!(checked(kind, given.clone()).err(), None, "{given}");
    }
}

#[test]
fn aliases_in_all_patches_together_make_no_more_than_a_document() {
    let wide = format!("a: &a {{x: {}}}\nb: [{}]\n", "y".repeat(1000), vec!["*a"; 1500].join(", "));
    let patch =
        json!({"apiVersion": "v1", "kind": "Namespace", "name": "default", "patchType": "merge", "patch": wide});
    assert!(spec(Kind::SyncSet, json!({"patches": [patch, patch]})).is_ok());
    let faults = spec(Kind::SyncSet, json!({"patches": vec![patch; 50]})).err().unwrap_or_default();
    assert_eq!((faults[0].pointer.as_str(), faults.len()), ("/spec/patches/2/patch", 48));
}

#[test]
fn templates_are_checked_where_they_are_switched_on() {
    let document = |resources: bool, patches: bool| {
        json!({"enableResourceTemplates": resources, "enablePatchTemplates": patches,
            "resources": [{"apiVersion": "v1", "kind": "{{ kind", "metadata": {"name": "{{ fromCDLabel \"a/b\" }}"},
                           "data": {"{{ key": ["{{ canary }}", "{{ fromCDLabel \"a\" }}"]}}],
            "patches": [{"apiVersion": "v1", "kind": "Namespace", "name": "default", "patchType": "merge", "patch": "{{ range }}"}]})
    };
    let found = |resources: bool, patches: bool| -> Vec<String> {
        let faults = spec(Kind::SyncSet, document(resources, patches)).err().unwrap_or_default();
        faults.into_iter().map(|fault| fault.pointer).collect()
    };
    let (name, data) = ("/spec/resources/0/metadata/name", "/spec/resources/0/data/{{ key/0");
    assert_eq!(
        found(false, false),
        [name, "/spec/patches/0/patch"],
        "a text with a / is no name, and the patch no JSON"
    );
    assert_eq!(found(true, true), [data, "/spec/patches/0/patch"]);
    let faults = spec(Kind::SyncSet, document(true, true)).err().unwrap_or_default();
    assert_eq!(faults[1].found, "a text that is no template: line 1: `range` is not known");
}

#[test]
fn namespaces_of_clusters_are_names_prefixes_or_all() {
    let patterns = json!({"clusterNamespaces": ["*", "team-a", "team-*", "", "Team", "a*b", "**", 7]});
    let found = spec(Kind::SelectorSyncSet, patterns).err().unwrap_or_default();
    let pointers: Vec<_> = found.iter().map(|fault| fault.pointer.as_str()).collect();
    let expected: Vec<_> = (3..8).map(|index| format!("/spec/clusterNamespaces/{index}")).collect();
    assert_eq!(pointers, expected);
    let found = spec(Kind::SyncSet, json!({"clusterNamespaces": []})).err().unwrap_or_default();
    assert_eq!(told(&found), [("/spec/clusterNamespaces", "an unknown field", "")]);
}

/// Somebody who may label clusters of one namespace would otherwise receive secrets of all.
#[test]
fn a_selector_syncset_that_sends_secrets_says_to_which_namespaces() {
    let mapping = json!({"sourceRef": {"name": "a", "namespace": "b"}, "targetRef": {"name": "a"}});
    let with = |namespaces: Value, mappings: Value| {
        let spec_of = json!({"clusterNamespaces": namespaces, "secretMappings": mappings});
        spec(Kind::SelectorSyncSet, spec_of).err().unwrap_or_default()
    };
    let found = with(json!(null), json!([mapping]));
    assert_eq!(told(&found), [("/spec/clusterNamespaces", "missing beside secretMappings", "")]);
    for (namespaces, mappings) in [
        (json!(null), json!([])),
        (json!(null), json!(null)),
        (json!(["*"]), json!([mapping])),
        (json!([]), json!([mapping])),
    ] {
        assert_eq!(told(&with(namespaces.clone(), mappings.clone())), [], "{namespaces} {mappings}");
    }
}

/// Syncsets are stored and distributed as they are.
#[test]
fn values_of_a_secret_are_neither_in_resources_nor_in_patches() {
    let secret = |version: &str, fields: Value| {
        let mut secret = json!({"apiVersion": version, "kind": "Secret", "metadata": {"name": "a", "namespace": "b"}});
        secret.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        json!({"resources": [secret]})
    };
    let copied = json!({"metadata": {"name": "a", "namespace": "b", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}});
    let patch = |version: &str, patch_type: &str, patch: Value| json!({"patches": [{"apiVersion": version, "kind": "Secret", "name": "a", "patchType": patch_type, "patch": patch.to_string()}]});
    let operation =
        |op: &str, path: &str, value: Value| patch("v1", "json", json!([{"op": op, "path": path, "value": value}]));
    for (given, pointer) in [
        (secret("v1", json!({"data": {"a": "eA=="}})), "/spec/resources/0/data"),
        (secret("v1", json!({"stringData": {"a": "x", "b": null}})), "/spec/resources/0/stringData"),
        (secret("v1", json!({"stringData": "x"})), "/spec/resources/0/stringData"),
        (
            secret("v1", copied.clone()),
            "/spec/resources/0/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration",
        ),
        (patch("v1", "merge", json!({"stringData": {"a": "x"}})), "/spec/patches/0/patch"),
        (patch("v1", "strategic", json!({"data": {"a": "eA=="}})), "/spec/patches/0/patch"),
        (operation("add", "/data", json!({"a": "eA=="})), "/spec/patches/0/patch"),
        (operation("replace", "/stringData/a", json!("x")), "/spec/patches/0/patch"),
        (operation("test", "/data/a", json!("eA==")), "/spec/patches/0/patch"),
        (operation("replace", "", json!({"data": {"a": "eA=="}})), "/spec/patches/0/patch"),
        (
            patch("v1", "json", json!([{"op": "move", "from": "/metadata/annotations/a", "path": "/data/a"}])),
            "/spec/patches/0/patch",
        ),
        (
            patch("v1", "json", json!([{"op": "copy", "from": "/metadata/annotations", "path": "/stringData"}])),
            "/spec/patches/0/patch",
        ),
        (patch("v1", "merge", json!({"metadata": copied["metadata"]})), "/spec/patches/0/patch"),
        (operation("add", "", copied.clone()), "/spec/patches/0/patch"),
        (operation("add", "/metadata", copied["metadata"].clone()), "/spec/patches/0/patch"),
        (operation("add", "/metadata/annotations", copied["metadata"]["annotations"].clone()), "/spec/patches/0/patch"),
        (
            operation("add", "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration", json!("{}")),
            "/spec/patches/0/patch",
        ),
    ] {
        let found = spec(Kind::SyncSet, given.clone()).err().unwrap_or_default();
        let pointers: Vec<_> = found.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, [pointer], "{given}");
    }
    let token = json!({"type": "kubernetes.io/service-account-token", "data": {}, "stringData": null});
    for given in [
        secret("v1", token),
        secret("v1", json!({"data": {"a": null}})),
        secret("example.com/v1", json!({"data": {"a": "x"}})),
        patch("v1", "merge", json!({"metadata": {"labels": {"data": "x"}}, "data": {"gone": null}})),
        patch("example.com/v1", "merge", json!({"data": {"a": "x"}})),
        operation("add", "/metadata/labels/data", json!("x")),
        operation("add", "/immutable", json!(true)),
        patch("v1", "json", json!([{"op": "remove", "path": "/data/a"}])),
    ] {
        assert_eq!(spec(Kind::SyncSet, given.clone()).err(), None, "{given}");
    }
    let template = json!({"enablePatchTemplates": true, "patches": [{"apiVersion": "v1", "kind": "Secret", "name": "a",
        "patchType": "merge", "patch": "{{ printf \"{}\" }}"}]});
    let found = spec(Kind::SyncSet, template).err().unwrap_or_default();
    assert_eq!(told(&found), [("/spec/patches/0/patch", "a template in a patch of a Secret", "")]);
}

#[test]
fn both_names_of_a_field_are_too_many() {
    let found = spec(Kind::SyncSet, json!({"clusterRefs": [], "clusterDeploymentRefs": []})).err().unwrap_or_default();
    assert_eq!(told(&found), [("/spec/clusterRefs", "clusterRefs beside clusterDeploymentRefs", "")]);
    let found =
        spec(Kind::SyncSet, json!({"clusterRefs": [{"name": "../x"}, {}, {"nam": "a"}, 1]})).err().unwrap_or_default();
    assert_eq!(
        told(&found),
        [
            ("/spec/clusterDeploymentRefs/0/name", "\"../x\"", ""),
            ("/spec/clusterDeploymentRefs/1/name", "missing", ""),
            ("/spec/clusterDeploymentRefs/2/nam", "an unknown field", "name"),
            ("/spec/clusterDeploymentRefs/2/name", "missing", ""),
            ("/spec/clusterDeploymentRefs/3", "a number", ""),
        ]
    );
}

#[test]
fn a_new_document_without_a_key_has_all_its_faults_told() {
    let body = |value: Value| Body::of(value).expect("an object");
    let key = key_of_body(Kind::Cluster, &body(json!({"name": "c1", "namespace": "foo"}))).expect("a key");
    assert_eq!(key, Key::new(Kind::Cluster, "foo", "c1"));
    let problem = key_of_body(Kind::Cluster, &body(json!({"name": "C1", "labels": 1}))).expect_err("no key");
    let expected = [
        ("/name", "\"C1\"", ""),
        ("/namespace", "missing", ""),
        ("/labels", "a number", ""),
        ("/kubeconfig", "missing", ""),
    ];
    assert_eq!(told(&problem.faults), expected);
    let key = key_of_body(Kind::SelectorSyncSet, &body(json!({"name": "a.b"}))).expect("a key");
    assert_eq!(key, Key::new(Kind::SelectorSyncSet, "", "a.b"));
}

#[test]
fn a_body_has_to_be_about_the_document_of_its_route() {
    let identity_of = |kind: Kind, value: Value, is_new: bool| {
        let Value::Object(fields) = value else { panic!("an object") };
        let mut faults = Faults::default();
        let identity = identity(&key(kind), &fields, is_new, &mut faults);
        faults.into_result().map(|()| identity).map_err(|problem| problem.faults)
    };
    let id = Uuid::from_u128(1);
    let right = json!({"kind": "SyncSet", "name": "base", "namespace": "team-a", "id": id, "resourceVersion": "41"});
    assert_eq!(identity_of(Kind::SyncSet, right, false), Ok(Identity { id: Some(id), version: Some(41) }));
    let wrong = json!({"kind": "Cluster", "name": "other", "namespace": 7, "id": "x", "resourceVersion": 41});
    let pointers = |faults: Vec<Fault>| faults.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>();
    let found = identity_of(Kind::SyncSet, wrong.clone(), false).expect_err("faults");
    assert_eq!(pointers(found), ["/kind", "/name", "/namespace", "/resourceVersion", "/id"]);
    // A new document has neither id nor version yet.
    assert_eq!(
        pointers(identity_of(Kind::SyncSet, wrong, true).expect_err("faults")),
        ["/kind", "/name", "/namespace"]
    );
    let found = identity_of(Kind::SelectorSyncSet, json!({"namespace": "a", "resourceVersion": "041"}), false)
        .expect_err("faults");
    assert_eq!(pointers(found), ["/namespace", "/resourceVersion"]);
    assert_eq!(identity_of(Kind::SyncSet, json!({"name": null, "id": null}), false), Ok(Identity::default()));
}

#[test]
fn at_most_a_hundred_faults_are_told_and_long_values_are_cut() {
    let labels: Map<_, _> = (0..250).map(|index| (format!("l{index}"), json!("x".repeat(1_000) + "!"))).collect();
    let found = faults(Kind::SyncSet, json!({"labels": labels}));
    assert_eq!(found.len(), 100);
    assert_eq!(found[0].found.chars().count(), 66);
}

#[test]
fn health_takes_a_duration_from_a_minute_to_a_day() {
    for (given, taken) in [
        (json!({}), json!({"within": "10m"})),
        (json!({"within": null}), json!({"within": "10m"})),
        (json!({"within": "1m"}), json!({"within": "1m"})),
        (json!({"within": "24h"}), json!({"within": "24h"})),
    ] {
        let draft = spec(Kind::SyncSet, json!({ "health": given })).unwrap_or_else(|faults| panic!("{faults:?}"));
        assert_eq!(draft.data["spec"]["health"], taken);
    }
    for kind in [Kind::SyncSet, Kind::SelectorSyncSet] {
        let without = spec(kind, json!({"health": null})).unwrap_or_else(|faults| panic!("{faults:?}"));
        assert!(without.data["spec"].get("health").is_none(), "nothing is read unless somebody wants it");
    }
    for (given, pointer, found, suggestion) in [
        (json!("10m"), "/spec/health", "a string", ""),
        (json!({"wihtin": "10m"}), "/spec/health/wihtin", "an unknown field", "within"),
        (json!({"within": "59s"}), "/spec/health/within", "\"59s\"", ""),
        (json!({"within": "25h"}), "/spec/health/within", "\"25h\"", ""),
        (json!({"within": 600}), "/spec/health/within", "600", ""),
        (json!({"within": "soon"}), "/spec/health/within", "\"soon\"", ""),
    ] {
        let found_all = spec(Kind::SyncSet, json!({ "health": given })).err().unwrap_or_default();
        assert_eq!(told(&found_all), [(pointer, found, suggestion)], "{given}");
    }
}

#[test]
fn rules_of_health_are_expressions_for_kinds_other_than_secrets() {
    let rule = |kind: &str, current: &str| json!({"group": "db.example.com", "kind": kind, "current": current, "failed": "status.phase == 'dead'"});
    let rules = json!([rule("Postgres", "status.phase == 'ready'"), {"kind": "Pod", "current": "has(status.podIP)", "failed": null}]);
    let draft = spec(Kind::SyncSet, json!({"health": {"rules": rules}})).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(draft.data["spec"]["health"], json!({"within": "10m", "rules": rules}));
    let given = json!([
        "x",
        {"group": "a/b", "kind": "Postgres", "current": "true", "when": "x"},
        {"kind": "Secret", "current": "has(data.password)"},
        {"group": "db.example.com", "current": "status.phase = 'ready'", "failed": 7},
        rule("Postgres", "status.list.all(e, e.list.all(f, f))"),
        rule("Postgres", ""),
    ]);
    let faults = spec(Kind::SelectorSyncSet, json!({"health": {"rules": given}})).err().unwrap_or_default();
    let expected = [
        ("/spec/health/rules/0", "a string"),
        ("/spec/health/rules/1/when", "an unknown field"),
        ("/spec/health/rules/1/group", "\"a/b\""),
        ("/spec/health/rules/2/kind", "\"Secret\""),
        ("/spec/health/rules/2/current", "the variable data: there are metadata, spec and status"),
        ("/spec/health/rules/3/kind", "missing"),
        ("/spec/health/rules/3/failed", "7"),
        ("/spec/health/rules/3/current", "Syntax error: mismatched input '='"),
        ("/spec/health/rules/4/current", "a macro in another one"),
        ("/spec/health/rules/5/kind", "a second rule for \"Postgres\""),
        ("/spec/health/rules/5/current", "\"\""),
    ];
    let found: Vec<_> = faults.iter().map(|fault| (fault.pointer.as_str(), fault.found.as_str())).collect();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((pointer, told), (expected_pointer, expected)) in found.iter().zip(expected) {
        assert!(*pointer == expected_pointer && told.starts_with(expected), "{pointer}: {told}, not {expected}");
    }
    let many = vec![rule("Postgres", "true"); 21];
    let faults = spec(Kind::SyncSet, json!({"health": {"rules": many}})).err().unwrap_or_default();
    assert_eq!(told(&faults), [("/spec/health/rules", "a list of 21 elements", "")]);
}
