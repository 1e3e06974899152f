//! `towline diff`, as an operator types it: a dry run on real edges.

use integration::hub::Request;
use integration::{ControlPlane, eventually};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::syncsets::attackers::base64;
use crate::syncsets::commands::file;
use crate::syncsets::kinds::{definition, widget};
use crate::syncsets::world::{LIMIT, Stage, WITH_DUPLICATES, condition, run};

/// Data of all config maps, by which it is seen that a dry run has changed nothing.
async fn state(stage: &Stage, plane: &ControlPlane) -> Value {
    json!(
        stage
            .config_maps(plane)
            .await
            .into_iter()
            .map(|map| (map.metadata.resource_version, map.data))
            .collect::<Vec<_>>()
    )
}

/// As somebody else.
fn by(manager: &str) -> PatchParams {
    PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() }
}

fn syncset(resources: &[Value], clusters: &[&str]) -> Value {
    let clusters: Vec<Value> = clusters.iter().map(|name| json!({"name": name})).collect();
    json!({"kind": "SyncSet", "namespace": "diff", "name": "base", "spec": {"clusterDeploymentRefs": clusters,
        "resourceApplyMode": "Sync", "resources": resources}})
}

#[test]
fn a_diff_tells_what_would_be_created_changed_taken_and_deleted_and_does_nothing() {
    run(async {
        let stage = Stage::new("diff").await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        let map = |name: &str, value: &str| stage.config_map(name, &json!({"value": value}));
        let stored = [map("changed", "one"), map("dropped", "one"), map("same", "one"), map("taken", "one")];
        stage.create("syncsets", &syncset(&stored, &["west-1"])).await;
        let one = || json!({"value": "one"});
        stage.has(plane, &[("changed", one()), ("dropped", one()), ("same", one()), ("taken", one())]).await;
        stage.status("west-1", "the result", |status| status["syncSets"][0]["result"] == "Success").await;
        let (code, told) = stage.answered(&syncset(&stored, &["west-1"])).await;
        assert_eq!(code, 0, "nothing would change: {told}");
        let first = "SyncSet diff/base: 1 cluster (0 new, 0 no longer); held: no";
        assert_eq!(told, format!("{first}\ndiff/west-1  create 0  change 0  delete 0  conflict 0\n"));
        // A name that no cluster has selects nothing, and the diff lists it.
        let told = stage.compared(&syncset(&stored, &["west-1", "wset-1"])).await;
        let missing = "missing or being deleted: diff/wset-1";
        assert_eq!(told, format!("{first}\n{missing}\ndiff/west-1  create 0  change 0  delete 0  conflict 0\n"));
        stage
            .maps(plane)
            .await
            .patch("taken", &by("hpa"), &Patch::Merge(json!({"data": {"value": "two"}})))
            .await
            .unwrap();
        let before = state(&stage, plane).await;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "diff-new"}});
        let mut inside = map("inside", "one");
        inside["metadata"]["namespace"] = json!("diff-new");
        let proposed =
            [map("changed", "two"), map("new", "one"), map("same", "one"), map("taken", "three"), namespace, inside];
        let proposed = syncset(&proposed, &["west-1"]);
        let line = "diff/west-1  create 3  change 2  delete 1  conflict 1   ConfigMap diff/taken: .data.value belongs to hpa; \
             ConfigMap diff/dropped is deleted";
        let told = stage.tells(&proposed, line).await;
        assert!(told.starts_with(first), "{told}");
        assert_eq!(stage.answered(&proposed).await.0, 3, "something would change");
        assert_eq!(state(&stage, plane).await, before, "a dry run changes nothing");
        let found = stage.send(&Request::get("/v1/syncsets/diff/base")).await.json().unwrap();
        assert_eq!(found["generation"], 1, "{found}");
    });
}

