//! How a probe treats connections that break and servers that do not answer.

use std::pin::pin;

use serde_json::json;

use super::*;
use crate::cluster::Verb;
use crate::cluster::access::AccessRequest;
use crate::config::ClusterAccess;

/// What a probe says of a server that answers in this order, and how many requests that took.
async fn probed(answers: &'static [u16]) -> (Result<(), Error>, usize) {
    let (cluster, script) = Cluster::scripted("west");
    let mut answers = answers.iter();
    script.answer(move |_| (*answers.next().unwrap(), json!({})));
    let session = cluster.sessions().borrow().clone().unwrap();
    let answer = once_more(|| session.connection.probe_as(None, PROBE_DEADLINE)).await;
    (answer, script.asked().len())
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_is_no_outage_but_two_are_and_so_is_silence() {
    assert!(matches!(probed(&[200]).await, (Ok(()), 1)));
    assert!(matches!(probed(&[1, 200]).await, (Ok(()), 2)));
    assert!(matches!(probed(&[1, 1]).await, (Err(Error::NoAnswer { .. }), 2)));
    assert!(matches!(probed(&[1, 401]).await, (Err(Error::Unauthorized { .. }), 2)));
    assert!(matches!(probed(&[0]).await, (Err(Error::NoAnswer { .. }), 1)), "its deadline has passed");
    assert!(matches!(probed(&[500]).await, (Err(Error::Server { .. }), 1)));
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_is_to_ask_for_a_permission_rests_while_its_cluster_is_not_available() {
    let (cluster, script) = Cluster::scripted("west");
    script.answer(|_| (0, json!({})));
    cluster.denied_permissions().deny(&AccessRequest::new(Verb::Get, "pods", "team", ""));
    unavailable(&cluster, ClusterState::Unreachable, "none");
    let access = ClusterAccess::Kubeconfig { path: "/there/is/none".into(), context: None };
    let (scope, _drain) = Scope::standalone("west");
    let mut actor = pin!(run(cluster.clone(), ClusterConfig::new(access), scope));
    let mut polls = 0;
    let polled = std::future::poll_fn(|context| {
        polls += 1;
        assert!(polls < 1000, "it turns without end");
        actor.as_mut().poll(context)
    });
    tokio::time::timeout(Duration::from_mins(2), polled).await.expect_err("it ended");
    assert!(polls > 10, "it retries its credentials");
    assert!(!cluster.is_available());
}
