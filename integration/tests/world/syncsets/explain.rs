//! `towline explain`, as an operator types it.

use integration::eventually;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::syncsets::attackers::PLAIN;
use crate::syncsets::commands::has_lines;
use crate::syncsets::script::{Says, Script, kubeconfig};
use crate::syncsets::world::{LIMIT, Stage, edge, run};

/// The message for every address at which no API server answers.
const NO_API_SERVER: &str =
    "no API server answers at the kubeconfig's address; the hub's log says why, also after `towline resync`";

#[test]
fn an_object_is_explained_with_its_syncsets_and_what_others_did_to_it() {
    run(async {
        let stage = Stage::new("explain").await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        for (name, value) in [("a-first", "one"), ("b-last", "two")] {
            let syncset = json!({"namespace": "explain", "name": name, "spec": {"clusterDeploymentRefs": [{"name": "west-1"}],
                "resourceApplyMode": "Sync", "resources": [stage.config_map("site", &json!({"value": value}))]}});
            stage.create("syncsets", &syncset).await;
        }
        stage.has(plane, &[("site", json!({"value": "two"}))]).await;
        stage
            .status("west-1", "both results", |status| status["syncSets"].as_array().is_some_and(|all| all.len() == 2))
            .await;
        let told = stage.explained("west-1", "ConfigMap/explain/site").await;
        let maps = stage.maps(plane).await;
        let managers = maps.get("site").await.unwrap().metadata.managed_fields.unwrap();
        let ours = managers.into_iter().find(|entry| entry.manager.as_deref() == Some("towline")).unwrap();
        let sent = json!(ours.time.unwrap());
        let wins = format!(
            "           SyncSet explain/b-last (Sync, Apply, resource 0): wins, sent {}",
            sent.as_str().unwrap()
        );
        let lines = [
            "wanted by  SyncSet explain/a-first (Sync, Apply, resource 0): superseded",
            wins.as_str(),
            "live       in step",
            "if dropped deleted (tracked, not adopted)",
        ];
        has_lines(&told, &lines);
        let printed = async |format: &str| {
            stage.command(&["explain", "explain/west-1", "ConfigMap/explain/site", "-o", format]).await
        };
        let answer: Value = serde_json::from_str(&printed("json").await).unwrap();
        let wanting =
            |position: usize| (&answer["wantedBy"][position]["syncset"], &answer["wantedBy"][position]["state"]);
        assert_eq!(wanting(0), (&json!("SyncSet explain/a-first"), &json!("superseded")), "{answer}");
        assert_eq!((wanting(1).0, &answer["live"]), (&json!("SyncSet explain/b-last"), &json!("in step")), "{answer}");
        let yaml: Value = serde_saphyr::from_str(&printed("yaml").await).unwrap();
        assert_eq!((&yaml["wantedBy"], &yaml["ifDropped"]), (&answer["wantedBy"], &answer["ifDropped"]));
        assert_eq!(printed("name").await, "SyncSet/explain/a-first\nSyncSet/explain/b-last\n");
        assert!(
            told.starts_with("cluster    reachable, last contact ") && told.contains(" ago, full pass in "),
            "{told}"
        );
        let edit = Patch::Merge(json!({"data": {"value": "three"}}));
        maps.patch(
            "site",
            &PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() },
            &edit,
        )
        .await
        .unwrap();
        let drift = "live       drift: .data.value was taken by kubectl-edit at ";
        eventually("the drift to be told", LIMIT, async || {
            let told = stage.explained("west-1", "ConfigMap/explain/site").await;
            if told.lines().any(|line| line.starts_with(drift)) { Ok(()) } else { Err(told) }
        })
        .await
        .unwrap();
        let told = stage.explained("west-1", "ConfigMap/explain/other").await;
        let lines = [
            "wanted by  no syncset",
            "live       no syncset wants it, and none has sent it",
            "if dropped nothing: no syncset wants it",
        ];
        has_lines(&told, &lines);
        let error = stage.refused(&["explain", "explain/none", "ConfigMap/explain/site"]).await;
        assert_eq!(error.trim_end(), "towline: there is no clusters/explain/none");
    });
}