/// The API server's times are whole seconds: a dry run in the second of a write gives the entry of a manager the same one. (The object
/// that is patched was created with a field: of one without any the API server notes no managers until it is applied.)
#[test]
fn a_diff_right_after_a_write_tells_a_changed_value() {
    run(async {
        let stage = Stage::new("diff-at-once").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage
            .maps(plane)
            .await
            .create(
                &PostParams::default(),
                &serde_json::from_value(json!({"metadata": {"name": "patched"}, "data": {"theirs": "1"}})).unwrap(),
            )
            .await
            .unwrap();
        let document = |name: &str, value: &str| {
            let map = stage.config_map(name, &json!({"value": value}));
            let patch = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "namespace": stage.namespace,
                "patchType": "merge", "patch": json!({"data": {"value": value}}).to_string()});
            let what = match name {
                "applied" => json!({"resources": [map]}),
                "updated" => json!({"resources": [map], "applyBehavior": "CreateOrUpdate"}),
                _ => json!({"patches": [patch]}),
            };
            let mut document = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": name,
                "spec": {"clusterDeploymentRefs": [{"name": "west-1"}]}});
            document["spec"].as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
            document
        };
        let changes = async |document: &Value| {
            let answer =
                stage.send(&Request::post("/v1/syncset-diffs", document)).await.success().unwrap().json().unwrap();
            let compared = &answer["sample"][0];
            assert_eq!((&compared["obstacle"], &compared["failed"]), (&Value::Null, &json!(0)), "{answer}");
            compared["change"].clone()
        };
        let maps = stage.maps(plane).await;
        for name in ["applied", "updated", "patched"] {
            for round in 0..2 {
                let written = document(name, &round.to_string());
                if round == 0 {
                    stage.create("syncsets", &written).await;
                } else {
                    stage.replace_spec("syncsets", name, &written["spec"]).await;
                }
                let value = round.to_string();
                eventually("the value to be written", LIMIT, async || {
                    let found = maps.get_opt(name).await.map_err(|error| error.to_string())?;
                    let data = json!(found.and_then(|found| found.data));
                    if data["value"] == value { Ok(()) } else { Err(data.to_string()) }
                })
                .await
                .unwrap();
                assert_eq!(changes(&document(name, "another")).await, 1, "{name}, round {round}");
                assert_eq!(changes(&written).await, 0, "{name}, round {round}");
            }
        }
    });
}

