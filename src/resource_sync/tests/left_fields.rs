//! Fields that are removed from `local_fields` between two runs of a section.

use serde_json::{Value, json};

use super::{Harness, OBJECTS, local, remote};
use crate::actor::Outcome;

/// The local object of `a`, with a field that the remote one lacks.
fn scaled(version: u64, replicas: Option<u64>) -> Value {
    let mut local = local("a", version);
    local["metadata"]["generation"] = json!(if version > 7 { 2 } else { 1 });
    if let Some(replicas) = replicas {
        local["spec"]["replicas"] = json!(replicas);
    }
    local
}

#[tokio::test(start_paused = true)]
async fn a_field_that_left_the_settings_is_written_once_and_remembered_until_then() {
    let harness = Harness::new("");
    harness.section.state().change(|state| {
        state.settings.get_or_insert_default().local_fields = vec!["/spec/replicas".into(), "/spec/other".into()];
    });
    let remembered = || harness.section.state().look(|state| state.settings.clone().unwrap_or_default().left_fields);
    harness.section.reevaluate().await;
    assert_eq!(remembered(), ["/spec/other", "/spec/replicas"]);
    let others = || json!({"metadata": {"name": "team", "uid": "theirs", "resourceVersion": "1"}});
    let [plain_remote, plain_local] = [remote("b", 6), local("b", 8)];
    harness.list(&[remote("a", 5), plain_remote], &[scaled(7, Some(9)), plain_local], &[others()]).await;
    harness.section.forget_left_fields();
    assert_eq!(remembered().len(), 2, "one is still to be written");
    harness.edge.answer(|_| (200, scaled(9, None)));
    harness.hub.answer(|_| (200, remote("a", 9)));
    for name in ["a", "b"] {
        assert!(matches!(harness.reconcile(name).await, Outcome::Done), "{name}");
    }
    assert_eq!(harness.edge.asked(), [format!("PATCH {OBJECTS}/a")]);
    harness.section.forget_left_fields();
    assert_eq!(remembered(), Vec::<String>::new());
    // A server that sets a default for the field adds it again, which counts as the server's result now.
    harness.watches().local.show(&scaled(9, Some(1))).await;
    let mut noted = remote("a", 9);
    noted["metadata"]["annotations"]["cloud.teleport.dev/sync-local-generation"] = json!("2");
    harness.watches().remote.show(&noted).await;
    assert!(matches!(harness.reconcile("a").await, Outcome::Done));
    assert_eq!(harness.edge.asked(), Vec::<String>::new());
}
