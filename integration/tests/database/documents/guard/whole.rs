//! Syncsets that are checked as a whole: deleted, with another selector, unreadable, approved; and what no check has seen.

use serde_json::{Value, json};
use towline::test_api::documents::{Change, Expected, Kind};
use towline::test_api::syncset::dispatch::{Dispatch, suspended};
use towline::test_api::syncset::plan::guard::Cause;
use towline::test_api::syncset::plan::wanted::Deletions;

use super::{PROD, TEST, World, annotated, approve, of_env, selector};
use crate::documents::dispatch::{CURSOR, NEWEST, asked, document, removal};
use crate::documents::world::{cluster, item, run};

#[test]
fn a_typo_that_matches_nothing_is_held_as_a_whole_until_it_is_taken_back() {
    run(async {
        let world = World::new("typo", 12).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        assert_eq!(world.changes(selector(2, &of_env("prodd"), 10, &[])).await, 12);
        assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)));
        assert_eq!(world.deletions().await, Deletions::Suspended);
        // Neither another edit nor a check of everything lets it go.
        world.changes(selector(3, &of_env("prodd"), 12, &[])).await;
        world.stage.run("update towline_guard set since = since - interval '2 h'").await;
        let newest = world.stage.number(NEWEST).await;
        world
            .stage
            .run(&format!(
                "update towline_meta set base = {newest} + 1; select setval('towline_version', {newest} + 1)"
            ))
            .await;
        assert!(world.leader.batch().await.was_gap);
        world.tidied().await;
        assert_eq!(
            (world.suspended().await, world.deletions().await),
            (Some((12, 12, Cause::Many)), Deletions::Suspended)
        );
        asked(&world.stage).await;
        world.changes(selector(4, &of_env("prod"), 12, &[])).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        assert_eq!(asked(&world.stage).await.len(), 12);
        assert_eq!(world.stage.number("select count(*) from towline_lost").await, 0);
    });
}

#[test]
fn a_syncset_that_is_deleted_by_mistake_keeps_its_objects_until_it_is_approved_by_name() {
    run(async {
        let world = World::new("deleted", 12).await;
        world.changes(removal(Kind::SelectorSyncSet, "base")).await;
        assert_eq!(
            (world.suspended().await, world.deletions().await),
            (Some((12, 12, Cause::Gone)), Deletions::Suspended)
        );
        // That clusters go takes nothing back.
        world.changes(item(vec![Change::delete(&cluster("c11"), Expected::Any)])).await;
        world.changes(item(vec![Change::delete(&cluster("c10"), Expected::Any)])).await;
        world.tidied().await;
        let database = world.stage.database();
        for other in ["other", "foo/base", "Base"] {
            assert_eq!(approve(&database, Some(other)).await.expect("nothing"), [], "{other}");
        }
        assert_eq!(world.deletions().await, Deletions::Suspended);
        asked(&world.stage).await;
        let approved = approve(&database, Some("base")).await.expect("it is approved");
        assert_eq!(approved.len(), 1);
        assert!(approved[0].as_object().reason.contains("it was deleted"), "{approved:?}");
        assert_eq!(asked(&world.stage).await.len(), 10);
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        // The row stays as long as anybody may have to delete something.
        let guards = "select count(*) from towline_guard where gone";
        for (change, expected) in [
            ("update towline_guard set since = since - interval '2 h'", 1),
            ("update towline_guard set since = now(); delete from towline_applied", 1),
            ("update towline_guard set since = since - interval '2 h'", 0),
        ] {
            world.stage.run(change).await;
            world.tidied().await;
            assert_eq!(world.stage.number(guards).await, expected, "{change}");
        }
    });
}

