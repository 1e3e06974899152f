use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::syncset::plan::name::SyncSetName;
use crate::syncset::plan::spec::{Behavior, Mode, SecretSource};

fn header(secrets: Vec<SecretMapping>) -> Header {
    Header {
        id: Uuid::from_u128(1),
        name: SyncSetName { kind: SyncSetKind::SyncSet, namespace: "team-a".to_owned(), name: "base".to_owned() },
        version: 7,
        generation: 3,
        behavior: Behavior::Apply,
        mode: Mode::Sync,
        resource_templates: true,
        patch_templates: true,
        health: None,
        secrets,
    }
}

fn mapping(source: (&str, &str), target: (&str, &str)) -> SecretMapping {
    SecretMapping {
        source_namespace: source.0.to_owned(),
        source_name: source.1.to_owned(),
        target_namespace: target.0.to_owned(),
        target_name: target.1.to_owned(),
        metadata: Vec::new(),
    }
}

fn content() -> SecretContent {
    let source = SecretSource {
        namespace: "team-a".to_owned(),
        name: "pull".to_owned(),
        id: Uuid::from_u128(2),
        data_generation: 5,
        secret_type: "Opaque".to_owned(),
        is_immutable: false,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    };
    SecretContent { source, data: [("key".to_owned(), "Y2FuYXJ5".into())].into() }
}

fn token() -> SecretContent {
    let SecretContent { source, data } = content();
    let secret_type = "kubernetes.io/service-account-token".to_owned();
    SecretContent { source: SecretSource { name: "token".to_owned(), secret_type, ..source }, data }
}

fn rendered(header: &Header, payload: &Payload) -> Rendered {
    let labels = [("region", "eu"), ("dot", ".."), ("env", "prod")];
    let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let (content, token) = (content(), token());
    let secrets = |namespace: &str, name: &str| match (namespace, name) {
        ("team-a", "pull") => Ok(&content),
        ("team-a", "token") => Ok(&token),
        ("team-a", "sealed") => Err(UnreadableSecret::Sealed),
        _ => Err(UnreadableSecret::Missing),
    };
    // A reference into the closure's content does not leave this function.
    render(header, payload, &labels, &secrets)
}

fn resources(resources: Vec<Value>) -> Vec<Rendering<Desired>> {
    rendered(&header(Vec::new()), &Payload { resources, patches: Vec::new() }).resources
}

fn config_map(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}})
}

fn reference(group: &str, kind: &str, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef { group: group.to_owned(), kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
}

fn ready<T>(rendering: &Rendering<T>) -> &T {
    match rendering {
        Rendering::Ready(ready) => ready,
        Rendering::Failed { failure, .. } => panic!("{failure:?}"),
    }
}

fn failed<T: std::fmt::Debug>(rendering: &Rendering<T>) -> (Known, Reason, &str) {
    match rendering {
        Rendering::Ready(ready) => panic!("{ready:?}"),
        Rendering::Failed { known, failure } => (known.clone(), failure.reason, &failure.message),
    }
}

#[test]
fn texts_of_a_resource_are_rendered_and_neither_keys_nor_version_and_kind() {
    let region = "{{ fromCDLabel \"region\" }}";
    let resource = json!({"apiVersion": "apps/v1", "kind": "Kind{{", "metadata": {"name": format!("site-{region}"),
        "namespace": format!("{region}-1"), "labels": {"region": region}},
        "spec": {region: [{"a": region, "kind": region}, 1, "{{ \"7\" }}"]}});
    let rendered = resources(vec![resource]);
    let desired = ready(&rendered[0]);
    assert_eq!(desired.object, reference("apps", "Kind{{", "eu-1", "site-eu"));
    assert_eq!((desired.api_version.as_str(), desired.place), ("apps/v1", Position::Resource(0)));
    assert_eq!(desired.body["spec"], json!({region: [{"a": "eu", "kind": "eu"}, 1, "7"]}));
    let metadata = &desired.body["metadata"];
    assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!("site-eu"), &json!("eu-1")));
    assert_eq!(metadata["labels"], json!({"region": "eu", "hive.openshift.io/managed": "true"}));
    assert_eq!(metadata["annotations"]["towline.dev/syncset"], "SyncSet/team-a/base");
}

#[test]
fn what_the_clusters_own_controllers_fill_in_is_not_sent() {
    let role = |more: Value| {
        let mut role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "a"}, "rules": []});
        role.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        role
    };
    let aggregation = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
    let rendered =
        resources(vec![role(json!({"aggregationRule": aggregation})), role(json!({"metadata": {"name": "b"}}))]);
    assert_eq!(ready(&rendered[0]).body.get("rules"), None);
    assert_eq!(ready(&rendered[0]).body["aggregationRule"], aggregation);
    assert_eq!(ready(&rendered[1]).body["rules"], json!([]), "nobody else fills these in");
}

