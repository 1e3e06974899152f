//! Nothing that the daemon writes on its own account is repeated without bound.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::TryStreamExt;
use integration::audit::Record;
use integration::rbac::{Grant, Side};
use integration::{Filter, eventually, users};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::rules_world::*;

fn secrets() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Secret"))
}

fn pods_of(name: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": name, "image": "example.com/x:1"}]},
    })
}

fn deployment(name: &str) -> Value {
    json!({"spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": pods_of(name)}})
}

/// Waits until the generations that are noted on the remote object are those of the two objects.
async fn noted(section: &Place, name: &str) {
    eventually(format!("the generations of {name} to be noted"), LIMIT, async || {
        let remote = section.remote("a").get(name).await.map_err(|error| error.to_string())?;
        let local = section.local("a").get(name).await.map_err(|error| error.to_string())?;
        let note = |side: &str| remote.annotations().get(&mark(&format!("sync-{side}-generation"))).cloned();
        let of = |object: &DynamicObject| object.metadata.generation.map(|generation| generation.to_string());
        let (found, wanted) = ([note("remote"), note("local")], [of(&remote), of(&local)]);
        if found == wanted { Ok(()) } else { Err(format!("{found:?} instead of {wanted:?}")) }
    })
    .await
    .unwrap();
}

#[test]
fn the_generations_of_a_deployment_are_noted_once_for_each_change() {
    run(async {
        let section = Place::shared("deployed", deployments()).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "web", &deployment("web")).await;
        section.local_has("a", "web", |_| true).await;
        noted(&section, "web").await;
        section.quiet_with(&deployment("messenger")).await;
        noted(&section, "web").await;
        // The hub runs the controller of Deployments, too: the status is its own.
        let status = section.remote("a").get("web").await.unwrap().data["status"].clone();
        let writes = async |since| section.counted("a", since).await;
        let since = section.mark().await;
        section.quiet().await;
        assert_eq!(writes(since).await, (counts([]), counts([])), "it rests");
        let before = section.remote("a").get("web").await.unwrap().metadata.generation.unwrap();
        for replicas in [2, 3] {
            let since = section.mark().await;
            section.patch_remote("a", "web", &json!({"spec": {"replicas": replicas}})).await;
            section.local_has("a", "web", |local| local.data["spec"]["replicas"] == replicas).await;
            noted(&section, "web").await;
            section.quiet().await;
            let expected = (counts([("patch deployments", 1)]), counts([("patch deployments", 1)]));
            assert_eq!(writes(since).await, expected, "{replicas} replicas");
        }
        let after = section.remote("a").get("web").await.unwrap().metadata.generation.unwrap();
        assert_eq!(after - before, 4, "two changes and two notes");
        assert!(status["observedGeneration"].as_i64().is_some_and(|generation| generation >= 1), "{status}");
        let is_own = |status: &Value| status["replicas"] == 3 && status["observedGeneration"] == after;
        section.remote_has("a", "web", |remote| is_own(&remote.data["status"])).await;
        section.local_has("a", "web", |local| local.data["status"]["replicas"] == 3).await;
    });
}