/// Of an object: its reference, the syncset that wants it, how far that is, how it is found, and what happens to it if it is dropped.
const STATES: [(&str, &str, &str, &str, &str); 9] = [
    (
        "ConfigMap/explained/adopted",
        "base (Sync, Apply, resource 0)",
        "wins, sent 2",
        "in step",
        "kept (adopted: it was there before)",
    ),
    (
        "ConfigMap/explained/pruned",
        "base (Sync, Apply, resource 1)",
        "wins, sent 2",
        "in step",
        "kept (towline.dev/prune)",
    ),
    (
        "Secret/explained/pull",
        "base (Sync, Apply, secret 0)",
        "wins, sent 2",
        "in step",
        "deleted (tracked, not adopted)",
    ),
    (
        "ConfigMap/explained/only",
        "only (Sync, CreateOnly, resource 0)",
        "wins, sent",
        "present; it is never changed",
        "kept (adopted: it was there before)",
    ),
    (
        "ConfigMap/explained/own",
        "only (Sync, CreateOnly, resource 1)",
        "wins, sent 2",
        "present; it is never changed",
        "deleted (tracked, not adopted)",
    ),
    (
        "ConfigMap/explained/update",
        "update (Upsert, CreateOrUpdate, resource 0)",
        "wins, sent 2",
        "in step",
        "kept (Upsert)",
    ),
    (
        "Widget/explained/one",
        "failing (Sync, Apply, resource 0)",
        "wins, to be sent; the syncset fails: failed to apply resource 0: the cluster does not serve ",
        "not known: the cluster does not serve ",
        "deleted, unless it was there before",
    ),
    (
        "ConfigMap/explained/after",
        "failing (Sync, Apply, resource 1)",
        "wins, to be sent; the syncset fails: failed to apply resource 0: ",
        "absent; created by the next full pass or resync",
        "deleted, unless it was there before",
    ),
    (
        "ConfigMap/explained/beside",
        "templated (Sync, Apply, resource 0)",
        "wins, to be sent; the syncset fails: failed to parameterize resource 1: ",
        "absent; created by the next full pass or resync",
        "deleted, unless it was there before",
    ),
];

/// Each line is what one of the cases says: the lines of a syncset, of the object, and of its deletion.
#[test]
fn each_state_of_an_object_is_explained_in_its_words() {
    run(async {
        let stage = Stage::new("explained").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        stage.at_rest().await;
        let maps = stage.maps(plane).await;
        for name in ["adopted", "only"] {
            let theirs = json!({"metadata": {"name": name}, "data": {"theirs": "canary"}});
            maps.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();
        }
        let secret = json!({"namespace": stage.namespace, "name": "source", "data": {"password": "Y2FuYXJ5"}});
        stage.create("secrets", &secret).await;
        let map = |name: &str| stage.config_map(name, &json!({"a": "1"}));
        let mut pruned = map("pruned");
        pruned["metadata"]["annotations"] = json!({"towline.dev/prune": "false"});
        let mapping =
            json!({"sourceRef": {"name": "source"}, "targetRef": {"name": "pull", "namespace": stage.namespace}});
        let create = async |name: &str, fields: Value| {
            let mut spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync"});
            spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
        };
        create("base", json!({"resources": [map("adopted"), pruned], "secretMappings": [mapping]})).await;
        create("only", json!({"applyBehavior": "CreateOnly", "resources": [map("only"), map("own")]})).await;
        create(
            "update",
            json!({"applyBehavior": "CreateOrUpdate", "resourceApplyMode": "Upsert", "resources": [map("update")]}),
        )
        .await;
        for name in ["base", "only", "update"] {
            stage.succeeds("west-1", name, 1).await;
        }
        let unserved = json!({"apiVersion": "explained.example.com/v1", "kind": "Widget",
            "metadata": {"name": "one", "namespace": stage.namespace}});
        create("failing", json!({"resources": [unserved, map("after")]})).await;
        let unnamed = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "{{ fromCDLabel \"region\" }}"},
            "metadata": {"name": "{{ fromCDLabel \"region\" }}", "namespace": stage.namespace}});
        create("templated", json!({"enableResourceTemplates": true, "resources": [map("beside"), unnamed]})).await;
        let fails = |name: &'static str| {
            move |status: &Value| {
                let mut entries = status["syncSets"].as_array().into_iter().flatten();
                entries.any(|entry| entry["name"] == name && entry["result"] == "Failure")
            }
        };
        for name in ["failing", "templated"] {
            stage.status("west-1", "the failure", fails(name)).await;
        }
        for (object, syncset, state, live, dropped) in STATES {
            let told = stage.explained("west-1", object).await;
            let lines: Vec<&str> = told.lines().collect();
            let [_, wanted_by, found_live, found_dropped] = lines.as_slice() else { panic!("{told}") };
            let begins = |line: &str, begin: String| assert!(line.starts_with(&begin), "no {begin} in\n{told}");
            begins(wanted_by, format!("wanted by  SyncSet explained/{syncset}: {state}"));
            begins(found_live, format!("live       {live}"));
            begins(found_dropped, format!("if dropped {dropped}"));
            assert!(!told.contains("canary") && !told.contains("Y2FuYXJ5"), "{told}");
        }
        // What was dropped while the cluster was paused is still there.
        stage.pause(true).await;
        stage.remove(&stage.path("syncsets", "only")).await;
        stage.at_rest().await;
        let told = stage.explained("west-1", "ConfigMap/explained/own").await;
        let lines = [
            "wanted by  no syncset",
            "live       present, and wanted by no syncset",
            // It is there that a syncset can't be rendered, which may want it.
            "if dropped kept for now: it is not known what a syncset wants: failed to parameterize resource 1: /metadata/name: \"\"; \
             allowed: a name of at most 253 characters that is not \".\" or \"..\" and has no / and no %",
        ];
        has_lines(&told, &lines);
        let first = told.lines().next().unwrap();
        assert!(first.starts_with("cluster    reachable, ") && first.ends_with(", paused by paused"), "{told}");
    });
}