#[test]
fn a_diff_tells_which_clusters_come_and_go_and_which_do_not_answer() {
    run(async {
        let stage = Stage::with("diff-reach", WITH_DUPLICATES, 1).await;
        stage.register("west-1", &json!({"env": "prod"}), 0).await;
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"token": "t"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        let silent = json!({"namespace": "diff-reach", "name": "silent", "labels": {"env": "test"}, "kubeconfig": kubeconfig.to_string()});
        stage.create("clusters", &silent).await;
        let selecting = |env: &str| {
            json!({"kind": "SelectorSyncSet", "name": "diff-reach", "spec": {"clusterDeploymentSelector": {"matchLabels": {"env": env}},
                "resources": [stage.config_map("site", &json!({"value": "one"}))]}})
        };
        stage.create("selectorsyncsets", &selecting("prod")).await;
        stage
            .status("silent", "the failure to connect", |status| {
                let conditions = status["conditions"].as_array().into_iter().flatten();
                conditions
                    .into_iter()
                    .any(|condition| condition["type"] == "Unreachable" && condition["status"] == "True")
            })
            .await;
        let (code, told) = stage.answered(&selecting("test")).await;
        assert_eq!(code, 1, "nothing was compared: {told}");
        let expected = "SelectorSyncSet diff-reach: 1 cluster (1 new, 1 no longer); held: no\n\
                        no longer: diff-reach/west-1\n\
                        diff-reach/silent  unreachable, and it has never answered\n";
        assert_eq!(told, expected);
        // A cluster that is paused is left alone, and of more clusters than the sample has, the first and the middle one are tried.
        for name in ["west-2", "west-3"] {
            stage.register(name, &json!({"env": "prod"}), 0).await;
        }
        let path = stage.path("clusters", "west-1");
        stage.change(&path, &json!({"paused": true, "annotations": {"towline.dev/pause-reason": "an upgrade"}})).await;
        stage.status("west-1", "the pause", |status| condition(status, "Paused").is_some()).await;
        let document = file("diff-reach-sample", &selecting("prod")).display().to_string();
        let first = "SelectorSyncSet diff-reach: 3 clusters (0 new, 0 no longer); held: no\n";
        let paused = "diff-reach/west-1  paused by paused: an upgrade\n";
        let in_step = |name: &str| format!("diff-reach/{name}  create 0  change 0  delete 0  conflict 0\n");
        for name in ["west-2", "west-3"] {
            stage.succeeds(name, "diff-reach", 1).await;
        }
        let told = stage.command(&["diff", "-f", &document, "--sample", "2"]).await;
        assert_eq!(told, format!("{first}{paused}{}", in_step("west-2")));
        let told = stage.command(&["diff", "-f", &document, "--all"]).await;
        assert_eq!(told, format!("{first}{paused}{}{}", in_step("west-2"), in_step("west-3")));
        // Of clusters that are named and not there, the first ones are told.
        let references: Vec<Value> =
            (0..25).map(|n| json!({"name": format!("none-{n:02}")})).chain([json!({"name": "west-2"})]).collect();
        let proposed = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "named",
            "spec": {"clusterDeploymentRefs": references, "resources": [stage.config_map("other", &json!({}))]}});
        let answer = stage.send(&Request::post("/v1/syncset-diffs?sample=1", &proposed)).await.json().unwrap();
        let missing: Vec<String> = (0..20).map(|n| format!("none-{n:02}")).collect();
        let listed: Vec<&str> =
            answer["missingClusters"].as_array().unwrap().iter().filter_map(|of| of["name"].as_str()).collect();
        assert_eq!(
            (&answer["clusters"], &answer["new"], &answer["missing"]),
            (&json!(1), &json!(1), &json!(25)),
            "{answer}"
        );
        assert_eq!(listed, missing);
        // What a write would refuse, a diff refuses.
        let refused =
            json!({"kind": "SelectorSyncSet", "name": "diff-reach", "spec": {"resources": [{"kind": "ConfigMap"}]}});
        let reply = stage.send(&Request::post("/v1/syncset-diffs", &refused)).await;
        assert_eq!(reply.status, 422, "{reply:?}");
    });
}

