//! After a restore or a promotion, watches end with 410 and versions begin again above all earlier ones.

use serde_json::json;
use towline::test_api::documents::{
    BlockingPool, Ending, Fields, Filter, Key, Kind, LargeSlots, ListError, ListQuery, SlotOwner, Store, Tail, Watch,
    WatchQuery, list, list_json,
};

use crate::documents_read::world::{LIMIT, World, run};

const RING: usize = 1 << 20;
/// How far versions are lifted.
const LIFT: i64 = 1 << 40;

async fn start(tail: &Tail, from: i64) -> Result<Watch, ListError> {
    tail.watch(WatchQuery { filter: Filter::of(Kind::Cluster), fields: Fields::All, from: Some(from) }).await
}

async fn put(world: &World, number: u64) -> i64 {
    world.put(number, Kind::Cluster, ("n", "a"), &json!({}), &json!({"content": number})).await
}

/// Does something to the database, after which a watch must end with 410 whatever its position, and a version of before is gone.
/// Returns that version, and the next one after it.
async fn after(name: &str, what: impl AsyncFnOnce(&World, i64)) -> (i64, i64) {
    let world = World::new(name).await;
    let replicas = [world.tail(RING), world.tail(RING)];
    let mut version = 0;
    for number in 1..=5 {
        version = put(&world, number).await;
    }
    let mut watches = Vec::new();
    for replica in &replicas {
        watches.push(start(&replica.tail, version).await.expect("a watch"));
    }
    what(&world, version).await;
    for watch in &mut watches {
        let ending =
            tokio::time::timeout(LIMIT, watch.next()).await.expect("an ending in time").expect_err("an ending");
        assert!(matches!(ending, Ending::Gone), "{ending:?}");
    }
    for replica in &replicas {
        assert!(matches!(start(&replica.tail, version).await, Err(ListError::Gone)));
    }
    let newer = put(&world, 6).await;
    for replica in &replicas {
        let mut watch = start(&replica.tail, newer - 1).await.expect("a watch");
        let event = watch.next().await.expect("an event");
        assert_eq!(event.resume_version(), Some(newer));
    }
    (version, newer)
}

#[test]
fn another_origin_is_renumbered_once_and_ends_the_watches_of_all_replicas() {
    run(async {
        let elsewhere = async |world: &World, _| world.run("update towline_meta set origin = 'elsewhere'").await;
        let (version, newer) = after("origin", elsewhere).await;
        assert_eq!(newer, version + LIFT + 1);
    });
}

#[test]
fn a_replica_that_is_ahead_of_the_database_renumbers_it() {
    run(async {
        let snapshot = async |world: &World, version: i64| {
            let lost = format!("delete from towline_log where version = {version}");
            world.run(&format!("{lost}; update towline_documents set version = version - 1")).await;
        };
        let (version, newer) = after("snapshot", snapshot).await;
        // Each replica may have found it.
        assert!([1, 2].map(|times| version + times * LIFT + 1).contains(&newer), "{newer} after {version}");
    });
}

#[test]
fn a_replica_that_has_missed_compacted_rows_ends_its_watches() {
    run(async {
        let missed = async |world: &World, version: i64| {
            let base = version + 10;
            world
                .run(&format!("update towline_meta set base = {base}; select setval('towline_version', {base})"))
                .await;
        };
        let (version, newer) = after("missed", missed).await;
        assert_eq!(newer, version + 11);
    });
}

/// Whether documents can be read, in each way that is not a watch, one after another.
async fn reads(world: &World) -> [bool; 4] {
    let (store, key) = (Store::new(world.database.clone()), Key::new(Kind::Cluster, "n", "a"));
    let query = ListQuery { filter: Filter::of(Kind::Cluster), fields: Fields::All, limit: 1, after: None };
    let is_read = |found: Result<bool, ListError>| match found {
        Ok(found) => {
            assert!(found, "a document that is there");
            true
        }
        Err(ListError::Restoring) => false,
        Err(other) => panic!("{other}"),
    };
    [
        is_read(list(&world.database, &query).await.map(|page| page.items[0].name == "a")),
        list_json(
            &world.database,
            &BlockingPool::default(),
            &query,
            (&LargeSlots::new("large ones", 1, 0), SlotOwner::default()),
        )
        .await
        .is_ok(),
        is_read(store.get(&key).await.map(|found| found.is_some())),
        is_read(store.stored(&key).await.map(|found| found.is_some())),
    ]
}

#[test]
fn a_database_that_is_being_restored_is_not_read() {
    run(async {
        let world = World::new("restoring").await;
        put(&world, 1).await;
        put(&world, 2).await;
        assert_eq!(reads(&world).await, [true; 4]);
        let query = |after| ListQuery { filter: Filter::of(Kind::Cluster), fields: Fields::All, limit: 1, after };
        world.put(3, Kind::Cluster, ("n", "b"), &json!({}), &json!({})).await;
        let first = list(&world.database, &query(None)).await.expect("a page");
        // Each of these is a moment of a restore; the other tables may be full, or not.
        world.run("create table kept as select * from towline_meta").await;
        for moment in [
            "delete from towline_meta",
            "insert into towline_meta select * from kept; update towline_meta set origin = 'another'",
            "update towline_meta set origin = towline_origin(), base = 10; select setval('towline_version', 9)",
        ] {
            world.run(moment).await;
            assert_eq!(reads(&world).await, [false; 4], "{moment}");
            let next = list(&world.database, &query(first.next.clone())).await;
            assert!(matches!(next, Err(ListError::Restoring)), "{moment}: {next:?}");
        }
        // A table that is missing is no empty one, either.
        world.run("alter table towline_meta rename to renamed").await;
        assert!(matches!(list(&world.database, &query(None)).await, Err(ListError::Database(_))));
        world.run("alter table renamed rename to towline_meta").await;
        // Nobody writes: the tail renumbers, and then the documents can be read.
        let _replica = world.tail(RING);
        integration::eventually("reads after the versions were renumbered", LIMIT, async || {
            // The tail renumbers at any moment, also between two of them.
            match reads(&world).await {
                [true, true, true, true] => Ok(()),
                others => Err(format!("{others:?}")),
            }
        })
        .await
        .unwrap();
        assert!(world.number("select base from towline_meta").await > LIFT);
        let old = list(&world.database, &query(first.next)).await;
        assert!(matches!(old, Err(ListError::Gone)), "{old:?}");
    });
}
