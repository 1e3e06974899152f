//! Full passes: what others have changed is mended, with the requests that the spec promises.

use integration::users::ADMIN;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::syncsets::asked::workload;
use crate::syncsets::requests::Requests;
use crate::syncsets::world::{SYNCSETS, Stage, run};

#[test]
fn a_full_pass_in_step_costs_a_list_for_each_kind_and_a_look_for_each_patch() {
    run(async {
        let stage = Stage::new("in-step").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let maps = stage.maps(plane).await;
        maps.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "target"}})).unwrap())
            .await
            .unwrap();
        stage.create("secrets", &json!({"namespace": stage.namespace, "name": "source", "data": {"a": "MQ=="}})).await;
        let mapping = |index: usize| json!({"sourceRef": {"name": "source"}, "targetRef": {"name": format!("s-{index}"), "namespace": stage.namespace}});
        let resources: Vec<Value> =
            (0..3).map(|index| stage.config_map(&format!("m-{index}"), &json!({"a": "1"}))).collect();
        let patch = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "target", "namespace": stage.namespace,
            "patchType": "merge", "patch": "{\"data\": {\"p\": \"1\"}}"});
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resources": resources, "patches": [patch],
            "secretMappings": (0..3).map(mapping).collect::<Vec<_>>()});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
        stage.succeeds("west-1", "base", 1).await;
        let mut requests = Requests::from_now(&stage, plane).await;
        stage.full_pass().await;
        let mut seen = requests.seen().await;
        // Lists may overtake each other.
        seen.sort();
        assert_eq!(seen, ["get configmaps/target 200", "list configmaps 200", "list secrets 200"]);

        // Fields of others are none of our business.
        let merge = async |name: &str, fields: &Value| {
            maps.patch(name, &PatchParams::apply("somebody"), &Patch::Merge(fields)).await.unwrap();
        };
        merge("m-0", &json!({"data": {"foreign": "1"}})).await;
        stage.full_pass().await;
        let mut seen = requests.seen().await;
        seen.retain(|request| request.starts_with("patch"));
        assert_eq!(seen, Vec::<String>::new());

        // What is ours is sent again, and so is what can't be found by its label; a patch whose object was changed, too.
        merge("m-0", &json!({"data": {"a": "theirs"}})).await;
        merge("m-1", &json!({"metadata": {"labels": {"hive.openshift.io/managed": null}}})).await;
        maps.delete("m-2", &DeleteParams::default()).await.unwrap();
        merge("target", &json!({"data": {"p": "theirs"}})).await;
        stage.full_pass().await;
        let mut seen = requests.seen().await;
        seen.retain(|request| request.starts_with("patch"));
        let mended = [
            "patch configmaps/m-0 200",
            "patch configmaps/m-1 200",
            "patch configmaps/m-2 201",
            "patch configmaps/target 200",
        ];
        assert_eq!(seen, mended);
        stage
            .has(
                plane,
                &[
                    ("m-0", json!({"a": "1", "foreign": "1"})),
                    ("m-1", json!({"a": "1"})),
                    ("m-2", json!({"a": "1"})),
                    ("target", json!({"p": "1"})),
                ],
            )
            .await;
        stage.full_pass().await;
        let mut seen = requests.seen().await;
        seen.sort();
        assert_eq!(seen, ["get configmaps/target 200", "list configmaps 200", "list secrets 200"]);
    });
}

#[test]
fn drift_is_mended_after_the_interval_by_itself() {
    run(async {
        let section = format!("{SYNCSETS}\nreapply_interval = \"2s\"");
        let stage = Stage::with("interval", &section, 1).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.syncset("base", "Upsert", &[stage.config_map("site", &json!({"a": "1"}))]).await;
        stage.has(plane, &[("site", json!({"a": "1"}))]).await;
        let maps = stage.maps(plane).await;
        let theirs = json!({"data": {"a": "theirs"}});
        maps.patch("site", &PatchParams::apply("somebody"), &Patch::Merge(&theirs)).await.unwrap();
        stage.has(plane, &[("site", json!({"a": "1"}))]).await;
        maps.delete("site", &DeleteParams::default()).await.unwrap();
        stage.has(plane, &[("site", json!({"a": "1"}))]).await;
    });
}

