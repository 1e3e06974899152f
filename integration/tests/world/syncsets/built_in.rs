//! Built-in kinds whose objects a cluster's own controllers complete.

use integration::eventually;
use integration::users::ADMIN;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::syncsets::requests::Requests;
use crate::syncsets::world::{LIMIT, Stage, run};

#[test]
fn an_aggregated_role_keeps_its_rules_whatever_the_resource_says() {
    run(async {
        let stage = Stage::new("aggregated").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let roles: Api<ClusterRole> = Api::all(plane.client(ADMIN).await.unwrap());
        for behavior in ["Apply", "CreateOrUpdate"] {
            let name = format!("whole-{}", behavior.to_lowercase());
            let part = json!({
                "metadata": {"name": format!("{name}-part"), "labels": {"part-of": name}},
                "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
            });
            roles.create(&PostParams::default(), &serde_json::from_value(part).unwrap()).await.unwrap();
            let role = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [],
                "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"part-of": name}}]},
            });
            let spec =
                json!({"clusterDeploymentRefs": [{"name": "west-1"}], "applyBehavior": behavior, "resources": [role]});
            stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
            stage.succeeds("west-1", &name, 1).await;
            let complete = eventually(format!("the rules of {name}"), LIMIT, async || {
                let role = roles.get(&name).await.map_err(|error| error.to_string())?;
                let is_complete = role.rules.as_ref().is_some_and(|rules| rules.len() == 1);
                if is_complete { Ok(role) } else { Err(format!("{:?}", role.rules)) }
            });
            let complete = complete.await.unwrap();
            stage.full_pass().await;
            // Not even for a moment: the object was not written.
            assert_eq!(roles.get(&name).await.unwrap().metadata.resource_version, complete.metadata.resource_version);
        }
    });
}

fn token(stage: &Stage, account: &str, annotations: &Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "token", "namespace": stage.namespace, "annotations": annotations}});
    object["metadata"]["annotations"]["kubernetes.io/service-account.name"] = json!(account);
    object
}

/// The cluster deletes such a Secret at once, so that it would be no success.
#[test]
fn a_token_of_a_service_account_that_is_not_there_is_refused_with_the_reason_and_sent_when_it_is() {
    run(async {
        let stage = Stage::new("tokens").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let client = plane.client(ADMIN).await.unwrap();
        let secrets: Api<Secret> = Api::namespaced(client.clone(), stage.namespace);
        let accounts: Api<ServiceAccount> = Api::namespaced(client, stage.namespace);
        let robot = |name: &str| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": stage.namespace}});
        let told = async |what: &str| {
            let status = stage.status("west-1", what, |status| {
                let message = status["syncSets"][0]["failureMessage"].as_str().unwrap_or_default();
                message.contains(what)
            });
            assert_eq!(status.await["syncSets"][0]["reason"], "Rejected");
        };
        for behavior in ["Apply", "CreateOrUpdate", "CreateOnly"] {
            let account = format!("robot-{}", behavior.to_lowercase());
            let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync", "applyBehavior": behavior,
                "resources": [token(&stage, &account, &json!({}))]});
            stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
            told(&format!("there is no ServiceAccount {account}: create that before it")).await;
            assert!(secrets.get_opt("token").await.unwrap().is_none());
            // Of another cluster.
            let uid = json!({"kubernetes.io/service-account.uid": "7b1c2d3e-0000-0000-0000-000000000000"});
            stage.wants("base", &[robot(&account), token(&stage, &account, &uid)]).await;
            told(&format!("is not the UID of the ServiceAccount {account}")).await;
            assert!(
                accounts.get_opt(&account).await.unwrap().is_some()
                    && secrets.get_opt("token").await.unwrap().is_none()
            );
            // In this order it works, and the cluster fills it.
            stage.wants("base", &[robot(&account), token(&stage, &account, &json!({}))]).await;
            stage.succeeds("west-1", "base", 3).await;
            eventually("the token to be filled", LIMIT, async || match secrets.get("token").await {
                Ok(secret) if secret.data.as_ref().is_some_and(|data| data.contains_key("token")) => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await
            .unwrap();
            stage.remove(&stage.path("syncsets", "base")).await;
            eventually("the token to be deleted", LIMIT, async || match secrets.get_opt("token").await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await
            .unwrap();
            stage.at_rest().await;
        }
    });
}

/// It has done its work: nobody wants it to run again with each full pass.
#[test]
fn a_job_that_the_cluster_deletes_when_it_has_finished_is_created_again_only_when_it_is_changed() {
    run(async {
        let stage = Stage::new("finished-jobs").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let jobs: Api<Job> = Api::namespaced(plane.client(ADMIN).await.unwrap(), stage.namespace);
        let job = |image: &str| {
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once", "namespace": stage.namespace},
                "spec": {"ttlSecondsAfterFinished": 0, "completions": 0,
                    "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": image}]}}}})
        };
        let finished = async || {
            let gone = eventually("the job to be deleted", LIMIT, async || match jobs.get_opt("once").await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            });
            gone.await.unwrap();
        };
        let mut requests = Requests::from_now(&stage, plane).await;
        for (generation, image) in [(1, "a:1"), (2, "a:2")] {
            if generation == 1 {
                stage.syncset("base", "Sync", &[job(image)]).await;
            } else {
                stage.wants("base", &[job(image)]).await;
            }
            stage.succeeds("west-1", "base", generation).await;
            finished().await;
            let seen = requests.seen().await;
            assert_eq!(seen.iter().filter(|request| *request == "patch jobs/once 201").count(), 1, "{seen:?}");
            for _ in 0..3 {
                stage.full_pass().await;
            }
            let seen = requests.seen().await;
            assert!(seen.iter().all(|request| request == "get jobs/once 404"), "{seen:?}");
            stage.succeeds("west-1", "base", generation).await;
            let told = stage.explained("west-1", &format!("Job.batch/{}/once", stage.namespace)).await;
            assert!(told.contains("is not created again until it is changed"), "{told}");
        }
    });
}
