//! Namespaces of ours: who deletes them, and who keeps them.

use serde_json::json;

use super::{NAMESPACE, Stage, local, namespace, remote, terminating};
use crate::actor::Outcome;

#[tokio::test(start_paused = true)]
async fn of_all_pairs_that_end_at_once_one_deletes_the_namespace() {
    let stage = Stage::new("");
    let names: Vec<String> = (0..50).map(|number| format!("o{number}")).collect();
    let remotes: Vec<_> = names.iter().map(|name| terminating(remote(name, 5), 6)).collect();
    let locals: Vec<_> = names.iter().map(|name| local(name, 7)).collect();
    let ours = namespace(8, "o7", "databases");
    stage.list(&remotes, &locals, std::slice::from_ref(&ours)).await;
    stage.reconcile("o0").await;
    for name in &names[1..] {
        assert!(matches!(stage.reconcile(name).await, Outcome::RetryAfter(_)), "{name} waits");
    }
    assert_eq!(stage.edge.asked(), [format!("DELETE {NAMESPACE}")]);
    // One of the same name that comes later is another one.
    let mut second = namespace(20, "o7", "databases");
    second["metadata"]["uid"] = json!("second");
    stage.watches().namespaces.show(&second).await;
    stage.reconcile("o1").await;
    assert_eq!(stage.edge.asked(), [format!("DELETE {NAMESPACE}")]);
    assert!(stage.hub.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_could_not_be_deleted_is_another_pairs_to_delete() {
    let stage = Stage::new("");
    let names = ["a", "b"];
    let remotes = names.map(|name| terminating(remote(name, 5), 6));
    stage.list(&remotes, &names.map(|name| local(name, 7)), &[namespace(8, "a", "databases")]).await;
    stage.edge.answer(|_| (409, json!({"code": 409, "reason": "Conflict", "message": "changed"})));
    stage.reconcile("a").await;
    stage.reconcile("b").await;
    assert_eq!(stage.edge.asked(), [format!("DELETE {NAMESPACE}"), format!("DELETE {NAMESPACE}")]);
}
