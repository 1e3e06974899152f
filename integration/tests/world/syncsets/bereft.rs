//! What is deleted for one document of a cluster while another one begins to want it.

use integration::{eventually, users};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::syncsets::world::{LIMIT, Stage, UNGUARDED, run};

/// The API server deletes the contents of a namespace after it has answered the deletion. A document that begins to want one of them only after the
/// other document has looked for wishes still finds it there.
#[test]
fn what_goes_with_a_namespace_comes_back_for_a_document_that_began_to_want_it_meanwhile() {
    run(async {
        const INNER: &str = "bereft-inner";
        let stage = Stage::with("bereft", UNGUARDED, 1).await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        stage.register("west-2", &json!({}), 1).await;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": INNER}});
        let inner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "inner", "namespace": INNER}});
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-2"}], "resourceApplyMode": "Sync",
            "resources": [namespace, inner]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "second", "spec": spec})).await;
        stage.succeeds("west-2", "second", 1).await;
        stage.syncset("first", "Sync", std::slice::from_ref(&namespace)).await;
        stage.succeeds("west-1", "first", 1).await;
        let client = plane.client(users::ADMIN).await.unwrap();
        let (namespaces, maps): (Api<Namespace>, Api<ConfigMap>) =
            (Api::all(client.clone()), Api::namespaced(client, INNER));
        let uid = namespaces.get(INNER).await.unwrap().metadata.uid;
        let held = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        maps.patch("inner", &PatchParams::default(), &held(json!(["example.com/wait"]))).await.unwrap();

        // The moment between the question and the deletion is too short for a test: it lasts as long as the second document's rows
        // do not say yet that it wants them.
        let wants = async |wanted: bool| {
            let text = "update towline_applied a set wanted = $1 from clusters c where c.id = a.cluster and c.name = 'west-2' \
                 and c.namespace = $2";
            assert_eq!(stage.sql.execute(text, &[&wanted, &stage.namespace]).await.unwrap(), 2);
        };
        wants(false).await;
        stage.wants("first", &[]).await;
        eventually("the namespace to be deleted", LIMIT, async || {
            let found = namespaces.get(INNER).await.map_err(|error| error.to_string())?;
            if found.metadata.deletion_timestamp.is_some() { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await
        .unwrap();
        wants(true).await;
        // As long as it is not gone, that is no failure, and it is not forgotten.
        let ended = |status: &Value| {
            let entry = &status["syncSets"][0];
            entry["observedGeneration"] == 2 && entry["result"] == "Success"
        };
        stage.status("west-1", "the pass to end", ended).await;
        let rows = "select count(*) from towline_applied a join clusters c on c.id = a.cluster where c.name = 'west-1' and not a.wanted";
        assert_eq!(stage.sql.query_one(rows, &[]).await.unwrap().get::<_, i64>(0), 1);
        maps.patch("inner", &PatchParams::default(), &held(Value::Null)).await.unwrap();
        let outcome = eventually("the namespace and what is in it to be back", LIMIT, async || {
            let found = namespaces.get(INNER).await.map_err(|error| error.to_string())?;
            if found.metadata.uid == uid {
                return Err("it is not gone".to_owned());
            }
            maps.get("inner").await.map(drop).map_err(|error| error.to_string())
        });
        if let Err(error) = outcome.await {
            panic!("{error}\n{}", stage.log());
        }
        stage.at_rest().await;
        assert_eq!(stage.sql.query_one(rows, &[]).await.unwrap().get::<_, i64>(0), 0, "{}", stage.log());
    });
}
