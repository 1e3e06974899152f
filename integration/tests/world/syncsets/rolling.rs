//! What clusters get of a syncset with a rollout. No dispatcher moves them: the test does.

use serde_json::{Value, json};

use crate::syncsets::requests::Requests;
use crate::syncsets::world::{Stage, UNGUARDED, run};

/// From now on no rollout begins by itself on this hub, which has to be one of the test's own.
async fn freeze(stage: &Stage) {
    let text = "create function hold_rollouts() returns trigger language plpgsql as 'begin new.started := new.edited; new.goal := new.newest; \
           new.state := ''Stopped''; new.reason := ''Paused''; return new; end'; \
         create trigger hold_rollouts before insert or update on towline_rollout for each row execute function hold_rollouts()";
    stage.sql.batch_execute(text).await.unwrap();
}

/// Writes a `SyncSet` of the test, as a hub does it.
async fn put(stage: &Stage, name: &str, resources: &[Value], fields: &Value) {
    let mut spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}, {"name": "east-1"}], "applyBehavior": "Apply",
        "resourceApplyMode": "Sync", "enableResourceTemplates": false, "enablePatchTemplates": false, "resources": resources,
        "secretMappings": [], "patches": []});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let text = "select coalesce(max(generation), 0) + 1, gen_random_uuid()::text from syncsets where name = $1";
    let row = stage.sql.query_one(text, &[&name]).await.unwrap();
    let (generation, id): (i64, String) = (row.get(0), row.get(1));
    let row = json!({"id": id, "labels": {}, "annotations": {}, "finalizers": [], "generation": generation, "deleted_at": null,
        "data": {"spec": spec}, "status": {}});
    let change = json!({"kind": "syncsets", "namespace": stage.namespace, "name": name, "expected": "any", "row": row});
    let items = json!([{"request": id, "changes": [change]}]).to_string();
    stage.sql.batch_execute(&format!("call towline_write('{}', null)", items.replace('\'', "''"))).await.unwrap();
    stage.at_rest().await;
}

/// Pins `west-1` to a revision of a syncset, and asks for it.
async fn pin(stage: &Stage, name: &str, revision: i32) {
    let text = format!(
        "insert into towline_turn select s.id, c.id, {revision}, 1, 0, 0 from syncsets s, clusters c \
           where s.name = '{name}' and c.name = 'west-1' \
           on conflict (syncset, cluster) do update set revision = excluded.revision; \
         update towline_work set ready_at = now(), wanted = wanted + 1; select pg_notify('towline_work', '')"
    );
    stage.sql.batch_execute(&text).await.unwrap();
    stage.at_rest().await;
}

fn waves() -> Value {
    json!({"rollout": {"waves": [{"name": "first", "percent": 50}]}})
}

fn none() -> Vec<String> {
    Vec::new()
}

#[test]
fn a_cluster_has_what_it_is_pinned_to_whatever_its_syncset_says() {
    run(async {
        let stage = Stage::with("rolling", UNGUARDED, 1).await;
        freeze(&stage).await;
        let west = stage.register("west-1", &json!({}), 0).await;
        let east = stage.register("east-1", &json!({}), 1).await;
        let map = |name: &str, value: &str| stage.config_map(name, &json!({ "a": value }));
        let (one, two) = ([map("a", "1"), map("b", "1")], [map("a", "2"), map("c", "2")]);
        let of_one = [("a", json!({"a": "1"})), ("b", json!({"a": "1"}))];
        let of_two = [("a", json!({"a": "2"})), ("c", json!({"a": "2"}))];
        put(&stage, "base", &one, &json!({})).await;
        stage.has(west, &of_one).await;
        stage.has(east, &of_one).await;
        let (mut to_west, mut to_east) =
            (Requests::from_now(&stage, west).await, Requests::from_now(&stage, east).await);
        put(&stage, "base", &one, &waves()).await;
        assert_eq!((to_west.seen().await, to_east.seen().await), (none(), none()), "a rollout moves nothing");
        put(&stage, "base", &two, &waves()).await;
        assert_eq!((to_west.seen().await, to_east.seen().await), (none(), none()), "no turn has come");
        let told = stage.explained("east-1", "ConfigMap/rolling/c").await;
        assert!(told.contains("live       no syncset wants it yet: a rollout is about to bring it\n"), "{told}");
        let mut elsewhere = waves();
        elsewhere["clusterDeploymentRefs"] = json!([{"name": "east-1"}, {"name": "west-1"}, {"name": "north-1"}]);
        put(&stage, "base", &two, &elsewhere).await;
        assert_eq!((to_west.seen().await, to_east.seen().await), (none(), none()), "whom it is for is no content");

        pin(&stage, "base", 2).await;
        stage.has(west, &of_two).await;
        let mut seen = to_west.seen().await;
        seen.sort();
        let expected = [
            "delete configmaps/b 200",
            "get configmaps/b 200",
            "get configmaps/c 404",
            "patch configmaps/a 200",
            "patch configmaps/c 201",
        ];
        assert_eq!(seen, expected);
        pin(&stage, "base", 1).await;
        // The rollout still leads to the other revision, which wants it.
        let kept = ("c", json!({"a": "2"}));
        stage.has(west, &[of_one[0].clone(), of_one[1].clone(), kept]).await;
        pin(&stage, "base", 2).await;
        stage.has(west, &of_two).await;
        stage.has(east, &of_one).await;
        assert_eq!(to_east.seen().await, none(), "the other one is at the first");
        to_west.seen().await;

        put(&stage, "base", &two, &json!({})).await;
        stage.has(east, &of_two).await;
        stage.has(west, &of_two).await;
        assert!(to_west.seen().await.iter().all(|request| request.starts_with("get")), "it has the newest one");
        put(&stage, "base", &one, &waves()).await;
        stage.remove(&stage.path("syncsets", "base")).await;
        stage.has(west, &[]).await;
        stage.has(east, &[]).await;
        let left = "select (select count(*) from towline_revision) + (select count(*) from towline_rollout) \
             + (select count(*) from towline_turn)";
        assert_eq!(stage.sql.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0);
    });
}
