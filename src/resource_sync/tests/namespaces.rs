//! Namespaces of ours: which pair deletes one, and what keeps it.

use std::sync::Arc;

use futures::FutureExt;
use serde_json::json;

use super::{Harness, NAMESPACE, OBJECTS, key, local, namespace, remote, terminating};
use crate::actor::Outcome;
use crate::cluster::Cluster;
use crate::resource_sync::run::index::requests::Requests;

#[tokio::test(start_paused = true)]
async fn of_all_pairs_that_end_at_once_one_deletes_the_namespace() {
    let harness = Harness::new("");
    let names: Vec<String> = (0..50).map(|number| format!("o{number}")).collect();
    let remotes: Vec<_> = names.iter().map(|name| terminating(remote(name, 5), 6)).collect();
    let locals: Vec<_> = names.iter().map(|name| local(name, 7)).collect();
    let ours = namespace(8, "o7", "databases");
    harness.list(&remotes, &locals, std::slice::from_ref(&ours)).await;
    harness.reconcile("o0").await;
    for name in &names[1..] {
        assert!(matches!(harness.reconcile(name).await, Outcome::RetryAfter(_)), "{name} waits");
    }
    assert_eq!(harness.edge.asked(), [format!("DELETE {NAMESPACE}")]);
    // A later namespace of the same name is another one.
    let mut second = namespace(20, "o7", "databases");
    second["metadata"]["uid"] = json!("second");
    harness.watches().namespaces.show(&second).await;
    harness.reconcile("o1").await;
    assert_eq!(harness.edge.asked(), [format!("DELETE {NAMESPACE}")]);
    assert!(harness.hub.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_could_not_be_deleted_is_another_pairs_to_delete() {
    let harness = Harness::new("");
    let names = ["a", "b"];
    let remotes = names.map(|name| terminating(remote(name, 5), 6));
    harness.list(&remotes, &names.map(|name| local(name, 7)), &[namespace(8, "a", "databases")]).await;
    harness.edge.answer(|_| (409, json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "changed"})));
    harness.reconcile("a").await;
    harness.reconcile("b").await;
    assert_eq!(harness.edge.asked(), [format!("DELETE {NAMESPACE}"), format!("DELETE {NAMESPACE}")]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_under_way_deletes_the_namespace_once_the_last_other_object_goes() {
    let harness = Harness::new("");
    let (remotes, locals) = ([terminating(remote("a", 5), 6), remote("b", 5)], ["a", "b"].map(|name| local(name, 7)));
    harness.list(&remotes, &locals, &[namespace(8, "a", "databases")]).await;
    let section = Arc::clone(&harness.section);
    harness.edge.answer(move |asked| {
        if asked == format!("DELETE {OBJECTS}/a") {
            let going = terminating(remote("b", 5), 9);
            section.watches().remote.show(&going).now_or_never().expect("room in the mailbox");
        }
        (200, json!({"metadata": {"uid": "written", "resourceVersion": "1000", "generation": 1}}))
    });
    harness.reconcile("a").await;
    assert_eq!(harness.edge.asked(), [format!("DELETE {OBJECTS}/a"), format!("DELETE {NAMESPACE}")]);
}

#[tokio::test(start_paused = true)]
async fn the_pair_that_deleted_a_namespace_waits_for_its_end_and_the_others_for_their_objects() {
    let harness = Harness::new("");
    let names = ["a", "b", "c"];
    let remotes = names.map(|name| terminating(remote(name, 5), 6));
    let ours = namespace(8, "c", "databases");
    harness.list(&remotes, &names.map(|name| local(name, 7)), std::slice::from_ref(&ours)).await;
    harness.reconcile("b").await;
    assert_eq!(harness.edge.asked(), [format!("DELETE {NAMESPACE}")]);
    harness.watches().namespaces.show(&terminating(ours.clone(), 1001)).await;
    for name in ["a", "c"] {
        harness.reconcile(name).await;
        assert_eq!(harness.edge.asked(), [format!("DELETE {OBJECTS}/{name}")]);
        assert!(harness.hub.asked().is_empty(), "the finalizer stays while the local object does");
        harness.watches().local.gone(&local(name, 1002)).await;
        harness.reconcile(name).await;
        assert_eq!(harness.hub.asked(), [format!("PATCH {OBJECTS}/{name}")]);
    }
    harness.watches().local.gone(&local("b", 1003)).await;
    harness.reconcile("b").await;
    assert!(harness.hub.asked().is_empty() && harness.edge.asked().is_empty(), "the namespace is not gone yet");
    harness.watches().namespaces.gone(&terminating(ours, 1004)).await;
    harness.reconcile("b").await;
    assert_eq!(harness.hub.asked(), [format!("PATCH {OBJECTS}/b")]);
}

#[tokio::test(start_paused = true)]
async fn where_a_pair_without_a_remote_object_deletes_the_namespace_the_others_wait_for_its_end() {
    let harness = Harness::new("");
    let ours = namespace(8, "a", "databases");
    harness.list(&[remote("a", 5), remote("b", 5)], &[local("b", 7)], std::slice::from_ref(&ours)).await;
    harness.watches().remote.gone(&terminating(remote("a", 5), 9)).await;
    harness.watches().remote.show(&terminating(remote("b", 5), 10)).await;
    harness.reconcile("a").await;
    assert_eq!(harness.edge.asked(), [format!("DELETE {NAMESPACE}")]);
    harness.watches().namespaces.show(&terminating(ours, 1001)).await;
    harness.reconcile("b").await;
    harness.watches().local.gone(&local("b", 1002)).await;
    harness.reconcile("b").await;
    assert!(
        harness.hub.asked().is_empty() && harness.edge.asked().is_empty(),
        "a finalizer stays until the namespace is gone"
    );
}

/// A section that created the namespace for an object that is being deleted, and a peer whose caches have not been listed.
async fn owner_and_peer(keys: &str) -> (Harness, Harness) {
    let (hub, edge) = (Cluster::scripted("hub"), Cluster::scripted("edge"));
    let mut owner = Harness::between("databases", &hub, &edge, "");
    let mut peer = Harness::between("gadgets", &hub, &edge, keys);
    let sections = [Arc::clone(&owner.section), Arc::clone(&peer.section)];
    owner.begin(&sections);
    peer.begin(&sections);
    owner.list(&[terminating(remote("a", 5), 6)], &[local("a", 7)], &[namespace(8, "a", "databases")]).await;
    (owner, peer)
}

#[tokio::test(start_paused = true)]
async fn what_is_not_known_of_other_namespaces_keeps_none() {
    let (owner, _peer) = owner_and_peer("namespace_prefix = \"other-\"").await;
    owner.reconcile("a").await;
    assert_eq!(owner.edge.asked(), [format!("DELETE {NAMESPACE}")]);
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_a_namespace_is_requeued_when_a_list_shows_the_others_in_it() {
    let (mut owner, peer) = owner_and_peer("").await;
    owner.reconcile("a").await;
    assert_eq!(owner.edge.asked(), [format!("DELETE {OBJECTS}/a")], "the object goes, the namespace stays");
    owner.watches().local.gone(&local("a", 1001)).await;
    owner.reconcile("a").await;
    assert_eq!(owner.hub.asked(), [format!("PATCH {OBJECTS}/a")], "our finalizer");
    owner.watches().remote.gone(&terminating(remote("a", 5), 1002)).await;
    peer.watches().local.list(&[]).await;
    owner.section.process_requests().await.expect("nothing to be found out");
    owner.requested();
    owner.reconcile("a").await;
    assert!(owner.edge.asked().is_empty(), "the remote of the other is not known yet");
    peer.watches().remote.list(&[]).await;
    owner.section.requeue_woken().await;
    owner.section.process_requests().await.expect("nothing to be found out");
    assert_eq!(owner.requested(), ["team/a"]);
    owner.reconcile("a").await;
    assert_eq!(owner.edge.asked(), [format!("DELETE {NAMESPACE}")]);
}

#[tokio::test(start_paused = true)]
async fn what_goes_while_its_finalizer_is_taken_off_has_gone_the_regular_way() {
    let harness = Harness::new("");
    harness.list(&[terminating(remote("a", 5), 6), remote("b", 5)], &[], &[namespace(8, "first", "databases")]).await;
    let section = Arc::clone(&harness.section);
    harness.hub.answer(move |_| {
        // The watch event arrives before the reply.
        let gone = terminating(remote("a", 5), 9);
        section.watches().remote.gone(&gone).now_or_never().expect("room in the mailbox");
        (200, gone)
    });
    harness.reconcile("a").await;
    assert_eq!(harness.hub.asked(), [format!("PATCH {OBJECTS}/a")]);
    harness.watches().remote.show(&terminating(remote("b", 5), 10)).await;
    harness.reconcile("a").await;
    assert!(harness.hub.asked().is_empty(), "nothing is asked of what was seen terminating");
    assert_eq!(harness.edge.asked(), [format!("DELETE {NAMESPACE}")]);
}

#[tokio::test(start_paused = true)]
async fn what_lives_in_a_namespace_is_not_known_between_new_credentials_and_the_next_list() {
    let (hub, other, edge) = (Cluster::scripted("hub"), Cluster::scripted("other"), Cluster::scripted("edge"));
    let mut owner = Harness::between("databases", &hub, &edge, "");
    let mut peer = Harness::between("gadgets", &other, &edge, "");
    let sections = [Arc::clone(&owner.section), Arc::clone(&peer.section)];
    owner.begin(&sections);
    peer.begin(&sections);
    peer.list(&[], &[], &[]).await;
    owner.list(&[terminating(remote("a", 5), 6)], &[local("a", 7)], &[namespace(8, "a", "databases")]).await;
    owner.section.index(|index| index.requests = Requests::default());
    other.0.new_session(&other.1);
    owner.reconcile("a").await;
    assert_eq!(owner.edge.asked(), [format!("DELETE {OBJECTS}/a")], "the object goes, the namespace stays");
    peer.watches().remote.list(&[]).await;
    assert_eq!(owner.section.index(|index| index.requests.asked.keys()), ["team/a"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_one_section_has_dealt_with_is_remembered_for_the_other() {
    let (hub, edge, other) = (Cluster::scripted("hub"), Cluster::scripted("edge"), Cluster::scripted("other"));
    let mut owner = Harness::between("databases", &hub, &edge, "");
    let mut follower = owner.following_the_same(&other);
    let sections = [Arc::clone(&owner.section), Arc::clone(&follower.section)];
    owner.begin(&sections);
    follower.begin(&sections);
    follower.watches().namespaces.list(&[]).await;
    follower.watches().local.list(&[]).await;
    owner.list(&[remote("a", 5)], &[local("a", 7)], &[namespace(8, "a", "databases")]).await;
    owner.watches().remote.gone(&terminating(remote("a", 5), 9)).await;
    follower.reconcile("a").await;
    owner.reconcile("a").await;
    assert!(owner.hub.asked().is_empty(), "it was seen terminating");
    assert_eq!(owner.edge.asked(), [format!("DELETE {NAMESPACE}")]);
    let key = key("a");
    owner.watches().namespaces.gone(&namespace(1001, "a", "databases")).await;
    assert!(!owner.watches().remote.store().absence(&key).seen_terminating, "no section needs it any more");
}

#[tokio::test(start_paused = true)]
async fn no_pair_deletes_the_namespace_of_a_paused_object() {
    let harness = Harness::new("");
    let mut paused = terminating(remote("a", 5), 6);
    paused["metadata"]["annotations"]["cloud.teleport.dev/paused"] = json!("true");
    let mut theirs = local("b", 7);
    theirs["metadata"]["annotations"] = json!({});
    harness.list(&[paused.clone()], &[theirs], &[namespace(8, "a", "databases")]).await;
    harness.reconcile("b").await;
    assert!(harness.edge.asked().is_empty(), "no pair acts for one that is paused");
    harness.watches().remote.show(&terminating(remote("a", 5), 9)).await;
    harness.reconcile("a").await;
    assert_eq!(harness.edge.asked(), [format!("DELETE {NAMESPACE}")]);
}
