//! Edits that drop objects, alone or together.

use serde_json::json;
use towline::syncset::dispatch::approve;
use towline::syncset::rules::guard::Cause;
use towline::syncset::rules::wanted::Deletions;

use super::{Court, PROD, annotated, namespace, of_env, selector, with};
use crate::documents::dispatch::{NEWEST, asked};
use crate::documents::world::run;

/// What edits have dropped, as if they had been made so much earlier.
fn dropped_earlier(by: &str) -> String {
    format!(
        "update towline_guard set dropped = (select jsonb_agg(jsonb_set(e, '{{at}}', to_jsonb((e->>'at')::timestamptz - interval '{by}'))) \
           from jsonb_array_elements(dropped) e)"
    )
}

#[test]
fn an_edit_that_drops_much_is_held_until_it_is_taken_back_or_approved() {
    run(async {
        let court = Court::new("drops", 12).await;
        let selects = of_env("prod");
        court.changes(selector(2, &selects, 5, &[])).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed), "a half");
        court.changes(selector(3, &selects, 2, &[])).await;
        assert_eq!((court.held().await, court.deletions().await), (Some((12, 12, Cause::Dropped)), Deletions::Held));
        court.changes(selector(4, &selects, 2, &[namespace()])).await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "something else is added");
        asked(&court.stage).await;
        court.changes(selector(5, &selects, 5, &[namespace()])).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed), "a half is there again");
        assert_eq!(asked(&court.stage).await.len(), 12);
        court.changes(selector(6, &selects, 5, &[])).await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "the namespace");
        let approved = approve(&court.stage.database(), None).await.expect("it is approved");
        assert_eq!((approved.len(), court.deletions().await), (1, Deletions::Allowed));
        court.changes(selector(7, &selects, 5, &[])).await;
        assert_eq!(court.held().await, None, "what was approved is not judged again");
        court.changes(selector(8, &selects, 1, &[])).await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "another edit is");
    });
}

#[test]
fn a_detour_over_upsert_drops_nothing() {
    run(async {
        let court = Court::new("detour", 12).await;
        let selects = of_env("prod");
        for maps in [0, 3] {
            let detour = with(selector(2, &selects, maps, &[]), "/spec/resourceApplyMode", json!("Upsert"));
            court.changes(detour).await;
            assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed), "it deletes nothing");
            court.changes(selector(3, &selects, maps, &[])).await;
            assert_eq!(
                (court.held().await, court.deletions().await),
                (Some((12, 12, Cause::Dropped)), Deletions::Held)
            );
        }
        // Once nobody tracks anything, there is nothing to delete.
        court.changes(with(selector(4, &selects, 0, &[]), "/spec/resourceApplyMode", json!("Upsert"))).await;
        court.stage.run("update towline_applied set tracked = false").await;
        court.changes(with(selector(5, &selects, 1, &[]), "/spec/resourceApplyMode", json!("Upsert"))).await;
        court.stage.run("update towline_applied set tracked = name = 'm0'").await;
        court.changes(selector(6, &selects, 1, &[])).await;
        assert_eq!(court.held().await, None);
    });
}

#[test]
fn what_was_applied_between_two_judgements_is_not_dropped_unseen() {
    run(async {
        let court = Court::new("between", 12).await;
        let selects = of_env("prod");
        court.changes(selector(2, &selects, 5, &[])).await;
        court.stage.run("delete from towline_applied where name >= 'm5'").await;
        // Passes apply what a document says before the dispatcher has read it.
        court.writes(selector(3, &selects, 5, &[namespace()])).await;
        court.writes(selector(4, &selects, 5, &[])).await;
        court.leader.all().await;
        assert_eq!((court.held().await, court.deletions().await), (Some((12, 12, Cause::Dropped)), Deletions::Held));
        court.changes(annotated(selector(4, &selects, 5, &[]), "x")).await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "nothing was taken back");
        court.changes(selector(5, &selects, 5, &[namespace()])).await;
        assert_eq!(court.held().await, None);
        // The same where the log has a gap, or nothing was judged before.
        for change in ["select 1", "delete from towline_guard"] {
            court.changes(selector(6, &selects, 5, &[])).await;
            approve(&court.stage.database(), None).await.expect("approved");
            court.applied().await;
            court.writes(selector(7, &selects, 4, &[])).await;
            court.stage.run(change).await;
            let newest = court.stage.number(NEWEST).await;
            court.stage.run(&format!("update towline_meta set base = {newest}")).await;
            assert!(court.leader.turn().await.was_gap);
            assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "{change}");
            court.changes(selector(8, &selects, 10, &[])).await;
        }
    });
}