/// What is absent is no success: something deletes it each time, and so it is created once in each full pass.
#[test]
fn what_is_deleted_after_each_creation_is_told_and_created_once_in_each_full_pass() {
    run(async {
        let stage = Stage::new("deleted-again").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let maps = stage.maps(plane).await;
        let resources = [stage.config_map("a", &json!({"a": "1"})), stage.config_map("b", &json!({"b": "1"}))];
        stage.syncset("base", "Upsert", &resources).await;
        stage.succeeds("west-1", "base", 1).await;
        let mut requests = Requests::from_now(&stage, plane).await;
        for is_failing in [false, true, true] {
            maps.delete("a", &DeleteParams::default()).await.unwrap();
            stage.full_pass().await;
            let mut seen = requests.seen().await;
            seen.retain(|request| request.starts_with("patch"));
            assert_eq!(seen, ["patch configmaps/a 201"]);
            let status = stage.status("west-1", "a status", |_| true).await;
            let entry = &status["syncSets"][0];
            let expected = if is_failing { json!("DeletedAgain") } else { json!(null) };
            assert_eq!(entry["reason"], expected, "{entry}");
            let told = format!("(ConfigMap {}/a): it was gone again", stage.namespace);
            assert!(!is_failing || entry["failureMessage"].as_str().unwrap().contains(&told), "{entry}");
        }
        // A change of something else says nothing of that.
        stage.wants("base", &[resources[0].clone(), stage.config_map("b", &json!({"b": "2"}))]).await;
        stage.has(plane, &[("a", json!({"a": "1"})), ("b", json!({"b": "2"}))]).await;
        stage.at_rest().await;
        let status = stage.status("west-1", "a status", |_| true).await;
        assert_eq!(status["syncSets"][0]["reason"], "DeletedAgain");
        stage.full_pass().await;
        stage.succeeds("west-1", "base", 2).await;
    });
}

/// A field that somebody has set back is no loss of the object, and one that stays is well again.
#[test]
fn an_object_that_is_reverted_and_then_deleted_once_is_no_failure_and_one_that_stays_is_none_any_more() {
    run(async {
        let stage = Stage::new("deleted-once").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let maps = stage.maps(plane).await;
        let map = |name: &str, value: &str| stage.config_map(name, &json!({"a": value}));
        stage.syncset("base", "Upsert", &[map("a", "1"), map("b", "1")]).await;
        stage.succeeds("west-1", "base", 1).await;
        let theirs = Patch::Merge(json!({"data": {"a": "theirs"}}));
        for (deed, is_failing) in [
            ("revert", false),
            ("delete", false),
            ("revert", false),
            ("delete", false),
            ("delete", true),
            ("leave", false),
            ("delete", false),
            ("delete", true),
        ] {
            match deed {
                "revert" => drop(maps.patch("a", &PatchParams::apply("somebody"), &theirs).await.unwrap()),
                "delete" => drop(maps.delete("a", &DeleteParams::default()).await.unwrap()),
                _ => {}
            }
            stage.full_pass().await;
            let status = stage.status("west-1", "a status", |_| true).await;
            let expected = if is_failing { json!("DeletedAgain") } else { json!(null) };
            assert_eq!(status["syncSets"][0]["reason"], expected, "{deed}: {status}");
        }
        // The next pass that finds it in place is one that sends a change.
        stage.wants("base", &[map("a", "2"), map("b", "1")]).await;
        stage.has(plane, &[("a", json!({"a": "2"})), ("b", json!({"a": "1"}))]).await;
        stage.succeeds("west-1", "base", 2).await;
    });
}