#[test]
fn without_templates_every_text_is_itself() {
    let mut header = header(Vec::new());
    header.resource_templates = false;
    let mut resource = config_map("a", "{{");
    resource["data"] = json!({"a": "{{ fromCDLabel \"region\" }}"});
    let rendered = rendered(&header, &Payload { resources: vec![resource.clone()], patches: Vec::new() });
    let desired = ready(&rendered.resources[0]);
    assert_eq!((&desired.body["data"], desired.object.name.as_str()), (&resource["data"], "{{"));
}

#[test]
fn what_is_no_resource_is_told_with_its_place_and_what_is_known() {
    let kind = |group: &str, kind: &str| Known::Kind { group: group.to_owned(), kind: kind.to_owned() };
    let object = || Known::Object(reference("", "ConfigMap", "a", "b"));
    let with = |pointer: &str, value: Value| {
        let mut resource = config_map("a", "b");
        *resource.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        resource
    };
    let more = |field: &str, value: Value| {
        let mut resource = config_map("a", "b");
        resource[field] = value;
        resource
    };
    for (resource, known, message) in [
        (json!("canary"), Known::Nothing, "no object".to_owned()),
        (with("/apiVersion", json!(1)), Known::Nothing, "/apiVersion: no string".to_owned()),
        (
            with("/apiVersion", json!("/v1")),
            Known::Nothing,
            "/apiVersion: \"/v1\"; allowed: a version such as \"v1\" or \"apps/v1\"".to_owned(),
        ),
        (with("/kind", json!("")), Known::Nothing, "/kind: no string of 1 to 63 characters".to_owned()),
        (with("/kind", json!("List")), Known::Nothing, "a list of objects".to_owned()),
        (more("items", json!([])), Known::Nothing, "a list of objects".to_owned()),
        (with("/metadata", json!([])), kind("", "ConfigMap"), "/metadata: no object".to_owned()),
        (
            with("/metadata/name", json!(null)),
            kind("", "ConfigMap"),
            format!("/metadata/name: \"\"; allowed: {PATH_SEGMENT}"),
        ),
        (
            with("/metadata/name", json!("a/b")),
            kind("", "ConfigMap"),
            format!("/metadata/name: \"a/b\"; allowed: {PATH_SEGMENT}"),
        ),
        (
            with("/metadata/namespace", json!(7)),
            kind("", "ConfigMap"),
            "/metadata/namespace: 7; allowed: a string".to_owned(),
        ),
        (
            with("/metadata/namespace", json!("..")),
            kind("", "ConfigMap"),
            format!("/metadata/namespace: \"..\"; allowed: {PATH_SEGMENT}"),
        ),
        (
            more("data", json!([{"$patch": "delete"}])),
            object(),
            "/data/0/$patch: a directive of strategic merge patches".to_owned(),
        ),
        (
            with("/metadata", json!({"name": "b", "namespace": "a", "labels": []})),
            object(),
            "metadata.labels is not an object".to_owned(),
        ),
    ] {
        let rendered = resources(vec![config_map("a", "other"), resource]);
        assert!(matches!(rendered[0], Rendering::Ready(_)));
        let message = format!("failed to decode resource 1: {message}");
        assert_eq!(failed(&rendered[1]), (known, Reason::ResourceInvalid, message.as_str()));
    }
    let role = json!({"apiVersion": "authorization.openshift.io/v1", "kind": "Role", "metadata": {"name": "b"}});
    let rendered = resources(vec![role]);
    let known = Known::Object(reference("authorization.openshift.io", "Role", "", "b"));
    assert_eq!(failed(&rendered[0]).0, known);
}

#[test]
fn what_does_not_render_keeps_what_is_known_of_the_object() {
    let kind = || Known::Kind { group: String::new(), kind: "ConfigMap".to_owned() };
    let object = || Known::Object(reference("", "ConfigMap", "a", "b-eu"));
    let resource = |namespace: &str, name: &str, text: &str| {
        let mut resource = config_map(namespace, name);
        resource["data"] = json!({"x/y": [text]});
        resource
    };
    let (name, none) = ("b-{{ fromCDLabel \"region\" }}", "{{ fromCDLabel \"none\" }}");
    for (resource, known, message) in [
        (resource("a", none, ""), kind(), format!("/metadata/name: \"\"; allowed: {PATH_SEGMENT}")),
        (resource(none, name, ""), kind(), format!("/metadata/namespace: \"\"; allowed: {PATH_SEGMENT}")),
        (
            resource("a", "{{ fromCDLabel \"dot\" }}", ""),
            kind(),
            format!("/metadata/name: \"..\"; allowed: {PATH_SEGMENT}"),
        ),
        (resource("a", "{{ \"%\" }}", ""), kind(), format!("/metadata/name: \"%\"; allowed: {PATH_SEGMENT}")),
        (resource("a", "{{ x }}", ""), kind(), "/metadata/name: line 1: `x` is not known".to_owned()),
        (resource("a", name, "\n{{ x }}"), object(), "/data/x~1y/0: line 2: `x` is not known".to_owned()),
        (
            resource("a", name, "{{ eq 1 (fromCDLabel \"env\") }}"),
            object(),
            "/data/x~1y/0: `eq` with a number and a string, which don't compare".to_owned(),
        ),
    ] {
        let rendered = resources(vec![resource]);
        let message = format!("failed to parameterize resource 0: {message}");
        assert_eq!(failed(&rendered[0]), (known, Reason::TemplateInvalid, message.as_str()));
    }
}