#[test]
fn an_annotation_approves_its_generation_once_and_always_as_long_as_it_is_there() {
    run(async {
        let world = World::new("annotated", 12).await;
        let (none, prod) = (of_env("none"), of_env("prod"));
        world.changes(annotated(selector(2, &none, 10, &[]), "1")).await;
        assert!(world.suspended().await.is_some(), "another generation");
        asked(&world.stage).await;
        world.changes(annotated(selector(2, &none, 10, &[]), "2")).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        assert_eq!(asked(&world.stage).await.len(), 12);
        world.changes(annotated(selector(3, &prod, 10, &[]), "2")).await;
        world.changes(annotated(selector(4, &prod, 1, &[]), "4")).await;
        assert_eq!(world.suspended().await, None, "it comes with the edit");
        // What happens later at this generation was not known.
        for number in 0..12 {
            world.relabels(number, &TEST).await;
        }
        world.leader.all().await;
        assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)));
        world.changes(annotated(selector(4, &prod, 1, &[]), "always")).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        for labels in [&PROD, &TEST] {
            for number in 0..12 {
                world.relabels(number, labels).await;
            }
            world.leader.all().await;
            assert_eq!(world.suspended().await, None);
        }
        world.changes(removal(Kind::SelectorSyncSet, "base")).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
    });
}

#[test]
fn a_syncset_that_names_fewer_clusters_is_held() {
    run(async {
        let world = World::new("refs", 12).await;
        let names = |generation: i64, count: usize| {
            let refs: Vec<Value> = (0..count).map(|n| json!({"name": format!("c{n}")})).collect();
            let map =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"}});
            let data = json!({"spec": {"clusterDeploymentRefs": refs, "resourceApplyMode": "Sync", "resources": [map], "patches": [],
                "secretMappings": []}});
            document(Kind::SyncSet, "named", generation, data, &[])
        };
        world.changes(names(1, 12)).await;
        world
            .stage
            .run(
                "delete from towline_applied; insert into towline_applied select c.id, '', 'ConfigMap', 'default', 'm', s.id, 'v1', null, \
                 true, true, false, null, null, null, 0 from clusters c, syncsets s",
            )
            .await;
        world.changes(names(2, 2)).await;
        assert_eq!(suspended(&world.stage.database()).await.expect("a list"), [], "ten of twelve");
        world.changes(names(3, 1)).await;
        let suspended = suspended(&world.stage.database()).await.expect("a list");
        assert_eq!(
            (suspended[0].clusters, suspended[0].tracks, suspended[0].argument().as_str()),
            (11, 12, "foo/named")
        );
        let approved = approve(&world.stage.database(), Some("foo/named")).await.expect("it is approved");
        assert_eq!(approved, suspended);
    });
}

#[test]
fn nothing_is_deleted_ahead_of_the_dispatcher() {
    run(async {
        let world = World::new("lagging", 12).await;
        // Neither a cluster without its labels, nor a syncset that matches nothing, drops everything or is gone.
        world.relabels(0, &TEST).await;
        assert_eq!(world.deletions().await, Deletions::Unchecked);
        world.leader.all().await;
        assert_eq!(world.deletions().await, Deletions::Allowed, "one of twelve");
        for item in [
            selector(2, &of_env("none"), 10, &[]),
            selector(3, &of_env("prod"), 0, &[]),
            removal(Kind::SelectorSyncSet, "base"),
        ] {
            world.writes(item).await;
            assert_eq!(world.deletions().await, Deletions::Unchecked);
        }
        // A cursor alone is no permission.
        let cursor = world.stage.number(CURSOR).await;
        world.stage.run("update towline_claim set cursor = cursor + 100 where name = 'dispatcher'").await;
        assert_eq!(world.deletions().await, Deletions::Unchecked);
        world.stage.run(&format!("update towline_claim set cursor = {cursor} where name = 'dispatcher'")).await;
        world.leader.all().await;
        assert_eq!(world.suspended().await, Some((12, 12, Cause::Gone)));
        // Another syncset of that name is another one.
        world.changes(selector(1, &of_env("prod"), 10, &[])).await;
        assert_eq!(world.deletions().await, Deletions::Suspended);
    });
}