/// What was there before is applied and kept; what `CreateOnly` has not created, it never touches.
#[test]
fn what_existed_before_is_adopted_and_create_only_leaves_it() {
    run(async {
        let stage = Stage::new("adopted").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let maps = stage.maps(plane).await;
        for name in ["applied", "only"] {
            let theirs = json!({"metadata": {"name": name}, "data": {"theirs": "1", "a": "theirs"}});
            maps.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();
        }
        stage.syncset("base", "Sync", &[stage.config_map("applied", &json!({"a": "1"}))]).await;
        let only = [stage.config_map("only", &json!({"a": "1"})), stage.config_map("own", &json!({"a": "1"}))];
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "applyBehavior": "CreateOnly",
            "resourceApplyMode": "Sync", "resources": only});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "only", "spec": spec})).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.succeeds("west-1", "only", 1).await;
        let theirs = json!({"theirs": "1", "a": "theirs"});
        let all = [("applied", json!({"theirs": "1", "a": "1"})), ("only", theirs.clone()), ("own", json!({"a": "1"}))];
        stage.has(plane, &all).await;
        assert!(maps.get("only").await.unwrap().metadata.annotations.is_none(), "untouched");
        // A full pass creates what is gone, also in place of what was theirs, and changes nothing.
        maps.delete("own", &DeleteParams::default()).await.unwrap();
        maps.delete("only", &DeleteParams::default()).await.unwrap();
        stage.full_pass().await;
        stage.has(plane, &[all[0].clone(), ("only", json!({"a": "1"})), ("own", json!({"a": "1"}))]).await;
        let changed = json!({"data": {"a": "theirs"}});
        maps.patch("own", &PatchParams::apply("somebody"), &Patch::Merge(&changed)).await.unwrap();
        let mut requests = Requests::from_now(&stage, plane).await;
        stage.full_pass().await;
        let mut seen = requests.seen().await;
        seen.retain(|request| !request.starts_with("get") && !request.starts_with("list"));
        assert_eq!(seen, Vec::<String>::new());
        stage.has(plane, &[all[0].clone(), ("only", json!({"a": "1"})), ("own", json!({"a": "theirs"}))]).await;
    });
}

/// Only where it is asked for, and only what is valid as a new object.
#[test]
fn what_can_not_be_changed_is_created_again_only_where_that_is_asked_for() {
    run(async {
        let stage = Stage::new("recreated").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let map = |value: &str, recreate: bool| {
            let mut map = stage.config_map("fixed", &json!({"a": value}));
            map["immutable"] = json!(true);
            if recreate {
                map["metadata"]["annotations"] = json!({"towline.dev/recreate": "true"});
            }
            map
        };
        stage.syncset("base", "Upsert", &[map("1", false)]).await;
        stage.succeeds("west-1", "base", 1).await;
        let maps = stage.maps(plane).await;
        let uid = maps.get("fixed").await.unwrap().metadata.uid;
        stage.wants("base", &[map("2", false)]).await;
        let failed = |status: &Value| status["syncSets"][0]["result"] == "Failure";
        let status = stage.status("west-1", "the failure", failed).await;
        assert_eq!(status["syncSets"][0]["reason"], "Rejected", "{status}");
        assert_eq!(maps.get("fixed").await.unwrap().metadata.uid, uid);
        stage.wants("base", &[map("2", true)]).await;
        stage.has(plane, &[("fixed", json!({"a": "2"}))]).await;
        assert_ne!(maps.get("fixed").await.unwrap().metadata.uid, uid);
    });
}