#[test]
fn names_are_known_even_if_there_is_no_room_left_for_the_rest() {
    let double = r#"{{ $a = printf "%s%s" $a $a }}"#.repeat(10);
    let large = format!("{{{{ $a := printf \"%1000s\" \"\" }}}}{double}{{{{ $a }}}}");
    let mut first = config_map("a", "b");
    first["data"] = json!(vec![large; 20]);
    let rendered = resources(vec![first, config_map("a", "{{ fromCDLabel \"env\" }}")]);
    let (known, reason, message) = failed(&rendered[0]);
    assert_eq!((known, reason), (Known::Object(reference("", "ConfigMap", "a", "b")), Reason::TemplateInvalid));
    assert!(message.ends_with("the templates of the syncset make more than 16 MiB of text in all"), "{message}");
    assert_eq!(ready(&rendered[1]).object, reference("", "ConfigMap", "a", "prod"));
}

#[test]
fn an_object_that_occurs_twice_fails_at_the_later_place() {
    let versions = ["v1", "v2"].map(|version| {
        json!({"apiVersion": format!("a.io/{version}"), "kind": "A", "metadata": {"name": format!("eu{}", version.len() - 2)}})
    });
    let [first, mut second] = versions;
    second["metadata"]["name"] = json!("{{ fromCDLabel \"region\" }}0");
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "copy", "namespace": "default"}});
    let header = header(vec![
        mapping(("team-a", "pull"), ("default", "copy")),
        mapping(("team-a", "pull"), ("default", "other")),
        mapping(("team-a", "pull"), ("default", "other")),
    ]);
    let rendered = rendered(&header, &Payload { resources: vec![first, second, secret], patches: Vec::new() });
    ready(&rendered.resources[0]);
    ready(&rendered.resources[2]);
    ready(&rendered.secrets[1]);
    let message = "failed to decode resource 1: A.a.io eu0 again, which is resource 0 already";
    let known = Known::Object(reference("a.io", "A", "", "eu0"));
    assert_eq!(failed(&rendered.resources[1]), (known, Reason::ResourceInvalid, message));
    for (index, name, place) in [(0, "copy", "resource 2"), (2, "other", "secret 1")] {
        let message = format!("failed to decode secret {index}: Secret default/{name} again, which is {place} already");
        let known = Known::Object(reference("", "Secret", "default", name));
        assert_eq!(failed(&rendered.secrets[index]), (known, Reason::SecretInvalid, message.as_str()));
    }
}

#[test]
fn secrets_come_from_where_the_syncset_may_read() {
    let mut header = header(vec![
        mapping(("team-a", "pull"), ("default", "copy")),
        mapping(("team-b", "pull"), ("default", "b")),
        mapping(("team-a", "none"), ("default", "c")),
        mapping(("team-a", "sealed"), ("default", "d")),
        mapping(("", "pull"), ("default", "e")),
        mapping(("team-a", "token"), ("default", "f")),
    ]);
    let payload = Payload::default();
    let secrets = rendered(&header, &payload).secrets;
    let desired = ready(&secrets[0]);
    assert_eq!((desired.place, &desired.object), (Position::Secret(0), &reference("", "Secret", "default", "copy")));
    assert_eq!(desired.body["data"], json!({"key": "Y2FuYXJ5"}));
    assert_eq!(desired.body["metadata"]["labels"], json!({"hive.openshift.io/managed": "true"}));
    assert!(!format!("{desired:?}").contains("Y2FuYXJ5"));
    for (index, name, reason, message) in [
        (1, "b", Reason::SecretInvalid, "source in wrong namespace for secret 1"),
        (2, "c", Reason::SecretUnavailable, "failed to read secret 2: Secret team-a/none: not found"),
        (3, "d", Reason::SecretUnavailable, "failed to read secret 3: Secret team-a/sealed: its data can't be opened"),
        (4, "e", Reason::SecretInvalid, "source in wrong namespace for secret 4"),
        // The cluster would fill it with a token of the account that an annotation names.
        (
            5,
            "f",
            Reason::SecretInvalid,
            "failed to copy secret 5: Secret team-a/token has the type kubernetes.io/service-account-token",
        ),
    ] {
        let known = Known::Object(reference("", "Secret", "default", name));
        assert_eq!(failed(&secrets[index]), (known, reason, message));
    }
    header.name = SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: "all".to_owned() };
    let secrets = rendered(&header, &payload).secrets;
    ready(&secrets[0]);
    assert_eq!(failed(&secrets[1]).1, Reason::SecretUnavailable);
    assert_eq!(failed(&secrets[4]).2, "source in wrong namespace for secret 4");
}

