//! What is deleted because nobody wants it any more, and what never is.

use integration::eventually;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::syncsets::world::{LIMIT, SYNCSETS, Stage, UNGUARDED, condition, run};

#[test]
fn a_syncset_that_matches_no_more_deletes_if_it_synced_and_forgets_if_not() {
    run(async {
        let stage = Stage::new("unmatched").await;
        let plane = stage.register("west-1", &json!({"env": "prod", "a": "1", "b": "1", "c": "1"}), 0).await;
        let selector = async |name: &str, mode: &str, label: &str| {
            let map = stage.config_map(name, &json!({"of": name}));
            let spec = json!({"clusterDeploymentSelector": {"matchLabels": {label: "1"}}, "resourceApplyMode": mode,
                "resources": [map]});
            stage.create("selectorsyncsets", &json!({"name": format!("unmatched-{name}"), "spec": spec})).await;
        };
        selector("relabelled", "Sync", "a").await;
        selector("relabelled-upsert", "Upsert", "a").await;
        selector("selector", "Sync", "b").await;
        selector("namespaces", "Sync", "c").await;
        stage.syncset("removed", "Sync", &[stage.config_map("removed", &json!({"of": "removed"}))]).await;
        stage.syncset("refs", "Sync", &[stage.config_map("refs", &json!({"of": "refs"}))]).await;
        let of = |name: &'static str| (name, json!({"of": name}));
        stage
            .has(
                plane,
                &[
                    of("namespaces"),
                    of("refs"),
                    of("relabelled"),
                    of("relabelled-upsert"),
                    of("removed"),
                    of("selector"),
                ],
            )
            .await;
        stage.at_rest().await;
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"a": "2"}})).await;
        stage.has(plane, &[of("namespaces"), of("refs"), of("relabelled-upsert"), of("removed"), of("selector")]).await;
        let other = json!({"spec": {"clusterDeploymentSelector": {"matchLabels": {"b": "2"}}}});
        stage.change("selectorsyncsets/unmatched-selector", &other).await;
        stage.has(plane, &[of("namespaces"), of("refs"), of("relabelled-upsert"), of("removed")]).await;
        let narrowed = json!({"spec": {"clusterNamespaces": ["elsewhere-*"]}});
        stage.change("selectorsyncsets/unmatched-namespaces", &narrowed).await;
        stage.has(plane, &[of("refs"), of("relabelled-upsert"), of("removed")]).await;
        stage.remove(&stage.path("syncsets", "removed")).await;
        stage.has(plane, &[of("refs"), of("relabelled-upsert")]).await;
        let elsewhere = json!({"spec": {"clusterDeploymentRefs": [{"name": "elsewhere"}]}});
        stage.change(&stage.path("syncsets", "refs"), &elsewhere).await;
        stage.has(plane, &[of("relabelled-upsert")]).await;
        let is_empty = |status: &Value| status["syncSets"] == json!([]) && status["selectorSyncSets"] == json!([]);
        stage.status("west-1", "no entries", is_empty).await;
    });
}

#[test]
fn a_switch_to_upsert_forgets_and_a_switch_to_sync_tracks() {
    run(async {
        let stage = Stage::new("switched").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let map = |name: &str| stage.config_map(name, &json!({}));
        let all = [map("a"), map("b"), map("c")];
        stage.syncset("to-upsert", "Sync", &all).await;
        stage.succeeds("west-1", "to-upsert", 1).await;
        stage
            .change(
                &stage.path("syncsets", "to-upsert"),
                &json!({"spec": {"resourceApplyMode": "Upsert", "resources": [map("b"), map("c")]}}),
            )
            .await;
        stage.succeeds("west-1", "to-upsert", 2).await;
        stage.change(&stage.path("syncsets", "to-upsert"), &json!({"spec": {"resourceApplyMode": "Sync"}})).await;
        stage.succeeds("west-1", "to-upsert", 3).await;
        let names = async || stage.config_maps(plane).await.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
        assert_eq!(names().await, ["a", "b", "c"]);
        stage.wants("to-upsert", &[map("c")]).await;
        stage.succeeds("west-1", "to-upsert", 4).await;
        assert_eq!(names().await, ["a", "c"], "only what was wanted since the switch to Sync");
    });
}

