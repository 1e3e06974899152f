//! Nothing is deleted that the dispatcher has not checked.

use integration::eventually;
use serde_json::{Value, json};

use crate::syncsets::requests::Requests;
use crate::syncsets::world::{LIMIT, SYNCSETS, Stage, run};

/// From now on every turn of the dispatcher fails before its cursor moves.
const HOLD_BACK: &str = "create function hold_back() returns trigger language plpgsql as $$ begin \
       raise exception 'the test holds the cursor back'; end $$; \
     create trigger hold_back before update of cursor on towline_claim for each row \
       when (new.cursor is distinct from old.cursor) execute function hold_back()";
const LET_GO: &str = "drop trigger hold_back on towline_claim";
/// As somebody would wake the cluster for another reason.
const WAKE: &str =
    "update towline_work set ready_at = now(), wanted = wanted + 1; select pg_notify('towline_work', '')";

#[test]
fn while_the_dispatcher_lags_passes_apply_and_delete_nothing_and_are_repeated() {
    run(async {
        let stage = Stage::with("checking", SYNCSETS, 1).await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        let map = |name: &str, value: &str| stage.config_map(name, &json!({"a": value}));
        let selected = json!({"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}}, "resourceApplyMode": "Sync",
            "resources": [map("selected", "1")]});
        stage.create("selectorsyncsets", &json!({"name": "checking", "spec": selected})).await;
        stage.syncset("base", "Sync", &[map("base", "1"), map("dropped", "1")]).await;
        stage.syncset("ended", "Sync", &[map("ended", "1")]).await;
        let one = |name: &'static str| (name, json!({"a": "1"}));
        stage.has(plane, &["base", "dropped", "ended", "selected"].map(one)).await;
        stage.at_rest().await;
        let mut requests = Requests::from_now(&stage, plane).await;

        stage.sql.batch_execute(HOLD_BACK).await.unwrap();
        // Three changes that delete: an edit, a deletion, and a label.
        stage.wants("base", &[map("base", "2")]).await;
        stage.remove(&stage.path("syncsets", "ended")).await;
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"env": "test"}})).await;
        stage.sql.batch_execute(WAKE).await.unwrap();
        let changed = ("base", json!({"a": "2"}));
        stage.has(plane, &[changed.clone(), one("dropped"), one("ended"), one("selected")]).await;
        // It is requeued, and looks again after a second, each time in vain.
        let reconciles = stage.reconciles().await;
        eventually("three more passes", LIMIT, async || {
            let now = stage.reconciles().await;
            if now >= reconciles + 3 { Ok(()) } else { Err(format!("{reconciles}, now {now}")) }
        })
        .await
        .unwrap();
        let later = "select count(*) from towline_work where holder is null and ready_at > now() + interval '10 s'";
        assert_eq!(stage.sql.query_one(later, &[]).await.unwrap().get::<_, i64>(0), 0);
        let behind =
            "select c.cursor < (select max(version) from towline_log) from towline_claim c where c.name = 'dispatcher'";
        assert!(stage.sql.query_one(behind, &[]).await.unwrap().get::<_, bool>(0), "the dispatcher lags");
        let seen = requests.seen().await;
        assert!(!seen.iter().any(|request| request.starts_with("delete")), "{seen:?}");
        assert_eq!(seen.iter().filter(|request| request.starts_with("patch")).count(), 1, "{seen:?}");
        let status = stage.get(&stage.path("clustersyncs", "west-1")).await["status"].clone();
        let entry = status["syncSets"].as_array().unwrap().iter().find(|entry| entry["name"] == "ended").cloned();
        assert_eq!(
            entry.map(|entry| entry["observedGeneration"].clone()),
            Some(json!(0)),
            "it is not cleaned up: {status}"
        );

        stage.sql.batch_execute(LET_GO).await.unwrap();
        stage.has(plane, &[changed]).await;
        stage.at_rest().await;
        let mut seen = requests.seen().await;
        seen.retain(|request| request.starts_with("delete"));
        seen.sort();
        let deleted = ["dropped", "ended", "selected"].map(|name| format!("delete configmaps/{name} 200"));
        assert_eq!(seen, deleted);
        let is_clean = |status: &Value| {
            status["selectorSyncSets"] == json!([]) && status["syncSets"].as_array().is_some_and(|all| all.len() == 1)
        };
        stage.status("west-1", "one syncset", is_clean).await;
    });
}