/// What is told of a secret is that it changes, and who owns its fields: no value, not of what is there nor of what would be sent.
#[test]
fn a_diff_tells_of_secrets_that_they_change_and_of_others_who_sends_them() {
    run(async {
        const CANARIES: [&str; 2] = ["canary-of-source-51", "canary-of-other-77"];
        let stage = Stage::new("diff-secrets").await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        for (name, value) in ["source", "other"].into_iter().zip(CANARIES) {
            let secret = json!({"namespace": stage.namespace, "name": name, "data": {"password": base64(value)}});
            stage.create("secrets", &secret).await;
        }
        let mapping = |source: &str, target: &str| json!({"sourceRef": {"name": source}, "targetRef": {"name": target, "namespace": stage.namespace}});
        let patch = |value: &str| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "target", "namespace": stage.namespace,
            "patchType": "merge", "patch": json!({"data": {"p": value}}).to_string()})
        };
        let map = |name: &str| stage.config_map(name, &json!({"a": "1"}));
        let document = |resources: &[Value], mappings: &[Value], patches: &[Value]| {
            json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "base", "spec": {
                "clusterDeploymentRefs": [{"name": "west-1"}], "resources": resources, "secretMappings": mappings, "patches": patches}})
        };
        let resources = [map("target"), map("shared")];
        let mappings = ["pull", "same"].map(|target| mapping("source", target));
        let stored = document(&resources, &mappings, &[patch("1")]);
        stage.create("syncsets", &stored).await;
        let selecting = json!({"name": stage.namespace, "spec": {"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}},
            "resources": [stage.config_map("shared", &json!({"a": "2"}))]}});
        stage.create("selectorsyncsets", &selecting).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.succeeds("west-1", stage.namespace, 1).await;
        let first = "SyncSet diff-secrets/base: 1 cluster (0 new, 0 no longer); held: no\n";
        let told = stage.compared(&stored).await;
        let line = "diff-secrets/west-1  create 0  change 0  delete 0  conflict 0  superseded 1";
        assert_eq!(told, format!("{first}{line}\n"), "what is there is in step");
        // Another source, a secret that is new, one that is missing, and another patch.
        let mappings =
            [mapping("other", "pull"), mapping("source", "same"), mapping("source", "new"), mapping("none", "never")];
        let proposed = document(&resources, &mappings, &[patch("2")]);
        let line = "diff-secrets/west-1  create 1  change 2  delete 0  conflict 0  failed 1  superseded 1   \
                    failed to read secret 3: Secret diff-secrets/none: not found; Secret diff-secrets/pull (changed)";
        stage.tells(&proposed, line).await;
        // Whose a field is, is told from what the cluster says, which is where values could come from.
        let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> =
            kube::Api::namespaced(plane.client(integration::users::ADMIN).await.unwrap(), stage.namespace);
        let theirs = Patch::Merge(json!({"stringData": {"password": "canary-of-theirs-90"}}));
        secrets.patch("pull", &by("kubectl-edit"), &theirs).await.unwrap();
        let line = "diff-secrets/west-1  create 1  change 2  delete 0  conflict 1  failed 1  superseded 1   \
                    Secret diff-secrets/pull: .data.password belongs to kubectl-edit; \
                    failed to read secret 3: Secret diff-secrets/none: not found";
        stage.tells(&proposed, line).await;
        let answer = stage.send(&Request::post("/v1/syncset-diffs", &proposed)).await.success().unwrap();
        let shown = [String::from_utf8_lossy(&answer.body).into_owned(), stage.log()].concat();
        for canary in CANARIES.into_iter().chain(["canary-of-theirs-90"]) {
            assert!(!shown.contains(canary) && !shown.contains(&base64(canary)[..12]), "{canary} in {shown}");
        }
    });
}

#[test]
fn a_diff_tries_what_each_behavior_sends_and_counts_kinds_that_the_syncset_brings() {
    run(async {
        let stage = Stage::new("diff-behaviors").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        stage.at_rest().await;
        let theirs = json!({"metadata": {"name": "there"}, "data": {"a": "theirs"}});
        let create = PostParams { field_manager: Some("helm".to_owned()), ..PostParams::default() };
        stage.maps(plane).await.create(&create, &serde_json::from_value(theirs).unwrap()).await.unwrap();
        let before = state(&stage, plane).await;
        let map = |name: &str| stage.config_map(name, &json!({"a": "1"}));
        let of = |behavior: &str, resources: &[Value]| {
            json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "base", "spec": {"applyBehavior": behavior,
                "clusterDeploymentRefs": [{"name": "west-1"}], "resources": resources}})
        };
        let maps = [map("there"), map("absent")];
        for (behavior, counts) in [
            ("CreateOnly", "create 1  change 0  delete 0  conflict 0"),
            ("CreateOrUpdate", "create 1  change 1  delete 0  conflict 0"),
            (
                "Apply",
                "create 1  change 1  delete 0  conflict 1   ConfigMap diff-behaviors/there: .data.a belongs to helm",
            ),
        ] {
            let told = stage.compared(&of(behavior, &maps)).await;
            let first = "SyncSet diff-behaviors/base: 1 cluster (1 new, 0 no longer); held: no";
            assert_eq!(told, format!("{first}\ndiff-behaviors/west-1  {counts}\n"), "{behavior}");
        }
        // A kind that the syncset brings would be there; one that nobody brings fails, and so does what a server refuses.
        let group = "diffs.example.com";
        let own = [definition(group), widget(&stage, group, "one"), widget(&stage, "absent.example.com", "two")];
        let mut refused = map("refused");
        refused["data"] = json!({"not a key!": "1"});
        let (code, told) = stage.answered(&of("Apply", &[&own[..], &[refused]].concat())).await;
        assert_eq!(code, 1, "something would be refused: {told}");
        let line = told.lines().nth(1).unwrap();
        assert!(
            line.starts_with("diff-behaviors/west-1  create 2  change 0  delete 0  conflict 0  failed 2   "),
            "{told}"
        );
        for part in [
            "Widget.absent.example.com diff-behaviors/two: the cluster does not serve ",
            "ConfigMap diff-behaviors/refused: ",
        ] {
            assert!(line.contains(part), "{told}");
        }
        // So may be what it patches, also an object without a namespace.
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "diff-brought"}});
        let mut patched = of("Apply", &[namespace, map("absent")]);
        let patch = json!({"metadata": {"labels": {"patched": "true"}}}).to_string();
        patched["spec"]["patches"] = json!([
            {"apiVersion": "v1", "kind": "Namespace", "name": "diff-brought", "patchType": "merge", "patch": patch},
            {"apiVersion": "v1", "kind": "Namespace", "name": "diff-nobody", "patchType": "merge", "patch": patch},
        ]);
        let told = stage.compared(&patched).await;
        let line = told.lines().nth(1).unwrap();
        assert!(
            line.starts_with("diff-behaviors/west-1  create 2  change 0  delete 0  conflict 0  failed 1   ")
                && line.contains("diff-nobody: there is no such object to patch"),
            "{told}"
        );
        assert_eq!(state(&stage, plane).await, before, "a dry run changes nothing");
    });
}