/// Each reason for which an object is kept. Whoever takes a mark from an object on the cluster keeps it, and it is never called a success.
#[test]
fn an_object_that_somebody_has_taken_from_a_syncset_stays_and_is_told_until_that_is_over() {
    run(async {
        let stage = Stage::new("released").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let maps = stage.maps(plane).await;
        let merge = async |name: &str, fields: &Value| {
            maps.patch(name, &PatchParams::default(), &Patch::Merge(fields)).await.unwrap();
        };
        let foreign = serde_json::from_value(json!({"metadata": {"name": "adopted"}})).unwrap();
        maps.create(&kube::api::PostParams::default(), &foreign).await.unwrap();
        let foreign = serde_json::from_value(json!({"metadata": {"name": "taken"}})).unwrap();
        maps.create(&kube::api::PostParams::default(), &foreign).await.unwrap();
        let names = ["adopted", "deleted", "finalized", "gone", "marked", "other", "pruned", "unlabelled", "unmarked"];
        let mut wanted: Vec<Value> = names.iter().map(|name| stage.config_map(name, &json!({"a": "1"}))).collect();
        let mut taken = stage.config_map("taken", &json!({"a": "1"}));
        taken["metadata"]["annotations"] = json!({"towline.dev/adopt": "true"});
        wanted.push(taken);
        stage.syncset("base", "Sync", &wanted).await;
        stage.succeeds("west-1", "base", 1).await;
        let adopted = maps.get("adopted").await.unwrap();
        assert_eq!(adopted.annotations()["towline.dev/adopted"], "true");
        merge("unlabelled", &json!({"metadata": {"labels": {"hive.openshift.io/managed": null}}})).await;
        merge("unmarked", &json!({"metadata": {"annotations": {"towline.dev/syncset-id": null}}})).await;
        let another = "00000000-0000-4000-8000-000000000001";
        merge("other", &json!({"metadata": {"annotations": {"towline.dev/syncset-id": another}}})).await;
        merge("marked", &json!({"metadata": {"annotations": {"towline.dev/adopted": "true"}}})).await;
        merge("pruned", &json!({"metadata": {"annotations": {"towline.dev/prune": "false"}}})).await;
        merge("finalized", &json!({"metadata": {"finalizers": ["example.com/wait"]}})).await;
        maps.delete("gone", &kube::api::DeleteParams::default()).await.unwrap();
        stage.wants("base", &[]).await;
        let failure = |status: &Value| {
            let entry = &status["syncSets"][0];
            (entry["reason"] == "NotDeleted").then(|| entry["failureMessage"].as_str().unwrap_or_default().to_owned())
        };
        let told = async |stage: &Stage| {
            let status = stage.status("west-1", "what stays", |status| failure(status).is_some()).await;
            assert_eq!(condition(&status, "Failed").unwrap()["status"], "True");
            failure(&status).unwrap()
        };
        let expected = "v1, Kind=ConfigMap released/marked stays, although no syncset wants it: it existed before, or";
        let message = told(&stage).await;
        assert!(message.starts_with(expected) && message.ends_with("; and 3 more"), "{message}");
        let left: Vec<String> = stage.config_maps(plane).await.iter().map(ResourceExt::name_any).collect();
        assert_eq!(left, ["adopted", "finalized", "marked", "other", "pruned", "unlabelled", "unmarked"]);
        assert!(maps.get("finalized").await.unwrap().metadata.deletion_timestamp.is_some());
        merge("finalized", &json!({"metadata": {"finalizers": null}})).await;
        stage.at_rest().await;
        // However often it is compared, and also when the syncset is gone: only the cluster can end it.
        stage.full_pass().await;
        assert_eq!(told(&stage).await, message);
        stage.remove(&stage.path("syncsets", "base")).await;
        stage.at_rest().await;
        assert_eq!(told(&stage).await, message);
        for name in ["other", "unlabelled", "unmarked"] {
            maps.delete(name, &kube::api::DeleteParams::default()).await.unwrap();
        }
        merge("marked", &json!({"metadata": {"annotations": {"towline.dev/adopted": null}}})).await;
        merge("pruned", &json!({"metadata": {"annotations": {"towline.dev/prune": null}}})).await;
        stage.full_pass().await;
        stage.status("west-1", "no entries", |status| status["syncSets"] == json!([])).await;
        let left: Vec<String> = stage.config_maps(plane).await.iter().map(ResourceExt::name_any).collect();
        assert_eq!(left, ["adopted"]);
    });
}

