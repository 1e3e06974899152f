//! Rollouts as the dispatcher moves them, on real clusters, some of which can't have the new content.

use std::time::Duration;

use integration::hub::Request;
use integration::users::ADMIN;
use integration::{ControlPlane, Link, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::chaos::watched::Watched;
use crate::syncsets::commands::file;
use crate::syncsets::health::{confirmed, has, passes, running};
use crate::syncsets::report::metric;
use crate::syncsets::requests::Requests;
use crate::syncsets::world::{Hub, LIMIT, SYNCSETS, Stage, UNGUARDED, WITH_DUPLICATES, run};

const NONE: [String; 0] = [];

/// A `SyncSet` for both clusters, the canary first and then, once it is promoted, the other one.
fn in_waves(resources: &[Value]) -> Value {
    json!({"clusterDeploymentRefs": [{"name": "west-1"}, {"name": "east-1"}], "resourceApplyMode": "Sync", "enableResourceTemplates": true,
        "resources": resources, "rollout": {"waves": [
            {"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}, "pause": true}]}})
}

/// The canary, and the other cluster.
async fn clusters(stage: &Stage) -> (&'static ControlPlane, &'static ControlPlane) {
    let west = stage.register("west-1", &json!({"tier": "canary", "region": "west"}), 0).await;
    let east = stage.register("east-1", &json!({}), 1).await;
    stage.at_rest().await;
    (west, east)
}

async fn create(stage: &Stage, name: &str, spec: &Value) {
    stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
}

/// Waits until the rollout of a syncset is in this state, and gives it.
async fn rolls(stage: &Stage, name: &str, expected: &str, reason: &str) -> Value {
    let path = stage.path("syncsets", name);
    let outcome = eventually(format!("the rollout of {name}"), LIMIT, async || {
        let rollout = stage.get(&format!("{path}/rollout")).await;
        let field = |name: &str| rollout.get(name).and_then(Value::as_str).unwrap_or_default();
        if (field("state"), field("reason")) == (expected, reason) { Ok(rollout) } else { Err(rollout.to_string()) }
    });
    match outcome.await {
        Ok(rollout) => rollout,
        Err(error) => panic!("{error}\n{}", stage.log()),
    }
}

async fn steer(stage: &Stage, name: &str, action: &str) {
    let path = format!("/v1/{}/rollout", stage.path("syncsets", name));
    stage.send(&Request::post(&path, &json!({ "action": action }))).await.success().unwrap();
}

/// As if so much time had passed in which the rollouts of a test ran.
async fn time_passes(stage: &Stage, time: Duration) {
    let text = format!(
        "update towline_rollout set clock = clock + {} where syncset in (select id from syncsets where namespace = '{}')",
        time.as_millis(),
        stage.namespace
    );
    stage.sql.batch_execute(&text).await.unwrap();
}

/// Lets the other cluster have the content that the canary has.
async fn promote(stage: &Stage, name: &str) {
    rolls(stage, name, "Running", "AwaitingPromotion").await;
    steer(stage, name, "promote").await;
    rolls(stage, name, "Complete", "").await;
}

/// All fields of the objects of a test, but what the API server counts and what controllers say.
async fn fields(stage: &Stage, plane: &ControlPlane) -> Vec<Value> {
    let client = plane.client(ADMIN).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), stage.namespace);
    let services: Api<Service> = Api::namespaced(client.clone(), stage.namespace);
    let deployments: Api<Deployment> = Api::namespaced(client, stage.namespace);
    let all = ListParams::default();
    let mut found: Vec<Value> = maps.list(&all).await.unwrap().items.iter().map(|map| json!(map)).collect();
    found.extend(services.list(&all).await.unwrap().items.iter().map(|service| json!(service)));
    found.extend(deployments.list(&all).await.unwrap().items.iter().map(|deployment| json!(deployment)));
    for object in &mut found {
        object.as_object_mut().unwrap().remove("status");
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.retain(|field, _| !matches!(field.as_str(), "resourceVersion" | "generation"));
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("deployment.kubernetes.io/revision");
        }
        let managers = metadata["managedFields"].as_array_mut().unwrap();
        managers.retain(|entry| entry["manager"] != "kube-controller-manager");
        for entry in managers.iter_mut() {
            entry.as_object_mut().unwrap().remove("time");
        }
        managers.sort_by_key(ToString::to_string);
    }
    found
}

/// The same objects without what tells one from another one of its name: one of them was deleted and made again.
fn made_again(objects: &[Value], name: &str) -> Vec<Value> {
    let mut objects = objects.to_vec();
    for object in objects.iter_mut().filter(|object| object["metadata"]["name"] == name) {
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .retain(|field, _| !matches!(field.as_str(), "uid" | "creationTimestamp"));
    }
    objects
}

/// Plays the kubelet of a cluster: pods of the first image run, those of any other one never start.
async fn play_kubelet(stage: &Stage, plane: &ControlPlane) {
    let pods: Api<Pod> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
    loop {
        let found = pods.list(&ListParams::default()).await.map(|found| found.items);
        for pod in found.unwrap_or_default() {
            let image = pod.spec.unwrap().containers.remove(0).image;
            if image.as_deref() == Some("web:1") && pod.status.unwrap().phase.as_deref() != Some("Running") {
                let patch = Patch::Merge(json!({ "status": running("True") }));
                // It may be gone by now.
                drop(pods.patch_status(&pod.metadata.name.unwrap(), &PatchParams::default(), &patch).await);
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// A program with what belongs to it. Of the second release no pod starts.
fn program(stage: &Stage, release: u32) -> Vec<Value> {
    let metadata = |name: &str| json!({"name": name, "namespace": stage.namespace, "labels": {format!("release-{release}"): "yes"}});
    let mut web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata("web"), "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": format!("web:{release}")}]}}}});
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata("web"), "spec": {
        "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]}});
    let site = stage.config_map("site", &json!({"both": format!("{release}"), format!("of-{release}"): "yes"}));
    if release == 1 {
        let more =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("{}-more", stage.namespace)}});
        return vec![web, service, site, stage.config_map("first", &json!({"a": "1"})), more];
    }
    web["spec"]["progressDeadlineSeconds"] = json!(2);
    web["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
    service["spec"]["ports"] = json!([{"name": "http", "port": 80, "targetPort": 8080}, {"name": "more", "port": 81}]);
    vec![web, service, site, stage.config_map("second", &json!({"a": "2"}))]
}

