//! Clusters that get other labels, one by one and at once.

use towline::test_api::syncset::plan::guard::Cause;
use towline::test_api::syncset::plan::wanted::Deletions;

use super::{PROD, TEST, World, approve, of_env, selector};
use crate::documents::dispatch::asked;
use crate::documents::world::run;

#[test]
fn clusters_that_lose_their_labels_one_by_one_lose_objects_until_the_limit_is_reached() {
    run(async {
        let world = World::new("wiped", 30).await;
        let mut deleted = 0;
        for numbers in (0..12).map(|number| number..number + 1).chain(std::iter::once(12..30)) {
            for number in numbers {
                world.relabels(number, &TEST).await;
            }
            world.leader.all().await;
            deleted += world.deleted().await;
        }
        assert_eq!((deleted, world.suspended().await), (10, Some((30, 30, Cause::Many))));
        // Labels come back on all but one of those where the objects still are.
        asked(&world.stage).await;
        for number in 11..30 {
            world.relabels(number, &PROD).await;
        }
        assert_eq!((world.leader.all().await, world.suspended().await), (19, Some((11, 30, Cause::Many))));
        // Also if fewer count than may be lost: a repair takes its time.
        world.later("1 h").await;
        world.relabels(11, &[("env", "prod"), ("x", "y")]).await;
        world.relabels(10, &[("env", "test"), ("x", "y")]).await;
        world.leader.all().await;
        world.tidied().await;
        assert_eq!(world.suspended().await, Some((1, 20, Cause::Many)));
        world.stage.run("update towline_deleted set at = now()").await;
        assert_eq!(world.deleted().await, 0);
        asked(&world.stage).await;
        world.relabels(10, &PROD).await;
        world.leader.all().await;
        assert_eq!(
            (world.suspended().await, asked(&world.stage).await.len()),
            (None, 20),
            "all where it tracks objects"
        );
        assert_eq!(world.deleted().await, 0);
        // What was lost counts for ten minutes, and then the next may go.
        world.relabels(10, &TEST).await;
        world.leader.all().await;
        assert_eq!(world.suspended().await, Some((11, 30, Cause::Many)));
        world.relabels(10, &PROD).await;
        world.leader.all().await;
        world.later("10 min").await;
        world.relabels(10, &TEST).await;
        world.leader.all().await;
        assert_eq!((world.suspended().await, world.deleted().await), (None, 1));
        world.tidied().await;
        assert_eq!(world.stage.number("select count(*) from towline_deleted").await, 1);
    });
}

#[test]
fn a_loss_that_was_carried_out_and_mended_does_not_hide_the_next_one() {
    run(async {
        let world = World::new("mended_loss", 12).await;
        let deleted = "select count(*) from towline_deleted";
        // The labels of one cluster after the other are lost for a while, and its objects with them.
        for number in 0..12 {
            world.relabels(number, &TEST).await;
            world.leader.all().await;
            assert_eq!((world.suspended().await, world.deleted().await), (None, 1));
            world.relabels(number, &PROD).await;
            world.leader.all().await;
            world.applied().await;
            world.later("9 min").await;
            world.tidied().await;
        }
        assert_eq!(world.stage.number(deleted).await, 1, "they count for ten minutes, whatever is tracked since");
        for number in 0..12 {
            world.relabels(number, &TEST).await;
        }
        world.leader.all().await;
        assert_eq!((world.suspended().await, world.deleted().await), (Some((12, 12, Cause::Many)), 0));
    });
}

#[test]
fn a_loss_that_was_approved_does_not_hide_the_next_one() {
    run(async {
        let world = World::new("approved_before", 12).await;
        for generation in [2, 4] {
            world.changes(selector(generation, &of_env("none"), 10, &[])).await;
            assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)), "generation {generation}");
            approve(&world.stage.database(), None).await.expect("it is approved");
            world.stage.run("delete from towline_applied").await;
            world.changes(selector(generation + 1, &of_env("prod"), 10, &[])).await;
            world.applied().await;
        }
        for number in 0..12 {
            world.relabels(number, &TEST).await;
        }
        world.leader.all().await;
        assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)));
    });
}

#[test]
fn labels_that_are_wiped_at_once_delete_nothing() {
    run(async {
        let world = World::new("wiped_at_once", 30).await;
        for number in 0..30 {
            world.relabels(number, &TEST).await;
        }
        let batch = world.leader.batch().await;
        assert_eq!((batch.changes, batch.suspended, batch.resumed), (30, 1, 0));
        assert_eq!((world.suspended().await, world.deleted().await), (Some((30, 30, Cause::Many)), 0));
    });
}

#[test]
fn clusters_wait_no_longer_once_nothing_is_left_of_what_was_held() {
    run(async {
        let world = World::new("woken", 30).await;
        for number in 0..11 {
            world.relabels(number, &TEST).await;
        }
        world.leader.all().await;
        assert_eq!(world.suspended().await, Some((11, 30, Cause::Many)));
        let kept = world.ids("select id::text from clusters where name = 'c29'").await;
        let deletions = || world.deletions_on(&kept[0]);
        asked(&world.stage).await;
        world.tidied().await;
        assert_eq!((asked(&world.stage).await.len(), deletions().await), (0, Deletions::Suspended));
        // Somebody else removes the objects; other clusters may have something to delete.
        let lost = "select cluster from towline_lost";
        world
            .stage
            .run(&format!("delete from towline_applied where cluster in ({lost} order by cluster offset 1)"))
            .await;
        world.tidied().await;
        assert_eq!((asked(&world.stage).await.len(), deletions().await), (0, Deletions::Suspended), "one is left");
        world.stage.run(&format!("delete from towline_applied where cluster in ({lost})")).await;
        world.tidied().await;
        assert_eq!((asked(&world.stage).await.len(), deletions().await), (19, Deletions::Allowed));
        world.tidied().await;
        assert_eq!(asked(&world.stage).await.len(), 0);
    });
}

#[test]
fn objects_that_were_adopted_do_not_count() {
    run(async {
        let world = World::new("adopted", 12).await;
        let adopt =
            "update towline_applied set adopted = true where cluster = (select id from clusters where name = 'c0')";
        world.stage.run(adopt).await;
        world.stage.run("update towline_applied set adopted = true where name = 'm0'").await;
        for number in 0..10 {
            world.relabels(number, &TEST).await;
        }
        world.leader.all().await;
        assert_eq!(world.stage.number("select count(*) from towline_lost").await, 9, "all but the first");
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        for number in 10..12 {
            world.relabels(number, &TEST).await;
        }
        world.leader.all().await;
        assert_eq!(world.suspended().await, Some((11, 11, Cause::Many)));
        world.changes(selector(2, &of_env("none"), 10, &[])).await;
        assert_eq!(world.suspended().await, Some((11, 11, Cause::Many)), "checked as a whole");
        // Only what was adopted is left, which holds nothing, and is to be released.
        world.stage.run("delete from towline_applied where not adopted").await;
        asked(&world.stage).await;
        world.tidied().await;
        assert_eq!((world.suspended().await, asked(&world.stage).await.len()), (None, 12));
    });
}