/// What is stored is explained without the cluster.
#[test]
fn an_object_on_a_cluster_that_does_not_answer_is_explained_as_far_as_it_is_known() {
    run(async {
        let stage = Stage::new("explain-silent").await;
        let nowhere = kubeconfig("https://127.0.0.1:1").to_string();
        stage.create("clusters", &json!({"namespace": stage.namespace, "name": "west-1", "kubeconfig": nowhere})).await;
        stage.syncset("base", "Sync", &[stage.config_map("site", &json!({}))]).await;
        stage.unreachable("west-1").await;
        let told = stage.explained("west-1", "ConfigMap/explain-silent/site").await;
        let lines = [
            "wanted by  SyncSet explain-silent/base (Sync, Apply, resource 0): wins, to be sent",
            "if dropped deleted, unless it was there before",
        ];
        has_lines(&told, &lines);
        assert!(told.starts_with("cluster    unreachable, "), "{told}");
        has_lines(&told, &[&format!("live       not known: {NO_API_SERVER}")]);
        // Whoever may write a kubeconfig can't find out by messages which names and ports there are in the hub's network, and the log can.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let plain = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await);
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = listener.local_addr().unwrap();
        let swallowing = tokio::spawn(async move {
            let mut connections = Vec::new();
            while let Ok(connection) = listener.accept().await {
                connections.push(connection);
            }
        });
        for (url, shown, cause) in [
            ("https://west-1.invalid".to_owned(), NO_API_SERVER, "the name west-1.invalid can't be resolved"),
            (format!("https://{plain}"), NO_API_SERVER, "the server does not speak TLS"),
            (format!("https://{silent}"), NO_API_SERVER, "no answer within 5s"),
            (
                format!("https://{}", edge(0).await.address()),
                "failed to connect: the server's certificate is signed by an unknown authority",
                "the server's certificate is signed by an unknown authority",
            ),
        ] {
            let changed = json!({"kubeconfig": kubeconfig(&url).to_string()});
            stage.change(&stage.path("clusters", "west-1"), &changed).await;
            eventually(format!("the log to say {cause}"), LIMIT, async || {
                let log = stage.log();
                if log.contains(cause) { Ok(()) } else { Err(stage.log()) }
            })
            .await
            .unwrap_or_else(|error| panic!("{error}"));
            let told = stage.explained("west-1", "ConfigMap/explain-silent/site").await;
            has_lines(&told, &[&format!("live       not known: {shown}")]);
            let status = stage.status("west-1", "the cause", |status| status.to_string().contains(shown)).await;
            assert_eq!(shown == NO_API_SERVER, !status.to_string().contains(cause), "{status}");
        }
        server.abort();
        swallowing.abort();
    });
}