#[test]
fn a_release_of_which_no_pod_starts_on_the_canary_is_taken_back_field_by_field() {
    run(async {
        let stage = Stage::shared("taken-back", SYNCSETS).await;
        let (west, east) = clusters(&stage).await;
        let content = |release: u32| {
            let mut spec = in_waves(&program(&stage, release));
            (spec["health"], spec["rollout"]["onFailure"]) = (json!({"within": "10m"}), json!("rollback"));
            spec
        };
        let story = async {
            create(&stage, "base", &content(1)).await;
            promote(&stage, "base").await;
            confirmed(&stage).await;
            stage.at_rest().await;
            let (before, elsewhere) = (fields(&stage, west).await, fields(&stage, east).await);
            assert_eq!(before.len(), 4, "{before:?}");
            let mut to_east = Requests::from_now(&stage, east).await;

            let path = stage.path("syncsets", "base");
            stage.replace_spec("syncsets", "base", &content(2)).await;
            // It drops a namespace.
            rolls(&stage, "base", "Running", "Held").await;
            stage.change(&path, &json!({"annotations": {"towline.dev/approve-deletions": "2"}})).await;
            has(&stage, "Progressing", json!("ProgressDeadlineExceeded")).await;
            let taken_back = eventually("the failure to be confirmed", LIMIT, async || {
                let rollout = stage.get(&format!("{path}/rollout")).await;
                if rollout["state"] != "Running" {
                    return Ok(());
                }
                passes(&stage, "base", "15 s").await;
                Err(rollout.to_string())
            });
            taken_back.await.unwrap();
            let rolled_back = rolls(&stage, "base", "RolledBack", "").await;
            assert_eq!(rolled_back["message"], "1 of 1 clusters failed in wave canary, where 0 may");
            assert_eq!((&rolled_back["revision"], &rolled_back["newest"]), (&json!(1), &json!(2)), "{rolled_back}");
            let [sent_again, emptied] =
                ["ConfigMap taken-back/first", "Namespace taken-back-more, without what was in it"];
            assert_eq!(rolled_back["sentAgain"], json!([sent_again, emptied]), "{rolled_back}");
            let told = stage.command(&["rollout", "status", "taken-back/base"]).await;
            assert!(told.contains(&format!("sent again where deleted: {sent_again}; {emptied}\n")), "{told}");
            has(&stage, "Current", Value::Null).await;
            stage.at_rest().await;
            let after = fields(&stage, west).await;
            assert_eq!(made_again(&after, "first"), made_again(&before, "first"));
            assert_ne!(after, before, "what the second release had dropped was deleted");
            assert_eq!(fields(&stage, east).await, elsewhere);
            assert_eq!(to_east.seen().await, NONE, "its turn never came");
        };
        tokio::select! {
            () = story => {}
            () = play_kubelet(&stage, west) => {}
            () = play_kubelet(&stage, east) => {}
        }
    });
}

