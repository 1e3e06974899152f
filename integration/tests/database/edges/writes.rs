//! What the server answers to the writes of a pass.

use integration::Filter;
use integration::users::OTHER_CONTROLLER;
use serde_json::{Value, json};
use towline::test_api::cluster::{Error, Kind, ObjectKey, Payload, Request};

use crate::edges::world::{Edge, config_maps, custom, namespaces, run};

#[test]
fn an_apply_says_whether_it_has_created_the_object_and_who_owns_what() {
    run(async {
        let edge = Edge::new("apply").await;
        let first = edge.apply("site", &json!({"a": "1"})).await.unwrap();
        assert!(first.created);
        let again = edge.apply("site", &json!({"a": "2"})).await.unwrap();
        assert!(!again.created && again.body.uid == first.body.uid);
        assert_ne!(again.body.resource_version, first.body.resource_version);
        let metadata = &again.body;
        assert_eq!((metadata.labels["of"].as_str(), metadata.annotations["note"].as_str()), ("apply", "site"));
        let [entry] = metadata.managers.as_slice() else { panic!("{:?}", metadata.managers) };
        assert_eq!((entry.manager.as_str(), entry.operation.as_str()), ("towline", "Apply"));
        assert_eq!(entry.fields_value()["f:data"], json!({"f:a": {}}));
        // Nothing changes: the same version, and the same entry by its text and its time.
        let same = edge.apply("site", &json!({"a": "2"})).await.unwrap();
        assert_eq!(same, again);
        assert_eq!(edge.metadata(&config_maps(), "site").await.as_ref(), Some(metadata));
    });
}

#[test]
fn every_verb_is_answered_with_metadata_only() {
    run(async {
        let edge = Edge::new("metadata").await;
        let (kind, key) = (config_maps(), edge.key("site"));
        // A megabyte that is not in any answer.
        let body = edge.config_map("site", &json!({"large": "x".repeat(1 << 20)}));
        let client = edge.cluster.session().unwrap().connection;
        let read = async |request: Request<'_>| -> Value {
            client
                .send(request, towline::test_api::cluster::PARTIAL_METADATA, crate::edges::world::LIMIT)
                .await
                .unwrap()
                .0
        };
        let patch = json!({"metadata": {"labels": {"b": "c"}}});
        for (verb, request) in [
            ("create", Request::create(&kind, &key, &body).by("towline-update")),
            ("apply", Request::apply(&kind, &key, &body).by("towline").forced()),
            ("strategic", Request::patch(&kind, &key, Payload::strategic_merge_patch(&patch)).by("towline-patch")),
            ("merge", Request::patch(&kind, &key, Payload::merge_patch(&patch)).by("towline-patch")),
            ("json", Request::patch(&kind, &key, Payload::json_patch(&json!([]))).by("towline-patch")),
            ("dry run", Request::apply(&kind, &key, &body).by("towline").forced().tried()),
            ("get", Request::get(&kind, &key)),
        ] {
            let answer = read(request).await;
            assert_eq!(answer["kind"], "PartialObjectMetadata", "{verb}");
            assert!(answer.get("data").is_none() && answer["metadata"]["managedFields"].is_array(), "{verb}: {answer}");
        }
        edge.cluster.remove(&kind, &key, &edge.metadata(&kind, "site").await.unwrap().uid, None).await.unwrap();
    });
}

#[test]
fn a_create_of_what_exists_is_told_apart_from_other_conflicts() {
    run(async {
        let edge = Edge::new("create").await;
        let (kind, key, body) = (config_maps(), edge.key("site"), edge.config_map("site", &json!({"a": "1"})));
        let created = edge.cluster.change(Request::create(&kind, &key, &body).by("towline-update")).await.unwrap();
        assert!(created.created);
        let again = edge.cluster.change(Request::create(&kind, &key, &body)).await.unwrap_err();
        assert!(matches!(again, Error::Conflict { exists: true, .. }), "{again:?}");
        // Without force, what others own is a conflict that names them.
        let other = edge.config_map("site", &json!({"a": "2"}));
        let conflict = edge.cluster.change(Request::apply(&kind, &key, &other).by("towline")).await.unwrap_err();
        assert!(matches!(conflict, Error::Conflict { exists: false, .. }), "{conflict:?}");
        assert!(conflict.message().contains("towline-update") && conflict.message().contains(".data.a"), "{conflict}");
    });
}