/// Whoever only asks for an explanation learns no more of the network than by the status, and the log has it then, too.
#[test]
fn a_cluster_that_has_gone_since_its_last_pass_is_explained_without_why_it_does_not_answer() {
    run(async {
        let stage = Stage::shared("explain-gone", PLAIN).await;
        let server = Script::start(|line| {
            let namespace = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"name": "kube-system", "uid": "gone"}});
            if line.contains("kube-system") {
                Says::Body(200, namespace.to_string())
            } else {
                Says::Body(500, "{}".to_owned())
            }
        })
        .await;
        stage.registers("west-1", &server.kubeconfig()).await;
        stage.syncset("base", "Sync", &[stage.config_map("site", &json!({}))]).await;
        stage.status("west-1", "an answer", |status| status["syncSets"][0]["result"] == "Failure").await;
        drop(server);
        let told = stage.explained("west-1", "ConfigMap/explain-gone/site").await;
        has_lines(&told, &[&format!("live       not known: {NO_API_SERVER}")]);
        let log = stage.log();
        assert!(log.contains("a cluster could not be looked at") && log.contains("connection refused"), "{log}");
    });
}

/// A namespace that a document gives for a kind without namespaces does not count.
#[test]
fn all_who_want_an_object_without_a_namespace_are_told_whatever_namespace_they_give() {
    run(async {
        let stage = Stage::new("explain-wide").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let role = |namespace: Option<&str>| {
            let mut role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": "explain-wide"}, "rules": []});
            if let Some(namespace) = namespace {
                role["metadata"]["namespace"] = json!(namespace);
            }
            role
        };
        // Nothing was sent: the cluster itself says that the kind has no namespaces.
        stage.pause(true).await;
        for (name, namespace) in [("a-bare", None), ("b-given", Some("default")), ("c-other", Some("kube-system"))] {
            stage.syncset(name, "Sync", &[role(namespace)]).await;
        }
        let objects = ["ClusterRole/explain-wide", "ClusterRole/default/explain-wide", "ClusterRole/any/explain-wide"];
        let wanted_by = |state: &str| {
            [
                "wanted by  SyncSet explain-wide/a-bare (Sync, Apply, resource 0): superseded".to_owned(),
                "           SyncSet explain-wide/b-given (Sync, Apply, resource 0): superseded".to_owned(),
                format!("           SyncSet explain-wide/c-other (Sync, Apply, resource 0): wins, {state}"),
            ]
        };
        for object in objects {
            let told = stage.explained("west-1", object).await;
            let expected = wanted_by("to be sent");
            assert_eq!(told.lines().skip(1).take(3).collect::<Vec<_>>(), expected, "{object}\n{told}");
        }
        stage.pause(false).await;
        stage.succeeds("west-1", "c-other", 1).await;
        for object in objects {
            let told = stage.explained("west-1", object).await;
            let last = wanted_by("sent ")[2].clone();
            assert!(told.lines().nth(3).is_some_and(|line| line.starts_with(&last)), "{object}\n{told}");
            has_lines(&told, &["live       in step", "if dropped deleted (tracked, not adopted)"]);
        }
        // When the cluster does not answer, it is known from what was sent.
        let nowhere = json!({"kubeconfig": kubeconfig("https://127.0.0.1:1").to_string()});
        stage.change(&stage.path("clusters", "west-1"), &nowhere).await;
        let told = stage.explained("west-1", objects[0]).await;
        assert_eq!(told.lines().skip(1).take(3).collect::<Vec<_>>(), wanted_by("sent"), "{told}");
        let roles: kube::Api<k8s_openapi::api::rbac::v1::ClusterRole> =
            kube::Api::all(plane.client(integration::users::ADMIN).await.unwrap());
        roles.delete("explain-wide", &kube::api::DeleteParams::default()).await.unwrap();
    });
}