#[test]
fn a_change_that_breaks_the_canary_reaches_nobody_else_and_is_undone() {
    run(async {
        let stage = Stage::shared("waves", SYNCSETS).await;
        let (west, east) = clusters(&stage).await;
        let map = |value: &str| stage.config_map("a", &json!({ "a": value }));
        let has = |value: &str| [("a", json!({ "a": value }))];
        let mut to_east = Requests::from_now(&stage, east).await;
        create(&stage, "base", &in_waves(&[map("1")])).await;
        rolls(&stage, "base", "Running", "AwaitingPromotion").await;
        stage.has(west, &has("1")).await;
        assert_eq!(to_east.seen().await, NONE, "of the first content it gets nothing before its turn");
        promote(&stage, "base").await;
        stage.has(east, &has("1")).await;
        stage.at_rest().await;
        let before = fields(&stage, west).await;
        to_east.seen().await;

        let broken = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b", "namespace": "waves"},
            "spec": {"ports": [{"port": 80}], "sessionAffinty": "None"}});
        stage.replace_spec("syncsets", "base", &in_waves(&[map("2"), broken])).await;
        let stopped = rolls(&stage, "base", "Stopped", "Failures").await;
        assert_eq!((&stopped["waves"][0]["failed"], &stopped["stable"]), (&json!(1), &json!(1)), "{stopped}");
        stage.has(west, &has("2")).await;
        steer(&stage, "base", "undo").await;
        rolls(&stage, "base", "RolledBack", "").await;
        assert_eq!(fields(&stage, west).await, before);
        assert_eq!(to_east.seen().await, NONE, "it never had it");
    });
}

/// The dispatcher is killed, and another one takes over at once.
async fn kill_dispatcher(stage: &mut Stage) {
    let leader = "select holder from towline_claim where name = 'dispatcher'";
    let holder: String = stage.sql.query_one(leader, &[]).await.unwrap().get(0);
    let Hub { sql, replicas, .. } = &mut **stage;
    let mut killed = 0;
    for replica in replicas {
        if replica.towline().admin().section("hub").await.unwrap()["holder"] == holder {
            replica.start_again().await.unwrap();
            // Otherwise half a minute passes until there is another one.
            let end = "update towline_claim set until = now() where name = 'dispatcher' and holder = $1";
            sql.execute(end, &[&holder]).await.unwrap();
            replica.wait_ready(LIMIT).await.unwrap();
            killed += 1;
        }
    }
    assert_eq!(killed, 1, "{holder}");
}

async fn written_to(edges: &mut [Requests; 2]) -> Vec<String> {
    [edges[0].written().await, edges[1].written().await].concat()
}

