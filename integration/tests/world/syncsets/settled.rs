//! What is said of objects by the statuses that controllers write, and turns of rollouts that wait for these.

use std::collections::BTreeSet;
use std::fmt::Debug;

use integration::eventually;
use integration::hub::Request;
use integration::users::ADMIN;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::syncsets::health::{apply, has, passes, pod, running};
use crate::syncsets::kinds::{definition, widget, widgets};
use crate::syncsets::world::{LIMIT, Stage, TIME_PASSES, run};

/// What its controller would say of an object.
async fn says<K: Clone + DeserializeOwned + Debug>(api: &Api<K>, name: &str, status: Value) {
    let patch = Patch::Merge(json!({ "status": status }));
    eventually(format!("{name} to be there"), LIMIT, async || {
        let written = api.patch_status(name, &PatchParams::default(), &patch).await;
        written.map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
}

async fn changes<K: Clone + DeserializeOwned + Debug>(api: &Api<K>, name: &str, fields: &Value) {
    api.patch(name, &PatchParams::default(), &Patch::Merge(fields)).await.unwrap();
}

/// The entry of the syncset in the `ClusterSync`, null before there is one.
async fn entry(stage: &Stage) -> Value {
    let reply = stage.send(&Request::get(&format!("/v1/{}", stage.path("clustersyncs", "west-1")))).await;
    reply.json().map_or(Value::Null, |found: Value| found["status"]["syncSets"][0].clone())
}

/// Waits until exactly these objects are not current, each as kind, name, state and reason. Until then so much time passes again and again.
async fn are_unhealthy(stage: &Stage, time: &str, expected: &[[&str; 4]]) -> Value {
    let outcome = eventually("objects that are not current", LIMIT, async || {
        let entry = entry(stage).await;
        let objects = entry["unhealthy"].as_array().cloned().unwrap_or_default();
        let fields = |object: &Value| ["kind", "name", "state", "reason"].map(|field| object[field].clone());
        let found: Vec<_> = objects.iter().map(fields).collect();
        if json!(found) == json!(expected) {
            return Ok(entry);
        }
        passes(stage, "base", time).await;
        Err(entry.to_string())
    });
    match outcome.await {
        Ok(entry) => entry,
        Err(error) => panic!("{error}\n{}", stage.log()),
    }
}

#[test]
fn addresses_evictions_missing_nodes_finalizers_and_generations_decide_about_health() {
    run(async {
        let stage = Stage::new("settled-kinds").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let (group, client) = ("settled-kinds.example.com", plane.client(ADMIN).await.unwrap());
        let mut with_status = definition(group);
        with_status["spec"]["versions"][0]["subresources"] = json!({"status": {}});
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        definitions.create(&PostParams::default(), &serde_json::from_value(with_status).unwrap()).await.unwrap();
        let service = |name: &str, kind: &str| {
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": stage.namespace},
                "spec": {"type": kind, "ports": [{"port": 80}]}})
        };
        let resources = [
            service("balanced", "LoadBalancer"),
            service("ending", "ClusterIP"),
            pod(&stage, "evicted"),
            pod(&stage, "unplaced"),
            widget(&stage, group, "behind"),
        ];
        apply(&stage, &json!({"within": "24h"}), &resources).await;
        stage.status("west-1", "success", |status| status["syncSets"][0]["result"] == "Success").await;

        let pods: Api<Pod> = Api::namespaced(client.clone(), stage.namespace);
        let services: Api<Service> = Api::namespaced(client.clone(), stage.namespace);
        let widgets = widgets(client, &stage, group);
        // Longer messages are cut.
        let long = format!("the node was low on memory{}", " ä".repeat(200));
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": long});
        says(&pods, "evicted", evicted).await;
        let unschedulable = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node is large enough"});
        says(&pods, "unplaced", json!({"phase": "Pending", "conditions": [unschedulable]})).await;
        changes(&services, "ending", &json!({"metadata": {"finalizers": ["example.com/keep"]}})).await;
        services.delete("ending", &DeleteParams::default()).await.unwrap();
        let ready = json!({"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]});
        changes(&widgets, "behind", &json!({"spec": {"more": 1}})).await;
        says(&widgets, "behind", ready).await;
        let expected = [
            ["Pod", "evicted", "Failed", "Evicted"],
            ["Pod", "unplaced", "Failed", "Unschedulable"],
            ["Service", "balanced", "Progressing", "NoAddress"],
            ["Service", "ending", "Progressing", "Terminating"],
            ["Widget", "behind", "Progressing", "NotObserved"],
        ];
        let told = are_unhealthy(&stage, "15 s", &expected).await;
        // The document is written after that.
        let health = has(&stage, "Failed", json!("Evicted")).await;
        let message = health["message"].as_str().unwrap();
        assert!(message.starts_with("Pod settled-kinds/evicted: the node was low"), "{message}");
        assert!(message.ends_with(" ä…; 4 more objects are not current"), "{message}");
        assert_eq!(message.chars().count(), 256, "{message}");
        let cut: String = long.chars().take(255).chain(['…']).collect();
        let messages = [
            cut.as_str(),
            "no node is large enough",
            "its load balancer has no address",
            "the object is being deleted",
            "its controller has seen generation 1 of 2",
        ];
        for (object, message) in told["unhealthy"].as_array().unwrap().iter().zip(messages) {
            assert_eq!(object["message"], message, "{object}");
        }

        says(&services, "balanced", json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}})).await;
        for name in ["evicted", "unplaced"] {
            let mut well = running("True");
            (well["reason"], well["message"]) = (Value::Null, Value::Null);
            says(&pods, name, well).await;
        }
        says(&widgets, "behind", json!({"observedGeneration": 2})).await;
        changes(&services, "ending", &json!({"metadata": {"finalizers": null}})).await;
        are_unhealthy(&stage, "0 s", &[["Service", "ending", "Progressing", "NotFound"]]).await;
        // A full pass makes it again.
        stage.full_pass().await;
        has(&stage, "Current", Value::Null).await;
    });
}

