//! The guard checks what a rollout would delete on all clusters before the first cluster gets the new revision.

use serde_json::json;
use towline::test_api::documents::Item;
use towline::test_api::syncset::plan::guard::Cause;
use towline::test_api::syncset::plan::wanted::Deletions;

use super::{World, annotated, approve, map, of_env, selector, with};
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
        world.stage.run("update towline_rollout set goal = stable, judged = false, state = 'RollingBack'").await;
        world.changes(annotated(rolling(selector(2, &selects, 10, &added)), "y")).await;
        assert_eq!(
            (world.suspended().await, world.deletions().await),
            (Some((12, 12, Cause::Many)), Deletions::Suspended)
        );
        approve(&world.stage.database(), None).await.expect("it is approved");
        world.changes(annotated(rolling(selector(2, &selects, 10, &added)), "z")).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        // Whom it is for is judged by the document, whatever the revision is.
        world.changes(rolling(selector(3, &of_env("test"), 10, &added))).await;
        assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)));
    });
}
