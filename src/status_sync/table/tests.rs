//! What is remembered, against a watch that shows what a test tells it to.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::actor::key_mailbox;
use crate::cluster::{Cluster, Watch, WatchId};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::digest::{Digest, Fingerprint, projection};
use crate::status_sync::entry::REFUSED;
use crate::status_sync::families::Fields;
use crate::status_sync::family::facts;
use crate::status_sync::follower::KeyFollower;

const CALM: Duration = Duration::from_secs(5);

fn found(id: u128, name: &str, rows: i64) -> Found {
    Found { id: RowId(id), key: ObjectKey::new("n", name), print: Fingerprint::new(rows, 7) }
}

#[tokio::test(start_paused = true)]
async fn what_failed_is_tried_again_and_what_was_refused_later_each_time() {
    let mut table = Table::default();
    let now = Instant::now();
    table.take(vec![found(1, "a", 1), found(2, "b", 1)], now);
    assert_eq!(table.next_retry(), None);
    table.get_mut(RowId(1)).unwrap().fail(now, true);
    let refused = table.next_retry().unwrap();
    assert!(refused >= now + REFUSED.first / 2 && table.get(RowId(1)).unwrap().is_held_back(now));
    table.get_mut(RowId(2)).unwrap().fail(now, false);
    assert_eq!(table.next_retry(), Some(now));
    assert!(!table.get(RowId(2)).unwrap().is_held_back(now));
    for id in [1, 2] {
        table.get_mut(RowId(id)).unwrap().settle(Fingerprint::new(1, 7), "uid".into(), Vec::new());
    }
    assert_eq!(table.next_retry(), None);
}

#[tokio::test(start_paused = true)]
async fn rows_that_are_gone_are_forgotten_and_those_renamed_begin_anew() {
    let mut table = Table::default();
    let now = Instant::now();
    table.take(vec![found(1, "a", 1), found(2, "b", 1), found(3, "b", 1)], now);
    let entry = table.get_mut(RowId(1)).unwrap();
    entry.settle(Fingerprint::new(1, 7), "uid".into(), Vec::new());
    assert!(entry.is_settled() && entry.pending.is_none());
    assert_eq!(table.names().len(), 2);
    table.take(vec![found(1, "a", 2), found(2, "c", 1)], now + Duration::from_secs(9));
    let entry = table.get(RowId(1)).unwrap();
    assert!(!entry.is_settled() && entry.pending == Some(now + Duration::from_secs(9)));
    assert_eq!((table.len(), table.get(RowId(2)).unwrap().settled), (2, None));
}

/// A watch of placement rules that keeps digests.
fn watch() -> Arc<Watch> {
    let (cluster, _script) = Cluster::scripted("hub");
    let facts = facts(StatusFamily::PlacementRules);
    let id = WatchId { projection: Some("status_sync"), ..WatchId::all(cluster.name().clone(), facts.target()) };
    let watch = Watch::new(id, cluster);
    watch.project(projection(facts));
    // Somebody has to want its objects; nobody takes the keys.
    let (mailbox, _) = key_mailbox(1);
    watch.follow(Arc::new(KeyFollower { namespace: String::new(), mailbox }));
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
    table.take(vec![found(1, "a", 1)], Instant::now());
    let key = ObjectKey::new("n", "a");
    table.own(key.clone(), RowId(1));
    let version = Some(("7".into(), watch.store().moment()));
    let entry = table.get_mut(RowId(1)).unwrap();
    entry.settle(Fingerprint::new(1, 7), "uid".into(), vec![(key, digest(decisions), version)]);
    table
}

fn accepts(table: &Table, watch: &Watch, decisions: &Value) -> Option<Digest> {
    table.get(RowId(1)).unwrap().accepts(watch.store(), &ObjectKey::new("n", "a"), digest(decisions))
}