/// What is not provably ours is not deleted for that, as if nobody wanted it any more.
#[test]
fn what_somebody_has_taken_from_a_syncset_is_not_deleted_to_be_created_again() {
    run(async {
        let stage = Stage::new("taken").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let map = |value: &str| {
            let mut map = stage.config_map("fixed", &json!({"a": value}));
            map["immutable"] = json!(true);
            map["metadata"]["annotations"] = json!({"towline.dev/recreate": "true"});
            map
        };
        stage.syncset("base", "Upsert", &[map("1")]).await;
        stage.succeeds("west-1", "base", 1).await;
        let maps = stage.maps(plane).await;
        let found = maps.get("fixed").await.unwrap().metadata;
        let id = found.annotations.unwrap()["towline.dev/syncset-id"].clone();
        let marks = |label: Value, id: Value, prune: Value| {
            json!({"metadata": {"labels": {"hive.openshift.io/managed": label},
                "annotations": {"towline.dev/syncset-id": id, "towline.dev/prune": prune}}})
        };
        let mut generation = 1;
        for (changed, why) in [
            (marks(Value::Null, json!(id), Value::Null), "does not have the label"),
            (marks(json!("true"), Value::Null, Value::Null), "does not have the annotation of a syncset"),
            (marks(json!("true"), json!(id), json!("false")), "it is marked to be kept"),
        ] {
            maps.patch("fixed", &PatchParams::default(), &Patch::Merge(changed)).await.unwrap();
            generation += 1;
            let mut requests = Requests::from_now(&stage, plane).await;
            stage.wants("base", &[map(&generation.to_string())]).await;
            let refused = |status: &Value| {
                let entry = &status["syncSets"][0];
                entry["observedGeneration"] == generation
                    && entry["failureMessage"].as_str().is_some_and(|is| is.contains(why))
            };
            let status = stage.status("west-1", why, refused).await;
            assert_eq!(status["syncSets"][0]["reason"], "Rejected", "{status}");
            let seen = requests.seen().await;
            assert!(seen.iter().all(|line| line.starts_with("get ") || line.starts_with("patch ")), "{seen:?}");
            assert_eq!(maps.get("fixed").await.unwrap().metadata.uid, found.uid, "{why}");
        }
        // An object that has its marks again is created again.
        let own = marks(json!("true"), json!(id), Value::Null);
        maps.patch("fixed", &PatchParams::default(), &Patch::Merge(own)).await.unwrap();
        stage.has(plane, &[("fixed", json!({"a": generation.to_string()}))]).await;
        assert_ne!(maps.get("fixed").await.unwrap().metadata.uid, found.uid);
    });
}

/// It is the object that existed before, and not its name.
#[test]
fn an_adopted_object_that_somebody_deletes_is_created_again_and_ours() {
    run(async {
        let stage = Stage::new("adopted-anew").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let maps = stage.maps(plane).await;
        let foreign = serde_json::from_value(json!({"metadata": {"name": "site"}})).unwrap();
        maps.create(&PostParams::default(), &foreign).await.unwrap();
        let site = stage.config_map("site", &json!({"a": "1"}));
        stage.syncset("base", "Sync", &[site]).await;
        stage.succeeds("west-1", "base", 1).await;
        assert_eq!(maps.get("site").await.unwrap().metadata.annotations.unwrap()["towline.dev/adopted"], "true");
        maps.delete("site", &DeleteParams::default()).await.unwrap();
        stage.full_pass().await;
        stage.has(plane, &[("site", json!({"a": "1"}))]).await;
        assert!(!maps.get("site").await.unwrap().metadata.annotations.unwrap().contains_key("towline.dev/adopted"));
        stage.wants("base", &[]).await;
        stage.has(plane, &[]).await;
    });
}

/// Who undoes every full pass is named.
#[test]
fn an_object_that_two_full_passes_in_a_row_have_to_mend_is_contended() {
    run(async {
        let stage = Stage::new("contended").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.syncset("base", "Upsert", &["site", "calm"].map(|name| stage.config_map(name, &json!({"a": "1"})))).await;
        stage.succeeds("west-1", "base", 1).await;
        let maps = stage.maps(plane).await;
        let theirs = PatchParams { field_manager: Some("rival".to_owned()), ..PatchParams::default() };
        for (round, contended) in [0, 1, 2].into_iter().enumerate() {
            maps.patch("site", &theirs, &Patch::Merge(json!({"data": {"a": "theirs"}}))).await.unwrap();
            stage.full_pass().await;
            stage.has(plane, &[("calm", json!({"a": "1"})), ("site", json!({"a": "1"}))]).await;
            let told = stage.log().lines().filter(|line| line.contains("manager=\"rival\"")).count();
            assert_eq!(told, contended, "round {round}");
        }
        // The log has the name of the cluster, as people know it.
        let log = stage.log();
        let of_cluster: Vec<&str> = log.lines().filter(|line| line.contains(" cluster=")).collect();
        let told = r#"cluster="contended/west-1" object=ConfigMap contended/site manager="rival""#;
        let is_told = |line: &&str| line.contains(" WARN ") && line.ends_with(told);
        assert_eq!((of_cluster.len(), of_cluster.iter().filter(|line| is_told(line)).count()), (2, 2), "{log}");
        let id: String = stage.sql.query_one("select id::text from clusters", &[]).await.unwrap().get(0);
        assert!(!log.contains(&id), "{log}");
    });
}