fn patch(patch_type: PatchType, text: &str) -> Patch {
    Patch {
        api_version: "apps/v1".to_owned(),
        kind: "Deployment".to_owned(),
        namespace: String::new(),
        name: "agent".to_owned(),
        patch_type,
        text: text.to_owned(),
    }
}

#[test]
fn patches_are_rendered_before_they_are_parsed() {
    let header = header(Vec::new());
    let patches = vec![
        patch(PatchType::Strategic, "{{ if eq (fromCDLabel \"env\") \"prod\" }}spec: {replicas: 3}{{ end }}"),
        Patch { namespace: "b".to_owned(), ..patch(PatchType::Merge, "{\"a\": [{{ 1 }}]}") },
        patch(PatchType::Json, "- {op: add, path: /a, value: null}"),
    ];
    let rendered = rendered(&header, &Payload { resources: Vec::new(), patches });
    let patches: Vec<_> = rendered.patches.iter().map(ready).collect();
    let object = |namespace: &str| reference("apps", "Deployment", namespace, "agent");
    assert_eq!((patches[0].place, &patches[0].object), (Position::Patch(0), &object("default")));
    assert_eq!((patches[1].place, &patches[1].object), (Position::Patch(1), &object("b")));
    assert_eq!(patches[0].body, json!({"spec": {"replicas": 3}}));
    assert_eq!(patches[1].body, json!({"a": [1]}));
    assert_eq!(patches[2].body, json!([{"op": "add", "path": "/a", "value": null}]));
    assert_eq!((patches[2].patch_type, patches[2].api_version.as_str()), (PatchType::Json, "apps/v1"));
}

#[test]
fn a_patch_that_does_not_render_fails_alone() {
    let object = "allowed: an object as JSON or YAML";
    let failing = |header: &Header, index: usize, text: &str, patch_type| {
        let mut patches = vec![patch(PatchType::Merge, "b: 1"); 3];
        patches[index] = patch(patch_type, text);
        let rendered = rendered(header, &Payload { resources: vec![config_map("a", "b")], patches });
        ready(&rendered.resources[0]);
        let others = rendered.patches.iter().enumerate().filter(|(other, _)| *other != index);
        for (_, patch) in others {
            ready(patch);
        }
        let (known, reason, message) = failed(&rendered.patches[index]);
        assert_eq!(known, Known::Object(reference("apps", "Deployment", "default", "agent")));
        (reason, message.to_owned())
    };
    let mut header = header(Vec::new());
    for (index, text, patch_type, message) in [
        (0, "a: {{ x }}", PatchType::Merge, "line 1: `x` is not known".to_owned()),
        (1, "{{ fromCDLabel \"none\" }}", PatchType::Strategic, format!("nothing; {object}")),
        (2, "- {{ 1 }}", PatchType::Strategic, format!("a list as the patch; {object}")),
        (
            1,
            "{{ \"a\" }}",
            PatchType::Json,
            "a string as the patch; allowed: a list of operations as JSON or YAML".to_owned(),
        ),
    ] {
        let message = format!("failed to parameterize patch {index}: {message}");
        assert_eq!(failing(&header, index, text, patch_type), (Reason::TemplateInvalid, message));
    }
    header.patch_templates = false;
    let message = format!("failed to decode patch 1: several documents; {object}");
    assert_eq!(failing(&header, 1, "a: 1\n---\nb: 2\n", PatchType::Merge), (Reason::ResourceInvalid, message));
}

#[test]
fn nothing_is_known_of_what_an_undecodable_syncset_wants() {
    let failure = Failure { reason: Reason::ResourceInvalid, message: "failed to decode spec".to_owned() };
    let rendered = undecodable(failure.clone());
    assert_eq!(rendered.resources, [Rendering::Failed { known: Known::Nothing, failure }]);
    assert!(rendered.secrets.is_empty() && rendered.patches.is_empty());
}