/// What a diff says of the objects that a syncset drops is what becomes of them.
#[test]
fn a_diff_tells_which_of_the_dropped_objects_are_deleted_and_why_others_stay() {
    run(async {
        let stage = Stage::new("diff-losses").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.at_rest().await;
        let maps = stage.maps(plane).await;
        let theirs = json!({"metadata": {"name": "adopted"}, "data": {"theirs": "1"}});
        maps.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();
        let map = |name: &str| stage.config_map(name, &json!({"a": "1"}));
        let mut pruned = map("pruned");
        pruned["metadata"]["annotations"] = json!({"towline.dev/prune": "false"});
        let names = ["adopted", "deleted", "gone", "kept", "stolen", "unlabelled"];
        let all: Vec<Value> = names.into_iter().map(map).chain([pruned]).collect();
        let document = |resources: &[Value]| {
            json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "base", "spec": {"resourceApplyMode": "Sync",
                "clusterDeploymentRefs": [{"name": "west-1"}], "resources": resources}})
        };
        stage.create("syncsets", &document(&all)).await;
        stage.succeeds("west-1", "base", 1).await;
        let change = async |name: &str, metadata: Value| {
            maps.patch(name, &by("somebody"), &Patch::Merge(json!({"metadata": metadata}))).await.unwrap();
        };
        change("unlabelled", json!({"labels": {"hive.openshift.io/managed": null}})).await;
        let another = "11111111-2222-4333-8444-555555555555";
        change("stolen", json!({"annotations": {"towline.dev/syncset-id": another}})).await;
        maps.delete("gone", &DeleteParams::default()).await.unwrap();
        let before = state(&stage, plane).await;
        let expected = "SyncSet diff-losses/base: 1 cluster (0 new, 0 no longer); held: no (1 of at most 10 lose objects)\n\
             diff-losses/west-1  create 0  change 0  delete 1  conflict 0   \
             ConfigMap diff-losses/deleted is deleted; \
             ConfigMap diff-losses/adopted: it stays, since it was there before, or somebody else created it anew; \
             ConfigMap diff-losses/pruned: it stays, since it has the annotation towline.dev/prune; \
             ConfigMap diff-losses/stolen: it stays, since this syncset is not the one that sent it last; \
             ConfigMap diff-losses/unlabelled: it stays, since it has lost the label hive.openshift.io/managed\n";
        assert_eq!(stage.compared(&document(&[map("kept")])).await, expected);
        assert_eq!(state(&stage, plane).await, before, "a dry run changes nothing");
        // An `Upsert` set deletes nothing.
        let mut upsert = document(&[map("kept")]);
        upsert["spec"]["resourceApplyMode"] = json!("Upsert");
        let told = stage.compared(&upsert).await;
        assert!(told.ends_with("diff-losses/west-1  create 0  change 0  delete 0  conflict 0\n"), "{told}");
        stage.wants("base", &[map("kept")]).await;
        let is_told = |status: &Value| status["syncSets"][0]["reason"] == "NotDeleted";
        stage.status("west-1", "what somebody has taken to be told", is_told).await;
        let left: Vec<String> =
            stage.config_maps(plane).await.into_iter().filter_map(|map| map.metadata.name).collect();
        assert_eq!(left, ["adopted", "kept", "pruned", "stolen", "unlabelled"], "as it was told");
    });
}