/// `kubectl scale` and an autoscaler write through `/scale`.
#[test]
fn who_scales_what_a_syncset_wants_is_named_with_the_subresource() {
    run(async {
        let stage = Stage::new("scaled").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let all: Api<Deployment> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        let wanted = workload(&stage, "Deployment", "agent", &json!({"replicas": 3, "paused": true}), &json!({}));
        stage.syncset("base", "Upsert", std::slice::from_ref(&wanted)).await;
        stage.succeeds("west-1", "base", 1).await;
        let warnings = |manager: &str| {
            let told = format!("manager=\"{manager}\"");
            stage.log().lines().filter(|line| line.contains("two full passes") && line.contains(&told)).count()
        };
        let scale = async |manager: &str| {
            if manager == "kubectl" {
                let arguments = ["scale", "deployment/agent", "--replicas=5", "--namespace", stage.namespace];
                let output = plane.kubectl(ADMIN).await.unwrap().args(arguments).output().await.unwrap();
                assert!(output.status.success(), "{output:?}");
                return;
            }
            let mut scale = all.get_scale("agent").await.unwrap();
            scale.spec.as_mut().unwrap().replicas = Some(6);
            let by = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
            all.replace_scale("agent", &by, &scale).await.unwrap();
        };
        for (round, (manager, is_told)) in
            [("kubectl", false), ("hpa", true), ("kubectl", true)].into_iter().enumerate()
        {
            scale(manager).await;
            // Of others the server notes when they have written, and not of those.
            let label = Patch::Merge(json!({"metadata": {"labels": {"round": round.to_string()}}}));
            all.patch("agent", &PatchParams::apply("labeller"), &label).await.unwrap();
            let told = stage.explained("west-1", "Deployment.apps/scaled/agent").await;
            let drift = format!("live       drift: .spec.replicas was taken by {manager} by /scale; mended");
            assert!(told.lines().any(|line| line.starts_with(&drift)), "no {drift} in {told}");
            let mut other = wanted.clone();
            other["spec"]["replicas"] = json!(4);
            let document = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "base",
                "spec": {"clusterDeploymentRefs": [{"name": "west-1"}], "resources": [other]}});
            let told = stage.compared(&document).await;
            let owner = format!("Deployment.apps scaled/agent: .spec.replicas belongs to {manager} by /scale");
            assert!(told.contains(&owner), "no {owner} in {told}");
            let manager = format!("{manager} by /scale");
            let before = warnings(&manager);
            stage.full_pass().await;
            assert_eq!(all.get("agent").await.unwrap().spec.replicas, Some(3));
            assert_eq!(warnings(&manager) - before, usize::from(is_told), "{}", stage.log());
        }
        // What a scale has set is wanted since, and its manager owns it, too.
        scale("kubectl").await;
        let mut agreed = wanted.clone();
        (agreed["spec"]["replicas"], agreed["spec"]["revisionHistoryLimit"]) = (json!(5), json!(3));
        stage.wants("base", &[agreed]).await;
        stage.succeeds("west-1", "base", 2).await;
        stage.full_pass().await;
        let found = all.get("agent").await.unwrap();
        let shares = |entry: &ManagedFieldsEntry| entry.subresource.as_deref() == Some("scale");
        assert!(found.managed_fields().iter().any(shares), "{found:?}");
        let before = warnings("kubectl by /scale");
        let rival = PatchParams { field_manager: Some("rival".to_owned()), ..PatchParams::default() };
        for _ in 0..2 {
            all.patch("agent", &rival, &Patch::Merge(json!({"spec": {"revisionHistoryLimit": 4}}))).await.unwrap();
            stage.full_pass().await;
        }
        let told = (warnings("rival"), warnings("kubectl by /scale") - before);
        assert_eq!(told, (1, 0), "{}", stage.log());
        assert!(!stage.log().contains("manager=\"unknown\""), "{}", stage.log());
    });
}
