//! Objects that pass from one live syncset to another one are never absent, and are not left behind.

use std::collections::BTreeMap;

use kube::ResourceExt;
use serde_json::{Value, json};

use crate::syncsets::watching::Watching;
use crate::syncsets::world::{Stage, run};

/// Two syncsets and the object that moves from the first one to the second one.
struct Move {
    object: String,
    from: (&'static str, String, &'static str),
    to: (&'static str, String, &'static str),
}

impl Move {
    /// Both name orders, both kinds, and all modes of which one deletes.
    fn all() -> Vec<Self> {
        const SYNCSET: &str = "syncsets";
        const SELECTOR: &str = "selectorsyncsets";
        let mut all = Vec::new();
        for (from, to) in [(SYNCSET, SYNCSET), (SELECTOR, SELECTOR), (SYNCSET, SELECTOR), (SELECTOR, SYNCSET)] {
            for (first, second) in [("a", "b"), ("b", "a")] {
                for (before, after) in [("Sync", "Sync"), ("Sync", "Upsert"), ("Upsert", "Sync")] {
                    let number = all.len();
                    all.push(Self {
                        object: format!("moved-{number:02}"),
                        from: (from, format!("{first}-{number:02}"), before),
                        to: (to, format!("{second}-{number:02}"), after),
                    });
                }
            }
        }
        all
    }
}

fn spec(plural: &str, mode: &str, resources: &[Value]) -> Value {
    let target = if plural == "syncsets" {
        ("clusterDeploymentRefs", json!([{"name": "west-1"}]))
    } else {
        ("clusterDeploymentSelector", json!({}))
    };
    let (field, value) = target;
    json!({field: value, "resourceApplyMode": mode, "resources": resources})
}

async fn create(stage: &Stage, (plural, name, mode): &(&str, String, &str), resources: &[Value]) {
    let mut document = json!({"name": name, "spec": spec(plural, mode, resources)});
    if *plural == "syncsets" {
        document["namespace"] = json!(stage.namespace);
    }
    stage.create(plural, &document).await;
}

#[test]
fn an_object_that_moves_at_once_is_never_absent() {
    run(async {
        let stage = Stage::new("moves-at-once").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let all = Move::all();
        for Move { object, from, to } in &all {
            create(&stage, from, &[stage.config_map(object, &json!({"by": "from"}))]).await;
            create(&stage, to, &[]).await;
        }
        let watching = Watching::begin(&stage, plane).await;
        let every = |by: &str| all.iter().map(|of| (of.object.clone(), json!({"by": by}))).collect::<Vec<_>>();
        let pairs = every("from");
        stage.has(plane, &pairs.iter().map(|(name, data)| (name.as_str(), data.clone())).collect::<Vec<_>>()).await;
        stage.at_rest().await;
        let uids = async || -> BTreeMap<String, String> {
            stage.config_maps(plane).await.into_iter().map(|map| (map.name_any(), map.uid().unwrap())).collect()
        };
        let before = uids().await;
        for Move { object, from, to } in &all {
            let wanted = [stage.config_map(object, &json!({"by": "to"}))];
            stage.replace_spec(to.0, &to.1, &spec(to.0, to.2, &wanted)).await;
            stage.replace_spec(from.0, &from.1, &spec(from.0, from.2, &[])).await;
        }
        stage.at_rest().await;
        assert_eq!(uids().await, before);
        for map in stage.config_maps(plane).await {
            let Move { to: (plural, name, _), .. } = all.iter().find(|of| of.object == map.name_any()).unwrap();
            let owner = match *plural {
                "syncsets" => format!("SyncSet/{}/{name}", stage.namespace),
                _ => format!("SelectorSyncSet/{name}"),
            };
            assert_eq!(map.annotations()["towline.dev/syncset"], owner, "{}", map.name_any());
            assert_eq!(json!(map.data), json!({"by": "to"}), "{}", map.name_any());
        }
        assert_eq!(watching.deleted(&stage, plane).await, Vec::<String>::new());

        // Nothing is left behind: who has it last, deletes it, and nobody else.
        for Move { to, .. } in &all {
            stage.replace_spec(to.0, &to.1, &spec(to.0, to.2, &[])).await;
        }
        let kept: Vec<(&str, Value)> =
            all.iter().filter(|of| of.to.2 == "Upsert").map(|of| (of.object.as_str(), json!({"by": "to"}))).collect();
        stage.has(plane, &kept).await;
    });
}