#[test]
fn of_the_built_in_kinds_annotations_raise_the_generation_of_deployments_alone() {
    run(async {
        let world = world().await;
        let client = world.hub.client(users::HUB_USER).await.unwrap();
        make_namespace(&client, "generations", &json!({})).await;
        let selector = json!({"matchLabels": {"app": "x"}});
        let with_pods = |more: Value| {
            let mut spec = json!({"selector": selector, "template": pods_of("x")});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"spec": spec})
        };
        let job = json!({"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "x", "image": "example.com/x:1"}],
        }}});
        let backend = json!({"service": {"name": "x", "port": {"number": 80}}});
        let mut raised = BTreeSet::new();
        for (group, kind, content) in [
            ("apps", "Deployment", with_pods(json!({"replicas": 0}))),
            ("apps", "ReplicaSet", with_pods(json!({"replicas": 0}))),
            ("apps", "StatefulSet", with_pods(json!({"replicas": 0, "serviceName": "x"}))),
            ("apps", "DaemonSet", with_pods(json!({}))),
            ("batch", "Job", json!({"spec": job})),
            ("batch", "CronJob", json!({"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job}}})),
            ("policy", "PodDisruptionBudget", json!({"spec": {"minAvailable": 1, "selector": selector}})),
            ("networking.k8s.io", "Ingress", json!({"spec": {"defaultBackend": backend}})),
            ("networking.k8s.io", "NetworkPolicy", json!({"spec": {"podSelector": {}}})),
        ] {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "generations", &resource);
            let mut object = json!({"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": "x"}});
            object.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
            api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
            let annotate = async |value: &str| {
                let patch = json!({"metadata": {"annotations": {"example.com/note": value}}});
                let patched = api.patch("x", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
                patched.metadata.generation.unwrap()
            };
            // The second of two, since a controller may have changed the object before the first.
            annotate("first").await;
            let mut before = annotate("second").await;
            let mut after = annotate("third").await;
            if after > before && kind != "Deployment" {
                (before, after) = (after, annotate("fourth").await);
            }
            if after > before {
                raised.insert(kind);
            }
        }
        assert_eq!(raised, BTreeSet::from(["Deployment"]));
    });
}

/// Deletes an object whenever it is there.
async fn keep_deleting(api: Api<DynamicObject>, name: &str) {
    loop {
        let selector = WatchParams::default().fields(&format!("metadata.name={name}"));
        let Ok(events) = api.watch(&selector, "0").await else { continue };
        let mut events = std::pin::pin!(events);
        while let Ok(Some(event)) = events.try_next().await {
            if let WatchEvent::Added(_) = event {
                drop(api.delete(name, &DeleteParams::background()).await);
            }
        }
    }
}

#[test]
fn a_copy_that_somebody_keeps_deleting_is_made_again_slowly_and_told() {
    run(async {
        let section = Section::start("deleted", databases(), "").await;
        section.make_namespaces("a").await;
        section.quiet().await;
        let since = section.mark().await;
        let local = section.local("a");
        let deleter = tokio::spawn(async move { keep_deleting(local, "orders").await });
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
        let created = async || {
            let (_, edge) = section.counted("a", since).await;
            edge.get("create databases").copied().unwrap_or_default()
        };
        eventually("four copies", LIMIT, async || {
            let seen = created().await;
            if seen >= 4 { Ok(()) } else { Err(seen.to_string()) }
        })
        .await
        .unwrap();
        section.quiet().await;
        assert_eq!(created().await, 4, "the first, and three at once");
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.contains("a client of cluster edge keeps deleting the object"), "{note}");
        section
            .report_has("who keeps deleting it", |report| {
                let first = &report["not_in_step"][0];
                report["objects"]["pending"] == json!(1)
                    && first["key"].as_str().is_some_and(|key| key.contains("orders"))
                    && first["cause"] == json!("a client of cluster edge keeps deleting the object")
            })
            .await;
        let rewrites = series(&section, "towline_sync_contended_fields_total", "section=\"deleted\"").await;
        assert_eq!(rewrites.as_deref(), Some("3"));
        // A new order is no repetition.
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "2Gi"}})).await;
        eventually("a copy of the new order", Duration::from_secs(20), async || {
            let seen = created().await;
            if seen == 5 { Ok(()) } else { Err(seen.to_string()) }
        })
        .await
        .unwrap();
        deleter.abort();
        section.local_has("a", "orders", |local| local.data["spec"]["storage"] == "2Gi").await;
        section.in_step().await;
        assert_eq!(section.events("a", "orders").await, counts([("Contended", 1)]), "told once");
    });
}