#[test]
fn what_stays_is_stored_even_if_it_can_not_be_shown() {
    run(async {
        let stage = Stage::with("unshown", SYNCSETS, 1).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.syncset("base", "Sync", &[stage.config_map("a", &json!({}))]).await;
        stage.succeeds("west-1", "base", 1).await;
        let unlabelled = json!({"metadata": {"labels": {"hive.openshift.io/managed": null}}});
        stage.maps(plane).await.patch("a", &PatchParams::default(), &Patch::Merge(&unlabelled)).await.unwrap();
        let refuse = "create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$; \
             create trigger refuse before insert or update on clustersyncs for each row execute function refuse()";
        stage.sql.batch_execute(refuse).await.unwrap();
        stage.wants("base", &[]).await;
        eventually("the pass to be stored", LIMIT, async || {
            let stored = "select count(*) from towline_result where reason = 'NotDeleted'";
            let stored: i64 = stage.sql.query_one(stored, &[]).await.map_err(|error| error.to_string())?.get(0);
            if stored == 1 { Ok(()) } else { Err(format!("{stored} rows")) }
        })
        .await
        .unwrap();
        stage.sql.batch_execute("drop trigger refuse on clustersyncs").await.unwrap();
        let told = |status: &Value| status["syncSets"][0]["reason"] == "NotDeleted";
        stage.status("west-1", "what stays", told).await;
    });
}

/// A resource that does not render keeps everything of its syncset, a name that does not render everything of its kind.
#[test]
fn nothing_is_deleted_while_a_resource_does_not_render() {
    run(async {
        let stage = Stage::new("unrendered").await;
        let plane = stage.register("west-1", &json!({"site": "one"}), 0).await;
        let named = stage.config_map("{{ fromCDLabel \"site\" }}", &json!({"a": "1"}));
        let (old, other) = (stage.config_map("old", &json!({})), stage.config_map("other-old", &json!({})));
        let spec = |resources: &[Value]| {
            json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync",
                "enableResourceTemplates": true, "resources": resources})
        };
        let document = json!({"namespace": stage.namespace, "name": "base", "spec": spec(&[named.clone(), old])});
        stage.create("syncsets", &document).await;
        stage.syncset("other", "Sync", &[other]).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.succeeds("west-1", "other", 1).await;
        let found = async || stage.config_maps(plane).await.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
        assert_eq!(found().await, ["old", "one", "other-old"]);
        stage.pause(true).await;
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"site": null}})).await;
        stage.replace_spec("syncsets", "base", &spec(std::slice::from_ref(&named))).await;
        stage.wants("other", &[]).await;
        stage.pause(false).await;
        let is_told = |status: &Value| {
            let entry = &status["syncSets"][0];
            entry["result"] == "Success" || entry["observedGeneration"] == 1
        };
        let status = stage.status("west-1", "the failure", |status| !is_told(status)).await;
        assert_eq!(status["syncSets"][0]["reason"], "TemplateInvalid", "{status}");
        stage.at_rest().await;
        assert_eq!(found().await, ["old", "one", "other-old"], "any of them might be meant");
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"site": "two"}})).await;
        stage.has(plane, &[("two", json!({"a": "1"}))]).await;
    });
}