#[test]
fn the_last_syncset_wins_and_the_next_one_takes_over() {
    run(async {
        let stage = Stage::new("winners").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let map = |by: &str| stage.config_map("site", &json!({"by": by}));
        let watching = Watching::begin(&stage, plane).await;
        // Names in another order than that of creation. A SelectorSyncSet comes after all SyncSets.
        stage.syncset("b", "Sync", &[map("b")]).await;
        stage.has(plane, &[("site", json!({"by": "b"}))]).await;
        stage.syncset("a", "Sync", &[map("a")]).await;
        stage.succeeds("west-1", "a", 1).await;
        stage.has(plane, &[("site", json!({"by": "b"}))]).await;
        let selector = json!({"name": "0", "spec": spec("selectorsyncsets", "Sync", &[map("0")])});
        stage.create("selectorsyncsets", &selector).await;
        stage.has(plane, &[("site", json!({"by": "0"}))]).await;
        stage.at_rest().await;
        // Who is superseded sends nothing.
        let mut requests = crate::syncsets::requests::Requests::from_now(&stage, plane).await;
        stage.wants("b", &[map("b2")]).await;
        stage.succeeds("west-1", "b", 2).await;
        assert_eq!(requests.seen().await, Vec::<String>::new());
        let site = json!([{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "winners", "name": "site"}]);
        let status = &stage.get(&stage.path("clustersyncs", "west-1")).await["status"];
        for (entry, expected) in [
            (&status["syncSets"][0], &site),
            (&status["syncSets"][1], &site),
            (&status["selectorSyncSets"][0], &Value::Null),
        ] {
            assert_eq!(&entry["superseded"], expected, "{entry}");
        }
        stage.remove("selectorsyncsets/0").await;
        stage.has(plane, &[("site", json!({"by": "b2"}))]).await;
        stage.wants("b", &[]).await;
        stage.has(plane, &[("site", json!({"by": "a"}))]).await;
        stage.at_rest().await;
        assert_eq!(watching.deleted(&stage, plane).await, Vec::<String>::new());
        stage.remove(&stage.path("syncsets", "a")).await;
        stage.has(plane, &[]).await;
    });
}

#[test]
fn a_renamed_syncset_keeps_its_objects() {
    run(async {
        let stage = Stage::new("renamed").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let map = |version: &str| stage.config_map("site", &json!({"version": version}));
        stage.syncset("before", "Sync", &[map("1")]).await;
        stage.has(plane, &[("site", json!({"version": "1"}))]).await;
        let watching = Watching::begin(&stage, plane).await;
        stage.syncset("after", "Sync", &[map("1")]).await;
        stage.remove(&stage.path("syncsets", "before")).await;
        stage.succeeds("west-1", "after", 1).await;
        // Into the other direction of the names' order.
        stage.syncset("zenith", "Sync", &[map("2")]).await;
        stage.remove(&stage.path("syncsets", "after")).await;
        stage.succeeds("west-1", "zenith", 1).await;
        stage.has(plane, &[("site", json!({"version": "2"}))]).await;
        assert_eq!(watching.deleted(&stage, plane).await, Vec::<String>::new());
        let status = stage.status("west-1", "one entry", |status| status["syncSets"].as_array().unwrap().len() == 1);
        assert_eq!(status.await["syncSets"][0]["name"], "zenith");
    });
}

#[test]
fn a_syncset_created_again_with_equal_generation_is_another_one() {
    run(async {
        let stage = Stage::new("again").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let map = |name: &str, round: &str| stage.config_map(name, &json!({"round": round}));
        stage.syncset("base", "Sync", &[map("kept", "1"), map("same", "1"), map("dropped", "1")]).await;
        stage.succeeds("west-1", "base", 1).await;
        let watching = Watching::begin(&stage, plane).await;
        // Between the two the cluster is not looked at.
        stage.pause(true).await;
        stage.remove(&stage.path("syncsets", "base")).await;
        let created = stage.syncset("base", "Sync", &[map("kept", "2"), map("same", "1")]).await;
        assert_eq!(created["generation"], 1);
        stage.pause(false).await;
        stage.has(plane, &[("kept", json!({"round": "2"})), ("same", json!({"round": "1"}))]).await;
        stage.succeeds("west-1", "base", 1).await;
        for found in stage.config_maps(plane).await {
            assert_eq!(json!(found.annotations()["towline.dev/syncset-id"]), created["id"], "{}", found.name_any());
        }
        assert_eq!(watching.deleted(&stage, plane).await, ["dropped"]);
    });
}

/// Labels pass objects on from one selector to another one, in both orders of their names.
#[test]
fn an_object_that_passes_to_another_selector_with_a_label_is_never_absent() {
    run(async {
        let stage = Stage::new("relabelled").await;
        let plane = stage.register("west-1", &json!({"env": "test"}), 0).await;
        let selecting = async |name: &str, env: &str, object: &str| {
            let map = stage.config_map(object, &json!({"by": env}));
            let spec = json!({"clusterDeploymentSelector": {"matchLabels": {"env": env}}, "resourceApplyMode": "Sync", "resources": [map]});
            stage.create("selectorsyncsets", &json!({"name": format!("relabelled-{name}"), "spec": spec})).await;
        };
        for (name, env, object) in
            [("a", "test", "first"), ("b", "prod", "first"), ("c", "prod", "second"), ("d", "test", "second")]
        {
            selecting(name, env, object).await;
        }
        let both = |by: &str| [("first", json!({"by": by})), ("second", json!({"by": by}))];
        stage.has(plane, &both("test")).await;
        stage.at_rest().await;
        let watching = Watching::begin(&stage, plane).await;
        for env in ["prod", "test", "prod"] {
            stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"env": env}})).await;
            stage.has(plane, &both(env)).await;
            stage.at_rest().await;
        }
        assert_eq!(watching.deleted(&stage, plane).await, Vec::<String>::new());
        // Without a label nobody wants them.
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"env": null}})).await;
        stage.has(plane, &[]).await;
    });
}
