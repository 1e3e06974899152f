//! What an approval lets go: what was shown, and nothing else.

use towline::documents::Kind;
use towline::syncset::dispatch::{DispatchError, HeldSyncset, approve, held};
use towline::syncset::rules::guard::Cause;
use towline::syncset::rules::wanted::Deletions;

use super::{Court, PROD, TEST, annotated, of_env, selector};
use crate::documents::dispatch::removal;
use crate::documents::world::run;

const WITH_DROPPED: &str = "select count(*) from towline_guard where dropped is not null";

/// All clusters get these labels, and it is dispatched.
async fn all_get(court: &Court, labels: &[(&str, &str)]) {
    for number in 0..12 {
        court.relabels(number, labels).await;
    }
    court.leader.all().await;
}

#[test]
fn an_approved_edit_approves_no_labels_that_were_lost_meanwhile() {
    run(async {
        for by_annotation in [false, true] {
            let court = Court::new(&format!("edit_and_labels_{by_annotation}"), 12).await;
            court.changes(selector(2, &of_env("prod"), 2, &[])).await;
            assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)));
            all_get(&court, &TEST).await;
            assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "it shows one cause");
            // What is held does not get old.
            court.stage.run("update towline_guard set since = now() - interval '2 h'; update towline_lost set at = now() - interval '1 h'").await;
            if by_annotation {
                court.changes(annotated(selector(2, &of_env("prod"), 2, &[]), "2")).await;
            } else {
                let approved = approve(&court.stage.database(), None).await.expect("it is approved");
                assert_eq!(approved.iter().map(|held| held.cause).collect::<Vec<_>>(), [Cause::Dropped]);
            }
            assert_eq!((court.held().await, court.deleted().await), (Some((12, 12, Cause::Unmatched)), 0));
            assert_eq!(court.stage.number(WITH_DROPPED).await, 0);
            approve(&court.stage.database(), Some("base")).await.expect("it is approved");
            assert_eq!((court.held().await, court.deleted().await), (None, 12));
        }
    });
}

#[test]
fn approved_labels_do_not_forget_what_edits_have_dropped() {
    run(async {
        for by_annotation in [false, true] {
            let court = Court::new(&format!("labels_and_edits_{by_annotation}"), 12).await;
            for (generation, maps) in [(2, 8), (3, 6)] {
                court.changes(selector(generation, &of_env("prod"), maps, &[])).await;
            }
            all_get(&court, &TEST).await;
            assert_eq!(court.held().await, Some((12, 12, Cause::Unmatched)));
            if by_annotation {
                court.changes(annotated(selector(3, &of_env("prod"), 6, &[]), "3")).await;
            } else {
                approve(&court.stage.database(), None).await.expect("it is approved");
            }
            assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
            assert_eq!(court.stage.number(WITH_DROPPED).await, 1);
            all_get(&court, &PROD).await;
            court.changes(selector(4, &of_env("prod"), 4, &[])).await;
            assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "six of ten, of which two were not shown");
        }
    });
}

#[test]
fn a_name_approves_none_of_several_syncsets_and_an_id_one() {
    run(async {
        let court = Court::new("namesakes", 12).await;
        court.changes(removal(Kind::SelectorSyncSet, "base")).await;
        court.changes(selector(1, &of_env("prod"), 10, &[])).await;
        court.applied().await;
        court.changes(selector(2, &of_env("prod"), 2, &[])).await;
        let database = court.stage.database();
        let both = held(&database).await.expect("a list");
        assert_eq!(both.iter().map(HeldSyncset::argument).collect::<Vec<_>>(), ["base", "base"]);
        let error = approve(&database, Some("base")).await.expect_err("which one is not known");
        let text = error.to_string();
        assert!(both.iter().all(|held| text.contains(&held.id.to_string())), "{text}");
        assert!(matches!(error, DispatchError::Ambiguous { .. }) && text.contains("it was deleted"), "{text}");
        assert_eq!(held(&database).await.expect("a list").len(), 2, "nothing is approved");
        let gone = both.iter().find(|held| held.cause == Cause::Gone).expect("one that is gone");
        assert_eq!(approve(&database, Some(&gone.id.to_string())).await.expect("one"), std::slice::from_ref(gone));
        let rest = approve(&database, Some("base")).await.expect("the other one");
        assert_eq!(rest.iter().map(|held| held.cause).collect::<Vec<_>>(), [Cause::Dropped]);
        assert_eq!(held(&database).await.expect("a list"), []);
    });
}