/// Whose an object is, a diff decides as a pass does: the marks of another hub's syncset prove that it is not ours, and on another
/// cluster than the first one nothing is ours that was there before.
#[test]
fn a_diff_takes_nothing_for_ours_that_a_pass_would_not() {
    run(async {
        let stage = Stage::new("diff-owners").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.at_rest().await;
        let maps = stage.maps(plane).await;
        let last_applied = ("kubectl.kubernetes.io/last-applied-configuration", json!("{}"));
        let other = ("towline.dev/syncset-id", json!("00000000-0000-4000-8000-000000000001"));
        for (name, marks) in [("of-hive", vec![last_applied.clone()]), ("of-another-hub", vec![last_applied, other])] {
            let annotations: serde_json::Map<String, Value> =
                marks.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
            let metadata =
                json!({"name": name, "labels": {"hive.openshift.io/managed": "true"}, "annotations": annotations});
            let map = serde_json::from_value(json!({"metadata": metadata, "data": {"value": "one"}})).unwrap();
            let params = PostParams { field_manager: Some("hive6-clustersync".to_owned()), ..PostParams::default() };
            maps.create(&params, &map).await.unwrap();
        }
        let map = |name: &str| stage.config_map(name, &json!({"value": "two"}));
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resources": [map("of-another-hub"), map("of-hive")]});
        let proposed = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "base", "spec": spec});
        let taken = |name: &str| format!("ConfigMap diff-owners/{name}: .data.value");
        let told = stage.compared(&proposed).await;
        let expected = format!("create 0  change 2  delete 0  conflict 1   {}", taken("of-another-hub"));
        assert!(told.contains(&expected) && !told.contains(&taken("of-hive")), "{told}");
        stage.sql.execute("update towline_cluster set home = 'another'", &[]).await.unwrap();
        let told = stage.compared(&proposed).await;
        assert!(told.contains("conflict 2") && told.contains(&taken("of-hive")), "{told}");
        // A pass agrees: it deletes neither of them when they are dropped.
        let mut stored = proposed.clone();
        stored["spec"]["resourceApplyMode"] = json!("Sync");
        stage.create("syncsets", &stored).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.wants("base", &[]).await;
        stage.succeeds("west-1", "base", 2).await;
        stage.has(plane, &[("of-another-hub", json!({"value": "two"})), ("of-hive", json!({"value": "two"}))]).await;
    });
}

