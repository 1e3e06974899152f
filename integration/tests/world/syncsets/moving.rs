//! A document that leads to another cluster than before.

use std::sync::Arc;

use integration::eventually;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::syncsets::guard::{Objects, SECTION, api};
use crate::syncsets::script::{Says, Script};
use crate::syncsets::world::{LIMIT, Stage, run};

/// A pass that follows on a killed one must not take what it had on the cluster before for what is on this one.
#[test]
fn a_document_is_known_as_one_of_its_new_cluster_before_it_writes_there() {
    run(async {
        let stage = Stage::shared("moving", SECTION).await;
        let (objects, gate) = (Objects::default(), Arc::new(Semaphore::new(0)));
        let (shared, closed) = (Arc::clone(&objects), Arc::clone(&gate));
        let server = Script::start_with(move |line, body| match api(&shared, line, body) {
            Says::Body(status, reply) if line.starts_with("PATCH /east-1/") => {
                Says::Later(Arc::clone(&closed), status, reply)
            }
            says => says,
        })
        .await;
        let kubeconfig = |path: &str| server.kubeconfig_below(path).to_string();
        let cluster = json!({"namespace": "moving", "name": "west-1", "kubeconfig": kubeconfig("/west-1")});
        stage.create("clusters", &cluster).await;
        stage.syncset("base", "Sync", &["a", "b"].map(|name| stage.config_map(name, &json!({})))).await;
        stage.succeeds("west-1", "base", 1).await;

        stage.change(&stage.path("clusters", "west-1"), &json!({"kubeconfig": kubeconfig("/east-1")})).await;
        eventually("the first write to the other cluster", LIMIT, async || {
            let arrived = objects.lock().keys().any(|path| path.starts_with("/east-1/"));
            if arrived { Ok(()) } else { Err("nothing was written".to_owned()) }
        })
        .await
        .unwrap();
        let noted = "select p.identity, (select count(*) from towline_applied where wanted and uid is null) from towline_cluster p";
        let row = stage.sql.query_one(noted, &[]).await.unwrap();
        let (identity, waiting): (String, i64) = (row.get(0), row.get(1));
        assert_eq!((identity.as_str(), waiting), ("east-1", 2), "what it had on the cluster before is forgotten");
        gate.add_permits(9);
        stage.succeeds("west-1", "base", 1).await;
        eventually("its objects there", LIMIT, async || {
            let paths: Vec<String> = objects.lock().keys().cloned().collect();
            if paths.len() == 4 { Ok(()) } else { Err(format!("{paths:?}")) }
        })
        .await
        .unwrap();
    });
}
