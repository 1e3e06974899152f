//! The guard checks what a rollout would delete on all clusters before the first cluster gets the new revision.

use serde_json::json;
use towline::test_api::documents::Item;
use towline::test_api::syncset::dispatch::{SuspendedSyncset, suspended};
use towline::test_api::syncset::plan::guard::Cause;
use towline::test_api::syncset::plan::wanted::Deletions;

use super::{World, annotated, approve, map, namespace, of_env, selector, with};
use crate::documents::world::run;

fn rolling(item: Item) -> Item {
    with(item, "/spec/rollout", json!({"waves": []}))
}

#[test]
fn what_a_rollout_drops_is_held_before_it_begins_and_while_it_runs() {
    run(async {
        let world = World::new("rolls", 12).await;
        let (selects, many) = (of_env("prod"), Some((12, 12, Cause::Many)));
        world.changes(rolling(selector(2, &selects, 10, &[]))).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        world.changes(rolling(selector(3, &selects, 2, &[]))).await;
        assert_eq!((world.suspended().await, world.deletions().await), (many, Deletions::Suspended));
        // The same once it has begun.
        world.stage.run("update towline_rollout set started = edited, goal = newest").await;
        world.tidied().await;
        assert_eq!(world.suspended().await, many);
        approve(&world.stage.database(), None).await.expect("it is approved");
        assert_eq!(world.deletions().await, Deletions::Allowed);
        world.changes(annotated(rolling(selector(3, &selects, 2, &[])), "x")).await;
        assert_eq!(world.suspended().await, None, "what was approved is not checked again");
        // Another edit, and back to what was approved.
        world.changes(rolling(selector(4, &selects, 1, &[]))).await;
        assert_eq!(world.suspended().await, many);
        world.changes(rolling(selector(5, &selects, 10, &[]))).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed), "taken back");
    });
}

#[test]
fn a_way_back_that_drops_what_the_rollout_has_sent_is_held() {
    run(async {
        let world = World::new("rolls_back", 12).await;
        let selects = of_env("prod");
        let added: Vec<_> = (0..20).map(|n| map(&format!("x{n}"))).collect();
        world.changes(rolling(selector(2, &selects, 10, &added))).await;
        world.stage.run("update towline_rollout set started = edited, goal = newest").await;
        let sent = "insert into towline_applied select c.id, '', 'ConfigMap', 'default', 'x' || n, s.id, 'v1', null, true, true, false, null, \
             null, null, 0 from clusters c, selectorsyncsets s, generate_series(0, 19) n";
        world.stage.run(sent).await;
        world.changes(annotated(rolling(selector(2, &selects, 10, &added)), "x")).await;
        assert_eq!(world.suspended().await, None);
        // The document stays as it is.
        world.stage.run("update towline_rollout set goal = stable, guarded = false, state = 'RollingBack'").await;
        world.changes(annotated(rolling(selector(2, &selects, 10, &added)), "y")).await;
        assert_eq!(
            (world.suspended().await, world.deletions().await),
            (Some((12, 12, Cause::Many)), Deletions::Suspended)
        );
        approve(&world.stage.database(), None).await.expect("it is approved");
        world.changes(annotated(rolling(selector(2, &selects, 10, &added)), "z")).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        // Whom it is for is read from the document, whatever the revision is.
        world.changes(rolling(selector(3, &of_env("test"), 10, &added))).await;
        assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)));
    });
}

#[test]
fn after_an_abort_nothing_is_held_that_clusters_keep() {
    run(async {
        let world = World::new("aborted", 12).await;
        let selects = of_env("prod");
        world.changes(rolling(selector(2, &selects, 10, &[]))).await;
        let with_a_namespace = || rolling(selector(3, &selects, 2, &[namespace()]));
        world.changes(with_a_namespace()).await;
        assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)), "the others would lose most of it");
        // Some of the clusters have had their turns.
        let released = "insert into towline_turn select r.syncset, c.id, 2, 1, 0, 0 from towline_rollout r, clusters c where c.name < 'c3'";
        let sent = "insert into towline_applied select c.id, '', 'Namespace', '', 'monitoring', s.id, 'v1', null, true, true, false, null, \
             null, null, 0 from clusters c, selectorsyncsets s where c.name < 'c3'";
        let dropped = "delete from towline_applied where name >= 'm2' and name <= 'm9' and cluster in (select id from clusters where name < 'c3')";
        for text in [released, sent, dropped] {
            world.stage.run(text).await;
        }
        let abort = "update towline_rollout set started = edited, goal = newest, number = 1, state = 'Stopped', reason = 'Aborted'";
        world.stage.run(abort).await;
        world.tidied().await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        world.changes(annotated(with_a_namespace(), "x")).await;
        assert_eq!(world.suspended().await, None);
        // Whom it is for still counts, and so does an undo.
        world.changes(rolling(selector(4, &of_env("test"), 2, &[namespace()]))).await;
        assert!(world.suspended().await.is_some_and(|(clusters, ..)| clusters == 12));
        world.changes(with_a_namespace()).await;
        assert_eq!(world.suspended().await, None);
        world
            .stage
            .run("update towline_rollout set goal = stable, guarded = false, state = 'RollingBack', reason = ''")
            .await;
        world.changes(annotated(with_a_namespace(), "y")).await;
        assert!(world.suspended().await.is_some_and(|(.., cause)| cause == Cause::Precious));
    });
}

#[test]
fn an_approval_is_of_the_revision_that_was_shown() {
    run(async {
        let world = World::new("shownrevision", 12).await;
        let selects = of_env("prod");
        for (generation, maps) in [(2, 10), (3, 2), (4, 1)] {
            world.changes(rolling(selector(generation, &selects, maps, &[]))).await;
        }
        let database = world.stage.database();
        let seen = suspended(&database).await.expect("a list");
        // Back to the second one, of which as much is held at the same generation.
        world
            .stage
            .run("update towline_rollout set started = edited, goal = 2, guarded = false, state = 'RollingBack'")
            .await;
        world.changes(annotated(rolling(selector(4, &selects, 1, &[])), "x")).await;
        let now = suspended(&database).await.expect("a list");
        let held = |of: &[SuspendedSyncset]| {
            of.iter().map(|one| (one.generation, one.clusters, one.cause)).collect::<Vec<_>>()
        };
        assert_eq!((held(&seen), held(&now)), (vec![(4, 12, Cause::Many)], vec![(4, 12, Cause::Many)]));
        assert_eq!((seen[0].revision, now[0].revision), (Some(3), Some(2)));
        assert_ne!(seen[0].as_object(), now[0].as_object(), "so an approval of what was shown is refused");
    });
}
