//! Built-in kinds whose objects a cluster's own controllers complete.

use integration::users::ADMIN;
use integration::{ControlPlane, Options, eventually};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::world::{LIMIT, Stage, run};

#[test]
fn an_aggregated_role_keeps_its_rules_whatever_the_resource_says() {
    run(async {
        let plane = ControlPlane::start(Options::named("aggregated").with_workloads("10.2.0.0/24")).await.unwrap();
        let roles: Api<ClusterRole> = Api::all(plane.client(ADMIN).await.unwrap());
        let stage = Stage::new("aggregated").await;
        stage.registers("west-1", &stage.kubeconfig(&plane, plane.address())).await;
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