/// The section writes its state only when it changes, so nobody who undoes it makes it write.
#[test]
fn a_stored_state_that_somebody_keeps_undoing_is_written_once_for_each_change_and_told() {
    run(async {
        let name = "state-undone";
        let section = Section::start(name, databases(), "unclaimed = \"delete\"").await;
        section.make_namespaces("a").await;
        let content = json!({"spec": {"engine": "postgres-17"}});
        for number in 0..8 {
            section.make_remote("a", &format!("orders-{number}"), &content).await;
        }
        section.in_step().await;
        section.settings_noted(name).await;
        section.quiet().await;
        let state = format!("towline-{name}");
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        let states: Api<DynamicObject> = Api::namespaced_with(admin(&section.world.edge).await, "default", &kind);
        let since = section.mark().await.1;
        let written = async || {
            let about = |record: &Record| record.resource == "configmaps" && record.name == state;
            count(&section.world.edge, since, about).await
        };
        // The guard counts the deletion of an object that the remote does not have, and remembers that before it is sent.
        let change = async |number: usize| {
            let name = format!("stray-{number}");
            section.make_local("a", &name, &content).await;
            section.local_gone("a", &name).await;
        };
        let (api, victim) = (states.clone(), state.clone());
        let deleter = tokio::spawn(async move { keep_deleting(api, &victim).await });
        gone(&states, "the state", &state).await;
        for number in 0..3 {
            change(number).await;
            gone(&states, "the state", &state).await;
        }
        section.quiet().await;
        let expected = counts([("patch configmaps", 3), ("get configmaps", 3), ("create configmaps", 3)]);
        assert_eq!(written().await, expected, "each change is refused once, and then written");
        deleter.abort();
        // An earlier state in its place is the same.
        change(3).await;
        let earlier = states.get(&state).await.unwrap();
        change(4).await;
        let back = Patch::Merge(json!({"data": earlier.data["data"]}));
        states.patch(&state, &PatchParams::default(), &back).await.unwrap();
        change(5).await;
        section.quiet().await;
        let expected = counts([("patch configmaps", 7), ("get configmaps", 5), ("create configmaps", 4)]);
        assert_eq!(written().await, expected, "only what somebody has undone is read again");
        section
            .report_has("how often its state was undone", |report| {
                let stored = &report["stored_state"];
                (&stored["undone"], &stored["state"]) == (&json!(5), &json!("stored"))
            })
            .await;
        let log = section.towline.log().unwrap();
        let told: Vec<&str> = log.lines().filter(|line| line.contains("somebody has changed or deleted")).collect();
        assert!(told.len() == 1 && told[0].contains("WARN") && told[0].contains(&state), "{told:?}");
    });
}

/// Makes an object whenever it is gone.
async fn keep_making(api: Api<DynamicObject>, object: DynamicObject) {
    let name = object.name_any();
    loop {
        drop(api.create(&PostParams::default(), &object).await);
        let selector = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(5);
        let Ok(events) = api.watch(&selector, "0").await else { continue };
        let mut events = std::pin::pin!(events);
        while let Ok(Some(event)) = events.try_next().await {
            if let WatchEvent::Deleted(_) = event {
                break;
            }
        }
    }
}

/// Puts an object of its own in the place of one that has the daemon's marks.
async fn keep_replacing(api: Api<DynamicObject>, own: DynamicObject) {
    let name = own.name_any();
    loop {
        let selector = WatchParams::default().fields(&format!("metadata.name={name}"));
        let Ok(events) = api.watch(&selector, "0").await else { continue };
        let mut events = std::pin::pin!(events);
        while let Ok(Some(event)) = events.try_next().await {
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event
                && object.annotations().contains_key(&mark("sync-remote-uid"))
            {
                drop(api.delete(&name, &DeleteParams::background()).await);
                drop(api.create(&PostParams::default(), &own).await);
            }
        }
    }
}

#[test]
fn an_object_that_somebody_keeps_replacing_is_taken_over_slowly_and_told() {
    run(async {
        let section = Section::start("replaced", databases(), "adopt = \"always\"").await;
        section.make_namespaces("a").await;
        section.quiet().await;
        let content = json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}});
        section.make_local("a", "orders", &content).await;
        let since = section.mark().await;
        let (local, own) = (section.local("a"), section.object("orders", &content));
        let replacer = tokio::spawn(async move { keep_replacing(local, own).await });
        section.make_remote("a", "orders", &content).await;
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.contains("cluster edge keeps "), "{note}");
        section.quiet().await;
        let (hub, edge) = section.counted("a", since).await;
        // The adoption, the creation, the marks and the content are each written at most four times before they are slowed
        // down, and once or twice since. A creation that comes too late is refused.
        let sent: usize = edge.iter().filter(|(request, _)| !request.starts_with("get ")).map(|(_, count)| count).sum();
        assert!(sent <= 40, "{edge:?}");
        assert!(hub.values().sum::<usize>() <= 20, "{hub:?}");
        replacer.abort();
        section.in_step().await;
    });
}