/// Of six clusters, half on each edge, the first one is the canary. Between the first two waves the dispatcher is killed, and in the midst of a
/// wave it is another one's turn.
#[test]
fn a_revision_is_written_once_to_each_cluster_through_all_waves_whoever_dispatches_and_a_diff_says_who_lacks_what() {
    run(async {
        let mut stage = Stage::with("wave-once", WITH_DUPLICATES, 2).await;
        let names: Vec<String> = (0..6).map(|number| format!("c{number}")).collect();
        let mut planes = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let tier = if number == 0 { "canary" } else { "other" };
            planes.push(stage.register(name, &json!({"tier": tier, "name": name}), number % 2).await);
        }
        let content = |changed: &str, other: &str| {
            let map = |name: &str, value: &str| {
                stage.config_map(&format!("{{{{ fromCDLabel \"name\" }}}}-{name}"), &json!({ "a": value }))
            };
            let references: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
            let canary = json!({"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}, "soak": "1s", "pause": true});
            json!({"clusterDeploymentRefs": references, "resourceApplyMode": "Sync", "enableResourceTemplates": true, "health": {},
                "resources": [map("changed", changed), map("kept", "1"), map(other, "1")],
                "rollout": {"maxConcurrent": 2, "waves": [canary, {"name": "half", "percent": 50}]}})
        };
        let (first, second) = (content("1", "dropped"), content("2", "added"));
        create(&stage, "base", &first).await;
        promote(&stage, "base").await;
        confirmed(&stage).await;
        stage.at_rest().await;
        let mut requests = [Requests::from_now(&stage, planes[0]).await, Requests::from_now(&stage, planes[1]).await];

        stage.replace_spec("syncsets", "base", &second).await;
        rolls(&stage, "base", "Running", "AwaitingPromotion").await;
        metric(&stage, "towline_syncset_rollouts{state=\"running\"} 1", true).await;
        stage.at_rest().await;
        let mut written = written_to(&mut requests).await;
        assert!(written.iter().all(|request| request.contains(" c0-")), "{written:?}");
        for (spec, on_canary, on_others) in [(&second, 0, 1), (&first, 1, 0)] {
            let proposed = json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "base", "spec": spec});
            let document = file("wave-once-diff", &proposed).display().to_string();
            let told = stage.command(&["diff", "-f", &document, "--all"]).await;
            assert!(told.contains("a change goes through its clusters in waves: canary, half, rest"), "{told}");
            for name in &names {
                let count = if name == "c0" { on_canary } else { on_others };
                let line = format!("wave-once/{name}  create {count}  change {count}  delete {count}  conflict 0");
                assert!(told.contains(&line), "no {line} in {told}");
            }
        }

        kill_dispatcher(&mut stage).await;
        steer(&stage, "base", "promote").await;
        let further = "select count(*) from towline_turn where wave > 0";
        eventually("a cluster of a further wave to be released", LIMIT, async || {
            let released: i64 = stage.sql.query_one(further, &[]).await.map_err(|error| error.to_string())?.get(0);
            if released > 0 { Ok(()) } else { Err("none is".to_owned()) }
        })
        .await
        .unwrap();
        let another =
            "update towline_claim set holder = null, token = token + 1, until = now() where name = 'dispatcher'";
        stage.sql.batch_execute(another).await.unwrap();
        rolls(&stage, "base", "Complete", "").await;
        metric(&stage, "towline_syncset_rollouts{state=\"complete\"} 1", true).await;
        confirmed(&stage).await;
        stage.at_rest().await;
        stage.full_pass().await;
        written.extend(written_to(&mut requests).await);
        written.sort_unstable();
        let each = |name: &String| {
            [("delete", "dropped"), ("patch", "added"), ("patch", "changed")]
                .map(|(verb, of)| format!("{verb} {name}-{of}"))
        };
        let mut once: Vec<String> = names.iter().flat_map(each).collect();
        once.sort_unstable();
        assert_eq!(written, once);
    });
}

#[test]
fn a_template_that_fails_on_one_cluster_stops_the_rollout_there_and_changes_nothing_on_it() {
    run(async {
        let stage = Stage::shared("wave-templates", SYNCSETS).await;
        let (west, east) = clusters(&stage).await;
        let map = |name: &str, value: &str| stage.config_map(name, &json!({ "a": value }));
        create(&stage, "base", &in_waves(&[map("a", "1"), map("dropped", "1")])).await;
        promote(&stage, "base").await;
        let (before, mut to_east) = (fields(&stage, east).await, Requests::from_now(&stage, east).await);

        let named_by_label = map("{{ fromCDLabel \"region\" }}", "2");
        stage.replace_spec("syncsets", "base", &in_waves(&[map("a", "2"), named_by_label])).await;
        rolls(&stage, "base", "Running", "AwaitingPromotion").await;
        let has = |region: &'static str| [("a", json!({"a": "2"})), (region, json!({"a": "2"}))];
        stage.has(west, &has("west")).await;
        steer(&stage, "base", "promote").await;
        let stopped = rolls(&stage, "base", "Stopped", "Failures").await;
        assert_eq!(stopped["message"], "1 of 1 clusters failed in wave rest, where 0 may");
        let failed = |status: &Value| status["syncSets"][0]["reason"] == "TemplateInvalid";
        stage.status("east-1", "a template that fails", failed).await;
        assert_eq!(fields(&stage, east).await, before);
        assert_eq!(to_east.seen().await, NONE, "nothing of it is sent, and nothing deleted");

        // What was missing is added: the cluster recovers, and nobody has to be asked twice.
        stage.change(&stage.path("clusters", "east-1"), &json!({"labels": {"region": "east"}})).await;
        steer(&stage, "base", "resume").await;
        rolls(&stage, "base", "Complete", "").await;
        stage.has(east, &has("east")).await;
    });
}