/// A syncset that is rolled out to its cluster.
async fn roll_out(stage: &Stage, resources: &[Value]) {
    let canary = json!({"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}});
    let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync", "health": {},
        "rollout": {"waves": [canary]}, "resources": resources});
    stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
}

async fn rollout(stage: &Stage) -> Value {
    stage.get(&format!("{}/rollout", stage.path("syncsets", "base"))).await
}

/// The rollout is complete, nothing of it has failed, and all objects are current, for this reason if there is one.
async fn is_complete(stage: &Stage, reason: Value) {
    let rollout = rollout(stage).await;
    assert_eq!((&rollout["state"], &rollout["stable"]), (&json!("Complete"), &json!(1)), "{rollout}");
    let wave = &rollout["waves"][0];
    assert_eq!((&wave["done"], &wave["failed"]), (&json!(1), &json!(0)), "{rollout}");
    has(stage, "Current", reason).await;
    let entry = entry(stage).await;
    assert_eq!(entry["result"], "Success", "{entry}");
    let failures = stage.get(&format!("syncset-failures?namespace={}", stage.namespace)).await;
    assert_eq!(failures["items"], json!([]), "{failures}");
}

#[test]
fn a_definition_and_an_object_of_its_kind_are_rolled_out_in_one_turn() {
    run(async {
        let stage = Stage::new("settled-definitions").await;
        stage.register("west-1", &json!({"tier": "canary"}), 0).await;
        let group = "settled-definitions.example.com";
        roll_out(&stage, &[definition(group), widget(&stage, group, "one")]).await;
        // It has no status, which counts as current after 15 s: as if these had passed once it was read.
        let passes = "update towline_result \
             set health = health || jsonb_build_object('next', now(), 'applied', (health->>'applied')::timestamptz - interval '15 s') \
             where health->>'next' is not null and (health->>'applied')::timestamptz > now() - interval '15 s'";
        let mut states = BTreeSet::new();
        let complete = eventually("the rollout to be complete", LIMIT, async || {
            states.insert(entry(&stage).await["health"]["state"].to_string());
            let rollout = rollout(&stage).await;
            if rollout["state"] == "Complete" {
                return Ok(());
            }
            stage.sql.batch_execute(passes).await.map_err(|error| error.to_string())?;
            stage.sql.batch_execute(TIME_PASSES).await.map_err(|error| error.to_string())?;
            Err(rollout.to_string())
        });
        if let Err(error) = complete.await {
            panic!("{error}\n{}", stage.log());
        }
        is_complete(&stage, json!("Assumed")).await;
        assert!(!states.contains("\"Unknown\"") && !states.contains("\"Failed\""), "{states:?}");
    });
}