#[tokio::test]
async fn what_the_api_server_changed_is_accepted_while_it_is_there_and_made_again_when_it_is_gone() {
    let watch = watch();
    let (ours, kept) = (json!([{"clusterName": "a", "pruned": 1}]), json!([{"clusterName": "a"}]));
    watch.list(&[rule(6, &json!([]))]).await;
    let mut table = written(&watch, &ours);
    assert_eq!(accepts(&table, &watch, &ours), Some(digest(&json!([]))), "the cache has yet to show the write");
    watch.show(&rule(7, &kept)).await;
    table.note(&ObjectKey::new("n", "a"), None, watch.store(), watch.store());
    assert!(table.get(RowId(1)).unwrap().is_settled(), "that is how the API server keeps it");
    assert_eq!(accepts(&table, &watch, &ours), Some(digest(&kept)));
    watch.gone(&rule(8, &kept)).await;
    assert_eq!(accepts(&table, &watch, &ours), None, "it was not made a moment ago");
}

#[tokio::test]
async fn a_cluster_that_counts_from_lower_versions_is_believed_once_it_was_listed() {
    let watch = watch();
    let ours = json!([{"clusterName": "a"}]);
    watch.list(&[rule(6, &json!([]))]).await;
    let mut table = written(&watch, &ours);
    table.note(&ObjectKey::new("n", "a"), None, watch.store(), watch.store());
    assert!(table.get(RowId(1)).unwrap().is_settled(), "nothing says yet that the write is not there");
    watch.list(&[rule(3, &json!([]))]).await;
    table.note(&ObjectKey::new("n", "a"), None, watch.store(), watch.store());
    assert!(!table.get(RowId(1)).unwrap().is_settled());
    assert_eq!(accepts(&table, &watch, &ours), None);
}

#[tokio::test(start_paused = true)]
async fn rows_that_were_read_before_the_database_told_of_them_are_no_change_that_waits() {
    let mut table = Table::default();
    table.take(vec![found(1, "a", 1)], Instant::now());
    // What was read was newer than what had been found.
    table.get_mut(RowId(1)).unwrap().settle(Fingerprint::new(2, 7), "uid".into(), Vec::new());
    assert!(table.oldest_pending().is_some(), "whether that is all only the next detection tells");
    table.take(vec![found(1, "a", 2)], Instant::now());
    assert!(table.get(RowId(1)).unwrap().is_settled());
    assert_eq!(table.oldest_pending(), None);
}

#[tokio::test(start_paused = true)]
async fn bad_rows_that_are_gone_are_bad_no_longer() {
    let mut table = Table::default();
    table.take(vec![found(1, "a", 1)], Instant::now());
    table.get_mut(RowId(1)).unwrap().bad.add(1, || "hub/a: no number".to_owned());
    assert_eq!(table.bad_rows(&Tally::default()).count, 1);
    table.take(vec![found(1, "a", 0)], Instant::now());
    assert_eq!(table.bad_rows(&Tally::default()).count, 0);
}

#[tokio::test(start_paused = true)]
async fn a_row_in_the_shadow_of_another_is_not_tried_again() {
    let mut table = Table::default();
    let now = Instant::now();
    table.take(vec![found(1, "a", 1)], now);
    let entry = table.get_mut(RowId(1)).unwrap();
    entry.fail(now, true);
    entry.bad.add(1, || "hub/a: no number".to_owned());
    entry.shadow();
    assert_eq!((table.next_retry(), table.oldest_pending()), (None, None));
    assert_eq!(table.bad_rows(&Tally::default()).count, 0);
}

