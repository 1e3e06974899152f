//! The table, against a watch whose objects the tests set.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::actor::key_mailbox;
use crate::cluster::{Cluster, Watch, WatchId, WatchSpec};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::plan::families::Fields;
use crate::status_sync::plan::{Digest, Fingerprint, family_spec, projection};
use crate::status_sync::run::poller::hub_watches::KeyFollower;
use crate::status_sync::run::poller::row_state::REFUSED;

const INTERVAL: Duration = Duration::from_secs(5);

fn found(id: u128, name: &str, rows: i64) -> Found {
    Found { id: RowId(id), key: ObjectKey::new("n", name), fingerprint: Fingerprint::new(rows, 7) }
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_retried_and_a_refused_one_with_back_off() {
    let mut table = Table::default();
    let now = Instant::now();
    table.update(vec![found(1, "a", 1), found(2, "b", 1)], now);
    assert_eq!(table.next_retry(), None);
    table.get_mut(RowId(1)).unwrap().record_failure(now, true, "rejected".to_owned());
    let refused = table.next_retry().unwrap();
    assert!(refused >= now + REFUSED.first / 2 && table.get(RowId(1)).unwrap().is_backing_off(now));
    table.get_mut(RowId(2)).unwrap().record_failure(now, false, "rejected".to_owned());
    assert_eq!(table.next_retry(), Some(now));
    assert!(!table.get(RowId(2)).unwrap().is_backing_off(now));
    for id in [1, 2] {
        table.get_mut(RowId(id)).unwrap().record_applied(Fingerprint::new(1, 7), "uid".into(), Vec::new());
    }
    assert_eq!(table.next_retry(), None);
}

#[tokio::test(start_paused = true)]
async fn rows_that_are_gone_are_forgotten_and_renamed_rows_begin_anew() {
    let mut table = Table::default();
    let now = Instant::now();
    table.update(vec![found(1, "a", 1), found(2, "b", 1), found(3, "b", 1)], now);
    let entry = table.get_mut(RowId(1)).unwrap();
    entry.record_applied(Fingerprint::new(1, 7), "uid".into(), Vec::new());
    assert!(entry.is_applied() && entry.pending.is_none());
    assert_eq!(table.names().len(), 2);
    table.update(vec![found(1, "a", 2), found(2, "c", 1)], now + Duration::from_secs(9));
    let entry = table.get(RowId(1)).unwrap();
    assert!(!entry.is_applied() && entry.pending == Some(now + Duration::from_secs(9)));
    assert_eq!((table.entries.len(), table.get(RowId(2)).unwrap().applied), (2, None));
}

#[tokio::test(start_paused = true)]
async fn an_object_is_explained_by_its_row_and_one_without_a_row_is_not_known() {
    let (mut table, watch) = (Table::default(), watch());
    table.update(vec![found(1, "a", 3), found(2, "b", 1), found(3, "c", 0), found(4, "d", 1)], Instant::now());
    for (id, rows) in [(1, 3), (3, 0)] {
        table.get_mut(RowId(id)).unwrap().record_applied(Fingerprint::new(rows, 7), "uid".into(), Vec::new());
    }
    table.own(ObjectKey::new("n", "a-0"), RowId(1));
    table.get_mut(RowId(4)).unwrap().waiting = Some(Waiting::Absent);
    tokio::time::advance(Duration::from_secs(70)).await;
    // The same again is not since now.
    table.get_mut(RowId(1)).unwrap().record_applied(Fingerprint::new(3, 7), "uid".into(), Vec::new());
    table.get_mut(RowId(3)).unwrap().pending = Some(Instant::now());
    let held = HashSet::from([ObjectKey::new("n", "c")]);
    let explained = |name: &str| table.explained("p", &ObjectKey::new("n", name), &held, watch.store());
    let told = |name: &str| {
        let object = json!(explained(name));
        ["key", "state", "for_seconds", "rows", "cause"].map(|field| object[field].clone())
    };
    let in_step = [json!("n/a"), json!("in_step"), json!(70), json!(3), json!("")];
    assert_eq!((told("a"), told("a-0")), (in_step.clone(), in_step), "also by what its hub object owns");
    assert_eq!(told("b"), [json!("n/b"), json!("pending"), json!(70), json!(1), json!("a change is being written")]);
    assert_eq!(told("c")[..4], [json!("n/c"), json!("held"), json!(0), json!(0)]);
    assert_eq!(told("d")[..2], [json!("n/d"), json!("missing")]);
    assert_eq!(explained("e"), None);
}

#[tokio::test(start_paused = true)]
async fn only_objects_that_show_something_are_counted() {
    let mut table = Table::default();
    table.update((1..=5).map(|id| found(id, &format!("n{id}"), i64::from(id == 1))).collect(), Instant::now());
    assert_eq!(table.shown(), 5, "what an object without rows shows is not known yet");
    // Nobody ever reported on the second one, and the third one has been cleared.
    for id in [2, 3] {
        table.get_mut(RowId(id)).unwrap().record_applied(Fingerprint::default(), "uid".into(), Vec::new());
    }
    table.get_mut(RowId(4)).unwrap().waiting = Some(Waiting::Absent);
    assert_eq!(table.shown(), 2);
    // Its clearing has failed.
    table.get_mut(RowId(5)).unwrap().record_failure(Instant::now(), true, "refused".to_owned());
    assert_eq!(table.shown(), 2);
}

/// A watch of placement rules that keeps digests.
fn watch() -> Arc<Watch> {
    let (cluster, _script) = Cluster::scripted("hub");
    let spec = family_spec(StatusFamily::PlacementRules);
    let id = WatchId { projection: Some("status_sync"), ..WatchId::all(cluster.name().clone(), spec.target()) };
    let watch = Watch::new(id, cluster);
    watch.specified(WatchSpec { projection: Some(projection(spec)), ..WatchSpec::default() });
    // The watch needs a follower; nobody reads the keys.
    let (mailbox, _) = key_mailbox(1);
    watch.specified(WatchSpec::followed_by(Arc::new(KeyFollower { namespace: String::new(), mailbox })));
    watch
}

fn rule(version: u64, decisions: &Value) -> Value {
    json!({"metadata": {"namespace": "n", "name": "a", "uid": "uid", "resourceVersion": version.to_string()},
        "status": {"decisions": decisions}})
}

fn digest(decisions: &Value) -> Digest {
    Digest::of(&Fields::from([("decisions", decisions.clone())]))
}

/// A table with one row, which has just been written as version 7: these decisions.
fn written(watch: &Watch, decisions: &Value) -> Table {
    let mut table = Table::default();
    table.update(vec![found(1, "a", 1)], Instant::now());
    let key = ObjectKey::new("n", "a");
    table.own(key.clone(), RowId(1));
    let version = Some(("7".into(), watch.store().moment()));
    let entry = table.get_mut(RowId(1)).unwrap();
    entry.record_applied(Fingerprint::new(1, 7), "uid".into(), vec![(key, digest(decisions), version)]);
    table
}

fn server_result(table: &Table, watch: &Watch, decisions: &Value) -> Option<Digest> {
    table.get(RowId(1)).unwrap().server_result(watch.store(), &ObjectKey::new("n", "a"), digest(decisions))
}

#[tokio::test]
async fn the_api_servers_result_counts_as_applied_and_an_object_that_is_gone_is_created_again() {
    let watch = watch();
    let (ours, kept) = (json!([{"clusterName": "a", "pruned": 1}]), json!([{"clusterName": "a"}]));
    watch.list(&[rule(6, &json!([]))]).await;
    let mut table = written(&watch, &ours);
    assert_eq!(server_result(&table, &watch, &ours), Some(digest(&json!([]))), "the cache has yet to show the write");
    watch.show(&rule(7, &kept)).await;
    table.record_change(&ObjectKey::new("n", "a"), None, watch.store(), watch.store());
    assert!(table.get(RowId(1)).unwrap().is_applied(), "the API server keeps it like this");
    assert_eq!(server_result(&table, &watch, &ours), Some(digest(&kept)));
    watch.gone(&rule(8, &kept)).await;
    assert_eq!(server_result(&table, &watch, &ours), None, "it was not created a moment ago");
}

#[tokio::test]
async fn a_cluster_with_lower_versions_counts_after_it_was_listed() {
    let watch = watch();
    let ours = json!([{"clusterName": "a"}]);
    watch.list(&[rule(6, &json!([]))]).await;
    let mut table = written(&watch, &ours);
    table.record_change(&ObjectKey::new("n", "a"), None, watch.store(), watch.store());
    assert!(table.get(RowId(1)).unwrap().is_applied(), "the write may still arrive");
    watch.list(&[rule(3, &json!([]))]).await;
    table.record_change(&ObjectKey::new("n", "a"), None, watch.store(), watch.store());
    assert!(!table.get(RowId(1)).unwrap().is_applied());
    assert_eq!(server_result(&table, &watch, &ours), None);
}

#[tokio::test(start_paused = true)]
async fn rows_that_were_read_before_they_were_detected_are_no_pending_change() {
    let mut table = Table::default();
    table.update(vec![found(1, "a", 1)], Instant::now());
    // The rows that were read are newer than the detected ones.
    table.get_mut(RowId(1)).unwrap().record_applied(Fingerprint::new(2, 7), "uid".into(), Vec::new());
    assert!(table.oldest_pending().is_some(), "only the next detection shows whether these are all changes");
    table.update(vec![found(1, "a", 2)], Instant::now());
    assert!(table.get(RowId(1)).unwrap().is_applied());
    assert_eq!(table.oldest_pending(), None);
}

#[tokio::test(start_paused = true)]
async fn bad_rows_that_are_gone_are_bad_no_longer() {
    let mut table = Table::default();
    table.update(vec![found(1, "a", 1)], Instant::now());
    table.get_mut(RowId(1)).unwrap().bad.add(1, || "hub/a: no number".to_owned());
    assert_eq!(table.bad_rows(&Sample::default()).count, 1);
    table.update(vec![found(1, "a", 0)], Instant::now());
    assert_eq!(table.bad_rows(&Sample::default()).count, 0);
}

#[tokio::test(start_paused = true)]
async fn a_superseded_row_is_not_retried() {
    let mut table = Table::default();
    let now = Instant::now();
    table.update(vec![found(1, "a", 1)], now);
    let entry = table.get_mut(RowId(1)).unwrap();
    entry.record_failure(now, true, "rejected".to_owned());
    entry.bad.add(1, || "hub/a: no number".to_owned());
    entry.supersede();
    assert_eq!((table.next_retry(), table.oldest_pending()), (None, None));
    assert_eq!(table.bad_rows(&Sample::default()).count, 0);
}

#[tokio::test(start_paused = true)]
async fn an_edit_is_corrected_once_an_interval_in_a_pass_or_between_passes() {
    let watch = watch();
    let ours = json!([{"clusterName": "a"}]);
    watch.list(&[rule(6, &json!([]))]).await;
    let mut table = written(&watch, &ours);
    watch.show(&rule(7, &ours)).await;
    let now = Instant::now();
    table.get_mut(RowId(1)).unwrap().corrected = Some(now);
    watch.show(&rule(8, &json!([]))).await;
    table.record_change(&ObjectKey::new("n", "a"), None, watch.store(), watch.store());
    let soon = now + INTERVAL / 2;
    assert!(table.take_requeued(soon, INTERVAL).is_empty(), "between passes");
    assert!(!table.get(RowId(1)).unwrap().is_due(soon, INTERVAL), "in a pass");
    assert_eq!(
        table.next_requeue(soon, INTERVAL),
        Some(now + INTERVAL),
        "it does not wait for the pass after the next one"
    );
    assert!(table.get(RowId(1)).unwrap().is_due(now + INTERVAL, INTERVAL));
    assert_eq!(table.take_requeued(now + INTERVAL, INTERVAL), HashSet::from([RowId(1)]));
    assert_eq!(table.next_requeue(now + INTERVAL, INTERVAL), None);
    // A change in the database does not wait, and an edit whose correction failed is still to be corrected.
    table.update(vec![found(1, "a", 2)], soon);
    assert!(table.get(RowId(1)).unwrap().is_due(soon, INTERVAL));
    let mut table = written(&watch, &ours);
    let entry = table.get_mut(RowId(1)).unwrap();
    entry.corrected = Some(now);
    entry.record_failure(now, false, "rejected".to_owned());
    assert!(entry.is_due(soon, INTERVAL));
}

#[tokio::test]
async fn a_write_that_the_cache_does_not_show_yet_is_outdated_by_another_digest() {
    let watch = watch();
    let ours = json!([{"clusterName": "a"}]);
    watch.list(&[rule(6, &json!([]))]).await;
    let table = written(&watch, &ours);
    let is_outdated = |decisions: &Value| {
        table.get(RowId(1)).unwrap().is_outdated(watch.store(), &ObjectKey::new("n", "a"), digest(decisions))
    };
    assert!(is_outdated(&json!([])) && !is_outdated(&ours));
    watch.show(&rule(7, &ours)).await;
    assert!(!is_outdated(&json!([])));
}

#[tokio::test]
async fn an_object_that_appears_after_its_rows_are_gone_is_compared() {
    let watch = watch();
    let owner = json!({"metadata": {"namespace": "n", "name": "owner", "uid": "live", "resourceVersion": "5"}});
    watch.list(&[owner]).await;
    let mut table = Table::default();
    table.update(vec![found(1, "owner", 1)], Instant::now());
    let apply = |table: &mut Table| {
        table.get_mut(RowId(1)).unwrap().record_applied(Fingerprint::new(1, 7), "live".into(), Vec::new());
    };
    let mut made = rule(6, &json!([]));
    let owner = json!([{"apiVersion": "x/v1", "kind": "X", "name": "owner", "uid": "live", "controller": true}]);
    made["metadata"]["ownerReferences"] = owner;
    let is_settled_after = |table: &mut Table| {
        let (shown, owner) = (ObjectKey::new("n", "a"), ObjectKey::new("n", "owner"));
        table.record_change(&shown, Some(&owner), watch.store(), watch.store());
        table.get(RowId(1)).unwrap().is_applied()
    };
    apply(&mut table);
    watch.show(&made).await;
    assert!(is_settled_after(&mut table), "without a label it belongs to another owner");
    made["metadata"]["labels"] = json!({"cluster.open-cluster-management.io/placement": "owner"});
    made["metadata"]["resourceVersion"] = json!("7");
    watch.show(&made).await;
    assert!(!is_settled_after(&mut table), "it is unexpected");
    // The rows that were read are newer than the detected ones: the next detection finds them applied, and nothing else
    // compares them.
    table.get_mut(RowId(1)).unwrap().record_applied(Fingerprint::new(2, 7), "live".into(), Vec::new());
    is_settled_after(&mut table);
    table.update(vec![found(1, "owner", 2)], Instant::now());
    assert!(!table.get(RowId(1)).unwrap().is_applied(), "it may have to go");
    table.update(vec![found(1, "owner", 1)], Instant::now());
    apply(&mut table);
    table.get_mut(RowId(1)).unwrap().record_deleted(vec!["uid".into()]);
    assert!(is_settled_after(&mut table), "it has been deleted already");
}

#[tokio::test]
async fn an_object_is_compared_with_all_rows_of_its_name_and_a_row_without_an_object_with_nothing() {
    let watch = watch();
    let (mailbox, _inbox) = key_mailbox(8);
    watch.specified(WatchSpec::followed_by(Arc::new(KeyFollower { namespace: String::new(), mailbox })));
    let object =
        |name: &str, uid: u128| json!({"metadata": {"namespace": "n", "name": name, "uid": RowId(uid).to_string()}});
    watch.list(&[object("its", 1), object("of-two", 3), object("another", 5), object("without-a-row", 6)]).await;
    let mut table = Table::default();
    let rows = [(1, "its"), (2, "of-two"), (3, "of-two"), (4, "another"), (7, "without-an-object")];
    table.update(rows.map(|(id, name)| found(id, name, 1)).to_vec(), Instant::now());
    assert_eq!(table.compare(watch.store()), Compared { objects: 3, others: 1 });
}