#[test]
fn a_deletion_that_somebody_keeps_undoing_is_slowed_told_once_and_keeps_its_age() {
    run(async {
        let section = Section::start("remade", databases(), "unclaimed = \"delete\"").await;
        section.make_namespaces("a").await;
        section.quiet().await;
        let since = section.mark().await.1;
        let (local, object) = (section.local("a"), section.object("orders", &json!({"spec": {"engine": "mysql-8"}})));
        let maker = tokio::spawn(async move { keep_making(local, object).await });
        let namespace = section.local_namespace("a");
        let deleted = async || {
            let edge = count(&section.world.edge, since, |record| record.namespace == namespace).await;
            edge.get("delete databases").copied().unwrap_or_default()
        };
        let reach = async |count: usize| {
            eventually(format!("{count} deletions"), Duration::from_mins(2), async || {
                let seen = deleted().await;
                if seen >= count { Ok(()) } else { Err(seen.to_string()) }
            })
            .await
            .unwrap();
        };
        reach(4).await;
        section.quiet().await;
        assert_eq!(deleted().await, 4, "the first, and three at once");
        let deed = "a client of cluster edge keeps undoing the step delete_local";
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.starts_with(deed), "{note}");
        reach(5).await;
        section
            .report_has("the cause, and the age since the first of them", |report| {
                let listed = &report["not_in_step"][0];
                report["objects"]["pending"] == json!(1)
                    && listed["cause"] == json!(deed)
                    && listed["for_seconds"].as_u64().is_some_and(|age| age >= 25)
                    && report["oldest_unsynced_seconds"]["spec"].as_f64().is_some_and(|age| age >= 25.0)
            })
            .await;
        maker.abort();
        section.local_gone("a", "orders").await;
        assert_eq!(section.events("a", "orders").await, counts([("Contended", 1)]), "told once");
        let log = section.towline.log().unwrap();
        let told = log.lines().filter(|line| line.contains("another writer") && line.contains(deed)).count();
        assert_eq!(told, 1, "logged once");
    });
}