#[tokio::test(start_paused = true)]
async fn an_edit_is_taken_back_once_an_interval_by_whoever_looks() {
    let watch = watch();
    let ours = json!([{"clusterName": "a"}]);
    watch.list(&[rule(6, &json!([]))]).await;
    let mut table = written(&watch, &ours);
    watch.show(&rule(7, &ours)).await;
    let now = Instant::now();
    table.get_mut(RowId(1)).unwrap().mended = Some(now);
    watch.show(&rule(8, &json!([]))).await;
    table.note(&ObjectKey::new("n", "a"), None, watch.store(), watch.store());
    let soon = now + CALM / 2;
    assert!(table.take_unrest(soon, CALM).is_empty(), "between passes");
    assert!(!table.get(RowId(1)).unwrap().is_due(soon, CALM), "in a pass");
    assert_eq!(table.next_unrest(soon, CALM), Some(now + CALM), "it is not left to the pass after the next");
    assert!(table.get(RowId(1)).unwrap().is_due(now + CALM, CALM));
    assert_eq!(table.take_unrest(now + CALM, CALM), HashSet::from([RowId(1)]));
    assert_eq!(table.next_unrest(now + CALM, CALM), None);
    // What the database asks for does not wait, and what failed is still to be mended.
    table.take(vec![found(1, "a", 2)], soon);
    assert!(table.get(RowId(1)).unwrap().is_due(soon, CALM));
    let mut table = written(&watch, &ours);
    let entry = table.get_mut(RowId(1)).unwrap();
    entry.mended = Some(now);
    entry.fail(now, false);
    assert!(entry.is_due(soon, CALM));
}

#[tokio::test]
async fn what_the_cache_has_yet_to_show_is_known_to_be_outdated() {
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
async fn an_object_that_shows_after_its_rows_went_is_looked_at() {
    let watch = watch();
    let maker = json!({"metadata": {"namespace": "n", "name": "maker", "uid": "live", "resourceVersion": "5"}});
    watch.list(&[maker]).await;
    let mut table = Table::default();
    table.take(vec![found(1, "maker", 1)], Instant::now());
    let settle = |table: &mut Table| {
        table.get_mut(RowId(1)).unwrap().settle(Fingerprint::new(1, 7), "live".into(), Vec::new());
    };
    let mut made = rule(6, &json!([]));
    let owner = json!([{"apiVersion": "x/v1", "kind": "X", "name": "maker", "uid": "live", "controller": true}]);
    made["metadata"]["ownerReferences"] = owner;
    let is_settled_after = |table: &mut Table| {
        let (shown, maker) = (ObjectKey::new("n", "a"), ObjectKey::new("n", "maker"));
        table.note(&shown, Some(&maker), watch.store(), watch.store());
        table.get(RowId(1)).unwrap().is_settled()
    };
    settle(&mut table);
    watch.show(&made).await;
    assert!(is_settled_after(&mut table), "without a label it is somebody else's");
    made["metadata"]["labels"] = json!({"cluster.open-cluster-management.io/placement": "maker"});
    made["metadata"]["resourceVersion"] = json!("7");
    watch.show(&made).await;
    assert!(!is_settled_after(&mut table), "nobody has asked for it");
    // What was read was newer than what had been found: the next detection finds it settled, and nobody else looks.
    table.get_mut(RowId(1)).unwrap().settle(Fingerprint::new(2, 7), "live".into(), Vec::new());
    is_settled_after(&mut table);
    table.take(vec![found(1, "maker", 2)], Instant::now());
    assert!(!table.get(RowId(1)).unwrap().is_settled(), "it may have to go");
    table.take(vec![found(1, "maker", 1)], Instant::now());
    settle(&mut table);
    table.get_mut(RowId(1)).unwrap().delete(vec!["uid".into()]);
    assert!(is_settled_after(&mut table), "its end is on its way");
}

#[tokio::test]
async fn an_object_is_compared_with_all_rows_of_its_name_and_a_row_without_an_object_with_nothing() {
    let watch = watch();
    let (mailbox, _inbox) = key_mailbox(8);
    watch.follow(Arc::new(KeyFollower { namespace: String::new(), mailbox }));
    let object =
        |name: &str, uid: u128| json!({"metadata": {"namespace": "n", "name": name, "uid": RowId(uid).to_string()}});
    watch.list(&[object("its", 1), object("of-two", 3), object("another", 5), object("without-a-row", 6)]).await;
    let mut table = Table::default();
    let rows = [(1, "its"), (2, "of-two"), (3, "of-two"), (4, "another"), (7, "without-an-object")];
    table.take(rows.map(|(id, name)| found(id, name, 1)).to_vec(), Instant::now());
    assert_eq!(table.compare(watch.store()), Compared { objects: 3, others: 1 });
}