/// A gate in CI: of a file with several documents all faults are told at once, and what is right is compared.
#[test]
fn a_diff_does_not_end_at_the_first_document_that_is_wrong() {
    run(async {
        let stage = Stage::new("diff-gate").await;
        stage.register("west-1", &json!({}), 0).await;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "diff-gate-inner"}});
        let mut inner = stage.config_map("inner", &json!({"a": "1"}));
        inner["metadata"]["namespace"] = json!("diff-gate-inner");
        let document = |name: &str, mode: &str, resources: &[&Value]| {
            json!({"kind": "SyncSet", "namespace": stage.namespace, "name": name, "spec": {"resourceApplyMode": mode,
                "clusterDeploymentRefs": [{"name": "west-1"}], "resources": resources}})
        };
        stage.create("syncsets", &document("outer", "Sync", &[&namespace])).await;
        stage.succeeds("west-1", "outer", 1).await;
        stage.create("syncsets", &document("inner", "Sync", &[&inner])).await;
        stage.succeeds("west-1", "inner", 1).await;
        // The namespace is dropped, and stays since what is in it is wanted: that is no failure, and nothing changes.
        let (code, told) = stage.answered(&document("outer", "Sync", &[])).await;
        let note = "Namespace diff-gate-inner: it stays, since ConfigMap diff-gate-inner/inner is still wanted";
        assert!(code == 0 && told.contains(note) && !told.contains("failed"), "{code}: {told}");

        let faulty = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "faulty", "spec": {"applyBehavior": "Aply"}});
        let cluster = json!({"kind": "Cluster", "namespace": stage.namespace, "name": "west-9", "kubeconfig": "k"});
        let all = json!([{"kind": "Pod"}, faulty, cluster, document("inner", "Sync", &[&inner])]);
        let path = file("diff-gate-all", &all).display().to_string();
        let server = format!("http://{}", stage.replicas[0].api());
        let ended = integration::Towline::command(["diff", "-f", &path, "--hub", &server]).await.unwrap();
        let (output, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert_eq!(ended.status.code(), Some(1), "{output}{errors}");
        for part in ["document 1: ", "SyncSet diff-gate/faulty: ", "Cluster diff-gate/west-9 can't be compared"] {
            assert!(errors.contains(part), "no {part} in {errors}");
        }
        assert!(output.starts_with("SyncSet diff-gate/inner: 1 cluster"), "{output}");
        // The same in other formats.
        let (_, told) = stage.ended(&["diff", "-f", &path, "-o", "json"]).await;
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["items"][0]["syncset"], "SyncSet diff-gate/inner", "{told}");
        let changed = document("inner", "Sync", &[&stage.config_map("new", &json!({"a": "1"}))]);
        let path = file("diff-gate-changed", &changed).display().to_string();
        assert_eq!(
            stage.ended(&["diff", "-f", &path, "-o", "name"]).await,
            (0, "SyncSet/diff-gate/inner\n".to_owned()),
            "only with --exit-code it ends with 3"
        );
    });
}