/// Has the edge refuse the daemon's changes of an object for one of two reasons, by the object's label.
async fn refuse_by_mood(section: &Section) -> String {
    let name = format!("mood-{}", section.name);
    let refused = |mood: &str, reason: &str| {
        json!({
            "expression": format!("!has(oldObject.metadata.labels) || !('mood' in oldObject.metadata.labels) || \
                                   oldObject.metadata.labels['mood'] != '{mood}'"),
            "message": format!("the mood is {mood}"), "reason": reason,
        })
    };
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": ["demo.towline.dev"], "apiVersions": ["v1"],
                "operations": ["UPDATE"], "resources": ["databases"]}]},
            "matchConditions": [
                {"name": "here", "expression": format!("object.metadata.namespace == '{}'", section.local_namespace("a"))},
                {"name": "daemon", "expression": format!("request.userInfo.username == '{}'", users::TOWLINE)},
            ],
            "validations": [refused("bad", "Forbidden"), refused("worse", "Invalid")],
        },
    }))
    .unwrap();
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
    }))
    .unwrap();
    Api::all(section.edge.clone()).create(&PostParams::default(), &policy).await.unwrap();
    Api::all(section.edge.clone()).create(&PostParams::default(), &binding).await.unwrap();
    let client = section.world.edge.client(users::TOWLINE).await.unwrap();
    let daemon: Api<DynamicObject> = Api::namespaced_with(client, &section.local_namespace("a"), &section.kind);
    eventually("the edge to refuse", LIMIT, async || {
        let trial = Patch::Merge(json!({"metadata": {"annotations": {"example.com/trial": "yes"}}}));
        match daemon.patch("orders", &PatchParams { dry_run: true, ..PatchParams::default() }, &trial).await {
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    name
}

#[test]
fn two_refusals_that_take_turns_are_noted_slowly_and_told() {
    run(async {
        let section = Section::start("refused-turns", databases(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
        section.in_step().await;
        noted(&section, "orders").await;
        let mood = |mood: Option<&str>| json!({"metadata": {"labels": {"mood": mood}}});
        section.patch_local("a", "orders", &mood(Some("bad"))).await;
        let policy = refuse_by_mood(&section).await;
        let since = section.mark().await;
        // As soon as one reason is noted, the other one counts.
        let (remote, local) = (section.remote("a"), section.local("a"));
        let (bad, worse) = (mood(Some("bad")), mood(Some("worse")));
        let turner = tokio::spawn(async move {
            loop {
                let selector = WatchParams::default().fields("metadata.name=orders");
                let Ok(events) = remote.watch(&selector, "0").await else { continue };
                let mut events = std::pin::pin!(events);
                while let Ok(Some(event)) = events.try_next().await {
                    if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event
                        && let Some(error) = object.annotations().get(&mark("sync-error"))
                    {
                        let next = if error.ends_with("worse") { &bad } else { &worse };
                        drop(local.patch("orders", &PatchParams::default(), &Patch::Merge(next)).await);
                    }
                }
            }
        });
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "2Gi"}})).await;
        let notes = async || {
            let (hub, _) = section.counted("a", since).await;
            hub.get("patch databases").copied().unwrap_or_default()
        };
        eventually("four notes", LIMIT, async || {
            let seen = notes().await;
            if seen >= 4 { Ok(()) } else { Err(seen.to_string()) }
        })
        .await
        .unwrap();
        section.quiet().await;
        assert_eq!(notes().await, 4, "the first, and three at once");
        let note = section.event("a", "orders", "Contended").await;
        assert!(note.starts_with("cluster edge keeps rejecting the object for different reasons"), "{note}");
        section
            .report_has("the present reason, and what to do about it", |report| {
                let first = &report["not_in_step"][0];
                let next_steps = [
                    ("the mood is bad", "allow it on edge, or change it on hub"),
                    ("the mood is worse", "change it on hub, or delete it on edge if the field can't change there"),
                ];
                first["state"] == json!("failing")
                    && next_steps.iter().any(|(reason, next_step)| {
                        first["cause"].as_str().is_some_and(|cause| cause.ends_with(reason))
                            && first["next_step"] == json!(next_step)
                    })
            })
            .await;
        let rewrites = series(&section, "towline_sync_contended_fields_total", "section=\"refused-turns\"").await;
        assert_eq!(rewrites.as_deref(), Some("3"));
        turner.abort();
        section.patch_local("a", "orders", &mood(None)).await;
        section.local_has("a", "orders", |local| local.data["spec"]["storage"] == "2Gi").await;
        section.remote_has("a", "orders", |remote| !remote.annotations().contains_key(&mark("sync-error"))).await;
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(section.edge.clone());
        bindings.delete(&policy, &DeleteParams::default()).await.unwrap();
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(section.edge.clone());
        policies.delete(&policy, &DeleteParams::default()).await.unwrap();
    });
}

/// What the daemon of a test with its own user asked of the edge in a namespace.
fn is_in(namespace: String) -> impl Fn(&&Record) -> bool {
    move |record| record.namespace == namespace
}

