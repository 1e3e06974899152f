//! Laws of the state: what a merge keeps, and which requests its store sends.

use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::content::{Document, merge};
use super::*;
use crate::actor::Scope;
use crate::cluster::Cluster;
use crate::cluster::watch::scripted::Script;

const PATH: &str = "/api/v1/namespaces/towline/configmaps";
const GET: &str = "GET /api/v1/namespaces/towline/configmaps/towline-databases";
const PATCH: &str = "PATCH /api/v1/namespaces/towline/configmaps/towline-databases";
const POST: &str = "POST /api/v1/namespaces/towline/configmaps";

/// An object with the section's name, with this mark and text.
fn config_map(version: u64, mark: Option<&str>, state: &str) -> Value {
    let annotations = mark.map_or_else(|| json!({}), |mark| json!({MARK: mark}));
    json!({
        "metadata": {
            "name": "towline-databases", "namespace": "towline", "uid": "state",
            "resourceVersion": version.to_string(), "annotations": annotations,
        },
        "data": {"state": state},
    })
}

fn missing() -> (u16, Value) {
    let details = json!({"name": "towline-databases", "kind": "configmaps"});
    (404, json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "details": details}))
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}))
}

fn store() -> (Arc<StateStore>, Script, Cluster) {
    store_of(false)
}

fn store_of(read_only: bool) -> (Arc<StateStore>, Script, Cluster) {
    let (cluster, script) = Cluster::scripted("edge");
    let keeping = Keeping::in_namespace("towline", "this");
    let owner = Owner { section: "databases".parse().unwrap(), read_only };
    (StateStore::new(owner, cluster.clone(), &keeping), script, cluster)
}

/// An API server with at most one object, which answers every write with a conflict.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<(u64, Option<String>)>>);

impl Server {
    fn answers(&self, line: &str) -> (u16, Value) {
        let held = self.0.lock();
        match (line, &held.1) {
            (GET, Some(state)) => (200, config_map(held.0, Some("databases"), state)),
            (GET, None) => missing(),
            _ => failure(409, "Conflict"),
        }
    }