#[test]
fn an_object_that_two_syncsets_hand_over_by_rollouts_of_both_is_never_absent() {
    run(async {
        let stage = Stage::shared("wave-shared", UNGUARDED).await;
        let (west, east) = clusters(&stage).await;
        let of = |syncset: &str, value: &str, has_it: bool| {
            let map = |name: &str| stage.config_map(name, &json!({ "by": syncset, "a": value }));
            let names = if has_it { vec![syncset, "shared"] } else { vec![syncset] };
            in_waves(&names.into_iter().map(map).collect::<Vec<_>>())
        };
        let content = |syncset: &str, value: &str| json!({"by": syncset, "a": value});
        let has = async |plane, one: &str, shared: (&str, &str), two: &str| {
            let maps =
                [("one", content("one", one)), ("shared", content(shared.0, shared.1)), ("two", content("two", two))];
            stage.has(plane, &maps).await;
        };
        for (name, has_it) in [("one", true), ("two", false)] {
            create(&stage, name, &of(name, "1", has_it)).await;
            promote(&stage, name).await;
        }
        has(east, "1", ("one", "1"), "1").await;
        let watched = Watched::start().await;

        // It goes to the other one, whose rollout comes later on this cluster.
        stage.replace_spec("syncsets", "two", &of("two", "2", true)).await;
        stage.replace_spec("syncsets", "one", &of("one", "2", false)).await;
        promote(&stage, "one").await;
        rolls(&stage, "two", "Running", "AwaitingPromotion").await;
        has(west, "2", ("two", "2"), "2").await;
        has(east, "2", ("one", "1"), "1").await;
        let told = stage.explained("east-1", &format!("ConfigMap/{}/shared", stage.namespace)).await;
        assert!(told.contains("if dropped kept for now: a rollout is about to want it"), "{told}");
        let drops =
            json!({"kind": "SyncSet", "namespace": stage.namespace, "name": "one", "spec": of("one", "2", false)});
        let told = stage.compared(&drops).await;
        assert!(told.contains("it stays, since a rollout is about to want it"), "{told}");
        assert!(told.contains(&format!("{}/east-1  create 0  change 0  delete 0", stage.namespace)), "{told}");
        promote(&stage, "two").await;
        has(east, "2", ("two", "2"), "2").await;

        // Back again, of which both are undone once the canary has it.
        stage.replace_spec("syncsets", "one", &of("one", "3", true)).await;
        stage.replace_spec("syncsets", "two", &of("two", "3", false)).await;
        for name in ["one", "two"] {
            rolls(&stage, name, "Running", "AwaitingPromotion").await;
        }
        has(west, "3", ("one", "3"), "3").await;
        has(east, "2", ("two", "2"), "2").await;
        for name in ["two", "one"] {
            steer(&stage, name, "undo").await;
        }
        for name in ["two", "one"] {
            rolls(&stage, name, "RolledBack", "").await;
        }
        has(west, "2", ("two", "2"), "2").await;
        stage.full_pass().await;
        has(east, "2", ("two", "2"), "2").await;
        let vanished: Vec<_> = watched.vanished().into_values().filter(|(of, _)| of == stage.namespace).collect();
        assert!(vanished.is_empty(), "{vanished:?}");
    });
}

