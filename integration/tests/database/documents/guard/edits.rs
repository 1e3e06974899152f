//! Edits that drop objects, alone or together.

use serde_json::json;
use towline::test_api::syncset::plan::guard::Cause;
use towline::test_api::syncset::plan::wanted::Deletions;

use super::{World, annotated, approve, map, namespace, of_env, selector, with};
use crate::documents::dispatch::asked;
use crate::documents::world::run;

const NAMESPACES: &str = "insert into towline_applied select c.id, '', 'Namespace', '', 'monitoring', s.id, 'v1', null, true, true, false, null, \
     null, null, 0 from clusters c, selectorsyncsets s";

#[test]
fn an_edit_that_drops_much_is_held_until_it_is_taken_back_or_approved() {
    run(async {
        let world = World::new("drops", 12).await;
        let (selects, many) = (of_env("prod"), Some((12, 12, Cause::Many)));
        world.changes(selector(2, &selects, 6, &[])).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed), "it keeps more");
        world.changes(selector(3, &selects, 2, &[])).await;
        assert_eq!((world.suspended().await, world.deletions().await), (many, Deletions::Suspended));
        // Neither other objects nor some of those that were dropped are all of them.
        for (generation, maps, more) in [(4, 2, 9), (5, 9, 0)] {
            let further: Vec<_> = (0..more).map(|n| map(&format!("x{n}"))).collect();
            world.changes(selector(generation, &selects, maps, &further)).await;
            assert_eq!(world.suspended().await, many, "generation {generation}");
        }
        asked(&world.stage).await;
        world.changes(selector(6, &selects, 10, &[])).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed), "taken back");
        assert_eq!(asked(&world.stage).await.len(), 12);
        world.changes(selector(7, &selects, 2, &[])).await;
        let approved = approve(&world.stage.database(), None).await.expect("it is approved");
        assert_eq!((approved.len(), world.deletions().await), (1, Deletions::Allowed));
        world.changes(annotated(selector(7, &selects, 2, &[]), "x")).await;
        assert_eq!(world.suspended().await, None, "what was approved is not checked again");
        world.changes(selector(8, &selects, 1, &[])).await;
        assert_eq!(world.suspended().await, many, "another edit is");
    });
}

#[test]
fn an_edit_that_replaces_everything_by_more_is_held() {
    run(async {
        let world = World::new("replaced_by_more", 12).await;
        let others: Vec<_> = (0..11).map(|n| map(&format!("x{n}"))).collect();
        world.changes(selector(2, &of_env("prod"), 0, &others)).await;
        assert_eq!(
            (world.suspended().await, world.deletions().await),
            (Some((12, 12, Cause::Many)), Deletions::Suspended)
        );
    });
}

#[test]
fn a_namespace_beside_much_that_stays_is_held() {
    run(async {
        let world = World::new("dropped_namespace", 12).await;
        let selects = of_env("prod");
        world.changes(selector(2, &selects, 10, &[namespace()])).await;
        world.stage.run(NAMESPACES).await;
        assert_eq!(world.suspended().await, None);
        // Passes apply what a document says before the dispatcher has read it.
        world.writes(selector(3, &selects, 10, &[])).await;
        world.writes(selector(4, &selects, 10, &[namespace()])).await;
        world.writes(selector(5, &selects, 10, &[])).await;
        world.leader.all().await;
        assert_eq!(
            (world.suspended().await, world.deletions().await),
            (Some((12, 12, Cause::Precious)), Deletions::Suspended)
        );
        world.changes(selector(6, &selects, 10, &[namespace()])).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
    });
}

#[test]
fn a_detour_over_upsert_drops_nothing() {
    run(async {
        let world = World::new("detour", 12).await;
        let selects = of_env("prod");
        for maps in [0, 3] {
            let detour = with(selector(2, &selects, maps, &[]), "/spec/resourceApplyMode", json!("Upsert"));
            world.changes(detour).await;
            assert_eq!(
                (world.suspended().await, world.deletions().await),
                (None, Deletions::Allowed),
                "it deletes nothing"
            );
            world.changes(selector(3, &selects, maps, &[])).await;
            assert_eq!(
                (world.suspended().await, world.deletions().await),
                (Some((12, 12, Cause::Many)), Deletions::Suspended)
            );
        }
    });
}

#[test]
fn edits_that_drop_little_each_are_held_once_they_drop_much_within_ten_minutes() {
    run(async {
        let world = World::new("slices", 12).await;
        let (selects, many) = (of_env("prod"), Some((12, 12, Cause::Many)));
        let dropped = |maps: usize| {
            let world = &world;
            async move { world.deleted_where(&format!("a.name >= 'm{maps}'")).await }
        };
        for (generation, maps) in [(2, 8), (3, 6)] {
            world.changes(selector(generation, &selects, maps, &[])).await;
            assert_eq!((world.suspended().await, dropped(maps).await), (None, 12), "{maps} are left");
        }
        world.changes(selector(4, &selects, 5, &[])).await;
        assert_eq!((world.suspended().await, dropped(5).await), (many, 0), "five of ten");
        // What is suspended does not get old.
        world.later("10 min").await;
        world.tidied().await;
        assert_eq!((world.suspended().await, world.deletions().await), (many, Deletions::Suspended));
        world.changes(selector(5, &selects, 6, &[])).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed), "taken back");
        // After ten minutes another edit may drop some.
        world.changes(selector(6, &selects, 5, &[])).await;
        assert_eq!((world.suspended().await, dropped(5).await), (None, 12), "one of six");
        world.later("9 min").await;
        world.changes(selector(7, &selects, 3, &[])).await;
        assert_eq!(world.suspended().await, many, "three of six");
        // What was approved does not count afterwards.
        approve(&world.stage.database(), None).await.expect("it is approved");
        assert_eq!(dropped(3).await, 12);
        world.later("2 min").await;
        world.changes(selector(8, &selects, 2, &[])).await;
        assert_eq!((world.suspended().await, dropped(2).await), (None, 12), "one of three");
    });
}

#[test]
fn what_one_cluster_may_delete_does_not_count_for_those_that_come_later() {
    run(async {
        let world = World::new("few", 1).await;
        let selects = of_env("prod");
        world.changes(selector(2, &selects, 1, &[])).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        assert_eq!(world.deleted_where("a.name > 'm0'").await, 1);
        for number in 10..30 {
            world.relabels(number, &super::PROD).await;
        }
        world.applied().await;
        world.changes(selector(3, &selects, 10, &[])).await;
        assert_eq!(world.suspended().await, None);
    });
}
