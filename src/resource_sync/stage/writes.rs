//! Our own writes, until the caches show them.

use super::{OBJECTS, Stage, namespace, remote, terminating};
use crate::actor::Outcome;

#[tokio::test(start_paused = true)]
async fn the_last_finalizer_is_taken_off_once() {
    let stage = Stage::new("");
    let going = terminating(remote("a", 5), 6);
    stage.list(std::slice::from_ref(&going), &[], &[namespace(8, "b", "others")]).await;
    // An API server answers with the version before the object went.
    stage.hub.answer({
        let going = going.clone();
        move |_| (200, going.clone())
    });
    assert!(matches!(stage.reconcile("a").await, Outcome::Done));
    assert!(matches!(stage.reconcile("a").await, Outcome::RetryAfter(_)), "it waits for the end");
    assert_eq!(stage.hub.asked(), [format!("PATCH {OBJECTS}/a")]);
    stage.watches().remote.gone(&terminating(remote("a", 5), 9)).await;
    assert!(matches!(stage.reconcile("a").await, Outcome::Done));
    assert!(stage.hub.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn where_others_hold_the_object_only_our_write_is_awaited() {
    let stage = Stage::new("");
    let mut going = terminating(remote("a", 5), 6);
    going["metadata"]["finalizers"].as_array_mut().unwrap().push("other/last".into());
    stage.list(std::slice::from_ref(&going), &[], &[namespace(8, "b", "others")]).await;
    assert!(matches!(stage.reconcile("a").await, Outcome::Done));
    assert!(matches!(stage.reconcile("a").await, Outcome::RetryAfter(_)));
    going["metadata"]["finalizers"] = serde_json::json!(["other/last"]);
    going["metadata"]["resourceVersion"] = "1000".into();
    stage.watches().remote.show(&going).await;
    assert!(matches!(stage.reconcile("a").await, Outcome::Done));
    assert_eq!(stage.hub.asked(), [format!("PATCH {OBJECTS}/a")]);
}