#[test]
fn a_gap_in_the_log_hides_no_deletion() {
    run(async {
        let world = World::new("gap", 12).await;
        let gap = async || {
            let newest = world.stage.number(NEWEST).await;
            world.stage.run(&format!("update towline_meta set base = {newest}")).await;
            assert!(world.leader.batch().await.was_gap);
        };
        world.writes(selector(2, &of_env("prod"), 1, &[])).await;
        gap().await;
        assert_eq!(
            (world.suspended().await, world.deletions().await),
            (Some((12, 12, Cause::Many)), Deletions::Suspended)
        );
        world.writes(selector(3, &of_env("prod"), 10, &[])).await;
        gap().await;
        assert_eq!(world.suspended().await, None);
        for number in 0..12 {
            world.relabels(number, &TEST).await;
        }
        gap().await;
        assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)));
        // One that was never checked, and is gone.
        world.writes(removal(Kind::SelectorSyncSet, "base")).await;
        world.stage.run("delete from towline_guard; delete from towline_lost").await;
        gap().await;
        let found = suspended(&world.stage.database()).await.expect("a list");
        assert_eq!(found.iter().map(|suspended| suspended.cause).collect::<Vec<_>>(), [Cause::Gone]);
        assert_eq!(approve(&world.stage.database(), Some(&found[0].argument())).await.expect("approved").len(), 1);
        assert_eq!(world.deletions().await, Deletions::Allowed);
    });
}

#[test]
fn what_can_not_be_read_is_held_and_nobody_approves_it() {
    run(async {
        let world = World::new("unreadable", 3).await;
        let newer = json!({"matchExpressions": [{"key": "env", "operator": "Above", "values": ["1"]}]});
        world.changes(annotated(selector(2, &newer, 10, &[]), "2")).await;
        assert_eq!(world.suspended().await, Some((0, 3, Cause::Unreadable)));
        assert_eq!(approve(&world.stage.database(), None).await.expect("nothing"), []);
        assert_eq!(world.deletions().await, Deletions::Suspended);
        world.changes(selector(3, &of_env("prod"), 10, &[])).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
    });
}

#[test]
fn an_approval_is_not_used_up_while_it_can_not_be_read() {
    run(async {
        let world = World::new("used_up", 12).await;
        let newer = json!({"matchExpressions": [{"key": "env", "operator": "Above", "values": ["1"]}]});
        world.changes(annotated(selector(2, &newer, 10, &[]), "2")).await;
        assert_eq!(world.suspended().await, Some((0, 12, Cause::Unreadable)));
        // The same generation in a form that this release can read: it looks at what is held again.
        world.changes(annotated(selector(2, &of_env("none"), 10, &[]), "2")).await;
        world.tidied().await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
    });
}

#[test]
fn what_can_be_read_by_now_is_checked_again() {
    run(async {
        let world = World::new("readable", 12).await;
        // As a release left it that could not read the document.
        world.stage.run("update towline_guard set held = true, cause = 'unreadable'").await;
        asked(&world.stage).await;
        world.leader.all().await;
        assert_eq!(
            (world.suspended().await, world.deletions().await),
            (Some((0, 0, Cause::Unreadable)), Deletions::Suspended)
        );
        let batch = world.tidied().await;
        assert_eq!((batch.resumed, batch.suspended, asked(&world.stage).await.len()), (1, 0, 12));
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
    });
}

#[test]
fn an_approval_that_was_revoked_does_not_approve_a_deletion() {
    run(async {
        for (annotation, expected) in [("never", Some((12, 12, Cause::Gone))), ("always", None)] {
            let world = World::new(&format!("revoked_{annotation}"), 12).await;
            let other = if annotation == "always" { "never" } else { "always" };
            world.changes(annotated(selector(1, &of_env("prod"), 10, &[]), other)).await;
            world.writes(annotated(selector(1, &of_env("prod"), 10, &[]), annotation)).await;
            world.changes(removal(Kind::SelectorSyncSet, "base")).await;
            assert_eq!(world.suspended().await, expected, "{annotation}");
        }
    });
}

#[test]
fn without_the_guard_everything_is_checked_and_nothing_is_held() {
    run(async {
        let world = World::new("unguarded", 12).await;
        world.changes(selector(2, &of_env("none"), 10, &[])).await;
        assert_eq!(world.deletions().await, Deletions::Suspended);
        let dispatch: Dispatch = world.leader.dispatch.clone().unguarded();
        world.tidied_by(&dispatch).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        world.writes(removal(Kind::SelectorSyncSet, "base")).await;
        assert_eq!(world.deletions().await, Deletions::Unchecked);
        dispatch.batch(&world.leader.grant).await.expect("a batch");
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
    });
}