#[test]
fn a_turn_is_done_after_its_job_has_finished_and_deleted_itself() {
    run(async {
        let stage = Stage::new("settled-jobs").await;
        let plane = stage.register("west-1", &json!({"tier": "canary"}), 0).await;
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "migrate", "namespace": stage.namespace},
            "spec": {"ttlSecondsAfterFinished": 86_400, "template": {"metadata": {"labels": {"of": "migrate"}},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "main:1"}]}}}});
        // The pod keeps the turn open.
        roll_out(&stage, &[job, pod(&stage, "web")]).await;
        let client = plane.client(ADMIN).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(client.clone(), stage.namespace);
        let jobs: Api<Job> = Api::namespaced(client, stage.namespace);
        let of_job = eventually("the pod of the Job", LIMIT, async || {
            let found =
                pods.list(&ListParams::default().labels("of=migrate")).await.map_err(|error| error.to_string())?;
            found.items.first().and_then(|pod| pod.metadata.name.clone()).ok_or("none yet".to_owned())
        });
        says(&pods, &of_job.await.unwrap(), json!({"phase": "Succeeded"})).await;
        let waits_for_the_pod = [["Pod", "web", "Progressing", "Pending"]];
        are_unhealthy(&stage, "0 s", &waits_for_the_pod).await;

        // It was seen to have finished, and its time is over.
        changes(&jobs, "migrate", &json!({"spec": {"ttlSecondsAfterFinished": 0}})).await;
        let is_gone = async || match jobs.get_opt("migrate").await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        eventually("the Job to be gone", LIMIT, is_gone).await.unwrap();
        let readings = "select (health->>'readings')::int from towline_result where health is not null";
        let so_far: i32 = stage.sql.query_one(readings, &[]).await.unwrap().get(0);
        eventually("readings without it", LIMIT, async || {
            let count: i32 = stage.sql.query_one(readings, &[]).await.map_err(|error| error.to_string())?.get(0);
            if count >= so_far + 2 {
                return Ok(());
            }
            passes(&stage, "base", "0 s").await;
            Err(format!("{count} after {so_far}"))
        })
        .await
        .unwrap();
        are_unhealthy(&stage, "0 s", &waits_for_the_pod).await;
        let running_still = rollout(&stage).await;
        assert_eq!((&running_still["state"], &running_still["waves"][0]["done"]), (&json!("Running"), &json!(0)));

        says(&pods, "web", running("True")).await;
        eventually("the rollout to be complete", LIMIT, async || {
            let rollout = rollout(&stage).await;
            if rollout["state"] == "Complete" {
                return Ok(());
            }
            passes(&stage, "base", "0 s").await;
            Err(rollout.to_string())
        })
        .await
        .unwrap();
        is_complete(&stage, Value::Null).await;
        assert!(jobs.get_opt("migrate").await.unwrap().is_none(), "it is not created again");
    });
}