    fn put(&self, state: &Value) {
        let mut held = self.0.lock();
        *held = (held.0 + 1, Some(state.to_string()));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_known_before_the_object_was_read_and_nothing_is_written_if_nothing_changed() {
    let (store, script, _) = store();
    script.answer(|_| (200, config_map(7, Some("databases"), r#"{"version":1,"detached":{"local_gone":true}}"#)));
    assert!(!store.is_known() && !store.is_durable());
    store.work().await.unwrap();
    assert!(store.is_known() && store.is_durable());
    assert_eq!(store.current().detached, Some(Detached { local_gone: true }));
    store.change(|state| state.detached = Some(Detached { local_gone: true }));
    assert!(!store.has_work(), "nothing has changed");
    assert_eq!(script.asked(), [GET]);
}

#[tokio::test(start_paused = true)]
async fn changes_while_a_write_is_under_way_make_one_more_write_together() {
    let (store, script, _) = store();
    script.answer(|line| if line == GET { missing() } else { (201, config_map(8, Some("databases"), "")) });
    store.work().await.unwrap();
    script.take(std::time::Duration::from_secs(1));
    store.change(|state| state.guard.sent.insert(1, 1));
    let (working, writing) = (Arc::clone(&store), Arc::clone(&store));
    let work = tokio::spawn(async move { working.work().await });
    let noted = tokio::spawn(async move { writing.persisted().await });
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    for second in 2..20 {
        store.change(|state| state.guard.sent.insert(second, 1));
    }
    noted.await.unwrap().unwrap();
    work.await.unwrap().unwrap();
    store.persisted().await.unwrap();
    assert_eq!(script.asked(), [GET, POST, PATCH]);
    assert_eq!(store.report().state, "stored");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_read_again_and_keeps_what_both_have_changed_and_names_the_other() {
    let (store, script, _) = store();
    let server = Server::default();
    server.put(&json!({"version": 1, "daemon": {"instance": "this"}, "later": {"x": 1}}));
    let answering = server.clone();
    script.answer(move |line| answering.answers(line));
    store.work().await.unwrap();
    store.change(|state| state.guard.sent.insert(5, 2));
    server.put(&json!({
        "version": 1, "daemon": {"instance": "other"}, "guard": {"sent": {"4": 9}, "more": true}, "later": {"x": 1},
    }));
    // The server refuses every write: the test looks at the merged state in the store.
    assert!(store.work().await.is_err());
    let merged = store.current();
    assert_eq!(merged.guard.sent.into_iter().collect::<Vec<_>>(), [(4, 9), (5, 2)]);
    assert!(store.report().other_daemon.unwrap().contains("other"));
    assert!(store.is_durable(), "a conflict passes");
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_reported_although_the_next_attempt_finds_nothing_to_write() {
    let (store, script, _) = store();
    script.answer(|line| if line == GET { missing() } else { failure(500, "InternalError") });
    store.work().await.unwrap();
    store.change(|state| state.detached = Some(Detached::default()));
    let mut persisted = std::pin::pin!(store.persisted());
    assert!(futures::poll!(&mut persisted).is_pending());
    // Both happen before the one that waits runs again.
    assert!(store.work().await.is_err());
    store.hold(true);
    store.work().await.unwrap();
    let outcome = tokio::time::timeout(std::time::Duration::from_mins(1), persisted).await;
    let failure = outcome.expect("it does not wait for the end of the hold").unwrap_err();
    assert!(failure.reason.contains("InternalError"), "{failure}");
    assert_eq!(script.asked(), [GET, POST]);
    // Later changes are waited for anew.
    let mut later = std::pin::pin!(store.persisted());
    assert!(futures::poll!(&mut later).is_pending());
    script.answer(|_| (201, config_map(8, Some("databases"), "")));
    store.hold(false);
    store.work().await.unwrap();
    later.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_read_is_waited_for_and_a_denied_one_is_not() {
    let (store, script, _) = store();
    script.answer(|_| failure(500, "InternalError"));
    assert!(store.work().await.is_err());
    assert!(!store.is_known(), "a server's failure passes");
    script.answer(|_| (404, json!("some proxy")));
    assert!(store.work().await.is_err());
    assert!(!store.is_known(), "that was no API server");
    script.answer(|_| failure(403, "Forbidden"));
    assert!(store.work().await.is_err());
    assert!(store.is_known() && !store.is_durable());
    store.change(|state| state.detached = Some(Detached::default()));
    assert!(store.persisted().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_foreign_object_is_never_written() {
    for (mark, state) in [
        (None, r#"{"version":1}"#),
        (Some("queues"), r#"{"version":1}"#),
        (Some("databases"), "{"),
        (Some("databases"), r#"{"version":2}"#),
        (Some("databases"), "{}"),
    ] {
        let (store, script, _) = store();
        script.answer(move |_| (200, config_map(7, mark, state)));
        store.change(|state| state.detached = Some(Detached::default()));
        let refused = store.work().await.unwrap_err().to_string();
        assert!(refused.contains("ConfigMap towline/towline-databases in cluster edge is"), "{refused}");
        assert!(store.is_known() && !store.is_durable());
        assert!(script.asked().iter().all(|asked| asked == GET), "{mark:?} {state}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_new_credentials_the_object_is_read_before_it_is_written() {
    let (store, script, cluster) = store();
    script.answer(|line| if line == GET { missing() } else { (201, config_map(8, Some("databases"), "")) });
    store.work().await.unwrap();
    cluster.new_session(&script);
    store.work().await.unwrap();
    store.change(|state| state.identities.local = Some("uid".into()));
    store.work().await.unwrap();
    assert_eq!(script.asked(), [GET, GET, POST]);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_reads_its_state_and_writes_nothing() {
    let (store, script, _) = store_of(true);
    script.answer(|_| missing());
    store.change(|state| state.identities.local = Some("uid".into()));
    store.work().await.unwrap();
    store.persisted().await.unwrap();
    assert_eq!(script.asked(), [GET]);
}

#[tokio::test(start_paused = true)]
async fn a_new_term_reads_again_and_trusts_nothing_of_an_earlier_one() {
    let (store, script, _) = store();
    script.answer(|_| (200, config_map(7, Some("databases"), r#"{"version":1}"#)));
    store.work().await.unwrap();
    store.change(|state| state.detached = Some(Detached::default()));
    store.forget(false);
    assert!(!store.is_known() && store.current().detached.is_none());
    store.work().await.unwrap();
    assert_eq!(script.asked(), [GET, GET], "changes that the last term did not store are not written in this one");
    store.change(|state| state.detached = Some(Detached::default()));
    store.forget(true);
    assert!(store.current().detached.is_some(), "without election no other process had the section");
    store.work().await.unwrap();
    assert_eq!(script.asked(), [GET, PATCH]);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_change_learns_that_the_term_ended_before_it_was_stored() {
    let (store, script, _) = store();
    script.answer(|line| if line == GET { missing() } else { (201, config_map(8, Some("databases"), "")) });
    store.work().await.unwrap();
    store.change(|state| state.detached = Some(Detached::default()));
    let waiting = store.persisted();
    let mut waiting = std::pin::pin!(waiting);
    assert!(futures::poll!(&mut waiting).is_pending());
    store.forget(false);
    let failure = waiting.await.unwrap_err();
    assert!(failure.reason.contains("term ended"), "{failure}");
    // The next term's changes are waited for by themselves.
    store.work().await.unwrap();
    store.change(|state| state.detached = Some(Detached::default()));
    let mut later = std::pin::pin!(store.persisted());
    assert!(futures::poll!(&mut later).is_pending());
    store.work().await.unwrap();
    later.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_actor_tries_again_until_the_state_is_stored() {
    let (store, script, _) = store();
    let fails = Arc::new(Mutex::new(3));
    let failing = Arc::clone(&fails);
    script.answer(move |line| {
        let mut left = failing.lock();
        if *left > 0 {
            *left -= 1;
            return failure(503, "ServiceUnavailable");
        }
        if line == GET { missing() } else { (201, config_map(8, Some("databases"), "")) }
    });
    let (scope, stop) = Scope::standalone("state");
    let actor = tokio::spawn(keep(Arc::clone(&store), scope, async || ()));
    while !store.is_known() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    store.change(|state| state.identities.remote = Some("uid".into()));
    store.persisted().await.unwrap();
    assert_eq!(script.asked(), [GET, GET, GET, GET, POST]);
    stop.cancel();
    actor.await.unwrap().unwrap();
}

#[test]
fn a_state_survives_its_text_and_unknown_fields_survive_a_write() {
    let text = r#"{"version":1,"guard":{"sent":{"17":3},"new":[1]},"identities":{"remote":"r","later":"x"},"later":7}"#;
    let document = Document::parse(text).unwrap();
    let mut changed = document.known.clone();
    changed.guard.sent.insert(18, 1);
    changed.identities.remote = None;
    let written = document.with_changes(&document.known, &changed);
    assert_eq!(
        written,
        json!({
            "version": 1, "guard": {"sent": {"17": 3, "18": 1}, "new": [1]}, "identities": {"later": "x"}, "later": 7,
        })
    );
    assert_eq!(Document::parse(&written.to_string()).unwrap().known, changed);
}

#[test]
fn the_objects_path_is_the_sections_name_behind_a_prefix_however_long_it_is() {
    let longest: crate::config::SectionName = "a".repeat(63).parse().unwrap();
    assert_eq!(object::key(&longest, "towline").name.len(), "towline-".len() + 63);
    assert!(PATCH.ends_with(&format!("{PATH}/towline-databases")));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0_i64..4).prop_map(Value::from)];
    leaf.prop_recursive(3, 24, 4, |inner| {
        proptest::collection::btree_map("[a-d]", inner, 0..4)
            .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>()))
    })
}

fn map() -> impl Strategy<Value = Value> {
    proptest::collection::btree_map("[a-d]", value(), 0..4)
        .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>()))
}

proptest! {
    #[test]
    fn a_merge_without_changes_of_theirs_is_ours(base in map(), ours in map()) {
        prop_assert_eq!(merge(base.clone(), ours.clone(), base), ours);
    }

    #[test]
    fn a_merge_without_changes_of_ours_is_theirs(base in map(), theirs in map()) {
        prop_assert_eq!(merge(base.clone(), base, theirs.clone()), theirs);
    }

    #[test]
    fn a_merge_done_twice_is_the_same(base in map(), ours in map(), theirs in map()) {
        let once = merge(base, ours.clone(), theirs);
        prop_assert_eq!(merge(ours.clone(), ours, once.clone()), once);
    }
}