/// The label decides: with a rule of its own, a `ConfigMap` has failed that somebody calls broken.
#[test]
fn the_next_wave_begins_after_a_soak_and_a_fresh_reading_and_never_if_something_has_failed_by_then() {
    run(async {
        let stage = Stage::shared("wave-soaks", SYNCSETS).await;
        let (west, east) = clusters(&stage).await;
        let content = |value: &str| {
            let mut map = stage.config_map("a", &json!({ "a": value }));
            map["metadata"]["labels"] = json!({"works": "yes"});
            let mut spec = in_waves(&[map]);
            spec["rollout"]["waves"][0] =
                json!({"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}, "soak": "1h"});
            spec["health"] = json!({"rules": [{"group": "", "kind": "ConfigMap", "current": "metadata.labels.works == 'yes'",
                "failed": "metadata.labels.broken == 'yes'"}]});
            spec
        };
        let has = |value: &str| [("a", json!({ "a": value }))];
        create(&stage, "base", &content("1")).await;
        rolls(&stage, "base", "Running", "Soaking").await;
        confirmed(&stage).await;
        stage.at_rest().await;
        let (mut to_west, mut to_east) =
            (Requests::from_now(&stage, west).await, Requests::from_now(&stage, east).await);
        rolls(&stage, "base", "Running", "Soaking").await;
        assert_eq!((to_west.seen().await, to_east.seen().await), (Vec::from(NONE), Vec::from(NONE)), "it soaks");
        time_passes(&stage, Duration::from_hours(1)).await;
        rolls(&stage, "base", "Complete", "").await;
        stage.has(east, &has("1")).await;
        let reread = to_west.seen().await;
        assert!(reread.iter().any(|request| request.contains("configmaps")), "it is read once more: {reread:?}");

        stage.replace_spec("syncsets", "base", &content("2")).await;
        rolls(&stage, "base", "Running", "Soaking").await;
        stage.has(west, &has("2")).await;
        to_east.seen().await;
        let maps: Api<ConfigMap> = Api::namespaced(west.client(ADMIN).await.unwrap(), stage.namespace);
        let broken = Patch::Merge(json!({"metadata": {"labels": {"broken": "yes"}}}));
        maps.patch("a", &PatchParams::default(), &broken).await.unwrap();
        time_passes(&stage, Duration::from_hours(1)).await;
        let path = stage.path("syncsets", "base");
        let stopped = eventually("the failure to be confirmed", LIMIT, async || {
            let rollout = stage.get(&format!("{path}/rollout")).await;
            if rollout["state"] != "Running" {
                return Ok(());
            }
            passes(&stage, "base", "15 s").await;
            Err(rollout.to_string())
        });
        stopped.await.unwrap();
        let stopped = rolls(&stage, "base", "Stopped", "Failures").await;
        assert_eq!(stopped["message"], "1 of 1 clusters failed in wave canary, where 0 may");
        stage.has(east, &has("1")).await;
        assert_eq!(to_east.seen().await, NONE, "its wave never came");
    });
}

/// What it was sent may be why it is silent.
#[test]
fn a_cluster_whose_answer_to_the_change_is_lost_keeps_its_place_and_stops_the_rollout() {
    run(async {
        let stage = Stage::shared("wave-cut-off", SYNCSETS).await;
        let (west, east) = clusters(&stage).await;
        let link = Link::to(west.address()).await.unwrap();
        let kubeconfig = stage.kubeconfig(west, link.address()).to_string();
        stage.change(&stage.path("clusters", "west-1"), &json!({ "kubeconfig": kubeconfig })).await;
        let content = |value: &str| {
            let mut spec = in_waves(&[stage.config_map("a", &json!({ "a": value }))]);
            spec["rollout"]["waves"] = json!([]);
            spec["rollout"]["maxConcurrent"] = json!(1);
            spec
        };
        let has = |value: &str| [("a", json!({ "a": value }))];
        create(&stage, "base", &content("1")).await;
        rolls(&stage, "base", "Complete", "").await;
        stage.at_rest().await;
        // East has it first, or after west.
        link.mute();
        stage.replace_spec("syncsets", "base", &content("2")).await;
        stage.has(west, &has("2")).await;
        stage.unreachable("west-1").await;
        let running = rolls(&stage, "base", "Running", "Releasing").await;
        let wave = &running["waves"][0];
        assert_eq!((&wave["away"], &wave["failed"]), (&json!(0), &json!(0)), "{running}");
        let under_way = wave["released"].as_u64().unwrap() - wave["done"].as_u64().unwrap();
        assert_eq!(under_way, 1, "it keeps its place: {running}");
        time_passes(&stage, Duration::from_mins(10)).await;
        let stopped = rolls(&stage, "base", "Stopped", "Failures").await;
        assert_eq!(stopped["message"], "1 of 2 clusters failed in wave rest, where 0 may");
        // Once it is heard again, it is done.
        link.hang_up();
        steer(&stage, "base", "resume").await;
        rolls(&stage, "base", "Complete", "").await;
        stage.has(west, &has("2")).await;
        stage.has(east, &has("2")).await;
    });
}

/// As of a data centre that is down, while others have the change already.
#[test]
fn a_cluster_that_was_silent_in_its_turn_does_not_get_what_was_paused_meanwhile_until_that_is_resumed() {
    run(async {
        let stage = Stage::shared("wave-outage", SYNCSETS).await;
        let (west, east) = clusters(&stage).await;
        let link = Link::to(east.address()).await.unwrap();
        let kubeconfig = stage.kubeconfig(east, link.address()).to_string();
        stage.change(&stage.path("clusters", "east-1"), &json!({ "kubeconfig": kubeconfig })).await;
        let content = |names: &[&str]| {
            let maps: Vec<Value> = names.iter().map(|name| stage.config_map(name, &json!({"a": "1"}))).collect();
            let mut spec = in_waves(&maps);
            (spec["rollout"]["waves"], spec["rollout"]["maxConcurrent"]) = (json!([]), json!(2));
            spec
        };
        let has = |name: &'static str| (name, json!({"a": "1"}));
        create(&stage, "base", &content(&["a"])).await;
        rolls(&stage, "base", "Complete", "").await;
        stage.at_rest().await;
        // An object that is new is looked at before it is written.
        link.mute();
        stage.replace_spec("syncsets", "base", &content(&["a", "b"])).await;
        stage.has(west, &[has("a"), has("b")]).await;
        steer(&stage, "base", "pause").await;
        rolls(&stage, "base", "Stopped", "Paused").await;
        stage.unreachable("east-1").await;
        link.hang_up();
        let answers = |status: &Value| {
            let conditions = status["conditions"].as_array();
            conditions.into_iter().flatten().any(|of| of["type"] == "Unreachable" && of["status"] == "False")
        };
        stage.status("east-1", "the cluster to answer again", answers).await;
        stage.at_rest().await;
        stage.has(east, &[has("a")]).await;
        steer(&stage, "base", "resume").await;
        rolls(&stage, "base", "Complete", "").await;
        stage.has(east, &[has("a"), has("b")]).await;
    });
}

/// The rollout was paused meanwhile, so that its time stood still.
#[test]
fn an_object_that_becomes_current_after_it_was_late_is_read_again_since_a_rollout_waits_for_it() {
    run(async {
        let stage = Stage::shared("wave-late", SYNCSETS).await;
        let (west, _) = clusters(&stage).await;
        let mut spec = in_waves(&[stage.config_map("a", &json!({"a": "1"}))]);
        spec["health"] = json!({"within": "10m",
            "rules": [{"group": "", "kind": "ConfigMap", "current": "metadata.labels.works == 'yes'"}]});
        create(&stage, "base", &spec).await;
        rolls(&stage, "base", "Running", "Releasing").await;
        has(&stage, "Progressing", json!("NotCurrent")).await;
        steer(&stage, "base", "pause").await;
        let late = eventually("the object to be late", LIMIT, async || {
            let health =
                stage.get(&stage.path("clustersyncs", "west-1")).await["status"]["syncSets"][0]["health"].clone();
            if health["reason"] == "Late" {
                return Ok(());
            }
            passes(&stage, "base", "10 min").await;
            Err(health.to_string())
        });
        late.await.unwrap();
        stage.at_rest().await;
        let maps: Api<ConfigMap> = Api::namespaced(west.client(ADMIN).await.unwrap(), stage.namespace);
        let works = Patch::Merge(json!({"metadata": {"labels": {"works": "yes"}}}));
        maps.patch("a", &PatchParams::default(), &works).await.unwrap();
        let text = "update towline_result set health = health || jsonb_build_object('read', (health->>'read')::timestamptz - interval '1 min') \
            where health is not null";
        stage.sql.batch_execute(text).await.unwrap();
        steer(&stage, "base", "resume").await;
        rolls(&stage, "base", "Running", "AwaitingPromotion").await;
    });
}