#[test]
fn a_strategic_patch_of_a_custom_kind_is_415() {
    run(async {
        let edge = Edge::new("strategic").await;
        let (kind, key) = (custom("Database", "databases", true), edge.key("orders"));
        let body = json!({"apiVersion": "demo.towline.dev/v1", "kind": "Database", "metadata": {"name": "orders", "namespace": "strategic"}, "spec": {"engine": "postgres-16"}});
        edge.cluster.change(Request::create(&kind, &key, &body)).await.unwrap();
        let patch = json!({"metadata": {"labels": {"a": "b"}}});
        let request = |payload| Request::patch(&kind, &key, payload).by("towline-patch");
        let error = edge.cluster.change(request(Payload::strategic_merge_patch(&patch))).await.unwrap_err();
        assert!(matches!(error, Error::Rejected { code: 415, .. }), "{error:?}");
        let patched = edge.cluster.change(request(Payload::merge_patch(&patch))).await.unwrap();
        assert_eq!(patched.body.labels["a"], "b");
    });
}

#[test]
fn unknown_fields_give_no_warnings_and_an_apply_of_them_is_a_schema_mismatch() {
    run(async {
        let edge = Edge::new("fields").await;
        let (kind, key) = (config_maps(), edge.key("site"));
        let mut body = edge.config_map("site", &json!({"a": "1"}));
        for number in 0..120 {
            body[format!("unknown{number}")] = json!(number);
        }
        // With a header for each, hyper would take the answer for a broken one.
        edge.cluster.change(Request::create(&kind, &key, &body).by("towline-update")).await.unwrap();
        let error = edge.cluster.change(Request::apply(&kind, &key, &body).by("towline").forced()).await.unwrap_err();
        assert!(matches!(error, Error::SchemaMismatch { .. }), "{error:?}");
        let secrets = Kind::core("Secret", "secrets", true);
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "site"}, "data": {"a": "?canary?"}});
        for request in [
            Request::create(&secrets, &key, &secret),
            Request::apply(
                &secrets,
                &key,
                &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "site"}, "canary": 1}),
            )
            .by("towline"),
        ] {
            let error = edge.cluster.change(request).await.unwrap_err();
            assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
        }
    });
}

#[test]
fn a_secret_that_is_refused_is_told_without_its_values() {
    run(async {
        let edge = Edge::new("secrets").await;
        let (kind, key) = (Kind::core("Secret", "secrets", true), edge.key("pull"));
        let body = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pull"},
            "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "canary"}});
        let error = edge.cluster.change(Request::create(&kind, &key, &body)).await.unwrap_err();
        assert!(matches!(error, Error::Rejected { code: 422, .. }), "{error:?}");
        assert_eq!(error.message(), "HTTP 422 Invalid: data[.dockerconfigjson]");
    });
}

#[test]
fn an_immutable_field_is_422_and_a_dry_run_says_that_the_object_would_be_valid_as_a_new_one() {
    run(async {
        let edge = Edge::new("immutable").await;
        let (kind, key) = (config_maps(), edge.key("site"));
        let mut body = edge.config_map("site", &json!({"a": "1"}));
        body["immutable"] = json!(true);
        let apply = |body: &Value| Request::apply(&kind, &key, body).by("towline").forced();
        edge.cluster.change(apply(&body)).await.unwrap();
        body["data"]["a"] = json!("2");
        let error = edge.cluster.change(apply(&body)).await.unwrap_err();
        assert!(matches!(error, Error::Rejected { code: 422, .. }), "{error:?}");
        let tried = edge.cluster.change(Request::create(&kind, &key, &body).tried()).await.unwrap_err();
        assert!(matches!(tried, Error::Conflict { exists: true, .. }), "{tried:?}");
        // One that is not valid as a new one either is 422 again.
        body["data"]["a/b"] = json!("2");
        let tried = edge.cluster.change(Request::create(&kind, &key, &body).tried()).await.unwrap_err();
        assert!(matches!(tried, Error::Rejected { code: 422, .. }), "{tried:?}");
        // A dry run stores nothing.
        let (other, new) = (edge.key("other"), edge.config_map("other", &json!({})));
        assert!(edge.cluster.change(Request::create(&kind, &other, &new).tried()).await.unwrap().created);
        assert_eq!(edge.metadata(&kind, "other").await, None);
    });
}

