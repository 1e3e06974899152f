use serde_json::json;

use super::*;

fn identity(kind: SyncSetKind) -> Identity {
    let namespace = if kind == SyncSetKind::SyncSet { "team-a" } else { "" };
    let name = SyncSetName { kind, namespace: namespace.to_owned(), name: "base".to_owned() };
    Identity { id: Uuid::from_u128(1), name, version: 41, generation: 3 }
}

fn spec() -> Value {
    json!({"applyBehavior": "CreateOnly", "resourceApplyMode": "Sync", "enableResourceTemplates": true,
        "enablePatchTemplates": false, "clusterDeploymentRefs": [{"name": "west-1"}],
        "resources": [{"kind": "ConfigMap"}, 7],
        "patches": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "agent", "namespace": "b", "patchType": "json",
            "patch": "[]"}, {"apiVersion": "v1", "kind": "Namespace", "name": "default", "patch": "{}"}],
        "secretMappings": [{"sourceRef": {"name": "pull"}, "targetRef": {"name": "copy", "namespace": "default"},
                "secretMetadata": ["team"]},
            {"sourceRef": {"name": "push", "namespace": "team-b"}, "targetRef": {"name": "push"}}]})
}

fn with(pointer: &str, value: Value) -> Value {
    let mut spec = spec();
    *spec.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    spec
}

fn without(field: &str) -> Value {
    let mut spec = spec();
    spec.as_object_mut().expect("an object").remove(field).unwrap_or_else(|| panic!("{field}"));
    spec
}

#[test]
fn every_field_of_a_document_is_read() {
    let mapping = |source: (&str, &str), target: (&str, &str)| SecretMapping {
        source_namespace: source.0.to_owned(),
        source_name: source.1.to_owned(),
        target_namespace: target.0.to_owned(),
        target_name: target.1.to_owned(),
        metadata: Vec::new(),
    };
    let Identity { id, name, version, generation } = identity(SyncSetKind::SyncSet);
    let expected = Header {
        id,
        name,
        version,
        generation,
        behavior: Behavior::CreateOnly,
        mode: Mode::Sync,
        resource_templates: true,
        patch_templates: false,
        health: None,
        secrets: vec![
            // A SyncSet's sources are of its own namespace; another one is found when the secret is read.
            SecretMapping { metadata: vec!["team".to_owned()], ..mapping(("team-a", "pull"), ("default", "copy")) },
            mapping(("team-b", "push"), ("", "push")),
        ],
    };
    assert_eq!(header(identity(SyncSetKind::SyncSet), &spec()), Ok(expected));
    let selecting = header(identity(SyncSetKind::SelectorSyncSet), &spec()).expect("a header");
    assert_eq!(selecting.secrets[0].source_namespace, "");
    let patch = |api_version: &str, kind: &str, namespace: &str, name: &str, patch_type, text: &str| Patch {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        patch_type,
        text: text.to_owned(),
    };
    let expected = Payload {
        resources: vec![json!({"kind": "ConfigMap"}), json!(7)],
        patches: vec![
            patch("apps/v1", "Deployment", "b", "agent", PatchType::Json, "[]"),
            patch("v1", "Namespace", "", "default", PatchType::Strategic, "{}"),
        ],
    };
    assert_eq!(payload(&spec()), Ok(expected));
}

#[test]
fn a_header_needs_neither_resources_nor_patches() {
    let spec = json!({"secretMappings": []});
    let header = header(identity(SyncSetKind::SyncSet), &spec).expect("a header");
    assert_eq!((header.behavior, header.mode), (Behavior::Apply, Mode::Upsert));
    assert_eq!((header.resource_templates, header.patch_templates), (false, false));
}