/// What a pass refuses before or after a write of its own accord, a diff refuses in the same words, before and after that pass.
#[test]
fn a_diff_foresees_what_a_pass_refuses_itself() {
    run(async {
        let stage = Stage::new("diff-refusals").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        stage.at_rest().await;
        let group = "diff-refusals.example.com";
        let element = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"},
            "a": {"type": "integer"}}});
        let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": element});
        let properties = json!({"keyed": keyed, "plain": {"type": "array", "items": element}});
        let mut crd = definition(group);
        crd["spec"]["versions"][0]["schema"] = json!({"openAPIV3Schema": {"type": "object",
            "properties": {"spec": {"type": "object", "properties": properties}}}});
        let there = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "there", "namespace": stage.namespace}});
        stage.syncset("before", "Upsert", &[crd, there]).await;
        stage.succeeds("west-1", "before", 1).await;

        let account = |name: &str| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": stage.namespace}});
        let token = |name: &str, uid: Option<&str>| {
            let mut annotations = json!({"kubernetes.io/service-account.name": name});
            if let Some(uid) = uid {
                annotations["kubernetes.io/service-account.uid"] = json!(uid);
            }
            json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
                "metadata": {"name": format!("{name}-token"), "namespace": stage.namespace, "annotations": annotations}})
        };
        let listing = |name: &str, list: &str, ignored: &str| {
            let mut object = widget(&stage, group, name);
            object["spec"] = json!({list: [{"name": "x", "a": 1}]});
            object["metadata"]["annotations"] = json!({"towline.dev/ignore-fields": ignored});
            object
        };
        let service = |name: &str| {
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": stage.namespace,
                "annotations": {"towline.dev/ignore-fields": "/spec/selector/b"}},
                "spec": {"selector": {"a": "1"}, "ports": [{"port": 1}]}})
        };
        let there_before = |name: &str| {
            let mut object = widget(&stage, group, name);
            object["spec"] = json!({"keyed": [{"name": "x", "a": 7}], "plain": [{"name": "x", "a": 7}]});
            object
        };
        let widgets =
            crate::syncsets::kinds::widgets(plane.client(integration::users::ADMIN).await.unwrap(), &stage, group);
        for name in ["plain-there", "update-there", "keyed-there"] {
            let theirs = serde_json::from_value(there_before(name)).unwrap();
            widgets.create(&PostParams::default(), &theirs).await.unwrap();
        }
        let uid = "7b1c2d3e-0000-4000-8000-000000000000";
        let no_account = "the cluster deletes such a Secret at once, since there is no ServiceAccount";
        let another = "its annotation kubernetes.io/service-account.uid is not the UID of the ServiceAccount";
        let part = |list: &str| format!("/spec/{list} is part of a field that is only written as a whole");
        let (absent, late) = (format!("{no_account} absent: create that before it"), format!("{no_account} late"));
        let cases: Vec<(&str, Vec<Value>, Option<String>)> = vec![
            ("Apply", vec![token("absent", None)], Some(absent.clone())),
            ("CreateOnly", vec![token("absent", None)], Some(absent)),
            ("Apply", vec![token("late", None), account("late")], Some(late)),
            ("Apply", vec![token("there", Some(uid))], Some(format!("{another} there"))),
            ("Apply", vec![account("brought"), token("brought", Some(uid))], Some(format!("{another} brought"))),
            ("Apply", vec![account("fine"), token("fine", None)], None),
            ("Apply", vec![listing("plain-there", "plain", "/spec/plain/*/a")], Some(part("plain/*/a"))),
            ("CreateOrUpdate", vec![listing("update-there", "keyed", "/spec/keyed/*/a")], Some(part("keyed/*/a"))),
            ("Apply", vec![service("selecting")], Some(part("selector/b"))),
            ("CreateOrUpdate", vec![service("patched")], None),
            ("Apply", vec![listing("keyed-there", "keyed", "/spec/keyed/*/a")], None),
            ("Apply", vec![listing("whole", "plain", "/spec/plain")], None),
        ];
        for (number, (behavior, resources, refusal)) in cases.iter().enumerate() {
            let document = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": format!("case-{number}"),
                "spec": {"applyBehavior": behavior, "clusterDeploymentRefs": [{"name": "west-1"}], "resources": resources}});
            agree(&stage, &document, refusal.as_deref()).await;
        }
    });
}

/// A diff before a pass, the pass, and a diff after it agree on a syncset: it is refused with these words, or succeeds.
async fn agree(stage: &Stage, document: &Value, refusal: Option<&str>) {
    let name = document["name"].as_str().unwrap();
    let check = async |code: i32, when: &str| {
        let (found, told) = stage.answered(document).await;
        assert_eq!(found, code, "{when} the pass of {name}: {told}");
        assert!(refusal.is_none_or(|refusal| told.contains(refusal)), "{when} the pass of {name}: {told}");
    };
    check(if refusal.is_some() { 1 } else { 3 }, "before").await;
    stage.create("syncsets", document).await;
    let is_ended = |status: &Value| {
        let mut entries = status["syncSets"].as_array().into_iter().flatten();
        entries.any(|entry| {
            let message = entry["failureMessage"].as_str().unwrap_or_default();
            entry["name"] == name && refusal.map_or(entry["result"] == "Success", |refusal| message.contains(refusal))
        })
    };
    stage.status("west-1", &format!("the end of {name}: {refusal:?}"), is_ended).await;
    stage.at_rest().await;
    check(i32::from(refusal.is_some()), "after").await;
    // Some later case may need what it failed to send.
    stage.remove(&stage.path("syncsets", name)).await;
    stage.at_rest().await;
}