#[test]
fn a_name_that_leads_elsewhere_leaves_no_request() {
    run(async {
        let edge = Edge::of(OTHER_CONTROLLER, "names").await;
        edge.apply("site", &json!({})).await.unwrap();
        let mark = edge.plane.audit().unwrap().mark().await.unwrap();
        for name in ["", ".", "..", "a/b", "a%2Fb"] {
            let (kind, key) = (config_maps(), edge.key(name));
            for request in
                [Request::create(&kind, &key, &json!({})), Request::apply(&kind, &key, &json!({})).by("towline")]
            {
                let error = edge.cluster.change(request).await.unwrap_err();
                assert!(matches!(error, Error::Rejected { code: 0, .. }), "{name:?}: {error:?}");
            }
            edge.cluster.read_metadata(&kind, &key).await.unwrap_err();
            edge.cluster.remove(&kind, &key, "u-1", None).await.unwrap_err();
            edge.cluster.remove(&kind, &ObjectKey::new(name, "site"), "u-1", None).await.unwrap_err();
            edge.cluster.remove(&namespaces(), &ObjectKey::new("", name), "u-1", None).await.unwrap_err();
        }
        let sent = edge.plane.audit().unwrap().records(&Filter::since(mark).user(OTHER_CONTROLLER)).await.unwrap();
        assert!(sent.is_empty(), "{sent:?}");
        assert!(edge.metadata(&config_maps(), "site").await.is_some());
    });
}

/// What a pass has found to be absent it creates, and what somebody has created meanwhile it leaves alone.
#[test]
fn an_apply_with_a_version_that_no_object_has_creates_an_object_and_changes_none() {
    run(async {
        let edge = Edge::new("absent").await;
        let secrets = Kind::core("Secret", "secrets", true);
        for (kind, namespace) in [
            (config_maps(), edge.namespace),
            (secrets, edge.namespace),
            (custom("Database", "databases", true), edge.namespace),
            (custom("Region", "regions", false), ""),
            (namespaces(), ""),
        ] {
            let key = ObjectKey::new(namespace, "absent-new");
            let body = |value: &str| {
                let mut body = json!({"apiVersion": kind.resource.api_version, "kind": kind.resource.kind,
                    "metadata": {"name": "absent-new", "labels": {"value": value}, "resourceVersion": "1"}});
                if kind.resource.kind == "Database" {
                    body["spec"] = json!({"engine": "postgres-16"});
                }
                body
            };
            let apply = async |body: &serde_json::Value| {
                edge.cluster.change(Request::apply(&kind, &key, body).by("towline").forced()).await
            };
            let made = apply(&body("ours")).await.unwrap();
            assert!(made.created && made.body.labels["value"] == "ours", "{key:?}");
            assert!(&*made.body.resource_version != "1" && made.body.managers.len() == 1);
            let error = apply(&body("other")).await.unwrap_err();
            assert!(matches!(error, Error::Conflict { exists: false, .. }), "{key:?}: {error:?}");
            assert_eq!(edge.cluster.read_metadata(&kind, &key).await.unwrap().as_ref(), Some(&made.body));
            edge.cluster.remove(&kind, &key, &made.body.uid, None).await.unwrap();
        }
    });
}