#[test]
fn what_can_t_be_read_is_a_failure_that_names_the_field() {
    let missing = "missing; allowed: a list";
    for (spec, message) in [
        (json!([]), "spec: a list; allowed: an object".to_owned()),
        (json!(null), "spec: null; allowed: an object".to_owned()),
        (
            with("/applyBehavior", json!("Replace")),
            "spec.applyBehavior: \"Replace\"; allowed: Apply, CreateOnly, CreateOrUpdate".to_owned(),
        ),
        (with("/resourceApplyMode", json!(true)), "spec.resourceApplyMode: true; allowed: Upsert, Sync".to_owned()),
        (
            with("/enableResourceTemplates", json!("yes")),
            "spec.enableResourceTemplates: \"yes\"; allowed: true, false".to_owned(),
        ),
        (without("secretMappings"), format!("spec.secretMappings: {missing}")),
        (with("/secretMappings", json!({})), "spec.secretMappings: an object; allowed: a list".to_owned()),
        (with("/secretMappings/1", json!("a")), "secret 1: sourceRef: missing; allowed: an object".to_owned()),
        (with("/secretMappings/0/targetRef", json!(null)), "secret 0: targetRef: null; allowed: an object".to_owned()),
        (
            with("/secretMappings/0/targetRef/name", json!("")),
            "secret 0: targetRef.name: \"\"; allowed: a string that is not empty".to_owned(),
        ),
        (
            with("/secretMappings/0/targetRef/namespace", json!(1)),
            "secret 0: targetRef.namespace: 1; allowed: a string".to_owned(),
        ),
        (
            with("/secretMappings/0/targetRef/namespace", json!("..")),
            format!("secret 0: targetRef.namespace: \"..\"; allowed: {PATH_SEGMENT}"),
        ),
        (
            with("/secretMappings/0/secretMetadata", json!("*")),
            "secret 0: secretMetadata: \"*\"; allowed: a list of texts".to_owned(),
        ),
        (
            with("/secretMappings/1/sourceRef/name", json!("a/b")),
            format!("secret 1: sourceRef.name: \"a/b\"; allowed: {PATH_SEGMENT}"),
        ),
    ] {
        let failure = header(identity(SyncSetKind::SyncSet), &spec).expect_err(&message);
        assert_eq!(
            failure,
            Failure { reason: Reason::ResourceInvalid, message: format!("failed to decode {message}") }
        );
    }
    for (spec, message) in [
        (json!("x"), "spec: \"x\"; allowed: an object".to_owned()),
        (without("resources"), format!("spec.resources: {missing}")),
        (with("/resources", json!(null)), format!("spec.resources: {missing}")),
        (without("patches"), format!("spec.patches: {missing}")),
        (with("/patches/1", json!([])), "patch 1: a list; allowed: an object".to_owned()),
        (
            with("/patches/0/apiVersion", json!("a/b/c")),
            "patch 0: apiVersion: \"a/b/c\"; allowed: a version such as \"v1\" or \"apps/v1\"".to_owned(),
        ),
        (with("/patches/0/kind", json!(null)), "patch 0: kind: null; allowed: a string that is not empty".to_owned()),
        (with("/patches/0/name", json!("%2e")), format!("patch 0: name: \"%2e\"; allowed: {PATH_SEGMENT}")),
        (with("/patches/0/namespace", json!(".")), format!("patch 0: namespace: \".\"; allowed: {PATH_SEGMENT}")),
        (
            with("/patches/0/patchType", json!("apply")),
            "patch 0: patchType: \"apply\"; allowed: strategic, merge, json".to_owned(),
        ),
        (with("/patches/1/patch", json!({})), "patch 1: patch: an object; allowed: a string".to_owned()),
    ] {
        let failure = payload(&spec).expect_err(&message);
        assert_eq!(
            failure,
            Failure { reason: Reason::ResourceInvalid, message: format!("failed to decode {message}") }
        );
    }
    let mut forbidden = with("/patches/0/apiVersion", json!("authorization.openshift.io/v1"));
    forbidden["patches"][0]["kind"] = json!("Role");
    assert_eq!(payload(&forbidden).expect_err("a role").reason, Reason::ResourceInvalid);
}

#[test]
fn a_long_value_is_cut_in_a_message() {
    let failure = header(identity(SyncSetKind::SyncSet), &with("/applyBehavior", json!("é".repeat(1_000))));
    let message = failure.expect_err("no behavior").message;
    assert!(message.contains(&format!("\"{}…\"", "é".repeat(63))), "{message}");
}