/// As after an approval: what is tracked then was applied afterwards.
#[test]
fn what_edits_have_dropped_before_a_release_counts_no_more() {
    run(async {
        let court = Court::new("released", 12).await;
        let selects = of_env("prod");
        for (generation, maps) in [(2, 8), (3, 6), (4, 5)] {
            court.changes(selector(generation, &selects, maps, &[])).await;
            assert_eq!(court.held().await, None, "{maps} are left");
        }
        court.changes(selector(5, &selects, 4, &[])).await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "six of ten");
        court.stage.run("update towline_applied set tracked = false").await;
        court.tidied().await;
        assert_eq!(court.held().await, None, "nobody tracks anything");
        assert_eq!(court.stage.number("select count(*) from towline_guard where dropped is not null").await, 0);
        court.stage.run("update towline_applied set tracked = true where name < 'm4'").await;
        court.changes(selector(6, &selects, 3, &[])).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed), "one of four");
    });
}

#[test]
fn what_was_applied_before_more_edits_than_are_read_is_not_dropped_unseen() {
    run(async {
        let court = Court::new("many_between", 12).await;
        let selects = of_env("prod");
        court.changes(selector(2, &selects, 10, &[])).await;
        court.writes(selector(3, &selects, 10, &[namespace()])).await;
        court
            .stage
            .run(
                "insert into towline_applied select c.id, '', 'Namespace', '', 'monitoring', s.id, 'v1', null, true, true, false, null, null, null, 0 \
                 from clusters c, selectorsyncsets s",
            )
            .await;
        for generation in 4..44 {
            court.writes(with(selector(generation, &selects, 10, &[]), "/spec/x", json!(generation))).await;
        }
        let turn = court.leader.turn().await;
        assert_eq!((turn.changes, turn.held), (41, 1));
        assert_eq!((court.held().await, court.deletions().await), (Some((12, 12, Cause::Dropped)), Deletions::Held));
    });
}

#[test]
fn edits_that_drop_little_each_are_held_once_they_drop_much_within_ten_minutes() {
    run(async {
        let court = Court::new("slices", 12).await;
        let selects = of_env("prod");
        let dropped = Some((12, 12, Cause::Dropped));
        for (generation, maps) in [(2, 8), (3, 6), (4, 5)] {
            court.changes(selector(generation, &selects, maps, &[])).await;
            assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed), "{maps} are left");
        }
        court.changes(selector(5, &selects, 4, &[])).await;
        assert_eq!((court.held().await, court.deletions().await), (dropped, Deletions::Held), "six of ten");
        // What is held does not get old.
        court.stage.run("update towline_guard set since = since - interval '2 h'").await;
        court.stage.run(&dropped_earlier("2 h")).await;
        court.changes(annotated(selector(5, &selects, 4, &[]), "x")).await;
        assert_eq!((court.held().await, court.deletions().await), (dropped, Deletions::Held));
        court.changes(selector(6, &selects, 5, &[])).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed), "taken back");
        // After ten minutes another edit may drop some.
        court.stage.run("update towline_guard set since = now()").await;
        court.changes(selector(7, &selects, 3, &[])).await;
        assert_eq!(court.held().await, None, "two of five");
        court.stage.run(&dropped_earlier("9 min")).await;
        court.changes(selector(8, &selects, 2, &[])).await;
        assert_eq!(court.held().await, dropped, "three of five");
        court.changes(selector(9, &selects, 3, &[])).await;
        court.stage.run(&dropped_earlier("2 min")).await;
        court.changes(selector(10, &selects, 2, &[])).await;
        assert_eq!(court.held().await, None, "one of three");
        // An approval counts for all that was dropped before.
        court.changes(selector(11, &selects, 1, &[])).await;
        assert_eq!(court.held().await, dropped, "two of three");
        approve(&court.stage.database(), None).await.expect("it is approved");
        assert_eq!(court.stage.number("select count(*) from towline_guard where dropped is not null").await, 0);
        court.changes(selector(12, &selects, 20, &[])).await;
        court.changes(selector(13, &selects, 10, &[])).await;
        court.changes(annotated(selector(14, &selects, 9, &[]), "14")).await;
        court.changes(selector(15, &selects, 5, &[])).await;
        assert_eq!(court.held().await, None, "four of nine");
    });
}

#[test]
fn what_one_cluster_may_delete_does_not_count_for_those_that_come_later() {
    run(async {
        let court = Court::new("few", 1).await;
        let selects = of_env("prod");
        court.changes(selector(2, &selects, 1, &[])).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
        for number in 10..30 {
            court.relabels(number, &PROD).await;
        }
        court.applied().await;
        court.changes(selector(3, &selects, 2, &[])).await;
        assert_eq!(court.held().await, None);
    });
}

#[test]
fn what_is_named_again_was_not_dropped() {
    run(async {
        let court = Court::new("again", 12).await;
        let selects = of_env("prod");
        for (generation, maps) in [(2, 5), (3, 10), (4, 5), (5, 10), (6, 5)] {
            court.changes(selector(generation, &selects, maps, &[])).await;
            assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed), "{generation}");
        }
        court.changes(selector(7, &selects, 4, &[])).await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)));
    });
}
