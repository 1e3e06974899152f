//! Rejections by the local cluster, and failures that are no rejections.

use serde_json::json;

use super::{Harness, OBJECTS, remote};
use crate::actor::Outcome;
use crate::resource_sync::run::section::Mode;

fn refusal(code: u16, reason: &str, message: &str) -> serde_json::Value {
    json!({"kind": "Status", "code": code, "reason": reason, "message": message})
}

#[tokio::test(start_paused = true)]
async fn only_a_rejection_is_noted_on_the_remote_object() {
    for (code, reason, is_noted) in [
        (400, "BadRequest", true),
        (413, "RequestEntityTooLarge", true),
        (422, "Invalid", true),
        (401, "Unauthorized", false),
        (403, "Forbidden", false),
        (404, "NotFound", false),
        (409, "AlreadyExists", false),
        (409, "Conflict", false),
        (429, "TooManyRequests", false),
        (500, "InternalError", false),
        (503, "ServiceUnavailable", false),
    ] {
        let harness = Harness::new("");
        harness.list(&[remote("a", 5)], &[], &[super::writes::theirs()]).await;
        harness.edge.answer(move |_| (code, refusal(code, reason, "no")));
        harness.hub.answer(|_| (200, remote("a", 6)));
        harness.reconcile("a").await;
        assert_eq!(harness.edge.asked(), [format!("POST {OBJECTS}")]);
        let noted = if is_noted { vec![format!("PATCH {OBJECTS}/a")] } else { Vec::new() };
        assert_eq!(harness.hub.asked(), noted, "{code} {reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_text_that_differs_each_time_is_noted_once_for_what_is_ordered() {
    let harness = Harness::new("");
    harness.list(&[remote("a", 5)], &[], &[super::writes::theirs()]).await;
    let mut attempts = 0;
    let texts = std::sync::atomic::AtomicUsize::new(0);
    harness.edge.answer(move |_| {
        let number = texts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (422, refusal(422, "Invalid", &format!("request {number} is denied")))
    });
    let mut noted = 0;
    for (version, size) in (6..).zip([1, 1, 1, 2, 2, 3]) {
        let mut ordered = remote("a", version);
        (ordered["spec"], ordered["metadata"]["generation"]) = (json!({"size": size}), json!(size));
        ordered["metadata"]["annotations"]["cloud.teleport.dev/sync-error"] =
            json!("create_local: request 0 is denied");
        harness.watches().remote.show(&ordered).await;
        let answer = ordered.clone();
        harness.hub.answer(move |_| (200, answer.clone()));
        assert!(matches!(harness.reconcile("a").await, Outcome::Retry));
        attempts += harness.edge.asked().len();
        noted += harness.hub.asked().len();
    }
    assert_eq!((attempts, noted), (6, 2), "once for each other order");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_notes_nothing() {
    let harness = Harness::new("dry_run = true");
    let mut noted = remote("a", 5);
    noted["metadata"]["annotations"]["cloud.teleport.dev/sync-error"] = json!("patch_local: no");
    harness.list(&[noted, remote("b", 6)], &[super::local("a", 7)], &[super::writes::theirs()]).await;
    harness.edge.answer(|_| (422, refusal(422, "Invalid", "no")));
    for name in ["a", "b"] {
        harness.reconcile(name).await;
    }
    assert!(harness.hub.asked().is_empty() && harness.edge.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_is_not_detached_and_one_that_was_detached_before_writes_nothing() {
    let harness = Harness::new("dry_run = true");
    harness.list(&[remote("a", 5)], &[super::local("a", 7)], &[super::writes::theirs()]).await;
    let refused = harness.section.detach(false).await;
    assert!(refused.as_ref().is_err_and(|refused| refused.to_string().contains("dry run")), "{refused:?}");
    harness.section.set_mode(Mode::Detaching);
    harness.reconcile("a").await;
    assert!(harness.hub.asked().is_empty() && harness.edge.asked().is_empty());
}