#[test]
fn tokens_of_service_accounts_are_left_out_and_named() {
    run(async {
        let world = world().await;
        let name = "tokens";
        // As a user of its own: the daemon's user of the other tests sees no secrets but those that it is granted.
        let of = |plane: &integration::ControlPlane| plane.kubeconfig(users::HUB_SERVER).unwrap();
        let config = format!(
            "[clusters.hub]\nkubeconfig = {:?}\n[clusters.edge]\nkubeconfig = {:?}\n{}",
            of(&world.hub),
            of(&world.edge),
            sync(name, &secrets(), "")
        );
        let section = Section::start_config(name, secrets(), &config, |_| {}).await;
        section.make_namespaces("a").await;
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "robot"}})).unwrap();
        for client in [&section.hub, &section.edge] {
            let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &section.namespace("a"));
            accounts.create(&PostParams::default(), &account).await.unwrap();
        }
        let since = mark_of(&world.edge).await;
        let token = json!({
            "type": "kubernetes.io/service-account-token",
            "metadata": {"annotations": {"kubernetes.io/service-account.name": "robot"}},
        });
        make_secret(&section.local_secrets("a"), "token-of-the-edge", &token).await;
        make_secret(&section.remote_secrets("a"), "robot-token", &token).await;
        make_secret(&section.remote_secrets("a"), "plain", &json!({"stringData": {"colour": "blue"}})).await;
        section
            .report_has("the hub's token by name and the other secret in step", |report| {
                let left_out = &report["left_out"];
                left_out["objects"] == json!(1)
                    && left_out["first"][0]["key"] == json!("tokens-a/robot-token")
                    && left_out["first"][0]["reason"].as_str().is_some_and(|reason| reason.contains("token"))
                    && report["objects"]["in_step"] == json!(1)
            })
            .await;
        let filled = |secret: &Secret| secret.data.as_ref().is_some_and(|data| data.contains_key("token"));
        let held = secret_that(&section.remote_secrets("a"), "robot-token", "a token", filled).await;
        assert!(held.finalizers().is_empty(), "{:?}", held.finalizers());
        let filter = Filter::since(since).user(users::HUB_SERVER).verb("create").resource("secrets");
        let records = world.edge.audit().unwrap().records(&filter).await.unwrap();
        let created: Vec<_> =
            records.iter().filter(is_in(section.namespace("a"))).map(|record| record.name.clone()).collect();
        assert_eq!(created, ["plain"]);
        // A token of the edge's own stays, and one that goes on the hub goes there.
        section.remote_secrets("a").delete("robot-token", &DeleteParams::default()).await.unwrap();
        gone(&section.remote_secrets("a"), "the token on the hub", "robot-token").await;
        section.report_has("nothing left out", |report| report["left_out"].is_null()).await;
    });
}

#[test]
fn any_number_of_changed_secrets_is_copied_in_one_run() {
    run(async {
        let names: Vec<String> = (0..10).map(|number| format!("many-{number}")).collect();
        let borrowed: Vec<&str> = names.iter().map(String::as_str).collect();
        let world = world().await;
        for (plane, side) in [(&world.hub, Side::Remote), (&world.edge, Side::Local)] {
            let grant = Grant::kind(side, "bulks", "demo.towline.dev").secrets(&borrowed);
            grant.apply(&admin(plane).await).await.unwrap();
        }
        let section = Section::start("many-secrets", databases(), &format!("secret_names = {names:?}")).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        let database = section.local_has("a", "orders", |_| true).await;
        noted(&section, "orders").await;
        let paused = |paused: Option<&str>| json!({"metadata": {"annotations": {mark("paused"): paused}}});
        section.patch_local("a", "orders", &paused(Some("true"))).await;
        section.report_has("the pause", |report| report["objects"]["paused"] == json!(1)).await;
        for name in &names {
            make_secret(&section.remote_secrets("a"), name, &json!({})).await;
            let content =
                json!({"stringData": {"password": name}, "metadata": {"ownerReferences": [controller(&database)]}});
            put_secret(&section.local_secrets("a"), name, &content).await;
        }
        section.quiet().await;
        section.patch_local("a", "orders", &paused(None)).await;
        for name in &names {
            secret_that(&section.remote_secrets("a"), name, "its password", |secret| data(secret, "password") == *name)
                .await;
            secret_that(&section.local_secrets("a"), name, "its hash noted", |secret| noted_hash(secret).is_some())
                .await;
        }
        section.report_has("both objects in step", |report| report["objects"]["in_step"] == json!(2)).await;
        // A run that meets a conflict, since the cache is behind, is no failure.
        let log = section.towline.log().unwrap();
        assert!(!log.contains("sync failed"), "{log}");
    });
}
