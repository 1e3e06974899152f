//! Remote objects that are missing and were not observed terminating.

use std::sync::Arc;

use futures::FutureExt;
use serde_json::{Value, json};

use super::{Harness, LOCAL_NAME, OBJECTS, local, managed, remote};
use crate::actor::Outcome;

/// A live GET of an object that is gone.
pub(super) fn not_found(line: &str) -> (u16, Value) {
    let name = line.rsplit('/').next().unwrap_or_default();
    (
        404,
        json!({"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": name}, "message": "not found"}),
    )
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("o{number}")).collect()
}

/// A section with these local objects, whose remote objects were not in the last list.
async fn without_remotes(names: &[String]) -> Harness {
    let harness = Harness::new("");
    let locals: Vec<Value> = names.iter().map(|name| local(name, 7)).collect();
    harness.list(&[], &locals, &[json!({"metadata": {"name": "team", "uid": "theirs", "resourceVersion": "1"}})]).await;
    harness.hub.answer(not_found);
    harness
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_of_an_earlier_run_is_asked_for_again_before_anything_is_deleted() {
    for comes_back in [false, true] {
        let harness = without_remotes(&names(11)).await;
        harness.reconcile("o0").await;
        assert_eq!(harness.hub.asked(), [format!("GET {OBJECTS}/o0")]);
        assert!(harness.edge.asked().is_empty(), "ten others have to be asked for first");
        harness.watches().remote.show(&remote("o10", 9)).await;
        if comes_back {
            harness.hub.answer(|_| (200, remote("o0", 10)));
        }
        harness.reconcile("o0").await;
        assert_eq!(harness.hub.asked(), [format!("GET {OBJECTS}/o0")], "it may go now, and is asked for again");
        let deleted = harness.edge.asked();
        assert_eq!(deleted.is_empty(), comes_back, "{deleted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_after_a_lost_connection_is_a_matter_of_the_next_list() {
    let harness = without_remotes(&names(1)).await;
    let watch = &harness.watches().remote;
    watch.resume().await;
    assert!(!watch.is_asked_to_list());
    for _ in 0..2 {
        assert!(matches!(harness.reconcile("o0").await, Outcome::RetryAfter(_)));
    }
    assert!(harness.hub.asked().is_empty() && harness.edge.asked().is_empty(), "another cluster may answer there");
    assert!(watch.is_asked_to_list() && !watch.is_asked_to_list(), "once");
    watch.list(&[]).await;
    harness.reconcile("o0").await;
    assert_eq!(harness.hub.asked(), [format!("GET {OBJECTS}/o0")]);
    assert_eq!(harness.edge.asked(), [format!("DELETE {OBJECTS}/o0")]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_before_a_list_confirms_nothing_after_it() {
    let harness = without_remotes(&names(1)).await;
    let section = Arc::clone(&harness.section);
    harness.hub.answer(move |line| {
        // New credentials, and a list with them, while the GET is under way.
        section.watches().remote.list(&[]).now_or_never().expect("room in the mailbox");
        not_found(line)
    });
    assert!(matches!(harness.reconcile("o0").await, Outcome::RetryAfter(_)));
    assert!(harness.edge.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn every_section_knows_its_pending_changes_before_any_is_told_of_the_list() {
    let first = Harness::new("namespace_prefix = \"one-\"");
    let second = first.beside("second", "namespace_prefix = \"two-\"");
    let within = |namespace: &str, mut object: Value| {
        object["metadata"]["namespace"] = json!(namespace);
        if let Some(name) = object["metadata"]["annotations"].get_mut(LOCAL_NAME) {
            *name = json!(name.as_str().unwrap_or_default().replace("team/", &format!("{namespace}/")));
            let section = if namespace == "two-a" { "second" } else { "databases" };
            object["metadata"]["managedFields"] = managed(section);
        }
        object
    };
    // More than the mailbox of the first section holds.
    let (ones, twos) = (names(100), names(11));
    let of_both = |side: fn(&str, u64) -> Value| {
        let ones = ones.iter().map(|name| within("one-a", side(name, 5)));
        ones.chain(twos.iter().map(|name| within("two-a", side(name, 5)))).collect::<Vec<Value>>()
    };
    let mut inbox = first.inbox.clone();
    let dispatcher = tokio::spawn(async move { while inbox.next().await.is_some() {} });
    first.list(&of_both(remote), &of_both(local), &[]).await;
    dispatcher.abort();
    assert!(dispatcher.await.is_err_and(|error| error.is_cancelled()));
    assert!(first.section.is_listed() && second.section.is_listed());
    first.watches().remote.begin(&[]).await;
    assert!(first.watches().remote.end().now_or_never().is_none(), "the first section has no room for the event");
    assert_eq!(second.section.index(|index| index.guard.changes.waiting().len()), twos.len());
}