/// A document that another release or a person has written into the database.
#[test]
fn an_undecodable_syncset_deletes_nothing() {
    run(async {
        let stage = Stage::new("undecodable").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let (a, b) = (stage.config_map("a", &json!({})), stage.config_map("b", &json!({})));
        stage.syncset("base", "Sync", &[a.clone(), b]).await;
        stage.succeeds("west-1", "base", 1).await;
        let text = "update syncsets set generation = generation + 1, \
             data = jsonb_set(data, '{spec}', data->'spec' || '{\"resourceApplyMode\": \"Sideways\", \"resources\": []}')";
        stage.sql.batch_execute(text).await.unwrap();
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"wakes": "1"}})).await;
        let failed = |status: &Value| status["syncSets"][0]["result"] == "Failure";
        let status = stage.status("west-1", "the failure", failed).await;
        assert_eq!(status["syncSets"][0]["reason"], "ResourceInvalid", "{status}");
        stage.full_pass().await;
        let names = async || stage.config_maps(plane).await.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
        assert_eq!(names().await, ["a", "b"]);
        let spec =
            json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync", "resources": [a]});
        stage.replace_spec("syncsets", "base", &spec).await;
        stage.has(plane, &[("a", Value::Null)]).await;
    });
}

/// A kind whose objects are deleted before its definition and the namespace in which they are.
#[test]
fn objects_are_deleted_before_what_they_need() {
    run(async {
        let stage = Stage::shared("ordered", UNGUARDED).await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let within = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "inner", "namespace": "ordered-inner"}});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ordered-inner"}});
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "ordered"}, "rules": []});
        stage.syncset("base", "Sync", &[namespace, role, within]).await;
        stage.succeeds("west-1", "base", 1).await;
        let mut requests = crate::syncsets::requests::Requests::from_now(&stage, plane).await;
        stage.wants("base", &[]).await;
        stage.succeeds("west-1", "base", 2).await;
        let seen = requests.seen().await;
        let deleted: Vec<&str> =
            seen.iter().filter_map(|request| request.strip_prefix("delete ")).map(|of| &of[..of.len() - 4]).collect();
        assert_eq!(deleted, ["configmaps/inner", "clusterroles/ordered", "namespaces/ordered-inner"], "{seen:?}");
    });
}

/// A syncset sends what it wants before it deletes anything, also if what it drops is in a namespace that another one dropped.
#[test]
fn what_a_syncset_wants_is_sent_before_what_it_drops_in_a_namespace_that_goes_is_deleted() {
    run(async {
        let stage = Stage::shared("within", UNGUARDED).await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let inner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "inner", "namespace": "within-inner"}});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "within-inner"}});
        stage.syncset("outer", "Sync", &[namespace]).await;
        stage.succeeds("west-1", "outer", 1).await;
        stage.syncset("base", "Sync", &[inner]).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.pause(true).await;
        stage.remove(&stage.path("syncsets", "outer")).await;
        stage.wants("base", &[stage.config_map("new", &json!({}))]).await;
        let mut requests = crate::syncsets::requests::Requests::from_now(&stage, plane).await;
        stage.pause(false).await;
        stage.succeeds("west-1", "base", 2).await;
        stage
            .status("west-1", "the other one to be gone", |status| status["syncSets"].as_array().unwrap().len() == 1)
            .await;
        let seen = requests.seen().await;
        let written: Vec<&str> =
            seen.iter().filter(|line| !line.starts_with("get ")).map(|line| &line[..line.len() - 4]).collect();
        assert_eq!(
            written,
            ["patch configmaps/new", "delete configmaps/inner", "delete namespaces/within-inner"],
            "{seen:?}"
        );
    });
}
