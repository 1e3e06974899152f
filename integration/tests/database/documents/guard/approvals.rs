//! An approval lets go what the guard has checked, and nothing else.

use std::sync::atomic::{AtomicBool, Ordering};

use integration::postgres::ADMIN;
use towline::test_api::documents::{Kind, open};
use towline::test_api::syncset::dispatch::{DispatchError, SuspendedSyncset, suspended};
use towline::test_api::syncset::plan::guard::Cause;
use towline::test_api::syncset::plan::wanted::Deletions;

use super::{TEST, World, annotated, approve, map, of_env, selector};
use crate::documents::dispatch::removal;
use crate::documents::world::{run, source};

#[test]
fn an_approved_edit_approves_no_labels_that_are_lost_afterwards() {
    run(async {
        for by_annotation in [false, true] {
            let world = World::new(&format!("edit_and_labels_{by_annotation}"), 12).await;
            world.changes(selector(2, &of_env("prod"), 2, &[])).await;
            assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)));
            if by_annotation {
                world.changes(annotated(selector(2, &of_env("prod"), 2, &[]), "2")).await;
            } else {
                // Whoever has seen what is held has not seen what an edit makes of it.
                let seen = suspended(&world.stage.database()).await.expect("a list");
                world.changes(selector(3, &of_env("prod"), 2, &[])).await;
                let now = suspended(&world.stage.database()).await.expect("a list");
                assert_eq!((seen[0].generation, now[0].generation), (2, 3));
                assert_ne!(seen[0].as_object(), now[0].as_object());
                let approved = approve(&world.stage.database(), None).await.expect("it is approved");
                assert_eq!(approved.iter().map(|suspended| suspended.cause).collect::<Vec<_>>(), [Cause::Many]);
            }
            assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
            for number in 0..12 {
                world.relabels(number, &TEST).await;
            }
            world.leader.all().await;
            assert_eq!((world.suspended().await, world.deleted().await), (Some((12, 12, Cause::Many)), 0));
            approve(&world.stage.database(), Some("base")).await.expect("it is approved");
            assert_eq!((world.suspended().await, world.deleted().await), (None, 12));
            // An annotation is a change of the document, which is recorded as such.
            let records = "select count(*) from towline_history where (actor, address, via, verb, kind, namespace, name) = \
                 ('', '10.0.0.7', 'admin', 'approve', 'selectorsyncsets', '', 'base') \
                 and id in (select id from selectorsyncsets) and details like '%deletions on 12 clusters%'";
            assert_eq!(world.stage.number(records).await, if by_annotation { 1 } else { 2 });
        }
    });
}

/// As many objects as were approved, of which none was deleted yet.
#[test]
fn an_edit_ends_what_was_approved_before_it() {
    run(async {
        let world = World::new("approved_then_edited", 12).await;
        world.changes(selector(2, &of_env("prod"), 2, &[])).await;
        approve(&world.stage.database(), None).await.expect("it is approved");
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        world.changes(selector(3, &of_env("prod"), 0, &[map("m8"), map("m9")])).await;
        assert_eq!(
            (world.suspended().await, world.deletions().await),
            (Some((12, 12, Cause::Many)), Deletions::Suspended)
        );
    });
}

#[test]
fn an_approval_is_not_lost_if_it_comes_while_the_syncset_is_checked() {
    run(async {
        let world = World::new("approved_meanwhile", 12).await;
        world.changes(selector(2, &of_env("prod"), 2, &[])).await;
        world.writes(annotated(selector(2, &of_env("prod"), 2, &[]), "x")).await;
        let is_approved = AtomicBool::new(false);
        let url = world.stage.place.url(ADMIN);
        let checked = || {
            if is_approved.swap(true, Ordering::SeqCst) {
                return;
            }
            // With a pool of its own: the batch goes on when it is done.
            let url = url.clone();
            let approval = std::thread::spawn(move || {
                let runtime = tokio::runtime::Runtime::new().expect("a runtime");
                runtime.block_on(async { approve(&open(source(&url)), None).await.expect("it is approved").len() })
            });
            assert_eq!(approval.join().expect("no panic"), 1);
        };
        let batch = world.leader.dispatch.batch_in_pages(&world.leader.grant, &checked).await.expect("a batch");
        assert_eq!((batch.changes, batch.has_more, world.suspended().await), (0, true, None), "it is repeated");
        assert_eq!(world.leader.batch().await.changes, 1);
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
    });
}

#[test]
fn a_name_approves_none_of_several_syncsets_and_an_id_one() {
    run(async {
        let world = World::new("namesakes", 12).await;
        world.changes(removal(Kind::SelectorSyncSet, "base")).await;
        world.changes(selector(1, &of_env("prod"), 10, &[])).await;
        world.applied().await;
        world.changes(selector(2, &of_env("prod"), 2, &[])).await;
        let database = world.stage.database();
        let both = suspended(&database).await.expect("a list");
        assert_eq!(both.iter().map(SuspendedSyncset::argument).collect::<Vec<_>>(), ["base", "base"]);
        let error = approve(&database, Some("base")).await.expect_err("which one is not known");
        let text = error.to_string();
        assert!(both.iter().all(|suspended| text.contains(&suspended.id.to_string())), "{text}");
        assert!(matches!(error, DispatchError::Ambiguous { .. }) && text.contains("it was deleted"), "{text}");
        assert_eq!(suspended(&database).await.expect("a list").len(), 2, "nothing is approved");
        let gone = both.iter().find(|suspended| suspended.cause == Cause::Gone).expect("one that is gone");
        assert_eq!(approve(&database, Some(&gone.id.to_string())).await.expect("one"), std::slice::from_ref(gone));
        let rest = approve(&database, Some("base")).await.expect("the other one");
        assert_eq!(rest.iter().map(|suspended| suspended.cause).collect::<Vec<_>>(), [Cause::Many]);
        assert_eq!(suspended(&database).await.expect("a list"), []);
    });
}
