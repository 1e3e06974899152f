//! A replica of the hub that is killed in the middle of an order: the order has been received, and is not answered.

use std::process::Stdio;

use integration::eventually;
use serde_json::json;

use crate::syncsets_commands::rights::file;
use crate::syncsets_commands::world::{HubPod, LIMIT, Stage, run, shown};

/// While it is held, changes wait in the database.
const LOCK: &str = "select pg_advisory_lock('towline_log'::regclass::bigint)";
const UNLOCK: &str = "select pg_advisory_unlock('towline_log'::regclass::bigint)";
/// Of the changes that are being made in this database; sessions end later than the process that made them.
const CHANGES: &str = "from pg_stat_activity where datname = current_database() and state = 'active' \
                       and query like 'call towline_write%'";

/// Waits until so many changes are being made.
async fn changes(stage: &Stage, expected: i64) {
    eventually(format!("{expected} changes to be made"), LIMIT, async || {
        match stage.number(&format!("select count(*) {CHANGES}")).await {
            found if found == expected => Ok(()),
            found => Err(found.to_string()),
        }
    })
    .await
    .expect("the changes");
}

#[test]
fn an_order_whose_replica_is_killed_before_it_answers_is_carried_out_once_or_not_at_all_and_can_be_repeated() {
    run(async {
        let mut stage = Stage::new("killed").await;
        let pod = HubPod::new(&stage, "killed").await;
        for (name, is_made) in [("kept", true), ("lost", false)] {
            let syncset =
                json!({"kind": "SyncSet", "namespace": "foo", "name": name, "spec": {"clusterDeploymentRefs": []}});
            let path = file(&format!("killed-{name}"), &syncset.to_string()).display().to_string();
            let apply = ["-n", "killed", "apply", "-f", &path];
            stage.sql.batch_execute(LOCK).await.expect("the lock");
            let order = pod.kubectl.command(&apply).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            changes(&stage, 1).await;
            stage.replica.towline().kill9().await.expect("it is killed");
            let said = order.expect("it starts").wait_with_output().await.expect("it ends");
            if !is_made {
                // As if the database had not got all of it.
                let ended = stage.number(&format!("select count(pg_terminate_backend(pid)) {CHANGES}")).await;
                assert_eq!(ended, 1);
            }
            stage.sql.batch_execute(UNLOCK).await.expect("it is released");
            changes(&stage, 0).await;
            let told = String::from_utf8_lossy(&said.stderr);
            assert!(said.status.code() == Some(1) && said.stdout.is_empty(), "{name}: {said:?}");
            assert!(
                told.contains("whether the order was carried out is not known: failed to get an answer"),
                "{name}: {told}"
            );
            let made = stage.number(&format!("select count(*) from syncsets where name = '{name}'")).await;
            assert_eq!(made, i64::from(is_made), "{name}");

            stage.replica.start_again().await.expect("it starts");
            stage.replica.wait_ready(LIMIT).await.expect("it is ready");
            let again = pod.kubectl.command(&apply).output().await.expect("it runs");
            let result = if is_made { "unchanged" } else { "created" };
            assert_eq!(
                (again.status.code(), String::from_utf8_lossy(&again.stdout)),
                (Some(0), format!("SyncSet/foo/{name} {result}\n").into()),
                "{again:?}"
            );
            let path = format!("/v1/history?kind=syncsets&namespace=foo&name={name}");
            let history = shown(&mut stage.replica.client(), &path).await;
            assert_eq!(history["items"].as_array().map(Vec::len), Some(1), "{history}");
        }
    });
}
